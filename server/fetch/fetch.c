/* See fetch.h. */
#include "server/fetch/fetch.h"

#include "config/base/clock.h"
#include "config/base/list.h"
#include "config/base/log.h"
#include "server/fetch/address.h"
#include "server/fetch/easy.h"
#include "server/fetch/rules.h"
#include "server/media/codec.h"
#include "server/shares/shares.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define FETCHES_OF_A_JOB 4u
#define QUEUE_MAX        1024u        /* URLs waiting or fetched, and as many for who has few; above it 429 */
#define FETCHES_SHARED   16u          /* transfers that anybody may have; the others are for who has few */
#define HELD_MAX         (512u << 20) /* bytes of all files until their requests take them */
#define HEAD_MAX         (64u << 10)  /* bytes of a response's header lines */
#define REDIRECTS_MAX    3u
#define CONNECT_MS       3000L
#define IDLE_POLL_MS     1000

struct fetch_job {
    struct fetcher *f;
    struct fetch_job *next_job;
    struct share *share; /* whose it is */
    void *user;
    atomic_bool cancelled;
    size_t held; /* bytes of its files, accounted */
    size_t count;
    struct fetch_file files[FETCH_URLS_MAX];
    /* the thread's */
    size_t started, open; /* transfers started; transfers running */
    bool failed;
};

enum stop {
    STOP_NONE,
    STOP_BODY, /* body of a response that isn't 200, or is compressed: not needed */
    STOP_HEAD,
    STOP_LARGE,
    STOP_JOB_LARGE,
    STOP_BUSY,
    STOP_NOMEM,
};

struct transfer {
    struct fetch_job *job; /* NULL: not in use */
    struct fetch_file *file;
    CURL *easy;
    CURLU *url;
    size_t cap, head;
    unsigned redirects;
    uint64_t deadline_ms;
    enum stop stop;
    bool https, coded, refused; /* refused: an address */
};

struct fetcher {
    struct host_rules hosts;
    struct networks networks;
    struct fetch_options opt;
    CURLM *multi;
    struct curl_slist *headers;
    pthread_t thread;
    atomic_bool stopping;
    pthread_mutex_t lock;
    struct fetch_job *incoming, **incoming_end, *finished; /* under the lock */
    struct fetch_stats stats;                              /* fetched, failed, bytes; under the lock */
    /* the thread's */
    struct fetch_job *active, **active_end;
    struct transfer transfers[FETCHES_MAX];
};

/* ---- jobs ---- */

struct fetch_job *fetch_job_new(struct fetcher *f)
{
    struct fetch_job *j = calloc(1, sizeof *j);
    if (j) j->f = f;
    return j;
}

const struct fetch_file *fetch_find(const struct fetch_job *j, const char *url, size_t len)
{
    for (size_t i = 0; i < j->count; i++)
        if (j->files[i].url_len == len && memcmp(j->files[i].url, url, len) == 0) return &j->files[i];
    return NULL;
}

enum status fetch_job_add(struct fetch_job *j, const char *url, size_t len)
{
    if (fetch_find(j, url, len)) return ST_OK;
    if (j->count == FETCH_URLS_MAX) return ST_TOO_LARGE;
    char *copy = malloc(len + 1);
    if (!copy) return ST_NOMEM;
    memcpy(copy, url, len);
    copy[len] = '\0';
    j->files[j->count++] = (struct fetch_file){.url = copy, .url_len = len};
    return ST_OK;
}

void fetch_job_free(struct fetch_job *j)
{
    if (!j) return;
    for (size_t i = 0; i < j->count; i++) {
        free(j->files[i].url);
        free(j->files[i].bytes);
    }
    if (j->share) share_sub(j->share, SHARE_FILES, j->held);
    free(j);
}

/* ---- libcurl callbacks, on the thread ---- */

static curl_socket_t socket_open(void *arg, curlsocktype purpose, struct curl_sockaddr *to)
{
    struct transfer *t = arg;
    if (purpose == CURLSOCKTYPE_IPCXN && address_allowed(&to->addr, &t->job->f->networks))
        return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
    t->refused = true;
    if (log_enabled(LOG_DEBUG)) {
        char host[NI_MAXHOST] = "?"; /* for the operator only: clients don't see addresses */
        getnameinfo(&to->addr, (socklen_t)to->addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
        log_debug("fetching %.200s: the address %s is not allowed", t->file->url, host);
    }
    return CURL_SOCKET_BAD;
}

/* Is it a header line `name` with a value other than `plain`? */
static bool coded_by(const char *line, size_t len, const char *name, const char *plain)
{
    size_t n = strlen(name), m = strlen(plain);
    if (len < n || strncasecmp(line, name, n) != 0) return false;
    line += n;
    len -= n;
    while (len && strchr(" \t", *line)) line++, len--;
    while (len && strchr(" \t\r\n", line[len - 1])) len--;
    return len && !(len == m && strncasecmp(line, plain, m) == 0);
}

static size_t head_line(char *line, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    size_t n = size * count;
    t->head += n;
    if (t->head > HEAD_MAX) {
        t->stop = STOP_HEAD;
        return 0;
    }
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0) t->coded = false;
    t->coded |= coded_by(line, n, "Content-Encoding:", "identity") ||
                coded_by(line, n, "Transfer-Encoding:", "chunked");
    return n;
}

static enum stop room(struct transfer *t, size_t more)
{
    struct fetcher *f = t->job->f;
    struct fetch_file *file = t->file;
    if (more > f->opt.bytes_max - file->len) return STOP_LARGE;
    if (t->job->held + more > HELD_MAX) return STOP_JOB_LARGE;
    if (!LIST_RESERVE(file->bytes, t->cap, file->len + more)) return STOP_NOMEM;
    if (!share_try(t->job->share, SHARE_FILES, more, HELD_MAX, HELD_MAX / 4)) return STOP_BUSY;
    t->job->held += more;
    return STOP_NONE;
}

static size_t body_chunk(char *data, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    size_t n = size * count;
    long code = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code);
    t->stop = code != 200 || t->coded ? STOP_BODY : room(t, n);
    if (t->stop) return 0;
    memcpy(t->file->bytes + t->file->len, data, n);
    t->file->len += n;
    return n;
}

/* ---- transfers ---- */

static void transfer_close(struct transfer *t)
{
    if (t->easy) {
        curl_multi_remove_handle(t->job->f->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    curl_url_cleanup(t->url);
    t->easy = NULL;
    t->url = NULL;
}

static void transfer_drop(struct transfer *t)
{
    transfer_close(t);
    t->job->open--;
    share_sub(t->job->share, SHARE_TRANSFERS, 1);
    *t = (struct transfer){0};
}

static void transfer_end(struct transfer *t, enum image_error error)
{
    struct fetcher *f = t->job->f;
    t->file->done = true;
    t->file->error = error;
    t->job->failed |= error != IMAGE_OK;
    pthread_mutex_lock(&f->lock);
    f->stats.fetched += !error;
    f->stats.failed += error != IMAGE_OK;
    f->stats.bytes += error ? 0 : t->file->len;
    pthread_mutex_unlock(&f->lock);
    if (error) log_debug("fetching %.200s: %s", t->file->url, t->file->err.msg);
    transfer_drop(t);
}

static bool easy_set(struct transfer *t)
{
    struct fetcher *f = t->job->f;
    CURL *e = t->easy;
    uint64_t now = now_us() / 1000u;
    long left = t->deadline_ms > now ? (long)(t->deadline_ms - now) : 1;
    unsigned bad = !easy_begin(e, left < CONNECT_MS ? left : CONNECT_MS, body_chunk, t);
    bad |= curl_easy_setopt(e, CURLOPT_CURLU, t->url);
    bad |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, f->headers);
    bad |= curl_easy_setopt(e, CURLOPT_PROXY, ""); /* none, whatever the environment says */
    bad |= curl_easy_setopt(e, CURLOPT_NOPROXY, "*");
    bad |= curl_easy_setopt(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    bad |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, left);
    bad |= curl_easy_setopt(e, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)f->opt.bytes_max);
    /* Connections are not shared between requests: each has its own address check. */
    bad |= curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_FORBID_REUSE, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_DNS_CACHE_TIMEOUT, 0L);
    bad |= curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L); /* cancellation does not wait for a resolver */
    bad |= curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, socket_open);
    bad |= curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, t);
    bad |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, head_line);
    bad |= curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
    return !bad && !curl_multi_add_handle(f->multi, e);
}

static bool is_https(CURLU *u)
{
    char *scheme = NULL;
    bool yes = !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) && strcasecmp(scheme, "https") == 0;
    curl_free(scheme);
    return yes;
}

/* Starts the first URL or a redirect's target. Ends the transfer if it can't start. */
static void transfer_begin(struct transfer *t, CURLU *base, const char *url, size_t len)
{
    struct fetcher *f = t->job->f;
    struct err *err = &t->file->err;
    enum image_error error = url_check(&f->hosts, base, url, len, &t->url, err);
    if (!error && t->https && !is_https(t->url))
        error = image__fail(err, IMAGE_BAD_URL, "the URL leads from https to http");
    if (!error) {
        t->https = is_https(t->url);
        t->easy = curl_easy_init();
        if (!t->easy || !easy_set(t)) error = image__nomem(err);
    }
    if (error) transfer_end(t, error);
}

static enum image_error curl_error(const struct transfer *t, CURLcode rc, struct err *err)
{
    static const struct {
        CURLcode rc;
        const char *text;
    } known[] = {
        {CURLE_COULDNT_RESOLVE_HOST, "its host is not known"},
        {CURLE_COULDNT_CONNECT, "its host can't be reached"},
        {CURLE_PEER_FAILED_VERIFICATION, "its host's certificate is not trusted"},
        {CURLE_SSL_CONNECT_ERROR, "its host can't be reached by TLS"},
        {CURLE_PARTIAL_FILE, "its host closed the connection"},
        {CURLE_RECV_ERROR, "its host closed the connection"},
        {CURLE_GOT_NOTHING, "its host sent no response"},
    };
    if (t->refused) return image__fail(err, IMAGE_BAD_URL, FETCH_NOT_FROM_HERE);
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return image__fail(err, IMAGE_DOWNLOAD, "the URL could not be fetched within %llu s",
                           (unsigned long long)t->job->f->opt.seconds);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].rc == rc)
            return image__fail(err, IMAGE_DOWNLOAD, "the URL could not be fetched: %s", known[i].text);
    return image__fail(err, IMAGE_DOWNLOAD, "the URL could not be fetched: its host's response is not valid");
}

static enum image_error outcome(const struct transfer *t, CURLcode rc, long code, struct err *err)
{
    size_t most = t->job->f->opt.bytes_max;
    switch (t->stop) {
    case STOP_HEAD:
        return image__fail(err, IMAGE_DOWNLOAD,
                           "the URL could not be fetched: the response's header is over %u bytes", HEAD_MAX);
    case STOP_JOB_LARGE:
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the request's files have more than %u bytes together",
                           HELD_MAX);
    case STOP_BUSY: return image__fail(err, IMAGE_BUSY, "the server holds too many fetched files");
    case STOP_NOMEM: return image__nomem(err);
    case STOP_NONE:
    case STOP_BODY:
    case STOP_LARGE: break;
    }
    if (t->stop == STOP_LARGE || rc == CURLE_FILESIZE_EXCEEDED)
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the image file has more than %zu bytes", most);
    if (rc && !t->stop) return curl_error(t, rc, err);
    if (code != 200)
        return image__fail(err, IMAGE_DOWNLOAD, "the URL could not be fetched: status %ld", code);
    if (t->coded)
        return image__fail(err, IMAGE_DOWNLOAD, "the URL could not be fetched: the response is compressed");
    return t->file->len ? IMAGE_OK : image__fail(err, IMAGE_EMPTY, "the image is empty");
}

static void transfer_done(struct transfer *t, CURLcode rc)
{
    long code = 0;
    struct curl_header *to = NULL;
    struct err *err = &t->file->err;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code);
    bool moved = ((code >= 301 && code <= 303) || code == 307 || code == 308) &&
                 (!rc || t->stop == STOP_BODY) &&
                 !curl_easy_header(t->easy, "Location", 0, CURLH_HEADER, -1, &to);
    if (!moved) {
        transfer_end(t, outcome(t, rc, code, err));
    } else if (t->redirects++ == REDIRECTS_MAX) {
        transfer_end(t,
                     image__fail(err, IMAGE_DOWNLOAD, "the URL redirects more than %u times", REDIRECTS_MAX));
    } else {
        CURL *easy = t->easy; /* holds the header */
        CURLU *base = t->url;
        curl_multi_remove_handle(t->job->f->multi, easy);
        t->easy = NULL;
        t->url = NULL;
        t->stop = STOP_NONE;
        t->head = 0;
        t->coded = t->refused = false;
        transfer_begin(t, base, to->value, strlen(to->value));
        curl_easy_cleanup(easy);
        curl_url_cleanup(base);
    }
}

/* ---- the thread ---- */

static bool given_up(const struct fetch_job *j)
{
    return j->failed || atomic_load(&j->cancelled);
}

static void job_finish(struct fetcher *f, struct fetch_job *j)
{
    share_sub(j->share, SHARE_URLS, j->count); /* before the loop may free it */
    pthread_mutex_lock(&f->lock);
    j->next_job = f->finished;
    f->finished = j;
    pthread_mutex_unlock(&f->lock);
    f->opt.wake(f->opt.wake_arg);
}

static bool waits(const struct fetch_job *j)
{
    return j->started < j->count && !given_up(j);
}

/* The job whose turn it is to start a transfer: of who has fewest, then of who was served longest ago. */
static struct fetch_job *next_of(const struct fetcher *f)
{
    struct fetch_job *first = NULL;
    for (struct fetch_job *j = f->active; j; j = j->next_job)
        if (waits(j) && j->open < FETCHES_OF_A_JOB &&
            share_admits(j->share, SHARE_TRANSFERS, 1, FETCHES_SHARED, FETCHES_MAX - FETCHES_SHARED) &&
            (!first || share_before(j->share, first->share, SHARE_TRANSFERS)))
            first = j;
    return first;
}

/* Ends cancelled transfers, starts as many as allowed, returns completed jobs. */
static void jobs_tend(struct fetcher *f)
{
    struct transfer *t = f->transfers, *end = t + FETCHES_MAX;
    for (; t < end; t++)
        if (t->job && given_up(t->job)) transfer_drop(t);
    for (struct fetch_job *j; (j = next_of(f));) {
        for (t = f->transfers; t->job;) t++; /* the limit leaves one */
        struct fetch_file *file = &j->files[j->started++];
        *t = (struct transfer){
            .job = j, .file = file, .deadline_ms = now_us() / 1000u + f->opt.seconds * 1000u};
        j->open++;
        share_serve(j->share, SHARE_TRANSFERS);
        transfer_begin(t, NULL, file->url, file->url_len);
    }
    for (t = f->transfers; t < end; t++)
        if (t->job && given_up(t->job)) transfer_drop(t);
    for (struct fetch_job **at = &f->active; *at;) {
        struct fetch_job *j = *at;
        if (j->open || waits(j)) {
            at = &j->next_job;
            continue;
        }
        *at = j->next_job;
        if (!*at) f->active_end = at;
        job_finish(f, j);
    }
}

static void jobs_accept(struct fetcher *f)
{
    pthread_mutex_lock(&f->lock);
    if (f->incoming) {
        *f->active_end = f->incoming;
        f->active_end = f->incoming_end;
        f->incoming = NULL;
        f->incoming_end = &f->incoming;
    }
    pthread_mutex_unlock(&f->lock);
}

static void *fetch_main(void *arg)
{
    struct fetcher *f = arg;
    while (!atomic_load(&f->stopping)) {
        int running, left;
        CURLMsg *m;
        jobs_accept(f);
        jobs_tend(f);
        curl_multi_perform(f->multi, &running);
        while ((m = curl_multi_info_read(f->multi, &left))) {
            struct transfer *t;
            CURLcode rc = m->data.result;
            if (m->msg == CURLMSG_DONE && !curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t))
                transfer_done(t, rc);
        }
        jobs_tend(f);
        curl_multi_poll(f->multi, NULL, 0, IDLE_POLL_MS, NULL);
    }
    return NULL;
}

/* ---- the loop's side ---- */

void fetch_start(struct fetch_job *j, struct share *share, void *user)
{
    struct fetcher *f = j->f;
    j->user = user;
    j->share = share;
    j->next_job = NULL;
    bool busy = !share_try(share, SHARE_URLS, j->count, QUEUE_MAX, QUEUE_MAX);
    if (busy) share_add(share, SHARE_URLS, j->count);
    pthread_mutex_lock(&f->lock);
    if (!busy) {
        *f->incoming_end = j;
        f->incoming_end = &j->next_job;
    }
    pthread_mutex_unlock(&f->lock);
    if (busy) {
        struct fetch_file *first = &j->files[0];
        first->done = true;
        first->error = image__fail(&first->err, IMAGE_BUSY, "too many URLs wait for being fetched");
        job_finish(f, j);
    }
    curl_multi_wakeup(f->multi);
}

void fetch_cancel(struct fetch_job *j)
{
    atomic_store(&j->cancelled, true);
    curl_multi_wakeup(j->f->multi);
}

struct fetch_job *fetch_take(struct fetcher *f, void **user)
{
    pthread_mutex_lock(&f->lock);
    struct fetch_job *j = f->finished;
    if (j) f->finished = j->next_job;
    pthread_mutex_unlock(&f->lock);
    if (j) *user = j->user;
    return j;
}

void fetch_stats(struct fetcher *f, struct fetch_stats *out)
{
    pthread_mutex_lock(&f->lock);
    *out = f->stats;
    pthread_mutex_unlock(&f->lock);
}

/* ---- life cycle ---- */

static void fetcher_free(struct fetcher *f)
{
    if (f->multi) curl_multi_cleanup(f->multi);
    curl_slist_free_all(f->headers);
    host_rules_free(&f->hosts);
    networks_free(&f->networks);
    pthread_mutex_destroy(&f->lock);
    free(f);
    curl_global_cleanup();
}

static enum status fetcher_open(struct fetcher *f, struct err *err)
{
    enum status st = host_rules_parse(f->opt.hosts, &f->hosts, err);
    if (st) return err_prefix(err, st, "--allow-remote-media");
    if (f->opt.networks) st = networks_parse(f->opt.networks, &f->networks, err);
    if (st) return err_prefix(err, st, "--allow-private-media");
    f->multi = curl_multi_init();
    struct curl_slist *one = curl_slist_append(NULL, "Accept: image/*");
    f->headers = one ? curl_slist_append(one, "Accept-Encoding: identity") : NULL;
    if (!f->headers) curl_slist_free_all(one);
    if (!f->multi || !f->headers) return err_nomem(err, NULL);
    if (pthread_create(&f->thread, NULL, fetch_main, f)) return err_set(err, ST_IO, "can't start a thread");
    return ST_OK;
}

enum status fetcher_create(const struct fetch_options *o, struct fetcher **out, struct err *err)
{
    struct fetcher *f = calloc(1, sizeof *f);
    if (!f || pthread_mutex_init(&f->lock, NULL)) {
        free(f);
        return err_nomem(err, NULL);
    }
    f->opt = *o;
    f->incoming_end = &f->incoming;
    f->active_end = &f->active;
    enum status st = curl_global_init(CURL_GLOBAL_DEFAULT) ? err_set(err, ST_IO, "libcurl does not start")
                                                           : fetcher_open(f, err);
    if (st) fetcher_free(f);
    else *out = f;
    return st;
}

void fetcher_destroy(struct fetcher *f)
{
    if (!f) return;
    atomic_store(&f->stopping, true);
    curl_multi_wakeup(f->multi);
    pthread_join(f->thread, NULL);
    for (size_t i = 0; i < FETCHES_MAX; i++)
        if (f->transfers[i].job) transfer_close(&f->transfers[i]);
    fetcher_free(f);
}

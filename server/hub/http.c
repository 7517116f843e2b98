/* Transfers from the hub: files in ranges, several at once. See internal.h.
 *
 * A file is hub_get.have bytes on disk, in blobs/HASH.incomplete, and ranges after these, which wait in
 * memory for those before them; so what is on disk is always the file's beginning, whoever resumes it.
 * libcurl follows redirects and drops the token where they leave the endpoint's host; further ranges go
 * directly to where the first was led, without a token. */
#include "config/base/clock.h"
#include "config/base/file.h"
#include "config/base/log.h"
#include "config/base/progress.h"
#include "config/options.h"
#include "server/fetch/ca_file.h"
#include "server/hub/internal.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRANSFERS  8u
#define RANGE      (UINT64_C(8) << 20)
#define AHEAD      (2 * TRANSFERS * RANGE) /* most bytes of a file that wait in memory or are asked for */
#define TRIES      5u                      /* without a byte between them */
#define WAIT_MAX_S 60u                     /* of a Retry-After */
#define FLOOR      1024u /* bytes a second, all transfers together, over FLOOR_S of the timeout */
#define FLOOR_S    3u
#define CONNECT_MS 10000L
#define REDIRECTS  5L

enum transfer_state { T_IDLE = 0, T_RUNS, T_RETRIES, T_ENDED /* bytes before its own are missing */ };

struct transfer {
    struct client *client;
    CURL *easy;
    enum transfer_state state;
    struct hub_get *get;
    uint64_t begin, len, got; /* the range; bytes of it that have come */
    struct buf wait;          /* the last of these, which are not on disk */
    uint64_t retry_us;
    unsigned tries;
    bool cancel; /* another one takes its place */
    bool direct; /* not at the endpoint */
    /* the current response */
    long code;
    unsigned retry_after;
    char said[160], kind[40]; /* X-Error-Message, X-Error-Code */
    char etag[80], linked_etag[80];
    uint64_t linked_size;
    bool begun;     /* the first byte of the body was looked at */
    struct err err; /* not to be tried again */
};

struct client {
    const struct hub *h;
    const char *repo;
    CURLM *multi;
    struct curl_slist *with_token;
    struct hub_get *gets;
    size_t count;
    struct transfer transfers[TRANSFERS];
    struct progress progress;
    uint64_t total, resumed;
    uint64_t came, came_then, then_us, last_us; /* bytes, and as they were when the floor's window began */
    enum status st;
    struct err *err;
};

/* ---- a file on disk ---- */

static void get_close(struct hub_get *g)
{
    uint8_t unused[64];
    if (g->digest) gnutls_hash_deinit(g->digest, unused);
    if (g->open && g->fd >= 0) close(g->fd);
    if (g->open && g->lock_fd >= 0) close(g->lock_fd);
    free(g->direct);
    g->direct = NULL;
    g->digest = NULL;
    g->open = false;
}

/* SHA-256 of the bytes; or what Git calls a file: SHA-1 of "blob SIZE", NUL and the bytes. */
static gnutls_hash_hd_t digest_begin(const char *hash, uint64_t size)
{
    bool git = strlen(hash) == HUB_COMMIT_LEN;
    gnutls_hash_hd_t digest = NULL;
    char head[40];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
    if (gnutls_hash_init(&digest, git ? GNUTLS_DIG_SHA1 : GNUTLS_DIG_SHA256)) return NULL;
    if (git) (void)gnutls_hash(digest, head, (size_t)n + 1);
    return digest;
}

/* hex: what it is */
static bool digest_is(gnutls_hash_hd_t digest, const char *hash, char hex[2 * 64 + 1])
{
    uint8_t sum[64];
    gnutls_hash_output(digest, sum);
    for (size_t i = 0; i < strlen(hash) / 2; i++) sprintf(hex + 2 * i, "%02x", sum[i]);
    return strcmp(hex, hash) == 0;
}

static enum status digest_file(gnutls_hash_hd_t digest, int fd, uint64_t *len)
{
    static char bytes[1 << 16];
    ssize_t n;
    for (*len = 0; (n = read(fd, bytes, sizeof bytes)) > 0; *len += (uint64_t)n)
        if (gnutls_hash(digest, bytes, (size_t)n)) return ST_IO;
    return n ? ST_IO : ST_OK;
}

/* Checked after its last change: then the lock's file has a byte, and is younger. */
static bool known(int fd, int lock_fd)
{
    struct stat b, l;
    if (fstat(fd, &b) || fstat(lock_fd, &l) || !l.st_size) return false;
    const struct timespec *changed = &b.st_ctim, *checked = &l.st_mtim;
    return checked->tv_sec != changed->tv_sec ? checked->tv_sec > changed->tv_sec
                                              : checked->tv_nsec >= changed->tv_nsec;
}

static void remember(int lock_fd)
{
    if (pwrite(lock_fd, "1", 1, 0) != 1) log_debug("a check is not remembered: it is made again next time");
}

bool hub_blob_good(const struct hub_get *g, int lock_fd)
{
    uint8_t unused[64];
    char hex[2 * 64 + 1] = "";
    int fd;
    uint64_t size;
    if (file_open(g->blob, &fd, &size, NULL)) return false;
    bool good = known(fd, lock_fd);
    gnutls_hash_hd_t digest = good ? NULL : digest_begin(g->file->hash, size);
    if (digest) {
        if (size >> 30) log_info("%s is checked, once", g->file->path);
        bool read = !digest_file(digest, fd, &size);
        good = digest_is(digest, g->file->hash, hex) && read;
        gnutls_hash_deinit(digest, unused);
        if (good) remember(lock_fd);
        else log_warn("%s of the cache is damaged: its hash is %.16s...", g->file->path, hex);
    }
    close(fd);
    return good;
}

static bool from_nothing(struct hub_get *g)
{
    uint8_t unused[64];
    if (g->digest) gnutls_hash_deinit(g->digest, unused);
    g->have = g->next = g->resumed = 0;
    return (g->digest = digest_begin(g->file->hash, g->file->size)) && !ftruncate(g->fd, 0);
}

/* Opens blobs/HASH.incomplete under the lock, and reads what an earlier download has left. */
static enum status get_open(struct hub_get *g, struct err *err)
{
    struct stat sb;
    g->fd = g->lock_fd = -1;
    g->open = true;
    enum status st = hub_mkdirs(g->lock, err);
    if (!st) st = hub_mkdirs(g->blob, err);
    if (!st && (g->lock_fd = open(g->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664)) >= 0 &&
        flock(g->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        log_info("waiting: another process downloads %s", g->file->path);
        while (flock(g->lock_fd, LOCK_EX) && errno == EINTR) continue;
    }
    if (!st && (g->done = hub_blob_good(g, g->lock_fd))) return ST_OK; /* perhaps by the other process */
    if (!st && remove(g->blob) && errno != ENOENT)
        st = err_set(err, ST_IO, "%s is in the way, and can't be removed: %s", g->blob, strerror(errno));
    if (!st && ((g->fd = open(g->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) < 0 ||
                fstat(g->fd, &sb)))
        st = err_set(err, ST_IO, "can't write %s: %s", g->part, strerror(errno));
    if (!st && (((uint64_t)sb.st_size > g->file->size && ftruncate(g->fd, 0)) ||
                !(g->digest = digest_begin(g->file->hash, g->file->size)) ||
                digest_file(g->digest, g->fd, &g->have)))
        st = err_set(err, ST_IO, "can't begin %s again", g->part);
    g->next = g->resumed = g->have;
    return st;
}

static enum status append(struct hub_get *g, const char *data, size_t len, struct err *err)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(g->fd, data + at, len - at, (off_t)(g->have + at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return err_set(err, ST_IO, "can't write %s: %s; what is there is kept, and resumed next time",
                           g->blob, n ? strerror(errno) : "nothing was written");
        at += (size_t)n;
    }
    g->have += len;
    return gnutls_hash(g->digest, data, len) ? err_set(err, ST_IO, "can't hash %s", g->blob) : ST_OK;
}

/* All bytes are there: they are the file if they have its hash. */
static enum status get_end(struct hub_get *g, struct err *err)
{
    char hex[2 * 64 + 1] = "";
    enum status st = ST_OK;
    if (!digest_is(g->digest, g->file->hash, hex)) {
        if (g->resumed && !g->again) { /* the beginning may have been another process's, or damaged */
            log_warn("%s: its bytes do not have its hash: from its beginning again", g->file->path);
            g->again = true;
            return from_nothing(g) ? ST_OK : err_set(err, ST_IO, "can't begin %s again", g->part);
        }
        (void)unlink(g->part);
        st = err_set(err, ST_FORMAT, "%s is damaged: its hash is %.16s..., not %.16s...; try again",
                     g->file->path, hex, g->file->hash);
    }
    if (!st && (fdatasync(g->fd) || rename(g->part, g->blob)))
        st = err_set(err, ST_IO, "can't write %s: %s", g->blob, strerror(errno));
    if (!st) remember(g->lock_fd);
    g->done = !st;
    get_close(g);
    return st;
}

/* ---- libcurl's callbacks ---- */

static bool value_of(const char *line, size_t len, const char *name, char *to, size_t cap)
{
    size_t n = strlen(name);
    if (len <= n || strncasecmp(line, name, n) != 0) return false;
    for (line += n, len -= n; len && strchr(" \t\"", *line);) line++, len--;
    while (len && strchr(" \t\r\n\"", line[len - 1])) len--;
    snprintf(to, cap, "%.*s", (int)(len < cap ? len : cap - 1), line);
    return true;
}

static size_t head_line(char *line, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    size_t n = size * count;
    char text[32];
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0)
        t->retry_after = 0, t->said[0] = t->kind[0] = t->etag[0] = '\0';
    if (value_of(line, n, "Retry-After:", text, sizeof text))
        t->retry_after = (unsigned)strtoul(text, NULL, 10);
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->code);
    if (t->code == 429 && value_of(line, n, "RateLimit:", text, sizeof text) && strstr(text, ";t="))
        t->retry_after = (unsigned)strtoul(strstr(text, ";t=") + 3, NULL, 10);
    if (value_of(line, n, "X-Linked-Size:", text, sizeof text)) t->linked_size = strtoull(text, NULL, 10);
    (void)(value_of(line, n, "X-Error-Message:", t->said, sizeof t->said) ||
           value_of(line, n, "X-Error-Code:", t->kind, sizeof t->kind) ||
           value_of(line, n, "X-Linked-ETag:", t->linked_etag, sizeof t->linked_etag) ||
           value_of(line, n, "ETag: W/", t->etag, sizeof t->etag) ||
           value_of(line, n, "ETag:", t->etag, sizeof t->etag));
    return n;
}

/* A whole file instead of a range: this transfer takes all of it, and the file's others end. */
static enum status take_whole(struct client *c, struct transfer *t)
{
    struct hub_get *g = t->get;
    for (size_t i = 0; i < TRANSFERS; i++)
        if (&c->transfers[i] != t && c->transfers[i].get == g) c->transfers[i].cancel = true;
    g->whole = true;
    if (g->have && !from_nothing(g)) return err_set(&t->err, ST_IO, "can't begin %s again", g->blob);
    t->begin = t->got = 0;
    t->len = g->next = g->file->size;
    buf_fini(&t->wait);
    return ST_OK;
}

static enum status body_begin(struct client *c, struct transfer *t, const char *data, size_t len)
{
    static const char pointer[] = "version https://git-lfs";
    struct hub_get *g = t->get;
    curl_off_t all = -1;
    if (g->what != HUB_BLOB) return ST_OK;
    if (len >= sizeof pointer - 1 && !t->got && strlen(g->file->hash) != HUB_COMMIT_LEN &&
        memcmp(data, pointer, sizeof pointer - 1) == 0)
        return err_set(&t->err, ST_FORMAT, "the hub sends a Git LFS pointer for %s instead of the file",
                       g->file->path);
    if (t->code == 200 && (t->begin || t->got || t->len < g->file->size) && take_whole(c, t)) return ST_IO;
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &all);
    if (all >= 0 && (uint64_t)all != t->len - t->got)
        return err_set(&t->err, ST_FORMAT, "%s: the hub sends %lld bytes where its list has %llu",
                       g->file->path, (long long)all, (unsigned long long)(t->len - t->got));
    return ST_OK;
}

/* In order to the disk; what is ahead of that waits. */
static enum status flush(struct client *c, struct hub_get *g, struct err *err)
{
    for (size_t i = 0; i < TRANSFERS; i++) {
        struct transfer *t = &c->transfers[i];
        if (t->get != g || t->cancel || !t->wait.len || t->begin + t->got - t->wait.len != g->have) continue;
        enum status st = append(g, t->wait.data, t->wait.len, err);
        buf_fini(&t->wait);
        if (st) return st;
        i = (size_t)-1; /* the next range may be any of them */
    }
    return ST_OK;
}

static size_t body_part(char *data, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    struct hub_get *g = t->get;
    size_t n = size * count;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->code);
    if (t->cancel) return 0;
    if (t->code != 200 && t->code != 206) return n; /* an error's text */
    t->client->came += n;
    if (g->what == HUB_BODY && buf_add(g->body, data, n))
        return err_set(&t->err, ST_TOO_LARGE, "%s: the hub's list of files is too large", t->client->repo), 0;
    if (g->what == HUB_BODY) return n;
    if (!t->begun && body_begin(t->client, t, data, n)) return 0;
    t->begun = true;
    if (n > t->len - t->got) {
        (void)err_set(&t->err, ST_FORMAT, "%s: the hub sends more than its list has", g->file->path);
        return 0;
    }
    t->got += n;
    if (!g->whole) t->tries = 0; /* what has come is kept */
    if (buf_add(&t->wait, data, n)) return err_nomem(&t->err, g->file->path), 0;
    return t->begin + t->got - t->wait.len == g->have && flush(t->client, g, &t->err) ? 0 : n;
}

/* ---- transfers ---- */

static bool start(struct client *c, struct transfer *t)
{
    const struct hub_get *g = t->get;
    char range[64];
    CURL *e = t->easy;
    bool https = strncmp(c->h->endpoint, "https://", 8) == 0;
    unsigned bad = 0;
    t->state = T_RUNS;
    t->begun = false;
    t->direct = g->direct != NULL;
    if (g->body) buf_fini(g->body);
    t->retry_after = 0;
    t->said[0] = t->kind[0] = t->etag[0] = t->linked_etag[0] = '\0';
    t->linked_size = 0;
    curl_easy_reset(e);
    bad |= curl_easy_setopt(e, CURLOPT_URL, g->direct ? g->direct : g->url);
    bad |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, g->direct ? NULL : c->with_token);
    bad |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
    bad |= curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_MAXREDIRS, REDIRECTS);
    /* a connection per range */
    bad |= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= curl_easy_setopt(e, CURLOPT_USERAGENT, "kvasir/" KVASIR_VERSION);
    if (ca_file()) bad |= curl_easy_setopt(e, CURLOPT_CAINFO, ca_file());
    bad |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    bad |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)c->h->timeout_s);
    bad |= curl_easy_setopt(e, CURLOPT_NOBODY, g->what == HUB_SIZE_AND_HASH ? 1L : 0L);
    if (g->what == HUB_BLOB && !g->whole) {
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)(t->begin + t->got),
                 (unsigned long long)(t->begin + t->len - 1));
        bad |= curl_easy_setopt(e, CURLOPT_RANGE, range);
    }
    bad |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, head_line);
    bad |= curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, body_part);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    bad |= curl_easy_setopt(e, CURLOPT_PRIVATE, t);
    return !bad && !curl_multi_add_handle(c->multi, e);
}

static void fail(struct client *c, enum status st, const struct err *err)
{
    if (!c->st) c->st = st, *c->err = *err;
}

static void transfer_free(struct transfer *t)
{
    buf_fini(&t->wait);
    t->state = T_IDLE;
    t->get = NULL;
}

/* What the hub says of a repository that it does not give. */
static enum status refused(const struct client *c, const struct transfer *t, struct err *err)
{
    const char *e = c->h->endpoint, *repo = c->repo;
    bool token = c->h->token != NULL;
    if (strcasecmp(t->kind, "GatedRepo") == 0)
        return err_set(err, ST_INVALID, "%s is gated: ask for access on %s/%s, then %s", repo, e, repo,
                       token ? "try again (HF_TOKEN is set, but has no access yet)"
                             : "set HF_TOKEN to a token of your account");
    if (t->code == 401 && token)
        return err_set(err, ST_INVALID,
                       "the hub does not accept the token for %s (HF_TOKEN, or the file that "
                       "`hf auth login` writes): HTTP 401 %s",
                       repo, t->said);
    if (strcasecmp(t->kind, "RevisionNotFound") == 0)
        return err_set(err, ST_NOT_FOUND, "%s has no such revision: its branches and tags are on %s/%s", repo,
                       e, repo);
    if (t->code == 401 || t->code == 404)
        return err_set(err, ST_NOT_FOUND, "%s is not on %s%s", repo, e,
                       token ? "" : ", or is private: then set HF_TOKEN");
    return err_set(err, ST_IO, "%s: the hub answers HTTP %ld %s", repo, t->code, t->said);
}

static bool temporary(CURLcode rc, long code)
{
    return rc ? rc != CURLE_WRITE_ERROR && rc != CURLE_TOO_MANY_REDIRECTS &&
                    rc != CURLE_UNSUPPORTED_PROTOCOL && rc != CURLE_PEER_FAILED_VERIFICATION
              : code == 408 || code == 429 || code >= 500;
}

/* Another try, or the end of all. */
static void again(struct client *c, struct transfer *t, CURLcode rc)
{
    struct err err = {0};
    const char *what = t->get->file ? t->get->file->path : c->repo;
    bool alone =
        t->get->what == HUB_BODY && (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST);
    if (!rc && t->direct && t->code >= 400 && t->code < 500) { /* a signed URL expires */
        free(t->get->direct);
        t->get->direct = NULL;
    } else if (!temporary(rc, t->code)) {
        if (rc) fail(c, ST_IO, (err_set(&err, ST_IO, "%s: %s", what, curl_easy_strerror(rc)), &err));
        else fail(c, refused(c, t, &err), &err);
        return;
    }
    if (++t->tries < TRIES && !alone && t->retry_after <= WAIT_MAX_S) {
        uint64_t wait_us = t->retry_after ? t->retry_after * 1000000ull : 100000ull << t->tries;
        t->retry_us = now_us() + wait_us;
        t->state = T_RETRIES;
        return;
    }
    if (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST)
        (void)err_set(&err, ST_AGAIN, "%s can't be reached: %s", c->h->endpoint, curl_easy_strerror(rc));
    else if (rc)
        (void)err_set(&err, ST_AGAIN, "%s: %s, %u times; what has come is kept, and resumed next time", what,
                      curl_easy_strerror(rc), TRIES);
    else if (t->retry_after > WAIT_MAX_S)
        (void)err_set(&err, ST_AGAIN, "%s: the hub answers HTTP %ld and asks to wait %u s: try again then%s",
                      what, t->code, t->retry_after,
                      c->h->token ? "" : ", or set HF_TOKEN for a higher limit");
    else (void)err_set(&err, ST_AGAIN, "%s: the hub answers HTTP %ld %s", what, t->code, t->said);
    fail(c, ST_AGAIN, &err);
}

static void size_and_hash(struct client *c, struct transfer *t)
{
    struct hub_file *f = t->get->file;
    struct err err;
    curl_off_t len = -1;
    const char *etag = t->linked_etag[0] ? t->linked_etag : t->etag;
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &len);
    f->size = t->linked_size ? t->linked_size : (uint64_t)len;
    if ((t->linked_size || len >= 0) && (hub_is_hash(etag, HUB_COMMIT_LEN) || hub_is_hash(etag, 64)))
        strcpy(f->hash, etag);
    else
        fail(c, ST_FORMAT,
             (err_set(&err, ST_FORMAT, "%s: the hub gives no size and hash of it (ETag)", f->path), &err));
    t->get->done = true;
}

static void finished(struct client *c, struct transfer *t, CURLcode rc)
{
    struct hub_get *g = t->get;
    struct err err;
    char *at = NULL;
    size_t own = strlen(c->h->endpoint);
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->code);
    curl_easy_getinfo(t->easy, CURLINFO_EFFECTIVE_URL, &at);
    bool elsewhere = at && !(strncmp(at, c->h->endpoint, own) == 0 && at[own] == '/');
    bool all = g->what == HUB_BLOB && t->got == t->len;
    bool good = (!rc || all) && (t->code == 200 || t->code == 206);
    char *direct = elsewhere && !g->direct ? strdup(at) : NULL; /* NULL: the next is led there again */
    t->direct |= elsewhere;
    curl_multi_remove_handle(c->multi, t->easy);
    if (g->what == HUB_BLOB && good && direct) g->direct = direct;
    else free(direct);
    if (t->cancel || c->st) {
        transfer_free(t);
        return;
    }
    if (t->err.msg[0]) {
        fail(c, ST_FORMAT, &t->err);
    } else if (g->what == HUB_SIZE_AND_HASH && (good || t->linked_etag[0])) {
        size_and_hash(c, t);
    } else if (!good || (g->what == HUB_BLOB && !all)) {
        again(c, t, good ? CURLE_PARTIAL_FILE : rc);
        return;
    } else if (g->what == HUB_BODY) {
        g->done = true;
    } else {
        enum status st = flush(c, g, &err);
        if (!st && !g->done && g->have == g->file->size) st = get_end(g, &err);
        if (st) fail(c, st, &err);
        t->state = T_ENDED;
        if (t->wait.len) return;
    }
    transfer_free(t);
}

/* The next range to ask for. */
static bool next_range(struct client *c, struct transfer *t)
{
    struct err err;
    for (size_t i = 0; i < c->count && !c->st; i++) {
        struct hub_get *g = &c->gets[i];
        if (g->done) continue;
        if (g->what == HUB_BLOB && !g->open) {
            enum status st = get_open(g, &err);
            c->resumed += g->done ? g->file->size : g->resumed;
            if (!st && !g->done && g->have == g->file->size) st = get_end(g, &err);
            if (st) fail(c, st, &err);
            if (st || g->done) {
                get_close(g);
                continue;
            }
        }
        uint64_t size = g->what == HUB_BLOB ? g->file->size : 1, left = size - g->next;
        if (!left || (g->what == HUB_BLOB && g->next - g->have >= AHEAD)) continue;
        uint64_t len = g->whole || left < RANGE ? left : RANGE;
        *t = (struct transfer){.client = c, .easy = t->easy, .get = g, .begin = g->next, .len = len};
        buf_init(&t->wait, SIZE_MAX / 2);
        g->next += t->len;
        return true;
    }
    return false;
}

static void work(struct client *c)
{
    struct err err;
    uint64_t now = now_us();
    for (size_t i = 0; i < TRANSFERS && !c->st; i++) {
        struct transfer *t = &c->transfers[i];
        if (t->state > T_RUNS && (t->cancel || (t->state == T_ENDED && !t->wait.len))) transfer_free(t);
        bool due = t->state == T_RETRIES ? t->retry_us <= now : t->state == T_IDLE && next_range(c, t);
        if (due && !c->st && !start(c, t)) fail(c, ST_NOMEM, (err_nomem(&err, "a transfer"), &err));
    }
}

/* A hub that drips, however it does that. Time that was spent here, or that the hub asked for, is free. */
static void floor_check(struct client *c)
{
    struct err err;
    uint64_t now = now_us(), window = FLOOR_S * c->h->timeout_s;
    bool waits = !c->last_us;
    for (size_t i = 0; i < TRANSFERS; i++)
        waits |= c->transfers[i].state == T_RETRIES && c->transfers[i].retry_after;
    if (now - c->last_us > 1000000) c->then_us += now - c->last_us;
    c->last_us = now;
    if (!waits && now < c->then_us + window * 1000000) return;
    if (!waits && c->came - c->came_then < FLOOR * window) {
        (void)err_set(&err, ST_AGAIN,
                      "%s: less than %u bytes a second came, for %llu s; what has come is kept, "
                      "and resumed next time",
                      c->repo, FLOOR, (unsigned long long)window);
        fail(c, ST_AGAIN, &err);
    }
    c->then_us = now;
    c->came_then = c->came;
}

static void show(struct client *c)
{
    uint64_t done = c->resumed;
    if (!c->total) return;
    for (size_t i = 0; i < c->count; i++) {
        const struct hub_get *g = &c->gets[i];
        if (g->what == HUB_BLOB && (g->open || g->have)) done += g->have - g->resumed;
    }
    progress_show(&c->progress, done, c->total, c->resumed);
}

static bool all_done(const struct client *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (!c->gets[i].done) return false;
    return true;
}

static struct curl_slist *token_header(const char *token)
{
    char *line = NULL;
    if (!token || asprintf(&line, "Authorization: Bearer %s", token) < 0) return NULL;
    struct curl_slist *list = curl_slist_append(NULL, line);
    free(line);
    return list;
}

enum status hub_http(const struct hub *h, struct hub_get *gets, size_t count, const char *repo,
                     struct err *err)
{
    struct client c = {.h = h,
                       .repo = repo,
                       .gets = gets,
                       .count = count,
                       .err = err,
                       .multi = curl_multi_init(),
                       .with_token = token_header(h->token),
                       .progress = {.what = "downloading"}};
    bool ok = c.multi && !h->token == !c.with_token;
    for (size_t i = 0; i < count; i++) c.total += gets[i].what == HUB_BLOB ? gets[i].file->size : 0;
    for (size_t i = 0; i < TRANSFERS && ok; i++) ok = (c.transfers[i].easy = curl_easy_init()) != NULL;
    if (!ok) c.st = err_nomem(err, "transfers");
    while (!c.st && (work(&c), !c.st) && !all_done(&c)) {
        int running, left;
        curl_multi_perform(c.multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(c.multi, &left));) {
            struct transfer *t = NULL;
            if (m->msg != CURLMSG_DONE) continue;
            CURLcode rc = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)(void *)&t);
            finished(&c, t, rc);
        }
        show(&c);
        if (!c.st && !all_done(&c)) floor_check(&c);
        if (!c.st && !all_done(&c)) curl_multi_poll(c.multi, NULL, 0, 50, NULL);
    }
    (void)log_status(NULL);
    for (size_t i = 0; i < TRANSFERS; i++) {
        if (c.transfers[i].easy) {
            curl_multi_remove_handle(c.multi, c.transfers[i].easy);
            curl_easy_cleanup(c.transfers[i].easy);
        }
        transfer_free(&c.transfers[i]);
    }
    for (size_t i = 0; i < count; i++) get_close(&gets[i]);
    curl_slist_free_all(c.with_token);
    curl_multi_cleanup(c.multi);
    return c.st;
}

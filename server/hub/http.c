/* Transfers from the hub: several files at a time, each one stream. See internal.h.
 *
 * A file is `have` bytes in blobs/HASH.incomplete, appended as they come; so what is on disk is always the
 * file's beginning, whoever resumes it. libcurl follows redirects and drops the token where they leave the
 * endpoint's host; a resumed file begins at the endpoint again, as signed URLs expire. */
#include "config/base/assert.h"
#include "config/base/clock.h"
#include "config/base/file.h"
#include "config/base/log.h"
#include "config/base/progress.h"
#include "server/fetch/easy.h"
#include "server/hub/internal.h"

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

#define TRANSFERS    8u
#define FLOOR        1024u   /* bytes a second: a transfer below it for the timeout is broken off */
#define TRIES        5u      /* one after another, below the floor */
#define WAIT_MAX_S   60u     /* of a Retry-After */
#define LOCK_POLL_US 200000u /* of a file that another process downloads */
#define CONNECT_MS   10000L
#define REDIRECTS    5L

struct transfer {
    struct client *client;
    const struct hub_get *get;
    CURL *easy;      /* it runs */
    uint64_t due_us; /* when it may begin */
    uint64_t came;   /* bytes in this try */
    unsigned tries;
    bool done, whole; /* whole: the hub sends it from its beginning only */
    char why[CURL_ERROR_SIZE];
    /* HUB_BLOB */
    bool open;
    int fd, lock_fd;
    uint64_t have, resumed;  /* bytes; from an earlier download */
    gnutls_hash_hd_t digest; /* of these bytes */
};

struct client {
    const struct hub *h;
    const char *repo;
    CURLM *multi;
    struct transfer *transfers;
    size_t count;
    struct progress progress;
    uint64_t total; /* bytes */
    enum status st;
    struct err *err;
};

/* ---- a file on disk ---- */

/* What the file behind fd has, as SHA-256; or what Git calls a file of that size: SHA-1 of "blob SIZE", NUL
 * and the bytes. */
static gnutls_hash_hd_t digest_begin(int fd, const char *hash, uint64_t size, uint64_t *len)
{
    static char bytes[1 << 16];
    bool git = strlen(hash) == HUB_COMMIT_LEN;
    gnutls_hash_hd_t digest = NULL;
    int n = snprintf(bytes, sizeof bytes, "blob %llu", (unsigned long long)size);
    ssize_t got = 0;
    bool ok = !gnutls_hash_init(&digest, git ? GNUTLS_DIG_SHA1 : GNUTLS_DIG_SHA256) &&
              !(git && gnutls_hash(digest, bytes, (size_t)n + 1));
    for (*len = 0; ok && (got = pread(fd, bytes, sizeof bytes, (off_t)*len)) > 0; *len += (uint64_t)got)
        ok = !gnutls_hash(digest, bytes, (size_t)got);
    if (ok && !got) return digest;
    if (digest) gnutls_hash_deinit(digest, NULL);
    return NULL;
}

/* hex: what it is */
static bool digest_end(gnutls_hash_hd_t *digest, const char *hash, char hex[2 * 64 + 1])
{
    uint8_t sum[64];
    gnutls_hash_deinit(*digest, sum);
    *digest = NULL;
    for (size_t i = 0; i < strlen(hash) / 2; i++) sprintf(hex + 2 * i, "%02x", sum[i]);
    return strcmp(hex, hash) == 0;
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
    char hex[2 * 64 + 1];
    int fd;
    uint64_t size, len;
    if (file_open(g->blob, &fd, &size, NULL)) return false;
    bool good = known(fd, lock_fd);
    if (!good && size >> 30) log_info("%s is checked, once", g->file->path);
    gnutls_hash_hd_t digest = good ? NULL : digest_begin(fd, g->file->hash, size, &len);
    if (digest) {
        good = digest_end(&digest, g->file->hash, hex);
        if (good) remember(lock_fd);
        else log_warn("%s of the cache is damaged: its hash is %.16s...", g->file->path, hex);
    }
    close(fd);
    return good;
}

static void blob_close(struct transfer *t)
{
    if (t->digest) gnutls_hash_deinit(t->digest, NULL);
    if (t->fd >= 0) close(t->fd);
    if (t->lock_fd >= 0) close(t->lock_fd);
    t->digest = NULL;
    t->fd = t->lock_fd = -1;
}

/* From what the partial file has, or from nothing. */
static enum status blob_begin(struct transfer *t, bool nothing, struct err *err)
{
    const struct hub_get *g = t->get;
    if (t->digest) gnutls_hash_deinit(t->digest, NULL);
    t->digest =
        nothing && ftruncate(t->fd, 0) ? NULL : digest_begin(t->fd, g->file->hash, g->file->size, &t->have);
    t->resumed = t->have;
    return t->digest ? ST_OK : err_set(err, ST_IO, "can't begin %s again", g->part);
}

/* All bytes are there: they are the file if they have its hash. */
static enum status blob_end(struct transfer *t, struct err *err)
{
    const struct hub_get *g = t->get;
    char hex[2 * 64 + 1];
    enum status st = ST_OK;
    ASSERT_CMP(t->have, ==, g->file->size);
    if (!digest_end(&t->digest, g->file->hash, hex)) {
        if (t->resumed) { /* the beginning may have been another process's, or damaged */
            log_warn("%s: its bytes do not have its hash: from its beginning again", g->file->path);
            return blob_begin(t, true, err);
        }
        (void)unlink(g->part);
        st = err_set(err, ST_FORMAT, "%s is damaged: its hash is %.16s..., not %.16s...; try again",
                     g->file->path, hex, g->file->hash);
    }
    if (!st && (fdatasync(t->fd) || rename(g->part, g->blob)))
        st = err_set(err, ST_IO, "can't write %s: %s", g->blob, strerror(errno));
    if (!st) remember(t->lock_fd);
    t->done = !st;
    blob_close(t);
    return st;
}

/* Opens blobs/HASH.incomplete under the lock, if that is free, and reads what an earlier download left. */
static enum status blob_open(struct transfer *t, struct err *err)
{
    const struct hub_get *g = t->get;
    enum status st = hub_mkdirs(g->lock, err);
    if (!st && (t->lock_fd = open(g->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664)) >= 0 &&
        flock(t->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        if (!t->due_us) log_info("waiting: another process downloads %s", g->file->path);
        t->due_us = now_us() + LOCK_POLL_US;
        blob_close(t);
        return ST_OK;
    }
    t->open = true;
    if (!st && (t->done = hub_blob_good(g, t->lock_fd))) { /* perhaps by the other process */
        t->have = t->resumed = g->file->size;
        blob_close(t);
        return ST_OK;
    }
    if (!st && remove(g->blob) && errno != ENOENT)
        st = err_set(err, ST_IO, "%s is in the way, and can't be removed: %s", g->blob, strerror(errno));
    if (!st && (t->fd = open(g->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) < 0)
        st = err_set(err, ST_IO, "can't write %s: %s", g->part, strerror(errno));
    if (!st) st = blob_begin(t, false, err);
    if (!st && t->have > g->file->size) st = blob_begin(t, true, err);
    return !st && t->have == g->file->size ? blob_end(t, err) : st;
}

static enum status append(struct transfer *t, const char *data, size_t len, struct err *err)
{
    ASSERT(t->fd >= 0 && t->lock_fd >= 0 && t->digest); /* nobody else writes, and the hash is of all bytes */
    while (len) {
        ssize_t n = pwrite(t->fd, data, len, (off_t)t->have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || gnutls_hash(t->digest, data, (size_t)n))
            return err_set(err, ST_IO, "can't write %s: %s; what is there is kept, and resumed next time",
                           t->get->blob, strerror(errno));
        t->have += (size_t)n;
        data += n;
        len -= (size_t)n;
    }
    return ST_OK;
}

/* ---- responses ---- */

/* A header of the last response, or, of a chain of redirects, of the last that has it. */
static const char *header(const struct transfer *t, const char *name, bool chain)
{
    struct curl_header *h = NULL;
    long at = 0;
    CURLHcode bad;
    curl_easy_getinfo(t->easy, CURLINFO_REDIRECT_COUNT, &at);
    do bad = curl_easy_header(t->easy, name, 0, CURLH_HEADER, (int)at, &h);
    while (bad && chain && at--);
    return bad ? "" : h->value;
}

static long code_of(const struct transfer *t)
{
    long code = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* Else its text is an error's. */
static bool has_body(const struct transfer *t)
{
    return code_of(t) == 200 || code_of(t) == 206;
}

static enum status body_take(struct transfer *t, const char *data, size_t len, struct err *err)
{
    static const char pointer[] = "version https://git-lfs";
    const struct hub_file *f = t->get->file;
    curl_off_t all = -1;
    if (t->get->what == HUB_BODY && buf_add(t->get->body, data, len))
        return err_set(err, ST_TOO_LARGE, "%s: the hub's list of files is too large", t->client->repo);
    if (t->get->what == HUB_BODY) return ST_OK;
    if (len >= sizeof pointer - 1 && !t->have && strlen(f->hash) != HUB_COMMIT_LEN &&
        memcmp(data, pointer, sizeof pointer - 1) == 0)
        return err_set(err, ST_FORMAT, "the hub sends a Git LFS pointer for %s instead of the file", f->path);
    ASSERT_CMP(t->have, <=, f->size);
    uint64_t left = f->size - t->have;
    if (!t->came) curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &all);
    if (all >= 0 && (uint64_t)all != left)
        return err_set(err, ST_FORMAT, "%s: the hub sends %lld bytes where its list has %llu", f->path,
                       (long long)all, (unsigned long long)left);
    if (len > left) return err_set(err, ST_FORMAT, "%s: the hub sends more than its list has", f->path);
    return append(t, data, len, err);
}

static size_t body_part(char *data, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    struct client *c = t->client;
    size_t n = size * count;
    if (c->st || !has_body(t)) return c->st ? 0 : n;
    c->st = body_take(t, data, n, c->err);
    t->came += n;
    return c->st ? 0 : n;
}

/* ---- transfers ---- */

static enum status start(struct client *c, struct transfer *t)
{
    const struct hub_get *g = t->get;
    bool https = strncmp(c->h->endpoint, "https://", 8) == 0;
    ASSERT(!t->easy && !t->done && t->open);
    CURL *e = t->easy = curl_easy_init();
    if (t->whole && t->have && blob_begin(t, true, c->err)) return ST_IO;
    if (g->body) buf_fini(g->body);
    t->came = 0;
    t->why[0] = '\0';
    unsigned bad = !e || !easy_begin(e, CONNECT_MS, body_part, t);
    bad |= curl_easy_setopt(e, CURLOPT_URL, g->url);
    if (c->h->token) bad |= curl_easy_setopt(e, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
    bad |= curl_easy_setopt(e, CURLOPT_XOAUTH2_BEARER, c->h->token);
    bad |= curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
    bad |= curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_MAXREDIRS, REDIRECTS);
    bad |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, (long)FLOOR);
    bad |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)c->h->timeout_s);
    bad |= curl_easy_setopt(e, CURLOPT_NOBODY, g->what == HUB_SIZE_AND_HASH ? 1L : 0L);
    bad |= curl_easy_setopt(e, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)t->have);
    bad |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->why);
    return bad || curl_multi_add_handle(c->multi, e) ? err_nomem(c->err, "a transfer") : ST_OK;
}

/* What the hub says of a repository that it does not give. */
static enum status refused(const struct client *c, const struct transfer *t, struct err *err)
{
    const char *e = c->h->endpoint, *repo = c->repo, *kind = header(t, "X-Error-Code", false);
    const char *text = header(t, "X-Error-Message", false);
    bool token = c->h->token != NULL;
    long code = code_of(t);
    if (strcasecmp(kind, "GatedRepo") == 0)
        return err_set(err, ST_INVALID, "%s is gated: ask for access on %s/%s, then %s", repo, e, repo,
                       token ? "try again (HF_TOKEN is set, but has no access yet)"
                             : "set HF_TOKEN to a token of your account");
    if (code == 401 && token)
        return err_set(err, ST_INVALID,
                       "the hub does not accept the token for %s (HF_TOKEN, or the file that "
                       "`hf auth login` writes): HTTP 401 %.160s",
                       repo, text);
    if (strcasecmp(kind, "RevisionNotFound") == 0)
        return err_set(err, ST_NOT_FOUND, "%s has no such revision: its branches and tags are on %s/%s", repo,
                       e, repo);
    if (code == 401 || code == 404)
        return err_set(err, ST_NOT_FOUND, "%s is not on %s%s", repo, e,
                       token ? "" : ", or is private: then set HF_TOKEN");
    return err_set(err, ST_IO, "%s: the hub answers HTTP %ld %.160s", repo, code, text);
}

/* Another try, or the end of all. */
static enum status again(const struct client *c, struct transfer *t, CURLcode rc, struct err *err)
{
    bool list = t->get->what == HUB_BODY,
         gone = rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST;
    const char *what = t->get->file ? t->get->file->path : c->repo, *limit;
    const char *why = t->why[0] ? t->why : curl_easy_strerror(rc);
    uint64_t now = now_us(), took_s = (now - t->due_us) / 1000000 + c->h->timeout_s;
    curl_off_t after_s = 0;
    long code = code_of(t), redirects = 0;
    t->whole |= rc == CURLE_RANGE_ERROR;
    if (rc == CURLE_RANGE_ERROR) return ST_OK;
    curl_easy_getinfo(t->easy, CURLINFO_REDIRECT_COUNT, &redirects);
    bool expired = redirects && !*header(t, "X-Error-Code", false); /* a signed URL, not the hub's refusal */
    bool passes = rc ? rc != CURLE_WRITE_ERROR && rc != CURLE_TOO_MANY_REDIRECTS &&
                           rc != CURLE_UNSUPPORTED_PROTOCOL && rc != CURLE_PEER_FAILED_VERIFICATION
                     : code == 408 || code == 429 || code >= 500 || expired;
    if (!passes) return rc ? err_set(err, ST_IO, "%s: %s", what, why) : refused(c, t, err);
    curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &after_s);
    if (code == 429 && (limit = strstr(header(t, "RateLimit", false), ";t=")))
        after_s = (curl_off_t)strtoul(limit + 3, NULL, 10);
    if (!list && !t->whole && t->came >= FLOOR * took_s) t->tries = 0; /* what has come is kept */
    if (++t->tries < TRIES && !(list && gone) && after_s <= WAIT_MAX_S) {
        t->due_us = now + (after_s ? (uint64_t)after_s * 1000000 : 100000ull << t->tries);
        return ST_OK;
    }
    if (gone) return err_set(err, ST_AGAIN, "%s can't be reached: %s", c->h->endpoint, why);
    if (rc)
        return err_set(err, ST_AGAIN, "%s: %s, %u times; what has come is kept, and resumed next time", what,
                       why, TRIES);
    if (after_s > WAIT_MAX_S)
        return err_set(err, ST_AGAIN,
                       "%s: the hub answers HTTP %ld and asks to wait %lld s: try again then%s", what, code,
                       (long long)after_s, c->h->token ? "" : ", or set HF_TOKEN for a higher limit");
    return err_set(err, ST_AGAIN, "%s: the hub answers HTTP %ld %.160s", what, code,
                   header(t, "X-Error-Message", false));
}

/* X-Linked-*: of a file in LFS, from before the redirect. */
static enum status size_and_hash(const struct transfer *t, struct err *err)
{
    struct hub_file *f = t->get->file;
    curl_off_t len = -1;
    const char *size = header(t, "X-Linked-Size", true), *etag = header(t, "X-Linked-ETag", true);
    char hash[80];
    if (!*etag) etag = header(t, "ETag", false);
    snprintf(hash, sizeof hash, "%s", etag + strspn(etag, "W/\""));
    hash[strcspn(hash, "\"")] = '\0';
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &len);
    if ((!*size && len < 0) || !(hub_is_hash(hash, HUB_COMMIT_LEN) || hub_is_hash(hash, 64)))
        return err_set(err, ST_FORMAT, "%s: the hub gives no size and hash of it (ETag)", f->path);
    f->size = *size ? strtoull(size, NULL, 10) : (uint64_t)len;
    strcpy(f->hash, hash);
    return ST_OK;
}

static enum status finished(struct client *c, struct transfer *t, CURLcode rc)
{
    const struct hub_get *g = t->get;
    bool head = g->what == HUB_SIZE_AND_HASH, good = !rc && has_body(t);
    if (code_of(t) >= 400) rc = CURLE_OK; /* libcurl misses the range in an error's text too */
    if (g->what == HUB_BLOB && t->have == g->file->size) return blob_end(t, c->err);
    t->done = g->what != HUB_BLOB && (good || (head && *header(t, "X-Linked-Size", true)));
    if (!t->done) return again(c, t, good ? CURLE_PARTIAL_FILE : rc, c->err);
    return head ? size_and_hash(t, c->err) : ST_OK;
}

static void transfer_stop(struct transfer *t)
{
    if (t->easy) curl_multi_remove_handle(t->client->multi, t->easy);
    curl_easy_cleanup(t->easy);
    t->easy = NULL;
}

/* The first that are not done run, or wait for their next try; what another process downloads is in nobody's
 * way. False: nothing is left, or an error. */
static bool work(struct client *c)
{
    size_t slots = TRANSFERS;
    bool left = false;
    for (struct transfer *t = c->transfers; t < c->transfers + c->count && slots && !c->st; t++) {
        bool due = !t->done && !t->easy && t->due_us <= now_us();
        if (due && !t->open) c->st = blob_open(t, c->err);
        left |= !t->done;
        if (t->done || !t->open) continue;
        slots--;
        if (due && !c->st) c->st = start(c, t);
    }
    return left && !c->st;
}

enum status hub_http(const struct hub *h, const struct hub_get *gets, size_t count, const char *repo,
                     struct err *err)
{
    struct client c = {.h = h,
                       .repo = repo,
                       .count = count,
                       .err = err,
                       .multi = curl_multi_init(),
                       .transfers = calloc(count, sizeof *c.transfers),
                       .progress = {.what = "downloading"}};
    bool ok = c.multi && c.transfers;
    if (!ok) c.st = err_nomem(err, "transfers");
    for (size_t i = 0; ok && i < count; i++) {
        bool blob = gets[i].what == HUB_BLOB;
        ASSERT((gets[i].what == HUB_BODY) == (gets[i].body != NULL));
        ASSERT(gets[i].what == HUB_BODY || gets[i].file);
        ASSERT(!blob || (gets[i].blob && gets[i].part && gets[i].lock && gets[i].file->hash[0]));
        c.transfers[i] =
            (struct transfer){.client = &c, .get = &gets[i], .open = !blob, .fd = -1, .lock_fd = -1};
        if (blob) c.total += gets[i].file->size;
    }
    while (!c.st && work(&c)) {
        int running, left;
        bool idle = true;
        uint64_t have = 0, resumed = 0;
        curl_multi_perform(c.multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(c.multi, &left)); idle = false) {
            struct transfer *t = NULL;
            CURLcode rc = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)(void *)&t);
            if (!c.st) c.st = finished(&c, t, rc);
            transfer_stop(t);
        }
        for (size_t i = 0; i < count; i++) have += c.transfers[i].have, resumed += c.transfers[i].resumed;
        if (c.total) progress_show(&c.progress, have, c.total, resumed);
        if (idle) curl_multi_poll(c.multi, NULL, 0, 50, NULL);
    }
    (void)log_status(NULL);
    for (size_t i = 0; ok && i < count; i++) {
        transfer_stop(&c.transfers[i]);
        blob_close(&c.transfers[i]);
    }
    free(c.transfers);
    curl_multi_cleanup(c.multi);
    return c.st;
}

/* See request_log.h. */
#include "server/replay/request_log.h"

#include "config/base/log.h"
#include "server/json/fields.h"
#include "server/json/value.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUEUE_BYTES = 64 << 20, HEX = 64, BARE_LEAST = 128 };

/* Something to write: a line, or a file. */
struct item {
    struct item *next;
    struct log_record *line;
    char hex[HEX + 1];
    size_t len;
    void *bytes;
};

struct request_log {
    char path[PATH_MAX];
    uint64_t bytes_max;
    pthread_t thread;
    atomic_ullong lost;
    /* of the thread */
    int fd;     /* -1: it could not be opened again */
    bool plain; /* no regular file: it gets lines alone */
    ino_t inode;
    int image_errno; /* why the last image could not be written */
    uint64_t bytes;  /* of lines and images */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct item *first, **last;
    size_t queued;
    bool ending;
};

static void lose(struct request_log *l, const char *why)
{
    if (!atomic_fetch_add(&l->lost, 1)) log_warn("--request-log %.200s: %s: lines are lost", l->path, why);
}

/* ---- the thread: files ---- */

enum { NAME_BYTES = PATH_MAX + 96 };
static const char *name(char to[NAME_BYTES], const struct request_log *l, const char *folder, const char *hex,
                        const char *end)
{
    snprintf(to, NAME_BYTES, "%s%s%.64s%s", l->path, folder, hex, end);
    return to;
}

/* Bytes of the files in a folder, which are removed with it if `remove`. */
static uint64_t folder_bytes(const char *path, bool remove)
{
    uint64_t bytes = 0;
    struct dirent *e;
    struct stat st;
    DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        if (*e->d_name == '.') continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) bytes += (uint64_t)st.st_size;
        if (remove) (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d) closedir(d);
    if (remove) (void)rmdir(path);
    return bytes;
}

/* Where a killed server left a line unfinished, it is cut off. */
static bool tail_cut(int fd, off_t size)
{
    off_t end = size;
    for (char c = 0; end && pread(fd, &c, 1, end - 1) == 1 && c != '\n';) end--;
    return end == size || ftruncate(fd, end) == 0;
}

/* False: errno says why. */
static bool file_open_log(struct request_log *l)
{
    char images[NAME_BYTES];
    struct stat st = {0};
    l->fd = open(l->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    bool ok = l->fd >= 0 && fstat(l->fd, &st) == 0;
    l->plain = ok && !S_ISREG(st.st_mode);
    l->inode = st.st_ino;
    name(images, l, ".images", "", "");
    if (!ok || l->plain) return ok;
    l->bytes = (uint64_t)st.st_size + folder_bytes(images, false);
    return flock(l->fd, LOCK_EX | LOCK_NB) == 0 && tail_cut(l->fd, st.st_size) &&
           (mkdir(images, 0700) == 0 || errno == EEXIST);
}

/* Begins another FILE if it is full, or no longer there. */
static bool file_ready(struct request_log *l, size_t more)
{
    char from[NAME_BYTES], to[NAME_BYTES];
    struct stat st;
    bool full = l->bytes && l->bytes + more > l->bytes_max;
    if (l->plain || (l->fd >= 0 && !full && stat(l->path, &st) == 0 && st.st_ino == l->inode)) return true;
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    if (full) {
        (void)folder_bytes(name(to, l, ".1.images", "", ""), true);
        if (rename(name(from, l, ".images", "", ""), to) && errno != ENOENT) return false;
        if (rename(l->path, name(to, l, ".1", "", "")) && errno != ENOENT) return false;
    }
    if (file_open_log(l)) return true;
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    return false;
}

/* All of it, or of a file nothing. */
static bool all_written(int fd, const char *at, size_t len)
{
    off_t end = lseek(fd, 0, SEEK_END);
    for (ssize_t n; len; at += n, len -= (size_t)n) {
        n = write(fd, at, len);
        if (n < 0 && errno == EINTR) n = 0;
        if (n >= 0) continue;
        int why = errno;
        if (end >= 0) (void)!ftruncate(fd, end);
        errno = why;
        return false;
    }
    return true;
}

static bool image_write(struct request_log *l, const struct item *w)
{
    char to[NAME_BYTES], part[NAME_BYTES];
    if (access(name(to, l, ".images/", w->hex, ""), F_OK) == 0) return true;
    int fd = open(name(part, l, ".images/", w->hex, ".part"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && all_written(fd, w->bytes, w->len);
    if (fd >= 0 && close(fd)) ok = false;
    ok = ok && rename(part, to) == 0;
    l->image_errno = ok ? 0 : errno;
    if (!ok) (void)unlink(part);
    else l->bytes += w->len;
    return ok;
}

/* With its images: those of lines that are now in FILE.1 may have to be linked. */
static bool line_write(struct request_log *l, const struct log_record *r)
{
    char to[NAME_BYTES], from[NAME_BYTES];
    struct stat st = {0};
    bool ok = file_ready(l, r->text.len);
    for (size_t i = 0; ok && !l->plain && i < r->files.len; i += HEX) {
        ok = access(name(to, l, ".images/", r->files.data + i, ""), F_OK) == 0 ||
             (link(name(from, l, ".1.images/", r->files.data + i, ""), to) == 0 && stat(to, &st) == 0);
        l->bytes += (uint64_t)st.st_size;
        st.st_size = 0;
        if (!ok && l->image_errno) errno = l->image_errno;
    }
    ok = ok && all_written(l->fd, r->text.data, r->text.len);
    if (ok) l->bytes += r->text.len;
    return ok;
}

static void item_free(struct item *w)
{
    log_record_free(w->line);
    free(w->bytes);
    free(w);
}

static void *run(void *arg)
{
    struct request_log *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->first && !l->ending) pthread_cond_wait(&l->wake, &l->lock);
        struct item *w = l->first;
        if (!w) break;
        l->first = w->next;
        if (!l->first) l->last = &l->first;
        pthread_mutex_unlock(&l->lock);
        size_t len = w->len;
        /* What lacks an image is lost with its line. */
        if (!w->line) (void)(l->plain || image_write(l, w));
        else if (!line_write(l, w->line)) lose(l, strerror(errno));
        item_free(w);
        pthread_mutex_lock(&l->lock);
        l->queued -= len;
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- any thread ---- */

enum status request_log_open(const char *path, uint64_t bytes_max, struct request_log **out, struct err *err)
{
    struct request_log *l = calloc(1, sizeof *l);
    if (!l) return err_nomem(err, NULL);
    *l = (struct request_log){.bytes_max = bytes_max, .last = &l->first};
    bool fits = (size_t)snprintf(l->path, sizeof l->path, "%s", path) < sizeof l->path - sizeof ".1.images";
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    if (!fits) errno = ENAMETOOLONG;
    int why = fits && file_open_log(l) ? pthread_create(&l->thread, NULL, run, l) : errno;
    *out = l;
    if (!why) return ST_OK;
    free(l); /* the process ends */
    return err_set(err, ST_IO, "--request-log %.200s: %s", path,
                   why == EWOULDBLOCK ? "another server writes it" : strerror(why));
}

void request_log_close(struct request_log *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->ending = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    if (l->fd >= 0) close(l->fd);
    free(l);
}

uint64_t request_log_lost(const struct request_log *l)
{
    return l ? atomic_load(&l->lost) : 0;
}

/* Takes line and bytes. False: no room. */
static bool queue(struct request_log *l, struct item new)
{
    struct item *w = malloc(sizeof *w);
    if (w) *w = new;
    pthread_mutex_lock(&l->lock);
    bool room = w && (!l->queued || l->queued + new.len <= QUEUE_BYTES);
    if (room) {
        *l->last = w;
        l->last = &w->next;
        l->queued += new.len;
        pthread_cond_signal(&l->wake);
    }
    pthread_mutex_unlock(&l->lock);
    if (room) return true;
    log_record_free(new.line);
    free(new.bytes);
    free(w);
    return false;
}

/* ---- a line ---- */

struct log_record *request_log_record(struct request_log *l)
{
    struct log_record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->log = l;
    r->o.buf = &r->text;
    buf_init(&r->text, SIZE_MAX / 4);
    buf_init(&r->files, SIZE_MAX / 4);
    return r;
}

void log_record_free(struct log_record *r)
{
    if (!r) return;
    buf_fini(&r->text);
    buf_fini(&r->files);
    free(r);
}

static void keep(struct log_record *r, void *bytes, size_t len, char hex[HEX + 1])
{
    struct item w = {.len = len, .bytes = bytes};
    uint8_t hash[32];
    crypto_hash_sha256(hash, bytes, len);
    sodium_bin2hex(w.hex, sizeof w.hex, hash, sizeof hash);
    memcpy(hex, w.hex, sizeof w.hex);
    if (buf_add(&r->files, hex, HEX)) r->o.st = ST_NOMEM;
    if (!queue(r->log, w)) r->lost = true;
}

static void keep_copy(struct log_record *r, const void *bytes, size_t len, char hex[HEX + 1])
{
    void *copy = malloc(len);
    if (copy) memcpy(copy, bytes, len);
    if (copy) keep(r, copy, len, hex);
    else r->o.st = ST_NOMEM;
}

void log_record_fetched(struct log_record *r, const char *url, size_t url_len, const void *bytes, size_t len)
{
    char hex[HEX + 1];
    keep_copy(r, bytes, len, hex);
    jw_text(&r->o, r->fetched ? "," : ",\"fetched\":{");
    jw_string(&r->o, url, url_len);
    jw_put(&r->o, ":%s", hex);
    r->fetched = true;
}

/* The bytes of a string in base64, as all encoders write it. NULL: it is something else. */
static void *from_base64(const char *s, size_t len, size_t *n)
{
    uint8_t *bytes = len % 4 ? NULL : malloc(len / 4 * 3);
    if (bytes &&
        sodium_base642bin(bytes, len / 4 * 3, s, len, NULL, n, NULL, sodium_base64_VARIANT_ORIGINAL) == 0)
        return bytes;
    free(bytes);
    return NULL;
}

static void string(struct log_record *r, const char *s, size_t len)
{
    static const char mark[] = ";base64,", own[] = "kvasir-";
    const char *data = len > 5 && memcmp(s, "data:", 5) == 0 ? memmem(s, len, mark, 8) : NULL;
    size_t at = data ? (size_t)(data - s) + 8 : 0, n;
    bool text = len - at > sizeof own && memcmp(s + at, own, sizeof own - 1) == 0;
    void *bytes = text || (!data && len < BARE_LEAST) ? NULL : from_base64(s + at, len - at, &n);
    char hex[HEX + 1] = "";
    if (text) keep_copy(r, s + at, len - at, hex);
    else if (bytes) keep(r, bytes, n, hex);
    if (!text && !bytes) {
        jw_string(&r->o, s, len);
        return;
    }
    jw_string(&r->o, s, at);
    if (!r->o.st) r->text.len--; /* its last quote */
    jw_text(&r->o, text ? REQUEST_LOG_TEXT : REQUEST_LOG_IMAGE);
    jw_text(&r->o, hex);
    jw_text(&r->o, "\"");
}

void log_record_value(struct log_record *r, const json_t *v)
{
    const char *key, *front = "{";
    json_t *member;
    size_t i;
    if (json_is_string(v)) {
        string(r, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        jw_text(&r->o, "[");
        json_array_foreach(v, i, member) {
            if (i) jw_text(&r->o, ",");
            log_record_value(r, member);
        }
        jw_text(&r->o, "]");
    } else if (json_is_object(v) && json_object_size(v) && !json_big_int(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, member) {
            jw_text(&r->o, front);
            jw_put(&r->o, "%s:", key);
            log_record_value(r, member);
            front = ",";
        }
        jw_text(&r->o, "}");
    } else {
        jw_value(&r->o, v);
    }
}

void log_record_write(struct log_record *r)
{
    struct request_log *l = r->log;
    jw_text(&r->o, "\n");
    bool whole = !r->o.st && !r->lost;
    if (!whole) log_record_free(r);
    if (!whole || !queue(l, (struct item){.line = r, .len = r->text.len}))
        lose(l, "its disk is slow, or memory is short");
}

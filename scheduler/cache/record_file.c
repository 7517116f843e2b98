/* See record_file.h. */
#include "scheduler/cache/record_file.h"

#include "config/base/log.h"
#include "scheduler/cache/hash_mix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITING         "writing"
#define RECORD_ID_FAR   (1ull << 48) /* no server comes so far: such a name alone doesn't count */
#define RECORD_FILE_MAX (sizeof(struct record_header) + RECORD_META_MAX + RECORD_PAYLOAD_MAX)
#define NS              1000000000u
static const char MAGIC[8] = "KVCACHE\1";
enum { SUM_CHUNK = 1 << 18, NAME_SIZE = 34 };
_Static_assert(sizeof(struct record_header) == 200, "no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little endian");

/* A changed word always changes the sum; other damage passes with 2^-64. */
static uint64_t sum_chunk(uint64_t h, const uint8_t *p, size_t n)
{
    uint64_t lane[4] = {h, h + 1, h + 2, h + 3}, w[4];
    for (; n; n -= n < sizeof w ? n : sizeof w, p += sizeof w) {
        if (n < sizeof w) memset(w, 0, sizeof w);
        memcpy(w, p, n < sizeof w ? n : sizeof w);
        for (size_t i = 0; i < 4; i++) lane[i] = hash_mix(lane[i] ^ w[i]);
    }
    for (size_t i = 0; i < 4; i++) h = hash_mix(h ^ lane[i]);
    return h;
}

static uint64_t sum(const void *data, uint64_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0;
    for (uint64_t at = 0; at < n; at += SUM_CHUNK)
        h = sum_chunk(h, p + at, n - at < SUM_CHUNK ? (size_t)(n - at) : SUM_CHUNK);
    return h;
}

static uint64_t header_sum(const struct record_header *h)
{
    return sum(h, offsetof(struct record_header, header_sum));
}

/* ---- the directory ---- */

static enum status dir_fail(struct err *err, const char *dir, const char *what)
{
    return err_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%.300s/kvasir-cache: %s: %s", dir, what,
                   strerror(errno));
}

enum status cache_dir_open(const char *dir, bool writer, struct cache_dir *out, struct err *err)
{
    *out = (struct cache_dir){.fd = -1, .lock = -1};
    if (writer && mkdir(dir, 0700) && errno != EEXIST) return dir_fail(err, dir, "can't be made");
    int top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top >= 0 && (!writer || !mkdirat(top, "kvasir-cache", 0700) || errno == EEXIST))
        out->fd = openat(top, "kvasir-cache", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = errno;
    if (top >= 0) close(top);
    errno = error;
    struct stat st;
    if (out->fd < 0 || fstat(out->fd, &st)) return dir_fail(err, dir, "can't be opened");
    if (!writer) return ST_OK;
    if (st.st_uid != geteuid()) {
        cache_dir_close(out);
        return err_set(err, ST_IO, "%.300s/kvasir-cache belongs to another user", dir);
    }
    out->lock = openat(out->fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fchmod(out->fd, 0700) || out->lock < 0 || flock(out->lock, LOCK_EX | LOCK_NB)) {
        enum status st_out = errno == EWOULDBLOCK
                                 ? err_set(err, ST_AGAIN, "%.300s: in use by another server", dir)
                                 : dir_fail(err, dir, "can't be locked");
        cache_dir_close(out);
        return st_out;
    }
    if (!unlinkat(out->fd, WRITING, 0) || errno == ENOENT || !unlinkat(out->fd, WRITING, AT_REMOVEDIR))
        return ST_OK;
    enum status st_out = dir_fail(err, dir, "\"" WRITING "\" is in the way, remove it");
    cache_dir_close(out);
    return st_out;
}

void cache_dir_close(struct cache_dir *d)
{
    if (d->lock >= 0) close(d->lock);
    if (d->fd >= 0) close(d->fd);
    *d = (struct cache_dir){.fd = -1, .lock = -1};
}

static void record_name(char name[NAME_SIZE], uint64_t id, uint64_t tag)
{
    snprintf(name, NAME_SIZE, "%016llx-%016llx", (unsigned long long)id, (unsigned long long)tag);
}

static bool name_parse(const char *name, struct record_file *f)
{
    unsigned long long id, tag;
    char same[NAME_SIZE];
    if (sscanf(name, "%16llx-%16llx", &id, &tag) != 2) return false;
    record_name(same, id, tag);
    f->id = id;
    f->tag = tag;
    return strcmp(name, same) == 0 && id && id < RECORD_ID_MAX;
}

uint64_t record_tag(const uint8_t binding[32])
{
    uint64_t tag;
    memcpy(&tag, binding, sizeof tag);
    return tag;
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + RECORD_PAGE - 1) / RECORD_PAGE * RECORD_PAGE;
}

uint64_t record_bytes(uint64_t meta_bytes, uint64_t payload_bytes)
{
    return whole_pages(sizeof(struct record_header) + meta_bytes + payload_bytes);
}

uint64_t cache_dir_bytes(const struct cache_dir *d)
{
    struct stat st;
    return fstat(d->fd, &st)
               ? 0
               : whole_pages((uint64_t)st.st_size) + 4 * RECORD_PAGE; /* it grows with the next record */
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* ids, too */
}

enum status cache_dir_list(const struct cache_dir *d, struct record_file **out, size_t *count,
                           size_t *foreign, struct err *err)
{
    static const char *const others[] = {".", "..", "lock", "checkpoints", WRITING};
    struct dirent **names;
    int n = scandirat(d->fd, ".", &names, NULL, by_name);
    if (n < 0) return err_set(err, ST_IO, "kvasir-cache: %s", strerror(errno));
    struct record_file *list = calloc((size_t)n + 1, sizeof *list);
    size_t strays = 0;
    *count = *foreign = 0;
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        struct record_file f;
        struct record_header h;
        struct stat st;
        size_t other = 0;
        while (other < sizeof others / sizeof *others && strcmp(name, others[other])) other++;
        if (list && other == sizeof others / sizeof *others) {
            bool named = name_parse(name, &f), twin = named && *count && list[*count - 1].id == f.id;
            bool ours = named && !fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) &&
                        (uint64_t)st.st_size <= RECORD_FILE_MAX &&
                        ((!twin && f.id < RECORD_ID_FAR) || !record_head(d, f.id, f.tag, &h, NULL));
            if (named && !ours && !strays++)
                log_warn("cache: kvasir-cache/%s is not a record, but is named like one: ignored", name);
            *foreign += !ours || twin;
            if (ours) {
                /* Times that nanoseconds can't hold are as good as none. */
                bool sane = st.st_mtim.tv_sec > 0 && st.st_mtim.tv_sec < 9000000000;
                f.used = sane ? (uint64_t)st.st_mtim.tv_sec * NS + (uint64_t)st.st_mtim.tv_nsec : 0;
                f.bytes = whole_pages((uint64_t)st.st_size);
                list[twin ? *count - 1 : (*count)++] = f;
            }
        }
        free(names[i]);
    }
    free(names);
    *out = list;
    return list ? ST_OK : err_nomem(err, "the disk cache's index");
}

/* ---- a record ---- */

static enum file_state failed(void)
{
    switch (errno) {
    case ENOENT: return FILE_GONE;
    case ELOOP:
    case EACCES:
    case ENXIO: return FILE_DAMAGED; /* a link, another user's file, a socket */
    case EMFILE:
    case ENFILE:
    case ENOMEM: return FILE_LATER;
    default: return FILE_FAILED;
    }
}

static enum file_state read_at(int fd, void *dst, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(fd, (char *)dst + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return r ? failed() : FILE_DAMAGED;
        done += (size_t)r;
    }
    return FILE_OK;
}

static bool header_good(const struct record_header *h, uint64_t id, uint64_t tag, uint64_t file_bytes)
{
    return !memcmp(h->magic, MAGIC, sizeof MAGIC) && h->header_sum == header_sum(h) && h->id == id &&
           h->parent < id && record_tag(h->binding) == tag && h->kind && h->kind < RECORD_KINDS &&
           h->meta_bytes <= RECORD_META_MAX && h->payload_bytes <= RECORD_PAYLOAD_MAX &&
           sizeof *h + h->meta_bytes + h->payload_bytes == file_bytes && !h->about[sizeof h->about - 1];
}

static enum file_state open_record(const struct cache_dir *d, uint64_t id, uint64_t tag,
                                   struct record_header *h, int *fd)
{
    char name[NAME_SIZE];
    record_name(name, id, tag);
    *fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0) return failed();
    struct stat st;
    enum file_state fs = fstat(*fd, &st) ? failed() : S_ISREG(st.st_mode) ? FILE_OK : FILE_DAMAGED;
    if (!fs) fs = read_at(*fd, h, sizeof *h, 0);
    return fs ? fs : header_good(h, id, tag, (uint64_t)st.st_size) ? FILE_OK : FILE_DAMAGED;
}

enum file_state record_head(const struct cache_dir *d, uint64_t id, uint64_t tag, struct record_header *h,
                            uint8_t **meta)
{
    int fd;
    enum file_state fs = open_record(d, id, tag, h, &fd);
    uint8_t *bytes = NULL;
    if (!fs && !(bytes = malloc(h->meta_bytes + 1))) fs = FILE_LATER;
    if (!fs) fs = read_at(fd, bytes, h->meta_bytes, sizeof *h);
    if (!fs && sum(bytes, h->meta_bytes) != h->meta_sum) fs = FILE_DAMAGED;
    if (fd >= 0) close(fd);
    if (!fs && meta) *meta = bytes;
    else free(bytes);
    return fs;
}

enum file_state record_payload(const struct cache_dir *d, uint64_t id, uint64_t tag, uint64_t sum_expected,
                               void *dst, uint64_t bytes)
{
    int fd;
    struct record_header h;
    enum file_state fs = open_record(d, id, tag, &h, &fd);
    if (!fs && (h.header_sum != sum_expected || h.payload_bytes != bytes)) fs = FILE_DAMAGED;
    uint8_t *scratch = fs || dst ? NULL : malloc(SUM_CHUNK);
    if (!fs && !dst && !scratch) fs = FILE_LATER;
    uint64_t s = 0;
    for (uint64_t at = 0; !fs && at < bytes; at += SUM_CHUNK) {
        size_t n = bytes - at < SUM_CHUNK ? (size_t)(bytes - at) : SUM_CHUNK;
        uint8_t *to = dst ? (uint8_t *)dst + at : scratch;
        fs = read_at(fd, to, n, sizeof h + h.meta_bytes + at);
        if (!fs) s = sum_chunk(s, to, n);
    }
    if (!fs && s != h.payload_sum) fs = FILE_DAMAGED;
    if (fd >= 0) close(fd);
    free(scratch);
    return fs;
}

static bool write_all(int fd, const void *data, uint64_t n)
{
    for (const char *p = data; n;) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (uint64_t)w;
    }
    return true;
}

enum file_state record_write(const struct cache_dir *d, struct record_header *h, const void *meta,
                             const void *payload)
{
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    h->meta_sum = sum(meta, h->meta_bytes);
    h->payload_sum = sum(payload, h->payload_bytes);
    h->header_sum = header_sum(h);
    char name[NAME_SIZE];
    record_name(name, h->id, record_tag(h->binding));
    int fd = openat(d->fd, WRITING, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write_all(fd, h, sizeof *h) && write_all(fd, meta, h->meta_bytes) &&
              write_all(fd, payload, h->payload_bytes);
    int error = errno;
    if (fd >= 0 && close(fd) && ok) ok = false, error = errno;
    if (ok && renameat(d->fd, WRITING, d->fd, name)) ok = false, error = errno;
    if (ok) return FILE_OK;
    (void)unlinkat(d->fd, WRITING, 0);
    errno = error;
    return failed() == FILE_LATER ? FILE_LATER : FILE_FAILED;
}

void record_remove(const struct cache_dir *d, uint64_t id, uint64_t tag)
{
    char name[NAME_SIZE];
    record_name(name, id, tag);
    (void)unlinkat(d->fd, name, 0);
}

void record_set_used(const struct cache_dir *d, uint64_t id, uint64_t tag, uint64_t used)
{
    char name[NAME_SIZE];
    record_name(name, id, tag);
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT},
                            {.tv_sec = (time_t)(used / NS), .tv_nsec = (long)(used % NS)}};
    (void)utimensat(d->fd, name, t, AT_SYMLINK_NOFOLLOW);
}

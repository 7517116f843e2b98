/* See checkpoint_id.h. A line of the memo: device, inode, size, mtime and ctime in nanoseconds, hash. Whoever
 * changes a file changes its ctime, which nobody can set. */
#include "server/receipts/checkpoint_id.h"

#include "config/base/env.h"
#include "config/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HASH_BYTES = 32, LINE_BYTES = 192, READ_BYTES = 1 << 20, MEMO_MAX = 1 << 16 };
/* A file that changed so recently may change again without a new time. */
static const int64_t FRESH_NS = 2000000000;

struct memo {
    char *text; /* as read; NULL: none */
    FILE *out;  /* what is written instead */
};

static int64_t ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void line_of(const struct stat *st, char line[LINE_BYTES])
{
    snprintf(line, LINE_BYTES, "%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64 " ",
             (uint64_t)st->st_dev, (uint64_t)st->st_ino, (int64_t)st->st_size, ns(st->st_mtim),
             ns(st->st_ctim));
}

static bool recall(const struct memo *m, const char *line, uint8_t out[HASH_BYTES])
{
    const char *at = m->text ? strstr(m->text, line) : NULL;
    size_t n;
    return at && (at == m->text || at[-1] == '\n') &&
           sodium_hex2bin(out, HASH_BYTES, at + strlen(line), 2 * HASH_BYTES, NULL, &n, NULL) == 0 &&
           n == HASH_BYTES;
}

static enum status hash_bytes(int fd, const char *path, uint8_t out[HASH_BYTES], struct err *err)
{
    crypto_generichash_state h;
    char *buffer = malloc(READ_BYTES);
    ssize_t n = buffer ? 1 : -1;
    if (!buffer) return err_nomem(err, path);
    crypto_generichash_init(&h, NULL, 0, HASH_BYTES);
    while ((n = read(fd, buffer, READ_BYTES)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        crypto_generichash_update(&h, (const unsigned char *)buffer, (size_t)n);
    }
    crypto_generichash_final(&h, out, HASH_BYTES);
    free(buffer);
    return n ? err_set(err, ST_IO, "%s: %s", path, strerror(errno)) : ST_OK;
}

static enum status hash_file(struct memo *m, const char *path, uint8_t out[HASH_BYTES], struct err *err)
{
    struct stat st, after;
    struct timespec now;
    char line[LINE_BYTES], line_after[LINE_BYTES], hex[2 * HASH_BYTES + 1];
    int fd;
    enum status status = file_open(path, &fd, NULL, err);
    if (status) return status;
    if (fstat(fd, &st)) memset(&st, 0, sizeof st);
    line_of(&st, line);
    bool known = recall(m, line, out);
    status = known ? ST_OK : hash_bytes(fd, path, out, err);
    bool same = !fstat(fd, &after);
    close(fd);
    line_of(&after, line_after);
    same = same && strcmp(line, line_after) == 0;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!status && same && m->out && ns(now) - ns(st.st_ctim) > FRESH_NS)
        fprintf(m->out, "%s%s\n", line, sodium_bin2hex(hex, sizeof hex, out, HASH_BYTES));
    return status;
}

static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);
    return n > e && strcmp(name + n - e, end) == 0;
}

static int part_of_checkpoint(const struct dirent *d)
{
    return has_end(d->d_name, ".safetensors") || has_end(d->d_name, ".gguf") || has_end(d->d_name, ".json");
}

static enum status hash_path(struct memo *m, const char *path, crypto_generichash_state *h, struct err *err)
{
    struct dirent **names;
    uint8_t one[HASH_BYTES];
    int n = scandir(path, &names, part_of_checkpoint, alphasort);
    enum status st = ST_OK;
    if (n < 0) {
        st = hash_file(m, path, one, err);
        if (!st) crypto_generichash_update(h, one, sizeof one);
        return st;
    }
    for (int i = 0; i < n; i++) {
        char *file = st ? NULL : file_join(path, names[i]->d_name);
        if (!st && !file) st = err_nomem(err, path);
        if (!st) st = hash_file(m, file, one, err);
        if (!st) {
            crypto_generichash_update(h, (const unsigned char *)names[i]->d_name,
                                      strlen(names[i]->d_name) + 1);
            crypto_generichash_update(h, one, sizeof one);
        }
        free(file);
        free(names[i]);
    }
    free(names);
    return st;
}

enum status checkpoint_id(const char *const *paths, uint32_t count, const char *memo, uint8_t out[32],
                          struct err *err)
{
    struct memo m = {0};
    size_t len;
    char *text = NULL;
    crypto_generichash_state h;
    struct err none;
    if (file_text(memo, MEMO_MAX, &m.text, &len, &none)) m.text = NULL;
    m.out = open_memstream(&text, &len);
    crypto_generichash_init(&h, NULL, 0, HASH_BYTES);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < count && !st; i++) {
        crypto_generichash_update(&h, (const unsigned char *)(paths[i] ? "+" : "-"), 1);
        if (paths[i]) st = hash_path(&m, paths[i], &h, err);
    }
    crypto_generichash_final(&h, out, HASH_BYTES);
    if (m.out) fclose(m.out);
    if (!st && text && (!m.text || strcmp(m.text, text) != 0)) {
        int fd = open(memo, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0600);
        /* A file that can't be written costs time at the next start. */
        if (fd >= 0 && write(fd, text, strlen(text)) < 0) (void)unlink(memo);
        if (fd >= 0) close(fd);
    }
    free(text);
    free(m.text);
    return st;
}

/* DIR/checkpoints of the first that is set: cache_dir, $XDG_CACHE_HOME/kvasir, ~/.cache/kvasir. */
static void memo_path(const char *cache_dir, char *out, size_t cap)
{
    const char *xdg = env_get("XDG_CACHE_HOME"), *home = env_get("HOME");
    char parent[4096];
    snprintf(parent, sizeof parent, "%s%s", xdg ? xdg : home ? home : "/nonexistent", xdg ? "" : "/.cache");
    snprintf(out, cap, "%s%s", cache_dir ? cache_dir : parent, cache_dir ? "" : "/kvasir");
    (void)mkdir(parent, 0700);
    (void)mkdir(out, 0700); /* if it can't be made, the hash is made again at the next start */
    size_t n = strlen(out);
    snprintf(out + n, cap - n, "/checkpoints");
}

enum status checkpoint_id_known(const char *model, const char *mmproj, const char *cache_dir, uint8_t out[32],
                                struct err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t id[32];
    static bool known;
    const char *paths[] = {model, mmproj};
    char memo[8192];
    enum status st = ST_OK;
    pthread_mutex_lock(&lock);
    if (!known) {
        memo_path(cache_dir, memo, sizeof memo);
        st = checkpoint_id(paths, 2, memo, id, err);
        known = !st;
    }
    memcpy(out, id, sizeof id);
    pthread_mutex_unlock(&lock);
    return st;
}

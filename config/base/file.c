/* See file.h. */
#include "config/base/file.h"

#include "config/base/buf.h"
#include "config/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK: the open of a FIFO would wait for its writer. */
static enum status open_at_once(const char *path, bool pipes, int *fd, struct stat *sb, struct err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool opened = *fd >= 0 && !fstat(*fd, sb);
    if (opened && (S_ISREG(sb->st_mode) || (pipes && S_ISFIFO(sb->st_mode)))) return ST_OK;
    enum status st = opened ? ST_FORMAT : errno == ENOENT ? ST_NOT_FOUND : ST_IO;
    st = err_set(err, st, "%s: %s", path, opened ? "not a regular file" : strerror(errno));
    if (*fd >= 0) close(*fd);
    return st;
}

enum status file_unmapped(const char *path, uint64_t size, struct err *err)
{
    const char *why = errno == ENOMEM ? "not enough address space (ulimit -v)" : strerror(errno);
    return err_set(err, ST_IO, "%s: can't map %llu MiB: %s", path, (unsigned long long)(size >> 20), why);
}

enum status file_open(const char *path, int *fd, uint64_t *size, struct err *err)
{
    struct stat sb;
    enum status st = open_at_once(path, false, fd, &sb, err);
    if (size && !st) *size = (uint64_t)sb.st_size;
    return st;
}

/* A pipe without a writer is at its end at once, and may still get one. */
static enum status read_all(int fd, bool pipe, unsigned ms, struct buf *to, const char *path, struct err *err)
{
    char bytes[1 << 16];
    for (uint64_t end = now_us() + ms * 1000ull;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = read(fd, bytes, sizeof bytes);
        uint64_t now = now_us();
        if (n > 0 && buf_add(to, bytes, (size_t)n))
            return err_set(err, ST_TOO_LARGE, "%s: more than %zu bytes", path, to->max);
        if (n == 0 && (to->len || !pipe)) return ST_OK;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_set(err, ST_IO, "%s: %s", path, strerror(errno));
        if (!pipe) continue;
        if (now >= end || (n <= 0 && poll(&p, 1, (int)((end - now) / 1000) + 1) == 1 && p.revents == POLLHUP))
            return err_set(err, ST_IO, "%s: a pipe, and nothing whole came from it within %u s: give a file",
                           path, ms / 1000);
    }
}

static enum status read_text(const char *path, size_t max, bool pipes, unsigned ms, char **text, size_t *len,
                             struct err *err)
{
    int fd;
    struct stat sb;
    struct buf b;
    enum status st = open_at_once(path, pipes, &fd, &sb, err);
    if (st) return st;
    buf_init(&b, max);
    if ((uint64_t)sb.st_size > max)
        st = err_set(err, ST_TOO_LARGE, "%s: %lld bytes, at most %zu are read", path, (long long)sb.st_size,
                     max);
    else if (buf_reserve(&b, (size_t)sb.st_size)) st = err_nomem(err, path);
    else st = read_all(fd, S_ISFIFO(sb.st_mode), ms, &b, path, err);
    close(fd);
    if (st) {
        buf_fini(&b);
        return st;
    }
    b.data[b.len] = '\0';
    *len = b.len;
    *text = b.data;
    return ST_OK;
}

enum status file_text(const char *path, size_t max, char **text, size_t *len, struct err *err)
{
    return read_text(path, max, false, 0, text, len, err);
}

enum status file_text_piped(const char *path, size_t max, unsigned ms, char **text, size_t *len,
                            struct err *err)
{
    return read_text(path, max, true, ms, text, len, err);
}

char *file_line(char **at, const char *end)
{
    char *line = *at, *nl = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
    if (line >= end) return NULL;
    *at = nl ? nl + 1 : line + (end - line);
    if (nl) *nl = '\0';
    return line;
}

char *file_join(const char *dir, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

enum status file_text_in(const char *dir, const char *name, size_t max, char **path, char **text, size_t *len,
                         struct err *err)
{
    char *own = file_join(dir, name);
    *text = NULL;
    enum status st = own ? file_text(own, max, text, len, err) : err_nomem(err, dir);
    if (path) *path = own;
    else free(own);
    return st;
}

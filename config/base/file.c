/* See file.h. */
#include "config/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status read_all(int fd, char *buf, size_t want, size_t *got, const char *path, struct err *err)
{
    *got = 0;
    while (*got < want) {
        ssize_t n = read(fd, buf + *got, want - *got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(err, ST_IO, "%s: %s", path, strerror(errno));
        if (n == 0) break;
        *got += (size_t)n;
    }
    return ST_OK;
}

enum status file_text(const char *path, size_t max, char **text, size_t *len, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%s: %s", path, strerror(errno));
    enum status st = ST_OK;
    char *t = NULL;
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(sb.st_mode)) {
        st = err_set(err, ST_FORMAT, "%s: not a regular file", path);
    } else if ((uint64_t)sb.st_size > max) {
        st = err_set(err, ST_TOO_LARGE, "%s: %lld bytes, at most %zu are read", path, (long long)sb.st_size,
                     max);
    } else if (!(t = malloc((size_t)sb.st_size + 1))) {
        st = err_nomem(err, path);
    } else {
        st = read_all(fd, t, (size_t)sb.st_size, len, path, err);
    }
    close(fd);
    if (st) {
        free(t);
        return st;
    }
    t[*len] = '\0';
    *text = t;
    return ST_OK;
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

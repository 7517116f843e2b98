/* See local.h. The kernel confines the path to the folder (openat2), so that a link created between check and
 * open can't lead out of it. */
#include "server/fetch/local.h"

#include "config/base/hex.h"
#include "server/media/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct local_dir {
    char *path; /* as given and with links resolved: URLs may use either */
    char *real;
    int fd;
};

static int open_below(int dir, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

static void cut_slashes(char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') path[--n] = '\0';
}

enum status local_dir_open(const char *path, struct local_dir **out, struct err *err)
{
    struct local_dir *d = calloc(1, sizeof *d);
    if (!d) return err_nomem(err, NULL);
    d->fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    d->real = d->fd < 0 ? NULL : realpath(path, NULL);
    d->path = d->real ? strdup(path) : NULL;
    int probe = d->path ? open_below(d->fd, ".") : -1;
    if (probe < 0) {
        enum status st = err_set(err, ST_INVALID, "--allowed-media-dir %.200s: %s", path, strerror(errno));
        local_dir_close(d);
        return st;
    }
    close(probe);
    cut_slashes(d->path);
    *out = d;
    return ST_OK;
}

void local_dir_close(struct local_dir *d)
{
    if (!d) return;
    if (d->fd >= 0) close(d->fd);
    free(d->path);
    free(d->real);
    free(d);
}

/* Decodes percent signs in place; false: invalid ones, or a NUL. */
static bool unescape(char *s, size_t len)
{
    char *to = s;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c == '%') {
            int high = i + 2 < len ? hex_digit(s[i + 1]) : -1, low = i + 2 < len ? hex_digit(s[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (!c) return false;
        *to++ = c;
    }
    *to = '\0';
    return true;
}

/* The path relative to the folder; NULL: not below it. */
static const char *below(const char *path, const char *dir)
{
    size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);
    if (strncmp(path, dir, n) != 0 || path[n] != '/') return NULL;
    while (path[n] == '/') n++;
    return path[n] ? path + n : NULL;
}

static enum image_error file_read(int fd, size_t bytes_max, uint8_t **bytes, size_t *len, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return image__fail(err, IMAGE_NO_FILE, "there is no such file");
    if ((uint64_t)st.st_size > bytes_max)
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the image file has more than %zu bytes", bytes_max);
    if (!st.st_size) return image__fail(err, IMAGE_EMPTY, "the image is empty");
    size_t want = (size_t)st.st_size, have = 0;
    uint8_t *out = malloc(want);
    if (!out) return image__nomem(err);
    while (have < want) {
        ssize_t n = read(fd, out + have, want - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            free(out);
            return image__fail(err, IMAGE_NO_FILE, "the file can't be read");
        }
        have += (size_t)n;
    }
    *bytes = out;
    *len = want;
    return IMAGE_OK;
}

enum image_error local_read(const struct local_dir *d, const char *url, size_t url_len, size_t bytes_max,
                            uint8_t **bytes, size_t *len, struct err *err)
{
    static const char scheme[] = "file://", here[] = "localhost";
    size_t n = sizeof scheme - 1, h = sizeof here - 1;
    if (url_len < n || strncasecmp(url, scheme, n) != 0)
        return image__fail(err, IMAGE_BAD_URL, "the URL is not valid");
    if (url_len - n > h && strncasecmp(url + n, here, h) == 0) n += h;
    if (url_len == n || url[n] != '/') return image__fail(err, IMAGE_BAD_URL, "the URL is not valid");
    if (url_len - n > 4096) return image__fail(err, IMAGE_BAD_URL, "the URL is too long");
    char path[4097];
    memcpy(path, url + n, url_len - n);
    path[url_len - n] = '\0';
    if (!unescape(path, url_len - n)) return image__fail(err, IMAGE_BAD_URL, "the URL is not valid");
    const char *name = below(path, d->path);
    if (!name) name = below(path, d->real);
    if (!name)
        return image__fail(err, IMAGE_BAD_URL, "this server reads no files there (--allowed-media-dir)");
    int fd = open_below(d->fd, name);
    if (fd < 0) return image__fail(err, IMAGE_NO_FILE, "there is no such file");
    enum image_error f = file_read(fd, bytes_max, bytes, len, err);
    close(fd);
    return f;
}

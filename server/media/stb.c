/* PNG and BMP pixels by stb_image (https://github.com/nothings/stb; 2.27 or later, Debian's libstb-dev). The
 * callers must check sizes and completeness first: this decoder accepts many damaged files. Any thread. */
#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool no_memory; /* for the image that this thread decodes */

static void *take(void *p, size_t bytes)
{
    p = realloc(p, bytes);
    no_memory = no_memory || !p;
    return p;
}

#define STBI_MALLOC(bytes)     take(NULL, bytes)
#define STBI_REALLOC(p, bytes) take(p, bytes)
#define STBI_FREE(p)           free(p)
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_FAILURE_STRINGS
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <stb/stb_image.h>

struct reader {
    const struct image_bytes *part, *end;
    size_t at; /* in the part */
};

static int read_some(void *user, char *to, int size)
{
    struct reader *r = user;
    size_t done = 0, want = (size_t)size;
    while (done < want && r->part < r->end) {
        size_t left = r->part->len - r->at, n = want - done < left ? want - done : left;
        if (n && to) memcpy(to + done, r->part->p + r->at, n);
        done += n;
        r->at += n;
        if (r->at < r->part->len) continue;
        r->part++;
        r->at = 0;
    }
    return (int)done;
}

static void skip_some(void *user, int size)
{
    if (size > 0) read_some(user, NULL, size);
}

static int at_end(void *user)
{
    const struct reader *r = user;
    return r->part == r->end;
}

enum image_error image__stb(const struct image_bytes *parts, size_t count, int channels, bool wide,
                            void **pixels, int *stored)
{
    static const stbi_io_callbacks io = {.read = read_some, .skip = skip_some, .eof = at_end};
    struct reader r = {.part = parts, .end = parts + count};
    int w, h;
    no_memory = false;
    *pixels = wide ? (void *)stbi_load_16_from_callbacks(&io, &r, &w, &h, stored, channels)
                   : (void *)stbi_load_from_callbacks(&io, &r, &w, &h, stored, channels);
    return *pixels ? IMAGE_OK : no_memory ? IMAGE_NOMEM : IMAGE_BAD_DATA;
}

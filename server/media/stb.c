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
    image__read_fn *read;
    void *user;
};

size_t image__read_bytes(void *user, uint8_t *to, size_t n)
{
    struct image_bytes *b = user;
    if (n > b->len) n = b->len;
    if (n) memcpy(to, b->p, n);
    b->p += n;
    b->len -= n;
    return n;
}

static int read_some(void *user, char *to, int size)
{
    struct reader *r = user;
    return (int)r->read(r->user, (uint8_t *)to, (size_t)size);
}

static void skip_some(void *user, int size)
{
    char ignored[256];
    for (int n; size > 0; size -= n) {
        n = read_some(user, ignored, size < (int)sizeof ignored ? size : (int)sizeof ignored);
        if (n <= 0) return;
    }
}

/* stb_image asks only when its buffer is empty. */
static int at_end(void *user)
{
    (void)user;
    return 1;
}

enum image_error image__stb(image__read_fn *read, void *user, int channels, bool wide, void **pixels,
                            int *stored)
{
    static const stbi_io_callbacks io = {.read = read_some, .skip = skip_some, .eof = at_end};
    struct reader r = {read, user};
    int w, h;
    no_memory = false;
    *pixels = wide ? (void *)stbi_load_16_from_callbacks(&io, &r, &w, &h, stored, channels)
                   : (void *)stbi_load_from_callbacks(&io, &r, &w, &h, stored, channels);
    return *pixels ? IMAGE_OK : no_memory ? IMAGE_NOMEM : IMAGE_BAD_DATA;
}

/* zlib inflation, by stb_image (of which nothing else is compiled). Any thread; stb keeps its error text per thread. */
#include "server/image_codec.h"

#include <limits.h>

#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_NO_STDIO
#define STBI_NO_SIMD
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_NO_JPEG
#define STBI_NO_PNG
#define STBI_NO_BMP
#define STBI_NO_PSD
#define STBI_NO_TGA
#define STBI_NO_GIF
#define STBI_NO_PIC
#define STBI_NO_PNM
#define STBI_SUPPORT_ZLIB
#pragma GCC diagnostic ignored "-Wunused-function" /* stays: this one is given at the end of the file */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

/* stb takes the two reserved distance codes as distance 0, which copies what the buffer held before: callers give zeroed memory, so that the
 * result depends on the input alone and shows nobody else's bytes. */
struct image_inflated image__inflate(struct image_bytes zlib, uint8_t *out, size_t cap)
{
    if (zlib.len > INT_MAX || cap > INT_MAX) return (struct image_inflated){0};
    /* stb's own entry points give no count when the buffer fills up or a fault comes late, and we need it: the state is read instead. */
    stbi__zbuf z = {.zbuffer = (stbi_uc *)zlib.p, .zbuffer_end = (stbi_uc *)zlib.p + zlib.len};
    bool ended = stbi__do_zlib(&z, (char *)out, (int)cap, 0, 1);
    size_t taken = (size_t)(z.zbuffer - zlib.p), unread = z.num_bits > 0 ? (size_t)z.num_bits / 8 : 0; /* whole bytes in the bit buffer */
    return (struct image_inflated){.bytes = (size_t)(z.zout - z.zout_start), .ended = ended, .used = taken > unread ? taken - unread : 0};
}

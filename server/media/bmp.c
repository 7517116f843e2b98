/* BMP: the header is checked here, stb_image reads the pixels. Supported: 1, 4 and 8 bits with a palette, 24
 * and 32 bits, bit fields of 32 bits, and the headers of Windows 3, 4 and 5. Any thread. */
#include "server/media/codec.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_HEADER = 14, BITFIELDS = 3 };

static enum image_error bad(struct err *err, const char *what)
{
    return image__fail(err, IMAGE_BAD_DATA, "not a BMP file that can be read: %s", what);
}

/* Checks that every palette index has a color, which stb_image doesn't. rows of stride bytes each. */
static bool in_palette(const uint8_t *rows, uint32_t w, uint32_t h, uint32_t bits, size_t stride,
                       size_t colors)
{
    uint32_t mask = (1u << bits) - 1;
    for (size_t y = 0; y < h && colors <= mask; y++)
        for (size_t x = 0; x < w; x++) {
            size_t bit = x * bits;
            if (((uint32_t)rows[y * stride + bit / 8] >> (8 - bits - bit % 8) & mask) >= colors) return false;
        }
    return true;
}

enum image_error image__bmp(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out,
                            int *orientation, struct err *err)
{
    (void)orientation; /* BMP has none; stb_image flips bottom-up rows */
    if (in.len < FILE_HEADER + 40) return bad(err, "truncated header");
    const uint8_t *h = in.p + FILE_HEADER;
    uint32_t header = image__le32(h), data = image__le32(in.p + 10);
    if (header != 40 && header != 108 && header != 124) return bad(err, "a header that is not supported");
    if (header > in.len - FILE_HEADER) return bad(err, "truncated header");
    uint32_t width = image__le32(h + 4), height = image__le32(h + 8);
    uint32_t bits = image__le16(h + 14), compression = image__le32(h + 16);
    uint32_t alpha = compression == BITFIELDS && header > 40 ? image__le32(h + 52) : 0;
    bool down = height > INT_MAX; /* top row first */
    if (down) height = 0u - height;
    enum image_error f = image__check_size(width, height, limits, err);
    if (f) return f;
    if (bits != 1 && bits != 4 && bits != 8 && bits != 24 && bits != 32)
        return bad(err, "only 1, 4, 8, 24 and 32 bits per pixel are supported");
    if (compression && (compression != BITFIELDS || bits != 32))
        return bad(err, "compressed pixels are not supported");
    size_t stride = ((size_t)width * bits + 31) / 32 * 4, row = ((size_t)width * bits + 7) / 8;
    size_t after = FILE_HEADER + (size_t)header; /* the palette, or masks, or the pixels */
    if (data < after || data > in.len || in.len - data < stride * (height - 1) + row)
        return bad(err, "truncated");
    if (bits <= 8 && !in_palette(in.p + data, width, height, bits, stride, (data - after) / 4))
        return bad(err, "a pixel's color is not in the palette");

    bool mix = limits->on_white && alpha;
    size_t pixels = (size_t)width * height;
    void *rgb;
    int stored;
    struct image_bytes rest = in;
    f = image__stb(image__read_bytes, &rest, mix ? 4 : 3, false, &rgb, &stored);
    if (f == IMAGE_NOMEM) return image__nomem(err);
    if (f) return bad(err, "a damaged header, or one of a kind that is not supported");
    uint8_t *p = rgb;
    /* stb_image treats alpha that is 0 everywhere as opaque, except for the file's first pixel. */
    size_t first = down ? 0 : (size_t)width * (height - 1);
    if (mix && p[4 * first + 3] == 255 && !(image__le32(in.p + data) & alpha)) memset(p, 255, pixels * 4);
    for (size_t i = 0; mix && i < pixels; i++)
        for (size_t c = 0; c < 3; c++) p[3 * i + c] = image__over_white(p[4 * i + c], p[4 * i + 3]);
    *out = (struct image_u8){.width = width, .height = height, .rgb = p};
    return IMAGE_OK;
}

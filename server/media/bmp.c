/* BMP: the kinds that Pillow reads (1, 4, 8, 16, 24, 32 bits, the usual bit fields, RLE4 and RLE8, OS/2 headers), with its conversion of
 * 16-bit pixels and its reading of RLE. Own reader: common ones treat alpha and odd masks otherwise. Any thread. */
#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_HEADER = 14, RAW = 0, RLE8 = 1, RLE4 = 2, BITFIELDS = 3 };

/* Where red, green and blue stand in a pixel: byte offsets (24 and 32 bits) or bits per channel of a 16-bit word. */
struct layout {
    uint32_t masks[4]; /* r, g, b, a as in the file */
    uint8_t r, g, b;
    int8_t a; /* -1 = none */
};
static const struct layout layouts32[] = {
    {{0xFF0000, 0xFF00, 0xFF, 0}, 2, 1, 0, -1},         {{0xFF000000, 0xFF0000, 0xFF00, 0}, 3, 2, 1, -1},
    {{0xFF000000, 0xFF00, 0xFF, 0}, 3, 1, 0, -1},       {{0xFF000000, 0xFF0000, 0xFF00, 0xFF}, 3, 2, 1, 0},
    {{0xFF, 0xFF00, 0xFF0000, 0xFF000000}, 0, 1, 2, 3}, {{0xFF0000, 0xFF00, 0xFF, 0xFF000000}, 2, 1, 0, 3},
    {{0xFF000000, 0xFF00, 0xFF, 0xFF0000}, 3, 1, 0, 2}, {{0, 0, 0, 0}, 2, 1, 0, 3}};

struct bmp {
    struct image_bytes in;
    const struct image_limits *limits;
    struct err *err;
    uint32_t width, height, bits, compression;
    bool top_down;
    size_t data;              /* offset of the pixels */
    struct layout layout;     /* 24 and 32 bits */
    bool green6;              /* 16 bits: 5-6-5, else 5-5-5 */
    uint8_t palette[256 * 3]; /* black beyond its end */
};

static enum image_fault bad(struct bmp *b, const char *what)
{
    return image__fail(b->err, IMAGE_BAD_DATA, "not a BMP file that can be read: %s", what);
}

static enum image_fault read_masks(struct bmp *b, const uint32_t masks[4])
{
    if (b->bits == 32) {
        for (size_t i = 0; i < sizeof layouts32 / sizeof *layouts32; i++) {
            if (memcmp(masks, layouts32[i].masks, sizeof layouts32[i].masks) != 0) continue;
            b->layout = layouts32[i];
            return IMAGE_OK;
        }
    } else if (b->bits == 24) {
        if (masks[0] == 0xFF0000 && masks[1] == 0xFF00 && masks[2] == 0xFF) return IMAGE_OK;
    } else if (b->bits == 16) {
        b->green6 = masks[0] == 0xF800 && masks[1] == 0x7E0 && masks[2] == 0x1F;
        if (b->green6 || (masks[0] == 0x7C00 && masks[1] == 0x3E0 && masks[2] == 0x1F)) return IMAGE_OK;
    }
    return bad(b, "unknown bit fields");
}

/* colors entries of `size` bytes (blue, green, red, and nothing or a filler) at `at`. */
static enum image_fault read_palette(struct bmp *b, size_t at, uint32_t colors, uint32_t size)
{
    if (colors < 1 || colors > 256) return bad(b, "a palette must have 1 to 256 colours");
    if (at > b->in.len || b->in.len - at < (size_t)colors * size) return bad(b, "truncated palette");
    for (uint32_t i = 0; i < colors; i++) {
        const uint8_t *e = b->in.p + at + (size_t)i * size;
        b->palette[3 * i] = e[2];
        b->palette[3 * i + 1] = e[1];
        b->palette[3 * i + 2] = e[0];
    }
    return IMAGE_OK;
}

static enum image_fault read_head(struct bmp *b)
{
    const uint8_t *h = b->in.p + FILE_HEADER;
    if (b->in.len < FILE_HEADER + 12) return bad(b, "truncated header");
    uint32_t header = image__le32(h), colors = 0, entry = 4;
    bool known = header == 12 || header == 40 || header == 52 || header == 56 || header == 64 || header == 108 || header == 124;
    if (!known || header > b->in.len - FILE_HEADER) return bad(b, "unknown or truncated header");
    size_t after = FILE_HEADER + (size_t)header;
    b->data = image__le32(b->in.p + 10);
    b->layout = (struct layout){.r = 2, .g = 1, .b = 0, .a = -1};
    if (header == 12) {
        b->width = image__le16(h + 4);
        b->height = image__le16(h + 6);
        b->bits = image__le16(h + 10);
        entry = 3;
    } else {
        b->width = image__le32(h + 4);
        b->height = image__le32(h + 8);
        b->top_down = h[11] == 0xFF;
        if (b->top_down) b->height = 0u - b->height;
        b->bits = image__le16(h + 14);
        b->compression = image__le32(h + 16);
        colors = image__le32(h + 32);
    }
    enum image_fault f = image__check_size(b->width, b->height, b->limits, b->err);
    if (f) return f;
    if (b->bits != 1 && b->bits != 4 && b->bits != 8 && b->bits != 16 && b->bits != 24 && b->bits != 32)
        return bad(b, "unknown bits per pixel");
    if (b->compression > BITFIELDS) return bad(b, "unknown compression");
    if ((b->compression == RLE8 || b->compression == RLE4) && b->bits > 8) return bad(b, "compressed pixels without a palette");
    if (b->compression == BITFIELDS) {
        bool inside = header >= 52;
        if (!inside && b->in.len - after < 12) return bad(b, "truncated bit fields");
        const uint8_t *m = inside ? h + 40 : b->in.p + after;
        uint32_t masks[4] = {image__le32(m), image__le32(m + 4), image__le32(m + 8), header >= 56 ? image__le32(m + 12) : 0};
        if (!inside) after += 12;
        f = read_masks(b, masks);
    } else if (b->bits <= 8) {
        if (!colors) colors = 1u << b->bits;
        /* Some writers give the end of the header as the start of the pixels. */
        if (b->data == after) b->data += (size_t)colors * entry;
        f = read_palette(b, after, colors, entry);
        after += (size_t)colors * entry;
    }
    if (!b->data) b->data = after;
    if (!f && b->data > b->in.len) f = bad(b, "truncated");
    return f;
}

static void raw_row(const struct bmp *b, const uint8_t *in, uint8_t *out)
{
    if (b->bits <= 8) {
        uint32_t mask = (1u << b->bits) - 1;
        for (uint32_t x = 0; x < b->width; x++) {
            size_t bit = (size_t)x * b->bits;
            uint32_t v = (uint32_t)in[bit / 8] >> (8 - b->bits - bit % 8) & mask;
            memcpy(out + (size_t)3 * x, b->palette + 3 * v, 3);
        }
    } else if (b->bits == 16) {
        for (uint32_t x = 0; x < b->width; x++, in += 2, out += 3) {
            uint32_t v = image__le16(in);
            out[0] = (uint8_t)((v >> (b->green6 ? 11 : 10) & 31) * 255 / 31);
            out[1] = (uint8_t)(b->green6 ? (v >> 5 & 63) * 255 / 63 : (v >> 5 & 31) * 255 / 31);
            out[2] = (uint8_t)((v & 31) * 255 / 31);
        }
    } else {
        uint32_t step = b->bits / 8;
        bool alpha = b->limits->on_white && b->layout.a >= 0;
        for (uint32_t x = 0; x < b->width; x++, in += step, out += 3) {
            out[0] = in[b->layout.r];
            out[1] = in[b->layout.g];
            out[2] = in[b->layout.b];
            for (int c = 0; alpha && c < 3; c++) out[c] = image__over_white(out[c], in[b->layout.a]);
        }
    }
}

static enum image_fault decode_raw(struct bmp *b, struct image_u8 *img)
{
    size_t bits = (size_t)b->width * b->bits, row = (bits + 7) / 8, stride = (bits + 31) / 32 * 4;
    if (b->in.len - b->data < stride * (b->height - 1) + row) return bad(b, "truncated");
    enum image_fault f = image__new(b->width, b->height, false, img, b->err);
    for (uint32_t y = 0; !f && y < b->height; y++) {
        uint32_t to = b->top_down ? y : b->height - 1 - y;
        raw_row(b, b->in.p + b->data + (size_t)y * stride, img->rgb + (size_t)to * b->width * 3);
    }
    return f;
}

/* Run-length data fills the picture pixel after pixel; rows are only a matter of where a run is cut. */
struct run {
    struct bmp *b;
    struct image_u8 *img;
    size_t done, total;
};

static void put(struct run *r, uint32_t index)
{
    if (r->done >= r->total) return;
    const struct bmp *b = r->b;
    size_t y = r->done / b->width, x = r->done % b->width, to = b->top_down ? y : b->height - 1 - y;
    memcpy(r->img->rgb + (to * b->width + x) * 3, b->palette + 3 * (size_t)index, 3);
    r->done++;
}

/* Literal pixels; false when the data ends. */
static bool absolute(struct run *r, size_t *at, uint32_t count)
{
    struct bmp *b = r->b;
    bool rle4 = b->compression == RLE4;
    size_t left = r->total - r->done, n = count < left ? count : left, bytes = rle4 ? (n + 1) / 2 : n;
    if (b->in.len - *at < bytes) return false;
    for (size_t i = 0; i < n; i++) {
        uint8_t v = b->in.p[*at + (rle4 ? i / 2 : i)];
        put(r, rle4 ? (i % 2 ? v & 15u : v >> 4) : v);
    }
    *at += bytes;
    *at += *at & 1; /* to a 16-bit boundary of the file */
    return true;
}

static bool decode_runs(struct run *r)
{
    const struct bmp *b = r->b;
    size_t at = b->data, x = 0; /* x as the writer counts it: may run past the row */
    while (r->done < r->total) {
        if (at >= b->in.len || b->in.len - at < 2) return false;
        uint32_t count = b->in.p[at], v = b->in.p[at + 1];
        at += 2;
        if (count) {
            if (x + count > b->width) count = x < b->width ? (uint32_t)(b->width - x) : 0;
            for (uint32_t i = 0; i < count; i++) put(r, b->compression == RLE4 ? (i % 2 ? v & 15u : v >> 4) : v);
            x += count;
        } else if (v == 0) {
            while (r->done % b->width) put(r, 0);
            x = 0;
        } else if (v == 1) {
            return false; /* end of picture, too early */
        } else if (v == 2) {
            if (b->in.len - at < 2) return false;
            size_t skip = (size_t)b->in.p[at] + (size_t)b->in.p[at + 1] * b->width;
            at += 2;
            for (; skip && r->done < r->total; skip--) put(r, 0);
            x = r->done % b->width;
        } else {
            if (!absolute(r, &at, v)) return false;
            x += v;
        }
    }
    return true;
}

enum image_fault image__bmp(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out, int *orientation,
                            struct err *err)
{
    (void)orientation; /* BMP has no such thing; bottom-up rows are turned here */
    struct bmp b = {.in = in, .limits = limits, .err = err};
    struct image_u8 img = {0};
    enum image_fault f = read_head(&b);
    if (!f && b.compression != RLE8 && b.compression != RLE4) {
        f = decode_raw(&b, &img);
    } else if (!f) {
        f = image__new(b.width, b.height, false, &img, err);
        struct run r = {.b = &b, .img = &img, .total = (size_t)b.width * b.height};
        if (!f && !decode_runs(&r)) f = bad(&b, "the run-length data ends too early");
    }
    if (f)
        image_u8_free(&img);
    else
        *out = img;
    return f;
}

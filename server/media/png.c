/* PNG: chunks, filters, Adam7, and the conversion to RGB that Pillow does (16-bit gray is clipped, other 16-bit samples lose their low byte,
 * transparency of any kind is ignored, or shows white where image_limits says so). Inflation is media/inflate.c. Own reader: what
 * Pillow makes of 16-bit gray, of faults and of checksums is its own. Any thread. */
#include "server/media/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIGNATURE = 8,
    GRAY = 0,
    RGB = 2,
    PALETTE = 3,
    GRAY_ALPHA = 4,
    RGB_ALPHA = 6,
    TEXT_MAX = 1 << 20,   /* inflated bytes of a compressed text that may hold the orientation */
    DEFLATE_RATIO = 1032, /* no deflate stream inflates to more than this many times its size */
};

struct png {
    struct image_bytes in;
    const struct image_limits *limits;
    struct err *err;
    uint32_t width, height;
    uint8_t depth, color;
    bool interlaced;
    uint32_t bits; /* per pixel */
    uint8_t palette[256 * 3];
    struct image_bytes trns; /* the tRNS chunk: alpha of palette entries, or the samples that are transparent; len 0 = none */
    bool keyed;              /* pixels of these 8-bit samples show white */
    uint8_t key[3];
    uint8_t *zlib; /* all IDAT data in one piece and 4 zero bytes, owned */
    size_t zlib_len;
    struct image_bytes exif, xmp;
    uint8_t *exif_text, *xmp_text; /* owned: decoded text that exif or xmp point into */
};

struct chunk {
    char type[5];
    struct image_bytes data;
    bool cut; /* the file ends inside the data */
};

static enum image_fault bad(struct png *p, const char *what)
{
    return image__fail(p->err, IMAGE_BAD_DATA, "not a valid PNG file: %s", what);
}

static uint32_t crc32_of(const uint8_t *p, size_t len)
{
    static const uint32_t nibble[16] = {0,          0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

/* The chunk at *at, and *at behind it. false: no whole chunk header there, or not a chunk. */
static bool next_chunk(const struct png *p, size_t *at, struct chunk *c)
{
    if (p->in.len - *at < 8) return false;
    const uint8_t *h = p->in.p + *at;
    for (int i = 0; i < 4; i++) {
        c->type[i] = (char)h[4 + i];
        bool letter = (c->type[i] >= 'a' && c->type[i] <= 'z') || (c->type[i] >= 'A' && c->type[i] <= 'Z');
        if (!letter) return false;
    }
    c->type[4] = '\0';
    size_t len = image__be32(h), left = p->in.len - *at - 8;
    c->cut = len > left;
    c->data = (struct image_bytes){.p = h + 8, .len = c->cut ? left : len};
    *at += 8 + c->data.len;
    *at = p->in.len - *at < 4 ? p->in.len : *at + 4;
    return true;
}

static enum image_fault read_ihdr(struct png *p, const struct chunk *c)
{
    static const struct {
        uint8_t depth, color, samples;
    } kinds[] = {{1, GRAY, 1},    {2, GRAY, 1},     {4, GRAY, 1},        {8, GRAY, 1},        {16, GRAY, 1},
                 {8, RGB, 3},     {16, RGB, 3},     {1, PALETTE, 1},     {2, PALETTE, 1},     {4, PALETTE, 1},
                 {8, PALETTE, 1}, {8, GRAY_ALPHA, 2}, {16, GRAY_ALPHA, 2}, {8, RGB_ALPHA, 4}, {16, RGB_ALPHA, 4}};
    const uint8_t *h = c->data.p;
    if (c->data.len < 13) return bad(p, "short IHDR");
    p->width = image__be32(h);
    p->height = image__be32(h + 4);
    p->depth = h[8];
    p->color = h[9];
    p->interlaced = h[12] != 0;
    if (h[11]) return bad(p, "unknown filter method");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].depth == p->depth && kinds[i].color == p->color) p->bits = (uint32_t)p->depth * kinds[i].samples;
    if (!p->bits) return bad(p, "unknown combination of bit depth and colour type");
    return image__check_size(p->width, p->height, p->limits, p->err);
}

static enum image_fault read_palette(struct png *p, const struct chunk *c)
{
    if (p->color != PALETTE) return IMAGE_OK; /* only a suggestion */
    size_t colors = c->data.len / 3;
    if (colors > 256) return bad(p, "the palette has more than 256 colours");
    memset(p->palette, 0, sizeof p->palette);
    memcpy(p->palette, c->data.p, colors * 3);
    return IMAGE_OK;
}

/* The bytes that a hex dump stands for; other characters are passed over. */
static size_t unhex(const uint8_t *in, size_t len, uint8_t *out)
{
    size_t n = 0;
    int high = -1;
    for (size_t i = 0; i < len; i++) {
        int v;
        uint8_t ch = in[i];
        if (ch >= '0' && ch <= '9')
            v = ch - '0';
        else if ((ch | 32) >= 'a' && (ch | 32) <= 'f')
            v = (ch | 32) - 'a' + 10;
        else
            continue;
        if (high < 0) {
            high = v;
        } else {
            out[n++] = (uint8_t)(high << 4 | v);
            high = -1;
        }
    }
    return n;
}

/* Text as it stands or inflated, in memory that the caller frees. len 0: nothing usable. */
static struct image_bytes take_text(struct image_bytes text, bool compressed, uint8_t **owned)
{
    struct image_bytes out = {0};
    *owned = calloc(1, compressed ? TEXT_MAX + 1 : text.len + 1);
    if (!*owned) return out;
    if (compressed) {
        struct image_inflated got = image__inflate(text, *owned, TEXT_MAX);
        out.len = got.fault ? 0 : got.bytes;
    } else if (text.len) {
        memcpy(*owned, text.p, out.len = text.len);
    }
    out.p = *owned;
    return out;
}

/* "\nexif\n      40\n<hex>": what ImageMagick writes instead of an eXIf chunk. */
static void read_raw_profile(struct png *p, struct image_bytes text, bool compressed)
{
    uint8_t *owned;
    struct image_bytes t = take_text(text, compressed, &owned);
    size_t at = 0;
    for (int newlines = 0; newlines < 3 && at < t.len; at++) newlines += t.p[at] == '\n';
    free(p->exif_text);
    p->exif_text = owned;
    if (t.len) t.len = unhex(t.p + at, t.len - at, owned);
    p->exif = t;
}

/* tEXt, zTXt and iTXt: only two keys matter. Others are not even inflated. */
static void read_text(struct png *p, const struct chunk *c)
{
    static const char raw[] = "Raw profile type exif", xmp[] = "XML:com.adobe.xmp";
    struct image_bytes t = c->data;
    const uint8_t *nul = memchr(t.p, 0, t.len < 80 ? t.len : 80);
    if (!nul) return;
    size_t key = (size_t)(nul - t.p);
    bool is_raw = key == sizeof raw - 1 && memcmp(t.p, raw, key) == 0, is_xmp = key == sizeof xmp - 1 && memcmp(t.p, xmp, key) == 0;
    if ((!is_raw && !is_xmp) || (is_raw && p->exif.len && !p->exif_text)) return; /* an eXIf chunk wins */
    t.p += key + 1;
    t.len -= key + 1;
    bool compressed = c->type[0] == 'z';
    if (c->type[0] == 'i') { /* flag, method, language NUL, translated key NUL */
        if (t.len < 2) return;
        compressed = t.p[0] != 0;
        t.p += 2;
        t.len -= 2;
        for (int i = 0; i < 2; i++) {
            const uint8_t *end = memchr(t.p, 0, t.len);
            if (!end) return;
            t.len -= (size_t)(end + 1 - t.p);
            t.p = end + 1;
        }
    } else if (compressed) {
        if (!t.len) return;
        t.p++; /* method */
        t.len--;
    }
    if (is_raw) {
        read_raw_profile(p, t, compressed);
    } else {
        free(p->xmp_text);
        p->xmp = take_text(t, compressed, &p->xmp_text);
    }
}

static void read_metadata(struct png *p, const struct chunk *c)
{
    if (strcmp(c->type, "eXIf") == 0) {
        free(p->exif_text);
        p->exif_text = NULL;
        p->exif = c->data;
    } else if (strcmp(c->type, "tEXt") == 0 || strcmp(c->type, "zTXt") == 0 || strcmp(c->type, "iTXt") == 0) {
        read_text(p, c);
    }
}

/* Everything before the pixels. *at is left at the first IDAT. */
static enum image_fault read_head(struct png *p, size_t *at)
{
    bool first = true, have_ihdr = false;
    for (;; first = false) {
        size_t start = *at;
        struct chunk c;
        if (!next_chunk(p, at, &c)) return bad(p, "truncated, or not a chunk, before the pixel data");
        bool ihdr = strcmp(c.type, "IHDR") == 0;
        if (ihdr != first) return bad(p, "IHDR must come first, once");
        if (strcmp(c.type, "IDAT") == 0) {
            *at = start;
            return have_ihdr ? IMAGE_OK : bad(p, "no IHDR");
        }
        if (c.cut || (size_t)(p->in.p + p->in.len - c.data.p) - c.data.len < 4) return bad(p, "truncated before the pixel data");
        if (crc32_of(c.data.p - 4, c.data.len + 4) != image__be32(c.data.p + c.data.len)) return bad(p, "wrong CRC before the pixel data");
        enum image_fault f = IMAGE_OK;
        if (ihdr) {
            f = read_ihdr(p, &c);
            have_ihdr = true;
        } else if (strcmp(c.type, "PLTE") == 0) {
            f = read_palette(p, &c);
        } else if (strcmp(c.type, "tRNS") == 0) {
            p->trns = c.data;
        } else if (strcmp(c.type, "IEND") == 0) {
            f = bad(p, "no pixel data");
        } else if (strcmp(c.type, "fcTL") == 0) {
            /* Animated, and the pixels are its first frame, which has to cover everything. */
            if (c.data.len < 26 || image__be32(c.data.p + 4) != p->width || image__be32(c.data.p + 8) != p->height ||
                image__be32(c.data.p + 12) || image__be32(c.data.p + 16))
                f = bad(p, "the first frame of the animation does not cover the picture");
        } else {
            read_metadata(p, &c);
        }
        if (f) return f;
    }
}

/* Joins the run of IDAT chunks at `at`, then looks through what follows for metadata. */
static enum image_fault read_data(struct png *p, size_t at)
{
    size_t start = at, total = 0;
    struct chunk c;
    size_t after = at;
    while (next_chunk(p, &at, &c) && strcmp(c.type, "IDAT") == 0) {
        total += c.data.len;
        after = at;
    }
    p->zlib = malloc(total + 1);
    if (!p->zlib) return image__fail(p->err, IMAGE_NOMEM, "out of memory");
    for (at = start; at < after;) {
        if (!next_chunk(p, &at, &c)) break;
        memcpy(p->zlib + p->zlib_len, c.data.p, c.data.len);
        p->zlib_len += c.data.len;
    }
    /* "fcTL" starts the next frame of an animation, which is not looked at. */
    for (at = after; next_chunk(p, &at, &c) && strcmp(c.type, "IEND") != 0 && strcmp(c.type, "fcTL") != 0;) {
        if (c.cut) return bad(p, "truncated after the pixel data");
        read_metadata(p, &c);
    }
    return IMAGE_OK;
}

/* The passes of Adam7, or the one of a plain file. */
struct pass {
    uint32_t x0, y0, dx, dy;
};
static const struct pass adam7[7] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
static const struct pass whole[1] = {{0, 0, 1, 1}};

static uint32_t steps(uint32_t size, uint32_t from, uint32_t step)
{
    return size > from ? (size - from + step - 1) / step : 0;
}

static size_t row_bytes(const struct png *p, uint32_t pixels)
{
    return ((size_t)pixels * p->bits + 7) / 8;
}

static uint8_t paeth(int a, int b, int c)
{
    int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
    return (uint8_t)(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

/* Undoes the filter of one row in place. prior: the row above, NULL for the first. bpp: bytes per pixel, at least 1. */
static bool unfilter(uint8_t kind, uint8_t *row, const uint8_t *prior, size_t len, size_t bpp)
{
    size_t i;
    switch (kind) {
    case 0: return true;
    case 1:
        for (i = bpp; i < len; i++) row[i] = (uint8_t)(row[i] + row[i - bpp]);
        return true;
    case 2:
        for (i = 0; prior && i < len; i++) row[i] = (uint8_t)(row[i] + prior[i]);
        return true;
    case 3:
        for (i = 0; i < len; i++) {
            uint32_t left = i >= bpp ? row[i - bpp] : 0, up = prior ? prior[i] : 0;
            row[i] = (uint8_t)(row[i] + (left + up) / 2);
        }
        return true;
    case 4:
        for (i = 0; i < len; i++) {
            int left = i >= bpp ? row[i - bpp] : 0, up = prior ? prior[i] : 0, corner = prior && i >= bpp ? prior[i - bpp] : 0;
            row[i] = (uint8_t)(row[i] + paeth(left, up, corner));
        }
        return true;
    default: return false;
    }
}

/* What tRNS says, over white: in the palette, or as a key. Few bits of gray have a palette by now. */
static void read_transparency(struct png *p)
{
    const uint8_t *t = p->trns.p;
    if (p->color == PALETTE) {
        for (size_t i = 0; i < p->trns.len && i < 256; i++)
            for (size_t c = 0; c < 3; c++) p->palette[3 * i + c] = image__over_white(p->palette[3 * i + c], t[i]);
    } else if (p->color == GRAY && p->depth < 8 && p->trns.len >= 2) {
        /* Pillow holds the key against values that are spread to 0..255 already, so that of 2 and 4 bits only 0 can be met. */
        uint32_t v = image__be16(t), top = (1u << p->depth) - 1;
        v = p->depth == 1 && v ? 255 : v & 255;
        for (uint32_t i = 0; i <= top; i++)
            if (p->palette[3 * i] == v) memset(p->palette + 3 * i, 255, 3);
    } else if (p->color == GRAY || p->color == RGB) {
        /* 16-bit samples, too, are held against the key as what they became, and it is the key's low byte that counts. */
        size_t samples = p->color == RGB ? 3 : 1;
        p->keyed = p->trns.len >= 2 * samples;
        for (size_t c = 0; p->keyed && c < 3; c++) p->key[c] = t[2 * (c < samples ? c : 0) + 1];
    }
}

/* What to_rgb has written of the row, over white. */
static void whiten(const struct png *p, const uint8_t *row, uint32_t pixels, uint8_t *out, uint32_t dx)
{
    size_t stride = (size_t)dx * 3, step = p->bits / 8, alpha = step - p->depth / 8;
    if (p->color == GRAY_ALPHA || p->color == RGB_ALPHA) {
        for (uint32_t i = 0; i < pixels; i++, out += stride, row += step)
            for (int c = 0; c < 3; c++) out[c] = image__over_white(out[c], row[alpha]);
    } else if (p->keyed) {
        for (uint32_t i = 0; i < pixels; i++, out += stride)
            if (memcmp(out, p->key, 3) == 0) memset(out, 255, 3);
    }
}

/* One row of samples to RGB, into every dx-th pixel of out. */
static void to_rgb(const struct png *p, const uint8_t *row, uint32_t pixels, uint8_t *out, uint32_t dx)
{
    size_t stride = (size_t)dx * 3;
    if (p->depth < 8 || p->color == PALETTE) { /* gray of few bits has a palette too */
        uint32_t mask = (1u << p->depth) - 1;
        for (uint32_t i = 0; i < pixels; i++, out += stride) {
            size_t bit = (size_t)i * p->depth;
            uint32_t v = (uint32_t)row[bit / 8] >> (8 - p->depth - bit % 8) & mask;
            memcpy(out, p->palette + 3 * v, 3);
        }
        return;
    }
    if (p->color == GRAY && p->depth == 16) {
        for (uint32_t i = 0; i < pixels; i++, out += stride, row += 2) out[0] = out[1] = out[2] = row[0] ? 255 : row[1];
        return;
    }
    size_t sample = p->depth / 8, step = p->bits / 8;
    if (p->color == RGB && p->depth == 8 && dx == 1) {
        memcpy(out, row, (size_t)pixels * 3);
        return;
    }
    size_t g = p->color == RGB || p->color == RGB_ALPHA ? sample : 0;
    for (uint32_t i = 0; i < pixels; i++, out += stride, row += step) {
        out[0] = row[0];
        out[1] = row[g];
        out[2] = row[2 * g];
    }
}

/* Inflates all rows. The buffer that comes back holds `need` good bytes. */
static enum image_fault inflate_rows(struct png *p, size_t need, uint8_t **raw)
{
    if (need / DEFLATE_RATIO > p->zlib_len) return bad(p, "the pixel data is too short for the size of the picture");
    *raw = malloc(need); /* rows beyond the last one are ignored, as everywhere, and what is wrong with them too */
    if (!*raw) return image__fail(p->err, IMAGE_NOMEM, "out of memory");
    struct image_inflated got = image__inflate((struct image_bytes){.p = p->zlib, .len = p->zlib_len}, *raw, need);
    if (got.no_memory) return image__fail(p->err, IMAGE_NOMEM, "out of memory");
    if (got.bytes < need || got.fault) return bad(p, "the pixel data is truncated or corrupt");
    return IMAGE_OK;
}

static enum image_fault decode_rows(struct png *p, struct image_u8 *out)
{
    const struct pass *passes = p->interlaced ? adam7 : whole;
    int count = p->interlaced ? 7 : 1;
    size_t need = 0; /* at most 64 M pixels of 8 bytes and a filter byte per row: no overflow */
    for (int i = 0; i < count; i++) {
        uint32_t w = steps(p->width, passes[i].x0, passes[i].dx), h = steps(p->height, passes[i].y0, passes[i].dy);
        if (w) need += (row_bytes(p, w) + 1) * h;
    }
    uint8_t *raw = NULL;
    struct image_u8 img = {0};
    enum image_fault f = inflate_rows(p, need, &raw);
    if (!f) f = image__new(p->width, p->height, false, &img, p->err);
    uint8_t *row = raw;
    for (int i = 0; !f && i < count; i++) {
        uint32_t w = steps(p->width, passes[i].x0, passes[i].dx), h = steps(p->height, passes[i].y0, passes[i].dy);
        size_t len = row_bytes(p, w);
        for (uint32_t y = 0; w && y < h; y++, row += len + 1) {
            if (!unfilter(row[0], row + 1, y ? row - len : NULL, len, p->bits < 8 ? 1 : p->bits / 8)) {
                f = bad(p, "unknown row filter");
                break;
            }
            size_t at = (size_t)(passes[i].y0 + y * passes[i].dy) * p->width + passes[i].x0;
            to_rgb(p, row + 1, w, img.rgb + at * 3, passes[i].dx);
            if (p->limits->on_white) whiten(p, row + 1, w, img.rgb + at * 3, passes[i].dx);
        }
    }
    free(raw);
    if (f)
        image_u8_free(&img);
    else
        *out = img;
    return f;
}

enum image_fault image__png(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out, int *orientation,
                            struct err *err)
{
    struct png *p = calloc(1, sizeof *p);
    if (!p) return image__fail(err, IMAGE_NOMEM, "out of memory");
    *p = (struct png){.in = in, .limits = limits, .err = err};
    size_t at = SIGNATURE;
    enum image_fault f = read_head(p, &at);
    if (!f && p->color == GRAY && p->depth < 8) {
        uint32_t top = (1u << p->depth) - 1;
        for (uint32_t v = 0; v <= top; v++) memset(p->palette + 3 * v, (int)(v * 255 / top), 3);
    }
    if (!f && limits->on_white) read_transparency(p);
    if (!f) f = read_data(p, at);
    if (!f) f = decode_rows(p, out);
    if (!f) *orientation = image__orientation(p->exif, p->xmp);
    free(p->zlib);
    free(p->exif_text);
    free(p->xmp_text);
    free(p);
    return f;
}

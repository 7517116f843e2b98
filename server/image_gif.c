/* GIF: the first frame on its canvas, as Pillow shows it: pixels that the frame leaves out have the transparent index's colour, or that of
 * index 0. Own reader: stb_image's fills with the background colour instead, and its GIF code has had memory faults. Any thread. */
#include "server/image_codec.h"

#include <stdlib.h>
#include <string.h>

enum { CODES = 4096, CODE_BITS = 12, HEADER = 13, INTRO_EXTENSION = 0x21, INTRO_IMAGE = 0x2C, INTRO_END = 0x3B, LABEL_CONTROL = 0xF9 };

struct gif {
    struct image_bytes in;
    size_t at;
    struct err *err;
    uint32_t width, height;   /* of the canvas */
    uint32_t x, y, w, h;      /* of the frame */
    bool interlaced;
    int transparent;          /* index, -1 for none */
    uint8_t palette[256 * 3]; /* black beyond its end */
};

static enum image_fault bad(struct gif *g, const char *what)
{
    return image__fail(g->err, IMAGE_BAD_DATA, "not a valid GIF file: %s", what);
}

/* `bits` as in the flags: 2^(bits+1) colours. */
static bool read_palette(struct gif *g, uint32_t bits)
{
    size_t bytes = (size_t)3 << (bits + 1);
    if (g->in.len - g->at < bytes) return false;
    memset(g->palette, 0, sizeof g->palette);
    memcpy(g->palette, g->in.p + g->at, bytes);
    /* Indices that equal their colours make a plain gray picture, which has all 256. */
    bool gray = true;
    for (size_t i = 0; i < bytes; i++) gray = gray && g->palette[i] == i / 3;
    for (size_t i = 0; gray && i < sizeof g->palette; i++) g->palette[i] = (uint8_t)(i / 3);
    g->at += bytes;
    return true;
}

static bool skip_blocks(struct gif *g)
{
    while (g->at < g->in.len) {
        size_t n = g->in.p[g->at++];
        if (!n) return true;
        if (n > g->in.len - g->at) return false;
        g->at += n;
    }
    return false;
}

/* Up to the first frame's data. */
static enum image_fault read_head(struct gif *g)
{
    const uint8_t *h = g->in.p;
    if (g->in.len < HEADER) return bad(g, "truncated");
    g->width = image__le16(h + 6);
    g->height = image__le16(h + 8);
    g->at = HEADER;
    g->transparent = -1;
    for (size_t i = 0; i < sizeof g->palette; i++) g->palette[i] = (uint8_t)(i / 3);
    if ((h[10] & 0x80) && !read_palette(g, h[10] & 7)) return bad(g, "truncated palette");
    while (g->at < g->in.len) {
        uint8_t intro = g->in.p[g->at++];
        size_t left = g->in.len - g->at;
        const uint8_t *b = g->in.p + g->at;
        if (intro == INTRO_END) break;
        if (intro == INTRO_EXTENSION) {
            if (left >= 6 && b[0] == LABEL_CONTROL && b[1] >= 4 && (b[2] & 1)) g->transparent = b[5];
            g->at++;
            if (left < 1 || !skip_blocks(g)) return bad(g, "truncated extension");
        } else if (intro == INTRO_IMAGE) {
            if (left < 9) return bad(g, "truncated frame");
            g->x = image__le16(b);
            g->y = image__le16(b + 2);
            g->w = image__le16(b + 4);
            g->h = image__le16(b + 6);
            g->interlaced = b[8] & 0x40;
            g->at += 9;
            if ((b[8] & 0x80) && !read_palette(g, b[8] & 7)) return bad(g, "truncated palette");
            if (g->width < g->x + g->w) g->width = g->x + g->w; /* a frame that sticks out makes the canvas larger */
            if (g->height < g->y + g->h) g->height = g->y + g->h;
            return g->w && g->h ? IMAGE_OK : bad(g, "an empty frame");
        }
    }
    return bad(g, "there is no frame");
}

/* Codes come as bits, low first, from blocks of up to 255 bytes. */
struct bits {
    struct gif *g;
    size_t block; /* bytes left in the block */
    uint32_t value, count;
};

static int read_code(struct bits *b, uint32_t size)
{
    struct gif *g = b->g;
    while (b->count < size) {
        if (!b->block) {
            if (g->at >= g->in.len || !g->in.p[g->at]) return -1;
            b->block = g->in.p[g->at++];
            if (b->block > g->in.len - g->at) return -1;
        }
        b->value |= (uint32_t)g->in.p[g->at++] << b->count;
        b->count += 8;
        b->block--;
    }
    int code = (int)(b->value & ((1u << size) - 1));
    b->value >>= size;
    b->count -= size;
    return code;
}

/* Where the next pixel goes. */
struct cursor {
    uint32_t x, y, step, pass;
    bool full;
};

static void new_line(struct cursor *c, const struct gif *g)
{
    static const uint32_t first[5] = {0, 4, 2, 1, 0}, step[5] = {8, 8, 4, 2, 0};
    c->x = 0;
    c->y += c->step;
    while (c->y >= g->h && !c->full) {
        if (!g->interlaced || ++c->pass > 3) {
            c->full = true;
        } else {
            c->y = first[c->pass];
            c->step = step[c->pass];
        }
    }
}

static void put(struct cursor *c, const struct gif *g, struct image_u8 *img, uint8_t index)
{
    if (c->full) return;
    memcpy(img->rgb + ((size_t)(g->y + c->y) * img->width + g->x + c->x) * 3, g->palette + 3 * (size_t)index, 3);
    if (++c->x >= g->w) new_line(c, g);
}

struct lzw {
    uint16_t prefix[CODES];
    uint8_t suffix[CODES];
    uint8_t stack[CODES + 1];
};

/* Draws the frame. False when the data ends or breaks before it is full. */
static bool decode_frame(struct gif *g, struct lzw *t, struct image_u8 *img)
{
    if (g->at >= g->in.len || g->in.p[g->at] > CODE_BITS) return false;
    const uint32_t start = g->in.p[g->at++];
    const int clear = 1 << start, end = clear + 1;
    struct bits bits = {.g = g};
    struct cursor c = {.step = g->interlaced ? 8 : 1};
    uint32_t size = start + 1;
    int next = clear + 2, last = -1; /* last code; -1 right after a clear */
    uint8_t last_first = 0;          /* first byte of its string */
    while (!c.full) {
        int code = read_code(&bits, size);
        if (code < 0 || code == end) return false;
        if (code == clear) {
            size = start + 1;
            next = clear + 2;
            last = -1;
            continue;
        }
        if (last < 0) {
            if (code > clear) return false;
            last = code;
            last_first = (uint8_t)code;
            put(&c, g, img, last_first);
            continue;
        }
        if (code > next) return false;
        uint32_t depth = 0;
        int walk = code;
        if (walk == next) { /* the string that is being defined: the last one and its own first byte */
            t->stack[depth++] = last_first;
            walk = last;
        }
        while (walk >= clear) {
            if (walk >= CODES || depth >= CODES) return false;
            t->stack[depth++] = t->suffix[walk];
            walk = t->prefix[walk];
        }
        last_first = (uint8_t)walk;
        if (next < CODES) {
            t->suffix[next] = last_first;
            t->prefix[next] = (uint16_t)last;
            if (next == (1 << size) - 1 && size < CODE_BITS) size++;
            next++;
        }
        last = code;
        put(&c, g, img, last_first);
        while (depth) put(&c, g, img, t->stack[--depth]);
    }
    return true;
}

enum image_fault image__gif(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out, int *orientation,
                            struct err *err)
{
    (void)orientation; /* GIF has no such thing */
    struct gif g = {.in = in, .err = err};
    struct image_u8 img = {0};
    enum image_fault f = read_head(&g);
    if (!f) f = image__check_size(g.width, g.height, limits, err);
    if (!f) f = image__new(g.width, g.height, false, &img, err);
    if (f) return f;
    const uint8_t *fill = g.palette + 3 * (size_t)(g.transparent >= 0 ? g.transparent : 0);
    if (g.w != g.width || g.h != g.height)
        for (size_t i = 0; i < (size_t)g.width * g.height; i++) memcpy(img.rgb + 3 * i, fill, 3);
    struct lzw *t = calloc(1, sizeof *t);
    if (!t)
        f = image__fail(err, IMAGE_NOMEM, "out of memory");
    else if (!decode_frame(&g, t, &img))
        f = bad(&g, "the first frame is truncated or corrupt");
    free(t);
    if (f)
        image_u8_free(&img);
    else
        *out = img;
    return f;
}

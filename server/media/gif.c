/* GIF: the frames of an animation, and the first frame on its canvas, as Pillow shows it: pixels that the frame leaves out have the transparent index's colour, or that of
 * index 0. Own reader: common ones fill with the background colour instead. Any thread. */
#include "server/media/codec.h"

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
    int skip;                 /* index that leaves the canvas as it is, -1 for none */
    uint32_t delay, disposal; /* 1/100 s; what becomes of the frame: 2 = back to the background, 3 = to what was before */
    bool ended;               /* there is no further frame */
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

static enum image_fault read_screen(struct gif *g)
{
    const uint8_t *h = g->in.p;
    if (g->in.len < HEADER) return bad(g, "truncated");
    g->width = image__le16(h + 6);
    g->height = image__le16(h + 8);
    g->at = HEADER;
    g->skip = -1;
    for (size_t i = 0; i < sizeof g->palette; i++) g->palette[i] = (uint8_t)(i / 3);
    return (h[10] & 0x80) && !read_palette(g, h[10] & 7) ? bad(g, "truncated palette") : IMAGE_OK;
}

/* Up to the next frame's data, or to the end. */
static enum image_fault read_frame(struct gif *g)
{
    g->transparent = -1;
    g->delay = g->disposal = 0;
    while (g->at < g->in.len) {
        uint8_t intro = g->in.p[g->at++];
        size_t left = g->in.len - g->at;
        const uint8_t *b = g->in.p + g->at;
        if (intro == INTRO_END) break;
        if (intro == INTRO_EXTENSION) {
            if (left >= 6 && b[0] == LABEL_CONTROL && b[1] >= 4) {
                if (b[2] & 1) g->transparent = b[5];
                g->disposal = b[2] >> 2 & 7;
                g->delay = image__le16(b + 3);
            }
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
            return g->w && g->h ? IMAGE_OK : bad(g, "an empty frame");
        }
    }
    g->ended = true;
    return IMAGE_OK;
}

/* Up to the first frame's data. */
static enum image_fault read_head(struct gif *g)
{
    enum image_fault f = read_screen(g);
    if (!f) f = read_frame(g);
    if (f) return f;
    if (g->ended) return bad(g, "there is no frame");
    if (g->width < g->x + g->w) g->width = g->x + g->w; /* a frame that sticks out makes the canvas larger */
    if (g->height < g->y + g->h) g->height = g->y + g->h;
    return IMAGE_OK;
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
    if (index != g->skip) memcpy(img->rgb + ((size_t)(g->y + c->y) * img->width + g->x + c->x) * 3, g->palette + 3 * (size_t)index, 3);
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

/* The canvas before the first frame: whatever it leaves out. */
static void fill_canvas(const struct gif *g, struct image_u8 *img)
{
    const uint8_t *fill = g->palette + 3 * (size_t)(g->transparent >= 0 ? g->transparent : 0);
    for (size_t i = 0; i < (size_t)img->width * img->height; i++) memcpy(img->rgb + 3 * i, fill, 3);
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
    if (limits->on_white && g.transparent >= 0) memset(g.palette + 3 * (size_t)g.transparent, 255, 3);
    if (g.w != g.width || g.h != g.height) fill_canvas(&g, &img);
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

/* ---- animations ---- */

struct image__gif_anim {
    struct gif g;
    struct lzw lzw;
    struct image_u8 canvas, before; /* before: for disposal 3, allocated when first needed */
    uint8_t global[256 * 3];
    int background, transparent; /* indices: of the file, and of the first frame (-1 for none) */
    bool drawn;                  /* the first frame was */
};

enum image_fault image__gif_look(struct image_bytes in, uint32_t frames_max, const struct image_limits *limits, struct image__gif_info *info,
                                 struct err *err)
{
    struct gif g = {.in = in, .err = err};
    struct image__gif_info i = {0};
    enum image_fault f = read_head(&g);
    if (!f) f = image__check_size(g.width, g.height, limits, err);
    i.width = g.width;
    i.height = g.height;
    while (!f && !g.ended) {
        if (i.frames == frames_max) return image__fail(err, IMAGE_BAD_SHAPE, "the video has more than %u frames", frames_max);
        if (g.x + g.w > i.width || g.y + g.h > i.height) return bad(&g, "a frame does not fit the canvas");
        i.frames++;
        i.milliseconds += g.delay ? g.delay * 10 : 100;
        g.at++; /* the size of the codes */
        if (g.at > in.len || !skip_blocks(&g)) return bad(&g, "a frame is truncated");
        f = read_frame(&g);
    }
    if (!f) *info = i;
    return f;
}

enum image_fault image__gif_open(struct image_bytes in, const struct image__gif_info *info, struct image__gif_anim **out, struct err *err)
{
    struct image__gif_anim *a = calloc(1, sizeof *a);
    if (!a) return image__fail(err, IMAGE_NOMEM, "out of memory");
    a->g = (struct gif){.in = in, .err = err};
    enum image_fault f = read_screen(&a->g);
    memcpy(a->global, a->g.palette, sizeof a->global);
    a->background = f ? 0 : in.p[11];
    if (!f) f = image__new(info->width, info->height, false, &a->canvas, err);
    if (f)
        image__gif_close(a);
    else
        *out = a;
    return f;
}

void image__gif_close(struct image__gif_anim *a)
{
    if (!a) return;
    image_u8_free(&a->canvas);
    image_u8_free(&a->before);
    free(a);
}

/* What the last frame leaves behind it. Its own palette is still there. As Pillow has it, a place that is cleared shows the colour of the
 * transparent index, if there is one. */
static void dispose(struct image__gif_anim *a)
{
    const struct gif *g = &a->g;
    size_t stride = (size_t)a->canvas.width * 3;
    int index = a->transparent >= 0 ? a->transparent : g->transparent >= 0 ? g->transparent : a->background;
    if (g->disposal == 3) memcpy(a->canvas.rgb, a->before.rgb, stride * a->canvas.height);
    if (g->disposal != 2) return;
    for (uint32_t y = g->y; y < g->y + g->h; y++)
        for (uint32_t x = g->x; x < g->x + g->w; x++) memcpy(a->canvas.rgb + y * stride + (size_t)x * 3, g->palette + 3 * (size_t)index, 3);
}

enum image_fault image__gif_next(struct image__gif_anim *a, struct image_u8 *canvas, struct err *err)
{
    struct gif *g = &a->g;
    g->err = err;
    if (a->drawn) dispose(a);
    memcpy(g->palette, a->global, sizeof g->palette);
    enum image_fault f = read_frame(g);
    if (f) return f;
    if (g->ended || g->x + g->w > a->canvas.width || g->y + g->h > a->canvas.height) return bad(g, "a frame does not fit the canvas");
    if (!a->drawn) {
        fill_canvas(g, &a->canvas);
        a->transparent = g->transparent;
        if (g->disposal == 3 && g->transparent < 0) g->disposal = 1; /* nothing was there before it: it stays */
    }
    g->skip = a->drawn ? g->transparent : -1;
    if (g->disposal == 3) {
        if (!a->before.rgb && (f = image__new(a->canvas.width, a->canvas.height, false, &a->before, err)) != IMAGE_OK) return f;
        memcpy(a->before.rgb, a->canvas.rgb, image_u8_bytes(&a->canvas));
    }
    size_t data = g->at;
    a->drawn = true;
    if (!decode_frame(g, &a->lzw, &a->canvas)) return bad(g, "a frame is truncated or corrupt");
    g->at = data + 1;
    if (!skip_blocks(g)) return bad(g, "a frame is truncated");
    *canvas = a->canvas;
    return IMAGE_OK;
}

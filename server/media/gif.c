/* GIF by giflib: the frames of an animation, and the first frame on its canvas, as in Pillow: pixels outside
 * the frame have the transparent index's color, or that of index 0. Any thread. */
#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

enum { HEADER = 13 };

struct gif {
    struct image_bytes in;
    size_t at; /* read so far */
    struct err *err;
    GifFileType *file;
    uint32_t width, height;   /* of the canvas */
    uint32_t x, y, w, h;      /* of the frame */
    int transparent;          /* index, -1 for none */
    int skip;                 /* index that leaves the canvas as it is, -1 for none */
    uint32_t delay;           /* 1/100 s */
    uint32_t disposal;        /* of the frame after display: 2 = background, 3 = restore previous */
    bool ended;               /* no further frames */
    uint8_t palette[256 * 3]; /* of the frame; black beyond its end */
    uint8_t *row;             /* indices of one row of the frame, owned */
};

static enum image_error bad(struct gif *g, const char *what)
{
    return image__fail(g->err, IMAGE_BAD_DATA, "not a valid GIF file: %s", what);
}

/* Reports giflib's error. */
static enum image_error refused(struct gif *g, const char *what)
{
    if (g->file->Error == D_GIF_ERR_NOT_ENOUGH_MEM) return image__nomem(g->err);
    return bad(g, what);
}

static int feed(GifFileType *file, GifByteType *to, int size)
{
    struct gif *g = file->UserData;
    size_t left = g->in.len - g->at, n = (size_t)size < left ? (size_t)size : left;
    memcpy(to, g->in.p + g->at, n);
    g->at += n;
    return (int)n;
}

static void close_file(struct gif *g)
{
    if (g->file) DGifCloseFile(g->file, NULL);
    free(g->row);
    g->file = NULL;
    g->row = NULL;
}

/* No colors: 256 grays. So do indices that equal their colors: a plain gray image has all 256. */
static void set_palette(struct gif *g, const ColorMapObject *map)
{
    bool gray = true;
    int n = map ? map->ColorCount : 0;
    for (int i = 0; i < n; i++) {
        const GifColorType *c = map->Colors + i;
        gray = gray && c->Red == i && c->Green == i && c->Blue == i;
    }
    for (int i = 0; i < 256; i++) {
        uint8_t *to = g->palette + 3 * (size_t)i;
        memset(to, gray ? i : 0, 3);
        if (i < n) memcpy(to, (uint8_t[]){map->Colors[i].Red, map->Colors[i].Green, map->Colors[i].Blue}, 3);
    }
}

/* After this call, g->file must be closed (close_file). */
static enum image_error read_screen(struct gif *g, struct image_bytes in, struct err *err)
{
    *g = (struct gif){.in = in, .err = err, .skip = -1};
    if (in.len < HEADER) return bad(g, "truncated");
    uint32_t flags = in.p[10];
    if ((flags & 0x80) && in.len - HEADER < (size_t)3 << ((flags & 7) + 1))
        return bad(g, "truncated palette");
    g->file = DGifOpen(g, feed, NULL);
    if (!g->file) return image__nomem(err); /* other causes are checked above */
    g->width = (uint32_t)g->file->SWidth;
    g->height = (uint32_t)g->file->SHeight;
    return IMAGE_OK;
}

static enum image_error read_extension(struct gif *g)
{
    int label, ok;
    GifByteType *block; /* its length, then its bytes */
    GraphicsControlBlock control;
    ok = DGifGetExtension(g->file, &label, &block);
    if (ok == GIF_OK && block && label == GRAPHICS_EXT_FUNC_CODE &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) {
        g->transparent = control.TransparentColor;
        g->disposal = (uint32_t)control.DisposalMode;
        g->delay = (uint32_t)control.DelayTime;
    }
    while (ok == GIF_OK && block) ok = DGifGetExtensionNext(g->file, &block);
    return ok == GIF_OK ? IMAGE_OK : refused(g, "truncated extension");
}

/* Up to the next frame's data, or to the end. */
static enum image_error read_frame(struct gif *g)
{
    g->transparent = -1;
    g->delay = g->disposal = 0;
    while (g->at < g->in.len) {
        GifRecordType record;
        enum image_error f = IMAGE_OK;
        if (!memchr(",!;", g->in.p[g->at], 3)) { /* stray bytes: Pillow itself writes some */
            g->at++;
            continue;
        }
        if (DGifGetRecordType(g->file, &record) == GIF_ERROR) return refused(g, "truncated");
        if (record == TERMINATE_RECORD_TYPE) break;
        if (record == EXTENSION_RECORD_TYPE) f = read_extension(g);
        if (f) return f;
        if (record != IMAGE_DESC_RECORD_TYPE) continue;
        if (DGifGetImageDesc(g->file) == GIF_ERROR) return refused(g, "truncated frame");
        const GifImageDesc *d = &g->file->Image;
        g->x = (uint32_t)d->Left;
        g->y = (uint32_t)d->Top;
        g->w = (uint32_t)d->Width;
        g->h = (uint32_t)d->Height;
        set_palette(g, d->ColorMap ? d->ColorMap : g->file->SColorMap);
        return g->w && g->h ? IMAGE_OK : bad(g, "an empty frame");
    }
    g->ended = true;
    return IMAGE_OK;
}

/* Up to the first frame's data. */
static enum image_error read_head(struct gif *g, struct image_bytes in, struct err *err)
{
    enum image_error f = read_screen(g, in, err);
    if (!f) f = read_frame(g);
    if (f) return f;
    if (g->ended) return bad(g, "there is no frame");
    if (g->width < g->x + g->w) g->width = g->x + g->w; /* an overhanging frame enlarges the canvas */
    if (g->height < g->y + g->h) g->height = g->y + g->h;
    return IMAGE_OK;
}

static enum image_error new_row(struct gif *g, uint32_t width)
{
    g->row = malloc(width);
    return g->row ? IMAGE_OK : image__nomem(g->err);
}

static enum image_error draw_frame(struct gif *g, struct image_u8 *img)
{
    static const uint32_t start[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    bool interlaced = g->file->Image.Interlace;
    for (int pass = 0; pass < (interlaced ? 4 : 1); pass++) {
        for (uint32_t y = start[pass]; y < g->h; y += interlaced ? step[pass] : 1) {
            uint8_t *to = img->rgb + ((size_t)(g->y + y) * img->width + g->x) * 3;
            if (DGifGetLine(g->file, g->row, (int)g->w) == GIF_ERROR)
                return refused(g, "a frame is truncated or corrupt");
            for (size_t x = 0; x < g->w; x++)
                if (g->row[x] != g->skip) memcpy(to + 3 * x, g->palette + 3 * (size_t)g->row[x], 3);
        }
    }
    return IMAGE_OK;
}

/* The canvas before the first frame: the pixels outside it. */
static void fill_canvas(const struct gif *g, struct image_u8 *img)
{
    const uint8_t *fill = g->palette + 3 * (size_t)(g->transparent >= 0 ? g->transparent : 0);
    for (size_t i = 0; i < (size_t)img->width * img->height; i++) memcpy(img->rgb + 3 * i, fill, 3);
}

enum image_error image__gif(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out,
                            int *orientation, struct err *err)
{
    (void)orientation; /* GIF has none */
    struct gif g;
    struct image_u8 img = {0};
    enum image_error f = read_head(&g, in, err);
    if (!f) f = image__check_size(g.width, g.height, limits, err);
    if (!f) f = new_row(&g, g.w);
    if (!f) f = image__new(g.width, g.height, false, &img, err);
    if (!f) {
        if (limits->on_white && g.transparent >= 0) memset(g.palette + 3 * (size_t)g.transparent, 255, 3);
        fill_canvas(&g, &img);
        f = draw_frame(&g, &img);
    }
    close_file(&g);
    if (f) image_u8_free(&img);
    else *out = img;
    return f;
}

/* ---- animations ---- */

struct image__gif_anim {
    struct gif g;
    struct image_u8 canvas, before; /* before: for disposal 3, allocated when first needed */
    int transparent;                /* index of the first frame, -1 for none */
    bool drawn;                     /* the first frame was */
};

static enum image_error skip_frame(struct gif *g)
{
    int size;
    GifByteType *block;
    int ok = DGifGetCode(g->file, &size, &block);
    while (ok == GIF_OK && block) ok = DGifGetCodeNext(g->file, &block);
    return ok == GIF_OK ? IMAGE_OK : refused(g, "a frame is truncated");
}

enum image_error image__gif_look(struct image_bytes in, uint32_t frames_max,
                                 const struct image_limits *limits, struct image__gif_info *info,
                                 struct err *err)
{
    struct gif g;
    enum image_error f = read_head(&g, in, err);
    if (!f) f = image__check_size(g.width, g.height, limits, err);
    struct image__gif_info i = {.width = g.width, .height = g.height};
    while (!f && !g.ended) {
        if (i.frames == frames_max)
            f = image__fail(err, IMAGE_BAD_SHAPE, "the video has more than %u frames", frames_max);
        else if (g.x + g.w > i.width || g.y + g.h > i.height) f = bad(&g, "a frame does not fit the canvas");
        i.frames++;
        i.milliseconds += g.delay ? g.delay * 10 : 100;
        if (!f) f = skip_frame(&g);
        if (!f) f = read_frame(&g);
    }
    close_file(&g);
    if (!f) *info = i;
    return f;
}

enum image_error image__gif_open(struct image_bytes in, const struct image__gif_info *info,
                                 struct image__gif_anim **out, struct err *err)
{
    struct image__gif_anim *a = calloc(1, sizeof *a);
    if (!a) return image__nomem(err);
    enum image_error f = read_screen(&a->g, in, err);
    if (!f) f = new_row(&a->g, info->width);
    if (!f) f = image__new(info->width, info->height, false, &a->canvas, err);
    if (f) image__gif_close(a);
    else *out = a;
    return f;
}

void image__gif_close(struct image__gif_anim *a)
{
    if (!a) return;
    close_file(&a->g);
    image_u8_free(&a->canvas);
    image_u8_free(&a->before);
    free(a);
}

/* Disposes of the last frame, whose palette is still loaded. As in Pillow, a cleared area shows the color of
 * the transparent index, if there is one. */
static void dispose(struct image__gif_anim *a)
{
    const struct gif *g = &a->g;
    size_t stride = (size_t)a->canvas.width * 3;
    int index = a->transparent >= 0   ? a->transparent
                : g->transparent >= 0 ? g->transparent
                                      : g->file->SBackGroundColor;
    if (g->disposal == 3) memcpy(a->canvas.rgb, a->before.rgb, stride * a->canvas.height);
    if (g->disposal != 2) return;
    for (uint32_t y = g->y; y < g->y + g->h; y++)
        for (uint32_t x = g->x; x < g->x + g->w; x++)
            memcpy(a->canvas.rgb + y * stride + (size_t)x * 3, g->palette + 3 * (size_t)index, 3);
}

enum image_error image__gif_next(struct image__gif_anim *a, struct image_u8 *canvas, struct err *err)
{
    struct gif *g = &a->g;
    g->err = err;
    if (a->drawn) dispose(a);
    enum image_error f = read_frame(g);
    if (f) return f;
    if (g->ended || g->x + g->w > a->canvas.width || g->y + g->h > a->canvas.height)
        return bad(g, "a frame does not fit the canvas");
    if (!a->drawn) {
        fill_canvas(g, &a->canvas);
        a->transparent = g->transparent;
        if (g->disposal == 3 && g->transparent < 0) g->disposal = 1; /* no previous canvas: keep it */
    }
    g->skip = a->drawn ? g->transparent : -1;
    if (g->disposal == 3) {
        if (!a->before.rgb) f = image__new(a->canvas.width, a->canvas.height, false, &a->before, err);
        if (f) return f;
        memcpy(a->before.rgb, a->canvas.rgb, image_u8_bytes(&a->canvas));
    }
    a->drawn = true;
    f = draw_frame(g, &a->canvas);
    if (!f) *canvas = a->canvas;
    return f;
}

/* Images that are cut into square tiles. Pure; any thread. Numbers that the reference rounds are IEEE doubles
 * in its order of operations: transformers 5.23, the image processor classes named below. */
#include "engine/prompt/image_prep_internal.h"

#include <math.h>
#include <stdlib.h>

enum { LONGEST_MAX = 4096 };

struct size {
    uint32_t width, height;
};

/* Idefics3ImageProcessor: the longer side becomes `side`, the other one an even number of the same shape. */
static struct size longer_side(uint32_t width, uint32_t height, uint32_t side)
{
    double shape = (double)width / (double)height;
    uint32_t other = (uint32_t)(width >= height ? (double)side / shape : (double)side * shape);
    if (other % 2) other++;
    if (!other) other = 1;
    if (side > LONGEST_MAX) {
        shape = width >= height ? (double)side / (double)other : (double)other / (double)side;
        other = (uint32_t)(width >= height ? LONGEST_MAX / shape : LONGEST_MAX * shape);
        side = LONGEST_MAX;
        if (!other) other = 1;
    }
    return width >= height ? (struct size){side, other} : (struct size){other, side};
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* The same class: tiles that hold the longer side, then the other one in proportion. */
static struct size grid_filled(uint32_t width, uint32_t height, uint32_t side)
{
    double shape = (double)width / (double)height;
    bool wide = width >= height;
    uint32_t longer = ceil_div(wide ? width : height, side);
    double pixels = (double)(longer * side);
    uint32_t other = ceil_div((uint32_t)(wide ? pixels / shape : pixels * shape), side);
    if (!other) other = 1;
    return wide ? (struct size){longer, other} : (struct size){other, longer};
}

/* GotOcr2ImageProcessor, Lfm2VlImageProcessor: of all grids of min to max tiles the one of the closest shape;
 * of equally close ones the later, unless the image has less than half its pixels. */
static struct size grid_closest(const struct image_tiles *t, uint32_t width, uint32_t height)
{
    double shape = (double)width / (double)height, area = (double)width * (double)height, best = INFINITY;
    struct size found = {1, 1};
    for (uint32_t n = t->min; n <= t->max; n++)
        for (uint32_t w = 1; w <= n; w++) {
            uint32_t h = n / w;
            if (n % w || (t->axis_max && (w > t->axis_max || h > t->axis_max))) continue;
            double off = fabs(shape - (double)w / (double)h);
            if (off < best || (off == best && area > 0.5 * t->side * t->side * w * h))
                found = (struct size){w, h};
            if (off < best) best = off;
        }
    return found;
}

/* Whether an image has more pixels than are encoded as one, with some tolerance. */
static bool is_large(const struct image_config *cfg, uint32_t width, uint32_t height)
{
    double unit = (double)(cfg->patch * cfg->merge), least = (double)cfg->patch;
    if (!(cfg->tiles.tolerance > 0)) return true;
    double h = fmax(least, rint(height / unit) * unit), w = fmax(least, rint(width / unit) * unit);
    return h * w > (double)cfg->area_max * cfg->tiles.tolerance;
}

static enum status cut_all(const struct image_config *cfg, const struct image_u8 *src, struct size grid,
                           struct image_prepared *out, struct err *err)
{
    const struct image_tiles *t = &cfg->tiles;
    uint32_t side = t->side;
    struct image_u8 all = {0};
    enum status st =
        image_resize(src, grid.width * side, grid.height * side, cfg->filter, cfg->mode, &all, err);
    for (uint32_t i = 0; !st && i < grid.width * grid.height; i++) {
        st = image__cut(&all, i % grid.width * side, i / grid.width * side, side, side, &out->images[i], err);
        if (!st) out->count++;
    }
    if (!st && t->whole)
        st = image__to_target(cfg, t->rule == TILES_FILLED ? &all : src, &out->images[out->count], err);
    if (!st && t->whole) out->count++;
    image_u8_free(&all);
    return st;
}

enum status image__tile(const struct image_config *config, const struct image_u8 *src,
                        struct image_prepared *out, struct err *err)
{
    struct image_config copy = *config, *cfg = &copy; /* tiles are resized even with do_resize off */
    const struct image_tiles *t = &cfg->tiles;
    copy.do_resize = true;
    struct image_u8 first = {0};
    enum status st = ST_OK;
    struct size to = {src->width, src->height}, grid = {1, 1};
    if (t->longest) to = longer_side(src->width, src->height, t->longest);
    if (to.width != src->width || to.height != src->height) {
        st = image_resize(src, to.width, to.height, cfg->filter, cfg->mode, &first, err);
        src = &first;
    }
    if (t->rule == TILES_FILLED && t->max > 1) grid = grid_filled(to.width, to.height, t->side);
    else if (t->rule == TILES_CLOSEST && t->max > 1 && is_large(cfg, to.width, to.height))
        grid = grid_closest(t, to.width, to.height);
    out->columns = grid.width;
    out->rows = grid.height;
    uint64_t count = (uint64_t)grid.width * grid.height;
    if (!st && count > IMAGE_TILES_MAX)
        st = err_set(err, ST_INVALID, "an image of %u x %u pixels takes %llu tiles; at most %u are taken",
                     to.width, to.height, (unsigned long long)count, IMAGE_TILES_MAX);
    if (!st && !(out->images = calloc(count + 1, sizeof *out->images)))
        st = err_nomem(err, "an image's tiles");
    if (!st && count > 1) {
        st = cut_all(cfg, src, grid, out, err);
    } else if (!st) {
        st = image__to_target(cfg, src, &out->images[0], err);
        out->count = 1;
    }
    image_u8_free(&first);
    return st;
}

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
static struct size grid_within(const struct image_tiles *t, uint32_t max, uint32_t width, uint32_t height)
{
    double shape = (double)width / (double)height, area = (double)width * (double)height, best = INFINITY;
    struct size found = {1, 1};
    for (uint32_t n = t->min; n <= max; n++)
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

/* get_tile_budget of GraniteDoclingImageProcessor: some pages may have more tiles. */
static struct size grid_closest(const struct image_tiles *t, uint32_t width, uint32_t height)
{
    double shape = (double)width / (double)height;
    struct size found = grid_within(t, t->max, width, height);
    bool dense = t->dense_max && !(t->dense_above > 0 && shape <= t->dense_above) &&
                 !(t->dense_most > 0 && shape > t->dense_most) &&
                 !(t->dense_scale > 0 && (double)(found.width * t->side) / width >= t->dense_scale);
    return dense ? grid_within(t, t->dense_max, width, height) : found;
}

/* Whether an image has more pixels than are encoded as one, with some tolerance. */
static bool is_large(const struct image_config *cfg, uint32_t width, uint32_t height)
{
    double unit = (double)(cfg->patch * cfg->merge), least = (double)cfg->patch;
    if (!(cfg->tiles.tolerance > 0)) return true;
    double h = fmax(least, rint(height / unit) * unit), w = fmax(least, rint(width / unit) * unit);
    return h * w > (double)cfg->area_max * cfg->tiles.tolerance;
}

/* ---- MiniCPMV4_6ImageProcessor ---- */

/* Sides of about `side` x `side` pixels in the shape of w x h, to the nearest multiples. */
static struct size sliced_size(const struct image_config *cfg, double w, double h, bool grow)
{
    double side = (double)cfg->tiles.side, unit = (double)(cfg->patch * cfg->merge);
    if (grow || h * w > side * side) {
        double shape = w / h;
        h = trunc(side / sqrt(shape));
        w = trunc(h * shape);
    }
    return (struct size){(uint32_t)fmax(rint(w / unit) * unit, unit),
                         (uint32_t)fmax(rint(h / unit) * unit, unit)};
}

static struct size grid_sliced(const struct image_tiles *t, uint32_t width, uint32_t height)
{
    double shape = log((double)width / (double)height), best = INFINITY,
           ratio = ceil((double)width * (double)height / ((double)t->side * t->side));
    uint32_t about = ratio < (double)t->max ? (uint32_t)ratio : t->max;
    struct size found = {1, 1};
    for (uint32_t n = about - 1; about > 1 && n <= about + 1; n++)
        for (uint32_t rows = 1; n > 1 && n <= t->max && rows <= n; rows++) {
            if (n % rows) continue;
            double off = fabs(shape - log((double)(n / rows) / (double)rows));
            if (off < best || (off == best && rows > found.height)) found = (struct size){n / rows, rows};
            if (off < best) best = off;
        }
    return found;
}

static enum status slice(const struct image_config *cfg, const struct image_u8 *src, struct size grid,
                         struct image_prepared *out, struct err *err)
{
    bool cut = grid.width * grid.height > 1;
    double wide = fmax(rint((double)src->width / grid.width) * grid.width, grid.width),
           high = fmax(rint((double)src->height / grid.height) * grid.height, grid.height);
    struct size whole = sliced_size(cfg, (double)src->width, (double)src->height, !cut),
                each = sliced_size(cfg, wide / grid.width, high / grid.height, true);
    struct image_u8 all = {0};
    enum status st =
        image_resize(src, whole.width, whole.height, cfg->filter, cfg->mode, &out->images[0], err);
    if (!st) out->count = 1;
    if (!st && cut)
        st = image_resize(src, each.width * grid.width, each.height * grid.height, cfg->filter, cfg->mode,
                          &all, err);
    for (uint32_t i = 0; !st && cut && i < grid.width * grid.height; i++) {
        st = image__cut(&all, i % grid.width * each.width, i / grid.width * each.height, each.width,
                        each.height, &out->images[out->count], err);
        if (!st) out->count++;
    }
    image_u8_free(&all);
    return st;
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
    else if (t->rule == TILES_SLICED) grid = grid_sliced(t, to.width, to.height);
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
    if (!st && t->rule == TILES_SLICED) {
        st = slice(cfg, src, grid, out, err);
    } else if (!st && count > 1) {
        st = cut_all(cfg, src, grid, out, err);
    } else if (!st) {
        st = image__to_target(cfg, src, &out->images[0], err);
        out->count = 1;
    }
    image_u8_free(&first);
    return st;
}

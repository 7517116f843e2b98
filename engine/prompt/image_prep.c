/* See image_prep.h. */
#include "engine/prompt/image_prep_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool image_budget(const struct image_config *cfg, uint64_t tokens, uint64_t *area)
{
    for (const uint32_t *b = cfg->budgets; b && *b; b++)
        if (*b == tokens) {
            *area = tokens * cfg->patch * cfg->merge * cfg->patch * cfg->merge;
            return true;
        }
    return false;
}

void image_prepared_free(struct image_prepared *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->count; i++) image_u8_free(&p->images[i]);
    free(p->images);
    *p = (struct image_prepared){0};
}

/* How an image is cut: columns * rows crops of width x height pixels each, the last ones smaller. No crops:
 * columns = 0. */
struct crops {
    uint32_t columns, rows, width, height;
};

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static struct crops plan_crops(const struct image_config *cfg, uint32_t width, uint32_t height)
{
    const struct crops none = {0};
    if (!cfg->pan_and_scan) return none;
    bool wide = width >= height;
    uint32_t longer = wide ? width : height, shorter = wide ? height : width;
    double ratio = (double)longer / (double)shorter;
    if (ratio < cfg->pan_min_ratio) return none;
    uint32_t n = (uint32_t)floor(ratio + 0.5), fit = longer / cfg->pan_min_crop;
    if (n > fit) n = fit;
    if (n < 2) n = 2;
    if (n > cfg->pan_max_crops) n = cfg->pan_max_crops;
    struct crops c = {.columns = wide ? n : 1, .rows = wide ? 1 : n};
    c.width = ceil_div(width, c.columns);
    c.height = ceil_div(height, c.rows);
    /* Rounding up can leave the last crops empty (5 pixels in 4 crops of 2). */
    c.columns = ceil_div(width, c.width);
    c.rows = ceil_div(height, c.height);
    return (c.width < c.height ? c.width : c.height) < cfg->pan_min_crop ? none : c;
}

enum status image__cut(const struct image_u8 *src, uint32_t x, uint32_t y, uint32_t width, uint32_t height,
                       struct image_u8 *out, struct err *err)
{
    uint32_t w = src->width - x < width ? src->width - x : width;
    uint32_t h = src->height - y < height ? src->height - y : height;
    uint8_t *rgb = malloc((size_t)w * h * 3);
    if (!rgb) return err_set(err, ST_NOMEM, "image crop: out of memory for %u x %u pixels", w, h);
    for (uint32_t row = 0; row < h; row++)
        memcpy(rgb + (size_t)row * w * 3, src->rgb + ((size_t)(y + row) * src->width + x) * 3, (size_t)w * 3);
    *out = (struct image_u8){.width = w, .height = h, .rgb = rgb};
    return ST_OK;
}

enum status image__to_target(const struct image_config *cfg, const struct image_u8 *src, struct image_u8 *out,
                             struct err *err)
{
    uint32_t width, height;
    enum status st = image_target(cfg, src->width, src->height, 0, &width, &height, err);
    return st ? st : image_resize(src, width, height, cfg->filter, cfg->mode, out, err);
}

static enum status pan_and_scan(const struct image_config *cfg, const struct image_u8 *src,
                                struct image_prepared *p, struct err *err)
{
    struct crops c = plan_crops(cfg, src->width, src->height);
    p->images = calloc(1 + (size_t)c.columns * c.rows, sizeof *p->images);
    if (!p->images) return err_nomem(err, "image");
    enum status st = image__to_target(cfg, src, &p->images[0], err);
    p->count = 1;
    for (uint32_t i = 0; !st && i < c.columns * c.rows; i++) {
        struct image_u8 part = {0};
        st =
            image__cut(src, i % c.columns * c.width, i / c.columns * c.height, c.width, c.height, &part, err);
        if (!st) st = image__to_target(cfg, &part, &p->images[p->count], err);
        image_u8_free(&part);
        if (!st) p->count++;
    }
    return st;
}

enum status image_prep(const struct image_config *cfg, const struct image_u8 *src, struct image_prepared *out,
                       struct err *err)
{
    struct image_prepared p = {0};
    enum status st = cfg->tiles.rule ? image__tile(cfg, src, &p, err) : pan_and_scan(cfg, src, &p, err);
    if (st) {
        image_prepared_free(&p);
        return st;
    }
    *out = p;
    return ST_OK;
}

/* See test_images.h. */
#include "tests/lib/test_images.h"

#include "engine/prompt/image_prep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t image_unit(const struct model_info *m)
{
    return m->image.config.dynamic ? m->image.config.patch * m->image.config.merge : 0;
}

static void measure(const struct model_info *m, struct test_image *p)
{
    const struct image_u8 *px = &p->pixels;
    struct prompt_grid grid = image_grid(&m->image.config, px->width, px->height, px->frames);
    if (m->image.grid) p->grid = grid;
    p->rows = m->image.config.dynamic ? grid.t * grid.h * grid.w : m->image.tokens;
    if (!m->image.row_break) return;
    p->grid = grid;
    p->grid.breaks = true;
    p->rows += grid.t * grid.h - 1;
}

struct test_image image_prepare(const struct model_info *m, uint32_t content, uint32_t width, uint32_t height,
                                uint8_t *rgb, uint64_t area_min, uint64_t area_max)
{
    struct image_config config = m->image.config;
    struct image_u8 src = {.width = width, .height = height, .rgb = rgb};
    struct image_prepared prepared;
    struct err err;
    image_config_bound(&config, &(struct image_bounds){.area_min = area_min, .area_max = area_max});
    if (image_prep(&config, &src, &prepared, &err)) {
        fprintf(stderr, "image of %u x %u: %s\n", width, height, err.msg);
        abort();
    }
    struct test_image p = {
        .content = content, .width = width, .height = height, .pixels = prepared.images[0]};
    prepared.images[0].rgb = NULL; /* taken */
    image_prepared_free(&prepared);
    measure(m, &p);
    return p;
}

struct test_image image_make(const struct model_info *m, uint32_t content, uint32_t w, uint32_t h,
                             uint32_t frames, double seconds, uint64_t seed)
{
    uint32_t unit = image_unit(m);
    struct test_image p = {.content = content,
                           .pixels = {.width = unit ? w * unit : m->image.config.width,
                                      .height = unit ? h * unit : m->image.config.height,
                                      .frames = unit ? frames : 0}};
    size_t n = image_u8_bytes(&p.pixels);
    p.width = p.pixels.width;
    p.height = p.pixels.height;
    uint64_t s = seed * 2654435761u + 1;
    p.pixels.rgb = malloc(n);
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        p.pixels.rgb[i] = (uint8_t)(s >> 56);
    }
    measure(m, &p);
    if (p.pixels.frames && m->image.grid) p.grid.seconds = seconds;
    return p;
}

void image_free(struct test_image *p)
{
    free(p->pixels.rgb);
    p->pixels.rgb = NULL;
}

void image_key(const struct test_image *p, uint8_t key[32])
{
    memset(key, 0, 32);
    const uint32_t words[6] = {p->content,      p->width,         p->height,
                               p->pixels.width, p->pixels.height, p->pixels.frames};
    key[0] = 1;
    memcpy(key + 8, words, sizeof words);
}

struct prompt_span image_at(const struct model_info *m, const struct test_image *p, uint32_t begin)
{
    struct prompt_span im = span_of_image(begin, begin + p->rows, m->image.rule);
    im.pixels = p->pixels;
    im.grid = p->grid;
    image_key(p, im.key);
    return im;
}

void images_scan(struct prompt_span *images, uint32_t count)
{
    int32_t offset = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct prompt_grid *g = &images[i].grid;
        if (g->w && !g->breaks) {
            uint32_t far = (uint32_t)((double)(g->t - 1) * g->seconds);
            if (g->h - 1 > far) far = g->h - 1;
            if (g->w - 1 > far) far = g->w - 1;
            offset += (int32_t)(far + 1) - (int32_t)(images[i].end - images[i].begin);
        }
        images[i].mrope_delta = offset;
    }
}

void image_to_chw(const struct image_u8 *img, const float lut[3 * 256], float *out)
{
    size_t pixels = (size_t)img->width * img->height;
    for (size_t i = 0; i < pixels; i++) {
        out[i] = lut[img->rgb[3 * i]];
        out[pixels + i] = lut[256 + img->rgb[3 * i + 1]];
        out[2 * pixels + i] = lut[512 + img->rgb[3 * i + 2]];
    }
}

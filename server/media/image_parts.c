/* See image_parts.h. */
#include "server/media/image_parts.h"

#include "config/base/checked.h"
#include "server/media/codec.h"
#include "server/media/video.h"

#include <stdlib.h>
#include <string.h>

bool image_parts_new(uint32_t count, struct image_parts *out)
{
    size_t each = sizeof *out->grids + sizeof *out->stamps + sizeof *out->keys;
    uint8_t *block = calloc(count ? count : 1, each);
    if (!block) return false;
    *out = (struct image_parts){.count = count,
                                .grids = (void *)block,
                                .stamps = (void *)(block + count * sizeof *out->grids),
                                .keys = (void *)(block + count * (sizeof *out->grids + sizeof *out->stamps))};
    return true;
}

bool image_parts_copy(const struct image_parts *from, struct image_parts *out)
{
    if (!image_parts_new(from->count, out)) return false;
    out->rows = from->rows;
    out->columns = from->columns;
    memcpy(out->grids, from->grids, from->count * sizeof *from->grids);
    memcpy(out->stamps, from->stamps, from->count * sizeof *from->stamps);
    memcpy(out->keys, from->keys, from->count * sizeof *from->keys);
    return true;
}

void image_parts_free(struct image_parts *p)
{
    free(p->grids);
    *p = (struct image_parts){0};
}

struct image_bounds image_bounds_of(const struct image_config *cfg, const struct image_bounds *asked,
                                    bool low)
{
    struct image_bounds b = *asked;
    uint64_t budget = (uint64_t)IMAGE_LOW_TOKENS * cfg->patch * cfg->merge * cfg->patch * cfg->merge;
    if (!cfg->dynamic) return (struct image_bounds){.tiles = b.tiles};
    if (cfg->budgets) budget = budget / IMAGE_LOW_TOKENS * cfg->budgets[0];
    if (low && budget < (b.area_max ? b.area_max : cfg->area_max)) b.area_max = budget;
    return b;
}

enum image_error image_pack(uint8_t **bytes, size_t *len, const uint8_t *file, size_t file_len,
                            const struct image_limits *limits, struct err *err)
{
    size_t total;
    if (file_len > UINT32_MAX || add_overflows(*len, file_len, &total) || add_overflows(total, 4, &total) ||
        total > limits->encoded_bytes_max)
        return image__fail(err, IMAGE_TOO_MANY_BYTES,
                           "the frames of the video have more than %zu bytes in all",
                           limits->encoded_bytes_max);
    uint8_t *more = realloc(*bytes, total);
    if (!more) return image__nomem(err);
    uint8_t *at = more + *len;
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(file_len >> 8 * i);
    memcpy(at + 4, file, file_len);
    *bytes = more;
    *len = total;
    return IMAGE_OK;
}

static enum image_error fault_of(enum status st)
{
    return st == ST_NOMEM ? IMAGE_NOMEM : IMAGE_BAD_SHAPE;
}

static enum image_error still(const struct image_config *cfg, const uint8_t *bytes, size_t len,
                              struct image_prepared *out, struct image_parts *parts, struct err *err)
{
    struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    struct image_u8 whole = {0};
    limits.on_white = cfg->on_white;
    enum image_error f = image_decode(bytes, len, &limits, &whole, err);
    if (f) return f;
    enum status st = image_prep(cfg, &whole, out, err);
    image_u8_free(&whole);
    if (st) return fault_of(st);
    if (!image_parts_new(out->count, parts)) return image__nomem(err);
    parts->rows = out->rows;
    parts->columns = out->columns;
    for (uint32_t i = 0; i < out->count; i++)
        parts->grids[i] = image_grid(cfg, out->images[i].width, out->images[i].height, 0);
    return IMAGE_OK;
}

/* Cuts a video into its groups of frames, each an entry of its own. */
static enum image_error split(const struct image_u8 *all, uint32_t depth, struct image_prepared *out,
                              struct err *err)
{
    uint32_t count = all->frames / depth;
    size_t bytes = (size_t)all->width * all->height * 3 * depth;
    out->images = calloc(count, sizeof *out->images);
    if (!out->images) return image__nomem(err);
    for (uint32_t i = 0; i < count; i++) {
        struct image_u8 *part = &out->images[out->count++];
        *part = (struct image_u8){
            .width = all->width, .height = all->height, .frames = depth, .rgb = malloc(bytes)};
        if (!part->rgb) return image__nomem(err);
        memcpy(part->rgb, all->rgb + i * bytes, bytes);
    }
    return IMAGE_OK;
}

/* second_per_grid_ts of the reference's processor, times tokens_per_second: in float32, so that rounding to
 * integers is identical. Without tokens_per_second groups of frames are counted. */
static double positions_between(const struct model_image_rule *rule, double fps)
{
    float seconds = (float)((double)rule->config.depth / fps);
    return rule->tokens_per_second > 0.0 ? (double)((float)rule->tokens_per_second * seconds) : 1.0;
}

static enum image_error video(const struct model_image_rule *rule, const struct image_ask *ask,
                              const uint8_t *bytes, size_t len, struct image_prepared *out,
                              struct image_parts *parts, struct err *err)
{
    const struct image_config *cfg = &rule->config;
    struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    struct video_frames v = {0};
    limits.on_white = cfg->on_white;
    enum image_error f = video_in_frames(cfg, bytes, len, ask->list, ask->fps, &limits, &v, err);
    if (f) return f;
    uint32_t count = rule->video_stamp ? v.pixels.frames / cfg->depth : 1;
    if (!image_parts_new(count, parts)) f = image__nomem(err);
    if (!f && rule->video_stamp) {
        f = split(&v.pixels, cfg->depth, out, err);
        image_video_stamps(cfg, v.indices, v.count, v.fps, parts->stamps);
    } else if (!f && !(out->images = calloc(1, sizeof *out->images))) {
        f = image__nomem(err);
    } else if (!f) {
        out->count = 1;
        out->images[0] = v.pixels;
        v.pixels.rgb = NULL;
    }
    for (uint32_t i = 0; !f && i < count; i++) {
        const struct image_u8 *img = &out->images[i];
        struct prompt_grid *g = &parts->grids[i];
        *g = image_grid(cfg, img->width, img->height, img->frames);
        if (g->t > 1) g->seconds = positions_between(rule, v.sampled_fps);
    }
    video_frames_free(&v);
    return f;
}

/* libwebp usually reports a failed allocation as a corrupt file. True if that is possible and a retry may
 * decide; *f is set if it was. */
static bool webp_again(const uint8_t *bytes, size_t len, bool list, enum image_error *f, struct err *err)
{
    size_t at = list ? 4 : 0; /* after the first file's length */
    if (*f != IMAGE_BAD_DATA || len < at + 4 || memcmp(bytes + at, "RIFF", 4) != 0) return false;
    void *volatile some = malloc(1u << 20);
    free(some);
    if (!some) *f = image__nomem(err);
    return some != NULL;
}

enum image_error image_from_file(const struct model_image_rule *rule, const char *family,
                                 const struct image_ask *ask, const uint8_t *bytes, size_t len,
                                 struct image_prepared *out, struct image_parts *parts, struct err *err)
{
    struct image_config cfg = rule->config;
    struct image_prepared made = {0};
    struct image_parts p = {0};
    image_config_bound(&cfg, &ask->bounds);
    enum image_error f;
    int tries = 0;
    do {
        image_prepared_free(&made);
        image_parts_free(&p);
        f = ask->video ? video(rule, ask, bytes, len, &made, &p, err)
                       : still(&cfg, bytes, len, &made, &p, err);
    } while (webp_again(bytes, len, ask->list, &f, err) && !tries++);
    for (uint32_t i = 0; !f && i < made.count; i++)
        image_content_key(&made.images[i], &rule->config, family, &p.grids[i], p.keys[i]);
    if (f) {
        image_prepared_free(&made);
        image_parts_free(&p);
        return f;
    }
    *out = made;
    *parts = p;
    return IMAGE_OK;
}

/* See image_prep.h. */
#include "engine/prompt/image_prep.h"

#include "config/base/json.h"
#include "engine/checkpoint/files.h"
#include "engine/families/families.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 1 << 20,
    TARGET_SIDE_MAX = 16384,
    CROPS_MAX = 64,
    PATCH_MAX = 256,
    FRAMES_MAX = 100000
};
#define AREA_MAX (1ull << 40)

/* One settings object and what to call it in messages. */
struct settings {
    const struct json_doc *doc;
    uint32_t node;
    const char *path;
    struct err *err;
    bool size_only; /* min_pixels and max_pixels mean nothing here */
};

static enum status wrong(const struct settings *s, const char *key, const char *want)
{
    return err_set(s->err, ST_FORMAT, "%s: %s must be %s", s->path, key, want);
}

static enum status read_bool(const struct settings *s, const char *key, bool *out)
{
    uint32_t v = json_get_live(s->doc, s->node, key);
    if (v == JSON_NONE || json_bool(s->doc, v, out)) return ST_OK;
    return wrong(s, key, "true or false");
}

static enum status read_count(const struct settings *s, const char *key, uint32_t max, uint32_t *out)
{
    uint32_t v = json_get_live(s->doc, s->node, key);
    uint64_t n;
    if (v == JSON_NONE) return ST_OK;
    if (!json_uint(s->doc, v, &n) || n < 1 || n > max) return wrong(s, key, "a whole number in range");
    *out = (uint32_t)n;
    return ST_OK;
}

static enum status read_positive(const struct settings *s, const char *key, double *out)
{
    uint32_t v = json_get_live(s->doc, s->node, key);
    double d;
    if (v == JSON_NONE) return ST_OK;
    if (!json_double(s->doc, v, &d) || !isfinite(d) || d <= 0.0) return wrong(s, key, "a number over 0");
    *out = d;
    return ST_OK;
}

/* A list of three numbers, or one number for all three channels. */
static enum status read_channels(const struct settings *s, const char *key, bool positive, float out[3])
{
    uint32_t v = json_get_live(s->doc, s->node, key);
    if (v == JSON_NONE) return ST_OK;
    bool list = json_kind(s->doc, v) == JSON_ARRAY;
    if (list && json_count(s->doc, v) != 3) return wrong(s, key, "a list of 3 numbers");
    float read[3];
    for (uint32_t c = 0; c < 3; c++) {
        double d;
        if (!json_double(s->doc, list ? json_at(s->doc, v, c) : v, &d) || !isfinite(d) || fabs(d) > 1e6 ||
            (positive && d < 1e-6))
            return wrong(s, key, positive ? "numbers over 0" : "numbers");
        read[c] = (float)d;
    }
    memcpy(out, read, sizeof read);
    return ST_OK;
}

/* 896, or {"height": 896, "width": 896}. */
static enum status read_size(const struct settings *s, struct image_config *out)
{
    uint32_t v = json_get_live(s->doc, s->node, "size");
    if (v == JSON_NONE) return ST_OK;
    if (json_kind(s->doc, v) != JSON_OBJECT) {
        enum status st = read_count(s, "size", TARGET_SIDE_MAX, &out->width);
        out->height = out->width;
        return st;
    }
    uint32_t height = 0, width = 0;
    struct settings size = {.doc = s->doc, .node = v, .path = s->path, .err = s->err};
    enum status st = read_count(&size, "height", TARGET_SIDE_MAX, &height);
    if (!st) st = read_count(&size, "width", TARGET_SIDE_MAX, &width);
    if (st) return err_prefix(s->err, st, "size");
    if (!height || !width)
        return err_set(s->err, ST_UNSUPPORTED,
                       "%s: size must have height and width: this family's pictures have one fixed size, not "
                       "one by edge",
                       s->path);
    out->height = height;
    out->width = width;
    return ST_OK;
}

static enum status read_area(const struct settings *s, const char *key, uint64_t *out)
{
    uint32_t v = json_get_live(s->doc, s->node, key);
    uint64_t n;
    if (v == JSON_NONE) return ST_OK;
    if (!json_uint(s->doc, v, &n) || n < 1 || n > AREA_MAX)
        return wrong(s, key, "a number of pixels in range");
    *out = n;
    return ST_OK;
}

/* min_pixels and max_pixels, or size.shortest_edge and size.longest_edge, which are areas in spite of their
 * names; the former win. */
static enum status read_areas(const struct settings *s, struct image_config *out)
{
    struct settings size = {
        .doc = s->doc, .node = json_get_live(s->doc, s->node, "size"), .path = s->path, .err = s->err};
    enum status st = ST_OK;
    if (size.node != JSON_NONE) {
        static const char *const known[] = {"min_pixels", "max_pixels", "shortest_edge", "longest_edge"};
        bool any = false; /* json_get_live has nothing of what is not an object */
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            any |= json_get_live(s->doc, size.node, known[i]) != JSON_NONE;
        if (!any)
            return err_set(
                s->err, ST_UNSUPPORTED,
                "%s: size must have shortest_edge and longest_edge: this family's pictures keep their shape",
                s->path);
        st = read_area(&size, "min_pixels", &out->area_min);
        if (!st) st = read_area(&size, "max_pixels", &out->area_max);
        if (!st) st = read_area(&size, "shortest_edge", &out->area_min);
        if (!st) st = read_area(&size, "longest_edge", &out->area_max);
    }
    if (!st && !s->size_only) st = read_area(s, "min_pixels", &out->area_min);
    if (!st && !s->size_only) st = read_area(s, "max_pixels", &out->area_max);
    if (!st) st = read_count(s, "patch_size", PATCH_MAX, &out->patch);
    if (!st) st = read_count(s, "merge_size", PATCH_MAX, &out->merge);
    if (!st) st = read_count(s, "temporal_patch_size", PATCH_MAX, &out->depth);
    if (!st && out->area_min > out->area_max)
        st = wrong(s, "size", "a smallest area that is not over the largest");
    return st;
}

/* max_soft_tokens -> area_max, for pictures and videos alike. */
static enum status read_budget(const struct settings *s, struct image_config *out)
{
    uint64_t unit = (uint64_t)out->patch * out->merge;
    uint32_t tokens = (uint32_t)(out->area_max / (unit * unit)); /* the class default */
    enum status st = read_count(s, "patch_size", PATCH_MAX, &out->patch);
    if (!st) st = read_count(s, "pooling_kernel_size", PATCH_MAX, &out->merge);
    if (!st) st = read_count(s, "max_soft_tokens", 1u << 20, &tokens);
    if (!st && !image_budget(out, tokens, &out->area_max))
        st = wrong(s, "max_soft_tokens", "70, 140, 280, 560 or 1120");
    return st;
}

/* What only the settings for videos have. */
static enum status read_frames(const struct settings *s, struct image_config *out)
{
    if (out->video_uniform) return read_count(s, "num_frames", FRAMES_MAX, &out->video_frames_max);
    bool cap = false;
    uint32_t tokens = out->video_volume ? 768 : 128000;
    enum status st = read_positive(s, "fps", &out->video_fps);
    if (!st) st = read_count(s, "min_frames", FRAMES_MAX, &out->video_frames_min);
    if (!st) st = read_count(s, "max_frames", FRAMES_MAX, &out->video_frames_max);
    if (!st) st = read_bool(s, "cap_pixels_per_frame", &cap);
    if (!st) st = read_count(s, "max_video_tokens", 1u << 30, &tokens);
    out->video_cap_tokens = cap ? tokens : 0;
    return st;
}

static enum status read_filter(const struct settings *s, enum image_filter *out)
{
    uint32_t v = json_get_live(s->doc, s->node, "resample");
    int64_t code;
    if (v == JSON_NONE) return ST_OK;
    if (!json_int(s->doc, v, &code)) return wrong(s, "resample", "a whole number");
    if (code != IMAGE_BILINEAR && code != IMAGE_BICUBIC)
        return err_set(s->err, ST_UNSUPPORTED,
                       "%s: resample %lld: only 2 (bilinear) and 3 (bicubic) are supported", s->path,
                       (long long)code);
    *out = (enum image_filter)code;
    return ST_OK;
}

static enum status read_settings(const struct settings *s, struct image_config *out)
{
    static const char *const never[] = {"do_center_crop", "do_pad"};
    enum status st = ST_OK;
    for (size_t i = 0; !st && i < sizeof never / sizeof *never; i++) {
        bool on = false;
        st = read_bool(s, never[i], &on);
        if (!st && on) st = err_set(s->err, ST_UNSUPPORTED, "%s: %s is not supported", s->path, never[i]);
    }
    if (!st && out->budgets) st = read_budget(s, out);
    else if (!st) st = out->dynamic ? read_areas(s, out) : read_size(s, out);
    if (!st) st = read_filter(s, &out->filter);
    if (!st) st = read_bool(s, "do_resize", &out->do_resize);
    if (!st) st = read_bool(s, "do_rescale", &out->do_rescale);
    if (!st) st = read_bool(s, "do_normalize", &out->do_normalize);
    if (!st) st = read_positive(s, "rescale_factor", &out->rescale_factor);
    if (!st) st = read_channels(s, "image_mean", false, out->mean);
    if (!st) st = read_channels(s, "image_std", true, out->std);
    if (out->dynamic) return st;
    if (!st) st = read_bool(s, "do_pan_and_scan", &out->pan_and_scan);
    if (!st) st = read_count(s, "pan_and_scan_min_crop_size", TARGET_SIDE_MAX, &out->pan_min_crop);
    if (!st) st = read_count(s, "pan_and_scan_max_num_crops", CROPS_MAX, &out->pan_max_crops);
    if (!st) st = read_positive(s, "pan_and_scan_min_ratio_to_activate", &out->pan_min_ratio);
    return st;
}

static enum status read_video_settings(const struct settings *s, struct image_config *out)
{
    struct settings v = *s;
    v.size_only = out->video_volume; /* the class with that rule has no such arguments, unlike the other */
    enum status st = read_settings(&v, out);
    return st ? st : read_frames(&v, out);
}

/* A checkpoint. */
struct source {
    const char *model, *mmproj;
};

/* Reads a file of it, or the object under `key` in it. *found says whether there were settings. */
static enum status read_file(const struct source *from, const char *file, const char *key,
                             enum status (*read)(const struct settings *, struct image_config *),
                             struct image_config *out, bool *found, struct err *err)
{
    struct json_doc doc = {0};
    *found = false;
    enum status st = checkpoint_json(from->model, from->mmproj, file, CONFIG_BYTES_MAX, &doc, err);
    if (st == ST_NOT_FOUND) return ST_OK;
    char *path = st ? NULL : checkpoint_where(from->model, file);
    if (!st && !path) st = err_set(err, ST_NOMEM, "%s: out of memory", from->model);
    if (st) {
        json_free(&doc);
        return st;
    }
    uint32_t node = key ? json_get_live(&doc, 0, key) : 0;
    if (node != JSON_NONE) {
        struct settings s = {.doc = &doc, .node = node, .path = path, .err = err};
        *found = true;
        st = json_kind(&doc, node) == JSON_OBJECT ? read(&s, out)
                                                  : wrong(&s, key ? key : "the file", "an object");
    }
    json_free(&doc);
    free(path);
    return st;
}

/* Normalized by 0 and 1: not at all. */
static bool normalizes(const struct image_config *c)
{
    for (int i = 0; i < 3; i++)
        if (c->mean[i] != 0 || c->std[i] != 1) return c->do_normalize;
    return false;
}

/* The settings for videos into cfg, which has those for pictures. They may differ in the areas and frames
 * only: one tower takes both. */
static enum status load_video(const struct source *from, const struct family_pictures *family,
                              struct image_config *cfg, struct err *err)
{
    struct image_config v = family->image;
    bool found;
    v.area_min = v.video_area_min;
    v.area_max = v.video_area_max;
    memcpy(v.mean, family->video_mean, sizeof v.mean);
    memcpy(v.std, family->video_std, sizeof v.std);
    v.patch = family->video_patch;
    enum status st =
        read_file(from, "processor_config.json", "video_processor", read_video_settings, &v, &found, err);
    if (!st && !found)
        st = read_file(from, "video_preprocessor_config.json", NULL, read_video_settings, &v, &found, err);
    if (!st && !found)
        st = read_file(from, "preprocessor_config.json", NULL, read_video_settings, &v, &found, err);
    if (st == ST_UNSUPPORTED) return ST_OK;
    if (st || !found) return st;
    bool same = v.patch == cfg->patch && v.merge == cfg->merge && v.depth == cfg->depth &&
                v.filter == cfg->filter && v.do_resize && v.do_rescale == cfg->do_rescale &&
                normalizes(&v) == normalizes(cfg) && v.rescale_factor == cfg->rescale_factor &&
                memcmp(v.mean, cfg->mean, sizeof v.mean) == 0 && memcmp(v.std, cfg->std, sizeof v.std) == 0;
    cfg->video = same && v.video_frames_min <= v.video_frames_max;
    cfg->video_area_min = v.area_min;
    cfg->video_area_max = v.area_max;
    cfg->video_cap_tokens = v.video_cap_tokens;
    cfg->video_fps = v.video_fps;
    cfg->video_frames_min = v.video_frames_min;
    cfg->video_frames_max = v.video_frames_max;
    return ST_OK;
}

bool image_budget(const struct image_config *cfg, uint64_t tokens, uint64_t *area)
{
    for (const uint32_t *b = cfg->budgets; b && *b; b++)
        if (*b == tokens) {
            *area = tokens * cfg->patch * cfg->merge * cfg->patch * cfg->merge;
            return true;
        }
    return false;
}

enum status image_config_load(const char *dir, const char *mmproj, const char *model_type,
                              struct image_config *out, struct err *err)
{
    const struct family *known = family_find(model_type);
    const struct family_pictures *family = known ? known->pictures : NULL;
    if (!family)
        return err_set(err, ST_UNSUPPORTED, "no picture settings are known for model type \"%s\"",
                       model_type);
    struct image_config cfg = family->image;
    struct source from = {dir, mmproj};
    bool found;
    enum status st =
        read_file(&from, "processor_config.json", "image_processor", read_settings, &cfg, &found, err);
    if (!st && !found)
        st = read_file(&from, "preprocessor_config.json", NULL, read_settings, &cfg, &found, err);
    if (st) return st;
    if (!found)
        return err_set(err, ST_NOT_FOUND,
                       "%s: neither processor_config.json nor preprocessor_config.json has picture settings",
                       dir);
    if (cfg.dynamic && family->video_patch) st = load_video(&from, family, &cfg, err);
    if (st) return st;
    *out = cfg;
    return ST_OK;
}

void image_prepared_free(struct image_prepared *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->count; i++) image_u8_free(&p->images[i]);
    free(p->images);
    *p = (struct image_prepared){0};
}

/* How a picture is cut: columns * rows crops of width x height pixels each, the last ones smaller. No crops:
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
    /* Rounding up can leave nothing for the last crops (5 pixels in 4 crops of 2). */
    c.columns = ceil_div(width, c.width);
    c.rows = ceil_div(height, c.height);
    return (c.width < c.height ? c.width : c.height) < cfg->pan_min_crop ? none : c;
}

uint32_t image_crop_count(const struct image_config *cfg, uint32_t width, uint32_t height)
{
    struct crops c = plan_crops(cfg, width, height);
    return c.columns * c.rows;
}

/* A copy of the rectangle at (x, y), cut at the border; it is never empty. */
static enum status cut(const struct image_u8 *src, uint32_t x, uint32_t y, const struct crops *c,
                       struct image_u8 *out, struct err *err)
{
    uint32_t w = src->width - x < c->width ? src->width - x : c->width;
    uint32_t h = src->height - y < c->height ? src->height - y : c->height;
    uint8_t *rgb = malloc((size_t)w * h * 3);
    if (!rgb) return err_set(err, ST_NOMEM, "picture crop: out of memory for %u x %u pixels", w, h);
    for (uint32_t row = 0; row < h; row++)
        memcpy(rgb + (size_t)row * w * 3, src->rgb + ((size_t)(y + row) * src->width + x) * 3, (size_t)w * 3);
    *out = (struct image_u8){.width = w, .height = h, .rgb = rgb};
    return ST_OK;
}

static enum status to_target(const struct image_config *cfg, const struct image_u8 *src, struct image_u8 *out,
                             struct err *err)
{
    uint32_t width, height;
    enum status st = image_target(cfg, src->width, src->height, 0, &width, &height, err);
    return st ? st : image_resize(src, width, height, cfg->filter, cfg->mode, out, err);
}

enum status image_prep(const struct image_config *cfg, const struct image_u8 *src, struct image_prepared *out,
                       struct err *err)
{
    struct crops c = plan_crops(cfg, src->width, src->height);
    struct image_prepared p = {.images = calloc(1 + (size_t)c.columns * c.rows, sizeof *p.images)};
    if (!p.images) return err_set(err, ST_NOMEM, "picture: out of memory");
    enum status st = to_target(cfg, src, &p.images[0], err);
    p.count = 1;
    for (uint32_t i = 0; !st && i < c.columns * c.rows; i++) {
        struct image_u8 part = {0};
        st = cut(src, i % c.columns * c.width, i / c.columns * c.height, &c, &part, err);
        if (!st) st = to_target(cfg, &part, &p.images[p.count], err);
        image_u8_free(&part);
        if (!st) p.count++;
    }
    if (st) {
        image_prepared_free(&p);
        return st;
    }
    *out = p;
    return ST_OK;
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

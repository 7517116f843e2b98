/* Settings for pictures and videos of a checkpoint. See family_load_images in families.h; the rules are those
 * of transformers 5.23. */
#include "engine/families/families.h"

#include "config/base/json.h"
#include "config/gguf/gguf.h"
#include "engine/families/from_gguf.h"
#include "engine/prompt/image_prep.h"

#include <math.h>
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

/* A checkpoint; videos: what is read of it are the settings for those. */
struct source {
    const char *model, *mmproj;
    bool videos;
};

/* Reads a file of a directory, or the object under `key` in it. *found says whether there were settings. */
static enum status read_file(const struct source *from, const char *file, const char *key,
                             struct image_config *out, bool *found, struct err *err)
{
    struct json_doc doc = {0};
    char *path;
    enum status st = json_load(from->model, file, CONFIG_BYTES_MAX, &doc, &path, err);
    uint32_t node = st ? JSON_NONE : key ? json_get_live(&doc, 0, key) : 0;
    *found = node != JSON_NONE;
    if (*found) {
        struct settings s = {.doc = &doc, .node = node, .path = path, .err = err};
        if (json_kind(&doc, node) != JSON_OBJECT) st = wrong(&s, key ? key : "the file", "an object");
        else st = from->videos ? read_video_settings(&s, out) : read_settings(&s, out);
    }
    json_free(&doc);
    free(path);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* The first of the files that has settings. ST_NOT_FOUND: none. */
static enum status read_settings_of(const struct source *from, struct image_config *out, struct err *err)
{
    const struct {
        const char *file, *key;
        bool videos;
    } places[] = {{"processor_config.json", "image_processor", false},
                  {"processor_config.json", "video_processor", true},
                  {"video_preprocessor_config.json", NULL, true},
                  {"preprocessor_config.json", NULL, from->videos}};
    if (gguf_is(from->model)) return gguf_images(from->model, from->mmproj, from->videos, out, err);
    bool found = false;
    enum status st = ST_OK;
    for (size_t i = 0; i < sizeof places / sizeof *places && !st && !found; i++)
        if (places[i].videos == from->videos)
            st = read_file(from, places[i].file, places[i].key, out, &found, err);
    if (st || found) return st;
    return err_set(err, ST_NOT_FOUND,
                   "%s: neither processor_config.json nor preprocessor_config.json has picture settings",
                   from->model);
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
    v.area_min = v.video_area_min;
    v.area_max = v.video_area_max;
    memcpy(v.mean, family->video_mean, sizeof v.mean);
    memcpy(v.std, family->video_std, sizeof v.std);
    v.patch = family->video_patch;
    enum status st = read_settings_of(from, &v, err);
    if (st) return st == ST_UNSUPPORTED || st == ST_NOT_FOUND ? ST_OK : st;
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

enum status family_load_images(const char *model, const char *mmproj, const char *model_type,
                               struct image_config *out, struct err *err)
{
    const struct family_type *type;
    const struct family *known = family_find(model_type, &type);
    const struct family_pictures *family = known ? known->pictures : NULL;
    if (!family)
        return err_set(err, ST_UNSUPPORTED, "no picture settings are known for model type \"%s\"",
                       model_type);
    struct image_config cfg = family->image;
    struct source from = {.model = model, .mmproj = mmproj};
    enum status st = read_settings_of(&from, &cfg, err);
    from.videos = true;
    if (!st && cfg.dynamic && family->video_patch) st = load_video(&from, family, &cfg, err);
    if (!st) *out = cfg;
    return st;
}

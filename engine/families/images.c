/* Settings for images and videos of a checkpoint. See family_load_images in families.h; the rules are those
 * of transformers 5.23. */
#include "engine/families/families.h"

#include "config/base/json.h"
#include "config/gguf/gguf.h"
#include "config/hf/reader.h"
#include "engine/families/gguf_keys.h"
#include "engine/prompt/image_prep.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 1 << 20,
    TARGET_SIDE_MAX = 16384,
    CROPS_MAX = 64,
    FRAMES_MAX = 100000,
};
#define AREA_MAX 0x1p40

/* A list of three numbers, or one number for all three channels. */
static void read_channels(struct hf_reader *r, uint32_t obj, const char *key, double lo, float out[3])
{
    uint32_t v = json_get_live(r->d, obj, key);
    bool list = json_kind(r->d, v) == JSON_ARRAY;
    for (uint32_t c = 0; c < 3 && v != JSON_NONE && !r->st; c++) {
        double d;
        if ((list && json_count(r->d, v) != 3) || !json_double(r->d, list ? json_at(r->d, v, c) : v, &d) ||
            !(d >= lo && d <= 1e6))
            hf_error(r, ST_FORMAT, key, lo > 0 ? "must be 3 numbers over 0" : "must be 3 numbers");
        else out[c] = (float)d;
    }
}

/* 896, or {"height": 896, "width": 896}. */
static void read_size(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    uint32_t v = json_get_live(r->d, obj, "size");
    if (v == JSON_NONE) return;
    if (json_kind(r->d, v) != JSON_OBJECT) {
        hf_u32(r, obj, "size", 1, TARGET_SIDE_MAX, &out->width);
        out->height = out->width;
        return;
    }
    out->height = out->width = 0;
    hf_u32(r, v, "height", 1, TARGET_SIDE_MAX, &out->height);
    hf_u32(r, v, "width", 1, TARGET_SIDE_MAX, &out->width);
    if (!out->height || !out->width)
        hf_error(r, ST_UNSUPPORTED, "size",
                 "must have height and width: this family's images have one fixed size, not one by edge");
}

static void read_area(struct hf_reader *r, uint32_t obj, const char *key, uint64_t *area)
{
    double pixels = (double)*area;
    hf_double(r, obj, key, 1, AREA_MAX, &pixels);
    *area = (uint64_t)pixels;
}

/* min_pixels and max_pixels, or size.shortest_edge and size.longest_edge, which are areas despite their
 * names; the former win. size_only: the former are ignored. */
static void read_areas(struct hf_reader *r, uint32_t obj, bool size_only, struct image_config *out)
{
    static const char *const least[] = {"min_pixels", "shortest_edge"}, *const most[] = {"max_pixels",
                                                                                         "longest_edge"};
    uint32_t size = json_get_live(r->d, obj, "size");
    bool any = size == JSON_NONE; /* json_get_live has nothing of what is not an object */
    for (int i = 0; i < 2; i++) {
        any |= json_get_live(r->d, size, least[i]) != JSON_NONE ||
               json_get_live(r->d, size, most[i]) != JSON_NONE;
        read_area(r, size, least[i], &out->area_min);
        read_area(r, size, most[i], &out->area_max);
    }
    if (!any)
        hf_error(r, ST_UNSUPPORTED, "size",
                 "must have shortest_edge and longest_edge: this family's images keep their shape");
    read_area(r, size_only ? JSON_NONE : obj, least[0], &out->area_min);
    read_area(r, size_only ? JSON_NONE : obj, most[0], &out->area_max);
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &out->patch);
    hf_u32(r, obj, "merge_size", 1, SIZE_MAX_PATCH, &out->merge);
    hf_u32(r, obj, "temporal_patch_size", 1, SIZE_MAX_PATCH, &out->depth);
    if (out->area_frames) out->area_frames = out->depth;
    if (out->area_min > out->area_max)
        hf_error(r, ST_FORMAT, "size", "must have a smallest area that is not over the largest");
}

/* max_soft_tokens -> area_max, for images and videos alike. */
static void read_budget(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    uint64_t unit = (uint64_t)out->patch * out->merge;
    uint32_t tokens = (uint32_t)(out->area_max / (unit * unit)); /* the class default */
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &out->patch);
    hf_u32(r, obj, "pooling_kernel_size", 1, SIZE_MAX_PATCH, &out->merge);
    hf_u32(r, obj, "max_soft_tokens", 1, 1u << 20, &tokens);
    if (!image_budget(out, tokens, &out->area_max))
        hf_error(r, ST_FORMAT, "max_soft_tokens", "must be 70, 140, 280, 560 or 1120");
}

/* Keys of the settings for videos only. */
static void read_frames(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    bool cap = false;
    uint32_t tokens = out->video_volume ? 768 : 128000;
    if (out->video_uniform) {
        hf_u32(r, obj, "num_frames", 1, FRAMES_MAX, &out->video_frames_max);
        return;
    }
    hf_double(r, obj, "fps", 1e-9, 1e9, &out->video_fps);
    hf_u32(r, obj, "min_frames", 1, FRAMES_MAX, &out->video_frames_min);
    hf_u32(r, obj, "max_frames", 1, FRAMES_MAX, &out->video_frames_max);
    hf_bool(r, obj, "cap_pixels_per_frame", &cap);
    hf_u32(r, obj, "max_video_tokens", 1, 1u << 30, &tokens);
    out->video_cap_tokens = cap ? tokens : 0;
}

/* A checkpoint; videos: read the settings for videos. */
struct source {
    const char *model, *mmproj;
    const struct family_images *family;
    bool videos;
};

static void read_settings(struct hf_reader *r, uint32_t obj, const struct source *from,
                          struct image_config *out)
{
    static const char *const never[] = {"do_center_crop", "do_pad"};
    bool videos = from->videos;
    uint32_t filter = out->filter;
    for (size_t i = 0; i < (from->family->read ? 1 : sizeof never / sizeof *never); i++) {
        bool on = false;
        hf_bool(r, obj, never[i], &on);
        if (on) hf_error(r, ST_UNSUPPORTED, never[i], "is not supported");
    }
    /* The class with videos by volume has no such arguments, unlike the other. */
    if (from->family->read) from->family->read(r, obj, out);
    else if (out->budgets) read_budget(r, obj, out);
    else if (out->dynamic) read_areas(r, obj, (videos && out->video_volume) || out->area_frames, out);
    else read_size(r, obj, out);
    hf_u32(r, obj, "resample", 0, 255, &filter);
    if (filter < IMAGE_LANCZOS || filter > IMAGE_BICUBIC)
        hf_error(r, ST_UNSUPPORTED, "resample",
                 "only 1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported");
    else out->filter = (enum image_filter)filter;
    hf_bool(r, obj, "do_resize", &out->do_resize);
    hf_bool(r, obj, "do_rescale", &out->do_rescale);
    hf_bool(r, obj, "do_normalize", &out->do_normalize);
    hf_double(r, obj, "rescale_factor", 1e-9, 1e9, &out->rescale_factor);
    read_channels(r, obj, "image_mean", -1e6, out->mean);
    read_channels(r, obj, "image_std", 1e-6, out->std);
    if (videos) read_frames(r, obj, out);
    if (out->dynamic || from->family->read) return;
    hf_bool(r, obj, "do_pan_and_scan", &out->pan_and_scan);
    hf_u32(r, obj, "pan_and_scan_min_crop_size", 1, TARGET_SIDE_MAX, &out->pan_min_crop);
    hf_u32(r, obj, "pan_and_scan_max_num_crops", 1, CROPS_MAX, &out->pan_max_crops);
    hf_double(r, obj, "pan_and_scan_min_ratio_to_activate", 1e-9, 1e9, &out->pan_min_ratio);
}

/* Reads a file of a directory, or the object under `key` in it. *found says whether there were settings. */
static enum status read_file(const struct source *from, const char *file, const char *key,
                             struct image_config *out, bool *found, struct err *err)
{
    struct json_doc doc = {0};
    char *path;
    enum status st = json_load(from->model, file, CONFIG_BYTES_MAX, &doc, &path, err);
    uint32_t node = st ? JSON_NONE : key ? json_get_live(&doc, 0, key) : 0;
    struct hf_reader r = {.d = &doc, .file = path, .scope = "", .err = err, .st = st};
    *found = node != JSON_NONE;
    if (*found && json_kind(&doc, node) != JSON_OBJECT)
        hf_error(&r, ST_FORMAT, key ? key : "the file", "must be an object");
    if (key && !from->videos && !r.st && from->family->processor) from->family->processor(&r, out);
    if (*found) read_settings(&r, node, from, out);
    json_free(&doc);
    free(path);
    return r.st == ST_NOT_FOUND ? ST_OK : r.st;
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
    enum status st = from->family->file ? read_file(from, from->family->file, NULL, out, &found, err) : ST_OK;
    for (size_t i = 0; i < sizeof places / sizeof *places && !st && !found; i++)
        if (places[i].videos == from->videos)
            st = read_file(from, places[i].file, places[i].key, out, &found, err);
    if (st || found) return st;
    return err_set(err, ST_NOT_FOUND,
                   "%s: neither processor_config.json nor preprocessor_config.json has image settings",
                   from->model);
}

/* Normalized by 0 and 1: not at all. */
static bool normalizes(const struct image_config *c)
{
    for (int i = 0; i < 3; i++)
        if (c->mean[i] != 0 || c->std[i] != 1) return c->do_normalize;
    return false;
}

/* The settings for videos into cfg, which has those for images. They may differ in the areas and frames
 * only: one tower takes both. */
static enum status load_video(const struct source *from, const struct family_images *family,
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
    const struct family_images *family = known ? known->images : NULL;
    if (!family)
        return err_set(err, ST_UNSUPPORTED, "no image settings are known for model type \"%s\"", model_type);
    struct image_config cfg = family->image;
    struct source from = {.model = model, .mmproj = mmproj, .family = family};
    enum status st = read_settings_of(&from, &cfg, err);
    from.videos = true;
    if (!st && cfg.dynamic && family->video_patch) st = load_video(&from, family, &cfg, err);
    if (!st) *out = cfg;
    return st;
}

void family_resolve(const char *model, const struct hf_config *c, struct model_desc *d)
{
    struct image_config images;
    struct err ignored; /* whoever needs the settings reads them again */
    const struct family_type *type;
    const struct family *family = family_find(c->model_type, &type);
    if (family && family->processed && d->has_vision &&
        !family_load_images(model, NULL, c->model_type, &images, &ignored))
        family->processed(&images, d);
}

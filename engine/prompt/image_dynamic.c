/* Sizes, grids and the choice of frames for families whose images keep their shape. Pure; any thread. All
 * numbers that the reference rounds are IEEE doubles here, in its order of operations: transformers 5.23,
 * smart_resize and sample_frames of the video processor classes. */
#include "engine/prompt/image_prep.h"

#include <math.h>
#include <stdlib.h>

enum { RATIO_MAX = 200, SIDE_MAX = 65535 };

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void image_config_bound(struct image_config *cfg, const struct image_bounds *bounds)
{
    if (bounds->tiles && bounds->tiles < cfg->tiles.max) cfg->tiles.max = bounds->tiles;
    if (cfg->tiles.min > cfg->tiles.max) cfg->tiles.min = cfg->tiles.max;
    if (!cfg->dynamic) return;
    uint32_t times = cfg->area_frames ? cfg->area_frames : 1;
    if (bounds->area_max) cfg->area_max = bounds->area_max * times;
    if (bounds->area_min) cfg->area_min = bounds->area_min * times;
    if (cfg->area_min > cfg->area_max) cfg->area_min = cfg->area_max;
    double side = bounds->area_max ? sqrt((double)cfg->area_max) : SIDE_MAX;
    if (cfg->longest > side) cfg->longest = (uint32_t)larger(side, 1);
    if (cfg->highest > side) cfg->highest = (uint32_t)larger(side, 1);
    cfg->width = bounds->width;
    cfg->height = bounds->height;
}

/* How large an image may become; frames count as so many images (1 if areas are per frame). */
struct room {
    uint64_t min, max;
    uint32_t frames, depth;
    double least; /* of a rounded side */
};

/* smart_resize. rint rounds half to even, as Python's round does. */
static void smart_resize(double h, double w, double factor, const struct room *r, double *to_h, double *to_w)
{
    double n = (double)r->frames, depth = (double)r->depth, max = (double)r->max, min = (double)r->min;
    double hb = larger(r->least, rint(h / factor) * factor), wb = larger(r->least, rint(w / factor) * factor),
           tb = rint(n / depth) * depth;
    if (tb * hb * wb > max) {
        double beta = sqrt(n * h * w / max);
        hb = larger(factor, floor(h / beta / factor) * factor);
        wb = larger(factor, floor(w / beta / factor) * factor);
    } else if (tb * hb * wb < min) {
        double beta = sqrt(min / (n * h * w));
        hb = ceil(h * beta / factor) * factor;
        wb = ceil(w * beta / factor) * factor;
    }
    *to_h = hb;
    *to_w = wb;
}

/* get_aspect_ratio_preserving_size of the processors with budgets, in its doubles. */
static enum status fill_budget(const struct image_config *cfg, uint64_t area, uint32_t width, uint32_t height,
                               uint32_t *to_width, uint32_t *to_height, struct err *err)
{
    uint32_t factor = cfg->patch * cfg->merge, places = cfg->places ? cfg->places * cfg->patch : SIDE_MAX;
    double h = (double)height, w = (double)width, side = (double)factor, scale = sqrt((double)area / (h * w)),
           most = (double)(area / ((uint64_t)factor * factor)) * side;
    double th = floor(scale * h / side) * side, tw = floor(scale * w / side) * side;
    if (th == 0 && tw == 0) return err_set(err, ST_INVALID, "the image would be resized to nothing");
    if (th == 0) {
        th = side;
        tw = fmin(floor(w / h) * side, most);
    } else if (tw == 0) {
        tw = side;
        th = fmin(floor(h / w) * side, most);
    }
    if (th * tw > (double)area || th > SIDE_MAX || tw > SIDE_MAX)
        return err_set(err, ST_INVALID, "an image of %u x %u pixels does not fit this model's size limits",
                       width, height);
    if (th > (double)places || tw > (double)places)
        return err_set(err, ST_INVALID,
                       "an image of %u x %u pixels becomes %.0f x %.0f, and this model knows the places of "
                       "%u pixels a side: send one whose sides differ less",
                       width, height, tw, th, places);
    *to_width = (uint32_t)tw;
    *to_height = (uint32_t)th;
    return ST_OK;
}

/* Bounds for a video; cap_pixels_per_frame of the reference. */
static struct room video_room(const struct image_config *cfg, uint32_t frames, uint64_t factor)
{
    uint64_t max = cfg->video_area_max, least = (uint64_t)((double)cfg->video_area_min * 1.05);
    if (cfg->video_volume) {
        if (cfg->video_cap_tokens) {
            uint64_t cap = cfg->video_cap_tokens * factor * factor, share = max / frames,
                     each = cap < share ? cap : share;
            max = (each > least ? each : least) * frames;
        }
        return (struct room){.min = cfg->video_area_min, .max = max, .frames = frames, .depth = cfg->depth};
    }
    if (cfg->video_cap_tokens) {
        uint64_t total = (uint64_t)((double)(cfg->video_cap_tokens * factor * factor) * 0.9),
                 share = total * cfg->depth / frames;
        if (share < max) max = share;
        if (max < least) max = least;
    }
    return (struct room){.min = cfg->video_area_min, .max = max, .frames = 1, .depth = 1};
}

static void grow_small(enum image_small rule, double side, double *h, double *w)
{
    if (rule == SMALL_SCALED && (*h < side || *w < side)) {
        double scale = larger(side / *h, side / *w);
        *h = trunc(*h * scale);
        *w = trunc(*w * scale);
    }
    if (rule == SMALL_BY_SIDE && *h < side) {
        *w = rint(*w * side / *h);
        *h = side;
    }
    if (rule == SMALL_BY_SIDE && *w < side) {
        *h = rint(*h * side / *w);
        *w = side;
    }
}

/* get_resize_output_image_size of the processors with a longest edge, in its doubles. */
static enum status fit_longest(const struct image_config *cfg, uint32_t width, uint32_t height,
                               uint32_t *to_width, uint32_t *to_height, struct err *err)
{
    uint32_t factor = image_multiple(cfg), token = cfg->patch * cfg->merge;
    double h = (double)height, w = (double)width,
           ratio = larger(h / (double)(cfg->highest ? cfg->highest : cfg->longest), w / (double)cfg->longest);
    if (ratio > 1) {
        height = (uint32_t)floor(h / ratio);
        width = (uint32_t)floor(w / ratio);
    }
    if (!height || !width)
        return err_set(
            err, ST_INVALID,
            "an image of %.0f x %.0f pixels would be resized to nothing: this model's longest side "
            "is %u pixels",
            w, h, cfg->longest);
    *to_height = (height - 1) / factor * factor + factor;
    *to_width = (width - 1) / factor * factor + factor;
    if (*to_height < token || *to_width < token)
        return err_set(err, ST_INVALID,
                       "an image of %.0f x %.0f pixels makes no token: this model needs %u x %u", w, h, token,
                       token);
    return ST_OK;
}

static enum status keep_size(const struct image_config *cfg, uint32_t width, uint32_t height,
                             uint32_t *to_width, uint32_t *to_height, struct err *err)
{
    uint32_t factor = cfg->dynamic ? cfg->patch * cfg->merge : 1;
    if (!cfg->dynamic && (width != cfg->width || height != cfg->height))
        return err_set(err, ST_INVALID,
                       "the image is %u x %u pixels; this model takes only %u x %u (its do_resize is off)",
                       width, height, cfg->width, cfg->height);
    if (width % factor || height % factor)
        return err_set(
            err, ST_INVALID,
            "the image is %u x %u pixels; this model takes only multiples of %u (its do_resize is off)",
            width, height, factor);
    *to_width = width;
    *to_height = height;
    return ST_OK;
}

enum status image_target(const struct image_config *cfg, uint32_t width, uint32_t height, uint32_t frames,
                         uint32_t *to_width, uint32_t *to_height, struct err *err)
{
    if (!width || !height) return err_set(err, ST_INVALID, "the image has no pixels");
    if (!cfg->do_resize) return keep_size(cfg, width, height, to_width, to_height, err);
    if (!cfg->dynamic) {
        *to_width = cfg->width;
        *to_height = cfg->height;
        return ST_OK;
    }
    if (!frames && cfg->width) {
        width = cfg->width;
        height = cfg->height;
    }
    uint32_t factor = cfg->patch * cfg->merge;
    if (cfg->longest) return fit_longest(cfg, width, height, to_width, to_height, err);
    if (cfg->budgets)
        return fill_budget(cfg, frames ? cfg->video_area_max : cfg->area_max, width, height, to_width,
                           to_height, err);
    double f = (double)factor, h = (double)height, w = (double)width;
    uint32_t times = cfg->area_frames ? cfg->area_frames : 1;
    struct room room = {.min = cfg->area_min, .max = cfg->area_max, .frames = times, .depth = times};
    enum image_small small = cfg->small;
    if (frames) {
        room = video_room(cfg, frames < cfg->depth ? cfg->depth : frames, factor);
        small = cfg->video_volume ? SMALL_SCALED : SMALL_KEPT;
    }
    if (small == SMALL_ROUNDED) room.least = f;
    grow_small(small, f, &h, &w);
    double ratio = (h > w ? h : w) / (h > w ? w : h);
    if (ratio > RATIO_MAX && small != SMALL_ROUNDED)
        return err_set(err, ST_INVALID,
                       "the image is %u x %u pixels: its sides must not differ by more than %d to 1", width,
                       height, RATIO_MAX);
    double hb, wb;
    smart_resize(h, w, f, &room, &hb, &wb);
    if (hb < f || wb < f || hb > SIDE_MAX ||
        wb > SIDE_MAX) /* bounds of a checkpoint that no image can meet */
        return err_set(err, ST_INVALID, "an image of %u x %u pixels does not fit this model's size limits",
                       width, height);
    *to_height = (uint32_t)hb;
    *to_width = (uint32_t)wb;
    return ST_OK;
}

struct prompt_grid image_grid(const struct image_config *cfg, uint32_t width, uint32_t height,
                              uint32_t frames)
{
    if (!cfg->dynamic) return (struct prompt_grid){0};
    uint32_t factor = cfg->patch * cfg->merge;
    return (struct prompt_grid){.t = frames ? frames / cfg->depth + (frames % cfg->depth != 0) : 1,
                                .h = height / factor,
                                .w = width / factor};
}

/* ---- frames ---- */

/* video_volume: evenly from the first to the last frame. numpy's linspace is i * step, and the end
 * itself. */
static uint32_t even_count(const struct image_config *cfg, uint32_t total, double fps)
{
    double n = trunc((double)total / fps * cfg->video_fps);
    n = larger(n, (double)cfg->video_frames_min);
    n = n < (double)cfg->video_frames_max ? n : (double)cfg->video_frames_max;
    return n < (double)total ? (uint32_t)n : total;
}

static void even_fill(uint32_t *frames, uint32_t n, uint32_t total)
{
    double last = (double)(total - 1), step = n > 1 ? last / (double)(n - 1) : 0.0;
    for (uint32_t i = 0; i < n; i++)
        frames[i] = (uint32_t)rint(i + 1 == n && n > 1 ? last : (double)i * step);
}

/* Else: every total/n-th, n a multiple of the depth. */
static uint32_t strided_count(const struct image_config *cfg, uint32_t total, double fps)
{
    uint32_t max = cfg->video_frames_max < total ? cfg->video_frames_max : total;
    max = max / cfg->depth * cfg->depth;
    double n = larger((double)total / fps * cfg->video_fps, (double)cfg->video_frames_min);
    n = n < (double)max ? n : (double)max;
    return (uint32_t)floor(n / (double)cfg->depth) * cfg->depth;
}

/* torch.arange(0, total, total / n).int(), float32 values; of those only the n requested (rounding can add
 * one after the end). */
static void strided_fill(uint32_t *frames, uint32_t n, uint32_t total)
{
    double step = (double)total / (double)n;
    for (uint32_t i = 0; i < n; i++) frames[i] = (uint32_t)((double)(float)((double)i * step));
}

enum status image_video_sample(const struct image_config *cfg, uint32_t total, double fps,
                               struct image_sample *out, struct err *err)
{
    if (!total || !(fps > 0.0)) return err_set(err, ST_INVALID, "the video has no frames");
    uint32_t n = cfg->video_uniform  ? (cfg->video_frames_max < total ? cfg->video_frames_max : total)
                 : cfg->video_volume ? even_count(cfg, total, fps)
                                     : strided_count(cfg, total, fps);
    if (n < cfg->depth) n = total < cfg->depth ? total : cfg->depth; /* the last one is repeated */
    uint32_t *frames = malloc((size_t)n * sizeof *frames);
    if (!frames) return err_nomem(err, "the frames of a video");
    if (cfg->video_uniform)
        for (uint32_t i = 0; i < n; i++) frames[i] = (uint32_t)((uint64_t)i * total / n);
    else (cfg->video_volume ? even_fill : strided_fill)(frames, n, total);
    *out = (struct image_sample){.frames = frames, .count = n, .fps = (double)n / (double)total * fps};
    return ST_OK;
}

void image_video_stamps(const struct image_config *cfg, const uint32_t *frames, uint32_t count, double fps,
                        double *stamps)
{
    for (uint32_t i = 0; i < count; i += cfg->depth) {
        uint32_t last = count - i < cfg->depth ? count - 1 : i + cfg->depth - 1;
        stamps[i / cfg->depth] = ((double)frames[i] / fps + (double)frames[last] / fps) / 2.0;
    }
}

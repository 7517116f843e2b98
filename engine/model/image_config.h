/* The image settings of a model: preprocessing, and the attention mask of an image's tokens. */
#ifndef KVASIR_IMAGE_CONFIG_H
#define KVASIR_IMAGE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum image_filter {
    IMAGE_LANCZOS = 1,
    IMAGE_BILINEAR = 2,
    IMAGE_BICUBIC = 3
}; /* PIL's codes, as in preprocessor_config.json `resample` */
enum image_resize_mode {
    IMAGE_TORCH_U8 = 0, /* torchvision's uint8 antialias kernel: what transformers' default processors do */
    IMAGE_PIL = 1,      /* Pillow 13 */
};

enum image_small {
    SMALL_KEPT = 0,
    SMALL_SCALED,  /* both sides grow by one factor, rounded down */
    SMALL_ROUNDED, /* each side is rounded to patch * merge at least; no shape is too long */
    SMALL_BY_SIDE, /* first the height becomes patch * merge and the width grows with it, then the reverse */
};

/* How an image is cut into tiles of side x side pixels. */
enum image_tiling {
    TILES_NONE = 0,
    TILES_FILLED,  /* as many as its size takes, once the longer side is `longest` pixels */
    TILES_SLICED,  /* by area, up to max; the grid whose shape is closest; all keep the image's shape; the
                      whole  comes first */
    TILES_CLOSEST, /* the grid of min to max tiles whose shape is closest */
};
struct image_tiles {
    enum image_tiling rule;
    uint32_t side, min, max; /* max 1: no image is cut */
    uint32_t axis_max;       /* tiles per row or column; 0 = no limit */
    uint32_t longest;        /* 0: keep the size */
    bool whole;              /* a cut image is also encoded as one */
    double tolerance;        /* > 0: only images over so many times area_max are cut */
    /* > 0: the most tiles of an image whose width / height is above dense_above and at most dense_most (0:
     * any is), and which `max` tiles would scale below dense_scale (0: whatever). */
    uint32_t dense_max;
    double dense_scale, dense_above, dense_most;
};

/* Image settings of a checkpoint: processor_config.json (nested `image_processor`) or
 * preprocessor_config.json, with the class defaults of the family for absent keys. */
struct image_config {
    uint32_t width,
        height; /* fixed target size in pixels; 0 = decided per image by the family (dynamic resolution) */
    enum image_filter filter;
    enum image_resize_mode mode;
    bool do_resize, do_rescale, do_normalize;
    double rescale_factor; /* 1/255 */
    float mean[3], std[3];
    struct image_tiles tiles;
    bool fine;         /* of two ways from the tower to tokens, the one with more */
    bool pan_and_scan; /* crops of extreme aspect ratios; default off */
    uint32_t pan_min_crop, pan_max_crops;
    double pan_min_ratio;
    /* Dynamic resolution: sides become multiples of patch * merge, the area lies in [area_min, area_max].
     * dynamic false: width x height above. */
    bool dynamic;
    uint32_t patch, merge, depth; /* patch_size, merge_size, temporal_patch_size */
    uint64_t area_min, area_max;  /* pixels: min_pixels/max_pixels or size.shortest_edge/longest_edge */
    uint32_t area_frames;         /* an image's area counts so many times; 0 counts as 1 */
    enum image_small small;       /* an image with a side below patch * merge */
    /* > 0: instead of an area, the longest side; a larger image shrinks, and sides are rounded up. highest:
     * of the height alone, 0 = the same. */
    uint32_t longest, highest;
    /* > 0: sides are multiples of it, not of patch * merge; the patches left over form no token. */
    uint32_t multiple;
    /* NULL, or the allowed token budgets (ascending, 0-terminated): area_max is the area of one of them, and
     * sides fill it as far as multiples allow, small images too. */
    const uint32_t *budgets;
    uint32_t places; /* with budgets, > 0: the tower tells so many columns and rows of patches apart */
    /* Transparent pixels are blended over white, as in the family's processor. false: the alpha channel is
     * dropped and the colors stay, as in the reference's loader. */
    bool on_white;
    /* Videos (video: the checkpoint's settings for them are usable). */
    bool video;
    bool video_uniform; /* video_frames_max frames, evenly spaced, whatever the rate */
    bool video_volume;  /* areas are over all frames, which are chosen evenly from first to last */
    uint64_t video_area_min, video_area_max; /* per frame, or over all frames (video_volume) */
    uint64_t video_cap_tokens;               /* max_video_tokens if cap_pixels_per_frame is on; 0 = off */
    double video_fps;                        /* frames sampled per second */
    uint32_t video_frames_min, video_frames_max;
};

static inline uint32_t image_multiple(const struct image_config *c)
{
    return c->multiple ? c->multiple : c->patch * c->merge;
}

/* The attention mask of a span. Every token attends to all tokens before it (in sliding layers: within the
 * window). Tokens outside of spans attend to nothing after them. */
enum span_rule {
    SPAN_CAUSAL = 0,            /* as text */
    SPAN_BIDIRECTIONAL,         /* each also attends to what follows it in [atomic_begin, atomic_end) */
    SPAN_BIDIRECTIONAL_SLIDING, /* the same in sliding layers, as text in full ones */
    SPAN_BIDIRECTIONAL_ANY, /* each attends to all of [atomic_begin, atomic_end) before and after it, whatever
                               the window */
    SPAN_PREFIX_LM,         /* the same of the whole prompt */
};

#endif

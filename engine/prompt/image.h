/* A decoded image, and the image settings of a model. Pure functions, thread-safe, caller-owned memory; no
 * file formats here (decoding is server/media/image_decode.h). Resampling is bit-exact to the reference
 * processors. */
#ifndef KVASIR_IMAGE_H
#define KVASIR_IMAGE_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 8-bit RGB, rows top to bottom, no padding: rgb[((f*height + y)*width + x)*3 + channel]. */
struct image_u8 {
    uint32_t width, height; /* pixels, >= 1 */
    uint32_t frames;        /* of a video or a part of one, all of one size; 0 = a still image */
    uint8_t *rgb;           /* owned: image_u8_free; image_u8_bytes() */
};
void image_u8_free(struct image_u8 *img);
/* width * height * 3 * frames; can't overflow: sizes were checked at creation. */
static inline size_t image_u8_bytes(const struct image_u8 *img)
{
    return (size_t)img->width * img->height * 3 * (img->frames ? img->frames : 1);
}

enum image_filter {
    IMAGE_BILINEAR = 2,
    IMAGE_BICUBIC = 3
}; /* PIL's codes, as in preprocessor_config.json `resample` */
enum image_resize_mode {
    IMAGE_TORCH_U8 = 0, /* torchvision's uint8 antialias kernel: what transformers' default processors do */
    IMAGE_PIL = 1,      /* Pillow 13 */
};

/* Separable antialiased resize, rounded to bytes between the passes. Horizontal pass first, except where
 * Pillow does otherwise. ST_NOMEM, ST_INVALID (a size of 0 or over 65,535). dst is allocated here. */
enum status image_resize(const struct image_u8 *src, uint32_t width, uint32_t height,
                         enum image_filter filter, enum image_resize_mode mode, struct image_u8 *dst,
                         struct err *err) KV_MUST_CHECK;

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
    bool pan_and_scan; /* crops of extreme aspect ratios; default off */
    uint32_t pan_min_crop, pan_max_crops;
    double pan_min_ratio;
    /* Dynamic resolution: sides become multiples of patch * merge, the area lies in [area_min, area_max].
     * dynamic false: width x height above. */
    bool dynamic;
    uint32_t patch, merge, depth; /* patch_size, merge_size, temporal_patch_size */
    uint64_t area_min, area_max;  /* pixels: min_pixels/max_pixels or size.shortest_edge/longest_edge */
    /* NULL, or the allowed token budgets (ascending, 0-terminated): area_max is the area of one of them, and
     * sides fill it as far as multiples allow, small images too. */
    const uint32_t *budgets;
    /* Transparent pixels are blended over white, as in the family's tools and processor. false: the alpha
     * channel is dropped and the colours stay, as in the reference's loader. */
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

/* lut[c*256 + v] = the normalised float of byte v in channel c, computed as the processor's float32
 * arithmetic does (fused rescale and normalise of the torchvision backend): y = (float32(v) - mean*255) /
 * (std*255). */
void image_lut(const struct image_config *cfg, float lut[3 * 256]);

#endif

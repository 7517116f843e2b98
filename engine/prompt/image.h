/* A decoded image, and its resizing. Pure functions, thread-safe, caller-owned memory; no
 * file formats here (decoding is server/media/image_decode.h). Resampling is bit-exact to the reference
 * processors. */
#ifndef KVASIR_IMAGE_H
#define KVASIR_IMAGE_H

#include "config/base/status.h"
#include "engine/model/image_config.h"

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

/* Separable antialiased resize, rounded to bytes between the passes. Horizontal pass first, except where
 * Pillow does otherwise. ST_NOMEM, ST_INVALID (a size of 0 or over 65,535). dst is allocated here. */
enum status image_resize(const struct image_u8 *src, uint32_t width, uint32_t height,
                         enum image_filter filter, enum image_resize_mode mode, struct image_u8 *dst,
                         struct err *err) KV_MUST_CHECK;

/* lut[c*256 + v] = the normalised float of byte v in channel c, computed as the processor's float32
 * arithmetic does (fused rescale and normalise of the torchvision backend): y = (float32(v) - mean*255) /
 * (std*255). */
void image_lut(const struct image_config *cfg, float lut[3 * 256]);

#endif

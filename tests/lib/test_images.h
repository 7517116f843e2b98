/* Images of any token grid and their spans in a prompt, for tests that run whole prompts through a scheduler.
 * Pixels are random from a seed, or given and prepared by the checkpoint's settings. No files. */
#ifndef KVASIR_TEST_IMAGES_H
#define KVASIR_TEST_IMAGES_H

#include "engine/model/model_info.h"
#include "engine/prompt/prompt.h"

struct test_image {
    uint32_t content;        /* number of the bytes that it was made from */
    uint32_t width, height;  /* original size */
    struct image_u8 pixels;  /* as the tower takes them; owned, image_free */
    struct prompt_grid grid; /* all 0 for families with plain positions and no breaks */
    uint32_t rows;           /* tokens */
};

/* Pixels per side of one token; 0 where all images have one size. */
uint32_t image_unit(const struct model_info *m);
/* Prepares width x height bytes of RGB as the checkpoint does. With dynamic sizes its area is bounded to
 * [area_min, area_max] pixels. Aborts on failure. */
struct test_image image_prepare(const struct model_info *m, uint32_t content, uint32_t width, uint32_t height,
                                uint8_t *rgb, uint64_t area_min, uint64_t area_max);
/* An image of h x w tokens (of the checkpoint's own size where that is fixed), random bytes from the seed.
 * frames > 0: a part of a video of that many frames (a multiple of the depth), `seconds` as in struct
 * prompt_grid. */
struct test_image image_make(const struct model_info *m, uint32_t content, uint32_t w, uint32_t h,
                             uint32_t frames, double seconds, uint64_t seed);
void image_free(struct test_image *p);
/* Number, sizes before and after, frames: injective over images whose contents differ. */
void image_key(const struct test_image *p, uint8_t key[32]);

/* out [3, height, width] f32 = lut[c*256 + byte]: `pixel_values` of the reference. lut from image_lut. */
void image_to_chw(const struct image_u8 *img, const float lut[3 * 256], float *out);

/* A place in a prompt, all but the offset. The pixels are borrowed. */
struct prompt_span image_at(const struct model_info *m, const struct test_image *p, uint32_t begin);
/* The scan from left to right: the delta after every image from the grids before it. */
void images_scan(struct prompt_span *images, uint32_t count);

#endif

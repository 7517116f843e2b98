/* From a decoded image or video to the vision tower's input: the family's sizes, crops and resize, the grid
 * of tokens. Pure functions on worker threads; no file formats of images, no
 * tensors. Source of the rules: transformers 5.23. */
#ifndef KVASIR_IMAGE_PREP_H
#define KVASIR_IMAGE_PREP_H

#include "config/base/status.h"
#include "engine/prompt/image.h"
#include "engine/prompt/prompt.h"

#include <stdint.h>

/* ---- sizes: families with dynamic resolution (image_dynamic.c) ---- */

/* The area of a budget of so many tokens; false: not a budget of the family. */
bool image_budget(const struct image_config *cfg, uint64_t tokens, uint64_t *area);

/* A request's bounds for the size of still images, in pixels; 0 = the checkpoint's. */
struct image_bounds {
    uint64_t area_min, area_max;
    uint32_t width, height; /* size and shape as if the image had these sides */
    uint32_t tiles;         /* the most */
};
/* Applies them to a copy of the checkpoint's settings; if the size is fixed, only tiles. An area_min above
 * the resulting area_max becomes that. */
void image_config_bound(struct image_config *cfg, const struct image_bounds *bounds);

/* The size in pixels that an image (frames 0) or each frame of a video is resized to. ST_INVALID, with a
 * message for the client: sides of more than 200 : 1, too few frames, or a size that is impossible without
 * resize. */
enum status image_target(const struct image_config *cfg, uint32_t width, uint32_t height, uint32_t frames,
                         uint32_t *to_width, uint32_t *to_height, struct err *err) KV_MUST_CHECK;

/* Tokens of an image that has been resized: {t, h, w}, with t = frames / depth rounded up, 1 for a still
 * one; seconds = 0. All 0 for families of fixed size. */
struct prompt_grid image_grid(const struct image_config *cfg, uint32_t width, uint32_t height,
                              uint32_t frames);

/* Which frames of a video are used, and at what time each is shown. */
struct image_sample {
    uint32_t *frames; /* [count] indices, ascending (short videos: with repetitions); owned, free() */
    uint32_t count;
    double fps; /* of what was chosen */
};
/* From `total` frames at `fps` per second, as the processor class does at cfg->video_fps. ST_INVALID: fewer
 * frames than the family needs. */
enum status image_video_sample(const struct image_config *cfg, uint32_t total, double fps,
                               struct image_sample *out, struct err *err) KV_MUST_CHECK;
/* stamps [ceil(count / depth)]: seconds in the middle of each group of `depth` frames; the last frame is
 * repeated where some are missing. */
void image_video_stamps(const struct image_config *cfg, const uint32_t *frames, uint32_t count, double fps,
                        double *stamps);

/* ---- pixels ---- */

/* The images that one input image becomes: the whole first, then the pan-and-scan crops (row by row), all
 * at the target size; or tiles (row by row) and, before or after them, the whole, if it is more than one
 * tile. */
struct image_prepared {
    struct image_u8 *images; /* owned: image_prepared_free */
    uint32_t count;          /* >= 1 */
    uint32_t rows, columns;  /* of tiles; 0: not by tiles */
};
void image_prepared_free(struct image_prepared *p);

/* Crops and resizes a still image. ST_INVALID as image_target, and if the settings disable the resize and src
 * has a different size; ST_NOMEM. */
enum status image_prep(const struct image_config *cfg, const struct image_u8 *src, struct image_prepared *out,
                       struct err *err) KV_MUST_CHECK;

#endif

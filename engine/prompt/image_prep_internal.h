/* Shared by image_prep.c and image_tiles.c. */
#ifndef KVASIR_IMAGE_PREP_INTERNAL_H
#define KVASIR_IMAGE_PREP_INTERNAL_H

#include "engine/prompt/image_prep.h"

#define IMAGE_TILES_MAX 256u

/* A copy of width x height pixels at (x, y), cut at the border; it is never empty. */
enum status image__cut(const struct image_u8 *src, uint32_t x, uint32_t y, uint32_t width, uint32_t height,
                       struct image_u8 *out, struct err *err) KV_MUST_CHECK;
/* Resized to the size of image_target. */
enum status image__to_target(const struct image_config *cfg, const struct image_u8 *src, struct image_u8 *out,
                             struct err *err) KV_MUST_CHECK;
/* image_prep by cfg->tiles. After an error the caller frees *out. */
enum status image__tile(const struct image_config *cfg, const struct image_u8 *src,
                        struct image_prepared *out, struct err *err) KV_MUST_CHECK;

#endif

/* From a decoded picture to what the vision tower sees: settings from a checkpoint's folder, the family's crops and resize, and the table
 * look-up to floats. Pure functions on worker threads; no file formats of pictures, no tensors. Source of the rules: specs gemma3 §5 and
 * image-preprocess §1, §3. */
#ifndef KVASIR_IMAGE_PREP_H
#define KVASIR_IMAGE_PREP_H

#include "config/base/status.h"
#include "engine/image.h"

#include <stdint.h>

/* Reads `image_processor` of dir/processor_config.json or, where that is absent, dir/preprocessor_config.json. Absent and null keys get the
 * defaults of the class that the family uses. model_type: as in config.json ("gemma3"). ST_NOT_FOUND when neither file has settings;
 * ST_UNSUPPORTED for a family, a filter (only 2 = bilinear and 3 = bicubic) or a step that we don't do; ST_FORMAT for values of a wrong
 * type or out of range. */
enum status image_config_load(const char *dir, const char *model_type, struct image_config *out, struct err *err) KV_MUST_CHECK;

/* The pictures that one input picture becomes: the whole first, then the pan-and-scan crops (row by row), all at the target size. */
struct image_prepared {
    struct image_u8 *images; /* owned: image_prepared_free */
    uint32_t count;          /* >= 1; count - 1 crops */
};
void image_prepared_free(struct image_prepared *p);

/* Crops and resizes (aspect ratio ignored). ST_INVALID when the settings switch the resize off and src has another size; ST_NOMEM. */
enum status image_prep(const struct image_config *cfg, const struct image_u8 *src, struct image_prepared *out,
                       struct err *err) KV_MUST_CHECK;

/* Number of crops that image_prep adds to the whole picture: what the prompt has to make room for. */
uint32_t image_crop_count(const struct image_config *cfg, uint32_t width, uint32_t height);

/* out [3, height, width] f32 = lut[c*256 + byte]: `pixel_values` of the reference. lut from image_lut. */
void image_to_chw(const struct image_u8 *img, const float lut[3 * 256], float *out);

#endif

/* One image or video of a request: from its file to the pixels for the vision tower and the data for the
 * prompt. Runs on worker threads; pure. The same function handles a new file and a known one whose pixels are
 * needed later: the results must agree bit for bit. */
#ifndef KVASIR_IMAGE_PARTS_H
#define KVASIR_IMAGE_PARTS_H

#include "engine/prompt/image_prep.h"
#include "engine/model/model_info.h"
#include "engine/prompt/prompt.h"
#include "server/media/image_decode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request's options for an image: everything besides the file that can change the result. */
struct image_ask {
    bool video;
    bool list;                  /* the bytes are many files, one per frame (image_pack) */
    double fps;                 /* frames per second of a list; 0 = not given */
    struct image_bounds bounds; /* of still images */
};

/* The prompt entries (prompt_image) of one file: several for tiles, crops and videos with timestamps. */
struct image_parts {
    uint32_t count, rows, columns; /* as of struct prompt_image */
    struct prompt_grid *grids;     /* [count]; owned, with the two below in one block: image_parts_free */
    double *stamps;                /* [count] seconds; 0 without timestamps */
    uint8_t (*keys)[32];           /* [count] content keys */
};
bool image_parts_new(uint32_t count, struct image_parts *out); /* zeroed; false: out of memory */
bool image_parts_copy(const struct image_parts *from, struct image_parts *out);
void image_parts_free(struct image_parts *p);

/* A request's bounds, combined with one image's `detail: low` (low): at most IMAGE_LOW_TOKENS tokens. */
#define IMAGE_LOW_TOKENS 256u
struct image_bounds image_bounds_of(const struct image_config *cfg, const struct image_bounds *asked,
                                    bool low);

/* Appends one file to a buffer of the frame files of one video, each preceded by its length, 32 bits
 * little-endian. The limit applies to the whole; *bytes is realloc'ed. */
enum image_error image_pack(uint8_t **bytes, size_t *len, const uint8_t *file, size_t file_len,
                            const struct image_limits *limits, struct err *err);

/* Decodes, prepares, and computes grids, times and keys. `rule`, `family`: of the checkpoint (model_info).
 * Both outputs are set on IMAGE_OK only, with equal numbers of entries. */
enum image_error image_from_file(const struct model_image_rule *rule, const char *family,
                                 const struct image_ask *ask, const uint8_t *bytes, size_t len,
                                 struct image_prepared *out, struct image_parts *parts, struct err *err);

#endif

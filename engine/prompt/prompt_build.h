/* From rendered text and prepared images to a prompt: placeholders, tokens, spans. Pure functions on worker
 * threads. The chat template writes a marker for each image. User text never becomes a marker (control tokens
 * are not matched in it). */
#ifndef KVASIR_PROMPT_BUILD_H
#define KVASIR_PROMPT_BUILD_H

#include "config/base/status.h"
#include "engine/model/model_info.h"
#include "engine/prompt/prompt.h"
#include "engine/tokenizer/tokenizer.h"

/* One image of a request from image_prep: the whole and its crops, or its tiles, each with its content
 * key. Or one video: all of its frames as one entry, or, for families that write timestamps, one entry per
 * group of frames. */
struct prompt_image {
    struct image_u8 *images;   /* [count]; on success the pixels move into the prompt and `rgb` becomes NULL
                                  here. NULL: not decoded, the keys are cached; the prompt's pixels stay
                                  NULL */
    const uint8_t (*keys)[32]; /* [count], borrowed for the call */
    uint32_t count;            /* >= 1 */
    uint32_t rows, columns;    /* of tiles; 0: not by tiles */
    bool video;
    const struct prompt_grid *grids; /* [count], borrowed: how many tokens each takes and where they lie. May
                                      * be NULL where the rule has a fixed number of tokens */
    const double *stamps; /* [count], borrowed: seconds, for a video with rule.video_stamp; else NULL */
};

/* Replaces the k-th marker (of images and videos together) that is wholly in TOK_CONTROL_ALL text by image k
 * (model_image_rule; the family's layout around tiles and crops; the text after the last one), tokenizes
 * the whole, gives each image its span of placeholder tokens, and with rule.grid the rope offsets. Spans
 * follow from the number of tokens of each image, so adjacent images stay separate. add_special: as for
 * tok_encode. ST_INVALID, with a message for the client: other markers than images; images for a text model,
 * videos for a model without; a placeholder token in the text; an empty prompt; a token that the model has no
 * row for. ST_TOO_LARGE: more than token_max tokens, detected before anything is allocated for the images. On
 * error *out is untouched and the images stay with the caller. */
enum status prompt_build(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs,
                         size_t run_count, bool add_special, struct prompt_image *images,
                         uint32_t image_count, uint32_t token_max, struct prompt *out,
                         struct err *err) KV_MUST_CHECK;

/* The part of the input that a token comes from: [token, next entry's token) all have `tag`. */
struct prompt_origin {
    uint32_t token, tag;
};
#define PROMPT_TAG_IMAGE                                                                                     \
    0x80000000u /* | index of the image: its placeholder tokens and what the processor writes around them */

/* The origins of all tokens of `p`, which prompt_build made from the same runs and images. tags[run_count],
 * below PROMPT_TAG_IMAGE: 0 for text that comes from the template only. A token that covers several runs gets
 * the first tag that is not 0. The bytes of the tokens are aligned with the text. Where the tokenizer changed
 * the text (normalisation, repair, removed spaces) the alignment continues at the next match, so an origin
 * may be off by some tokens there. O(text). *out: [*count] in order of token, owned; NULL for count 0. */
enum status prompt_origins(const struct model_info *m, const struct tokenizer *t, const struct tok_run *runs,
                           const uint32_t *tags, size_t run_count, const struct prompt_image *images,
                           uint32_t image_count, const struct prompt *p, struct prompt_origin **out,
                           size_t *count, struct err *err) KV_MUST_CHECK;

/* Whether the engine can run it: not empty, every id outside of an image's span has a row in the embedding
 * and is not the placeholder. prompt_build checks this; call it for prompts from elsewhere.
 * ST_INVALID names the id. */
enum status prompt_check(const struct model_info *m, const struct prompt *p, struct err *err) KV_MUST_CHECK;

/* Applies the family's rule for a whole prompt, whose images have their keys: its spans. prompt_build calls
 * it; call it for prompts from elsewhere, and again after removing tokens. */
enum status prompt_apply_rule(const struct model_info *m, struct prompt *p, struct err *err) KV_MUST_CHECK;

#endif

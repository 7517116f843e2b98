/* Reads the golden folders of tests/golden: the cases of golden.safetensors and golden.json next to a
 * checkpoint. */
#ifndef KVASIR_TEST_GOLDEN_H
#define KVASIR_TEST_GOLDEN_H

#include "engine/prompt/image_prep.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/lib/mini_sched.h"

#define GOLDEN_IMAGES_MAX 40u

struct golden_case {
    char name[64];
    const uint32_t *prompt; /* [prompt_count] */
    uint32_t prompt_count;
    const uint32_t *greedy; /* [greedy_count], and one more entry */
    uint32_t greedy_count;
    /* [row_count, vocab]: row i predicts the token after token rows[i]; the float32 run */
    const float *logprobs;
    uint32_t row_count;
    const uint32_t *rows; /* [row_count], ascending; all of prompt and greedy tokens in tests/golden/gemma3 */
    const float *logprobs_bf16; /* [row_count, vocab] transformers' own bf16 run, or NULL */
    /* [2] largest and mean |delta| of that run over all rows, stored or not; or NULL */
    const float *bf16_delta;
    const float *follow;      /* [prompt_count + greedy_count - 1] log-prob of token t + 1, or NULL */
    const int32_t *positions; /* [3, prompt_count + greedy_count] rope positions, or NULL */
    const float *gaps;        /* [greedy_count] log-prob of the first minus that of the second choice */
    uint32_t vocab;
    struct mini_image images[GOLDEN_IMAGES_MAX];  /* prepared pixels and spans */
    const float *pixel_values[GOLDEN_IMAGES_MAX]; /* [3, h, w], or NULL */
    /* [8, 3 * depth * patch * patch] of the first patches, or NULL */
    const float *patches[GOLDEN_IMAGES_MAX];
    uint32_t image_count;
    void *owned[2 * GOLDEN_IMAGES_MAX + 10];
    uint32_t owned_count;
};
struct golden {
    char dir[512];
    struct stf_files *files;
    struct golden_case *cases;
    uint32_t case_count;
};

/* The folders of tests/golden, found from the working directory or KVASIR_TEST_ROOT, and the variants in one
 * of them (none: it holds something else), in order of name. */
const char *golden_root(void);
uint32_t golden_families(char names[][64], uint32_t max);
uint32_t golden_variants(const char *family, char names[][64], uint32_t max);
void golden_dir(char *out, size_t cap, const char *family, const char *variant);
/* Log-probs of the vocabulary after token `row`, as in .logprobs or .logprobs_bf16; NULL when they are not
 * stored. */
const float *golden_row(const struct golden_case *c, const float *logprobs, uint32_t row);
/* Aborts with a message if the folder is malformed, or an image is not resized to the stored bytes. config:
 * the image settings of the checkpoint, NULL for text. */
void golden_open(struct golden *g, const char *family, const char *variant,
                 const struct image_config *config);
void golden_close(struct golden *g);

#endif

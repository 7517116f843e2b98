/* Reads the golden folders of tests/golden: the cases of golden.safetensors and golden.json beside a checkpoint. */
#ifndef KVASIR_TEST_GOLDEN_H
#define KVASIR_TEST_GOLDEN_H

#include "engine/image_prep.h"
#include "engine/safetensors.h"
#include "tests/lib/mini_sched.h"

#define GOLDEN_IMAGES_MAX 8u

struct golden_case {
    char name[64];
    const uint32_t *prompt; /* [prompt_count] */
    uint32_t prompt_count;
    const uint32_t *greedy; /* [greedy_count], and one more entry */
    uint32_t greedy_count;
    const float *logprobs;      /* [prompt_count + greedy_count, vocab]: row t is about token t + 1; the float32 run */
    const float *logprobs_bf16; /* transformers' own bf16 run, or NULL */
    const float *gaps;          /* [greedy_count] log-prob of the first minus that of the second choice */
    uint32_t vocab;
    struct mini_image images[GOLDEN_IMAGES_MAX];  /* prepared pixels and spans */
    const float *pixel_values[GOLDEN_IMAGES_MAX]; /* [3, h, w] */
    uint32_t image_count;
    void *owned[GOLDEN_IMAGES_MAX + 8];
    uint32_t owned_count;
};
struct golden {
    char dir[512];
    struct stf_files *files;
    struct golden_case *cases;
    uint32_t case_count;
};

/* Folder of tests/golden/<family>/, found from the working directory or KVASIR_TEST_ROOT. Lists the variants in order of name. */
const char *golden_root(void);
uint32_t golden_variants(const char *family, char names[][64], uint32_t max);
void golden_dir(char *out, size_t cap, const char *family, const char *variant);
/* Aborts with a message when the folder isn't as it should be. config: the image settings of the checkpoint, NULL for text. */
void golden_open(struct golden *g, const char *family, const char *variant, const struct image_config *config);
void golden_close(struct golden *g);

#endif

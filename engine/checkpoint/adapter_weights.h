/* What an adapter (LoRA) adds to the products of a description, y += B (A x), packed through a backend. Knows
 * no files: their pairs of matrices have the names of the description. */
#ifndef KVASIR_ADAPTER_WEIGHTS_H
#define KVASIR_ADAPTER_WEIGHTS_H

#include "engine/checkpoint/weights.h"

/* The two matrices of one linear in the files. */
struct adapter_pair {
    char name[DESC_NAME_MAX];       /* canonical, without ".weight" */
    const struct stf_tensor *a, *b; /* [r, K], [N, r]; NULL: missing */
    double scale;                   /* of the product */
    bool used;
};

/* All that an adapter adds to one packed weight, whose parts (q|k|v, gate and up) have a pair each or none: A
 * is one above another, B has a block for each part. */
struct adapter_matrix {
    const struct be_weight *base;
    struct be_weight *a, *b; /* [R, K], [N, R] in the order of the parts */
    uint32_t k, n, rank;     /* R: of all parts */
    bool glu;
};
struct adapter_sizes {
    uint32_t k, n; /* most inputs of a product, and most outputs of one but the head */
};

struct adapter_weights {
    struct adapter_matrix *matrices; /* [count] by base; owned */
    uint32_t count, rank_max;        /* of a pair */
    bool touches_images;
    uint8_t digest[32];
};

/* Those of w. pairs: sorted by name; those that the model has no use for (unserved towers, keys that no layer
 * reads) are left out, any other that is not a product of it is ST_FORMAT. limits NULL: any rank. ops NULL:
 * only checks and digest, and w may be NULL. */
enum status adapter_weights_load(const struct model_desc *desc, const struct weights *w,
                                 struct adapter_pair *pairs, size_t count, const struct adapter_sizes *limits,
                                 const struct be_ops *ops, struct backend *be, struct adapter_weights *out,
                                 struct err *err) KV_MUST_CHECK;
void adapter_weights_free(struct adapter_weights *a, const struct be_ops *ops, struct backend *be);
/* Of all products of the description. */
enum status adapter_sizes_of(const struct model_desc *desc, struct adapter_sizes *out,
                             struct err *err) KV_MUST_CHECK;

#endif

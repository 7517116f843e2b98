/* The end of be_ops.route, the same for every set: which experts, and their weights. Experts are selected by
 * logit (softmax keeps the order), so the choice does not depend on the last bits of a set's exponential. */
#ifndef KVASIR_CPU_ROUTE_H
#define KVASIR_CPU_ROUTE_H

#include "kernels/cpu/internal.h"

#include <math.h>

struct route_job {
    const struct be_route_args *a;
    struct backend *b;
};

/* Ids of the k largest of x[n], descending, ties by lower id; NaN counts as -infinity. */
static inline void route_select(const float *x, uint32_t n, uint32_t k, uint32_t *ids)
{
    float top[BE_EXPERTS_K_MAX];
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        float v = isnan(x[i]) ? -INFINITY : x[i];
        if (have == k && !(v > top[k - 1])) continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && v > top[at - 1]; at--) {
            top[at] = top[at - 1];
            ids[at] = ids[at - 1];
        }
        top[at] = v;
        ids[at] = i;
    }
}

/* Chooses row t's experts. e: exponentials of all logits (less the largest), inv: 1 / their sum. */
static inline void route_finish(const struct be_route_args *a, uint32_t t, const float *e, float inv)
{
    uint32_t *ids = a->ids + (size_t)t * a->k;
    float *w = a->weights + (size_t)t * a->k, sum = 0;
    route_select(a->logits + (size_t)t * a->experts, a->experts, a->k, ids);
    for (uint32_t i = 0; i < a->k; i++) {
        w[i] = e[ids[i]] * inv;
        sum += w[i];
    }
    for (uint32_t i = 0; a->renorm && i < a->k; i++) w[i] /= sum;
    for (uint32_t i = 0; a->scale && i < a->k; i++) w[i] *= a->scale[ids[i]];
}

#endif

/* Routing and experts in plain C: the oracle of the vector files. One row after the other, its experts in
 * ascending order, by the plain linear. */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/route.h"

/* ---- route */

static void ref__route_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct route_job *j = ctx;
    const struct be_route_args *a = j->a;
    float *e = cpu_thread_scratch(j->b, worker);
    for (uint32_t t = begin; t < end; t++) {
        const float *x = a->logits + (size_t)t * a->experts;
        float top = -INFINITY;
        double sum = 0;
        for (uint32_t i = 0; i < a->experts; i++) top = x[i] > top ? x[i] : top;
        for (uint32_t i = 0; i < a->experts; i++) {
            e[i] = expf(x[i] - top);
            sum += (double)e[i];
        }
        route_finish(a, t, e, (float)(1.0 / sum));
    }
}

void ref_route(struct backend *b, const struct be_route_args *a)
{
    ASSERT((size_t)a->experts * sizeof(float) <= CPU_THREAD_SCRATCH);
    struct route_job job = {a, b};
    cpu_pool_run(b->pool, a->t, 16, ref__route_range, &job);
}

/* ---- experts. scratch: one row of the hidden width (act), one of the output (f32). */

/* Index of the smallest id above `last` (for equal ids: that comes after it); k at the end. */
static uint32_t ref__next_expert(const uint32_t *ids, uint32_t k, uint32_t last)
{
    uint32_t best = k;
    for (uint32_t i = 0; i < k; i++) {
        bool after = last == UINT32_MAX || ids[i] > ids[last] || (ids[i] == ids[last] && i > last);
        if (after && (best == k || ids[i] < ids[best])) best = i;
    }
    return best;
}

void ref_experts(struct backend *b, const struct be_experts_args *a)
{
    size_t elem = be_dtype_bytes(b->act);
    char *hidden = a->scratch;
    float *y = (float *)(void *)(hidden + be_ld(a->ff) * elem);
    for (uint32_t t = 0; t < a->t; t++) {
        const uint32_t *ids = a->ids + (size_t)t * a->k;
        float *out = a->out + (size_t)t * a->c;
        memset(out, 0, a->c * sizeof *out);
        for (uint32_t i = ref__next_expert(ids, a->k, UINT32_MAX); i < a->k;
             i = ref__next_expert(ids, a->k, i)) {
            struct be_linear_args up = {.w = a->glu[ids[i]],
                                        .x = (const char *)a->x + t * be_ld(a->c) * elem,
                                        .t = 1,
                                        .epilogue = a->gate,
                                        .out = hidden};
            ref_linear_bf16(b, &up); /* the type is the weight's */
            struct be_linear_args down = {
                .w = a->down[ids[i]], .x = hidden, .t = 1, .epilogue = BE_EPI_F32, .out = y};
            ref_linear_bf16(b, &down);
            for (uint32_t c = 0; c < a->c; c++) out[c] += a->weights[(size_t)t * a->k + i] * y[c];
        }
    }
}

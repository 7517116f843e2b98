/* Statistics and the largest values of logit rows in plain C: the oracle of the vector files. One row is one
 * chunk of work. */
#include "kernels/cpu/internal.h"

#include <math.h>

static void ref__stats_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_logits_args *a = ctx;
    for (uint32_t r = begin; r < end; r++) {
        float *x = a->logits + (size_t)r * a->v;
        struct be_logit_stats *s = &a->stats[r];
        *s = (struct be_logit_stats){.max = -INFINITY};
        for (uint32_t i = 0; i < a->v; i++) {
            if (a->softcap > 0) x[i] = a->softcap * tanhf(x[i] / a->softcap);
            if (x[i] > s->max) {
                s->max = x[i];
                s->argmax = i;
            }
        }
        double sum = 0;
        for (uint32_t i = 0; i < a->v; i++) sum += exp((double)x[i] - (double)s->max);
        s->lse = s->max == -INFINITY ? -INFINITY : (float)((double)s->max + log(sum));
        if (!a->targets || a->targets[r] == UINT32_MAX) continue;
        uint32_t id = a->targets[r];
        ASSERT(id < a->v);
        s->target = x[id];
        s->target_rank = 1;
        for (uint32_t i = 0; i < a->v; i++) s->target_rank += x[i] > x[id] || (x[i] == x[id] && i < id);
    }
}

void ref_logit_stats(struct backend *b, const struct be_logits_args *a)
{
    struct be_logits_args job = *a;
    cpu_pool_run(b->pool, a->r, 1, ref__stats_range, &job);
}

static void ref__topk_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_topk_args *a = ctx;
    for (uint32_t r = begin; r < end; r++) {
        const float *x = a->logits + (size_t)r * a->v;
        uint32_t *ids = a->ids + (size_t)r * a->k, held = 0;
        float *values = a->values + (size_t)r * a->k;
        for (uint32_t i = 0; i < a->v; i++) {
            float v = isnan(x[i]) ? -INFINITY : x[i]; /* NaN ranks last */
            if (held == a->k && v <= values[held - 1]) continue;
            uint32_t at = held < a->k ? held++ : held - 1;
            for (; at > 0 && values[at - 1] < v; at--) {
                values[at] = values[at - 1];
                ids[at] = ids[at - 1];
            }
            values[at] = v;
            ids[at] = i;
        }
    }
}

void ref_topk(struct backend *b, const struct be_topk_args *a)
{
    struct be_topk_args job = *a;
    cpu_pool_run(b->pool, a->r, 1, ref__topk_range, &job);
}

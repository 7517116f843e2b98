/* Attention in plain C: the oracle of the vector files. One work item is one row; a row walks its visible
 * keys in tiles of one KV block (32 absolute positions), ascending, with an online softmax. The tiles depend
 * only on the row's lo and hi. */
#include "kernels/cpu/attn/unpack.h"
#include "kernels/cpu/internal.h"

#include <math.h>

#define REF_HEAD_MAX 1024u

struct ref_attn {
    const struct be_attn_args *a;
    struct backend *b;
};

/* State of one (row, head): sum of exp(s - max), and the same weights times the values. */
struct ref_softmax {
    float max, sum, out[REF_HEAD_MAX];
};

static void ref__attn_tile(const struct ref_attn *j, const void *k, const void *v, const float *q,
                           uint32_t first, uint32_t lo, uint32_t hi, struct ref_softmax *s)
{
    const struct be_attn_args *a = j->a;
    uint32_t d = a->kv.head_dim, dpad = kv_dpad(j->b->act, d);
    float score[KV_SLOTS], tile_max = -INFINITY;
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++) {
        score[slot] = -INFINITY;
        if (first + slot < lo || first + slot > hi) continue;
        float dot = 0;
        for (uint32_t i = 0; i < d; i++)
            dot += q[i] * act_get(k, j->b->act, kv_k_idx(j->b->act, dpad, slot, i));
        dot *= a->scale;
        score[slot] = a->softcap > 0 ? a->softcap * tanhf(dot / a->softcap) : dot;
        if (score[slot] > tile_max) tile_max = score[slot];
    }
    if (tile_max == -INFINITY) return; /* nothing visible to the row */
    float new_max = tile_max > s->max ? tile_max : s->max, rescale = expf(s->max - new_max);
    s->max = new_max;
    s->sum *= rescale;
    for (uint32_t i = 0; i < d; i++) s->out[i] *= rescale;
    for (uint32_t slot = 0; slot < KV_SLOTS; slot++) {
        if (first + slot < lo || first + slot > hi) continue;
        float p = expf(score[slot] - new_max);
        s->sum += p;
        for (uint32_t i = 0; i < d; i++)
            s->out[i] += p * act_get(v, j->b->act, kv_v_idx(j->b->act, dpad, slot, i));
    }
}

static void ref__attn_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct ref_attn *j = ctx;
    const struct be_attn_args *a = j->a;
    const struct be_rows *r = a->rows;
    char *unpacked = cpu_thread_scratch(j->b, worker);
    uint32_t d = a->kv.head_dim, per_kv = a->heads / a->kv.kv_heads;
    size_t ld = be_ld((size_t)a->heads * d);
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t *table = r->tables + r->seq_table[rows_seq(r, t)];
        for (uint32_t h = 0; h < a->heads; h++) {
            float q[REF_HEAD_MAX];
            for (uint32_t i = 0; i < d; i++)
                q[i] = act_get(a->q, j->b->act, ((size_t)t * a->heads + h) * d + i);
            struct ref_softmax s = {.max = -INFINITY};
            for (uint32_t block = r->lo[t] / KV_SLOTS; block <= r->hi[t] / KV_SLOTS; block++) {
                ASSERT(table[block] != BE_NO_BLOCK);
                void *layer = kv_layer(&a->kv, table[block]);
                void *k = kv_k(layer, j->b->act, d, h / per_kv), *v = kv_v(layer, j->b->act, d, h / per_kv);
                if (a->kv.type != BE_KV_ACT) {
                    struct kv_q8 c = kv_q8(layer, j->b->act, d, h / per_kv);
                    k = kv_k(unpacked, j->b->act, d, 0);
                    v = kv_v(unpacked, j->b->act, d, 0);
                    kv_unpack(k, v, &c, j->b->act, d, NULL);
                }
                ref__attn_tile(j, k, v, q, block * KV_SLOTS, r->lo[t], r->hi[t], &s);
            }
            for (uint32_t i = 0; i < d; i++) act_put(a->out, j->b->act, t * ld + h * d + i, s.out[i] / s.sum);
        }
        for (size_t i = (size_t)a->heads * d; i < ld; i++) act_put(a->out, j->b->act, t * ld + i, 0.0f);
    }
}

void ref_attn(struct backend *b, const struct be_attn_args *a)
{
    struct ref_attn job = {a, b};
    cpu_pool_run(b->pool, a->rows->t, 1, ref__attn_range, &job);
}

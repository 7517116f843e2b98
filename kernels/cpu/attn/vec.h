/* The walk of the vector attention files (AVX2, AVX-512). Unless the file defines ATTN_OWN_PRODUCTS,
 * attn__vec_scores and attn__vec_values, one product serves both:
 *
 *   c[row][v] (+)= sum over step of a[row][step] * b[v][step]
 *     a: 4 bytes per step (one f32, or a pair of bf16), broadcast; b: VL lanes
 *
 * Included after  struct vf vf_mac_bf16(struct vf acc, uint32_t pair, const void *b)  is defined; f32 uses
 * vf_fma. Each sum runs over the steps in ascending order, whatever the number of rows. */
#ifndef KVASIR_CPU_ATTN_VEC_H
#define KVASIR_CPU_ATTN_VEC_H

#include "kernels/cpu/attn/driver.h"

ATTN_INLINE float attn__row_sum(const struct attn_work_item *w, uint32_t r)
{
    return vf_sum(vf_load(w->sum + r * VL));
}
ATTN_INLINE uint32_t attn__o_stride(uint32_t dpad, uint32_t d)
{
    (void)d;
    return dpad;
}
ATTN_INLINE uint32_t attn__item_rows(const struct attn_job *j)
{
    (void)j;
    return ATTN_ROWS;
}

/* The keys of a block, the values of a tile. */
ATTN_INLINE size_t attn__unpacked(const struct attn_job *j)
{
    return (1 + ATTN_TILE) * kv_part_elems(j->act, j->a->kv.head_dim) * be_dtype_bytes(j->act);
}

#ifndef ATTN_OWN_PRODUCTS
struct attn_mul {
    const char *a; /* row stride a_stride bytes */
    size_t a_stride;
    const char *b[4]; /* first vector of each column, b_step bytes to the next step */
    size_t b_step;
    uint32_t steps;
    float *c; /* row stride c_stride floats, column v at v * VL */
    size_t c_stride;
    /* Distances from b to bytes to prefetch, by the first rows; 0 = none. */
    ptrdiff_t ask, ask_too;
};

ATTN_INLINE void attn__mul_rows(const struct attn_mul *m, uint32_t row, const uint32_t rows,
                                const uint32_t cols, const bool bf16, const bool add)
{
    struct vf acc[8][4];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < cols; v++)
            acc[r][v] = add ? vf_load(m->c + (row + r) * m->c_stride + v * VL) : vf_set1(0);
    const char *a = m->a + row * m->a_stride;
    for (uint32_t i = 0; i < m->steps; i++) {
        for (uint32_t v = 0; m->ask && row == 0 && v < cols; v++)
            __builtin_prefetch(m->b[v] + i * m->b_step + m->ask, 0, 2);
        for (uint32_t v = 0; m->ask_too && row == 0 && v < cols; v++)
            __builtin_prefetch(m->b[v] + i * m->b_step + m->ask_too, 0, 2);
        for (uint32_t r = 0; r < rows; r++) {
            uint32_t raw;
            memcpy(&raw, a + r * m->a_stride + (size_t)i * 4, 4);
            for (uint32_t v = 0; v < cols; v++) {
                const char *b = m->b[v] + i * m->b_step;
                if (bf16) {
                    acc[r][v] = vf_mac_bf16(acc[r][v], raw, b);
                } else {
                    float f;
                    memcpy(&f, &raw, 4);
                    acc[r][v] = vf_fma(vf_set1(f), vf_load((const float *)(const void *)b), acc[r][v]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < cols; v++) vf_store(m->c + (row + r) * m->c_stride + v * VL, acc[r][v]);
}

ATTN_INLINE void attn__mul(const struct attn_mul *m, uint32_t rows, const uint32_t cols, const bool bf16,
                           const bool add)
{
    uint32_t r = 0;
    if (cols <= 2)
        for (; r + 8 <= rows; r += 8) attn__mul_rows(m, r, 8, cols, bf16, add);
    for (; r + 4 <= rows; r += 4) attn__mul_rows(m, r, 4, cols, bf16, add);
    for (; r + 2 <= rows; r += 2) attn__mul_rows(m, r, 2, cols, bf16, add);
    for (; r < rows; r++) attn__mul_rows(m, r, 1, cols, bf16, add);
}

/* Whether memory is the bottleneck: then the next data must be prefetched. */
ATTN_INLINE bool attn__waits(const struct attn_work_item *w)
{
    return w->rows <= 8;
}

/* Scores of one block: all 32 slots, four (VL 8) or two (VL 16) columns. Elements from d to dpad are zero in
 * both factors and skipped. Prefetches the block's values and the next block's keys. */
ATTN_INLINE void attn__vec_scores(const struct attn_work_item *w, const void *k, const void *next, float *s,
                                  const bool bf16)
{
    uint32_t d = w->j->a->kv.head_dim, dpad = w->j->dpad;
    struct attn_mul m = {.a = w->q,
                         .a_stride = dpad * (bf16 ? 2u : 4u),
                         .steps = bf16 ? (d + 1) / 2 : d,
                         .c = s,
                         .c_stride = ATTN_STRIDE};
    m.b_step = bf16 ? 64 : KV_SLOTS * 4;
    if (attn__waits(w)) m.ask = (ptrdiff_t)(kv_part_elems(w->j->act, d) * be_dtype_bytes(w->j->act));
    if (attn__waits(w) && next) m.ask_too = (const char *)next - (const char *)k;
    for (uint32_t v = 0; v < KV_SLOTS / VL; v++) {
        uint32_t group = v * VL / 16,
                 in = v * VL % 16; /* bf16 keeps 16 slots together, all their d-pairs; f32 all 32 of one d */
        m.b[v] = (const char *)k + (bf16 ? (size_t)group * (dpad / 2) * 64 + in * 4 : (size_t)v * VL * 4);
    }
    attn__mul(&m, w->rows, KV_SLOTS / VL, bf16, false);
}

/* ask: keys of the next tile, to prefetch. */
ATTN_INLINE void attn__vec_values(const struct attn_work_item *w, const void *const v[ATTN_TILE],
                                  const void *const ask[ATTN_TILE], uint32_t b0, uint32_t b1, const bool bf16)
{
    uint32_t dpad = w->j->dpad, e = bf16 ? 2 : 4, used = (w->j->a->kv.head_dim + VL - 1) / VL;
    struct attn_mul m = {.a_stride = ATTN_STRIDE * e,
                         .b_step = (size_t)dpad * 4,
                         .steps = bf16 ? KV_SLOTS / 2 : KV_SLOTS,
                         .c_stride = dpad};
    for (uint32_t b = b0; b < b1; b++) {
        m.a = w->p + (size_t)b * KV_SLOTS * e;
        m.ask = attn__waits(w) && ask[b] ? (const char *)ask[b] - (const char *)v[b] : 0;
        for (uint32_t c = 0; c < used;) {
            uint32_t n = used - c >= 4 ? 4 : 1;
            for (uint32_t i = 0; i < n; i++) m.b[i] = (const char *)v[b] + (size_t)(c + i) * VL * 4;
            m.c = w->o + c * VL;
            if (n == 4) attn__mul(&m, w->rows, 4, bf16, true);
            else attn__mul(&m, w->rows, 1, bf16, true);
            c += n;
        }
    }
}
#endif
ATTN_INLINE void attn__rescale(struct attn_work_item *w, uint32_t r, float factor)
{
    struct vf f = vf_set1(factor);
    float *o = w->o + (size_t)r * w->j->dpad, *sum = w->sum + r * VL;
    for (uint32_t i = 0; i < w->j->dpad; i += VL) vf_store(o + i, vf_mul(vf_load(o + i), f));
    vf_store(sum, vf_mul(vf_load(sum), f));
}

/* Scores of row r over blocks [b0, b1) of the tile that starts at position `base` -> probabilities; updates
 * max and sum. */
ATTN_INLINE void attn__softmax_row(struct attn_work_item *w, uint32_t r, uint32_t base, uint32_t b0,
                                   uint32_t b1, bool fine)
{
    const struct be_attn_args *a = w->j->a;
    float *s = w->s + (size_t)r * ATTN_STRIDE;
    uint32_t lo = w->lo[r], hi = w->hi[r], i0 = b0 * KV_SLOTS, i1 = b1 * KV_SLOTS;
    size_t p_bytes = attn__elem(w->j);
    char *p = w->p + (size_t)r * ATTN_STRIDE * p_bytes;
    if (hi < base + i0 || lo > base + i1 - 1) {
        memset(p + i0 * p_bytes, 0, (i1 - i0) * p_bytes);
        return;
    }
    float c = a->scale * 1.44269504088896341f;
    if (a->softcap > 0) {
        struct vf in = vf_set1(a->scale / a->softcap), out = vf_set1(a->softcap);
        for (uint32_t i = i0; i < i1; i += VL)
            vf_store(s + i, vf_mul(vf_softcap(vf_mul(vf_load(s + i), in)), out));
        c = 1.44269504088896341f;
    }
    if (lo > base + i0 || hi < base + i1 - 1) {
        for (uint32_t i = i0; i < i1; i += VL) {
            if (base + i < lo || base + i + VL - 1 > hi)
                vf_store(s + i, vf_keep(vf_load(s + i), base + i, lo, hi));
        }
    }
    struct vf m0 = vf_load(s + i0), m1 = m0;
    for (uint32_t i = i0; i < i1; i += 2 * VL) {
        m0 = vf_max(m0, vf_load(s + i));
        m1 = vf_max(m1, vf_load(s + i + VL));
    }
    float tile_max = vf_hmax(vf_max(m0, m1)) * c;
    if (tile_max > w->max[r]) {
        if (w->max[r] != -INFINITY) {
            float f[VL];
            vf_store(f, vf_exp2(vf_set1(w->max[r] - tile_max), true));
            attn__rescale(w, r, f[0]);
        }
        w->max[r] = tile_max;
    }
    struct vf sum = vf_load(w->sum + r * VL), vc = vf_set1(c), neg = vf_set1(-w->max[r]);
    for (uint32_t i = i0; i < i1; i += VL) {
        struct vf v = vf_exp2(vf_fma(vf_load(s + i), vc, neg), fine);
        sum = vf_add(sum, v);
        if (w->j->act == BE_F32) {
            vf_store((float *)(void *)p + i, v);
#if ATTN_WIDE
        } else {
            vf_store((float *)(void *)p + i, vf_round_bf16(v));
        }
#else
        } else {
            vf_store_bf16((uint16_t *)(void *)p + i, v);
        }
#endif
    }
    vf_store(w->sum + r * VL, sum);
}

/* Quants of a block's successor. */
ATTN_INLINE const int8_t *attn__next(const struct attn_work_item *w, const uint32_t *table, uint32_t block)
{
    const struct be_kv *kv = &w->j->a->kv;
    if (block >= w->hi_max / KV_SLOTS) return NULL;
    return kv_q8(kv_layer(kv, table[block + 1]), w->j->act, kv->head_dim, w->kv_head).k;
}

/* NULL: no block that is seen, or a cache of quants. */
ATTN_INLINE const void *attn__key(const struct attn_work_item *w, const uint32_t *table, uint32_t block)
{
    const struct be_kv *kv = &w->j->a->kv;
    if (block > w->hi_max / KV_SLOTS || kv->type != BE_KV_ACT) return NULL;
    return kv_k(kv_layer(kv, table[block]), w->j->act, kv->head_dim, w->kv_head);
}

/* Block `i` of the next work item. */
ATTN_INLINE const void *attn__then_key(const struct attn_work_item *w, uint32_t i)
{
    const struct be_kv *kv = &w->j->a->kv;
    const struct attn_next *n = &w->then;
    if (!n->table || n->first + i > n->last || kv->type != BE_KV_ACT) return NULL;
    return kv_k(kv_layer(kv, n->table[n->first + i]), w->j->act, kv->head_dim, n->kv_head);
}

ATTN_INLINE void attn__tile(struct attn_work_item *w, const uint32_t *table, uint32_t tile, const bool bf16)
{
    const struct be_attn_args *a = w->j->a;
    uint32_t first = tile * ATTN_TILE, d = a->kv.head_dim;
    uint32_t b0 = u32_max(w->lo_min / KV_SLOTS, first) - first,
             b1 = u32_min(w->hi_max / KV_SLOTS + 1, first + ATTN_TILE) - first;
    size_t part = kv_part_elems(w->j->act, d) * be_dtype_bytes(w->j->act);
    const void *v[ATTN_TILE], *ask[ATTN_TILE];
    for (uint32_t b = b0; b < b1; b++) {
        ask[b] = attn__key(w, table, first + b + ATTN_TILE);
        if (!ask[b]) ask[b] = attn__then_key(w, b - b0);
        ASSERT(table[first + b] != BE_NO_BLOCK);
        void *layer = kv_layer(&a->kv, table[first + b]), *k, *values;
        if (a->kv.type == BE_KV_ACT) {
            k = kv_k(layer, w->j->act, d, w->kv_head);
            values = kv_v(layer, w->j->act, d, w->kv_head);
        } else {
            struct kv_q8 c = kv_q8(layer, w->j->act, d, w->kv_head);
            k = w->unpacked;
            values = w->unpacked + (1 + b) * part;
            kv_unpack(k, values, &c, w->j->act, d, attn__next(w, table, first + b));
        }
        v[b] = values;
        attn__vec_scores(w, k, attn__key(w, table, first + b + 1), w->s + b * KV_SLOTS, bf16);
    }
    for (uint32_t r = 0; r < w->rows; r++) attn__softmax_row(w, r, first * KV_SLOTS, b0, b1, !bf16);
    attn__vec_values(w, v, ask, b0, b1, bf16);
}

static void attn__walk(struct attn_work_item *w, const uint32_t *table)
{
    for (uint32_t tile = w->lo_min / ATTN_KEYS; tile <= w->hi_max / ATTN_KEYS; tile++) {
        if (w->j->act == BE_F32) {
            attn__tile(w, table, tile, false);
        } else {
            attn__tile(w, table, tile, true);
        }
    }
}

static void attn__run(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct attn_call *c = ctx;
    attn__range(&c->job, begin, end, c->b, worker);
}

void SET(attn)(struct backend *b, const struct be_attn_args *a)
{
    struct attn_call c;
    uint32_t n = attn__plan(b, a, &c);
    cpu_pool_run(b->pool, n, c.grain, attn__run, &c);
}

#endif

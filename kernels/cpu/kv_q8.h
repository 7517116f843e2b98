/* Keys and values in 8 bits (be_kv.type): each group of KV_RUN elements of a token's head is quants and one
 * scale, computed from that group alone, so no later token changes them. An element is code * scale, rounded
 * to the act type.
 *
 *   head part = [quants of K | quants of V | scales of K | scales of V]
 *     quants   a byte each, in the order in which kv_layout.h puts elements of the act type
 *     scales  bf16 [run][slot]: the range of f32, and with 8 significand bits no code leaves its range
 *
 * A code is an integer in [-127, 127], a scale max |x| / 127. (e4m3 of the same size has ten times the
 * error.)
 *
 * Keys of some families have a few elements far larger than the rest (biases); a scale for them would leave
 * the others almost no precision. So a head of keys is multiplied by a Hadamard matrix H before it is
 * encoded, which spreads each element over all, and queries by H / n: q.k is unchanged, as the rows of H are
 * orthogonal.
 *
 * Attention converts a block's quants to a block of the act type, for a step's own tokens too. A group with a
 * NaN or an infinity has the scale NaN: all of it becomes NaN. Slots not written are zero, quants and
 * scales. */
#ifndef KVASIR_CPU_KV_Q8_H
#define KVASIR_CPU_KV_Q8_H

#include "config/base/floats.h"
#include "kernels/cpu/kv_layout.h"

#define KV_RUN    32u
#define KV_Q8_MAX 127.0f
#define KV_TINY   0x1p-100f /* a smaller scale counts as 0: 1 / scale must fit into f32 */

struct kv_q8 {
    int8_t *k, *v;
    uint16_t *k_scale, *v_scale;
};

static inline uint32_t kv_runs(uint32_t d)
{
    return (d + KV_RUN - 1) / KV_RUN;
}
/* Where the scales of a head begin; its size. */
static inline size_t kv_q8_scales(enum be_dtype act, uint32_t d)
{
    return 2 * kv_part_elems(act, d);
}
static inline size_t kv_q8_bytes(enum be_dtype act, uint32_t d)
{
    return kv_q8_scales(act, d) + 2 * (size_t)kv_runs(d) * KV_SLOTS * sizeof(uint16_t);
}
static inline struct kv_q8 kv_q8(void *layer, enum be_dtype act, uint32_t d, uint32_t head)
{
    size_t elems = kv_part_elems(act, d);
    int8_t *p = (int8_t *)layer + head * kv_q8_bytes(act, d);
    uint16_t *scale = (uint16_t *)(void *)(p + 2 * elems);
    return (struct kv_q8){p, p + elems, scale, scale + (size_t)kv_runs(d) * KV_SLOTS};
}

/* |y| <= 127.5 to the nearest integer, ties to even: it is in the sum's low bits. */
static inline int8_t kv_to_int8(float y)
{
    return (int8_t)bits_of(y + 0x1.8p23f);
}
/* x = H x in groups of n, the largest power of two that divides d; then divided by n for a query. */
static inline void kv_spread(float *x, uint32_t d, bool query)
{
    uint32_t n = d & (0u - d);
    for (uint32_t half = n / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < d; i += 2 * half) {
            for (uint32_t k = i; k < i + half; k++) {
                float a = x[k], b = x[k + half];
                x[k] = a + b;
                x[k + half] = a - b;
            }
        }
    }
    for (uint32_t i = 0; query && i < d; i++) x[i] *= 1.0f / (float)n;
}

/* The scale (bf16) of n <= KV_RUN elements, and their quants. */
static inline uint16_t kv_encode(const float *x, uint32_t n, int8_t *code)
{
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & 0x7fffffff;
        top = u > top ? u : top;
    }
    memset(code, 0, n);
    if (top >= 0x7f800000) return 0x7fc0;
    uint32_t u = bits_of(float_of(top) / KV_Q8_MAX);
    u = (u + 0x7fff + (u >> 16 & 1)) >> 16 << 16;
    float scale = float_of(u);
    if (scale < KV_TINY) return 0;
    float inverse = 1.0f / scale;
    for (uint32_t i = 0; i < n; i++) code[i] = kv_to_int8(x[i] * inverse);
    return (uint16_t)(u >> 16);
}

/* Writes one slot; key and value have d elements. */
static inline void kv_q8_put(const struct kv_q8 *c, enum be_dtype act, uint32_t d, uint32_t slot,
                             const float *key, const float *value)
{
    uint32_t dpad = kv_dpad(act, d);
    for (uint32_t at = 0; at < dpad; at += KV_RUN) {
        int8_t k[KV_RUN] = {0}, v[KV_RUN] = {0};
        uint32_t n = d - at < KV_RUN ? d - at : KV_RUN, run = at / KV_RUN * KV_SLOTS + slot;
        c->k_scale[run] = kv_encode(key + at, n, k);
        c->v_scale[run] = kv_encode(value + at, n, v);
        for (uint32_t i = 0; i < KV_RUN && at + i < dpad; i++) {
            c->k[kv_k_idx(act, dpad, slot, at + i)] = k[i];
            c->v[kv_v_idx(act, dpad, slot, at + i)] = v[i];
        }
    }
}

/* Zeroes the slots from `first` on. */
static inline void kv_q8_clear(const struct kv_q8 *c, enum be_dtype act, uint32_t d, uint32_t first)
{
    uint32_t dpad = kv_dpad(act, d);
    for (uint32_t s = first; s < KV_SLOTS; s++) {
        for (uint32_t i = 0; i < dpad; i++)
            c->k[kv_k_idx(act, dpad, s, i)] = c->v[kv_v_idx(act, dpad, s, i)] = 0;
        for (uint32_t r = 0; r < kv_runs(d); r++)
            c->k_scale[r * KV_SLOTS + s] = c->v_scale[r * KV_SLOTS + s] = 0;
    }
}

/* Zeroes the slots from `first` on of one head, for either storage type. */
static inline void kv_clear(void *layer, enum be_kv_type type, enum be_dtype act, uint32_t d, uint32_t head,
                            uint32_t first)
{
    if (type == BE_KV_ACT) {
        kv_clear_head(kv_k(layer, act, d, head), kv_v(layer, act, d, head), act, kv_dpad(act, d), first);
    } else {
        struct kv_q8 c = kv_q8(layer, act, d, head);
        kv_q8_clear(&c, act, d, first);
    }
}

#endif

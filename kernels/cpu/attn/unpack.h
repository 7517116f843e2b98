/* Converts a head of a block of quants (kv_q8.h) to the act type. For bf16 a file may define KV_OWN_LINES and
 * the following before including this:
 *
 *   struct kv_scales               of 32 elements in a row: 16 words, each of two halves
 *   kv_scales_k(s)                 word i has the scale s[i] (keys: 16 slots, two elements of each)
 *   kv_scales_v(s)                 lower halves have s[0], upper halves s[1] (values: two slots of 16)
 *   kv_line(dst, code, s)          dst[i] = code[i] * scale, rounded to nearest even; 32 of them */
#ifndef KVASIR_CPU_ATTN_UNPACK_H
#define KVASIR_CPU_ATTN_UNPACK_H

#include "kernels/cpu/kv_q8.h"

#define KV_INLINE static inline __attribute__((always_inline))

#ifndef KV_OWN_LINES
struct kv_scales {
    float of[32];
};
KV_INLINE struct kv_scales kv_scales_k(const uint16_t *s)
{
    struct kv_scales r;
    for (uint32_t i = 0; i < 32; i++) r.of[i] = bf16_to_f32(s[i / 2]);
    return r;
}
KV_INLINE struct kv_scales kv_scales_v(const uint16_t *s)
{
    struct kv_scales r;
    for (uint32_t i = 0; i < 32; i++) r.of[i] = bf16_to_f32(s[i % 2]);
    return r;
}
KV_INLINE void kv_line(uint16_t *dst, const int8_t *code, const struct kv_scales *s)
{
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t u = bits_of((float)code[i] * s->of[i]);
        dst[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}
#endif

KV_INLINE void kv_prefetch(const char *p, size_t bytes)
{
    for (size_t i = 0; p && i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

KV_INLINE void kv_unpack_bf16(uint16_t *k, uint16_t *v, const struct kv_q8 *c, uint32_t d, const void *next)
{
    uint32_t dpad = kv_dpad(BE_BF16, d), runs = kv_runs(d);
    for (uint32_t n = 0; n < 2 * runs; n++) { /* 16 slots */
        uint32_t first = n / runs * 16, run = n % runs;
        struct kv_scales s = kv_scales_k(c->k_scale + run * KV_SLOTS + first);
        size_t at = kv_k_idx(BE_BF16, dpad, first, run * KV_RUN);
        kv_prefetch(next ? (const char *)next + at : NULL, KV_RUN * 16);
        for (uint32_t i = 0; i < KV_RUN / 2; i++, at += 32) kv_line(k + at, c->k + at, &s);
    }
    for (uint32_t slot = 0; slot < KV_SLOTS; slot += 2) {
        size_t at = kv_v_idx(BE_BF16, dpad, slot, 0);
        kv_prefetch(next ? (const char *)next + (c->v - c->k) + at : NULL, 2 * (size_t)dpad);
        for (uint32_t run = 0; run < runs; run++, at += 64) {
            struct kv_scales s = kv_scales_v(c->v_scale + run * KV_SLOTS + slot);
            kv_line(v + at, c->v + at, &s);
            kv_line(v + at + 32, c->v + at + 32, &s);
        }
    }
    for (uint32_t s = 0; kv_v_ones(BE_BF16, d) && s < KV_SLOTS; s++)
        v[kv_v_idx(BE_BF16, dpad, s, d)] = 0x3f80;
}

KV_INLINE void kv_unpack_f32(float *k, float *v, const struct kv_q8 *c, uint32_t d)
{
    uint32_t dpad = kv_dpad(BE_F32, d);
    float scale[KV_SLOTS];
    for (uint32_t i = 0; i < dpad; i++) {
        for (uint32_t s = 0; i % KV_RUN == 0 && s < KV_SLOTS; s++)
            scale[s] = bf16_to_f32(c->k_scale[i / KV_RUN * KV_SLOTS + s]);
        const int8_t *code = c->k + (size_t)i * KV_SLOTS;
        for (uint32_t s = 0; s < KV_SLOTS; s++) *k++ = (float)code[s] * scale[s];
    }
    for (uint32_t s = 0; s < KV_SLOTS; s++) {
        const int8_t *code = c->v + (size_t)s * dpad;
        for (uint32_t i = 0; i < dpad; i++)
            *v++ = (float)code[i] * bf16_to_f32(c->v_scale[i / KV_RUN * KV_SLOTS + s]);
    }
}

/* k and v: laid out as by kv_k and kv_v. next: the quants to unpack after these, to prefetch; or NULL. */
static inline void kv_unpack(void *k, void *v, const struct kv_q8 *c, enum be_dtype act, uint32_t d,
                             const void *next)
{
    if (next)
        kv_prefetch((const char *)next + kv_q8_scales(act, d), kv_q8_bytes(act, d) - kv_q8_scales(act, d));
    if (act == BE_F32) kv_unpack_f32(k, v, c, d);
    else kv_unpack_bf16(k, v, c, d, next);
}

#endif

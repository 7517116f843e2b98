/* The vector primitives of attn/driver.h for 16 lanes (AVX-512). */
#ifndef KVASIR_CPU_ATTN_V16_H
#define KVASIR_CPU_ATTN_V16_H

#include "kernels/backend.h"
#include "kernels/cpu/simd/vmath_avx512.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define VL 16u
typedef __m512 vf;
#define vf_set1(x)        _mm512_set1_ps(x)
#define vf_load(p)        _mm512_loadu_ps(p)
#define vf_store(p, v)    _mm512_storeu_ps(p, v)
#define vf_add(a, b)      _mm512_add_ps(a, b)
#define vf_mul(a, b)      _mm512_mul_ps(a, b)
#define vf_max(a, b)      _mm512_max_ps(a, b)
#define vf_fmadd(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vf_tanh(v)        v16_tanh(v)
#define vf_hmax(v)        _mm512_reduce_max_ps(v)

/* Pairwise: lanes i and i + 8, then i and i + 4, ... */
static inline float vf_hsum(__m512 v)
{
    return _mm512_reduce_add_ps(v);
}
static inline __m512 vf_keep(__m512 v, uint32_t base, uint32_t lo, uint32_t hi)
{
    __m512i pos = _mm512_add_epi32(_mm512_set1_epi32((int)base),
                                   _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 k = _mm512_cmpge_epu32_mask(pos, _mm512_set1_epi32((int)lo)) &
                  _mm512_cmple_epu32_mask(pos, _mm512_set1_epi32((int)hi));
    return _mm512_mask_blend_ps(k, _mm512_set1_ps(-INFINITY), v);
}
/* x = n + f, |f| <= 1/2; 2^f by a minimax polynomial (degree 4: 2.6e-6, degree 6: below f32 rounding). The
 * bound of -200 keeps f finite; 2^-200 is 0. */
static inline __attribute__((always_inline)) __m512 vf_exp2(__m512 x, bool fine)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           f = _mm512_sub_ps(x, n), p;
    if (fine) {
        p = _mm512_set1_ps(0x1.41d32ap-13f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f456ap-10f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2dbcp-7f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aed4p-5f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdap-3f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e430p-1f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    } else {
        p = _mm512_set1_ps(0x1.3997c4p-7f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ca1440p-5f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ec06dap-3f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e0dcp-1f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ffffe8p-1f));
    }
    return _mm512_scalef_ps(p, n);
}
static inline void vf_store_bf16(uint16_t *p, __m512 v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v16_to_bf16(v));
}
static inline __m512 vf_mac_bf16(__m512 acc, uint32_t pair, const void *b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)_mm512_loadu_si512(b));
}

/* Lines of attn/unpack.h; e4m3 has the bits of an f16 that is 2^8 too small. */
#define KV_OWN_LINES
struct kv_scales {
    __m512 lower, upper; /* of elements 0..15 and 16..31 */
};
static inline struct kv_scales kv_scales_k(const uint16_t *s)
{
    __m512i all =
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)s)), 16);
    __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return (struct kv_scales){
        _mm512_castsi512_ps(_mm512_permutexvar_epi32(twice, all)),
        _mm512_castsi512_ps(_mm512_permutexvar_epi32(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), all))};
}
static inline struct kv_scales kv_scales_v(const uint16_t *s)
{
    uint64_t two = (uint64_t)s[0] << 16 | (uint64_t)s[1] << 48;
    __m512 v = _mm512_castsi512_ps(_mm512_set1_epi64((long long)two));
    return (struct kv_scales){v, v};
}
static inline __attribute__((always_inline)) void kv_line(uint16_t *dst, const int8_t *code,
                                                          const struct kv_scales *s)
{
    const __m128i *from = (const __m128i *)(const void *)code;
    __m512 lower = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from))),
           upper = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from + 1)));
    __m512bh both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(upper, s->upper), _mm512_mul_ps(lower, s->lower));
    _mm512_storeu_si512(dst, (__m512i)both);
}

#endif

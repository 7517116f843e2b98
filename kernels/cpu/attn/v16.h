/* The vector primitives of attn/driver.h for 16 lanes (AVX-512). */
#ifndef KVASIR_CPU_ATTN_V16_H
#define KVASIR_CPU_ATTN_V16_H

#include "kernels/backend.h"
#include "kernels/cpu/simd/vops_avx512.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

VF_OP struct vf vf_keep(struct vf a, uint32_t base, uint32_t lo, uint32_t hi)
{
    __m512i pos = _mm512_add_epi32(_mm512_set1_epi32((int)base),
                                   _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 k = _mm512_cmpge_epu32_mask(pos, _mm512_set1_epi32((int)lo)) &
                  _mm512_cmple_epu32_mask(pos, _mm512_set1_epi32((int)hi));
    return (struct vf){_mm512_mask_blend_ps(k, _mm512_set1_ps(-INFINITY), a.v)};
}
/* x = n + f, |f| <= 1/2; 2^f by a minimax polynomial (degree 4: 2.6e-6, degree 6: below f32 rounding). The
 * bound of -200 keeps f finite; 2^-200 is 0. */
VF_OP struct vf vf_exp2(struct vf a, bool fine)
{
    __m512 x = _mm512_max_ps(_mm512_set1_ps(-200.0f), a.v);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           f = _mm512_sub_ps(x, n), p;
    p = fine ? POLY(v16, poly_exp2, f) : POLY(v16, poly_exp2_rough, f);
    return (struct vf){_mm512_scalef_ps(p, n)};
}
VF_OP struct vf vf_softcap(struct vf a)
{
    return vf_tanh(a);
}
VF_OP struct vf vf_mac_bf16(struct vf acc, uint32_t pair, const void *b)
{
    return (struct vf){
        _mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)_mm512_loadu_si512(b))};
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
VF_OP void kv_line(uint16_t *dst, const int8_t *code, const struct kv_scales *s)
{
    const __m128i *from = (const __m128i *)(const void *)code;
    __m512 lower = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from))),
           upper = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from + 1)));
    __m512bh both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(upper, s->upper), _mm512_mul_ps(lower, s->lower));
    _mm512_storeu_si512(dst, (__m512i)both);
}

#endif

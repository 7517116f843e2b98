/* Vector functions for the AVX2 files (8 f32 lanes): the same formulas as vmath_avx512.h. Every lane is
 * computed alike, so a value's result does not depend on its position in a vector. Fused multiply-adds are
 * explicit. */
#ifndef KVASIR_CPU_VMATH_AVX2_H
#define KVASIR_CPU_VMATH_AVX2_H

#include "kernels/cpu/simd/lanes8.h"
#include "kernels/cpu/simd/poly.h"

#include <stdint.h>

static inline __attribute__((always_inline)) __m256 v8_poly(const float *p, const unsigned n, __m256 x)
{
    __m256 sum = _mm256_set1_ps(p[0]);
#pragma GCC unroll 16
    for (unsigned i = 1; i < n; i++) sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(p[i]));
    return sum;
}

/* e^x within about 1 ulp; 0 far below, infinity far above, NaN for NaN. */
static inline __m256 v8_exp(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(89.0f),
                      _mm256_max_ps(_mm256_set1_ps(-105.0f), x)); /* second operand wins when it is NaN */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = POLY(v8, poly_exp, r);
    /* 2^n in two factors, each a normal number: results may be subnormal, zero or infinite. */
    __m256i ni = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(ni, 1), rest = _mm256_sub_epi32(ni, half),
            bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

/* tanh(x) within a few ulp: odd polynomial near 0, 1 - 2/(e^2|x| + 1) elsewhere. */
static inline __m256 v8_tanh(__m256 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f), a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = POLY(v8, poly_tanh, z);
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = v8_exp(_mm256_add_ps(a, a)), one = _mm256_set1_ps(1.0f);
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
    big = _mm256_or_ps(_mm256_andnot_ps(sign, big), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(big, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

/* z / (1 + e^-y): the logistic gate. */
static inline __m256 v8_gate(__m256 z, __m256 y)
{
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 e = v8_exp(_mm256_sub_ps(_mm256_setzero_ps(), y));
    return _mm256_div_ps(z, _mm256_add_ps(one, e));
}

static inline __m256 v8_gelu_tanh(__m256 z)
{
    __m256 u = _mm256_fmadd_ps(_mm256_mul_ps(z, z), _mm256_set1_ps(0.07135481627260025f),
                               _mm256_set1_ps(1.5957691216057308f));
    return v8_gate(z, _mm256_mul_ps(z, u));
}

static inline __m256 v8_silu(__m256 z)
{
    return v8_gate(z, z);
}

/* As v16_normal_cdf and v16_gelu_erf. */
static inline __m256 v8_normal_cdf(__m256 z)
{
    __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
    __m256 t = _mm256_min_ps(_mm256_set1_ps(10.0f), _mm256_andnot_ps(sign, z));
    __m256 r = POLY(v8, poly_erf, t);
    __m256 h = v8_exp(_mm256_sub_ps(zero, r));
    return _mm256_blendv_ps(h, _mm256_sub_ps(one, h), _mm256_cmp_ps(z, zero, _CMP_GE_OQ));
}
static inline __m256 v8_gelu_erf(__m256 z)
{
    __m256 far = _mm256_cmp_ps(z, _mm256_set1_ps(-10.0f), _CMP_NLT_UQ);
    return _mm256_and_ps(_mm256_mul_ps(z, v8_normal_cdf(z)), far);
}

static inline __m256 v8_quick_gelu(__m256 z)
{
    return v8_gate(z, _mm256_mul_ps(z, _mm256_set1_ps(1.702f)));
}

/* bf16, round to nearest even; NaN stays NaN. */
static inline __m128i v8_to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i nan = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    r = _mm256_blendv_epi8(r, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    r = _mm256_packus_epi32(r, r);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(r, 0x08));
}
static inline __m256 v8_from_bf16(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
static inline float v8_sum(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

#endif

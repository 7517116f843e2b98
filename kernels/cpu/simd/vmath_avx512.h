/* Vector functions for the AVX-512 and AMX files (16 f32 lanes). Every lane is computed alike: a value's
 * result does not depend on its vector or its position in it. Fused multiply-adds are explicit, so compiler
 * flags change nothing. */
#ifndef KVASIR_CPU_VMATH_AVX512_H
#define KVASIR_CPU_VMATH_AVX512_H

#include "kernels/cpu/simd/poly.h"

#include <immintrin.h>

static inline __attribute__((always_inline)) __m512 v16_poly(const float *p, const unsigned n, __m512 x)
{
    __m512 sum = _mm512_set1_ps(p[0]);
#pragma GCC unroll 16
    for (unsigned i = 1; i < n; i++) sum = _mm512_fmadd_ps(sum, x, _mm512_set1_ps(p[i]));
    return sum;
}

/* e^x for x <= 89 (v16_exp: for all x) within about 1 ulp; 0 far below, infinity far above, NaN for NaN. x =
 * n ln2 + r, |r| <= ln2/2, e^r by 1 + r + r^2 p(r) with p of degree 4, fitted to 4e-9. e^0 is exactly 1. */
static inline __m512 v16_exp_below(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-105.0f), x); /* the second operand wins when it is NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = POLY(v16, poly_exp, r);
    return _mm512_scalef_ps(p, n);
}

static inline __m512 v16_exp(__m512 x)
{
    return v16_exp_below(_mm512_min_ps(_mm512_set1_ps(89.0f), x));
}

/* tanh(x) within a few ulp: odd polynomial near 0, 1 - 2/(e^2|x| + 1) elsewhere. */
static inline __m512 v16_tanh(__m512 x)
{
    __m512 a = _mm512_abs_ps(x), z = _mm512_mul_ps(x, x);
    __m512 p = POLY(v16, poly_tanh, z);
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 e = v16_exp(_mm512_add_ps(a, a)), one = _mm512_set1_ps(1.0f);
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
    big = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(big), _mm512_castps_si512(x),
                                                        _mm512_set1_epi32((int)0x80000000), 0xd8));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(0.625f), _CMP_LT_OQ), big, small);
}

/* z / (1 + e^-y): the logistic gate. The quotient by a reciprocal estimate of 14 bits and a Newton step (28
 * bits), a third of a division's time. */
static inline __m512 v16_gate(__m512 z, __m512 y)
{
    __m512 one = _mm512_set1_ps(1.0f);
    /* Below y = -86 the result is set to zero: there the reciprocal would be subnormal and the Newton steps
     * hit inf * 0. */
    __mmask16 near = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-86.0f), _CMP_NLT_UQ);
    /* Above y = 86 e^-y would be subnormal, which takes the hardware's slow path for nothing: 1 + e is 1 from
     * y = 17 on. */
    __m512 x = _mm512_min_ps(_mm512_set1_ps(86.0f), _mm512_sub_ps(_mm512_setzero_ps(), y));
    __m512 e = v16_exp_below(
        _mm512_max_ps(_mm512_set1_ps(-86.0f), x)); /* min and max pass a NaN in the second operand on */
    __m512 d = _mm512_add_ps(one, e), q = _mm512_rcp14_ps(d);
    q = _mm512_fmadd_ps(q, _mm512_fnmadd_ps(d, q, one), q);
    return _mm512_maskz_mul_ps(near, z, q);
}

/* v16_gate for results that are rounded to bf16 (2^-9), z / (1 + 2^t), t = -y log2 e, within 7e-5: 2^t =
 * 2^floor(t) p(fraction), p of degree 4 good to 2.6e-6, the quotient by the bare estimate of 14 bits. Half
 * the instructions, which dominate an epilogue after the matrix tiles. */
static inline __m512 v16_gate_rough(__m512 z, __m512 t)
{
    __mmask16 near = _mm512_cmp_ps_mask(t, _mm512_set1_ps(124.0f), _CMP_NGT_UQ); /* as v16_gate: zero above
                                                                                    that; NaN stays */
    t = _mm512_max_ps(_mm512_set1_ps(-30.0f), t); /* 1 + 2^-30 is 1; the second operand wins when it is NaN */
    __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* t - floor(t) */
    __m512 p = _mm512_set1_ps(0x1.bb7cd4p-7f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.aa13f0p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ee798ap-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62d166p-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.00002cp+0f));
    __m512 d =
        _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p, t)); /* scalef takes the floor itself */
    return _mm512_maskz_mul_ps(near, z, _mm512_rcp14_ps(d));
}

/* gelu_tanh(z) = 0.5 z (1 + tanh(sqrt(2/pi)(z + 0.044715 z^3))) = z / (1 + e^-2u). */
static inline __m512 v16_gelu_tanh(__m512 z)
{
    __m512 u = _mm512_fmadd_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(0.07135481627260025f),
                               _mm512_set1_ps(1.5957691216057308f));
    return v16_gate(z, _mm512_mul_ps(z, u));
}

static inline __m512 v16_gelu_tanh_rough(__m512 z) /* the constants of v16_gelu_tanh times -log2 e */
{
    __m512 u =
        _mm512_fmadd_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-0.10294324f), _mm512_set1_ps(-2.3022082f));
    return v16_gate_rough(z, _mm512_mul_ps(z, u));
}

static inline __m512 v16_silu(__m512 z)
{
    return v16_gate(z, z);
}
static inline __m512 v16_silu_rough(__m512 z)
{
    return v16_gate_rough(z, _mm512_mul_ps(z, _mm512_set1_ps(-1.44269504f)));
}

/* gelu_erf(z) = z P(z), P(z) = (1 + erf(z / sqrt 2)) / 2 = h for z < 0, 1 - h otherwise, h = P(-|z|) =
 * e^-r(|z|): a minimax polynomial of degree 11 for r on [0, 10], good to 4e-8 in h and 1.2e-4 relative to it.
 * Below z = -10 (where h is 1e-23) the result is set to zero. No cancellation: 1 - h is at least a half. */
static inline __m512 v16_normal_cdf(__m512 z) /* P */
{
    __m512 zero = _mm512_setzero_ps(), t = _mm512_min_ps(_mm512_set1_ps(10.0f), _mm512_abs_ps(z));
    __m512 r = POLY(v16, poly_erf, t);
    __m512 h = v16_exp_below(_mm512_sub_ps(zero, r));
    return _mm512_mask_sub_ps(h, _mm512_cmp_ps_mask(z, zero, _CMP_GE_OQ), _mm512_set1_ps(1.0f), h);
}
static inline __m512 v16_gelu_erf(__m512 z)
{
    __mmask16 near = _mm512_cmp_ps_mask(z, _mm512_set1_ps(-10.0f), _CMP_NLT_UQ);
    return _mm512_maskz_mul_ps(near, z, v16_normal_cdf(z));
}

/* z / (1 + e^-1.702z) */
static inline __m512 v16_quick_gelu(__m512 z)
{
    return v16_gate(z, _mm512_mul_ps(z, _mm512_set1_ps(1.702f)));
}
static inline __m512 v16_quick_gelu_rough(__m512 z)
{
    return v16_gate_rough(z, _mm512_mul_ps(z, _mm512_set1_ps(-2.45546696f)));
}

/* bf16, round to nearest even (vcvtneps2bf16 treats subnormal inputs as zero). */
static inline __m256i v16_to_bf16(__m512 x)
{
    return (__m256i)_mm512_cvtneps_pbh(x);
}
static inline __m512 v16_from_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
/* The first `count` (0..16) lanes. */
static inline __mmask16 v16_mask(unsigned count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1u);
}

#endif

/* Vector operations with the same names for two sets, for the files that are compiled for both (rows/vec.h,
 * logits_vec.h): here with 16 lanes. Each including file names its functions by SET(x). Lanes outside a
 * partial load are zero and never stored. */
#ifndef KVASIR_CPU_VOPS_AVX512_H
#define KVASIR_CPU_VOPS_AVX512_H

#include "kernels/cpu/simd/vmath_avx512.h"

#define SET(name) avx512_##name
#define VL        16u

struct vf {
    __m512 v;
};
#define VF_OP static inline __attribute__((always_inline))

VF_OP struct vf vf_set1(float x)
{
    return (struct vf){_mm512_set1_ps(x)};
}
VF_OP struct vf vf_load(const float *p)
{
    return (struct vf){_mm512_loadu_ps(p)};
}
VF_OP struct vf vf_load_n(const float *p, uint32_t n)
{
    return (struct vf){_mm512_maskz_loadu_ps(v16_mask(n), p)};
}
VF_OP void vf_store(float *p, struct vf a)
{
    _mm512_storeu_ps(p, a.v);
}
VF_OP void vf_store_n(float *p, struct vf a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a.v);
}
/* a where the lane index is below n, b elsewhere. */
VF_OP struct vf vf_first_n(struct vf a, struct vf b, uint32_t n)
{
    return (struct vf){_mm512_mask_blend_ps(v16_mask(n), b.v, a.v)};
}
VF_OP void vf_store_bf16(uint16_t *p, struct vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v16_to_bf16(a.v));
}
VF_OP void vf_store_bf16_n(uint16_t *p, struct vf a, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, v16_mask(n), v16_to_bf16(a.v));
}
VF_OP struct vf vf_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return (struct vf){v16_from_bf16(_mm256_maskz_loadu_epi16(v16_mask(n), p))};
}
VF_OP struct vf vf_add(struct vf a, struct vf b)
{
    return (struct vf){_mm512_add_ps(a.v, b.v)};
}
VF_OP struct vf vf_sub(struct vf a, struct vf b)
{
    return (struct vf){_mm512_sub_ps(a.v, b.v)};
}
VF_OP struct vf vf_mul(struct vf a, struct vf b)
{
    return (struct vf){_mm512_mul_ps(a.v, b.v)};
}
VF_OP struct vf vf_div(struct vf a, struct vf b)
{
    return (struct vf){_mm512_div_ps(a.v, b.v)};
}
/* a * b + c, one rounding */
VF_OP struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
VF_OP struct vf vf_max(struct vf a, struct vf b)
{
    return (struct vf){_mm512_max_ps(a.v, b.v)};
}
/* Bit i: a[i] > b[i], a[i] == b[i]. */
VF_OP uint32_t vf_gt(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
VF_OP uint32_t vf_eq(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
VF_OP float vf_sum(struct vf a)
{
    return _mm512_reduce_add_ps(a.v);
}
VF_OP float vf_hmax(struct vf a)
{
    return _mm512_reduce_max_ps(a.v);
}
VF_OP struct vf vf_exp(struct vf a)
{
    return (struct vf){v16_exp(a.v)};
}
VF_OP struct vf vf_gelu_tanh(struct vf a)
{
    return (struct vf){v16_gelu_tanh(a.v)};
}
VF_OP struct vf vf_normal_cdf(struct vf a)
{
    return (struct vf){v16_normal_cdf(a.v)};
}
VF_OP struct vf vf_tanh(struct vf a)
{
    return (struct vf){v16_tanh(a.v)};
}

#endif

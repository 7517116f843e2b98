/* The operations of vops_avx512.h with 8 lanes. */
#ifndef KVASIR_CPU_VOPS_AVX2_H
#define KVASIR_CPU_VOPS_AVX2_H

#include "kernels/cpu/simd/vmath_avx2.h"

#include <string.h>

#define SET(name) avx2_##name
#define VL        8u

struct vf {
    __m256 v;
};
#define VF_OP static inline __attribute__((always_inline))

/* All ones in lanes below n. */
VF_OP __m256i vf__mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n > 8 ? 8 : n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VF_OP struct vf vf_set1(float x)
{
    return (struct vf){_mm256_set1_ps(x)};
}
VF_OP struct vf vf_load(const float *p)
{
    return (struct vf){_mm256_loadu_ps(p)};
}
VF_OP struct vf vf_load_n(const float *p, uint32_t n)
{
    return (struct vf){_mm256_maskload_ps(p, vf__mask(n))};
}
VF_OP void vf_store(float *p, struct vf a)
{
    _mm256_storeu_ps(p, a.v);
}
VF_OP void vf_store_n(float *p, struct vf a, uint32_t n)
{
    _mm256_maskstore_ps(p, vf__mask(n), a.v);
}
VF_OP struct vf vf_first_n(struct vf a, struct vf b, uint32_t n)
{
    return (struct vf){_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(vf__mask(n)))};
}
VF_OP void vf_store_bf16(uint16_t *p, struct vf a)
{
    _mm_storeu_si128((__m128i *)(void *)p, v8_to_bf16(a.v));
}
VF_OP void vf_store_bf16_n(uint16_t *p, struct vf a, uint32_t n)
{
    uint16_t tmp[8];
    vf_store_bf16(tmp, a);
    memcpy(p, tmp, (n > 8 ? 8 : n) * sizeof *tmp);
}
VF_OP struct vf vf_load_bf16_n(const uint16_t *p, uint32_t n)
{
    uint16_t tmp[8] = {0};
    memcpy(tmp, p, (n > 8 ? 8 : n) * sizeof *tmp);
    return (struct vf){v8_from_bf16(_mm_loadu_si128((const __m128i *)(const void *)tmp))};
}
VF_OP struct vf vf_add(struct vf a, struct vf b)
{
    return (struct vf){_mm256_add_ps(a.v, b.v)};
}
VF_OP struct vf vf_sub(struct vf a, struct vf b)
{
    return (struct vf){_mm256_sub_ps(a.v, b.v)};
}
VF_OP struct vf vf_mul(struct vf a, struct vf b)
{
    return (struct vf){_mm256_mul_ps(a.v, b.v)};
}
VF_OP struct vf vf_div(struct vf a, struct vf b)
{
    return (struct vf){_mm256_div_ps(a.v, b.v)};
}
VF_OP struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm256_fmadd_ps(a.v, b.v, c.v)};
}
VF_OP struct vf vf_max(struct vf a, struct vf b)
{
    return (struct vf){_mm256_max_ps(a.v, b.v)};
}
VF_OP uint32_t vf_gt(struct vf a, struct vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ));
}
VF_OP uint32_t vf_eq(struct vf a, struct vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ));
}
VF_OP float vf_sum(struct vf a)
{
    return v8_sum(a.v);
}
VF_OP float vf_hmax(struct vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
VF_OP struct vf vf_exp(struct vf a)
{
    return (struct vf){v8_exp(a.v)};
}
VF_OP struct vf vf_gelu_tanh(struct vf a)
{
    return (struct vf){v8_gelu_tanh(a.v)};
}
VF_OP struct vf vf_normal_cdf(struct vf a)
{
    return (struct vf){v8_normal_cdf(a.v)};
}
VF_OP struct vf vf_tanh(struct vf a)
{
    return (struct vf){v8_tanh(a.v)};
}

#endif

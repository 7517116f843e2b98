/* Epilogue for 32 packed sums of one row, in AVX2: bias, gate function, rounding, store. */
#ifndef KVASIR_CPU_LINEAR_EPI_AVX2_H
#define KVASIR_CPU_LINEAR_EPI_AVX2_H

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vmath_avx2.h"

#define Y_INLINE static inline __attribute__((always_inline))

Y_INLINE void y__epilogue(const struct linear_job *j, enum be_epilogue e, uint32_t pair, uint32_t row,
                          const float *sums)
{
    const struct be_weight *w = j->w;
    float v[32] __attribute__((aligned(32)));
    uint32_t cols = linear_cols(j, pair), width = w->glu ? 16 : 32;
    for (uint32_t c = 0; c < 32; c += 8) {
        __m256 s = _mm256_load_ps(sums + c);
        if (w->bias) s = _mm256_add_ps(s, _mm256_loadu_ps(w->bias + (size_t)pair * 32 + c));
        _mm256_store_ps(v + c, s);
    }
    if (e > BE_EPI_ADD_F32 && j->a->add) linear_add(j->a, pair, j->row0 + row, v);
    for (uint32_t c = 0; c < 32; c += 8) {
        __m256 s = _mm256_load_ps(v + c);
        if (e == BE_EPI_GELU_TANH || (e == BE_EPI_GLU_GELU_TANH && c < 16)) s = v8_gelu_tanh(s);
        if (e == BE_EPI_GELU_ERF) s = v8_gelu_erf(s);
        if (e == BE_EPI_QUICK_GELU) s = v8_quick_gelu(s);
        if (e == BE_EPI_GLU_SILU && c < 16) s = v8_silu(s);
        _mm256_store_ps(v + c, s);
    }
    if (w->glu)
        for (uint32_t c = 0; c < 16; c += 8)
            _mm256_store_ps(v + c, _mm256_mul_ps(_mm256_load_ps(v + c), _mm256_load_ps(v + 16 + c)));
    if (e == BE_EPI_F32 || e == BE_EPI_ADD_F32) {
        bool scaled = e == BE_EPI_ADD_F32 && j->add_row;
        float *out = linear_out_f32(j, scaled ? j->add_row[row] : row, pair),
              weight = scaled ? j->add_weight[row] : 1.0f;
        if (cols == 32 && !scaled) {
            for (uint32_t c = 0; c < 32; c += 8) {
                __m256 s = _mm256_load_ps(v + c);
                _mm256_storeu_ps(out + c,
                                 e == BE_EPI_ADD_F32 ? _mm256_add_ps(s, _mm256_loadu_ps(out + c)) : s);
            }
            return;
        }
        for (uint32_t c = 0; scaled && c < cols; c++) v[c] *= weight;
        for (uint32_t c = 0; e == BE_EPI_ADD_F32 && c < cols; c++) v[c] += out[c];
        memcpy(out, v, cols * sizeof(float));
        return;
    }
    for (uint32_t c = cols; c < width; c++) v[c] = 0.0f; /* padding is zero whatever the inputs */
    char *out = linear_out_act(j, row, pair);
    if (w->type == BE_F32) {
        memcpy(out, v, width * sizeof(float));
        return;
    }
    for (uint32_t c = 0; c < width; c += 8)
        _mm_storeu_si128((__m128i *)(void *)(out + 2 * c), v8_to_bf16(_mm256_load_ps(v + c)));
}

#endif

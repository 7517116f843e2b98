/* Epilogue for 32 packed sums of one row: bias, gate function, rounding, store. Shared by the AVX-512 and AMX
 * files. Masks only choose which lanes are stored, never how a lane is computed. */
#ifndef KVASIR_CPU_LINEAR_EPI_AVX512_H
#define KVASIR_CPU_LINEAR_EPI_AVX512_H

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vmath_avx512.h"

#define EPI_INLINE static inline __attribute__((always_inline))

struct epi_dest {
    char *out;         /* row 0 of the block, this pair's first column */
    size_t stride;     /* bytes from row to row */
    const float *bias; /* [32] or NULL */
    __mmask16 m0, m1;  /* real columns: first and second 16 (plain), outputs (glu: m0) */
    bool bf16;
    /* A glu pair in bf16 is half a cache line per row. With `stage` ([rows][16] bf16) the even pair's halves
     * wait there and the odd pair writes whole lines: separate halves would move every line in and out of the
     * cache twice. */
    uint16_t *stage;
    bool join; /* this is the odd pair */
    /* Whole lines bypass the caches: a result far larger than the caches is evicted before it is read, and an
     * ordinary store first fetches the line that it overwrites, which takes 100 ns and delays later stores.
     * Whoever sets it must end with a fence. */
    bool stream;
    const uint32_t *add_row; /* as in linear_job */
    const float *add_weight;
    const float *add; /* be_linear_args.add: row 0 of the block, this pair's first column, or NULL */
    size_t add_stride, add_second; /* floats from row to row, and to the second 16 */
};

static inline struct epi_dest epi_dest_of(const struct linear_job *j, uint32_t pair)
{
    bool f32 = j->a->epilogue == BE_EPI_F32 || j->a->epilogue == BE_EPI_ADD_F32;
    uint32_t cols = linear_cols(j, pair), n = j->w->glu ? j->w->n / 2 : j->w->n;
    struct epi_dest d = {
        .out = f32 ? (char *)linear_out_f32(j, 0, pair) : (char *)linear_out_act(j, 0, pair),
        .stride = f32 ? (size_t)j->w->n * 4 : be_ld(n) * be_dtype_bytes(j->w->type),
        .bias = j->w->bias ? j->w->bias + (size_t)pair * 32 : NULL,
        .m0 = v16_mask(cols),
        .m1 = v16_mask(cols > 16 ? cols - 16 : 0),
        .bf16 = j->w->type == BE_BF16,
        .add_row = j->add_row,
        .add_weight = j->add_weight,
    };
    if (!f32 && j->a->add) {
        d.add = j->a->add + (size_t)j->row0 * j->w->n + (size_t)pair * (j->w->glu ? 16 : 32);
        d.add_stride = j->w->n;
        d.add_second = j->w->glu ? n : 16;
    }
    return d;
}

EPI_INLINE void epi_line(const struct epi_dest *d, char *out, __m512i v)
{
    if (d->stream) {
        _mm512_stream_si512((void *)out, v);
    } else {
        _mm512_storeu_si512(out, v);
    }
}

EPI_INLINE void epi_store_act(char *out, uint32_t half, bool bf16, __mmask16 real, __m512 v)
{
    v = _mm512_maskz_mov_ps(real, v); /* padding is zero whatever the inputs */
    if (bf16) {
        _mm256_storeu_si256((__m256i *)(void *)(out + half * 32), v16_to_bf16(v));
    } else {
        _mm512_storeu_ps(out + half * 64, v);
    }
}

EPI_INLINE void epi_store_glu(const struct epi_dest *d, char *out, uint32_t row, __m512 v)
{
    if (!d->stage) {
        epi_store_act(out, 0, d->bf16, d->m0, v);
        return;
    }
    __m256i half = v16_to_bf16(_mm512_maskz_mov_ps(d->m0, v)),
            *stage = (__m256i *)(void *)(d->stage + (size_t)row * 16);
    if (d->join) {
        epi_line(d, out - 32, _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(stage)), half, 1));
    } else {
        _mm256_store_si256(stage, half);
    }
}

EPI_INLINE void epi_row(const struct epi_dest *d, enum be_epilogue e, uint32_t row, __m512 s0, __m512 s1)
{
    char *out = d->out + row * d->stride;
    if (d->bias) {
        s0 = _mm512_add_ps(s0, _mm512_loadu_ps(d->bias));
        s1 = _mm512_add_ps(s1, _mm512_loadu_ps(d->bias + 16));
    }
    if (e > BE_EPI_ADD_F32 && d->add) {
        const float *add = d->add + row * d->add_stride;
        s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(d->m0, add));
        s1 = _mm512_add_ps(
            s1, _mm512_maskz_loadu_ps(e >= BE_EPI_GLU_GELU_TANH ? d->m0 : d->m1, add + d->add_second));
    }
    switch (e) {
    case BE_EPI_ADD_F32:
        if (d->add_row) {
            __m512 weight = _mm512_set1_ps(d->add_weight[row]);
            out = d->out + d->add_row[row] * d->stride;
            s0 = _mm512_mul_ps(s0, weight);
            s1 = _mm512_mul_ps(s1, weight);
        }
        s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(d->m0, out));
        s1 = _mm512_add_ps(s1, _mm512_maskz_loadu_ps(d->m1, out + 64));
        /* fall through */
    case BE_EPI_F32:
        if (d->stream) {
            _mm512_stream_ps((float *)(void *)out, s0);
            _mm512_stream_ps((float *)(void *)(out + 64), s1);
            return;
        }
        _mm512_mask_storeu_ps(out, d->m0, s0);
        _mm512_mask_storeu_ps(out + 64, d->m1, s1);
        return;
    case BE_EPI_GELU_TANH:
        s0 = d->bf16 ? v16_gelu_tanh_rough(s0) : v16_gelu_tanh(s0);
        s1 = d->bf16 ? v16_gelu_tanh_rough(s1) : v16_gelu_tanh(s1);
        break;
    case BE_EPI_GELU_ERF:
        s0 = v16_gelu_erf(s0);
        s1 = v16_gelu_erf(s1);
        break;
    case BE_EPI_QUICK_GELU:
        s0 = d->bf16 ? v16_quick_gelu_rough(s0) : v16_quick_gelu(s0);
        s1 = d->bf16 ? v16_quick_gelu_rough(s1) : v16_quick_gelu(s1);
        break;
    case BE_EPI_ACT: break;
    case BE_EPI_GLU_GELU_TANH:
        epi_store_glu(d, out, row, _mm512_mul_ps(d->bf16 ? v16_gelu_tanh_rough(s0) : v16_gelu_tanh(s0), s1));
        return;
    case BE_EPI_GLU_SILU:
        epi_store_glu(d, out, row, _mm512_mul_ps(d->bf16 ? v16_silu_rough(s0) : v16_silu(s0), s1));
        return;
    }
    if (d->bf16) {
        __m256i h0 = v16_to_bf16(_mm512_maskz_mov_ps(d->m0, s0)),
                h1 = v16_to_bf16(_mm512_maskz_mov_ps(d->m1, s1));
        epi_line(d, out, _mm512_inserti64x4(_mm512_castsi256_si512(h0), h1, 1));
        return;
    }
    epi_store_act(out, 0, false, d->m0, s0);
    epi_store_act(out, 1, false, d->m1, s1);
}

/* Calls FN(job, begin, end, scratch, epilogue) with a constant epilogue, so that each gets its own loop. */
#define EPI_DISPATCH(FN, job, begin, end, scratch)                                                           \
    switch ((job)->a->epilogue) {                                                                            \
    case BE_EPI_F32: FN(job, begin, end, scratch, BE_EPI_F32); break;                                        \
    case BE_EPI_ADD_F32: FN(job, begin, end, scratch, BE_EPI_ADD_F32); break;                                \
    case BE_EPI_ACT: FN(job, begin, end, scratch, BE_EPI_ACT); break;                                        \
    case BE_EPI_GELU_TANH: FN(job, begin, end, scratch, BE_EPI_GELU_TANH); break;                            \
    case BE_EPI_GELU_ERF: FN(job, begin, end, scratch, BE_EPI_GELU_ERF); break;                              \
    case BE_EPI_QUICK_GELU: FN(job, begin, end, scratch, BE_EPI_QUICK_GELU); break;                          \
    case BE_EPI_GLU_GELU_TANH: FN(job, begin, end, scratch, BE_EPI_GLU_GELU_TANH); break;                    \
    case BE_EPI_GLU_SILU: FN(job, begin, end, scratch, BE_EPI_GLU_SILU); break;                              \
    }

#endif

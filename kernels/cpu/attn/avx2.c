/* Attention for AVX2 + FMA: keys and values widened by shifts (mul_avx2.h), queries and probabilities once
 * for all. See attn/driver.h. */
#include "kernels/backend.h"
#include "kernels/cpu/simd/vops_avx2.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

VF_OP struct vf vf_keep(struct vf a, uint32_t base, uint32_t lo, uint32_t hi)
{
    /* Positions are below 2^31, so signed compares suffice. */
    __m256i pos = _mm256_add_epi32(_mm256_set1_epi32((int)base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), pos),
                                  _mm256_cmpgt_epi32(pos, _mm256_set1_epi32((int)hi)));
    return (struct vf){_mm256_blendv_ps(a.v, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(out))};
}
/* 2^n for integers -252 <= n <= 127, by two factors so that subnormal results are rounded and underflow to
 * 0. */
static inline __m256 pow2i(__m256 p, __m256 n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half),
            bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
/* As in attn/v16.h: x = n + f, minimax polynomial for 2^f. */
VF_OP struct vf vf_exp2(struct vf a, bool fine)
{
    __m256 x = _mm256_max_ps(_mm256_set1_ps(-200.0f), a.v);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(x, n), p;
    p = fine ? POLY(v8, poly_exp2, f) : POLY(v8, poly_exp2_rough, f);
    return (struct vf){pow2i(p, n)};
}
/* tanh(x) = sign(x) (1 - e) / (1 + e), e = 2^(-2|x| log2(e)); near 0 the odd series, where the quotient would
 * cancel. */
VF_OP struct vf vf_softcap(struct vf in)
{
    __m256 x = in.v, one = _mm256_set1_ps(1.0f), sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f)),
           a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    __m256 e = vf_exp2((struct vf){_mm256_mul_ps(a, _mm256_set1_ps(-2.88539008177792681f))}, true).v,
           z = _mm256_mul_ps(x, x);
    __m256 big = _mm256_or_ps(_mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e)), sign);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(62.0f / 2835), z, _mm256_set1_ps(-17.0f / 315));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.0f / 15));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-1.0f / 3));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    return (struct vf){_mm256_blendv_ps(big, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.15f), _CMP_LT_OQ))};
}
/* As rounding to nearest even leaves it: the upper halves of lanes. */
VF_OP __m256i kv__round(__m256 v)
{
    __m256i u = _mm256_castps_si256(v),
            lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
}
VF_OP struct vf vf_round_bf16(struct vf a)
{
    __m256i r = _mm256_and_si256(kv__round(a.v), _mm256_set1_epi32((int)0xffff0000));
    return (struct vf){_mm256_blendv_ps(_mm256_castsi256_ps(r),
                                        _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                                        _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q))};
}
VF_OP struct vf vf_load_bf16(const uint16_t *p)
{
    return (struct vf){v8_from_bf16(_mm_loadu_si128((const __m128i *)(const void *)p))};
}

/* Lines of attn/unpack.h; e4m3 has the bits of an f16 that is 2^8 too small. */
#define KV_OWN_LINES
struct kv_scales {
    __m256 even[2], odd[2]; /* of the halves of words 0..7 and 8..15 */
};
static inline struct kv_scales kv_scales_k(const uint16_t *s)
{
    __m256 a = vf_load_bf16(s).v, b = vf_load_bf16(s + 8).v;
    return (struct kv_scales){{a, b}, {a, b}};
}
static inline struct kv_scales kv_scales_v(const uint16_t *s)
{
    __m256 a = _mm256_castsi256_ps(_mm256_set1_epi32((int)((uint32_t)s[0] << 16))),
           b = _mm256_castsi256_ps(_mm256_set1_epi32((int)((uint32_t)s[1] << 16)));
    return (struct kv_scales){{a, a}, {b, b}};
}
VF_OP void kv_line(uint16_t *dst, const int8_t *code, const struct kv_scales *s)
{
    for (int i = 0; i < 2; i++) {
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(code + 16 * i));
        __m256i words = _mm256_cvtepi16_epi32(c);
        __m256 even = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24), 24)),
               odd = _mm256_cvtepi32_ps(_mm256_srai_epi32(words, 8));
        __m256i low = _mm256_srli_epi32(kv__round(_mm256_mul_ps(even, s->even[i])), 16),
                high = kv__round(_mm256_mul_ps(odd, s->odd[i]));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 16 * i), _mm256_blend_epi16(low, high, 0xaa));
    }
}

#define ATTN_WIDE 1
#define ATTN_OWN_PRODUCTS
/* Rows a power of two apart would share a few sets of the L1 cache. */
#define ATTN_STRIDE (ATTN_KEYS + 16)
#include "kernels/cpu/attn/driver.h"
#include "kernels/cpu/simd/mul_avx2.h"

/* 32, 16 and 8 columns: keys of a block (32 or 16 at a time), dimensions of the values. */
MUL_TABLE(y__scores_f32, mul__32, false, false)
MUL_TABLE(y__scores_bf16, mul__32, true, false)
MUL_TABLE(y__values32_f32, mul__32, false, true)
MUL_TABLE(y__values32_bf16, mul__32, true, true)
MUL_TABLE(y__values16_f32, mul__some, false, true, true)
MUL_TABLE(y__values16_bf16, mul__some, true, true, true)
MUL_TABLE(y__values8_f32, mul__some, false, true, false)
MUL_TABLE(y__values8_bf16, mul__some, true, true, false)

/* Scores of one block. Elements from d to dpad are zero in both factors and skipped. Prefetches the block's
 * values. */
ATTN_INLINE void attn__vec_scores(const struct attn_work_item *w, const void *k, const void *next, float *s,
                                  const bool bf16)
{
    (void)next;
    const char *b = k;
    uint32_t d = w->j->a->kv.head_dim, dpad = w->j->dpad, lines = bf16 ? (d + 1) / 2 : d;
    struct mul_avx2 m = {.lda = dpad,
                         .b = &b,
                         .parts = 1,
                         .b_step = bf16 ? 64 : KV_SLOTS * 4,
                         .b_next = bf16 ? (size_t)dpad * 32 : 64,
                         .lines = lines,
                         .ldc = ATTN_STRIDE};
    m.ask_more = kv_part_elems(w->j->act, d) * be_dtype_bytes(w->j->act);
    for (uint32_t row = 0, rows; row < w->rows; row += rows, m.ask_more = 0) {
        rows = mul_group(w->rows - row);
        m.a = (const float *)(const void *)w->q + (size_t)row * dpad;
        m.c = s + (size_t)row * ATTN_STRIDE;
        (bf16 ? y__scores_bf16 : y__scores_f32)[rows - 1](&m);
    }
}

ATTN_INLINE void attn__vec_values(const struct attn_work_item *w, const void *const v[ATTN_TILE],
                                  const void *const ask[ATTN_TILE], uint32_t b0, uint32_t b1, const bool bf16)
{
    (void)ask;
    uint32_t dpad = w->j->dpad, used = (w->j->a->kv.head_dim + VL - 1) / VL * VL, n;
    const char *at[ATTN_TILE];
    for (uint32_t b = b0; b < b1; b++) at[b - b0] = v[b];
    struct mul_avx2 m = {.lda = ATTN_STRIDE,
                         .b = at,
                         .parts = b1 - b0,
                         .b_step = (size_t)dpad * 4,
                         .b_next = 64,
                         .lines = bf16 ? KV_SLOTS / 2 : KV_SLOTS,
                         .ldc = dpad};
    for (uint32_t c = 0; c < used; c += n) {
        n = used - c >= 32 ? 32 : used - c >= 16 ? 16 : 8;
        mul_fn *const *mul = n == 32   ? (bf16 ? y__values32_bf16 : y__values32_f32)
                             : n == 16 ? (bf16 ? y__values16_bf16 : y__values16_f32)
                             : bf16    ? y__values8_bf16
                                       : y__values8_f32;
        m.b_at = (size_t)c * 4;
        for (uint32_t row = 0, rows; row < w->rows; row += rows) {
            rows = mul_group(w->rows - row);
            m.a = (const float *)(const void *)w->p + (size_t)row * ATTN_STRIDE + (size_t)b0 * KV_SLOTS;
            m.c = w->o + (size_t)row * dpad + c;
            mul[rows - 1](&m);
        }
    }
}

#include "kernels/cpu/attn/vec.h"

/* Linear in AVX2 with fused multiply-add. bf16 weights become f32 by a shift or a mask (the upper half of an
 * f32 is the bf16), bf16 rows are widened once per call. A sum is one lane of one register over all of K, k
 * ascending, for every number of rows. */
#include "kernels/cpu/linear/epi_avx2.h"
#include "kernels/cpu/simd/mul_avx2.h"

#define AHEAD 2048u /* bytes */

/* ---- the sums */

MUL_TABLE(y__mul_f32, mul__32, false, false)
MUL_TABLE(y__mul_bf16, mul__32, true, false)

Y_INLINE void y__pairs_of(const struct linear_job *j, uint32_t begin, uint32_t end, bool bf16,
                          enum be_epilogue e)
{
    const struct be_weight *w = j->w;
    float sums[MUL_ROWS * 32] __attribute__((aligned(64)));
    struct mul_avx2 m = {.lda = w->kpad,
                         .b_step = 64,
                         .b_next = w->panel_bytes,
                         .lines = (uint32_t)(w->panel_bytes / 64),
                         .parts = 1,
                         .c = sums,
                         .ldc = 32};
    const float *x = (const float *)(const void *)(j->packed ? j->packed : j->x);
    for (uint32_t pair = begin; pair < end; pair++) {
        const char *b = (const char *)w->data + (size_t)2 * pair * w->panel_bytes;
        m.b = &b;
        for (uint32_t row = 0, rows; row < j->m; row += rows) {
            rows = mul_group(j->m - row);
            m.a = x + (size_t)row * w->kpad;
            m.ask = row == 0 ? AHEAD : 0;
            (bf16 ? y__mul_bf16 : y__mul_f32)[rows - 1](&m);
            for (uint32_t r = 0; r < rows; r++) y__epilogue(j, e, pair, row + r, sums + r * 32);
        }
    }
}

#define Y_DISPATCH(BF16)                                                                                     \
    switch (j->a->epilogue) {                                                                                \
    case BE_EPI_F32: y__pairs_of(j, begin, end, BF16, BE_EPI_F32); break;                                    \
    case BE_EPI_ADD_F32: y__pairs_of(j, begin, end, BF16, BE_EPI_ADD_F32); break;                            \
    case BE_EPI_ACT: y__pairs_of(j, begin, end, BF16, BE_EPI_ACT); break;                                    \
    case BE_EPI_GELU_TANH: y__pairs_of(j, begin, end, BF16, BE_EPI_GELU_TANH); break;                        \
    case BE_EPI_GELU_ERF: y__pairs_of(j, begin, end, BF16, BE_EPI_GELU_ERF); break;                          \
    case BE_EPI_QUICK_GELU: y__pairs_of(j, begin, end, BF16, BE_EPI_QUICK_GELU); break;                      \
    case BE_EPI_GLU_GELU_TANH: y__pairs_of(j, begin, end, BF16, BE_EPI_GLU_GELU_TANH); break;                \
    case BE_EPI_GLU_SILU: y__pairs_of(j, begin, end, BF16, BE_EPI_GLU_SILU); break;                          \
    }

static void y__pairs_bf16(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    (void)scratch;
    Y_DISPATCH(true)
}

static void y__pairs_f32(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    (void)scratch;
    Y_DISPATCH(false)
}

/* bf16 rows to f32, same stride in elements. */
static void y__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    uint32_t ld = j->w->kpad; /* a multiple of 32 */
    for (uint32_t r = begin; r < end; r++) {
        const uint16_t *src = (const uint16_t *)(const void *)linear_src_row(j, r);
        float *dst = (float *)(void *)j->packed + (size_t)r * ld;
        for (uint32_t i = 0; i < ld; i += 8)
            _mm256_store_ps(dst + i, v8_from_bf16(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    }
}

const struct linear_set avx2_linear_set_bf16 = {
    .pack = y__pack, .pack_rows = 16, .pack_elem = 4, .pack_min = 0, .pairs = y__pairs_bf16, .pairs_max = 8};
const struct linear_set avx2_linear_set_f32 = {.pairs = y__pairs_f32, .pairs_max = 8};

void avx2_linear_bf16(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx2_linear_set_bf16);
}

void avx2_linear_f32(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx2_linear_set_f32);
}

/* ---- ceilings */

Y_INLINE __m256 y__peak_step(__m256 s, __m256 w)
{
    s = _mm256_fmadd_ps(w, w, s);
    V8_KEEP(s); /* the chain may not be shortened */
    return s;
}

/* Multiply-adds on registers; bf16 is computed in f32 here, so the peak is the same for both. Ten chains in
 * named variables: an array would be kept in memory, and the loop would measure that. */
double avx2_peak(uint64_t steps)
{
    __m256 w = _mm256_setzero_ps();
#define PEAK_CHAINS(X) X(s0) X(s1) X(s2) X(s3) X(s4) X(s5) X(s6) X(s7) X(s8) X(s9)
#define PEAK_INIT(s)   __m256 s = w;
#define PEAK_STEP(s)   s = y__peak_step(s, w);
    PEAK_CHAINS(PEAK_INIT)
    for (uint64_t n = 0; n < steps; n++) {
        PEAK_CHAINS(PEAK_STEP)
    }
    return (double)steps * 10 * 8 * 2;
}

Y_INLINE __m256i y__read_line(const char *q)
{
    _mm_prefetch(q + AHEAD, _MM_HINT_T0);
    const __m256i *v = (const __m256i *)(const void *)q;
    return _mm256_add_epi64(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1));
}

/* Four streams, as a decode step reads panels. */
uint64_t avx2_read(const void *p, size_t bytes)
{
    const char *q = p;
    size_t part = bytes / 4;
    __m256i s0 = _mm256_setzero_si256(), s1 = s0;
    for (size_t i = 0; i + 64 <= part; i += 64) {
        s0 = _mm256_add_epi64(s0, _mm256_add_epi64(y__read_line(q + i), y__read_line(q + part + i)));
        s1 = _mm256_add_epi64(
            s1, _mm256_add_epi64(y__read_line(q + 2 * part + i), y__read_line(q + 3 * part + i)));
    }
    uint64_t lane[4], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, _mm256_add_epi64(s0, s1));
    for (int i = 0; i < 4; i++) sum += lane[i];
    return sum;
}

/* ---- packing: 8 x 8 words at a time */

static void y__transpose_block(const uint32_t *const src[8], size_t at, uint32_t *dst)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps((const float *)(const void *)(src[i] + at));
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(void *)(dst + i * 16), _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
        _mm256_storeu_ps((float *)(void *)(dst + (4 + i) * 16), _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
    }
}

void avx2_transpose16(const uint32_t *const src[16], size_t words, uint32_t *dst)
{
    size_t i = 0;
    for (; i + 8 <= words; i += 8) {
        y__transpose_block(src, i, dst + i * 16);
        y__transpose_block(src + 8, i, dst + i * 16 + 8);
    }
    for (; i < words; i++)
        for (uint32_t c = 0; c < 16; c++) dst[i * 16 + c] = src[c][i];
}

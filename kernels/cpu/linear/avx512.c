/* Linear in AVX-512: bf16 by vdpbf16ps (pairs of k), f32 by fused multiply-add. A sum is one lane of one
 * register over all of K, so its order over k is the same for every number of rows. Rows are read by
 * broadcast straight from the caller's matrix. */
#include "kernels/cpu/linear/epi_avx512.h"

/* Registers: ROWS x 2 sums, 2 weights. */
#define ROWS_MAX 12u
/* Columns of weights are fetched this many bytes ahead of use. */
#define AHEAD 2048u

EPI_INLINE __m512 z__step(bool bf16, __m512 acc, const char *x, __m512 w)
{
    if (bf16) {
        int32_t two;
        memcpy(&two, x, 4);
        return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(two), (__m512bh)_mm512_castps_si512(w));
    }
    float one;
    memcpy(&one, x, 4);
    return _mm512_fmadd_ps(_mm512_set1_ps(one), w, acc);
}

/* What a pass over a pair's weights fetches: nothing; ahead of itself, what it reads itself; the next pair,
 * for which the passes over the second rows have time. */
enum fetch { FETCH_NONE, FETCH_AHEAD, FETCH_NEXT };

/* `rows` rows (a constant) of one pair, all of K; the first `done` of them were stored before. One step is 4
 * bytes of a row (2 bf16 or 1 f32) and 64 bytes of each panel, in both types. */
EPI_INLINE void z__rows(const struct linear_job *j, uint32_t pair, uint32_t row, const uint32_t rows,
                        uint32_t done, bool bf16, enum fetch fetch, const struct epi_dest *d,
                        enum be_epilogue e)
{
    const struct be_weight *w = j->w;
    const char *b = (const char *)w->data + (size_t)2 * pair * w->panel_bytes;
    size_t stride = (size_t)w->kpad * be_dtype_bytes(w->type), panel = w->panel_bytes;
    const char *x = j->x + row * stride;
    __m512 s0[ROWS_MAX], s1[ROWS_MAX];
    for (uint32_t r = 0; r < rows; r++) s0[r] = s1[r] = _mm512_setzero_ps();
    uint32_t steps = (uint32_t)(panel / 64);
    for (uint32_t i = 0; i < steps; i++, b += 64, x += 4) {
        __m512 w0 = _mm512_loadu_ps(b), w1 = _mm512_loadu_ps(b + panel);
        if (fetch == FETCH_AHEAD) {
            _mm_prefetch(b + AHEAD, _MM_HINT_T0);
            _mm_prefetch(b + panel + AHEAD, _MM_HINT_T0);
        } else if (fetch == FETCH_NEXT) {
            _mm_prefetch(b + 2 * panel, _MM_HINT_T1);
            _mm_prefetch(b + 3 * panel, _MM_HINT_T1);
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            s0[r] = z__step(bf16, s0[r], x + r * stride, w0);
            s1[r] = z__step(bf16, s1[r], x + r * stride, w1);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        if (r >= done) epi_row(d, e, row + r, s0[r], s1[r]);
}

/* ---- few rows: a step of decodes, draft tokens that are verified. Their weights come from memory, so
 * reading and multiplying must overlap evenly. */

#define FEW_ROWS  48u  /* above that, reading the weights takes less than a third of the time */
#define FEW_PASS  14u  /* most rows of a pass: 28 sums, 2 weights, 1 broadcast */
#define FEW_STEPS 128u /* of a part: 16 KiB of weights, which later passes find in the L1 cache */
/* So few rows are bound by reading: shorter parts, and one request per line, keep more of the memory
 * bandwidth. */
#define ONE_OR_TWO 2u
#define ONE_STEPS  48u

/* Adds `steps` steps of a pair to the sums[rows][32] of `rows` rows (a constant). Prefetches as much from
 * ask0 and ask1 on. */
EPI_INLINE void z__few(const char *b, size_t panel, const char *x, size_t stride, const uint32_t rows,
                       size_t steps, bool bf16, const char *ask0, const char *ask1, float *sums)
{
    size_t three = 3 * stride;
    /* Four rows to an address: more addresses than there are registers would cost more than their rows. */
    const char *x0 = x, *x4 = x + 4 * stride, *x8 = x + 8 * stride, *x12 = x + 12 * stride;
    __asm__("" : "+r"(x4), "+r"(x8), "+r"(x12), "+r"(three));
    __m512 s0[FEW_PASS], s1[FEW_PASS];
#pragma GCC unroll 14
    for (uint32_t r = 0; r < rows; r++) {
        s0[r] = _mm512_load_ps(sums + 32 * r);
        s1[r] = _mm512_load_ps(sums + 32 * r + 16);
    }
    for (size_t i = 0; i < 64 * steps; i += 64) {
        __m512 w0 = _mm512_loadu_ps(b + i), w1 = _mm512_loadu_ps(b + panel + i);
        _mm_prefetch(ask0 + i, _MM_HINT_T1);
        _mm_prefetch(ask1 + i, _MM_HINT_T1);
        if (rows > ONE_OR_TWO) {
            _mm_prefetch(b + i + AHEAD, _MM_HINT_T0);
            _mm_prefetch(b + panel + i + AHEAD, _MM_HINT_T0);
        }
#pragma GCC unroll 14
        for (uint32_t r = 0; r < rows; r++) {
            const char *at = (r < 4    ? x0
                              : r < 8  ? x4
                              : r < 12 ? x8
                                       : x12) +
                             (r % 4 == 3 ? three : r % 4 * stride);
            s0[r] = z__step(bf16, s0[r], at, w0);
            s1[r] = z__step(bf16, s1[r], at, w1);
        }
        x0 += 4;
        x4 += 4;
        x8 += 4;
        x12 += 4;
    }
#pragma GCC unroll 14
    for (uint32_t r = 0; r < rows; r++) {
        _mm512_store_ps(sums + 32 * r, s0[r]);
        _mm512_store_ps(sums + 32 * r + 16, s1[r]);
    }
}

typedef void few_fn(const char *b, size_t panel, const char *x, size_t stride, size_t steps, const char *ask0,
                    const char *ask1, float *sums);
#define FEW(ROWS)                                                                                            \
    static void z__few_bf16_##ROWS(const char *b, size_t panel, const char *x, size_t stride, size_t steps,  \
                                   const char *ask0, const char *ask1, float *sums)                          \
    {                                                                                                        \
        z__few(b, panel, x, stride, ROWS, steps, true, ask0, ask1, sums);                                    \
    }                                                                                                        \
    static void z__few_f32_##ROWS(const char *b, size_t panel, const char *x, size_t stride, size_t steps,   \
                                  const char *ask0, const char *ask1, float *sums)                           \
    {                                                                                                        \
        z__few(b, panel, x, stride, ROWS, steps, false, ask0, ask1, sums);                                   \
    }
#define FEW_ALL(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
FEW_ALL(FEW)
#define FEW_BF16(ROWS) z__few_bf16_##ROWS,
#define FEW_F32(ROWS)  z__few_f32_##ROWS,
static few_fn *const few_bf16[FEW_PASS] = {FEW_ALL(FEW_BF16)}, *const few_f32[FEW_PASS] = {FEW_ALL(FEW_F32)};

EPI_INLINE void z__few_end(const struct linear_job *j, uint32_t pair, const float *sums, enum be_epilogue e)
{
    struct epi_dest d = epi_dest_of(j, pair);
    for (uint32_t r = 0; r < j->m; r++, sums += 32)
        epi_row(&d, e, r, _mm512_load_ps(sums), _mm512_load_ps(sums + 16));
}

/* The rows in as few passes as possible, of about equal size. During one part of the weights, the first one
 * or two passes prefetch the next part. */
static void z__few_pairs(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    const struct be_weight *w = j->w;
    few_fn *const *fn = w->type == BE_BF16 ? few_bf16 : few_f32;
    size_t stride = (size_t)w->kpad * be_dtype_bytes(w->type), panel = w->panel_bytes, steps = panel / 64;
    size_t most = j->m > ONE_OR_TWO ? FEW_STEPS : ONE_STEPS,
           part = (steps - 1) / ((steps - 1) / most + 1) + 1;
    uint32_t passes = (j->m - 1) / FEW_PASS + 1;
    float sums[FEW_ROWS * 32] __attribute__((aligned(64)));
    for (uint32_t pair = begin; pair < end; pair++) {
        const char *b = (const char *)w->data + pair * 2 * panel;
        memset(sums, 0, j->m * 32 * sizeof *sums);
        for (size_t at = 0, n; at < steps; at += n) {
            n = steps - at < part ? steps - at : part;
            const char *now = b + 64 * at, *next = now + 64 * n;
            if (at + n == steps) next = pair + 1 < end ? b + 2 * panel : now;
            for (uint32_t p = 0, row = 0, rows; p < passes; p++, row += rows) {
                rows = (j->m - row - 1) / (passes - p) + 1;
                const char *first = p == 0   ? next
                                    : p == 1 ? next + panel
                                             : now,
                           *second = passes == 1 ? next + panel : now;
                fn[rows - 1](now, panel, j->x + row * stride + 4 * at, stride, n, first, second,
                             sums + 32 * row);
            }
        }
#define FEW_END(J, BEGIN, END, SUMS, E) z__few_end(J, pair, SUMS, E)
        EPI_DISPATCH(FEW_END, j, 0, 0, sums)
    }
}

/* ---- */

EPI_INLINE void z__pairs_of(const struct linear_job *j, uint32_t begin, uint32_t end, bool bf16,
                            enum be_epilogue e)
{
    for (uint32_t pair = begin; pair < end; pair++) {
        struct epi_dest d = epi_dest_of(j, pair);
        uint32_t row = 0;
        bool next = pair + 1 < end;
        for (; row + 12 <= j->m; row += 12) {
            if (row == 0) z__rows(j, pair, row, 12, 0, bf16, FETCH_AHEAD, &d, e);
            else if (row == 12 && next) z__rows(j, pair, row, 12, 0, bf16, FETCH_NEXT, &d, e);
            else z__rows(j, pair, row, 12, 0, bf16, FETCH_NONE, &d, e);
        }
        for (; row + 4 <= j->m; row += 4) z__rows(j, pair, row, 4, 0, bf16, FETCH_NONE, &d, e);
        /* Up to three more: the last four again, in one pass instead of three. */
        if (row < j->m) z__rows(j, pair, j->m - 4, 4, row + 4 - j->m, bf16, FETCH_NONE, &d, e);
    }
}

EPI_INLINE void z__bf16_epi(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch,
                            enum be_epilogue e)
{
    (void)scratch;
    z__pairs_of(j, begin, end, true, e);
}

EPI_INLINE void z__f32_epi(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch,
                           enum be_epilogue e)
{
    (void)scratch;
    z__pairs_of(j, begin, end, false, e);
}

static void z__pairs_bf16(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    if (j->m <= FEW_ROWS) z__few_pairs(j, begin, end);
    else EPI_DISPATCH(z__bf16_epi, j, begin, end, scratch)
}

static void z__pairs_f32(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    if (j->m <= FEW_ROWS) z__few_pairs(j, begin, end);
    else EPI_DISPATCH(z__f32_epi, j, begin, end, scratch)
}

const struct linear_set avx512_linear_set_bf16 = {.pairs = z__pairs_bf16, .pairs_max = 8};
const struct linear_set avx512_linear_set_f32 = {.pairs = z__pairs_f32, .pairs_max = 8};

void avx512_linear_bf16(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx512_linear_set_bf16);
}

void avx512_linear_f32(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx512_linear_set_f32);
}

/* ---- ceilings */

/* Twelve chains in named variables: an array would be kept in memory, and the loop would measure that. */
#define PEAK_CHAINS(X) X(s0) X(s1) X(s2) X(s3) X(s4) X(s5) X(s6) X(s7) X(s8) X(s9) X(s10) X(s11)

EPI_INLINE __m512 z__peak_step(__m512 s, __m512 w, bool bf16)
{
    s = bf16 ? _mm512_dpbf16_ps(s, (__m512bh)_mm512_castps_si512(w), (__m512bh)_mm512_castps_si512(w))
             : _mm512_fmadd_ps(w, w, s);
    __asm__ volatile("" : "+v"(s)); /* the chain may not be shortened */
    return s;
}

EPI_INLINE double z__peak(uint64_t steps, bool bf16)
{
    __m512 w = _mm512_setzero_ps();
#define PEAK_INIT(s) __m512 s = w;
#define PEAK_STEP(s) s = z__peak_step(s, w, bf16);
    PEAK_CHAINS(PEAK_INIT)
    for (uint64_t n = 0; n < steps; n++) {
        PEAK_CHAINS(PEAK_STEP)
    }
    return (double)steps * 12 * 16 * (bf16 ? 4 : 2);
}

double avx512_peak_bf16(uint64_t steps)
{
    return z__peak(steps, true);
}

double avx512_peak_f32(uint64_t steps)
{
    return z__peak(steps, false);
}

/* Four streams, as a decode step reads panels. */
uint64_t avx512_read(const void *p, size_t bytes)
{
    const char *q = p;
    size_t part = bytes / 4;
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i + 64 <= part; i += 64) {
        _mm_prefetch(q + i + AHEAD, _MM_HINT_T0);
        _mm_prefetch(q + part + i + AHEAD, _MM_HINT_T0);
        _mm_prefetch(q + 2 * part + i + AHEAD, _MM_HINT_T0);
        _mm_prefetch(q + 3 * part + i + AHEAD, _MM_HINT_T0);
        s0 = _mm512_add_epi64(s0, _mm512_loadu_si512(q + i));
        s1 = _mm512_add_epi64(s1, _mm512_loadu_si512(q + part + i));
        s2 = _mm512_add_epi64(s2, _mm512_loadu_si512(q + 2 * part + i));
        s3 = _mm512_add_epi64(s3, _mm512_loadu_si512(q + 3 * part + i));
    }
    s0 = _mm512_add_epi64(_mm512_add_epi64(s0, s1), _mm512_add_epi64(s2, s3));
    uint64_t lane[8], sum = 0; /* unsigned: the sum may wrap */
    _mm512_storeu_si512(lane, s0);
    for (int i = 0; i < 8; i++) sum += lane[i];
    return sum;
}

/* ---- packing: 16 x 16 words at a time. Unpacks within 128-bit parts, then moves the parts. */

static void z__transpose_block(const uint32_t *const src[16], size_t at, uint32_t *dst)
{
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(src[i] + at);
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    /* r[4g + c] holds, in 128-bit part p, word 4p + c of rows 4g .. 4g + 3. */
    for (int c = 0; c < 4; c++) {
        __m512i lo01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44),
                hi01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
        __m512i lo23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44),
                hi23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
        _mm512_storeu_si512(dst + c * 16, _mm512_shuffle_i32x4(lo01, lo23, 0x88));
        _mm512_storeu_si512(dst + (4 + c) * 16, _mm512_shuffle_i32x4(lo01, lo23, 0xdd));
        _mm512_storeu_si512(dst + (8 + c) * 16, _mm512_shuffle_i32x4(hi01, hi23, 0x88));
        _mm512_storeu_si512(dst + (12 + c) * 16, _mm512_shuffle_i32x4(hi01, hi23, 0xdd));
    }
}

void avx512_transpose16(const uint32_t *const src[16], size_t words, uint32_t *dst)
{
    size_t i = 0;
    for (; i + 16 <= words; i += 16) z__transpose_block(src, i, dst + i * 16);
    for (; i < words; i++)
        for (uint32_t c = 0; c < 16; c++) dst[i * 16 + c] = src[c][i];
}

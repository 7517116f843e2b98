/* Weights of quants in AVX-512 VNNI (layout: quant.h). A group's sum of products is exact; it enters the f32
 * sum of its output by one fused multiply-add, groups in ascending order, whatever the number of rows. */
#include "kernels/cpu/linear/quant_avx512.h"

#include <math.h>

#define ROWS_MAX 32u /* that meet a record of the weights while it is in registers */
/* Weights are fetched this many bytes ahead of use, into the L2 and the L1 cache: the L1 has too few
 * outstanding requests for full memory bandwidth. */
#define FAR  8192u
#define NEAR 2048u

EPI_INLINE __m512i q__four(const char *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

/* ---- rows */

static __m512 q__load(const struct be_weight *w, const char *x, uint32_t at)
{
    if (w->type == BE_F32) return _mm512_loadu_ps(x + 4 * (size_t)at);
    const void *p = x + 2 * (size_t)at;
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static void q__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    const struct be_weight *w = j->w;
    uint32_t spans = w->kpad / QUANT_SPAN, groups = QUANT_SPAN / w->group;
    for (uint32_t r = begin; r < end; r++)
        for (uint32_t s = 0; s < spans; s++) {
            const char *x = linear_src_row(j, r);
            char *row = quant_row(j, s, r, QUANT_ROW);
            __m512 v0 = q__load(w, x, s * 32), v1 = q__load(w, x, s * 32 + 16);
            uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(v0)),
                                                                    _mm512_castps_si512(_mm512_abs_ps(v1))));
            float most, scale;
            memcpy(&most, &top, 4);
            /* NaN and infinity reach the outputs through the scale; their code is 0. */
            bool finite = most < INFINITY;
            __m512 to = _mm512_set1_ps(most < QUANT_LEAST ? 0 : 127 / most);
            __m512i c0 = _mm512_maskz_cvtps_epi32(finite ? 0xffff : 0, _mm512_mul_ps(v0, to)),
                    c1 = _mm512_maskz_cvtps_epi32(finite ? 0xffff : 0, _mm512_mul_ps(v1, to));
            _mm_storeu_si128((__m128i *)(void *)row, _mm512_cvtepi32_epi8(c0));
            _mm_storeu_si128((__m128i *)(void *)(row + 16), _mm512_cvtepi32_epi8(c1));
            scale = most / 127;
            memcpy(row + QUANT_SPAN, &scale, 4);
            int32_t sum[2] = {_mm512_reduce_add_epi32(c0), _mm512_reduce_add_epi32(c1)};
            if (groups == 1) sum[0] += sum[1];
            for (uint32_t g = 0; g < groups; g++) {
                float scaled = scale * (float)sum[g];
                sum[g] *= -(int32_t)w->off;
                memcpy(row + QUANT_SPAN + 4 + 4 * g, w->min ? (void *)&scaled : (void *)&sum[g], 4);
            }
        }
}

/* ---- products */

/* What one record of the weights adds to the sums of `rows` rows. Its quants stay in registers; each four
 * inputs of a row are read once for both panels. Arguments from bits on are constants. */
EPI_INLINE void q__record(const char *b, const char *x, uint32_t rows, float *sums, const uint8_t *values,
                          const uint32_t bits, const uint32_t groups, const bool min)
{
    const size_t part = 64 * (size_t)groups, quants = part * (min ? 2 : 1), panel = 64 * (size_t)bits;
    __m512i v[2][8];
    __m512 scale[2][2], least[2][2];
#pragma GCC unroll 2
    for (uint32_t p = 0; p < 2; p++) {
        q__panel(v[p], b + quants + p * panel, values, bits);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++)
            __asm__ volatile("" : "+v"(v[p][i])); /* or gcc rereads them for each row */
        for (uint32_t g = 0; g < groups; g++) {
            scale[p][g] = q__halves(b + 64 * g + 32 * p);
            least[p][g] = q__halves(b + (min ? part : 0) + 64 * g + 32 * p);
        }
    }
    for (uint32_t r = 0; r < rows; r++, x += QUANT_ROW, sums += 32) {
        __m512 xs = q__one(x + QUANT_SPAN), s0 = _mm512_loadu_ps(sums), s1 = _mm512_loadu_ps(sums + 16);
        for (uint32_t g = 0; g < groups; g++) {
            const char *sum = x + QUANT_SPAN + 4 + 4 * g;
            __m512i d0 = min ? _mm512_setzero_si512() : q__four(sum), d1 = d0;
            for (uint32_t i = 0; i < 8 / groups; i++) {
                uint32_t at = 8 / groups * g + i;
                __m512i four = q__four(x + 4 * at);
                d0 = _mm512_dpbusd_epi32(d0, v[0][at], four);
                d1 = _mm512_dpbusd_epi32(d1, v[1][at], four);
            }
            s0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d0), _mm512_mul_ps(scale[0][g], xs), s0);
            s1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d1), _mm512_mul_ps(scale[1][g], xs), s1);
            if (min) s0 = _mm512_fmadd_ps(least[0][g], q__one(sum), s0);
            if (min) s1 = _mm512_fmadd_ps(least[1][g], q__one(sum), s1);
        }
        _mm512_storeu_ps(sums, s0);
        _mm512_storeu_ps(sums + 16, s1);
    }
}

/* All records of a pair, for rows [row, row + rows). */
EPI_INLINE void q__rows(const struct linear_job *j, uint32_t pair, uint32_t row, uint32_t rows, float *sums,
                        const uint8_t *values, const uint32_t bits, const uint32_t groups, const bool min)
{
    const size_t record = 64 * (size_t)groups * (min ? 2 : 1) + 128 * (size_t)bits;
    const char *b = quant_pair(j->w, pair), *x = quant_row(j, 0, row, QUANT_ROW);
    uint32_t spans = j->w->kpad / QUANT_SPAN;
    memset(sums, 0, rows * 32 * sizeof *sums);
    for (uint32_t n = 0; n < spans; n++, b += record, x += (size_t)j->m * QUANT_ROW) {
        if (row == 0)
            for (size_t i = 0; i < record; i += 64) {
                _mm_prefetch(b + NEAR + i, _MM_HINT_T0);
                _mm_prefetch(b + FAR + i, _MM_HINT_T1);
            }
        q__record(b, x, rows, sums, values, bits, groups, min);
    }
}

QUANT_TABLE(q__rows)

/* The sums of rows [begin, end). */
EPI_INLINE void q__finish(const struct linear_job *j, uint32_t begin, uint32_t end, const float *sums,
                          uint32_t pair, enum be_epilogue e)
{
    struct epi_dest d = epi_dest_of(j, pair);
    for (uint32_t r = begin; r < end; r++, sums += 32)
        epi_row(&d, e, r, _mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16));
}

static void q__pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    const struct be_weight *w = j->w;
    quant_fn *fn = quant__table[quant_kind(w)];
    float *sums = (float *)(void *)scratch;
#define Q_FINISH(J, BEGIN, END, SUMS, E) q__finish(J, BEGIN, END, SUMS, pair, E)
    for (uint32_t pair = begin; pair < end; pair++)
        for (uint32_t row = 0; row < j->m; row += ROWS_MAX) {
            uint32_t rows = u32_min(ROWS_MAX, j->m - row);
            fn(j, pair, row, rows, sums);
            EPI_DISPATCH(Q_FINISH, j, row, row + rows, sums)
        }
}

const struct linear_set avx512_linear_set_quants = {
    .pack = q__pack, .pack_rows = 1, .pack_elem = 2, .pack_min = 1, .pairs = q__pairs, .pairs_max = 64};

void avx512_linear_quants(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx512_linear_set_quants);
}

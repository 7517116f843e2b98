/* Weights of quants in AVX2 (layout: quant.h). Bytes are multiplied with bytes: the sum of two products fits
 * into 16 bits, for quants of few bits that of more, and then widens. All of it is exact; a group's sum
 * enters the f32 sum of its output by one fused multiply-add, groups in ascending order, whatever the number
 * of rows. Quants of 8 bits are taken as signed, 128 less.
 *
 * A row's record (64 bytes) ends with an int32 for each group: where the integer sum begins. */
#include "kernels/cpu/linear/quant.h"
#include "kernels/cpu/linear/epi_avx2.h"

#include <math.h>

#define ROWS_MAX 32u /* that meet a record of the weights while it is in registers */
#define AHEAD    2048u

/* ---- rows */

static bool p__signed(const struct be_weight *w)
{
    return w->bits == 8 || w->look;
}

static void p__pack_span(const struct be_weight *w, const char *x, char *row)
{
    uint32_t groups = QUANT_SPAN / w->group;
    __m256 v[4], most8 = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    __m256i c[4];
    for (uint32_t i = 0; i < 4; i++) {
        v[i] = w->type == BE_F32 ? _mm256_loadu_ps((const float *)(const void *)x + 8 * i)
                                 : v8_from_bf16(_mm_loadu_si128((const __m128i *)(const void *)(x + 16 * i)));
        most8 = _mm256_castsi256_ps(
            _mm256_max_epu32(_mm256_castps_si256(most8), _mm256_castps_si256(_mm256_andnot_ps(sign, v[i]))));
    }
    uint32_t tops[8], top = 0;
    _mm256_storeu_si256((__m256i *)(void *)tops, _mm256_castps_si256(most8));
    for (uint32_t i = 0; i < 8; i++) top = u32_max(top, tops[i]);
    float most, scale;
    memcpy(&most, &top, 4);
    scale = most / 127;
    /* NaN and infinity reach the outputs through the scale; their code is 0. */
    __m256 to = _mm256_set1_ps(most < QUANT_LEAST ? 0 : 127 / most);
    for (uint32_t i = 0; i < 4; i++)
        c[i] = most < INFINITY ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], to)) : _mm256_setzero_si256();
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3])); /* by lanes */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256((__m256i *)(void *)row, bytes);
    int32_t sums[8], sum[2], start[2];
    _mm256_storeu_si256(
        (__m256i *)(void *)sums,
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1)));
    for (uint32_t g = 0; g < 2; g++)
        sum[g] = sums[4 * g] + sums[4 * g + 1] + sums[4 * g + 2] + sums[4 * g + 3];
    if (groups == 1) sum[0] += sum[1];
    memcpy(row + QUANT_SPAN, &scale, 4);
    for (uint32_t g = 0; g < groups; g++) {
        float scaled = scale * (float)sum[g];
        start[g] = sum[g] * ((p__signed(w) ? 128 : 0) - (w->min ? 0 : (int32_t)w->off));
        memcpy(row + QUANT_SPAN + 4 + 4 * g, &scaled, 4);
        memcpy(row + QUANT_SPAN + 12 + 4 * g, &start[g], 4);
    }
}

static void p__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    const struct be_weight *w = j->w;
    for (uint32_t r = begin; r < end; r++)
        for (uint32_t s = 0; s < w->kpad / QUANT_SPAN; s++)
            p__pack_span(w, linear_src_row(j, r) + (size_t)s * QUANT_SPAN * be_dtype_bytes(w->type),
                         quant_row(j, s, r, QUANT_ROW_AVX2));
}

/* ---- products */

Y_INLINE __m256i p__four(const char *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

Y_INLINE __m256 p__one(const char *p)
{
    float one;
    memcpy(&one, p, 4);
    return _mm256_set1_ps(one);
}

Y_INLINE __m256 p__halves(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Bit `from` of each byte at p, as bit `to` of v. */
Y_INLINE __m256i p__bit(__m256i v, const char *p, uint32_t from, const uint32_t to)
{
    __m256i bytes =
        _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p), _mm_cvtsi32_si128((int)from));
    return _mm256_or_si256(v, _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi8(1)), (int)to));
}

/* Vector i (inputs 4 i to 4 i + 3) of eight columns, whose quants begin at `at`. The arguments after it are
 * constants. */
Y_INLINE __m256i p__bytes(const char *at, uint32_t i, const uint8_t *values, const uint32_t bits)
{
    const __m256i low = _mm256_set1_epi8(15), less = _mm256_set1_epi8((char)-128);
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * (bits == 8 ? i : i % 4)));
    if (bits == 8) return _mm256_xor_si256(v, less);
    v = _mm256_and_si256(i < 4 ? v : _mm256_srli_epi16(v, 4), low);
    for (uint32_t bit = 4; bit < bits; bit++) v = p__bit(v, at + 64 * bit, i, bit);
    if (!values) return v;
    __m256i stand_for = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values));
    return _mm256_xor_si256(_mm256_shuffle_epi8(stand_for, v), less);
}

/* `dot` and the products of n vectors with a row's quants at x; n and bits are constants. */
Y_INLINE __m256i p__dot(__m256i dot, const __m256i *v, const char *x, const uint32_t n, const uint32_t bits)
{
#if defined(__aarch64__) /* quants of few bits are signed, too */
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) dot = v8_dot(dot, v[i], p__four(x + 4 * i));
    (void)bits;
#else
    /* of this many vectors: 4 * 2 * 31 * 127 < 1 << 15 */
    const uint32_t together = bits == 8 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i += together) {
        __m256i four = p__four(x + 4 * i), sum;
        if (bits == 8) sum = _mm256_maddubs_epi16(_mm256_abs_epi8(v[i]), _mm256_sign_epi8(four, v[i]));
        else sum = _mm256_maddubs_epi16(v[i], four);
        for (uint32_t k = i + 1; k < n && k < i + together; k++)
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(v[k], p__four(x + 4 * k)));
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    }
#endif
    return dot;
}

/* All records of a pair, for rows [row, row + rows). */
Y_INLINE void p__rows(const struct linear_job *j, uint32_t pair, uint32_t row, uint32_t rows, float *sums,
                      const uint8_t *values, const uint32_t bits, const uint32_t groups, const bool min)
{
    uint32_t spans = j->w->kpad / QUANT_SPAN;
    const char *x = quant_row(j, 0, row, QUANT_ROW_AVX2), *b = quant_pair(j->w, pair);
    const size_t part = 64 * (size_t)groups, quants = part * (min ? 2 : 1),
                 record = quants + 128 * (size_t)bits;
    memset(sums, 0, rows * 32 * sizeof *sums);
    for (uint32_t n = 0; n < spans; n++, b += record, x += (size_t)j->m * QUANT_ROW_AVX2) {
        if (row == 0)
            for (size_t i = 0; i < record; i += 64) _mm_prefetch(b + AHEAD + i, _MM_HINT_T0);
        for (uint32_t c = 0; c < 4; c++) {
            __m256i v[8];
            __m256 scale[2], least[2];
#pragma GCC unroll 8
            for (uint32_t i = 0; i < 8; i++) {
                v[i] = p__bytes(b + quants + c / 2 * 64 * bits + c % 2 * 32, i, values, bits);
                V8_KEEP(v[i]); /* or gcc recomputes them for each row */
            }
            for (uint32_t g = 0; g < groups; g++) {
                scale[g] = p__halves(b + 64 * g + 16 * c);
                least[g] = p__halves(b + (min ? part : 0) + 64 * g + 16 * c);
            }
            const char *xr = x;
            float *out = sums + 8 * c;
            for (uint32_t r = 0; r < rows; r++, xr += QUANT_ROW_AVX2, out += 32) {
                __m256 s = _mm256_loadu_ps(out), xs = p__one(xr + QUANT_SPAN);
                for (uint32_t g = 0; g < groups; g++) {
                    const char *sum = xr + QUANT_SPAN + 4 + 4 * g;
                    __m256i dot = p__dot(p__four(sum + 8), v + 8 / groups * g, xr + 32 / groups * g,
                                         8 / groups, values ? 8 : bits);
                    s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale[g], xs), s);
                    if (min) s = _mm256_fmadd_ps(least[g], p__one(sum), s);
                }
                _mm256_storeu_ps(out, s);
            }
        }
    }
}

QUANT_TABLE(p__rows)

static void p__pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    float *sums = (float *)(void *)scratch;
    for (uint32_t pair = begin; pair < end; pair++)
        for (uint32_t row = 0; row < j->m; row += ROWS_MAX) {
            uint32_t rows = u32_min(ROWS_MAX, j->m - row);
            quant__table[quant_kind(j->w)](j, pair, row, rows, sums);
            for (uint32_t r = 0; r < rows; r++) y__epilogue(j, j->a->epilogue, pair, row + r, sums + 32 * r);
        }
}

const struct linear_set avx2_linear_set_quants = {
    .pack = p__pack, .pack_rows = 1, .pack_elem = 2, .pack_min = 1, .pairs = p__pairs, .pairs_max = 64};

void avx2_linear_quants(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx2_linear_set_quants);
}

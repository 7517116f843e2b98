/* Weights of codes in AVX2 (layout: codes.h). Bytes widen to 16 bits, where products and sums of two are
 * exact; a group's sum enters the f32 sum of its output by one fused multiply-add, groups in ascending order.
 * Rows are of 16-bit codes: of each four inputs the even ones, then the odd ones. */
#include "kernels/cpu/linear/codes.h"
#include "kernels/cpu/linear/epi_avx2.h"

#define ROWS_MAX 4u
#define AHEAD    2048u

/* ---- rows */

static void p__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    const struct be_weight *w = j->w;
    uint32_t groups = CODES_SPAN / w->group;
    for (uint32_t at = begin * (w->kpad / CODES_SPAN); at < end * (w->kpad / CODES_SPAN); at++) {
        uint32_t r = at / (w->kpad / CODES_SPAN), s = at % (w->kpad / CODES_SPAN), top = 0;
        const char *x = linear_src_row(j, r);
        char *row = codes_row(j, s, r, true);
        float v[CODES_SPAN], most, scale;
        int32_t c[CODES_SPAN], sum[2] = {0};
        for (uint32_t i = 0; i < CODES_SPAN; i++) {
            uint32_t u;
            v[i] = act_get(x, w->type, s * CODES_SPAN + i);
            memcpy(&u, &v[i], 4);
            top = u32_max(top, u & 0x7fffffff);
        }
        memcpy(&most, &top, 4);
        __m256 to = _mm256_set1_ps(most < CODES_LEAST ? 0 : 127 / most);
        for (uint32_t i = 0; i < CODES_SPAN; i += 8)
            _mm256_storeu_si256((__m256i *)(void *)(c + i),
                                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + i), to)));
        for (uint32_t i = 0; i < CODES_SPAN; i += 4) {
            int16_t four[4] = {(int16_t)c[i], (int16_t)c[i + 2], (int16_t)c[i + 1], (int16_t)c[i + 3]};
            memcpy(row + 2 * i, four, sizeof four);
            for (uint32_t n = 0; n < 4; n++) sum[groups == 2 && i >= 16] += four[n];
        }
        scale = most / 127;
        memcpy(row + 2 * CODES_SPAN, &scale, 4);
        for (uint32_t g = 0; g < groups; g++) {
            float scaled = scale * (float)sum[g];
            sum[g] *= -(int32_t)w->off;
            memcpy(row + 2 * CODES_SPAN + 4 + 4 * g, w->min ? (void *)&scaled : (void *)&sum[g], 4);
        }
    }
}

/* ---- products */

struct p_tile {
    const struct linear_job *j;
    uint32_t pair, row;
    bool ahead;
    float *out; /* [rows][32] */
};

Y_INLINE __m256i p__two(const char *p)
{
    int32_t two;
    memcpy(&two, p, 4);
    return _mm256_set1_epi32(two);
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

/* Group g of columns [8 c, 8 c + 8): all rows. `rows` and everything behind it are constants. */
Y_INLINE void p__group(const char *codes, const char *x, uint32_t c, uint32_t g, __m256i *dot,
                       const uint32_t rows, const uint8_t *values, const uint32_t bits, const uint32_t groups)
{
    const __m256i even = _mm256_set1_epi16(255), low = _mm256_set1_epi8(15);
    const char *at = codes + c / 2 * 64 * bits + c % 2 * 32;
    for (uint32_t i = 8 / groups * g; i < 8 / groups * (g + 1); i++) {
        __m256i v;
        if (bits == 8) v = _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * i));
        else {
            v = _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * (i % 4)));
            v = _mm256_and_si256(i < 4 ? v : _mm256_srli_epi16(v, 4), low);
            for (uint32_t bit = 4; bit < bits; bit++) v = p__bit(v, at + 64 * bit, i, bit);
            if (values)
                v = _mm256_shuffle_epi8(
                    _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values)), v);
        }
        __m256i v0 = _mm256_and_si256(v, even), v1 = _mm256_srli_epi16(v, 8);
        for (uint32_t r = 0; r < rows; r++) {
            const char *xr = x + r * CODES_ROW_WIDE + 8 * i;
            dot[r] = _mm256_add_epi32(dot[r], _mm256_add_epi32(_mm256_madd_epi16(v0, p__two(xr)),
                                                               _mm256_madd_epi16(v1, p__two(xr + 4))));
        }
    }
}

Y_INLINE void p__rows(const struct p_tile *t, const uint32_t rows, const uint8_t *values, const uint32_t bits,
                      const uint32_t groups, const bool min)
{
    const struct be_weight *w = t->j->w;
    uint32_t spans = w->kpad / CODES_SPAN;
    const char *x = codes_row(t->j, 0, t->row, true), *b = codes_pair(w, t->pair);
    const size_t part = 64 * (size_t)groups, codes = part * (min ? 2 : 1),
                 record = codes + 128 * (size_t)bits;
    memset(t->out, 0, rows * 32 * sizeof *t->out);
    for (uint32_t n = 0; n < spans; n++, b += record, x += (size_t)t->j->m * CODES_ROW_WIDE) {
        const char *xs = x + 2 * CODES_SPAN, *sums = xs + 4;
        if (t->ahead)
            for (size_t i = 0; i < record; i += 64) _mm_prefetch(b + AHEAD + i, _MM_HINT_T0);
        for (uint32_t c = 0; c < 4; c++)
            for (uint32_t g = 0; g < groups; g++) {
                __m256i dot[ROWS_MAX];
                __m256 ws = p__halves(b + 64 * g + 16 * c),
                       wm = p__halves(b + (min ? part : 0) + 64 * g + 16 * c);
                for (uint32_t r = 0; r < rows; r++)
                    dot[r] = min ? _mm256_setzero_si256() : p__two(sums + r * CODES_ROW_WIDE + 4 * g);
                p__group(b + codes, x, c, g, dot, rows, values, bits, groups);
                for (uint32_t r = 0; r < rows; r++) {
                    float *out = t->out + 32 * r + 8 * c;
                    __m256 s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]),
                                               _mm256_mul_ps(ws, p__one(xs + r * CODES_ROW_WIDE)),
                                               _mm256_loadu_ps(out));
                    if (min) s = _mm256_fmadd_ps(wm, p__one(sums + r * CODES_ROW_WIDE + 4 * g), s);
                    _mm256_storeu_ps(out, s);
                }
            }
    }
}

typedef void p_fn(const struct p_tile *t);
#define P_KIND(R, BITS, GROUPS, MIN)                                                                         \
    static void p__##R##_##BITS##_##GROUPS##_##MIN(const struct p_tile *t)                                   \
    {                                                                                                        \
        p__rows(t, R, NULL, BITS, GROUPS, MIN);                                                              \
    }
#define P_BITS(R, BITS)                                                                                      \
    P_KIND(R, BITS, 1, 0) P_KIND(R, BITS, 1, 1) P_KIND(R, BITS, 2, 0) P_KIND(R, BITS, 2, 1)
#define P_LOOK(R)                                                                                            \
    static void p__##R##_look(const struct p_tile *t)                                                        \
    {                                                                                                        \
        p__rows(t, R, t->j->w->values, 4, 1, false);                                                         \
    }
#define P_KINDS(R) P_BITS(R, 4) P_BITS(R, 5) P_BITS(R, 6) P_BITS(R, 8) P_LOOK(R)
P_KINDS(1)
P_KINDS(2)
P_KINDS(4)
#define P_NAMES(R, BITS)                                                                                     \
    p__##R##_##BITS##_1_0, p__##R##_##BITS##_1_1, p__##R##_##BITS##_2_0, p__##R##_##BITS##_2_1
#define P_ROW(R)                                                                                             \
    {                                                                                                        \
        P_NAMES(R, 4), P_NAMES(R, 5), P_NAMES(R, 6), P_NAMES(R, 8), p__##R##_look                            \
    }
/* By rows - 1, then kind. */
static p_fn *const p__table[ROWS_MAX][CODES_KINDS] = {P_ROW(1), P_ROW(2), P_ROW(2), P_ROW(4)};

static void p__pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    const struct be_weight *w = j->w;
    struct p_tile t = {.j = j, .out = (float *)(void *)scratch};
    for (t.pair = begin; t.pair < end; t.pair++) {
        uint32_t rows;
        for (t.row = 0; t.row < j->m; t.row += rows) {
            rows = u32_min(j->m - t.row, ROWS_MAX);
            if (rows == 3) rows = 2;
            t.ahead = t.row == 0;
            p__table[rows - 1][codes_kind(w)](&t);
            for (uint32_t r = 0; r < rows; r++)
                y__epilogue(j, j->a->epilogue, t.pair, t.row + r, t.out + 32 * r);
        }
    }
}

const struct linear_set avx2_linear_set_codes = {
    .pack = p__pack, .pack_rows = 1, .pack_elem = 3, .pack_min = 1, .pairs = p__pairs, .pairs_max = 64};

void avx2_linear_codes(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &avx2_linear_set_codes);
}

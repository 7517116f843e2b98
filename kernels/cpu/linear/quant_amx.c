/* Weights of quants on AMX tiles of bytes (layout: quant.h). A tile instruction multiplies a group of 16 rows
 * with a panel, exactly; the vector units meanwhile enter the group before into the f32 sums of the 16 rows,
 * which stay in registers for all of k. They do the same multiplications in the same order as quant_avx512.c,
 * which also computes fewer rows than a tile: equal bits.
 *
 *   tiles 0, 1  products, int32 [16 rows][16 columns], of this step and the next
 *   tiles 2, 3  a group of the rows as they are packed, [16 rows][group]
 *   tiles 4, 5  a group of the weights, [group / 4][16 columns][4] */
#include "kernels/cpu/linear/quant_avx512.h"
#include "kernels/cpu/simd/tiles.h"

#define STRIP 16u
/* Packed rows that stay in the second-level cache while all pairs pass. */
#define ROWS_BYTES ((size_t)1 << 20)

/* A pair's weights in the thread's scratch, for all rows of a block: quants as bytes, scales and minima as
 * f32.
 *
 *   [panel][record] { scales [groups][16] f32, minima the same if there are any, quants [8][16 columns][4] }
 */
struct amxq {
    uint32_t records, groups;
    bool min;
    size_t record; /* bytes */
    char *weights;
    int32_t *products; /* [2][16][16] */
    float *sums;       /* [16][32] */
};

static size_t amxq__record(const struct be_weight *w)
{
    return (size_t)64 * (QUANT_SPAN / w->group) * (w->min ? 2 : 1) + 512;
}

static void amxq__expand(const struct amxq *q, const struct be_weight *w, uint32_t pair)
{
    const char *b = quant_pair(w, pair);
    const size_t part = quant_scales_bytes(w), quants = part * (w->min ? 2 : 1),
                 ahead = quant_record_bytes(w);
    const __m512i off = _mm512_set1_epi8((char)(w->min ? 0 : w->off));
    for (uint32_t n = 0; n < q->records; n++, b += ahead)
        for (uint32_t p = 0; p < 2; p++) {
            char *to = q->weights + ((size_t)p * q->records + n) * q->record;
            for (size_t i = 0; i < quants; i += 64, to += 64) _mm512_storeu_ps(to, q__halves(b + i + 32 * p));
            __m512i v[8];
            q__panel(v, b + quants + (size_t)64 * w->bits * p, w->look ? w->values : NULL, w->bits);
            for (uint32_t i = 0; i < 8; i++)
                _mm512_storeu_si512(to + (size_t)64 * i, _mm512_sub_epi8(v[i], off));
            for (size_t i = 0; i < ahead; i += 128) _mm_prefetch(b + 4 * ahead + i + 64 * p, _MM_HINT_T0);
        }
    __asm__ volatile("" ::: "memory"); /* gcc does not know that tiles are loaded from there */
}

/* Starts the products of a group: `x` of the rows, `w` of the weights. */
#define AMXQ_STEP(P, X, W, x, w)                                                                             \
    do {                                                                                                     \
        _tile_loadd(X, x, QUANT_ROW);                                                                        \
        _tile_loadd(W, w, 64);                                                                               \
        _tile_zero(P);                                                                                       \
        if (min) _tile_dpbsud(P, X, W);                                                                      \
        else _tile_dpbssd(P, X, W);                                                                          \
        _tile_stored(P, q->products + 256 * P, 64);                                                          \
    } while (0)

/* 16 rows and a panel: sums [16][32], of which this is one half. */
EPI_INLINE void amxq__strip(const struct amxq *q, const char *x, size_t next_x, const char *w, float *sums,
                            const uint32_t groups, const bool min)
{
    const size_t minima = 64 * (size_t)groups, quants = minima * (min ? 2 : 1), group = QUANT_SPAN / groups;
    const uint32_t steps = q->records * groups;
    __m512 s[STRIP];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < STRIP; r++) s[r] = _mm512_setzero_ps();
    AMXQ_STEP(0, 2, 4, x, w + quants);
    for (uint32_t n = 0; n < steps; n++) {
        uint32_t g = n % groups, to = (n + 1) % groups;
        const char *xn = to ? x : x + next_x, *wn = to ? w : w + q->record;
        if (n + 1 < steps) {
            const char *xs = xn + to * group, *c = wn + quants + to * group * 16;
            if (n % 2) AMXQ_STEP(0, 2, 4, xs, c);
            else AMXQ_STEP(1, 3, 5, xs, c);
        }
        const int32_t *d = q->products + 256 * (n % 2);
        __m512 scale = _mm512_loadu_ps(w + 64 * g), least = _mm512_loadu_ps(w + (min ? minima : 0) + 64 * g);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < STRIP; r++) {
            const char *row = x + (size_t)r * QUANT_ROW + QUANT_SPAN;
            __m512 product = _mm512_cvtepi32_ps(_mm512_loadu_si512(d + 16 * r));
            s[r] = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, q__one(row)), s[r]);
            if (min) s[r] = _mm512_fmadd_ps(least, q__one(row + 4 + 4 * g), s[r]);
        }
        x = xn;
        w = wn;
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < STRIP; r++) _mm512_storeu_ps(sums + 32 * r, s[r]);
}

static void amxq__both(const struct linear_job *j, const struct amxq *q, uint32_t row)
{
    const char *x = quant_row(j, 0, row, QUANT_ROW);
    const size_t next = (size_t)j->m * QUANT_ROW;
    for (uint32_t p = 0; p < 2; p++) {
        const char *w = q->weights + p * q->records * q->record;
        float *sums = q->sums + 16 * p;
        if (q->groups == 1 && !q->min) amxq__strip(q, x, next, w, sums, 1, false);
        else if (q->groups == 1) amxq__strip(q, x, next, w, sums, 1, true);
        else if (!q->min) amxq__strip(q, x, next, w, sums, 2, false);
        else amxq__strip(q, x, next, w, sums, 2, true);
    }
}

#define AMXQ_FINISH(J, BEGIN, END, SUMS, E)                                                                  \
    for (uint32_t i = BEGIN; i < END; i++)                                                                   \
    epi_row(&d, E, i, _mm512_loadu_ps(SUMS + 32 * (i - BEGIN)), _mm512_loadu_ps(SUMS + 32 * (i - BEGIN) + 16))

static void amxq__pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    const struct be_weight *w = j->w;
    struct amxq q = {.records = w->kpad / QUANT_SPAN,
                     .groups = QUANT_SPAN / w->group,
                     .min = w->min,
                     .record = amxq__record(w),
                     .products = (int32_t *)(void *)scratch,
                     .sums = (float *)(void *)(scratch + 2048),
                     .weights = scratch + 4096};
    /* Tiles take signed bytes where there are no minima. */
    uint32_t most = w->look ? 255 : (1u << w->bits) - 1;
    bool bytes = w->min || (w->off <= 128 && most <= 127 + w->off);
    if (j->m < STRIP || !bytes || 4096 + 2 * q.records * q.record > CPU_THREAD_SCRATCH) {
        avx512_linear_set_quants.pairs(j, begin, end, scratch);
        return;
    }
    struct tile_config c = {.palette = 1};
    for (uint32_t i = 0; i < 6; i++) {
        c.colsb[i] = (uint16_t)(i / 2 == 1 ? w->group : 64);
        c.rows[i] = (uint8_t)(i / 2 == 2 ? w->group / 4 : STRIP);
    }
    tiles_load(&c);
    uint32_t fit = (uint32_t)(ROWS_BYTES / ((size_t)q.records * QUANT_ROW)) / STRIP * STRIP;
    for (uint32_t row = 0, stop; row < j->m; row = stop) {
        stop = u32_min(j->m, row + u32_max(4 * STRIP, fit));
        for (uint32_t pair = begin; pair < end; pair++) {
            amxq__expand(&q, w, pair);
            struct epi_dest d = epi_dest_of(j, pair);
            for (uint32_t r = row; r < stop; r += STRIP) {
                /* The last strip begins earlier and repeats finished rows. */
                uint32_t first = u32_min(r, j->m - STRIP), last = u32_min(stop, first + STRIP);
                amxq__both(j, &q, first);
                EPI_DISPATCH(AMXQ_FINISH, j, r, last, q.sums + 32 * (r - first))
            }
        }
    }
    _tile_release();
}

static void amxq__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    avx512_linear_set_quants.pack(j, begin, end);
}

const struct linear_set amx_linear_set_quants = {
    .pack = amxq__pack, .pack_rows = 1, .pack_elem = 2, .pack_min = 1, .pairs = amxq__pairs, .pairs_max = 64};

void amx_linear_quants(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &amx_linear_set_quants);
}

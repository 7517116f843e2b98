/* Linear on AMX tiles: bf16 in, f32 sums. One tile instruction adds 32 k to 16 x 16 sums; each sum sees its k
 * in ascending order, whatever the blocking, because an accumulator stored to memory between stretches of k
 * is reloaded bit for bit.
 *
 *   rows <= 16:  tile 4 = the rows as they are (fewer tile rows), tiles 0..3 = sums of 2 pairs,
 *                5..7 = weights: memory-bound
 *   more rows:   rows rearranged into tiles [strip of 32][k / 32][2][16 rows][32 k], so that every tile is
 *                1 KB of contiguous memory; tiles 0..3 = sums of 32 rows x 32 columns, 4, 5 = rows,
 *                6, 7 = weights
 *
 * For one stretch of k and one pair, all strips of rows pass: the weights come from the first-level cache,
 * the rows stream from the second, the next pair's weights are fetched meanwhile. The sums of a 32 x 32 block
 * are stored during the first step of the next block, and its epilogue runs a few rows at a time between the
 * following tile instructions: these leave the vector units idle, and gelu costs as much as the tiles if K is
 * small. The other order (a strip of rows stays, pairs pass) writes results more locally but is slower: 20 %
 * at K = 640. */
#include "kernels/cpu/linear/epi_avx512.h"
#include "kernels/cpu/simd/tiles.h"

/* Most k of one stretch, in tiles of 32, when it is all of k: two panels of 20 tiles are 40 KB, which stay in
 * the first-level cache because the rows are loaded with the hint not to be kept there. Sums stored between
 * stretches need room too. */
#define AMX_KT      20u
#define AMX_KT_PARK 16u
/* Bytes of rearranged rows that may stay in the second-level cache (2 MB): all of them, or else a span of k.
 * With spans the sums of AMX_PAIRS pairs (768 KB) stay there too, and the weights that pass meanwhile need as
 * much room as the span: 640 KB and 16 pairs evict each other. */
#define AMX_ROWS_WHOLE (1152u << 10)
#define AMX_ROWS_SPAN  (400u << 10)
#define AMX_PAIRS      12u
#define AMX_STRIP      32u
/* Up to this many strips a pass is bound by reading the weights. */
#define AMX_FEW          1u
#define BLOCK_ELEMS      (32u * 32u)
#define AMX_STREAM_BYTES ((size_t)4 << 20) /* see amx__stream */

/* Tiles 0..5 (sums and rows) get `rows` rows; the weight tiles all 16. With few = true tiles 5..7 are
 * weights. */
static void amx__config(uint32_t rows, bool few)
{
    struct tile_config c = {.palette = 1};
    for (uint32_t i = 0; i < 8; i++) {
        c.colsb[i] = 64;
        c.rows[i] = (uint8_t)(i >= (few ? 5u : 6u) ? 16 : rows);
    }
    tiles_load(&c);
}

/* k of the rows that stay in the L2 cache while all pairs of the work item pass, in tiles: everything if it
 * fits. */
static uint32_t amx__span(uint32_t tiles, uint32_t strips)
{
    uint32_t bytes = strips * 2048;
    if (tiles * bytes <= AMX_ROWS_WHOLE) return tiles;
    uint32_t spans = (tiles * bytes - 1) / AMX_ROWS_SPAN + 1;
    return (tiles - 1) / spans + 1;
}

/* Where tile k (of 32 k) of a strip lies among the rearranged rows: [span][strip][tile of the span], so that
 * a span is contiguous in memory. Whole strips of some widths (K = 10240: 640 KB apart) would share the
 * same few sets of the L2 cache. */
static size_t amx__place(uint32_t tiles, uint32_t span, uint32_t strips, uint32_t strip, uint32_t k)
{
    uint32_t base = k / span * span;
    return ((size_t)base * strips + (size_t)strip * u32_min(span, tiles - base) + k - base) * 2048;
}

/* Rows of one strip are read this many tiles at a time, so that 32 streams of reads and as many lines of each
 * tile stay in the caches together. */
#define AMX_PACK_TILES 4u

/* Rows [begin, end) (whole strips, or the last part of one) into tiles, zeros after the last row. */
static void amx__pack(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    uint32_t kt = j->w->kpad / 32, strips = (j->m - 1) / AMX_STRIP + 1, span = amx__span(kt, strips);
    for (uint32_t row = begin; row < end; row += AMX_STRIP) {
        const char *src[AMX_STRIP];
        uint32_t real = u32_min(AMX_STRIP, j->m - row);
        for (uint32_t r = 0; r < real; r++) src[r] = linear_src_row(j, row + r);
        for (uint32_t k = 0, stop; k < kt; k = stop) {
            stop = u32_min(u32_min(kt, k + AMX_PACK_TILES), k / span * span + span);
            char *dst = j->packed + amx__place(kt, span, strips, row / AMX_STRIP, k) - (size_t)k * 2048;
            for (uint32_t r = 0; r < AMX_STRIP; r++) {
                for (uint32_t i = k; i < stop; i++) {
                    __m512i v = _mm512_setzero_si512();
                    if (r < real) {
                        _mm_prefetch(src[r] + (i + 2 * AMX_PACK_TILES) * 64, _MM_HINT_T0);
                        v = _mm512_loadu_si512(src[r] + i * 64);
                    }
                    _mm512_storeu_si512(dst + i * 2048 + r * 64, v);
                }
            }
        }
    }
}

/* A finished block whose epilogue is pending. */
struct amx_pending {
    const float *sums; /* [32][32] */
    struct epi_dest dest;
    uint32_t row, rows; /* next row, end */
    uint32_t row0;      /* of the block, within the job */
};

EPI_INLINE void amx__epilogue(struct amx_pending *p, enum be_epilogue e, uint32_t count)
{
    for (; count > 0 && p->row < p->rows; count--, p->row++)
        epi_row(&p->dest, e, p->row0 + p->row, _mm512_load_ps(p->sums + p->row * 32),
                _mm512_load_ps(p->sums + p->row * 32 + 16));
}

/* One 32 x 32 block over kt tiles of k. The tiles 0..3 still hold the sums of the block before: the first
 * step stores each just before it is needed, between tile instructions on other tiles, where that costs
 * nothing; stored together at the end of a block they cost 60 cycles, loads as much. */
struct amx_block {
    const char *a, *b0, *b1;
    uint32_t kt, epi_rows;
    float *away;     /* [32][32] for the sums in the tiles */
    const float *in; /* [32][32] sums to continue; NULL = zero; equal to away = the tiles hold them already */
    struct amx_pending then; /* the epilogue to run once the sums are stored; rows = 0: none */
    /* To fetch per step: `pf` lines of the next weights at pf0 and pf1 each, `pfa` lines of the next span's
     * rows at pfa0. */
    const char *pf0, *pf1, *pfa0;
    uint32_t pf, pfa;
    const char *pfi0; /* `pfi` lines per step of the sums that the next block continues */
    uint32_t pfi;
    char *pfo; /* ADD_F32: the lines of out that the epilogue of this block will add to, epi_rows rows per
                  step, pfo_rows in all */
    size_t pfo_stride;
    uint32_t pfo_rows;
    size_t ahead; /* not 0: bytes of a panel, and the weights are fetched a few tiles ahead instead */
};

/* Distance of the weight prefetch where weights are read once or a few times only, in tiles of one panel.
 * Short: the hardware prefetcher runs ahead by itself, and fetching further ahead occupies the buffers it
 * needs (8 tiles: 10 % slower). */
#define AMX_AHEAD 1u

/* The tiles AMX_AHEAD after tile i of a pair's two panels; at their end those of the next pair. */
EPI_INLINE void amx__fetch_ahead(const struct amx_block *k, uint32_t i, const char *b0, const char *b1)
{
    size_t at = AMX_AHEAD * 1024 + (i + AMX_AHEAD < k->kt ? 0 : k->ahead);
    for (uint32_t l = 0; l < 1024; l += 64) {
        _mm_prefetch(b0 + at + l, _MM_HINT_T0);
        _mm_prefetch(b1 + at + l, _MM_HINT_T0);
    }
}

/* Stores sum tile n, at element `at` of a block, and loads or clears it. */
#define AMX_TURN(n, at)                                                                                      \
    do {                                                                                                     \
        if (k->in != k->away) {                                                                              \
            _tile_stored(n, k->away + (at), 128);                                                            \
            if (k->in) {                                                                                     \
                _tile_loadd(n, k->in + (at), 128);                                                           \
            } else {                                                                                         \
                _tile_zero(n);                                                                               \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

EPI_INLINE void amx__block(const struct amx_block *k, struct amx_pending *p, enum be_epilogue e)
{
    const char *a = k->a, *b0 = k->b0, *b1 = k->b1, *pf0 = k->pf0, *pf1 = k->pf1, *pfa = k->pfa0,
               *pfi = k->pfi0;
    char *pfo = k->pfo;
    uint32_t pfo_rows = k->pfo_rows;
    for (uint32_t i = 0; i < k->kt; i++, a += 2048, b0 += 1024, b1 += 1024) {
        _tile_stream_loadd(4, a, 64);
        _tile_loadd(6, b0, 64);
        if (i == 0) AMX_TURN(0, 0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b1, 64);
        if (i == 0) AMX_TURN(1, 16);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, a + 1024, 64);
        if (i == 0) AMX_TURN(2, 512);
        _tile_dpbf16ps(2, 5, 6);
        if (i == 0) {
            AMX_TURN(3, 528);
            *p = k->then;
        }
        _tile_dpbf16ps(3, 5, 7);
        if (k->ahead) amx__fetch_ahead(k, i, b0, b1);
        for (uint32_t l = 0; l < k->pf; l++, pf0 += 64, pf1 += 64) {
            _mm_prefetch(pf0, _MM_HINT_T1);
            _mm_prefetch(pf1, _MM_HINT_T1);
        }
        for (uint32_t l = 0; l < k->pfa; l++, pfa += 64) _mm_prefetch(pfa, _MM_HINT_T1);
        for (uint32_t l = 0; l < k->pfi; l++, pfi += 64) _mm_prefetch(pfi, _MM_HINT_T0);
        if (e == BE_EPI_ADD_F32) {
            for (uint32_t l = 0; l < k->epi_rows && pfo_rows > 0; l++, pfo_rows--, pfo += k->pfo_stride) {
                __builtin_prefetch(pfo, 1, 3);
                __builtin_prefetch(pfo + 64, 1, 3);
            }
        }
        amx__epilogue(p, e, k->epi_rows);
    }
    amx__epilogue(p, e, 32); /* the rest of a short block */
}

/* Whether the results of this pair are whole lines, and together exceed a core's L2 cache by far. */
static bool amx__stream(const struct linear_job *j, uint32_t pair)
{
    bool f32 = j->a->epilogue == BE_EPI_F32;
    size_t stride = f32 ? (size_t)j->w->n * 4 : be_ld(j->w->glu ? j->w->n / 2 : j->w->n) * 2;
    if (j->a->epilogue == BE_EPI_ADD_F32 || stride % 64 || (uintptr_t)j->a->out % 64 ||
        j->a->t * stride < AMX_STREAM_BYTES)
        return false;
    return !f32 || linear_cols(j, pair) == 32;
}

_Static_assert((1 + AMX_PAIRS * CPU_M_BLOCK / 32) * BLOCK_ELEMS * 4 + CPU_M_BLOCK * 32 <= CPU_THREAD_SCRATCH,
               "scratch of amx__many");

/* More than 16 rows. scratch: [32 x 32] the finished block, halves of glu lines, then stored sums
 * [pair][strip][32 x 32]. */
EPI_INLINE void amx__many(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch,
                          enum be_epilogue e)
{
    const struct be_weight *w = j->w;
    uint32_t tiles = w->kpad / 32, strips = (j->m - 1) / AMX_STRIP + 1, span = amx__span(tiles, strips);
    bool few =
        strips <= AMX_FEW &&
        span == tiles; /* memory-bound: all of k at once, weights fetched just ahead by the first strip */
    float *done = (float *)(void *)scratch, *parked = done + BLOCK_ELEMS + CPU_M_BLOCK * 8;
    uint16_t *stage = (uint16_t *)(void *)(done + BLOCK_ELEMS); /* [CPU_M_BLOCK][16] */
    struct amx_pending p = {0};
    struct amx_block k = {.away = done};
    amx__config(16, false);
    for (uint32_t base = 0; base < tiles; base += span) {
        uint32_t stop = u32_min(tiles, base + span), stretches = few ? 1 : (stop - base - 1) / AMX_KT + 1;
        uint32_t per = (stop - base - 1) / stretches + 1;
        for (uint32_t pair = begin; pair < end; pair++) {
            struct epi_dest dest = epi_dest_of(j, pair);
            if (w->glu && (pair % 2 ? pair > begin : pair + 1 < end)) {
                dest.stage = stage;
                dest.join = pair % 2;
            }
            dest.stream = amx__stream(j, pair);
            for (uint32_t k0 = base; k0 < stop; k0 += per) {
                bool last = k0 + per >= tiles;
                k.kt = u32_min(per, stop - k0);
                k.pf = few ? 0 : (16 + strips - 1) / strips;
                /* Each pair of the second half fetches its share: earlier, two spans and the sums together
                 * are more than the cache holds. */
                uint32_t half = (end - begin) / 2, share = end - begin - half;
                k.pfa = stop < tiles && pair - begin >= half ? (32 + share - 1) / share : 0;
                k.epi_rows = (32 + k.kt - 1) / k.kt;
                k.b0 = (const char *)w->data + (size_t)2 * pair * w->panel_bytes + (size_t)k0 * 1024;
                k.b1 = k.b0 + w->panel_bytes;
                for (uint32_t s = 0; s < strips; s++) {
                    /* A pair's stored sums are reused at once if one span covers all k; then one pair's
                     * memory serves all. */
                    float *keep =
                        parked + (size_t)((span == tiles ? 0 : pair - begin) * strips + s) * BLOCK_ELEMS;
                    k.a = j->packed + amx__place(tiles, span, strips, s, k0);
                    k.pf0 = k.b0 + 2 * w->panel_bytes + (size_t)s * k.kt * k.pf * 64;
                    k.pf1 = k.pf0 + w->panel_bytes;
                    size_t fetched =
                        k.pfa ? ((size_t)(pair - begin - half) * strips + s) * (stop - base) + k0 - base
                              : 0; /* steps of this half so far */
                    k.pfa0 = j->packed + (size_t)stop * strips * 2048 + fetched * k.pfa * 64;
                    k.ahead = few && s == 0 ? w->panel_bytes : 0;
                    k.in = k0 ? keep : NULL;
                    k.pfi = k0 ? (64 + k.kt - 1) / k.kt : 0;
                    k.pfi0 = (const char *)(keep + BLOCK_ELEMS);
                    if (e == BE_EPI_ADD_F32) {
                        k.pfo_rows = last && !dest.add_row ? u32_min(32, j->m - s * 32) : 0;
                        k.pfo_stride = dest.stride;
                        k.pfo = dest.out + (size_t)s * 32 * dest.stride;
                    }
                    amx__block(&k, &p, e);
                    k.away = last ? done : keep;
                    k.then = (struct amx_pending){.sums = done,
                                                  .dest = dest,
                                                  .rows = last ? u32_min(32, j->m - s * 32) : 0,
                                                  .row0 = s * 32};
                }
            }
        }
    }
    _tile_stored(0, done, 128);
    _tile_stored(1, done + 16, 128);
    _tile_stored(2, done + 512, 128);
    _tile_stored(3, done + 528, 128);
    _tile_release();
    amx__epilogue(&k.then, e, 32);
    _mm_sfence();
}

/* At most 16 rows, used unchanged: tile t of the weights is needed once, so only timely fetching matters. */
EPI_INLINE void amx__few(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch,
                         enum be_epilogue e)
{
    const struct be_weight *w = j->w;
    uint32_t tiles = w->kpad / 32;
    size_t stride = (size_t)w->kpad * 2, panel = w->panel_bytes;
    float *sums = (float *)(void *)scratch; /* [rows][4 x 16] */
    amx__config(j->m, true);
    for (uint32_t pair = begin; pair < end; pair += 2) {
        bool two = pair + 1 < end;
        const char *b = (const char *)w->data + (size_t)2 * pair * panel, *c = two ? b + 2 * panel : b;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (uint32_t i = 0; i < tiles; i++) {
            size_t at = (size_t)i * 1024;
            /* At the end of the panels the fetch continues with the next four. */
            size_t ahead = i + AMX_AHEAD < tiles ? at + AMX_AHEAD * 1024 : at + AMX_AHEAD * 1024 + 3 * panel;
            for (uint32_t l = 0; l < 1024; l += 64) {
                _mm_prefetch(b + ahead + l, _MM_HINT_T0);
                _mm_prefetch(b + panel + ahead + l, _MM_HINT_T0);
                _mm_prefetch(c + ahead + l, _MM_HINT_T0);
                _mm_prefetch(c + panel + ahead + l, _MM_HINT_T0);
            }
            _tile_loadd(4, j->x + i * 64, stride);
            _tile_loadd(5, b + at, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, b + panel + at, 64);
            _tile_dpbf16ps(1, 4, 6);
            _tile_loadd(7, c + at, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, c + panel + at, 64);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, sums, 256);
        _tile_stored(1, sums + 16, 256);
        _tile_stored(2, sums + 32, 256);
        _tile_stored(3, sums + 48, 256);
        for (uint32_t h = 0; h < (two ? 2u : 1u); h++) {
            struct epi_dest d = epi_dest_of(j, pair + h);
            for (uint32_t r = 0; r < j->m; r++)
                epi_row(&d, e, r, _mm512_load_ps(sums + r * 64 + h * 32),
                        _mm512_load_ps(sums + r * 64 + h * 32 + 16));
        }
    }
    _tile_release();
}

EPI_INLINE void amx__pairs_epi(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch,
                               enum be_epilogue e)
{
    if (j->packed) {
        amx__many(j, begin, end, scratch, e);
    } else {
        amx__few(j, begin, end, scratch, e);
    }
}

static void amx__pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    EPI_DISPATCH(amx__pairs_epi, j, begin, end, scratch)
}

const struct linear_set amx_linear_set_bf16 = {.pack = amx__pack,
                                               .pack_rows = AMX_STRIP,
                                               .pack_elem = 2,
                                               .pack_min = 17,
                                               .pairs = amx__pairs,
                                               .pairs_max = AMX_PAIRS,
                                               .rows_bytes = AMX_ROWS_WHOLE};

void amx_linear_bf16(struct backend *b, const struct be_linear_args *a)
{
    cpu_linear(b, a, &amx_linear_set_bf16);
}

double amx_peak_bf16(uint64_t steps)
{
    amx__config(16, false);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (uint64_t s = 0; s < steps; s++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)steps * 4 * 16 * 16 * 32 * 2;
}

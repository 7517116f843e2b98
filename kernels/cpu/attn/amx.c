/* Attention on AMX tiles (bf16). One tile instruction multiplies 16 rows x 32 deep x 16 columns: scores
 * contract 32 of d against 16 keys, values contract the 32 slots of a block against 16 of d; the cache stores
 * K and V as such tiles (kv_layout.h). See attn/driver.h.
 *
 * The order of the work serves three caches. A work item has many groups of 32 rows. Keys and values of a
 * stretch of blocks stay in the L2 cache while all groups walk it. A group walks it in steps of a few blocks;
 * what is written and soon read again must stay in the L1 cache (a store that misses it costs three times one
 * that does not): scores of two blocks and probabilities of two steps.
 *
 * Products run in the tile unit in parallel with the vector units. The smallest work item that keeps both
 * busy is a unit of three independent parts:
 *
 *   - softmax of a block of step n
 *   - scores of the next block
 *   - some columns of the values of step n - 1, over all its blocks
 *
 * The softmax works on some rows between two tile instructions. The number of blocks of a step is such that
 * its values divide evenly among its units. Almost all units are alike (32 rows, no mask): they are compiled
 * for the usual head sizes without loops; the others do the same operations in loops.
 *
 * Tile registers: 0..3 = sums of 2 x 16 rows by 2 x 16 columns, 4, 5 = rows, 6, 7 = keys or values. Sums are
 * stored while the next chain's products run (struct amx_pending): stores in a row would hold up the tile
 * unit. Keys and values are loaded with the hint that they won't be used again soon: otherwise they drive
 * everything else out of the L1 cache, which costs half as much again. No order of a sum depends on any of
 * this.
 *
 * Softmax. While tile instructions are in flight only one port multiplies, shifts or compares 512-bit
 * vectors, so the exponential works on 16-bit integers, 32 keys at once:
 *
 *   x = log2(e) * score - reference, up to 8
 *   t = 512 (119 + x) as unsigned 16 bits; far below 0: t = 0, probability 0
 *   p = (t - curve[t's fraction, 6 of 9 bits]) / 4; 2^(x - 8) in bf16 has t / 4 as its bits, except for the
 *       curve 1 + f - 2^f
 *
 * That is within 0.5 % where rounding to bf16 alone is within 0.4 %; in the mean of squares 0.18 % and 0.17
 * %. The reference is a whole number at or above the row's largest score at the time it was set. It is set
 * again when a score comes 8 or more above it, so few rows ever need what they have scaled; and the scaling
 * is exact, being by powers of two. Sums of probabilities come from the tile unit too: a column of ones
 * behind the values. */
#define ATTN_ROWS 1024u
#define ATTN_TILE 5u /* most blocks of a step */
#include "kernels/cpu/attn/v16.h"
#include "kernels/cpu/simd/tiles.h"

#include "kernels/cpu/attn/driver.h"

#define AMX_ONE   512.0f                     /* a factor of 2 in t */
#define AMX_BIAS  (119.0f * AMX_ONE + 2.25f) /* t of the reference; the fraction is for rounding */
#define AMX_LIMIT (127.0f * AMX_ONE)         /* t from here on: reference too low */
#define AMX_NO_MAX                                                                                           \
    INFINITY /* instead of AMX_BIAS - reference: every score exceeds the limit, except masked ones */
#define AMX_STRETCH_BYTES ((size_t)256 << 10) /* keys and values of a stretch */
#define AMX_ITEM_BYTES    ((size_t)840 << 10) /* queries and outputs of a work item */
#define AMX_STRETCH       64u                 /* most blocks of a stretch */
#define AMX_UNPACKED      3u /* stretches of quants: three steps are under way, each maybe in its own */
#define AMX_GROUPS        (ATTN_ROWS / ATTN_GROUP)

/* Scores of a block for a group: [half of the block][row][16] f32, that is [2][2] tiles of 1 KiB;
 * probabilities of a block: [row][32] bf16. */
#define AMX_S_HALF  (ATTN_GROUP * 16u)
#define AMX_S_BLOCK (2 * AMX_S_HALF)
#define AMX_P_BLOCK (ATTN_GROUP * KV_SLOTS)

/* The blocks that a group of rows passes before the values of the blocks before. */
struct amx_step {
    uint32_t group, row0, rows;
    uint32_t first, blocks; /* absolute number of the first block */
    uint32_t plain;         /* bit i: every row sees every key of block i, and no softcap */
    const char *k[ATTN_TILE], *v[ATTN_TILE];
    uint16_t *p;
};

/* Sums that tiles 0..3 still hold. */
struct amx_pending {
    char *at;                    /* tile 0 */
    size_t stride, right, lower; /* bytes: of a row, to tile 1, to tile 2 */
    uint32_t used;               /* bit i: tile i */
};

/* Keys and values of the next stretch being prefetched to the L2 cache. The blocks of a head are far apart,
 * at distances that share cache sets. */
struct amx_ahead {
    const char *block[AMX_STRETCH]; /* K, then V */
    uint32_t blocks, lines;         /* lines of 64 bytes of a block */
    uint32_t at_block, at_line, per_unit;
};

struct amx_walk {
    struct attn_work_item *w;
    const uint32_t *table;
    uint32_t k_strokes;        /* dpad / 32 */
    uint32_t v_tiles, o_tiles; /* column tiles of V, of o with that of the sum */
    uint32_t chains;           /* pairs of column tiles of o */
    uint32_t tile;             /* blocks of a step */
    float scale;               /* of a score to t */
    struct {
        uint32_t lo, lo_max, hi_min, hi;
    } group[AMX_GROUPS];
    uint32_t groups;
    /* the next step's place */
    uint32_t stretch, stretch_end, end, at_group, at, parity; /* blocks */
    char *unpacked;                                           /* the stretch's blocks, of quants */
    uint32_t stretches;
    uint32_t turn; /* half of the scores that the softmax reads */
    struct amx_pending pending;
    struct amx_ahead ahead;
    uint32_t raised; /* rows of the stage's group whose reference changed */
    float factor[ATTN_GROUP];
    float bias[ATTN_ROWS]; /* AMX_BIAS - 512 * reference */
};

/* bf16 ones as a tile of values: every column of the product is the row's sum. */
static const uint32_t amx__ones[256] __attribute__((aligned(64))) = {
#define ONES4  0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80
#define ONES16 ONES4, ONES4, ONES4, ONES4
#define ONES64 ONES16, ONES16, ONES16, ONES16
    ONES64, ONES64, ONES64, ONES64};

/* 512 (1 + f - 2^f), f = (i + 1/2) / 64; least squares with the rounding that follows. */
static const uint8_t amx__curve[64] __attribute__((aligned(64))) = {
    2,  4,  6,  8,  11, 12, 15, 16, 19, 20, 23, 24, 26, 28, 29, 31, 32, 33, 35, 36, 37, 38,
    39, 40, 41, 42, 42, 43, 44, 44, 44, 44, 45, 45, 45, 45, 45, 44, 44, 43, 43, 42, 42, 41,
    40, 39, 38, 37, 35, 34, 33, 31, 29, 27, 26, 23, 22, 19, 17, 14, 11, 9,  6,  3,
};

/* Columns of o: those of V, then, unless the last tile of V ends in spare columns (the first of which holds
 * ones), a tile of ones. */
ATTN_INLINE uint32_t amx__o_tiles(uint32_t d)
{
    return d / 16 + 1;
}
ATTN_INLINE uint32_t attn__o_stride(uint32_t dpad, uint32_t d)
{
    return u32_max(dpad, amx__o_tiles(d) * 16);
}
ATTN_INLINE float attn__row_sum(const struct attn_work_item *w, uint32_t r)
{
    return w->o[(size_t)r * w->j->o_stride + w->j->a->kv.head_dim];
}
/* Queries and outputs of a work item take a part of the L2 cache. */
ATTN_INLINE uint32_t attn__item_rows(const struct attn_job *j)
{
    uint32_t rows = ATTN_ROWS;
    while (rows > 128 && rows * ((size_t)j->dpad * 2 + (size_t)j->o_stride * 4) > AMX_ITEM_BYTES) rows /= 2;
    return rows;
}

/* ---- steps */

/* Blocks of a stretch: a multiple of those of a step. There are several unpacked ones, and what one group
 * unpacks is not used twice. */
ATTN_INLINE uint32_t amx__stretch_blocks(const struct attn_job *j, uint32_t tile, bool one_group)
{
    size_t head = kv_head_bytes(BE_BF16, j->a->kv.head_dim), bytes = j->a->kv.type == BE_KV_ACT
                                                                         ? AMX_STRETCH_BYTES
                                                                     : one_group ? 0
                                                                                 : AMX_STRETCH_BYTES / 2;
    return u32_max(1, u32_min(AMX_STRETCH, (uint32_t)(bytes / head)) / tile) * tile;
}
ATTN_INLINE size_t attn__unpacked(const struct attn_job *j)
{
    uint32_t blocks = u32_max(amx__stretch_blocks(j, 1, false), ATTN_TILE);
    return AMX_UNPACKED * blocks * kv_head_bytes(BE_BF16, j->a->kv.head_dim);
}

/* Address of a head of a block as stored. */
ATTN_INLINE char *amx__kept(const struct be_kv *kv, uint32_t unit, uint32_t head)
{
    void *layer = kv_layer(kv, unit);
    return kv->type == BE_KV_ACT ? kv_k(layer, BE_BF16, kv->head_dim, head)
                                 : (char *)kv_q8(layer, BE_BF16, kv->head_dim, head).k;
}

/* Unpacks a stretch of quants, except what no row of the work item sees. */
static void amx__unpack(struct amx_walk *x, uint32_t blocks)
{
    const struct attn_work_item *w = x->w;
    const struct be_attn_args *a = w->j->a;
    uint32_t d = a->kv.head_dim;
    x->unpacked = w->unpacked + x->stretches++ % AMX_UNPACKED * blocks * kv_head_bytes(BE_BF16, d);
    for (uint32_t b = u32_max(x->stretch, w->lo_min / KV_SLOTS); b < x->stretch_end; b++) {
        ASSERT(x->table[b] != BE_NO_BLOCK);
        struct kv_q8 c = kv_q8(kv_layer(&a->kv, x->table[b]), BE_BF16, d, w->kv_head);
        const void *next =
            x->groups == 1 && b + 1 < x->end ? amx__kept(&a->kv, x->table[b + 1], w->kv_head) : NULL;
        kv_unpack(kv_k(x->unpacked, BE_BF16, d, b - x->stretch),
                  kv_v(x->unpacked, BE_BF16, d, b - x->stretch), &c, BE_BF16, d, next);
    }
}

/* Sets up the stretch that begins at block `first`, and the prefetch of the next one during it. */
static void amx__stretch(struct amx_walk *x, uint32_t first)
{
    const struct attn_work_item *w = x->w;
    const struct be_attn_args *a = w->j->a;
    struct amx_ahead *h = &x->ahead;
    bool quants = a->kv.type != BE_KV_ACT;
    h->lines =
        (uint32_t)((quants ? kv_q8_bytes(BE_BF16, a->kv.head_dim) : kv_head_bytes(BE_BF16, a->kv.head_dim)) /
                   64);
    uint32_t blocks = amx__stretch_blocks(w->j, x->tile, x->groups == 1);
    x->stretch = first;
    x->stretch_end = u32_min(first + blocks, x->end);
    x->at_group = 0;
    x->at = first;
    h->blocks = h->at_block = h->at_line = 0;
    if (x->groups > 1) { /* one group uses nothing twice: prefetching only costs time then */
        for (uint32_t b = x->stretch_end; b < u32_min(x->stretch_end + blocks, x->end); b++) {
            ASSERT(x->table[b] != BE_NO_BLOCK);
            h->block[h->blocks++] = amx__kept(&a->kv, x->table[b], w->kv_head);
        }
    }
    if (quants) amx__unpack(x, blocks);
    uint32_t units = x->groups * (x->stretch_end - first);
    h->per_unit = (h->blocks * h->lines + units - 1) / units;
}

/* The next step with keys that its group sees; false at the end. */
static bool amx__next(struct amx_walk *x, struct amx_step *t)
{
    struct attn_work_item *w = x->w;
    const struct be_attn_args *a = w->j->a;
    for (;;) {
        if (x->at >= x->stretch_end) {
            if (x->at_group + 1 == x->groups && x->stretch_end >= x->end) return false;
            x->at = x->stretch;
            if (++x->at_group == x->groups) {
                amx__stretch(x, x->stretch_end);
            }
        }
        uint32_t g = x->at_group, at = x->at;
        x->at += x->tile;
        uint32_t b0 = u32_max(x->group[g].lo / KV_SLOTS, at),
                 b1 = u32_min(x->group[g].hi / KV_SLOTS + 1, at + x->tile);
        if (b0 >= b1) continue;
        t->group = g;
        t->row0 = g * ATTN_GROUP;
        t->rows = u32_min(ATTN_GROUP, w->rows - t->row0);
        t->first = b0;
        t->blocks = b1 - b0;
        t->plain = 0;
        for (uint32_t i = 0; i < t->blocks; i++) {
            uint32_t b = b0 + i;
            ASSERT(x->table[b] != BE_NO_BLOCK);
            bool quants = a->kv.type != BE_KV_ACT;
            void *layer = quants ? x->unpacked : kv_layer(&a->kv, x->table[b]);
            uint32_t head = quants ? b - x->stretch : w->kv_head;
            t->k[i] = kv_k(layer, BE_BF16, a->kv.head_dim, head);
            t->v[i] = kv_v(layer, BE_BF16, a->kv.head_dim, head);
            if (a->softcap <= 0 && x->group[g].lo_max <= b * KV_SLOTS &&
                x->group[g].hi_min >= b * KV_SLOTS + KV_SLOTS - 1)
                t->plain |= 1u << i;
        }
        x->parity ^= 1;
        t->p = (uint16_t *)(void *)w->p + (size_t)x->parity * ATTN_TILE * AMX_P_BLOCK;
        return true;
    }
}

/* What the next unit prefetches: *n lines from the returned address on. */
ATTN_INLINE const char *amx__ask_next(struct amx_ahead *h, uint32_t *n)
{
    *n = 0;
    if (h->at_block == h->blocks) return NULL;
    const char *line = h->block[h->at_block] + (size_t)h->at_line * 64;
    *n = u32_min(h->per_unit, h->lines - h->at_line);
    h->at_line += *n;
    if (h->at_line == h->lines) {
        h->at_line = 0;
        h->at_block++;
    }
    return line;
}

/* ---- strokes of tile work, in halves: 16 rows by up to 32 columns */

/* The inputs of a unit, computed beforehand: a dependent load in the middle of the strokes would stall
 * them. */
struct amx_score {
    const char *q, *k; /* rows of the group, the block's keys */
    size_t q_row;      /* bytes */
    char *s;
};
struct amx_value {
    const char *p, *v[ATTN_TILE]; /* of all blocks of the step, from the first chain's columns on */
    size_t v_row, o_row;          /* bytes */
    char *o;
    uint32_t v_tiles, o_tiles; /* from the first chain on */
};

#define AMX_FLUSH(i)                                                                                         \
    do {                                                                                                     \
        if (pend->used >> (i)&1)                                                                             \
            _tile_stored(i, pend->at + ((i)&1) * pend->right + ((i) >> 1) * pend->lower, pend->stride);      \
    } while (0)

ATTN_INLINE void amx__flush(struct amx_pending *pend)
{
    AMX_FLUSH(0);
    AMX_FLUSH(1);
    AMX_FLUSH(2);
    AMX_FLUSH(3);
    pend->used = 0;
}

/* 32 of d, from 32 * stroke on, of the scores of a group against half a block. */
ATTN_INLINE void amx__score_half(const struct amx_score *u, struct amx_pending *pend, const uint32_t stroke,
                                 const uint32_t half, const bool lower)
{
    const char *q = u->q + (size_t)stroke * 64, *k = u->k + (size_t)stroke * 1024;
    if (half == 0) {
        _tile_loadd(4, q, u->q_row);
        _tile_stream_loadd(6, k, 64);
        if (stroke == 0) {
            AMX_FLUSH(0);
            _tile_zero(0);
        }
        _tile_dpbf16ps(0, 4, 6);
        if (lower) _tile_loadd(5, q + u->q_row * 16, u->q_row);
        if (stroke == 0) {
            AMX_FLUSH(2);
            _tile_zero(2);
        }
        if (lower) _tile_dpbf16ps(2, 5, 6);
        return;
    }
    _tile_stream_loadd(7, k + u->q_row * 16, 64);
    if (stroke == 0) {
        AMX_FLUSH(1);
        _tile_zero(1);
    }
    _tile_dpbf16ps(1, 4, 7);
    if (stroke == 0) {
        AMX_FLUSH(3);
        _tile_zero(3);
        *pend = (struct amx_pending){
            .at = u->s, .stride = 64, .right = AMX_S_HALF * 4, .lower = 1024, .used = lower ? 15 : 3};
    }
    if (lower) _tile_dpbf16ps(3, 5, 7);
}

/* Block i's part of a column tile of a chain: columns [32 chain + 16 half, 16 more) of the outputs of a
 * group. */
ATTN_INLINE void amx__value_half(const struct amx_value *u, struct amx_pending *pend, const uint32_t chain,
                                 const uint32_t i, const uint32_t half, const bool lower)
{
    uint32_t column = 2 * chain + half;
    char *o = u->o + (size_t)column * 64;
    const char *p = u->p + (size_t)i * AMX_P_BLOCK * 2, *v = u->v[i] + (size_t)column * 64;
    size_t v_row = u->v_row;
    if (column >= u->v_tiles) {
        v = (const char *)amx__ones;
        v_row = 64;
    }
    if (half == 0) {
        _tile_loadd(4, p, 64);
        _tile_stream_loadd(6, v, v_row);
        if (i == 0) {
            AMX_FLUSH(0);
            _tile_loadd(0, o, u->o_row);
        }
        _tile_dpbf16ps(0, 4, 6);
        if (i == 0) AMX_FLUSH(2);
        if (!lower) return;
        _tile_loadd(5, p + 1024, 64);
        if (i == 0) _tile_loadd(2, o + 16 * u->o_row, u->o_row);
        _tile_dpbf16ps(2, 5, 6);
        return;
    }
    bool right = column < u->o_tiles;
    if (i == 0) {
        AMX_FLUSH(1);
        AMX_FLUSH(3);
        *pend = (struct amx_pending){.at = o - 64,
                                     .stride = u->o_row,
                                     .right = 64,
                                     .lower = 16 * u->o_row,
                                     .used = (right ? 3u : 1u) * (lower ? 5u : 1u)};
    }
    if (!right) return;
    _tile_stream_loadd(7, v, v_row);
    if (i == 0) _tile_loadd(1, o, u->o_row);
    _tile_dpbf16ps(1, 4, 7);
    if (!lower) return;
    if (i == 0) _tile_loadd(3, o + 16 * u->o_row, u->o_row);
    _tile_dpbf16ps(3, 5, 7);
}

/* ---- softmax */

/* Softcap and mask of a row's 32 scores in place. */
static void amx__prepare_row(const struct attn_work_item *w, uint32_t r, float *s, uint32_t base)
{
    const struct be_attn_args *a = w->j->a;
    for (uint32_t i = 0; i < 2; i++, s += AMX_S_HALF, base += VL) {
        __m512 v = _mm512_loadu_ps(s);
        if (a->softcap > 0)
            v = _mm512_mul_ps(v16_tanh(_mm512_mul_ps(v, _mm512_set1_ps(a->scale / a->softcap))),
                              _mm512_set1_ps(a->softcap));
        vf_store(s, vf_keep((struct vf){v}, base, w->lo[r], w->hi[r]));
    }
}

/* Constants of the exponential, in registers: the compiler would rebuild them for every row, on the busiest
 * port. */
struct amx_exp {
    __m512 scale, max0, max1; /* largest t so far */
    __m512i order, curve;
    __mmask64 even;
};
#define AMX_HOLD(v) __asm__("" : "+v"(v))

ATTN_INLINE struct amx_exp amx__exp_begin(float scale)
{
    struct amx_exp e = {
        .scale = _mm512_set1_ps(scale),
        .max0 = _mm512_setzero_ps(),
        .max1 = _mm512_setzero_ps(),
        .order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5,
                                   7), /* packing two vectors interleaves their groups of four */
        .curve = _mm512_load_si512(amx__curve),
        .even = 0x5555555555555555u,
    };
    AMX_HOLD(e.scale);
    AMX_HOLD(e.order);
    AMX_HOLD(e.curve);
    __asm__("" : "+k"(e.even));
    return e;
}

ATTN_INLINE void amx__t(const struct amx_exp *e, const float *s, float bias, __m512 *y0, __m512 *y1)
{
    __m512 vb = _mm512_set1_ps(bias);
    *y0 = _mm512_fmadd_ps(_mm512_load_ps(s), e->scale, vb);
    *y1 = _mm512_fmadd_ps(_mm512_load_ps(s + AMX_S_HALF), e->scale, vb);
}

/* Probabilities of a row's 32 scores, all of them below the limit (else they are rewritten). NaN and
 * -infinity become 0. */
ATTN_INLINE void amx__exp(struct amx_exp *e, const float *s, uint16_t *p, float bias)
{
    __m512 y0, y1;
    amx__t(e, s, bias, &y0, &y1);
    e->max0 = _mm512_max_ps(y0, e->max0); /* of a NaN and a number: the second operand */
    e->max1 = _mm512_max_ps(y1, e->max1);
    __m512i t = _mm512_permutexvar_epi64(e->order,
                                         _mm512_packus_epi32(_mm512_cvtps_epi32(y0), _mm512_cvtps_epi32(y1)));
    __m512i curve = _mm512_maskz_permutexvar_epi8(e->even, _mm512_srli_epi16(t, 3), e->curve);
    _mm512_store_si512(p, _mm512_srli_epi16(_mm512_subs_epu16(t, curve), 2));
}

/* Whether one of them exceeds the limit; a NaN (of a masked score) doesn't. */
ATTN_INLINE bool amx__beyond(__m512 y0, __m512 y1)
{
    __m512 limit = _mm512_set1_ps(AMX_LIMIT);
    return (_mm512_cmp_ps_mask(y0, limit, _CMP_GE_OQ) | _mm512_cmp_ps_mask(y1, limit, _CMP_GE_OQ)) != 0;
}

/* Raises the reference of row r = row0 + in to its scores of block i; scales the row's part of this step
 * here, its output at the end of the stage. */
static __attribute__((noinline)) void amx__raise(struct amx_walk *x, const struct amx_step *t, uint32_t i,
                                                 uint32_t in, const float *s)
{
    struct attn_work_item *w = x->w;
    uint32_t r = t->row0 + in;
    uint16_t *p = t->p + (size_t)in * KV_SLOTS;
    float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_load_ps(s), _mm512_load_ps(s + AMX_S_HALF))),
          reference = ceilf(max * (x->scale * (1 / AMX_ONE)));
    if (w->max[r] != -INFINITY) {
        float up = fminf(reference - w->max[r], 250.0f);
        for (uint32_t n = 0; n < i; n++) {
            __m512i *at = (__m512i *)(void *)(p + (size_t)n * AMX_P_BLOCK);
            _mm512_storeu_si512(
                at, _mm512_subs_epu16(_mm512_loadu_si512(at), _mm512_set1_epi16((short)((int)up << 7))));
        }
        if (!(x->raised >> in & 1)) x->factor[in] = 1;
        x->factor[in] *= ldexpf(1, -(int)fminf(up, 126.0f));
        x->raised |= 1u << in;
    }
    w->max[r] = reference;
    x->bias[r] = AMX_BIAS - reference * AMX_ONE;
    struct amx_exp e = amx__exp_begin(x->scale);
    amx__exp(&e, s, p + (size_t)i * AMX_P_BLOCK, x->bias[r]);
}

/* Those rows of a group whose references are too low for block i. */
static __attribute__((noinline)) void amx__raise_some(struct amx_walk *x, const struct amx_step *t,
                                                      uint32_t i, const float *s)
{
    struct amx_exp e = amx__exp_begin(x->scale);
    for (uint32_t in = 0; in < t->rows; in++) {
        __m512 y0, y1;
        amx__t(&e, s + in * 16, x->bias[t->row0 + in], &y0, &y1);
        if (amx__beyond(y0, y1)) amx__raise(x, t, i, in, s + in * 16);
    }
}

/* Row `in` of the step's group against block i, which is not fully visible to every row. */
ATTN_INLINE void amx__masked_row(struct amx_walk *x, struct amx_exp *e, const struct amx_step *t, uint32_t i,
                                 uint32_t in, float *s_block)
{
    const struct attn_work_item *w = x->w;
    uint32_t r = t->row0 + in, base = (t->first + i) * KV_SLOTS, last = base + KV_SLOTS - 1;
    float *s = s_block + (size_t)in * 16;
    if (w->lo[r] > base || w->hi[r] < last || w->j->a->softcap > 0) amx__prepare_row(w, r, s, base);
    amx__exp(e, s, t->p + (size_t)i * AMX_P_BLOCK + (size_t)in * KV_SLOTS, x->bias[r]);
}

/* ---- units */

#define AMX_UNIT_CHAINS 4u /* most chains of a unit, plus one */

struct amx_unit {
    struct amx_score score;
    struct amx_value value;
    uint32_t k_strokes; /* of scores, 0: none */
    uint32_t score_rows;
    uint32_t chains, blocks; /* of values, 0: none */
    uint32_t value_rows;
    const struct amx_step *soft; /* NULL: none */
    uint32_t soft_block;
    float *s;
    uint16_t *p;
    const float *bias;
    const char *ask; /* lines to bring to the L2 cache */
    uint32_t ask_lines;
};

/* Half-stroke h of a unit of full groups, and the rows that come with it. All of ks, vs, n, h are constants.
 */
ATTN_INLINE void amx__full_half(const struct amx_unit *u, struct amx_pending *pend, struct amx_exp *e,
                                const uint32_t ks, const uint32_t vs, const uint32_t n, const uint32_t h)
{
    const uint32_t halves = 2 * (ks + vs), stroke = h / 2;
    for (uint32_t i = h; i < u->ask_lines; i += halves) _mm_prefetch(u->ask + (size_t)i * 64, _MM_HINT_T1);
    if (stroke < ks) {
        amx__score_half(&u->score, pend, stroke, h & 1, true);
    } else {
        amx__value_half(&u->value, pend, (stroke - ks) / n, (stroke - ks) % n, h & 1, true);
    }
    for (uint32_t r = ATTN_GROUP * h / halves; r < ATTN_GROUP * (h + 1) / halves; r++)
        amx__exp(e, u->s + r * 16, u->p + r * KV_SLOTS, u->bias[r]);
}

/* A unit of groups of 32 rows and a block without masks: ks strokes of scores, vs of values, n to a chain. */
ATTN_INLINE void amx__full_unit(struct amx_walk *x, const struct amx_unit *unit, const uint32_t ks,
                                const uint32_t vs, const uint32_t n)
{
    const struct amx_unit u = *unit; /* in registers: else it would be reread after tile stores */
    struct amx_pending pending = x->pending, *pend = &pending;
    struct amx_exp e = amx__exp_begin(x->scale);
#define HALF(h)                                                                                              \
    if ((h) < 2 * (ks + vs)) amx__full_half(&u, pend, &e, ks, vs, n, h)
#define HALF4(h)                                                                                             \
    HALF(h);                                                                                                 \
    HALF((h) + 1);                                                                                           \
    HALF((h) + 2);                                                                                           \
    HALF((h) + 3)
    HALF4(0);
    HALF4(4);
    HALF4(8);
    HALF4(12);
    HALF4(16);
    HALF4(20);
    HALF4(24);
    HALF4(28);
    HALF4(32);
    HALF4(36);
    x->pending = pending;
    if (__builtin_expect(amx__beyond(e.max0, e.max1), 0)) amx__raise_some(x, u.soft, u.soft_block, u.s);
}

typedef void amx_full_fn(struct amx_walk *x, const struct amx_unit *u);

/* A function for units of ks strokes of scores and `chains` chains of n blocks. */
#define AMX_FULL(ks, chains, n)                                                                              \
    static __attribute__((noinline)) void amx__full_##ks##_##chains(struct amx_walk *x,                      \
                                                                    const struct amx_unit *u)                \
    {                                                                                                        \
        amx__full_unit(x, u, ks, (chains) * (n), n);                                                         \
    }
AMX_FULL(2, 1, 3)
AMX_FULL(3, 1, 3)
AMX_FULL(4, 1, 5)
AMX_FULL(8, 2, 4)
AMX_FULL(8, 3, 4)

/* Head sizes with specialised units. A step has `tile` blocks, whose units share the chains. */
static const struct amx_shape {
    uint32_t k_strokes, chains, tile;
    amx_full_fn *full[AMX_UNIT_CHAINS]; /* by the number of chains of a unit */
} amx__shapes[] = {
    {2, 3, 3, {[1] = amx__full_2_1}},                      /* 64 */
    {3, 3, 3, {[1] = amx__full_3_1}},                      /* 72, 80 */
    {4, 5, 5, {[1] = amx__full_4_1}},                      /* 128 */
    {8, 9, 4, {[2] = amx__full_8_2, [3] = amx__full_8_3}}, /* 256 */
};

/* Rows of a softmax that come with the strokes of a unit. */
struct amx_pace {
    uint32_t rows, done, strokes, at;
};

ATTN_INLINE void amx__some_rows(struct amx_walk *x, struct amx_exp *e, const struct amx_unit *u,
                                struct amx_pace *pace)
{
    uint32_t due = ++pace->at >= pace->strokes ? pace->rows : pace->rows * pace->at / pace->strokes & ~3u;
    if (due <= pace->done) return;
    if (u->soft->plain >> u->soft_block & 1) {
        for (; pace->done + 4 <= due; pace->done += 4) {
            for (uint32_t i = 0, r = pace->done; i < 4; i++, r++)
                amx__exp(e, u->s + r * 16, u->p + r * KV_SLOTS, u->bias[r]);
        }
        for (uint32_t r = pace->done; r < due; r++)
            amx__exp(e, u->s + r * 16, u->p + r * KV_SLOTS, u->bias[r]);
    } else {
        for (uint32_t r = pace->done; r < due; r++) amx__masked_row(x, e, u->soft, u->soft_block, r, u->s);
    }
    pace->done = due;
}

/* Any unit: the same as a full one, for every shape, number of rows and mask. */
static __attribute__((noinline)) void amx__any_unit(struct amx_walk *x, const struct amx_unit *u)
{
    struct amx_pending pending = x->pending, *pend = &pending;
    struct amx_exp e = amx__exp_begin(x->scale);
    for (uint32_t i = 0; i < u->ask_lines; i++) _mm_prefetch(u->ask + (size_t)i * 64, _MM_HINT_T1);
    struct amx_pace pace = {.rows = u->soft ? u->soft->rows : 0,
                            .strokes = u->k_strokes + u->chains * u->blocks};
    for (uint32_t d = 0; d < u->k_strokes; d++) {
        amx__score_half(&u->score, pend, d, 0, u->score_rows > 16);
        amx__score_half(&u->score, pend, d, 1, u->score_rows > 16);
        amx__some_rows(x, &e, u, &pace);
    }
    for (uint32_t c = 0; c < u->chains; c++) {
        for (uint32_t b = 0; b < u->blocks; b++) {
            amx__value_half(&u->value, pend, c, b, 0, u->value_rows > 16);
            amx__value_half(&u->value, pend, c, b, 1, u->value_rows > 16);
            amx__some_rows(x, &e, u, &pace);
        }
    }
    if (pace.strokes == 0) amx__some_rows(x, &e, u, &pace);
    if (u->k_strokes && pend->at == u->score.s) amx__flush(pend);
    x->pending = pending;
    if (u->soft && amx__beyond(e.max0, e.max1)) amx__raise_some(x, u->soft, u->soft_block, u->s);
}

ATTN_INLINE void amx__set_score(const struct amx_walk *x, struct amx_unit *u, const struct amx_step *t,
                                uint32_t i, float *s)
{
    u->k_strokes = 0;
    if (!t) return;
    size_t q_row = (size_t)x->w->j->dpad * 2;
    u->k_strokes = x->k_strokes;
    u->score_rows = t->rows;
    u->score =
        (struct amx_score){.q = x->w->q + t->row0 * q_row, .k = t->k[i], .q_row = q_row, .s = (char *)s};
}

ATTN_INLINE void amx__set_value(const struct amx_walk *x, struct amx_unit *u, const struct amx_step *t,
                                uint32_t chain, uint32_t end)
{
    u->chains = end - chain;
    if (chain == end) return;
    const struct attn_job *j = x->w->j;
    u->blocks = t->blocks;
    u->value_rows = t->rows;
    u->value.p = (const char *)t->p;
    for (uint32_t i = 0; i < t->blocks; i++) u->value.v[i] = t->v[i] + (size_t)chain * 128;
    u->value.v_row = (size_t)j->dpad * 4;
    u->value.o_row = (size_t)j->o_stride * 4;
    u->value.o = (char *)(x->w->o + (size_t)t->row0 * j->o_stride) + (size_t)chain * 128;
    u->value.v_tiles = x->v_tiles - u32_min(x->v_tiles, 2 * chain);
    u->value.o_tiles = x->o_tiles - 2 * chain;
}

/* Softmax of step `now`, scores of its second block to the first of `next`, values of `past`. Each may be
 * NULL. */
static void amx__stage(struct amx_walk *x, const struct amx_shape *shape, const struct amx_step *next,
                       const struct amx_step *now, const struct amx_step *past)
{
    uint32_t chains = past ? x->chains : 0, blocks = now ? now->blocks : 1;
    struct amx_unit u = {.soft = now};
    bool can = shape && now && past && now->rows == ATTN_GROUP && past->rows == ATTN_GROUP &&
               now->blocks == x->tile && past->blocks == x->tile;
    for (uint32_t i = 0; i < blocks; i++) {
        const struct amx_step *score = i + 1 < blocks ? now : next;
        u.s = x->w->s + x->turn * AMX_S_BLOCK;
        x->turn ^= 1;
        amx__set_score(x, &u, score, i + 1 < blocks ? i + 1 : 0, x->w->s + x->turn * AMX_S_BLOCK);
        amx__set_value(x, &u, past, chains * i / blocks, chains * (i + 1) / blocks);
        if (now) {
            u.soft_block = i;
            u.p = now->p + (size_t)i * AMX_P_BLOCK;
            u.bias = x->bias + now->row0;
        }
        u.ask = amx__ask_next(&x->ahead, &u.ask_lines);
        __asm__ volatile(
            "" ::
                : "memory"); /* gcc's intrinsic for loading a tile doesn't declare that it reads memory */
        if (can && u.k_strokes && u.score_rows == ATTN_GROUP && (now->plain >> i & 1)) {
            shape->full[u.chains](x, &u);
        } else {
            amx__any_unit(x, &u);
        }
    }
    if (x->raised) {
        const struct attn_job *j = x->w->j;
        amx__flush(&x->pending);
        for (uint32_t left = x->raised; left; left &= left - 1) {
            uint32_t in = (uint32_t)__builtin_ctz(left);
            float *o = x->w->o + (size_t)(now->row0 + in) * j->o_stride;
            __m512 f = _mm512_set1_ps(x->factor[in]);
            for (uint32_t i = 0; i < j->o_stride; i += VL)
                _mm512_storeu_ps(o + i, _mm512_mul_ps(_mm512_loadu_ps(o + i), f));
        }
        x->raised = 0;
    }
}

static void attn__walk(struct attn_work_item *w, const uint32_t *table)
{
    const struct be_attn_args *a = w->j->a;
    struct amx_walk x = {.w = w,
                         .table = table,
                         .end = w->hi_max / KV_SLOTS + 1,
                         .groups = (w->rows + ATTN_GROUP - 1) / ATTN_GROUP};
    x.scale = (a->softcap > 0 ? 1.0f : a->scale) * (1.44269504088896341f * AMX_ONE);
    x.k_strokes = w->j->dpad / 32;
    x.v_tiles = (a->kv.head_dim + 15) / 16;
    x.o_tiles = amx__o_tiles(a->kv.head_dim);
    x.chains = (x.o_tiles + 1) / 2;
    const struct amx_shape *shape = NULL;
    for (uint32_t i = 0; i < sizeof amx__shapes / sizeof *amx__shapes; i++) {
        if (amx__shapes[i].k_strokes == x.k_strokes && amx__shapes[i].chains == x.chains)
            shape = &amx__shapes[i];
    }
    x.tile = shape ? shape->tile : 4;
    for (uint32_t r = 0; r < w->rows; r++) x.bias[r] = AMX_NO_MAX;
    for (uint32_t g = 0; g < x.groups; g++) {
        x.group[g].lo = x.group[g].hi_min = UINT32_MAX;
        for (uint32_t r = g * ATTN_GROUP; r < u32_min(w->rows, (g + 1) * ATTN_GROUP); r++) {
            x.group[g].lo = u32_min(x.group[g].lo, w->lo[r]);
            x.group[g].lo_max = u32_max(x.group[g].lo_max, w->lo[r]);
            x.group[g].hi = u32_max(x.group[g].hi, w->hi[r]);
            x.group[g].hi_min = u32_min(x.group[g].hi_min, w->hi[r]);
        }
    }
    amx__stretch(&x, w->lo_min / KV_SLOTS / x.tile * x.tile);
    struct amx_step ring[3], *next = NULL, *now = NULL, *past = NULL; /* step n lies in ring[n % 3] */
    uint32_t n = 0;
    do {
        past = now;
        now = next;
        next = amx__next(&x, &ring[n++ % 3]) ? &ring[(n - 1) % 3] : NULL;
        amx__stage(&x, shape, next, now, past);
    } while (next || now);
    amx__flush(&x.pending);
}

static void amx__attn_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < 8; i++) {
        config.colsb[i] = 64;
        config.rows[i] = 16;
    }
    tiles_load(&config);
    struct attn_call *c = ctx;
    attn__range(&c->job, begin, end, c->b, worker);
    _tile_release();
}

void amx_attn_bf16(struct backend *b, const struct be_attn_args *a)
{
    struct attn_call c;
    uint32_t n = attn__plan(b, a, &c);
    cpu_pool_run(b->pool, n, 1, amx__attn_range, &c);
}

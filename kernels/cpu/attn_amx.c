/* Attention on AMX tiles (bf16). One tile instruction multiplies 16 rows x 32 deep x 16 columns: scores contract 32 of d against 16 keys, values
 * contract the 32 slots of a block against 16 of d; the cache holds K and V as such tiles already (kv_layout.h). See attn_driver.h.
 *
 * The order of the work serves three caches. A piece has many groups of 32 rows. Keys and values of a stretch of blocks stay in the L2 cache while all groups
 * walk it. A group walks it in steps of a few blocks; what is written and soon read again is kept small, above all the scores, of which only two blocks'
 * exist: a store that misses the L1 cache costs three times one that does not. Products run in the tile unit beside the vector units, so a stage has
 * three things under way, the strokes of tile work strewn between the rows of the softmax:
 *
 *   stage n, for every block of step n:   softmax of the block   |   scores of the next block,  some columns of the values of step n - 1
 *   then:                                 output rows times the factor that a larger maximum of step n asks for
 *
 * Tile registers: 0..3 = sums of 2 x 16 rows by 2 x 16 columns, 4, 5 = rows, 6, 7 = keys or values. Sums are stored while the next stroke's products run
 * (struct amx_pending): stores in a row would hold up the tile unit. No order of a sum depends on any of this.
 *
 * Softmax. While tile instructions are in flight only one port multiplies 512-bit vectors, so the exponential works on 16-bit integers, 32 keys at once:
 *
 *   t = 512 (119 + x) as unsigned 16 bits          x = log2(e) * score - reference, up to 8; far below 0: t = 0, probability 0
 *   f = the fraction in t's low 9 bits             2^(x - 8) in bf16 has t / 4 as its bits but for the curve between 1 + f and 2^f,
 *   p = (t - f (1 - f) (a + b f)) / 4              which this cubic is: within 0.5 % where rounding to bf16 alone is within 0.4 %
 *
 * The reference is a whole number at or above the row's largest score at the time it was set. It is set again when a score comes 8 or more above it, so
 * few rows ever need what they have scaled; and the scaling is exact, being by powers of two.
 * Sums of probabilities come from the tile unit too: a column tile of ones behind the values. */
#define ATTN_ROWS 1024u
#define ATTN_TILE 8u
#include "kernels/cpu/attn_v16.h"

#include "kernels/cpu/attn_driver.h"

#define AMX_ONE     512.0f                        /* a factor of 2 in t */
#define AMX_BIAS    (119.0f * AMX_ONE + 1.25f)    /* t of the reference; the fraction is for rounding */
#define AMX_LIMIT   ((short)(127 * 512))          /* t from here on: reference too low */
#define AMX_CURVE_A 155
#define AMX_CURVE_B 46
#define AMX_NO_MAX  INFINITY                      /* instead of AMX_BIAS - reference: every score is beyond the limit, but not a masked one */
#define AMX_S_ROW   64u                           /* floats of a row of scores: two blocks, which take turns */
#define AMX_STRETCH_BYTES ((size_t)200 << 10)     /* keys and values of a stretch */
#define AMX_PIECE_BYTES   ((size_t)400 << 10)     /* queries and outputs of a piece */
#define AMX_STRETCH 64u                           /* blocks of a stretch at most */

#define AMX_GROUPS  (ATTN_ROWS / ATTN_GROUP)

/* The blocks of a key tile that a group of rows walks. */
struct amx_step {
    uint32_t group, row0, rows;
    uint32_t first, blocks;    /* absolute number of the first block */
    bool plain;                /* every row sees every key of the blocks, and no softcap */
    const char *k[ATTN_TILE], *v[ATTN_TILE];
    uint16_t *p;
};

/* Sums that tiles 0..3 still hold. */
struct amx_pending {
    float *at;                 /* tile 0; tile 1 is 16 columns, tile 2 is 16 rows further */
    size_t stride;             /* bytes */
    bool right, lower;         /* tiles 1 and 3, 2 and 3 are in use */
};

/* Keys and values of the next stretch on their way to the L2 cache. The blocks of a head lie far apart, at distances that share cache sets. */
struct amx_ahead {
    const char *block[AMX_STRETCH]; /* K, then V */
    uint32_t blocks, lines;         /* lines of 64 bytes of a block */
    uint32_t next, end, per_stage, per_stroke;
};

struct amx_walk {
    struct attn_piece *w;
    const uint32_t *table;
    uint32_t columns;          /* of o with those of the sum */
    float scale;               /* of a score to t */
    struct {
        uint32_t lo, lo_max, hi_min, hi;
    } group[AMX_GROUPS];
    uint32_t groups;
    /* the next step's place */
    uint32_t stretch, stretch_end, end, at_group, at, parity; /* blocks */
    uint32_t turn;             /* half of the scores that the softmax reads */
    struct amx_pending pending;
    struct amx_ahead ahead;
    uint32_t raised;           /* rows of the stage's group whose reference changed */
    float factor[ATTN_GROUP];
    float bias[ATTN_ROWS];     /* AMX_BIAS - 512 * reference */
};

/* bf16 ones as a tile of values: every column of the product is the row's sum. */
static const uint32_t amx__ones[256] __attribute__((aligned(64))) = {
#define ONES4  0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80
#define ONES16 ONES4, ONES4, ONES4, ONES4
#define ONES64 ONES16, ONES16, ONES16, ONES16
    ONES64, ONES64, ONES64, ONES64
};

ATTN_INLINE uint32_t amx__sum_column(uint32_t d)
{
    return (d + 15) / 16 * 16;
}
ATTN_INLINE uint32_t attn__o_stride(uint32_t dpad, uint32_t d)
{
    return u32_max(dpad, (amx__sum_column(d) + 16 + 31) / 32 * 32);
}
ATTN_INLINE float attn__row_sum(const struct attn_piece *w, uint32_t r)
{
    return w->o[(size_t)r * w->j->o_stride + amx__sum_column(w->j->a->kv.head_dim)];
}
/* Queries and outputs of a piece take a part of the L2 cache. */
ATTN_INLINE uint32_t attn__piece_rows(const struct attn_job *j)
{
    uint32_t rows = ATTN_ROWS;
    while (rows > 128 && rows * ((size_t)j->dpad * 2 + (size_t)j->o_stride * 4) > AMX_PIECE_BYTES) rows /= 2;
    return rows;
}

/* ---- steps */

/* Sets out the stretch that begins at block `first`, and what to ask for during it: the stretch behind. */
static void amx__stretch(struct amx_walk *x, uint32_t first)
{
    const struct attn_piece *w = x->w;
    const struct be_attn_args *a = w->j->a;
    struct amx_ahead *h = &x->ahead;
    h->lines = (uint32_t)(kv_head_bytes(BE_BF16, a->kv.head_dim) / 64);
    uint32_t blocks = u32_max(1, u32_min(AMX_STRETCH, (uint32_t)(AMX_STRETCH_BYTES / 64 / h->lines)) / ATTN_TILE) * ATTN_TILE;
    x->stretch = first;
    x->stretch_end = u32_min(first + blocks, x->end);
    x->at_group = 0;
    x->at = first;
    h->blocks = 0;
    if (x->groups > 1) { /* one group uses nothing twice: asking ahead only costs time then */
        for (uint32_t b = x->stretch_end; b < u32_min(x->stretch_end + blocks, x->end); b++) {
            KN_ASSERT(x->table[b] != BE_NO_BLOCK);
            h->block[h->blocks++] = kv_k(kv_layer(&a->kv, x->table[b]), BE_BF16, a->kv.head_dim, w->kv_head);
        }
    }
    uint32_t stages = x->groups * ((x->stretch_end - first + ATTN_TILE - 1) / ATTN_TILE), strokes = ATTN_TILE * (w->j->dpad / 32 + (x->columns + 31) / 32);
    h->next = h->end = 0;
    h->per_stage = (h->blocks * h->lines + stages - 1) / stages;
    h->per_stroke = h->per_stage / strokes + 1;
}

/* The next step whose group sees something of it; false at the end. */
static bool amx__next(struct amx_walk *x, struct amx_step *t)
{
    struct attn_piece *w = x->w;
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
        x->at += ATTN_TILE;
        uint32_t b0 = u32_max(x->group[g].lo / KV_SLOTS, at), b1 = u32_min(x->group[g].hi / KV_SLOTS + 1, at + ATTN_TILE);
        if (b0 >= b1) continue;
        t->group = g;
        t->row0 = g * ATTN_GROUP;
        t->rows = u32_min(ATTN_GROUP, w->rows - t->row0);
        t->first = b0;
        t->blocks = b1 - b0;
        t->plain = x->group[g].lo_max <= b0 * KV_SLOTS && x->group[g].hi_min >= b1 * KV_SLOTS - 1 && a->softcap <= 0;
        for (uint32_t i = 0; i < t->blocks; i++) {
            KN_ASSERT(x->table[b0 + i] != BE_NO_BLOCK);
            void *layer = kv_layer(&a->kv, x->table[b0 + i]);
            t->k[i] = kv_k(layer, BE_BF16, a->kv.head_dim, w->kv_head);
            t->v[i] = kv_v(layer, BE_BF16, a->kv.head_dim, w->kv_head);
        }
        x->parity ^= 1;
        t->p = (uint16_t *)(void *)w->p + (size_t)x->parity * ATTN_GROUP * ATTN_TILE * KV_SLOTS;
        x->ahead.end = u32_min(x->ahead.blocks * x->ahead.lines, x->ahead.end + x->ahead.per_stage);
        return true;
    }
}

ATTN_INLINE void amx__ask(struct amx_ahead *h)
{
    for (uint32_t end = u32_min(h->end, h->next + h->per_stroke); h->next < end;) {
        uint32_t b = h->next / h->lines, in = h->next % h->lines, now = u32_min(end - h->next, h->lines - in);
        const char *line = h->block[b] + (size_t)in * 64;
        for (uint32_t i = 0; i < now; i++) _mm_prefetch(line + (size_t)i * 64, _MM_HINT_T1);
        h->next += now;
    }
}

/* ---- strokes of tile work */

#define AMX_FLUSH(i)                                                                                                                       \
    do {                                                                                                                                   \
        if (pend->at && (!((i) & 1) || pend->right) && (!((i) & 2) || pend->lower)) {                                                      \
            _tile_stored(i, (char *)pend->at + ((i) & 1) * 64 + ((i) >> 1) * 16 * pend->stride, pend->stride);                             \
        }                                                                                                                                  \
    } while (0)

ATTN_INLINE void amx__flush(struct amx_pending *pend)
{
    AMX_FLUSH(0);
    AMX_FLUSH(1);
    AMX_FLUSH(2);
    AMX_FLUSH(3);
    pend->at = NULL;
}

/* 32 of d, from d on, of the scores of a group against block i. */
ATTN_INLINE void amx__score_stroke(const struct amx_walk *x, struct amx_pending *pend, const struct amx_step *t, uint32_t i, uint32_t d, float *s)
{
    size_t dpad = x->w->j->dpad;
    const char *q = x->w->q + ((size_t)t->row0 * dpad + d) * 2, *k = t->k[i] + (size_t)d * 32;
    bool lower = t->rows > 16;
    _tile_loadd(4, q, dpad * 2);
    _tile_loadd(6, k, 64);
    _tile_loadd(7, k + dpad * 32, 64);
    if (d == 0) {
        AMX_FLUSH(0);
        _tile_zero(0);
        _tile_dpbf16ps(0, 4, 6);
        AMX_FLUSH(1);
        _tile_zero(1);
        _tile_dpbf16ps(1, 4, 7);
        AMX_FLUSH(2);
        if (lower) {
            _tile_loadd(5, q + 32 * dpad, dpad * 2);
            _tile_zero(2);
            _tile_dpbf16ps(2, 5, 6);
        }
        AMX_FLUSH(3);
        if (lower) {
            _tile_zero(3);
            _tile_dpbf16ps(3, 5, 7);
        }
        pend->at = s;
        pend->stride = AMX_S_ROW * 4;
        pend->right = true;
        pend->lower = lower;
        return;
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_loadd(5, q + 32 * dpad, dpad * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Block i's part of 32 output columns, from col on, of a group. */
ATTN_INLINE void amx__value_stroke(const struct amx_walk *x, struct amx_pending *pend, const struct amx_step *t, uint32_t i, uint32_t col)
{
    const struct attn_job *j = x->w->j;
    size_t stride = (size_t)j->o_stride * 4, v_stride = (size_t)j->dpad * 4, p_row = ATTN_TILE * KV_SLOTS;
    uint32_t ones = x->columns - 16;
    float *o = x->w->o + (size_t)t->row0 * j->o_stride + col;
    const uint16_t *p = t->p + i * KV_SLOTS;
    const char *v = t->v[i] + (size_t)col * 4;
    bool lower = t->rows > 16, right = col < ones;
    _tile_loadd(4, p, p_row * 2);
    if (right) {
        _tile_loadd(6, v, v_stride);
    } else {
        _tile_loadd(6, amx__ones, 64);
    }
    if (col + 16 < ones) {
        _tile_loadd(7, v + 64, v_stride);
    } else {
        _tile_loadd(7, amx__ones, 64);
    }
    if (i == 0) {
        AMX_FLUSH(0);
        _tile_loadd(0, o, stride);
        _tile_dpbf16ps(0, 4, 6);
        AMX_FLUSH(1);
        if (right) {
            _tile_loadd(1, o + 16, stride);
            _tile_dpbf16ps(1, 4, 7);
        }
        AMX_FLUSH(2);
        if (lower) {
            _tile_loadd(5, p + 16 * p_row, p_row * 2);
            _tile_loadd(2, o + 4 * stride, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        AMX_FLUSH(3);
        if (lower && right) {
            _tile_loadd(3, o + 4 * stride + 16, stride);
            _tile_dpbf16ps(3, 5, 7);
        }
        pend->at = o;
        pend->stride = stride;
        pend->right = right;
        pend->lower = lower;
        return;
    }
    _tile_dpbf16ps(0, 4, 6);
    if (right) _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_loadd(5, p + 16 * p_row, p_row * 2);
        _tile_dpbf16ps(2, 5, 6);
        if (right) _tile_dpbf16ps(3, 5, 7);
    }
}

/* ---- softmax */

/* Softcap and mask of a row's 32 scores in place. */
static void amx__prepare_row(const struct attn_piece *w, uint32_t r, float *s, uint32_t base)
{
    const struct be_attn_args *a = w->j->a;
    for (uint32_t i = 0; i < KV_SLOTS; i += VL) {
        __m512 v = _mm512_loadu_ps(s + i);
        if (a->softcap > 0) v = _mm512_mul_ps(v16_tanh(_mm512_mul_ps(v, _mm512_set1_ps(a->scale / a->softcap))), _mm512_set1_ps(a->softcap));
        _mm512_storeu_ps(s + i, vf_keep(v, base + i, w->lo[r], w->hi[r]));
    }
}

/* What the exponential needs, in registers: the compiler would rather build constants anew for every row, on the port that is short. */
struct amx_exp {
    __m512 scale, top;
    __m512i order, curve_a, curve_b, all, limit;
};
#define AMX_HOLD(v) __asm__("" : "+v"(v))

ATTN_INLINE struct amx_exp amx__exp_begin(float scale)
{
    struct amx_exp e = {
        .scale = _mm512_set1_ps(scale),
        .top = _mm512_set1_ps(1.0e6f),
        .order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),   /* packing two vectors leaves their fours interleaved */
        .curve_a = _mm512_set1_epi16(AMX_CURVE_A),
        .curve_b = _mm512_set1_epi16(AMX_CURVE_B),
        .all = _mm512_set1_epi16(-1),
        .limit = _mm512_set1_epi16(AMX_LIMIT),
    };
    AMX_HOLD(e.scale);
    AMX_HOLD(e.top);
    AMX_HOLD(e.order);
    AMX_HOLD(e.curve_a);
    AMX_HOLD(e.curve_b);
    AMX_HOLD(e.all);
    AMX_HOLD(e.limit);
    return e;
}

/* Probabilities of 32 scores. Returns the places of those beyond the limit. */
ATTN_INLINE __mmask32 amx__exp(const struct amx_exp *e, const float *s, uint16_t *p, float bias)
{
    __m512 vb = _mm512_set1_ps(bias);
    /* Beyond the range of integers comes the same as below it: hence the bound. It is the first operand so that NaN passes, and becomes 0. */
    __m512i y0 = _mm512_cvtps_epi32(_mm512_min_ps(e->top, _mm512_fmadd_ps(_mm512_loadu_ps(s), e->scale, vb)));
    __m512i y1 = _mm512_cvtps_epi32(_mm512_min_ps(e->top, _mm512_fmadd_ps(_mm512_loadu_ps(s + 16), e->scale, vb)));
    __m512i t = _mm512_permutexvar_epi64(e->order, _mm512_packus_epi32(y0, y1));
    __m512i f = _mm512_slli_epi16(t, 7);
    __m512i u = _mm512_mulhi_epu16(f, _mm512_xor_si512(f, e->all));
    __m512i g = _mm512_add_epi16(_mm512_mulhi_epu16(f, e->curve_b), e->curve_a);
    __m512i r = _mm512_sub_epi16(t, _mm512_mulhi_epu16(u, g));
    _mm512_storeu_si512(p, _mm512_srli_epi16(r, 2));
    return _mm512_cmpge_epu16_mask(t, e->limit);
}

/* Raises the reference of row r = row0 + in to its scores s of block i; what the row has of this step is scaled here, its output when the stage is over. */
static __attribute__((noinline)) void amx__raise(struct amx_walk *x, const struct amx_step *t, uint32_t i, uint32_t in, const float *s, uint16_t *p_row)
{
    struct attn_piece *w = x->w;
    uint32_t r = t->row0 + in;
    float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_loadu_ps(s), _mm512_loadu_ps(s + 16))), reference = ceilf(max * (x->scale * (1 / AMX_ONE)));
    if (w->max[r] != -INFINITY) {
        float up = fminf(reference - w->max[r], 250.0f);
        for (uint32_t n = 0; n < i; n++) {
            __m512i *at = (__m512i *)(void *)(p_row + n * KV_SLOTS);
            _mm512_storeu_si512(at, _mm512_subs_epu16(_mm512_loadu_si512(at), _mm512_set1_epi16((short)((int)up << 7))));
        }
        if (!(x->raised >> in & 1)) x->factor[in] = 1;
        x->factor[in] *= ldexpf(1, -(int)fminf(up, 126.0f));
        x->raised |= 1u << in;
    }
    w->max[r] = reference;
    x->bias[r] = AMX_BIAS - reference * AMX_ONE;
    struct amx_exp e = amx__exp_begin(x->scale);
    amx__exp(&e, s, p_row + i * KV_SLOTS, x->bias[r]);
}

/* Row `in` of the step's group against block i. */
ATTN_INLINE void amx__softmax_row(struct amx_walk *x, const struct amx_exp *e, const struct amx_step *t, uint32_t i, uint32_t in, float *s_block)
{
    uint32_t r = t->row0 + in;
    float *s = s_block + (size_t)in * AMX_S_ROW;
    uint16_t *p = t->p + (size_t)in * ATTN_TILE * KV_SLOTS;
    if (!t->plain) {
        const struct attn_piece *w = x->w;
        uint32_t base = (t->first + i) * KV_SLOTS, last = base + KV_SLOTS - 1;
        if (w->hi[r] < base || w->lo[r] > last) {
            memset(p + i * KV_SLOTS, 0, KV_SLOTS * 2);
            return;
        }
        if (w->lo[r] > base || w->hi[r] < last || w->j->a->softcap > 0) amx__prepare_row(w, r, s, base);
    }
    if (__builtin_expect(amx__exp(e, s, p + i * KV_SLOTS, x->bias[r]) != 0, 0)) amx__raise(x, t, i, in, s, p);
}

/* ---- stages */

struct amx_pace {
    uint32_t done, step, at; /* rows done; rows per stroke, rows due, in 1/65536 */
};

ATTN_INLINE void amx__some_rows(struct amx_walk *x, const struct amx_exp *e, const struct amx_step *t, uint32_t i, struct amx_pace *pace, float *s)
{
    amx__ask(&x->ahead);
    pace->at += pace->step;
    for (; pace->done < pace->at >> 16; pace->done++) amx__softmax_row(x, e, t, i, pace->done, s);
}

/* Softmax of step `now`, scores of its second block to the first of `next`, values of `past`. Each may be NULL. */
static void amx__stage(struct amx_walk *x, const struct amx_step *next, const struct amx_step *now, const struct amx_step *past)
{
    const struct attn_job *j = x->w->j;
    uint32_t chains = past ? (x->columns + 31) / 32 : 0, chain = 0, blocks = now ? now->blocks : 1;
    struct amx_exp e = amx__exp_begin(x->scale);
    struct amx_pending pending = x->pending, *pend = &pending; /* in registers: reading back what was just stored would wait for the stores of tiles */
    __asm__ volatile("" ::: "memory"); /* gcc's intrinsic for loading a tile does not say that it reads memory */
    for (uint32_t i = 0; i < blocks; i++) {
        const struct amx_step *scores = i + 1 < blocks ? now : next;
        uint32_t at = i + 1 < blocks ? i + 1 : 0, until = chains * (i + 1) / blocks, rows = now ? now->rows : 0;
        uint32_t strokes = (scores ? j->dpad / 32 : 0) + (past ? (until - chain) * past->blocks : 0);
        struct amx_pace pace = {.step = strokes ? (rows << 16) / strokes : 0};
        float *s = x->w->s + x->turn * KV_SLOTS;
        x->turn ^= 1;
        if (scores) {
            for (uint32_t d = 0; d < j->dpad; d += 32) {
                amx__score_stroke(x, pend, scores, at, d, x->w->s + x->turn * KV_SLOTS);
                amx__some_rows(x, &e, now, i, &pace, s);
            }
        }
        for (; chain < until; chain++) {
            for (uint32_t b = 0; b < past->blocks; b++) {
                amx__value_stroke(x, pend, past, b, chain * 32);
                amx__some_rows(x, &e, now, i, &pace, s);
            }
        }
        for (; pace.done < rows; pace.done++) amx__softmax_row(x, &e, now, i, pace.done, s);
        if (scores && pend->at == x->w->s + x->turn * KV_SLOTS) amx__flush(pend);
    }
    if (x->raised) {
        amx__flush(pend);
        for (uint32_t left = x->raised; left; left &= left - 1) {
            uint32_t in = (uint32_t)__builtin_ctz(left);
            float *o = x->w->o + (size_t)(now->row0 + in) * j->o_stride;
            __m512 f = _mm512_set1_ps(x->factor[in]);
            for (uint32_t i = 0; i < j->o_stride; i += VL) _mm512_storeu_ps(o + i, _mm512_mul_ps(_mm512_loadu_ps(o + i), f));
        }
        x->raised = 0;
    }
    x->pending = pending;
}

static void attn__walk(struct attn_piece *w, const uint32_t *table)
{
    const struct be_attn_args *a = w->j->a;
    struct amx_walk x = {.w = w, .table = table, .end = w->hi_max / KV_SLOTS + 1, .groups = (w->rows + ATTN_GROUP - 1) / ATTN_GROUP};
    x.scale = (a->softcap > 0 ? 1.0f : a->scale) * (1.44269504088896341f * AMX_ONE);
    x.columns = amx__sum_column(a->kv.head_dim) + 16;
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
    amx__stretch(&x, w->lo_min / KV_SLOTS / ATTN_TILE * ATTN_TILE);
    struct amx_step ring[3], *next = NULL, *now = NULL, *past = NULL; /* step n lies in ring[n % 3] */
    uint32_t n = 0;
    do {
        past = now;
        now = next;
        next = amx__next(&x, &ring[n++ % 3]) ? &ring[(n - 1) % 3] : NULL;
        amx__stage(&x, next, now, past);
    } while (next || now);
    amx__flush(&x.pending);
}

static void amx__attn_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (uint32_t i = 0; i < 8; i++) {
        config.colsb[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc's intrinsic names only the first 8 bytes as its input */
    _tile_loadconfig(&config);
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

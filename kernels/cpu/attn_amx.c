/* Attention on AMX tiles (bf16). One tile instruction multiplies 16 rows x 32 deep x 16 columns: scores contract 32 of d against 16 keys, values
 * contract the 32 slots of a block against 16 of d; the cache holds K and V as such tiles already (kv_layout.h). See attn_driver.h.
 *
 * A piece's rows are walked as steps (key tile, group of 32 rows), all groups of a tile before the next tile. The tile unit works beside the vector units,
 * and the softmax costs more than the products when the head is small, so three steps are under way at once:
 *
 *   stage n:   softmax of step n   |   scores of step n + 1,  values of step n - 1      (strokes of tile work strewn between the rows of the softmax)
 *   then:      output rows times the factor that step n's larger maximum asks for (with one group, the values of n - 1 are all in by then)
 *
 * The order of every sum is that of one step after the other. Tile registers: 0..3 = sums of 2 x 16 rows by 2 x 16 columns,
 * 4, 5 = rows, 6, 7 = keys or values. */
#define ATTN_ROWS 128u /* a key tile is fetched once for four groups of rows */
#include "kernels/cpu/attn_v16.h"

#include "kernels/cpu/attn_driver.h"

/* 2^f on [-1/2, 1/2] within 1.0e-4 of its value. */
#define AMX_EXP_C0 0x1.fff692p-1f
#define AMX_EXP_C1 0x1.62f31ap-1f
#define AMX_EXP_C2 0x1.f0de1ap-3f
#define AMX_EXP_C3 0x1.c3f75cp-5f

/* One step: the blocks of a key tile that a group of rows walks. */
struct amx_tile {
    uint32_t first, b0, b1;    /* block at the tile's border; blocks [b0, b1) of it, none if the group sees nothing here */
    uint32_t row0, rows;       /* the group */
    const char *k[ATTN_TILE], *v[ATTN_TILE];
    float *s;
    uint16_t *p;
};
/* Tile work of one stage: first the values of one step, then the scores of another, cut into strokes of up to four independent tile products (their latency
 * is more than three times their duration). A stroke leaves its sums in tiles 0..3; the last of a block of output stores them. */
struct amx_stage {
    const struct amx_tile *scores, *values;
    uint32_t value_strokes, strokes, next;
    uint32_t block, col;  /* where the next stroke of values is: columns [col, col + 32) of block `block`; of scores: d = col */
};

static void amx__step_at(const struct attn_piece *w, const uint32_t *table, uint32_t n, struct amx_tile *t)
{
    const struct be_attn_args *a = w->j->a;
    uint32_t groups = (w->rows + ATTN_GROUP - 1) / ATTN_GROUP, lo = UINT32_MAX, hi = 0;
    t->first = (w->lo_min / ATTN_KEYS + n / groups) * ATTN_TILE;
    t->row0 = n % groups * ATTN_GROUP;
    t->rows = u32_min(ATTN_GROUP, w->rows - t->row0);
    for (uint32_t r = t->row0; r < t->row0 + t->rows; r++) {
        lo = u32_min(lo, w->lo[r]);
        hi = u32_max(hi, w->hi[r]);
    }
    uint32_t b0 = u32_max(lo / KV_SLOTS, t->first), b1 = u32_min(hi / KV_SLOTS + 1, t->first + ATTN_TILE);
    t->b0 = b0 - t->first;
    t->b1 = b1 > b0 ? b1 - t->first : t->b0;
    for (uint32_t b = t->b0; b < t->b1; b++) {
        KN_ASSERT(table[t->first + b] != BE_NO_BLOCK);
        void *layer = kv_layer(&a->kv, table[t->first + b]);
        t->k[b] = kv_k(layer, BE_BF16, a->kv.head_dim, w->kv_head);
        t->v[b] = kv_v(layer, BE_BF16, a->kv.head_dim, w->kv_head);
    }
    t->s = w->s + (size_t)(n & 1) * ATTN_GROUP * ATTN_KEYS;
    t->p = (uint16_t *)(void *)w->p + (size_t)(n & 1) * ATTN_GROUP * ATTN_KEYS;
}

/* 32 of d of the scores of a group against one block. */
ATTN_INLINE void amx__score_stroke(const struct attn_piece *w, struct amx_stage *g)
{
    const struct amx_tile *t = g->scores;
    size_t dpad = w->j->dpad, d = g->col;
    const char *q = w->q + ((size_t)t->row0 * dpad + d) * 2, *k = t->k[g->block] + d * 32;
    bool two = t->rows > 16;
    if (d == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_loadd(4, q, dpad * 2);
    _tile_loadd(6, k, 64);
    _tile_loadd(7, k + dpad * 32, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
        _tile_loadd(5, q + 32 * dpad, dpad * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    g->col += 32;
    if (g->col < dpad) return;
    float *s = t->s + g->block * KV_SLOTS;
    _tile_stored(0, s, ATTN_KEYS * 4);
    _tile_stored(1, s + 16, ATTN_KEYS * 4);
    if (two) {
        _tile_stored(2, s + 16 * ATTN_KEYS, ATTN_KEYS * 4);
        _tile_stored(3, s + 16 * ATTN_KEYS + 16, ATTN_KEYS * 4);
    }
    g->col = 0;
    g->block++;
}

/* One block's part of 32 output columns of a group. dpad is a multiple of 32, so both column tiles exist; columns past the head are zero. */
ATTN_INLINE void amx__value_stroke(const struct attn_piece *w, struct amx_stage *g)
{
    const struct amx_tile *t = g->values;
    size_t dpad = w->j->dpad, stride = dpad * 4;
    float *o = w->o + t->row0 * dpad + g->col;
    const uint16_t *p = t->p + g->block * KV_SLOTS;
    const char *v = t->v[g->block] + (size_t)g->col * 4;
    bool two = t->rows > 16, pair = g->col + 16 < w->j->a->kv.head_dim;
    if (g->block == t->b0) {
        _tile_loadd(0, o, stride);
        _tile_loadd(1, o + 16, stride);
        if (two) {
            _tile_loadd(2, o + 16 * dpad, stride);
            _tile_loadd(3, o + 16 * dpad + 16, stride);
        }
    }
    _tile_loadd(4, p, ATTN_KEYS * 2);
    _tile_loadd(6, v, stride);
    _tile_dpbf16ps(0, 4, 6);
    if (two) {
        _tile_loadd(5, p + 16 * ATTN_KEYS, ATTN_KEYS * 2);
        _tile_dpbf16ps(2, 5, 6);
    }
    if (pair) {
        _tile_loadd(7, v + 64, stride);
        _tile_dpbf16ps(1, 4, 7);
        if (two) _tile_dpbf16ps(3, 5, 7);
    }
    if (++g->block < t->b1) return;
    _tile_stored(0, o, stride);
    _tile_stored(1, o + 16, stride);
    if (two) {
        _tile_stored(2, o + 16 * dpad, stride);
        _tile_stored(3, o + 16 * dpad + 16, stride);
    }
    g->block = t->b0;
    g->col += 32;
}

static void amx__stage(const struct attn_piece *w, const struct amx_tile *scores, const struct amx_tile *values, struct amx_stage *g)
{
    *g = (struct amx_stage){.scores = scores, .values = values};
    if (values) {
        g->value_strokes = (values->b1 - values->b0) * ((w->j->a->kv.head_dim + 31) / 32);
        g->block = values->b0;
    }
    g->strokes = g->value_strokes + (scores ? (scores->b1 - scores->b0) * (w->j->dpad / 32) : 0);
}

/* Does strokes until `until` of them are done. */
ATTN_INLINE void amx__work(const struct attn_piece *w, struct amx_stage *g, uint32_t until)
{
    for (; g->next < until; g->next++) {
        if (g->next < g->value_strokes) {
            amx__value_stroke(w, g);
        } else {
            if (g->next == g->value_strokes) {
                g->block = g->scores->b0;
                g->col = 0;
            }
            amx__score_stroke(w, g);
        }
    }
}

/* 2^x for x <= 0 to about 1e-4, ample before rounding to bf16: n = round(x) by adding 1.5 * 2^23, whose low bits then are n; cubic minimax polynomial for
 * the fraction; n added to the exponent. Below 2^-125 the result stays there: the caller zeroes what is masked. */
ATTN_INLINE __m512 amx__exp2(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    x = _mm512_max_ps(_mm512_set1_ps(-125.0f), x);
    __m512 z = _mm512_add_ps(x, magic), f = _mm512_sub_ps(x, _mm512_sub_ps(z, magic));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(AMX_EXP_C3), f, _mm512_set1_ps(AMX_EXP_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(AMX_EXP_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(AMX_EXP_C0));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(z), 23)));
}

/* Softcap and mask in place; leaves in keep[i] the lanes of vector i that the row sees. */
static void amx__prepare_row(const struct attn_piece *w, uint32_t r, float *s, uint32_t base, uint32_t vectors, __mmask16 *keep)
{
    const struct be_attn_args *a = w->j->a;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i lo = _mm512_set1_epi32((int)w->lo[r]), hi = _mm512_set1_epi32((int)w->hi[r]);
    for (uint32_t i = 0; i < vectors; i++) {
        __m512 v = _mm512_loadu_ps(s + i * 16);
        if (a->softcap > 0) v = _mm512_mul_ps(v16_tanh(_mm512_mul_ps(v, _mm512_set1_ps(a->scale / a->softcap))), _mm512_set1_ps(a->softcap));
        __m512i pos = _mm512_add_epi32(lane, _mm512_set1_epi32((int)(base + i * 16)));
        keep[i] = _mm512_cmpge_epu32_mask(pos, lo) & _mm512_cmple_epu32_mask(pos, hi);
        _mm512_storeu_ps(s + i * 16, _mm512_mask_blend_ps(keep[i], _mm512_set1_ps(-INFINITY), v));
    }
}

/* Probabilities of `vectors` x 16 scores; adds to the row's sum. */
ATTN_INLINE void amx__exp_row(const float *s, uint16_t *p, uint32_t vectors, float scale, float max, float *sum, const __mmask16 *keep)
{
    __m512 total = _mm512_loadu_ps(sum), vc = _mm512_set1_ps(scale), neg = _mm512_set1_ps(-max);
    for (uint32_t i = 0; i < vectors; i++) {
        __m512 v = amx__exp2(_mm512_fmadd_ps(_mm512_loadu_ps(s + i * 16), vc, neg));
        if (keep) v = _mm512_maskz_mov_ps(keep[i], v);
        total = _mm512_add_ps(total, v);
        _mm256_storeu_si256((__m256i *)(void *)(p + i * 16), v16_to_bf16(v));
    }
    _mm512_storeu_ps(sum, total);
}

/* Row `in` of the step's group: probabilities, sum and max; returns what the row's output must be multiplied with before this tile's values are added. */
ATTN_INLINE float amx__softmax_row(struct attn_piece *w, const struct amx_tile *t, uint32_t in)
{
    uint32_t r = t->row0 + in;
    if (t->b1 == t->b0) return 1.0f;
    const struct be_attn_args *a = w->j->a;
    uint32_t base = (t->first + t->b0) * KV_SLOTS, vectors = (t->b1 - t->b0) * (KV_SLOTS / 16), last = base + vectors * 16 - 1;
    float *s = t->s + (size_t)in * ATTN_KEYS + t->b0 * KV_SLOTS, *sum = w->sum + r * VL;
    uint16_t *p = t->p + (size_t)in * ATTN_KEYS + t->b0 * KV_SLOTS;
    if (w->hi[r] < base || w->lo[r] > last) {
        memset(p, 0, vectors * 32);
        return 1.0f;
    }
    bool plain = w->lo[r] <= base && w->hi[r] >= last && a->softcap <= 0;
    __mmask16 keep[2 * ATTN_TILE];
    if (!plain) amx__prepare_row(w, r, s, base, vectors, keep);
    float scale = (a->softcap > 0 ? 1.0f : a->scale) * 1.44269504088896341f, factor = 1.0f;
    __m512 m0 = _mm512_loadu_ps(s), m1 = m0;
    for (uint32_t i = 0; i < vectors; i += 2) {
        m0 = _mm512_max_ps(m0, _mm512_loadu_ps(s + i * 16));
        m1 = _mm512_max_ps(m1, _mm512_loadu_ps(s + i * 16 + 16));
    }
    float max = _mm512_reduce_max_ps(_mm512_max_ps(m0, m1)) * scale;
    if (max > w->max[r]) {
        if (w->max[r] != -INFINITY) {
            factor = _mm512_cvtss_f32(vf_exp2(_mm512_set1_ps(w->max[r] - max), true));
            _mm512_storeu_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(factor)));
        }
        w->max[r] = max;
    }
    if (!plain) {
        amx__exp_row(s, p, vectors, scale, w->max[r], sum, keep);
    } else if (vectors == 2 * ATTN_TILE) {
        amx__exp_row(s, p, 2 * ATTN_TILE, scale, w->max[r], sum, NULL);
    } else {
        amx__exp_row(s, p, vectors, scale, w->max[r], sum, NULL);
    }
    return factor;
}

static void attn__walk(struct attn_piece *w, const uint32_t *table)
{
    uint32_t groups = (w->rows + ATTN_GROUP - 1) / ATTN_GROUP, steps = (w->hi_max / ATTN_KEYS - w->lo_min / ATTN_KEYS + 1) * groups;
    struct amx_tile ring[3]; /* step n lies in ring[n % 3] */
    struct amx_stage g;
    amx__step_at(w, table, 0, &ring[0]);
    amx__stage(w, &ring[0], NULL, &g);
    amx__work(w, &g, g.strokes);
    for (uint32_t n = 0; n < steps; n++) {
        struct amx_tile *t = &ring[n % 3], *ahead = &ring[(n + 1) % 3];
        float factor[ATTN_GROUP];
        if (n + 1 < steps) amx__step_at(w, table, n + 1, ahead);
        amx__stage(w, n + 1 < steps ? ahead : NULL, n > 0 ? &ring[(n + 2) % 3] : NULL, &g);
        for (uint32_t r = 0; r < t->rows; r++) {
            amx__work(w, &g, g.strokes * r / t->rows);
            factor[r] = amx__softmax_row(w, t, r);
        }
        amx__work(w, &g, g.strokes);
        for (uint32_t r = 0; r < t->rows; r++) {
            if (factor[r] == 1.0f) continue;
            float *o = w->o + (size_t)(t->row0 + r) * w->j->dpad;
            for (uint32_t i = 0; i < w->j->dpad; i += VL) _mm512_storeu_ps(o + i, _mm512_mul_ps(_mm512_loadu_ps(o + i), _mm512_set1_ps(factor[r])));
        }
    }
    amx__stage(w, NULL, &ring[(steps - 1) % 3], &g);
    amx__work(w, &g, g.strokes);
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

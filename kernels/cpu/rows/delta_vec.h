/* Recurrent layers, written once in terms of vops_*.h: causal convolution and gated delta rule. Definitions:
 * backend.h; reference: delta_ref.c. */
#include "kernels/cpu/internal.h"

#include <math.h>

/* ---- causal convolution */

#define CONV_TILE 256u /* channels of a work item */

struct vec_conv {
    const struct be_conv_args *a;
    uint32_t tiles;
};

/* out[i] = silu(sum of w[j, i] src[j][i] + bias[i]), or without silu, or bias; out is src[k - 1]. */
VF_OP void conv__row(const float *const *src, const float *w, const float *bias, size_t c, uint32_t k,
                     uint32_t n, bool silu, float *out)
{
    VEC_FOR(i, n)
    {
        struct vf sum = vf_mul(vf_load_n(w + i, n - i), vf_load_n(src[0] + i, n - i));
        for (uint32_t j = 1; j < k; j++)
            sum = vf_fma(vf_load_n(w + j * c + i, n - i), vf_load_n(src[j] + i, n - i), sum);
        if (bias) sum = vf_add(sum, vf_load_n(bias + i, n - i));
        vf_store_n(out + i, silu ? vf_mul(sum, vec__sigmoid(sum)) : sum, n - i);
    }
}

VF_OP void conv__times(float *x, const float *y, uint32_t n)
{
    VEC_FOR(i, n) vf_store_n(x + i, vf_mul(vf_load_n(x + i, n - i), vf_load_n(y + i, n - i)), n - i);
}

/* From the last row to the first, so that rows are still inputs when they are read. */
static void conv__rows(const struct be_conv_args *a, float *x, uint32_t count, const float *old,
                       const float *w, const float *bias, uint32_t n)
{
    uint32_t before = a->k - 1;
    bool silu = !a->times;
    for (uint32_t t = count; t-- > 0;) {
        const float *src[BE_CONV_K_MAX];
        for (uint32_t j = 0; j < a->k; j++)
            src[j] = t + j < before ? old + (size_t)(t + j) * CONV_TILE : x + (t + j - before) * a->stride;
        if (a->k == 4 && n == CONV_TILE && silu && !bias)
            conv__row(src, w, NULL, a->c, 4, CONV_TILE, true, x + t * a->stride);
        else conv__row(src, w, bias, a->c, a->k, n, silu, x + t * a->stride);
    }
}

static void conv__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_conv *j = ctx;
    const struct be_conv_args *a = j->a;
    const struct be_states *s = a->states;
    uint32_t before = a->k - 1;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t seq = item / j->tiles, c0 = item % j->tiles * CONV_TILE, n = u32_min(CONV_TILE, a->c - c0);
        const float *from = state_at(s, s->from[seq], a->layer_offset);
        float *to = state_at(s, s->to[seq], a->layer_offset), old[(BE_CONV_K_MAX - 1) * CONV_TILE];
        float *x = a->x + (size_t)s->first[seq] * a->stride + c0;
        const float *times = a->times ? a->times + (x - a->x) : NULL;
        for (uint32_t t = 0; times && t < s->count[seq]; t++)
            conv__times(x + t * a->stride, times + t * a->stride, n);
        for (uint32_t r = 0; r < before; r++)
            if (from) memcpy(old + (size_t)r * CONV_TILE, from + (size_t)r * a->c + c0, n * sizeof *old);
            else memset(old + (size_t)r * CONV_TILE, 0, n * sizeof *old);
        for (uint32_t r = 0; to && r < before; r++) {
            uint32_t at = s->kept[seq] + r;
            memcpy(to + (size_t)r * a->c + c0,
                   at < before ? old + (size_t)at * CONV_TILE : x + (at - before) * a->stride,
                   n * sizeof *to);
        }
        conv__rows(a, x, s->count[seq], old, a->weight + c0, a->bias ? a->bias + c0 : NULL, n);
    }
}

static uint32_t states__longest(const struct be_states *s)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < s->seq_count; i++) most = u32_max(most, s->count[i]);
    return most;
}

void SET(conv)(struct backend *b, const struct be_conv_args *a)
{
    struct vec_conv job = {a, (a->c + CONV_TILE - 1) / CONV_TILE};
    cpu_pool_run(b->pool, a->states->seq_count * job.tiles,
                 vec__grain((size_t)states__longest(a->states) * CONV_TILE * 4), conv__range, &job);
}

/* ---- gated delta rule: q, k and gates of every row, then each tile of columns of a head's state through all
 * rows of its sequence, the tile in the first-level cache */

#define DELTA_ROWS   16u /* of a work item of the first part */
#define DELTA_TILE   32u /* columns of one of the second */
#define DELTA_VECS   (DELTA_TILE / VL)
#define DELTA_GROUPS (8u / DELTA_VECS) /* partial sums of a column: rows i, i + groups, ... */

struct vec_delta {
    const struct be_delta_args *a;
    struct backend *b;
    uint32_t parts; /* work items of a sequence */
};

static void delta__l2(float *x, uint32_t n, float scale)
{
    struct vf s = vf_set1(scale / sqrtf(vec__sum_sq(x, n, 0.0f) + 1e-6f));
    VEC_FOR(i, n) vf_store_n(x + i, vf_mul(vf_load_n(x + i, n - i), s), n - i);
}

/* beta -> sigmoid(beta), a -> exp(decay * softplus(a + dt_bias)) */
static void delta__gates(const struct be_delta_args *a, float *beta)
{
    uint32_t heads = a->value_heads;
    float *decay = beta + heads;
    VEC_FOR(h, heads)
    {
        uint32_t n = u32_min(VL, heads - h);
        float x[VL], e[VL];
        struct vf v = vf_add(vf_load_n(decay + h, n), vf_load_n(a->dt_bias + h, n));
        vf_store(x, v);
        vf_store(e, vf_exp(vf_sub(vf_set1(0), vf_max(v, vf_sub(vf_set1(0), v)))));
        for (uint32_t i = 0; i < n; i++)
            x[i] = (x[i] > 0 ? x[i] : x[i] == x[i] ? 0 : x[i]) + (float)stats__log(1 + (double)e[i]);
        vf_store_n(decay + h, vf_exp(vf_mul(vf_load_n(a->decay + h, n), vf_load(x))), n);
        vf_store_n(beta + h, vec__sigmoid(vf_load_n(beta + h, n)), n);
    }
}

static void delta__prepare(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_delta *j = ctx;
    const struct be_delta_args *a = j->a;
    float scale = 1.0f / sqrtf((float)a->key_dim);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t seq = item / j->parts, t = item % j->parts * DELTA_ROWS,
                 last = u32_min(t + DELTA_ROWS, a->states->count[seq]);
        for (; t < last; t++) {
            size_t row = (size_t)a->states->first[seq] + t;
            float *qk = a->qkv + row * a->stride;
            for (uint32_t h = 0; h < 2 * a->key_heads; h++)
                delta__l2(qk + (size_t)h * a->key_dim, a->key_dim, h < a->key_heads ? scale : 1.0f);
            delta__gates(a, a->gates + row * 2 * a->value_heads);
        }
    }
}

/* One token of one tile. */
struct delta_token {
    const float *q, *k, *v; /* v: of the tile's first column */
    uint32_t dk;
    float g, beta;
    const float *src; /* the state before, rows `src_stride` apart, and after */
    size_t src_stride;
    float *dst;
    size_t dst_stride;
    float *out;         /* NULL: not wanted */
    const float *ahead; /* the next tile, rows `ahead_stride` apart; NULL: none */
    size_t ahead_stride;
};

/* Requests half of the next tile's rows, spread over a pass over this one: a step of one token waits for
 * memory. */
VF_OP void delta__ahead(const struct delta_token *t, uint32_t row, uint32_t first)
{
    if (!t->ahead || row % 2) return;
    const float *p = t->ahead + (first + row / 2) * t->ahead_stride;
    __builtin_prefetch(p, 1, 2);
    __builtin_prefetch(p + 16, 1, 2);
}

/* Partial sums in a fixed order. */
VF_OP struct vf delta__sum(struct vf p[DELTA_GROUPS][DELTA_VECS], uint32_t j)
{
    struct vf sum = vf_add(p[0][j], p[1][j]);
    return DELTA_GROUPS == 4 ? vf_add(sum, vf_add(p[DELTA_GROUPS - 2][j], p[DELTA_GROUPS - 1][j])) : sum;
}

VF_OP void delta__token(const struct delta_token *t, uint32_t n)
{
    struct vf p[DELTA_GROUPS][DELTA_VECS], d[DELTA_VECS], g = vf_set1(t->g);
    for (uint32_t r = 0; r < DELTA_GROUPS; r++)
        for (uint32_t j = 0; j < DELTA_VECS; j++) p[r][j] = vf_set1(0);
    for (uint32_t i = 0; i < t->dk; i += DELTA_GROUPS)
        for (uint32_t r = 0; r < DELTA_GROUPS && i + r < t->dk; r++) {
            struct vf k = vf_set1(t->k[i + r]);
            const float *s = t->src + (i + r) * t->src_stride;
            delta__ahead(t, i + r, 0);
            for (uint32_t j = 0; j < DELTA_VECS; j++)
                if (j * VL < n) p[r][j] = vf_fma(vf_load_n(s + j * VL, n - j * VL), k, p[r][j]);
        }
    for (uint32_t j = 0; j < DELTA_VECS; j++) {
        d[j] = vf_set1(0);
        if (j * VL >= n) continue;
        struct vf v = vf_sub(vf_load_n(t->v + j * VL, n - j * VL), vf_mul(g, delta__sum(p, j)));
        d[j] = vf_mul(vf_set1(t->beta), v);
    }
    for (uint32_t r = 0; r < DELTA_GROUPS; r++)
        for (uint32_t j = 0; j < DELTA_VECS; j++) p[r][j] = vf_set1(0);
    for (uint32_t i = 0; i < t->dk; i += DELTA_GROUPS)
        for (uint32_t r = 0; r < DELTA_GROUPS && i + r < t->dk; r++) {
            struct vf k = vf_set1(t->k[i + r]), q = vf_set1(t->q[i + r]);
            const float *s = t->src + (i + r) * t->src_stride;
            float *to = t->dst + (i + r) * t->dst_stride;
            delta__ahead(t, i + r, t->dk / 2);
            for (uint32_t j = 0; j < DELTA_VECS; j++) {
                if (j * VL >= n) continue;
                struct vf x = vf_fma(k, d[j], vf_mul(g, vf_load_n(s + j * VL, n - j * VL)));
                vf_store_n(to + j * VL, x, n - j * VL);
                p[r][j] = vf_fma(x, q, p[r][j]);
            }
        }
    for (uint32_t j = 0; j < DELTA_VECS && t->out; j++)
        if (j * VL < n) vf_store_n(t->out + j * VL, delta__sum(p, j), n - j * VL);
}

/* Columns [col, col + n) of value head h. */
static void delta__tile(const struct be_delta_args *a, uint32_t seq, uint32_t h, uint32_t col, uint32_t n,
                        float *local)
{
    const struct be_states *st = a->states;
    uint32_t dk = a->key_dim, dv = a->value_dim, count = st->count[seq],
             kh = a->tiled ? h % a->key_heads : h * a->key_heads / a->value_heads;
    size_t head = (size_t)h * dk * dv + col;
    const float *from = state_at(st, st->from[seq], a->layer_offset);
    float *to = state_at(st, st->to[seq], a->layer_offset);
    struct delta_token t = {.dk = dk,
                            .src = from ? from + head : local,
                            .src_stride = from ? dv : DELTA_TILE,
                            .ahead_stride = dv};
    if (from && col + n < dv) t.ahead = t.src + n;
    else if (from && h + 1 < a->value_heads) t.ahead = t.src - col + (size_t)dk * dv;
    if (!from) memset(local, 0, (size_t)dk * DELTA_TILE * sizeof *local);
    for (uint32_t i = 0; i < count; i++) {
        size_t row = (size_t)st->first[seq] + i;
        float *x = a->qkv + row * a->stride, *v = x + 2 * (size_t)a->key_heads * dk + (size_t)h * dv + col;
        const float *gate = a->gates + row * 2 * a->value_heads + h;
        bool keep = to && i + 1 == st->kept[seq];
        t.q = x + (size_t)kh * dk;
        t.k = t.q + (size_t)a->key_heads * dk;
        t.v = v;
        t.beta = gate[0];
        t.g = gate[a->value_heads];
        t.out = a->outputs ? v : NULL;
        t.dst = keep ? to + head : local;
        t.dst_stride = keep ? dv : DELTA_TILE;
        if (i + 1 < count) {
            for (uint32_t p = 0; p < dk; p += 16) __builtin_prefetch(t.k + a->stride + p);
            for (uint32_t p = 0; p < dk; p += 16) __builtin_prefetch(t.q + a->stride + p);
            for (uint32_t p = 0; p < n; p += 16) __builtin_prefetch(v + a->stride + p, 1);
        }
        if (n == DELTA_TILE) delta__token(&t, DELTA_TILE);
        else delta__token(&t, n);
        t.ahead = NULL;
        t.src = t.dst;
        t.src_stride = t.dst_stride;
    }
}

static void delta__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct vec_delta *j = ctx;
    const struct be_delta_args *a = j->a;
    uint32_t tiles = j->parts / a->value_heads;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t col = item % tiles * DELTA_TILE;
        delta__tile(a, item / j->parts, item % j->parts / tiles, col, u32_min(DELTA_TILE, a->value_dim - col),
                    cpu_thread_scratch(j->b, worker));
    }
}

void SET(delta)(struct backend *b, const struct be_delta_args *a)
{
    uint32_t longest = states__longest(a->states);
    struct vec_delta job = {a, b, (longest + DELTA_ROWS - 1) / DELTA_ROWS};
    size_t row = 2 * (size_t)a->key_heads * a->key_dim;
    cpu_pool_run(b->pool, a->states->seq_count * job.parts, vec__grain(u32_min(longest, DELTA_ROWS) * row),
                 delta__prepare, &job);
    job.parts = a->value_heads * ((a->value_dim + DELTA_TILE - 1) / DELTA_TILE);
    cpu_pool_run(b->pool, a->states->seq_count * job.parts,
                 vec__grain((size_t)longest * a->key_dim * DELTA_TILE), delta__range, &job);
}

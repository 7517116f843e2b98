/* See staged_ops.h. A call opens a stage, lists its arrays (twice the same address is one array), gets device
 * addresses for them, and closes the stage: wait, download what was written, free. Extents come from the
 * specification in backend.h, never from what a kernel reads. */
#include "tests/lib/staged_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_MAX = 24 };
enum stage_mode { STAGE_IN = 1, STAGE_OUT = 2, STAGE_INOUT = 3 };

struct staged {
    const struct be_ops *ops;
    struct backend *b;
    size_t act_bytes;
    bool direct; /* the CPU's: pointers are passed unchanged */
};
struct staged_weight {
    struct be_weight *w;
    const struct be_ops *ops;
    uint32_t k, n;
};
struct stage {
    struct staged *s;
    uint32_t count;
    struct {
        void *host, *dev;
        size_t bytes;
        enum stage_mode mode;
    } at[STAGE_MAX];
};
struct host_block {
    struct host_block *next;
    char *p;
    size_t bytes;
};

static const struct be_ops *device;
static struct host_block *host_blocks;

static void die(const char *what)
{
    fprintf(stderr, "staged_ops: %s\n", what);
    abort();
}
static struct staged *of(struct backend *b)
{
    return (struct staged *)b;
}
static struct staged_weight *weight_of(const struct be_weight *w)
{
    return (struct staged_weight *)(uintptr_t)w;
}
static uint32_t max_of(const uint32_t *v, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (v[i] > most) most = v[i];
    return most;
}

/* The device's address of a host array. */
static void *stage(struct stage *g, const void *host, size_t bytes, enum stage_mode mode)
{
    struct staged *s = g->s;
    void *p = (void *)(uintptr_t)host;
    if (!host || s->direct) return p;
    for (uint32_t i = 0; i < g->count; i++)
        if (g->at[i].host == host) {
            if (g->at[i].bytes < bytes) die("one array with two sizes in a call");
            if (mode & STAGE_IN && !(g->at[i].mode & STAGE_IN))
                s->ops->upload(s->b, g->at[i].dev, host, bytes);
            g->at[i].mode |= mode;
            return g->at[i].dev;
        }
    if (g->count == STAGE_MAX) die("too many arrays in a call");
    void *dev = NULL;
    if (s->ops->alloc(s->b, bytes ? bytes : 1, &dev) != BE_OK) die("no device memory");
    if (mode & STAGE_IN) {
        if (bytes) s->ops->upload(s->b, dev, host, bytes);
    } else if (bytes) {
        void *nan = malloc(bytes);
        if (!nan) die("no memory");
        memset(nan, 0xff, bytes);
        s->ops->upload(s->b, dev, nan, bytes);
        free(nan);
    }
    g->at[g->count].host = p;
    g->at[g->count].dev = dev;
    g->at[g->count].bytes = bytes;
    g->at[g->count++].mode = mode;
    return dev;
}
static void stage_end(struct stage *g)
{
    struct staged *s = g->s;
    if (s->direct) return;
    if (s->ops->sync(s->b) != BE_OK) die(s->ops->last_error(s->b));
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->at[i].mode & STAGE_OUT && g->at[i].bytes)
            s->ops->download(s->b, g->at[i].host, g->at[i].dev, g->at[i].bytes);
        s->ops->free(s->b, g->at[i].dev);
    }
}
#define IN(field, bytes)    ((d.field) = stage(&g, a->field, (bytes), STAGE_IN))
#define OUT(field, bytes)   ((d.field) = stage(&g, a->field, (bytes), STAGE_OUT))
#define INOUT(field, bytes) ((d.field) = stage(&g, a->field, (bytes), STAGE_INOUT))

/* ---- opening, memory: allocations are host memory, so that tests may fill and read them */

static enum be_result st_open(const struct be_params *p, struct backend **out)
{
    bool reference = p->kernels && strcmp(p->kernels, "reference") == 0;
    if (p->kernels && !reference && strcmp(p->kernels, "cuda") != 0 && strcmp(p->kernels, "auto") != 0)
        return BE_UNSUPPORTED;
    struct staged *s = calloc(1, sizeof *s);
    if (!s) return BE_NOMEM;
    s->ops = reference ? be_cpu_ops() : device;
    s->direct = reference;
    s->act_bytes = be_dtype_bytes(p->act);
    const char *hopper = getenv("KVASIR_CUDA_HOPPER"), *gemm = getenv("KVASIR_GEMM");
    struct be_params params = *p;
    params.own_gemm = gemm && strcmp(gemm, "own") == 0;
    params.hopper = hopper && strcmp(hopper, "1") == 0;
    enum be_result r = s->ops->open(&params, &s->b);
    if (r != BE_OK) {
        free(s);
        return r;
    }
    *out = (struct backend *)s;
    return BE_OK;
}
static void st_close(struct backend *b)
{
    if (!b) return;
    of(b)->ops->close(of(b)->b);
    free(b);
}
static void st_caps(const struct backend *b, struct be_caps *out)
{
    const struct staged *s = (const struct staged *)b;
    s->ops->caps(s->b, out);
}
static const char *st_last_error(const struct backend *b)
{
    const struct staged *s = (const struct staged *)b;
    return s->ops->last_error(s->b);
}
static enum be_result st_alloc(struct backend *b, size_t bytes, void **out)
{
    if (of(b)->direct) return of(b)->ops->alloc(of(b)->b, bytes, out);
    void *probe = NULL; /* what the device says about the size, and that its memory starts as zeros */
    enum be_result r = of(b)->ops->alloc(of(b)->b, bytes, &probe);
    if (r != BE_OK) return r;
    struct host_block *h = malloc(sizeof *h);
    char *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!h || !p) die("no memory");
    of(b)->ops->download(of(b)->b, p, probe, bytes);
    of(b)->ops->free(of(b)->b, probe);
    *h = (struct host_block){host_blocks, p, bytes};
    host_blocks = h;
    *out = p;
    return BE_OK;
}
static void st_free(struct backend *b, void *p)
{
    if (of(b)->direct) {
        of(b)->ops->free(of(b)->b, p);
        return;
    }
    for (struct host_block **at = &host_blocks; *at; at = &(*at)->next)
        if ((*at)->p == p) {
            struct host_block *h = *at;
            *at = h->next;
            free(h->p);
            free(h);
            return;
        }
    if (p) die("free of memory that alloc didn't give");
}
static void st_upload(struct backend *b, void *dst, const void *host, size_t bytes)
{
    (void)b;
    memcpy(dst, host, bytes);
}
static void st_download(struct backend *b, void *host, const void *src, size_t bytes)
{
    (void)b;
    memcpy(host, src, bytes);
}
static void st_copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct stage g = {.s = of(b)};
    const void *s = stage(&g, src, bytes, STAGE_IN);
    void *d = stage(&g, dst, bytes, STAGE_OUT);
    g.s->ops->copy(g.s->b, d, s, bytes);
    stage_end(&g);
}
static void st_kv_clear(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first)
{
    struct stage g = {.s = of(b)};
    size_t at = (size_t)block_offset * BE_KV_GRAIN + kv->layer_offset,
           layer = g.s->ops->kv_layer_bytes(g.s->b, kv->type, kv->kv_heads, kv->head_dim);
    struct be_kv d = {stage(&g, (char *)kv->arena + at, layer, STAGE_IN | STAGE_OUT), 0, kv->kv_heads,
                      kv->head_dim, kv->type};
    g.s->ops->kv_clear(g.s->b, &d, 0, first);
    stage_end(&g);
}
static void st_zero(struct backend *b, void *dst, size_t bytes)
{
    struct stage g = {.s = of(b)};
    g.s->ops->zero(g.s->b, stage(&g, dst, bytes, STAGE_OUT), bytes);
    stage_end(&g);
}
static enum be_result st_sync(struct backend *b)
{
    return of(b)->ops->sync(of(b)->b);
}

/* ---- weights */

static enum be_result st_weight_pack(struct backend *b, const struct be_weight_desc *d,
                                     struct be_weight **out)
{
    struct staged_weight *w = calloc(1, sizeof *w);
    if (!w) return BE_NOMEM;
    enum be_result r = of(b)->ops->weight_pack(of(b)->b, d, &w->w);
    if (r != BE_OK) {
        free(w);
        return r;
    }
    w->ops = of(b)->ops;
    w->k = d->k;
    for (uint32_t i = 0; i < d->src_count; i++) w->n += d->src[i].n;
    *out = (struct be_weight *)w;
    return BE_OK;
}
static void st_weight_free(struct backend *b, struct be_weight *w)
{
    if (!w) return;
    of(b)->ops->weight_free(of(b)->b, weight_of(w)->w);
    free(w);
}
static size_t st_weight_bytes(const struct be_weight *w)
{
    return weight_of(w)->ops->weight_bytes(weight_of(w)->w);
}
static size_t st_kv_layer_bytes(const struct backend *b, enum be_kv_type type, uint32_t kv_heads,
                                uint32_t head_dim)
{
    const struct staged *s = (const struct staged *)b;
    return s->ops->kv_layer_bytes(s->b, type, kv_heads, head_dim);
}

/* ---- operations */

static void st_linear(struct backend *b, const struct be_linear_args *a)
{
    struct be_linear_args d = *a;
    struct stage g = {.s = of(b)};
    const struct staged_weight *w = weight_of(a->w);
    size_t e = g.s->act_bytes, n = a->epilogue >= BE_EPI_GLU_GELU_TANH ? w->n / 2 : w->n;
    d.w = w->w;
    IN(x, a->t * be_ld(w->k) * e);
    if (a->add) IN(add, a->t * w->n * 4);
    if (a->epilogue == BE_EPI_ADD_F32) {
        INOUT(out, a->t * n * 4);
    } else {
        OUT(out, a->epilogue == BE_EPI_F32 ? a->t * n * 4 : a->t * be_ld(n) * e);
    }
    g.s->ops->linear(g.s->b, &d);
    stage_end(&g);
}
static void st_embed(struct backend *b, const struct be_embed_args *a)
{
    struct be_embed_args d = *a;
    struct stage g = {.s = of(b)};
    d.w = weight_of(a->w)->w;
    IN(ids, (size_t)a->t * 4);
    INOUT(out, (size_t)a->t * weight_of(a->w)->k * 4);
    g.s->ops->embed(g.s->b, &d);
    stage_end(&g);
}
static void st_norm(struct backend *b, const struct be_norm_args *a)
{
    struct be_norm_args d = *a;
    struct stage g = {.s = of(b)};
    size_t cells = (size_t)a->t * a->c, strided = a->stride && a->t ? (a->t - 1) * a->stride + a->c : cells;
    IN(x, strided * 4);
    IN(post_weight, (size_t)a->c * 4);
    INOUT(residual, cells * 4);
    IN(residual_scale, 4);
    IN(weight, (size_t)a->c * 4);
    IN(bias, (size_t)a->c * 4);
    size_t out = a->out_dense ? strided * 4 : a->t * be_ld(a->c) * be_dtype_bytes(a->out_dtype);
    if (a->stride) INOUT(out, out); /* what lies between the rows stays */
    else OUT(out, out);
    g.s->ops->norm(g.s->b, &d);
    stage_end(&g);
}
static void st_rope(struct backend *b, const struct be_rope_args *a)
{
    struct be_rope_args d = *a;
    struct stage g = {.s = of(b)};
    size_t out = (size_t)a->t * a->half * 4;
    IN(pos, (size_t)a->axes * a->t * 4);
    IN(inv_freq, (size_t)a->half * 4);
    IN(axis, a->half);
    OUT(cos, out);
    OUT(sin, out);
    g.s->ops->rope(g.s->b, &d);
    stage_end(&g);
}
/* The rows' arrays, and the part of the arena that their blocks reach (all of it where alloc gave it).
 * `written`: keys at pos only. */
static void stage_rows(struct stage *g, const struct be_rows *a, struct be_rows *d, const struct be_kv *kv,
                       struct be_kv *dkv, bool written)
{
    size_t table = 0, arena = 0,
           layer = g->s->ops->kv_layer_bytes(g->s->b, kv->type, kv->kv_heads, kv->head_dim);
    for (uint32_t s = 0; s < a->seq_count; s++) {
        uint32_t first = a->seq_row[s], count = a->seq_row[s + 1] - first,
                 most = max_of(a->pos + first, count);
        if (!count) continue;
        if (!written && max_of(a->hi + first, count) > most) most = max_of(a->hi + first, count);
        for (size_t i = a->seq_table[s]; i <= a->seq_table[s] + most / BE_BLOCK_TOKENS; i++) {
            if (i >= table) table = i + 1;
            if (a->tables[i] == BE_NO_BLOCK) continue;
            size_t end = (size_t)a->tables[i] * BE_KV_GRAIN + kv->layer_offset + layer;
            if (end > arena) arena = end;
        }
    }
    for (const struct host_block *h = host_blocks; h; h = h->next)
        if (h->p == kv->arena && h->bytes > arena) arena = h->bytes;
    *d = *a;
    *dkv = *kv;
    d->seq_row = stage(g, a->seq_row, (a->seq_count + 1u) * 4, STAGE_IN);
    d->seq_table = stage(g, a->seq_table, (size_t)a->seq_count * 4, STAGE_IN);
    d->tables = stage(g, a->tables, table * 4, STAGE_IN);
    d->pos = stage(g, a->pos, (size_t)a->t * 4, STAGE_IN);
    d->lo = stage(g, a->lo, (size_t)a->t * 4, STAGE_IN);
    d->hi = stage(g, a->hi, (size_t)a->t * 4, STAGE_IN);
    dkv->arena = stage(g, kv->arena, arena, written ? STAGE_INOUT : STAGE_IN);
}
static void st_qkv(struct backend *b, const struct be_qkv_args *a)
{
    struct be_qkv_args d = *a;
    struct be_rows rows;
    struct stage g = {.s = of(b)};
    size_t t = a->rows->t, dim = a->kv.head_dim;
    stage_rows(&g, a->rows, &rows, &a->kv, &d.kv, true);
    d.rows = &rows;
    IN(qkv, t * (a->heads + (2u - (uint32_t)a->parts) * a->kv.kv_heads) * dim * 4);
    IN(q_norm, dim * 4);
    IN(k_norm, dim * 4);
    IN(k_shift, (size_t)a->kv.kv_heads * dim * 4);
    IN(cos, t * (dim / 2) * 4);
    IN(sin, t * (dim / 2) * 4);
    OUT(q, t * a->heads * dim * g.s->act_bytes);
    g.s->ops->qkv(g.s->b, &d);
    stage_end(&g);
}
static void st_attn(struct backend *b, const struct be_attn_args *a)
{
    struct be_attn_args d = *a;
    struct be_rows rows;
    struct stage g = {.s = of(b)};
    size_t t = a->rows->t, width = (size_t)a->heads * a->kv.head_dim;
    stage_rows(&g, a->rows, &rows, &a->kv, &d.kv, false);
    d.rows = &rows;
    IN(q, t * width * g.s->act_bytes);
    OUT(out, t * be_ld(width) * g.s->act_bytes);
    g.s->ops->attn(g.s->b, &d);
    stage_end(&g);
}
static void st_patchify(struct backend *b, const struct be_patchify_args *a)
{
    struct be_patchify_args d = *a;
    struct stage g = {.s = of(b)};
    size_t depth = a->depth ? a->depth : 1, cells = (size_t)(a->height / a->patch) * (a->width / a->patch);
    IN(rgb, (size_t)a->width * a->height * 3 + (depth - 1) * a->frame_stride);
    IN(lut, 768 * 4);
    size_t values = 3 * depth * a->patch * a->patch;
    OUT(out, a->dense ? cells * values * 4 : cells * be_ld(values) * g.s->act_bytes);
    IN(order, cells * 4);
    g.s->ops->patchify(g.s->b, &d);
    stage_end(&g);
}
static void st_pool(struct backend *b, const struct be_pool_args *a)
{
    struct be_pool_args d = *a;
    struct stage g = {.s = of(b)};
    IN(x, (size_t)a->grid_h * a->grid_w * a->c * 4);
    IN(bias, (size_t)a->c * 4);
    IN(scale, (size_t)a->c * 4);
    OUT(out, (size_t)(a->grid_h / a->kernel) * (a->grid_w / a->kernel) * a->c * 4);
    g.s->ops->pool(g.s->b, &d);
    stage_end(&g);
}
static void st_gather(struct backend *b, const struct be_gather_args *a)
{
    struct be_gather_args d = *a;
    struct stage g = {.s = of(b)};
    if (!a->count) return;
    IN(src, (max_of(a->rows, a->count) + (size_t)1) * a->row_bytes);
    IN(rows, (size_t)a->count * 4);
    OUT(dst, a->count * a->row_bytes);
    g.s->ops->gather(g.s->b, &d);
    stage_end(&g);
}
static void st_interpolate(struct backend *b, const struct be_interpolate_args *a)
{
    struct be_interpolate_args d = *a;
    struct stage g = {.s = of(b)};
    if (!a->t) return;
    IN(table, (max_of(a->rows, (size_t)a->taps * a->t) + (size_t)1) * a->c * 4);
    IN(rows, (size_t)a->t * a->taps * 4);
    IN(weights, (size_t)a->t * a->taps * 4);
    OUT(out, (size_t)a->t * a->c * 4);
    g.s->ops->interpolate(g.s->b, &d);
    stage_end(&g);
}
static void st_pack(struct backend *b, const struct be_pack_args *a)
{
    struct be_pack_args d = *a;
    struct stage g = {.s = of(b)};
    IN(x, (size_t)a->t * a->c * 4);
    OUT(out, a->t * be_ld(a->c) * g.s->act_bytes);
    g.s->ops->pack(g.s->b, &d);
    stage_end(&g);
}
static void st_gate(struct backend *b, const struct be_gate_args *a)
{
    struct be_gate_args d = *a;
    struct stage g = {.s = of(b)};
    size_t c = (size_t)a->heads * a->d, rows = a->t - 1u;
    IN(gate, (rows * a->gate_stride + (a->gate_row ? 1 : (a->heads - 1u) * a->gate_head + a->d)) * 4);
    IN(norm, a->d * sizeof(float));
    if (a->x == a->out) {
        INOUT(out, a->t * be_ld(c) * g.s->act_bytes);
        d.x = d.out;
    } else {
        IN(x, (rows * a->x_stride + c) * be_dtype_bytes(a->x_dtype));
        OUT(out, a->t * be_ld(c) * g.s->act_bytes);
    }
    g.s->ops->gate(g.s->b, &d);
    stage_end(&g);
}

/* Stages a's states, whose layer takes `bytes` in a block; returns how many rows the arrays reach. */
static size_t stage_states(struct stage *g, const struct be_states *a, size_t offset, size_t bytes,
                           struct be_states *out)
{
    size_t rows = 0, blocks = 0, n = a->seq_count * sizeof *a->first;
    *out = *a;
    for (uint32_t i = 0; i < a->seq_count; i++) {
        const uint32_t at[] = {a->from[i], a->to[i]};
        if (a->first[i] + a->count[i] > rows) rows = a->first[i] + a->count[i];
        for (int k = 0; k < 2; k++)
            if (at[k] != BE_NO_BLOCK && at[k] >= blocks) blocks = at[k] + (size_t)1;
    }
    if (blocks) out->arena = stage(g, a->arena, (blocks - 1) * BE_KV_GRAIN + offset + bytes, STAGE_INOUT);
    out->first = stage(g, a->first, n, STAGE_IN);
    out->count = stage(g, a->count, n, STAGE_IN);
    out->kept = stage(g, a->kept, n, STAGE_IN);
    out->from = stage(g, a->from, n, STAGE_IN);
    out->to = stage(g, a->to, n, STAGE_IN);
    return rows;
}
static void st_conv(struct backend *b, const struct be_conv_args *a)
{
    struct be_conv_args d = *a;
    struct be_states states;
    struct stage g = {.s = of(b)};
    size_t rows = stage_states(&g, a->states, a->layer_offset, be_conv_bytes(a->c, a->k), &states);
    d.states = &states;
    IN(weight, (size_t)a->k * a->c * 4);
    INOUT(x, ((rows - 1) * a->stride + a->c) * 4);
    if (a->times) IN(times, ((rows - 1) * a->stride + a->c) * 4);
    g.s->ops->conv(g.s->b, &d);
    stage_end(&g);
}
static void st_delta(struct backend *b, const struct be_delta_args *a)
{
    struct be_delta_args d = *a;
    struct be_states states;
    struct stage g = {.s = of(b)};
    size_t columns = 2 * (size_t)a->key_heads * a->key_dim + (size_t)a->value_heads * a->value_dim,
           rows = stage_states(&g, a->states, a->layer_offset,
                               be_delta_bytes(a->value_heads, a->key_dim, a->value_dim), &states);
    d.states = &states;
    IN(decay, a->value_heads * sizeof(float));
    IN(dt_bias, a->value_heads * sizeof(float));
    INOUT(qkv, ((rows - 1) * a->stride + columns) * 4);
    INOUT(gates, rows * 2 * a->value_heads * 4);
    g.s->ops->delta(g.s->b, &d);
    stage_end(&g);
}
static void st_clamp(struct backend *b, const struct be_clamp_args *a)
{
    struct be_clamp_args d = *a;
    struct stage g = {.s = of(b)};
    size_t e = be_dtype_bytes(a->dtype), last = a->pad ? be_ld(a->c) : a->c;
    IN(bounds, 8);
    if (a->x == a->out) {
        INOUT(out, ((a->t - 1u) * a->out_stride + last) * e);
        d.x = d.out;
    } else {
        IN(x, ((a->t - 1u) * a->x_stride + a->c) * e);
        INOUT(out, ((a->t - 1u) * a->out_stride + last) * e);
    }
    g.s->ops->clamp(g.s->b, &d);
    stage_end(&g);
}
static void st_route(struct backend *b, const struct be_route_args *a)
{
    struct be_route_args d = *a;
    struct stage g = {.s = of(b)};
    IN(logits, (size_t)a->t * a->experts * 4);
    IN(scale, (size_t)a->experts * 4);
    OUT(ids, (size_t)a->t * a->k * 4);
    OUT(weights, (size_t)a->t * a->k * 4);
    g.s->ops->route(g.s->b, &d);
    stage_end(&g);
}
static size_t st_experts_scratch(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                                 uint32_t experts)
{
    const struct staged *s = (const struct staged *)b;
    return s->ops->experts_scratch(s->b, t, k, c, ff, experts);
}
static void st_experts(struct backend *b, const struct be_experts_args *a)
{
    struct be_experts_args d = *a;
    struct stage g = {.s = of(b)};
    struct be_weight **w = malloc(2 * sizeof *w * a->experts);
    if (!w) die("no memory");
    for (uint32_t i = 0; i < a->experts; i++) {
        w[i] = weight_of(a->glu[i])->w;
        w[a->experts + i] = weight_of(a->down[i])->w;
    }
    d.glu = w;
    d.down = w + a->experts;
    IN(x, a->t * be_ld(a->c) * g.s->act_bytes);
    IN(ids, (size_t)a->t * a->k * 4);
    IN(weights, (size_t)a->t * a->k * 4);
    OUT(scratch, g.s->ops->experts_scratch(g.s->b, a->t, a->k, a->c, a->ff, a->experts));
    OUT(out, (size_t)a->t * a->c * 4);
    g.s->ops->experts(g.s->b, &d);
    stage_end(&g);
    free(w);
}
static void st_logit_stats(struct backend *b, const struct be_logits_args *a)
{
    struct be_logits_args d = *a;
    struct stage g = {.s = of(b)};
    INOUT(logits, (size_t)a->r * a->v * 4);
    IN(targets, (size_t)a->r * 4);
    IN(draws, a->r * sizeof *a->draws);
    INOUT(stats, a->r * sizeof *a->stats); /* fields without a target are unchanged */
    g.s->ops->logit_stats(g.s->b, &d);
    stage_end(&g);
}
static void st_topk(struct backend *b, const struct be_topk_args *a)
{
    struct be_topk_args d = *a;
    struct stage g = {.s = of(b)};
    IN(logits, (size_t)a->r * a->v * 4);
    OUT(ids, (size_t)a->r * a->k * 4);
    OUT(values, (size_t)a->r * a->k * 4);
    g.s->ops->topk(g.s->b, &d);
    stage_end(&g);
}
static enum be_result st_ceiling(struct backend *b, struct be_ceiling *out)
{
    return of(b)->ops->ceiling(of(b)->b, out);
}

const struct be_ops *staged_ops(const struct be_ops *ops)
{
    static const struct be_ops table = {
        .open = st_open,
        .close = st_close,
        .caps = st_caps,
        .last_error = st_last_error,
        .alloc = st_alloc,
        .free = st_free,
        .upload = st_upload,
        .download = st_download,
        .copy = st_copy,
        .zero = st_zero,
        .sync = st_sync,
        .weight_pack = st_weight_pack,
        .weight_free = st_weight_free,
        .weight_bytes = st_weight_bytes,
        .kv_layer_bytes = st_kv_layer_bytes,
        .kv_clear = st_kv_clear,
        .linear = st_linear,
        .embed = st_embed,
        .norm = st_norm,
        .rope = st_rope,
        .qkv = st_qkv,
        .attn = st_attn,
        .patchify = st_patchify,
        .pool = st_pool,
        .gather = st_gather,
        .interpolate = st_interpolate,
        .pack = st_pack,
        .gate = st_gate,
        .conv = st_conv,
        .delta = st_delta,
        .clamp = st_clamp,
        .route = st_route,
        .experts_scratch = st_experts_scratch,
        .experts = st_experts,
        .logit_stats = st_logit_stats,
        .topk = st_topk,
        .ceiling = st_ceiling,
    };
    device = ops;
    return &table;
}

/* The vision tower: runs the description's tower over one picture, a few layers at a time. Only a queue of
 * backend operations. Attention uses the same paged kernel as the decoder, over one layer's worth of keys and
 * values in blocks 0, 1, 2...; who sees whom is an interval of rows per row (vision_geometry.c). */
#include "engine/internal.h"

#include "config/base/assert.h"

#include <math.h>

static void linear(struct engine *e, const struct be_weight *w, const void *x, uint32_t t,
                   enum be_epilogue epi, void *out)
{
    e->ops->linear(e->be, &(struct be_linear_args){.w = w, .x = x, .t = t, .epilogue = epi, .out = out});
    atomic_fetch_add_explicit(&e->progress, 1, memory_order_relaxed);
}

static enum be_norm_kind norm_kind(const struct desc_vision *d)
{
    return d->rms ? BE_NORM_RMS : BE_NORM_LAYER;
}

/* N(x) of t rows of c floats; dense: f32 without padding. */
static void norm(struct engine *e, float *x, uint32_t t, uint32_t c, const float *weight, const float *bias,
                 void *out, bool dense)
{
    e->ops->norm(e->be, &(struct be_norm_args){.kind = norm_kind(&e->net.desc.vision),
                                               .t = t,
                                               .c = c,
                                               .eps = e->net.desc.vision.eps,
                                               .residual = x,
                                               .weight = weight,
                                               .bias = bias,
                                               .out = out,
                                               .out_dtype = dense ? BE_F32 : e->plan.act,
                                               .out_dense = dense});
}

/* resid = position of every patch. False: the tower has none. */
static bool embed_positions(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t frame = f->grid_h * f->grid_w;
    size_t stride = (size_t)frame * d->hidden;
    if (!d->position) return false;
    for (uint32_t i = 0; i < f->frames; i++) {
        if (!d->position_side)
            e->ops->copy(e->be, f->resid + i * stride, e->net.w.vision.position, stride * sizeof(float));
        else if (i == 0)
            e->ops->interpolate(e->be, &(struct be_interpolate_args){.table = e->net.w.vision.position,
                                                                     .rows = f->table_rows,
                                                                     .weights = f->table_weights,
                                                                     .t = frame,
                                                                     .c = d->hidden,
                                                                     .out = f->resid});
        else e->ops->copy(e->be, f->resid + i * stride, f->resid, stride * sizeof(float));
    }
    return true;
}

/* resid = patches W (+ b) (+ position) */
static void embed_patches(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct image_u8 *p = &f->pixels;
    uint32_t shown = p->frames ? d->depth : 1; /* frames that make one row of patches in time */
    size_t bytes = (size_t)p->width * p->height * 3;
    size_t stride = (size_t)f->grid_h * f->grid_w * be_ld(3ull * d->depth * d->patch * d->patch) *
                    be_dtype_bytes(e->plan.act);
    for (uint32_t i = 0; i < f->frames; i++) {
        e->ops->upload(e->be, f->rgb, p->rgb + i * shown * bytes, shown * bytes);
        e->ops->patchify(e->be,
                         &(struct be_patchify_args){.rgb = f->rgb,
                                                    .width = p->width,
                                                    .height = p->height,
                                                    .patch = d->patch,
                                                    .lut = e->v.lut,
                                                    .out = (char *)f->patch_rows + i * stride,
                                                    .depth = d->depth,
                                                    .frame_stride = shown > 1 ? bytes : 0,
                                                    .order = d->end == VISION_MERGE ? f->order : NULL});
    }
    image_u8_free(&f->pixels);
    bool add = embed_positions(e, f);
    linear(e, e->net.w.vision.patch, f->patch_rows, f->patches, add ? BE_EPI_ADD_F32 : BE_EPI_F32, f->resid);
}

static enum be_epilogue mlp_epilogue(enum desc_vision_mlp m)
{
    switch (m) {
    case VISION_GELU_TANH: return BE_EPI_GELU_TANH;
    case VISION_QUICK_GELU: return BE_EPI_QUICK_GELU;
    case VISION_GLU_SILU: return BE_EPI_GLU_SILU;
    }
    UNREACHABLE();
    return BE_EPI_GELU_TANH;
}

/* Rows [row, row + n) of all rows of a picture; n is f->piece, or what is left of it at the end. */
static struct be_rows some_rows(const struct engine_features *f, const struct be_rows *all, uint32_t row,
                                uint32_t n)
{
    struct be_rows r = *all;
    r.t = n;
    r.seq_row += n == f->piece ? 0 : 2;
    r.pos += row;
    r.lo += row;
    r.hi += row;
    return r;
}

static bool sees_frame(const struct desc_vision *d, uint32_t layer)
{
    return !d->window || (d->full_layers[layer / 8 % sizeof d->full_layers] >> layer % 8 & 1);
}

/* One piece of a layer: first of all rows' queries, keys and values, then of the rest. What it costs, in the
 * unit of VISION_SLICE. */
static uint64_t run_piece(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_layer_weights *w = &e->net.w.vision.layers[f->layers_done];
    struct vision_scratch *v = &e->v;
    uint32_t head_dim = d->hidden / d->heads, row = f->row, left = f->patches - row,
             t = left < f->piece ? left : f->piece;
    bool whole = sees_frame(d, f->layers_done);
    struct be_kv kv = {f->kv, 0, d->heads, head_dim};
    struct be_rows rows = some_rows(f, whole ? &f->whole : &f->windowed, row, t);
    float *resid = f->resid + (size_t)row * d->hidden;
    void *q = (char *)f->q + (size_t)row * d->hidden * be_dtype_bytes(e->plan.act);
    uint64_t cost;
    if (!f->attending) {
        size_t angles = (size_t)row * (head_dim / 2);
        norm(e, resid, t, d->hidden, w->norm1, w->norm1_bias, v->h, false);
        linear(e, w->qkv, v->h, t, BE_EPI_F32, v->qkv);
        e->ops->qkv(e->be, &(struct be_qkv_args){.rows = &rows,
                                                 .heads = d->heads,
                                                 .kv = kv,
                                                 .qkv = v->qkv,
                                                 .cos = f->cos ? f->cos + angles : NULL,
                                                 .sin = f->sin ? f->sin + angles : NULL,
                                                 .q = q});
        cost = (uint64_t)t * (VISION_ROW_KEYS / 4);
    } else {
        e->ops->attn(e->be, &(struct be_attn_args){.rows = &rows,
                                                   .heads = d->heads,
                                                   .kv = kv,
                                                   .q = q,
                                                   .scale = (float)(1.0 / sqrt((double)head_dim)),
                                                   .out = v->attn});
        linear(e, w->o, v->attn, t, BE_EPI_ADD_F32, resid);
        norm(e, resid, t, d->hidden, w->norm2, w->norm2_bias, v->h, false);
        linear(e, w->fc1, v->h, t, mlp_epilogue(d->mlp), v->mlp);
        linear(e, w->fc2, v->mlp, t, BE_EPI_ADD_F32, resid);
        uint64_t side = (uint64_t)d->window * d->merge,
                 keys = whole ? (uint64_t)f->grid_h * f->grid_w : side * side;
        cost = (uint64_t)t * (VISION_ROW_KEYS - VISION_ROW_KEYS / 4 + keys);
    }
    f->row += t;
    if (f->row == f->patches) {
        f->row = 0;
        if (f->attending) f->layers_done++;
        f->attending = !f->attending;
    }
    return cost;
}

/* Norm, then pool, then norm, then projection: in this order. */
static void finish_pool(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    norm(e, f->resid, f->patches, d->hidden, e->net.w.vision.post_norm, e->net.w.vision.post_norm_bias,
         f->dense, true);
    e->ops->pool(e->be,
                 &(struct be_pool_args){f->dense, f->grid_h, f->grid_w, d->pool, d->hidden, f->pooled});
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = f->tokens,
                                               .c = d->hidden,
                                               .eps = d->eps,
                                               .x = f->pooled,
                                               .weight = e->net.w.vision.soft_norm,
                                               .out = v->h,
                                               .out_dtype = e->plan.act});
    linear(e, e->net.w.vision.projection, v->h, f->tokens, BE_EPI_F32, f->rows);
}

/* Norm, then projection, as many rows at a time as there is scratch for. */
static void finish_linear(struct engine *e, struct engine_features *f)
{
    uint32_t c = e->net.desc.vision.hidden;
    for (uint32_t first = 0; first < f->tokens; first += e->v.rows) {
        uint32_t left = f->tokens - first, t = left < e->v.rows ? left : e->v.rows;
        norm(e, f->resid + (size_t)first * c, t, c, e->net.w.vision.post_norm, e->net.w.vision.post_norm_bias,
             e->v.h, false);
        linear(e, e->net.w.vision.projection, e->v.h, t, BE_EPI_F32,
               f->rows + (size_t)first * e->net.desc.hidden);
    }
}

/* Part 0: the norm is over each patch; part 1 + k, tap k: over the concatenated patches of a token. */
static void merge(struct engine *e, struct engine_features *f, uint32_t part)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_merger_weights *w = part ? &e->net.w.vision.taps[part - 1] : &e->net.w.vision.merger;
    struct vision_scratch *v = &e->v;
    uint32_t cell = d->merge * d->merge, wide = d->hidden * cell, c = e->net.desc.hidden,
             step = v->rows / cell;
    float *out = f->rows + (size_t)part * f->tokens * c, *to = f->token_row ? f->pooled : out;
    for (uint32_t first = 0; first < f->tokens; first += step) {
        uint32_t left = f->tokens - first, t = left < step ? left : step;
        float *resid = f->resid + (size_t)first * wide;
        if (part) {
            norm(e, resid, t, wide, w->norm, w->norm_bias, v->h, false);
        } else {
            norm(e, resid, t * cell, d->hidden, w->norm, w->norm_bias, v->dense, true);
            e->ops->pack(e->be, &(struct be_pack_args){.x = v->dense, .t = t, .c = wide, .out = v->h});
        }
        linear(e, w->fc1, v->h, t, BE_EPI_GELU_ERF, v->attn);
        linear(e, w->fc2, v->attn, t, BE_EPI_F32, to + (size_t)first * c);
    }
    if (f->token_row)
        e->ops->gather(e->be,
                       &(struct be_gather_args){f->pooled, f->token_row, f->tokens, c * sizeof(float), out});
}

void vision_run(struct engine *e, struct engine_features *f, uint32_t layers)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint64_t spent = 0, most = layers * VISION_SLICE;
    uint32_t last = layers && layers < d->layers - f->layers_done ? f->layers_done + layers : d->layers;
    ASSERT(!f->done);
    if (!f->embedded) embed_patches(e, f);
    f->embedded = true;
    while (f->layers_done < last && (!layers || spent < most)) {
        spent += run_piece(e, f);
        if (f->row || f->attending || f->taps_done == d->tap_count ||
            d->taps[f->taps_done] + 1 != f->layers_done)
            continue;
        merge(e, f, 1 + f->taps_done++);
    }
    if (f->layers_done < d->layers) return;
    switch (d->end) {
    case VISION_POOL: finish_pool(e, f); break;
    case VISION_LINEAR: finish_linear(e, f); break;
    case VISION_MERGE: merge(e, f, 0); break;
    }
    f->done = true;
}

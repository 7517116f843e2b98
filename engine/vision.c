/* The vision tower: runs the description's tower over one image, a few layers at a time. Only queues backend
 * operations. Attention uses the same paged kernel as the decoder, over one layer's worth of keys and values
 * in blocks 0, 1, 2...; visibility is an interval of rows per row (vision_geometry.c). */
#include "engine/internal.h"

#include "config/base/assert.h"

#include <math.h>

static enum be_norm_kind norm_kind(const struct desc_vision *d)
{
    return d->rms ? BE_NORM_RMS : BE_NORM_LAYER;
}

/* N(x) of t rows of c floats; dense: f32 without padding. */
static void norm(struct engine *e, float *x, uint32_t t, uint32_t c, const float *weight, const float *bias,
                 void *out, bool dense)
{
    e->ops->norm(e->be, &(struct be_norm_args){
                            bias ? BE_NORM_LAYER : norm_kind(&e->net.desc.vision), .t = t, .c = c,
                            .eps = e->net.desc.vision.eps, .residual = x, .weight = weight, .bias = bias,
                            .out = out, .out_dtype = dense ? BE_F32 : e->plan.act, .out_dense = dense});
}

/* out = position of every patch. False: the tower has none. */
static bool embed_positions(struct engine *e, struct engine_features *f, float *out)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t frame = f->grid_h * f->grid_w;
    size_t stride = (size_t)frame * d->hidden;
    if (!d->position && !d->position_axis) return false;
    for (uint32_t i = 0; i < f->frames; i++) {
        if (!d->position_side && !d->position_axis)
            e->ops->copy(e->be, out + i * stride, e->net.w.vision.position, stride * sizeof(float));
        else if (i == 0)
            e->ops->interpolate(e->be,
                                &(struct be_interpolate_args){e->net.w.vision.position, .rows = f->table_rows,
                                                              .taps = f->taps, .weights = f->table_weights,
                                                              .t = frame, .c = d->hidden, .out = out});
        else e->ops->copy(e->be, out + i * stride, out, stride * sizeof(float));
    }
    return true;
}

/* VISION_EMBED: resid = LN(LN(LN(patch) W + b) + position). */
static void embed_raw(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_weights *w = &e->net.w.vision;
    struct be_norm_args a = {.kind = BE_NORM_LAYER, .t = f->patches, .eps = 1e-5f};
    a.c = 3 * d->patch * d->patch;
    a.x = f->raw;
    a.weight = w->patch_norm;
    a.bias = w->patch_norm_bias;
    a.out = f->patch_rows;
    a.out_dtype = e->plan.act;
    e->ops->norm(e->be, &a);
    engine__linear(e, w->patch, f->patch_rows, f->patches, BE_EPI_F32, f->resid);
    a.c = d->hidden;
    a.x = f->resid;
    a.weight = w->dense_norm;
    a.bias = w->dense_norm_bias;
    a.out = f->dense; /* where the patches were */
    a.out_dtype = BE_F32;
    a.out_dense = true;
    e->ops->norm(e->be, &a);
    (void)embed_positions(e, f, f->pooled);
    a.x = f->pooled;
    a.residual = f->dense;
    a.weight = w->position_norm;
    a.bias = w->position_norm_bias;
    a.out = f->resid;
    e->ops->norm(e->be, &a);
}

/* resid = patches W (+ b), normed or not (+ position) */
static void embed_patches(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct image_u8 *p = &f->pixels;
    bool raw = d->end == VISION_EMBED;
    char *to = raw ? (char *)f->raw : (char *)f->patch_rows;
    uint32_t shown = p->frames ? d->depth : 1; /* frames that make one row of patches in time */
    size_t bytes = (size_t)p->width * p->height * 3;
    size_t values = 3ull * d->depth * d->patch * d->patch,
           row = raw ? values * sizeof(float) : be_ld(values) * be_dtype_bytes(e->plan.act),
           stride = (size_t)f->grid_h * f->grid_w * row;
    for (uint32_t i = 0; i < f->frames; i++) {
        e->ops->upload(e->be, f->rgb, p->rgb + i * shown * bytes, shown * bytes);
        e->ops->patchify(e->be, &(struct be_patchify_args){
                                    f->rgb, .width = p->width, .height = p->height, .patch = d->patch,
                                    .lut = e->v.lut, .out = to + i * stride, .dense = raw, .depth = d->depth,
                                    .frame_stride = shown > 1 ? bytes : 0,
                                    .order = d->end == VISION_MERGE ? f->order : NULL});
    }
    image_u8_free(&f->pixels);
    if (raw) {
        embed_raw(e, f);
        return;
    }
    const struct vision_weights *w = &e->net.w.vision;
    if (!w->pre_norm) {
        uint32_t t = f->frames * f->grid_h * f->grid_w;
        bool add = embed_positions(e, f, f->resid);
        engine__linear(e, w->patch, f->patch_rows, t, add ? BE_EPI_ADD_F32 : BE_EPI_F32, f->resid);
        if (w->class_row)
            e->ops->copy(e->be, f->resid + (size_t)t * d->hidden, w->class_row, d->hidden * sizeof(float));
        return;
    }
    engine__linear(e, w->patch, f->patch_rows, f->patches, BE_EPI_F32, f->resid);
    norm(e, f->resid, f->patches, d->hidden, w->pre_norm, w->pre_norm_bias, f->resid, true);
    if (embed_positions(e, f, f->dense)) /* where the patches were */
        e->ops->norm(e->be, &(struct be_norm_args){
                                .t = f->patches, .c = d->hidden, .x = f->dense, .residual = f->resid});
}

static enum be_epilogue mlp_epilogue(enum desc_vision_mlp m)
{
    switch (m) {
    case VISION_GELU_TANH: return BE_EPI_GELU_TANH;
    case VISION_GLU_GELU_ERF: /* then times the other product */
    case VISION_GELU_ERF: return BE_EPI_GELU_ERF;
    case VISION_QUICK_GELU: return BE_EPI_QUICK_GELU;
    case VISION_GLU_SILU: return BE_EPI_GLU_SILU;
    case VISION_GLU_GELU: return BE_EPI_GLU_GELU_TANH;
    }
    UNREACHABLE();
    return BE_EPI_GELU_TANH;
}

static void clamp(struct engine *e, enum be_dtype type, const void *x, size_t x_stride, uint32_t t,
                  uint32_t c, const float *bounds, void *out, size_t out_stride)
{
    e->ops->clamp(e->be, &(struct be_clamp_args){type, .x = x, .x_stride = x_stride, .t = t, .c = c,
                                                 .bounds = bounds, .out = out, .out_stride = out_stride,
                                                 .pad = out_stride == be_ld(c)});
}

/* Rows [row, row + n) of all rows of an image; n is f->row_chunk, or what is left of it at the end. */
static struct be_rows some_rows(const struct engine_features *f, const struct be_rows *all, uint32_t row,
                                uint32_t n)
{
    struct be_rows r = *all;
    r.t = n;
    r.seq_row += n == f->row_chunk ? 0 : 2;
    r.pos += row;
    r.lo += row;
    r.hi += row;
    return r;
}

static bool sees_frame(const struct desc_vision *d, uint32_t layer)
{
    return !d->window || (d->full_layers[layer / 8 % sizeof d->full_layers] >> layer % 8 & 1);
}

/* Adds a product of a layer to the stream, through a norm if the tower has one after each branch. */
static void onto_stream(struct engine *e, const struct be_weight *w, const void *x, uint32_t t,
                        const float *const *bounds, const float *post, float *resid)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    if (!post) {
        engine__linear(e, w, x, t, BE_EPI_ADD_F32, resid);
        return;
    }
    engine__linear(e, w, x, t, BE_EPI_F32, v->dense);
    if (d->clip) clamp(e, BE_F32, v->dense, d->hidden, t, d->hidden, bounds[1], v->dense, d->hidden);
    e->ops->norm(e->be, &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = d->hidden, .eps = d->eps,
                                               .x = v->dense, .post_weight = post, .residual = resid});
}

/* out = product `p` of x, both within their bounds; x [t, ld(C)] act, out f32 with a stride. */
static void clipped(struct engine *e, const struct vision_layer_weights *w, enum vision_product p,
                    const struct be_weight *m, uint32_t t, uint32_t n, float *out, size_t stride)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    float *dense = stride == n ? out : v->dense;
    clamp(e, e->plan.act, v->h, be_ld(d->hidden), t, d->hidden, w->bounds[p][0], v->attn, be_ld(d->hidden));
    engine__linear(e, m, v->attn, t, BE_EPI_F32, dense);
    clamp(e, BE_F32, dense, n, t, n, w->bounds[p][1], out, stride);
}

/* v->qkv of v->h. */
static void qkv_products(struct engine *e, const struct vision_layer_weights *w, uint32_t t)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t c = d->hidden;
    if (!d->clip) {
        engine__linear(e, w->qkv, e->v.h, t, BE_EPI_F32, e->v.qkv);
        return;
    }
    clipped(e, w, VISION_Q, w->qkv, t, c, e->v.qkv, 3 * (size_t)c);
    clipped(e, w, VISION_K, w->k, t, c, e->v.qkv + c, 3 * (size_t)c);
    clipped(e, w, VISION_V, w->v, t, c, e->v.qkv + 2 * (size_t)c, 3 * (size_t)c);
}

/* v->mlp of v->h. */
static void mlp_products(struct engine *e, const struct vision_layer_weights *w, uint32_t t)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    if (!d->clip) {
        engine__linear(e, w->fc1, v->h, t, mlp_epilogue(d->mlp), v->mlp);
        if (!w->up) return;
        engine__linear(e, w->up, v->h, t, BE_EPI_F32, v->up);
        e->ops->gate(e->be,
                     &(struct be_gate_args){BE_GATE_NONE, .gate = v->up, .gate_stride = d->ff, .x = v->mlp,
                                            .x_dtype = e->plan.act, .x_stride = be_ld(d->ff), .t = t,
                                            .heads = 1, .d = d->ff, .out = v->mlp});
        return;
    }
    clipped(e, w, VISION_GATE, w->fc1, t, d->ff, v->gate, d->ff);
    clipped(e, w, VISION_UP, w->up, t, d->ff, v->up, d->ff);
    e->ops->gate(e->be,
                 &(struct be_gate_args){BE_GATE_GELU_TANH, .gate = v->gate, .gate_stride = d->ff, .x = v->up,
                                        .x_stride = d->ff, .t = t, .heads = 1, .d = d->ff, .out = v->mlp});
    clamp(e, e->plan.act, v->mlp, be_ld(d->ff), t, d->ff, w->bounds[VISION_DOWN][0], v->mlp, be_ld(d->ff));
}

static void *queries_at(const struct engine *e, const struct engine_features *f, uint32_t row)
{
    return (char *)f->q + (size_t)row * e->net.desc.vision.hidden * be_dtype_bytes(e->plan.act);
}

static struct be_kv keys_of(const struct engine *e, const struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    return (struct be_kv){f->kv, 0, d->heads, d->hidden / d->heads, BE_KV_ACT};
}

/* RMS norm of all heads of v->qkv's queries (part 0) or keys (part 1), in place. */
static void norm_all_heads(struct engine *e, uint32_t part, uint32_t t, const float *weight)
{
    const struct desc_vision *d = &e->net.desc.vision;
    float *x = e->v.qkv + (size_t)part * d->hidden;
    e->ops->norm(e->be, &(struct be_norm_args){.t = t,
                                               .c = d->hidden,
                                               .stride = 3 * (size_t)d->hidden,
                                               .eps = d->qk_norm_all,
                                               .x = x,
                                               .weight = weight,
                                               .out = x,
                                               .out_dense = true});
}

/* Queries, keys and values of t rows. */
static void project_rows(struct engine *e, struct engine_features *f, const struct vision_layer_weights *w,
                         const struct be_rows *rows, uint32_t row, uint32_t t)
{
    const struct desc_vision *d = &e->net.desc.vision;
    size_t angles = (size_t)row * (d->hidden / d->heads / 2);
    norm(e, f->resid + (size_t)row * d->hidden, t, d->hidden, w->norm1, w->norm1_bias, e->v.h, false);
    qkv_products(e, w, t);
    bool all = d->qk_norm_all > 0;
    if (all) norm_all_heads(e, 0, t, w->q_norm);
    if (all) norm_all_heads(e, 1, t, w->k_norm);
    e->ops->qkv(e->be, &(struct be_qkv_args){
                           rows, .v_norm = d->v_norm, .q_norm = all ? NULL : w->q_norm,
                           .k_norm = all ? NULL : w->k_norm, .eps = d->eps, .heads = d->heads,
                           .kv = keys_of(e, f), .qkv = e->v.qkv, .cos = f->cos ? f->cos + angles : NULL,
                           .sin = f->sin ? f->sin + angles : NULL, .q = queries_at(e, f, row)});
}

/* t rows += their attention. */
static void attend_rows(struct engine *e, struct engine_features *f, const struct vision_layer_weights *w,
                        const struct be_rows *rows, uint32_t row, uint32_t t)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    size_t ld = be_ld(d->hidden);
    e->ops->attn(e->be,
                 &(struct be_attn_args){
                     rows, .heads = d->heads, .kv = keys_of(e, f), .q = queries_at(e, f, row),
                     .scale = d->scale > 0 ? d->scale : (float)(1.0 / sqrt((double)(d->hidden / d->heads))),
                     .out = v->attn});
    if (d->clip) clamp(e, e->plan.act, v->attn, ld, t, d->hidden, w->bounds[VISION_O][0], v->attn, ld);
    onto_stream(e, w->o, v->attn, t, w->bounds[VISION_O], w->post_attn, f->resid + (size_t)row * d->hidden);
}

/* Runs of four rows become one. */
static void halve(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_layer_weights *w = &e->net.w.vision.halve;
    struct vision_scratch *v = &e->v;
    uint32_t c = d->hidden, step = f->row_chunk / 4 * 4;
    for (int attend = 0; attend < 2; attend++)
        for (uint32_t row = 0; row < f->patches; row += f->row_chunk) {
            uint32_t left = f->patches - row, t = left < f->row_chunk ? left : f->row_chunk;
            struct be_rows rows = some_rows(f, &f->windowed, row, t);
            (attend ? attend_rows : project_rows)(e, f, w, &rows, row, t);
        }
    for (uint32_t row = 0; row < f->patches; row += step) {
        uint32_t left = f->patches - row, t = (left < step ? left : step) / 4;
        float *x = f->resid + (size_t)row * c;
        e->ops->interpolate(e->be,
                            &(struct be_interpolate_args){x, .rows = f->mean_rows, .weights = f->mean_weights,
                                                          .t = t, .c = c, .taps = 4, .out = v->dense});
        norm(e, x, t, 4 * c, w->norm2, w->norm2_bias, v->h, false);
        engine__linear(e, w->fc1, v->h, t, BE_EPI_GELU_TANH, v->mlp);
        engine__linear(e, w->fc2, v->mlp, t, BE_EPI_ADD_F32, v->dense);
        e->ops->copy(e->be, f->resid + (size_t)row / 4 * c, v->dense, (size_t)t * c * sizeof(float));
    }
    f->patches /= 4;
    if (f->row_chunk > f->patches) f->row_chunk = f->patches;
    f->whole = f->halved;
}

/* One row chunk of a layer: first of all rows' queries, keys and values, then of the rest. What it costs, in
 * the unit of VISION_SLICE. */
static uint64_t encode_row_chunk(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_layer_weights *w = &e->net.w.vision.layers[f->layers_done];
    struct vision_scratch *v = &e->v;
    uint32_t row = f->row, left = f->patches - row, t = left < f->row_chunk ? left : f->row_chunk;
    bool whole = sees_frame(d, f->layers_done);
    struct be_rows rows = some_rows(f, whole ? &f->whole : &f->windowed, row, t);
    float *resid = f->resid + (size_t)row * d->hidden;
    uint64_t cost;
    if (!f->attending) {
        project_rows(e, f, w, &rows, row, t);
        cost = (uint64_t)t * (VISION_ROW_KEYS / 4);
    } else {
        attend_rows(e, f, w, &rows, row, t);
        norm(e, resid, t, d->hidden, w->norm2, w->norm2_bias, v->h, false);
        mlp_products(e, w, t);
        onto_stream(e, w->fc2, v->mlp, t, w->bounds[VISION_DOWN], w->post_mlp, resid);
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

/* f->rows from [tokens, Cv]: norm, then projection. */
static void project(struct engine *e, struct engine_features *f, const float *x)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    for (uint32_t first = 0; first < f->tokens; first += v->rows) {
        uint32_t left = f->tokens - first, t = left < v->rows ? left : v->rows;
        e->ops->norm(e->be, &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = d->hidden, .eps = d->eps,
                                                   .x = x + (size_t)first * d->hidden,
                                                   .weight = e->net.w.vision.soft_norm, .out = v->h,
                                                   .out_dtype = e->plan.act});
        engine__linear(e, e->net.w.vision.projection, v->h, t, BE_EPI_F32,
                       f->rows + (size_t)first * e->net.desc.hidden);
    }
}

/* Norm, then pool, then norm, then projection: in this order. Frames one by one. */
static void finish_pool(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_weights *w = &e->net.w.vision;
    const float *x = f->resid;
    if (w->post_norm) {
        norm(e, f->resid, f->patches, d->hidden, w->post_norm, w->post_norm_bias, f->dense, true);
        x = f->dense;
    }
    for (uint32_t i = 0; i < f->frames; i++)
        e->ops->pool(e->be, &(struct be_pool_args){
                                x + (size_t)i * f->grid_h * f->grid_w * d->hidden, .grid_h = f->grid_h,
                                .grid_w = f->grid_w, .kernel = d->pool, .c = d->hidden,
                                .out = f->pooled + (size_t)i * (f->tokens / f->frames) * d->hidden,
                                .factor = d->pool_factor, .bias = w->std_bias, .scale = w->std_scale});
    project(e, f, f->pooled);
}

/* Norm, then projection, as many rows at a time as there is scratch for. */
static void finish_linear(struct engine *e, struct engine_features *f)
{
    uint32_t c = e->net.desc.vision.hidden;
    for (uint32_t first = 0; first < f->tokens; first += e->v.rows) {
        uint32_t left = f->tokens - first, t = left < e->v.rows ? left : e->v.rows;
        norm(e, f->resid + (size_t)first * c, t, c, e->net.w.vision.post_norm, e->net.w.vision.post_norm_bias,
             e->v.h, false);
        engine__linear(e, e->net.w.vision.projection, e->v.h, t, BE_EPI_F32,
                       f->rows + (size_t)first * e->net.desc.hidden);
    }
}

/* v->h = the concatenated patches of t tokens, through the merger's norms. x: f32 [t * cells, Cv]. */
static void merge_norms(struct engine *e, float *x, uint32_t t, const struct vision_merger_weights *w)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t side = desc_merge_side(d), wide = d->hidden * side * side;
    struct be_norm_args a = {.kind = norm_kind(d),
                             .t = t * side * side,
                             .c = d->hidden,
                             .eps = d->merge_eps > 0 ? d->merge_eps : d->eps,
                             .residual = x,
                             .weight = w->pre_norm,
                             .bias = w->pre_norm_bias,
                             .out = e->v.dense,
                             .out_dtype = BE_F32,
                             .out_dense = true};
    if (w->pre_norm) {
        e->ops->norm(e->be, &a);
        x = e->v.dense;
    }
    if (!w->norm) {
        e->ops->pack(e->be, &(struct be_pack_args){.x = x, .t = t, .c = wide, .out = e->v.h});
        return;
    }
    a.kind = BE_NORM_LAYER;
    a.t = t;
    a.c = wide;
    a.residual = x;
    a.weight = w->norm;
    a.bias = w->norm_bias;
    a.out = e->v.h;
    a.out_dtype = e->plan.act;
    a.out_dense = false;
    e->ops->norm(e->be, &a);
}

/* dense = LayerNorm(dense + places); rows of c. */
static void dense_norm(struct engine *e, float *dense, uint32_t t, uint32_t c, const float *places,
                       const float *weight, const float *bias)
{
    e->ops->norm(e->be, &(struct be_norm_args){BE_NORM_LAYER, .t = t, .c = c, .eps = 1e-5f, .x = places,
                                               .residual = dense, .weight = weight, .bias = bias,
                                               .out = dense, .out_dtype = BE_F32, .out_dense = true});
}

/* out = v->h, tokens from `first` on, through the merger's products. */
static void merge_products(struct engine *e, uint32_t first, uint32_t t,
                           const struct vision_merger_weights *w, float *out)
{
    const struct desc_vision *d = &e->net.desc.vision;
    struct vision_scratch *v = &e->v;
    void *x = v->h, *next = v->attn;
    if (w->conv) {
        engine__linear(e, w->conv, x, t, BE_EPI_ACT, next);
        x = v->attn;
        next = v->h;
    }
    if (w->proj) {
        engine__linear(e, w->proj, x, t, BE_EPI_F32, v->dense);
        dense_norm(e, v->dense, t, d->merge_conv,
                   w->places ? w->places + (size_t)first * d->merge_conv : NULL, w->proj_norm,
                   w->proj_norm_bias);
        e->ops->gate(e->be,
                     &(struct be_gate_args){BE_GATE_CDF, .gate = v->dense, .gate_stride = d->merge_conv,
                                            .x = v->dense, .x_stride = d->merge_conv, .t = t, .heads = 1,
                                            .d = d->merge_conv, .out = next});
        x = next;
        next = w->conv ? v->attn : v->h;
    }
    enum be_epilogue gelu = d->names.merge_up ? BE_EPI_GLU_SILU : BE_EPI_GELU_ERF;
    engine__linear(e, w->fc1, x, t, w->fc2 ? gelu : BE_EPI_F32, w->fc2 ? next : out);
    if (w->fc2) engine__linear(e, w->fc2, next, t, BE_EPI_F32, out);
    if (w->out_norm) dense_norm(e, out, t, e->net.desc.hidden, NULL, w->out_norm, w->out_norm_bias);
}

/* Part 0: the tower's end; part 1 + k: DeepStack feature k, without the norm over each patch. */
static void merge(struct engine *e, struct engine_features *f, uint32_t part)
{
    const struct desc_vision *d = &e->net.desc.vision;
    const struct vision_merger_weights *w =
        part ? &e->net.w.vision.deepstack[part - 1] : &e->net.w.vision.merger;
    uint32_t side = desc_merge_side(d), cell = side * side, c = e->net.desc.hidden, step = e->v.rows / cell;
    const float *each = part ? NULL : e->net.w.vision.post_norm;
    float *out = f->rows + (size_t)part * f->tokens * c, *to = f->token_row ? f->pooled : out;
    for (uint32_t first = 0; first < f->tokens; first += step) {
        uint32_t left = f->tokens - first, t = left < step ? left : step;
        float *x = f->resid + (size_t)first * d->hidden * cell;
        if (each) norm(e, x, t * cell, d->hidden, each, e->net.w.vision.post_norm_bias, e->v.dense, true);
        merge_norms(e, each ? e->v.dense : x, t, w);
        merge_products(e, first, t, w, to + (size_t)first * c);
    }
    if (f->token_row)
        e->ops->gather(e->be,
                       &(struct be_gather_args){f->pooled, f->token_row, f->tokens, c * sizeof(float), out});
}

static void finish(struct engine *e, struct engine_features *f)
{
    switch (e->net.desc.vision.end) {
    case VISION_POOL: finish_pool(e, f); break;
    case VISION_LINEAR: finish_linear(e, f); break;
    case VISION_EMBED: project(e, f, f->resid); break;
    case VISION_MERGE: merge(e, f, 0); break;
    }
}

void vision_run(struct engine *e, struct engine_features *f, uint32_t layers)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint64_t spent = 0, most = layers * VISION_SLICE;
    uint32_t last = layers && layers < d->layers - f->layers_done ? f->layers_done + layers : d->layers;
    const struct adapter_run run = {f->adapter, 0, UINT32_MAX};
    const struct adapter_rows adapted = {.runs = &run, .run_count = 1};
    ASSERT(!f->done);
    e->adapted = f->adapter ? &adapted : NULL;
    if (!f->embedded) embed_patches(e, f);
    f->embedded = true;
    while (f->layers_done < last && (!layers || spent < most)) {
        spent += encode_row_chunk(e, f);
        if (d->halve && !f->row && !f->attending && d->halve == f->layers_done) halve(e, f);
        if (f->row || f->attending || f->deepstack_done == d->deepstack_count ||
            d->deepstack[f->deepstack_done] + 1 != f->layers_done)
            continue;
        merge(e, f, 1 + f->deepstack_done++);
    }
    f->done = f->layers_done == d->layers;
    if (f->done) finish(e, f);
    e->adapted = NULL;
}

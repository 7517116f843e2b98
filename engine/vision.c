/* The vision tower: runs the description's tower over one picture, a few layers at a time. Only a queue of backend operations.
 * Attention uses the same paged kernel as the decoder, over one layer's worth of keys and values in blocks 0, 1, 2...: every
 * patch sees every other. */
#include "engine/engine_internal.h"

#include "config/base/assert.h"

#include <math.h>

static void linear(struct engine *e, const struct be_weight *w, const void *x, enum be_epilogue epi, void *out)
{
    e->ops->linear(e->be, &(struct be_linear_args){.w = w, .x = x, .t = e->v.rows.t, .epilogue = epi, .out = out});
}

static void layer_norm(struct engine *e, float *x, const float *weight, const float *bias, void *out, bool dense)
{
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_LAYER,
                                               .t = e->v.rows.t,
                                               .c = e->desc.vision.hidden,
                                               .eps = e->desc.vision.eps,
                                               .residual = x,
                                               .weight = weight,
                                               .bias = bias,
                                               .out = out,
                                               .out_dtype = dense ? BE_F32 : e->plan.act,
                                               .out_dense = dense});
}

/* resid = patches W + b + position */
static void embed_patches(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->desc.vision;
    size_t rgb_bytes = (size_t)d->image_size * d->image_size * 3;
    e->ops->upload(e->be, e->v.rgb, f->pixels.rgb, rgb_bytes);
    image_u8_free(&f->pixels);
    e->ops->patchify(e->be, &(struct be_patchify_args){e->v.rgb, d->image_size, d->image_size, d->patch, e->v.lut, e->v.patches});
    e->ops->copy(e->be, f->resid, e->w.vision.position, (size_t)e->v.rows.t * d->hidden * sizeof(float));
    linear(e, e->w.vision.patch, e->v.patches, BE_EPI_ADD_F32, f->resid);
}

static void run_layer(struct engine *e, struct engine_features *f, const struct vision_layer_weights *w)
{
    const struct desc_vision *d = &e->desc.vision;
    struct vision_scratch *v = &e->v;
    uint32_t head_dim = d->hidden / d->heads;
    struct be_kv kv = {v->kv, 0, d->heads, head_dim};
    layer_norm(e, f->resid, w->norm1, w->norm1_bias, v->h, false);
    linear(e, w->qkv, v->h, BE_EPI_F32, v->qkv);
    e->ops->qkv(e->be, &(struct be_qkv_args){.rows = &v->rows, .heads = d->heads, .kv = kv, .qkv = v->qkv, .q = v->q});
    e->ops->attn(e->be, &(struct be_attn_args){.rows = &v->rows,
                                               .heads = d->heads,
                                               .kv = kv,
                                               .q = v->q,
                                               .scale = (float)(1.0 / sqrt((double)head_dim)),
                                               .out = v->attn});
    linear(e, w->o, v->attn, BE_EPI_ADD_F32, f->resid);
    layer_norm(e, f->resid, w->norm2, w->norm2_bias, v->h, false);
    linear(e, w->fc1, v->h, BE_EPI_GELU_TANH, v->mlp);
    linear(e, w->fc2, v->mlp, BE_EPI_ADD_F32, f->resid);
}

/* Norm, then pool, then norm, then projection: in this order. */
static void finish(struct engine *e, struct engine_features *f)
{
    const struct desc_vision *d = &e->desc.vision;
    struct vision_scratch *v = &e->v;
    uint32_t grid = d->image_size / d->patch;
    layer_norm(e, f->resid, e->w.vision.post_norm, e->w.vision.post_norm_bias, v->dense, true);
    e->ops->pool(e->be, &(struct be_pool_args){v->dense, grid, grid, d->pool, d->hidden, v->pooled});
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = d->tokens,
                                               .c = d->hidden,
                                               .eps = d->eps,
                                               .x = v->pooled,
                                               .weight = e->w.vision.soft_norm,
                                               .out = v->h,
                                               .out_dtype = e->plan.act});
    e->ops->linear(e->be, &(struct be_linear_args){
                              .w = e->w.vision.projection, .x = v->h, .t = d->tokens, .epilogue = BE_EPI_F32, .out = f->rows});
}

void vision_run(struct engine *e, struct engine_features *f, uint32_t layers)
{
    const struct desc_vision *d = &e->desc.vision;
    ASSERT(!f->done);
    if (f->layers_done == 0) embed_patches(e, f);
    uint32_t left = d->layers - f->layers_done, now = layers == 0 || layers > left ? left : layers;
    for (uint32_t i = 0; i < now; i++) run_layer(e, f, &e->w.vision.layers[f->layers_done++]);
    if (f->layers_done == d->layers) {
        finish(e, f);
        f->done = true;
    }
}

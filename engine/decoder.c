/* The decoder: runs what the description says over one ragged step. Only a queue of backend operations; no number is looked at
 * here. In the last layer only the rows whose logits are wanted go on after their keys and values are written: nobody reads the
 * others. */
#include "engine/engine_internal.h"

#include "config/base/assert.h"

#include <stddef.h>

/* Picture rows replace the embedding: unscaled, f32. */
static void copy_features(struct engine *e, const struct engine_batch *b)
{
    size_t row_bytes = e->desc.hidden * sizeof(float);
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->run_count; first += b->runs[i].count, i++) {
        const struct engine_run *r = &b->runs[i];
        for (uint32_t k = 0; k < r->image_count; k++) {
            const struct engine_image_use *u = &r->images[k];
            uint32_t from = u->begin > r->position ? u->begin : r->position;
            uint32_t end = r->position + r->count, to = u->end < end ? u->end : end;
            if (from >= to) continue;
            ASSERT(u->features && u->features->done);
            char *dst = (char *)e->s.resid + (size_t)(first + from - r->position) * row_bytes;
            const char *src = (const char *)u->features->rows + (size_t)(from - u->begin) * row_bytes;
            e->ops->copy(e->be, dst, src, (to - from) * row_bytes);
        }
    }
}

static void rope_tables(struct engine *e)
{
    for (uint32_t i = 0; i < e->desc.rope_count; i++)
        e->ops->rope(e->be, &(struct be_rope_args){.pos = e->step.rope_pos,
                                                   .t = e->step.t,
                                                   .axes = 1,
                                                   .half = e->desc.ropes[i].dim / 2,
                                                   .inv_freq = e->inv_freq[i],
                                                   .scaling = 1.0f,
                                                   .cos = e->s.cos[i],
                                                   .sin = e->s.sin[i]});
}

static enum be_epilogue gate_epilogue(enum desc_gate g)
{
    switch (g) {
    case GATE_GELU_TANH:
        return BE_EPI_GLU_GELU_TANH;
    }
    UNREACHABLE();
    return BE_EPI_GLU_GELU_TANH;
}

/* x += rms(proj, post); h = rms(x, next), if there is a next norm. */
static void add_and_norm(struct engine *e, uint32_t t, float *resid, const float *post, const float *next)
{
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = t,
                                               .c = e->desc.hidden,
                                               .eps = e->desc.norm_eps,
                                               .x = post ? e->s.proj : NULL,
                                               .post_weight = post,
                                               .residual = resid,
                                               .weight = next,
                                               .out = next ? e->s.h : NULL,
                                               .out_dtype = e->plan.act});
}

static void linear(struct engine *e, const struct be_weight *w, const void *x, uint32_t t, enum be_epilogue epi, void *out)
{
    e->ops->linear(e->be, &(struct be_linear_args){.w = w, .x = x, .t = t, .epilogue = epi, .out = out});
}

/* The wanted rows' queries and residuals move to the front; attention and MLP of the last layer run on them alone. */
static void narrow(struct engine *e, const struct desc_layer *l)
{
    const struct step *st = &e->step;
    size_t q_bytes = (size_t)l->heads * l->head_dim * be_dtype_bytes(e->plan.act);
    e->ops->gather(e->be, &(struct be_gather_args){e->s.q, st->wanted_rows, st->wanted_count, q_bytes, e->s.qkv});
    e->ops->gather(e->be, &(struct be_gather_args){e->s.resid, st->wanted_rows, st->wanted_count, e->desc.hidden * sizeof(float),
                                                   e->s.tail_resid});
}

void decoder_run(struct engine *e, const struct engine_batch *b)
{
    const struct model_desc *d = &e->desc;
    const struct step *st = &e->step;
    struct decoder_scratch *s = &e->s;
    e->ops->embed(e->be,
                  &(struct be_embed_args){.w = e->w.embed, .ids = st->ids, .t = st->t, .scale = e->embed_scale, .out = s->resid});
    copy_features(e, b);
    rope_tables(e);
    add_and_norm(e, st->t, s->resid, NULL, e->w.layers[0].input_norm);
    uint32_t t = st->t;
    float *resid = s->resid;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &e->w.layers[n];
        const struct be_rows *rows = &st->rows[e->kv.layer_group[n]];
        struct be_kv kv = {e->arena, e->kv.layer_offset[n], l->kv_heads, l->head_dim};
        bool last = n + 1 == d->layer_count;
        const void *q = s->q;
        linear(e, w->qkv, s->h, t, BE_EPI_F32, s->qkv);
        e->ops->qkv(e->be, &(struct be_qkv_args){.rows = rows,
                                                 .heads = l->heads,
                                                 .kv = kv,
                                                 .qkv = s->qkv,
                                                 .q_norm = w->q_norm,
                                                 .k_norm = w->k_norm,
                                                 .eps = d->norm_eps,
                                                 .cos = s->cos[l->rope],
                                                 .sin = s->sin[l->rope],
                                                 .q = s->q});
        if (last) {
            if (st->wanted_count == 0) return;
            narrow(e, l);
            rows = &st->tail;
            t = st->wanted_count;
            resid = s->tail_resid;
            q = s->qkv;
        }
        e->ops->attn(
            e->be,
            &(struct be_attn_args){
                .rows = rows, .heads = l->heads, .kv = kv, .q = q, .scale = l->scale, .softcap = l->softcap, .out = s->attn});
        linear(e, w->o, s->attn, t, BE_EPI_F32, s->proj);
        add_and_norm(e, t, resid, w->post_attn_norm, w->pre_mlp_norm);
        linear(e, w->glu, s->h, t, gate_epilogue(l->gate), s->mlp);
        linear(e, w->down, s->mlp, t, BE_EPI_F32, s->proj);
        add_and_norm(e, t, resid, w->post_mlp_norm, last ? NULL : e->w.layers[n + 1].input_norm);
    }
}

void decoder_logits(struct engine *e, uint32_t first, uint32_t count, const uint32_t *targets, uint32_t k)
{
    const struct model_desc *d = &e->desc;
    struct decoder_scratch *s = &e->s;
    ASSERT_CMP(count, <=, LOGIT_ROWS_MAX);
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = count,
                                               .c = d->hidden,
                                               .eps = d->norm_eps,
                                               .residual = s->tail_resid + (size_t)first * d->hidden,
                                               .weight = e->w.final_norm,
                                               .out = s->head_in,
                                               .out_dtype = e->plan.act});
    linear(e, e->w.head, s->head_in, count, BE_EPI_F32, s->logits);
    e->ops->upload(e->be, s->targets, targets, count * sizeof *targets);
    e->ops->logit_stats(e->be, &(struct be_logits_args){.logits = s->logits,
                                                        .r = count,
                                                        .v = d->vocab,
                                                        .softcap = d->final_softcap,
                                                        .targets = s->targets,
                                                        .stats = s->stats});
    if (k) e->ops->topk(e->be, &(struct be_topk_args){s->logits, count, d->vocab, k, s->top_ids, s->top_values});
}

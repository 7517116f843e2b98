/* The decoder: runs what the description says over one ragged step. Only queues backend operations; reads no
 * numbers. In the last layer that writes keys, values or a state (net.prune_layer: usually the last of all)
 * only the output rows continue after the write: the others are not read. */
#include "engine/internal.h"

#include "config/base/assert.h"

#include <stddef.h>

/* The residuals of the output rows, once pruned. */
static float *out_resid(const struct engine *e, const struct net *net)
{
    return e->step.all_output ? net->s.resid : net->s.out_resid;
}

/* The next rows of image u in chunk r that have features, absolute positions, from *to on (at first 0): all,
 * or those up to a break. */
static bool next_rows(const struct engine_chunk *r, const struct engine_span *u, uint32_t *from, uint32_t *to)
{
    uint32_t end = r->position + r->count, row = u->grid.w + 1, first = *to;
    if (first < u->begin) first = u->begin;
    if (first < r->position) first = r->position;
    if (u->end < end) end = u->end;
    if (first < end && prompt_grid_break(&u->grid, first - u->begin)) first++;
    *from = first;
    *to = end;
    if (u->grid.breaks && first < end && (first - u->begin) / row * row + row - 1 < end - u->begin)
        *to = u->begin + (first - u->begin) / row * row + row - 1;
    return u->features && *from < *to;
}

/* Features of the image's token at `at`; part 0 replaces the embedding, part 1 + k is DeepStack feature k. */
static const float *feature_row(const struct net *net, const struct engine_span *u, uint32_t part,
                                uint32_t at)
{
    uint32_t n = prompt_grid_feature(&u->grid, at - u->begin), tokens = u->features->tokens;
    ASSERT(u->features->done && tokens == prompt_grid_feature(&u->grid, u->end - u->begin - 1) + 1);
    return u->features->rows + ((size_t)part * tokens + n) * net->desc.hidden;
}

/* Image rows replace the embedding: unscaled, f32. */
static void copy_features(struct engine *e, struct net *net, const struct engine_batch *b)
{
    size_t c = net->desc.hidden;
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->chunk_count; first += b->chunks[i].count, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        for (uint32_t k = 0; k < r->span_count; k++)
            for (uint32_t from, to = 0; next_rows(r, &r->spans[k], &from, &to);)
                e->ops->copy(e->be, net->s.resid + (first + from - r->position) * c,
                             feature_row(net, &r->spans[k], 0, from), (to - from) * c * sizeof(float));
    }
}

static void add_rows(struct engine *e, struct net *net, const float *x, float *resid, uint32_t t)
{
    e->ops->norm(
        e->be, &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = net->desc.hidden, .x = x, .residual = resid});
}

/* DeepStack: adds feature n of each image to the stream after layer n, rows of the chunk only. */
static void add_deepstack(struct engine *e, struct net *net, const struct engine_batch *b, uint32_t n)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->chunk_count; first += b->chunks[i].count, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        for (uint32_t k = 0; k < r->span_count; k++)
            for (uint32_t from, to = 0; next_rows(r, &r->spans[k], &from, &to);)
                add_rows(e, net, feature_row(net, &r->spans[k], 1 + n, from),
                         net->s.resid + (size_t)(first + from - r->position) * net->desc.hidden, to - from);
    }
}

/* The same if only the output rows are left. */
static void add_deepstack_to_outputs(struct engine *e, struct net *net, const struct engine_batch *b,
                                     uint32_t n)
{
    for (uint32_t i = 0; i < e->step.output_count; i++) {
        const struct engine_chunk *r = &b->chunks[e->output_rows[i].chunk];
        uint32_t at = e->output_rows[i].next - 1;
        for (uint32_t k = 0; k < r->span_count; k++) {
            const struct engine_span *u = &r->spans[k];
            if (u->features && u->begin <= at && at < u->end && !prompt_grid_break(&u->grid, at - u->begin))
                add_rows(e, net, feature_row(net, u, 1 + n, at),
                         out_resid(e, net) + (size_t)i * net->desc.hidden, 1);
        }
    }
}

static void rope_tables(struct engine *e, struct net *net)
{
    for (uint32_t i = 0; i < net->desc.rope_count; i++)
        e->ops->rope(e->be, &(struct be_rope_args){e->step.rope_pos, .t = e->step.t, .axes = net->rope_axes,
                                                   .half = net->desc.ropes[i].dim / 2,
                                                   .inv_freq = net->inv_freq[i], .axis = net->rope_axis[i],
                                                   .scaling = net->desc.ropes[i].attention
                                                                  ? (float)net->desc.ropes[i].attention
                                                                  : 1.0f,
                                                   .cos = net->s.cos[i], .sin = net->s.sin[i]});
}

static enum be_epilogue gate_epilogue(enum desc_activation g)
{
    switch (g) {
    case ACT_GELU_TANH: return BE_EPI_GLU_GELU_TANH;
    case ACT_SILU: return BE_EPI_GLU_SILU;
    }
    UNREACHABLE();
    return BE_EPI_GLU_GELU_TANH;
}

/* x += add, or rms(add, post) if there is a post norm, if add is set; x *= scale, if set; h = rms(x, next),
 * if set. */
static void scale_and_norm(struct engine *e, struct net *net, uint32_t t, float *resid, const float *add,
                           const float *post, const float *scale, const float *next)
{
    if (!add && !next) return;
    ASSERT(add || !scale);
    e->ops->norm(e->be, &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = net->desc.hidden,
                                               .eps = net->desc.norm_eps, .x = add, .post_weight = post,
                                               .residual = resid, .residual_scale = scale, .weight = next,
                                               .out = next ? net->s.h : NULL, .out_dtype = e->plan.act});
}

/* s.h = the stream itself, of layers without that norm. */
static void pack(struct engine *e, struct net *net, uint32_t t, const float *x)
{
    e->ops->pack(e->be, &(struct be_pack_args){x, t, net->desc.hidden, net->s.h});
}

static void add_and_norm(struct engine *e, struct net *net, uint32_t t, float *resid, const float *add,
                         const float *post, const float *next)
{
    scale_and_norm(e, net, t, resid, add, post, NULL, next);
}

static void gather_outputs(struct engine *e, const void *src, size_t row_bytes, void *dst)
{
    e->ops->gather(
        e->be, &(struct be_gather_args){src, e->step.output_row_ids, e->step.output_count, row_bytes, dst});
}

/* The rows that a layer works on: once pruned, the output rows alone. */
struct flow {
    uint32_t t;
    float *resid;
    bool pruned;
};

/* Moves the output rows of x (rows of `bytes` each) to `to`, their residuals and later inputs to the front,
 * unless all rows are output rows; the rest of this layer and all later layers run on them alone. Returns the
 * rows of x. */
static const void *prune(struct engine *e, struct net *net, struct flow *f, const void *x, size_t bytes,
                         void *to)
{
    const struct model_desc *d = &net->desc;
    const struct decoder_scratch *s = &net->s;
    f->pruned = true;
    f->resid = out_resid(e, net);
    if (e->adapted) e->adapted = &e->step.adapted[1];
    if (e->step.all_output) return x;
    f->t = e->step.output_count;
    gather_outputs(e, x, bytes, to);
    gather_outputs(e, s->resid, d->hidden * sizeof(float), s->out_resid);
    if (d->ple) gather_outputs(e, s->token, (size_t)d->layer_count * d->ple * sizeof(float), s->out_ple);
    for (uint32_t i = 0; i < d->rope_count && net->prune_layer + 1 < d->layer_count; i++) {
        gather_outputs(e, s->cos[i], d->ropes[i].dim / 2 * sizeof(float), s->out_cos[i]);
        gather_outputs(e, s->sin[i], d->ropes[i].dim / 2 * sizeof(float), s->out_sin[i]);
    }
    return to;
}

/* Adds a product to the stream: through the post norm if the family has one (then it waits in proj for
 * add_and_norm, which gets the returned address), else at once. */
static const float *project(struct engine *e, struct net *net, const struct be_weight *w, const void *x,
                            uint32_t t, const float *post, float *resid)
{
    engine__linear(e, w, x, t, post ? BE_EPI_F32 : BE_EPI_ADD_F32, post ? net->s.proj : resid);
    return post ? net->s.proj : NULL;
}

/* out = rms(x, weight): act, or with `dense` f32. */
static void plain_norm(struct engine *e, const struct net *net, uint32_t t, float *x, const float *weight,
                       void *out, bool dense)
{
    e->ops->norm(e->be,
                 &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = net->desc.hidden, .eps = net->desc.norm_eps,
                                        .residual = x, .weight = weight, .out = out,
                                        .out_dtype = dense ? BE_F32 : e->plan.act, .out_dense = dense});
}

/* s.h -> the product to add to the stream, as for project(). */
static const float *mlp(struct engine *e, struct net *net, const struct desc_layer *l,
                        const struct layer_weights *w, uint32_t t, float *resid)
{
    struct decoder_scratch *s = &net->s;
    if (!l->experts) {
        engine__linear(e, w->glu, s->h, t, gate_epilogue(l->gate), s->mlp);
        return project(e, net, w->down, s->mlp, t, w->post_mlp_norm, resid);
    }
    bool beside = l->shared_ff && !w->shared_gate;
    if (l->shared_ff) engine__linear(e, w->glu, s->h, t, gate_epilogue(l->gate), s->mlp);
    if (beside) {
        engine__linear(e, w->down, s->mlp, t, BE_EPI_F32, s->proj);
        plain_norm(e, net, t, s->proj, w->shared_norm, s->mix, true);
        add_and_norm(e, net, t, resid, NULL, NULL, w->router_norm);
    }
    if (w->shared_gate) {
        engine__linear(e, w->shared_gate, s->h, t, BE_EPI_F32, s->gates);
        e->ops->gate(e->be, &(struct be_gate_args){BE_GATE_SIGMOID, .gate = s->gates, .gate_stride = 1,
                                                   .gate_row = true, .x = s->mlp, .x_dtype = e->plan.act,
                                                   .x_stride = be_ld(l->shared_ff), .t = t, .heads = 1,
                                                   .d = l->shared_ff, .out = s->mlp});
    }
    engine__linear(e, w->router, s->h, t, BE_EPI_F32, s->router);
    e->ops->route(e->be,
                  &(struct be_route_args){s->router, .t = t, .experts = l->experts, .k = l->experts_used,
                                          .renorm = l->experts_renorm, .scale = w->router_scale,
                                          .ids = s->expert_ids, .weights = s->expert_weights});
    if (beside) add_and_norm(e, net, t, resid, NULL, NULL, w->expert_norm);
    e->ops->experts(e->be, &(struct be_experts_args){
                               w->expert_glu, .down = w->expert_down, .experts = l->experts,
                               .k = l->experts_used, .t = t, .c = net->desc.hidden, .ff = l->ff,
                               .gate = gate_epilogue(l->gate), .x = s->h, .ids = s->expert_ids,
                               .weights = s->expert_weights, .scratch = s->experts, .out = s->proj});
    if (w->shared_gate) engine__linear(e, w->down, s->mlp, t, BE_EPI_ADD_F32, s->proj);
    if (!beside) return s->proj;
    add_and_norm(e, net, t, s->mix, s->proj, w->experts_norm, NULL);
    return s->mix;
}

/* s.token holds the table's rows: adds the stream's part. */
static void ple(struct engine *e, struct net *net, uint32_t t)
{
    const struct model_desc *d = &net->desc;
    struct decoder_scratch *s = &net->s;
    pack(e, net, t, s->resid);
    engine__linear(e, net->w.ple_project, s->h, t, BE_EPI_F32, s->out_ple);
    /* rms(x / sqrt(C)) with eps is rms(x) with C eps. */
    e->ops->norm(e->be, &(struct be_norm_args){BE_NORM_RMS, .t = t * d->layer_count, .c = d->ple,
                                               .eps = d->norm_eps * (float)d->hidden, .x = s->out_ple,
                                               .post_weight = net->w.token_norm, .residual = s->token});
}

/* Adds the layer's part to the stream, then scales; h = rms(x, next). */
static void add_ple(struct engine *e, struct net *net, uint32_t n, uint32_t t, bool pruned, float *resid,
                    const float *next)
{
    const struct model_desc *d = &net->desc;
    const struct layer_weights *w = &net->w.layers[n];
    struct decoder_scratch *s = &net->s;
    const float *from = pruned && !e->step.all_output ? s->out_ple : s->token;
    pack(e, net, t, resid);
    engine__linear(e, w->ple_gate, s->h, t, BE_EPI_F32, s->qkv);
    e->ops->gate(e->be, &(struct be_gate_args){BE_GATE_GELU_TANH, .gate = s->qkv, .gate_stride = d->ple,
                                               .x = from + (size_t)n * d->ple,
                                               .x_stride = (size_t)d->layer_count * d->ple, .t = t,
                                               .heads = 1, .d = d->ple, .out = s->mlp});
    engine__linear(e, w->token_up, s->mlp, t, BE_EPI_F32, s->proj);
    scale_and_norm(e, net, t, resid, s->proj, w->token_post_norm, w->layer_scale, next);
}

static enum be_qkv_parts qkv_parts(const struct model_desc *d, uint32_t n)
{
    return !desc_owns_keys(d, n) ? BE_Q : d->layers[n].v_from_k ? BE_QK : BE_QKV;
}

static void embed(struct engine *e, const struct net *net, uint32_t t, float *out)
{
    e->ops->embed(e->be, &(struct be_embed_args){net->w.embed, .ids = e->step.ids, .t = t,
                                                 .scale = net->embed_scale, .out = out});
}

/* s.attn *= sigmoid(gate), the columns after each head's query. */
static void gate_heads(struct engine *e, struct net *net, uint32_t n, uint32_t t, const float *qkv)
{
    const struct desc_layer *l = &net->desc.layers[n];
    e->ops->gate(e->be, &(struct be_gate_args){BE_GATE_SIGMOID, .gate = qkv + l->head_dim,
                                               .gate_stride = desc_in_columns(&net->desc, n),
                                               .gate_head = 2 * (size_t)l->head_dim, .x = net->s.attn,
                                               .x_dtype = e->plan.act,
                                               .x_stride = be_ld((size_t)l->heads * l->head_dim), .t = t,
                                               .heads = l->heads, .d = l->head_dim, .out = net->s.attn});
}

static struct be_kv kv_of(const struct engine *e, const struct desc_layer *l)
{
    return (struct be_kv){e->arena, e->kv.layer_offset[l->kv_owner], l->kv_heads, l->head_dim, e->kv.type};
}

/* RMS norm of `c` columns of the first product, in place; weight NULL: nothing. */
static void norm_columns(struct engine *e, const struct net *net, uint32_t n, uint32_t t, uint32_t first,
                         uint32_t c, const float *weight)
{
    float *x = net->s.qkv + first;
    if (!weight) return;
    e->ops->norm(e->be,
                 &(struct be_norm_args){BE_NORM_RMS, .t = t, .c = c, .stride = desc_in_columns(&net->desc, n),
                                        .eps = net->desc.norm_eps, .x = x, .weight = weight, .out = x,
                                        .out_dense = true});
}

/* s.h -> queries in s.q, and the cache's keys and values. */
static void heads(struct engine *e, struct net *net, uint32_t n, const struct flow *f)
{
    const struct model_desc *d = &net->desc;
    const struct desc_layer *l = &d->layers[n];
    const struct layer_weights *w = &net->w.layers[n];
    struct decoder_scratch *s = &net->s;
    uint32_t group = e->kv.layer_group[l->kv_owner];
    const struct be_rows *rows = f->pruned ? &e->step.out_rows[group] : &e->step.rows[group];
    bool out_rope = f->pruned && !e->step.all_output;
    engine__linear(e, w->qkv, s->h, f->t, BE_EPI_F32, s->qkv);
    if (d->qk_norm_all) {
        uint32_t q = l->heads * l->head_dim;
        norm_columns(e, net, n, f->t, 0, q, w->q_norm);
        norm_columns(e, net, n, f->t, q, l->kv_heads * l->head_dim, w->k_norm);
    }
    e->ops->qkv(e->be, &(struct be_qkv_args){rows, .parts = qkv_parts(d, n), .v_norm = l->v_norm,
                                             .heads = l->heads, .gated = l->gated, .kv = kv_of(e, l),
                                             .qkv = s->qkv, .q_norm = d->qk_norm_all ? NULL : w->q_norm,
                                             .k_norm = d->qk_norm_all ? NULL : w->k_norm, .eps = d->norm_eps,
                                             .cos = out_rope ? s->out_cos[l->rope] : s->cos[l->rope],
                                             .sin = out_rope ? s->out_sin[l->rope] : s->sin[l->rope],
                                             .rotary = d->ropes[l->rope].dim, .k_shift = w->k_shift,
                                             .q_beta = d->ropes[l->rope].query_beta,
                                             .q_period = (float)d->ropes[l->rope].original, .q = s->q});
}

/* s.h -> what Wo reads; NULL: no row goes on. */
static const void *attention(struct engine *e, struct net *net, uint32_t n, struct flow *f)
{
    const struct model_desc *d = &net->desc;
    const struct desc_layer *l = &d->layers[n];
    struct decoder_scratch *s = &net->s;
    uint32_t group = e->kv.layer_group[l->kv_owner];
    const struct be_rows *rows = f->pruned ? &e->step.out_rows[group] : &e->step.rows[group];
    const void *q = s->q;
    const float *gate = s->qkv;
    heads(e, net, n, f);
    if (n == net->prune_layer) {
        if (e->step.output_count == 0) return NULL;
        if (l->gated && !e->step.all_output) {
            gather_outputs(e, s->qkv, desc_in_columns(d, n) * sizeof(float), s->out_qkv);
            gate = s->out_qkv;
        }
        q = prune(e, net, f, s->q, (size_t)l->heads * l->head_dim * be_dtype_bytes(e->plan.act), s->qkv);
        rows = &e->step.out_rows[group];
    }
    e->ops->attn(e->be, &(struct be_attn_args){rows, .heads = l->heads, .kv = kv_of(e, l), .q = q,
                                               .scale = l->scale, .softcap = l->softcap, .out = s->attn});
    if (l->gated) gate_heads(e, net, n, f->t, gate);
    return s->attn;
}

static const void *delta_net(struct engine *e, struct net *net, uint32_t n, struct flow *f)
{
    const struct model_desc *d = &net->desc;
    const struct desc_delta *g = &d->delta;
    const struct layer_weights *w = &net->w.layers[n];
    struct decoder_scratch *s = &net->s;
    uint32_t columns = desc_conv_columns(d), values = g->value_heads * g->value_dim;
    engine__linear(e, w->qkv, s->h, f->t, BE_EPI_F32, s->qkv);
    engine__linear(e, w->gates, s->h, f->t, BE_EPI_F32, s->gates);
    recurrent_mix(e, net, n);
    if (n == net->prune_layer && e->step.output_count == 0) return NULL;
    e->ops->gate(e->be, &(struct be_gate_args){BE_GATE_SILU, .gate = s->qkv + columns,
                                               .gate_stride = columns + values, .gate_head = g->value_dim,
                                               .x = s->qkv + columns - values, .x_stride = columns + values,
                                               .norm = w->delta_norm, .eps = d->norm_eps, .t = f->t,
                                               .heads = g->value_heads, .d = g->value_dim, .out = s->attn});
    if (n != net->prune_layer) return s->attn;
    return prune(e, net, f, s->attn, be_ld(values) * be_dtype_bytes(e->plan.act), s->q);
}

static const void *short_conv(struct engine *e, struct net *net, uint32_t n, struct flow *f)
{
    struct decoder_scratch *s = &net->s;
    size_t c = net->desc.hidden;
    engine__linear(e, net->w.layers[n].qkv, s->h, f->t, BE_EPI_F32, s->qkv);
    recurrent_mix(e, net, n);
    if (n == net->prune_layer && e->step.output_count == 0) return NULL;
    e->ops->gate(e->be, &(struct be_gate_args){BE_GATE_NONE, .gate = s->qkv + c, .gate_stride = 3 * c,
                                               .x = s->qkv + 2 * c, .x_stride = 3 * c, .t = f->t, .heads = 1,
                                               .d = (uint32_t)c, .out = s->attn});
    if (n != net->prune_layer) return s->attn;
    return prune(e, net, f, s->attn, be_ld(c) * be_dtype_bytes(e->plan.act), s->q);
}

/* All layers, over the residuals of t rows. */
static void layers(struct engine *e, struct net *net, const struct engine_batch *b, uint32_t t)
{
    const struct model_desc *d = &net->desc;
    struct decoder_scratch *s = &net->s;
    struct flow f = {.t = t, .resid = s->resid};
    add_and_norm(e, net, t, s->resid, NULL, NULL, net->w.layers[0].input_norm);
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &net->w.layers[n];
        if (!w->input_norm) pack(e, net, f.t, f.resid);
        const void *mixed = l->mixer == MIXER_DELTA  ? delta_net(e, net, n, &f)
                            : l->mixer == MIXER_CONV ? short_conv(e, net, n, &f)
                                                     : attention(e, net, n, &f);
        if (!mixed) return;
        const float *add = project(e, net, w->o, mixed, f.t, w->post_attn_norm, f.resid);
        add_and_norm(e, net, f.t, f.resid, add, w->post_attn_norm, w->pre_mlp_norm);
        if (!w->pre_mlp_norm) pack(e, net, f.t, f.resid);
        add = mlp(e, net, l, w, f.t, f.resid);
        const float *next = n + 1 == d->layer_count ? NULL : net->w.layers[n + 1].input_norm;
        if (d->has_vision && n < d->vision.deepstack_count) {
            scale_and_norm(e, net, f.t, f.resid, add, w->post_mlp_norm, w->layer_scale, NULL);
            if (f.pruned) add_deepstack_to_outputs(e, net, b, n);
            else add_deepstack(e, net, b, n);
            add_and_norm(e, net, f.t, f.resid, NULL, NULL, next);
        } else if (d->ple) {
            add_and_norm(e, net, f.t, f.resid, add, w->post_mlp_norm, NULL);
            add_ple(e, net, n, f.t, f.pruned, f.resid, next);
        } else {
            scale_and_norm(e, net, f.t, f.resid, add, w->post_mlp_norm, w->layer_scale, next);
        }
    }
}

/* The drafter's stream of t rows, f.before and the norm of embeddings in f.token -> its residuals and s.h. */
static void own_stream(struct engine *e, uint32_t t)
{
    struct drafter *f = &e->draft;
    uint32_t c = f->net.desc.hidden;
    size_t ld = be_ld(c), wide = be_ld(2 * (size_t)c), act = be_dtype_bytes(e->plan.act);
    plain_norm(e, &f->net, t, f->before, f->net.w.hidden_norm, f->state, false);
    for (uint32_t k = 0; k < 2; k++) /* a copy of columns */
        e->ops->clamp(e->be,
                      &(struct be_clamp_args){e->plan.act, .x = k ? f->state : f->token, .x_stride = ld,
                                              .t = t, .c = c, .bounds = f->everything,
                                              .out = (char *)f->both + k * c * act, .out_stride = wide});
    engine__linear(e, f->net.w.draft_in, f->both, t, BE_EPI_F32, f->net.s.resid);
}

void decoder_own_keys(struct engine *e)
{
    struct drafter *f = &e->draft;
    struct flow flow = {.t = e->step.t, .resid = f->net.s.resid};
    size_t row = f->net.desc.hidden * sizeof(float);
    plain_norm(e, &e->net, flow.t, e->net.s.resid, e->net.w.final_norm, f->hidden, true);
    e->ops->gather(e->be, &(struct be_gather_args){f->hidden, e->step.before, flow.t, row, f->before});
    own_stream(e, flow.t);
    rope_tables(e, &f->net);
    add_and_norm(e, &f->net, flow.t, flow.resid, NULL, NULL, f->net.w.layers[0].input_norm);
    heads(e, &f->net, 0, &flow);
}

void decoder_run(struct engine *e, struct net *net, const struct engine_batch *b)
{
    uint32_t t = e->step.t;
    e->adapted = e->step.adapted[0].run_count ? &e->step.adapted[0] : NULL;
    embed(e, net, t, net->s.resid);
    copy_features(e, net, b);
    if (e->draft.own)
        plain_norm(e, &e->draft.net, t, net->s.resid, e->draft.net.w.embed_norm, e->draft.token, false);
    if (net->desc.ple) ple(e, net, t);
    rope_tables(e, net);
    layers(e, net, b, t);
    e->adapted = NULL; /* no drafter has one */
    if (!e->draft.own) return;
    decoder_own_keys(e);
    if (!e->step.all_output && e->step.output_count)
        gather_outputs(e, net->s.resid, net->desc.hidden * sizeof(float), net->s.out_resid);
}

/* One more token of each of t sequences with keys of the drafter's own. */
static void own_draft(struct engine *e, uint32_t t)
{
    struct drafter *f = &e->draft;
    struct net *net = &f->net;
    embed(e, &e->net, t, f->wide);
    plain_norm(e, net, t, f->wide, net->w.embed_norm, f->token, false);
    own_stream(e, t);
    rope_tables(e, net);
    layers(e, net, NULL, t);
    plain_norm(e, net, t, net->s.resid, net->w.final_norm, f->read, false);
    plain_norm(e, net, t, net->s.resid, net->w.final_norm, f->before, true);
}

void decoder_draft(struct engine *e, uint32_t t, bool first)
{
    struct drafter *f = &e->draft;
    const struct model_desc *d = &f->net.desc;
    struct decoder_scratch *s = &f->net.s;
    size_t act = be_dtype_bytes(e->plan.act), wide = d->drafts_for * act, ld = be_ld(d->drafts_for) * act;
    if (f->own) {
        own_draft(e, t);
        return;
    }
    if (first) rope_tables(e, &f->net);
    embed(e, &e->net, t, f->wide);
    e->ops->pack(e->be, &(struct be_pack_args){f->wide, t, d->drafts_for, f->token});
    for (uint32_t i = 0; i < t; i++) {
        char *row = (char *)f->both + i * be_ld(2 * (size_t)d->drafts_for) * act;
        e->ops->copy(e->be, row, (char *)f->token + i * ld, wide);
        e->ops->copy(e->be, row + wide, (char *)f->state + i * ld, wide);
    }
    engine__linear(e, f->net.w.draft_in, f->both, t, BE_EPI_F32, s->resid);
    layers(e, &f->net, NULL, t); /* none has an image */
    plain_norm(e, &f->net, t, s->resid, f->net.w.final_norm, f->read, false);
    engine__linear(e, f->net.w.draft_out, f->read, t, BE_EPI_F32, f->wide);
    e->ops->pack(e->be, &(struct be_pack_args){f->wide, t, d->drafts_for, f->state});
}

void decoder_draft_top(struct engine *e, uint32_t first, uint32_t count, uint32_t k)
{
    const struct net *net = &e->draft.net;
    const struct decoder_scratch *s = &net->s;
    size_t row = be_ld(net->desc.hidden) * be_dtype_bytes(e->plan.act);
    uint32_t v = net->desc.centroids ? net->desc.centroids : net->desc.vocab;
    engine__linear(e,
                   e->draft.own          ? e->net.w.head
                   : net->desc.centroids ? net->w.centroids
                                         : net->w.head,
                   (char *)e->draft.read + first * row, count, BE_EPI_F32, s->logits);
    e->ops->topk(e->be,
                 &(struct be_topk_args){s->logits, count, v, k, s->top, (float *)(s->top + count * k)});
}

void decoder_head_in(struct engine *e, struct net *net, uint32_t first, uint32_t count)
{
    ASSERT_CMP(count, <=, e->plan.logit_rows);
    plain_norm(e, net, count, out_resid(e, net) + (size_t)first * net->desc.hidden, net->w.final_norm,
               net->s.head_in, false);
}

void decoder_logits(struct engine *e, struct net *net, uint32_t first, uint32_t count)
{
    const struct model_desc *d = &net->desc;
    struct decoder_scratch *s = &net->s;
    struct adapter_rows adapted = e->step.adapted[1];
    adapted.first = first;
    decoder_head_in(e, net, first, count);
    e->adapted = adapted.run_count ? &adapted : NULL;
    engine__linear(e, net->w.head, s->head_in, count, BE_EPI_F32, s->logits);
    e->adapted = NULL;
    e->ops->logit_stats(e->be, &(struct be_logits_args){s->logits, .r = count, .v = d->vocab,
                                                        .softcap = d->final_softcap,
                                                        .targets = e->step.targets + first,
                                                        .draws = e->step.draws + first, .stats = s->stats});
}

void decoder_top(struct engine *e, struct net *net, uint32_t count, uint32_t k)
{
    uint32_t *ids = net->s.top;
    float *values = (float *)(ids + (size_t)count * k);
    ASSERT(count <= e->plan.logit_rows && k > 0 && k <= BE_TOPK_MAX);
    e->ops->topk(e->be, &(struct be_topk_args){net->s.logits, count, net->desc.vocab, k, ids, values});
}

void decoder_kv_clear(struct engine *e, uint32_t group, uint32_t block_offset, uint32_t first)
{
    for (uint32_t n = 0; n < e->net.desc.layer_count + e->draft.own; n++) {
        bool own = n == e->net.desc.layer_count;
        const struct desc_layer *l = own ? e->draft.net.desc.layers : &e->net.desc.layers[n];
        struct be_kv kv = kv_of(e, l);
        if ((own || desc_owns_keys(&e->net.desc, n)) && e->kv.layer_group[n] == group)
            e->ops->kv_clear(e->be, &kv, block_offset, first);
    }
}

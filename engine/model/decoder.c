/* The decoder: runs what the description says over one ragged step. Only a queue of backend operations; no
 * number is looked at here. In the last layer only the rows whose logits are wanted go on after their keys
 * and values are written: nobody reads the others. */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/faults.h"

#include <stddef.h>

/* The residuals of the wanted rows, from the last layer on. */
static float *tail_resid(const struct engine *e, const struct net *net)
{
    return e->step.all_wanted ? net->s.resid : net->s.tail_resid;
}

/* Rows [from, to) of picture u, absolute positions, that lie in run r. false: none, or no picture. */
static bool use_rows(const struct engine_run *r, const struct engine_span *u, uint32_t *from, uint32_t *to)
{
    uint32_t end = r->position + r->count;
    *from = u->begin > r->position ? u->begin : r->position;
    *to = u->end < end ? u->end : end;
    return u->features && *from < *to;
}

/* Features of the picture's token at `at`; part 0 replaces the embedding, part 1 + k is tap k. */
static const float *feature_row(const struct engine *e, const struct net *net, const struct engine_span *u,
                                uint32_t part, uint32_t at, const struct engine_run *r)
{
    ASSERT(u->features && u->features->done && u->features->tokens == u->end - u->begin);
    uint32_t first = u->begin;
    if (FAULT(e->test_bugs, part ? ENGINE_BUG_TAP_ROWS : ENGINE_BUG_FEATURE_ROWS) && first < r->position)
        first = r->position;
    return u->features->rows + ((size_t)part * u->features->tokens + (at - first)) * net->desc.hidden;
}

/* Picture rows replace the embedding: unscaled, f32. */
static void copy_features(struct engine *e, struct net *net, const struct engine_batch *b)
{
    size_t c = net->desc.hidden;
    uint32_t first = 0, from, to;
    for (uint32_t i = 0; i < b->run_count; first += b->runs[i].count, i++) {
        const struct engine_run *r = &b->runs[i];
        for (uint32_t k = 0; k < r->span_count; k++) {
            const struct engine_span *u = &r->spans[k];
            if (!use_rows(r, u, &from, &to)) continue;
            e->ops->copy(e->be, net->s.resid + (first + from - r->position) * c,
                         feature_row(e, net, u, 0, from, r), (to - from) * c * sizeof(float));
        }
    }
}

static void add_rows(struct engine *e, struct net *net, const float *x, float *resid, uint32_t t)
{
    e->ops->norm(e->be, &(struct be_norm_args){
                            .kind = BE_NORM_RMS, .t = t, .c = net->desc.hidden, .x = x, .residual = resid});
}

/* Faults in add_taps: what becomes of its rows [from, *to), which belong at *row of the step. */
static void spoil_taps(const struct engine *e, const struct engine_run *r, const struct engine_span *u,
                       uint32_t from, uint32_t *to, uint32_t *row)
{
    if (FAULT(e->test_bugs, ENGINE_BUG_NO_TAPS) && u->begin < r->position) *to = from;
    if (FAULT(e->test_bugs, ENGINE_BUG_TAP_BATCH)) *row = from - r->position;
    if (FAULT(e->test_bugs, ENGINE_BUG_TAP_SIZE) && *to - from > e->test_rows) *to = from + e->test_rows;
}

/* DeepStack: tap n of each picture onto the stream behind layer n, rows of the chunk only. */
static void add_taps(struct engine *e, struct net *net, const struct engine_batch *b, uint32_t n)
{
    uint32_t first = 0, from, to;
    for (uint32_t i = 0; i < b->run_count; first += b->runs[i].count, i++) {
        const struct engine_run *r = &b->runs[i];
        for (uint32_t k = 0; k < r->span_count; k++) {
            const struct engine_span *u = &r->spans[k];
            if (!use_rows(r, u, &from, &to)) continue;
            uint32_t row = first + from - r->position;
            if (FAULT(e->test_bugs, UINT32_MAX)) spoil_taps(e, r, u, from, &to, &row);
            if (from < to)
                add_rows(e, net, feature_row(e, net, u, 1 + n, from, r),
                         net->s.resid + (size_t)row * net->desc.hidden, to - from);
        }
    }
}

/* The same behind the last layer, where only the wanted rows are left. */
static void add_taps_to_wanted(struct engine *e, struct net *net, const struct engine_batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < e->step.wanted_count; i++) {
        const struct engine_run *r = &b->runs[e->wanted[i].run];
        uint32_t at = e->wanted[i].next - 1;
        for (uint32_t k = 0; k < r->span_count; k++) {
            const struct engine_span *u = &r->spans[k];
            if (u->features && u->begin <= at && at < u->end)
                add_rows(e, net, feature_row(e, net, u, 1 + n, at, r),
                         tail_resid(e, net) + (size_t)i * net->desc.hidden, 1);
        }
    }
}

static void rope_tables(struct engine *e, struct net *net)
{
    for (uint32_t i = 0; i < net->desc.rope_count; i++)
        e->ops->rope(e->be, &(struct be_rope_args){.pos = e->step.rope_pos,
                                                   .t = e->step.t,
                                                   .axes = net->rope_axes,
                                                   .half = net->desc.ropes[i].dim / 2,
                                                   .inv_freq = net->inv_freq[i],
                                                   .axis = net->rope_axis[i],
                                                   .scaling = net->desc.ropes[i].attention
                                                                  ? (float)net->desc.ropes[i].attention
                                                                  : 1.0f,
                                                   .cos = net->s.cos[i],
                                                   .sin = net->s.sin[i]});
}

static enum be_epilogue gate_epilogue(enum desc_gate g)
{
    switch (g) {
    case GATE_GELU_TANH: return BE_EPI_GLU_GELU_TANH;
    case GATE_SILU: return BE_EPI_GLU_SILU;
    }
    UNREACHABLE();
    return BE_EPI_GLU_GELU_TANH;
}

/* x += add, or rms(add, post) if there is a post norm, if there is something to add; h = rms(x, next), if
 * there is a next norm.
 */
static void add_and_norm(struct engine *e, struct net *net, uint32_t t, float *resid, const float *add,
                         const float *post, const float *next)
{
    if (!add && !next) return;
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = t,
                                               .c = net->desc.hidden,
                                               .eps = net->desc.norm_eps,
                                               .x = add,
                                               .post_weight = post,
                                               .residual = resid,
                                               .weight = next,
                                               .out = next ? net->s.h : NULL,
                                               .out_dtype = e->plan.act});
}

static void linear(struct engine *e, const struct be_weight *w, const void *x, uint32_t t,
                   enum be_epilogue epi, void *out)
{
    e->ops->linear(e->be, &(struct be_linear_args){.w = w, .x = x, .t = t, .epilogue = epi, .out = out});
    atomic_fetch_add_explicit(&e->progress, 1, memory_order_relaxed);
}

/* The wanted rows' queries and residuals move to the front, unless all are wanted; attention and MLP of the
 * last layer run on them alone. Returns the queries. */
static const void *narrow(struct engine *e, struct net *net, const struct desc_layer *l)
{
    const struct step *st = &e->step;
    if (st->all_wanted) return net->s.q;
    size_t q_bytes = (size_t)l->heads * l->head_dim * be_dtype_bytes(e->plan.act);
    e->ops->gather(
        e->be, &(struct be_gather_args){net->s.q, st->wanted_rows, st->wanted_count, q_bytes, net->s.qkv});
    e->ops->gather(e->be, &(struct be_gather_args){net->s.resid, st->wanted_rows, st->wanted_count,
                                                   net->desc.hidden * sizeof(float), net->s.tail_resid});
    return net->s.qkv;
}

/* The stream takes a product: through the post norm where the family has one (then it waits in proj for
 * add_and_norm, which gets the returned address), else right away. */
static const float *project(struct engine *e, struct net *net, const struct be_weight *w, const void *x,
                            uint32_t t, const float *post, float *resid)
{
    linear(e, w, x, t, post ? BE_EPI_F32 : BE_EPI_ADD_F32, post ? net->s.proj : resid);
    return post ? net->s.proj : NULL;
}

/* s.h -> what is to be added to the stream, as project() says. */
static const float *mlp(struct engine *e, struct net *net, const struct desc_layer *l,
                        const struct layer_weights *w, uint32_t t, float *resid)
{
    struct decoder_scratch *s = &net->s;
    if (!l->experts) {
        linear(e, w->glu, s->h, t, gate_epilogue(l->gate), s->mlp);
        return project(e, net, w->down, s->mlp, t, w->post_mlp_norm, resid);
    }
    linear(e, w->router, s->h, t, BE_EPI_F32, s->router);
    e->ops->route(e->be, &(struct be_route_args){.logits = s->router,
                                                 .t = t,
                                                 .experts = l->experts,
                                                 .k = l->experts_used,
                                                 .renorm = l->experts_renorm,
                                                 .ids = s->expert_ids,
                                                 .weights = s->expert_weights});
    e->ops->experts(e->be, &(struct be_experts_args){.glu = w->expert_glu,
                                                     .down = w->expert_down,
                                                     .experts = l->experts,
                                                     .k = l->experts_used,
                                                     .t = t,
                                                     .c = net->desc.hidden,
                                                     .ff = l->ff,
                                                     .gate = gate_epilogue(l->gate),
                                                     .x = s->h,
                                                     .ids = s->expert_ids,
                                                     .weights = s->expert_weights,
                                                     .scratch = s->experts,
                                                     .out = s->proj});
    return s->proj;
}

void decoder_run(struct engine *e, struct net *net, const struct engine_batch *b)
{
    const struct model_desc *d = &net->desc;
    const struct step *st = &e->step;
    struct decoder_scratch *s = &net->s;
    e->ops->embed(
        e->be,
        &(struct be_embed_args){
            .w = net->w.embed, .ids = st->ids, .t = st->t, .scale = net->embed_scale, .out = s->resid});
    copy_features(e, net, b);
    rope_tables(e, net);
    add_and_norm(e, net, st->t, s->resid, NULL, NULL, net->w.layers[0].input_norm);
    uint32_t t = st->t;
    float *resid = s->resid;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &net->w.layers[n];
        const struct be_rows *rows = &st->rows[e->kv.layer_group[l->kv_owner]];
        struct be_kv kv = {e->arena, e->kv.layer_offset[l->kv_owner], l->kv_heads, l->head_dim};
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
            q = narrow(e, net, l);
            rows = &st->tail;
            t = st->tail.t;
            resid = tail_resid(e, net);
        }
        e->ops->attn(e->be, &(struct be_attn_args){.rows = rows,
                                                   .heads = l->heads,
                                                   .kv = kv,
                                                   .q = q,
                                                   .scale = l->scale,
                                                   .softcap = l->softcap,
                                                   .out = s->attn});
        const float *add = project(e, net, w->o, s->attn, t, w->post_attn_norm, resid);
        add_and_norm(e, net, t, resid, add, w->post_attn_norm, w->pre_mlp_norm);
        add = mlp(e, net, l, w, t, resid);
        const float *next = last ? NULL : net->w.layers[n + 1].input_norm;
        if (d->has_vision && n < d->vision.tap_count) {
            add_and_norm(e, net, t, resid, add, w->post_mlp_norm, NULL);
            if (last) add_taps_to_wanted(e, net, b, n);
            else add_taps(e, net, b, n);
            add_and_norm(e, net, t, resid, NULL, NULL, next);
        } else {
            add_and_norm(e, net, t, resid, add, w->post_mlp_norm, next);
        }
    }
}

void decoder_logits(struct engine *e, struct net *net, uint32_t first, uint32_t count)
{
    const struct model_desc *d = &net->desc;
    struct decoder_scratch *s = &net->s;
    ASSERT_CMP(count, <=, e->plan.logit_rows);
    e->ops->norm(e->be, &(struct be_norm_args){.kind = BE_NORM_RMS,
                                               .t = count,
                                               .c = d->hidden,
                                               .eps = d->norm_eps,
                                               .residual = tail_resid(e, net) + (size_t)first * d->hidden,
                                               .weight = net->w.final_norm,
                                               .out = s->head_in,
                                               .out_dtype = e->plan.act});
    linear(e, net->w.head, s->head_in, count, BE_EPI_F32, s->logits);
    e->ops->logit_stats(e->be, &(struct be_logits_args){.logits = s->logits,
                                                        .r = count,
                                                        .v = d->vocab,
                                                        .softcap = d->final_softcap,
                                                        .targets = e->step.targets + first,
                                                        .stats = s->stats});
}

void decoder_top(struct engine *e, struct net *net, uint32_t count, uint32_t k)
{
    uint32_t *ids = net->s.top;
    float *values = (float *)(ids + (size_t)count * k);
    ASSERT(count <= e->plan.logit_rows && k > 0 && k <= BE_TOPK_MAX);
    e->ops->topk(e->be, &(struct be_topk_args){net->s.logits, count, net->desc.vocab, k, ids, values});
}

void decoder_kv_clear(struct engine *e, uint32_t group, uint32_t unit, uint32_t first)
{
    for (uint32_t n = 0; n < e->net.desc.layer_count; n++) {
        const struct desc_layer *l = &e->net.desc.layers[n];
        struct be_kv kv = {e->arena, e->kv.layer_offset[n], l->kv_heads, l->head_dim};
        if (l->kv_owner == n && e->kv.layer_group[n] == group) e->ops->kv_clear(e->be, &kv, unit, first);
    }
}

/* Recurrent layers: the states of a step's sequences, and draft tokens. A state covers the tokens before the
 * chunk's draft tokens. The inputs of draft tokens are kept, and those of accepted ones are replayed, so
 * rejected ones have no effect. Engine thread. */
#include "engine/internal.h"

static bool recurrent(const struct engine *e)
{
    return e->kv.table_groups < e->kv.group_count;
}

/* Floats of a row of a layer's inputs: the first product and beta|a. All recurrent layers have the same. */
static size_t row_floats(const struct model_desc *d, size_t *columns)
{
    uint32_t n = 0;
    while (!desc_recurrent(&d->layers[n])) n++;
    *columns = desc_in_columns(d, n);
    return *columns + 2 * d->delta.value_heads;
}

static size_t replay_bytes(const struct engine *e, uint32_t rows)
{
    size_t columns, row = row_floats(&e->net.desc, &columns);
    return (size_t)e->kv.groups[e->kv.table_groups].layers * rows * row * sizeof(float);
}

void recurrent_plan(struct engine *e)
{
    enum { REPLAY_BYTES = 256 << 20, ROWS_LEAST = 16 };
    struct engine_plan *p = &e->plan;
    p->draft_rows_max = 0;
    p->replay_bytes = 0;
    if (!recurrent(e)) return;
    size_t rows = REPLAY_BYTES / replay_bytes(e, 1);
    if (rows > p->batch_tokens_max) rows = p->batch_tokens_max;
    p->draft_rows_max = rows < ROWS_LEAST ? ROWS_LEAST : (uint32_t)rows;
    p->replay_bytes = replay_bytes(e, p->draft_rows_max);
}

enum status recurrent_reserve(struct engine *e, const struct engine_batch *b, struct err *err)
{
    struct replay *r = &e->replay;
    uint32_t rows = 0, most = r->rows_max;
    for (uint32_t i = 0; i < b->chunk_count; i++) rows += b->chunks[i].proposed;
    if (!recurrent(e) || rows <= most) return ST_OK;
    while (most < rows) most = most ? 2 * most : 16;
    if (most > e->plan.draft_rows_max) most = e->plan.draft_rows_max;
    ASSERT_CMP(rows, <=, most);
    if (r->block) e->ops->free(e->be, r->block);
    *r = (struct replay){0};
    if (e->ops->alloc(e->be, replay_bytes(e, most), &r->block) != BE_OK)
        return err_set(err, ST_AGAIN, "draft tokens: %s", e->ops->last_error(e->be));
    r->rows_max = most;
    return ST_OK;
}

/* Where the inputs of layer n are kept. */
static float *kept_rows(const struct engine *e, uint32_t n, float **gates)
{
    size_t columns, row = row_floats(&e->net.desc, &columns), at = 0;
    for (uint32_t k = 0; k < n; k++) at += desc_recurrent(&e->net.desc.layers[k]);
    float *rows = (float *)e->replay.block + at * e->replay.rows_max * row;
    *gates = rows + e->replay.rows_max * columns;
    return rows;
}

/* Arrays for `count` sequences; returns them in the order first, count, kept, from, to. */
static void pack_states(struct engine *e, uint32_t count, size_t *used, uint32_t *out[5])
{
    struct be_states *s = &e->step.states;
    *s = (struct be_states){.arena = e->arena, .seq_count = count};
    const uint32_t **dev[5] = {&s->first, &s->count, &s->kept, &s->from, &s->to};
    for (int i = 0; i < 5; i++) out[i] = engine__array(e, used, count, dev[i]);
}

void recurrent_pack(struct engine *e, const struct engine_batch *b, uint32_t pad, size_t *used)
{
    struct step *st = &e->step;
    uint32_t *s[5], row = 0, drafts = 0;
    pack_states(e, b->chunk_count + pad, used, s);
    for (uint32_t i = 0; i < b->chunk_count + pad; i++) {
        const struct engine_chunk *r = i < b->chunk_count ? &b->chunks[i] : NULL;
        s[0][i] = row;
        s[1][i] = r ? r->count : 1;
        s[2][i] = r ? r->count - r->proposed : 1;
        s[3][i] = r && r->position ? r->state_from : BE_NO_BLOCK;
        s[4][i] = r ? r->state_to : BE_NO_BLOCK;
        row += s[1][i];
        drafts += r ? r->proposed : 0;
    }
    uint32_t *rows = engine__array(e, used, drafts, &st->draft_rows);
    for (uint32_t i = 0; i < b->chunk_count; i++)
        for (uint32_t k = s[2][i]; k < s[1][i]; k++) rows[st->draft_count++] = s[0][i] + k;
}

static void mix(struct engine *e, const struct net *net, uint32_t n, float *qkv, float *gates, bool outputs)
{
    const struct desc_delta *g = &net->desc.delta;
    const struct layer_weights *w = &net->w.layers[n];
    uint32_t columns = desc_conv_columns(&net->desc);
    size_t at = e->kv.layer_offset[n], stride = desc_in_columns(&net->desc, n);
    bool gated = net->desc.layers[n].mixer == MIXER_CONV;
    e->ops->conv(e->be, &(struct be_conv_args){&e->step.states, .layer_offset = at,
                                               .x = gated ? qkv + 2 * (size_t)columns : qkv,
                                               .times = gated ? qkv : NULL, .stride = stride, .c = columns,
                                               .k = g->conv_k, .weight = w->conv, .bias = w->conv_bias});
    if (gated) return;
    e->ops->delta(e->be, &(struct be_delta_args){
                             &e->step.states, .layer_offset = at + be_conv_bytes(columns, g->conv_k),
                             .key_heads = g->key_heads, .value_heads = g->value_heads, .key_dim = g->key_dim,
                             .value_dim = g->value_dim, .tiled = g->tiled, .qkv = qkv, .stride = stride,
                             .gates = gates, .decay = w->decay, .dt_bias = w->dt_bias, .outputs = outputs});
}

void recurrent_mix(struct engine *e, struct net *net, uint32_t n)
{
    const struct step *st = &e->step;
    size_t columns, gate_bytes = (row_floats(&net->desc, &columns) - columns) * sizeof(float);
    if (st->draft_count) {
        float *gates, *rows = kept_rows(e, n, &gates);
        e->ops->gather(e->be, &(struct be_gather_args){net->s.qkv, st->draft_rows, st->draft_count,
                                                       columns * sizeof(float), rows});
        if (gate_bytes)
            e->ops->gather(e->be, &(struct be_gather_args){net->s.gates, st->draft_rows, st->draft_count,
                                                           gate_bytes, gates});
    }
    mix(e, net, n, net->s.qkv, net->s.gates, true);
}

void recurrent_replay(struct engine *e, const struct engine_batch *b)
{
    size_t used = 0;
    uint32_t *s[5], count = 0, row = 0;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        count += !r->broken && r->proposed && r->drawn_count > 1;
    }
    if (!count) return;
    pack_states(e, count, &used, s);
    count = 0;
    for (uint32_t i = 0; i < b->chunk_count; row += b->chunks[i].proposed, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        if (r->broken || !r->proposed || r->drawn_count < 2) continue;
        s[0][count] = row;
        s[1][count] = s[2][count] = r->drawn_count - 1;
        s[3][count] = s[4][count] = r->state_to;
        count++;
    }
    e->ops->upload(e->be, e->net.s.step, e->host_step, used * sizeof *e->host_step);
    for (uint32_t n = 0; n < e->net.desc.layer_count; n++) {
        if (!desc_recurrent(&e->net.desc.layers[n])) continue;
        float *gates, *rows = kept_rows(e, n, &gates);
        mix(e, &e->net, n, rows, gates, false);
    }
}

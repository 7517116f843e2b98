/* One step: index arrays from the scheduler's chunks, launch, then logits in chunks and sampling. Engine
 * thread.
 *
 * Visibility of a row at position p (both bounds inclusive, one interval per KV group): lo = 0 (full
 * attention) or max(0, p - window + 1), hi = p; in a bidirectional span (enum span_rule) hi is its last
 * position, and of a SPAN_PREFIX_LM or SPAN_BIDIRECTIONAL_ANY lo at most its first; an encoder's windows end
 * at p + window - 1. This is transformers' rule for images of SPAN_BIDIRECTIONAL: (j <= i or same image) and,
 * in sliding layers, i - j < window. */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/floats.h"

#include <math.h>
#include <string.h>

#define NEVER_LOGPROB (-9999.0f) /* finite, so that JSON can represent it */

/* Appends to the host image of the index arrays; the same offset holds in backend memory. */
struct packer {
    struct engine *e;
    size_t used;
    uint32_t pad; /* padding rows at the end */
};

static uint32_t *array(struct packer *p, size_t words, const uint32_t **dev)
{
    return engine__array(p->e, &p->used, words, dev);
}

static void check_batch(const struct engine *e, const struct engine_batch *b)
{
    uint64_t total = 0;
    ASSERT(b->chunk_count > 0 && b->chunk_count <= e->plan.sequences_max);
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        ASSERT_CMP(r->count, >, 0);
        ASSERT((uint64_t)r->position + r->count <= e->plan.context_max);
        ASSERT((uint64_t)r->position + r->count <= r->token_count);
        ASSERT(!r->sample || r->sampling);
        ASSERT(!r->proposed || (r->sample && r->drawn && r->proposed < r->count));
        ASSERT(!r->given || (r->sample && r->drawn && !r->proposed && r->given <= r->count &&
                             r->position + r->count < r->token_count));
        ASSERT(!r->hidden || r->hidden_first >= r->position);
        ASSERT(r->score_first == UINT32_MAX || (r->scores && r->sampling));
        ASSERT(!r->after == !e->flight_count && (!r->after || (r->count == 1 && r->span_count == 0)));
        total += r->count;
    }
    ASSERT(total <= e->plan.batch_tokens_max);
}

/* Position of token i of an image on one axis; see struct prompt_grid. `base` is the next free position
 * before it. */
static int32_t grid_position(const struct prompt_grid *g, int32_t base, uint32_t i, int axis)
{
    if (axis == 0) return base + prompt_grid_time(g, i / (g->h * g->w));
    return base + (int32_t)(axis == 1 ? i / g->w % g->h : i % g->w);
}

/* One position per row, from rope_first on. */
static void pack_shifted(struct packer *p, const uint32_t *ps)
{
    struct step *st = &p->e->step;
    const uint32_t *dev;
    int32_t *pos = (int32_t *)array(p, st->t, &dev);
    for (uint32_t i = 0; i < st->t; i++) pos[i] = (int32_t)(ps[i] + p->e->net.desc.rope_first);
    st->rope_pos = (const int32_t *)dev;
}

/* Three positions per row (mRoPE): text continues after the images before it, the tokens of an image have
 * their own. */
static void pack_rope(struct packer *p, const struct engine_batch *b)
{
    struct step *st = &p->e->step;
    const uint32_t *dev;
    int32_t *pos = (int32_t *)array(p, 3 * (size_t)st->t, &dev);
    uint32_t row = 0;
    memset(pos, 0, 3 * (size_t)st->t * sizeof *pos); /* of padding rows too */
    st->rope_pos = (const int32_t *)dev;
    for (uint32_t i = 0; i < b->chunk_count; row += b->chunks[i].count, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        uint32_t m = 0;
        int32_t offset = r->mrope_delta;
        for (uint32_t k = 0; k < r->count; k++) {
            uint32_t at = r->position + k;
            while (m < r->span_count && r->spans[m].end <= at) offset = r->spans[m++].mrope_delta;
            const struct engine_span *u = m < r->span_count && r->spans[m].begin <= at ? &r->spans[m] : NULL;
            for (int a = 0; a < 3; a++)
                pos[(size_t)a * st->t + row + k] =
                    u && u->grid.w
                        ? grid_position(&u->grid, (int32_t)u->begin + u->mrope_delta_before, at - u->begin, a)
                        : (int32_t)at + offset;
        }
    }
}

static uint32_t blocks_of(const struct engine_chunk *r)
{
    return (r->position + r->count + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
}

/* ids and pos of all rows. Rows of an image get no embedding: their features are copied in. */
static void pack_tokens(struct packer *p, const struct engine_batch *b, const uint32_t **pos)
{
    struct step *st = &p->e->step;
    const struct model_desc *d = &p->e->net.desc;
    const uint32_t *ids_dev;
    uint32_t *ids = array(p, st->t, &ids_dev), *ps = array(p, st->t, pos), row = 0;
    st->ids = ids_dev;
    st->rope_pos = (const int32_t *)*pos; /* positions are below 2^24: the same bits */
    if (p->e->net.rope_axes > 1) pack_rope(p, b);
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        for (uint32_t k = 0; k < r->count; k++) {
            ids[row + k] = r->after ? r->after - 1 : r->tokens[r->position + k];
            ps[row + k] = r->position + k;
            for (uint32_t n = 0; n < d->pad_count; n++)
                if (ids[row + k] == d->pads[n]) ids[row + k] = d->pad_id;
        }
        for (uint32_t m = 0; m < r->span_count; m++) {
            const struct engine_span *u = &r->spans[m];
            uint32_t end = r->position + r->count;
            ASSERT(u->begin < u->end);
            ASSERT(u->atomic_end <= r->position || u->atomic_begin >= end || u->atomic_end <= end);
            for (uint32_t q = u->begin > r->position ? u->begin : r->position; q < u->end && q < end; q++)
                if (u->features && !prompt_grid_break(&u->grid, q - u->begin))
                    ids[row + q - r->position] = UINT32_MAX;
        }
        for (uint32_t k = 0; k < r->count; k++)
            ASSERT(ids[row + k] < p->e->net.desc.vocab || ids[row + k] == UINT32_MAX);
        row += r->count;
    }
    /* Padding rows have the first row's token, attend only to their own key, and are placed after its blocks,
     * where the table has no block. So all padding rows are equal: they select the same experts and read
     * almost nothing. */
    for (uint32_t k = 0; k < p->pad; k++) {
        ids[row + k] = ids[0];
        ps[row + k] = blocks_of(&b->chunks[0]) * BE_BLOCK_TOKENS;
    }
    if (p->e->net.desc.rope_first) pack_shifted(p, ps);
}

static uint32_t low(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* What a row of the chunk's span u sees in a group, from the causal rule in *lo and *hi. */
static void see_span(const struct engine *e, const struct engine_span *u, uint32_t window, uint32_t *lo,
                     uint32_t *hi)
{
    if (u->rule == SPAN_CAUSAL || (u->rule == SPAN_BIDIRECTIONAL_SLIDING && !window)) return;
    if (e->net.desc.encoder && window && window < u->atomic_end - *hi) {
        *hi += window - 1;
        return;
    }
    *hi = u->atomic_end - 1;
    if (!e->net.desc.encoder && (u->rule == SPAN_PREFIX_LM || u->rule == SPAN_BIDIRECTIONAL_ANY) &&
        u->atomic_begin < *lo)
        *lo = u->atomic_begin;
}

/* First and last keys of one group, and offsets into its tables. */
static void pack_group(struct packer *p, const struct engine_batch *b, uint32_t g, const uint32_t *seq_row,
                       const uint32_t *pos)
{
    struct step *st = &p->e->step;
    uint32_t window = p->e->kv.groups[g].window, row = 0;
    struct be_rows *r = &st->rows[g];
    *r = (struct be_rows){.t = st->t, .seq_count = st->seq_count, .seq_row = seq_row, .pos = pos};
    uint32_t *lo = array(p, st->t, &r->lo), *hi = array(p, st->t, &r->hi);
    (void)array(p, st->seq_count, &r->seq_table); /* pack_tables fills it */
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *chunk = &b->chunks[i];
        for (uint32_t k = 0, m = 0; k < chunk->count; k++, row++) {
            uint32_t at = chunk->position + k;
            lo[row] = low(at, window);
            hi[row] = at;
            while (m < chunk->span_count && chunk->spans[m].end <= at) m++;
            if (m < chunk->span_count && chunk->spans[m].begin <= at)
                see_span(p->e, &chunk->spans[m], window, &lo[row], &hi[row]);
        }
    }
    for (uint32_t k = 0; k < p->pad; k++) lo[row + k] = hi[row + k] = b->chunks[0].position;
}

/* Block tables of all groups, one after another, after all arrays of a known length; seq_table says where
 * each begins. Blocks before the window are passed on unchanged. Padding rows share the first sequence's
 * table, which has one more entry for them. */
static void pack_tables(struct packer *p, const struct engine_batch *b)
{
    struct engine *e = p->e;
    struct step *st = &e->step;
    size_t entries = p->pad ? 1 : 0, at = 0;
    const uint32_t *dev;
    for (uint32_t i = 0; i < b->chunk_count; i++) entries += blocks_of(&b->chunks[i]);
    uint32_t *table = array(p, entries * e->kv.table_groups, &dev);
    for (uint32_t g = 0; g < e->kv.table_groups; g++) {
        uint32_t *start = e->host_step + (st->rows[g].seq_table - e->net.s.step), *own = table + at;
        st->rows[g].tables = dev;
        for (uint32_t i = 0; i < b->chunk_count + p->pad; i++) {
            const struct engine_chunk *chunk = &b->chunks[i];
            start[i] = i < b->chunk_count ? (uint32_t)at : (uint32_t)(own - table);
            if (i >= b->chunk_count) continue;
            memcpy(table + at, chunk->tables[g], blocks_of(chunk) * sizeof *table);
            at += blocks_of(chunk);
            if (i == 0 && p->pad) table[at++] = BE_NO_BLOCK;
        }
    }
}

/* Rows of drafter.hidden: a row's predecessor in the step, or what was kept of the sequence, or zeros. */
static void pack_before(struct packer *p, const struct engine_batch *b)
{
    const struct engine *e = p->e;
    uint32_t *before = array(p, p->e->step.t, &p->e->step.before), kept = e->plan.batch_tokens_max, row = 0,
             zeros = kept + e->plan.sequences_max;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        bool known = r->position && e->draft.slot_at[r->draft_slot] == r->position;
        before[row] = known ? kept + r->draft_slot : zeros;
        for (uint32_t k = 1; k < r->count; k++) before[row + k] = row + k - 1;
        row += r->count;
    }
    while (row < e->step.t) before[row++] = zeros;
}

/* How many of its last rows a token is drawn at. */
static uint32_t draws(const struct engine_chunk *r)
{
    return !r->sample ? 0 : r->given ? r->given : 1 + r->proposed;
}

/* Finds the rows that need logits: the last one of a chunk that samples, and those before a scored prompt
 * token; and those whose input to the head is asked for. */
static void find_output_rows(struct engine *e, const struct engine_batch *b)
{
    uint32_t row = 0;
    struct step *st = &e->step;
    st->output_count = 0;
    for (uint32_t i = 0; i < b->chunk_count; row += b->chunks[i].count, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        for (uint32_t k = 0; k < r->count; k++) {
            uint32_t next = r->position + k + 1;
            struct output_row w = {.chunk = i, .row = row + k, .next = next};
            w.sample = k + draws(r) >= r->count;
            w.score = r->score_first != UINT32_MAX && next >= r->score_first && next < r->prompt_count &&
                      next < r->token_count;
            w.hidden = r->hidden && r->position + k >= r->hidden_first;
            if (w.sample || w.score || w.hidden) e->output_rows[st->output_count++] = w;
        }
    }
}

static uint32_t banned_count(const struct engine_chunk *r, const struct output_row *w)
{
    return w->next < r->banned_until ? r->banned_count : 0;
}

/* Tokens whose log-prob is requested and how one is drawn, for every output row. */
static void pack_targets(struct packer *p, const struct engine_batch *b)
{
    const struct engine *e = p->e;
    struct step *st = &p->e->step;
    uint32_t n = st->output_count, *targets = array(p, n + p->pad, &st->targets);
    const uint32_t *draws_dev;
    struct be_draw *how = (struct be_draw *)array(p, 2 * (size_t)(n + p->pad), &draws_dev);
    st->draws = (const struct be_draw *)draws_dev;
    for (uint32_t i = 0; i < n + p->pad; i++) {
        const struct output_row *w = &e->output_rows[i];
        targets[i] = UINT32_MAX;
        how[i] = (struct be_draw){0, 0};
        if (i < n && w->sample) {
            const struct engine_chunk *r = &b->chunks[w->chunk];
            how[i] = sampler_plain_draw(r->sampling, banned_count(r, w), w->next);
        }
        if (i < n && (w->score || (w->sample && b->chunks[w->chunk].given)) &&
            b->chunks[w->chunk].tokens[w->next] < e->net.desc.vocab)
            targets[i] = b->chunks[w->chunk].tokens[w->next];
    }
}

/* The output rows as a batch: sequences without any drop out. seq_table and tables: pack_out_tables. */
static void pack_out_rows(struct packer *p, const struct engine_batch *b)
{
    struct engine *e = p->e;
    struct step *st = &e->step;
    uint32_t n = st->output_count, seq = 0;
    struct be_rows out_rows = {.t = n};
    uint32_t *rows = array(p, n, &st->output_row_ids), *pos = array(p, n, &out_rows.pos);
    uint32_t *seq_row = array(p, b->chunk_count + 1, &out_rows.seq_row);
    for (uint32_t i = 0; i < n; i++) {
        const struct output_row *w = &e->output_rows[i];
        rows[i] = w->row;
        pos[i] = w->next - 1;
        if (i == 0 || e->output_rows[i - 1].chunk != w->chunk) seq_row[seq++] = i;
    }
    seq_row[seq] = n;
    out_rows.seq_count = seq;
    for (uint32_t g = 0; g < e->kv.table_groups; g++) {
        const uint32_t *all_lo = e->host_step + (st->rows[g].lo - e->net.s.step),
                       *all_hi = e->host_step + (st->rows[g].hi - e->net.s.step);
        st->out_rows[g] = out_rows;
        uint32_t *lo = array(p, n, &st->out_rows[g].lo), *hi = array(p, n, &st->out_rows[g].hi);
        (void)array(p, b->chunk_count, &st->out_rows[g].seq_table);
        for (uint32_t i = 0; i < n; i++) {
            lo[i] = all_lo[rows[i]];
            hi[i] = all_hi[rows[i]];
        }
    }
}

static void pack_out_tables(struct engine *e, uint32_t g)
{
    struct step *st = &e->step;
    const uint32_t *start = e->host_step + (st->rows[g].seq_table - e->net.s.step);
    uint32_t *seq_table = e->host_step + (st->out_rows[g].seq_table - e->net.s.step), seq = 0;
    for (uint32_t i = 0; i < st->output_count; i++)
        if (i == 0 || e->output_rows[i - 1].chunk != e->output_rows[i].chunk)
            seq_table[seq++] = start[e->output_rows[i].chunk];
    st->out_rows[g].tables = st->rows[g].tables;
}

/* Per-layer embeddings: rows of the table, from the file to the backend. */
static void pack_ple(struct engine *e, const uint32_t *ids)
{
    const struct model_desc *d = &e->net.desc;
    size_t cols = (size_t)d->layer_count * d->ple;
    float scale = e->net.token_scale * 0.70710678118654752f;
    for (uint32_t row = 0; row < e->step.t; row += HOST_TOKEN_ROWS) {
        uint32_t n = e->step.t - row < HOST_TOKEN_ROWS ? e->step.t - row : HOST_TOKEN_ROWS;
        for (uint32_t i = 0; i < n; i++)
            weights_row(&e->net.w.ple_table, ids[row + i] == UINT32_MAX ? d->pad_id : ids[row + i],
                        e->host_token + i * cols);
        for (size_t i = 0; i < n * cols; i++) e->host_token[i] *= scale;
        e->ops->upload(e->be, e->net.s.token + row * cols, e->host_token, n * cols * sizeof(float));
    }
}

/* The runs of rows with an adapter, of all rows or of the output rows. */
static void find_adapters(struct engine *e, const struct engine_batch *b, bool outputs)
{
    struct adapter_run *runs = e->runs + (outputs ? e->plan.sequences_max : 0);
    struct adapter_rows *to = &e->step.adapted[outputs];
    uint32_t n = outputs ? e->step.output_count : b->chunk_count, row = 0;
    to->runs = runs;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_chunk *r = &b->chunks[outputs ? e->output_rows[i].chunk : i];
        uint32_t count = outputs ? 1 : r->count;
        struct adapter_run *last = to->run_count ? &runs[to->run_count - 1] : NULL;
        if (last && last->adapter == r->adapter && last->first + last->count == row) last->count += count;
        else if (r->adapter) runs[to->run_count++] = (struct adapter_run){r->adapter, row, count};
        row += count;
    }
}

void engine__pack(struct engine *e, const struct engine_batch *b, uint32_t rows)
{
    struct packer p = {.e = e};
    struct step *st = &e->step;
    const uint32_t *pos, *seq_row_dev;
    uint32_t row = 0;
    *st = (struct step){0};
    for (uint32_t i = 0; i < b->chunk_count; i++) st->t += b->chunks[i].count;
    if (rows) {
        ASSERT(st->t == b->chunk_count && rows >= st->t && rows <= e->plan.sequences_max);
        p.pad = rows - st->t;
    }
    st->t += p.pad;
    st->seq_count = b->chunk_count + p.pad;
    pack_tokens(&p, b, &pos);
    uint32_t *seq_row = array(&p, st->seq_count + 1u, &seq_row_dev);
    for (uint32_t i = 0; i < st->seq_count; row += i < b->chunk_count ? b->chunks[i].count : 1, i++)
        seq_row[i] = row;
    seq_row[st->seq_count] = row;
    for (uint32_t g = 0; g < e->kv.table_groups; g++) pack_group(&p, b, g, seq_row_dev, pos);
    if (e->kv.table_groups < e->kv.group_count) recurrent_pack(e, b, p.pad, &p.used);
    if (e->draft.own) pack_before(&p, b);
    find_output_rows(e, b);
    st->all_output = st->output_count + p.pad == st->t;
    if (st->output_count) pack_targets(&p, b);
    if (st->output_count && !st->all_output) pack_out_rows(&p, b);
    find_adapters(e, b, false);
    find_adapters(e, b, true);
    pack_tables(&p, b);
    for (uint32_t g = 0; g < e->kv.table_groups; g++) {
        if (st->all_output) st->out_rows[g] = st->rows[g];
        else if (st->output_count) pack_out_tables(e, g);
    }
    if (e->net.desc.ple) pack_ple(e, e->host_step + (st->ids - e->net.s.step));
    e->ops->upload(e->be, e->net.s.step, e->host_step, p.used * sizeof *e->host_step);
}

/* ---- logits, tokens ---- */

/* Index of the row among the chunk's sampled positions. */
static uint32_t draw_index(const struct engine_chunk *r, const struct output_row *w)
{
    return w->next - (r->position + r->count + 1 - draws(r));
}

/* Whether all draft or given tokens before the row were drawn. */
static bool reached(const struct engine_chunk *r, const struct output_row *w)
{
    uint32_t k = draw_index(r, w);
    return k == 0 || (r->drawn_count == k && r->drawn[k - 1].id == r->tokens[w->next - 1]);
}

/* How many largest logits an output row needs. */
static uint32_t top_needed(const struct engine *e, const struct engine_chunk *r, const struct output_row *w)
{
    uint32_t k = 0;
    if (w->sample) {
        k = sampler_top_wanted(r->sampling, banned_count(r, w));
        if (r->sampling->logprobs != SAMPLING_NO_LOGPROBS && r->sampling->logprobs > k)
            k = r->sampling->logprobs;
    }
    if (w->score && r->sampling->prompt_logprobs != SAMPLING_NO_LOGPROBS && r->sampling->prompt_logprobs > k)
        k = r->sampling->prompt_logprobs;
    if (k > BE_TOPK_MAX) k = BE_TOPK_MAX;
    return k < e->net.desc.vocab ? k : e->net.desc.vocab;
}

/* Row i of `count`, whose statistics and k largest logits are in e->host_results. True if those did not
 * suffice: then the row is being fetched, and the download is not yet synchronised. */
static bool finish_row(struct engine *e, struct engine_batch *b, uint32_t i, uint32_t count, uint32_t k,
                       const struct output_row *w, struct sampler *sampler)
{
    struct engine_chunk *r = &b->chunks[w->chunk];
    if (!w->sample && !w->score) return false;
    const float *logits = e->net.s.logits + (size_t)i * e->net.desc.vocab;
    const struct be_logit_stats *stats = e->host_results;
    const uint32_t *ids = (const uint32_t *)(stats + e->plan.logit_rows);
    const float *values = (const float *)(ids + (size_t)count * k);
    struct sampler_row row = {.raw = e->becaps.host_memory ? logits : NULL,
                              .stats = stats[i],
                              .top_ids = ids + (size_t)i * k,
                              .top_values = values + (size_t)i * k,
                              .top_count = top_needed(e, r, w),
                              .history = r->tokens,
                              .history_count = w->next,
                              .prompt_count = r->prompt_count,
                              .position = w->next,
                              .banned = r->banned,
                              .banned_count = banned_count(r, w)};
    if (w->score) {
        struct token_out *out = &r->scores[w->next - r->position - 1];
        sampler_score(r->tokens[w->next], r->sampling->prompt_logprobs, &row, out);
        if (r->tokens[w->next] >=
            e->net.desc.vocab) { /* an image's placeholder that has no row in the head: never predicted */
            out->logprob = NEVER_LOGPROB;
            out->rank = e->net.desc.vocab + 1;
        }
    }
    bool finite = isfinite(row.stats.lse); /* else: a NaN, infinity, or only -infinity */
    if (w->sample && !reached(r, w)) {
        if (r->given) r->broken |= !finite; /* its keys and values are kept */
        else r->refused_broken |= !finite;
        return false;
    }
    r->broken |= !finite;
    if (!w->sample || r->broken) return false;
    struct token_out *out = r->proposed || r->given ? &r->drawn[draw_index(r, w)] : &r->out;
    r->drawn_count++;
    if (r->forced) {
        sampler_score(r->tokens[w->next], r->sampling->logprobs, &row, out);
        return false;
    }
    bool fetched = !sampler_draw(sampler, r->sampling, &row, out);
    if (fetched) {
        e->ops->download(e->be, e->host_row, logits, e->net.desc.vocab * sizeof(float));
        row.raw = e->host_row;
        bool drawn = sampler_draw(sampler, r->sampling, &row, out);
        ASSERT(drawn);
    }
    if (r->given && out->id != r->tokens[w->next])
        sampler_score(r->tokens[w->next], SAMPLING_NO_LOGPROBS, &row, &r->missed);
    return fetched;
}

/* Rows of a chunk in slices, one for each sampler; all rows of a chunk lie in one. */
struct finish_slices {
    struct engine *e;
    struct engine_batch *b;
    const struct output_row *output_rows; /* [count] */
    uint32_t count, k;
    uint32_t start[ENGINE_SAMPLERS_MAX + 1];
};

static void finish_slice(void *ctx, uint32_t slice)
{
    const struct finish_slices *f = ctx;
    for (uint32_t i = f->start[slice]; i < f->start[slice + 1]; i++) {
        bool fetched = finish_row(f->e, f->b, i, f->count, f->k, &f->output_rows[i], f->e->samplers[slice]);
        ASSERT(!fetched); /* host memory */
    }
}

/* Sampling that walks a row or a history takes longer than waking threads. */
static bool finish_together(struct engine *e, struct engine_batch *b, uint32_t first, uint32_t count,
                            uint32_t k)
{
    uint32_t walks = 0, n = e->sampler_count;
    struct finish_slices f = {.e = e, .b = b, .output_rows = e->output_rows + first, .count = count, .k = k};
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_chunk *r = &b->chunks[f.output_rows[i].chunk];
        walks += f.output_rows[i].sample && sampler_walks(r->sampling, banned_count(r, &f.output_rows[i]));
    }
    if (!e->becaps.host_memory || n < 2 || walks < 2) return false;
    for (uint32_t s = 1; s <= n; s++) {
        uint32_t at = (uint32_t)((uint64_t)count * s / n);
        if (at < f.start[s - 1]) at = f.start[s - 1];
        while (at > 0 && at < count && f.output_rows[at].chunk == f.output_rows[at - 1].chunk) at++;
        f.start[s] = at;
    }
    e->ops->host_each(e->be, n, finish_slice, &f);
    return true;
}

/* Of a drafter with keys of its own: keeps row `row` of the step, whose token is at `position`, for the
 * chunk's slot. */
static void keep_row(struct engine *e, const struct engine_chunk *r, uint32_t row, uint32_t position)
{
    struct drafter *f = &e->draft;
    size_t c = f->net.desc.hidden;
    int32_t delta = r->mrope_delta;
    for (uint32_t i = 0; i < r->span_count && r->spans[i].end <= position + 1; i++)
        delta = r->spans[i].mrope_delta;
    e->ops->copy(e->be, f->hidden + (e->plan.batch_tokens_max + r->draft_slot) * c, f->hidden + row * c,
                 c * sizeof(float));
    f->slot_at[r->draft_slot] = position + 1;
    f->slot_delta[r->draft_slot] = delta;
}

/* Keeps the head's input at each sequence's last sampled token. A later chunk overwrites it. */
static void keep_drawn(struct engine *e, const struct engine_batch *b, uint32_t first, uint32_t count)
{
    size_t row = be_ld(e->net.desc.hidden) * be_dtype_bytes(e->plan.act);
    for (uint32_t i = 0; i < count; i++) {
        const struct output_row *w = &e->output_rows[first + i];
        const struct engine_chunk *r = &b->chunks[w->chunk];
        if (!w->sample || draw_index(r, w) + 1 != r->drawn_count) continue;
        ASSERT_CMP(r->draft_slot, <, e->plan.sequences_max);
        if (e->draft.own) {
            keep_row(e, r, w->row, w->next - 1);
            continue;
        }
        e->ops->copy(e->be, (char *)e->draft.drawn + r->draft_slot * row,
                     (const char *)e->net.s.head_in + i * row, row);
    }
}

/* Copies the head's input of the rows that ask for it, as f32. */
static enum status finish_hidden(struct engine *e, const struct engine_batch *b, uint32_t first,
                                 uint32_t count, struct err *err)
{
    uint32_t c = e->net.desc.hidden;
    size_t row = be_ld(c) * be_dtype_bytes(e->plan.act);
    for (uint32_t i = 0; i < count; i++) {
        const struct output_row *w = &e->output_rows[first + i];
        struct engine_chunk *r = &b->chunks[w->chunk];
        if (!w->hidden) continue;
        const char *from = (const char *)e->net.s.head_in + i * row;
        if (!e->becaps.host_memory) {
            e->ops->download(e->be, e->host_row, from, row);
            if (e->ops->sync(e->be) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
            from = (const char *)e->host_row;
        }
        float *out = r->hidden + (size_t)(w->next - 1 - r->hidden_first) * c;
        for (uint32_t k = 0; k < c; k++) {
            out[k] =
                e->plan.act == BE_F32 ? ((const float *)from)[k] : bf16_to_f32(((const uint16_t *)from)[k]);
            r->broken |= !isfinite(out[k]);
        }
    }
    return ST_OK;
}

static uint32_t pass_rows(const struct engine *e, uint32_t first)
{
    uint32_t left = e->step.output_count - first;
    return left < e->plan.logit_rows ? left : e->plan.logit_rows;
}

static size_t result_bytes(const struct engine *e, uint32_t count, uint32_t k)
{
    return (k ? e->plan.logit_rows : count) * sizeof *e->net.s.stats + (size_t)count * k * 8;
}

/* Queues the logits of output rows, what is made of them, and its way to the host: one download brings
 * everything. Returns how many largest logits of each row. */
static uint32_t queue_results(struct engine *e, const struct engine_batch *b, uint32_t first, uint32_t count)
{
    uint32_t k = 0;
    bool head = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct output_row *w = &e->output_rows[first + i];
        head |= w->sample || w->score;
        uint32_t need = top_needed(e, &b->chunks[w->chunk], w);
        if (need > k) k = need;
    }
    if (!e->step.logits_done) (head ? decoder_logits : decoder_head_in)(e, &e->net, first, count);
    if (k) decoder_top(e, &e->net, count, k);
    if (e->ops->download_begin) e->ops->download_begin(e->be, e->net.s.stats, result_bytes(e, count, k));
    return k;
}

/* The step's only wait, except for rows that are fetched whole. */
static enum be_result take_results(struct engine *e, uint32_t count, uint32_t k)
{
    if (e->ops->download_end) return e->ops->download_end(e->be, e->host_results, result_bytes(e, count, k));
    e->ops->download(e->be, e->host_results, e->net.s.stats, result_bytes(e, count, k));
    return e->ops->sync(e->be);
}

static enum status finish_rows(struct engine *e, struct engine_batch *b, uint32_t first, uint32_t k,
                               struct err *err)
{
    uint32_t count = pass_rows(e, first);
    if (take_results(e, count, k) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    enum status st = finish_hidden(e, b, first, count, err);
    if (st) return st;
    bool fetched = false, together = finish_together(e, b, first, count, k);
    for (uint32_t i = 0; i < count && !together; i++)
        fetched |= finish_row(e, b, i, count, k, &e->output_rows[first + i], e->samplers[0]);
    ASSERT(!fetched || e->flight_count == 1);
    if (e->draft.on) keep_drawn(e, b, first, count);
    if (fetched && e->ops->sync(e->be) != BE_OK)
        return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    return ST_OK;
}

bool engine_draws(const struct engine *e, const struct engine_chunk *r)
{
    uint32_t next = r->position + r->count;
    return e->ops->take_ids && !e->profile && !e->draft.on && !e->net.desc.ple && !e->net.desc.pad_count &&
           e->plan.logit_rows >= e->plan.sequences_max && r->sample && !r->proposed && !r->given &&
           !r->hidden && r->score_first == UINT32_MAX &&
           sampler_plain(r->sampling, next < r->banned_until ? r->banned_count : 0);
}

enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err)
{
    ASSERT(e->flight_count < 2);
    check_batch(e, b);
    enum status st = recurrent_reserve(e, b, err); /* a backend reports its errors in sync(): engine_wait */
    if (st) return st;
    const struct engine_graph *graph = engine__graph_for(e, b);
    engine__pack(e, b, graph ? graph->rows : 0);
    if (b->chunks[0].after) {
        for (uint32_t i = 0; i < e->flights[0].batch->chunk_count; i++)
            ASSERT(engine_draws(e, &e->flights[0].batch->chunks[i]));
        e->ops->take_ids(e->be, e->net.s.stats, e->step.t, (uint32_t *)(uintptr_t)e->step.ids);
    }
    if (graph) {
        e->ops->graph_launch(e->be, graph->graph);
        e->step.logits_done = engine__graph_has_logits(e, graph);
        e->graph_steps++;
    } else {
        decoder_run(e, &e->net, b);
    }
    e->flights[e->flight_count].batch = b;
    if (e->step.output_count) e->flights[e->flight_count].top = queue_results(e, b, 0, pass_rows(e, 0));
    e->ahead_steps += e->flight_count++;
    return ST_OK;
}

/* If a chunk's last row needs no logits, check it for NaN and infinity: it attends to all other rows. A
 * broken part of a prompt must not be cached for other requests with the same prefix. */
static enum status check_unseen(struct engine *e, struct engine_batch *b, struct err *err)
{
    uint32_t row = 0, hidden = e->net.desc.hidden;
    bool fetched = false;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct engine_chunk *r = &b->chunks[i];
        row += r->count;
        if (r->sample || (r->hidden && r->position + r->count > r->hidden_first) ||
            (r->score_first != UINT32_MAX && r->position + r->count < r->prompt_count))
            continue; /* its last row was checked */
        const float *x = e->net.s.resid + (size_t)(row - 1) * hidden;
        if (!e->becaps.host_memory) {
            e->ops->download(e->be, e->host_row, x, hidden * sizeof *x);
            x = e->host_row;
            fetched = true;
        }
        for (uint32_t k = 0; k < hidden; k++) r->broken |= !isfinite(x[k]);
    }
    if (fetched && e->ops->sync(e->be) != BE_OK)
        return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    return ST_OK;
}

/* NaN in a masked V row would still propagate (0 * NaN) to rows sharing the tile, so KV of rejected drafts is
 * zeroed. */
static void forget_refused(struct engine *e, const struct engine_chunk *r)
{
    uint32_t end = r->position + r->count, from = end - r->proposed + (r->broken ? 0 : r->drawn_count - 1);
    for (uint32_t at = from; at < end; at += BE_BLOCK_TOKENS - at % BE_BLOCK_TOKENS)
        for (uint32_t g = 0; g < e->kv.table_groups; g++)
            decoder_kv_clear(e, g, r->tables[g][at / BE_BLOCK_TOKENS], at % BE_BLOCK_TOKENS);
}

enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err)
{
    ASSERT(e->flight_count && e->flights[0].batch == b);
    enum status st = ST_OK;
    if (e->flight_count > 1 || b->chunks[0].after) find_output_rows(e, b); /* they were another step's */
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        b->chunks[i].broken = b->chunks[i].refused_broken = false;
        b->chunks[i].drawn_count = 0;
    }
    for (uint32_t first = 0; first < e->step.output_count && !st; first += e->plan.logit_rows)
        st = finish_rows(e, b, first,
                         first ? queue_results(e, b, first, pass_rows(e, first)) : e->flights[0].top, err);
    if (!e->step.output_count && e->ops->sync(e->be) != BE_OK)
        st = err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    for (uint32_t i = 0, row = 0; e->draft.own && i < b->chunk_count; row += b->chunks[i].count, i++) {
        const struct engine_chunk *r = &b->chunks[i];
        if (!r->sample) keep_row(e, r, row + r->count - 1, r->position + r->count - 1);
    }
    if (!st) st = check_unseen(e, b, err);
    for (uint32_t i = 0; i < b->chunk_count && !st; i++)
        if (b->chunks[i].refused_broken || (b->chunks[i].broken && b->chunks[i].proposed))
            forget_refused(e, &b->chunks[i]);
    if (!st && e->step.draft_count) recurrent_replay(e, b);
    e->flights[0] = e->flights[--e->flight_count];
    e->steps_ended++;
    return st;
}

void engine_each(struct engine *e, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    ASSERT(!e->flight_count);
    if (e->ops->host_each && count > 1) {
        e->ops->host_each(e->be, count, fn, ctx);
        return;
    }
    for (uint32_t i = 0; i < count; i++) fn(ctx, i);
}

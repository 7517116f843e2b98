/* One step: index arrays from the scheduler's runs, launch, then logits in chunks and the draw of tokens. Engine thread.
 *
 * Visibility of a row at position p (both bounds inclusive, one interval per KV group):
 *   lo = 0 (full attention) or max(0, p - window + 1);   hi = p, or the last position of the picture that p lies in when that is
 * atomic which is transformers' rule for Gemma 3: (j <= i or same picture) and, in sliding layers, i - j < window. */
#include "engine/engine_internal.h"

#include "config/base/assert.h"

#include <string.h>

#define NEVER_LOGPROB (-9999.0f) /* finite, so that JSON can say it */

/* Appends to the host image of the index arrays; the same offset holds in backend memory. */
struct packer {
    struct engine *e;
    size_t used;
};

static uint32_t *array(struct packer *p, size_t words, const uint32_t **dev)
{
    size_t at = p->used;
    p->used += (words + 15) / 16 * 16;
    ASSERT(p->used <= p->e->step_words);
    *dev = p->e->s.step + at;
    return p->e->host_step + at;
}

static void check_batch(const struct engine *e, const struct engine_batch *b)
{
    uint64_t total = 0;
    ASSERT(b->run_count > 0 && b->run_count <= e->plan.sequences_max);
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct engine_run *r = &b->runs[i];
        ASSERT_CMP(r->count, >, 0);
        ASSERT((uint64_t)r->position + r->count <= e->plan.context_max);
        ASSERT((uint64_t)r->position + r->count <= r->token_count);
        ASSERT(!r->sample || r->sampling);
        ASSERT(r->score_first == UINT32_MAX || (r->scores && r->sampling));
        total += r->count;
    }
    ASSERT(total <= e->plan.batch_tokens_max);
}

/* Position of token i of a picture on one axis; see struct prompt_grid. `base` is the free position in front of it. */
static int32_t grid_position(const struct prompt_grid *g, int32_t base, uint32_t i, int axis)
{
    if (axis == 0) return base + prompt_grid_time(g, i / (g->h * g->w));
    return base + (int32_t)(axis == 1 ? i / g->w % g->h : i % g->w);
}

/* Three positions per row (mRoPE): text goes on from what the pictures before it left, the tokens of a picture have their own. */
static void pack_rope(struct packer *p, const struct engine_batch *b)
{
    struct step *st = &p->e->step;
    const uint32_t *dev;
    int32_t *pos = (int32_t *)array(p, 3 * (size_t)st->t, &dev);
    uint32_t row = 0;
    st->rope_pos = (const int32_t *)dev;
    for (uint32_t i = 0; i < b->run_count; row += b->runs[i].count, i++) {
        const struct engine_run *r = &b->runs[i];
        uint32_t m = 0;
        int32_t offset = (p->e->test_bugs & ENGINE_BUG_ROPE_LEAK ? &b->runs[0] : r)->rope_offset;
        for (uint32_t k = 0; k < r->count; k++) {
            uint32_t at = r->position + k;
            while (m < r->image_count && r->images[m].end <= at) offset = r->images[m++].rope_offset;
            const struct engine_image_use *u = m < r->image_count && r->images[m].begin <= at ? &r->images[m] : NULL;
            uint32_t first = u ? u->begin : 0;
            if (p->e->test_bugs & ENGINE_BUG_ROPE_DECODE && at >= r->prompt_count) offset = 0;
            if (u && p->e->test_bugs & ENGINE_BUG_ROPE_CHUNK && first < r->position) first = r->position;
            for (int a = 0; a < 3; a++)
                pos[(size_t)a * st->t + row + k] =
                    u && u->grid.w ? grid_position(&u->grid, (int32_t)u->begin + u->rope_before, at - first, a)
                                   : (int32_t)at + offset;
        }
    }
}

/* ids, pos, hi of all rows. Rows of a picture get no embedding (their features are copied in) and, if atomic, see the whole
 * picture. */
static void pack_tokens(struct packer *p, const struct engine_batch *b, const uint32_t **pos, const uint32_t **hi)
{
    struct step *st = &p->e->step;
    const uint32_t *ids_dev;
    uint32_t *ids = array(p, st->t, &ids_dev), *ps = array(p, st->t, pos), *h = array(p, st->t, hi), row = 0;
    st->ids = ids_dev;
    st->rope_pos = (const int32_t *)*pos; /* positions are below 2^24: the same bits */
    if (p->e->rope_axes > 1) pack_rope(p, b);
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct engine_run *r = &b->runs[i];
        for (uint32_t k = 0; k < r->count; k++) {
            ids[row + k] = r->tokens[r->position + k];
            ps[row + k] = h[row + k] = r->position + k;
        }
        for (uint32_t m = 0; m < r->image_count; m++) {
            const struct engine_image_use *u = &r->images[m];
            uint32_t end = r->position + r->count;
            ASSERT(u->begin < u->end);
            ASSERT(!u->atomic || u->end <= r->position || u->begin >= end || (u->begin >= r->position && u->end <= end));
            for (uint32_t q = u->begin > r->position ? u->begin : r->position; q < u->end && q < end; q++) {
                ids[row + q - r->position] = UINT32_MAX;
                if (u->atomic) h[row + q - r->position] = u->end - 1;
            }
        }
        for (uint32_t k = 0; k < r->count; k++) ASSERT(ids[row + k] < p->e->desc.vocab || ids[row + k] == UINT32_MAX);
        row += r->count;
    }
}

static uint32_t low(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Block tables of one group, back to back; seq_table says where each begins. Blocks behind the window are passed on as they are.
 */
static void pack_group(struct packer *p, const struct engine_batch *b, uint32_t g, const uint32_t *seq_row, const uint32_t *pos,
                       const uint32_t *hi)
{
    struct step *st = &p->e->step;
    uint32_t window = p->e->kv.groups[g].window, row = 0, at = 0;
    size_t entries = 0;
    for (uint32_t i = 0; i < b->run_count; i++)
        entries += (b->runs[i].position + b->runs[i].count + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    struct be_rows *r = &st->rows[g];
    *r = (struct be_rows){.t = st->t, .seq_count = st->seq_count, .seq_row = seq_row, .pos = pos, .hi = hi};
    uint32_t *lo = array(p, st->t, &r->lo), *start = array(p, st->seq_count, &r->seq_table),
             *table = array(p, entries, &r->tables);
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct engine_run *run = &b->runs[i];
        uint32_t n = (run->position + run->count + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
        uint32_t bug = p->e->test_bugs & ENGINE_BUG_NEW_KEYS && run->count > 1 ? run->position : 0;
        for (uint32_t k = 0; k < run->count; k++, row++) {
            lo[row] = low(run->position + k, window);
            if (lo[row] < bug) lo[row] = bug;
        }
        memcpy(table + at, run->tables[g], n * sizeof *table);
        start[i] = at;
        at += n;
    }
}

/* Which rows' logits are wanted: the last one of a run that samples, and those before a scored prompt token. */
static void find_wanted(struct engine *e, const struct engine_batch *b)
{
    uint32_t row = 0;
    struct step *st = &e->step;
    st->wanted_count = 0;
    for (uint32_t i = 0; i < b->run_count; row += b->runs[i].count, i++) {
        const struct engine_run *r = &b->runs[i];
        for (uint32_t k = 0; k < r->count; k++) {
            uint32_t next = r->position + k + 1;
            struct wanted w = {.run = i, .row = row + k, .next = next};
            w.sample = r->sample && k + 1 == r->count;
            w.score = r->score_first != UINT32_MAX && next >= r->score_first && next < r->prompt_count && next < r->token_count;
            if (w.sample || w.score) e->wanted[st->wanted_count++] = w;
        }
    }
}

/* The wanted rows as a batch of their own: sequences without any drop out. */
static void pack_tail(struct packer *p, const struct engine_batch *b)
{
    struct engine *e = p->e;
    struct step *st = &e->step;
    uint32_t n = st->wanted_count, g = e->kv.layer_group[e->desc.layer_count - 1], window = e->kv.groups[g].window, seq = 0;
    const struct be_rows *all = &st->rows[g];
    const uint32_t *start = e->host_step + (all->seq_table - e->s.step), *all_hi = e->host_step + (all->hi - e->s.step);
    const uint32_t *rows_dev;
    uint32_t *rows = array(p, n, &rows_dev);
    st->wanted_rows = rows_dev;
    st->tail = (struct be_rows){.t = n, .tables = all->tables};
    uint32_t *pos = array(p, n, &st->tail.pos), *lo = array(p, n, &st->tail.lo), *hi = array(p, n, &st->tail.hi);
    uint32_t *seq_row = array(p, b->run_count + 1, &st->tail.seq_row), *seq_table = array(p, b->run_count, &st->tail.seq_table);
    for (uint32_t i = 0; i < n; i++) {
        const struct wanted *w = &e->wanted[i];
        rows[i] = w->row;
        pos[i] = w->next - 1;
        lo[i] = low(pos[i], window);
        hi[i] = all_hi[w->row];
        if (i == 0 || e->wanted[i - 1].run != w->run) {
            seq_row[seq] = i;
            seq_table[seq++] = start[w->run];
        }
    }
    seq_row[seq] = n;
    st->tail.seq_count = seq;
}

static void pack_step(struct engine *e, const struct engine_batch *b)
{
    struct packer p = {e, 0};
    struct step *st = &e->step;
    const uint32_t *pos, *hi, *seq_row_dev;
    e->test_rows = st->t;
    *st = (struct step){.seq_count = b->run_count};
    for (uint32_t i = 0; i < b->run_count; i++) st->t += b->runs[i].count;
    pack_tokens(&p, b, &pos, &hi);
    uint32_t *seq_row = array(&p, st->seq_count + 1u, &seq_row_dev), row = 0;
    for (uint32_t i = 0; i < b->run_count; row += b->runs[i].count, i++) seq_row[i] = row;
    seq_row[b->run_count] = row;
    for (uint32_t g = 0; g < e->kv.group_count; g++) pack_group(&p, b, g, seq_row_dev, pos, hi);
    find_wanted(e, b);
    if (st->wanted_count) pack_tail(&p, b);
    e->ops->upload(e->be, e->s.step, e->host_step, p.used * sizeof *e->host_step);
}

enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err)
{
    (void)err; /* a backend reports what went wrong in sync(): engine_wait */
    ASSERT(!e->in_flight);
    check_batch(e, b);
    pack_step(e, b);
    decoder_run(e, b);
    e->in_flight = b;
    return ST_OK;
}

/* ---- logits, tokens ---- */

/* Largest logits that a wanted row needs by itself. */
static uint32_t top_needed(const struct engine *e, const struct engine_run *r, const struct wanted *w)
{
    uint32_t k = 0;
    if (w->sample) {
        k = sampler_top_wanted(r->sampling);
        if (r->sampling->logprobs != SAMPLING_NO_LOGPROBS && r->sampling->logprobs > k) k = r->sampling->logprobs;
    }
    if (w->score && r->sampling->prompt_logprobs != SAMPLING_NO_LOGPROBS && r->sampling->prompt_logprobs > k)
        k = r->sampling->prompt_logprobs;
    if (k > BE_TOPK_MAX) k = BE_TOPK_MAX;
    return k < e->desc.vocab ? k : e->desc.vocab;
}

static void finish_row(struct engine *e, struct engine_batch *b, uint32_t i, const struct be_logit_stats *stats, uint32_t k,
                       const struct wanted *w)
{
    struct engine_run *r = &b->runs[w->run];
    const float *logits = e->s.logits + (size_t)i * e->desc.vocab;
    struct sampler_row row = {.raw = e->becaps.host_memory ? logits : NULL,
                              .stats = *stats,
                              .top_ids = e->host_top_ids + (size_t)i * k,
                              .top_values = e->host_top_values + (size_t)i * k,
                              .top_count = top_needed(e, r, w),
                              .history = r->tokens,
                              .history_count = w->next,
                              .prompt_count = r->prompt_count,
                              .position = w->next,
                              .banned = r->banned,
                              .banned_count = r->banned_count};
    if (w->score) {
        struct token_out *out = &r->scores[w->next - r->position - 1];
        sampler_score(r->tokens[w->next], r->sampling->prompt_logprobs, &row, out);
        if (r->tokens[w->next] >= e->desc.vocab) { /* a picture's placeholder that has no row in the head: never predicted */
            out->logprob = NEVER_LOGPROB;
            out->rank = e->desc.vocab + 1;
        }
    }
    if (w->sample && !sampler_draw(e->sampler, r->sampling, &row, &r->out)) {
        e->ops->download(e->be, e->host_row, logits, e->desc.vocab * sizeof(float));
        row.raw = e->host_row;
        bool drawn = sampler_draw(e->sampler, r->sampling, &row, &r->out);
        ASSERT(drawn);
    }
}

static enum status finish_chunk(struct engine *e, struct engine_batch *b, uint32_t first, uint32_t count, struct err *err)
{
    uint32_t targets[LOGIT_ROWS_MAX], k = 0;
    struct be_logit_stats stats[LOGIT_ROWS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        const struct wanted *w = &e->wanted[first + i];
        const struct engine_run *r = &b->runs[w->run];
        uint32_t need = top_needed(e, r, w);
        if (need > k) k = need;
        targets[i] = w->score && r->tokens[w->next] < e->desc.vocab ? r->tokens[w->next] : UINT32_MAX;
    }
    decoder_logits(e, first, count, targets, k);
    if (e->ops->sync(e->be) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    e->ops->download(e->be, stats, e->s.stats, count * sizeof *stats);
    if (k) {
        e->ops->download(e->be, e->host_top_ids, e->s.top_ids, (size_t)count * k * sizeof *e->host_top_ids);
        e->ops->download(e->be, e->host_top_values, e->s.top_values, (size_t)count * k * sizeof *e->host_top_values);
    }
    for (uint32_t i = 0; i < count; i++) finish_row(e, b, i, &stats[i], k, &e->wanted[first + i]);
    return ST_OK;
}

enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err)
{
    ASSERT(e->in_flight == b);
    enum status st = ST_OK;
    for (uint32_t first = 0; first < e->step.wanted_count && !st; first += LOGIT_ROWS_MAX) {
        uint32_t left = e->step.wanted_count - first;
        st = finish_chunk(e, b, first, left < LOGIT_ROWS_MAX ? left : LOGIT_ROWS_MAX, err);
    }
    if (!st && e->ops->sync(e->be) != BE_OK) st = err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    e->in_flight = NULL;
    return st;
}

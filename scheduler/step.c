/* A turn of the engine thread: what has arrived, the step, its results, the end of a sequence. Planning is
 * scheduler/plan.c, the prefix cache reuse.c, images images.c. See scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "config/base/log.h"
#include "scheduler/tenants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IDLE_HEARTBEAT_S = 1 };

/* q ends while the step ahead has a chunk of it: the results of that chunk are discarded. */
static void drop_ahead(struct scheduler *s, struct sequence *q)
{
    static const struct sampling_params nobodys = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = SAMPLING_NO_LOGPROBS};
    s->ahead->seqs[q->ahead - 1] = NULL;
    s->ahead->chunks[q->ahead - 1].sampling = &nobodys; /* the request's is the client's again */
    s->ahead->dropped[q->ahead - 1] = q->req.running;   /* the step still reads its adapter */
    q->req.running = NULL;
    q->ahead = 0;
}

static void end_sequence(struct scheduler *s, struct sequence *q, enum seq_end end, uint32_t stop_id,
                         const char *message, uint64_t now_us)
{
    if (q->ahead) drop_ahead(s, q);
    if (q->state == SEQ_RUNNING) {
        sched__running_remove(s, q);
    } else {
        sched__list_remove(&s->waiting, q);
        atomic_fetch_sub(&s->backlog, 1);
    }
    sched__masks_stop(q);
    if (q->state == SEQ_RUNNING && !atomic_load(&s->failed)) sched__cache_publish(s, q, true);
    sched__leave(s, q);
    sched__offload_leave(s, q);
    tenants_leave(s->tenants, q->req.tenant);
    struct event_node *node = q->end_event;
    q->end_event = NULL;
    node->ev = (struct sched_event){.kind = EV_END,
                                    .id = q->id,
                                    .user = q->req.user,
                                    .end = end,
                                    .stop_id = stop_id,
                                    .generated = q->generated,
                                    .preemptions = q->preemptions,
                                    .cache = q->cache,
                                    .proposed = q->drafted,
                                    .accepted = q->accepted,
                                    .drew = q->missed[0],
                                    .given = q->missed[1],
                                    .pushed_us = event_clock_us()};
    if (q->pooled && end == END_LENGTH) {
        bool all = q->req.pooling == POOL_ALL;
        for (uint32_t i = 0; i < s->caps.hidden_size && !all; i++) q->pooled[i] /= q->pooled_count;
        if (s->opt.project && !all) s->opt.project(s->opt.project_arg, q->pooled);
        node->ev.pooled = q->pooled;
        q->pooled = NULL;
    }
    uint64_t admitted = q->admitted_us ? q->admitted_us : now_us;
    node->ev.queued_us = admitted > q->submitted_us ? admitted - q->submitted_us : 0;
    node->ev.prefill_us = q->first_token_us > admitted ? q->first_token_us - admitted : 0;
    snprintf(node->ev.message, sizeof node->ev.message, "%s", message ? message : "");
    pthread_mutex_lock(&s->lock);
    s->slots[q->id.slot].seq = NULL;
    s->free_slots[s->slot_count - s->slots_used--] = q->id.slot;
    pthread_mutex_unlock(&s->lock);
    s->now.ended[end]++;
    sched__seq_to(q, SEQ_ENDED);
    sched__sequence_free(q);
    eventq_push(&s->events, node);
}

static void end_all(struct scheduler *s, enum seq_end end, const char *message, uint64_t now_us)
{
    while (s->running.head) end_sequence(s, s->running.head, end, 0, message, now_us);
    while (s->waiting.head) end_sequence(s, s->waiting.head, end, 0, message, now_us);
}

static void drain_inbox(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    struct seq_list in = s->inbox;
    s->inbox = (struct seq_list){.state = SEQ_INBOX};
    s->poked = false;
    pthread_mutex_unlock(&s->lock);
    while (in.head) {
        struct sequence *q = in.head;
        sched__list_remove(&in, q);
        tenants_enter(s->tenants, q->req.tenant);
        sched__list_insert(&s->waiting, q);
    }
}

/* Ends sequences that are cancelled, past their deadline, or whose images failed. */
static bool end_unwanted(struct scheduler *s, uint64_t now_us)
{
    bool any = false;
    struct seq_list *lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++) {
        for (struct sequence *q = lists[i]->head, *next; q; q = next) {
            next = q->next;
            bool cancelled = atomic_load_explicit(&q->cancelled, memory_order_relaxed),
                 late = q->req.deadline_us && now_us >= q->req.deadline_us;
            if (q->failure[0]) end_sequence(s, q, END_ERROR, 0, q->failure, now_us);
            else if (cancelled || late)
                end_sequence(s, q, cancelled ? END_CANCELLED : END_DEADLINE, 0, NULL, now_us);
            else continue;
            any = true;
        }
    }
    return any;
}

/* Ends sequences whose constraint failed; they have no chunk in this step. */
static void end_constrained(struct scheduler *s, uint64_t now_us)
{
    s->mask_failed = false;
    for (struct sequence *q = s->running.head, *next; q; q = next) {
        next = q->next;
        if (q->mask == MASK_FAILED) end_sequence(s, q, END_CONSTRAINT, 0, NULL, now_us);
    }
}

/* Rope position minus position of the text before image i (i may be image_count: after the last one). */
static int32_t mrope_delta_before(const struct prompt *p, uint32_t i)
{
    return i ? p->spans[i - 1].mrope_delta : 0;
}

/* The rows of the chunk that are pooled. False: no memory for them. */
static bool fill_hidden(const struct scheduler *s, struct sequence *q, struct engine_chunk *r)
{
    uint32_t first = q->req.pooling == POOL_LAST ? q->req.prompt->token_count - 1 : q->pooled_count;
    if (first < r->position) first = r->position;
    if (!q->req.pooling || first >= r->position + r->count) return true;
    q->hidden = malloc((size_t)(r->position + r->count - first) * s->caps.hidden_size * sizeof *q->hidden);
    r->hidden = q->hidden;
    r->hidden_first = first;
    return q->hidden;
}

/* Adds the rows in the order of their positions: the sum does not depend on the chunks. With all rows
 * returned, each is appended after the one before and then replaced by its projection. */
static void pool_rows(const struct scheduler *s, struct sequence *q, const struct engine_chunk *r)
{
    const float *row = q->hidden;
    bool all = q->req.pooling == POOL_ALL;
    for (uint32_t at = r->hidden_first; at < r->position + r->count; at++, row += s->caps.hidden_size) {
        double *to = q->pooled + (all ? (size_t)q->pooled_count * s->opt.pooled_width : 0);
        for (uint32_t i = 0; i < s->caps.hidden_size; i++) to[i] = (all ? 0 : to[i]) + (double)row[i];
        if (all && s->opt.project) s->opt.project(s->opt.project_arg, to);
        q->pooled_count++;
    }
    free(q->hidden);
    q->hidden = NULL;
}

/* The rows of the chunk at which a given token is drawn. False: no memory for them. */
static bool fill_given(struct sequence *q, struct engine_chunk *r)
{
    uint32_t end = r->position + r->count, at = sched__drawn_at(q);
    r->token_count++;
    r->sample = end >= at;
    r->given = r->sample ? end - at + 1 : 0;
    r->forced = q->req.forced;
    if (r->given) q->draws = malloc(r->given * sizeof *q->draws);
    r->drawn = q->draws;
    return !r->given || q->draws;
}

/* Fills the engine's view of q's part of the step. False: no memory for its scores or pooled rows. */
static bool fill_chunk(struct scheduler *s, struct sequence *q, struct engine_chunk *r)
{
    uint32_t n = q->chunk_tokens, end = q->position + n, count = q->count + q->proposed;
    const struct prompt *p = q->req.prompt;
    *r = (struct engine_chunk){.position = q->position,
                               .count = n,
                               .adapter = q->req.adapter,
                               .tokens = q->tokens,
                               .token_count = count,
                               .prompt_count = p->token_count,
                               .sampling = q->req.sampling,
                               .proposed = q->proposed,
                               .drawn = s->drawn + (r - s->step->chunks) * (s->opt.draft_max + 1),
                               .draft_slot = q->draft_slot,
                               .sample = end == count && q->tokens_max > 0,
                               .banned = q->banned,
                               .banned_count = q->banned_count,
                               .banned_until = p->token_count + q->req.tokens_min,
                               .score_first = UINT32_MAX};
    for (uint32_t g = 0; g < s->paged; g++) r->tables[g] = q->tables[g].block_offsets;
    const struct block_table *state = &q->tables[s->paged];
    if (s->paged < s->caps.group_count) {
        r->state_from = q->position ? state->block_offsets[0] : ENGINE_NO_BLOCK;
        r->state_to = state->block_offsets[state->end - 1];
    }
    r->mrope_delta = mrope_delta_before(p, q->next_span);
    for (uint32_t i = q->next_span; i < p->span_count && p->spans[i].begin < end; i++) {
        const struct prompt_span *im = &p->spans[i];
        ASSERT(sched__span_ready(q, i));
        q->uses[r->span_count++] = (struct engine_span){.features = sched__span_features(q, i),
                                                        .begin = im->begin,
                                                        .end = im->end,
                                                        .rule = im->rule,
                                                        .atomic_begin = im->atomic_begin,
                                                        .atomic_end = im->atomic_end,
                                                        .grid = im->grid,
                                                        .mrope_delta_before = mrope_delta_before(p, i),
                                                        .mrope_delta = im->mrope_delta};
    }
    r->spans = q->uses;
    uint32_t first = q->scored > q->position + 1 ? q->scored : q->position + 1;
    if (q->req.sampling->prompt_logprobs != SAMPLING_NO_LOGPROBS && first <= end && first < p->token_count) {
        q->scores = calloc(n, sizeof *q->scores);
        if (!q->scores) return false;
        r->score_first = first;
        r->scores = q->scores;
    }
    if (q->req.given_count && !fill_given(q, r)) return false;
    return fill_hidden(s, q, r);
}

static bool push_scores(struct scheduler *s, struct sequence *q, const struct engine_chunk *r)
{
    uint32_t prompt = q->req.prompt->token_count;
    uint32_t last = r->position + r->count < prompt - 1 ? r->position + r->count : prompt - 1; /* inclusive */
    uint32_t skip = r->score_first - (r->position + 1), count = last - r->score_first + 1;
    if (skip) memmove(q->scores, q->scores + skip, count * sizeof *q->scores);
    struct sched_event ev = {.kind = EV_PROMPT_SCORES,
                             .id = q->id,
                             .user = q->req.user,
                             .index = r->score_first,
                             .scores = q->scores,
                             .score_count = count};
    if (!eventq_emit(&s->events, &ev)) return false;
    q->scores = NULL;
    q->scored = last + 1;
    return true;
}

static bool is_one_of(uint32_t id, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

static const char *no_memory = "out of memory";

/* A token was sampled: sends its event, checks the reasons to end. False: q has ended. */
static bool accept_token(struct scheduler *s, struct sequence *q, const struct token_out *out,
                         uint64_t now_us)
{
    uint32_t id = out->id;
    bool known = q->req.given_count > 0;
    if (!q->first_token_us) q->first_token_us = now_us;
    struct sched_event ev = {.kind = EV_TOKEN,
                             .id = q->id,
                             .user = q->req.user,
                             .token = *out,
                             .index = q->generated,
                             .cache = q->cache,
                             .proposed = q->drafted,
                             .accepted = q->accepted};
    if ((!known && !sched__tokens_reserve(q, q->count + 1)) || !eventq_emit(&s->events, &ev)) {
        end_sequence(s, q, END_ERROR, 0, no_memory, now_us);
        return false;
    }
    if (!known) q->tokens[q->count++] = id;
    q->generated++;
    q->drew = true;
    s->now.generated_tokens++;
    if (q->req.forced && q->generated < q->req.given_count) return true;
    if (q->req.forced) end_sequence(s, q, END_GIVEN, 0, NULL, now_us);
    else if (is_one_of(id, q->req.stop_ids, q->req.stop_id_count))
        end_sequence(s, q, END_STOP_TOKEN, id, NULL, now_us);
    else if (!q->req.ignore_eos && is_one_of(id, s->caps.eos_ids, s->caps.eos_count))
        end_sequence(s, q, END_STOP_EOS, id, NULL, now_us);
    else if (q->generated >= q->tokens_max) end_sequence(s, q, END_LENGTH, 0, NULL, now_us);
    else if (known && q->generated == q->req.given_count) end_sequence(s, q, END_GIVEN, 0, NULL, now_us);
    else return true;
    return false;
}

/* KV of n more tokens is computed. */
static void advance(struct scheduler *s, struct sequence *q, uint32_t n)
{
    q->position += n;
    ASSERT_MSG(q->position <= q->count, "sequence %u of slot %u: %u tokens computed of %u", q->id.gen,
               q->id.slot, q->position, q->count);
    sched__served(s, q);
    sched__cache_publish(s, q, false);
    sched__blocks_trim(s, q);
}

/* Tokens of a verified chunk, one at a time as if each had its own step: what is kept, published and ended
 * does not depend on the draft. Releases the blocks of the rest. */
static void accept_verified(struct scheduler *s, struct sequence *q, const struct engine_chunk *r,
                            uint64_t now_us)
{
    uint32_t accepted = r->drawn_count - 1;
    s->now.verified_chunks++;
    s->now.proposed_tokens += r->proposed;
    s->now.accepted_tokens += accepted;
    for (uint32_t i = 0; i < accepted && i < SCHED_DRAFT_MAX; i++) s->now.accepted_at[i]++;
    q->drafted += r->proposed;
    q->accepted += accepted;
    if (!q->forced) ngram_draft_learn(&q->ngram, &s->acceptance, r->proposed, accepted);
    q->proposed = 0;
    for (uint32_t i = 0; i < r->drawn_count; i++) {
        if (i > 0) advance(s, q, 1);
        if (!accept_token(s, q, &r->drawn[i], now_us)) return;
    }
    sched__blocks_roll_back(s, q, q->position);
}

/* Given tokens that were drawn, or one that wasn't. */
static void accept_given(struct scheduler *s, struct sequence *q, const struct engine_chunk *r,
                         uint64_t now_us)
{
    struct token_out *draws = q->draws;
    q->draws = NULL; /* q may end within */
    for (uint32_t i = 0; i < r->drawn_count; i++) {
        uint32_t given = q->tokens[sched__drawn_at(q)];
        if (draws[i].id != given) {
            q->missed[0] = (struct token_alt){draws[i].id, draws[i].logprob};
            q->missed[1] = (struct token_alt){given, r->missed.logprob};
            end_sequence(s, q, END_DIFFERS, 0, NULL, now_us);
            break;
        }
        if (!accept_token(s, q, &draws[i], now_us)) break;
    }
    free(draws);
}

/* Handles the result of q's chunk: scores, new tokens, the reasons to end. */
static void finish_chunk(struct scheduler *s, struct sequence *q, const struct engine_chunk *r,
                         uint64_t now_us)
{
    uint32_t accepted = r->proposed && r->drawn_count ? r->drawn_count - 1 : 0;
    sched__state_written(s, q, r->broken ? UINT32_MAX : r->position + r->count - r->proposed + accepted);
    if (r->broken && r->proposed) { /* perhaps caused by a draft token: retry without */
        q->speculation_off = true;
        q->proposed = 0;
        if (s->paged < s->caps.group_count) sched__preempt(s, q); /* it has no state to continue from */
        else sched__blocks_roll_back(s, q, q->position);
        return;
    }
    if (r->broken) {
        /* A transient fault must not outlive the request. The position stays, so what this step wrote is not
         * published; but the cause may lie in earlier steps without logits or in an image's features. */
        sched__poke(s, &s->reset_cache);
        sched__poke(s, &s->reset_features);
        end_sequence(s, q, END_ERROR, 0, "the model computed no finite logits: damaged weights?", now_us);
        return;
    }
    if (r->hidden) pool_rows(s, q, r);
    advance(s, q, r->count - r->proposed);
    sched__features_passed(s, q);
    if (r->position < q->req.prompt->token_count) {
        uint32_t end = q->position < q->req.prompt->token_count ? q->position : q->req.prompt->token_count;
        s->now.prompt_tokens += end - r->position;
        if (r->position < q->cache.equal)
            s->now.cache_recomputed_tokens += (q->cache.equal < end ? q->cache.equal : end) - r->position;
        struct sched_event ev = {
            .kind = EV_PROGRESS, .id = q->id, .user = q->req.user, .index = end, .cache = q->cache};
        if (q->req.progress && !eventq_emit(&s->events, &ev)) {
            end_sequence(s, q, END_ERROR, 0, no_memory, now_us);
            return;
        }
    }
    if (r->score_first != UINT32_MAX && !push_scores(s, q, r)) {
        end_sequence(s, q, END_ERROR, 0, no_memory, now_us);
        return;
    }
    if (!r->sample) {
        if (q->tokens_max == 0 && q->position == q->count) end_sequence(s, q, END_LENGTH, 0, NULL, now_us);
        return;
    }
    if (r->given) accept_given(s, q, r, now_us);
    else if (r->proposed) accept_verified(s, q, r, now_us);
    else (void)accept_token(s, q, &r->out, now_us);
}

/* Counts a step that took so long, and learns from it. */
static void account(struct scheduler *s, const struct sched_flight *f, uint64_t spent)
{
    struct step_load load = {{0}};
    for (uint32_t i = 0; i < f->count; i++) {
        const struct engine_chunk *r = &f->chunks[i];
        step_load_add(&s->cost, &load, r->position, r->count, r->sample);
        load.n[STEP_SAMPLED] += r->given ? r->given - 1 : r->proposed;
    }
    if (!f->status && f->learns) {
        step_cost_learn(&s->cost, &load, (double)spent);
        sched__speculate_learn(s, f->count, (double)spent);
    }
    s->now.steps++;
    s->now.step_us_total += spent;
    s->now.last_batch_tokens = f->tokens;
    s->now.step_tokens_total += f->tokens;
    uint32_t bucket = f->tokens > 1;
    while (bucket && bucket < SCHED_STEP_BUCKETS - 1 && f->tokens > 4u << bucket) bucket++;
    s->now.step_tokens[bucket]++;
    s->now.last_batch_sequences = f->count;
}

/* The step without its draft tokens: they must not make any sequence fail. */
static void leave_drafts(struct scheduler *s, struct engine_batch *b)
{
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct engine_chunk *r = &b->chunks[i];
        struct sequence *q = s->step->seqs[i];
        r->count -= r->proposed; /* at least one is left */
        r->token_count -= r->proposed;
        q->chunk_tokens -= r->proposed;
        s->step->tokens -= r->proposed;
        if (r->proposed) sched__blocks_roll_back(s, q, r->position + r->count);
        q->proposed = r->proposed = 0;
    }
}

static enum status submit(struct scheduler *s, struct engine_batch *b, struct err *err)
{
    enum status st = engine_submit(s->engine, b, err);
    if (st != ST_AGAIN) return st;
    leave_drafts(s, b);
    return engine_submit(s->engine, b, err);
}

/* Submits the planned step. */
static void launch(struct scheduler *s, uint64_t now_us)
{
    struct sched_flight *f = s->step;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        struct sequence *q = f->seqs[i];
        if (fill_chunk(s, q, &f->chunks[n])) f->seqs[n++] = q;
        else end_sequence(s, q, END_ERROR, 0, no_memory, now_us);
    }
    f->count = n;
    if (n == 0) return;
    f->batch = (struct engine_batch){.chunks = f->chunks, .chunk_count = n};
    f->err = (struct err){{0}};
    f->start_us = sched__clock(s);
    f->learns = s->slice_us <= 0; /* it may run asynchronously, and then the step's time includes it */
    f->status = submit(s, &f->batch, &f->err);
}

/* ---- overlap ----
 *
 * The step after the one in flight is submitted before that one's tokens are known, so that a device
 * doesn't wait for the host between two steps of decodes. It has one row for each sequence that goes on,
 * whose input the device takes from what it draws (engine_chunk.after). A sequence that ends by that very
 * token is in it too, and that row's result is discarded. The row writes its KV after the sequence's last
 * token, and a state to a block of its own, so neither the cache nor another sequence ever reads them.
 *
 * With a step in flight nothing is decided but this: the step behind it is the one that would be planned if
 * all its sequences go on. Whatever else there is to do - an arrival, a cancel, a deadline, an image, a mask,
 * draft tokens, an admission, a prefill - waits until no step is in flight, and is done as without overlap,
 * at most one step later. */
/* Whether something waits for a turn with no step in flight. */
static bool called(struct scheduler *s, uint64_t now_us)
{
    const struct seq_list *lists[] = {&s->running, &s->waiting};
    pthread_mutex_lock(&s->lock);
    bool any = s->inbox.head || s->poked || s->stopping;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < 2; i++)
        for (const struct sequence *q = lists[i]->head; q && !any; q = q->next)
            any = q->req.deadline_us && now_us >= q->req.deadline_us;
    return any;
}

/* Whether the step in flight has all running sequences, the device draws all their tokens, and nothing is to
 * be planned but their next ones. */
static bool goes_on(struct scheduler *s)
{
    const struct sched_flight *f = s->step;
    uint32_t running = 0;
    if (s->opt.no_overlap || s->opt.draft_max || f->status) return false;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct sequence *q = f->seqs[i];
        if (!engine_draws(s->engine, &f->chunks[i])) return false;
        running += q != NULL;
    }
    return running + sched__left_out(s) == s->running.count && !sched__may_admit(s);
}

static void fill_ahead(const struct scheduler *s, const struct sequence *q, uint32_t after,
                       struct engine_chunk *r)
{
    const struct prompt *p = q->req.prompt;
    const struct block_table *state = &q->tables[s->paged];
    *r = s->step->chunks[after];
    r->position = q->count;
    r->count = 1;
    r->after = after + 1;
    r->token_count = q->count + 1;
    r->span_count = 0;
    r->mrope_delta = p->span_count ? p->spans[p->span_count - 1].mrope_delta : 0;
    for (uint32_t g = 0; g < s->paged; g++) r->tables[g] = q->tables[g].block_offsets;
    if (s->paged == s->caps.group_count) return;
    r->state_from = state->block_offsets[0];
    r->state_to = state->block_offsets[1];
}

/* Submits the step after the one in flight if that only goes on with its sequences. */
static void submit_ahead(struct scheduler *s)
{
    struct sched_flight *f = s->ahead;
    uint32_t n = 0;
    if (!goes_on(s)) return;
    for (uint32_t i = 0; i < s->step->count; i++) {
        struct sequence *q = s->step->seqs[i];
        if (!q || q->generated + 1 >= q->tokens_max) continue;
        f->chunks[n].after = i;
        f->seqs[n++] = q;
    }
    if (!n || !sched__blocks_ahead(s, f->seqs, n)) return;
    for (uint32_t i = 0; i < n; i++) {
        fill_ahead(s, f->seqs[i], f->chunks[i].after, &f->chunks[i]);
        f->seqs[i]->ahead = i + 1;
    }
    f->count = f->tokens = n;
    f->batch = (struct engine_batch){.chunks = f->chunks, .chunk_count = n};
    f->err = (struct err){{0}};
    f->learns = true;
    f->status = engine_submit(s->engine, &f->batch, &f->err);
    s->turn++;
}

/* Waits for the step in flight; then the one behind it is. */
static void land(struct scheduler *s, uint64_t now_us)
{
    struct sched_flight *f = s->step;
    if (!f->status) f->status = engine_wait(s->engine, &f->batch, &f->err);
    uint64_t end = sched__clock(s);
    uint32_t lost = 0, left = 0;
    account(s, f, end - f->start_us);
    now_us += end - f->start_us;
    if (f->status == ST_DEVICE)
        atomic_store(&s->failed, true); /* before a client sees the error and retries */
    for (uint32_t i = 0; i < f->count; i++) {
        struct sequence *q = f->seqs[i];
        if (!q && f->dropped[i]) atomic_fetch_sub(f->dropped[i], 1);
        f->dropped[i] = NULL;
        if (!q) continue;
        if (!f->status) {
            finish_chunk(s, q, &f->chunks[i], now_us);
            continue;
        }
        lost++;
        q->state_at = UINT32_MAX;
        end_sequence(s, q, END_ERROR, 0, f->err.msg[0] ? f->err.msg : "the engine failed", now_us);
    }
    if (lost)
        log_error("event=step_failed status=\"%s\" message=\"%s\" sequences=%u", status_name(f->status),
                  f->err.msg, lost);
    f->count = 0;
    s->step = s->ahead;
    s->ahead = f;
    s->step->start_us = end;
    for (uint32_t i = 0; i < s->step->count; i++) {
        if (!s->step->seqs[i]) continue;
        s->step->seqs[i]->ahead = 0;
        left++;
    }
    if (s->step->count && !left) land(s, now_us); /* nobody needs it */
}

/* Publishes the counters, then the events, so that an event that was seen is counted. All at once, so that
 * the numbers of one reading are consistent, even during a long step. */
static void publish(struct scheduler *s)
{
    struct sched_stats *st = &s->now;
    st->running = s->running.count;
    st->used_grains = kvb_used_grains(s->blocks);
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        uint64_t used = s->blocks->used_blocks[g], live = s->blocks->live_blocks[g];
        st->groups[g].blocks_used = used;
        st->groups[g].bytes_used = used * s->caps.groups[g].block_bytes;
        st->groups[g].blocks_live = live;
        st->groups[g].blocks_cached = used > live ? used - live : 0;
    }
    sched__cache_gauges(s);
    sched__offload_gauges(s);
    sched__images_gauges(s);
    pthread_mutex_lock(&s->lock);
    s->seen = *st;
    pthread_mutex_unlock(&s->lock);
    if (eventq_publish(&s->events) && s->opt.wake) s->opt.wake(s->opt.wake_arg);
}

/* Everything of a turn that comes before its step. */
static bool plan_step(struct scheduler *s, uint64_t now_us)
{
    drain_inbox(s);
    bool worked = end_unwanted(s, now_us);
    if (sched__cache_reset_wanted(s)) worked = true;
    sched__cache_snapshot(s);
    if (sched__images_take(s)) worked = true;
    if (sched__offload_take(s)) worked = true;
    if (s->image_failed) end_unwanted(s, now_us);
    if (atomic_load(&s->failed)) end_all(s, END_ERROR, "the engine has failed", now_us);
    sched__admit(s, now_us);
    sched__yield(s);
    publish(s); /* the watchdog must see the work while it runs */
    /* One slice of an image per turn: decodes, cancels and new requests are handled between slices. */
    if (sched__encode_slice(s)) worked = true;
    if (s->image_failed) worked |= end_unwanted(s, now_us);
    s->image_failed = false;
    sched__plan(s, now_us);
    if (s->yields && !s->step->count && !worked) { /* the others wait for something */
        s->yields = false;
        worked = sched__encode_slice(s);
        sched__plan(s, now_us);
    }
    if (s->mask_failed) {
        end_constrained(s, now_us);
        worked = true;
    }
    if (s->events.first) publish(s); /* requested images are decoded during the step, not after it */
    return worked;
}

bool sched_step(struct scheduler *s, uint64_t now_us)
{
    bool worked = false;
    if (s->step->count && called(s, now_us)) land(s, now_us);
    if (!s->step->count) {
        worked = plan_step(s, now_us);
        if (s->step->count) {
            launch(s, now_us);
            worked = true;
        }
    }
    if (s->step->count) {
        if (!called(s, now_us)) submit_ahead(s);
        land(s, now_us);
        worked = true;
    }
    for (const struct sequence *q = s->running.head ? NULL : s->waiting.head; q; q = q->next)
        worked |= !q->prefix_inflight; /* the only sequence was preempted: it is admitted again at once */
    s->now.heartbeat_us = now_us;
    publish(s);
    return worked || sched__offload_ready(s);
}

void sched_run(struct scheduler *s)
{
    for (;;) {
        bool worked = sched_step(s, event_clock_us());
        pthread_mutex_lock(&s->lock);
        bool abort_now = s->stopping && !s->drain;
        bool idle = !s->inbox.head && !s->waiting.head && !s->running.head;
        if (!abort_now && !worked && !s->inbox.head && !s->poked && !(s->stopping && idle)) {
            struct timespec ts;
            clock_gettime(CLOCK_MONOTONIC, &ts);
            ts.tv_sec += IDLE_HEARTBEAT_S;
            pthread_cond_timedwait(&s->work, &s->lock, &ts);
            idle = idle && !s->inbox.head; /* a submission may have arrived before the stop */
        }
        bool done = s->stopping && idle;
        pthread_mutex_unlock(&s->lock);
        if (abort_now) {
            if (s->step->count) land(s, event_clock_us());
            drain_inbox(s);
            end_all(s, END_CANCELLED, NULL, event_clock_us());
            publish(s);
            if (s->opt.wake) s->opt.wake(s->opt.wake_arg);
        }
        if (!abort_now && !done) continue;
        sched__offload_drain(s);
        return;
    }
}

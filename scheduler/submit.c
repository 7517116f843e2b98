/* What other threads call: creation, submission, cancels, requests to the engine thread. See scheduler.h. The
 * engine thread's side is scheduler/step.c. */
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "scheduler/tenants.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUEUE_DEFAULT = 1024 };
#define NEW(array, count) ((array) = calloc((count), sizeof *(array)))

static void wake_up(void *s)
{
    sched_wake(s);
}

enum status sched_create(struct engine *e, const struct sched_options *opt, struct scheduler **out,
                         struct err *err)
{
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(err, "the scheduler");
    s->engine = e;
    s->opt = *opt;
    s->inbox.state = SEQ_INBOX;
    s->waiting.state = SEQ_WAITING;
    s->running.state = SEQ_RUNNING;
    engine_caps(e, &s->caps);
    if (!s->opt.pooled_width) s->opt.pooled_width = s->opt.pooled_room = s->caps.hidden_size;
    ASSERT(s->caps.block_tokens > 0 && s->caps.batch_tokens_max > 0 && s->caps.sequences_max > 0);
    ASSERT_CMP(s->caps.batch_tokens_max, >=, s->caps.span_tokens_max);
    while (s->paged < s->caps.group_count && !s->caps.groups[s->paged].recurrent) s->paged++;
    ASSERT(s->paged + 1 >= s->caps.group_count);
    if (!s->opt.queue_max) s->opt.queue_max = QUEUE_DEFAULT;
    step_cost_init(&s->cost, &s->caps);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_condattr_destroy(&attr);
    s->slot_count = s->opt.queue_max + s->caps.sequences_max;
    s->step = &s->flights[0];
    s->ahead = &s->flights[1];
    size_t most = s->caps.sequences_max;
    bool ok = NEW(s->slots, s->slot_count) && NEW(s->free_slots, s->slot_count) &&
              NEW(s->step->chunks, most) && NEW(s->ahead->chunks, most) && NEW(s->step->dropped, most) &&
              NEW(s->ahead->dropped, most) && NEW(s->step->seqs, most) && NEW(s->ahead->seqs, most) &&
              NEW(s->asking, most) && NEW(s->prefills, most) && NEW(s->shares, most) &&
              NEW(s->drawn, most * (s->opt.draft_max + 1u)) && NEW(s->drafts, most) &&
              NEW(s->draft_slots, most) && !eventq_init(&s->events);
    enum status st = kvb_create(&s->caps, &s->blocks, err);
    if (!st && !opt->no_prefix_cache) st = radix_create(&s->caps, s->blocks, opt->hash_seed, &s->cache, err);
    if (!st && s->cache) radix_set_event_sink(s->cache, &opt->event_sink);
    if (!st) st = tenants_create(s->slot_count, opt->hash_seed, &s->tenants, err);
    if (!st) st = sched__images_create(s, err);
    if (!st) st = sched__offload_create(s, wake_up, err);
    if (!st && !ok) st = err_nomem(err, "the scheduler");
    if (st) {
        sched_destroy(s);
        return st;
    }
    for (uint32_t i = 0; i < s->slot_count; i++) s->free_slots[i] = s->slot_count - 1 - i;
    for (uint32_t i = 0; i < most; i++) s->draft_slots[s->draft_slots_free++] = i;
    s->now.arena_grains = s->caps.arena_grains;
    s->now.group_count = s->caps.group_count;
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        s->now.groups[g].window = s->caps.groups[g].window;
        s->now.groups[g].recurrent = g == s->paged;
    }
    s->seen = s->now;
    *out = s;
    return ST_OK;
}

void sched_destroy(struct scheduler *s)
{
    if (!s) return;
    struct err err;
    if (s->step && s->step->count && !s->step->status) (void)!engine_wait(s->engine, &s->step->batch, &err);
    struct seq_list *lists[] = {&s->inbox, &s->waiting, &s->running};
    for (int i = 0; i < 3; i++) {
        while (lists[i]->head) {
            struct sequence *q = lists[i]->head;
            sched__list_remove(lists[i], q);
            sched__leave(s, q);
            sched__offload_leave(s, q);
            sched__sequence_free(q);
        }
    }
    sched__offload_destroy(s);
    sched__images_destroy(s);
    eventq_fini(&s->events);
    radix_destroy(s->cache);
    tenants_destroy(s->tenants);
    kvb_destroy(s->blocks);
    free(s->slots);
    free(s->free_slots);
    for (int i = 0; i < 2; i++) {
        free(s->flights[i].chunks);
        free(s->flights[i].seqs);
        free(s->flights[i].dropped);
    }
    free(s->asking);
    free(s->prefills);
    free(s->shares);
    free(s->drawn);
    free(s->drafts);
    free(s->draft_slots);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    free(s);
}

uint32_t sched_context_max(const struct scheduler *s)
{
    uint32_t lo = 0, hi = s->caps.context_max;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2, need[ENGINE_GROUPS_MAX];
        sched__blocks_worst(s, mid, need);
        if (kvb_could_ever_allocate(s->blocks, need)) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

/* ---- submission (any thread) ---- */

static enum status check_sequence(const struct scheduler *s, const struct sched_sequence *r, uint64_t *total,
                                  struct err *err)
{
    const struct prompt *p = r->prompt;
    if (p->token_count == 0) return err_set(err, ST_INVALID, "the prompt is empty");
    *total = (uint64_t)p->token_count + r->tokens_max;
    if (*total > s->caps.context_max)
        return err_set(err, ST_TOO_LARGE, "prompt and answer together take %llu tokens, the context holds %u",
                       (unsigned long long)*total, s->caps.context_max);
    uint32_t need[ENGINE_GROUPS_MAX];
    sched__blocks_worst(s, *total, need);
    if (!kvb_could_ever_allocate(s->blocks, need))
        return err_set(err, ST_TOO_LARGE, "%llu tokens of KV can never fit into the arena of %llu bytes",
                       (unsigned long long)*total,
                       (unsigned long long)s->caps.arena_grains * s->caps.grain_bytes);
    if (r->stop_id_count + s->caps.eos_count > SCHED_STOP_MAX)
        return err_set(err, ST_TOO_LARGE, "more than %u stop token ids", SCHED_STOP_MAX - s->caps.eos_count);
    for (uint32_t i = 0, end = 0; i < p->span_count; end = p->spans[i++].end) {
        const struct prompt_span *im = &p->spans[i];
        if (im->rule == SPAN_PREFIX_LM && im->atomic_end > s->caps.span_tokens_max)
            return err_set(
                err, ST_TOO_LARGE,
                "the prompt has %u tokens; this model sees a prompt as a whole, and at most %u fit "
                "into one step",
                im->atomic_end, s->caps.span_tokens_max);
        if ((im->image && !s->caps.images) || im->begin < end || im->end <= im->begin ||
            im->end > p->token_count || im->atomic_end > p->token_count ||
            (im->atomic_end && im->atomic_end - im->atomic_begin > s->caps.span_tokens_max))
            return err_set(err, ST_INVALID, "span %u is out of order or outside of the prompt", i);
    }
    for (uint32_t i = 0; i < r->given_count; i++)
        if (r->given[i] >= s->caps.vocab_size)
            return err_set(err, ST_INVALID, "the given token id %u is not in the vocabulary", r->given[i]);
    if (r->given_count > r->tokens_max)
        return err_set(err, ST_INVALID, "%u tokens are given, but the output has at most %u", r->given_count,
                       r->tokens_max);
    /* An image's tokens have the placeholder id, which may exceed the embedding's rows: no row is looked up
     * for them. */
    for (uint32_t i = 0, im = 0; i < p->token_count; i++) {
        while (im < p->span_count && p->spans[im].end <= i) im++;
        if (im < p->span_count && p->spans[im].begin <= i && p->spans[im].image &&
            !prompt_grid_break(&p->spans[im].grid, i - p->spans[im].begin))
            continue;
        if (p->tokens[i] >= s->caps.vocab_size)
            return err_set(err, ST_INVALID, "token id %u is not in the vocabulary", p->tokens[i]);
    }
    return ST_OK;
}

enum status sched_submit(struct scheduler *s, const struct sched_sequence *seq, struct seq_id *id,
                         struct err *err)
{
    uint64_t total = 0;
    enum status st = check_sequence(s, seq, &total, err);
    if (st) return st;
    struct sequence *q;
    if (sched__sequence_create(s, seq, total, &q)) return err_nomem(err, "a sequence");
    q->submitted_us = event_clock_us();
    pthread_mutex_lock(&s->lock);
    if (s->stopping) st = err_set(err, ST_STOPPING, "the server is shutting down");
    else if (atomic_load(&s->failed)) st = err_set(err, ST_DEVICE, "the engine has failed");
    else if (atomic_load(&s->backlog) >= s->opt.queue_max || s->slots_used == s->slot_count)
        st = err_set(err, ST_AGAIN, "the queue is full (%u requests wait)", s->opt.queue_max);
    if (!st) {
        uint32_t slot = s->free_slots[s->slot_count - 1 - s->slots_used++];
        q->id = (struct seq_id){slot, ++s->slots[slot].gen};
        s->slots[slot].seq = q;
        q->arrival = s->arrivals++;
        *id = q->id;
        atomic_fetch_add(&s->backlog, 1);
        sched__list_append(&s->inbox, q);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (st) sched__sequence_free(q);
    return st;
}

void sched_cancel(struct scheduler *s, struct seq_id id)
{
    pthread_mutex_lock(&s->lock);
    if (id.slot < s->slot_count && s->slots[id.slot].gen == id.gen && s->slots[id.slot].seq) {
        atomic_store(&s->slots[id.slot].seq->cancelled, true);
        s->poked = true;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
}

void sched_wake(struct scheduler *s)
{
    sched__poke(s, &s->poked);
}

void sched_reset_prefix_cache(struct scheduler *s)
{
    sched__poke(s, &s->reset_cache);
}

void sched_reset_features(struct scheduler *s)
{
    sched__poke(s, &s->reset_features);
}

void sched_announce_cache(struct scheduler *s)
{
    sched__poke(s, &s->announce_cache);
}

/* Under the lock. A pending request keeps its salt: a caller with a different salt must ask again later. */
static uint64_t snapshot_ask(struct scheduler *s, const uint8_t salt[32])
{
    if (s->snapshots_asked == s->snapshot_made) memcpy(s->snapshot_asked_salt, salt, 32);
    s->poked = true;
    pthread_cond_signal(&s->work);
    return ++s->snapshots_asked;
}

uint64_t sched_snapshot_ask(struct scheduler *s, const uint8_t salt[32])
{
    pthread_mutex_lock(&s->lock);
    uint64_t request_seq = snapshot_ask(s, salt);
    pthread_mutex_unlock(&s->lock);
    return request_seq;
}

bool sched_snapshot(struct scheduler *s, const uint8_t salt[32], uint64_t *request_seq,
                    struct cache_snapshot *out)
{
    pthread_mutex_lock(&s->lock);
    bool made = s->snapshot_made >= *request_seq, own = memcmp(s->snapshot_salt, salt, 32) == 0;
    if (made && own) *out = s->snapshot;
    else if (made) *request_seq = snapshot_ask(s, salt);
    pthread_mutex_unlock(&s->lock);
    return made && own;
}

bool sched_poll(struct scheduler *s, struct sched_event *ev)
{
    return eventq_pop(&s->events, ev);
}

uint64_t sched_poll_since(const struct scheduler *s)
{
    const struct sched_event *ev = eventq_peek(&s->events);
    return ev ? ev->pushed_us : 0;
}

void sched_stop(struct scheduler *s, bool drain)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->drain = drain;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void sched_stats(struct scheduler *s, struct sched_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->seen;
    uint64_t gone = out->running;
    for (int i = 0; i < SEQ_ENDS; i++) gone += out->ended[i];
    out->waiting = (uint32_t)(s->arrivals - gone);
    out->inbox_us = s->inbox.head ? event_clock_us() - s->inbox.head->submitted_us : 0;
    pthread_mutex_unlock(&s->lock);
    out->failed = atomic_load(&s->failed);
}

/* Which sequences run in the next step, and with how many tokens: admission by memory, decodes first, then
 * prefill chunks (scheduler/prefill.c) in the remaining time, an image's tokens whole, and preemption if a
 * tenant has more than its share or the arena is full (scheduler/fair.c). See scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "scheduler/tenants.h"

#include <math.h>

/* The least part of a step's time for prefills, however much the decodes take. */
#define PREFILL_PART 3
/* The part of the step time used while a tenant that has been served little is among others: it mostly waits
 * for their prefills. */
#define SHORT_PART 0.5
/* Limit of sequences deferred for another's prefill in one turn: each costs a walk over the waiting ones and
 * comparisons with all running ones. */
enum { PREFIX_INFLIGHT_MAX = 16 };

/* The part that background sequences may add to the time of a step while they yield. */
#define BACKGROUND_PART 0.1

void sched__running_remove(struct scheduler *s, struct sequence *q)
{
    sched__list_remove(&s->running, q);
    tenants_stop(s->tenants, q->req.tenant);
    s->draft_slots[s->draft_slots_free++] = q->draft_slot;
}

void sched__preempt(struct scheduler *s, struct sequence *q)
{
    sched__running_remove(s, q);
    sched__cache_publish(s, q, true);
    sched__leave(s, q);
    q->preemptions++;
    q->loaded = false;
    q->chunk_tokens = q->proposed = 0;
    sched__list_insert(&s->waiting, q);
    atomic_fetch_add(&s->backlog, 1);
    s->now.preemptions++;
}

/* Whether q can't be admitted, however much memory is free. */
static bool no_place(const struct scheduler *s, const struct sequence *q)
{
    return s->running.count == s->caps.sequences_max ||
           (s->running.head && (q->alone || s->running.head->alone));
}

/* Whether q would fit if everything evictable or preemptible were gone. */
static bool could_fit(const struct scheduler *s, const struct sequence *q)
{
    uint32_t need[ENGINE_GROUPS_MAX] = {0}, most[ENGINE_GROUPS_MAX];
    for (const struct sequence *r = q; r && (r == q || r->req.priority < q->req.priority);
         r = r == q ? s->running.head : r->next) {
        sched__blocks_worst(s, (uint64_t)r->count + 1, most);
        for (uint32_t g = 0; g < s->caps.group_count; g++) need[g] += most[g];
    }
    return kvb_could_ever_allocate(s->blocks, need);
}

/* Takes a slot or blocks from a tenant that has more than q's. */
static bool take_from_others(struct scheduler *s, const struct sequence *q)
{
    struct sequence *victim = could_fit(s, q) ? sched__pick_victim(s, q) : NULL;
    if (victim) sched__preempt(s, victim);
    return victim != NULL;
}

/* Takes a slot for q and what the cache has for it. False: q must wait. */
static bool take_place(struct scheduler *s, struct sequence *q)
{
    while (no_place(s, q))
        if (!take_from_others(s, q)) return false;
    bool refused = q->refused_at == s->freed + 1;
    sched__cache_adopt(s, q);
    while (s->running.count > 0 && (refused || !sched__has_room(s, q))) {
        refused = false;
        if (take_from_others(s, q)) continue;
        sched__cache_undo(s, q);
        q->refused_at = s->freed + 1;
        return false;
    }
    return true;
}

/* Whether q may be admitted, perhaps by preemption. */
static bool may_start(struct scheduler *s, const struct sequence *q)
{
    bool waits = no_place(s, q) || (s->running.count > 0 && q->refused_at == s->freed + 1);
    return !waits || sched__pick_victim(s, q);
}

bool sched__may_admit(struct scheduler *s)
{
    if (!s->waiting.head) {
        tenants_advance_all(s->tenants);
        return false;
    }
    const struct sequence *q = sched__pick_waiting(s);
    return !q || may_start(s, q);
}

/* Admits while the whole history of the next sequence fits with the running ones: by priority, then evenly
 * between tenants, then by arrival; a tenant with more than its share is preempted. No sequence overtakes one
 * that waits for memory; those that wait for another's prefill of the same prefix are skipped. */
void sched__admit(struct scheduler *s, uint64_t now_us)
{
    uint32_t prefix_inflight = 0;
    if (s->waiting.head) sched__cache_defer(s);
    else tenants_advance_all(s->tenants);
    while (s->waiting.head) {
        struct sequence *q = sched__pick_waiting(s);
        if (!q || !may_start(s, q)) return;
        if (sched__cache_waits(s, q) || sched__offload_waits(s, q)) {
            if (++prefix_inflight == PREFIX_INFLIGHT_MAX) return;
            q->prefix_inflight = true;
            continue;
        }
        if (!take_place(s, q)) return;
        sched__offload_leave(s, q);
        sched__cache_admitted(s, q);
        sched__list_remove(&s->waiting, q);
        atomic_fetch_sub(&s->backlog, 1);
        if (!q->admitted_us) q->admitted_us = now_us;
        sched__place_taken(s, q);
        tenants_start(s->tenants, q->req.tenant);
        sched__list_insert(&s->running, q);
        ASSERT_CMP(s->draft_slots_free, >, 0);
        q->drew = false;
        q->draft_slot = s->draft_slots[--s->draft_slots_free];
    }
}

/* Where q's chunk may end: a token is drawn after it, and after each given one before it, if their masks are
 * ready. */
static uint32_t reach(const struct sequence *q)
{
    uint32_t drawn = sched__drawn_at(q);
    if (q->mask != MASK_READY) return drawn - 1;
    return q->count - drawn < q->masks_ahead ? q->count : drawn + q->masks_ahead;
}

/* Tokens of q's next chunk within `budget`: never ends inside an atomic span, never enters an image that is
 * not encoded, never reaches a sampled position whose mask is not ready. 0 = none now; then *span_need is the
 * length of the atomic span if only the budget is too small, else 0. */
static uint32_t chunk_of(const struct sequence *q, uint32_t budget, uint32_t *span_need)
{
    const struct prompt *p = q->req.prompt;
    uint32_t from = q->position, most = reach(q), left = most - from;
    uint32_t end = from + (left < budget ? left : budget);
    *span_need = 0;
    if (q->mask == MASK_FAILED) return 0;
    for (uint32_t i = q->next_span; i < p->span_count; i++) {
        const struct prompt_span *im = &p->spans[i];
        if (im->begin > from ? im->begin >= end : end <= from) break;
        uint32_t begin = im->atomic_end ? im->atomic_begin : im->begin;
        if (!sched__span_ready(q, i)) return begin > from ? begin - from : 0;
        if (end < im->atomic_end) {
            if (begin > from) return begin - from;
            if (im->atomic_end <= most) *span_need = im->atomic_end - from;
            return 0;
        }
    }
    return end - from;
}

/* Length of a prefill chunk: at most `soft` tokens, but an image goes whole up to `hard` (the step's budget);
 * smaller if the arena can't hold the whole chunk at once (sliding groups release blocks after a shorter
 * one). */
static uint32_t prefill_length(struct scheduler *s, struct sequence *q, uint32_t soft, uint32_t hard)
{
    uint32_t save = sched__cache_save_at(s, q) - q->position, span = 0;
    if (save < soft) soft = save;
    uint32_t n = chunk_of(q, soft < hard ? soft : hard, &span);
    if (n == 0 && span > 0) {
        if (sched__waits_turn(s, q)) return 0; /* it is more than the spare time */
        if (span > hard) {
            if (s->step->tokens > 0) s->wide = q;
            return 0;
        }
        return chunk_of(q, span, &span);
    }
    while (n > s->caps.block_tokens && !sched__blocks_fit(s, q, n, true)) {
        uint32_t less = chunk_of(q, n / 2, &span);
        if (less == 0) less = span;
        if (less == 0 || less >= n) break;
        n = less;
    }
    return n;
}

static void remove_chunk(struct scheduler *s, const struct sequence *q)
{
    for (uint32_t i = 0; i < s->step->count; i++) {
        if (s->step->seqs[i] != q) continue;
        s->step->tokens -= q->chunk_tokens;
        s->step->count--;
        for (uint32_t j = i; j < s->step->count; j++) s->step->seqs[j] = s->step->seqs[j + 1];
        return;
    }
}

/* Allocates blocks for q's chunk, by preemption if necessary. False: q itself was preempted, or its table is
 * out of memory. */
static bool make_room(struct scheduler *s, struct sequence *q, uint32_t n)
{
    while (!sched__blocks_ensure(s, q, n)) {
        if (sched__offload_yield(s)) continue;
        struct sequence *victim = sched__pick_victim(s, NULL);
        /* sched_submit rejects what can't run alone in an empty arena. But blocks of an ended sequence, or of
         * a chunk larger than necessary, may have been between q's blocks, which are then scattered over more
         * slabs than needed. So q restarts, alone. A victim beside others waits until one of them releases
         * blocks: sched__has_room doesn't know of slabs, and a sequence that is admitted and preempted in
         * every turn would take their turns to encode images. */
        if (victim == q && s->running.count == 1) q->alone = true;
        if (victim->chunk_tokens) remove_chunk(s, victim);
        sched__preempt(s, victim);
        victim->refused_at = s->freed + 1;
        if (victim == q) return false;
    }
    return true;
}

/* Adds q's chunk of n tokens to the step. False: q was preempted. */
static bool add_chunk(struct scheduler *s, struct sequence *q, uint32_t n)
{
    if (!make_room(s, q, n)) return false;
    q->chunk_tokens = n;
    s->step->seqs[s->step->count++] = q;
    s->step->tokens += n;
    return true;
}

bool sched__prefill_ready(const struct sequence *q)
{
    uint32_t span;
    return chunk_of(q, UINT32_MAX, &span) > 0 || span > 0;
}

uint32_t sched__prefill_chunk(struct scheduler *s, struct sequence *q, uint32_t tokens)
{
    if (s->opt.prefill_chunk && tokens > s->opt.prefill_chunk) tokens = s->opt.prefill_chunk;
    if (q->alone && tokens > s->caps.block_tokens)
        tokens = s->caps.block_tokens; /* assumed by sched__blocks_worst */
    uint32_t n = prefill_length(s, q, tokens, s->caps.batch_tokens_max - s->step->tokens);
    return n && add_chunk(s, q, n) ? n : 0;
}

/* The time that is planned so far. */
static double planned_us(const struct scheduler *s)
{
    struct step_load l = {{0}};
    for (uint32_t i = 0; i < s->step->count; i++)
        step_load_add(&s->cost, &l, s->step->seqs[i]->position, s->step->seqs[i]->chunk_tokens, true);
    return step_cost_us(&s->cost, &l);
}

/* What background sequences may add to it. */
static double spare_us(const struct scheduler *s)
{
    if (s->own_turn) return s->opt.step_us ? (double)s->opt.step_us : (double)INFINITY;
    return s->opt.step_us && s->step->count ? planned_us(s) * BACKGROUND_PART : 0;
}

static void plan_decodes(struct scheduler *s)
{
    bool first = true;
    sched__speculate(s);
    for (struct sequence *q = s->running.head; q;) {
        if (s->step->count == s->caps.sequences_max || s->step->tokens == s->caps.batch_tokens_max) return;
        if (sched__yields(s, q)) {
            double us = step_cost_chunk_us(&s->cost, q->position, 1 + q->proposed, true);
            if (first) s->spare_us = spare_us(s);
            if (sched__decodes(q) && us > s->spare_us && !(s->own_turn && first)) return;
            if (sched__decodes(q)) s->spare_us -= us;
            first = false;
        }
        if (q->chunk_tokens || !sched__decodes(q) || q->mask != MASK_READY) {
            q = q->next;
            continue;
        }
        while (q->proposed && !sched__blocks_fit(s, q, 1 + q->proposed, false))
            q->proposed--; /* others took them */
        q = add_chunk(s, q, 1 + q->proposed) ? q->next : s->running.head;
    }
}

/* What prefills may take of the step in addition to what is planned, in microseconds; in tokens without a
 * time budget. */
static double prefill_budget(struct scheduler *s)
{
    uint32_t rows = s->caps.batch_tokens_max - s->step->tokens;
    s->step_rows = s->caps.batch_tokens_max;
    if (!s->opt.step_us) return rows;
    if (step_cost_rows(&s->cost) < s->step_rows) s->step_rows = step_cost_rows(&s->cost);
    /* Prefills get at least as much time as a step's fixed cost, as weights read for one row serve more; not
     * while a tenant with few tokens waits for the step's end. */
    bool brief = sched__short_runs(s);
    double step = (double)s->opt.step_us * (brief ? SHORT_PART : 1), fixed = s->cost.us[STEP_FIXED];
    double left = step - s->slice_us - fmax(planned_us(s), fixed);
    left = fmax(left, fmax(step / PREFILL_PART, brief ? 0 : fixed));
    double full = rows * s->cost.us[STEP_ROWS]; /* so that a limit of rows is divided, too */
    return full > 0 && full < left ? full : left;
}

void sched__plan(struct scheduler *s, uint64_t now_us)
{
    sched__admit(s, now_us);
    s->step->count = s->step->tokens = 0;
    s->spare_us = 0;
    for (struct sequence *q = s->running.head; q; q = q->next) q->chunk_tokens = q->proposed = 0;
    sched__masks_prepare(s);
    /* An image larger than the step's remaining tokens comes first in the next step, before decodes. */
    const struct sequence *wide = s->wide;
    s->wide = NULL;
    for (struct sequence *q = wide ? s->running.head : NULL; q; q = q->next) {
        if (q != wide) continue;
        sched__prefill_chunk(s, q, 1);
        break;
    }
    if (!s->step->count) plan_decodes(s);
    sched__plan_prefills(s, prefill_budget(s));
}

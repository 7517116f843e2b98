/* The scheduler's use of the prefix cache: what a sequence reuses at admission, what it publishes as it runs,
 * and which sequence waits for another's prefill. Engine thread. The tree itself is radix_cache.h. See
 * scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"

#include <math.h>
#include <string.h>

void sched__cache_admitted(struct scheduler *s, struct sequence *q)
{
    if (q->looked) return; /* resumed after preemption: its own prompt again */
    q->looked = true;
    s->now.cache_stops[q->cache.stop]++;
    if (q->cache.stop == CACHE_STOP_DISABLED) return;
    s->now.cache_queries++;
    s->now.cache_query_tokens += q->req.prompt->token_count;
    if (!q->cache.reused) return;
    s->now.cache_hits++;
    s->now.tier_hits[q->cache.tier]++;
    s->now.cache_hit_tokens += q->cache.reused;
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        uint32_t w = s->caps.groups[g].window, reach = w && w - 1 < q->cache.reused ? w - 1 : q->cache.reused;
        s->now.groups[g].hit_tokens += reach;
    }
}

/* The blocks of a hit become q's; partly filled ones at its end are copied, because q continues to write
 * there. False: no memory for a copy or a table; the caller drops what q holds. */
static bool adopt_blocks(struct scheduler *s, struct sequence *q, const struct radix_hit *hit)
{
    uint32_t need[ENGINE_GROUPS_MAX] = {0}, partial = hit->length / s->caps.block_tokens;
    for (uint32_t g = 0; g < s->caps.group_count; g++)
        if (!sched__table_reserve(&q->tables[g], hit->tables[g].end)) return false;
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        struct block_table *t = &q->tables[g];
        t->first = hit->tables[g].first;
        t->end = hit->tables[g].end;
        for (uint32_t i = t->first; i < t->end; i++) {
            t->block_offsets[i] = hit->tables[g].block_offsets[i];
            kvb_acquire(s->blocks, g, t->block_offsets[i], KVB_LIVE);
        }
        if (hit->length % s->caps.block_tokens && t->end > partial && g < s->paged) need[g] = 1;
    }
    if (!kvb_can_allocate(s->blocks, need) && !radix_evict(s->cache, need)) return false;
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        struct block_table *t = &q->tables[g];
        if (!need[g]) continue;
        uint32_t shared = t->block_offsets[partial], own = kvb_allocate(s->blocks, g);
        ASSERT(own != ENGINE_NO_BLOCK);
        engine_kv_copy(s->engine, g, shared, own, hit->length % s->caps.block_tokens);
        kvb_release(s->blocks, g, shared, KVB_LIVE);
        t->block_offsets[partial] = own;
        s->now.cache_copied_blocks++;
    }
    return true;
}

/* ---- where the state of a recurrent group is saved ---- */

/* Saving a state ends a chunk early, which costs one more step. That is worth it if a hit there saves as much
 * as this many steps' fixed cost: at a branch point, which is known to be shared; at the end of a prompt or
 * an image; inside a prompt. */
enum { BRANCH_SAVES_STEPS = 1, END_SAVES_STEPS = 8, INSIDE_SAVES_STEPS = 24 };
/* How many times closer states are while few are saved. */
enum { STATES_CLOSER = 4 };
/* The last tokens of a prompt, the template's header of the response, are often not in the next turn's. */
enum { PROMPT_END_TOKENS = 8 };

static bool recurrent(const struct scheduler *s)
{
    return s->paged < s->caps.group_count;
}

/* Tokens whose prefill takes as long as the fixed cost of this many steps; at least a block. */
static uint32_t tokens_like_steps(const struct scheduler *s, uint32_t steps)
{
    double n = s->cost.us[STEP_ROWS] > 0 ? steps * s->cost.us[STEP_FIXED] / s->cost.us[STEP_ROWS] : 0;
    return (uint32_t)fmin(fmax(n, s->caps.block_tokens), s->caps.context_max);
}

/* Distance of states inside a long prompt: the number of tokens whose KV takes as much memory as a state;
 * less while states take a small part of the arena. */
static uint32_t state_distance(const struct scheduler *s)
{
    const struct engine_kv_group *state = &s->caps.groups[s->paged];
    double token = 0, used = (double)s->now.cache_states * state->block_grains / (double)s->caps.arena_grains;
    for (uint32_t g = 0; g < s->paged; g++)
        if (!s->caps.groups[g].window) token += (double)s->caps.groups[g].bytes_per_token;
    double n = token > 0 ? (double)state->block_bytes / token : s->caps.context_max;
    n *= fmin(fmax(used * STATES_CLOSER, 1.0 / STATES_CLOSER), 1);
    return (uint32_t)fmin(fmax(n, tokens_like_steps(s, INSIDE_SAVES_STEPS)), s->caps.context_max);
}

static uint32_t prompt_end(const struct sequence *q)
{
    uint32_t n = q->req.prompt->token_count;
    return n > PROMPT_END_TOKENS ? n - PROMPT_END_TOKENS : 0;
}

static void plan_save(const struct scheduler *s, struct sequence *q)
{
    const struct prompt *p = q->req.prompt;
    uint32_t least = tokens_like_steps(s, END_SAVES_STEPS), next = UINT32_MAX;
    q->save_at = UINT32_MAX;
    if (!recurrent(s) || !q->pin.node || q->position >= p->token_count) return;
    uint32_t after = q->state_saved + least; /* where a state may be saved without evidence */
    if (q->branch > q->position && q->branch >= q->state_saved + tokens_like_steps(s, BRANCH_SAVES_STEPS))
        next = q->branch;
    for (uint32_t i = q->next_span; i < p->span_count; i++) {
        uint32_t at = p->spans[i].end;
        bool alone = i + 1 == p->span_count || p->spans[i + 1].begin >= at + least;
        if (p->spans[i].image && alone && at > q->position && at >= after && at < next) next = at;
    }
    uint32_t end = prompt_end(q), inside = q->state_saved + state_distance(s);
    if (end > q->position && end >= after && end < next) next = end;
    if (inside > q->position && inside + least <= end && inside < next) next = inside;
    q->save_at = next;
}

uint32_t sched__cache_save_at(const struct scheduler *s, const struct sequence *q)
{
    if (!recurrent(s)) return UINT32_MAX;
    uint32_t at = q->needed_len > q->position && q->needed_len < q->save_at ? q->needed_len : q->save_at;
    return at > q->position ? at : UINT32_MAX;
}

void sched__leave(struct scheduler *s, struct sequence *q)
{
    sched__features_drop(s, q);
    sched__blocks_drop(s, q);
    if (s->cache) radix_unpin(s->cache, &q->pin);
    q->position = q->published = 0;
}

void sched__cache_adopt(struct scheduler *s, struct sequence *q)
{
    struct radix_hit hit = {.info = {.stop = CACHE_STOP_DISABLED}};
    struct radix_view v = sched__view(q);
    ASSERT(q->position == 0 && !q->pin.node);
    /* A sequence that runs alone needs its blocks packed: it reuses no scattered ones and publishes
     * nothing. */
    q->save_at = UINT32_MAX;
    if (!s->cache || q->alone) {
        if (!q->looked) q->cache = hit.info;
        return;
    }
    bool writes = !q->req.no_cache_write;
    uint32_t most;
    if (sched__cache_reads(s, q, &most) && !radix_match(s->cache, &v, most, NULL, &hit))
        hit = (struct radix_hit){.info = {.stop = CACHE_STOP_SALT}};
    if (q->refused_at || q->preemptions) hit.evicted = false; /* counts once */
    if (writes && !radix_pin_hit(s->cache, &v, &hit, &q->pin)) hit.length = 0;
    if (hit.length && !adopt_blocks(s, q, &hit)) {
        sched__blocks_drop(s, q);
        radix_unpin(s->cache, &q->pin);
        hit.length = 0;
        struct radix_hit none = {.node = NULL};
        if (writes && !radix_pin_hit(s->cache, &v, &none, &q->pin)) q->pin.node = NULL;
    }
    q->position = q->published = q->state_at = q->state_saved = hit.length;
    q->branch = hit.branch;
    plan_save(s, q);
    sched__features_passed(s, q);
    if (!q->looked) {
        q->cache = hit.info;
        if (q->load && hit.length) sched__load_info(q->load, &q->cache);
        uint32_t prompt = q->req.prompt->token_count;
        q->cache.reused = hit.length < prompt ? hit.length : prompt;
        if (q->cache.equal > prompt) q->cache.equal = prompt; /* and given tokens */
    }
}

/* Undoes sched__cache_adopt for a sequence that isn't admitted after all. */
void sched__cache_undo(struct scheduler *s, struct sequence *q)
{
    sched__leave(s, q);
    if (!q->looked) q->cache = (struct sched_cache_info){0};
}

/* save: q's state, which is that after `to` tokens. */
static void publish_to(struct scheduler *s, struct sequence *q, uint32_t to, bool checkpoint, bool save)
{
    struct radix_view v = sched__view(q);
    struct block_table tables[ENGINE_GROUPS_MAX];
    memcpy(tables, q->tables, sizeof tables);
    if (!save && recurrent(s)) tables[s->paged].end = 0;
    q->published = radix_publish(s->cache, &v, &q->pin, q->published, to, tables, checkpoint);
}

/* Likely ends of hits, for which the sliding groups' tails are kept: ends of images, of the prompt, of the
 * turn (`last`). Must run before sched__blocks_trim, while blocks before the window are in the tables. */
void sched__cache_publish(struct scheduler *s, struct sequence *q, bool last)
{
    const struct prompt *p = q->req.prompt;
    uint32_t bt = s->caps.block_tokens, reached = q->position;
    if (!s->cache || !q->pin.node || q->published > reached || (q->published == reached && !last)) return;
    bool prefilled = q->published < p->token_count;
    if (!last && !prefilled && reached / bt == q->published / bt) return; /* decode: as blocks fill */
    for (uint32_t i = 0; prefilled && i < p->span_count && p->spans[i].end <= reached; i++) {
        const struct prompt_span *at = &p->spans[i];
        if (at->end > q->published && at->end >= at->atomic_end) publish_to(s, q, at->end, true, false);
    }
    if (prefilled && reached >= p->token_count && q->published < p->token_count)
        publish_to(s, q, p->token_count, true, false);
    bool save = q->state_at == reached && (last || reached == q->needed_len || reached >= q->save_at);
    if (reached > q->published || last || save) publish_to(s, q, reached, last || save, save);
    if (save) q->state_saved = reached;
    plan_save(s, q);
}

/* ---- waiting for another's prefill ---- */

void sched__cache_defer(struct scheduler *s)
{
    for (struct sequence *q = s->running.head; q; q = q->next) q->needed_len = 0;
    pthread_mutex_lock(&s->lock); /* sched_submit may be reusing the slots */
    for (struct sequence *q = s->waiting.head; q; q = q->next) {
        if (q->waits) {
            const struct slot *at = &s->slots[q->dedup_leader.slot];
            struct sequence *r = at->gen == q->dedup_leader.gen ? at->seq : NULL;
            q->waits = r && r->state == SEQ_RUNNING && r->position < q->wait_until;
            /* It ranks like the shortest sequence that waits for it. */
            if (q->waits && (!r->needed_len || q->wait_until < r->needed_len)) r->needed_len = q->wait_until;
        }
        q->prefix_inflight = q->waits || sched__loading(s, q);
    }
    pthread_mutex_unlock(&s->lock);
}

/* A sequence that shares a prefix with one being prefilled waits for it rather than compute it twice. */
bool sched__cache_waits(struct scheduler *s, struct sequence *q)
{
    uint32_t most, known = UINT32_MAX;
    if (!sched__cache_reads(s, q, &most)) return false;
    struct radix_view v = sched__view(q);
    for (struct sequence *r = s->running.head; r; r = r->next) {
        if (r->position >= r->req.prompt->token_count || !r->pin.node) continue;
        if (r->req.priority > q->req.priority ||
            (r->req.tenant == q->req.tenant && r->req.rank > q->req.rank))
            continue; /* its prefill yields to others, q need not */
        struct radix_view w = sched__view(r);
        uint32_t limit =
                     r->req.prompt->token_count < q->count - 1 ? r->req.prompt->token_count : q->count - 1,
                 common;
        if (limit <= r->position + s->caps.block_tokens) continue;
        common = radix_common(&v, &w, limit);
        if (recurrent(s) && common > prompt_end(r)) common = prompt_end(r); /* its state is saved there */
        if (common <= r->position) continue;
        if (known == UINT32_MAX) {
            struct radix_hit hit;
            known = radix_match(s->cache, &v, most, NULL, &hit) ? hit.length : 0;
        }
        if (common < known + (recurrent(s) ? tokens_like_steps(s, 1) : s->caps.block_tokens)) continue;
        q->waits = true;
        q->dedup_leader = r->id;
        q->wait_until = common;
        s->now.cache_waits++;
        return true;
    }
    return false;
}

bool sched__cache_reset_wanted(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    bool wanted = s->reset_cache, announce = s->announce_cache;
    s->reset_cache = s->announce_cache = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted && s->cache) {
        sched__offload_reset(s); /* before it: then everything is announced */
        radix_reset(s->cache);
    }
    if (announce && !wanted && s->cache) radix_announce(s->cache);
    return wanted || announce;
}

void sched__cache_snapshot(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t asked = s->snapshots_asked;
    bool wanted = asked > s->snapshot_made;
    uint8_t salt[32];
    memcpy(salt, s->snapshot_asked_salt, sizeof salt);
    pthread_mutex_unlock(&s->lock);
    if (!wanted) return;
    if (s->cache) radix_snapshot(s->cache, salt, &s->snapshot_next);
    sched__offload_snapshot(s, salt, &s->snapshot_next);
    pthread_mutex_lock(&s->lock);
    s->snapshot = s->snapshot_next;
    s->snapshot_made = asked;
    memcpy(s->snapshot_salt, salt, sizeof salt);
    pthread_mutex_unlock(&s->lock);
    if (s->opt.wake) s->opt.wake(s->opt.wake_arg);
}

void sched__cache_gauges(struct scheduler *s)
{
    if (!s->cache) return;
    struct radix_stats r;
    radix_stats(s->cache, &r);
    s->now.cache_nodes = r.nodes;
    s->now.cache_evictions = r.evicted_nodes;
    s->now.cache_states = r.states;
    for (uint32_t g = 0; g < s->caps.group_count; g++) s->now.groups[g].evicted_blocks = r.evicted_blocks[g];
}

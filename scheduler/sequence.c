/* A sequence: its memory, its list, its block tables, which grow before a chunk; those of sliding groups are
 * trimmed after it. See scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "config/base/sha256.h"

#include <stdlib.h>
#include <string.h>

void sched__reply_free(struct image_reply *r)
{
    if (!r) return;
    image_u8_free(&r->pixels);
    free(r);
}

void sched__sequence_free(struct sequence *q)
{
    if (!q) return;
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) free(q->tables[g].block_offsets);
    free(q->tokens);
    for (uint32_t i = 0; q->features && i < q->req.prompt->span_count; i++) {
        ASSERT(!q->features[i].entry);
        image_u8_free(&q->features[i].pixels);
        sched__reply_free(q->features[i].reply);
    }
    free(q->features);
    free(q->uses);
    ngram_draft_fini(&q->ngram);
    free(q->scores);
    free(q->draws);
    free(q->hidden);
    free(q->pooled);
    free(q->end_event);
    free(q);
}

void sched_namespace(const uint8_t salt[32], const struct adapter *adapter, uint8_t out[32])
{
    struct sha256 s;
    if (out != salt) memcpy(out, salt, 32);
    if (!adapter) return;
    sha256_init(&s);
    sha256_add(&s, salt, 32);
    sha256_add(&s, adapter_info(adapter)->digest, 32);
    sha256_end(&s, out);
    memcpy(out + 24, adapter_info(adapter)->digest, 8);
}

enum status sched__sequence_create(const struct scheduler *s, const struct sched_sequence *r, uint64_t total,
                                   struct sequence **out)
{
    struct sequence *q = calloc(1, sizeof *q);
    if (!q) return ST_NOMEM;
    const struct prompt *p = r->prompt;
    q->req = *r;
    sched_namespace(r->salt, r->adapter, q->req.salt);
    memcpy(q->image_salt, sched__image_adapter(q) ? q->req.salt : r->salt, sizeof q->image_salt);
    q->tokens_max = r->tokens_max;
    q->count = p->token_count + (r->given_count ? r->given_count - 1 : 0);
    q->speculation_off = r->given_count > 0;
    /* A first capacity: long outputs grow it, most never need the whole context. */
    q->token_cap = total < (uint64_t)p->token_count + 256 ? (uint32_t)total + 1 : p->token_count + 256;
    if (r->given_count) q->token_cap = q->count + 1;
    q->tokens = malloc((size_t)q->token_cap * sizeof *q->tokens);
    q->end_event = calloc(1, sizeof *q->end_event);
    if (p->span_count) {
        q->features = calloc(p->span_count, sizeof *q->features);
        q->uses = calloc(p->span_count, sizeof *q->uses);
    }
    uint64_t pooled = s->opt.pooled_room;
    if (r->pooling == POOL_ALL) pooled += (uint64_t)s->opt.pooled_width * (p->token_count - 1);
    if (r->pooling) q->pooled = calloc(pooled, sizeof *q->pooled);
    if (!q->tokens || !q->end_event || (r->pooling && !q->pooled) ||
        (p->span_count && (!q->features || !q->uses))) {
        sched__sequence_free(q);
        return ST_NOMEM;
    }
    memcpy(q->tokens, p->tokens, (size_t)p->token_count * sizeof *q->tokens);
    if (r->given_count) memcpy(q->tokens + p->token_count, r->given, r->given_count * sizeof *q->tokens);
    for (uint32_t i = 0; i < r->stop_id_count; i++) q->banned[q->banned_count++] = r->stop_ids[i];
    for (uint32_t i = 0; i < s->caps.eos_count; i++) q->banned[q->banned_count++] = s->caps.eos_ids[i];
    q->scored = 1;
    *out = q;
    return ST_OK;
}

/* ---- lists ---- */

static const struct state_rule rules[] = {
    [SEQ_NEW] = {"SEQ_NEW", 1u << SEQ_INBOX},
    [SEQ_INBOX] = {"SEQ_INBOX", 1u << SEQ_WAITING},
    [SEQ_WAITING] = {"SEQ_WAITING", 1u << SEQ_RUNNING | 1u << SEQ_ENDED},
    [SEQ_RUNNING] = {"SEQ_RUNNING", 1u << SEQ_WAITING | 1u << SEQ_ENDED},
    [SEQ_ENDED] = {"SEQ_ENDED", 0},
};

void sched__seq_to(struct sequence *q, enum seq_state state)
{
    ASSERT_NEXT(rules, q->state, state, "sequence %u of slot %u", q->id.gen, q->id.slot);
    if (q->req.running && state == SEQ_RUNNING) atomic_fetch_add(q->req.running, 1);
    if (q->req.running && q->state == SEQ_RUNNING) atomic_fetch_sub(q->req.running, 1);
    q->state = state;
}

static void link_after(struct seq_list *l, struct sequence *at, struct sequence *s)
{
    sched__seq_to(s, l->state);
    LIST_LINK(l, at, s);
    l->count++;
}

void sched__list_append(struct seq_list *l, struct sequence *s)
{
    link_after(l, l->tail, s);
}

static bool before(const struct sequence *a, const struct sequence *b)
{
    return a->req.priority != b->req.priority ? a->req.priority < b->req.priority : a->arrival < b->arrival;
}

void sched__list_insert(struct seq_list *l, struct sequence *s)
{
    struct sequence *at = l->tail;
    while (at && before(s, at)) at = at->prev;
    link_after(l, at, s);
}

void sched__list_remove(struct seq_list *l, struct sequence *s)
{
    ASSERT_MSG(s->state == l->state && (s->prev ? s->prev->next : l->head) == s,
               "sequence %u of slot %u, in %s, is not in the list of %s", s->id.gen, s->id.slot,
               rules[s->state].name, rules[l->state].name);
    LIST_UNLINK(l, s);
    l->count--;
}

/* ---- block tables ---- */

static uint32_t blocks_of(const struct scheduler *s, uint64_t tokens)
{
    return (uint32_t)((tokens + s->caps.block_tokens - 1) / s->caps.block_tokens);
}

/* A chunk writes its state in place, unless somebody else holds the block. */
static uint32_t states_missing(const struct scheduler *s, const struct block_table *t)
{
    if (t->end != 1) return !t->end;
    return kvb_references(s->blocks, s->paged, t->block_offsets[0], KVB_CACHED) > 0 ||
           kvb_references(s->blocks, s->paged, t->block_offsets[0], KVB_LIVE) > 1;
}

uint32_t sched__blocks_missing(const struct scheduler *s, const struct sequence *q, uint32_t g, uint32_t n)
{
    if (g == s->paged) return states_missing(s, &q->tables[g]);
    uint32_t end = blocks_of(s, (uint64_t)q->position + n);
    return end > q->tables[g].end ? end - q->tables[g].end : 0;
}

/* The same; n 0: for the token after tokens[count], which the chunk in flight samples. */
static uint32_t missing(const struct scheduler *s, const struct sequence *q, uint32_t g, uint32_t n)
{
    if (!n && g == s->paged) return 1;
    return sched__blocks_missing(s, q, g, n ? n : q->count + 1 - q->position);
}

bool sched__table_reserve(struct block_table *t, uint32_t entries)
{
    if (entries <= t->cap) return true;
    uint32_t cap = t->cap ? t->cap : 16;
    while (cap < entries) cap *= 2;
    uint32_t *u = realloc(t->block_offsets, cap * sizeof *u);
    if (!u) return false;
    for (uint32_t i = t->cap; i < cap; i++) u[i] = ENGINE_NO_BLOCK;
    t->block_offsets = u;
    t->cap = cap;
    return true;
}

bool sched__tokens_reserve(struct sequence *q, uint32_t count)
{
    return LIST_RESERVE(q->tokens, q->token_cap, count);
}

/* Blocks for a chunk of n tokens of each sequence, or, n 0, for one token after the chunk in flight; of all
 * or none. */
static bool take_blocks(struct scheduler *s, struct sequence *const *seqs, uint32_t count, uint32_t n)
{
    uint32_t need[ENGINE_GROUPS_MAX] = {0}, more;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t g = 0; g < s->caps.group_count; g++) {
            struct block_table *t = &seqs[i]->tables[g];
            need[g] += more = missing(s, seqs[i], g, n);
            if (!sched__table_reserve(t, t->end + more)) return false;
        }
    if (!kvb_can_allocate(s->blocks, need) && !(s->cache && radix_evict(s->cache, need))) return false;
    for (uint32_t g = 0; g < s->caps.group_count; g++)
        for (uint32_t i = 0; i < count; i++) {
            struct block_table *t = &seqs[i]->tables[g];
            for (more = missing(s, seqs[i], g, n); more; more--) {
                t->block_offsets[t->end] = kvb_allocate(s->blocks, g);
                ASSERT(t->block_offsets[t->end++] != ENGINE_NO_BLOCK);
            }
        }
    return true;
}

bool sched__blocks_ensure(struct scheduler *s, struct sequence *q, uint32_t n)
{
    return take_blocks(s, &q, 1, n);
}

bool sched__blocks_fit(const struct scheduler *s, const struct sequence *q, uint32_t n, bool evict)
{
    uint32_t need[ENGINE_GROUPS_MAX] = {0};
    for (uint32_t g = 0; g < s->caps.group_count; g++) need[g] = sched__blocks_missing(s, q, g, n);
    return evict ? kvb_can_reclaim(s->blocks, need) : kvb_can_allocate(s->blocks, need);
}

/* The state that q's chunk reads is no longer needed if it writes another block. */
static void drop_read_state(struct scheduler *s, struct sequence *q)
{
    struct block_table *t = &q->tables[s->paged];
    if (s->paged == s->caps.group_count || t->end < 2) return;
    kvb_release(s->blocks, s->paged, t->block_offsets[0], KVB_LIVE);
    s->freed++;
    t->block_offsets[0] = t->block_offsets[1];
    t->block_offsets[--t->end] = ENGINE_NO_BLOCK;
}

void sched__state_written(struct scheduler *s, struct sequence *q, uint32_t at)
{
    q->state_at = at;
    if (!q->ahead) drop_read_state(s, q);
}

bool sched__blocks_ahead(struct scheduler *s, struct sequence *const *seqs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) drop_read_state(s, seqs[i]);
    return take_blocks(s, seqs, n, 0);
}

void sched__blocks_roll_back(struct scheduler *s, struct sequence *q, uint32_t tokens)
{
    for (uint32_t g = 0; g < s->paged; g++) {
        struct block_table *t = &q->tables[g];
        for (uint32_t end = blocks_of(s, tokens); t->end > end && t->end > t->first;) {
            kvb_release(s->blocks, g, t->block_offsets[--t->end], KVB_LIVE);
            t->block_offsets[t->end] = ENGINE_NO_BLOCK;
            s->freed++;
        }
    }
}

void sched__blocks_trim(struct scheduler *s, struct sequence *q)
{
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        struct block_table *t = &q->tables[g];
        uint32_t w = s->caps.groups[g].window;
        if (w == 0 || q->position < w) continue;
        /* The next query, at `position`, sees keys from position - w + 1 on; the draft model one more. */
        uint32_t keep = (q->position - w + !s->caps.drafts) / s->caps.block_tokens;
        while (t->first < keep && t->first < t->end) {
            kvb_release(s->blocks, g, t->block_offsets[t->first], KVB_LIVE);
            s->freed++;
            t->block_offsets[t->first++] = ENGINE_NO_BLOCK;
        }
    }
}

void sched__blocks_drop(struct scheduler *s, struct sequence *q)
{
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        struct block_table *t = &q->tables[g];
        for (uint32_t b = t->first; b < t->end; b++) {
            kvb_release(s->blocks, g, t->block_offsets[b], KVB_LIVE);
            t->block_offsets[b] = ENGINE_NO_BLOCK;
        }
        t->first = t->end = 0;
    }
    s->freed++;
}

void sched__blocks_worst(const struct scheduler *s, uint64_t tokens, uint32_t need[ENGINE_GROUPS_MAX])
{
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
        need[g] = 0;
        if (g >= s->caps.group_count) continue;
        uint32_t w = s->caps.groups[g].window;
        uint32_t all = blocks_of(s, tokens);
        need[g] = g == s->paged ? 2 : all; /* a state that is read, and one that is written */
        if (w > 0) {
            /* The window before a chunk, the chunk itself (it may be cut down to an atomic span), and two
             * partial blocks at the ends. */
            uint64_t chunk = s->caps.span_tokens_max > s->caps.block_tokens ? s->caps.span_tokens_max
                                                                            : s->caps.block_tokens;
            uint32_t some = blocks_of(s, (uint64_t)w + chunk) + 1;
            if (some < all) need[g] = some;
        }
    }
}

bool sched__has_room(const struct scheduler *s, const struct sequence *q)
{
    uint32_t need[ENGINE_GROUPS_MAX] = {0}, most[ENGINE_GROUPS_MAX];
    for (const struct sequence *r = q; r; r = r == q ? s->running.head : r->next) {
        sched__blocks_worst(s, (uint64_t)r->count + 1, most);
        for (uint32_t g = 0; g < s->caps.group_count; g++) {
            uint32_t held = r->tables[g].end - r->tables[g].first;
            if (g == s->paged) most[g] = held + sched__blocks_missing(s, r, g, 1);
            if (most[g] > held) need[g] += most[g] - held;
        }
    }
    return kvb_can_reclaim(s->blocks, need);
}

/* Eviction when memory is short: indexed binary heaps; the order is in radix_cache.h. Every operation is
 * O(log nodes).
 *
 * Leaves are ordered by GreedyDual: rank = inflation at the last use + worth. Worth is the cost to compute
 * the lost data again, per unit of memory, relative to plain text. Inflation rises to the rank of every
 * evicted leaf. With equal worth this is LRU. States of inner nodes are ranked in the same way; their worth
 * is the cost of the tokens after the state before them on the path. */
#include "scheduler/cache/radix_internal.h"

#include "config/base/assert.h"

#include <stdlib.h>
#include <string.h>

/* Cost model of recomputing tokens: a token costs 1 plus its attention over what precedes it; an image's
 * token also its share of the tower. */
static const double ATTENTION_AS_MUCH_AS_REST_AT = 16384, IMAGE_TOKEN_MORE = 4, WORTH_MIN = 0.25,
                    WORTH_MAX = 4;
/* A state inside a path with at most one hit is seldom reused: usually it is the end of a turn from which the
 * next turn has continued. The worth of the others grows with their hits. */
static const double CHAIN_STATE_PART = 1.0 / 64;
enum { CHAIN_MAX = 64 }; /* ancestors visited for a leaf's worth */

/* ---- heaps ---- */

/* a goes before b. Ties by id: the order never depends on addresses. */
static bool before(enum radix_heap_kind h, const struct radix_node *a, const struct radix_node *b)
{
    bool ranked = h == HEAP_LEAF || h == HEAP_STATE;
    if (h == HEAP_NEWEST) return a->last_use > b->last_use;
    if (ranked && (a->rank < b->rank || a->rank > b->rank)) return a->rank < b->rank;
    if (a->last_use != b->last_use) return a->last_use < b->last_use;
    return a->id < b->id;
}

static void put(struct radix_heap *heap, enum radix_heap_kind h, uint32_t i, struct radix_node *n)
{
    heap->at[i] = n;
    if (h < HEAP_COUNT) n->heap_at[h] = i + 1;
}

/* The element at i goes where it belongs. */
static void sift(struct radix_heap *heap, enum radix_heap_kind h, uint32_t i)
{
    struct radix_node **at = heap->at, *n = at[i];
    while (i > 0 && before(h, n, at[(i - 1) / 2])) {
        put(heap, h, i, at[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t k = 2 * i + 1;
        if (k >= heap->count) break;
        if (k + 1 < heap->count && before(h, at[k + 1], at[k])) k++;
        if (!before(h, at[k], n)) break;
        put(heap, h, i, at[k]);
        i = k;
    }
    put(heap, h, i, n);
}

void radix__heap_push(struct radix_heap *heap, enum radix_heap_kind h, struct radix_node *n)
{
    put(heap, h, heap->count++, n);
    sift(heap, h, heap->count - 1);
}

struct radix_node *radix__heap_remove(struct radix_heap *heap, enum radix_heap_kind h, uint32_t i)
{
    struct radix_node *n = heap->at[i], *last = heap->at[--heap->count];
    if (h < HEAP_COUNT) n->heap_at[h] = 0;
    if (last == n) return n;
    put(heap, h, i, last);
    sift(heap, h, i);
    return n;
}

static void heap_set(struct radix_cache *c, enum radix_heap_kind h, struct radix_node *n, bool in)
{
    struct radix_heap *heap = &c->heaps[h];
    if (in && n->heap_at[h]) {
        sift(heap, h, n->heap_at[h] - 1);
    } else if (in) {
        ASSERT_CMP(heap->count, <, c->heap_cap);
        radix__heap_push(heap, h, n);
    } else if (n->heap_at[h]) {
        (void)radix__heap_remove(heap, h, n->heap_at[h] - 1);
    }
}

bool radix__heaps_reserve(struct radix_cache *c, uint64_t nodes)
{
    if (nodes <= c->heap_cap) return true;
    if (nodes > UINT32_MAX / 2) return false;
    uint32_t cap = c->heap_cap ? 2 * c->heap_cap : 256;
    while (cap < nodes) cap *= 2;
    for (int h = 0; h < HEAP_COUNT; h++) {
        struct radix_node **more = realloc(c->heaps[h].at, cap * sizeof(struct radix_node *));
        if (!more) return false; /* earlier ones have more capacity than heap_cap: harmless */
        c->heaps[h].at = more;
    }
    c->heap_cap = cap;
    return true;
}

void radix__unheap(struct radix_cache *c, struct radix_node *n)
{
    for (int h = 0; h < HEAP_COUNT; h++) heap_set(c, h, n, false);
}

/* ---- what a node is worth ---- */

static bool holds_body(const struct radix_cache *c, const struct radix_node *n)
{
    for (uint32_t g = 0; g < c->caps.group_count; g++)
        if (n->body[g]) return true;
    return false;
}

static bool holds_tail(const struct radix_node *n)
{
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++)
        if (n->tail[g].count) return true;
    return false;
}

static double cost_of(const struct radix_node *n)
{
    double cost = (double)(n->end - n->start) * (1 + (double)n->end / ATTENTION_AS_MUCH_AS_REST_AT);
    for (uint32_t i = 0; i < n->span_count; i++) {
        uint32_t a = n->spans[i].begin > n->start ? n->spans[i].begin : n->start,
                 b = n->spans[i].end < n->end ? n->spans[i].end : n->end;
        cost += IMAGE_TOKEN_MORE * (double)(b - a);
    }
    return cost;
}

static double grains_of(const struct radix_cache *c, const struct radix_node *n)
{
    double grains = 0;
    uint32_t blocks = radix__blocks(c, n->start, n->end);
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        uint32_t count = c->caps.groups[g].window
                             ? (n->body[g] > n->tail[g].count ? n->body[g] : n->tail[g].count)
                             : blocks;
        grains += (double)count * c->caps.groups[g].block_grains;
    }
    if (n->state != ENGINE_NO_BLOCK) grains += c->caps.groups[c->state_group].block_grains;
    return grains;
}

/* Whether a hit can end at n's end. */
static bool ends_hits(const struct radix_cache *c, const struct radix_node *n)
{
    return (!c->sliding || n->has_tail) && (!radix__recurrent(c) || n->state != ENGINE_NO_BLOCK);
}

/* Worth of data that costs so much to recompute and takes so many grains; plain text: 1 */
static double per_grain(const struct radix_cache *c, double cost, double grains)
{
    double full = 0;
    for (uint32_t g = 0; g < c->caps.group_count; g++)
        if (!c->caps.groups[g].window) full += c->caps.groups[g].block_grains;
    return cost / grains * (full > 0 ? full : 1) / c->bt;
}

/* Evicting a leaf also makes useless its ancestors up to the next one in which a hit can end, if it is their
 * only child. */
static double worth_of(const struct radix_cache *c, const struct radix_node *n)
{
    double cost = cost_of(n), grains = grains_of(c, n);
    const struct radix_node *a = n->parent;
    for (int i = 0; i < CHAIN_MAX && a && !a->root && a->parent && !ends_hits(c, a) && a->child_count == 1;
         i++, a = a->parent) {
        cost += cost_of(a);
        grains += grains_of(c, a);
    }
    double worth = grains > 0 ? per_grain(c, cost, grains) : WORTH_MAX;
    return worth < WORTH_MIN ? WORTH_MIN : worth > WORTH_MAX ? WORTH_MAX : worth;
}

static double state_rank(const struct radix_cache *c, const struct radix_node *n)
{
    double cost = cost_of(n), worth;
    const struct radix_node *a = n->parent;
    for (int i = 0; i < CHAIN_MAX && !a->root && a->state == ENGINE_NO_BLOCK; i++, a = a->parent)
        cost += cost_of(a);
    bool chain = n->child_count == 1 && !n->pins && n->state_hits < 2;
    cost *= chain ? CHAIN_STATE_PART : n->state_hits ? n->state_hits : 1;
    worth = per_grain(c, cost, c->caps.groups[c->state_group].block_grains);
    return n->state_base + (worth > WORTH_MAX ? WORTH_MAX : worth);
}

void radix__classify(struct radix_cache *c, struct radix_node *n)
{
    if (n == &c->top) return;
    bool leaf = n->child_count == 0 && n->pins == 0, tail = holds_tail(n),
         chain = tail && n->child_count == 1 && n->pins == 0, state = !leaf && n->state != ENGINE_NO_BLOCK;
    /* A leaf without a state is of no use. */
    bool useless = radix__recurrent(c) && n->state == ENGINE_NO_BLOCK;
    if (leaf) n->rank = useless ? 0 : n->base + worth_of(c, n);
    if (state) n->rank = state_rank(c, n);
    heap_set(c, HEAP_BODY, n, holds_body(c, n));
    heap_set(c, HEAP_CHAIN_TAIL, n, chain);
    heap_set(c, HEAP_LEAF, n, leaf);
    heap_set(c, HEAP_BRANCH_TAIL, n, tail && !chain && !leaf);
    heap_set(c, HEAP_STATE, n, state);
}

void radix__touch(struct radix_cache *c, struct radix_node *n)
{
    c->clock++;
    for (; n && n != &c->top; n = n->parent) {
        n->last_use = c->clock;
        n->base = c->inflation;
        radix__classify(c, n);
    }
}

/* ---- eviction ---- */

void radix__drop_tail(struct radix_cache *c, struct radix_node *n)
{
    radix__keep(c, n, KEPT_TAIL, n->start);
    radix__event_tail(c, n, false);
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = 0; i < n->tail[g].count; i++)
            kvb_release(c->blocks, g, n->tail[g].block_offsets[i], KVB_CACHED);
        c->stats.evicted_blocks[g] += n->tail[g].count;
        free(n->tail[g].block_offsets);
        n->tail[g] = (struct radix_run){0};
    }
    n->has_tail = false;
    radix__classify(c, n);
}

/* The first of a heap of ranks; NULL: empty. Its rank may be too low if a state before it has gone. */
static struct radix_node *least(struct radix_cache *c, enum radix_heap_kind h)
{
    while (c->heaps[h].count) {
        struct radix_node *n = c->heaps[h].at[0];
        double was = n->rank;
        if (radix__recurrent(c)) radix__classify(c, n);
        if (n->rank <= was || c->heaps[h].at[0] == n) return n;
    }
    return NULL;
}

static void drop_state(struct radix_cache *c, struct radix_node *n)
{
    c->inflation = n->rank > c->inflation ? n->rank : c->inflation;
    radix__keep(c, n, KEPT_STATE, n->start);
    radix__event_state(c, n, false);
    kvb_release(c->blocks, c->state_group, n->state, KVB_CACHED);
    n->state = ENGINE_NO_BLOCK;
    n->state_gone = true;
    c->stats.states--;
    c->stats.evicted_blocks[c->state_group]++;
    radix__classify(c, n);
}

/* From the front: the blocks near a node's end serve more possible hit ends. */
static void drop_body(struct radix_cache *c, struct radix_node *n)
{
    uint32_t blocks = radix__blocks(c, n->start, n->end), base = n->start / c->bt;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        uint32_t dropped = 0;
        for (uint32_t i = 0; n->body[g] && i < blocks && dropped < DROP_BLOCKS; i++) {
            if (n->block_offsets[g][i] == ENGINE_NO_BLOCK) continue;
            radix__set_offset(c, n, g, base + i, ENGINE_NO_BLOCK);
            c->stats.evicted_blocks[g]++;
            dropped++;
        }
    }
    radix__classify(c, n);
}

static void drop_leaf(struct radix_cache *c, struct radix_node *n)
{
    c->inflation = n->rank > c->inflation ? n->rank : c->inflation;
    for (;;) {
        struct radix_node *parent = n->parent;
        bool root = n->root;
        c->ghosts[n->link.hash % GHOST_COUNT] = n->link.hash;
        radix__keep(c, n, KEPT_ALL, n->start);
        for (uint32_t g = 0; g < c->caps.group_count; g++)
            c->stats.evicted_blocks[g] +=
                c->caps.groups[g].window ? n->body[g] + n->tail[g].count : radix__blocks(c, n->start, n->end);
        if (n->state != ENGINE_NO_BLOCK) c->stats.evicted_blocks[c->state_group]++;
        radix__remove(c, n);
        c->stats.evicted_nodes++;
        if (root || parent == &c->top) return;
        /* No hit can end in the parent without a tail and a body, or a state: its full blocks are useless. */
        bool useless = parent->root || (c->sliding && !parent->has_tail && !holds_body(c, parent)) ||
                       (radix__recurrent(c) && parent->state == ENGINE_NO_BLOCK);
        if (parent->child_count || parent->pins || !useless) {
            radix__classify(c, parent);
            return;
        }
        n = parent;
    }
}

/* Without sliding and recurrent groups every part of a prefix is useful: a long leaf loses only its end. */
static bool cut_leaf(struct radix_cache *c, struct radix_node *n)
{
    uint32_t blocks = radix__blocks(c, n->start, n->end);
    if (c->sliding || radix__recurrent(c) || blocks <= 2 * DROP_BLOCKS) return false;
    uint32_t keep = blocks - DROP_BLOCKS, end = (n->start / c->bt + keep) * c->bt;
    uint64_t gone = radix__child_hash(c, n, radix__of_node(n), end);
    c->ghosts[gone % GHOST_COUNT] = gone;
    radix__keep(c, n, KEPT_ALL, end);
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = keep; i < blocks; i++)
            kvb_release(c->blocks, g, n->block_offsets[g][i], KVB_CACHED);
        c->stats.evicted_blocks[g] += blocks - keep;
    }
    radix__marks_cut(c, n, end);
    c->stats.items -= n->end - end;
    n->end = end;
    while (n->span_count && n->spans[n->span_count - 1].begin >= end) n->span_count--;
    radix__classify(c, n);
    return true;
}

static void evict_ranked(struct radix_cache *c)
{
    struct radix_node *leaf = least(c, HEAP_LEAF), *inner = least(c, HEAP_STATE);
    if (inner && (!leaf || inner->rank < leaf->rank)) drop_state(c, inner);
    else if (!cut_leaf(c, leaf)) drop_leaf(c, leaf);
}

void radix__keep_state(struct radix_cache *c, struct radix_node *n, uint32_t state)
{
    uint64_t each = c->caps.groups[c->state_group].block_grains;
    if (n->state != ENGINE_NO_BLOCK) return;
    while ((c->stats.states + 1) * each > c->states_most &&
           (c->heaps[HEAP_LEAF].count || c->heaps[HEAP_STATE].count))
        evict_ranked(c);
    kvb_acquire(c->blocks, c->state_group, state, KVB_CACHED);
    n->state = state;
    n->state_base = c->inflation;
    n->state_hits = 0;
    n->state_gone = false;
    c->stats.states++;
    radix__event_state(c, n, true);
    radix__classify(c, n);
}

static bool evict_one(struct radix_cache *c)
{
    if (c->heaps[HEAP_BODY].count) {
        drop_body(c, c->heaps[HEAP_BODY].at[0]);
    } else if (c->heaps[HEAP_CHAIN_TAIL].count) {
        radix__drop_tail(c, c->heaps[HEAP_CHAIN_TAIL].at[0]);
    } else if (c->heaps[HEAP_LEAF].count || c->heaps[HEAP_STATE].count) {
        evict_ranked(c);
    } else if (c->heaps[HEAP_BRANCH_TAIL].count) {
        radix__drop_tail(c, c->heaps[HEAP_BRANCH_TAIL].at[0]);
    } else {
        return false;
    }
    return true;
}

bool radix_evict(struct radix_cache *c, const uint32_t need[ENGINE_GROUPS_MAX])
{
    if (!kvb_can_reclaim(c->blocks, need)) return false; /* evicting everything would not suffice */
    bool left = true;
    while (left && !kvb_can_allocate(c->blocks, need)) left = evict_one(c);
    radix__event_flush(c);
    return left;
}

void radix_reset(struct radix_cache *c)
{
    struct radix_stats before = c->stats;
    c->quiet = true;
    while (evict_one(c)) {
    }
    radix_announce(c);
    /* Not counted as eviction: it was requested. */
    c->stats.evicted_nodes = before.evicted_nodes;
    memcpy(c->stats.evicted_blocks, before.evicted_blocks, sizeof before.evicted_blocks);
    memset(c->ghosts, 0, GHOST_COUNT * sizeof *c->ghosts);
}

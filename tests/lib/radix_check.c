/* Invariants of the radix cache: structure, table of children, heaps, and that the cache's holds
 * are what kv_blocks.h counts. */
#include "tests/lib/radix_check.h"

#include "config/base/assert.h"
#include "scheduler/cache/radix_internal.h"

#include <stdlib.h>

static struct radix_node *next_node(const struct radix_cache *c, struct radix_node *n)
{
    if (n->child) return n->child;
    while (n && n != &c->top && !n->next) n = n->parent;
    return !n || n == &c->top ? NULL : n->next;
}

struct holds {
    const struct radix_cache *c;
    uint32_t *count; /* [group_count * arena_grains] */
};

static void hold(struct holds *h, uint32_t g, uint32_t block_offset)
{
    h->count[(uint64_t)g * h->c->caps.arena_grains + block_offset]++;
}

static void check_heap_flags(const struct radix_cache *c, const struct radix_node *n)
{
    for (int h = 0; h < HEAP_COUNT; h++)
        if (n->heap_at[h]) ASSERT(c->heaps[h].at[n->heap_at[h] - 1] == n);
    bool leaf = n->child_count == 0 && n->pins == 0;
    ASSERT((n->heap_at[HEAP_LEAF] > 0) == leaf);
    ASSERT((n->heap_at[HEAP_STATE] > 0) == (!leaf && n->state != ENGINE_NO_BLOCK));
}

static void check_node(const struct radix_cache *c, const struct radix_node *n, struct holds *h)
{
    uint32_t children = 0, blocks = radix__blocks(c, n->start, n->end);
    for (const struct radix_node *k = n->child; k; k = k->next) {
        ASSERT(k->parent == n);
        ASSERT(!k->next || k->next->prev == k);
        children++;
    }
    ASSERT_CMP(children, ==, n->child_count);
    if (n->root) {
        ASSERT(n->parent == &c->top && n->start == 0 && n->end == 0);
    } else {
        ASSERT(n->end > n->start);
        ASSERT_CMP(n->start, ==, n->parent->end);
    }
    const struct radix_node *in = hash_first(&c->children, n->link.hash);
    while (in && in != n) in = hash_next(in);
    ASSERT(in == n);
    for (uint32_t i = 0; i < n->span_count; i++) {
        ASSERT(n->spans[i].begin < n->end && n->spans[i].end > n->start);
        if (i) ASSERT_CMP(n->spans[i].begin, >=, n->spans[i - 1].end);
    }
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        bool window = c->caps.groups[g].window > 0;
        uint32_t there = 0;
        for (uint32_t i = 0; i < blocks; i++) {
            ASSERT(window || n->block_offsets[g][i] != ENGINE_NO_BLOCK);
            if (n->block_offsets[g][i] == ENGINE_NO_BLOCK) continue;
            there++;
            hold(h, g, n->block_offsets[g][i]);
        }
        ASSERT_CMP(n->body[g], ==, window ? there : 0);
        for (uint32_t i = 0; i < n->tail[g].count; i++) hold(h, g, n->tail[g].block_offsets[i]);
        ASSERT(n->has_tail || n->tail[g].count == 0);
    }
    if (n->state != ENGINE_NO_BLOCK) {
        ASSERT(radix__recurrent(c) && !n->root && n->checkpoint);
        hold(h, c->state_group, n->state);
    }
    check_heap_flags(c, n);
}

/* Aborts unless the event sink's view of n is right. Adds up the tails that its marks count. */
static void check_marks(const struct radix_cache *c, const struct radix_node *n, uint64_t *tails)
{
    uint32_t count = radix__marks(c, n->start, n->end), full = 0;
    ASSERT_CMP(count, <=, n->mark_cap);
    ASSERT(!n->dirty_to);
    while (full < c->caps.group_count && c->caps.groups[full].window) full++;
    if (n->state != ENGINE_NO_BLOCK && c->event_sink.block_tokens && n->end >= c->event_sink.block_tokens)
        --*tails;
    for (uint32_t g = 0; g < c->caps.group_count + radix__recurrent(c); g++) {
        for (uint32_t k = 0; k < count; k++) {
            bool spoken = g == full || c->caps.groups[g].window || g == c->state_group;
            ASSERT((n->marks[k].announced >> g & 1) == (spoken && radix__mark_held(c, n, g, k)));
            *tails += n->marks[k].tails[g];
        }
        uint32_t size = c->event_sink.block_tokens;
        if (!size || !n->tail[g].count) continue;
        uint32_t a = (n->tail[g].first * c->bt + size - 1) / size, b = n->end / size;
        *tails -= b > a ? b - a : 0;
    }
}

void radix_check(const struct radix_cache *c)
{
    uint64_t nodes = 0, items = 0, tails = 0;
    uint32_t groups = c->caps.group_count + radix__recurrent(c);
    struct holds h = {.c = c, .count = calloc(c->caps.arena_grains * groups, sizeof *h.count)};
    ASSERT(h.count);
    for (struct radix_node *n = c->top.child; n; n = next_node(c, n)) {
        check_node(c, n, &h);
        check_marks(c, n, &tails);
        nodes++;
        items += n->end - n->start;
    }
    ASSERT_CMP(tails, ==, 0);
    ASSERT_CMP(nodes, ==, c->stats.nodes);
    ASSERT_CMP(items, ==, c->stats.items);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t alone = 0;
        for (uint64_t u = 0; u < c->caps.arena_grains; u++) {
            uint32_t count = h.count[g * c->caps.arena_grains + u];
            if (!count) continue;
            ASSERT_CMP(kvb_references(c->blocks, g, (uint32_t)u, KVB_CACHED), ==, count);
            if (!kvb_references(c->blocks, g, (uint32_t)u, KVB_LIVE)) alone++;
        }
        ASSERT_CMP(alone, ==, c->blocks->used_blocks[g] - c->blocks->live_blocks[g]);
    }
    free(h.count);
}

void radix_each_claim(const struct radix_cache *c,
                      void (*fn)(void *arg, uint32_t group, uint32_t block_offset, uint32_t from,
                                 uint32_t to),
                      void *arg)
{
    for (struct radix_node *n = c->top.child; n; n = next_node(c, n)) {
        uint32_t base = n->start / c->bt, blocks = radix__blocks(c, n->start, n->end);
        for (uint32_t g = 0; g < c->caps.group_count; g++) {
            for (uint32_t i = base; i < base + blocks; i++) {
                uint32_t to = (i + 1) * c->bt < n->end ? (i + 1) * c->bt : n->end;
                if (n->block_offsets[g][i - base] != ENGINE_NO_BLOCK)
                    fn(arg, g, n->block_offsets[g][i - base], i * c->bt, to);
            }
            for (uint32_t k = 0; k < n->tail[g].count; k++) {
                uint32_t i = n->tail[g].first + k, to = (i + 1) * c->bt < n->end ? (i + 1) * c->bt : n->end;
                fn(arg, g, n->tail[g].block_offsets[k], i * c->bt, to);
            }
        }
    }
}

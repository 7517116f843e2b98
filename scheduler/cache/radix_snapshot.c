/* The shape of the radix cache for display: the most recently used nodes, from the root of a salt downwards.
 * Its cost is bounded, however large the tree is. See radix_cache.h. */
#include "scheduler/cache/radix_internal.h"

#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

enum { LOOKED_MAX = 8192 }; /* nodes visited; older siblings last */

uint64_t radix_path_hash(uint64_t before, const struct radix_view *v, uint32_t pos)
{
    return radix__item_hash(before, radix__of_view(v), pos);
}

void radix_snapshot_item(struct cache_snapshot_node *n, uint32_t end, uint64_t hash)
{
    if (!n->mark_step) n->mark_step = 1;
    n->end = end;
    n->hash = hash;
    if ((end - n->start) % n->mark_step) return;
    if (n->mark_count == CACHE_MARKS_MAX) { /* every second one stays */
        for (uint32_t i = 0; i < CACHE_MARKS_MAX / 2; i++) n->marks[i] = n->marks[2 * i + 1];
        n->mark_count = CACHE_MARKS_MAX / 2;
        n->mark_step *= 2;
    }
    if ((end - n->start) % n->mark_step == 0)
        n->marks[n->mark_count++] = (struct cache_mark){.end = end, .hash = hash};
}

void radix_cursor_move(const struct radix_cache *c, struct radix_cursor *at, const struct radix_view *v)
{
    uint64_t hash;
    if (!at->node) at->node = radix__root(c, v->salt);
    while (at->node && at->pos < v->count) {
        const struct radix_node *n = at->node;
        if (at->pos == n->end && !(n = radix__child(c, n, v, at->pos, &hash))) return;
        at->node = n;
        at->pos += radix__common(n, v, at->pos, n->end);
        if (at->pos < n->end) return;
    }
}

uint64_t radix_cursor_id(const struct radix_cursor *at)
{
    return at->node && !at->node->root ? at->node->id << 1 : 0;
}

void radix_snapshot(const struct radix_cache *c, const uint8_t salt[32], struct cache_snapshot *out)
{
    static const uint8_t no_salt[32];
    bool whole = memcmp(salt, no_salt, sizeof no_salt) == 0;
    struct radix_heap heap = {malloc(LOOKED_MAX * sizeof(struct radix_node *)), 0};
    uint32_t looked = 0;
    out->count = 0;
    /* Without the roots; what others have cached is not shown to a client with a salt. */
    out->nodes = whole ? c->stats.nodes - c->top.child_count : 0;
    out->tokens = whole ? c->stats.items : 0;
    const struct radix_node *n = heap.at ? radix__root(c, salt) : NULL; /* out of memory: only the sums */
    while (n && out->count < CACHE_SNAPSHOT_MAX) {
        for (struct radix_node *k = n->child; k && looked < LOOKED_MAX; k = k->next, looked++) {
            radix__heap_push(&heap, HEAP_NEWEST, k);
            if (whole) continue;
            out->nodes++;
            out->tokens += k->end - k->start;
        }
        if (!heap.count) break;
        n = radix__heap_remove(&heap, HEAP_NEWEST, 0);
        uint32_t parent = n->parent->root ? CACHE_SNAPSHOT_ROOT : 0;
        while (!n->parent->root && out->at[parent].id != n->parent->id << 1) parent++;
        uint64_t hash = parent == CACHE_SNAPSHOT_ROOT ? 0 : out->at[parent].hash;
        struct cache_snapshot_node *to = &out->at[out->count++];
        *to = (struct cache_snapshot_node){.id = n->id << 1,
                                           .tier = CACHE_TIER_ARENA,
                                           .parent = parent,
                                           .start = n->start,
                                           .children = n->child_count,
                                           .running = n->pins,
                                           .images = n->span_count,
                                           .uses_ago = c->clock - n->last_use};
        for (uint32_t i = n->start; i < n->end; i++) {
            hash = radix__item_hash(hash, radix__of_node(n), i);
            radix_snapshot_item(to, i + 1, hash);
        }
    }
    free(heap.at);
}

/* The shape of the radix cache for display: the most recently used nodes, from the root of a salt downwards.
 * Its cost is bounded, however large the tree is. See radix_cache.h. */
#include "scheduler/cache/radix_internal.h"

#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

enum { LOOKED_MAX = 8192 }; /* nodes visited; older siblings last */

struct candidate {
    const struct radix_node *node;
    uint32_t parent; /* its index in the snapshot */
};

/* A binary heap, the most recently used node on top. */
struct heap {
    struct candidate at[LOOKED_MAX];
    uint32_t count;
};

static bool newer(const struct candidate *a, const struct candidate *b)
{
    return a->node->last_use > b->node->last_use;
}

static void swap(struct heap *h, uint32_t i, uint32_t k)
{
    struct candidate was = h->at[i];
    h->at[i] = h->at[k];
    h->at[k] = was;
}

static void push(struct heap *h, const struct radix_node *n, uint32_t parent)
{
    uint32_t i = h->count++;
    h->at[i] = (struct candidate){n, parent};
    for (; i && newer(&h->at[i], &h->at[(i - 1) / 2]); i = (i - 1) / 2) swap(h, i, (i - 1) / 2);
}

static struct candidate pop(struct heap *h)
{
    struct candidate top = h->at[0];
    h->at[0] = h->at[--h->count];
    for (uint32_t i = 0, k; (k = 2 * i + 1) < h->count; i = k) {
        if (k + 1 < h->count && newer(&h->at[k + 1], &h->at[k])) k++;
        if (!newer(&h->at[k], &h->at[i])) break;
        swap(h, i, k);
    }
    return top;
}

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
    struct heap *heap = malloc(sizeof *heap); /* out of memory: only the sums */
    uint32_t looked = 0;
    out->count = 0;
    /* Without the roots; what others have cached is not shown to a client with a salt. */
    out->nodes = whole ? c->stats.nodes - c->top.child_count : 0;
    out->tokens = whole ? c->stats.items : 0;
    const struct radix_node *n = heap ? radix__root(c, salt) : NULL;
    if (heap) heap->count = 0;
    uint32_t parent = CACHE_SNAPSHOT_ROOT;
    while (n && out->count < CACHE_SNAPSHOT_MAX) {
        for (const struct radix_node *k = n->child; k && looked < LOOKED_MAX; k = k->next, looked++) {
            push(heap, k, parent);
            if (whole) continue;
            out->nodes++;
            out->tokens += k->end - k->start;
        }
        if (!heap->count) break;
        struct candidate next = pop(heap);
        n = next.node;
        parent = out->count;
        uint64_t hash = next.parent == CACHE_SNAPSHOT_ROOT ? 0 : out->at[next.parent].hash;
        out->at[out->count++] = (struct cache_snapshot_node){.id = n->id << 1,
                                                             .tier = CACHE_TIER_ARENA,
                                                             .parent = next.parent,
                                                             .start = n->start,
                                                             .children = n->child_count,
                                                             .running = n->pins,
                                                             .images = n->span_count,
                                                             .uses_ago = c->clock - n->last_use};
        for (uint32_t i = n->start; i < n->end; i++) {
            hash = radix__item_hash(hash, radix__of_node(n), i);
            radix_snapshot_item(&out->at[parent], i + 1, hash);
        }
    }
    free(heap);
}

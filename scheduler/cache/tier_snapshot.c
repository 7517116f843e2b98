/* The shape of what only the tier has, for display: its blocks are followed in the radix tree as far as that
 * has them, and runs of further blocks become nodes. Its cost is bounded. See tier.h. */
#include "scheduler/cache/tier_internal.h"

#include "config/base/list.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS_MAX = 1 << 16 }; /* visited */

struct walk {
    const struct radix_cache *radix;
    struct cache_snapshot *out;
    uint32_t listed, blocks; /* nodes of the radix tree; blocks visited */
    struct radix_view path;
    uint32_t *tokens, token_cap, span_cap;
    struct prompt_span *spans;
};
/* The end of a path. */
struct place {
    struct radix_cursor at; /* as far as the radix tree has it */
    uint64_t hash;
    uint32_t node; /* in the snapshot: the last one of the tier; CACHE_SNAPSHOT_ROOT: none yet */
};

/* The path gets n's items after those of its parents. */
static bool path_add(struct walk *w, const struct tier_items *it)
{
    if (!LIST_RESERVE(w->tokens, w->token_cap, it->end) ||
        !LIST_RESERVE(w->spans, w->span_cap, w->path.span_count + it->span_count))
        return false;
    w->path.tokens = w->tokens;
    w->path.spans = w->spans;
    while (w->path.span_count && w->spans[w->path.span_count - 1].begin >= it->start) w->path.span_count--;
    memcpy(w->tokens + it->start, tier__tokens(it), (it->end - it->start) * sizeof *w->tokens);
    for (uint32_t i = 0; i < it->span_count; i++) {
        const struct tier_span *s = tier__spans(it) + i;
        if (s->begin < it->start) continue; /* of the block before */
        w->spans[w->path.span_count++] = tier__prompt_span(s);
    }
    w->path.count = it->end;
    return true;
}

static enum cache_tier tier_of(const struct tier_node *n)
{
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++)
        if (n->data[g] && n->data[g]->host) return CACHE_TIER_HOST;
    return CACHE_TIER_DISK;
}

/* The node that the path's end continues; false: it isn't listed. */
static bool parent_of(const struct walk *w, const struct place *p, uint32_t *parent)
{
    uint64_t id = radix_cursor_id(&p->at);
    *parent = p->node;
    if (p->node != CACHE_SNAPSHOT_ROOT || !id) return true;
    for (*parent = 0; *parent < w->listed; ++*parent)
        if (w->out->at[*parent].id == id) return true;
    return false;
}

/* Another block, of which the radix tree doesn't have all: continues the last node or adds one. */
static bool block_add(struct walk *w, const struct tier_node *n, bool branch, struct place *p)
{
    struct cache_snapshot_node *last = p->node == CACHE_SNAPSHOT_ROOT ? NULL : &w->out->at[p->node];
    uint32_t parent, start = last ? last->end : p->at.pos;
    if (!last || branch || last->tier != tier_of(n)) {
        if (w->out->count == CACHE_SNAPSHOT_MAX || !parent_of(w, p, &parent)) return false;
        p->node = w->out->count++;
        last = &w->out->at[p->node];
        *last =
            (struct cache_snapshot_node){.tier = tier_of(n), .parent = parent, .start = start, .end = start};
        if (parent != CACHE_SNAPSHOT_ROOT && w->out->at[parent].tier != CACHE_TIER_ARENA)
            w->out->at[parent].children++;
    }
    for (uint32_t i = 0; i < n->items->span_count; i++) {
        const struct tier_span *s = tier__spans(n->items) + i;
        last->images += s->end > start && (s->begin >= n->items->start || last->start == start);
    }
    last->id = n->serial << 1 | 1;
    for (; start < n->items->end; start++) {
        p->hash = radix_path_hash(p->hash, &w->path, start);
        radix_snapshot_item(last, start + 1, p->hash);
    }
    return true;
}

static void below(struct walk *w, const struct tier_node *n, struct place p)
{
    while (n) {
        const struct tier_node *next = NULL;
        uint32_t ways = 0;
        for (const struct tier_node *k = n->child; k; k = k->next)
            if (!(!k->child && tier__covered(k, TIER_NO_GROUP))) ways++, next = k;
        bool last = false;
        for (const struct tier_node *k = n->child; k && !last; k = k->next) {
            struct place q = p;
            if ((!k->child && tier__covered(k, TIER_NO_GROUP))) continue;
            if (++w->blocks > BLOCKS_MAX || !path_add(w, k->items)) return;
            if (q.at.pos == k->items->start) {
                radix_cursor_move(w->radix, &q.at, &w->path);
                for (uint32_t i = p.at.pos; i < q.at.pos; i++) q.hash = radix_path_hash(q.hash, &w->path, i);
            }
            last = k == next;
            if (q.at.pos < k->items->end && !block_add(w, k, ways > 1, &q)) {
                if (last) return;
                continue;
            }
            if (last) p = q;
            else below(w, k, q);
        }
        n = next;
    }
}

void tier_snapshot(struct tier *t, const struct radix_cache *c, const uint8_t salt[32],
                   struct cache_snapshot *out)
{
    struct walk w = {.radix = c, .out = out, .listed = out->count, .path = {.salt = salt}};
    below(&w, tier__root(t, salt, false), (struct place){.node = CACHE_SNAPSHOT_ROOT});
    free(w.tokens);
    free(w.spans);
}

/* What the radix cache gives to the tier below it: the items of a path and the blocks that are evicted. See
 * radix_cache.h. */
#include "scheduler/cache/radix_internal.h"

#include "config/base/list.h"

#include <stdlib.h>
#include <string.h>

void radix_set_sink(struct radix_cache *c, const struct radix_sink *sink)
{
    c->sink = *sink;
}

bool radix__path(struct radix_cache *c, const struct radix_node *n, uint32_t from, uint32_t to,
                 struct radix_view *v)
{
    uint32_t most = 0, at;
    for (const struct radix_node *a = n; !a->root; a = a->parent) most += a->span_count;
    if (!LIST_RESERVE(c->path.tokens, c->path.token_cap, to - from) ||
        !LIST_RESERVE(c->path.spans, c->path.span_cap, most))
        return false;
    for (at = most; !n->root; n = n->parent) {
        uint32_t a = n->start > from ? n->start : from, b = n->end < to ? n->end : to;
        if (a >= b) continue;
        memcpy(c->path.tokens + (a - from), n->tokens + (a - n->start), (b - a) * sizeof *n->tokens);
        for (uint32_t i = n->span_count; i-- > 0;) {
            const struct prompt_span *s = &n->spans[i];
            bool known = at < most && c->path.spans[at].begin == s->begin; /* the node after it has it, too */
            if (!known && s->begin < b && s->end > a) c->path.spans[--at] = *s;
        }
    }
    *v = (struct radix_view){.tokens = c->path.tokens,
                             .count = to - from,
                             .spans = c->path.spans + at,
                             .span_count = most - at,
                             .salt = n->salt};
    return true;
}

void radix__keep(struct radix_cache *c, struct radix_node *n, enum radix_kept what, uint32_t from)
{
    struct radix_run runs[ENGINE_GROUPS_MAX] = {{0}};
    struct radix_view v;
    uint32_t blocks = radix__blocks(c, n->start, n->end), base = n->start / c->bt, skip = from / c->bt - base;
    if (!c->sink.keep || c->quiet || n->root || !radix__path(c, n, 0, n->end, &v)) return;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        if (what & KEPT_BLOCKS && !c->caps.groups[g].window)
            runs[g] = (struct radix_run){n->block_offsets[g] + skip, base + skip, blocks - skip};
        if (what & KEPT_TAIL && n->tail[g].count) runs[g] = n->tail[g];
    }
    if (what & KEPT_STATE && n->state != ENGINE_NO_BLOCK)
        runs[c->state_group] = (struct radix_run){&n->state, 0, 1};
    c->sink.keep(c->sink.arg, &v, runs);
}

/* ---- everything ---- */

static int newer_first(const void *a, const void *b)
{
    const struct radix_node *x = *(struct radix_node *const *)a, *y = *(struct radix_node *const *)b;
    if (x->last_use != y->last_use) return x->last_use > y->last_use ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* a path's beginning first */
}

void radix_keep_all(struct radix_cache *c)
{
    struct radix_node **all = malloc((c->stats.nodes + 1) * sizeof *all);
    uint64_t count = 0;
    for (struct radix_node *n = c->top.child; all && n;) {
        all[count++] = n;
        if (n->child) {
            n = n->child;
            continue;
        }
        while (n != &c->top && !n->next) n = n->parent;
        n = n == &c->top ? NULL : n->next;
    }
    if (count) qsort(all, count, sizeof *all, newer_first);
    for (uint64_t i = 0; i < count; i++) radix__keep(c, all[i], KEPT_ALL, all[i]->start);
    free(all);
}

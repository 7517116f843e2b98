/* What the radix cache gives to the tier below it: the items of a path and the blocks that are evicted. See
 * radix_cache.h. */
#include "scheduler/cache/radix_internal.h"

#include <stdlib.h>
#include <string.h>

void radix_set_sink(struct radix_cache *c, const struct radix_sink *sink)
{
    c->sink = *sink;
}

static bool path_reserve(struct radix_cache *c, uint32_t tokens, uint32_t spans)
{
    if (tokens > c->path.token_cap) {
        uint32_t cap = tokens + tokens / 2, *t = realloc(c->path.tokens, cap * sizeof *t);
        if (!t) return false;
        c->path.tokens = t;
        c->path.token_cap = cap;
    }
    if (spans > c->path.span_cap) {
        uint32_t cap = spans + spans / 2;
        struct prompt_span *s = realloc(c->path.spans, cap * sizeof *s);
        if (!s) return false;
        c->path.spans = s;
        c->path.span_cap = cap;
    }
    return true;
}

/* The items of [0, n->end), and the salt. A span that reaches into several nodes is in each of them. False:
 * out of memory. */
static bool path_of(struct radix_cache *c, const struct radix_node *n, struct radix_view *v)
{
    uint32_t most = 0, at;
    for (const struct radix_node *a = n; !a->root; a = a->parent) most += a->span_count;
    if (!path_reserve(c, n->end, most)) return false;
    *v = (struct radix_view){.tokens = c->path.tokens, .count = n->end};
    at = most;
    for (; !n->root; n = n->parent) {
        memcpy(c->path.tokens + n->start, n->tokens, (n->end - n->start) * sizeof *n->tokens);
        for (uint32_t i = n->span_count; i-- > 0;) {
            if (n->spans[i].end > n->end && at < most) continue; /* the node after it has it */
            c->path.spans[--at] = n->spans[i];
        }
    }
    v->spans = c->path.spans + at;
    v->span_count = most - at;
    v->salt = n->salt;
    return true;
}

static bool wanted(const struct radix_cache *c)
{
    return c->sink.keep && !c->quiet;
}

static void keep(struct radix_cache *c, const struct radix_node *n, const struct radix_run runs[])
{
    struct radix_view v;
    if (path_of(c, n, &v)) c->sink.keep(c->sink.arg, &v, runs);
}

static void add_tail(const struct radix_cache *c, const struct radix_node *n, struct radix_run runs[])
{
    for (uint32_t g = 0; g < c->caps.group_count; g++)
        if (n->tail_count[g]) runs[g] = (struct radix_run){n->tail[g], n->tail_first[g], n->tail_count[g]};
}

static void add_state(const struct radix_cache *c, const struct radix_node *n, struct radix_run runs[])
{
    if (radix__recurrent(c) && n->state != ENGINE_NO_BLOCK)
        runs[c->state_group] = (struct radix_run){&n->state, 0, 1};
}

void radix__keep_leaf(struct radix_cache *c, const struct radix_node *n, uint32_t from)
{
    struct radix_run runs[ENGINE_GROUPS_MAX] = {{0}};
    if (!wanted(c) || n->root) return;
    uint32_t blocks = radix__blocks(c, n->start, n->end), base = n->start / c->bt, skip = from / c->bt - base;
    for (uint32_t g = 0; g < c->caps.group_count; g++)
        if (!c->caps.groups[g].window)
            runs[g] = (struct radix_run){n->block_offsets[g] + skip, base + skip, blocks - skip};
    add_tail(c, n, runs);
    add_state(c, n, runs);
    keep(c, n, runs);
}

void radix__keep_tail(struct radix_cache *c, const struct radix_node *n)
{
    struct radix_run runs[ENGINE_GROUPS_MAX] = {{0}};
    if (!wanted(c)) return;
    add_tail(c, n, runs);
    keep(c, n, runs);
}

void radix__keep_state_below(struct radix_cache *c, const struct radix_node *n)
{
    struct radix_run runs[ENGINE_GROUPS_MAX] = {{0}};
    if (!wanted(c)) return;
    add_state(c, n, runs);
    keep(c, n, runs);
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
    for (uint64_t i = 0; i < count; i++) radix__keep_leaf(c, all[i], all[i]->start);
    free(all);
}

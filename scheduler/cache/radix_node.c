/* Nodes of the radix cache: items and their comparison, the table of children, cutting, growing, removing.
 * See radix_internal.h. */
#include "scheduler/cache/radix_internal.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

/* ---- items ---- */

bool radix_doubtful(const struct prompt_span *s)
{
    static const uint8_t unknown[sizeof s->key];
    return memcmp(span_identity(s), unknown, sizeof unknown) == 0;
}

uint32_t radix_span_at(const struct prompt_span *spans, uint32_t count, uint32_t pos)
{
    uint32_t lo = 0, hi = count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (spans[mid].end > pos) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

const struct prompt_span *radix__span(struct radix_items x, uint32_t pos)
{
    uint32_t m = radix_span_at(x.spans, x.span_count, pos);
    return m < x.span_count && x.spans[m].begin <= pos ? &x.spans[m] : NULL;
}

static bool span_equal(const struct prompt_span *a, const struct prompt_span *b)
{
    return a->begin == b->begin && a->end == b->end && a->mrope_delta == b->mrope_delta &&
           prompt_grid_equal(&a->grid, &b->grid) &&
           memcmp(span_identity(a), span_identity(b), sizeof a->key) == 0 && !radix_doubtful(a);
}

/* From pos on all items up to the returned position, at most `limit`, are equal. An image's token and a text
 * token are never equal, whatever their ids. */
static uint32_t equal_to(struct radix_items a, struct radix_items b, uint32_t pos, uint32_t limit)
{
    uint32_t m = radix_span_at(a.spans, a.span_count, pos), n = radix_span_at(b.spans, b.span_count, pos);
    while (pos < limit) {
        uint32_t theirs = m < a.span_count ? a.spans[m].begin : UINT32_MAX,
                 ours = n < b.span_count ? b.spans[n].begin : UINT32_MAX, end = limit;
        if (theirs <= pos || ours <= pos) {
            if (theirs > pos || ours > pos || !span_equal(&a.spans[m], &b.spans[n])) break;
            pos = a.spans[m].end < limit ? a.spans[m].end : limit;
            m++;
            n++;
            continue;
        }
        if (theirs < end) end = theirs;
        if (ours < end) end = ours;
        while (pos < end && a.tokens[pos - a.first] == b.tokens[pos - b.first]) pos++;
        if (pos < end) break;
    }
    return pos;
}

uint32_t radix__common(const struct radix_node *n, const struct radix_view *v, uint32_t pos, uint32_t limit)
{
    if (limit > v->count) limit = v->count;
    return pos < limit ? equal_to(radix__of_node(n), radix__of_view(v), pos, limit) - pos : 0;
}

uint32_t radix_common(const struct radix_view *a, const struct radix_view *b, uint32_t limit)
{
    if (memcmp(a->salt, b->salt, 32) != 0) return 0;
    uint32_t pos = equal_to(radix__of_view(a), radix__of_view(b), 0, limit);
    const struct prompt_span *s = radix__span(radix__of_view(a), pos);
    return s && s->rule != SPAN_PREFIX_LM && span_cut(s, pos) ? s->atomic_begin : pos;
}

/* ---- the table of children ---- */

uint64_t radix__item_hash(uint64_t h, struct radix_items x, uint32_t pos)
{
    const struct prompt_span *s = radix__span(x, pos);
    return hash_mix((s ? hash_mix_bytes(h ^ 0x706963747572ull, span_identity(s), 32) : h) ^
                    (s ? pos - s->begin : x.tokens[pos - x.first]));
}

uint64_t radix__child_hash(const struct radix_cache *c, const struct radix_node *parent, struct radix_items x,
                           uint32_t pos)
{
    return radix__item_hash(hash_mix(c->seed ^ hash_mix(parent->id)), x, pos);
}

static uint64_t salt_hash(const struct radix_cache *c, const uint8_t salt[32])
{
    return hash_mix_bytes(hash_mix(c->seed ^ 0x73616c74ull), salt, 32);
}

struct radix_node *radix__root(const struct radix_cache *c, const uint8_t salt[32])
{
    uint64_t h = salt_hash(c, salt);
    struct radix_node *n = hash_first(&c->children, h);
    while (n && !(n->root && memcmp(n->salt, salt, sizeof n->salt) == 0)) n = hash_next(n);
    return n;
}

struct radix_node *radix__child(const struct radix_cache *c, const struct radix_node *n,
                                const struct radix_view *v, uint32_t pos, uint64_t *hash)
{
    *hash = radix__child_hash(c, n, radix__of_view(v), pos);
    for (struct radix_node *k = hash_first(&c->children, *hash); k; k = hash_next(k))
        if (k->parent == n && !k->root && radix__common(k, v, pos, pos + 1) == 1) return k;
    return NULL;
}

/* ---- making nodes ---- */

static void node_free(struct radix_node *n)
{
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
        free(n->block_offsets[g]);
        free(n->tail[g].block_offsets);
    }
    free(n->marks);
    free(n->tokens);
    free(n->spans);
    free(n);
}

static struct radix_node *node_alloc(struct radix_cache *c, uint32_t start, uint32_t end, uint32_t spans)
{
    struct radix_node *n = calloc(1, sizeof *n);
    uint32_t items = end - start, blocks = radix__blocks(c, start, end);
    if (!n) return NULL;
    n->start = start;
    n->end = end;
    n->token_cap = items;
    n->block_cap = blocks;
    bool ok = radix__heaps_reserve(c, c->stats.nodes + 1);
    if (items) ok = ok && (n->tokens = malloc(items * sizeof *n->tokens));
    if (spans) ok = ok && (n->spans = malloc(spans * sizeof *n->spans));
    for (uint32_t g = 0; g < c->caps.group_count && blocks && ok; g++)
        if ((ok = (n->block_offsets[g] = malloc(blocks * sizeof *n->block_offsets[g]))))
            memset(n->block_offsets[g], 0xff, blocks * sizeof *n->block_offsets[g]); /* ENGINE_NO_BLOCK */
    ok = ok && radix__marks_reserve(c, n, end);
    if (!ok) {
        node_free(n);
        return NULL;
    }
    n->id = c->next_id++;
    n->state = ENGINE_NO_BLOCK;
    n->last_use = c->clock;
    n->base = n->state_base = c->inflation;
    return n;
}

static void link_child(struct radix_cache *c, struct radix_node *parent, struct radix_node *n, uint64_t hash)
{
    n->parent = parent;
    n->prev = NULL;
    n->next = parent->child;
    if (n->next) n->next->prev = n;
    parent->child = n;
    parent->child_count++;
    hash_insert(&c->children, &n->link, hash);
}

static void unlink_child(struct radix_cache *c, struct radix_node *n)
{
    hash_remove(&c->children, &n->link);
    if (n->prev) n->prev->next = n->next;
    else n->parent->child = n->next;
    if (n->next) n->next->prev = n->prev;
    n->parent->child_count--;
}

struct radix_node *radix__root_create(struct radix_cache *c, const uint8_t salt[32])
{
    struct radix_node *n = node_alloc(c, 0, 0, 0);
    if (!n) return NULL;
    n->root = n->checkpoint = true;
    memcpy(n->salt, salt, sizeof n->salt);
    c->stats.nodes++;
    link_child(c, &c->top, n, salt_hash(c, salt));
    return n;
}

void radix__set_offset(struct radix_cache *c, struct radix_node *n, uint32_t g, uint32_t index,
                       uint32_t block_offset)
{
    uint32_t *at = &n->block_offsets[g][index - n->start / c->bt];
    if (*at == block_offset) return;
    if (block_offset != ENGINE_NO_BLOCK) kvb_acquire(c->blocks, g, block_offset, KVB_CACHED);
    if (*at != ENGINE_NO_BLOCK) kvb_release(c->blocks, g, *at, KVB_CACHED);
    if (c->caps.groups[g].window && block_offset != ENGINE_NO_BLOCK) n->body[g]++;
    if (c->caps.groups[g].window && *at != ENGINE_NO_BLOCK) n->body[g]--;
    *at = block_offset;
    if (c->caps.groups[g].window) radix__event_offsets(c, n, index * c->bt, (index + 1) * c->bt);
}

/* n takes the blocks of [from, to), including the one that contains `from`. */
static void take_offsets(struct radix_cache *c, struct radix_node *n, uint32_t from, uint32_t to,
                         const struct block_table tables[])
{
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = from / c->bt; i < (to + c->bt - 1) / c->bt; i++) {
            bool there = i >= tables[g].first && i < tables[g].end;
            ASSERT(there || c->caps.groups[g].window > 0);
            radix__set_offset(c, n, g, i, there ? tables[g].block_offsets[i] : ENGINE_NO_BLOCK);
        }
    }
}

/* The spans of v that touch [pos, to), and their number. */
static const struct prompt_span *spans_from(const struct radix_view *v, uint32_t pos, uint32_t to,
                                            uint32_t *count)
{
    uint32_t m = radix_span_at(v->spans, v->span_count, pos), end = m;
    while (end < v->span_count && v->spans[end].begin < to) end++;
    *count = end - m;
    return v->spans + m;
}

static void copy_spans(struct radix_node *n, const struct prompt_span *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        n->spans[n->span_count] = from[i];
        n->spans[n->span_count++].pixels = (struct image_u8){0};
    }
}

struct radix_node *radix__child_create(struct radix_cache *c, struct radix_node *parent,
                                       const struct radix_view *v, uint32_t to,
                                       const struct block_table tables[])
{
    uint32_t from = parent->end, count;
    const struct prompt_span *spans = spans_from(v, from, to, &count);
    struct radix_node *n = node_alloc(c, from, to, count);
    if (!n) return NULL;
    memcpy(n->tokens, v->tokens + from, (to - from) * sizeof *n->tokens);
    copy_spans(n, spans, count);
    c->stats.nodes++;
    c->stats.items += to - from;
    link_child(c, parent, n, radix__child_hash(c, parent, radix__of_view(v), from));
    take_offsets(c, n, from, to, tables);
    radix__marks_add(c, n, v, from);
    /* The parent's last block, partly filled, has the same beginning: keeping one of the two is enough. */
    if (from % c->bt) {
        for (uint32_t g = 0; g < c->caps.group_count; g++)
            if (n->block_offsets[g][0] != ENGINE_NO_BLOCK)
                radix__set_offset(c, parent, g, from / c->bt, n->block_offsets[g][0]);
    }
    radix__classify(c, parent);
    radix__classify(c, n);
    return n;
}

bool radix__extend(struct radix_cache *c, struct radix_node *n, const struct radix_view *v, uint32_t to,
                   const struct block_table tables[])
{
    uint32_t from = n->end, items = to - n->start, blocks = radix__blocks(c, n->start, to), more;
    /* An image split at `from` is in the list already. */
    bool cut = n->span_count && n->spans[n->span_count - 1].end > from;
    const struct prompt_span *spans = spans_from(v, cut ? n->spans[n->span_count - 1].end : from, to, &more);
    if (!LIST_RESERVE(n->tokens, n->token_cap, items)) return false;
    if (blocks > n->block_cap) {
        uint32_t cap = blocks + blocks / 2 + 1;
        for (uint32_t g = 0; g < c->caps.group_count; g++) {
            uint32_t *u = realloc(n->block_offsets[g], cap * sizeof *u);
            if (!u) return false; /* earlier groups have more capacity than block_cap: harmless */
            n->block_offsets[g] = u;
        }
        n->block_cap = cap;
    }
    if (!radix__marks_reserve(c, n, to)) return false;
    if (more) {
        struct prompt_span *s = realloc(n->spans, (n->span_count + more) * sizeof *s);
        if (!s) return false;
        n->spans = s;
    }
    memcpy(n->tokens + (from - n->start), v->tokens + from, (to - from) * sizeof *n->tokens);
    copy_spans(n, spans, more);
    uint32_t own = radix__blocks(c, n->start, from);
    for (uint32_t g = 0; g < c->caps.group_count; g++)
        memset(n->block_offsets[g] + own, 0xff, (blocks - own) * sizeof *n->block_offsets[g]);
    take_offsets(c, n, from, to, tables); /* the last one so far, too: it has the same beginning */
    c->stats.items += to - from;
    n->end = to;
    radix__marks_add(c, n, v, from);
    radix__classify(c, n);
    return true;
}

struct radix_node *radix__split(struct radix_cache *c, struct radix_node *n, uint32_t p)
{
    ASSERT(p > n->start && p < n->end);
    uint32_t upper_spans = 0, gone = 0;
    while (upper_spans < n->span_count && n->spans[upper_spans].begin < p) upper_spans++;
    while (gone < n->span_count && n->spans[gone].end <= p) gone++;
    struct radix_node *u = node_alloc(c, n->start, p, upper_spans);
    if (!u) return NULL;
    radix__marks_split(c, u, n, p);
    uint32_t old_base = n->start / c->bt, base = p / c->bt, blocks = radix__blocks(c, p, n->end);
    memcpy(u->tokens, n->tokens, (p - n->start) * sizeof *u->tokens);
    memmove(n->tokens, n->tokens + (p - n->start), (n->end - p) * sizeof *n->tokens);
    if (upper_spans) memcpy(u->spans, n->spans, upper_spans * sizeof *u->spans);
    u->span_count = upper_spans;
    if (n->span_count > gone) memmove(n->spans, n->spans + gone, (n->span_count - gone) * sizeof *n->spans);
    n->span_count -= gone;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        bool window = c->caps.groups[g].window > 0;
        uint32_t shared = p % c->bt ? n->block_offsets[g][base - old_base] : ENGINE_NO_BLOCK,
                 upper = radix__blocks(c, u->start, p);
        memcpy(u->block_offsets[g], n->block_offsets[g], upper * sizeof *u->block_offsets[g]);
        memmove(n->block_offsets[g], n->block_offsets[g] + (base - old_base),
                blocks * sizeof *n->block_offsets[g]);
        if (shared != ENGINE_NO_BLOCK) kvb_acquire(c->blocks, g, shared, KVB_CACHED);
        if (!window) continue;
        n->body[g] = 0;
        for (uint32_t i = 0; i < upper; i++) u->body[g] += u->block_offsets[g][i] != ENGINE_NO_BLOCK;
        for (uint32_t i = 0; i < blocks; i++) n->body[g] += n->block_offsets[g][i] != ENGINE_NO_BLOCK;
    }
    struct radix_node *parent = n->parent;
    uint64_t hash = n->link.hash;
    unlink_child(c, n);
    n->start = p;
    link_child(c, parent, u, hash);
    link_child(c, u, n, radix__child_hash(c, u, radix__of_node(n), p));
    u->checkpoint = true;
    u->last_use = n->last_use;
    u->base = n->base;
    c->stats.nodes++;
    radix__classify(c, u);
    radix__classify(c, n);
    return u;
}

void radix__remove(struct radix_cache *c, struct radix_node *n)
{
    ASSERT(!n->child_count && !n->pins);
    radix__unheap(c, n);
    radix__marks_drop(c, n);
    uint32_t blocks = radix__blocks(c, n->start, n->end);
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = 0; i < blocks; i++)
            if (n->block_offsets[g][i] != ENGINE_NO_BLOCK)
                kvb_release(c->blocks, g, n->block_offsets[g][i], KVB_CACHED);
        for (uint32_t i = 0; i < n->tail[g].count; i++)
            kvb_release(c->blocks, g, n->tail[g].block_offsets[i], KVB_CACHED);
    }
    if (n->state != ENGINE_NO_BLOCK) {
        kvb_release(c->blocks, c->state_group, n->state, KVB_CACHED);
        c->stats.states--;
    }
    unlink_child(c, n);
    c->stats.nodes--;
    c->stats.items -= n->end - n->start;
    node_free(n);
}

uint32_t radix__path_offset(const struct radix_cache *c, const struct radix_node *n, uint32_t g, uint32_t i,
                            uint32_t upto)
{
    while (n->start >= upto && !n->root) n = n->parent;
    if (n->root) return ENGINE_NO_BLOCK;
    uint32_t at = n->block_offsets[g][i - n->start / c->bt];
    if (at == ENGINE_NO_BLOCK && i >= n->tail[g].first && i - n->tail[g].first < n->tail[g].count)
        at = n->tail[g].block_offsets[i - n->tail[g].first];
    return at;
}

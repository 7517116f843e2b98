/* Matching, pinning and publishing; see radix_cache.h for the layout and radix_internal.h for the parts. */
#include "scheduler/cache/radix_internal.h"

#include "config/base/assert.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS_FIRST = 1024 };
/* Fractions of the arena: the initial limit of saved states, and what each request that misses an evicted
 * one adds to it. */
enum { STATES_FIRST = 4, STATES_MORE = 64 };

enum status radix_create(const struct engine_caps *caps, struct kv_blocks *blocks, uint64_t seed,
                         struct radix_cache **out, struct err *err)
{
    struct radix_cache *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(err, "the prefix cache");
    c->caps = *caps;
    c->blocks = blocks;
    c->seed = seed;
    c->bt = caps->block_tokens;
    c->state_group = ENGINE_GROUPS_MAX;
    if (caps->groups[caps->group_count - 1].recurrent) c->state_group = --c->caps.group_count;
    for (uint32_t g = 0; g < c->caps.group_count; g++) c->sliding |= caps->groups[g].window > 0;
    c->top.root = true;
    c->top.state = c->no_state = ENGINE_NO_BLOCK;
    c->states_most = caps->arena_grains / STATES_FIRST;
    if (c->state_group < ENGINE_GROUPS_MAX) { /* room for at least two states, however large */
        uint64_t two = 2ull * caps->groups[c->state_group].block_grains;
        if (c->states_most < two) c->states_most = two;
    }
    c->next_id = 1;
    c->ghosts = calloc(GHOST_COUNT, sizeof *c->ghosts);
    if (!hash_create(&c->children, BUCKETS_FIRST) || !c->ghosts || !radix__heaps_reserve(c, 1)) {
        radix_destroy(c);
        return err_nomem(err, "the prefix cache");
    }
    *out = c;
    return ST_OK;
}

void radix_destroy(struct radix_cache *c)
{
    if (!c) return;
    c->quiet = true;
    while (c->top.child) {
        struct radix_node *n = c->top.child;
        while (n->child) n = n->child;
        n->pins = 0;
        radix__remove(c, n);
    }
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
        free(c->scratch[g]);
        free(c->valid_to[g]);
    }
    for (int h = 0; h < HEAP_COUNT; h++) free(c->heaps[h].at);
    free(c->announced.hashes);
    free(c->announced.images);
    free(c->path.tokens);
    free(c->path.spans);
    free(c->children.buckets);
    free(c->ghosts);
    free(c);
}

/* ---- match ---- */

uint32_t radix__window(const struct radix_cache *c, uint32_t g, uint32_t p, uint32_t whole, uint32_t *first)
{
    uint32_t w = c->caps.groups[g].window, end = (p + c->bt - 1) / c->bt, lo = 0;
    /* The query at p sees keys from p - w + 1 on. */
    if (w && p + 1 > w && p >= whole) lo = p + 1 - w;
    *first = lo >= p ? p / c->bt : lo / c->bt;
    if (*first > end) *first = end;
    return lo >= p && p > 0 ? 0 : end - *first;
}

static bool scratch_reserve(struct radix_cache *c, uint32_t blocks)
{
    if (blocks <= c->scratch_cap) return true;
    uint32_t cap = c->scratch_cap ? c->scratch_cap : 256;
    while (cap < blocks) cap *= 2;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        uint32_t *a = realloc(c->scratch[g], cap * sizeof *a);
        if (a) c->scratch[g] = a;
        uint32_t *b = realloc(c->valid_to[g], cap * sizeof *b);
        if (b) c->valid_to[g] = b;
        if (!a || !b) return false;
    }
    c->scratch_cap = cap;
    return true;
}

/* Collects node n's blocks for positions up to `to` (<= n->end). valid_to: the block's content belongs to
 * this path below this position. */
static void collect(struct radix_cache *c, const struct radix_node *n, uint32_t to)
{
    uint32_t base = n->start / c->bt;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = base; i < (to + c->bt - 1) / c->bt; i++) {
            uint32_t block_offset = n->block_offsets[g][i - base], block_end = (i + 1) * c->bt;
            /* A block that began in an ancestor stays usable up to n->start if n has none. */
            if (block_offset == ENGINE_NO_BLOCK && i == base && n->start % c->bt) continue;
            c->scratch[g][i] = block_offset;
            c->valid_to[g][i] = block_offset == ENGINE_NO_BLOCK ? i * c->bt : block_end < to ? block_end : to;
        }
        for (uint32_t k = 0; k < n->tail[g].count; k++) {
            uint32_t i = n->tail[g].first + k, block_end = (i + 1) * c->bt,
                     valid = block_end < to ? block_end : to;
            if (i * c->bt >= to || c->valid_to[g][i] >= valid) continue;
            c->scratch[g][i] = n->tail[g].block_offsets[k];
            c->valid_to[g][i] = valid;
        }
    }
}

/* p, or the last position before it where a hit may end. A SPAN_PREFIX_LM that is wholly equal may be split
 * anywhere: the rest is computed in one chunk, and its rows see the cached keys. */
static uint32_t floor_whole(const struct radix_view *v, uint32_t p, uint32_t equal)
{
    uint32_t m = radix_span_at(v->spans, v->span_count, p);
    if (m == v->span_count || !span_cut(&v->spans[m], p)) return p;
    return v->spans[m].rule == SPAN_PREFIX_LM && v->spans[m].atomic_end <= equal ? p
                                                                                 : v->spans[m].atomic_begin;
}

/* End of the prefix-LM prefix; 0: none. */
static uint32_t atomic_end(const struct prompt_span *spans, uint32_t count)
{
    return count && spans[0].rule == SPAN_PREFIX_LM ? spans[0].atomic_end : 0;
}

/* Where a view's states are: those of the path to `node`, where the walk ended, and the lower tier's. */
struct places {
    const struct radix_node *node;
    const struct radix_lower *lower;
    uint32_t equal; /* leading items that are known */
};

/* The last position at or before p with a saved state; 0: none. */
static uint32_t last_state(const struct places *at, uint32_t p)
{
    const struct radix_node *n = at->node;
    while (!n->root && (n->end > p || n->state == ENGINE_NO_BLOCK)) n = n->parent;
    uint32_t i = at->lower ? at->lower->state_count : 0;
    while (i && at->lower->states[i - 1] > p) i--;
    return i && at->lower->states[i - 1] > n->end ? at->lower->states[i - 1] : n->end;
}

/* p, or the last position before it where a hit may end and, with a recurrent group, a state is saved. */
static uint32_t floor_saved(const struct radix_cache *c, const struct radix_view *v, const struct places *at,
                            uint32_t p)
{
    for (;;) {
        p = floor_whole(v, p, at->equal);
        if (!radix__recurrent(c) || last_state(at, p) == p) return p;
        p = last_state(at, p);
    }
}

/* The longest p at which every group has what the next query needs, and a hit may end. */
static uint32_t longest_valid(const struct radix_cache *c, const struct radix_view *v,
                              const struct places *at, uint32_t p)
{
    p = floor_saved(c, v, at, p);
    for (uint32_t g = 0; g < c->caps.group_count;) {
        uint32_t first, count = radix__window(c, g, p, atomic_end(v->spans, v->span_count), &first),
                        bad = ENGINE_NO_BLOCK;
        for (uint32_t i = first + count; i-- > first;) {
            uint32_t want = (i + 1) * c->bt < p ? (i + 1) * c->bt : p;
            if (c->valid_to[g][i] >= want) continue;
            bad = i;
            break;
        }
        if (bad == ENGINE_NO_BLOCK) {
            g++;
            continue;
        }
        p = c->valid_to[g][bad] > bad * c->bt ? c->valid_to[g][bad] : bad * c->bt;
        p = floor_saved(c, v, at, p);
        g = 0; /* a shorter one must be valid for all groups */
    }
    return p;
}

/* Adds what only the lower tier has to the blocks of [0, pos). */
static void collect_lower(struct radix_cache *c, uint32_t pos, const struct radix_lower *l)
{
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = 0; i < l->blocks; i++) {
            bool known = i * c->bt < pos && c->valid_to[g][i] >= l->valid_to[g][i];
            if (known) continue;
            c->scratch[g][i] = ENGINE_NO_BLOCK;
            c->valid_to[g][i] = l->valid_to[g][i];
        }
    }
}

/* Why the walk ended in n, of which everything up to pos is equal. */
static enum cache_stop why_stopped(const struct radix_cache *c, const struct radix_node *n,
                                   const struct radix_view *v, uint32_t pos, uint64_t hash)
{
    bool ours = radix__span(radix__of_view(v), pos), whole = pos < atomic_end(v->spans, v->span_count);
    if (pos < n->end && whole) return CACHE_STOP_PROMPT;
    if (pos < n->end)
        return ours || radix__span(radix__of_node(n), pos) ? CACHE_STOP_IMAGE : CACHE_STOP_TOKEN;
    if (c->ghosts[hash % GHOST_COUNT] == hash) return CACHE_STOP_EVICTED;
    if (!n->child) return n->root ? CACHE_STOP_SALT : CACHE_STOP_END;
    if (whole) return CACHE_STOP_PROMPT;
    return ours || radix__span(radix__of_node(n->child), pos) ? CACHE_STOP_IMAGE : CACHE_STOP_TOKEN;
}

bool radix_match(struct radix_cache *c, const struct radix_view *v, uint32_t limit,
                 const struct radix_lower *lower, struct radix_hit *hit)
{
    *hit = (struct radix_hit){.info = {.stop = CACHE_STOP_SALT}};
    ASSERT_CMP(limit, <, v->count);
    if (!scratch_reserve(c, v->count / c->bt + 1)) return false;
    struct radix_node *n = radix__root(c, v->salt);
    if (!n && !lower) return true;
    if (!n) n = &c->top;
    uint32_t pos = 0;
    uint64_t hash = 0;
    while (n != &c->top && pos < v->count) {
        struct radix_node *k = radix__child(c, n, v, pos, &hash);
        if (!k) break;
        uint32_t to = pos + radix__common(k, v, pos, k->end);
        collect(c, k, to);
        n = k;
        pos = to;
        if (pos < k->end) break;
    }
    if (lower) {
        collect_lower(c, pos, lower);
        if (pos < n->end) n = n->parent; /* its end is another path's */
        if (lower->equal > pos) pos = lower->equal;
    }
    hit->info.equal = pos;
    struct places at = {n, lower, pos};
    uint32_t want = pos < limit ? pos : limit, whole = floor_whole(v, want, pos);
    hit->length = longest_valid(c, v, &at, whole);
    hit->info.reused = hit->length;
    if (radix__recurrent(c) && whole > hit->length) hit->branch = whole;
    if (radix__recurrent(c) && last_state(&at, whole) < whole) hit->info.stop = CACHE_STOP_STATE;
    else if (hit->length < whole) hit->info.stop = CACHE_STOP_WINDOW;
    else if (whole < want) hit->info.stop = CACHE_STOP_SPAN;
    else if (pos >= limit) hit->info.stop = CACHE_STOP_NONE;
    else if (!lower) hit->info.stop = why_stopped(c, n, v, pos, hash);
    hit->evicted = hit->info.stop == CACHE_STOP_EVICTED;
    for (; !n->root && n->start >= hit->length; n = n->parent)
        hit->evicted |= n->state_gone && n->end <= whole;
    hit->node = n;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        uint32_t first, count = radix__window(c, g, hit->length, atomic_end(v->spans, v->span_count), &first);
        hit->tables[g] =
            (struct block_table){.block_offsets = c->scratch[g], .first = first, .end = first + count};
    }
    if (radix__recurrent(c) && hit->length)
        hit->tables[c->state_group] =
            (struct block_table){.block_offsets = n->end == hit->length ? &n->state : &c->no_state, .end = 1};
    return true;
}

/* ---- pins ---- */

static void pin_node(struct radix_cache *c, struct radix_pin *pin, struct radix_node *n)
{
    n->pins++;
    pin->node = n;
    radix__classify(c, n);
}

void radix_unpin(struct radix_cache *c, struct radix_pin *pin)
{
    struct radix_node *n = pin->node;
    pin->node = NULL;
    if (!n) return;
    ASSERT(n->pins > 0);
    n->pins--;
    radix__classify(c, n);
    if (n->root && !n->child_count && !n->pins) radix__remove(c, n);
}

/* The blocks of group g that cover [n->end - w + 1 - more, n->end), into *t; false: one of them is gone, or
 * out of memory. */
static bool find_tail(const struct radix_cache *c, const struct radix_node *n, uint32_t g, uint32_t more,
                      const struct block_table tables[], struct radix_run *t)
{
    /* A node that touches a prefix-LM prefix begins with one of its spans. */
    (void)radix__window(c, g, n->end - more, atomic_end(n->spans, n->span_count), &t->first);
    t->count = (n->end + c->bt - 1) / c->bt - t->first;
    if (t->count && !(t->block_offsets = malloc(t->count * sizeof *t->block_offsets))) return false;
    for (uint32_t k = 0; k < t->count; k++) {
        uint32_t i = t->first + k, upto = (i + 1) * c->bt < n->end ? (i + 1) * c->bt : n->end;
        bool there = tables && i >= tables[g].first && i < tables[g].end;
        t->block_offsets[k] = there ? tables[g].block_offsets[i] : radix__path_offset(c, n, g, i, upto);
        if (t->block_offsets[k] != ENGINE_NO_BLOCK) continue;
        free(t->block_offsets);
        *t = (struct radix_run){0};
        return false;
    }
    return true;
}

/* Keeps the sliding blocks that a hit at n's end needs, from the sequence's tables if it has them, else from
 * the path. One token more than that if possible: an equal prompt computes its last token and hits one before
 * the end. */
static void ensure_tail(struct radix_cache *c, struct radix_node *n, const struct block_table tables[])
{
    struct radix_run tail[ENGINE_GROUPS_MAX] = {{0}};
    if (!c->sliding || n->has_tail || n->root) return;
    bool ok = true;
    for (uint32_t g = 0; g < c->caps.group_count && ok; g++)
        ok = !c->caps.groups[g].window || find_tail(c, n, g, 1, tables, &tail[g]) ||
             find_tail(c, n, g, 0, tables, &tail[g]);
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        if (!ok) {
            free(tail[g].block_offsets);
            continue;
        }
        for (uint32_t k = 0; k < tail[g].count; k++)
            kvb_acquire(c->blocks, g, tail[g].block_offsets[k], KVB_CACHED);
        n->tail[g] = tail[g];
    }
    if (!ok) return;
    n->has_tail = true;
    radix__event_tail(c, n, true);
    radix__classify(c, n);
}

bool radix_pin_hit(struct radix_cache *c, const struct radix_view *v, const struct radix_hit *hit,
                   struct radix_pin *pin)
{
    struct radix_node *n = hit->node;
    if (!n) n = radix__root(c, v->salt);
    if (!n && !(n = radix__root_create(c, v->salt))) return false;
    if (hit->length == 0) {
        while (!n->root) n = n->parent;
    } else if (hit->length < n->end && hit->length > n->start) {
        struct radix_node *u = radix__split(c, n, hit->length);
        if (!u) return false;
        n = u;
        ensure_tail(c, n, NULL);
    }
    pin_node(c, pin, n);
    n->state_base = c->inflation;
    n->state_hits++;
    if (hit->evicted) c->states_most += c->caps.arena_grains / STATES_MORE;
    radix__touch(c, n);
    radix__event_flush(c);
    return true;
}

/* ---- publish ---- */

/* Node n and the sequence are equal in [from, to): n takes the sliding blocks it lacks, the sequence swaps
 * its own blocks for n's whole ones. */
static void share_blocks(struct radix_cache *c, struct radix_node *n, uint32_t from, uint32_t to,
                         const struct block_table tables[])
{
    uint32_t base = n->start / c->bt;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        for (uint32_t i = from / c->bt; i < (to + c->bt - 1) / c->bt; i++) {
            uint32_t block_end = (i + 1) * c->bt, claimed = block_end < n->end ? block_end : n->end;
            if (claimed > to || i < base || i < tables[g].first || i >= tables[g].end) continue;
            uint32_t theirs = n->block_offsets[g][i - base], ours = tables[g].block_offsets[i];
            if (theirs == ours) continue;
            if (theirs == ENGINE_NO_BLOCK) {
                radix__set_offset(c, n, g, i, ours);
            } else if (block_end <= n->end) {
                kvb_acquire(c->blocks, g, theirs, KVB_LIVE);
                kvb_release(c->blocks, g, ours, KVB_LIVE);
                tables[g].block_offsets[i] = theirs;
            }
        }
    }
    radix__classify(c, n);
}

/* The node where the published sequence up to `from` ends: with item from - 1, or a root. */
static struct radix_node *resume(const struct radix_pin *pin, uint32_t from)
{
    struct radix_node *n = pin->node;
    while (!n->root && n->start >= from) n = n->parent;
    return n;
}

/* Walks existing nodes and adds the rest; *pos is how far the tree knows the sequence. Returns the last
 * node. */
static struct radix_node *walk(struct radix_cache *c, const struct radix_view *v, struct radix_node *n,
                               uint32_t *pos, uint32_t to, const struct block_table tables[], bool checkpoint)
{
    uint64_t hash;
    for (;;) {
        if (*pos < n->end) {
            uint32_t limit = n->end < to ? n->end : to, m = radix__common(n, v, *pos, limit);
            share_blocks(c, n, *pos, *pos + m, tables);
            *pos += m;
            bool parts = *pos < limit;
            if (parts || (*pos < n->end && checkpoint)) {
                ASSERT_CMP(*pos, >, n->start); /* the first item was compared to find n */
                struct radix_node *u = radix__split(c, n, *pos);
                if (!u) return n;
                n = u;
            } else if (*pos < n->end) {
                return n;
            }
        }
        if (n->checkpoint) ensure_tail(c, n, tables);
        if (*pos == to) return n;
        struct radix_node *k = radix__child(c, n, v, *pos, &hash);
        if (k) {
            n = k;
            continue;
        }
        if (!n->root && !n->child_count && !n->checkpoint) {
            if (!radix__extend(c, n, v, to, tables)) return n;
        } else {
            k = radix__child_create(c, n, v, to, tables);
            if (!k) return n;
            n = k;
        }
        *pos = to;
        return n;
    }
}

uint32_t radix_publish(struct radix_cache *c, const struct radix_view *v, struct radix_pin *pin,
                       uint32_t from, uint32_t to, const struct block_table tables[], bool checkpoint)
{
    /* Everything after an image of unknown identity depends on it. */
    const uint32_t end = to;
    for (uint32_t m = 0; m < v->span_count && v->spans[m].begin < to; m++)
        if (radix_doubtful(&v->spans[m])) to = v->spans[m].begin;
    if (!pin->node || from > to || (from == to && !checkpoint)) return from;
    uint32_t pos = from;
    struct radix_node *n = walk(c, v, resume(pin, from), &pos, to, tables, checkpoint);
    if (checkpoint && pos == to && n->end == to && !n->root) {
        n->checkpoint = true;
        ensure_tail(c, n, tables);
    }
    if (n != pin->node) {
        struct radix_pin old = *pin;
        pin_node(c, pin, n);
        radix_unpin(c, &old);
    }
    /* Its ancestors were touched at admission: avoids walking a long chain with every filled block. */
    c->clock++;
    n->last_use = c->clock;
    n->base = c->inflation;
    radix__classify(c, n);
    if (radix__recurrent(c) && tables[c->state_group].end && pos == end && n->end == end && !n->root)
        radix__keep_state(c, n, tables[c->state_group].block_offsets[0]);
    radix__event_flush(c);
    return pos;
}

void radix_stats(const struct radix_cache *c, struct radix_stats *out)
{
    *out = c->stats;
}

/* Events for the cache's event sink (struct kv_event_sink). The tree is not cut at the event sink's blocks,
 * so each node carries a mark for every block whose last item it holds:
 *
 *   blocks of 16      |  0 |  1 |  2 |  3 |  4 |
 *   A  [0,40)         |----------->             marks 0, 1
 *    +-> B [40,70)                |-------->    marks 2, 3: block 2 begins in A and ends in B
 *    `-> C [40,64)                |------>      marks 2, 3, with other hashes
 *
 * A full group has every block whose mark is there. A sliding group has one while all of it is kept, in the
 * bodies of its nodes or in the tail of a node below. Changes of sliding blocks are recorded as dirty ranges
 * of positions and handled once, at the end of the call that made them. See radix_internal.h. Calls nothing
 * of the other files but radix_sink.c. */
#include "scheduler/cache/radix_internal.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "config/base/sha256.h"

#include <stdlib.h>
#include <string.h>

void radix_set_event_sink(struct radix_cache *c, const struct kv_event_sink *w)
{
    ASSERT(!c->stats.nodes);
    c->event_sink = *w;
}

/* ---- the list of nodes with pending events ---- */

void radix__event_offsets(struct radix_cache *c, struct radix_node *n, uint32_t from, uint32_t to)
{
    if (!c->event_sink.block_tokens || c->quiet || n->root || from >= to) return;
    if (n->dirty_to) {
        if (from < n->dirty_from) n->dirty_from = from;
        if (to > n->dirty_to) n->dirty_to = to;
        return;
    }
    n->dirty_from = from;
    n->dirty_to = to;
    n->dirty_prev = c->dirty_last; /* at the end: a parent's events precede its children's */
    n->dirty_next = NULL;
    *(c->dirty_last ? &c->dirty_last->dirty_next : &c->dirty) = n;
    c->dirty_last = n;
}

static void clean(struct radix_cache *c, struct radix_node *n)
{
    if (!n->dirty_to) return;
    *(n->dirty_prev ? &n->dirty_prev->dirty_next : &c->dirty) = n->dirty_next;
    *(n->dirty_next ? &n->dirty_next->dirty_prev : &c->dirty_last) = n->dirty_prev;
    n->dirty_prev = n->dirty_next = NULL;
    n->dirty_from = n->dirty_to = 0;
}

/* ---- marks ---- */

bool radix__marks_reserve(const struct radix_cache *c, struct radix_node *n, uint32_t to)
{
    return LIST_RESERVE(n->marks, n->mark_cap, radix__marks(c, n->start, to));
}

static uint64_t first_bytes(struct sha256 *s)
{
    uint8_t digest[32];
    uint64_t hash;
    sha256_end(s, digest);
    memcpy(&hash, digest, sizeof hash);
    return hash;
}

/* The parent hash of a salt's first block. */
uint64_t radix_salt_hash(const uint8_t salt[32])
{
    static const uint8_t none[32];
    struct sha256 s;
    if (memcmp(salt, none, sizeof none) == 0) return 0;
    sha256_init(&s);
    sha256_add(&s, salt, 32);
    return first_bytes(&s);
}

/* The hash of the block before n's first one. */
static uint64_t hash_before(const struct radix_cache *c, const struct radix_node *n)
{
    for (n = n->parent; !n->root; n = n->parent) {
        uint32_t count = radix__marks(c, n->start, n->end);
        if (count) return n->marks[count - 1].hash;
    }
    return radix_salt_hash(n->salt);
}

/* Everything that determines the KV of its positions, and nothing specific to this machine. */
uint64_t radix_block_hash(const uint32_t *tokens, const struct prompt_span *spans, uint32_t span_count,
                          uint32_t a, uint32_t b, uint64_t parent)
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, &parent, sizeof parent);
    sha256_add(&s, tokens, (b - a) * sizeof *tokens);
    for (uint32_t i = 0; i < span_count && spans[i].begin < b; i++) {
        const struct prompt_span *p = &spans[i];
        int64_t numbers[6] = {(int64_t)p->begin - a, p->mrope_delta, p->grid.t, p->grid.h, p->grid.w, 0};
        memcpy(&numbers[5], &p->grid.seconds, sizeof numbers[5]);
        sha256_add(&s, span_identity(p), 32);
        sha256_add(&s, numbers, sizeof numbers);
    }
    return first_bytes(&s);
}

void radix__marks_add(struct radix_cache *c, struct radix_node *n, const struct radix_view *v, uint32_t from)
{
    uint32_t size = c->event_sink.block_tokens, k = radix__marks(c, n->start, from),
             count = radix__marks(c, n->start, n->end), span = 0;
    if (!size || k == count) return;
    uint64_t hash = k ? n->marks[k - 1].hash : hash_before(c, n);
    radix__event_offsets(c, n, from, n->end);
    for (; k < count; k++) {
        uint32_t a = (n->start / size + k) * size;
        while (span < v->span_count && v->spans[span].end <= a) span++;
        hash = radix_block_hash(v->tokens + a, v->spans + span, v->span_count - span, a, a + size, hash);
        n->marks[k] = (struct radix_mark){.hash = hash};
    }
}

void radix__marks_split(struct radix_cache *c, struct radix_node *u, struct radix_node *n, uint32_t p)
{
    uint32_t upper = radix__marks(c, n->start, p), lower = radix__marks(c, p, n->end);
    if (upper) memcpy(u->marks, n->marks, upper * sizeof *u->marks);
    if (upper && lower) memmove(n->marks, n->marks + upper, lower * sizeof *n->marks);
    if (n->dirty_to) radix__event_offsets(c, u, n->dirty_from, n->dirty_to);
}

/* ---- telling ---- */

/* Sends marks [k, k + count) of n as one message. Out of memory: they stay unannounced, so routing is worse
 * but not wrong. */
static void announce_stored(struct radix_cache *c, struct radix_node *n, uint32_t g, uint32_t k,
                            uint32_t count)
{
    uint32_t size = c->event_sink.block_tokens, first = (n->start / size + k) * size;
    struct radix_view v;
    if (!radix__path(c, n, first, first + count * size, &v) ||
        !LIST_RESERVE(c->announced.images, c->announced.image_cap, v.span_count) ||
        !LIST_RESERVE(c->announced.hashes, c->announced.hash_cap, count))
        return;
    for (uint32_t i = 0; i < v.span_count; i++) {
        c->announced.images[i] = (struct cache_image){.begin = v.spans[i].begin, .end = v.spans[i].end};
        memcpy(c->announced.images[i].key, span_identity(&v.spans[i]), sizeof v.spans[i].key);
    }
    for (uint32_t i = 0; i < count; i++) {
        c->announced.hashes[i] = n->marks[k + i].hash;
        n->marks[k + i].announced |= 1u << g;
    }
    c->event_sink.stored(c->event_sink.arg,
                         &(struct cache_stored){.group = g,
                                                .window = c->caps.groups[g].window,
                                                .recurrent = g == c->state_group,
                                                .count = count,
                                                .first = first,
                                                .parent = k ? n->marks[k - 1].hash : hash_before(c, n),
                                                .hashes = c->announced.hashes,
                                                .tokens = v.tokens,
                                                .images = c->announced.images,
                                                .image_count = v.span_count,
                                                .salt = v.salt});
}

static void announce_removed(struct radix_cache *c, struct radix_node *n, uint32_t g, uint32_t k,
                             uint32_t end)
{
    enum { AT_ONCE = 64 };
    uint64_t hashes[AT_ONCE];
    uint32_t count = 0;
    for (; k < end; k++) {
        if (!(n->marks[k].announced >> g & 1)) continue;
        n->marks[k].announced &= ~(1u << g);
        hashes[count++] = n->marks[k].hash;
        if (count < AT_ONCE) continue;
        if (!c->quiet) c->event_sink.removed(c->event_sink.arg, CACHE_TIER_ARENA, g, hashes, count);
        count = 0;
    }
    if (count && !c->quiet) c->event_sink.removed(c->event_sink.arg, CACHE_TIER_ARENA, g, hashes, count);
}

bool radix__mark_held(const struct radix_cache *c, const struct radix_node *n, uint32_t g, uint32_t k)
{
    uint32_t size = c->event_sink.block_tokens, a = (n->start / size + k) * size, b = a + size;
    if (g == c->state_group) return n->marks[k].tails[g];
    if (!c->caps.groups[g].window || n->marks[k].tails[g]) return true;
    for (uint32_t i = a / c->bt; i * c->bt < b; i++) {
        uint32_t upto = (i + 1) * c->bt < b ? (i + 1) * c->bt : b;
        const struct radix_node *m = n;
        while (m->start >= upto) m = m->parent;
        if (m->block_offsets[g][i - m->start / c->bt] == ENGINE_NO_BLOCK) return false;
    }
    return true;
}

static void announce_group(struct radix_cache *c, struct radix_node *n, uint32_t g, uint32_t k, uint32_t end)
{
    for (uint32_t i = k; i < end;) {
        bool announced = n->marks[i].announced >> g & 1, now = radix__mark_held(c, n, g, i);
        uint32_t j = i + 1;
        while (j < end && (n->marks[j].announced >> g & 1) == announced &&
               radix__mark_held(c, n, g, j) == now)
            j++;
        if (now && !announced) announce_stored(c, n, g, i, j - i);
        if (!now && announced) announce_removed(c, n, g, i, j);
        i = j;
    }
}

/* Announces changes of the marks [k, end) of n. Full groups hold the same blocks: one is sent for all, before
 * the sliding ones, so that a receiver knows every block's parent. */
static void announce(struct radix_cache *c, struct radix_node *n, uint32_t k, uint32_t end)
{
    uint32_t count = c->caps.group_count, full = 0;
    while (full < count && c->caps.groups[full].window) full++;
    if (full < count) announce_group(c, n, full, k, end);
    for (uint32_t g = 0; g < count; g++)
        if (c->caps.groups[g].window) announce_group(c, n, g, k, end);
    if (radix__recurrent(c)) announce_group(c, n, c->state_group, k, end);
}

/* The block that begins in n and ends below it. */
static void announce_children(struct radix_cache *c, const struct radix_node *n, uint32_t begin)
{
    for (struct radix_node *k = n->child; k; k = k->next) {
        if (begin + c->event_sink.block_tokens <= k->end) announce(c, k, 0, 1);
        else announce_children(c, k, begin);
    }
}

void radix__event_flush(struct radix_cache *c)
{
    while (c->dirty) {
        struct radix_node *n = c->dirty;
        uint32_t size = c->event_sink.block_tokens, count = radix__marks(c, n->start, n->end),
                 own = n->start / size, from = n->dirty_from / size, to = n->dirty_to / size + 1,
                 last = n->end / size * size;
        bool below = c->sliding && n->end > last && n->dirty_to > last;
        clean(c, n);
        from = from > own ? from - own : 0;
        to = to > own ? to - own : 0;
        announce(c, n, from, to < count ? to : count);
        if (below) announce_children(c, n, last);
    }
}

void radix__event_tail(struct radix_cache *c, struct radix_node *n, bool there)
{
    uint32_t size = c->event_sink.block_tokens;
    if (!size) return;
    for (uint32_t g = 0; g < c->caps.group_count; g++) {
        if (!n->tail[g].count) continue;
        uint32_t a = (n->tail[g].first * c->bt + size - 1) / size, b = n->end / size; /* whole blocks of it */
        for (struct radix_node *m = n; !m->root && a < b && m->end > a * size; m = m->parent) {
            uint32_t own = m->start / size, k = a > own ? a - own : 0,
                     end = radix__marks(c, m->start, m->end);
            if (k >= end) continue;
            radix__event_offsets(c, m, (own + k) * size, m->end);
            for (; k < end; k++) {
                ASSERT(there || m->marks[k].tails[g]);
                m->marks[k].tails[g] += there ? 1 : UINT32_MAX;
            }
        }
    }
}

/* A state counts for the last whole block before it. */
void radix__event_state(struct radix_cache *c, struct radix_node *n, bool there)
{
    uint32_t size = c->event_sink.block_tokens, blocks = size ? n->end / size : 0;
    if (!blocks) return;
    while (n->start >= blocks * size) n = n->parent;
    n->marks[blocks - 1 - n->start / size].tails[c->state_group] += there ? 1 : UINT32_MAX;
    radix__event_offsets(c, n, (blocks - 1) * size, blocks * size);
}

void radix__marks_cut(struct radix_cache *c, struct radix_node *n, uint32_t end)
{
    uint32_t k = radix__marks(c, n->start, end), count = radix__marks(c, n->start, n->end);
    for (uint32_t g = 0; k < count && g < c->caps.group_count + radix__recurrent(c); g++)
        announce_removed(c, n, g, k, count);
}

void radix__marks_drop(struct radix_cache *c, struct radix_node *n)
{
    radix__event_tail(c, n, false);
    if (n->state != ENGINE_NO_BLOCK) radix__event_state(c, n, false);
    radix__marks_cut(c, n, n->start);
    clean(c, n);
}

void radix_announce(struct radix_cache *c)
{
    c->quiet = false;
    if (!c->event_sink.block_tokens) return;
    while (c->dirty) clean(c, c->dirty);
    c->event_sink.resync(c->event_sink.arg, false);
    for (struct radix_node *n = c->top.child; n;) {
        uint32_t count = radix__marks(c, n->start, n->end);
        for (uint32_t k = 0; k < count; k++) n->marks[k].announced = 0;
        announce(c, n, 0, count);
        struct radix_node *next = n->child;
        while (!next && n != &c->top) {
            next = n->next;
            n = n->parent;
        }
        n = next;
    }
    if (c->sink.announce) c->sink.announce(c->sink.arg);
    c->event_sink.resync(c->event_sink.arg, true);
}

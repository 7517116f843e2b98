/* The index of what lies below the arena: nodes, records and the search. See tier.h and tier_internal.h. */
#include "scheduler/cache/tier_internal.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS_FIRST = 1024 };

enum status tier__index_create(struct tier *t, struct err *err)
{
    bool ok = hash_create(&t->nodes, BUCKETS_FIRST) && hash_create(&t->by_id, BUCKETS_FIRST) &&
              hash_create(&t->by_key, BUCKETS_FIRST);
    t->scratch = malloc(tier__items_bytes(0, t->bt, t->bt));
    return ok && t->scratch ? ST_OK : err_nomem(err, "the cache tier's index");
}

/* ---- items ---- */

uint32_t tier__items_bytes(uint32_t start, uint32_t end, uint32_t span_count)
{
    uint32_t tokens = (end - start + 1) / 2 * 2;
    return (uint32_t)(sizeof(struct tier_items) + tokens * sizeof(uint32_t) +
                      span_count * sizeof(struct tier_span));
}

uint32_t *tier__tokens(const struct tier_items *it)
{
    return (uint32_t *)(it + 1);
}

struct tier_span *tier__spans(const struct tier_items *it)
{
    return (struct tier_span *)(tier__tokens(it) + (it->end - it->start + 1) / 2 * 2);
}

struct prompt_span tier__prompt_span(const struct tier_span *s)
{
    struct prompt_span p = {.begin = s->begin,
                            .end = s->end,
                            .rule = s->atomic_end ? SPAN_PREFIX_LM : SPAN_CAUSAL,
                            .atomic_end = s->atomic_end,
                            .mrope_delta = s->mrope_delta,
                            .grid = {s->t, s->h, s->w, s->seconds, s->breaks}};
    memcpy(s->atomic_end ? p.atomic_key : p.key, s->key, sizeof s->key);
    return p;
}

uint64_t tier__block_hash(const struct tier_node *n)
{
    const struct tier_items *it = n->items;
    struct prompt_span spans[it->span_count + 1];
    for (uint32_t i = 0; i < it->span_count; i++) spans[i] = tier__prompt_span(tier__spans(it) + i);
    return radix_block_hash(tier__tokens(it), spans, it->span_count, it->start, it->end,
                            n->parent->block_hash);
}

bool tier__spans_valid(const struct tier_items *it)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < it->span_count; i++) {
        const struct tier_span *s = tier__spans(it) + i;
        if (s->begin < from || s->end <= s->begin || s->begin >= it->end || s->end <= it->start) return false;
        from = s->end;
    }
    return true;
}

void tier__encode(struct tier *t, const struct radix_view *v, uint32_t start, uint32_t end)
{
    struct tier_items *it = t->scratch;
    uint32_t first = radix_span_at(v->spans, v->span_count, start), m = first;
    while (m < v->span_count && v->spans[m].begin < end) m++;
    ASSERT(end > start && end - start <= t->bt && m - first <= t->bt);
    t->scratch_bytes = tier__items_bytes(start, end, m - first);
    memset(it, 0, t->scratch_bytes);
    *it = (struct tier_items){TIER_NO_GROUP, start, end, m - first};
    memcpy(tier__tokens(it), v->tokens + start, (end - start) * sizeof(uint32_t));
    for (uint32_t i = first; i < m; i++) {
        const struct prompt_span *p = &v->spans[i];
        struct tier_span *s = tier__spans(it) + (i - first);
        *s = (struct tier_span){.begin = p->begin,
                                .end = p->end,
                                .atomic_end = p->rule == SPAN_PREFIX_LM ? p->atomic_end : 0,
                                .mrope_delta = p->mrope_delta,
                                .t = p->grid.t,
                                .h = p->grid.h,
                                .w = p->grid.w,
                                .breaks = p->grid.breaks,
                                .seconds = p->grid.seconds};
        memcpy(s->key, span_identity(p), sizeof s->key);
    }
}

uint32_t tier__common(const struct tier_items *a, const struct tier_items *b)
{
    uint32_t n = (a->end < b->end ? a->end : b->end) - a->start, i = 0;
    const uint32_t *x = tier__tokens(a), *y = tier__tokens(b);
    while (i < n && x[i] == y[i]) i++;
    for (uint32_t m = 0; m < a->span_count || m < b->span_count; m++) {
        const struct tier_span *s = m < a->span_count ? tier__spans(a) + m : NULL,
                               *u = m < b->span_count ? tier__spans(b) + m : NULL;
        if (s && u && memcmp(s, u, sizeof *s) == 0) continue;
        uint32_t begin = s && (!u || s->begin < u->begin) ? s->begin : u->begin,
                 equal = begin > a->start ? begin - a->start : 0;
        return equal < i ? equal : i;
    }
    return i;
}

bool tier__covered(const struct tier_node *n, uint32_t g)
{
    uint32_t seen = 0;
    for (const struct tier_node *k = n->parent->child; k && seen < TIER_SIBLINGS_MAX; k = k->next, seen++) {
        bool other = g == TIER_NO_GROUP ? k->items->end > n->items->end : k != n && k->data[g];
        if (other && tier__common(k->items, n->items) == n->items->end - n->items->start) return true;
    }
    return false;
}

/* ---- tables ---- */

static uint64_t node_hash(const struct tier *t, const struct tier_node *parent, const struct tier_items *it,
                          uint32_t bytes)
{
    uint64_t h = hash_mix(t->opt.seed ^ parent->serial);
    return hash_mix_bytes(h, (const uint8_t *)it + 8, bytes - 8) ^ it->start; /* all but the group */
}

static uint64_t salt_hash(const struct tier *t, const uint8_t salt[32])
{
    return hash_mix_bytes(hash_mix(t->opt.seed ^ 0x73616c74ull), salt, 32);
}

static uint64_t key_hash(const struct tier *t, const uint8_t salt[32], const uint8_t key[32])
{
    return hash_mix_bytes(salt_hash(t, salt), key, 32);
}

static uint64_t id_hash(const struct tier *t, uint64_t id)
{
    return hash_mix(t->opt.seed ^ id);
}

static struct tier_node *node_add(struct tier *t, struct tier_node *parent, uint64_t hash)
{
    struct tier_node *n = calloc(1, sizeof *n);
    if (!n) return NULL;
    n->serial = ++t->serials;
    n->root = parent ? parent->root : n;
    n->parent = parent;
    hash_insert(&t->nodes, &n->link, hash);
    if (!parent) return n;
    n->next = parent->child;
    if (n->next) n->next->prev = n;
    parent->child = n;
    return n;
}

struct tier_node *tier__root(struct tier *t, const uint8_t salt[32], bool create)
{
    uint64_t h = salt_hash(t, salt);
    struct tier_node *n = hash_first(&t->nodes, h);
    while (n && (n->parent || memcmp(n->salt, salt, sizeof n->salt) != 0)) n = hash_next(n);
    if (!n && create && (n = node_add(t, NULL, h))) {
        memcpy(n->salt, salt, sizeof n->salt);
        n->block_hash = radix_salt_hash(salt);
    }
    return n;
}

struct tier_node *tier__child(const struct tier *t, const struct tier_node *n)
{
    uint64_t h = node_hash(t, n, t->scratch, t->scratch_bytes);
    struct tier_node *k = hash_first(&t->nodes, h);
    while (k &&
           (k->parent != n || k->items_bytes != t->scratch_bytes ||
            memcmp(&k->items->start, &t->scratch->start, t->scratch_bytes - sizeof k->items->group) != 0))
        k = hash_next(k);
    return k;
}

struct tier_node *tier__child_create(struct tier *t, struct tier_node *n, struct tier_items *items,
                                     uint32_t bytes)
{
    struct tier_node *k = node_add(t, n, node_hash(t, n, items, bytes));
    if (!k) {
        free(items);
        return NULL;
    }
    k->items = items;
    k->items_bytes = bytes;
    if (t->events && items->end - items->start == t->bt) k->block_hash = tier__block_hash(k);
    return k;
}

static void node_free(struct tier *t, struct tier_node *n)
{
    hash_remove(&t->nodes, &n->link);
    if (n->prev) n->prev->next = n->next;
    else if (n->parent) n->parent->child = n->next;
    if (n->next) n->next->prev = n->prev;
    free(n->items);
    free(n);
}

/* ---- records ---- */

static struct tier_record *record_add(struct tier *t, uint64_t bytes)
{
    struct tier_record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->bytes = bytes;
    t->stats.records++;
    return r;
}

struct tier_record *tier__record_create(struct tier *t, struct tier_node *n, uint32_t group, uint64_t bytes)
{
    struct tier_record *r = record_add(t, bytes);
    if (!r) return NULL;
    r->node = n;
    r->group = group;
    if (group != TIER_NO_GROUP) n->data[group] = r;
    return r;
}

struct tier_record *tier__image_create(struct tier *t, const uint8_t salt[32], const uint8_t key[32],
                                       uint64_t bytes)
{
    struct tier_record *r = record_add(t, bytes);
    if (!r) return NULL;
    memcpy(r->salt, salt, 32);
    memcpy(r->key, key, 32);
    hash_insert(&t->by_key, &r->by_key, key_hash(t, salt, key));
    return r;
}

struct tier_record *tier_find_features(struct tier *t, const uint8_t salt[32], const uint8_t key[32])
{
    for (struct hash_link *l = hash_first(&t->by_key, key_hash(t, salt, key)); l; l = l->next) {
        struct tier_record *r = tier__image_of(l);
        if (memcmp(r->key, key, 32) == 0 && memcmp(r->salt, salt, 32) == 0) return r;
    }
    return NULL;
}

struct tier_record *tier__by_id(const struct tier *t, uint64_t id)
{
    struct tier_record *r = hash_first(&t->by_id, id_hash(t, id));
    while (r && r->id != id) r = hash_next(r);
    return r;
}

void tier__record_id(struct tier *t, struct tier_record *r, uint64_t id)
{
    if (r->id) {
        hash_remove(&t->by_id, &r->by_id);
        t->stats.disk_bytes -= r->bytes;
    }
    r->id = id;
    if (!id) return;
    hash_insert(&t->by_id, &r->by_id, id_hash(t, id));
    t->stats.disk_bytes += r->bytes;
}

void tier__host_add(struct tier *t, struct tier_record *r, char *host)
{
    r->host = host;
    r->copied = engine_copies(t->engine);
    LIST_LINK(&t->in_host, t->in_host.tail, r);
    t->stats.host_bytes += r->bytes;
}

void tier__host_remove(struct tier *t, struct tier_record *r)
{
    if (!r->host) return;
    LIST_UNLINK(&t->in_host, r);
    t->stats.host_bytes -= r->bytes;
    if (r->copied > t->released) t->released = r->copied;
    r->host = NULL;
}

static void record_unlink(struct tier *t, struct tier_record *r)
{
    ASSERT(!r->readers);
    tier__host_remove(t, r);
    tier__record_id(t, r, 0);
    t->stats.records--;
    if (!r->node) hash_remove(&t->by_key, &r->by_key);
}

static bool useless(const struct tier_node *n)
{
    bool data = n->child != NULL || n->busy;
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) data |= n->data[g] != NULL;
    return !data;
}

void tier__record_free(struct tier *t, struct tier_record *r)
{
    struct tier_node *n = r->node;
    tier__event(t, r, false);
    if (n && n->name == r) n->name = NULL;
    if (n && r->group != TIER_NO_GROUP) n->data[r->group] = NULL;
    record_unlink(t, r);
    free(r);
    tier__prune(t, n);
}

void tier__prune(struct tier *t, struct tier_node *n)
{
    while (n && useless(n)) {
        struct tier_node *parent = n->parent;
        if (n->name) {
            cache_store_drop(t->opt.store, n->name->id);
            record_unlink(t, n->name);
            free(n->name);
        }
        node_free(t, n);
        n = parent;
    }
}

void tier__prune_all(struct tier *t)
{
    for (uint64_t i = 0; i < t->nodes.size; i++) {
        struct tier_node *n = hash_first(&t->nodes, i);
        while (n) {
            bool gone = useless(n);
            tier__prune(t, n); /* perhaps others of this chain, too */
            n = gone ? hash_first(&t->nodes, i) : hash_next(n);
        }
    }
}

void tier__index_clear(struct tier *t)
{
    for (uint64_t i = 0; i < t->by_key.size; i++) {
        for (struct hash_link *l; (l = hash_first(&t->by_key, i));) {
            struct tier_record *r = tier__image_of(l);
            record_unlink(t, r);
            free(r);
        }
    }
    for (uint64_t i = 0; i < t->nodes.size; i++) {
        for (struct tier_node *n = hash_first(&t->nodes, i), *next; n; n = next) {
            next = hash_next(n);
            for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
                if (!n->data[g]) continue;
                record_unlink(t, n->data[g]);
                if (n->data[g] != n->name) free(n->data[g]);
            }
            if (n->name && n->name->group == TIER_NO_GROUP) record_unlink(t, n->name);
            free(n->name);
            free(n->items);
            free(n);
        }
        t->nodes.buckets[i] = NULL;
    }
    t->nodes.count = 0;
    ASSERT_CMP(t->stats.records, ==, 0);
}

void tier__index_destroy(struct tier *t)
{
    if (t->nodes.buckets && t->by_id.buckets && t->by_key.buckets) tier__index_clear(t);
    free(t->nodes.buckets);
    free(t->by_id.buckets);
    free(t->by_key.buckets);
    free(t->scratch);
    free(t->found.lower.states);
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
        free(t->found.lower.valid_to[g]);
        free(t->found.records[g]);
    }
}

/* ---- the search ---- */

/* Of every group; there are at most as many states as siblings that are looked at. */
static bool found_reserve(struct tier *t, uint32_t blocks)
{
    if (blocks <= t->found.cap) return true;
    uint32_t cap = 2 * blocks + TIER_SIBLINGS_MAX;
    for (uint32_t g = 0; g < t->caps.group_count; g++) {
        uint32_t *v = realloc(t->found.lower.valid_to[g], cap * sizeof *v);
        if (v) t->found.lower.valid_to[g] = v;
        struct tier_record **r = realloc(t->found.records[g], cap * sizeof(struct tier_record *));
        if (r) t->found.records[g] = r;
        if (!v || !r) return false;
    }
    uint32_t *s = realloc(t->found.lower.states, cap * sizeof *s);
    if (!s) return false;
    t->found.lower.states = s;
    t->found.cap = cap;
    return true;
}

static void add_state(struct tier *t, uint32_t at, struct tier_record *r)
{
    struct radix_lower *l = &t->found.lower;
    struct tier_record **records = t->found.records[t->state_group];
    uint32_t i = l->state_count;
    if (i == t->found.cap) return;
    for (; i && l->states[i - 1] > at; i--) {
        l->states[i] = l->states[i - 1];
        records[i] = records[i - 1];
    }
    l->states[i] = at;
    records[i] = r;
    l->state_count++;
}

/* What a node has of the block in t->scratch, of which `equal` items are the same. */
static void add_node(struct tier *t, const struct tier_node *k, uint32_t equal)
{
    struct radix_lower *l = &t->found.lower;
    uint32_t to = k->items->start + equal, i = k->items->start / t->bt;
    if (to > l->equal) l->equal = to;
    for (uint32_t g = 0; g < t->caps.group_count; g++) {
        if (!k->data[g]) continue;
        if (g == t->state_group) {
            if (to == k->items->end) add_state(t, to, k->data[g]);
        } else if (to > l->valid_to[g][i]) {
            l->valid_to[g][i] = to;
            t->found.records[g][i] = k->data[g];
        }
    }
}

bool tier_find(struct tier *t, const struct radix_view *v, struct radix_lower *lower)
{
    struct radix_lower *l = &t->found.lower;
    uint32_t count = v->count;
    for (uint32_t m = 0; m < v->span_count && v->spans[m].begin < count; m++)
        if (radix_doubtful(&v->spans[m])) count = v->spans[m].begin;
    const struct tier_node *n = tier__root(t, v->salt, false);
    if (!n || !found_reserve(t, count / t->bt + 1)) return false;
    l->equal = l->state_count = 0;
    l->blocks = count / t->bt + 1;
    for (uint32_t g = 0; g < t->caps.group_count; g++)
        memset(l->valid_to[g], 0, l->blocks * sizeof *l->valid_to[g]);
    for (uint32_t start = 0; n && start < count; start += t->bt) {
        uint32_t end = count - start < t->bt ? count : start + t->bt, seen = 0;
        tier__encode(t, v, start, end);
        struct tier_node *whole = end - start == t->bt ? tier__child(t, n) : NULL;
        for (struct tier_node *k = n->child; k && seen < TIER_SIBLINGS_MAX; k = k->next, seen++)
            if (k != whole) add_node(t, k, tier__common(k->items, t->scratch));
        if (whole) add_node(t, whole, t->bt);
        n = whole;
    }
    *lower = *l;
    return l->equal > 0;
}

struct tier_record *tier_found(struct tier *t, uint32_t group, uint32_t index)
{
    if (group != t->state_group) return t->found.records[group][index];
    for (uint32_t i = 0; i < t->found.lower.state_count; i++)
        if (t->found.lower.states[i] == index) return t->found.records[group][i];
    return NULL;
}

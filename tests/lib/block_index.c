/* See block_index.h. */
#include "tests/lib/block_index.h"

#include "config/base/assert.h"
#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

/* Numbers by numbers: open addressing, keys never 0. */
struct map {
    uint64_t *keys, *values, cap, count;
};

static uint64_t *map_find(const struct map *m, uint64_t key)
{
    for (uint64_t i = hash_mix(key); m->cap; i++) {
        uint64_t k = m->keys[i % m->cap];
        if (k == key) return &m->values[i % m->cap];
        if (!k) break;
    }
    return NULL;
}
static void map_put(struct map *m, uint64_t key, uint64_t value)
{
    uint64_t *at = map_find(m, key);
    if (!at && 2 * (m->count + 1) > m->cap) {
        struct map more = {.cap = m->cap ? 2 * m->cap : 1024};
        more.keys = calloc(more.cap, sizeof *more.keys);
        more.values = calloc(more.cap, sizeof *more.values);
        ASSERT(more.keys && more.values);
        for (uint64_t i = 0; i < m->cap; i++)
            if (m->keys[i]) map_put(&more, m->keys[i], m->values[i]);
        free(m->keys);
        free(m->values);
        *m = more;
    }
    if (!at) {
        uint64_t i = hash_mix(key);
        while (m->keys[i % m->cap]) i++;
        m->keys[i % m->cap] = key;
        at = &m->values[i % m->cap];
        m->count++;
    }
    *at = value;
}

struct server {
    struct block_index *index;
    struct map announced[ENGINE_GROUPS_MAX]; /* by the event's hash: 1 while it is stored */
    struct map held[ENGINE_GROUPS_MAX];      /* by key: number of blocks with that key */
    uint64_t blocks, stored;
};
struct block_index {
    uint32_t block_tokens, count;
    struct map names; /* event hash to key. Never dropped: a hash always has the same meaning */
    struct server *servers;
};

static uint64_t salt_key(const uint8_t salt[32])
{
    return hash_mix_bytes(1, salt, 32);
}
static uint64_t block_key(const struct block_index *x, uint64_t parent, const uint32_t *tokens)
{
    uint64_t h = parent;
    for (uint32_t i = 0; i < x->block_tokens; i++) h = hash_mix(h ^ tokens[i]);
    return h;
}
static uint64_t image_key(uint64_t h, const uint8_t key[32], int64_t offset)
{
    return hash_mix(hash_mix_bytes(h, key, 32) ^ (uint64_t)offset) | 1;
}

static void on_stored(void *arg, const struct cache_stored *what)
{
    struct server *s = arg;
    struct block_index *x = s->index;
    uint32_t n = x->block_tokens;
    const uint64_t *parent = what->first ? map_find(&x->names, what->parent) : NULL;
    bool whole = !what->window && !what->recurrent;
    ASSERT(parent || !what->first || !whole);
    /* With full attention no block exists without its parent. */
    if (what->first && whole) ASSERT(*map_find(&s->announced[what->group], what->parent));
    /* Where all layers have windows, a parent may be gone: no prompt leads to such a block. */
    uint64_t key = parent ? *parent : what->first ? hash_mix(~what->parent) : salt_key(what->salt);
    for (uint32_t i = 0; i < what->count; i++) {
        uint32_t a = what->first + i * n;
        key = block_key(x, key, what->tokens + (size_t)i * n);
        for (uint32_t k = 0; k < what->image_count; k++) {
            const struct cache_image *p = &what->images[k];
            if (p->begin < a + n && p->end > a) key = image_key(key, p->key, (int64_t)p->begin - a);
        }
        const uint64_t *known = map_find(&x->names, what->hashes[i]);
        if (known) key = *known;
        const uint64_t *announced = map_find(&s->announced[what->group], what->hashes[i]),
                       *held = map_find(&s->held[what->group], key);
        ASSERT(!announced || !*announced);
        map_put(&s->held[what->group], key, held ? *held + 1 : 1);
        map_put(&s->announced[what->group], what->hashes[i], 1);
        map_put(&x->names, what->hashes[i], key);
        s->blocks++;
        s->stored += whole;
    }
}

static void on_removed(void *arg, enum cache_tier tier, uint32_t group, const uint64_t *hashes,
                       uint32_t count)
{
    struct server *s = arg;
    ASSERT(tier == CACHE_TIER_ARENA);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *announced = map_find(&s->announced[group], hashes[i]),
                 *key = map_find(&s->index->names, hashes[i]);
        ASSERT(announced && *announced && key);
        uint64_t *held = map_find(&s->held[group], *key);
        ASSERT(held && *held);
        --*held;
        *announced = 0;
        s->blocks--;
    }
}

static void on_resync(void *arg, bool done)
{
    struct server *s = arg;
    for (uint32_t g = 0; !done && g < ENGINE_GROUPS_MAX; g++) {
        for (uint64_t i = 0; i < s->announced[g].cap; i++) s->announced[g].values[i] = 0;
        for (uint64_t i = 0; i < s->held[g].cap; i++) s->held[g].values[i] = 0;
    }
    if (!done) s->blocks = 0;
}

struct block_index *block_index_new(uint32_t block_tokens, uint32_t servers)
{
    struct block_index *x = calloc(1, sizeof *x);
    ASSERT(x);
    x->block_tokens = block_tokens;
    x->count = servers;
    x->servers = calloc(servers, sizeof *x->servers);
    ASSERT(x->servers);
    for (uint32_t i = 0; i < servers; i++) x->servers[i].index = x;
    return x;
}

static void map_free(struct map *m)
{
    free(m->keys);
    free(m->values);
}
void block_index_free(struct block_index *x)
{
    if (!x) return;
    for (uint32_t i = 0; i < x->count; i++) {
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
            map_free(&x->servers[i].announced[g]);
            map_free(&x->servers[i].held[g]);
        }
    }
    map_free(&x->names);
    free(x->servers);
    free(x);
}

struct kv_event_sink block_index_sink(struct block_index *x, uint32_t server)
{
    return (struct kv_event_sink){.block_tokens = x->block_tokens,
                                  .arg = &x->servers[server],
                                  .stored = on_stored,
                                  .removed = on_removed,
                                  .resync = on_resync};
}

void block_index_keys(const struct block_index *x, const uint32_t *tokens, uint32_t count,
                      const struct prompt_span *spans, uint32_t span_count, const uint8_t salt[32],
                      uint64_t *keys)
{
    uint32_t n = x->block_tokens, first = 0;
    uint64_t key = salt_key(salt);
    for (uint32_t a = 0; a + n <= count; a += n) {
        key = block_key(x, key, tokens + a);
        while (first < span_count && spans[first].end <= a) first++;
        for (uint32_t k = first; k < span_count && spans[k].begin < a + n; k++)
            key = image_key(key, span_identity(&spans[k]), (int64_t)spans[k].begin - a);
        keys[a / n] = key;
    }
}

bool block_index_holds(const struct block_index *x, uint32_t server, uint32_t group, uint64_t key)
{
    const uint64_t *held = map_find(&x->servers[server].held[group], key);
    return held && *held;
}

uint32_t block_index_overlap(const struct block_index *x, uint32_t server, uint32_t group,
                             const uint64_t *keys, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && block_index_holds(x, server, group, keys[i])) i++;
    return i;
}

uint64_t block_index_blocks(const struct block_index *x, uint32_t server)
{
    return x->servers[server].blocks;
}

uint64_t block_index_stored(const struct block_index *x, uint32_t server)
{
    return x->servers[server].stored;
}

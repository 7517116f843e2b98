/* See media/image_hash_cache.h. Entries are in a hash table, and in a list by recency. */
#include "server/media/image_hash_cache.h"

#include "config/base/assert.h"
#include "config/base/hash_table.h"
#include "config/base/list.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_EACH 16u /* average parts per entry */

struct entry {
    struct hash_link link;
    struct entry *prev, *next; /* by recency */
    uint8_t id[32];
    struct image_parts parts; /* owned */
};

struct image_hash_cache {
    pthread_mutex_t lock;
    uint8_t secret[32];
    uint64_t entries_max, queries, hits;
    uint64_t parts, parts_max; /* of all entries: a video has many, so memory is bounded by them too */
    struct hash_table table;
    struct entry *head, *tail; /* the newest, the oldest */
};

struct image_hash_cache *image_hash_cache_create(uint32_t entries_max)
{
    struct image_hash_cache *a = calloc(1, sizeof *a);
    if (!a || !entries_max || !hash_create(&a->table, 64) || pthread_mutex_init(&a->lock, NULL)) {
        if (a) free(a->table.buckets);
        free(a);
        return NULL;
    }
    a->entries_max = entries_max;
    a->parts_max = (uint64_t)entries_max * PARTS_EACH;
    randombytes_buf(a->secret, sizeof a->secret);
    return a;
}

void image_hash_cache_destroy(struct image_hash_cache *a)
{
    if (!a) return;
    image_hash_cache_clear(a);
    pthread_mutex_destroy(&a->lock);
    free(a->table.buckets);
    free(a);
}

static void add_u64(crypto_hash_sha256_state *h, uint64_t v)
{
    crypto_hash_sha256_update(h, (const uint8_t *)&v, sizeof v); /* for this process only: any byte order */
}

void image_hash_cache_id(const struct image_hash_cache *a, const uint8_t salt[32],
                         const struct image_ask *ask, const uint8_t *bytes, size_t len, uint8_t id[32])
{
    crypto_hash_sha256_state h;
    uint64_t fps;
    memcpy(&fps, &ask->fps, sizeof fps);
    crypto_hash_sha256_init(&h);
    crypto_hash_sha256_update(&h, a->secret, sizeof a->secret);
    crypto_hash_sha256_update(&h, salt, 32);
    add_u64(&h, (uint64_t)ask->video | (uint64_t)ask->list << 1);
    add_u64(&h, fps);
    add_u64(&h, ask->bounds.area_min);
    add_u64(&h, ask->bounds.area_max);
    add_u64(&h, (uint64_t)ask->bounds.width << 32 | ask->bounds.height);
    add_u64(&h, ask->bounds.tiles);
    crypto_hash_sha256_update(&h, bytes, len);
    crypto_hash_sha256_final(&h, id);
}

/* Ids are hashes with a secret. */
static uint64_t hash_of(const uint8_t id[32])
{
    uint64_t hash;
    memcpy(&hash, id, sizeof hash);
    return hash;
}

static struct entry *find(const struct image_hash_cache *a, const uint8_t id[32])
{
    struct entry *e = hash_first(&a->table, hash_of(id));
    while (e && memcmp(e->id, id, 32) != 0) e = hash_next(e);
    return e;
}

static void drop(struct image_hash_cache *a, struct entry *e)
{
    hash_remove(&a->table, &e->link);
    LIST_UNLINK(a, e);
    a->parts -= e->parts.count;
    image_parts_free(&e->parts);
    free(e);
}

bool image_hash_cache_get(struct image_hash_cache *a, const uint8_t id[32], struct image_parts *parts)
{
    pthread_mutex_lock(&a->lock);
    struct entry *e = find(a, id);
    bool known = e && image_parts_copy(&e->parts, parts);
    a->queries++;
    a->hits += known;
    if (e) {
        LIST_UNLINK(a, e);
        LIST_LINK(a, NULL, e);
    }
    pthread_mutex_unlock(&a->lock);
    return known;
}

void image_hash_cache_put(struct image_hash_cache *a, const uint8_t id[32], const struct image_parts *parts)
{
    ASSERT(parts->count > 0);
    struct entry *e = parts->count > a->parts_max ? NULL : calloc(1, sizeof *e), *same;
    if (!e || !image_parts_copy(parts, &e->parts)) {
        free(e);
        return;
    }
    memcpy(e->id, id, sizeof e->id);
    pthread_mutex_lock(&a->lock);
    if ((same = find(a, id))) drop(a, same);
    while (a->table.count == a->entries_max || a->parts + e->parts.count > a->parts_max) drop(a, a->tail);
    a->parts += e->parts.count;
    hash_insert(&a->table, &e->link, hash_of(id));
    LIST_LINK(a, NULL, e);
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_remove(struct image_hash_cache *a, const uint8_t id[32])
{
    pthread_mutex_lock(&a->lock);
    struct entry *e = find(a, id);
    if (e) drop(a, e);
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_clear(struct image_hash_cache *a)
{
    pthread_mutex_lock(&a->lock);
    while (a->tail) drop(a, a->tail);
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_stats(struct image_hash_cache *a, struct image_hash_cache_stats *out)
{
    pthread_mutex_lock(&a->lock);
    *out = (struct image_hash_cache_stats){.queries = a->queries, .hits = a->hits, .entries = a->table.count};
    pthread_mutex_unlock(&a->lock);
}

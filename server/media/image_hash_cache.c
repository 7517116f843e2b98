/* See media/image_hash_cache.h. A fixed array of entries, chained in buckets and in one list by recency;
 * entry 0 is the end of every chain. */
#include "server/media/image_hash_cache.h"

#include "config/base/assert.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_EACH 16u /* average parts per entry */

struct entry {
    uint8_t id[32];
    struct image_parts parts; /* owned */
    uint32_t chain;           /* next in the bucket, or next free one */
    uint32_t older, newer;    /* by recency */
};

struct image_hash_cache {
    pthread_mutex_t lock;
    uint8_t secret[32];
    uint32_t entries_max, bucket_mask;
    uint32_t free;           /* first unused entry */
    uint32_t newest, oldest; /* 0 = empty */
    uint64_t queries, hits, used;
    uint64_t parts, parts_max; /* of all entries: a video has many, so memory is bounded by them too */
    uint32_t *buckets;
    struct entry *entries; /* [entries_max + 1] */
};

struct image_hash_cache *image_hash_cache_create(uint32_t entries_max)
{
    struct image_hash_cache *a = calloc(1, sizeof *a);
    uint32_t buckets = 1;
    if (!a || !entries_max || entries_max > 1u << 24) {
        free(a);
        return NULL;
    }
    while (buckets < entries_max) buckets *= 2;
    a->entries_max = entries_max;
    a->bucket_mask = buckets - 1;
    a->parts_max = (uint64_t)entries_max * PARTS_EACH;
    a->buckets = calloc(buckets, sizeof *a->buckets);
    a->entries = calloc((size_t)entries_max + 1, sizeof *a->entries);
    if (!a->buckets || !a->entries || pthread_mutex_init(&a->lock, NULL)) {
        free(a->buckets);
        free(a->entries);
        free(a);
        return NULL;
    }
    randombytes_buf(a->secret, sizeof a->secret);
    for (uint32_t i = entries_max; i; i--) {
        a->entries[i].chain = a->free;
        a->free = i;
    }
    return a;
}

void image_hash_cache_destroy(struct image_hash_cache *a)
{
    if (!a) return;
    image_hash_cache_clear(a);
    pthread_mutex_destroy(&a->lock);
    free(a->buckets);
    free(a->entries);
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

static uint32_t *bucket_of(struct image_hash_cache *a, const uint8_t id[32])
{
    uint32_t hash;
    memcpy(&hash, id, sizeof hash);
    return &a->buckets[hash & a->bucket_mask];
}

static uint32_t find(struct image_hash_cache *a, const uint8_t id[32])
{
    uint32_t i = *bucket_of(a, id);
    while (i && memcmp(a->entries[i].id, id, 32) != 0) i = a->entries[i].chain;
    return i;
}

static void recency_remove(struct image_hash_cache *a, uint32_t i)
{
    struct entry *e = &a->entries[i];
    if (e->newer) a->entries[e->newer].older = e->older;
    else a->newest = e->older;
    if (e->older) a->entries[e->older].newer = e->newer;
    else a->oldest = e->newer;
    e->older = e->newer = 0;
}

static void recency_add(struct image_hash_cache *a, uint32_t i)
{
    a->entries[i].older = a->newest;
    a->entries[i].newer = 0;
    if (a->newest) a->entries[a->newest].newer = i;
    else a->oldest = i;
    a->newest = i;
}

static void drop(struct image_hash_cache *a, uint32_t i)
{
    struct entry *e = &a->entries[i];
    uint32_t *at = bucket_of(a, e->id);
    while (*at != i) at = &a->entries[*at].chain;
    *at = e->chain;
    recency_remove(a, i);
    a->parts -= e->parts.count;
    image_parts_free(&e->parts);
    *e = (struct entry){.chain = a->free};
    a->free = i;
    a->used--;
}

bool image_hash_cache_get(struct image_hash_cache *a, const uint8_t id[32], struct image_parts *parts)
{
    bool known = false;
    pthread_mutex_lock(&a->lock);
    uint32_t i = find(a, id);
    a->queries++;
    if (i) {
        known = image_parts_copy(&a->entries[i].parts, parts);
        if (known) a->hits++;
        recency_remove(a, i);
        recency_add(a, i);
    }
    pthread_mutex_unlock(&a->lock);
    return known;
}

void image_hash_cache_put(struct image_hash_cache *a, const uint8_t id[32], const struct image_parts *parts)
{
    struct image_parts copy;
    ASSERT(parts->count > 0);
    if (parts->count > a->parts_max || !image_parts_copy(parts, &copy)) return;
    pthread_mutex_lock(&a->lock);
    uint32_t i = find(a, id);
    if (i) drop(a, i);
    while (!a->free || a->parts + copy.count > a->parts_max) drop(a, a->oldest);
    a->parts += copy.count;
    i = a->free;
    struct entry *e = &a->entries[i];
    a->free = e->chain;
    *e = (struct entry){.parts = copy};
    memcpy(e->id, id, sizeof e->id);
    uint32_t *bucket = bucket_of(a, id);
    e->chain = *bucket;
    *bucket = i;
    recency_add(a, i);
    a->used++;
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_remove(struct image_hash_cache *a, const uint8_t id[32])
{
    pthread_mutex_lock(&a->lock);
    uint32_t i = find(a, id);
    if (i) drop(a, i);
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_clear(struct image_hash_cache *a)
{
    pthread_mutex_lock(&a->lock);
    while (a->oldest) drop(a, a->oldest);
    pthread_mutex_unlock(&a->lock);
}

void image_hash_cache_stats(struct image_hash_cache *a, struct image_hash_cache_stats *out)
{
    pthread_mutex_lock(&a->lock);
    *out = (struct image_hash_cache_stats){.queries = a->queries, .hits = a->hits, .entries = a->used};
    pthread_mutex_unlock(&a->lock);
}

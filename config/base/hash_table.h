/* Chained hash tables, with the links in the elements; the caller compares keys along a chain. Pure. The
 * number of buckets follows that of the elements; without memory to grow, the chains get longer. */
#ifndef KVASIR_HASH_TABLE_H
#define KVASIR_HASH_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct hash_link {
    struct hash_link *next; /* in its bucket */
    uint64_t hash;
};
struct hash_table {
    struct hash_link **buckets;
    uint64_t size, count; /* of buckets, a power of two; of elements */
};

static inline bool hash_create(struct hash_table *t, uint64_t size)
{
    *t = (struct hash_table){calloc(size, sizeof(struct hash_link *)), size, 0};
    return t->buckets;
}

static inline struct hash_link **hash_bucket(const struct hash_table *t, uint64_t hash)
{
    return &t->buckets[hash & (t->size - 1)];
}

/* The first element of a bucket and the next one, for elements that begin with their link; NULL: none. */
static inline void *hash_first(const struct hash_table *t, uint64_t hash)
{
    return *hash_bucket(t, hash);
}
static inline void *hash_next(const void *element)
{
    return ((const struct hash_link *)element)->next;
}

static inline void hash__push(const struct hash_table *t, struct hash_link *l)
{
    struct hash_link **at = hash_bucket(t, l->hash);
    l->next = *at;
    *at = l;
}

static inline void hash_insert(struct hash_table *t, struct hash_link *l, uint64_t hash)
{
    struct hash_table more;
    if (t->count++ >= t->size && hash_create(&more, 2 * t->size)) {
        more.count = t->count;
        for (uint64_t i = 0; i < t->size; i++)
            for (struct hash_link *k = t->buckets[i], *next; k; k = next) {
                next = k->next;
                hash__push(&more, k);
            }
        free(t->buckets);
        *t = more;
    }
    l->hash = hash;
    hash__push(t, l);
}

static inline void hash_remove(struct hash_table *t, struct hash_link *l)
{
    struct hash_link **at = hash_bucket(t, l->hash);
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    t->count--;
}

#endif

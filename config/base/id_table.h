/* Hash tables of ids: open addressing, at most half full. The caller compares what the ids identify. Pure. */
#ifndef KVASIR_ID_TABLE_H
#define KVASIR_ID_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* A step of a hash that finds candidates only. */
static inline uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* Nonzero ids, by a hash of what they identify. All zero: empty. */
struct id_table {
    struct id_slot {
        uint32_t hash, id; /* id 0: free */
    } * slots;
    uint32_t cap, used; /* cap: a power of two */
};

/* The ids with this hash, one by one: *at is the hash at first. 0: no more. */
static inline uint32_t id_table_next(const struct id_table *t, uint32_t hash, uint32_t *at)
{
    while (t->cap) {
        const struct id_slot *s = &t->slots[(*at)++ & (t->cap - 1)];
        if (!s->id || s->hash == hash) return s->id;
    }
    return 0;
}

static inline bool id_table_grows(const struct id_table *t)
{
    return 2 * (t->used + 1) > t->cap;
}

/* There is a free slot. */
static inline void id_table_put(struct id_table *t, uint32_t hash, uint32_t id)
{
    uint32_t at = hash;
    while (t->slots[at & (t->cap - 1)].id) at++;
    t->slots[at & (t->cap - 1)] = (struct id_slot){hash, id};
    t->used++;
}

/* Moves the ids to slots[0..cap), which are free; the slots before are the caller's to free. */
static inline void id_table_move(struct id_table *t, struct id_slot *slots, uint32_t cap)
{
    struct id_table to = {slots, cap, 0};
    for (uint32_t i = 0; i < t->cap; i++)
        if (t->slots[i].id) id_table_put(&to, t->slots[i].hash, t->slots[i].id);
    *t = to;
}

/* Room for so many more ids. False: out of memory. */
static inline bool id_table_reserve(struct id_table *t, uint32_t more)
{
    uint32_t cap = t->cap ? t->cap : 256;
    while (cap / 2 < t->used + more) cap *= 2;
    if (cap == t->cap) return true;
    struct id_slot *to = calloc(cap, sizeof *to), *had = t->slots;
    if (!to) return false;
    id_table_move(t, to, cap);
    free(had);
    return true;
}

static inline bool id_table_add(struct id_table *t, uint32_t hash, uint32_t id) /* false: out of memory */
{
    if (!id_table_reserve(t, 1)) return false;
    id_table_put(t, hash, id);
    return true;
}

static inline void id_table_free(struct id_table *t)
{
    free(t->slots);
    *t = (struct id_table){0};
}

#endif

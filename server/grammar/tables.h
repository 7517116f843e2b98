/* Growable arrays, and hash tables of ids. */
#ifndef KVASIR_GRAMMAR_TABLES_H
#define KVASIR_GRAMMAR_TABLES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Grows `at`, of capacity `cap`, to at least `need` items; false: out of memory, nothing changed. */
#define ARRAY_RESERVE(at, cap, need) array_reserve((void **)&(at), &(cap), need, sizeof *(at))
static inline bool array_reserve(void **at, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return true;
    size_t n = *cap ? *cap : 64;
    while (n < need) n *= 2;
    void *to = realloc(*at, n * size);
    if (!to) return false;
    *at = to;
    *cap = n;
    return true;
}

/* Gives back capacity beyond `count`. */
#define ARRAY_FIT(at, cap, count) array_fit((void **)&(at), &(cap), count, sizeof *(at))
static inline void array_fit(void **at, size_t *cap, size_t count, size_t size)
{
    void *to = *cap > count && count ? realloc(*at, count * size) : NULL;
    if (!to) return;
    *at = to;
    *cap = count;
}

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
    uint32_t cap, used;
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

static inline bool id_table_add(struct id_table *t, uint32_t hash, uint32_t id) /* false: out of memory */
{
    if (id_table_grows(t)) {
        struct id_table to = {.cap = t->cap ? 2 * t->cap : 256};
        to.slots = calloc(to.cap, sizeof *to.slots);
        if (!to.slots) return false;
        for (uint32_t i = 0; i < t->cap; i++)
            if (t->slots[i].id) (void)id_table_add(&to, t->slots[i].hash, t->slots[i].id);
        free(t->slots);
        *t = to;
    }
    uint32_t at = hash;
    while (t->slots[at & (t->cap - 1)].id) at++;
    t->slots[at & (t->cap - 1)] = (struct id_slot){hash, id};
    t->used++;
    return true;
}

static inline void id_table_free(struct id_table *t)
{
    free(t->slots);
    *t = (struct id_table){0};
}

#endif

/* See tenants.h. A fixed table: chains through an array, free entries in a chain of their own. */
#include "scheduler/tenants.h"

#include "config/base/assert.h"
#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>

static uint64_t hash_of(const struct tenants *t, uint64_t id)
{
    return hash_mix(t->seed ^ id);
}

static void forget_all(struct tenants *t)
{
    for (uint64_t i = 0; i < t->table.size; i++) t->table.buckets[i] = NULL;
    t->table.count = t->fresh = 0;
    t->free = NULL;
    t->clock = t->latest = 0;
}

enum status tenants_create(uint32_t live_max, uint64_t seed, struct tenants **out, struct err *err)
{
    ASSERT(live_max > 0 && live_max < UINT32_MAX / 8);
    struct tenants *t = calloc(1, sizeof *t);
    if (!t) return err_nomem(err, "the table of tenants");
    t->seed = seed;
    t->live_max = live_max;
    t->cap = 2 * live_max; /* half of it is for debts */
    uint64_t size = 2;
    while (size < t->cap) size *= 2;
    t->all = calloc(t->cap, sizeof *t->all);
    if (!t->all || !hash_create(&t->table, size)) {
        tenants_destroy(t);
        return err_nomem(err, "the table of tenants");
    }
    forget_all(t);
    *out = t;
    return ST_OK;
}

void tenants_destroy(struct tenants *t)
{
    if (!t) return;
    free(t->all);
    free(t->table.buckets);
    free(t);
}

static struct tenant *find(const struct tenants *t, uint64_t id)
{
    struct tenant *x = hash_first(&t->table, hash_of(t, id));
    while (x && x->id != id) x = hash_next(x);
    return x;
}

static void drop(struct tenants *t, struct tenant *x)
{
    hash_remove(&t->table, &x->link);
    x->live = 0;
    x->link.next = t->free;
    t->free = &x->link;
}

/* Frees entries of a full table: debts that the clock has passed, else the smallest one. A walk over the
 * table; at least half of a full one are debts. */
static void drop_debts(struct tenants *t)
{
    struct tenant *least = NULL;
    for (uint32_t i = 0; i < t->fresh; i++) {
        struct tenant *x = &t->all[i];
        if (x->live > 0) continue;
        if (x->time <= t->clock) drop(t, x);
        else if (!least || x->time < least->time) least = x;
    }
    if (t->table.count == t->cap) {
        ASSERT(least);
        drop(t, least);
    }
}

static struct tenant *add(struct tenants *t, uint64_t id)
{
    if (t->table.count == t->cap) drop_debts(t);
    struct tenant *x = t->free ? (struct tenant *)(void *)t->free : &t->all[t->fresh++];
    if (t->free) t->free = t->free->next;
    *x = (struct tenant){.id = id, .time = t->clock};
    hash_insert(&t->table, &x->link, hash_of(t, id));
    return x;
}

void tenants_enter(struct tenants *t, uint64_t id)
{
    ASSERT_CMP(t->live, <, t->live_max);
    struct tenant *x = find(t, id);
    if (!x) x = add(t, id);
    if (x->live++ == 0) {
        x->served = 0;
        t->active++;
    }
    t->live++;
}

void tenants_leave(struct tenants *t, uint64_t id)
{
    struct tenant *x = find(t, id);
    ASSERT(x && x->live > x->running);
    t->active -= --x->live == 0;
    if (--t->live == 0) forget_all(t);
    else if (x->live == 0 && x->time <= t->clock) drop(t, x);
}

void tenants_charge(struct tenants *t, uint64_t id, uint64_t tokens)
{
    struct tenant *x = find(t, id);
    ASSERT(x && x->live > 0);
    x->time = tokens + (x->time > t->clock ? x->time : t->clock);
    x->served += tokens;
    if (x->time > t->latest) t->latest = x->time;
}

void tenants_start(struct tenants *t, uint64_t id)
{
    struct tenant *x = find(t, id);
    ASSERT(x && x->live > x->running);
    x->running++;
}

void tenants_stop(struct tenants *t, uint64_t id)
{
    struct tenant *x = find(t, id);
    ASSERT(x && x->running > 0);
    x->running--;
}

uint64_t tenants_time(const struct tenants *t, uint64_t id)
{
    const struct tenant *x = find(t, id);
    return x && x->time > t->clock ? x->time : t->clock;
}

void tenants_advance(struct tenants *t, uint64_t time)
{
    if (time > t->clock) t->clock = time;
}

void tenants_advance_all(struct tenants *t)
{
    tenants_advance(t, t->latest);
}

uint64_t tenants_clock(const struct tenants *t)
{
    return t->clock;
}

uint32_t tenants_running(const struct tenants *t, uint64_t id)
{
    const struct tenant *x = find(t, id);
    return x ? x->running : 0;
}

uint64_t tenants_served(const struct tenants *t, uint64_t id)
{
    const struct tenant *x = find(t, id);
    return x ? x->served : 0;
}

uint32_t tenants_active(const struct tenants *t)
{
    return t->active;
}

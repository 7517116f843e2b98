/* See tenants.h. A fixed table: chains through an array, free entries in a chain of their own. */
#include "scheduler/tenants.h"

#include "config/base/assert.h"

#include <stdlib.h>

#define NONE UINT32_MAX

struct tenant {
    uint64_t id, time;
    uint64_t served;  /* tokens since it has live sequences */
    uint32_t live;    /* sequences; 0: kept for its debt, or free */
    uint32_t running; /* of these */
    uint32_t chain;   /* next in the bucket, or next free one */
};

struct tenants {
    uint64_t seed, clock, latest; /* latest: the largest time */
    uint32_t cap, bucket_mask;
    uint32_t used;   /* entries in the table */
    uint32_t active; /* of these with live sequences */
    uint32_t fresh;  /* entries [fresh, cap) were never used */
    uint32_t free_head;
    uint32_t live, live_max; /* sequences of all tenants */
    struct tenant *all;      /* [cap] */
    uint32_t *buckets;       /* [bucket_mask + 1] */
};

static uint32_t *bucket_of(const struct tenants *t, uint64_t id)
{
    uint64_t x = id + t->seed;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = ((x ^ (x >> 32)) + t->seed) * 0xd6e8feb86659fd93ull;
    return &t->buckets[(x ^ (x >> 32)) & t->bucket_mask];
}

static void forget_all(struct tenants *t)
{
    for (uint32_t i = 0; i <= t->bucket_mask; i++) t->buckets[i] = NONE;
    t->used = t->fresh = 0;
    t->free_head = NONE;
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
    t->bucket_mask = 1;
    while (t->bucket_mask < t->cap) t->bucket_mask = 2 * t->bucket_mask + 1;
    t->all = calloc(t->cap, sizeof *t->all);
    t->buckets = calloc((size_t)t->bucket_mask + 1, sizeof *t->buckets);
    if (!t->all || !t->buckets) {
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
    free(t->buckets);
    free(t);
}

static struct tenant *find(const struct tenants *t, uint64_t id)
{
    for (uint32_t i = *bucket_of(t, id); i != NONE; i = t->all[i].chain)
        if (t->all[i].id == id) return &t->all[i];
    return NULL;
}

static void drop(struct tenants *t, struct tenant *x)
{
    uint32_t i = (uint32_t)(x - t->all), *at = bucket_of(t, x->id);
    while (*at != i) at = &t->all[*at].chain;
    *at = x->chain;
    x->chain = t->free_head;
    x->live = 0;
    t->free_head = i;
    t->used--;
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
    if (t->used == t->cap) {
        ASSERT(least);
        drop(t, least);
    }
}

static struct tenant *add(struct tenants *t, uint64_t id)
{
    if (t->used == t->cap) drop_debts(t);
    uint32_t i = t->free_head, *at = bucket_of(t, id);
    if (i != NONE) t->free_head = t->all[i].chain;
    else i = t->fresh++;
    t->all[i] = (struct tenant){.id = id, .time = t->clock, .chain = *at};
    *at = i;
    t->used++;
    return &t->all[i];
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

uint32_t tenants_live(const struct tenants *t, uint64_t id)
{
    const struct tenant *x = find(t, id);
    return x ? x->live : 0;
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

uint32_t tenants_count(const struct tenants *t)
{
    return t->used;
}

void tenants_check(const struct tenants *t)
{
    uint32_t used = 0, live = 0, active = 0, unused = 0;
    for (uint32_t b = 0; b <= t->bucket_mask; b++) {
        for (uint32_t i = t->buckets[b]; i != NONE; i = t->all[i].chain, used++) {
            ASSERT_CMP(i, <, t->fresh);
            ASSERT_CMP(bucket_of(t, t->all[i].id) - t->buckets, ==, b);
            ASSERT(find(t, t->all[i].id) == &t->all[i]);
            ASSERT_CMP(t->all[i].running, <=, t->all[i].live);
            ASSERT_CMP(t->all[i].time, <=, t->latest > t->clock ? t->latest : t->clock);
            live += t->all[i].live;
            active += t->all[i].live > 0;
        }
    }
    for (uint32_t i = t->free_head; i != NONE; i = t->all[i].chain) unused++;
    ASSERT_CMP(used, ==, t->used);
    ASSERT_CMP(used + unused, ==, t->fresh);
    ASSERT_CMP(t->fresh, <=, t->cap);
    ASSERT_CMP(live, ==, t->live);
    ASSERT_CMP(active, ==, t->active);
    ASSERT_CMP(live, <=, t->live_max);
}

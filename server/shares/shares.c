/* See shares.h. */
#include "server/shares/shares.h"

#include "config/base/assert.h"

#include <stdlib.h>

struct share *share_take(struct shares *s, uint64_t holder)
{
    struct share **at = &s->buckets[holder % SHARE_BUCKETS], *h = *at;
    while (h && h->holder != holder) h = h->next;
    if (!h) {
        h = calloc(1, sizeof *h);
        if (!h) {
            h = &s->rest;
        } else {
            h->next = *at;
            *at = h;
        }
        h->holder = holder;
        h->of = s;
        /* Whoever comes isn't before those that wait already. */
        for (int i = 0; i < SHARE_POOLS; i++) h->turn[i] = s->turn[i];
    }
    h->users++;
    return h;
}

void share_release(struct share *h)
{
    if (!h || --h->users || h == &h->of->rest) return;
    struct share **at = &h->of->buckets[h->holder % SHARE_BUCKETS];
    for (int i = 0; i < SHARE_POOLS; i++) ASSERT_CMP(share_held(h, (enum share_pool)i), ==, (size_t)0);
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    free(h);
}

void share_add(struct share *h, enum share_pool pool, size_t more)
{
    atomic_fetch_add(&h->held[pool], more);
    atomic_fetch_add(&h->of->held[pool], more);
}

void share_sub(struct share *h, enum share_pool pool, size_t less)
{
    ASSERT_CMP(share_held(h, pool), >=, less);
    atomic_fetch_sub(&h->held[pool], less);
    atomic_fetch_sub(&h->of->held[pool], less);
}

size_t share_held(const struct share *h, enum share_pool pool)
{
    return atomic_load(&h->held[pool]);
}

size_t shares_held(const struct shares *s, enum share_pool pool)
{
    return atomic_load(&s->held[pool]);
}

const struct share *shares_most(const struct shares *s, enum share_pool pool)
{
    const struct share *most = &s->rest;
    for (int i = 0; i < SHARE_BUCKETS; i++)
        for (const struct share *h = s->buckets[i]; h; h = h->next)
            if (share_held(h, pool) > share_held(most, pool)) most = h;
    return most;
}

static bool admits(size_t own, size_t all, size_t more, size_t most, size_t reserve)
{
    if (all <= most && more <= most - all) return true;
    return all <= most + reserve && own + more <= most + reserve - all;
}

bool share_admits(const struct share *h, enum share_pool pool, size_t more, size_t most, size_t reserve)
{
    return admits(share_held(h, pool), shares_held(h->of, pool), more, most, reserve);
}

bool share_try(struct share *h, enum share_pool pool, size_t more, size_t most, size_t reserve)
{
    size_t own = atomic_fetch_add(&h->held[pool], more), all = atomic_fetch_add(&h->of->held[pool], more);
    if (admits(own, all, more, most, reserve)) return true;
    share_sub(h, pool, more);
    share_refused(h, pool);
    return false;
}

bool share_before(const struct share *a, const struct share *b, enum share_pool pool)
{
    size_t x = share_held(a, pool), y = share_held(b, pool);
    return x != y ? x < y : a->turn[pool] < b->turn[pool];
}

void share_serve(struct share *h, enum share_pool pool)
{
    h->turn[pool] = ++h->of->turn[pool];
    share_add(h, pool, 1);
}

void share_refused(const struct share *h, enum share_pool pool)
{
    atomic_fetch_add(&h->of->refused[pool], 1);
}

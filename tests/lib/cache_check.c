/* Invariants of the caches and the tables below the scheduler: walks everything, aborts on a broken one. */
#include "tests/lib/cache_check.h"

#include "config/base/assert.h"
#include "scheduler/cache/tier_internal.h"

#include <stdlib.h>

/* Marks the slab's free blocks in `is_free`; counts them. */
static uint32_t walk_free(const struct kv_blocks *k, uint32_t s, bool *is_free)
{
    const struct slab *b = &k->slabs[s];
    const uint32_t *live = k->live + (size_t)s * k->refs_per_slab;
    uint32_t per = k->per_slab[b->group], chain = 0;
    for (uint32_t i = 0; i < per; i++) is_free[i] = i >= b->fresh;
    for (uint32_t i = b->free_head; i; i = live[i - 1]) {
        ASSERT_CMP(++chain, <=, per);
        ASSERT(!is_free[i - 1]);
        is_free[i - 1] = true;
    }
    return chain + (per - b->fresh);
}

void kvb_check(const struct kv_blocks *k)
{
    uint64_t used[ENGINE_GROUPS_MAX] = {0}, live[ENGINE_GROUPS_MAX] = {0};
    uint32_t held[ENGINE_GROUPS_MAX] = {0}, idle[ENGINE_GROUPS_MAX] = {0}, partial[ENGINE_GROUPS_MAX] = {0},
             free_slabs = 0;
    bool *is_free = calloc(k->refs_per_slab, sizeof *is_free);
    ASSERT(is_free);
    for (uint32_t s = 0; s < k->slab_count; s++) {
        const struct slab *b = &k->slabs[s];
        if (b->group == KVB_NO_GROUP) {
            free_slabs++;
            continue;
        }
        uint32_t alive = 0;
        ASSERT(b->used > 0 && b->used <= k->per_slab[b->group]);
        ASSERT_CMP(b->used + walk_free(k, s, is_free), ==, k->per_slab[b->group]);
        for (uint32_t i = 0; i < k->per_slab[b->group]; i++) {
            size_t at = (size_t)s * k->refs_per_slab + i;
            if (is_free[i]) continue;
            ASSERT(k->live[at] + k->cached[at] > 0);
            if (k->live[at]) alive++;
        }
        ASSERT_CMP(alive, ==, b->live);
        held[b->group]++;
        used[b->group] += b->used;
        live[b->group] += b->live;
        if (b->live == 0) idle[b->group]++;
        if (b->used < k->per_slab[b->group]) partial[b->group]++;
    }
    free(is_free);
    ASSERT_CMP(free_slabs, ==, k->free_slabs);
    for (uint32_t g = 0; g < k->group_count; g++) {
        ASSERT_CMP(used[g], ==, k->used_blocks[g]);
        ASSERT_CMP(live[g], ==, k->live_blocks[g]);
        ASSERT_CMP(held[g], ==, k->slabs_held[g]);
        ASSERT_CMP(idle[g], ==, k->slabs_idle[g]);
        uint32_t n = 0;
        for (const struct slab *b = k->partial[g].head; b; b = b->next) ASSERT_CMP(++n, <=, held[g]);
        ASSERT_CMP(n, ==, partial[g]);
    }
}

static void check_entry(const struct feature_entry *f)
{
    ASSERT((f->features == NULL) == (f->state == FEATURES_EMPTY || f->state == FEATURES_LOADING));
    ASSERT_CMP(f->bytes, ==, f->features ? engine_features_bytes(f->features) : 0);
    ASSERT(f->holders > 0 || (f->state == FEATURES_DONE && !f->private));
}

void features_check(const struct feature_cache *c)
{
    uint64_t entries = 0, idle = 0, holds = 0, bytes = 0;
    for (uint64_t i = 0; i < c->table.size; i++) {
        for (const struct feature_entry *f = hash_first(&c->table, i); f; f = hash_next(f)) {
            check_entry(f);
            ASSERT(!f->private);
            ASSERT_CMP(f->link.hash & (c->table.size - 1), ==, i);
            ASSERT(features_find(c, f->salt, f->key) == f);
            entries++;
            holds += f->holders;
            bytes += f->bytes;
            idle += f->holders == 0;
        }
    }
    for (const struct feature_entry *f = c->privates.head; f; f = f->next) {
        check_entry(f);
        ASSERT(f->private);
        ASSERT_CMP(f->holders, ==, 1);
        entries++;
        holds++;
        bytes += f->bytes;
    }
    uint64_t listed = 0;
    const struct feature_entry *last = NULL;
    for (const struct feature_entry *f = c->idle.head; f; last = f, f = f->next, listed++) {
        ASSERT_CMP(f->holders, ==, 0);
        ASSERT(f->prev == last);
    }
    ASSERT(c->idle.tail == last);
    ASSERT_CMP(idle, ==, listed);
    ASSERT_CMP(entries, ==, c->st.entries);
    ASSERT_CMP(holds, ==, c->st.holds);
    ASSERT_CMP(bytes, ==, c->st.bytes);
    ASSERT(bytes <= c->bytes_max || idle == 0);
    ASSERT_CMP(c->st.hits, <=, c->st.queries);
}

static bool useless(const struct tier_node *n)
{
    bool data = n->child || n->busy;
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) data |= n->data[g] != NULL;
    return !data;
}

void tier_check(const struct tier *t)
{
    uint64_t nodes = 0, records = 0, host = 0, disk = 0;
    for (uint64_t i = 0; i < t->nodes.size; i++) {
        for (const struct tier_node *n = hash_first(&t->nodes, i); n; n = hash_next(n), nodes++) {
            ASSERT(!n->parent == !n->items && (!n->parent || !t->ready || !useless(n)));
            if (n->parent && n->parent->items) ASSERT_CMP(n->items->start, ==, n->parent->items->end);
            if (n->name) ASSERT(n->name->node == n && n->name->id);
            for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) {
                const struct tier_record *r = n->data[g];
                if (!r) continue;
                ASSERT(r->node == n && r->group == g && (r->id || r->host));
                records++;
            }
            records += n->name && n->name->group == TIER_NO_GROUP;
        }
    }
    for (uint64_t i = 0; i < t->by_key.size; i++)
        for (struct hash_link *l = hash_first(&t->by_key, i); l; l = l->next, records++)
            ASSERT(!tier__image_of(l)->node && (tier__image_of(l)->id || tier__image_of(l)->host));
    for (uint64_t i = 0; i < t->by_id.size; i++)
        for (const struct tier_record *r = hash_first(&t->by_id, i); r; r = hash_next(r)) disk += r->bytes;
    for (const struct tier_record *r = t->in_host.head; r; r = r->next) host += r->bytes;
    ASSERT_CMP(nodes, ==, t->nodes.count);
    ASSERT_CMP(records, ==, t->stats.records);
    ASSERT_CMP(host, ==, t->stats.host_bytes);
    ASSERT_CMP(disk, ==, t->stats.disk_bytes);
}

void tenants_check(const struct tenants *t)
{
    uint32_t used = 0, live = 0, active = 0, unused = 0;
    for (uint64_t b = 0; b < t->table.size; b++) {
        for (const struct tenant *x = hash_first(&t->table, b); x; x = hash_next(x), used++) {
            const struct tenant *found = hash_first(&t->table, x->link.hash);
            ASSERT(x >= t->all && x < t->all + t->fresh);
            ASSERT_CMP(x->link.hash & (t->table.size - 1), ==, b);
            while (found && found->id != x->id) found = hash_next(found);
            ASSERT(found == x);
            ASSERT_CMP(x->running, <=, x->live);
            ASSERT_CMP(x->time, <=, t->latest > t->clock ? t->latest : t->clock);
            live += x->live;
            active += x->live > 0;
        }
    }
    for (const struct hash_link *l = t->free; l; l = l->next) unused++;
    ASSERT_CMP(used, ==, t->table.count);
    ASSERT_CMP(used + unused, ==, t->fresh);
    ASSERT_CMP(t->fresh, <=, t->cap);
    ASSERT_CMP(live, ==, t->live);
    ASSERT_CMP(active, ==, t->active);
    ASSERT_CMP(live, <=, t->live_max);
}

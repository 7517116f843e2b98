/* See kv_blocks.h. */
#include "scheduler/cache/kv_blocks.h"

#include "config/base/assert.h"
#include "config/base/list.h"

#include <stdlib.h>

/* A slab should be small: memory moves between groups only when a whole one is empty, and the prefix cache's
 * blocks are scattered. One of the largest blocks is best, unless the other groups' blocks don't divide it:
 * then enough to waste less than WASTE_MAX of it. */
enum { SLABS_WANTED = 64, BLOCKS_PER_SLAB_MAX = 8, WASTE_MAX_PERCENT = 2 };

/* Largest blocks per slab; see above. */
static uint64_t slab_blocks(const struct engine_caps *caps, uint64_t grains, uint32_t largest)
{
    uint64_t most = grains / SLABS_WANTED / largest, best = 1, best_waste = UINT64_MAX;
    if (most > BLOCKS_PER_SLAB_MAX) most = BLOCKS_PER_SLAB_MAX;
    for (uint64_t per = 1; per <= most; per++) {
        uint64_t slab = per * largest, waste = 0;
        for (uint32_t g = 0; g < caps->group_count; g++) {
            uint64_t rest = slab % caps->groups[g].block_grains;
            if (rest * 100 / slab > waste) waste = rest * 100 / slab;
        }
        if (waste >= best_waste) continue;
        best = per;
        best_waste = waste;
        if (waste < WASTE_MAX_PERCENT) break;
    }
    return best;
}

enum status kvb_create(const struct engine_caps *caps, struct kv_blocks **out, struct err *err)
{
    uint32_t largest = 0, smallest = UINT32_MAX, least = caps->group_count; /* blocks of the shortest one */
    if (caps->group_count == 0 || caps->group_count > ENGINE_GROUPS_MAX)
        return err_set(err, ST_INVALID, "no KV groups");
    for (uint32_t g = 0; g < caps->group_count; g++) {
        uint32_t u = caps->groups[g].block_grains;
        ASSERT(u > 0);
        if (u > largest) largest = u;
        if (u < smallest) smallest = u;
        least += caps->groups[g].recurrent; /* a state that is read, and one that is written */
    }
    uint64_t grains = caps->arena_grains < UINT32_MAX ? caps->arena_grains : UINT32_MAX - 1u;
    if (grains < (uint64_t)largest * least)
        return err_set(err, ST_TOO_LARGE,
                       "the KV arena of %llu bytes (--kv-memory) is too small for any sequence",
                       (unsigned long long)grains * caps->grain_bytes);
    uint64_t per = slab_blocks(caps, grains, largest);
    struct kv_blocks *k = calloc(1, sizeof *k);
    if (!k) return err_nomem(err, "the block table");
    k->group_count = caps->group_count;
    k->slab_grains = (uint32_t)per * largest;
    k->slab_count = (uint32_t)(grains / k->slab_grains);
    k->refs_per_slab = k->slab_grains / smallest;
    k->slabs = calloc(k->slab_count, sizeof *k->slabs);
    k->live = calloc((size_t)k->slab_count * k->refs_per_slab, sizeof *k->live);
    k->cached = calloc((size_t)k->slab_count * k->refs_per_slab, sizeof *k->cached);
    if (!k->slabs || !k->live || !k->cached) {
        kvb_destroy(k);
        return err_nomem(err, "the block table");
    }
    for (uint32_t g = 0; g < k->group_count; g++) {
        k->block_grains[g] = caps->groups[g].block_grains;
        k->per_slab[g] = k->slab_grains / k->block_grains[g];
    }
    for (uint32_t s = k->slab_count; s-- > 0;) {
        k->slabs[s].group = KVB_NO_GROUP;
        LIST_LINK(&k->free, NULL, &k->slabs[s]);
    }
    k->free_slabs = k->slab_count;
    *out = k;
    return ST_OK;
}

void kvb_destroy(struct kv_blocks *k)
{
    if (!k) return;
    free(k->slabs);
    free(k->live);
    free(k->cached);
    free(k);
}

/* Slabs for what is needed of a group beyond `have` blocks. */
static uint64_t slabs_for(const struct kv_blocks *k, uint32_t g, uint64_t need, uint64_t have)
{
    return need > have ? (need - have + k->per_slab[g] - 1) / k->per_slab[g] : 0;
}

bool kvb_can_allocate(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX])
{
    uint64_t slabs = 0;
    for (uint32_t g = 0; g < k->group_count; g++)
        slabs += slabs_for(k, g, need[g], (uint64_t)k->slabs_held[g] * k->per_slab[g] - k->used_blocks[g]);
    return slabs <= k->free_slabs;
}

bool kvb_can_reclaim(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX])
{
    uint64_t slabs = 0, idle = 0;
    for (uint32_t g = 0; g < k->group_count; g++) {
        /* All live blocks are in slabs that are not idle. */
        uint64_t live = (uint64_t)(k->slabs_held[g] - k->slabs_idle[g]) * k->per_slab[g];
        slabs += slabs_for(k, g, need[g], live - k->live_blocks[g]);
        idle += k->slabs_idle[g];
    }
    return slabs <= k->free_slabs + idle;
}

bool kvb_could_ever_allocate(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX])
{
    uint64_t slabs = 0;
    for (uint32_t g = 0; g < k->group_count; g++) slabs += slabs_for(k, g, need[g], 0);
    return slabs <= k->slab_count;
}

uint32_t kvb_allocate(struct kv_blocks *k, uint32_t group)
{
    ASSERT_CMP(group, <, k->group_count);
    struct slab *b = k->partial[group].head;
    if (!b) {
        b = k->free.head;
        if (!b) return ENGINE_NO_BLOCK;
        LIST_UNLINK(&k->free, b);
        k->free_slabs--;
        *b = (struct slab){.group = (uint8_t)group};
        k->slabs_held[group]++;
        k->slabs_idle[group]++;
        LIST_LINK(&k->partial[group], NULL, b);
    }
    uint32_t s = (uint32_t)(b - k->slabs);
    size_t at = (size_t)s * k->refs_per_slab;
    uint32_t idx;
    if (b->free_head) {
        idx = b->free_head - 1;
        b->free_head = k->live[at + idx];
    } else {
        idx = b->fresh++;
    }
    ASSERT_MSG(idx < k->per_slab[group] && (idx + 1 == b->fresh || k->cached[at + idx] == KVB_FREE),
               "block %u of slab %u, group %u, is allocated and not free", idx, s, group);
    k->live[at + idx] = 1;
    k->cached[at + idx] = 0;
    if (b->live++ == 0) k->slabs_idle[group]--;
    b->used++;
    k->used_blocks[group]++;
    k->live_blocks[group]++;
    if (b->used == k->per_slab[group]) LIST_UNLINK(&k->partial[group], b);
    return s * k->slab_grains + idx * k->block_grains[group];
}

/* Index of a block in `live` and `cached`. */
static size_t find(const struct kv_blocks *k, uint32_t group, uint32_t block_offset, uint32_t *slab,
                   uint32_t *idx)
{
    uint32_t s = block_offset / k->slab_grains, in = block_offset % k->slab_grains;
    ASSERT_MSG(s < k->slab_count && k->slabs[s].group == group && in % k->block_grains[group] == 0,
               "group %u has no block at unit %u", group, block_offset);
    *slab = s;
    *idx = in / k->block_grains[group];
    size_t at = (size_t)s * k->refs_per_slab + *idx;
    ASSERT_MSG(*idx < k->slabs[s].fresh && k->cached[at] != KVB_FREE,
               "the block of group %u at unit %u is free", group, block_offset);
    return at;
}

void kvb_acquire(struct kv_blocks *k, uint32_t group, uint32_t block_offset, enum kvb_holder who)
{
    uint32_t s, idx;
    size_t at = find(k, group, block_offset, &s, &idx);
    ASSERT(k->live[at] < UINT32_MAX && k->cached[at] < KVB_FREE - 1);
    if (who == KVB_CACHED) {
        k->cached[at]++;
    } else if (k->live[at]++ == 0) {
        k->live_blocks[group]++;
        if (k->slabs[s].live++ == 0) k->slabs_idle[group]--;
    }
}

static void give_back(struct kv_blocks *k, uint32_t group, uint32_t s, uint32_t idx)
{
    struct slab *b = &k->slabs[s];
    bool was_full = b->used == k->per_slab[group];
    k->live[(size_t)s * k->refs_per_slab + idx] = b->free_head;
    k->cached[(size_t)s * k->refs_per_slab + idx] = KVB_FREE;
    b->free_head = idx + 1;
    b->used--;
    k->used_blocks[group]--;
    if (was_full) LIST_LINK(&k->partial[group], NULL, b);
    if (b->used == 0) {
        LIST_UNLINK(&k->partial[group], b);
        b->group = KVB_NO_GROUP;
        k->slabs_held[group]--;
        k->slabs_idle[group]--;
        LIST_LINK(&k->free, NULL, b);
        k->free_slabs++;
    }
}

void kvb_release(struct kv_blocks *k, uint32_t group, uint32_t block_offset, enum kvb_holder who)
{
    uint32_t s, idx;
    size_t at = find(k, group, block_offset, &s, &idx);
    uint32_t *held = who == KVB_CACHED ? &k->cached[at] : &k->live[at];
    ASSERT_MSG(
        *held > 0,
        "the %s can't release the block of group %u at unit %u: %u sequences hold it, the cache %u times",
        who == KVB_CACHED ? "cache" : "sequence", group, block_offset, k->live[at], k->cached[at]);
    if (--*held == 0 && who == KVB_LIVE) {
        k->live_blocks[group]--;
        if (--k->slabs[s].live == 0) k->slabs_idle[group]++;
    }
    if (k->live[at] + k->cached[at] == 0) give_back(k, group, s, idx);
}

uint32_t kvb_references(const struct kv_blocks *k, uint32_t group, uint32_t block_offset, enum kvb_holder who)
{
    uint32_t s, idx;
    size_t at = find(k, group, block_offset, &s, &idx);
    return who == KVB_CACHED ? k->cached[at] : k->live[at];
}

uint64_t kvb_used_grains(const struct kv_blocks *k)
{
    uint64_t n = 0;
    for (uint32_t g = 0; g < k->group_count; g++) n += k->used_blocks[g] * k->block_grains[g];
    return n;
}

/* KV block ids on one arena: which grains each group uses, and who holds them. Pure data structure: no
 * tensors, no clock.
 *
 * A block is held by sequences (KVB_LIVE) and by the prefix cache (KVB_CACHED), each any number of times, and
 * is free when it has no holder:
 *   free + cached (held by the cache alone) + live (held by a sequence, and maybe by the cache too) = total.
 *
 * The arena is cut into slabs of equal size. A slab is free or belongs to one group and then holds `per_slab`
 * blocks of that group:
 *
 *   arena   | slab 0: group 0       | slab 1: group 1       | slab 2: free          | ...
 *            [blk][blk][blk][..tail] [  blk  ][  blk  ][tail]
 *
 * A block's id is its offset in grains; that is what block tables hold. A slab that becomes empty is free for
 * any group again, so memory moves between groups with the load and there is no ratio to tune. Used by the
 * engine thread only. */
#ifndef KVASIR_KV_BLOCKS_H
#define KVASIR_KV_BLOCKS_H

#include "config/base/status.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

/* The arena; for kv_blocks.c and tests/lib. */
#define KVB_NO_GROUP UINT8_MAX
#define KVB_FREE     UINT32_MAX
struct slab {
    struct slab *prev,
        *next;          /* list of its group's slabs that have a free block, or the list of free slabs */
    uint32_t used;      /* blocks with holders */
    uint32_t live;      /* of these held by sequences */
    uint32_t fresh;     /* blocks [fresh, per_slab) were never handed out since the slab was assigned */
    uint32_t free_head; /* chain of returned blocks: index + 1, 0 = none; links are kept in `live` of the free
                           blocks */
    uint8_t group;
};

struct slab_list {
    struct slab *head, *tail;
};

struct kv_blocks {
    uint32_t group_count;
    uint32_t block_grains[ENGINE_GROUPS_MAX];
    uint32_t per_slab[ENGINE_GROUPS_MAX];
    struct slab_list free, partial[ENGINE_GROUPS_MAX]; /* partial: those of the group with a free block */
    uint64_t used_blocks[ENGINE_GROUPS_MAX], live_blocks[ENGINE_GROUPS_MAX]; /* used: live + cached */
    uint32_t slabs_held[ENGINE_GROUPS_MAX], slabs_idle[ENGINE_GROUPS_MAX]; /* idle: has cached blocks only */
    uint32_t slab_grains, slab_count, free_slabs, refs_per_slab;
    struct slab *slabs;
    uint32_t *live;   /* [slab_count * refs_per_slab]: sequences that hold the block; link of a free one */
    uint32_t *cached; /* the same shape: how often the prefix cache holds it; KVB_FREE */
};

enum status kvb_create(const struct engine_caps *caps, struct kv_blocks **out, struct err *err) KV_MUST_CHECK;
void kvb_destroy(struct kv_blocks *k);

/* Whether `need[g]` more blocks of every group can be allocated now, together. Changes nothing. */
bool kvb_can_allocate(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX]);
/* The same for an empty arena: can this ever fit? */
bool kvb_could_ever_allocate(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX]);
/* The same if everything that only the cache holds were evicted first. */
bool kvb_can_reclaim(const struct kv_blocks *k, const uint32_t need[ENGINE_GROUPS_MAX]);

enum kvb_holder { KVB_LIVE = 0, KVB_CACHED = 1 };
/* A block held once by a sequence, or ENGINE_NO_BLOCK. O(1). */
uint32_t kvb_allocate(struct kv_blocks *k, uint32_t group);
void kvb_acquire(struct kv_blocks *k, uint32_t group, uint32_t block_offset,
                 enum kvb_holder who); /* the block must have a holder */
void kvb_release(struct kv_blocks *k, uint32_t group, uint32_t block_offset,
                 enum kvb_holder who); /* frees it when the last holder releases it */
uint32_t kvb_references(const struct kv_blocks *k, uint32_t group, uint32_t block_offset,
                        enum kvb_holder who);

uint64_t kvb_used_grains(const struct kv_blocks *k);

#endif

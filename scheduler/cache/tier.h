/* What lies below the arena: KV blocks, states of recurrent groups and encoded images in host memory and on
 * disk. Engine thread only; copies to and from the engine, never waits for the disk (cache_store.h).
 *
 * The index is a tree of blocks: a node is one block of a path, the items of [start, end) with start a
 * multiple of the block size. Whole blocks have children; a partly filled one ends a path, beside whole ones
 * with the same beginning. Items are compared in full; one root per salt. A node is named by a record; its
 * data are records, one per group: the block up to `end`, or the recurrent group's state after `end` items. A
 * record may be missing, a node without data tells only the items of those below it.
 *
 *   evicted -> host memory (bounded, the oldest leave first) -> disk (bounded by the store) */
#ifndef KVASIR_TIER_H
#define KVASIR_TIER_H

#include "scheduler/cache/radix_cache.h"

#include <stdbool.h>
#include <stdint.h>

struct tier;
struct cache_store;
struct tier_record; /* one block, state or image below the arena */

struct tier_options {
    struct cache_store *store;       /* taken, also on an error; NULL: host memory only */
    uint64_t host_bytes;             /* of host memory above the disk, allocated at once; 0: none */
    uint64_t seed;                   /* of hash functions */
    struct kv_event_sink event_sink; /* gets whole blocks, if its blocks have the cache's size */
};

enum status tier_create(struct engine *e, const struct engine_caps *caps, const struct tier_options *opt,
                        struct tier **out, struct err *err) KV_MUST_CHECK;
void tier_destroy(struct tier *t); /* NULL is fine; nothing writes into a tier_read afterwards */
/* Takes the store's events; true: something changed. */
bool tier_poll(struct tier *t);
bool tier_ready(const struct tier *t); /* all that earlier processes left is known */

/* ---- writing: a radix_sink's keep and a feature cache's; dropped where there is no room for a copy ---- */
void tier_keep(void *tier, const struct radix_view *path, const struct radix_run runs[ENGINE_GROUPS_MAX]);
void tier_keep_features(void *tier, const uint8_t salt[32], const uint8_t key[32],
                        const struct engine_features *f);
/* From now on copies wait for room, `ms` in all: for what is written at the end. */
void tier_drain(struct tier *t, uint32_t ms);
void tier_announce(void *tier);  /* a radix_sink's announce */
void tier_flush(struct tier *t); /* all to the disk, in the time that is left */
void tier_reset(struct tier *t); /* forgets and deletes everything */

/* ---- reading ---- */
/* What there is of a view's items; valid until the next call of any function here. False: nothing. */
bool tier_find(struct tier *t, const struct radix_view *v, struct radix_lower *lower);
/* Of the last tier_find: the record of block `index`, or of the state at position `index`. */
struct tier_record *tier_found(struct tier *t, uint32_t group, uint32_t index);
bool tier_in_host(const struct tier_record *record); /* else it is on the disk */
struct tier_record *tier_find_features(struct tier *t, const uint8_t salt[32], const uint8_t key[32]);
void tier_drop_features(struct tier *t, const uint8_t salt[32], const uint8_t key[32]); /* if there are any */

/* Adds nodes that only this tier has to a snapshot of the radix tree of the same salt; in bounded time. */
void tier_snapshot(struct tier *t, const struct radix_cache *c, const uint8_t salt[32],
                   struct cache_snapshot *out);

/* One record on its way into host memory. */
struct tier_read {
    void *bytes; /* [size] */
    uint64_t size;
    struct tier_record *record; /* whose host memory that is; NULL: it is malloc'd */
    enum tier_read_state { TIER_READING = 0, TIER_DONE, TIER_LOST } state;
    bool from_disk;
};
/* Starts it; may be done at once. `r` must stay until it is no longer TIER_READING, and is ended then. */
void tier_read(struct tier *t, struct tier_record *record, struct tier_read *r);
void tier_read_end(struct tier *t, struct tier_read *r);           /* frees its bytes */
void tier_touch(struct tier *t, const struct tier_record *record); /* just used, with those above it */

struct tier_stats {
    uint64_t host_bytes, disk_bytes, records; /* of this checkpoint's; as the index has them */
    uint64_t written_blocks, dropped_blocks;  /* copied on eviction; not copied for lack of room */
    bool disk_off;
};
void tier_stats(const struct tier *t, struct tier_stats *out);

#endif

/* What scheduler/offload.c is loading; also read by tests/lib. */
#ifndef KVASIR_OFFLOAD_H
#define KVASIR_OFFLOAD_H

#include "scheduler/cache/tier.h"
#include "scheduler/internal.h"

struct block_load {
    uint32_t group, index;
    struct tier_read read;
};

struct load {
    struct load *next;
    struct sequence *q;     /* NULL: given up; freed when its reads have ended */
    uint32_t known, length; /* tokens that can be reused without it, and with it */
    bool done;              /* published; pinned until its sequence is admitted */
    enum cache_tier tier;
    struct radix_pin pin;
    struct block_table tables[ENGINE_GROUPS_MAX]; /* a KVB_LIVE hold of each block that is there */
    struct block_load *blocks;                    /* [count] in the order of their positions */
    uint32_t count, asked, copied;
    uint64_t disk_bytes, host_bytes; /* of all of them */
    uint64_t ahead;                  /* in buffers */
    uint64_t started_us, limit_us;
};

struct image_load {
    struct image_load *next;
    struct feature_entry *entry; /* NULL: given up */
    uint8_t salt[32], key[32];
    uint64_t started_us;
    struct tier_read read;
};

struct offload {
    struct tier *tier;
    struct load *loads;
    struct image_load *images;
    double us_per_byte;
    uint64_t ended; /* grows when a load is done, given up or freed */
    uint64_t started_us;
};

#endif

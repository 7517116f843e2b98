/* Invariants of the radix cache. */
#ifndef KVASIR_TEST_RADIX_CHECK_H
#define KVASIR_TEST_RADIX_CHECK_H

#include "scheduler/cache/radix_cache.h"

/* Checks everything; aborts on a broken invariant (structure, items, block counts against kvb_references). */
void radix_check(const struct radix_cache *c);
/* Calls fn for every (group, block offset, position range [from, to) of items) that a node claims, for tests
 * that watch writes. */
void radix_each_claim(const struct radix_cache *c,
                      void (*fn)(void *arg, uint32_t group, uint32_t block_offset, uint32_t from,
                                 uint32_t to),
                      void *arg);

#endif

/* Aborts with a message when a structure below the scheduler is broken: a count, a list, a bound. */
#ifndef KVASIR_TEST_CACHE_CHECK_H
#define KVASIR_TEST_CACHE_CHECK_H

#include "scheduler/cache/feature_cache.h"
#include "scheduler/cache/kv_blocks.h"
#include "scheduler/cache/tier.h"
#include "scheduler/tenants.h"

void kvb_check(const struct kv_blocks *k);
void features_check(const struct feature_cache *c);
void tier_check(const struct tier *t);
void tenants_check(const struct tenants *t);

#endif

/* A router's view of its servers' prefix caches, from events alone; keys are recomputed from tokens and
 * images, as in indexers: the events' hashes only name stored blocks. Aborts if a stream contradicts itself:
 * a block stored twice, or removed without being stored. Not thread-safe. */
#ifndef KVASIR_TEST_BLOCK_INDEX_H
#define KVASIR_TEST_BLOCK_INDEX_H

#include "engine/prompt/prompt.h"
#include "scheduler/scheduler.h"

struct block_index;

struct block_index *block_index_new(uint32_t block_tokens, uint32_t servers);
void block_index_free(struct block_index *x);
/* For the scheduler of that server; x must outlive it. */
struct kv_event_sink block_index_sink(struct block_index *x, uint32_t server);

/* The keys of a prompt's whole blocks: count / block_tokens. */
void block_index_keys(const struct block_index *x, const uint32_t *tokens, uint32_t count,
                      const struct prompt_span *spans, uint32_t span_count, const uint8_t salt[32],
                      uint64_t *keys);
bool block_index_holds(const struct block_index *x, uint32_t server, uint32_t group, uint64_t key);
/* How many of the first `count` keys, from the beginning on. */
uint32_t block_index_overlap(const struct block_index *x, uint32_t server, uint32_t group,
                             const uint64_t *keys, uint32_t count);
uint64_t block_index_blocks(const struct block_index *x, uint32_t server); /* in all groups */
uint64_t block_index_stored(const struct block_index *x, uint32_t server); /* so far, of full attention */

#endif

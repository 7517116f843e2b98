/* Encoded images by (salt, content key): an image after a different prefix is prefilled again but not encoded
 * again. Engine thread only. Knows engine features and byte counts; no sequences, prompts or clock.
 *
 * An entry is held by the live sequences that need it and is never evicted while it is held:
 *
 *   get --> EMPTY --begin(pixels)--> ENCODING --encode...--> DONE      <-- get: a hit
 *             |--load--> LOADING --loaded--> DONE, or EMPTY again
 *             |                         |                      |
 *      last release: freed       last release: freed     last release: idle, newest end of the LRU list
 *
 * The bytes of all entries together are bounded; only idle ones are evicted, oldest first, so entries in use
 * may exceed the limit (then nothing is idle). Everything is O(1): a chained hash table under a secret seed,
 * the list intrusive. Keys are compared in full. */
#ifndef KVASIR_FEATURE_CACHE_H
#define KVASIR_FEATURE_CACHE_H

#include "config/base/status.h"
#include "engine/engine.h"
#include "config/base/hash_table.h"

#include <stdbool.h>
#include <stdint.h>

enum feature_state {
    FEATURES_EMPTY = 0, /* only a key: its pixels are needed */
    FEATURES_ENCODING,
    FEATURES_LOADING, /* on their way from a lower tier */
    FEATURES_DONE,
};

typedef void features_keep(void *arg, const uint8_t salt[32], const uint8_t key[32],
                           const struct engine_features *f);
struct features_stats {
    uint64_t queries, hits;
    uint64_t evictions; /* idle entries evicted because of the limit or for memory; a reset does not count */
    uint64_t bytes;     /* of all entries, idle or not */
    uint64_t entries;
    uint64_t holds; /* holders of all entries */
};

/* The table; for feature_cache.c and tests/lib. */
struct feature_entry {
    struct hash_link link;             /* but private ones */
    struct feature_entry *prev, *next; /* list of idle ones, or of private ones; neither: both NULL */
    uint8_t salt[32], key[32];
    struct engine_features *features; /* NULL exactly when EMPTY or LOADING */
    uint64_t bytes;                   /* as last counted: the engine frees scratch when the encode ends */
    uint32_t holders;
    enum feature_state state;
    bool private;
};

struct entry_list {
    struct feature_entry *head, *tail;
};

struct feature_cache {
    struct engine *engine;
    uint64_t bytes_max, seed;
    struct hash_table table;
    struct entry_list idle; /* oldest first */
    struct entry_list privates;
    features_keep *keep; /* NULL: none */
    void *keep_arg;
    struct features_stats st;
};

/* The engine is borrowed and must outlive the cache. bytes_max 0: nothing idle is kept, live sequences still
 * share. ST_NOMEM. */
enum status features_create(struct engine *e, uint64_t bytes_max, uint64_t seed, struct feature_cache **out,
                            struct err *err) KV_MUST_CHECK;
void features_destroy(struct feature_cache *c); /* NULL is fine; nothing may be held */

/* Finds or creates the entry and adds a holder. Counts a query, and a hit if it exists in any state (the work
 * is shared). NULL: out of memory. */
struct feature_entry *features_get(struct feature_cache *c, const uint8_t salt[32], const uint8_t key[32]);
/* An entry that get never finds and that is freed with its holder, for images whose content key is uncertain
 * or that must not be shared. */
struct feature_entry *features_get_private(struct feature_cache *c);
/* Adds no holder, counts nothing, keeps the order; the result is valid until the next call. NULL: not found.
 */
struct feature_entry *features_find(const struct feature_cache *c, const uint8_t salt[32],
                                    const uint8_t key[32]);
void features_release(struct feature_cache *c, struct feature_entry *f); /* releases one holder */

enum feature_state features_state(const struct feature_entry *f);
const struct engine_features *
features_of(const struct feature_entry *f); /* of a DONE entry that the caller holds */

/* EMPTY -> ENCODING; copies the pixels. adapter: as engine_features_create has it. If memory is short, idle
 * entries are evicted first. Errors of engine_features_create leave it EMPTY. */
enum status features_begin(struct feature_cache *c, struct feature_entry *f, const struct image_u8 *pixels,
                           const struct adapter *adapter, struct err *err) KV_MUST_CHECK;
/* Runs `layers` more layers of the tower (0 = all); the state says whether it is DONE. Errors of
 * engine_features_step: EMPTY again. */
enum status features_encode(struct feature_cache *c, struct feature_entry *f, uint32_t layers,
                            struct err *err) KV_MUST_CHECK;

/* EMPTY -> LOADING, and adds a holder; loaded, with a copy (engine_features_read) or NULL, releases it.
 * False: it is EMPTY again. */
void features_load(struct feature_cache *c, struct feature_entry *f);
bool features_loaded(struct feature_cache *c, struct feature_entry *f, const void *host, size_t bytes);
/* From now on `keep` receives what is evicted. */
void features_set_sink(struct feature_cache *c, features_keep *keep, void *arg);
void features_keep_all(struct feature_cache *c); /* gives all idle entries to it, and keeps them */

void features_reset(struct feature_cache *c); /* drops idle entries; the sink gets nothing */

void features_stats(const struct feature_cache *c, struct features_stats *out);

#endif

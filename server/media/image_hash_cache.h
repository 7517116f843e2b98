/* Maps a hash of an encoded file to the content keys, grids and times that image_from_file computed (for the
 * whole and its crops, or the frames of a video). A known file is not decoded to build the prompt. Bounded,
 * LRU; any thread (one mutex, held for a lookup).
 *
 * An id covers the cache salt of the request, so that a request cannot detect by timing that the file was
 * sent under another salt; a secret of the process, so that a client cannot produce collisions in one bucket;
 * and the request's image options (struct image_ask). The checkpoint's image settings are constant for the
 * life of the process. */
#ifndef KVASIR_IMAGE_HASH_CACHE_H
#define KVASIR_IMAGE_HASH_CACHE_H

#include "server/media/image_parts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_hash_cache;

#define IMAGE_HASH_CACHE_ENTRIES                                                                             \
    16384u /* what a server keeps: some 3 MiB for still images; videos have many parts, 20 MiB is the most   \
            */

struct image_hash_cache *
image_hash_cache_create(uint32_t entries_max);             /* NULL: out of memory. entries_max >= 1 */
void image_hash_cache_destroy(struct image_hash_cache *a); /* NULL is fine */

/* id = SHA-256 of (secret, salt, ask, bytes). */
void image_hash_cache_id(const struct image_hash_cache *a, const uint8_t salt[32],
                         const struct image_ask *ask, const uint8_t *bytes, size_t len, uint8_t id[32]);
/* True: *parts is a copy (image_parts_free), and the entry counts as just used. False: unknown, or no
 * memory for the copy. */
bool image_hash_cache_get(struct image_hash_cache *a, const uint8_t id[32], struct image_parts *parts);
/* Stores a copy of a file's result, replacing any earlier one. Out of memory nothing is stored: the file is
 * decoded again next time. */
void image_hash_cache_put(struct image_hash_cache *a, const uint8_t id[32], const struct image_parts *parts);
void image_hash_cache_remove(struct image_hash_cache *a, const uint8_t id[32]);
void image_hash_cache_clear(struct image_hash_cache *a);

struct image_hash_cache_stats {
    uint64_t queries, hits, entries;
};
void image_hash_cache_stats(struct image_hash_cache *a, struct image_hash_cache_stats *out);

#endif

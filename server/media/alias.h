/* Which pictures an encoded file became: from a hash of its bytes to the content keys, grids and times of
 * what picture_from_file made of it (the whole and its crops, or the frames of a video). A file that comes
 * again is not decoded to build the prompt. Bounded, least recently used goes first; any thread (one mutex,
 * held for a look-up).
 *
 * An id covers the cache salt of the request, so that a request cannot detect by timing that the file was
 * sent under another salt; a secret of the process, so that a client cannot produce collisions in one bucket;
 * and all that the request asked about the picture (struct picture_ask); the checkpoint's image settings are
 * the same for the life of the process. */
#ifndef KVASIR_IMAGE_ALIAS_H
#define KVASIR_IMAGE_ALIAS_H

#include "server/media/picture.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_alias;

#define IMAGE_ALIAS_ENTRIES                                                                                  \
    16384u /* what a server keeps: some 3 MiB for still pictures; videos have many parts, 20 MiB is the most \
            */

struct image_alias *image_alias_create(uint32_t entries_max); /* NULL: out of memory. entries_max >= 1 */
void image_alias_destroy(struct image_alias *a);              /* NULL is fine */

/* id = SHA-256 of (secret, salt, ask, bytes). */
void image_alias_id(const struct image_alias *a, const uint8_t salt[32], const struct picture_ask *ask,
                    const uint8_t *bytes, size_t len, uint8_t id[32]);
/* True: *parts is a copy (picture_parts_free), and the entry counts as just used. False: unknown, or no
 * memory for the copy. */
bool image_alias_get(struct image_alias *a, const uint8_t id[32], struct picture_parts *parts);
/* Notes what a file became (copies); replaces what was noted before. Without memory nothing is stored: the
 * file is decoded again next time. */
void image_alias_put(struct image_alias *a, const uint8_t id[32], const struct picture_parts *parts);
void image_alias_remove(struct image_alias *a, const uint8_t id[32]);
void image_alias_clear(struct image_alias *a);

struct image_alias_stats {
    uint64_t queries, hits, entries;
};
void image_alias_stats(struct image_alias *a, struct image_alias_stats *out);

#endif

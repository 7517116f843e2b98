/* Finds stop strings in text that arrives in deltas (Aho-Corasick over bytes) and says how much may be sent:
 * a byte is held back while it could still begin a stop string. Pure; one shared stop_set, one stop_state per
 * choice. */
#ifndef KVASIR_STOP_MATCH_H
#define KVASIR_STOP_MATCH_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stop_set; /* immutable after stop_set_create */
struct stop_string {
    const char *text; /* borrowed: copied by stop_set_create */
    size_t len;       /* >= 1 */
};
/* ST_INVALID for an empty string, ST_NOMEM. Memory: about 1 KiB per byte of all strings. */
enum status stop_set_create(const struct stop_string *strings, size_t count,
                            struct stop_set **out) KV_MUST_CHECK;
void stop_set_free(struct stop_set *s); /* NULL is fine */

struct stop_state {
    uint32_t node; /* initially zero */
};
struct stop_hit {
    bool found;
    uint32_t which; /* index into strings */
    size_t end;     /* bytes of this delta through the last byte of the match */
    size_t len;     /* length of the match; it may reach back into earlier deltas */
};
/* Feeds one delta. The earliest completion wins; of several that complete at the same byte, the longest.
 * After a hit the state must not be fed again. Without a hit, stop_held is the number of trailing bytes to
 * hold back. */
struct stop_hit stop_feed(const struct stop_set *s, struct stop_state *st, const char *text, size_t len);
size_t stop_held(const struct stop_set *s, const struct stop_state *st);

#endif

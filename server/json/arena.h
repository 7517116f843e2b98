/* Memory that is freed as a whole, and texts that live in it: blocks, and JSON strings that are kept instead
 * of copied. Not thread-safe. */
#ifndef KVASIR_JSON_ARENA_H
#define KVASIR_JSON_ARENA_H

#include "config/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Any bytes, UTF-8 if it comes from JSON. data NULL: no text. */
struct text {
    const char *data;
    size_t len;
};
#define TEXT_OF(literal) ((struct text){(literal), sizeof(literal) - 1}) /* an array of char */
/* Of a JSON string, borrowed; of anything else: none. */
struct text json_text(const json_t *v);
bool text_is(struct text t, const char *s);

struct arena {
    struct arena_block *blocks;
    json_t *values; /* a list, or NULL */
};
/* Zeroed; NULL: out of memory, or more than a size_t. */
void *arena_alloc(struct arena *a, size_t count, size_t size);
/* The text of a JSON string, which is kept: one more reference. */
enum status arena_text(struct arena *a, const json_t *v, struct text *out) KV_MUST_CHECK;
/* Keeps a value of any kind: takes ownership. NULL: v is, or out of memory. */
json_t *arena_keep(struct arena *a, json_t *v);
/* A copy. */
enum status arena_copy(struct arena *a, const char *s, size_t len, struct text *out) KV_MUST_CHECK;
void arena_free(struct arena *a); /* and empties it */

#endif

/* Reading a dialect's body: shared by the dialects. Internal to server/dialect/. Worker thread. */
#ifndef KVASIR_DIALECT_READER_H
#define KVASIR_DIALECT_READER_H

#include "server/generate/generate.h"

#include <jansson.h>

struct reader {
    struct gen *g;
    struct api_error *e;
    json_t *from;  /* the body */
    bool counting; /* only counts prompt tokens: fields that don't affect the prompt are not checked */
};

enum status reader_no_memory(struct reader *r);
/* The field `name`, an object; NULL in *out if absent. */
enum status reader_object(struct reader *r, const char *name, json_t **out);
/* The string `key` of the object field `name`; NULL in *out if absent. */
enum status reader_member(struct reader *r, json_t *object, const char *name, const char *key, bool required,
                          json_t **out);
/* Fields of other APIs, with this API's equivalent (or NULL): rejected, except values without effect: an
 * empty array, an `n` of 1. */
enum status reader_refuse(struct reader *r, const char *const (*list)[2], size_t count);
/* `tools` -> g->tools; one: a tool's function as a new object; NULL: r->e says why. */
enum status reader_tools(struct reader *r, json_t *(*one)(struct reader *r, json_t *tool, const char *path));
/* Reads the fields that chat completions has under the same name. others: further fields of the dialect. */
enum status reader_same(struct reader *r, const char *const *same, size_t same_count,
                        const char *const *others, size_t other_count);

#endif

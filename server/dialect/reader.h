/* Reading a dialect's body and writing the chat's: what the dialects share. Internal to server/dialect/.
 * Worker thread. */
#ifndef KVASIR_DIALECT_READER_H
#define KVASIR_DIALECT_READER_H

#include "server/generate/generate.h"

#include <jansson.h>

struct reader {
    struct gen *g;
    struct api_error *e;
    json_t *from, *to; /* the two bodies */
};

enum status reader_no_memory(struct reader *r);
/* Consumes value; NULL: out of memory. */
enum status reader_put(struct reader *r, const char *name, json_t *value);
/* Fields that the chat has by the same name. */
enum status reader_same(struct reader *r, const char *const *names, size_t count);
/* The field `name`, an object; NULL in *out where it is absent. */
enum status reader_object(struct reader *r, const char *name, json_t **out);
/* The string `key` of the object that is the field `name`; NULL in *out where it is absent. */
enum status reader_member(struct reader *r, json_t *object, const char *name, const char *key, bool required,
                          json_t **out);
/* Fields that other interfaces have, with what this one has in their place (or NULL): refused, but for what
 * means nothing: an empty array, an `n` of 1. */
enum status reader_refuse(struct reader *r, const char *const (*list)[2], size_t count);
/* As note_unknown of generate/parse.c. */
void reader_note_unknown(struct reader *r, const char *const *same, size_t same_count,
                         const char *const *others, size_t other_count);
/* A new string of those in the list, one behind the other; NULL: out of memory. */
json_t *strings_joined(const json_t *list);

#endif

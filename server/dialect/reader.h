/* Reading a dialect's body: what the dialects share. Internal to server/dialect/. Worker thread. */
#ifndef KVASIR_DIALECT_READER_H
#define KVASIR_DIALECT_READER_H

#include "server/generate/generate.h"

#include <jansson.h>

struct reader {
    struct gen *g;
    struct api_error *e;
    json_t *from;  /* the body */
    bool counting; /* the tokens of the prompt: what does not shape it is not checked */
};

enum status reader_no_memory(struct reader *r);
/* The field `name`, an object; NULL in *out where it is absent. */
enum status reader_object(struct reader *r, const char *name, json_t **out);
/* The string `key` of the object that is the field `name`; NULL in *out where it is absent. */
enum status reader_member(struct reader *r, json_t *object, const char *name, const char *key, bool required,
                          json_t **out);
/* Fields that other interfaces have, with what this one has in their place (or NULL): refused, but for what
 * means nothing: an empty array, an `n` of 1. */
enum status reader_refuse(struct reader *r, const char *const (*list)[2], size_t count);
/* `tools` -> g->tools; one: the function of a tool, a new object; NULL: r->e says why. */
enum status reader_tools(struct reader *r, json_t *(*one)(struct reader *r, json_t *tool, const char *path));
/* Reads the fields that a chat has by the same name. others: that the dialect has besides. */
enum status reader_same(struct reader *r, const char *const *same, size_t same_count,
                        const char *const *others, size_t other_count);

#endif

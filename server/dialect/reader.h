/* Reading a dialect's body: shared by the dialects. Internal to server/dialect/. Worker thread. */
#ifndef KVASIR_DIALECT_READER_H
#define KVASIR_DIALECT_READER_H

#include "server/generate/generate.h"
#include "server/input/fields.h"

#include <jansson.h>

struct reader {
    struct generation *g;
    struct api_error *e;
    json_t *from;     /* the body */
    bool counting;    /* only counts prompt tokens: fields that don't affect the prompt are not checked */
    char hosted[160]; /* types of tools that are left out of the prompt */
};

/* The field `name`, an object; NULL in *out if absent. */
enum status reader_object(struct reader *r, const char *name, json_t **out);
/* The string `key` of the object field `name`; NULL in *out if absent. */
enum status reader_member(struct reader *r, json_t *object, const char *name, const char *key, bool required,
                          json_t **out);
/* Fields of other APIs, with this API's equivalent (or NULL): rejected, except values without effect: an
 * empty array or string, an `n` of 1. */
enum status reader_refuse(struct reader *r, const char *const (*list)[2], size_t count);
/* `tools` -> g->q.tools; one: adds a tool. */
enum status reader_tools(struct reader *r,
                         enum status (*one)(struct reader *r, json_t *tool, const char *path));
/* Adds a function: takes ownership; NULL: out of memory. */
enum status reader_function(struct reader *r, json_t *function);
/* A tool of a type that only OpenAI or Anthropic host is left out of the prompt, and logged. */
void reader_hosted(struct reader *r, const json_t *type);
/* The fields of the API in input/fields.def; of a prompt that is only counted those that affect it. */
enum status reader_fields(struct reader *r, unsigned api);
/* What holds between them, and the tools; after the API's own. */
enum status reader_resolve(struct reader *r, unsigned api);

#endif

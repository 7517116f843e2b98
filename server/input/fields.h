/* The table of request fields (fields.def) and reading by it: scalars and lists go into struct
 * inference_request; what a field needs beyond itself is parse.c's. Worker thread, but field_* below. */
#ifndef KVASIR_FIELDS_TABLE_H
#define KVASIR_FIELDS_TABLE_H

#include "config/base/status.h"

#include <jansson.h>
#include <stddef.h>

struct generation;

/* Who has a field. OPTIONS: `options` of Ollama's requests; COUNT: /v1/messages/count_tokens, and what counts
 * of a prompt that is only counted. */
enum field_api {
    API_CHAT = 1 << 0,
    API_TEXT = 1 << 1, /* /v1/completions */
    API_RESPONSES = 1 << 2,
    API_MESSAGES = 1 << 3,
    API_OLLAMA = 1 << 4,
    API_OPTIONS = 1 << 5,
    API_EMBED = 1 << 6, /* and /pooling */
    API_CLASSIFY = 1 << 7,
    API_RERANK = 1 << 8,
    API_SCORE = 1 << 9,
    API_TOKENIZE = 1 << 10, /* /tokenize, /apply-template and other tokens of a chat */
    API_COMPACT = 1 << 11,
    API_OLLAMA_EMBED = 1 << 12,
    API_COUNT = 1 << 13,
    API_OPENAI = API_CHAT | API_TEXT,
    API_GENERATE_CHAT = API_CHAT | API_RESPONSES | API_MESSAGES | API_OLLAMA,
    API_GENERATE = API_GENERATE_CHAT | API_TEXT,
    API_VECTORS = API_EMBED | API_CLASSIFY | API_RERANK | API_SCORE,
    API_ALL = (1 << 14) - 1 - API_OPTIONS
};

/* Reads the fields of `from` that one of the APIs `read` has, and warns of those that are nearly one of
 * `known`; with --log-level debug the log names the other unknown ones. r->response.error on failure. */
enum status fields_read(struct generation *g, json_t *from, unsigned read, unsigned known) KV_MUST_CHECK;
/* The field `name`, if the table leaves it to readers of this API; borrowed, or NULL. */
json_t *fields_part(unsigned api, json_t *from, const char *name);
/* The properties of an API's request, as JSON Schema. A new object, or NULL: out of memory. */
json_t *fields_schema(unsigned api);

#endif

/* JSON text -> jansson's values. jansson's parser is not used for client input: if an allocation fails in the
 * wrong place, it reads past its buffer, drops bytes of strings or reports a syntax error; and it needs four
 * times the memory of the text. Any thread. */
#ifndef KVASIR_JSON_PARSER_H
#define KVASIR_JSON_PARSER_H

#include "config/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Limits of a text (docs/http.md). Above so many members of an object, jansson's hash table costs a
 * microsecond per member. */
#define LIMIT_JSON_DEPTH   128u
#define LIMIT_JSON_TOKENS  4000000u
#define LIMIT_JSON_MEMBERS 65536u
#define LIMIT_ILL_FORMED   65536u /* bytes and surrogates replaced with U+FFFD */

struct json_parser {
    const char *text;
    size_t len;
    size_t at;         /* ST_FORMAT: where it is wrong */
    const char *error; /* and what; static */
    uint32_t depth;    /* nesting around the text: below LIMIT_JSON_DEPTH */
    bool strict;       /* ill-formed bytes and lone surrogates are errors; else each becomes U+FFFD */
    uint32_t tokens;   /* approximate number of values and keys; bounds the memory */
    uint32_t replaced; /* bytes and surrogates replaced */
};

/* Parses the whole text as one value -> *out, owned by the caller. Set text, len, depth and strict of p
 * first. ST_FORMAT, ST_NOMEM. */
enum status json_parse_body(struct json_parser *p, json_t **out);
/* JSON in a string, such as a call's arguments, including large integers (fields.h) -> *out, owned.
 * ST_FORMAT: not JSON, or nested too deep. ST_NOMEM. */
enum status json_from_text(const char *text, size_t len, json_t **out);

#endif

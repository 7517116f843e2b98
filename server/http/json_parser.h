/* JSON text -> jansson's values. jansson's parser is not used for client input: if an allocation fails in the
 * wrong place, it reads beyond its buffer, drops bytes of strings or reports a syntax error; and it needs
 * four times the memory of the text. Any thread. */
#ifndef KVASIR_JSON_PARSER_H
#define KVASIR_JSON_PARSER_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct json_parser {
    const char *text;
    size_t len, at;
    uint32_t depth;    /* of values around it */
    bool strict;       /* ill-formed bytes and lone surrogates are errors; else U+FFFD stands for each */
    uint32_t tokens;   /* about as many values, keys counted; they bound the memory */
    uint32_t replaced; /* bytes and surrogates */
    char error[80];    /* of ST_FORMAT: what is wrong at `at` */
    struct buf scratch;
};

/* The whole text is one value -> *out, which the caller owns. p: text, len, depth and strict are set.
 * ST_FORMAT, ST_NOMEM. */
enum status json_parse_body(struct json_parser *p, json_t **out);
/* JSON in a text, such as a call's arguments, with large numbers too (fields.h) -> *out, owned. ST_FORMAT: it
 * is none, or nested too deep. ST_NOMEM. */
enum status json_from_text(const char *text, size_t len, json_t **out);

#endif

/* Escapes in JSON strings, for the readers of JSON: json.h, server/json/parser.h, server/jinja/json.c. Pure.
 */
#ifndef KVASIR_JSON_ESCAPE_H
#define KVASIR_JSON_ESCAPE_H

#include <stddef.h>
#include <stdint.h>

/* The code point of the escape at s, a backslash -> *cp (a lone surrogate as it is). Returns the bytes that
 * it takes, of `left`; 0 if JSON has no such escape. */
size_t json_unescape(const char *s, size_t left, uint32_t *cp);

#endif

/* Regular expression syntax (ECMA-262 with the u flag; the subset shared with RE2) -> regex.h. Groups of all
 * kinds, classes, quantifiers (lazy ones are equivalent), \d \w \s \x \u, \p{} of general categories and
 * emoji, ^ and $, the flags i and s in front or of a group; \b, \B and look-ahead outside of repeated groups.
 * Back references and look-behind are rejected. Internal to server/grammar/. */
#ifndef KVASIR_REGEX_PARSE_H
#define KVASIR_REGEX_PARSE_H

#include "server/grammar/build.h"

/* Matches the whole text; ^ and $ at its ends are optional. */
enum regex_flags {
    REGEX_DOT_LINE = 1, /* . is every character except \n */
    REGEX_DOT_ALL = 2,  /* . is every character */
    REGEX_ANY_CASE = 4, /* of letters that are not escaped */
    REGEX_LONG_CODE = 8 /* \U0001F600 is a character */
};
enum status regex_parse(struct rx_pool *p, const char *text, size_t len, unsigned flags, rx *out,
                        struct grammar_error *error) KV_MUST_CHECK;
/* JSON string literals, quotes included, whose value contains a match (JSON Schema's "pattern"). */
enum status regex_parse_json(struct rx_pool *p, const char *text, size_t len, rx *out,
                             struct grammar_error *error) KV_MUST_CHECK;
/* One character in [from, to] inside a string literal: escaped where necessary. */
rx json_chars(struct rx_pool *p, uint32_t from, uint32_t to);
/* Any one character, with all its escapes. */
rx json_any_char(struct rx_pool *p);

#endif

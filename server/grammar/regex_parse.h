/* Regular expressions as people write them (ECMA-262 with the u flag; what RE2 shares with it) -> regex.h.
 * Groups of all kinds, classes, quantifiers (lazy ones mean the same), \d \w \s \x \u \p{general category},
 * ^ and $, look-ahead at the top. Back references, look-behind and \b are refused. Internal to
 * server/grammar/. */
#ifndef KVASIR_REGEX_PARSE_H
#define KVASIR_REGEX_PARSE_H

#include "server/grammar/build.h"

/* The whole text matches; ^ and $ at its ends may be left out. */
enum status regex_parse(struct rx_pool *p, const char *text, size_t len, rx *out,
                        struct grammar_error *error) KV_MUST_CHECK;
/* String literals of JSON, quotes included, whose value has a match somewhere (JSON schema's "pattern"). */
enum status regex_parse_json(struct rx_pool *p, const char *text, size_t len, rx *out,
                             struct grammar_error *error) KV_MUST_CHECK;
/* One character of [from, to] inside a string literal: escaped where it has to be. */
rx json_chars(struct rx_pool *p, uint32_t from, uint32_t to);
/* Any one character, in each way to write it. */
rx json_any_char(struct rx_pool *p);

#endif

/* Builder of a context-free grammar whose terminals are regular expressions (regex.h). The front ends
 * (json/schema.c, gbnf.c, lark.c, ...) build it, the machine (machine.c) runs it. Internal to
 * server/grammar/. */
#ifndef KVASIR_GRAMMAR_BUILD_H
#define KVASIR_GRAMMAR_BUILD_H

#include "server/grammar/grammar.h"
#include "server/grammar/regex.h"

typedef uint32_t gx; /* an expression of its builder; 0 = a failed call: see gb_finish */

struct grammar_builder;
enum status gb_create(struct grammar_builder **out) KV_MUST_CHECK;
void gb_free(struct grammar_builder *b);
struct rx_pool *gb_pool(struct grammar_builder *b); /* for its terminals */

gx gb_regex(struct grammar_builder *b, rx a);
gx gb_literal(struct grammar_builder *b, const void *bytes, size_t len);
gx gb_seq(struct grammar_builder *b, const gx *list, size_t n);            /* n = 0: the empty string */
gx gb_alt(struct grammar_builder *b, const gx *list, size_t n);            /* n = 0: matches nothing */
gx gb_repeat(struct grammar_builder *b, gx a, uint32_t min, uint32_t max); /* RX_NO_LIMIT = any number */
/* element (comma element)* of so many elements; min > 0, or max 0: nothing. */
gx gb_list(struct grammar_builder *b, gx element, gx comma, uint32_t min, uint32_t max);
#define GB_SEQ(b, ...) gb_seq(b, (const gx[]){__VA_ARGS__}, sizeof((const gx[]){__VA_ARGS__}) / sizeof(gx))
#define GB_ALT(b, ...) gb_alt(b, (const gx[]){__VA_ARGS__}, sizeof((const gx[]){__VA_ARGS__}) / sizeof(gx))
/* Members between brackets, separated by `comma`. A name is a number below `names` and occurs at most once.
 * Unless any_order, names are in order and followed by GB_FURTHER, which has no name. Given, required,
 * implied and counted members are tracked during matching, so that every allowed prefix can be completed. */
#define GB_FURTHER   UINT32_MAX
#define GB_WANTS_MAX 3u
struct gb_member {
    gx what;
    uint32_t name;
    uint32_t gives; /* bits of `wants` that it gives */
};
struct gb_members {
    const struct gb_member *list;
    size_t count;
    uint32_t names;
    const bool *required;         /* [names]; NULL: none */
    const uint32_t (*implies)[2]; /* the first name requires the second */
    size_t implies_count;
    uint32_t min, max, wants; /* wants: number of bits, each given by some member; with a finite max every
                                 member that gives one is GB_FURTHER */
    bool any_order;
    gx comma;
};
gx gb_members(struct grammar_builder *b, const struct gb_members *m); /* copies m */
/* A rule, which may be used before its definition and recursively. */
gx gb_rule(struct grammar_builder *b);
void gb_define(struct grammar_builder *b, gx rule, gx body);
/* A tag token (struct grammar_vocab's tags): matched only by that token if it is special, else by its text.
 */
gx gb_tag(struct grammar_builder *b, const struct grammar_vocab *v, const char *text);

/* Front ends: compile a client's text to an expression. ST_INVALID, ST_UNSUPPORTED, ST_TOO_LARGE, ST_NOMEM:
 * error says what and where. */
enum status gb_schema(struct grammar_builder *b, const json_t *schema, const struct grammar_json_options *opt,
                      gx *out, struct grammar_error *error) KV_MUST_CHECK;
enum status gb_regex_text(struct grammar_builder *b, const char *text, size_t len, gx *out,
                          struct grammar_error *error) KV_MUST_CHECK;
/* GBNF or Lark. in_json: the text is inside a JSON string. */
enum status gb_text(struct grammar_builder *b, const char *text, size_t len, bool in_json, gx *out,
                    struct grammar_error *error) KV_MUST_CHECK;

/* Consumes the builder, also on failure. ST_INVALID: an undefined rule, or left recursion that can't be
 * rewritten. ST_TOO_LARGE, ST_NOMEM: also from any earlier call. */
enum status gb_finish(struct grammar_builder *b, gx start, struct grammar **out,
                      struct err *err) KV_MUST_CHECK;

#endif

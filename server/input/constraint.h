/* Builds the grammar of a request's output: reasoning first, tool calls in the template's syntax, and the
 * final content. input/constraint.c and call_grammar.c; worker thread. */
#ifndef KVASIR_CONSTRAINT_H
#define KVASIR_CONSTRAINT_H

#include "server/input/input.h"
#include "server/input/grammars.h"
#include "server/grammar/build.h"

/* A set of a request's tools. */
struct tool_set {
    uint32_t bits[(LIMIT_TOOLS + 31) / 32];
};

struct constraint_maker {
    struct generation *g;
    struct grammar_builder *b;
    const struct grammar_vocab *vocab;
    json_t *rules;        /* a function's $defs by name, while its call is built */
    bool any_order;       /* of properties, in what is being built: content or a call */
    bool strict;          /* likewise: a keyword that can't be enforced is an error */
    struct tool_set weak; /* tools whose schemas can't be enforced: any object */
    json_t *notes;        /* a list: what is not enforced */
};

/* input/format.c. Does a json_schema or a function set `strict`? */
bool gen_strict(json_t *of);
/* Does it have `"strict": false`? Then properties come in any order, mixed with additional ones, as plain
 * JSON Schema allows. Else they come in the schema's order, followed by additional ones, as in OpenAI's API:
 * a small model that may start with any name may never finish. */
bool gen_any_order(json_t *of);

/* Any text that contains none of the n tags. */
rx constraint_without(struct constraint_maker *m, const char *const *tags, size_t n);
gx constraint_text_without(struct constraint_maker *m, const char *const *tags, size_t n);
gx constraint_literal(struct constraint_maker *m, const char *text); /* NULL is an empty one */
/* Fills the error of the request and returns ST_INVALID. */
enum status constraint_error(struct constraint_maker *m, enum status st, const char *param,
                             const struct grammar_error *f);
/* One of the strings of a list. */
enum status constraint_strings(struct constraint_maker *m, const json_t *list, gx *out) KV_MUST_CHECK;
/* A value of the schema. Errors name `where` (within `param`). */
enum status constraint_schema(struct constraint_maker *m, json_t *schema, bool compact, const char *param,
                              gx *out) KV_MUST_CHECK;

/* The request lets the model call it. */
bool constraint_may(const struct constraint_maker *m, json_t *function);
/* The tool's arguments are any object, because its schema can't be enforced. */
bool constraint_weak(const struct constraint_maker *m, size_t tool);
/* Its schema must be enforced as a whole: it is strict, and the request must call it. */
bool constraint_must(const struct constraint_maker *m, json_t *function);

/* input/call_grammar.c: one call of the function (an element of the request's `tools`), from start tag to
 * end tag, with arguments: */
enum call_schema {
    CALL_FREE,   /* any object, or what the syntax alone gives of its schema */
    CALL_SCHEMA, /* as its schema says */
    CALL_ANY,    /* any object */
};
enum status constraint_call(struct constraint_maker *m, json_t *function, enum call_schema use, size_t index,
                            gx *out) KV_MUST_CHECK;
/* Calls as plain JSON (chat/tool_calls/) to the functions that may be called, with their closing brackets; at
 * most one if `one`. *excluded: every text that starts like such a call. */
enum status constraint_bare_calls(struct constraint_maker *m, json_t *tools, bool one, rx *excluded,
                                  gx *out) KV_MUST_CHECK;

#endif

/* Grammars of a request's answer, put together: the reasoning in front, calls in the form that the template
 * teaches, and the answer proper. generate/constraint.c and call_grammar.c; worker thread. */
#ifndef KVASIR_CONSTRAINT_H
#define KVASIR_CONSTRAINT_H

#include "server/generate/generate.h"
#include "server/grammar/build.h"

struct constraint_maker {
    struct gen *g;
    struct grammar_builder *b;
    const struct grammar_vocab *vocab;
    json_t *rules;  /* of a function's $defs: by name, while its call is made */
    bool any_order; /* of the properties in what is being made: the answer, or a call */
};

/* generate/format.c. Does a json_schema or a function ask for `strict`? */
bool gen_strict(json_t *of);
/* Does it say `"strict": false`? Its properties come in any order then, with others of any name among them,
 * as the schema by itself has it. Else they come in the schema's order and others behind them, as OpenAI's
 * interface has it: a small model that may begin with any name comes to no end. */
bool gen_any_order(json_t *of);

/* Any text without the tags (n of them) in it. */
rx constraint_without(struct constraint_maker *m, const char *const *tags, size_t n);
gx constraint_text_without(struct constraint_maker *m, const char *const *tags, size_t n);
gx constraint_literal(struct constraint_maker *m, const char *text);
/* A value of the schema. `where` (of `param`) is what an error names. */
enum status constraint_schema(struct constraint_maker *m, json_t *schema, bool compact, const char *param,
                              gx *out) KV_MUST_CHECK;

/* generate/call_grammar.c: one call of the function (the element of the request's `tools`), from its open tag
 * to its end tag; the arguments are of its schema where `exact`, else any object. */
enum status constraint_call(struct constraint_maker *m, json_t *function, bool exact, size_t index,
                            gx *out) KV_MUST_CHECK;
/* Calls as plain JSON (chat/tool_parse.h), of the functions whose flag in may[] is set, with their closing
 * brackets; at most one if `one`. *excluded: every text that begins like such a call. */
enum status constraint_bare_calls(struct constraint_maker *m, json_t *tools, const bool *may, bool one,
                                  rx *excluded, gx *out) KV_MUST_CHECK;

#endif

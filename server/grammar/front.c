/* Client text to finished grammars (grammar.h). */
#include "server/grammar/build.h"

#include <stdio.h>

/* Consumes b. */
static enum status finish(struct grammar_builder *b, enum status st, gx start, struct grammar **out,
                          struct grammar_error *error)
{
    struct err err = {{0}};
    if (st) {
        gb_free(b);
        return st;
    }
    st = gb_finish(b, start, out, &err);
    if (st) {
        snprintf(error->message, sizeof error->message, "%.250s", err.msg);
        error->path[0] = '\0';
    }
    return st;
}

static enum status begin(struct grammar_builder **b, struct grammar_error *error)
{
    *error = (struct grammar_error){{0}, {0}};
    enum status st = gb_create(b);
    if (st) snprintf(error->message, sizeof error->message, "out of memory for a grammar");
    return st;
}

enum status grammar_from_schema(const json_t *schema, const struct grammar_json_options *opt,
                                struct grammar **out, struct grammar_error *error)
{
    struct grammar_builder *b;
    gx start = 0;
    enum status st = begin(&b, error);
    if (st) return st;
    st = gb_schema(b, schema, opt, &start, error);
    return finish(b, st, start, out, error);
}

enum status grammar_from_regex(const char *text, size_t len, struct grammar **out,
                               struct grammar_error *error)
{
    struct grammar_builder *b;
    gx start = 0;
    enum status st = begin(&b, error);
    if (st) return st;
    st = gb_regex_text(b, text, len, &start, error);
    return finish(b, st, start, out, error);
}

enum status grammar_from_text(const char *text, size_t len, struct grammar **out, struct grammar_error *error)
{
    struct grammar_builder *b;
    gx start = 0;
    enum status st = begin(&b, error);
    if (st) return st;
    st = gb_text(b, text, len, false, &start, error);
    return finish(b, st, start, out, error);
}

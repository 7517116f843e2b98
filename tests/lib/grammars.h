/* Grammars without a request, for tests. */
#ifndef KVASIR_TEST_GRAMMARS_H
#define KVASIR_TEST_GRAMMARS_H

#include "server/grammar/build.h"

#include <stdio.h>

/* ST_INVALID, ST_UNSUPPORTED, ST_TOO_LARGE: error says what and where. schema: or NULL: then text, which is a
 * regular expression or a grammar. */
static inline enum status grammar_of_source(const json_t *schema, const struct grammar_json_options *opt,
                                            const char *text, size_t len, bool regex, struct grammar **out,
                                            struct grammar_error *error)
{
    struct grammar_builder *b;
    struct err err = {{0}};
    gx start = 0;
    *error = (struct grammar_error){{0}, {0}};
    enum status st = gb_create(&b);
    if (st) return st;
    st = schema  ? gb_schema(b, schema, opt, &start, error)
         : regex ? gb_regex_text(b, text, len, &start, error)
                 : gb_text(b, text, len, false, &start, error);
    if (st) {
        gb_free(b);
        return st;
    }
    st = gb_finish(b, start, out, &err);
    if (st) snprintf(error->message, sizeof error->message, "%.250s", err.msg);
    if (st) error->path[0] = '\0';
    return st;
}

static inline enum status grammar_from_schema(const json_t *schema, const struct grammar_json_options *opt,
                                              struct grammar **out, struct grammar_error *error)
{
    return grammar_of_source(schema, opt, NULL, 0, false, out, error);
}

static inline enum status grammar_from_regex(const char *text, size_t len, struct grammar **out,
                                             struct grammar_error *error)
{
    return grammar_of_source(NULL, NULL, text, len, true, out, error);
}

static inline enum status grammar_from_text(const char *text, size_t len, struct grammar **out,
                                            struct grammar_error *error)
{
    return grammar_of_source(NULL, NULL, text, len, false, out, error);
}

#endif

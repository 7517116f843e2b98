/* A request's constraints -> the grammar of its output: unconstrained reasoning first; then calls, or the
 * response format, or either. Compiled grammars are cached (input/grammars.h): the same schema is compiled
 * once. */
#include "server/input/constraint.h"

#include "config/base/log.h"
#include "server/chat/tool_calls/tool_calls.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status constraint_error(struct constraint_maker *m, enum status st, const char *param,
                             const struct grammar_error *f)
{
    if (st == ST_NOMEM) return gen_nomem(m->g);
    return api_fail(m->g->e, 400, "unsupported_schema", param, "%s%s%s%s.", f->path[0] ? "At " : "", f->path,
                    f->path[0] ? ": " : "",
                    f->message[0] ? f->message : "The output constraint is too large to be enforced");
}

gx constraint_literal(struct constraint_maker *m, const char *text)
{
    return gb_literal(m->b, text ? text : "", text ? strlen(text) : 0);
}

rx constraint_without(struct constraint_maker *m, const char *const *tags, size_t n)
{
    struct rx_pool *p = gb_pool(m->b);
    rx text = rx_repeat(p, rx_chars(p, 0, 0x10FFFF), 0, RX_NO_LIMIT);
    for (size_t i = 0; i < n; i++) {
        rx with = rx_concat(p, RX_ALL, rx_concat(p, rx_literal(p, tags[i], strlen(tags[i])), RX_ALL));
        text = rx_and(p, text, rx_not(p, with));
    }
    return text;
}

gx constraint_text_without(struct constraint_maker *m, const char *const *tags, size_t n)
{
    return gb_regex(m->b, constraint_without(m, tags, n));
}

/* Converts integers beyond 64 bits to jansson reals, which is equivalent for bounds. *lost: one is an
 * enumerated value, where the conversion would change it. */
static json_t *without_big(json_t *v, bool value, bool *lost)
{
    const char *digits = json_big_int(v), *key;
    json_t *one, *copy;
    size_t i;
    if (digits) {
        *lost = *lost || value;
        return json_real(fmax(-DBL_MAX, fmin(DBL_MAX, strtod(digits, NULL))));
    }
    if (json_is_object(v)) {
        copy = json_object();
        json_object_foreach(v, key, one) {
            bool values = value || strcmp(key, "const") == 0 || strcmp(key, "enum") == 0;
            json_object_set_new(copy, key, without_big(one, values, lost));
        }
        return copy;
    }
    if (!json_is_array(v)) return json_incref(v);
    copy = json_array();
    json_array_foreach(v, i, one) json_array_append_new(copy, without_big(one, value, lost));
    return copy;
}

enum status constraint_schema(struct constraint_maker *m, json_t *schema, bool compact, const char *param,
                              gx *out)
{
    struct grammar_error error = {{0}, {0}};
    struct grammar_json_options opt = {.any_whitespace = !compact,
                                       .any_order = m->any_order,
                                       .notes = m->strict ? NULL : m->notes,
                                       .where = param};
    bool lost = false;
    json_t *plain = without_big(schema, false, &lost);
    enum status st = plain ? ST_OK : ST_NOMEM;
    if (!st && lost) {
        st = ST_UNSUPPORTED;
        snprintf(error.path, sizeof error.path, "$");
        snprintf(error.message, sizeof error.message,
                 "\"const\" or \"enum\" with an integer of over 64 bits");
    }
    if (!st) st = gb_schema(m->b, plain, &opt, out, &error);
    json_decref(plain);
    return st ? constraint_error(m, st, param, &error) : ST_OK;
}

/* ---- the parts ---- */

enum status constraint_strings(struct constraint_maker *m, const json_t *list, gx *out)
{
    size_t n = json_array_size(list);
    struct rx_pool *p = gb_pool(m->b);
    rx *one = calloc(n, sizeof *one);
    if (!one) return gen_nomem(m->g);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        one[i] = rx_literal(p, json_string_value(v), json_string_length(v));
    }
    *out = gb_regex(m->b, rx_alt_list(p, one, n)); /* a trie */
    free(one);
    return ST_OK;
}

static enum status choices(struct constraint_maker *m, const struct response_format *f, gx *out)
{
    struct rx_pool *p = gb_pool(m->b);
    rx *one = calloc(f->choice_count, sizeof *one);
    if (!one) return gen_nomem(m->g);
    for (size_t i = 0; i < f->choice_count; i++)
        one[i] = rx_literal(p, f->choices[i].data, f->choices[i].len);
    *out = gb_regex(m->b, rx_alt_list(p, one, f->choice_count)); /* a trie */
    free(one);
    return ST_OK;
}

/* The final content; free: any text. */
static enum status response(struct constraint_maker *m, gx *out)
{
    const struct response_format *f = &m->g->q.format;
    struct grammar_error error = {{0}, {0}};
    const char *text = f->text.data;
    size_t len = f->text.len;
    enum status st = ST_OK;
    json_t *schema = NULL;
    m->any_order = f->any_order;
    m->strict = f->strict;
    switch (f->kind) {
    case FORMAT_FREE: *out = constraint_text_without(m, NULL, 0); return ST_OK;
    case FORMAT_CHOICE: return choices(m, f, out);
    case FORMAT_REGEX: st = gb_regex_text(m->b, text, len, out, &error); break;
    case FORMAT_TEXT: st = gb_text(m->b, text, len, false, out, &error); break;
    case FORMAT_SCHEMA: return constraint_schema(m, f->schema, f->compact, f->param, out);
    default:
        schema = f->kind == FORMAT_OBJECT ? json_pack("{s:s}", "type", "object") : json_true();
        st = schema ? constraint_schema(m, schema, f->compact, f->param, out) : gen_nomem(m->g);
        json_decref(schema);
        return st;
    }
    return st ? constraint_error(m, st, f->param, &error) : ST_OK;
}

bool constraint_may(const struct constraint_maker *m, json_t *function)
{
    const struct tool_choice *f = &m->g->q.tool_choice;
    const char *name = json_string_value(field(function, "name"));
    bool may = f->named.data ? text_is(f->named, name) : !f->limited;
    for (size_t i = 0; i < f->allowed_count && !may; i++) may = text_is(f->allowed[i], name);
    return may;
}

bool constraint_weak(const struct constraint_maker *m, size_t tool)
{
    return m->weak.bits[tool / 32] >> (tool % 32) & 1;
}

bool constraint_must(const struct constraint_maker *m, json_t *function)
{
    return gen_strict(function) && m->g->q.tool_choice.named.data;
}

/* The schema of a tool can't be enforced; the request's error says why. Unless it must be, the request
 * continues, and the tool's arguments may be any object. */
static bool weaken(struct constraint_maker *m, json_t *tools, size_t tool)
{
    const struct api_error *e = m->g->e;
    json_t *function = field(json_array_get(tools, tool), "function");
    if (e->http != 400 || constraint_must(m, function) || constraint_weak(m, tool)) return false;
    json_array_append_new(m->notes, json_sprintf("The schema of the function '%s' can't be enforced: its "
                                                 "arguments are any object. %s",
                                                 json_string_value(field(function, "name")), e->message));
    m->weak.bits[tool / 32] |= 1u << (tool % 32);
    return true;
}

static void name_tool(struct api_error *e, json_t *function)
{
    char why[sizeof e->message];
    memcpy(why, e->message, sizeof why);
    if (e->http == 400)
        snprintf(e->message, sizeof e->message, "The function '%.128s': %.360s",
                 json_string_value(field(function, "name")), why);
}

/* One call of any allowed function. ST_AGAIN: some tools were weakened. */
static enum status any_call(struct constraint_maker *m, json_t *tools, gx *out)
{
    const struct tool_choice *f = &m->g->q.tool_choice;
    size_t n = json_array_size(tools), used = 0;
    gx *list = calloc(n + 1, sizeof *list);
    enum status st = list ? ST_OK : gen_nomem(m->g);
    struct api_error *e = m->g->e;
    bool again, weakened = false;
    for (size_t i = 0; i < n && !st; i++) {
        json_t *function = field(json_array_get(tools, i), "function");
        enum call_schema use = constraint_weak(m, i)                 ? CALL_ANY
                               : f->required || gen_strict(function) ? CALL_SCHEMA
                                                                     : CALL_FREE;
        if (!constraint_may(m, function)) continue;
        st = constraint_call(m, function, use, i, &list[used++]);
        if (!st) continue;
        again = weaken(m, tools, i);
        if (again) *e = (struct api_error){0};
        else name_tool(e, function);
        if (again && !rx_status(gb_pool(m->b))) st = ST_OK; /* else it fails for all that follow */
        weakened = weakened || again;
    }
    if (weakened && !e->http) st = ST_AGAIN;
    if (!st) *out = gb_alt(m->b, list, used);
    free(list);
    return st;
}

/* Text with calls in it; or, if calls may be plain JSON, only such calls: then text must not begin like one.
 */
static enum status calls_and_text(struct constraint_maker *m, json_t *tools, gx call, bool one, gx *out)
{
    struct rx_pool *pool = gb_pool(m->b);
    const char *const *tags = tool_syntax(m->g->rules.calls)->opens;
    rx text = constraint_without(m, tags, tags[1] ? 2 : 1), first = text, excluded;
    gx bare;
    if (m->g->rules.bare_calls) {
        enum status st = constraint_bare_calls(m, tools, one, &excluded, &bare);
        if (st) return st;
        first = rx_and(pool, text, rx_not(pool, excluded));
    }
    gx again = GB_SEQ(m->b, call, gb_regex(m->b, text));
    uint32_t most = tool_syntax(m->g->rules.calls)->plain ? 0 : one ? 1 : RX_NO_LIMIT;
    *out = GB_SEQ(m->b, gb_regex(m->b, first), gb_repeat(m->b, again, 0, most));
    if (m->g->rules.bare_calls) *out = GB_ALT(m->b, *out, bare);
    return ST_OK;
}

/* Calls, with text around them unless calls are required. */
static enum status calls(struct constraint_maker *m, json_t *tools, gx *out)
{
    const struct inference_request *p = &m->g->q;
    const char *between = tool_syntax(m->g->rules.calls)->between;
    bool one = !p->parallel_calls || p->tool_choice.named.data;
    gx call;
    enum status st = any_call(m, tools, &call);
    if (st) return st;
    if (!p->tool_choice.required && !p->format.kind) return calls_and_text(m, tools, call, one, out);
    *out = gb_list(m->b, call, constraint_literal(m, between), 1, one ? 1 : RX_NO_LIMIT);
    if (p->tool_choice.required) return ST_OK;
    gx formed; /* only calls, or the response format */
    st = response(m, &formed);
    if (!st) *out = GB_ALT(m->b, *out, formed);
    return st;
}

/* The start tag of a channel is a token, its name is text. */
static gx reasoning_begin(struct constraint_maker *m)
{
    if (m->g->rules.reasoning_syntax != REASONING_CHANNEL)
        return gb_tag(m->b, m->vocab, reasoning_open(m->g->rules.reasoning_syntax));
    return GB_SEQ(m->b, gb_tag(m->b, m->vocab, CHANNEL_OPEN),
                  constraint_literal(m, reasoning_open(REASONING_CHANNEL) + strlen(CHANNEL_OPEN)));
}

static gx with_reasoning(struct constraint_maker *m, gx body)
{
    const char *const tags[] = {reasoning_close(m->g->rules.reasoning_syntax)};
    if (m->g->rules.reasoning == REASONING_NONE) return body;
    static const uint32_t blanks[8] = {1u << '\n'}; /* they belong to the tag (chat/reasoning_parse.h) */
    struct rx_pool *p = gb_pool(m->b);
    gx blank = gb_regex(m->b, rx_repeat(p, rx_bytes(p, blanks), 0, 4));
    gx inside =
        GB_SEQ(m->b, constraint_text_without(m, tags, 1), gb_tag(m->b, m->vocab, tags[0]), blank, body);
    if (m->g->inside_reasoning) return inside;
    return GB_ALT(m->b, GB_SEQ(m->b, reasoning_begin(m), inside), body);
}

static enum status build_once(struct constraint_maker *m, json_t *tools, struct grammar **out)
{
    gx body, all;
    struct err err = {{0}};
    enum status st = gb_create(&m->b);
    if (st) return gen_nomem(m->g);
    rx_pool_stop(gb_pool(m->b), &m->g->cancelled);
    st = tools ? calls(m, tools, &body) : response(m, &body);
    if (st) {
        gb_free(m->b);
        return st;
    }
    all = with_reasoning(m, body);
    st = gb_finish(m->b, all, out, &err);
    if (!st) return ST_OK;
    struct grammar_error error = {{0}, {0}};
    snprintf(error.message, sizeof error.message, "%.250s", err.msg);
    return constraint_error(m, st, m->g->q.format.param, &error);
}

static enum status build(struct constraint_maker *m, json_t *tools, struct grammar **out)
{
    struct api_error *e = m->g->e;
    enum status st;
    do st = build_once(m, tools, out);
    while (st == ST_AGAIN); /* each time with more weak tools */
    bool weakened = false;  /* together they are too large */
    for (size_t i = 0; st && !e->param[0] && i < json_array_size(tools); i++)
        weakened = weaken(m, tools, i) || weakened;
    if (!weakened) return st;
    *e = (struct api_error){0};
    return build_once(m, tools, out);
}

/* Reports what is not enforced, to the client and in the log. */
static enum status warn(struct constraint_maker *m)
{
    struct generation *g = m->g;
    size_t i;
    json_t *one;
    json_array_foreach(m->notes, i, one) log_warn("req=%s %s", g->caller.id, json_string_value(one));
    if (!json_array_size(m->notes)) return ST_OK;
    g->warnings = json_dumps(m->notes, JSON_COMPACT);
    return g->warnings ? ST_OK : gen_nomem(m->g);
}

/* ---- the cache key ---- */

static bool any_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
        if (gen_strict(field(tool, "function"))) return true;
    return false;
}

static json_t *text_json(struct text text)
{
    return json_stringn_nocheck(text.data, text.len);
}

static json_t *texts_json(const struct text *list, size_t count)
{
    json_t *out = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(out, text_json(list[i]));
    return out;
}

/* Everything that the grammar depends on. */
static json_t *description(const struct generation *g, json_t *tools)
{
    const struct inference_request *p = &g->q;
    json_t *d =
        json_pack("{s:i,s:b,s:b,s:b,s:b,s:b,s:i,s:i,s:b,s:b,s:b,s:s?}", "form", (int)p->format.kind, "bare",
                  g->rules.bare_calls != NULL, "compact", p->format.compact, "any order", p->format.any_order,
                  "strict", p->format.strict, "inside", g->inside_reasoning, "reasoning",
                  g->rules.reasoning == REASONING_NONE ? -1 : (int)g->rules.reasoning_syntax, "calls",
                  tools ? (int)g->rules.calls : 0, "required", p->tool_choice.required, "parallel",
                  p->parallel_calls, "tools", tools != NULL, "named", p->tool_choice.named.data);
    char salt[2 * sizeof g->caller.salt + 1]; /* timing reveals whether a grammar is cached */
    sodium_bin2hex(salt, sizeof salt, g->caller.salt, sizeof g->caller.salt);
    if (d) json_object_set_new(d, "salt", json_string(salt));
    if (d && p->format.schema) json_object_set(d, "schema", p->format.schema);
    if (d && p->format.text.data) json_object_set_new(d, "text", text_json(p->format.text));
    if (d && p->format.choices)
        json_object_set_new(d, "choices", texts_json(p->format.choices, p->format.choice_count));
    if (d && tools) json_object_set(d, "functions", tools);
    if (d && tools && p->tool_choice.limited)
        json_object_set_new(d, "allowed", texts_json(p->tool_choice.allowed, p->tool_choice.allowed_count));
    return d;
}

/* Functions that may be called as plain JSON. If some are strict, their schemas must be enforceable as JSON:
 * the other syntaxes enforce fewer keywords. */
static enum status bare_calls(struct constraint_maker *m, json_t *tools)
{
    const struct inference_request *p = &m->g->q;
    const struct tool_syntax *s = tool_syntax(m->g->rules.calls);
    if (!s->plain &&
        (m->g->ctx->opt->tool_parser == TOOL_PARSER_STRICT || p->tool_choice.required || p->format.kind ||
         p->continue_final_message || (any_strict(tools) && s->arguments != TOOL_ARGUMENTS_JSON)))
        return ST_OK;
    m->g->rules.bare_calls = json_object();
    bool ok = m->g->rules.bare_calls != NULL;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        json_t *function = field(json_array_get(tools, i), "function");
        if (constraint_may(m, function))
            ok = !json_object_set_new(m->g->rules.bare_calls, json_string_value(field(function, "name")),
                                      json_true());
    }
    return ok ? ST_OK : gen_nomem(m->g);
}

enum status gen_constraint_make(struct generation *g)
{
    const struct inference_request *p = &g->q;
    struct constraint_maker m = {.g = g};
    json_t *tools = g->rules.calls ? g->q.tools : NULL;
    if (p->given_count) return ST_OK; /* it was perhaps made with it */
    if (tools && bare_calls(&m, tools)) return ST_NOMEM;
    if (tools && !p->tool_choice.required && !p->tool_choice.limited && !any_strict(tools) && !p->format.kind)
        tools = NULL;
    if (!tools && !p->format.kind) return ST_OK;
    struct err err = {{0}};
    if (grammars_vocab(g->ctx->grammars, g->ctx->model, &g->vocab, &err)) return gen_nomem(m.g);
    g->compile.source = description(g, tools);
    g->compile.key = g->compile.source ? json_dumps(g->compile.source, JSON_COMPACT) : NULL;
    if (!g->compile.key) return gen_nomem(m.g);
    g->compile.bytes = strlen(g->compile.key);
    if (g->compile.bytes > LIMIT_CONSTRAINT_BYTES)
        return api_fail(g->e, 400, "unsupported_schema", gen_constraint_param(g),
                        "The constraint is too large: %zu bytes of JSON, at most %u are allowed.",
                        g->compile.bytes, LIMIT_CONSTRAINT_BYTES);
    g->grammar = grammars_find(g->ctx->grammars, g->compile.key, &g->warnings);
    if (g->grammar) gen_constraint_made(g);
    return ST_OK;
}

void gen_constraint_made(struct generation *g)
{
    json_decref(g->compile.source);
    free(g->compile.key);
    g->compile.source = NULL;
    g->compile.key = NULL;
    inference_request_form_free(&g->q);
}

enum status gen_constraint_compile(struct generation *g)
{
    struct grammars *all = g->ctx->grammars;
    struct constraint_maker m = {.g = g, .vocab = g->vocab};
    uint64_t tenant = gen_grammar_tenant(g);
    /* One with the same key may be cached meanwhile. */
    g->grammar = grammars_find(all, g->compile.key, &g->warnings);
    json_t *tools = json_object_get(g->compile.source, "functions");
    if (g->grammar) {
        grammars_dismiss(all, g->compile.bytes);
        return ST_OK;
    }
    m.notes = json_array();
    enum status st = m.notes ? build(&m, tools, &g->grammar) : gen_nomem(m.g);
    if (!st) st = warn(&m);
    json_decref(m.notes);
    if (st) {
        grammars_dismiss(all, g->compile.bytes);
        return st;
    }
    st = grammars_keep(all, g->compile.key, tenant, g->grammar, g->warnings);
    if (st == ST_TOO_LARGE)
        return api_fail(g->e, 400, "unsupported_schema", gen_constraint_param(g),
                        "The constraint takes %zu MiB compiled, more than the limit (--grammar-memory).",
                        grammar_bytes(g->grammar) >> 20);
    if (st == ST_AGAIN)
        return api_fail(g->e, 503, "grammar_memory", gen_constraint_param(g), "%s", gen_grammar_memory_full);
    return st ? gen_nomem(m.g) : ST_OK;
}

uint64_t gen_grammar_tenant(const struct generation *g)
{
    return g->caller.has_key && !g->caller.one_key ? g->caller.tenant : 0;
}

const char gen_grammar_memory_full[] =
    "The grammars in use leave too little of the memory for them (--grammar-memory): try again later.";

const char *gen_constraint_param(const struct generation *g)
{
    return g->q.format.param ? g->q.format.param : "tools";
}

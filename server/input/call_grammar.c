/* Grammars of function calls, in the syntaxes of chat/tool_calls/. */
#include "server/input/constraint.h"

#include "server/chat/tool_calls/tool_calls.h"
#include "server/grammar/regex_parse.h"
#include "server/json/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A part of a function's parameters as a standalone schema, in which its references still resolve. */
static json_t *part_of(const json_t *parameters, json_t *part)
{
    static const char *const shared[] = {"$defs", "definitions"};
    json_t *copy = json_is_object(part) ? json_copy(part) : json_is_boolean(part) ? json_incref(part) : NULL;
    for (size_t i = 0; i < 2 && json_is_object(copy); i++) {
        json_t *defs = json_object_get(parameters, shared[i]);
        if (defs && !json_object_get(copy, shared[i])) json_object_set(copy, shared[i], defs);
    }
    return copy;
}

/* ---- parameters, separated by `comma`: required or optional ---- */

static bool is_required(const json_t *parameters, const char *key)
{
    size_t i;
    json_t *one, *list = json_object_get(parameters, "required");
    json_array_foreach(list, i, one)
        if (json_is(one, key)) return true;
    return false;
}

/* list: the expression of each property, in the schema's order. */
static enum status members(struct constraint_maker *m, const json_t *schema, const gx *list,
                           const char *comma, gx *out)
{
    json_t *properties = json_object_get(schema, "properties"), *one;
    size_t n = json_object_size(properties), i = 0;
    struct gb_member *member = calloc(n + 1, sizeof *member);
    bool *required = calloc(n + 1, sizeof *required);
    const char *key;
    enum status st = member && required ? ST_OK : gen_nomem(m->g);
    json_object_foreach(properties, key, one) {
        if (st) break;
        member[i] = (struct gb_member){.what = list[i], .name = (uint32_t)i};
        required[i++] = is_required(schema, key);
    }
    struct gb_members all = {.list = member,
                             .count = n,
                             .names = (uint32_t)n,
                             .required = required,
                             .max = RX_NO_LIMIT,
                             .any_order = m->any_order,
                             .comma = constraint_literal(m, comma)};
    if (!st) *out = gb_members(m->b, &all);
    free(member);
    free(required);
    return st;
}

typedef enum status value_fn(struct constraint_maker *m, const json_t *parameters, json_t *schema,
                             const char *param, unsigned depth, gx *out);

static value_fn notation_value;

static const struct tool_syntax *syntax_of(const struct constraint_maker *m)
{
    return tool_syntax(m->g->rules.calls);
}

/* ---- values between tags ---- */

static bool only_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    return json_is(type, "string") ||
           (!type && !json_object_get(schema, "enum") && !json_object_get(schema, "const") &&
            !json_object_get(schema, "$ref") && !json_object_get(schema, "anyOf") &&
            !json_object_get(schema, "oneOf") && !json_object_get(schema, "allOf"));
}

/* A value as JSON; with TOOL_ARGUMENTS_TEXT strings are written verbatim: of the schema's keywords only
 * enumerations are enforced. */
static enum status plain_value(struct constraint_maker *m, const json_t *parameters, json_t *schema,
                               const char *param, unsigned depth, gx *out)
{
    static const char *const ends[] = {"</parameter>", "</function>",  "</tool_call>",
                                       "<parameter=",  "</arg_value>", "<arg_key>"};
    const json_t *values = json_object_get(schema, "enum");
    size_t n = json_array_size(values);
    bool text = syntax_of(m)->arguments == TOOL_ARGUMENTS_TEXT, texts = text && n > 0;
    (void)depth;
    for (size_t i = 0; i < n; i++) texts = texts && json_is_string(json_array_get(values, i));
    if (texts) return constraint_strings(m, values, out);
    if (text && only_text(schema)) {
        *out = constraint_text_without(m, ends, sizeof ends / sizeof *ends);
        return ST_OK;
    }
    json_t *part = part_of(parameters, schema);
    enum status st = part ? constraint_schema(m, part, true, param, out) : gen_nomem(m->g);
    json_decref(part);
    return st;
}

/* The properties of a schema, key by key. */
static enum status keys(struct constraint_maker *m, const json_t *root, json_t *schema, value_fn *value_of,
                        const char *param, unsigned depth, gx *out)
{
    const struct tool_syntax *s = syntax_of(m);
    json_t *properties = json_object_get(schema, "properties"), *one;
    gx *list = calloc(json_object_size(properties) + 1, sizeof *list);
    const char *key;
    size_t used = 0;
    enum status st = list ? ST_OK : gen_nomem(m->g);
    json_object_foreach(properties, key, one) {
        gx value;
        if (st || (st = value_of(m, root, one, param, depth + 1, &value))) break;
        list[used++] =
            GB_SEQ(m->b, constraint_literal(m, s->key), constraint_literal(m, key),
                   constraint_literal(m, s->after_key), value, constraint_literal(m, s->after_value));
    }
    if (!st) st = members(m, schema, list, s->comma, out);
    free(list);
    return st;
}

/* ---- notation: call:NAME{key:value,...} ---- */

#define NOTATION_DEPTH 24u

static gx quoted(struct constraint_maker *m, gx inside)
{
    gx quote = gb_tag(m->b, m->vocab, syntax_of(m)->quote);
    return GB_SEQ(m->b, quote, inside, quote);
}

static gx enclosed(struct constraint_maker *m, const char *open, gx inside, const char *close)
{
    return GB_SEQ(m->b, constraint_literal(m, open), inside, constraint_literal(m, close));
}

/* {key:value,...} of the properties. */
static enum status notation_object(struct constraint_maker *m, const json_t *root, json_t *schema,
                                   const char *param, unsigned depth, gx *out)
{
    gx inside = 0;
    enum status st = keys(m, root, schema, notation_value, param, depth, &inside);
    if (!st) *out = enclosed(m, "{", inside, "}");
    return st;
}

static uint32_t count_of(const json_t *schema, const char *key, uint32_t otherwise)
{
    json_t *v = json_object_get(schema, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < RX_NO_LIMIT
               ? (uint32_t)json_integer_value(v)
               : otherwise;
}

/* Any value: one rule for all. *object: any object. */
static gx notation_any(struct constraint_maker *m, gx *object)
{
    const char *const quote[] = {syntax_of(m)->quote};
    gx value = gb_rule(m->b), plain = 0, comma = constraint_literal(m, ",");
    json_t *schema = json_pack("{s:[s,s,s]}", "type", "number", "boolean", "null");
    if (!schema || constraint_schema(m, schema, true, "tools", &plain)) plain = 0;
    json_decref(schema);
    rx word = rx_repeat(gb_pool(m->b), rx_chars(gb_pool(m->b), 'a', 'z'), 1, 40);
    gx pair = GB_SEQ(m->b, gb_regex(m->b, word), constraint_literal(m, ":"), value);
    gx array = enclosed(m, "[", gb_list(m->b, value, comma, 0, RX_NO_LIMIT), "]");
    gx text = quoted(m, constraint_text_without(m, quote, 1));
    *object = enclosed(m, "{", gb_list(m->b, pair, comma, 0, RX_NO_LIMIT), "}");
    gb_define(m->b, value, GB_ALT(m->b, text, plain, *object, array));
    return value;
}

static enum status notation_texts(struct constraint_maker *m, const json_t *values, gx *out)
{
    size_t n = json_array_size(values);
    gx *list = calloc(n, sizeof *list);
    if (!list) return gen_nomem(m->g);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(values, i);
        char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY);
        list[i] = json_is_string(v) ? quoted(m, gb_literal(m->b, json_string_value(v), json_string_length(v)))
                                    : constraint_literal(m, text ? text : "");
        free(text);
    }
    *out = gb_alt(m->b, list, n);
    free(list);
    return ST_OK;
}

static enum status notation_alternatives(struct constraint_maker *m, const json_t *root, json_t *schemas,
                                         const char *param, unsigned depth, gx *out)
{
    size_t n = json_array_size(schemas);
    gx *list = calloc(n, sizeof *list);
    enum status st = list ? ST_OK : gen_nomem(m->g);
    for (size_t i = 0; i < n && !st; i++)
        st = notation_value(m, root, json_array_get(schemas, i), param, depth + 1, &list[i]);
    if (!st) *out = gb_alt(m->b, list, n);
    free(list);
    return st;
}

/* The shared rule of one of $defs, which notation_call defines. */
static gx notation_rule(struct constraint_maker *m, const char *name)
{
    json_t *known = json_object_get(m->rules, name);
    if (known) return (gx)json_integer_value(known);
    gx rule = gb_rule(m->b);
    return json_object_set_new(m->rules, name, json_integer(rule)) ? 0 : rule;
}

static enum status notation_value(struct constraint_maker *m, const json_t *root, json_t *schema,
                                  const char *param, unsigned depth, gx *out)
{
    const char *const quote[] = {syntax_of(m)->quote};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *ref = json_object_get(schema, "$ref");
    json_t *any = json_object_get(schema, "anyOf"), *items = json_object_get(schema, "items");
    const char *to = json_string_value(ref);
    gx object, value;
    if (to && strncmp(to, "#/$defs/", 8) == 0 && json_object_get(json_object_get(root, "$defs"), to + 8)) {
        *out = notation_rule(m, to + 8);
        return ST_OK;
    }
    if (depth >= NOTATION_DEPTH || ref) {
        *out = notation_any(m, &object);
        return ST_OK;
    }
    if (json_array_size(values)) return notation_texts(m, values, out);
    if (json_array_size(any)) return notation_alternatives(m, root, any, param, depth, out);
    if (json_is(type, "string")) {
        *out = quoted(m, constraint_text_without(m, quote, 1));
        return ST_OK;
    }
    if (json_is(type, "object") && json_object_size(json_object_get(schema, "properties")))
        return notation_object(m, root, schema, param, depth, out);
    if (json_is(type, "array") && json_is_object(items)) {
        gx item, comma = constraint_literal(m, ",");
        uint32_t min = count_of(schema, "minItems", 0), max = count_of(schema, "maxItems", RX_NO_LIMIT);
        enum status st = notation_value(m, root, items, param, depth + 1, &item);
        if (!st) *out = enclosed(m, "[", gb_list(m->b, item, comma, min, max), "]");
        return st;
    }
    if (json_is(type, "integer") || json_is(type, "number") || json_is(type, "boolean") ||
        json_is(type, "null"))
        return constraint_schema(m, schema, true, param, out);
    value = notation_any(m, &object);
    *out = json_is(type, "object") ? object : value;
    return ST_OK;
}

/* The arguments in the notation, with its braces. */
static enum status notation_arguments(struct constraint_maker *m, json_t *parameters, const char *param,
                                      gx *out)
{
    json_t *done = json_object(), *defs = json_object_get(parameters, "$defs"), *rule;
    m->rules = json_object();
    enum status st =
        done && m->rules ? notation_object(m, parameters, parameters, param, 0, out) : gen_nomem(m->g);
    while (!st && json_object_size(done) < json_object_size(m->rules)) {
        json_t *now = json_copy(m->rules); /* a definition may refer to more */
        const char *key;
        json_object_foreach(now, key, rule) {
            gx value;
            if (st || json_object_get(done, key)) continue;
            st = notation_value(m, parameters, json_object_get(defs, key), param, 0, &value);
            if (!st) gb_define(m->b, (gx)json_integer_value(rule), value);
            if (!st && json_object_set_new(done, key, json_true())) st = gen_nomem(m->g);
        }
        if (!now && !st) st = gen_nomem(m->g);
        json_decref(now);
    }
    json_decref(done);
    json_decref(m->rules);
    m->rules = NULL;
    return st;
}

/* ---- custom tools: text in a grammar, as the one argument ---- */

static enum status custom_text(struct constraint_maker *m, json_t *function, bool in_json, gx *out)
{
    json_t *format = field(function, "format"), *text = field(format, "definition");
    struct grammar_error error = {{0}, {0}};
    char param[160];
    rx a = RX_NONE;
    bool regex = json_is(field(format, "syntax"), "regex");
    enum status st =
        regex ? regex_parse(gb_pool(m->b), json_string_value(text), json_string_length(text), 0, &a, &error)
              : gb_text(m->b, json_string_value(text), json_string_length(text), in_json, out, &error);
    snprintf(param, sizeof param, "tools.%s.format", json_string_value(field(function, "name")));
    if (st) return constraint_error(m, st, param, &error);
    if (regex) *out = gb_regex(m->b, in_json ? rx_in_json(gb_pool(m->b), a) : a);
    return ST_OK;
}

/* As server/dialect/responses_in.c writes it; other functions may have a key `format` too. */
static bool is_custom(json_t *function)
{
    json_t *format = field(function, "format"),
           *properties = field(field(function, "parameters"), "properties");
    return json_is(field(format, "type"), "grammar") && json_is_string(field(format, "definition")) &&
           json_object_size(properties) == 1 && field(properties, "input");
}

/* The arguments of a custom tool: its text as `input`. */
static enum status custom_arguments(struct constraint_maker *m, json_t *function, gx *out)
{
    const struct tool_syntax *s = syntax_of(m);
    bool json = s->arguments == TOOL_ARGUMENTS_JSON, values = s->arguments == TOOL_ARGUMENTS_VALUES,
         notation = s->arguments == TOOL_ARGUMENTS_NOTATION;
    gx text;
    enum status st = custom_text(m, function, json || values, &text);
    if (st) return st;
    gx quote = constraint_literal(m, values ? "\"" : "");
    const char *open = json       ? "{\"input\": \""
                       : notation ? "{"
                                  : s->key,
               *close = json       ? "\"}"
                        : notation ? "}"
                                   : s->after_value;
    *out = GB_SEQ(m->b, constraint_literal(m, open), constraint_literal(m, json ? "" : "input"),
                  constraint_literal(m, s->after_key), quote, notation ? quoted(m, text) : text, quote,
                  constraint_literal(m, close));
    return ST_OK;
}

/* One JSON object: of the parameters' schema, or any. */
static enum status json_arguments(struct constraint_maker *m, const json_t *parameters, const char *param,
                                  gx *out)
{
    json_t *object =
        parameters ? json_copy((json_t *)parameters) : json_object(); /* with all other keywords */
    if (!object || json_object_set_new(object, "type", json_string("object")))
        return json_decref(object), gen_nomem(m->g);
    enum status st = constraint_schema(m, object, true, param, out);
    json_decref(object);
    return st;
}

enum status constraint_call(struct constraint_maker *m, json_t *function, enum call_schema use, size_t index,
                            gx *out)
{
    const struct tool_syntax *s = syntax_of(m);
    json_t *parameters = field(function, "parameters"), *none = json_object();
    bool notation = s->arguments == TOOL_ARGUMENTS_NOTATION, any = use == CALL_ANY;
    char param[64];
    gx arguments = 0;
    enum status st;
    (void)snprintf(param, sizeof param, "tools[%zu].function.parameters", index);
    m->any_order = gen_any_order(function);
    m->strict = constraint_must(m, function);
    if (!none) return gen_nomem(m->g);
    if (use == CALL_SCHEMA && !parameters) json_object_set_new(none, "additionalProperties", json_false());
    if (!parameters) parameters = none;
    if (is_custom(function)) st = custom_arguments(m, function, &arguments);
    else if (notation && !any) st = notation_arguments(m, parameters, param, &arguments);
    else if (notation) st = ((void)notation_any(m, &arguments), ST_OK);
    else if (s->arguments == TOOL_ARGUMENTS_JSON || any)
        st = json_arguments(m, use == CALL_SCHEMA ? parameters : NULL, param, &arguments);
    else st = keys(m, parameters, parameters, plain_value, param, 0, &arguments);
    json_decref(none);
    gx empty = constraint_literal(m, NULL);
    if (!st)
        *out = GB_SEQ(m->b, s->plain ? empty : gb_tag(m->b, m->vocab, s->opens[0]),
                      constraint_literal(m, s->before),
                      constraint_literal(m, json_string_value(field(function, "name"))),
                      notation ? empty : gb_tag(m->b, m->vocab, s->after), arguments,
                      notation ? empty : constraint_literal(m, s->end),
                      s->closes[0] ? gb_tag(m->b, m->vocab, s->closes[0]) : empty);
    return st;
}

/* ---- plain JSON, without tags ---- */

#define WS     "[ \\t\\r\\n]*"
#define MEMBER "(\"(type|id)\"" WS ":" WS "\"[^\"\\\\\\x00-\\x1f]{0,64}\"" WS "," WS ")*"

static rx bare_regex(struct constraint_maker *m, const char *text)
{
    struct grammar_error error;
    rx out = RX_NONE;
    return regex_parse(gb_pool(m->b), text, strlen(text), 0, &out, &error) ? RX_NONE : out;
}

/* A call from its brace to the brace of its arguments, as chat/tool_calls/ parses it. names: a regex. */
static enum status bare_head(struct constraint_maker *m, const char *names, rx *out)
{
    struct buf text;
    buf_init(&text, 1u << 16);
    enum status st = buf_addf(&text,
                              "\\{" WS MEMBER "\"name\"" WS ":" WS "\"(%s)\"" WS "," WS MEMBER
                              "\"(arguments|parameters)\"" WS ":" WS,
                              names);
    *out = st ? RX_NONE : bare_regex(m, text.data);
    buf_fini(&text);
    return *out ? ST_OK : gen_nomem(m->g); /* the regex is our own */
}

static enum status bare_call(struct constraint_maker *m, json_t *function, size_t index, gx *out)
{
    char param[64];
    snprintf(param, sizeof param, "tools[%zu].function.parameters", index);
    bool strict = gen_strict(function) && !constraint_weak(m, index);
    json_t *parameters = strict ? field(function, "parameters") : NULL, *own = NULL;
    rx head;
    gx arguments;
    m->any_order = gen_any_order(function);
    m->strict = constraint_must(m, function);
    if (!parameters)
        parameters = own = json_pack("{s:s,s:b}", "type", "object", "additionalProperties", !strict);
    enum status st =
        parameters ? bare_head(m, json_string_value(field(function, "name")), &head) : gen_nomem(m->g);
    if (!st && is_custom(function)) {
        gx text = 0;
        st = custom_text(m, function, true, &text);
        arguments = enclosed(m, "{\"input\": \"", text, "\"}");
    } else if (!st) {
        st = constraint_schema(m, parameters, false, param, &arguments);
    }
    json_decref(own);
    if (st) return st;
    *out = GB_SEQ(m->b, gb_regex(m->b, head), arguments, gb_regex(m->b, bare_regex(m, WS "\\}")));
    return ST_OK;
}

enum status constraint_bare_calls(struct constraint_maker *m, json_t *tools, bool one, rx *excluded, gx *out)
{
    struct rx_pool *pool = gb_pool(m->b);
    size_t n = json_array_size(tools), used = 0;
    gx *calls = calloc(n + 1, sizeof *calls);
    struct buf names;
    buf_init(&names, 1u << 15);
    enum status st = calls ? ST_OK : gen_nomem(m->g);
    for (size_t i = 0; i < n && !st; i++) {
        json_t *function = field(json_array_get(tools, i), "function");
        if (!constraint_may(m, function)) continue;
        if (buf_addf(&names, "%s%s", used ? "|" : "", json_string_value(field(function, "name"))))
            st = gen_nomem(m->g);
        else st = bare_call(m, function, i, &calls[used++]);
    }
    rx head, front = bare_regex(m, WS "(```[A-Za-z_]{0,64}" WS ")?(\\[" WS ")?");
    if (!st) st = bare_head(m, names.data, &head);
    if (!st) {
        rx begin = rx_concat(pool, head, rx_concat(pool, rx_literal(pool, "{", 1), RX_ALL));
        *excluded = rx_concat(pool, front, begin);
        gx between = gb_regex(m->b, bare_regex(m, "[ \\t\\r\\n,;]{0,16}")),
           end = gb_regex(m->b, bare_regex(m, "[ \\t\\r\\n]{0,16}\\]?[ \\t\\r\\n]{0,16}(```)?"));
        gx list = gb_list(m->b, gb_alt(m->b, calls, used), between, 1, one ? 1 : RX_NO_LIMIT);
        *out = GB_SEQ(m->b, gb_regex(m->b, front), list, end);
    }
    buf_fini(&names);
    free(calls);
    return st;
}

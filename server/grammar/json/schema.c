/* JSON Schema (drafts 4 to 2020-12) -> grammars. Conjunctions of schemas are merged into one first; then each
 * possible type of a value is one alternative. Keywords that can't be enforced are rejected with their place;
 * annotations are ignored. */
#include "config/base/assert.h"
#include "server/grammar/json/schema.h"
#include "config/base/decimal.h"

#include "server/grammar/json/number.h"
#include "server/grammar/regex_parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 160u
/* Limit on alternatives from not, oneOf, if and dependencies, which may be nested. */
#define FORKS_MAX  80u
#define VALUES_MAX 1000u /* of a range of integers */

/* ---- small parts ---- */

static gx lit(struct schema_maker *m, const char *text)
{
    return gb_literal(m->b, text, strlen(text));
}

/* Nothing, a space, or a line break with indentation: with more, a model might never stop. */
static rx blank(struct schema_maker *m)
{
    if (m->blank) return m->blank;
    static const uint32_t indent[8] = {1u << '\t', 1};
    rx line =
        rx_concat(m->p, rx_repeat(m->p, rx_literal(m->p, "\r", 1), 0, 1),
                  rx_concat(m->p, rx_literal(m->p, "\n", 1), rx_repeat(m->p, rx_bytes(m->p, indent), 0, 80)));
    m->blank = rx_alt(m->p, RX_EMPTY, rx_alt(m->p, rx_literal(m->p, " ", 1), line));
    return m->blank;
}

gx schema_sign(struct schema_maker *m, const char *text)
{
    ASSERT(text[0] && !text[1]); /* one character */
    bool separates = text[0] == ',' || text[0] == ':';
    gx *known = text[0] == ',' ? &m->comma : &m->colon;
    if (separates && *known) return *known;
    rx after = m->opt->any_whitespace ? blank(m) : separates ? rx_literal(m->p, " ", 1) : RX_EMPTY;
    gx out = gb_regex(m->b, rx_concat(m->p, rx_literal(m->p, text, strlen(text)), after));
    if (separates) *known = out;
    return out;
}

gx schema_enclosed(struct schema_maker *m, const char *brackets, gx inside)
{
    ASSERT_CMP(strlen(brackets), ==, 2);
    const char open[] = {brackets[0], '\0'};
    rx before = m->opt->any_whitespace ? blank(m) : RX_EMPTY;
    gx close = gb_regex(m->b, rx_concat(m->p, before, rx_literal(m->p, brackets + 1, 1)));
    return GB_SEQ(m->b, schema_sign(m, open), inside, close);
}

/* Any JSON value: one recursive rule. */
static gx any_value(struct schema_maker *m)
{
    if (m->any) return m->any;
    m->any = gb_rule(m->b);
    struct number_bounds number = {0};
    gx comma = schema_sign(m, ","), text = gb_regex(m->b, schema_any_string(m));
    gx pair = GB_SEQ(m->b, text, schema_sign(m, ":"), m->any);
    gx object = schema_enclosed(m, "{}", gb_list(m->b, pair, comma, 0, RX_NO_LIMIT));
    gx array = schema_enclosed(m, "[]", gb_list(m->b, m->any, comma, 0, RX_NO_LIMIT));
    gx digits = gb_regex(m->b, json_number(m->p, &number));
    gb_define(m->b, m->any,
              GB_ALT(m->b, text, digits, lit(m, "true"), lit(m, "false"), lit(m, "null"), object, array));
    return m->any;
}

/* ---- values ---- */

static gx real(struct schema_maker *m, double v)
{
    char text[DECIMAL_BYTES]; /* 1.5 and 1.50000000000000000 are equal: use the shortest */
    decimal_shortest(v, false, 1, text);
    gx out = lit(m, text);
    return strpbrk(text, ".e") ? out : GB_SEQ(m->b, out, gb_repeat(m->b, lit(m, ".0"), 0, 1));
}

static gx object_value(struct schema_maker *m, const json_t *v)
{
    size_t n = json_object_size(v), i = 0;
    struct gb_member *list = calloc(n + 1, sizeof *list);
    bool *required = calloc(n + 1, sizeof *required);
    const char *key;
    json_t *one;
    gx out = 0;
    json_object_foreach((json_t *)(uintptr_t)v, key, one) {
        if (!list || !required) break;
        gx name = gb_regex(m->b, schema_this_string(m, key, strlen(key)));
        required[i] = true;
        list[i] =
            (struct gb_member){GB_SEQ(m->b, name, schema_sign(m, ":"), schema_value(m, one)), (uint32_t)i, 0};
        i++;
    }
    struct gb_members all = {.list = list,
                             .count = n,
                             .names = (uint32_t)n,
                             .required = required,
                             .max = RX_NO_LIMIT,
                             .any_order = m->opt->any_order,
                             .comma = schema_sign(m, ",")};
    if (!list || !required) (void)schema_nomem(m);
    else out = gb_members(m->b, &all);
    free(list);
    free(required);
    return schema_enclosed(m, "{}", out);
}

gx schema_value(struct schema_maker *m, const json_t *v)
{
    if (json_is_string(v))
        return gb_regex(m->b, schema_this_string(m, json_string_value(v), json_string_length(v)));
    if (json_is_real(v)) return real(m, json_real_value(v));
    if (json_is_object(v)) return object_value(m, v);
    if (!json_is_array(v)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        gx out = text ? lit(m, text) : 0;
        free(text);
        return out;
    }
    gx list = gb_seq(m->b, NULL, 0);
    json_t *one;
    size_t i;
    json_array_foreach(v, i, one) {
        gx here = schema_value(m, one);
        list = i ? GB_SEQ(m->b, list, GB_SEQ(m->b, schema_sign(m, ","), here)) : here;
    }
    return schema_enclosed(m, "[]", list);
}

/* Those between the bounds, which schema_valid checks further; NULL: too many. */
static json_t *integers(struct schema_maker *m, const json_t *s)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    double end[2] = {-HUGE_VAL, HUGE_VAL};
    for (int k = 0; k < 4; k++) {
        json_t *v = json_object_get(s, keys[k]);
        double *to = &end[k / 2], x = json_number_value(v);
        if (v && (k < 2 ? x > *to : x < *to)) *to = x;
    }
    if (!(end[1] - end[0] <= VALUES_MAX) || fabs(end[0]) > 0x1p52) return NULL;
    json_t *out = keep(m, json_array());
    for (double x = ceil(end[0]); x <= end[1]; x++) json_array_append_new(out, json_integer((json_int_t)x));
    return out;
}

static json_t *values_of(struct schema_maker *m, const json_t *s, const struct path *at, unsigned depth)
{
    json_t *all = keep(m, schema_merged(m, s, at)), *out = keep(m, json_array()), *v, *any, *list, *branch;
    size_t i, k;
    if (m->st) return NULL;
    list = json_object_get(all, "enum");
    if (json_object_get(all, "const")) list = keep(m, json_pack("[O]", json_object_get(all, "const")));
    if (!list && !(schema_types(all) & ~(unsigned)(JT_NULL | JT_BOOLEAN)))
        list = keep(m, json_pack("[n,b,b]", 1, 0));
    any = json_object_get(all, "anyOf");
    if (!any) any = json_object_get(all, "oneOf");
    if (!list && any && depth < 8) {
        list = keep(m, json_array());
        json_array_foreach(any, i, branch) {
            json_t *some = values_of(m, branch, at, depth + 1);
            if (!some) return NULL;
            json_array_foreach(some, k, v) json_array_append(list, v);
        }
    }
    if (!list && schema_types(all) == JT_INTEGER) list = integers(m, all);
    if (!list) return NULL;
    json_t *seen = keep(m, json_object());
    json_array_foreach(list, i, v) {
        if (m->st) return NULL;
        if (!schema_add(m, seen, v)) continue;
        enum verdict ok = schema_valid(m, all, v);
        if (ok == UNKNOWN) schema_relax(m, at, "\"enum\" with these keywords is not supported");
        if (ok != NO) json_array_append(out, v);
    }
    return out;
}

json_t *schema_values(struct schema_maker *m, const json_t *s, const struct path *at)
{
    return values_of(m, s, at, 0);
}

static gx values(struct schema_maker *m, const json_t *s, const struct path *at)
{
    json_t *list = schema_values(m, s, at), *v;
    size_t n = json_array_size(list), i;
    gx *out = calloc(n + 1, sizeof *out);
    if (!out) return (void)schema_nomem(m), 0;
    json_array_foreach(list, i, v) out[i] = schema_value(m, v);
    gx all = m->st ? 0 : gb_alt(m->b, out, n);
    free(out);
    return all;
}

/* ---- a schema ---- */

static gx by_types(struct schema_maker *m, const json_t *s, const struct path *at)
{
    unsigned types = schema_types(s), numbers = types & (JT_INTEGER | JT_NUMBER);
    json_t *nots = json_object_get(s, SK_NOT_VALUES), *no = json_false(), *yes = json_true(),
           *null = json_null();
    gx list[8];
    size_t n = 0;
    if (types & JT_OBJECT) list[n++] = schema_object(m, s, at);
    if (types & JT_ARRAY && !m->st) list[n++] = schema_array(m, s, at);
    if (types & JT_STRING && !m->st) list[n++] = gb_regex(m->b, schema_string(m, s, at));
    if (numbers && !m->st) list[n++] = gb_regex(m->b, schema_number(m, s, numbers, at));
    if (types & JT_BOOLEAN && !schema_listed(m, nots, yes)) list[n++] = lit(m, "true");
    if (types & JT_BOOLEAN && !schema_listed(m, nots, no)) list[n++] = lit(m, "false");
    if (types & JT_NULL && !schema_listed(m, nots, null)) list[n++] = lit(m, "null");
    return m->st ? 0 : gb_alt(m->b, list, n);
}

static gx plain(struct schema_maker *m, const json_t *s, const struct path *at);

static bool says_something(const json_t *s)
{
    static const char *const notes[] = {"title", "description", "default",    "examples",    "$schema",
                                        "$id",   "$comment",    "readOnly",   "id",          "writeOnly",
                                        "$defs", "$anchor",     "deprecated", "definitions", "example"};
    size_t n = json_object_size(s);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) n -= json_object_get(s, notes[i]) != NULL;
    return n > 0;
}

/* Merges the rest of the schema into each alternative. first: the alternative's keywords come first. */
static gx branches(struct schema_maker *m, const json_t *rest, const json_t *list, bool first,
                   const struct path *at)
{
    size_t n = json_array_size(list), used = 0;
    gx *out = calloc(n + 1, sizeof *out);
    if (!out) (void)schema_nomem(m);
    for (size_t i = 0; i < n && !m->st; i++) {
        struct path here = {at, NULL, i};
        const json_t *only = json_array_get(list, i);
        if (!says_something(rest)) { /* no siblings: a standalone schema */
            out[used++] = schema_compile(m, only, &here);
            continue;
        }
        if (!json_is_object(only) && !json_is_boolean(only))
            (void)schema_refuse(m, &here, ST_INVALID, "a schema must be an object or a boolean");
        json_t *one = m->st ? NULL : schema_merged(m, only, &here), *both;
        if (json_object_get(only, "$ref") && one) { /* may be recursive: identified by its text */
            both = keep(m, json_pack("{s:[O,O]}", "allOf", first ? only : rest, first ? rest : only));
            if (!schema_empty(m, both)) out[used++] = schema_compile(m, both, &here);
            json_decref(one);
            continue;
        }
        both = !one ? NULL : first ? schema_merge(m, one, rest, &here) : schema_merge(m, rest, one, &here);
        json_decref(one);
        if (both && !schema_empty(m, keep(m, both))) out[used++] = schema_compile(m, both, &here);
    }
    m->forks += (unsigned)used;
    gx all = m->st ? 0 : gb_alt(m->b, out, used);
    free(out);
    return all;
}

/* oneOf as: each alternative, with the negation of all others that it does not already exclude. */
static json_t *exactly_one(struct schema_maker *m, const json_t *list, const json_t *rest)
{
    size_t n = json_array_size(list);
    json_t *out = keep(m, json_array());
    bool *meet = m->st ? NULL : calloc(n * n + 1, sizeof *meet);
    if (!meet) return (void)schema_nomem(m), out;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i && !m->st; k++)
            meet[i * n + k] = meet[k * n + i] =
                !schema_disjoint(m, json_array_get(list, i), json_array_get(list, k), rest);
    for (size_t i = 0; i < n; i++) {
        json_t *all = json_pack("[O]", json_array_get(list, i));
        for (size_t k = 0; k < n; k++)
            if (meet[i * n + k])
                json_array_append_new(all, json_pack("{s:O}", "not", json_array_get(list, k)));
        if (json_array_size(all) == 1) json_array_append(out, json_array_get(all, 0));
        else json_array_append_new(out, json_pack("{s:O}", "allOf", all));
        json_decref(all);
    }
    free(meet);
    return out;
}

/* If all branches enumerate their values: the values in exactly one branch, as a schema; else NULL. */
static json_t *listed_once(struct schema_maker *m, const json_t *list)
{
    json_t *all = keep(m, json_array()), *once = keep(m, json_object()), *twice = keep(m, json_object()),
           *out = keep(m, json_array()), *branch, *v;
    size_t i, k;
    json_array_foreach(list, i, branch) {
        json_t *values = json_object_get(branch, "enum"), *one = json_object_get(branch, "const"),
               *seen = keep(m, json_object());
        if (one) values = keep(m, json_pack("[O]", one));
        if (!values) return NULL;
        json_array_foreach(values, k, v) {
            enum verdict ok = schema_valid(m, branch, v);
            if (ok == UNKNOWN || m->st) return NULL;
            if (ok == NO || !schema_add(m, seen, v)) continue;
            if (schema_add(m, once, v)) json_array_append(all, v);
            else (void)schema_add(m, twice, v);
        }
    }
    json_array_foreach(all, i, v)
        if (schema_add(m, twice, v)) json_array_append(out, v);
    return keep(m, json_pack("[{s:O}]", "enum", out));
}

/* if, then, else as alternatives. */
static json_t *conditional(struct schema_maker *m, const json_t *s)
{
    json_t *cond = json_object_get(s, "if"), *then = json_object_get(s, "then"),
           *other = json_object_get(s, "else");
    return keep(m, json_pack("[{s:[O,O]},{s:[{s:O},O]}]", "allOf", cond, then ? then : keep(m, json_true()),
                             "allOf", "not", cond, other ? other : keep(m, json_true())));
}

/* One dependent schema as alternatives; the rest of the keyword stays. NULL: none. */
static json_t *dependent(struct schema_maker *m, json_t *s)
{
    static const char *const keys[] = {"dependencies", "dependentSchemas"};
    const char *key;
    json_t *v;
    for (int k = 0; k < 2; k++)
        json_object_foreach(json_object_get(s, keys[k]), key, v) {
            if (json_is_array(v)) continue;
            json_t *left = schema_without(json_object_get(s, keys[k]), key);
            json_t *out = keep(m, json_pack("[{s:{s:b}},{s:[{s:s,s:[s]},O]}]", "properties", key, 0, "allOf",
                                            "type", "object", "required", key, v));
            json_object_set_new(s, keys[k], left);
            if (!json_object_size(left)) json_object_del(s, keys[k]);
            return out;
        }
    return NULL;
}

/* Extracts the schema's first keyword with alternatives: *list; NULL: none. whole: the complete schema. */
static const char *take(struct schema_maker *m, json_t *s, const json_t *whole, json_t **list,
                        const struct path *at)
{
    json_t *v, *n;
    if ((v = json_object_get(s, "anyOf"))) {
        *list = keep(m, json_incref(v));
        json_object_del(s, "anyOf");
        return "anyOf";
    }
    if ((v = json_object_get(s, "oneOf"))) {
        json_t *left = keep(m, schema_without(whole, "oneOf"));
        *list = listed_once(m, v);
        if (!*list && json_array_size(v) > FORKS_MAX)
            (void)schema_refuse(m, at, ST_TOO_LARGE, "\"oneOf\" leaves too many alternatives");
        if (!*list) *list = exactly_one(m, v, left);
        json_object_del(s, "oneOf");
        return "oneOf";
    }
    if (json_object_get(s, "if")) {
        bool says = !m->no_if && (json_object_get(s, "then") || json_object_get(s, "else"));
        *list = says ? conditional(m, s) : keep(m, json_pack("[b]", 1));
        json_object_del(s, "if");
        json_object_del(s, "then");
        json_object_del(s, "else");
        return "if";
    }
    if ((*list = dependent(m, s))) return "dependencies";
    if ((n = json_object_get(s, "not"))) {
        json_t *left = keep(m, schema_without(whole, "not"));
        if (schema_disjoint(m, left, n, NULL)) { /* it adds no constraint */
            *list = keep(m, json_pack("[b]", 1));
            json_object_del(s, "not");
            return "not";
        }
        struct path in = {at, "not", 0};
        v = keep(m, schema_not(m, n, &in));
        *list = json_object_get(v, "anyOf");
        if (!*list || json_object_size(v) > 1) *list = keep(m, json_pack("[O]", v));
        json_object_del(s, "not");
        return "not";
    }
    return NULL;
}

/* One without $ref and allOf. */
static gx plain(struct schema_maker *m, const json_t *s, const struct path *at)
{
    static const char *const refused[] = {"$dynamicRef", "$recursiveRef", "unevaluatedItems"};
    json_t *all = json_object_get(s, SK_ALL), *list = NULL;
    if (json_is_true(s) || (json_is_object(s) && !json_object_size(s))) return any_value(m);
    if (!json_is_object(s)) return gb_alt(m->b, NULL, 0);
    for (size_t i = 0; i < schema_sibling_count(s); i++)
        for (int k = 0; k < 3; k++)
            if (json_object_get(schema_siblings(s, i), refused[k]))
                return (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"%s\" is not supported", refused[k]), 0;
    if (json_object_get(s, "enum") || json_object_get(s, "const")) return values(m, s, at);
    for (size_t i = 0; i < schema_sibling_count(s); i++) {
        json_t *one = keep(m, json_copy(schema_siblings(s, i))), *rest = one,
               *left = i ? keep(m, json_copy(all)) : NULL;
        if (i) { /* all but this one */
            json_array_remove(left, i - 1);
            rest = keep(m, json_copy((json_t *)(uintptr_t)s));
            json_object_set(rest, SK_ALL, left);
        }
        const char *key = take(m, one, rest, &list, at);
        struct path in = {at, key, 0};
        if (m->st) return 0;
        if (!key) continue;
        if (i && json_object_size(one)) json_array_insert(left, i - 1, one);
        if (i && !json_array_size(left)) json_object_del(rest, SK_ALL);
        bool first = false;
        const char *name;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)s, name, v) /* document order */
        {
            if (strcmp(name, key) == 0) first = true;
            if (first || strcmp(name, "properties") == 0) break;
        }
        unsigned forks = m->forks;
        gx out = branches(m, rest, list, first && i == 0, &in);
        if (strcmp(key, "anyOf") == 0) m->forks = forks;
        if (m->forks > FORKS_MAX)
            (void)schema_refuse(m, &in, ST_TOO_LARGE, "\"%s\" leaves too many alternatives", key);
        return m->st ? 0 : out;
    }
    return by_types(m, s, at);
}

gx schema_compile(struct schema_maker *m, const json_t *schema, const struct path *at)
{
    static const char *const keys[] = {"$ref", "allOf", "not"};
    bool recursive = false;
    char address[32], *key = address;
    if (m->st) return 0;
    if (m->depth >= DEPTH_MAX)
        return (void)schema_refuse(m, at, ST_TOO_LARGE, "the schema is nested too deeply"), 0;
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return (void)schema_refuse(m, at, ST_INVALID, "a schema must be an object or a boolean"), 0;
    if (!json_object_size(schema)) return plain(m, schema, at);
    for (int i = 0; i < 3; i++) recursive = recursive || json_object_get(schema, keys[i]);
    /* It may be recursive: equal schemas share a rule. */
    if (recursive) key = json_dumps(schema, JSON_COMPACT | JSON_SORT_KEYS);
    else snprintf(address, sizeof address, "%p", (const void *)schema);
    if (!key) return (void)schema_nomem(m), 0;
    json_t *known = json_object_get(m->rules, key);
    gx out = known ? (gx)json_integer_value(known) : recursive ? gb_rule(m->b) : 0;
    if (!known) {
        m->depth++;
        if (recursive) {
            json_object_set_new(m->rules, key, json_integer(out));
            json_t *all = schema_merged(m, schema, at);
            if (all) gb_define(m->b, out, plain(m, keep(m, all), at));
        } else {
            out = plain(m, schema, at);
            json_object_set_new(m->rules, key, json_integer(out));
        }
        m->depth--;
    }
    if (key != address) free(key);
    return out;
}

/* A key reserved for internal keywords. */
static bool has_our_key(json_t *v, unsigned depth)
{
    const char *key;
    json_t *one;
    size_t i;
    if (depth > 1000) return true;
    json_object_foreach(v, key, one)
        if (key[0] == 1 || has_our_key(one, depth + 1)) return true;
    json_array_foreach(v, i, one)
        if (has_our_key(one, depth + 1)) return true;
    return json_is_string(v) && json_string_value(v)[0] == 1;
}

/* Is the schema's draft at most this one? */
static bool is_draft(const json_t *root, int last)
{
    const char *s = json_string_value(json_object_get(root, "$schema")),
               *at = s ? strstr(s, "draft-0") : NULL;
    return at && at[7] >= '1' && at[7] <= '0' + last;
}

enum status gb_schema(struct grammar_builder *b, const json_t *schema, const struct grammar_json_options *opt,
                      gx *out, struct grammar_error *error)
{
    struct path root = {0};
    struct schema_maker m = {.b = b, .p = gb_pool(b), .opt = opt, .error = error};
    m.keep = json_array();
    m.rules = json_object();
    m.sets = json_object();
    m.checked = json_object();
    json_t *own = json_deep_copy(schema);
    m.root = own;
    *error = (struct grammar_error){{0}, {0}};
    if (!m.keep || !m.rules || !m.sets || !m.checked || !own) (void)schema_nomem(&m);
    if (has_our_key(own, 0))
        (void)schema_refuse(&m, NULL, ST_UNSUPPORTED, "a key or text begins with a control character");
    if (!m.st) schema_check_shape(&m, own, &root);
    m.old_refs = is_draft(own, 7);
    m.no_if = is_draft(own, 6);
    *out = m.st ? 0 : schema_compile(&m, own, &root);
    ASSERT_CMP(m.depth, ==, 0);
    if (!m.st && rx_status(m.p)) (void)schema_refuse(&m, NULL, rx_status(m.p), "the schema is too large");
    if (!m.st && !*out) (void)schema_refuse(&m, NULL, ST_TOO_LARGE, "the schema is too large");
    json_decref(m.keep);
    json_decref(m.rules);
    json_decref(m.sets);
    json_decref(m.checked);
    json_decref(own);
    return m.st;
}

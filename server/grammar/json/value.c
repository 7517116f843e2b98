/* Scalars of JSON schemas as regular expressions, and validation of a value against a schema. */
#include "server/grammar/json/number.h"
#include "server/grammar/json/schema.h"
#include "server/grammar/regex_parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX    100000u
#define DEEP         48u
#define MULTIPLE_MAX 128u /* residues, each a state, which a search for a way on visits */

/* ---- small parts ---- */

/* So many of the character, in quotes. */
static rx string_of(struct rx_pool *p, rx character, uint32_t min, uint32_t max)
{
    rx quote = rx_literal(p, "\"", 1);
    return rx_concat(p, quote, rx_concat(p, rx_repeat(p, character, min, max), quote));
}

/* No needless \u escapes: a string then has few spellings. */
rx schema_plain_string(struct schema_maker *m)
{
    if (!m->plain) m->plain = string_of(m->p, json_chars(m->p, 0, 0x10FFFF), 0, RX_NO_LIMIT);
    return m->plain;
}

rx schema_any_string(struct schema_maker *m)
{
    if (!m->string) m->string = string_of(m->p, json_any_char(m->p), 0, RX_NO_LIMIT);
    return m->string;
}

rx schema_this_string(struct schema_maker *m, const char *s, size_t len)
{
    rx out = rx_literal(m->p, "\"", 1);
    rx *list = calloc(len + 1, sizeof *list);
    size_t n = 0;
    if (!list) return (void)schema_nomem(m), RX_NONE;
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x80) {
            list[n++] = json_chars(m->p, c, c);
            i++;
            continue;
        }
        size_t k = 1;
        while (i + k < len && ((unsigned char)s[i + k] & 0xC0) == 0x80) k++;
        list[n++] = rx_literal(m->p, s + i, k);
        i += k;
    }
    while (n-- > 0) out = rx_concat(m->p, list[n], out);
    free(list);
    return rx_concat(m->p, rx_literal(m->p, "\"", 1), out);
}

bool schema_has_name(struct schema_maker *m, rx names, const char *name)
{
    char *text = NULL;
    json_t *s = json_string(name);
    if (s) text = json_dumps(s, JSON_ENCODE_ANY);
    json_decref(s);
    if (!text) return (void)schema_nomem(m), false;
    for (const char *c = text; *c && names; c++) names = rx_derivative(m->p, names, (uint8_t)*c);
    free(text);
    return rx_nullable(m->p, names);
}

void schema_counts(struct schema_maker *m, const json_t *s, const char *what, uint32_t *min, uint32_t *max,
                   const struct path *at)
{
    for (int k = 0; k < 2; k++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s", k ? "max" : "min", what);
        const json_t *v = json_object_get(s, key);
        double n = json_number_value(v);
        if (!v) continue;
        if (!json_is_number(v) || n < 0)
            (void)schema_refuse(m, at, ST_INVALID, "\"%s\" must be a number that is not negative", key);
        else *(k ? max : min) = n > COUNT_MAX ? RX_NO_LIMIT : (uint32_t)n;
        if (n > COUNT_MAX && !k) (void)schema_refuse(m, at, ST_TOO_LARGE, "\"%s\" is too large", key);
    }
}

/* ---- strings ---- */

rx schema_pattern(struct schema_maker *m, const json_t *pattern, bool relax, const struct path *at)
{
    struct grammar_error error = {{0}, {0}};
    rx out = RX_NONE;
    if (!json_is_string(pattern)) {
        (void)schema_refuse(m, at, ST_INVALID, "\"pattern\" must be a string");
        return RX_NONE;
    }
    enum status st =
        regex_parse_json(m->p, json_string_value(pattern), json_string_length(pattern), &out, &error);
    if (st == ST_UNSUPPORTED && relax) schema_relax(m, at, "%s", error.message);
    else if (st) (void)schema_refuse(m, at, st, "%s", error.message);
    return st ? RX_ALL : out;
}

rx schema_string(struct schema_maker *m, const json_t *s, const struct path *at)
{
    rx out = schema_any_string(m), none = RX_NONE;
    uint32_t min = 0, max = RX_NO_LIMIT;
    const json_t *v;
    size_t i;
    schema_counts(m, s, "Length", &min, &max, at);
    if (max < min) return RX_NONE;
    if (min || max != RX_NO_LIMIT) out = string_of(m->p, json_any_char(m->p), min, max);
    for (i = 0; i < schema_sibling_count(s); i++) {
        const json_t *one = schema_siblings(s, i), *pattern = json_object_get(one, "pattern"),
                     *not_pattern = json_object_get(one, SK_NOT_PATTERN);
        const char *format = json_string_value(json_object_get(one, "format")),
                   *not_format = json_string_value(json_object_get(one, SK_NOT_FORMAT));
        if (pattern) out = rx_and(m->p, out, schema_pattern(m, pattern, true, at));
        rx not_it = not_pattern ? schema_pattern(m, not_pattern, true, at) : RX_NONE;
        if (not_it != RX_ALL) none = rx_alt(m->p, none, not_it);
        if (not_format) none = rx_alt(m->p, none, schema_format(m, not_format));
        rx f = format ? schema_format(m, format) : RX_NONE;
        if (f) out = rx_and(m->p, out, f);
    }
    json_array_foreach(json_object_get(s, SK_NOT_VALUES), i, v)
        if (json_is_string(v))
            none = rx_alt(m->p, none, schema_this_string(m, json_string_value(v), json_string_length(v)));
    return none ? rx_and(m->p, out, rx_and(m->p, schema_plain_string(m), rx_not(m->p, none))) : out;
}

/* ---- numbers ---- */

static void bound(const json_t *s, const char *key, const char *exclusive, bool lower,
                  struct number_bounds *b)
{
    const json_t *v = json_object_get(s, key), *x = json_object_get(s, exclusive);
    bool *has = lower ? &b->has_min : &b->has_max, *strict = lower ? &b->over_min : &b->under_max;
    double *to = lower ? &b->min : &b->max;
    double n = json_number_value(x);
    *has = v || x;
    *to = json_number_value(v);
    *strict = x && (!v || (lower ? n >= *to : n <= *to));
    if (*strict) *to = n;
}

/* Literals of the multiples of a number. RX_NONE: it has too many digits. */
static rx multiples(struct rx_pool *p, double step)
{
    uint32_t decimals = 0, zeros = 0;
    for (; decimals < 12 && fabs(step - nearbyint(step)) > 1e-9 * step; decimals++) step *= 10;
    for (; step >= 10 && !(fmod(step, 10) > 0); zeros++) step /= 10;
    double n = nearbyint(step);
    if (n < 1 || n > MULTIPLE_MAX || fabs(step - n) > 1e-9 * n || zeros > 300) return RX_NONE;
    rx zero = rx_literal(p, "0", 1), out = rx_multiple(p, (uint32_t)n, decimals);
    if (zeros) out = rx_alt(p, zero, rx_concat(p, out, rx_repeat(p, zero, zeros, zeros)));
    if (!decimals) {
        rx part = rx_concat(p, rx_literal(p, ".", 1), rx_repeat(p, zero, 1, RX_NO_LIMIT));
        out = rx_concat(p, out, rx_repeat(p, part, 0, 1));
    }
    return rx_concat(p, rx_repeat(p, rx_literal(p, "-", 1), 0, 1), out);
}

rx schema_number(struct schema_maker *m, const json_t *s, unsigned types, const struct path *at)
{
    struct number_bounds b = {.integer = !(types & JT_NUMBER)};
    const json_t *nots = json_object_get(s, SK_NOT_VALUES), *v;
    rx steps = RX_ALL;
    size_t i;
    bound(s, "minimum", "exclusiveMinimum", true, &b);
    bound(s, "maximum", "exclusiveMaximum", false, &b);
    for (i = 0; i < schema_sibling_count(s); i++) {
        const json_t *step = json_object_get(schema_siblings(s, i), "multipleOf");
        rx one = step ? multiples(m->p, json_number_value(step)) : RX_ALL;
        if (one) steps = rx_and(m->p, steps, one);
        else schema_relax(m, at, "\"multipleOf\" of %g is not supported", json_number_value(step));
    }
    b.plain = types == JT_NUMBER || json_array_size(nots) || steps != RX_ALL;
    rx out = rx_and(m->p, json_number(m->p, &b), steps), point = rx_literal(m->p, ".", 1);
    if (types == JT_NUMBER) { /* the fraction is not zero */
        rx zeros = rx_repeat(m->p, rx_literal(m->p, "0", 1), 0, RX_NO_LIMIT);
        out = rx_and(m->p, out, rx_concat(m->p, RX_ALL, rx_concat(m->p, point, RX_ALL)));
        out = rx_and(m->p, out, rx_not(m->p, rx_concat(m->p, RX_ALL, rx_concat(m->p, point, zeros))));
    }
    json_array_foreach(nots, i, v) {
        double x = json_number_value(v);
        struct number_bounds one = {.has_min = true, .has_max = true, .min = x, .max = x, .plain = true};
        if (!json_is_number(v)) continue;
        rx same = json_number(m->p, &one);
        if (!(x < 0) && !(x > 0)) same = rx_alt(m->p, same, rx_concat(m->p, rx_literal(m->p, "-", 1), same));
        out = rx_and(m->p, out, rx_not(m->p, same));
    }
    return out;
}

/* ---- properties and items ---- */

/* A schema by index: s itself, then its SK_ALL siblings. */
json_t *schema_siblings(const json_t *s, size_t i)
{
    return i ? json_array_get(json_object_get(s, SK_ALL), i - 1) : (json_t *)(uintptr_t)s;
}

size_t schema_sibling_count(const json_t *s)
{
    return 1 + json_array_size(json_object_get(s, SK_ALL));
}

/* The list's only schema, or the conjunction of all; consumes the list. */
json_t *schema_together(struct schema_maker *m, json_t *list)
{
    schema_spend(m, 4 * json_array_size(list) * json_array_size(list));
    for (size_t i = json_array_size(list); i-- > 1 && !m->st;)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(list, i), json_array_get(list, k))) {
                json_array_remove(list, i);
                break;
            }
    json_t *out = json_array_size(list) == 1   ? json_incref(json_array_get(list, 0))
                  : json_array_size(list) == 0 ? json_true()
                                               : json_pack("{s:O}", "allOf", list);
    json_decref(list);
    return keep(m, out);
}

static void add_property(struct schema_maker *m, const json_t *s, const char *name, const struct path *at,
                         json_t *all)
{
    json_t *patterns = json_object_get(s, "patternProperties"), *v,
           *own = json_object_get(json_object_get(s, "properties"), name),
           *rest = json_object_get(s, "additionalProperties");
    const char *key;
    bool found = own != NULL;
    if (own) json_array_append(all, own);
    json_object_foreach(patterns, key, v) {
        if (m->st) return;
        json_t *text = json_string(key);
        if (schema_has_name(m, schema_pattern(m, text, false, at), name)) {
            json_array_append(all, v);
            found = true;
        }
        json_decref(text);
    }
    if (!found && rest) json_array_append(all, rest);
}

json_t *schema_property_of_all(struct schema_maker *m, const json_t *s, const char *name,
                               const struct path *at)
{
    json_t *all = json_array();
    for (size_t i = 0; i < schema_sibling_count(s); i++)
        add_property(m, schema_siblings(s, i), name, at, all);
    return schema_together(m, all);
}

json_t *schema_prefix(const json_t *s)
{
    json_t *items = json_object_get(s, "items");
    return json_is_array(items) ? items : json_object_get(s, "prefixItems");
}

const json_t *schema_item(const json_t *s, size_t i)
{
    const json_t *prefix = schema_prefix(s), *items = json_object_get(s, "items"),
                 *rest = json_is_array(items) ? json_object_get(s, "additionalItems") : items,
                 *out = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
    return out ? out : json_true();
}

/* ---- is a value allowed? ---- */

static bool matches(struct schema_maker *m, rx a, const json_t *v)
{
    return schema_has_name(m, a, json_string_value(v));
}

static enum verdict of(bool yes)
{
    return yes ? YES : NO;
}

static enum verdict both(enum verdict a, enum verdict b)
{
    return a == NO || b == NO ? NO : a == YES ? b : a;
}

static enum verdict valid(struct schema_maker *m, const json_t *s, const json_t *v, unsigned deep);

static enum verdict valid_number(const json_t *s, const json_t *v)
{
    struct number_bounds b = {0};
    double x = json_number_value(v);
    const json_t *step = json_object_get(s, "multipleOf");
    bound(s, "minimum", "exclusiveMinimum", true, &b);
    bound(s, "maximum", "exclusiveMaximum", false, &b);
    if (b.has_min && (b.over_min ? x <= b.min : x < b.min)) return NO;
    if (b.has_max && (b.under_max ? x >= b.max : x > b.max)) return NO;
    if (!step) return YES;
    double n = x / json_number_value(step), off = fabs(n - nearbyint(n));
    return of(off < 1e-9 * (1 + fabs(n)));
}

static enum verdict valid_array(struct schema_maker *m, const json_t *s, const json_t *v, unsigned deep)
{
    enum verdict out = YES;
    size_t n = json_array_size(v), i;
    uint32_t min = 0, max = RX_NO_LIMIT;
    schema_counts(m, s, "Items", &min, &max, NULL);
    if (n < min || n > max) return NO;
    for (i = 0; i < n; i++) out = both(out, valid(m, schema_item(s, i), json_array_get(v, i), deep));
    if (json_is_true(json_object_get(s, "uniqueItems"))) {
        json_t *seen = json_object();
        for (i = 0; i < n && schema_add(m, seen, json_array_get(v, i)); i++) continue;
        json_decref(seen);
        if (i < n) return NO;
    }
    const json_t *some = json_object_get(s, "contains");
    if (!some) return out;
    uint32_t least = 1, most = RX_NO_LIMIT, found = 0, maybe = 0;
    schema_counts(m, s, "Contains", &least, &most, NULL);
    for (i = 0; i < n; i++) {
        enum verdict one = valid(m, some, json_array_get(v, i), deep);
        found += one == YES;
        maybe += one == UNKNOWN;
    }
    if (found + maybe < least || found > most) return NO;
    return both(out, found >= least && found + maybe <= most ? YES : UNKNOWN);
}

static enum verdict valid_object(struct schema_maker *m, const json_t *s, const json_t *v, unsigned deep)
{
    enum verdict out = YES;
    uint32_t min = 0, max = RX_NO_LIMIT;
    const json_t *names = json_object_get(s, "propertyNames");
    const char *key;
    json_t *one;
    size_t i;
    schema_counts(m, s, "Properties", &min, &max, NULL);
    if (json_object_size(v) < min || json_object_size(v) > max) return NO;
    json_array_foreach(json_object_get(s, "required"), i, one)
        if (json_is_string(one) && !json_object_get(v, json_string_value(one))) return NO;
    json_object_foreach((json_t *)(uintptr_t)v, key, one) {
        json_t *of_it = json_array();
        add_property(m, s, key, NULL, of_it);
        out = both(out, valid(m, schema_together(m, of_it), one, deep));
        if (!names) continue;
        json_t *name = json_string(key);
        out = both(out, valid(m, names, name, deep));
        json_decref(name);
    }
    static const char *const keys[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    for (int k = 0; k < 3; k++)
        json_object_foreach(json_object_get(s, keys[k]), key, one) {
            if (!json_object_get(v, key)) continue;
            if (!json_is_array(one)) out = both(out, valid(m, one, v, deep));
            for (i = 0; i < json_array_size(one); i++)
                if (!json_object_get(v, json_string_value(json_array_get(one, i)))) return NO;
        }
    return out;
}

static enum verdict valid_combined(struct schema_maker *m, const json_t *s, const json_t *v, unsigned deep)
{
    static const char *const keys[] = {"allOf", "anyOf", "oneOf", SK_ALL};
    enum verdict out = YES;
    const json_t *not_it = json_object_get(s, "not"), *cond = m->no_if ? NULL : json_object_get(s, "if");
    for (int k = 0; k < 4; k++) {
        json_t *list = json_object_get(s, keys[k]), *one;
        size_t i, yes = 0, unknown = 0;
        if (!list) continue;
        json_array_foreach(list, i, one) {
            enum verdict x = valid(m, one, v, deep);
            yes += x == YES;
            unknown += x == UNKNOWN;
        }
        size_t least = k == 0 || k == 3 ? i : 1, most = k == 2 ? 1 : i;
        if (yes + unknown < least || yes > most) return NO;
        if (yes < least || yes + unknown > most) out = UNKNOWN;
    }
    if (not_it) {
        enum verdict x = valid(m, not_it, v, deep);
        out = both(out, x == UNKNOWN ? x : of(x == NO));
    }
    if (cond) {
        enum verdict x = valid(m, cond, v, deep);
        const json_t *then = json_object_get(s, x == YES ? "then" : "else");
        if (x == UNKNOWN) out = both(out, UNKNOWN);
        else if (then) out = both(out, valid(m, then, v, deep));
    }
    return out;
}

static enum verdict valid(struct schema_maker *m, const json_t *s, const json_t *v, unsigned deep)
{
    static const char *const hard[] = {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
                                       "$recursiveRef", SK_SOME};
    if (m->st || deep > DEEP) return UNKNOWN;
    if (json_is_boolean(s)) return of(json_is_true(s));
    enum verdict out = YES;
    const json_t *ref = json_object_get(s, "$ref"), *list = json_object_get(s, "enum"),
                 *one = json_object_get(s, "const"), *nots = json_object_get(s, SK_NOT_VALUES);
    if (ref) {
        const json_t *to = schema_target(m, ref, NULL);
        out = to ? valid(m, to, v, deep + 1) : UNKNOWN;
        if (m->old_refs) return out;
    }
    if (!(value_type(v) & schema_types(s)) || (list && !schema_listed(m, list, v)) ||
        (one && !schema_same(m, one, v)) || (nots && schema_listed(m, nots, v)))
        return NO;
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        if (json_object_get(s, hard[i])) out = UNKNOWN;
    if (json_is_string(v)) {
        json_t *own = json_copy((json_t *)(uintptr_t)s); /* the other keywords are checked as a schema */
        json_object_del(own, SK_ALL);
        unsigned relaxed = m->relaxed;
        out = both(out, of(matches(m, schema_string(m, own, NULL), v)));
        if (m->relaxed > relaxed) out = both(out, UNKNOWN);
        json_decref(own);
    }
    if (json_is_number(v)) out = both(out, valid_number(s, v));
    if (json_is_array(v)) out = both(out, valid_array(m, s, v, deep + 1));
    if (json_is_object(v)) out = both(out, valid_object(m, s, v, deep + 1));
    return out == NO ? NO : both(out, valid_combined(m, s, v, deep + 1));
}

enum verdict schema_valid(struct schema_maker *m, const json_t *s, const json_t *v)
{
    return valid(m, s, v, 0);
}

/* ---- strings of any schema ---- */

static rx language(struct schema_maker *m, const json_t *s, const struct path *at, unsigned deep)
{
    static const char *const keys[] = {"allOf", "anyOf", "oneOf", SK_ALL};
    rx all = schema_plain_string(m), out = all;
    const json_t *ref = json_object_get(s, "$ref"), *v;
    json_t *one;
    size_t i;
    if (m->st || json_is_false(s)) return RX_NONE;
    if (json_is_true(s)) return all;
    if (deep > DEEP) return (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"$ref\" leads to itself"), RX_NONE;
    if (ref) {
        const json_t *to = schema_target(m, ref, at);
        out = to ? language(m, to, at, deep + 1) : RX_NONE;
        if (m->old_refs) return out;
    }
    if (!(schema_types(s) & JT_STRING)) return RX_NONE;
    json_t *own = schema_without(s, SK_ALL);
    out = rx_and(m->p, out, schema_string(m, own, at));
    json_decref(own);
    json_t *list = json_object_get(s, "enum");
    if ((v = json_object_get(s, "const")) && !json_is_string(v)) return RX_NONE;
    if (v) out = rx_and(m->p, out, schema_this_string(m, json_string_value(v), json_string_length(v)));
    if (list) {
        rx which = RX_NONE;
        json_array_foreach(list, i, one)
            if (json_is_string(one))
                which = rx_alt(m->p, which,
                               schema_this_string(m, json_string_value(one), json_string_length(one)));
        out = rx_and(m->p, out, which);
    }
    for (int k = 0; k < 4; k++) {
        rx any = RX_NONE, twice = RX_NONE;
        if (!(list = json_object_get(s, keys[k]))) continue;
        json_array_foreach(list, i, one) {
            m->exact += k == 2;
            rx x = language(m, one, at, deep + 1);
            m->exact -= k == 2;
            if (k == 0 || k == 3) out = rx_and(m->p, out, x);
            twice = rx_alt(m->p, twice, rx_and(m->p, any, x));
            any = rx_alt(m->p, any, x);
        }
        if (k == 1 || k == 2) out = rx_and(m->p, out, any);
        if (k == 2) out = rx_and(m->p, out, rx_not(m->p, twice));
    }
    m->exact++; /* excluded below */
    if ((v = json_object_get(s, "not"))) out = rx_and(m->p, out, rx_not(m->p, language(m, v, at, deep + 1)));
    if (!m->no_if && (v = json_object_get(s, "if"))) {
        const json_t *then = json_object_get(s, "then"), *other = json_object_get(s, "else");
        rx x = language(m, v, at, deep + 1), y = then ? language(m, then, at, deep + 1) : all,
           z = other ? language(m, other, at, deep + 1) : all;
        out = rx_and(m->p, out, rx_alt(m->p, rx_and(m->p, x, y), rx_and(m->p, rx_not(m->p, x), z)));
    }
    m->exact--;
    return out;
}

rx schema_language(struct schema_maker *m, const json_t *s, const struct path *at)
{
    return language(m, s, at, 0);
}

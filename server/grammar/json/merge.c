/* The conjunction of schemas (allOf, a $ref with siblings, a branch of anyOf) as one schema, and $ref
 * resolution. */
#include "server/grammar/json/schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

static void path_write(const struct path *at, char *out, size_t cap)
{
    char part[128], all[256] = "";
    for (; at && at->up; at = at->up) {
        char was[256];
        memcpy(was, all, sizeof was);
        if (at->key) snprintf(part, sizeof part, ".%.100s", at->key);
        else snprintf(part, sizeof part, "[%zu]", at->index);
        snprintf(all, sizeof all, "%.120s%.130s", part, was);
    }
    snprintf(out, cap, "$%.250s", all);
}

enum status schema_refuse(struct schema_maker *m, const struct path *at, enum status st, const char *fmt, ...)
{
    va_list args;
    if (m->st) return m->st;
    m->st = st;
    va_start(args, fmt);
    vsnprintf(m->error->message, sizeof m->error->message, fmt, args);
    va_end(args);
    path_write(at, m->error->path, sizeof m->error->path);
    return st;
}

void schema_relax(struct schema_maker *m, const struct path *at, const char *fmt, ...)
{
    char text[256], path[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!m->opt->notes || m->exact) {
        (void)schema_refuse(m, at, ST_UNSUPPORTED, "%s", text);
        return;
    }
    m->relaxed++;
    if (!at) return;
    path_write(at, path, sizeof path);
    json_t *note = json_sprintf("Not enforced in %s: %s, at %s", m->opt->where, text, path);
    bool known = json_array_size(m->opt->notes) >= NOTES_MAX;
    for (size_t i = 0; i < json_array_size(m->opt->notes); i++)
        known = known || json_equal(json_array_get(m->opt->notes, i), note);
    if (!known) json_array_append(m->opt->notes, note);
    json_decref(note);
}

enum status schema_nomem(struct schema_maker *m)
{
    return schema_refuse(m, NULL, ST_NOMEM, "out of memory");
}

void schema_spend(struct schema_maker *m, size_t units)
{
    rx_spend(m->p, units);
    if (rx_status(m->p)) (void)schema_refuse(m, NULL, rx_status(m->p), "the schema is too large");
}

json_t *keep(struct schema_maker *m, json_t *made)
{
    if (!made || json_array_append_new(m->keep, made)) (void)schema_nomem(m);
    m->kept += json_object_size(made) + json_array_size(made) / 8 + 1;
    if (m->kept > KEPT_MAX) (void)schema_refuse(m, NULL, ST_TOO_LARGE, "the schema is too large");
    return made;
}

/* ---- values and types ---- */

/* The canonical form of a value: integers without a fraction. A new reference. */
static json_t *canonical(const json_t *v)
{
    json_t *out, *one;
    const char *key;
    size_t i;
    double x = json_real_value(v);
    if (json_is_real(v) && floor(x) >= x && fabs(x) < 0x1p63) return json_integer((json_int_t)x);
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, one) json_array_append_new(out, canonical(one));
    } else if (json_is_object(v)) {
        out = json_object();
        json_object_foreach((json_t *)(uintptr_t)v, key, one) json_object_set_new(out, key, canonical(one));
    } else {
        out = json_incref((json_t *)(uintptr_t)v);
    }
    return out;
}

char *schema_text(struct schema_maker *m, const json_t *v)
{
    schema_spend(m, 32);
    json_t *one = canonical(v);
    char *text = one ? json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(one);
    if (!text) (void)schema_nomem(m);
    return text;
}

bool schema_same(struct schema_maker *m, const json_t *a, const json_t *b)
{
    char *x = schema_text(m, a), *y = schema_text(m, b);
    bool same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

bool schema_add(struct schema_maker *m, json_t *set, const json_t *v)
{
    char *text = schema_text(m, v);
    bool is_new = text && !json_object_get(set, text);
    if (is_new && json_object_set_new(set, text, json_true())) (void)schema_nomem(m);
    free(text);
    return is_new;
}

/* The list as a set, cached for it. */
static json_t *set_of(struct schema_maker *m, const json_t *list)
{
    char address[32];
    snprintf(address, sizeof address, "%p", (const void *)list);
    json_t *set = json_object_get(m->sets, address), *v;
    size_t i;
    if (set) return set;
    set = json_object();
    (void)keep(m, json_incref((json_t *)(uintptr_t)list)); /* so that its address is not reused */
    json_array_foreach(list, i, v) (void)schema_add(m, set, v);
    if (json_object_set_new(m->sets, address, set)) (void)schema_nomem(m);
    return m->st ? NULL : set;
}

bool schema_listed(struct schema_maker *m, const json_t *list, const json_t *v)
{
    char *text = list ? schema_text(m, v) : NULL;
    bool found = text && json_object_get(set_of(m, list), text);
    free(text);
    return found;
}

unsigned value_type(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return JT_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return JT_BOOLEAN;
    case JSON_INTEGER: return JT_INTEGER;
    case JSON_REAL: return floor(json_real_value(v)) < json_real_value(v) ? JT_NUMBER : JT_INTEGER;
    case JSON_STRING: return JT_STRING;
    case JSON_ARRAY: return JT_ARRAY;
    default: return JT_OBJECT;
    }
}

unsigned schema_type_named(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } all[] = {{"null", JT_NULL},       {"boolean", JT_BOOLEAN},
               {"integer", JT_INTEGER}, {"number", JT_INTEGER | JT_NUMBER},
               {"string", JT_STRING},   {"array", JT_ARRAY},
               {"object", JT_OBJECT},   {SK_FRACTION, JT_NUMBER}};
    const char *s = json_string_value(name);
    for (size_t i = 0; s && i < sizeof all / sizeof *all; i++)
        if (strcmp(s, all[i].name) == 0) return all[i].bits;
    return 0;
}

unsigned schema_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned bits = 0;
    if (!type) return JT_ALL;
    if (json_is_string(type)) return schema_type_named(type);
    for (size_t i = 0; i < json_array_size(type); i++) bits |= schema_type_named(json_array_get(type, i));
    return bits;
}

json_t *schema_types_list(unsigned bits)
{
    json_t *list = json_array();
    static const char *const names[] = {"null",   "boolean", "integer", SK_FRACTION,
                                        "string", "array",   "object"};
    for (unsigned i = 0; i < 7; i++)
        if (bits >> i & 1) json_array_append_new(list, json_string(names[i]));
    return list;
}

static json_t *both_values(struct schema_maker *m, const json_t *a, const json_t *b)
{
    json_t *list = json_array(), *v;
    size_t i;
    json_array_foreach(a, i, v)
        if (!m->st && schema_listed(m, b, v)) json_array_append(list, v);
    return list;
}

static json_t *either_value(struct schema_maker *m, const json_t *a, const json_t *b)
{
    json_t *list = json_array(), *set = json_object(), *v;
    size_t i;
    json_array_foreach(a, i, v)
        if (!m->st && schema_add(m, set, v)) json_array_append(list, v);
    json_array_foreach(b, i, v)
        if (!m->st && schema_add(m, set, v)) json_array_append(list, v);
    json_decref(set);
    return list;
}

static bool is_one_of(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

/* The merged value of a keyword in both; NULL: keep both. */
static json_t *keyword(struct schema_maker *m, const char *key, json_t *x, json_t *y)
{
    static const char *const larger[] = {"minimum",  "exclusiveMinimum", "minLength",
                                         "minItems", "minProperties",    NULL};
    static const char *const smaller[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                          "maxItems", "maxProperties",    NULL};
    static const char *const lists[] = {"allOf", SK_ALL, SK_SOME, SK_NOT_VALUES, NULL};
    if (json_equal(x, y) && strcmp(key, SK_SOME) != 0) return json_incref(x);
    if (json_is_number(x) && json_is_number(y)) {
        bool first = json_number_value(x) > json_number_value(y);
        if (is_one_of(key, larger)) return json_incref(first ? x : y);
        if (is_one_of(key, smaller)) return json_incref(first ? y : x);
    }
    if (strcmp(key, "enum") == 0) return both_values(m, x, y);
    if (strcmp(key, "required") == 0) return either_value(m, x, y);
    if (strcmp(key, "uniqueItems") == 0) return json_incref(json_is_true(x) ? x : y);
    if (!is_one_of(key, lists)) return NULL;
    json_t *list = json_copy(x);
    json_array_extend(list, y);
    return list;
}

/* Keywords that interact; one of the two schemas goes to SK_ALL. */
static const char *const groups[][4] = {
    {"properties", "patternProperties", "additionalProperties"},
    {"items", "prefixItems", "additionalItems"},
    {"contains", "minContains", "maxContains"},
    {"if", "then", "else"},
};
static const char *const alone[] = {"pattern",
                                    "format",
                                    "anyOf",
                                    "oneOf",
                                    "not",
                                    "multipleOf",
                                    "propertyNames",
                                    "dependentSchemas",
                                    "dependencies",
                                    "dependentRequired",
                                    SK_NOT_PATTERN,
                                    SK_NOT_FORMAT,
                                    "$dynamicRef",
                                    "$recursiveRef",
                                    "unevaluatedProperties",
                                    "const",
                                    "unevaluatedItems",
                                    NULL};

static void beside(struct schema_maker *m, json_t *out, json_t *one)
{
    json_t *list = json_object_get(out, SK_ALL);
    list = list ? json_copy(list) : json_array();
    bool known = json_object_size(one) == 0;
    schema_spend(m, 8 * json_array_size(list));
    for (size_t i = 0; i < json_array_size(list) && !known; i++)
        known = json_equal(json_array_get(list, i), one);
    if (!known) json_array_append(list, one);
    json_object_set_new(out, SK_ALL, list);
    json_decref(one);
}

static bool merge_group(struct schema_maker *m, json_t *out, const json_t *a, const json_t *b,
                        const char *const group[4])
{
    json_t *mine = json_object(), *other = json_object();
    for (int k = 0; k < 3; k++) {
        json_t *x = json_object_get(a, group[k]), *y = json_object_get(b, group[k]);
        if (x) json_object_set(mine, group[k], x);
        if (y) json_object_set(other, group[k], y);
    }
    bool both = json_object_size(mine) && json_object_size(other);
    if (!both) json_object_update(out, other);
    else if (!json_equal(mine, other)) beside(m, out, json_incref(other));
    json_decref(mine);
    json_decref(other);
    return both;
}

static bool grouped(const char *key)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (is_one_of(key, groups[i])) return true;
    return false;
}

json_t *schema_merge(struct schema_maker *m, const json_t *a, const json_t *b, const struct path *at)
{
    const char *key;
    json_t *v;
    if (m->st) return NULL;
    if (++m->merges > MERGES_MAX) {
        (void)schema_refuse(m, at, ST_TOO_LARGE, "the schema is too large");
        return NULL;
    }
    if (json_is_false(a) || json_is_false(b)) return json_false();
    if (json_is_true(a)) return json_incref((json_t *)(uintptr_t)b);
    if (json_is_true(b)) return json_incref((json_t *)(uintptr_t)a);
    json_t *out = json_copy((json_t *)(uintptr_t)a);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) (void)merge_group(m, out, a, b, groups[i]);
    json_object_foreach((json_t *)(uintptr_t)b, key, v) {
        json_t *mine = json_object_get(out, key), *one;
        if (grouped(key)) continue;
        if (strcmp(key, SK_ALL) == 0 && mine) {
            size_t i;
            json_array_foreach(v, i, one) beside(m, out, json_incref(one));
        } else if (!mine) {
            json_object_set(out, key, v);
        } else if (strcmp(key, "type") == 0) {
            json_object_set_new(out, key, schema_types_list(schema_types(a) & schema_types(b)));
        } else if ((one = keyword(m, key, mine, v))) {
            json_object_set_new(out, key, one);
        } else if (is_one_of(key, alone)) {
            beside(m, out, json_pack("{s:O}", key, v));
        } /* else an annotation */
    }
    if (schema_types(out)) return out;
    json_decref(out);
    return json_false();
}

json_t *schema_without(const json_t *s, const char *key)
{
    json_t *out = json_copy((json_t *)(uintptr_t)s);
    json_object_del(out, key);
    return out;
}

/* ---- merging ---- */

/* Does a come before b in the text of the schema? Properties are written in this order. */
static bool precedes(const json_t *s, const char *a, const char *b)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)s, key, v) {
        if (strcmp(key, a) == 0) return true;
        if (strcmp(key, b) == 0) return false;
    }
    return false;
}

static json_t *in_order(struct schema_maker *m, const json_t *rest, const json_t *one, bool first,
                        const struct path *at)
{
    return first ? schema_merge(m, one, rest, at) : schema_merge(m, rest, one, at);
}

#define REFS_MAX 200u /* in a chain */

/* Replaces a $ref by its target, repeatedly; a new reference. */
static json_t *resolved(struct schema_maker *m, const json_t *s, const struct path *at, unsigned depth)
{
    json_t *out = json_incref((json_t *)(uintptr_t)s);
    const json_t *ref;
    while (out && (ref = json_object_get(out, "$ref"))) {
        if (depth > REFS_MAX)
            (void)schema_refuse(m, at, ST_INVALID, "\"$ref\" leads to itself, or to too many others");
        const json_t *to = m->st ? NULL : schema_target(m, ref, at);
        json_t *rest = m->old_refs ? json_true() : schema_without(out, "$ref"), *both = NULL;
        bool first = precedes(out, "$ref", "properties");
        if (to && json_object_get(to, "$ref")) { /* one step; siblings are merged later */
            json_t *next = resolved(m, to, at, depth + 1);
            both = next ? in_order(m, rest, next, first, at) : NULL;
            json_decref(next);
        } else if (to) {
            both = in_order(m, rest, to, first, at);
        }
        json_decref(rest);
        json_decref(out);
        out = m->st ? (json_decref(both), NULL) : both;
    }
    return out;
}

json_t *schema_merged(struct schema_maker *m, const json_t *s, const struct path *at)
{
    json_t *out = resolved(m, s, at, 0), *list;
    for (unsigned rounds = 0; out && (list = json_object_get(out, "allOf")); rounds++) {
        if (rounds > 64) (void)schema_refuse(m, at, ST_TOO_LARGE, "\"allOf\" is nested too deeply");
        json_t *own = schema_without(out, "allOf"), *all = json_true();
        bool first = precedes(out, "allOf", "properties");
        for (size_t i = 0; i < json_array_size(list) && all && !m->st; i++) {
            json_t *one = resolved(m, json_array_get(list, i), at, 0);
            json_t *both = one ? schema_merge(m, all, one, at) : NULL;
            json_decref(one);
            json_decref(all);
            all = both;
        }
        json_t *both = all && !m->st ? in_order(m, own, all, first, at) : NULL;
        json_decref(own);
        json_decref(all);
        json_decref(out);
        out = m->st ? (json_decref(both), NULL) : both;
    }
    return out;
}

/* ---- $ref ---- */

static json_t *by_pointer(const json_t *root, const char *s)
{
    json_t *at = (json_t *)(uintptr_t)root;
    char part[256];
    while (at && *s == '/') {
        size_t n = 0;
        for (s++; *s && *s != '/' && n < sizeof part - 1; s++) {
            char c = *s;
            if (c == '~' && (s[1] == '0' || s[1] == '1')) c = *++s == '0' ? '~' : '/';
            else if (c == '%' && s[1] && s[2]) {
                char hex[3] = {s[1], s[2], '\0'};
                c = (char)strtol(hex, NULL, 16);
                s += 2;
            }
            part[n++] = c;
        }
        part[n] = '\0';
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    }
    return *s ? NULL : at;
}

/* The schema with this $id or $anchor. */
static json_t *by_name(json_t *at, const char *name, unsigned depth)
{
    static const char *const keys[] = {"$id", "id", "$anchor"};
    const char *key;
    json_t *v, *found = NULL;
    size_t i;
    if (depth > 60) return NULL;
    for (i = 0; i < 3 && json_is_object(at); i++) {
        const char *id = json_string_value(json_object_get(at, keys[i]));
        if (id && (strcmp(id, name) == 0 || (name[0] == '#' && strcmp(id, name + 1) == 0))) return at;
    }
    if (json_is_object(at)) {
        json_object_foreach(at, key, v)
            if (!found) found = by_name(v, name, depth + 1);
    } else {
        json_array_foreach(at, i, v)
            if (!found) found = by_name(v, name, depth + 1);
    }
    return found;
}

json_t *schema_target(struct schema_maker *m, const json_t *ref, const struct path *at)
{
    const char *s = json_string_value(ref), *hash = s ? strchr(s, '#') : NULL;
    json_t *root = (json_t *)(uintptr_t)m->root, *found = NULL;
    if (!s) {
        (void)schema_refuse(m, at, ST_INVALID, "\"$ref\" must be a string");
        return NULL;
    }
    if (s[0] == '#' && (!s[1] || s[1] == '/')) found = by_pointer(root, s + 1);
    else found = by_name(root, s, 0);
    if (!found && hash && hash > s &&
        (!hash[1] || hash[1] == '/')) { /* the name of a schema, and a pointer into it */
        char base[512];
        snprintf(base, sizeof base, "%.*s", (int)(hash - s), s);
        json_t *in = by_name(root, base, 0);
        if (in) found = by_pointer(in, hash + 1);
    }
    if (!found || !(json_is_object(found) || json_is_boolean(found))) {
        (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"$ref\" leads to no schema within this one: %.100s", s);
        return NULL;
    }
    schema_check_shape(m, found, at);
    return m->st ? NULL : found;
}

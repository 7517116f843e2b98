/* The negation of a schema: alternatives that each violate it. And detection of unsatisfiable schemas, if
 * obvious. */
#include "server/grammar/json/schema.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY_DEPTH  5u
#define EMPTY_MERGES 200u

static json_t *not_of(const json_t *s)
{
    if (json_is_true(s)) return json_false();
    if (json_is_false(s)) return json_true();
    if (json_object_size(s) == 1 && json_object_get(s, "not")) return json_incref(json_object_get(s, "not"));
    return json_pack("{s:O}", "not", s);
}

static void add(json_t *ways, json_t *way)
{
    json_array_append_new(ways, way);
}

static void counts(const json_t *s, json_t *ways)
{
    static const char *const keys[][4] = {
        {"minLength", "maxLength", "string", "min"},
        {"maxLength", "minLength", "string", "max"},
        {"minItems", "maxItems", "array", "min"},
        {"maxItems", "minItems", "array", "max"},
        {"minProperties", "maxProperties", "object", "min"},
        {"maxProperties", "minProperties", "object", "max"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(s, keys[i][0]);
        bool least = keys[i][3][1] == 'i';
        double n = json_number_value(v);
        if (!v || (least && n < 1)) continue; /* always satisfied */
        add(ways,
            json_pack("{s:s,s:I}", "type", keys[i][2], keys[i][1], (json_int_t)(least ? n - 1 : n + 1)));
    }
}

static void numbers(const json_t *s, json_t *ways)
{
    static const char *const keys[][2] = {{"minimum", "exclusiveMaximum"},
                                          {"maximum", "exclusiveMinimum"},
                                          {"exclusiveMinimum", "maximum"},
                                          {"exclusiveMaximum", "minimum"}};
    for (int i = 0; i < 4; i++) {
        const json_t *v = json_object_get(s, keys[i][0]);
        if (json_is_number(v)) add(ways, json_pack("{s:s,s:O}", "type", "number", keys[i][1], v));
    }
}

/* A property that violates its schema. */
static void properties(const json_t *s, json_t *ways)
{
    const char *key;
    json_t *v;
    size_t i;
    json_t *rest = json_object_get(s, "additionalProperties"), *names = json_object_get(s, "propertyNames"),
           *own = json_object_get(s, "properties"), *patterns = json_object_get(s, "patternProperties");
    json_array_foreach(json_object_get(s, "required"), i, v)
        if (json_is_string(v))
            add(ways, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", json_string_value(v), 0));
    json_object_foreach(own, key, v) {
        if (json_is_true(v) || (json_is_object(v) && !json_object_size(v))) continue;
        add(ways, json_pack("{s:s,s:[s],s:{s:o}}", "type", "object", "required", key, "properties", key,
                            not_of(v)));
    }
    json_object_foreach(patterns, key, v)
        add(ways,
            json_pack("{s:s,s:[{s:s,s:o}]}", "type", "object", SK_SOME, "pattern", key, "schema", not_of(v)));
    if (rest && !json_is_true(rest) && !(json_is_object(rest) && !json_object_size(rest)))
        add(ways, json_pack("{s:s,s:[{s:{s:O*,s:O*},s:o}]}", "type", "object", SK_SOME, "outside",
                            "properties", own, "patternProperties", patterns, "schema", not_of(rest)));
    if (names && !json_is_true(names))
        add(ways,
            json_pack("{s:s,s:[{s:o,s:b}]}", "type", "object", SK_SOME, "names", not_of(names), "schema", 1));
    static const char *const keys[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    for (int k = 0; k < 3; k++)
        json_object_foreach(json_object_get(s, keys[k]), key, v) {
            json_t *asked = json_is_array(v) ? json_pack("{s:O}", "required", v) : json_incref(v);
            add(ways,
                json_pack("{s:[{s:s,s:[s]},o]}", "allOf", "type", "object", "required", key, not_of(asked)));
            json_decref(asked);
        }
}

static void items(struct schema_maker *m, const json_t *s, json_t *ways, const struct path *at)
{
    json_t *list = json_object_get(s, "items"), *v = json_object_get(s, "contains");
    const json_t *rest = schema_item(s, SIZE_MAX);
    list = json_is_array(list) ? list : json_object_get(s, "prefixItems");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *front = json_array();
        for (size_t k = 0; k < i; k++) json_array_append_new(front, json_true());
        json_array_append_new(front, not_of(json_array_get(list, i)));
        add(ways,
            json_pack("{s:s,s:o,s:I}", "type", "array", "prefixItems", front, "minItems", (json_int_t)i + 1));
    }
    if (!json_is_true(rest) && json_object_size(rest) + json_is_false(rest)) {
        size_t n = json_array_size(list);
        if (json_is_false(rest))
            add(ways, json_pack("{s:s,s:I}", "type", "array", "minItems", (json_int_t)n + 1));
        else if (n)
            (void)schema_refuse(m, at, ST_UNSUPPORTED,
                                "\"not\" of \"items\" after \"prefixItems\" is not supported");
        else add(ways, json_pack("{s:s,s:o}", "type", "array", "contains", not_of(rest)));
    }
    if (!v) return;
    if (json_object_get(s, "minContains") || json_object_get(s, "maxContains"))
        (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"not\" of \"minContains\" is not supported");
    add(ways, json_pack("{s:s,s:o}", "type", "array", "items", not_of(v)));
}

/* Values other than these; for objects and arrays, expressed with keywords. */
static void values(const json_t *list, json_t *ways)
{
    json_t *flat = json_array(), *all = json_array(), *v, *one;
    const char *key;
    size_t i, k;
    json_array_foreach(list, i, v) {
        if (!json_is_object(v) && !json_is_array(v)) {
            json_array_append(flat, v);
            continue;
        }
        json_t *parts = json_is_array(v) ? json_array() : json_object(), *names = json_array();
        json_object_foreach(v, key, one) {
            json_object_set_new(parts, key, json_pack("{s:O}", "const", one));
            json_array_append_new(names, json_string(key));
        }
        json_array_foreach(v, k, one) json_array_append_new(parts, json_pack("{s:O}", "const", one));
        add(all, json_is_array(v) ? json_pack("{s:{s:s,s:o,s:b,s:I}}", "not", "type", "array", "prefixItems",
                                              parts, "items", 0, "minItems", (json_int_t)json_array_size(v))
                                  : json_pack("{s:{s:s,s:o,s:b,s:O}}", "not", "type", "object", "properties",
                                              parts, "additionalProperties", 0, "required", names));
        json_decref(names);
    }
    if (json_array_size(flat)) add(all, json_pack("{s:O}", SK_NOT_VALUES, flat));
    add(ways, json_pack("{s:o}", "allOf", all));
    json_decref(flat);
}

static void combined(struct schema_maker *m, const json_t *s, json_t *ways)
{
    json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf"),
           *one = json_object_get(s, "oneOf"), *cond = json_object_get(s, "if"), *v, *w;
    size_t i, k;
    json_array_foreach(all, i, v) add(ways, not_of(v));
    if (any) {
        json_t *none = json_array();
        json_array_foreach(any, i, v) json_array_append_new(none, not_of(v));
        add(ways, json_pack("{s:o}", "allOf", none));
    }
    if (one) { /* none or at least two match */
        json_t *none = json_array();
        json_array_foreach(one, i, v) {
            json_array_append_new(none, not_of(v));
            json_array_foreach(one, k, w) {
                if (k < i && !schema_disjoint(m, v, w, NULL))
                    add(ways, json_pack("{s:[O,O]}", "allOf", v, w));
            }
        }
        add(ways, json_pack("{s:o}", "allOf", none));
    }
    if (json_object_get(s, "not")) add(ways, json_incref(json_object_get(s, "not")));
    json_t *then = json_object_get(s, "then"), *other = json_object_get(s, "else");
    if (m->no_if) cond = NULL;
    if (cond && then) add(ways, json_pack("{s:[O,o]}", "allOf", cond, not_of(then)));
    if (cond && other) add(ways, json_pack("{s:[o,o]}", "allOf", not_of(cond), not_of(other)));
}

json_t *schema_not(struct schema_maker *m, const json_t *s, const struct path *at)
{
    static const char *const hard[] = {"unevaluatedProperties",
                                       "unevaluatedItems",
                                       "$dynamicRef",
                                       "$recursiveRef",
                                       SK_SOME,
                                       SK_ALL,
                                       SK_NOT_VALUES};
    json_t *ways = json_array(), *v;
    if (json_is_boolean(s)) {
        json_decref(ways);
        return json_is_true(s) ? json_false() : json_true();
    }
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        if (json_object_get(s, hard[i]))
            (void)schema_refuse(m, at, ST_UNSUPPORTED, "\"not\" of \"%s\" is not supported", hard[i]);
    if (json_is_true(json_object_get(s, "uniqueItems"))) {
        schema_relax(m, at, "\"not\" of \"uniqueItems\" is not supported");
        add(ways, json_pack("{s:s}", "type", "array"));
    }
    if (json_object_get(s, "multipleOf")) {
        schema_relax(m, at, "\"not\" of \"multipleOf\" is not supported");
        add(ways, json_pack("{s:s}", "type", "number"));
    }
    if ((v = json_object_get(s, "$ref"))) {
        json_t *to = schema_target(m, v, at);
        if (to) add(ways, not_of(to));
        if (m->old_refs || !to) goto done;
    }
    if (schema_types(s) != JT_ALL) {
        json_t *types = schema_types_list(JT_ALL & ~schema_types(s));
        add(ways, json_pack("{s:o}", "type", types));
    }
    if ((v = json_object_get(s, "enum"))) values(v, ways);
    if ((v = json_object_get(s, "const"))) {
        json_t *one = json_pack("[O]", v);
        values(one, ways);
        json_decref(one);
    }
    if ((v = json_object_get(s, "pattern")))
        add(ways, json_pack("{s:s,s:O}", "type", "string", SK_NOT_PATTERN, v));
    v = json_object_get(s, "format");
    if (json_is_string(v) && schema_format(m, json_string_value(v)))
        add(ways, json_pack("{s:s,s:O}", "type", "string", SK_NOT_FORMAT, v));
    counts(s, ways);
    numbers(s, ways);
    properties(s, ways);
    items(m, s, ways, at);
    combined(m, s, ways);
done:;
    json_t *out = json_array_size(ways) == 1   ? json_incref(json_array_get(ways, 0))
                  : json_array_size(ways) == 0 ? json_false()
                                               : json_pack("{s:O}", "anyOf", ways);
    json_decref(ways);
    return out;
}

/* ---- unsatisfiable schemas ---- */

static bool empty(struct schema_maker *m, const json_t *s, unsigned depth);

static bool no_object(struct schema_maker *m, const json_t *s, unsigned depth)
{
    json_t *v, *most = json_object_get(s, "maxProperties");
    size_t i;
    if (most && (double)json_array_size(json_object_get(s, "required")) > json_number_value(most))
        return true;
    json_array_foreach(json_object_get(s, "required"), i, v) {
        const char *name = json_string_value(v);
        if (name && empty(m, schema_property_of_all(m, s, name, NULL), depth + 1)) return true;
    }
    return false;
}

static bool no_array(struct schema_maker *m, const json_t *s, unsigned depth)
{
    double least = json_number_value(json_object_get(s, "minItems"));
    const json_t *most = json_object_get(s, "maxItems");
    if (most && json_number_value(most) < least) return true;
    return least > 0 && empty(m, schema_item(s, 0), depth + 1);
}

static bool empty(struct schema_maker *m, const json_t *s, unsigned depth)
{
    if (json_is_false(s)) return true;
    if (depth > EMPTY_DEPTH || !json_is_object(s) || m->st) return false;
    json_t *all = schema_merged(m, s, NULL), *values, *v;
    if (!all) return false;
    keep(m, all);
    unsigned types = schema_types(all);
    size_t i;
    if (json_is_false(all) || !types) return true;
    if (!json_is_object(all)) return false;
    values = json_object_get(all, "enum");
    if (json_object_get(all, "const")) values = keep(m, json_pack("[O]", json_object_get(all, "const")));
    if (values) {
        json_array_foreach(values, i, v)
            if (schema_valid(m, all, v) != NO) return false;
        return true;
    }
    for (size_t k = 0; k < schema_sibling_count(all); k++)
        for (int which = 0; which < 2; which++) {
            json_t *list = json_object_get(schema_siblings(all, k), which ? "oneOf" : "anyOf");
            bool none = list != NULL;
            json_array_foreach(list, i, v) {
                json_t *rest = json_copy(all);
                json_object_del(rest, which ? "oneOf" : "anyOf");
                if (none) none = empty(m, keep(m, json_pack("{s:[o,O]}", "allOf", rest, v)), depth + 2);
                else json_decref(rest);
            }
            if (none) return true;
        }
    if (types & (JT_BOOLEAN | JT_NULL)) return false;
    if (types & JT_STRING && !rx_matches_nothing(m->p, schema_string(m, all, NULL), 1024)) return false;
    if (types & (JT_INTEGER | JT_NUMBER) && schema_number(m, all, types & (JT_INTEGER | JT_NUMBER), NULL))
        return false;
    if (types & JT_ARRAY && !no_array(m, all, depth)) return false;
    return !(types & JT_OBJECT) || no_object(m, all, depth);
}

bool schema_empty(struct schema_maker *m, const json_t *s)
{
    unsigned merges = m->merges;
    if (m->st) return false;
    m->merges = MERGES_MAX - EMPTY_MERGES; /* its own merge budget, not counted */
    bool out = empty(m, s, 0);
    m->merges = merges;
    if (m->st && m->st != ST_NOMEM) { /* undecided */
        m->st = ST_OK;
        out = false;
    }
    return out;
}

bool schema_disjoint(struct schema_maker *m, const json_t *a, const json_t *b, const json_t *with)
{
    json_t *all = json_pack("[O,O]", a, b);
    if (with) json_array_append(all, (json_t *)(uintptr_t)with);
    return schema_empty(m, keep(m, json_pack("{s:o}", "allOf", all)));
}

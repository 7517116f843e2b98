/* Checks the value types of JSON Schema keywords. Otherwise a misspelt type would match nothing, and a list
 * as "properties" would match everything: both are rejected here, with their place. A null keyword counts as
 * absent and is removed. Definitions are checked when referenced. */
#include "server/grammar/json/schema.h"

#include <stdio.h>
#include <string.h>

#define SHAPE_DEPTH 200u /* of paths; schema.c rejects deeper ones */

enum shape {
    TYPES,   /* the name of a type, or a list of them */
    NAMES,   /* a list of strings; draft 3's boolean is ignored */
    LIST,    /* of values */
    SCHEMA,  /* a schema */
    SCHEMAS, /* a list of schemas, not empty */
    SCHEMAS_OR_NONE,
    SCHEMA_OR_MORE, /* a schema, or a list of them */
    MAP,            /* names -> schemas */
    MAP_OR_NAMES,   /* names -> schemas or lists of strings */
    MAP_OF_NAMES,   /* names -> lists of strings */
    FLAG,
    NUMBER,
    TEXT,
};
static const char *const wanted[] = {
    "the name of a JSON type, or a list of them",
    "a list of names",
    "a list of values",
    "a schema: an object or a boolean",
    "a list of schemas, at least one",
    "a list of schemas",
    "a schema, or a list of them",
    "an object of schemas",
    "an object of schemas or of lists of names",
    "an object of lists of names",
    "a boolean",
    "a number",
    "a string",
};
static const struct {
    const char *key;
    enum shape shape;
} keywords[] = {
    {"type", TYPES},
    {"required", NAMES},
    {"enum", LIST},
    {"allOf", SCHEMAS_OR_NONE},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"prefixItems", SCHEMAS_OR_NONE},
    {"items", SCHEMA_OR_MORE},
    {"additionalItems", SCHEMA},
    {"additionalProperties", SCHEMA},
    {"propertyNames", SCHEMA},
    {"contains", SCHEMA},
    {"not", SCHEMA},
    {"if", SCHEMA},
    {"then", SCHEMA},
    {"else", SCHEMA},
    {"properties", MAP},
    {"patternProperties", MAP},
    {"dependentSchemas", MAP},
    {"dependencies", MAP_OR_NAMES},
    {"dependentRequired", MAP_OF_NAMES},
    {"uniqueItems", FLAG},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"multipleOf", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"pattern", TEXT},
    {"format", TEXT},
    {"$ref", TEXT},
};

static bool is_schema(const json_t *v)
{
    return json_is_object(v) || json_is_boolean(v);
}

static bool all_are(const json_t *list, bool (*is)(const json_t *))
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is(json_array_get(list, i))) return false;
    return json_is_array(list);
}

static bool is_type(const json_t *v)
{
    return schema_type_named(v) != 0;
}

static bool is_text(const json_t *v)
{
    return json_is_string(v);
}

static bool has_shape(const json_t *v, enum shape shape)
{
    switch (shape) {
    case TYPES: return is_type(v) || all_are(v, is_type);
    case NAMES: return json_is_boolean(v) || all_are(v, is_text);
    case LIST: return json_is_array(v);
    case SCHEMA: return is_schema(v);
    case SCHEMAS: return json_array_size(v) && all_are(v, is_schema);
    case SCHEMAS_OR_NONE: return all_are(v, is_schema);
    case FLAG: return json_is_boolean(v);
    case SCHEMA_OR_MORE: return is_schema(v) || all_are(v, is_schema);
    case MAP:
    case MAP_OR_NAMES:
    case MAP_OF_NAMES: return json_is_object(v); /* its contents are checked next */
    case NUMBER: return json_is_number(v);
    default: return is_text(v);
    }
}

static void check(struct schema_maker *m, json_t *s, const struct path *at, unsigned depth);

static void check_inside(struct schema_maker *m, const char *keyword, json_t *v, enum shape shape,
                         const struct path *at, unsigned depth)
{
    struct path in = {at, keyword, 0};
    const char *key;
    json_t *one;
    size_t i;
    if (shape == SCHEMA || (shape == SCHEMA_OR_MORE && json_is_object(v))) check(m, v, &in, depth);
    if (shape == SCHEMAS || shape == SCHEMAS_OR_NONE || shape == SCHEMA_OR_MORE)
        json_array_foreach(v, i, one) check(m, one, &(struct path){&in, NULL, i}, depth);
    if (shape != MAP && shape != MAP_OR_NAMES && shape != MAP_OF_NAMES) return;
    json_object_foreach(v, key, one) {
        struct path here = {&in, key, 0};
        bool names = all_are(one, is_text);
        if (shape != MAP && names) continue;
        if (shape != MAP_OF_NAMES && is_schema(one)) check(m, one, &here, depth);
        else
            (void)schema_refuse(m, &here, ST_INVALID, "must be %s",
                                shape == MAP            ? "a schema: an object or a boolean"
                                : shape == MAP_OF_NAMES ? "a list of names"
                                                        : "a schema or a list of names");
    }
}

/* Draft 4: {"minimum": 1, "exclusiveMinimum": true}. */
static void modernise(json_t *s)
{
    static const char *const keys[][2] = {{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}};
    for (int i = 0; i < 2; i++) {
        json_t *x = json_object_get(s, keys[i][1]), *v = json_object_get(s, keys[i][0]);
        if (!json_is_boolean(x)) continue;
        bool moved = json_is_true(x) && json_is_number(v);
        if (moved) json_object_set(s, keys[i][1], v);
        json_object_del(s, keys[i][moved ? 0 : 1]);
    }
}

static void check(struct schema_maker *m, json_t *s, const struct path *at, unsigned depth)
{
    const char *name;
    json_t *one;
    void *next;
    if (depth > SHAPE_DEPTH) return;
    json_object_foreach_safe(s, next, name, one) { /* as some clients write for no value */
        if (json_is_null(one) && strcmp(name, "const") != 0) json_object_del(s, name);
    }
    modernise(s);
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords && !m->st; i++) {
        const char *key = keywords[i].key;
        enum shape shape = keywords[i].shape;
        json_t *v = json_object_get(s, key);
        if (!v) continue;
        if (has_shape(v, shape)) check_inside(m, key, v, shape, at, depth + 1);
        else (void)schema_refuse(m, at, ST_INVALID, "\"%s\" must be %s", key, wanted[shape]);
    }
}

void schema_check_shape(struct schema_maker *m, json_t *s, const struct path *at)
{
    char address[32];
    snprintf(address, sizeof address, "%p", (void *)s);
    if (json_object_get(m->checked, address)) return;
    if (json_object_set_new(m->checked, address, json_true())) (void)schema_nomem(m);
    else check(m, s, at, 0);
}

/* Do the keywords of a JSON schema have values of their kind? A misspelt type would be a schema that nothing
 * fits, a list of properties one that everything fits: both are refused here, with their place. */
#include "server/grammar/json_schema.h"

#include <string.h>

#define SHAPE_DEPTH 200u /* of paths; deeper ones json_schema.c refuses */

enum shape {
    TYPES,          /* the name of a type, or a list of them */
    NAMES,          /* a list of strings; draft 3 had a boolean, which means nothing */
    LIST,           /* of values */
    SCHEMA,         /* a schema */
    SCHEMAS,        /* a list of schemas, not empty */
    SCHEMA_OR_MORE, /* a schema, or a list of them */
    MAP,            /* names -> schemas */
    MAP_OR_NAMES,   /* names -> schemas or lists of strings */
    NUMBER,
    NUMBER_OR_FLAG, /* drafts 3 and 4 */
    TEXT,
};
static const char *const wanted[] = {
    "the name of a JSON type, or a list of them",
    "a list of names",
    "a list of values",
    "a schema: an object or a boolean",
    "a list of schemas, at least one",
    "a schema, or a list of them",
    "an object of schemas",
    "an object of schemas or of lists of names",
    "a number",
    "a number",
    "a text",
};
static const struct {
    const char *key;
    enum shape shape;
} keywords[] = {
    {"type", TYPES},
    {"required", NAMES},
    {"enum", LIST},
    {"allOf", SCHEMAS},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"prefixItems", SCHEMAS},
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
    {"$defs", MAP},
    {"definitions", MAP},
    {"dependencies", MAP_OR_NAMES},
    {"dependentRequired", MAP_OR_NAMES},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"multipleOf", NUMBER},
    {"exclusiveMinimum", NUMBER_OR_FLAG},
    {"exclusiveMaximum", NUMBER_OR_FLAG},
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
    case SCHEMA_OR_MORE: return is_schema(v) || all_are(v, is_schema);
    case MAP:
    case MAP_OR_NAMES: return json_is_object(v); /* what is in it is looked at next */
    case NUMBER: return json_is_number(v);
    case NUMBER_OR_FLAG: return json_is_number(v) || json_is_boolean(v);
    default: return is_text(v);
    }
}

static void check(struct schema_maker *m, const json_t *s, const struct path *at, unsigned depth);

static void check_inside(struct schema_maker *m, const char *keyword, json_t *v, enum shape shape,
                         const struct path *at, unsigned depth)
{
    struct path in = {at, keyword, 0};
    const char *key;
    json_t *one;
    size_t i;
    if (shape == SCHEMA || (shape == SCHEMA_OR_MORE && json_is_object(v))) check(m, v, &in, depth);
    if (shape == SCHEMAS || shape == SCHEMA_OR_MORE)
        json_array_foreach(v, i, one) check(m, one, &(struct path){&in, NULL, i}, depth);
    if (shape == MAP || shape == MAP_OR_NAMES) json_object_foreach(v, key, one)
        {
            struct path here = {&in, key, 0};
            if (shape == MAP_OR_NAMES && (json_is_string(one) || all_are(one, is_text))) continue;
            if (is_schema(one)) check(m, one, &here, depth);
            else (void)schema_refuse(m, &here, ST_INVALID, "a schema must be an object or a boolean");
        }
}

static void check(struct schema_maker *m, const json_t *s, const struct path *at, unsigned depth)
{
    if (depth > SHAPE_DEPTH) return;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords && !m->st; i++) {
        const char *key = keywords[i].key;
        enum shape shape = keywords[i].shape;
        json_t *v = json_object_get(s, key);
        if (!v) continue;
        if (has_shape(v, shape)) check_inside(m, key, v, shape, at, depth + 1);
        else (void)schema_refuse(m, at, ST_INVALID, "\"%s\" must be %s", key, wanted[shape]);
    }
}

void schema_check_shape(struct schema_maker *m, const json_t *s, const struct path *at)
{
    check(m, s, at, 0);
}

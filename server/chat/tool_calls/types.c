/* See types.h. Of JSON Schema: type, enum, const, anyOf, oneOf, allOf, local $ref, additionalProperties.
 */
#include "server/chat/tool_calls/types.h"

#include "server/json/fields.h"

#include <stdlib.h>
#include <string.h>

/* A schema may refer to itself, and lists of references multiply. Visited nodes are counted, about 10 ns
 * each: no reasonable request comes near the limit. */
#define DEPTH_MAX 16u
#define WORK_MAX  4000000u
#define WORK_NODE 20u

struct tool_types {
    json_t *functions; /* {function: {parameter: types}}; parameter "": all others */
};

struct reading {
    json_t *root; /* the target of "#" */
    size_t work;
};

static uint8_t type_named(const char *s)
{
    static const char *const names[] = {"string", "integer", "number", "boolean", "null", "object", "array"};
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++) {
        if (strcmp(s, names[i]) == 0) return (uint8_t)(1u << i);
    }
    return 0;
}

static uint8_t type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL: return TYPE_NUMBER;
    case JSON_NULL: return TYPE_NULL;
    case JSON_OBJECT: return json_big_int(v) ? TYPE_INTEGER : TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    default: return TYPE_BOOLEAN;
    }
}

static bool afford(struct reading *r, size_t work)
{
    if (r->work + work > WORK_MAX) return false;
    r->work += work;
    return true;
}

/* The entries of a list if all may be visited, else none. */
static size_t items(struct reading *r, const json_t *list)
{
    size_t n = json_array_size(list);
    return afford(r, n) ? n : 0;
}

/* RFC 6901 within the document, without escapes, which names of definitions don't use. Borrowed, NULL if not
 * found. */
static json_t *refer(struct reading *r, const json_t *reference)
{
    const char *ref = json_string_value(reference);
    if (!ref || ref[0] != '#' || !afford(r, json_string_length(reference))) return NULL;
    json_t *at = r->root;
    const char *s = ref + 1;
    while (at && *s == '/') {
        size_t n = strcspn(++s, "/");
        at = json_object_getn(at, s, n);
        s += n;
    }
    return *s ? NULL : at;
}

/* 0: the schema gives no type. */
static uint8_t schema_types(struct reading *r, json_t *schema, uint32_t depth);

/* One schema of a list holds (anyOf, oneOf): an alternative without type may be a string. */
static uint8_t types_of_any(struct reading *r, json_t *list, uint32_t depth)
{
    uint8_t types = 0;
    for (size_t i = 0, n = items(r, list); i < n; i++) {
        uint8_t t = schema_types(r, json_array_get(list, i), depth);
        types |= t ? t : TYPE_STRING;
    }
    return types;
}

static uint8_t schema_types(struct reading *r, json_t *schema, uint32_t depth)
{
    static const char *const any[] = {"anyOf", "oneOf"};
    if (!json_is_object(schema) || depth > DEPTH_MAX || !afford(r, WORK_NODE)) return 0;
    json_t *type = json_object_get(schema, "type"), *list;
    uint8_t types = type_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type) && i < 16; i++)
        types |= type_named(json_string_value(json_array_get(type, i)));
    if (types) return types;
    list = json_object_get(schema, "enum");
    for (size_t i = 0, n = items(r, list); i < n; i++) types |= type_of(json_array_get(list, i));
    if (json_object_get(schema, "const")) types |= type_of(json_object_get(schema, "const"));
    for (size_t i = 0; !types && i < sizeof any / sizeof *any; i++)
        types = types_of_any(r, json_object_get(schema, any[i]), depth + 1);
    list = json_object_get(schema, "allOf");
    for (size_t i = 0, n = items(r, list); !types && i < n; i++)
        types = schema_types(r, json_array_get(list, i), depth + 1);
    if (!types) types = schema_types(r, refer(r, json_object_get(schema, "$ref")), depth + 1);
    return types;
}

static bool parameter_set(json_t *all, const char *name, uint8_t types)
{
    return !json_object_set_new(all, name, json_integer(types ? types : TYPE_STRING));
}

/* {parameter: types} of one function. New reference; NULL: no memory. */
static json_t *parameters_read(struct reading *r, json_t *schema)
{
    json_t *all = json_object(), *s;
    const char *name;
    bool ok = all != NULL;
    json_object_foreach(json_object_get(schema, "properties"), name, s) {
        ok = ok && parameter_set(all, name, schema_types(r, s, 0));
    }
    s = json_object_get(schema, "additionalProperties");
    if (ok && json_is_object(s)) ok = parameter_set(all, "", schema_types(r, s, 0));
    if (ok) return all;
    json_decref(all);
    return NULL;
}

struct tool_types *tool_types_create(json_t *tools)
{
    struct tool_types *t = calloc(1, sizeof *t);
    struct reading r = {0};
    bool ok = t && (t->functions = json_object()) != NULL;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        json_t *f = json_object_get(json_array_get(tools, i), "function"),
               *parameters = json_object_get(f, "parameters");
        const char *name = json_string_value(json_object_get(f, "name"));
        r.root = parameters;
        json_t *all = parameters_read(&r, parameters);
        ok = all && name && !json_object_set(t->functions, name, all);
        json_decref(all);
    }
    if (ok) return t;
    tool_types_destroy(t);
    return NULL;
}

void tool_types_destroy(struct tool_types *t)
{
    if (!t) return;
    json_decref(t->functions);
    free(t);
}

bool tool_types_knows(const struct tool_types *t, const char *function, size_t function_len)
{
    return t && json_object_getn(t->functions, function, function_len);
}

bool tool_types_lists(const struct tool_types *t, const char *function, size_t function_len,
                      const char *parameter, size_t parameter_len)
{
    return t && parameter_len &&
           json_object_getn(json_object_getn(t->functions, function, function_len), parameter, parameter_len);
}

uint8_t tool_types_of(const struct tool_types *t, const char *function, size_t function_len,
                      const char *parameter, size_t parameter_len)
{
    if (!t) return 0;
    json_t *all = json_object_getn(t->functions, function, function_len);
    json_t *types = json_object_getn(all, parameter, parameter_len);
    if (!types) types = json_object_getn(all, "", 0);
    return (uint8_t)json_integer_value(types);
}

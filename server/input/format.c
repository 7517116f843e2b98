/* The requested response format: response_format, and vLLM's and llama.cpp's equivalents -> struct
 * response_format. Worker thread. input/constraint.c compiles it to a grammar. */
#include "server/input/fields.h"
#include "server/json/fields.h"
#include "server/input/constraint.h"

#include <string.h>

bool gen_strict(json_t *of)
{
    return json_is_true(field(of, "strict"));
}

bool gen_any_order(json_t *of)
{
    return json_is_false(field(of, "strict"));
}

static enum status text_format(struct generation *g, json_t *v, const char *path, struct response_format *f,
                               enum response_format_kind kind)
{
    if (!json_is_string(v)) return api_fail(g->e, 400, "invalid_type", path, "%s must be a string.", path);
    *f = (struct response_format){.kind = kind, .param = path};
    return arena_text(&g->q.form, v, &f->text) ? gen_nomem(g) : ST_OK;
}

/* A schema, or a schema as a string. */
enum status gen_schema(struct generation *g, json_t *v, const char *path, struct response_format *f)
{
    json_t *schema = json_incref(v);
    if (json_is_string(v)) {
        json_error_t where;
        json_decref(schema);
        schema = json_loadb(json_string_value(v), json_string_length(v), JSON_DECODE_ANY, &where);
        if (!schema)
            return api_fail(g->e, 400, "unsupported_schema", path, "The schema is not valid JSON: %.100s.",
                            where.text);
    }
    json_decref(f->schema);
    *f = (struct response_format){.kind = FORMAT_SCHEMA, .schema = schema, .param = path};
    return json_is_object(schema) || json_is_boolean(schema)
               ? ST_OK
               : api_fail(g->e, 400, "invalid_type", path, "A schema must be an object or a boolean.");
}

static enum status choice_format(struct generation *g, json_t *v, const char *path, struct response_format *f)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v)) return api_fail(g->e, 400, "invalid_type", path, "%s must be an array.", path);
    if (!n) return api_fail(g->e, 400, "invalid_value", path, "%s is empty.", path);
    *f = (struct response_format){.kind = FORMAT_CHOICE, .param = path};
    if (!(f->choices = arena_alloc(&g->q.form, n, sizeof *f->choices))) return gen_nomem(g);
    for (; f->choice_count < n; f->choice_count++) {
        json_t *one = json_array_get(v, f->choice_count);
        if (!json_is_string(one))
            return api_fail(g->e, 400, "invalid_type", path, "%s must be a list of strings.", path);
        if (arena_text(&g->q.form, one, &f->choices[f->choice_count])) return gen_nomem(g);
    }
    return ST_OK;
}

static bool name_ok(const json_t *name)
{
    static const char of[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *s = json_string_value(name);
    size_t n = s ? strlen(s) : 0;
    return n >= 1 && n <= 64 && n == json_string_length(name) && strspn(s, of) == n;
}

enum status gen_format(struct generation *g, json_t *type, json_t *in, const struct format_paths *paths)
{
    struct response_format *out = &g->q.format;
    if (json_is(type, "text")) return ST_OK;
    *out = (struct response_format){.kind = FORMAT_OBJECT, .param = paths->format};
    if (json_is(type, "json_object")) return ST_OK;
    if (json_is(type, "structural_tag"))
        return api_fail(g->e, 400, "unsupported_value", paths->format, "structural_tag is not supported.");
    if (!json_is(type, "json_schema"))
        return api_fail(g->e, 400, "invalid_value", paths->type, "'%.60s' is not a response format.",
                        json_string_value(type));
    if (!json_is_object(in))
        return api_fail(g->e, 400, "missing_required_parameter", paths->format,
                        "response_format.json_schema is missing.");
    json_t *name = field(in, "name"), *strict = field(in, "strict"), *schema = field(in, "schema");
    if (name && !name_ok(name))
        return api_fail(g->e, 400, "invalid_value", paths->name,
                        "The name of a schema must match [A-Za-z0-9_-]{1,64}.");
    if (strict && !json_is_boolean(strict))
        return api_fail(g->e, 400, "invalid_type", paths->strict, "strict must be a boolean.");
    out->kind = FORMAT_ANY;
    enum status st = schema ? gen_schema(g, schema, paths->format, out) : ST_OK;
    out->any_order = gen_any_order(in);
    out->strict = gen_strict(in);
    return st;
}

static enum status from_response_format(struct generation *g, json_t *f)
{
    static const struct format_paths paths = {"response_format", "response_format.type",
                                              "response_format.json_schema.name",
                                              "response_format.json_schema.strict"};
    if (!json_is_object(f))
        return api_fail(g->e, 400, "invalid_type", paths.format, "response_format must be an object.");
    json_t *type = field(f, "type"), *schema = field(f, "schema");
    if (!type)
        return api_fail(g->e, 400, "missing_required_parameter", paths.type,
                        "response_format.type is missing.");
    if (!json_is_string(type))
        return api_fail(g->e, 400, "invalid_type", paths.type, "response_format.type must be a string.");
    enum status st = gen_format(g, type, field(f, "json_schema"), &paths);
    if (st || !schema || !json_is(type, "json_object")) return st;
    return gen_schema(g, schema, paths.format, &g->q.format); /* llama.cpp's */
}

static enum status from_structured(struct generation *g, json_t *s, struct response_format *out)
{
    static const char *const keys[] = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"};
    const char *found = NULL;
    bool compact = false;
    if (!json_is_object(s))
        return api_fail(g->e, 400, "invalid_type", "structured_outputs",
                        "structured_outputs must be an object.");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = field(s, keys[i]);
        if (!v || json_is_false(v)) continue;
        if (found)
            return api_fail(g->e, 400, "invalid_value", "structured_outputs",
                            "structured_outputs has both %s and %s: one at most.", found, keys[i]);
        found = keys[i];
    }
    if (!found)
        return api_fail(g->e, 400, "invalid_value", "structured_outputs",
                        "structured_outputs needs one of json, regex, choice, grammar, json_object.");
    if (field_bool(g->e, s, "disable_any_whitespace", &compact)) return ST_INVALID;
    json_t *v = field(s, found);
    enum status st = ST_OK;
    if (strcmp(found, "json") == 0) st = gen_schema(g, v, "structured_outputs.json", out);
    else if (strcmp(found, "regex") == 0)
        st = text_format(g, v, "structured_outputs.regex", out, FORMAT_REGEX);
    else if (strcmp(found, "choice") == 0) st = choice_format(g, v, "structured_outputs.choice", out);
    else if (strcmp(found, "grammar") == 0)
        st = text_format(g, v, "structured_outputs.grammar", out, FORMAT_TEXT);
    else if (strcmp(found, "json_object") == 0)
        *out = (struct response_format){.kind = FORMAT_OBJECT, .param = "structured_outputs"};
    else
        return api_fail(g->e, 400, "unsupported_value", "structured_outputs",
                        "structural_tag is not supported.");
    out->compact = compact;
    return st;
}

enum status gen_parse_format(struct generation *g, json_t *root, unsigned api)
{
    static const struct {
        const char *name;
        enum response_format_kind kind;
    } aliases[] = {
        {"guided_json", FORMAT_SCHEMA}, {"json_schema", FORMAT_SCHEMA},   {"guided_regex", FORMAT_REGEX},
        {"regex", FORMAT_REGEX},        {"guided_choice", FORMAT_CHOICE}, {"guided_grammar", FORMAT_TEXT},
        {"ebnf", FORMAT_TEXT},          {"grammar", FORMAT_TEXT}};
    json_t *v = fields_part(api, root, "response_format");
    if (v && from_response_format(g, v)) return ST_INVALID;
    const char *found = g->q.format.kind ? g->q.format.param : NULL;
    if ((v = fields_part(api, root, "structured_outputs"))) {
        if (found)
            return api_fail(g->e, 400, "invalid_value", "structured_outputs",
                            "structured_outputs can't be combined with %s.", found);
        if (from_structured(g, v, &g->q.format)) return ST_INVALID;
        found = "structured_outputs";
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        const char *name = aliases[i].name;
        if (!(v = fields_part(api, root, name))) continue;
        if (found)
            return api_fail(g->e, 400, "invalid_value", name, "%s can't be combined with %s.", name, found);
        found = name;
        enum status st = aliases[i].kind == FORMAT_SCHEMA ? gen_schema(g, v, name, &g->q.format)
                         : aliases[i].kind == FORMAT_CHOICE
                             ? choice_format(g, v, name, &g->q.format)
                             : text_format(g, v, name, &g->q.format, aliases[i].kind);
        if (st) return st;
    }
    return ST_OK;
}

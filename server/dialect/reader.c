/* See reader.h. */
#include "server/dialect/reader.h"

#include "config/base/log.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <string.h>

enum status reader_object(struct reader *r, const char *name, json_t **out)
{
    *out = field(r->from, name);
    if (*out && (!json_is_object(*out) || json_big_int(*out)))
        return api_fail(r->e, 400, "invalid_type", name, "Must be an object.");
    return ST_OK;
}

enum status reader_member(struct reader *r, json_t *object, const char *name, const char *key, bool required,
                          json_t **out)
{
    char path[80];
    snprintf(path, sizeof path, "%s.%s", name, key);
    *out = field(object, key);
    if (!*out && required) return api_fail(r->e, 400, "missing_required_parameter", path, "Field required.");
    if (*out && !json_is_string(*out)) return api_fail(r->e, 400, "invalid_type", path, "Must be a string.");
    return ST_OK;
}

enum status reader_refuse(struct reader *r, const char *const (*list)[2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_t *v = field(r->from, list[i][0]);
        if (!v || (json_is_array(v) && !json_array_size(v)) || json_is(v, "") ||
            (strcmp(list[i][0], "n") == 0 && json_is_integer(v) && json_integer_value(v) == 1))
            continue;
        return api_fail(r->e, 400, "unsupported_parameter", list[i][0], "%s is not supported here%s%s.",
                        list[i][0], list[i][1] ? ": use " : "", list[i][1] ? list[i][1] : "");
    }
    return ST_OK;
}

enum status reader_function(struct reader *r, json_t *function)
{
    if (json_array_size(r->g->q.tools) == LIMIT_TOOLS) {
        json_decref(function);
        return api_fail(r->e, 400, "invalid_value", "tools", "More than %u tools.", LIMIT_TOOLS);
    }
    json_t *both = function ? json_pack("{s:s,s:o}", "type", "function", "function", function) : NULL;
    return both && !json_array_append_new(r->g->q.tools, both) ? ST_OK : gen_nomem(r->g);
}

void reader_hosted(struct reader *r, const json_t *type)
{
    size_t at = strlen(r->hosted);
    snprintf(r->hosted + at, sizeof r->hosted - at, "%s%.60s", at ? ", " : "", json_string_value(type));
}

enum status reader_tools(struct reader *r,
                         enum status (*one)(struct reader *r, json_t *tool, const char *path))
{
    json_t *from = field(r->from, "tools");
    if (!from) return ST_OK;
    if (!json_is_array(from)) return api_fail(r->e, 400, "invalid_type", "tools", "Must be an array.");
    if (!(r->g->q.tools = json_array())) return gen_nomem(r->g);
    for (size_t i = 0; i < json_array_size(from); i++) {
        json_t *tool = json_array_get(from, i);
        char path[40];
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (!json_is_object(tool)) return api_fail(r->e, 400, "invalid_type", path, "Must be an object.");
        if (one(r, tool, path)) return ST_INVALID;
    }
    if (r->hosted[0])
        log_info("req=%s tools that this server does not host are not in the prompt: %s", r->g->caller.id,
                 r->hosted);
    return ST_OK;
}

enum status reader_fields(struct reader *r, unsigned api)
{
    return gen_fields(r->g, r->from, r->counting ? API_COUNT : api, api);
}

enum status reader_resolve(struct reader *r, unsigned api)
{
    r->g->q.max_tokens_fit = true;
    if (r->counting) return ST_OK;
    return gen_resolve(r->g, r->from, api) || gen_tools_resolve(r->g, &names_mcp) ? ST_INVALID : ST_OK;
}

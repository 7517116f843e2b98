/* Tools and reasoning of a chat request. Worker thread. template.c puts them into the prompt, chat/output.c
 * finds them in the answer. */
#include "server/http/fields.h"
#include "server/generate/generate.h"
#include "server/http/limits.h"
#include "server/chat/template.h"
#include "server/chat/tool_types.h"

#include "engine/model/model_info.h"

#include <string.h>

/* ---- tools ---- */

static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 64 &&
           strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

/* By the "type" of a schema. */
static bool may_be_object(const json_t *type)
{
    for (size_t i = 0; i < json_array_size(type); i++)
        if (json_is(json_array_get(type, i), "object")) return true;
    return !type || json_is(type, "object");
}

static enum status function_check(struct api_error *e, json_t *f, const char *path)
{
    json_t *name = field(f, "name"), *parameters = field(f, "parameters"),
           *description = field(f, "description"), *strict = field(f, "strict");
    if (!json_is_object(f) || !name)
        return api_fail(e, 400, "missing_required_parameter", path, "A tool needs a function with a name.");
    if (!json_is_string(name))
        return api_fail(e, 400, "invalid_type", path, "A function's name must be a string.");
    if (!name_ok(json_string_value(name)))
        return api_fail(e, 400, "invalid_value", path, "A function's name must match [A-Za-z0-9_-]{1,64}.");
    if (parameters && (!json_is_object(parameters) || json_big_int(parameters))) {
        return api_fail(e, 400, "invalid_type", path,
                        "A function's parameters must be an object: a JSON schema.");
    }
    if (!may_be_object(field(parameters, "type")))
        return api_fail(e, 400, "invalid_value", path,
                        "A function's parameters must be of the type \"object\".");
    if (description && !json_is_string(description))
        return api_fail(e, 400, "invalid_type", path, "A function's description must be a string.");
    return strict && !json_is_boolean(strict)
               ? api_fail(e, 400, "invalid_type", path, "A function's strict must be a boolean.")
               : ST_OK;
}

static json_t *tool_name(json_t *tools, size_t i)
{
    return field(field(json_array_get(tools, i), "function"), "name");
}

static enum status tools_check(struct api_error *e, json_t *tools)
{
    char path[64];
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *type = field(t, "type");
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (!json_is_object(t)) return api_fail(e, 400, "invalid_type", path, "A tool must be an object.");
        if (!type) return api_fail(e, 400, "missing_required_parameter", path, "A tool needs a type.");
        if (!json_is_string(type))
            return api_fail(e, 400, "invalid_type", path, "A tool's type must be a string.");
        if (!json_is(type, "function")) {
            return api_fail(e, 400, "unsupported_value", path, "Tools of type '%.60s' are not supported.",
                            json_string_value(type));
        }
        if (function_check(e, field(t, "function"), path)) return ST_INVALID;
        for (size_t k = 0; k < i; k++) {
            if (!json_equal(tool_name(tools, k), tool_name(tools, i))) continue;
            return api_fail(e, 400, "invalid_value", path, "The function name '%.64s' is used twice.",
                            json_string_value(tool_name(tools, i)));
        }
    }
    return ST_OK;
}

static bool offered(json_t *tools, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_equal(name, tool_name(tools, i))) return true;
    return false;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, as Chat Completions and (without the inner
 * object) Responses have it. */
static enum status allowed_parse(struct api_error *e, json_t *choice, json_t *tools, struct call_form *out)
{
    json_t *in = field(choice, "allowed_tools"), *mode, *list;
    if (!json_is_object(in)) in = choice;
    mode = field(in, "mode");
    list = field(in, "tools");
    if (mode && !json_is(mode, "auto") && !json_is(mode, "required"))
        return api_fail(e, 400, "invalid_value", "tool_choice",
                        "The mode of allowed_tools must be \"auto\" "
                        "or \"required\".");
    if (!json_array_size(list))
        return api_fail(e, 400, "invalid_value", "tool_choice", "allowed_tools needs a list of tools.");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *name = tool_name(list, i);
        if (!json_is_string(name))
            return api_fail(
                e, 400, "invalid_value", "tool_choice",
                "The tools of allowed_tools are {\"type\": \"function\", \"function\": {\"name\"}}.");
        if (!offered(tools, name))
            return api_fail(e, 400, "invalid_value", "tool_choice",
                            "allowed_tools has a tool that is not in tools.");
    }
    out->allowed = list;
    out->required = json_is(mode, "required");
    return ST_OK;
}

static enum status choice_object(struct api_error *e, json_t *choice, json_t *tools, struct call_form *out)
{
    json_t *type = field(choice, "type"), *name = field(field(choice, "function"), "name");
    const char *t = json_is_string(type) ? json_string_value(type) : NULL;
    if (!json_array_size(tools))
        return api_fail(e, 400, "invalid_value", "tool_choice", "tool_choice needs tools.");
    if (type && !t)
        return api_fail(e, 400, "invalid_type", "tool_choice", "The type of tool_choice must be a string.");
    if (json_is(type, "allowed_tools")) return allowed_parse(e, choice, tools, out);
    if (json_is(type, "custom")) {
        return api_fail(e, 400, "unsupported_value", "tool_choice",
                        "Tools of type 'custom' are not supported.");
    }
    if (t && !json_is(type, "function"))
        return api_fail(e, 400, "invalid_value", "tool_choice", "'%.60s' is not a tool choice.", t);
    if (!json_is_string(name))
        return api_fail(e, 400, "invalid_value", "tool_choice", "tool_choice must name a function.");
    if (!offered(tools, name))
        return api_fail(e, 400, "invalid_value", "tool_choice",
                        "tool_choice names an unknown function '%.64s'.", json_string_value(name));
    out->required = true;
    out->named = json_string_value(name);
    return ST_OK;
}

/* *calls: calls may be made. */
static enum status choice_parse(struct api_error *e, json_t *choice, json_t *tools, bool *calls,
                                struct call_form *out)
{
    bool some = json_array_size(tools) > 0;
    *calls = some;
    if (!choice) return ST_OK;
    if (json_is_object(choice)) return choice_object(e, choice, tools, out);
    if (!json_is_string(choice))
        return api_fail(e, 400, "invalid_type", "tool_choice", "tool_choice must be a string or an object.");
    const char *how = json_string_value(choice);
    bool none = json_is(choice, "none"), required = json_is(choice, "required");
    if (!none && !required && !json_is(choice, "auto"))
        return api_fail(e, 400, "invalid_value", "tool_choice", "'%.60s' is not a tool choice.", how);
    if (required && !tools)
        return api_fail(e, 400, "invalid_value", "tool_choice", "tool_choice needs tools.");
    *calls = !none && some;
    out->required = required && some;
    return ST_OK;
}

enum status gen_parse_tools(struct gen *g, json_t *root)
{
    struct api_error *e = &g->r->answer.error;
    const struct model *m = g->r->srv->model;
    json_t *tools = field(root, "tools");
    bool calls = false;
    g->p.parallel_calls = true;
    if (tools && !json_is_array(tools))
        return api_fail(e, 400, "invalid_type", "tools", "tools must be an array.");
    if (json_array_size(tools) > LIMIT_TOOLS)
        return api_fail(e, 400, "invalid_value", "tools", "More than %u tools.", LIMIT_TOOLS);
    if (tools_check(e, tools) ||
        choice_parse(e, field(root, "tool_choice"), tools, &calls, &g->p.call_form) ||
        field_bool(e, root, "parallel_tool_calls", &g->p.parallel_calls)) {
        return ST_INVALID;
    }
    /* With "none" the tools still stand in the prompt: what is cached of the chat stays valid, and nothing is
     * parsed. */
    if (!calls) return ST_OK;
    const struct template_caps *caps = m->tmpl ? template_caps(m->tmpl, true) : NULL;
    if (!caps || !caps->tools) {
        return api_fail(
            e, 400, "tools_unsupported", "tools",
            "The chat template of this model (%s) has no place for tools; use tool_choice \"none\".",
            m->info->family);
    }
    if (!caps->calls) {
        return api_fail(e, 400, "tools_unsupported", "tools",
                        "This server can't read the tool calls of this model (%s); use tool_choice \"none\".",
                        m->info->family);
    }
    g->p.calls = caps->calls;
    g->p.named_call = g->p.call_form.named != NULL;
    g->p.must_call = g->p.call_form.required;
    if (g->p.calls == TOOL_FORM_XML && !(g->p.tool_types = tool_types_create(tools)))
        return api_fail(e, 503, "out_of_memory", NULL, "The server is out of memory.");
    return ST_OK;
}

/* ---- reasoning ---- */

static enum status effort_check(struct api_error *e, json_t *v, const char *path)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (!v) return ST_OK;
    if (!json_is_string(v)) return api_fail(e, 400, "invalid_type", path, "%s must be a string.", path);
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        if (json_is(v, efforts[i])) return ST_OK;
    }
    return api_fail(e, 400, "invalid_value", path, "'%.60s' is not a reasoning effort.",
                    json_string_value(v));
}

/* Variables for the template; what the client set by hand (chat_template_kwargs) wins. */
static bool variables_set(json_t *root, json_t *effort, json_t *enabled, json_t *verbosity)
{
    json_t *kwargs = field(root, "chat_template_kwargs"), *all = kwargs ? json_incref(kwargs) : json_object();
    bool ok = all != NULL;
    bool think = enabled ? json_is_true(enabled) : effort && !json_is(effort, "none");
    if (ok && (effort || enabled) && !json_object_get(all, "enable_thinking"))
        ok = !json_object_set_new(all, "enable_thinking", json_boolean(think));
    if (ok && effort && !json_object_get(all, "reasoning_effort"))
        ok = !json_object_set(all, "reasoning_effort", effort);
    if (ok && verbosity && !json_object_get(all, "verbosity"))
        ok = !json_object_set(all, "verbosity", verbosity);
    if (ok && (effort || enabled || verbosity)) ok = !json_object_set(root, "chat_template_kwargs", all);
    json_decref(all);
    return ok;
}

enum status gen_parse_thinking(struct gen *g, json_t *root)
{
    struct api_error *e = &g->r->answer.error;
    const struct model *m = g->r->srv->model;
    json_t *effort = field(root, "reasoning_effort"), *verbosity = field(root, "verbosity"),
           *kwargs = field(root, "chat_template_kwargs"), *reasoning = field(root, "reasoning");
    bool include = true, separate = true;
    if (effort_check(e, effort, "reasoning_effort")) return ST_INVALID;
    if (verbosity && !json_is_string(verbosity))
        return api_fail(e, 400, "invalid_type", "verbosity", "verbosity must be a string.");
    if (kwargs && !json_is_object(kwargs))
        return api_fail(e, 400, "invalid_type", "chat_template_kwargs",
                        "chat_template_kwargs must be an object.");
    const char *key;
    json_t *v;
    json_object_foreach(kwargs, key, v)
    {
        if (!template_reserves(key)) continue;
        return api_fail(e, 400, "invalid_value", "chat_template_kwargs",
                        "chat_template_kwargs can't set '%s': it is a field of the request itself.", key);
    }
    if (reasoning && !json_is_object(reasoning))
        return api_fail(e, 400, "invalid_type", "reasoning", "reasoning must be an object.");
    if (effort_check(e, field(reasoning, "effort"), "reasoning.effort")) return ST_INVALID;
    if (!effort) effort = field(reasoning, "effort");
    json_t *enabled = field(reasoning, "enabled");
    if (enabled && !json_is_boolean(enabled))
        return api_fail(e, 400, "invalid_type", "reasoning.enabled", "reasoning.enabled must be a boolean.");
    if (field_bool(e, root, "include_reasoning", &include) ||
        field_bool(e, root, "separate_reasoning", &separate))
        return ST_INVALID;
    if (!variables_set(root, effort, enabled, verbosity))
        return api_fail(e, 503, "out_of_memory", NULL, "The server is out of memory.");
    const struct template_caps *caps =
        m->tmpl ? template_caps(m->tmpl, json_array_size(field(root, "tools")) > 0) : NULL;
    g->p.reasoning_form = caps ? caps->reasoning : REASONING_THINK;
    g->p.reasoning = !caps || !caps->think ? REASONING_NONE
                     : !include            ? REASONING_DROP
                     : separate            ? REASONING_FIELD
                                           : REASONING_CONTENT;
    return ST_OK;
}

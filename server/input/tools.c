/* Tools and reasoning of a chat request. Worker thread. template.c puts them into the prompt, chat/output.c
 * parses them from the output. */
#include "server/json/fields.h"
#include "server/input/input.h"
#include "server/context/limits.h"
#include "server/chat/template.h"
#include "server/chat/tool_calls/types.h"

#include "engine/model/model_info.h"

#include <string.h>

/* ---- tools ---- */

const struct name_rule names_openai = {"[A-Za-z0-9_-]{1,64}", 64, false};
const struct name_rule names_mcp = {"[A-Za-z0-9_.-]{1,128}", 128, true};

static bool name_ok(const struct name_rule *names, const char *s)
{
    static const char chars[] = ".ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t n = strlen(s);
    return n >= 1 && n <= names->max && strspn(s, chars + !names->dot) == n;
}

/* By the "type" of a schema. */
static bool may_be_object(const json_t *type)
{
    for (size_t i = 0; i < json_array_size(type); i++)
        if (json_is(json_array_get(type, i), "object")) return true;
    return !type || json_is(type, "object");
}

static enum status function_check(struct generation *g, const struct name_rule *names, json_t *f,
                                  const char *path)
{
    json_t *name = field(f, "name"), *parameters = field(f, "parameters"),
           *description = field(f, "description"), *strict = field(f, "strict");
    if (!json_is_object(f) || !name)
        return api_fail(g->e, 400, "missing_required_parameter", path,
                        "A tool needs a function with a name.");
    if (!json_is_string(name))
        return api_fail(g->e, 400, "invalid_type", path, "A function's name must be a string.");
    if (!name_ok(names, json_string_value(name)))
        return api_fail(g->e, 400, "invalid_value", path, "The function name '%.80s' does not match %s.",
                        json_string_value(name), names->pattern);
    if (parameters && (!json_is_object(parameters) || json_big_int(parameters))) {
        return api_fail(g->e, 400, "invalid_type", path,
                        "A function's parameters must be an object: a JSON schema.");
    }
    if (!may_be_object(field(parameters, "type")))
        return api_fail(g->e, 400, "invalid_value", path,
                        "A function's parameters must be of the type \"object\".");
    if (description && !json_is_string(description))
        return api_fail(g->e, 400, "invalid_type", path, "A function's description must be a string.");
    return strict && !json_is_boolean(strict)
               ? api_fail(g->e, 400, "invalid_type", path, "A function's strict must be a boolean.")
               : ST_OK;
}

static json_t *tool_name(json_t *tools, size_t i)
{
    return field(field(json_array_get(tools, i), "function"), "name");
}

static enum status tools_check(struct generation *g, const struct name_rule *names, json_t *tools)
{
    char path[64];
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *type = field(t, "type");
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (!json_is_object(t)) return api_fail(g->e, 400, "invalid_type", path, "A tool must be an object.");
        if (!type) return api_fail(g->e, 400, "missing_required_parameter", path, "A tool needs a type.");
        if (!json_is_string(type))
            return api_fail(g->e, 400, "invalid_type", path, "A tool's type must be a string.");
        if (!json_is(type, "function")) {
            return api_fail(g->e, 400, "unsupported_value", path, "Tools of type '%.60s' are not supported.",
                            json_string_value(type));
        }
        if (function_check(g, names, field(t, "function"), path)) return ST_INVALID;
        for (size_t k = 0; k < i; k++) {
            if (!json_equal(tool_name(tools, k), tool_name(tools, i))) continue;
            return api_fail(g->e, 400, "invalid_value", path, "The function name '%.64s' is used twice.",
                            json_string_value(tool_name(tools, i)));
        }
    }
    return ST_OK;
}

static bool offered(json_t *tools, struct text name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (text_is(name, json_string_value(tool_name(tools, i)))) return true;
    return false;
}

enum status gen_choose_among(struct generation *g, json_t *mode, json_t *list, bool nested)
{
    if (mode && !json_is(mode, "auto") && !json_is(mode, "required"))
        return api_fail(g->e, 400, "invalid_value", "tool_choice",
                        "The mode of allowed_tools must be \"auto\" or \"required\".");
    if (!json_array_size(list))
        return api_fail(g->e, 400, "invalid_value", "tool_choice", "allowed_tools needs a list of tools.");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (nested && !json_is_string(tool_name(list, i)))
            return api_fail(
                g->e, 400, "invalid_value", "tool_choice",
                "The tools of allowed_tools are {\"type\": \"function\", \"function\": {\"name\"}}.");
    }
    struct tool_choice *f = &g->q.tool_choice;
    f->limited = true;
    f->required = json_is(mode, "required");
    if (!(f->allowed = arena_alloc(&g->q.form, json_array_size(list), sizeof *f->allowed)))
        return gen_nomem(g);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *one = json_array_get(list, i), *in = field(one, "function"),
               *name = field(in ? in : one, "name"); /* a hosted tool has none */
        if (json_is_string(name) && arena_text(&g->q.form, name, &f->allowed[f->allowed_count++]))
            return gen_nomem(g);
    }
    return ST_OK;
}

enum status gen_choose(struct generation *g, json_t *word)
{
    if (!word) return ST_OK;
    if (!json_is_string(word))
        return api_fail(g->e, 400, "invalid_type", "tool_choice",
                        "tool_choice must be a string or an object.");
    g->q.tool_choice.none = json_is(word, "none");
    g->q.tool_choice.required = json_is(word, "required");
    if (g->q.tool_choice.none || g->q.tool_choice.required || json_is(word, "auto")) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", "tool_choice", "'%.60s' is not a tool choice.",
                    json_string_value(word));
}

static enum status choice_object(struct generation *g, json_t *choice)
{
    json_t *type = field(choice, "type"), *name = field(field(choice, "function"), "name");
    if (type && !json_is_string(type))
        return api_fail(g->e, 400, "invalid_type", "tool_choice",
                        "The type of tool_choice must be a string.");
    if (json_is(type, "allowed_tools")) {
        json_t *in = field(choice, "allowed_tools");
        if (!json_is_object(in)) in = choice;
        return gen_choose_among(g, field(in, "mode"), field(in, "tools"), true);
    }
    if (json_is(type, "custom"))
        return api_fail(g->e, 400, "unsupported_value", "tool_choice",
                        "Tools of type 'custom' are not supported.");
    if (type && !json_is(type, "function"))
        return api_fail(g->e, 400, "invalid_value", "tool_choice", "'%.60s' is not a tool choice.",
                        json_string_value(type));
    if (!json_is_string(name))
        return api_fail(g->e, 400, "invalid_value", "tool_choice", "tool_choice must name a function.");
    return arena_text(&g->q.arena, name, &g->q.tool_choice.named) ? gen_nomem(g) : ST_OK;
}

enum status gen_parse_tools(struct generation *g, json_t *root)
{
    json_t *choice = field(root, "tool_choice");
    g->q.tools = json_incref(field(root, "tools"));
    return json_is_object(choice) ? choice_object(g, choice) : gen_choose(g, choice);
}

/* tool_choice, restricted to the given tools. */
static enum status choice_check(struct generation *g)
{
    struct tool_choice *f = &g->q.tool_choice;
    bool some = json_array_size(g->q.tools) > 0;
    if (((f->named.data || f->limited) && !some) || (f->required && !g->q.tools))
        return api_fail(g->e, 400, "invalid_value", "tool_choice", "tool_choice needs tools.");
    if (f->named.data && !offered(g->q.tools, f->named))
        return api_fail(g->e, 400, "invalid_value", "tool_choice",
                        "tool_choice names an unknown function '%.64s'.", f->named.data);
    for (size_t i = 0; i < f->allowed_count; i++)
        if (!offered(g->q.tools, f->allowed[i]))
            return api_fail(g->e, 400, "invalid_value", "tool_choice",
                            "allowed_tools has a tool that is not in tools.");
    f->required = some && (f->required || f->named.data);
    return ST_OK;
}

enum status gen_tools_resolve(struct generation *g, const struct name_rule *names)
{
    json_t *tools = g->q.tools;
    if (tools && !json_is_array(tools))
        return api_fail(g->e, 400, "invalid_type", "tools", "tools must be an array.");
    if (json_array_size(tools) > LIMIT_TOOLS)
        return api_fail(g->e, 400, "invalid_value", "tools", "More than %u tools.", LIMIT_TOOLS);
    return tools_check(g, names, tools) || choice_check(g) ? ST_INVALID : ST_OK;
}

/* ---- reasoning ---- */

/* Variables for the template; chat_template_kwargs of the client takes precedence. */
static bool variables_set(struct generation *g, const struct reasoning_ask *a)
{
    json_t *all = a->variables ? json_copy(a->variables) : json_object();
    bool ok = all != NULL, think = a->enabled ? json_is_true(a->enabled) : !json_is(a->effort, "none");
    if (ok && (a->effort || a->enabled) && !json_object_get(all, "enable_thinking"))
        ok = !json_object_set_new(all, "enable_thinking", json_boolean(think));
    if (ok && a->effort && !json_object_get(all, "reasoning_effort"))
        ok = !json_object_set(all, "reasoning_effort", a->effort);
    if (ok && a->verbosity && !json_object_get(all, "verbosity"))
        ok = !json_object_set(all, "verbosity", a->verbosity);
    g->q.variables = all;
    return ok;
}

enum status gen_reasoning(struct generation *g, const struct reasoning_ask *ask)
{
    const char *key, *path = ask->budget_path;
    int64_t budget;
    json_t *v;
    if (ask->variables && !json_is_object(ask->variables))
        return api_fail(g->e, 400, "invalid_type", "chat_template_kwargs",
                        "chat_template_kwargs must be an object.");
    json_object_foreach(ask->variables, key, v) {
        if (!template_reserves(key)) continue;
        return api_fail(g->e, 400, "invalid_value", "chat_template_kwargs",
                        "chat_template_kwargs can't set '%s': it is a field of the request itself.", key);
    }
    if (!variables_set(g, ask)) return gen_nomem(g);
    g->q.reasoning = (struct reasoning_choice){
        .drop = ask->drop, .inline_ = ask->inline_, .budget_path = ask->budget_path};
    if (!ask->budget) return ST_OK;
    if (!json_to_int(ask->budget, &budget)) /* checked before, where there is no path */
        return api_fail(g->e, 400, "invalid_type", path, "%s must be an integer.", path ? path : "");
    if (budget < 0) return api_fail(g->e, 400, "invalid_value", path, "%s must be at least 0.", path);
    g->q.reasoning.limited = true;
    g->q.reasoning.budget = budget < UINT32_MAX ? (uint32_t)budget : UINT32_MAX;
    return ST_OK;
}

enum status gen_effort_check(struct generation *g, json_t *v, const char *path)
{
    if (!v) return ST_OK;
    if (!json_is_string(v)) return api_fail(g->e, 400, "invalid_type", path, "%s must be a string.", path);
    if (template_effort(v)) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", path, "'%.60s' is not a reasoning effort.",
                    json_string_value(v));
}

enum status gen_parse_reasoning(struct generation *g, json_t *root)
{
    json_t *reasoning = field(root, "reasoning");
    struct reasoning_ask ask = {.effort = field(root, "reasoning_effort"),
                                .verbosity = field(root, "verbosity"),
                                .enabled = field(reasoning, "enabled"),
                                .variables = field(root, "chat_template_kwargs")};
    bool include = true, separate = true;
    if (gen_effort_check(g, ask.effort, "reasoning_effort")) return ST_INVALID;
    if (ask.verbosity && !json_is_string(ask.verbosity))
        return api_fail(g->e, 400, "invalid_type", "verbosity", "verbosity must be a string.");
    if (reasoning && !json_is_object(reasoning))
        return api_fail(g->e, 400, "invalid_type", "reasoning", "reasoning must be an object.");
    if (gen_effort_check(g, field(reasoning, "effort"), "reasoning.effort")) return ST_INVALID;
    if (!ask.effort) ask.effort = field(reasoning, "effort");
    const char *enabled = ask.enabled ? "reasoning.enabled" : "enable_thinking";
    if (!ask.enabled) ask.enabled = field(root, enabled);
    if (ask.enabled && !json_is_boolean(ask.enabled))
        return api_fail(g->e, 400, "invalid_type", enabled, "%s must be a boolean.", enabled);
    json_t *thinking = field(field(root, "thinking"), "type"); /* DeepSeek's */
    if (thinking && !ask.enabled) ask.enabled = json_boolean(!json_is(thinking, "disabled"));
    if (field_bool(g->e, root, "include_reasoning", &include) ||
        field_bool(g->e, root, "separate_reasoning", &separate))
        return ST_INVALID;
    ask.budget_path = field(root, "thinking_token_budget") ? "thinking_token_budget"
                      : field(root, "thinking_budget")     ? "thinking_budget"
                                                           : "reasoning.max_tokens";
    ask.budget = field(root, ask.budget_path);
    if (!ask.budget) ask.budget = field(reasoning, "max_tokens");
    ask.drop = !include;
    ask.inline_ = !separate;
    return gen_reasoning(g, &ask);
}

/* ---- what the model makes of them ---- */

/* With "none" the tools remain in the prompt, so that the chat's cached prefix stays valid, and nothing is
 * parsed. */
static enum status call_rules(struct generation *g)
{
    const struct model *m = g->ctx->model;
    if (!json_array_size(g->q.tools) || g->q.tool_choice.none) return ST_OK;
    const struct template_caps *caps = m->tmpl ? template_caps(m->tmpl, true) : NULL;
    if (!caps || !caps->tools) {
        return api_fail(
            g->e, 400, "tools_unsupported", "tools",
            "The chat template of this model (%s) does not support tools: serve a model whose template does, "
            "or use tool_choice \"none\".",
            m->info->family);
    }
    if (!caps->calls) {
        return api_fail(
            g->e, 400, "tools_unsupported", "tools",
            "This server can't read the tool calls of this model (%s): serve one whose chat template has a "
            "form that it knows (docs/http.md), or use tool_choice \"none\".",
            m->info->family);
    }
    g->rules.calls = caps->calls;
    g->rules.named_call = g->q.tool_choice.named.data != NULL;
    g->rules.must_call = g->q.tool_choice.required;
    if (!(g->rules.tool_types = tool_types_create(g->q.tools))) return gen_nomem(g);
    return ST_OK;
}

/* The limit on reasoning tokens, after its tags are set. */
static enum status thinking_budget(struct generation *g)
{
    const char *close = reasoning_close(g->rules.reasoning_syntax), *path = g->q.reasoning.budget_path;
    if (!g->q.reasoning.limited || g->rules.reasoning == REASONING_NONE) return ST_OK;
    if (!tok_id_of(g->ctx->model->tok, close, strlen(close), &g->rules.think.close))
        return path ? api_fail(g->e, 400, "unsupported_parameter", path,
                               "%s needs a model with a token for \"%s\"; this one has none.", path, close)
                    : ST_OK;
    g->rules.think.limited = true;
    g->rules.think.budget = g->q.reasoning.budget;
    return ST_OK;
}

enum status gen_rules(struct generation *g)
{
    const struct model *m = g->ctx->model;
    if (g->q.kind != GEN_CHAT) return ST_OK;
    if (call_rules(g)) return ST_INVALID;
    const struct template_caps *caps =
        m->tmpl ? template_caps(m->tmpl, json_array_size(g->q.tools) > 0) : NULL;
    g->rules.reasoning_syntax = caps ? caps->reasoning : REASONING_THINK;
    g->rules.reasoning = !caps || !caps->think    ? REASONING_NONE
                         : g->q.reasoning.drop    ? REASONING_DROP
                         : g->q.reasoning.inline_ ? REASONING_CONTENT
                                                  : REASONING_FIELD;
    return thinking_budget(g);
}

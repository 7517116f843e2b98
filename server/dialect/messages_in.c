/* Anthropic's body -> a chat request. Worker thread. */
#include "server/dialect/messages.h"
#include "server/dialect/reader.h"

#include "server/json/fields.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tools ---- */

static enum status tool(struct reader *r, json_t *from, const char *path)
{
    json_t *type, *name, *text, *schema = field(from, "input_schema"), *strict = field(from, "strict");
    if (reader_member(r, from, path, "type", false, &type)) return ST_INVALID;
    if (type && !json_is(type, "custom")) return reader_hosted(r, type), ST_OK;
    if (reader_member(r, from, path, "name", true, &name) ||
        reader_member(r, from, path, "description", false, &text))
        return ST_INVALID;
    if (!schema)
        return api_fail(r->e, 400, "missing_required_parameter", path, "input_schema: Field required.");
    if (!json_is_object(schema) || json_big_int(schema))
        return api_fail(r->e, 400, "invalid_type", path, "input_schema must be an object: a JSON schema.");
    return reader_function(r, json_pack("{s:O,s:O*,s:O,s:O*}", "name", name, "description", text,
                                        "parameters", schema, "strict", strict));
}

/* *single: one call at most. */
static enum status tool_choice(struct reader *r, bool *single)
{
    json_t *from, *type;
    struct tool_choice *f = &r->g->q.tool_choice;
    if (reader_object(r, "tool_choice", &from)) return ST_INVALID;
    if (!from) return ST_OK;
    if (reader_member(r, from, "tool_choice", "type", true, &type)) return ST_INVALID;
    json_t *one = field(from, "disable_parallel_tool_use");
    if (one && !json_is_boolean(one))
        return api_fail(r->e, 400, "invalid_type", "tool_choice.disable_parallel_tool_use",
                        "Must be a boolean.");
    *single = json_is_true(one);
    f->none = json_is(type, "none");
    f->required = json_is(type, "any");
    if (f->none || f->required || json_is(type, "auto")) return ST_OK;
    if (!json_is(type, "tool"))
        return api_fail(r->e, 400, "invalid_value", "tool_choice.type", "'%.60s' is not a tool choice.",
                        json_string_value(type));
    json_t *name;
    if (reader_member(r, from, "tool_choice", "name", true, &name)) return ST_INVALID;
    return arena_text(&r->g->q.arena, name, &f->named) ? gen_nomem(r->g) : ST_OK;
}

/* ---- reasoning and the output format ---- */

static enum status thinking(struct reader *r, struct reasoning_ask *ask)
{
    static const char *const types[] = {"disabled", "enabled", "adaptive", "between_tools"};
    json_t *from, *type, *display, *budget;
    int64_t n;
    if (reader_object(r, "thinking", &from)) return ST_INVALID;
    if (!from) return ST_OK;
    if (reader_member(r, from, "thinking", "type", true, &type) ||
        reader_member(r, from, "thinking", "display", false, &display))
        return ST_INVALID;
    size_t i = 0;
    while (i < sizeof types / sizeof *types && !json_is(type, types[i])) i++;
    if (i == sizeof types / sizeof *types)
        return api_fail(r->e, 400, "invalid_value", "thinking.type",
                        "'%.60s' is not one of 'enabled', 'disabled', 'adaptive', 'between_tools'.",
                        json_string_value(type));
    budget = field(from, "budget_tokens");
    if (budget && (!json_to_int(budget, &n) || n < 1))
        return api_fail(r->e, 400, "invalid_value", "thinking.budget_tokens", "Must be a positive integer.");
    if (json_is(type, "enabled")) ask->budget = budget;
    ask->drop = json_is(display, "omitted");
    ask->enabled = i > 0 ? json_true() : json_false();
    return ST_OK;
}

/* Effort is only passed to the template: it doesn't enable thinking. */
static enum status effort(struct reader *r, json_t *config, struct reasoning_ask *ask)
{
    json_t *kwargs, *value, *all;
    if (reader_object(r, "chat_template_kwargs", &kwargs) ||
        reader_member(r, config, "output_config", "effort", false, &value))
        return ST_INVALID;
    ask->variables = kwargs;
    enum status st = gen_reasoning(r->g, ask);
    all = r->g->q.variables;
    if (st || !value || json_object_get(all, "reasoning_effort")) return st;
    return json_object_set(all, "reasoning_effort", value) ? gen_nomem(r->g) : ST_OK;
}

static enum status output_config(struct reader *r, struct reasoning_ask *ask)
{
    static const char *const names[] = {"output_config.format", "output_format"};
    json_t *config, *format, *old, *type, *schema;
    if (reader_object(r, "output_config", &config) || reader_object(r, "output_format", &old) ||
        effort(r, config, ask))
        return ST_INVALID;
    format = field(config, "format");
    const char *name = names[format ? 0 : 1];
    if (!format) format = old; /* its older name */
    if (!format) return ST_OK;
    if (!json_is_object(format)) return api_fail(r->e, 400, "invalid_type", name, "Must be an object.");
    if (reader_member(r, format, name, "type", true, &type)) return ST_INVALID;
    if (!json_is(type, "json_schema"))
        return api_fail(r->e, 400, "invalid_value", name, "'%.60s' is not a supported output format.",
                        json_string_value(type));
    schema = field(format, "schema");
    if (!json_is_object(schema) || json_big_int(schema))
        return api_fail(r->e, 400, schema ? "invalid_type" : "missing_required_parameter", name,
                        "schema must be an object: a JSON schema.");
    return gen_schema(r->g, schema, name, &r->g->q.format);
}

static enum status user(struct reader *r)
{
    json_t *from, *id;
    if (reader_object(r, "metadata", &from) || reader_member(r, from, "metadata", "user_id", false, &id))
        return ST_INVALID;
    if (id && arena_text(&r->g->q.arena, id, &r->g->q.user)) return gen_nomem(r->g);
    gen_caller(r->g);
    return ST_OK;
}

/* ---- the whole ---- */

static enum status read_body(struct generation *g, json_t *root, bool counting)
{
    struct reader r = {.g = g, .e = g->e, .from = root, .counting = counting};
    struct reasoning_ask ask = {.drop = false};
    bool single = false, go_on = false;
    g->dialect_state = calloc(1, sizeof(struct messages_state));
    if (!g->dialect_state) return gen_nomem(r.g);
    if (reader_fields(&r, API_MESSAGES)) return ST_INVALID;
    if (!g->q.has_max_tokens && !counting)
        return api_fail(g->e, 400, "missing_required_parameter", "max_tokens", "Field required.");
    if (reader_tools(&r, tool) || tool_choice(&r, &single) || thinking(&r, &ask) || output_config(&r, &ask) ||
        messages_read(g, root, &go_on) || reader_resolve(&r, API_MESSAGES) || user(&r))
        return ST_INVALID;
    if (single) g->q.parallel_calls = false;
    g->q.continue_final_message = go_on;
    g->q.add_generation_prompt = !go_on;
    return gen_read_added(g);
}

static enum status read_whole(struct generation *g, json_t *root)
{
    return read_body(g, root, false);
}

static enum status read_count(struct generation *g, json_t *root)
{
    return read_body(g, root, true);
}

const struct dialect dialect_messages = {.read = read_whole,
                                         .source = "messages",
                                         .response = messages_write_response,
                                         .head = messages_head,
                                         .delta = messages_delta,
                                         .tail = messages_tail,
                                         .error = messages_error};
const struct dialect dialect_count_tokens = {
    .read = read_count, .source = "messages", .counted = "{\"input_tokens\":"};

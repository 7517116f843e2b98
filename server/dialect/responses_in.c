/* The body of /v1/responses -> a chat request. Worker thread. */
#include "server/dialect/responses.h"

#include "server/http/fields.h"
#include "server/http/json_value.h"
#include "server/http/limits.h"
#include "server/http/request.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields shared with chat completions ---- */

/* OpenAI's fields, and those of this and other servers that chat completions accepts too. */
static const char *const same[] = {
    /* as in chat completions */
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "service_tier",
    "user",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
    "mm_processor_kwargs",
    "cache_salt",
    "priority",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "request_id"};
static const char *const others[] = {
    /* read elsewhere, or ignored */
    "background",
    "chat_template_kwargs",
    "context_management",
    "conversation",
    "include",
    "include_reasoning",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "store",
    "stream_options",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static enum status refused(struct reader *r)
{
    static const char *const names[][2] = {{"conversation", "previous_response_id"},
                                           {"prompt", NULL},
                                           {"n", NULL},
                                           {"messages", "input"},
                                           {"response_format", "text.format"},
                                           {"max_tokens", "max_output_tokens"},
                                           {"max_completion_tokens", "max_output_tokens"},
                                           {"regex", "structured_outputs"},
                                           {"grammar", "structured_outputs"},
                                           {"ebnf", "structured_outputs"}};
    bool background = false;
    json_t *truncation = field(r->from, "truncation");
    if (reader_refuse(r, names, COUNT(names))) return ST_INVALID;
    if (field_bool(r->e, r->from, "background", &background)) return ST_INVALID;
    if (background)
        return api_fail(r->e, 400, "unsupported_parameter", "background",
                        "background is not supported: wait for the response, or stream it.");
    if (truncation && !json_is_string(truncation))
        return api_fail(r->e, 400, "invalid_type", "truncation", "Must be a string.");
    if (json_is(truncation, "auto"))
        return api_fail(r->e, 400, "unsupported_value", "truncation",
                        "A truncation of \"auto\" is not supported: nothing is left out of a conversation.");
    return truncation && !json_is(truncation, "disabled")
               ? api_fail(r->e, 400, "invalid_value", "truncation", "Must be 'disabled'.")
               : ST_OK;
}

static enum status limits(struct reader *r)
{
    int64_t n, top = 0;
    bool has = false, logprobs = false;
    json_t *include = field(r->from, "include"), *options;
    if (field_int(r->e, r->from, "max_output_tokens", 1, INT64_MAX, &n, &has) ||
        field_int(r->e, r->from, "top_logprobs", 0, LIMIT_TOP_LOGPROBS, &top, NULL) ||
        reader_object(r, "stream_options", &options))
        return ST_INVALID;
    r->g->p.has_max = has;
    r->g->p.max_tokens = has ? (uint64_t)n : 0;
    if (include && !json_is_array(include))
        return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
    for (size_t i = 0; i < json_array_size(include); i++) {
        json_t *what = json_array_get(include, i);
        if (!json_is_string(what))
            return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
        logprobs = logprobs || json_is(what, "message.output_text.logprobs");
    }
    r->g->p.logprobs = logprobs || top;
    r->g->p.logprobs_top = (uint32_t)top;
    return ST_OK;
}

/* ---- tools ---- */

/* Field order matters: it is visible in the prompt. */
static json_t *tool(struct reader *r, json_t *from, const char *path)
{
    json_t *type = field(from, "type"), *f, *v;
    const char *key;
    if (!json_is_string(type))
        (void)api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", path,
                       "A tool needs a type.");
    if (!json_is(type, "function"))
        (void)api_fail(r->e, 400, "unsupported_value", path, "Tools of type '%.60s' are not supported.",
                       json_string_value(type));
    bool ok = !r->e->http && (f = json_object());
    if (!ok) return NULL;
    json_object_foreach(from, key, v)
    {
        if (ok && strcmp(key, "type") != 0 && !json_is_null(v)) ok = !json_object_set(f, key, v);
    }
    if (ok) return f;
    json_decref(f);
    return NULL;
}

static enum status tool_choice(struct reader *r)
{
    json_t *from = field(r->from, "tool_choice"), *type = field(from, "type"), *name = field(from, "name");
    if (!from) return ST_OK;
    if (!json_is_object(from)) return r->counting ? ST_OK : gen_choose(r->g, from);
    if (!json_is_string(type))
        return api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", "tool_choice.type",
                        "Must be a string.");
    if (json_is(type, "function")) {
        if (!json_is_string(name))
            return api_fail(r->e, 400, name ? "invalid_type" : "missing_required_parameter",
                            "tool_choice.name", "Must be a string.");
        r->g->p.tool_choice.name = name;
        return ST_OK;
    }
    if (!json_is(type, "allowed_tools"))
        return api_fail(r->e, 400, "unsupported_value", "tool_choice.type",
                        "A tool choice of type '%.60s' is not supported.", json_string_value(type));
    json_t *mode = field(from, "mode"), *allowed = field(from, "tools");
    bool ok = json_is_array(allowed) && json_is_string(mode);
    for (size_t i = 0; i < json_array_size(allowed) && ok; i++)
        ok = json_is_string(field(json_array_get(allowed, i), "name"));
    if (ok && r->counting) return ST_OK;
    return ok ? gen_choose_among(r->g, mode, allowed, false)
              : api_fail(r->e, 400, "invalid_value", "tool_choice",
                         "allowed_tools needs a mode, and tools with names.");
}

/* ---- reasoning and the text format ---- */

static enum status text_format(struct reader *r, json_t *format)
{
    static const struct format_paths paths = {"text.format", "text.format.type", "text.format.name",
                                              "text.format.strict"};
    json_t *type;
    if (!json_is_object(format) || json_big_int(format))
        return api_fail(r->e, 400, "invalid_type", paths.format, "Must be an object.");
    if (reader_member(r, format, paths.format, "type", true, &type)) return ST_INVALID;
    json_t *schema = field(format, "schema");
    if (json_is(type, "json_schema") && (!json_is_object(schema) || json_big_int(schema)))
        return api_fail(r->e, 400, schema ? "invalid_type" : "missing_required_parameter",
                        "text.format.schema", "Must be an object: a JSON schema.");
    return r->counting ? ST_OK : gen_format(r->g, type, format, &paths);
}

static enum status text_and_reasoning(struct reader *r)
{
    json_t *text, *reasoning, *summary;
    struct reasoning_ask ask = {.variables = field(r->from, "chat_template_kwargs")};
    bool include = true;
    if (reader_object(r, "text", &text) || reader_object(r, "reasoning", &reasoning) ||
        reader_member(r, reasoning, "reasoning", "effort", false, &ask.effort) ||
        reader_member(r, reasoning, "reasoning", "summary", false, &summary) ||
        reader_member(r, text, "text", "verbosity", false, &ask.verbosity) ||
        gen_effort_check(r->g, ask.effort, "reasoning.effort") ||
        field_bool(r->e, r->from, "include_reasoning", &include))
        return ST_INVALID;
    ask.drop = !include;
    if (gen_reasoning(r->g, &ask)) return ST_INVALID;
    return field(text, "format") ? text_format(r, field(text, "format")) : ST_OK;
}

/* ---- previous_response_id ---- */

static enum status before(struct reader *r, struct responses_state *s)
{
    struct request *q = r->g->r;
    json_t *id = field(r->from, "previous_response_id");
    if (gen_parse_salt(r->g, r->from)) return ST_INVALID;
    if (q->http.has_key) memcpy(s->owner.key, q->http.key, sizeof s->owner.key);
    memcpy(s->owner.salt, r->g->p.salt, sizeof s->owner.salt);
    if (!id) return ST_OK;
    if (!json_is_string(id))
        return api_fail(r->e, 400, "invalid_type", "previous_response_id", "Must be a string.");
    s->before = response_take(q->srv->responses, json_string_value(id), &s->owner);
    if (s->before) return ST_OK;
    return api_fail(r->e, 400, "previous_response_not_found", "previous_response_id",
                    "Previous response with id '%.60s' not found%s", json_string_value(id),
                    response_store_on(q->srv->responses) ? "." : ": this server keeps none.");
}

/* ---- fields echoed in the response ---- */

static enum status metadata_check(struct reader *r)
{
    json_t *metadata, *v;
    const char *key;
    if (reader_object(r, "metadata", &metadata)) return ST_INVALID;
    if (json_object_size(metadata) > 16)
        return api_fail(r->e, 400, "invalid_value", "metadata", "At most 16 pairs are taken.");
    json_object_foreach(metadata, key, v)
    {
        if (!json_is_string(v) || json_string_length(v) > 512 || strlen(key) > 64)
            return api_fail(r->e, 400, "invalid_value", "metadata",
                            "Keys must have at most 64 bytes, and values be strings of at most 512.");
    }
    return ST_OK;
}

/* The field as sent, else its default. */
static void echo_field(struct json_writer *o, json_t *from, const char *name, const char *otherwise)
{
    const json_t *v = field(from, name);
    jw_text(o, ",\"");
    jw_text(o, name);
    jw_text(o, "\":");
    if (v) jw_value(o, v);
    else jw_text(o, otherwise);
}

static void echo_string(struct json_writer *o, const char *name, json_t *from, const char *key)
{
    jw_text(o, name);
    jw_value(o, field(from, key));
}

static enum status echo(struct reader *r, struct responses_state *s)
{
    static const char *const plain[][2] = {{"instructions", "null"},
                                           {"max_output_tokens", "null"},
                                           {"max_tool_calls", "null"},
                                           {"metadata", "{}"},
                                           {"parallel_tool_calls", "true"},
                                           {"previous_response_id", "null"},
                                           {"prompt_cache_key", "null"},
                                           {"safety_identifier", "null"},
                                           {"tool_choice", "\"auto\""},
                                           {"tools", "[]"},
                                           {"top_logprobs", "0"},
                                           {"truncation", "\"disabled\""},
                                           {"user", "null"}};
    static const char *const strings[] = {"prompt_cache_key", "safety_identifier"};
    struct json_writer o = {.buf = &s->echo};
    json_t *text = field(r->from, "text"), *reasoning = field(r->from, "reasoning"), *v;
    int64_t calls;
    if (metadata_check(r) || field_int(r->e, r->from, "max_tool_calls", 0, INT64_MAX, &calls, NULL))
        return ST_INVALID;
    for (size_t i = 0; i < COUNT(strings); i++)
        if ((v = field(r->from, strings[i])) && !json_is_string(v))
            return api_fail(r->e, 400, "invalid_type", strings[i], "Must be a string.");
    for (size_t i = 0; i < COUNT(plain); i++) echo_field(&o, r->from, plain[i][0], plain[i][1]);
    echo_string(&o, ",\"reasoning\":{\"effort\":", reasoning, "effort");
    echo_string(&o, ",\"summary\":", reasoning, "summary");
    jw_text(&o, "},\"text\":{\"format\":");
    if (field(text, "format")) jw_value(&o, field(text, "format"));
    else jw_text(&o, "{\"type\":\"text\"}");
    if (field(text, "verbosity")) echo_string(&o, ",\"verbosity\":", text, "verbosity");
    jw_text(&o, "}");
    s->has_temperature = field(r->from, "temperature") != NULL;
    s->has_top_p = field(r->from, "top_p") != NULL;
    if (s->has_temperature) echo_field(&o, r->from, "temperature", "");
    if (s->has_top_p) echo_field(&o, r->from, "top_p", "");
    return o.st ? reader_no_memory(r) : ST_OK;
}

/* ---- the whole ---- */

static struct responses_state *state_create(struct gen *g)
{
    unsigned char raw[16];
    struct responses_state *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    /* Not the request id, which the client may choose: knowing this id gives access to the response. */
    randombytes_buf(raw, sizeof raw);
    memcpy(s->id, "resp_", 5);
    sodium_bin2hex(s->id + 5, sizeof s->id - 5, raw, sizeof raw);
    buf_init(&s->items, SIZE_MAX / 4);
    buf_init(&s->echo, SIZE_MAX / 4);
    buf_init(&s->logprobs, SIZE_MAX / 4);
    g->dialect_state = s;
    return s;
}

static enum status keep(struct reader *r, struct responses_state *s)
{
    const struct server *srv = r->g->r->srv;
    s->store = true;
    if (field_bool(r->e, r->from, "store", &s->store)) return ST_INVALID;
    s->store = s->store && r->g->r->http.body.len < srv->opt->response_store;
    if (s->store && responses_items_keep(r, s)) return reader_no_memory(r);
    r->g->dialect_kept = s->items.cap + s->echo.cap;
    return ST_OK;
}

static enum status read_body(struct gen *g, json_t *root, bool counting)
{
    struct reader r = {.g = g, .e = &g->r->response.error, .from = root, .counting = counting};
    struct responses_state *s = state_create(g);
    if (!s) return reader_no_memory(&r);
    if (refused(&r) || limits(&r) || reader_tools(&r, tool) || tool_choice(&r) || text_and_reasoning(&r) ||
        before(&r, s) || responses_messages(&r, s) || (!counting && (echo(&r, s) || keep(&r, s))) ||
        reader_same(&r, same, COUNT(same), others, COUNT(others)))
        return ST_INVALID;
    return gen_read_added(g);
}

static enum status read_whole(struct gen *g, json_t *root)
{
    return read_body(g, root, false);
}

static enum status read_count(struct gen *g, json_t *root)
{
    return read_body(g, root, true);
}

static void end(struct gen *g)
{
    struct responses_state *s = g->dialect_state;
    if (!s) return;
    response_give_back(g->r->srv->responses, s->before);
    response_account(&g->r->response, &s->accounted, 0);
    buf_fini(&s->items);
    buf_fini(&s->echo);
    buf_fini(&s->logprobs);
    free(s->parts);
}

const struct dialect dialect_responses = {.read = read_whole,
                                          .source = "input",
                                          .response = responses_write_response,
                                          .stream_token = responses_stream_token,
                                          .stream = responses_stream,
                                          .stream_error = responses_stream_error,
                                          .token = responses_token,
                                          .end = end};
const struct dialect dialect_input_tokens = {.read = read_count, .source = "input", .end = end};

/* The body of /v1/responses -> a chat request. Worker thread. */
#include "server/dialect/responses.h"

#include "server/json/fields.h"
#include "server/json/value.h"
#include "server/context/limits.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* ---- fields ---- */

static enum status refused(struct reader *r)
{
    bool background = false;
    json_t *truncation = field(r->from, "truncation");
    if (field_bool(r->e, r->from, "background", &background)) return ST_INVALID;
    if (background)
        return api_fail(
            r->e, 400, "unsupported_parameter", "background",
            "background is not supported: leave it out and wait for the response, or use stream.");
    if (truncation && !json_is_string(truncation))
        return api_fail(r->e, 400, "invalid_type", "truncation", "Must be a string.");
    if (json_is(truncation, "auto"))
        return api_fail(r->e, 400, "unsupported_value", "truncation",
                        "A truncation of \"auto\" is not supported: leave the field out, and shorten a long "
                        "conversation with POST /v1/responses/compact.");
    return truncation && !json_is(truncation, "disabled")
               ? api_fail(r->e, 400, "invalid_value", "truncation", "Must be 'disabled'.")
               : ST_OK;
}

/* A message of a WebSocket is an event: a body with a type. */
static enum status event_check(struct reader *r)
{
    json_t *type = field(r->from, "type");
    if (!r->g->caller.websocket) return ST_OK;
    if (!json_is(type, "response.create"))
        return api_fail(r->e, 400, "invalid_value", "type",
                        "The type of an event must be 'response.create'. To cancel a response, close the "
                        "WebSocket.");
    return field(r->from, "stream_id")
               ? api_fail(
                     r->e, 400, "unsupported_parameter", "stream_id",
                     "stream_id is not supported: a WebSocket runs one response at a time; open several.")
               : ST_OK;
}

static enum status limits(struct reader *r)
{
    bool logprobs = false, generate = true;
    struct responses_state *s = r->g->dialect_state;
    json_t *include = field(r->from, "include"), *options;
    if (reader_object(r, "stream_options", &options) || field_bool(r->e, r->from, "generate", &generate))
        return ST_INVALID;
    s->warm = !generate;
    if (s->warm) r->g->q.has_max_tokens = true;
    if (s->warm) r->g->q.max_tokens = 1;
    if (include && !json_is_array(include))
        return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
    for (size_t i = 0; i < json_array_size(include); i++) {
        json_t *what = json_array_get(include, i);
        if (!json_is_string(what))
            return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
        logprobs = logprobs || json_is(what, "message.output_text.logprobs");
        s->sealed = s->sealed || json_is(what, "reasoning.encrypted_content");
    }
    r->g->q.logprobs = logprobs || r->g->q.logprobs_top;
    return ST_OK;
}

/* ---- tools ---- */

/* Remembers what a tool of another name in the prompt, or of free text, is for the client. */
static enum status renamed(struct reader *r, json_t *in_prompt, json_t *name_space, json_t *name, bool custom)
{
    struct responses_state *s = r->g->dialect_state;
    json_t *it = json_pack("{s:b,s:O*,s:O}", "custom", custom, "namespace", name_space, "name", name);
    if (!s->renamed) s->renamed = json_object();
    return it && !json_object_set_new(s->renamed, json_string_value(in_prompt), it) ? ST_OK : gen_nomem(r->g);
}

/* Key order matters: it is visible in the prompt. */
static json_t *function_of(json_t *from, json_t *name)
{
    json_t *f = json_object(), *v;
    const char *key;
    json_object_foreach(from, key, v) {
        bool is_name = strcmp(key, "name") == 0;
        if (f && strcmp(key, "type") != 0 && strcmp(key, "defer_loading") != 0 && !json_is_null(v) &&
            json_object_set(f, key, is_name ? name : v)) {
            json_decref(f);
            f = NULL;
        }
    }
    return f;
}

/* Free text as the one argument of a function. The format is in the prompt, and enforced
 * (input/call_grammar.c). */
static json_t *custom_function(struct reader *r, json_t *from, json_t *name, const char *path)
{
    json_t *text, *format = field(from, "format"), *type = field(format, "type");
    bool grammar = json_is(type, "grammar");
    if (reader_member(r, from, path, "description", false, &text)) return NULL;
    if (grammar && (!json_is_string(field(format, "definition")) ||
                    !(json_is(field(format, "syntax"), "lark") || json_is(field(format, "syntax"), "regex"))))
        (void)api_fail(r->e, 400, "invalid_value", path,
                       "A grammar needs a syntax, 'lark' or 'regex', and a definition.");
    if (format && !grammar && !json_is(type, "text"))
        (void)api_fail(r->e, 400, "invalid_value", path, "format.type must be 'text' or 'grammar'.");
    if (r->e->http) return NULL;
    json_t *f = json_pack("{s:O,s:O*,s:{s:s,s:{s:{s:s}},s:[s],s:b}}", "name", name, "description", text,
                          "parameters", "type", "object", "properties", "input", "type", "string", "required",
                          "input", "additionalProperties", 0);
    if (f && grammar &&
        (json_object_set_new(f, "strict", json_true()) || json_object_set(f, "format", format)))
        (void)gen_nomem(r->g);
    return f;
}

/* name_space: NULL outside of one. */
static enum status tool_in(struct reader *r, json_t *name_space, json_t *from, const char *path)
{
    json_t *type = field(from, "type"), *inner = field(from, "function"), *name, *in_prompt, *f;
    bool custom = json_is(type, "custom");
    if (!json_is_string(type))
        return api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", path,
                        "A tool needs a type.");
    if (!custom && !json_is(type, "function")) return reader_hosted(r, type), ST_OK;
    if (!custom && json_is_object(inner)) from = inner; /* as in chat completions */
    if (reader_member(r, from, path, "name", true, &name)) return ST_INVALID;
    if (!(in_prompt = responses_tool_name(name_space, name))) return gen_nomem(r->g);
    f = custom ? custom_function(r, from, in_prompt, path) : function_of(from, in_prompt);
    enum status st = r->e->http ? ST_INVALID : reader_function(r, f);
    if (!st && (custom || !json_equal(name, in_prompt))) st = renamed(r, in_prompt, name_space, name, custom);
    json_decref(in_prompt);
    return st;
}

static enum status tool(struct reader *r, json_t *from, const char *path)
{
    json_t *name, *list = field(from, "tools");
    if (!json_is(field(from, "type"), "namespace")) return tool_in(r, NULL, from, path);
    if (reader_member(r, from, path, "name", true, &name)) return ST_INVALID;
    enum status st = ST_OK;
    for (size_t i = 0; i < json_array_size(list) && !st; i++)
        st = tool_in(r, name, json_array_get(list, i), path);
    return st;
}

/* The name in the prompt of a tool as the client names it, or the name. */
static json_t *tool_named(struct reader *r, json_t *name_space, json_t *name)
{
    const struct responses_state *s = r->g->dialect_state;
    json_t *found = name;
    for (size_t i = 0; i < json_array_size(r->g->q.tools); i++) {
        json_t *in_prompt = field(field(json_array_get(r->g->q.tools, i), "function"), "name"),
               *it = json_object_get(s->renamed, json_string_value(in_prompt));
        if (!name_space && json_equal(in_prompt, name)) return name;
        if (it && json_equal(field(it, "name"), name) &&
            (!name_space || json_equal(field(it, "namespace"), name_space)))
            found = in_prompt;
    }
    return found;
}

static bool allow(json_t *list, json_t *name)
{
    return !json_array_append_new(list, json_pack("{s:O}", "name", name));
}

/* allowed_tools, by their names in the prompt. A namespace stands for its tools; hosted tools have no name.
 */
static enum status tools_allowed(struct reader *r, json_t *mode, json_t *allowed)
{
    struct responses_state *s = r->g->dialect_state;
    json_t *it;
    const char *in_prompt;
    bool ok = json_is_array(allowed) && json_is_string(mode);
    if (ok && !(s->allowed = json_array())) return gen_nomem(r->g);
    for (size_t i = 0; i < json_array_size(allowed) && ok; i++) {
        json_t *one = json_array_get(allowed, i), *type = field(one, "type"), *name = field(one, "name");
        bool group = json_is(type, "namespace");
        json_object_foreach(group ? s->renamed : NULL, in_prompt, it) {
            json_t *key = json_equal(field(it, "namespace"), name) ? json_string(in_prompt) : NULL;
            if (key && !allow(s->allowed, key)) ok = false;
            json_decref(key);
        }
        if (group) continue;
        if (json_is_string(name)) ok = allow(s->allowed, tool_named(r, field(one, "namespace"), name));
        else ok = json_is_string(type) && !json_is(type, "function") && !json_array_append(s->allowed, one);
    }
    if (!ok)
        return api_fail(r->e, 400, "invalid_value", "tool_choice",
                        "allowed_tools needs a mode, and tools with names.");
    return r->counting ? ST_OK : gen_choose_among(r->g, mode, s->allowed, false);
}

static enum status tool_choice(struct reader *r)
{
    json_t *from = field(r->from, "tool_choice"), *type = field(from, "type"), *name = field(from, "name");
    if (!name) name = field(field(from, "function"), "name"); /* as in chat completions */
    if (!from) return ST_OK;
    if (!json_is_object(from)) return r->counting ? ST_OK : gen_choose(r->g, from);
    if (!json_is_string(type))
        return api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", "tool_choice.type",
                        "Must be a string.");
    if (json_is(type, "function") || json_is(type, "custom")) {
        if (!json_is_string(name))
            return api_fail(r->e, 400, name ? "invalid_type" : "missing_required_parameter",
                            "tool_choice.name", "Must be a string.");
        name = tool_named(r, field(from, "namespace"), name);
        return arena_text(&r->g->q.arena, name, &r->g->q.tool_choice.named) ? gen_nomem(r->g) : ST_OK;
    }
    if (!json_is(type, "allowed_tools"))
        return api_fail(r->e, 400, "unsupported_value", "tool_choice.type",
                        "A tool choice of type '%.60s' is not supported.", json_string_value(type));
    return tools_allowed(r, field(from, "mode"), field(from, "tools"));
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

/* All but the conversation and its tools is fixed: the prompt's beginning is cached. */
static enum status compact_fixed(struct reader *r)
{
    enum { SUMMARY_TOKENS = 1024 };
    struct reasoning_ask ask = {.effort = json_string("none")};
    r->g->q.has_max_tokens = r->g->q.tool_choice.none = true;
    r->g->q.max_tokens = SUMMARY_TOKENS;
    r->g->q.sampling.temperature = 0;
    enum status st = ask.effort ? gen_reasoning(r->g, &ask) : gen_nomem(r->g);
    json_decref(ask.effort);
    return st;
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
    ask.budget = field(r->from, "thinking_token_budget");
    ask.budget_path = ask.budget ? "thinking_token_budget" : "reasoning.max_tokens";
    if (!ask.budget) ask.budget = field(reasoning, "max_tokens");
    if (gen_reasoning(r->g, &ask)) return ST_INVALID;
    return field(text, "format") ? text_format(r, field(text, "format")) : ST_OK;
}

/* ---- previous_response_id ---- */

/* For --request-log: the conversation itself, because no other server knows the previous response. */
static void spell_out(struct reader *r, const struct responses_state *s)
{
    json_t *input = field(r->from, "input"), *all = json_array(), *body = json_copy(r->from);
    for (const struct response_kept *k = s->before; k; k = k->before) {
        json_t *turn = json_copy(k->items);
        (void)json_array_extend(turn, all);
        json_decref(all);
        all = turn;
    }
    if (json_is_string(input))
        (void)json_array_append_new(all, json_pack("{s:s,s:O}", "role", "user", "content", input));
    (void)json_array_extend(all, json_is_array(input) ? input : NULL);
    (void)json_object_del(body, "previous_response_id");
    (void)json_object_set_new(body, "input", all);
    gen_record_begin(r->g, body);
    json_decref(body);
}

static enum status before(struct reader *r, struct responses_state *s)
{
    const struct caller *of = &r->g->caller;
    struct response_store *store = r->g->ctx->responses;
    json_t *id = field(r->from, "previous_response_id");
    if (of->has_key) memcpy(s->owner.key, of->key, sizeof s->owner.key);
    memcpy(s->owner.salt, of->salt, sizeof s->owner.salt);
    if (!id) return ST_OK;
    if (!json_is_string(id))
        return api_fail(r->e, 400, "invalid_type", "previous_response_id", "Must be a string.");
    s->before = response_take(store, json_string_value(id), &s->owner);
    struct response_owner local = s->owner;
    local.websocket = of->websocket;
    if (!s->before && local.websocket) s->before = response_take(store, json_string_value(id), &local);
    if (s->before && r->g->record) spell_out(r, s);
    if (s->before) return ST_OK;
    return api_fail(r->e, 400, "previous_response_not_found", "previous_response_id",
                    "Previous response with id '%.60s' not found%s", json_string_value(id),
                    response_store_on(store) ? "." : ": this server keeps none.");
}

/* ---- fields echoed in the response ---- */

static enum status metadata_check(struct reader *r)
{
    json_t *metadata, *v;
    const char *key;
    if (reader_object(r, "metadata", &metadata)) return ST_INVALID;
    if (json_object_size(metadata) > 16)
        return api_fail(r->e, 400, "invalid_value", "metadata", "At most 16 pairs are taken.");
    json_object_foreach(metadata, key, v) {
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

static void echo_number(struct json_writer *o, json_t *from, const char *name, float otherwise)
{
    echo_field(o, from, name, "");
    if (!field(from, name)) jw_float32(o, otherwise);
}

static void echo_string(struct json_writer *o, const char *name, json_t *from, const char *key)
{
    jw_text(o, name);
    jw_value(o, field(from, key));
}

/* An object as sent, after keys that must be there. Takes ownership of `all`. */
static void echo_object(struct json_writer *o, json_t *all, json_t *from)
{
    if (!all || json_object_update(all, from)) o->st = ST_NOMEM;
    jw_value(o, all);
    json_decref(all);
}

static void echo_tools(struct json_writer *o, json_t *tools)
{
    jw_text(o, ",\"tools\":[");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i), *inner = field(tool, "function");
        bool function = json_is(field(tool, "type"), "function");
        if (i) jw_text(o, ",");
        echo_object(o,
                    function ? json_pack("{s:s,s:n,s:n,s:n,s:n}", "type", "function", "name", "description",
                                         "parameters", "strict")
                             : json_object(),
                    function && json_is_object(inner) ? inner : tool);
    }
    jw_text(o, "]");
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
                                           {"prompt_cache_retention", "null"},
                                           {"safety_identifier", "null"},
                                           {"tool_choice", "\"auto\""},
                                           {"top_logprobs", "0"},
                                           {"truncation", "\"disabled\""},
                                           {"user", "null"}};
    static const char *const strings[] = {"prompt_cache_key", "prompt_cache_retention", "safety_identifier"};
    const struct sampling_params *sampling = &r->g->q.sampling;
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
    if (json_is(field(field(text, "format"), "type"), "json_schema"))
        echo_object(&o, json_pack("{s:n,s:b}", "description", "strict", 0), field(text, "format"));
    else if (field(text, "format")) jw_value(&o, field(text, "format"));
    else jw_text(&o, "{\"type\":\"text\"}");
    if (field(text, "verbosity")) echo_string(&o, ",\"verbosity\":", text, "verbosity");
    jw_text(&o, "}");
    echo_tools(&o, field(r->from, "tools"));
    echo_number(&o, r->from, "temperature", sampling->temperature);
    echo_number(&o, r->from, "top_p", sampling->top_p);
    echo_number(&o, r->from, "presence_penalty", sampling->presence_penalty);
    echo_number(&o, r->from, "frequency_penalty", sampling->frequency_penalty);
    return o.st ? gen_nomem(r->g) : ST_OK;
}

/* ---- the whole ---- */

static struct responses_state *state_create(struct generation *g)
{
    unsigned char raw[16];
    struct responses_state *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    /* Not the request id, which the client may choose: knowing this id gives access to the response. */
    randombytes_buf(raw, sizeof raw);
    memcpy(s->id, "resp_", 5);
    sodium_bin2hex(s->id + 5, sizeof s->id - 5, raw, sizeof raw);
    buf_init(&s->echo, SIZE_MAX / 4);
    buf_init(&s->logprobs, SIZE_MAX / 4);
    g->dialect_state = s;
    return s;
}

static enum status keep(struct reader *r, struct responses_state *s)
{
    s->store = true;
    if (field_bool(r->e, r->from, "store", &s->store)) return ST_INVALID;
    const struct caller *of = &r->g->caller;
    bool fits = of->body_len < r->g->ctx->opt->response_store;
    s->local = fits && !s->store && of->websocket;
    s->store = s->store && fits;
    if (s->local) s->owner.websocket = of->websocket;
    r->g->dialect_kept = s->echo.cap;
    if (!s->store && !s->local) return ST_OK;
    r->g->dialect_kept += of->body_bytes;
    return responses_items_keep(r, s);
}

static enum status read_body(struct generation *g, json_t *root, bool counting, bool compact)
{
    struct reader r = {.g = g, .e = g->e, .from = root, .counting = counting};
    struct responses_state *s = state_create(g);
    if (!s) return gen_nomem(r.g);
    s->compact = compact;
    unsigned api = compact ? API_COMPACT : API_RESPONSES;
    if (event_check(&r) || reader_fields(&r, api) || before(&r, s) || reader_tools(&r, tool) ||
        (compact ? compact_fixed(&r)
                 : refused(&r) || limits(&r) || tool_choice(&r) || text_and_reasoning(&r)) ||
        responses_messages(&r, s) || reader_resolve(&r, api) ||
        (!counting && !compact && (echo(&r, s) || keep(&r, s))) ||
        (compact && responses_instructions_keep(&r, s)))
        return ST_INVALID;
    g->q.stream = g->q.stream || g->caller.websocket;
    return gen_read_added(g);
}

static enum status read_whole(struct generation *g, json_t *root)
{
    return read_body(g, root, false, false);
}

static enum status read_compact(struct generation *g, json_t *root)
{
    if (!field(root, "model"))
        return api_fail(g->e, 400, "missing_required_parameter", "model", "Field required.");
    return read_body(g, root, false, true);
}

static enum status read_count(struct generation *g, json_t *root)
{
    return read_body(g, root, true, false);
}

void responses_evict(struct generation *g)
{
    const struct responses_state *s = g->dialect_state;
    if (s->before && s->before->owner.websocket)
        (void)response_forget(g->ctx->responses, s->before->id, &s->before->owner);
}

static void end(struct generation *g)
{
    struct responses_state *s = g->dialect_state;
    if (!s) return;
    if (g->e->http) responses_evict(g);
    response_give_back(g->ctx->responses, s->before);
    gen_account(g, &s->accounted, 0);
    json_decref(s->items);
    buf_fini(&s->echo);
    buf_fini(&s->logprobs);
    json_decref(s->renamed);
    json_decref(s->allowed);
    free(s->parts);
}

const struct dialect dialect_responses = {.read = read_whole,
                                          .source = "input",
                                          .response = response_finish,
                                          .head = responses_head,
                                          .delta = responses_delta,
                                          .tail = responses_tail,
                                          .error = responses_error,
                                          .logprob = logprobs_entry,
                                          .token = responses_token,
                                          .end = end};
const struct dialect dialect_compact = {
    .read = read_compact, .source = "input", .response = response_compact, .end = end};
const struct dialect dialect_input_tokens = {.read = read_count,
                                             .source = "input",
                                             .counted =
                                                 "{\"object\":\"response.input_tokens\",\"input_tokens\":",
                                             .end = end};

/* The body of /v1/responses -> a body of chat completions, and the chat's errors -> names of the client's own
 * fields. Worker thread. */
#include "server/dialect/responses.h"

#include "server/http/fields.h"
#include "server/http/json_value.h"
#include "server/http/limits.h"
#include "server/http/request.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields that the chat has by the same name ---- */

/* OpenAI's, and those of this server and of others that the chat takes too. */
static const char *const same[] = {"stream",
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
                                   "include_reasoning",
                                   "chat_template_kwargs",
                                   "mm_processor_kwargs",
                                   "cache_salt",
                                   "priority",
                                   "structured_outputs",
                                   "guided_json",
                                   "guided_regex",
                                   "guided_choice",
                                   "guided_grammar",
                                   "request_id"};
static const char *const others[] = {"background",
                                     "context_management",
                                     "conversation",
                                     "include",
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
                        "background is not supported: wait for the answer, or stream it.");
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
    if (has && reader_put(r, "max_tokens", json_integer(n))) return ST_INVALID;
    if (include && !json_is_array(include))
        return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
    for (size_t i = 0; i < json_array_size(include); i++) {
        json_t *what = json_array_get(include, i);
        if (!json_is_string(what))
            return api_fail(r->e, 400, "invalid_type", "include", "Must be an array of strings.");
        logprobs = logprobs || json_is(what, "message.output_text.logprobs");
    }
    if (!logprobs && !top) return ST_OK;
    return reader_put(r, "logprobs", json_true()) || reader_put(r, "top_logprobs", json_integer(top))
               ? ST_INVALID
               : ST_OK;
}

/* ---- tools ---- */

/* Flat here, nested in a chat; in the order of its fields, which the prompt shows. */
static enum status tool(struct reader *r, json_t *from, size_t i, json_t *list)
{
    char path[40];
    json_t *type = field(from, "type"), *v;
    const char *key;
    snprintf(path, sizeof path, "tools[%zu]", i);
    if (!json_is_object(from)) return api_fail(r->e, 400, "invalid_type", path, "Must be an object.");
    if (!json_is_string(type))
        return api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", path,
                        "A tool needs a type.");
    if (!json_is(type, "function"))
        return api_fail(r->e, 400, "unsupported_value", path, "Tools of type '%.60s' are not supported.",
                        json_string_value(type));
    json_t *f = json_object();
    bool ok = f != NULL;
    json_object_foreach(from, key, v)
    {
        if (ok && strcmp(key, "type") != 0 && !json_is_null(v)) ok = !json_object_set(f, key, v);
    }
    json_t *both = ok ? json_pack("{s:s,s:O}", "type", "function", "function", f) : NULL;
    json_decref(f);
    return !both || json_array_append_new(list, both) ? reader_no_memory(r) : ST_OK;
}

static enum status tools(struct reader *r)
{
    json_t *from = field(r->from, "tools"), *to;
    if (!from) return ST_OK;
    if (!json_is_array(from)) return api_fail(r->e, 400, "invalid_type", "tools", "Must be an array.");
    if (json_array_size(from) > LIMIT_TOOLS)
        return api_fail(r->e, 400, "invalid_value", "tools", "More than %u tools.", LIMIT_TOOLS);
    if (reader_put(r, "tools", to = json_array())) return ST_INVALID;
    for (size_t i = 0; i < json_array_size(from); i++)
        if (tool(r, json_array_get(from, i), i, to)) return ST_INVALID;
    return ST_OK;
}

/* {"type":"function","name":..} -> {"type":"function","function":{"name":..}} */
static json_t *choice_nested(json_t *choice)
{
    return json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", field(choice, "name"));
}

static enum status tool_choice(struct reader *r)
{
    json_t *from = field(r->from, "tool_choice"), *type = field(from, "type"), *name = field(from, "name");
    if (!from) return ST_OK;
    if (!json_is_object(from)) return reader_put(r, "tool_choice", json_incref(from));
    if (!json_is_string(type))
        return api_fail(r->e, 400, type ? "invalid_type" : "missing_required_parameter", "tool_choice.type",
                        "Must be a string.");
    if (json_is(type, "function")) {
        if (!json_is_string(name))
            return api_fail(r->e, 400, name ? "invalid_type" : "missing_required_parameter",
                            "tool_choice.name", "Must be a string.");
        return reader_put(r, "tool_choice", choice_nested(from));
    }
    if (!json_is(type, "allowed_tools"))
        return api_fail(r->e, 400, "unsupported_value", "tool_choice.type",
                        "A tool choice of type '%.60s' is not supported.", json_string_value(type));
    json_t *list = json_array(), *mode = field(from, "mode"), *allowed = field(from, "tools");
    bool ok = json_is_array(allowed) && json_is_string(mode);
    for (size_t i = 0; i < json_array_size(allowed) && ok; i++) {
        json_t *one = json_array_get(allowed, i);
        ok = json_is_string(field(one, "name")) && !json_array_append_new(list, choice_nested(one));
    }
    if (ok)
        return reader_put(r, "tool_choice",
                          json_pack("{s:s,s:{s:O,s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                                    mode, "tools", list));
    json_decref(list);
    return api_fail(r->e, 400, "invalid_value", "tool_choice",
                    "allowed_tools needs a mode, and tools with names.");
}

/* ---- reasoning, and the form of the text ---- */

static enum status text_format(struct reader *r, json_t *format)
{
    static const char *const keys[] = {"name", "description", "schema", "strict"};
    json_t *type, *inner;
    if (!json_is_object(format) || json_big_int(format))
        return api_fail(r->e, 400, "invalid_type", "text.format", "Must be an object.");
    if (reader_member(r, format, "text.format", "type", true, &type)) return ST_INVALID;
    if (!json_is(type, "json_schema"))
        return reader_put(r, "response_format", json_pack("{s:O}", "type", type));
    json_t *schema = field(format, "schema");
    if (!json_is_object(schema) || json_big_int(schema))
        return api_fail(r->e, 400, schema ? "invalid_type" : "missing_required_parameter",
                        "text.format.schema", "Must be an object: a JSON schema.");
    bool ok = (inner = json_object()) != NULL;
    for (size_t i = 0; i < COUNT(keys) && ok; i++) {
        json_t *v = field(format, keys[i]);
        ok = !v || !json_object_set(inner, keys[i], v);
    }
    json_t *both = ok ? json_pack("{s:O,s:O}", "type", type, "json_schema", inner) : NULL;
    json_decref(inner);
    return reader_put(r, "response_format", both);
}

static enum status text_and_reasoning(struct reader *r)
{
    json_t *text, *reasoning, *effort, *summary, *verbosity;
    if (reader_object(r, "text", &text) || reader_object(r, "reasoning", &reasoning) ||
        reader_member(r, reasoning, "reasoning", "effort", false, &effort) ||
        reader_member(r, reasoning, "reasoning", "summary", false, &summary) ||
        reader_member(r, text, "text", "verbosity", false, &verbosity))
        return ST_INVALID;
    if (effort && reader_put(r, "reasoning_effort", json_incref(effort))) return ST_INVALID;
    if (verbosity && reader_put(r, "verbosity", json_incref(verbosity))) return ST_INVALID;
    return field(text, "format") ? text_format(r, field(text, "format")) : ST_OK;
}

/* ---- what it follows upon ---- */

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

/* ---- what the response repeats ---- */

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

/* The field as it came, else what stands for it. */
static void echo_field(struct json_out *o, json_t *from, const char *name, const char *otherwise)
{
    const json_t *v = field(from, name);
    jo_text(o, ",\"");
    jo_text(o, name);
    jo_text(o, "\":");
    if (v) jo_value(o, v);
    else jo_text(o, otherwise);
}

static void echo_string(struct json_out *o, const char *name, json_t *from, const char *key)
{
    jo_text(o, name);
    jo_value(o, field(from, key));
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
    struct json_out o = {.buf = &s->echo};
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
    jo_text(&o, "},\"text\":{\"format\":");
    if (field(text, "format")) jo_value(&o, field(text, "format"));
    else jo_text(&o, "{\"type\":\"text\"}");
    if (field(text, "verbosity")) echo_string(&o, ",\"verbosity\":", text, "verbosity");
    jo_text(&o, "}");
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
    /* Not the request's id, which may be the client's choice: who knows this one may read the response. */
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

static enum status translate(struct gen *g, json_t **root, bool counting)
{
    struct reader r = {.g = g, .e = &g->r->answer.error, .from = *root, .to = json_object()};
    struct responses_state *s = state_create(g);
    enum status st = r.to && s ? ST_OK : reader_no_memory(&r);
    if (!st) reader_note_unknown(&r, same, COUNT(same), others, COUNT(others));
    if (!st && (refused(&r) || reader_same(&r, same, COUNT(same)) || limits(&r) || tools(&r) ||
                tool_choice(&r) || text_and_reasoning(&r) || before(&r, s) || responses_messages(&r, s) ||
                (!counting && (echo(&r, s) || keep(&r, s)))))
        st = ST_INVALID;
    if (st) {
        json_decref(r.to);
        return st;
    }
    json_decref(*root);
    *root = r.to;
    g->p.max_tokens_fit = true;
    return ST_OK;
}

static enum status translate_whole(struct gen *g, json_t **root)
{
    return translate(g, root, false);
}

static enum status translate_count(struct gen *g, json_t **root)
{
    return translate(g, root, true);
}

static void end(struct gen *g)
{
    struct responses_state *s = g->dialect_state;
    if (!s) return;
    response_give_back(g->r->srv->responses, s->before);
    answer_book(&g->r->answer, &s->booked, 0);
    buf_fini(&s->items);
    buf_fini(&s->echo);
    buf_fini(&s->logprobs);
    free(s->parts);
    free(s->origins);
}

/* ---- errors ---- */

/* "messages[3].content[1]..." of the chat -> where that stands in the request. Returns the length of what it
 * has read; 0: nothing that is known. */
static size_t place_name(const struct responses_state *s, const char *text, char *out, size_t cap)
{
    unsigned chat;
    int n = 0, more = (int)strlen(".content");
    if (sscanf(text, "messages[%u]%n", &chat, &n) != 1 || !n || chat >= s->origin_count) return 0;
    const struct message_origin *at = &s->origins[chat];
    bool content = strncmp(text + n, ".content", (size_t)more) == 0;
    if (at->from == FROM_INSTRUCTIONS) snprintf(out, cap, "instructions");
    else if (at->from == FROM_BEFORE) snprintf(out, cap, "previous_response_id");
    else if (s->plain) snprintf(out, cap, "input");
    else
        snprintf(out, cap, "input[%u]%s", at->item,
                 !content                     ? ""
                 : at->from == FROM_OUTPUT_OF ? ".output"
                                              : ".content");
    return (size_t)n + (content ? (size_t)more : 0);
}

/* The chat's name of a field, or of what is in it, becomes the client's. */
static void rename_param(struct api_error *e)
{
    static const char *const names[][2] = {{"messages", "input"},
                                           {"max_tokens", "max_output_tokens"},
                                           {"response_format.json_schema", "text.format"},
                                           {"response_format", "text.format"},
                                           {"reasoning_effort", "reasoning.effort"},
                                           {"verbosity", "text.verbosity"}};
    char text[sizeof e->param];
    for (size_t i = 0; i < COUNT(names); i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(e->param, names[i][0], n) != 0 || (e->param[n] && e->param[n] != '.')) continue;
        snprintf(text, sizeof text, "%s%.90s", names[i][1], e->param + n);
        memcpy(e->param, text, sizeof text);
        return;
    }
}

static void fault(struct gen *g)
{
    struct api_error *e = &g->r->answer.error;
    const struct responses_state *s = g->dialect_state;
    char place[64], text[sizeof e->message];
    rename_param(e);
    size_t n = place_name(s, e->param, place, sizeof place);
    if (n) {
        bool item = strncmp(place, "input[", 6) == 0;
        snprintf(text, sizeof e->param, "%s%.60s", place, item ? e->param + n : "");
        memcpy(e->param, text, sizeof e->param);
    }
    n = place_name(s, e->message, place, sizeof place);
    if (n) {
        snprintf(text, sizeof text, "%s%.400s", place, e->message + n);
        memcpy(e->message, text, sizeof text);
    }
}

const struct dialect dialect_responses = {.translate = translate_whole,
                                          .fault = fault,
                                          .answer = responses_answer,
                                          .stream_token = responses_stream_token,
                                          .stream = responses_stream,
                                          .stream_error = responses_stream_error,
                                          .token = responses_token,
                                          .end = end};
const struct dialect dialect_input_tokens = {.translate = translate_count, .fault = fault, .end = end};

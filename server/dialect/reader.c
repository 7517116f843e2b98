/* See reader.h. */
#include "server/dialect/reader.h"

#include "config/base/log.h"
#include "server/json/fields.h"
#include "server/http/limits.h"
#include "server/http/request.h"

#include <stdio.h>
#include <string.h>

enum status reader_no_memory(struct reader *r)
{
    return api_nomem(r->e);
}

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
    if (json_array_size(r->g->tools) == LIMIT_TOOLS) {
        json_decref(function);
        return api_fail(r->e, 400, "invalid_value", "tools", "More than %u tools.", LIMIT_TOOLS);
    }
    json_t *both = function ? json_pack("{s:s,s:o}", "type", "function", "function", function) : NULL;
    return both && !json_array_append_new(r->g->tools, both) ? ST_OK : reader_no_memory(r);
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
    if (!(r->g->tools = json_array())) return reader_no_memory(r);
    for (size_t i = 0; i < json_array_size(from); i++) {
        json_t *tool = json_array_get(from, i);
        char path[40];
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (!json_is_object(tool)) return api_fail(r->e, 400, "invalid_type", path, "Must be an object.");
        if (one(r, tool, path)) return ST_INVALID;
    }
    if (r->hosted[0])
        log_info("req=%s tools that this server does not host are not in the prompt: %s", r->g->r->http.id,
                 r->hosted);
    return ST_OK;
}

/* Fields that all dialects take, as in chat completions. */
static const char *const common[] = {
    /* of OpenAI and Anthropic */
    "stream", "temperature", "top_p", "service_tier", "top_k", "min_p", "seed", "stop_token_ids",
    /* of this and other servers */
    "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "skip_special_tokens", "no_repeat_ngram_size", "vllm_xargs", "mm_processor_kwargs", "cache_salt",
    "priority", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "return_cache_info", "request_id"};
#define COMMON (sizeof common / sizeof *common)

static void note_unknown(struct reader *r, const char *const *same, size_t same_count,
                         const char *const *others, size_t other_count)
{
    enum { KNOWN_MAX = 96 };
    const char *known[KNOWN_MAX];
    char names[300];
    size_t n = COMMON + same_count + other_count;
    if (!log_enabled(LOG_DEBUG) || n > KNOWN_MAX) return;
    memcpy(known, common, sizeof common);
    memcpy(known + COMMON, same, same_count * sizeof *known);
    memcpy(known + COMMON + same_count, others, other_count * sizeof *known);
    if (fields_unknown(r->from, known, n, names, sizeof names))
        log_debug("req=%s fields that mean nothing here are ignored: %s", r->g->r->http.id, names);
}

enum status reader_same(struct reader *r, const char *const *same, size_t same_count,
                        const char *const *others, size_t other_count)
{
    json_t *fields = json_object(), *v;
    enum status st = fields ? ST_OK : reader_no_memory(r);
    note_unknown(r, same, same_count, others, other_count);
    for (size_t i = 0; i < COMMON + same_count && !st; i++) {
        const char *name = i < COMMON ? common[i] : same[i - COMMON];
        if ((v = field(r->from, name)) && json_object_set(fields, name, v)) st = reader_no_memory(r);
    }
    r->g->p.add_generation_prompt = true;
    if (!st) st = r->counting ? gen_parse_salt(r->g, fields) : gen_parse(r->g, fields);
    if (!st) st = r->counting ? gen_parse_image_bounds(r->g, fields) : gen_parse_refused(r->g, r->from);
    r->g->p.max_tokens_fit = true;
    json_decref(fields);
    return st;
}

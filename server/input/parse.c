/* See parse.h. Knows nothing of messages, prompts, sequences. */
#include "server/input/parse.h"

#include "server/context/limits.h"
#include "server/input/input.h"
#include "server/json/fields.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status wrong_type(struct generation *g, const char *name, const char *must)
{
    return api_fail(g->e, 400, "invalid_type", name, "%s must be %s.", name, must);
}

/* ---- length and number ---- */

static enum status tokens_max(struct generation *g, json_t *v, const char *name, int64_t least, int64_t none)
{
    int64_t n;
    if (value_int(g->e, v, name, least, INT64_MAX, &n)) return ST_INVALID;
    if (n <= none) return ST_OK;
    g->q.has_max_tokens = true;
    g->q.max_tokens = (uint64_t)n;
    return ST_OK;
}

enum status read_n_predict(struct generation *g, json_t *v, const char *name)
{
    return tokens_max(g, v, name, -1, -1);
}

enum status read_num_predict(struct generation *g, json_t *v, const char *name)
{
    return tokens_max(g, v, name, INT64_MIN, 0);
}

enum status read_n(struct generation *g, json_t *v, const char *name)
{
    int64_t n;
    if (value_int(g->e, v, name, 1, (int64_t)g->ctx->opt->max_n, &n)) return ST_INVALID;
    g->q.n = (uint32_t)n;
    return ST_OK;
}

enum status read_best_of(struct generation *g, json_t *v, const char *name)
{
    int64_t best;
    if (value_int(g->e, v, name, 0, INT64_MAX, &best)) return ST_INVALID;
    return best <= 1 || best == (int64_t)g->q.n
               ? ST_OK
               : api_fail(g->e, 400, "unsupported_parameter", name, "best_of is not supported.");
}

/* ---- sampling ---- */

int bias_order(const void *a, const void *b)
{
    uint32_t x = ((const struct sampling_bias *)a)->id, y = ((const struct sampling_bias *)b)->id;
    return x < y ? -1 : x > y;
}

enum status read_logit_bias(struct generation *g, json_t *v, const char *name)
{
    const char *key;
    json_t *one;
    if (!json_is_object(v)) return wrong_type(g, name, "an object");
    size_t count = json_object_size(v);
    if (count > LIMIT_BIASES)
        return api_fail(g->e, 400, "invalid_value", name, "%s has more than %u entries.", name, LIMIT_BIASES);
    struct sampling_bias *list = arena_alloc(&g->q.arena, count, sizeof *list);
    if (!list) return gen_nomem(g);
    g->q.sampling.bias = list;
    json_object_foreach(v, key, one) {
        char *end;
        size_t digits = strspn(key, "0123456789");
        unsigned long long id = digits && digits <= 10 ? strtoull(key, &end, 10) : UINT64_MAX;
        if (key[digits] || id >= g->ctx->model->info->vocab_size)
            return api_fail(g->e, 400, "invalid_value", name, "'%.60s' is not a token id of this model.",
                            key);
        if (!json_is_number(one))
            return api_fail(g->e, 400, "invalid_type", name, "Values of logit_bias must be numbers.");
        double b = json_number_value(one);
        list[g->q.sampling.bias_count++] =
            (struct sampling_bias){.id = (uint32_t)id, .bias = (float)fmax(-100, fmin(100, b))};
    }
    qsort(list, count, sizeof *list, bias_order);
    return ST_OK;
}

/* Token ids, each once. */
static enum status ids_of(struct generation *g, json_t *list, const char *path, uint32_t most, uint32_t **ids,
                          uint32_t *count)
{
    if (!json_is_array(list)) return wrong_type(g, path, "an array");
    size_t n = json_array_size(list);
    if (n > most)
        return api_fail(g->e, 400, "invalid_value", path, "%s has more than %u entries.", path, most);
    *count = 0;
    if (!(*ids = arena_alloc(&g->q.arena, n, sizeof **ids))) return gen_nomem(g);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_to_int(json_array_get(list, i), &id)) return wrong_type(g, path, "an array of integers");
        if (id < 0 || id >= (int64_t)g->ctx->model->info->vocab_size)
            return api_fail(g->e, 400, "invalid_value", path, "%lld is not a token id of this model.",
                            (long long)id);
        bool known = false;
        for (uint32_t k = 0; k < *count; k++) known = known || (*ids)[k] == (uint32_t)id;
        if (!known) (*ids)[(*count)++] = (uint32_t)id;
    }
    return ST_OK;
}

enum status read_stop_token_ids(struct generation *g, json_t *v, const char *name)
{
    return ids_of(g, v, name, LIMIT_STOP_IDS, &g->q.stop_ids, &g->q.stop_id_count);
}

/* What the logits processors of MinerU (no_repeat_ngram_size over generated tokens) and DeepSeek-OCR (within
 * a window of them) read. */
enum status read_vllm_xargs(struct generation *g, json_t *v, const char *name)
{
    static const char *const keys[] = {"debug", "ngram_size", "no_repeat_ngram_size", "whitelist_token_ids",
                                       "window_size"};
    struct sampling_ngrams *s = &g->q.sampling.ngrams;
    int64_t size = s->size, window = 0;
    bool has = false;
    char names[100];
    uint32_t *ids = NULL;
    if (!json_is_object(v)) return wrong_type(g, name, "an object");
    if (fields_unknown(v, keys, sizeof keys / sizeof *keys, names, sizeof names))
        return api_fail(g->e, 400, "unsupported_parameter", name,
                        "vllm_xargs: %s is not supported; no_repeat_ngram_size, ngram_size, window_size and "
                        "whitelist_token_ids are.",
                        names);
    if (field_int(g->e, v, "no_repeat_ngram_size", 0, SAMPLING_NGRAM_MAX, &size, &s->generated) ||
        field_int(g->e, v, "ngram_size", 1, SAMPLING_NGRAM_MAX, &size, &has))
        return ST_INVALID;
    s->generated = s->generated || has;
    if (has) window = 100; /* as in vLLM */
    if (field_int(g->e, v, "window_size", 1, UINT32_MAX, &window, NULL)) return ST_INVALID;
    json_t *free_ids = field(v, "whitelist_token_ids");
    if (free_ids && ids_of(g, free_ids, "whitelist_token_ids", LIMIT_BIASES, &ids, &s->free_count))
        return ST_INVALID;
    s->free = ids;
    s->size = (uint32_t)size;
    s->window = (uint32_t)window;
    return ST_OK;
}

/* ---- stops ---- */

enum status read_stop(struct generation *g, json_t *v, const char *name)
{
    struct inference_request *q = &g->q;
    bool many = json_is_array(v), indexed = strcmp(name, "stop") != 0; /* OpenAI names the field alone */
    size_t count = many ? json_array_size(v) : 1;
    if (indexed && !many) return api_fail(g->e, 400, "invalid_type", name, "Must be an array of strings.");
    if (count > LIMIT_STOPS)
        return api_fail(g->e, 400, "invalid_value", name, "%s has more than %u strings.", name, LIMIT_STOPS);
    q->stop_count = 0;
    if (!(q->stops = arena_alloc(&q->arena, count, sizeof *q->stops))) return gen_nomem(g);
    for (size_t i = 0; i < count; i++) {
        json_t *s = many ? json_array_get(v, i) : v;
        struct text text;
        char path[40];
        snprintf(path, sizeof path, indexed ? "%s[%zu]" : "%s", name, i);
        if (!json_is_string(s))
            return wrong_type(g, path, indexed ? "a string" : "a string or an array of strings");
        if (arena_text(&q->arena, s, &text)) return gen_nomem(g);
        if (!text.len || text.len > LIMIT_STOP_BYTES)
            return api_fail(g->e, 400, "invalid_value", path, "Each string of %s must have 1 to %u bytes.",
                            name, LIMIT_STOP_BYTES);
        q->stops[q->stop_count++] = (struct stop_string){.text = text.data, .len = text.len};
    }
    return ST_OK;
}

/* ---- what is returned ---- */

enum status read_stream_options(struct generation *g, json_t *v, const char *name)
{
    struct inference_request *q = &g->q;
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    bool *to[] = {&q->include_usage, &q->continuous_usage};
    if (!json_is_object(v)) return wrong_type(g, name, "an object");
    if (!q->stream) return api_fail(g->e, 400, "invalid_value", name, "stream_options needs stream: true.");
    for (size_t i = 0; i < 2; i++) {
        json_t *one = field(v, names[i]);
        char path[64];
        if (!one) continue;
        snprintf(path, sizeof path, "stream_options.%s", names[i]);
        if (!json_is_boolean(one)) return wrong_type(g, path, "a boolean");
        *to[i] = *to[i] || json_is_true(one);
    }
    q->continuous_usage = q->continuous_usage && q->include_usage;
    return ST_OK;
}

enum status read_top(struct generation *g, json_t *v, const char *name)
{
    int64_t n;
    if (value_int(g->e, v, name, 0, LIMIT_TOP_LOGPROBS, &n)) return ST_INVALID;
    g->q.logprobs_top = (uint32_t)n;
    return ST_OK;
}

enum status read_logprobs(struct generation *g, json_t *v, const char *name)
{
    g->q.logprobs = true;
    return read_top(g, v, name);
}

enum status read_top_logprobs(struct generation *g, json_t *v, const char *name)
{
    if (read_top(g, v, name)) return ST_INVALID;
    return !g->q.logprobs_top || g->q.logprobs
               ? ST_OK
               : api_fail(g->e, 400, "invalid_value", name, "top_logprobs needs logprobs: true.");
}

enum status read_prompt_logprobs(struct generation *g, json_t *v, const char *name)
{
    int64_t n;
    if (value_int(g->e, v, name, 0, LIMIT_TOP_LOGPROBS, &n)) return ST_INVALID;
    if (g->q.stream && n)
        return api_fail(g->e, 400, "invalid_value", name,
                        "prompt_logprobs is not available with stream: true.");
    g->q.prompt_logprobs = !g->q.stream;
    g->q.prompt_logprobs_top = (uint32_t)n;
    g->q.sampling.prompt_logprobs = (uint32_t)n;
    return ST_OK;
}

enum status read_receipt(struct generation *g, json_t *v, const char *name)
{
    g->q.receipt = json_is(v, "full") ? RECEIPT_FULL : json_is_true(v) ? RECEIPT_SHORT : RECEIPT_NONE;
    return json_is_boolean(v) || g->q.receipt ? ST_OK : wrong_type(g, name, "true, false or \"full\"");
}

enum status read_nothing(struct generation *g, json_t *v, const char *name)
{
    return json_is_boolean(v) ? ST_OK : wrong_type(g, name, "a boolean");
}

/* ---- the prompt ---- */

enum status read_add_generation_prompt(struct generation *g, json_t *v, const char *name)
{
    if (!json_is_boolean(v)) return wrong_type(g, name, "a boolean");
    g->q.add_generation_prompt = json_is_true(v);
    return g->q.add_generation_prompt && g->q.continue_final_message
               ? api_fail(g->e, 400, "invalid_value", "continue_final_message",
                          "continue_final_message and add_generation_prompt exclude each other.")
               : ST_OK;
}

enum status read_truncate_prompt_tokens(struct generation *g, json_t *v, const char *name)
{
    if (value_int(g->e, v, name, -1, UINT32_MAX, &g->q.truncate)) return ST_INVALID;
    g->q.has_truncate = true;
    return g->q.truncate ? ST_OK
                         : api_fail(g->e, 400, "invalid_value", name,
                                    "truncate_prompt_tokens must be -1 or at least 1.");
}

enum status read_no_truncation(struct generation *g, json_t *v, const char *name)
{
    (void)v;
    return api_fail(g->e, 400, "unsupported_parameter", name, "%s is not supported here: shorten the text.",
                    name);
}

enum status read_modalities(struct generation *g, json_t *v, const char *name)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (json_is(json_array_get(v, i), "audio"))
            return api_fail(g->e, 400, "unsupported_value", name, "Audio output is not supported.");
    return ST_OK;
}

enum status read_cache_salt(struct generation *g, json_t *v, const char *name)
{
    if (!json_is_string(v)) return wrong_type(g, name, "a string");
    if (!json_string_length(v) || json_string_length(v) > 1024)
        return api_fail(g->e, 400, "invalid_value", name, "cache_salt must have 1 to 1024 bytes.");
    return arena_text(&g->q.arena, v, &g->q.cache_salt) ? gen_nomem(g) : ST_OK;
}

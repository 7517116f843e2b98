/* Fields of a generating request -> struct gen_params (tools and reasoning: input/tools.c). null = absent;
 * unknown fields are ignored; known but unsupported ones are rejected. Worker thread. Knows nothing of
 * messages, prompts, sequences. */
#include "config/base/log.h"
#include "server/json/fields.h"
#include "server/input/input.h"
#include "server/context/limits.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static enum status refuse_if(struct generation *g, json_t *root, const char *name, const char *code,
                             const char *why)
{
    return field(root, name)
               ? api_fail(g->e, 400, code, name, "%s is not supported%s%s.", name, *why ? ": " : "", why)
               : ST_OK;
}

/* ---- sampling ---- */

static enum status parse_limits(struct generation *g, json_t *root)
{
    struct inference_request *p = &g->q;
    int64_t min = g->q.kind == GEN_COMPLETION && p->echo ? 0 : 1, v = 0;
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    for (size_t i = g->q.kind == GEN_CHAT ? 0 : 1; i < 3; i++) {
        bool has = false;
        if (strcmp(names[i], "n_predict") == 0) { /* llama.cpp: -1 = no limit */
            if (field_int(g->e, root, names[i], -1, INT64_MAX, &v, &has)) return ST_INVALID;
            if (has && v < 0) has = false;
        } else if (field_int(g->e, root, names[i], min, INT64_MAX, &v, &has)) {
            return ST_INVALID;
        }
        if (has && !p->has_max) {
            p->has_max = true;
            p->max_tokens = (uint64_t)v;
        }
    }
    if (!p->has_max && g->q.kind == GEN_COMPLETION) {
        p->has_max = true;
        p->max_tokens = 16;
    }
    if (!p->has_max && g->ctx->opt->default_max_tokens) {
        p->has_max = p->max_tokens_fit = true;
        p->max_tokens = g->ctx->opt->default_max_tokens;
    }
    bool has = false;
    if (field_int(g->e, root, "min_tokens", 0, INT64_MAX, &v, &has)) return ST_INVALID;
    if (has) p->min_tokens = (uint64_t)v;
    if (has && p->has_max && p->min_tokens > p->max_tokens) {
        return api_fail(g->e, 400, "invalid_value", "min_tokens",
                        "min_tokens is larger than the maximum number of tokens.");
    }
    return ST_OK;
}

struct sampling_defaults sampling_defaults(const struct server *s)
{
    const struct hf_generation *d = &s->ctx.model->info->generation;
    struct sampling_defaults out = {.temperature = 1, .top_p = 1, .repetition = 1};
    if (s->ctx.opt->generation_config == GENERATION_CONFIG_IGNORE) return out;
    if (d->has_temperature) out.temperature = d->temperature;
    if (d->has_do_sample && !d->do_sample) out.temperature = 0;
    if (d->has_top_p) out.top_p = d->top_p;
    if (d->has_min_p) out.min_p = d->min_p;
    if (d->has_top_k) out.top_k = (int64_t)d->top_k;
    if (d->has_repetition_penalty) out.repetition = d->repetition_penalty;
    return out;
}

static enum status parse_sampling(struct generation *g, json_t *root)
{
    struct sampling_params *s = &g->q.sampling;
    struct sampling_defaults d = sampling_defaults(g->r->srv);
    double presence = 0, frequency = 0;
    int64_t n = 1;
    bool has = false, has_rep = false;
    if (field_num(g->e, root, "temperature", 0, 2, &d.temperature, NULL) ||
        field_num(g->e, root, "top_p", 0, 1, &d.top_p, NULL) ||
        field_int(g->e, root, "n", 1, (int64_t)g->ctx->opt->max_n, &n, NULL) ||
        field_num(g->e, root, "frequency_penalty", -2, 2, &frequency, NULL) ||
        field_num(g->e, root, "presence_penalty", -2, 2, &presence, NULL) ||
        field_int(g->e, root, "seed", INT64_MIN, INT64_MAX, &g->q.seed, &has) ||
        field_int(g->e, root, "top_k", -1, INT32_MAX, &d.top_k, NULL) ||
        field_num(g->e, root, "min_p", 0, 1, &d.min_p, NULL) ||
        field_num(g->e, root, "repeat_penalty", 1e-6, 1e6, &d.repetition, NULL) ||
        field_num(g->e, root, "repetition_penalty", 1e-6, 1e6, &d.repetition, &has_rep)) {
        return ST_INVALID;
    }
    g->q.n = (uint32_t)n;
    g->q.has_seed = has && g->q.seed != -1;
    bool greedy = d.temperature < 1e-5;
    *s = (struct sampling_params){.temperature = greedy ? 0.0f : (float)fmax(d.temperature, 0.01),
                                  .top_p = greedy || d.top_p <= 0 ? 1.0f : (float)d.top_p,
                                  .min_p = greedy ? 0.0f : (float)d.min_p,
                                  .top_k = greedy || d.top_k < 0 ? 0 : (uint32_t)d.top_k,
                                  .presence_penalty = (float)presence,
                                  .frequency_penalty = (float)frequency,
                                  .repetition_penalty = (float)d.repetition,
                                  .logprobs = SAMPLING_NO_LOGPROBS,
                                  .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    if (!greedy && d.top_p <= 0) s->top_k = 1; /* only the most likely token */
    return ST_OK;
}

static int bias_order(const void *a, const void *b)
{
    uint32_t x = ((const struct sampling_bias *)a)->id, y = ((const struct sampling_bias *)b)->id;
    return x < y ? -1 : x > y;
}

static enum status parse_bias(struct generation *g, json_t *root)
{
    const struct hf_generation *d = &g->ctx->model->info->generation;
    bool use = g->ctx->opt->generation_config == GENERATION_CONFIG_AUTO;
    uint32_t never = use ? d->suppress_count : 0;
    json_t *map = field(root, "logit_bias");
    if (map && !json_is_object(map))
        return api_fail(g->e, 400, "invalid_type", "logit_bias", "logit_bias must be an object.");
    size_t count = json_object_size(map);
    if (count > LIMIT_BIASES)
        return api_fail(g->e, 400, "invalid_value", "logit_bias", "logit_bias has more than %u entries.",
                        LIMIT_BIASES);
    if (!(count + never)) return ST_OK;
    struct sampling_bias *list = calloc(count + never, sizeof *list);
    if (!list) return gen_nomem(g);
    g->q.sampling.bias = list;
    for (uint32_t i = 0; i < never; i++)
        list[g->q.sampling.bias_count++] = (struct sampling_bias){.id = d->suppress_ids[i], .bias = -100};
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v)
    {
        char *end;
        size_t digits = strspn(key, "0123456789");
        unsigned long long id = digits && digits <= 10 ? strtoull(key, &end, 10) : UINT64_MAX;
        if (key[digits] || id >= g->ctx->model->info->vocab_size) {
            return api_fail(g->e, 400, "invalid_value", "logit_bias",
                            "'%.60s' is not a token id of this model.", key);
        }
        if (!json_is_number(v))
            return api_fail(g->e, 400, "invalid_type", "logit_bias", "Values of logit_bias must be numbers.");
        double b = json_number_value(v);
        list[g->q.sampling.bias_count++] =
            (struct sampling_bias){.id = (uint32_t)id, .bias = (float)fmax(-100, fmin(100, b))};
    }
    qsort(list, g->q.sampling.bias_count, sizeof *list, bias_order);
    return ST_OK;
}

/* Token ids, each once; *ids: owned by the caller, NULL if there are none. */
static enum status parse_ids(struct generation *g, json_t *list, const char *path, uint32_t most,
                             uint32_t **ids, uint32_t *count)
{
    if (!list) return ST_OK;
    if (!json_is_array(list)) return api_fail(g->e, 400, "invalid_type", path, "%s must be an array.", path);
    size_t n = json_array_size(list);
    if (n > most)
        return api_fail(g->e, 400, "invalid_value", path, "%s has more than %u entries.", path, most);
    if (!n) return ST_OK;
    *ids = calloc(n, sizeof **ids);
    if (!*ids) return gen_nomem(g);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_to_int(json_array_get(list, i), &id))
            return api_fail(g->e, 400, "invalid_type", path, "%s must be an array of integers.", path);
        if (id < 0 || id >= (int64_t)g->ctx->model->info->vocab_size)
            return api_fail(g->e, 400, "invalid_value", path, "%lld is not a token id of this model.",
                            (long long)id);
        bool known = false;
        for (uint32_t k = 0; k < *count; k++) known = known || (*ids)[k] == (uint32_t)id;
        if (!known) (*ids)[(*count)++] = (uint32_t)id;
    }
    return ST_OK;
}

/* no_repeat_ngram_size as in transformers, and what the logits processors of MinerU (the same, over generated
 * tokens) and DeepSeek-OCR (within a window of them) read in vllm_xargs. */
static enum status parse_ngrams(struct generation *g, json_t *root)
{
    static const char *const keys[] = {"debug", "ngram_size", "no_repeat_ngram_size", "whitelist_token_ids",
                                       "window_size"};
    struct sampling_ngrams *s = &g->q.sampling.ngrams;
    json_t *args = field(root, "vllm_xargs");
    int64_t size = 0, window = 0;
    bool has = false;
    char names[100];
    if (args && !json_is_object(args))
        return api_fail(g->e, 400, "invalid_type", "vllm_xargs", "vllm_xargs must be an object.");
    if (fields_unknown(args, keys, sizeof keys / sizeof *keys, names, sizeof names))
        return api_fail(g->e, 400, "unsupported_parameter", "vllm_xargs",
                        "vllm_xargs: %s is not supported; no_repeat_ngram_size, ngram_size, window_size and "
                        "whitelist_token_ids are.",
                        names);
    if (field_int(g->e, root, "no_repeat_ngram_size", 0, SAMPLING_NGRAM_MAX, &size, NULL) ||
        field_int(g->e, args, "no_repeat_ngram_size", 0, SAMPLING_NGRAM_MAX, &size, &s->generated) ||
        field_int(g->e, args, "ngram_size", 1, SAMPLING_NGRAM_MAX, &size, &has))
        return ST_INVALID;
    s->generated = s->generated || has;
    if (has) window = 100; /* as in vLLM */
    uint32_t *ids = NULL;
    enum status st = field_int(g->e, args, "window_size", 1, UINT32_MAX, &window, NULL);
    if (!st)
        st = parse_ids(g, field(args, "whitelist_token_ids"), "whitelist_token_ids", LIMIT_BIASES, &ids,
                       &s->free_count);
    s->free = ids;
    s->size = (uint32_t)size;
    s->window = (uint32_t)window;
    return st;
}

/* ---- stops ---- */

enum status gen_parse_stops(struct generation *g, json_t *stop, const char *name)
{
    if (!stop) return ST_OK;
    bool many = json_is_array(stop), indexed = strcmp(name, "stop") != 0; /* OpenAI names the field alone */
    size_t count = many ? json_array_size(stop) : 1;
    if (count > LIMIT_STOPS)
        return api_fail(g->e, 400, "invalid_value", name, "%s has more than %u strings.", name, LIMIT_STOPS);
    if (!count) return ST_OK;
    g->q.stops = calloc(count, sizeof *g->q.stops);
    if (!g->q.stops) return gen_nomem(g);
    g->q.stop_list = json_incref(stop);
    for (size_t i = 0; i < count; i++) {
        json_t *s = many ? json_array_get(stop, i) : stop;
        size_t len = json_string_length(s);
        char path[40];
        snprintf(path, sizeof path, indexed ? "%s[%zu]" : "%s", name, i);
        if (!json_is_string(s))
            return api_fail(g->e, 400, "invalid_type", path, "%s must be a string%s.", path,
                            indexed ? "" : " or an array of strings");
        if (!len || len > LIMIT_STOP_BYTES)
            return api_fail(g->e, 400, "invalid_value", path, "Each string of %s must have 1 to %u bytes.",
                            name, LIMIT_STOP_BYTES);
        g->q.stops[g->q.stop_count++] = (struct stop_string){.text = json_string_value(s), .len = len};
    }
    return stop_set_create(g->q.stops, g->q.stop_count, &g->stops) ? gen_nomem(g) : ST_OK;
}

/* ---- reported values ---- */

static enum status parse_stream(struct generation *g, json_t *root)
{
    struct inference_request *p = &g->q;
    if (field_bool(g->e, root, "stream", &p->stream)) return ST_INVALID;
    p->include_usage = g->ctx->opt->always_include_usage;
    json_t *o = field(root, "stream_options");
    if (!o) return ST_OK;
    if (!json_is_object(o))
        return api_fail(g->e, 400, "invalid_type", "stream_options", "stream_options must be an object.");
    if (!p->stream)
        return api_fail(g->e, 400, "invalid_value", "stream_options", "stream_options needs stream: true.");
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    bool *to[] = {&p->include_usage, &p->continuous_usage};
    for (size_t i = 0; i < 2; i++) {
        json_t *v = field(o, names[i]);
        if (!v) continue;
        char path[64];
        snprintf(path, sizeof path, "stream_options.%s", names[i]);
        if (!json_is_boolean(v))
            return api_fail(g->e, 400, "invalid_type", path, "%s must be a boolean.", path);
        *to[i] = *to[i] || json_is_true(v);
    }
    p->continuous_usage = p->continuous_usage && p->include_usage;
    return ST_OK;
}

static enum status parse_logprobs(struct generation *g, json_t *root)
{
    struct inference_request *p = &g->q;
    int64_t v = p->logprobs_top;
    bool has = false;
    if (g->q.kind == GEN_CHAT) {
        if (field_bool(g->e, root, "logprobs", &p->logprobs) ||
            field_int(g->e, root, "top_logprobs", 0, LIMIT_TOP_LOGPROBS, &v, &has))
            return ST_INVALID;
        if (has && v > 0 && !p->logprobs)
            return api_fail(g->e, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true.");
        p->logprobs_top = (uint32_t)v;
    } else {
        if (field_int(g->e, root, "logprobs", 0, LIMIT_TOP_LOGPROBS, &v, &has)) return ST_INVALID;
        p->logprobs = has;
        p->logprobs_top = (uint32_t)v;
    }
    if (p->logprobs) p->sampling.logprobs = p->logprobs_top;
    if (field_int(g->e, root, "prompt_logprobs", 0, LIMIT_TOP_LOGPROBS, &v, &p->prompt_logprobs))
        return ST_INVALID;
    if (p->prompt_logprobs) {
        if (p->stream && v)
            return api_fail(g->e, 400, "invalid_value", "prompt_logprobs",
                            "prompt_logprobs is not available with stream: true.");
        p->prompt_logprobs_top = (uint32_t)v;
        p->sampling.prompt_logprobs = (uint32_t)v;
        if (p->stream) p->prompt_logprobs = false;
    }
    if (g->q.kind == GEN_COMPLETION && p->echo && p->logprobs) {
        uint32_t now = p->sampling.prompt_logprobs;
        if (now == SAMPLING_NO_LOGPROBS || now < p->logprobs_top)
            p->sampling.prompt_logprobs = p->logprobs_top;
    }
    return ST_OK;
}

enum status gen_parse_turn(struct generation *g, json_t *root)
{
    struct inference_request *p = &g->q;
    p->add_special_tokens = g->q.kind == GEN_COMPLETION;
    p->add_generation_prompt = true;
    bool has_add = field(root, "add_generation_prompt") != NULL;
    if (field_bool(g->e, root, "add_special_tokens", &p->add_special_tokens) ||
        field_bool(g->e, root, "add_generation_prompt", &p->add_generation_prompt) ||
        field_bool(g->e, root, "continue_final_message", &p->continue_final_message))
        return ST_INVALID;
    if (p->continue_final_message && has_add && p->add_generation_prompt)
        return api_fail(g->e, 400, "invalid_value", "continue_final_message",
                        "continue_final_message and add_generation_prompt exclude each other.");
    p->add_generation_prompt = p->add_generation_prompt && !p->continue_final_message;
    return ST_OK;
}

static enum status parse_output(struct generation *g, json_t *root)
{
    struct inference_request *p = &g->q;
    bool no_trim = false, ignored = true;
    p->skip_special = true;
    if (field_bool(g->e, root, "echo", &p->echo) || field_bool(g->e, root, "ignore_eos", &p->ignore_eos) ||
        field_bool(g->e, root, "skip_special_tokens", &p->skip_special) ||
        field_bool(g->e, root, "spaces_between_special_tokens", &ignored) ||
        field_bool(g->e, root, "include_stop_str_in_output", &p->include_stop) ||
        field_bool(g->e, root, "no_stop_trim", &no_trim) ||
        field_bool(g->e, root, "return_token_ids", &p->return_token_ids) ||
        field_bool(g->e, root, "return_tokens_as_token_ids", &p->tokens_as_ids) || gen_parse_turn(g, root)) {
        return ST_INVALID;
    }
    p->include_stop = p->include_stop || no_trim;
    if (field_int(g->e, root, "truncate_prompt_tokens", -1, UINT32_MAX, &p->truncate, &p->has_truncate))
        return ST_INVALID;
    if (p->has_truncate && !p->truncate)
        return api_fail(g->e, 400, "invalid_value", "truncate_prompt_tokens",
                        "truncate_prompt_tokens must be -1 or at least 1.");
    if (field_int(g->e, root, "priority", INT64_MIN, INT64_MAX, &p->priority, NULL)) return ST_INVALID;
    p->service_tier = field(root, "service_tier") != NULL;
    p->parallel_calls = true;
    if (g->q.kind == GEN_CHAT && field_bool(g->e, root, "parallel_tool_calls", &p->parallel_calls))
        return ST_INVALID;
    return field_bool(g->e, root, "return_cache_info", &p->return_cache_info) ||
                   field_bool(g->e, root, "timings_per_token", &p->timings) ||
                   field_bool(g->e, root, "return_progress", &p->progress)
               ? ST_INVALID
               : ST_OK;
}

/* ---- tenant and salt ---- */

static void hash_part(crypto_hash_sha256_state *h, const void *data, size_t len)
{
    uint64_t n = len; /* hashed first, so that lists of parts are unambiguous */
    crypto_hash_sha256_update(h, (const unsigned char *)&n, sizeof n);
    crypto_hash_sha256_update(h, data, len);
}

void gen_salt(const struct request *r, const char *text, size_t len, uint8_t out[32])
{
    static const char purpose[] = "kvasir cache salt", of_key[] = "kvasir cache salt of an API key";
    bool by_key = r->http.has_key && r->srv->ctx.opt->cache_scope == CACHE_SCOPE_KEY;
    crypto_hash_sha256_state h;
    memset(out, 0, 32);
    if (!by_key && !len) return;
    crypto_hash_sha256_init(&h);
    if (by_key) {
        hash_part(&h, of_key, sizeof of_key);
        hash_part(&h, r->http.key, sizeof r->http.key);
    } else {
        hash_part(&h, purpose, sizeof purpose);
    }
    hash_part(&h, text, len);
    crypto_hash_sha256_final(&h, out);
}

enum status gen_parse_salt(struct generation *g, json_t *root)
{
    json_t *salt = field(root, "cache_salt");
    gen_salt(g->r, "", 0, g->caller.salt);
    if (!salt) return ST_OK;
    if (!json_is_string(salt))
        return api_fail(g->e, 400, "invalid_type", "cache_salt", "cache_salt must be a string.");
    if (!json_string_length(salt) || json_string_length(salt) > 1024) {
        return api_fail(g->e, 400, "invalid_value", "cache_salt", "cache_salt must have 1 to 1024 bytes.");
    }
    gen_salt(g->r, json_string_value(salt), json_string_length(salt), g->caller.salt);
    return ST_OK;
}

/* Fairness is between API keys; with one key or none, between values of `user`; without either between
 * addresses. With several keys `user` is ignored: nobody gets a larger share by inventing names. */
void gen_tenant(struct generation *g, json_t *user)
{
    static const char purpose[] = "kvasir tenant";
    const struct request *r = g->r;
    bool by_user = json_is_string(user) && json_string_length(user) && (!r->http.has_key || r->http.one_key);
    const char *name = by_user ? json_string_value(user) : r->http.has_key ? "" : r->http.client;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state h;
    crypto_hash_sha256_init(&h);
    hash_part(&h, purpose, sizeof purpose);
    hash_part(&h, r->http.key, r->http.has_key ? sizeof r->http.key : 0);
    hash_part(&h, name, by_user ? json_string_length(user) : strlen(name));
    crypto_hash_sha256_final(&h, digest);
    memcpy(&g->caller.tenant, digest, sizeof g->caller.tenant);
    if (!g->caller.tenant) g->caller.tenant = 1;
}

/* ---- rejected fields ---- */

enum status gen_parse_refused(struct generation *g, json_t *root)
{
    static const char *const unsupported[] = {
        "functions",     "function_call",          "web_search_options", "audio",
        "chat_template", "custom_logit_processor", "allowed_token_ids"};
    /* Empty values, and those without effect, are accepted: some clients send all settings that they know. */
    static const char *const containers[] = {"media_io_kwargs",
                                             "logits_processors",
                                             "bad_words",
                                             "logprob_token_ids",
                                             "stop_regex",
                                             "custom_params",
                                             "repetition_detection",
                                             "guided_whitespace_pattern",
                                             "lora",
                                             "lora_path",
                                             "session_params"};
    static const struct {
        const char *name;
        double neutral; /* and below, if not 1 */
    } numbers[] = {{"length_penalty", 1},
                   {"typical_p", 1},
                   {"tfs_z", 1},
                   {"mirostat", 0},
                   {"dynatemp_range", 0},
                   {"xtc_probability", 0},
                   {"dry_multiplier", 0},
                   {"top_n_sigma", 0},
                   {"top_a", 0},
                   {"t_max_predict_ms", 0},
                   {"use_beam_search", 0},
                   {"grammar_lazy", 0},
                   {"return_hidden_states", 0}};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (g->q.kind == GEN_COMPLETION && i < 4) continue; /* not fields of that endpoint: ignored */
        if (refuse_if(g, root, unsupported[i], "unsupported_parameter", "")) return ST_INVALID;
    }
    for (size_t i = 0; i < sizeof containers / sizeof *containers; i++) {
        json_t *v = field(root, containers[i]);
        if ((json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v)) ||
            (json_is_string(v) && !json_string_length(v)))
            continue;
        if (refuse_if(g, root, containers[i], "unsupported_parameter", "")) return ST_INVALID;
    }
    if (g->q.kind == GEN_COMPLETION &&
        (refuse_if(g, root, "mm_processor_kwargs", "unsupported_parameter", "") ||
         refuse_if(g, root, "thinking_token_budget", "unsupported_parameter", "")))
        return ST_INVALID;
    json_t *m = field(root, "modalities");
    for (size_t i = 0; json_is_array(m) && i < json_array_size(m); i++) {
        if (json_is(json_array_get(m, i), "audio"))
            return api_fail(g->e, 400, "unsupported_value", "modalities", "Audio output is not supported.");
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *name = numbers[i].name;
        json_t *v = field(root, name);
        double n = json_is_boolean(v) ? json_is_true(v) : json_number_value(v), neutral = numbers[i].neutral;
        if (!v ||
            ((json_is_boolean(v) || json_is_number(v)) && n <= neutral && (neutral < 1 || n >= neutral)))
            continue;
        return api_fail(g->e, 400, "unsupported_parameter", name,
                        "%s is not supported: leave it out, or send %g.", name, neutral);
    }
    int64_t best = 0;
    bool has = false;
    if (field_int(g->e, root, "best_of", 0, INT64_MAX, &best, &has)) return ST_INVALID;
    if (has && best > 1 && best != (int64_t)g->q.n)
        return api_fail(g->e, 400, "unsupported_parameter", "best_of", "best_of is not supported.");
    return ST_OK;
}

void gen_note_unknown(struct generation *g, json_t *root, const char *const *known, size_t count)
{
    enum { WARNINGS_MAX = 8, LOOKED_AT_MAX = 64 };
    const char *key;
    json_t *v;
    size_t looked_at = 0;
    char names[300];
    json_object_foreach(root, key, v)
    {
        size_t i = 0;
        while (i < count && strcmp(key, known[i]) != 0) i++;
        bool other = strcmp(key, "models") == 0; /* of a router: not a slip */
        if (i < count || other || json_is_null(v) || looked_at++ >= LOOKED_AT_MAX) continue;
        const char *near = field_near(key, known, count);
        if (!near || json_array_size(g->misspelt) >= WARNINGS_MAX) continue;
        if (!g->misspelt) g->misspelt = json_array();
        (void)json_array_append_new(
            g->misspelt, json_sprintf("The field '%s' is unknown and ignored: '%s' is similar.", key, near));
    }
    if (log_enabled(LOG_DEBUG) && fields_unknown(root, known, count, names, sizeof names))
        log_debug("req=%s fields that mean nothing here are ignored: %s", g->r->http.id, names);
}

/* All fields that OpenAI's API or another server documents, whether they have an effect here or not. Other
 * fields are ignored as well, because many clients send fields of their own. */
static void note_unknown(struct generation *g, json_t *root)
{
    static const char *const known[] = {
        /* OpenAI's */
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "moderation",
        "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format",
        "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options",
        "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options", "best_of", "echo", "prompt", "suffix",
        /* of other servers */
        "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "bootstrap_host",
        "bootstrap_port", "bootstrap_room", "cache_prompt", "cache_salt", "chat_template",
        "chat_template_kwargs", "continue_final_message", "custom_logit_processor", "documents", "ebnf",
        "ec_transfer_params", "enable_thinking", "grammar", "grammar_lazy", "guided_choice",
        "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex",
        "guided_whitespace_pattern", "id_slot", "ignore_eos", "include_reasoning",
        "include_stop_str_in_output", "json_schema", "kv_transfer_params", "length_penalty",
        "logits_processors", "logprob_token_ids", "lora", "lora_path", "media_io_kwargs", "min_p",
        "min_tokens", "mm_processor_kwargs", "n_predict", "no_stop_trim", "priority", "prompt_logprobs",
        "reasoning", "regex", "repeat_penalty", "repetition_detection", "repetition_penalty", "request_id",
        "return_cache_info", "return_hidden_states", "return_prompt_text", "return_token_ids",
        "return_tokens_as_token_ids", "rid", "samplers", "separate_reasoning", "session_params",
        "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "stream_interval",
        "structured_outputs", "thinking", "thinking_budget", "thinking_token_budget", "timings_per_token",
        "top_k", "truncate_prompt_tokens", "custom_params", "dry_multiplier", "dynatemp_range", "mirostat",
        "no_repeat_ngram_size", "return_progress", "stop_regex", "t_max_predict_ms", "tfs_z", "top_a",
        "top_n_sigma", "xtc_probability", "typical_p", "use_beam_search", "vllm_xargs"};
    gen_note_unknown(g, root, known, sizeof known / sizeof *known);
}

enum status gen_parse(struct generation *g, json_t *root)
{
    bool chat = g->q.kind == GEN_CHAT;
    note_unknown(g, root);
    gen_tenant(g, field(root, "user"));
    if (parse_output(g, root) || gen_parse_salt(g, root) || parse_limits(g, root) ||
        parse_sampling(g, root) || parse_stream(g, root) || gen_parse_stops(g, field(root, "stop"), "stop") ||
        parse_bias(g, root) || parse_ngrams(g, root) || parse_logprobs(g, root) ||
        parse_ids(g, field(root, "stop_token_ids"), "stop_token_ids", LIMIT_STOP_IDS, &g->q.stop_ids,
                  &g->q.stop_id_count) ||
        gen_parse_format(g, root) || gen_parse_refused(g, root)) {
        return ST_INVALID;
    }
    bool own = chat && !g->dialect;
    if ((own && gen_parse_tools(g, root)) || (chat && gen_tools_resolve(g)) ||
        (own && gen_parse_reasoning(g, root)) || (chat && gen_parse_image_bounds(g, root)))
        return ST_INVALID;
    return ST_OK;
}

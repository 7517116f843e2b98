/* What a field of the table needs beyond its type (parse.h), what holds between fields, and what follows from
 * them: defaults, tenant and salt. Worker thread. Knows nothing of messages, prompts, sequences. */
#include "server/input/parse.h"

#include "server/context/limits.h"
#include "server/input/fields.h"
#include "server/input/input.h"
#include "server/json/fields.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <math.h>
#include <sodium.h>
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

struct sampling_defaults sampling_defaults(const struct context *x)
{
    const struct hf_generation *d = &x->model->info->generation;
    struct sampling_defaults out = {.temperature = 1, .top_p = 1, .repetition = 1};
    if (x->opt->generation_config == GENERATION_CONFIG_IGNORE) return out;
    if (d->has_temperature) out.temperature = d->temperature;
    if (d->has_do_sample && !d->do_sample) out.temperature = 0;
    if (d->has_top_p) out.top_p = d->top_p;
    if (d->has_min_p) out.min_p = d->min_p;
    if (d->has_top_k) out.top_k = (int64_t)d->top_k;
    if (d->has_repetition_penalty) out.repetition = d->repetition_penalty;
    return out;
}

static int bias_order(const void *a, const void *b)
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
    struct sampling_bias *list = request_alloc(&g->q, count, sizeof *list);
    if (!list) return gen_nomem(g);
    g->q.sampling.bias = list;
    json_object_foreach(v, key, one)
    {
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

/* Tokens that generation_config.json suppresses, before those of the request. */
static enum status suppress(struct generation *g)
{
    const struct hf_generation *d = &g->ctx->model->info->generation;
    struct sampling_params *s = &g->q.sampling;
    uint32_t never = g->ctx->opt->generation_config == GENERATION_CONFIG_AUTO ? d->suppress_count : 0;
    if (!never) return ST_OK;
    struct sampling_bias *list = request_alloc(&g->q, (size_t)s->bias_count + never, sizeof *list);
    if (!list) return gen_nomem(g);
    for (uint32_t i = 0; i < never; i++)
        list[i] = (struct sampling_bias){.id = d->suppress_ids[i], .bias = -100};
    if (s->bias_count) memcpy(list + never, s->bias, s->bias_count * sizeof *list);
    s->bias = list;
    s->bias_count += never;
    qsort(list, s->bias_count, sizeof *list, bias_order);
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
    if (!(*ids = request_alloc(&g->q, n, sizeof **ids))) return gen_nomem(g);
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
    if (!(q->stops = request_alloc(q, count, sizeof *q->stops))) return gen_nomem(g);
    for (size_t i = 0; i < count; i++) {
        json_t *s = many ? json_array_get(v, i) : v;
        struct text text;
        char path[40];
        snprintf(path, sizeof path, indexed ? "%s[%zu]" : "%s", name, i);
        if (!json_is_string(s))
            return wrong_type(g, path, indexed ? "a string" : "a string or an array of strings");
        if (request_text(q, s, &text)) return gen_nomem(g);
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

/* ---- tenant and salt ---- */

enum status read_cache_salt(struct generation *g, json_t *v, const char *name)
{
    if (!json_is_string(v)) return wrong_type(g, name, "a string");
    if (!json_string_length(v) || json_string_length(v) > 1024)
        return api_fail(g->e, 400, "invalid_value", name, "cache_salt must have 1 to 1024 bytes.");
    return request_text(&g->q, v, &g->q.cache_salt) ? gen_nomem(g) : ST_OK;
}

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

/* Fairness is between API keys; with one key or none, between values of `user`; without either between
 * addresses. With several keys `user` is ignored: nobody gets a larger share by inventing names. */
void gen_caller(struct generation *g)
{
    static const char purpose[] = "kvasir tenant";
    const struct request *r = g->r;
    const struct text *user = &g->q.user, *salt = &g->q.cache_salt;
    bool by_user = user->len && (!r->http.has_key || r->http.one_key);
    const char *name = by_user ? user->data : r->http.has_key ? "" : r->http.client;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state h;
    crypto_hash_sha256_init(&h);
    hash_part(&h, purpose, sizeof purpose);
    hash_part(&h, r->http.key, r->http.has_key ? sizeof r->http.key : 0);
    hash_part(&h, name, by_user ? user->len : strlen(name));
    crypto_hash_sha256_final(&h, digest);
    memcpy(&g->caller.tenant, digest, sizeof g->caller.tenant);
    if (!g->caller.tenant) g->caller.tenant = 1;
    gen_salt(r, salt->len ? salt->data : "", salt->len, g->caller.salt);
}

/* ---- the whole ---- */

void gen_defaults(struct generation *g)
{
    struct sampling_defaults d = sampling_defaults(g->ctx);
    bool text = g->q.kind == GEN_COMPLETION;
    g->q.n = 1;
    g->q.sampling = (struct sampling_params){.temperature = (float)d.temperature,
                                             .top_p = (float)d.top_p,
                                             .min_p = (float)d.min_p,
                                             .top_k = d.top_k < 0 ? 0 : (uint32_t)d.top_k,
                                             .repetition_penalty = (float)d.repetition,
                                             .logprobs = SAMPLING_NO_LOGPROBS,
                                             .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    g->q.include_usage = g->ctx->opt->always_include_usage;
    g->q.skip_special = g->q.parallel_calls = g->q.add_generation_prompt = true;
    g->q.add_special_tokens = text;
}

enum status gen_fields(struct generation *g, json_t *root, unsigned read, unsigned known)
{
    if (fields_read(g, root, read, known)) return ST_INVALID;
    g->q.add_generation_prompt = g->q.add_generation_prompt && !g->q.continue_final_message;
    gen_caller(g);
    return ST_OK;
}

static enum status resolve_length(struct generation *g)
{
    struct inference_request *q = &g->q;
    uint64_t fallback = g->ctx->opt->default_max_tokens;
    if (q->kind == GEN_COMPLETION && q->has_max_tokens && !q->max_tokens && !q->echo)
        return api_fail(g->e, 400, "invalid_value", "max_tokens", "max_tokens must be at least 1.");
    if (!q->has_max_tokens && (q->kind == GEN_COMPLETION || fallback)) {
        q->max_tokens_fit = q->max_tokens_fit || q->kind != GEN_COMPLETION;
        q->max_tokens = q->kind == GEN_COMPLETION ? 16 : fallback;
        q->has_max_tokens = true;
    }
    return q->has_max_tokens && q->min_tokens > q->max_tokens
               ? api_fail(g->e, 400, "invalid_value", "min_tokens",
                          "min_tokens is larger than the maximum number of tokens.")
               : ST_OK;
}

static void resolve_sampling(struct inference_request *q)
{
    struct sampling_params *s = &q->sampling;
    bool greedy = s->temperature < 1e-5f, likeliest = s->top_p <= 0;
    s->temperature = greedy ? 0 : fmaxf(s->temperature, 0.01f);
    if (greedy) s->min_p = 0;
    if (greedy || likeliest) {
        s->top_p = 1;
        s->top_k = greedy ? 0 : 1; /* only the most likely token */
    }
    q->has_seed = q->has_seed && q->seed != -1;
    if (q->logprobs) s->logprobs = q->logprobs_top;
    if (q->kind != GEN_COMPLETION || !q->echo || !q->logprobs) return;
    if (s->prompt_logprobs == SAMPLING_NO_LOGPROBS || s->prompt_logprobs < q->logprobs_top)
        s->prompt_logprobs = q->logprobs_top;
}

enum status gen_resolve(struct generation *g, json_t *root, unsigned api)
{
    if (resolve_length(g)) return ST_INVALID;
    resolve_sampling(&g->q);
    if (suppress(g) || gen_parse_format(g, root, api)) return ST_INVALID;
    if (g->q.stop_count && stop_set_create(g->q.stops, g->q.stop_count, &g->stops)) return gen_nomem(g);
    return ST_OK;
}

enum status gen_parse(struct generation *g, json_t *root)
{
    bool chat = g->q.kind == GEN_CHAT;
    unsigned api = chat ? API_CHAT : API_TEXT;
    if (gen_fields(g, root, api, api) || gen_resolve(g, root, api)) return ST_INVALID;
    return chat && (gen_parse_tools(g, root) || gen_tools_resolve(g) || gen_parse_reasoning(g, root))
               ? ST_INVALID
               : ST_OK;
}

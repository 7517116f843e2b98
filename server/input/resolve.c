/* A request from its fields: defaults, what holds between fields, and whose it is (tenant and salt). Worker
 * thread. */
#include "server/input/fields.h"
#include "server/input/input.h"
#include "server/input/parse.h"

#include "engine/model/model_info.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* ---- tenant and salt ---- */

static void hash_part(crypto_hash_sha256_state *h, const void *data, size_t len)
{
    uint64_t n = len; /* hashed first, so that lists of parts are unambiguous */
    crypto_hash_sha256_update(h, (const unsigned char *)&n, sizeof n);
    crypto_hash_sha256_update(h, data, len);
}

void gen_salt(const struct context *x, const struct caller *of, const char *text, size_t len, uint8_t out[32])
{
    static const char purpose[] = "kvasir cache salt", of_key[] = "kvasir cache salt of an API key";
    bool by_key = of->has_key && x->opt->cache_scope == CACHE_SCOPE_KEY;
    crypto_hash_sha256_state h;
    memset(out, 0, 32);
    if (!by_key && !len) return;
    crypto_hash_sha256_init(&h);
    if (by_key) {
        hash_part(&h, of_key, sizeof of_key);
        hash_part(&h, of->key, 32);
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
    struct caller *of = &g->caller;
    const struct text *user = &g->q.user, *salt = &g->q.cache_salt;
    bool by_user = user->len && (!of->has_key || of->one_key);
    const char *name = by_user ? user->data : of->has_key ? "" : of->client;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state h;
    crypto_hash_sha256_init(&h);
    hash_part(&h, purpose, sizeof purpose);
    hash_part(&h, of->key, of->has_key ? 32 : 0);
    hash_part(&h, name, by_user ? user->len : strlen(name));
    crypto_hash_sha256_final(&h, digest);
    memcpy(&of->tenant, digest, sizeof of->tenant);
    if (!of->tenant) of->tenant = 1;
    gen_salt(g->ctx, of, salt->len ? salt->data : "", salt->len, of->salt);
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

/* Tokens that generation_config.json suppresses, before those of the request. */
static enum status suppress(struct generation *g)
{
    const struct hf_generation *d = &g->ctx->model->info->generation;
    struct sampling_params *s = &g->q.sampling;
    uint32_t never = g->ctx->opt->generation_config == GENERATION_CONFIG_AUTO ? d->suppress_count : 0;
    if (!never) return ST_OK;
    struct sampling_bias *list = arena_alloc(&g->q.arena, (size_t)s->bias_count + never, sizeof *list);
    if (!list) return gen_nomem(g);
    for (uint32_t i = 0; i < never; i++)
        list[i] = (struct sampling_bias){.id = d->suppress_ids[i], .bias = -100};
    if (s->bias_count) memcpy(list + never, s->bias, s->bias_count * sizeof *list);
    s->bias = list;
    s->bias_count += never;
    qsort(list, s->bias_count, sizeof *list, bias_order);
    return ST_OK;
}

/* ---- the whole ---- */

void gen_defaults(struct generation *g)
{
    struct sampling_defaults d = sampling_defaults(g->ctx);
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
    g->q.add_special_tokens = g->q.kind != GEN_CHAT;
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
    gen_given_resolve(q);
    if (q->kind == GEN_COMPLETION && q->has_max_tokens && !q->max_tokens && (!q->echo || q->given_count))
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
    if (q->logprobs || q->given_count) s->logprobs = q->logprobs_top;
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

/* Receipts of responses (server/receipts/receipts.h), and the check of one: the request runs again with the
 * claimed output as given tokens (struct sched_sequence), and what comes of it is compared with the claim.
 * A worker's, or the loop's, as generate.h says. */
#include "server/receipts/receipts.h"

#include "engine/model/model_info.h"
#include "server/context/adapters.h"
#include "server/generate/generate.h"
#include "server/http/request.h"
#include "server/input/request_json.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/json/value.h"
#include "server/receipts/checkpoint_id.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the request is ---- */

static enum status request_hash(const struct inference_request *q, uint8_t out[32])
{
    struct buf text;
    struct json_writer o = {.buf = &text};
    buf_init(&text, SIZE_MAX / 4);
    request_write(&o, q);
    if (!o.st) crypto_hash_sha256(out, (const unsigned char *)text.data, text.len);
    buf_fini(&text);
    return o.st;
}

enum status gen_receipt_begin(struct generation *g, struct buf *full)
{
    struct gen_receipt *x = g->receipt;
    const struct options *o = g->ctx->opt;
    struct err err;
    if (!x && g->q.receipt && g->q.given_count)
        return api_fail(g->e, 400, "invalid_value", "receipt",
                        "There is no receipt of output that the request gives (trace_decode_token_ids, "
                        "continuations): the model didn't choose it.");
    if (g->q.kind == GEN_VECTORS || (!x && !g->q.receipt && (!o->receipts || g->q.given_count))) return ST_OK;
    if (!x) { /* else it has a body, if it is full */
        x = g->receipt = calloc(1, sizeof *x);
        if (!x) return gen_nomem(g);
        *x = (struct gen_receipt){.api = g->r->route->path, .full = full->len, .body = *full};
        *full = (struct buf){0};
        g->dialect_kept += x->body.cap;
    }
    if (request_hash(&g->q, x->request)) return gen_nomem(g);
    crypto_hash_sha256(x->body_hash, (const unsigned char *)x->body.data, x->body.len);
    enum status st = checkpoint_id_known(g->ctx->model_dir, o->mmproj, o->cache_dir, x->weights, &err);
    if (st) return api_fail_status(g->e, st, "receipt", &err);
    if (!x->claim) return ST_OK;
    /* Only the output is asked for. */
    g->q.stream = g->q.logprobs = g->q.prompt_logprobs = g->q.progress = false;
    g->q.sampling.logprobs = g->q.sampling.prompt_logprobs = SAMPLING_NO_LOGPROBS;
    return ST_OK;
}

void gen_receipt_free(struct gen_receipt *x)
{
    if (!x) return;
    buf_fini(&x->body);
    json_decref(x->claim);
    for (uint32_t i = 0; x->given && i < x->given_choices; i++) free(x->given[i]);
    free(x->given);
    free(x);
}

/* ---- the statement ---- */

static void ids_hash_write(struct json_writer *o, const uint32_t *ids, size_t count)
{
    uint8_t digest[32];
    crypto_hash_sha256(digest, (const unsigned char *)ids, count * sizeof *ids);
    jw_text(o, "\"sha256\":");
    receipt_hex(o, digest);
}

static void prompt_write(struct json_writer *o, const struct gen_receipt *x, const struct prompt *p)
{
    bool any = false;
    jw_put(o, "{\"tokens\":%u,", p->token_count);
    ids_hash_write(o, p->tokens, p->token_count);
    jw_text(o, ",\"images\":[");
    for (uint32_t i = 0; i < p->span_count; i++) {
        const struct prompt_span *s = &p->spans[i];
        if (!s->image) continue;
        if (any) jw_text(o, ",");
        jw_put(o, "{\"token\":%u,\"tokens\":%u,\"content\":", s->begin, s->end - s->begin);
        receipt_hex(o, s->key);
        jw_text(o, "}");
        any = true;
    }
    jw_text(o, "]");
    if (x->full) {
        jw_text(o, ",\"token_ids\":");
        jw_ids(o, p->tokens, p->token_count);
    }
    jw_text(o, "}");
}

static void sampling_write(struct json_writer *o, const struct generation *g)
{
    const struct sampling_params *s = &g->q.sampling;
    const struct {
        const char *name;
        float value;
    } numbers[] = {{"{\"temperature\":", s->temperature},
                   {",\"top_p\":", s->top_p},
                   {",\"min_p\":", s->min_p},
                   {",\"top_n_sigma\":", s->top_n_sigma},
                   {",\"presence_penalty\":", s->presence_penalty},
                   {",\"frequency_penalty\":", s->frequency_penalty},
                   {",\"repetition_penalty\":", s->repetition_penalty}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        jw_text(o, numbers[i].name);
        jw_float32(o, numbers[i].value);
    }
    jw_put(o, ",\"top_k\":%u,\"seed\":%ld,\"seed_sha256\":", s->top_k, (long)g->receipt->seed);
    /* Greedy draws, for example, don't tell whether it is damaged. */
    uint8_t digest[32];
    crypto_hash_sha256(digest, (const unsigned char *)&g->receipt->seed, sizeof g->receipt->seed);
    receipt_hex(o, digest);
    jw_text(o, "}");
}

/* What is known before the run. */
static void head_write(struct json_writer *o, const struct generation *g)
{
    const struct gen_receipt *x = g->receipt;
    const struct model_info *m = g->ctx->model->info;
    jw_text(o, "\"weights\":{\"kvasir.checkpoint.v1\":");
    receipt_hex(o, x->weights);
    if (g->r->lora) {
        jw_text(o, "},\"adapter\":{\"kvasir.adapter.v1\":");
        receipt_hex(o, g->r->lora->digest);
    }
    jw_put(o, "},\"arithmetic\":{\"kernels\":%s,\"revision\":%u,\"dtype\":%s,\"weights\":%s,\"kv_dtype\":%s",
           m->kernels, m->revision, m->dtype, m->weights, m->kv_dtype);
    if (m->float_vision) jw_text(o, ",\"vision\":\"float\"");
    if (m->gemm) jw_put(o, ",\"gemm\":%s", m->gemm);
    jw_put(o, "},\"request\":{\"api\":%s,\"sha256\":", x->api);
    receipt_hex(o, x->request);
    if (x->full) {
        jw_text(o, ",\"body\":");
        jw_bytes(o, x->body.data, x->body.len);
        jw_text(o, ",\"body_sha256\":");
        receipt_hex(o, x->body_hash);
    }
    jw_text(o, "},\"prompts\":[");
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        if (i) jw_text(o, ",");
        prompt_write(o, x, &g->prompts[i].prompt);
    }
    jw_text(o, "],\"sampling\":");
    sampling_write(o, g);
}

struct receipt_choice gen_receipt_choice(const struct choice *c)
{
    crypto_hash_sha256_state h = c->logprobs_hash;
    struct receipt_choice out = {.ids = c->ids,
                                 .id_count = c->id_count,
                                 .finish = c->finish == FIN_LENGTH ? "length"
                                           : c->finish == FIN_STOP ? "stop"
                                                                   : "none"};
    crypto_hash_sha256_final(&h, out.logprobs);
    crypto_hash_sha256(out.text, (const unsigned char *)(c->text.data ? c->text.data : ""), c->text.len);
    return out;
}

static void statement_write(struct json_writer *o, const struct generation *g, bool whole)
{
    jw_text(o, "{\"_type\":\"" RECEIPT_STATEMENT "\",\"subject\":[");
    for (uint32_t i = 0; whole && i < g->choice_count; i++) {
        struct receipt_choice c = gen_receipt_choice(&g->choices[i]);
        char name[24];
        snprintf(name, sizeof name, "choice-%u", i);
        if (i) jw_text(o, ",");
        jw_put(o, "{\"name\":%s,\"digest\":{\"sha256\":", name);
        receipt_hex(o, c.text);
        jw_text(o, "}}");
    }
    jw_text(o, "],\"predicateType\":\"" RECEIPT_PREDICATE "\",\"predicate\":{");
    head_write(o, g);
    if (whole) jw_text(o, ",\"choices\":[");
    for (uint32_t i = 0; whole && i < g->choice_count; i++) {
        struct receipt_choice c = gen_receipt_choice(&g->choices[i]);
        if (i) jw_text(o, ",");
        receipt_choice_write(o, &c);
    }
    jw_text(o, whole ? "]}}" : "}}");
}

void gen_receipt_write(struct json_writer *o, const struct generation *g)
{
    struct buf text;
    struct json_writer statement = {.buf = &text};
    if (!g->receipt || g->receipt->claim) return;
    buf_init(&text, SIZE_MAX / 4);
    statement_write(&statement, g, true);
    jw_text(o, ",\"receipt\":");
    if (statement.st) o->st = statement.st;
    else receipt_sign(o, g->ctx->receipt_key, text.data, text.len);
    buf_fini(&text);
}

/* ---- checking one ---- */

static void verdict_write(struct json_writer *o, const char *verdict, const char *reason)
{
    jw_put(o, "{\"object\":\"receipt.verdict\",\"verdict\":%s", verdict);
    if (reason) jw_put(o, ",\"reason\":%s", reason);
}

void gen_verdict(struct generation *g, const char *verdict, const char *reason)
{
    struct json_writer o = {.buf = g->out};
    verdict_write(&o, verdict, reason);
    jw_text(&o, "}");
    if (o.st) (void)gen_nomem(g);
}

bool gen_verify_failed(struct generation *g)
{
    int http = g->e->http;
    char why[sizeof g->e->message + 40];
    if (!g->receipt || !g->receipt->claim || http < 400 || http >= 500 || http == 429) return false;
    snprintf(why, sizeof why, "the request can't be run here: %s", g->e->message);
    *g->e = (struct api_error){0};
    g->out->len = 0;
    gen_verdict(g, "unverifiable", why);
    return !g->e->http;
}

/* The first part that differs -> the reason; NULL: none. */
static const char *difference(struct generation *g, bool early, bool *unverifiable, char *why, size_t cap)
{
    static const char *const about[][2] = {
        {"weights", "other weights are served here"},
        {"adapter", "another adapter, or none, is served here under that name"},
        {"request", "the request is not that of the receipt"},
        {"prompts", "another prompt is made of the request here"},
    };
    const json_t *claim = json_object_get(g->receipt->claim, "predicate"), *predicate;
    struct buf text;
    struct json_writer o = {.buf = &text};
    json_t *made = NULL, *v;
    const char *part = NULL, *name;
    buf_init(&text, SIZE_MAX / 4);
    statement_write(&o, g, !early);
    if (o.st || json_from_text(text.data, text.len, &made)) (void)gen_nomem(g);
    else part = receipt_differs(g->receipt->claim, made, early, unverifiable);
    predicate = json_object_get(made, "predicate");
    if (part) snprintf(why, cap, "%s: not what the receipt says", part);
    for (size_t i = 0; part && i < sizeof about / sizeof *about; i++)
        if (strcmp(about[i][0], part) == 0) snprintf(why, cap, "%s: %s", part, about[i][1]);
    json_t *ours = part && strcmp(part, "arithmetic") == 0 ? json_object_get(predicate, part) : NULL;
    json_object_foreach(ours, name, v) {
        const json_t *theirs = json_object_get(json_object_get(claim, part), name);
        if (theirs && json_equal(theirs, v)) continue;
        char *a = theirs ? json_dumps(theirs, JSON_ENCODE_ANY) : NULL, *b = json_dumps(v, JSON_ENCODE_ANY);
        snprintf(why, cap, "arithmetic: %s is %s in the receipt, %s here", name, a ? a : "absent",
                 b ? b : "?");
        free(a);
        free(b);
        break;
    }
    size_t n = json_array_size(json_object_get(predicate, "prompts"));
    for (size_t i = 0; part && strcmp(part, "prompts") == 0 && i < n; i++) {
        const json_t *a = json_array_get(json_object_get(claim, part), i),
                     *b = json_array_get(json_object_get(predicate, part), i);
        const json_t *x = json_object_get(a, "images"), *y = json_object_get(b, "images");
        for (size_t k = 0; k < json_array_size(y); k++)
            if (!json_equal(json_array_get(x, k), json_array_get(y, k)))
                snprintf(why, cap, "prompts: image %zu is another than the receipt's", k);
    }
    json_decref(made);
    buf_fini(&text);
    return part ? why : NULL;
}

/* The claimed tokens -> g->receipt->given. False: these can't be an output. */
static bool given_read(struct generation *g, char *why, size_t cap)
{
    struct gen_receipt *x = g->receipt;
    const json_t *choices = json_object_get(json_object_get(x->claim, "predicate"), "choices");
    uint32_t count = g->prompt_count * g->q.n;
    snprintf(why, cap, "choices: the request has %u", count);
    if (json_array_size(choices) != count) return false;
    x->given = calloc(count, sizeof *x->given);
    if (!x->given) return gen_nomem(g), true;
    for (x->given_choices = 0; x->given_choices < count; x->given_choices++) {
        uint32_t i = x->given_choices;
        const json_t *ids = json_object_get(json_array_get(choices, i), "token_ids");
        size_t n = json_array_size(ids);
        snprintf(why, cap, "choices[%u]: token_ids are no ids of this model", i);
        if (!json_is_array(ids) || n > UINT32_MAX) return false;
        x->given[i] = calloc(n + 1, sizeof **x->given);
        if (!x->given[i]) return gen_nomem(g), true;
        for (size_t k = 0; k < n; k++) {
            const json_t *id = json_array_get(ids, k);
            if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                json_integer_value(id) >= (json_int_t)g->ctx->model->info->vocab_size)
                return x->given_choices++, false;
            x->given[i][k] = (uint32_t)json_integer_value(id);
        }
        bool bounded = g->q.has_max_tokens && !g->q.max_tokens_fit;
        snprintf(why, cap,
                 bounded ? "choices[%u]: %zu tokens, but at most %lu can be" : "choices[%u]: no tokens", i, n,
                 (unsigned long)g->q.max_tokens);
        if ((bounded && n > g->q.max_tokens) || (!n && !(bounded && !g->q.max_tokens)))
            return x->given_choices++, false;
    }
    return true;
}

void gen_verify_before(struct generation *g)
{
    bool unverifiable = false;
    char why[320];
    if (!g->receipt || !g->receipt->claim || g->e->http) return;
    const json_t *sampling = json_object_get(json_object_get(g->receipt->claim, "predicate"), "sampling");
    g->receipt->seed = (uint64_t)json_integer_value(json_object_get(sampling, "seed"));
    if (g->q.has_seed) g->receipt->seed = (uint64_t)g->q.seed;
    if (difference(g, true, &unverifiable, why, sizeof why))
        gen_verdict(g, unverifiable ? "unverifiable" : "mismatch", why);
    else if (!g->e->http && !given_read(g, why, sizeof why)) gen_verdict(g, "mismatch", why);
    if (g->out->len) json_object_clear(g->receipt->claim); /* here, because it may be large */
}

const uint32_t *gen_verify_given(const struct choice *c, uint32_t *count, uint32_t *max)
{
    const struct generation *g = c->gen;
    if (!g->receipt || !g->receipt->claim) return NULL;
    const json_t *claim =
        json_array_get(json_object_get(json_object_get(g->receipt->claim, "predicate"), "choices"), c->index);
    *count = (uint32_t)json_array_size(json_object_get(claim, "token_ids"));
    /* Where the context is the limit, it is that of the server that made the receipt. Whoever shortens an
     * output can claim any, so one that isn't reached here is no reason to end. */
    bool fits = !g->q.has_max_tokens || g->q.max_tokens_fit,
         length = json_is(json_object_get(claim, "finish"), "length");
    if (fits && length && *count != *max) g->receipt->cut = true;
    if (fits && (*count > *max || length)) *max = *count;
    return g->receipt->given[c->index];
}

/* Floats between the two, counted in order. */
static unsigned long ulps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    int64_t i = x < 0 ? (int64_t)INT32_MIN - x : x, k = y < 0 ? (int64_t)INT32_MIN - y : y;
    return (unsigned long)(i > k ? i - k : k - i);
}

void gen_verify_write(struct json_writer *o, struct generation *g)
{
    bool unverifiable = false;
    char why[320];
    for (uint32_t i = 0; i < g->choice_count; i++) {
        const struct choice *c = &g->choices[i];
        if (!c->differs) continue;
        snprintf(why, sizeof why, "choices[%u]: token %u is %u in the receipt, %u when recomputed", i,
                 c->id_count, c->given.id, c->drew.id);
        verdict_write(o, "mismatch", why);
        jw_put(o, ",\"choice\":%u,\"token\":%u,\"given\":{\"id\":%u,\"logprob\":", i, c->id_count,
               c->given.id);
        jw_float32(o, c->given.logprob);
        jw_put(o, "},\"recomputed\":{\"id\":%u,\"logprob\":", c->drew.id);
        jw_float32(o, c->drew.logprob);
        jw_put(o, "},\"ulp\":%lu}", ulps(c->given.logprob, c->drew.logprob));
        return;
    }
    const char *differs = difference(g, false, &unverifiable, why, sizeof why);
    if (g->e->http) o->st = ST_NOMEM;
    if (!differs && g->receipt->cut) {
        unverifiable = true;
        differs = "choices: the request sets no limit, and the output ends at another one than this server's "
                  "(--max-context, --default-max-tokens)";
    }
    json_object_clear(g->receipt->claim);
    verdict_write(o, !differs ? "match" : unverifiable ? "unverifiable" : "mismatch", differs);
    jw_text(o, "}");
}

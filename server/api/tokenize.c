/* POST /tokenize, /detokenize and llama.cpp's /apply-template, and the counts of a prompt's tokens of the
 * three APIs, on a worker. */
#include "server/json/fields.h"
#include "server/dialect/dialect.h"
#include "server/generate/generate.h"
#include "server/input/fields.h"
#include "server/input/remote.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* Positions and keys of the prompt's images, as in cache events. */
static void images_write(struct json_writer *o, const struct prompt *p)
{
    char key[65];
    jw_text(o, ",\"images\":[");
    for (uint32_t i = 0, n = 0; i < p->span_count; i++) {
        const struct prompt_span *s = &p->spans[i];
        if (!s->image) continue;
        for (int k = 0; k < 32; k++) snprintf(key + 2 * k, 3, "%02x", span_identity(s)[k]);
        if (n++) jw_text(o, ",");
        jw_put(o, "{\"offset\":%u,\"length\":%u,\"hash\":%s}", s->begin, s->end - s->begin, key);
    }
    jw_text(o, "]");
}

/* p: NULL for plain text. */
static void tokens_write(struct request *r, json_t *root, const uint32_t *ids, size_t count,
                         const struct prompt *p)
{
    const struct model *m = r->srv->ctx.model;
    bool strs = false;
    if (field_bool(&r->response.error, root, "return_token_strs", &strs)) return;
    struct json_writer o = {.buf = &r->response.out};
    jw_put(&o, "{\"count\":%lu,\"max_model_len\":%u,\"tokens\":", count, m->caps.context_max);
    jw_ids(&o, ids, count);
    if (p) images_write(&o, p);
    jw_text(&o, ",\"token_strs\":");
    if (strs) {
        for (size_t i = 0; i < count; i++) {
            size_t len;
            const char *text = tok_bytes(m->tok, ids[i], &len);
            jw_text(&o, i ? "," : "[");
            jw_string(&o, text, len);
        }
        jw_text(&o, count ? "]" : "[]");
    } else {
        jw_text(&o, "null");
    }
    gen_cache_info(&o, r->gen);
    jw_text(&o, "}");
    if (o.st) (void)api_nomem(&r->response.error);
}

static void tokenize_text(struct request *r, json_t *root, json_t *prompt)
{
    struct generation *g = r->gen;
    g->q.add_special_tokens = true;
    if (gen_fields(g, root, API_TOKENIZE, API_TOKENIZE)) return;
    if (!json_is_string(prompt)) {
        (void)api_fail(&r->response.error, 400, "invalid_type", "prompt", "prompt must be a string.");
        return;
    }
    struct tok_run run = {
        .text = json_string_value(prompt), .len = json_string_length(prompt), .control = TOK_CONTROL_ALL};
    struct tok_ids ids = {0};
    struct err err = {0};
    enum status st = tok_encode(r->srv->ctx.model->tok, &run, 1, g->q.add_special_tokens,
                                r->srv->ctx.opt->max_body_bytes, &ids, &err);
    if (st) {
        (void)api_fail_status(&r->response.error, st, "prompt", &err);
        return;
    }
    tokens_write(r, root, ids.ids, ids.count, NULL);
    tok_ids_free(&ids);
}

static void tokenize(struct request *r)
{
    struct generation *g = r->gen;
    if (!g->prep.fetched && (request_body_parse(r, &g->prep.root) || request_model_check(r, g->prep.root)))
        return;
    json_t *prompt = field(g->prep.root, "prompt");
    if (!prompt) prompt = field(g->prep.root, "content");
    if (field(g->prep.root, "messages")) {
        if (!g->prep.fetched && (g->dialect->read(g, g->prep.root) || g->prep.remote)) return;
        if (!tokenize_chat(g)) {
            const struct prompt *p = &g->prompts[0].prompt;
            tokens_write(r, g->prep.root, p->tokens, p->token_count, p);
        }
    } else if (prompt) {
        tokenize_text(r, g->prep.root, prompt);
    } else {
        (void)api_fail(&r->response.error, 400, "missing_required_parameter", "prompt",
                       "prompt or messages is missing.");
    }
}

static void detokenize(struct request *r)
{
    struct generation *g = r->gen;
    if (request_body_parse(r, &g->prep.root) || request_model_check(r, g->prep.root)) return;
    const struct tokenizer *tok = r->srv->ctx.model->tok;
    json_t *list = field(g->prep.root, "tokens"), *v;
    size_t i;
    if (!list) {
        (void)api_fail(&r->response.error, 400, "missing_required_parameter", "tokens", "tokens is missing.");
        return;
    }
    if (!json_is_array(list)) {
        (void)api_fail(&r->response.error, 400, "invalid_type", "tokens",
                       "tokens must be an array of integers.");
        return;
    }
    struct detok d;
    struct buf text;
    buf_init(&text, 256u << 20);
    detok_init(&d, tok, false);
    enum status st = ST_OK;
    json_array_foreach(list, i, v) {
        int64_t id;
        if (!json_to_int(v, &id)) {
            st = api_fail(&r->response.error, 400, "invalid_type", "tokens",
                          "tokens must be an array of integers.");
        } else if (id < 0 || id >= (int64_t)tok_vocab_size(tok)) {
            st = api_fail(&r->response.error, 400, "invalid_value", "tokens",
                          "%lld is not a token id of this model.", (long long)id);
        } else {
            st = detok_push(&d, (uint32_t)id, &text);
        }
        if (st) break;
    }
    if (!st) st = detok_flush(&d, &text);
    struct json_writer o = {.buf = &r->response.out, .st = st};
    jw_text(&o, "{\"prompt\":");
    jw_string(&o, text.data ? text.data : "", text.len);
    jw_text(&o, "}");
    if (o.st) (void)api_nomem(&r->response.error);
    buf_fini(&text);
}

static void count_tokens(struct request *r)
{
    struct generation *g = r->gen;
    if (!g->prep.fetched && (request_body_parse(r, &g->prep.root) || request_model_check(r, g->prep.root) ||
                             g->dialect->read(g, g->prep.root)))
        return;
    if ((g->prep.remote && !g->prep.fetched) || tokenize_chat(g)) return;
    struct json_writer o = {.buf = &r->response.out};
    jw_text(&o, g->dialect->counted);
    jw_uint(&o, g->prompts[0].prompt.token_count);
    jw_text(&o, "}");
    if (o.st) (void)api_nomem(&r->response.error);
}

static void apply_template(struct request *r)
{
    struct generation *g = r->gen;
    struct json_writer o = {.buf = &r->response.out};
    if (request_body_parse(r, &g->prep.root) || request_model_check(r, g->prep.root) ||
        g->dialect->read(g, g->prep.root))
        return;
    gen_remote_end(g); /* no image is needed */
    jw_text(&o, "{\"prompt\":");
    if (render_chat(g, &o)) return;
    jw_text(&o, "}");
    if (o.st) (void)api_nomem(&r->response.error);
}

/* The last step of the job, if no files are fetched before it. */
static void read_end(struct generation *g)
{
    if (!g->prep.remote || g->prep.fetched || g->r->response.error.http) gen_read_end(g);
}

/* The gen carries the body's JSON and the prompt; no sequence is created. */
#define START(endpoint, dialect, work)                                                                       \
    static void endpoint##_job(struct request *r)                                                            \
    {                                                                                                        \
        r->gen->prep.counting = true;                                                                        \
        work(r);                                                                                             \
        read_end(r->gen);                                                                                    \
    }                                                                                                        \
    void api_##endpoint##_start(struct request *r)                                                           \
    {                                                                                                        \
        gen_start(r, dialect, endpoint##_job, request_finish);                                               \
    }
START(tokenize, &dialect_chat_tokens, tokenize)
START(apply_template, &dialect_chat_tokens, apply_template)
START(detokenize, &dialect_chat_tokens, detokenize)
START(count_tokens, &dialect_count_tokens, count_tokens)
START(chat_tokens, &dialect_chat_tokens, count_tokens)
START(input_tokens, &dialect_input_tokens, count_tokens)

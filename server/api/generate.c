/* POST /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses: from body to sequences. Parsing
 * and building prompts run on a worker. */
#include "server/dialect/dialect.h"
#include "server/embed/embed.h"
#include "config/base/assert.h"
#include "server/generate/generate.h"
#include "server/http/conn.h"
#include "server/http/request.h"
#include "server/input/request_json.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/json/value.h"
#include "server/receipts/receipts.h"
#include "server/replay/request_log.h"
#include "server/api/api.h"

#include <stdio.h>
#include <string.h>

/* Only the files of undecoded images, and what the dialect keeps, remain of the body. */
static void generate_done(struct request *r)
{
    const struct log_record *record = r->gen->record;
    request_body_drop(r, gen_images_bytes(r->gen) + r->gen->dialect_kept + (record ? record->text.cap : 0));
    (void)gen_verify_failed(r->gen);
    if (r->response.out.len) request_finish(r); /* the dialect's, or a verdict */
    else if (r->gen->compile.source && !r->response.error.http) gen_compile(r, gen_submit);
    else gen_submit(r);
}

#ifdef SLOW_ASSERTS
/* What is written down and read back is the same request: it takes the request's place. Not a text that many
 * prompts share, which would be written for each. */
static void written_back(struct generation *g)
{
    enum { TEXT_MAX = 64 << 20 };
    struct inference_request read = {0};
    struct buf text, again;
    json_t *v = NULL;
    struct json_writer o = {.buf = &text};
    buf_init(&text, TEXT_MAX);
    buf_init(&again, TEXT_MAX);
    request_write(&o, &g->q);
    if (!o.st && json_from_text(text.data, text.len, &v) == ST_OK) { /* else it is nested too deep */
        ASSERT(request_read(v, &read) == ST_OK);
        request_write(&(struct json_writer){.buf = &again}, &read);
        ASSERT(text.len == again.len && memcmp(text.data, again.data, text.len) == 0);
        inference_request_free(&g->q);
        g->q = read;
    }
    json_decref(v);
    buf_fini(&text);
    buf_fini(&again);
}
#else
#define written_back(g) ((void)0)
#endif

/* Of a field that is missing, because its name is misspelt. */
static enum status misspelt(struct generation *g)
{
    const char *slip = json_string_value(json_array_get(g->misspelt, 0));
    size_t n = strlen(g->e->message);
    if (slip && g->e->code && strcmp(g->e->code, "missing_required_parameter") == 0)
        snprintf(g->e->message + n, sizeof g->e->message - n, " %.200s", slip);
    return ST_INVALID;
}

static enum status generate_read(struct request *r)
{
    struct generation *g = r->gen;
    if (request_body_parse(r, &g->prep.root)) return ST_INVALID;
    if (g->dialect->open && (g->dialect->open(g, &g->prep.root) || r->response.out.len)) return ST_INVALID;
    if (request_model_check(r, g->prep.root)) return ST_INVALID;
    if (g->q.kind != GEN_VECTORS && gen_generates(g)) return ST_INVALID;
    gen_record_begin(g, g->prep.root);
    struct buf full;
    buf_init(&full, SIZE_MAX / 4);
    struct json_writer o = {.buf = &full};
    if (json_is(json_object_get(g->prep.root, "receipt"), "full")) jw_value(&o, g->prep.root);
    enum status st = o.st ? gen_nomem(g) : g->dialect->read(g, g->prep.root);
    if (r->response.out.len && g->receipt) { /* the dialect's: of a receipt it is none */
        r->response.out.len = 0;
        gen_verdict(g, "unverifiable", "request: it asks for no output");
    }
    bool goes_on = !st && !r->response.out.len;
    if (goes_on) {
        written_back(g);
        st = gen_receipt_begin(g, &full) ? ST_INVALID : gen_rules(g);
    }
    buf_fini(&full);
    return goes_on ? st : r->response.out.len ? ST_OK : misspelt(g);
}

static void generate_job(struct request *r)
{
    struct generation *g = r->gen;
    enum status st = g->prep.read ? ST_OK : generate_read(r);
    if (!g->prep.read) gen_body_free(g);
    g->prep.read = true;
    g->prep.job_us = 0;
    if (!st && g->prep.remote && !g->prep.fetched) return;
    if (!st && !r->response.out.len)
        st = g->q.kind == GEN_CHAT ? gen_prompt_chat(g) : gen_prompt_completion(g);
    if (g->prep.again) return;
    if (!st && !r->response.out.len) gen_verify_before(g);
    if (!st && !r->response.out.len) (void)gen_constraint_make(g);
    gen_read_end(g);
}

#define START(name)                                                                                          \
    void api_##name##_start(struct request *r)                                                               \
    {                                                                                                        \
        gen_start(r, &dialect_##name, generate_job, generate_done);                                          \
    }
START(chat)
START(messages)
START(completions)
START(compact)
START(ollama_chat)
START(ollama_generate)
START(ollama_embed)
START(ollama_embeddings)
START(embeddings)
START(pooling)
START(classify)
START(rerank)
START(score)
START(generative_scoring)

/* ---- POST /v1/receipts/verify ---- */

/* {receipt, request}: the request of the receipt, whose endpoint it names, runs instead. */
static enum status verify_open(struct generation *g, json_t **root)
{
    static const struct {
        const char *path;
        const struct dialect *dialect;
    } apis[] = {{"/v1/chat/completions", &dialect_chat},     {"/v1/completions", &dialect_completions},
                {"/v1/messages", &dialect_messages},         {"/v1/responses", &dialect_responses},
                {"/v1/responses/compact", &dialect_compact}, {"/api/chat", &dialect_ollama_chat},
                {"/api/generate", &dialect_ollama_generate}};
    const char *why;
    bool forged;
    json_t *receipt = field(*root, "receipt"), *given = field(*root, "request");
    if (!receipt) return api_fail(g->e, 400, "missing_required_parameter", "receipt", "Field required.");
    struct gen_receipt *x = g->receipt = calloc(1, sizeof *x);
    if (!x) return gen_nomem(g);
    x->claim = receipt_open(receipt, NULL, &forged, &why);
    json_t *request = json_object_get(json_object_get(x->claim, "predicate"), "request"),
           *own = json_object_get(request, "body"), *body = given ? given : own;
    size_t i = 0, n = sizeof apis / sizeof *apis;
    while (i < n && !json_is(json_object_get(request, "api"), apis[i].path)) i++;
    if (!x->claim) gen_verdict(g, "unverifiable", why);
    else if (!json_is(json_object_get(x->claim, "_type"), RECEIPT_STATEMENT) ||
             !json_is(json_object_get(x->claim, "predicateType"), RECEIPT_PREDICATE))
        gen_verdict(
            g, "unverifiable",
            "predicateType: no receipt of this version (\"receipt\": true in a request asks for one)");
    else if (i == n) gen_verdict(g, "unverifiable", "request: its api is no endpoint of this server");
    else if (!body)
        gen_verdict(
            g, "unverifiable",
            "request: the receipt has its digest alone; give the body that was sent (--request FILE)");
    else if (!json_is_object(body)) gen_verdict(g, "unverifiable", "request: no JSON object");
    else if (own && given && !json_equal(own, given))
        gen_verdict(g, "unverifiable", "request: the one that was given is not the receipt's");
    if (g->out->len || g->e->http) return ST_OK;
    x->api = apis[i].path;
    x->full = own != NULL;
    struct json_writer o = {.buf = &x->body};
    buf_init(&x->body, SIZE_MAX / 4);
    if (own) jw_value(&o, own);
    if (o.st) return gen_nomem(g);
    g->dialect = apis[i].dialect;
    g->q.kind = g->dialect->kind;
    g->q.source = g->dialect->source;
    gen_defaults(g);
    json_incref(body);
    json_decref(*root);
    *root = body;
    return ST_OK;
}

static const struct dialect dialect_verify = {.source = "receipt", .plain = true, .open = verify_open};
START(verify)

/* GET opens a WebSocket, whose messages come as POST. */
void api_responses_start(struct request *r)
{
    if (r->http.method == M_POST) gen_start(r, &dialect_responses, generate_job, generate_done);
    else if (conn_upgrade(r)) request_fail(r);
    else request_respond(r, 101);
}

/* POST /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses: from body to sequences. Parsing
 * and building prompts run on a worker. */
#include "server/dialect/dialect.h"
#include "server/embed/embed.h"
#include "server/generate/generate.h"
#include "server/http/conn.h"
#include "server/http/request.h"
#include "server/api/api.h"

/* Only the files of undecoded images, and what the dialect keeps, remain of the body. */
static void generate_done(struct request *r)
{
    request_body_drop(r, gen_images_bytes(r->gen) + r->gen->dialect_kept);
    if (r->response.out.len) request_finish(r); /* the dialect's */
    else if (r->gen->compile && !r->response.error.http) gen_compile(r, gen_submit);
    else gen_submit(r);
}

static enum status generate_read(struct request *r)
{
    struct generation *g = r->gen;
    if (request_body_parse(r, &g->root) || request_model_check(r, g->root)) return ST_INVALID;
    if ((!g->dialect || g->dialect->delta) && gen_generates(g)) return ST_INVALID;
    if (g->dialect) return g->dialect->read(g, g->root);
    if (gen_parse(g, g->root)) return ST_INVALID;
    return g->q.kind == GEN_CHAT ? gen_read_chat(g, g->root) : gen_read_completion(g, g->root);
}

static void generate_job(struct request *r)
{
    struct generation *g = r->gen;
    enum status st = g->read ? ST_OK : generate_read(r);
    g->read = true;
    g->job_us = 0;
    if (!st && g->remote && !g->fetched) return;
    if (!st && !r->response.out.len)
        st = g->q.kind == GEN_CHAT ? gen_prompt_chat(g) : gen_prompt_completion(g, g->root);
    if (g->again) return;
    if (!st && !r->response.out.len) (void)gen_constraint_make(g);
    gen_read_end(g);
}

#define START(name, kind, dialect)                                                                           \
    void api_##name##_start(struct request *r)                                                               \
    {                                                                                                        \
        gen_start(r, kind, dialect, generate_job, generate_done);                                            \
    }
START(chat, GEN_CHAT, NULL)
START(messages, GEN_CHAT, &dialect_messages)
START(completions, GEN_COMPLETION, NULL)
START(compact, GEN_CHAT, &dialect_compact)
START(ollama_chat, GEN_CHAT, &dialect_ollama_chat)
START(ollama_generate, GEN_CHAT, &dialect_ollama_generate)
START(ollama_embed, GEN_COMPLETION, &dialect_ollama_embed)
START(ollama_embeddings, GEN_COMPLETION, &dialect_ollama_embeddings)
START(embeddings, GEN_COMPLETION, &dialect_embeddings)
START(pooling, GEN_COMPLETION, &dialect_pooling)
START(classify, GEN_COMPLETION, &dialect_classify)
START(rerank, GEN_COMPLETION, &dialect_rerank)
START(score, GEN_COMPLETION, &dialect_score)

/* GET opens a WebSocket, whose messages come as POST. */
void api_responses_start(struct request *r)
{
    if (r->http.method == M_POST) gen_start(r, GEN_CHAT, &dialect_responses, generate_job, generate_done);
    else if (conn_upgrade(r)) request_fail(r);
    else request_respond(r, 101);
}

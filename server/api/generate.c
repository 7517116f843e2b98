/* POST /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses: from body to sequences. Parsing
 * and building prompts run on a worker. */
#include "server/dialect/dialect.h"
#include "server/generate/generate.h"
#include "server/http/request.h"
#include "server/api/api.h"

/* The text is parsed; what stays of the body are the files of pictures that are not decoded yet, and what the
 * dialect keeps. */
static void body_drop(struct request *r)
{
    r->srv->body_bytes -= r->http.body.len;
    buf_fini(&r->http.body);
    r->http.body_marks = 0;
    r->http.body_kept = gen_images_bytes(r->gen) + r->gen->dialect_kept;
    r->srv->body_bytes += r->http.body_kept;
}

static void generate_done(struct request *r)
{
    body_drop(r);
    if (r->gen->compile && !r->answer.error.http) gen_compile(r, gen_submit);
    else gen_submit(r);
}

static void generate_job(struct request *r)
{
    struct gen *g = r->gen;
    /* Pictures in it may be large, and gen_images has copies of what it needs. */
    if (!request_body_parse(r, &g->root) && !request_model_check(r, g->root) &&
        (!g->dialect || !g->dialect->translate(g, &g->root))) {
        if (!gen_parse(g, g->root) &&
            !(g->kind == GEN_CHAT ? gen_prompt_chat(g, g->root) : gen_prompt_completion(g, g->root)) &&
            (!g->remote || g->fetched))
            (void)gen_constraint_make(g, g->root);
        if (r->answer.error.http && g->dialect) g->dialect->fault(g);
    }
    request_body_trim(r, g->root, !r->answer.error.http);
}

void api_chat_start(struct request *r)
{
    gen_start(r, GEN_CHAT, NULL, generate_job, generate_done);
}

void api_messages_start(struct request *r)
{
    gen_start(r, GEN_CHAT, &dialect_messages, generate_job, generate_done);
}

void api_completions_start(struct request *r)
{
    gen_start(r, GEN_COMPLETION, NULL, generate_job, generate_done);
}

void api_responses_start(struct request *r)
{
    gen_start(r, GEN_CHAT, &dialect_responses, generate_job, generate_done);
}

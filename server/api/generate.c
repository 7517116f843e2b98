/* POST /v1/chat/completions and /v1/completions: from body to sequences. Parsing and building prompts run on
 * a worker. */
#include "server/generate/generate.h"
#include "server/http/request.h"
#include "server/api/api.h"

/* The text is parsed; what stays of the body are the files of pictures that are not decoded yet. */
static void body_drop(struct request *r)
{
    r->srv->body_bytes -= r->http.body.len;
    buf_fini(&r->http.body);
    r->http.body_kept = gen_images_bytes(r->gen);
    r->srv->body_bytes += r->http.body_kept;
}

static void generate_done(struct request *r)
{
    body_drop(r);
    gen_submit(r);
}

static void generate_job(struct request *r)
{
    struct gen *g = r->gen;
    /* Pictures in it may be large, and gen_images has copies of what it needs. */
    if (!request_body_parse(r, &g->root) && !request_model_check(r, g->root) && !gen_parse(g, g->root))
        (void)(g->kind == GEN_CHAT ? gen_prompt_chat(g, g->root) : gen_prompt_completion(g, g->root));
    request_body_trim(r, g->root, !r->answer.error.http);
}

void api_chat_start(struct request *r)
{
    gen_start(r, GEN_CHAT, generate_job, generate_done);
}

void api_completions_start(struct request *r)
{
    gen_start(r, GEN_COMPLETION, generate_job, generate_done);
}

/* POST /v1/chat/completions and /v1/completions: from body to sequences. Parsing and building prompts run on a worker. */
#include "server/gen.h"

#include <string.h>

/* The text is parsed; what stays of the body are the files of pictures that are not decoded yet. */
static void body_drop(struct request *r)
{
    r->srv->body_bytes -= r->body.len;
    buf_fini(&r->body);
    r->body_kept = gen_images_bytes(r->gen);
    r->srv->body_bytes += r->body_kept;
}

static void generate_done(struct request *r)
{
    body_drop(r);
    gen_submit(r);
}

/* What of the body is still needed: stop strings are borrowed from it, and the loop takes the request's id. The rest, which may be large,
 * goes before the request waits its turn. */
static void root_trim(json_t *root)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(root, next, key, value) {
        bool id = strcmp(key, "request_id") == 0 || strcmp(key, "rid") == 0;
        if (strcmp(key, "stop") == 0 || (id && json_is_string(value) && json_string_length(value) <= 128)) continue;
        json_object_del(root, key);
    }
}

static void chat_job(struct request *r)
{
    struct gen *g = r->gen;
    if (request_body_parse(r, &g->root) || request_model_check(r, g->root) || gen_parse(g, g->root)) return;
    if (gen_prompt_chat(g, g->root)) return;
    root_trim(g->root); /* pictures in it may be large, and gen_images has copies of what it needs */
}

static void completion_job(struct request *r)
{
    struct gen *g = r->gen;
    if (request_body_parse(r, &g->root) || request_model_check(r, g->root) || gen_parse(g, g->root)) return;
    if (gen_prompt_completion(g, g->root)) return;
    root_trim(g->root);
}

void api_chat_start(struct request *r)
{
    if (gen_create(r, GEN_CHAT)) {
        request_work(r, chat_job, generate_done);
    } else {
        request_fail(r);
    }
}

void api_completions_start(struct request *r)
{
    if (gen_create(r, GEN_COMPLETION)) {
        request_work(r, completion_job, generate_done);
    } else {
        request_fail(r);
    }
}

/* A request's body as the chat and the completion endpoint read it: JSON, fields, messages, data: URIs with
 * images, the chat template, the tokenizer, up to the prompt. No server runs. */
#include "config/options.h"
#include "server/context/adapters.h"
#include "server/dialect/dialect.h"
#include "server/http/request.h"
#include "server/media/image_hash_cache.h"
#include "tests/lib/tokens.h"

#include <sodium.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct options options;
static struct model model;
static struct server *server;

static bool set_up(void)
{
    static char name[] = "--model", dir[] = "tests/golden/qwen/qwen3_vl_f32";
    char *args[] = {name, dir};
    struct err err = {""};
    struct engine_options eo = {.model_dir = dir, .backend = BACKEND_CPU, .threads = 1};
    eo.kv_bytes = 8u << 20;
    server = calloc(1, sizeof *server);
    bool ok = server && sodium_init() >= 0 && !options_parse(OPTIONS_SERVE, 2, args, &options, &err) &&
              !tok_load(dir, &model.tok, &err) && !template_load(dir, &model.tmpl, &err) &&
              !engine_open(&eo, &model.engine, &err);
    if (!ok) return fprintf(stderr, "%s\n", err.msg), false;
    template_guard(model.tmpl, model.tok);
    model.info = engine_model(model.engine);
    engine_caps(model.engine, &model.caps);
    server->ctx.opt = &options;
    server->ctx.model = &model;
    server->ctx.model_name = server->ctx.model_dir = dir;
    server->ctx.model_names_end = dir + sizeof dir;
    server->ctx.image_hashes = image_hash_cache_create(64);
    return server->ctx.image_hashes && adapters_create(1, NULL, &server->ctx.adapters, &err) == ST_OK;
}

static void ask(const struct dialect *dialect, const uint8_t *data, size_t size)
{
    struct request *r = calloc(1, sizeof *r);
    struct generation *g = calloc(1, sizeof *g);
    if (!r || !g) abort();
    *r = (struct request){.srv = server, .gen = g};
    r->response.share = share_take(&server->shares, 0);
    buf_init(&r->response.out, SIZE_MAX / 4);
    *g = (struct generation){.r = r,
                             .ctx = &r->srv->ctx,
                             .e = &r->response.error,
                             .dialect = dialect,
                             .share = r->response.share,
                             .out = &r->response.out,
                             .caller = caller_of(r),
                             .q = {.kind = dialect->kind, .source = dialect->source}};
    gen_defaults(g);
    buf_init(&r->http.body, SIZE_MAX / 4);
    if (!buf_add(&r->http.body, data, size) && !request_body_parse(r, &g->prep.root) &&
        !request_model_check(r, g->prep.root) && !dialect->read(g, g->prep.root) && !gen_rules(g))
        (void)(dialect->kind == GEN_CHAT ? gen_prompt_chat(g) : gen_prompt_completion(g));
    gen_read_end(g);
    buf_fini(&r->http.body);
    gen_free(g);
    share_release(r->response.share);
    buf_fini(&r->response.out);
    free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!server && !set_up()) abort();
    ask(&dialect_chat, data, size);
    ask(&dialect_completions, data, size);
    return 0;
}

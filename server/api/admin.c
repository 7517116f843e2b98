/* Calls for operators. Dropping caches responds at once on the loop; the engine thread drops them before it
 * handles any later request; blocks held by running requests stay. Adapters are loaded and unloaded as vLLM
 * has it, on a worker. */
#include "server/context/adapters.h"
#include "server/front/front.h"
#include "server/media/image_hash_cache.h"
#include "server/http/request.h"
#include "server/input/input.h"
#include "server/json/fields.h"
#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>

enum { DROP_PREFIXES = 1, DROP_FEATURES = 2, DROP_IMAGE_HASHES = 4 };

/* These calls affect all clients: several API keys need the right `priority`; a server without
 * keys needs a loopback address. */
static bool allowed(struct request *r)
{
    const struct server *s = r->srv;
    enum opt_enable_admin how = s->ctx.opt->enable_admin;
    if (how == ENABLE_ADMIN_ON || (how == ENABLE_ADMIN_AUTO && r->http.admin)) return true;
    (void)api_fail(&r->response.error, 403, "insufficient_permissions", NULL,
                   "This server does not offer admin calls%s (--enable-admin).",
                   s->auth && how == ENABLE_ADMIN_AUTO
                       ? " to this API key, which has no \"priority\" in --api-key-file"
                       : "");
    request_fail(r);
    return false;
}

static const struct {
    const char *label;
    unsigned what;
} drops[] = {{"/reset_prefix_cache", DROP_PREFIXES},
             {"/reset_mm_cache", DROP_FEATURES | DROP_IMAGE_HASHES},
             {"/reset_encoder_cache", DROP_FEATURES},
             {"/flush_cache", DROP_PREFIXES | DROP_FEATURES | DROP_IMAGE_HASHES}};

void api_drop_start(struct request *r)
{
    struct server *s = r->srv;
    const char *running = http_message_argument(&r->http, "reset_running_requests"),
               *text = "{\"success\":true}";
    size_t i = 0;
    if (!allowed(r)) return;
    if (s->front) front_tell(s->front, r->http.path);
    while (i < 3 && strcmp(r->route->label, drops[i].label) != 0) i++;
    if (i == 0 && running && (strcmp(running, "true") == 0 || strcmp(running, "1") == 0)) {
        (void)api_fail(&r->response.error, 400, "unsupported_parameter", "reset_running_requests",
                       "Running requests keep what they use.");
        request_fail(r);
        return;
    }
    if (drops[i].what & DROP_IMAGE_HASHES) image_hash_cache_clear(s->ctx.image_hashes);
    /* Still loading: nothing is cached. */
    if (s->ctx.model && drops[i].what & DROP_FEATURES) sched_reset_features(s->ctx.model->sched);
    if (s->ctx.model && drops[i].what & DROP_PREFIXES) sched_reset_prefix_cache(s->ctx.model->sched);
    if (i == 3) {
        r->response.content_type = "text/plain; charset=utf-8";
        text = "Cache flushed.\n";
    }
    request_respond(r, buf_adds(&r->response.out, text) ? 500 : 200);
}

/* ---- LoRA adapters ---- */

static void lora_load(struct request *r, json_t *root, const char *name)
{
    const struct context *x = &r->srv->ctx;
    const char *given = json_string_value(field(root, "lora_path"));
    bool in_place = false;
    struct err err;
    if (field_bool(&r->response.error, root, "load_inplace", &in_place)) return;
    if (!*name || !given || !*given) {
        (void)api_fail(&r->response.error, 400, "missing_required_parameter", NULL,
                       "Both 'lora_name' and 'lora_path' must be provided.");
        return;
    }
    char *path = adapters_path(x->adapters, given);
    enum status st = path ? adapters_load(x, x->model->engine, name, path, in_place, &err)
                          : err_set(&err, ST_NOT_FOUND,
                                    "No adapter found for %.200s: lora_path is a directory or a file below "
                                    "--lora-dir%s.",
                                    given, x->opt->lora_dir ? "" : "; start the server with that flag");
    if (st) (void)api_fail_status(&r->response.error, st, NULL, &err);
    free(path);
}

static void lora_job(struct request *r)
{
    bool unloads = strstr(r->route->label, "unload");
    json_t *root = NULL;
    if (request_body_parse(r, &root)) return;
    json_t *v = field(root, "lora_name");
    const char *name = json_is_string(v) ? json_string_value(v) : "";
    if (strlen(name) != json_string_length(v)) name = "";
    if (!unloads) lora_load(r, root, name);
    else if (!adapters_unload(r->srv->ctx.adapters, name))
        (void)api_fail(&r->response.error, 404, "not_found", NULL,
                       "The lora adapter '%.127s' cannot be found.", name);
    r->response.content_type = "text/plain; charset=utf-8";
    if (!r->response.error.http && buf_addf(&r->response.out, "Success: LoRA adapter '%s' %s successfully.",
                                            name, unloads ? "removed" : "added"))
        (void)api_nomem(&r->response.error);
    json_decref(root);
}

void api_lora_adapter_start(struct request *r)
{
    if (allowed(r)) request_work(r, lora_job, request_finish);
}

/* ---- several models ---- */

/* One model is always loaded. */
static void load_start(struct request *r, bool load)
{
    if (!load && !allowed(r)) return;
    if (r->srv->front) {
        front_load(r, load);
        return;
    }
    if (!load)
        (void)api_fail(&r->response.error, 400, "unsupported", NULL,
                       "This server has one model, which stays: `kvasir serve A B` loads and unloads.");
    else if (buf_adds(&r->response.out, "{\"success\":true}")) (void)api_nomem(&r->response.error);
    request_finish(r);
}

void api_models_load_start(struct request *r)
{
    load_start(r, true);
}

void api_models_unload_start(struct request *r)
{
    load_start(r, false);
}

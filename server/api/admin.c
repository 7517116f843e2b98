/* Dropping caches. Responds at once on the loop; the engine thread drops them before it handles any later
 * request. Blocks held by running requests stay. */
#include "server/media/image_hash_cache.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <string.h>

enum { DROP_PREFIXES = 1, DROP_FEATURES = 2, DROP_IMAGE_HASHES = 4 };

/* Dropping the cache slows down all clients: several API keys need the right `priority`; a server without
 * keys needs a loopback address. */
static bool allowed(struct request *r)
{
    const struct server *s = r->srv;
    const char *how = s->opt->enable_admin;
    /* A browser on this machine can also reach the server, on behalf of any page. */
    bool page = http_message_header(&r->http, "Origin") || http_message_header(&r->http, "Sec-Fetch-Site");
    bool own = s->auth ? r->http.may_precede || r->http.one_key : s->loopback && !page;
    if (strcmp(how, "on") == 0 || (strcmp(how, "auto") == 0 && own)) return true;
    (void)api_fail(&r->response.error, 403, "insufficient_permissions", NULL,
                   "This server does not offer admin calls%s (--enable-admin).",
                   s->auth && strcmp(how, "auto") == 0
                       ? " to this API key, which has no \"priority\" in --api-key-file"
                       : "");
    request_fail(r);
    return false;
}

static void drop(struct request *r, unsigned what)
{
    struct server *s = r->srv;
    if (what & DROP_IMAGE_HASHES) image_hash_cache_clear(s->image_hashes);
    if (!s->model) return; /* still loading: nothing is cached */
    if (what & DROP_FEATURES) sched_reset_features(s->model->sched);
    if (what & DROP_PREFIXES) sched_reset_prefix_cache(s->model->sched);
}

static void response(struct request *r, const char *text)
{
    request_respond(r, buf_adds(&r->response.out, text) ? 500 : 200);
}

void api_reset_prefix_cache_start(struct request *r)
{
    if (!allowed(r)) return;
    const char *running = http_message_argument(&r->http, "reset_running_requests");
    if (running && (strcmp(running, "true") == 0 || strcmp(running, "1") == 0)) {
        (void)api_fail(&r->response.error, 400, "unsupported_parameter", "reset_running_requests",
                       "Running requests keep what they use.");
        request_fail(r);
        return;
    }
    drop(r, DROP_PREFIXES);
    response(r, "{\"success\":true}");
}

void api_reset_mm_cache_start(struct request *r)
{
    if (!allowed(r)) return;
    drop(r, DROP_FEATURES | DROP_IMAGE_HASHES);
    response(r, "{\"success\":true}");
}

void api_reset_encoder_cache_start(struct request *r)
{
    if (!allowed(r)) return;
    drop(r, DROP_FEATURES);
    response(r, "{\"success\":true}");
}

void api_flush_cache_start(struct request *r)
{
    if (!allowed(r)) return;
    drop(r, DROP_PREFIXES | DROP_FEATURES | DROP_IMAGE_HASHES);
    r->response.content_type = "text/plain; charset=utf-8";
    response(r, "Cache flushed.\n");
}

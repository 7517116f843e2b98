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
    enum opt_enable_admin how = s->ctx.opt->enable_admin;
    /* A browser on this machine can also reach the server, on behalf of any page. */
    bool page = http_message_header(&r->http, "Origin") || http_message_header(&r->http, "Sec-Fetch-Site");
    bool own = s->auth ? r->http.may_precede || r->http.one_key : s->loopback && !page;
    if (how == ENABLE_ADMIN_ON || (how == ENABLE_ADMIN_AUTO && own)) return true;
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

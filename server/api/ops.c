/* Probes, version, load, metrics, the page: served at once on the loop, without a round trip to the engine.
 */
#include "server/json/writer.h"
#include "server/front/front.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/api/api.h"
#include "server/page/page.h"

#include <string.h>

static void respond_text(struct request *r, int status, const char *text)
{
    struct json_writer o = {.buf = &r->response.out};
    jw_text(&o, text);
    request_respond(r, o.st ? 500 : status);
}

static const char *state_name(const struct server *s)
{
    if (server_engine_dead(s) || s->health.exit_code)
        return "failed"; /* load_status belongs to the loader thread until it ends */
    if ((!s->ctx.model && !s->front) || s->health.phase == SRV_LOADING) return "loading";
    if (!server_handing_over(s)) return "stalled";
    return s->health.phase == SRV_READY ? "ready" : "draining";
}

static bool ready(const struct server *s)
{
    return s->health.phase == SRV_READY && server_serving(s) && server_handing_over(s);
}

void api_health_start(struct request *r)
{
    r->response.content_type = "text/plain; charset=utf-8";
    request_respond(r, ready(r->srv) ? 200 : 503);
}

void api_ready_start(struct request *r)
{
    struct json_writer o = {.buf = &r->response.out};
    jw_put(&o, "{\"status\":%s}", state_name(r->srv));
    request_respond(r, ready(r->srv) ? 200 : 503);
}

void api_live_start(struct request *r)
{
    bool dead = server_engine_dead(r->srv);
    respond_text(r, dead ? 500 : 200, dead ? "{\"status\":\"failed\"}" : "{\"status\":\"alive\"}");
}

void api_version_start(struct request *r)
{
    respond_text(r, 200, "{\"version\":\"" KVASIR_VERSION "\"}");
}

void api_load_start(struct request *r)
{
    struct json_writer o = {.buf = &r->response.out};
    jw_put(&o, "{\"server_load\":%u}", r->srv->load);
    request_respond(r, 200);
}

static void respond_page(struct request *r, const char *name)
{
    const struct page_asset *a = page_asset(name);
    if (!a) {
        (void)api_fail(&r->response.error, 404, "unknown_url", NULL, "This build has no /page/%.200s.", name);
        request_fail(r);
        return;
    }
    bool gzip = page_gzip(http_message_header(&r->http, "Accept-Encoding"));
    bool same = page_unchanged(a, http_message_header(&r->http, "If-None-Match"));
    r->response.content_type = page_type(name);
    r->response.etag = gzip ? a->etag_gzip : a->etag;
    r->response.gzip = gzip && !same;
    enum status st = same   ? ST_OK
                     : gzip ? buf_add(&r->response.out, a->data, (size_t)(a->end - a->data))
                            : page_inflate(a, &r->response.out);
    request_respond(r, st ? 500 : same ? 304 : 200);
}

void api_root_start(struct request *r)
{
    if (page_wanted(http_message_header(&r->http, "Accept"))) respond_page(r, "index.html");
    else respond_text(r, 200, "{\"status\":\"ok\"}");
}

void api_page_start(struct request *r)
{
    respond_page(r, r->http.path + strlen("/page/"));
}

void api_metrics_start(struct request *r)
{
    r->response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (r->srv->front && http_message_argument(&r->http, "model")) {
        front_pass(r);
        return;
    }
    if (metrics_text(r->srv, &r->response.out) ||
        (r->srv->front && front_metrics(r->srv->front, &r->response.out)))
        (void)api_fail(&r->response.error, 500, "internal_error", NULL, "The metrics could not be written.");
    request_finish(r);
}

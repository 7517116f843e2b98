/* Which function serves which path, and every check that needs the headers only: origin, key, path, method,
 * state of the server, queue, content type, size, in this order. Framing was checked before (http_parser.c).
 * Event loop's thread. */
#include "server/context/limits.h"
#include "server/front/front.h"
#include "server/http/origin.h"
#include "server/http/request.h"
#include "server/auth.h"
#include "server/routes.h"
#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What most rows need. */
enum {
    OPEN = 0,
    KEYED = ROUTE_AUTH,
    READS = KEYED | ROUTE_READY,   /* the model */
    WORKS = READS | ROUTE_JSON,    /* on a body, with the model */
    COMPUTES = WORKS | ROUTE_QUEUE /* in the engine */
};
#define M_READ                                   (M_GET | M_HEAD)
#define ROUTE(path, label, methods, needs, name) {path, label, methods, needs, api_##name##_start},
static const struct route routes[] = {
#include "server/api/routes.def"
};
/* Of several models: what needs one is passed on, except lists and orders that this process answers. */
static const struct route *passed_on(const struct request *r, const struct route *route)
{
    static struct route copies[sizeof routes / sizeof *routes];
    static void (*const own[])(struct request * r) = {
        api_models_start,      api_model_start,     api_models_load_start, api_models_unload_start,
        api_ollama_tags_start, api_ollama_ps_start, api_drop_start};
    if (!r->srv->front || !(route->needs & ROUTE_AUTH) || route->needs & ROUTE_DATA) return route;
    if (route->start == api_responses_start && r->http.method == M_GET) return route; /* a WebSocket opens */
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (route->start == own[i]) return route;
    struct route *copy = &copies[route - routes];
    *copy = *route;
    copy->start = front_pass;
    return copy;
}

static void preflight_start(struct request *r)
{
    request_respond(r, 204);
}
static const struct route preflight = {.path = "", .start = preflight_start};

static const struct route *route_find(const char *path, size_t len)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        bool bare = strncmp(r->path, "/v1/", 4) == 0 && strncmp(path, "/v1/", 4) != 0;
        const char *at = r->path + (bare ? 3 : 0);
        size_t n = strlen(at);
        if ((r->needs & ROUTE_PREFIX ? len > n : len == n) && memcmp(path, at, n) == 0) return r;
    }
    return NULL;
}

static bool path_under(const char *path, const char *top)
{
    size_t n = strlen(top);
    return strncmp(path, top, n) == 0 && (!path[n] || path[n] == '/');
}

/* Clients of Anthropic's and Ollama's APIs parse only their error format, also for unknown paths and wrong
 * keys. */
static enum error_shape error_shape(const struct request *r)
{
    const char *path = strncmp(r->http.path, "/v1/", 4) == 0 ? r->http.path + 3 : r->http.path;
    bool ours = path_under(path, "/messages") ||
                (path_under(path, "/models") && http_message_header(&r->http, "anthropic-version"));
    return ours ? ERROR_ANTHROPIC : path_under(r->http.path, "/api") ? ERROR_OLLAMA : ERROR_OPENAI;
}

static bool ready_ok(struct request *r)
{
    struct server *s = r->srv;
    if (server_engine_dead(s)) {
        (void)api_fail_status(&r->response.error, ST_DEVICE, NULL, NULL);
    } else if (s->health.phase == SRV_LOADING || (!s->ctx.model && !s->front)) {
        (void)api_fail(&r->response.error, 503, "model_loading", NULL, "The model is still loading.");
    } else if (s->health.phase >= SRV_DRAINING) {
        r->http.close_after = true;
        (void)api_fail_status(&r->response.error, ST_STOPPING, NULL, NULL);
    }
    return !r->response.error.http;
}

static bool queue_ok(struct request *r)
{
    struct server *s = r->srv;
    struct sched_stats st;
    if (s->front || server_queue_admits(s, r->response.share, r->http.inside)) return true;
    share_refused(r->response.share, SHARE_QUEUE);
    sched_stats(s->ctx.model->sched, &st);
    (void)api_fail_status(&r->response.error, ST_AGAIN, NULL, NULL);
    /* An estimate of the wait: queued sequences take as long as finished ones. */
    uint64_t done = st.ended[END_STOP_EOS] + st.ended[END_STOP_TOKEN] + st.ended[END_LENGTH];
    uint64_t wait_us = done ? st.step_us_total / done * st.waiting / (st.running ? st.running : 1) : 1000000u;
    uint64_t seconds = wait_us / 1000000u + 1;
    r->response.retry_after = seconds > 30 ? 30 : (unsigned)seconds;
    return false;
}

static bool type_ok(struct request *r)
{
    const char *coding = http_message_header(&r->http, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0) {
        (void)api_fail(&r->response.error, 415, "unsupported_media_type", NULL,
                       "Compressed request bodies are not supported.");
        return false;
    }
    const char *type = http_message_header(&r->http, "Content-Type");
    bool ok = r->response.shape == ERROR_OLLAMA; /* whose examples for curl name none */
    if (type && !ok) {
        size_t n = strcspn(type, "; \t");
        const char *charset = strcasestr(type, "charset=");
        ok = (n == 16 && strncasecmp(type, "application/json", 16) == 0) ||
             (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
        if (charset) {
            charset += 8 + (charset[8] == '"');
            ok = ok && (strncasecmp(charset, "utf-8", 5) == 0 || strncasecmp(charset, "utf8", 4) == 0);
        }
    }
    if (!ok)
        (void)api_fail(&r->response.error, 415, "unsupported_media_type", NULL,
                       "Content-Type must be application/json.");
    return ok;
}

static bool size_ok(struct request *r)
{
    const char *length = http_message_header(&r->http, "Content-Length");
    uint64_t most = r->route->needs & ROUTE_UPLOAD ? LIMIT_UPLOAD_BYTES : r->srv->ctx.opt->max_body_bytes;
    if (length && (strlen(length) > 19 || strtoull(length, NULL, 10) > most)) {
        r->http.close_after = true;
        (void)api_fail(&r->response.error, 413, "request_too_large", NULL,
                       "The request body is larger than %llu bytes.", (unsigned long long)most);
        return false;
    }
    return true;
}

static const char *allow_text(unsigned methods)
{
    switch (methods) {
    case M_POST: return "POST, OPTIONS";
    case M_GET | M_POST: return "GET, POST, OPTIONS";
    case M_GET | M_DELETE: return "GET, DELETE, OPTIONS";
    case M_GET | M_HEAD: return "GET, HEAD, OPTIONS";
    case M_GET | M_POST | M_DELETE: return "GET, POST, DELETE, OPTIONS";
    default: return "GET, HEAD, POST, OPTIONS";
    }
}

static bool options_admit(struct request *r)
{
    const char *wanted = http_message_header(&r->http, "Access-Control-Request-Method");
    r->route = &preflight;
    r->response.status = 204;
    if (wanted) {
        const char *headers = http_message_header(&r->http, "Access-Control-Request-Headers");
        r->http.cors = strdup(headers && strlen(headers) < 4096 ? headers : "");
        return true;
    }
    /* HAProxy's bare health check. */
    if ((strcmp(r->http.path, "/") == 0 || strcmp(r->http.path, "*") == 0) &&
        r->srv->health.phase != SRV_READY) {
        (void)api_fail(&r->response.error, 503,
                       r->srv->health.phase == SRV_LOADING ? "model_loading" : "server_draining", NULL,
                       "The server is not ready.");
        return false;
    }
    const struct route *route = route_find(r->http.path, strlen(r->http.path));
    r->response.allow = allow_text(route ? route->methods : M_GET | M_HEAD | M_POST);
    return true;
}

/* A proxy may pass the prefix of --root-path on, or not. */
static void root_strip(struct request *r)
{
    const char *root = r->srv->ctx.opt->root_path ? r->srv->ctx.opt->root_path : "";
    root += strspn(root, "/");
    size_t n = strlen(root);
    while (n && root[n - 1] == '/') n--;
    char *path = r->http.path, *rest = path + n + 1;
    if (!n || path[0] != '/' || strncmp(path + 1, root, n) != 0 || (*rest && *rest != '/')) return;
    memmove(path, rest, strlen(rest) + 1);
    if (!*path) memcpy(path, "/", 2); /* the prefix had at least two bytes */
}

bool routes_admit(struct request *r)
{
    root_strip(r);
    r->response.shape = error_shape(r);
    r->stream.lines = r->response.shape == ERROR_OLLAMA;
    if (!r->http.inside && !origin_admit(r)) return false;
    if (r->http.method == M_OPTIONS) return options_admit(r);
    const struct route *route = route_find(r->http.path, strlen(r->http.path));
    /* With a wrong key, clients can't learn which paths exist. */
    if ((!route || route->needs & ROUTE_AUTH) && !auth_admit(r)) {
        (void)api_fail(&r->response.error, 401, "invalid_api_key", NULL,
                       "Incorrect or missing API key: send `Authorization: Bearer KEY`.");
        return false;
    }
    if (!route) {
        const char *name = method_name(r->http.method);
        (void)api_fail(
            &r->response.error, 404, "unknown_url", NULL, "Invalid URL (%s %.200s)%s", name, r->http.path,
            r->response.shape == ERROR_OLLAMA ? ": this server has the one model that it was started with"
                                              : ": GET /openapi.json lists the endpoints");
        return false;
    }
    r->route = route = passed_on(r, route);
    if (!(route->methods & r->http.method)) {
        request_wrong_method(r, allow_text(route->methods));
        return false;
    }
    if (route->needs & ROUTE_DATA && !r->srv->jobs) {
        (void)api_fail(&r->response.error, 501, "not_enabled", NULL,
                       "This server keeps no files and runs no batches: start it with --data-dir DIR.");
        return false;
    }
    if (route->needs & ROUTE_READY && !ready_ok(r)) return false;
    if (route->needs & ROUTE_QUEUE && !queue_ok(r)) return false;
    if (route->needs & ROUTE_JSON && r->http.method == M_POST && !type_ok(r)) return false;
    return size_ok(r);
}

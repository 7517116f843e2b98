/* Which function serves which path, and every check that needs the headers only: origin, key, path, method,
 * state of the server, queue, content type, size, in this order. Framing was checked before (http_parser.c).
 * Event loop's thread. */
#include "server/context/limits.h"
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
#define SAME(path) path, path
#define M_READ     (M_GET | M_HEAD)

/* Those under /v1 are also there without it. */
static const struct route routes[] = {
    {SAME("/v1/chat/completions"), M_POST, COMPUTES, api_chat_start},
    {SAME("/v1/chat/completions/input_tokens"), M_POST, WORKS, api_chat_tokens_start},
    {SAME("/v1/completions"), M_POST, COMPUTES, api_completions_start},
    {SAME("/v1/messages"), M_POST, COMPUTES, api_messages_start},
    {SAME("/v1/messages/count_tokens"), M_POST, WORKS, api_count_tokens_start},
    {SAME("/v1/responses"), M_GET | M_POST, COMPUTES, api_responses_start},
    {SAME("/v1/responses/compact"), M_POST, COMPUTES, api_compact_start},
    {SAME("/v1/responses/input_tokens"), M_POST, WORKS, api_input_tokens_start},
    {"/v1/responses/", "/v1/responses/{id}", M_GET | M_POST | M_DELETE, KEYED | ROUTE_PREFIX,
     api_response_start},
    {SAME("/v1/embeddings"), M_POST, COMPUTES, api_embeddings_start},
    {SAME("/pooling"), M_POST, COMPUTES, api_pooling_start},
    {"/v1/classify", "/classify", M_POST, COMPUTES, api_classify_start},
    {SAME("/v1/rerank"), M_POST, COMPUTES, api_rerank_start},
    {"/v2/rerank", "/v1/rerank", M_POST, COMPUTES, api_rerank_start},
    {SAME("/v1/score"), M_POST, COMPUTES, api_score_start},
    {SAME("/v1/models"), M_READ, KEYED, api_models_start},
    {"/v1/models/", "/v1/models/{id}", M_READ, KEYED | ROUTE_PREFIX, api_model_start},
    {"/v1/tokenize", "/tokenize", M_POST, WORKS, api_tokenize_start},
    {"/v1/detokenize", "/detokenize", M_POST, WORKS, api_detokenize_start},
    {"/v1/tokenizer_info", "/tokenizer_info", M_READ, READS, api_tokenizer_info_start},
    {SAME("/apply-template"), M_POST, WORKS, api_apply_template_start},
    {SAME("/props"), M_READ, READS, api_props_start},
    {SAME("/api/chat"), M_POST, COMPUTES, api_ollama_chat_start},
    {SAME("/api/generate"), M_POST, COMPUTES, api_ollama_generate_start},
    {SAME("/api/embed"), M_POST, COMPUTES, api_ollama_embed_start},
    {SAME("/api/embeddings"), M_POST, COMPUTES, api_ollama_embeddings_start},
    {SAME("/api/show"), M_POST, WORKS, api_ollama_show_start},
    {SAME("/api/tags"), M_READ, READS, api_ollama_tags_start},
    {SAME("/api/ps"), M_READ, READS, api_ollama_ps_start},
    {"/api/version", NULL, M_READ, OPEN, api_ollama_version_start},
    {"/get_model_info", "/model_info", M_READ, KEYED, api_server_info_start},
    {SAME("/model_info"), M_READ, KEYED, api_server_info_start},
    {"/get_server_info", "/server_info", M_READ, KEYED, api_server_info_start},
    {SAME("/server_info"), M_READ, KEYED, api_server_info_start},
    {"/health", NULL, M_READ, OPEN, api_health_start},
    {"/ping", NULL, M_READ | M_POST, OPEN, api_health_start},
    {"/ready", NULL, M_READ, OPEN, api_ready_start},
    {"/readyz", NULL, M_READ, OPEN, api_ready_start},
    {"/health/ready", NULL, M_READ, OPEN, api_ready_start},
    {"/live", NULL, M_READ, OPEN, api_live_start},
    {"/livez", NULL, M_READ, OPEN, api_live_start},
    {"/health/live", NULL, M_READ, OPEN, api_live_start},
    {"/version", NULL, M_READ, OPEN, api_version_start},
    {"/load", NULL, M_READ, OPEN, api_load_start},
    {"/openapi.json", NULL, M_READ, OPEN, api_openapi_start},
    {"/metrics", NULL, M_READ, OPEN, api_metrics_start},
    {"/cache_tree", NULL, M_READ | M_POST, WORKS, api_cache_tree_start},
    {SAME("/reset_prefix_cache"), M_POST, KEYED, api_drop_start},
    {SAME("/reset_mm_cache"), M_POST, KEYED, api_drop_start},
    {SAME("/reset_encoder_cache"), M_POST, KEYED, api_drop_start},
    {SAME("/flush_cache"), M_GET | M_POST, KEYED, api_drop_start},
    {SAME("/"), M_READ, OPEN, api_root_start},
    {"/page/", NULL, M_READ, ROUTE_PREFIX, api_page_start},
};
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
    } else if (s->health.phase == SRV_LOADING || !s->ctx.model) {
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
    if (server_queue_admits(s, r->response.share)) return true;
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
    if (length && (strlen(length) > 19 || strtoull(length, NULL, 10) > r->srv->ctx.opt->max_body_bytes)) {
        r->http.close_after = true;
        (void)api_fail(&r->response.error, 413, "request_too_large", NULL,
                       "The request body is larger than %llu bytes.",
                       (unsigned long long)r->srv->ctx.opt->max_body_bytes);
        return false;
    }
    return true;
}

static const char *allow_text(unsigned methods)
{
    switch (methods) {
    case M_POST: return "POST, OPTIONS";
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
    if (!origin_admit(r)) return false;
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
    r->route = route;
    if (!(route->methods & r->http.method)) {
        request_wrong_method(r, allow_text(route->methods));
        return false;
    }
    if (route->needs & ROUTE_READY && !ready_ok(r)) return false;
    if (route->needs & ROUTE_QUEUE && !queue_ok(r)) return false;
    if (route->needs & ROUTE_JSON && r->http.method == M_POST && !type_ok(r)) return false;
    return size_ok(r);
}

/* Which function serves which path, and every check that needs the headers only: origin, key, path, method,
 * state of the server, queue, content type, size, in this order. Framing was checked before (http_parser.c).
 * Event loop's thread. */
#include "config/base/file.h"
#include "server/context/limits.h"
#include "server/http/origin.h"
#include "server/http/request.h"
#include "server/routes.h"
#include "server/api/api.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Those under /v1 are also there without it. */
static const struct route routes[] = {
    {"/v1/chat/completions", "/v1/chat/completions", M_POST, true, true, true, false, api_chat_start},
    {"/v1/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", M_POST, true, true, true,
     false, api_chat_tokens_start},
    {"/v1/completions", "/v1/completions", M_POST, true, true, true, false, api_completions_start},
    {"/v1/messages", "/v1/messages", M_POST, true, true, true, false, api_messages_start},
    {"/v1/messages/count_tokens", "/v1/messages/count_tokens", M_POST, true, true, true, false,
     api_count_tokens_start},
    {"/v1/responses", "/v1/responses", M_GET | M_POST, true, true, true, false, api_responses_start},
    {"/v1/responses/compact", "/v1/responses/compact", M_POST, true, true, true, false, api_compact_start},
    {"/v1/responses/input_tokens", "/v1/responses/input_tokens", M_POST, true, true, true, false,
     api_input_tokens_start},
    {"/v1/responses/", "/v1/responses/{id}", M_GET | M_POST | M_DELETE, true, false, false, true,
     api_response_start},
    {"/v1/embeddings", "/v1/embeddings", M_POST, true, true, true, false, api_embeddings_start},
    {"/pooling", "/pooling", M_POST, true, true, true, false, api_pooling_start},
    {"/v1/classify", "/classify", M_POST, true, true, true, false, api_classify_start},
    {"/v1/rerank", "/v1/rerank", M_POST, true, true, true, false, api_rerank_start},
    {"/v2/rerank", "/v1/rerank", M_POST, true, true, true, false, api_rerank_start},
    {"/v1/score", "/v1/score", M_POST, true, true, true, false, api_score_start},
    {"/v1/models", "/v1/models", M_GET | M_HEAD, true, false, false, false, api_models_start},
    {"/v1/models/", "/v1/models/{id}", M_GET | M_HEAD, true, false, false, true, api_model_start},
    {"/v1/tokenize", "/tokenize", M_POST, true, true, true, false, api_tokenize_start},
    {"/v1/detokenize", "/detokenize", M_POST, true, true, true, false, api_detokenize_start},
    {"/v1/tokenizer_info", "/tokenizer_info", M_GET | M_HEAD, true, true, false, false,
     api_tokenizer_info_start},
    {"/apply-template", "/apply-template", M_POST, true, true, true, false, api_apply_template_start},
    {"/props", "/props", M_GET | M_HEAD, true, true, false, false, api_props_start},
    {"/api/chat", "/api/chat", M_POST, true, true, true, false, api_ollama_chat_start},
    {"/api/generate", "/api/generate", M_POST, true, true, true, false, api_ollama_generate_start},
    {"/api/embed", "/api/embed", M_POST, true, true, true, false, api_ollama_embed_start},
    {"/api/embeddings", "/api/embeddings", M_POST, true, true, true, false, api_ollama_embeddings_start},
    {"/api/show", "/api/show", M_POST, true, true, true, false, api_ollama_show_start},
    {"/api/tags", "/api/tags", M_GET | M_HEAD, true, true, false, false, api_ollama_tags_start},
    {"/api/ps", "/api/ps", M_GET | M_HEAD, true, true, false, false, api_ollama_ps_start},
    {"/api/version", NULL, M_GET | M_HEAD, false, false, false, false, api_ollama_version_start},
    {"/get_model_info", "/model_info", M_GET | M_HEAD, true, false, false, false, api_server_info_start},
    {"/model_info", "/model_info", M_GET | M_HEAD, true, false, false, false, api_server_info_start},
    {"/get_server_info", "/server_info", M_GET | M_HEAD, true, false, false, false, api_server_info_start},
    {"/server_info", "/server_info", M_GET | M_HEAD, true, false, false, false, api_server_info_start},
    {"/health", NULL, M_GET | M_HEAD, false, false, false, false, api_health_start},
    {"/ping", NULL, M_GET | M_HEAD | M_POST, false, false, false, false, api_health_start},
    {"/ready", NULL, M_GET | M_HEAD, false, false, false, false, api_ready_start},
    {"/readyz", NULL, M_GET | M_HEAD, false, false, false, false, api_ready_start},
    {"/health/ready", NULL, M_GET | M_HEAD, false, false, false, false, api_ready_start},
    {"/live", NULL, M_GET | M_HEAD, false, false, false, false, api_live_start},
    {"/livez", NULL, M_GET | M_HEAD, false, false, false, false, api_live_start},
    {"/health/live", NULL, M_GET | M_HEAD, false, false, false, false, api_live_start},
    {"/version", NULL, M_GET | M_HEAD, false, false, false, false, api_version_start},
    {"/load", NULL, M_GET | M_HEAD, false, false, false, false, api_load_start},
    {"/openapi.json", NULL, M_GET | M_HEAD, false, false, false, false, api_openapi_start},
    {"/metrics", NULL, M_GET | M_HEAD, false, false, false, false, api_metrics_start},
    {"/cache_tree", NULL, M_GET | M_HEAD | M_POST, true, true, true, false, api_cache_tree_start},
    {"/reset_prefix_cache", "/reset_prefix_cache", M_POST, true, false, false, false, api_drop_start},
    {"/reset_mm_cache", "/reset_mm_cache", M_POST, true, false, false, false, api_drop_start},
    {"/reset_encoder_cache", "/reset_encoder_cache", M_POST, true, false, false, false, api_drop_start},
    {"/flush_cache", "/flush_cache", M_GET | M_POST, true, false, false, false, api_drop_start},
    {"/", "/", M_GET | M_HEAD, false, false, false, false, api_root_start},
    {"/page/", NULL, M_GET | M_HEAD, false, false, false, true, api_page_start},
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
        if ((r->prefix ? len > n : len == n) && memcmp(path, at, n) == 0) return r;
    }
    return NULL;
}

/* ---- keys ---- */

struct auth_key {
    unsigned char digest[crypto_hash_sha256_BYTES];
    bool may_precede;
};

struct auth {
    size_t count;
    struct auth_key *keys;
};

/* A line "KEY" or "KEY priority", without line end. */
static bool key_line(const char *line, size_t n, struct auth_key *key)
{
    static const char mark[] = "priority";
    size_t end = strcspn(line, " \t"), at = end + strspn(line + end, " \t");
    if (end > n) end = n;
    key->may_precede = end < n;
    crypto_hash_sha256(key->digest, (const unsigned char *)line, (unsigned long long)end);
    return end && (end == n || (n - at == sizeof mark - 1 && memcmp(line + at, mark, sizeof mark - 1) == 0));
}

static enum status key_add(struct auth *a, const char *line, size_t n, const char *from, size_t number,
                           struct err *err)
{
    struct auth_key *grown = realloc(a->keys, (a->count + 1) * sizeof *a->keys);
    if (!grown) return err_nomem(err, from);
    a->keys = grown;
    if (key_line(line, n, &a->keys[a->count++])) return ST_OK;
    return err_set(err, ST_INVALID,
                   "%s, line %zu: after a key there may be a space and the word \"priority\", nothing else",
                   from, number);
}

static enum status keys_read(struct auth *a, const char *file, unsigned pipe_ms, struct err *err)
{
    char *text = NULL, from[300];
    size_t len = 0, number = 0, had = a->count;
    snprintf(from, sizeof from, "--api-key-file %.250s", file);
    enum status st = file_text_piped(file, FILE_FLAG_MAX, pipe_ms, &text, &len, err);
    if (st) return err_prefix(err, ST_INVALID, "--api-key-file");
    for (char *at = text, *line; !st && (line = file_line(&at, text + len));) {
        size_t n = (size_t)(at - line);
        number++;
        while (n && (!line[n - 1] || strchr("\n\r \t", line[n - 1]))) n--;
        if (n && line[0] != '#') st = key_add(a, line, n, from, number, err);
    }
    if (!st && a->count == had) st = err_set(err, ST_INVALID, "%s: holds no key", from);
    sodium_memzero(text, len);
    free(text);
    return st;
}

enum status auth_load(const struct options *o, unsigned pipe_ms, struct auth **out, struct err *err)
{
    *out = NULL;
    if (!o->api_key && !o->api_key_file) return ST_OK;
    struct auth *a = calloc(1, sizeof *a);
    if (!a) return err_nomem(err, "API keys");
    enum status st = o->api_key ? key_add(a, o->api_key, strlen(o->api_key), "--api-key", 1, err) : ST_OK;
    if (!st && o->api_key_file) st = keys_read(a, o->api_key_file, pipe_ms, err);
    if (st) auth_free(a);
    else *out = a;
    return st;
}

void auth_free(struct auth *a)
{
    if (!a) return;
    free(a->keys);
    free(a);
}

static bool key_ok(struct request *r, const struct auth *a, const char *key)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, (const unsigned char *)key, strlen(key));
    size_t found = a->count; /* compares every key, for constant time */
    for (size_t i = 0; i < a->count; i++)
        if (sodium_memcmp(digest, a->keys[i].digest, sizeof digest) == 0) found = i;
    if (found == a->count) return false;
    memcpy(r->http.key, digest, sizeof r->http.key);
    r->http.has_key = true;
    r->http.one_key = a->count == 1;
    r->http.may_precede = a->keys[found].may_precede;
    uint64_t holder;
    memcpy(&holder, digest, sizeof holder);
    if (a->count > 1) request_holder(r, holder);
    return true;
}

static bool authorised(struct request *r)
{
    const struct auth *a = r->srv->auth;
    r->http.may_precede = !a;
    if (!a) return true;
    const char *v = http_message_header(&r->http, "Authorization");
    if (v && strncasecmp(v, "Bearer ", 7) == 0) {
        v += 7;
        while (*v == ' ') v++;
        if (key_ok(r, a, v)) return true;
    }
    static const char *const others[] = {"x-api-key", "api-key"};
    for (size_t i = 0; i < 2; i++) {
        v = http_message_header(&r->http, others[i]);
        if (v && key_ok(r, a, v)) return true;
    }
    return false;
}

/* ---- headers ---- */

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
    if (r->route->start != api_chat_start && r->route->start != api_completions_start &&
        r->route->start != api_messages_start && r->route->start != api_responses_start &&
        r->route->start != api_compact_start && r->route->start != api_ollama_chat_start &&
        r->route->start != api_ollama_generate_start)
        return true;
    struct sched_stats st;
    if (server_queue_admits(s, r->response.share)) return true;
    share_refused(r->response.share, SHARE_QUEUE);
    sched_stats(s->ctx.model->sched, &st);
    (void)api_fail_status(&r->response.error, ST_AGAIN, NULL, NULL);
    /* An estimate of the wait: queued sequences take as long as finished ones.
     */
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
    if ((!route || route->auth) && !authorised(r)) {
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
    if (route->require_ready && (!ready_ok(r) || !queue_ok(r))) return false;
    if (route->json && r->http.method == M_POST && !type_ok(r)) return false;
    return size_ok(r);
}

/* See request.h. */
#include "config/base/assert.h"
#include "config/base/log.h"
#include "server/json/writer.h"
#include "server/http/event_loop.h"
#include "server/context/adapters.h"
#include "server/context/limits.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/http/workers.h"
#include "server/page/page.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

void request_to(struct request *r, enum request_state state)
{
    static const struct state_rule rules[] = {
        [RQ_BODY] = {"RQ_BODY", 1u << RQ_SWALLOW | 1u << RQ_WORKING | 1u << RQ_RUNNING | 1u << RQ_RESPONSE},
        [RQ_SWALLOW] = {"RQ_SWALLOW", 1u << RQ_SWALLOW | 1u << RQ_RESPONSE},
        [RQ_WORKING] = {"RQ_WORKING", 1u << RQ_BODY | 1u << RQ_WORKING | 1u << RQ_RUNNING | 1u << RQ_STREAM |
                                          1u << RQ_RESPONSE},
        [RQ_RUNNING] = {"RQ_RUNNING", 1u << RQ_WORKING | 1u << RQ_STREAM | 1u << RQ_RESPONSE},
        [RQ_RESPONSE] = {"RQ_RESPONSE",
                         1u << RQ_SWALLOW | 1u << RQ_RESPONSE}, /* again, while the first is unread */
        [RQ_STREAM] = {"RQ_STREAM", 0},
    };
    ASSERT_NEXT(rules, r->state, state, "request %s", r->http.id);
    if (state != RQ_WORKING) workers_withdraw(&r->work);
    r->state = state;
}

void response_account(struct response *a, size_t *was, size_t now)
{
    a->bytes += now - *was; /* wraps if the size shrinks */
    share_add(a->share, SHARE_RESPONSES, now);
    share_sub(a->share, SHARE_RESPONSES, *was);
    *was = now;
}

struct request *request_create(struct server *s, struct MHD_Connection *c, const char *method,
                               const char *target, uint64_t holder)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->srv = s;
    buf_init(&r->response.out, LIMIT_RESPONSE_BYTES);
    if (!http_message_open(&r->http, c, method, target, s->ctx.opt->max_body_bytes)) {
        http_message_close(&r->http);
        free(r);
        return NULL;
    }
    r->response.share = share_take(&s->shares, holder);
    r->next = s->requests;
    if (r->next) r->next->prev = r;
    s->requests = r;
    s->request_count++;
    return r;
}

void request_holder(struct request *r, uint64_t holder)
{
    share_release(r->response.share);
    r->response.share = share_take(&r->srv->shares, holder);
}

void request_release(struct request *r)
{
    if (r->http.mhd || r->work.queued || r->work.runs || r->sequences_alive || r->fetches) return;
    struct server *s = r->srv;
    if (r->prev) r->prev->next = r->next;
    else s->requests = r->next;
    if (r->next) r->next->prev = r->prev;
    s->request_count--;
    if (r->poll) s->polls--;
    if (r->gen) r->gen_free(r->gen);
    lora_release(s->ctx.adapters, r->lora);
    if (r->forward) r->forward_gone(r);
    free(r->forward);
    if (r->own) r->own_free(r);
    share_sub(r->response.share, SHARE_BODIES, r->http.body.len + r->http.body_kept);
    share_sub(r->response.share, SHARE_RESPONSES, r->response.bytes);
    share_release(r->response.share);
    buf_fini(&r->response.out);
    http_message_close(&r->http);
    free(r);
}

void request_body_drop(struct request *r, size_t kept)
{
    share_sub(r->response.share, SHARE_BODIES, r->http.body.len + r->http.body_kept);
    buf_fini(&r->http.body);
    r->http.body_marks = 0;
    r->http.body_kept = kept;
    share_add(r->response.share, SHARE_BODIES, kept);
}

static void wake(struct request *r)
{
    if (http_message_wake(&r->http)) server_kick(r->srv);
}

void request_body_more(struct request *r)
{
    request_body_drop(r, 0);
    request_to(r, RQ_BODY);
    wake(r);
}

void request_client_gone(struct request *r)
{
    if (r->cancelled) return;
    r->cancelled = true;
    workers_withdraw(&r->work);
    if (r->gen) r->gen_cancel(r);
    if (r->forward && !r->work.runs) r->forward_gone(r);
    /* A worker reads arguments and headers from the connection's memory, but those of a generation, which may
     * take long: then what follows the job wakes it. */
    if (r->work.runs && !r->gen) return;
    wake(r); /* libmicrohttpd must run to notice and close */
}

void request_wrong_method(struct request *r, const char *allow)
{
    r->response.allow = allow;
    (void)api_fail(&r->response.error, 405, "method_not_supported", NULL,
                   "%s is not supported for this URL: it takes %s.", method_name(r->http.method), allow);
}

void request_respond(struct request *r, int status)
{
    r->response.status = status;
    request_to(r, RQ_RESPONSE);
    response_account(&r->response, &r->response.accounted, r->response.out.cap);
    wake(r);
}

const char *request_rest(const struct request *r)
{
    bool bare = strncmp(r->http.path, "/v1/", 4) != 0; /* as in the table */
    return r->http.path + strlen(r->route->path) - (bare ? 3 : 0);
}

void request_fail(struct request *r)
{
    if (!r->response.error.http)
        api_fail(&r->response.error, 500, "internal_error", NULL, "The server failed to handle the request.");
    buf_fini(&r->response.out);
    r->response.content_type = r->response.etag = NULL;
    r->response.gzip = false;
    error_json(&r->response.error, r->response.shape, &r->response.out);
    metrics_rejected(r->srv->metrics, r->response.error.http);
    if (r->response.error.http >= 500)
        log_warn("req=%s status=%d code=%s %s", r->http.id, r->response.error.http,
                 r->response.error.code ? r->response.error.code : "-", r->response.error.message);
    request_respond(r, r->response.error.http);
}

void request_finish(struct request *r)
{
    if (r->response.error.http) request_fail(r);
    else request_respond(r, 200);
}

void request_stream_open(struct request *r)
{
    r->response.status = 200;
    request_to(r, RQ_STREAM);
    wake(r);
}

void request_stream_pass(struct request *r, int status, uint64_t size)
{
    r->response.status = status;
    r->stream.sized = size != UINT64_MAX;
    r->stream.size = size;
    request_to(r, RQ_STREAM);
    wake(r);
}

void request_stream_more(struct request *r)
{
    response_account(&r->response, &r->response.accounted, r->response.out.cap);
    wake(r);
}

static void refill_run(void *arg)
{
    struct request *r = arg;
    r->refill(r);
}

static void refill_done(void *arg)
{
    struct request *r = arg;
    if (!r->cancelled && r->http.mhd) request_stream_more(r);
    else wake(r);
    request_release(r);
}

/* Its worker is no state: libmicrohttpd asks for none of the stream while there is nothing. */
static void refill(struct request *r)
{
    r->work = (struct work){.share = r->response.share, .run = refill_run, .done = refill_done, .arg = r};
    workers_run(&r->srv->loop->workers, &r->work);
}

struct request *requests_largest(const struct server *s)
{
    struct request *most = NULL;
    size_t held = 0, most_own = 0;
    if (shares_held(&s->shares, SHARE_RESPONSES) <= s->ctx.opt->response_memory) return NULL;
    for (struct request *r = s->requests; r; r = r->next) {
        if (!r->http.mhd || r->cancelled || r->response.error.http) continue; /* already ending */
        if (r->refill) continue;                                              /* it holds one chunk */
        held += r->response.bytes;
        size_t own = share_held(r->response.share, SHARE_RESPONSES);
        if (!r->response.bytes || own < most_own) continue;
        if (most && own == most_own && r->response.bytes <= most->response.bytes) continue;
        most = r;
        most_own = own;
    }
    return held > s->ctx.opt->response_memory ? most : NULL;
}

void request_wait(struct request *r, void (*poll)(struct request *r))
{
    request_to(r, RQ_RUNNING);
    r->poll = poll;
    r->srv->polls++;
}

void request_wait_end(struct request *r)
{
    r->srv->polls -= r->poll != NULL;
    r->poll = NULL;
}

void requests_poll(struct server *s)
{
    if (!s->polls) return;
    for (struct request *r = s->requests; r; r = r->next)
        if (r->poll && (r->state == RQ_RUNNING || r->state == RQ_STREAM) && r->http.mhd && !r->cancelled)
            r->poll(r);
}

/* ---- worker pool ---- */

static void job_run(void *arg)
{
    struct request *r = arg;
    r->job_run(r);
}

static void job_done(void *arg)
{
    struct request *r = arg;
    if (!r->cancelled && r->http.mhd) r->job_done(r);
    else wake(r);
    request_release(r);
}

/* Measured: a string takes one or two times its bytes more; a value up to 150 bytes per mark. */
static size_t parse_cost(const struct request *r)
{
    size_t cost = 3 * r->http.body.len + 150 * r->http.body_marks;
    return cost < LIMIT_PARSE_FREE ? 0 : cost;
}

void request_work(struct request *r, void (*job)(struct request *r), void (*done)(struct request *r))
{
    r->job_run = job;
    r->job_done = done;
    r->work = (struct work){.share = r->response.share,
                            .run = job_run,
                            .done = job_done,
                            .arg = r,
                            .memory = parse_cost(r),
                            .kept = r->state == RQ_WORKING, /* its body is parsed */
                            .bound = r->compiling,          /* it has reserved memory */
                            .large = r->http.body.len + r->http.body_kept > LIMIT_LARGE_JOB};
    request_to(r, RQ_WORKING);
    workers_run(&r->srv->loop->workers, &r->work);
}

/* ---- responses as libmicrohttpd objects ---- */

static ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max)
{
    (void)pos;
    struct request *r = cls;
    if (r->cancelled) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = stream_take(&r->stream, &r->response.out, to, max);
    if (n) return (ssize_t)n;
    if (r->stream.end)
        return r->stream.cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    if (r->throttled) server_kick(r->srv);
    if (r->refill && r->response.error.http) return MHD_CONTENT_READER_END_WITH_ERROR;
    http_message_sleep(&r->http);
    if (r->refill) refill(r);
    return 0;
}

static bool header(struct MHD_Response *resp, const char *name, const char *value)
{
    return MHD_add_response_header(resp, name, value) == MHD_YES;
}

static void headers_cors(struct request *r, struct MHD_Response *resp)
{
    header(resp, "Vary", r->response.etag ? "Accept, Accept-Encoding, Origin" : "Origin");
    if (!r->http.allow_origin) return;
    header(resp, "Access-Control-Allow-Origin", r->http.allow_origin);
    header(resp, "Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After");
    if (r->http.cors) {
        header(resp, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS, HEAD");
        if (*r->http.cors) header(resp, "Access-Control-Allow-Headers", r->http.cors);
        header(resp, "Access-Control-Max-Age", "600");
    }
}

struct MHD_Response *request_response(struct request *r)
{
    struct MHD_Response *resp;
    if (r->state == RQ_STREAM) {
        resp = MHD_create_response_from_callback(r->stream.sized ? r->stream.size : MHD_SIZE_UNKNOWN, 16384,
                                                 stream_read, r, NULL);
    } else if (r->response.out.len) {
        resp =
            MHD_create_response_from_buffer(r->response.out.len, r->response.out.data, MHD_RESPMEM_MUST_FREE);
        if (resp) r->response.out = (struct buf){.max = r->response.out.max}; /* libmicrohttpd's now */
    } else {
        static char nothing[1];
        resp = MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
    }
    if (!resp) return NULL;
    if (r->state == RQ_STREAM && !r->stream.sized) {
        header(resp, "Content-Type",
               r->response.content_type ? r->response.content_type
               : r->stream.raw          ? "application/octet-stream"
               : r->stream.lines        ? "application/x-ndjson"
                                        : "text/event-stream; charset=utf-8");
        header(resp, "Cache-Control", "no-cache");
        header(resp, "X-Accel-Buffering", "no");
    } else if (r->response.status != 204 && r->response.status != 304 && r->response.status != 101) {
        header(resp, "Content-Type",
               r->response.content_type ? r->response.content_type : "application/json");
    }
    header(resp, "X-Request-Id", r->http.id);
    if (r->response.shape == ERROR_ANTHROPIC) header(resp, "Request-Id", r->http.id);
    header(resp, "Server", "kvasir/" KVASIR_VERSION);
    if (r->response.status == 426) header(resp, "Upgrade", "websocket");
    if (r->response.allow) header(resp, "Allow", r->response.allow);
    if (r->response.etag) {
        header(resp, "ETag", r->response.etag);
        if (r->response.gzip) header(resp, "Content-Encoding", "gzip");
        header(resp, "Content-Security-Policy", PAGE_POLICY);
        header(resp, "X-Content-Type-Options", "nosniff");
        header(resp, "Referrer-Policy", "no-referrer");
        header(resp, "Cache-Control", "no-cache");
    }
    if (r->response.status == 401) header(resp, "WWW-Authenticate", "Bearer");
    if (r->response.status == 415) {
        bool coded = http_message_header(&r->http, "Content-Encoding") != NULL;
        header(resp, coded ? "Accept-Encoding" : "Accept", coded ? "identity" : "application/json");
    }
    if (r->response.error.http == 429 || r->response.error.http == 503 ||
        (r->passed_on && (r->response.status == 429 || r->response.status == 503))) {
        char text[16];
        snprintf(text, sizeof text, "%u", r->response.retry_after ? r->response.retry_after : 1);
        header(resp, "Retry-After", text);
    }
    if (r->http.close_after || r->srv->health.phase >= SRV_LEAVING) header(resp, "Connection", "close");
    headers_cors(r, resp);
    return resp;
}

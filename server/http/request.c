/* One HTTP request's memory, its answer, and its trips to the worker pool. See http/http.h for states and
 * threads. */
#include "config/base/log.h"
#include "server/http/json_out.h"
#include "server/http/limits.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/http/sse.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct request *request_create(struct server *s, struct MHD_Connection *c)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->srv = s;
    r->mhd = c;
    r->arrived_us = now_us();
    r->created = (int64_t)time(NULL);
    buf_init(&r->body, s->opt->max_body_bytes);
    buf_init(&r->out, LIMIT_ANSWER_BYTES);
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Request-Id");
    r->id_from_client = given && request_id_ok(given);
    request_id_make(r->id, given);
    r->next = s->requests;
    if (r->next) r->next->prev = r;
    s->requests = r;
    s->request_count++;
    return r;
}

void request_release(struct request *r)
{
    if (r->mhd || r->working || r->sequences_alive || r->fetches) return;
    struct server *s = r->srv;
    if (r->prev) r->prev->next = r->next;
    else s->requests = r->next;
    if (r->next) r->next->prev = r->prev;
    s->request_count--;
    if (r->gen) r->gen_free(r->gen);
    s->body_bytes -= r->body.len + r->body_kept;
    s->answer_bytes -= r->answer_bytes;
    buf_fini(&r->body);
    buf_fini(&r->out);
    free(r->path);
    free(r->cors);
    free(r);
}

static void wake(struct request *r)
{
    if (!r->suspended || !r->mhd) return;
    r->suspended = false;
    MHD_resume_connection(r->mhd);
    server_kick(r->srv);
}

void request_client_gone(struct request *r)
{
    if (r->cancelled) return;
    r->cancelled = true;
    if (r->gen) r->gen_cancel(r);
    wake(r); /* libmicrohttpd must run to find out and close */
}

void request_answer(struct request *r, int status)
{
    r->status = status;
    r->state = RQ_ANSWER;
    answer_book(r, &r->out_booked, r->out.cap);
    wake(r);
}

void request_fail(struct request *r)
{
    if (!r->error.http)
        api_fail(&r->error, 500, "internal_error", NULL, "The server failed to handle the request.");
    buf_fini(&r->out);
    r->content_type = NULL;
    error_json(&r->error, &r->out);
    metrics_rejected(r->srv->metrics, r->error.http);
    if (r->error.http >= 500)
        log_warn("req=%s status=%d code=%s %s", r->id, r->error.http, r->error.code ? r->error.code : "-",
                 r->error.message);
    request_answer(r, r->error.http);
}

void request_stream_open(struct request *r)
{
    r->status = 200;
    r->state = RQ_STREAM;
    wake(r);
}

void request_stream_more(struct request *r)
{
    answer_book(r, &r->out_booked, r->out.cap);
    wake(r);
}

/* ---- worker pool ---- */

static void job_run(uv_work_t *w)
{
    struct request *r = w->data;
    r->job_run(r);
}

/* Measured: a string takes its bytes once more, or twice; a value up to 150 bytes, for each mark. */
static size_t parse_cost(const struct request *r)
{
    size_t cost = 3 * r->body.len + 150 * r->body_marks;
    return cost < LIMIT_PARSE_FREE ? 0 : cost;
}

static bool parse_fits(const struct server *s, size_t cost)
{
    return !cost || !s->parse_bytes || s->parse_bytes + cost <= LIMIT_PARSE_BYTES;
}

/* Those that gave up or were answered meanwhile have lost their turn. */
static struct request *parse_next(const struct server *s)
{
    struct request *oldest = NULL;
    for (struct request *r = s->requests; r; r = r->next)
        if (r->parse_waits && r->state == RQ_WORKING && !r->cancelled) oldest = r;
    return oldest;
}

static void job_done(uv_work_t *w, int status);

static void job_start(struct request *r)
{
    r->parse_waits = false;
    r->working = true;
    r->srv->parse_bytes += r->parse_cost;
    if (!uv_queue_work(&r->srv->loop, &r->job, job_run, job_done)) return;
    r->working = false;
    r->srv->parse_bytes -= r->parse_cost;
    api_fail(&r->error, 500, "internal_error", NULL, "The server can't start work on the request.");
    request_fail(r);
}

static void job_done(uv_work_t *w, int status)
{
    struct request *r = w->data, *next;
    struct server *s = r->srv;
    (void)status;
    r->working = false;
    s->parse_bytes -= r->parse_cost;
    if (!r->cancelled && r->mhd) r->job_done(r);
    request_release(r);
    while ((next = parse_next(s)) && parse_fits(s, next->parse_cost)) job_start(next);
}

void request_work(struct request *r, void (*job)(struct request *r), void (*done)(struct request *r))
{
    r->job_run = job;
    r->job_done = done;
    r->job.data = r;
    r->state = RQ_WORKING;
    r->parse_cost = parse_cost(r);
    r->parse_waits = r->parse_cost && (!parse_fits(r->srv, r->parse_cost) || parse_next(r->srv));
    if (!r->parse_waits) job_start(r);
}

/* ---- answers as libmicrohttpd objects ---- */

static ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max)
{
    (void)pos;
    struct request *r = cls;
    if (r->cancelled) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t waiting = r->out.len - r->out_at;
    if (!waiting) {
        if (r->out_end) return MHD_CONTENT_READER_END_OF_STREAM;
        MHD_suspend_connection(r->mhd);
        r->suspended = true;
        return 0;
    }
    size_t n = sse_first_event(r->out.data + r->out_at, waiting, max);
    memcpy(to, r->out.data + r->out_at, n);
    r->out_at += n;
    if (r->out_at == r->out.len) r->out_at = r->out.len = 0;
    return (ssize_t)n;
}

static bool header(struct MHD_Response *resp, const char *name, const char *value)
{
    return MHD_add_response_header(resp, name, value) == MHD_YES;
}

static void headers_cors(struct request *r, struct MHD_Response *resp)
{
    if (!r->has_origin) return;
    header(resp, "Access-Control-Allow-Origin", "*");
    header(resp, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (r->cors) {
        header(resp, "Access-Control-Allow-Methods", "GET, POST, OPTIONS, HEAD");
        if (*r->cors) header(resp, "Access-Control-Allow-Headers", r->cors);
        header(resp, "Access-Control-Max-Age", "600");
    }
}

struct MHD_Response *request_response(struct request *r)
{
    struct MHD_Response *resp;
    if (r->state == RQ_STREAM) {
        resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, stream_read, r, NULL);
    } else if (r->out.len) {
        resp = MHD_create_response_from_buffer(r->out.len, r->out.data, MHD_RESPMEM_MUST_FREE);
        if (resp) r->out = (struct buf){.max = r->out.max}; /* libmicrohttpd's now */
    } else {
        static char nothing[1];
        resp = MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
    }
    if (!resp) return NULL;
    if (r->state == RQ_STREAM) {
        header(resp, "Content-Type", "text/event-stream; charset=utf-8");
        header(resp, "Cache-Control", "no-cache");
        header(resp, "X-Accel-Buffering", "no");
    } else if (r->status != 204) {
        header(resp, "Content-Type", r->content_type ? r->content_type : "application/json");
    }
    header(resp, "X-Request-Id", r->id);
    header(resp, "Server", "kvasir/" KVASIR_VERSION);
    if (r->allow) header(resp, "Allow", r->allow);
    if (r->status == 401) header(resp, "WWW-Authenticate", "Bearer");
    if (r->status == 415) {
        bool coded = MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, "Content-Encoding") != NULL;
        header(resp, coded ? "Accept-Encoding" : "Accept", coded ? "identity" : "application/json");
    }
    if (r->error.http == 429 || r->error.http == 503) {
        char text[16];
        snprintf(text, sizeof text, "%u", r->retry_after ? r->retry_after : 1);
        header(resp, "Retry-After", text);
    }
    if (r->close_after || r->srv->phase >= SRV_LEAVING) header(resp, "Connection", "close");
    headers_cors(r, resp);
    return resp;
}

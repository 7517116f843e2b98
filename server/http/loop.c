/* The event loop: one libuv loop that drives libmicrohttpd (no thread of its own) through its epoll
 * descriptor, the loader and engine thread, signals, and the phases of the process. See http/request.h
 * for the life of a request. Knows no endpoint. */
#include "config/base/assert.h"
#include "config/base/env.h"
#include "config/base/log.h"
#include "engine/families/families.h"
#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/http/conn.h"
#include "server/fetch/fetch.h"
#include "server/fetch/local.h"
#include "server/fleet/kv_events.h"
#include "server/media/alias.h"
#include "server/http/limits.h"
#include "server/http/metrics.h"
#include "server/http/origin.h"
#include "server/dialect/store.h"
#include "server/http/request.h"
#include "server/http/routes.h"
#include "server/http/workers.h"
#include "server/chat/template.h"
#include "server/generate/generate.h"
#include "server/generate/grammars.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- libmicrohttpd inside libuv ---- */

/* It has no timeouts of its own (conn.c has them), so it waits for its descriptors or is ready at once. Then
 * it runs again in the loop's next round, between which everything else has its turn: a timer of 0 ms,
 * started in a timer, would run before the round ends, and so for ever. */
static void mhd_pump(struct server *s)
{
    MHD_UNSIGNED_LONG_LONG ms;
    gen_answers_check(s);
    MHD_run(s->mhd);
    bool ready = MHD_get_timeout(s->mhd, &ms) == MHD_YES && ms == 0;
    if (!ready) uv_idle_stop(&s->mhd_idle);
    else server_kick(s);
    s->mhd_ready = ready;
}

static void mhd_again(uv_idle_t *h)
{
    mhd_pump(h->data);
}

static void mhd_readable(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    mhd_pump(p->data);
}

static void mhd_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    if (!log_enabled(LOG_DEBUG)) return;
    char line[512];
    vsnprintf(line, sizeof line, fmt, ap);
    if (strstr(line, "TCP_") || strstr(line, "push the data"))
        return; /* its end of the pair has no TCP to tune */
    log_debug("http %s", line);
}

/* Paths are decoded after they were split: "/v1/models/a%2Fb". */
static size_t mhd_unescape(void *cls, struct MHD_Connection *c, char *s)
{
    (void)cls;
    (void)c;
    return strlen(s);
}

static enum MHD_Result queue_answer(struct request *r)
{
    struct MHD_Response *resp = request_response(r);
    if (!resp) return MHD_NO;
    enum MHD_Result ok = MHD_queue_response(r->http.mhd, (unsigned)r->answer.status, resp);
    MHD_destroy_response(resp); /* the connection keeps its own reference */
    r->http.queued = ok == MHD_YES;
    return ok;
}

/* Refused by its headers. A body that is small is read away so that the connection can go on; otherwise the
 * answer goes out at once. */
static enum MHD_Result refuse(struct request *r)
{
    const char *length = exchange_header(&r->http, "Content-Length");
    const char *coding = exchange_header(&r->http, "Transfer-Encoding");
    const char *expect = exchange_header(&r->http, "Expect");
    bool body = coding || (length && strcmp(length, "0") != 0);
    bool small = !coding && length && strlen(length) <= 5 && strtoul(length, NULL, 10) <= LIMIT_SMALL_BODY;
    request_to(r, RQ_SWALLOW);
    if (!body || (small && !expect && !r->http.close_after)) return MHD_YES;
    r->http.close_after = true;
    request_fail(r);
    return queue_answer(r);
}

static enum MHD_Result body_take(struct request *r, const char *data, size_t len)
{
    struct server *s = r->srv;
    r->http.body_seen += len;
    if (r->state == RQ_BODY && r->http.body_seen > s->opt->max_body_bytes) {
        api_fail(&r->answer.error, 413, "request_too_large", NULL,
                 "The request body is larger than %llu bytes.", (unsigned long long)s->opt->max_body_bytes);
    } else if (r->state == RQ_BODY && s->body_bytes + len > LIMIT_BODIES_BYTES) {
        api_fail(&r->answer.error, 503, "out_of_memory", NULL,
                 "The server holds too many request bodies; try again.");
    } else if (r->state == RQ_BODY && exchange_body_add(&r->http, data, len)) {
        api_fail(&r->answer.error, 503, "out_of_memory", NULL, "The server is out of memory.");
    }
    if (r->answer.error.http) {
        s->body_bytes -= r->http.body.len;
        buf_fini(&r->http.body);
        if (r->state == RQ_BODY && conn_answer_early(r)) return MHD_NO;
        request_to(r, RQ_SWALLOW);
        return MHD_YES;
    }
    s->body_bytes += len;
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *len, void **context)
{
    struct server *s = cls;
    struct request *r = *context;
    (void)version;
    if (!r) {
        r = request_create(s, c, method, url);
        *context = r;
        if (!r) return MHD_NO;
        conn_request(r);
        return routes_admit(r) ? MHD_YES : refuse(r);
    }
    if (r->state == RQ_ANSWER && r->http.queued) return MHD_NO; /* the gate has answered */
    if (*len) {
        enum MHD_Result ok = body_take(r, data, *len);
        *len = 0;
        return ok;
    }
    if (r->state == RQ_SWALLOW) {
        request_fail(r);
    } else if (r->state == RQ_BODY) {
        r->route->start(r);
    }
    if (r->cancelled) return MHD_NO;
    if (r->state == RQ_ANSWER || r->state == RQ_STREAM) return queue_answer(r);
    exchange_sleep(&r->http);
    return MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct server *s = cls;
    struct request *r = *context;
    if (!r) return; /* refused before on_request */
    *context = NULL;
    bool gone = !r->http.queued || (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && r->state == RQ_STREAM);
    double seconds = (double)(now_us() - r->http.arrived_us) * 1e-6;
    int status = gone ? 499 : r->answer.status;
    if (r->route && r->route->label) {
        metrics_http(s->metrics, r->route->label,
                     r->http.method == M_POST   ? "POST"
                     : r->http.method == M_GET  ? "GET"
                     : r->http.method == M_HEAD ? "HEAD"
                                                : "OTHER",
                     status, seconds);
    }
    if (log_enabled(r->route && !r->route->label ? LOG_DEBUG : LOG_INFO)) {
        log_info("req=%s path=%.100s status=%d ms=%.1f", r->http.id, r->http.path ? r->http.path : "", status,
                 seconds * 1e3);
    }
    conn_completed(c);
    r->http.mhd = NULL;
    r->http.suspended = false;
    if (gone) request_client_gone(r);
    request_release(r);
}

/* ---- sockets ---- */

static enum status listen_open(struct server *s, struct err *err)
{
    char port[16];
    snprintf(port, sizeof port, "%u", (unsigned)s->opt->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    int rc = getaddrinfo(s->opt->host, port, &hints, &list);
    if (rc) return err_set(err, ST_INVALID, "--host %.100s: %s", s->opt->host, gai_strerror(rc));
    int fd = -1, why = 0;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int one = 1;
        if (fd < 0) {
            why = errno;
        } else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
                   bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 1024)) {
            why = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return err_set(err, ST_IO, "can't listen on %.100s port %s: %s", s->opt->host, port, strerror(why));
    struct sockaddr_storage at;
    socklen_t at_len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &at_len)) {
        close(fd);
        return err_set(err, ST_IO, "getsockname: %s", strerror(errno));
    }
    s->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port);
    s->listen_fd = fd;
    s->loopback = at.ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&at)->sin6_addr)
                                           : ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr) >> 24 == 127;
    if (!s->loopback && !s->auth)
        log_warn("no API keys, and %.200s is not a loopback address: whoever reaches it can use the server "
                 "(--api-key-file)",
                 s->opt->host);
    bool six = strchr(s->opt->host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "http://%s%.200s%s:%u", six ? "[" : "", s->opt->host, six ? "]" : "",
             s->port);
    return ST_OK;
}

/* Descriptors beside those of connections (three each): the loop's and libmicrohttpd's, a checkpoint's while
 * it is loaded. */
#define FILES_KEPT 30u

static enum status connections_max(struct server *s, struct err *err)
{
    struct rlimit rl;
    s->conn_max = (uint32_t)s->opt->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &rl)) return ST_OK;
    if (rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
    unsigned kept = FILES_KEPT + (s->opt->allow_remote_media ? FETCH_FILES : 0);
    if (rl.rlim_cur < kept + 6)
        return err_set(err, ST_INVALID, "%llu open files are too few (ulimit -n): %u are needed",
                       (unsigned long long)rl.rlim_cur, kept + 6);
    uint64_t most = (rl.rlim_cur - kept) / 3;
    if (most < s->conn_max) {
        log_warn("%llu connections at once, not %u: each takes three open files of %llu (ulimit -n)",
                 (unsigned long long)most, s->conn_max, (unsigned long long)rl.rlim_cur);
        s->conn_max = (uint32_t)most;
    }
    return ST_OK;
}

static enum status mhd_open(struct server *s, struct err *err)
{
    s->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0, NULL,
        NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)s->conn_max + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LIMIT_CONNECTION_MEMORY,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, conn_notify, s,
        MHD_OPTION_UNESCAPE_CALLBACK, mhd_unescape, NULL, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_END);
    if (!s->mhd) return err_set(err, ST_IO, "can't start the HTTP server");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || uv_poll_init(&s->loop, &s->mhd_poll, info->epoll_fd))
        return err_set(err, ST_IO, "can't poll the HTTP server");
    s->mhd_poll.data = s;
    uv_poll_start(&s->mhd_poll, UV_READABLE, mhd_readable);
    return conn_listen(s, err);
}

/* ---- the engine thread: load, then run ---- */

static void wake_loop(void *arg)
{
    uv_async_send(&((struct server *)arg)->wake);
}

/* A bar on a terminal, else a line per second; small checkpoints load in silence. */
#define BAR_CELLS    40u
#define BAR_US       50000u
#define BAR_FIRST_US 300000u
#define LINE_US      1000000u

struct load_clock {
    uint64_t started_us, bar_us, line_us; /* the last of each */
};

static void load_progress(void *arg, uint64_t done, uint64_t total)
{
    struct load_clock *c = arg;
    uint64_t now = now_us();
    if (now - c->started_us < BAR_FIRST_US || now - c->bar_us < BAR_US) return;
    c->bar_us = now;
    char bar[BAR_CELLS + 1] = "", text[128];
    double part = total && done < total ? (double)done / (double)total : 1;
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', (size_t)(part * BAR_CELLS));
    snprintf(text, sizeof text, "loading [%s] %3.0f %% of %llu MiB", bar, 100 * part,
             (unsigned long long)(total >> 20));
    if (log_status(text) || now - c->line_us < LINE_US) return;
    c->line_us = now;
    log_info("loading %llu of %llu MiB", (unsigned long long)(done >> 20), (unsigned long long)(total >> 20));
}

struct engine_options server_engine_options(const struct options *o, const char *model_dir)
{
    bool drafts = o->draft_model && strcmp(o->draft_tokens, "0") != 0;
    return (struct engine_options){.model_dir = model_dir,
                                   .mmproj = o->mmproj,
                                   .draft_dir = drafts ? o->draft_model : NULL,
                                   .backend = o->backend,
                                   .kernels = strcmp(o->cpu_kernels, "auto") == 0 ? NULL : o->cpu_kernels,
                                   .threads = (uint32_t)o->threads,
                                   .dtype = o->dtype,
                                   .quantize = o->quantize,
                                   .kv_dtype = o->kv_dtype,
                                   .kv_bytes = o->kv_memory,
                                   .context_max = (uint32_t)o->max_context,
                                   .batch_tokens_max = (uint32_t)o->max_batch_tokens,
                                   .sequences_max = (uint32_t)o->max_sequences};
}

/* On a GPU a step with guesses is none of the recorded ones: look-up is not measured to pay there. */
static uint32_t draft_tokens(const struct options *o, const struct model_info *m)
{
    if (strcmp(o->draft_tokens, "auto") == 0)
        return o->draft_model || strncmp(m->backend, "cpu", 3) == 0 ? 8 : 0;
    return (uint32_t)strtoul(o->draft_tokens, NULL, 10);
}

static void announce(void *arg)
{
    sched_announce_cache(arg);
}

static enum status events_open(const struct options *o, struct model *m, struct sched_options *so,
                               struct err *err)
{
    if (!o->kv_events && !o->kv_events_replay) return ST_OK;
    if (!o->kv_events) return err_set(err, ST_INVALID, "--kv-events-replay needs --kv-events");
    if (so->no_prefix_cache) return err_set(err, ST_INVALID, "--kv-events needs the prefix cache");
    enum status st = kv_events_open(
        &(struct kv_events_options){.publish = o->kv_events,
                                    .replay = o->kv_events_replay,
                                    .block_tokens = o->kv_events_block ? (uint32_t)o->kv_events_block
                                                                       : m->caps.block_tokens,
                                    .map = strcmp(o->kv_events_layout, "map") == 0,
                                    .one_group = m->caps.group_count == 1},
        &m->events, err);
    if (!st) so->watch = kv_events_watch(m->events);
    return st;
}

static enum status events_start(struct model *m, struct err *err)
{
    return m->events ? kv_events_start(m->events, announce, m->sched, err) : ST_OK;
}

/* Tokenizer and chat template, which load beside the weights. */
struct text_load {
    const char *dir, *mmproj;
    struct model *m;
    enum status st;
    struct err err;
};

static void text_load(void *arg)
{
    struct text_load *t = arg;
    struct model *m = t->m;
    const struct family_prompt *rule;
    enum status st = family_prompt_load(t->dir, &rule, &t->err);
    if (!st)
        st = tok_load_extra(t->dir, t->mmproj, rule ? rule->tokens : NULL, rule ? rule->token_count : 0,
                            &m->tok, &t->err);
    if (!st) {
        st = template_load(t->dir, &m->tmpl, &t->err);
        if (st == ST_NOT_FOUND && rule) {
            st = template_create(rule->chat_template, strlen(rule->chat_template), NULL, 0, NULL, &m->tmpl,
                                 &t->err);
            m->own_prompts = !st;
        }
        if (!st) template_guard(m->tmpl, m->tok);
        if (st == ST_NOT_FOUND) st = ST_OK; /* chats are refused then, completions work */
    }
    t->st = st;
}

static enum status engine_and_text_load(struct server *s, struct model *m, struct err *err)
{
    struct load_clock clock = {.started_us = now_us()};
    struct engine_options eo = server_engine_options(s->opt, s->model_dir);
    struct text_load text = {.dir = s->model_dir, .mmproj = s->opt->mmproj, .m = m};
    uv_thread_t thread;
    clock.line_us = clock.started_us;
    eo.progress = load_progress;
    eo.progress_arg = &clock;
    bool beside = uv_thread_create(&thread, text_load, &text) == 0;
    if (!beside) text_load(&text);
    enum status st = !beside && text.st ? text.st : engine_open(&eo, &m->engine, err);
    if (beside) uv_thread_join(&thread);
    (void)log_status(NULL);
    if (!text.st) return st;
    *err = text.err;
    return text.st;
}

static enum status model_load(struct server *s, struct model *m, struct err *err)
{
    const struct options *o = s->opt;
    enum status st = engine_and_text_load(s, m, err);
    if (st) return st;
    m->info = engine_model(m->engine);
    engine_caps(m->engine, &m->caps);
    struct sched_options so = {.queue_max = (uint32_t)o->max_queue,
                               .prefill_chunk = (uint32_t)o->prefill_chunk,
                               .step_us = (uint32_t)o->step_ms * 1000u,
                               .no_prefix_cache = strcmp(o->prefix_cache, "off") == 0,
                               .features_bytes = o->encoder_cache_memory,
                               .guess_max = draft_tokens(o, m->info),
                               .guess_all = o->draft_model && strcmp(o->draft_tokens, "auto") != 0,
                               .wake = wake_loop,
                               .wake_arg = s};
    randombytes_buf(&so.hash_seed, sizeof so.hash_seed); /* nobody can aim at a bucket */
    st = events_open(o, m, &so, err);
    if (!st) st = sched_create(m->engine, &so, &m->sched, err);
    if (!st) st = events_start(m, err);
    /* What the KV arena can't hold is not offered: a request without a limit is allowed all of the context.
     */
    if (!st) {
        uint32_t context = sched_context_max(m->sched);
        if (context < m->caps.context_max)
            log_warn("keys and values have room for a context of %u tokens, not %u", context,
                     m->caps.context_max);
        m->caps.context_max = context;
    }
    return st;
}

static void model_free(struct model *m)
{
    kv_events_stop(m->events);
    if (m->sched) sched_destroy(m->sched);
    kv_events_close(m->events);
    engine_close(m->engine);
    template_free(m->tmpl);
    tok_free(m->tok);
    *m = (struct model){0};
}

static void engine_main(void *arg)
{
    struct server *s = arg;
    uint64_t t0 = now_us();
    s->load_status = model_load(s, &s->loading, &s->load_err);
    if (!s->load_status) log_info("loaded %s in %.1f s", s->model_dir, (double)(now_us() - t0) * 1e-6);
    bool ok = !s->load_status;
    uv_async_send(&s->loaded);
    if (ok) sched_run(s->loading.sched);
}

static void phase_set(struct server *s, enum server_phase phase)
{
    static const struct state_rule rules[] = {
        [SRV_LOADING] = {"SRV_LOADING", 1u << SRV_READY | 1u << SRV_ENDING},
        [SRV_READY] = {"SRV_READY", 1u << SRV_LEAVING | 1u << SRV_DRAINING},
        [SRV_LEAVING] = {"SRV_LEAVING", 1u << SRV_DRAINING},
        [SRV_DRAINING] = {"SRV_DRAINING", 1u << SRV_ENDING},
        [SRV_ENDING] = {"SRV_ENDING", 0},
    };
    if (phase <= s->phase) return;
    ASSERT_NEXT(rules, s->phase, phase, "the server (%u requests)", s->load);
    s->phase = phase;
    s->phase_us = now_us();
    if (phase == SRV_DRAINING) log_info("draining: %u requests in flight", s->load);
    if (phase >= SRV_DRAINING) conn_listen_stop(s);
}

/* Whoever started us waits for this line: again at each tick, until it is taken. */
static void ready_say(struct server *s)
{
    if (s->model && !s->ready_said)
        s->ready_said = log_print(STDOUT_FILENO, "kvasir: listening on %s\n", s->url);
}

static void loaded_event(uv_async_t *a)
{
    struct server *s = a->data;
    if (s->load_status) {
        (void)log_print(STDERR_FILENO, "kvasir: %s\n", s->load_err.msg);
        s->exit_code = 1;
        phase_set(s, SRV_ENDING);
        return;
    }
    s->model = &s->loading;
    metrics_model(s->metrics, s->model_name, s->model->caps.context_max);
    const struct model_info *mi = s->model->info;
    log_info("model=%s family=%s dtype=%s weights=%s kv=%s backend=%s context=%u fingerprint=%s",
             s->model_name, mi->family, mi->dtype, mi->weights, mi->kv_dtype, mi->backend,
             s->model->caps.context_max, mi->fingerprint);
    log_info("prefix_cache=%s kv_mib=%llu encoder_cache_mib=%llu", s->opt->prefix_cache,
             (unsigned long long)(s->model->caps.arena_units * s->model->caps.unit_bytes >> 20),
             (unsigned long long)(s->opt->encoder_cache_memory >> 20));
    if (s->phase != SRV_LOADING) return;
    phase_set(s, SRV_READY);
    ready_say(s);
}

static void wake_event(uv_async_t *a)
{
    struct server *s = a->data;
    if (!s->model) return;
    gen_events(s);
    gen_remote_done(s);
    requests_poll(s);
    mhd_pump(s);
}

/* ---- signals and phases ---- */

/* One request to end often comes as two signals: a terminal signals the whole process group, and so does
 * `timeout`, and what has started us passes on its own. The second one that means "at once" comes from a
 * person. */
#define SIGNAL_TWICE_US 300000u

static void signal_event(uv_signal_t *h, int signum)
{
    struct server *s = h->data;
    if (s->signal_us && now_us() - s->signal_us < SIGNAL_TWICE_US) return;
    if (s->signal_us) {
        log_warn("second signal: ending at once");
        _exit(128 + signum);
    }
    s->signal_us = now_us();
    log_info("signal %d", signum);
    /* At a terminal nobody waits for endpoint lists to change. */
    phase_set(s, !s->model                                     ? SRV_ENDING
                 : signum == SIGINT || !s->opt->shutdown_delay ? SRV_DRAINING
                                                               : SRV_LEAVING);
}

/* A device that has failed once stays failed: only a new process gets it back. What ran has its error by
 * then; for a moment the others and the probes are told, then the process ends, whatever still hangs: the
 * driver may not come back from a call. So it goes with an engine that hangs, --watchdog-exit after the
 * probes were told. */
#define FAILED_NOTICE_US 1000000u
#define FAILED_DRAIN_US  5000000u
#define FAILED_LIMIT_S   15u
#define ENDING_LIMIT_S   120u

static void failed_alarm(int signum)
{
    (void)signum;
    _exit(1);
}

/* Probes look at what the engine does, not only at the process: a hung engine must not look healthy. Slow is
 * not hung: within a step and a picture, too, there is progress. Ticks are counted rather than the clock
 * read, so that a process that was stopped for an hour has not lost an hour when it goes on. */
#define TICK_LONGEST_US 1000000u
static void watchdog_check(struct server *s, const struct sched_stats *st, uint64_t now)
{
    uint64_t passed = s->tick_us && now > s->tick_us ? now - s->tick_us : 0;
    uint64_t progress = st->heartbeat_us + engine_progress(s->model->engine);
    s->tick_us = now;
    s->stalled_us += passed < TICK_LONGEST_US ? passed : TICK_LONGEST_US;
    if (progress != s->progress || !(st->running + st->waiting)) s->stalled_us = 0;
    s->progress = progress;
    bool hung = s->stalled_us >= s->opt->watchdog * 1000000u;
    if (hung && !s->hung)
        log_error("the engine has got on with nothing for %llu s", (unsigned long long)s->opt->watchdog);
    if (!hung && s->hung) log_warn("the engine goes on");
    s->hung = hung;
}

static void failed_check(struct server *s, uint64_t now)
{
    struct sched_stats st;
    if (!s->model) return;
    if (!s->failed_us) {
        sched_stats(s->model->sched, &st);
        watchdog_check(s, &st, now);
        bool lost = s->hung && s->opt->watchdog_exit &&
                    s->stalled_us >= (s->opt->watchdog + s->opt->watchdog_exit) * 1000000u;
        if (!st.failed && !lost) return;
        s->failed_us = now;
        s->exit_code = 1;
        log_error(st.failed ? "the engine has failed: the process ends"
                            : "the engine hangs: the process ends");
        signal(SIGALRM, failed_alarm);
        alarm(FAILED_LIMIT_S);
    }
    if (now - s->failed_us >= FAILED_NOTICE_US) phase_set(s, SRV_DRAINING);
}

#define TICK_US 100000u
/* Where a balancer is in front (--shutdown-delay): what was sent to a server that listened is read and
 * refused, even if nothing else runs; a connection that breaks can't be told from an answer that was begun.
 */
#define DRAIN_LEAST_US 300000u

/* libmicrohttpd is ready in each of so many ticks, and no byte comes or goes. */
#define STUCK_TICKS 10u

static void tick_event(uv_timer_t *t)
{
    struct server *s = t->data;
    uint64_t now = now_us(), drain_us = s->opt->drain_timeout * 1000000u;
    peak_note(&s->lag, s->round_us && now > s->round_us + TICK_US ? now - s->round_us - TICK_US : 0, now);
    peak_note(&s->handed, 0, now);
    s->round_us = now;
    conn_sweep(s, now);
    if (s->phase == SRV_READY) ready_say(s);
    s->stuck_ticks = s->mhd_ready && s->moved == s->moved_seen ? s->stuck_ticks + 1 : 0;
    s->moved_seen = s->moved;
    if (s->stuck_ticks == STUCK_TICKS) {
        log_error("libmicrohttpd is busy with nothing: connections that it may be about are cut");
        conn_unstick(s);
    }
    failed_check(s, now);
    requests_poll(s);
    if (s->failed_us && drain_us > FAILED_DRAIN_US)
        drain_us = s->hung ? 0 : FAILED_DRAIN_US; /* what hangs has no answer to wait for */
    uint64_t in_phase = now > s->phase_us ? now - s->phase_us : 0;
    if (s->phase == SRV_LEAVING && in_phase >= s->opt->shutdown_delay * 1000000u) {
        phase_set(s, SRV_DRAINING);
        in_phase = 0;
    }
    if (s->phase == SRV_DRAINING) {
        if (!s->request_count && in_phase >= (s->opt->shutdown_delay ? DRAIN_LEAST_US : 0)) {
            phase_set(s, SRV_ENDING);
        } else if (in_phase >= drain_us) {
            for (struct request *r = s->requests; r; r = r->next) {
                if (s->failed_us) gen_abort(r, 503, "engine_dead", "The engine has failed.");
                else gen_abort(r, 503, "server_draining", "The server is shutting down.");
            }
            phase_set(s, SRV_ENDING);
        }
    }
    /* Two seconds for the last bytes to leave. */
    if (s->phase == SRV_ENDING &&
        ((!s->request_count && !conn_pending(s)) || now_us() - s->phase_us > 2000000u))
        uv_stop(&s->loop);
}

/* Where pictures may come from besides the requests. */
static enum status media_open(struct server *s, struct err *err)
{
    const struct options *o = s->opt;
    if (o->allow_private_media && !o->allow_remote_media)
        return err_set(err, ST_INVALID, "--allow-private-media needs --allow-remote-media");
    enum status st = ST_OK;
    if (o->allowed_media_dir) st = local_dir_open(o->allowed_media_dir, &s->media_dir, err);
    if (st || !o->allow_remote_media) return st;
    return fetcher_create(&(struct fetch_options){.hosts = o->allow_remote_media,
                                                  .networks = o->allow_private_media,
                                                  .seconds = o->media_timeout,
                                                  .bytes_max = IMAGE_LIMITS_DEFAULT.encoded_bytes_max,
                                                  .wake = wake_loop,
                                                  .wake_arg = s},
                          &s->fetcher, err);
}

static void handle_close(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static int loop_open(struct server *s)
{
    int rc = uv_loop_init(&s->loop);
    if (!rc) rc = uv_idle_init(&s->loop, &s->mhd_idle);
    if (!rc) rc = uv_timer_init(&s->loop, &s->tick);
    if (!rc) rc = uv_async_init(&s->loop, &s->wake, wake_event);
    if (!rc) rc = uv_async_init(&s->loop, &s->loaded, loaded_event);
    if (!rc) rc = uv_signal_init(&s->loop, &s->sigterm);
    if (!rc) rc = uv_signal_init(&s->loop, &s->sigint);
    if (rc) return rc;
    s->mhd_run = mhd_again;
    s->mhd_idle.data = s->tick.data = s->wake.data = s->loaded.data = s->sigterm.data = s->sigint.data = s;
    uv_signal_start(&s->sigterm, signal_event, SIGTERM);
    uv_signal_start(&s->sigint, signal_event, SIGINT);
    uv_timer_start(&s->tick, tick_event, TICK_US / 1000, TICK_US / 1000);
    return 0;
}

static void server_end(struct server *s)
{
    if (!s->model && !s->exit_code && s->engine_thread_started) {
        _exit(s->exit_code); /* still loading: there is nothing to save, and loading can't be interrupted */
    }
    if (s->failed_us) { /* nor is the device to be tidied up */
        _exit(s->exit_code);
    }
    /* A step takes seconds at most; a device that hangs takes for ever. */
    signal(SIGALRM, failed_alarm);
    alarm(ENDING_LIMIT_S);
    if (s->model) sched_stop(s->model->sched, false);
    if (s->engine_thread_started) uv_thread_join(&s->engine_thread);
    /* Requests whose answer is stuck in a dead connection: wake them, so that libmicrohttpd can close. */
    for (struct request *r = s->requests; r; r = r->next) request_client_gone(r);
    if (s->model) gen_events(s);
    for (int i = 0; i < 100 && s->request_count; i++) {
        mhd_pump(s);
        uv_run(&s->loop, UV_RUN_NOWAIT);
    }
    if (s->request_count)
        _exit(s->exit_code); /* a worker is still busy with a picture: don't pull the memory away under it */
    if (s->mhd) {
        conn_stop(s);
        uv_poll_stop(&s->mhd_poll);
        MHD_stop_daemon(s->mhd);
    }
    fetcher_destroy(s->fetcher);
    local_dir_close(s->media_dir);
    uv_walk(&s->loop, handle_close, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    model_free(&s->loading);
}

static char *last_component(const char *dir)
{
    char *real = realpath(dir, NULL);
    const char *from = real ? real : dir;
    const char *slash = strrchr(from, '/');
    char *name = strdup(slash && slash[1] ? slash + 1 : from);
    size_t len = name ? strlen(name) : 0, tail = strlen(".gguf");
    if (len > tail && strcmp(name + len - tail, ".gguf") == 0) name[len - tail] = '\0';
    free(real);
    return name;
}

int server_run(const struct options *opt, char *model_dir)
{
    static struct server srv; /* large, one per process; handles must not move */
    struct server *s = &srv;
    struct err err = {0};
    s->opt = opt;
    s->model_dir = model_dir;
    s->listen_fd = -1;
    s->started = (int64_t)time(NULL);
    s->phase_us = now_us();
    s->model_name = opt->served_model_name ? strdup(opt->served_model_name) : last_component(model_dir);
    if (s->model_name) s->model_names_end = model_names_split(s->model_name, opt->served_model_name != NULL);
    s->metrics = metrics_create();
    s->aliases = image_alias_create(IMAGE_ALIAS_ENTRIES);
    s->responses = response_store_create(opt->response_store);
    signal(SIGPIPE, SIG_IGN);
    enum status st = ST_OK;
    if (!s->model_name || !s->metrics || !s->aliases || !s->responses || grammars_create(&s->grammars))
        st = err_set(&err, ST_NOMEM, "out of memory");
    if (!st && opt->api_key_file) {
        s->auth = auth_load(opt->api_key_file, &err);
        if (!s->auth) st = ST_INVALID;
    }
    if (!st) st = origin_options_check(opt, &err);
    if (!st) st = connections_max(s, &err);
    if (!st && loop_open(s)) st = err_set(&err, ST_IO, "can't make the event loop");
    if (!st) st = workers_start(&s->loop, &err);
    if (!st) st = media_open(s, &err);
    if (!st) st = listen_open(s, &err);
    if (!st) st = mhd_open(s, &err);
    if (st) {
        (void)log_print(STDERR_FILENO, "kvasir: %s\n", err.msg);
        return 1;
    }
    s->engine_thread_started = uv_thread_create(&s->engine_thread, engine_main, s) == 0;
    if (!s->engine_thread_started) {
        (void)log_print(STDERR_FILENO, "kvasir: can't start a thread\n");
        return 1;
    }
    mhd_pump(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    server_end(s);
    metrics_destroy(s->metrics);
    image_alias_destroy(s->aliases);
    grammars_free(s->grammars);
    response_store_destroy(s->responses);
    auth_free(s->auth);
    free(s->model_name);
    log_info("end");
    return s->exit_code;
}

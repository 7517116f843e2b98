/* See serve.h. The loader and engine thread, signals, the phases of the process and the watchdog. Event
 * loop's thread, except engine_main and wake_loop. */
#include "server/serve.h"

#include "config/base/assert.h"
#include "config/base/file.h"
#include "config/base/log.h"
#include "config/base/work_lock.h"
#include "engine/model/model_info.h"
#include "server/context/adapters.h"
#include "server/dialect/store.h"
#include "server/fetch/fetch.h"
#include "server/fetch/local.h"
#include "server/front/front.h"
#include "server/front/spec.h"
#include "server/generate/generate.h"
#include "server/input/grammars.h"
#include "server/http/conn.h"
#include "server/http/event_loop.h"
#include "server/http/metrics.h"
#include "server/http/origin.h"
#include "server/http/request.h"
#include "server/http/workers.h"
#include "server/media/image_hash_cache.h"
#include "server/hub/hub.h"
#include "server/replay/request_log.h"
#include "server/model_load.h"
#include "server/auth.h"
#include "server/api/api.h"
#include "server/jobs/jobs.h"
#include "server/receipts/receipts.h"
#include "server/routes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

struct process {
    struct server srv;
    struct loop loop;
    uv_timer_t tick;
    uv_async_t wake;   /* events are in the scheduler's queue */
    uv_async_t loaded; /* the loader thread is done: model or load_err */
    uv_signal_t sigterm, sigint, sighup;
    uint64_t phase_us;         /* when the phase began */
    uint64_t signal_us;        /* of the first SIGTERM or SIGINT; 0 = none yet */
    bool ready_said, terminal; /* terminal: stderr was one at the start */

    uv_thread_t engine_thread; /* loads, then runs the scheduler */
    bool engine_thread_started;
    struct model model; /* owned by the loader until `loaded` */
    enum status load_status;
    struct err load_err;

    /* the watchdog */
    uint64_t tick_us;    /* of the last tick */
    uint64_t progress;   /* engine_progress at the last tick: any change is progress */
    uint64_t stalled_us; /* time in which the engine had work and made no progress */
    uint64_t failed_us;  /* when the engine failed or hung permanently; 0 = neither */
};

/* ---- the engine thread: load, then run ---- */

static void wake_loop(void *arg)
{
    uv_async_send(&((struct process *)arg)->wake);
}

static void wake_engine(void *arg)
{
    sched_wake(((struct process *)arg)->model.sched);
}

static void engine_main(void *arg)
{
    struct process *p = arg;
    uint64_t t0 = now_us();
    const struct context *x = &p->srv.ctx;
    p->load_status = model_load(x->opt, x->model_dir, x->adapters, wake_loop, p, &p->model, &p->load_err);
    if (!p->load_status) p->load_status = adapters_load_list(x, p->model.engine, x->opt->lora, &p->load_err);
    if (!p->load_status)
        log_info("loaded %s in %.1f s", p->srv.ctx.model_dir, (double)(now_us() - t0) * 1e-6);
    bool ok = !p->load_status;
    uv_async_send(&p->loaded);
    if (ok) sched_run(p->model.sched);
}

static void phase_set(struct process *p, enum server_phase phase)
{
    struct health *h = &p->srv.health;
    static const struct state_rule rules[] = {
        [SRV_LOADING] = {"SRV_LOADING", 1u << SRV_READY | 1u << SRV_ENDING},
        [SRV_READY] = {"SRV_READY", 1u << SRV_LEAVING | 1u << SRV_DRAINING},
        [SRV_LEAVING] = {"SRV_LEAVING", 1u << SRV_DRAINING},
        [SRV_DRAINING] = {"SRV_DRAINING", 1u << SRV_ENDING},
        [SRV_ENDING] = {"SRV_ENDING", 0},
    };
    if (phase <= h->phase) return;
    ASSERT_NEXT(rules, h->phase, phase, "the server (%u requests)", p->srv.load);
    h->phase = phase;
    p->phase_us = now_us();
    if (phase == SRV_DRAINING) log_info("draining: %u requests in flight", p->srv.load);
    if (phase >= SRV_DRAINING) jobs_stop(p->srv.jobs);
    if (phase >= SRV_DRAINING) conn_listen_stop(&p->loop);
}

/* The parent process may wait for this line: retried at each tick until it is written. */
static void ready_say(struct process *p)
{
    if (!p->ready_said) p->ready_said = log_print(STDOUT_FILENO, "kvasir: listening on %s\n", p->loop.url);
}

static void batches_start(struct server *s)
{
    struct err err;
    if (s->jobs && jobs_start(s->jobs, &err)) log_error("--data-dir: no batch runs: %s", err.msg);
}

static void loaded_event(uv_async_t *a)
{
    struct process *p = a->data;
    struct server *s = &p->srv;
    if (p->load_status) {
        (void)log_print(STDERR_FILENO, "kvasir: %s\n", p->load_err.msg);
        s->health.exit_code = 1;
        phase_set(p, SRV_ENDING);
        return;
    }
    s->ctx.model = &p->model;
    metrics_model(s->metrics, s->ctx.model_name, s->ctx.model->caps.context_max);
    const struct model_info *mi = s->ctx.model->info;
    log_info("model=%s family=%s dtype=%s weights=%s kv=%s backend=%s context=%u fingerprint=%s",
             s->ctx.model_name, mi->family, mi->dtype, mi->weights, mi->kv_dtype, mi->backend,
             s->ctx.model->caps.context_max, mi->fingerprint);
    if (mi->gemm) log_info("gemm=%s", mi->gemm);
    log_info("prefix_cache=%s kv_mib=%llu encoder_cache_mib=%llu", s->ctx.opt->prefix_cache ? "on" : "off",
             (unsigned long long)(s->ctx.model->caps.arena_grains * s->ctx.model->caps.grain_bytes >> 20),
             (unsigned long long)(s->ctx.opt->encoder_cache_memory >> 20));
    if (s->health.phase != SRV_LOADING) return;
    batches_start(s);
    phase_set(p, SRV_READY);
    ready_say(p);
}

static void wake_event(uv_async_t *a)
{
    struct process *p = a->data;
    struct server *s = &p->srv;
    if (!s->ctx.model) return;
    gen_events(s);
    gen_remote_done(s);
    gen_compile_next(s);
    requests_poll(s);
    loop_pump(&p->loop);
}

/* ---- signals and phases ---- */

/* One request to end often arrives as two signals: a terminal or `timeout` signals the whole process group,
 * and the parent forwards its own. Only a later second signal, from a person, means "at once". */
#define SIGNAL_TWICE_US 300000u

static void signal_event(uv_signal_t *h, int signum)
{
    struct process *p = h->data;
    if (p->signal_us && now_us() - p->signal_us < SIGNAL_TWICE_US) return;
    if (p->signal_us) {
        log_warn("second signal: ending at once");
        _exit(128 + signum);
    }
    p->signal_us = now_us();
    log_info("received %s", signum == SIGTERM ? "SIGTERM" : "SIGINT");
    /* On a terminal there are no endpoint lists to update. */
    phase_set(p, !p->srv.ctx.model && !p->srv.front                    ? SRV_ENDING
                 : signum == SIGINT || !p->srv.ctx.opt->shutdown_delay ? SRV_DRAINING
                                                                       : SRV_LEAVING);
}

/* Reads keys and certificate again, and reopens the log. What can't be read stays as it was. */
static void reload_event(uv_signal_t *h, int signum)
{
    struct process *p = h->data;
    const struct options *o = p->srv.ctx.opt;
    struct auth *auth;
    struct err err;
    if (p->terminal && !isatty(STDERR_FILENO)) { /* it was closed */
        signal_event(h, signum);
        return;
    }
    if (o->log_file && !log_open_file(o->log_file))
        log_error("--log-file %.200s: %s", o->log_file, strerror(errno));
    if (auth_load(o, 0, &auth, &err)) {
        log_error("SIGHUP: the API keys stay as they were: %s", err.msg);
    } else {
        auth_free(p->srv.auth);
        p->srv.auth = auth;
    }
    if (p->srv.front) front_signal(p->srv.front, signum); /* whose logs are reopened */
    if (loop_cert_load(&p->loop, 0, &err)) log_error("SIGHUP: the certificate stays as it was: %s", err.msg);
    log_info("SIGHUP: API keys, certificate and log were read again");
}

/* A failed device stays failed: only a new process recovers it. Running requests have their error by then;
 * for a moment other requests and the probes get errors, then the process exits whatever still hangs, because
 * the driver may never return from a call. A hung engine ends the same way, --watchdog-exit after the probes
 * fail. */
#define FAILED_NOTICE_US 1000000u
#define FAILED_DRAIN_US  5000000u
#define FAILED_LIMIT_S   15u
#define ENDING_LIMIT_S   120u

static void failed_alarm(int signum)
{
    (void)signum;
    _exit(1);
}

/* Probes check the engine, not only the process: a hung engine must not look healthy. Slow is not hung:
 * progress is also counted within a step and an image. Ticks are counted instead of reading the clock, so
 * that a process stopped for an hour does not look hung when it continues. */
#define TICK_LONGEST_US 1000000u
static void watchdog_check(struct process *p, const struct sched_stats *st, uint64_t now)
{
    const struct options *o = p->srv.ctx.opt;
    struct health *h = &p->srv.health;
    uint64_t passed = p->tick_us && now > p->tick_us ? now - p->tick_us : 0;
    uint64_t progress = st->heartbeat_us + engine_progress(p->model.engine);
    p->tick_us = now;
    p->stalled_us += passed < TICK_LONGEST_US ? passed : TICK_LONGEST_US;
    if (progress != p->progress || !(st->running + st->waiting)) p->stalled_us = 0;
    p->progress = progress;
    bool hung = p->stalled_us >= o->watchdog * 1000000u;
    if (hung && !h->hung)
        log_error("the engine has got on with nothing for %llu s", (unsigned long long)o->watchdog);
    if (!hung && h->hung) log_warn("the engine goes on");
    h->hung = hung;
}

static void failed_check(struct process *p, uint64_t now)
{
    struct server *s = &p->srv;
    struct sched_stats st;
    if (!s->ctx.model) return;
    if (!p->failed_us) {
        sched_stats(s->ctx.model->sched, &st);
        watchdog_check(p, &st, now);
        bool lost = s->health.hung && s->ctx.opt->watchdog_exit &&
                    p->stalled_us >= (s->ctx.opt->watchdog + s->ctx.opt->watchdog_exit) * 1000000u;
        if (!st.failed && !lost) return;
        p->failed_us = now;
        s->health.exit_code = 1;
        log_error(st.failed ? "the engine has failed: the process ends"
                            : "the engine hangs: the process ends");
        signal(SIGALRM, failed_alarm);
        alarm(FAILED_LIMIT_S);
    }
    if (now - p->failed_us >= FAILED_NOTICE_US) phase_set(p, SRV_DRAINING);
}

#define TICK_US 100000u
/* Behind a load balancer (--shutdown-delay): requests already sent are read and refused, even if nothing else
 * runs, because a client can't distinguish a broken connection from a response that has started. */
#define DRAIN_LEAST_US 300000u

static void tick_event(uv_timer_t *t)
{
    struct process *p = t->data;
    struct server *s = &p->srv;
    struct health *h = &s->health;
    uint64_t now = now_us(), drain_us = s->ctx.opt->drain_timeout * 1000000u;
    peak_note(&h->lag, h->round_us && now > h->round_us + TICK_US ? now - h->round_us - TICK_US : 0, now);
    peak_note(&h->handed, 0, now);
    h->round_us = now;
    loop_tick(&p->loop, now);
    if (h->phase == SRV_READY) ready_say(p);
    failed_check(p, now);
    if (s->front) front_tick(s->front, now);
    else gen_compile_next(s);
    requests_poll(s);
    if (p->failed_us && drain_us > FAILED_DRAIN_US)
        drain_us = h->hung ? 0 : FAILED_DRAIN_US; /* a hung engine sends no responses to wait for */
    uint64_t in_phase = now > p->phase_us ? now - p->phase_us : 0;
    if (h->phase == SRV_LEAVING && in_phase >= s->ctx.opt->shutdown_delay * 1000000u) {
        phase_set(p, SRV_DRAINING);
        in_phase = 0;
    }
    if (h->phase == SRV_DRAINING) {
        if (!s->request_count && in_phase >= (s->ctx.opt->shutdown_delay ? DRAIN_LEAST_US : 0)) {
            phase_set(p, SRV_ENDING);
        } else if (in_phase >= drain_us) {
            for (struct request *r = s->requests; r; r = r->next)
                gen_abort_status(r, p->failed_us ? ST_DEVICE : ST_STOPPING, NULL);
            phase_set(p, SRV_ENDING);
        }
    }
    /* Two seconds for the last bytes to leave. */
    if (h->phase == SRV_ENDING &&
        ((!s->request_count && !conn_pending(&p->loop)) || now_us() - p->phase_us > 2000000u))
        uv_stop(&p->loop.uv);
}

/* Sources of images other than the request body. */
static enum status media_open(struct process *p, struct err *err)
{
    struct server *s = &p->srv;
    const struct options *o = s->ctx.opt;
    enum status st = ST_OK;
    if (o->receipt_key) {
        s->ctx.receipt_key = calloc(1, sizeof *s->ctx.receipt_key);
        st = s->ctx.receipt_key ? receipt_key_read(o->receipt_key, s->ctx.receipt_key, err)
                                : err_nomem(err, NULL);
        if (st) return st;
    }
    if (o->allowed_media_dir) st = local_dir_open(o->allowed_media_dir, &s->ctx.media_dir, err);
    if (st || !o->allow_remote_media) return st;
    return fetcher_create(&(struct fetch_options){.hosts = o->allow_remote_media,
                                                  .networks = o->allow_private_media,
                                                  .seconds = o->media_timeout,
                                                  .bytes_max = IMAGE_LIMITS_DEFAULT.encoded_bytes_max,
                                                  .wake = wake_loop,
                                                  .wake_arg = p},
                          &s->ctx.fetcher, err);
}

static enum status data_open(struct process *p, struct err *err)
{
    const struct options *o = p->srv.ctx.opt;
    if (!o->data_dir || o->behind_front) return ST_OK;
    return jobs_open(&(struct jobs_options){.dir = o->data_dir,
                                            .quota = o->data_quota,
                                            .line_max = o->max_body_bytes,
                                            .open = o->max_sequences && o->max_sequences < JOBS_OPEN
                                                        ? (uint32_t)o->max_sequences
                                                        : JOBS_OPEN,
                                            .socket = p->loop.inside},
                     &p->srv.jobs, err);
}

static enum status events_take(struct process *p, struct err *err)
{
    uv_loop_t *uv = &p->loop.uv;
    if (uv_timer_init(uv, &p->tick) || uv_async_init(uv, &p->wake, wake_event) ||
        uv_async_init(uv, &p->loaded, loaded_event) || uv_signal_init(uv, &p->sigterm) ||
        uv_signal_init(uv, &p->sigint) || uv_signal_init(uv, &p->sighup))
        return err_set(err, ST_IO, "can't make the event loop");
    p->tick.data = p->wake.data = p->loaded.data = p->sigterm.data = p->sigint.data = p->sighup.data = p;
    uv_signal_start(&p->sigterm, signal_event, SIGTERM);
    uv_signal_start(&p->sigint, signal_event, SIGINT);
    uv_signal_start(&p->sighup, reload_event, SIGHUP);
    uv_timer_start(&p->tick, tick_event, TICK_US / 1000, TICK_US / 1000);
    return ST_OK;
}

static void server_end(struct process *p)
{
    struct server *s = &p->srv;
    int exit_code = s->health.exit_code;
    if (!s->ctx.model && !exit_code && p->engine_thread_started) {
        _exit(exit_code); /* still loading: nothing to save, and loading can't be interrupted */
    }
    if (p->failed_us) { /* the device can't be cleaned up */
        _exit(exit_code);
    }
    /* A step takes seconds at most; a hung device never returns. */
    signal(SIGALRM, failed_alarm);
    alarm(ENDING_LIMIT_S);
    if (s->ctx.model) sched_stop(s->ctx.model->sched, false);
    if (p->engine_thread_started) uv_thread_join(&p->engine_thread);
    /* Wake requests whose response is stuck in a dead connection, so that libmicrohttpd can close. */
    for (struct request *r = s->requests; r; r = r->next) request_client_gone(r);
    if (s->ctx.model) gen_events(s);
    for (int i = 0; i < 100 && s->request_count; i++) {
        loop_pump(&p->loop);
        uv_run(&p->loop.uv, UV_RUN_NOWAIT);
    }
    if (s->request_count) _exit(exit_code); /* a worker still uses an image: don't free its memory */
    if (s->front) front_close(s->front);
    fetcher_destroy(s->ctx.fetcher);
    local_dir_close(s->ctx.media_dir);
    free(s->ctx.receipt_key);
    request_log_close(s->ctx.request_log);
    loop_close(&p->loop);
    jobs_close(s->jobs);
    grammars_stop(s->ctx.grammars);
    adapters_stop(s->ctx.adapters);
    model_free(&p->model);
}

static void websocket_forget(struct server *s, uint64_t websocket)
{
    response_forget_websocket(s->ctx.responses, websocket);
}

/* "A\0B\0": the models' names, as those of one. */
static void names_join(struct context *x, const struct front_specs *models)
{
    size_t len = 1, at = 0;
    for (size_t i = 0; i < models->count; i++) len += strlen(models->at[i].name) + 1;
    if (!(x->model_name = malloc(len))) return;
    for (size_t i = 0; i < models->count; i++)
        at += (size_t)sprintf(x->model_name + at, "%s", models->at[i].name) + 1;
    x->model_names_end = x->model_name + at;
}

static enum status front_serve(struct process *p, const struct front_specs *models, struct err *err)
{
    p->loop.check = front_pump;
    enum status st = front_open(&p->srv, models, err);
    if (st) return st;
    batches_start(&p->srv);
    phase_set(p, SRV_READY);
    ready_say(p);
    return ST_OK;
}

static enum status server_open(struct process *p, const struct front_specs *models, struct err *err)
{
    struct server *s = &p->srv;
    const struct options *o = s->ctx.opt;
    s->started = (int64_t)time(NULL);
    p->terminal = isatty(STDERR_FILENO);
    p->phase_us = now_us();
    p->loop.admit = routes_admit;
    p->loop.check = gen_responses_check;
    p->loop.forget = websocket_forget;
    p->loop.chunk = api_upload_chunk;
    if (models) names_join(&s->ctx, models);
    else
        s->ctx.model_name =
            o->served_model_name ? strdup(o->served_model_name) : model_dir_name(s->ctx.model_dir);
    if (s->ctx.model_name && !models)
        s->ctx.model_names_end = model_names_split(s->ctx.model_name, o->served_model_name != NULL);
    s->metrics = metrics_create();
    s->ctx.image_hashes = image_hash_cache_create(IMAGE_HASH_CACHE_ENTRIES);
    s->ctx.responses = response_store_create(o->response_store);
    if (!s->ctx.model_name || !s->metrics || !s->ctx.image_hashes || !s->ctx.responses ||
        grammars_create(o->grammar_memory, wake_engine, p, &s->ctx.grammars))
        return err_nomem(err, NULL);
    s->ctx.grammar_memory = grammars_memory(s->ctx.grammars);
    enum status st = adapters_create((uint32_t)o->max_loras, o->lora_dir, &s->ctx.adapters, err);
    if (!st) st = auth_load(o, FILE_PIPE_MS, &s->auth, err);
    if (!st) st = origin_options_check(o, err);
    if (!st) st = loop_open(&p->loop, s, err);
    if (!st) st = events_take(p, err);
    if (!st) st = workers_start(&p->loop.workers, &p->loop.uv, err);
    if (!st) st = media_open(p, err);
    if (!st) st = data_open(p, err);
    if (!st && o->request_log && !models)
        st = request_log_open(o->request_log, o->request_log_size, &s->ctx.request_log, err);
    if (!st) st = loop_listen(&p->loop, err);
    if (st) return st;
    if (models) return front_serve(p, models, err);
    p->engine_thread_started = uv_thread_create(&p->engine_thread, engine_main, p) == 0;
    return p->engine_thread_started ? ST_OK : err_set(err, ST_IO, "can't start a thread");
}

int server_run(const struct options *opt, char *model_dir, const struct front_specs *models)
{
    static struct process process; /* large, one per process; handles must not move */
    struct server *s = &process.srv;
    struct err err = {0};
    s->ctx.opt = opt;
    s->ctx.model_dir = model_dir;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* --cache-dir: a write fails instead */
    enum status st = server_open(&process, models, &err);
    if (st) {
        (void)log_print(STDERR_FILENO, "kvasir: %s\n", err.msg);
        return st == ST_INVALID ? 2 : 1; /* a wrong flag, as in main */
    }
    work_lock_never();
    loop_pump(&process.loop);
    uv_run(&process.loop.uv, UV_RUN_DEFAULT);
    server_end(&process);
    metrics_destroy(s->metrics);
    image_hash_cache_destroy(s->ctx.image_hashes);
    grammars_free(s->ctx.grammars);
    response_store_destroy(s->ctx.responses);
    auth_free(s->auth);
    free(s->ctx.model_name);
    log_info("stopped");
    return s->health.exit_code;
}

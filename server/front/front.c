/* See front.h. Which models are loaded: starting, stopping and counting their servers. */
#include "server/front/internal.h"

#include "config/base/assert.h"
#include "config/base/clock.h"
#include "config/base/log.h"
#include "server/http/event_loop.h"
#include "server/json/writer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A model that is used stays at least so long, and as many times its loading took, before another one's
 * waiting requests make it leave: two that alternate don't spend their time on loading. One that is not used
 * may leave at once. */
#define STAY_US      2000000u
#define STAY_LOADS   2u
#define IDLE_US      200000u
#define LEAVE_US     40000000u /* then SIGKILL; more than a server's own --drain-timeout */
#define PAUSE_US     500000u   /* before a start after a failure; doubled with each */
#define PAUSE_MAX_US 60000000u
#define GOOD_US      60000000u /* loaded for so long, its failures are forgotten */

struct front_model *front_find(struct front *f, const char *name)
{
    char id[300];
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->models[i].spec->name, name) == 0) return &f->models[i];
    if (!*name || strpbrk(name, "\"\\,=") || strlen(name) + 10 > sizeof id) return NULL;
    for (size_t i = 0; i < f->count; i++) { /* an adapter's: its model's cards list it, once it is loaded */
        const char *at = f->models[i].spec->loras;
        for (size_t n; at && *at; at += n + (at[n] == ',')) {
            n = strcspn(at, ",");
            if (strlen(name) == strcspn(at, "=") && strncmp(at, name, strlen(name)) == 0)
                return &f->models[i];
        }
        snprintf(id, sizeof id, "{\"id\":\"%s\"", name);
        if (f->models[i].card && strstr(f->models[i].card, id)) return &f->models[i];
    }
    return NULL;
}

const char *front_status(const struct front_model *m)
{
    static const char *const names[] = {[FRONT_LOADING] = "loading", [FRONT_LOADED] = "loaded"};
    return names[m->state < FRONT_LEAVING ? m->state : 0] ? names[m->state] : "unloaded";
}

static void state_to(struct front_model *m, enum front_state state)
{
    static const struct state_rule rules[] = {
        [FRONT_UNLOADED] = {"FRONT_UNLOADED", 1u << FRONT_LOADING},
        [FRONT_LOADING] = {"FRONT_LOADING", 1u << FRONT_LOADED | 1u << FRONT_LEAVING | 1u << FRONT_UNLOADED},
        [FRONT_LOADED] = {"FRONT_LOADED", 1u << FRONT_LEAVING | 1u << FRONT_UNLOADED},
        [FRONT_LEAVING] = {"FRONT_LEAVING", 1u << FRONT_UNLOADED},
    };
    ASSERT_NEXT(rules, m->state, state, "model %s", m->spec->name);
    m->state = state;
    m->since_us = now_us();
}

/* ---- children ---- */

static void poll_closed(uv_handle_t *h)
{
    free(h);
}

static void poll_end(struct front_model *m)
{
    if (m->poll) uv_close((uv_handle_t *)m->poll, poll_closed);
    m->poll = NULL;
}

static void card_taken(struct transfer *t, bool ok)
{
    char **to = t->arg;
    const char *from = t->text.data ? strchr(t->text.data, '[') : NULL,
               *end = from ? strrchr(from, ']') : NULL;
    char *copy = ok && end ? strndup(from + 1, (size_t)(end - from) - 1) : NULL;
    if (!copy) return;
    free(*to);
    *to = copy;
}

void front_card_read(struct front_model *m)
{
    (void)front_ask_child(m, "/v1/models", false, card_taken, &m->card);
}

static void ended(struct front_model *m)
{
    uint64_t now = now_us(), pause = PAUSE_US;
    bool by_itself = m->state != FRONT_LEAVING, loaded = m->state == FRONT_LOADED;
    snprintf(m->exit, sizeof m->exit, "%s", by_itself ? child_exit(m->child) : "");
    poll_end(m);
    child_free(m->child, 0);
    m->child = NULL;
    if (loaded && now - m->since_us > GOOD_US) m->failures = 0;
    m->failed = m->state == FRONT_LOADING && by_itself;
    m->crashes += by_itself;
    m->retry_us = m->closing = 0;
    state_to(m, FRONT_UNLOADED);
    if (by_itself) {
        for (uint32_t i = 0; i < m->failures && pause < PAUSE_MAX_US; i++) pause *= 2;
        m->failures++;
        m->retry_us = now + pause;
        m->wanted = loaded;
        log_error("model %s: its server has ended: %s", m->spec->name, m->exit);
    } else {
        log_info("model %s has left", m->spec->name);
    }
    m->named_us = m->wanted || m->waiting ? now : 0;
}

static void child_event(struct front_model *m)
{
    enum child_state state = child_poll(m->child);
    if (child_fd(m->child) < 0) poll_end(m);
    if (state == CHILD_READY && m->state == FRONT_LOADING) {
        m->load_us = now_us() - m->since_us;
        m->used_us = now_us();
        m->named_us = 0;
        m->wanted = m->failed = false;
        m->loads++;
        state_to(m, FRONT_LOADED);
        log_info("model %s is loaded, in %.2f s", m->spec->name, (double)m->load_us * 1e-6);
        front_card_read(m);
        (void)front_ask_child(m, "/api/tags", false, card_taken, &m->tag);
        (void)front_ask_child(m, "/api/ps", false, card_taken, &m->ps);
    } else if (state == CHILD_ENDED) {
        ended(m);
    } else {
        return;
    }
    front_balance(m->front);
    requests_poll(m->front->srv);
}

static void child_readable(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    child_event(p->data);
}

static void start(struct front_model *m)
{
    struct err err;
    uv_poll_t *poll = calloc(1, sizeof *poll);
    enum status st =
        poll ? child_start((const char *const *)m->spec->args, NULL, &m->child, &err) : err_nomem(&err, NULL);
    if (!st && uv_poll_init(&m->front->srv->loop->uv, poll, child_fd(m->child))) {
        st = err_set(&err, ST_IO, "can't poll a pipe");
        child_free(m->child, 0);
    }
    if (st) {
        log_error("model %s can't be started: %s", m->spec->name, err.msg);
        free(poll);
        m->child = NULL;
        m->retry_us = now_us() + PAUSE_MAX_US / 10;
        return;
    }
    m->poll = poll;
    poll->data = m;
    uv_poll_start(poll, UV_READABLE, child_readable);
    state_to(m, FRONT_LOADING);
    log_info("model %s is being loaded", m->spec->name);
}

void front_leave(struct front_model *m)
{
    if (m->state != FRONT_LOADED && m->state != FRONT_LOADING) return;
    log_info("model %s leaves", m->spec->name);
    m->wanted = false;
    child_signal(m->child, SIGTERM);
    state_to(m, FRONT_LEAVING);
}

/* ---- memory ---- */

static bool unused(const struct front_model *m)
{
    return m->state == FRONT_LOADED && !m->active && !m->waiting;
}

static bool stayed(const struct front_model *m, uint64_t now)
{
    uint64_t stay = STAY_LOADS * m->load_us > STAY_US ? STAY_LOADS * m->load_us : STAY_US;
    return now - m->since_us >= stay;
}

/* Who leaves for another model: the least recently used that nobody uses, else one that has stayed long
 * enough, when its running requests are done. NULL: nobody yet. */
static struct front_model *victim(struct front *f, uint64_t now)
{
    struct front_model *best = NULL;
    for (size_t i = 0; i < f->count; i++) {
        struct front_model *m = &f->models[i];
        bool idle = unused(m) && (now - m->used_us >= IDLE_US || stayed(m, now));
        if (m->state != FRONT_LOADED || (!idle && !stayed(m, now))) continue;
        if (!best || (unused(m) && !unused(best)) ||
            (unused(m) == unused(best) && m->used_us < best->used_us))
            best = m;
    }
    return best;
}

/* Whose turn it is to be loaded: who was named first. */
static struct front_model *next_wanted(struct front *f, uint64_t now)
{
    struct front_model *next = NULL;
    for (size_t i = 0; i < f->count; i++) {
        struct front_model *m = &f->models[i];
        if (m->state == FRONT_UNLOADED && (m->waiting || m->wanted) && now >= m->retry_us &&
            (!next || m->named_us < next->named_us))
            next = m;
    }
    return next;
}

void front_balance(struct front *f)
{
    uint64_t now = now_us();
    struct front_model *next, *out;
    for (size_t i = 0; i < f->count; i++) {
        struct front_model *m = &f->models[i];
        if (unused(m) && m->keep_us != UINT64_MAX && now - m->used_us >= m->keep_us) front_leave(m);
        if (m->closing && !m->active) front_leave(m);
    }
    while (f->srv->health.phase < SRV_DRAINING && (next = next_wanted(f, now))) {
        uint64_t held = next->spec->bytes, leaving = 0;
        for (size_t i = 0; i < f->count; i++) {
            struct front_model *m = &f->models[i];
            if (m->state == FRONT_LEAVING || m->closing) leaving += m->spec->bytes;
            else if (m->state != FRONT_UNLOADED) held += m->spec->bytes;
        }
        if (held + leaving <= f->budget) {
            start(next);
            if (next->state == FRONT_UNLOADED) return; /* it can't be started now */
        } else if (held <= f->budget || !(out = victim(f, now))) {
            return; /* until one has left, or may */
        } else if (out->active) {
            out->closing = true;
        } else {
            front_leave(out);
        }
    }
}

bool front_ready(struct front_model *m, bool *failed)
{
    *failed = m->state == FRONT_UNLOADED && m->failed && now_us() < m->retry_us;
    if (m->state == FRONT_LOADED && !m->closing) return true;
    if (!m->named_us) m->named_us = now_us();
    return false;
}

void front_used(struct front_model *m, int passed, int waiting)
{
    m->active = (uint32_t)((int)m->active + passed);
    m->waiting = (uint32_t)((int)m->waiting + waiting);
    m->used_us = now_us();
    if (passed < 0 || waiting) front_balance(m->front);
}

void front_tick(struct front *f, uint64_t now)
{
    for (size_t i = 0; i < f->count; i++) {
        struct front_model *m = &f->models[i];
        if (m->state == FRONT_LEAVING && now - m->since_us > LEAVE_US) child_signal(m->child, SIGKILL);
        if (m->child) child_event(m);
    }
    front_balance(f);
}

void front_signal(struct front *f, int signum)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->models[i].child) child_signal(f->models[i].child, signum);
}

enum status front_open(struct server *s, const struct front_specs *specs, struct err *err)
{
    struct front *f = calloc(1, sizeof *f);
    if (!f || !(f->models = calloc(specs->count, sizeof *f->models))) return free(f), err_nomem(err, NULL);
    f->srv = s;
    f->budget = specs->budget;
    f->count = specs->count;
    for (size_t i = 0; i < f->count; i++)
        f->models[i] = (struct front_model){.front = f, .spec = &specs->at[i], .keep_us = UINT64_MAX};
    s->front = f;
    log_info("%zu models, in at most %llu MiB", f->count, (unsigned long long)(f->budget >> 20));
    for (size_t i = 0; i < f->count; i++)
        log_info("model=%s memory_mib=%llu", specs->at[i].name,
                 (unsigned long long)(specs->at[i].bytes >> 20));
    return front_curl_open(f) ? err_nomem(err, NULL) : ST_OK;
}

static void front_closed(uv_handle_t *h)
{
    free(h->data);
}

void front_close(struct front *f)
{
    front_signal(f, SIGTERM);
    front_curl_close(f);
    for (size_t i = 0; i < f->count; i++) {
        struct front_model *m = &f->models[i];
        poll_end(m);
        child_free(m->child, LEAVE_US / 1000000u);
        free(m->card);
        free(m->tag);
        free(m->ps);
    }
    free(f->models);
    uv_close((uv_handle_t *)&f->timer, front_closed);
}

/* ---- lists ---- */

static void status_text(const struct front_model *m, struct json_writer *o)
{
    jw_put(o, ",\"status\":{\"value\":%s", front_status(m));
    if (m->state == FRONT_UNLOADED && *m->exit) jw_put(o, ",\"failed\":true,\"exit\":%s", m->exit);
    jw_text(o, "}}");
}

void front_card(const struct front *f, const char *name, struct json_writer *o)
{
    const struct front_model *m = front_find((struct front *)(uintptr_t)f, name);
    if (m->card) jw_bytes(o, m->card, strlen(m->card) - 1);
    else
        jw_put(
            o,
            "{\"id\":%s,\"object\":\"model\",\"created\":%ld,\"owned_by\":\"local\",\"root\":%s,\"parent\":"
            "null,\"max_model_len\":null,\"permission\":[]",
            name, f->srv->started, m->spec->dir);
    status_text(m, o);
}

/* Of a model that was never loaded, what is known of its files. */
static void tag_unknown(const struct front_model *m, struct json_writer *o)
{
    jw_put(o, "{\"name\":%s,\"model\":%s,\"size\":%lu,\"digest\":\"\",\"modified_at\":", m->spec->name,
           m->spec->name, m->spec->own_bytes);
    jw_time(o, m->front->srv->started, -1);
    jw_text(o, ",\"details\":{\"parent_model\":\"\",\"format\":\"\",\"family\":\"\",\"families\":null,"
               "\"parameter_size\":\"\",\"quantization_level\":\"\"}}");
}

void front_tags(const struct front *f, bool loaded, struct json_writer *o)
{
    static const char expires[] = ",\"expires_at\":", size[] = ",\"size_vram\":";
    const char *comma = "";
    jw_text(o, "{\"models\":[");
    for (size_t i = 0; i < f->count; i++) {
        const struct front_model *m = &f->models[i];
        const char *at = m->ps ? strstr(m->ps, expires) : NULL, *rest = at ? strstr(at, size) : NULL;
        if (loaded && (m->state != FRONT_LOADED || !rest)) continue;
        jw_text(o, comma);
        comma = ",";
        if (!loaded && m->tag) jw_text(o, m->tag);
        else if (!loaded) tag_unknown(m, o);
        if (!loaded) continue;
        uint64_t idle = now_us() - m->used_us, left = m->keep_us > idle ? m->keep_us - idle : 0;
        if (m->keep_us == UINT64_MAX) left = 100ull * 365 * 86400 * 1000000; /* it stays */
        jw_bytes(o, m->ps, (size_t)(at - m->ps) + sizeof expires - 1);
        jw_time(o, (int64_t)time(NULL) + (int64_t)(left / 1000000), -1);
        jw_text(o, rest);
    }
    jw_text(o, "]}");
}

enum status front_metrics(const struct front *f, struct buf *out)
{
    static const char *const families[][3] = {
        {"kvasir:model_loaded", "gauge", "1: the model is loaded."},
        {"kvasir:model_memory_bytes", "gauge", "What its plan takes of --models-memory, while it is loaded."},
        {"kvasir:model_loads_total", "counter", "How often it was loaded."},
        {"kvasir:model_crashes_total", "counter", "How often its server ended by itself."},
        {"kvasir:model_load_seconds", "gauge", "What its last loading took."},
        {"kvasir:model_requests_waiting", "gauge", "Requests that wait until it is loaded."},
        {"kvasir:model_requests_active", "gauge", "Requests that were passed on to it."},
    };
    enum status st = ST_OK;
    for (size_t k = 0; k < sizeof families / sizeof *families && !st; k++) {
        st = buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", families[k][0], families[k][2], families[k][0],
                      families[k][1]);
        for (size_t i = 0; i < f->count && !st; i++) {
            const struct front_model *m = &f->models[i];
            const double v[] = {m->state == FRONT_LOADED,
                                m->child ? (double)m->spec->bytes : 0,
                                (double)m->loads,
                                (double)m->crashes,
                                (double)m->load_us * 1e-6,
                                m->waiting,
                                m->active};
            st = buf_addf(out, "%s{model_name=\"%s\"} %.17g\n", families[k][0], m->spec->name, v[k]);
        }
    }
    return st;
}

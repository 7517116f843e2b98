/* See front.h. Requests to children: libcurl on the event loop. Callbacks of libcurl only copy bytes. */
#include "server/front/internal.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "server/context/limits.h"
#include "server/http/event_loop.h"
#include "server/json/writer.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HELD_MAX     131072u /* bytes of a response that wait for the client; then its child waits */
#define SCAN_AT_ONCE 262144u /* larger bodies are read by a worker */
#define WAIT_US      300000000u
#define CONNECT_MS   5000L

/* ---- libcurl inside libuv ---- */

struct watch {
    uv_poll_t poll;
    struct front *front;
    curl_socket_t fd;
};

static void transfer_end(struct transfer *t);

static void finished(struct front *f)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(f->multi, &left))) {
        struct transfer *t = NULL;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t)) continue;
        bool ok = m->data.result == CURLE_OK;
        if (!ok) log_debug("model %s: %s", t->model->spec->name, curl_easy_strerror(m->data.result));
        t->done(t, ok);
        transfer_end(t);
    }
}

static void act(struct front *f, curl_socket_t fd, int events)
{
    int running;
    curl_multi_socket_action(f->multi, fd, events, &running);
    finished(f);
}

static void socket_event(uv_poll_t *p, int status, int events)
{
    const struct watch *w = p->data;
    int bits = (events & UV_READABLE ? CURL_CSELECT_IN : 0) | (events & UV_WRITABLE ? CURL_CSELECT_OUT : 0);
    act(w->front, w->fd, status ? CURL_CSELECT_ERR : bits);
}

static void timer_event(uv_timer_t *t)
{
    act(t->data, CURL_SOCKET_TIMEOUT, 0);
}

static void watch_closed(uv_handle_t *h)
{
    free(h->data);
}

static int on_socket(CURL *e, curl_socket_t fd, int what, void *user, void *mine)
{
    struct front *f = user;
    struct watch *w = mine;
    (void)e;
    if (what == CURL_POLL_REMOVE) {
        if (w) uv_close((uv_handle_t *)&w->poll, watch_closed);
        return 0;
    }
    if (!w) {
        if (!(w = calloc(1, sizeof *w))) return -1;
        if (uv_poll_init(&f->srv->loop->uv, &w->poll, fd)) return free(w), -1;
        *w = (struct watch){.poll = w->poll, .front = f, .fd = fd};
        w->poll.data = w;
        curl_multi_assign(f->multi, fd, w);
    }
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&w->poll, events, socket_event) ? -1 : 0;
}

static int on_timer(CURLM *multi, long ms, void *user)
{
    struct front *f = user;
    (void)multi;
    return ms < 0 ? uv_timer_stop(&f->timer) : uv_timer_start(&f->timer, timer_event, (uint64_t)ms, 0);
}

enum status front_curl_open(struct front *f)
{
    f->multi = curl_multi_init();
    if (!f->multi || uv_timer_init(&f->srv->loop->uv, &f->timer)) return ST_NOMEM;
    f->timer.data = f;
    bool bad = curl_multi_setopt(f->multi, CURLMOPT_SOCKETFUNCTION, on_socket) ||
               curl_multi_setopt(f->multi, CURLMOPT_SOCKETDATA, f) ||
               curl_multi_setopt(f->multi, CURLMOPT_TIMERFUNCTION, on_timer) ||
               curl_multi_setopt(f->multi, CURLMOPT_TIMERDATA, f) ||
               curl_multi_setopt(f->multi, CURLMOPT_MAXCONNECTS, 256L);
    return bad ? ST_NOMEM : ST_OK;
}

void front_curl_close(struct front *f)
{
    curl_multi_cleanup(f->multi);
    f->multi = NULL;
}

/* ---- a transfer ---- */

static void throttle(struct transfer *t, bool on)
{
    if (!t->request || t->request->throttled == on) return;
    t->request->throttled = on;
    if (on) t->model->front->throttled++;
    else t->model->front->throttled--;
}

static void transfer_end(struct transfer *t)
{
    struct front *f = t->model->front;
    throttle(t, false);
    if (t->easy) curl_multi_remove_handle(f->multi, t->easy);
    curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    buf_fini(&t->text);
    if (t->counts) front_used(t->model, -1, 0);
    free(t);
}

/* ---- stored responses: which model has one ---- */

static const char stored_mark[] = "resp_";

static uint64_t stored_hash(const char *id)
{
    uint64_t hash = 0;
    crypto_shorthash((unsigned char *)&hash, (const unsigned char *)id, strspn(id, "0123456789abcdef"),
                     (const unsigned char[crypto_shorthash_KEYBYTES]){0});
    return hash;
}

static struct front_model *stored_at(struct front *f, const char *path)
{
    const char *id = strstr(path, "/responses/") ? strstr(path, stored_mark) : NULL;
    uint64_t hash = id ? stored_hash(id + strlen(stored_mark)) : 0;
    for (size_t i = 0; i < FRONT_STORED && id; i++)
        if (f->stored[i].hash == hash) return f->stored[i].model;
    return NULL;
}

/* The first bytes of a response hold its id. */
static void stored_note(struct front *f, struct front_model *m, const char *data, size_t len)
{
    const char *id = memmem(data, len < 512 ? len : 512, stored_mark, strlen(stored_mark));
    if (!id || (size_t)(data + len - id) < strlen(stored_mark) + 33) return; /* with its quote */
    f->stored[f->stored_at++ % FRONT_STORED] =
        (struct front_stored){stored_hash(id + strlen(stored_mark)), m};
}

/* The first bytes of a response: its head is known. */
static void begin(struct transfer *t)
{
    struct request *r = t->request;
    struct forward *w = r->forward;
    const char *type = NULL;
    long status = 500;
    curl_off_t size = -1, retry = 0, sent = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type);
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
    curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry);
    curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    if (sent == (curl_off_t)r->http.body.len) request_body_drop(r, 0);
    snprintf(w->type, sizeof w->type, "%s", type ? type : "application/json");
    t->begun = r->passed_on = true;
    r->response.content_type = w->type;
    r->response.retry_after = retry > 0 && retry < 3600 ? (unsigned)retry : 1;
    request_stream_pass(r, (int)status, size >= 0 ? (uint64_t)size : UINT64_MAX);
}

static size_t on_bytes(char *data, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    struct request *r = t->request;
    (void)size; /* 1 */
    if (!r) return buf_add(&t->text, data, n) ? 0 : n;
    if (r->response.out.len > HELD_MAX) {
        throttle(t, true);
        return CURL_WRITEFUNC_PAUSE;
    }
    if (!t->begun && strstr(r->http.path, "/responses")) stored_note(t->model->front, t->model, data, n);
    if (!t->begun) begin(t);
    if (buf_add(&r->response.out, data, n)) return 0;
    request_stream_more(r);
    return n;
}

void front_pump(struct server *s)
{
    struct front *f = s->front;
    for (struct request *r = s->requests; r && f->throttled; r = r->next) {
        if (!r->throttled || r->response.out.len) continue;
        struct transfer *t = r->forward->transfer;
        throttle(t, false);
        curl_easy_pause(t->easy, CURLPAUSE_CONT); /* what it holds comes at once */
    }
}

/* Which neither loads a model nor counts as its use. */
static bool is_metrics(const struct request *r)
{
    return strcmp(r->http.path, "/metrics") == 0;
}

static struct transfer *transfer_start(struct front_model *m, struct request *r, const char *path,
                                       struct curl_slist *headers)
{
    struct transfer *t = calloc(1, sizeof *t);
    CURL *e = curl_easy_init();
    char *url = NULL;
    bool bad = !t || !e || asprintf(&url, "http://localhost%s", path) < 0;
    if (t) *t = (struct transfer){.model = m, .request = r, .easy = e, .headers = headers};
    if (t) buf_init(&t->text, 16u << 20);
    bad = bad || curl_easy_setopt(e, CURLOPT_URL, url) ||
          curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, child_socket(m->child)) ||
          curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers) || curl_easy_setopt(e, CURLOPT_PRIVATE, t) ||
          curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes) || curl_easy_setopt(e, CURLOPT_WRITEDATA, t) ||
          curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) || curl_easy_setopt(e, CURLOPT_PROXY, "") ||
          curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L) ||
          curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    if (r && r->http.method == M_POST)
        bad = bad || curl_easy_setopt(e, CURLOPT_POSTFIELDS, r->http.body.len ? r->http.body.data : "") ||
              curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->http.body.len);
    if (r && r->http.method == M_HEAD) bad = bad || curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    if (r && r->http.method == M_DELETE) bad = bad || curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, "DELETE");
    free(url);
    if (bad || curl_multi_add_handle(m->front->multi, e)) {
        curl_easy_cleanup(e);
        curl_slist_free_all(headers);
        free(t);
        return NULL;
    }
    t->counts = r && !is_metrics(r);
    if (t->counts) front_used(m, 1, 0);
    return t;
}

struct transfer *front_ask_child(struct front_model *m, const char *path, bool post,
                                 void (*done)(struct transfer *t, bool ok), void *arg)
{
    struct curl_slist *own = m->child ? curl_slist_append(NULL, FRONT_HEADER ": - 0 - 8 0") : NULL;
    struct transfer *t = own ? transfer_start(m, NULL, path, own) : NULL;
    if (!t) return NULL;
    if (post) curl_easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, "POST");
    t->done = done;
    t->arg = arg;
    return t;
}

/* ---- a request's head ---- */

struct head {
    struct curl_slist *list;
    struct buf path;
    bool bad;
};

static void head_add(struct head *h, const char *line)
{
    struct curl_slist *more = curl_slist_append(h->list, line);
    if (more) h->list = more;
    else h->bad = true;
}

/* Except what concerns this connection, and what is checked here. */
static enum MHD_Result header_pass(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    static const char *const own[] = {
        "Host",       "Connection", "Content-Length", "Transfer-Encoding", "Expect",
        "Keep-Alive", "TE",         "Trailer",        "Upgrade",           "Authorization",
        "x-api-key",  "api-key",    "Origin",         "X-Request-Id",      FRONT_HEADER};
    struct head *h = arg;
    char *line = NULL;
    (void)kind;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcasecmp(name, own[i]) == 0) return MHD_YES;
    if (strncasecmp(name, "Sec-", 4) == 0 || !value || !*value) return MHD_YES;
    if (asprintf(&line, "%s: %s", name, value) < 0) h->bad = true;
    else head_add(h, line);
    free(line);
    return MHD_YES;
}

static enum MHD_Result argument_pass(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct head *h = arg;
    (void)kind;
    bool first = !memchr(h->path.data, '?', h->path.len);
    if (buf_addf(&h->path, "%c%s%s%s", first ? '?' : '&', name, value ? "=" : "", value ? value : ""))
        h->bad = true;
    return MHD_YES;
}

/* Who asks, as it was checked here: auth.c reads it. */
static void identity_add(struct head *h, const struct request *r)
{
    char key[2 * sizeof r->http.key + 1] = "-", line[CLIENT_BYTES + sizeof key + 120];
    if (r->http.has_key) sodium_bin2hex(key, sizeof key, r->http.key, sizeof r->http.key);
    snprintf(line, sizeof line, FRONT_HEADER ": %s %llx %s %u %llu", *r->http.client ? r->http.client : "-",
             (unsigned long long)r->response.share->holder, key,
             (r->http.one_key ? 1u : 0) | (r->http.may_precede ? 2u : 0) | (r->http.id_from_client ? 4u : 0) |
                 (r->http.admin ? 8u : 0) | (r->http.inside ? 16u : 0),
             (unsigned long long)r->http.websocket);
    head_add(h, line);
    snprintf(line, sizeof line, "X-Request-Id: %s", r->http.id);
    head_add(h, line);
}

static void passed_done(struct transfer *t, bool ok);

static bool pass(struct request *r, struct front_model *m)
{
    struct head h = {0};
    buf_init(&h.path, LIMIT_HEADER_BYTES);
    head_add(&h, "Expect:");
    identity_add(&h, r);
    h.bad = buf_adds(&h.path, r->http.path) || h.bad;
    MHD_get_connection_values(r->http.mhd, MHD_HEADER_KIND, header_pass, &h);
    if (!h.bad) MHD_get_connection_values(r->http.mhd, MHD_GET_ARGUMENT_KIND, argument_pass, &h);
    struct transfer *t = h.bad ? NULL : transfer_start(m, r, h.path.data, h.list);
    if (h.bad) curl_slist_free_all(h.list);
    buf_fini(&h.path);
    if (!t) return false;
    t->done = passed_done;
    r->forward->transfer = t;
    return true;
}

/* ---- a request's way ---- */

static void fail(struct request *r, int status, const char *code, unsigned retry, const char *what)
{
    const struct front_model *m = r->forward->model;
    r->response.retry_after = retry;
    (void)api_fail(&r->response.error, status, code, "model", "The model `%.150s` %s", m->spec->name, what);
    request_fail(r);
}

static void passed_done(struct transfer *t, bool ok)
{
    struct request *r = t->request;
    r->forward->transfer = NULL;
    if (strstr(r->http.path, "load_lora_adapter")) front_card_read(t->model);
    if (ok && !t->begun) { /* without a body */
        long status = 500;
        curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
        r->passed_on = true;
        request_respond(r, (int)status);
    } else if (!t->begun) {
        fail(r, 503, "model_failed", 1, "stopped while it had this request: try again.");
    } else {
        r->stream.end = true;
        r->stream.cut = !ok; /* the client sees that the end is missing */
        request_stream_more(r);
    }
}

static void waits(struct request *r, bool on)
{
    struct forward *w = r->forward;
    if (w->waiting == on) return;
    w->waiting = on;
    front_used(w->model, 0, on ? 1 : -1);
}

static bool try_pass(struct request *r)
{
    struct forward *w = r->forward;
    bool failed;
    if (front_ready(w->model, &failed)) {
        request_wait_end(r);
        if (!pass(r, w->model)) fail(r, 503, "out_of_memory", 1, "can't be asked: out of memory.");
    } else if (failed) {
        char what[100];
        snprintf(what, sizeof what, "can't be loaded: its server ended with %s, and its log says why.",
                 w->model->exit);
        request_wait_end(r);
        fail(r, 503, "model_failed", (unsigned)((w->model->retry_us - now_us()) / 1000000u) + 1, what);
    } else if (now_us() > w->deadline_us) {
        request_wait_end(r);
        fail(r, 503, "model_loading", 10, "could not be loaded in time: others are in use.");
    } else {
        return false;
    }
    waits(r, false);
    return true;
}

static void poll(struct request *r)
{
    (void)try_pass(r);
}

static void gone(struct request *r)
{
    struct forward *w = r->forward;
    if (w->transfer) transfer_end(w->transfer);
    w->transfer = NULL;
    waits(r, false);
}

/* The one that it names; without a name the first. NULL: r->response.error is filled. */
static struct front_model *model_of(struct request *r, const struct front_ask *ask)
{
    struct front *f = r->srv->front;
    struct front_model *kept = *ask->model ? NULL : stored_at(f, r->http.path);
    if (kept) return kept;
    const char *argument = http_message_argument(&r->http, "model");
    char name[sizeof ask->model];
    snprintf(name, sizeof name, "%s", *ask->model || !argument ? ask->model : argument);
    if (name[0] && !*ask->model) percent_decode(name);
    struct front_model *m = *name ? front_find(f, name) : &f->models[0];
    size_t n = strlen(name);
    if (!m && n > 7 && r->response.shape == ERROR_OLLAMA && strcmp(name + n - 7, ":latest") == 0) {
        name[n - 7] = '\0'; /* Ollama's default tag */
        m = front_find(f, name);
    }
    if (m || r->srv->ctx.opt->accept_any_model) return m ? m : &f->models[0];
    char all[300] = "";
    for (size_t i = 0, at = 0; i < f->count && at + 60 < sizeof all; i++)
        at +=
            (size_t)snprintf(all + at, sizeof all - at, "%s`%.50s`", i ? ", " : "", f->models[i].spec->name);
    (void)api_fail(&r->response.error, 404, "model_not_found", "model",
                   "The model `%.100s` is not served here. This server has %s (GET /v1/models lists all).",
                   name, all);
    return NULL;
}

/* Ollama's way to unload: nothing to generate, and keep_alive 0. */
static void unloaded(struct request *r, bool chat)
{
    struct json_writer o = {.buf = &r->response.out};
    struct front_model *m = r->forward->model;
    m->keep_us = 0;
    front_balance(m->front);
    jw_put(&o, "{\"model\":%s,\"created_at\":", m->spec->name);
    jw_time(&o, r->http.created, 0);
    jw_text(&o, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"response\":\"\"");
    jw_text(&o, ",\"done\":true,\"done_reason\":\"unload\"}\n");
    request_respond(r, o.st ? 500 : 200);
}

static uint64_t keep_default(const struct options *o)
{
    return o->idle_unload ? o->idle_unload * 1000000u : UINT64_MAX;
}

static void asked(struct request *r)
{
    struct forward *w = r->forward;
    const struct options *o = r->srv->ctx.opt;
    struct front_model *m = w->model = model_of(r, &w->ask);
    bool chat = strcmp(r->http.path, "/api/chat") == 0;
    if (!m) {
        request_fail(r);
        return;
    }
    r->model_name = m->spec->name;
    if (is_metrics(r) && m->state != FRONT_LOADED) {
        fail(r, 503, "model_unloaded", 1, "is not loaded: it has no metrics.");
        return;
    }
    if (!is_metrics(r)) m->keep_us = keep_default(o);
    /* Among several keys one decides for all as with /models/unload. */
    bool keeps = w->ask.has_keep && (!r->srv->auth || r->http.admin || o->enable_admin == ENABLE_ADMIN_ON);
    if (keeps) m->keep_us = w->ask.keep < 0 || w->ask.keep > 1e9 ? UINT64_MAX : (uint64_t)(w->ask.keep * 1e6);
    if (keeps && !m->keep_us && w->ask.empty && (chat || strcmp(r->http.path, "/api/generate") == 0)) {
        unloaded(r, chat);
        return;
    }
    if (m->waiting >= o->max_queue) {
        fail(r, 429, "rate_limit_exceeded", 10, "has a full queue: it is not loaded yet.");
        return;
    }
    w->deadline_us = now_us() + (o->request_timeout ? o->request_timeout * 1000000u : WAIT_US);
    request_wait(r, poll);
    if (!try_pass(r)) waits(r, true);
}

static void ask(struct request *r)
{
    front_ask_read(r->http.body.data, r->http.body.len, r->response.shape == ERROR_OLLAMA, &r->forward->ask);
}

void front_pass(struct request *r)
{
    const char *type = http_message_header(&r->http, "Content-Type");
    bool json = r->http.body.len && !(type && strncasecmp(type, "multipart/", 10) == 0);
    if (!(r->forward = calloc(1, sizeof *r->forward))) {
        (void)api_nomem(&r->response.error);
        request_fail(r);
        return;
    }
    r->forward_gone = gone;
    if (json && r->http.body.len > SCAN_AT_ONCE) {
        request_work(r, ask, asked);
        return;
    }
    if (json) ask(r);
    asked(r);
}

void front_load(struct request *r, bool load)
{
    struct front_ask body = {0};
    struct front_model *m = NULL;
    front_ask_read(r->http.body.data, r->http.body.len, false, &body);
    if (!*body.model)
        (void)api_fail(&r->response.error, 400, "missing_required_parameter", "model", "Field required.");
    else m = model_of(r, &body);
    bool failed;
    if (m && load) {
        m->wanted = !front_ready(m, &failed);
        m->keep_us = keep_default(r->srv->ctx.opt);
    } else if (m && !load && m->active) {
        m->closing = m->state == FRONT_LOADED; /* when its requests are done */
    } else if (m && !load) {
        m->wanted = false;
        front_leave(m);
    }
    front_balance(r->srv->front);
    if (m && buf_adds(&r->response.out, "{\"success\":true}")) (void)api_nomem(&r->response.error);
    request_finish(r);
}

static void nothing(struct transfer *t, bool ok)
{
    (void)t;
    (void)ok;
}

void front_tell(struct front *f, const char *path)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->models[i].state == FRONT_LOADED)
            (void)front_ask_child(&f->models[i], path, true, nothing, NULL);
}

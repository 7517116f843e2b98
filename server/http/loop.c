/* See event_loop.h. libmicrohttpd's callbacks for requests (life cycle: http/request.h), and the listening
 * socket. Knows no endpoint. */
#include "server/http/event_loop.h"

#include "config/base/file.h"
#include "config/base/hex.h"
#include "config/base/log.h"
#include "server/fetch/fetch.h"
#include "server/http/conn.h"
#include "server/context/limits.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/http/tls.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- libmicrohttpd inside libuv ---- */

/* It has no timeouts (conn.c has them), so it either waits for its descriptors or is ready at once. If ready,
 * it runs again in the loop's next iteration, so that everything else runs in between: a 0 ms timer started
 * in a timer would run in the same iteration, endlessly. */
void loop_pump(struct loop *l)
{
    MHD_UNSIGNED_LONG_LONG ms;
    l->check(l->srv);
    MHD_run(l->mhd);
    l->mhd_ready = MHD_get_timeout(l->mhd, &ms) == MHD_YES && ms == 0;
    if (!l->mhd_ready) uv_idle_stop(&l->mhd_idle);
    else server_kick(l->srv);
}

static void mhd_again(uv_idle_t *h)
{
    loop_pump(h->data);
}

static void mhd_readable(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    loop_pump(p->data);
}

static void mhd_log(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    if (!log_enabled(LOG_DEBUG)) return;
    char line[512];
    vsnprintf(line, sizeof line, fmt, ap);
    if (strstr(line, "TCP_") || strstr(line, "push the data")) return; /* its end of the pair is not TCP */
    log_debug("http %s", line);
}

/* Paths are decoded after splitting: "/v1/models/a%2Fb". */
static size_t mhd_unescape(void *cls, struct MHD_Connection *c, char *s)
{
    (void)cls;
    (void)c;
    return strlen(s);
}

static enum MHD_Result queue_response(struct request *r)
{
    struct MHD_Response *resp = request_response(r);
    if (!resp) return MHD_NO;
    unsigned status = (unsigned)r->response.status; /* 101: sent by the HTTP front */
    enum MHD_Result ok = MHD_queue_response(r->http.mhd, status == 101 ? 204 : status, resp);
    MHD_destroy_response(resp); /* the connection keeps its own reference */
    r->http.queued = ok == MHD_YES;
    return ok;
}

/* Refused by its headers. A small body is drained to keep the connection; otherwise the response is sent at
 * once. */
static enum MHD_Result refuse(struct request *r)
{
    const char *length = http_message_header(&r->http, "Content-Length");
    const char *coding = http_message_header(&r->http, "Transfer-Encoding");
    const char *expect = http_message_header(&r->http, "Expect");
    bool body = coding || (length && strcmp(length, "0") != 0);
    bool small = !coding && length && strlen(length) <= 5 && strtoul(length, NULL, 10) <= LIMIT_SMALL_BODY;
    request_to(r, RQ_SWALLOW);
    if (!body || (small && !expect && !r->http.close_after)) return MHD_YES;
    r->http.close_after = true;
    request_fail(r);
    return queue_response(r);
}

static enum MHD_Result body_take(struct request *r, const char *data, size_t len)
{
    struct server *s = r->srv;
    bool upload = r->route && r->route->needs & ROUTE_UPLOAD;
    uint64_t most = upload ? LIMIT_UPLOAD_BYTES : s->ctx.opt->max_body_bytes;
    r->http.body_seen += len;
    if (upload) r->http.body.max = 2 * LIMIT_UPLOAD_CHUNK;
    if (r->state == RQ_BODY && r->http.body_seen > most) {
        api_fail(&r->response.error, 413, "request_too_large", NULL,
                 "The request body is larger than %llu bytes.", (unsigned long long)most);
    } else if (r->state == RQ_BODY && !conn_bodies_fit(r, len)) {
        share_refused(r->response.share, SHARE_BODIES);
        api_fail(&r->response.error, 503, "out_of_memory", NULL,
                 "The server holds too many request bodies; try again.");
    } else if (r->state == RQ_BODY && http_message_body_add(&r->http, data, len)) {
        api_nomem(&r->response.error);
    }
    if (r->response.error.http) {
        request_body_drop(r, 0);
        if (r->state == RQ_BODY && conn_respond_early(r)) return MHD_NO;
        request_to(r, RQ_SWALLOW);
        return MHD_YES;
    }
    share_add(r->response.share, SHARE_BODIES, len);
    if (upload && r->http.body.len >= LIMIT_UPLOAD_CHUNK) {
        r->http.body_marks = 0; /* it is not parsed */
        request_work(r, r->srv->loop->chunk, request_body_more);
        http_message_sleep(&r->http);
    }
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *len, void **context)
{
    struct loop *l = cls;
    struct request *r = *context;
    (void)version;
    if (!r) {
        r = request_create(l->srv, c, method, url, 0);
        *context = r;
        if (!r) return MHD_NO;
        conn_request(r);
        return l->admit(r) && conn_admitted(r) ? MHD_YES : refuse(r);
    }
    if (r->state == RQ_RESPONSE && r->http.queued) return MHD_NO; /* the HTTP front has responded */
    if (*len) {
        if (r->cancelled) return MHD_NO;            /* a worker may still have the last chunk */
        if (r->state == RQ_WORKING) return MHD_YES; /* the next one is given again after it */
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
    if (r->state == RQ_RESPONSE || r->state == RQ_STREAM) return queue_response(r);
    http_message_sleep(&r->http);
    return MHD_YES;
}

void access_begin(struct log_line *l, const char *id, const char *path, int status, const char *client)
{
    char begin[201];
    log_begin(l, LOG_INFO, "request");
    log_text(l, "req", id);
    snprintf(begin, sizeof begin, "%s", path);
    log_text(l, "path", begin);
    log_number(l, "status", status, 0);
    log_text(l, "client", *client ? client : "unix");
}

/* W3C: "00-<trace id>-<parent id>-<flags>". */
static bool traceparent_ok(const char *text)
{
    static const char shape[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    size_t n = 0;
    while (n < sizeof shape - 1 && (shape[n] == 'x' ? hex_digit(text[n]) >= 0 : text[n] == shape[n])) n++;
    return n == sizeof shape - 1 && !text[n];
}

static void access_log(const struct request *r, int status, double seconds)
{
    struct log_line l;
    struct request_tokens t = {0};
    const char *trace = http_message_header(&r->http, "traceparent");
    if (r->gen && !r->work.runs) r->gen_tokens(r->gen, &t);
    access_begin(&l, r->http.id, r->http.path ? r->http.path : "", status, r->http.client);
    log_text(&l, "method", method_name(r->http.method));
    log_number(&l, "ms", seconds * 1e3, 1);
    if (r->gen) {
        log_text(&l, "model", r->model_name ? r->model_name : r->srv->ctx.model_name);
        log_number(&l, "prompt_tokens", (double)t.prompt, 0);
        log_number(&l, "cached_tokens", (double)t.cached, 0);
        log_number(&l, "completion_tokens", (double)t.completion, 0);
        if (t.first_us) log_number(&l, "ttft_ms", (double)(t.first_us - r->http.arrived_us) * 1e-3, 1);
    }
    if (trace && traceparent_ok(trace)) log_text(&l, "traceparent", trace);
    log_end(&l);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct request *r = *context;
    (void)cls;
    if (!r) return; /* refused before on_request */
    *context = NULL;
    bool gone = !r->http.queued || (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && r->state == RQ_STREAM);
    double seconds = (double)(now_us() - r->http.arrived_us) * 1e-6;
    int status = gone ? 499 : r->response.status;
    if (r->route && r->route->label)
        metrics_http(r->srv->metrics, r->route->label, method_name(r->http.method), status, seconds);
    if (log_enabled((r->route && !r->route->label) || r->passed_on ? LOG_DEBUG : LOG_INFO))
        access_log(r, status, seconds);
    conn_completed(c);
    r->http.mhd = NULL;
    r->http.suspended = false;
    if (gone) request_client_gone(r);
    request_release(r);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct conn *n = *context;
    (void)c;
    *context = code == MHD_CONNECTION_NOTIFY_STARTED ? conn_begun(cls) : NULL;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED && n) conn_ended(n);
}

/* ---- sockets ---- */

/* -> a socket that listens there, or -1 with errno. alone: an IPv6 address stands for IPv4 as well. */
static int listen_at(int family, const struct sockaddr *at, socklen_t len, bool alone)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd >= 0 && family == AF_INET6 && !alone)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (fd < 0 || (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && !bind(fd, at, len) &&
                   !listen(fd, 1024)))
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* A socket that a dead server left is replaced. No other file is: connections to it are refused as well. */
static int listen_unix(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat there;
    if (!*path || strlen(path) >= sizeof at.sun_path) {
        errno = *path ? ENAMETOOLONG : ENOENT;
        return -1;
    }
    memcpy(at.sun_path, path, strlen(path));
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe >= 0 && connect(probe, (struct sockaddr *)&at, sizeof at) && errno == ECONNREFUSED &&
        !lstat(path, &there) && S_ISSOCK(there.st_mode))
        unlink(path);
    if (probe >= 0) close(probe);
    return listen_at(AF_UNIX, (struct sockaddr *)&at, sizeof at, true);
}

static int listen_tcp(const char *host, unsigned port, bool alone, struct err *err)
{
    char number[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    snprintf(number, sizeof number, "%u", port);
    int rc = getaddrinfo(host, number, &hints, &list), fd = -1;
    if (rc) {
        (void)err_set(err, ST_INVALID, "--host %.100s: %s", host, gai_strerror(rc));
        errno = rc == EAI_NONAME ? EINVAL : EIO;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = listen_at(a->ai_family, a->ai_addr, a->ai_addrlen, alone);
    if (list) freeaddrinfo(list);
    return fd;
}

/* The first TCP address gives the URL, and its port is that of the others. */
static enum status listen_one(struct loop *l, const char *host, unsigned *port, bool alone, struct err *err)
{
    const char *path = strncmp(host, "unix:", 5) == 0 ? host + 5 : NULL;
    struct sockaddr_storage at = {0};
    socklen_t at_len = sizeof at;
    if (l->listener_count == LISTENERS_MAX)
        return err_set(err, ST_INVALID, "--host: at most %u addresses", LISTENERS_MAX);
    errno = 0;
    int fd = path ? listen_unix(path) : listen_tcp(host, *port, alone, err);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&at, &at_len)) {
        if (fd >= 0) close(fd);
        if (err->msg[0]) return errno == EINVAL ? ST_INVALID : ST_IO;
        return path
                   ? err_set(err, ST_IO, "can't listen on %.200s: %s", host, strerror(errno))
                   : err_set(err, ST_IO, "can't listen on %.100s port %u: %s%s", host, *port, strerror(errno),
                             errno == EADDRINUSE ? "; choose another with --port (0 picks a free one)" : "");
    }
    l->listeners[l->listener_count++].fd = fd;
    if (path) {
        if (!l->url[0]) snprintf(l->url, sizeof l->url, "unix:%.200s", path);
        return ST_OK;
    }
    bool six = at.ss_family == AF_INET6;
    *port = ntohs(six ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    bool loopback = six ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&at)->sin6_addr)
                        : ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr) >> 24 == 127;
    if (!loopback && !l->srv->auth)
        log_warn("no API keys, and %.200s is not a loopback address: anyone who can reach it can use it "
                 "(--api-key-file)",
                 host);
    l->srv->loopback = l->srv->loopback && loopback;
    six = strchr(host, ':') != NULL;
    if (strncmp(l->url, "http", 4) != 0)
        snprintf(l->url, sizeof l->url, "http%s://%s%.200s%s:%u", l->cert ? "s" : "", six ? "[" : "", host,
                 six ? "]" : "", *port);
    return ST_OK;
}

/* The kernel chooses the name. Only connections of this process are accepted there (conn.c). */
static enum status listen_inside(struct loop *l, struct err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t len = sizeof at;
    int fd = listen_at(AF_UNIX, (struct sockaddr *)&at, sizeof at.sun_family, true);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&at, &len))
        return err_set(err, ST_IO, "--data-dir: a socket for batches: %s", strerror(errno));
    size_t n = len - offsetof(struct sockaddr_un, sun_path) - 1;
    snprintf(l->inside, sizeof l->inside, "%.*s", (int)n, at.sun_path + 1);
    l->listeners[l->listener_count++] = (struct listener){.fd = fd, .inside = true};
    return ST_OK;
}

static enum status listen_open(struct loop *l, struct err *err)
{
    char *hosts = strdup(l->srv->ctx.opt->host), *next = hosts, *host;
    unsigned port = (unsigned)l->srv->ctx.opt->port;
    enum status st = hosts ? ST_OK : err_nomem(err, "the addresses of --host");
    l->srv->loopback = true;
    unsigned tcp = 0;
    for (const char *at = l->srv->ctx.opt->host; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        tcp += strncmp(at, "unix:", 5) != 0;
    while (!st && (host = strsep(&next, ","))) st = listen_one(l, host, &port, tcp < 2, err);
    free(hosts);
    return st || !l->srv->ctx.opt->data_dir || l->srv->ctx.opt->behind_front ? st : listen_inside(l, err);
}

/* Descriptors in addition to those of connections (three each): the loop's and libmicrohttpd's, a
 * checkpoint's while it loads. */
#define FILES_KEPT 38u
#define JOBS_FILES 256u /* of batches: four per line that runs, and those of a batch */
#define SPARE_MAX  64u

static enum status connections_max(struct loop *l, struct err *err)
{
    const struct options *o = l->srv->ctx.opt;
    struct rlimit rl;
    l->conn_max = (uint32_t)o->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &rl)) return ST_OK;
    if (rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
    unsigned kept = FILES_KEPT + (o->allow_remote_media ? FETCH_FILES : 0) + (o->data_dir ? JOBS_FILES : 0);
    if (rl.rlim_cur < kept + 6)
        return err_set(err, ST_INVALID, "%llu open files are too few (ulimit -n): %u are needed",
                       (unsigned long long)rl.rlim_cur, kept + 6);
    unsigned each = o->model_count ? 4 : 3; /* of several models, one to the model's own server */
    uint64_t most = (rl.rlim_cur - kept) / each;
    l->conn_spare = most / 16 < SPARE_MAX ? (uint32_t)(most / 16) + 1 : SPARE_MAX;
    most -= l->conn_spare;
    if (most < l->conn_max) {
        log_warn("%llu connections at once, not %u: each takes %u open files of %llu (ulimit -n)",
                 (unsigned long long)most, l->conn_max, each, (unsigned long long)rl.rlim_cur);
        l->conn_max = (uint32_t)most;
    }
    return ST_OK;
}

static enum status mhd_open(struct loop *l, struct err *err)
{
    l->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0, NULL,
        NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)l->conn_max + l->conn_spare + JOBS_FILES / 4 + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)LIMIT_CONNECTION_MEMORY, MHD_OPTION_NOTIFY_COMPLETED, on_completed, l,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_UNESCAPE_CALLBACK, mhd_unescape, NULL,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (!l->mhd) return err_set(err, ST_IO, "can't start the HTTP server");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || uv_poll_init(&l->uv, &l->mhd_poll, info->epoll_fd))
        return err_set(err, ST_IO, "can't poll the HTTP server");
    l->mhd_poll.data = l;
    uv_poll_start(&l->mhd_poll, UV_READABLE, mhd_readable);
    return conn_listen(l, err);
}

/* ---- life cycle ---- */

enum status loop_open(struct loop *l, struct server *s, struct err *err)
{
    l->srv = s;
    s->loop = l;
    enum status st = connections_max(l, err);
    if (!st) st = loop_cert_load(l, FILE_PIPE_MS, err);
    if (!st && (uv_loop_init(&l->uv) || uv_idle_init(&l->uv, &l->mhd_idle)))
        st = err_set(err, ST_IO, "can't make the event loop");
    l->mhd_idle.data = l;
    l->mhd_run = mhd_again;
    return st;
}

enum status loop_cert_load(struct loop *l, unsigned pipe_ms, struct err *err)
{
    const struct options *o = l->srv->ctx.opt;
    struct tls_cert *old = l->cert;
    enum status st = o->tls_cert ? tls_cert_load(o->tls_cert, o->tls_key, pipe_ms, &l->cert, err) : ST_OK;
    if (!st && l->cert != old) tls_cert_release(old);
    return st;
}

enum status loop_listen(struct loop *l, struct err *err)
{
    enum status st = listen_open(l, err);
    return st ? st : mhd_open(l, err);
}

/* libmicrohttpd is stuck if it is ready in so many consecutive ticks without any byte moving. */
#define STUCK_TICKS 10u

void loop_tick(struct loop *l, uint64_t now)
{
    conn_sweep(l, now);
    l->stuck_ticks = l->mhd_ready && l->moved == l->moved_seen ? l->stuck_ticks + 1 : 0;
    l->moved_seen = l->moved;
    if (l->stuck_ticks != STUCK_TICKS) return;
    log_error("libmicrohttpd is busy with nothing: connections that it may be about are cut");
    conn_unstick(l);
}

static void handle_close(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

void loop_close(struct loop *l)
{
    if (l->mhd) {
        conn_stop(l);
        uv_poll_stop(&l->mhd_poll);
        MHD_stop_daemon(l->mhd);
    }
    tls_cert_release(l->cert);
    uv_walk(&l->uv, handle_close, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    uv_loop_close(&l->uv);
}

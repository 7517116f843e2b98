/* See conn.h. */
#include "server/http/conn.h"

#include "config/base/assert.h"
#include "config/base/log.h"
#include "server/http/conn_state.h"
#include "server/http/http_parser.h"
#include "server/context/limits.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/http/tls.h"
#include "server/http/websocket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void pump_down(struct conn *n);
static void take(struct conn *n, const char *data, size_t len);
static void listen_poll(struct loop *l);
static bool room(struct loop *l);
static bool bodies_fit(struct conn *n, struct share *h, size_t more);

static void phase_to(struct conn *n, enum conn_phase phase, uint64_t now)
{
    static const struct state_rule rules[] = {
        [CONN_HEAD] = {"CONN_HEAD", 1u << CONN_BODY | 1u << CONN_LINGER},
        [CONN_BODY] = {"CONN_BODY", 1u << CONN_BUSY | 1u << CONN_LINGER},
        [CONN_BUSY] = {"CONN_BUSY", 1u << CONN_HEAD | 1u << CONN_WEBSOCKET | 1u << CONN_LINGER},
        [CONN_WEBSOCKET] = {"CONN_WEBSOCKET", 1u << CONN_LINGER},
        [CONN_LINGER] = {"CONN_LINGER", 0},
    };
    ASSERT_NEXT(rules, n->phase, phase, "connection %d", n->tcp);
    n->loop->bodies += phase == CONN_BODY;
    n->loop->bodies -= n->phase == CONN_BODY;
    n->phase = phase;
    n->phase_us = now;
}

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* ---- end ---- */

static void release(struct conn *n)
{
    struct loop *l = n->loop;
    if (n->handles || n->mhd_open) return;
    if (n->prev) n->prev->next = n->next;
    else l->conns = n->next;
    if (n->next) n->next->prev = n->prev;
    l->srv->conn_count -= !n->inside;
    l->closing -= n->tcp < 0 && !n->inside;
    l->bodies -= n->phase == CONN_BODY;
    share_sub(n->share, SHARE_BODIES, n->ws_bytes);
    share_release(n->share);
    websocket_free(n->ws);
    http_parser_fini(&n->in);
    tls_close(n->tls);
    buf_fini(&n->kept);
    buf_fini(&n->up);
    buf_fini(&n->down);
    buf_fini(&n->last);
    free(n);
    listen_poll(l);
}

static void handle_closed(uv_handle_t *h)
{
    struct conn *n = h->data;
    n->handles--;
    release(n);
}

static void side_close(uv_poll_t *poll, int *fd)
{
    if (*fd < 0) return;
    uv_close((uv_handle_t *)poll, handle_closed);
    close(*fd);
    *fd = -1;
}

/* libmicrohttpd notices at its next run; a suspended request is resumed for that. */
static void drop(struct conn *n)
{
    if (n->tcp >= 0) {
        n->loop->closing += !n->inside;
        n->loop->over -= n->over;
        share_sub(n->share, SHARE_CONNECTIONS, 1);
    }
    side_close(&n->tcp_poll, &n->tcp);
    side_close(&n->pair_poll, &n->pair);
    if (n->request) request_client_gone(n->request);
    if (n->ws) n->loop->forget(n->loop->srv, n->ws_id);
    server_kick(n->loop->srv);
}

/* libmicrohttpd has closed its end and the client has all bytes. */
static void finish(struct conn *n)
{
    int unread = 0;
    if (n->phase == CONN_LINGER || n->tcp < 0) return;
    if (n->tls) tls_bye(n->tls);
    bool whole = n->phase != CONN_BODY && !n->refused && !n->kept.len && !http_parser_begun(&n->in);
    whole = whole || (n->phase == CONN_BUSY && !n->kept.len);
    if (n->ended || (whole && (ioctl(n->tcp, FIONREAD, &unread) || !unread))) {
        drop(n);
        return;
    }
    shutdown(n->tcp, SHUT_WR);
    n->data_us = now_us();
    phase_to(n, CONN_LINGER, n->data_us);
}

/* ---- polling ---- */

static void tcp_event(uv_poll_t *p, int status, int events);
static void pair_event(uv_poll_t *p, int status, int events);

static void polls(struct conn *n)
{
    int tcp = 0, pair = 0;
    bool down = n->down.len > n->down_at, up = n->up.len > n->up_at;
    if (n->shaking) tcp = tls_writes(n->tls) ? UV_WRITABLE : UV_READABLE;
    else if (n->phase == CONN_LINGER || n->phase == CONN_WEBSOCKET) tcp = UV_READABLE;
    else if (n->refused || n->ended) tcp = 0;
    else if (n->phase == CONN_BUSY) tcp = n->kept.len < READ_CHUNK ? UV_READABLE : n->hup ? 0 : UV_DISCONNECT;
    else if (!up) tcp = UV_READABLE;
    if (down) tcp |= UV_WRITABLE;
    if (!down) pair = UV_READABLE;
    if (up) pair |= UV_WRITABLE;
    if (n->tcp >= 0 && tcp != n->tcp_mask)
        (tcp ? uv_poll_start(&n->tcp_poll, tcp, tcp_event) : uv_poll_stop(&n->tcp_poll));
    if (n->pair >= 0 && pair != n->pair_mask) uv_poll_start(&n->pair_poll, pair, pair_event);
    n->tcp_mask = tcp;
    n->pair_mask = pair;
}

/* ---- from libmicrohttpd to the client ---- */

/* Sends what the client accepts now; false: it has disconnected. */
static bool to_client(struct conn *n, const char *data, size_t len, size_t *sent)
{
    *sent = 0;
    while (*sent < len) {
        ssize_t k = n->tls ? tls_send(n->tls, data + *sent, len - *sent)
                           : send(n->tcp, data + *sent, len - *sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0) {
            *sent += (size_t)k;
            n->loop->moved++;
            n->sent_us = now_us();
        } else if (errno != EINTR) {
            return errno == EAGAIN;
        }
    }
    return true;
}

static void pump_down(struct conn *n)
{
    static char bytes[READ_CHUNK];
    while (n->tcp >= 0) {
        size_t sent;
        if (n->down.len > n->down_at) {
            if (!to_client(n, n->down.data + n->down_at, n->down.len - n->down_at, &sent)) {
                drop(n);
                return;
            }
            n->down_at += sent;
            if (n->down.len > n->down_at) break;
        }
        if (n->down.len) {
            buf_fini(&n->down);
            n->down_at = 0;
        }
        if (n->pair < 0) {
            if (!n->last.len) {
                finish(n);
                break;
            }
            n->down = n->last;
            n->sent_us = now_us();
            buf_init(&n->last, n->last.max);
            continue;
        }
        ssize_t k = recv(n->pair, bytes, sizeof bytes, MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN && !n->last.len) break;
        if (k <= 0) { /* it has closed, or all its output before our own response is sent */
            side_close(&n->pair_poll, &n->pair);
            if (n->ws) websocket_close(n->ws, n->loop->srv->health.phase >= SRV_LEAVING ? 1001 : 1011);
            continue;
        }
        if (n->ws) {
            n->sent_us = now_us(); /* down is empty */
            if (websocket_respond(n->ws, bytes, (size_t)k)) continue;
            drop(n);
            return;
        }
        n->sent_us = now_us(); /* down is empty */
        if (!to_client(n, bytes, (size_t)k, &sent) ||
            (sent < (size_t)k && buf_add(&n->down, bytes + sent, (size_t)k - sent))) {
            drop(n);
            return;
        }
    }
    if (n->tcp >= 0) polls(n);
}

/* ---- our own responses ---- */

/* The HTTP front's response, then the end of the connection. Out of memory: ends without a response. */
static void refuse(struct conn *n, const struct api_error *e, enum error_shape shape, const char *id,
                   const char *origin)
{
    struct buf text;
    buf_init(&text, READ_CHUNK);
    buf_init(&n->last, READ_CHUNK);
    bool anthropic = shape == ERROR_ANTHROPIC;
    error_json(e, shape, &text);
    bool ok = !buf_addf(&n->last,
                        "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\nServer: "
                        "kvasir/" KVASIR_VERSION "\r\nX-Request-Id: %s\r\nVary: Origin\r\n%s%s%s%s%s%s%s"
                        "Content-Length: %zu\r\n\r\n",
                        e->http, MHD_get_reason_phrase_for((unsigned)e->http), id,
                        anthropic ? "Request-Id: " : "", anthropic ? id : "", anthropic ? "\r\n" : "",
                        origin ? "Access-Control-Allow-Origin: " : "", origin ? origin : "",
                        origin ? "\r\n" : "", e->http == 503 ? "Retry-After: 1\r\n" : "", text.len);
    ok = ok && text.len && !buf_add(&n->last, text.data, text.len);
    buf_fini(&text);
    n->refused = true;
    buf_fini(&n->up);
    n->up_at = 0;
    if (ok) pump_down(n);
    else drop(n);
}

static void refuse_input(struct conn *n, const struct api_error *e)
{
    char id[REQUEST_ID_BYTES];
    struct request *r = n->request;
    if (r) {
        if (r->work.runs) { /* a worker has the request's error */
            drop(n);
            return;
        }
        if (!r->response.error.http) r->response.error = *e; /* else already refused by its headers */
        if (r->http.queued) n->refused = true; /* that response is being sent, then the connection ends */
        else if (!conn_respond_early(r)) drop(n);
        return;
    }
    request_id_make(id, n->in.id);
    metrics_rejected(n->loop->srv->metrics, e->http);
    if (log_enabled(LOG_INFO)) {
        struct log_line l;
        struct sockaddr_storage at = {0};
        char client[CLIENT_BYTES];
        socklen_t len = sizeof at;
        if (getpeername(n->tcp, (struct sockaddr *)&at, &len)) at.ss_family = AF_UNSPEC;
        client_name((struct sockaddr *)&at, client);
        access_begin(&l, id, "", e->http, client);
        log_text(&l, "error", e->message);
        log_end(&l);
    }
    refuse(n, e, ERROR_OPENAI, id, NULL);
}

bool conn_respond_early(struct request *r)
{
    struct conn *n = r->http.mhd ? conn_of(r->http.mhd) : NULL;
    if (!n || n->phase != CONN_BODY || n->refused || r->http.queued || n->tcp < 0) return false;
    metrics_rejected(r->srv->metrics, r->response.error.http);
    r->response.status = r->response.error.http;
    request_to(r, RQ_RESPONSE);
    r->http.queued = true;
    refuse(n, &r->response.error, r->response.shape, r->http.id, r->http.allow_origin);
    server_kick(n->loop->srv);
    return true;
}

/* ---- from the client to libmicrohttpd ---- */

static void flush_up(struct conn *n)
{
    while (n->up.len > n->up_at && n->pair >= 0) {
        ssize_t k = send(n->pair, n->up.data + n->up_at, n->up.len - n->up_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) return;
        n->loop->moved++;
        if (k < 0) break; /* it stopped reading: its response says why */
        n->up_at += (size_t)k;
    }
    buf_fini(&n->up);
    n->up_at = 0;
}

static void take(struct conn *n, const char *data, size_t len)
{
    uint64_t now = now_us();
    enum http_event ev = HTTP_MORE;
    n->data_us = now;
    do {
        size_t used = 0;
        bool begun = http_parser_begun(&n->in);
        ev = http_parser_feed(&n->in, data, len, &used, &n->up);
        data += used;
        len -= used;
        if (ev == HTTP_BAD) {
            refuse_input(n, &n->in.error);
            return;
        }
        if (n->phase == CONN_HEAD && !begun) n->phase_us = now;
        if (ev == HTTP_HEAD) phase_to(n, CONN_BODY, now);
        if (ev == HTTP_END) phase_to(n, CONN_BUSY, now);
    } while (ev == HTTP_HEAD || (len && n->phase != CONN_BUSY));
    if (len && buf_add(&n->kept, data, len)) {
        drop(n);
        return;
    }
    flush_up(n);
}

static void websocket_account(struct conn *n)
{
    share_sub(n->share, SHARE_BODIES, n->ws_bytes);
    n->ws_bytes = n->up.len - n->up_at + websocket_partial(n->ws);
    share_add(n->share, SHARE_BODIES, n->ws_bytes);
}

static void from_websocket(struct conn *n, const char *data, size_t len)
{
    struct server *s = n->loop->srv;
    n->data_us = now_us();
    if (n->down.len == n->down_at) n->sent_us = n->data_us;
    if (n->up_at > n->up.len / 2) { /* so that what is sent doesn't count */
        n->up.len -= n->up_at;
        memmove(n->up.data, n->up.data + n->up_at, n->up.len);
        n->up_at = 0;
    }
    bool ok = websocket_receive(n->ws, data, len);
    websocket_account(n);
    if (!ok || !bodies_fit(n, n->share, 0)) {
        drop(n);
        return;
    }
    flush_up(n);
    websocket_account(n);
    if (websocket_closed(n->ws)) { /* what it was sent is still delivered */
        side_close(&n->pair_poll, &n->pair);
        if (n->request) request_client_gone(n->request);
        server_kick(s);
    }
    pump_down(n);
}

enum status conn_upgrade(struct request *r)
{
    struct conn *n = conn_of(r->http.mhd);
    struct server *s = r->srv;
    size_t message = s->ctx.opt->max_body_bytes + LIMIT_HEADER_BYTES + LIMIT_URL_BYTES;
    if (!(n->ws = websocket_open(r, &n->up, &n->down)))
        return r->response.error.http ? ST_INVALID : api_nomem(&r->response.error);
    n->up.max = message;
    n->down.max = 4 * READ_CHUNK;
    n->ws_id = ++n->loop->ws_count;
    phase_to(n, CONN_WEBSOCKET, now_us());
    return ST_OK;
}

static void client_ended(struct conn *n)
{
    n->ended = true;
    if (n->phase == CONN_HEAD) pump_down(n); /* the last response may have just arrived */
    if (n->tcp < 0 || n->down.len > n->down_at) return;
    if (n->phase != CONN_BUSY) drop(n);
    /* Else the response is sent if it is ready; a half-closed client does not get a later one (conn_sweep).
     */
    else if (n->request && n->request->http.suspended) request_client_gone(n->request);
}

static void from_client(struct conn *n)
{
    static char bytes[READ_CHUNK];
    size_t most = sizeof bytes; /* of many bodies less each, so that what is short waits less for its turn */
    if (n->phase == CONN_BODY && n->loop->bodies > TURN_BODIES) most = most * TURN_BODIES / n->loop->bodies;
    if (most < READ_LEAST) most = READ_LEAST;
    ssize_t k = n->tls ? tls_recv(n->tls, bytes, sizeof bytes) : recv(n->tcp, bytes, most, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (k < 0 || (k == 0 && n->phase == CONN_LINGER)) {
        drop(n);
    } else if (k == 0) {
        client_ended(n);
    } else if (n->phase == CONN_LINGER) {
        n->data_us = now_us();
    } else if (n->phase == CONN_BUSY) {
        if (buf_add(&n->kept, bytes, (size_t)k)) drop(n);
    } else if (n->phase == CONN_WEBSOCKET) {
        n->loop->moved++;
        from_websocket(n, bytes, (size_t)k);
    } else {
        n->loop->moved++;
        take(n, bytes, (size_t)k);
    }
}

/* http:// to a port of https://: that is said in plain HTTP. */
static void refuse_plain(struct conn *n)
{
    struct api_error e = {0};
    tls_close(n->tls);
    n->tls = NULL;
    n->shaking = false;
    (void)api_fail(&e, 400, "tls_required", NULL,
                   "This port takes HTTPS, and the request came in plain HTTP: write https:// in its URL.");
    refuse_input(n, &e);
}

static void tcp_event(uv_poll_t *p, int status, int events)
{
    struct conn *n = p->data;
    if (n->tcp < 0) return;
    if (n->shaking && !status && tls_is_plain(n->tls)) {
        refuse_plain(n);
        return;
    }
    int shaken = n->shaking && !status ? tls_handshake(n->tls) : 1;
    if (status || shaken < 0) { /* a reset, or no TLS */
        drop(n);
        return;
    }
    n->shaking = shaken == 0;
    if (n->shaking) {
        polls(n);
        return;
    }
    if (events & UV_DISCONNECT && !(events & UV_READABLE)) {
        n->hup = true; /* no further input; as in client_ended */
        if (n->request && n->request->http.suspended) request_client_gone(n->request);
    }
    if (events & UV_WRITABLE) pump_down(n);
    if (n->tcp >= 0 && events & UV_READABLE) from_client(n);
    if (n->tcp >= 0) polls(n);
}

static void pair_event(uv_poll_t *p, int status, int events)
{
    struct conn *n = p->data;
    if (n->pair < 0) return;
    if (status) { /* its end is closed; earlier bytes are still readable */
        n->pair_mask = -1;
        buf_fini(&n->up);
        n->up_at = 0;
    }
    if (events & UV_WRITABLE) flush_up(n);
    if (n->ws) websocket_account(n); /* the request has those bytes now */
    pump_down(n);
}

/* ---- libmicrohttpd callbacks ---- */

struct conn *conn_begun(struct loop *l)
{
    l->adding->mhd_open = true;
    return l->adding;
}

void conn_ended(struct conn *n)
{
    n->mhd_open = false;
    release(n);
}

void conn_request(struct request *r)
{
    struct conn *n = conn_of(r->http.mhd);
    n->request = r;
    request_holder(r, n->address);
    r->http.inside = n->inside;
    r->http.websocket = n->ws_id;
    n->loop->moved++;
}

bool conn_admitted(struct request *r)
{
    struct conn *n = conn_of(r->http.mhd);
    struct loop *l = n->loop;
    struct share *h = r->response.share;
    if (n->tcp >= 0 && n->share != h && h->holder != n->address) {
        share_sub(n->share, SHARE_CONNECTIONS, 1);
        share_sub(n->share, SHARE_BODIES, n->ws_bytes);
        share_release(n->share);
        n->share = share_take(h->of, h->holder);
        share_add(n->share, SHARE_CONNECTIONS, 1);
        share_add(n->share, SHARE_BODIES, n->ws_bytes);
    }
    if (!(r->route->needs & ROUTE_AUTH) || l->srv->conn_count - l->closing - l->over <= l->conn_max ||
        share_held(n->share, SHARE_CONNECTIONS) <= l->conn_max / 2)
        return true;
    share_refused(n->share, SHARE_CONNECTIONS);
    r->http.close_after = true;
    n->over = n->tcp >= 0;
    l->over += n->over;
    (void)api_fail(&r->response.error, 429, "rate_limit_exceeded", NULL,
                   "This server's %u connections are in use, most of them by this key or address.",
                   l->conn_max);
    return false;
}

bool conn_bodies_fit(struct request *r, size_t more)
{
    return bodies_fit(conn_of(r->http.mhd), r->response.share, more);
}

void conn_completed(struct MHD_Connection *c)
{
    struct conn *n = conn_of(c);
    n->request = NULL;
    n->served = true;
    n->loop->moved++;
    bool ws = n->phase == CONN_WEBSOCKET;
    if ((n->phase != CONN_BUSY && !ws) || n->tcp < 0) return;
    n->data_us = now_us();
    if (!ws) {
        phase_to(n, CONN_HEAD, n->data_us);
        http_parser_next(&n->in);
    }
    struct buf kept = n->kept;
    buf_init(&n->kept, kept.max);
    if (kept.len) (ws ? from_websocket : take)(n, kept.data, kept.len);
    buf_fini(&kept);
    if (n->tcp >= 0) polls(n);
}

/* ---- deadlines ---- */

static void overdue(struct conn *n, const char *what)
{
    struct api_error e = {0};
    (void)api_fail(&e, 408, "request_timeout", NULL, "The request's %s did not arrive in time.", what);
    refuse_input(n, &e);
}

static bool later(uint64_t now, uint64_t since, uint64_t seconds)
{
    return now > since && now - since > seconds * 1000000u;
}

static bool uploads(const struct conn *n)
{
    return n->request && n->request->route && n->request->route->needs & ROUTE_UPLOAD;
}

static void sweep_one(struct conn *n, uint64_t now)
{
    uint64_t idle = n->loop->srv->ctx.opt->keep_alive_timeout,
             silence = idle < LIMIT_BODY_SILENCE ? idle : LIMIT_BODY_SILENCE;
    if (n->tcp < 0) return;
    bool down = n->down.len > n->down_at;
    if (down && later(now, n->sent_us, LIMIT_WRITE_SECONDS)) {
        drop(n);
        return;
    }
    if (n->refused && n->phase != CONN_LINGER) return;
    switch (n->phase) {
    case CONN_HEAD:
        if (n->ended) pump_down(n); /* its last response may have just arrived */
        if (n->tcp < 0) break;
        down = n->down.len > n->down_at;
        if ((n->ended && !down) || (!http_parser_begun(&n->in) && !down &&
                                    later(now, n->phase_us, n->served ? idle : LIMIT_HEADER_SECONDS)))
            drop(n);
        else if (http_parser_begun(&n->in) && later(now, n->phase_us, LIMIT_HEADER_SECONDS))
            overdue(n, "head");
        break;
    case CONN_BODY:
        if (later(now, n->data_us, silence) ||
            later(now, n->phase_us, uploads(n) ? LIMIT_UPLOAD_SECONDS : LIMIT_BODY_SECONDS))
            overdue(n, "body");
        break;
    case CONN_BUSY:
        if ((n->ended || n->hup) && n->request && n->request->http.suspended) request_client_gone(n->request);
        break;
    case CONN_WEBSOCKET:
        if (websocket_partial(n->ws) ? later(now, n->data_us, LIMIT_BODY_SILENCE)
                                     : !n->request && later(now, n->data_us, LIMIT_WEBSOCKET_IDLE)) {
            websocket_close(n->ws, 1001);
            side_close(&n->pair_poll, &n->pair);
            pump_down(n);
        }
        break;
    case CONN_LINGER:
        if (later(now, n->data_us, LIMIT_LINGER_SILENCE) || later(now, n->phase_us, LIMIT_LINGER_SECONDS))
            drop(n);
        break;
    }
}

void conn_sweep(struct loop *l, uint64_t now)
{
    for (struct conn *n = l->conns, *next; n; n = next) {
        next = n->next; /* never freed here: handles close first */
        sweep_one(n, now);
        if (n->tcp >= 0) polls(n);
    }
    (void)room(l);
    listen_poll(l);
}

void conn_unstick(struct loop *l)
{
    for (struct conn *n = l->conns; n; n = n->next) {
        bool asleep = n->request && n->request->http.suspended;
        if (n->tcp < 0 || asleep || n->phase == CONN_LINGER || (n->phase == CONN_WEBSOCKET && !n->request) ||
            (n->phase == CONN_HEAD && !http_parser_begun(&n->in)))
            continue;
        drop(n);
    }
}

bool conn_pending(const struct loop *l)
{
    for (const struct conn *n = l->conns; n; n = n->next) {
        int unread = 0;
        if (n->tcp < 0) continue;
        if (n->down.len > n->down_at || n->last.len) return true;
        if (n->pair >= 0 && !ioctl(n->pair, FIONREAD, &unread) && unread) return true;
    }
    return false;
}

void conn_cut(struct request *r)
{
    struct conn *n = r->http.mhd ? conn_of(r->http.mhd) : NULL;
    if (n) drop(n);
    request_client_gone(r);
}

/* ---- what gives way ---- */

static void close_idle(struct conn *n)
{
    uint64_t sent_us = n->sent_us;
    if (n->phase == CONN_HEAD) pump_down(n); /* the last response may have just arrived */
    if (n->down.len > n->down_at && n->sent_us != sent_us) return;
    share_refused(n->share, SHARE_CONNECTIONS);
    if (n->phase == CONN_WEBSOCKET) websocket_close(n->ws, 1013);
    if (n->phase == CONN_BODY) overdue(n, "body");
    else if (n->phase == CONN_HEAD && http_parser_begun(&n->in)) overdue(n, "head");
    else pump_down(n);
    drop(n);
}

static void body_drop(struct conn *n)
{
    struct request *r = n->request;
    struct api_error e = {0};
    (void)api_fail(&e, 503, "out_of_memory", NULL,
                   "The server holds too many request bodies, and most of them are this key's or address's: "
                   "try again.");
    share_refused(conn__owner(n), SHARE_BODIES);
    if (n->ws_bytes || !r) {
        share_sub(n->share, SHARE_BODIES, n->ws_bytes);
        n->ws_bytes = 0;
        websocket_close(n->ws, 1013);
        pump_down(n);
        drop(n);
        return;
    }
    request_body_drop(r, 0);
    if (r->state == RQ_BODY) {
        refuse_input(n, &e);
    } else {
        r->response.error = e;
        request_fail(r);
    }
}

static bool bodies_fit(struct conn *n, struct share *h, size_t more)
{
    struct conn *v;
    while (shares_held(h->of, SHARE_BODIES) + more > LIMIT_BODIES_BYTES) {
        if (!(v = conn__largest_body(n->loop, n, h, more))) return false;
        body_drop(v);
    }
    return true;
}

/* ---- accepting ---- */

static void conn_open(struct loop *l, int fd, const struct sockaddr *from, socklen_t from_len, bool inside)
{
    int pair[2], one = 1;
    struct conn *n = calloc(1, sizeof *n);
    if (!n || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        close(fd);
        free(n);
        return;
    }
    *n = (struct conn){.loop = l,
                       .tcp = fd,
                       .pair = pair[0],
                       .inside = inside,
                       .address = client_holder(from),
                       .handles = 2,
                       .phase_us = now_us(),
                       .data_us = now_us(),
                       .sent_us = now_us(),
                       .next = l->conns};
    if (n->next) n->next->prev = n;
    l->conns = n;
    l->srv->conn_count += !inside;
    n->share = share_take(&l->srv->shares, n->address);
    share_add(n->share, SHARE_CONNECTIONS, 1);
    http_parser_init(&n->in);
    buf_init(&n->kept, 2 * READ_CHUNK);
    buf_init(&n->up, 2 * READ_CHUNK + 2 * LIMIT_HEADER_BYTES);
    buf_init(&n->down, READ_CHUNK);
    buf_init(&n->last, READ_CHUNK);
    n->tcp_poll.data = n->pair_poll.data = n;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (uv_poll_init(&l->uv, &n->tcp_poll,
                     n->tcp)) { /* can't happen with our sockets; no libuv handle to close */
        close(n->tcp);
        close(n->pair);
        close(pair[1]);
        n->handles = 0;
        share_sub(n->share, SHARE_CONNECTIONS, 1);
        release(n);
        return;
    }
    bool tls = l->cert && from->sa_family != AF_UNIX;
    if (tls) n->tls = tls_open(l->cert, fd);
    n->shaking = n->tls != NULL;
    bool bad = uv_poll_init(&l->uv, &n->pair_poll, n->pair) != 0;
    if (bad) {
        n->handles--;
        close(n->pair);
        n->pair = -1;
    }
    l->adding = n;
    bad = MHD_add_connection(l->mhd, pair[1], from, from_len) != MHD_YES || bad ||
          (tls && !n->tls);                 /* it closes its end, also on failure */
    if (!bad && !n->mhd_open) loop_pump(l); /* libmicrohttpd 1.0 begins it in its next run */
    l->adding = NULL;
    if (bad || !n->mhd_open) drop(n);
    else polls(n);
}

static void listen_pause(struct loop *l)
{
    for (uint32_t i = 0; i < l->listener_count; i++) uv_poll_stop(&l->listeners[i].poll);
    l->listening = false;
}

/* May one more be accepted? At the limit idle ones are closed for it. While none is idle, it takes one of a
 * few more places: there, what is no probe and of who has most is refused by its head (conn_admitted). */
static bool room(struct loop *l)
{
    bool full = l->srv->conn_count >= l->conn_max + l->conn_spare;
    struct conn *idlest[CONN_IDLEST];
    uint32_t count = l->srv->conn_count - l->closing > l->conn_max ? conn__idlest(l, full, idlest) : 0;
    for (uint32_t i = 0; i < count; i++) close_idle(idlest[i]);
    return !full;
}

/* Accepts some connections from the kernel's queue; false: it is empty, or none can be accepted now. */
static bool accept_from(struct loop *l, const struct listener *at)
{
    bool more = true;
    struct ucred peer;
    for (int i = 0; i < 64 && (more = room(l)); i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof from, peer_len = sizeof peer;
        int fd = accept4(at->fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        bool own = fd < 0 || !at->inside ||
                   (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) && peer.pid == getpid());
        if (!own) {
            close(fd);
        } else if (fd >= 0) {
            conn_open(l, fd, (struct sockaddr *)&from, len, at->inside);
        } else if (errno != ECONNABORTED && errno != EINTR) {
            if (errno == EAGAIN) return false;
            if (!l->accept_failed)
                log_warn("connections can't be taken: %s", strerror(errno)); /* descriptors, memory */
            l->accept_failed = true;
            listen_pause(l); /* until the next tick */
            return false;
        }
    }
    l->accept_failed = false;
    if (!more) listen_pause(l); /* they stay in the kernel's queue until one closes */
    return more;
}

static bool accept_some(struct loop *l)
{
    bool more = false;
    for (uint32_t i = 0; i < l->listener_count; i++) more = accept_from(l, &l->listeners[i]) || more;
    return more;
}

static void listen_event(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    (void)accept_some(p->data);
}

static void listen_poll(struct loop *l)
{
    if (l->listening || l->srv->conn_count >= l->conn_max + l->conn_spare) return;
    l->listening = l->listener_count > 0;
    for (uint32_t i = 0; i < l->listener_count; i++)
        if (uv_poll_start(&l->listeners[i].poll, UV_READABLE, listen_event)) l->listening = false;
}

enum status conn_listen(struct loop *l, struct err *err)
{
    for (uint32_t i = 0; i < l->listener_count; i++) {
        if (uv_poll_init(&l->uv, &l->listeners[i].poll, l->listeners[i].fd))
            return err_set(err, ST_IO, "can't poll the listening socket");
        l->listeners[i].poll.data = l;
    }
    listen_poll(l);
    return ST_OK;
}

void conn_listen_stop(struct loop *l)
{
    /* Queued clients are connected and would be reset: they get a 503, which they can retry.
     */
    while (l->srv->health.phase == SRV_DRAINING && accept_some(l)) continue;
    for (; l->listener_count; l->listener_count--) {
        struct listener *at = &l->listeners[l->listener_count - 1];
        struct sockaddr_un name = {0};
        socklen_t len = sizeof name;
        if (!getsockname(at->fd, (struct sockaddr *)&name, &len) && name.sun_family == AF_UNIX)
            unlink(name.sun_path);
        uv_close((uv_handle_t *)&at->poll, NULL);
        close(at->fd);
    }
    l->listening = false;
}

void conn_stop(struct loop *l)
{
    conn_listen_stop(l);
    for (struct conn *n = l->conns; n; n = n->next) {
        if (n->ws) websocket_close(n->ws, 1001);
        pump_down(n);
        drop(n);
    }
}

/* See conn.h. */
#include "server/conn.h"

#include "config/base/log.h"
#include "server/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static int fd_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

void conn_notify(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct conn *n = calloc(1, sizeof *n);
        *context = n;
        if (!n) return; /* served without deadlines */
        *n = (struct conn){.srv = s, .fd = fd_of(c), .phase_us = now_us(), .next = s->conns};
        if (s->conns) s->conns->prev = n;
        s->conns = n;
        s->conn_count++;
        int one = 1;
        setsockopt(n->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    } else {
        struct conn *n = *context;
        if (!n) return;
        if (n->prev) n->prev->next = n->next;
        else s->conns = n->next;
        if (n->next) n->next->prev = n->prev;
        s->conn_count--;
        free(n);
        *context = NULL;
    }
}

void conn_phase_set(struct MHD_Connection *c, enum conn_phase phase, struct request *r)
{
    struct conn *n = conn_of(c);
    if (!n) return;
    /* libmicrohttpd would close without a word; its own clock stays behind ours. */
    unsigned seconds = (unsigned)n->srv->opt->keep_alive_timeout;
    if ((phase == CONN_BODY) != (n->phase == CONN_BODY))
        MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, phase == CONN_BODY ? seconds + LIMIT_BODY_SILENCE : seconds);
    n->phase = phase;
    n->phase_us = n->data_us = now_us();
    n->ended = false;
    n->request = r;
}

void conn_data(struct MHD_Connection *c)
{
    struct conn *n = conn_of(c);
    if (n) n->data_us = now_us();
}

/* A response can be queued in front of a body or behind it, not in the middle (MHD_queue_response). But nothing else is being written to such a
 * connection, so the answer goes out beside libmicrohttpd, which then finds the connection closed. */
static void body_overdue(struct conn *n)
{
    struct request *r = n->request;
    struct buf text, head;
    if (!r || r->queued || r->cancelled) return;
    request_overdue(r);
    buf_init(&text, 1u << 16);
    buf_init(&head, 1u << 16);
    error_json(&r->error, &text);
    bool ok = !buf_addf(&head, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nServer: kvasir/" KVASIR_VERSION "\r\n%sContent-Length: %zu\r\n\r\n",
                          r->status, MHD_get_reason_phrase_for((unsigned)r->status), r->id, r->has_origin ? "Access-Control-Allow-Origin: *\r\n" : "", text.len);
    if (ok && !buf_add(&head, text.data, text.len)) (void)!send(n->fd, head.data, head.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_fini(&text);
    buf_fini(&head);
}

/* libmicrohttpd asks for edges, and takes a read that leaves room in its buffer for the last: an end that came together with the bytes before it
 * is never read. All that the client sent is read by now, and it is no whole request. Two ticks in a row, so that libmicrohttpd has had its turn. */
static bool left(struct conn *n)
{
    char c;
    bool before = n->ended;
    n->ended = n->phase != CONN_BUSY && recv(n->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    return n->ended && before;
}

void conn_sweep(struct server *s, uint64_t now)
{
    /* libmicrohttpd's own timeout is about silence; a client that sends one byte now and then is caught here. */
    uint64_t limits[] = {[CONN_FRESH] = LIMIT_HEADER_SECONDS,
                         [CONN_IDLE] = s->opt->keep_alive_timeout,
                         [CONN_BODY] = LIMIT_BODY_SECONDS,
                         [CONN_BUSY] = 0};
    uint64_t silence = s->opt->keep_alive_timeout < LIMIT_BODY_SILENCE ? s->opt->keep_alive_timeout : LIMIT_BODY_SILENCE;
    for (struct conn *n = s->conns; n; n = n->next) {
        uint64_t limit = limits[n->phase];
        bool silent = n->phase == CONN_BODY && now > n->data_us && now - n->data_us > silence * 1000000u;
        bool gone = left(n);
        if (gone || silent || (limit && now > n->phase_us && now - n->phase_us > limit * 1000000u)) {
            if (n->phase == CONN_BODY && !gone) body_overdue(n);
            n->phase_us = n->data_us = now;
            n->ended = false;
            shutdown(n->fd, SHUT_RDWR);
        }
    }
}

void conn_cut(struct request *r)
{
    if (r->mhd) shutdown(fd_of(r->mhd), SHUT_RDWR);
    request_client_gone(r);
}

/* ---- a client that leaves ---- */

struct watch {
    uv_poll_t poll;
    struct request *r; /* NULL once stopped */
    int fd;            /* our duplicate */
};

static void watch_closed(uv_handle_t *h)
{
    struct watch *w = h->data;
    close(w->fd);
    free(w);
}

static void watch_event(uv_poll_t *h, int status, int events)
{
    struct watch *w = h->data;
    if (!w->r || (!status && !(events & UV_DISCONNECT))) return;
    struct request *r = w->r;
    watch_stop(r);
    request_client_gone(r);
}

void watch_start(struct request *r)
{
    if (r->watch || !r->mhd) return;
    int fd = fcntl(fd_of(r->mhd), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return;
    struct watch *w = calloc(1, sizeof *w);
    if (!w || uv_poll_init(&r->srv->loop, &w->poll, fd)) {
        free(w);
        close(fd);
        return;
    }
    w->poll.data = w;
    w->fd = fd;
    w->r = r;
    r->watch = w;
    uv_poll_start(&w->poll, UV_DISCONNECT, watch_event);
}

void watch_stop(struct request *r)
{
    struct watch *w = r->watch;
    if (!w) return;
    r->watch = NULL;
    w->r = NULL;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, watch_closed);
}

/* ---- lingering ---- */

struct lingering {
    struct lingering **head, *prev, *next; /* the server's list */
    uv_poll_t poll;
    uv_timer_t timer;
    uint64_t until; /* by the loop's clock */
    int fd, closed;
};
#define LINGER_SILENT_MS 2000u
#define LINGER_MS 30000u

static void linger_closed(uv_handle_t *h)
{
    struct lingering *l = h->data;
    if (++l->closed < 2) return;
    close(l->fd);
    free(l);
}

static void linger_end(struct lingering *l)
{
    if (uv_is_closing((uv_handle_t *)&l->poll)) return;
    if (l->prev) l->prev->next = l->next;
    else *l->head = l->next;
    if (l->next) l->next->prev = l->prev;
    uv_poll_stop(&l->poll);
    uv_close((uv_handle_t *)&l->poll, linger_closed);
    uv_close((uv_handle_t *)&l->timer, linger_closed);
}

static void linger_timeout(uv_timer_t *t)
{
    linger_end(t->data);
}

static void linger_event(uv_poll_t *h, int status, int events)
{
    (void)events;
    static char waste[65536];
    struct lingering *l = h->data;
    ssize_t n = status ? -1 : recv(l->fd, waste, sizeof waste, MSG_DONTWAIT);
    if (n > 0 && uv_now(h->loop) < l->until) uv_timer_start(&l->timer, linger_timeout, LINGER_SILENT_MS, 0);
    else if (n >= 0 || status || (errno != EAGAIN && errno != EINTR)) linger_end(l);
}

void linger_start(struct request *r)
{
    int fd = fcntl(fd_of(r->mhd), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return;
    struct lingering *l = calloc(1, sizeof *l);
    if (!l || uv_poll_init(&r->srv->loop, &l->poll, fd)) {
        free(l);
        close(fd);
        return;
    }
    l->fd = fd;
    l->head = &r->srv->lingering;
    l->next = *l->head;
    if (l->next) l->next->prev = l;
    *l->head = l;
    uv_timer_init(&r->srv->loop, &l->timer);
    l->poll.data = l->timer.data = l;
    /* libmicrohttpd stopped reading this connection, so the bytes are ours to throw away. */
    uv_poll_start(&l->poll, UV_READABLE | UV_DISCONNECT, linger_event);
    l->until = uv_now(&r->srv->loop) + LINGER_MS;
    uv_timer_start(&l->timer, linger_timeout, LINGER_SILENT_MS, 0);
}

void linger_stop(struct server *s)
{
    while (s->lingering) linger_end(s->lingering);
}

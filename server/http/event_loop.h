/* The parts of the event loop: libuv, libmicrohttpd, the listening socket and the connections. Requests know
 * nothing of it. Event loop's thread. Internal to server/. */
#ifndef KVASIR_LOOP_STATE_H
#define KVASIR_LOOP_STATE_H

#include "server/http/http.h"
#include "server/http/workers.h"

#include <microhttpd.h>
#include <sys/socket.h>
#include <uv.h>

struct log_line;

#define LISTENERS_MAX 8u

struct loop {
    uv_loop_t uv;
    struct workers workers;
    struct server *srv;
    bool (*admit)(struct request *r); /* at the end of the headers; false: r->response.error is filled */
    void (*check)(struct server *s);  /* before libmicrohttpd runs */
    void (*forget)(struct server *s, uint64_t websocket); /* it has closed */
    void (*chunk)(struct request *r); /* worker: takes r->http.body, of a route with ROUTE_UPLOAD */
    struct MHD_Daemon *mhd;
    uv_poll_t mhd_poll;
    uv_idle_t mhd_idle; /* active while libmicrohttpd has immediate work: */
    uv_idle_cb mhd_run;
    bool mhd_ready;
    uint64_t moved, moved_seen; /* counts progress of connections and libmicrohttpd */
    uint32_t stuck_ticks;       /* consecutive ticks in which it was ready, without progress */

    /* conn.c */
    struct listener {
        int fd;
        bool inside; /* for this process alone: its requests have http.inside */
        uv_poll_t poll;
    } listeners[LISTENERS_MAX + 1];
    uint32_t listener_count;
    bool listening,
        accept_failed;   /* the listening sockets are polled; the last accept had no descriptor or memory */
    struct conn *conns;  /* open connections */
    struct conn *adding; /* being handed to libmicrohttpd */
    uint32_t conn_max, conn_spare; /* places; a few more for what isn't idle for long */
    uint32_t closing, over;        /* of conn_count: their sockets are closed; they are being refused */
    uint32_t bodies;               /* connections that receive one */
    uint64_t ws_count;             /* WebSockets opened so far */

    struct tls_cert *cert; /* --tls-cert, as last read; NULL: plain HTTP */
    char url[300];         /* http://HOST:PORT */
    char inside[16];       /* of --data-dir: the abstract Unix socket of batches, without its NUL */
};

/* http/loop.c */
/* Creates s->loop, without HTTP. */
enum status loop_open(struct loop *l, struct server *s, struct err *err) KV_MUST_CHECK;
enum status loop_listen(struct loop *l, struct err *err) KV_MUST_CHECK; /* starts accepting connections */
/* --tls-cert and --tls-key, at the start and again: on an error the old ones stay. */
enum status loop_cert_load(struct loop *l, unsigned pipe_ms, struct err *err) KV_MUST_CHECK;
void loop_pump(struct loop *l);               /* runs libmicrohttpd once */
void loop_tick(struct loop *l, uint64_t now); /* deadlines, stuck libmicrohttpd; every 100 ms */
void loop_close(struct loop *l);              /* ends HTTP and every handle */
/* The first fields of a request's line in the log. */
void access_begin(struct log_line *l, const char *id, const char *path, int status, const char *client);

#endif

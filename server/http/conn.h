/* Connections from accept to close. Between each client's socket and libmicrohttpd there is an HTTP front:
 * http_parser.h parses what the client sends and passes it on through a socket pair, one request at a time;
 * libmicrohttpd's response comes back the same way, so libmicrohttpd sees only well-formed requests.
 * Deadlines, malformed requests and responses before the end of a body are handled here. Event loop's thread.
 * Internal to server/. */
#ifndef KVASIR_CONN_H
#define KVASIR_CONN_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conn;
struct loop;
struct request;
struct MHD_Connection;

enum conn_phase {
    CONN_HEAD = 0,  /* between two requests, or in a head */
    CONN_BODY,      /* libmicrohttpd has the head and the body so far */
    CONN_BUSY,      /* it has the whole request and is responding */
    CONN_WEBSOCKET, /* see websocket.h */
    CONN_LINGER,    /* the last response is written; input is discarded, because a TCP reset could make the
                       client lose the response */
};

/* Accepts connections on l->listeners for l->mhd. */
enum status conn_listen(struct loop *l, struct err *err) KV_MUST_CHECK;
void conn_listen_stop(struct loop *l); /* closes the listening sockets; safe to call twice */
/* libmicrohttpd accepted the connection being handed to it, and closed it. */
struct conn *conn_begun(struct loop *l);
void conn_ended(struct conn *n);
void conn_request(struct request *r); /* libmicrohttpd has r's head */
/* r's head is admitted: its connection is its key's now. False: refused, because that has too many. */
bool conn_admitted(struct request *r);
/* Makes room for `more` bytes of its body; false: there is none. */
bool conn_bodies_fit(struct request *r, size_t more);
void conn_completed(struct MHD_Connection *c); /* its request is finished: the next one may start */
/* Responds with r->response.error before the body is complete, which libmicrohttpd can't do. False: the body
 * is complete, or a response has started. */
bool conn_respond_early(struct request *r);
/* Makes r's connection a WebSocket when r is answered with 101. Else r->response.error is filled. */
enum status conn_upgrade(struct request *r) KV_MUST_CHECK;
void conn_cut(struct request *r);              /* ends a connection whose response is being written */
void conn_sweep(struct loop *l, uint64_t now); /* deadlines; every 100 ms */
void conn_unstick(struct loop *l);       /* libmicrohttpd reports ready but makes no progress: closes the
                                              connections that may be the cause */
bool conn_pending(const struct loop *l); /* does any connection have bytes left to send? */
void conn_stop(struct loop *l);          /* sends pending bytes and closes all */

#endif

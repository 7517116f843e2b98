/* Connections from accept to close. Between each client's socket and libmicrohttpd there is an HTTP front:
 * http_parser.h parses what the client sends and passes it on through a socket pair, one request at a time;
 * libmicrohttpd's answer comes back the same way. So libmicrohttpd gets well-formed requests only. Deadlines,
 * malformed requests and answers before the end of a body are handled here. Event loop's thread. Internal to
 * server/.
 */
#ifndef KVASIR_CONN_H
#define KVASIR_CONN_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct loop;
struct request;
struct MHD_Connection;

enum conn_phase {
    CONN_HEAD = 0, /* between two requests, or in a head */
    CONN_BODY,     /* libmicrohttpd has the head, and the body as far as it came */
    CONN_BUSY,     /* it has the whole request and answers */
    CONN_LINGER, /* the last answer is written; input is read and dropped, because a TCP reset could make the
                    client lose the answer */
};

/* Takes connections of l->listen_fd for l->mhd. */
enum status conn_listen(struct loop *l, struct err *err) KV_MUST_CHECK;
void conn_listen_stop(struct loop *l); /* closes the listening socket; safe to call twice */
/* libmicrohttpd has taken the connection that it is being told of, and has closed it. */
struct conn *conn_begun(struct loop *l);
void conn_ended(struct conn *n);
void conn_request(struct request *r);          /* r's head has come to libmicrohttpd */
void conn_completed(struct MHD_Connection *c); /* its request is finished: the next one may come */
/* r->answer.error is the answer though the body isn't there yet, which libmicrohttpd can't do. False: the
 * body is there, or it has answered. */
bool conn_respond_early(struct request *r);
void conn_cut(struct request *r);              /* ends a connection whose answer is being written */
void conn_sweep(struct loop *l, uint64_t now); /* deadlines; every 100 ms */
void conn_unstick(struct loop *l);       /* libmicrohttpd reports ready but makes no progress: closes the
                                              connections that may be the cause */
bool conn_pending(const struct loop *l); /* does any connection have bytes left to send? */
void conn_stop(struct loop *l);          /* sends what is there and closes all */

#endif

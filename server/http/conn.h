/* Connections from accept to close. Between each client's socket and libmicrohttpd there is a gate: http_in.h
 * parses what the client sends and passes it on through a socket pair, one request at a time; libmicrohttpd's
 * answer comes back the same way. So libmicrohttpd gets well-formed requests only. Deadlines, malformed
 * requests and answers before the end of a body are handled here. Event loop's thread. Internal to server/.
 */
#ifndef KVASIR_CONN_H
#define KVASIR_CONN_H

#include "server/http/http.h"

enum conn_phase {
    CONN_HEAD = 0, /* between two requests, or in a head */
    CONN_BODY,     /* libmicrohttpd has the head, and the body as far as it came */
    CONN_BUSY,     /* it has the whole request and answers */
    CONN_LINGER, /* the last answer is written; input is read and dropped, because a TCP reset could make the
                    client lose the answer */
};

/* Takes connections of s->listen_fd for s->mhd. */
enum status conn_listen(struct server *s, struct err *err) KV_MUST_CHECK;
void conn_listen_stop(struct server *s); /* closes the listening socket; safe to call twice */
/* Of struct MHD_Daemon's NOTIFY_CONNECTION. */
void conn_notify(void *cls, struct MHD_Connection *c, void **context,
                 enum MHD_ConnectionNotificationCode code);
void conn_request(struct request *r);          /* r's head has come to libmicrohttpd */
void conn_completed(struct MHD_Connection *c); /* its request is finished: the next one may come */
/* r->answer.error is the answer though the body isn't there yet, which libmicrohttpd can't do. False: the
 * body is there, or it has answered. */
bool conn_answer_early(struct request *r);
void conn_cut(struct request *r);                /* ends a connection whose answer is being written */
void conn_sweep(struct server *s, uint64_t now); /* deadlines; every 100 ms */
void conn_unstick(struct server *s);       /* libmicrohttpd reports ready but makes no progress: closes the
                                              connections that may be the cause */
bool conn_pending(const struct server *s); /* does any connection have bytes left to send? */
void conn_stop(struct server *s);          /* sends what is there and closes all */

#endif

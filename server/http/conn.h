/* Connections from accept to close. Between each client's socket and libmicrohttpd stands a gate: what the
 * client sends is read by http_in.h and goes on through a socket pair, one request at a time; what
 * libmicrohttpd answers comes back the same way. So libmicrohttpd sees well-formed requests alone, whatever
 * its version makes of others, and everything that has a deadline, is malformed or must be answered in the
 * middle of a body is answered here. Event loop's thread. Internal to server/. */
#ifndef KVASIR_CONN_H
#define KVASIR_CONN_H

#include "server/http/http.h"

enum conn_phase {
    CONN_HEAD = 0, /* between two requests, or in a head */
    CONN_BODY,     /* libmicrohttpd has the head, and the body as far as it came */
    CONN_BUSY,     /* it has the whole request and answers */
    CONN_LINGER, /* all is said; what still comes is thrown away, so that a reset doesn't tear the answer out
                    of the client's hands */
};

/* Takes connections of s->listen_fd for s->mhd. */
enum status conn_listen(struct server *s, struct err *err) KV_MUST_CHECK;
void conn_listen_stop(struct server *s); /* closes the listening socket; safe to call twice */
/* Of struct MHD_Daemon's NOTIFY_CONNECTION. */
void conn_notify(void *cls, struct MHD_Connection *c, void **context,
                 enum MHD_ConnectionNotificationCode code);
void conn_request(struct request *r);          /* r's head has come to libmicrohttpd */
void conn_completed(struct MHD_Connection *c); /* its request is done with: the next one may come */
/* r->answer.error is the answer though the body isn't there yet, which libmicrohttpd can't do. False: the
 * body is there, or it has answered. */
bool conn_answer_early(struct request *r);
void conn_cut(struct request *r);                /* ends a connection whose answer is being written */
void conn_sweep(struct server *s, uint64_t now); /* deadlines; every 100 ms */
void conn_unstick(
    struct server *s); /* libmicrohttpd stays ready and does nothing: cuts those that it may be about */
bool conn_pending(const struct server *s); /* has any bytes for its client left? */
void conn_stop(struct server *s);          /* hands over what is there and closes all */

#endif

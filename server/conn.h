/* Connections as loop.c sees them: deadlines that libmicrohttpd does not know, noticing a client that left while its connection sleeps,
 * and lingering after an early refusal. Event loop's thread. Internal to server/. */
#ifndef KVASIR_CONN_H
#define KVASIR_CONN_H

#include "server/server.h"

enum conn_phase { CONN_FRESH = 0, CONN_IDLE, CONN_BODY, CONN_BUSY };

/* One TCP connection, from accept to close. */
struct conn {
    struct server *srv;
    struct conn *prev, *next;
    int fd; /* libmicrohttpd's; only for shutdown(2), dup(2), and the answer to a body that doesn't come */
    enum conn_phase phase;
    uint64_t phase_us, data_us; /* when the phase began; when a part of the body came last */
    struct request *request;    /* in CONN_BODY: whose body it is */
    bool ended;                 /* the peer's end was seen in this phase */
};

void conn_notify(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code);
void conn_phase_set(struct MHD_Connection *c, enum conn_phase phase, struct request *r); /* r: of CONN_BODY, else NULL */
void conn_data(struct MHD_Connection *c); /* a part of the body has come */
void conn_sweep(struct server *s, uint64_t now); /* cuts connections that are over a deadline, telling one whose body doesn't come, and those whose client left in
                                                  * the middle of a request */

/* Ends a connection whose answer is being written. */
void conn_cut(struct request *r);
/* Calls request_client_gone when the peer hangs up. Errors are ignored: then the next write notices. */
void watch_start(struct request *r);
void watch_stop(struct request *r);
/* Reads on after libmicrohttpd closed the socket, until the client has sent all, or nothing for two seconds, or for half a minute: so an answer
 * sent before the body was read is not torn away by a reset. */
void linger_start(struct request *r);
void linger_stop(struct server *s); /* of all, at the end */

#endif

/* What conn.c and conn_room.c know of a connection. Event loop's thread. */
#ifndef KVASIR_CONN_STATE_H
#define KVASIR_CONN_STATE_H

#include "server/http/conn.h"
#include "server/http/event_loop.h"
#include "server/http/http_parser.h"

#define READ_CHUNK  65536u /* bytes per read, and of buffered pipelined requests */
#define READ_LEAST  4096u
#define TURN_BODIES 16u /* bodies that are read in whole chunks */

struct conn {
    struct loop *loop;
    struct conn *prev, *next;
    int tcp, pair; /* the client's socket; our end of the pair. -1: closed */
    uv_poll_t tcp_poll, pair_poll;
    int tcp_mask, pair_mask; /* polled events; -1: stopped by libuv */
    unsigned handles;        /* not yet closed */
    struct tls *tls;         /* of tcp, or NULL */
    bool inside;             /* of this process itself: not in conn_count */
    bool shaking;            /* its handshake is not done */
    bool mhd_open;           /* libmicrohttpd has its end of the pair */
    bool served;             /* a response was sent */
    bool ended;              /* end of the client's input */
    bool hup;                /* its end was seen, after unread bytes */
    bool over;    /* refused for its holder's number of connections: counted in the loop's `over` */
    bool refused; /* `last` ends the connection: further input is not parsed */
    enum conn_phase phase;
    uint64_t phase_us;         /* start of the phase; in CONN_HEAD, of its first byte */
    uint64_t data_us, sent_us; /* last input; last output accepted by the client, or when output started */
    struct http_parser in;
    struct buf kept;     /* from the client, for the next request */
    struct buf up, down; /* pending for libmicrohttpd and for the client; the first *_at bytes are sent */
    size_t up_at, down_at;
    struct buf last;         /* our own response, after all of libmicrohttpd's */
    struct request *request; /* in libmicrohttpd, or NULL */
    struct websocket *ws;    /* in CONN_WEBSOCKET; and with it: */
    uint64_t ws_id;
    size_t ws_bytes;     /* of its messages, a part of share's SHARE_BODIES */
    uint64_t address;    /* holder of what has no key */
    struct share *share; /* the address's; the key's, once a request had one */
};

/* conn_room.c: what gives way. Changes nothing. */
#define CONN_IDLEST 32u
/* Idle connections to close, the oldest of who has most; some at a time: looking at all takes a while.
 * full: there is no place at all; else what was just accepted stays, and who holds little beside others. */
uint32_t conn__idlest(const struct loop *l, bool full, struct conn *out[CONN_IDLEST]);
/* Whose body to drop for `more` bytes of h's, which `but` receives. NULL: nobody holds as much as h. */
struct conn *conn__largest_body(const struct loop *l, const struct conn *but, const struct share *h,
                                size_t more);
struct share *conn__owner(const struct conn *n); /* of what it is receiving */

#endif

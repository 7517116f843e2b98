/* A request's life, from its headers to its answer. Event loop's thread. See http.h. */
#ifndef KVASIR_REQUEST_H
#define KVASIR_REQUEST_H

#include "server/http/http.h"

struct request *request_create(struct server *s, struct MHD_Connection *c);
void request_release(struct request *r);     /* frees it if nobody needs it any more */
void request_client_gone(struct request *r); /* cancels; safe to call twice */
/* Each ends the request's way: the connection is woken and sends what r holds. */
void request_answer(struct request *r, int status); /* body in r->out */
void request_fail(struct request *r);               /* r->error is filled */
void request_stream_open(struct request *r);        /* first bytes are in r->out */
void request_stream_more(struct request *r);        /* r->out grew, or r->out_end was set */
/* Runs job on a worker, then done on the loop (done decides by r->error). */
void request_work(struct request *r, void (*job)(struct request *r), void (*done)(struct request *r));
/* For loop.c: response object for the state, headers and all; NULL = out of memory */
struct MHD_Response *request_response(struct request *r);

#endif

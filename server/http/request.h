/* A request, from its headers to its response. Internal to server/.
 *
 *   BODY -> WORKING -> RUNNING -> RESPONSE (whole: libmicrohttpd's connection is suspended until it is ready)
 *                             \-> STREAM   (events: suspended while none is pending)
 *           WORKING -> WORKING             (resumes when the files that it names are fetched)
 *   BODY -> WORKING -> BODY                (a chunk of an upload)
 *   BODY -> SWALLOW -> RESPONSE            (refused by its headers, but the body is drained)
 *   BODY -> RUNNING -> RESPONSE            (waits for the engine: request_wait)
 *   any state -> http.mhd == NULL          (response sent, or disconnected: sequences are cancelled)
 *
 * It is freed by request_release when libmicrohttpd is done with it, no worker holds it and every sequence
 * has given its EV_END. Images that the scheduler asks for while it runs are decoded by further workers
 * (generate/images.c), after those with a URL are fetched (input/remote.c), counted in `fetches`.
 *
 * Event loop's thread, except while its `work` runs: then a worker (workers.h) owns body, response and gen,
 * and the loop touches none of them. */
#ifndef KVASIR_REQUEST_H
#define KVASIR_REQUEST_H

#include "server/http/response.h"
#include "server/http/http_message.h"
#include "server/http/http.h"
#include "server/http/stream.h"
#include "server/http/workers.h"

/* Of a request that another process of ours has checked: "CLIENT HOLDER KEY|- FLAGS WEBSOCKET". */
#define FRONT_HEADER "X-Kvasir-Front"

struct forward;
struct generation;
struct MHD_Connection;

/* For the log. */
struct request_tokens {
    uint64_t prompt, cached, completion;
    uint64_t first_us; /* when the first token came; 0 = none */
};

/* What a route needs, all of it known from the headers. */
enum route_needs {
    ROUTE_AUTH = 1,    /* a key when keys are configured */
    ROUTE_READY = 2,   /* the model: 503 before and after */
    ROUTE_QUEUE = 4,   /* a place in the queue: 429, before anything is done for the body */
    ROUTE_JSON = 8,    /* a JSON body, if it is a POST */
    ROUTE_PREFIX = 16, /* a longer path: "/v1/models/{id}" */
    ROUTE_DATA = 64,   /* --data-dir: 501 without it */
    ROUTE_UPLOAD = 32  /* a POST's body comes in chunks: loop.chunk, and the last one to the handler */
};

/* The handler of a path; the table is server/api/routes.def. */
struct route {
    const char *path;
    const char *label;                /* for metrics; NULL = not counted */
    unsigned methods;                 /* of enum method, without OPTIONS */
    unsigned needs;                   /* of enum route_needs */
    void (*start)(struct request *r); /* one of api/api.h */
};

enum request_state { RQ_BODY = 0, RQ_SWALLOW, RQ_WORKING, RQ_RUNNING, RQ_RESPONSE, RQ_STREAM };

struct request {
    struct server *srv;
    struct request *prev, *next; /* server's list */
    const struct route *route;
    enum request_state state; /* request_to */
    bool cancelled;           /* the client has disconnected */
    struct http_message http;
    struct response response; /* and whose request it is: response.share */
    struct stream stream;

    /* work on the pool */
    void (*job_run)(struct request *r);  /* worker thread */
    void (*job_done)(struct request *r); /* loop thread; not called if the client has disconnected */
    struct work work;                    /* queued or running */
    bool compiling;                      /* the job compiles a grammar */

    /* generating endpoints */
    struct generation *gen;                /* owned; and with it: */
    void (*gen_cancel)(struct request *r); /* the client disconnected */
    void (*gen_free)(struct generation *g);
    void (*gen_tokens)(const struct generation *g,
                       struct request_tokens *out); /* so far; not while working */
    const char *model_name;   /* the requested name; NULL = none, or not a served model */
    struct lora *lora;        /* the adapter of that name, held until the sequences have ended; or NULL */
    uint32_t sequences_alive; /* submitted, EV_END not yet taken */
    uint32_t fetches;         /* images being decoded for them, or files being fetched */

    /* passed on to a model's own server (server/front) */
    struct forward *forward;                 /* owned; and with it: */
    void (*forward_gone)(struct request *r); /* the client disconnected, or the end; safe to call twice */
    bool passed_on;                          /* its response comes from there, and its line in the log */
    bool throttled; /* more of it comes when response.out is empty: the loop's `check` sees to that */
    /* endpoints with a state of their own */
    void *own; /* owned */
    void (*own_free)(struct request *r);
    void (*refill)(struct request *r); /* worker: more of a stream that is read faster than written */

    /* waiting for the engine */
    void (*poll)(struct request *r);
    uint64_t request_seq; /* what for */
};

void request_to(struct request *r, enum request_state state);
/* Headers are complete. holder: its share of the server, until request_holder. NULL: out of memory. */
struct request *request_create(struct server *s, struct MHD_Connection *c, const char *method,
                               const char *target, uint64_t holder);
void request_holder(struct request *r, uint64_t holder);  /* whose it is; before it holds anything */
struct request *requests_largest(const struct server *s); /* the largest of who holds most; or NULL */
void request_release(struct request *r);                  /* frees it if no longer in use */
void request_client_gone(struct request *r);              /* cancels; safe to call twice */
/* Each finishes the request: the connection resumes and sends the response in r. */
void request_respond(struct request *r, int status);             /* body in r->response.out */
void request_fail(struct request *r);                            /* r->response.error is filled */
void request_wrong_method(struct request *r, const char *allow); /* fills r->response.error: 405 */
void request_finish(struct request *r);                          /* fails if it is, else responds with 200 */
const char *request_rest(const struct request *r); /* of the path, after that of a route with `prefix` */
void request_stream_open(struct request *r);       /* first bytes are in r->response.out */
/* A response of known size (UINT64_MAX: unknown), of any type, whose bytes come as those of a stream. */
void request_stream_pass(struct request *r, int status, uint64_t size);
void request_stream_more(struct request *r); /* r->response.out grew, or r->stream.end was set */
/* The text of the body is no longer needed; `kept` bytes of it, or derived from it, count as held until r is
 * freed or the next call. Not while a worker has r. */
void request_body_drop(struct request *r, size_t kept);
/* Takes the next chunk of an upload, or with r->response.error the rest, to be thrown away. */
void request_body_more(struct request *r);
/* Runs job on a worker, then done on the loop (done decides by r->response.error). */
void request_work(struct request *r, void (*job)(struct request *r), void (*done)(struct request *r));
/* poll is called on engine events and at every tick, until it responds. */
void request_wait(struct request *r, void (*poll)(struct request *r));
void request_wait_end(struct request *r); /* poll is not called any more */
void requests_poll(struct server *s);
/* For loop.c: response object for the state, headers and all; NULL = out of memory */
struct MHD_Response *request_response(struct request *r);

#endif

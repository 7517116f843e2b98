/* The HTTP server's shared state and the request that passes through it. Internal to server/.
 *
 * Threads: everything here belongs to the event loop's thread, but (a) `model`, written once by the loader
 * thread before the loop sees it, and (b) a request while `working`: then a worker of uv_queue_work owns its
 * body, error and gen parts, and the loop touches none of them.
 *
 * Life of a request (one per HTTP request, made when its headers are complete):
 *   BODY -> WORKING -> RUNNING -> ANSWER          (whole answers: libmicrohttpd's connection sleeps,
 * suspended, until the answer is there)
 *                             \-> STREAM          (events: the connection sleeps whenever no event waits)
 *   any state -> mhd == NULL                      (answer sent, or the client went away: sequences are
 * cancelled) It is freed by request_release when libmicrohttpd is done with it, no worker holds it and every
 * sequence has given its EV_END. Pictures that the scheduler asks for while it runs are decoded by further
 * workers (generate/images.c), counted in `fetches`. */
#ifndef KVASIR_HTTP_H
#define KVASIR_HTTP_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "config/options.h"
#include "scheduler/scheduler.h"
#include "server/http/error_map.h"
#include "server/server.h"

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct tokenizer;
struct template;
struct model_info;
struct metrics;
struct auth;
struct image_alias;
struct gen;
struct request;

enum server_phase {
    SRV_LOADING = 0,
    SRV_READY,
    SRV_LEAVING,  /* signal seen: unready, still serving for --shutdown-delay */
    SRV_DRAINING, /* new requests get 503, running ones finish */
    SRV_ENDING,   /* drain limit reached, or nothing left: connections are flushed, then the loop ends */
};

/* A loaded checkpoint: immutable once published. */
struct model {
    struct engine *engine;
    struct scheduler *sched;
    struct tokenizer *tok;
    struct template *tmpl; /* NULL: the checkpoint has none */
    const struct model_info *info;
    struct engine_caps caps;
};

enum method { M_GET = 1, M_HEAD = 2, M_POST = 4, M_OPTIONS = 8, M_OTHER = 16 };

struct route {
    const char *path;
    const char *label;                /* for metrics; NULL = not counted */
    unsigned methods;                 /* of enum method, without OPTIONS */
    bool auth;                        /* needs a key when keys are configured */
    bool gate;                        /* 503 unless the model is ready */
    bool json;                        /* has a JSON body */
    bool prefix;                      /* path is a prefix: "/v1/models/{id}" */
    void (*start)(struct request *r); /* loop thread, body complete. Ends in request_answer, request_fail or
                                         request_work */
};

enum request_state { RQ_BODY = 0, RQ_SWALLOW, RQ_WORKING, RQ_RUNNING, RQ_ANSWER, RQ_STREAM };

#define REQUEST_ID_BYTES 132u

struct request {
    struct server *srv;
    struct MHD_Connection *mhd;  /* NULL once libmicrohttpd is done with the request */
    struct request *prev, *next; /* server's list */
    const struct route *route;
    enum method method;
    enum request_state state;
    bool suspended, working, http10, queued, cancelled;
    bool close_after;          /* the answer says Connection: close */
    char id[REQUEST_ID_BYTES]; /* X-Request-Id, also the base of the object's id */
    bool id_from_client;
    char *path; /* normalised, still percent-encoded */
    char *cors; /* Access-Control-Allow-Headers to echo in a preflight, or NULL */
    bool has_origin;
    struct buf body;
    uint64_t body_seen;    /* bytes, including those thrown away */
    size_t body_marks;     /* of its bytes, those that stand between JSON values: a bound on their number */
    size_t parse_cost;     /* memory for reading it; 0 = too little to count */
    bool parse_waits;      /* until others give back theirs */
    size_t body_kept;      /* bytes of encoded pictures that outlive the body: they count among the server's
                              body_bytes */
    bool has_key, one_key; /* came with a valid API key; the server knows no other */
    uint8_t key[32];       /* its SHA-256 */
    uint64_t arrived_us;   /* monotonic */
    int64_t created;       /* Unix seconds */

    /* the answer */
    struct api_error error; /* http != 0: this is the answer */
    unsigned retry_after;   /* seconds, for an error of status 429 or 503; 0 = 1 */
    int status;
    const char *content_type; /* static; NULL = application/json */
    const char *allow;        /* value of the Allow header, or NULL */
    struct buf out;           /* body of the answer, or, streaming, the events that wait */
    size_t out_at;            /* STREAM: bytes of out already taken by the connection */
    bool out_end;             /* STREAM: nothing follows */
    size_t answer_bytes;      /* what the answer holds in memory: its share of the server's */
    size_t out_booked;        /* of it, out */

    /* work on the pool */
    uv_work_t job;
    void (*job_run)(struct request *r);  /* worker thread */
    void (*job_done)(struct request *r); /* loop thread; not called when the client left meanwhile */

    struct gen *gen;                       /* generating endpoints; owned */
    void (*gen_cancel)(struct request *r); /* with it: the client left */
    void (*gen_free)(struct gen *g);
    const char *model_name;   /* by which it was asked for; NULL = none, or one that we don't have */
    uint32_t sequences_alive; /* submitted, EV_END not yet taken */
    uint32_t fetches;         /* pictures being decoded for them */
};

/* The largest of the last ten seconds. */
struct peak {
    uint64_t us, seen_us;
};

struct server {
    const struct options *opt; /* borrowed */
    uv_loop_t loop;
    uv_poll_t mhd_poll;
    uv_idle_t mhd_idle; /* active while libmicrohttpd has something to do at once: */
    uv_idle_cb mhd_run;
    uv_timer_t tick;
    uv_poll_t listen_poll;
    uv_async_t wake;   /* events wait in the scheduler's queue */
    uv_async_t loaded; /* the loader thread is done: model or load_err */
    uv_signal_t sigterm, sigint;
    struct MHD_Daemon *mhd;
    int listen_fd;
    uint16_t port;
    char url[300]; /* http://HOST:PORT */
    enum server_phase phase;
    uint64_t phase_us;   /* when it began */
    uint64_t signal_us;  /* of the first SIGTERM or SIGINT; 0 = none yet */
    uint64_t tick_us;    /* of the last tick */
    uint64_t progress;   /* of the engine, as the last tick saw it: any change is progress */
    uint64_t stalled_us; /* time that the engine had work and got on with nothing */
    bool hung;           /* that is --watchdog or more */
    uint64_t failed_us;  /* when the engine was seen to have failed, or to hang, for good; 0 = it has not */

    uv_thread_t engine_thread; /* loads, then runs the scheduler */
    bool engine_thread_started, engine_thread_ended;
    struct model loading; /* the loader's */
    enum status load_status;
    struct err load_err;
    const struct model *model; /* NULL until loaded */

    char *model_dir, *model_name; /* the first name; the others stand behind its NUL */
    const char *model_names_end;
    int64_t started;   /* Unix seconds */
    struct auth *auth; /* NULL = open */
    struct metrics *metrics;
    struct image_alias *aliases; /* what encoded pictures became; any thread */
    struct request *requests;    /* all that live */
    uint32_t request_count;
    uint32_t load;             /* generating requests in flight */
    size_t body_bytes;         /* request bodies held */
    size_t parse_bytes;        /* parse_cost of all bodies being read */
    size_t answer_bytes;       /* answers held, in the making or being read */
    atomic_size_t pixel_bytes; /* decoded pictures held by requests; any thread */
    struct conn *conns;        /* open connections, their number and its bound: conn.c */
    struct conn *adding;       /* that libmicrohttpd is being told of */
    uint32_t conn_count, conn_max;
    bool listening,
        accept_failed; /* the listening socket is polled; the last accept had no descriptor or memory */
    uint64_t moved, moved_seen; /* grows with all that connections and libmicrohttpd get done */
    bool mhd_ready;             /* libmicrohttpd wants to run again at once */
    uint32_t stuck_ticks;       /* ticks in a row in which it was, and nothing moved */
    uint64_t round_us;          /* the last tick */
    struct peak lag, handed;    /* how late ticks come; how long events of the engine wait for the loop */
    int exit_code;
};

/* The loop's thread, but now_us. */
uint64_t now_us(void); /* monotonic */
void peak_note(struct peak *p, uint64_t us, uint64_t now);
void server_kick(struct server *s);          /* libmicrohttpd runs soon: a connection was resumed */
bool server_serving(const struct server *s); /* ready or leaving, and the engine alive */
bool server_engine_dead(const struct server *s);
/* Do the loop and the engine take what they hand each other? Not if a round of the loop takes five seconds.
 */
bool server_handing_over(const struct server *s);
/* "a, b" -> "a\0b\0", in place; returns its end. Not a list: one name, whatever is in it. */
const char *model_names_split(char *names, bool list);
const char *model_name_find(const struct server *s, const char *name, size_t len); /* ours; NULL: none */
bool request_id_ok(const char *s);                                                 /* fit to be one */
void request_id_make(char id[REQUEST_ID_BYTES],
                     const char *given); /* the client's (may be NULL) if it is fit, else a new one */
/* answers.c (loop): r holds `now` bytes of its answer where it held *was. */
void answer_book(struct request *r, size_t *was, size_t now);
struct request *answers_victim(const struct server *s); /* to be ended for what answers take; or NULL */

#endif

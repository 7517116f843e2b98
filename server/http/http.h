/* The server's shared state, and what everything asks of it. Internal to server/.
 *
 * Threads: everything here belongs to the event loop's thread, except `model`, which the loader thread writes
 * once before the loop sees it, and fields whose comment says so. */
#ifndef KVASIR_HTTP_H
#define KVASIR_HTTP_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "config/options.h"
#include "scheduler/scheduler.h"
#include "server/http/errors.h"
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
struct grammars;
struct grammar_memory;
struct kv_events;
struct fetcher;
struct local_dir;
struct response_store;
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
    struct kv_events *events; /* NULL: nobody is told of the cache */
    struct tokenizer *tok;
    struct template *tmpl; /* NULL: the checkpoint has none */
    bool own_prompts;      /* tmpl is the rule of the family's processor: one message, no turns */
    const struct model_info *info;
    struct engine_caps caps;
};

struct route {
    const char *path;
    const char *label;                /* for metrics; NULL = not counted */
    unsigned methods;                 /* of enum method, without OPTIONS */
    bool auth;                        /* needs a key when keys are configured */
    bool gate;                        /* 503 unless the model is ready */
    bool json;                        /* has a JSON body */
    bool prefix;                      /* path is a prefix: "/v1/models/{id}" */
    void (*start)(struct request *r); /* one of api/api.h */
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
    bool loopback; /* it listens on a loopback address: only this machine can connect */
    char url[300]; /* http://HOST:PORT */
    bool ready_said;
    enum server_phase phase;
    uint64_t phase_us;   /* when it began */
    uint64_t signal_us;  /* of the first SIGTERM or SIGINT; 0 = none yet */
    uint64_t tick_us;    /* of the last tick */
    uint64_t progress;   /* engine_progress at the last tick: any change is progress */
    uint64_t stalled_us; /* time in which the engine had work and made no progress */
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
    struct image_alias *aliases;                 /* what encoded pictures became; any thread */
    struct fetcher *fetcher;                     /* --allow-remote-media, or NULL */
    struct local_dir *media_dir;                 /* --allowed-media-dir, or NULL; any thread */
    struct grammars *grammars;                   /* compiled ones; any thread */
    const struct grammar_memory *grammar_memory; /* what they hold; any thread */
    struct response_store *responses;            /* of /v1/responses; any thread */
    struct request *requests;                    /* all that live */
    uint32_t request_count;
    uint32_t load;             /* generating requests in flight */
    uint32_t polls;            /* requests with a poll: request_wait */
    bool compile_waits;        /* requests wait for their grammar to be compiled */
    size_t body_bytes;         /* request bodies held */
    size_t parse_bytes;        /* parse_cost of all bodies being read */
    size_t answer_bytes;       /* answers held, in progress or being read */
    atomic_size_t pixel_bytes; /* decoded pictures held by requests; any thread */
    struct conn *conns;        /* open connections, their number and its bound: conn.c */
    struct conn *adding;       /* that libmicrohttpd is being told of */
    uint32_t conn_count, conn_max;
    bool listening,
        accept_failed; /* the listening socket is polled; the last accept had no descriptor or memory */
    uint64_t moved, moved_seen; /* counts progress of connections and of libmicrohttpd */
    bool mhd_ready;             /* libmicrohttpd wants to run again at once */
    uint32_t stuck_ticks;       /* consecutive ticks in which it did, without progress */
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
/* Whether the loop and the engine still take each other's messages; false if one iteration of the loop takes
 * five seconds.
 */
bool server_handing_over(const struct server *s);
/* "a, b" -> "a\0b\0", in place; returns its end. Not a list: one name, whatever is in it. */
const char *model_names_split(char *names, bool list);
const char *model_name_find(const struct server *s, const char *name, size_t len); /* ours; NULL: none */

#endif

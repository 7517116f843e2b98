/* What requests and endpoints share: the model, the options, what is cached between requests, what all of
 * them hold together, and how the process is. Of the event loop they see server_kick alone (its parts:
 * event_loop.h); the process's phases and the watchdog are server/serve.c's. Internal to server/.
 *
 * Threads: everything here belongs to the event loop's thread, except fields whose comment says so. */
#ifndef KVASIR_HTTP_H
#define KVASIR_HTTP_H

#include "config/base/buf.h"
#include "config/base/clock.h"
#include "config/base/status.h"
#include "config/options.h"
#include "scheduler/scheduler.h"
#include "server/http/errors.h"
#include "server/http/model.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct metrics;
struct auth;
struct image_hash_cache;
struct grammars;
struct grammar_memory;
struct fetcher;
struct local_dir;
struct loop;
struct response_store;
struct request;

enum server_phase {
    SRV_LOADING = 0,
    SRV_READY,
    SRV_LEAVING,  /* signal seen: unready, still serving for --shutdown-delay */
    SRV_DRAINING, /* new requests get 503, running ones finish */
    SRV_ENDING,   /* drain limit reached, or nothing left: connections are flushed, then the loop ends */
};

/* The largest of the last ten seconds. */
struct peak {
    uint64_t us, seen_us;
};

/* What probes and metrics tell of the process; server/serve.c keeps it. */
struct health {
    enum server_phase phase;
    int exit_code;
    bool hung;               /* the engine has work and made no progress for --watchdog or longer */
    uint64_t round_us;       /* the last tick */
    struct peak lag, handed; /* how late ticks come; how long events of the engine wait for the loop */
};

struct server {
    const struct options *opt;    /* borrowed */
    const struct model *model;    /* NULL until loaded */
    char *model_dir, *model_name; /* the first name; the others stand behind its NUL */
    const char *model_names_end;
    int64_t started; /* Unix seconds */
    struct health health;
    struct loop *loop;
    bool loopback;       /* it listens on a loopback address: only this machine can connect */
    uint32_t conn_count; /* open connections */

    struct auth *auth; /* NULL = open */
    struct metrics *metrics;
    struct image_hash_cache *image_hashes;       /* what encoded images became; any thread */
    struct fetcher *fetcher;                     /* --allow-remote-media, or NULL */
    struct local_dir *media_dir;                 /* --allowed-media-dir, or NULL; any thread */
    struct grammars *grammars;                   /* compiled ones; any thread */
    const struct grammar_memory *grammar_memory; /* what they hold; any thread */
    struct response_store *responses;            /* of /v1/responses; any thread */

    struct request *requests; /* all that live */
    uint32_t request_count;
    uint32_t load;             /* generating requests in flight */
    uint32_t polls;            /* requests with a poll: request_wait */
    bool compile_waits;        /* requests wait for their grammar to be compiled */
    uint64_t compile_turn;     /* after those that were begun */
    size_t body_bytes;         /* request bodies held */
    size_t parse_bytes;        /* parse_cost of all bodies being read */
    size_t response_bytes;     /* answers held, in progress or being read */
    atomic_size_t pixel_bytes; /* decoded images held by requests; any thread */
};

/* The loop's thread. */
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

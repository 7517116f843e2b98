/* What requests and endpoints share: the model, the options, caches across requests, the totals that limits
 * apply to, and the state of the process. Of the event loop they see only server_kick (its parts:
 * event_loop.h); the process's phases and the watchdog are in server/serve.c. Internal to server/.
 *
 * Threads: everything here belongs to the event loop's thread, except fields whose comment says so. */
#ifndef KVASIR_HTTP_H
#define KVASIR_HTTP_H

#include "config/base/buf.h"
#include "config/base/clock.h"
#include "config/base/status.h"
#include "scheduler/scheduler.h"
#include "server/json/errors.h"
#include "server/context/context.h"
#include "server/shares/shares.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics;
struct auth;
struct front;
struct loop;
struct request;

enum server_phase {
    SRV_LOADING = 0,
    SRV_READY,
    SRV_LEAVING,  /* signal seen: unready, still serving for --shutdown-delay */
    SRV_DRAINING, /* new requests get 503, running ones finish */
    SRV_ENDING,   /* drain limit reached, or nothing left: connections are flushed, then the loop ends */
};

/* The maximum over the last ten seconds. */
struct peak {
    uint64_t us, seen_us;
};

/* What probes and metrics report about the process; server/serve.c updates it. */
struct health {
    enum server_phase phase;
    int exit_code;
    bool hung;               /* the engine has work and made no progress for --watchdog or longer */
    uint64_t round_us;       /* the last tick */
    struct peak lag, handed; /* how late ticks run; how long engine events wait for the loop */
};

struct server {
    struct context ctx;
    int64_t started; /* Unix seconds */
    struct health health;
    struct loop *loop;
    struct front *front; /* several models: it has no model itself; else NULL */
    bool loopback;       /* listens on a loopback address: only this machine can connect */
    uint32_t conn_count; /* open connections */

    struct auth *auth; /* NULL = no keys required */
    struct metrics *metrics;

    struct request *requests; /* all live requests */
    uint32_t request_count;
    uint32_t load;         /* generating requests in flight */
    uint32_t background;   /* sequences of batches that wait or run */
    struct jobs *jobs;     /* files and batches; NULL: no --data-dir */
    uint32_t polls;        /* requests that poll: request_wait */
    bool compile_waits;    /* requests wait for their grammar to be compiled */
    uint64_t compile_turn; /* one after the last turn started */
    struct shares shares;  /* who holds how much of what limits apply to */
};

/* Event loop's thread. */
void peak_note(struct peak *p, uint64_t us, uint64_t now);
void server_kick(struct server *s);          /* schedules a run of libmicrohttpd: a connection was resumed */
bool server_serving(const struct server *s); /* ready or leaving, and the engine alive */
bool server_engine_dead(const struct server *s);
/* May h have one more sequence wait? Beyond --max-queue, who has fewer than there are places left. A line of
 * a batch (inside) takes no place of others. */
bool server_queue_admits(const struct server *s, const struct share *h, bool inside);
/* Whether the loop and the engine still exchange messages; false if one iteration of the loop takes five
 * seconds. */
bool server_handing_over(const struct server *s);

#endif

/* What the prefix cache holds, published for routers over ZeroMQ as vLLM does it (docs/kv-events.md): a
 * socket that subscribers connect to, and one that repeats what was published before.
 *
 *   engine thread --struct kv_event_sink--> queue --> thread --> XPUB: topic "", sequence number, batch
 *                                                     |  ^---- ROUTER: batches from a number on
 *                                                     `------> resync: the event sink is told all again
 *
 * The engine thread copies into the queue under a short lock and never waits for a socket. When the queue is
 * full, what comes next is lost; a subscriber could not know which of its blocks are gone then, and no repeat
 * could tell it. So once the queue is empty, everything is told again: AllBlocksCleared and all that is
 * there. The same happens for each new subscriber, and for one that asks for batches that are forgotten, so a
 * router that starts late, or a server that starts again, needs nothing else.
 *
 * Needs libzmq and msgpack. Without them (KVASIR_KV_EVENTS is not defined) the flags do not exist, and what
 * stands here does nothing. */
#ifndef KVASIR_KV_EVENTS_H
#define KVASIR_KV_EVENTS_H

#include "config/base/status.h"
#include "scheduler/scheduler.h"

struct kv_events;

struct kv_events_options {
    const char *publish; /* a ZeroMQ address to bind; "connect:ADDRESS" connects. Borrowed for the call */
    const char *replay;  /* NULL: nothing is repeated */
    uint32_t block_tokens;
    bool map;       /* events with the names of their fields */
    bool one_group; /* the model's layers are all of one kind: events name no group */
};

#ifdef KVASIR_KV_EVENTS
/* Opens the sockets. ST_IO: an address can't be had. */
enum status kv_events_open(const struct kv_events_options *o, struct kv_events **out,
                           struct err *err) KV_MUST_CHECK;
/* What the scheduler calls; k must outlive it. */
struct kv_event_sink kv_events_sink(struct kv_events *k);
/* Starts the thread, which may call resync(arg) at any time from now on. */
enum status kv_events_start(struct kv_events *k, void (*resync)(void *arg), void *arg,
                            struct err *err) KV_MUST_CHECK;
/* Ends the thread, so that resync is called no more. Idempotent. */
void kv_events_stop(struct kv_events *k);
void kv_events_close(struct kv_events *k); /* stops too; NULL is fine */
#else
static inline enum status kv_events_open(const struct kv_events_options *o, struct kv_events **out,
                                         struct err *err)
{
    (void)o, (void)out;
    return err_set(err, ST_UNSUPPORTED, "built without libzmq");
}
static inline struct kv_event_sink kv_events_sink(struct kv_events *k)
{
    (void)k;
    return (struct kv_event_sink){0};
}
static inline enum status kv_events_start(struct kv_events *k, void (*resync)(void *arg), void *arg,
                                          struct err *err)
{
    (void)k, (void)resync, (void)arg, (void)err;
    return ST_OK;
}
static inline void kv_events_stop(struct kv_events *k)
{
    (void)k;
}
static inline void kv_events_close(struct kv_events *k)
{
    (void)k;
}
#endif

#endif

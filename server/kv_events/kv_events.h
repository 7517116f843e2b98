/* Publishes the contents of the prefix cache for routers over ZeroMQ, compatible with vLLM
 * (docs/kv-events.md): a socket for subscribers, and one that replays earlier batches.
 *
 *   engine thread --struct kv_event_sink--> queue --> thread --> XPUB: topic "", sequence number, batch
 *                                                     |  ^---- ROUTER: batches from a number on
 *                                                     `------> resync: the event sink is sent everything
 *
 * The engine thread copies into the queue under a short lock and never waits for a socket. When the queue is
 * full, events are lost, and neither a subscriber nor a replay can tell which blocks are gone. So once the
 * queue is empty, the whole state is sent: AllBlocksCleared and all cached blocks. The same happens for each
 * new subscriber and for requests for batches that are no longer stored, so a late router or a restarted
 * server needs nothing else.
 *
 * Needs libzmq and msgpack. Without them (KVASIR_KV_EVENTS is not defined) the flags do not exist, and these
 * functions do nothing. */
#ifndef KVASIR_KV_EVENTS_H
#define KVASIR_KV_EVENTS_H

#include "config/base/status.h"
#include "scheduler/scheduler.h"

struct kv_events;

/* The adapter whose namespace (sched_namespace) a salt is; false: it is none's. Publisher's thread. */
typedef bool kv_lora(void *arg, const uint8_t salt[32], char name[128], uint32_t *id);

struct kv_events_options {
    const char *publish; /* a ZeroMQ address to bind; "connect:ADDRESS" connects. Borrowed for the call */
    const char *replay;  /* NULL: no replay */
    uint32_t block_tokens;
    bool map;      /* events with field names */
    kv_lora *lora; /* kv_layout's */
    void *lora_arg;
    bool one_group; /* all layers are of one kind: events have no group field */
};

#ifdef KVASIR_KV_EVENTS
/* Opens the sockets. ST_IO: an address is unavailable. */
enum status kv_events_open(const struct kv_events_options *o, struct kv_events **out,
                           struct err *err) KV_MUST_CHECK;
/* The sink for the scheduler; k must outlive it. */
struct kv_event_sink kv_events_sink(struct kv_events *k);
/* Starts the thread, which may call resync(arg) at any time. */
enum status kv_events_start(struct kv_events *k, void (*resync)(void *arg), void *arg,
                            struct err *err) KV_MUST_CHECK;
/* Stops the thread, after which resync is not called. Idempotent. */
void kv_events_stop(struct kv_events *k);
void kv_events_close(struct kv_events *k); /* also stops; NULL is fine */
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

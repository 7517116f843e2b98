/* See kv_events.h. The sockets belong to the thread while it runs; the queue is shared. */
#include "server/kv_events/kv_events.h"

#include "config/base/clock.h"
#include "config/base/log.h"
#include "config/base/threads.h"
#include "server/kv_events/kv_wire.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum {
    REPLAY_BATCHES = 10000, /* stored at most, and so many bytes: */
    REPLAY_BYTES = 64 << 20,
    QUEUE_BYTES = 64 << 20,
    QUEUE_KEEP = 1 << 20, /* memory that an empty queue keeps */
    BATCH_BYTES = 1 << 20,
    SEND_BATCHES = 4096, /* queued per subscriber; above that it misses some and notices */
    RESYNC_MS = 1000,    /* subscribers that connect together share a resync */
    LINGER_MS = 200,
    ZMQ_THREADS = 4 /* two of ZeroMQ's, ours, and a margin */
};

struct batch {
    uint64_t seq;
    size_t len;
    char *data;
};

struct kv_events {
    uint32_t block_tokens;
    struct kv_layout layout;
    void *context, *pub, *replay; /* replay: NULL without */
    int wake;                     /* eventfd: the queue is no longer empty, or stop */
    pthread_t thread;
    bool started;
    void (*resync)(void *arg);
    void *resync_arg;

    pthread_mutex_t lock;
    struct buf queue; /* records: kv_wire.h */
    bool lost;        /* an event did not fit: no events until the next resync */
    bool telling;     /* resync in progress: it fits, because the tree does */
    bool stop;

    /* the thread's */
    struct buf taken;
    struct batch *kept; /* ring [REPLAY_BATCHES] */
    uint32_t kept_first, kept_count;
    size_t kept_bytes;
    uint64_t seq, resync_ms;
    bool resync_due, failed; /* requested; the last send failed */
};

/* ---- the engine thread's side ---- */

static void wake(struct kv_events *k)
{
    uint64_t one = 1;
    while (write(k->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Under the lock: whether to accept a record. */
static bool wanted(struct kv_events *k)
{
    if (!k->lost && !k->telling && k->queue.len >= QUEUE_BYTES) {
        log_warn("kv events: the queue is full; subscribers will be sent everything again");
        k->lost = true;
    }
    return !k->lost;
}

static void done(struct kv_events *k, enum status st, bool was_empty)
{
    if (st) k->lost = true;
    pthread_mutex_unlock(&k->lock);
    if (was_empty) wake(k);
}

static void on_stored(void *arg, const struct cache_stored *what)
{
    struct kv_events *k = arg;
    pthread_mutex_lock(&k->lock);
    bool empty = !k->queue.len;
    done(k, wanted(k) ? kv_put_stored(&k->queue, k->block_tokens, what) : ST_OK, empty);
}

static void on_removed(void *arg, enum cache_tier tier, uint32_t group, const uint64_t *hashes,
                       uint32_t count)
{
    struct kv_events *k = arg;
    pthread_mutex_lock(&k->lock);
    bool empty = !k->queue.len;
    done(k, wanted(k) ? kv_put_removed(&k->queue, tier, group, hashes, count) : ST_OK, empty);
}

static void on_resync(void *arg, bool end)
{
    struct kv_events *k = arg;
    pthread_mutex_lock(&k->lock);
    bool empty = !k->queue.len;
    k->telling = !end;
    if (!end) {
        k->queue.len = 0; /* invalid */
        k->lost = false;
    }
    done(k, end ? ST_OK : kv_put_cleared(&k->queue), empty);
}

struct kv_event_sink kv_events_sink(struct kv_events *k)
{
    return (struct kv_event_sink){.block_tokens = k->block_tokens,
                                  .arg = k,
                                  .stored = on_stored,
                                  .removed = on_removed,
                                  .resync = on_resync};
}

/* ---- the thread ---- */

/* ["", seq, data], as publishers and replays send a batch; false: not, and why is zmq_errno(). */
static bool batch_send(void *socket, uint64_t seq, const char *data, size_t len)
{
    uint64_t number = htobe64(seq);
    return zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(socket, &number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(socket, data, len, ZMQ_DONTWAIT) >= 0;
}

static void forget_oldest(struct kv_events *k)
{
    struct batch *b = &k->kept[k->kept_first];
    k->kept_bytes -= b->len;
    free(b->data);
    k->kept_first = (k->kept_first + 1) % REPLAY_BATCHES;
    k->kept_count--;
}

static void keep(struct kv_events *k, const msgpack_sbuffer *payload)
{
    char *copy = k->replay ? malloc(payload->size) : NULL;
    /* A replay must have no gap: without memory it starts after this one. */
    while (k->kept_count &&
           (!copy || k->kept_count == REPLAY_BATCHES || k->kept_bytes + payload->size > REPLAY_BYTES))
        forget_oldest(k);
    if (!copy) return;
    memcpy(copy, payload->data, payload->size);
    k->kept[(k->kept_first + k->kept_count++) % REPLAY_BATCHES] =
        (struct batch){.seq = k->seq, .len = payload->size, .data = copy};
    k->kept_bytes += payload->size;
}

/* A slow subscriber misses this batch and notices by the sequence number: XPUB never blocks. */
static void publish(struct kv_events *k)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    for (size_t at = 0; at < k->taken.len; k->seq++) {
        msgpack_sbuffer payload;
        msgpack_sbuffer_init(&payload);
        at += kv_pack_batch(&payload, k->taken.data + at, k->taken.len - at, BATCH_BYTES,
                            (double)t.tv_sec + (double)t.tv_nsec * 1e-9, k->layout);
        bool ok = batch_send(k->pub, k->seq, payload.data, payload.size);
        if (!ok && !k->failed) log_warn("kv events: %s", zmq_strerror(zmq_errno()));
        k->failed = !ok;
        keep(k, &payload);
        msgpack_sbuffer_destroy(&payload);
    }
    k->taken.len = 0;
    if (k->taken.cap > QUEUE_KEEP) {
        size_t max = k->taken.max;
        buf_fini(&k->taken);
        buf_init(&k->taken, max);
    }
}

static void take(struct kv_events *k)
{
    uint64_t count;
    while (read(k->wake, &count, sizeof count) < 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&k->lock);
    struct buf had = k->taken;
    k->taken = k->queue;
    k->queue = had;
    k->resync_due |= k->lost; /* the queue is empty now */
    pthread_mutex_unlock(&k->lock);
    publish(k);
}

/* Subscribers send one byte, 1 or 0, and the topic they subscribe to or unsubscribe from. */
static void subscribers(struct kv_events *k)
{
    uint8_t byte = 0;
    while (zmq_recv(k->pub, &byte, 1, ZMQ_DONTWAIT) >= 0) k->resync_due |= byte == 1;
}

static bool reply(struct kv_events *k, zmq_msg_t *to, uint64_t seq, const char *data, size_t len)
{
    zmq_msg_t id;
    zmq_msg_init(&id);
    bool ok = zmq_msg_copy(&id, to) == 0 && zmq_msg_send(&id, k->replay, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
              batch_send(k->replay, seq, data, len);
    zmq_msg_close(&id);
    return ok;
}

/* [who, "", number] -> [who, "", number, batch] for each stored batch from that number on, and [who, "", -1,
 * ""]. */
static bool repeat(struct kv_events *k)
{
    zmq_msg_t frames[4];
    int count = 0;
    bool more = true;
    for (; more; count++) {
        zmq_msg_t spare, *m = count < 4 ? &frames[count] : &spare;
        zmq_msg_init(m);
        if (zmq_msg_recv(m, k->replay, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(m);
            break;
        }
        more = zmq_msg_more(m);
        if (m == &spare) zmq_msg_close(m);
    }
    if (count == 3 && zmq_msg_size(&frames[2]) == 8) {
        uint64_t from, oldest = k->seq - k->kept_count;
        memcpy(&from, zmq_msg_data(&frames[2]), sizeof from);
        from = be64toh(from);
        k->resync_due |= from < oldest; /* missing batches can't be replayed */
        bool ok = true;
        for (uint32_t i = 0; ok && i < k->kept_count; i++) {
            const struct batch *b = &k->kept[(k->kept_first + i) % REPLAY_BATCHES];
            if (b->seq >= from) ok = reply(k, &frames[0], b->seq, b->data, b->len);
        }
        if (ok) (void)reply(k, &frames[0], UINT64_MAX, "", 0);
    }
    for (int i = 0; i < count && i < 4; i++) zmq_msg_close(&frames[i]);
    return count > 0;
}

static void *run(void *arg)
{
    struct kv_events *k = arg;
    zmq_pollitem_t items[3] = {{.fd = k->wake, .events = ZMQ_POLLIN},
                               {.socket = k->pub, .events = ZMQ_POLLIN},
                               {.socket = k->replay, .events = ZMQ_POLLIN}};
    k->resync_due = true; /* subscribers that knew an earlier process drop its blocks */
    for (;;) {
        uint64_t now = now_us() / 1000u, due = k->resync_ms + RESYNC_MS;
        if (k->resync_due && now >= due) {
            k->resync_due = false;
            k->resync_ms = now;
            k->resync(k->resync_arg);
        }
        long wait = k->resync_due ? (long)(due > now ? due - now : 0) : -1;
        int ready = zmq_poll(items, k->replay ? 3 : 2, wait);
        if (ready < 0 && zmq_errno() != EINTR) break;
        if (ready <= 0) continue;
        if (items[0].revents) take(k);
        pthread_mutex_lock(&k->lock);
        bool stop = k->stop;
        pthread_mutex_unlock(&k->lock);
        if (stop) break;
        if (items[1].revents) subscribers(k);
        if (k->replay && items[2].revents) {
            take(k); /* a replay includes everything queued before the request */
            (void)repeat(k);
        }
    }
    return NULL;
}

/* ---- */

static enum status attach(void *socket, int hwm, const char *flag, const char *address, struct err *err)
{
    static const char connect[] = "connect:";
    int linger = LINGER_MS;
    bool out = strncmp(address, connect, sizeof connect - 1) == 0;
    const char *at = address + (out ? sizeof connect - 1 : 0);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    if (out ? zmq_connect(socket, at) : zmq_bind(socket, at))
        return err_set(err, ST_IO, "--%s %.200s: %s", flag, address, zmq_strerror(zmq_errno()));
    char name[256] = "";
    size_t len = sizeof name;
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name, &len);
    log_info("%s=%s", flag, name);
    return ST_OK;
}

enum status kv_events_open(const struct kv_events_options *o, struct kv_events **out, struct err *err)
{
    struct kv_events *k = calloc(1, sizeof *k);
    if (!k) return err_nomem(err, NULL);
    pthread_mutex_init(&k->lock, NULL);
    k->block_tokens = o->block_tokens;
    k->layout = (struct kv_layout){
        .map = o->map, .one_group = o->one_group, .lora = o->lora, .lora_arg = o->lora_arg};
    k->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    buf_init(&k->queue, SIZE_MAX / 2);
    buf_init(&k->taken, SIZE_MAX / 2);
    k->context =
        threads_fit(ZMQ_THREADS) ? zmq_ctx_new() : NULL; /* ZeroMQ aborts if it can't start threads */
    k->pub = k->context ? zmq_socket(k->context, ZMQ_XPUB) : NULL;
    k->replay = k->pub && o->replay ? zmq_socket(k->context, ZMQ_ROUTER) : NULL;
    k->kept = o->replay ? calloc(REPLAY_BATCHES, sizeof *k->kept) : NULL;
    enum status st = ST_OK;
    if (k->wake < 0 || !k->pub || (o->replay && (!k->replay || !k->kept)))
        st = err_set(err, ST_NOMEM, "can't make the sockets of --kv-events");
    int yes = 1; /* report every subscription, also to a known topic */
    if (!st) zmq_setsockopt(k->pub, ZMQ_XPUB_VERBOSE, &yes, sizeof yes);
    if (!st) st = attach(k->pub, SEND_BATCHES, "kv-events", o->publish, err);
    if (!st && k->replay) {
        zmq_setsockopt(k->replay, ZMQ_ROUTER_MANDATORY, &yes, sizeof yes); /* a full queue is an error */
        st = attach(k->replay, REPLAY_BATCHES + 1, "kv-events-replay", o->replay, err);
    }
    if (st) {
        kv_events_close(k);
        return st;
    }
    *out = k;
    return ST_OK;
}

enum status kv_events_start(struct kv_events *k, void (*resync)(void *arg), void *arg, struct err *err)
{
    k->resync = resync;
    k->resync_arg = arg;
    k->resync_ms = 0;
    if (pthread_create(&k->thread, NULL, run, k)) return err_set(err, ST_NOMEM, "can't start a thread");
    k->started = true;
    return ST_OK;
}

void kv_events_stop(struct kv_events *k)
{
    if (!k || !k->started) return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    k->queue.len = 0;
    (void)!kv_put_cleared(&k->queue); /* routers send no more requests for cached blocks */
    pthread_mutex_unlock(&k->lock);
    wake(k);
    pthread_join(k->thread, NULL);
    k->started = false;
}

void kv_events_close(struct kv_events *k)
{
    if (!k) return;
    kv_events_stop(k);
    if (k->pub) zmq_close(k->pub);
    if (k->replay) zmq_close(k->replay);
    if (k->context) zmq_ctx_term(k->context);
    while (k->kept_count) forget_oldest(k);
    free(k->kept);
    buf_fini(&k->queue);
    buf_fini(&k->taken);
    if (k->wake >= 0) close(k->wake);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

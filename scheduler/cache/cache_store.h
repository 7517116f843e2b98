/* The disk tier below the prefix cache: records in a directory, found again after a restart. Knows files,
 * checksums and recency; no blocks, no tree: what a record means is its writer's business.
 *
 * One thread of the store does all file access. The caller (one thread, the engine's) queues requests, which
 * never block, and takes events:
 *
 *   open -> FOUND* (parents first) -> READY                what earlier processes wrote under this binding
 *   put  -> an id at once, or 0: dropped                   GONE{id} when it is evicted or turns out damaged
 *   get  -> READ{id, user, ok}                             exactly one for each get that returned true
 *   OFF                                                    the disk is full or failing: no further records
 *
 * A record is a file DIR/kvasir-cache/ID-BINDING, written under another name and renamed when it is
 * complete: a killed process loses that record alone. It carries checksums of its header, meta and payload;
 * what does not match is deleted and reported as GONE. The directory is locked (flock) by one process.
 *
 * Size: files in whole pages and the directory itself stay within bytes_max; the least recently used records
 * of all bindings are evicted, children before their parents. */
#ifndef KVASIR_CACHE_STORE_H
#define KVASIR_CACHE_STORE_H

#include "scheduler/cache/record_file.h"

struct cache_store;

struct store_record {
    uint64_t id;     /* never reused while the store is open; 0: none */
    uint64_t parent; /* the record that this one continues, of the same salt, with a lower id; 0: none. It
                        outlives its children: when it goes, they go first */
    enum record_kind kind;
    uint8_t salt[32];       /* name space, compared in full by the caller */
    const uint8_t *meta;    /* the key in full, as the caller encodes it: read at start */
    uint32_t meta_bytes;    /* <= RECORD_META_MAX */
    uint64_t payload_bytes; /* <= RECORD_PAYLOAD_MAX; read on request */
};

struct cache_store_options {
    const char *dir;    /* made if it is missing */
    uint64_t bytes_max; /* on disk */
    uint64_t
        queue_max; /* bytes of payloads that wait to be written; above it puts are dropped; 0 = 256 MiB */
    uint8_t binding[32]; /* hash of everything that the payload's bits depend on: checkpoint content, kernel
                            set, types, preprocessing, layout */
    const char *about;   /* for people: model and types, at most 63 bytes are kept */
    void (*wake)(void *arg); /* the store's thread: there are events; may be NULL */
    void *wake_arg;
    /* NULL: a thread does the file access. Else (tests whose order comes from a seed) there is none: each
     * poll handles as many requests as this returns, a flush all of them. */
    uint32_t (*work)(void *arg);
    void *work_arg;
};

/* Lists the directory and starts the thread. ST_AGAIN: another process uses the directory; ST_IO: it can't be
 * used. Both messages say what to do. */
enum status cache_store_open(const struct cache_store_options *opt, struct cache_store **out,
                             struct err *err) KV_MUST_CHECK;
/* Drops what is queued (see cache_store_flush), ends the thread. NULL is fine. */
void cache_store_close(struct cache_store *s);

/* Takes the payload (malloc'd), copies the meta. r->id is ignored. Returns the id: it may be a parent and may
 * be read at once. 0: the queue is full or the store is off; the payload is still the caller's. */
uint64_t cache_store_put(struct cache_store *s, const struct store_record *r, void *payload);
/* Reads the whole payload into dst, which must stay valid until READ; bytes must be its size. False: the
 * store is off or out of memory, no event follows. */
bool cache_store_get(struct cache_store *s, uint64_t id, void *dst, uint64_t bytes, void *user);
void cache_store_touch(struct cache_store *s, uint64_t id); /* just used, and with it its ancestors */
void cache_store_drop(struct cache_store *s, uint64_t id);  /* deletes it and what continues it: GONE each */

enum store_event_kind { STORE_FOUND, STORE_READY, STORE_READ, STORE_GONE, STORE_OFF };
struct store_event {
    enum store_event_kind kind;
    struct store_record record; /* FOUND: all of it; the caller frees record.meta. READ, GONE: the id */
    void *user;                 /* READ */
    bool ok;                    /* READ: dst holds the payload as it was put. Else GONE follows */
};
bool cache_store_poll(struct cache_store *s, struct store_event *ev); /* takes the oldest; false: none */
/* Waits until everything queued is written, or `ms` have passed (false). For draining: put returns 0 when the
 * queue is full; flush, then put again. Events stay to be polled. */
bool cache_store_flush(struct cache_store *s, uint32_t ms);

struct cache_store_stats { /* counters since open, but for the first three */
    bool off;
    uint64_t bytes, records; /* on disk, all bindings */
    uint64_t puts, dropped;  /* records written; puts dropped */
    uint64_t evicted, damaged;
};
void cache_store_stats(struct cache_store *s, struct cache_store_stats *out); /* any thread */

#endif

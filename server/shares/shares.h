/* Who holds how much of what API keys and addresses share: connections, memory, places in queues, workers.
 * One rule for all: who holds most gives way first, and nobody holds more than half while another waits.
 *
 *   what can be taken back (idle connections, bodies, stored responses) is taken from the holder of most;
 *   what can't (workers, URLs, waiting sequences, pixels) has a reserve beyond its limit, of which a holder
 *     takes no more than it leaves: share_admits;
 *   turns: the holder of least comes first, then the one that was served longest ago: share_before.
 *
 * Shares are taken and released by one thread, and the turns of a pool given by one; the rest any may do. */
#ifndef KVASIR_SHARES_H
#define KVASIR_SHARES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum share_pool {
    SHARE_CONNECTIONS = 0,
    SHARE_BODIES,    /* bytes, of requests and of WebSocket messages */
    SHARE_WORKERS,   /* jobs that run */
    SHARE_QUEUE,     /* sequences that wait or run */
    SHARE_URLS,      /* that wait or are fetched */
    SHARE_TRANSFERS, /* of these, running */
    SHARE_FILES,     /* bytes fetched and not yet taken */
    SHARE_PIXELS,    /* bytes of decoded images */
    SHARE_RESPONSES, /* bytes of responses in progress */
    SHARE_STORED,    /* bytes of stored responses; in shares of their own */
    SHARE_POOLS
};

struct shares;
struct share {
    struct shares *of;
    struct share *next;
    uint64_t holder;
    uint32_t users;
    atomic_size_t held[SHARE_POOLS];
    _Atomic uint64_t turn[SHARE_POOLS]; /* when it was last served */
};

enum { SHARE_BUCKETS = 256 };
struct shares {
    struct share *buckets[SHARE_BUCKETS];
    struct share rest;                     /* of those for whom there was no memory */
    atomic_size_t held[SHARE_POOLS];       /* by all */
    _Atomic uint64_t refused[SHARE_POOLS]; /* closed, dropped or refused because of a share */
    _Atomic uint64_t turn[SHARE_POOLS];    /* the last one given */
};

/* The holder's share in s, which starts as zeros; never NULL. Lives until as many calls of share_release. */
struct share *share_take(struct shares *s, uint64_t holder);
void share_release(struct share *h); /* NULL is fine */

void share_add(struct share *h, enum share_pool pool, size_t more);
void share_sub(struct share *h, enum share_pool pool, size_t less);
size_t share_held(const struct share *h, enum share_pool pool);
size_t shares_held(const struct shares *s, enum share_pool pool);              /* by all */
const struct share *shares_most(const struct shares *s, enum share_pool pool); /* of who holds most */
/* May h take `more`? Up to `most` anybody may; of the reserve beyond that, no more than it leaves. */
bool share_admits(const struct share *h, enum share_pool pool, size_t more, size_t most, size_t reserve);
/* The same, and takes it: threads may race. False: it is counted as refused. */
bool share_try(struct share *h, enum share_pool pool, size_t more, size_t most, size_t reserve);
bool share_before(const struct share *a, const struct share *b, enum share_pool pool); /* a's turn is first */
void share_serve(struct share *h, enum share_pool pool); /* it takes one, by its turn */
void share_refused(const struct share *h, enum share_pool pool);

#endif

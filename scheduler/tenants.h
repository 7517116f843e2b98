/* Running sequences and a virtual time per tenant, for fairness between tenants (start-time fair queueing,
 * counted in tokens). Engine thread only. Pure data structure: knows ids and numbers, no sequences, no clock.
 *
 * A tenant with live sequences (waiting or running) has a virtual time that advances by the tokens served to
 * it; of the waiting ones, scheduler/fair.c prefers the smallest time, so all advance alike. The virtual
 * clock follows the smallest time of the waiting tenants and is the minimum for all: a tenant gets no credit
 * for time in which it was absent, slow or of lower priority. While nobody waits the clock follows the
 * largest time: service that delays nobody is no debt. A tenant that leaves with a time ahead of the clock
 * stays in the table until the clock has passed that time (or the table is full of such tenants), so it
 * cannot reset its debt by leaving and coming back. When no tenant is left, the table is cleared.
 *
 * What to charge: each token that is computed, once. Tokens from the prefix cache cost nothing. */
#ifndef KVASIR_TENANTS_H
#define KVASIR_TENANTS_H

#include "config/base/status.h"
#include "config/base/hash_table.h"

#include <stdint.h>

/* The table; for tenants.c and tests/lib. */
struct tenant {
    struct hash_link link; /* in the table, or in the list of free ones */
    uint64_t id, time;
    uint64_t served;  /* tokens since it has live sequences */
    uint32_t live;    /* sequences; 0: kept for its debt, or free */
    uint32_t running; /* of these */
};

struct tenants {
    uint64_t seed, clock, latest; /* latest: the largest time */
    struct hash_table table;
    uint32_t cap;
    uint32_t active;         /* of those in the table: with live sequences */
    uint32_t fresh;          /* entries [fresh, cap) were never used */
    uint32_t live, live_max; /* sequences of all tenants */
    struct tenant *all;      /* [cap] */
    struct hash_link *free;
};

/* live_max: most sequences live at once, so most tenants too. All memory is allocated here; nothing else
 * fails. */
enum status tenants_create(uint32_t live_max, uint64_t seed, struct tenants **out,
                           struct err *err) KV_MUST_CHECK;
void tenants_destroy(struct tenants *t); /* NULL is fine */

void tenants_enter(struct tenants *t, uint64_t id);                   /* one more live sequence; it waits */
void tenants_leave(struct tenants *t, uint64_t id);                   /* one less; the tenant must have one */
void tenants_charge(struct tenants *t, uint64_t id, uint64_t tokens); /* of a tenant with live sequences */
void tenants_start(struct tenants *t, uint64_t id);                   /* one of its live sequences runs now */
void tenants_stop(struct tenants *t, uint64_t id); /* it waits again, or is about to leave */
/* Virtual time in tokens, at least the clock; of an unknown tenant: the clock. */
uint64_t tenants_time(const struct tenants *t, uint64_t id);
/* Moves the clock forward to the time of the tenant that is served next; never back. */
void tenants_advance(struct tenants *t, uint64_t time);
void tenants_advance_all(struct tenants *t); /* to the largest time */
uint64_t tenants_clock(const struct tenants *t);
uint32_t tenants_running(const struct tenants *t, uint64_t id); /* those of them that run */
uint64_t tenants_served(const struct tenants *t, uint64_t id);  /* tokens since its first live sequence
                                                                   entered */
uint32_t tenants_active(const struct tenants *t);               /* tenants with live sequences */

#endif

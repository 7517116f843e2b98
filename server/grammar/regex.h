/* Regular languages over bytes as expressions with intersection, complement and counted repeats. They are
 * matched by sets of partial derivatives (Antimirov 1996): the residual after a byte is a set of items, at
 * most about as many as the expression has positions, because items that differ only in a count are merged.
 * Each operand of an intersection or complement is a set of its own. Equal expressions have equal ids
 * (hash-consing), so a match state is an id. Not thread-safe. Internal to server/grammar/. */
#ifndef KVASIR_REGEX_H
#define KVASIR_REGEX_H

#include "config/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t rx;   /* an expression in its pool */
#define RX_NONE     0u /* matches nothing. Also returned by a failed call: see rx_status */
#define RX_EMPTY    1u /* matches the empty string */
#define RX_ALL      2u /* matches every byte string, also invalid UTF-8 */
#define RX_NO_LIMIT UINT32_MAX

struct rx_pool;
enum status rx_pool_create(size_t nodes_max, struct rx_pool **out) KV_MUST_CHECK;
void rx_pool_free(struct rx_pool *p); /* NULL is fine */
/* ST_OK, or the pool's first failure: ST_NOMEM, or ST_TOO_LARGE for more nodes than nodes_max (the pool is
 * full then), a set with too many items, or more work than work_max. Sticky; builders check once at the end.
 */
enum status rx_status(const struct rx_pool *p);
/* Is the pool over its limit? That depends on its earlier contents, so results must not depend on it. */
bool rx_pool_full(const struct rx_pool *p);
/* The expressions so far are the base, to which so many nodes, and items of lists, may be added. */
void rx_pool_base(struct rx_pool *p, size_t nodes, size_t items);
/* Work is counted in units of 2 to 5 ns, as if nothing were cached: it is a function of the expressions
 * alone. Sets the remaining work; SIZE_MAX: unlimited. Clears a failure caused by the old limit. */
void rx_pool_work_max(struct rx_pool *p, size_t most);
size_t rx_pool_work(const struct rx_pool *p);
void rx_spend(struct rx_pool *p, size_t units); /* charges external work */
/* Work between begin and end is already counted. */
void rx_pool_free_of_charge(struct rx_pool *p, bool begin);
/* Everything fails with ST_AGAIN once *stop (NULL: none) is set, or after more work than `most` from here
 * (SIZE_MAX: unlimited), which only says when to do it: the next rx_pool_work_max clears that. */
void rx_pool_stop(struct rx_pool *p, const atomic_bool *stop);
void rx_pool_pause(struct rx_pool *p, size_t most);
rx *rx_pool_kept(struct rx_pool *p);          /* an expression for the pool's user; initially RX_NONE */
size_t rx_pool_made(const struct rx_pool *p); /* bytes beyond the base, excluding reserved capacity */
size_t rx_pool_bytes(const struct rx_pool *p);
void rx_pool_cut(struct rx_pool *p); /* drops all but the base */

/* One byte out of a set: bit b & 31 of set[b >> 5]. */
rx rx_bytes(struct rx_pool *p, const uint32_t set[8]);
rx rx_literal(struct rx_pool *p, const void *bytes, size_t len);
/* One character in [from, to], as UTF-8; surrogates are excluded. */
rx rx_chars(struct rx_pool *p, uint32_t from, uint32_t to);
rx rx_concat(struct rx_pool *p, rx a, rx b);
/* For expressions: factors out common prefixes. */
rx rx_alt(struct rx_pool *p, rx a, rx b);
rx rx_concat_list(struct rx_pool *p, const rx *list, size_t n); /* in linear time */
rx rx_alt_list(struct rx_pool *p, const rx *list, size_t n);
/* For residuals: a set, nothing is factored. */
rx rx_union(struct rx_pool *p, const rx *list, size_t n);
rx rx_and(struct rx_pool *p, rx a, rx b);
rx rx_not(struct rx_pool *p, rx a);
rx rx_repeat(struct rx_pool *p, rx a, uint32_t min, uint32_t max); /* max: RX_NO_LIMIT = any number */
/* Decimal numbers, without a sign, whose multiple by 10^decimals is one of n. */
rx rx_multiple(struct rx_pool *p, uint32_t n, uint32_t decimals);
rx rx_in_json(struct rx_pool *p, rx a); /* its strings as JSON strings, without the quotes */

bool rx_nullable(const struct rx_pool *p, rx a); /* matches the empty string */
rx rx_derivative(struct rx_pool *p, rx a, uint8_t byte);
uint32_t rx_items(const struct rx_pool *p, rx a); /* number of items in its set */
/* Byte classes 0..count-1: bytes of one class lead to the same derivative of each added expression. */
struct rx_classes {
    uint8_t of_byte[256];
    uint32_t count;
    uint16_t size[256]; /* bytes in each class */
    uint32_t seen[64];  /* sets already added, by a hash of their id */
};
void rx_classes_begin(struct rx_classes *c);
void rx_classes_add(struct rx_pool *p, rx a, struct rx_classes *c);
/* Is the language empty? Explores intersections and complements, at most `states` sets: false if that is not
 * enough to decide. The result depends on the expression alone. */
bool rx_matches_nothing(struct rx_pool *p, rx a, size_t states);
rx rx_live(struct rx_pool *p, rx a, size_t states); /* without empty alternatives */
/* Are its strings of only a few lengths? Also false if that is hard to decide. */
bool rx_bounded(struct rx_pool *p, rx a);
/* Drops its exceptions, which are some strings of a few lengths: if the result has an unlimited free run
 * (below), so does the original, because strings of every length remain. */
rx rx_widened(struct rx_pool *p, rx a);
/* A lower bound on how many consecutive strings of `one` (each non-empty; a character, say) may follow,
 * whatever they are; RX_NO_LIMIT = any number, also truncated anywhere. 0 also if that is hard to decide. */
uint32_t rx_free_run(struct rx_pool *p, rx a, rx one);

#endif

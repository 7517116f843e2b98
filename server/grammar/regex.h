/* Regular languages over bytes as expressions with and, not and counted repeats. They are matched by sets of
 * partial derivatives (Antimirov 1996): what is left after a byte is a set of items, at most about as many as
 * the expression has positions, since items that differ in a count become one. What and and not combine is a
 * set of its own. Equal expressions have equal numbers (hash-consing), so a state of a match is a number. Not
 * thread-safe. Internal to server/grammar/. */
#ifndef KVASIR_REGEX_H
#define KVASIR_REGEX_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t rx;   /* an expression of one pool */
#define RX_NONE     0u /* matches nothing. Also the result of a call that failed: see rx_status */
#define RX_EMPTY    1u /* matches the empty text */
#define RX_ALL      2u /* matches every text, also one that is not UTF-8 */
#define RX_NO_LIMIT UINT32_MAX

struct rx_pool;
enum status rx_pool_create(size_t nodes_max, struct rx_pool **out) KV_MUST_CHECK;
void rx_pool_free(struct rx_pool *p); /* NULL is fine */
/* ST_OK, or the first failure of a call since the pool was made: ST_NOMEM, or ST_TOO_LARGE for more nodes
 * than nodes_max (the pool is full then), a set of too many items, more work than work_max. Sticky; whoever
 * builds looks once at the end. */
enum status rx_status(const struct rx_pool *p);
/* More than the pool may hold: what was made before it decides on that, so nothing else may depend on it. */
bool rx_pool_full(const struct rx_pool *p);
void rx_pool_room(struct rx_pool *p, size_t nodes, size_t items); /* so many more, of lists so many items */
/* Work is counted in units of 2 to 5 ns, as if nothing were known: it is a function of the expressions
 * alone. So much more of it may be done from now on; SIZE_MAX: any. What failed for it is over. */
void rx_pool_work_max(struct rx_pool *p, size_t most);
size_t rx_pool_work(const struct rx_pool *p);
void rx_spend(struct rx_pool *p, size_t units); /* work of others */
/* What is done between begin and end was counted already. */
void rx_pool_free_of_charge(struct rx_pool *p, bool begin);
rx *rx_pool_kept(struct rx_pool *p); /* an expression of whoever builds with the pool; at first RX_NONE */
size_t rx_pool_used(const struct rx_pool *p); /* bytes, without what is reserved */
/* Number of expressions; and back to an earlier number: those made since are gone. */
size_t rx_pool_count(const struct rx_pool *p);
size_t rx_pool_bytes(const struct rx_pool *p);
void rx_pool_cut(struct rx_pool *p, size_t count);

/* One byte of a set: bit b & 31 of set[b >> 5]. */
rx rx_bytes(struct rx_pool *p, const uint32_t set[8]);
rx rx_literal(struct rx_pool *p, const void *bytes, size_t len);
/* One character of [from, to], UTF-8; surrogates are left out. */
rx rx_chars(struct rx_pool *p, uint32_t from, uint32_t to);
rx rx_concat(struct rx_pool *p, rx a, rx b);
/* For expressions: common beginnings are factored out. */
rx rx_alt(struct rx_pool *p, rx a, rx b);
rx rx_concat_list(struct rx_pool *p, const rx *list, size_t n); /* in time that is linear */
rx rx_alt_list(struct rx_pool *p, const rx *list, size_t n);
/* For what is left of a match: a set, nothing is factored. */
rx rx_union(struct rx_pool *p, const rx *list, size_t n);
rx rx_and(struct rx_pool *p, rx a, rx b);
rx rx_not(struct rx_pool *p, rx a);
rx rx_repeat(struct rx_pool *p, rx a, uint32_t min, uint32_t max); /* max: RX_NO_LIMIT = any number */

bool rx_nullable(const struct rx_pool *p, rx a); /* matches the empty text */
rx rx_derivative(struct rx_pool *p, rx a, uint8_t byte);
uint32_t rx_items(const struct rx_pool *p, rx a); /* of its set */
/* Bytes of one class, 0..count-1, lead to the same derivative of each expression that was added. */
struct rx_classes {
    uint8_t of_byte[256];
    uint32_t count;
    uint16_t size[256]; /* bytes of a class */
    uint32_t seen[64];  /* sets that were added, by a hash of their number */
};
void rx_classes_begin(struct rx_classes *c);
void rx_classes_add(struct rx_pool *p, rx a, struct rx_classes *c);
/* Does it match no text at all? Walks what and and not combine, at most `states` sets of it: false where that
 * was not enough to tell. The answer depends on the expression alone. */
bool rx_matches_nothing(struct rx_pool *p, rx a, size_t states);
rx rx_live(struct rx_pool *p, rx a, size_t states); /* without the alternatives that match nothing */
/* Has it texts of a few lengths only? false also where that is hard to tell. */
bool rx_bounded(struct rx_pool *p, rx a);
/* Without its exceptions, which are some texts of a few lengths: what has a free run without limit (below)
 * after this has it with them, as texts of every length are left. */
rx rx_widened(struct rx_pool *p, rx a);
/* How many texts of `one` in a row (each not empty; a character, say) can follow whichever they are: at least
 * so many; RX_NO_LIMIT = any number, also cut anywhere. 0 also where that is hard to tell. */
uint32_t rx_free_run(struct rx_pool *p, rx a, rx one);

#endif

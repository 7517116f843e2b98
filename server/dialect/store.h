/* Responses that are kept, so that others can follow upon them: the items that came in, and the response that
 * went out, as JSON. Bounded in bytes and in number: the one that was used least recently goes first. Any
 * thread. */
#ifndef KVASIR_RESPONSE_STORE_H
#define KVASIR_RESPONSE_STORE_H

#include "config/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESPONSE_ID_BYTES 40u /* "resp_", 32 hexadecimal digits, a NUL */

/* Whose they are: a hash of the API key, and gen_salt's; zeros without one. For all others they don't
 * exist. */
struct response_owner {
    uint8_t key[32], salt[32];
};

/* Doesn't change, and stays as long as somebody has taken it. */
struct response_kept {
    char id[RESPONSE_ID_BYTES];
    struct response_owner owner;
    struct buf items;             /* [..], the input items of this turn */
    struct buf response;          /* {..} */
    struct response_kept *before; /* the response that it follows upon, taken by it, or NULL */
    /* the store's */
    struct response_kept *newer, *older, *chain; /* in the order of use; of its bucket */
    uint32_t refs;                               /* the store's own, those that follow, those that took it */
    bool listed;                                 /* it can be found */
};

struct response_store;
/* NULL: out of memory. bytes 0: nothing is kept. */
struct response_store *response_store_create(uint64_t bytes);
void response_store_destroy(struct response_store *s); /* nothing is taken; NULL is fine */
bool response_store_on(const struct response_store *s);
/* NULL: there is none of this id and owner. What it follows upon counts as used too. */
struct response_kept *response_take(struct response_store *s, const char *id,
                                    const struct response_owner *owner);
void response_give_back(struct response_store *s, struct response_kept *r); /* NULL is fine */
/* Takes over items and, if it succeeds, the caller's hold on `before`, which may be NULL; copies response.
 * False: too large, or no memory. */
bool response_keep(struct response_store *s, const char *id, const struct response_owner *owner,
                   struct response_kept *before, struct buf *items, const char *response, size_t len);
/* It can't be found any more; what follows upon it still knows it. False: there is none. */
bool response_forget(struct response_store *s, const char *id, const struct response_owner *owner);
/* Those that can be found, and the bytes that all of them take. */
void response_store_size(struct response_store *s, uint32_t *count, uint64_t *bytes);

#endif

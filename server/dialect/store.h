/* Stored responses for previous_response_id: the items of each turn as values, which later turns share, and
 * the response as text. Bounded in bytes and in number: who has most loses the least recently used one. Any
 * thread. */
#ifndef KVASIR_RESPONSE_STORE_H
#define KVASIR_RESPONSE_STORE_H

#include "config/base/buf.h"
#include "config/base/hash_table.h"
#include "server/shares/shares.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESPONSE_ID_BYTES 40u /* "resp_", 32 hexadecimal digits, a NUL */

/* The owner: a hash of the API key, and gen_salt's; zeros without one. Other owners can't see the response.
 */
struct response_owner {
    uint8_t key[32], salt[32];
    uint64_t websocket; /* only this WebSocket may use it, and it ends with it; 0: stored */
};

/* Immutable; lives as long as it is referenced. */
struct response_kept {
    struct hash_link link; /* of the store */
    char id[RESPONSE_ID_BYTES];
    struct response_owner owner;
    uint64_t holder;              /* whose share it takes */
    json_t *items;                /* of this turn: the input, then the output */
    size_t inputs;                /* so many of them are input */
    struct buf response;          /* {..} */
    size_t bytes;                 /* of memory, with the struct */
    struct response_kept *before; /* the previous response (a reference), or NULL */
    /* internal to the store */
    struct response_kept *prev, *next; /* LRU list */
    struct share *share;
    size_t charge; /* on it: the bytes, at least its part of the number */
    uint32_t refs; /* from the store, following responses and callers */
    bool listed;   /* it can be found */
};

struct response_store;
/* NULL: out of memory. bytes 0: stores nothing. */
struct response_store *response_store_create(uint64_t bytes);
void response_store_destroy(struct response_store *s); /* no references are left; NULL is fine */
bool response_store_on(const struct response_store *s);
/* NULL: none with this id and owner. Its previous responses count as used too. */
struct response_kept *response_take(struct response_store *s, const char *id,
                                    const struct response_owner *owner);
void response_give_back(struct response_store *s, struct response_kept *r); /* NULL is fine */
/* Of `new`, the id, owner, holder, items, inputs and before are set. On success takes ownership of the items
 * and of the caller's reference `before` (may be NULL); copies response. False: too large, or no memory. */
bool response_keep(struct response_store *s, const struct response_kept *new, const char *response,
                   size_t len);
/* Removes it from lookup; responses that follow it still hold it. False: not found. */
bool response_forget(struct response_store *s, const char *id, const struct response_owner *owner);
void response_forget_websocket(struct response_store *s, uint64_t websocket);
/* Number of responses that can be found, and the bytes of all. */
void response_store_size(struct response_store *s, uint32_t *count, uint64_t *bytes);

#endif

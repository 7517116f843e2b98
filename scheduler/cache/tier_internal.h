/* Shared by the files of the tier (tier_index.c: nodes and the search; tier.c: copies, the store's events;
 * tier_snapshot.c: its shape). Nobody else includes it. See tier.h. */
#ifndef KVASIR_TIER_INTERNAL_H
#define KVASIR_TIER_INTERNAL_H

#include "scheduler/cache/cache_store.h"
#include "config/base/hash_table.h"
#include "scheduler/cache/tier.h"

#define TIER_NO_GROUP     UINT32_MAX
#define TIER_SIBLINGS_MAX 64u /* looked at for an equal beginning, the latest first */

/* The meta data of a record, as they lie on disk (the store's binding covers the format): a node's items,
 * then tokens[end - start], padded to 8 bytes, then spans. A record without items (end 0) holds the data of
 * the node that its parent names. */
struct tier_items {
    uint32_t group; /* of the payload; TIER_NO_GROUP: none */
    uint32_t start, end, span_count;
};
struct tier_span { /* that touches the items */
    uint32_t begin, end, atomic_end;
    int32_t mrope_delta;
    uint32_t t, h, w, breaks;
    double seconds;
    uint8_t key[32];
};

struct tier_record {
    struct hash_link by_id, by_key;  /* by_id: while it is in the store; by_key: of images */
    struct tier_record *prev, *next; /* in host memory, in the order in which it is used again */
    uint64_t id;                     /* in the store; 0: not there */
    uint64_t bytes;
    char *host;             /* [bytes] in tier.host, or NULL */
    uint64_t copied;        /* engine_copies after its last copy from or to host memory */
    uint32_t readers;       /* it stays in host memory */
    bool used;              /* it stays there for one more round */
    struct tier_node *node; /* NULL: an image */
    uint32_t group;
    uint8_t salt[32], key[32]; /* of an image */
};

struct tier_node {
    struct hash_link link; /* hash of (parent's serial, items), or of the salt */
    struct tier_node *root, *parent, *child, *prev, *next;
    uint64_t serial; /* never used again */
    struct tier_items *items;
    uint32_t items_bytes;
    uint8_t salt[32];                            /* a root's, which has no items and no parent */
    uint64_t block_hash;                         /* in events; of a whole block, or a root */
    bool busy;                                   /* not pruned */
    struct tier_record *name;                    /* NULL: not in the store */
    struct tier_record *data[ENGINE_GROUPS_MAX]; /* one of them may be `name` */
};

struct tier {
    struct engine *engine;
    struct engine_caps caps;
    struct tier_options opt;
    uint32_t bt, state_group;
    uint64_t serials;
    uint32_t drain_ms; /* left; 0: not draining */
    bool ready, full, off, resetting;
    bool events; /* there is an event sink */
    struct hash_table nodes, by_id, by_key;
    /* Host memory is a ring of opt.host_bytes: all before host_at was filled in this round, the next record
     * after it is in_host.head. */
    char *host;
    uint64_t host_at, released; /* released: the last copy from or to what is free */
    struct {
        struct tier_record *head, *tail;
    } in_host;
    struct tier_stats stats;
    struct tier_items *scratch; /* encoded items of one block, and their size */
    uint32_t scratch_bytes;
    struct { /* the last search */
        struct radix_lower lower;
        struct tier_record **records[ENGINE_GROUPS_MAX]; /* by block; recurrent: by state */
        uint32_t cap;
    } found;
};

/* The record is there, or about to go. */
void tier__event(const struct tier *t, const struct tier_record *r, bool there);

/* ---- tier_index.c ---- */
enum status tier__index_create(struct tier *t, struct err *err) KV_MUST_CHECK;
/* Of a link in tier.by_key. */
static inline struct tier_record *tier__image_of(struct hash_link *l)
{
    return (struct tier_record *)(void *)((char *)l - offsetof(struct tier_record, by_key));
}

void tier__index_clear(struct tier *t); /* frees nodes and records, tells the store nothing */
void tier__index_destroy(struct tier *t);
struct tier_node *tier__root(struct tier *t, const uint8_t salt[32], bool create); /* NULL: none, no memory */
/* The block of v that begins at `start` and ends at `end`, encoded into t->scratch. */
void tier__encode(struct tier *t, const struct radix_view *v, uint32_t start, uint32_t end);
/* The child with exactly the items in t->scratch; NULL: none. */
struct tier_node *tier__child(const struct tier *t, const struct tier_node *n);
/* Makes a child with these items, which are taken; NULL: no memory (they are freed). */
struct tier_node *tier__child_create(struct tier *t, struct tier_node *n, struct tier_items *items,
                                     uint32_t bytes);
bool tier__spans_valid(const struct tier_items *it);  /* they touch the items, in order */
uint64_t tier__block_hash(const struct tier_node *n); /* of a whole block after its parent */
uint32_t *tier__tokens(const struct tier_items *it);
struct tier_span *tier__spans(const struct tier_items *it);
struct prompt_span tier__prompt_span(const struct tier_span *s);
uint32_t tier__items_bytes(uint32_t start, uint32_t end, uint32_t span_count);
struct tier_record *tier__record_create(struct tier *t, struct tier_node *n, uint32_t group, uint64_t bytes);
struct tier_record *tier__image_create(struct tier *t, const uint8_t salt[32], const uint8_t key[32],
                                       uint64_t bytes);
void tier__record_id(struct tier *t, struct tier_record *r,
                     uint64_t id); /* it is in the store; 0: no longer */
struct tier_record *tier__by_id(const struct tier *t, uint64_t id);
void tier__record_free(struct tier *t, struct tier_record *r); /* and prunes */
/* Frees n and its ancestors as far as they have neither data nor children; deletes their names in the store.
 */
void tier__prune(struct tier *t, struct tier_node *n);
void tier__prune_all(struct tier *t);
/* How many leading items of two blocks with the same start are equal. */
uint32_t tier__common(const struct tier_items *a, const struct tier_items *b);
/* Whether a sibling begins with all items of a partly filled block: one that has data of group g, or that is
 * longer, if g is TIER_NO_GROUP. */
bool tier__covered(const struct tier_node *n, uint32_t g);
void tier__host_add(struct tier *t, struct tier_record *r, char *host);
void tier__host_remove(struct tier *t, struct tier_record *r); /* if it is in host memory */

#endif

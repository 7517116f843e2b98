/* Shared by the files of the radix cache (radix_cache.c: match and publish; radix_node.c: nodes and items;
 * radix_evict.c: eviction; radix_sink.c: what goes to the tier below; radix_events.c: what an event sink
 * receives; radix_snapshot.c: its shape) and tests/lib/radix_check.c; nobody else includes it. See
 * radix_cache.h for the layout. */
#ifndef KVASIR_RADIX_INTERNAL_H
#define KVASIR_RADIX_INTERNAL_H

#include "config/base/hash_table.h"
#include "scheduler/cache/radix_cache.h"

/* HEAP_NEWEST: of a snapshot, by last use; its elements know no place in it. */
enum radix_heap_kind {
    HEAP_BODY = 0,
    HEAP_CHAIN_TAIL,
    HEAP_LEAF,
    HEAP_BRANCH_TAIL,
    HEAP_STATE,
    HEAP_COUNT,
    HEAP_NEWEST = HEAP_COUNT
};
struct radix_heap {
    struct radix_node **at;
    uint32_t count;
};

/* A block of the event sink's size; it belongs to the node that holds its last item. */
struct radix_mark {
    uint64_t hash;
    uint32_t announced;                /* bit g: the event sink knows it as stored in group g */
    uint32_t tails[ENGINE_GROUPS_MAX]; /* sliding groups: tails that hold all of it, of any node. Recurrent
                                          group: saved states whose last whole block it is */
};

struct radix_node {
    struct hash_link link; /* in the table of children: hash of (parent's id, first item), or of the salt */
    struct radix_node *parent, *child, *prev, *next; /* next/prev: siblings */
    uint64_t id;                                     /* never used again */
    uint32_t start, end;
    uint32_t child_count, pins, state_hits; /* state_hits: that ended at its state */
    bool root;                              /* of a salt; start = end = 0 */
    bool checkpoint;                        /* hits are likely to end at `end`: never extended in place */
    bool has_tail;
    bool state_gone;  /* its state was evicted */
    uint32_t *tokens; /* [end - start], token_cap entries */
    uint32_t token_cap, block_cap;
    struct prompt_span *spans; /* that touch it, in order, without pixels */
    uint32_t span_count;
    uint8_t salt[32];                           /* root */
    uint32_t *block_offsets[ENGINE_GROUPS_MAX]; /* [radix__blocks(node)] from block index start / BT on;
                                           ENGINE_NO_BLOCK where nothing is kept */
    uint32_t body[ENGINE_GROUPS_MAX];           /* sliding groups: entries of block_offsets that are there */
    struct radix_run tail[ENGINE_GROUPS_MAX];
    uint32_t state; /* the recurrent group's block after `end` tokens; ENGINE_NO_BLOCK: not saved */
    uint64_t last_use;
    double base, state_base;      /* `inflation` at the last use; at the last hit that ended here */
    double rank;                  /* leaves: base + worth (GreedyDual); in HEAP_STATE: state_base + worth */
    uint32_t heap_at[HEAP_COUNT]; /* index + 1; 0 = not in it */
    struct radix_mark *marks;     /* [radix__marks(start, end)], mark_cap entries; NULL: no event sink */
    uint32_t mark_cap;
    struct radix_node *dirty_prev, *dirty_next; /* list of nodes with pending events */
    uint32_t dirty_from, dirty_to;              /* positions; empty: not in it */
};

struct radix_cache {
    struct engine_caps caps;
    struct kv_blocks *blocks;
    uint64_t seed, next_id, clock;
    uint32_t bt;
    bool sliding;          /* there is a group with a window */
    uint32_t state_group;  /* the recurrent group, which caps.group_count leaves out; ENGINE_GROUPS_MAX: none
                            */
    struct radix_node top; /* its children are the roots of the salts */
    struct hash_table children; /* of all nodes */
    struct radix_heap heaps[HEAP_COUNT];
    uint32_t heap_cap; /* of every heap: a node always fits */
    double inflation;
    uint32_t no_state;    /* ENGINE_NO_BLOCK, for a hit's table */
    uint64_t states_most; /* grains that saved states may take, see radix_pin_hit */
    uint64_t *ghosts; /* fingerprints of (parent, first item) of evicted nodes: only to report why something
                         is missing */
    uint32_t *scratch[ENGINE_GROUPS_MAX], *valid_to[ENGINE_GROUPS_MAX];
    uint32_t scratch_cap;
    struct kv_event_sink event_sink;
    struct radix_sink sink; /* keep NULL: none */
    struct {
        uint32_t *tokens;
        struct prompt_span *spans;
        uint32_t token_cap, span_cap;
    } path;     /* radix__path */
    bool quiet; /* events are suppressed: a resync follows; nothing goes to the sink */
    struct radix_node *dirty, *dirty_last;
    struct {
        uint64_t *hashes;
        struct cache_image *images;
        uint32_t hash_cap, image_cap;
    } announced;
    struct radix_stats stats;
};

enum { GHOST_COUNT = 1 << 15, DROP_BLOCKS = 8 };

static inline uint32_t radix__blocks(const struct radix_cache *c, uint32_t start, uint32_t end)
{
    return end > start ? (end + c->bt - 1) / c->bt - start / c->bt : 0;
}

/* Block indices [*first, *first + count) that a hit at p needs of group g; the count is returned. Inside a
 * prefix-LM prefix that ends at `whole` (0 = none) rows see its beginning, whatever the window. */
uint32_t radix__window(const struct radix_cache *c, uint32_t g, uint32_t p, uint32_t whole, uint32_t *first);

/* Blocks of the event sink's size whose last item lies in [start, end). */
static inline uint32_t radix__marks(const struct radix_cache *c, uint32_t start, uint32_t end)
{
    uint32_t n = c->event_sink.block_tokens;
    return n ? end / n - start / n : 0;
}

static inline bool radix__recurrent(const struct radix_cache *c)
{
    return c->state_group < ENGINE_GROUPS_MAX;
}

/* ---- radix_events.c: no-ops without an event sink ---- */
bool radix__marks_reserve(const struct radix_cache *c, struct radix_node *n, uint32_t to);
/* n was extended from `from` on, or created; v: its path. Capacity was reserved. */
void radix__marks_add(struct radix_cache *c, struct radix_node *n, const struct radix_view *v, uint32_t from);
/* Before n is split at p: marks before p move to u, which has capacity. */
void radix__marks_split(struct radix_cache *c, struct radix_node *u, struct radix_node *n, uint32_t p);
void radix__marks_cut(struct radix_cache *c, struct radix_node *n, uint32_t end); /* before n ends there */
void radix__marks_drop(struct radix_cache *c, struct radix_node *n); /* before n and its tail are freed */
/* n's tail was created, or is about to be freed. */
void radix__event_tail(struct radix_cache *c, struct radix_node *n, bool there);
void radix__event_state(struct radix_cache *c, struct radix_node *n, bool there); /* the same of its state */
/* Sliding blocks of n in positions [from, to) were added or removed. */
void radix__event_offsets(struct radix_cache *c, struct radix_node *n, uint32_t from, uint32_t to);
/* Sends all changes to the event sink, at the end of every call that may change something. */
void radix__event_flush(struct radix_cache *c);
/* Whether group g holds all positions of mark k of n. */
bool radix__mark_held(const struct radix_cache *c, const struct radix_node *n, uint32_t g, uint32_t k);

/* ---- radix_sink.c: no-ops without a sink ---- */
/* The items [from, to) of n's path, to <= n->end; tokens[0] is that at `from`. False: out of memory. */
bool radix__path(struct radix_cache *c, const struct radix_node *n, uint32_t from, uint32_t to,
                 struct radix_view *v);
enum radix_kept { KEPT_BLOCKS = 1, KEPT_TAIL = 2, KEPT_STATE = 4, KEPT_ALL = 7 };
/* Gives that of n to it; of the blocks, those from position `from` on. */
void radix__keep(struct radix_cache *c, struct radix_node *n, enum radix_kept what, uint32_t from);

/* ---- radix_node.c ---- */
struct radix_node *radix__root(const struct radix_cache *c, const uint8_t salt[32]);
struct radix_node *radix__root_create(struct radix_cache *c,
                                      const uint8_t salt[32]); /* NULL: out of memory */
/* The child that begins with the item at pos of v, or NULL. *hash gets the fingerprint of (n, item). */
struct radix_node *radix__child(const struct radix_cache *c, const struct radix_node *n,
                                const struct radix_view *v, uint32_t pos, uint64_t *hash);
/* How many items from pos on are equal in n and v, at most up to position `limit` (<= n->end). */
uint32_t radix__common(const struct radix_node *n, const struct radix_view *v, uint32_t pos, uint32_t limit);
/* The items of a view or of a node: of tokens, the first is that at position `first`. */
struct radix_items {
    const uint32_t *tokens;
    const struct prompt_span *spans;
    uint32_t first, span_count;
};
static inline struct radix_items radix__of_view(const struct radix_view *v)
{
    return (struct radix_items){v->tokens, v->spans, 0, v->span_count};
}
static inline struct radix_items radix__of_node(const struct radix_node *n)
{
    return (struct radix_items){n->tokens, n->spans, n->start, n->span_count};
}
/* The span that the item at pos is of; NULL: it is a text token. */
const struct prompt_span *radix__span(struct radix_items x, uint32_t pos);
/* Fingerprint of (parent, its item at pos). */
uint64_t radix__child_hash(const struct radix_cache *c, const struct radix_node *parent, struct radix_items x,
                           uint32_t pos);
/* Continues a hash by the item at pos. */
uint64_t radix__item_hash(uint64_t h, struct radix_items x, uint32_t pos);
/* Splits n at p (start < p < end): returns the new upper part, n is the lower one. NULL: out of memory,
 * nothing changed. */
struct radix_node *radix__split(struct radix_cache *c, struct radix_node *n, uint32_t p);
struct radix_node *radix__child_create(struct radix_cache *c, struct radix_node *parent,
                                       const struct radix_view *v, uint32_t to,
                                       const struct block_table tables[]);
bool radix__extend(struct radix_cache *c, struct radix_node *n, const struct radix_view *v, uint32_t to,
                   const struct block_table tables[]);
void radix__remove(
    struct radix_cache *c,
    struct radix_node *n); /* a leaf without pins: releases and frees; the parent is not checked */
void radix__set_offset(struct radix_cache *c, struct radix_node *n, uint32_t g, uint32_t index,
                       uint32_t block_offset); /* block index; swaps the hold */
/* Block of index i in which n's path claims every position below `upto` (in that block, at most n->end);
 * ENGINE_NO_BLOCK if it isn't kept. */
uint32_t radix__path_offset(const struct radix_cache *c, const struct radix_node *n, uint32_t g, uint32_t i,
                            uint32_t upto);

/* ---- radix_evict.c ---- */
void radix__heap_push(struct radix_heap *heap, enum radix_heap_kind h, struct radix_node *n); /* has room */
/* The element at i; 0: the first. */
struct radix_node *radix__heap_remove(struct radix_heap *heap, enum radix_heap_kind h, uint32_t i);
bool radix__heaps_reserve(struct radix_cache *c, uint64_t nodes);
void radix__classify(struct radix_cache *c,
                     struct radix_node *n); /* after every change of n: which heaps it belongs to */
void radix__unheap(struct radix_cache *c, struct radix_node *n);
void radix__touch(struct radix_cache *c, struct radix_node *n); /* n and its ancestors were just used */
void radix__drop_tail(struct radix_cache *c, struct radix_node *n);
/* n, which is pinned, takes a state (one more hold), unless it has one; evicts if states take too much. */
void radix__keep_state(struct radix_cache *c, struct radix_node *n, uint32_t state);

#endif

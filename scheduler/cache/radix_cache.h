/* The prefix cache: a radix tree over prompt items whose nodes hold KV blocks. Engine thread only; pure data
 * structure on top of kv_blocks.h: no tensors, no clock (recency is the order of calls). Knows sequences only
 * as item views and block tables.
 *
 * An item is a text token (its id) or a row of an image (256-bit content key, index within the image);
 * items are compared in full, hashes only find candidates. A node is a run of items at absolute positions
 * [start, end); children begin where it ends. One root per salt.
 *
 *   before:  A [0,70)             full   |b0|b1|b2|
 *                                 slide  |s0|s1|s2|
 *
 *   after a prompt that branches off at 40:
 *            A' [0,40)            full   |b0|b1|         slide  |s0|s1|
 *             +-> A [40,70)       full   |b1|b2|         b1 is held by A' and by A
 *             `-> B [40,90)       full   |c1|c2|         c1: a copy of [32,40), then B's own tokens
 *
 * Blocks are aligned to absolute positions (block i = positions [i*BT, (i+1)*BT)). A node holds one block per
 * group for every index that its items touch; its first one also carries the items before `start` that share
 * the index. A node's last block may be partly filled: positions below `end` are claimed by the node and
 * never written again; the sequence that filled it may keep writing after them.
 *
 * Full groups: a node in the tree has all its blocks. Sliding groups: blocks may be missing. A hit at p needs
 * the blocks of [p-w+1, p) of every sliding group. They come from two sources:
 *   body: what the node's own index range still has; kept while memory lasts, for hits anywhere
 *   tail: blocks of [end-w+1, end), held separately by nodes at whose end hits are likely (prompt end, turn
 *         end, image end, branch point)
 *
 * Recurrent group: a node may hold the state after its last item. A hit ends only where a state is saved.
 *
 * Eviction order when memory is short:
 *   1. bodies of sliding groups, least recently used node first, from the front;
 *   2. tails inside a chain (one child: the conversation continued), least recently used first;
 *   3. leaves with all they hold, and states of inner nodes alone, by recency weighted with recompute cost
 *      per byte; ancestors in which no hit can end are evicted with the leaves;
 *   4. tails of branch points.
 * Saved states take at most a quarter of the arena, until requests miss one that was evicted: each raises the
 * limit.
 * A sequence pins the node that its history ends in; blocks that running sequences hold stay allocated,
 * whatever the tree evicts. All choices cost O(log n): four indexed heaps. */
#ifndef KVASIR_RADIX_CACHE_H
#define KVASIR_RADIX_CACHE_H

#include "config/base/status.h"
#include "engine/engine.h"
#include "engine/prompt/prompt.h"
#include "scheduler/cache/cache_report.h"
#include "scheduler/cache/kv_blocks.h"

struct radix_cache;
struct radix_node;

/* The items of a sequence: tokens[i] at position i, except where an image's span covers it. Borrowed for the
 * call. */
struct radix_view {
    const uint32_t *tokens;
    uint32_t count;
    const struct prompt_span *spans; /* in order, within [0, count) */
    uint32_t span_count;
    const uint8_t *salt; /* [32] */
};

/* Index of the first of spans in order that ends after pos; count: none. */
uint32_t radix_span_at(const struct prompt_span *spans, uint32_t count, uint32_t pos);
/* Of an image of unknown identity (a key of all zeros): equal to no other, and nothing from it on is kept. */
bool radix_doubtful(const struct prompt_span *s);

/* Blocks of one group. */
struct block_table {
    uint32_t *block_offsets; /* by absolute block index; ENGINE_NO_BLOCK where nothing is kept */
    uint32_t first;          /* blocks before this one were released (sliding) or never needed */
    uint32_t end;            /* blocks [first, end) are there */
    uint32_t cap;            /* entries, of a sequence's own table */
};

/* What a lower tier has of a view's items. */
struct radix_lower {
    uint32_t equal;                        /* leading items that it knows */
    uint32_t blocks;                       /* entries of valid_to */
    uint32_t *valid_to[ENGINE_GROUPS_MAX]; /* it has the part of block i below this position; 0: nothing */
    uint32_t *states;                      /* [state_count] positions of saved states, ascending */
    uint32_t state_count;
};

struct radix_hit {
    uint32_t length; /* tokens that can be reused */
    /* the node with position length - 1; the salt's root when length is 0; NULL: no such root */
    struct radix_node *node;
    /* blocks that cover the hit (sliding: what the window reaches); the cache's scratch, valid until its
     * next call. The last one is partly filled unless length is a multiple of the block size. Recurrent:
     * entry 0 is the state at `length`; none when length is 0 */
    struct block_table tables[ENGINE_GROUPS_MAX];
    uint32_t branch; /* recurrent group: where a saved state would make the hit longer; 0: nowhere */
    bool evicted;    /* it would be longer, were nothing evicted */
    struct sched_cache_info info;
};

/* caps and blocks are borrowed and must outlive the cache. seed: of the hash functions. */
enum status radix_create(const struct engine_caps *caps, struct kv_blocks *blocks, uint64_t seed,
                         struct radix_cache **out, struct err *err) KV_MUST_CHECK;
void radix_destroy(struct radix_cache *c); /* releases every block */
/* From now on w receives what is stored and removed. Call once, while the cache is empty. Copies w. */
void radix_set_event_sink(struct radix_cache *c, const struct kv_event_sink *w);
/* The name of a block of items [a, b) in events: tokens[0] is that at a, the first span touches the block.
 * The parent of a prompt's first block is its salt's hash. */
uint64_t radix_block_hash(const uint32_t *tokens, const struct prompt_span *spans, uint32_t span_count,
                          uint32_t a, uint32_t b, uint64_t parent);
uint64_t radix_salt_hash(const uint8_t salt[32]);
/* Sends everything to w again. Without an event sink: nothing. */
void radix_announce(struct radix_cache *c);

/* The longest prefix of at most `limit` items (limit < count) that can be reused; never ends inside an atomic
 * image. Changes nothing. With `lower`, what could be reused if that were in memory, too: then the tables
 * have ENGINE_NO_BLOCK for what only `lower` has, and the hit can't be pinned. False: out of memory (hit is
 * empty then). */
bool radix_match(struct radix_cache *c, const struct radix_view *v, uint32_t limit,
                 const struct radix_lower *lower, struct radix_hit *hit);

/* How many leading items of two sequences are equal, at most `limit` (<= both counts); salts count. Never
 * ends inside an atomic image. */
uint32_t radix_common(const struct radix_view *a, const struct radix_view *b, uint32_t limit);

/* A handle on the node in which a sequence's published history ends: it stays in the tree. {0} is an empty
 * handle. */
struct radix_pin {
    struct radix_node *node;
};
/* Pins a hit and marks its path as just used. The node is split at the hit's end, so that what follows the
 * hit can still be evicted. An empty hit pins the salt's root. False: out of memory; nothing is pinned and
 * the hit must not be used. */
bool radix_pin_hit(struct radix_cache *c, const struct radix_view *v, const struct radix_hit *hit,
                   struct radix_pin *pin);
void radix_unpin(struct radix_cache *c, struct radix_pin *pin);

/* Puts the items [from, to) of a sequence into the tree, with its blocks; `pin` covers [0, from). Items that
 * exist already keep their blocks, except that missing sliding blocks are filled in; the sequence takes those
 * blocks in exchange for its own (the entries of `tables` change, with their KVB_LIVE holds), so nothing is
 * kept twice. checkpoint: hits are likely to end at `to`: its tail is kept. KV of all positions below `to`
 * must be computed and immutable. The recurrent group's table has the state at `to` as entry 0, if it is to
 * be saved (checkpoint only). Moves the pin. Without memory for nodes the rest stays unpublished. Returns the
 * position up to which the tree knows the sequence. */
uint32_t radix_publish(struct radix_cache *c, const struct radix_view *v, struct radix_pin *pin,
                       uint32_t from, uint32_t to, const struct block_table tables[], bool checkpoint);

/* Evicts until `need[g]` more blocks of every group can be allocated together; false if impossible. */
bool radix_evict(struct radix_cache *c, const uint32_t need[ENGINE_GROUPS_MAX]);
/* Receives what is evicted, before its blocks are released: blocks of group g for the indices first and
 * following, of the path that ends with the view; the recurrent group's is the state at its end. */
struct radix_run {
    uint32_t *block_offsets; /* ENGINE_NO_BLOCK where nothing is kept */
    uint32_t first, count;
};
struct radix_sink {
    void *arg;
    void (*keep)(void *arg, const struct radix_view *path, const struct radix_run runs[ENGINE_GROUPS_MAX]);
    void (*announce)(void *arg); /* its part of radix_announce; may be NULL */
};
void radix_set_sink(struct radix_cache *c, const struct radix_sink *sink);
/* Gives everything to the sink, the most recently used first, and keeps it. */
void radix_keep_all(struct radix_cache *c);
/* Drops everything that is not pinned; the event sink receives what is left again, the sink nothing. */
void radix_reset(struct radix_cache *c);

struct radix_stats {
    uint64_t nodes, evicted_nodes, evicted_blocks[ENGINE_GROUPS_MAX];
    uint64_t items;  /* tokens in the tree */
    uint64_t states; /* saved states of the recurrent group */
};
void radix_stats(const struct radix_cache *c, struct radix_stats *out);

/* Hash of a path of items: continues `before`, that of [0, pos) or 0, by the item at pos. For display. */
uint64_t radix_path_hash(uint64_t before, const struct radix_view *v, uint32_t pos);
/* Another item of a node that is put into a snapshot: it ends at `end`, with this hash. */
void radix_snapshot_item(struct cache_snapshot_node *n, uint32_t end, uint64_t hash);
/* A place in the tree: all of a path's first `pos` items lead to `node`. */
struct radix_cursor {
    const struct radix_node *node;
    uint32_t pos;
};
/* Moves along v as far as the tree knows it; v begins with the items that led to the cursor. */
void radix_cursor_move(const struct radix_cache *c, struct radix_cursor *at, const struct radix_view *v);
uint64_t radix_cursor_id(const struct radix_cursor *at); /* of its node, as in a snapshot; 0: a root, none */
/* What this salt has cached; in bounded time. */
void radix_snapshot(const struct radix_cache *c, const uint8_t salt[32], struct cache_snapshot *out);

#endif

/* What the prefix cache reports: how far a request was reused, events, its shape. Plain data. */
#ifndef KVASIR_CACHE_REPORT_H
#define KVASIR_CACHE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cache_tier { CACHE_TIER_ARENA = 0, CACHE_TIER_HOST, CACHE_TIER_DISK, CACHE_TIERS };

/* Why reuse of a prompt ended where it did. */
enum cache_stop {
    CACHE_STOP_NONE = 0, /* everything but the last token was reused */
    CACHE_STOP_END,      /* all cached items are equal, the prompt is longer */
    CACHE_STOP_TOKEN,    /* a text token differs from what is cached */
    CACHE_STOP_IMAGE,    /* a different image (or an image instead of text) is cached there */
    CACHE_STOP_SPAN,     /* equal up to a position inside an image that is only reused whole */
    CACHE_STOP_WINDOW,   /* equal further on, but the sliding-window KV before that position is gone */
    CACHE_STOP_STATE,    /* equal further on, but no state of the recurrent layers is saved there */
    CACHE_STOP_EVICTED,  /* the next tokens were cached and have been evicted */
    CACHE_STOP_SALT,     /* nothing is cached under the request's salt (or at all) */
    CACHE_STOP_PROMPT,   /* the prompt is prefilled whole (prefix-LM), and no cached one equals it */
    CACHE_STOP_DISABLED, /* the cache is off, or the request computes its prompt (log-probs of the prompt) */
};
struct sched_cache_info {
    uint32_t reused;      /* prompt tokens whose KV came from the cache */
    uint32_t loaded;      /* of which so many were loaded from a lower tier for this request */
    enum cache_tier tier; /* the lowest one that it came from */
    uint32_t equal;       /* leading prompt tokens that equal something cached, reusable or not */
    enum cache_stop stop;
};

/* Reports the content of the prefix cache to a consumer that mirrors it, such as a router: in blocks of
 * `block_tokens` tokens, independent of the cache's own block size. A block identifies all tokens from the
 * beginning of the prompt to its end: its hash covers its parent's hash, its tokens and its images, so
 * servers agree on it. Called on the engine thread; arguments are valid only during the call. */
struct cache_image {
    uint32_t begin, end; /* positions in the prompt */
    uint8_t key[32];
};
struct cache_stored {
    enum cache_tier tier;   /* where it is; each tier's blocks are stored and removed on their own */
    uint32_t group, window; /* layers with one lifetime rule; 0 = full attention, or recurrent */
    bool recurrent;         /* the state after the last block's end, or up to a block further, is saved */
    uint32_t count;         /* of blocks, each the parent of the next */
    uint32_t first;         /* position of the first one's first token; 0 = it has no parent */
    uint64_t parent;
    const uint64_t *hashes;           /* [count] */
    const uint32_t *tokens;           /* [count * block_tokens] */
    const struct cache_image *images; /* that touch the blocks, in order; may extend past them */
    uint32_t image_count;
    const uint8_t *salt; /* [32], as in struct sched_sequence */
};
struct kv_event_sink {
    uint32_t block_tokens; /* 0: no events */
    void *arg;
    void (*stored)(void *arg, const struct cache_stored *what);
    void (*removed)(void *arg, enum cache_tier tier, uint32_t group, const uint64_t *hashes, uint32_t count);
    /* All earlier events are void. The events that follow, up to the call with `done`, are the whole
     * content. */
    void (*resync)(void *arg, bool done);
};

/* The shape of the prefix cache: node lengths and branch points, no content. Only nodes of one salt, the most
 * recently used ones, then those that only a lower tier has; parents come first. */
#define CACHE_SNAPSHOT_MAX  1024u
#define CACHE_SNAPSHOT_ROOT UINT32_MAX
#define CACHE_MARKS_MAX     8u
struct cache_snapshot {
    uint64_t nodes, tokens; /* without a salt: of the whole cache; else of the nodes visited */
    uint32_t count;
    struct cache_snapshot_node {
        uint64_t id; /* while the node exists; of its lower part after a split */
        struct cache_mark {
            uint32_t end;  /* a position in (start, end] */
            uint64_t hash; /* radix_path_hash of [0, end) */
        } marks[CACHE_MARKS_MAX];
        uint32_t mark_count, mark_step; /* of all positions one in `mark_step` */
        uint64_t hash;                  /* of [0, end) */
        enum cache_tier tier;
        uint32_t parent;     /* index; CACHE_SNAPSHOT_ROOT: the node begins a prompt */
        uint32_t start, end; /* positions in the prompt; a node of a lower tier may start within its parent */
        uint32_t children;   /* in the cache; may exceed the listed ones */
        uint32_t running;    /* sequences whose computed part ends in it */
        uint32_t images;     /* that touch it */
        uint64_t uses_ago;   /* uses of the cache since this node's last use; lower tiers: 0 */
    } at[CACHE_SNAPSHOT_MAX];
};

#endif

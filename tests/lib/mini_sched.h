/* A scheduler just large enough to drive an engine in tests: every sequence gets all its blocks at the start,
 * from a bump allocator, and a step runs the next chunk of every sequence that is given. No policy, no reuse,
 * no release of blocks before a window. */
#ifndef KVASIR_MINI_SCHED_H
#define KVASIR_MINI_SCHED_H

#include "engine/engine.h"

struct mini_image {
    uint32_t begin, end;                     /* span of placeholder tokens */
    struct image_u8 pixels;                  /* borrowed */
    struct prompt_grid grid;                 /* all 0: plain positions */
    int32_t mrope_delta_before, mrope_delta; /* as in struct engine_span; mini_scan */
};

struct mini_seq {
    /* set by the caller */
    const uint32_t *prompt;
    uint32_t prompt_count, generate;
    const struct adapter *adapter; /* NULL: none; also of its images */
    const struct mini_image *images;
    uint32_t image_count;
    struct sampling_params sampling;
    const uint32_t *forced; /* [generate] tokens used instead of the sampled ones, or NULL */
    uint32_t chunk; /* prefill tokens per step at most; 0 = whole. An image is split only if the model allows
                       it. */
    uint32_t score_first, score_end; /* prompt tokens that are scored; 0, 0 = all */
    /* results */
    uint32_t *tokens; /* [prompt_count + generate] */
    uint32_t done;    /* tokens whose keys and values are in the cache */
    uint32_t generated;
    float *hidden;            /* NULL, or [prompt_count][hidden_size]: the head's input */
    struct token_out *scores; /* [prompt_count + generate]: about the token at that position; [0] unused */
    /* insides */
    uint32_t *tables[ENGINE_GROUPS_MAX];
    uint32_t states[2];                /* of a recurrent group: steps read one and write the other */
    struct engine_features **features; /* [image_count] */
    struct engine_span *uses;
};

struct mini_sched {
    struct engine *e;
    struct engine_caps caps;
    uint64_t next_unit;
    struct engine_chunk *chunks;
    uint32_t encode_layers; /* tower layers per call; 0 = all */
    uint32_t ahead; /* a call runs up to so many more steps, each submitted while the one before runs */
    uint64_t ahead_steps;
    void (*after_step)(void *arg,
                       const struct engine_batch *b); /* may be NULL; results of the chunks are in */
    void *arg;
};

/* Fills the rope deltas of n images in order, from the grids of earlier ones (struct prompt_grid). */
void mini_scan(struct mini_image *images, uint32_t n);
void mini_init(struct mini_sched *m, struct engine *e);
void mini_fini(struct mini_sched *m);
/* Blocks, features. Aborts with a message on any error. */
void mini_add(struct mini_sched *m, struct mini_seq *s);
void mini_drop(struct mini_sched *m, struct mini_seq *s); /* its blocks are not reused */
/* One step over the unfinished of the n sequences; false if none. */
bool mini_step(struct mini_sched *m, struct mini_seq **seqs, uint32_t n);
/* mini_add, steps until all are finished. */
void mini_run(struct mini_sched *m, struct mini_seq **seqs, uint32_t n);
/* mini_run of one. For a prefix-LM prompt with more than `rows` rows to score, first once for each part of
 * them: rows [*first, *end) are what a chunk adds to the earlier ones. */
void mini_run_parts(struct mini_sched *m, struct mini_seq *s, uint32_t rows, uint32_t *first, uint32_t *end);
struct sampling_params mini_greedy(void); /* greedy, with the log-prob of every token */

#endif

/* State shared by the files of scheduler/; nobody else includes it.
 *
 *   submit()/cancel() --mutex--> inbox --take--> waiting (by priority, then arrival) --admit--> running --end--> EV_END, slot freed
 *                                                    ^------------- preempt (blocks dropped, position 0) ---'
 *
 * A sequence's `tokens` are its whole history; KV exists for positions [0, position) (sliding groups: the tail that the window reaches).
 * Preemption forgets the KV and keeps the history, so a resumed sequence recomputes exactly what it had: no answer changes. */
#ifndef KVASIR_SCHED_INTERNAL_H
#define KVASIR_SCHED_INTERNAL_H

#include "scheduler/event_queue.h"
#include "scheduler/kv_blocks.h"
#include "scheduler/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>

#define SCHED_STOP_MAX 64u /* eos ids and stop ids together */

/* Encoded picture shared by the live sequences that hold the same content key. */
struct feature_ref {
    struct feature_ref *next;
    uint8_t key[32];
    struct engine_features *features;
    uint32_t holders;
    bool done;
};

struct block_table {
    uint32_t *units;  /* by absolute block index; ENGINE_NO_BLOCK where nothing is kept */
    uint32_t cap;     /* entries */
    uint32_t first;   /* blocks before this one were released (sliding) or never needed */
    uint32_t end;     /* blocks [first, end) are held */
};

struct sequence {
    struct sequence *prev, *next; /* inbox, waiting or running list */
    struct seq_id id;
    struct sched_sequence req;
    uint64_t arrival;             /* order of submission: ties of priority, preemption order */
    atomic_bool cancelled;
    bool running;
    bool alone;                   /* runs with nobody beside it, in small chunks: see make_room */
    uint32_t *tokens;             /* [token_cap] prompt, then generated */
    uint32_t token_cap, count, generated, tokens_max;
    uint32_t position;            /* tokens whose KV is computed */
    uint32_t scored;              /* prompt positions below this one have been scored */
    uint32_t next_image;          /* pictures before this one are wholly prefilled */
    struct block_table tables[ENGINE_GROUPS_MAX];
    struct feature_ref **features;      /* [image_count] or NULL entries */
    struct engine_image_use *uses;      /* [image_count] scratch for the step's run */
    struct token_out *scores;           /* of the run in flight */
    uint32_t banned[SCHED_STOP_MAX];
    uint32_t banned_count;
    struct event_node *end_event;       /* allocated with the sequence: an end is never lost to a failed malloc */
    uint64_t submitted_us, admitted_us, first_token_us;
    uint32_t run_tokens;                /* tokens of the run planned for this step; 0 = none */
};

struct seq_list {
    struct sequence *head, *tail;
    uint32_t count;
};

struct slot {
    uint32_t gen;
    struct sequence *seq; /* NULL = free */
};

struct scheduler {
    struct engine *engine;
    struct engine_caps caps;
    struct sched_options opt;
    struct kv_blocks *blocks;
    struct event_queue events;

    /* shared between threads, under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct seq_list inbox;
    struct slot *slots;
    uint32_t slot_count, slots_used;
    uint32_t *free_slots;
    bool stopping, drain;
    bool poked;           /* a cancel arrived */
    uint64_t arrivals;

    /* engine thread only */
    struct seq_list waiting, running;
    struct feature_ref *features;
    struct engine_run *runs;         /* [sequences_max] */
    struct sequence **run_seqs;      /* [sequences_max] */
    uint32_t run_count, step_tokens;
    bool events_pushed, skip_decodes;
    atomic_uint backlog;             /* sequences submitted and not yet running */

    struct {
        atomic_uint running, waiting, last_tokens, last_sequences;
        atomic_uint_fast64_t used_units, blocks[ENGINE_GROUPS_MAX];
        atomic_uint_fast64_t steps, prompt_tokens, generated_tokens, preemptions, images, step_us, heartbeat;
        atomic_uint_fast64_t ended[5];
        atomic_bool failed;
    } st;
};

/* seq_list.c: doubly linked, O(1) removal; `by order` keeps (priority, arrival) ascending. */
void sched__list_append(struct seq_list *l, struct sequence *s);
void sched__list_insert(struct seq_list *l, struct sequence *s);
void sched__list_remove(struct seq_list *l, struct sequence *s);

/* seq_blocks.c: the block tables of one sequence. */
/* Blocks of group g that a run over [position, position+n) still lacks. */
uint32_t sched__blocks_missing(const struct scheduler *s, const struct sequence *q, uint32_t g, uint32_t n);
/* Makes the tables cover [position, position+n) of every group; false (nothing taken) when the arena can't. */
bool sched__blocks_ensure(struct scheduler *s, struct sequence *q, uint32_t n);
/* Releases sliding blocks that no later query can reach. */
void sched__blocks_trim(struct scheduler *s, struct sequence *q);
void sched__blocks_drop(struct scheduler *s, struct sequence *q);
/* Most blocks of every group that a sequence of `tokens` tokens can hold at once. */
void sched__blocks_worst(const struct scheduler *s, uint64_t tokens, uint32_t need[ENGINE_GROUPS_MAX]);

/* sched_plan.c: who runs in this step, with how many tokens. */
void sched__admit(struct scheduler *s, uint64_t now_us);
void sched__plan(struct scheduler *s, uint64_t now_us);
void sched__preempt(struct scheduler *s, struct sequence *q);

/* sched_images.c: encoded pictures. */
/* Encodes a slice for the oldest running sequence that waits for a picture; false when there was nothing to do. */
bool sched__encode_slice(struct scheduler *s, uint64_t now_us);
bool sched__image_ready(const struct sequence *q, uint32_t image);
void sched__features_drop(struct scheduler *s, struct sequence *q);
void sched__features_passed(struct scheduler *s, struct sequence *q); /* releases pictures that lie wholly before position */

/* scheduler.c */
void sched__end(struct scheduler *s, struct sequence *q, enum seq_end end, uint32_t stop_id, const char *message, uint64_t now_us);

#endif

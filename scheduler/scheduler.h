/* Requests as sequences, continuous batching, KV blocks. The server submits sequences and reads events; the
 * engine thread (sched_run, or the caller of sched_step in tests) alone touches blocks, batches and the
 * engine. The engine thread never waits for a client.
 *
 * Lifecycle of a sequence: sched_submit -> (waiting -> running)* -> exactly one EV_END event. Memory handed
 * over with sched_submit (prompt, sampling, stop ids) is borrowed until sched_poll returns that event; only
 * then may it be freed. sched_cancel requests an early end; the EV_END (END_CANCELLED) still comes.
 *
 * Thread rules: sched_submit, sched_cancel, sched_stats: any thread. sched_poll: one consumer thread (the
 * event loop). The wake callback is called on the engine thread when the event queue turns non-empty. */
#ifndef KVASIR_SCHEDULER_H
#define KVASIR_SCHEDULER_H

#include "engine/engine.h"

#include <stdatomic.h>

#include "scheduler/cache/cache_report.h"

struct cache_store_options; /* scheduler/cache/cache_store.h */
struct scheduler;

struct seq_id {
    uint32_t slot, gen; /* a slot is reused under a new generation: a stale id never names another sequence */
};

struct sched_options {
    uint32_t queue_max;     /* sequences waiting; one more is ST_AGAIN. 0 = 1024 */
    uint32_t prefill_chunk; /* most tokens of one sequence's prefill in one step; 0 = what the step's budget
                               leaves */
    uint32_t step_us; /* time budget of a step, its slice of an image included: prefills share what decodes
                         leave of it. A single row that takes longer exceeds it, and so does an image that is
                         prefilled whole. 0 = no time limit */
    uint64_t (*clock)(void *arg); /* microseconds, for measuring steps; NULL = the monotonic clock */
    void *clock_arg;
    uint32_t encode_layers;  /* vision tower layers between two decode steps; 0 = what fits into half of
                                step_us, or 2 */
    bool no_prefix_cache;    /* compute every prompt */
    uint64_t features_bytes; /* limit for encoded images, in use or kept for later requests. Only idle ones
                                can be evicted, so those in use may exceed it. 0 = 256 MiB */
    uint64_t hash_seed;      /* of the tables' hash functions: random in a server, fixed in tests */
    /* Speculative decoding: writes up to `most` draft tokens that may follow tokens[0..count) of the sequence
     * with this `user`; returns how many. Engine thread. Draft tokens are verified (struct engine_chunk), so
     * they change the time, never the output; they replace those of the draft model, if there is one. NULL:
     * the engine's draft model, or else prompt lookup (scheduler/ngram_draft.h). */
    uint32_t (*propose)(void *arg, void *user, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out);
    void *propose_arg;
    bool no_overlap;    /* a step is submitted when the one before it has ended, also where that isn't
                           necessary (scheduler/step.c) */
    uint32_t draft_max; /* most draft tokens of one sequence in one step; 0 = none */
    bool draft_always;  /* always draft_max, not as many as pay */
    /* What becomes of a pooled vector of [hidden_size]; NULL = nothing. Engine thread. It leaves pooled_width
     * numbers, and needs room for pooled_room. Both 0: hidden_size. */
    void (*project)(void *arg, double *pooled);
    void *project_arg;
    uint32_t pooled_width, pooled_room;
    struct kv_event_sink event_sink; /* of the prefix cache */
    /* The tiers below the arena; wake is set by the scheduler. NULL: no disk. If it can't be opened, a
     * warning says why, and the scheduler runs without. */
    const struct cache_store_options *disk; /* borrowed for the call */
    bool load_always;                       /* not only where that is faster than computing */
    uint64_t host_bytes;                    /* host memory above the disk; 0: none */
    void (*wake)(void *arg);                /* events are waiting; may be NULL */
    void *wake_arg;
};

enum seq_end {
    END_STOP_EOS = 0, /* the model's end-of-sequence token */
    END_STOP_TOKEN,   /* one of stop_ids */
    END_LENGTH,       /* tokens_max generated, or the context is full */
    END_CANCELLED,
    END_ERROR,      /* the engine failed; message in the event */
    END_DEADLINE,   /* deadline_us passed */
    END_CONSTRAINT, /* its constraint failed: MASK_FAILED */
    END_GIVEN,      /* all given tokens were drawn, or scored, and none of them ends the sequence */
    END_DIFFERS,    /* another token than the given one was drawn */
    SEQ_ENDS        /* how many there are */
};

/* The priority of work that nobody waits for: it takes what others leave of the steps (scheduler/plan.c), and
 * gives up its place to any of them. */
#define SCHED_BACKGROUND INT64_MAX

/* What becomes of the head's input at the prompt's tokens, for embeddings. */
enum sched_pooling {
    POOL_NONE = 0,
    POOL_LAST, /* the last token's */
    /* These compute the prompt, and read none of it from the prefix cache: */
    POOL_MEAN, /* the mean over all tokens */
    POOL_ALL,  /* a vector per token */
};

struct sched_sequence {
    const struct prompt *prompt;            /* borrowed until EV_END */
    const struct sampling_params *sampling; /* borrowed until EV_END */
    enum sched_pooling pooling;
    uint32_t tokens_max; /* most generated tokens; 0 only with pooling or prompt log-probs (scoring) */
    uint32_t tokens_min; /* eos and stop ids are not sampled before */
    /* Its output, if it is known: at most tokens_max tokens. It is computed together with the prompt, many
     * tokens in a step, and yields the EV_TOKEN events of a generation: each token is drawn as if those
     * before it came one at a time, with its constraint, penalties and random number. It ends as a
     * generation does (END_STOP_EOS, END_STOP_TOKEN, END_LENGTH), or at the first token that would have been
     * another (END_DIFFERS), or after the last (END_GIVEN): it never goes on with tokens of its own.
     * forced: they are taken whatever would be drawn, which is not asked. EV_TOKEN has a given token's
     * log-prob, rank and sampling->logprobs alternatives, equal to those of a generation that takes this
     * token; END_GIVEN follows the last, whatever they are. No constraint is read. */
    const uint32_t *given; /* [given_count], borrowed until EV_END; NULL: it is generated */
    uint32_t given_count;
    bool forced;
    bool ignore_eos;
    const uint32_t *stop_ids; /* borrowed until EV_END */
    uint32_t stop_id_count;
    int64_t priority; /* lower = earlier; equal: tenants share evenly, then first come, first served */
    int64_t rank;     /* among the tenant's own sequences of equal priority: lower = earlier */
    uint64_t tenant;  /* hash of the API key or user, for fairness between tenants; 0 = unknown */
    uint8_t salt[32]; /* namespace of prefix cache and image features: hash of the request's cache_salt; all
                           zero = the shared one */
    const struct adapter *adapter; /* borrowed until EV_END; NULL: the model itself */
    atomic_uint *running; /* counts it while it runs, or a step with it is in flight; NULL: nothing does */
    bool no_cache_read;   /* computes its whole prompt */
    bool no_cache_write;  /* publishes nothing */
    bool progress;        /* EV_PROGRESS after each step of its prefill */
    uint64_t deadline_us; /* on the clock of sched_step's now_us; 0 = none. After it: END_DEADLINE */
    void *user;           /* returned in events */
};

enum event_kind {
    EV_PROMPT_SCORES, /* scores of prompt tokens 1.., in order; several events when the prompt is prefilled in
                         chunks */
    EV_PROGRESS, /* `index` tokens of the prompt are computed or were cached; of sequences with `progress` */
    EV_TOKEN,    /* one generated token */
    EV_IMAGE,    /* needs the pixels of prompt image `index`: reply with sched_supply_image or
                    sched_refuse_image */
    EV_END,      /* last event of the sequence */
};
struct sched_event {
    enum event_kind kind;
    struct seq_id id;
    void *user;
    uint64_t pushed_us;     /* when it was created, monotonic */
    struct token_out token; /* EV_TOKEN */
    uint32_t index; /* EV_TOKEN: number of generated tokens before it. EV_PROMPT_SCORES: prompt position of
                       scores[0]. EV_IMAGE: which prompt image */
    struct token_out *scores; /* EV_PROMPT_SCORES: malloc'd, the consumer frees */
    uint32_t score_count;
    enum seq_end end;                /* EV_END */
    uint32_t stop_id;                /* EV_END with END_STOP_TOKEN or END_STOP_EOS */
    uint32_t generated, preemptions; /* EV_END */
    struct token_alt drew, given; /* EV_END with END_DIFFERS: what was drawn at output `generated`, and what
                                        is given there */
    double *pooled; /* EV_END with pooling, and END_LENGTH: [1 or all tokens, pooled_width], malloc'd, the
                           consumer frees */
    struct sched_cache_info cache;  /* EV_END, EV_PROGRESS and EV_TOKEN: of the first admission */
    uint32_t proposed, accepted;    /* EV_END and EV_TOKEN: draft tokens verified so far; of which accepted */
    uint64_t queued_us, prefill_us; /* EV_END: time waiting, time from admission to the first token */
    char message[160];              /* EV_END with END_ERROR */
};

/* Starts nothing: sched_run or sched_step drive it. The engine is borrowed and must outlive the scheduler. */
enum status sched_create(struct engine *e, const struct sched_options *opt, struct scheduler **out,
                         struct err *err) KV_MUST_CHECK;
void sched_destroy(
    struct scheduler *s); /* after sched_run returned; sequences still alive are dropped without events */

/* The namespace of what a salt's sequences compute with an adapter (NULL: none; then the salt): of its
 * content, whatever its name. The last 8 bytes are the digest's first. */
void sched_namespace(const uint8_t salt[32], const struct adapter *adapter, uint8_t out[32]);

/* Longest sequence (prompt + output) that the context and an empty KV arena can hold: the server's
 * max_model_len. */
uint32_t sched_context_max(const struct scheduler *s);

/* ST_AGAIN: queue full. ST_TOO_LARGE: can never fit (context, KV arena); message says why. ST_STOPPING,
 * ST_DEVICE: shut down, failed. */
enum status sched_submit(struct scheduler *s, const struct sched_sequence *seq, struct seq_id *id,
                         struct err *err) KV_MUST_CHECK;
void sched_cancel(struct scheduler *s, struct seq_id id); /* stale ids are ignored */
/* A mask that was MASK_LATER may be ready: wakes the engine thread. Any thread. */
void sched_wake(struct scheduler *s);
/* Replies to EV_IMAGE, any thread. A sequence may request the same image again (after a preemption, or when
 * another's encode failed), but never while an EV_IMAGE is pending. Refusing a pending EV_IMAGE always ends
 * the sequence. supply: the prepared pixels that belong to the image's key; the scheduler takes ownership
 * (and frees them even if id is stale). refuse: the sequence ends with END_ERROR and the message. */
void sched_supply_image(struct scheduler *s, struct seq_id id, uint32_t image, struct image_u8 *pixels);
void sched_refuse_image(struct scheduler *s, struct seq_id id, uint32_t image, const char *message);
/* Drops cached blocks and images not in use, at the engine thread's next turn. Any thread. */
void sched_reset_prefix_cache(struct scheduler *s);
void sched_reset_features(struct scheduler *s);
/* Sends everything to the event sink of the prefix cache again, at the engine thread's next turn. Any
 * thread. */
void sched_announce_cache(struct scheduler *s);
/* Requests a snapshot; the engine thread makes it at its next turn and calls wake. Returns a sequence number.
 * Any thread. */
uint64_t sched_snapshot_ask(struct scheduler *s, const uint8_t salt[32]);
/* The last snapshot; false if it is older than the request. A snapshot of another salt is never returned:
 * then this requests again and updates the number. Any thread. */
bool sched_snapshot(struct scheduler *s, const uint8_t salt[32], uint64_t *request_seq,
                    struct cache_snapshot *out);
/* Takes the oldest event; false if there is none. */
bool sched_poll(struct scheduler *s, struct sched_event *ev);
uint64_t sched_poll_since(const struct scheduler *s); /* pushed_us of the event that sched_poll would take; 0
                                                         = none. Consumer thread */

/* Runs the step loop on the calling thread until sched_stop; sleeps when there is nothing to do. */
void sched_run(struct scheduler *s);
/* drain: new submissions are refused, running ones finish, then sched_run returns. Not drain: all sequences
 * end with END_CANCELLED first. */
void sched_stop(struct scheduler *s, bool drain);
/* One turn of the loop: takes submissions and cancels, runs at most one step. Returns false when there was
 * nothing to do. For tests and sched_run. */
bool sched_step(struct scheduler *s, uint64_t now_us);

/* Counters and gauges for /metrics. The numbers of one reading are consistent: each submitted sequence is
 * waiting, running or ended. They never lag the events: what sched_poll has returned is counted. To add one:
 * a field here; the engine thread counts in s->now (struct scheduler, scheduler/internal.h) where it happens.
 * A gauge derived from the state is set in publish() in step.c. server/http/metrics.c prints it. */
#define SCHED_STEP_BUCKETS 14u
#define SCHED_DRAFT_MAX    16u /* of one chunk */
struct sched_stats {
    uint32_t running, waiting;
    uint64_t arena_grains, used_grains;
    uint32_t group_count;
    struct sched_group_stats {
        uint64_t blocks_used, bytes_used;    /* live + cached */
        uint64_t blocks_live, blocks_cached; /* held by sequences; by the prefix cache alone */
        uint64_t hit_tokens; /* tokens of this group's KV reused from the cache (sliding: what the window
                                reaches) */
        uint64_t evicted_blocks;
        uint32_t window;
        bool recurrent; /* the last group; its blocks are states */
    } groups[ENGINE_GROUPS_MAX];
    uint64_t cache_queries,
        cache_query_tokens; /* admissions that looked into the prefix cache, and their prompt tokens */
    uint64_t cache_hits, cache_hit_tokens; /* with at least one token reused */
    uint64_t cache_recomputed_tokens; /* equal to something cached, but recomputed (last token, window, a hit
                                         inside an image) */
    uint64_t cache_waits, cache_copied_blocks; /* admissions delayed while another sequence computes the same
                                                  prefix; partly filled blocks copied */
    uint64_t cache_nodes, cache_evictions;     /* nodes of the tree now; nodes evicted */
    uint64_t cache_states;                     /* saved states of the recurrent group now */
    uint64_t cache_stops[CACHE_STOP_DISABLED + 1];
    bool tier_on;                                             /* there is a lower tier */
    bool disk_off;                                            /* none, or it is full or failing */
    uint64_t tier_bytes[CACHE_TIERS], tier_hits[CACHE_TIERS]; /* hits: admissions, by cache_tier */
    uint64_t tier_loads, tier_load_us, tier_loaded_tokens;    /* loads that ended well, and their time */
    uint64_t tier_image_loads;                                /* features of images */
    uint64_t tier_loads_failed;                               /* damaged, too slow, or given up for memory */
    uint64_t tier_written_blocks, tier_dropped_blocks; /* evicted and copied; not copied for lack of room */
    uint64_t feature_queries, feature_hits, feature_bytes, feature_evictions; /* encoded images */
    uint64_t steps, prompt_tokens, generated_tokens, preemptions, images_encoded, step_us_total;
    uint64_t verified_chunks, proposed_tokens,
        accepted_tokens;                   /* chunks with draft tokens; the draft tokens; of which accepted */
    uint64_t accepted_at[SCHED_DRAFT_MAX]; /* by position in the draft */
    uint64_t ended[SEQ_ENDS];              /* by enum seq_end */
    uint64_t mask_waits;                   /* sequences left out of a step because their mask was not ready */
    uint32_t last_batch_tokens, last_batch_sequences;
    uint64_t step_tokens[SCHED_STEP_BUCKETS],
        step_tokens_total; /* steps of at most 1, 8, 16, 32, ... tokens, and more than 16384 */
    uint64_t inbox_us; /* how long the oldest submission has waited for the engine thread; 0 = none waits */
    uint64_t heartbeat_us; /* monotonic time of the engine thread's last turn, for readiness probes */
    bool failed;           /* the engine reported ST_DEVICE; nothing runs */
};
void sched_stats(struct scheduler *s, struct sched_stats *out);

#endif

/* Requests as sequences, continuous batching, KV blocks. The server submits sequences and reads events; the engine thread (sched_run, or the caller of sched_step in
 * tests) alone touches blocks, batches and the engine. Nothing makes the engine thread wait for a client.
 *
 * Lifecycle of a sequence: sched_submit -> (waiting -> running)* -> exactly one EV_END event. Memory handed over with sched_submit (prompt,
 * sampling, stop ids) is borrowed until that event was taken with sched_poll; only then may it be freed. sched_cancel asks for an early end;
 * the EV_END (END_CANCELLED) still comes.
 *
 * Thread rules: sched_submit, sched_cancel, sched_stats: any thread. sched_poll: one consumer thread (the event loop). The wake callback is
 * called on the engine thread when the event queue turns non-empty. */
#ifndef KVASIR_SCHEDULER_H
#define KVASIR_SCHEDULER_H

#include "engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scheduler;

struct seq_id {
    uint32_t slot, gen; /* a slot is reused under a new generation: a stale id never names another sequence */
};

struct sched_options {
    uint32_t queue_max;        /* sequences waiting; one more is ST_AGAIN. 0 = 1024 */
    uint32_t prefill_chunk;    /* tokens of one sequence's prefill in one step at most; 0 = what the step's budget leaves */
    uint32_t encode_layers;    /* vision-tower layers between two decode steps; 0 = 2 */
    void (*wake)(void *arg);   /* events are waiting; may be NULL */
    void *wake_arg;
};

enum seq_end {
    END_STOP_EOS = 0,   /* the model's own end token */
    END_STOP_TOKEN,     /* one of stop_ids */
    END_LENGTH,         /* tokens_max generated, or the context is full */
    END_CANCELLED,
    END_ERROR,          /* the engine failed; message in the event */
};

struct sched_sequence {
    const struct prompt *prompt;            /* borrowed until EV_END */
    const struct sampling_params *sampling; /* borrowed until EV_END */
    uint32_t tokens_max;                    /* generated tokens at most; 0 only with prompt log-probs (scoring) */
    uint32_t tokens_min;                    /* eos and stop ids are not drawn before */
    bool ignore_eos;
    const uint32_t *stop_ids;               /* borrowed until EV_END */
    uint32_t stop_id_count;
    int64_t priority;                       /* lower = earlier; equal: first come, first served */
    void *user;                             /* handed back in events */
};

enum event_kind {
    EV_PROMPT_SCORES, /* scores of prompt tokens 1.., in order; several events when the prompt is prefilled in chunks */
    EV_TOKEN,         /* one generated token */
    EV_END,           /* last event of the sequence */
};
struct sched_event {
    enum event_kind kind;
    struct seq_id id;
    void *user;
    struct token_out token;     /* EV_TOKEN */
    uint32_t index;             /* EV_TOKEN: number of generated tokens before it. EV_PROMPT_SCORES: prompt position of scores[0] */
    struct token_out *scores;   /* EV_PROMPT_SCORES: malloc'd, the consumer frees */
    uint32_t score_count;
    enum seq_end end;           /* EV_END */
    uint32_t stop_id;           /* EV_END with END_STOP_TOKEN or END_STOP_EOS */
    uint32_t generated;         /* EV_END */
    uint32_t cached_tokens;     /* EV_END and first EV_TOKEN: prompt tokens whose KV came from the prefix cache */
    uint64_t queued_us, prefill_us; /* EV_END: time waiting, time from admission to the first token */
    char message[160];          /* EV_END with END_ERROR */
};

/* Starts nothing: sched_run or sched_step drive it. The engine is borrowed and must outlive the scheduler. */
enum status sched_create(struct engine *e, const struct sched_options *opt, struct scheduler **out, struct err *err) KV_MUST_CHECK;
void sched_destroy(struct scheduler *s); /* after sched_run returned; sequences still alive are dropped without events */

/* Longest sequence (prompt + answer) that the context and an empty KV arena can hold: what the server states as max_model_len. */
uint32_t sched_context_max(const struct scheduler *s);

/* ST_AGAIN: queue full. ST_TOO_LARGE: can never fit (context, KV arena); message says why. ST_UNSUPPORTED: shutting down. */
enum status sched_submit(struct scheduler *s, const struct sched_sequence *seq, struct seq_id *id, struct err *err) KV_MUST_CHECK;
void sched_cancel(struct scheduler *s, struct seq_id id); /* stale ids are ignored */
/* Takes the oldest event; false when there is none. */
bool sched_poll(struct scheduler *s, struct sched_event *ev);

/* Runs the step loop on the calling thread until sched_stop; parks when there is nothing to do. */
void sched_run(struct scheduler *s);
/* drain: new submissions are refused, running ones finish, then sched_run returns. Not drain: all sequences end with END_CANCELLED first. */
void sched_stop(struct scheduler *s, bool drain);
/* One turn of the loop: takes submissions and cancels, runs at most one step. Returns false when there was nothing to do. For tests and sched_run. */
bool sched_step(struct scheduler *s, uint64_t now_us);
/* Invariants of block accounting; aborts with a message when broken. For tests. */
void sched_check(const struct scheduler *s);

/* Counters and gauges for /metrics; a consistent-enough snapshot of atomics. */
struct sched_stats {
    uint32_t running, waiting;
    uint64_t arena_units, used_units;
    uint32_t group_count;
    struct {
        uint64_t blocks_used, bytes_used;
        uint32_t window;
    } groups[ENGINE_GROUPS_MAX];
    uint64_t steps, prompt_tokens, generated_tokens, preemptions, images_encoded, step_us_total;
    uint64_t ended[5];           /* by enum seq_end */
    uint32_t last_batch_tokens, last_batch_sequences;
    uint64_t heartbeat_us;       /* monotonic time of the last turn of the engine thread: readiness probes look at it */
    bool failed;                 /* the engine reported ST_DEVICE; nothing runs any more */
};
void sched_stats(const struct scheduler *s, struct sched_stats *out);

#endif

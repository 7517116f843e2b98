/* State shared by the files of scheduler/; nobody else includes it.
 *
 *   submit()/cancel() --mutex--> inbox --take--> waiting --admit--> running --end--> EV_END, slot freed
 *                                                   ^                  |
 *                                                   `---- preempt -----' (blocks dropped, position 0)
 *
 *   waiting: by priority, then arrival
 *
 * A sequence's `tokens` are its whole history (with given tokens, `count` has all but the last of them); KV
 * exists for positions [0, position) (sliding groups: the tail that the window reaches). Preemption gives the
 * KV to the prefix cache (or drops it) and keeps the history, so a resumed sequence reuses or recomputes
 * exactly what it had: the output doesn't change. */
#ifndef KVASIR_SCHED_INTERNAL_H
#define KVASIR_SCHED_INTERNAL_H

#include "scheduler/event_queue.h"
#include "scheduler/cache/kv_blocks.h"
#include "scheduler/cache/radix_cache.h"
#include "scheduler/ngram_draft.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_cost.h"

#include <pthread.h>
#include <stdatomic.h>

#define SCHED_STOP_MAX 64u /* eos ids and stop ids together */

struct feature_cache; /* feature_cache.h */
struct feature_entry;
struct load;    /* scheduler/offload.c */
struct offload; /* scheduler/offload.c */

/* To EV_IMAGE; allocated with it, so that a reply never fails for lack of memory. */
struct image_reply {
    struct image_reply *prev, *next;
    struct seq_id id;
    uint32_t image;
    bool refused;
    struct image_u8 pixels; /* unless refused */
    char message[sizeof((struct sched_event *)0)->message];
};

/* What a live sequence has of one image of its prompt. */
struct seq_image {
    struct feature_entry *entry; /* held while the sequence runs, from a few images ahead until its tokens
                                    are prefilled; else NULL */
    struct image_u8 pixels;      /* supplied and not yet encoded */
    bool asked;                  /* EV_IMAGE was sent and its reply is not yet taken */
    struct image_reply *reply;   /* under the lock: where the reply is written */
};

enum seq_state { SEQ_NEW = 0, SEQ_INBOX, SEQ_WAITING, SEQ_RUNNING, SEQ_ENDED }; /* sched__seq_to */

struct sequence {
    struct sequence *prev, *next; /* inbox, waiting or running list */
    enum seq_state state;         /* of its current list, or its last one */
    struct seq_id id;
    struct sched_sequence req; /* its salt: sched_namespace, of KV */
    uint8_t image_salt[32];    /* of encoded images: the same only if the adapter touches them */
    uint64_t arrival;          /* order of submission: ties of priority, preemption order */
    atomic_bool cancelled;
    bool alone;       /* runs alone, in small chunks: see make_room */
    uint32_t *tokens; /* [token_cap] prompt, then generated */
    uint32_t token_cap, count, generated, tokens_max;
    uint32_t proposed;          /* draft tokens after tokens[count - 1], for this step's chunk only */
    uint32_t drafted, accepted; /* so far */
    struct ngram ngram;
    uint32_t draft_slot;           /* while it runs: engine_chunk.draft_slot */
    uint32_t masks_ahead;          /* given tokens after the next one whose masks are ready in this turn */
    struct token_alt missed[2];    /* END_DIFFERS: what it drew, and what is given */
    bool drew;                     /* since it runs: that slot has the state after its last sampled token */
    bool forced;                   /* the draft tokens are the constraint's */
    enum mask_state mask;          /* of its next token, in this turn; READY without a constraint */
    bool speculation_off;          /* a verify step produced NaN or inf logits: speculation is off for this
                                      sequence */
    uint32_t position;             /* tokens whose KV is computed */
    uint32_t published;            /* of which so many are in the prefix cache */
    struct radix_pin pin;          /* its place in the cache; empty: publishes nothing */
    struct sched_cache_info cache; /* of the first admission */
    bool looked;                   /* `cache` is final */
    uint32_t preemptions;          /* it ran before each of them */
    bool kept;                     /* not preempted before its quantum is over (fair.c) */
    uint64_t since;                /* scheduler.turn when its turn began (fair.c); UINT64_MAX: not yet */
    uint32_t computed;             /* most tokens computed or cached so far */
    uint32_t lost;                 /* of which so many had to be recomputed when it began to run */
    bool prefix_inflight;          /* don't admit it in this turn */
    struct load *load;             /* of what a lower tier has of it; NULL: none */
    bool loaded;                   /* that was tried since it waits */
    uint64_t waits_ended;          /* it waits for another's load: offload.ended then; + 1 */
    bool waits;                    /* for the prefill of dedup_leader to reach wait_until */
    struct seq_id dedup_leader;
    uint32_t wait_until;
    uint64_t refused_at; /* s->freed when the arena had no room for it; + 1 */
    uint32_t scored;     /* prompt positions below this one have been scored */
    uint32_t next_span;  /* images before this one are wholly prefilled */
    struct block_table tables[ENGINE_GROUPS_MAX];
    struct seq_image *features; /* [image_count], or NULL without images */
    struct engine_span *uses;   /* [image_count] scratch for the step's chunk */
    struct token_out *scores;   /* of the chunk in flight */
    struct token_out *draws;    /* the same: of its given tokens */
    float *hidden;              /* the same: its rows that are pooled */
    double *pooled; /* with pooling: the sum over pooled_count tokens, in order; POOL_ALL: their vectors */
    uint32_t pooled_count;
    uint32_t banned[SCHED_STOP_MAX];
    uint32_t banned_count;
    char failure[160];            /* its image failed: it ends with this error; "" = none */
    struct event_node *end_event; /* allocated with the sequence: an end is never lost to a failed malloc */
    uint64_t submitted_us, admitted_us, first_token_us;
    uint32_t chunk_tokens; /* tokens of this step's chunk; 0 = none */
    uint32_t ahead;        /* 1 + its chunk in the step that is submitted behind this one; 0 = none */
    uint32_t needed_len;   /* others wait for its prefill to reach this position; 0 = none */
    uint64_t prefill_turn; /* the turn of its last prefill; in the future: its tenant comes last until then */
    /* With a recurrent group: tables[s->paged] has the state after state_at tokens as entry 0; entry 1 is
     * where the step's chunk writes if the prefix cache or another sequence holds entry 0. */
    uint32_t state_at;
    uint32_t state_saved; /* the last position on its path at which the cache has its state */
    uint32_t save_at;     /* prefill: the next one at which to save it; UINT32_MAX: none */
    uint32_t branch;      /* where its prompt parts from cached ones; 0: nowhere */
};

/* scheduler/prefill.c: a sequence with tokens to prefill in this step, and one tenant's share of the step.
 * Costs in microseconds, or in tokens where a step has no time budget. */
struct prefill {
    struct sequence *q;
    double left, need; /* cost of all that is left to prefill; of what fits into one step */
    bool done;         /* it got a chunk, or can't take one */
};
struct prefill_share {
    uint64_t tenant, turn; /* turn: when it was last served */
    double need;
    bool served;
};

struct seq_list {
    struct sequence *head, *tail;
    uint32_t count;
    enum seq_state state; /* of its sequences */
};

struct slot {
    uint32_t gen;
    struct sequence *seq; /* NULL = free */
};

/* A step: planned, then submitted, then waited for. */
struct sched_flight {
    struct engine_chunk *chunks; /* [sequences_max] */
    struct sequence **seqs;      /* [sequences_max] of the chunks; NULL: it has ended meanwhile */
    atomic_uint **dropped;  /* [sequences_max] sched_sequence.running of those that have ended; or NULL */
    uint32_t count, tokens; /* count 0: there is none */
    struct engine_batch batch;
    enum status status; /* of engine_submit */
    struct err err;
    uint64_t start_us; /* when it was submitted, or the step before it ended */
    bool learns;       /* the time that it takes is its own */
};

/* Sums over recent decode-only steps, exponentially weighted; n: draft tokens. See scheduler/speculative.c.
 */
#define DRAFT_COSTS 8
struct draft_cost {
    double steps, n, nn, us, n_us;
};

struct scheduler {
    struct engine *engine;
    struct engine_caps caps;
    uint32_t paged; /* groups with block tables: all but the recurrent one, which is the last */
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
    bool poked; /* a cancel arrived, or other work */
    bool reset_cache, reset_features, announce_cache;
    struct {
        struct image_reply *head, *tail;
    } replies;
    uint64_t snapshots_asked, snapshot_made; /* requests so far; `snapshot` serves them up to this one */
    struct cache_snapshot snapshot;
    uint8_t snapshot_salt[32], snapshot_asked_salt[32]; /* of `snapshot`; of the next one */
    uint64_t arrivals;
    struct sched_stats seen; /* `now` as last published */

    /* engine thread only */
    struct seq_list waiting, running;
    struct feature_cache *features;
    struct radix_cache *cache; /* NULL: off */
    struct offload *offload;   /* NULL: no tier below the arena */
    struct cache_snapshot snapshot_next;
    struct tenants *tenants;
    uint64_t other_turn; /* of the last step in which tenants that aren't light (fair.c) were served or
                            idle */
    double lost;         /* mean tokens that recently resumed sequences had to recompute */
    double draft_price;  /* of this step: ngram_draft_worth */
    struct acceptance acceptance;               /* of all sequences */
    struct draft_cost draft_costs[DRAFT_COSTS]; /* by the logarithm of the number of decodes */
    double draft_us;             /* measured time of one draft-model token for all sequences; 0 = unknown */
    struct engine_draft *drafts; /* [sequences_max] */
    uint32_t *draft_slots, draft_slots_free; /* [sequences_max] free slots */
    struct token_out *drawn; /* [sequences_max * (draft_max + 1)] sampled tokens of the step's verified
                                chunks */
    uint64_t freed;          /* grows when a sequence releases blocks */
    struct sched_flight flights[2];
    struct sched_flight *step;    /* the one being planned or in flight */
    struct sched_flight *ahead;   /* submitted behind it */
    uint32_t step_rows;           /* limit of the step's tokens for prefills */
    struct step_cost cost;        /* learnt cost model of step times */
    struct sequence **asking;     /* [sequences_max] sequences whose masks are requested */
    uint64_t masks_us;            /* since when */
    struct prefill *prefills;     /* [sequences_max] */
    struct prefill_share *shares; /* [sequences_max] */
    uint64_t turn;                /* steps planned */
    double slice_us;              /* time of this turn's image slice; 0 = none */
    double layer_us;              /* last measured time per layer of such a slice; 0 = unknown */
    uint64_t layer_pixels;        /* for an image of so many pixels */
    bool yields, own_turn; /* others run: background sequences get spare_us of this step, which is more in a
                              turn of theirs */
    double spare_us;       /* what is left of it */
    uint64_t background_turn; /* the last one in which they did not yield */
    struct sequence *wide;  /* its image did not fit into the last step with the others; only compared: it may
                               be freed */
    bool image_failed;      /* some sequence has a `failure` */
    bool mask_failed;       /* some sequence's mask has failed */
    struct sched_stats now; /* without `waiting` and `failed` */

    atomic_uint backlog; /* sequences submitted and not yet running */
    atomic_bool failed;  /* the engine reported ST_DEVICE */
};

/* scheduler/sequence.c: its memory. */
enum status sched__sequence_create(const struct scheduler *s, const struct sched_sequence *r, uint64_t total,
                                   struct sequence **out) KV_MUST_CHECK; /* total: tokens at the end */
void sched__reply_free(struct image_reply *r);                           /* NULL is fine */
void sched__sequence_free(struct sequence *q); /* it holds nothing any more; NULL is fine */
/* Lists: doubly linked, O(1) removal; an inserted sequence keeps (priority, arrival) ascending. A
 * sequence that enters a list takes its state. */
void sched__list_append(struct seq_list *l, struct sequence *s);
void sched__list_insert(struct seq_list *l, struct sequence *s);
void sched__list_remove(struct seq_list *l, struct sequence *s);
void sched__seq_to(struct sequence *q, enum seq_state state);

/* Its block tables. */
/* Blocks of group g still missing for a chunk over [position, position+n). */
uint32_t sched__blocks_missing(const struct scheduler *s, const struct sequence *q, uint32_t g, uint32_t n);
/* Makes the tables cover [position, position+n) of every group; false (nothing taken) when the arena can't.
 */
bool sched__blocks_ensure(struct scheduler *s, struct sequence *q, uint32_t n);
/* Releases sliding blocks that no later query can reach. */
void sched__blocks_trim(struct scheduler *s, struct sequence *q);
void sched__blocks_drop(struct scheduler *s, struct sequence *q);
/* Releases the blocks after the first `tokens` tokens: they were for draft tokens that aren't kept. */
void sched__blocks_roll_back(struct scheduler *s, struct sequence *q, uint32_t tokens);
/* Takes blocks for one token after the chunk in flight of each of the n sequences, of all or none: its state
 * goes to a block of its own, because the token before it may be q's last. */
bool sched__blocks_ahead(struct scheduler *s, struct sequence *const *seqs, uint32_t n);
/* A step has computed q's state after `at` tokens; UINT32_MAX: it is invalid. */
void sched__state_written(struct scheduler *s, struct sequence *q, uint32_t at);
/* Whether [position, position+n) can be covered, perhaps by evicting cached blocks. */
bool sched__blocks_fit(const struct scheduler *s, const struct sequence *q, uint32_t n, bool evict);
/* Most blocks of each group that a sequence of `tokens` tokens can hold at once. */
void sched__blocks_worst(const struct scheduler *s, uint64_t tokens, uint32_t need[ENGINE_GROUPS_MAX]);

/* Whether q's whole history fits with what the running sequences still need for theirs. Cached blocks count
 * as free: they can be evicted. */
bool sched__has_room(const struct scheduler *s, const struct sequence *q);

/* Reserves `count` entries of q->tokens; false: out of memory. */
bool sched__tokens_reserve(struct sequence *q, uint32_t count);
bool sched__table_reserve(struct block_table *t, uint32_t entries); /* false: out of memory */

/* scheduler/reuse.c: prefix cache reuse and publication. */
/* Reuses what the cache has of q's history: sets position, tables, pin. q must hold nothing. */
void sched__cache_adopt(struct scheduler *s, struct sequence *q);
void sched__cache_undo(struct scheduler *s, struct sequence *q);
void sched__cache_admitted(struct scheduler *s, struct sequence *q); /* counts */
/* Publishes what q computed; last: q stops here (end, preemption). */
void sched__cache_publish(struct scheduler *s, struct sequence *q, bool last);
void sched__leave(struct scheduler *s, struct sequence *q); /* q holds nothing any more */
/* Where q's prefill chunk must end at the latest so that its state can be saved; UINT32_MAX: anywhere. */
uint32_t sched__cache_save_at(const struct scheduler *s, const struct sequence *q);
/* Sets `prefix_inflight` of all waiting sequences: true while the prefill that it waits for runs. One pass.
 */
void sched__cache_defer(struct scheduler *s);
/* Whether q should wait for the prefill of a running sequence; if so, q records it. */
bool sched__cache_waits(struct scheduler *s, struct sequence *q);
bool sched__cache_reset_wanted(struct scheduler *s);
void sched__cache_snapshot(struct scheduler *s); /* if one was requested */
void sched__cache_gauges(struct scheduler *s);

/* Removes it from the list and frees what only running sequences have. */
void sched__running_remove(struct scheduler *s, struct sequence *q);

/* scheduler/constraint.c: requests the masks of all running sequences; ends those whose constraint failed. A
 * sequence whose mask is not ready samples nothing in this turn. */
void sched__masks_prepare(struct scheduler *s);
/* Cuts q->proposed to the draft tokens whose masks are ready. */
void sched__masks_cut(struct scheduler *s);
void sched__masks_stop(const struct sequence *q); /* q has ended */
/* Appended after its tokens; how many. */
uint32_t sched__masks_forced(const struct scheduler *s, struct sequence *q, uint32_t most);

/* scheduler/speculative.c: sets `proposed` of the decoding sequences and writes the draft tokens after their
 * tokens.
 */
void sched__speculate(struct scheduler *s);
/* After a step of so many chunks: learns what draft tokens cost. */
void sched__speculate_learn(struct scheduler *s, uint32_t chunks, double us);
/* Whether its next chunk is its last sampled token. */
bool sched__decodes(const struct sequence *q);

/* scheduler/fair.c: the waiting sequence, not deferred, to admit next; NULL: none. */
struct sequence *sched__pick_waiting(struct scheduler *s);
/* The running sequence to preempt for q, of a tenant that has more than q's; NULL: none. q NULL: the one to
 * preempt when the arena is full, among those of the lowest priority. */
struct sequence *sched__pick_victim(struct scheduler *s, const struct sequence *q);
void sched__place_taken(struct scheduler *s, struct sequence *q); /* q is about to run */
bool sched__short_runs(const struct scheduler *s);           /* one of a tenant that has been served little */
void sched__served(struct scheduler *s, struct sequence *q); /* it has run */

/* scheduler/plan.c: which sequences run in this step, with how many tokens. */
void sched__admit(struct scheduler *s, uint64_t now_us);
void sched__plan(struct scheduler *s, uint64_t now_us);
/* Whether sched__admit might admit one. */
bool sched__may_admit(struct scheduler *s);
void sched__yield(struct scheduler *s); /* decides whether background sequences yield in this turn */
bool sched__yields(const struct scheduler *s, const struct sequence *q); /* q is one, and does */
bool sched__waits_turn(const struct scheduler *s,
                       const struct sequence *q);    /* and this is no turn of theirs */
uint32_t sched__left_out(const struct scheduler *s); /* how many are left out of the next step as well */
void sched__preempt(struct scheduler *s, struct sequence *q);
bool sched__prefill_ready(const struct sequence *q); /* its next tokens don't wait for an image */
/* Plans a prefill chunk of about so many tokens for q; returns its length: an image is kept whole if it fits.
 * May preempt, even q. */
uint32_t sched__prefill_chunk(struct scheduler *s, struct sequence *q, uint32_t tokens);

/* scheduler/offload.c: what goes to the tiers below the arena, and comes back. No-ops without one. */
enum status sched__offload_create(struct scheduler *s, void (*wake)(void *s), struct err *err) KV_MUST_CHECK;
void sched__offload_destroy(struct scheduler *s); /* before the caches */
/* Takes what has been read; false: nothing happened. */
bool sched__offload_take(struct scheduler *s);
bool sched__offload_ready(const struct scheduler *s); /* it has work for the next turn */
/* Its load is not yet done, or no load has ended since it waits for others'. */
bool sched__loading(const struct scheduler *s, const struct sequence *q);
/* Whether q waits for a load, which this may start. */
bool sched__offload_waits(struct scheduler *s, struct sequence *q);
void sched__offload_leave(struct scheduler *s, struct sequence *q); /* q is admitted or ends: its load, too */
bool sched__offload_yield(struct scheduler *s); /* gives up all loads for memory; false: there was none */
/* Loads the features of an image (of a held, empty entry). False: there are none. */
bool sched__offload_image(struct scheduler *s, struct feature_entry *f, const uint8_t salt[32],
                          const uint8_t key[32]);
void sched__load_info(const struct load *l, struct sched_cache_info *info); /* what it loaded */
void sched__offload_reset(struct scheduler *s);
void sched__offload_drain(struct scheduler *s); /* writes everything that is worth it; in bounded time */
void sched__offload_gauges(struct scheduler *s);
void sched__offload_snapshot(const struct scheduler *s, const uint8_t salt[32], struct cache_snapshot *out);

/* scheduler/prefill.c: chunks for sequences that need prefill, within the budget (microseconds, or tokens
 * without --step-ms). */
void sched__plan_prefills(struct scheduler *s, double budget);

/* scheduler/images.c: encoded images. */
enum status sched__images_create(struct scheduler *s, struct err *err) KV_MUST_CHECK;
void sched__images_destroy(struct scheduler *s); /* when no sequence holds an image any more; frees late
                                                    replies */
/* Takes the replies to EV_IMAGE and a requested reset; false when there are none. May set `failure` of
 * sequences. After drain_inbox: that clears `poked`. */
bool sched__images_take(struct scheduler *s);
/* Requests the pixels that running sequences need next; encodes a slice for the oldest one whose image is
 * ready to encode. False when nothing was encoded. May set `failure` of sequences. */
bool sched__encode_slice(struct scheduler *s);
bool sched__span_ready(const struct sequence *q, uint32_t image);
const struct engine_features *sched__span_features(const struct sequence *q,
                                                   uint32_t image); /* of a ready one */
void sched__features_drop(struct scheduler *s, struct sequence *q); /* of a sequence that stops running */
void sched__images_gauges(struct scheduler *s);
void sched__features_passed(struct scheduler *s,
                            struct sequence *q); /* releases images that lie wholly before position */

static inline struct radix_view sched__view(const struct sequence *q)
{
    const struct prompt *p = q->req.prompt;
    return (struct radix_view){.tokens = q->tokens,
                               .count = q->count,
                               .spans = p->spans,
                               .span_count = p->span_count,
                               .salt = q->req.salt};
}

/* The adapter that its images are encoded with. */
static inline const struct adapter *sched__image_adapter(const struct sequence *q)
{
    return q->req.adapter && adapter_info(q->req.adapter)->touches_images ? q->req.adapter : NULL;
}

/* Position of the token that it draws next; without given tokens: its count. */
static inline uint32_t sched__drawn_at(const struct sequence *q)
{
    return q->req.prompt->token_count + q->generated;
}

/* Whether q may reuse tokens, and how many. Log-probs and most pooling of the prompt require computing it; a
 * resumed sequence may reuse its own. */
static inline bool sched__cache_reads(const struct scheduler *s, const struct sequence *q, uint32_t *most)
{
    bool scores = q->req.sampling->prompt_logprobs != SAMPLING_NO_LOGPROBS;
    *most = scores && q->scored < q->req.prompt->token_count ? q->scored - 1 : q->count - 1;
    bool whole = q->req.pooling > POOL_LAST;
    if (whole && q->pooled_count < *most) *most = q->pooled_count;
    if (sched__drawn_at(q) - 1 < *most) *most = sched__drawn_at(q) - 1;
    return s->cache && (q->preemptions || !(q->req.no_cache_read || scores || whole));
}

static inline uint64_t
sched__clock(const struct scheduler *s) /* microseconds; monotonic, or virtual in tests */
{
    return s->opt.clock ? s->opt.clock(s->opt.clock_arg) : event_clock_us();
}

/* Sets a flag of those under the lock and wakes the engine thread. Any thread. */
static inline void sched__poke(struct scheduler *s, bool *flag)
{
    pthread_mutex_lock(&s->lock);
    *flag = s->poked = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

#endif

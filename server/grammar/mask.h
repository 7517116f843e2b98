/* Masks. Internal to server/grammar/: mask.c computes a mask in slices of bounded work, mask_store.c caches
 * masks, matcher.c follows a sequence and requests them, mask_threads.c has threads for slow ones.
 *
 * Work is counted in units of 2 to 5 ns, as if nothing were cached: a mask's cost is the number of vocabulary
 * trie nodes that its walk visits, plus the work of the distinct machine steps that it takes. So the cost is
 * a function of the grammar and the tokens alone, and so is the point where a limit ends a request. Pace,
 * which decides who computes a mask and when, counts work actually done. */
#ifndef KVASIR_GRAMMAR_MASK_H
#define KVASIR_GRAMMAR_MASK_H

#include "server/grammar/vocab.h"

#define WORK_BYTE    4u         /* per byte of output, in addition to its step */
#define WORK_CLASSES (1u << 20) /* of the search for a token class that a state accepts whole */
#define WORK_INLINE  (1u << 16) /* of one call that plans a step: 100 to 200 microseconds */
#define WORK_SHORT   (1u << 13) /* likewise, where calls are short */
#define WORK_SLICE   (1u << 18) /* under a grammar's lock, on a mask thread: half a millisecond */
/* Calls also check the clock, which decides only when and where a mask is computed. If a matcher's last mask
 * was slow, or the masks of other sequences have taken the planner's time, planning tries only briefly. */
#define INLINE_NS 200000u
#define SHORT_NS  20000u
#define SLICE_NS  2000000u
/* Limit of one mask: some tenths of a second. Limit of a sequence's masks: twice that, plus a few walks over
 * the whole vocabulary per token. */
#define WORK_MASK     (1u << 26)
#define WORK_SEQUENCE (1u << 27)
#define WORK_TOKEN    (1u << 22)
#define WORK_WALKS    4u

/* Remaining budget of one call. */
struct pace {
    uint64_t left;  /* units */
    int64_t end_ns; /* of the monotonic clock; 0: no deadline */
    bool planner;   /* what takes longer is not even begun: it is left to a mask thread */
};
struct pace pace_of(uint64_t units, uint32_t ns, bool planner);
bool pace_over(const struct pace *p);
static inline void pace_use(struct pace *p, uint64_t units)
{
    p->left -= units < p->left ? units : p->left;
}

struct mask {
    atomic_uint refs;
    uint64_t cost;
    uint32_t bits[]; /* [vocabulary's words] */
};

/* mask_store.c, under the lock except mask__drop. */
#define MASKS 64u /* cached per grammar */
struct kept {
    uint32_t state; /* 0 = free */
    uint64_t used;
    struct mask *mask;
};
struct masks {
    struct kept kept[MASKS];
    uint64_t clock;
    const struct grammar_vocab *vocab; /* of the masks; may be freed before them */
    uint32_t words;                    /* of a mask */
    const void *owner;                 /* whose mask is in progress; NULL: nobody's */
    uint32_t stamp;                    /* of the last walk */
    atomic_size_t bytes;               /* of live masks */
};

void mask__drop(struct grammar *g, struct mask *mask);    /* a reference; NULL is fine */
size_t mask__bytes(const struct grammar *g);              /* of one mask */
struct kept *mask__kept(struct masks *k, uint32_t state); /* NULL: not cached */
void mask__keep(struct grammar *g, uint32_t state, struct mask *mask);

/* A mask in progress: position of the walk over the trie. States are of the grammar's current generation. */
struct walk {
    struct mask *mask; /* NULL: none in progress */
    const struct trie *t;
    uint32_t at;
    uint32_t *path; /* [vocabulary's depth + 1] states */
};
/* Both under the lock. begin: the mask at `state`; READY: it is cached. go_on: continues until the budget *p
 * is spent or the mask is done. READY: *out gets a reference. FAILED: *why. */
enum mask_state mask__begin(struct grammar *g, const struct grammar_vocab *v, uint32_t state, struct walk *w,
                            struct mask **out, enum matcher_failure *why);
enum mask_state mask__go_on(struct grammar *g, const struct grammar_vocab *v, struct walk *w, struct pace *p,
                            struct mask **out, enum matcher_failure *why);
void mask__abandon(struct grammar *g, struct walk *w);
/* While a mask is in progress, nobody else may add to the grammar or drop from it. Both tidy up, unless it is
 * the planner who asks. */
bool mask__own(struct grammar *g, const void *who, bool planner); /* false: another owner has it */
void mask__disown(struct grammar *g, const void *who, bool planner);

/* A sequence. It is used by one thread at a time: the planner or, while `job` is set, a mask thread. During a
 * step, its ready masks are only read. */
#define READY 32u /* positions that may have a ready mask at once: more than the draft tokens of a chunk */

struct reached { /* after so many tokens */
    uint32_t state;
    bool charged;
    uint64_t spent; /* work up to here, including the mask here once it is `charged` */
};
struct ready {
    uint32_t count;
    bool set;
    enum mask_state state; /* READY or FAILED */
    enum matcher_failure why;
    struct mask *mask;
};
struct matcher {
    struct grammar *g;
    const struct grammar_vocab *v;
    struct mask_threads *threads;  /* NULL: none */
    uint32_t *tokens, target, cap; /* the output so far, for whose mask it works */
    struct reached *at;            /* [cap + 1] */
    uint32_t count, known;         /* tokens whose state is known; whose `spent` is */
    uint32_t generation, again;    /* of the states; how many were known in the previous one */
    struct walk walk;
    struct ready ready[READY];
    uint64_t worked;
    bool slow;  /* the last mask took long */
    bool clean; /* the current walk began in a fresh generation */
    atomic_uint refs;
    atomic_bool job, stopped;
    atomic_int failure;
    /* in a queue of mask_threads.c, where tenants take turns */
    struct matcher *next;
    uint64_t tenant, turn;
};

/* matcher.c, for mask_threads.c: does a slice of work; true: nothing is left to do. */
bool matcher__slice(struct matcher *m);
void matcher__done(struct matcher *m); /* returns it, and drops a reference */
void mask_threads__add(struct mask_threads *t, struct matcher *m);

#endif

/* Masks, and who makes them. Internal to server/grammar/: mask.c makes a mask in pieces of bounded work,
 * mask_store.c keeps them, matcher.c follows an answer and asks for them, mask_threads.c has threads for
 * those that take long.
 *
 * Work is counted in units of 2 to 5 ns, as if nothing were known: a mask's cost is the nodes of the
 * vocabulary's trie that its walk visits, and the work of the distinct steps of the machine that it takes. So
 * the cost is a function of the grammar and the tokens alone, and so is where a limit ends a request. Pace,
 * which decides on who makes a mask, and when, counts work that was done. */
#ifndef KVASIR_GRAMMAR_MASK_H
#define KVASIR_GRAMMAR_MASK_H

#include "server/grammar/vocab.h"

#define WORK_BYTE    4u         /* of a byte of the answer, beside its step */
#define WORK_CLASSES (1u << 20) /* of the search for a token class that a state takes whole */
#define WORK_INLINE  (1u << 16) /* of one call that plans a step: 100 to 200 microseconds */
#define WORK_SLICE   (1u << 18) /* under a grammar's lock, on a thread for masks: half a millisecond */
/* Calls also look at the clock, which decides when and where a mask is made, and nothing else. Of a matcher
 * whose last mask took long, planning tries it shortly. */
#define INLINE_NS 200000u
#define SHORT_NS  20000u
#define SLICE_NS  2000000u
/* Of one mask: some tenths of a second. Of an answer's masks: as much twice, and for each token as much as a
 * few walks over the whole vocabulary. */
#define WORK_MASK   (1u << 26)
#define WORK_ANSWER (1u << 27)
#define WORK_TOKEN  (1u << 22)
#define WORK_WALKS  4u

/* What one call may still do. */
struct pace {
    uint64_t left;  /* units */
    int64_t end_ns; /* of the monotonic clock; 0: any time */
};
struct pace pace_of(uint64_t units, uint32_t ns);
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

/* mask_store.c, under the lock but for mask__drop. */
#define MASKS 64u /* kept for a grammar */
struct kept {
    uint32_t state; /* 0 = free */
    uint64_t used;
    struct mask *mask;
};
struct masks {
    struct kept kept[MASKS];
    uint64_t clock;
    const struct grammar_vocab *vocab; /* of the masks; it may be gone before them */
    uint32_t words;                    /* of a mask */
    const void *owner;                 /* whose mask is under way; NULL: nobody's */
    uint32_t stamp;                    /* of the last walk */
    atomic_size_t bytes;               /* of masks that live */
};

struct masks *masks__of(struct grammar *g);               /* NULL: no memory, `failed` */
void mask__drop(struct grammar *g, struct mask *mask);    /* a reference; NULL is fine */
size_t mask__bytes(const struct grammar *g);              /* of one */
struct kept *mask__kept(struct masks *k, uint32_t state); /* NULL: it is not kept */
void mask__keep(struct grammar *g, uint32_t state, struct mask *mask);

/* A mask in the making: where the walk over the trie is. Of the grammar's current states. */
struct walk {
    struct mask *mask; /* NULL: none is under way */
    const struct trie *t;
    uint32_t at;
    uint32_t *path; /* [vocabulary's depth + 1] states */
};
/* Both under the lock. begin: the mask at `state`; READY: it was kept. go_on: uses up *p or makes it.
 * READY: *out has a reference of it. FAILED: *why. */
enum mask_state mask__begin(struct grammar *g, const struct grammar_vocab *v, uint32_t state, struct walk *w,
                            struct mask **out, enum matcher_failure *why);
enum mask_state mask__go_on(struct grammar *g, const struct grammar_vocab *v, struct walk *w, struct pace *p,
                            struct mask **out, enum matcher_failure *why);
void mask__abandon(struct grammar *g, struct walk *w);
/* While someone's mask is under way nobody else may add to the grammar or drop what was made. */
bool mask__own(struct grammar *g, const void *who); /* false: another does */
void mask__disown(struct grammar *g);

/* matcher.c, for mask_threads.c: a slice of work; true: there is nothing more to do. */
bool matcher__slice(struct matcher *m);
uint64_t matcher__worked(const struct matcher *m); /* units, for the mask that is being made */
void matcher__done(struct matcher *m);             /* hands it back, and drops a reference */
struct matcher **matcher__link(struct matcher *m); /* of their queue */
void mask_threads__add(struct mask_threads *t, struct matcher *m);

#endif

/* A grammar as a machine over bytes: states are sets of places in the grammar, made as they are reached. A
 * place is what is left of a terminal (a derivative) and what follows it (a list of expressions, shared). All
 * that is made on the way can be made again, so it is dropped when it grows too large: `generation` tells.
 * Internal to server/grammar/: build.c makes a grammar, machine.c runs it, mask.c asks it. */
#ifndef KVASIR_GRAMMAR_MACHINE_H
#define KVASIR_GRAMMAR_MACHINE_H

#include "config/base/work_lock.h"
#include "server/grammar/build.h"

#include <pthread.h>
#include <stdatomic.h>

enum gx_kind { GX_FAILED = 0, GX_EMPTY, GX_REGEX, GX_SEQ, GX_ALT, GX_REPEAT, GX_RULE, GX_MEMBERS };
struct gx_node {
    uint8_t kind;
    bool nullable, productive, marked;
    uint32_t a, b, c; /* REGEX a; SEQ a, b; ALT list[a..a+b); REPEAT a{b,c}; RULE body a (0: none yet);
                       * MEMBERS: stand a (members.c) */
};

struct continuation { /* `what`, then `rest`; 0 = the end */
    gx what;
    uint32_t rest;
    uint32_t stamp;
    uint32_t items, item_count, work; /* where it begins, once known; work to find that */
    bool known, accepts;
};
struct item {
    rx residual;
    uint32_t continuation;
};
struct move {
    uint32_t next;        /* STATE_UNKNOWN: not made yet */
    uint32_t work, stamp; /* as if nothing were known; the last walk that was charged for it */
};
#define WORK_OVER UINT32_MAX /* more than a step may be: it is not made */
struct transitions {
    uint8_t of_byte[256];
    uint32_t count, work, stamp; /* to make the classes */
    struct move to[];            /* [count] by class */
};
struct state {
    uint32_t items, item_count;
    bool accepts;
    int8_t token_class; /* which of the vocabulary's slices it takes whole: -1 none, TOKEN_CLASS_UNKNOWN */
    uint32_t token_class_work;       /* to find that */
    struct transitions *transitions; /* NULL: none known */
};
#define STATE_DEAD          0u
#define STATE_UNKNOWN       UINT32_MAX
#define TOKEN_CLASS_UNKNOWN 127

/* Tokens that are nothing but ordinary characters of a JSON string, or nothing but letters and digits of
 * ASCII, at most so many: taken together where a state takes them all. The first that fits is taken. */
enum token_class_of_what { TOKEN_CLASS_ORDINARY, TOKEN_CLASS_WORD, TOKEN_CLASS_KINDS };
#define TOKEN_CLASSES 6
struct token_class_kind {
    enum token_class_of_what what;
    uint32_t chars;
};
extern const struct token_class_kind token_class_kinds[TOKEN_CLASSES];

struct masks; /* mask.h */

struct grammar {
    atomic_uint refs;
    pthread_mutex_t lock; /* all below, but for atomics; config/base/work_lock.h */
    struct rx_pool *pool;
    struct gx_node *nodes;
    uint32_t node_count;
    size_t node_cap;
    uint32_t *list;
    size_t list_count, list_cap;
    gx start;
    rx one[TOKEN_CLASS_KINDS]; /* one such character */
    size_t pool_base, pool_base_bytes;
    uint32_t node_base;      /* what was there when it was finished */
    struct members *members; /* members.c */

    struct continuation *continuations;
    uint32_t continuation_count, stamp;
    size_t continuation_cap;
    uint32_t *continuation_slots, continuation_slot_count;
    struct item *items; /* of conts and of states */
    size_t item_count, item_cap;
    struct state *states;
    uint32_t state_count;
    size_t state_cap;
    uint32_t *state_slots, state_slot_count;
    size_t transition_bytes;
    size_t
        rebuilt_bytes; /* bytes that were made in this generation where matchers went their old ways again */
    uint32_t *repeat_slots, repeat_slot_count; /* of GX_REPEAT nodes */
    uint32_t generation;
    bool failed; /* out of memory: nothing but the end is allowed any more */
    bool full;   /* no more can be made in this generation */

    struct masks *masks;           /* kept ones, and whose mask is being made; NULL: none yet */
    atomic_size_t bytes;           /* that it held last; read without the lock */
    struct grammar_memory *memory; /* which counts them; NULL: nobody does */
    size_t counted;                /* of them, there */
};

/* mask_store.c; under the lock */
void masks__drop(struct grammar *g); /* kept ones name states of an generation that is over */
void masks__free(struct grammar *g);
size_t masks__bytes(const struct grammar *g);

/* build.c */
rx grammar__character(struct rx_pool *p, enum token_class_of_what what);
gx grammar__repeat(struct grammar *g, gx a, uint32_t min, uint32_t max); /* 0: no memory */

gx grammar__node(struct grammar *g, struct gx_node n); /* 0: no memory */

/* members.c */
bool members__add(struct grammar *g, const struct gb_members *from,
                  struct gx_node *out);             /* false: no memory */
void members__free(struct members *m);              /* NULL is fine */
size_t members__bytes(const struct members *m);     /* likewise */
size_t members__allocated(const struct members *m); /* likewise: of stands that members__drop drops */
void members__facts(struct grammar *g, struct gx_node *n);
void members__base(struct grammar *g); /* what is there now stays */
void members__drop(struct grammar *g); /* the rest is gone */
/* The next way to go on from the node, from number *at on (0 at first): `what`, and where it stands then;
 * false: there is none. Sets `failed` without memory. */
bool members__next(struct grammar *g, gx node, uint32_t *at, gx *what, uint32_t *then);
uint32_t *members__node(struct grammar *g, uint32_t member_state); /* to keep its node at; 0 = none yet */
bool members__ends(const struct grammar *g, gx node);              /* may it be the last one? */

/* machine.c; under the lock. States are numbers of this generation. */
#define STATE_FIRST 1u
size_t machine__bytes(const struct grammar *g);
bool machine__open(struct grammar *g);  /* after build.c is done; false: no memory (`failed`), or too wide */
void machine__close(struct grammar *g); /* frees its part, and that of the masks */
void machine__count(struct grammar *g); /* brings `bytes`, and `memory`, up to date */
size_t machine__allocated(const struct grammar *g); /* about: bytes that a drop makes free */
/* Drops what was made when that is a lot: states are to be found again then. */
void machine__tidy(struct grammar *g);
void machine__drop(struct grammar *g);
/* After work in the pool with rx_pool_work_max: false: no memory (`failed`), or no room (`full`). *over: it
 * was more work than it may be. */
bool machine__ended(struct grammar *g, bool *over);
/* Where the byte leads; NULL: no memory (`failed`), or no room (`full`). A step's work is a function of the
 * state and the byte alone, never of what is known: where it is WORK_OVER the step is too large to be made.
 */
struct move *machine__make(struct grammar *g, uint32_t state, uint8_t byte);
static inline struct move *machine__known(const struct grammar *g, uint32_t state, uint8_t byte)
{
    struct transitions *m = g->states[state].transitions;
    struct move *to = m ? &m->to[m->of_byte[byte]] : NULL;
    return to && to->next != STATE_UNKNOWN ? to : NULL;
}
static inline uint32_t machine__next(struct grammar *g, uint32_t state, uint8_t byte)
{
    struct move *to = machine__known(g, state, byte);
    if (!to && state) to = machine__make(g, state, byte);
    return to ? to->next : STATE_DEAD;
}

#endif

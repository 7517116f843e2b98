/* A grammar as a lazily built automaton over bytes: states are sets of items. An item is the residual of a
 * terminal (a derivative) and its continuation (a shared list of expressions). Everything built on demand can
 * be rebuilt, so it is dropped when it grows too large, which starts a new `generation`. Internal to
 * server/grammar/: build.c builds a grammar, machine.c runs it, mask.c computes masks from it. */
#ifndef KVASIR_GRAMMAR_MACHINE_H
#define KVASIR_GRAMMAR_MACHINE_H

#include "config/base/work_lock.h"
#include "server/grammar/build.h"
#include "config/base/id_table.h"

#include <pthread.h>
#include <stdatomic.h>

enum gx_kind { GX_FAILED = 0, GX_EMPTY, GX_REGEX, GX_SEQ, GX_ALT, GX_REPEAT, GX_RULE, GX_MEMBERS };
struct gx_node {
    uint8_t kind;
    bool nullable, productive, marked;
    uint32_t a, b, c; /* REGEX a; SEQ a, b; ALT list[a..a+b); REPEAT a{b,c}; RULE body a (0: none yet);
                       * MEMBERS: member_state a (members.c) */
};

struct continuation { /* `what`, then `rest`; 0 = the end */
    gx what;
    uint32_t rest;
    uint32_t stamp;
    uint32_t items, item_count, work; /* its initial items, once computed; the work for that */
    bool known, accepts;
};
struct item {
    rx residual;
    uint32_t continuation;
};
struct move {
    uint32_t next;        /* STATE_UNKNOWN: not computed yet */
    uint32_t work, stamp; /* as if nothing were cached; the last walk charged for it */
};
#define WORK_OVER UINT32_MAX /* over the limit of a step: not computed */
struct transitions {
    uint8_t of_byte[256];
    uint32_t count, work, stamp; /* to compute the classes */
    struct move to[];            /* [count] by class */
};
struct state {
    uint32_t items, item_count;
    bool accepts;
    int8_t token_class;              /* the token class that it accepts whole: -1 none, TOKEN_CLASS_UNKNOWN */
    uint32_t token_class_work;       /* to determine it */
    struct transitions *transitions; /* NULL: none computed */
};
#define STATE_DEAD          0u
#define STATE_UNKNOWN       UINT32_MAX
#define TOKEN_CLASS_UNKNOWN 127

/* Token classes: tokens of only ordinary JSON string characters, or of only ASCII letters and digits, up to a
 * length: accepted as a whole if a state accepts all of them. The first matching class wins. */
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
    pthread_mutex_t lock; /* all below, except atomics; config/base/work_lock.h */
    struct rx_pool *pool;
    struct gx_node *nodes;
    uint32_t node_count;
    size_t node_cap;
    uint32_t *list;
    size_t list_count, list_cap;
    gx start;
    rx one[TOKEN_CLASS_KINDS]; /* one such character */
    uint32_t node_base;        /* number of nodes when the grammar was finished */
    struct members *members;   /* members.c */

    struct continuation *continuations;
    uint32_t continuation_count, stamp;
    size_t continuation_cap;
    struct id_table continuation_table, state_table;
    struct id_table repeat_table; /* of GX_REPEAT nodes that were built on demand */
    struct item *items;           /* of conts and of states */
    size_t item_count, item_cap;
    struct state *states;
    uint32_t state_count;
    size_t state_cap;
    size_t transition_bytes;
    size_t rebuilt_bytes; /* bytes built in this generation by matchers that replayed their paths */
    uint32_t generation;
    bool failed; /* out of memory: only end tokens are allowed */
    bool full;   /* nothing more can be built in this generation */
    bool later;  /* rx_pool_pause: the step takes too much work for now */

    struct masks *masks;           /* cached masks, and the owner of the mask in progress */
    atomic_size_t bytes;           /* last known size; read without the lock */
    struct grammar_memory *memory; /* total that includes them; NULL: none */
    size_t counted;                /* bytes counted in memory */
};

/* mask_store.c; under the lock */
struct masks *masks__create(void);
void masks__drop(struct grammar *g); /* cached masks refer to states of an old generation */
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
size_t members__allocated(const struct members *m); /* likewise: of member states that members__drop drops */
void members__facts(struct grammar *g, struct gx_node *n);
void members__base(struct grammar *g); /* makes the current nodes permanent */
void members__drop(struct grammar *g); /* drops the others */
/* Iterates over the transitions of the node, from index *at (0 at first): `what`, and the member state after
 * it; false: no more. Sets `failed` if out of memory. */
bool members__next(struct grammar *g, gx node, uint32_t *at, gx *what, uint32_t *then);
uint32_t *members__node(struct grammar *g, uint32_t member_state); /* where to store its node; 0 = none yet */
bool members__ends(const struct grammar *g, gx node);              /* may the object end here? */

/* machine.c; under the lock. State ids belong to the current generation. */
#define STATE_FIRST 1u
size_t machine__bytes(const struct grammar *g);
bool machine__open(struct grammar *g);  /* after build.c; false: out of memory (`failed`), or too wide */
void machine__close(struct grammar *g); /* frees its data and the masks */
void machine__count(struct grammar *g); /* brings `bytes`, and `memory`, up to date */
size_t machine__allocated(const struct grammar *g); /* approximate bytes that a drop frees */
/* Drops what was built if it is large: state ids are then invalid. That takes some milliseconds. */
bool machine__untidy(const struct grammar *g);
void machine__tidy(struct grammar *g);
void machine__drop(struct grammar *g);
/* After work in the pool with rx_pool_work_max: false: out of memory (`failed`), full (`full`) or `later`.
 * *over: the work limit was exceeded. */
bool machine__ended(struct grammar *g, bool *over);
/* The transition on a byte; NULL: `failed`, `full` or `later`. A step's work is a function of
 * the state and the byte alone, never of what is cached: WORK_OVER means that the step is too large to
 * compute. */
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

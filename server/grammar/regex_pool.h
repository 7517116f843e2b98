/* The pool of regular expressions. Internal to regex.c, derivative.c and emptiness.c. */
#ifndef KVASIR_REGEX_POOL_H
#define KVASIR_REGEX_POOL_H

#include "server/grammar/regex.h"
#include "config/base/id_table.h"

enum kind { K_NONE = 0, K_EMPTY, K_BYTES, K_CONCAT, K_ALT, K_AND, K_NOT, K_REPEAT, K_MULTIPLE };
/* Is the language non-empty? UNSURE: a bounded search did not decide. */
enum emptiness { LIFE_UNKNOWN = 0, LIFE_SOME, LIFE_NONE, LIFE_UNSURE };

struct node {
    uint8_t kind, emptiness;
    bool nullable, logic, counts; /* logic: contains AND or NOT; counts: a cell has a counter */
    uint32_t a, b, c; /* CONCAT a, b; NOT a; REPEAT a{b,c}; ALT, AND: list[a..a+b); BYTES set a; MULTIPLE of a
                       * after digits that leave b, c: twice the decimals left, and 1 after the point */
    uint32_t first, first_count;    /* its transitions; count FIRST_UNKNOWN: not computed yet */
    uint32_t first_work, life_work; /* work to compute them; to find `emptiness` */
    uint32_t least;                 /* minimum length of a match */
};
#define FIRST_UNKNOWN UINT32_MAX
/* One transition: a byte of the set, or (LOGIC) what an AND or NOT takes; then `rest`. */
struct first {
    uint32_t what;
    rx rest;
};
#define LOGIC 0x80000000u

struct rx_pool {
    struct node *nodes;
    size_t count, cap, max, base, base_bytes;
    uint32_t *list;
    size_t list_count, list_cap, list_max;
    uint32_t (*sets)[8];
    size_t set_count, set_cap;
    struct first *firsts;
    size_t first_count, first_cap;
    struct first *todo; /* of a closure */
    size_t todo_cap;
    struct seen { /* visited by a closure; free unless stamped */
        rx what, rest;
        uint32_t stamp;
    } * seen;
    size_t seen_count, seen_cap;
    uint32_t stamp;
    rx *parts; /* a stack of the lists that are being collected */
    size_t part_count, part_cap;
    size_t work, work_max, pause;
    bool free_of_charge; /* current work is counted elsewhere */
    bool full;           /* capacity exceeded */
    rx kept;
    struct id_table table; /* of nodes */
    struct memo {          /* from 1 on */
        rx a, value;
        uint32_t work;
        uint8_t byte;
    } * memo;
    size_t memo_count, memo_cap;
    struct id_table memo_table;
    struct taken {
        rx a, one;
        uint32_t work;
        bool yes;
    } taken[64]; /* a covers one text of `one` */
    enum status st;
    const atomic_bool *stop;
};

#define LIST_MAX ((size_t)1 << 25) /* items of all lists, and transitions: 128 MiB, 256 MiB */
/* Work in units of 2 to 5 ns: per node found or created; and per visited item of a list, a set or a closure.
 */
#define WORK_NODE 16u
#define WORK_ITEM 4u

/* regex.c. Each fail sets the pool's status. */
rx rx__fail(struct rx_pool *p, enum status st);
rx rx__fail_full(struct rx_pool *p);
bool rx__may_grow(struct rx_pool *p, size_t slots); /* a hash table of so many slots */
rx rx__intern(struct rx_pool *p, struct node n, const uint32_t *items);
rx rx__cons(struct rx_pool *p, rx a, rx b); /* a then b, as one cell before the others */
rx rx__head(const struct rx_pool *p, rx x); /* the byte set that x begins with; RX_NONE: none */
rx rx__tail(const struct rx_pool *p, rx x);
rx rx__digit(struct rx_pool *p, struct node n, unsigned digit); /* after it; 10: a point */
/* Adds x, or its parts if it is of this kind, to the list on top of the stack. */
void rx__push(struct rx_pool *p, enum kind kind, rx x);
void rx__sort(struct rx_pool *p, size_t from); /* the list from there on: sorts, removes duplicates */
/* The alternatives, or the intersection, of the list from there on; removes it. */
rx rx__alt_end(struct rx_pool *p, size_t from);
rx rx__and_end(struct rx_pool *p, size_t from);

static inline uint32_t rx__since(const struct rx_pool *p, size_t before) /* work */
{
    return p->work - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(p->work - before);
}

#endif

/* Growable arrays; doubly linked lists. Pure. */
#ifndef KVASIR_LIST_H
#define KVASIR_LIST_H

#include "config/base/checked.h"

#include <stdlib.h>
#include <string.h>

/* cap: a uint32_t or a size_t, as cap_size says */
static inline bool list__reserve(void *list, size_t size, void *cap, size_t cap_size, size_t need)
{
    uint32_t small = 0;
    size_t to = 0, bytes;
    void *p;
    memcpy(cap_size == sizeof small ? (void *)&small : &to, cap, cap_size);
    to |= small;
    to += to / 2 + 4; /* memory is counted by capacity: grammars, responses */
    if (to < need) to = need;
    small = (uint32_t)to;
    if ((cap_size == sizeof small && small != to) || mul_overflows(to, size, &bytes)) return false;
    memcpy(&p, list, sizeof p);
    if (!(p = realloc(p, bytes))) return false;
    memcpy(list, &p, sizeof p);
    memcpy(cap, cap_size == sizeof small ? (void *)&small : &to, cap_size);
    return true;
}

/* Gives `list`, an array of `cap` elements (a uint32_t or a size_t), a capacity of at least `need`, and of
 * half as many more than before. False: out of memory; nothing has changed. Of arrays with one capacity the
 * last is given `cap`, those before it a copy. */
#define LIST_RESERVE(list, cap, need)                                                                        \
    ((need) <= (cap) || list__reserve(&(list), sizeof *(list), &(cap), sizeof(cap), need))

/* Gives back what `list` has beyond `count` elements, if it has any; cap: a size_t. */
#define LIST_FIT(list, cap, count) list__fit(&(list), sizeof *(list), &(cap), count)
static inline void list__fit(void *list, size_t size, size_t *cap, size_t count)
{
    void *p;
    memcpy(&p, list, sizeof p);
    if (!count || count >= *cap || !(p = realloc(p, count * size))) return;
    memcpy(list, &p, sizeof p);
    *cap = count;
}

/* Lists of elements with `prev` and `next`; *l has `head` and `tail`. Puts n after `at`, NULL: at the head.
 */
#define LIST_LINK(l, at, n)                                                                                  \
    do {                                                                                                     \
        (n)->prev = (at);                                                                                    \
        (n)->next = (n)->prev ? (n)->prev->next : (l)->head;                                                 \
        *((n)->prev ? &(n)->prev->next : &(l)->head) = (n);                                                  \
        *((n)->next ? &(n)->next->prev : &(l)->tail) = (n);                                                  \
    } while (0)
#define LIST_UNLINK(l, n)                                                                                    \
    do {                                                                                                     \
        *((n)->prev ? &(n)->prev->next : &(l)->head) = (n)->next;                                            \
        *((n)->next ? &(n)->next->prev : &(l)->tail) = (n)->prev;                                            \
        (n)->prev = (n)->next = NULL;                                                                        \
    } while (0)

#endif

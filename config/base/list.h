/* Growable arrays; doubly linked lists. Pure. */
#ifndef KVASIR_LIST_H
#define KVASIR_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool list__grow(void *list, size_t size, size_t *cap, size_t first)
{
    size_t more = *cap ? 2 * *cap : first;
    void *p;
    memcpy(&p, list, sizeof p);
    p = realloc(p, more * size);
    if (!p) return false;
    memcpy(list, &p, sizeof p);
    *cap = more;
    return true;
}

/* Makes room for one more element in `list`, a pointer to `count` elements: at `cap`, a size_t, the capacity
 * doubles, beginning with `first`. False: out of memory; nothing has changed. */
#define LIST_ROOM(list, count, cap, first)                                                                   \
    ((count) < (cap) || list__grow(&(list), sizeof *(list), &(cap), first))

/* Gives `list` a capacity of at least `need` elements; `cap`, a uint32_t, is its capacity. As LIST_ROOM. */
static inline bool list__reserve(void *list, size_t size, uint32_t *cap, uint32_t need)
{
    void *p;
    memcpy(&p, list, sizeof p);
    p = realloc(p, (need + need / 2 + 1) * size);
    if (!p) return false;
    memcpy(list, &p, sizeof p);
    *cap = need + need / 2 + 1;
    return true;
}
#define LIST_RESERVE(list, cap, need)                                                                        \
    ((need) <= (cap) || list__reserve(&(list), sizeof *(list), &(cap), need))

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

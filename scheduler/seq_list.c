/* Doubly linked lists of sequences. See scheduler/internal.h. */
#include "scheduler/internal.h"

#include <stddef.h>

static void link_after(struct seq_list *l, struct sequence *at, struct sequence *s)
{
    s->prev = at;
    s->next = at ? at->next : l->head;
    if (s->next) s->next->prev = s;
    else l->tail = s;
    if (at) at->next = s;
    else l->head = s;
    l->count++;
}

void sched__list_append(struct seq_list *l, struct sequence *s)
{
    link_after(l, l->tail, s);
}

static bool before(const struct sequence *a, const struct sequence *b)
{
    return a->req.priority != b->req.priority ? a->req.priority < b->req.priority : a->arrival < b->arrival;
}

void sched__list_insert(struct seq_list *l, struct sequence *s)
{
    struct sequence *at = l->tail;
    while (at && before(s, at)) at = at->prev;
    link_after(l, at, s);
}

void sched__list_remove(struct seq_list *l, struct sequence *s)
{
    if (s->prev) s->prev->next = s->next;
    else l->head = s->next;
    if (s->next) s->next->prev = s->prev;
    else l->tail = s->prev;
    s->prev = s->next = NULL;
    l->count--;
}

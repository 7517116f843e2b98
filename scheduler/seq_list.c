/* Doubly linked lists of sequences. See scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"

#include <stddef.h>

static const struct state_rule rules[] = {
    [SEQ_NEW] = {"SEQ_NEW", 1u << SEQ_INBOX},
    [SEQ_INBOX] = {"SEQ_INBOX", 1u << SEQ_WAITING},
    [SEQ_WAITING] = {"SEQ_WAITING", 1u << SEQ_RUNNING | 1u << SEQ_ENDED},
    [SEQ_RUNNING] = {"SEQ_RUNNING", 1u << SEQ_WAITING | 1u << SEQ_ENDED},
    [SEQ_ENDED] = {"SEQ_ENDED", 0},
};

void sched__seq_to(struct sequence *q, enum seq_state state)
{
    ASSERT_NEXT(rules, q->state, state, "sequence %u of slot %u", q->id.gen, q->id.slot);
    q->state = state;
}

static void link_after(struct seq_list *l, struct sequence *at, struct sequence *s)
{
    sched__seq_to(s, l->state);
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
    ASSERT_MSG(s->state == l->state && (s->prev ? s->prev->next : l->head) == s,
               "sequence %u of slot %u, in %s, is not in the list of %s", s->id.gen, s->id.slot,
               rules[s->state].name, rules[l->state].name);
    if (s->prev) s->prev->next = s->next;
    else l->head = s->next;
    if (s->next) s->next->prev = s->prev;
    else l->tail = s->prev;
    s->prev = s->next = NULL;
    l->count--;
}

/* See event_queue.h. A linked list with a dummy node: the producer publishes a chain of nodes with a release
 * store of `next`, the consumer takes with an acquire load; neither ever waits for the other. */
#include "scheduler/event_queue.h"

#include "config/base/clock.h"

#include <stdlib.h>

uint64_t event_clock_us(void)
{
    return now_us();
}

enum status eventq_init(struct event_queue *q)
{
    q->head = q->tail = calloc(1, sizeof *q->head);
    return q->head ? ST_OK : ST_NOMEM;
}

void eventq_push(struct event_queue *q, struct event_node *node)
{
    atomic_store_explicit(&node->next, NULL, memory_order_relaxed);
    if (q->last) atomic_store_explicit(&q->last->next, node, memory_order_relaxed);
    else q->first = node;
    q->last = node;
}

bool eventq_emit(struct event_queue *q, const struct sched_event *ev)
{
    struct event_node *node = calloc(1, sizeof *node);
    if (!node) return false;
    node->ev = *ev;
    node->ev.pushed_us = event_clock_us();
    eventq_push(q, node);
    return true;
}

bool eventq_publish(struct event_queue *q)
{
    if (!q->first) return false;
    struct event_node *tail = q->tail;
    q->tail = q->last;
    atomic_store_explicit(&tail->next, q->first, memory_order_release);
    q->first = q->last = NULL;
    return true;
}

const struct sched_event *eventq_peek(const struct event_queue *q)
{
    const struct event_node *first = atomic_load_explicit(&q->head->next, memory_order_acquire);
    return first ? &first->ev : NULL;
}

bool eventq_pop(struct event_queue *q, struct sched_event *ev)
{
    struct event_node *first = atomic_load_explicit(&q->head->next, memory_order_acquire);
    if (!first) return false;
    *ev = first->ev;
    free(q->head);
    q->head = first;
    return true;
}

void eventq_fini(struct event_queue *q)
{
    struct sched_event ev;
    if (!q->head) return;
    (void)eventq_publish(q);
    while (eventq_pop(q, &ev)) {
        free(ev.scores);
        free(ev.pooled);
    }
    free(q->head);
    q->head = q->tail = NULL;
}

/* Events from the engine thread to one consumer: an unbounded lock-free queue with one producer and one
 * consumer. A pushed event becomes visible when it is published. */
#ifndef KVASIR_EVENT_QUEUE_H
#define KVASIR_EVENT_QUEUE_H

#include "scheduler/scheduler.h"

#include <stdatomic.h>

struct event_node {
    _Atomic(struct event_node *) next;
    struct sched_event ev;
};
/* head is the consumer's: the node whose successor is the oldest event. tail and the pushed nodes after it
 * are the producer's. */
struct event_queue {
    struct event_node *head;
    struct event_node *tail;
    struct event_node *first, *last; /* pushed and not yet published, or NULL; the producer's */
};

uint64_t event_clock_us(void); /* monotonic, microseconds: pushed_us */
enum status eventq_init(struct event_queue *q) KV_MUST_CHECK;
void eventq_fini(struct event_queue *q); /* frees what was not taken, scores included */
void eventq_push(struct event_queue *q, struct event_node *node); /* takes the node; producer thread */
bool eventq_emit(struct event_queue *q,
                 const struct sched_event *ev); /* pushes a copy; false: out of memory */
bool eventq_publish(struct event_queue *q);     /* false: there was nothing; producer thread */
const struct sched_event *
eventq_peek(const struct event_queue *q); /* what eventq_pop would take, or NULL; consumer thread */
bool eventq_pop(struct event_queue *q, struct sched_event *ev); /* consumer thread */

#endif

/* Which waiting sequence is next: the best priority first; within it those that have run before; then the
 * tenant that has been served least. See scheduler/internal.h and tenants.h. */
#include "scheduler/internal.h"

#include "scheduler/tenants.h"

struct sequence *sched__pick_waiting(struct scheduler *s)
{
    struct sequence *best = NULL;
    const struct sequence *looked_up = NULL;
    uint64_t best_time = 0, time = 0;
    /* The list is in order of (priority, arrival): the choice lies in the first run of equal priority, and
     * the first of equals came first. One that was preempted goes on before new ones begin; the oldest of
     * them, as it is the last to be preempted again. */
    for (struct sequence *q = s->waiting.head; q && !(best && q->req.priority != best->req.priority);
         q = q->next) {
        if (q->deferred) continue;
        if (q->resumed) return q;
        if (!looked_up ||
            looked_up->req.tenant != q->req.tenant) { /* a crowd of one tenant costs one look-up */
            time = tenants_time(s->tenants, q->req.tenant);
            looked_up = q;
        }
        if (best && time >= best_time) continue;
        best = q;
        best_time = time;
    }
    if (best) tenants_advance(s->tenants, best_time);
    return best;
}

/* Fairness between tenants: which waiting sequence is admitted next, and which running one is preempted for
 * it. The best priority goes first. Within a priority tenants share the running slots equally; if there are
 * more tenants than slots, they get equally many tokens, in turns of QUANTUM steps. A tenant served less than
 * QUANTUM tokens since it was last idle is light: it need not wait for its turn, so a short request runs at
 * once whatever the load. See scheduler/internal.h and tenants.h. */
#include "scheduler/internal.h"

#include "scheduler/tenants.h"

#include <math.h>

enum {
    QUANTUM = 32,
    SHORT = 256, /* a tenant's first tokens are served in shorter steps, if there are others */
    ROUNDS = 4,  /* of QUANTUM steps in which light tenants alone may run */
    /* A sequence whose KV was evicted keeps its slot long enough that recomputation takes about one part in
     * so many of the engine's time, */
    WORK_PARTS = 50,
    LOST_MEAN = 4,        /* averaged over so many resumed sequences */
    STEP_FIXED_ROWS = 20, /* fixed cost of a step, in rows */
};

static bool background(const struct sequence *q)
{
    return q && q->req.priority == SCHED_BACKGROUND;
}

/* What a tenant has; ordered. */
struct claim {
    uint32_t running;
    uint64_t time;
    enum { OVERDUE, LIGHT, OTHER } kind;
};

/* Only light tenants were served for long: a tenant that isn't light gets a turn. */
static bool overdue(const struct scheduler *s)
{
    return s->turn - s->other_turn > ROUNDS * QUANTUM;
}

static struct claim claim_of(const struct scheduler *s, uint64_t tenant)
{
    struct claim c = {tenants_running(s->tenants, tenant), tenants_time(s->tenants, tenant),
                      overdue(s) ? OVERDUE : OTHER};
    if (tenants_served(s->tenants, tenant) >= QUANTUM) return c;
    uint64_t clock = tenants_clock(s->tenants);
    c.kind = LIGHT;
    c.time = c.time > clock + QUANTUM ? c.time - QUANTUM : clock;
    return c;
}

static bool less(const struct claim *a, const struct claim *b)
{
    if (a->running != b->running) return a->running < b->running;
    return a->time != b->time ? a->time < b->time : a->kind < b->kind;
}

/* Whether a sequence runs of a tenant that has been served at least `least` and less than `most` tokens. */
static bool served_run(const struct scheduler *s, uint64_t least, uint64_t most)
{
    const struct sequence *looked_up = NULL;
    for (const struct sequence *q = s->running.head; q; q = q->next) {
        if (background(q)) break; /* the rest of the list is */
        if (looked_up && looked_up->req.tenant == q->req.tenant) continue;
        uint64_t served = tenants_served(s->tenants, q->req.tenant);
        if (served >= least && served < most) return true;
        looked_up = q;
    }
    return false;
}

struct sequence *sched__pick_waiting(struct scheduler *s)
{
    struct sequence *best = NULL;
    const struct sequence *looked_up = NULL;
    struct claim least = {0}, base = {0};
    uint64_t clock = UINT64_MAX;
    bool light = true;
    /* The list is ordered by (priority, arrival): the choice is among the first entries of equal priority,
     * and ties go to the first. */
    for (struct sequence *q = s->waiting.head; q && !(best && q->req.priority != best->req.priority);
         q = q->next) {
        if (q->prefix_inflight) continue;
        if (!looked_up ||
            looked_up->req.tenant != q->req.tenant) { /* many sequences of one tenant cost one lookup */
            uint64_t time = tenants_time(s->tenants, q->req.tenant);
            base = claim_of(s, q->req.tenant);
            looked_up = q;
            if (time < clock) clock = time;
            light &= base.kind == LIGHT;
        }
        if (best && best->req.tenant == q->req.tenant) {
            if (q->req.rank < best->req.rank) best = q;
            continue;
        }
        if (best && !less(&base, &least)) continue;
        best = q;
        least = base;
    }
    if (best) tenants_advance(s->tenants, clock);
    if (light && !served_run(s, QUANTUM, UINT64_MAX)) s->other_turn = s->turn;
    return best;
}

void sched__place_taken(struct scheduler *s, struct sequence *q)
{
    q->kept = overdue(s);
    q->lost = q->computed > q->position ? q->computed - q->position : 0;
    q->since = q->lost ? UINT64_MAX : s->turn;
    if (q->position > q->computed) q->computed = q->position;
    if (q->preemptions) s->lost += ((double)q->lost - s->lost) / LOST_MEAN;
}

void sched__served(struct scheduler *s, struct sequence *q)
{
    if (q->position <= q->computed) return;
    if (q->since > s->turn) q->since = s->turn;
    tenants_charge(s->tenants, q->req.tenant, q->position - q->computed);
    q->computed = q->position;
    if (tenants_served(s->tenants, q->req.tenant) >= QUANTUM) s->other_turn = s->turn;
}

/* Whether r's tenant, which has `theirs`, must yield to one that has `ours`: at once if it has more slots; if
 * it has only one more, when its turn is over.
 *
 * The turn of a sequence that has lost KV begins with its first new token, however many steps recomputation
 * takes. Else two of them could preempt each other for ever. So every sequence makes progress: only a light
 * tenant may interrupt recomputation (least = 0), and only that of a tenant that isn't light, so its own
 * place brings at least one new token. After QUANTUM of them it isn't light. All other steps compute new
 * tokens or recompute what is kept until there is one. So tenants' times grow, and the one with the least
 * time is the next. */
static bool owes(const struct scheduler *s, const struct sequence *r, const struct claim *theirs,
                 const struct claim *ours)
{
    bool light = ours->kind == LIGHT && !ours->running;
    uint32_t n = s->running.count;
    double lost = fmax(r->lost, s->lost), least = light ? 0 : lost * WORK_PARTS * n / (n + STEP_FIXED_ROWS);
    if (theirs->running < ours->running + 2) {
        if (theirs->running <= ours->running || theirs->time + light <= ours->time) return false;
        if (!light || r->kept || theirs->kind == LIGHT) least += QUANTUM;
    }
    return (r->since < s->turn ? (double)(s->turn - r->since) : 0) >= least;
}

/* Of one tenant: whether to preempt r rather than v. */
static bool before(const struct sequence *r, const struct sequence *v)
{
    if (r->req.priority != v->req.priority || r->req.rank != v->req.rank)
        return r->req.priority == v->req.priority && r->req.rank > v->req.rank;
    return !r->pin.node < !v->pin.node; /* its KV goes to the cache */
}

/* From the end of the list: among equals the youngest. */
struct sequence *sched__pick_victim(struct scheduler *s, const struct sequence *q)
{
    struct sequence *best = NULL;
    const struct sequence *looked_up = NULL;
    struct claim ours = {0}, theirs = {0}, most = {0};
    int64_t priority = q ? q->req.priority : s->running.tail->req.priority;
    if (q) ours = claim_of(s, q->req.tenant);
    for (struct sequence *r = s->running.tail; r && r->req.priority >= priority; r = r->prev) {
        if (q && background(r) && !background(q)) return r;
        if (q && r->req.tenant == q->req.tenant) continue;
        if (!looked_up || looked_up->req.tenant != r->req.tenant) {
            theirs = claim_of(s, r->req.tenant);
            if (q) theirs.time = tenants_time(s->tenants, r->req.tenant);
            else theirs = (struct claim){.running = theirs.running};
            looked_up = r;
        }
        if (q && !owes(s, r, &theirs, &ours)) continue;
        if (best && best->req.tenant == r->req.tenant ? !before(r, best) : best && !less(&most, &theirs))
            continue;
        best = r;
        most = theirs;
    }
    return best;
}

bool sched__short_runs(const struct scheduler *s)
{
    return tenants_active(s->tenants) > 1 && served_run(s, 0, SHORT);
}

/* ---- background sequences ---- */

/* While others run, they get little of each step (scheduler/plan.c). Every so many turns one is theirs as
 * well, so that they end however many others run, and of the others' tokens fewer than one in a hundred are
 * late. */
#define BACKGROUND_TURNS 128u

void sched__yield(struct scheduler *s)
{
    s->yields = background(s->running.tail) && !background(s->running.head);
    s->own_turn = s->yields && s->turn - s->background_turn >= BACKGROUND_TURNS;
    if (!s->yields || s->own_turn) s->background_turn = s->turn;
}

bool sched__yields(const struct scheduler *s, const struct sequence *q)
{
    return s->yields && background(q);
}

bool sched__waits_turn(const struct scheduler *s, const struct sequence *q)
{
    return sched__yields(s, q) && !s->own_turn;
}

uint32_t sched__left_out(const struct scheduler *s)
{
    uint32_t n = 0;
    if (!s->yields || s->turn + 1 - s->background_turn >= BACKGROUND_TURNS) return 0;
    for (const struct sequence *q = s->running.tail; background(q); q = q->prev) n += !q->chunk_tokens;
    return n;
}

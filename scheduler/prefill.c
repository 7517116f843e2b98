/* How the prefill share of a step is divided among the sequences that need it: by priority first, then evenly
 * between tenants. Within a tenant the sequence with the least work left comes first, but a quarter goes to
 * the oldest one. So a short prompt overtakes long ones, and a long one still finishes. Time is divided
 * (step_cost.h), because a token after many cached ones costs more than one after few; tokens, if a step has
 * no time budget. An image whose tokens attend to each other is prefilled whole, even if it needs more than
 * the share; its tenant then comes last for a number of turns. See scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"

#include <math.h>

/* 1 / OLDEST_PART of a tenant's share goes to its oldest sequence, even if others have less left to do. */
#define OLDEST_PART 4
/* Smallest prefill chunk: with many tenants some wait for the next step rather than get fewer tokens. */
#define RUN_LEAST 8

static double chunk_cost(const struct scheduler *s, uint32_t position, uint32_t count, bool sampled)
{
    return s->opt.step_us ? step_cost_chunk_us(&s->cost, position, count, sampled) : count;
}

static bool wants_prefill(const struct sequence *q)
{
    return q->state == SEQ_RUNNING && !q->chunk_tokens && !(q->count - q->position == 1 && q->generated > 0);
}

/* Candidates of one priority from q on, in order of arrival; *end: the sequence after the last one
 * visited. */
static uint32_t collect(struct scheduler *s, struct sequence *q, struct sequence **end)
{
    uint32_t n = 0, most = s->opt.prefill_chunk ? s->opt.prefill_chunk : s->caps.batch_tokens_max;
    int64_t priority = q->req.priority;
    for (; q && q->req.priority == priority; q = q->next) {
        if (!wants_prefill(q) || !sched__prefill_ready(q)) continue;
        uint32_t left = (q->needed_len > q->position ? q->needed_len : q->count) - q->position;
        uint32_t now = q->count - q->position < most ? q->count - q->position : most;
        s->prefills[n++] =
            (struct prefill){.q = q,
                             .left = chunk_cost(s, q->position, left, false),
                             .need = chunk_cost(s, q->position, now, q->position + now == q->count)};
    }
    *end = q;
    return n;
}

/* Each tenant's share of `budget`, if what one doesn't need goes to the others. */
static double level(const struct prefill_share *t, uint32_t n, double budget)
{
    double at = budget / n;
    for (uint32_t round = 0; round < n; round++) {
        double left = budget;
        uint32_t above = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (t[i].need <= at) left -= t[i].need;
            else above++;
        }
        if (!above || left / above <= at) break;
        at = left / above;
    }
    return at;
}

/* Plans a chunk of about this cost for the candidate; returns its cost. */
static double give(struct scheduler *s, struct prefill *c, double cost)
{
    struct sequence *q = c->q;
    c->done = true;
    if (!wants_prefill(q) || s->step->count == s->caps.sequences_max || s->step->tokens >= s->step_rows)
        return 0;
    uint32_t left = q->count - q->position, rows = s->step_rows - s->step->tokens,
             most = left < rows ? left : rows;
    /* At a given token a row is drawn as well. */
    if (q->req.given_count && q->position + 1 >= sched__drawn_at(q))
        cost *= s->cost.us[STEP_ROWS] / fmax(s->cost.us[STEP_ROWS] + s->cost.us[STEP_SAMPLED], 1);
    uint32_t n = sched__prefill_chunk(s, q,
                                      s->opt.step_us ? step_cost_fit(&s->cost, q->position, most, cost)
                                      : cost < most  ? (uint32_t)cost + !cost
                                                     : most);
    if (n) q->prefill_turn = s->turn;
    return n ? chunk_cost(s, q->position, n, q->position + n == q->count) : 0;
}

static bool goes_before(const struct prefill *a, const struct prefill *b)
{
    return a->q->req.rank != b->q->req.rank ? a->q->req.rank < b->q->req.rank : a->left < b->left;
}

/* One tenant's sequences share `cost`; the first of the best rank is the oldest. Returns what they used. */
static double serve(struct scheduler *s, uint64_t tenant, uint32_t n, double cost)
{
    struct prefill *oldest = NULL;
    for (struct prefill *c = s->prefills; c < s->prefills + n; c++)
        if (c->q->req.tenant == tenant && (!oldest || c->q->req.rank < oldest->q->req.rank)) oldest = c;
    double used = 0, reserve = fmin(cost / OLDEST_PART, oldest->need);
    while (used < cost) {
        struct prefill *next = NULL;
        for (uint32_t i = 0; i < n; i++) {
            struct prefill *c = &s->prefills[i];
            if (!c->done && c->q->req.tenant == tenant && (!next || goes_before(c, next))) next = c;
        }
        if (!next) break;
        bool keep = next != oldest && !oldest->done;
        if (keep && cost - used <= reserve) {
            next = oldest;
            keep = false;
        }
        used += give(s, next, cost - used - (keep ? reserve : 0));
    }
    return used;
}

static struct prefill_share *share_of(struct scheduler *s, uint32_t *count, const struct sequence *q)
{
    struct prefill_share *t = s->shares;
    while (t < s->shares + *count && t->tenant != q->req.tenant) t++;
    if (t == s->shares + *count) s->shares[(*count)++] = (struct prefill_share){.tenant = q->req.tenant};
    if (q->prefill_turn > t->turn) t->turn = q->prefill_turn;
    return t;
}

/* Divides `budget` of the step among the n candidates; returns what they used. The least recently served
 * tenant comes first. */
static double divide(struct scheduler *s, uint32_t n, double budget)
{
    uint32_t tenants = 0;
    double used = 0, least = chunk_cost(s, 0, RUN_LEAST, false);
    for (uint32_t i = 0; i < n; i++) share_of(s, &tenants, s->prefills[i].q)->need += s->prefills[i].need;
    double each = level(s->shares, tenants, budget);
    if (tenants > 1 && each < least) each = least;
    for (uint32_t served = 0; served < tenants && used < budget; served++) {
        struct prefill_share *t = NULL;
        for (uint32_t i = 0; i < tenants; i++)
            if (!s->shares[i].served && (!t || s->shares[i].turn < t->turn)) t = &s->shares[i];
        t->served = true;
        double took = serve(s, t->tenant, n, each);
        used += took;
        for (uint32_t i = 0; took > 2 * each && i < n; i++) {
            struct sequence *q = s->prefills[i].q;
            if (q->req.tenant == t->tenant && q->chunk_tokens)
                q->prefill_turn += (uint64_t)fmin(took / each, 1000);
        }
    }
    return used;
}

void sched__plan_prefills(struct scheduler *s, double budget)
{
    double all = budget,
           least = chunk_cost(s, 0, RUN_LEAST,
                              false); /* a tiny rest is not worth a chunk, nor a lower priority's turn */
    s->turn++;
    for (struct sequence *q = s->running.head, *end; q && (budget == all || budget > least); q = end) {
        if (sched__yields(s, q)) budget = fmin(budget, s->spare_us);
        if (sched__yields(s, q) && budget <= least) return;
        uint32_t n = collect(s, q, &end);
        if (n) budget -= divide(s, n, budget);
        if (end && end->state != SEQ_RUNNING) return; /* it was preempted: the list has changed */
    }
}

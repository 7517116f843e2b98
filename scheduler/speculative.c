/* Speculative decoding: draft tokens for the decoding sequences of a step, using only spare rows and free
 * blocks. From the draft model if there is one, for all sequences together, else by prompt lookup in each
 * sequence's history. The number of draft tokens that pay is learned per sequence. See
 * scheduler/internal.h. */
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "config/base/log.h"

#include <math.h>

/* Weight of the latest draft step in the running mean of draft time. */
#define DRAFT_TIME_PART 0.1
/* The cost of a draft token is known after this many steps with this variance of draft lengths. About the
 * last DRAFT_COST_STEPS count. */
#define DRAFT_COST_KNOWN  4
#define DRAFT_COST_SPREAD 0.1
#define DRAFT_COST_STEPS  40
/* Probes (draft tokens not expected to pay) happen for all sequences in the same step, so many each: one more
 * row costs a step nearly as much as a tile of rows. */
#define TRIES_APART 16
#define TRIES_FIRST 4 /* until some were made */
/* If several sequences always draft, one of so many steps goes without, to keep the cost of a draft token up
 * to date: memory speed varies over time. */
#define PLAIN_APART 16
/* Until its cost is known a draft token is assumed to cost at least so many tokens. */
#define DRAFT_PRICE 0.25

bool sched__decodes(const struct sequence *q)
{
    return q->count - q->position == 1 && q->generated;
}

/* By the approximate number of decoding sequences: step costs are learned separately for each. */
static struct draft_cost *cost_of(struct scheduler *s, uint32_t decodes)
{
    uint32_t k = 0;
    while (k + 1 < DRAFT_COSTS && decodes >> (k + 1)) k++;
    return &s->draft_costs[k];
}

/* Steps of decodes alone take a + b x draft tokens: least squares over the last ones. If reading the weights
 * once per step dominates, b is near zero. */
void sched__speculate_learn(struct scheduler *s, uint32_t chunks, double us)
{
    double n = 0, keep = 1 - 1.0 / DRAFT_COST_STEPS;
    for (uint32_t i = 0; i < chunks; i++) {
        const struct engine_chunk *r = &s->step->chunks[i];
        if (r->count != 1 + r->proposed || !r->sample) return;
        n += r->proposed;
    }
    struct draft_cost *c = cost_of(s, chunks);
    c->steps = keep * c->steps + 1;
    c->n = keep * c->n + n;
    c->nn = keep * c->nn + n * n;
    c->us = keep * c->us + us;
    c->n_us = keep * c->n_us + n * us;
}

/* The cost of a draft token (step rows and draft model time) in tokens, where a step without drafts yields
 * one token per sequence. Until it is known: the share of a step's time spent on its rows; with one sequence,
 * reading the weights dominates. */
static double draft_price(struct scheduler *s)
{
    uint32_t decodes = 0;
    for (const struct sequence *q = s->running.head; q; q = q->next) decodes += sched__decodes(q);
    const struct draft_cost *c = cost_of(s, decodes);
    double spread = c->steps * c->nn - c->n * c->n, price = DRAFT_PRICE, plain = 0,
           rows = decodes * (s->cost.us[STEP_ROWS] + s->cost.us[STEP_SAMPLED]);
    if (decodes > 1) price = fmax(price, rows / fmax(s->cost.us[STEP_FIXED] + rows, 1));
    if (c->steps > DRAFT_COST_KNOWN && spread > c->steps * DRAFT_COST_SPREAD) {
        double each = (c->steps * c->n_us - c->n * c->us) / spread;
        plain = (c->us - each * c->n) / c->steps;
        if (plain > 0) price = fmax(each, 0) * decodes / plain;
    }
    if (plain <= 0 && c->steps > 0) plain = c->us / c->steps;
    return plain > 0 ? price + s->draft_us / plain : price;
}

/* Most draft tokens of q within `rows`. */
static uint32_t most_drafted(const struct scheduler *s, const struct sequence *q, uint32_t rows)
{
    uint32_t most = s->opt.draft_max, left = q->tokens_max - q->generated - 1;
    if (q->speculation_off) return 0;
    if (most > rows) most = rows;
    if (most > left) most = left;
    return most > s->caps.context_max - q->count ? s->caps.context_max - q->count : most;
}

/* Of these, how many fit into memory. */
static uint32_t room(struct scheduler *s, struct sequence *q, uint32_t most)
{
    while (most && !sched__blocks_fit(s, q, 1 + most, false)) most--;
    return most && sched__tokens_reserve(q, q->count + most) ? most : 0;
}

/* How many are likely to pay. */
static uint32_t wanted(struct scheduler *s, struct sequence *q, uint32_t rows)
{
    uint32_t most = s->caps.drafts && !q->drew ? 0 : most_drafted(s, q, rows),
             apart = s->acceptance.tried < ACCEPTANCE_KNOWN ? TRIES_FIRST : TRIES_APART;
    bool may_try = s->now.steps % apart == 0;
    if (!s->opt.draft_always)
        most = ngram_draft_worth(&q->ngram, &s->acceptance, s->draft_price, most, may_try);
    return room(s, q, most);
}

/* Tokens forced by the constraint: almost always accepted, so they always pay and don't count for the
 * acceptance rate. */
static uint32_t forced(struct scheduler *s, struct sequence *q, uint32_t rows)
{
    uint32_t most = q->req.sampling->constraint ? room(s, q, most_drafted(s, q, rows)) : 0;
    return most ? sched__masks_forced(s, q, most) : 0;
}

/* Runs the draft model for all q->proposed that are above 0 and not forced. */
static void draft(struct scheduler *s)
{
    uint32_t n = 0, longest = 0;
    struct err err = {{0}};
    for (struct sequence *q = s->running.head; q; q = q->next) {
        if (!q->proposed || q->forced) continue;
        struct engine_draft *d = &s->drafts[n++];
        *d = (struct engine_draft){.slot = q->draft_slot,
                                   .position = q->position,
                                   .token = q->tokens[q->position],
                                   .count = q->proposed,
                                   .out = q->tokens + q->count};
        for (uint32_t g = 0; g < s->paged; g++) d->tables[g] = q->tables[g].block_offsets;
        if (q->proposed > longest) longest = q->proposed;
    }
    if (!n) return;
    uint64_t start = sched__clock(s);
    if (engine_draft(s->engine, s->drafts, n, &err)) {
        /* If the device is lost, the step reports it. */
        log_error("event=draft_failed message=\"%s\"", err.msg);
        for (struct sequence *q = s->running.head; q; q = q->next)
            if (!q->forced) q->proposed = 0;
        return;
    }
    double each = (double)(sched__clock(s) - start) / longest;
    s->draft_us += s->draft_us > 0 ? DRAFT_TIME_PART * (each - s->draft_us) : each;
}

/* The hook's draft tokens, which replace the draft model's, or prompt lookup's. Both may copy image
 * placeholders from the prompt, whose ids need not be in the vocabulary. */
static uint32_t proposed(struct scheduler *s, struct sequence *q, uint32_t most)
{
    uint32_t *drafted = q->tokens + q->count, n = 0;
    most = s->opt.propose
               ? s->opt.propose(s->opt.propose_arg, q->req.user, q->tokens, q->count, most, drafted)
               : ngram_draft_propose(&q->ngram, q->tokens, q->count, most, drafted);
    while (n < most && drafted[n] < s->caps.vocab_size) n++;
    return n;
}

/* A draft of an id that ends the sequence gains nothing: it is sampled in the same step without it. What
 * follows it would leave a state after the end. */
static uint32_t before_end(const struct sequence *q)
{
    uint32_t n = 0, ends = q->req.ignore_eos ? q->req.stop_id_count : q->banned_count;
    for (; n < q->proposed; n++)
        for (uint32_t i = 0; i < ends; i++)
            if (q->tokens[q->count + n] == q->banned[i]) return n;
    return n;
}

void sched__speculate(struct scheduler *s)
{
    uint32_t others = s->running.count, rows = s->caps.batch_tokens_max;
    rows = rows > others ? rows - others : 0;
    if (s->caps.draft_rows_max && rows > s->caps.draft_rows_max) rows = s->caps.draft_rows_max;
    if (!s->opt.draft_max) return;
    if (!s->opt.draft_always) s->draft_price = draft_price(s);
    bool plain = !s->opt.draft_always && others > 1 && s->now.steps % PLAIN_APART == PLAIN_APART / 2;
    for (struct sequence *q = s->running.head; q; q = q->next) {
        if (!sched__decodes(q) || q->mask != MASK_READY) continue;
        q->proposed = forced(s, q, rows);
        q->forced = q->proposed > 0;
        if (!q->forced && !plain) q->proposed = wanted(s, q, rows);
        rows -= q->proposed;
    }
    if (s->caps.drafts) draft(s);
    for (struct sequence *q = s->running.head; q && (s->opt.propose || !s->caps.drafts); q = q->next)
        if (q->proposed && !q->forced) q->proposed = proposed(s, q, q->proposed);
    for (struct sequence *q = s->running.head; q; q = q->next) q->proposed = before_end(q);
    sched__masks_cut(s);
}

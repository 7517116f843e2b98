/* Masks of constrained sequences: requested before a step is planned, so that no step waits for them. A
 * sequence whose mask is not ready skips the step (its prompt is prefilled up to the last token meanwhile);
 * its output does not depend on that. See scheduler/internal.h and engine/sample/sampling.h. */
#include "scheduler/internal.h"

/* Per step, for the masks of all sequences together, and for those of their draft tokens: after that each is
 * tried only briefly, and nothing is drafted. */
#define MASKS_US 500u

static bool late(const struct scheduler *s)
{
    return sched__clock(s) > s->masks_us + MASKS_US;
}

static void prepare(void *ctx, uint32_t i)
{
    struct scheduler *s = ctx;
    struct sequence *q = s->asking[i];
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t prompt = q->req.prompt->token_count;
    q->mask = c->prepare(c->arg, q->tokens + prompt, q->generated, late(s));
}

/* Of given tokens as many as are allowed and have the masks after them. */
static void look_ahead(const struct scheduler *s, struct sequence *q)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t left = q->req.given_count ? q->req.given_count - q->generated - 1 : 0;
    if (left && q->mask == MASK_READY)
        q->masks_ahead =
            late(s) ? 0 : c->drafts(c->arg, q->tokens + q->req.prompt->token_count, q->generated, left);
}

void sched__masks_prepare(struct scheduler *s)
{
    uint32_t n = 0;
    for (struct sequence *q = s->running.head; q; q = q->next) {
        q->mask = MASK_READY;
        q->masks_ahead = UINT32_MAX;
        if (q->req.sampling->constraint && q->tokens_max && !q->req.forced) s->asking[n++] = q;
    }
    s->masks_us = sched__clock(s);
    if (n) engine_each(s->engine, n, prepare, s);
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *q = s->asking[i];
        /* Sequences of one grammar contended for it. */
        if (q->mask == MASK_BUSY) prepare(s, i);
        look_ahead(s, q);
        s->mask_failed = s->mask_failed || q->mask == MASK_FAILED;
        s->now.mask_waits += q->mask == MASK_LATER || q->mask == MASK_BUSY;
    }
}

void sched__masks_cut(struct scheduler *s)
{
    s->masks_us = sched__clock(s);
    for (struct sequence *q = s->running.head; q; q = q->next) {
        const struct sampling_constraint *c = q->req.sampling->constraint;
        uint32_t prompt = q->req.prompt->token_count;
        if (!c || !q->proposed) continue;
        q->proposed = late(s) ? 0 : c->drafts(c->arg, q->tokens + prompt, q->count - prompt, q->proposed);
    }
}

uint32_t sched__masks_forced(const struct scheduler *s, struct sequence *q, uint32_t most)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t prompt = q->req.prompt->token_count;
    if (late(s)) return 0;
    return c->forced(c->arg, q->tokens + prompt, q->count - prompt, most, q->tokens + q->count);
}

void sched__masks_stop(const struct sequence *q)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    if (c && c->stop) c->stop(c->arg);
}

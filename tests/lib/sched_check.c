/* Invariants of the scheduler between steps. See sched_check.h. */
#include "tests/lib/sched_check.h"

#include "config/base/assert.h"
#include "scheduler/offload.h"
#include "tests/lib/cache_check.h"
#include "tests/lib/radix_check.h"

#include <stdlib.h>

struct claims {
    const struct scheduler *s;
    /* [group_count * arena_grains]: the tree claims the block below this position; 0 = no claim */
    uint32_t *to;
};

static void note_claim(void *arg, uint32_t group, uint32_t block_offset, uint32_t from, uint32_t to)
{
    struct claims *c = arg;
    (void)from;
    uint32_t *at = &c->to[group * c->s->caps.arena_grains + block_offset];
    if (to > *at) *at = to;
}

/* Adds the holds of loads, by group and block. */
static void count_loads(const struct scheduler *s, uint32_t *held)
{
    for (const struct load *l = s->offload ? s->offload->loads : NULL; l; l = l->next)
        for (uint32_t g = 0; g < s->caps.group_count; g++)
            for (uint32_t i = l->tables[g].first; i < l->tables[g].end; i++)
                if (l->tables[g].block_offsets[i] != ENGINE_NO_BLOCK)
                    held[g * s->caps.arena_grains + l->tables[g].block_offsets[i]]++;
}

/* Holder counts are right; a block that a sequence will write has no other claim from that position on. */
static void check_cache(const struct scheduler *s)
{
    uint64_t block_offsets = s->caps.arena_grains;
    uint32_t *held = calloc(block_offsets * s->caps.group_count, sizeof *held);
    struct claims claims = {.s = s, .to = calloc(block_offsets * s->caps.group_count, sizeof *claims.to)};
    ASSERT(held && claims.to);
    if (s->cache) {
        radix_check(s->cache);
        radix_each_claim(s->cache, note_claim, &claims);
    }
    count_loads(s, held);
    uint32_t *loads = calloc(block_offsets * s->caps.group_count, sizeof *loads);
    ASSERT(loads);
    count_loads(s, loads);
    for (const struct sequence *q = s->running.head; q; q = q->next)
        for (uint32_t g = 0; g < s->caps.group_count; g++)
            for (uint32_t i = q->tables[g].first; i < q->tables[g].end; i++)
                held[g * block_offsets + q->tables[g].block_offsets[i]]++;
    for (const struct sequence *q = s->running.head; q; q = q->next) {
        for (uint32_t g = 0; g < s->caps.group_count; g++) {
            for (uint32_t i = q->tables[g].first; i < q->tables[g].end; i++) {
                uint32_t block_offset = q->tables[g].block_offsets[i];
                ASSERT_CMP(kvb_references(s->blocks, g, block_offset, KVB_LIVE), ==,
                           held[g * block_offsets + block_offset]);
                bool whole = (uint64_t)(i + 1) * s->caps.block_tokens <= q->position;
                if (g == s->paged ? i == 0 : whole) continue;
                ASSERT_CMP(held[g * block_offsets + block_offset] - loads[g * block_offsets + block_offset],
                           ==, 1);
                ASSERT_CMP(claims.to[g * block_offsets + block_offset], <=, q->position);
            }
        }
    }
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        uint64_t live = 0;
        for (uint64_t u = 0; u < block_offsets; u++) live += held[g * block_offsets + u] > 0;
        ASSERT_CMP(live, ==, s->blocks->live_blocks[g]);
        if (!s->cache) ASSERT_CMP(live, ==, s->blocks->used_blocks[g]);
    }
    free(held);
    free(loads);
    free(claims.to);
}

static void check_images(const struct scheduler *s)
{
    const struct sequence *lists[] = {s->running.head, s->waiting.head};
    uint64_t held = 0;
    for (int l = 0; l < 2; l++) {
        for (const struct sequence *q = lists[l]; q; q = q->next) {
            for (uint32_t i = 0; i < q->req.prompt->span_count; i++) {
                const struct seq_image *f = &q->features[i];
                if (l == 1 || i < q->next_span) ASSERT(!f->entry);
                held += f->entry != NULL;
            }
        }
    }
    for (const struct image_load *l = s->offload ? s->offload->images : NULL; l; l = l->next)
        held += l->entry != NULL;
    struct features_stats st;
    features_check(s->features);
    features_stats(s->features, &st);
    ASSERT_CMP(held, ==, st.holds);
}

/* The step in flight, which was submitted before the tokens of the one before it were known: its rows are
 * those of a plan made now, the next token of every sequence that runs, and rows for nobody. */
static void check_flight(const struct scheduler *s)
{
    const struct sched_flight *f = s->step;
    uint32_t live = 0;
    ASSERT_CMP(s->ahead->count, ==, 0);
    for (uint32_t i = 0; i < f->count; i++) {
        const struct sequence *q = f->seqs[i];
        const struct engine_chunk *r = &f->chunks[i];
        if (!q) continue;
        live++;
        ASSERT(q->state == SEQ_RUNNING && !q->ahead && !q->proposed && sched__decodes(q));
        ASSERT(r->after && r->count == 1 && r->sample && r->position == q->position);
        ASSERT(r->sampling == q->req.sampling && r->token_count == q->count);
        for (uint32_t g = 0; g < s->paged; g++)
            ASSERT_CMP(r->tables[g][r->position / s->caps.block_tokens], !=, ENGINE_NO_BLOCK);
    }
    if (f->count) ASSERT_CMP(live, ==, s->running.count);
    ASSERT(live || !f->count);
}

void sched_check(const struct scheduler *s)
{
    check_flight(s);
    kvb_check(s->blocks);
    check_cache(s);
    check_images(s);
    if (s->offload) tier_check(s->offload->tier);
    tenants_check(s->tenants);
    for (const struct sequence *q = s->waiting.head; q; q = q->next) {
        ASSERT(!q->pin.node);
        for (uint32_t g = 0; g < s->caps.group_count; g++) ASSERT_CMP(q->tables[g].end, ==, 0);
    }
    ASSERT_CMP(s->running.count, <=, s->caps.sequences_max);
}

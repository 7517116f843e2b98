/* A fake engine for the scheduler's tests: implements engine.h. Each KV slot holds a value that depends, as a
 * model's KV does, on the item, its position and everything before it, read back through the block tables;
 * the next token is a hash of all slots that a query sees. So a block that is wrongly shared, released too
 * early, stale or mis-positioned changes an output. Included by one .c file per test program.
 *
 * A recurrent group has one state: a hash chain of all items, in the first slot of its block. A state that is
 * read at a wrong position, or that another chunk writes in the same step, is a broken rule; a wrong one
 * changes every later output.
 *
 * Positions: an image of n tokens advances the position by less than n (as with multi-axis positions), so
 * the position of a token is not its index; the slot before tells it. Features are a hash of the pixels. */
#ifndef KVASIR_FAKE_ENGINE_H
#define KVASIR_FAKE_ENGINE_H

#include "config/base/assert.h"
#include "engine/engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_GRAIN_BYTES = 64, FAKE_FEATURE_BYTES = 1000, FAKE_DRAFT_MAX = 16 };
/* Faults on the engine's side; the oracle must notice. */
enum fake_fault {
    FAKE_WINDOW_MORE = 1, /* looks one position further back than its caps say */
    FAKE_NO_COPY = 2,     /* engine_kv_copy does nothing */
    FAKE_POSITION_IS_COUNT =
        4, /* the first token of a chunk that follows cached ones: its position is its index */
    FAKE_STATE_OF_DRAFTS = 8, /* the state has rejected draft tokens in it */
};
struct fake_slot {
    uint64_t value;
    uint32_t next;  /* position of the token that follows */
    uint64_t whole; /* of a SPAN_PREFIX_LM: of all that it sees */
    bool written;
};
struct engine_features {
    uint64_t hash;
    uint32_t layers_left;
};
struct engine {
    void *host_memory;
    struct engine_caps caps;
    struct fake_slot *slots; /* [arena_grains * block_tokens]; a block's slots begin at its grain's. NULL: no
                                contents, tokens from the history's end alone */
    uint32_t *writer;        /* [arena_grains] run (index + 1) of this step that writes into the block */
    uint32_t paged;          /* groups but a recurrent one */
    uint64_t *chain; /* [batch_tokens_max + 1] of the chunk: the state before each of its items, and behind */
    uint32_t eos, vocab;
    uint32_t faults; /* enum fake_fault */
    bool lenient;    /* a planted fault somewhere: what is broken is counted instead of fatal */
    uint64_t noticed;
    uint32_t step_fails_every, feature_fails_every; /* about once in so many, with ST_NOMEM; 0 = never */
    uint32_t drafts_refused_every;                  /* likewise steps with draft tokens, with ST_AGAIN */
    uint64_t random;
    uint32_t live_features;
    uint64_t encodes, copies, rows, steps;
    /* What a step takes on a clock of its own, in microseconds: for scheduling by time. All 0: nothing takes
     * any. */
    struct {
        double fixed, row, sampled, pair, layer, noise; /* noise: up to so much of it more or less */
        double once;                                    /* the next step alone takes so much longer */
    } takes;
    double clock_us;
    void (*on_chunk)(const struct engine_chunk *r); /* may be NULL */
    /* With caps.drafts: of every slot the token that was drawn last, its index, and the seed; how many of 100
     * draft tokens are right. */
    struct fake_drawn {
        uint32_t token, at;
        uint64_t seed, state; /* state: in front of the token */
    } * drawn;                /* [sequences_max] */
    uint32_t draft_right;
    uint64_t drafts;
    /* Steps in flight, by their number: computed when submitted, as a device's are in the order of its
     * stream; what they have drawn is told by engine_wait alone. overlaps: the device draws for requests
     * without a top_k. */
    struct fake_flight {
        struct engine_batch *batch;
        struct token_out *out; /* [sequences_max] */
        double us;
    } flights[2];
    uint64_t submitted, waited, ahead;
    bool overlaps;
};

#define FAKE_CHECK(e, cond)                                                                                  \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            if (!(e)->lenient) ASSERT(cond);                                                                 \
            (e)->noticed++;                                                                                  \
        }                                                                                                    \
    } while (0)

/* splitmix64 */
static inline uint64_t fake_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
static inline bool fake_once_in(struct engine *e, uint32_t many)
{
    if (!many) return false;
    e->random = fake_mix(e->random);
    return (e->random >> 20) % many == 0;
}

static inline void fake_open(struct engine *e, bool contents)
{
    e->caps.grain_bytes = contents ? e->caps.block_tokens * (uint32_t)sizeof *e->slots : FAKE_GRAIN_BYTES;
    e->caps.vocab_size = e->vocab;
    e->caps.eos_ids[0] = e->eos;
    e->caps.eos_count = 1;
    for (uint32_t g = 0; g < e->caps.group_count; g++) {
        struct engine_kv_group *k = &e->caps.groups[g];
        k->block_bytes = (uint64_t)k->block_grains * e->caps.grain_bytes;
        k->bytes_per_token = k->recurrent ? 0 : k->block_bytes / e->caps.block_tokens;
        e->paged += !k->recurrent;
        if (k->recurrent) e->caps.draft_rows_max = 5;
    }
    for (int i = 0; i < 2; i++) e->flights[i].out = calloc(e->caps.sequences_max, sizeof(struct token_out));
    if (e->caps.drafts) e->drawn = calloc(e->caps.sequences_max, sizeof *e->drawn);
    if (!contents) return;
    e->slots = calloc(e->caps.arena_grains * e->caps.block_tokens, sizeof *e->slots);
    e->writer = calloc(e->caps.arena_grains, sizeof *e->writer);
    e->chain = calloc(e->caps.batch_tokens_max + 1, sizeof *e->chain);
    ASSERT(e->slots && e->writer && e->chain);
}
static inline void fake_close(struct engine *e)
{
    ASSERT_CMP(e->live_features, ==, 0);
    ASSERT_CMP(e->submitted, ==, e->waited);
    for (int i = 0; i < 2; i++) free(e->flights[i].out);
    free(e->slots);
    free(e->writer);
    free(e->chain);
    free(e->drawn);
}

void engine_caps(const struct engine *e, struct engine_caps *out)
{
    *out = e->caps;
}

/* ---- adapters: they change every item, and those that touch images the features too ---- */
struct adapter {
    struct adapter_info info;
    atomic_uint *users; /* sched_sequence.running; may be NULL */
};
const struct adapter_info *adapter_info(const struct adapter *a)
{
    return &a->info;
}
static uint64_t fake_adapted(const struct adapter *a, uint64_t value)
{
    uint64_t head = 0;
    if (a) memcpy(&head, a->info.digest, sizeof head);
    return a ? fake_mix(value ^ head) : value;
}

/* ---- images ---- */
static uint64_t fake_pixels_hash(const struct image_u8 *p)
{
    return fake_mix(p->rgb[0] + 256u * p->width + 65536u * (uint64_t)p->height);
}
static uint32_t fake_advance(uint32_t rows)
{
    return 1 + rows / 2;
}
enum status engine_features_create(struct engine *e, const struct image_u8 *pixels,
                                   const struct adapter *adapter, struct engine_features **out,
                                   struct err *err)
{
    if (fake_once_in(e, e->feature_fails_every)) return err_set(err, ST_NOMEM, "injected fault");
    ASSERT_CMP(e->submitted, ==, e->waited);
    *out = calloc(1, sizeof **out);
    (*out)->hash = fake_adapted(adapter, fake_pixels_hash(pixels));
    (*out)->layers_left = 1 + (uint32_t)((*out)->hash % 5);
    e->live_features++;
    e->encodes++;
    return ST_OK;
}
enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done,
                                 struct err *err)
{
    ASSERT_CMP(e->submitted, ==, e->waited);
    e->clock_us += e->takes.layer * (layers && layers < f->layers_left ? layers : f->layers_left);
    if (fake_once_in(e, e->feature_fails_every)) return err_set(err, ST_NOMEM, "injected fault");
    f->layers_left = layers && f->layers_left > layers ? f->layers_left - layers : 0;
    *done = f->layers_left == 0;
    return ST_OK;
}
size_t engine_features_bytes(const struct engine_features *f)
{
    (void)f;
    return FAKE_FEATURE_BYTES;
}
void engine_features_free(struct engine *e, struct engine_features *f)
{
    if (!f) return;
    e->live_features--;
    free(f);
}

/* ---- values ---- */
static inline uint64_t fake_item_value(uint64_t item, uint32_t position, uint64_t before)
{
    return fake_mix(fake_mix(item * 0x1000193u + position) ^ before);
}
static inline uint64_t fake_image_item(uint64_t hash, uint32_t idx)
{
    return fake_mix(hash + idx) | (1ull << 63);
}
static inline uint32_t fake_derive(const struct engine *e, uint64_t h)
{
    uint64_t v = fake_mix(h);
    return v % 19 == 0 ? e->eos : (uint32_t)((v >> 20) % e->vocab);
}
static inline uint32_t fake_instead(const struct engine *e, uint32_t id)
{
    return (id + e->vocab / 2) % e->vocab;
}
static inline uint32_t fake_reach(uint32_t window, uint32_t p)
{
    return window && p + 1 > window ? p + 1 - window : 0;
}

/* The slot of position p, or NULL (counted) when the table has none. */
static struct fake_slot *fake_slot(struct engine *e, uint32_t g, const struct engine_chunk *r, uint32_t p)
{
    uint32_t block_offset = r->tables[g][p / e->caps.block_tokens];
    FAKE_CHECK(e, block_offset != ENGINE_NO_BLOCK);
    if (block_offset == ENGINE_NO_BLOCK) return NULL;
    ASSERT_CMP(block_offset + e->caps.groups[g].block_grains, <=, e->caps.arena_grains);
    return &e->slots[(size_t)block_offset * e->caps.block_tokens + p % e->caps.block_tokens];
}

/* Position of the token with index p: a slot of any group that the query at p can see tells it. */
static uint32_t fake_position(struct engine *e, const struct engine_chunk *r, uint32_t p)
{
    if (p == 0) return 0;
    if (e->faults & FAKE_POSITION_IS_COUNT && p == r->position) return p;
    for (uint32_t g = 0; g < e->paged; g++) {
        if (e->caps.groups[g].window == 1) continue;
        const struct fake_slot *s = fake_slot(e, g, r, p - 1);
        if (!s) continue;
        FAKE_CHECK(e, s->written);
        return s->next;
    }
    return p;
}

static void fake_write(struct engine *e, struct engine_chunk *r, uint32_t p, uint64_t item, uint64_t whole,
                       uint32_t advance)
{
    uint32_t position = fake_position(e, r, p);
    e->chain[p + 1 - r->position] = fake_mix(e->chain[p - r->position] ^ item);
    for (uint32_t g = 0; g < e->paged; g++) {
        const struct fake_slot *before =
            p > 0 && e->caps.groups[g].window != 1 ? fake_slot(e, g, r, p - 1) : NULL;
        struct fake_slot *s = fake_slot(e, g, r, p);
        if (s)
            *s = (struct fake_slot){.value = fake_item_value(item, position, before ? before->value : g),
                                    .next = position + advance,
                                    .whole = whole,
                                    .written = true};
    }
}

/* Item p of the chunk, and the span that it lies in, or NULL. */
static uint32_t fake_token(const struct engine *e, const struct engine_chunk *r, uint32_t p)
{
    bool device = r->after && p == r->position; /* r->tokens has it later */
    return device ? e->flights[(e->submitted + 1) % 2].out[r->after - 1].id : r->tokens[p];
}
static uint64_t fake_item(const struct engine *e, const struct engine_chunk *r, uint32_t p,
                          const struct engine_span **span)
{
    *span = NULL;
    for (uint32_t i = 0; i < r->span_count; i++)
        if (p >= r->spans[i].begin && p < r->spans[i].end) *span = &r->spans[i];
    if (!*span || !(*span)->features) return fake_adapted(r->adapter, fake_token(e, r, p));
    ASSERT_CMP((*span)->features->layers_left, ==, 0);
    return fake_adapted(r->adapter, fake_image_item((*span)->features->hash, p - (*span)->begin));
}

/* What tokens of a SPAN_PREFIX_LM see of each other: told by those before the chunk, or made from them all.
 */
static uint64_t fake_whole(struct engine *e, const struct engine_chunk *r)
{
    const struct engine_span *s;
    uint64_t h = 0;
    uint32_t at = r->position;
    (void)fake_item(e, r, at, &s);
    if (!s || s->rule != SPAN_PREFIX_LM) return 0;
    if (at > s->atomic_begin) return fake_slot(e, 0, r, at - 1)->whole;
    for (uint32_t p = at, end = s->atomic_end; p < end; p++) h = fake_mix(h ^ fake_item(e, r, p, &s));
    return h | 1;
}

static struct fake_slot *fake_state(struct engine *e, uint32_t block)
{
    ASSERT_CMP(block + e->caps.groups[e->paged].block_grains, <=, e->caps.arena_grains);
    return &e->slots[(size_t)block * e->caps.block_tokens];
}
/* The state after the chunk's tokens that count. */
static void fake_write_state(struct engine *e, const struct engine_chunk *r)
{
    uint32_t n = r->count;
    if (e->paged == e->caps.group_count) return;
    if (r->proposed && !(e->faults & FAKE_STATE_OF_DRAFTS)) n -= r->proposed - (r->drawn_count - 1);
    *fake_state(e, r->state_to) =
        (struct fake_slot){.value = e->chain[n], .next = r->position + n, .written = true};
    if (e->faults & FAKE_STATE_OF_DRAFTS && r->proposed)
        fake_state(e, r->state_to)->next -= r->proposed - (r->drawn_count - 1);
}

static void fake_chunk(struct engine *e, struct engine_chunk *r)
{
    uint32_t end = r->position + r->count;
    uint64_t whole = fake_whole(e, r);
    e->chain[0] = 1;
    if (e->paged < e->caps.group_count && r->position) {
        const struct fake_slot *state = fake_state(e, r->state_from);
        FAKE_CHECK(e, state->written && state->next == r->position);
        e->chain[0] = state->value;
    }
    for (uint32_t p = r->position; p < end; p++) {
        const struct engine_span *s;
        uint64_t item = fake_item(e, r, p, &s);
        uint32_t advance = 1;
        if (s && s->rule) FAKE_CHECK(e, s->atomic_end <= end);
        if (s && s->features) advance = p + 1 == s->end ? fake_advance(s->end - s->begin) : 0;
        bool in_whole = s && s->rule == SPAN_PREFIX_LM;
        fake_write(e, r, p, in_whole ? fake_mix(item ^ whole) : item, in_whole ? whole : 0, advance);
    }
}

/* The token that follows position end - 1. */
static uint32_t fake_draw(struct engine *e, const struct engine_chunk *r, uint32_t end)
{
    uint64_t h = r->sampling->seed;
    const struct engine_span *in;
    (void)fake_item(e, r, end - 1, &in);
    bool whole = in && in->rule == SPAN_PREFIX_LM; /* it sees all in front of it, in sliding groups too */
    for (uint32_t g = 0; g < e->paged && e->slots; g++) {
        uint32_t window = e->caps.groups[g].window, more = window && e->faults & FAKE_WINDOW_MORE;
        uint32_t low = whole ? in->atomic_begin : fake_reach(window, end - 1);
        for (uint32_t p = whole ? low : fake_reach(window + more, end - 1); p < end; p++) {
            const struct fake_slot *s = fake_slot(e, g, r, p);
            if (s) FAKE_CHECK(e, s->written);
            if (s && p >= low) h = fake_mix(h ^ s->value);
        }
    }
    if (e->slots && e->paged < e->caps.group_count) h = fake_mix(h ^ e->chain[end - r->position]);
    if (!e->slots) h ^= fake_mix(fake_token(e, r, end - 1) + ((uint64_t)end << 32));
    uint32_t id = fake_derive(e, h);
    for (uint32_t k = 0; end < r->banned_until && k < r->banned_count; k++)
        if (r->banned[k] == id) id = fake_instead(e, id);
    return id;
}

static void fake_sample(struct engine *e, struct engine_chunk *r)
{
    uint32_t first = r->position + r->count - r->proposed;
    for (r->drawn_count = 0; r->drawn_count <= r->proposed;) {
        uint32_t at = first + r->drawn_count, id = fake_draw(e, r, at);
        struct token_out *out = r->proposed ? &r->drawn[r->drawn_count] : &r->out;
        *out = (struct token_out){.id = id};
        r->drawn_count++;
        if (e->drawn)
            e->drawn[r->draft_slot] =
                (struct fake_drawn){id, at, r->sampling->seed, e->slots ? e->chain[at - r->position] : 0};
        if (r->drawn_count <= r->proposed && id != r->tokens[at]) return;
    }
}

/* Nobody else in the step may hold a block that a chunk writes to. */
static void fake_check_writes(struct engine *e, const struct engine_batch *b)
{
    uint32_t bt = e->caps.block_tokens;
    for (uint32_t pass = 0; pass < 3; pass++) {
        for (uint32_t i = 0; i < b->chunk_count; i++) {
            const struct engine_chunk *r = &b->chunks[i];
            if (e->paged < e->caps.group_count) {
                uint32_t *at = &e->writer[r->state_to], from = r->position ? r->state_from : r->state_to;
                if (pass == 0) FAKE_CHECK(e, *at == 0);
                if (pass == 1) FAKE_CHECK(e, e->writer[from] == 0 || e->writer[from] == i + 1);
                *at = pass == 2 ? 0 : i + 1;
            }
            uint32_t from = r->position / bt, to = (r->position + r->count - 1) / bt;
            for (uint32_t g = 0; g < e->paged; g++) {
                uint32_t first = pass == 1 ? fake_reach(e->caps.groups[g].window, r->position) / bt : from;
                for (uint32_t k = first; k <= to; k++) {
                    uint32_t block_offset = r->tables[g][k];
                    if (block_offset == ENGINE_NO_BLOCK) continue;
                    if (pass == 0) e->writer[block_offset] = i + 1;
                    if (pass == 1)
                        FAKE_CHECK(e, e->writer[block_offset] == 0 || e->writer[block_offset] == i + 1);
                    if (pass == 2) e->writer[block_offset] = 0;
                }
            }
        }
    }
}

/* What the chunk adds to a step. */
static inline double fake_chunk_us(const struct engine *e, uint32_t position, uint32_t count, bool sample)
{
    return e->takes.row * count + e->takes.sampled * sample +
           e->takes.pair * count * (position + (count + 1) / 2.0);
}
static inline uint64_t fake_clock(void *engine)
{
    return (uint64_t)((const struct engine *)engine)->clock_us;
}

bool engine_draws(const struct engine *e, const struct engine_chunk *r)
{
    return e->overlaps && r->sample && !r->proposed && r->score_first == UINT32_MAX && !r->sampling->top_k;
}

static void fake_check_after(const struct engine *e, const struct engine_batch *b)
{
    const struct engine_batch *before = e->flights[(e->submitted + 1) % 2].batch;
    ASSERT_CMP(e->submitted - e->waited, <, 2);
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        ASSERT(!r->after == (e->submitted == e->waited));
        if (!r->after) continue;
        ASSERT_CMP(r->after, <=, before->chunk_count);
        const struct engine_chunk *a = &before->chunks[r->after - 1];
        ASSERT(r->count == 1 && r->position == a->position + a->count && r->sampling == a->sampling);
    }
    for (uint32_t i = 0; b->chunks[0].after && i < before->chunk_count; i++)
        ASSERT(engine_draws(e, &before->chunks[i]));
}

enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err)
{
    uint32_t tokens = 0, proposed = 0;
    double us = e->takes.fixed;
    for (uint32_t i = 0; i < b->chunk_count; i++) proposed += b->chunks[i].proposed;
    if (e->caps.draft_rows_max) ASSERT_CMP(proposed, <=, e->caps.draft_rows_max);
    if (proposed && fake_once_in(e, e->drafts_refused_every)) return err_set(err, ST_AGAIN, "injected fault");
    for (uint32_t i = 0; i < b->chunk_count; i++)
        us += fake_chunk_us(e, b->chunks[i].position, b->chunks[i].count, b->chunks[i].sample);
    if (e->takes.noise > 0) {
        e->random = fake_mix(e->random);
        us *= 1 + e->takes.noise * ((double)(e->random >> 40) / (1 << 23) - 1);
    }
    fake_check_after(e, b);
    us += e->takes.once;
    e->takes.once = 0;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        ASSERT_CMP(r->count, >, 0);
        ASSERT_CMP(r->position + r->count, <=, r->token_count);
        tokens += r->count;
    }
    ASSERT_CMP(tokens, <=, e->caps.batch_tokens_max);
    ASSERT_CMP(b->chunk_count, <=, e->caps.sequences_max);
    e->steps++;
    e->rows += tokens;
    if (fake_once_in(e, e->step_fails_every)) {
        e->clock_us += us;
        for (uint32_t i = 0; i < b->chunk_count && e->slots && e->paged < e->caps.group_count; i++)
            fake_state(e, b->chunks[i].state_to)->written = false; /* half of it */
        return err_set(err, ST_NOMEM, "injected fault");
    }
    if (e->slots) fake_check_writes(e, b);
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct engine_chunk *r = &b->chunks[i];
        if (e->on_chunk) e->on_chunk(r);
        if (e->slots) fake_chunk(e, r);
        if (r->sample) fake_sample(e, r);
        if (e->slots) fake_write_state(e, r);
        e->flights[e->submitted % 2].out[i] = r->out;
        r->out.id = UINT32_MAX;
    }
    e->ahead += b->chunks[0].after > 0;
    e->flights[e->submitted % 2].batch = b;
    e->flights[e->submitted++ % 2].us = us;
    return ST_OK;
}
enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err)
{
    const struct fake_flight *f = &e->flights[e->waited % 2];
    (void)err;
    ASSERT(e->waited++ < e->submitted && f->batch == b);
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct adapter *a = b->chunks[i].adapter;
        ASSERT(!a || !a->users || atomic_load(a->users)); /* else it may be freed by now */
        b->chunks[i].out = f->out[i];
    }
    e->clock_us += f->us;
    return ST_OK;
}

void engine_each(struct engine *e, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    ASSERT_CMP(e->submitted, ==, e->waited);
    for (uint32_t i = 0; i < count; i++) fn(ctx, i);
}

/* The token behind index `at`, of which `mine` tells the values from index `first` on. */
static uint32_t fake_foresee(struct engine *e, const struct engine_chunk *r, uint64_t seed, uint32_t first,
                             uint32_t at, uint64_t mine[][FAKE_DRAFT_MAX])
{
    uint64_t h = seed;
    for (uint32_t g = 0; g < e->paged; g++)
        for (uint32_t p = fake_reach(e->caps.groups[g].window, at); p <= at; p++) {
            const struct fake_slot *s = p < first ? fake_slot(e, g, r, p) : NULL;
            if (s) FAKE_CHECK(e, s->written);
            h = fake_mix(h ^ (s ? s->value : mine[g][p - first]));
        }
    if (e->paged < e->caps.group_count) h = fake_mix(h ^ mine[e->paged][at - first]);
    return fake_derive(e, h);
}
/* Right draft tokens are those of a sequence alone; wrong ones are any ids. */
enum status engine_draft(struct engine *e, const struct engine_draft *d, uint32_t n, struct err *err)
{
    uint64_t mine[ENGINE_GROUPS_MAX][FAKE_DRAFT_MAX];
    ASSERT(e->drawn && n > 0 && n <= e->caps.sequences_max && e->submitted == e->waited);
    if (fake_once_in(e, e->step_fails_every)) return err_set(err, ST_NOMEM, "injected fault");
    for (uint32_t i = 0; i < n; i++) {
        const struct fake_drawn *w = &e->drawn[d[i].slot];
        struct engine_chunk r = {.position = d[i].position};
        FAKE_CHECK(e, w->token == d[i].token && w->at == d[i].position && d[i].position > 0);
        for (uint32_t g = 0; g < e->paged; g++) r.tables[g] = d[i].tables[g];
        uint32_t first = d[i].position, position = e->slots ? fake_position(e, &r, first) : 0;
        for (uint32_t k = 0; k < d[i].count; k++, e->drafts++) {
            uint32_t item = k ? d[i].out[k - 1] : d[i].token;
            if (e->paged < e->caps.group_count)
                mine[e->paged][k] = fake_mix((k ? mine[e->paged][k - 1] : w->state) ^ item);
            for (uint32_t g = 0; g < e->paged && e->slots; g++) {
                bool alone = e->caps.groups[g].window == 1;
                const struct fake_slot *s = alone || k ? NULL : fake_slot(e, g, &r, first - 1);
                uint64_t before = s ? s->value : alone || !k ? g : mine[g][k - 1];
                mine[g][k] = fake_item_value(item, position + k, before);
            }
            e->random = fake_mix(e->random);
            bool right = e->slots && (e->random >> 20) % 100 < e->draft_right;
            d[i].out[k] = right ? fake_foresee(e, &r, w->seed, first, first + k, mine)
                                : (uint32_t)((e->random >> 40) % e->vocab);
        }
    }
    return ST_OK;
}

void engine_kv_copy(struct engine *e, uint32_t group, uint32_t from_offset, uint32_t to_offset,
                    uint32_t tokens)
{
    (void)group;
    e->copies++;
    if (!e->slots || e->faults & FAKE_NO_COPY) return;
    uint32_t bt = e->caps.block_tokens;
    memcpy(&e->slots[(size_t)to_offset * bt], &e->slots[(size_t)from_offset * bt], tokens * sizeof *e->slots);
    memset(&e->slots[(size_t)to_offset * bt + tokens], 0, (bt - tokens) * sizeof *e->slots);
}

void *engine_host_alloc(struct engine *e, size_t bytes)
{
    return e->host_memory = malloc(bytes);
}
void engine_host_free(struct engine *e)
{
    free(e->host_memory);
    e->host_memory = NULL;
}
uint64_t engine_copies(const struct engine *e)
{
    (void)e;
    return 0;
}
void engine_copies_wait(struct engine *e, uint64_t copies)
{
    (void)e;
    (void)copies;
}
void engine_kv_read(struct engine *e, uint32_t group, uint32_t block_offset, void *host)
{
    uint32_t bt = e->caps.block_tokens;
    memset(host, 0, e->caps.groups[group].block_bytes);
    if (e->slots) memcpy(host, &e->slots[(size_t)block_offset * bt], bt * sizeof *e->slots);
}
void engine_kv_write(struct engine *e, uint32_t group, uint32_t block_offset, const void *host,
                     uint32_t tokens)
{
    uint32_t bt = e->caps.block_tokens, n = e->caps.groups[group].recurrent ? 1 : tokens;
    if (!e->slots) return;
    memcpy(&e->slots[(size_t)block_offset * bt], host, n * sizeof *e->slots);
    memset(&e->slots[(size_t)block_offset * bt + n], 0, (bt - n) * sizeof *e->slots);
}
void engine_features_read(struct engine *e, const struct engine_features *f, void *host)
{
    (void)e;
    memset(host, 0, FAKE_FEATURE_BYTES);
    memcpy(host, f, sizeof *f);
}
enum status engine_features_write(struct engine *e, const void *host, size_t bytes,
                                  struct engine_features **out, struct err *err)
{
    if (fake_once_in(e, e->feature_fails_every)) return err_set(err, ST_NOMEM, "injected fault");
    ASSERT_CMP(bytes, ==, FAKE_FEATURE_BYTES);
    *out = malloc(sizeof **out);
    memcpy(*out, host, sizeof **out);
    e->live_features++;
    return ST_OK;
}

/* ---- the oracle: what a request answers, from the request alone ---- */
struct fake_answer {
    uint32_t *tokens; /* [tokens_max], owned */
    uint32_t count;
    bool stopped, eos; /* by the stop id; by eos */
};
static inline uint64_t fake_prompt_item(const struct prompt *prompt, uint32_t p, const struct adapter *a,
                                        const struct prompt_span **span)
{
    *span = NULL;
    for (uint32_t i = 0; i < prompt->span_count; i++)
        if (p >= prompt->spans[i].begin && p < prompt->spans[i].end) *span = &prompt->spans[i];
    if (!*span || !(*span)->image) return fake_adapted(a, prompt->tokens[p]);
    uint64_t hash = fake_adapted(a && a->info.touches_images ? a : NULL, fake_pixels_hash(&(*span)->pixels));
    return fake_adapted(a, fake_image_item(hash, p - (*span)->begin));
}
static inline void fake_oracle(const struct engine *e, const struct prompt *prompt, uint64_t seed,
                               uint32_t tokens_max, uint32_t tokens_min, uint32_t stop_id, bool ignore_eos,
                               const struct adapter *a, struct fake_answer *out)
{
    uint32_t n = prompt->token_count, room = n + tokens_max + 1, position = 0;
    uint64_t *values[ENGINE_GROUPS_MAX];
    *out = (struct fake_answer){.tokens = malloc((tokens_max + 1) * sizeof(uint32_t))};
    for (uint32_t g = 0; g < e->caps.group_count; g++) values[g] = malloc(room * sizeof(uint64_t));
    const struct prompt_span *s = NULL;
    uint64_t whole = 0, state = 1;
    bool prefix = prompt->span_count && prompt->spans[0].rule == SPAN_PREFIX_LM;
    for (uint32_t p = 0; prefix && p < prompt->spans[0].atomic_end; p++)
        whole = fake_mix(whole ^ fake_prompt_item(prompt, p, a, &s));
    for (uint32_t p = 0; p < n + tokens_max; p++) {
        if (p >= n) {
            uint64_t h = seed;
            for (uint32_t g = 0; g < e->paged; g++)
                for (uint32_t k = prefix && p == n ? 0 : fake_reach(e->caps.groups[g].window, p - 1); k < p;
                     k++)
                    h = fake_mix(h ^ values[g][k]);
            if (e->paged < e->caps.group_count) h = fake_mix(h ^ state);
            uint32_t id = fake_derive(e, h);
            if (out->count < tokens_min) {
                if (id == stop_id) id = fake_instead(e, id);
                if (id == e->eos) id = fake_instead(e, id);
            }
            out->tokens[out->count++] = id;
            out->stopped = id == stop_id;
            out->eos = !out->stopped && id == e->eos && !ignore_eos;
            if (out->stopped || out->eos) break;
        }
        uint64_t item =
            p < n ? fake_prompt_item(prompt, p, a, &s) : fake_adapted(a, out->tokens[out->count - 1]);
        uint32_t advance = 1;
        if (p >= n) s = NULL;
        if (s && s->image) advance = p + 1 == s->end ? fake_advance(s->end - s->begin) : 0;
        if (s && s->rule == SPAN_PREFIX_LM) item = fake_mix(item ^ (whole | 1));
        state = fake_mix(state ^ item);
        for (uint32_t g = 0; g < e->paged; g++)
            values[g][p] = fake_item_value(item, position,
                                           p > 0 && e->caps.groups[g].window != 1 ? values[g][p - 1] : g);
        position += advance;
    }
    for (uint32_t g = 0; g < e->caps.group_count; g++) free(values[g]);
}

#endif

/* Simulation of the scheduler with its prefix cache against a fake engine (fake_engine.h) under a virtual
 * clock, from a seed: conversations with images that grow, branch, are edited and submitted twice at once;
 * tiny arenas, cancels, deadlines, preemption, engine faults, pixels that come late or never, salts, tenants,
 * resets. Invariants are checked after every step, every output against the oracle: it equals that of the
 * request alone, without cache.
 *
 *     sim_sched [--seed N] [--seeds COUNT] [--requests N] [--steps TOTAL]
 * It prints the seed of a failing run. */
#include "tests/sim/fake_engine.h"

#include "config/base/log.h"
#include "scheduler/cache/kv_blocks.h"
#include "scheduler/scheduler.h"
#include "tests/lib/block_index.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/sched_check.h"
#include "tests/lib/cache_check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static uint64_t rng_state;
static uint32_t rnd(uint32_t below)
{
    rng_state = fake_mix(rng_state);
    return (uint32_t)((rng_state >> 33) % below);
}

enum {
    BT = 8,
    VOCAB = 1000,
    EOS = 7,
    SOFT = 3,
    CONTEXT = 400,
    IMAGES_MAX = 6,
    SPANS_MAX = 2 * IMAGES_MAX + 1, /* with the text between them */
    LIVE_MAX = 64,
    CONVERSATIONS = 5,
    LOG_MAX = 400
};

/* ---- prompts ---- */
struct image {
    uint8_t shade, width, height;
};
struct part_list { /* a conversation so far */
    uint32_t tokens[CONTEXT], count;
    struct {
        uint32_t begin, end;
        struct image what;
    } images[IMAGES_MAX];
    uint32_t image_count;
};
struct request {
    struct prompt prompt;
    struct sampling_params sampling;
    struct sched_sequence seq;
    struct image images[SPANS_MAX];
    uint8_t rgb[SPANS_MAX][12];
    uint32_t stop_id;
    struct fake_answer expect;
    uint32_t got, next_position, last_unit; /* of its last run */
    struct seq_id id;
    bool cancelled, refused, wrong;
    bool late[SPANS_MAX]; /* pixels come on request */
    bool asked[SPANS_MAX];
};
struct past { /* what may be in the cache */
    uint64_t *items;
    uint32_t count, salt;
};
struct pending {
    struct request *r; /* NULL: it ended meanwhile */
    struct seq_id id;
    uint32_t image;
    struct image what;
};
struct totals {
    uint32_t preempting; /* most turns with a preemption in a row */
    uint64_t ended[SEQ_ENDS], refused, steps, preemptions, tokens, hits, hit_tokens, copies, evictions, waits,
        resumed, asked, features_shared, feature_evictions, noticed, resets, seeds, proposed, accepted,
        prefix_hits, state_hits, state_stops, states_evicted, ahead;
};
/* Faults planted for a run. */
struct mutant {
    uint32_t fake; /* enum fake_fault */
    bool key_ignores_dimensions, prefix_key_ignores_end;
};
struct sim {
    struct engine e;
    struct scheduler *s;
    struct block_index *index; /* of all events: a stream that contradicts itself aborts */
    struct request *live[LIVE_MAX];
    uint32_t live_count;
    struct pending pending[LIVE_MAX * IMAGES_MAX];
    uint32_t pending_count;
    struct part_list conversations[CONVERSATIONS];
    struct past log[LOG_MAX];
    uint32_t log_count;
    bool log_full, tight, lenient, atomic, prefix, small_alphabet, faults;
    uint32_t live_max, rows_max; /* rows of an image */
    uint32_t late_pixels;        /* one image in so many is decoded on request only; 0 = none */
    struct mutant mutant;
    uint32_t drafts, draft_accepted; /* tokens proposed at a time at most; how many of 100 are right */
    struct totals *t;
    uint64_t now;
};
/* Two of one content; two that touch images. */
static atomic_uint adapter_users[4];
static const struct adapter adapters[] = {{{.digest = {1}}, &adapter_users[0]},
                                          {{.digest = {1}}, &adapter_users[1]},
                                          {{.digest = {2}, .touches_images = true}, &adapter_users[2]},
                                          {{.digest = {3}, .touches_images = true}, &adapter_users[3]}};
static struct totals *run_totals; /* for the engine's hook */
static bool chunk_drafts;

static void make_key(const struct sim *m, const struct image *p, uint8_t key[32])
{
    uint64_t h = p->shade + 1u;
    if (!m->mutant.key_ignores_dimensions) h += 256u * p->width + 65536u * (uint64_t)p->height;
    for (int i = 0; i < 4; i++) {
        h = fake_mix(h);
        memcpy(key + 8 * i, &h, 8);
    }
}
/* Images of one shade have equal rows whatever their shape: only the key tells them apart. */
static uint32_t rows_of(const struct sim *m, const struct image *p)
{
    return 1 + p->shade * 5u % m->rows_max;
}
static void add_text(const struct sim *m, struct part_list *l, uint32_t count)
{
    for (uint32_t i = 0; i < count && l->count < CONTEXT; i++)
        l->tokens[l->count++] = m->small_alphabet ? rnd(4) : rnd(VOCAB);
}
static struct image random_image(void)
{
    return (struct image){
        .shade = (uint8_t)rnd(4), .width = (uint8_t)(1 + rnd(2)), .height = (uint8_t)(1 + rnd(2))};
}
static void add_image(const struct sim *m, struct part_list *l, struct image p)
{
    uint32_t rows = rows_of(m, &p);
    if (l->image_count == IMAGES_MAX || l->count + rows > CONTEXT) return;
    l->images[l->image_count].begin = l->count;
    l->images[l->image_count].what = p;
    for (uint32_t i = 0; i < rows; i++) l->tokens[l->count++] = SOFT;
    l->images[l->image_count++].end = l->count;
}
/* Cuts at `end`, before the image that stands there. */
static void cut(struct part_list *l, uint32_t end)
{
    while (l->image_count && l->images[l->image_count - 1].end > end) {
        l->image_count--;
        if (l->images[l->image_count].begin < end) end = l->images[l->image_count].begin;
    }
    l->count = end;
}
static void edit(struct part_list *l)
{
    if (l->count == 0) return;
    uint32_t p = rnd(l->count);
    for (uint32_t i = 0; i < l->image_count; i++) {
        if (p < l->images[i].begin || p >= l->images[i].end) continue;
        struct image *w = &l->images[i].what;
        if (rnd(2)) w->width = (uint8_t)(3 - w->width); /* the same rows and shade, another shape */
        else w->height = (uint8_t)(3 - w->height);
        return;
    }
    l->tokens[p] = rnd(VOCAB);
}

static void request_free(struct request *r)
{
    free(r->prompt.tokens);
    free(r->prompt.spans);
    free(r->expect.tokens);
    free(r);
}

/* The text up to `end` that no span has yet. */
static void add_prefix_text(struct prompt *p, uint32_t end)
{
    uint32_t begin = p->span_count ? p->spans[p->span_count - 1].end : 0;
    int32_t offset = p->span_count ? p->spans[p->span_count - 1].mrope_delta : 0;
    if (begin == end) return;
    p->spans[p->span_count++] = (struct prompt_span){.begin = begin, .end = end, .mrope_delta = offset};
}

/* All tokens see each other: the prompt's identity is that of everything in it. */
static void make_prefix(const struct sim *m, struct prompt *p)
{
    uint64_t h[4] = {1, 2, 3, 4};
    add_prefix_text(p, p->token_count);
    for (uint32_t i = 0; i < p->span_count; i++)
        for (int w = 0; w < 4; w++) {
            uint64_t part;
            memcpy(&part, p->spans[i].key + 8 * w, 8);
            for (uint32_t k = p->spans[i].begin;
                 k < p->spans[i].end && (k < 9 || !m->mutant.prefix_key_ignores_end); k++)
                h[w] = fake_mix(h[w] ^ (p->spans[i].image ? part : p->tokens[k]));
        }
    for (uint32_t i = 0; i < p->span_count; i++) {
        struct prompt_span *s = &p->spans[i];
        s->rule = SPAN_PREFIX_LM;
        s->atomic_begin = 0;
        s->atomic_end = p->token_count;
        memcpy(s->atomic_key, h, sizeof h);
    }
}

static struct request *request_new(const struct sim *m, const struct part_list *l)
{
    struct request *r = calloc(1, sizeof *r);
    r->prompt.tokens = malloc((l->count + 1) * sizeof(uint32_t));
    memcpy(r->prompt.tokens, l->tokens, l->count * sizeof(uint32_t));
    r->prompt.token_count = l->count;
    r->prompt.spans = calloc(SPANS_MAX, sizeof *r->prompt.spans);
    int32_t offset = 0;
    for (uint32_t i = 0; i < l->image_count; i++) {
        uint32_t begin = l->images[i].begin, rows = l->images[i].end - begin;
        if (m->prefix) add_prefix_text(&r->prompt, begin);
        uint32_t n = r->prompt.span_count++;
        struct prompt_span *im = &r->prompt.spans[n];
        struct image p = r->images[n] = l->images[i].what;
        offset += (int32_t)fake_advance(rows) - (int32_t)rows;
        *im = span_of_image(begin, begin + rows, m->atomic ? SPAN_BIDIRECTIONAL : SPAN_CAUSAL);
        im->mrope_delta = offset;
        make_key(m, &p, im->key);
        memset(r->rgb[n], p.shade, sizeof r->rgb[n]);
        im->pixels = (struct image_u8){.width = p.width, .height = p.height, .rgb = r->rgb[n]};
    }
    if (m->prefix) make_prefix(m, &r->prompt);
    r->sampling = (struct sampling_params){
        .seed = rnd(1000), .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    r->sampling.top_k = r->sampling.seed % 20 == 0; /* such a one is drawn on the host */
    r->stop_id = rnd(VOCAB);
    bool longest = m->tight && rnd(6) == 0 && l->count < CONTEXT;
    r->seq = (struct sched_sequence){.prompt = &r->prompt,
                                     .sampling = &r->sampling,
                                     .tokens_max = longest ? CONTEXT - l->count : 1 + rnd(rnd(3) ? 40 : 100),
                                     .tokens_min = rnd(3) == 0 ? rnd(20) : 0,
                                     .ignore_eos = longest || rnd(3) == 0,
                                     .stop_ids = &r->stop_id,
                                     .stop_id_count = 1,
                                     .priority = rnd(5) == 0 ? (int64_t)rnd(3) - 1 : 0,
                                     .tenant = rnd(4),
                                     .no_cache_read = rnd(20) == 0,
                                     .no_cache_write = rnd(20) == 0,
                                     .deadline_us = rnd(15) == 0 ? m->now + rnd(60000) : 0,
                                     .user = r};
    if (rnd(8) == 0) r->seq.salt[rnd(32)] = (uint8_t)rnd(2);
    if (rnd(3) == 0) r->seq.adapter = &adapters[rnd(sizeof adapters / sizeof *adapters)];
    if (r->seq.adapter) r->seq.running = r->seq.adapter->users;
    fake_oracle(&m->e, &r->prompt, r->sampling.seed, r->seq.tokens_max, r->seq.tokens_min, r->stop_id,
                r->seq.ignore_eos, r->seq.adapter, &r->expect);
    for (uint32_t i = 0; i < r->prompt.span_count && m->late_pixels; i++) {
        if (!r->prompt.spans[i].image) continue;
        r->late[i] = rnd(m->late_pixels) == 0;
        if (r->late[i]) r->prompt.spans[i].pixels.rgb = NULL;
    }
    return r;
}

static struct request *random_request(struct sim *m)
{
    struct part_list *c = &m->conversations[rnd(CONVERSATIONS)];
    struct part_list l = *c;
    uint32_t kind = rnd(10);
    if (l.count > CONTEXT * 2 / 3 || kind < 2 || l.count == 0) l.count = l.image_count = 0;
    else if (kind == 2) cut(&l, rnd(l.count + 1));
    else if (kind == 3) edit(&l);
    bool same = kind == 4 && l.count > 0; /* the very same prompt again */
    if (!same) {
        if (rnd(3) == 0) add_image(m, &l, random_image());
        add_text(m, &l, 1 + rnd(rnd(2) ? 12 : 90));
        if (rnd(6) == 0) add_image(m, &l, random_image());
        if (rnd(2)) add_text(m, &l, 1 + rnd(6));
    }
    struct request *r = request_new(m, &l);
    *c = l;
    /* The next turn begins with the answer. */
    for (uint32_t i = 0; i < r->expect.count && c->count < CONTEXT && rnd(40); i++)
        c->tokens[c->count++] = r->expect.tokens[i];
    return r;
}

/* ---- what may be reused at most ---- */
static uint32_t salt_number(const struct request *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < 32; i++) n += r->seq.salt[i] * (i + 1u);
    return r->seq.adapter ? n + 1000u * r->seq.adapter->info.digest[0] : n;
}
static uint64_t item_of(const struct request *r, uint32_t p)
{
    if (p >= r->prompt.token_count) return r->expect.tokens[p - r->prompt.token_count];
    for (uint32_t i = 0; i < r->prompt.span_count; i++) {
        const struct prompt_span *im = &r->prompt.spans[i];
        uint64_t head;
        memcpy(&head, span_identity(im), 8);
        if (p >= im->begin && p < im->end) return fake_image_item(head, p - im->begin);
    }
    return r->prompt.tokens[p];
}
static void remember(struct sim *m, const struct request *r)
{
    if (r->seq.no_cache_write) return;
    if (m->log_count == LOG_MAX) {
        m->log_full = true;
        return;
    }
    struct past *past = &m->log[m->log_count++];
    past->count = r->prompt.token_count + r->expect.count;
    past->salt = salt_number(r);
    past->items = malloc(past->count * sizeof *past->items);
    for (uint32_t p = 0; p < past->count; p++) past->items[p] = item_of(r, p);
}
static void check_reuse(const struct sim *m, const struct request *r, const struct sched_cache_info *info)
{
    ASSERT_CMP(info->reused, <, r->prompt.token_count);
    ASSERT_CMP(info->reused, <=, info->equal);
    if (r->seq.no_cache_read) ASSERT_CMP(info->reused, ==, 0);
    if (m->prefix && info->reused) ASSERT_CMP(info->equal, >=, r->prompt.token_count);
    for (uint32_t i = 0; i < r->prompt.span_count && m->atomic && !m->prefix; i++)
        ASSERT(info->reused <= r->prompt.spans[i].begin || info->reused >= r->prompt.spans[i].end);
    if (m->log_full || info->equal == 0) return;
    uint32_t most = 0;
    for (uint32_t k = 0; k < m->log_count; k++) {
        uint32_t p = 0;
        if (m->log[k].salt != salt_number(r)) continue;
        while (p < m->log[k].count && p < r->prompt.token_count && m->log[k].items[p] == item_of(r, p)) p++;
        if (p > most) most = p;
    }
    ASSERT_CMP(info->equal, <=, most);
}

/* ---- events ---- */
static void answer_image(struct sim *m, const struct pending *p)
{
    if (p->r && rnd(60) == 0) {
        p->r->refused = true;
        sched_refuse_image(m->s, p->id, p->image, "the file is broken");
        return;
    }
    if (!p->r && rnd(2)) return; /* nobody waits any more */
    struct image_u8 px = {.width = p->what.width, .height = p->what.height, .rgb = malloc(12)};
    memset(px.rgb, p->what.shade, 12);
    if (p->r) p->r->asked[p->image] = false;
    sched_supply_image(m->s, p->id, p->image, &px);
}
static bool answer_images(struct sim *m)
{
    if (m->pending_count == 0 || rnd(3) == 0) return false;
    uint32_t at = rnd(m->pending_count);
    struct pending p = m->pending[at];
    m->pending[at] = m->pending[--m->pending_count];
    answer_image(m, &p);
    return true;
}

static void check_end(struct sim *m, struct request *r, const struct sched_event *ev)
{
    check_reuse(m, r, &ev->cache);
    switch (ev->end) {
    case END_CANCELLED: ASSERT(r->cancelled); break;
    case END_DEADLINE: ASSERT(r->seq.deadline_us && r->seq.deadline_us <= m->now); break;
    case END_ERROR: ASSERT(r->refused || m->faults); break;
    default: {
        enum seq_end expect = r->expect.stopped ? END_STOP_TOKEN : r->expect.eos ? END_STOP_EOS : END_LENGTH;
        if (m->lenient) break;
        ASSERT_CMP(ev->end, ==, expect);
        ASSERT_CMP(r->got, ==, r->expect.count);
        ASSERT_CMP(ev->generated, ==, r->got);
    }
    }
}

/* Checks every event against the oracle; an ended request leaves the set. True if there was any. */
static bool take_events(struct sim *m)
{
    struct sched_event ev;
    bool any = false;
    while (sched_poll(m->s, &ev)) {
        struct request *r = ev.user;
        uint32_t at = 0;
        while (at < m->live_count && m->live[at] != r) at++;
        ASSERT_CMP(at, <, m->live_count); /* no event after the end */
        any = true;
        if (ev.kind == EV_TOKEN) {
            ASSERT_CMP(ev.index, ==, r->got);
            bool right = r->got < r->expect.count && ev.token.id == r->expect.tokens[r->got];
            ASSERT(right || m->lenient);
            if (!right && !r->wrong) m->t->noticed++;
            r->wrong |= !right;
            r->got++;
            m->t->tokens++;
        } else if (ev.kind == EV_IMAGE) {
            ASSERT_CMP(ev.index, <, r->prompt.span_count);
            ASSERT(r->late[ev.index] && !r->asked[ev.index]);
            ASSERT_CMP(m->pending_count, <, LIVE_MAX * IMAGES_MAX);
            r->asked[ev.index] = true;
            m->t->asked++;
            m->pending[m->pending_count++] =
                (struct pending){.r = r, .id = r->id, .image = ev.index, .what = r->images[ev.index]};
        } else {
            ASSERT(ev.kind == EV_END);
            m->t->ended[ev.end]++;
            check_end(m, r, &ev);
            for (uint32_t i = 0; i < m->pending_count; i++)
                if (m->pending[i].r == r) m->pending[i].r = NULL;
            m->live[at] = m->live[--m->live_count];
            request_free(r);
        }
    }
    return any;
}

/* Notes where a preempted sequence goes on from cached KV. */
static void watch_run(const struct engine_chunk *chunk)
{
    struct request *r =
        (struct request *)(void *)((char *)(uintptr_t)chunk->sampling - offsetof(struct request, sampling));
    uint32_t end = chunk->position + chunk->count, block_offset = chunk->tables[0][chunk->position / BT];
    bool elsewhere =
        chunk->position % BT && block_offset != r->last_unit; /* its partly filled block is a copy now */
    if (r->next_position && chunk->position > 0 && !chunk_drafts &&
        (chunk->position != r->next_position || elsewhere))
        run_totals->resumed++;
    r->next_position = end;
    r->last_unit = chunk->tables[0][(end - 1) / BT];
}

/* ---- draft tokens ---- */

/* Some of what follows, now and then something else. */
static uint32_t propose_drafts(void *arg, void *user, const uint32_t *tokens, uint32_t count, uint32_t most,
                               uint32_t *out)
{
    const struct sim *m = arg;
    const struct request *r = user;
    uint32_t at = count - r->prompt.token_count, n = rnd(most + 1);
    (void)tokens;
    ASSERT(most > 0 && most <= m->drafts);
    for (uint32_t i = 0; i < n; i++) {
        bool known = at + i < r->expect.count && rnd(100) < m->draft_accepted;
        out[i] = known ? r->expect.tokens[at + i] : rnd(VOCAB + 2); /* or an id that doesn't exist */
    }
    return n;
}

/* ---- the machine ---- */

/* Just the slabs that one sequence of the whole context needs, were its blocks packed. */
static uint64_t least_arena(const struct engine_caps *c)
{
    uint32_t largest = 0, slabs = 0, chunk = c->span_tokens_max > BT ? c->span_tokens_max : BT;
    for (uint32_t g = 0; g < c->group_count; g++)
        largest = c->groups[g].block_grains > largest ? c->groups[g].block_grains : largest;
    for (uint32_t g = 0; g < c->group_count; g++) {
        uint32_t all = CONTEXT / BT, some = (c->groups[g].window + chunk + BT - 1) / BT + 1,
                 per_slab = largest / c->groups[g].block_grains;
        uint32_t blocks = c->groups[g].recurrent ? 2 : c->groups[g].window && some < all ? some : all;
        slabs += (blocks + per_slab - 1) / per_slab;
    }
    return (uint64_t)slabs * largest;
}

static void random_groups(struct engine_caps *c, bool tight, bool recurrent)
{
    static const struct {
        uint32_t count, sliding; /* bit g: group g has a window */
    } kinds[] = {{1, 0}, {2, 2}, {2, 2}, {2, 2}, {3, 6}, {2, 1}, {1, 1}, {3, 5}};
    uint32_t k = rnd(8);
    c->group_count = kinds[k].count;
    for (uint32_t g = 0; g < c->group_count; g++) {
        uint32_t window = 0;
        if (kinds[k].sliding >> g & 1)
            window = (c->group_count == 1 ? 2 : 1) + rnd(tight ? 250 : rnd(4) ? 40 : 500);
        c->groups[g] = (struct engine_kv_group){.layers = 1,
                                                .block_grains = 1 + rnd(tight    ? 9
                                                                        : window ? 7
                                                                                 : 3),
                                                .window = window};
    }
    if (!recurrent) return;
    /* As many full and sliding blocks as a state takes memory, about, or far fewer. */
    c->groups[c->group_count++] = (struct engine_kv_group){
        .recurrent = true, .layers = 1, .block_grains = 1 + (uint32_t)(fake_mix(rng_state) % 12)};
}

static void sim_open(struct sim *m, uint64_t seed, bool tight, const struct mutant *mutant, struct totals *t)
{
    rng_state = fake_mix(seed);
    memset(m, 0, sizeof *m);
    m->t = run_totals = t;
    m->tight = tight;
    m->mutant = *mutant;
    m->lenient = mutant->fake || mutant->key_ignores_dimensions || mutant->prefix_key_ignores_end;
    m->atomic = rnd(2);
    m->prefix = (rnd(6) == 0 && !tight) || mutant->prefix_key_ignores_end;
    m->small_alphabet = rnd(3) == 0;
    m->late_pixels = rnd(3);
    m->live_max = 2 + rnd(40);
    m->now = 1;
    struct engine *e = &m->e;
    e->vocab = VOCAB;
    e->eos = EOS;
    e->random = seed;
    e->faults = mutant->fake;
    e->lenient = m->lenient;
    e->on_chunk = watch_run;
    struct engine_caps *c = &e->caps;
    *c = (struct engine_caps){
        .block_tokens = BT, .context_max = CONTEXT, .images = true, .span_tokens_max = 1 + rnd(20)};
    m->rows_max = c->span_tokens_max;
    if (m->prefix) c->span_tokens_max = CONTEXT;
    random_groups(c, tight, mutant->fake & FAKE_STATE_OF_DRAFTS || fake_mix(seed ^ 37) % 3 == 0);
    c->sequences_max = 1 + rnd(12);
    c->batch_tokens_max = c->span_tokens_max + (rnd(2) ? c->sequences_max + rnd(60) : 0);
    c->arena_grains = tight ? least_arena(c) : 80 + rnd(rnd(2) ? 120 : rnd(2) ? 600 : 4000);
    e->takes.fixed = rnd(500);
    e->takes.row = rnd(200);
    e->takes.sampled = rnd(100);
    e->takes.pair = rnd(100) * 0.01;
    e->takes.layer = rnd(3000);
    e->takes.noise = rnd(80) * 0.01;
    e->overlaps = fake_mix(seed ^ 91) % 4;
    m->drafts = rnd(2) ? 1 + rnd(8) : 0;
    m->draft_accepted = e->draft_right = rnd(101);
    c->drafts = m->drafts && rnd(2);
    fake_open(e, true);
    chunk_drafts = m->drafts > 0;
    m->faults = !m->lenient && rnd(8) == 0;
    e->step_fails_every = m->faults ? 200 : 0;
    e->drafts_refused_every = seed % 5 ? 0 : 3;
    e->feature_fails_every = m->faults ? 50 : 0;
    m->index = block_index_new(1 + (uint32_t)(seed % 20), 1);
    struct kv_event_sink sink = block_index_sink(m->index, 0);
    if (m->lenient) sink.block_tokens = 0; /* wrong keys make wrong events */
    struct sched_options opt = {.event_sink = sink,
                                .queue_max = 4 + rnd(40),
                                .prefill_chunk = rnd(2) ? 1 + rnd(30) : 0,
                                .step_us = rnd(2) ? 1 + rnd(rnd(2) ? 300 : 20000) : 0,
                                .clock = fake_clock,
                                .clock_arg = e,
                                .encode_layers = rnd(4),
                                .no_prefix_cache = !m->lenient && rnd(12) == 0,
                                .features_bytes = (1 + rnd(8)) * (uint64_t)FAKE_FEATURE_BYTES,
                                .hash_seed = seed,
                                .propose = m->drafts && !c->drafts ? propose_drafts : NULL,
                                .propose_arg = m,
                                .draft_always = !c->drafts || rnd(2),
                                .draft_max = m->drafts};
    struct err err = {{0}};
    enum status st = sched_create(e, &opt, &m->s, &err);
    if (st) fprintf(stderr, "%s\n", err.msg);
    ASSERT(st == ST_OK);
}

static void submit(struct sim *m, struct request *r)
{
    struct err err = {{0}};
    remember(m, r);
    enum status st = sched_submit(m->s, &r->seq, &r->id, &err);
    if (st) {
        ASSERT(st == ST_AGAIN || st == ST_TOO_LARGE);
        m->t->refused++;
        request_free(r);
        return;
    }
    m->live[m->live_count++] = r;
}

static void disturb(struct sim *m)
{
    if (m->live_count > 0 && rnd(m->tight ? 500 : 120) == 0) {
        struct request *r = m->live[rnd(m->live_count)];
        r->cancelled = true;
        sched_cancel(m->s, r->id);
    }
    if (rnd(300) == 0) {
        sched_reset_prefix_cache(m->s);
        m->t->resets++;
    }
    if (rnd(300) == 0) sched_reset_features(m->s);
}

static void check_returned(struct sim *m, bool reset)
{
    struct sched_stats st;
    if (reset) {
        sched_reset_prefix_cache(m->s);
        sched_reset_features(m->s);
        sched_step(m->s, m->now);
    }
    sched_stats(m->s, &st);
    ASSERT_CMP(st.running + st.waiting, ==, 0);
    uint64_t cached = 0;
    for (uint32_t g = 0; g < st.group_count; g++) {
        ASSERT_CMP(st.groups[g].blocks_live, ==, 0);
        ASSERT_CMP(st.groups[g].blocks_cached, ==, st.groups[g].blocks_used);
        cached += st.groups[g].blocks_cached * m->e.caps.groups[g].block_grains;
    }
    ASSERT_CMP(st.used_grains, ==, cached);
    ASSERT_CMP(st.feature_bytes, ==, (uint64_t)m->e.live_features * FAKE_FEATURE_BYTES);
    if (reset) ASSERT_CMP(cached + st.feature_bytes, ==, 0);
}

static void sim_close(struct sim *m)
{
    struct sched_stats st;
    sched_stats(m->s, &st);
    struct totals *t = m->t;
    t->preemptions += st.preemptions;
    t->hits += st.cache_hits;
    t->hit_tokens += st.cache_hit_tokens;
    t->copies += st.cache_copied_blocks;
    t->evictions += st.cache_evictions;
    t->waits += st.cache_waits;
    t->features_shared += st.feature_hits;
    t->feature_evictions += st.feature_evictions;
    if (m->prefix) t->prefix_hits += st.cache_hits;
    const uint32_t last = st.group_count - 1;
    if (st.groups[last].recurrent) {
        t->state_hits += st.cache_hits;
        t->state_stops += st.cache_stops[CACHE_STOP_STATE];
        t->states_evicted += st.groups[last].evicted_blocks;
    }
    t->proposed += st.proposed_tokens;
    t->accepted += st.accepted_tokens;
    t->noticed += m->e.noticed;
    t->ahead += m->e.ahead;
    t->seeds++;
    for (int i = 0; i < 4 && !m->live_count; i++) ASSERT_CMP(atomic_load(&adapter_users[i]), ==, 0);
    sched_destroy(m->s);
    fake_close(&m->e);
    block_index_free(m->index);
    for (uint32_t i = 0; i < m->log_count; i++) free(m->log[i].items);
}

static void simulate(uint64_t seed, uint32_t requests, bool tight, const struct mutant *mutant,
                     struct totals *t)
{
    static struct sim world;
    struct sim *m = &world;
    struct sched_stats st = {0};
    sim_open(m, seed, tight, mutant, t);
    uint32_t sent = 0, idle = 0, preempting = 0;
    while (sent < requests || m->live_count > 0 || m->pending_count > 0) {
        while (sent < requests && m->live_count < m->live_max && rnd(3) == 0) {
            static struct part_list before[CONVERSATIONS];
            memcpy(before, m->conversations, sizeof before);
            uint64_t again = rng_state;
            struct request *r = random_request(m);
            submit(m, r);
            sent++;
            if (rnd(8)) continue;
            /* The same request a second time at once. */
            uint64_t later = rng_state;
            memcpy(m->conversations, before, sizeof before);
            rng_state = again;
            submit(m, random_request(m));
            rng_state = later;
            sent++;
        }
        disturb(m);
        bool worked = answer_images(m);
        worked |= sched_step(m->s, m->now);
        t->steps++;
        if (!m->lenient) sched_check(m->s);
        worked |= take_events(m);
        uint64_t before = st.preemptions;
        sched_stats(m->s, &st);
        preempting = st.preemptions > before ? preempting + 1 : 0;
        if (preempting > t->preempting) t->preempting = preempting;
        for (uint32_t i = 0; i < m->live_count; i++) {
            const struct request *r = m->live[i];
            ASSERT(!r->cancelled); /* within the step */
            ASSERT(!r->seq.deadline_us || r->seq.deadline_us > m->now);
        }
        m->now += 1 + rnd(1000);
        idle = worked || m->live_count == 0 ? 0 : idle + 1;
        ASSERT_CMP(idle, <, 200); /* somebody always makes progress */
    }
    check_returned(m, false);
    if (rnd(2)) check_returned(m, true);
    sim_close(m);
}

/* ---- tests ---- */
static uint64_t first_seed = 1, steps_wanted;
static uint32_t seed_count, request_count;
static uint64_t current_seed;
static const struct mutant sound;

static void print_seed(int sig)
{
    fprintf(stderr, "failing seed: --seed %llu --seeds 1\n", (unsigned long long)current_seed);
    signal(sig, SIG_DFL);
    raise(sig);
}
static unsigned long long ull(uint64_t v)
{
    return v;
}
static void print_totals(const struct totals *t)
{
    printf("%llu seeds, %llu steps, %llu tokens; ended eos %llu, stop %llu, length %llu, cancelled %llu, "
           "error %llu, deadline %llu; refused %llu\n",
           ull(t->seeds), ull(t->steps), ull(t->tokens), ull(t->ended[END_STOP_EOS]),
           ull(t->ended[END_STOP_TOKEN]), ull(t->ended[END_LENGTH]), ull(t->ended[END_CANCELLED]),
           ull(t->ended[END_ERROR]), ull(t->ended[END_DEADLINE]), ull(t->refused));
    printf("with recurrent layers: %llu hits, %llu ended for want of a state, %llu states evicted\n",
           ull(t->state_hits), ull(t->state_stops), ull(t->states_evicted));
    printf("%llu hits of %llu tokens, %llu blocks copied, %llu nodes evicted, %llu preemptions, %llu of them "
           "resumed through the cache, %llu waits; "
           "images: %llu asked for, %llu shared, %llu evicted; %llu resets; %llu draft tokens, %llu right; "
           "%llu steps ahead\n",
           ull(t->hits), ull(t->hit_tokens), ull(t->copies), ull(t->evictions), ull(t->preemptions),
           ull(t->resumed), ull(t->waits), ull(t->asked), ull(t->features_shared), ull(t->feature_evictions),
           ull(t->resets), ull(t->proposed), ull(t->accepted), ull(t->ahead));
}

static void test_random_load(void **state)
{
    (void)state;
    struct totals t = {0};
    for (uint32_t i = 0; i < seed_count || t.steps < steps_wanted; i++) {
        current_seed = first_seed + i;
        simulate(first_seed + i, request_count, false, &sound, &t);
    }
    print_totals(&t);
    if (seed_count < 20) return;             /* one seed, looked at */
    for (int i = 0; i < END_CONSTRAINT; i++) /* constraints: test_fuzz_cache */
        assert_true(t.ended[i] > 0);
    assert_true(t.preemptions > 0 && t.refused > 0 && t.resets > 0);
    if (seed_count >= 60) assert_true(t.resumed > 0);
    assert_true(t.hits > 0 && t.copies > 0 && t.evictions > 0 && t.waits > 0);
    assert_true(t.asked > 0 && t.features_shared > 0 && t.feature_evictions > 0);
    assert_true(t.accepted > 0 && t.proposed > t.accepted && t.prefix_hits > 0);
    assert_true(t.state_hits > 0 && t.state_stops > 0 && t.states_evicted > 0);
}

/* ---- the same requests, one at a time, with and without speculative decoding ---- */

enum twin { TWIN_PLAIN = 0, TWIN_DRAFTS, TWIN_IN_TURN, TWIN_OVERLAP };

static void open_twin(struct sim *m, enum twin twin, uint32_t kind, struct totals *t)
{
    bool drafts = twin == TWIN_DRAFTS;
    sim_open(m, 7000 + current_seed, kind % 2, &sound, t);
    sched_destroy(m->s);
    m->e.overlaps = twin == TWIN_OVERLAP;
    /* Where states are saved depends on measured times. */
    if (twin >= TWIN_IN_TURN) memset(&m->e.takes, 0, sizeof m->e.takes); /* on its clock */
    else if (m->e.paged < m->e.caps.group_count) m->e.caps.group_count--;
    /* Blocks of one size: how blocks of different sizes lie in their slabs depends on when they came. */
    for (uint32_t g = 0; g < m->e.caps.group_count; g++) m->e.caps.groups[g].block_grains = 1;
    m->e.caps.arena_grains = kind % 2 ? least_arena(&m->e.caps) : 80;
    m->drafts = 1 + (uint32_t)current_seed % 8;
    m->draft_accepted = m->e.draft_right = (uint32_t)(current_seed * 37 % 101);
    m->late_pixels = 0;
    m->e.step_fails_every = m->e.feature_fails_every = 0;
    struct sched_options opt = {.hash_seed = 5,
                                .clock = twin >= TWIN_IN_TURN ? fake_clock : NULL,
                                .clock_arg = &m->e,
                                .propose = drafts && !m->e.caps.drafts ? propose_drafts : NULL,
                                .propose_arg = m,
                                .draft_always = true,
                                .draft_max = drafts ? m->drafts : 0};
    struct err err;
    ASSERT(sched_create(&m->e, &opt, &m->s, &err) == ST_OK);
}

static void step_twin(struct sim *m, struct sched_stats *st)
{
    m->t->steps++;
    sched_step(m->s, ++m->now);
    if (m->t->steps % 16 == 0) sched_check(m->s);
    take_events(m);
    sched_stats(m->s, st);
}

static void compare_twins(const struct sched_stats *a, const struct sched_stats *b)
{
    ASSERT_CMP(a->generated_tokens, ==, b->generated_tokens);
    ASSERT_CMP(a->used_grains, ==, b->used_grains);
    ASSERT_CMP(a->cache_nodes, ==, b->cache_nodes);
    ASSERT_CMP(a->cache_evictions, ==, b->cache_evictions);
    ASSERT_CMP(a->cache_hit_tokens, ==, b->cache_hit_tokens);
    ASSERT_CMP(a->cache_copied_blocks, ==, b->cache_copied_blocks);
    for (uint32_t g = 0; g < a->group_count; g++) {
        ASSERT_CMP(a->groups[g].blocks_live, ==, b->groups[g].blocks_live);
        ASSERT_CMP(a->groups[g].blocks_cached, ==, b->groups[g].blocks_cached);
        ASSERT_CMP(a->groups[g].evicted_blocks, ==, b->groups[g].evicted_blocks);
    }
}

/* Wherever both have generated the same they hold the same, node for node and block for block, and have
 * reused and evicted the same. */
static void test_refused_drafts_leave_no_trace(void **state)
{
    (void)state;
    static struct sim worlds[2];
    struct totals t[2];
    memset(t, 0, sizeof t);
    for (uint32_t i = 0; i < seed_count; i++) {
        current_seed = first_seed + i;
        for (int w = 0; w < 2; w++) open_twin(&worlds[w], w ? TWIN_DRAFTS : TWIN_PLAIN, i, &t[w]);
        uint64_t requests = current_seed, after = 0, drafts = current_seed;
        for (uint32_t n = 0; n < request_count; n++) {
            for (int w = 0; w < 2; w++) {
                rng_state = requests;
                struct request *r = random_request(&worlds[w]);
                after = rng_state;
                r->seq.deadline_us = 0;
                submit(&worlds[w], r);
            }
            requests = after;
            rng_state = drafts;
            while (worlds[1].live_count > 0) {
                struct sched_stats st[2];
                step_twin(&worlds[1], &st[1]);
                do step_twin(&worlds[0], &st[0]);
                while (st[0].generated_tokens < st[1].generated_tokens);
                compare_twins(&st[0], &st[1]);
                ASSERT_CMP(worlds[0].live_count, ==, worlds[1].live_count);
            }
            drafts = rng_state;
        }
        for (int w = 0; w < 2; w++) sim_close(&worlds[w]);
    }
    print_totals(&t[1]);
    if (seed_count >= 20) assert_true(t[1].accepted > 0 && t[1].steps < t[0].steps && t[1].evictions > 0);
}

static bool evicted(const struct sched_stats *st)
{
    uint64_t blocks = st->cache_evictions;
    for (uint32_t g = 0; g < st->group_count; g++) blocks += st->groups[g].evicted_blocks;
    return blocks > 0;
}

/* The same requests with overlap and without, one at a time: when one has ended, by its token too, both hold
 * the same and have reused the same. Until the arena is full: then a row for nobody may take a block that the
 * cache gives up. */
static void test_overlap_leaves_no_trace(void **state)
{
    (void)state;
    static struct sim worlds[2];
    struct totals t[2];
    uint32_t compared = 0;
    memset(t, 0, sizeof t);
    for (uint32_t i = 0; i < seed_count; i++) {
        current_seed = first_seed + i;
        for (int w = 0; w < 2; w++) open_twin(&worlds[w], w ? TWIN_OVERLAP : TWIN_IN_TURN, 2 * i, &t[w]);
        uint64_t requests = current_seed, after = 0;
        for (uint32_t n = 0; n < request_count; n++) {
            struct sched_stats st[2];
            for (int w = 0; w < 2; w++) {
                rng_state = requests;
                struct request *r = random_request(&worlds[w]);
                after = rng_state;
                r->seq.deadline_us = 0;
                submit(&worlds[w], r);
                while (worlds[w].live_count > 0) step_twin(&worlds[w], &st[w]);
            }
            requests = after;
            if (evicted(&st[0]) || evicted(&st[1])) break;
            compare_twins(&st[0], &st[1]);
            compared++;
            /* A row for nobody: after an end by its token alone. */
            ASSERT_CMP(worlds[1].e.rows - worlds[0].e.rows, <=,
                       t[1].ended[END_STOP_EOS] + t[1].ended[END_STOP_TOKEN]);
        }
        for (int w = 0; w < 2; w++) sim_close(&worlds[w]);
    }
    print_totals(&t[1]);
    assert_true(compared > 2 * seed_count);
    assert_true(t[1].ahead > 0 && !t[0].ahead && t[1].ended[END_STOP_EOS] > 0);
}

/* Blocks of one sequence come to lie scattered over slabs, and then the arena has no free slab left though it
 * has room: nobody may wait for ever. */
static void test_barely_one_context(void **state)
{
    (void)state;
    struct totals t = {0};
    for (uint32_t i = 0; i < 3 * seed_count; i++) {
        current_seed = first_seed + i;
        simulate(first_seed + i, request_count / 5 + 1, true, &sound, &t);
    }
    print_totals(&t);
    if (seed_count >= 20) assert_true(t.ended[END_LENGTH] > 0 && t.preemptions > 0 && t.hits > 0);
}

/* The victim of a full arena waits until somebody releases blocks: it isn't admitted and preempted in turn
 * after turn. */
static void test_victim_waits(void **state)
{
    (void)state;
    struct totals t = {0};
    simulate(21, 61, true, &sound, &t);
    printf("%u turns with a preemption in a row, %llu preemptions\n", t.preempting, ull(t.preemptions));
    assert_in_range(t.preempting, 1, 8);
}

/* Known bugs on the side of the engine or of the one who builds keys: the oracle must notice each. Those of
 * the scheduler are in tests/mutants. */
static void expect_noticed(const struct mutant *mutant)
{
    struct totals t = {0};
    for (uint32_t i = 0; i < 12 && t.noticed == 0; i++) {
        current_seed = 100 + i;
        simulate(100 + i, 200, false, mutant, &t);
    }
    if (t.noticed == 0) printf("nobody noticed: engine %u\n", mutant->fake);
    assert_true(t.noticed > 0);
}
static void test_T7_mutant_key_ignores_dimensions(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.key_ignores_dimensions = true});
}
/* As if a prompt that goes on differently could share what the common beginning has. */
static void test_mutant_prefix_key_ignores_end(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.prefix_key_ignores_end = true});
}
static void test_mutant_window_off_by_one(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.fake = FAKE_WINDOW_MORE});
}
static void test_mutant_state_of_rejected_drafts(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.fake = FAKE_STATE_OF_DRAFTS});
}
static void test_mutant_stale_partial_block(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.fake = FAKE_NO_COPY});
}
static void test_T22_mutant_position_from_token_count(void **state)
{
    (void)state;
    expect_noticed(&(struct mutant){.fake = FAKE_POSITION_IS_COUNT});
}

/* ---- named cases on a small machine of its own ---- */
struct desk {
    struct engine e;
    struct scheduler *s;
    uint64_t now;
    uint32_t ends;
    uint64_t order[64]; /* tenants in the order of their ends */
    uint32_t asked;
    struct sched_cache_info cache; /* of the last end */
};
static void desk_open(struct desk *d, uint32_t window, uint32_t context, uint32_t sequences)
{
    memset(d, 0, sizeof *d);
    d->e.vocab = VOCAB;
    d->e.eos = EOS;
    d->e.caps = (struct engine_caps){.group_count = 2,
                                     .block_tokens = 16,
                                     .context_max = context,
                                     .images = true,
                                     .span_tokens_max = 32,
                                     .sequences_max = sequences,
                                     .batch_tokens_max = 512,
                                     .arena_grains = 40ull * context / 16 + 400};
    d->e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    d->e.caps.groups[1] = (struct engine_kv_group){.layers = 5, .block_grains = 5, .window = window};
    fake_open(&d->e, true);
    struct sched_options opt = {.hash_seed = 1};
    struct err err;
    ASSERT(sched_create(&d->e, &opt, &d->s, &err) == ST_OK);
}
static void desk_close(struct desk *d)
{
    sched_destroy(d->s);
    fake_close(&d->e);
}
static void desk_submit(struct desk *d, struct sched_sequence *q)
{
    struct err err;
    struct seq_id id;
    ASSERT(sched_submit(d->s, q, &id, &err) == ST_OK);
}
static void desk_run(struct desk *d)
{
    struct sched_event ev;
    struct sched_stats st;
    do {
        sched_step(d->s, ++d->now);
        sched_check(d->s);
        while (sched_poll(d->s, &ev)) {
            if (ev.kind == EV_IMAGE) d->asked++;
            if (ev.kind != EV_END) continue;
            ASSERT(ev.end == END_LENGTH);
            d->order[d->ends++ % 64] = ((const struct sched_sequence *)ev.user)->tenant;
            d->cache = ev.cache;
        }
        sched_stats(d->s, &st);
    } while (st.running + st.waiting > 0 && d->asked == 0);
}
static const struct sampling_params plain = {
    .seed = 1, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
static void sequence_of(struct sched_sequence *q, const struct prompt *p, uint32_t tokens)
{
    *q = (struct sched_sequence){
        .prompt = p, .sampling = &plain, .tokens_max = tokens, .ignore_eos = true, .user = q};
}
static void fill_tokens(uint32_t *t, uint32_t count, uint32_t salt)
{
    for (uint32_t i = 0; i < count; i++) t[i] = (uint32_t)(fake_mix(i + 1000003ull * salt) % VOCAB);
}
static uint64_t prompt_tokens(const struct desk *d)
{
    struct sched_stats st;
    sched_stats(d->s, &st);
    return st.prompt_tokens;
}

static void test_T31_identical_prompt_computes_one_token(void **state)
{
    (void)state;
    enum { N = 10000 };
    static const uint32_t windows[] = {512, 1024, 1, 20000};
    static uint32_t tokens[N];
    fill_tokens(tokens, N, 1);
    for (uint32_t i = 0; i < 4; i++) {
        struct desk d;
        desk_open(&d, windows[i], N + 10, 4);
        struct prompt p = {.tokens = tokens, .token_count = N};
        struct sched_sequence q;
        sequence_of(&q, &p, 3);
        desk_submit(&d, &q);
        desk_run(&d);
        uint64_t first = prompt_tokens(&d);
        desk_submit(&d, &q);
        desk_run(&d);
        assert_int_equal(first, N);
        assert_int_equal(prompt_tokens(&d) - first, 1);
        assert_int_equal(d.cache.reused, N - 1);
        desk_close(&d);
    }
}

/* Equal prompts in flight: the later ones wait for the first one's blocks. */
static void test_equal_prompts_compute_once(void **state)
{
    (void)state;
    enum { N = 3000, TIMES = 5 };
    static uint32_t tokens[N];
    fill_tokens(tokens, N, 2);
    struct desk d;
    desk_open(&d, 512, N + 50, 8);
    struct prompt p = {.tokens = tokens, .token_count = N};
    struct sched_sequence q[TIMES];
    for (int i = 0; i < TIMES; i++) {
        sequence_of(&q[i], &p, 20);
        desk_submit(&d, &q[i]);
    }
    desk_run(&d);
    struct sched_stats st;
    sched_stats(d.s, &st);
    assert_true(st.cache_waits >= TIMES - 1);
    assert_true(st.prompt_tokens <= N + (TIMES - 1) * 16);
    desk_close(&d);
}

static struct prompt image_prompt(uint32_t *tokens, struct prompt_span *images, uint8_t *rgb, uint32_t count,
                                  bool decoded)
{
    struct prompt p = {.tokens = tokens, .spans = images, .span_count = count};
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < 5; k++) tokens[p.token_count++] = 50 + k;
        images[i] = span_of_image(p.token_count, p.token_count + 32, SPAN_BIDIRECTIONAL);
        memset(images[i].key, (int)i + 1, 32);
        rgb[i] = (uint8_t)i;
        images[i].pixels = (struct image_u8){.width = 1, .height = 1, .rgb = decoded ? &rgb[i] : NULL};
        for (uint32_t k = 0; k < 32; k++) tokens[p.token_count++] = SOFT;
    }
    for (uint32_t k = 0; k < 9; k++) tokens[p.token_count++] = 70 + k;
    return p;
}
/* A prompt whose images are all cached needs neither pixels nor the tower. */
static void test_full_hit_never_asks_for_pixels(void **state)
{
    (void)state;
    uint32_t tokens[400];
    struct prompt_span images[8];
    uint8_t rgb[8];
    struct desk d;
    desk_open(&d, 64, 500, 4);
    struct prompt p = image_prompt(tokens, images, rgb, 8, true);
    struct sched_sequence q;
    sequence_of(&q, &p, 3);
    desk_submit(&d, &q);
    desk_run(&d);
    assert_int_equal(d.e.encodes, 8);
    sched_reset_features(d.s);
    p = image_prompt(tokens, images, rgb, 8, false);
    desk_submit(&d, &q);
    desk_run(&d);
    assert_int_equal(d.asked, 0);
    assert_int_equal(d.e.encodes, 8);
    assert_int_equal(d.cache.reused, p.token_count - 1);
    desk_close(&d);
}

/* Another salt finds neither KV nor features. */
static void test_salt_isolates(void **state)
{
    (void)state;
    uint32_t tokens[400];
    struct prompt_span images[2];
    uint8_t rgb[2];
    struct desk d;
    desk_open(&d, 64, 500, 4);
    struct prompt p = image_prompt(tokens, images, rgb, 2, true);
    for (uint32_t round = 0; round < 3; round++) {
        struct sched_sequence q;
        sequence_of(&q, &p, 3);
        q.salt[31] = (uint8_t)round;
        desk_submit(&d, &q);
        desk_run(&d);
        assert_int_equal(d.cache.reused, 0);
        assert_int_equal(d.cache.stop, CACHE_STOP_SALT);
        assert_int_equal(d.e.encodes, 2 * (round + 1));
    }
    desk_close(&d);
}

/* A tenant with a long queue doesn't hold up one with two requests. */
static void test_tenants_share_evenly(void **state)
{
    (void)state;
    enum { CROWD = 20, N = 100 };
    static uint32_t tokens[CROWD + 2][N];
    struct prompt p[CROWD + 2];
    struct sched_sequence q[CROWD + 2];
    struct desk d;
    desk_open(&d, 64, 500, 1);
    for (uint32_t i = 0; i < CROWD + 2; i++) {
        fill_tokens(tokens[i], N, 10 + i);
        p[i] = (struct prompt){.tokens = tokens[i], .token_count = N};
        sequence_of(&q[i], &p[i], 3);
        q[i].tenant = i < CROWD ? 1 : 2;
        desk_submit(&d, &q[i]);
    }
    desk_run(&d);
    assert_int_equal(d.ends, CROWD + 2);
    uint32_t last = 0;
    for (uint32_t i = 0; i < d.ends; i++)
        if (d.order[i] == 2) last = i;
    assert_true(last <= 4); /* one of each in turn, and the one that had begun */
    desk_close(&d);
}

/* ---- shares ---- */

/* Tenant 1 and some others always have more to do than there are places; light tenants send a short request
 * now and then. */
enum { GUESTS = 400, GUEST_TOKENS = 8, TURN = 32 };
struct guest {
    struct prompt p;
    struct sampling_params sampling;
    struct sched_sequence q;
    uint32_t tokens[CONTEXT];
    uint64_t came, began, before; /* steps; before: what others who are light may take first */
    bool light, below, live;      /* below: its tenant has had less than its share */
};
struct hall {
    struct engine e;
    struct scheduler *s;
    struct guest *guests; /* [GUESTS] */
    uint32_t count, live, places;
    uint64_t steps, useful; /* tokens that have to be computed */
    uint64_t served[51];    /* tokens by tenant */
};
static struct hall *hall;
static void hall_run(const struct engine_chunk *r)
{
    struct guest *g =
        (struct guest *)(void *)((char *)(uintptr_t)r->sampling - offsetof(struct guest, sampling));
    if (!g->began) g->began = hall->steps;
    hall->served[g->q.tenant] += r->count;
}
static void hall_open(struct hall *h, uint32_t places, bool small)
{
    memset(h, 0, sizeof *h);
    hall = h;
    h->places = places;
    h->guests = calloc(GUESTS, sizeof *h->guests);
    h->e.vocab = VOCAB;
    h->e.eos = EOS;
    h->e.on_chunk = hall_run;
    h->e.takes.fixed = 20000;
    h->e.takes.row = 1000;
    h->e.caps = (struct engine_caps){.group_count = 2,
                                     .block_tokens = 16,
                                     .context_max = CONTEXT,
                                     .span_tokens_max = 16,
                                     .sequences_max = places,
                                     .batch_tokens_max = 512 + places};
    h->e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    h->e.caps.groups[1] = (struct engine_kv_group){.layers = 1, .block_grains = 1, .window = 64};
    /* A block of each group per 16 tokens; small: for the half of what runs. */
    h->e.caps.arena_grains = small ? CONTEXT / 16 * (places + 4) : CONTEXT / 8 * (3ull * places + 60);
    fake_open(&h->e, true);
    struct sched_options opt = {.hash_seed = 1};
    struct err err;
    ASSERT(sched_create(&h->e, &opt, &h->s, &err) == ST_OK);
}
static void hall_close(struct hall *h)
{
    sched_destroy(h->s);
    fake_close(&h->e);
    free(h->guests);
}
static struct guest *hall_send(struct hall *h, uint64_t tenant, uint32_t prompt, uint32_t answer, bool light)
{
    struct guest *g = &h->guests[h->count++];
    ASSERT_CMP(h->count, <=, GUESTS);
    fill_tokens(g->tokens, prompt, 5000 + h->count);
    g->p = (struct prompt){.tokens = g->tokens, .token_count = prompt};
    g->sampling = plain;
    g->q = (struct sched_sequence){.prompt = &g->p,
                                   .sampling = &g->sampling,
                                   .tokens_max = answer,
                                   .ignore_eos = true,
                                   .tenant = tenant,
                                   .user = g};
    g->came = h->steps;
    g->light = light;
    g->live = true;
    struct err err;
    struct seq_id id;
    ASSERT(sched_submit(h->s, &g->q, &id, &err) == ST_OK);
    h->live++;
    h->useful += prompt + answer - 1;
    return g;
}
static void hall_step(struct hall *h)
{
    struct sched_event ev;
    h->steps++;
    sched_step(h->s, h->steps);
    if (h->steps % 256 == 0) sched_check(h->s);
    while (sched_poll(h->s, &ev)) {
        if (ev.kind != EV_END) continue;
        ASSERT(ev.end == END_LENGTH);
        ((struct guest *)ev.user)->live = false;
        h->live--;
    }
}
/* What the light ones that wait or run take at most before another one: each a step for its prompt, one per
 * token, and one in which it gives its place. */
static uint64_t hall_light_work(const struct hall *h)
{
    uint64_t steps = 0;
    for (uint32_t i = 0; i < h->count; i++)
        if (h->guests[i].live && h->guests[i].light) steps += h->guests[i].q.tokens_max + 2;
    return steps;
}

/* `heavy` tenants want everything; of `tenants` the others are light. one: all are the same tenant. */
static void hall_fill(struct hall *h, uint32_t tenants, uint32_t heavy, uint32_t light_every, bool one)
{
    uint32_t next = heavy;
    for (uint32_t i = 0; i < 2 * h->places + 2 * heavy + 10; i++)
        hall_send(h, one ? 1 : 1 + i % heavy, 100 + rnd(150), 60 + rnd(60), false);
    for (uint32_t step = 0; h->live > 0; step++) {
        hall_step(h);
        if (step < 50 || heavy == tenants || rnd(light_every) || h->live < h->places || h->count == GUESTS)
            continue;
        next = next + 1 < tenants ? next + 1 : heavy;
        bool again = false;
        uint64_t recent = 0, before = hall_light_work(h);
        for (uint32_t i = 0; i < h->count; i++) {
            const struct guest *g = &h->guests[i];
            if (g->q.tenant != next + 1) continue;
            again |= g->live;
            if (g->came + 4ull * tenants * TURN > h->steps) recent += g->p.token_count + g->q.tokens_max;
        }
        if (again) continue;
        struct guest *g = hall_send(h, one ? 1 : next + 1, 1 + rnd(GUEST_TOKENS), 1 + rnd(5), true);
        g->before = before;
        g->below = recent < TURN;
    }
}

/* A request of a tenant that has less than its share starts within two steps, whatever others have sent and
 * however many may run; those that want more places than there are light ones in front of them wait for
 * these. All together take no longer than as one tenant, whose sequences nobody preempts. */
static void test_light_tenants_start_at_once(void **state)
{
    (void)state;
    static const uint32_t places_of[] = {1, 1, 2, 3, 8, 16, 50};
    static struct hall h;
    double us[2] = {0};
    uint64_t rows = 0, useful = 0, longest = 0, lights = 0, preemptions = 0;
    for (uint32_t i = 0; i < seed_count; i++) {
        current_seed = first_seed + i;
        for (int one = 0; one < 2; one++) {
            rng_state = fake_mix(current_seed);
            uint32_t places = places_of[current_seed % 7], tenants = 2 + rnd(49),
                     heavy = 1 + (rnd(2) ? rnd(tenants) : 0);
            hall_open(&h, places, false);
            hall_fill(&h, tenants, heavy, 10 + rnd(20), one);
            for (uint32_t k = 0; k < h.count && !one; k++) {
                const struct guest *g = &h.guests[k];
                if (!g->below) continue;
                uint64_t waited = g->began - g->came;
                if (waited > 2 + (tenants > places ? g->before : 0))
                    fail_msg("seed %llu: %u places, %u tenants: waits %llu steps, others take %llu",
                             ull(current_seed), places, tenants, ull(waited), ull(g->before));
                if (waited > longest + g->before) longest = waited - g->before;
                lights++;
            }
            struct sched_stats st;
            sched_stats(h.s, &st);
            if (!one) preemptions += st.preemptions;
            else assert_int_equal(st.preemptions, 0);
            us[one] += h.e.clock_us;
            if (!one) rows += h.e.rows;
            if (!one) useful += h.useful;
            hall_close(&h);
        }
    }
    printf("%llu light requests wait %llu steps at most beside others of their kind; %llu preemptions; "
           "%llu rows for %llu tokens; %.1f s, as one tenant %.1f s\n",
           ull(lights), ull(longest), ull(preemptions), ull(rows), ull(useful), us[0] / 1e6, us[1] / 1e6);
    assert_true(0.97 * (double)rows <= (double)useful && 0.97 * us[0] <= us[1]);
    if (seed_count >= 20) assert_true(lights > 100 && preemptions > 100);
}

/* Who comes later gets its part of the places at once, all of it, and gives it back when it is done. */
static void test_places_are_divided(void **state)
{
    (void)state;
    enum { PLACES = 24, TENANTS = 4 };
    static struct hall h;
    struct sched_stats st;
    hall_open(&h, PLACES, false);
    for (uint32_t t = 1; t <= TENANTS; t++) {
        for (uint32_t i = 0; i < 2 * PLACES; i++) hall_send(&h, t, 10, 80 + 50 * (TENANTS - t), false);
        for (uint32_t i = 0; i < 2; i++) hall_step(&h);
        uint32_t begun[TENANTS + 1] = {0};
        for (uint32_t i = 0; i < h.count; i++) begun[h.guests[i].q.tenant] += h.guests[i].began > 0;
        assert_int_equal(begun[t], PLACES / t);
        sched_stats(h.s, &st);
        assert_int_equal(st.running, PLACES);
    }
    while (h.live > 0) hall_step(&h);
    assert_true(0.97 * (double)h.e.rows <= (double)h.useful);
    hall_close(&h);
}

/* More tenants than places, each with one long request: they take turns, and none is ever served more than
 * two turns more than another. Where the arena holds less than all of them, turns are longer, but still
 * nearly all work is done once. */
static void test_tenants_take_turns(void **state)
{
    (void)state;
    enum { EACH = 6 };
    static struct hall h;
    double us[2] = {0};
    bool brief = getenv("KVASIR_TEST_SHORT") != NULL;
    for (uint32_t tenants = 2; tenants <= (brief ? 26 : 50); tenants += brief ? 24 : 16) {
        for (uint32_t places = 1; places < tenants; places = 4 * places + 1) {
            for (int k = 0; k < 3; k++) {
                bool small = k > 0, one = k > 1;
                hall_open(&h, places, small);
                for (uint32_t i = 0; i < EACH * tenants; i++)
                    hall_send(&h, one ? 1 : 1 + i % tenants, 60, 300, false);
                while (h.live == EACH * tenants) hall_step(&h);
                uint64_t least = UINT64_MAX, most = 0;
                for (uint32_t i = 1; i <= tenants; i++) {
                    least = h.served[i] < least ? h.served[i] : least;
                    most = h.served[i] > most ? h.served[i] : most;
                }
                if (!small && most > least + 60 + 2 * TURN)
                    fail_msg("%u tenants, %u places: from %llu to %llu tokens", tenants, places, ull(least),
                             ull(most));
                while (h.live > 0) hall_step(&h);
                if (small) us[one] += h.e.clock_us;
                hall_close(&h);
            }
        }
    }
    printf("with little memory: %.1f s, as one tenant %.1f s\n", us[0] / 1e6, us[1] / 1e6);
    assert_true(0.97 * us[0] <= us[1]);
}

/* Light ones that fill all places without end leave every fifth turn to a long prompt, and time to compute
 * again what it lost meanwhile. */
static void long_prompt_ends(bool no_cache)
{
    enum { PROMPT = 300, ANSWER = 10, CHUNK = 4, OTHERS = 3 };
    static struct hall h;
    struct sched_options opt = {.hash_seed = 1, .prefill_chunk = CHUNK, .no_prefix_cache = no_cache};
    struct err err;
    hall_open(&h, 1, false);
    sched_destroy(h.s);
    ASSERT(sched_create(&h.e, &opt, &h.s, &err) == ST_OK);
    const struct guest *longest = hall_send(&h, 1, PROMPT, ANSWER, false), *last = NULL;
    const uint64_t turns = (PROMPT / CHUNK + ANSWER) / TURN + 1;
    while (longest->live && h.steps < (no_cache ? 12 : 6) * turns * TURN) {
        hall_step(&h);
        if (h.steps > 20 && !(last && last->live)) last = hall_send(&h, 2 + h.count % OTHERS, 4, 3, true);
    }
    assert_false(longest->live);
    while (h.live > 0) hall_step(&h);
    hall_close(&h);
}
static void test_long_prompt_ends_beside_light_ones(void **state)
{
    (void)state;
    long_prompt_ends(false);
    long_prompt_ends(true);
}

/* A step has time for one row, no KV is kept, and there are more tenants than places: each computes again
 * what it lost before another takes its place, however long that takes. */
static void test_slow_steps_end(void **state)
{
    (void)state;
    static struct hall h;
    struct err err;
    for (uint32_t places = 1; places <= 40; places = 3 * places + 1) {
        hall_open(&h, places, false);
        struct sched_options opt = {.hash_seed = 1,
                                    .step_us = 1,
                                    .prefill_chunk = 1,
                                    .no_prefix_cache = true,
                                    .clock = fake_clock,
                                    .clock_arg = &h.e};
        sched_destroy(h.s);
        ASSERT(sched_create(&h.e, &opt, &h.s, &err) == ST_OK);
        for (uint32_t i = 0; i < places + 2; i++) hall_send(&h, 1 + i, 100, 3, false);
        while (h.live > 0 && h.steps < 10 * h.useful) hall_step(&h);
        printf("%u places: %llu steps for %llu tokens\n", places, ull(h.steps), ull(h.useful));
        assert_int_equal(h.live, 0);
        hall_close(&h);
    }
}

static void test_blocks_move_between_groups(void **state)
{
    (void)state;
    struct engine_caps caps = {
        .group_count = 2, .block_tokens = BT, .grain_bytes = FAKE_GRAIN_BYTES, .arena_grains = 640};
    caps.groups[0].block_grains = 1;
    caps.groups[1].block_grains = 5;
    struct kv_blocks *k;
    struct err err;
    assert_int_equal(kvb_create(&caps, &k, &err), ST_OK);
    uint32_t block_offsets[641], n = 0;
    /* All memory to group 0, back, then all to group 1: no ratio stands between them. */
    while ((block_offsets[n] = kvb_allocate(k, 0)) != ENGINE_NO_BLOCK) n++;
    assert_int_equal(n, 640);
    kvb_check(k);
    while (n > 0) kvb_release(k, 0, block_offsets[--n], KVB_LIVE);
    assert_int_equal(kvb_used_grains(k), 0);
    while ((block_offsets[n] = kvb_allocate(k, 1)) != ENGINE_NO_BLOCK) n++;
    assert_int_equal(n, 128);
    kvb_acquire(k, 1, block_offsets[3], KVB_CACHED);
    kvb_release(k, 1, block_offsets[3], KVB_LIVE);
    assert_int_equal(kvb_references(k, 1, block_offsets[3], KVB_LIVE), 0);
    assert_int_equal(kvb_references(k, 1, block_offsets[3], KVB_CACHED), 1);
    assert_int_equal(k->live_blocks[1], 127);
    assert_int_equal(k->used_blocks[1], 128);
    uint32_t need[ENGINE_GROUPS_MAX] = {0, 1};
    assert_false(kvb_can_allocate(k, need));
    kvb_check(k);
    kvb_destroy(k);
}

int main(int argc, char **argv)
{
    bool brief = getenv("KVASIR_TEST_SHORT") != NULL;
    seed_count = test_briefly() ? 8 : brief ? 12 : 60;
    request_count = brief ? 80 : 300;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t v = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) first_seed = v;
        else if (strcmp(argv[i], "--seeds") == 0) seed_count = (uint32_t)v;
        else if (strcmp(argv[i], "--requests") == 0) request_count = (uint32_t)v;
        else if (strcmp(argv[i], "--steps") == 0) steps_wanted = v;
        else return fprintf(stderr, "unknown argument %s\n", argv[i]), 2;
    }
    signal(SIGABRT, print_seed);
    log_set_level((enum log_level) - 1); /* injected faults are not news */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_prompt_ends_beside_light_ones),
        cmocka_unit_test(test_slow_steps_end),
        cmocka_unit_test(test_blocks_move_between_groups),
        cmocka_unit_test(test_T31_identical_prompt_computes_one_token),
        cmocka_unit_test(test_equal_prompts_compute_once),
        cmocka_unit_test(test_full_hit_never_asks_for_pixels),
        cmocka_unit_test(test_salt_isolates),
        cmocka_unit_test(test_tenants_share_evenly),
        cmocka_unit_test(test_light_tenants_start_at_once),
        cmocka_unit_test(test_places_are_divided),
        cmocka_unit_test(test_tenants_take_turns),
        cmocka_unit_test(test_random_load),
        cmocka_unit_test(test_refused_drafts_leave_no_trace),
        cmocka_unit_test(test_overlap_leaves_no_trace),
        cmocka_unit_test(test_barely_one_context),
        cmocka_unit_test(test_victim_waits),
        cmocka_unit_test(test_T7_mutant_key_ignores_dimensions),
        cmocka_unit_test(test_mutant_prefix_key_ignores_end),
        cmocka_unit_test(test_mutant_window_off_by_one),
        cmocka_unit_test(test_mutant_stale_partial_block),
        cmocka_unit_test(test_mutant_state_of_rejected_drafts),
        cmocka_unit_test(test_T22_mutant_position_from_token_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

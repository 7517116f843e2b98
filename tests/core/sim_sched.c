/* Simulation of the scheduler against a fake engine under a virtual clock, from a seed. The fake engine stores (item, position) in each KV
 * slot and derives the next token by hashing what it reads back through the block tables; the oracle hashes the plain request. A block that
 * is wrongly shared, released too early, stale or mis-positioned changes an answer. Invariants are checked after every step.
 *
 *     sim_sched [--seed N] [--seeds COUNT] [--requests N]        prints the seed of a failing run */
#include "config/base/assert.h"
#include "config/base/log.h"
#include "scheduler/kv_blocks.h"
#include "scheduler/scheduler.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- randomness: splitmix64 ---- */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
static uint64_t rng_state;
static uint32_t rnd(uint32_t below)
{
    rng_state = mix(rng_state);
    return (uint32_t)((rng_state >> 33) % below);
}

/* ---- the fake engine: implements engine.h ---- */
enum { BT = 8, UNIT = 64, VOCAB = 1000, EOS = 7, CONTEXT = 400 };
struct engine_features {
    uint64_t hash;
    uint32_t layers_left;
};
struct engine {
    struct engine_caps caps;
    uint8_t *arena;
    uint32_t fault_every; /* a step fails with ST_NOMEM about once in so many; 0 = never */
    uint32_t live_features;
};

void engine_caps(const struct engine *e, struct engine_caps *out)
{
    *out = e->caps;
}
static uint64_t pixels_hash(const struct image_u8 *p)
{
    return mix(p->rgb[0] + 256u * p->width);
}
enum status engine_features_create(struct engine *e, const struct image_u8 *pixels, struct engine_features **out, struct err *err)
{
    (void)err;
    *out = calloc(1, sizeof **out);
    (*out)->hash = pixels_hash(pixels);
    (*out)->layers_left = 1 + rnd(5);
    e->live_features++;
    return ST_OK;
}
enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done, struct err *err)
{
    (void)e;
    (void)err;
    f->layers_left = f->layers_left > layers ? f->layers_left - layers : 0;
    *done = f->layers_left == 0;
    return ST_OK;
}
void engine_features_free(struct engine *e, struct engine_features *f)
{
    e->live_features--;
    free(f);
}

static uint64_t *slot(const struct engine *e, uint32_t g, const struct engine_run *r, uint32_t p)
{
    uint32_t unit = r->tables[g][p / BT];
    ASSERT(unit != ENGINE_NO_BLOCK);
    ASSERT_CMP(unit + e->caps.groups[g].block_units, <=, e->caps.arena_units);
    return (uint64_t *)(void *)(e->arena + (size_t)unit * UNIT) + p % BT;
}
static uint64_t item_value(uint64_t item, uint32_t p)
{
    return mix(item * 0x1000193u + p);
}
static uint64_t image_item(uint64_t hash, uint32_t idx)
{
    return mix(hash + idx) | (1ull << 63);
}
/* Next token from the values that a query at p sees, oldest first, group by group. */
static uint32_t derive(uint64_t h)
{
    uint64_t v = mix(h);
    return v % 19 == 0 ? (uint32_t)EOS : (uint32_t)((v >> 20) % VOCAB);
}
static uint32_t window_start(uint32_t window, uint32_t p)
{
    return window && p + 1 > window ? p + 1 - window : 0;
}

static void run_one(struct engine *e, struct engine_run *r)
{
    uint32_t end = r->position + r->count;
    ASSERT_CMP(end, <=, r->token_count);
    for (uint32_t p = r->position; p < end; p++) {
        uint64_t item = r->tokens[p];
        for (uint32_t i = 0; i < r->image_count; i++) {
            const struct engine_image_use *u = &r->images[i];
            if (p < u->begin || p >= u->end) continue;
            ASSERT_CMP(u->features->layers_left, ==, 0);
            if (u->atomic) ASSERT(u->begin >= r->position && u->end <= end);
            item = image_item(u->features->hash, p - u->begin);
        }
        for (uint32_t g = 0; g < e->caps.group_count; g++) *slot(e, g, r, p) = item_value(item, p);
    }
    if (!r->sample) return;
    uint64_t h = r->sampling->seed;
    for (uint32_t g = 0; g < e->caps.group_count; g++)
        for (uint32_t p = window_start(e->caps.groups[g].window, end - 1); p < end; p++) h = mix(h ^ *slot(e, g, r, p));
    uint32_t id = derive(h);
    for (uint32_t i = 0; i < r->banned_count; i++)
        if (r->banned[i] == id) id = (id + 500) % VOCAB;
    r->out = (struct token_out){.id = id};
}
enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < b->run_count; i++) tokens += b->runs[i].count;
    ASSERT_CMP(tokens, <=, e->caps.batch_tokens_max);
    ASSERT_CMP(b->run_count, <=, e->caps.sequences_max);
    if (e->fault_every && rnd(e->fault_every) == 0) return err_set(err, ST_NOMEM, "injected fault");
    for (uint32_t i = 0; i < b->run_count; i++) run_one(e, &b->runs[i]);
    return ST_OK;
}
enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err)
{
    (void)e;
    (void)b;
    (void)err;
    return ST_OK;
}

/* ---- requests and the oracle ---- */
struct request {
    struct prompt prompt;
    struct sampling_params sampling;
    struct sched_sequence seq;
    uint8_t rgb[4];
    uint32_t stop_id;
    uint32_t expect[CONTEXT + 1], expect_count, got;
    enum seq_end expect_end;
    struct seq_id id;
    bool cancelled;
};

static void oracle(const struct engine *e, struct request *r)
{
    uint64_t values[CONTEXT + 1];
    uint32_t n = r->prompt.token_count;
    for (uint32_t p = 0; p < n; p++) values[p] = item_value(r->prompt.tokens[p], p);
    for (uint32_t i = 0; i < r->prompt.image_count; i++) {
        const struct prompt_image *im = &r->prompt.images[i];
        for (uint32_t p = im->begin; p < im->end; p++) values[p] = item_value(image_item(pixels_hash(&im->pixels), p - im->begin), p);
    }
    r->expect_end = END_LENGTH;
    while (r->expect_count < r->seq.tokens_max) {
        uint64_t h = r->sampling.seed;
        for (uint32_t g = 0; g < e->caps.group_count; g++)
            for (uint32_t p = window_start(e->caps.groups[g].window, n - 1); p < n; p++) h = mix(h ^ values[p]);
        uint32_t id = derive(h);
        if (r->expect_count < r->seq.tokens_min) {
            if (id == r->stop_id) id = (id + 500) % VOCAB;
            if (id == EOS) id = (id + 500) % VOCAB;
        }
        r->expect[r->expect_count++] = id;
        values[n] = item_value(id, n);
        n++;
        if (id == r->stop_id) {
            r->expect_end = END_STOP_TOKEN;
            return;
        }
        if (id == EOS && !r->seq.ignore_eos) {
            r->expect_end = END_STOP_EOS;
            return;
        }
    }
}

/* tight: some answers go on to the end of the context. */
static struct request *make_request(const struct engine *e, bool tight)
{
    struct request *r = calloc(1, sizeof *r);
    uint32_t images = rnd(4) == 0 ? rnd(4) : 0, text = 1 + rnd(120), each = e->caps.image_tokens_max;
    r->prompt.tokens = malloc((text + images * (each + 2) + 8) * sizeof(uint32_t));
    r->prompt.images = calloc(images + 1, sizeof *r->prompt.images);
    for (uint32_t i = 0; i <= images; i++) {
        uint32_t some = 1 + rnd(text / (images + 1) + 1);
        for (uint32_t j = 0; j < some; j++) r->prompt.tokens[r->prompt.token_count++] = rnd(VOCAB);
        if (i == images) break;
        struct prompt_image *im = &r->prompt.images[r->prompt.image_count];
        im->begin = r->prompt.token_count;
        im->end = im->begin + each;
        im->atomic = true;
        r->rgb[i] = (uint8_t)rnd(5);
        im->pixels = (struct image_u8){.width = 1, .height = 1, .rgb = &r->rgb[i]};
        memset(im->key, r->rgb[i], sizeof im->key);
        for (uint32_t j = 0; j < each; j++) r->prompt.tokens[r->prompt.token_count++] = 0;
        r->prompt.image_count++;
    }
    r->sampling = (struct sampling_params){.seed = rnd(1000), .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    r->stop_id = rnd(VOCAB);
    bool longest = tight && rnd(6) == 0 && r->prompt.token_count < CONTEXT;
    r->seq = (struct sched_sequence){.prompt = &r->prompt,
                                     .sampling = &r->sampling,
                                     .tokens_max = longest ? CONTEXT - r->prompt.token_count : 1 + rnd(rnd(3) ? 60 : 127),
                                     .tokens_min = rnd(3) == 0 ? rnd(20) : 0,
                                     .ignore_eos = longest || rnd(3) == 0,
                                     .stop_ids = &r->stop_id,
                                     .stop_id_count = 1,
                                     .priority = rnd(5) == 0 ? (int64_t)rnd(3) - 1 : 0,
                                     .user = r};
    oracle(e, r);
    return r;
}
static void free_request(struct request *r)
{
    free(r->prompt.tokens);
    free(r->prompt.images);
    free(r);
}

struct totals {
    uint64_t ended[5], refused, steps, preemptions, tokens;
};

struct live_set {
    struct request *r[64];
    uint32_t count;
};

/* Checks every event against the oracle; an ended request leaves the set. True if there was any. */
static bool take_events(struct scheduler *s, struct live_set *live, struct totals *t)
{
    struct sched_event ev;
    bool any = false;
    while (sched_poll(s, &ev)) {
        struct request *r = ev.user;
        uint32_t at = 0;
        while (at < live->count && live->r[at] != r) at++;
        ASSERT_CMP(at, <, live->count); /* no event after the end */
        any = true;
        if (ev.kind == EV_TOKEN) {
            ASSERT_CMP(r->got, <, r->expect_count);
            ASSERT_CMP(ev.token.id, ==, r->expect[r->got]);
            r->got++;
            t->tokens++;
            continue;
        }
        ASSERT(ev.kind == EV_END);
        t->ended[ev.end]++;
        if (ev.end == END_CANCELLED) ASSERT(r->cancelled);
        if (ev.end <= END_LENGTH) {
            ASSERT_CMP(ev.end, ==, r->expect_end);
            ASSERT_CMP(r->got, ==, r->expect_count);
        }
        live->r[at] = live->r[--live->count];
        free_request(r);
    }
    return any;
}

/* Just the slabs that one sequence of the whole context needs, were its blocks packed. */
static uint64_t least_arena(const struct engine_caps *c)
{
    uint32_t largest = 0, slabs = 0, run = c->image_tokens_max > BT ? c->image_tokens_max : BT;
    for (uint32_t g = 0; g < c->group_count; g++) largest = c->groups[g].block_units > largest ? c->groups[g].block_units : largest;
    for (uint32_t g = 0; g < c->group_count; g++) {
        uint32_t all = CONTEXT / BT, some = (c->groups[g].window + run + BT - 1) / BT + 1, per_slab = largest / c->groups[g].block_units;
        uint32_t blocks = c->groups[g].window && some < all ? some : all;
        slabs += (blocks + per_slab - 1) / per_slab;
    }
    return slabs * largest;
}

static void simulate(uint64_t seed, uint32_t requests, bool tight, struct totals *t)
{
    rng_state = mix(seed);
    struct engine e = {.caps = {.group_count = 1 + rnd(2), .block_tokens = BT, .unit_bytes = UNIT, .vocab_size = VOCAB, .context_max = CONTEXT,
                                .image_tokens_max = 1 + rnd(20), .eos_ids = {EOS}, .eos_count = 1}};
    e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_units = 1 + rnd(3)};
    e.caps.groups[1] = (struct engine_kv_group){.layers = 5, .block_units = 1 + rnd(7), .window = 1 + rnd(40)};
    for (int g = 0; g < 2; g++) e.caps.groups[g].block_bytes = (uint64_t)e.caps.groups[g].block_units * UNIT;
    e.caps.sequences_max = 1 + rnd(12);
    e.caps.batch_tokens_max = e.caps.image_tokens_max + (rnd(2) ? e.caps.sequences_max + rnd(60) : 0);
    e.caps.arena_units = 120 + rnd(rnd(2) ? 100 : rnd(2) ? 400 : 4000);
    if (tight) {
        for (int g = 0; g < 2; g++) e.caps.groups[g].block_units = 1 + rnd(9);
        e.caps.groups[1].window = 1 + rnd(250);
        e.caps.arena_units = least_arena(&e.caps);
    }
    e.fault_every = rnd(8) == 0 ? 200 : 0;
    e.arena = calloc(e.caps.arena_units, UNIT);
    struct sched_options opt = {.queue_max = 4 + rnd(40), .prefill_chunk = rnd(2) ? 1 + rnd(30) : 0, .encode_layers = 1 + rnd(3)};
    struct scheduler *s;
    struct err err = {{0}};
    ASSERT(sched_create(&e, &opt, &s, &err) == ST_OK);
    struct live_set live = {.count = 0};
    uint32_t sent = 0, idle = 0;
    uint64_t now = 1;
    while (sent < requests || live.count > 0) {
        while (sent < requests && live.count < 64 && rnd(3) == 0) {
            struct request *r = make_request(&e, tight);
            sent++;
            enum status st = sched_submit(s, &r->seq, &r->id, &err);
            if (st) {
                ASSERT(st == ST_AGAIN || st == ST_TOO_LARGE);
                t->refused++;
                free_request(r);
                continue;
            }
            live.r[live.count++] = r;
        }
        if (live.count > 0 && rnd(tight ? 500 : 25) == 0) {
            struct request *r = live.r[rnd(live.count)];
            r->cancelled = true;
            sched_cancel(s, r->id);
        }
        bool worked = sched_step(s, now);
        t->steps++;
        now += 1 + rnd(1000);
        sched_check(s);
        worked |= take_events(s, &live, t);
        idle = worked || live.count == 0 ? 0 : idle + 1;
        ASSERT_CMP(idle, <, 100); /* somebody always makes progress */
    }
    struct sched_stats st;
    sched_stats(s, &st);
    ASSERT_CMP(st.used_units, ==, 0);
    ASSERT_CMP(st.running + st.waiting, ==, 0);
    ASSERT_CMP(e.live_features, ==, 0);
    t->preemptions += st.preemptions;
    sched_destroy(s);
    free(e.arena);
}

/* ---- tests ---- */
static uint64_t first_seed = 1;
static uint32_t seed_count = 60, request_count = 300;

static uint64_t current_seed;

static void print_seed(int sig)
{
    fprintf(stderr, "failing seed: --seed %llu --seeds 1\n", (unsigned long long)current_seed);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void test_random_load(void **state)
{
    (void)state;
    struct totals t = {0};
    for (uint32_t i = 0; i < seed_count; i++) {
        current_seed = first_seed + i;
        simulate(first_seed + i, request_count, false, &t);
    }
    printf("%u seeds, %llu steps, %llu tokens; ended eos %llu, stop %llu, length %llu, cancelled %llu, error %llu; refused %llu; %llu preemptions\n",
           seed_count, (unsigned long long)t.steps, (unsigned long long)t.tokens, (unsigned long long)t.ended[0], (unsigned long long)t.ended[1],
           (unsigned long long)t.ended[2], (unsigned long long)t.ended[3], (unsigned long long)t.ended[4], (unsigned long long)t.refused,
           (unsigned long long)t.preemptions);
    /* Not vacuous: every way to end and preemption must have happened. */
    assert_true(t.ended[END_STOP_EOS] > 0 && t.ended[END_STOP_TOKEN] > 0 && t.ended[END_LENGTH] > 0 && t.ended[END_CANCELLED] > 0);
    assert_true(t.preemptions > 0);
    assert_true(t.refused > 0);
}

/* Blocks of one sequence come to lie scattered over slabs, and then the arena has no free slab left though it has room: nobody may wait
 * for ever. */
static void test_barely_one_context(void **state)
{
    (void)state;
    struct totals t = {0};
    for (uint32_t i = 0; i < 5 * seed_count; i++) {
        current_seed = first_seed + i;
        simulate(first_seed + i, request_count / 5, true, &t);
    }
    assert_true(t.ended[END_LENGTH] > 0 && t.preemptions > 0);
}

static void test_blocks_move_between_groups(void **state)
{
    (void)state;
    struct engine_caps caps = {.group_count = 2, .block_tokens = BT, .unit_bytes = UNIT, .arena_units = 640};
    caps.groups[0].block_units = 1;
    caps.groups[1].block_units = 5;
    struct kv_blocks *k;
    struct err err;
    assert_int_equal(kvb_create(&caps, &k, &err), ST_OK);
    uint32_t units[641], n = 0;
    /* All memory to group 0, back, then all to group 1: no ratio stands between them. */
    while ((units[n] = kvb_allocate(k, 0)) != ENGINE_NO_BLOCK) n++;
    assert_int_equal(n, 640);
    kvb_check(k);
    while (n > 0) kvb_release(k, 0, units[--n]);
    assert_int_equal(kvb_used_units(k), 0);
    while ((units[n] = kvb_allocate(k, 1)) != ENGINE_NO_BLOCK) n++;
    assert_int_equal(n, 128);
    kvb_acquire(k, 1, units[3]);
    kvb_release(k, 1, units[3]);
    assert_int_equal(kvb_references(k, 1, units[3]), 1);
    kvb_check(k);
    kvb_destroy(k);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t v = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) first_seed = v;
        if (strcmp(argv[i], "--seeds") == 0) seed_count = (uint32_t)v;
        if (strcmp(argv[i], "--requests") == 0) request_count = (uint32_t)v;
    }
    signal(SIGABRT, print_seed);
    log_set_level((enum log_level)-1); /* injected faults are not news */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_move_between_groups), cmocka_unit_test(test_random_load),
                                       cmocka_unit_test(test_barely_one_context)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Simulation of steps with a time budget: a fake engine (fake_engine.h) whose steps take time on a virtual
 * clock, and requests that arrive by it. Asserts bounds on the wait of a short prompt, the pauses of a
 * stream, the end of a long prompt, and the shares of priorities and tenants. */
#include "tests/sim/fake_engine.h"

#include "config/base/log.h"
#include "scheduler/scheduler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

enum { JOBS_MAX = 256, CONTEXT = 32768, STEP_US = 100000 };

struct job {
    uint32_t prompt, answer;
    int64_t priority;
    uint64_t tenant;
    double arrives; /* on the engine's clock */
    /* what became of it */
    double first, last, ends; /* time of its first and its latest token, and of its end */
    double longest_pause;     /* between two of its tokens */
    double limit;             /* of a pause; */
    uint32_t late;            /* so many were longer */
    double others_worse;      /* before its first token: prefill time of worse priorities */
    double others_longer;     /* of prompts of its own tenant with more left to do, and as good a priority */
    uint32_t got;
    struct prompt p;
    struct sampling_params sampling;
    struct sched_sequence seq;
    bool sent;
};
struct world {
    struct engine e;
    struct scheduler *s;
    struct job jobs[JOBS_MAX];
    uint32_t count, open;
    double longest_step;
    double tenant_us[4];     /* prefill time by tenant */
    const struct job *until; /* what tenants get is counted while this one is prefilled */
};
static struct world *world;
static uint64_t rng_state;

static uint32_t rnd(uint32_t below)
{
    rng_state = fake_mix(rng_state);
    return (uint32_t)((rng_state >> 33) % below);
}

static struct job *job_of(const struct engine_chunk *r)
{
    return (struct job *)(void *)((char *)(uintptr_t)r->sampling - offsetof(struct job, sampling));
}

/* Notes at whose cost the run goes. */
static void watch_run(const struct engine_chunk *r)
{
    struct world *w = world;
    struct job *j = job_of(r);
    if (r->position >= j->prompt) return;
    double us = fake_chunk_us(&w->e, r->position, r->count, r->sample);
    if (!w->until || (w->until->sent && !w->until->first)) w->tenant_us[j->tenant % 4] += us;
    for (uint32_t i = 0; i < w->count; i++) {
        struct job *o = &w->jobs[i];
        if (o == j || !o->sent || o->first > 0) continue;
        if (j->priority > o->priority) o->others_worse += us;
        else if (j->priority == o->priority && j->tenant == o->tenant && j->prompt - r->position > o->prompt)
            o->others_longer += us;
    }
}

static void world_open(struct world *w, uint32_t sequences, uint32_t noise_percent)
{
    memset(w, 0, sizeof *w);
    world = w;
    w->e.vocab = 50000;
    w->e.eos = 1;
    w->e.on_chunk = watch_run;
    w->e.caps = (struct engine_caps){.group_count = 2,
                                     .block_tokens = 16,
                                     .context_max = CONTEXT,
                                     .images = true,
                                     .span_tokens_max = 64,
                                     .sequences_max = sequences,
                                     .batch_tokens_max = 2048,
                                     .arena_grains = 1u << 20};
    w->e.caps.groups[0] = (struct engine_kv_group){.layers = 20, .block_grains = 4};
    w->e.caps.groups[1] = (struct engine_kv_group){.layers = 4, .block_grains = 1, .window = 1024};
    w->e.takes.fixed = 20000;
    w->e.takes.row = 1000;
    w->e.takes.sampled = 300;
    w->e.takes.pair = 0.1;
    w->e.takes.noise = noise_percent * 0.01;
    fake_open(&w->e, false);
    struct sched_options opt = {.step_us = STEP_US, .clock = fake_clock, .clock_arg = &w->e, .hash_seed = 1};
    struct err err;
    ASSERT(sched_create(&w->e, &opt, &w->s, &err) == ST_OK);
}

static void world_close(struct world *w)
{
    for (uint32_t i = 0; i < w->count; i++) free(w->jobs[i].p.tokens);
    sched_destroy(w->s);
    fake_close(&w->e);
}

static struct job *add(struct world *w, double arrives, uint32_t prompt, uint32_t answer, int64_t priority,
                       uint64_t tenant)
{
    struct job *j = &w->jobs[w->count++];
    *j = (struct job){
        .prompt = prompt, .answer = answer, .priority = priority, .tenant = tenant, .arrives = arrives};
    j->p.token_count = prompt;
    j->p.tokens = malloc(prompt * sizeof *j->p.tokens);
    for (uint32_t i = 0; i < prompt; i++)
        j->p.tokens[i] = (uint32_t)(fake_mix(i + 100003ull * w->count) % 50000);
    j->sampling = (struct sampling_params){
        .seed = w->count, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    j->seq = (struct sched_sequence){.prompt = &j->p,
                                     .sampling = &j->sampling,
                                     .tokens_max = answer,
                                     .ignore_eos = true,
                                     .priority = priority,
                                     .tenant = tenant,
                                     .user = j};
    return j;
}

static void take_events(struct world *w)
{
    struct sched_event ev;
    while (sched_poll(w->s, &ev)) {
        struct job *j = ev.user;
        double now = w->e.clock_us;
        if (ev.kind == EV_END) {
            assert_int_equal(ev.end, END_LENGTH);
            j->ends = now;
            w->open--;
            continue;
        }
        if (!j->first) j->first = now;
        else if (now - j->last > j->longest_pause) j->longest_pause = now - j->last;
        j->late += j->limit > 0 && j->got && now - j->last > j->limit;
        j->last = now;
        j->got++;
    }
}

static void chunk(struct world *w)
{
    uint32_t sent = 0;
    w->open = w->count;
    while (w->open) {
        double now = w->e.clock_us, next = 1e300;
        for (uint32_t i = 0; i < w->count; i++) {
            struct job *j = &w->jobs[i];
            struct seq_id id;
            struct err err;
            if (!j->sent && j->arrives <= now) {
                ASSERT(sched_submit(w->s, &j->seq, &id, &err) == ST_OK);
                j->sent = true;
                sent++;
            } else if (!j->sent && j->arrives < next) {
                next = j->arrives;
            }
        }
        bool worked = sched_step(w->s, (uint64_t)now);
        double took = w->e.clock_us - now;
        if (took > w->longest_step) w->longest_step = took;
        take_events(w);
        if (!worked && w->open) w->e.clock_us = next; /* nobody is there: on to the next arrival */
    }
}

/* What the job takes alone, from its arrival to its first token and to its end, on a server that knows what
 * steps take. */
static void alone(uint32_t prompt, uint32_t answer, double *first, double *whole)
{
    static struct world w;
    struct world *before = world;
    world_open(&w, 8, 0);
    for (uint32_t i = 0; i < 4; i++) add(&w, 1e6 * i, 200, 4, 0, 0);
    struct job *j = add(&w, 1e7, prompt, answer, 0, 0);
    chunk(&w);
    *first = j->first - j->arrives;
    *whole = j->ends - j->arrives;
    world_close(&w);
    world = before;
}

/* A 20,000-token prompt beside two streams and, now and then, a prompt of 30 tokens. */
static void test_short_beside_long(void **state)
{
    (void)state;
    static struct world w;
    double first, whole, long_first, long_whole, others = 0;
    alone(30, 4, &first, &whole);
    alone(20000, 1, &long_first, &long_whole);
    for (uint32_t with_streams = 0; with_streams < 2; with_streams++) {
        world_open(&w, 64, 20);
        rng_state = 7;
        others = 0;
        struct job *streams[2] = {0}, *shorts[20], *lng;
        for (uint32_t i = 0; i < 2 && with_streams; i++) streams[i] = add(&w, 0, 30, 1500, 0, 0);
        lng = add(&w, 3e6, 20000, 1, 0, 0);
        for (uint32_t i = 0; i < 20; i++) {
            shorts[i] = add(&w, 4e6 + 1e6 * i + rnd(400000), 30, 4, 0, 0);
            others += whole;
        }
        chunk(&w);
        for (uint32_t i = 0; i < 20; i++)
            assert_true(shorts[i]->first - shorts[i]->arrives <= 2 * first + 2 * STEP_US);
        for (uint32_t i = 0; i < 2 && with_streams; i++) {
            double one, all;
            alone(30, (uint32_t)((lng->first - lng->arrives) / STEP_US) + 1, &one, &all);
            others += all;
            assert_true(streams[i]->longest_pause <= 2.5 * STEP_US);
        }
        printf("short alone %.0f ms; long alone %.1f s, beside others %.1f s, which take %.1f s alone\n",
               first / 1e3, long_first / 1e6, (lng->first - lng->arrives) / 1e6, others / 1e6);
        assert_true(lng->first - lng->arrives <= 1.1 * (long_first + others));
        world_close(&w);
    }
}

/* 256 prompts of all lengths, tenants and priorities, more than the machine can do at once. */
static void test_mixed_load(void **state)
{
    (void)state;
    static struct world w;
    double sum = 0, end = 0, pause = 0, longer = 0;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        world_open(&w, 256, 20);
        rng_state = seed;
        for (uint32_t i = 0; i < JOBS_MAX; i++) {
            uint32_t kind = rnd(20), prompt = kind < 12   ? 10 + rnd(50)
                                              : kind < 18 ? 200 + rnd(1300)
                                                          : 5000 + rnd(15000);
            add(&w, rnd(60) * 1e6, prompt, kind < 2 ? 200 : 1 + rnd(20),
                (int64_t)(rnd(10) == 0) - (rnd(10) == 0), rnd(4));
        }
        chunk(&w);
        sum = end = pause = longer = 0;
        for (uint32_t i = 0; i < w.count; i++) {
            const struct job *j = &w.jobs[i];
            double wait = j->first - j->arrives;
            assert_int_equal(j->got, j->answer);
            /* The step that ran when it came, and one that goes over its time by what the noise makes of it.
             */
            assert_true(j->others_worse <= 1.5 * STEP_US);
            /* Its tenant's oldest prompt has a quarter of what the tenant gets, and less than that is all
             * that may pass it. */
            assert_true(j->others_longer <= 0.3 * wait + 2 * STEP_US);
            if (j->longest_pause > pause) pause = j->longest_pause;
            if (j->ends > end) end = j->ends;
            sum += w.e.takes.fixed + fake_chunk_us(&w.e, 0, j->prompt, true) +
                   j->answer * fake_chunk_us(&w.e, j->prompt, 1, true);
        }
        printf("256 prompts: longest pause %.0f ms, longest step %.0f ms; ended after %.1f s, work %.1f s\n",
               pause / 1e3, w.longest_step / 1e3, end / 1e6, sum / 1e6);
        assert_true(pause <= 2.5 * STEP_US);
        world_close(&w);
    }
}

/* One tenant with a long prompt, another with a crowd of middling ones, a third with a crowd of short ones:
 * each gets as much, as far as is known what a row and a key cost: where all steps are alike, that can't be
 * told apart well. */
static void test_tenants_share_time(void **state)
{
    (void)state;
    static struct world w;
    world_open(&w, 64, 20);
    w.until = add(&w, 0, 20000, 1, 0, 1);
    for (uint32_t i = 0; i < 60; i++) add(&w, 0, 1000, 1, 0, 2);
    for (uint32_t i = 0; i < 195; i++) add(&w, 0, 300, 1, 0, 3);
    chunk(&w);
    printf("three tenants: %.1f, %.1f, %.1f s\n", w.tenant_us[1] / 1e6, w.tenant_us[2] / 1e6,
           w.tenant_us[3] / 1e6);
    for (uint32_t t = 2; t < 4; t++) {
        assert_true(w.tenant_us[t] > w.tenant_us[1] / 1.5);
        assert_true(w.tenant_us[t] < w.tenant_us[1] * 1.5);
    }
    world_close(&w);
}

/* A crowd of short prompts that never ends doesn't keep a long one from ending: it has its quarter. */
static void test_long_prompt_ends(void **state)
{
    (void)state;
    static struct world w;
    double first, whole;
    alone(4000, 1, &first, &whole);
    world_open(&w, 64, 20);
    struct job *lng = add(&w, 0, 4000, 1, 0, 0);
    for (uint32_t i = 0; i < JOBS_MAX - 1; i++) add(&w, 50e3 * i, 80, 1, 0, 0);
    chunk(&w);
    printf("long prompt alone %.1f s, in a flood of short ones %.1f s\n", first / 1e6, lng->first / 1e6);
    assert_true(lng->first <= 5 * first);
    world_close(&w);
}

/* A process that was stopped during its first step has learnt nothing from that. */
static void test_held_up(void **state)
{
    (void)state;
    static struct world w;
    double first, whole;
    alone(4000, 1, &first, &whole);
    world_open(&w, 8, 10);
    w.e.takes.once = 125e6;
    add(&w, 0, 5, 300, 0, 0);
    struct job *after = add(&w, 200e6, 4000, 1, 0, 0);
    chunk(&w);
    printf("4000 tokens alone %.1f s, after a first step of 125 s %.1f s\n", first / 1e6,
           (after->first - after->arrives) / 1e6);
    assert_true(after->first - after->arrives < 1.5 * first);
    world_close(&w);
}

/* Background sequences, as many as there are places, make fewer than one in a hundred of a stream's tokens
 * late, and end nevertheless; a prompt that comes takes the place of one. */
static void test_background(void **state)
{
    (void)state;
    static struct world w;
    double first, whole, pause;
    world_open(&w, 8, 0);
    pause = (add(&w, 0, 30, 3000, 0, 0), chunk(&w), w.jobs[0].longest_pause);
    world_close(&w);
    alone(30, 4, &first, &whole);
    world_open(&w, 8, 0);
    for (uint32_t i = 0; i < 40; i++) add(&w, 0, 400, 30, SCHED_BACKGROUND, 0);
    struct job *stream = add(&w, 3e6, 30, 3000, 0, 0), *prompt = add(&w, 8e6, 30, 4, 0, 0);
    stream->limit = 1.2 * pause;
    chunk(&w);
    uint32_t beside = 0;
    for (uint32_t i = 0; i < 40; i++)
        beside += w.jobs[i].ends > stream->first && w.jobs[i].ends < stream->last;
    printf("%u of 3000 tokens late beside background sequences, %u of which end meanwhile\n", stream->late,
           beside);
    assert_true(stream->late < 30);
    assert_true(stream->longest_pause < 2.5 * STEP_US);
    assert_true(beside > 0);
    assert_true(stream->first - stream->arrives <= first + 2 * STEP_US);
    assert_true(prompt->first - prompt->arrives <= first + 2 * STEP_US);
    world_close(&w);
}

/* Images are encoded beside streams: a slice and a step together keep the time of a step, nearly. */
static void test_image_beside_stream(void **state)
{
    (void)state;
    static struct world w;
    static uint8_t rgb[12];
    struct prompt_span image = span_of_image(5, 45, SPAN_BIDIRECTIONAL);
    image.pixels = (struct image_u8){.width = 2, .height = 2, .rgb = rgb};
    world_open(&w, 8, 10);
    w.e.takes.layer = 30000;
    struct job *stream = add(&w, 0, 30, 400, 0, 0), *image_job[10];
    for (uint32_t i = 0; i < 10; i++) {
        image_job[i] = add(&w, 3e6 + 1e6 * i, 100, 4, 0, 0);
        image_job[i]->p.spans = &image;
        image_job[i]->p.span_count = 1;
        image_job[i]->seq.no_cache_read = image_job[i]->seq.no_cache_write = true; /* each is encoded */
    }
    chunk(&w);
    assert_true(w.e.encodes == 10);
    printf("a stream beside images pauses %.0f ms\n", stream->longest_pause / 1e3);
    assert_true(stream->longest_pause <= 2.5 * STEP_US);
    world_close(&w);
}

/* 128 long prompts of one tenant, more than run at once; another one's 5 tokens take half a second beside
 * them. All together take no longer than as one tenant. */
static void test_few_tokens_beside_a_crowd(void **state)
{
    (void)state;
    enum { CROWD = 128, SHORTS = 40 };
    static struct world w;
    double ends[2] = {0}, longest = 0;
    for (int one = 0; one < 2; one++) {
        world_open(&w, 64, 10);
        struct job *shorts[SHORTS];
        for (uint32_t i = 0; i < CROWD; i++) add(&w, 0, 3900, 20, 0, 1);
        for (uint32_t i = 0; i < SHORTS; i++) shorts[i] = add(&w, 1e6 + 10.03e6 * i, 5, 5, 0, one ? 1 : 2);
        chunk(&w);
        for (uint32_t i = 0; i < w.count; i++) ends[one] = fmax(ends[one], w.jobs[i].ends);
        for (uint32_t i = 0; i < SHORTS && !one; i++)
            longest = fmax(longest, shorts[i]->ends - shorts[i]->arrives);
        world_close(&w);
    }
    printf("5 tokens beside a crowd: %.0f ms; all in %.1f s, as one tenant %.1f s\n", longest / 1e3,
           ends[0] / 1e6, ends[1] / 1e6);
    assert_true(longest <= 5 * STEP_US && 0.97 * ends[0] <= ends[1]);
}

int main(void)
{
    log_set_level((enum log_level) - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_mixed_load),
        cmocka_unit_test(test_tenants_share_time),
        cmocka_unit_test(test_long_prompt_ends),
        cmocka_unit_test(test_background),
        cmocka_unit_test(test_image_beside_stream),
        cmocka_unit_test(test_held_up),
        cmocka_unit_test(test_few_tokens_beside_a_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

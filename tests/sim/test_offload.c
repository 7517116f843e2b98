/* Loads from the tiers below the arena, on the fake engine: a load from a slow tier delays no other request,
 * and every token equals that of the request alone. */
#include "tests/sim/fake_engine.h"

#include "scheduler/offload.h"
#include "tests/lib/sched_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { BT = 8, VOCAB = 1000, LENGTH = 100, ANSWER = 4, PROMPTS = 40, ARENA = 60 };

struct ask {
    uint32_t tokens[LENGTH], got;
    struct prompt prompt;
    struct prompt_span span;
    struct sampling_params sampling;
    struct sched_sequence seq;
    struct fake_answer expect;
    struct sched_cache_info cache;
    bool ended;
};
static struct engine e;
static struct scheduler *s;
static struct ask asks[PROMPTS + 1];

static int setup(void **state)
{
    (void)state;
    struct err err;
    e = (struct engine){.vocab = VOCAB, .eos = 7};
    e.caps = (struct engine_caps){.group_count = 1,
                                  .block_tokens = BT,
                                  .context_max = LENGTH + ANSWER,
                                  .sequences_max = 64,
                                  .batch_tokens_max = 256,
                                  .arena_grains = ARENA};
    e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    fake_open(&e, true);
    struct sched_options opt = {
        .clock = fake_clock, .clock_arg = &e, .host_bytes = 1 << 20, .load_always = true};
    ASSERT(sched_create(&e, &opt, &s, &err) == ST_OK);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    sched_destroy(s);
    fake_close(&e);
    return 0;
}

static void send_spans(struct ask *a, uint32_t first)
{
    struct seq_id id;
    struct err err;
    a->prompt = (struct prompt){a->tokens, LENGTH, &a->span, a->span.end > 0};
    for (uint32_t k = 0; k < LENGTH; k++) a->tokens[k] = (uint32_t)(fake_mix(first * 1000 + k) % VOCAB);
    a->sampling =
        (struct sampling_params){.logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    a->seq = (struct sched_sequence){.prompt = &a->prompt,
                                     .sampling = &a->sampling,
                                     .tokens_max = ANSWER,
                                     .ignore_eos = true,
                                     .tenant = (uint64_t)(a - asks) + 1,
                                     .user = a};
    fake_oracle(&e, &a->prompt, 0, ANSWER, 0, VOCAB + 1, true, NULL, &a->expect);
    if (sched_submit(s, &a->seq, &id, &err)) fail_msg("%s", err.msg);
}
static struct ask *send(uint32_t i, uint32_t first)
{
    asks[i] = (struct ask){0};
    send_spans(&asks[i], first);
    return &asks[i];
}
static void step(void)
{
    static uint64_t now;
    struct sched_event ev;
    sched_step(s, ++now);
    sched_check(s);
    while (sched_poll(s, &ev)) {
        struct ask *a = ev.user;
        if (ev.kind == EV_TOKEN) {
            assert_int_equal(ev.token.id, a->expect.tokens[ev.index]);
            a->got++;
            continue;
        }
        assert_int_equal(ev.end, END_LENGTH);
        assert_int_equal(a->got, ANSWER);
        a->cache = ev.cache;
        a->ended = true;
        free(a->expect.tokens);
    }
}

/* All reads of loads that aren't copied yet. */
static void set_reads(enum tier_read_state from, enum tier_read_state to)
{
    for (struct load *l = s->offload->loads; l; l = l->next)
        for (uint32_t i = l->copied; i < l->asked; i++)
            if (l->blocks[i].read.state == from) l->blocks[i].read.state = to;
}

/* As after a restart: more requests wait for records on a slow disk than may load at a time, or all wait for
 * one load of the same prefix. A request that has no records there is served meanwhile. */
static void test_slow_loads(void **state)
{
    bool same = *state;
    for (uint32_t i = 0; i < PROMPTS; i++)
        for (const struct ask *a = send(i, i); !a->ended;) step();
    for (uint32_t i = 0; i < PROMPTS; i++) send(i, same ? 0 : i);
    const struct ask *other = send(PROMPTS, PROMPTS);
    for (uint32_t turns = 0; !other->ended; turns++) {
        assert_true(turns < 20);
        step();
        set_reads(TIER_DONE, TIER_READING);
    }
    assert_int_equal(other->cache.reused, 0);
    set_reads(TIER_READING, TIER_DONE);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        while (!asks[i].ended) step();
        assert_true(asks[i].cache.reused >= LENGTH - BT);
    }
    struct sched_stats st;
    sched_stats(s, &st);
    /* The last ones are in the arena. */
    assert_in_range(st.tier_loads, same ? 1 : PROMPTS - ARENA * BT / LENGTH, same ? 1 : PROMPTS);
}

/* A load that is given up because the disk is slow counts in the measured speed. */
static void test_slow_disk(void **state)
{
    (void)state;
    double before = s->offload->us_per_byte;
    for (uint32_t i = 0; i < PROMPTS; i++)
        for (const struct ask *a = send(i, i); !a->ended;) step();
    const struct ask *a = send(0, 0);
    step();
    struct load *l = s->offload->loads;
    l->tier = CACHE_TIER_DISK;
    l->disk_bytes = l->host_bytes;
    set_reads(TIER_DONE, TIER_READING);
    for (uint32_t turns = 0; !a->ended; turns++) {
        assert_true(turns < 20);
        e.clock_us += 2e6;
        step();
        set_reads(TIER_READING, TIER_DONE);
    }
    assert_int_equal(a->cache.loaded, 0);
    assert_true(s->offload->us_per_byte > 10 * before);
}

/* The shape of the cache has what is in memory and in the tier once, whatever spans it has: here one with
 * tokens between its rows. */
static void test_shape(void **state)
{
    static struct cache_snapshot shape;
    static const uint8_t salt[32];
    uint32_t nodes[2];
    (void)state;
    for (uint32_t breaks = 0; breaks < 2; breaks++) {
        for (uint32_t i = 0; i < 2 * PROMPTS; i++) { /* the first ones again: loaded */
            struct ask *a = &asks[i % PROMPTS];
            *a = (struct ask){.span = span_of_image(BT, BT + 11, SPAN_CAUSAL)};
            a->span.image = false;
            a->span.grid = (struct prompt_grid){1, 3, 3 - breaks, 0, breaks};
            memset(a->span.key, 1 + (int)breaks, sizeof a->span.key);
            for (send_spans(a, i % 8); !a->ended;) step();
        }
        uint64_t asked = sched_snapshot_ask(s, salt);
        step();
        assert_true(sched_snapshot(s, salt, &asked, &shape));
        nodes[breaks] = shape.count;
        sched_reset_prefix_cache(s);
        step();
    }
    struct sched_stats st;
    sched_stats(s, &st);
    assert_true(st.tier_loads > 0);
    assert_int_equal(nodes[0], nodes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"test_slow_loads", test_slow_loads, setup, teardown, NULL},
        {"test_slow_disk", test_slow_disk, setup, teardown, NULL},
        {"test_shape", test_shape, setup, teardown, NULL},
        {"test_slow_load_of_the_same", test_slow_loads, setup, teardown, &asks},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

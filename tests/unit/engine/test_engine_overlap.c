/* Overlap through the scheduler and a whole engine: requests that come one after another, greedy and drawn at
 * a temperature, some ending by a stop id while their next row is computed for nobody, one that the host
 * draws. Every token, log-prob, rank and end is that of a run in which each step waits for the one before;
 * and steps were really submitted while another ran, without waiting for it. On the CPU no step is. */
#include "engine/internal.h"
#include "scheduler/scheduler.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/mini_sched.h"
#include "tests/lib/selectors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void cuemu_counts(unsigned long *allocations, unsigned long *launches, unsigned long *syncs)
    __attribute__((weak)); /* emu_api.h, which is C++ */

enum { REQUESTS = 12, PROMPT_MAX = 50, ANSWER = 40, STOPS = 40, SLOTS = 5 };

struct request {
    uint32_t tokens[PROMPT_MAX], stops[STOPS];
    struct prompt prompt;
    struct sampling_params sampling;
    struct sched_sequence seq;
    struct token_out out[ANSWER];
    uint32_t got;
    enum seq_end end;
};

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

static struct engine *engine_of(const char *family, const char *variant)
{
    struct engine *e = NULL;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(backend_sets[0]),
                                 .kernels = test_engine_kernels(backend_sets[0]),
                                 .threads = 1,
                                 .kv_bytes = 2u << 20,
                                 .batch_tokens_max = 64 + SLOTS,
                                 .sequences_max = SLOTS};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static void make_request(struct request *r, uint32_t i, bool with_host)
{
    uint64_t rng = i + 1;
    *r = (struct request){.prompt = {.token_count = 3 + i * 17 % (PROMPT_MAX - 3)}};
    for (uint32_t k = 0; k < PROMPT_MAX; k++) r->tokens[k] = 4 + next_random(&rng) % 200;
    for (uint32_t k = 0; k < STOPS; k++) r->stops[k] = next_random(&rng) % 512;
    r->prompt.tokens = r->tokens;
    r->sampling = mini_greedy();
    r->sampling.prompt_logprobs = SAMPLING_NO_LOGPROBS;
    r->sampling.logprobs = i % 3 ? i : SAMPLING_NO_LOGPROBS;
    r->sampling.seed = i;
    if (i % 4) r->sampling.temperature = 1.3f;
    if (with_host) r->sampling.top_k = 20;
    r->seq = (struct sched_sequence){.prompt = &r->prompt,
                                     .sampling = &r->sampling,
                                     .tokens_max = ANSWER - i,
                                     .ignore_eos = true,
                                     .stop_ids = r->stops,
                                     .stop_id_count = i % 2 ? STOPS : 0,
                                     .user = r};
}

/* Returns the steps that were submitted while another ran. */
static uint64_t serve(struct engine *e, bool no_overlap, struct request *r)
{
    struct sched_options opt = {.hash_seed = 1, .no_overlap = no_overlap};
    struct scheduler *s;
    struct err err;
    struct seq_id id;
    uint64_t before = e->ahead_steps, turn = 0;
    uint32_t sent = 0, ended = 0;
    assert_int_equal(sched_create(e, &opt, &s, &err), ST_OK);
    for (; ended < REQUESTS; turn++) {
        struct sched_event ev;
        if (sent < REQUESTS && turn % 4 == 0) {
            make_request(&r[sent], sent, sent == 5);
            assert_int_equal(sched_submit(s, &r[sent++].seq, &id, &err), ST_OK);
        }
        sched_step(s, turn + 1);
        while (sched_poll(s, &ev)) {
            struct request *q = ev.user;
            if (ev.kind == EV_TOKEN) q->out[q->got++] = ev.token;
            if (ev.kind != EV_END) continue;
            q->end = ev.end;
            ended++;
        }
        assert_true(turn < 1000);
    }
    sched_destroy(s);
    return e->ahead_steps - before;
}

static void check(const char *family, const char *variant)
{
    static struct request with[REQUESTS], without[REQUESTS];
    if (!selects_variant(variant)) return;
    struct engine *e = engine_of(family, variant);
    uint32_t stopped = 0;
    uint64_t ahead = serve(e, false, with);
    assert_int_equal(serve(e, true, without), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(with[i].end, without[i].end);
        assert_int_equal(with[i].got, without[i].got);
        stopped += with[i].end == END_STOP_TOKEN;
        for (uint32_t k = 0; k < with[i].got; k++) {
            const struct token_out *a = &with[i].out[k], *b = &without[i].out[k];
            if (a->id != b->id || a->rank != b->rank || memcmp(&a->logprob, &b->logprob, 4) != 0 ||
                memcmp(a->top, b->top, a->top_count * sizeof *a->top) != 0)
                fail_msg("%s: request %u differs at its token %u", variant, i, k);
        }
    }
    printf("  %s: %llu steps ahead, %u requests ended by a stop id\n", variant, (unsigned long long)ahead,
           stopped);
    assert_true(e->becaps.host_memory ? !ahead : ahead > 20);
    assert_true(stopped > 0);
    engine_close(e);
}

static void test_same_bits(void **state)
{
    (void)state;
    check("gemma3", "text_bf16");
    if (test_threads() > 1) check("gemma3", "window_small_f32");
    check("qwen", "qwen3_5_f32");
    check("qwen", "qwen3_moe_bf16");
}

/* Neither submission waits, and each step is waited for by itself. */
static void test_waits(void **state)
{
    (void)state;
    if (!cuemu_counts) skip();
    struct engine *e = engine_of("gemma3", "text_bf16");
    const uint32_t table[2] = {0, e->kv.groups[0].block_grains}, token = 5;
    struct sampling_params sampling = mini_greedy();
    struct engine_chunk chunks[4];
    struct err err;
    unsigned long at[6];
    for (uint32_t i = 0; i < 4; i++) {
        chunks[i] = (struct engine_chunk){.position = i,
                                          .count = 1,
                                          .after = i > 0,
                                          .tokens = &token,
                                          .token_count = i + 1,
                                          .prompt_count = 1,
                                          .sampling = &sampling,
                                          .sample = true,
                                          .score_first = UINT32_MAX};
        for (uint32_t g = 0; g < e->kv.table_groups; g++) chunks[i].tables[g] = table;
    }
    struct engine_batch b[4] = {{&chunks[0], 1}, {&chunks[1], 1}, {&chunks[2], 1}, {&chunks[3], 1}};
    assert_int_equal(engine_submit(e, &b[0], &err), ST_OK);
    for (uint32_t i = 1; i < 4; i++) {
        cuemu_counts(NULL, NULL, &at[0]);
        assert_int_equal(engine_submit(e, &b[i], &err), ST_OK);
        cuemu_counts(NULL, NULL, &at[1]);
        assert_int_equal(engine_wait(e, &b[i - 1], &err), ST_OK);
        cuemu_counts(NULL, NULL, &at[2]);
        assert_int_equal(at[1], at[0]);
        assert_int_equal(at[2], at[1] + 1);
    }
    assert_int_equal(engine_wait(e, &b[3], &err), ST_OK);
    engine_close(e);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits), cmocka_unit_test(test_waits)};
    test_backend_args(&argc, argv);
    return selectors_end(cmocka_run_group_tests_name("overlap", tests, NULL, NULL));
}

/* Statistics read by a second thread while the scheduler runs, steps overlapping: the numbers of one reading
 * are consistent, and every event that was seen is counted. And a stop while a step is in flight. */
#include "tests/sim/fake_engine.h"

#include "config/base/log.h"
#include "scheduler/scheduler.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { REQUESTS = 1000, AT_ONCE = 12, TOKENS_MAX = 5 };

static void *run_thread(void *s)
{
    sched_run(s);
    return NULL;
}

static uint64_t ended(const struct sched_stats *st)
{
    uint64_t n = 0;
    for (int i = 0; i < SEQ_ENDS; i++) n += st->ended[i];
    return n;
}

static void small_engine(struct engine *e)
{
    e->vocab = 1000;
    e->eos = 1;
    e->caps = (struct engine_caps){.group_count = 1,
                                   .block_tokens = 8,
                                   .arena_grains = 100,
                                   .context_max = 200,
                                   .sequences_max = 4,
                                   .batch_tokens_max = 64};
    e->caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    fake_open(e, false);
}

/* Turn by turn up to a step in flight: then the scheduler is destroyed, or stopped; each sequence ends once.
 */
static void test_stop_with_a_step_in_flight(void **state)
{
    (void)state;
    enum { SEQS = 3 };
    for (int run = 0; run < 2; run++) {
        uint32_t tokens[2] = {5, 6}, ends = 0;
        struct engine e = {.overlaps = true};
        struct prompt prompt = {.tokens = tokens, .token_count = 2};
        struct sampling_params sampling = {.prompt_logprobs = SAMPLING_NO_LOGPROBS};
        struct sched_sequence q = {
            .prompt = &prompt, .sampling = &sampling, .tokens_max = 150, .ignore_eos = true};
        struct scheduler *s;
        struct sched_event ev;
        struct err err;
        struct seq_id id;
        small_engine(&e);
        assert_int_equal(sched_create(&e, &(struct sched_options){.queue_max = 9}, &s, &err), ST_OK);
        for (int i = 0; i < SEQS; i++) assert_int_equal(sched_submit(s, &q, &id, &err), ST_OK);
        for (int i = 0; i < 20; i++) sched_step(s, 1);
        assert_int_equal(e.submitted, e.waited + 1);
        if (run) {
            sched_stop(s, false);
            sched_run(s);
            while (sched_poll(s, &ev)) {
                ends += ev.kind == EV_END;
                assert_true(ev.kind != EV_END || ev.end == END_CANCELLED);
            }
            assert_int_equal(ends, SEQS);
        }
        sched_destroy(s);
        fake_close(&e);
    }
}

static void test_readings(void **state)
{
    (void)state;
    static uint32_t tokens[20];
    struct engine e = {.overlaps = true};
    struct prompt prompts[AT_ONCE];
    struct sampling_params sampling = {.prompt_logprobs = SAMPLING_NO_LOGPROBS};
    struct scheduler *s;
    struct err err;
    struct seq_id ids[AT_ONCE];
    bool cancel[AT_ONCE] = {false};
    pthread_t runner;
    small_engine(&e);
    for (uint32_t i = 0; i < 20; i++) tokens[i] = 2 + i;
    assert_int_equal(sched_create(&e, &(struct sched_options){.queue_max = 100}, &s, &err), ST_OK);
    assert_int_equal(pthread_create(&runner, NULL, run_thread, s), 0);
    uint32_t sent = 0, gone = 0, told = 0, busy = 0, snapshots = 0, none = 0;
    static const uint8_t salt[32], other[32] = {1};
    uint64_t request_seq = sched_snapshot_ask(s, salt), others = sched_snapshot_ask(s, other);
    static struct cache_snapshot tree, empty;
    while (gone < REQUESTS) {
        for (; sent < REQUESTS && sent - gone < AT_ONCE; sent++) {
            /* A free place: one whose sequence has ended. */
            uint32_t k = 0;
            while (busy & 1u << k) k++;
            busy |= 1u << k;
            prompts[k] = (struct prompt){.tokens = tokens, .token_count = 1 + sent % 20};
            struct sched_sequence q = {.prompt = &prompts[k],
                                       .sampling = &sampling,
                                       .tokens_max = 1 + sent % TOKENS_MAX,
                                       .ignore_eos = true,
                                       .user = &prompts[k]};
            assert_int_equal(sched_submit(s, &q, &ids[k], &err), ST_OK);
            if (sent % 7 == 0) sched_cancel(s, ids[k]);
            cancel[k] = sent % 7 == 0;
        }
        struct sched_event ev;
        if (sched_poll(s, &ev)) {
            uint32_t k = (uint32_t)((struct prompt *)ev.user - prompts);
            told += ev.kind == EV_TOKEN;
            if (ev.kind == EV_END) {
                assert_true(ev.end == END_LENGTH || (ev.end == END_CANCELLED && cancel[k]));
                busy &= ~(1u << k);
                gone++;
            }
        }
        struct sched_stats st;
        sched_stats(s, &st);
        ASSERT_CMP(st.generated_tokens, >=, told);
        ASSERT_CMP(ended(&st), >=, gone);
        ASSERT_CMP(ended(&st) + st.running + st.waiting, ==, sent);
        if (sched_snapshot(s, other, &others, &empty)) {
            ASSERT(empty.count + empty.nodes + empty.tokens == 0); /* nothing of another salt's */
            others = sched_snapshot_ask(s, other);
            none++;
        }
        if (sched_snapshot(s, salt, &request_seq, &tree)) {
            snapshots++;
            request_seq = sched_snapshot_ask(s, salt);
            ASSERT(!sched_snapshot(s, salt, &(uint64_t){request_seq + 1}, &tree));
            for (uint32_t i = 0; i < tree.count; i++) {
                const struct cache_snapshot_node *n = &tree.at[i];
                ASSERT(n->start < n->end && n->end <= 20 + TOKENS_MAX);
                if (n->parent == CACHE_SNAPSHOT_ROOT) ASSERT_CMP(n->start, ==, 0);
                else ASSERT(n->parent < i && tree.at[n->parent].end == n->start);
            }
        }
        if (gone == sent) ASSERT_CMP(st.running + st.waiting + st.groups[0].blocks_live, ==, 0);
        ASSERT(st.running > 0 || st.groups[0].blocks_live == 0);
        ASSERT_CMP(st.groups[0].blocks_used, ==, st.groups[0].blocks_live + st.groups[0].blocks_cached);
    }
    assert_true(snapshots > 0 && none > 0 && tree.count > 0);
    sched_stop(s, true);
    pthread_join(runner, NULL);
    assert_true(e.ahead > 0);
    sched_destroy(s);
    fake_close(&e);
}

int main(void)
{
    log_set_level((enum log_level) - 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_readings),
                                       cmocka_unit_test(test_stop_with_a_step_in_flight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

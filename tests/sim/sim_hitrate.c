/* Hit rate of the prefix cache on generated traces of many sessions: the real scheduler over a fake engine
 * with Gemma-3-like groups (one full layer for five sliding ones), with arenas from 5 % to 200 % of the
 * trace's working set, against unlimited memory. Prints a table of hit tokens / the unlimited cache's hit
 * tokens, and asserts the retention guarantee: whenever the full-attention KV of everything and one window
 * per live session fit, the hit rate stays within 5 % of the unlimited one; alternating sessions keep hitting
 * (T28).
 *
 * Working set: full-attention blocks of all distinct prefixes, one window tail of every live session, and
 * what running sequences need. */
#include "tests/sim/fake_engine.h"

#include "tests/sim/traces.h"
#include "tests/lib/sched_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { SESSIONS_MAX = 128, ORDER_MAX = 1024 };
/* Qwen3.5-0.8B in units of 128 KiB: 6 full layers with 2 heads of 256 in bf16, 12 KiB a token; 18 gated delta
 * nets with 20 MiB of state in f32. */
enum { HYBRID_FULL_UNITS = 3, STATE_UNITS = 160 };

/* ---- one run ---- */
struct result {
    uint64_t hit, asked, full_blocks, arena;
    double states; /* most of the arena that saved states took, of 1 */
    uint32_t zeros, refused, longest;
};

static void submit_turn(struct scheduler *s, const struct trace *t, struct session *q, struct result *r)
{
    struct err err;
    struct seq_id id;
    begin_turn(t, q);
    if (sched_submit(s, &q->seq, &id, &err)) fail_msg("%s", err.msg);
    r->asked += q->prompt.token_count;
    if (q->prompt.token_count + t->answer > r->longest) r->longest = q->prompt.token_count + t->answer;
}

static struct session *all_sessions;
static struct result run_caps(const struct trace *t, const struct engine_caps *caps)
{
    struct engine e = {.vocab = 60000, .eos = 1, .caps = *caps};
    uint64_t arena = caps->arena_grains;
    e.takes.fixed = 20000; /* where states are saved depends on it: a model of 0.8B on a CPU */
    e.takes.row = 1000;
    fake_open(&e, false);
    struct sched_options opt = {.prefill_chunk = CHUNK, .hash_seed = 1, .clock = fake_clock, .clock_arg = &e};
    struct scheduler *s;
    struct err err;
    struct result r = {.arena = arena};
    ASSERT(sched_create(&e, &opt, &s, &err) == ST_OK);
    memset(all_sessions, 0, SESSIONS_MAX * sizeof *all_sessions);
    for (uint32_t i = 0; i < t->sessions; i++) all_sessions[i].random = fake_mix(i * 977ull + t->answer);
    uint32_t order[ORDER_MAX], next = 0, flying = 0;
    order_random = 5;
    uint32_t count = t->order(order, t->sessions, 1);
    ASSERT_CMP(count, <=, ORDER_MAX);
    uint64_t now = 1;
    while (next < count || flying > 0) {
        while (next < count && flying < t->concurrency && !all_sessions[order[next]].busy) {
            submit_turn(s, t, &all_sessions[order[next++]], &r);
            flying++;
        }
        sched_step(s, ++now);
        struct sched_event ev;
        struct sched_stats now_st;
        sched_stats(s, &now_st);
        double states = (double)now_st.cache_states * STATE_UNITS / (double)arena;
        if (states > r.states) r.states = states;
        while (sched_poll(s, &ev)) {
            struct session *q = ev.user;
            if (!take_event(t, &ev)) continue;
            r.hit += ev.cache.reused;
            q->hit += ev.cache.reused;
            if (q->turns > 1 && ev.cache.reused == 0) q->zeros++; /* the first finds nothing */
            flying--;
        }
    }
    sched_check(s);
    struct sched_stats st;
    sched_stats(s, &st);
    r.full_blocks = st.groups[0].blocks_used;
    for (uint32_t i = 0; i < t->sessions; i++) r.zeros += all_sessions[i].zeros > 0;
    sched_destroy(s);
    fake_close(&e);
    return r;
}
static struct result run_trace(const struct trace *t, uint32_t window, uint64_t arena)
{
    struct engine_caps caps = sim_caps(window, arena, 16);
    return run_caps(t, &caps);
}

static void test_hit_rates(void **state)
{
    (void)state;
    static const uint32_t percents[] = {5, 10, 25, 50, 75, 90, 100, 200};
    enum { PERCENTS = sizeof percents / sizeof percents[0] };
    static const uint32_t windows[] = {1024, 512};
    all_sessions = calloc(SESSIONS_MAX, sizeof *all_sessions);
    assert_non_null(all_sessions);
    printf("hit tokens of a bounded arena in %% of those of an unlimited one; * = raised to the least arena "
           "that takes the longest sequence\n");
    printf("%-22s %6s %10s %9s", "trace", "window", "set, units", "unlimited");
    for (uint32_t i = 0; i < PERCENTS; i++) printf(" %6u%%", percents[i]);
    printf("\n");
    bool good = true;
    for (uint32_t k = 0; k < TRACES; k++) {
        for (uint32_t w = 0; w < 2; w++) {
            const struct trace *t = &traces[k];
            struct result all = run_trace(t, windows[w], 1u << 18);
            uint64_t set = set_units(all.full_blocks, windows[w], t->live, t->concurrency),
                     least = least_arena(windows[w], all.longest);
            printf("%-22s %6u %10llu %8.1f%%", t->name, windows[w], (unsigned long long)set,
                   100.0 * (double)all.hit / (double)all.asked);
            for (uint32_t i = 0; i < PERCENTS; i++) {
                uint64_t arena = set * percents[i] / 100;
                bool raised = arena < least;
                struct result r = run_trace(t, windows[w], raised ? least : arena);
                double share = all.hit ? (double)r.hit / (double)all.hit : 1;
                printf(" %5.1f%s", 100 * share, raised ? "*" : " ");
                if (arena >= set && share < 0.95) good = false;
            }
            printf("\n");
        }
    }
    assert_true(good);
    free(all_sessions);
}

/* T28: sessions in turn that occupy a quarter of the pool, and all of it: nobody's hits fall to zero, and
 * little is computed again. */
static void test_T28_round_robin_keeps_hitting(void **state)
{
    (void)state;
    all_sessions = calloc(SESSIONS_MAX, sizeof *all_sessions);
    assert_non_null(all_sessions);
    for (uint32_t window = 512; window <= 1024; window += 512) {
        const struct trace *t = &traces[2];
        struct result all = run_trace(t, window, 1u << 18);
        uint64_t set = set_units(all.full_blocks, window, t->live, t->concurrency);
        for (uint32_t times = 4; times >= 1; times /= 2) {
            struct result r = run_trace(t, window, set * times);
            assert_int_equal(r.zeros, 0);
            assert_true((double)r.hit >= 0.95 * (double)all.hit);
        }
    }
    free(all_sessions);
}

static struct result run_hybrid(const struct trace *t, uint64_t arena, bool recurrent)
{
    struct engine_caps caps = sim_caps(0, arena, 16);
    caps.groups[0].block_grains = HYBRID_FULL_UNITS;
    caps.groups[1] = (struct engine_kv_group){.recurrent = true, .layers = 18, .block_grains = STATE_UNITS};
    caps.group_count = 1 + recurrent;
    return run_caps(t, &caps);
}

/* Compared with a model of full attention alone in the same arena. In an arena of four times the KV of the
 * whole trace, the states of all live conversations take a quarter or less. */
static void test_recurrent_layers(void **state)
{
    (void)state;
    static const uint32_t percents[] = {50, 100, 200, 400, 800};
    enum { PERCENTS = sizeof percents / sizeof percents[0] };
    uint64_t hit[PERCENTS] = {0}, full_hit[PERCENTS] = {0};
    all_sessions = calloc(SESSIONS_MAX, sizeof *all_sessions);
    assert_non_null(all_sessions);
    printf(
        "recurrent layers: hit tokens in %% of those of full attention alone in the same arena; most of the "
        "arena that saved states took; by the arena in %% of all keys and values\n%-22s",
        "trace");
    for (uint32_t i = 0; i < PERCENTS; i++) printf(" %13u%%", percents[i]);
    printf("\n");
    for (uint32_t k = 0; k < TRACES; k++) {
        const struct trace *t = &traces[k];
        uint64_t set = run_hybrid(t, 1u << 18, false).full_blocks * HYBRID_FULL_UNITS;
        printf("%-22s", t->name);
        for (uint32_t i = 0; i < PERCENTS; i++) {
            uint64_t arena = set * percents[i] / 100;
            if (arena < 12 * STATE_UNITS) arena = 12 * STATE_UNITS;
            struct result full = run_hybrid(t, arena, false), r = run_hybrid(t, arena, true);
            double share = full.hit ? (double)r.hit / (double)full.hit : 1;
            printf("  %5.1f (%4.1f%%)", 100 * share, 100 * r.states);
            hit[i] += r.hit;
            full_hit[i] += full.hit;
            /* Edits return to the ends of old turns, most of whose states are evicted. */
            if (percents[i] >= 400 && t->turn != edit_turn) assert_true(share >= 0.97 && r.states <= 0.25);
        }
        printf("\n");
    }
    printf("%-22s", "all");
    for (uint32_t i = 0; i < PERCENTS; i++) {
        printf("  %5.1f        ", 100 * (double)hit[i] / (double)full_hit[i]);
        if (percents[i] >= 400) assert_true((double)hit[i] >= 0.97 * (double)full_hit[i]);
    }
    printf("\n");
    free(all_sessions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hit_rates),
                                       cmocka_unit_test(test_recurrent_layers),
                                       cmocka_unit_test(test_T28_round_robin_keeps_hitting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

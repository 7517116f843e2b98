/* Sequences whose masks come late, against a fake engine: others continue, outputs stay the same, cancels and
 * deadlines reach them, and a scheduler that has nothing else to do sleeps until it is woken. */
#include "tests/sim/fake_engine.h"

#include "config/base/log.h"
#include "scheduler/scheduler.h"
#include "tests/lib/sched_check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

enum { PROMPT = 20, ANSWER = 12, SEQUENCES = 4 };

/* Masks that are ready after so many questions, or never. */
#define NEVER UINT32_MAX
struct late {
    struct sampling_constraint is;
    struct sampling_params sampling;
    atomic_uint turns; /* until a mask is ready */
    uint32_t left, at, fails_at;
    atomic_uint asked, stopped;
    uint32_t takes_us, briefs; /* of the planner's time, for a mask; calls that were to be brief */
};
static uint64_t clock_us; /* virtual: only masks take time */

static uint64_t clock_now(void *arg)
{
    (void)arg;
    return clock_us;
}

static enum mask_state prepare(void *arg, const uint32_t *tokens, uint32_t count, bool brief)
{
    struct late *l = arg;
    (void)tokens;
    l->briefs += brief;
    clock_us += brief ? 0 : l->takes_us;
    atomic_fetch_add(&l->asked, 1);
    if (l->fails_at && count + 1 == l->fails_at) return MASK_FAILED;
    if (atomic_load(&l->turns) == NEVER) return MASK_LATER;
    if (l->at != count + 1) {
        l->at = count + 1;
        l->left = atomic_load(&l->turns);
    }
    if (!l->left) return MASK_READY;
    l->left--;
    return MASK_LATER;
}
static uint32_t drafts(void *arg, const uint32_t *tokens, uint32_t count, uint32_t n)
{
    (void)tokens;
    clock_us += ((struct late *)arg)->takes_us;
    return count % 2 ? n : 0;
}
static uint32_t forced(void *arg, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out)
{
    (void)arg;
    (void)count;
    if (most) out[0] = tokens[-1]; /* wrong, or right by chance */
    return most ? 1 : 0;
}
static void stop(void *arg)
{
    atomic_fetch_add(&((struct late *)arg)->stopped, 1);
}

struct ask {
    struct late late;
    struct prompt prompt;
    struct seq_id id;
    uint32_t tokens[PROMPT], answer[ANSWER], count;
    enum seq_end end;
    bool ended;
};
static struct engine e;
static struct scheduler *s;
static struct ask asks[SEQUENCES];

static void open_all(void)
{
    struct err err;
    e = (struct engine){.vocab = 1000, .eos = 1};
    e.caps = (struct engine_caps){.group_count = 1,
                                  .block_tokens = 8,
                                  .arena_grains = 100,
                                  .vocab_size = 1000,
                                  .context_max = 200,
                                  .sequences_max = SEQUENCES,
                                  .batch_tokens_max = 64};
    e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    fake_open(&e, true);
    struct sched_options opt = {.queue_max = 10, .no_prefix_cache = true, .draft_max = 4, .clock = clock_now};
    assert_int_equal(sched_create(&e, &opt, &s, &err), ST_OK);
    memset(asks, 0, sizeof asks);
}

static void close_all(void)
{
    sched_destroy(s);
    fake_close(&e);
}

/* Sequence k; turns: how late each of its masks comes. constrained: else it is an ordinary one. */
static struct ask *ask(uint32_t k, bool constrained, uint32_t turns, uint64_t deadline_us)
{
    struct ask *a = &asks[k];
    struct err err;
    *a = (struct ask){.prompt = {.tokens = a->tokens, .token_count = PROMPT}};
    for (uint32_t i = 0; i < PROMPT; i++) a->tokens[i] = 2 + 7 * k + i;
    atomic_init(&a->late.turns, turns);
    a->late.is = (struct sampling_constraint){
        .arg = &a->late, .prepare = prepare, .drafts = drafts, .forced = forced, .stop = stop};
    a->late.sampling = (struct sampling_params){
        .seed = k, .prompt_logprobs = SAMPLING_NO_LOGPROBS, .constraint = constrained ? &a->late.is : NULL};
    struct sched_sequence q = {.prompt = &a->prompt,
                               .sampling = &a->late.sampling,
                               .tokens_max = ANSWER,
                               .ignore_eos = true,
                               .deadline_us = deadline_us,
                               .user = a};
    assert_int_equal(sched_submit(s, &q, &a->id, &err), ST_OK);
    return a;
}

static void take_events(void)
{
    struct sched_event ev;
    while (sched_poll(s, &ev)) {
        struct ask *a = ev.user;
        assert_false(a->ended);
        if (ev.kind == EV_TOKEN) a->answer[a->count++] = ev.token.id;
        if (ev.kind != EV_END) continue;
        a->ended = true;
        a->end = ev.end;
    }
}

static void test_late_masks(void **state)
{
    (void)state;
    uint32_t alone[SEQUENCES][ANSWER];
    for (uint32_t k = 0; k < SEQUENCES; k++) { /* each by itself, with masks that are there */
        open_all();
        struct ask *a = ask(k, true, 0, 0);
        for (uint64_t t = 0; !a->ended && t < 1000; t++) {
            sched_step(s, t);
            take_events();
        }
        assert_int_equal(a->count, ANSWER);
        memcpy(alone[k], a->answer, sizeof alone[k]);
        close_all();
    }
    open_all();
    struct ask *late = ask(0, true, 7, 0), *later = ask(1, true, 3, 0), *plain = ask(2, false, 0, 0);
    uint32_t steps = 0;
    for (uint64_t t = 0; !(late->ended && later->ended && plain->ended) && t < 1000; t++) {
        uint32_t before = plain->count;
        sched_step(s, t);
        take_events();
        if (!plain->ended && plain->count) steps++;
        if (before && !plain->ended) assert_true(plain->count > before); /* in each step */
    }
    assert_true(steps <= ANSWER);
    assert_memory_equal(late->answer, alone[0], sizeof alone[0]);
    assert_memory_equal(later->answer, alone[1], sizeof alone[1]);
    assert_memory_equal(plain->answer, alone[2], sizeof alone[2]);
    assert_int_equal(late->end, END_LENGTH);
    assert_int_equal(late->late.stopped, 1);
    struct sched_stats st;
    sched_stats(s, &st);
    assert_true(st.mask_waits >= 7 * 4);
    close_all();
}

/* Slow masks of many sequences: together they take little of a step. */
static void test_time_of_all(void **state)
{
    (void)state;
    open_all();
    for (uint32_t k = 0; k < SEQUENCES; k++) ask(k, true, 0, 0)->late.takes_us = 400;
    for (uint64_t t = 0; t < 1000; t++) {
        uint64_t before = clock_us;
        sched_step(s, t);
        take_events();
        assert_in_range(clock_us - before, 0, 4 * 500);
    }
    uint32_t asked = 0, briefs = 0;
    for (uint32_t k = 0; k < SEQUENCES; k++) {
        assert_int_equal(asks[k].end, END_LENGTH);
        asked += atomic_load(&asks[k].late.asked);
        briefs += asks[k].late.briefs;
    }
    assert_true(briefs >= asked / 2);
    close_all();
}

static void test_ends_while_it_waits(void **state)
{
    (void)state;
    open_all();
    struct ask *gone = ask(0, true, NEVER, 0), *late = ask(1, true, NEVER, 50), *plain = ask(2, false, 0, 0);
    struct ask *failing = ask(3, true, 0, 0);
    failing->late.fails_at = 4;
    for (uint64_t t = 0; t < 40; t++) {
        sched_step(s, t);
        take_events();
    }
    assert_true(plain->ended && plain->end == END_LENGTH);
    assert_true(failing->ended && failing->end == END_CONSTRAINT);
    assert_int_equal(failing->count, 3);
    assert_false(gone->ended || late->ended);
    assert_int_equal(gone->count, 0);
    sched_cancel(s, gone->id);
    sched_step(s, 41);
    take_events();
    assert_true(gone->ended && gone->end == END_CANCELLED);
    assert_int_equal(gone->late.stopped, 1);
    sched_step(s, 50);
    take_events();
    assert_true(late->ended && late->end == END_DEADLINE);
    assert_int_equal(late->late.stopped, 1);
    sched_check(s);
    close_all();
}

static void *run_thread(void *arg)
{
    sched_run(arg);
    return NULL;
}

/* Nothing but sequences that wait: the engine's thread sleeps, and goes on when it is woken. */
static void test_sleeps(void **state)
{
    (void)state;
    pthread_t runner;
    open_all();
    struct ask *a = ask(0, true, NEVER, 0), *b = ask(1, true, NEVER, 0);
    assert_int_equal(pthread_create(&runner, NULL, run_thread, s), 0);
    while (!atomic_load(&a->late.asked) || !atomic_load(&b->late.asked)) usleep(1000);
    usleep(20000); /* the prompts are prefilled up to the last token meanwhile */
    uint32_t before = atomic_load(&a->late.asked);
    usleep(300000);
    assert_in_range(atomic_load(&a->late.asked), before, before + 8);
    atomic_store(&a->late.turns, 0);
    atomic_store(&b->late.turns, 0);
    sched_wake(s);
    for (int i = 0; i < 10000 && !(a->ended && b->ended); i++) {
        usleep(1000);
        take_events();
    }
    assert_true(a->end == END_LENGTH && b->end == END_LENGTH);
    sched_stop(s, true);
    pthread_join(runner, NULL);
    close_all();
}

int main(void)
{
    log_set_level((enum log_level) - 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_late_masks),
                                       cmocka_unit_test(test_ends_while_it_waits),
                                       cmocka_unit_test(test_time_of_all), cmocka_unit_test(test_sleeps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

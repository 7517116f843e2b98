/* How much the prefix cache finds, on generated traces of many sessions: the real scheduler over a fake
 * engine with Gemma-3-like groups (one full layer for five sliding ones), with arenas from 5 % to 200 % of
 * the trace's working set, against unlimited memory. Prints a table of hit tokens / the unlimited cache's hit
 * tokens, and asserts what retention promises: whenever the full-attention KV of everything and one window
 * per live session fit, the hit rate stays within 5 % of the unlimited one; sessions in turn keep hitting
 * (T28).
 *
 * Working set: full-attention blocks of all distinct prefixes, one window tail of every live session, and
 * what running sequences need. */
#include "tests/sim/fake_engine.h"

#include "scheduler/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum {
    BT = 32,
    FULL_UNITS = 1,
    SLIDING_UNITS = 5,
    CONTEXT = 16000,
    SESSIONS_MAX = 128,
    IMAGES_MAX = 24,
    TURNS_MAX = 16,
    IMAGE_ROWS = 256,
    CHUNK = 512,
    ORDER_MAX = 1024,
    SOFT = 3
};

struct session {
    struct prompt prompt;
    struct prompt_span images[IMAGES_MAX];
    uint32_t tokens[CONTEXT];
    uint32_t turn_end[TURNS_MAX], turns; /* history length after each answer */
    uint64_t random;
    bool busy;
    struct sched_sequence seq;
    struct sampling_params sampling;
    uint64_t hit, zeros, asked; /* prompt tokens found; later turns that found nothing; prompt tokens */
};
struct trace {
    const char *name;
    uint32_t sessions, live, concurrency;
    void (*turn)(struct session *s, uint32_t number);    /* appends a turn to the session */
    uint32_t (*order)(uint32_t *out, uint32_t sessions); /* which session's turn is submitted when */
    uint32_t answer;
};

static uint64_t order_random;
static uint32_t pick(uint64_t *state, uint32_t below)
{
    *state = fake_mix(*state);
    return (uint32_t)((*state >> 33) % below);
}
static void text(struct session *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) s->tokens[s->prompt.token_count++] = 10 + pick(&s->random, 50000);
}
static void common_text(struct session *s, uint32_t count, uint64_t what)
{
    for (uint32_t i = 0; i < count; i++)
        s->tokens[s->prompt.token_count++] = 10 + (uint32_t)(fake_mix(i + (what << 32)) % 50000);
}
static void image(struct session *s)
{
    static uint8_t rgb[3];
    struct prompt_span *im = &s->images[s->prompt.span_count++];
    *im = span_of_picture(s->prompt.token_count, s->prompt.token_count + IMAGE_ROWS, SPAN_WITHIN);
    for (int i = 0; i < 4; i++) {
        uint64_t v = fake_mix(s->random + (uint64_t)i);
        memcpy(im->key + 8 * i, &v, 8);
    }
    pick(&s->random, 2);
    im->pixels = (struct image_u8){.width = 1, .height = 1, .rgb = rgb};
    for (uint32_t i = 0; i < IMAGE_ROWS; i++) s->tokens[s->prompt.token_count++] = SOFT;
}

/* ---- traces ---- */

/* A tool loop: one system prompt for all, long tool results. */
static void agent_turn(struct session *s, uint32_t number)
{
    (void)number;
    if (s->turns == 0) {
        common_text(s, 1500, 1);
        text(s, 80);
    } else {
        text(s, 100 + pick(&s->random, 500));
    }
}
static uint32_t agents_order(uint32_t *out, uint32_t sessions)
{
    enum { TURNS = 10, ACTIVE = 4 };
    uint32_t n = 0;
    for (uint32_t first = 0; first < sessions; first += ACTIVE) {
        uint32_t left[ACTIVE], active = ACTIVE * TURNS;
        for (uint32_t i = 0; i < ACTIVE; i++) left[i] = TURNS;
        while (active > 0) {
            uint32_t i = pick(&order_random, ACTIVE);
            if (!left[i]) continue;
            left[i]--;
            active--;
            out[n++] = first + i;
        }
    }
    return n;
}
/* People who come back at any time, with pictures. */
static void chat_turn(struct session *s, uint32_t number)
{
    (void)number;
    if (s->turns == 0) common_text(s, 300, 2);
    if (pick(&s->random, 2)) image(s);
    text(s, 30 + pick(&s->random, 150));
}
static uint32_t random_order(uint32_t *out, uint32_t sessions)
{
    enum { TURNS = 8 };
    uint32_t left[SESSIONS_MAX], n = 0;
    for (uint32_t i = 0; i < sessions; i++) left[i] = TURNS;
    while (n < sessions * TURNS) {
        uint32_t i = pick(&order_random, sessions);
        if (!left[i]) continue;
        left[i]--;
        out[n++] = i;
    }
    return n;
}
/* T28: sessions strictly in turn. */
static void robin_turn(struct session *s, uint32_t number)
{
    (void)number;
    text(s, s->turns == 0 ? 2500 : 120);
}
static uint32_t cyclic_order(uint32_t *out, uint32_t sessions)
{
    enum { TURNS = 8 };
    for (uint32_t i = 0; i < sessions * TURNS; i++) out[i] = i % sessions;
    return sessions * TURNS;
}
/* T3: one instruction, many pages. */
static void ocr_turn(struct session *s, uint32_t number)
{
    (void)number;
    common_text(s, 600, 3);
    image(s);
    common_text(s, 12, 4);
}
static uint32_t once_order(uint32_t *out, uint32_t sessions)
{
    for (uint32_t i = 0; i < sessions; i++) out[i] = i;
    return sessions;
}
/* Messages are edited (the history goes back to the end of an earlier turn), answers asked for again. */
static void edit_turn(struct session *s, uint32_t number)
{
    (void)number;
    uint32_t what = s->turns == 0 ? 9 : pick(&s->random, 10);
    if (what < 4) {
        uint32_t keep = pick(&s->random, s->turns);
        s->turns = keep;
        s->prompt.token_count = keep ? s->turn_end[keep - 1] : 0;
        while (s->prompt.span_count && s->images[s->prompt.span_count - 1].end > s->prompt.token_count)
            s->prompt.span_count--;
        if (!keep) common_text(s, 400, 5);
    } else if (s->turns == 0) {
        common_text(s, 400, 5);
    }
    text(s, 100 + pick(&s->random, 400));
}

static const struct trace traces[] = {
    {"agents, tool loops", 64, 4, 4, agent_turn, agents_order, 40},
    {"chat with pictures", 64, 64, 2, chat_turn, random_order, 60},
    {"round robin (T28)", 40, 40, 1, robin_turn, cyclic_order, 50},
    {"OCR, one prompt (T3)", 128, 1, 4, ocr_turn, once_order, 80},
    {"edits and branches", 32, 96, 2, edit_turn, random_order, 60},
};
enum { TRACES = sizeof traces / sizeof traces[0] };

/* ---- one run ---- */
struct result {
    uint64_t hit, asked, full_blocks, arena;
    uint32_t zeros, refused, longest;
};

static void submit_turn(struct scheduler *s, const struct trace *t, struct session *q, struct result *r)
{
    struct err err;
    struct seq_id id;
    t->turn(q, q->turns);
    ASSERT_CMP(q->prompt.token_count + t->answer, <=, CONTEXT);
    ASSERT_CMP(q->turns, <, TURNS_MAX);
    q->prompt.tokens = q->tokens;
    q->prompt.spans = q->images;
    q->sampling = (struct sampling_params){
        .seed = 1, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    q->seq = (struct sched_sequence){.prompt = &q->prompt,
                                     .sampling = &q->sampling,
                                     .tokens_max = t->answer,
                                     .ignore_eos = true,
                                     .user = q};
    enum status st = sched_submit(s, &q->seq, &id, &err);
    ASSERT(st == ST_OK);
    q->busy = true;
    r->asked += q->prompt.token_count;
    if (q->prompt.token_count + t->answer > r->longest) r->longest = q->prompt.token_count + t->answer;
}

static struct session *all_sessions;
static struct result run_trace(const struct trace *t, uint32_t window, uint64_t arena)
{
    struct engine e = {.vocab = 60000, .eos = 1};
    e.caps = (struct engine_caps){.group_count = 2,
                                  .block_tokens = BT,
                                  .arena_units = arena,
                                  .context_max = CONTEXT,
                                  .batch_tokens_max = 2048,
                                  .sequences_max = 16,
                                  .images = true,
                                  .span_tokens_max = IMAGE_ROWS};
    e.caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_units = FULL_UNITS};
    e.caps.groups[1] = (struct engine_kv_group){.layers = 5, .block_units = SLIDING_UNITS, .window = window};
    fake_open(&e, false);
    struct sched_options opt = {.prefill_chunk = CHUNK, .hash_seed = 1};
    struct scheduler *s;
    struct err err;
    struct result r = {.arena = arena};
    ASSERT(sched_create(&e, &opt, &s, &err) == ST_OK);
    memset(all_sessions, 0, SESSIONS_MAX * sizeof *all_sessions);
    for (uint32_t i = 0; i < t->sessions; i++) all_sessions[i].random = fake_mix(i * 977ull + t->answer);
    uint32_t order[ORDER_MAX], next = 0, flying = 0;
    order_random = 5;
    uint32_t count = t->order(order, t->sessions);
    ASSERT_CMP(count, <=, ORDER_MAX);
    uint64_t now = 1;
    while (next < count || flying > 0) {
        while (next < count && flying < t->concurrency && !all_sessions[order[next]].busy) {
            submit_turn(s, t, &all_sessions[order[next++]], &r);
            flying++;
        }
        sched_step(s, ++now);
        struct sched_event ev;
        while (sched_poll(s, &ev)) {
            struct session *q = ev.user;
            ASSERT(ev.kind != EV_IMAGE);
            if (ev.kind == EV_TOKEN) {
                q->tokens[q->prompt.token_count + ev.index] = ev.token.id;
                continue;
            }
            ASSERT(ev.end == END_LENGTH);
            r.hit += ev.cache.reused;
            q->hit += ev.cache.reused;
            if (q->turns > 0 && ev.cache.reused == 0) q->zeros++;
            q->prompt.token_count += t->answer;
            q->turn_end[q->turns++] = q->prompt.token_count;
            q->busy = false;
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

/* What is asked for at once by those that run: a chunk's sliding blocks each, and the window behind it. */
static uint64_t working_set(const struct trace *t, uint32_t window, const struct result *unlimited)
{
    uint64_t tail = (window + BT - 1) / BT + 1, run = (window + CHUNK) / BT + 2;
    return unlimited->full_blocks * FULL_UNITS + (t->live * tail + t->concurrency * run) * SLIDING_UNITS;
}
/* The least arena that takes the longest sequence. */
static uint64_t least_arena(uint32_t window, uint32_t longest)
{
    uint64_t full = longest / BT + 2, sliding = (window + CHUNK) / BT + 3;
    return (full * FULL_UNITS + sliding * SLIDING_UNITS) * 5 / 4 + 32;
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
            uint64_t set = working_set(t, windows[w], &all), least = least_arena(windows[w], all.longest);
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
        uint64_t set = working_set(t, window, &all);
        for (uint32_t times = 4; times >= 1; times /= 2) {
            struct result r = run_trace(t, window, set * times);
            assert_int_equal(r.zeros, 0);
            assert_true((double)r.hit >= 0.95 * (double)all.hit);
        }
    }
    free(all_sessions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hit_rates),
                                       cmocka_unit_test(test_T28_round_robin_keeps_hitting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Prefix caching with recurrent layers, on the fake engine: where states are saved, what later prompts reuse,
 * and that every token equals that of the request alone. Named cases are known failures of other servers.
 */
#include "tests/sim/fake_engine.h"

#include "scheduler/scheduler.h"
#include "tests/lib/block_index.h"
#include "tests/lib/sched_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { BT = 32, VOCAB = 1000, PROMPT_MAX = 8000, ANSWER = 40, SOFT = 3, IMAGE_TOKENS = 200, STATE = 53 };

struct desk {
    struct engine e;
    struct scheduler *s;
    uint64_t now;
};
struct ask {
    uint32_t tokens[PROMPT_MAX];
    struct prompt_span spans[4];
    uint8_t rgb[4][3];
    struct prompt prompt;
    struct sampling_params sampling;
    struct sched_sequence seq;
    struct fake_answer expect;
    uint32_t got;
    struct sched_cache_info cache;
    bool ended;
};

static void desk_open(struct desk *d, uint64_t arena, const struct sched_options *o, bool images)
{
    *d = (struct desk){.e = {.vocab = VOCAB, .eos = 7}};
    d->e.caps = (struct engine_caps){.group_count = 2,
                                     .block_tokens = BT,
                                     .context_max = PROMPT_MAX + ANSWER,
                                     .images = images,
                                     .sequences_max = 64,
                                     .batch_tokens_max = 2048,
                                     .arena_grains = arena};
    d->e.caps.groups[0] = (struct engine_kv_group){.layers = 6, .block_grains = 1};
    d->e.caps.groups[1] = (struct engine_kv_group){.recurrent = true, .layers = 18, .block_grains = STATE};
    d->e.takes.fixed = 20000;
    d->e.takes.row = 1000;
    fake_open(&d->e, true);
    struct sched_options opt = *o;
    opt.clock = fake_clock;
    opt.clock_arg = &d->e;
    opt.hash_seed = 1;
    struct err err;
    ASSERT(sched_create(&d->e, &opt, &d->s, &err) == ST_OK);
}
static void desk_close(struct desk *d)
{
    sched_destroy(d->s);
    fake_close(&d->e);
}

/* ---- requests ---- */
static void text(struct ask *a, uint32_t count, uint64_t what)
{
    for (uint32_t i = 0; i < count; i++)
        a->tokens[a->prompt.token_count++] = (uint32_t)(fake_mix(i + (what << 32)) % VOCAB);
}
static void image(struct ask *a, uint8_t shade)
{
    uint32_t n = a->prompt.span_count++, at = a->prompt.token_count;
    memset(a->rgb[n], shade, 3);
    a->spans[n] = span_of_image(at, at + IMAGE_TOKENS, SPAN_CAUSAL);
    a->spans[n].mrope_delta =
        (n ? a->spans[n - 1].mrope_delta : 0) + (int32_t)fake_advance(IMAGE_TOKENS) - IMAGE_TOKENS;
    memset(a->spans[n].key, shade, 32);
    a->spans[n].pixels = (struct image_u8){.width = 1, .height = 1, .rgb = a->rgb[n]};
    for (uint32_t i = 0; i < IMAGE_TOKENS; i++) a->tokens[a->prompt.token_count++] = SOFT;
}
static struct ask *new_ask(void)
{
    struct ask *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->sampling = (struct sampling_params){
        .seed = 1, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    return a;
}
static void send(struct desk *d, struct ask *a)
{
    struct err err;
    struct seq_id id;
    a->prompt.tokens = a->tokens;
    a->prompt.spans = a->spans;
    a->seq.prompt = &a->prompt;
    a->seq.sampling = &a->sampling;
    if (!a->seq.tokens_max) a->seq.tokens_max = ANSWER;
    a->seq.ignore_eos = true;
    a->seq.user = a;
    fake_oracle(&d->e, &a->prompt, a->sampling.seed, a->seq.tokens_max, 0, VOCAB + 1, true, NULL, &a->expect);
    if (sched_submit(d->s, &a->seq, &id, &err)) fail_msg("%s", err.msg);
}
static void step(struct desk *d)
{
    struct sched_event ev;
    sched_step(d->s, ++d->now);
    sched_check(d->s);
    while (sched_poll(d->s, &ev)) {
        struct ask *a = ev.user;
        if (ev.kind == EV_TOKEN) {
            assert_int_equal(ev.token.id, a->expect.tokens[ev.index]);
            a->got++;
        } else {
            assert_int_equal(ev.kind, EV_END);
            assert_int_equal(ev.end, END_LENGTH);
            assert_int_equal(a->got, a->expect.count);
            a->cache = ev.cache;
            a->ended = true;
        }
    }
}
/* Sends it and waits for its end. */
static const struct sched_cache_info *ask(struct desk *d, struct ask *a)
{
    send(d, a);
    while (!a->ended) step(d);
    return &a->cache;
}
/* The answer, as the next turn's prompt has it. */
static void append_answer(struct ask *a, const struct ask *before)
{
    memcpy(a->tokens, before->tokens, before->prompt.token_count * sizeof *a->tokens);
    a->prompt.token_count = before->prompt.token_count;
    for (uint32_t i = 0; i < before->expect.count; i++)
        a->tokens[a->prompt.token_count++] = before->expect.tokens[i];
}
static void done(struct ask *a)
{
    free(a->expect.tokens);
    free(a);
}
static struct sched_stats stats_of(struct desk *d)
{
    struct sched_stats st;
    sched_stats(d->s, &st);
    return st;
}
static const struct sched_options usual;
enum { PLENTY = 12000 };

/* ---- tests ---- */

/* A prefix of 1,500 tokens and 700 of its own, 64 requests one after the other: each has a hit but the first.
 * The second finds where they part, so all after it hit exactly there. */
static void test_shared_prefix(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 64; i++) {
        struct ask *a = new_ask();
        text(a, 1500, 1);
        text(a, 700, 100 + i);
        const struct sched_cache_info *c = ask(&d, a);
        if (i == 0) assert_int_equal(c->reused, 0);
        if (i == 1) assert_true(c->reused >= 1000 && c->stop == CACHE_STOP_STATE && c->equal == 1500);
        if (i > 1) assert_true(c->reused == 1500 && c->stop == CACHE_STOP_TOKEN);
        done(a);
    }
    desk_close(&d);
}

/* All at once: those that wait for the first one's prefill make it save its state where they part. */
static void test_shared_prefix_at_once(void **state)
{
    (void)state;
    struct desk d;
    struct ask *all[64];
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 64; i++) {
        all[i] = new_ask();
        text(all[i], 1500, 1);
        text(all[i], 700, 100 + i);
        send(&d, all[i]);
    }
    for (bool busy = true; busy;) {
        step(&d);
        busy = false;
        for (uint32_t i = 0; i < 64; i++) busy |= !all[i]->ended;
    }
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(all[i]->cache.reused, i ? 1500 : 0);
        done(all[i]);
    }
    assert_int_equal(stats_of(&d).prompt_tokens, 1500 + 64 * 700);
    desk_close(&d);
}

/* Equal prompts at once: one computes them, with one step more for its state, the others the few last tokens.
 */
static void test_equal_prompts_at_once(void **state)
{
    (void)state;
    struct desk d;
    struct ask *all[4];
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 4; i++) {
        all[i] = new_ask();
        text(all[i], 300, 1);
        all[i]->seq.tokens_max = 1;
        send(&d, all[i]);
    }
    while (!(all[0]->ended && all[1]->ended && all[2]->ended && all[3]->ended)) step(&d);
    assert_int_equal(d.e.rows, 300 + 3 * 8);
    assert_int_equal(d.e.steps, 2);
    for (uint32_t i = 0; i < 4; i++) done(all[i]);
    desk_close(&d);
}

/* Text is cached, then the same text with an image after it; a model without images reuses as much. */
static void test_text_then_image(void **state)
{
    (void)state;
    struct desk d;
    for (int images = 0; images < 2; images++) {
        desk_open(&d, PLENTY, &usual, images);
        uint32_t reused[3];
        for (uint32_t i = 0; i < 3; i++) {
            struct ask *a = new_ask();
            text(a, 900, 1);
            if (i && images) image(a, (uint8_t)i);
            text(a, 300, 10 + i);
            reused[i] = ask(&d, a)->reused;
            done(a);
        }
        assert_true(reused[0] == 0 && reused[1] >= 800 && reused[2] == 900);
        desk_close(&d);
    }
}

/* Only the text after an image changes: everything up to the image's end is reused, and it is not needed
 * again. Another image in its place reuses the text before it. */
static void test_text_after_image_changes(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, true);
    for (uint32_t i = 0; i < 5; i++) {
        struct ask *a = new_ask();
        text(a, 400, 1);
        image(a, i < 3 ? 1 : (uint8_t)i);
        text(a, 60 + i, 20 + i);
        const struct sched_cache_info *c = ask(&d, a);
        assert_int_equal(c->reused, i == 0 ? 0 : i < 3 ? 400 + IMAGE_TOKENS : i == 3 ? 0 : 400);
        if (i == 3) assert_true(c->stop == CACHE_STOP_STATE && c->equal == 400);
        if (i == 4) assert_true(c->stop == CACHE_STOP_IMAGE);
        assert_int_equal(d.e.encodes, i < 3 ? 1 : i - 1);
        done(a);
    }
    desk_close(&d);
}

/* A time stamp inside the system prompt differs: all before it is reused from the third request on. */
static void test_time_stamp(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 6; i++) {
        struct ask *a = new_ask();
        text(a, 350, 1);
        text(a, 12, 30 + i);
        text(a, 900, 2);
        const struct sched_cache_info *c = ask(&d, a);
        if (i > 1) assert_true(c->reused == 350 && c->equal == 350 && c->stop == CACHE_STOP_TOKEN);
        done(a);
    }
    desk_close(&d);
}

/* Prompts that part 64 tokens before their end. */
static void test_part_near_the_end(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 4; i++) {
        struct ask *a = new_ask();
        text(a, 1936, 1);
        text(a, 64, 40 + i);
        const struct sched_cache_info *c = ask(&d, a);
        if (i > 0) assert_true(c->reused >= (i == 1 ? 1300 : 1936) && c->equal == 1936);
        done(a);
    }
    desk_close(&d);
}

/* An equal prompt computes its end again; the next turn goes on where the answer ended. */
static void test_same_prompt_and_next_turn(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, true);
    struct ask *first = new_ask(), *same = new_ask(), *next = new_ask();
    text(first, 300, 1);
    text(first, 1000, 2);
    text(same, 300, 1);
    text(same, 1000, 2);
    ask(&d, first);
    const struct sched_cache_info *c = ask(&d, same);
    assert_true(c->reused >= 1300 - 16 && c->equal >= 1300 - 1 && c->stop == CACHE_STOP_STATE);
    append_answer(next, first);
    image(next, 7);
    text(next, 20, 3);
    c = ask(&d, next);
    assert_int_equal(c->reused, 1300 + ANSWER - 1);
    /* Reuse costs no copy but that of partly filled blocks of keys and values. */
    assert_int_equal(d.e.copies, stats_of(&d).cache_copied_blocks);
    done(first);
    done(same);
    done(next);
    desk_close(&d);
}

/* A long prompt has states inside: one that parts anywhere loses less than as many tokens as weigh as much as
 * a state. */
static void test_states_inside(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, false);
    for (uint32_t i = 0; i < 5; i++) {
        struct ask *a = new_ask();
        text(a, i ? 1300 * i : 7000, 1);
        if (i) text(a, 50, 50 + i);
        const struct sched_cache_info *c = ask(&d, a);
        if (i) assert_true(c->equal == 1300 * i && c->reused + STATE * BT > c->equal);
        done(a);
    }
    desk_close(&d);
}

/* Who is preempted goes on from its state: nothing is computed twice. */
static void test_preemption(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, PLENTY, &usual, false);
    d.e.caps.sequences_max = 1;
    sched_destroy(d.s);
    struct sched_options opt = {.clock = fake_clock, .clock_arg = &d.e, .hash_seed = 1};
    struct err err;
    ASSERT(sched_create(&d.e, &opt, &d.s, &err) == ST_OK);
    struct ask *all[4];
    for (uint32_t i = 0; i < 4; i++) {
        all[i] = new_ask();
        text(all[i], 600, 60 + i);
        all[i]->seq.tokens_max = 200;
        all[i]->seq.tenant = i;
        send(&d, all[i]);
    }
    while (!(all[0]->ended && all[1]->ended && all[2]->ended && all[3]->ended)) step(&d);
    assert_true(stats_of(&d).preemptions > 4);
    assert_int_equal(d.e.rows, 4 * (600 + 199));
    for (uint32_t i = 0; i < 4; i++) done(all[i]);
    desk_close(&d);
}

/* Memory for two states and little more: states come and go, everything still comes out right, and keys and
 * values stay where a state was dropped. */
static void test_few_states_fit(void **state)
{
    (void)state;
    struct desk d;
    desk_open(&d, 6 * STATE, &usual, true);
    for (uint32_t i = 0; i < 60; i++) {
        struct ask *a = new_ask();
        text(a, 500, i / 30);
        if (i % 4 == 0) image(a, (uint8_t)(1 + i % 5));
        text(a, 100 + i, 70 + i % 7);
        ask(&d, a);
        done(a);
    }
    struct sched_stats st = stats_of(&d);
    assert_true(st.groups[1].evicted_blocks > 0 && st.cache_hits > 0 && st.cache_states > 0);
    assert_int_equal(st.groups[1].hit_tokens, st.cache_hit_tokens);
    desk_close(&d);
}

/* An arena that is accepted serves something: a step may need two states. */
static void test_least_arena(void **state)
{
    (void)state;
    struct desk d;
    struct scheduler *none;
    struct sched_options opt = {.clock = fake_clock, .clock_arg = &d.e, .hash_seed = 1};
    struct err err;
    desk_open(&d, 3 * STATE, &usual, false);
    assert_true(sched_context_max(d.s) >= BT);
    d.e.caps.arena_grains--;
    assert_int_equal(sched_create(&d.e, &opt, &none, &err), ST_TOO_LARGE);
    d.e.caps.arena_grains++;
    desk_close(&d);
}

/* A router learns where states are: the last whole block before each, in a group of its own. */
static void test_events(void **state)
{
    (void)state;
    struct desk d;
    struct block_index *x = block_index_new(16, 1);
    struct sched_options o = {.event_sink = block_index_sink(x, 0)};
    desk_open(&d, PLENTY, &o, true);
    struct ask *a = new_ask();
    text(a, 200, 1);
    image(a, 1);
    text(a, 1000, 2);
    ask(&d, a);
    uint64_t keys[PROMPT_MAX / 16];
    uint32_t count = a->prompt.token_count / 16, states = 0;
    static const uint8_t no_salt[32];
    block_index_keys(x, a->tokens, a->prompt.token_count, a->spans, a->prompt.span_count, no_salt, keys);
    assert_int_equal(block_index_overlap(x, 0, 0, keys, count), count);
    for (uint32_t k = 0; k < count; k++) states += block_index_holds(x, 0, 1, keys[k]);
    /* The end of the image, of the prompt but a few tokens, and some inside; the turn's end is past it. */
    assert_true(block_index_holds(x, 0, 1, keys[(200 + IMAGE_TOKENS) / 16 - 1]));
    assert_true(block_index_holds(x, 0, 1, keys[(a->prompt.token_count - 8) / 16 - 1]));
    assert_int_equal(states + 1, stats_of(&d).cache_states);
    sched_reset_prefix_cache(d.s);
    step(&d);
    assert_int_equal(block_index_blocks(x, 0), 0);
    assert_int_equal(stats_of(&d).cache_states, 0);
    done(a);
    desk_close(&d);
    block_index_free(x);
}

/* The draft tokens' states: as with fake_engine's rule, after the accepted ones. A broken verify step leaves
 * no state; the sequence computes it again. */
static struct desk *broken_desk;
static void break_once(const struct engine_chunk *r)
{
    if (!r->proposed || !broken_desk) return;
    struct engine_chunk *w = (struct engine_chunk *)(uintptr_t)r;
    w->broken = true;
    broken_desk = NULL;
}
static uint32_t propose(void *arg, void *user, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out)
{
    const struct ask *a = user;
    uint32_t n = 0, at = count - a->prompt.token_count;
    (void)arg;
    (void)tokens;
    for (; n < most && at + n < a->expect.count; n++)
        out[n] = (at + n) % 3 ? a->expect.tokens[at + n] : (uint32_t)VOCAB - 1;
    return n;
}
static void test_broken_verify_step(void **state)
{
    (void)state;
    struct desk d;
    struct sched_options o = {.propose = propose, .draft_max = 4, .draft_always = true};
    desk_open(&d, PLENTY, &o, false);
    d.e.on_chunk = break_once;
    for (uint32_t i = 0; i < 2; i++) {
        struct ask *a = new_ask();
        text(a, 500, 90 + i);
        broken_desk = i ? &d : NULL;
        ask(&d, a);
        done(a);
    }
    struct sched_stats st = stats_of(&d);
    assert_true(st.accepted_tokens > 10 && st.accepted_tokens < st.proposed_tokens);
    assert_int_equal(st.preemptions, 1);
    desk_close(&d);
}

/* Without memory for their draft tokens, steps run without them: no sequence loses its answer. */
static void test_draft_tokens_refused(void **state)
{
    (void)state;
    struct desk d;
    struct sched_options o = {.propose = propose, .draft_max = 4, .draft_always = true};
    desk_open(&d, PLENTY, &o, false);
    d.e.drafts_refused_every = 3;
    struct ask *all[4];
    for (uint32_t i = 0; i < 4; i++) {
        all[i] = new_ask();
        text(all[i], 500, 90 + i);
        send(&d, all[i]);
    }
    while (!(all[0]->ended && all[1]->ended && all[2]->ended && all[3]->ended)) step(&d);
    struct sched_stats st = stats_of(&d);
    assert_true(st.accepted_tokens > 10 && st.accepted_tokens < st.proposed_tokens);
    assert_int_equal(st.preemptions, 0);
    for (uint32_t i = 0; i < 4; i++) done(all[i]);
    desk_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_prefix),
        cmocka_unit_test(test_shared_prefix_at_once),
        cmocka_unit_test(test_equal_prompts_at_once),
        cmocka_unit_test(test_text_then_image),
        cmocka_unit_test(test_text_after_image_changes),
        cmocka_unit_test(test_time_stamp),
        cmocka_unit_test(test_part_near_the_end),
        cmocka_unit_test(test_same_prompt_and_next_turn),
        cmocka_unit_test(test_states_inside),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_few_states_fit),
        cmocka_unit_test(test_least_arena),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_broken_verify_step),
        cmocka_unit_test(test_draft_tokens_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

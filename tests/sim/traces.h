/* Generated traces of many sessions, for the simulations of prefix caches: who submits which turn when.
 * Included by one .c file per test program, after fake_engine.h. */
#ifndef KVASIR_SIM_TRACES_H
#define KVASIR_SIM_TRACES_H

#include "scheduler/scheduler.h"

enum {
    BT = 32,
    FULL_UNITS = 1,
    SLIDING_UNITS = 5,
    CONTEXT = 16000,
    IMAGES_MAX = 24,
    TURNS_MAX = 16,
    IMAGE_ROWS = 256,
    CHUNK = 512,
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
    void (*turn)(struct session *s, uint32_t number); /* appends a turn to the session */
    /* Which session's turn is submitted when; `scale` times the usual number take part at once. */
    uint32_t (*order)(uint32_t *out, uint32_t sessions, uint32_t scale);
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
    *im = span_of_image(s->prompt.token_count, s->prompt.token_count + IMAGE_ROWS, SPAN_BIDIRECTIONAL);
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
/* All turns of sessions [first, first + count), each `turns` times, in random order. */
static uint32_t shuffled(uint32_t *out, uint32_t first, uint32_t count, uint32_t turns)
{
    uint32_t *left = malloc(count * sizeof *left), n = 0;
    ASSERT(left);
    for (uint32_t i = 0; i < count; i++) left[i] = turns;
    while (n < count * turns) {
        uint32_t i = pick(&order_random, count);
        if (!left[i]) continue;
        left[i]--;
        out[n++] = first + i;
    }
    free(left);
    return n;
}
static uint32_t agents_order(uint32_t *out, uint32_t sessions, uint32_t scale)
{
    uint32_t n = 0, active = 4 * scale;
    for (uint32_t first = 0; first < sessions; first += active) n += shuffled(out + n, first, active, 10);
    return n;
}
/* People who come back at any time, with images. */
static void chat_turn(struct session *s, uint32_t number)
{
    (void)number;
    if (s->turns == 0) common_text(s, 300, 2);
    if (pick(&s->random, 2)) image(s);
    text(s, 30 + pick(&s->random, 150));
}
static uint32_t random_order(uint32_t *out, uint32_t sessions, uint32_t scale)
{
    (void)scale;
    return shuffled(out, 0, sessions, 8);
}
/* T28: sessions strictly in turn. */
static void robin_turn(struct session *s, uint32_t number)
{
    (void)number;
    text(s, s->turns == 0 ? 2500 : 120);
}
static uint32_t cyclic_order(uint32_t *out, uint32_t sessions, uint32_t scale)
{
    (void)scale;
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
static uint32_t once_order(uint32_t *out, uint32_t sessions, uint32_t scale)
{
    (void)scale;
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
    {"chat with images", 64, 64, 2, chat_turn, random_order, 60},
    {"round robin (T28)", 40, 40, 1, robin_turn, cyclic_order, 50},
    {"OCR, one prompt (T3)", 128, 1, 4, ocr_turn, once_order, 80},
    {"edits and branches", 32, 96, 2, edit_turn, random_order, 60},
};
enum { TRACES = sizeof traces / sizeof traces[0] };

/* Appends the session's next turn and makes the sequence that is to be submitted, q->seq. */
static void begin_turn(const struct trace *t, struct session *q)
{
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
    q->busy = true;
}
/* Its answer is complete. */
static void end_turn(const struct trace *t, struct session *q)
{
    q->prompt.token_count += t->answer;
    q->turn_end[q->turns++] = q->prompt.token_count;
    q->busy = false;
}
/* Takes what a session's sequence says; true: its turn has ended. */
static bool take_event(const struct trace *t, const struct sched_event *ev)
{
    struct session *q = ev->user;
    ASSERT(ev->kind != EV_IMAGE);
    if (ev->kind == EV_TOKEN) {
        q->tokens[q->prompt.token_count + ev->index] = ev->token.id;
        return false;
    }
    ASSERT(ev->end == END_LENGTH);
    end_turn(t, q);
    return true;
}
/* What is asked for at once by those that run: a chunk's sliding blocks each, and the window behind it; the
 * last window of every live session, and the full blocks of everything. */
static uint64_t set_units(uint64_t full_blocks, uint32_t window, uint32_t live, uint32_t running)
{
    uint64_t tail = (window + BT - 1) / BT + 1, chunk = (window + CHUNK) / BT + 2;
    return full_blocks * FULL_UNITS + (live * tail + running * chunk) * SLIDING_UNITS;
}
/* The least arena that takes the longest sequence. */
static uint64_t least_arena(uint32_t window, uint32_t longest)
{
    uint64_t full = longest / BT + 2, sliding = (window + CHUNK) / BT + 3;
    return (full * FULL_UNITS + sliding * SLIDING_UNITS) * 5 / 4 + 32;
}
static struct engine_caps sim_caps(uint32_t window, uint64_t arena, uint32_t sequences)
{
    struct engine_caps caps = {.group_count = 2,
                               .block_tokens = BT,
                               .arena_grains = arena,
                               .context_max = CONTEXT,
                               .batch_tokens_max = 2048,
                               .sequences_max = sequences,
                               .images = true,
                               .span_tokens_max = IMAGE_ROWS};
    caps.groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = FULL_UNITS};
    caps.groups[1] = (struct engine_kv_group){.layers = 5, .block_grains = SLIDING_UNITS, .window = window};
    return caps;
}

#endif

/* The draft model against transformers: every round of greedy speculative decoding on the checkpoints of
 * tests/golden/gemma4-mtp, every kernel set of this CPU: the draft tokens of a clean state, how many of them
 * the target accepts, and its tokens. Then the same with all cases of a checkpoint in the same steps, with
 * different numbers of draft tokens: nothing may change. */
#include "engine/internal.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CASES_MAX = 4, DRAFT_MAX = 8, TOKENS_MAX = 256 };

/* One case on its way. */
struct talk {
    const struct golden_case *c;
    const int32_t *at, *drafts,
        *accepted; /* of every round: known tokens, draft tokens ([rounds, most]), drawn */
    uint32_t rounds, most;
    uint32_t tokens[TOKENS_MAX], known, round;
    uint32_t *tables[ENGINE_GROUPS_MAX];
    uint32_t drafted[DRAFT_MAX], draft_count;
    struct token_out drawn[DRAFT_MAX + 1];
};

static const int32_t *ints(const struct golden *g, uint32_t n, const char *name, uint32_t *rows,
                           uint32_t *cols)
{
    char key[64];
    snprintf(key, sizeof key, "case%u.%s", n, name);
    const struct stf_tensor *t = stf_find(g->files, key);
    assert_non_null(t);
    assert_true(t->dtype == STF_I32 && t->rank >= 1);
    *rows = (uint32_t)t->shape[0];
    *cols = t->rank > 1 ? (uint32_t)t->shape[1] : 1;
    return t->data;
}

static void begin(struct talk *k, const struct golden *g, uint32_t n, const struct engine_caps *caps,
                  uint32_t *block_offset)
{
    uint32_t cols;
    *k = (struct talk){.c = &g->cases[n], .known = g->cases[n].prompt_count};
    k->at = ints(g, n, "round_tokens", &k->rounds, &cols);
    k->drafts = ints(g, n, "drafts", &k->rounds, &k->most);
    k->accepted = ints(g, n, "accepted", &k->rounds, &cols);
    assert_true(k->most <= DRAFT_MAX && k->known + k->c->greedy_count + k->most < TOKENS_MAX);
    memcpy(k->tokens, k->c->prompt, k->known * sizeof *k->tokens);
    for (uint32_t i = 0; i < caps->group_count; i++) {
        k->tables[i] = calloc(TOKENS_MAX, sizeof(uint32_t));
        for (uint32_t b = 0; b <= TOKENS_MAX / caps->block_tokens;
             b++, *block_offset += caps->groups[i].block_grains)
            k->tables[i][b] = *block_offset;
    }
    assert_true(*block_offset <= caps->arena_grains);
}

static void end(struct talk *k)
{
    for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) free(k->tables[g]);
}

static bool over(const struct talk *k)
{
    return k->known == k->c->prompt_count + k->c->greedy_count;
}

/* The draft tokens of all that still talk: those of the round, or with `fewer` one less for every second. */
static void draft_all(struct engine *e, struct talk *talks, uint32_t n, bool fewer)
{
    struct engine_draft d[CASES_MAX];
    uint32_t count = 0;
    struct err err;
    for (uint32_t i = 0; i < n; i++) {
        struct talk *k = &talks[i];
        k->draft_count = 0;
        if (over(k) || k->known == k->c->prompt_count) continue;
        uint32_t left = k->c->prompt_count + k->c->greedy_count - k->known - 1;
        k->draft_count = k->most < left ? k->most : left;
        if (fewer && i % 2 == 0 && k->draft_count) k->draft_count--;
        if (!k->draft_count) continue;
        d[count] = (struct engine_draft){.slot = n - 1 - i,
                                         .position = k->known - 1,
                                         .token = k->tokens[k->known - 1],
                                         .count = k->draft_count,
                                         .out = k->drafted};
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) d[count].tables[g] = k->tables[g];
        count++;
    }
    if (count) assert_int_equal(engine_draft(e, d, count, &err), ST_OK);
    for (uint32_t i = 0; i < n; i++)
        memcpy(talks[i].tokens + talks[i].known, talks[i].drafted, talks[i].draft_count * 4);
}

static void verify(struct engine *e, struct talk *talks, uint32_t n)
{
    static const struct sampling_params greedy = {.top_p = 1,
                                                  .repetition_penalty = 1,
                                                  .logprobs = SAMPLING_NO_LOGPROBS,
                                                  .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    struct engine_chunk chunks[CASES_MAX];
    struct engine_batch b = {.chunks = chunks};
    struct talk *who[CASES_MAX];
    struct err err;
    for (uint32_t i = 0; i < n; i++) {
        struct talk *k = &talks[i];
        if (over(k)) continue;
        bool first = k->known == k->c->prompt_count;
        who[b.chunk_count] = k;
        struct engine_chunk *r = &chunks[b.chunk_count++];
        *r = (struct engine_chunk){.position = first ? 0 : k->known - 1,
                                   .count = (first ? k->known : 1) + k->draft_count,
                                   .tokens = k->tokens,
                                   .token_count = k->known + k->draft_count,
                                   .prompt_count = k->c->prompt_count,
                                   .proposed = k->draft_count,
                                   .drawn = k->drawn,
                                   .draft_slot = n - 1 - i,
                                   .sampling = &greedy,
                                   .sample = true,
                                   .score_first = UINT32_MAX};
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) r->tables[g] = k->tables[g];
    }
    assert_int_equal(engine_submit(e, &b, &err), ST_OK);
    assert_int_equal(engine_wait(e, &b, &err), ST_OK);
    for (uint32_t i = 0; i < b.chunk_count; i++) {
        struct talk *k = who[i];
        for (uint32_t j = 0; j < chunks[i].drawn_count; j++) {
            uint32_t id = k->draft_count ? k->drawn[j].id : chunks[i].out.id;
            assert_int_equal(id, k->c->greedy[k->known - k->c->prompt_count]);
            k->tokens[k->known++] = id;
        }
    }
}

static void check_round(struct talk *k, const char *where)
{
    if (over(k) || k->known == k->c->prompt_count) return;
    assert_true(k->round < k->rounds);
    const int32_t *want = k->drafts + k->round * k->most;
    assert_int_equal(k->at[k->round], k->known);
    for (uint32_t j = 0; j < k->most; j++) {
        int32_t got = j < k->draft_count ? (int32_t)k->drafted[j] : -1;
        if (got != want[j])
            fail_msg("%s, %s, round %u: draft token %u is %d, not %d", where, k->c->name, k->round, j, got,
                     want[j]);
    }
}

/* fewer: some draft less than the rounds say, and those are not looked at. */
static void all_rounds(struct engine *e, const struct golden *g, uint32_t first, uint32_t n, bool fewer,
                       const char *where)
{
    struct talk *talks = calloc(CASES_MAX, sizeof *talks);
    struct engine_caps caps;
    uint32_t block_offset = 0, open = n;
    engine_caps(e, &caps);
    for (uint32_t i = 0; i < n; i++) begin(&talks[i], g, first + i, &caps, &block_offset);
    while (open) {
        uint32_t before[CASES_MAX];
        draft_all(e, talks, n, fewer);
        for (uint32_t i = 0; i < n; i++) {
            if (!fewer) check_round(&talks[i], where);
            before[i] = talks[i].known;
        }
        verify(e, talks, n);
        open = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct talk *k = &talks[i];
            open += !over(k);
            if (before[i] == k->c->prompt_count || before[i] == k->known) continue;
            if (!fewer) assert_int_equal(k->accepted[k->round], k->known - before[i] - 1);
            k->round++;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!fewer) assert_int_equal(talks[i].round, talks[i].rounds);
        end(&talks[i]);
    }
    free(talks);
}

static struct engine *open_pair(const char *variant, const char *set, struct golden *g)
{
    char dir[512], drafter[600];
    struct engine *e;
    struct err err = {{0}};
    golden_dir(dir, sizeof dir, "gemma4-mtp", variant);
    snprintf(drafter, sizeof drafter, "%s/assistant", dir);
    struct engine_options opt = {.model_dir = dir,
                                 .draft_dir = drafter,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = 2,
                                 .kv_bytes = 64u << 20,
                                 .context_max = TOKENS_MAX,
                                 .sequences_max = CASES_MAX};
    if (engine_open(&opt, &e, &err)) fail_msg("%s, %s: %s", variant, set, err.msg);
    golden_open(g, "gemma4-mtp", variant, NULL);
    return e;
}

static void one_variant(const char *variant, const char *set)
{
    char where[128];
    struct golden g;
    struct engine *e = open_pair(variant, set, &g);
    snprintf(where, sizeof where, "%.60s, %.20s", variant, set);
    for (uint32_t i = 0; i < g.case_count; i++) all_rounds(e, &g, i, 1, false, where);
    all_rounds(e, &g, 0, g.case_count, false, where);
    all_rounds(e, &g, 0, g.case_count, true, where);
    golden_close(&g);
    engine_close(e);
}

static void rounds_are_those_of_transformers(void **state)
{
    char names[16][64];
    uint32_t n = golden_variants("gemma4-mtp", names, 16);
    (void)state;
    assert_true(n >= 2);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < TEST_SETS; s++)
            if (be_cpu_has(backend_sets[s])) one_variant(names[i], backend_sets[s]);
}

/* Damaged weights: a draft token is a token whatever the drafter computes, and the answer stays. */
static void a_damaged_drafter_drafts_tokens(void **state)
{
    static const char *const variants[] = {"e2b_f32", "31b_f32"};
    (void)state;
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t s = 0; s < TEST_SETS; s++) {
            struct golden g;
            struct engine_caps caps;
            static struct talk k;
            uint32_t block_offset = 0;
            if (!be_cpu_has(backend_sets[s])) continue;
            struct engine *e = open_pair(variants[v], backend_sets[s], &g);
            engine_caps(e, &caps);
            float *nan = malloc(e->draft.net.desc.hidden * sizeof *nan);
            for (uint32_t i = 0; i < e->draft.net.desc.hidden; i++) nan[i] = NAN;
            e->ops->upload(e->be, (void *)(uintptr_t)e->draft.net.w.final_norm, nan,
                           e->draft.net.desc.hidden * sizeof *nan);
            free(nan);
            begin(&k, &g, 0, &caps, &block_offset);
            while (!over(&k)) {
                draft_all(e, &k, 1, false);
                for (uint32_t i = 0; i < k.draft_count; i++) assert_true(k.drafted[i] < caps.vocab_size);
                verify(e, &k, 1); /* compares the tokens */
            }
            end(&k);
            golden_close(&g);
            engine_close(e);
        }
}

static void expect_error(const char *model, const char *drafter, const char *text)
{
    struct engine_options opt = {.model_dir = model, .draft_dir = drafter, .backend = BACKEND_CPU};
    struct engine *e;
    struct err err = {{0}};
    assert_int_not_equal(engine_open(&opt, &e, &err), ST_OK);
    if (!strstr(err.msg, text)) fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
}

static void wrong_pairs_are_refused(void **state)
{
    char e2b[512], own[600], other[512], text[512];
    (void)state;
    golden_dir(e2b, sizeof e2b, "gemma4-mtp", "e2b_f32");
    golden_dir(other, sizeof other, "gemma4-mtp", "31b_f32");
    golden_dir(text, sizeof text, "gemma3", "text_f32");
    snprintf(own, sizeof own, "%s/assistant", e2b);
    expect_error(own, NULL, "give it with --draft-model");
    expect_error(e2b, other, " model. Only Gemma 4's MTP drafters");
    expect_error(other, own, "is no drafter for");
    expect_error(e2b, "/nowhere", "/nowhere");
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_those_of_transformers),
        cmocka_unit_test(a_damaged_drafter_drafts_tokens),
        cmocka_unit_test(wrong_pairs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Speculative decoding with recurrent layers: a step with draft tokens, right and wrong ones, several
 * sequences at a time, leaves outputs and states bit for bit as if the tokens had come one by one, in place
 * and from block to block; every kernel set of this CPU. And what a state's group looks like. */
#include "engine/internal.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SEQS = 4, PROMPT = 23, GENERATE = 40, TOTAL = PROMPT + GENERATE, DRAFTS = 6 };

struct talk {
    uint32_t tokens[TOTAL + DRAFTS + 1], known; /* known: the last one is not in the cache */
    uint32_t *tables[ENGINE_GROUPS_MAX], states[2];
    struct token_out out[TOTAL + 1];
};

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

static bool own_drafter; /* of the engines */

static struct engine *open_engine(const char *variant, const char *set)
{
    char dir[600];
    struct engine *e;
    struct err err;
    golden_dir(dir, sizeof dir,
               strstr(variant, ".gguf")           ? "gguf"
               : strncmp(variant, "lfm2", 4) == 0 ? "llama"
                                                  : "qwen",
               variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = 2,
                                 .own_drafter = own_drafter,
                                 .kv_bytes = 32u << 20,
                                 .context_max = 256,
                                 .batch_tokens_max = 256,
                                 .sequences_max = SEQS + 1};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static void begin(struct talk *k, const struct engine_caps *caps, uint64_t seed, uint32_t *block_offset)
{
    *k = (struct talk){.known = PROMPT};
    for (uint32_t i = 0; i < PROMPT; i++) k->tokens[i] = 4 + next_random(&seed) % 280;
    for (uint32_t g = 0; g < caps->group_count; g++) {
        uint32_t blocks = caps->groups[g].recurrent ? 2 : (TOTAL + DRAFTS) / caps->block_tokens + 1,
                 *table = calloc(blocks, sizeof *table);
        assert_non_null(table);
        for (uint32_t b = 0; b < blocks; b++, *block_offset += caps->groups[g].block_grains)
            table[b] = *block_offset;
        k->tables[g] = table;
        if (caps->groups[g].recurrent) memcpy(k->states, table, sizeof k->states);
    }
    assert_true(*block_offset <= caps->arena_grains);
}

/* The drafter's tokens after the known ones. */
static void draft(struct engine *e, struct talk *k, uint32_t slot, uint32_t count)
{
    struct engine_draft d = {.slot = slot,
                             .position = k->known - 1,
                             .token = k->tokens[k->known - 1],
                             .count = count,
                             .out = k->tokens + k->known};
    struct err err;
    memcpy(d.tables, k->tables, sizeof d.tables);
    assert_int_equal(engine_draft(e, &d, 1, &err), ST_OK);
}

/* One step of all; `answer`: the tokens that they will say, from which drafts are made, or by the drafter in
 * the checkpoint if there is one (NULL: none). */
static void step(struct engine *e, struct talk *talks, uint32_t n, const struct talk *answer, uint64_t *rng)
{
    static const struct sampling_params greedy = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = 4, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    struct engine_chunk chunks[SEQS];
    struct token_out drawn[SEQS][DRAFTS + 1];
    struct engine_batch b = {.chunks = chunks};
    struct talk *who[SEQS];
    struct err err;
    for (uint32_t i = 0; i < n; i++) {
        struct talk *k = &talks[i];
        bool first = k->known == PROMPT;
        uint32_t left = TOTAL - k->known, drafts = answer ? next_random(rng) % (DRAFTS + 1) : 0;
        if (!left) continue;
        if (drafts >= left) drafts = left - 1;
        uint32_t right = drafts ? next_random(rng) % (drafts + 1) : 0;
        if (drafts && own_drafter && !first) draft(e, k, i, drafts);
        for (uint32_t j = 0; j < drafts && !(own_drafter && !first); j++) {
            uint32_t id = answer[i].tokens[k->known + j];
            k->tokens[k->known + j] = j < right ? id : id ^ 1;
        }
        who[b.chunk_count] = k;
        struct engine_chunk *r = &chunks[b.chunk_count];
        *r = (struct engine_chunk){.position = first ? 0 : k->known - 1,
                                   .count = (first ? k->known : 1) + drafts,
                                   .tokens = k->tokens,
                                   .token_count = k->known + drafts,
                                   .prompt_count = PROMPT,
                                   .state_from = first ? ENGINE_NO_BLOCK : k->states[0],
                                   .state_to = k->states[rng && next_random(rng) % 2],
                                   .proposed = drafts,
                                   .drawn = drawn[b.chunk_count],
                                   .draft_slot = i,
                                   .sampling = &greedy,
                                   .sample = true,
                                   .score_first = UINT32_MAX};
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) r->tables[g] = k->tables[g];
        b.chunk_count++;
    }
    assert_int_equal(engine_submit(e, &b, &err), ST_OK);
    assert_int_equal(engine_wait(e, &b, &err), ST_OK);
    for (uint32_t i = 0; i < b.chunk_count; i++) {
        struct talk *k = who[i];
        assert_false(chunks[i].broken);
        for (uint32_t j = 0; j < chunks[i].drawn_count; j++) {
            k->out[k->known] = chunks[i].proposed ? drawn[i][j] : chunks[i].out;
            k->tokens[k->known] = k->out[k->known].id;
            k->known++;
        }
        if (chunks[i].state_to == k->states[0]) continue;
        k->states[1] = k->states[0];
        k->states[0] = chunks[i].state_to;
    }
}

static bool over(const struct talk *talks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (talks[i].known < TOTAL) return false;
    return true;
}

static void run(struct engine *e, struct talk *talks, uint32_t n, const struct talk *answer, uint64_t seed)
{
    struct engine_caps caps;
    uint32_t block_offset = 0;
    engine_caps(e, &caps);
    for (uint32_t i = 0; i < n; i++) begin(&talks[i], &caps, 70 + i, &block_offset);
    while (!over(talks, n)) step(e, talks, n, answer, answer ? &seed : NULL);
}

static void *state_of(struct engine *e, const struct talk *k)
{
    size_t bytes = (size_t)e->kv.groups[e->kv.table_groups].block_bytes;
    void *host = malloc(bytes);
    assert_non_null(host);
    e->ops->download(e->be, host, (char *)e->arena + (size_t)k->states[0] * BE_KV_GRAIN, bytes);
    return host;
}

static void end(struct talk *talks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) free(talks[i].tables[g]);
}

static void one_variant(const char *variant, const char *set)
{
    static struct talk plain[SEQS], drafted[SEQS];
    struct engine *e = open_engine(variant, set);
    void *states[SEQS];
    run(e, plain, SEQS, NULL, 0);
    for (uint32_t i = 0; i < SEQS; i++) states[i] = state_of(e, &plain[i]);
    for (uint64_t seed = 1; seed <= (BACKEND_ON_CPU && !test_briefly() ? 3 : 1); seed++) {
        run(e, drafted, SEQS, plain, seed);
        for (uint32_t i = 0; i < SEQS; i++) {
            void *state = state_of(e, &drafted[i]);
            for (uint32_t t = PROMPT; t < TOTAL; t++) {
                const struct token_out *a = &plain[i].out[t], *b = &drafted[i].out[t];
                if (a->id != b->id || memcmp(&a->logprob, &b->logprob, 4) ||
                    memcmp(a->top, b->top, 4 * sizeof *a->top))
                    fail_msg("%s, %s: sequence %u, token %u: %u (%.9g), not %u (%.9g)", variant, set, i, t,
                             b->id, (double)b->logprob, a->id, (double)a->logprob);
            }
            assert_memory_equal(states[i], state, (size_t)e->kv.groups[e->kv.table_groups].block_bytes);
            free(state);
        }
        end(drafted, SEQS);
    }
    for (uint32_t i = 0; i < SEQS; i++) free(states[i]);
    end(plain, SEQS);
    engine_close(e);
}

static void rejected_tokens_leave_nothing(void **state)
{
    static const char *const variants[] = {"qwen3_5_text_f32", "qwen3_5_odd_f32", "qwen3_5_moe_text_f32",
                                           "qwen3_5_bf16",     "lfm2_f32",        "lfm2_odd_f32"};
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (uint32_t s = 0; s < TEST_SETS; s++)
            if (test_takes(v, s) && (v < 2 || BACKEND_ON_CPU)) one_variant(variants[v], backend_sets[s]);
}

/* Its tokens are the same whether its keys came token by token, with drafts in between, or with one prompt.
 */
static void same_drafts(struct engine *e, struct talk *k, uint32_t slot)
{
    static const struct sampling_params greedy = {.top_p = 1, .repetition_penalty = 1};
    static struct talk fresh;
    struct engine_caps caps;
    struct err err;
    uint32_t block_offset = 0;
    engine_caps(e, &caps);
    uint32_t drafted[DRAFTS];
    draft(e, k, slot, DRAFTS);
    memcpy(drafted, k->tokens + k->known, sizeof drafted);
    for (uint32_t g = 0; g < caps.group_count; g++) /* beyond the blocks of all */
        block_offset += SEQS * caps.groups[g].block_grains * 4;
    begin(&fresh, &caps, 1, &block_offset);
    memcpy(fresh.tokens, k->tokens, k->known * sizeof *k->tokens);
    fresh.known = k->known;
    struct engine_chunk r = {.count = k->known - 1,
                             .tokens = fresh.tokens,
                             .token_count = k->known,
                             .prompt_count = k->known,
                             .state_from = ENGINE_NO_BLOCK,
                             .state_to = fresh.states[0],
                             .draft_slot = SEQS,
                             .sampling = &greedy,
                             .sample = true,
                             .score_first = UINT32_MAX};
    memcpy(r.tables, fresh.tables, sizeof r.tables);
    struct engine_batch b = {&r, 1};
    assert_int_equal(engine_submit(e, &b, &err), ST_OK);
    assert_int_equal(engine_wait(e, &b, &err), ST_OK);
    draft(e, &fresh, SEQS, DRAFTS);
    assert_memory_equal(fresh.tokens + fresh.known, drafted, sizeof drafted);
    end(&fresh, 1);
}

static void the_drafter_in_the_checkpoint(void **state)
{
    static const char *const variants[] = {"qwen3_5_f32", "qwen3_5_moe_f32", "qwen3_5_moe.gguf"};
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (uint32_t s = 0; s < TEST_SETS; s++) {
            static struct talk talks[SEQS];
            if (!test_takes(v, s) || (v && !BACKEND_ON_CPU)) continue;
            own_drafter = true;
            one_variant(variants[v], backend_sets[s]);
            struct engine *e = open_engine(variants[v], backend_sets[s]);
            assert_true(e->draft.own);
            run(e, talks, SEQS, talks, 5);
            for (uint32_t i = 0; i < SEQS; i++) same_drafts(e, &talks[i], i);
            end(talks, SEQS);
            engine_close(e);
            own_drafter = false;
        }
}

/* A GGUF file's drafter (Q8_0) proposes what that of its checkpoint does. */
static void the_same_drafter_in_a_gguf_file(void **state)
{
    static const char *const files[2] = {"qwen3_5_moe_f32", "qwen3_5_moe.gguf"};
    static struct talk talks[2][SEQS];
    uint32_t equal = 0;
    (void)state;
    own_drafter = true;
    for (int f = 0; f < 2; f++) {
        struct engine *e = open_engine(files[f], backend_sets[0]);
        struct engine_caps caps;
        uint32_t block_offset = 0;
        engine_caps(e, &caps);
        for (uint32_t i = 0; i < SEQS; i++) begin(&talks[f][i], &caps, 70 + i, &block_offset);
        step(e, talks[f], SEQS, NULL, NULL);
        for (uint32_t i = 0; i < SEQS; i++) {
            talks[f][i].tokens[PROMPT] = talks[0][i].tokens[PROMPT];
            draft(e, &talks[f][i], i, DRAFTS);
        }
        engine_close(e);
    }
    own_drafter = false;
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t j = 0; j < DRAFTS; j++)
            equal += talks[0][i].tokens[PROMPT + 1 + j] == talks[1][i].tokens[PROMPT + 1 + j];
    assert_true(equal * 4 >= 3 * SEQS * DRAFTS);
    end(talks[0], SEQS);
    end(talks[1], SEQS);
}

static void a_state_has_a_group_of_its_own(void **state)
{
    struct engine *e = open_engine("qwen3_5_text_f32", backend_sets[0]);
    struct engine_caps caps;
    (void)state;
    engine_caps(e, &caps);
    assert_int_equal(caps.group_count, 2);
    assert_false(caps.groups[0].recurrent);
    assert_true(caps.groups[1].recurrent);
    assert_int_equal(caps.groups[1].layers, 2);
    assert_int_equal(caps.groups[1].bytes_per_token, 0);
    /* 128 columns of 3 rows, 4 heads of 16 x 16, two layers */
    assert_int_equal(caps.groups[1].block_bytes,
                     (2 * (128 * 3 + 4 * 16 * 16) * 4 + BE_KV_GRAIN - 1) / BE_KV_GRAIN * BE_KV_GRAIN);
    engine_close(e);
}

/* What a device has no shared memory for is refused when the model is loaded. */
static void keys_too_wide(void **state)
{
    (void)state;
    struct engine *e = open_engine("qwen3_5_text_f32", backend_sets[0]);
    struct model_desc d = e->net.desc;
    struct kv_layout k;
    struct err err;
    d.delta.key_dim = e->becaps.delta_key_max ? e->becaps.delta_key_max : 4096;
    assert_int_equal(kv_layout_make(&d, e->ops, e->be, BE_KV_ACT, &k, &err), ST_OK);
    kv_layout_free(&k);
    if (e->becaps.delta_key_max) {
        d.delta.key_dim++;
        assert_int_equal(kv_layout_make(&d, e->ops, e->be, BE_KV_ACT, &k, &err), ST_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "linear_key_head_dim"));
    }
    engine_close(e);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejected_tokens_leave_nothing), cmocka_unit_test(the_drafter_in_the_checkpoint),
        cmocka_unit_test(the_same_drafter_in_a_gguf_file), cmocka_unit_test(a_state_has_a_group_of_its_own),
        cmocka_unit_test(keys_too_wide)};
    return cmocka_run_group_tests_name("engine_recurrent", tests, NULL, NULL);
}

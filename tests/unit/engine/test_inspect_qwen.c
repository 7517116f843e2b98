/* `kvasir inspect` and `kvasir bench` on models with experts, windows of patches and DeepStack features, with
 * random weights of tiny shapes: every number below is derived by hand from the shape. */
#include "engine/engine.h"
#include "engine/model/model_info.h"
#include "tests/lib/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char scratch[64], path[96];

static int make_scratch(void **state)
{
    (void)state;
    strcpy(scratch, "/tmp/kvasir-test-XXXXXX");
    if (!mkdtemp(scratch)) return -1;
    snprintf(path, sizeof path, "%s/config.json", scratch);
    return 0;
}

static int drop_scratch(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(scratch);
}

static struct engine_options shape(const char *config)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    return (struct engine_options){.model_dir = scratch,
                                   .threads = 1,
                                   .kernels = "reference",
                                   .kv_bytes = 1u << 20,
                                   .context_max = 2048,
                                   .sequences_max = 2,
                                   .batch_tokens_max = 64,
                                   .random_weights = true};
}

static void inspect(const char *config, char *text, size_t cap)
{
    struct engine_inspected seen;
    struct err err = {""};
    struct engine_options opt = shape(config);
    if (engine_inspect(&opt, text, cap, &seen, &err)) fail_msg("%s", err.msg);
}

static void says(const char *text, const char *what)
{
    if (!strstr(text, what)) fail_msg("\"%s\" is not in\n%s", what, text);
}

static void costs(const char *config, struct engine_costs *c)
{
    struct err err = {""};
    struct engine_options opt = shape(config);
    struct engine *e;
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    assert_int_equal(engine_costs(e, c, &err), ST_OK);
    engine_close(e);
}

/* 3 layers of which the second has 4 experts of 24 columns, 2 per token; width 32, 2 heads of 16, 1 KV head.
 */
#define EXPERTS                                                                                              \
    "\"hidden_size\":32,\"intermediate_size\":40,\"moe_intermediate_size\":24,\"num_experts\":4,\"num_"      \
    "experts_per_tok\":2,"                                                                                   \
    "\"num_hidden_layers\":3,\"decoder_sparse_step\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1," \
    "\"head_dim\":16,"                                                                                       \
    "\"vocab_size\":64"

static void test_experts(void **state)
{
    static char text[8192];
    struct engine_costs c;
    (void)state;
    inspect("{\"model_type\":\"qwen3_moe\"," EXPERTS ",\"tie_word_embeddings\":true}", text, sizeof text);
    /* embedding 64 * 32; per layer 32 * (32 + 2 * 16 + 32) + norms 2 * 32 + 2 * 16; MLP 3 * 32 * 40 twice;
     * router 4 * 32, experts 4 * 3 * 32 * 24; last norm 32 */
    const unsigned all = 64 * 32 + 3 * (32 * 96 + 96) + 2 * 3840 + 128 + 4 * 2304 + 32;
    char want[96];
    snprintf(want, sizeof want, "weights    %u parameters", all);
    says(text, want);
    snprintf(want, sizeof want, "active     %u parameters per token", all - 2 * 2304);
    says(text, want);
    says(text, "2 of 4 experts of 24");
    says(text, "MLP 40");
    says(text, "vision     none");
    costs("{\"model_type\":\"qwen3_moe\"," EXPERTS "}", &c);
    assert_true(c.linear_flops_per_token == 2 * 32.0 * (3 * 96 + 2 * 3 * 40 + 4 + 2 * 3 * 24));
    assert_true(c.experts == 4 && c.experts_used == 2);
    /* bf16; rows are padded to what the kernels want, so at least: */
    assert_true(c.expert_bytes >= 2 * 4 * 2304.0 &&
                c.weight_bytes >= 2 * (64 * 32 + 3 * 3072 + 2 * 3840 + 128.0));
    assert_true(c.vision_flops == 0 && c.vision_side == 0);
}

/* One step of 20 tokens and one of 1 on a made-up model of EXPERTS; the last draw. */
static struct token_out two_steps(struct engine *e)
{
    static const struct sampling_params greedy = {.top_p = 1,
                                                  .repetition_penalty = 1,
                                                  .logprobs = SAMPLING_NO_LOGPROBS,
                                                  .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    struct err err = {""};
    struct engine_caps caps;
    engine_caps(e, &caps);
    uint32_t tokens[21] = {7}, blocks[1] = {0};
    struct engine_chunk r = {.tokens = tokens,
                             .token_count = 21,
                             .prompt_count = 21,
                             .count = 20,
                             .tables = {blocks},
                             .sampling = &greedy,
                             .score_first = UINT32_MAX};
    struct engine_batch b = {.chunks = &r, .chunk_count = 1};
    assert_int_equal(caps.group_count, 1);
    for (uint32_t i = 1; i < 21; i++) tokens[i] = tokens[i - 1] * 5 % 64;
    assert_int_equal(engine_submit(e, &b, &err), ST_OK);
    assert_int_equal(engine_wait(e, &b, &err), ST_OK);
    r.position = 20;
    r.count = 1;
    r.sample = true;
    assert_int_equal(engine_submit(e, &b, &err), ST_OK);
    assert_int_equal(engine_wait(e, &b, &err), ST_OK);
    return r.out;
}

static const struct engine_profile_part *part(const struct engine_profile_part *p, const char *name)
{
    for (uint32_t i = 0; i < ENGINE_PROFILE_PARTS; i++)
        if (strcmp(p[i].name, name) == 0) return &p[i];
    fail_msg("no part %s", name);
    return NULL;
}

/* In the first step nothing is drawn, so its last layer ends with the write of keys and values. */
static void test_profile(void **state)
{
    (void)state;
    struct engine_options opt = shape("{\"model_type\":\"qwen3_moe\"," EXPERTS "}");
    struct engine_profile_part p[ENGINE_PROFILE_PARTS];
    struct err err = {""};
    struct engine *e, *other;
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    assert_int_equal(engine_profile_start(e, &err), ST_UNSUPPORTED);
    struct token_out plain = two_steps(e), out;
    engine_close(e);
    opt.profile = true;
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    assert_int_equal(engine_open(&opt, &other, &err), ST_UNSUPPORTED);
    assert_int_equal(engine_profile_start(e, &err), ST_OK);
    out = two_steps(e);
    assert_int_equal(out.id, plain.id);
    assert_memory_equal(&out.logprob, &plain.logprob, sizeof out.logprob);
    engine_profile_read(e, p);
    const struct engine_profile_part *qkv = part(p, "q, k, v"), *attn = part(p, "attention"),
                                     *down = part(p, "down"), *experts = part(p, "experts, router"),
                                     *head = part(p, "head");
    assert_true(qkv->calls == 6 && qkv->flops == 2.0 * 64 * 32 * 3 * 21 && qkv->seconds > 0);
    assert_true(attn->calls == 5 && attn->flops == 4.0 * 2 * 16 * (2 * 20 * 21 / 2 + 3 * 21));
    assert_true(attn->bytes == 2.0 * 32 * 2 * (2 * 20 + 3 * 21)); /* bf16, one KV head, padded to 32 */
    assert_true(down->calls == 3 && down->flops == 2.0 * 40 * 32 * (2 * 1 + 20));
    /* router, choice and experts of two steps */
    assert_true(experts->calls == 6 && experts->flops == 21 * (2.0 * 4 * 32 + 6.0 * 2 * 32 * 24));
    assert_true(head->calls == 1 && head->flops == 2.0 * 64 * 32 && head->bytes >= 2.0 * 64 * 32);
    assert_int_equal(part(p, "drafter")->calls, 0);
    assert_int_equal(engine_profile_start(e, &err), ST_OK);
    engine_profile_read(e, p);
    assert_int_equal(head->calls, 0);
    engine_close(e);
    opt.profile = true; /* the next one may have it again */
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    engine_close(e);
}

static void test_yarn_and_windows(void **state)
{
    static char text[8192];
    (void)state;
    inspect("{\"model_type\":\"qwen2\",\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":2,"
            "\"vocab_size\":64,"
            "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_"
            "window\":96,"
            "\"max_window_layers\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_"
            "position_embeddings\":512}}",
            text, sizeof text);
    says(text, "sliding(96)");
    says(text, "YaRN       factor 4 over 512 positions, ramp 32 to 1 rotations, attention 1.13863");
}

/* Whether a config.json is served shows without weights, too. */
static void test_without_weights(void **state)
{
    static char text[8192];
    struct engine_inspected seen;
    struct err err = {""};
    struct engine_options opt = shape(
        "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":2,"
        "\"vocab_size\":64,\"num_attention_heads\":2,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
        "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}");
    (void)state;
    opt.random_weights = false;
    assert_int_equal(engine_inspect(&opt, text, sizeof text, &seen, &err), ST_OK);
    says(text, "served     yes, by config.json; the directory has no weights\nfamily     llama");
    says(text, "llama3     factor 8 over 8192 positions, ramp 4 to 1 rotations");
    opt = shape("{\"model_type\":\"mamba\"}");
    opt.random_weights = false;
    assert_int_equal(engine_inspect(&opt, text, sizeof text, &seen, &err), ST_UNSUPPORTED);
}

/* Patches of 8, 2 x 2 to a token, windows of 3 x 3 tokens but in layer 1; 16 wide, 2 heads of 8, GLU of 20.
 */
static void test_window_tower(void **state)
{
    static char text[8192];
    static const char config[] =
        "{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":1,"
        "\"vocab_size\":64,"
        "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"image_token_id\":5,\"rope_scaling\":{\"type\":"
        "\"mrope\","
        "\"mrope_section\":[4,2,2]},\"vision_config\":{\"depth\":2,\"hidden_size\":16,\"intermediate_size\":"
        "20,\"num_heads\":2,"
        "\"out_hidden_size\":32,\"patch_size\":8,\"window_size\":48,\"fullatt_block_indexes\":[1]}}";
    struct engine_costs c;
    (void)state;
    inspect(config, text, sizeof text);
    says(text, "multiples of 16 pixels");
    says(text, "2 x 2 patches per token (placeholder id 5), windows of 3 x 3 tokens in 1 layers");
    says(text, "mRoPE      4 + 2 + 2 frequencies, one after the other");
    assert_null(strstr(text, "videos")); /* their token is not in this vocabulary */
    costs(config, &c);
    assert_int_equal(c.vision_side,
                     1024); /* 128 x 128 patches, 64 x 64 tokens: 21 windows of 3 and one of 1 per side */
    double s = 128.0 * 128, axis = 21 * 9 + 1, pairs = s * s + axis * axis * 16, tokens = 4096, wide = 64;
    assert_true(c.vision_flops == s * 2 * 3 * 2 * 64 * 16 + 2 * s * 2 * (4 * 256 + 3 * 16 * 20) +
                                      pairs * 4 * 16 + tokens * 2 * (wide * wide + wide * 32));
}

static void test_deepstack(void **state)
{
    static char text[8192];
    static const char config[] =
        "{\"model_type\":\"qwen3_vl_moe\",\"image_token_id\":5,\"video_token_id\":6,\"text_config\":{" EXPERTS
        ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000,\"mrope_section\":[4,2,2]}},"
        "\"vision_config\":{"
        "\"depth\":3,\"hidden_size\":16,\"intermediate_size\":20,\"num_heads\":2,\"out_hidden_size\":32,"
        "\"patch_size\":12,"
        "\"num_position_embeddings\":25,\"deepstack_visual_indexes\":[0,2]}}";
    struct engine_costs c;
    (void)state;
    inspect(config, text, sizeof text);
    says(text, "positions 5 x 5, DeepStack after layers 0, 2, videos (placeholder id 6)");
    says(text, "mRoPE      4 + 2 + 2 frequencies, interleaved");
    says(text, "active     ");
    costs(config, &c);
    assert_int_equal(c.vision_side, 1032); /* 43 x 24: the multiple that is nearest to 1024 */
    double s = 86.0 * 86, tokens = 43 * 43, wide = 64;
    assert_true(c.vision_flops == s * 2 * 3 * 2 * 144 * 16 + 3 * s * 2 * (4 * 256 + 2 * 16 * 20) +
                                      3 * s * s * 4 * 16 + 3 * tokens * 2 * (wide * wide + wide * 32));
}

/* The files of a drafter in the model's own checkpoint are closed once, also if opening the model fails. */
static void test_own_drafter(void **state)
{
    static char text[8192];
    char dir[512];
    struct engine_inspected seen;
    struct err err = {""};
    struct engine *e = NULL;
    (void)state;
    golden_dir(dir, sizeof dir, "qwen", "qwen3_5_f32");
    struct engine_options opt = {.model_dir = dir, .threads = 1, .kernels = "reference", .own_drafter = true};
    if (engine_inspect(&opt, text, sizeof text, &seen, &err)) fail_msg("%s", err.msg);
    says(text, "gated delta net");
    opt.kv_bytes = 4096;
    assert_int_not_equal(engine_open(&opt, &e, &err), ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),          cmocka_unit_test(test_profile),
        cmocka_unit_test(test_yarn_and_windows), cmocka_unit_test(test_without_weights),
        cmocka_unit_test(test_window_tower),     cmocka_unit_test(test_deepstack),
        cmocka_unit_test(test_own_drafter)};
    return cmocka_run_group_tests_name("inspect_qwen", tests, make_scratch, drop_scratch);
}

/* config.json of Llama, Mistral, SmolLM3, Granite, LFM2, OLMo and EXAONE 4: released files, absent keys, what
 * is refused. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct hf_config c;
static struct model_desc d;

static enum status parse(const char *text, struct err *err)
{
    model_desc_free(&d);
    return family_parse(text, strlen(text), "config.json", &c, &d, err);
}

static void load(const char *text)
{
    struct err err = {""};
    if (parse(text, &err)) fail_msg("%s", err.msg);
}

static const char LLAMA_3_2_1B[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":128000,"
    "\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
    "\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"mlp_bias\":false,\"model_type\":"
    "\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"
    "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
    "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"vocab_size\":128256}";

static void test_llama(void **state)
{
    (void)state;
    load(LLAMA_3_2_1B);
    const struct desc_rope *r = &d.ropes[0];
    assert_true(r->ramp == RAMP_LLAMA3 && r->factor == 32 && r->original == 8192 && r->beta_fast == 4 &&
                r->beta_slow == 1 && r->theta == 5e5 && r->dim == 64);
    assert_true(d.rope_count == 1 && d.tied && d.eos_count == 3 && d.context_max == 131072);
    assert_true(!d.qk_pairs && d.logit_scale == 0 && d.embed_scale == 1 && !d.layers[0].qkv_bias);
    float f[32];
    desc_rope_frequencies(r, f);
    assert_true(f[0] == 1);
    assert_true(fabsf(f[31] * 32 - powf(5e5f, -62.0f / 64)) < 1e-9f);
    load("{\"model_type\":\"llama\",\"num_attention_heads\":8,\"hidden_size\":64}");
    assert_true(d.layers[0].kv_heads == 8 && d.layers[0].head_dim == 8 && !d.tied && d.layer_count == 32);
    assert_true(d.eos_count == 0 && d.ropes[0].theta == 1e4);
    load("{\"model_type\":\"llama\",\"attention_bias\":true}");
    assert_true(d.layers[0].qkv_bias && d.layers[0].o_bias);
}

static void test_mistral(void **state)
{
    (void)state;
    load("{\"model_type\":\"mistral\",\"rope_theta\":10000.0}"); /* 7B v0.1 */
    assert_true(d.layers[0].window == 4096 && d.layers[31].window == 4096 && d.layers[0].kv_heads == 8);
    load("{\"model_type\":\"mistral\",\"sliding_window\":null,\"head_dim\":128,\"hidden_size\":5120,"
         "\"num_hidden_layers\":40,\"rope_theta\":1000000.0,\"vocab_size\":131072}"); /* Nemo */
    assert_true(d.layers[0].window == 0 && d.layers[0].head_dim == 128 && d.layer_count == 40);
}

static void test_ministral3(void **state)
{
    (void)state;
    load("{\"model_type\":\"ministral3\",\"num_hidden_layers\":26,\"hidden_size\":3072,\"rope_parameters\":{"
         "\"beta_fast\":"
         "32.0,\"beta_slow\":1.0,\"factor\":16.0,\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_"
         "dim\":1.0,"
         "\"original_max_position_embeddings\":16384,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\","
         "\"type\":\"yarn\"}}");
    struct desc_rope stated = d.ropes[0];
    assert_true(stated.query_beta == 0.1f && stated.original == 16384 && stated.attention == 1);
    assert_true(stated.ramp == RAMP_YARN && d.layers[0].window == 0 && d.layers[0].head_dim == 128);
    load("{\"model_type\":\"ministral3\"}"); /* the class has the same */
    assert_memory_equal(&d.ropes[0], &stated, sizeof stated);
    load("{\"model_type\":\"mistral\"}");
    assert_true(d.ropes[0].query_beta == 0);
}

static void test_smollm3(void **state)
{
    (void)state;
    load("{\"model_type\":\"smollm3\",\"rope_theta\":5000000.0,\"use_sliding_window\":false}");
    assert_true(d.rope_count == 2 && d.layer_count == 36 && d.tied);
    for (uint32_t n = 0; n < 36; n++) assert_true(d.layers[n].rope == (n % 4 == 3) && !d.layers[n].window);
    assert_true(d.ropes[1].unrotated_pairs == 64 && d.ropes[0].unrotated_pairs == 0);
    load("{\"model_type\":\"smollm3\",\"num_hidden_layers\":3,\"no_rope_layers\":[1,0,1],"
         "\"use_sliding_window\":true,\"sliding_window\":64,\"tie_word_embeddings\":false}");
    assert_true(d.layers[1].rope == 1 && d.layers[1].window == 64 && d.layers[2].window == 0 && !d.tied);
}

static void test_granite(void **state)
{
    (void)state;
    load("{\"model_type\":\"granite\",\"hidden_size\":2048,\"attention_multiplier\":0.015625,"
         "\"embedding_multiplier\":12.0,\"residual_multiplier\":0.22,\"logits_scaling\":8.0,"
         "\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":true}"); /* 3.3 2B */
    assert_true(d.layers[0].scale == 0.015625f && d.logit_scale == 0.125f && d.embed_scale_kept);
    assert_true(fabs(d.embed_scale - 12 / 0.22) < 1e-9);
    assert_true(fabsf(d.norm_eps - (float)(1e-5 / (0.22 * 0.22))) < 1e-9f);
    load("{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":2,\"layer_types\":[\"attention\","
         "\"full_attention\"],\"num_local_experts\":0,\"intermediate_size\":8192,\"position_embedding_type\":"
         "\"rope\",\"shared_intermediate_size\":2048,\"attention_multiplier\":0.015625}"); /* 4.0, dense */
    assert_true(d.layers[1].ff == 2048 && d.layers[1].rope == 0 && d.layers[0].scale == 0.015625f);
    assert_string_equal(d.names.gate_up, "text.layers.#.shared_mlp.input_linear");
}

static void test_lfm2(void **state)
{
    (void)state;
    load("{\"model_type\":\"lfm2\",\"block_auto_adjust_ff_dim\":true,\"block_ff_dim\":12288,\"block_ffn_dim_"
         "multiplier\":"
         "1.0,\"block_multiple_of\":256,\"conv_L_cache\":3,\"conv_bias\":false,\"eos_token_id\":7,\"hidden_"
         "size\":2048,"
         "\"full_attn_idxs\":[2,5,8,10,12,14],\"norm_eps\":1e-05,\"num_attention_heads\":32,\"num_hidden_"
         "layers\":16,"
         "\"num_key_value_heads\":8,\"rope_theta\":1000000.0,\"tie_embedding\":true}"); /* 1.2B */
    assert_true(d.layers[0].mixer == MIXER_CONV && d.layers[2].mixer == MIXER_ATTENTION && d.tied);
    assert_true(d.layers[0].ff == 8192 && d.delta.conv_k == 3 && d.layers[2].head_dim == 64);
    assert_true(desc_in_columns(&d, 0) == 3 * 2048 && desc_mixed_columns(&d, 0) == 2048);
    load("{\"model_type\":\"lfm2\",\"intermediate_size\":100,\"block_auto_adjust_ff_dim\":false,\"tie_"
         "embedding\":"
         "false,\"conv_L_cache\":4}");
    assert_true(d.layers[31].mixer == MIXER_ATTENTION && d.layers[0].ff == 100 && !d.tied);
    load("{\"model_type\":\"lfm2\",\"intermediate_size\":100,\"block_ffn_dim_multiplier\":1.5,\"block_"
         "multiple_of\":"
         "8}"); /* 66, 99, 104 */
    assert_int_equal(d.layers[0].ff, 104);
}

static void test_olmo(void **state)
{
    (void)state;
    load("{\"model_type\":\"olmo2\",\"rope_theta\":500000,\"rms_norm_eps\":1e-06}"); /* 7B */
    assert_true(d.qk_norm_all && d.names.q_norm && !d.names.input_norm && !d.names.pre_mlp_norm);
    assert_true(d.names.post_attn_norm && d.names.post_mlp_norm && d.rope_count == 1 && !d.layers[0].window);
    load("{\"model_type\":\"olmo3\",\"sliding_window\":4096,\"rope_theta\":500000,\"rope_scaling\":{"
         "\"attention_factor\":1.2079441541679836,\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":8.0,"
         "\"original_max_position_embeddings\":8192,\"rope_type\":\"yarn\"}}"); /* 7B */
    assert_true(d.rope_count == 2 && d.ropes[0].ramp == RAMP_YARN && d.ropes[0].factor == 8);
    assert_true(d.ropes[1].ramp == RAMP_NONE && d.ropes[1].factor == 1 && d.ropes[1].theta == 5e5);
    for (uint32_t n = 0; n < 32; n++)
        assert_true(d.layers[n].rope == (n % 4 != 3) && d.layers[n].window == (n % 4 == 3 ? 0 : 4096));
    load("{\"model_type\":\"exaone4\",\"num_hidden_layers\":8,\"sliding_window_pattern\":4}");
    assert_true(!d.qk_norm_all && d.ropes[1].unrotated_pairs == 64 && d.layers[3].rope == 1);
    assert_true(d.layers[0].rope == 0 && d.layers[0].window == 4096 && d.layers[7].window == 0);
    load("{\"model_type\":\"exaone4\",\"sliding_window\":null,\"sliding_window_pattern\":null}"); /* 1.2B */
    assert_true(d.rope_count == 1 && d.layers[3].rope == 0 && d.layers[0].window == 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        enum status want;
        const char *says;
    } cases[] = {
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", ST_UNSUPPORTED, "hidden_act"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}}",
         ST_UNSUPPORTED, "rope_type"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", ST_FORMAT,
         "llama3 needs"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":4,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
         ST_FORMAT, "llama3 needs"},
        {"{\"model_type\":\"ministral3\",\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}}", ST_FORMAT,
         "original_max_position_embeddings"},
        {"{\"model_type\":\"mistral\",\"sliding_window\":0}", ST_FORMAT, "sliding_window"},
        {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1]}", ST_FORMAT, "no_rope_layers"},
        {"{\"model_type\":\"smollm3\",\"no_rope_layer_interval\":0}", ST_FORMAT, "no_rope_layer_interval"},
        {"{\"model_type\":\"granite\",\"residual_multiplier\":0}", ST_FORMAT, "residual_multiplier"},
        {"{\"model_type\":\"granite\",\"logits_scaling\":\"8\"}", ST_FORMAT, "logits_scaling"},
        {"{\"model_type\":\"granitemoehybrid\",\"num_local_experts\":0}", ST_UNSUPPORTED, "Mamba-2"},
        {"{\"model_type\":\"granitemoehybrid\",\"num_local_experts\":0,\"num_hidden_layers\":2,"
         "\"layer_types\":[\"mamba\",\"attention\"]}",
         ST_UNSUPPORTED, "layer_types"},
        {"{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":1,\"layer_types\":[\"attention\"]}",
         ST_UNSUPPORTED, "num_local_experts"},
        {"{\"model_type\":\"lfm2\",\"conv_L_cache\":1}", ST_FORMAT, "conv_L_cache"},
        {"{\"model_type\":\"lfm2\",\"full_attn_idxs\":[512]}", ST_FORMAT, "full_attn_idxs"},
        {"{\"model_type\":\"lfm2\",\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}",
         ST_UNSUPPORTED, "only full_attention and conv"},
        {"{\"model_type\":\"lfm2\",\"block_ffn_dim_multiplier\":1000}", ST_FORMAT, "block_ff_dim"},
        {"{\"model_type\":\"olmo3\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},"
         "\"sliding_attention\":{\"rope_type\":\"yarn\"}}}",
         ST_UNSUPPORTED, "sliding_attention.rope_type"},
        {"{\"model_type\":\"exaone4\",\"sliding_window_pattern\":\"LLLG\"}", ST_FORMAT,
         "sliding_window_pattern"},
        {"{\"model_type\":\"mixtral\"}", ST_UNSUPPORTED, "llama, mistral, ministral3, smollm3, granite"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {""};
        enum status st = parse(cases[i].text, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].says))
            fail_msg("%s: %s (%s)", cases[i].text, status_name(st), err.msg);
    }
}

static int end(void **state)
{
    (void)state;
    model_desc_free(&d);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama),   cmocka_unit_test(test_mistral),
                                       cmocka_unit_test(test_smollm3), cmocka_unit_test(test_ministral3),
                                       cmocka_unit_test(test_granite), cmocka_unit_test(test_lfm2),
                                       cmocka_unit_test(test_olmo),    cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("config_llama", tests, NULL, end);
}

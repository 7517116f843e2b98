/* config.json of the Qwen families: released files, what transformers 5 makes of them, absent keys, nonsense;
 * then the description, the names of tensors and the layouts of experts. Numbers: specs qwen-vl 1 and
 * transformers 5.23's classes. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TAIL_IDS                                                                                             \
    "\"image_token_id\":151655,\"video_token_id\":151656,\"vision_start_token_id\":151652,\"vision_end_"     \
    "token_id\":151653,"

static const char QWEN2_VL_7B[] =
    "{\"architectures\":[\"Qwen2VLForConditionalGeneration\"],\"attention_dropout\":0.0,\"bos_token_id\":"
    "151643,"
    "\"eos_token_id\":151645,\"vision_token_id\":151654," TAIL_IDS
    "\"hidden_act\":\"silu\",\"hidden_size\":3584,\"initializer_range\":0.02,\"intermediate_size\":18944,"
    "\"max_position_embeddings\":32768,\"max_window_layers\":28,\"model_type\":\"qwen2_vl\",\"num_attention_"
    "heads\":28,"
    "\"num_hidden_layers\":28,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
    "\"sliding_window\":32768,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
    "\"use_sliding_window\":false,\"vision_config\":{\"depth\":32,\"embed_dim\":1280,\"mlp_ratio\":4,\"num_"
    "heads\":16,"
    "\"in_chans\":3,\"hidden_size\":3584,\"patch_size\":14,\"spatial_merge_size\":2,\"spatial_patch_size\":"
    "14,"
    "\"temporal_patch_size\":2},\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]},\"vocab_"
    "size\":152064}";

/* The same as transformers 5 writes it. */
static const char QWEN2_VL_7B_V5[] =
    "{\"dtype\":\"bfloat16\"," TAIL_IDS "\"model_type\":\"qwen2_vl\",\"text_config\":{\"attention_dropout\":"
    "0.0,\"bos_token_id\":151643,\"eos_token_id\":151645,"
    "\"hidden_act\":\"silu\",\"hidden_size\":3584,\"intermediate_size\":18944,\"max_position_embeddings\":"
    "32768,"
    "\"max_window_layers\":28,\"model_type\":\"qwen2_vl_text\",\"num_attention_heads\":28,\"num_hidden_"
    "layers\":28,"
    "\"num_key_value_heads\":4,\"pad_token_id\":null,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"mrope_"
    "section\":[16,24,24],"
    "\"rope_theta\":1000000.0,\"rope_type\":\"default\",\"type\":\"mrope\"},\"sliding_window\":null,"
    "\"use_sliding_window\":false,\"vocab_size\":152064},\"tie_word_embeddings\":false,\"vision_config\":{"
    "\"depth\":32,"
    "\"embed_dim\":1280,\"hidden_act\":\"quick_gelu\",\"hidden_size\":3584,\"in_channels\":3,\"mlp_ratio\":4,"
    "\"model_type\":\"qwen2_vl_vision\",\"num_heads\":16,\"patch_size\":14,\"rope_parameters\":{\"rope_"
    "theta\":10000.0,"
    "\"rope_type\":\"axial\"},\"spatial_merge_size\":2,\"temporal_patch_size\":[2,2]}}";

static const char QWEN2_5_VL_3B[] =
    "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"bos_token_id\":151643,\"eos_token_id\":"
    "151645," TAIL_IDS "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":11008,\"max_"
    "position_embeddings\":128000,"
    "\"max_window_layers\":70,\"model_type\":\"qwen2_5_vl\",\"num_attention_heads\":16,\"num_hidden_layers\":"
    "36,"
    "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":32768,"
    "\"tie_word_embeddings\":true,\"use_sliding_window\":false,\"vision_config\":{\"depth\":32,\"hidden_"
    "act\":\"silu\","
    "\"hidden_size\":1280,\"intermediate_size\":3420,\"num_heads\":16,\"in_chans\":3,\"out_hidden_size\":"
    "2048,"
    "\"patch_size\":14,\"spatial_merge_size\":2,\"spatial_patch_size\":14,\"window_size\":112,"
    "\"fullatt_block_indexes\":[7,15,23,31],\"tokens_per_second\":2,\"temporal_patch_size\":2},"
    "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]},\"vocab_size\":151936}";

/* A re-save that holds only what is not a class default (specs qwen-vl 1.1). */
static const char QWEN2_5_VL_7B_SHORT[] =
    "{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":3584,\"intermediate_size\":18944,\"num_attention_heads\":"
    "28,"
    "\"num_hidden_layers\":28,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":"
    "128000,"
    "\"rope_scaling\":{\"rope_type\":\"default\",\"type\":\"default\",\"mrope_section\":[16,24,24]},"
    "\"vision_config\":{\"hidden_size\":1280,\"in_chans\":3,\"model_type\":\"qwen2_5_vl\",\"spatial_patch_"
    "size\":14,"
    "\"tokens_per_second\":2}}";

static const char QWEN3_VL_4B[] =
    "{\"architectures\":[\"Qwen3VLForConditionalGeneration\"]," TAIL_IDS
    "\"model_type\":\"qwen3_vl\",\"text_config\":{\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_"
    "token_id\":151643,"
    "\"dtype\":\"bfloat16\",\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":"
    "2560,"
    "\"intermediate_size\":9728,\"max_position_embeddings\":262144,\"model_type\":\"qwen3_vl_text\","
    "\"num_attention_heads\":32,\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":{\"mrope_interleaved\":true,\"mrope_section\":[24,20,20],\"rope_type\":\"default\"},"
    "\"rope_theta\":5000000,\"tie_word_embeddings\":true,\"use_cache\":true,\"vocab_size\":151936},"
    "\"tie_word_embeddings\":true,\"vision_config\":{\"deepstack_visual_indexes\":[5,11,17],\"depth\":24,"
    "\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_size\":1024,\"in_channels\":3,\"intermediate_size\":4096,"
    "\"model_type\":\"qwen3_vl\",\"num_heads\":16,\"num_position_embeddings\":2304,\"out_hidden_size\":2560,"
    "\"patch_size\":16,\"spatial_merge_size\":2,\"temporal_patch_size\":2}}";

static const char QWEN3_VL_30B[] =
    "{" TAIL_IDS
    "\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"attention_bias\":false,\"decoder_sparse_step\":1,"
    "\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_"
    "size\":6144,"
    "\"max_position_embeddings\":262144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_vl_moe_text\","
    "\"moe_intermediate_size\":768,\"norm_topk_prob\":false,\"num_attention_heads\":32,\"num_experts\":128,"
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":48,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":{\"mrope_interleaved\":true,\"mrope_section\":[24,20,20],\"rope_type\":\"default\"},"
    "\"rope_theta\":5000000,\"tie_word_embeddings\":true,\"vocab_size\":151936},\"tie_word_embeddings\":"
    "false,"
    "\"vision_config\":{\"deepstack_visual_indexes\":[8,16,24],\"depth\":27,\"hidden_size\":1152,"
    "\"intermediate_size\":4304,"
    "\"model_type\":\"qwen3_vl_moe\",\"num_heads\":16,\"out_hidden_size\":2048}}";

static const char QWEN3_0_6B[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":151643,\"eos_token_"
    "id\":[151645,151643],"
    "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":1024,\"intermediate_size\":3072,"
    "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\",\"num_attention_"
    "heads\":16,"
    "\"num_hidden_layers\":28,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_"
    "theta\":1000000,"
    "\"sliding_window\":null,\"tie_word_embeddings\":true,\"use_sliding_window\":false,\"vocab_size\":"
    "151936}";

static const char QWEN3_5_0_8B[] =
    "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"image_token_id\":248056,\"model_type\":"
    "\"qwen3_5\",\"text_config\":{\"attn_output_gate\":true,\"dtype\":\"bfloat16\",\"eos_token_id\":248044,"
    "\"full_attention_interval\":4,\"head_dim\":256,\"hidden_act\":\"silu\",\"hidden_size\":1024,"
    "\"intermediate_size\":3584,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_num_key_"
    "heads\":16,\"linear_num_value_heads\":16,\"linear_value_head_dim\":128,\"mamba_ssm_dtype\":\"float32\","
    "\"max_position_embeddings\":262144,\"model_type\":\"qwen3_5_text\",\"mtp_num_hidden_layers\":1,\"num_"
    "attention_heads\":8,\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_"
    "parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"partial_rotary_factor\":0.25,"
    "\"rope_theta\":10000000,\"rope_type\":\"default\"},\"tie_word_embeddings\":true,\"vocab_size\":248320},"
    "\"tie_word_embeddings\":true,\"video_token_id\":248057,\"vision_config\":{\"deepstack_visual_indexes\":["
    "],\"depth\":12,\"hidden_size\":768,\"in_channels\":3,\"intermediate_size\":3072,\"model_type\":\"qwen3_"
    "5\",\"num_heads\":12,\"num_position_embeddings\":2304,\"out_hidden_size\":1024,\"patch_size\":16,"
    "\"spatial_merge_size\":2,\"temporal_patch_size\":2}}";

static struct hf_config c;
static struct model_desc d;

static enum status parse(const char *text, struct err *err)
{
    return family_parse(text, strlen(text), "config.json", &c, &d, err);
}

/* The caller frees d. */
static void load(const char *text)
{
    struct err err = {""};
    if (parse(text, &err)) fail_msg("%s in %s", err.msg, text);
}

static void assert_names(const struct desc_names *n, bool qk_norm)
{
    assert_string_equal(n->pre_mlp_norm, "text.layers.#.post_attention_layernorm");
    assert_null(n->post_attn_norm);
    assert_null(n->post_mlp_norm);
    assert_true((n->q_norm != NULL) == qk_norm && (n->k_norm != NULL) == qk_norm);
}

static void test_qwen2_vl(void **state)
{
    static const char *const texts[2] = {QWEN2_VL_7B, QWEN2_VL_7B_V5};
    (void)state;
    for (int i = 0; i < 2; i++) {
        load(texts[i]);
        assert_string_equal(c.model_type, "qwen2_vl");
        assert_true(d.vocab == 152064 && d.hidden == 3584 && d.layer_count == 28 && d.context_max == 32768 &&
                    !d.tied);
        assert_true(d.norm_eps == 1e-6f && !d.norm_plus_one && d.embed_scale == 1 && d.final_softcap == 0);
        const struct desc_layer *l = &d.layers[27];
        assert_true(l->heads == 28 && l->kv_heads == 4 && l->head_dim == 128 && l->ff == 18944 &&
                    l->window == 0);
        assert_true(l->qkv_bias && !l->o_bias && l->gate == ACT_SILU && l->experts == 0);
        assert_true(l->scale == (float)(1 / sqrt(128.0)));
        assert_true(d.rope_count == 1 && d.ropes[0].theta == 1e6 && d.ropes[0].factor == 1 &&
                    d.ropes[0].dim == 128);
        assert_true(d.ropes[0].sections[0] == 16 && d.ropes[0].sections[1] == 24 &&
                    d.ropes[0].sections[2] == 24);
        assert_true(!d.ropes[0].interleaved && !d.ropes[0].ramp && d.ropes[0].attention == 1);
        assert_names(&d.names, false);
        const struct desc_vision *v = &d.vision;
        assert_true(d.has_vision && v->image_size == 0 && v->patch == 14 && v->hidden == 1280 &&
                    v->ff == 5120);
        assert_true(v->layers == 32 && v->heads == 16 && v->merge == 2 && v->depth == 2 &&
                    v->end == VISION_MERGE);
        assert_true(v->mlp == VISION_QUICK_GELU && !v->rms && !v->patch_bias && v->qkv_fused && !v->position);
        assert_true(v->eps == 1e-6f && v->rope_theta == 1e4 && v->window == 0 && v->deepstack_count == 0);
        assert_string_equal(v->names.merge_fc2, "vision.merger.mlp.2");
        const struct model_image_rule *m = &d.image;
        assert_true(m->present && m->grid && !m->rule && m->tokens == 0 && m->placeholder_id == 151655);
        assert_string_equal(m->marker, "<|image_pad|>");
        assert_string_equal(m->prefix, "");
        assert_string_equal(m->video_marker, "<|video_pad|>");
        assert_true(m->video_placeholder_id == 151656 && !m->video_stamp && m->tokens_per_second == 0);
        assert_true(d.eos_count == 1 && d.eos_ids[0] == 151645 && d.bos_id == 151643);
        model_desc_free(&d);
    }
}

static void test_qwen2_5_vl(void **state)
{
    (void)state;
    load(QWEN2_5_VL_3B);
    const struct desc_vision *v = &d.vision;
    assert_true(d.hidden == 2048 && d.layer_count == 36 && d.tied && d.context_max == 128000);
    assert_true(d.layers[0].heads == 16 && d.layers[0].head_dim == 128);
    assert_true(v->rms && v->mlp == VISION_GLU_SILU && v->hidden == 1280 && v->ff == 3420 && v->window == 4 &&
                !v->patch_bias);
    for (uint32_t n = 0; n < 32; n++) assert_int_equal(v->full_layers[n / 8] >> n % 8 & 1, n % 8 == 7);
    assert_string_equal(v->names.up, "vision.blocks.#.mlp.up_proj");
    assert_true(d.image.tokens_per_second == 2 && !d.image.video_stamp);
    model_desc_free(&d);
    load(QWEN2_5_VL_7B_SHORT);
    assert_true(d.vocab == 152064 && d.ropes[0].theta == 1e6 && d.ropes[0].sections[2] == 24 && !d.tied);
    assert_true(v->hidden == 1280 && v->ff == 3420 && v->layers == 32 && v->patch == 14 && v->window == 4);
    assert_true(v->full_layers[0] == 0x80 && v->full_layers[3] == 0x80 && v->full_layers[4] == 0);
    assert_int_equal(c.vision.out_hidden_size, 3584);
    assert_true(d.image.tokens_per_second == 2);
    assert_true(d.eos_count == 1 && d.eos_ids[0] == 151645); /* the class default */
    assert_int_equal(d.bos_id, HF_NO_ID);
    model_desc_free(&d);
}

static void test_qwen3_vl(void **state)
{
    (void)state;
    load(QWEN3_VL_4B);
    const struct desc_vision *v = &d.vision;
    const struct desc_layer *l = &d.layers[35];
    assert_true(d.hidden == 2560 && l->heads == 32 && l->kv_heads == 8 &&
                l->head_dim == 128); /* 32 * 128 is not 2560 */
    assert_true(!l->qkv_bias && !l->o_bias && d.tied && d.context_max == 262144 &&
                l->scale == (float)(1 / sqrt(128.0)));
    assert_true(d.ropes[0].theta == 5e6 && d.ropes[0].interleaved && d.ropes[0].sections[0] == 24);
    assert_names(&d.names, true);
    assert_true(v->hidden == 1024 && v->layers == 24 && v->patch == 16 && v->patch_bias && v->position &&
                !v->rms);
    assert_true(v->mlp == VISION_GELU_TANH && v->position_side == 48 && v->window == 0 && v->depth == 2 &&
                v->merge == 2);
    assert_true(v->deepstack_count == 3 && v->deepstack[0] == 5 && v->deepstack[1] == 11 &&
                v->deepstack[2] == 17);
    assert_string_equal(v->names.deepstack_fc1, "vision.deepstack_merger_list.#.linear_fc1");
    assert_string_equal(d.image.marker, "<|image_pad|>");
    assert_string_equal(d.image.video_marker, "<|video_pad|>");
    assert_string_equal(d.image.video_prefix, "<|vision_start|>");
    assert_string_equal(d.image.video_suffix, "<|vision_end|>");
    assert_string_equal(d.image.video_placeholder, "<|video_pad|>");
    assert_true(d.image.video_stamp && d.image.tokens_per_second == 0);
    model_desc_free(&d);
    load(QWEN3_VL_30B);
    l = &d.layers[47];
    assert_true(l->experts == 128 && l->experts_used == 8 && l->ff == 768 && d.layers[0].experts == 128);
    assert_true(l->experts_renorm); /* whatever the file says: the class has no such option */
    assert_true(!d.tied);           /* text_config's true means nothing here */
    assert_int_equal(d.expert_layout, EXPERTS_IN_OUT);
    assert_true(v->hidden == 1152 && v->ff == 4304 && v->deepstack_count == 3 && v->deepstack[2] == 24);
    model_desc_free(&d);
}

static void test_qwen3_5(void **state)
{
    (void)state;
    load(QWEN3_5_0_8B);
    const struct desc_layer *full = &d.layers[3], *delta = &d.layers[22];
    const struct desc_delta *g = &d.delta;
    assert_true(full->mixer == MIXER_ATTENTION && full->gated && full->heads == 8 && full->kv_heads == 2);
    assert_true(delta->mixer == MIXER_DELTA && !delta->gated && d.layers[23].mixer == MIXER_ATTENTION);
    assert_true(g->key_heads == 16 && g->value_heads == 16 && g->key_dim == 128 && g->value_dim == 128);
    assert_true(g->conv_k == 4 && !g->tiled && !g->decay_plain && d.norm_plus_one && d.tied);
    assert_int_equal(desc_conv_columns(&d), 6144);
    assert_int_equal(desc_in_columns(&d, 22), 8192);
    assert_int_equal(desc_in_columns(&d, 3), 2 * 8 * 256 + 2 * 2 * 256);
    assert_int_equal(desc_mixed_columns(&d, 22), 2048);
    assert_true(d.ropes[0].dim == 64 && d.ropes[0].sections[0] == 11 && d.ropes[0].interleaved);
    assert_true(d.vision.deepstack_count == 0 && d.vision.position_side == 48 && d.image.video_stamp);
    assert_true(d.eos_count == 1 && d.eos_ids[0] == 248044);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3_5_moe_text\"}");
    assert_true(d.layer_count == 40 && d.layers[2].mixer == MIXER_DELTA && d.layers[3].gated);
    assert_true(d.layers[0].experts == 256 && d.layers[0].experts_used == 8 && d.layers[0].experts_renorm);
    assert_true(d.layers[0].ff == 512 && d.layers[0].shared_ff == 512 && g->value_heads == 32);
    assert_string_equal(d.names.up, "text.layers.#.mlp.shared_expert.up_proj");
    assert_true(d.ropes[0].sections[0] == 11 && !d.has_vision && d.eos_ids[0] == 248046);
    model_desc_free(&d);
}

static void test_text(void **state)
{
    (void)state;
    load(QWEN3_0_6B);
    assert_true(d.hidden == 1024 && d.layers[0].head_dim == 128 && d.layers[0].heads == 16 && d.tied &&
                !d.has_vision);
    assert_true(d.eos_count == 2 && d.eos_ids[1] == 151643 && d.ropes[0].sections[0] == 0);
    assert_names(&d.names, true);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"
         "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_theta\":1000000.0,"
         "\"rope_type\":\"default\"},\"sliding_window\":null,\"use_sliding_window\":false,\"layer_types\":"
         "null}");
    assert_true(d.layers[0].head_dim == 64 && d.layers[0].qkv_bias && !d.layers[0].o_bias &&
                d.vocab == 151936);
    assert_true(d.ropes[0].theta == 1e6 && d.context_max == 32768 && !d.tied && d.norm_eps == 1e-6f);
    assert_names(&d.names, false);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3\",\"attention_bias\":true,\"num_key_value_heads\":null,\"num_attention_"
         "heads\":8}");
    assert_true(d.layers[0].qkv_bias && d.layers[0].o_bias && d.layers[0].kv_heads == 8 &&
                d.ropes[0].theta == 1e4);
    model_desc_free(&d);
    /* transformers 5 saves num_experts under another name. */
    load("{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":6,\"num_local_experts\":5,\"num_experts_per_"
         "tok\":2,"
         "\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,77]}");
    for (uint32_t n = 0; n < 6; n++) {
        bool sparse = n == 1 || n == 5;
        assert_int_equal(d.layers[n].experts, sparse ? 5 : 0);
        assert_int_equal(d.layers[n].ff, sparse ? 768 : 6144);
    }
    assert_true(d.layers[0].head_dim == 64 && !d.layers[1].experts_renorm && d.expert_layout == EXPERTS_EACH);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen2_moe\",\"num_hidden_layers\":5,\"use_sliding_window\":true,\"sliding_"
         "window\":9,"
         "\"max_window_layers\":3}");
    for (uint32_t n = 0; n < 5; n++) {
        const struct desc_layer *l = &d.layers[n];
        assert_int_equal(l->window, n == 0 || n == 2 ? 9 : 0);
        assert_true(l->experts == 60 && l->ff == 1408 && l->shared_ff == 5632 && l->qkv_bias && !l->o_bias);
    }
    assert_string_equal(d.names.shared_gate, "text.layers.#.mlp.shared_expert_gate");
    model_desc_free(&d);
}

static void test_windows(void **state)
{
    (void)state;
    load("{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"use_sliding_window\":true,\"sliding_window\":"
         "100,"
         "\"max_window_layers\":2}");
    assert_true(d.layers[1].window == 0 && d.layers[2].window == 100 && d.layers[3].window == 100);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"use_sliding_window\":true,\"sliding_window\":"
         "100,"
         "\"max_window_layers\":0,\"layer_types\":[\"sliding_attention\",\"full_attention\"]}");
    assert_true(d.layers[0].window == 100 && d.layers[1].window == 0);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"use_sliding_window\":true,\"sliding_window\":"
         "null,"
         "\"max_window_layers\":0}");
    assert_true(d.layers[0].window == 0);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"use_sliding_window\":true,\"sliding_"
         "window\":64}");
    assert_true(d.layers[0].window == 64 && d.layers[1].window == 64);
    model_desc_free(&d);
}

static void test_yarn(void **state)
{
    (void)state;
    load(
        "{\"model_type\":\"qwen2\",\"rope_theta\":1000000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
        "\"original_max_position_embeddings\":32768}}");
    const struct desc_rope *r = &d.ropes[0];
    assert_true(r->ramp == RAMP_YARN && r->factor == 4 && r->original == 32768 && r->beta_fast == 32 &&
                r->beta_slow == 1);
    assert_true(r->truncate && fabs(r->attention - 1.138629436111989) < 1e-15 && r->theta == 1e6);
    assert_int_equal(d.context_max, 131072); /* max_position_embeddings is 32768 */
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3\",\"max_position_embeddings\":200000,\"rope_parameters\":{\"rope_type\":"
         "\"yarn\","
         "\"rope_theta\":1000000.0,\"factor\":2.0,\"original_max_position_embeddings\":40960,\"beta_fast\":"
         "16,\"beta_slow\":2,"
         "\"attention_factor\":0.75,\"truncate\":false,\"mscale\":null}}");
    assert_true(r->beta_fast == 16 && r->beta_slow == 2 && !r->truncate && r->attention == 0.75);
    assert_int_equal(d.context_max, 200000);
    model_desc_free(&d);
    /* No original length: max_position_embeddings stands for it. The old key beside the new one. Both scales.
     */
    load("{\"model_type\":\"qwen2\",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"},"
         "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,\"mscale\":1.0,\"mscale_all_dim\":0.5}}");
    assert_true(r->ramp == RAMP_YARN && r->original == 32768 && r->theta == 5e5);
    assert_true(fabs(r->attention - (0.1 * log(8) + 1) / (0.05 * log(8) + 1)) < 1e-15);
    assert_int_equal(d.context_max, 262144);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen2\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1000000,"
         "\"original_max_position_embeddings\":16000000}}");
    assert_int_equal(d.context_max, 1u << 24); /* positions stay exact as float32 */
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}");
    assert_true(!r->ramp && r->factor == 2.5);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":2048,\"num_attention_heads\":16,\"rope_scaling\":{"
         "\"type\":\"yarn\","
         "\"mrope_section\":[16,24,24],\"factor\":4,\"original_max_position_embeddings\":32768}}");
    assert_true(r->ramp == RAMP_YARN && r->sections[1] == 24 && !d.has_vision);
    model_desc_free(&d);
}

#define VL3(vision)                                                                                          \
    "{\"model_type\":\"qwen3_vl\",\"text_config\":{\"hidden_size\":3584},\"vision_config\":{" vision "}}"
#define VL25(vision)                                                                                         \
    "{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":3584,\"num_attention_heads\":28,\"num_key_value_"        \
    "heads\":4,"                                                                                             \
    "\"vision_config\":{" vision "}}"
#define VL2(vision)                                                                                          \
    "{\"model_type\":\"qwen2_vl\",\"hidden_size\":3584,\"num_attention_heads\":28,\"num_key_value_heads\":"  \
    "4,"                                                                                                     \
    "\"vision_config\":{" vision "}}"
#define Q3(keys)  "{\"model_type\":\"qwen3\"," keys "}"
#define MOE(keys) "{\"model_type\":\"qwen3_moe\"," keys "}"
#define Q35(keys) "{\"model_type\":\"qwen3_5_text\"," keys "}"

static void test_defaults_of_towers(void **state)
{
    (void)state;
    load(VL2(""));
    assert_true(d.vision.hidden == 1280 && d.vision.ff == 5120 && d.vision.layers == 32 &&
                d.norm_eps == 1e-5f);
    model_desc_free(&d);
    load(VL2("\"embed_dim\":640,\"mlp_ratio\":3.5,\"num_heads\":8,\"patch_size\":[12,12]"));
    assert_true(d.vision.ff == 2240 && d.vision.patch == 12);
    model_desc_free(&d);
    /* Both spellings of the tower's theta; among the parameters it counts. */
    load(VL2("\"rope_theta\":500"));
    assert_true(d.vision.rope_theta == 500);
    model_desc_free(&d);
    load(VL2("\"rope_theta\":500,\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":200}"));
    assert_true(d.vision.rope_theta == 200);
    model_desc_free(&d);
    load(VL25("\"fullatt_block_indexes\":[]"));
    assert_true(d.vision.hidden == 3584 && d.vision.full_layers[0] == 0 && d.image.tokens_per_second == 4);
    model_desc_free(&d);
    load(VL3(""));
    assert_true(d.vision.hidden == 1152 && d.vision.layers == 27 && d.vision.deepstack_count == 3 &&
                d.ropes[0].theta == 5e5);
    assert_true(d.ropes[0].sections[0] == 24 && d.ropes[0].interleaved);
    model_desc_free(&d);
    load(VL3("\"deepstack_visual_indexes\":[],\"num_position_embeddings\":16"));
    assert_true(d.vision.deepstack_count == 0 && d.vision.position_side == 4);
    model_desc_free(&d);
    /* A vocabulary without the token of videos: no videos. Special ids among the text's keys count too. */
    load("{\"model_type\":\"qwen3_vl\",\"text_config\":{\"hidden_size\":3584,\"vocab_size\":900,\"image_"
         "token_id\":7},"
         "\"vision_config\":{}}");
    assert_true(d.image.placeholder_id == 7 && d.image.video_marker == NULL && d.eos_count == 0);
    model_desc_free(&d);
    load("{\"model_type\":\"qwen3_vl\",\"text_config\":{\"tie_word_embeddings\":true}}");
    assert_true(d.tied && !d.has_vision && !d.image.present);
    model_desc_free(&d);
}

static void test_hostile(void **state)
{
    static const struct {
        const char *text;
        enum status want;
        const char *says;
    } cases[] = {
        {"{\"model_type\":\"qwen3_next\"}", ST_UNSUPPORTED,
         "served: gemma, gemma2, gemma3, gemma3_text, gemma4, gemma4_text, gemma4_unified, "
         "gemma4_unified_text, paligemma, qwen2, qwen2_moe, qwen3, qwen3_moe, qwen2_vl, qwen2_5_vl, "
         "qwen3_vl, "
         "qwen3_vl_moe, qwen3_5, qwen3_5_moe, qwen3_5_text, qwen3_5_moe_text, llama, mistral, ministral3, "
         "smollm3, granite"},
        {"{\"model_type\":\"qwen2_moe\",\"mlp_only_layers\":[3]}", ST_UNSUPPORTED, "layers without experts"},
        {Q35("\"linear_conv_kernel_dim\":1"), ST_FORMAT, "linear_conv_kernel_dim"},
        {Q35("\"linear_conv_kernel_dim\":17"), ST_FORMAT, "linear_conv_kernel_dim"},
        {Q35("\"linear_num_key_heads\":0"), ST_FORMAT, "linear_num_key_heads"},
        {Q35("\"linear_num_value_heads\":24"), ST_FORMAT, "multiple of linear_num_key_heads"},
        {Q35("\"linear_key_head_dim\":4096"), ST_FORMAT, "linear_key_head_dim"},
        {Q35("\"full_attention_interval\":0"), ST_FORMAT, "full_attention_interval"},
        {Q35("\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]"), ST_UNSUPPORTED,
         "only full_attention and linear_attention"},
        {Q35("\"partial_rotary_factor\":0.002"), ST_FORMAT, "partial_rotary_factor"},
        {Q35("\"num_hidden_layers\":3"), ST_UNSUPPORTED, "must have full_attention"},
        {Q35("\"partial_rotary_factor\":0"), ST_FORMAT, "partial_rotary_factor"},
        {Q3("\"partial_rotary_factor\":0"), ST_UNSUPPORTED, "partial_rotary_factor"},
        {Q3("\"partial_rotary_factor\":0.5"), ST_UNSUPPORTED, "partial_rotary_factor"},
        {"{\"model_type\":\"qwen2_5_omni\"}", ST_UNSUPPORTED, "\"qwen2_5_omni\" is not served"},
        {"{\"model_type\":\"qwen3_vl_text\"}", ST_UNSUPPORTED, "is not served"},
        {"{\"model_type\":\"qwen3_vl\"}", ST_FORMAT, "text_config: is missing"},
        {"{\"model_type\":\"qwen2_vl\",\"text_config\":[]}", ST_FORMAT, "text_config: must be an object"},
        {"{\"model_type\":\"qwen2_vl\",\"vision_config\":7}", ST_FORMAT, "vision_config: must be an object"},
        {"{\"model_type\":\"qwen2_vl\",\"vision_config\":{}}", ST_FORMAT,
         "vision_config.hidden_size: must be the hidden_size"},
        {Q3("\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}"), ST_UNSUPPORTED,
         "quantization_config"},
        {Q3("\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":3}"), ST_FORMAT, "bits"},
        {Q3("\"quantization_config\":{\"quant_method\":\"awq\",\"version\":\"gemv\"}"), ST_UNSUPPORTED,
         "version gemm"},
        {Q3("\"quantization_config\":{\"quant_method\":\"auto-round\",\"packing_format\":"
            "\"auto_round:llm_compressor\"}"),
         ST_UNSUPPORTED, "auto-round's packing_format"},
        {Q3("\"quantization_config\":{\"quant_method\":\"auto-round\",\"packing_format\":[]}"),
         ST_UNSUPPORTED, "auto-round's packing_format"},
        {Q3("\"quantization_config\":{\"quant_method\":\"auto-round\",\"bits\":2}"), ST_FORMAT, "bits"},
        {Q3("\"quantization_config\":{\"quant_method\":\"auto-round\",\"data_type\":\"mx_fp\"}"),
         ST_UNSUPPORTED, "only integer weights"},
        {Q3("\"quantization_config\":{\"quant_method\":\"auto-round\",\"act_bits\":8}"), ST_UNSUPPORTED,
         "quantized activations"},
        {Q3("\"quantization_config\":{\"quant_method\":\"intel/auto-round\",\"rotation_config\":{}}"),
         ST_UNSUPPORTED, "rotations"},
        {Q3("\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[96,96]}"),
         ST_UNSUPPORTED, "128 x 128"},
        {Q3("\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":"
            "{\"weights\":{\"block_structure\":[64,128]}}}}"),
         ST_UNSUPPORTED, "128 x 128"},
        {Q3("\"quantization_config\":{\"quant_method\":\"fp8\",\"config_groups\":[1,2]},\"hidden_size\":0"),
         ST_FORMAT, "hidden_size"},
        {Q3("\"hidden_size\":0"), ST_FORMAT, "hidden_size"},
        {Q3("\"hidden_size\":1e99"), ST_FORMAT, "hidden_size"},
        {Q3("\"vocab_size\":-1"), ST_FORMAT, "vocab_size"},
        {Q3("\"num_hidden_layers\":513"), ST_FORMAT, "num_hidden_layers"},
        {Q3("\"head_dim\":127"), ST_FORMAT, "head_dim"},
        {Q3("\"num_key_value_heads\":5"), ST_FORMAT, "multiple of num_key_value_heads"},
        {Q3("\"hidden_act\":\"gelu\""), ST_UNSUPPORTED, "only silu"},
        {Q3("\"rms_norm_eps\":\"1e-6\""), ST_FORMAT, "rms_norm_eps"},
        {Q3("\"rope_scaling\":[1]"), ST_FORMAT, "rope_scaling"},
        {Q3("\"rope_parameters\":7"), ST_FORMAT, "rope_parameters"},
        {Q3("\"rope_theta\":0"), ST_FORMAT, "rope_theta"},
        {Q3("\"rope_scaling\":{\"type\":\"longrope\"}"), ST_UNSUPPORTED,
         "only default, mrope, dynamic, linear, llama3 and yarn"},
        {Q3("\"rope_scaling\":{\"type\":7}"), ST_UNSUPPORTED, "rope_type"},
        {Q3("\"rope_scaling\":{\"type\":\"yarn\"}"), ST_FORMAT, "factor: is missing"},
        {Q3("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}"), ST_FORMAT, "factor"},
        {Q3("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":0}"),
         ST_FORMAT, "original_max_position_embeddings"},
        {Q3("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":1,\"beta_slow\":3}"), ST_FORMAT,
         "beta_fast"},
        {Q3("\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}"), ST_FORMAT, "rope_theta"},
        {Q3("\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}"), ST_FORMAT, "factor"},
        {Q3("\"rope_scaling\":{\"type\":\"linear\"}"), ST_FORMAT, "factor: is missing"},
        {Q3("\"partial_rotary_factor\":0.5"), ST_UNSUPPORTED, "partial_rotary_factor"},
        {Q3("\"rope_parameters\":{\"partial_rotary_factor\":0.25}"), ST_UNSUPPORTED, "partial_rotary_factor"},
        {Q3("\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]"), ST_FORMAT,
         "use_sliding_window is off"},
        {Q3("\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]"), ST_UNSUPPORTED, "layer_types"},
        {Q3("\"use_sliding_window\":true,\"sliding_window\":0"), ST_FORMAT, "sliding_window"},
        {"{\"model_type\":\"qwen2\",\"hidden_size\":100,\"num_attention_heads\":3,\"num_key_value_heads\":3}",
         ST_FORMAT, "must divide hidden_size"},
        {"{\"model_type\":\"qwen2\",\"hidden_size\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4}",
         ST_FORMAT, "must divide hidden_size"},
        {"{\"model_type\":\"qwen2_vl\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24]}}",
         ST_FORMAT, "mrope_section"},
        {"{\"model_type\":\"qwen2_vl\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,25]}}",
         ST_FORMAT, "mrope_section"},
        {"{\"model_type\":\"qwen2_vl\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,-24,72]}}",
         ST_FORMAT, "mrope_section"},
        {"{\"model_type\":\"qwen2_vl\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[0,32,32]}}",
         ST_FORMAT, "mrope_section"},
        {"{\"model_type\":\"qwen3_vl\",\"text_config\":{\"head_dim\":64}}", ST_FORMAT,
         "text_config.mrope_section"},
        {MOE("\"num_experts\":5000"), ST_FORMAT, "num_experts"},
        {MOE("\"num_experts\":4,\"num_experts_per_tok\":5"), ST_FORMAT, "num_experts_per_tok"},
        {MOE("\"num_experts_per_tok\":65"), ST_FORMAT, "num_experts_per_tok"},
        {MOE("\"decoder_sparse_step\":0"), ST_FORMAT, "decoder_sparse_step"},
        {MOE("\"mlp_only_layers\":3"), ST_FORMAT, "mlp_only_layers"},
        {MOE("\"mlp_only_layers\":[\"3\"]"), ST_FORMAT, "mlp_only_layers"},
        {MOE("\"moe_intermediate_size\":0"), ST_FORMAT, "moe_intermediate_size"},
        {VL2("\"embed_dim\":1000"), ST_FORMAT, "vision_config.num_heads"},
        {VL2("\"embed_dim\":32"), ST_FORMAT, "vision_config.num_heads"}, /* heads of 2 */
        {VL2("\"mlp_ratio\":0"), ST_FORMAT, "mlp_ratio"},
        {VL2("\"embed_dim\":65536,\"mlp_ratio\":64"), ST_FORMAT, "mlp_ratio"},
        {VL2("\"hidden_size\":2048"), ST_FORMAT, "vision_config.hidden_size: must be"},
        {VL2("\"hidden_act\":\"gelu_pytorch_tanh\""), ST_UNSUPPORTED, "only quick_gelu"},
        {VL2("\"in_channels\":4"), ST_FORMAT, "in_channels"},
        {VL2("\"in_chans\":1"), ST_FORMAT, "in_chans"},
        {VL2("\"patch_size\":0"), ST_FORMAT, "patch_size"},
        {VL2("\"patch_size\":[14,16]"), ST_FORMAT, "one size for both sides"},
        {VL2("\"patch_size\":[]"), ST_FORMAT, "one size for both sides"},
        {VL2("\"temporal_patch_size\":17"), ST_FORMAT, "temporal_patch_size"},
        {VL2("\"spatial_merge_size\":9"), ST_FORMAT, "spatial_merge_size"},
        {VL2("\"rope_parameters\":{\"rope_theta\":0}"), ST_FORMAT, "rope_theta"},
        {VL25("\"window_size\":27"), ST_FORMAT, "window_size: must hold one token"},
        {VL25("\"fullatt_block_indexes\":[7,-1]"), ST_FORMAT, "fullatt_block_indexes"},
        {VL25("\"fullatt_block_indexes\":7"), ST_FORMAT, "fullatt_block_indexes"},
        {VL25("\"tokens_per_second\":0"), ST_FORMAT, "tokens_per_second"},
        {VL25("\"out_hidden_size\":1"), ST_FORMAT, "out_hidden_size: must be"},
        {VL25("\"hidden_act\":\"quick_gelu\""), ST_UNSUPPORTED, "only silu"},
        {VL3("\"depth\":0"), ST_FORMAT, "vision_config.depth"},
        {VL3("\"depth\":513"), ST_FORMAT, "vision_config.depth"},
        {VL3("\"depth\":24"), ST_FORMAT, "deepstack_visual_indexes"}, /* the default has 24 */
        {VL3("\"deepstack_visual_indexes\":[5,5]"), ST_FORMAT, "deepstack_visual_indexes"},
        {VL3("\"deepstack_visual_indexes\":[5,4]"), ST_FORMAT, "deepstack_visual_indexes"},
        {VL3("\"deepstack_visual_indexes\":[0,1,2,3,4,5,6,7,8]"), ST_FORMAT, "deepstack_visual_indexes"},
        {VL3("\"num_position_embeddings\":2305"), ST_FORMAT, "must be a square"},
        {VL3("\"num_position_embeddings\":0"), ST_FORMAT, "num_position_embeddings"},
        {"{\"model_type\":\"qwen3_vl\",\"text_config\":{\"hidden_size\":3584,\"num_hidden_layers\":2},"
         "\"vision_config\":{}}",
         ST_FORMAT, "deepstack_visual_indexes"},
        {"{\"model_type\":\"qwen3_vl\",\"text_config\":{\"hidden_size\":3584,\"vocab_size\":900},\"vision_"
         "config\":{}}",
         ST_FORMAT, "image_token_id: must be below vocab_size"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {""};
        enum status st = parse(cases[i].text, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].says))
            fail_msg("%s: %s (%s)", cases[i].text, status_name(st), err.msg);
        if (strchr(err.msg, '\n')) fail_msg("more than one line: %s", err.msg);
    }
}

/* Zero points as they are, or one less; layouts are told apart by their tensors. */
static void test_auto_round(void **state)
{
    (void)state;
    static const struct {
        const char *format;
        bool zeros_plain;
    } cases[] = {{"auto_round:auto_gptq", false}, {"auto_round:gptq", false},     {"auto_gptq", false},
                 {"auto_round:auto_awq", false},  {"auto_round:gptqmodel", true}, {"auto_round", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048];
        snprintf(text, sizeof text,
                 "%.*s,\"quantization_config\":{\"quant_method\":\"auto-round\",\"packing_format\":\"%s\"}}",
                 (int)strlen(QWEN3_0_6B) - 1, QWEN3_0_6B, cases[i].format);
        load(text);
        assert_string_equal(d.packing.method, "auto-round");
        assert_int_equal(d.packing.bits, 4);
        assert_int_equal(d.packing.zeros_plain, cases[i].zeros_plain);
        model_desc_free(&d);
    }
}

static void test_names(void **state)
{
    static const struct {
        const char *name, *canonical; /* NULL: not needed */
    } cases[] = {
        {"model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.language_model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"language_model.model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"language_model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.language_model.layers.0.self_attn.q_proj.bias", "text.layers.0.self_attn.q_proj.bias"},
        {"model.embed_tokens.weight", "text.embed_tokens.weight"},
        {"model.norm.weight", "text.norm.weight"},
        {"lm_head.weight", "head.weight"},
        {"language_model.lm_head.weight", "head.weight"},
        {"visual.blocks.0.attn.qkv.bias", "vision.blocks.0.attn.qkv.bias"},
        {"model.visual.blocks.0.attn.qkv.bias", "vision.blocks.0.attn.qkv.bias"},
        {"model.visual.deepstack_merger_list.2.norm.weight", "vision.deepstack_merger_list.2.norm.weight"},
        {"visual.merger.mlp.0.weight", "vision.merger.mlp.0.weight"},
        {"model.language_model.layers.1.mlp.experts.gate_up_proj", "text.layers.1.mlp.experts.gate_up_proj"},
        {"model.layers.1.mlp.experts.127.down_proj.weight", "text.layers.1.mlp.experts.127.down_proj.weight"},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
        {"visual.rotary_pos_emb.inv_freq", NULL},
        {"mtp.layers.0.mlp.up_proj.weight", NULL},
        {"embed_tokens.weight", "text.embed_tokens.weight"}, /* saved without the head */
        {"layers.2.input_layernorm.weight", "text.layers.2.input_layernorm.weight"},
        {"", NULL},
    };
    static const char *const texts[] = {QWEN2_VL_7B, QWEN2_5_VL_3B, QWEN3_VL_4B, QWEN3_VL_30B, QWEN3_0_6B};
    char out[DESC_NAME_MAX], *huge = malloc(5000);
    (void)state;
    memset(huge, 'x', 4999);
    memcpy(huge, "model.", 6);
    huge[4999] = '\0';
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        load(texts[k]);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            bool needed = d.canonical(cases[i].name, out);
            if (needed != (cases[i].canonical != NULL)) fail_msg("%s", cases[i].name);
            if (needed) assert_string_equal(out, cases[i].canonical);
        }
        assert_false(d.canonical(huge, out));
        model_desc_free(&d);
    }
    free(huge);
}

/* -1: the tensor says nothing. */
static int layout_of(const char *name, uint64_t a, uint64_t b)
{
    enum desc_experts layout;
    uint64_t shape[3] = {3, a, b};
    return model_desc_experts(&d, name, 3, shape, &layout) ? (int)layout : -1;
}

static void test_expert_layouts(void **state)
{
    static const char wide[] = "text.layers.11.mlp.experts.gate_up_proj",
                      down[] = "text.layers.0.mlp.experts.down_proj";
    static const struct {
        uint32_t c, i;
    } sizes[] = {{16, 12}, {16, 8}, {16, 16}}; /* plain; gate_up is square; down is square */
    char text[256];
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint32_t w = sizes[k].c, i = sizes[k].i;
        snprintf(
            text, sizeof text,
            MOE("\"hidden_size\":%u,\"moe_intermediate_size\":%u,\"num_experts\":3,\"num_experts_per_tok\":1,"
                "\"num_attention_heads\":4"),
            w, i);
        load(text);
        assert_int_equal(layout_of(wide, w, 2 * i), 2 * i == w ? -1 : EXPERTS_IN_OUT);
        assert_int_equal(layout_of(wide, 2 * i, w), 2 * i == w ? -1 : EXPERTS_OUT_IN);
        assert_int_equal(layout_of(down, i, w), i == w ? -1 : EXPERTS_IN_OUT);
        assert_int_equal(layout_of(down, w, i), i == w ? -1 : EXPERTS_OUT_IN);
        assert_int_equal(layout_of(wide, w + 1, 2 * i), -1);
        assert_int_equal(layout_of("text.layers.0.mlp.experts.2.gate_proj.weight", i, w), EXPERTS_EACH);
        assert_int_equal(layout_of("text.layers.0.mlp.experts..gate_proj.weight", i, w), -1);
        assert_int_equal(layout_of("text.layers.x.mlp.experts.gate_up_proj", w, 2 * i), -1);
        assert_int_equal(layout_of("text.layers.0.mlp.experts.gate_up_proj.weight", w, 2 * i), -1);
        assert_int_equal(layout_of("text.layers.0.mlp.gate.weight", w, 2 * i), -1);
        assert_int_equal(layout_of("", w, 2 * i), -1);
        model_desc_free(&d);
    }
    load(QWEN3_0_6B); /* no experts */
    assert_int_equal(layout_of(wide, 16, 24), -1);
    model_desc_free(&d);
}

/* Whatever a file says, it is refused in one line or described. */
static void test_mutations(void **state)
{
    static const char *const texts[] = {QWEN2_VL_7B,  QWEN2_VL_7B_V5, QWEN2_5_VL_3B, QWEN3_VL_4B,
                                        QWEN3_VL_30B, QWEN3_0_6B,     QWEN3_5_0_8B};
    static const char *const bits[] = {"0",    "-1",    "999999999999", "null",  "[]",  "{}",
                                       "true", "1e400", "\"x\"",        "[1,2]", "0.5", "3"};
    uint64_t rng = 4711;
    uint32_t refused = 0, rounds = 12000;
    (void)state;
    for (uint32_t k = 0; k < rounds; k++) {
        char text[4096];
        struct err err = {""};
        const char *from = texts[k % 7];
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        /* Another value for the key after a random place. */
        const char *colon = strchr(from + (rng >> 33) % (strlen(from) - 3), ':');
        if (!colon) continue;
        size_t skip = strcspn(colon + 1, ",}]");
        snprintf(text, sizeof text, "%.*s%s%s", (int)(colon + 1 - from), from, bits[(rng >> 20) % 12],
                 colon + 1 + skip);
        enum status st = parse(text, &err);
        if (!st) {
            for (uint32_t n = 0; n < d.layer_count; n++)
                assert_true(d.layers[n].heads % d.layers[n].kv_heads == 0);
            assert_true(d.context_max >= 1 && d.context_max <= 1u << 24);
            model_desc_free(&d);
        } else {
            refused++;
            if (!err.msg[0] || strchr(err.msg, '\n')) fail_msg("%s: bad message \"%s\"", text, err.msg);
        }
    }
    assert_true(refused > rounds / 10 && refused < rounds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen2_vl),
        cmocka_unit_test(test_qwen2_5_vl),
        cmocka_unit_test(test_qwen3_vl),
        cmocka_unit_test(test_qwen3_5),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_defaults_of_towers),
        cmocka_unit_test(test_auto_round),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_expert_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

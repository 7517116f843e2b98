/* config.json of the families that cut images into tiles: released files, absent keys, what is refused; and
 * the text around tiles. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"

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

#define LLAMA_135M                                                                                           \
    "\"text_config\":{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,"              \
    "\"num_attention_heads\":9,\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"rope_theta\":100000,"    \
    "\"vocab_size\":49280}"
#define BASE_512                                                                                             \
    "\"vision_config\":{\"hidden_size\":768,\"image_size\":512,\"num_attention_heads\":12,"                  \
    "\"num_hidden_layers\":12,\"patch_size\":16,\"max_image_size\":{\"longest_edge\":512}}"
#define QWEN_05B                                                                                             \
    "\"text_config\":{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,"              \
    "\"num_attention_heads\":14,\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"vocab_size\":151674}"

static void test_idefics3(void **state)
{
    (void)state;
    load("{\"model_type\":\"smolvlm\",\"image_token_id\":49190,\"scale_factor\":4," LLAMA_135M "," BASE_512
         "}");
    assert_true(d.vision.image_size == 512 && d.vision.merge == 4 && d.vision.tokens == 64);
    assert_true(d.vision.position_lookup == LOOKUP_BUCKETS && d.vision.position_side == 32);
    assert_true(d.image.placeholder_id == 49190 && d.image.layout && !d.image.video_marker && !d.tied);
    assert_true(d.layers[0].heads == 9 && d.layers[0].head_dim == 64 && d.norm_eps == 1e-5f);
    /* The class's defaults. */
    load("{\"model_type\":\"idefics3\",\"text_config\":{},\"vision_config\":{\"image_size\":448}}");
    assert_true(d.vision.hidden == 1152 && d.vision.patch == 32 && d.vision.tokens == 49);
    assert_true(d.image.placeholder_id == 128257 && d.norm_eps == 1e-5f && d.vision.merge_no_bias);
}

static void test_internvl(void **state)
{
    (void)state;
    load("{\"model_type\":\"internvl\"," QWEN_05B ",\"vision_config\":{\"attention_bias\":true,"
         "\"image_size\":[448,448],\"patch_size\":[14,14]}}");
    const struct desc_vision *v = &d.vision;
    assert_true(v->tokens == 256 && v->merge == 2 && v->merge_ff == 896 && v->names.class_row);
    assert_true(v->mlp == VISION_GELU_ERF && !v->qkv_no_bias && !v->names.post_norm && d.tied);
    assert_true(d.layers[0].qkv_bias && !d.layers[0].o_bias);
    /* InternVL3-38B */
    load("{\"model_type\":\"internvl\"," QWEN_05B
         ",\"vision_config\":{\"attention_bias\":false,\"hidden_size\":3200,"
         "\"intermediate_size\":12800,\"norm_type\":\"rms_norm\",\"num_attention_heads\":25,"
         "\"num_hidden_layers\":45,\"use_qk_norm\":true}}");
    assert_true(v->rms && v->qk_norm_all == 1e-6f && v->qkv_no_bias && v->names.q_norm && v->names.k_norm);
    load("{\"model_type\":\"qianfan_ocr\",\"text_config\":{\"model_type\":\"qwen3\"},\"vision_config\":{}}");
    assert_true(!d.tied && !d.vision.qkv_no_bias && strcmp(d.image.marker, "<image>") == 0);
    assert_non_null(d.names.q_norm);
}

#define CHAT(llm, more)                                                                                      \
    "{\"model_type\":\"internvl_chat\",\"ps_version\":\"v2\",\"tie_word_embeddings\":false,"                 \
    "\"force_image_size\":448,\"llm_config\":{\"vocab_size\":151936," llm "},\"vision_config\":{"            \
    "\"hidden_size\":1024,\"image_size\":448,\"num_attention_heads\":16,\"intermediate_size\":4096,"         \
    "\"qkv_bias\":true,\"qk_normalization\":false,\"norm_type\":\"layer_norm\"}" more "}"

/* As OpenGVLab releases it: InternVL3-1B, InternVL3_5-1B. */
static void test_internvl_chat(void **state)
{
    (void)state;
    load(CHAT("\"model_type\":\"qwen2\",\"tie_word_embeddings\":false,\"eos_token_id\":151643", ""));
    assert_true(!d.tied && !d.vision.rms && !d.vision.qkv_no_bias && !d.vision.names.q_norm);
    assert_true(d.image.placeholder_id == 151667 && d.vision.tokens == 256 && d.layers[0].qkv_bias);
    assert_true(d.eos_count == 2 && d.eos_ids[0] == 151643 && d.eos_ids[1] == 151645);
    load(CHAT("\"model_type\":\"qwen3\"", ""));
    assert_true(d.tied && d.image.placeholder_id == 151671 && d.names.q_norm);
}

static void test_lfm2_vl(void **state)
{
    (void)state;
    load(
        "{\"model_type\":\"lfm2_vl\",\"text_config\":{\"model_type\":\"lfm2\",\"hidden_size\":1024,"
        "\"block_ff_dim\":6656,\"num_hidden_layers\":16,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
        "\"full_attn_idxs\":[2,5,8,10,12,14]},\"vision_config\":{\"num_patches\":256}}");
    assert_true(d.vision.image_size == 0 && d.vision.position_side == 16 && d.vision.merge_ff == 2560);
    assert_true(d.vision.channels_last && d.vision.names.merge_norm && d.image.placeholder_id == 396 &&
                d.tied);
    assert_true(d.layers[0].mixer == MIXER_CONV && d.layers[2].mixer == MIXER_ATTENTION &&
                d.layers[0].ff == 4608);
}

static void test_granite_docling(void **state)
{
    (void)state;
    load("{\"model_type\":\"granite_docling\",\"text_config\":{},\"vision_config\":{}}");
    assert_true(d.vocab == 133800 && d.layer_count == 28 && d.vision.tokens == 64 && d.tied);
    assert_true(d.vision.deepstack_count == 3 && d.vision.deepstack[2] == 10 && d.vision.merge_places);
    assert_true(d.vision.merge_scale == (float)(12 / 0.263) &&
                d.vision.deepstack_scale == (float)(1 / 0.263));
}

static void test_minicpm(void **state)
{
    (void)state;
    load("{\"model_type\":\"minicpmv4_6\",\"text_config\":{},\"vision_config\":{\"image_size\":980,"
         "\"patch_size\":14},\"image_token_id\":248056}");
    assert_true(d.vision.halve == 7 && d.vision.merge == 4 && desc_merge_side(&d.vision) == 2);
    assert_true(d.vision.position_side == 70 && d.vision.image_size == 0 && d.image.placeholder_id == 248056);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *says;
        enum status want;
    } bad[] = {
        {"{\"model_type\":\"smolvlm\"," LLAMA_135M "}", "vision_config", ST_FORMAT},
        {"{\"model_type\":\"smolvlm\"," LLAMA_135M ",\"vision_config\":{},\"scale_factor\":5}",
         "scale_factor", ST_FORMAT},
        {"{\"model_type\":\"smolvlm\",\"text_config\":{\"model_type\":\"gpt2\"},\"vision_config\":{}}",
         "text_config.model_type", ST_UNSUPPORTED},
        {"{\"model_type\":\"internvl\"," QWEN_05B ",\"vision_config\":{\"norm_type\":\"group\"}}",
         "norm_type", ST_UNSUPPORTED},
        {"{\"model_type\":\"internvl\"," QWEN_05B ",\"vision_config\":{},\"vision_feature_layer\":-2}",
         "vision_feature_layer", ST_UNSUPPORTED},
        {"{\"model_type\":\"internvl\"," QWEN_05B ",\"vision_config\":{\"image_size\":[448,224]}}",
         "image_size", ST_FORMAT},
        {CHAT("\"model_type\":\"internlm2\"", ""), "llm_config.model_type", ST_UNSUPPORTED},
        {CHAT("\"model_type\":\"qwen2\"", ",\"select_layer\":-2"), "select_layer", ST_UNSUPPORTED},
        {"{\"model_type\":\"internvl_chat\",\"llm_config\":{},\"vision_config\":{\"hidden_size\":3200}}",
         "ps_version", ST_UNSUPPORTED},
        {"{\"model_type\":\"internvl_chat\",\"llm_config\":{},\"vision_config\":{},\"force_image_size\":448}",
         "force_image_size", ST_UNSUPPORTED},
        {"{\"model_type\":\"lfm2_vl\",\"text_config\":{},\"vision_config\":{\"num_patches\":255}}",
         "num_position_embeddings", ST_FORMAT},
        {"{\"model_type\":\"lfm2_vl\",\"text_config\":{},\"vision_config\":{\"num_patches\":4225}}",
         "num_patches", ST_UNSUPPORTED},
        {"{\"model_type\":\"granite_docling\",\"text_config\":{},\"vision_config\":{"
         "\"deepstack_visual_indexes\":[3,12]}}",
         "deepstack_visual_indexes", ST_FORMAT},
        {"{\"model_type\":\"minicpmv4_6\",\"text_config\":{},\"vision_config\":{},\"downsample_mode\":"
         "\"8x\"}",
         "downsample_mode", ST_UNSUPPORTED},
        {"{\"model_type\":\"minicpmv4_6\",\"text_config\":{},\"vision_config\":{},\"insert_layer_id\":12}",
         "insert_layer_id", ST_FORMAT},
        {"{\"model_type\":\"granite_docling\",\"text_config\":{\"hidden_size\":512},\"vision_config\":{}}",
         "out_hidden_size", ST_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {""};
        enum status st = parse(bad[i].text, &err);
        if (st != bad[i].want || !strstr(err.msg, bad[i].says))
            fail_msg("%s: status %d, %s", bad[i].text, (int)st, err.msg);
    }
}

/* All texts around an image of rows x columns tiles and the whole, with "#" for the image's tokens. */
static void check_layout(const char *config, uint32_t rows, uint32_t columns, uint32_t count,
                         const char *want)
{
    char all[1024] = "";
    load(config);
    for (uint32_t n = 0; n <= count; n++) {
        char text[MODEL_TEXT_BYTES];
        struct image_place at = {n, count, rows, columns, 0};
        assert_in_range(d.image.layout(text, &at), 0, MODEL_TEXT_BYTES - 1);
        strcat(all, text);
        if (n < count) strcat(all, "#");
    }
    assert_string_equal(all, want);
}

static void test_layouts(void **state)
{
    static const char smol[] =
        "{\"model_type\":\"smolvlm\",\"text_config\":{},\"vision_config\":{\"image_size\":448}}",
                      intern[] = "{\"model_type\":\"internvl\"," QWEN_05B ",\"vision_config\":{}}",
                      lfm[] = "{\"model_type\":\"lfm2_vl\",\"text_config\":{},\"vision_config\":{}}",
                      minicpm[] = "{\"model_type\":\"minicpmv4_6\",\"text_config\":{},\"vision_config\":{}}",
                      docling[] =
                          "{\"model_type\":\"granite_docling\",\"text_config\":{},\"vision_config\":{}}";
#define FAKE "<fake_token_around_image>"
    (void)state;
    check_layout(smol, 1, 1, 1, FAKE "<global-img>#" FAKE);
    check_layout(smol, 2, 1, 3, FAKE "<row_1_col_1>#\n" FAKE "<row_2_col_1>#\n\n" FAKE "<global-img>#" FAKE);
    check_layout(intern, 1, 1, 1, "<img>#</img>");
    check_layout(intern, 1, 2, 3, "<img>###</img>");
    check_layout(lfm, 1, 1, 1, "<|image_start|>#<|image_end|>");
    check_layout(lfm, 1, 2, 3,
                 "<|image_start|><|img_row_1_col_1|>#<|img_row_1_col_2|>#<|img_thumbnail|>#<|image_end|>");
    check_layout(lfm, 2, 1, 2, "<|image_start|><|img_row_1_col_1|>#<|img_row_2_col_1|>#<|image_end|>");
    check_layout(minicpm, 1, 1, 1, "<image_id>0</image_id><image>#</image>");
    check_layout(minicpm, 2, 2, 5,
                 "<image_id>0</image_id><image>#</image><slice>#</slice><slice>#</slice>\n"
                 "<slice>#</slice><slice>#</slice>");
    check_layout(docling, 1, 1, 1, FAKE "<row_1_col_1>#\n");
    check_layout(docling, 1, 2, 3, FAKE "<row_1_col_1>#" FAKE "<row_1_col_2>#\n\n" FAKE "<global-img>#" FAKE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idefics3),        cmocka_unit_test(test_internvl),
        cmocka_unit_test(test_internvl_chat),   cmocka_unit_test(test_lfm2_vl),
        cmocka_unit_test(test_granite_docling), cmocka_unit_test(test_minicpm),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_layouts)};
    int failed = cmocka_run_group_tests_name("config_tiles", tests, NULL, NULL);
    model_desc_free(&d);
    return failed;
}

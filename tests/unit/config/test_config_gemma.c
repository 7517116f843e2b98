/* config.json of Gemma 1 and 2 and of the models that take images with them: released files, what
 * transformers 5 makes of them, absent keys, nonsense; the description and the names of tensors. Numbers:
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

/* A released file of the first generation: what equals a default of the class is left out. */
static const char PG1_224[] =
    "{\"_vocab_size\":257152,\"architectures\":[\"PaliGemmaForConditionalGeneration\"],\"bos_token_id\":2,"
    "\"eos_token_id\":1,\"hidden_size\":2048,\"ignore_index\":-100,\"image_token_index\":257152,"
    "\"model_type\":\"paligemma\",\"pad_token_id\":0,\"projection_dim\":2048,\"text_config\":{"
    "\"hidden_size\":2048,\"intermediate_size\":16384,\"model_type\":\"gemma\",\"num_attention_heads\":8,"
    "\"num_hidden_layers\":18,\"num_image_tokens\":256,\"num_key_value_heads\":1,\"torch_dtype\":\"float32\","
    "\"vocab_size\":257216},\"torch_dtype\":\"float32\",\"transformers_version\":\"4.41.0.dev0\","
    "\"vision_config\":{\"hidden_size\":1152,\"intermediate_size\":4304,\"model_type\":"
    "\"siglip_vision_model\",\"num_attention_heads\":16,\"num_hidden_layers\":27,\"num_image_tokens\":256,"
    "\"patch_size\":14,\"projection_dim\":2048,\"projector_hidden_act\":\"gelu_fast\","
    "\"vision_use_head\":false}}";

/* Of the second, 28B: the width at the top is none of its own. */
#define PG2_TEXT                                                                                             \
    "\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0,\"head_dim\":128,\"hidden_act\":"      \
    "\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":4608,"                \
    "\"intermediate_size\":36864,\"model_type\":\"gemma2\",\"num_attention_heads\":32,"                      \
    "\"num_hidden_layers\":46,\"num_image_tokens\":4096,\"num_key_value_heads\":16,"                         \
    "\"query_pre_attn_scalar\":144,\"rms_norm_eps\":1e-06,\"sliding_window\":4096,\"vocab_size\":257216"
#define PG2_VISION                                                                                           \
    "\"vision_config\":{\"hidden_size\":1152,\"image_size\":896,\"intermediate_size\":4304,"                 \
    "\"num_attention_heads\":16,\"num_hidden_layers\":27,\"patch_size\":14}"
static const char PG2_28B[] =
    "{\"eos_token_id\":1,\"hidden_size\":2048,\"image_token_index\":257152,\"model_type\":\"paligemma\","
    "\"text_config\":{" PG2_TEXT ",\"rope_theta\":10000.0}," PG2_VISION "}";
/* The same as transformers 5 writes it. */
static const char PG2_28B_V5[] =
    "{\"eos_token_id\":1,\"hidden_size\":2048,\"image_token_id\":257152,\"model_type\":\"paligemma\","
    "\"tie_word_embeddings\":true,\"text_config\":{" PG2_TEXT
    ",\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"},\"use_bidirectional_attention\":"
    "true}," PG2_VISION "}";

static enum status parse(const char *text, struct hf_config *c, struct model_desc *d, struct err *err)
{
    return family_parse(text, strlen(text), "config.json", c, d, err);
}

static void must_parse(const char *text, struct hf_config *c, struct model_desc *d)
{
    struct err err;
    if (parse(text, c, d, &err)) fail_msg("%s", err.msg);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fabs(want))) fail_msg("%.9g, not %.9g", got, want);
}

static void test_first(void **state)
{
    static struct hf_config c;
    struct model_desc d;
    (void)state;
    must_parse(PG1_224, &c, &d);
    assert_true(d.vocab == 257216 && d.hidden == 2048 && d.layer_count == 18 && d.context_max == 8192);
    assert_true(d.tied && d.norm_plus_one && d.rope_first == 1 && d.final_softcap == 0);
    assert_true(d.bos_id == 2 && d.eos_count == 1 && d.eos_ids[0] == 1);
    near(d.embed_scale, sqrt(2048));
    near((double)d.norm_eps, 1e-6);
    near(d.ropes[0].theta, 1e4);
    for (uint32_t n = 0; n < d.layer_count; n++) {
        const struct desc_layer *l = &d.layers[n];
        assert_true(l->heads == 8 && l->kv_heads == 1 && l->head_dim == 256 && l->ff == 16384);
        assert_true(l->window == 0 && l->softcap == 0 && !l->qkv_bias && l->gate == ACT_GELU_TANH);
        near((double)l->scale, 1.0 / 16);
    }
    assert_null(d.names.post_attn_norm);
    assert_null(d.names.post_mlp_norm);
    assert_string_equal(d.names.pre_mlp_norm, "text.layers.#.post_attention_layernorm");
    assert_true(d.has_vision && d.vision.end == VISION_LINEAR && d.vision.tokens == 256);
    assert_true(d.vision.image_size == 224 && d.vision.hidden == 1152 && d.vision.ff == 4304);
    assert_true(d.image.rule == SPAN_PREFIX_LM && d.image.placeholder_id == 257152 && d.image.tokens == 256);
    model_desc_free(&d);
}

static void check_28b(const char *text)
{
    static struct hf_config c;
    struct model_desc d;
    must_parse(text, &c, &d);
    assert_true(d.hidden == 4608 && d.layer_count == 46 && d.rope_first == 1 && d.tied);
    near((double)d.final_softcap, 30);
    near(d.embed_scale, sqrt(4608));
    for (uint32_t n = 0; n < d.layer_count; n++) {
        const struct desc_layer *l = &d.layers[n];
        assert_true(l->heads == 32 && l->kv_heads == 16 && l->head_dim == 128);
        assert_int_equal(l->window, n % 2 ? 0 : 4096); /* even layers slide */
        near((double)l->scale, 1.0 / 12);
        near((double)l->softcap, 50);
    }
    assert_string_equal(d.names.pre_mlp_norm, "text.layers.#.pre_feedforward_layernorm");
    assert_string_equal(d.names.post_attn_norm, "text.layers.#.post_attention_layernorm");
    assert_true(d.vision.tokens == 4096 && d.image.placeholder_id == 257152);
    model_desc_free(&d);
}

static void test_second(void **state)
{
    (void)state;
    check_28b(PG2_28B);
    check_28b(PG2_28B_V5);
}

/* Everything by absence, null where it means something else. */
static void test_defaults(void **state)
{
    static struct hf_config c;
    struct model_desc d;
    (void)state;
    must_parse("{\"model_type\":\"gemma\"}", &c, &d);
    assert_true(d.hidden == 3072 && d.layer_count == 28 && d.layers[0].kv_heads == 16 && !d.has_vision);
    assert_true(d.rope_first == 0 && d.tied && d.eos_ids[0] == 1 && d.vocab == 256000);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"gemma2\"}", &c, &d);
    assert_true(d.hidden == 2304 && d.layer_count == 26 && d.layers[0].kv_heads == 4);
    assert_true(d.layers[0].window == 4096 && d.layers[1].window == 0);
    near((double)d.final_softcap, 30);
    near((double)d.layers[1].softcap, 50);
    near((double)d.layers[1].scale, 1.0 / 16);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
               "\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
               &c, &d);
    assert_true(d.final_softcap == 0 && d.layers[0].softcap == 0 && !d.layers[0].window &&
                d.layers[1].window);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"gemma\",\"hidden_act\":\"gelu\",\"hidden_activation\":null,"
               "\"rope_scaling\":null,\"attention_bias\":true,\"tie_word_embeddings\":false}",
               &c, &d);
    assert_true(d.layers[0].qkv_bias && d.layers[0].o_bias && !d.tied);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"paligemma\",\"text_config\":{},\"vision_config\":{\"image_size\":32}}", &c,
               &d);
    assert_true(d.hidden == 3072 && d.vision.tokens == 4 && d.image.placeholder_id == 256000);
    model_desc_free(&d);
}

static void test_scaled(void **state)
{
    static struct hf_config c;
    struct model_desc d;
    (void)state;
    must_parse("{\"model_type\":\"gemma2\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", &c, &d);
    near(d.ropes[0].factor, 2.5);
    model_desc_free(&d);
    must_parse(
        "{\"model_type\":\"gemma3_text\",\"max_position_embeddings\":32768,\"final_logit_softcapping\":9,"
        "\"attn_logit_softcapping\":5,\"_sliding_window_pattern\":2,\"rope_scaling\":{\"rope_type\":"
        "\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768}}",
        &c, &d);
    assert_true(d.ropes[0].ramp == RAMP_YARN && d.ropes[1].ramp == RAMP_NONE && d.context_max == 131072);
    assert_true(d.final_softcap == 9 && d.layers[0].softcap == 0 && d.layers[1].window &&
                !d.layers[5].window);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"gemma3\",\"text_config\":{},\"mm_tokens_per_image\":196,\"vision_config\":{"
               "\"hidden_act\":\"gelu\"}}",
               &c, &d);
    assert_true(d.vision.mlp == VISION_GELU_ERF);
    model_desc_free(&d);
    must_parse("{\"model_type\":\"gemma3\",\"text_config\":{\"final_logit_softcapping\":9}}", &c, &d);
    assert_true(d.final_softcap == 0);
    model_desc_free(&d);
}

static void test_hostile(void **state)
{
    static const struct {
        const char *text;
        enum status want;
        const char *says;
    } cases[] = {
        {"{\"model_type\":\"paligemma\"}", ST_FORMAT, "text_config: is missing"},
        {"{\"model_type\":\"paligemma\",\"text_config\":{}}", ST_FORMAT, "vision_config: is missing"},
        {"{\"model_type\":\"paligemma\",\"text_config\":{\"model_type\":\"llama\"},\"vision_config\":{}}",
         ST_UNSUPPORTED, "text_config.model_type"},
        {"{\"model_type\":\"paligemma\",\"text_config\":{},\"vision_config\":{\"image_size\":13}}", ST_FORMAT,
         "image_size"},
        {"{\"model_type\":\"paligemma\",\"text_config\":{},\"vision_config\":{},\"image_token_index\":-1}",
         ST_FORMAT, "image_token_index"},
        {"{\"model_type\":\"gemma\",\"hidden_act\":\"relu\"}", ST_UNSUPPORTED, "hidden_act"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":{\"hidden_act\":\"silu\"}}",
         ST_UNSUPPORTED, "hidden_act"},
        {"{\"model_type\":\"gemma\",\"use_bidirectional_attention\":true}", ST_UNSUPPORTED, "encoder"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"use_bidirectional_attention\":true},"
         "\"vision_config\":{}}",
         ST_UNSUPPORTED, "encoder with images"},
        {"{\"model_type\":\"gemma\",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}}",
         ST_UNSUPPORTED, "rope_type"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"rope_type\":\"yarn\"}}", ST_FORMAT,
         "factor: is missing"},
        {"{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":"
         "\"longrope\"}}}",
         ST_UNSUPPORTED, "rope_type"},
        {"{\"model_type\":\"gemma\",\"rope_parameters\":[]}", ST_FORMAT, "rope_parameters"},
        {"{\"model_type\":\"gemma\",\"head_dim\":7}", ST_FORMAT, "head_dim"},
        {"{\"model_type\":\"gemma2\",\"hidden_activation\":\"gelu\"}", ST_UNSUPPORTED, "hidden_activation"},
        {"{\"model_type\":\"gemma2\",\"sliding_window\":null}", ST_UNSUPPORTED, "sliding_window"},
        {"{\"model_type\":\"gemma2\",\"sliding_window\":0}", ST_FORMAT, "sliding_window"},
        {"{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":0}", ST_FORMAT, "query_pre_attn_scalar"},
        {"{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":\"x\"}", ST_FORMAT, "attn_logit_softcapping"},
        {"{\"model_type\":\"gemma2\",\"layer_types\":[\"full_attention\"]}", ST_FORMAT, "layer_types"},
    };
    static struct hf_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {""};
        struct model_desc d;
        enum status st = parse(cases[i].text, &c, &d, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].says))
            fail_msg("%s: %s (%s)", cases[i].text, status_name(st), err.msg);
        if (strchr(err.msg, '\n')) fail_msg("more than one line: %s", err.msg);
    }
}

static void test_names(void **state)
{
    static const char *const table[][2] = {
        {"language_model.model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.language_model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"language_model.lm_head.weight", "head.weight"},
        {"lm_head.weight", "head.weight"},
        {"vision_tower.vision_model.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"model.vision_tower.vision_model.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"vision_tower.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"multi_modal_projector.linear.bias", "projector.linear.bias"},
        {"model.multi_modal_projector.linear.weight", "projector.linear.weight"},
        {"vision_tower.vision_model.head.probe", NULL},
    };
    static struct hf_config c;
    struct model_desc d;
    (void)state;
    must_parse(PG1_224, &c, &d);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char out[DESC_NAME_MAX];
        assert_int_equal(d.canonical(table[i][0], out), table[i][1] != NULL);
        if (table[i][1]) assert_string_equal(out, table[i][1]);
    }
    model_desc_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first),    cmocka_unit_test(test_second),
                                       cmocka_unit_test(test_defaults), cmocka_unit_test(test_scaled),
                                       cmocka_unit_test(test_hostile),  cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("config_gemma", tests, NULL, NULL);
}

/* config.json of Gemma 4: released files and those saved by transformers 5.23, the class defaults, names of
 * tensors, and what is rejected. Numbers: transformers' classes. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define FIVE                                                                                                 \
    "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","               \
    "\"full_attention\""
#define E2B_TEXT                                                                                             \
    "\"model_type\":\"gemma4_text\",\"hidden_size\":1536,\"intermediate_size\":6144,"                        \
    "\"num_hidden_layers\":35,\"num_attention_heads\":8,\"num_key_value_heads\":1,"                          \
    "\"num_kv_shared_layers\":20,\"use_double_wide_mlp\":true,\"final_logit_softcapping\":30.0,"             \
    "\"layer_types\":[" FIVE "," FIVE "," FIVE "," FIVE "," FIVE "," FIVE "," FIVE "]"
#define E2B                                                                                                  \
    "{\"model_type\":\"gemma4\",\"audio_config\":{},\"text_config\":{" E2B_TEXT "},\"vision_config\":{"      \
    "\"use_clipped_linears\":true}}"
#define TEXT(more_) "{\"model_type\":\"gemma4_text\",\"hidden_size_per_layer_input\":0" more_ "}"

static struct hf_config c;
static struct model_desc d;

static enum status parse(const char *text, struct err *err)
{
    return family_parse(text, strlen(text), "config.json", &c, &d, err);
}

static void load(const char *text)
{
    struct err err = {""};
    if (parse(text, &err)) fail_msg("%s in %s", err.msg, text);
}

static void test_e2b(void **state)
{
    (void)state;
    load(E2B);
    assert_true(d.layer_count == 35 && d.ple == 256 && d.token_scale == 16 && d.pad_id == 0);
    assert_true(d.vocab == 262144 && d.context_max == 131072 && d.tied && d.final_softcap == 30);
    assert_true(!d.norm_plus_one && d.embed_scale == sqrt(1536.0) && d.bos_id == 2);
    for (uint32_t n = 0; n < 35; n++) {
        const struct desc_layer *l = &d.layers[n];
        bool full = n % 5 == 4;
        assert_true(l->window == (full ? 0 : 512) && l->head_dim == (full ? 512 : 256));
        assert_true(l->heads == 8 && l->kv_heads == 1 && l->scale == 1 && l->v_norm && !l->v_from_k);
        assert_true(l->ff == (n < 15 ? 6144 : 12288) && l->kv_owner == (n < 15 ? n : full ? 14 : 13));
        assert_true(d.ropes[l->rope].dim == l->head_dim);
        assert_true(d.ropes[l->rope].theta == (full ? 1e6 : 1e4) &&
                    d.ropes[l->rope].unrotated_pairs == (full ? 192 : 0));
    }
    const struct desc_vision *v = &d.vision;
    assert_true(d.has_vision && v->layers == 16 && v->hidden == 768 && v->heads == 12 && v->ff == 3072);
    assert_true(v->clip && !v->names.std_bias && v->pool == 3 && v->patch == 16 && v->end == VISION_POOL);
    assert_true(v->position_axis == 10240 && v->rope_halves && v->rope_theta == 100 && v->scale == 1);
    assert_true(d.image.rule == SPAN_CAUSAL && d.image.placeholder_id == 258880 &&
                d.image.video_placeholder_id == 258884);
    model_desc_free(&d);
}

static void test_experts_and_rules(void **state)
{
    (void)state;
    load("{\"model_type\":\"gemma4\",\"text_config\":{\"hidden_size\":2816,\"intermediate_size\":2112,"
         "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"num_global_key_value_heads\":2,"
         "\"attention_k_eq_v\":true,\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,"
         "\"num_experts\":128,\"top_k_experts\":8,\"moe_intermediate_size\":704,"
         "\"use_bidirectional_attention\":\"vision\"},\"vision_config\":{\"standardize\":true}}");
    const struct desc_layer *s = &d.layers[0], *f = &d.layers[5];
    assert_true(s->kv_heads == 8 && f->kv_heads == 2 && !s->v_from_k && f->v_from_k);
    assert_true(s->experts == 128 && s->experts_used == 8 && s->ff == 704 && s->shared_ff == 2112 &&
                s->experts_renorm && d.expert_layout == EXPERTS_OUT_IN && d.ple == 0);
    assert_true(d.image.rule == SPAN_BIDIRECTIONAL_SLIDING && d.vision.names.std_scale);
    model_desc_free(&d);
    /* num_global_key_value_heads counts with attention_k_eq_v alone. */
    load(TEXT(",\"num_global_key_value_heads\":1"));
    assert_int_equal(d.layers[29].kv_heads, 4);
    model_desc_free(&d);
    load("{\"model_type\":\"gemma4_unified\",\"text_config\":{},\"vision_config\":{}}");
    assert_true(d.vision.end == VISION_EMBED && d.vision.patch == 48 && d.vision.layers == 0);
    assert_true(d.image.rule == SPAN_BIDIRECTIONAL_ANY && d.ple == 0 && d.context_max == 262144);
    assert_int_equal(d.layers[0].window, 1024);
    model_desc_free(&d);
}

/* per_layer_config wins over global_head_dim; the last layer is full whatever the file says. */
static void test_saved(void **state)
{
    (void)state;
    load(TEXT(",\"num_hidden_layers\":3,\"global_head_dim\":64,\"layer_types\":[\"sliding_attention\","
              "\"full_attention\",\"sliding_attention\"],\"per_layer_config\":{\"1\":{\"head_dim\":128,"
              "\"num_key_value_heads\":2},\"2\":{\"head_dim\":128,\"num_key_value_heads\":2}},"
              "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
              "\"partial_rotary_factor\":0.5,\"factor\":4.0,\"rope_theta\":5000},\"sliding_attention\":{"
              "\"rope_type\":\"default\",\"rope_theta\":1000}}"));
    assert_true(d.layers[0].head_dim == 256 && d.layers[0].kv_heads == 4 && d.layers[0].window == 512);
    assert_true(d.layers[1].head_dim == 128 && d.layers[1].kv_heads == 2 && d.layers[1].window == 0);
    assert_true(d.layers[2].head_dim == 128 && d.layers[2].window == 0);
    const struct desc_rope *r = &d.ropes[d.layers[1].rope];
    assert_true(r->theta == 5000 && r->factor == 4 && r->unrotated_pairs == 32 && r->dim == 128);
    model_desc_free(&d);
}

static void test_scaled(void **state)
{
    (void)state;
    load(TEXT(
        ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":5000,\"factor\":4,"
        "\"original_max_position_embeddings\":64},\"sliding_attention\":{\"rope_type\":\"linear\","
        "\"factor\":2}}"));
    const struct desc_rope *full = &d.ropes[d.layers[5].rope], *sliding = &d.ropes[d.layers[0].rope];
    assert_true(full->ramp == RAMP_YARN && full->factor == 4 && full->theta == 5000 && full->dim == 512);
    assert_true(full->unrotated_pairs == 0 && full->attention > 1);
    assert_true(sliding->ramp == RAMP_NONE && sliding->factor == 2 && sliding->theta == 1e4);
    model_desc_free(&d);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        enum status st;
    } t[] = {
        {TEXT(",\"use_bidirectional_attention\":\"all\""), ST_UNSUPPORTED},
        {TEXT(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"longrope\"},\"sliding_attention\":{}"
              "}"),
         ST_UNSUPPORTED},
        {TEXT(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\"},\"sliding_attention\":{}}"),
         ST_FORMAT},
        {TEXT(",\"rope_parameters\":{}"), ST_FORMAT},
        {TEXT(",\"num_kv_shared_layers\":30"), ST_FORMAT},
        {TEXT(",\"num_kv_shared_layers\":26"), ST_FORMAT}, /* no full layer is left */
        {TEXT(",\"enable_moe_block\":true"), ST_FORMAT},
        {TEXT(",\"enable_moe_block\":true,\"num_experts\":2,\"top_k_experts\":3,\"moe_intermediate_size\":4"),
         ST_FORMAT},
        {TEXT(",\"global_head_dim\":33"), ST_FORMAT},
        {TEXT(",\"per_layer_config\":{\"5\":{\"head_dim\":64}}"), ST_UNSUPPORTED},
        {TEXT(",\"hidden_activation\":\"silu\""), ST_UNSUPPORTED},
        {"{\"model_type\":\"gemma4_text\",\"vocab_size_per_layer_input\":5}", ST_UNSUPPORTED},
        {"{\"model_type\":\"gemma4\",\"text_config\":{},\"vision_config\":{\"head_dim\":10}}",
         ST_UNSUPPORTED},
        {"{\"model_type\":\"gemma4\"}", ST_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct err err = {""};
        enum status st = parse(t[i].text, &err);
        if (st != t[i].st) fail_msg("status %d (%s) for %s", (int)st, err.msg, t[i].text);
        assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        model_desc_free(&d);
    }
}

static void test_names(void **state)
{
    static const char *const t[][2] = {
        {"model.language_model.layers.3.layer_scalar", "text.layers.3.layer_scalar"},
        {"model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"language_model.model.norm.weight", "text.norm.weight"},
        {"lm_head.weight", "head.weight"},
        {"model.layers.0.moe.per_expert_scale", "text.layers.0.router.per_expert_scale"},
        {"model.layers.0.moe.gate_up_proj", "text.layers.0.experts.gate_up_proj"},
        {"model.vision_tower.std_bias", "vision.std_bias"},
        {"model.embed_vision.embedding_projection.weight", "projector.embedding_projection.weight"},
        {"model.embed_vision.multimodal_embedder.embedding_projection.weight",
         "projector.embedding_projection.weight"},
        {"model.embed_vision.patch_ln1.bias", "embedder.patch_ln1.bias"},
        {"model.vision_embedder.patch_ln1.bias", "embedder.patch_ln1.bias"},
    };
    char out[DESC_NAME_MAX];
    (void)state;
    load(TEXT(""));
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_true(d.canonical(t[i][0], out));
        assert_string_equal(out, t[i][1]);
    }
    assert_false(d.canonical("model.audio_tower.x", out));
    assert_false(d.canonical("model.embed_audio.embedding_projection.weight", out));
    model_desc_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e2b),     cmocka_unit_test(test_experts_and_rules),
        cmocka_unit_test(test_saved),   cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("config_gemma4", tests, NULL, NULL);
}

/* config.json and the image settings of Mistral 3, Pixtral 12B, LightOnOCR, PaddleOCR-VL and GLM-V: released
 * files, absent keys, what is refused. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"
#include "engine/prompt/image_prep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct hf_config c;
static struct model_desc d;

/* JSON with ' for ". */
static enum status parse(const char *text, struct err *err)
{
    char json[4096];
    size_t n = strlen(text);
    assert_true(n < sizeof json);
    for (size_t i = 0; i <= n; i++) json[i] = text[i];
    for (size_t i = 0; i < n; i++)
        if (json[i] == '\'') json[i] = '"';
    model_desc_free(&d);
    return family_parse(json, n, "config.json", &c, &d, err);
}

static void load(const char *text)
{
    struct err err = {""};
    if (parse(text, &err)) fail_msg("%s", err.msg);
}

#define PIXTRAL                                                                                              \
    "'vision_config':{'attention_dropout':0.0,'head_dim':64,'hidden_act':'silu','hidden_size':1024,"         \
    "'image_size':1540,'initializer_range':0.02,'intermediate_size':4096,'model_type':'pixtral',"            \
    "'num_attention_heads':16,'num_channels':3,'num_hidden_layers':24,'patch_size':14,'rope_theta':10000.0}"

static void test_mistral3(void **state)
{
    (void)state;
    /* Mistral Small 3.1 */
    load("{'architectures':['Mistral3ForConditionalGeneration'],'image_token_index':10,'model_type':"
         "'mistral3','multimodal_projector_bias':false,'projector_hidden_act':'gelu','spatial_merge_size':2,"
         "'text_config':{'head_dim':128,'hidden_act':'silu','hidden_size':5120,'intermediate_size':32768,"
         "'max_position_embeddings':131072,'model_type':'mistral','num_attention_heads':32,"
         "'num_hidden_layers':40,'num_key_value_heads':8,'rms_norm_eps':1e-05,'rope_theta':1000000000.0,"
         "'sliding_window':null,'vocab_size':131072}," PIXTRAL ",'vision_feature_layer':-1}");
    const struct desc_vision *v = &d.vision;
    assert_true(d.layer_count == 40 && d.layers[0].window == 0 && d.ropes[0].theta == 1e9 && d.tied);
    assert_true(d.has_vision && v->rms && v->rope_between && v->merge == 2 && v->merge_conv == 1024);
    assert_true(v->merge_ff == 5120 && v->no_bias && v->merge_no_bias && v->merge_eps == 1e-5f);
    assert_true(d.image.placeholder_id == 10 && strcmp(d.image.row_break, "[IMG_BREAK]") == 0);
    /* Ministral 3 */
    load("{'model_type':'mistral3','tie_word_embeddings':false,'text_config':{'model_type':'ministral3',"
         "'hidden_size':4096,'rope_parameters':{'rope_type':'yarn','rope_theta':1000000.0,'factor':16.0,"
         "'original_max_position_embeddings':16384,'beta_fast':32.0,'beta_slow':1.0,'mscale':1.0,"
         "'mscale_all_dim':1.0,'llama_4_scaling_beta':0.1}}," PIXTRAL "}");
    assert_true(!d.tied && d.ropes[0].query_beta == 0.1f && d.ropes[0].attention == 1);
    assert_true(d.layer_count == 34 && d.vision.merge == 2);
    /* The same in the spelling before transformers 5. */
    load("{'model_type':'mistral3','text_config':{'model_type':'ministral3','hidden_size':4096,'rope_theta':"
         "1e6,"
         "'rope_scaling':{'type':'yarn','factor':8.0,'original_max_position_embeddings':4096,'mscale':1.0,"
         "'mscale_all_dim':1.0,'llama_4_scaling_beta':0.2}}," PIXTRAL "}");
    assert_true(d.tied && d.ropes[0].query_beta == 0.2f && d.ropes[0].original == 4096);
    /* Pixtral 12B */
    load("{'model_type':'llava','image_token_index':10,'projector_hidden_act':'gelu','image_seq_length':1,"
         "'text_config':{'head_dim':128,'hidden_size':5120,'intermediate_size':14336,'model_type':'mistral',"
         "'num_hidden_layers':40,'num_key_value_heads':8,'rope_theta':1000000000.0,'sliding_window':null,"
         "'vocab_size':131072},'vision_config':{'hidden_act':'silu','image_size':1024,'model_type':'pixtral',"
         "'patch_size':16},'vision_feature_layer':-1,'vision_feature_select_strategy':'full'}");
    assert_true(d.vision.merge == 1 && d.vision.merge_conv == 0 && !d.vision.merge_no_bias && !d.tied);
    assert_true(d.vision.patch == 16 && !d.vision.names.merge_pre_norm && d.image.row_break);
}

static void test_lighton_ocr(void **state)
{
    (void)state;
    load("{'model_type':'lighton_ocr','image_token_id':151655,'spatial_merge_size':2,'text_config':{"
         "'model_type':'qwen3','hidden_size':1024,'intermediate_size':3072,'num_hidden_layers':28,"
         "'num_attention_heads':16,'num_key_value_heads':8,'head_dim':128,'rope_theta':1000000}," PIXTRAL
         "}");
    assert_true(d.tied && d.names.q_norm && d.layers[0].kv_heads == 8 && d.vision.merge_ff == 1024);
    assert_true(d.image.placeholder_id == 151655 && !d.image.row_break && !d.image.grid);
    assert_string_equal(d.image.marker, "<|image_pad|>");
    /* LightOnOCR 1B as released */
    load("{'architectures':['LightOnOCRForConditionalGeneration'],'model_type':'mistral3','image_token_id':"
         "151655,"
         "'multimodal_projector_bias':false,'spatial_merge_size':2,'text_config':{'model_type':'qwen3',"
         "'hidden_size':1024,'num_hidden_layers':28,'tie_word_embeddings':true},'vision_feature_layer':-"
         "1," PIXTRAL "}");
    assert_true(strcmp(c.model_type, "lighton_ocr") == 0 && d.names.q_norm && !d.image.row_break && d.tied);
}

static void test_paddleocr_vl(void **state)
{
    (void)state;
    load("{'model_type':'paddleocr_vl','tie_word_embeddings':false,'hidden_size':1024,'head_dim':128,"
         "'num_hidden_layers':18,'num_attention_heads':16,'num_key_value_heads':2,'use_bias':false,"
         "'rope_scaling':{'mrope_section':[16,24,24],'rope_type':'default','type':'default'},"
         "'rope_theta':500000,'vocab_size':103424,'image_token_id':100295,'vision_config':{'model_type':"
         "'paddleocr_vl','hidden_size':1152,'image_size':384,'patch_size':14}}");
    /* The class ignores the tie of a flat file; a head in the files counts. */
    assert_true(d.tied && d.ropes[0].sections[1] == 24 && !d.ropes[0].interleaved && d.layers[0].heads == 16);
    assert_true(d.vision.position_side == 27 && d.vision.position_lookup == LOOKUP_CENTRES);
    assert_true(d.image.grid && d.image.placeholder_id == 100295 && d.eos_count == 1 && d.eos_ids[0] == 2);
    load("{'model_type':'paddleocr_vl','text_config':{'num_hidden_layers':3},'vision_config':{}}");
    assert_true(d.tied && d.layer_count == 3 && d.ropes[0].theta == 5e5 && d.layers[0].head_dim == 128);
}

static void test_glm(void **state)
{
    (void)state;
    /* GLM-4.1V-9B-Thinking */
    load("{'model_type':'glm4v','image_token_id':151343,'text_config':{'model_type':'glm4v_text',"
         "'attention_bias':true,'head_dim':128,'eos_token_id':[151329,151336],'partial_rotary_factor':0.5,"
         "'rope_scaling':{'rope_type':'default','mrope_section':[8,12,12]},'rope_theta':10000.0},"
         "'vision_config':{'model_type':'glm4v_vision','depth':24,'hidden_size':1536,'num_heads':12,"
         "'out_hidden_size':4096,'intermediate_size':13696,'rms_norm_eps':1e-05}}");
    const struct desc_vision *v = &d.vision;
    assert_true(d.ropes[0].dim == 64 && d.qk_pairs && d.names.gate_up && d.names.post_mlp_norm);
    assert_true(d.layers[0].qkv_bias && !d.layers[0].o_bias && d.eos_count == 2 && !d.tied);
    assert_true(v->ff == 4096 && v->merge_ff == 13696 && v->merge_conv == 4096 && v->no_bias &&
                v->depth == 2);
    assert_true(v->position_lookup == LOOKUP_BICUBIC && v->position_side == 24 && v->names.pre_norm);
    load("{'model_type':'glm46v','text_config':{'partial_rotary_factor':0.5},'vision_config':{}}");
    assert_true(d.image.placeholder_id == 151343 && d.layer_count == 40);
    /* GLM-OCR */
    load("{'model_type':'glm_ocr','text_config':{'model_type':'glm_ocr_text','hidden_size':1536,"
         "'intermediate_size':4608,'head_dim':128,'rope_parameters':{'rope_type':'default',"
         "'mrope_section':[16,24,24],'rope_theta':10000}},'vision_config':{'out_hidden_size':1536}}");
    assert_true(!d.layers[0].qkv_bias && d.layers[0].head_dim == 128 && d.layer_count == 16);
    assert_true(d.vision.ff == 4096 && d.vision.merge_ff == 4608 && !d.vision.no_bias && !d.vision.position);
    assert_true(d.vision.names.q_norm && !d.vision.names.pre_norm && d.image.placeholder_id == 59280);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        enum status want;
        const char *says;
    } cases[] = {
        {"{'model_type':'mistral3','text_config':{'model_type':'mistral4'}," PIXTRAL "}", ST_UNSUPPORTED,
         "text_config.model_type"},
        {"{'model_type':'mistral3','text_config':{}, 'vision_config':{'model_type':'siglip_vision_model'}}",
         ST_UNSUPPORTED, "only the tower pixtral"},
        {"{'model_type':'mistral3','text_config':{},'vision_config':{'hidden_act':'relu'}}", ST_UNSUPPORTED,
         "hidden_act"},
        {"{'model_type':'mistral3','vision_feature_layer':-2,'text_config':{}," PIXTRAL "}", ST_UNSUPPORTED,
         "vision_feature_layer"},
        {"{'model_type':'mistral3','text_config':{'vocab_size':10}," PIXTRAL "}", ST_FORMAT,
         "image_token_id"},
        {"{'model_type':'llava','text_config':{}," PIXTRAL "}", ST_UNSUPPORTED, "vision_feature_layer"},
        {"{'model_type':'llava','text_config':{'model_type':'llama'},'vision_config':{'model_type':"
         "'clip_vision_model'}}",
         ST_UNSUPPORTED, "text_config.model_type"},
        {"{'model_type':'lighton_ocr','text_config':{'model_type':'llama'}," PIXTRAL "}", ST_UNSUPPORTED,
         "text_config.model_type"},
        {"{'model_type':'paddleocr_vl','vision_config':{'num_attention_heads':7}}", ST_FORMAT,
         "num_attention_heads"},
        {"{'model_type':'glm46v','text_config':{'model_type':'glm4v_moe_text'}}", ST_UNSUPPORTED,
         "text_config.model_type"},
        {"{'model_type':'glm4v','text_config':{'partial_rotary_factor':0.5},'vision_config':{'attention_bias'"
         ":"
         "true}}",
         ST_UNSUPPORTED, "attention_bias"},
        {"{'model_type':'glm_ocr','text_config':{},'vision_config':{'out_hidden_size':7}}", ST_FORMAT,
         "out_hidden_size"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {""};
        enum status st = parse(cases[i].text, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].says))
            fail_msg("%s: %s (%s)", cases[i].text, status_name(st), err.msg);
    }
}

static char folder[64];

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (; *text; text++) fputc(*text == '\'' ? '"' : *text, f);
    assert_int_equal(fclose(f), 0);
}

static enum status settings(const char *family, const char *processor, const char *images,
                            struct image_config *out, struct err *err)
{
    write_file("processor_config.json", processor);
    write_file("preprocessor_config.json", images);
    return family_load_images(folder, NULL, family, out, err);
}

static void size_of(const struct image_config *cfg, uint32_t width, uint32_t height, uint32_t want_width,
                    uint32_t want_height)
{
    uint32_t w = 0, h = 0;
    struct err err = {""};
    enum status st = image_target(cfg, width, height, 0, &w, &h, &err);
    if (want_width ? st != ST_OK || w != want_width || h != want_height : st != ST_INVALID)
        fail_msg("%u x %u: %u x %u (%s)", width, height, w, h, err.msg);
}

static void test_images(void **state)
{
    struct image_config cfg;
    struct err err = {""};
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kvasir-test-native-XXXXXX");
    assert_non_null(mkdtemp(folder));
    /* The processor's patch counts; that of the image processor does not. */
    assert_int_equal(settings("mistral3", "{'patch_size':14,'spatial_merge_size':2}",
                              "{'do_pad':true,'patch_size':{'height':16,'width':16},'size':{'longest_edge':"
                              "1540},'resample':3}",
                              &cfg, &err),
                     ST_OK);
    assert_true(cfg.patch == 14 && cfg.merge == 2 && cfg.longest == 1540 && cfg.dynamic && cfg.depth == 1);
    size_of(&cfg, 2, 2, 28, 28);
    size_of(&cfg, 1541, 10, 1540, 28);
    size_of(&cfg, 1, 4000, 0, 0);
    size_of(&cfg, 3, 4000, 28, 1540);
    struct image_bounds half = {.area_max = 770 * 770};
    image_config_bound(&cfg, &half);
    size_of(&cfg, 1540, 1540, 784, 784);
    assert_int_equal(settings("llava", NULL, "{'size':{'longest_edge':1024}}", &cfg, &err), ST_OK);
    assert_true(cfg.patch == 16 && cfg.merge == 1);
    /* Longest sides by name, or one as a number. */
    const char *sides = "{'size':{'height':32,'width':64,'longest_edge':null}}";
    assert_int_equal(settings("mistral3", NULL, sides, &cfg, &err), ST_OK);
    assert_int_equal(cfg.area_max, 32 * 64);
    size_of(&cfg, 640, 64, 64, 16);
    size_of(&cfg, 64, 640, 16, 32);
    half = (struct image_bounds){.area_max = 20 * 20};
    image_config_bound(&cfg, &half);
    size_of(&cfg, 640, 64, 32, 16);
    size_of(&cfg, 64, 640, 16, 32);
    assert_int_equal(settings("mistral3", NULL, "{'size':48}", &cfg, &err), ST_OK);
    size_of(&cfg, 640, 64, 48, 16);
    assert_int_equal(settings("mistral3", NULL, "{'size':{'width':30}}", &cfg, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "longest_edge"));
    assert_int_equal(settings("lighton_ocr",
                              "{'image_processor':{'size':{'longest_edge':1540},'patch_size':{"
                              "'height':28,'width':28}},'patch_size':14}",
                              NULL, &cfg, &err),
                     ST_OK);
    size_of(&cfg, 1540, 1541, 1540, 1540);
    /* LightOnOCR 1B: sides of which a token's patches need not be a part. */
    assert_int_equal(settings("lighton_ocr", "{'patch_size':14,'spatial_merge_size':2}",
                              "{'patch_size':14,'size':{'longest_edge':1540},'do_pad':null,'crop_size':null}",
                              &cfg, &err),
                     ST_OK);
    size_of(&cfg, 60, 45, 70, 56);
    assert_int_equal(image_grid(&cfg, 70, 56, 0).w, 2);
    uint32_t w, h;
    assert_int_equal(image_target(&cfg, 2, 2, 0, &w, &h, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "makes no token"));
    assert_int_equal(settings("lighton_ocr", NULL, "{'patch_size':16}", &cfg, &err), ST_UNSUPPORTED);
    assert_int_equal(settings("paddleocr_vl", NULL, "{'min_pixels':147384,'max_pixels':2822400}", &cfg, &err),
                     ST_OK);
    assert_true(cfg.depth == 1 && cfg.small == SMALL_BY_SIDE && cfg.area_min == 147384);
    size_of(&cfg, 1, 4000, 0, 0);
    size_of(&cfg, 2, 2, 392, 392);
    assert_int_equal(settings("glm_ocr", NULL,
                              "{'size':{'shortest_edge':12544,'longest_edge':9633792},'patch_size':14,"
                              "'temporal_patch_size':2,'merge_size':2}",
                              &cfg, &err),
                     ST_OK);
    assert_true(cfg.depth == 2 && cfg.area_frames == 2 && cfg.area_max == 9633792);
    size_of(&cfg, 28, 28, 84, 84);
    write_file("processor_config.json", NULL);
    write_file("preprocessor_config.json", NULL);
    assert_int_equal(rmdir(folder), 0);
}

static int end(void **state)
{
    (void)state;
    model_desc_free(&d);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistral3),     cmocka_unit_test(test_lighton_ocr),
        cmocka_unit_test(test_paddleocr_vl), cmocka_unit_test(test_glm),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_images)};
    return cmocka_run_group_tests_name("config_native", tests, NULL, end);
}

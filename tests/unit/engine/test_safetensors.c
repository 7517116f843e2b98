/* Hostile and odd checkpoints: safetensors headers, shard indexes, config.json. Everything wrong gets one
 * clear line, nothing crashes (run this under the address and undefined sanitizers). Plus what is right:
 * scalars, empty tensors, conversions, both RoPE spellings, the three tensor-name layouts. */
#include "engine/families/families.h"
#include "engine/engine.h"
#include "engine/model/model_desc.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/lib/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- a scratch directory ---- */

static char scratch[64];

static int make_scratch(void **state)
{
    (void)state;
    strcpy(scratch, "/tmp/kvasir-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t len)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*len + 1);
    assert_int_equal(fread(p, 1, *len, f), *len);
    p[*len] = '\0';
    fclose(f);
    return p;
}

static void remove_all(void)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "a.safetensors",     "b.safetensors",
                                        "config.json",       "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unlink(path_of(names[i]));
}

static int drop_scratch(void **state)
{
    (void)state;
    remove_all();
    return rmdir(scratch);
}

/* Header text plus `body` zero bytes. */
static void write_tensors(const char *name, const char *header, size_t body)
{
    size_t n = strlen(header), len = 8 + n + body;
    char *p = calloc(1, len);
    for (int i = 0; i < 8; i++) p[i] = (char)(n >> (8 * i));
    memcpy(p + 8, header, n);
    write_file(name, p, len);
    free(p);
}

static void expect(enum status want, const char *says)
{
    struct stf_files *f = NULL;
    struct err err = {""};
    enum status st = stf_open(scratch, &f, &err);
    if (st != want || (want && !strstr(err.msg, says)))
        fail_msg("%s (\"%s\") where %s was expected, saying \"%s\"", status_name(st), err.msg,
                 status_name(want), says);
    stf_close(f);
}

/* ---- one file ---- */

static void test_headers(void **state)
{
    static const struct {
        const char *header;
        size_t body;
        enum status want;
        const char *says;
    } cases[] = {
        {"{}", 0, ST_OK, ""},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}"
         "}",
         4, ST_OK, ""},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[3],\"data_"
         "offsets\":[0,3]}}",
         3, ST_OK, ""},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]},\"a\":{\"dtype\":\"F16\",\"shape\":["
         "1],\"data_offsets\":"
         "[0,2]}}",
         5, ST_OK, ""},
        {"", 0, ST_FORMAT, "JSON"},
        {"[]", 0, ST_FORMAT, "not a JSON object"},
        {"{\"a\":1}", 0, ST_FORMAT, "dtype"},
        {"{\"a\":{\"dtype\":\"F12\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "tensor a has no known dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ST_FORMAT, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[281474976710656,65536],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "impossible shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, ST_FORMAT,
         "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ST_FORMAT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, ST_FORMAT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, ST_FORMAT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, ST_FORMAT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, ST_FORMAT, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775800,9223372036854775804]}"
         "}",
         4, ST_FORMAT, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, ST_FORMAT, "need 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 9, ST_FORMAT, "the file has 9"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, ST_FORMAT, "begins at byte 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":["
         "4],\"data_offsets\":["
         "2,6]}}",
         6, ST_FORMAT, "tensor b begins at byte 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":["
         "2],\"data_offsets\":["
         "2,4]}}",
         4, ST_FORMAT, "tensor a is duplicated"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, ST_FORMAT, "empty"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, ST_FORMAT, "NUL"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_tensors("model.safetensors", cases[i].header, cases[i].body);
        expect(cases[i].want, cases[i].says);
    }
    remove_all();
}

static void test_lengths(void **state)
{
    static const uint64_t lengths[] = {10ull << 30, UINT64_MAX, 1ull << 63, 100000001, 90000000, 9};
    (void)state;
    expect(ST_NOT_FOUND, "neither model.safetensors nor");
    write_file("model.safetensors", "", 0);
    expect(ST_FORMAT, "too few");
    write_file("model.safetensors", "1234567", 7);
    expect(ST_FORMAT, "too few");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t file[16] = {0};
        for (int k = 0; k < 8; k++) file[k] = (uint8_t)(lengths[i] >> (8 * k));
        write_file("model.safetensors", file, sizeof file);
        expect(ST_FORMAT, "header of");
    }
    remove_all();
}

static void test_values(void **state)
{
    /* BF16 and F16: 1, -2, smallest subnormal, infinity */
    const char *header = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},\"h\":{"
                         "\"dtype\":\"F16\",\"shape\":["
                         "4],\"data_offsets\":[8,16]}}";
    const uint16_t body[8] = {0x3f80, 0xc000, 0x0001, 0x7f80, 0x3c00, 0xc000, 0x0001, 0x7c00};
    char file[512];
    size_t n = strlen(header);
    struct stf_files *f;
    struct err err;
    float v[4];
    (void)state;
    memset(file, 0, sizeof file);
    file[0] = (char)n;
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, body, sizeof body);
    write_file("a.safetensors", file, 8 + n + sizeof body);
    assert_int_equal(stf_open_file(path_of("a.safetensors"), &f, &err), ST_OK);
    assert_int_equal(stf_count(f), 2);
    const struct stf_tensor *b = stf_find(f, "b"), *h = stf_find(f, "h");
    assert_null(stf_find(f, "c"));
    assert_int_equal(b->rank, 2);
    assert_true(stf_to_f32(b, v));
    assert_true(v[0] == 1.0f && v[1] == -2.0f && v[2] == 0x1p-133f && isinf(v[3]));
    assert_true(stf_to_f32(h, v));
    assert_true(v[0] == 1.0f && v[1] == -2.0f && v[2] == 0x1p-24f && isinf(v[3]));
    stf_close(f);
    remove_all();
}

/* ---- shards ---- */

static void test_shards(void **state)
{
    const char *a = "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
               *b = "{\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    static const struct {
        const char *index;
        enum status want;
        const char *says;
    } cases[] = {
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}", ST_OK, ""},
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"c.safetensors\"}}", ST_NOT_FOUND,
         "1 of its 2 shard files are missing, the first is c.safetensors"},
        {"{\"weight_map\":{\"x\":\"e.safetensors\",\"y\":\"c.safetensors\",\"z\":\"a.safetensors\"}}",
         ST_NOT_FOUND, "2 of its 3 shard files are missing, the first is c.safetensors"},
        {"{\"weight_map\":{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}}", ST_FORMAT,
         "tensor z is in no shard"},
        {"{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}}", ST_FORMAT,
         "not where the index says"},
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", ST_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", ST_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"..\"}}", ST_FORMAT, "not a plain file name"},
        {"{\"weight_map\":{\"x\":7}}", ST_FORMAT, "not a file name"},
        {"{\"weight_map\":{}}", ST_FORMAT, "no weight_map"},
        {"{\"weight_map\":[]}", ST_FORMAT, "no weight_map"},
        {"{}", ST_FORMAT, "no weight_map"},
        {"{", ST_FORMAT, "JSON"},
    };
    (void)state;
    write_tensors("a.safetensors", a, 2);
    write_tensors("b.safetensors", b, 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file("model.safetensors.index.json", cases[i].index, strlen(cases[i].index));
        expect(cases[i].want, cases[i].says);
    }
    write_tensors("b.safetensors", a, 2);
    write_file("model.safetensors.index.json", cases[0].index, strlen(cases[0].index));
    expect(ST_FORMAT, "tensor x is duplicated");
    remove_all();
}

/* ---- config.json ---- */

/* Of what was parsed last; the end of every test frees it. */
static struct model_desc d;

static enum status parse(const char *text, struct hf_config *c, struct err *err)
{
    model_desc_free(&d);
    return family_parse(text, strlen(text), "config.json", c, &d, err);
}

static void test_config_defaults(void **state)
{
    static struct hf_config c;
    struct err err;
    (void)state;
    /* The six text keys of the original 4B release. */
    const char *released =
        "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":["
        "1,106],"
        "\"text_config\":{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":"
        "34,"
        "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"vision_config\":{\"hidden_size\":1152,\"image_size\":896,\"intermediate_size\":4304,\"num_"
        "attention_heads\":16,"
        "\"num_hidden_layers\":27,\"patch_size\":14,\"vision_use_head\":false}}";
    assert_int_equal(parse(released, &c, &err), ST_OK);
    assert_int_equal(c.text.num_attention_heads, 8);
    assert_int_equal(c.text.num_key_value_heads, 4);
    assert_int_equal(c.text.head_dim, 256);
    assert_int_equal(c.text.vocab_size, 262208);
    assert_int_equal(c.text.max_position_embeddings, 131072);
    assert_true(c.text.tie_word_embeddings && !c.text.qkv_bias);
    assert_true(c.text.rope[HF_FULL].theta == 1e6 && c.text.rope[HF_FULL].factor == 8.0 &&
                c.text.rope[HF_FULL].type == HF_ROPE_LINEAR);
    assert_true(c.text.rope[HF_SLIDING].theta == 1e4 && c.text.rope[HF_SLIDING].factor == 1.0);
    for (uint32_t n = 0; n < 34; n++)
        assert_int_equal(c.text.layer_types[n], (n + 1) % 6 == 0 ? HF_FULL : HF_SLIDING);
    assert_true(c.has_vision && c.mm_tokens_per_image == 256 && c.image_id == 262144);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(d.vision.pool, 4);
    assert_true(d.layers[0].window == 1024 && d.layers[5].window == 0 && d.layers[33].window == 1024 &&
                d.layers[0].scale == 0.0625f);
    /* Mixed spelling: per-type dicts without rope_theta beside flat keys. */
    const char *mixed = "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":2,\"rope_theta\":500000.0,"
                        "\"rope_local_base_freq\":20000.0,"
                        "\"rope_parameters\":{\"full_attention\":{\"factor\":4.0,\"rope_type\":\"linear\"},"
                        "\"sliding_attention\":{\"rope_type\":"
                        "\"default\"}},"
                        "\"vision_config\":{},\"eos_token_id\":null}";
    assert_int_equal(parse(mixed, &c, &err), ST_OK);
    assert_true(c.text.rope[HF_FULL].theta == 5e5 && c.text.rope[HF_FULL].factor == 4.0 &&
                c.text.rope[HF_SLIDING].theta == 2e4);
    assert_false(c.has_vision);
    assert_int_equal(c.eos_count, 0);
    /* The old spelling "type" counts where rope_type stands beside it, says "default", or is in an entry per
     * layer type. */
    assert_int_equal(
        parse("{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"type\":\"default\",\"factor\":4}}", &c,
              &err),
        ST_OK);
    assert_true(c.text.rope[HF_FULL].type == HF_ROPE_DEFAULT && c.text.rope[HF_FULL].factor == 1.0);
    assert_int_equal(parse("{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"type\":\"linear\",\"rope_"
                           "type\":\"default\",\"factor\":4}}",
                           &c, &err),
                     ST_OK);
    assert_true(c.text.rope[HF_FULL].type == HF_ROPE_DEFAULT && c.text.rope[HF_FULL].factor == 1.0);
    assert_int_equal(parse("{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":{"
                           "\"type\":\"linear\",\"factor\":4}}}",
                           &c, &err),
                     ST_OK);
    assert_true(c.text.rope[HF_FULL].type == HF_ROPE_LINEAR && c.text.rope[HF_FULL].factor == 4.0);
    assert_int_equal(parse("{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":null}", &c, &err),
                     ST_OK);
    assert_false(c.has_vision);
    model_desc_free(&d);
}

static void test_config_hostile(void **state)
{
    static const struct {
        const char *text;
        enum status want;
        const char *says;
    } cases[] = {
        {"[]", ST_FORMAT, "not a JSON object"},
        {"{}", ST_FORMAT, "no model_type"},
        {"{\"model_type\":\"mamba\"}", ST_UNSUPPORTED,
         "\"mamba\" is not served; served: gemma, gemma2, gemma3, gemma3_text, "},
        {"{\"model_type\":7}", ST_UNSUPPORTED, "is not served"},
        {"{\"model_type\":\"gemma3\"}", ST_FORMAT, "text_config: is missing"},
        {"{\"model_type\":\"gemma3\",\"text_config\":3}", ST_FORMAT, "text_config"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_size\":0}", ST_FORMAT, "hidden_size"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_size\":-5}", ST_FORMAT, "hidden_size"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_size\":99999999999}", ST_FORMAT, "hidden_size"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_size\":\"640\"}", ST_FORMAT, "hidden_size"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_size\":1.5}", ST_FORMAT, "hidden_size"},
        {"{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":100000}", ST_FORMAT, "num_hidden_layers"},
        {"{\"model_type\":\"gemma3_text\",\"num_attention_heads\":5}", ST_FORMAT,
         "multiple of num_key_value_heads"},
        {"{\"model_type\":\"gemma3_text\",\"head_dim\":7}", ST_FORMAT, "head_dim"},
        {"{\"model_type\":\"gemma3_text\",\"layer_types\":[\"full_attention\"]}", ST_FORMAT, "layer_types"},
        {"{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}",
         ST_UNSUPPORTED, "layer_types"},
        {"{\"model_type\":\"gemma3_text\",\"sliding_window_pattern\":0}", ST_FORMAT,
         "sliding_window_pattern"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}}",
         ST_UNSUPPORTED, "rope_type"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}",
         ST_FORMAT, "factor"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"rope_type\":\"linear\"}}", ST_FORMAT,
         "factor: is missing"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}",
         ST_UNSUPPORTED, "which transformers ignores for Gemma 3"},
        {"{\"model_type\":\"gemma3_text\",\"rope_theta\":-1}", ST_FORMAT, "rope_theta"},
        {"{\"model_type\":\"gemma3_text\",\"rms_norm_eps\":1e999}", ST_FORMAT, "rms_norm_eps"},
        {"{\"model_type\":\"gemma3_text\",\"query_pre_attn_scalar\":0}", ST_FORMAT, "query_pre_attn_scalar"},
        {"{\"model_type\":\"gemma3_text\",\"hidden_activation\":\"relu\"}", ST_UNSUPPORTED,
         "hidden_activation"},
        {"{\"model_type\":\"gemma3_text\",\"eos_token_id\":[1,\"2\"]}", ST_FORMAT, "eos_token_id"},
        {"{\"model_type\":\"gemma3_text\",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         ST_FORMAT, "eos_token_id"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":{\"image_size\":13}}", ST_FORMAT,
         "image_size"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":{\"num_attention_heads\":5}}",
         ST_FORMAT, "num_attention_heads"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":{}}", ST_FORMAT,
         "mm_tokens_per_image"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"vision_config\":{},\"mm_tokens_per_image\":48}",
         ST_FORMAT, "mm_tokens_per_image"},
    };
    static struct hf_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {""};
        enum status st = parse(cases[i].text, &c, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].says))
            fail_msg("%s: %s (%s)", cases[i].text, status_name(st), err.msg);
    }
}

static void test_layouts(void **state)
{
    static const struct {
        const char *name, *canonical; /* NULL: not needed */
    } cases[] = {
        {"language_model.model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.language_model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.layers.3.mlp.up_proj.weight", "text.layers.3.mlp.up_proj.weight"},
        {"model.norm.weight", "text.norm.weight"},
        {"lm_head.weight", "head.weight"},
        {"language_model.lm_head.weight", "head.weight"},
        {"vision_tower.vision_model.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"model.vision_tower.vision_model.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"model.vision_tower.post_layernorm.bias", "vision.post_layernorm.bias"},
        {"vision_tower.vision_model.head.probe", NULL},
        {"multi_modal_projector.mm_input_projection_weight", "projector.mm_input_projection_weight"},
        {"model.multi_modal_projector.mm_soft_emb_norm.weight", "projector.mm_soft_emb_norm.weight"},
        {"something.else", NULL},
    };
    static struct hf_config c;
    struct err err;
    (void)state;
    assert_int_equal(parse("{\"model_type\":\"gemma3_text\"}", &c, &err), ST_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[DESC_NAME_MAX];
        bool needed = d.canonical(cases[i].name, out);
        assert_int_equal(needed, cases[i].canonical != NULL);
        if (needed) assert_string_equal(out, cases[i].canonical);
    }
    char *huge = malloc(5000), out[DESC_NAME_MAX];
    memset(huge, 'x', 4999);
    memcpy(huge, "model.", 6);
    huge[4999] = '\0';
    assert_false(d.canonical(huge, out));
    free(huge);
    model_desc_free(&d);
}

/* ---- whole checkpoints, broken in many ways ---- */

static uint64_t rng = 12345;
static uint32_t rnd(uint32_t below)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % below;
}

static enum status inspect(struct err *err)
{
    char text[8192];
    struct engine_options opt = {
        .model_dir = scratch, .threads = 1, .kernels = "reference", .kv_bytes = 1u << 20};
    struct engine_inspected seen;
    return engine_inspect(&opt, text, sizeof text, &seen, err);
}

static void mutate(char *p, size_t n)
{
    static const char *const bits[] = {"0",       "-",    "9",    "\"",           "}", "]", ",", "e", ".",
                                       "\\u0000", "null", "true", "999999999999", "{", "["};
    switch (rnd(4)) {
    case 0: p[rnd((uint32_t)n)] = (char)rnd(256); break;
    case 1: p[rnd((uint32_t)n)] = (char)('0' + rnd(10)); break;
    case 2: {
        const char *b = bits[rnd(sizeof bits / sizeof bits[0])];
        size_t at = rnd((uint32_t)n), len = strlen(b);
        if (at + len <= n) memcpy(p + at, b, len);
        break;
    }
    default: {
        size_t from = rnd((uint32_t)n), to = rnd((uint32_t)n), len = 1 + rnd(12);
        if (from + len <= n && to + len <= n) memmove(p + to, p + from, len);
    }
    }
}

static void test_mutations(void **state)
{
    char dir[600], path[700];
    size_t config_len, weights_len;
    uint32_t refused = 0, rounds = 1500;
    struct err err;
    (void)state;
    golden_dir(dir, sizeof dir, "gemma3", "text_f32");
    snprintf(path, sizeof path, "%s/config.json", dir);
    char *config = read_file(path, &config_len);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    char *weights = read_file(path, &weights_len);
    size_t header = 8;
    for (int i = 0; i < 4; i++) header += (size_t)(uint8_t)weights[i] << (8 * i);
    char *text = malloc(config_len > header ? config_len : header);
    write_file("config.json", config, config_len);
    write_file("model.safetensors", weights, weights_len);
    assert_int_equal(inspect(&err), ST_OK);
    for (uint32_t i = 0; i < rounds; i++) {
        bool in_config = i % 3 == 0;
        size_t n = in_config ? config_len : header;
        memcpy(text, in_config ? config : weights, n);
        for (uint32_t k = 1 + rnd(4); k > 0; k--) mutate(text, n);
        FILE *f = fopen(path_of(in_config ? "config.json" : "model.safetensors"), "r+b");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, n, f), n);
        fclose(f);
        err.msg[0] = '\0';
        enum status st = inspect(&err);
        if (st && !err.msg[0]) fail_msg("round %u: %s without a message", i, status_name(st));
        if (st && strchr(err.msg, '\n')) fail_msg("round %u: more than one line: %s", i, err.msg);
        refused += st != ST_OK;
        f = fopen(path_of(in_config ? "config.json" : "model.safetensors"), "r+b");
        assert_int_equal(fwrite(in_config ? config : weights, 1, n, f), n);
        fclose(f);
    }
    assert_int_equal(inspect(&err), ST_OK); /* everything was put back */
    assert_true(refused > rounds / 2 && refused < rounds);
    /* Truncated at every kind of place. */
    for (size_t n = 0; n < weights_len; n += 1 + weights_len / 57) {
        write_file("model.safetensors", weights, n);
        err.msg[0] = '\0';
        assert_int_not_equal(inspect(&err), ST_OK);
        assert_true(err.msg[0] != '\0');
    }
    /* One layer more than there are tensors for. */
    write_file("model.safetensors", weights, weights_len);
    char *at = strstr(config, "\"vocab_size\": 512");
    assert_non_null(at);
    memcpy(at + strlen("\"vocab_size\": "), "511", 3);
    write_file("config.json", config, config_len);
    assert_int_equal(inspect(&err), ST_FORMAT);
    assert_non_null(strstr(err.msg, "[512,48], config.json implies [511,48]"));
    free(text);
    free(config);
    free(weights);
    remove_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),         cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_values),          cmocka_unit_test(test_shards),
        cmocka_unit_test(test_config_defaults), cmocka_unit_test(test_config_hostile),
        cmocka_unit_test(test_layouts),         cmocka_unit_test(test_mutations)};
    return cmocka_run_group_tests_name("safetensors", tests, make_scratch, drop_scratch);
}

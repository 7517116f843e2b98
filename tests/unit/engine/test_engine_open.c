/* Opening, inspecting, limits, block copies, random weights: engine.h apart from the numbers of a step. */
#include "engine/checkpoint/weights.h"
#include "engine/families/families.h"
#include "engine/internal.h"
#include "engine/model/model_desc.h"
#include "engine/model/model_info.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/cpu/kv_layout.h"
#include "tests/lib/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char scratch[64];

static const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void write_header(const char *header, size_t body)
{
    FILE *f = fopen(path_of("model.safetensors"), "wb");
    assert_non_null(f);
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++) fputc((int)(n >> (8 * i) & 255), f);
    fputs(header, f);
    while (body-- > 0) fputc(0, f);
    fclose(f);
}

static int make_scratch(void **state)
{
    (void)state;
    strcpy(scratch, "/tmp/kvasir-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int drop_scratch(void **state)
{
    (void)state;
    unlink(path_of("config.json"));
    unlink(path_of("model.safetensors"));
    return rmdir(scratch);
}

static void refused(struct engine_options opt, enum status want, const char *says)
{
    struct engine *e = NULL;
    struct err err = {""};
    enum status st = engine_open(&opt, &e, &err);
    if (st != want || !strstr(err.msg, says))
        fail_msg("%s (%s) where \"%s\" was expected", status_name(st), err.msg, says);
    assert_null(e);
}

static void test_refusals(void **state)
{
    char dir[600];
    (void)state;
    golden_dir(dir, sizeof dir, "gemma3", "text_f32");
    struct engine_options good = {.model_dir = dir,
                                  .threads = 1,
                                  .kv_bytes = 1u << 20,
                                  .kernels = "reference"},
                          o;
    refused((struct engine_options){.model_dir = "/nonexistent/place"}, ST_NOT_FOUND, "config.json");
    refused((struct engine_options){0}, ST_NOT_FOUND, "config.json");
    o = good, o.kernels = "sse1";
    refused(o, ST_UNSUPPORTED, "sse1");
    o = good, o.kv_bytes = 100;
    refused(o, ST_NOMEM, "don't hold one block");
    o = good, o.kv_bytes = UINT64_MAX / 2;
    refused(o, ST_NOMEM, "use at most");
    o = good, o.sequences_max = 1u << 20;
    refused(o, ST_INVALID, "sequences");
    o = good, o.batch_tokens_max = 1u << 30;
    refused(o, ST_INVALID, "tokens per step");
    o = good, o.model_dir = scratch;
    write_text("config.json", "{\"model_type\":\"mamba\"}");
    refused(o, ST_UNSUPPORTED, "\"mamba\" is not served; served: gemma, ");
    write_text("config.json",
               "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":1,\"hidden_size\":1,\"vocab_size\":2}");
    refused(o, ST_NOT_FOUND, "neither model.safetensors nor");
    write_header("{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    refused(o, ST_FORMAT, "no tensor text.embed_tokens.weight");
    write_header("{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"language_model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                 8);
    refused(o, ST_FORMAT, "are the same part of the model (text.norm.weight)");
    write_header("{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}",
                 8);
    refused(o, ST_FORMAT, "has shape [1,2], config.json implies [2,1]");
    write_header("{\"model.embed_tokens.weight\":{\"dtype\":\"I8\",\"shape\":[2,1],\"data_offsets\":[0,2]}}",
                 2);
    refused(o, ST_FORMAT, "its weight_scale is missing");
}

/* A tied head whose values differ from the embedding's is a head of its own; an equal copy changes nothing.
 */
static void test_tie(void **state)
{
    static const char config[] =
        "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":2,\"num_attention_heads\":1,"
        "\"num_key_value_heads\":1,\"vocab_size\":2,\"tie_word_embeddings\":true}";
    static const char embed[] =
        "\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}";
    static const struct {
        const char *head;
        uint8_t last; /* byte of the file, which is 0 otherwise */
        bool tied;
    } cases[] = {
        {"", 1, true},
        {",\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]}", 0, true},
        {",\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]}", 1, false},
        {",\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[4,1],\"data_offsets\":[16,32]}", 1, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[400];
        struct hf_config c = {0};
        struct model_desc d = {0};
        struct stf_files *files = NULL;
        struct err err = {""};
        snprintf(header, sizeof header, "{%s%s}", embed, cases[i].head);
        write_header(header, *cases[i].head ? 31 : 15);
        FILE *f = fopen(path_of("model.safetensors"), "ab");
        assert_non_null(f);
        fputc(cases[i].last, f);
        fclose(f);
        if (family_parse(config, sizeof config - 1, "config.json", &c, &d, &err) ||
            stf_open(scratch, &files, &err))
            fail_msg("%s", err.msg);
        assert_true(d.tied);
        model_desc_resolve(&d, NULL);
        assert_true(d.tied);
        model_desc_resolve(&d, files);
        if (d.tied != cases[i].tied) fail_msg("case %zu: tied is %d", i, d.tied);
        stf_close(files);
        model_desc_free(&d);
    }
}

/* Adds a tensor of f32 to a header. */
static void add_tensor(char *header, size_t cap, const char *name, const char *shape, size_t bytes,
                       size_t *at)
{
    size_t n = strlen(header);
    snprintf(header + n, cap - n, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             n ? ',' : '{', name, shape, *at, *at + bytes);
    *at += bytes;
}

/* Tensors that nothing asks for are counted and named, but for what checkpoints carry along. */
static void test_unused(void **state)
{
    (void)state;
    static const char config[] = "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":2,\"num_"
                                 "attention_heads\":1,\"intermediate_size\":2,"
                                 "\"num_key_value_heads\":1,\"vocab_size\":2,\"tie_word_embeddings\":true}";
    static const char *const square[] = {"model.embed_tokens",
                                         "model.layers.0.self_attn.q_proj",
                                         "model.layers.0.self_attn.k_proj",
                                         "model.layers.0.self_attn.v_proj",
                                         "model.layers.0.self_attn.o_proj",
                                         "model.layers.0.mlp.gate_proj",
                                         "model.layers.0.mlp.up_proj",
                                         "model.layers.0.mlp.down_proj"};
    static const char *const flat[] = {"model.norm.weight",
                                       "model.layers.0.input_layernorm.weight",
                                       "model.layers.0.post_attention_layernorm.weight",
                                       "model.layers.0.self_attn.q_proj.bias",
                                       "model.layers.0.self_attn.k_proj.bias",
                                       "model.layers.0.self_attn.v_proj.bias"};
    static const struct {
        const char *more[6];
        uint32_t count;
        const char *names;
    } cases[] = {
        {{NULL}, 0, ""},
        {{"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.position_ids",
          "vision_tower.vision_model.head.probe"},
         0,
         ""},
        {{"model.layers.0.self_attn.o_proj.bias"}, 1, "model.layers.0.self_attn.o_proj.bias"},
        {{"my_position_ids", "a\\nb", "model.layers.1.x", "model.layers.2.x", "model.layers.3.x"},
         5,
         "a?b, my_position_ids, model.layers.1.x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[4000] = "", name[100];
        struct hf_config c = {0};
        struct model_desc d = {0};
        struct stf_files *files = NULL;
        struct weights_inventory s;
        struct err err = {""};
        size_t bytes = 0;
        for (size_t k = 0; k < sizeof square / sizeof *square; k++) {
            snprintf(name, sizeof name, "%s.weight", square[k]);
            add_tensor(header, sizeof header, name, "2,2", 16, &bytes);
        }
        for (size_t k = 0; k < sizeof flat / sizeof *flat; k++)
            add_tensor(header, sizeof header, flat[k], "2", 8, &bytes);
        for (size_t k = 0; k < 6 && cases[i].more[k]; k++)
            add_tensor(header, sizeof header, cases[i].more[k], "2", 8, &bytes);
        strcat(header, "}");
        write_header(header, bytes);
        if (family_parse(config, sizeof config - 1, "config.json", &c, &d, &err) ||
            stf_open(scratch, &files, &err) ||
            weights_inventory(files, &d, (struct weight_format){.act = BE_F32}, &s, &err))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(s.ignored, cases[i].count);
        assert_string_equal(s.ignored_names, cases[i].names);
        weights_inventory_free(&s);
        stf_close(files);
        model_desc_free(&d);
    }
}

struct heard {
    uint64_t last, total;
    uint32_t calls;
};

static void hear(void *arg, uint64_t done, uint64_t total)
{
    struct heard *h = arg;
    assert_true(done > h->last || h->calls == 0);
    assert_true(done <= total);
    h->last = done;
    h->total = total;
    h->calls++;
}

static void test_caps_and_inspect(void **state)
{
    char dir[600];
    static char text[8192], small[100];
    struct heard h = {0};
    struct engine *e;
    struct engine_caps c;
    struct engine_inspected seen;
    struct err err;
    (void)state;
    golden_dir(dir, sizeof dir, "gemma3", "vision_f32");
    struct engine_options opt = {.model_dir = dir,
                                 .threads = 1,
                                 .kv_bytes = 1u << 20,
                                 .kernels = "reference",
                                 .batch_tokens_max = 5,
                                 .sequences_max = 3,
                                 .context_max = 1000000,
                                 .progress = hear,
                                 .progress_arg = &h};
    assert_int_equal(engine_inspect(&opt, text, sizeof text, &seen, &err), ST_OK);
    assert_non_null(strstr(text, "sliding(24)"));
    assert_non_null(strstr(text, "full"));
    assert_non_null(strstr(text, "bytes per token"));
    assert_non_null(strstr(text, "memory"));
    assert_int_equal(engine_inspect(&opt, small, sizeof small, &seen, &err), ST_TOO_LARGE);
    assert_int_equal(engine_inspect(&opt, small, 0, &seen, &err), ST_TOO_LARGE);
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    assert_true(h.calls > 20 && h.last == h.total);
    engine_caps(e, &c);
    assert_int_equal(c.group_count, 2);
    assert_true(c.groups[0].window == 0 && c.groups[0].layers == 1 && c.groups[1].window == 24 &&
                c.groups[1].layers == 3);
    for (int g = 0; g < 2; g++) {
        assert_int_equal(c.groups[g].block_bytes % c.grain_bytes, 0);
        assert_int_equal(c.groups[g].block_bytes, (uint64_t)c.groups[g].block_grains * c.grain_bytes);
        assert_true(c.groups[g].block_bytes >= c.groups[g].layers * 2ull * 2 * 16 * 4 *
                                                   c.block_tokens); /* K and V, 2 heads of 16, f32 */
    }
    assert_int_equal(c.arena_grains, (1u << 20) / c.grain_bytes);
    assert_int_equal(c.context_max, 2048);
    assert_int_equal(c.span_tokens_max, 16);
    assert_true(c.batch_tokens_max >= c.span_tokens_max + c.sequences_max);
    assert_true(c.eos_count == 2 && c.eos_ids[0] == 1 && c.eos_ids[1] == 9);
    const struct model_info *m = engine_model(e);
    assert_string_equal(m->family, "gemma3");
    assert_string_equal(m->backend, "cpu-reference");
    assert_true(strncmp(m->fingerprint, "fp_", 3) == 0 && strlen(m->fingerprint) == 13);
    assert_true(m->generation.has_top_k && m->generation.top_k == 64 && m->generation.has_top_p &&
                m->generation.do_sample);
    assert_true(m->image.present && m->image.placeholder_id == 511 && m->image.tokens == 16 &&
                m->image.rule == SPAN_BIDIRECTIONAL);
    char first[16];
    strcpy(first, m->fingerprint);
    engine_close(e);
    h = (struct heard){0}; /* it is called for this one too */
    /* The fingerprint depends on the weights. */
    golden_dir(dir, sizeof dir, "gemma3", "window_small_f32");
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    assert_string_not_equal(engine_model(e)->fingerprint, first);
    engine_close(e);
    engine_close(NULL);
}

/* What a block holds behind the first `filled` tokens becomes NaN, as if a request with damaged weights had
 * gone on there. */
static void spoil(struct engine *e, uint32_t group, uint32_t block_offset, uint32_t filled)
{
    assert_true(e->becaps.host_memory && filled > 0 && filled < KV_SLOTS);
    for (uint32_t n = 0; n < e->net.desc.layer_count; n++) {
        const struct desc_layer *l = &e->net.desc.layers[n];
        struct be_kv kv = {e->arena, e->kv.layer_offset[n], l->kv_heads, l->head_dim, e->kv.type};
        uint32_t d = l->head_dim, dpad = kv_dpad(e->plan.act, d);
        for (uint32_t h = 0; h < l->kv_heads && e->kv.layer_group[n] == group; h++)
            for (uint32_t slot = filled; slot < KV_SLOTS; slot++)
                for (uint32_t i = 0; i < dpad; i++)
                    for (int v = 0; v < 2; v++) {
                        void *part = v ? kv_v(kv_layer(&kv, block_offset), e->plan.act, d, h)
                                       : kv_k(kv_layer(&kv, block_offset), e->plan.act, d, h);
                        size_t at = v ? kv_v_idx(e->plan.act, dpad, slot, i)
                                      : kv_k_idx(e->plan.act, dpad, slot, i),
                               size = be_dtype_bytes(e->plan.act);
                        memset((char *)part + at * size, 0xff, size);
                    }
    }
}

/* Blocks copied to another place serve the same sequence: the rest of its tokens come out bit for bit. So
 * they do when another request's follow in the original. */
static void move_kv(enum opt_kv_dtype kv_dtype, bool host)
{
    char dir[600];
    uint32_t prompt[100];
    struct engine *e;
    struct err err;
    struct mini_sched m;
    golden_dir(dir, sizeof dir, "gemma3", "text_f32");
    struct engine_options opt = {.model_dir = dir,
                                 .kv_dtype = kv_dtype,
                                 .backend = kv_dtype == KV_DTYPE_INT8 ? BACKEND_CPU : BACKEND_AUTO,
                                 .threads = 2,
                                 .kv_bytes = 8u << 20,
                                 .batch_tokens_max = 128,
                                 .sequences_max = 4};
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    for (uint32_t i = 0; i < 100; i++) prompt[i] = 10 + i * 37 % 400;
    mini_init(&m, e);
    struct mini_seq a = {.prompt = prompt, .prompt_count = 100, .generate = 30, .sampling = mini_greedy()},
                    b = a;
    mini_run(&m, (struct mini_seq *[]){&a}, 1);
    mini_add(&m, &b);
    for (int i = 0; i < 10; i++) mini_step(&m, (struct mini_seq *[]){&b}, 1);
    for (uint32_t g = 0; g < m.caps.group_count; g++) {
        for (uint32_t k = 0; k < (b.done + m.caps.block_tokens - 1) / m.caps.block_tokens; k++) {
            uint32_t to = (uint32_t)m.next_unit;
            m.next_unit += m.caps.groups[g].block_grains;
            assert_true(m.next_unit <= m.caps.arena_grains);
            uint32_t filled = b.done - k * m.caps.block_tokens;
            bool last = k + 1 == (b.done + m.caps.block_tokens - 1) / m.caps.block_tokens;
            if (last && kv_dtype != KV_DTYPE_INT8) /* no NaN there */
                spoil(e, g, b.tables[g][k], filled);
            if (filled > m.caps.block_tokens) filled = m.caps.block_tokens;
            if (host) {
                void *copy = malloc(m.caps.groups[g].block_bytes);
                engine_kv_read(e, g, b.tables[g][k], copy);
                engine_kv_write(e, g, to, copy, filled);
                free(copy);
            } else {
                engine_kv_copy(e, g, b.tables[g][k], to, filled);
            }
            engine_kv_copy(e, g, (uint32_t)m.next_unit, b.tables[g][k],
                           m.caps.block_tokens); /* the old place is overwritten */
            b.tables[g][k] = to;
        }
    }
    while (mini_step(&m, (struct mini_seq *[]){&b}, 1)) {
    }
    assert_memory_equal(a.tokens, b.tokens, 130 * sizeof *a.tokens);
    for (uint32_t i = 101; i < 130; i++)
        assert_memory_equal(&a.scores[i].logprob, &b.scores[i].logprob, sizeof(float));
    mini_drop(&m, &a);
    mini_drop(&m, &b);
    mini_fini(&m);
    engine_close(e);
}

static void test_kv_copy(void **state)
{
    (void)state;
    move_kv(KV_DTYPE_AUTO, false);
    move_kv(KV_DTYPE_AUTO, true);
    move_kv(KV_DTYPE_INT8, true);
}

/* A part of a prompt of which nobody wants logits tells that its numbers are none; another in the same step
 * is not touched. */
static void test_unseen(void **state)
{
    char dir[600];
    uint32_t prompt[100];
    struct engine *e;
    struct err err;
    struct mini_sched m;
    (void)state;
    golden_dir(dir, sizeof dir, "gemma3", "text_f32");
    struct engine_options opt = {
        .model_dir = dir, .threads = 2, .kv_bytes = 8u << 20, .batch_tokens_max = 128, .sequences_max = 4};
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    for (uint32_t i = 0; i < 100; i++) prompt[i] = 10 + i * 37 % 400;
    mini_init(&m, e);
    struct mini_seq seqs[2] = {
        {.prompt = prompt, .prompt_count = 100, .generate = 1, .sampling = mini_greedy()}};
    seqs[1] = seqs[0];
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct engine_chunk chunks[2];
        for (uint32_t i = 0; i < 2; i++) {
            if (turn == 0) mini_add(&m, &seqs[i]);
            chunks[i] = (struct engine_chunk){.position = turn ? 40 : 0,
                                              .count = turn ? 20 : 40,
                                              .tokens = seqs[i].tokens,
                                              .token_count = 100,
                                              .prompt_count = 100,
                                              .sampling = &seqs[i].sampling,
                                              .score_first = UINT32_MAX};
            for (uint32_t g = 0; g < m.caps.group_count; g++) chunks[i].tables[g] = seqs[i].tables[g];
        }
        struct engine_batch b = {chunks, 2};
        assert_int_equal(engine_submit(e, &b, &err), ST_OK);
        assert_int_equal(engine_wait(e, &b, &err), ST_OK);
        assert_int_equal(chunks[0].broken, turn == 1);
        assert_false(chunks[1].broken);
        for (uint32_t g = 0; g < m.caps.group_count; g++) spoil(e, g, seqs[0].tables[g][1], 4);
    }
    mini_drop(&m, &seqs[0]);
    mini_drop(&m, &seqs[1]);
    mini_fini(&m);
    engine_close(e);
}

static void test_random_weights(void **state)
{
    struct engine *e;
    struct err err;
    struct mini_sched m;
    struct engine_costs c;
    struct image_u8 image = {.width = 28, .height = 28, .rgb = calloc(28 * 28, 3)};
    uint32_t prompt[20];
    (void)state;
    unlink(path_of("model.safetensors"));
    write_text("config.json",
               "{\"model_type\":\"gemma3\",\"mm_tokens_per_image\":4,\"image_token_index\":99,\"text_"
               "config\":{\"vocab_size\":100,"
               "\"hidden_size\":64,"
               "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_"
               "heads\":1,\"head_dim\":32,"
               "\"sliding_window\":8,\"sliding_window_pattern\":3},\"vision_config\":{\"hidden_size\":48,"
               "\"intermediate_size\":64,"
               "\"num_hidden_layers\":2,\"num_attention_heads\":3,\"image_size\":28,\"patch_size\":7}}");
    struct engine_options opt = {
        .model_dir = scratch, .threads = 1, .kv_bytes = 1u << 20, .random_weights = true};
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    assert_string_equal(engine_model(e)->dtype, "bf16");
    for (uint32_t i = 0; i < 20; i++) prompt[i] = i;
    for (uint32_t i = 5; i < 9; i++) prompt[i] = 99;
    mini_init(&m, e);
    struct mini_image im = {.begin = 5, .end = 9, .pixels = image};
    struct mini_seq s = {.prompt = prompt,
                         .prompt_count = 20,
                         .generate = 4,
                         .images = &im,
                         .image_count = 1,
                         .sampling = mini_greedy()};
    mini_run(&m, (struct mini_seq *[]){&s}, 1);
    for (uint32_t i = 1; i < 24; i++) assert_true(s.scores[i].logprob < 0 && s.scores[i].logprob > -50);
    mini_drop(&m, &s);
    mini_fini(&m);
    assert_int_equal(engine_costs(e, &c, &err), ST_OK);
    assert_true(c.linear_flops_per_token == 3 * 2 * 64.0 * (64 + 64 + 64 + 3 * 96));
    assert_true(c.head_flops_per_row == 2 * 64.0 * 100);
    assert_true(c.group_count == 2 && c.groups[0].flops_per_pair == 4 * 64 &&
                c.groups[1].flops_per_pair == 2 * 4 * 64 && c.groups[0].bytes_per_key == 2 * 32 * 2);
    assert_true(c.vision_flops > 0 && c.matrix_flops > 1e8 && c.read_bytes_per_s > 1e8);
    engine_close(e);
    free(image.rgb);
}

/* --quantize makes integers of floats alone: a quantized GGUF file is the same model with and without. */
static void test_quantize(void **state)
{
    static const struct {
        const char *model, *weights;
        bool changes;
    } rows[] = {{"tests/golden/gguf/gemma3.gguf", "Q8_0", false},
                {"tests/golden/gemma3/window_small_f32", "int8", true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct engine_options o = {.model_dir = rows[i].model, .backend = BACKEND_CPU, .kv_bytes = 1u << 20};
        char plain[sizeof((struct model_info *)0)->fingerprint];
        struct engine *e;
        struct err err = {{0}};
        if (engine_open(&o, &e, &err)) fail_msg("%s", err.msg);
        strcpy(plain, engine_model(e)->fingerprint);
        if (rows[i].changes) assert_string_equal(engine_model(e)->weights, engine_model(e)->dtype);
        engine_close(e);
        o.quantize = QUANTIZE_INT8;
        if (engine_open(&o, &e, &err)) fail_msg("%s", err.msg);
        assert_string_equal(engine_model(e)->weights, rows[i].weights);
        assert_int_equal(strcmp(engine_model(e)->fingerprint, plain) != 0, rows[i].changes);
        engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_tie),
        cmocka_unit_test(test_unused),         cmocka_unit_test(test_caps_and_inspect),
        cmocka_unit_test(test_kv_copy),        cmocka_unit_test(test_unseen),
        cmocka_unit_test(test_random_weights), cmocka_unit_test(test_quantize)};
    return cmocka_run_group_tests_name("engine_open", tests, make_scratch, drop_scratch);
}

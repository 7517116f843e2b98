/* Adapters (LoRA) against PEFT, unmerged: tests/golden/lora (scripts/reference/make_lora.py). In f32
 * log-probs are within 1e-4. In every type, and with quantized bases: a row has the same bits in one batch
 * with rows of the model itself and of other adapters as alone, and rows of the model those that it has
 * without adapters. */
#include "engine/internal.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/selectors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define F32_LIMIT 1e-4
#define KINDS     3u

static const char *const kinds[KINDS] = {"attention", "all", "tower"};
static const struct family_case {
    const char *name, *family, *variant;
    uint32_t adapters; /* of the kinds */
} families[] = {
    {"llama", "llama", "llama3_f32", 2},      {"llama_gguf", "llama", "llama_gguf_f32", 1},
    {"gemma3", "gemma3", "vision_f32", 3},    {"gemma4", "gemma4", "e2b_vision_f32", 3},
    {"paligemma", "paligemma", "pg2_f32", 3}, {"qwen2_5_vl", "qwen", "qwen2_5_vl_f32", 3},
    {"qwen3_vl", "qwen", "qwen3_vl_f32", 3},  {"qwen3_5", "qwen", "qwen3_5_f32", 3},
    {"smolvlm", "tiles", "smolvlm_f32", 3},   {"mistral3", "native", "mistral3_f32", 3},
};
#define FAMILIES (sizeof families / sizeof *families)

static struct engine *open_base(const char *family, const char *variant, const char *set,
                                enum opt_dtype dtype, enum opt_quantize quantize)
{
    char dir[600];
    struct engine *e;
    struct err err;
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = 2,
                                 .kv_bytes = 16u << 20,
                                 .batch_tokens_max = 600, /* more than ADAPTER_ROWS */
                                 .sequences_max = 8,
                                 .dtype = dtype,
                                 .quantize = quantize};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

static struct adapter *open_adapter(struct engine *e, const char *name)
{
    char path[600];
    struct adapter *a;
    struct err err;
    golden_dir(path, sizeof path, "lora", name);
    if (adapter_open(e, path, &a, &err)) fail_msg("%s", err.msg);
    return a;
}

/* ---- values ---- */

struct said {
    struct stf_files *files;
    const struct stf_tensor *prompt, *greedy, *follow, *logprobs;
};

static struct said open_said(const char *name)
{
    struct said s;
    struct err err;
    char path[700], dir[600];
    golden_dir(dir, sizeof dir, "lora", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    if (stf_open_file(path, &s.files, &err)) fail_msg("%s", err.msg);
    s.prompt = stf_find(s.files, "prompt_ids");
    s.greedy = stf_find(s.files, "greedy_ids");
    s.follow = stf_find(s.files, "follow");
    s.logprobs = stf_find(s.files, "logprobs");
    assert_true(s.prompt && s.greedy && s.follow && s.logprobs);
    return s;
}

struct compare {
    struct engine *e;
    const struct said *said;
    uint32_t rows;
    double max;
};

/* The step's sampled row against its row of the file. */
static void after_step(void *arg, const struct engine_batch *b)
{
    struct compare *k = arg;
    struct engine *e = k->e;
    const float *want = k->said->logprobs->data;
    uint32_t vocab = (uint32_t)k->said->logprobs->shape[1];
    assert_int_equal(b->chunk_count, 1);
    if (!b->chunks[0].sample) return;
    decoder_logits(e, &e->net, e->step.output_count - 1, 1);
    float *logits = malloc(vocab * sizeof *logits);
    struct be_logit_stats stats;
    e->ops->download(e->be, logits, e->net.s.logits, vocab * sizeof *logits);
    e->ops->download(e->be, &stats, e->net.s.stats, sizeof stats);
    for (uint32_t v = 0; v < vocab; v++) {
        double delta = fabs((double)logits[v] - (double)stats.lse - (double)want[k->rows * vocab + v]);
        if (!(delta <= k->max)) k->max = delta;
    }
    free(logits);
    k->rows++;
}

static struct mini_seq sequence(const struct golden_case *c, const struct adapter *a, uint32_t generate)
{
    return (struct mini_seq){.prompt = c->prompt,
                             .prompt_count = c->prompt_count,
                             .generate = generate,
                             .adapter = a,
                             .images = c->images,
                             .image_count = c->image_count,
                             .sampling = mini_greedy()};
}

static bool check_values(struct engine *e, const struct golden_case *c, const char *name, const char *set)
{
    struct said said = open_said(name);
    struct adapter *a = open_adapter(e, name);
    struct compare k = {.e = e, .said = &said};
    struct mini_sched m;
    uint32_t generate = (uint32_t)said.greedy->shape[0];
    struct mini_seq s = sequence(c, a, generate), *one = &s;
    assert_int_equal(said.prompt->shape[0], c->prompt_count);
    assert_memory_equal(said.prompt->data, c->prompt, c->prompt_count * sizeof *c->prompt);
    s.forced = said.greedy->data;
    s.chunk = 9;
    mini_init(&m, e);
    m.after_step = after_step;
    m.arg = &k;
    mini_run(&m, &one, 1);
    for (uint32_t t = 1; t < c->prompt_count; t++) {
        float want = ((const float *)said.follow->data)[t - 1];
        double delta = fabs((double)s.scores[t].logprob - (double)want);
        if (s.scores[t].logprob > -9000 && want < 0 && !(delta <= k.max)) k.max = delta;
    }
    bool ok = k.max <= F32_LIMIT && k.rows == generate;
    printf("  %-22s %-9s max |delta| %.2e%s\n", name, set, k.max, ok ? "" : "   FAIL");
    mini_drop(&m, &s);
    mini_fini(&m);
    adapter_free(e, a);
    stf_close(said.files);
    return ok;
}

static void test_values(void **state)
{
    uint32_t failed = 0;
    (void)state;
    for (size_t i = 0; i < FAMILIES; i++)
        for (size_t k = 0; k < TEST_SETS; k++) {
            const struct family_case *f = &families[i];
            struct golden g;
            if (!test_takes(i, k) || !selects_variant(f->name) || !selects_kernels(backend_sets[k])) continue;
            struct engine *e = open_base(f->family, f->variant, backend_sets[k], DTYPE_F32, QUANTIZE_NONE);
            golden_open(&g, f->family, f->variant,
                        engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
            for (uint32_t n = 0; n < f->adapters; n++) {
                char name[64];
                snprintf(name, sizeof name, "%s_%s", f->name, kinds[n]);
                failed += !check_values(e, &g.cases[0], name, backend_sets[k]);
            }
            golden_close(&g);
            engine_close(e);
        }
    assert_int_equal(failed, 0);
}

/* ---- bits ---- */

#define GENERATE 5u

/* What a sequence computed: tokens and their log-probs, and the head's input of its prompt if b has it. */
static bool same_bits(const struct mini_seq *a, const struct mini_seq *b, size_t hidden)
{
    uint32_t total = a->prompt_count + GENERATE;
    bool same = memcmp(a->tokens, b->tokens, total * sizeof *a->tokens) == 0;
    if (b->hidden) same &= !memcmp(a->hidden, b->hidden, a->prompt_count * hidden * sizeof *a->hidden);
    for (uint32_t t = b->hidden ? 1 : a->prompt_count; t < total && same; t++)
        same = memcmp(&a->scores[t].logprob, &b->scores[t].logprob, sizeof(float)) == 0;
    return same;
}

static void run(struct engine *e, struct mini_seq *seqs, uint32_t n, bool together)
{
    struct mini_sched m;
    struct mini_seq *all[8];
    size_t hidden = e->net.desc.hidden;
    mini_init(&m, e);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = &seqs[i];
        if (!seqs[i].score_first) seqs[i].hidden = calloc(seqs[i].prompt_count * hidden, sizeof(float));
        if (!together) mini_run(&m, &all[i], 1);
    }
    if (together) mini_run(&m, all, n);
    mini_fini(&m);
}

static void drop(struct engine *e, struct mini_seq *seqs, uint32_t n)
{
    struct mini_sched m;
    mini_init(&m, e);
    for (uint32_t i = 0; i < n; i++) {
        free(seqs[i].hidden);
        mini_drop(&m, &seqs[i]);
    }
    mini_fini(&m);
}

/* One of each adapter between rows of the model, in pieces that differ from those alone; every prompt twice,
 * so that there are more rows than go through an adapter at once. */
static bool check_bits(struct engine *e, const struct family_case *f, const struct golden_case *c,
                       const char *how)
{
    struct adapter *a[KINDS] = {NULL};
    struct mini_seq alone[8], batch[8];
    uint32_t n = 0;
    bool ok = true;
    alone[0] = sequence(c, NULL, GENERATE);
    run(e, alone, 1, false); /* no adapter was opened yet */
    for (uint32_t k = 0; k < f->adapters; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", f->name, kinds[k]);
        a[k] = open_adapter(e, name);
    }
    for (uint32_t i = 0; i < 8; i++) {
        batch[i] = sequence(c, i % 4 < f->adapters ? a[i % 4] : NULL, GENERATE);
        batch[i].chunk = i > 3 ? 11 : 0;
        if (i < 4 && batch[i].adapter) alone[++n] = sequence(c, batch[i].adapter, GENERATE);
    }
    run(e, alone + 1, n, false);
    for (int outputs = 0; outputs < 2; outputs++) {
        for (uint32_t i = 0; i < 8 && outputs; i++) { /* only what is sampled leaves the last layer */
            batch[i] = sequence(c, batch[i].adapter, GENERATE);
            batch[i].score_first = c->prompt_count;
            batch[i].chunk = i > 3 ? 0 : 11;
        }
        run(e, batch, 8, true);
        for (uint32_t i = 0; i < 8; i++) {
            const struct mini_seq *want = batch[i].adapter ? &alone[1 + i % 4] : &alone[0];
            if (same_bits(want, &batch[i], e->net.desc.hidden)) continue;
            printf("    FAIL: %s %s: sequence %u (%s) differs from itself alone%s\n", f->name, how, i,
                   batch[i].adapter ? kinds[i % 4] : "no adapter", outputs ? ", output rows" : "");
            ok = false;
        }
        drop(e, batch, 8);
    }
    for (uint32_t k = 1; k <= n; k++)
        if (same_bits(&alone[0], &alone[k], e->net.desc.hidden)) {
            printf("    FAIL: %s %s: adapter %u changes nothing\n", f->name, how, k);
            ok = false;
        }
    drop(e, alone, n + 1);
    for (uint32_t k = 0; k < KINDS; k++) adapter_free(e, a[k]);
    return ok;
}

static void test_bits(void **state)
{
    static const struct {
        const char *name;
        enum opt_dtype dtype;
        enum opt_quantize quantize;
    } modes[] = {{"f32", DTYPE_F32, QUANTIZE_NONE},
                 {"bf16", DTYPE_BF16, QUANTIZE_NONE},
                 {"bf16, int8", DTYPE_BF16, QUANTIZE_INT8},
                 {"f32, int4", DTYPE_F32, QUANTIZE_INT4}};
    uint32_t failed = 0;
    (void)state;
    for (size_t i = 0; i < FAMILIES; i++)
        for (size_t k = 0; k < TEST_SETS; k++)
            for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
                const struct family_case *f = &families[i];
                struct golden g;
                bool quants = modes[m].quantize != QUANTIZE_NONE;
                if (!test_takes(i, k) || !selects_variant(f->name) || !selects_kernels(backend_sets[k]) ||
                    (quants && (!test_on_cpu() || i % 3 != k % 3)))
                    continue;
                struct engine *e =
                    open_base(f->family, f->variant, backend_sets[k], modes[m].dtype, modes[m].quantize);
                golden_open(&g, f->family, f->variant,
                            engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
                failed += !check_bits(e, f, &g.cases[0], modes[m].name);
                golden_close(&g);
                engine_close(e);
            }
    assert_int_equal(failed, 0);
}

/* ---- files ---- */

static struct adapter_info info_of(struct engine *e, const char *path)
{
    struct adapter_info info;
    struct adapter *a;
    struct err err;
    if (adapter_open(e, path, &a, &err)) fail_msg("%s", err.msg);
    info = *adapter_info(a);
    adapter_free(e, a);
    return info;
}

/* One adapter in both formats is the same to a model of either: rows in the order of the other are put in
 * theirs. The digest is of what is computed. */
static void test_gguf(void **state)
{
    char dir[600], file[700], model[700];
    struct engine *bases[2];
    struct err err;
    struct adapter_info want = {.bytes = 0}, inspected;
    (void)state;
    golden_dir(dir, sizeof dir, "lora", "llama_gguf_attention");
    snprintf(file, sizeof file, "%s/adapter.gguf", dir);
    golden_dir(model, sizeof model, "gguf", "llama.gguf");
    struct engine_options opt = {.model_dir = model,
                                 .backend = test_engine_backend(backend_sets[0]),
                                 .kernels = test_engine_kernels(backend_sets[0]),
                                 .dtype = DTYPE_F32,
                                 .kv_bytes = 1u << 20};
    bases[0] = open_base("llama", "llama_gguf_f32", backend_sets[0], DTYPE_F32, QUANTIZE_NONE);
    if (engine_open(&opt, &bases[1], &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 4; i++) {
        struct adapter_info info = info_of(bases[i / 2], i % 2 ? file : dir);
        if (i == 0) want = info;
        assert_memory_equal(info.digest, want.digest, sizeof want.digest);
        assert_int_equal(info.bytes, want.bytes);
        assert_int_equal(info.rank_max, 4);
        assert_false(info.touches_images);
    }
    if (adapter_inspect(&opt, file, &inspected, &err)) fail_msg("%s", err.msg);
    assert_memory_equal(inspected.digest, want.digest, sizeof want.digest);
    assert_int_equal(inspected.matrices, want.matrices);
    engine_close(bases[0]);
    engine_close(bases[1]);
}

static char *read_file(const char *dir, const char *name, size_t *len)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *data = calloc(1, 1u << 20);
    *len = fread(data, 1, (1u << 20) - 1, f);
    fclose(f);
    return data;
}

/* Writes the file with every `from` replaced; NULL: as it is. */
static void write_file(const char *dir, const char *name, const char *data, size_t len, const char *from,
                       const char *to)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    size_t found = 0, n = from ? strlen(from) : 0;
    for (size_t i = 0; i < len;) {
        bool here = n && i + n <= len && memcmp(data + i, from, n) == 0;
        found += here;
        if (here) fwrite(to, 1, strlen(to), f);
        else fputc(data[i], f);
        i += here ? n : 1;
    }
    assert_true(!from || found);
    fclose(f);
}

static void refused(struct engine *e, const char *path, const char *said)
{
    struct adapter *a;
    struct err err;
    if (!adapter_open(e, path, &a, &err)) fail_msg("accepted; wanted: %s", said);
    if (!strstr(err.msg, said) || strchr(err.msg, '\n')) fail_msg("%s; wanted: %s", err.msg, said);
}

/* What PEFT's files may say that is not served, and what is wrong: one line that names it, and nothing else
 * changes. */
static void test_refusals(void **state)
{
    static const char config[] = "adapter_config.json", weights[] = "adapter_model.safetensors";
    static const struct {
        const char *file, *from, *to, *message;
    } all[] = {
        {config, "\"use_dora\": false", "\"use_dora\": true", "use_dora is not served"},
        {config, "\"modules_to_save\": null", "\"modules_to_save\": [\"head\"]", "modules_to_save"},
        {config, "\"trainable_token_indices\": null", "\"trainable_token_indices\": [1]", "trainable_token"},
        {config, "\"lora_bias\": false", "\"lora_bias\": true", "lora_bias"},
        {config, "\"bias\": \"none\"", "\"bias\": \"all\"", "bias: only none"},
        {config, "\"LORA\"", "\"LOHA\"", "peft_type"},
        {config, "\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "init_lora_weights"},
        {config, "\"r\": 4", "\"r\": 0", "says rank 0"},
        {config, "\"r\": 4", "\"r\": 1000000000", "says rank 1e+09"},
        {config, "\"r\": 4", "\"r\": 5", "has rank 4"},
        {config, "\"lora_alpha\": 6", "\"lora_alpha\": 1e300", "alpha 1e+300"},
        {config, "\"rank_pattern\": {}", "\"rank_pattern\": {\"(q|k)_proj\": 4}", "(q|k)_proj"},
        {config, "\"rank_pattern\": {}", "\"rank_pattern\": {\"^q_proj\": 5, \".*0.self_attn.q_proj\": 5}",
         "says rank 5"},
        {config, "\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": \"x\"}", "must have numbers"},
        {config, "\"q_proj\"", "\"x_proj\"", "target_modules does not name it"},
        {config, "{", "[", "adapter_config.json"},
        {weights, "0.self_attn.q_proj.lora_B", "0.self_attn.q_proj.lora_X", "only lora_A and lora_B"},
        {weights, "q_proj.lora_B.weight", "q_proj.lora_B.biases", "only lora_A and lora_B"},
        {weights, "layers.0.self_attn.q_proj.lora_B", "layers.9.self_attn.q_proj.lora_B", "is missing"},
        {weights, "layers.1.", "layers.7.", "not a product of this model"},
        {weights, "model.layers.", "audio.layers.", "not a product of this model"},
        {weights, "\"model.layers.0.self_attn.v_proj.lora_A", "      \"layers.0.self_attn.q_proj.lora_A",
         "same part"},
        {weights, "BF16", "XX16", "adapter_model.safetensors"},
        {weights, "\"shape\":[4,", "\"shape\":[0,", "adapter_model.safetensors"},
    };
    char from[600], other[600], to[] = "/tmp/test_engine_lora_XXXXXX", path[64];
    size_t config_len, weights_len;
    (void)state;
    golden_dir(from, sizeof from, "lora", "llama_attention");
    assert_non_null(mkdtemp(to));
    char *configs = read_file(from, config, &config_len), *tensors = read_file(from, weights, &weights_len);
    struct engine *e = open_base("llama", "llama3_f32", backend_sets[0], DTYPE_AUTO, QUANTIZE_NONE);
    struct adapter_info before = info_of(e, from);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool tensor = all[i].file == weights;
        write_file(to, config, configs, config_len, tensor ? NULL : all[i].from, all[i].to);
        write_file(to, weights, tensors, weights_len, tensor ? all[i].from : NULL, all[i].to);
        refused(e, to, all[i].message);
    }
    write_file(to, config, configs, config_len, NULL, NULL);
    write_file(to, weights, tensors, weights_len - 8, NULL, NULL);
    refused(e, to, weights);
    memcpy(tensors + weights_len - 2, "\xc0\x7f", 2); /* NaN */
    write_file(to, weights, tensors, weights_len, NULL, NULL);
    refused(e, to, "not finite");
    golden_dir(other, sizeof other, "lora", "gemma3_attention");
    refused(e, other, "another model");
    struct adapter_info after = info_of(e, from);
    assert_memory_equal(before.digest, after.digest, sizeof before.digest);
    engine_close(e);
    free(configs);
    free(tensors);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", to, i ? config : weights);
        unlink(path);
    }
    rmdir(to);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_bits),
                                       cmocka_unit_test(test_gguf), cmocka_unit_test(test_refusals)};
    return selectors_end(cmocka_run_group_tests(tests, NULL, NULL));
}

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
    {"llama", "llama", "llama3_f32", 2},         {"gemma3", "gemma3", "vision_f32", 3},
    {"gemma4", "gemma4", "e2b_vision_f32", 3},   {"paligemma", "paligemma", "pg2_f32", 3},
    {"qwen2_5_vl", "qwen", "qwen2_5_vl_f32", 3}, {"qwen3_vl", "qwen", "qwen3_vl_f32", 3},
    {"qwen3_5", "qwen", "qwen3_5_f32", 3},       {"smolvlm", "tiles", "smolvlm_f32", 3},
    {"mistral3", "native", "mistral3_f32", 3},
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

/* What a sequence computed: the head's input of its prompt, tokens and their log-probs. */
static bool same_bits(const struct mini_seq *a, const struct mini_seq *b, size_t hidden)
{
    uint32_t total = a->prompt_count + GENERATE;
    bool same = memcmp(a->hidden, b->hidden, a->prompt_count * hidden * sizeof *a->hidden) == 0 &&
                memcmp(a->tokens, b->tokens, total * sizeof *a->tokens) == 0;
    for (uint32_t t = 1; t < total && same; t++)
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
        seqs[i].hidden = calloc(seqs[i].prompt_count * hidden, sizeof(float));
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
    run(e, batch, 8, true);
    for (uint32_t i = 0; i < 8; i++) {
        const struct mini_seq *want = batch[i].adapter ? &alone[1 + i % 4] : &alone[0];
        if (same_bits(want, &batch[i], e->net.desc.hidden)) continue;
        printf("    FAIL: %s %s: sequence %u (%s) differs from itself alone\n", f->name, how, i,
               batch[i].adapter ? kinds[i % 4] : "no adapter");
        ok = false;
    }
    for (uint32_t k = 1; k <= n; k++)
        if (same_bits(&alone[0], &alone[k], e->net.desc.hidden)) {
            printf("    FAIL: %s %s: adapter %u changes nothing\n", f->name, how, k);
            ok = false;
        }
    drop(e, alone, n + 1);
    drop(e, batch, 8);
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

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The engine against transformers: every variant of every family in tests/golden, every kernel set of this
 * CPU. Log-probs at every position of the prompt and of 32 greedy tokens: of the token that follows
 * everywhere, of the whole vocabulary at the positions that are stored; greedy ids; rope positions; pixels
 * and patches.
 *
 * Limits in f32: max |delta| over the whole vocabulary <= 1e-4, greedy ids equal.
 *
 * In bf16, against the float32 run of the same weights: the log-prob of the token that stands at each
 * position, and of the most likely one, <= 3e-2; over the whole vocabulary mean and max no larger than those
 * of transformers' own bf16 run (rounding the inputs of the products, queries, keys and values to bf16 costs
 * up to 6e-2 for the most unlikely tokens, whoever does it); greedy ids equal except for a near-tie, which is
 * printed. */
#include "engine/internal.h"
#include "engine/prompt/image_prep.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/selectors.h"
#include "tests/lib/test_images.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define F32_LIMIT  1e-4
#define BF16_LIMIT 3e-2
#define CHUNK      40u

#define SETS backend_sets

struct compare {
    struct engine *e;
    const struct golden_case *c;
    double max, sum, low_max, low_sum; /* low: transformers' bf16 run against its f32 run */
    double said_max;                   /* of the token that follows and the most likely one */
    uint64_t count;
    uint32_t worst_row, rows, whole_rows;
    uint32_t first, end; /* rows that are looked at */
    uint64_t bits;       /* digest (FNV-1a) of all log-probs, which scripts/arm.sh compares */
};

static void note_bits(struct compare *k, const float *logits, uint32_t n, double lse)
{
    for (uint32_t i = 0; i <= n; i++) {
        uint64_t u = 0;
        if (i < n) memcpy(&u, &logits[i], sizeof *logits);
        else memcpy(&u, &lse, sizeof lse);
        k->bits = (k->bits ^ u) * 0x100000001b3u;
    }
}

static void note(struct compare *k, double delta, uint32_t row, bool said)
{
    if (!(delta <= k->max)) {
        k->max = delta;
        k->worst_row = row;
    }
    if (said && !(delta <= k->said_max)) k->said_max = delta;
}

/* All of one row; `follows` is the token that stands behind it. */
static void compare_row(struct compare *k, const float *logits, double lse, uint32_t row, uint32_t follows)
{
    const struct golden_case *c = k->c;
    const float *want = golden_row(c, c->logprobs, row), *low = golden_row(c, c->logprobs_bf16, row);
    if (c->follow && follows != UINT32_MAX)
        note(k, fabs((double)logits[follows] - lse - (double)c->follow[row]), row, true);
    if (!want) return;
    uint32_t best = 0;
    for (uint32_t v = 1; v < c->vocab; v++)
        if (want[v] > want[best]) best = v;
    for (uint32_t v = 0; v < c->vocab; v++) {
        double delta = fabs((double)logits[v] - lse - (double)want[v]);
        note(k, delta, row, v == best || v == follows);
        k->sum += delta;
        k->count++;
        if (!low) continue;
        double theirs = fabs((double)low[v] - (double)want[v]);
        k->low_sum += theirs;
        if (theirs > k->low_max) k->low_max = theirs;
    }
    k->whole_rows++;
}

/* What lies in the backend's memory, which the host may not be able to read; the caller frees. */
static void *fetch(const struct engine *e, const void *p, size_t bytes)
{
    void *host = malloc(bytes ? bytes : 1);
    assert_non_null(host);
    e->ops->download(e->be, host, p, bytes);
    return host;
}

/* Logits of wanted rows [from, from + n), computed once more from what the step left in the scratch. */
static void compare_logits(struct compare *k, uint32_t from, uint32_t n)
{
    struct engine *e = k->e;
    const struct golden_case *c = k->c;
    uint32_t total = c->prompt_count + c->greedy_count;
    decoder_logits(e, &e->net, from, n);
    float *logits = fetch(e, e->net.s.logits, (size_t)n * c->vocab * sizeof *logits);
    struct be_logit_stats *stats = fetch(e, e->net.s.stats, n * sizeof *stats);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = e->output_rows[from + i].next - 1;
        if (row >= total || row < k->first || row >= k->end) continue;
        uint32_t follows = row + 1 < c->prompt_count ? c->prompt[row + 1]
                           : row + 1 < total         ? c->greedy[row + 1 - c->prompt_count]
                                                     : UINT32_MAX;
        note_bits(k, logits + (size_t)i * c->vocab, c->vocab, (double)stats[i].lse);
        compare_row(k, logits + (size_t)i * c->vocab, (double)stats[i].lse, row, follows);
        k->rows++;
    }
    free(logits);
    free(stats);
}

/* Reads the logits and the positions of a step. */
static void after_step(void *arg, const struct engine_batch *b)
{
    struct compare *k = arg;
    const struct engine *e = k->e;
    const struct golden_case *c = k->c;
    uint32_t total = c->prompt_count + c->greedy_count, first = b->chunks[0].position;
    assert_int_equal(b->chunk_count, 1);
    for (uint32_t from = 0; from < e->step.output_count; from += e->plan.logit_rows) {
        uint32_t left = e->step.output_count - from;
        compare_logits(k, from, left < e->plan.logit_rows ? left : e->plan.logit_rows);
    }
    int32_t *pos = fetch(e, e->step.rope_pos, (size_t)e->net.rope_axes * e->step.t * sizeof *pos);
    for (uint32_t i = 0; i < b->chunks[0].count && c->positions; i++)
        for (uint32_t a = 0; a < 3 && first + i < total; a++) {
            int32_t got = pos[(e->net.rope_axes == 3 ? (size_t)a * e->step.t : 0) + i];
            int32_t want = c->positions[(size_t)a * total + first + i];
            if (got != want)
                fail_msg("%s: token %u has position %d on axis %u, not %d", c->name, first + i, got, a, want);
        }
    free(pos);
}

/* Value `at` of patch n of an image, as the processor lays them out: patches in blocks of merge x merge; in
 * a patch channel, frame, row, column. */
static float patch_value(const struct image_config *cfg, const struct image_u8 *p, const float *lut,
                         uint32_t n, uint32_t at)
{
    uint32_t side = cfg->patch, m = cfg->merge, across = p->width / side / m, block = n / (m * m);
    uint32_t y = (block / across * m + n / m % m) * side + at / side % side,
             x = (block % across * m + n % m) * side + at % side;
    uint32_t frame = at / (side * side) % cfg->depth, channel = at / (side * side) / cfg->depth;
    if (frame >= (p->frames ? p->frames : 1)) frame = p->frames ? p->frames - 1 : 0;
    return lut[channel * 256 + p->rgb[(((size_t)frame * p->height + y) * p->width + x) * 3 + channel]];
}

static void check_pixels(const struct engine *e, const struct golden_case *c)
{
    const struct image_config *cfg = &e->info.image.config;
    float lut[3 * 256];
    if (!c->image_count) return;
    image_lut(cfg, lut);
    for (uint32_t i = 0; i < c->image_count; i++) {
        const struct image_u8 *p = &c->images[i].pixels;
        double worst = 0;
        if (c->pixel_values[i]) {
            size_t n = (size_t)p->width * p->height * 3;
            float *chw = malloc(n * sizeof *chw);
            image_to_chw(p, lut, chw);
            for (size_t k = 0; k < n; k++)
                worst = fmax(worst, fabs((double)(chw[k] - c->pixel_values[i][k])));
            free(chw);
        }
        uint32_t values = 3 * cfg->depth * cfg->patch * cfg->patch;
        for (uint32_t n = 0; n < 8 && c->patches[i]; n++)
            for (uint32_t k = 0; k < values; k++)
                worst = fmax(worst,
                             fabs((double)(patch_value(cfg, p, lut, n, k) - c->patches[i][n * values + k])));
        if (worst > 1e-6) fail_msg("%s image %u: pixel values differ by %g", c->name, i, worst);
    }
}

static bool greedy_equal(const struct golden_case *c, const struct mini_seq *s, bool exact)
{
    bool ok = true;
    for (uint32_t i = 0; i < c->greedy_count; i++) {
        uint32_t got = s->scores[c->prompt_count + i].id;
        if (got == c->greedy[i]) continue;
        double gap = (double)c->gaps[i];
        printf("    %s: token %u is %u, transformers drew %u; its two best lie %.4f apart\n", c->name, i, got,
               c->greedy[i], gap);
        if (exact || gap > 2 * BF16_LIMIT) ok = false;
    }
    return ok;
}

/* Returns false, after saying why, when a limit is broken: the other cases still run. */
/* mean > 0: weights are integers; only the mean of |delta| is looked at. */
static bool run_case(struct engine *e, const struct golden_case *c, bool f32, double mean, const char *set)
{
    struct mini_sched m;
    struct compare k = {.e = e, .c = c, .bits = 0xcbf29ce484222325u};
    check_pixels(e, c);
    mini_init(&m, e);
    m.after_step = after_step;
    m.arg = &k;
    struct mini_seq s = {.prompt = c->prompt,
                         .prompt_count = c->prompt_count,
                         .generate = c->greedy_count + 1,
                         .images = c->images,
                         .image_count = c->image_count,
                         .sampling = mini_greedy(),
                         .forced = c->greedy,
                         .chunk = CHUNK};
    mini_run_parts(&m, &s, LOGIT_ROWS_MAX, &k.first, &k.end);
    bool ids = mean > 0 || greedy_equal(c, &s, f32);
    if (c->bf16_delta) {
        k.low_max = (double)c->bf16_delta[0];
        k.low_sum = (double)c->bf16_delta[1] * (double)k.count;
    }
    printf("  %-26s %-9s %s max |delta| %.2e mean %.2e, of tokens that stand there %.2e", c->name, set,
           f32 ? "f32 " : "bf16", k.max, k.sum / (double)k.count, k.said_max);
    if (c->logprobs_bf16)
        printf("   (transformers bf16: max %.2e mean %.2e)", k.low_max, k.low_sum / (double)k.count);
    printf(", bits %016" PRIx64 "\n", k.bits);
    assert_int_equal(k.rows, c->prompt_count + c->greedy_count);
    assert_int_equal(k.whole_rows, c->row_count);
    bool close =
        f32 ? k.max <= F32_LIMIT : k.said_max <= BF16_LIMIT && k.max <= k.low_max && k.sum <= k.low_sum;
    if (mean > 0) close = k.sum / (double)k.count <= mean;
    if (!close) printf("    FAIL: over the limit, worst at row %u\n", k.worst_row);
    if (!ids) printf("    FAIL: greedy ids differ\n");
    mini_drop(&m, &s);
    mini_fini(&m);
    return close && ids;
}

static uint32_t run_variant(const char *family, const char *variant, const char *set)
{
    struct engine *e;
    struct golden g;
    struct err err;
    char dir[600];
    bool low = strstr(variant, "_bf16") != NULL;
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = 2,
                                 .kv_bytes = 8u << 20,
                                 .batch_tokens_max = 256,
                                 .sequences_max = 4,
                                 .own_drafter = true,
                                 .dtype = strstr(variant, "_f16") ? DTYPE_F32 : DTYPE_AUTO};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    assert_int_equal(e->net.inventory.ignored, 0); /* what transformers saved is used to the last tensor */
    assert_string_equal(engine_model(e)->dtype, low ? "bf16" : "f32");
    golden_open(&g, family, variant, engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < g.case_count; i++) failed += !run_case(e, &g.cases[i], !low, 0, set);
    golden_close(&g);
    engine_close(e);
    return failed;
}

/* Returns how many variants failed. */
static uint32_t run_family(const char *family, const char variants[][64], uint32_t n)
{
    uint32_t failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!selects_variant(variants[i])) continue;
        for (size_t k = 0; k < TEST_SETS; k++)
            if (test_takes(i, k) && selects_kernels(SETS[k]))
                failed += run_variant(family, variants[i], SETS[k]);
    }
    return failed;
}

/* Every folder of tests/golden that holds checkpoints. */
static void test_families(void **state)
{
    char names[64][64], variants[64][64];
    uint32_t n = golden_families(names, 64), found = 0, failed = 0;
    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = golden_variants(names[i], variants, 64);
        failed += run_family(names[i], (const char(*)[64])variants, count);
        found += count > 0;
    }
    assert_true(found >= 2);
    assert_int_equal(failed, 0);
}

/* What integers instead of floats cost small random models: at most 0.13 (where a router chooses otherwise)
 * and 0.6 were seen; keys and values as int8 0.025. */
#define MEAN_LIMIT_INT8    0.15
#define MEAN_LIMIT_INT4    0.8
#define MEAN_LIMIT_KV_INT8 0.04

static uint32_t run_integers(struct engine_options opt, const char *family, const char *variant, double mean,
                             const char *set)
{
    struct engine *e;
    struct golden g;
    struct err err;
    opt.backend = test_engine_backend(set);
    opt.kernels = test_engine_kernels(set);
    opt.threads = 2;
    opt.kv_bytes = 8u << 20;
    opt.batch_tokens_max = 256;
    opt.sequences_max = 4;
    opt.dtype = DTYPE_F32;
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    golden_open(&g, family, variant, engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < g.case_count; i++) failed += !run_case(e, &g.cases[i], true, mean, set);
    golden_close(&g);
    engine_close(e);
    return failed;
}

/* GGUF files of golden checkpoints (Q8_0; towers, too), and the checkpoints quantised at load;
 * and keys and values in 8 bits. */
static void test_integers(void **state)
{
    static const struct {
        const char *file, *family, *variant;
        bool tower;
    } all[] = {{"gemma3", "gemma3", "window_small_f32", true},
               {"qwen2_vl", "qwen", "qwen2_vl_f32", true},
               {"qwen2_5_vl", "qwen", "qwen2_5_vl_f32", true},
               {"qwen3_vl", "qwen", "qwen3_vl_f32", true},
               {"qwen2_moe", "qwen", "qwen2_moe_f32", false},
               {"qwen3_moe", "qwen", "qwen3_moe_f32", false},
               {"gemma4_moe", "gemma4", "moe_released_f32", false},
               {"qwen3_5", "qwen", "qwen3_5_text_f32", false},
               {"qwen3_5_moe", "qwen", "qwen3_5_moe_f32", true},
               {"gemma4", "gemma4", "e4b_released_f32", false},
               {"llama", "llama", "llama_gguf_f32", false},
               {"llama_odd", "llama", "llama_odd_f32", false},
               {"olmo3", "llama", "olmo3_odd_f32", false},
               {"exaone4", "llama", "exaone4_odd_f32", false},
               {"ernie4_5", "llama", "ernie4_5_odd_f32", false},
               {"smollm3", "llama", "smollm3_f32", false},
               {"granite", "llama", "granite_f32", false},
               {"lfm2", "llama", "lfm2_odd_f32", false},
               {"idefics3", "tiles", "idefics3_f32", true},
               {"internvl", "tiles", "internvl_f32", true},
               {"lfm2_vl", "tiles", "lfm2_vl_gguf_f32", true},
               {"mistral3", "native", "mistral3_gguf_f32", true},
               {"lighton_ocr", "native", "lighton_ocr_f32", true},
               {"paddleocr_vl", "native", "paddleocr_vl_f32", true},
               {"glm4v", "native", "glm4v_f32", true},
               {"glm_ocr", "native", "glm_ocr_f32", true},
               {"minicpmv4_6", "tiles", "minicpmv4_6_f32", true}};
    uint32_t failed = 0;
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < TEST_SETS; k++) {
            char file[700], tower[700], dir[600];
            if (!selects_variant(all[i].variant) || !test_takes(i, k) || !selects_kernels(SETS[k])) continue;
            snprintf(file, sizeof file, "%s/tests/golden/gguf/%s.gguf", golden_root(), all[i].file);
            snprintf(tower, sizeof tower, "%s/tests/golden/gguf/%s-mmproj.gguf", golden_root(), all[i].file);
            golden_dir(dir, sizeof dir, all[i].family, all[i].variant);
            struct engine_options gguf = {.model_dir = file, .mmproj = all[i].tower ? tower : NULL},
                                  int8 = {.model_dir = dir, .quantize = QUANTIZE_INT8},
                                  int4 = {.model_dir = dir, .quantize = QUANTIZE_INT4},
                                  kv_int8 = {.model_dir = dir, .kv_dtype = KV_DTYPE_INT8};
            /* The device makes floats of all of them: one file shows that it can. */
            if (!BACKEND_ON_CPU && i > 0) continue;
            printf("%s as GGUF, int8, int4, KV in int8\n", all[i].file);
            failed += run_integers(gguf, all[i].family, all[i].variant, MEAN_LIMIT_INT8, SETS[k]);
            if (!BACKEND_ON_CPU) continue;
            failed += run_integers(int8, all[i].family, all[i].variant, MEAN_LIMIT_INT8, SETS[k]);
            failed += run_integers(int4, all[i].family, all[i].variant, MEAN_LIMIT_INT4, SETS[k]);
            failed += run_integers(kv_int8, all[i].family, all[i].variant, MEAN_LIMIT_KV_INT8, SETS[k]);
        }
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families), cmocka_unit_test(test_integers)};
    return selectors_end(cmocka_run_group_tests_name("engine_golden", tests, NULL, NULL));
}

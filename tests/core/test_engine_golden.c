/* The engine against transformers: every variant of tests/golden/gemma3, every kernel set of this CPU. Log-probs of the whole
 * vocabulary at every position of the prompt and of 32 greedy tokens; greedy ids; pixel tensors. Limits: f32   max |delta| over
 * the whole vocabulary <= 1e-4, greedy ids equal bf16  against the float32 run of the same weights: the log-prob of the token
 * that stands at each position, and of the most likely one, <= 3e-2; over the whole vocabulary mean and max no larger than those
 * of transformers' own bf16 run (rounding the inputs of the products, queries, keys and values to bf16 costs up to 4.4e-2 for the
 * most unlikely tokens, whoever does it); greedy ids equal but for a near-tie, which is printed */
#include "engine/engine_internal.h"
#include "engine/image_prep.h"
#include "tests/lib/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define F32_LIMIT  1e-4
#define BF16_LIMIT 3e-2
#define CHUNK                                                                                                                    \
    40u /* a chunk and a picture together have at most LOGIT_ROWS_MAX rows, so that all logits of a step can be looked at */

static const char *const SETS[] = {"reference", "avx2", "avx512", "amx"};

struct compare {
    struct engine *e;
    const struct golden_case *c;
    double max, sum, low_max, low_sum; /* low: transformers' bf16 run against its f32 run */
    double said_max;                   /* of the token that follows and the most likely one */
    uint64_t count;
    uint32_t worst_row, rows;
};

/* Reads the logits that the step left in the engine's scratch. */
static void after_step(void *arg, const struct engine_batch *b)
{
    struct compare *k = arg;
    const struct engine *e = k->e;
    assert_int_equal(b->run_count, 1);
    assert_true(e->step.wanted_count <= LOGIT_ROWS_MAX);
    for (uint32_t i = 0; i < e->step.wanted_count; i++) {
        uint32_t row = e->wanted[i].next - 1;
        if (row >= k->c->prompt_count + k->c->greedy_count) continue;
        const float *logits = e->s.logits + (size_t)i * k->c->vocab, *want = k->c->logprobs + (size_t)row * k->c->vocab;
        uint32_t best = 0, follows = row + 1 < k->c->prompt_count ? k->c->prompt[row + 1]
                                     : row + 1 < k->c->prompt_count + k->c->greedy_count
                                         ? k->c->greedy[row + 1 - k->c->prompt_count]
                                         : UINT32_MAX;
        for (uint32_t v = 1; v < k->c->vocab; v++)
            if (want[v] > want[best]) best = v;
        for (uint32_t v = 0; v < k->c->vocab; v++) {
            double delta = fabs((double)(logits[v] - e->s.stats[i].lse) - (double)want[v]);
            if (!(delta <= k->max)) {
                k->max = delta;
                k->worst_row = row;
            }
            k->sum += delta;
            if ((v == best || v == follows) && !(delta <= k->said_max)) k->said_max = delta;
            if (k->c->logprobs_bf16) {
                double low = fabs((double)k->c->logprobs_bf16[(size_t)row * k->c->vocab + v] - (double)want[v]);
                k->low_sum += low;
                if (low > k->low_max) k->low_max = low;
            }
            k->count++;
        }
        k->rows++;
    }
}

static void check_pixels(const struct engine *e, const struct golden_case *c)
{
    float lut[3 * 256];
    if (!c->image_count) return;
    image_lut(&e->info.image.config, lut);
    for (uint32_t i = 0; i < c->image_count; i++) {
        const struct image_u8 *p = &c->images[i].pixels;
        size_t n = (size_t)p->width * p->height * 3;
        float *chw = malloc(n * sizeof *chw);
        image_to_chw(p, lut, chw);
        double worst = 0;
        for (size_t k = 0; k < n; k++) worst = fmax(worst, fabs((double)(chw[k] - c->pixel_values[i][k])));
        free(chw);
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
        printf("    %s: token %u is %u, transformers drew %u; its two best lie %.4f apart\n", c->name, i, got, c->greedy[i], gap);
        if (exact || gap > 2 * BF16_LIMIT) ok = false;
    }
    return ok;
}

/* Returns false, after saying why, when a limit is broken: the other cases still run. */
static bool run_case(struct engine *e, const struct golden_case *c, bool f32, const char *set)
{

    struct mini_sched m;
    struct compare k = {.e = e, .c = c};
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
    mini_run(&m, (struct mini_seq *[]){&s}, 1);
    bool ids = greedy_equal(c, &s, f32);
    printf("  %-26s %-9s %s max |delta| %.2e mean %.2e, of tokens that stand there %.2e", c->name, set, f32 ? "f32 " : "bf16",
           k.max, k.sum / (double)k.count, k.said_max);
    if (c->logprobs_bf16) printf("   (transformers bf16: max %.2e mean %.2e)", k.low_max, k.low_sum / (double)k.count);
    printf("\n");
    assert_int_equal(k.rows, c->prompt_count + c->greedy_count);
    bool close = f32 ? k.max <= F32_LIMIT : k.said_max <= BF16_LIMIT && k.max <= k.low_max && k.sum <= k.low_sum;
    if (!close) printf("    FAIL: over the limit, worst at row %u\n", k.worst_row);
    if (!ids) printf("    FAIL: greedy ids differ\n");
    mini_drop(&m, &s);
    mini_fini(&m);
    return close && ids;
}

static uint32_t run_variant(const char *variant, const char *set)
{
    struct engine *e;
    struct golden g;
    struct err err;
    char dir[600];
    bool low = strstr(variant, "_bf16") != NULL;
    golden_dir(dir, sizeof dir, "gemma3", variant);
    struct engine_options opt = {.model_dir = dir,
                                 .kernels = set,
                                 .threads = 2,
                                 .kv_bytes = 8u << 20,
                                 .batch_tokens_max = 256,
                                 .sequences_max = 4,
                                 .dtype = strstr(variant, "_f16") ? "f32" : "auto"};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    assert_string_equal(engine_model(e)->dtype, low ? "bf16" : "f32");
    golden_open(&g, "gemma3", variant, engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < g.case_count; i++) failed += !run_case(e, &g.cases[i], !low, set);
    golden_close(&g);
    engine_close(e);
    return failed;
}

static void test_golden(void **state)
{
    char names[64][64];
    const char *only = getenv("GOLDEN_VARIANT"), *set = getenv("GOLDEN_KERNELS");
    (void)state;
    uint32_t n = golden_variants("gemma3", names, 64), ran = 0, failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (only && strcmp(only, names[i]) != 0) continue;
        for (size_t k = 0; k < sizeof SETS / sizeof SETS[0]; k++)
            if (be_cpu_has(SETS[k]) && (!set || strcmp(set, SETS[k]) == 0)) {
                failed += run_variant(names[i], SETS[k]);
                ran++;
            }
    }
    assert_true(ran > 0);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests_name("engine_golden", tests, NULL, NULL);
}

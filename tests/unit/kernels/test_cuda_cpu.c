/* The same prompts on the CPU and on the device, in one process: whole golden checkpoints (prompt with its
 * images, then the 32 tokens of the golden run), log-probs of the whole vocabulary at every position. The
 * device against the CPU's plain C set and against its best one.
 *
 * f32: largest |delta| <= 1e-4.
 *
 * bf16: sums in another order turn the rounding of some activation, and what follows is an independent draw
 * of the noise that rounding to bf16 makes: any two of {plain C, AMX, device, transformers} lie as far from
 * each other as each lies from the float32 run, in these random checkpoints up to 6e-2 for single tokens. So
 * what is held is the distribution: 98 % of all log-probs are within 2e-2; the device is no further from a
 * CPU set than the two CPU sets are from each other, and no further from transformers' float32 run than they
 * are (means, 1.2x). A rounding too many or in another place shows in both means.
 *
 * The device is the emulated one where that is linked in, else a real one with --backend cuda; without either
 * there is nothing to run. KVASIR_TEST_SHORT: fewer checkpoints; GOLDEN_VARIANT: those whose name holds this.
 */
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
#include <cmocka.h>

#undef be_cpu_has /* both are in this process: what the CPU has */

#define F32_LIMIT  1e-4
#define BF16_LIMIT 2e-2
#define BF16_SHARE 0.02 /* of the log-probs may lie beyond it */
#define MEAN_RATIO 1.2
#define CHUNK      40u /* with an image at most LOGIT_ROWS_MAX rows: all logits of a step can be looked at */
#define CASES_MAX  16u

/* Log-probs of one engine for all cases of a checkpoint. */
struct scores {
    uint32_t cases, rows[CASES_MAX], vocab;
    float *lp[CASES_MAX];            /* [rows, vocab] */
    uint32_t *follows[CASES_MAX];    /* [rows] the token behind each; UINT32_MAX behind the last */
    double golden_sum, golden_count; /* |delta| to transformers' float32 run, where that is stored */
};
struct collect {
    const struct engine *e;
    const struct golden_case *c;
    float *lp;
    uint32_t seen, first, end; /* rows [first, end) are looked at */
};

static void after_step(void *arg, const struct engine_batch *b)
{
    struct collect *k = arg;
    const struct engine *e = k->e;
    uint32_t n = e->step.output_count, vocab = k->c->vocab, total = k->c->prompt_count + k->c->greedy_count;
    (void)b;
    assert_true(n <= LOGIT_ROWS_MAX);
    float *logits = malloc((size_t)n * vocab * sizeof *logits + 1);
    struct be_logit_stats *stats = malloc(n * sizeof *stats + 1);
    assert_true(logits && stats);
    e->ops->download(e->be, logits, e->net.s.logits, (size_t)n * vocab * sizeof *logits);
    e->ops->download(e->be, stats, e->net.s.stats, n * sizeof *stats);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = e->output_rows[i].next - 1;
        if (row >= total || row < k->first || row >= k->end) continue;
        for (uint32_t v = 0; v < vocab; v++)
            k->lp[(size_t)row * vocab + v] = logits[(size_t)i * vocab + v] - stats[i].lse;
        k->seen++;
    }
    free(logits);
    free(stats);
}

static float *run_case(struct engine *e, const struct golden_case *c)
{
    struct mini_sched m;
    uint32_t total = c->prompt_count + c->greedy_count;
    struct collect k = {.e = e, .c = c, .lp = malloc((size_t)total * c->vocab * sizeof *k.lp)};
    assert_non_null(k.lp);
    for (size_t i = 0; i < (size_t)total * c->vocab; i++) k.lp[i] = NAN;
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
    assert_int_equal(k.seen, total);
    mini_drop(&m, &s);
    mini_fini(&m);
    return k.lp;
}

/* What follows each row, and how far the scores lie from the golden run. */
static void add_truth(struct scores *s, uint32_t i, const struct golden_case *c)
{
    s->follows[i] = malloc(s->rows[i] * sizeof *s->follows[i]);
    assert_non_null(s->follows[i]);
    for (uint32_t row = 0; row < s->rows[i]; row++) {
        const float *want = golden_row(c, c->logprobs, row);
        uint32_t next = row + 1;
        s->follows[i][row] = next < c->prompt_count ? c->prompt[next]
                             : next < s->rows[i]    ? c->greedy[next - c->prompt_count]
                                                    : UINT32_MAX;
        for (uint32_t v = 0; want && v < s->vocab; v++) {
            s->golden_sum += fabs((double)s->lp[i][(size_t)row * s->vocab + v] - (double)want[v]);
            s->golden_count++;
        }
    }
}

static void scores_take(struct scores *s, const char *family, const char *variant, const char *set)
{
    struct engine *e;
    struct golden g;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = 1,
                                 .kv_bytes = 8u << 20,
                                 .batch_tokens_max = 256,
                                 .sequences_max = 4,
                                 .dtype = strstr(variant, "_f16") ? DTYPE_F32 : DTYPE_AUTO};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    golden_open(&g, family, variant, engine_model(e)->image.present ? &engine_model(e)->image.config : NULL);
    assert_true(g.case_count <= CASES_MAX);
    *s = (struct scores){.cases = g.case_count, .vocab = g.cases[0].vocab};
    for (uint32_t i = 0; i < g.case_count; i++) {
        s->rows[i] = g.cases[i].prompt_count + g.cases[i].greedy_count;
        s->lp[i] = run_case(e, &g.cases[i]);
        add_truth(s, i, &g.cases[i]);
    }
    golden_close(&g);
    engine_close(e);
}

static void scores_free(struct scores *s)
{
    for (uint32_t i = 0; i < s->cases; i++) {
        free(s->lp[i]);
        free(s->follows[i]);
    }
}

/* |delta| over all cases and rows; NaN counts as infinite. */
struct delta {
    double all,
        said; /* largest: of the whole vocabulary; of the token that follows and the most likely one */
    double mean;
    double far; /* share beyond BF16_LIMIT */
};
static struct delta scores_delta(const struct scores *a, const struct scores *b)
{
    struct delta d = {0};
    double n = 0;
    assert_int_equal(a->cases, b->cases);
    assert_int_equal(a->vocab, b->vocab);
    for (uint32_t i = 0; i < a->cases; i++) {
        assert_int_equal(a->rows[i], b->rows[i]);
        for (uint32_t row = 0; row < a->rows[i]; row++) {
            const float *x = a->lp[i] + (size_t)row * a->vocab, *y = b->lp[i] + (size_t)row * a->vocab;
            uint32_t best = 0;
            for (uint32_t v = 1; v < a->vocab; v++)
                if (x[v] > x[best]) best = v;
            for (uint32_t v = 0; v < a->vocab; v++) {
                double e = fabs((double)x[v] - (double)y[v]);
                if (isnan(e)) e = INFINITY;
                d.all = fmax(d.all, e);
                if (v == best || v == a->follows[i][row]) d.said = fmax(d.said, e);
                d.mean += e;
                d.far += e > BF16_LIMIT;
                n++;
            }
        }
    }
    d.mean /= n;
    d.far /= n;
    return d;
}

static const char *best_set(void)
{
    static const char *const sets[] = {"amx", "avx512", "avx2", "neon"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (be_cpu_has(sets[i])) return sets[i];
    return "reference";
}

static bool bf16_close(const struct delta *d, const struct delta *between)
{
    return d->far <= BF16_SHARE && (between->mean == 0 || d->mean <= MEAN_RATIO * between->mean);
}

static bool check_variant(const char *family, const char *variant)
{
    bool f32 = !strstr(variant, "_bf16"), ok = true;
    const char *sets[] = {"reference", best_set(), "cuda"};
    struct scores got[3];
    double truth[3]; /* mean |delta| to the float32 run */
    for (size_t i = 0; i < 3; i++) {
        scores_take(&got[i], family, variant, sets[i]);
        truth[i] = got[i].golden_count > 0 ? got[i].golden_sum / got[i].golden_count : 0;
    }
    const struct delta between = scores_delta(&got[0], &got[1]);
    for (size_t i = 0; i < 2; i++) {
        const struct delta d = scores_delta(&got[i], &got[2]);
        bool close = f32 ? d.all <= F32_LIMIT : bf16_close(&d, &between);
        printf("  %-22s %-9s to cuda: max |delta| %.2e mean %.2e, of tokens that stand there %.2e", variant,
               sets[i], d.all, d.mean, d.said);
        if (!f32) printf(", beyond 2e-2 %.3f %%", 100 * d.far);
        printf("%s\n", close ? "" : "  FAIL: over the limit");
        ok = ok && close;
    }
    if (!f32) {
        bool close = truth[2] <= MEAN_RATIO * fmax(truth[0], truth[1]);
        printf("  %-22s %-9s to %s: max %.2e mean %.2e; mean to float32: %s %.2e, %s %.2e, cuda %.2e%s\n", "",
               sets[0], sets[1], between.all, between.mean, sets[0], truth[0], sets[1], truth[1], truth[2],
               close ? "" : "  FAIL: over the limit");
        ok = ok && close;
    }
    fflush(stdout);
    for (size_t i = 0; i < 3; i++) scores_free(&got[i]);
    return ok;
}

/* `without`: a checkpoint whose two CPU sets are further apart than the limits allow any two; or NULL. */
static void check_family(const char *family, const char *const *quick, size_t quick_count,
                         const char *without)
{
    char names[64][64];
    const char *only = getenv("GOLDEN_VARIANT");
    uint32_t n = golden_variants(family, names, 64), failed = 0, chunk = 0;
    if (BACKEND_ON_CPU) skip();
    for (uint32_t i = 0; i < n; i++) {
        bool output_rows = !getenv("KVASIR_TEST_SHORT") || only;
        for (size_t k = 0; k < quick_count && !output_rows; k++)
            output_rows = strcmp(quick[k], names[i]) == 0;
        if (!output_rows || !selects_variant(names[i]) || (without && strcmp(names[i], without) == 0))
            continue;
        failed += !check_variant(family, names[i]);
        chunk++;
    }
    assert_true(chunk > 0 || only);
    assert_int_equal(failed, 0);
}

static void test_gemma3(void **state)
{
    static const char *const quick[] = {"vision_bf16", "text_f32"};
    (void)state;
    check_family("gemma3", quick, sizeof quick / sizeof *quick, NULL);
}

static void test_qwen(void **state)
{
    static const char *const quick[] = {"qwen2_5_vl_bf16", "qwen3_vl_f32", "qwen3_moe_bf16"};
    (void)state;
    check_family("qwen", quick, sizeof quick / sizeof *quick, NULL);
}

static void test_paligemma(void **state)
{
    static const char *const quick[] = {"pg1_f32", "pg2_bf16"};
    (void)state;
    /* Plain C to AVX-512: mean 6.6e-3; test_engine_golden holds each of them to transformers. */
    check_family("paligemma", quick, sizeof quick / sizeof *quick, "pg1_bf16");
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemma3), cmocka_unit_test(test_qwen),
                                       cmocka_unit_test(test_paligemma)};
    int failed = cmocka_run_group_tests_name("CUDA beside CPU", tests, NULL, NULL);
    return BACKEND_ON_CPU ? failed : selectors_end(failed);
}

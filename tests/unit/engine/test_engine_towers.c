/* Image towers in integers, on every golden checkpoint with images and on the GGUF towers (Q8_0): what they
 * cost an image's features and the log-probs of the tokens behind it, that slices and threads change nothing,
 * and that float_vision keeps every bit of the float tower. Prints the errors, against f32. */
#include "engine/internal.h"
#include "tests/lib/golden.h"
#include "tests/lib/selectors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* At most 0.009 off 1 was seen; rows that are misplaced or unscaled are far from it. */
#define COSINE_LEAST 0.99

struct result {
    float *rows, *scores; /* features of all images, one after another; log-probs of all tokens */
    size_t row_count, score_count;
    uint32_t width; /* of a row */
    uint64_t bytes; /* of the weights */
    char fingerprint[sizeof((struct model_info *)0)->fingerprint];
};

static void encode(struct engine *e, const struct image_u8 *pixels, uint32_t layers, struct result *r)
{
    struct engine_features *f;
    struct err err;
    bool done = false;
    if (engine_features_create(e, pixels, NULL, &f, &err)) fail_msg("%s", err.msg);
    while (!done)
        if (engine_features_step(e, f, layers, &done, &err)) fail_msg("%s", err.msg);
    r->width = e->net.desc.hidden;
    r->rows = realloc(r->rows, (r->row_count + f->tokens) * r->width * sizeof *r->rows);
    assert_non_null(r->rows);
    e->ops->download(e->be, r->rows + r->row_count * r->width, f->rows,
                     (size_t)f->tokens * r->width * sizeof *r->rows);
    r->row_count += f->tokens;
    engine_features_free(e, f);
}

static void score(struct engine *e, const struct golden_case *c, struct result *r)
{
    struct mini_sched m;
    uint32_t total = c->prompt_count + c->greedy_count;
    struct mini_seq s = {.prompt = c->prompt,
                         .prompt_count = c->prompt_count,
                         .generate = c->greedy_count,
                         .images = c->images,
                         .image_count = c->image_count,
                         .sampling = mini_greedy(),
                         .forced = c->greedy};
    mini_init(&m, e);
    mini_run(&m, (struct mini_seq *[]){&s}, 1);
    r->scores = realloc(r->scores, (r->score_count + total) * sizeof *r->scores);
    assert_non_null(r->scores);
    for (uint32_t i = 1; i < total; i++) r->scores[r->score_count++] = s.scores[i].logprob;
    mini_drop(&m, &s);
    mini_fini(&m);
}

/* layers: of a slice of an encode; not 0: features alone. */
static struct result run(struct engine_options opt, const char *family, const char *variant, uint32_t layers)
{
    struct result r = {0};
    struct golden g;
    struct engine *e;
    struct err err;
    opt.backend = BACKEND_CPU;
    if (!opt.threads) opt.threads = 2;
    opt.kv_bytes = 8u << 20;
    opt.batch_tokens_max = 256;
    opt.sequences_max = 4;
    if (!opt.dtype) opt.dtype = DTYPE_F32;
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    r.bytes = engine_model(e)->weight_bytes;
    strcpy(r.fingerprint, engine_model(e)->fingerprint);
    if (engine_model(e)->image.present) {
        golden_open(&g, family, variant, &engine_model(e)->image.config);
        for (uint32_t i = 0; i < g.case_count; i++) {
            for (uint32_t k = 0; k < g.cases[i].image_count; k++)
                encode(e, &g.cases[i].images[k].pixels, layers, &r);
            if (!layers && g.cases[i].image_count) score(e, &g.cases[i], &r);
        }
        golden_close(&g);
    }
    engine_close(e);
    return r;
}

static void drop(struct result *r)
{
    free(r->rows);
    free(r->scores);
}

static bool same_rows(const struct result *a, const struct result *b)
{
    assert_int_equal(a->row_count, b->row_count);
    return memcmp(a->rows, b->rows, a->row_count * a->width * sizeof *a->rows) == 0;
}

/* The lowest cosine of a row. *most: the largest difference, in root mean squares of the wanted features. */
static double cosine(const struct result *got, const struct result *want, double *most)
{
    double least = 1, square = 0;
    *most = 0;
    assert_int_equal(got->row_count, want->row_count);
    for (size_t i = 0; i < got->row_count; i++) {
        double ab = 0, aa = 0, bb = 0;
        for (uint32_t c = 0; c < got->width; c++) {
            double a = (double)got->rows[i * got->width + c], b = (double)want->rows[i * got->width + c];
            ab += a * b;
            aa += a * a;
            bb += b * b;
            *most = fmax(*most, fabs(a - b));
        }
        square += bb;
        least = fmin(least, ab / sqrt(aa * bb));
    }
    *most /= sqrt(square / (double)(got->row_count * got->width));
    return least;
}

static double mean_delta(const struct result *got, const struct result *want)
{
    double sum = 0;
    for (size_t i = 0; i < got->score_count; i++) sum += fabs((double)(got->scores[i] - want->scores[i]));
    return sum / (double)got->score_count;
}

static void check(const char *family, const char *variant)
{
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir};
    struct result f32 = run(opt, family, variant, 0);
    if (!f32.row_count) { /* no tower, or no images */
        drop(&f32);
        return;
    }
    opt.dtype = DTYPE_BF16;
    struct result bf16 = run(opt, family, variant, 0);
    opt.dtype = DTYPE_F32;
    opt.quantize = QUANTIZE_INT8;
    struct result int8 = run(opt, family, variant, 0), sliced = run(opt, family, variant, 1);
    opt.threads = 1;
    struct result alone = run(opt, family, variant, 2);
    opt.float_vision = true;
    struct result text = run(opt, family, variant, 0);
    double most, most_bf16, least = cosine(&int8, &f32, &most), least_bf16 = cosine(&bf16, &f32, &most_bf16);
    printf("| %s | %.5f, %.3f | %.5f, %.3f | %.4f | %.4f | %.4f |\n", variant, least_bf16, most_bf16, least,
           most, mean_delta(&bf16, &f32), mean_delta(&text, &f32), mean_delta(&int8, &f32));
    assert_true(least >= COSINE_LEAST);
    assert_true(same_rows(&text, &f32));
    assert_string_not_equal(text.fingerprint, int8.fingerprint);
    assert_true(same_rows(&sliced, &int8) && same_rows(&alone, &int8));
    /* a tower without layers has nothing but its embedding and projection */
    if (int8.bytes < text.bytes) assert_false(same_rows(&int8, &f32));
    struct result *all[] = {&f32, &bf16, &int8, &sliced, &alone, &text};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

static void test_golden(void **state)
{
    char names[64][64], variants[64][64];
    uint32_t n = golden_families(names, 64);
    (void)state;
    printf("| variant | features, bf16: cosine, max | int8: cosine, max | log-probs, bf16 | int8, float "
           "tower | int8 |\n");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = golden_variants(names[i], variants, 64);
        for (uint32_t k = 0; k < count; k++)
            if (strstr(variants[k], "_f32") && selects_variant(variants[k])) check(names[i], variants[k]);
    }
}

/* Q8_0 stays as it is in the file, and takes less memory than as floats. */
static void test_gguf(void **state)
{
    static const struct {
        const char *file, *family, *variant;
    } all[] = {{"qwen2_vl", "qwen", "qwen2_vl_f32"},
               {"qwen2_5_vl", "qwen", "qwen2_5_vl_f32"},
               {"qwen3_vl", "qwen", "qwen3_vl_f32"}};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char file[700], tower[700], dir[600];
        double most;
        if (!selects_variant(all[i].variant)) continue;
        snprintf(file, sizeof file, "%s/tests/golden/gguf/%s.gguf", golden_root(), all[i].file);
        snprintf(tower, sizeof tower, "%s/tests/golden/gguf/%s-mmproj.gguf", golden_root(), all[i].file);
        golden_dir(dir, sizeof dir, all[i].family, all[i].variant);
        struct engine_options opt = {.model_dir = file, .mmproj = tower}, plain = {.model_dir = dir};
        struct result f32 = run(plain, all[i].family, all[i].variant, 0),
                      kept = run(opt, all[i].family, all[i].variant, 0);
        opt.float_vision = true;
        struct result wide = run(opt, all[i].family, all[i].variant, 0);
        printf("| %s as GGUF | cosine %.5f |\n", all[i].file, cosine(&kept, &f32, &most));
        assert_true(cosine(&kept, &f32, &most) >= COSINE_LEAST);
        assert_true(kept.bytes < wide.bytes);
        assert_false(same_rows(&kept, &wide));
        drop(&f32);
        drop(&kept);
        drop(&wide);
    }
}

/* `kvasir bench --vision` counts the arithmetic that a profile sees the tower do: mergers of one product and
 * of two, a class row. */
static void test_costs(void **state)
{
    static const char *const variants[] = {"smolvlm_f32", "internvl_f32"};
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (!selects_variant(variants[i])) continue;
        char dir[600];
        golden_dir(dir, sizeof dir, "tiles", variants[i]);
        struct engine_options opt = {
            .model_dir = dir, .backend = BACKEND_CPU, .threads = 2, .kv_bytes = 8u << 20, .profile = true};
        struct engine_profile_part parts[ENGINE_PROFILE_PARTS];
        struct engine_costs costs;
        struct result r = {0};
        struct engine *e;
        struct err err;
        double seen = 0;
        if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
        assert_int_equal(engine_costs(e, &costs, &err), ST_OK);
        assert_int_equal(engine_profile_start(e, &err), ST_OK);
        uint32_t side = costs.vision_side;
        struct image_u8 image = {.width = side, .height = side, .rgb = calloc((size_t)side * side, 3)};
        encode(e, &image, 0, &r);
        engine_profile_read(e, parts);
        for (uint32_t p = 0; p < ENGINE_PROFILE_PARTS; p++) seen += parts[p].flops;
        if (fabs(seen / costs.vision_flops - 1) > 1e-6)
            fail_msg("%s: %.0f are counted, %.0f are seen", variants[i], costs.vision_flops, seen);
        free(image.rgb);
        drop(&r);
        engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_gguf),
                                       cmocka_unit_test(test_costs)};
    return selectors_end(cmocka_run_group_tests_name("engine_towers", tests, NULL, NULL));
}

/* cuBLASLt's products: which weight shapes it serves, that a row's bits depend on that row alone, and that
 * shapes without an invariant algorithm are served by our kernels. Without a device there is nothing to
 * run. */
#include "kernels/backend.h"
#include "kernels/cuda_loader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* emu_api.h, which is C++ */
void cuemu_lt_only_varying(int on) __attribute__((weak));
enum { FAIL_MALLOC = 0 };
void cuemu_fail_at(int kind, unsigned long nth, int error, int sticky) __attribute__((weak));

enum { K = 320, N = 192, ROWS = 1100 };

static const struct be_ops *ops;

struct product {
    struct backend *b;
    struct be_weight *w;
    void *x, *out;
    enum be_epilogue epilogue;
};

static const char *gemm_of(struct backend *b)
{
    struct be_caps caps;
    ops->caps(b, &caps);
    return caps.gemm;
}

static void product_open(struct product *p, bool own, enum be_epilogue epilogue, bool bias)
{
    const struct be_params params = {.act = BE_BF16, .own_gemm = own};
    static float w[2 * N * K];
    static uint16_t x[ROWS * K];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        w[i] = (float)((seed = seed * 1664525 + 1013904223) >> 8) / 0x1p24f - 0.5f;
    for (size_t i = 0; i < ROWS * K; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (uint16_t)((seed >> 31) << 15 | (0x3c00 + (seed >> 8) % 0x380));
    }
    *p = (struct product){.epilogue = epilogue};
    bool glu = epilogue >= BE_EPI_GLU_GELU_TANH;
    struct be_weight_desc d = {.k = K, .src_count = glu ? 2 : 1, .glu = glu, .bias = bias ? w + 5 : NULL};
    for (uint32_t i = 0; i < d.src_count; i++)
        d.src[i] = (struct be_weight_src){.data = w + i * N * K, .n = N};
    assert_int_equal(ops->open(&params, &p->b), BE_OK);
    assert_int_equal(ops->weight_pack(p->b, &d, &p->w), BE_OK);
    assert_int_equal(ops->alloc(p->b, sizeof x, &p->x), BE_OK);
    assert_int_equal(ops->alloc(p->b, (size_t)ROWS * N * 4, &p->out), BE_OK);
    ops->upload(p->b, p->x, x, sizeof x);
}
static void product_close(struct product *p)
{
    ops->free(p->b, p->x);
    ops->free(p->b, p->out);
    ops->weight_free(p->b, p->w);
    ops->close(p->b);
}
/* As kvasir inspect: a weight without data, for what caps.gemm then says of it. */
static void check(struct backend *b, uint32_t k, uint32_t n)
{
    struct be_weight *w = NULL;
    struct be_weight_desc d = {.k = k, .src_count = 1, .src = {{.n = n}}};
    assert_int_equal(ops->weight_pack(b, &d, &w), BE_OK);
    ops->weight_free(b, w);
}
/* Rows [at, at + t) of x. */
static void multiply(const struct product *p, uint32_t at, uint32_t t, unsigned char *out)
{
    size_t row = N * (p->epilogue <= BE_EPI_ADD_F32 ? 4 : 2);
    ops->zero(p->b, p->out, t * row); /* the residual of BE_EPI_ADD_F32 */
    ops->linear(p->b, &(struct be_linear_args){.w = p->w,
                                               .x = (char *)p->x + (size_t)at * K * 2,
                                               .t = t,
                                               .epilogue = p->epilogue,
                                               .out = p->out});
    assert_int_equal(ops->sync(p->b), BE_OK);
    ops->download(p->b, out, p->out, t * row);
}

static unsigned char all[ROWS * N * 4], part[ROWS * N * 4];

static void test_rows_alone_and_among_others(void **state)
{
    (void)state;
    static const enum be_epilogue epilogues[] = {BE_EPI_F32, BE_EPI_ADD_F32, BE_EPI_GELU_TANH,
                                                 BE_EPI_GLU_SILU};
    static const uint32_t counts[] = {1, 2, 8, 16, 17, 65, 128, 129, 514, 768, 1000};
    for (size_t e = 0; e < 8; e++) {
        struct product p;
        product_open(&p, false, epilogues[e / 2], e % 2);
        assert_non_null(strstr(gemm_of(p.b), ", 1 weight shapes, "));
        size_t row = N * (p.epilogue <= BE_EPI_ADD_F32 ? 4 : 2);
        multiply(&p, 0, ROWS, all);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (uint32_t at = 0; at + counts[i] <= ROWS; at += 1 + ROWS / 3) {
                multiply(&p, at, counts[i], part);
                assert_memory_equal(part, all + at * row, counts[i] * row);
            }
        product_close(&p);
    }
}

static void test_says_who_serves(void **state)
{
    (void)state;
    struct product p;
    static float zeros[64 * 70];
    struct be_weight *w = NULL, *odd = NULL;
    char before[512];
    product_open(&p, false, BE_EPI_F32, false);
    printf("%s\n", gemm_of(p.b));
    snprintf(before, sizeof before, "%s", gemm_of(p.b));
    struct be_weight_desc d = {.k = 64, .src_count = 1, .grouped = true, .src = {{zeros, BE_F32, false, 64}}};
    assert_int_equal(ops->weight_pack(p.b, &d, &w), BE_OK);
    assert_string_equal(gemm_of(p.b), before); /* an expert's weight: cuBLASLt has no part in it */
    d = (struct be_weight_desc){.k = 64, .src_count = 1, .src = {{zeros, BE_F32, false, 70}}};
    check(p.b, 64, 70);
    assert_non_null(strstr(gemm_of(p.b), "own kernels, 1: 70x64 (rows not of 16 bytes)"));
    assert_int_equal(ops->weight_pack(p.b, &d, &odd), BE_OK);
    assert_non_null(strstr(gemm_of(p.b), "own kernels, 1:"));
    ops->weight_free(p.b, w);
    ops->weight_free(p.b, odd);
    product_close(&p);
    product_open(&p, false, BE_EPI_F32, false); /* the same again: the same bits */
    assert_string_equal(gemm_of(p.b), before);
    product_close(&p);
    product_open(&p, true, BE_EPI_F32, false);
    assert_string_equal(gemm_of(p.b), "own kernels");
    product_close(&p);
}

static void test_varying_algorithms_are_refused(void **state)
{
    (void)state;
    if (!cuemu_lt_only_varying) skip();
    struct product p;
    product_open(&p, true, BE_EPI_GLU_SILU, true);
    multiply(&p, 0, ROWS, all);
    product_close(&p);
    cuemu_lt_only_varying(1);
    product_open(&p, false, BE_EPI_GLU_SILU, true);
    cuemu_lt_only_varying(0);
    assert_non_null(strstr(gemm_of(p.b), ", 0 weight shapes, "));
    assert_non_null(strstr(gemm_of(p.b), "own kernels, 1: 384x320 (no invariant algorithm)"));
    multiply(&p, 0, ROWS, part);
    assert_memory_equal(part, all, ROWS * N * 2);
    product_close(&p);
}

/* A shape whose check finds no memory: our kernels, and all goes on. */
static void test_no_memory_for_a_check(void **state)
{
    (void)state;
    struct product p;
    if (!cuemu_fail_at) skip();
    product_open(&p, false, BE_EPI_F32, false);
    cuemu_fail_at(FAIL_MALLOC, 2, 2, 0); /* the weight's own is the first */
    check(p.b, 64, 64);
    cuemu_fail_at(FAIL_MALLOC, 0, 0, 0);
    assert_non_null(strstr(gemm_of(p.b), "own kernels, 1: 64x64 (no memory for its check)"));
    multiply(&p, 0, 9, part); /* checks the backend, too */
    product_close(&p);
}

/* What the library proposes for few rows of a long sum has other bits on the emulator, and is slow on a
 * device. */
static void test_long_sums(void **state)
{
    (void)state;
    struct product p;
    if (!cuemu_lt_only_varying) skip();
    product_open(&p, false, BE_EPI_F32, false);
    check(p.b, 2100, 16);
    assert_non_null(strstr(gemm_of(p.b), ", 2 weight shapes, 2 with the bits of own kernels, "));
    product_close(&p);
}

/* The Hopper path's self-check multiplies by our kernels, whoever serves the model's weights. */
static void test_beside_the_hopper_path(void **state)
{
    (void)state;
    const struct be_params params = {.act = BE_BF16, .hopper = true};
    const char *cc = getenv("CUEMU_CC");
    struct be_caps caps;
    struct backend *b;
    assert_int_equal(ops->open(&params, &b), BE_OK);
    ops->caps(b, &caps);
    printf("%s\n", caps.name);
    if (strstr(caps.name, "-sm90") || (cc && strcmp(cc, "90") == 0))
        assert_non_null(strstr(caps.name, "-wgmma"));
    assert_non_null(strstr(caps.gemm, ", 0 weight shapes, ")); /* the check's is not the model's */
    ops->close(b);
}

int main(void)
{
    char why[512];
    ops = be_cuda_load(why, sizeof why);
    if (!ops) {
        printf("nothing to run: %s\n", why);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_alone_and_among_others),    cmocka_unit_test(test_says_who_serves),
        cmocka_unit_test(test_varying_algorithms_are_refused), cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_no_memory_for_a_check),          cmocka_unit_test(test_beside_the_hopper_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* linear, embed and weight packing: every kernel set that this CPU has against sums in double over the same
 * rounded inputs, and the rule that a row's bits depend on that row alone - not on how many rows, how they
 * were cut, or how many threads. */
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define sets backend_sets
#define SETS ((size_t)TEST_SETS)

/* ---- numbers */

static uint64_t rng_state = 1;
static float rnd(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(rng_state >> 33) / (float)(1u << 30) - 1.0f;
}
static float from_bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static float round_to(enum be_dtype act, float v)
{
    return act == BE_F32 ? v : from_bf16(to_bf16(v));
}
static float get(const void *p, enum be_dtype t, size_t i)
{
    return t == BE_F32 ? ((const float *)p)[i] : from_bf16(((const uint16_t *)p)[i]);
}
static void put(void *p, enum be_dtype t, size_t i, float v)
{
    if (t == BE_F32) {
        ((float *)p)[i] = v;
    } else {
        ((uint16_t *)p)[i] = to_bf16(v);
    }
}
static void *must(void *p)
{
    assert_non_null(p);
    return p;
}

/* ---- one case: a weight, its rows, and what should come out */

enum { GUARD = 256 }; /* bytes of sentinel before and after an output */

struct linear_case {
    uint32_t k, n; /* n of each part */
    uint32_t parts;
    uint32_t t;
    enum be_epilogue epilogue;
    bool bias, transposed;
    enum be_dtype src;
};

struct fixture {
    const struct linear_case *c;
    enum be_dtype act;
    uint32_t n_all, n_out; /* columns of the sums, of the output */
    size_t ld_out;
    bool f32_out;
    float *w;    /* [n_all, k], rounded to act */
    float *bias; /* [n_all] or NULL */
    void *x;     /* act [t, ld(k)], 64-byte aligned */
    float *res;  /* [t, n_all] what ADD adds to */
    void *src[3];
    const float *add; /* as in be_linear_args; NULL: none */
};

static bool is_glu(enum be_epilogue e)
{
    return e == BE_EPI_GLU_GELU_TANH || e == BE_EPI_GLU_SILU;
}

static void fixture_init(struct fixture *f, const struct linear_case *c, enum be_dtype act)
{
    *f = (struct fixture){.c = c, .act = act, .n_all = c->n * c->parts};
    f->n_out = is_glu(c->epilogue) ? c->n : f->n_all;
    f->f32_out = c->epilogue == BE_EPI_F32 || c->epilogue == BE_EPI_ADD_F32;
    f->ld_out = f->f32_out ? f->n_out : be_ld(f->n_out);
    rng_state = 77 + c->k * 31 + c->n;
    f->w = must(malloc(sizeof(float) * f->n_all * c->k));
    for (uint32_t p = 0; p < c->parts; p++) {
        f->src[p] = must(malloc((size_t)c->n * c->k * 4));
        for (uint32_t n = 0; n < c->n; n++) {
            for (uint32_t k = 0; k < c->k; k++) {
                float v = rnd();
                /* A source in f16 holds the value rounded to 8 bits, which both f16 and bf16 hold exactly. */
                if (c->src != BE_F32) v = from_bf16(to_bf16(v));
                if (c->src == BE_F16 && fabsf(v) < 0.01f) v = 0.25f;
                size_t at = c->transposed ? (size_t)k * c->n + n : (size_t)n * c->k + k;
                if (c->src == BE_F16) {
                    uint32_t u;
                    memcpy(&u, &v, 4);
                    ((uint16_t *)f->src[p])[at] =
                        (uint16_t)((u >> 16 & 0x8000) | ((u >> 13 & 0x3fc00) - 0x1c000) | (u >> 13 & 0x3ff));
                } else {
                    put(f->src[p], c->src, at, v);
                }
                f->w[(size_t)(p * c->n + n) * c->k + k] = round_to(act, v);
            }
        }
    }
    if (c->bias) {
        f->bias = must(malloc(sizeof(float) * f->n_all));
        for (uint32_t i = 0; i < f->n_all; i++) f->bias[i] = rnd();
    }
    f->x = must(aligned_alloc(64, (size_t)(c->t + 1) * be_ld(c->k) * 4));
    memset(f->x, 0, (size_t)(c->t + 1) * be_ld(c->k) * 4);
    f->res = must(malloc(sizeof(float) * ((size_t)c->t + 1) * f->n_all));
    for (uint32_t t = 0; t < c->t; t++) {
        for (uint32_t k = 0; k < c->k; k++) put(f->x, act, t * be_ld(c->k) + k, rnd());
        for (uint32_t n = 0; n < f->n_all; n++) f->res[(size_t)t * f->n_all + n] = rnd();
    }
}

static void fixture_fini(struct fixture *f)
{
    for (uint32_t p = 0; p < f->c->parts; p++) free(f->src[p]);
    free(f->w);
    free(f->bias);
    free(f->x);
    free(f->res);
}

static struct be_weight *pack(struct backend *b, const struct fixture *f)
{
    struct be_weight_desc d = {
        .k = f->c->k, .src_count = f->c->parts, .glu = is_glu(f->c->epilogue), .bias = f->bias};
    for (uint32_t p = 0; p < f->c->parts; p++)
        d.src[p] = (struct be_weight_src){f->src[p], f->c->src, f->c->transposed, f->c->n, NULL};
    struct be_weight *w = NULL;
    assert_int_equal(be_cpu_ops()->weight_pack(b, &d, &w), BE_OK);
    assert_true(be_cpu_ops()->weight_bytes(w) >= (size_t)f->n_all * f->c->k * be_dtype_bytes(f->act));
    return w;
}

/* Rows [first, first + t) into out (t rows), with sentinels checked. */
static void run(struct backend *b, const struct fixture *f, const struct be_weight *w, uint32_t first,
                uint32_t t, void *out)
{
    size_t row = f->ld_out * (f->f32_out ? 4 : be_dtype_bytes(f->act)), bytes = row * t;
    unsigned char *buf = must(aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64));
    memset(buf, 0xa5, bytes + 2 * GUARD);
    if (f->c->epilogue == BE_EPI_ADD_F32) memcpy(buf + GUARD, f->res + (size_t)first * f->n_all, bytes);
    const char *x = (const char *)f->x + first * be_ld(f->c->k) * be_dtype_bytes(f->act);
    struct be_linear_args a = {.w = w, .x = x, .t = t, .epilogue = f->c->epilogue, .out = buf + GUARD};
    if (f->add) a.add = f->add + (size_t)first * f->n_all;
    be_cpu_ops()->linear(b, &a);
    for (uint32_t i = 0; i < GUARD; i++) {
        assert_int_equal(buf[i], 0xa5);
        assert_int_equal(buf[GUARD + bytes + i], 0xa5);
    }
    if (bytes) memcpy(out, buf + GUARD, bytes);
    free(buf);
}

/* ---- the oracle */

struct sum {
    double v, err; /* value, and how far an f32 sum in any order may be from it */
};

/* An f32 sum of K products is off by at most about K half-units of the running sum; in practice by sqrt(K) of
 * them. The bound is (4 + K / 64) units of the sum of magnitudes, an eighth of the worst case for the K
 * tested. */
static struct sum dot(const struct fixture *f, uint32_t t, uint32_t col)
{
    double v = 0, mag = 0;
    for (uint32_t k = 0; k < f->c->k; k++) {
        double p =
            (double)get(f->x, f->act, t * be_ld(f->c->k) + k) * (double)f->w[(size_t)col * f->c->k + k];
        v += p;
        mag += fabs(p);
    }
    if (f->bias) v += (double)f->bias[col];
    return (struct sum){v, (mag + 1) * (4 + f->c->k / 64.0) * 0x1p-24};
}

/* The gate functions of the epilogues, far enough out without their cancellation. */
static double gate_value(enum be_epilogue e, double z)
{
    switch (e) {
    case BE_EPI_GLU_SILU: return z / (1 + exp(-z));
    case BE_EPI_QUICK_GELU: return z / (1 + exp(-1.702 * z));
    case BE_EPI_GELU_ERF: return 0.5 * z * erfc(-z * 0.70710678118654752440);
    default: return 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
    }
}

/* Slopes of all of them are below 1.13; the vector functions are good to a few units of 2^-22 of the result,
 * which is at most |z|. */
static struct sum gate(struct sum z, enum be_epilogue e)
{
    return (struct sum){gate_value(e, z.v), 1.13 * z.err + fabs(z.v) * 0x1p-21};
}

static struct sum expected(const struct fixture *f, uint32_t t, uint32_t col)
{
    struct sum s = dot(f, t, col), up;
    switch (f->c->epilogue) {
    case BE_EPI_ADD_F32: s.v += (double)f->res[(size_t)t * f->n_all + col]; break;
    case BE_EPI_GELU_TANH:
    case BE_EPI_GELU_ERF:
    case BE_EPI_QUICK_GELU: s = gate(s, f->c->epilogue); break;
    case BE_EPI_GLU_GELU_TANH:
    case BE_EPI_GLU_SILU:
        up = dot(f, t, f->c->n + col);
        s = gate(s, f->c->epilogue);
        s = (struct sum){s.v * up.v, s.err * fabs(up.v) + up.err * fabs(s.v) + s.err * up.err};
        break;
    case BE_EPI_F32:
    case BE_EPI_ACT: break;
    }
    /* A rounding of the result to f32, or to bf16 (8 bits: half a unit is at most 2^-8). */
    s.err += fabs(s.v) * (f->f32_out || f->act == BE_F32 ? 0x1p-23 : 0x1.01p-8) + 1e-30;
    return s;
}

static void check_values(const struct fixture *f, const void *out, const char *set)
{
    enum be_dtype type = f->f32_out ? BE_F32 : f->act;
    for (uint32_t t = 0; t < f->c->t; t++) {
        for (uint32_t i = 0; i < f->ld_out; i++) {
            double got = (double)get(out, type, t * f->ld_out + i);
            if (i >= f->n_out) {
                if (got != 0)
                    fail_msg("%s K=%u N=%u T=%u epilogue %d: padding [%u][%u] is %g", set, f->c->k, f->c->n,
                             f->c->t, (int)f->c->epilogue, t, i, got);
                continue;
            }
            struct sum want = expected(f, t, i);
            if (!(fabs(got - want.v) <= want.err))
                fail_msg("%s %s K=%u N=%u T=%u epilogue %d: [%u][%u] is %.9g, should be %.9g +- %.2g", set,
                         f->act == BE_F32 ? "f32" : "bf16", f->c->k, f->c->n, f->c->t, (int)f->c->epilogue, t,
                         i, got, want.v, want.err);
        }
    }
}

static struct backend *open_set(const char *set, enum be_dtype act, uint32_t threads)
{
    struct be_params p = {.act = act, .threads = threads, .kernels = set};
    struct backend *b = NULL;
    assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
    return b;
}

static const uint32_t row_counts[] = {0, 1, 2, 3, 15, 16, 17, 33, 64, 100};

/* The bias as a row of its own for each row (be_linear_args.add) gives the same bits; what is added to other
 * rows, and -0 with the bias, changes none. */
static void check_add(struct backend *b, struct fixture *f, const struct be_weight *w, const void *all,
                      size_t row)
{
    uint32_t t = f->c->t, n = f->n_all;
    float *add = must(malloc((size_t)t * n * sizeof *add + 1)), *bias = f->bias;
    unsigned char *out = must(malloc(row * t + 1));
    f->add = add;
    for (size_t i = 0; i < (size_t)t * n; i++) add[i] = i % 3 && i / n % 2 ? 1.0f : -0.0f;
    run(b, f, w, 0, t, out);
    for (uint32_t i = 0; i < t; i += 2) assert_memory_equal(out + i * row, (const char *)all + i * row, row);
    if (bias) {
        f->bias = NULL;
        struct be_weight *bare = pack(b, f);
        for (size_t i = 0; i < (size_t)t * n; i++) add[i] = bias[i % n];
        run(b, f, bare, 0, t, out);
        assert_memory_equal(out, all, row * t);
        be_cpu_ops()->weight_free(b, bare);
    }
    f->bias = bias;
    f->add = NULL;
    free(add);
    free(out);
}

static void check_case(const struct linear_case *c, enum be_dtype act, const char *set)
{
    struct fixture f;
    fixture_init(&f, c, act);
    struct backend *b = open_set(set, act, 2);
    struct be_weight *w = pack(b, &f);
    size_t row = f.ld_out * (f.f32_out ? 4 : be_dtype_bytes(act));
    unsigned char *all = must(malloc(row * c->t + 1)), *part = must(malloc(row * c->t + 1));
    run(b, &f, w, 0, c->t, all);
#ifndef __SANITIZE_THREAD__ /* of one thread, and slow there */
    check_values(&f, all, set);
#endif
    /* The first rows of every count, and single rows from the middle, have the bits that they have among all.
     */
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts && row_counts[i] <= c->t; i++) {
        run(b, &f, w, 0, row_counts[i], part);
        assert_memory_equal(part, all, row * row_counts[i]);
    }
    for (uint32_t t = 0; t < c->t; t += 1 + c->t / 7) {
        run(b, &f, w, t, 1, part);
        assert_memory_equal(part, all + t * row, row);
        uint32_t few = c->t - t < 19 ? c->t - t : 19;
        run(b, &f, w, t, few, part);
        assert_memory_equal(part, all + t * row, row * few);
    }
    if (c->epilogue > BE_EPI_ADD_F32) check_add(b, &f, w, all, row);
    be_cpu_ops()->weight_free(b, w);
    be_cpu_ops()->close(b);
    for (uint32_t threads = 1; threads <= (BACKEND_ON_CPU ? 3u : 1u); threads += 2) {
        b = open_set(set, act, threads);
        w = pack(b, &f);
        run(b, &f, w, 0, c->t, part);
        assert_memory_equal(part, all, row * c->t);
        be_cpu_ops()->weight_free(b, w);
        be_cpu_ops()->close(b);
    }
    free(all);
    free(part);
    fixture_fini(&f);
}

static const struct linear_case cases[] = {
    {1, 1, 1, 33, BE_EPI_F32, false, false, BE_F32},
    {24, 1, 1, 100, BE_EPI_ACT, true, false, BE_BF16},
    {24, 17, 3, 100, BE_EPI_F32, true, false, BE_F16},
    {24, 17, 2, 33, BE_EPI_GLU_GELU_TANH, true, false, BE_F32},
    {588, 17, 1, 100, BE_EPI_ADD_F32, true, false, BE_BF16},
    {588, 64, 1, 100, BE_EPI_GELU_TANH, true, false, BE_F32},
    {588, 70, 1, 100, BE_EPI_GELU_ERF, true, false, BE_F32},
    {96, 33, 1, 100, BE_EPI_QUICK_GELU, true, false, BE_BF16},
    {50, 7, 3, 33, BE_EPI_GELU_ERF, false, false, BE_F32},
    {50, 40, 1, 64, BE_EPI_QUICK_GELU, false, false, BE_F32},
    {588, 40, 1, 33, BE_EPI_F32, false, true, BE_BF16},
    {640, 640, 1, 100, BE_EPI_F32, false, false, BE_BF16},
    {640, 176, 2, 100, BE_EPI_GLU_GELU_TANH, false, false, BE_BF16},
    {640, 33, 2, 64, BE_EPI_GLU_SILU, false, false, BE_F32},
    {641, 96, 1, 17, BE_EPI_ACT, true, true, BE_F32},
    {1153, 50, 1, 70, BE_EPI_ADD_F32, false, false, BE_BF16},
    {2624, 70, 1, 300, BE_EPI_F32, true, false, BE_BF16}, /* rows too big for the cache: k in spans */
    {40, 33, 2, 1100, BE_EPI_GLU_GELU_TANH, false, false, BE_BF16}, /* several blocks of rows */
};

static void test_values_and_bits(void **state)
{
    (void)state;
    for (size_t s = 0; s < SETS; s++) {
        if (!be_cpu_has(sets[s])) continue;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            /* The access checker of the emulated device takes a second for a hundred thousand products. */
            double products = (double)cases[i].k * cases[i].n * cases[i].parts * cases[i].t;
            if (test_briefly() && products > (test_in_small() ? 1.1e6 : 5e6)) continue;
            check_case(&cases[i], BE_BF16, sets[s]);
            check_case(&cases[i], BE_F32, sets[s]);
        }
    }
}

/* Results of several megabytes leave the caches by another way (linear/amx.c): the same bits as those of few
 * rows. */
static void test_large_results(void **state)
{
    (void)state;
    static const struct linear_case large[] = {
        {96, 528, 1, 2140, BE_EPI_F32, true, false, BE_BF16},
        {96, 500, 1, 4510, BE_EPI_ACT, true, false, BE_BF16},
        {96, 528, 2, 4270, BE_EPI_GLU_SILU, false, false, BE_BF16},
        {96, 560, 2, 4000, BE_EPI_GLU_GELU_TANH, false, false, BE_BF16},
    };
    for (size_t s = 0; s < SETS && BACKEND_ON_CPU; s++) {
        if (!be_cpu_has(sets[s]) || strcmp(sets[s], "reference") == 0) continue;
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            struct fixture f;
            fixture_init(&f, &large[i], BE_BF16);
            struct backend *b = open_set(sets[s], BE_BF16, 2);
            struct be_weight *w = pack(b, &f);
            size_t row = f.ld_out * (f.f32_out ? 4 : 2);
            uint32_t rows = large[i].t;
            unsigned char *all = must(malloc(row * rows)), *part = must(malloc(row * rows));
            assert_true(row * rows > (size_t)4 << 20);
            run(b, &f, w, 0, rows, all);
            for (uint32_t t = 0; t < rows; t += 97) {
                uint32_t n = rows - t < 97 ? rows - t : 97;
                run(b, &f, w, t, n, part);
                assert_memory_equal(part, all + t * row, row * n);
            }
            be_cpu_ops()->weight_free(b, w);
            be_cpu_ops()->close(b);
            free(all);
            free(part);
            fixture_fini(&f);
        }
    }
}

/* A row with an infinity and a NaN spoils itself only, and never its padding. */
static void test_bad_row(void **state)
{
    (void)state;
    static const struct linear_case c = {640, 40, 1, 37, BE_EPI_ACT, true, false, BE_BF16};
    for (size_t s = 0; s < SETS; s++) {
        for (int act = BE_F32; be_cpu_has(sets[s]) && act <= BE_BF16; act++) {
            struct fixture f;
            fixture_init(&f, &c, (enum be_dtype)act);
            struct backend *b = open_set(sets[s], f.act, 2);
            struct be_weight *w = pack(b, &f);
            size_t row = f.ld_out * be_dtype_bytes(f.act);
            unsigned char *good = must(malloc(row * c.t)), *bad = must(malloc(row * c.t));
            run(b, &f, w, 0, c.t, good);
            put(f.x, f.act, 20 * be_ld(c.k) + 3, INFINITY);
            put(f.x, f.act, 20 * be_ld(c.k) + 600, -INFINITY);
            run(b, &f, w, 0, c.t, bad);
            assert_memory_equal(bad, good, row * 20);
            assert_memory_equal(bad + row * 21, good + row * 21, row * (c.t - 21));
            for (uint32_t i = 0; i < f.ld_out; i++) {
                float v = get(bad, f.act, 20 * f.ld_out + i);
                assert_true(i < c.n ? !isfinite(v) : v == 0);
            }
            free(good);
            free(bad);
            be_cpu_ops()->weight_free(b, w);
            be_cpu_ops()->close(b);
            fixture_fini(&f);
        }
    }
}

/* The gate functions over the whole range, one value per row through a 1 x 1 weight of one: finite, right, 0
 * or z far out. */
static void test_gate_range(void **state)
{
    (void)state;
    static const float far[] = {-3e38f, -1e20f, -200.f, -100.f, -88.f, -50.f, -20.f, -1e-20f,
                                0.f,    1e-20f, 20.f,   30.f,   88.f,  100.f, 3e38f};
    static const enum be_epilogue gates[] = {BE_EPI_GELU_TANH, BE_EPI_GELU_ERF, BE_EPI_QUICK_GELU};
    enum { FAR = sizeof far / sizeof *far, N = FAR + 4001 };
    float one = 1, *x = must(aligned_alloc(64, N * 32 * sizeof *x)),
          *out = must(aligned_alloc(64, N * 32 * sizeof *out)), *again = must(malloc(N * 32 * sizeof *again));
    memset(x, 0, N * 32 * sizeof *x);
    for (uint32_t i = 0; i < N; i++) x[i * 32] = i < FAR ? far[i] : (float)(i - FAR) * 0.00611f - 12.2f;
    for (size_t s = 0; s < SETS; s++) {
        if (!be_cpu_has(sets[s])) continue;
        struct backend *b = open_set(sets[s], BE_F32, 1);
        struct be_weight_desc d = {.k = 1, .src_count = 1, .src = {{&one, BE_F32, false, 1}}};
        struct be_weight *w = NULL;
        assert_int_equal(be_cpu_ops()->weight_pack(b, &d, &w), BE_OK);
        for (size_t g = 0; g < sizeof gates / sizeof *gates; g++) {
            struct be_linear_args a = {.w = w, .x = x, .t = N, .epilogue = gates[g], .out = out};
            be_cpu_ops()->linear(b, &a);
            for (uint32_t i = 0; i < N; i++) {
                double z = (double)x[i * 32], want = gate_value(gates[g], z), got = (double)out[i * 32];
                /* Relative to |z|, 2^-23 for erf (of which half is the product's own rounding; its polynomial
                 * is good to 4e-8), 1e-6 for the others, whose gates take an exponential of a rounded
                 * argument; far below zero the result is (nearly) zero. */
                double bound =
                    (gates[g] == BE_EPI_GELU_ERF ? 0x1p-23 : 1e-6) * fabs(z > 0 ? z : (z > -10 ? z : 1e-3));
                if (!(fabs(got - want) <= bound))
                    fail_msg("%s: gate %d of %.9g = %.9g, should be %.9g", sets[s], (int)gates[g], z, got,
                             want);
            }
            a.t = 1;
            for (uint32_t i = 0; i < N; i += 17) { /* a single row takes another way through the kernels */
                a.x = x + (size_t)i * 32;
                a.out = again + (size_t)i * 32;
                be_cpu_ops()->linear(b, &a);
                assert_memory_equal(again + (size_t)i * 32, out + (size_t)i * 32, 32 * sizeof *out);
            }
        }
        be_cpu_ops()->weight_free(b, w);
        be_cpu_ops()->close(b);
    }
    free(x);
    free(out);
    free(again);
}

static void test_embed(void **state)
{
    (void)state;
    enum { V = 100, C = 45 };
    static const uint32_t ids[] = {0, 99, 17, UINT32_MAX, 16, 15, 31, 32, 17, 50};
    enum { T = sizeof ids / sizeof *ids };
    float table[V * C], scale = 6.7082039f;
    for (int i = 0; i < V * C; i++) table[i] = rnd();
    for (size_t s = 0; s < SETS; s++) {
        for (int act = BE_F32; be_cpu_has(sets[s]) && act <= BE_BF16; act++) {
            struct backend *b = open_set(sets[s], (enum be_dtype)act, 2);
            struct be_weight_desc d = {.k = C, .src_count = 1, .src = {{table, BE_F32, false, V}}};
            struct be_weight *w = NULL;
            assert_int_equal(be_cpu_ops()->weight_pack(b, &d, &w), BE_OK);
            for (int round = 0; round < 2; round++) {
                float out[T * C + 1];
                for (int i = 0; i <= T * C; i++) out[i] = -77;
                struct be_embed_args a = {
                    .w = w, .ids = ids, .t = T, .scale = scale, .round_act = round, .out = out};
                be_cpu_ops()->embed(b, &a);
                assert_true(out[T * C] == -77);
                for (int i = 0; i < T * C; i++) {
                    if (ids[i / C] == UINT32_MAX) {
                        assert_true(out[i] == -77);
                        continue;
                    }
                    float want =
                        round_to((enum be_dtype)act, table[ids[i / C] * C + (uint32_t)(i % C)]) * scale;
                    if (round) want = round_to((enum be_dtype)act, want);
                    assert_true(out[i] == want); /* one product: exact */
                }
            }
            be_cpu_ops()->weight_free(b, w);
            be_cpu_ops()->close(b);
        }
    }
}

/* Weights that share their memory come and go in any order; those that stay are as they were. */
static void test_weights_come_and_go(void **state)
{
    (void)state;
    static const struct linear_case c = {640, 650, 1, 5, BE_EPI_F32, true, false, BE_BF16};
    enum { N = 6 };
    for (size_t s = 0; s < SETS; s++) {
        for (int act = BE_F32; be_cpu_has(sets[s]) && act <= BE_BF16; act++) {
            struct fixture f;
            fixture_init(&f, &c, (enum be_dtype)act);
            struct backend *b = open_set(sets[s], f.act, 2);
            size_t row = f.ld_out * 4;
            unsigned char *want = must(malloc(row * c.t)), *got = must(malloc(row * c.t));
            struct be_weight *w[N] = {NULL};
            rng_state = 5;
            for (int step = 0; step < (test_in_small()  ? 4
                                       : test_briefly() ? 8
                                       : BACKEND_ON_CPU ? 60
                                                        : 20);
                 step++) {
                uint32_t at = (uint32_t)((rnd() + 1) * N / 2) % N;
                if (w[at]) {
                    be_cpu_ops()->weight_free(b, w[at]);
                    w[at] = NULL;
                } else {
                    w[at] = pack(b, &f);
                }
                for (uint32_t i = 0; i < N; i++) {
                    if (!w[i]) continue;
                    run(b, &f, w[i], 0, c.t, step == 0 ? want : got);
                    if (step > 0) assert_memory_equal(got, want, row * c.t);
                }
            }
            check_values(&f, want, sets[s]);
            for (uint32_t i = 0; i < N; i++) be_cpu_ops()->weight_free(b, w[i]);
            be_cpu_ops()->close(b);
            free(want);
            free(got);
            fixture_fini(&f);
        }
    }
}

/* What can't be packed is refused with a reason. */
static void test_refusals(void **state)
{
    (void)state;
    struct backend *b = open_set("reference", BE_F32, 1);
    float data[64] = {0};
    struct be_weight *w = NULL;
    struct be_weight_desc bad[] = {
        {.k = 0, .src_count = 1, .src = {{data, BE_F32, false, 4}}},
        {.k = 4, .src_count = 0, .src = {{data, BE_F32, false, 4}}},
        {.k = 4, .src_count = 4, .src = {{data, BE_F32, false, 4}}},
        {.k = 4, .src_count = 1, .src = {{data, BE_F32, false, 0}}},
        {.k = 4, .src_count = 1, .src = {{NULL, BE_F32, false, 4}}},
        {.k = 4, .src_count = 1, .glu = true, .src = {{data, BE_F32, false, 4}}},
        {.k = 4, .src_count = 2, .glu = true, .src = {{data, BE_F32, false, 4}, {data, BE_F32, false, 3}}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(be_cpu_ops()->weight_pack(b, &bad[i], &w), BE_UNSUPPORTED);
        assert_null(w);
        assert_true(strlen(be_cpu_ops()->last_error(b)) > 0);
    }
    be_cpu_ops()->close(b);
    struct be_params p = {.act = BE_F32, .kernels = "no such set"};
    assert_int_equal(be_cpu_ops()->open(&p, &b), BE_UNSUPPORTED);
    assert_false(be_cpu_has("no such set"));
    assert_true(be_cpu_has("reference"));
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_bits), cmocka_unit_test(test_large_results),
        cmocka_unit_test(test_bad_row),         cmocka_unit_test(test_gate_range),
        cmocka_unit_test(test_embed),           cmocka_unit_test(test_weights_come_and_go),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("backend linear", tests, NULL, NULL);
}

/* route and experts: every kernel set that this CPU has. Routing against the softmax in double. Experts bit
 * for bit against what backend.h promises they are: the set's own `linear`, one row and one expert at a time,
 * added up in ascending order of experts - in batches, cuts and with threads of all kinds.
 *
 *     test_backend_experts [--bench]      --bench prints times of real shapes instead, with the time of
 * reading the weights once */
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define sets backend_sets
#define SETS ((size_t)TEST_SETS)

static uint64_t rng_state = 1;
static uint32_t rnd_u32(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}
static float rnd(void)
{
    return (float)rnd_u32() / (float)(1u << 30) - 1.0f;
}
static void *must(void *p)
{
    assert_non_null(p);
    return p;
}
static void put(void *p, enum be_dtype t, size_t i, float v)
{
    if (t == BE_F32) {
        ((float *)p)[i] = v;
        return;
    }
    uint32_t u;
    memcpy(&u, &v, 4);
    ((uint16_t *)p)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static struct backend *open_set(const char *set, enum be_dtype act, uint32_t threads)
{
    struct be_params p = {.act = act, .threads = threads, .kernels = set};
    struct backend *b = NULL;
    assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
    return b;
}

/* ---- route */

struct route_case {
    uint32_t experts, k;
    bool renorm, ties; /* ties: logits from a handful of values */
    bool scaled;
};
static const struct route_case route_cases[] = {
    {1, 1, true, false, false},   {4, 2, true, false, false},    {17, 5, false, true, false},
    {60, 4, false, false, false}, {8, 8, true, true, false},     {128, 8, true, false, false},
    {128, 8, false, true, false}, {513, 64, true, false, false}, {6, 2, true, false, true},
    {128, 8, true, false, true},
};
static float route_scale(uint32_t expert)
{
    return 0.5f + (float)(expert % 7) / 4;
}
enum { ROUTE_ROWS = 70 };

static void route_check(const struct route_case *c, const float *x, const uint32_t *ids, const float *weights,
                        const char *set)
{
    double top = -INFINITY, sum = 0, chosen = 0;
    bool taken[1024] = {false};
    for (uint32_t i = 0; i < c->experts; i++) top = fmax(top, (double)x[i]);
    for (uint32_t i = 0; i < c->experts; i++) sum += exp((double)x[i] - top);
    for (uint32_t n = 0; n < c->k; n++) {
        uint32_t best = c->experts;
        for (uint32_t i = 0; i < c->experts; i++)
            if (!taken[i] && (best == c->experts || x[i] > x[best])) best = i;
        if (ids[n] != best)
            fail_msg("%s: %u of %u experts: place %u is %u, should be %u", set, c->k, c->experts, n, ids[n],
                     best);
        taken[best] = true;
        chosen += exp((double)x[best] - top) / sum;
    }
    for (uint32_t n = 0; n < c->k; n++) {
        double want = exp((double)x[ids[n]] - top) / sum / (c->renorm ? chosen : 1);
        if (c->scaled) want *= (double)route_scale(ids[n]);
        /* An exponential within 2 units, two sums of positive terms in f32, three roundings: some 16 units at
         * most. */
        if (!(fabs((double)weights[n] - want) <= want * 0x1p-20 + 1e-37))
            fail_msg("%s: weight %.9g, should be %.9g", set, (double)weights[n], want);
    }
}

static void test_route(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof route_cases / sizeof *route_cases; n++) {
        const struct route_case *c = &route_cases[n];
        size_t cells = (size_t)ROUTE_ROWS * c->k;
        float *x = must(malloc(sizeof *x * ROUTE_ROWS * c->experts)),
              *w = must(malloc(sizeof *w * (cells + 1))), *w1 = must(malloc(sizeof *w1 * (cells + 1)));
        float scale[1024];
        for (uint32_t i = 0; i < c->experts; i++) scale[i] = route_scale(i);
        uint32_t *ids = must(malloc(sizeof *ids * (cells + 1))),
                 *ids1 = must(malloc(sizeof *ids1 * (cells + 1)));
        rng_state = 11 + n;
        for (uint32_t i = 0; i < ROUTE_ROWS * c->experts; i++)
            x[i] = c->ties ? (float)(rnd_u32() % 3) : 6 * rnd();
        for (size_t s = 0; s < SETS; s++) {
            if (!be_cpu_has(sets[s])) continue;
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(sets[s], BE_BF16, threads);
                ids1[cells] = 77;
                w1[cells] = -7;
                struct be_route_args a = {.logits = x,
                                          .t = ROUTE_ROWS,
                                          .experts = c->experts,
                                          .k = c->k,
                                          .renorm = c->renorm,
                                          .scale = c->scaled ? scale : NULL,
                                          .ids = ids1,
                                          .weights = w1};
                be_cpu_ops()->route(b, &a);
                assert_true(ids1[cells] == 77 && w1[cells] == -7);
                if (threads == 1) {
                    memcpy(ids, ids1, cells * 4);
                    memcpy(w, w1, cells * 4);
                    for (uint32_t t = 0; t < ROUTE_ROWS; t++)
                        route_check(c, x + (size_t)t * c->experts, ids + (size_t)t * c->k,
                                    w + (size_t)t * c->k, sets[s]);
                }
                assert_memory_equal(ids, ids1, cells * 4);
                assert_memory_equal(w, w1, cells * 4);
                for (uint32_t t = 0; t < ROUTE_ROWS; t += 9) {
                    struct be_route_args one = a;
                    one.logits = x + (size_t)t * c->experts;
                    one.t = 1;
                    be_cpu_ops()->route(b, &one);
                    assert_memory_equal(ids1, ids + (size_t)t * c->k, c->k * 4);
                    assert_memory_equal(w1, w + (size_t)t * c->k, c->k * 4);
                }
                be_cpu_ops()->close(b);
            }
        }
        free(x);
        free(w);
        free(w1);
        free(ids);
        free(ids1);
    }
}

/* Whatever the logits are, the ids are k different experts: what follows uses them as indices. Good rows
 * beside them keep their bits. */
static void test_route_bad_rows(void **state)
{
    (void)state;
    enum { E = 21, K = 6, T = 5 };
    float x[T * E], w[T * K];
    for (int i = 0; i < E; i++) {
        x[i] = NAN;
        x[E + i] = -INFINITY;
        x[2 * E + i] = i % 3 ? NAN : INFINITY;
        x[3 * E + i] = i == 7 ? NAN : (float)i;
        x[4 * E + i] = (float)(i % 5) * -1e30f;
    }
    for (size_t s = 0; s < SETS; s++) {
        if (!be_cpu_has(sets[s])) continue;
        struct backend *b = open_set(sets[s], BE_F32, 2);
        uint32_t ids[T * K];
        struct be_route_args a = {
            .logits = x, .t = T, .experts = E, .k = K, .renorm = true, .ids = ids, .weights = w};
        be_cpu_ops()->route(b, &a);
        for (int t = 0; t < T; t++) {
            uint32_t seen = 0;
            for (int i = 0; i < K; i++) {
                assert_true(ids[t * K + i] < E);
                assert_false(seen >> ids[t * K + i] & 1);
                seen |= 1u << ids[t * K + i];
            }
        }
        static const uint32_t descending[K] = {20, 19, 18, 17, 16, 15}, zeros[5] = {0, 5, 10, 15, 20};
        assert_memory_equal(ids + 3 * K, descending, sizeof descending);
        assert_memory_equal(ids + 4 * K, zeros, sizeof zeros);
        for (int i = 0; i < 5; i++) assert_true(w[4 * K + i] == 0.2f);
        assert_true(w[4 * K + 5] == 0);
        be_cpu_ops()->close(b);
    }
}

/* ---- experts */

enum crowd {
    CROWD_EVEN,
    CROWD_FEW /* most rows choose the same */,
    CROWD_TWICE /* a row may name an expert twice */
};
struct experts_case {
    uint32_t experts, k, t, c, ff;
    enum be_epilogue gate;
    enum crowd crowd;
};
static const struct experts_case experts_cases[] = {
    {4, 2, 9, 24, 20, BE_EPI_GLU_SILU, CROWD_EVEN},       {8, 8, 40, 64, 32, BE_EPI_GLU_SILU, CROWD_EVEN},
    {16, 3, 150, 96, 72, BE_EPI_GLU_SILU, CROWD_FEW},     {128, 8, 33, 160, 48, BE_EPI_GLU_SILU, CROWD_EVEN},
    {5, 1, 70, 33, 17, BE_EPI_GLU_GELU_TANH, CROWD_EVEN}, {6, 4, 30, 45, 100, BE_EPI_GLU_SILU, CROWD_TWICE},
    {3, 2, 1300, 40, 24, BE_EPI_GLU_SILU, CROWD_EVEN},    {2, 1, 700, 2048, 24, BE_EPI_GLU_SILU, CROWD_FEW},
    {1, 1, 20, 16, 16, BE_EPI_GLU_GELU_TANH, CROWD_EVEN},
};

struct experts_data {
    const struct experts_case *c;
    enum be_dtype act;
    float *gate, *up, *down; /* [E][ff, c], [E][ff, c], [E][c, ff] */
    void *x;                 /* act [t, ld(c)] */
    uint32_t *ids;
    float *weights;
};

static void data_open(struct experts_data *d, const struct experts_case *c, enum be_dtype act)
{
    *d = (struct experts_data){.c = c, .act = act};
    size_t n = (size_t)c->experts * c->c * c->ff;
    d->gate = must(malloc(n * 4));
    d->up = must(malloc(n * 4));
    d->down = must(malloc(n * 4));
    rng_state = c->experts * 1000 + c->c;
    for (size_t i = 0; i < n; i++) {
        d->gate[i] = rnd();
        d->up[i] = rnd();
        d->down[i] = rnd();
    }
    d->x = must(aligned_alloc(64, c->t * be_ld(c->c) * 4));
    memset(d->x, 0, c->t * be_ld(c->c) * 4);
    d->ids = must(malloc((size_t)c->t * c->k * 4));
    d->weights = must(malloc((size_t)c->t * c->k * 4));
    for (uint32_t t = 0; t < c->t; t++) {
        for (uint32_t i = 0; i < c->c; i++) put(d->x, act, t * be_ld(c->c) + i, rnd());
        uint32_t *ids = d->ids + (size_t)t * c->k;
        for (uint32_t i = 0; i < c->k; i++) {
            bool again;
            do {
                ids[i] = c->crowd == CROWD_FEW && t % 8 ? i : rnd_u32() % c->experts;
                again = false;
                for (uint32_t n2 = 0; n2 < i; n2++) again |= ids[n2] == ids[i];
            } while (again && c->crowd != CROWD_TWICE);
            d->weights[(size_t)t * c->k + i] = rnd() / 2 + 0.5f;
        }
    }
}

static void data_close(struct experts_data *d)
{
    free(d->gate);
    free(d->up);
    free(d->down);
    free(d->x);
    free(d->ids);
    free(d->weights);
}

struct experts_model {
    struct backend *b;
    struct be_weight **glu, **down;
    void *scratch;
    size_t scratch_bytes;
};
#define SCRATCH_GUARD 4096

static void model_open(struct experts_model *m, const struct experts_data *d, const char *set,
                       uint32_t threads)
{
    const struct be_ops *ops = be_cpu_ops();
    const struct experts_case *c = d->c;
    m->b = open_set(set, d->act, threads);
    m->glu = must(malloc(c->experts * sizeof *m->glu));
    m->down = must(malloc(c->experts * sizeof *m->down));
    size_t one = (size_t)c->c * c->ff;
    for (uint32_t e = 0; e < c->experts; e++) {
        struct be_weight_desc glu = {
            .k = c->c,
            .src_count = 2,
            .grouped = true,
            .glu = true,
            .src = {{d->gate + e * one, BE_F32, false, c->ff}, {d->up + e * one, BE_F32, false, c->ff}}};
        struct be_weight_desc down = {
            .k = c->ff, .src_count = 1, .grouped = true, .src = {{d->down + e * one, BE_F32, false, c->c}}};
        assert_int_equal(ops->weight_pack(m->b, &glu, &m->glu[e]), BE_OK);
        assert_int_equal(ops->weight_pack(m->b, &down, &m->down[e]), BE_OK);
    }
    m->scratch_bytes = ops->experts_scratch(m->b, c->t, c->k, c->c, c->ff, c->experts);
    assert_int_equal(ops->alloc(m->b, m->scratch_bytes + SCRATCH_GUARD, &m->scratch), BE_OK);
    memset(m->scratch, 0xff,
           m->scratch_bytes + SCRATCH_GUARD); /* NaN: nothing that was not written may be used */
}

static void model_close(struct experts_model *m, uint32_t experts)
{
    for (size_t i = 0; i < SCRATCH_GUARD; i++)
        assert_int_equal(((unsigned char *)m->scratch)[m->scratch_bytes + i], 0xff);
    for (uint32_t e = 0; e < experts; e++) {
        be_cpu_ops()->weight_free(m->b, m->glu[e]);
        be_cpu_ops()->weight_free(m->b, m->down[e]);
    }
    free(m->glu);
    free(m->down);
    be_cpu_ops()->free(m->b, m->scratch);
    be_cpu_ops()->close(m->b);
}

/* Rows [first, first + t) into out, f32 [t, c]. */
static void model_run(const struct experts_model *m, const struct experts_data *d, uint32_t first, uint32_t t,
                      float *out)
{
    const struct experts_case *c = d->c;
    struct be_experts_args a = {.glu = m->glu,
                                .down = m->down,
                                .experts = c->experts,
                                .k = c->k,
                                .t = t,
                                .c = c->c,
                                .ff = c->ff,
                                .gate = c->gate,
                                .scratch = m->scratch};
    a.x = (const char *)d->x + first * be_ld(c->c) * be_dtype_bytes(d->act);
    a.ids = d->ids + (size_t)first * c->k;
    a.weights = d->weights + (size_t)first * c->k;
    float *buf = must(malloc(((size_t)t * c->c + 2) * sizeof *buf));
    for (size_t i = 0; i < (size_t)t * c->c + 2; i++) buf[i] = -77;
    a.out = buf + 1;
    be_cpu_ops()->experts(m->b, &a);
    assert_true(buf[0] == -77 && buf[(size_t)t * c->c + 1] == -77);
    memcpy(out, buf + 1, (size_t)t * c->c * sizeof *out);
    free(buf);
}

/* The promise of backend.h, by `linear` alone. */
static void model_oracle(const struct experts_model *m, const struct experts_data *d, float *out)
{
    const struct experts_case *c = d->c;
    size_t elem = be_dtype_bytes(d->act);
    void *hidden = must(aligned_alloc(64, be_ld(c->ff) * 4));
    float *y = must(aligned_alloc(64, be_ld(c->c) * 4));
    memset(out, 0, (size_t)c->t * c->c * 4);
    for (uint32_t t = 0; t < c->t; t++) {
        for (uint32_t e = 0; e < c->experts; e++) {
            for (uint32_t i = 0; i < c->k; i++) {
                if (d->ids[(size_t)t * c->k + i] != e) continue;
                struct be_linear_args up = {.w = m->glu[e],
                                            .x = (const char *)d->x + t * be_ld(c->c) * elem,
                                            .t = 1,
                                            .epilogue = c->gate,
                                            .out = hidden};
                be_cpu_ops()->linear(m->b, &up);
                struct be_linear_args down = {
                    .w = m->down[e], .x = hidden, .t = 1, .epilogue = BE_EPI_F32, .out = y};
                be_cpu_ops()->linear(m->b, &down);
                float weight = d->weights[(size_t)t * c->k + i];
                for (uint32_t n = 0; n < c->c; n++) out[(size_t)t * c->c + n] += weight * y[n];
            }
        }
    }
    free(hidden);
    free(y);
}

/* The sum in double over the unrounded weights, as a check that the oracle is no common mistake: f32 only, a
 * few rows. */
static void check_values(const struct experts_data *d, const float *out)
{
    const struct experts_case *c = d->c;
    if (d->act != BE_F32) return;
    size_t one = (size_t)c->c * c->ff;
    for (uint32_t t = 0; t < c->t; t += 1 + c->t / 5) {
        double *want = must(calloc(c->c, sizeof *want)), size = 0;
        const float *x = (const float *)d->x + t * be_ld(c->c);
        for (uint32_t i = 0; i < c->k; i++) {
            uint32_t e = d->ids[(size_t)t * c->k + i];
            for (uint32_t h = 0; h < c->ff; h++) {
                double g = 0, u = 0;
                for (uint32_t n = 0; n < c->c; n++) {
                    g += (double)x[n] * (double)d->gate[e * one + h * c->c + n];
                    u += (double)x[n] * (double)d->up[e * one + h * c->c + n];
                }
                double gated = c->gate == BE_EPI_GLU_SILU
                                   ? g / (1 + exp(-g))
                                   : 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
                size += fabs(gated * u);
                for (uint32_t n = 0; n < c->c; n++)
                    want[n] += (double)d->weights[(size_t)t * c->k + i] * gated * u *
                               (double)d->down[e * one + n * c->ff + h];
            }
        }
        /* Sums of up to 2048 terms within 1 that cancel: 1e-5 of the magnitudes. */
        for (uint32_t n = 0; n < c->c; n++)
            if (!(fabs((double)out[(size_t)t * c->c + n] - want[n]) <= 1e-5 * (size + 1)))
                fail_msg("row %u: %.9g, should be %.9g", t, (double)out[(size_t)t * c->c + n], want[n]);
        free(want);
    }
}

static void check_case(const struct experts_case *c, enum be_dtype act, const char *set)
{
    struct experts_data d;
    struct experts_model m;
    data_open(&d, c, act);
    size_t row = (size_t)c->c * sizeof(float);
    float *want = must(malloc(row * c->t)), *got = must(malloc(row * c->t));
    for (uint32_t threads = 1; threads <= test_threads(); threads++) {
        model_open(&m, &d, set, threads);
        if (threads == 1) {
            model_oracle(&m, &d, want);
            check_values(&d, want);
        }
        model_run(&m, &d, 0, c->t, got);
        for (size_t i = 0; i < (size_t)c->t * c->c; i++)
            if (memcmp(&got[i], &want[i], sizeof *got) != 0)
                fail_msg("%s %s E=%u k=%u T=%u C=%u I=%u, %u threads: [%zu][%zu] is %.9g, should be %.9g",
                         set, act == BE_F32 ? "f32" : "bf16", c->experts, c->k, c->t, c->c, c->ff, threads,
                         i / c->c, i % c->c, (double)got[i], (double)want[i]);
        /* Rows alone, and in cuts. */
        uint32_t cuts = getenv("KVASIR_TEST_SHORT") ? 2 : 6;
        for (uint32_t t = 0; t < c->t; t += 1 + c->t / cuts) {
            model_run(&m, &d, t, 1, got);
            assert_memory_equal(got, want + (size_t)t * c->c, row);
            uint32_t few = c->t - t < 19 ? c->t - t : 19, half = (c->t - t + 1) / 2;
            model_run(&m, &d, t, few, got);
            assert_memory_equal(got, want + (size_t)t * c->c, row * few);
            model_run(&m, &d, t, half, got);
            assert_memory_equal(got, want + (size_t)t * c->c, row * half);
        }
        model_close(&m, c->experts);
    }
    free(want);
    free(got);
    data_close(&d);
}

static void test_experts(void **state)
{
    (void)state;
    for (size_t s = 0; s < SETS; s++) {
        if (!be_cpu_has(sets[s])) continue;
        for (size_t i = 0; i < sizeof experts_cases / sizeof *experts_cases; i++) {
            size_t size = (size_t)experts_cases[i].t * experts_cases[i].c;
            if (getenv("KVASIR_TEST_SHORT") && size > (test_in_small() ? 6000 : 40000)) continue;
            check_case(&experts_cases[i], BE_BF16, sets[s]);
            check_case(&experts_cases[i], BE_F32, sets[s]);
        }
    }
}

/* A row of NaN spoils itself only. */
static void test_experts_bad_row(void **state)
{
    (void)state;
    static const struct experts_case c = {8, 2, 60, 64, 32, BE_EPI_GLU_SILU, CROWD_EVEN};
    for (size_t s = 0; s < SETS; s++) {
        for (int act = BE_F32; be_cpu_has(sets[s]) && act <= BE_BF16; act++) {
            struct experts_data d;
            struct experts_model m;
            data_open(&d, &c, (enum be_dtype)act);
            model_open(&m, &d, sets[s], 2);
            float *good = must(malloc(c.t * c.c * 4)), *bad = must(malloc(c.t * c.c * 4));
            model_run(&m, &d, 0, c.t, good);
            put(d.x, d.act, 20 * be_ld(c.c) + 3, INFINITY);
            put(d.x, d.act, 20 * be_ld(c.c) + 5, -INFINITY);
            model_run(&m, &d, 0, c.t, bad);
            assert_memory_equal(bad, good, 20 * c.c * 4);
            assert_memory_equal(bad + 21 * c.c, good + 21 * c.c, (c.t - 21) * c.c * 4);
            for (uint32_t i = 0; i < c.c; i++) assert_true(!isfinite(bad[20 * c.c + i]));
            free(good);
            free(bad);
            model_close(&m, c.experts);
            data_close(&d);
        }
    }
}

/* The scratch of fewer rows fits into that of more; sizes that are no number are refused by alloc instead of
 * wrapping round. */
static void test_scratch(void **state)
{
    (void)state;
    for (size_t s = 0; s < SETS; s++) {
        for (int act = BE_F32; be_cpu_has(sets[s]) && act <= BE_BF16; act++) {
            struct backend *b = open_set(sets[s], (enum be_dtype)act, 1);
            size_t last = 0;
            for (uint32_t t = 0; t < 3000; t += 1 + t / 3) {
                size_t bytes = be_cpu_ops()->experts_scratch(b, t, 8, 2048, 768, 128);
                assert_true(bytes >= last);
                last = bytes;
            }
            void *p = NULL;
            if (strcmp(sets[s], "reference") != 0) {
                assert_int_equal(
                    be_cpu_ops()->alloc(
                        b,
                        be_cpu_ops()->experts_scratch(b, UINT32_MAX, 64, UINT32_MAX, UINT32_MAX, UINT32_MAX),
                        &p),
                    BE_NOMEM);
                assert_null(p);
            }
            be_cpu_ops()->close(b);
        }
    }
}

/* ---- --bench */

/* With one thread its processor time: neighbours on the machine's cores don't count. */
static double now_s(uint32_t threads)
{
    struct timespec ts;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* One layer of Qwen3-30B-A3B: 128 experts, 8 chosen, C 2048, I 768. */
static void bench(const char *set, uint32_t threads)
{
    enum { E = 128, K = 8, C = 2048, FF = 768 };
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 128, 512, 2048};
    const struct be_ops *ops = be_cpu_ops();
    struct backend *b = open_set(set, BE_BF16, threads);
    struct be_weight *glu[E], *down[E];
    uint16_t *src = must(malloc((size_t)C * FF * 2 * 2));
    for (size_t i = 0; i < (size_t)C * FF * 2; i++) src[i] = (uint16_t)(0x3c00 + (rnd_u32() & 0x83ff));
    for (uint32_t e = 0; e < E; e++) {
        struct be_weight_desc g = {
            .k = C,
            .src_count = 2,
            .grouped = true,
            .glu = true,
            .src = {{src, BE_BF16, false, FF}, {src + (size_t)C * FF, BE_BF16, false, FF}}};
        struct be_weight_desc dn = {
            .k = FF, .src_count = 1, .grouped = true, .src = {{src, BE_BF16, false, C}}};
        if (ops->weight_pack(b, &g, &glu[e]) != BE_OK || ops->weight_pack(b, &dn, &down[e]) != BE_OK) exit(1);
    }
    free(src);
    struct be_ceiling ceil;
    ops->ceiling(b, &ceil);
    void *x, *scratch, *out;
    uint32_t most = 2048;
    if (ops->alloc(b, (size_t)most * C * 2, &x) || ops->alloc(b, (size_t)most * C * 4, &out) ||
        ops->alloc(b, ops->experts_scratch(b, most, K, C, FF, E), &scratch))
        exit(1);
    for (size_t i = 0; i < (size_t)most * C; i++)
        ((uint16_t *)x)[i] = (uint16_t)(0x3f00 | (rnd_u32() & 0x80ff));
    uint32_t *ids = must(malloc((size_t)most * K * 4));
    float *weights = must(malloc((size_t)most * K * 4));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double best = 1e9, spent = 0, used_bytes = 0, flops = 2.0 * 3 * C * FF * K * rows[i];
        for (int run = 0; run < 4 || (spent < 0.5 && run < 200); run++) {
            bool used[E] = {false};
            for (uint32_t t = 0; t < rows[i]; t++) {
                for (uint32_t n = 0; n < K; n++) {
                    ids[t * K + n] = rnd_u32() % (E / K) * K + n; /* one of each residue: different experts */
                    used[ids[t * K + n]] = true;
                    weights[t * K + n] = 0.125f;
                }
            }
            double bytes = 0, start = now_s(threads);
            for (uint32_t e = 0; e < E; e++) bytes += used[e] ? 3.0 * 2 * C * FF : 0;
            struct be_experts_args a = {.glu = glu,
                                        .down = down,
                                        .experts = E,
                                        .k = K,
                                        .t = rows[i],
                                        .c = C,
                                        .ff = FF,
                                        .gate = BE_EPI_GLU_SILU,
                                        .x = x,
                                        .ids = ids,
                                        .weights = weights,
                                        .scratch = scratch,
                                        .out = out};
            ops->experts(b, &a);
            double took = now_s(threads) - start;
            spent += took;
            if (took < best) best = took, used_bytes = bytes;
        }
        printf("%-9s %u threads T=%-4u %9.1f us  %5.1f GB/s of weights (%3.0f %% of a read sweep)  %.3f "
               "TFLOP/s (%3.0f %%)\n",
               set, threads, rows[i], best * 1e6, used_bytes / best * 1e-9,
               100 * used_bytes / best / ceil.read_bytes_per_s, flops / best * 1e-12,
               100 * flops / best / ceil.matrix_flops);
    }
    for (uint32_t e = 0; e < E; e++) {
        ops->weight_free(b, glu[e]);
        ops->weight_free(b, down[e]);
    }
    ops->free(b, x);
    ops->free(b, out);
    ops->free(b, scratch);
    ops->close(b);
    free(ids);
    free(weights);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        for (size_t s = 1; s < SETS; s++) {
            if (!be_cpu_has(sets[s]) || (argc > 2 && strcmp(argv[2], sets[s]) != 0)) continue;
            bench(sets[s], 1);
            bench(sets[s], 2);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),   cmocka_unit_test(test_route_bad_rows),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_experts_bad_row),
        cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests_name("backend experts", tests, NULL, NULL);
}

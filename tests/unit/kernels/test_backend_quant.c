/* Weights of quants: every kernel set that this CPU has against exact sums over the same quants, packing of
 * parts of different kinds, embedding, and the rule that a row's bits depend on that row alone. */
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- numbers */

static uint64_t rng_state = 1;
static uint32_t draw(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}
static float bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    memcpy(&f, &u, 4);
    return f;
}
static void put(void *p, enum be_dtype t, size_t i, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    if (t == BE_F32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
}
static float get(const void *p, enum be_dtype t, size_t i)
{
    if (t == BE_F32) return ((const float *)p)[i];
    uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static void *must(void *p)
{
    assert_non_null(p);
    return p;
}

/* ---- a part: quants and scales that are exact in f16 */

struct part {
    struct be_quant quants;
    uint32_t n, k;
    uint8_t *code;      /* [n, k] */
    float *scale, *min; /* [n, k / group] */
};

static void part_row(const void *arg, uint32_t row, uint8_t *code, float *scale, float *min)
{
    const struct part *p = arg;
    uint32_t groups = p->k / p->quants.group;
    memcpy(code, p->code + (size_t)row * p->k, p->k);
    memcpy(scale, p->scale + (size_t)row * groups, groups * sizeof *scale);
    if (p->quants.min) memcpy(min, p->min + (size_t)row * groups, groups * sizeof *min);
}

static void part_init(struct part *p, struct be_quant kind, uint32_t n, uint32_t k)
{
    size_t groups = (size_t)n * (k / kind.group);
    *p = (struct part){.quants = kind, .n = n, .k = k};
    p->quants.row = part_row;
    p->quants.arg = p;
    p->code = must(malloc((size_t)n * k));
    p->scale = must(malloc(groups * sizeof(float)));
    p->min = must(malloc(groups * sizeof(float)));
    for (size_t i = 0; i < (size_t)n * k; i++)
        p->code[i] = kind.values ? kind.values[draw(16)] : (uint8_t)draw(1u << kind.bits);
    for (size_t i = 0; i < groups; i++) p->scale[i] = (float)(int32_t)(draw(2047) - 1023) * 0x1p-16f;
    for (size_t i = 0; i < groups; i++) p->min[i] = (float)(int32_t)(draw(2047) - 1023) * 0x1p-12f;
}

static void part_fini(struct part *p)
{
    free(p->code);
    free(p->scale);
    free(p->min);
}

static double part_value(const struct part *p, uint32_t row, uint32_t k)
{
    size_t g = (size_t)row * (p->k / p->quants.group) + k / p->quants.group;
    double code = p->code[(size_t)row * p->k + k], scale = (double)p->scale[g];
    return p->quants.min ? scale * code + (double)p->min[g] : scale * (code - p->quants.off);
}

/* ---- cases */

#define KIND(BITS, GROUP, OFF, MIN)                                                                          \
    {                                                                                                        \
        .bits = BITS, .group = GROUP, .off = OFF, .min = MIN                                                 \
    }
#define LOOK(VALUES)                                                                                         \
    {                                                                                                        \
        .bits = 8, .group = 32, .off = 128, .values = VALUES                                                 \
    }
/* one stands twice */
static const uint8_t some[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 141, 217, 255},
                     more[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                 128, 127, 126, 125, 124, 122, 0,   116};
struct quant_case {
    uint32_t k, n, parts, t;
    enum be_epilogue epilogue;
    bool bias;
    struct be_quant kind[3];
};
static bool most; /* the largest quants and inputs, and of 8 bits the smallest, too */
static const struct quant_case cases[] = {
    {32, 1, 1, 1, BE_EPI_F32, false, {KIND(8, 32, 128, false)}},
    {64, 40, 1, 33, BE_EPI_F32, true, {KIND(4, 32, 8, false)}},
    {96, 33, 1, 17, BE_EPI_ACT, true, {KIND(4, 32, 0, true)}},
    {256, 70, 1, 40, BE_EPI_ADD_F32, false, {KIND(8, 16, 32, false)}},
    {256, 31, 1, 13, BE_EPI_F32, false, {KIND(4, 16, 0, true)}},
    {512, 32, 1, 9, BE_EPI_GELU_TANH, false, {KIND(4, 16, 4, false)}},
    {96, 45, 1, 35, BE_EPI_F32, true, {KIND(5, 32, 16, false)}},
    {256, 70, 1, 7, BE_EPI_F32, false, {KIND(5, 32, 0, true)}},
    {512, 50, 1, 34, BE_EPI_ACT, false, {KIND(6, 16, 32, false)}},
    {256, 70, 1, 40, BE_EPI_ADD_F32, false, {KIND(8, 32, 128, false)}},
    {4096, 33, 1, 200, BE_EPI_F32, false, {KIND(4, 32, 8, false)}},
    {256, 20, 2, 3, BE_EPI_GLU_SILU, false, {KIND(5, 32, 0, true), KIND(6, 16, 32, false)}},
    {256, 48, 3, 21, BE_EPI_F32, true, {KIND(4, 32, 0, true), KIND(5, 32, 16, false), KIND(4, 16, 4, false)}},
    {640, 64, 1, 100, BE_EPI_F32, false, {KIND(8, 32, 0, true)}},
    {640, 300, 1, 600, BE_EPI_F32, false, {KIND(8, 32, 128, false)}},
    {256, 24, 2, 19, BE_EPI_GLU_SILU, false, {KIND(4, 32, 0, true), KIND(4, 32, 0, true)}},
    {160, 24, 2, 19, BE_EPI_GLU_GELU_TANH, false, {KIND(8, 32, 128, false), KIND(8, 32, 128, false)}},
    {96, 45, 1, 35, BE_EPI_F32, true, {LOOK(some)}},
    {256, 20, 2, 3, BE_EPI_GLU_SILU, false, {LOOK(more), LOOK(more)}},
    {256, 48, 3, 21, BE_EPI_F32, true, {LOOK(some), LOOK(more), LOOK(some)}},
    {64, 48, 2, 5, BE_EPI_F32, true, {LOOK(some), KIND(5, 32, 16, false)}},
    /* parts of different kinds share what fits all of them */
    {256, 48, 3, 21, BE_EPI_F32, true, {KIND(4, 32, 0, true), KIND(4, 32, 8, false), KIND(8, 16, 32, false)}},
    {64,
     17,
     3,
     21,
     BE_EPI_F32,
     false,
     {KIND(8, 32, 16, false), KIND(8, 32, 16, false), KIND(8, 32, 128, false)}},
};

struct fixture {
    const struct quant_case *c;
    enum be_dtype act;
    struct part part[3];
    float *bias;
    void *x;   /* act [t, k] */
    float *xd; /* [t, k] what quants and scales make of it */
    uint32_t n_all, n_out;
    bool f32_out;
    size_t ld_out;
};

static bool is_glu(enum be_epilogue e)
{
    return e == BE_EPI_GLU_GELU_TANH || e == BE_EPI_GLU_SILU;
}

static void fixture_init(struct fixture *f, const struct quant_case *c, enum be_dtype act)
{
    *f = (struct fixture){.c = c, .act = act, .n_all = c->n * c->parts};
    f->n_out = is_glu(c->epilogue) ? c->n : f->n_all;
    f->f32_out = c->epilogue == BE_EPI_F32 || c->epilogue == BE_EPI_ADD_F32;
    f->ld_out = f->f32_out ? f->n_out : be_ld(f->n_out);
    rng_state = 5 + c->k * 31 + c->n;
    for (uint32_t p = 0; p < c->parts; p++) part_init(&f->part[p], c->kind[p], c->n, c->k);
    for (size_t i = 0; most && i < (size_t)c->n * c->k; i++)
        f->part[0].code[i] =
            (uint8_t)(c->kind[0].bits == 8 && i / c->k % 2 ? 0 : (1u << c->kind[0].bits) - 1);
    if (c->bias) f->bias = must(malloc(f->n_all * sizeof(float)));
    for (uint32_t i = 0; c->bias && i < f->n_all; i++) f->bias[i] = (float)draw(100) * 0.01f;
    f->x = must(aligned_alloc(64, (size_t)c->t * c->k * 4));
    f->xd = must(malloc((size_t)c->t * c->k * sizeof(float)));
    for (uint32_t t = 0; t < c->t; t++)
        for (uint32_t k = 0; k < c->k; k += 32) {
            float top = 0, v[32];
            bool zeros = (t + k / 32) % 7 == 3;
            for (uint32_t i = 0; i < 32; i++) {
                v[i] = zeros ? 0 : most ? 1 : bf16((float)(int32_t)(draw(2001) - 1000) * 0.003f);
                top = fmaxf(top, fabsf(v[i]));
                put(f->x, act, (size_t)t * c->k + k + i, v[i]);
            }
            for (uint32_t i = 0; i < 32; i++)
                f->xd[(size_t)t * c->k + k + i] = zeros ? 0 : rintf(v[i] * (127 / top)) * (top / 127);
        }
}

static void fixture_fini(struct fixture *f)
{
    for (uint32_t p = 0; p < f->c->parts; p++) part_fini(&f->part[p]);
    free(f->bias);
    free(f->x);
    free(f->xd);
}

static enum be_result try_pack(struct backend *b, const struct fixture *f, struct be_weight **w)
{
    struct be_weight_desc d = {
        .k = f->c->k, .src_count = f->c->parts, .glu = is_glu(f->c->epilogue), .bias = f->bias};
    for (uint32_t p = 0; p < f->c->parts; p++)
        d.src[p] = (struct be_weight_src){.dtype = BE_QUANT, .n = f->c->n, .quants = &f->part[p].quants};
    return be_cpu_ops()->weight_pack(b, &d, w);
}

static void run(struct backend *b, const struct fixture *f, const struct be_weight *w, uint32_t first,
                uint32_t t, void *out)
{
    size_t bytes = f->ld_out * (f->f32_out ? 4 : be_dtype_bytes(f->act)) * t;
    char *buf = must(aligned_alloc(64, (bytes + 63) / 64 * 64 + 64));
    memset(buf, 0, bytes);
    struct be_linear_args a = {.w = w,
                               .x = (const char *)f->x + (size_t)first * f->c->k * be_dtype_bytes(f->act),
                               .t = t,
                               .epilogue = f->c->epilogue,
                               .out = buf};
    be_cpu_ops()->linear(b, &a);
    memcpy(out, buf, bytes);
    free(buf);
}

/* The sum of one output in double, and how far f32 may be from it. */
static double sum_of(const struct fixture *f, uint32_t t, uint32_t col, double *err)
{
    const struct part *p = &f->part[col / f->c->n];
    double v = f->bias ? (double)f->bias[col] : 0, mag = 1;
    for (uint32_t k = 0; k < f->c->k; k++) {
        double x = (double)f->xd[(size_t)t * f->c->k + k];
        v += x * part_value(p, col % f->c->n, k);
        /* quants and what is taken from them are large beside the difference */
        mag += fabs(x) * (256 * fabs((double)p->scale[(col % f->c->n) * (p->k / p->quants.group)]) + 0.25);
    }
    *err = mag * (4 + f->c->k / 32.0) * 0x1p-22;
    return v;
}

static double gate_of(enum be_epilogue e, double z)
{
    if (e == BE_EPI_GLU_SILU) return z / (1 + exp(-z));
    return 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
}

static void check_values(const struct fixture *f, const void *out, const char *set)
{
    enum be_epilogue e = f->c->epilogue;
    for (uint32_t t = 0; t < f->c->t; t += 1 + f->c->t / 40)
        for (uint32_t n = 0; n < f->ld_out; n++) {
            double err = 0, err2 = 0, want = n < f->n_out ? sum_of(f, t, n, &err) : 0;
            double got = (double)get(out, f->f32_out ? BE_F32 : f->act, t * f->ld_out + n);
            if (n < f->n_out && is_glu(e)) {
                double up = sum_of(f, t, f->c->n + n, &err2), g = gate_of(e, want);
                want = g * up;
                err = 1.2 * err * fabs(up) + err2 * fabs(g) + err * err2;
            } else if (n < f->n_out && e == BE_EPI_GELU_TANH) want = gate_of(e, want);
            err += fabs(want) * (f->f32_out || f->act == BE_F32 ? 0x1p-20 : 0x1.01p-8);
            if (!(fabs(got - want) <= err))
                fail_msg("%s %s case %td: [%u][%u] is %.9g, should be %.9g +- %.2g", set,
                         f->act == BE_F32 ? "f32" : "bf16", f->c - cases, t, n, got, want, err);
        }
}

static struct backend *open_set(const char *set, enum be_dtype act, uint32_t threads)
{
    struct be_params p = {.act = act, .threads = threads, .kernels = set};
    struct backend *b = NULL;
    assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
    return b;
}

static void check_case(const struct quant_case *c, enum be_dtype act, const char *set)
{
    struct fixture f;
    struct be_weight *w;
    fixture_init(&f, c, act);
    size_t row = f.ld_out * (f.f32_out ? 4 : be_dtype_bytes(act));
    unsigned char *all = must(malloc(row * c->t)), *part = must(malloc(row * c->t));
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct backend *b = open_set(set, act, threads);
        assert_int_equal(try_pack(b, &f, &w), BE_OK);
        run(b, &f, w, 0, c->t, threads == 1 ? all : part);
        if (threads == 1) check_values(&f, all, set);
        else assert_memory_equal(part, all, row * c->t);
        for (uint32_t t = 1; threads == 2 && t <= c->t && t <= 14; t++) {
            run(b, &f, w, c->t - t, t, part);
            assert_memory_equal(part, all + row * (c->t - t), row * t);
        }
        be_cpu_ops()->weight_free(b, w);
        be_cpu_ops()->close(b);
    }
    free(all);
    free(part);
    fixture_fini(&f);
}

static void test_linear(void **state)
{
    (void)state;
    for (size_t s = 0; s < TEST_SETS; s++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (!test_takes(i, s) || (s == 0 && cases[i].t > 200)) continue; /* takes plain C too long */
            check_case(&cases[i], BE_F32, backend_sets[s]);
            check_case(&cases[i], BE_BF16, backend_sets[s]);
        }
}

/* No sum on the way may overflow. */
static void test_most(void **state)
{
    (void)state;
    static const struct be_quant kinds[] = {KIND(4, 32, 8, false),   KIND(5, 32, 0, true),
                                            KIND(6, 16, 32, false),  KIND(6, 32, 32, false),
                                            KIND(8, 32, 128, false), KIND(8, 32, 0, true)};
    most = true;
    for (size_t s = 0; s < TEST_SETS; s++)
        for (size_t i = 0; be_cpu_has(backend_sets[s]) && i < sizeof kinds / sizeof *kinds; i++)
            check_case(&(struct quant_case){64, 33, 1, 17, BE_EPI_F32, false, {kinds[i]}}, BE_F32,
                       backend_sets[s]);
    most = false;
}

static void test_embed(void **state)
{
    (void)state;
    for (size_t i = 1; i < 7; i++) {
        struct fixture f;
        struct be_weight *w;
        struct quant_case c = cases[i];
        c.epilogue = BE_EPI_F32;
        fixture_init(&f, &c, BE_F32);
        struct backend *b = open_set("auto", BE_F32, 2);
        assert_int_equal(try_pack(b, &f, &w), BE_OK);
        uint32_t ids[3] = {c.n - 1, UINT32_MAX, 0};
        float *out = must(calloc((size_t)3 * c.k, sizeof *out));
        struct be_embed_args a = {.w = w, .ids = ids, .t = 3, .scale = 2, .out = out};
        be_cpu_ops()->embed(b, &a);
        for (uint32_t k = 0; k < c.k; k++) {
            double last = 2 * part_value(&f.part[0], c.n - 1, k), first = 2 * part_value(&f.part[0], 0, k);
            assert_true(fabs((double)out[k] - last) <= fabs(last) * 0x1p-22);
            assert_true(out[c.k + k] == 0); /* left alone */
            assert_true(fabs((double)out[2 * c.k + k] - first) <= fabs(first) * 0x1p-22);
        }
        free(out);
        be_cpu_ops()->weight_free(b, w);
        be_cpu_ops()->close(b);
        fixture_fini(&f);
    }
}

/* A NaN reaches every output of its row, and no other row. */
static void test_nan(void **state)
{
    (void)state;
    for (size_t s = 0; s < TEST_SETS; s++) {
        if (!be_cpu_has(backend_sets[s])) continue;
        struct fixture f;
        struct be_weight *w;
        fixture_init(&f, &cases[6], BE_BF16);
        struct backend *b = open_set(backend_sets[s], BE_BF16, 2);
        assert_int_equal(try_pack(b, &f, &w), BE_OK);
        size_t row = f.ld_out * 4, n = f.c->t;
        unsigned char *want = must(malloc(row * n)), *got = must(malloc(row * n));
        run(b, &f, w, 0, (uint32_t)n, want);
        put(f.x, BE_BF16, 5 * f.c->k + 77, NAN);
        run(b, &f, w, 0, (uint32_t)n, got);
        for (uint32_t i = 0; i < f.n_out; i++) assert_true(isnan(((float *)(void *)(got + 5 * row))[i]));
        assert_memory_equal(got, want, 5 * row);
        assert_memory_equal(got + 6 * row, want + 6 * row, row * (n - 6));
        free(want);
        free(got);
        be_cpu_ops()->weight_free(b, w);
        be_cpu_ops()->close(b);
        fixture_fini(&f);
    }
}

static void test_scales_beyond_f16(void **state)
{
    (void)state;
    struct fixture f;
    struct be_weight *w = NULL;
    fixture_init(&f, &cases[1], BE_BF16);
    struct backend *b = open_set("auto", BE_BF16, 2);
    f.part[0].scale[3] = 65536;
    assert_int_equal(try_pack(b, &f, &w), BE_UNSUPPORTED);
    f.part[0].scale[3] = NAN;
    assert_int_equal(try_pack(b, &f, &w), BE_UNSUPPORTED);
    f.part[0].scale[3] = 65504;
    assert_int_equal(try_pack(b, &f, &w), BE_OK);
    be_cpu_ops()->weight_free(b, w);
    be_cpu_ops()->close(b);
    fixture_fini(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_most),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_scales_beyond_f16),
    };
    test_backend_args(&argc, argv);
    if (!BACKEND_ON_CPU) return 0; /* the device has no quants */
    return cmocka_run_group_tests_name("backend codes", tests, NULL, NULL);
}

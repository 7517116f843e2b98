/* The row operations of the backend (norm, rope, qkv, patchify, interpolate, pack, gate, clamp, pool,
 * gather, logit statistics, top k): every kernel set that this CPU has against the formula of backend.h in
 * double, and bit-equality of a row alone, among others, and under 1, 2 and 3 threads. Attention and linear
 * have their own files. */
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"
#include "kernels/cpu/kv_q8.h"
#include "kernels/cuda/kv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static float get(const void *p, enum be_dtype t, size_t i)
{
    return t == BE_F32 ? ((const float *)p)[i] : from_bf16(((const uint16_t *)p)[i]);
}
static void *must(void *p)
{
    assert_non_null(p);
    return p;
}
static struct backend *open_set(const char *set, enum be_dtype act, uint32_t threads)
{
    struct be_params p = {.act = act, .threads = threads, .kernels = set};
    struct backend *b = NULL;
    assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
    return b;
}

/* A buffer with sentinels around it. */
enum { GUARD = 256 };
static unsigned char *guarded(size_t bytes)
{
    unsigned char *p = must(aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64));
    memset(p, 0xa5, bytes + 2 * GUARD);
    return p + GUARD;
}
static void guarded_check(const unsigned char *p, size_t bytes)
{
    for (uint32_t i = 0; i < GUARD; i++) {
        assert_int_equal(p[-1 - (int)i], 0xa5);
        assert_int_equal(p[bytes + i], 0xa5);
    }
}
static void guarded_free(unsigned char *p)
{
    free(p - GUARD);
}

/* Runs `body` for each set, act type and thread count of the CPU; the first thread count's result is what the
 * others must equal. */
#define FOR_SETS(set, act)                                                                                   \
    for (size_t set##_i = 0; set##_i < SETS; set##_i++)                                                      \
        for (int act##_i = BE_F32; be_cpu_has(sets[set##_i]) && act##_i <= BE_BF16; act##_i++)               \
            for (const char *set = sets[set##_i]; set; set = NULL)                                           \
                for (enum be_dtype act = (enum be_dtype)act##_i, act##_once = BE_F16; act##_once == BE_F16;  \
                     act##_once = BE_F32)

/* ---- norm */

struct norm_case {
    enum be_norm_kind kind;
    uint32_t t, c;
    bool post, residual, no_x, bias, dense, no_out, scaled, flat; /* flat: a row's numbers are equal */
};
static const struct norm_case norm_cases[] = {
    {BE_NORM_RMS, 1, 1, false, false, false, false, false, false, false, false},
    {BE_NORM_RMS, 33, 17, false, false, false, false, false, false, false, false},
    {BE_NORM_RMS, 40, 640, true, true, false, false, false, false, false, false},
    {BE_NORM_RMS, 3, 1152, true, true, false, false, true, false, false, false},
    {BE_NORM_RMS, 100, 24, false, true, false, false, false, false, false, false},
    {BE_NORM_RMS, 7, 1030, true, false, false, false, false, false, false, false},
    {BE_NORM_RMS, 5, 640, false, true, true, false, false, false, false, false},
    {BE_NORM_RMS, 5, 640, true, true, false, false, false, true, false, false},
    {BE_NORM_RMS, 19, 45, true, true, false, false, false, false, true, false},
    {BE_NORM_RMS, 7, 256, false, true, false, false, false, true, true, false},
    {BE_NORM_LAYER, 65, 1152, false, true, false, true, false, false, false, false},
    {BE_NORM_LAYER, 9, 72, false, false, false, true, true, false, false, false},
    {BE_NORM_LAYER, 9, 45, false, true, true, true, false, false, false, false},
    {BE_NORM_LAYER, 9, 1723, .flat = true},
};

struct norm_data {
    float *x, *post, *residual, *weight, *bias;
};
static const float norm_scale = 0.8125f;

static void norm_run(struct backend *b, const struct norm_case *c, enum be_dtype out_dtype,
                     const struct norm_data *d, uint32_t first, uint32_t t, float *residual, void *out)
{
    struct be_norm_args a = {.kind = c->kind,
                             .t = t,
                             .c = c->c,
                             .eps = 1e-6f,
                             .weight = d->weight,
                             .out_dtype = out_dtype,
                             .out_dense = c->dense};
    a.x = c->no_x ? NULL : d->x + (size_t)first * c->c;
    a.post_weight = c->post ? d->post : NULL;
    a.residual = c->residual ? residual : NULL;
    a.residual_scale = c->scaled ? &norm_scale : NULL;
    a.bias = c->bias ? d->bias : NULL;
    a.out = c->no_out ? NULL : out;
    be_cpu_ops()->norm(b, &a);
}

/* Mean of squares in f32 over C values errs by a few units of 2^-24, halved by the root; then three products:
 * 2^-20 relative to the largest term. */
static void norm_check(const struct norm_case *c, enum be_dtype out_dtype, const struct norm_data *d,
                       const float *residual, const void *out, const char *set)
{
    double *v = must(malloc(sizeof(double) * c->c));
    size_t ld = c->dense ? c->c : be_ld(c->c);
    for (uint32_t t = 0; t < c->t; t++) {
        double post = 0, mean = 0, var = 0;
        for (uint32_t i = 0; i < c->c; i++) {
            v[i] = c->no_x ? 0 : (double)d->x[(size_t)t * c->c + i];
            post += v[i] * v[i];
        }
        post = 1 / sqrt(post / c->c + 1e-6);
        for (uint32_t i = 0; i < c->c; i++) {
            if (c->post) v[i] *= post * (double)d->post[i];
            if (c->residual) {
                v[i] += (double)d->residual[(size_t)t * c->c + i];
                if (c->scaled) v[i] *= (double)norm_scale;
                assert_true(fabs(v[i] - (double)residual[(size_t)t * c->c + i]) <=
                            (fabs(v[i]) + 4) * 0x1p-20);
            }
            mean += v[i] / c->c;
        }
        if (c->kind == BE_NORM_RMS) mean = 0;
        for (uint32_t i = 0; i < c->c; i++) var += (v[i] - mean) * (v[i] - mean) / c->c;
        for (uint32_t i = 0; i < ld && !c->no_out; i++) {
            double got = (double)get(out, out_dtype, t * ld + i);
            if (i >= c->c) {
                assert_true(got == 0);
                continue;
            }
            double want =
                (v[i] - mean) / sqrt(var + 1e-6) * (double)d->weight[i] + (c->bias ? (double)d->bias[i] : 0);
            double bound = 8 * 0x1p-20 + fabs(want) * (out_dtype == BE_F32 ? 0x1p-20 : 0x1.02p-8);
            if (!(fabs(got - want) <= bound))
                fail_msg("%s: norm kind %d C=%u [%u][%u] is %.9g, should be %.9g", set, (int)c->kind, c->c, t,
                         i, got, want);
        }
    }
    free(v);
}

static void test_norm(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof norm_cases / sizeof *norm_cases; n++) {
        const struct norm_case *c = &norm_cases[n];
        size_t elems = (size_t)c->t * c->c;
        struct norm_data d = {must(malloc(elems * 4)), must(malloc(c->c * 4)), must(malloc(elems * 4)),
                              must(malloc(c->c * 4)), must(malloc(c->c * 4))};
        rng_state = 5 + n;
        for (size_t i = 0; i < elems; i++) {
            d.x[i] = c->flat ? 0.38f + (float)(i / c->c) / 9 : 3 * rnd();
            d.residual[i] = rnd() + (c->kind == BE_NORM_LAYER ? 2.0f : 0.0f);
        }
        for (uint32_t i = 0; i < c->c; i++) {
            d.post[i] = 1 + rnd() / 4;
            d.weight[i] = 1 + rnd() / 2;
            d.bias[i] = rnd();
        }
        FOR_SETS(set, act)
        {
            enum be_dtype od = c->dense ? BE_F32 : act;
            size_t row = (c->dense ? c->c : be_ld(c->c)) * be_dtype_bytes(od);
            unsigned char *all = guarded(row * c->t), *part = guarded(row * c->t);
            float *res = must(malloc(elems * 4)), *res2 = must(malloc(elems * 4));
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(set, act, threads);
                memcpy(res2, d.residual, elems * 4);
                norm_run(b, c, od, &d, 0, c->t, res2, threads == 1 ? all : part);
                if (threads == 1) memcpy(res, res2, elems * 4);
                if (threads == 1) norm_check(c, od, &d, res, all, set);
                assert_memory_equal(res, res2, elems * 4);
                if (threads > 1) assert_memory_equal(all, part, row * c->t);
                for (uint32_t t = 0; t < c->t; t += 1 + c->t / 3) {
                    memcpy(res2, d.residual + (size_t)t * c->c, c->c * 4);
                    norm_run(b, c, od, &d, t, 1, res2, part);
                    assert_memory_equal(res2, res + (size_t)t * c->c, c->c * 4);
                    if (!c->no_out) assert_memory_equal(part, all + t * row, row);
                }
                be_cpu_ops()->close(b);
            }
            guarded_check(all, row * c->t);
            guarded_check(part, row * c->t);
            guarded_free(all);
            guarded_free(part);
            free(res);
            free(res2);
        }
        free(d.x);
        free(d.post);
        free(d.residual);
        free(d.weight);
        free(d.bias);
    }
}

/* Some columns of wider rows, in place: the bits of the same rows by themselves, and nothing beside them. */
static void test_norm_columns(void **state)
{
    enum { T = 5, C = 45, FIRST = 7, STRIDE = 64 };
    (void)state;
    FOR_SETS(set, act)
    {
        float wide[T * STRIDE], before[T * STRIDE], alone[T * C], weight[C];
        struct backend *b = open_set(set, act, 2);
        rng_state = 77;
        for (uint32_t i = 0; i < T * STRIDE; i++) wide[i] = before[i] = rnd();
        for (uint32_t i = 0; i < C; i++) weight[i] = 1 + rnd() / 2;
        for (uint32_t i = 0; i < T * C; i++) alone[i] = wide[i / C * STRIDE + FIRST + i % C];
        struct be_norm_args a = {
            .t = T, .c = C, .eps = 1e-6f, .x = alone, .weight = weight, .out = alone, .out_dense = true};
        be_cpu_ops()->norm(b, &a);
        a.x = wide + FIRST;
        a.out = wide + FIRST;
        a.stride = STRIDE;
        be_cpu_ops()->norm(b, &a);
        for (uint32_t i = 0; i < T * STRIDE; i++) {
            uint32_t column = i % STRIDE - FIRST;
            assert_true(wide[i] == (column < C ? alone[i / STRIDE * C + column] : before[i]));
        }
        be_cpu_ops()->close(b);
    }
}

/* ---- rope */

static void test_rope(void **state)
{
    (void)state;
    enum { T = 70, HALF = 36 };
    int32_t pos[3 * T];
    float inv[HALF];
    uint8_t axis[HALF];
    for (int t = 0; t < 3 * T; t++) pos[t] = t % T < 10 ? t % T : (int32_t)(rnd_u32() % 131072);
    pos[T - 1] = 131072;
    for (int i = 0; i < HALF; i++) {
        inv[i] = powf(10000.0f, -(float)i / HALF);
        axis[i] = (uint8_t)(i % 3);
    }
    FOR_SETS(set, act)
    {
        for (uint32_t axes = 1; axes <= 3; axes += 2) {
            float co[3][T * HALF + 1], si[3][T * HALF + 1];
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(set, act, threads);
                float *c = co[threads - 1], *s = si[threads - 1];
                c[T * HALF] = s[T * HALF] = -7;
                struct be_rope_args a = {.pos = pos,
                                         .t = T,
                                         .axes = axes,
                                         .half = HALF,
                                         .inv_freq = inv,
                                         .axis = axes == 3 ? axis : NULL,
                                         .scaling = 1.25f,
                                         .cos = c,
                                         .sin = s};
                be_cpu_ops()->rope(b, &a);
                be_cpu_ops()->close(b);
                assert_true(c[T * HALF] == -7 && s[T * HALF] == -7);
                assert_memory_equal(c, co[0], sizeof co[0]);
                assert_memory_equal(s, si[0], sizeof si[0]);
            }
            for (int i = 0; i < T * HALF; i++) {
                int32_t p = pos[(axes == 3 ? axis[i % HALF] : 0) * T + i / HALF];
                double angle =
                    (double)((float)p *
                             inv[i % HALF]); /* the product is rounded to f32: that is the definition */
                /* One rounding of the function to f32 and one of the product: 2^-24 each, relative to at
                 * most 1.25. */
                assert_true(fabs((double)co[0][i] - 1.25 * cos(angle)) <= 1.3e-7);
                assert_true(fabs((double)si[0][i] - 1.25 * sin(angle)) <= 1.3e-7);
            }
        }
    }
}

/* ---- qkv */

/* Where an element lies in the cache: kv_layout.h on the CPU, kv.h on the device. */
static uint32_t t_dpad(enum be_dtype act, uint32_t d)
{
    return BACKEND_ON_CPU ? kv_dpad(act, d) : cuda_kv_dpad(act, d);
}
static void *t_k(void *layer, enum be_dtype act, uint32_t d, uint32_t head)
{
    return BACKEND_ON_CPU ? kv_k(layer, act, d, head) : (char *)layer + head * cuda_kv_head_bytes(act, d);
}
static void *t_v(void *layer, enum be_dtype act, uint32_t d, uint32_t head)
{
    return BACKEND_ON_CPU ? kv_v(layer, act, d, head)
                          : (char *)t_k(layer, act, d, head) + cuda_kv_head_bytes(act, d) / 2;
}
static size_t t_k_idx(enum be_dtype act, uint32_t dpad, uint32_t slot, uint32_t d)
{
    return BACKEND_ON_CPU ? kv_k_idx(act, dpad, slot, d) : (size_t)slot * dpad + d;
}
static size_t t_v_idx(enum be_dtype act, uint32_t dpad, uint32_t slot, uint32_t d)
{
    return BACKEND_ON_CPU ? kv_v_idx(act, dpad, slot, d) : (size_t)slot * dpad + d;
}

/* Element i of a key or a value, and how far it may be from what was written. */
struct element {
    double value, step;
};
static struct element element(const struct be_kv *kv, enum be_dtype act, void *layer, uint32_t head,
                              bool is_value, uint32_t slot, uint32_t i)
{
    uint32_t d = kv->head_dim, dpad = t_dpad(act, d);
    size_t at = is_value ? t_v_idx(act, dpad, slot, i) : t_k_idx(act, dpad, slot, i);
    if (kv->type == BE_KV_ACT)
        return (struct element){
            (double)get(is_value ? t_v(layer, act, d, head) : t_k(layer, act, d, head), act, at), 0};
    struct kv_q8 c = kv_q8(layer, act, d, head);
    double scale = (double)from_bf16((is_value ? c.v_scale : c.k_scale)[i / KV_RUN * KV_SLOTS + slot]);
    return (struct element){(is_value ? c.v : c.k)[at] * scale, scale * 0.501};
}

struct qkv_shape {
    uint32_t heads, groups, d;
    bool norm, rotate;
    enum be_qkv_parts parts;
    bool v_norm;
};
static const struct qkv_shape qkv_shapes[] = {
    {4, 1, 256, true, true, BE_QKV, false},  {4, 2, 24, true, true, BE_QKV, false},
    {3, 3, 72, false, false, BE_QKV, false}, {2, 1, 20, false, true, BE_QKV, false},
    {8, 4, 128, true, true, BE_QKV, false},  {1, 1, 2, true, true, BE_QKV, false},
    {4, 4, 80, false, true, BE_QKV, false},  {6, 6, 8, false, true, BE_QKV, false},
    {2, 2, 40, false, false, BE_QKV, false}, {3, 1, 72, true, false, BE_QKV, false},
    {2, 1, 44, false, true, BE_QKV, false},  {4, 2, 512, true, true, BE_QK, true},
    {2, 1, 24, true, true, BE_QKV, true},    {6, 2, 20, true, true, BE_QK, false},
    {4, 2, 256, true, true, BE_Q, true},     {3, 1, 20, true, true, BE_Q, false}};

/* Three sequences: one from position 0 over several blocks, a decode step in the middle of a block, a decode
 * step that opens one. */
enum { QT = 72, QSEQS = 3, QBLOCKS = 8 };
static const uint32_t q_seq_row[QSEQS + 1] = {0, 70, 71, 72};
static const uint32_t q_first[QSEQS] = {0, 45, 64};
static const uint32_t q_seq_table[QSEQS] = {0, 3, 5};
static const uint32_t q_block[8] = {5, 0,           3,           BE_NO_BLOCK,
                                    1, BE_NO_BLOCK, BE_NO_BLOCK, 7}; /* table entries, in blocks */

struct qkv_io {
    struct be_rows rows;
    uint32_t tables[8], pos[QT];
    float *qkv, *cos, *sin, qn[512], kn[512], shift[1024];
};

static uint32_t qkv_all(const struct qkv_shape *s)
{
    return s->heads + (2 - (uint32_t)s->parts) * s->groups;
}

static void qkv_io_init(struct qkv_io *io, const struct qkv_shape *s, size_t block_grains)
{
    for (uint32_t i = 0; i < 8; i++)
        io->tables[i] = q_block[i] == BE_NO_BLOCK ? BE_NO_BLOCK : (uint32_t)(q_block[i] * block_grains);
    for (uint32_t q = 0; q < QSEQS; q++)
        for (uint32_t t = q_seq_row[q]; t < q_seq_row[q + 1]; t++) io->pos[t] = q_first[q] + t - q_seq_row[q];
    io->rows = (struct be_rows){.t = QT,
                                .seq_count = QSEQS,
                                .seq_row = q_seq_row,
                                .seq_table = q_seq_table,
                                .tables = io->tables,
                                .pos = io->pos,
                                .lo = io->pos,
                                .hi = io->pos};
    size_t n = (size_t)QT * qkv_all(s) * s->d;
    io->qkv = must(malloc(n * 4));
    io->cos = must(malloc(QT * (s->d / 2) * 4 + 4));
    io->sin = must(malloc(QT * (s->d / 2) * 4 + 4));
    for (size_t i = 0; i < n; i++) io->qkv[i] = 2 * rnd();
    for (uint32_t i = 0; i < QT * (s->d / 2); i++) {
        float angle = 3 * rnd();
        io->cos[i] = cosf(angle);
        io->sin[i] = sinf(angle);
    }
    for (uint32_t i = 0; i < s->d; i++) {
        io->qn[i] = 1 + rnd() / 3;
        io->kn[i] = 1 + rnd() / 3;
    }
    for (uint32_t i = 0; i < s->groups * s->d; i++) io->shift[i] = 2 * rnd();
}

static void qkv_head_want(const struct qkv_io *io, const struct qkv_shape *s, uint32_t t, uint32_t head,
                          const float *norm, double *out)
{
    const float *x = io->qkv + ((size_t)t * qkv_all(s) + head) * s->d;
    double sq = 0, v[512];
    for (uint32_t i = 0; i < s->d; i++) sq += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < s->d; i++)
        v[i] = norm ? (double)x[i] / sqrt(sq / s->d + 1e-6) * (double)norm[i] : (double)x[i];
    for (uint32_t i = 0; i < s->d; i++) {
        uint32_t half = s->d / 2, f = i % half;
        double c = (double)io->cos[t * half + f], n = (double)io->sin[t * half + f];
        out[i] = !s->rotate ? v[i] : (i < half ? v[i] * c - v[i + half] * n : v[i] * c + v[i - half] * n);
    }
}

/* As kv_spread in kv_q8.h: sums and differences of pairs, one bit of the index at a time. */
static void spread_want(double *x, uint32_t d, bool query)
{
    uint32_t n = d & (0u - d);
    for (uint32_t bit = 1; bit < n; bit *= 2)
        for (uint32_t i = 0; i < d; i++) {
            if (i & bit) continue;
            double a = x[i], b = x[i + bit];
            x[i] = a + b;
            x[i + bit] = a - b;
        }
    for (uint32_t i = 0; i < d && query; i++) x[i] /= n;
}

static void near(struct element got, double want, enum be_dtype act, const char *what, const char *set,
                 uint32_t d)
{
    /* As the norm: 2^-20 of the terms (below 8), then a rounding to the act type; quants are of sums of them.
     */
    double bound = got.step > 0 ? 8 * 0x1p-20 * (d & (0u - d)) + got.step
                                : 8 * 0x1p-20 + fabs(want) * (act == BE_F32 ? 0x1p-20 : 0x1.02p-8);
    if (!(fabs(got.value - want) <= bound))
        fail_msg("%s: %s with D=%u is %.9g, should be %.9g", set, what, d, got.value, want);
}

static void qkv_check(const struct qkv_io *io, const struct qkv_shape *s, enum be_dtype act,
                      const struct be_kv *kv, const void *q, const char *set)
{
    uint32_t dpad = t_dpad(act, s->d);
    for (uint32_t seq = 0; seq < QSEQS; seq++) {
        for (uint32_t t = q_seq_row[seq]; t < q_seq_row[seq + 1]; t++) {
            double want[512];
            for (uint32_t h = 0; h < s->heads; h++) {
                qkv_head_want(io, s, t, h, s->norm ? io->qn : NULL, want);
                if (kv->type != BE_KV_ACT) spread_want(want, s->d, true);
                for (uint32_t i = 0; i < s->d; i++)
                    near((struct element){(double)get(q, act, ((size_t)t * s->heads + h) * s->d + i), 0},
                         want[i], act, "q", set, s->d);
            }
            uint32_t slot = io->pos[t] % 32;
            void *layer = kv_layer(kv, io->tables[q_seq_table[seq] + io->pos[t] / 32]);
            for (uint32_t g = 0; g < s->groups && s->parts != BE_Q; g++) {
                qkv_head_want(io, s, t, s->heads + g, s->norm ? io->kn : NULL, want);
                for (uint32_t i = 0; i < s->d && !s->norm; i++) want[i] -= (double)io->shift[g * s->d + i];
                if (kv->type != BE_KV_ACT) spread_want(want, s->d, false);
                const float *value =
                    io->qkv +
                    ((size_t)t * qkv_all(s) + s->heads + (s->parts == BE_QK ? 0 : s->groups) + g) * s->d;
                double sq = 0, rms = 1;
                for (uint32_t i = 0; i < s->d; i++) sq += (double)value[i] * (double)value[i] / s->d;
                if (s->v_norm) rms = 1 / sqrt(sq + 1e-6);
                for (uint32_t i = 0; i < dpad; i++) {
                    near(element(kv, act, layer, g, false, slot, i), i < s->d ? want[i] : 0, act, "k", set,
                         s->d);
                    near(element(kv, act, layer, g, true, slot, i),
                         i < s->d
                             ? (double)value[i] * rms
                             : kv->type == BE_KV_ACT && BACKEND_ON_CPU && i == s->d && kv_v_ones(act, s->d),
                         act, "v", set, s->d);
                }
            }
        }
    }
    /* The blocks that began in this call (of positions 0, 32 and 64) hold no NaN in the slots after the last
     * row, though the arena was full of them. */
    const uint32_t begun[3][2] = {{q_block[2], 70 % 32}, {q_block[7], 1}, {q_block[0], 32}};
    for (uint32_t n = 0; n < 3 && s->parts != BE_Q; n++) {
        void *layer = kv_layer(kv, io->tables[0] / q_block[0] * begun[n][0]);
        for (uint32_t g = 0; g < s->groups; g++)
            for (uint32_t slot = begun[n][1]; slot < 32; slot++)
                for (uint32_t i = 0; i < dpad; i++) {
                    assert_true(isfinite(element(kv, act, layer, g, false, slot, i).value));
                    assert_true(isfinite(element(kv, act, layer, g, true, slot, i).value));
                }
    }
}

static bool untouched(const unsigned char *p, size_t n)
{
    return p[0] == 0xff && memcmp(p, p + 1, n - 1) == 0;
}

static void check_qkv(enum be_kv_type type)
{
    for (size_t n = 0; n < sizeof qkv_shapes / sizeof *qkv_shapes; n++) {
        const struct qkv_shape *s = &qkv_shapes[n];
        FOR_SETS(set, act)
        {
            struct qkv_io io;
            rng_state = 99 + n;
            struct backend *b = open_set(set, act, 1);
            size_t layer = be_cpu_ops()->kv_layer_bytes(b, type, s->groups, s->d),
                   units = (2 * layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN, arena = QBLOCKS * units * BE_KV_GRAIN;
            assert_true(layer > 0 && layer % 64 == 0);
            be_cpu_ops()->close(b);
            qkv_io_init(&io, s, units);
            unsigned char *first = guarded(arena), *mem = guarded(arena);
            size_t q_bytes = (size_t)QT * s->heads * s->d * be_dtype_bytes(act);
            unsigned char *q1 = guarded(q_bytes), *q = guarded(q_bytes);
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                b = open_set(set, act, threads);
                memset(mem, 0xff, arena); /* NaN in both types */
                struct be_kv kv = {.arena = mem,
                                   .layer_offset = layer,
                                   .kv_heads = s->groups,
                                   .head_dim = s->d,
                                   .type = type};
                struct be_qkv_args a = {
                    .rows = &io.rows, .heads = s->heads, .kv = kv, .qkv = io.qkv, .eps = 1e-6f, .q = q};
                a.parts = s->parts;
                a.v_norm = s->v_norm;
                if (s->norm) a.q_norm = io.qn, a.k_norm = io.kn;
                else a.k_shift = io.shift;
                if (s->rotate) a.cos = io.cos, a.sin = io.sin;
                be_cpu_ops()->qkv(b, &a);
                be_cpu_ops()->close(b);
                if (threads == 1) qkv_check(&io, s, act, &kv, q, set); /* the others are compared with it */
                if (s->parts == BE_Q) assert_true(untouched(mem, arena));
                /* the other layer of every block, and blocks of nobody, are as they were */
                for (size_t i = 0; i < QBLOCKS; i++)
                    assert_true(untouched(mem + i * units * BE_KV_GRAIN, layer));
                assert_true(untouched(mem + 2 * units * BE_KV_GRAIN, units * BE_KV_GRAIN));
                if (threads == 1) {
                    memcpy(first, mem, arena);
                    memcpy(q1, q, q_bytes);
                }
                assert_memory_equal(first, mem, arena);
                assert_memory_equal(q1, q, q_bytes);
            }
            guarded_check(mem, arena);
            guarded_check(q, q_bytes);
            b = open_set(set, act, 1);
            /* What stands behind the first slots of a block is cleared, and nothing else is touched. */
            for (uint32_t from = 32; from > 0; from -= test_briefly() && from > 8 ? 8 : 1) {
                struct be_kv kv = {.arena = mem,
                                   .layer_offset = layer,
                                   .kv_heads = s->groups,
                                   .head_dim = s->d,
                                   .type = type};
                uint32_t block_offset = (uint32_t)units * q_block[0], dpad = t_dpad(act, s->d);
                memcpy(mem, first, arena);
                memset((char *)kv_layer(&kv, block_offset), 0xff, layer);
                be_cpu_ops()->kv_clear(b, &kv, block_offset, from);
                for (uint32_t g = 0; g < s->groups; g++)
                    for (uint32_t slot = 0; slot < 32; slot++)
                        for (uint32_t i = 0; i < dpad; i++) {
                            double k = element(&kv, act, kv_layer(&kv, block_offset), g, false, slot, i)
                                           .value,
                                   v = element(&kv, act, kv_layer(&kv, block_offset), g, true, slot, i).value;
                            assert_true(slot < from ? isnan(k) && isnan(v) : k == 0 && v == 0);
                        }
                memset((char *)kv_layer(&kv, block_offset), 0xff, layer);
                memset(first + ((char *)kv_layer(&kv, block_offset) - (char *)mem), 0xff, layer);
                assert_memory_equal(first, mem, arena);
            }
            be_cpu_ops()->close(b);
            guarded_check(mem, arena);
            guarded_free(first);
            guarded_free(mem);
            guarded_free(q1);
            guarded_free(q);
            free(io.qkv);
            free(io.cos);
            free(io.sin);
        }
    }
}

static void test_qkv(void **state)
{
    (void)state;
    check_qkv(BE_KV_ACT);
    if (BACKEND_ON_CPU) check_qkv(BE_KV_INT8);
}

/* Runs of elements: every code comes back, a run of zeros, of tiny and of huge numbers, and one with a number
 * that is none. */
static void test_kv_q8(void **state)
{
    (void)state;
    float x[KV_RUN];
    int8_t code[KV_RUN];
    for (int first = -127; first <= 127; first += (int)KV_RUN - 1) {
        x[0] = 127;
        for (int i = 1; i < (int)KV_RUN; i++) x[i] = (float)(first + i > 128 ? 0 : first + i - 1);
        assert_int_equal(kv_encode(x, KV_RUN, code), 0x3f80);
        for (uint32_t i = 0; i < KV_RUN; i++) assert_true((float)code[i] == x[i]);
    }
    static const float tops[] = {0, 1e-45f, 1e-30f, 1e-29f, 1, 3e38f};
    for (uint32_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        for (uint32_t k = 0; k < KV_RUN; k++) x[k] = rnd() * tops[i];
        x[3] = -tops[i];
        float scale = from_bf16(kv_encode(x, KV_RUN, code));
        for (uint32_t k = 0; k < KV_RUN; k++)
            assert_true(fabs((double)code[k] * (double)scale - (double)x[k]) <=
                        (double)tops[i] / 252 + 0x1p-90);
    }
    for (uint32_t i = 0; i < 2; i++) {
        x[7] = i ? NAN : -INFINITY;
        assert_true(isnan(from_bf16(kv_encode(x, KV_RUN, code))));
    }
}

/* ---- vision, rows */

struct patchify_case {
    uint32_t patch, width, height, depth,
        frames; /* frames: in the source; a still image in a deep tower has one */
    bool ordered, dense;
};
static const struct patchify_case patchify_cases[] = {
    {14, 42, 70, 0, 1, false, false}, {14, 56, 28, 1, 1, true, false}, {14, 56, 84, 2, 1, true, false},
    {16, 64, 32, 2, 2, true, false},  {4, 24, 8, 3, 3, false, false},  {5, 5, 5, 2, 2, true, false},
    {6, 36, 24, 1, 1, false, true},   {48, 96, 48, 1, 1, false, true},
};

/* Element i of the patch that covers cell q. */
static float patchify_want(const struct patchify_case *c, const uint8_t *rgb, const float *lut, uint32_t q,
                           uint32_t i)
{
    uint32_t depth = c->depth ? c->depth : 1, ps = c->patch, x = i % ps, y = i / ps % ps,
             frame = i / (ps * ps) % depth, channel = i / (ps * ps) / depth;
    if (channel >= 3) return 0;
    uint32_t row = q / (c->width / ps) * ps + y, col = q % (c->width / ps) * ps + x;
    const uint8_t *image = rgb + (c->frames > 1 ? (size_t)frame * c->width * c->height * 3 : 0);
    return lut[channel * 256 + image[((size_t)row * c->width + col) * 3 + channel]];
}

static void test_patchify(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof patchify_cases / sizeof *patchify_cases; n++) {
        const struct patchify_case *c = &patchify_cases[n];
        uint32_t cells = (c->width / c->patch) * (c->height / c->patch),
                 k = 3 * (c->depth ? c->depth : 1) * c->patch * c->patch;
        uint8_t *rgb = must(malloc((size_t)c->width * c->height * 3 * c->frames));
        uint32_t *order = must(malloc(cells * sizeof *order));
        float lut[768];
        rng_state = 3 + n;
        for (size_t i = 0; i < (size_t)c->width * c->height * 3 * c->frames; i++) rgb[i] = (uint8_t)rnd_u32();
        for (int i = 0; i < 768; i++) lut[i] = rnd();
        for (uint32_t i = 0; i < cells; i++) order[i] = i;
        for (uint32_t i = cells - 1; i > 0; i--) {
            uint32_t at = rnd_u32() % (i + 1), was = order[i];
            order[i] = order[at];
            order[at] = was;
        }
        FOR_SETS(set, act)
        {
            enum be_dtype type = c->dense ? BE_F32 : act;
            size_t ld = c->dense ? k : be_ld(k), bytes = cells * ld * be_dtype_bytes(type);
            for (uint32_t threads = 1; threads <= test_threads(); threads += 2) {
                struct backend *b = open_set(set, act, threads);
                unsigned char *out = guarded(bytes);
                struct be_patchify_args a = {.rgb = rgb,
                                             .width = c->width,
                                             .height = c->height,
                                             .patch = c->patch,
                                             .lut = lut,
                                             .out = out,
                                             .depth = c->depth};
                a.frame_stride = c->frames > 1 ? (size_t)c->width * c->height * 3 : 0;
                a.order = c->ordered ? order : NULL;
                a.dense = c->dense;
                be_cpu_ops()->patchify(b, &a);
                guarded_check(out, bytes);
                for (uint32_t p = 0; p < cells; p++) {
                    for (uint32_t i = 0; i < ld; i++) {
                        float want = patchify_want(c, rgb, lut, c->ordered ? order[p] : p, i),
                              got = get(out, type, p * ld + i);
                        if (type == BE_BF16) want = from_bf16(to_bf16(want));
                        if (got != want)
                            fail_msg("%s: patch of %u, depth %u: [%u][%u] is %.9g, should be %.9g", set,
                                     c->patch, c->depth, p, i, (double)got, (double)want);
                    }
                }
                guarded_free(out);
                be_cpu_ops()->close(b);
            }
        }
        free(rgb);
        free(order);
    }
}

static void test_interpolate_pack(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 17, 32, 45, 1152};
    enum { T = 37, S = 29, TAPS = 16 };
    for (size_t n = 0; n < sizeof widths / sizeof *widths; n++) {
        uint32_t c = widths[n], taps = n % 2 ? TAPS : 4, rows[T * TAPS];
        float *table = must(malloc(S * c * 4)), weights[T * TAPS];
        for (uint32_t i = 0; i < S * c; i++) table[i] = rnd();
        for (uint32_t i = 0; i < T * taps; i++) {
            rows[i] = rnd_u32() % S;
            weights[i] = i % 8 == 3 ? 0.0f : rnd();
        }
        FOR_SETS(set, act)
        {
            size_t bytes = (size_t)T * c * 4, ld = be_ld(c), packed_bytes = T * ld * be_dtype_bytes(act);
            unsigned char *first = NULL, *first_packed = NULL;
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(set, act, threads);
                unsigned char *out = guarded(bytes), *packed = guarded(packed_bytes);
                const float *got = (const float *)(void *)out;
                struct be_interpolate_args a = {.table = table,
                                                .rows = rows,
                                                .weights = weights,
                                                .t = T,
                                                .c = c,
                                                .taps = taps,
                                                .out = (float *)(void *)out};
                be_cpu_ops()->interpolate(b, &a);
                guarded_check(out, bytes);
                struct be_pack_args pa = {.x = got, .t = T, .c = c, .out = packed};
                be_cpu_ops()->pack(b, &pa);
                guarded_check(packed, packed_bytes);
                for (uint32_t i = 0; i < T * c; i++) {
                    double want = 0;
                    for (uint32_t k = i / c * taps; k < (i / c + 1) * taps; k++)
                        want += (double)weights[k] * (double)table[rows[k] * c + i % c];
                    if (!(fabs((double)got[i] - want) <= taps * 0x1p-23))
                        fail_msg("%s: interpolation is %.9g, should be %.9g", set, (double)got[i], want);
                }
                for (uint32_t i = 0; i < T * ld; i++) {
                    float want = i % ld < c ? got[i / ld * c + i % ld] : 0;
                    assert_true(get(packed, act, i) == (act == BE_BF16 ? from_bf16(to_bf16(want)) : want));
                }
                if (threads == 1) {
                    first = out;
                    first_packed = packed;
                } else {
                    assert_memory_equal(out, first, bytes);
                    assert_memory_equal(packed, first_packed, packed_bytes);
                }
                float *one = must(malloc(c * 4));
                for (uint32_t t = 0; t < T; t += 5) {
                    struct be_interpolate_args alone = {.table = table,
                                                        .rows = rows + t * taps,
                                                        .weights = weights + t * taps,
                                                        .t = 1,
                                                        .c = c,
                                                        .taps = taps,
                                                        .out = one};
                    be_cpu_ops()->interpolate(b, &alone);
                    assert_memory_equal(one, first + (size_t)t * c * 4, c * 4);
                }
                free(one);
                if (threads > 1) guarded_free(out);
                if (threads > 1) guarded_free(packed);
                be_cpu_ops()->close(b);
            }
            guarded_free(first);
            guarded_free(first_packed);
        }
        free(table);
    }
}

/* gate, then clamp of what it left: in place, and into columns of a wider matrix. */
static void gelu_clamp_check(enum be_gate f, uint32_t t, uint32_t c, enum be_dtype act, const float *x,
                             const float *y, uint32_t stride, const float *bounds, const void *product,
                             const void *clamped, const float *part, const char *set)
{
    size_t ld = be_ld(c);
    for (uint32_t i = 0; i < t * ld; i++) {
        uint32_t r = (uint32_t)(i / ld), k = (uint32_t)(i % ld);
        double z = k < c ? (double)x[r * c + k] : 0, u = sqrt(2 / M_PI) * (z + 0.044715 * z * z * z),
               factor = f == BE_GATE_CDF ? 0.5 * erfc(-z / sqrt(2)) : 0.5 * z * (1 + tanh(u)),
               want = k < c ? factor * (double)y[r * stride + k] : 0;
        double got = (double)get(product, act, i);
        /* The factor within 2^-20 of itself or of 1, then a rounding to the act type. */
        if (!(fabs(got - want) <= fabs(want) * (act == BE_F32 ? 0x1p-20 : 0x1.02p-8) + 0x1p-20))
            fail_msg("%s: gate of %g and %g is %.9g, should be %.9g", set, z, (double)y[r * stride + k], got,
                     want);
        float kept = (float)got < bounds[0] ? bounds[0] : (float)got > bounds[1] ? bounds[1] : (float)got;
        if (act == BE_BF16) kept = from_bf16(to_bf16(kept));
        assert_true(get(clamped, act, i) == (k < c ? kept : 0.0f));
        if (k >= c) continue;
        kept = x[r * c + k] < bounds[0] ? bounds[0] : x[r * c + k] > bounds[1] ? bounds[1] : x[r * c + k];
        assert_true(part[r * 3 * c + c + k] == kept);
        assert_true(part[r * 3 * c + k] == 7 && part[r * 3 * c + 2 * c + k] == 7);
    }
}

static void test_gelu_clamp(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 6, 17, 256, 1152};
    static const float all_bounds[][2] = {{-0.75f, 1.25f}, {-INFINITY, INFINITY}, {0.5f, 2.0f}};
    enum { T = 37 };
    for (size_t n = 0; n < sizeof widths / sizeof *widths; n++) {
        uint32_t c = widths[n], stride = c + 5;
        const float *bounds = all_bounds[n % 3];
        float *x = must(malloc(T * c * 4)), *y = must(malloc(T * stride * 4)),
              *part = must(malloc((size_t)T * 3 * c * 4));
        for (uint32_t i = 0; i < T * c; i++) x[i] = (i % 7 ? 3 : 40) * rnd();
        for (uint32_t i = 0; i < T * stride; i++) y[i] = 2 * rnd();
        FOR_SETS(set, act)
        {
            size_t ld = be_ld(c), bytes = T * ld * be_dtype_bytes(act);
            unsigned char *first = NULL;
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(set, act, threads);
                unsigned char *out = guarded(bytes), *clamped = guarded(bytes);
                struct be_gate_args a = {.f = n % 2 ? BE_GATE_CDF : BE_GATE_GELU_TANH,
                                         .gate = x,
                                         .gate_stride = c,
                                         .x = y,
                                         .x_stride = stride,
                                         .t = T,
                                         .heads = 1,
                                         .d = c,
                                         .out = out};
                be_cpu_ops()->gate(b, &a);
                guarded_check(out, bytes);
                memcpy(clamped, out, bytes);
                struct be_clamp_args k = {.dtype = act,
                                          .x = clamped,
                                          .x_stride = ld,
                                          .t = T,
                                          .c = c,
                                          .bounds = bounds,
                                          .out = clamped,
                                          .out_stride = ld,
                                          .pad = true};
                be_cpu_ops()->clamp(b, &k);
                guarded_check(clamped, bytes);
                for (size_t i = 0; i < (size_t)T * 3 * c; i++) part[i] = 7;
                k.dtype = BE_F32;
                k.x = x;
                k.x_stride = c;
                k.out = part + c;
                k.out_stride = 3 * (size_t)c;
                k.pad = false;
                be_cpu_ops()->clamp(b, &k);
                gelu_clamp_check(a.f, T, c, act, x, y, stride, bounds, out, clamped, part, set);
                if (!first) first = out;
                for (uint32_t t = 0; t < T; t += 5) {
                    unsigned char *one = must(aligned_alloc(64, (ld * 4 + 63) / 64 * 64));
                    struct be_gate_args alone = a;
                    alone.gate = x + (size_t)t * c;
                    alone.x = y + (size_t)t * stride;
                    alone.t = 1;
                    alone.out = one;
                    be_cpu_ops()->gate(b, &alone);
                    assert_memory_equal(one, first + t * ld * be_dtype_bytes(act), ld * be_dtype_bytes(act));
                    free(one);
                }
                guarded_free(clamped);
                be_cpu_ops()->close(b);
                assert_memory_equal(out, first, bytes);
                if (threads > 1) guarded_free(out);
            }
            guarded_free(first);
        }
        free(x);
        free(y);
        free(part);
    }
}

static void test_pool_gather(void **state)
{
    (void)state;
    FOR_SETS(set, act)
    {
        struct backend *b = open_set(set, act, 2);
        enum { GH = 8, GW = 12, KERNEL = 4, C = 45 };
        float grid[GH * GW * C];
        for (int i = 0; i < GH * GW * C; i++) grid[i] = rnd();
        unsigned char *pooled = guarded(2 * 3 * C * 4);
        struct be_pool_args pa = {
            .x = grid, .grid_h = GH, .grid_w = GW, .kernel = KERNEL, .c = C, .out = (float *)(void *)pooled};
        be_cpu_ops()->pool(b, &pa);
        guarded_check(pooled, 2 * 3 * C * 4);
        for (int o = 0; o < 2 * 3 * C; o++) {
            double sum = 0;
            for (int y = 0; y < KERNEL; y++)
                for (int x = 0; x < KERNEL; x++)
                    sum += (double)grid[((o / C / 3 * KERNEL + y) * GW + o / C % 3 * KERNEL + x) * C + o % C];
            assert_true(fabs((double)get(pooled, BE_F32, (size_t)o) - sum / 16) <= 16 * 0x1p-24);
        }
        pa.factor = 4.875f;
        pa.bias = grid;
        pa.scale = grid + C;
        float *plain = must(malloc(2 * 3 * C * 4));
        memcpy(plain, pooled, 2 * 3 * C * 4);
        be_cpu_ops()->pool(b, &pa);
        for (int o = 0; o < 2 * 3 * C; o++) {
            double want =
                ((double)plain[o] * (double)pa.factor - (double)grid[o % C]) * (double)grid[C + o % C];
            assert_true(fabs((double)get(pooled, BE_F32, (size_t)o) - want) <= 16 * 0x1p-24);
        }
        free(plain);
        guarded_free(pooled);

        static const uint32_t rows[] = {3, 0, 7, 7, 1};
        uint8_t src[8 * 36];
        for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)rnd_u32();
        unsigned char *dst = guarded(5 * 36);
        struct be_gather_args ga = {.src = src, .rows = rows, .count = 5, .row_bytes = 36, .dst = dst};
        be_cpu_ops()->gather(b, &ga);
        guarded_check(dst, 5 * 36);
        for (size_t i = 0; i < 5; i++) assert_memory_equal(dst + 36 * i, src + 36 * rows[i], 36);
        guarded_free(dst);
        be_cpu_ops()->close(b);
    }
}

static void test_memory(void **state)
{
    (void)state;
    struct backend *b = open_set("auto", BE_BF16, 2);
    const struct be_ops *ops = be_cpu_ops();
    static const size_t sizes[] = {1, 63, 4096, (size_t)3 << 20, ((size_t)5 << 20) + 1};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        void *p = NULL, *q = NULL;
        assert_int_equal(ops->alloc(b, sizes[s], &p), BE_OK);
        assert_int_equal(ops->alloc(b, sizes[s], &q), BE_OK);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < sizes[s]; i++) assert_int_equal(((char *)p)[i], 0);
        char *host = must(malloc(sizes[s]));
        for (size_t i = 0; i < sizes[s]; i++) host[i] = (char)rnd_u32();
        ops->upload(b, p, host, sizes[s]);
        ops->copy(b, q, p, sizes[s]);
        ops->zero(b, p, sizes[s]);
        char *back = must(malloc(sizes[s]));
        ops->download(b, back, q, sizes[s]);
        assert_memory_equal(back, host, sizes[s]);
        ops->download(b, back, p, sizes[s]);
        for (size_t i = 0; i < sizes[s]; i++) assert_int_equal(back[i], 0);
        free(host);
        free(back);
        ops->free(b, p);
        ops->free(b, q);
    }
    void *none = NULL;
    assert_int_equal(ops->alloc(b, SIZE_MAX - 100, &none), BE_NOMEM);
    assert_null(none);
    struct be_caps caps;
    ops->caps(b, &caps);
    assert_true(caps.memory_bytes > 0);
    if (BACKEND_ON_CPU) assert_true(caps.threads == 2 && caps.host_memory && !strncmp(caps.name, "cpu-", 4));
    assert_int_equal(ops->sync(b), BE_OK);
    assert_int_equal(ops->kv_layer_bytes(b, BE_KV_ACT, 1, 7),
                     0); /* heads of odd size have no rotation pairs */
    ops->close(b);
}

/* ---- logits */

/* Rows with ties, infinities and a NaN among them; also all equal. */
static float *logit_rows(uint32_t r, uint32_t v)
{
    float *x = must(malloc((size_t)r * v * 4 + 4));
    for (uint32_t i = 0; i < r * v; i++) x[i] = (float)(rnd_u32() % 4001) / 100 - 20;
    for (uint32_t i = 0; r > 1 && i < v; i++) x[v + i] = 1.5f;
    if (r > 2) x[2 * v + v / 2] = -INFINITY;
    if (r > 2) x[2 * v] = -INFINITY;
    x[(size_t)r * v] = -77;
    return x;
}

static const uint32_t vocabularies[] = {1, 2, 17, 1000, 8192, 20011, 262144};
enum { LOGIT_ROWS = 5 };

static void stats_check(const float *x, uint32_t v, float cap, const uint32_t *targets,
                        const struct be_logit_stats *got, const float *capped, const char *set)
{
    for (uint32_t r = 0; r < LOGIT_ROWS; r++) {
        const float *y = capped + (size_t)r * v;
        double max = -INFINITY, sum = 0;
        uint32_t arg = 0, rank = 1;
        for (uint32_t i = 0; i < v; i++) {
            double want = (double)x[(size_t)r * v + i];
            if (cap > 0) want = (double)cap * tanh(want / (double)cap);
            if (isfinite(want) && !(fabs((double)y[i] - want) <= fabs(want) * 0x1p-20))
                fail_msg("%s: softcap gives %.9g, should be %.9g", set, (double)y[i], want);
            if ((double)y[i] > max) max = (double)y[i], arg = i;
        }
        for (uint32_t i = 0; i < v; i++) {
            sum += exp((double)y[i] - max);
            uint32_t id = targets[r];
            if (id != UINT32_MAX) rank += y[i] > y[id] || (y[i] == y[id] && i < id);
        }
        assert_true((double)got[r].max == max);
        assert_int_equal(got[r].argmax, arg);
        /* exp within a few units, sums of at most V positive terms in f32: 2^-18 relative in the sum is that
         * much absolute in its log; the result is an f32. */
        double lse = max + log(sum);
        if (max == (double)-INFINITY) { /* no id is possible */
            assert_true(got[r].lse == -INFINITY);
            continue;
        }
        if (!(fabs((double)got[r].lse - lse) <= 0x1p-18 + fabs(lse) * 0x1p-23))
            fail_msg("%s V=%u: lse is %.9g, should be %.9g", set, v, (double)got[r].lse, lse);
        if (targets[r] == UINT32_MAX) continue;
        assert_true(got[r].target == y[targets[r]]);
        assert_int_equal(got[r].target_rank, rank);
    }
}

/* A device's draws: the token at that place of the cumulative weights, up to rounding, its value and rank. */
static void draws_check(uint32_t v, const struct be_draw *draws, const struct be_logit_stats *got,
                        const float *capped)
{
    for (uint32_t r = 0; r < LOGIT_ROWS; r++) {
        const float *y = capped + (size_t)r * v;
        uint32_t id = got[r].drawn, rank = 1;
        double total = 0, before = 0, weight = 0;
        if (draws[r].inverse == 0) assert_int_equal(id, UINT32_MAX);
        if (draws[r].inverse == 0 || !isfinite(got[r].lse)) continue;
        assert_true(id < v);
        for (uint32_t i = 0; i < v; i++) {
            double w = exp(((double)y[i] - (double)got[r].max) * (double)draws[r].inverse);
            total += w;
            if (i < id) before += w;
            if (i == id) weight = w;
            rank += y[i] > y[id] || (y[i] == y[id] && i < id);
        }
        double target = (double)draws[r].u * total, slack = total * 1e-5;
        assert_true(weight > 0 && before <= target + slack && before + weight >= target - slack);
        assert_true(got[r].drawn_value == y[id]);
        assert_int_equal(got[r].drawn_rank, rank);
    }
}

static void test_logit_stats(void **state)
{
    static const struct be_draw draws[LOGIT_ROWS] = {
        {1, 0.3f}, {0.7f, 0.9999f}, {0.9f, 0.5f}, {0, 0}, {1e30f, 0.1f}};

    (void)state;
    for (size_t n = 0; n < sizeof vocabularies / sizeof *vocabularies; n++) {
        if (getenv("KVASIR_TEST_SHORT") && vocabularies[n] > 30000) continue; /* slow under a sanitizer */
        uint32_t v = vocabularies[n], targets[LOGIT_ROWS] = {v - 1, v / 2, UINT32_MAX, v / 3, 0};
        rng_state = v;
        float *x = logit_rows(LOGIT_ROWS, v), *y = must(malloc((size_t)LOGIT_ROWS * v * 4 + 4));
        FOR_SETS(set, act)
        {
            if (act != BE_F32) continue; /* logits are f32 whatever the model computes in */
            for (int capped = 0; capped < 2; capped++) {
                struct be_logit_stats all[LOGIT_ROWS], one;
                float cap = capped ? 30.0f : 0.0f;
                for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                    struct backend *b = open_set(set, act, threads);
                    struct be_logit_stats got[LOGIT_ROWS];
                    memset(got, 0, sizeof got);
                    memcpy(y, x, (size_t)LOGIT_ROWS * v * 4 + 4);
                    struct be_logits_args a = {.logits = y,
                                               .r = LOGIT_ROWS,
                                               .v = v,
                                               .softcap = cap,
                                               .targets = targets,
                                               .draws = draws,
                                               .stats = got};
                    be_cpu_ops()->logit_stats(b, &a);
                    assert_true(y[(size_t)LOGIT_ROWS * v] == -77);
                    if (got[3].drawn == UINT32_MAX) draws_check(v, draws, got, y);
                    if (threads == 1) {
                        stats_check(x, v, cap, targets, got, y, set);
                        memcpy(all, got, sizeof got);
                    }
                    assert_memory_equal(all, got, sizeof got);
                    for (uint32_t r = 0; r < LOGIT_ROWS; r++) {
                        memcpy(y, x + (size_t)r * v, (size_t)v * 4);
                        memset(&one, 0, sizeof one);
                        a = (struct be_logits_args){.logits = y,
                                                    .r = 1,
                                                    .v = v,
                                                    .softcap = cap,
                                                    .targets = &targets[r],
                                                    .draws = &draws[r],
                                                    .stats = &one};
                        be_cpu_ops()->logit_stats(b, &a);
                        assert_memory_equal(&one, &all[r], sizeof one);
                    }
                    be_cpu_ops()->close(b);
                }
            }
        }
        free(x);
        free(y);
    }
}

/* One that is no number, wherever it stands and whatever else there is, shows in the sum: the engine goes by
 * that. */
static void test_logit_stats_nan(void **state)
{
    (void)state;
    enum { V = 20011 };
    static const uint32_t bad[][2] = {{0, 1},    {5, 6},     {V - 1, V}, {8192, 16384},
                                      {0, 8192}, {16384, V}, {0, V - 1}};
    float *x = must(malloc(V * sizeof *x));
    FOR_SETS(set, act)
    {
        if (act != BE_F32) continue;
        struct backend *b = open_set(set, act, 2);
        for (size_t n = 0; n < 2 * (sizeof bad / sizeof *bad); n++) {
            const uint32_t *range = bad[n / 2];
            struct be_logit_stats got = {0};
            for (uint32_t i = 0; i < V; i++) x[i] = i >= range[0] && i < range[1] ? NAN : (float)(i % 7);
            be_cpu_ops()->logit_stats(
                b, &(struct be_logits_args){
                       .logits = x, .r = 1, .v = V, .softcap = n % 2 ? 30.0f : 0.0f, .stats = &got});
            assert_true(isfinite(got.max));
            if (!isnan(got.lse))
                fail_msg("%s: NaN in %u..%u of %u, lse is %g", set, range[0], range[1], V, (double)got.lse);
        }
        be_cpu_ops()->close(b);
    }
    free(x);
}

struct ranked {
    float v;
    uint32_t id;
};
static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->v != y->v) return x->v > y->v ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void test_topk(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 5, 64, 256};
    for (size_t n = 0; n < sizeof vocabularies / sizeof *vocabularies; n++) {
        if (getenv("KVASIR_TEST_SHORT") && vocabularies[n] > 30000) continue;
        uint32_t v = vocabularies[n];
        rng_state = v + 3;
        float *x = logit_rows(LOGIT_ROWS, v);
        if (v > 100) x[3 * v + 50] = NAN;
        struct ranked *want = must(malloc((size_t)LOGIT_ROWS * v * sizeof *want));
        for (uint32_t i = 0; i < LOGIT_ROWS * v; i++)
            want[i] = (struct ranked){isnan(x[i]) ? -INFINITY : x[i], i % v};
        for (uint32_t r = 0; r < LOGIT_ROWS; r++) qsort(want + (size_t)r * v, v, sizeof *want, by_rank);
        FOR_SETS(set, act)
        {
            if (act != BE_F32) continue;
            for (uint32_t threads = 1; threads <= test_threads(); threads++) {
                struct backend *b = open_set(set, act, threads);
                for (size_t i = 0; i < sizeof ks / sizeof *ks && ks[i] <= v; i++) {
                    for (uint32_t rows = 1; rows <= LOGIT_ROWS; rows += 4) {
                        uint32_t k = ks[i];
                        unsigned char *ids = guarded(rows * k * 4), *values = guarded(rows * k * 4);
                        struct be_topk_args a = {.logits = x,
                                                 .r = rows,
                                                 .v = v,
                                                 .k = k,
                                                 .ids = (uint32_t *)(void *)ids,
                                                 .values = (float *)(void *)values};
                        be_cpu_ops()->topk(b, &a);
                        guarded_check(ids, rows * k * 4);
                        guarded_check(values, rows * k * 4);
                        for (uint32_t e = 0; e < rows * k; e++) {
                            const struct ranked *w = &want[(size_t)(e / k) * v + e % k];
                            if (a.ids[e] != w->id || a.values[e] != w->v)
                                fail_msg("%s V=%u k=%u row %u place %u: id %u, should be %u", set, v, k,
                                         e / k, e % k, a.ids[e], w->id);
                        }
                        guarded_free(ids);
                        guarded_free(values);
                    }
                }
                be_cpu_ops()->close(b);
            }
        }
        free(want);
        free(x);
    }
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_columns),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_qkv),
        cmocka_unit_test(test_kv_q8),
        cmocka_unit_test(test_patchify),
        cmocka_unit_test(test_interpolate_pack),
        cmocka_unit_test(test_gelu_clamp),
        cmocka_unit_test(test_pool_gather),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_logit_stats),
        cmocka_unit_test(test_logit_stats_nan),
        cmocka_unit_test(test_topk),
    };
    return cmocka_run_group_tests_name("backend ops", tests, NULL, NULL);
}

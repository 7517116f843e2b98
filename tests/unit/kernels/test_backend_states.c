/* The recurrent operations of the backend (conv, delta): every kernel set against the formula of backend.h in
 * double; and the same bits, outputs and states, however the rows are cut into calls, in place or from block
 * to block, with draft tokens after the kept rows, alongside other sequences, under 1, 2 and 3 threads. */
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 70, OTHER = 9, BLOCKS = 4 };

struct shape {
    uint32_t keys, values, dk, dv, k;
    bool tiled, times, bias; /* times, bias: of the convolution */
};
static const struct shape shapes[] = {
    {.keys = 1, .values = 1, .dk = 8, .dv = 8, .k = 2},
    {.keys = 2, .values = 6, .dk = 24, .dv = 10, .k = 3},
    {.keys = 2, .values = 4, .dk = 16, .dv = 33, .k = 4, .tiled = true},
    {.keys = 1, .values = 2, .dk = 128, .dv = 128, .k = 4},
    {.keys = 3, .values = 3, .dk = 5, .dv = 64, .k = 7},
    {.keys = 2, .values = 2, .dk = 130, .dv = 40, .k = 16},
    {.keys = 1, .values = 2, .dk = 70, .dv = 80, .k = 3, .times = true},
    {.keys = 2, .values = 2, .dk = 9, .dv = 8, .k = 5, .tiled = true, .times = true},
    {.keys = 1, .values = 2, .dk = 70, .dv = 80, .k = 4, .times = true, .bias = true},
    {.keys = 1, .values = 2, .dk = 128, .dv = 128, .k = 4, .bias = true},
};

/* One problem: inputs of a sequence and of another one next to it, and the weights. */
struct data {
    struct shape s;
    uint32_t columns, stride;
    size_t conv_bytes, block; /* bytes of a state's parts, of a block */
    float *x, *gates;         /* [ROWS + OTHER] inputs */
    float *weight, *decay, *dt_bias, *times, *bias;
};

static uint64_t rng = 1;
static float rnd(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (float)(uint32_t)(rng >> 33) / (float)(1u << 30) - 1.0f;
}
static float *randoms(size_t n, float scale)
{
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = scale * rnd();
    return p;
}

static void data_make(struct data *d, const struct shape *s)
{
    *d = (struct data){.s = *s, .columns = 2 * s->keys * s->dk + s->values * s->dv};
    d->stride = d->columns + s->values * s->dv + 3;
    d->conv_bytes = be_conv_bytes(d->columns, s->k);
    d->block = (d->conv_bytes + be_delta_bytes(s->values, s->dk, s->dv) + BE_KV_GRAIN - 1) / BE_KV_GRAIN *
               BE_KV_GRAIN;
    d->x = randoms((size_t)(ROWS + OTHER) * d->stride, 2);
    d->gates = randoms((size_t)(ROWS + OTHER) * 2 * s->values, 3);
    d->gates[2 * s->values - 1] = -40; /* far ends of sigmoid and softplus */
    d->gates[2 * s->values] = 60;
    if (s->times) d->times = randoms((size_t)(ROWS + OTHER) * d->stride, 1);
    if (s->bias) d->bias = randoms(d->columns, 1);
    d->weight = randoms((size_t)s->k * d->columns, 0.7f);
    d->decay = randoms(s->values, 1);
    d->dt_bias = randoms(s->values, 1);
    for (uint32_t h = 0; h < s->values; h++) d->decay[h] = -0.5f * fabsf(d->decay[h]);
}
static void data_free(struct data *d)
{
    free(d->x);
    free(d->gates);
    free(d->weight);
    free(d->times);
    free(d->bias);
    free(d->decay);
    free(d->dt_bias);
}

/* Results of a run: rows as the operations leave them, and the last state. */
struct result {
    float *x;
    unsigned char *arena, *last; /* last: in arena */
};
static void result_free(struct result *r)
{
    free(r->x);
    free(r->arena);
}

static void call(struct backend *b, const struct data *d, struct result *r, float *gates,
                 const struct be_states *st, bool outputs)
{
    const struct shape *s = &d->s;
    be_cpu_ops()->conv(b, &(struct be_conv_args){.states = st,
                                                 .x = r->x,
                                                 .times = d->times,
                                                 .stride = d->stride,
                                                 .c = d->columns,
                                                 .k = s->k,
                                                 .weight = d->weight,
                                                 .bias = d->bias});
    be_cpu_ops()->delta(b, &(struct be_delta_args){.states = st,
                                                   .layer_offset = d->conv_bytes,
                                                   .key_heads = s->keys,
                                                   .value_heads = s->values,
                                                   .key_dim = s->dk,
                                                   .value_dim = s->dv,
                                                   .tiled = s->tiled,
                                                   .qkv = r->x,
                                                   .stride = d->stride,
                                                   .gates = gates,
                                                   .decay = d->decay,
                                                   .dt_bias = d->dt_bias,
                                                   .outputs = outputs});
}

/* The sequence in calls of `chunk` rows. other: the other sequence is in the first call, after it. jump: each
 * call writes another block than it reads. drafts: so many rows after each call's are computed, too, and left
 * out of the state; those that follow are computed again from fresh inputs. */
static struct result run(struct backend *b, const struct data *d, uint32_t chunk, bool other, bool jump,
                         uint32_t drafts)
{
    size_t xs = (size_t)(ROWS + OTHER) * d->stride, gs = (size_t)(ROWS + OTHER) * 2 * d->s.values;
    struct result r = {.x = malloc(xs * 4), .arena = aligned_alloc(64, BLOCKS * d->block)};
    float *gates = malloc(gs * 4);
    assert_true(r.x && r.arena && gates);
    memcpy(r.x, d->x, xs * 4);
    memcpy(gates, d->gates, gs * 4);
    memset(r.arena, 0xa5, BLOCKS * d->block);
    uint32_t grains = (uint32_t)(d->block / BE_KV_GRAIN), now = BE_NO_BLOCK;
    for (uint32_t at = 0; at < ROWS;) {
        uint32_t n = chunk < ROWS - at ? chunk : ROWS - at,
                 more = drafts < ROWS - at - n ? drafts : ROWS - at - n;
        uint32_t to = jump && now == 0 ? grains : 0, seqs = other && at == 0 ? 3 : 1;
        const uint32_t first[] = {at, ROWS, ROWS + 4}, count[] = {n + more, 4, OTHER - 4},
                       kept[] = {n, 4, OTHER - 4}, from[] = {now, BE_NO_BLOCK, BE_NO_BLOCK},
                       put[] = {to, 2 * grains, BE_NO_BLOCK};
        struct be_states st = {r.arena, seqs, first, count, kept, from, put};
        call(b, d, &r, gates, &st, true);
        memcpy(r.x + (size_t)(at + n) * d->stride, d->x + (size_t)(at + n) * d->stride,
               (size_t)more * d->stride * 4);
        memcpy(gates + (size_t)(at + n) * 2 * d->s.values, d->gates + (size_t)(at + n) * 2 * d->s.values,
               (size_t)more * 2 * d->s.values * 4);
        now = to;
        at += n;
    }
    r.last = r.arena + (size_t)now * BE_KV_GRAIN;
    free(gates);
    return r;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The formulas in double, all rows. */
static void check_formula(const struct data *d, const struct result *r, const char *set)
{
    const struct shape *s = &d->s;
    double *c = calloc((size_t)ROWS * d->columns, sizeof *c),
           *state = calloc((size_t)s->values * s->dk * s->dv, sizeof *c);
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t i = 0; i < d->columns; i++) {
            double sum = d->bias ? (double)d->bias[i] : 0;
            for (uint32_t j = 0; j < s->k; j++)
                if (t + j + 1 >= s->k) {
                    size_t at = (size_t)(t + j + 1 - s->k) * d->stride + i;
                    sum += (double)d->weight[(size_t)j * d->columns + i] * (double)d->x[at] *
                           (d->times ? (double)d->times[at] : 1);
                }
            c[(size_t)t * d->columns + i] = d->times ? sum : sum * sigmoid(sum);
        }
    double worst = 0;
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t h = 0; h < s->values; h++) {
            uint32_t kh = s->tiled ? h % s->keys : h / (s->values / s->keys);
            const double *q = c + (size_t)t * d->columns + kh * s->dk, *k = q + s->keys * s->dk,
                         *v = c + (size_t)t * d->columns + 2 * s->keys * s->dk + h * s->dv;
            const float *gate = d->gates + (size_t)t * 2 * s->values + h;
            double qq = 1e-6, kk = 1e-6, beta = sigmoid((double)gate[0]),
                   *S = state + (size_t)h * s->dk * s->dv,
                   a = (double)gate[s->values] + (double)d->dt_bias[h],
                   g = exp((double)d->decay[h] * (a > 30 ? a : log1p(exp(a))));
            for (uint32_t i = 0; i < s->dk; i++) {
                qq += q[i] * q[i];
                kk += k[i] * k[i];
            }
            for (uint32_t j = 0; j < s->dv; j++) {
                double seen = 0, out = 0;
                for (uint32_t i = 0; i < s->dk; i++) seen += g * S[i * s->dv + j] * k[i] / sqrt(kk);
                for (uint32_t i = 0; i < s->dk; i++) {
                    S[i * s->dv + j] = g * S[i * s->dv + j] + k[i] / sqrt(kk) * beta * (v[j] - seen);
                    out += S[i * s->dv + j] * q[i] / sqrt(qq) / sqrt(s->dk);
                }
                double delta =
                    fabs(out - (double)r->x[(size_t)t * d->stride + 2 * s->keys * s->dk + h * s->dv + j]);
                if (!(delta <= worst)) worst = delta;
            }
        }
    /* States stay within a few units; 70 updates of up to 130 products each in f32. */
    if (!(worst < 1e-5))
        fail_msg("%s: keys %u x %u, values %u x %u: off by %g", set, s->keys, s->dk, s->values, s->dv, worst);
    free(c);
    free(state);
}

static void same(const struct data *d, const struct result *a, const struct result *b, const char *what)
{
    for (uint32_t t = 0; t < ROWS; t++)
        if (memcmp(a->x + (size_t)t * d->stride, b->x + (size_t)t * d->stride, d->stride * 4) != 0)
            fail_msg("%s: row %u differs", what, t);
    size_t bytes = (size_t)d->columns * (d->s.k - 1) * 4, delta = (size_t)d->s.values * d->s.dk * d->s.dv * 4;
    assert_memory_equal(a->last, b->last, bytes);
    assert_memory_equal(a->last + d->conv_bytes, b->last + d->conv_bytes, delta);
}

static void test_states(void **state)
{
    static const struct {
        uint32_t threads, chunk, drafts;
        bool other, jump;
    } ways[] = {{2, 1, 0, false, false},
                {1, 1, 2, false, true},
                {3, 7, 3, true, true},
                {2, 33, 16, true, false},
                {2, ROWS, 0, true, false}};
    (void)state;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        struct data d;
        if (test_in_small() && shapes[n].dk > 64) continue;
        data_make(&d, &shapes[n]);
        for (size_t k = 0; k < TEST_SETS; k++) {
            struct be_params p = {.act = BE_F32, .threads = 1, .kernels = backend_sets[k]};
            struct backend *b;
            if (!be_cpu_has(backend_sets[k])) continue;
            assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
            struct result base = run(b, &d, ROWS, false, false, 0);
            be_cpu_ops()->close(b);
            check_formula(&d, &base, backend_sets[k]);
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                p.threads = ways[w].threads;
                assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
                struct result r = run(b, &d, ways[w].chunk, ways[w].other, ways[w].jump, ways[w].drafts);
                same(&d, &base, &r, backend_sets[k]);
                result_free(&r);
                be_cpu_ops()->close(b);
            }
            result_free(&base);
        }
        data_free(&d);
    }
}

/* Without outputs only the state changes, and it is the same. */
static void test_replay(void **state)
{
    struct data d;
    (void)state;
    data_make(&d, &shapes[1]);
    for (size_t k = 0; k < TEST_SETS; k++) {
        struct be_params p = {.act = BE_F32, .threads = 2, .kernels = backend_sets[k]};
        struct backend *b;
        if (!be_cpu_has(backend_sets[k])) continue;
        assert_int_equal(be_cpu_ops()->open(&p, &b), BE_OK);
        struct result base = run(b, &d, ROWS, false, false, 0), r = run(b, &d, ROWS, false, false, 0);
        float *gates = malloc((size_t)ROWS * 2 * d.s.values * 4);
        const uint32_t zero = 0, rows = ROWS, none = BE_NO_BLOCK;
        memcpy(gates, d.gates, (size_t)ROWS * 2 * d.s.values * 4);
        memcpy(r.x, d.x, (size_t)ROWS * d.stride * 4);
        memset(r.arena, 0xa5, d.block);
        call(b, &d, &r, gates, &(struct be_states){r.arena, 1, &zero, &rows, &rows, &none, &zero}, false);
        assert_memory_equal(base.last + d.conv_bytes, r.arena + d.conv_bytes,
                            (size_t)d.s.values * d.s.dk * d.s.dv * 4);
        assert_memory_equal(base.last, r.arena, (size_t)d.columns * (d.s.k - 1) * 4);
        free(gates);
        result_free(&base);
        result_free(&r);
        be_cpu_ops()->close(b);
    }
    data_free(&d);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_replay)};
    return cmocka_run_group_tests_name("backend_states", tests, NULL, NULL);
}

/* ggml's blocks against the gguf package, bit for bit (tests/golden/ggml, made by
 * scripts/reference/ggml_goldens.py), as floats and as quants; and rows of floats as quants of 8 and 4 bits:
 * the bounds of the error, odd groups. */
#include "engine/checkpoint/ggml.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/lib/golden.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define GROUP   32u
#define F16_MAX 65504.0f

static uint32_t seed;

static float uniform(void) /* 0 < x < 1 */
{
    seed = seed * 1664525u + 1013904223u;
    return ((float)(seed >> 9) + 0.5f) * 0x1p-23f;
}

static float normal(void)
{
    float r = sqrtf(-2 * logf(uniform()));
    return r * cosf(6.2831853f * uniform());
}

/* ---- blocks ---- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static void same_bits(const char *name, const char *how, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bits_of(got[i]) != bits_of(want[i]))
            fail_msg("%s %s: number %zu is %a, not %a", name, how, i, (double)got[i], (double)want[i]);
}

/* The header's formula. */
static void decode(const struct ggml_type *t, const uint8_t *code, const float *scale, const float *min,
                   size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        float s = scale[i / t->group];
        if (t->min) out[i] = s * (float)code[i] + min[i / t->group];
        else out[i] = s * (float)((int)code[i] - (int)t->off);
    }
}

static void check_quants(const struct ggml_type *t, const uint8_t *bytes, const float *want, size_t n)
{
    uint8_t *code = malloc(n);
    float *scale = malloc(n / t->group * sizeof(float)), *got = malloc(n * sizeof(float));
    float *min = t->min ? malloc(n / t->group * sizeof(float)) : NULL;
    assert_true(code && scale && got && (min || !t->min));
    ggml_quants(t, bytes, n, code, scale, min);
    for (size_t i = 0; i < n; i++) assert_true(code[i] < 1u << t->bits);
    decode(t, code, scale, min, n, got);
    same_bits(t->name, "as codes", got, want, n);
    free(code);
    free(scale);
    free(min);
    free(got);
}

/* Bytes and values stand where nothing is aligned for them, and are no longer than they must be: a sanitizer
 * sees what is read beyond. */
static void check_type(const struct ggml_type *t, const struct stf_tensor *b, const struct stf_tensor *v)
{
    size_t n = v->bytes / 4, bytes = n / t->block * t->bytes;
    assert_int_equal(n % t->block, 0);
    assert_int_equal(b->bytes, bytes);
    uint8_t *src = malloc(bytes + 1);
    float *got = malloc(4 * n), *want = malloc(4 * n);
    assert_true(src && got && want);
    memcpy(src + 1, b->data, bytes);
    memcpy(want, v->data, 4 * n);
    ggml_to_f32(t, src + 1, n, got);
    same_bits(t->name, "as floats", got, want, n);
    for (size_t i = 0; i < n / t->block; i++) /* block by block the same */
        ggml_to_f32(t, src + 1 + i * t->bytes, t->block, got + i * t->block);
    same_bits(t->name, "by blocks", got, want, n);
    if (t->bits) check_quants(t, src + 1, want, n);
    free(src);
    free(got);
    free(want);
}

static void equals_the_package(void **state)
{
    (void)state;
    char path[512], key[64];
    golden_dir(path, sizeof path, "ggml", "golden.safetensors");
    struct stf_files *f;
    struct err err;
    if (stf_open_file(path, &f, &err)) fail_msg("%s", err.msg);
    size_t types = 0;
    for (uint32_t id = 0; id < 256; id++) {
        const struct ggml_type *t = ggml_type_of(id);
        if (!t) continue;
        types++;
        assert_int_equal(t->id, id);
        snprintf(key, sizeof key, "%s.bytes", t->name);
        const struct stf_tensor *b = stf_find(f, key);
        snprintf(key, sizeof key, "%s.values", t->name);
        const struct stf_tensor *v = stf_find(f, key);
        if (!b || !v) fail_msg("no golden blocks of %s", t->name);
        check_type(t, b, v);
    }
    assert_int_equal(types, 16);
    assert_int_equal(2 * types, stf_count(f));
    stf_close(f);
}

static void other_types_are_not_served(void **state)
{
    (void)state;
    /* Removed ones, Q8_1 and Q8_K (of activations), IQ2_XXS, I8, F64, TQ1_0, beyond the list */
    static const uint32_t ids[] = {4, 5, 9, 15, 16, 24, 28, 31, 34, 40, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) assert_null(ggml_type_of(ids[i]));
}

/* Whatever the bytes are, nothing is undefined and quants keep their range. */
static void any_bytes(void **state)
{
    (void)state;
    seed = 1;
    for (uint32_t id = 0; id < 40; id++) {
        const struct ggml_type *t = ggml_type_of(id);
        if (!t || !t->bits) continue;
        for (uint32_t k = 0; k < 400; k++) {
            uint8_t src[256], code[256];
            float scale[16], min[16], out[256];
            for (uint32_t i = 0; i < t->bytes; i++)
                src[i] = k < 2 ? (uint8_t)(0 - k) : (uint8_t)(uniform() * 256);
            ggml_quants(t, src, t->block, code, scale, min);
            for (uint32_t i = 0; i < t->block; i++) assert_true(code[i] < 1u << t->bits);
            ggml_to_f32(t, src, t->block, out);
        }
    }
}

/* All numbers of F16, against their formula. */
static void every_f16(void **state)
{
    (void)state;
    const struct ggml_type *t = ggml_type_of(1);
    for (uint32_t h = 0; h < 65536; h++) {
        uint8_t src[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float got, want;
        ggml_to_f32(t, src, 1, &got);
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        if (e == 31) want = m ? NAN : INFINITY;
        else want = e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
        if (e == 31 && m) assert_true(isnan(got));
        else if (bits_of(got) != bits_of(h >> 15 ? -want : want)) fail_msg("F16 %04x is %a", h, (double)got);
    }
}

/* ---- quantisers ---- */

struct row {
    float x[GROUP], scale, min, value[GROUP];
    uint8_t code[GROUP];
};

static double square_error(const struct row *r)
{
    double s = 0;
    for (uint32_t i = 0; i < GROUP; i++) s += pow((double)r->x[i] - (double)r->value[i], 2);
    return s;
}

static void quantise(struct row *r, uint32_t bits)
{
    r->min = 0;
    if (bits == 8) quantize_row_int8(r->x, GROUP, r->code, &r->scale);
    else quantize_row_int4(r->x, GROUP, r->code, &r->scale, &r->min);
    assert_true(r->scale >= 0 && isfinite(r->scale) && isfinite(r->min));
    for (uint32_t i = 0; i < GROUP; i++) {
        assert_true(bits == 8 ? r->code[i] > 0 : r->code[i] < 16);
        r->value[i] = r->scale * (float)((int)r->code[i] - (bits == 8 ? 128 : 0)) + r->min;
    }
}

/* Every f16 is (up to) 11 bits times a power of two, not below 2^-24. */
static void assert_f16(float x)
{
    int e;
    frexpf(x, &e);
    float unit = ldexpf(1, e - 11 > -24 ? e - 11 : -24);
    assert_true(x == 0 || (fabsf(x) <= F16_MAX && x / unit == truncf(x / unit)));
}

static void check_int8(struct row *r)
{
    quantise(r, 8);
    float most = 0;
    for (uint32_t i = 0; i < GROUP; i++) most = fmaxf(most, fabsf(r->x[i]));
    assert_f16(r->scale);
    float exact = most / 127, half = 0x1p-12f * exp2f(floorf(log2f(exact)) + 1); /* of f16's last place */
    if (exact > 0x1p-13f) assert_true(fabsf(r->scale - exact) <= half * 1.0001f);
    else assert_true(r->scale <= exact + 0x1p-24f);
    for (uint32_t i = 0; i < GROUP; i++) {
        double e = fabs((double)r->x[i] - (double)r->value[i]);
        if (!(e <= 0.5001 * (double)r->scale + 1e-45))
            fail_msg("%a is %a, scale %a", (double)r->x[i], (double)r->value[i], (double)r->scale);
    }
}

/* The squared error of the plain rule, with f16's rounding allowed for. */
static double plain_error(const struct row *r)
{
    float lo = r->x[0], hi = r->x[0];
    for (uint32_t i = 1; i < GROUP; i++) {
        lo = fminf(lo, r->x[i]);
        hi = fmaxf(hi, r->x[i]);
    }
    double step = ((double)hi - (double)lo) / 15, s = 0;
    double rounding = fmax(fabs((double)lo), (double)hi - (double)lo) * 0x1p-10 + 0x1p-20;
    for (uint32_t i = 0; i < GROUP; i++) {
        double q = step > 0 ? floor(((double)r->x[i] - (double)lo) / step + 0.5) : 0;
        s += pow(fabs((double)lo + step * q - (double)r->x[i]) + rounding, 2);
    }
    return s;
}

static void check_int4(struct row *r)
{
    quantise(r, 4);
    assert_f16(r->scale);
    assert_f16(r->min);
    for (uint32_t i = 0; i < GROUP; i++) { /* no other code is nearer */
        double e = fabs((double)r->x[i] - (double)r->value[i]);
        double slack = 1e-4 * (double)r->scale + 1e-6 * fabs((double)r->x[i]) + 1e-45;
        for (int q = 0; q < 16; q++)
            assert_true(e <= fabs((double)r->x[i] - (double)(r->scale * (float)q + r->min)) + slack);
    }
    assert_true(square_error(r) <= plain_error(r));
}

static void check_both(struct row *r)
{
    check_int8(r);
    check_int4(r);
}

/* Of all sizes that f16 can hold, centred or far from zero, with outliers. */
static void errors_are_bounded(void **state)
{
    (void)state;
    seed = 2;
    for (uint32_t k = 0; k < (test_briefly() ? 2000 : 20000); k++) {
        struct row r;
        float size = ldexpf(1, (int)(uniform() * 45) - 32), middle = k % 3 ? 0 : size * 8 * normal();
        for (uint32_t i = 0; i < GROUP; i++) r.x[i] = middle + size * normal();
        if (k % 5 == 0) r.x[k % GROUP] *= 20;
        for (uint32_t i = 0; i < GROUP; i++) r.x[i] = fmaxf(-F16_MAX, fminf(F16_MAX, r.x[i]));
        check_both(&r);
    }
}

/* What the refits are for. Measured: 0.861 of the plain rule's squared error. */
static void int4_fits(void **state)
{
    (void)state;
    seed = 3;
    double ours = 0, plain = 0;
    for (uint32_t k = 0; k < 4000; k++) {
        struct row r;
        float lo = INFINITY, hi = -INFINITY;
        for (uint32_t i = 0; i < GROUP; i++) {
            r.x[i] = 0.02f * normal();
            lo = fminf(lo, r.x[i]);
            hi = fmaxf(hi, r.x[i]);
        }
        quantise(&r, 4);
        ours += square_error(&r);
        float step = (hi - lo) / 15;
        for (uint32_t i = 0; i < GROUP; i++) r.value[i] = lo + step * rintf((r.x[i] - lo) / step);
        plain += square_error(&r);
    }
    if (!(ours < 0.88 * plain)) fail_msg("%.3f of the plain rule's squared error", ours / plain);
}

static void fill(struct row *r, float even, float odd)
{
    for (uint32_t i = 0; i < GROUP; i++) r->x[i] = i % 2 ? odd : even;
    check_both(r);
}

static void odd_groups(void **state)
{
    (void)state;
    struct row r;
    fill(&r, 0, 0);
    for (uint32_t i = 0; i < GROUP; i++) assert_true(r.value[i] == 0 && r.scale == 0);
    static const float same[] = {0.5f, -0.375f, 1e-3f, -1e-3f, F16_MAX, -F16_MAX, 0x1p-24f, 1e-10f, -1e-42f};
    for (size_t k = 0; k < sizeof same / sizeof same[0]; k++) {
        fill(&r, same[k], same[k]);
        for (uint32_t i = 0; i < GROUP; i++)
            assert_true(fabsf(r.value[i] - same[k]) <= fabsf(same[k]) * 0x1p-10f + 0x1p-25f);
    }
    fill(&r, -F16_MAX, F16_MAX);
    fill(&r, 1000, 1000.01f);
    fill(&r, 1e-7f, -1e-7f);
    fill(&r, 0x1p-25f, 0);
    fill(&r, 127.5f * 0x1p-24f, -127.5f * 0x1p-24f); /* half a step beyond the last code */
    fill(&r, -0.0f, 1e-45f);
}

static void what_f16_cannot_hold(void **state)
{
    (void)state;
    static const float beyond[] = {INFINITY, -INFINITY, NAN, 1e38f, -3e38f, 65505, 1e6f};
    for (size_t k = 0; k < sizeof beyond / sizeof beyond[0]; k++)
        for (uint32_t bits = 4; bits <= 8; bits += 4) {
            struct row r = {.x = {0}};
            r.x[3] = beyond[k];
            r.x[9] = isnan(beyond[k]) ? -NAN : -beyond[k];
            quantise(&r, bits);
            double want = isnan(beyond[k]) ? 0 : (double)copysignf(F16_MAX, beyond[k]);
            double step = (double)r.scale;
            assert_true(fabs((double)r.value[3] - want) <= step && fabs((double)r.value[9] + want) <= step);
        }
}

/* Alone or in a longer row, once or again: the same. */
static void rows_are_their_groups(void **state)
{
    (void)state;
    seed = 4;
    enum { N = 40 * GROUP };
    static float x[N], scale[2][N / GROUP], min[2][N / GROUP];
    static uint8_t code[2][N];
    for (uint32_t i = 0; i < N; i++) x[i] = normal();
    quantize_row_int8(x, N, code[0], scale[0]);
    for (uint32_t g = 0; g < N; g += GROUP)
        quantize_row_int8(x + g, GROUP, code[1] + g, &scale[1][g / GROUP]);
    assert_memory_equal(code[0], code[1], sizeof code[0]);
    assert_memory_equal(scale[0], scale[1], sizeof scale[0]);
    quantize_row_int4(x, N, code[0], scale[0], min[0]);
    for (uint32_t g = N; g > 0; g -= GROUP)
        quantize_row_int4(x + g - GROUP, GROUP, code[1] + g - GROUP, &scale[1][g / GROUP - 1],
                          &min[1][g / GROUP - 1]);
    assert_memory_equal(code[0], code[1], sizeof code[0]);
    assert_memory_equal(scale[0], scale[1], sizeof scale[0]);
    assert_memory_equal(min[0], min[1], sizeof min[0]);
    quantize_row_int8(x, 0, code[0], scale[0]);
    quantize_row_int4(x, 0, code[0], scale[0], min[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_package),
        cmocka_unit_test(other_types_are_not_served),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(every_f16),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(int4_fits),
        cmocka_unit_test(odd_groups),
        cmocka_unit_test(what_f16_cannot_hold),
        cmocka_unit_test(rows_are_their_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

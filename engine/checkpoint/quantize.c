/* Rows of floats as quants of 8 or 4 bits: see ggml.h. Scales and minima are floats that f16 can hold.
 *
 * Written for a compiler that has to keep the order of float sums and the flags of float comparisons: groups
 * are in lanes, which are independent; numbers are compared as integers, and nothing is divided by 0. So a
 * row's quants do not depend on vectorisation. */
#include "engine/checkpoint/ggml.h"

#include "config/base/assert.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define GROUP    32u
#define LANES    16u /* groups fitted in parallel */
#define F16_MAX  65504.0f
#define F16_STEP 0x1p-24f /* between subnormal numbers */
/* Of fits to the quants of one group: on normal data four take 14 % off the squared error, eight 14.4 %. */
#define REFITS 4

INLINE float float_of(int32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

INLINE int32_t bits_of(float f)
{
    int32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

INLINE int32_t clamp(int32_t x, int32_t lo, int32_t hi)
{
    x = x < hi ? x : hi;
    return x > lo ? x : lo;
}

/* Integers in the order of the floats whose bits they are, and back. */
INLINE int32_t ordered(int32_t bits)
{
    return bits ^ (bits >> 31 & INT32_MAX);
}

INLINE float f16_clamp(float x)
{
    int32_t most = bits_of(F16_MAX), bits = bits_of(x);
    int32_t size = clamp(bits & INT32_MAX, 0, most), sign = bits & INT32_MIN;
    return float_of((bits & INT32_MAX) > bits_of(__builtin_inff()) ? 0 : sign | size);
}

INLINE float choose(bool which, float yes, float no)
{
    int32_t mask = -(int32_t)which;
    return float_of((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

/* To the nearest number of f16, ties to even. */
INLINE float f16_round(float x)
{
    float y = f16_clamp(x), half = float_of(bits_of(0.5f) | (bits_of(y) & INT32_MIN));
    int32_t u = bits_of(y);
    /* 0.5 has F16_STEP as its last place */
    return choose((u & INT32_MAX) < bits_of(0x1p-14f), (y + half) - half,
                  float_of((u + 0xfff + (u >> 13 & 1)) & ~0x1fff));
}

/* That of `steps` steps over `range`, which is not negative. Rounding down among subnormal numbers can leave
 * more than half a step of the range uncovered. */
INLINE float scale_of(float range, float steps)
{
    float s = f16_round(range / steps);
    return choose(bits_of(s * (steps + 0.5f)) < bits_of(range), s + F16_STEP, s);
}

INLINE float inverse_of(float scale)
{
    bool some = bits_of(scale) > 0;
    return choose(some, 1 / choose(some, scale, 1), 0);
}

/* The integer nearest to x + off, at least lo and at most hi, all of them 0 to 255. From 2^23 on floats have
 * a last place of 1, so the sum is rounded once, and their bits are in the order of their values. */
INLINE int32_t nearest(float x, float off, int32_t lo, int32_t hi)
{
    int32_t zero = bits_of(0x1p23f);
    return clamp(bits_of(x + (0x1p23f + off)), zero + lo, zero + hi) & 255;
}

INLINE void row_int8(const float *x, size_t n, uint8_t *code, float *scale)
{
    for (size_t at = 0; at < n; at += GROUP) {
        float v[GROUP];
        int32_t most = 0; /* of |v| */
        for (uint32_t i = 0; i < GROUP; i++) v[i] = f16_clamp(x[at + i]);
        for (uint32_t i = 0; i < GROUP; i++) {
            int32_t size = bits_of(v[i]) & INT32_MAX;
            most = size > most ? size : most;
        }
        float s = scale_of(float_of(most), 127), inverse = inverse_of(s);
        scale[at / GROUP] = s;
        for (uint32_t i = 0; i < GROUP; i++) code[at + i] = (uint8_t)nearest(v[i] * inverse, 128, 1, 255);
    }
}

/* ---- groups in parallel, [..][LANES] ---- */

#define EACH_LANE for (uint32_t g = 0; g < LANES; g++)

struct fit {
    float scale[LANES], min[LANES], error[LANES]; /* sums of squares */
    int32_t code[GROUP][LANES];
};

/* By halves. Destroys x. */
INLINE void sum(float x[GROUP][LANES], float out[LANES])
{
    for (uint32_t half = GROUP / 2; half >= 4; half /= 2)
        for (uint32_t i = 0; i < half; i++) EACH_LANE x[i][g] += x[i + half][g];
    EACH_LANE out[g] = (x[0][g] + x[2][g]) + (x[1][g] + x[3][g]);
}

/* The nearest quants under f's scales and minima. */
INLINE void encode(struct fit *f, float v[GROUP][LANES])
{
    float inverse[LANES], square[GROUP][LANES];
    EACH_LANE inverse[g] = inverse_of(f->scale[g]);
    for (uint32_t i = 0; i < GROUP; i++) {
        EACH_LANE f->code[i][g] = nearest((v[i][g] - f->min[g]) * inverse[g], 0, 0, 15);
        EACH_LANE
        {
            float e = v[i][g] - (f->scale[g] * (float)f->code[i][g] + f->min[g]);
            square[i][g] = e * e;
        }
    }
    sum(square, f->error);
}

/* Scales and minima with the least squared error for f's quants. A lane stops when its quants are all the
 * same, or when no scale is above 0. `zero` is subtracted first: the sums of a group far from 0 would lose
 * its spread. */
INLINE void refit(struct fit *f, float v[GROUP][LANES], const float zero[LANES], int32_t live[LANES])
{
    float ys[GROUP][LANES], qys[GROUP][LANES], y[LANES], qy[LANES];
    int32_t q[LANES] = {0}, qq[LANES] = {0};
    for (uint32_t i = 0; i < GROUP; i++) {
        EACH_LANE q[g] += f->code[i][g];
        EACH_LANE qq[g] += f->code[i][g] * f->code[i][g];
        EACH_LANE ys[i][g] = v[i][g] - zero[g];
        EACH_LANE qys[i][g] = ys[i][g] * (float)f->code[i][g];
    }
    sum(ys, y);
    sum(qys, qy);
    EACH_LANE
    {
        int32_t det = (int32_t)GROUP * qq[g] - q[g] * q[g];
        float slope = ((float)GROUP * qy[g] - (float)q[g] * y[g]) / (float)(det ? det : 1);
        f->scale[g] = f16_round(slope);
        f->min[g] = f16_round(zero[g] + (y[g] - slope * (float)q[g]) / (float)GROUP);
        live[g] &= -(int32_t)(det != 0) & -(int32_t)(bits_of(f->scale[g]) > 0);
    }
}

/* Begins with the plain rule, and iterates while the error falls. */
INLINE void fit_groups(float v[GROUP][LANES], struct fit *best)
{
    int32_t low[LANES], high[LANES], live[LANES], any = 0;
    float least[LANES];
    struct fit next;
    EACH_LANE low[g] = INT32_MAX;
    EACH_LANE high[g] = INT32_MIN;
    for (uint32_t i = 0; i < GROUP; i++) {
        EACH_LANE
        {
            int32_t o = ordered(bits_of(v[i][g]));
            low[g] = o < low[g] ? o : low[g];
            high[g] = o > high[g] ? o : high[g];
        }
    }
    EACH_LANE
    {
        float most = float_of(ordered(high[g]));
        least[g] = float_of(ordered(low[g]));
        best->min[g] = f16_round(least[g]);
        float range = choose(high[g] > ordered(bits_of(best->min[g])), most - best->min[g], 0);
        best->scale[g] = scale_of(range, 15);
    }
    encode(best, v);
    EACH_LANE live[g] = -(int32_t)(bits_of(best->error[g]) > 0);
    EACH_LANE any |= live[g];
    for (uint32_t k = 0; k < REFITS && any; k++) {
        next = *best;
        refit(&next, v, least, live);
        encode(&next, v);
        EACH_LANE live[g] &= -(int32_t)(bits_of(next.error[g]) < bits_of(best->error[g]));
        EACH_LANE best->scale[g] = choose(live[g], next.scale[g], best->scale[g]);
        EACH_LANE best->min[g] = choose(live[g], next.min[g], best->min[g]);
        EACH_LANE best->error[g] = choose(live[g], next.error[g], best->error[g]);
        for (uint32_t i = 0; i < GROUP; i++)
            EACH_LANE best->code[i][g] = (next.code[i][g] & live[g]) | (best->code[i][g] & ~live[g]);
        any = 0;
        EACH_LANE live[g] &= -(int32_t)(bits_of(best->error[g]) > 0);
        EACH_LANE any |= live[g];
    }
}

INLINE void row_int4(const float *x, size_t n, uint8_t *code, float *scale, float *min)
{
    float v[GROUP][LANES];
    struct fit f;
    for (size_t at = 0; at < n; at += GROUP * LANES) {
        size_t groups = (n - at) / GROUP < LANES ? (n - at) / GROUP : LANES;
        if (groups < LANES) memset(v, 0, sizeof v);
        for (uint32_t g = 0; g < groups; g++)
            for (uint32_t i = 0; i < GROUP; i++) v[i][g] = x[at + g * GROUP + i];
        for (uint32_t i = 0; i < GROUP; i++) EACH_LANE v[i][g] = f16_clamp(v[i][g]);
        fit_groups(v, &f);
        memcpy(scale + at / GROUP, f.scale, groups * sizeof *scale);
        memcpy(min + at / GROUP, f.min, groups * sizeof *min);
        for (uint32_t g = 0; g < groups; g++)
            for (uint32_t i = 0; i < GROUP; i++) code[at + g * GROUP + i] = (uint8_t)f.code[i][g];
    }
}

/* ---- variants for the CPU's instruction sets ---- */

struct rows {
    void (*int8)(const float *x, size_t n, uint8_t *code, float *scale);
    void (*int4)(const float *x, size_t n, uint8_t *code, float *scale, float *min);
};

#define ROWS(name, attribute)                                                                                \
    attribute static void int8_##name(const float *x, size_t n, uint8_t *code, float *scale)                 \
    {                                                                                                        \
        row_int8(x, n, code, scale);                                                                         \
    }                                                                                                        \
    attribute static void int4_##name(const float *x, size_t n, uint8_t *code, float *scale, float *min)     \
    {                                                                                                        \
        row_int4(x, n, code, scale, min);                                                                    \
    }                                                                                                        \
    static const struct rows rows_##name = {int8_##name, int4_##name};

ROWS(plain, )
#if defined(__x86_64__)
ROWS(avx2, __attribute__((target("avx2"))))
ROWS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))

static const struct rows *rows(void)
{
    bool f = __builtin_cpu_supports("avx512f"), bw = __builtin_cpu_supports("avx512bw"),
         dq = __builtin_cpu_supports("avx512dq"), vl = __builtin_cpu_supports("avx512vl");
    if (f && bw && dq && vl) return &rows_avx512;
    return __builtin_cpu_supports("avx2") ? &rows_avx2 : &rows_plain;
}
#else
static const struct rows *rows(void)
{
    return &rows_plain;
}
#endif

void quantize_row_int8(const float *x, size_t n, uint8_t *code, float *scale)
{
    ASSERT(n % GROUP == 0);
    rows()->int8(x, n, code, scale);
}

void quantize_row_int4(const float *x, size_t n, uint8_t *code, float *scale, float *min)
{
    ASSERT(n % GROUP == 0);
    rows()->int4(x, n, code, scale, min);
}

/* See ggml.h. Blocks below are given as their bytes in order; d, dmin are f16, little-endian. */
#include "engine/checkpoint/ggml.h"

#include "config/base/assert.h"
#include "config/base/floats.h"

#define BLOCK_MAX  256u
#define GROUPS_MAX (BLOCK_MAX / 16)

static uint32_t u16_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static float f16_at(const uint8_t *p)
{
    return f16_to_f32(u16_at(p));
}

/* q [run] holds 8 / width fields a byte: code[0 .. run) the lowest ones, then the next ones. They are put
 * into the quants' bits from `up` on. */
static inline void fields(const uint8_t *q, uint32_t run, uint32_t width, uint32_t up, uint8_t *code)
{
    for (uint32_t s = 0; s < 8; s += width, code += run)
        for (uint32_t i = 0; i < run; i++) {
            uint32_t f = ((uint32_t)q[i] >> s & ((1u << width) - 1)) << up;
            code[i] = (uint8_t)(up ? code[i] | f : f);
        }
}

/* ---- blocks of 32 ---- */

/* d, 16 bytes */
static void quant_q4_0(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    scale[0] = f16_at(src);
    fields(src + 2, 16, 4, 0, code);
}

/* d, min, 16 bytes */
static void quant_q4_1(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    scale[0] = f16_at(src);
    min[0] = f16_at(src + 2);
    fields(src + 4, 16, 4, 0, code);
}

/* Fifth bits [4], 16 bytes */
static void five_bits(const uint8_t *src, uint8_t *code)
{
    fields(src + 4, 16, 4, 0, code);
    for (uint32_t i = 0; i < 32; i++) code[i] = (uint8_t)(code[i] | (src[i / 8] >> i % 8 & 1) << 4);
}

static void quant_q5_0(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    scale[0] = f16_at(src);
    five_bits(src + 2, code);
}

static void quant_q5_1(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    scale[0] = f16_at(src);
    min[0] = f16_at(src + 2);
    five_bits(src + 4, code);
}

/* d, 32 signed bytes */
static void quant_q8_0(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    scale[0] = f16_at(src);
    for (uint32_t i = 0; i < 32; i++) code[i] = src[2 + i] ^ 0x80;
}

/* Values of the table types, plus 128. */
static const uint8_t IQ4_VALUES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241};
/* e2m1 has halves, so it is doubled, and the scale is halved. */
static const uint8_t E2M1_VALUES[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                        128, 127, 126, 125, 124, 122, 120, 116};

static void look_up(const uint8_t *values, uint32_t n, uint8_t *code)
{
    for (uint32_t i = 0; i < n; i++) code[i] = values[code[i]];
}

/* d, 16 bytes */
static void quant_iq4_nl(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    quant_q4_0(src, code, scale, min);
    look_up(IQ4_VALUES, 32, code);
}

/* Exponent e of the scale 2^(e - 127), 16 bytes. Half of the scale is subnormal for e < 2. */
static void quant_mxfp4(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    uint32_t e = src[0];
    scale[0] = float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    fields(src + 1, 16, 4, 0, code);
    look_up(E2M1_VALUES, 32, code);
}

/* ---- blocks of 256 ---- */

/* (4-bit scale, 4-bit minimum) [16], 64 bytes, d, dmin */
static void quant_q2_k(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    float d = f16_at(src + 80), dmin = f16_at(src + 82);
    for (uint32_t g = 0; g < 16; g++) {
        scale[g] = d * (float)(src[g] & 15);
        min[g] = -(dmin * (float)(src[g] >> 4));
    }
    for (uint32_t h = 0; h < 2; h++) fields(src + 16 + 32 * h, 32, 2, 0, code + 128 * h);
}

/* Third bits [32], 64 bytes, 16 scales of 6 bits: low four [8], high two [4]; d */
static void quant_q3_k(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    const uint8_t *s = src + 96;
    float d = f16_at(src + 108);
    for (uint32_t g = 0; g < 16; g++) {
        int32_t low = s[g % 8] >> g / 8 * 4 & 15, high = s[8 + g % 4] >> g / 4 * 2 & 3;
        scale[g] = d * (float)((low | high << 4) - 32);
    }
    for (uint32_t h = 0; h < 2; h++) fields(src + 32 + 32 * h, 32, 2, 0, code + 128 * h);
    fields(src, 32, 1, 2, code);
}

/* d, dmin, 8 scales and minima of 6 bits [12]: those of groups 0 to 3 are the low six bits of bytes 0 to 3
 * and 4 to 7; those of groups 4 to 7 have their low four in bytes 8 to 11 and their high two above the
 * others. */
static void scales_k4(const uint8_t *src, float *scale, float *min)
{
    float d = f16_at(src), dmin = f16_at(src + 2);
    const uint8_t *s = src + 4;
    for (uint32_t g = 0; g < 4; g++) {
        scale[g] = d * (float)(s[g] & 63);
        min[g] = -(dmin * (float)(s[4 + g] & 63));
        scale[4 + g] = d * (float)((s[8 + g] & 15) | (s[g] >> 6) << 4);
        min[4 + g] = -(dmin * (float)(s[8 + g] >> 4 | (s[4 + g] >> 6) << 4));
    }
}

/* Scales [16], 128 bytes */
static void quant_q4_k(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    scales_k4(src, scale, min);
    for (uint32_t h = 0; h < 4; h++) fields(src + 16 + 32 * h, 32, 4, 0, code + 64 * h);
}

/* Scales [16], fifth bits [32], 128 bytes */
static void quant_q5_k(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    scales_k4(src, scale, min);
    for (uint32_t h = 0; h < 4; h++) fields(src + 48 + 32 * h, 32, 4, 0, code + 64 * h);
    fields(src + 16, 32, 1, 4, code);
}

/* Low four bits [128], high two [64], signed scales [16], d */
static void quant_q6_k(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    float d = f16_at(src + 208);
    for (uint32_t g = 0; g < 16; g++) scale[g] = d * (float)((src[192 + g] ^ 0x80) - 128);
    for (uint32_t h = 0; h < 2; h++) {
        fields(src + 64 * h, 64, 4, 0, code + 128 * h);
        fields(src + 128 + 32 * h, 32, 2, 4, code + 128 * h);
    }
}

/* d, 8 scales of 6 bits: high two [2], low four [4]; 128 bytes */
static void quant_iq4_xs(const uint8_t *src, uint8_t *code, float *scale, float *min)
{
    (void)min;
    float d = f16_at(src);
    for (uint32_t g = 0; g < 8; g++) {
        int32_t low = src[4 + g / 2] >> g % 2 * 4 & 15, high = src[2 + g / 4] >> g % 4 * 2 & 3;
        scale[g] = d * (float)((low | high << 4) - 32);
        fields(src + 8 + 16 * g, 16, 4, 0, code + 32 * g);
    }
    look_up(IQ4_VALUES, 256, code);
}

/* ---- the table ---- */

static const struct ggml_type TYPES[] = {
    {GGML_F32, "F32", 1, 4, 0, 0, 0, false, NULL, NULL},
    {GGML_F16, "F16", 1, 2, 0, 0, 0, false, NULL, NULL},
    {2, "Q4_0", 32, 18, 4, 32, 8, false, quant_q4_0, NULL},
    {3, "Q4_1", 32, 20, 4, 32, 0, true, quant_q4_1, NULL},
    {6, "Q5_0", 32, 22, 5, 32, 16, false, quant_q5_0, NULL},
    {7, "Q5_1", 32, 24, 5, 32, 0, true, quant_q5_1, NULL},
    {8, "Q8_0", 32, 34, 8, 32, 128, false, quant_q8_0, NULL},
    {10, "Q2_K", 256, 84, 4, 16, 0, true, quant_q2_k, NULL},
    {11, "Q3_K", 256, 110, 4, 16, 4, false, quant_q3_k, NULL},
    {12, "Q4_K", 256, 144, 4, 32, 0, true, quant_q4_k, NULL},
    {13, "Q5_K", 256, 176, 5, 32, 0, true, quant_q5_k, NULL},
    {14, "Q6_K", 256, 210, 6, 16, 32, false, quant_q6_k, NULL},
    {20, "IQ4_NL", 32, 18, 8, 32, 128, false, quant_iq4_nl, IQ4_VALUES},
    {23, "IQ4_XS", 256, 136, 8, 32, 128, false, quant_iq4_xs, IQ4_VALUES},
    {GGML_BF16, "BF16", 1, 2, 0, 0, 0, false, NULL, NULL},
    {39, "MXFP4", 32, 17, 8, 32, 128, false, quant_mxfp4, E2M1_VALUES},
};

const struct ggml_type *ggml_type_of(uint32_t id)
{
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++)
        if (TYPES[i].id == id) return &TYPES[i];
    return NULL;
}

void ggml_quants(const struct ggml_type *t, const void *src, size_t n, uint8_t *code, float *scale,
                 float *min)
{
    ASSERT(t->bits && n % t->block == 0 && (min || !t->min));
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i += t->block, p += t->bytes)
        t->quants(p, code + i, scale + i / t->group, t->min ? min + i / t->group : NULL);
}

static void floats(uint32_t id, const uint8_t *p, size_t n, float *dst)
{
    if (id == GGML_F32) memcpy(dst, p, 4 * n);
    else if (id == GGML_F16)
        for (size_t i = 0; i < n; i++) dst[i] = f16_to_f32(u16_at(p + 2 * i));
    else
        for (size_t i = 0; i < n; i++) dst[i] = float_of(u16_at(p + 2 * i) << 16);
}

void ggml_to_f32(const struct ggml_type *t, const void *src, size_t n, float *dst)
{
    ASSERT(n % t->block == 0);
    const uint8_t *p = src;
    if (t->bits == 0) {
        floats(t->id, p, n, dst);
        return;
    }
    uint8_t code[BLOCK_MAX];
    float scale[GROUPS_MAX], min[GROUPS_MAX];
    int32_t off = (int32_t)t->off;
    for (size_t i = 0; i < n; i += t->block, p += t->bytes) {
        t->quants(p, code, scale, min);
        for (uint32_t k = 0; k < t->block; k += 16) { /* groups are of 16 or two times 16 */
            uint32_t g = k / t->group;
            float *v = dst + i + k;
            if (t->min)
                for (uint32_t j = 0; j < 16; j++) v[j] = scale[g] * (float)code[k + j] + min[g];
            else
                for (uint32_t j = 0; j < 16; j++) v[j] = scale[g] * (float)((int32_t)code[k + j] - off);
        }
    }
}

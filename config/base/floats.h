/* Bits of a float, and its 16-bit formats: bf16, the upper half of an f32, and f16. */
#ifndef KVASIR_FLOATS_H
#define KVASIR_FLOATS_H

#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float bf16_to_f32(uint16_t v)
{
    return float_of((uint32_t)v << 16);
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Without branches, so that compilers vectorize loops over it. */
static inline float f16_to_f32(uint32_t h)
{
    uint32_t low = (h & 0x7fff) << 13, sign = (h & 0x8000) << 16;
    uint32_t normal = low + ((h & 0x7c00) == 0x7c00 ? 224u << 23 : 112u << 23);
    uint32_t small = bits_of((float)(int32_t)(h & 0x3ff) * 0x1p-24f);
    uint32_t is_small = 0 - (uint32_t)((h & 0x7c00) == 0);
    return float_of(sign | (normal & ~is_small) | (small & is_small));
}

#endif

/* How the AVX-512 and AMX files read weights of quants (layout: quant.h). */
#ifndef KVASIR_CPU_LINEAR_QUANT_AVX512_H
#define KVASIR_CPU_LINEAR_QUANT_AVX512_H

#include "kernels/cpu/linear/quant.h"
#include "kernels/cpu/linear/epi_avx512.h"

EPI_INLINE __m512 q__one(const char *p)
{
    float one;
    memcpy(&one, p, 4);
    return _mm512_set1_ps(one);
}

EPI_INLINE __m512 q__halves(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Bit `from` of each byte of `bytes`, as bit `to` of v. */
EPI_INLINE __m512i q__bit(__m512i v, __m512i bytes, const uint32_t from, const uint32_t to)
{
    bytes = from < to ? _mm512_slli_epi16(bytes, (uint8_t)(to - from))
                      : _mm512_srli_epi16(bytes, (uint8_t)(from - to)); /* int or unsigned: gcc's version */
    return _mm512_ternarylogic_epi32(v, bytes, _mm512_set1_epi8((char)(1 << to)), 0xf8); /* v | bytes & bit */
}

/* The quants of a panel's record as bytes: v[i] has inputs 4 i to 4 i + 3 of 16 columns. */
EPI_INLINE void q__panel(__m512i v[8], const char *c, const uint8_t *values, const uint32_t bits)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i stand_for = low;
    if (values) stand_for = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)values));
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++) {
        if (bits == 8) v[i] = _mm512_loadu_si512(c + 64 * i);
        else if (i < 4) v[i] = _mm512_and_si512(_mm512_loadu_si512(c + 64 * i), low);
        else v[i] = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(c + 64 * (i - 4)), 4), low);
        for (uint32_t bit = 4; bit < bits && bits < 8; bit++)
            v[i] = q__bit(v[i], _mm512_loadu_si512(c + 64 * bit), i, bit);
        if (values) v[i] = _mm512_shuffle_epi8(stand_for, v[i]);
    }
}

#endif

/* Memory layout of weights of quants (struct be_quant) and of the rows multiplied with them.
 *
 * A weight has a record for each pair of panels and 32 inputs; records of a pair are consecutive:
 *
 *   scales [32 / group][32 columns] f16
 *   minima                          the same, if it has them
 *   quants of panel 0, then panel 1  8 bits: [8][16 columns][4 inputs]
 *                                   4 bits: [4][16 columns][4 inputs], low half: inputs 0 to 15, high: 16 to
 *                                           31
 *                                   5, 6 bits: that, then for each bit more [16 columns][4 inputs] bytes, bit
 *                                           i of which belongs to inputs 4 i to 4 i + 3
 *
 * All parts begin at 64 bytes. 32 inputs of a row become a record, too; those of a block's rows are
 * consecutive:
 *
 *   quants [32] int8
 *   scale f32
 *   sums [32 / group]               of a group's quants: int32 times -off, or with minima f32 times the scale
 *
 * A group adds  scale_w * scale_x * (quant_w . quant_x - off * sum_x)  to the sum of an output, or
 * scale_w * scale_x * (quant_w . quant_x) + min_w * scale_x * sum_x. */
#ifndef KVASIR_CPU_LINEAR_QUANT_H
#define KVASIR_CPU_LINEAR_QUANT_H

#include "kernels/cpu/linear/linear.h"

#define QUANT_SPAN 32u /* inputs of a record */

static inline size_t quant_scales_bytes(const struct be_weight *w)
{
    return (size_t)64 * (QUANT_SPAN / w->group);
}
static inline size_t quant_record_bytes(const struct be_weight *w)
{
    return quant_scales_bytes(w) * (w->min ? 2 : 1) + (size_t)QUANT_SPAN * 32 * w->bits / 8;
}
/* Index of a weight's kind in the tables of the vector files: bits 4, 5, 6, 8, then the group, then minima;
 * the last is 4 bits that index values, in groups of 32 without minima. */
#define QUANT_KINDS 17u
static inline uint32_t quant_kind(const struct be_weight *w)
{
    if (w->look) return QUANT_KINDS - 1;
    return (w->bits == 8 ? 3 : w->bits - 4) * 4 + (w->group == 16 ? 2 : 0) + (w->min ? 1 : 0);
}
/* A set's table of functions by kind: ROWS(j, pair, row, rows, sums, values, bits, groups, min), inlined with
 * the last three constant. */
typedef void quant_fn(const struct linear_job *j, uint32_t pair, uint32_t row, uint32_t rows, float *sums);
#define QUANT_FN(NAME, ROWS, ...)                                                                            \
    static void NAME(const struct linear_job *j, uint32_t pair, uint32_t row, uint32_t rows, float *sums)    \
    {                                                                                                        \
        ROWS(j, pair, row, rows, sums, __VA_ARGS__);                                                         \
    }
#define QUANT_FNS(ROWS, BITS)                                                                                \
    QUANT_FN(quant__##BITS##_1_0, ROWS, NULL, BITS, 1, false)                                                \
    QUANT_FN(quant__##BITS##_1_1, ROWS, NULL, BITS, 1, true)                                                 \
    QUANT_FN(quant__##BITS##_2_0, ROWS, NULL, BITS, 2, false)                                                \
    QUANT_FN(quant__##BITS##_2_1, ROWS, NULL, BITS, 2, true)
#define QUANT_NAMES(BITS) quant__##BITS##_1_0, quant__##BITS##_1_1, quant__##BITS##_2_0, quant__##BITS##_2_1
#define QUANT_TABLE(ROWS)                                                                                    \
    QUANT_FNS(ROWS, 4)                                                                                       \
    QUANT_FNS(ROWS, 5)                                                                                       \
    QUANT_FNS(ROWS, 6)                                                                                       \
    QUANT_FNS(ROWS, 8)                                                                                       \
    QUANT_FN(quant__look, ROWS, j->w->values, 4, 1, false)                                                   \
    static quant_fn *const quant__table[QUANT_KINDS] = {QUANT_NAMES(4), QUANT_NAMES(5), QUANT_NAMES(6),      \
                                                        QUANT_NAMES(8), quant__look};
/* Start of a pair's records. */
static inline const char *quant_pair(const struct be_weight *w, uint32_t pair)
{
    return (const char *)w->data + (size_t)2 * pair * w->panel_bytes;
}
/* Input i of a record, where `quants` points to the first of its column. */
static inline int32_t quant_at(const struct be_weight *w, const uint8_t *quants, uint32_t i)
{
    uint32_t byte = quants[(w->bits == 8 ? i / 4 : i % 16 / 4) * 64 + i % 4];
    if (w->bits == 8) return (int32_t)byte;
    uint32_t code = i < 16 ? byte & 15 : byte >> 4;
    for (uint32_t bit = 4; bit < w->bits; bit++)
        code |= ((uint32_t)quants[64 * bit + i % 4] >> i / 4 & 1) << bit;
    return (int32_t)(w->look ? w->values[code] : code);
}
/* Element i of scales or minima. */
static inline float quant_f16(const char *p, size_t i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return f16_to_f32(h);
}
/* Bytes of a row's record; avx2 keeps more there. */
#define QUANT_ROW      48u
#define QUANT_ROW_AVX2 64u
static inline char *quant_row(const struct linear_job *j, uint32_t span, uint32_t row, uint32_t bytes)
{
    return j->packed + ((size_t)span * j->m + row) * bytes;
}

/* Largest |x| of a span as bits, so that a NaN is larger than anything and reaches the scale. Below
 * QUANT_LEAST all quants are 0: its reciprocal might overflow. */
#define QUANT_LEAST 1e-30f

/* Rows [begin, end) of the block as quants of 8 bits, in plain C. */
void quant_pack_rows(const struct linear_job *j, uint32_t begin, uint32_t end);

#endif

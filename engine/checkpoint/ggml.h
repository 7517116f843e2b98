/* How ggml stores numbers: blocks of a few bits per number and scales. A table of types, and unpacking a
 * block to quants: every type is
 *
 *     value = scale * (code - off)        or, with a minimum,        value = scale * code + min
 *
 * where `group` numbers of a row in a row share scale and min; in f32, one rounding per operation, so values
 * equal those of the `gguf` Python package bit for bit (of finite scales; a file can hold others, which give
 * infinities and NaN). Pure. Formulas: ggml-quants.c, gguf/quants.py. */
#ifndef KVASIR_GGML_H
#define KVASIR_GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_type {
    uint32_t id; /* as in a GGUF file */
    const char *name;
    uint32_t block; /* elements in a block */
    uint32_t bytes; /* of a block */
    uint32_t bits;  /* 4, 5, 6 or 8: code < 1 << bits; 0: floats (F32, F16, BF16), which have no quants */
    uint32_t group; /* 16 or 32 */
    uint32_t off;   /* without a minimum; 128 where the stored number has a sign or is looked up in a table */
    bool min;
    /* One block: code [block], scale [block / group], min the same or NULL */
    void (*quants)(const uint8_t *src, uint8_t *code, float *scale, float *min);
    const uint8_t *values; /* [16] that all quants are among, or NULL */
};

/* Ids of the floats. */
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_BF16 = 30 };
/* NULL: a type that is not served. */
const struct ggml_type *ggml_type_of(uint32_t id);
/* n numbers (a multiple of t->block) that begin at src, which need not be aligned; t->bits > 0. code [n],
 * scale [n / group], min too or NULL without one. */
void ggml_quants(const struct ggml_type *t, const void *src, size_t n, uint8_t *code, float *scale,
                 float *min);
/* The same as floats; of any type of the table. dst [n] */
void ggml_to_f32(const struct ggml_type *t, const void *src, size_t n, float *dst);

/* A row of floats as quants, for weights that are quantised at load (n a multiple of 32; group 32).
 * int8: off 128, scale = max |x| / 127, as Q8_0; |x - value| <= scale / 2. int4: with a minimum; the squared
 * error of a group is at most that of min = the least, scale = (largest - least) / 15. Scales and minima are
 * numbers of f16, rounded before quants are chosen. x beyond f16's range counts as its end, NaN as 0. */
void quantize_row_int8(const float *x, size_t n, uint8_t *code, float *scale);
void quantize_row_int4(const float *x, size_t n, uint8_t *code, float *scale, float *min);

#endif

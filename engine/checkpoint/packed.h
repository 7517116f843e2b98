/* Matrices that checkpoints of quantised weights hold in several tensors: quants, scales, zero points. The
 * tensors' names, types and shapes identify the layout. Pure; tensors are the files'.
 *
 *   .weight F8_E4M3 [n, k]         .weight_scale_inv [n/128, k/128] (fp8), or
 *                                  .weight_scale the same, [n, 1], [n, k/g], [1] or [] (compressed-tensors)
 *   .weight I8 [n, k]              .weight_scale as above
 *   .weight_packed I32 [n, k/8]    .weight_scale [n, 1] or [n, k/g]; .weight_zero_point I32 [n/8, k/g]
 *                                  (4 bits; with 8 k/4 and n/4), .weight_g_idx I32 [k]
 *   .qweight I32 [k, n/8]          .scales [k/g, n], .qzeros I32 [k/g, n/8]           (AWQ)
 *   .qweight I32 [k/8, n]          the same, and .g_idx I32 [k]                       (GPTQ)
 *   .qweight I32 [k/4, n]          the same with .qzeros [k/g, n/4]                   (GPTQ, 8 bits)
 *
 * Words hold quants of 4 bits (or 8), low ones first; AWQ's columns of a word in the order 0 2 4 6 1 3 5 7;
 * GPTQ's zero points are one less than what they mean, words of them 0x11111111 (0x01010101) less, with
 * carries. Where k is no multiple of g, or n or k none of 128, the last group is smaller. */
#ifndef KVASIR_PACKED_H
#define KVASIR_PACKED_H

#include "engine/checkpoint/safetensors.h"
#include "engine/model/model_desc.h"

#define PACKED_TENSORS 4u
enum packed_kind { PACKED_FP8 = 0, PACKED_INT8, PACKED_WORDS, PACKED_AWQ, PACKED_GPTQ };
struct packed {
    enum packed_kind kind;
    uint32_t n, k;
    uint32_t down, along; /* rows and numbers of a row that share a scale */
    uint32_t word;        /* quants of a word: 8, or 4 */
    uint32_t more;        /* added to a word of GPTQ's zero points */
    /* Whether rows come as quants: of `bits` bits, 32 in a row of a row to a scale, value = scale * (code -
     * off), or scale * code + min where off is 0. */
    bool quants;
    uint32_t bits, off;
    /* Quants, scales, zero points or NULL, groups or NULL. */
    const struct stf_tensor *t[PACKED_TENSORS];
};

/* The tensor STEM + suffix, or NULL. */
typedef const struct stf_tensor *packed_find(void *arg, const char *suffix);
/* Whether STEM's [n, k] matrix is one of these; then fills *p. ST_NOT_FOUND: it isn't; ST_FORMAT,
 * ST_UNSUPPORTED: it is, but malformed or of an unsupported kind. */
enum status packed_open(packed_find *find, void *arg, const struct desc_packing *said, uint32_t n, uint32_t k,
                        struct packed *p, struct err *err) KV_MUST_CHECK;
void packed_quants(const struct packed *p, uint32_t row, uint8_t *code, float *scale, float *min);
/* Numbers [first, first + n) of a row as floats. */
void packed_floats(const struct packed *p, uint32_t row, uint32_t first, uint32_t n, float *out);

#endif

/* Matrices as quants (struct be_quant), from a file's quants or from its floats; and floats from a file's
 * quants. See weights_internal.h. */
#include "engine/checkpoint/weights_internal.h"

#include "config/base/assert.h"
#include "config/base/floats.h"
#include "engine/checkpoint/ggml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MADE_PART 1024u /* numbers that are read at once: a multiple of MADE_SPAN */

/* ---- small conversions ---- */

float weights_round_bf16(float x)
{
    uint32_t u = bits_of(x);
    return float_of((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

float weights_round_f16(float x)
{
    int e;
    (void)frexpf(x, &e);
    if (e < -13) e = -13; /* subnormal: fixed step */
    float step = ldexpf(1.0f, e - 11);
    return nearbyintf(x / step) * step;
}

/* ---- quants ---- */

/* Numbers [first, first + n) of a row; n <= MADE_PART. */
static void row_floats(const struct quant_rows *r, uint32_t row, uint32_t first, uint32_t n, float *x)
{
    if (r->packed) {
        for (uint32_t i = 0; i < n && r->width; i++) packed_floats(r->packed, first + i, row, 1, x + i);
        if (!r->width) packed_floats(r->packed, row, first, n, x);
        return;
    }
    uint32_t column[MADE_PART];
    size_t size = be_dtype_bytes(load_be_type(r->t->dtype)), stride = r->width * size;
    struct stf_tensor part = *r->t;
    for (uint32_t i = 0; i < n && r->width; i++)
        memcpy((char *)column + i * size, r->data + (first + i) * stride + row * size, size);
    part.rank = 1;
    part.data = r->width ? (const char *)column : r->data + ((size_t)row * r->k + first) * size;
    part.shape[0] = n;
    part.bytes = n * size;
    (void)stf_to_f32(&part, x); /* load_take() checked the dtype */
}

static void made_quants(const struct quant_rows *r, uint32_t row, uint8_t *code, float *scale, float *min)
{
    for (uint32_t k = 0; k < r->k; k += MADE_PART) {
        float x[MADE_PART];
        uint32_t n = r->k - k < MADE_PART ? r->k - k : MADE_PART;
        row_floats(r, row, k, n, x);
        memset(x + n, 0, (be_ld(n) - n) * sizeof *x);
        n = (uint32_t)be_ld(n);
        if (r->int4) quantize_row_int4(x, n, code + k, scale + k / MADE_SPAN, min + k / MADE_SPAN);
        else quantize_row_int8(x, n, code + k, scale + k / MADE_SPAN);
    }
}

static void quant_row(const void *arg, uint32_t row, uint8_t *code, float *scale, float *min)
{
    const struct quant_rows *r = arg;
    row = r->first + load_stored_at(r->order, row, 0, r->head_dim, r->rotary);
    if (r->packed && r->packed->quants) packed_quants(r->packed, row, code, scale, min);
    else if (r->type)
        ggml_quants(r->type, r->data + (size_t)row * (r->k / r->type->block) * r->type->bytes, r->k, code,
                    scale, min);
    else made_quants(r, row, code, scale, min);
    for (uint32_t i = 0; r->scale && i < r->groups; i++) {
        scale[i] *= r->scale[row];
        if (min) min[i] *= r->scale[row];
    }
}

/* How rows of k of a tensor become quants; false: they stay floats. */
bool load_quant_of(const struct loader *ld, const struct stf_tensor *t, const struct packed *packed,
                   uint32_t k, struct quant_rows *rows, struct be_quant *out)
{
    const struct ggml_type *type = !packed && t->dtype == STF_GGML ? ggml_type_of(t->ggml) : NULL;
    bool stored = packed ? packed->quants : type && type->bits && k % type->block == 0;
    bool make = !stored && !type && ld->format.quantize && (k % MADE_SPAN == 0 || ld->tower);
    if (ld->floats || !ld->format.quants || (!stored && !make)) return false;
    bool int4 = ld->format.quantize == QUANTIZE_INT4 && !ld->fine;
    *rows =
        (struct quant_rows){.t = t, .packed = packed, .type = type, .int4 = int4, .k = k, .data = t->data};
    *out = (struct be_quant){.row = quant_row,
                             .arg = rows,
                             .bits = int4 ? 4 : 8,
                             .group = MADE_SPAN,
                             .off = int4 ? 0 : 128,
                             .min = int4};
    if (type) {
        out->bits = type->bits;
        out->group = type->group;
        out->off = type->off;
        out->min = type->min;
        out->values = type->values;
    } else if (stored) {
        out->bits = packed->bits;
        out->off = packed->off;
        out->min = !packed->off;
    }
    return true;
}

void load_note_quants(struct loader *ld, const struct quant_rows *r)
{
    struct weights_inventory *s = ld->inventory;
    bool packed = r->packed && r->packed->quants;
    const char *name = r->type ? r->type->name : r->packed && r->packed->bits == 4 ? "INT4" : "INT8";
    size_t at = strlen(s->quant_types);
    if (!r->type && !packed) s->made_quants = true;
    else if (!ld->tower && !strstr(s->quant_types, name))
        snprintf(s->quant_types + at, sizeof s->quant_types - at, "%s%s", at ? "," : "", name);
}

void load_fuse_quants(struct be_quant *all, const struct be_quant *part)
{
    if (part->bits > all->bits) all->bits = part->bits;
    if (part->group < all->group) all->group = part->group;
    all->min = all->min || part->min || part->off != all->off;
    if (part->values != all->values) all->values = NULL;
}

/* Of n outputs and k inputs. */
uint64_t load_kept_bytes(const struct loader *ld, const struct be_quant *quants, uint64_t n, uint32_t k)
{
    if (!quants) return n * be_ld(k) * be_dtype_bytes(ld->format.act);
    uint32_t bits = quants->values ? 4 : quants->bits;
    k = (uint32_t)be_ld(k);
    return n * (k * bits / 8 + k / quants->group * (quants->min ? 4ull : 2));
}

static void put_floats(void *out, enum be_dtype act, size_t at, const float *x, size_t n)
{
    if (act == BE_F32) memcpy((float *)out + at, x, n * sizeof *x);
    for (size_t k = 0; k < n && act == BE_BF16; k++) {
        float v = weights_round_bf16(x[k]);
        memcpy((uint16_t *)out + at + k, (char *)&v + 2, 2);
    }
}

/* The floats of a matrix that a file holds as quants, in the compute type; the caller frees them. */
void *load_floats(struct loader *ld, const struct stf_tensor *t, const struct packed *packed)
{
    size_t n = packed ? (size_t)packed->n * packed->k : (size_t)load_elements(t);
    enum be_dtype act = ld->format.act;
    const struct ggml_type *type = packed ? NULL : ggml_type_of(t->ggml);
    void *out = malloc(n * be_dtype_bytes(act) + 1);
    float block[256], *row = packed ? malloc(packed->k * sizeof *row) : block;
    ASSERT(packed || (type && n % type->block == 0 && type->block <= 256));
    size_t step = packed ? packed->k : type->block;
    if (!out || !row) ld->st = err_nomem(ld->err, t->name);
    for (size_t i = 0; i < n && !ld->st; i += step) {
        if (packed) packed_floats(packed, (uint32_t)(i / step), 0, packed->k, row);
        else ggml_to_f32(type, (const char *)t->data + i / step * type->bytes, step, row);
        put_floats(out, act, i, row, step);
    }
    if (packed) free(row);
    return out;
}

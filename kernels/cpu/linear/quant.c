/* Weights of quants in plain C: packing, embedding, and the reference product of the vector files. Layout:
 * quant.h. */
#include "kernels/cpu/linear/quant.h"

#include <math.h>
#include <stdatomic.h>

/* ---- packing */

/* Round to nearest even; false: no finite f16. */
static bool quant__f16(float f, uint16_t *out)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u >= 0x477ff000) return false; /* rounds above 65,504, or is not finite */
    if (u < 0x38800000) {              /* subnormal: a multiple of 2^-24 */
        *out = (uint16_t)(sign | (uint32_t)lrintf(float_of(u) * 0x1p24f));
    } else {
        *out = (uint16_t)(sign | ((u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13));
    }
    return true;
}

/* A kind that fits all parts, which may differ. */
void cpu_quant_shape(const struct be_weight_desc *d, struct be_weight *w)
{
    const struct be_quant *first = d->src[0].quants;
    w->bits = first->bits;
    w->group = first->group;
    w->off = first->off;
    w->min = first->min;
    w->look = first->values != NULL;
    for (uint32_t s = 1; s < d->src_count; s++) {
        const struct be_quant *c = d->src[s].quants;
        w->bits = u32_max(w->bits, c->bits);
        w->group = u32_min(w->group, c->group);
        w->min = w->min || c->min || c->off != first->off;
        w->look = w->look && c->values == first->values && c->off == first->off;
    }
    if (w->look) {
        w->bits = 4;
        memcpy(w->values, first->values, sizeof w->values);
    }
    w->panel_bytes = quant_record_bytes(w) * (w->kpad / QUANT_SPAN) / 2;
}

struct quant_job {
    const struct be_weight_desc *d;
    struct be_weight *w;
    char *rows;         /* of each worker: a decoded row */
    atomic_bool beyond; /* f16 */
    uint8_t back[256];  /* index of a code among the weight's values */
};

static void quant__put(struct quant_job *j, char *at, uint32_t group, uint32_t col, float v)
{
    uint16_t h = 0;
    if (!quant__f16(v, &h)) atomic_store_explicit(&j->beyond, true, memory_order_relaxed);
    memcpy(at + ((size_t)group * 32 + col) * 2, &h, 2);
}

static void quant__four(uint8_t *to, uint32_t four)
{
    memcpy(to, &four, 4);
}

static void quant__column(struct quant_job *j, uint32_t pair, uint32_t col, const struct be_quant *c,
                          const uint8_t *code, const float *scale, const float *min)
{
    const struct be_weight *w = j->w;
    uint32_t groups = QUANT_SPAN / w->group, each = c->group / w->group;
    size_t scales = quant_scales_bytes(w), panel = (size_t)QUANT_SPAN * 16 * w->bits / 8;
    char *at = (char *)w->data + (size_t)2 * pair * w->panel_bytes;
    for (uint32_t k = 0; k < w->kpad; k += QUANT_SPAN, at += quant_record_bytes(w)) {
        uint8_t *to = (uint8_t *)at + scales * (w->min ? 2 : 1) + (col / 16) * panel + col % 16 * 4;
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t i = (k / w->group + g) / each;
            quant__put(j, at, g, col, scale[i]);
            if (w->min) quant__put(j, at + scales, g, col, c->min ? min[i] : -scale[i] * (float)c->off);
        }
        uint32_t four[8], low = 0x0f0f0f0f;
        memcpy(four, code + k, QUANT_SPAN);
        for (uint32_t i = 0; i < 8; i++) {
            if (w->bits == 8) quant__four(to + 64 * i, four[i]);
            else if (i < 4) quant__four(to + 64 * i, (four[i] & low) | (four[i + 4] & low) << 4);
        }
        for (uint32_t bit = 4; bit < w->bits && w->bits < 8; bit++) {
            uint32_t plane = 0;
            for (uint32_t i = 0; i < 8; i++) plane |= (four[i] >> bit & 0x01010101) << i;
            quant__four(to + 64 * bit, plane);
        }
    }
}

static void quant__pack_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct quant_job *j = ctx;
    const struct be_weight *w = j->w;
    uint8_t *code = (uint8_t *)j->rows + worker * cpu_quant_row_bytes(w);
    float *scale = (float *)(void *)(code + w->kpad), *min = scale + w->kpad / 16;
    for (uint32_t pair = begin; pair < end; pair++) {
        memset((char *)w->data + (size_t)2 * pair * w->panel_bytes, 0, 2 * w->panel_bytes);
        for (uint32_t col = 0; col < 32; col++) {
            uint32_t part, row;
            if (!cpu_pack_column(j->d, pair, col, &part, &row)) continue;
            const struct be_quant *c = j->d->src[part].quants;
            c->row(c->arg, row, code, scale, min);
            for (uint32_t k = 0; k < w->k && w->look; k++) code[k] = j->back[code[k]];
            quant__column(j, pair, col, c, code, scale, min);
        }
    }
}

size_t cpu_quant_row_bytes(const struct be_weight *w)
{
    return (size_t)w->kpad + w->kpad / 16 * 8;
}

bool cpu_quant_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight *w, void *rows)
{
    struct quant_job j = {.d = d, .w = w, .rows = rows};
    for (uint32_t i = 0; i < 16; i++) j.back[w->values[i]] = (uint8_t)i;
    cpu_pool_run(b->pool, w->pairs, 1, quant__pack_range, &j);
    return !j.beyond;
}

/* ---- embedding */

static void quant__embed_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_embed_args *a = ctx;
    const struct be_weight *w = a->w;
    size_t scales = quant_scales_bytes(w), panel = (size_t)QUANT_SPAN * 16 * w->bits / 8;
    for (uint32_t t = begin; t < end; t++) {
        uint32_t id = a->ids[t], col = id % 32;
        if (id == UINT32_MAX) continue;
        ASSERT(id < w->n);
        const char *at = quant_pair(w, id / 32);
        float *out = a->out + (size_t)t * w->k;
        for (uint32_t k = 0; k < w->k; k += QUANT_SPAN, at += quant_record_bytes(w)) {
            const uint8_t *quants =
                (const uint8_t *)at + scales * (w->min ? 2 : 1) + col / 16 * panel + col % 16 * 4;
            for (uint32_t i = 0; i < QUANT_SPAN; i++) {
                uint32_t place = i / w->group * 32 + col;
                float code = (float)quant_at(w, quants, i), scale = quant_f16(at, place);
                float v =
                    w->min ? scale * code + quant_f16(at + scales, place) : scale * (code - (float)w->off);
                v *= a->scale;
                out[k + i] = a->round_act && w->type == BE_BF16 ? bf16_to_f32(f32_to_bf16(v)) : v;
            }
        }
    }
}

void cpu_embed_quants(struct backend *b, const struct be_embed_args *a)
{
    struct be_embed_args job = *a;
    cpu_pool_run(b->pool, a->t, 8, quant__embed_range, &job);
}

/* ---- rows of the input */

void quant_pack_rows(const struct linear_job *j, uint32_t begin, uint32_t end)
{
    const struct be_weight *w = j->w;
    uint32_t groups = QUANT_SPAN / w->group;
    for (uint32_t r = begin; r < end; r++) {
        const char *x = linear_src_row(j, r);
        for (uint32_t s = 0; s < w->kpad / QUANT_SPAN; s++) {
            char *row = quant_row(j, s, r, QUANT_ROW);
            int8_t *code = (int8_t *)row;
            uint32_t top = 0;
            for (uint32_t i = 0; i < QUANT_SPAN; i++)
                top = u32_max(top, bits_of(fabsf(act_get(x, w->type, s * QUANT_SPAN + i))));
            float most = float_of(top), scale = most / 127, to = most < QUANT_LEAST ? 0 : 127 / most;
            memcpy(row + QUANT_SPAN, &scale, 4);
            for (uint32_t g = 0; g < groups; g++) {
                int32_t sum = 0;
                for (uint32_t i = g * w->group; i < (g + 1) * w->group; i++) {
                    float v = act_get(x, w->type, s * QUANT_SPAN + i) * to;
                    code[i] = fabsf(v) <= 127.5f ? (int8_t)lrintf(v) : 0; /* else NaN */
                    sum += code[i];
                }
                float scaled = scale * (float)sum;
                sum *= -(int32_t)w->off;
                memcpy(row + QUANT_SPAN + 4 + 4 * g, w->min ? (void *)&scaled : (void *)&sum, 4);
            }
        }
    }
}

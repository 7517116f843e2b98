/* Linear and embed in plain C: the readable form of what the vector files do, and the oracle of their tests.
 * No intrinsics, no cleverness. A work item is one pair of panels (32 packed columns) for all rows. */
#include "kernels/cpu/linear/quant.h"

#include <math.h>

struct ref_linear {
    const struct be_linear_args *a;
};

/* gelu_tanh(z) = 0.5 z (1 + tanh(u)), u = sqrt(2/pi) (z + 0.044715 z^3); written z / (1 + exp(-2u)), which is
 * the same function without the cancellation of 1 + tanh for negative z. */
float ref_gelu_tanh(float z)
{
    float u2 = z * (1.5957691216057308f + 0.07135481627260025f * (z * z));
    return z / (1.0f + expf(-u2));
}

static float ref__silu(float z)
{
    return z / (1.0f + expf(-z));
}

/* gelu_erf(z) = 0.5 z (1 + erf(z/sqrt(2))), by erfc so that nothing cancels for negative z. */
static float ref__gelu_erf(float z)
{
    return 0.5f * z * erfcf(z * -0.70710678118654752f);
}

static float ref__quick_gelu(float z)
{
    return z / (1.0f + expf(-1.702f * z));
}

/* Writes 32 packed sums of row t, with bias already added, where the epilogue wants them. */
static void ref__epilogue(const struct be_linear_args *a, uint32_t pair, uint32_t t, const float sum[32])
{
    const struct be_weight *w = a->w;
    if (a->epilogue == BE_EPI_F32 || a->epilogue == BE_EPI_ADD_F32) {
        float *out = (float *)a->out + (size_t)t * w->n + pair * 32;
        uint32_t cols = u32_min(32, w->n - pair * 32);
        for (uint32_t c = 0; c < cols; c++) out[c] = a->epilogue == BE_EPI_F32 ? sum[c] : out[c] + sum[c];
        return;
    }
    uint32_t n = w->glu ? w->n / 2 : w->n, width = w->glu ? 16 : 32;
    size_t at = (size_t)t * be_ld(n) + pair * width;
    for (uint32_t c = 0; c < width; c++) {
        float v = sum[c];
        if (a->epilogue == BE_EPI_GELU_TANH) v = ref_gelu_tanh(v);
        if (a->epilogue == BE_EPI_GELU_ERF) v = ref__gelu_erf(v);
        if (a->epilogue == BE_EPI_QUICK_GELU) v = ref__quick_gelu(v);
        if (a->epilogue == BE_EPI_GLU_GELU_TANH) v = ref_gelu_tanh(v) * sum[16 + c];
        if (a->epilogue == BE_EPI_GLU_SILU) v = ref__silu(v) * sum[16 + c];
        act_put(a->out, w->type, at + c, pair * width + c < n ? v : 0.0f);
    }
}

static void ref__dot_bf16(const struct be_weight *w, uint32_t panel, const uint16_t *x, float acc[16])
{
    const uint16_t *p = (const uint16_t *)(const void *)((const char *)w->data + panel * w->panel_bytes);
    for (uint32_t k = 0; k < w->kpad; k += 2, p += 32) {
        float x0 = bf16_to_f32(x[k]), x1 = bf16_to_f32(x[k + 1]);
        for (uint32_t c = 0; c < 16; c++)
            acc[c] = acc[c] + x0 * bf16_to_f32(p[2 * c]) + x1 * bf16_to_f32(p[2 * c + 1]);
    }
}

static void ref__dot_f32(const struct be_weight *w, uint32_t panel, const float *x, float acc[16])
{
    const float *p = (const float *)(const void *)((const char *)w->data + panel * w->panel_bytes);
    for (uint32_t k = 0; k < w->k; k++, p += 16)
        for (uint32_t c = 0; c < 16; c++) acc[c] += x[k] * p[c];
}

static void ref__linear_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_linear_args *a = ((const struct ref_linear *)ctx)->a;
    const struct be_weight *w = a->w;
    for (uint32_t pair = begin; pair < end; pair++) {
        for (uint32_t t = 0; t < a->t; t++) {
            float sum[32] = {0};
            for (uint32_t h = 0; h < 2; h++) {
                if (w->type == BE_BF16) {
                    ref__dot_bf16(w, 2 * pair + h, (const uint16_t *)a->x + (size_t)t * w->kpad,
                                  sum + 16 * h);
                } else {
                    ref__dot_f32(w, 2 * pair + h, (const float *)a->x + (size_t)t * w->kpad, sum + 16 * h);
                }
            }
            for (uint32_t c = 0; w->bias && c < 32; c++) sum[c] += w->bias[pair * 32 + c];
            if (a->add) linear_add(a, pair, t, sum);
            ref__epilogue(a, pair, t, sum);
        }
    }
}

/* ---- quants (quant.h) */

static void ref__dot_quants(const struct linear_job *j, uint32_t pair, uint32_t r, float sum[32])
{
    const struct be_weight *w = j->w;
    const char *rec = quant_pair(w, pair);
    size_t part = quant_scales_bytes(w), panel = (size_t)QUANT_SPAN * 16 * w->bits / 8;
    for (uint32_t s = 0; s < w->kpad / QUANT_SPAN; s++, rec += quant_record_bytes(w)) {
        const char *row = quant_row(j, s, r, QUANT_ROW), *sums = row + QUANT_SPAN + 4;
        const int8_t *x = (const int8_t *)row;
        float scale, xsum;
        int32_t fix;
        memcpy(&scale, row + QUANT_SPAN, 4);
        for (uint32_t g = 0; g < QUANT_SPAN / w->group; g++) {
            memcpy(&xsum, sums + 4 * g, 4);
            memcpy(&fix, sums + 4 * g, 4);
            for (uint32_t c = 0; c < 32; c++) {
                const uint8_t *quants =
                    (const uint8_t *)rec + part * (w->min ? 2 : 1) + c / 16 * panel + c % 16 * 4;
                int32_t dot = w->min ? 0 : fix;
                for (uint32_t i = g * w->group; i < (g + 1) * w->group; i++)
                    dot += quant_at(w, quants, i) * x[i];
                sum[c] += (float)dot * (quant_f16(rec, g * 32 + c) * scale);
                if (w->min) sum[c] += quant_f16(rec + part, g * 32 + c) * xsum;
            }
        }
    }
}

static void ref__quant_pairs(const struct linear_job *j, uint32_t begin, uint32_t end, char *scratch)
{
    (void)scratch;
    const struct be_weight *w = j->w;
    for (uint32_t pair = begin; pair < end; pair++) {
        for (uint32_t r = 0; r < j->m; r++) {
            float sum[32] = {0};
            ref__dot_quants(j, pair, r, sum);
            for (uint32_t c = 0; w->bias && c < 32; c++) sum[c] += w->bias[pair * 32 + c];
            if (j->a->add) linear_add(j->a, pair, j->row0 + r, sum);
            ref__epilogue(j->a, pair, j->row0 + r, sum);
        }
    }
}

void ref_linear_quants(struct backend *b, const struct be_linear_args *a)
{
    static const struct linear_set set = {.pack = quant_pack_rows,
                                          .pack_rows = 1,
                                          .pack_elem = 2,
                                          .pack_min = 1,
                                          .pairs = ref__quant_pairs,
                                          .pairs_max = 64};
    cpu_linear(b, a, &set);
}

void ref_linear_bf16(struct backend *b, const struct be_linear_args *a)
{
    if (a->w->bits) {
        ref_linear_quants(b, a);
        return;
    }
    struct ref_linear job = {a};
    cpu_pool_run(b->pool, a->w->pairs, 1, ref__linear_range, &job);
}

void ref_linear_f32(struct backend *b, const struct be_linear_args *a)
{
    ref_linear_bf16(b, a); /* the type is the weight's */
}

static void ref__embed_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_embed_args *a = ctx;
    const struct be_weight *w = a->w;
    for (uint32_t t = begin; t < end; t++) {
        uint32_t id = a->ids[t];
        if (id == UINT32_MAX) continue;
        ASSERT(id < w->n);
        const char *panel = (const char *)w->data + id / 16 * w->panel_bytes;
        float *out = a->out + (size_t)t * w->k;
        for (uint32_t k = 0; k < w->k; k++) {
            float v = w->type == BE_F32
                          ? ((const float *)(const void *)panel)[k * 16 + id % 16]
                          : bf16_to_f32(
                                ((const uint16_t *)(const void *)panel)[(k / 2 * 16 + id % 16) * 2 + k % 2]);
            v *= a->scale;
            out[k] = a->round_act && w->type == BE_BF16 ? bf16_to_f32(f32_to_bf16(v)) : v;
        }
    }
}

void ref_embed(struct backend *b, const struct be_embed_args *a)
{
    struct be_embed_args job = *a;
    cpu_pool_run(b->pool, a->t, 8, ref__embed_range, &job);
}

/* Sixteen independent chains of multiply and add: what plain C gets out of the machine. */
double ref_peak(uint64_t steps)
{
    volatile float seed = 0.5f;
    float acc[16], x = seed;
    for (int i = 0; i < 16; i++) acc[i] = x;
    for (uint64_t s = 0; s < steps; s++)
        for (int i = 0; i < 16; i++) acc[i] = acc[i] * x + 0.25f;
    float sum = 0;
    for (int i = 0; i < 16; i++) sum += acc[i];
    seed = sum;
    return (double)steps * 16 * 2;
}

uint64_t ref_read(const void *p, size_t bytes)
{
    const uint64_t *q = p;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (size_t i = 0; i < bytes / 8; i += 4) {
        s0 += q[i];
        s1 += q[i + 1];
        s2 += q[i + 2];
        s3 += q[i + 3];
    }
    return s0 + s1 + s2 + s3;
}

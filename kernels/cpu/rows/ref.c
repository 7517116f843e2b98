/* Norms, rotary tables, qkv, patches, pooling and interpolation in plain C: the oracle of the vector files.
 * Sums are in double, so these results are closer to the formula than any vector order. */
#include "kernels/cpu/internal.h"

#include <math.h>

/* Rows in one chunk of work: enough to pay for waking a thread. */
#define ROW_GRAIN 16u

/* ---- norm */

static float ref__rms_scale(const float *x, uint32_t c, float eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < c; i++) sum += (double)x[i] * x[i];
    return (float)(1.0 / sqrt(sum / c + (double)eps));
}

static void ref__layer_stats(const float *x, uint32_t c, float eps, float *mean, float *scale)
{
    double sum = 0, var = 0;
    for (uint32_t i = 0; i < c; i++) sum += (double)x[i];
    double m = sum / c;
    for (uint32_t i = 0; i < c; i++) var += ((double)x[i] - m) * ((double)x[i] - m);
    *mean = (float)m;
    *scale = (float)(1.0 / sqrt(var / c + (double)eps));
}

static void ref__norm_row(const struct be_norm_args *a, uint32_t t)
{
    uint32_t c = a->c;
    size_t stride = a->stride ? a->stride : c;
    const float *v = a->x ? a->x + t * stride : NULL;
    float post = a->post_weight ? ref__rms_scale(v, c, a->eps) : 1.0f;
    if (a->residual) {
        float *r = a->residual + (size_t)t * c;
        for (uint32_t i = 0; v && i < c; i++) {
            r[i] += a->post_weight ? v[i] * post * a->post_weight[i] : v[i];
            if (a->residual_scale) r[i] *= *a->residual_scale;
        }
        v = r;
        post = 1.0f;
    }
    if (!a->out) return;
    /* Without a residual the row to normalise is a = x * post * post_weight; it is recomputed where it is
     * read. */
    bool scaled = !a->residual && a->post_weight;
#define REF_B(i) (scaled ? v[i] * post * a->post_weight[i] : v[i])
    float mean = 0, scale;
    if (scaled) {
        double sum = 0, var = 0;
        if (a->kind == BE_NORM_LAYER) {
            for (uint32_t i = 0; i < c; i++) sum += (double)REF_B(i);
            mean = (float)(sum / c);
        }
        for (uint32_t i = 0; i < c; i++)
            var += ((double)REF_B(i) - (double)mean) * ((double)REF_B(i) - (double)mean);
        scale = (float)(1.0 / sqrt(var / c + (double)a->eps));
    } else if (a->kind == BE_NORM_LAYER) {
        ref__layer_stats(v, c, a->eps, &mean, &scale);
    } else {
        scale = ref__rms_scale(v, c, a->eps);
    }
    size_t ld = a->out_dense ? c : be_ld(c), at = t * (a->out_dense ? stride : ld);
    for (uint32_t i = 0; i < c; i++) {
        float y = (REF_B(i) - mean) * scale * a->weight[i];
        act_put(a->out, a->out_dtype, at + i, a->bias ? y + a->bias[i] : y);
    }
#undef REF_B
    for (size_t i = c; i < ld; i++) act_put(a->out, a->out_dtype, at + i, 0.0f);
}

static void ref__norm_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    for (uint32_t t = begin; t < end; t++) ref__norm_row(ctx, t);
}

void ref_norm(struct backend *b, const struct be_norm_args *a)
{
    struct be_norm_args job = *a;
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__norm_range, &job);
}

/* ---- rope */

static void ref__rope_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_rope_args *a = ctx;
    for (uint32_t t = begin; t < end; t++) {
        for (uint32_t i = 0; i < a->half; i++) {
            uint32_t axis = a->axis ? a->axis[i] : 0;
            ASSERT(axis < a->axes);
            float angle = (float)a->pos[(size_t)axis * a->t + t] * a->inv_freq[i];
            a->cos[(size_t)t * a->half + i] = (float)cos((double)angle) * a->scaling;
            a->sin[(size_t)t * a->half + i] = (float)sin((double)angle) * a->scaling;
        }
    }
}

void ref_rope(struct backend *b, const struct be_rope_args *a)
{
    struct be_rope_args job = *a;
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__rope_range, &job);
}

/* ---- qkv */

struct ref_qkv {
    const struct be_qkv_args *a;
    enum be_dtype act;
};

/* Norm and rotation of one head into out[D]: pairs (i, i + rotary/2) turn by the angle of i. */
static void ref__head(const struct be_qkv_args *a, uint32_t row, const float *x, const float *weight,
                      float *out)
{
    uint32_t d = a->kv.head_dim, half = qkv_rotary(a) / 2;
    float scale = weight ? ref__rms_scale(x, d, a->eps) : 1.0f;
    for (uint32_t i = 0; i < d; i++) out[i] = weight ? x[i] * scale * weight[i] : x[i];
    if (!a->cos) return;
    const float *cs = a->cos + (size_t)row * half, *sn = a->sin + (size_t)row * half;
    for (uint32_t i = 0; i < half; i++) {
        float lo = out[i], hi = out[i + half];
        out[i] = lo * cs[i] - hi * sn[i];
        out[i + half] = hi * cs[i] + lo * sn[i];
    }
}

/* Clears the slots after `last` of a block that begins with this call (kv_layout.h tells why). */
static void ref__clear_rest(const struct ref_qkv *j, void *layer, uint32_t last)
{
    uint32_t d = j->a->kv.head_dim, dpad = kv_dpad(j->act, d);
    for (uint32_t g = 0; g < j->a->kv.kv_heads; g++) {
        if (j->a->kv.type != BE_KV_ACT) {
            kv_clear(layer, j->a->kv.type, j->act, d, g, last + 1);
            continue;
        }
        void *k = kv_k(layer, j->act, d, g), *v = kv_v(layer, j->act, d, g);
        for (uint32_t s = last + 1; s < KV_SLOTS; s++) {
            for (uint32_t i = 0; i < dpad; i++) {
                act_put(k, j->act, kv_k_idx(j->act, dpad, s, i), 0.0f);
                act_put(v, j->act, kv_v_idx(j->act, dpad, s, i), 0.0f);
            }
        }
    }
}

static void ref__qkv_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct ref_qkv *j = ctx;
    const struct be_qkv_args *a = j->a;
    const struct be_rows *r = a->rows;
    uint32_t d = a->kv.head_dim, groups = a->kv.kv_heads, dpad = kv_dpad(j->act, d);
    for (uint32_t t = begin; t < end; t++) {
        uint32_t seq = rows_seq(r, t), slot = r->pos[t] % KV_SLOTS;
        uint32_t block_offset = r->tables[r->seq_table[seq] + r->pos[t] / KV_SLOTS];
        const float *x = a->qkv + (size_t)t * qkv_heads(a) * d;
        float head[1024], grown = QKV_Q_SCALE(a, r->pos[t]);
        for (uint32_t h = 0; h < a->heads; h++) {
            ref__head(a, t, x + h * (a->gated ? 2 * d : d), a->q_norm, head);
            for (uint32_t i = 0; i < d && a->q_beta > 0; i++) head[i] *= grown;
            if (a->kv.type != BE_KV_ACT) kv_spread(head, d, true);
            for (uint32_t i = 0; i < d; i++)
                act_put(a->q, j->act, ((size_t)t * a->heads + h) * d + i, head[i]);
        }
        if (a->parts == BE_Q) continue;
        ASSERT(block_offset != BE_NO_BLOCK);
        void *layer = kv_layer(&a->kv, block_offset);
        for (uint32_t g = 0; g < groups; g++) {
            ref__head(a, t, x + (qkv_queries(a) + g) * d, a->k_norm, head);
            for (uint32_t i = 0; i < d && a->k_shift; i++) head[i] -= a->k_shift[g * d + i];
            const float *value = x + (qkv_queries(a) + (a->parts == BE_QK ? 0 : groups) + g) * d;
            float scale = a->v_norm ? ref__rms_scale(value, d, a->eps) : 1.0f;
            if (a->kv.type != BE_KV_ACT) {
                float plain[1024];
                struct kv_q8 c = kv_q8(layer, j->act, d, g);
                for (uint32_t i = 0; i < d; i++) plain[i] = value[i] * scale;
                kv_spread(head, d, false);
                kv_q8_put(&c, j->act, d, slot, head, plain);
                continue;
            }
            void *k = kv_k(layer, j->act, d, g), *v = kv_v(layer, j->act, d, g);
            for (uint32_t i = 0; i < dpad; i++) {
                act_put(k, j->act, kv_k_idx(j->act, dpad, slot, i), i < d ? head[i] : 0.0f);
                act_put(v, j->act, kv_v_idx(j->act, dpad, slot, i),
                        i < d                            ? value[i] * scale
                        : i == d && kv_v_ones(j->act, d) ? 1.0f
                                                         : 0.0f);
            }
        }
        if (slot == 0) ref__clear_rest(j, layer, u32_min(r->seq_row[seq + 1] - 1 - t, KV_SLOTS - 1));
    }
}

void ref_qkv(struct backend *b, const struct be_qkv_args *a)
{
    struct ref_qkv job = {a, b->act};
    cpu_pool_run(b->pool, a->rows->t, ROW_GRAIN, ref__qkv_range, &job);
}

/* ---- vision */

struct ref_patchify {
    const struct be_patchify_args *a;
    enum be_dtype act;
};

static void ref__patchify_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct ref_patchify *j = ctx;
    const struct be_patchify_args *a = j->a;
    uint32_t ps = a->patch, cols = a->width / ps, depth = u32_max(a->depth, 1), k = 3 * depth * ps * ps;
    size_t ld = a->dense ? k : be_ld(k);
    enum be_dtype type = a->dense ? BE_F32 : j->act;
    for (uint32_t p = begin; p < end; p++) {
        uint32_t q = a->order ? a->order[p] : p, y0 = q / cols * ps, x0 = q % cols * ps;
        for (uint32_t plane = 0; plane < 3 * depth; plane++) {
            uint32_t c = plane / depth;
            const uint8_t *rgb = a->rgb + plane % depth * a->frame_stride;
            for (uint32_t i = 0; i < ps * ps; i++) {
                uint8_t level = rgb[((size_t)(y0 + i / ps) * a->width + x0 + i % ps) * 3 + c];
                act_put(a->out, type, p * ld + plane * ps * ps + i, a->lut[c * 256 + level]);
            }
        }
        for (size_t i = k; i < ld; i++) act_put(a->out, type, p * ld + i, 0.0f);
    }
}

void ref_patchify(struct backend *b, const struct be_patchify_args *a)
{
    struct ref_patchify job = {a, b->act};
    cpu_pool_run(b->pool, (a->width / a->patch) * (a->height / a->patch), ROW_GRAIN, ref__patchify_range,
                 &job);
}

static void ref__pool_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_pool_args *a = ctx;
    uint32_t k = a->kernel, cols = a->grid_w / k;
    for (uint32_t p = begin; p < end; p++) {
        for (uint32_t i = 0; i < a->c; i++) {
            float sum = 0;
            for (uint32_t cell = 0; cell < k * k; cell++) {
                uint32_t y = p / cols * k + cell / k, x = p % cols * k + cell % k;
                sum += a->x[((size_t)y * a->grid_w + x) * a->c + i];
            }
            float mean = sum / (float)(k * k) * (a->factor != 0 ? a->factor : 1.0f);
            a->out[(size_t)p * a->c + i] = a->bias ? (mean - a->bias[i]) * a->scale[i] : mean;
        }
    }
}

void ref_pool(struct backend *b, const struct be_pool_args *a)
{
    struct be_pool_args job = *a;
    cpu_pool_run(b->pool, (a->grid_h / a->kernel) * (a->grid_w / a->kernel), ROW_GRAIN, ref__pool_range,
                 &job);
}

/* ---- rows: weighted sums of a table's rows, f32 rows as act rows */

static void ref__interpolate_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_interpolate_args *a = ctx;
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t *rows = a->rows + (size_t)t * a->taps;
        const float *w = a->weights + (size_t)t * a->taps;
        for (uint32_t i = 0; i < a->c; i++) {
            float sum = w[0] * a->table[(size_t)rows[0] * a->c + i];
            for (uint32_t k = 1; k < a->taps; k++) sum += w[k] * a->table[(size_t)rows[k] * a->c + i];
            a->out[(size_t)t * a->c + i] = sum;
        }
    }
}

void ref_interpolate(struct backend *b, const struct be_interpolate_args *a)
{
    struct be_interpolate_args job = *a;
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__interpolate_range, &job);
}

struct ref_pack {
    const struct be_pack_args *a;
    enum be_dtype act;
};

static void ref__pack_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct ref_pack *j = ctx;
    const struct be_pack_args *a = j->a;
    size_t ld = be_ld(a->c);
    for (uint32_t t = begin; t < end; t++)
        for (size_t i = 0; i < ld; i++)
            act_put(a->out, j->act, t * ld + i, i < a->c ? a->x[(size_t)t * a->c + i] : 0.0f);
}

void ref_pack(struct backend *b, const struct be_pack_args *a)
{
    struct ref_pack job = {a, b->act};
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__pack_range, &job);
}

/* ---- elements */

struct ref_gate {
    const struct be_gate_args *a;
    enum be_dtype act;
};

static float ref__gate(enum be_gate f, float z)
{
    if (f == BE_GATE_GELU_TANH) return ref_gelu_tanh(z);
    if (f == BE_GATE_NONE) return z;
    if (f == BE_GATE_CDF) return 0.5f * erfcf(z * -0.70710678118654752f);
    float s = 1.0f / (1.0f + expf(-z));
    return f == BE_GATE_SILU ? z * s : s;
}

static void ref__gate_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct ref_gate *j = ctx;
    const struct be_gate_args *a = j->a;
    size_t c = (size_t)a->heads * a->d, ld = be_ld(c);
    for (uint32_t t = begin; t < end; t++) {
        for (uint32_t h = 0; h < a->heads; h++) {
            const float *gate = a->gate + t * a->gate_stride + (a->gate_row ? 0 : h * a->gate_head);
            size_t at = t * a->x_stride + (size_t)h * a->d;
            double sum = 0;
            for (uint32_t i = 0; i < a->d; i++) {
                double x = (double)act_get(a->x, a->x_dtype, at + i);
                sum += x * x;
            }
            float scale = a->norm ? (float)(1.0 / sqrt(sum / a->d + (double)a->eps)) : 1.0f;
            for (uint32_t i = 0; i < a->d; i++) {
                float x = act_get(a->x, a->x_dtype, at + i);
                if (a->norm) x = x * scale * a->norm[i];
                act_put(a->out, j->act, t * ld + (size_t)h * a->d + i,
                        x * ref__gate(a->f, gate[a->gate_row ? 0 : i]));
            }
        }
        for (size_t i = c; i < ld; i++) act_put(a->out, j->act, t * ld + i, 0.0f);
    }
}

void ref_gate(struct backend *b, const struct be_gate_args *a)
{
    struct ref_gate job = {a, b->act};
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__gate_range, &job);
}

static void ref__clamp_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_clamp_args *a = ctx;
    for (uint32_t t = begin; t < end; t++) {
        for (uint32_t i = 0; i < a->c; i++) {
            float v = act_get(a->x, a->dtype, t * a->x_stride + i);
            act_put(a->out, a->dtype, t * a->out_stride + i,
                    v < a->bounds[0]   ? a->bounds[0]
                    : v > a->bounds[1] ? a->bounds[1]
                                       : v);
        }
        for (size_t i = a->c; a->pad && i < be_ld(a->c); i++)
            act_put(a->out, a->dtype, t * a->out_stride + i, 0.0f);
    }
}

void ref_clamp(struct backend *b, const struct be_clamp_args *a)
{
    struct be_clamp_args job = *a;
    cpu_pool_run(b->pool, a->t, ROW_GRAIN, ref__clamp_range, &job);
}

/* Norms, rotary tables, qkv, embed, patches, pooling, interpolation and routing, written once in terms of
 * vops_*.h and compiled for each vector set by a .c file that only includes this. A row's sums alternate over
 * four vectors and then run across lanes: an order that depends only on the row's length. Meanings and
 * layouts: backend.h, kv_layout.h; plain forms: rows/ref.c. */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/route.h"

#include <math.h>

/* Rows in one chunk: some 64 KB of f32, at least one. */
static uint32_t vec__grain(size_t row_elems)
{
    return row_elems >= 16384 ? 1 : (uint32_t)(16384 / (row_elems + 1) + 1);
}

/* ---- sums over a row */

#define VEC_FOR(i, n) for (uint32_t i = 0; i < (n); i += VL)

/* sum of (x - mean)^2 */
static float vec__sum_sq(const float *x, uint32_t n, float mean)
{
    struct vf s0 = vf_set1(0), s1 = s0, s2 = s0, s3 = s0, m = vf_set1(mean);
    uint32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        struct vf a = vf_sub(vf_load(x + i), m), b = vf_sub(vf_load(x + i + VL), m);
        struct vf c = vf_sub(vf_load(x + i + 2 * VL), m), d = vf_sub(vf_load(x + i + 3 * VL), m);
        s0 = vf_fma(a, a, s0);
        s1 = vf_fma(b, b, s1);
        s2 = vf_fma(c, c, s2);
        s3 = vf_fma(d, d, s3);
    }
    for (; i < n; i += VL) {
        struct vf a = vf_first_n(vf_sub(vf_load_n(x + i, n - i), m), vf_set1(0), n - i);
        s0 = vf_fma(a, a, s0);
    }
    return vf_sum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
}

/* sum of x - mean */
static float vec__sum(const float *x, uint32_t n, float mean)
{
    struct vf s0 = vf_set1(0), s1 = s0, m = vf_set1(mean);
    uint32_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        s0 = vf_add(s0, vf_sub(vf_load(x + i), m));
        s1 = vf_add(s1, vf_sub(vf_load(x + i + VL), m));
    }
    for (; i < n; i += VL) s0 = vf_add(s0, vf_first_n(vf_sub(vf_load_n(x + i, n - i), m), vf_set1(0), n - i));
    return vf_sum(vf_add(s0, s1));
}

/* A second sum corrects the rounding of the first: a row of equal numbers (an image of one color) must have
 * exactly their value as its mean, or the difference is multiplied by 1 / sqrt(eps). */
static float vec__mean(const float *x, uint32_t n)
{
    float m = vec__sum(x, n, 0) / (float)n;
    return m + vec__sum(x, n, m) / (float)n;
}

static float vec__rms(const float *x, uint32_t n, float eps)
{
    return 1.0f / sqrtf(vec__sum_sq(x, n, 0.0f) / (float)n + eps);
}

/* ---- norm */

struct vec_norm {
    const struct be_norm_args *a;
    struct backend *b;
};

/* a = x [* post * post_weight]; into residual (added) or into tmp. Returns the row to normalise next. */
static const float *vec__norm_input(const struct be_norm_args *a, uint32_t t, float *tmp)
{
    uint32_t c = a->c;
    const float *x = a->x ? a->x + t * (a->stride ? a->stride : c) : NULL;
    float *res = a->residual ? a->residual + (size_t)t * c : NULL;
    if (!x) return res;
    if (!res && !a->post_weight) return x;
    struct vf post = vf_set1(a->post_weight ? vec__rms(x, c, a->eps) : 1.0f);
    float *dst = res ? res : tmp;
    VEC_FOR(i, c)
    {
        struct vf v = vf_load_n(x + i, c - i);
        if (a->post_weight) v = vf_mul(vf_mul(v, post), vf_load_n(a->post_weight + i, c - i));
        if (res) v = vf_add(vf_load_n(res + i, c - i), v);
        if (a->residual_scale) v = vf_mul(v, vf_set1(*a->residual_scale));
        vf_store_n(dst + i, v, c - i);
    }
    return dst;
}

static void vec__norm_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct vec_norm *j = ctx;
    const struct be_norm_args *a = j->a;
    uint32_t c = a->c;
    size_t ld = a->out_dense ? c : be_ld(c), step = a->out_dense && a->stride ? a->stride : ld;
    for (uint32_t t = begin; t < end; t++) {
        const float *v = vec__norm_input(a, t, cpu_thread_scratch(j->b, worker));
        if (!a->out) continue;
        float m = a->kind == BE_NORM_LAYER ? vec__mean(v, c) : 0.0f;
        struct vf mean = vf_set1(m), scale = vf_set1(1.0f / sqrtf(vec__sum_sq(v, c, m) / (float)c + a->eps));
        float *out32 = (float *)a->out + t * step;
        uint16_t *out16 = (uint16_t *)a->out + t * step;
        VEC_FOR(i, c)
        {
            struct vf y = vf_load_n(v + i, c - i);
            if (a->kind == BE_NORM_LAYER) y = vf_sub(y, mean);
            y = vf_mul(vf_mul(y, scale), vf_load_n(a->weight + i, c - i));
            if (a->bias) y = vf_add(y, vf_load_n(a->bias + i, c - i));
            if (a->out_dtype == BE_F32) {
                vf_store_n(out32 + i, y, c - i);
            } else {
                vf_store_bf16_n(out16 + i, y, c - i);
            }
        }
        size_t size = be_dtype_bytes(a->out_dtype);
        memset((char *)a->out + (t * step + c) * size, 0, (ld - c) * size);
    }
}

void SET(norm)(struct backend *b, const struct be_norm_args *a)
{
    ASSERT((size_t)a->c * sizeof(float) <= CPU_THREAD_SCRATCH);
    struct vec_norm job = {a, b};
    cpu_pool_run(b->pool, a->t, vec__grain(a->c), vec__norm_range, &job);
}

/* ---- rope */

/* cos and sin of x in double, for |x| below about 10^6: x = n pi/2 + r by a two-part pi/2 (n times the first,
 * of 33 bits, is exact), Taylor polynomials on |r| <= pi/4 good to 10^-13. Branch-free plain C, so the
 * compiler may run it in lanes; no contraction, so lanes and scalars agree. */
static inline void vec__cos_sin(double x, double *c, double *s)
{
    const double round = 0x1.8p52; /* adding it rounds to an integer */
    double n = (x * 0.63661977236758134308 + round) - round;
    double r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11, z = r * r;
    double sp = -1.0 / 1307674368000.0;
    sp = sp * z + 1.0 / 6227020800.0;
    sp = sp * z - 1.0 / 39916800.0;
    sp = sp * z + 1.0 / 362880.0;
    sp = sp * z - 1.0 / 5040.0;
    sp = sp * z + 1.0 / 120.0;
    sp = sp * z - 1.0 / 6.0;
    sp = r + r * z * sp;
    double cp = 1.0 / 20922789888000.0;
    cp = cp * z - 1.0 / 87178291200.0;
    cp = cp * z + 1.0 / 479001600.0;
    cp = cp * z - 1.0 / 3628800.0;
    cp = cp * z + 1.0 / 40320.0;
    cp = cp * z - 1.0 / 720.0;
    cp = cp * z + 1.0 / 24.0;
    cp = 1.0 - 0.5 * z + z * z * cp;
    int64_t q = (int64_t)n;
    double cc = q & 1 ? sp : cp, ss = q & 1 ? cp : sp;
    *c = (q + 1) & 2 ? -cc : cc;
    *s = q & 2 ? -ss : ss;
}

static void vec__rope_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_rope_args *a = ctx;
    for (uint32_t t = begin; t < end; t++) {
        float *co = a->cos + (size_t)t * a->half, *si = a->sin + (size_t)t * a->half;
        for (uint32_t i = 0; i < a->half; i++) {
            uint32_t axis = a->axis ? a->axis[i] : 0;
            double c, s;
            vec__cos_sin((double)((float)a->pos[(size_t)axis * a->t + t] * a->inv_freq[i]), &c, &s);
            co[i] = (float)c * a->scaling;
            si[i] = (float)s * a->scaling;
        }
    }
}

void SET(rope)(struct backend *b, const struct be_rope_args *a)
{
    for (uint32_t i = 0; a->axis && i < a->half; i++) ASSERT(a->axis[i] < a->axes);
    struct be_rope_args job = *a;
    cpu_pool_run(b->pool, a->t, vec__grain((size_t)a->half * 8), vec__rope_range, &job);
}

/* ---- qkv */

#define VEC_HEAD_MAX 1024u

struct vec_qkv {
    const struct be_qkv_args *a;
    enum be_dtype act;
};

/* out[D] = rms(x), with every weight 1. */
static void vec__head_plain(const struct be_qkv_args *a, const float *x, float *out)
{
    uint32_t d = a->kv.head_dim;
    struct vf scale = vf_set1(vec__rms(x, d, a->eps));
    VEC_FOR(i, d) vf_store_n(out + i, vf_mul(vf_load_n(x + i, d - i), scale), d - i);
}

/* Norm and rotation of one head, x[D] -> out[D]. */
static void vec__head(const struct be_qkv_args *a, uint32_t row, const float *x, const float *weight,
                      float *out)
{
    uint32_t d = a->kv.head_dim, half = qkv_rotary(a) / 2;
    if (weight) {
        struct vf scale = vf_set1(vec__rms(x, d, a->eps));
        VEC_FOR(i, d)
        vf_store_n(out + i, vf_mul(vf_mul(vf_load_n(x + i, d - i), scale), vf_load_n(weight + i, d - i)),
                   d - i);
    } else {
        memcpy(out, x, d * sizeof(float));
    }
    if (!a->cos) return;
    const float *cs = a->cos + (size_t)row * half, *sn = a->sin + (size_t)row * half;
    VEC_FOR(i, half)
    {
        uint32_t n = half - i;
        struct vf lo = vf_load_n(out + i, n), hi = vf_load_n(out + half + i, n), c = vf_load_n(cs + i, n),
                  s = vf_load_n(sn + i, n);
        vf_store_n(out + i, vf_sub(vf_mul(lo, c), vf_mul(hi, s)), n);
        vf_store_n(out + half + i, vf_add(vf_mul(hi, c), vf_mul(lo, s)), n);
    }
}

/* One slot of K or V in bf16. src: dpad elements, zero from D on. */
static void vec__put_bf16(uint16_t *k, uint16_t *v, uint32_t dpad, uint32_t slot, const uint16_t *key,
                          const uint16_t *value)
{
    uint16_t *kp = k + kv_k_idx(BE_BF16, dpad, slot, 0), *vp = v + kv_v_idx(BE_BF16, dpad, slot, 0);
    for (uint32_t i = 0; i < dpad; i += 2)
        memcpy(kp + (size_t)i * 16, key + i, 4); /* pairs of d, 64 bytes apart */
    for (uint32_t i = 0; i < dpad; i++) vp[2 * i] = value[i];
}

static void vec__put_f32(float *k, float *v, uint32_t dpad, uint32_t slot, const float *key,
                         const float *value)
{
    for (uint32_t i = 0; i < dpad; i++) k[(size_t)i * KV_SLOTS + slot] = key[i];
    memcpy(v + (size_t)slot * dpad, value, dpad * sizeof(float));
}

/* Clears the slots after `last` of a block that begins with this call (see kv_layout.h). */
static void vec__clear_rest(const struct vec_qkv *j, void *layer, uint32_t last)
{
    const struct be_kv *kv = &j->a->kv;
    for (uint32_t g = 0; g < kv->kv_heads; g++) kv_clear(layer, kv->type, j->act, kv->head_dim, g, last + 1);
}

static void vec__to_bf16(uint16_t *dst, const float *src, uint32_t n)
{
    VEC_FOR(i, n) vf_store_bf16_n(dst + i, vf_load_n(src + i, n - i), n - i);
}

static void vec__qkv_row(const struct vec_qkv *j, uint32_t t, uint32_t seq)
{
    const struct be_qkv_args *a = j->a;
    const struct be_rows *r = a->rows;
    uint32_t d = a->kv.head_dim, groups = a->kv.kv_heads, dpad = kv_dpad(j->act, d),
             slot = r->pos[t] % KV_SLOTS;
    uint32_t block_offset = r->tables[r->seq_table[seq] + r->pos[t] / KV_SLOTS];
    const float *x = a->qkv + (size_t)t * qkv_heads(a) * d;
    float head[VEC_HEAD_MAX], value[VEC_HEAD_MAX], grown = QKV_Q_SCALE(a, r->pos[t]);
    for (uint32_t h = 0; h < a->heads; h++) {
        size_t at = ((size_t)t * a->heads + h) * d;
        float *q = j->act == BE_F32 ? (float *)a->q + at : head;
        vec__head(a, t, x + (size_t)h * (a->gated ? 2 * d : d), a->q_norm, q);
        for (uint32_t i = 0; i < d && a->q_beta > 0; i++) q[i] *= grown;
        if (a->kv.type != BE_KV_ACT) kv_spread(q, d, true);
        if (j->act != BE_F32) vec__to_bf16((uint16_t *)a->q + at, head, d);
    }
    if (a->parts == BE_Q) return;
    ASSERT(block_offset != BE_NO_BLOCK);
    void *layer = kv_layer(&a->kv, block_offset);
    memset(head + d, 0, (dpad - d) * sizeof(float));
    memset(value + d, 0, (dpad - d) * sizeof(float));
    if (kv_v_ones(j->act, d)) value[d] = 1.0f;
    for (uint32_t g = 0; g < groups; g++) {
        vec__head(a, t, x + (size_t)(qkv_queries(a) + g) * d, a->k_norm, head);
        for (uint32_t i = 0; i < d && a->k_shift; i++) head[i] -= a->k_shift[g * d + i];
        const float *from = x + (size_t)(qkv_queries(a) + (a->parts == BE_QK ? 0 : groups) + g) * d;
        if (a->v_norm) vec__head_plain(a, from, value);
        else memcpy(value, from, d * sizeof(float));
        if (a->kv.type != BE_KV_ACT) {
            struct kv_q8 c = kv_q8(layer, j->act, d, g);
            kv_spread(head, d, false);
            kv_q8_put(&c, j->act, d, slot, head, value);
            continue;
        }
        void *k = kv_k(layer, j->act, d, g), *v = kv_v(layer, j->act, d, g);
        if (j->act == BE_F32) {
            vec__put_f32(k, v, dpad, slot, head, value);
            continue;
        }
        uint16_t key16[VEC_HEAD_MAX], value16[VEC_HEAD_MAX];
        vec__to_bf16(key16, head, dpad);
        vec__to_bf16(value16, value, dpad);
        vec__put_bf16(k, v, dpad, slot, key16, value16);
    }
    if (slot == 0) vec__clear_rest(j, layer, u32_min(r->seq_row[seq + 1] - 1 - t, KV_SLOTS - 1));
}

static void vec__qkv_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_qkv *j = ctx;
    uint32_t seq = rows_seq(j->a->rows, begin);
    for (uint32_t t = begin; t < end; t++) {
        while (j->a->rows->seq_row[seq + 1] <= t) seq++;
        vec__qkv_row(j, t, seq);
    }
}

void SET(qkv)(struct backend *b, const struct be_qkv_args *a)
{
    struct vec_qkv job = {a, b->act};
    cpu_pool_run(b->pool, a->rows->t, vec__grain((size_t)(a->heads + 2 * a->kv.kv_heads) * a->kv.head_dim),
                 vec__qkv_range, &job);
}

/* ---- embed: one lane of a panel, 64 bytes from pair to pair. One product and one rounding per element: no
 * gain from SIMD. */

static void vec__embed_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_embed_args *a = ctx;
    const struct be_weight *w = a->w;
    bool round = a->round_act && w->type == BE_BF16;
    for (uint32_t t = begin; t < end; t++) {
        uint32_t id = a->ids[t];
        if (id == UINT32_MAX) continue;
        ASSERT(id < w->n);
        const uint32_t *p =
            (const uint32_t *)(const void *)((const char *)w->data + id / 16 * w->panel_bytes) + id % 16;
        float *out = a->out + (size_t)t * w->k;
        for (uint32_t k = 0; w->type == BE_F32 && k < w->k; k++) {
            float v;
            memcpy(&v, p + (size_t)k * 16, 4);
            out[k] = v * a->scale;
        }
        for (uint32_t k = 0; w->type == BE_BF16 && k < w->k; k += 2) {
            uint32_t two = p[(size_t)k * 8];
            float lo = bf16_to_f32((uint16_t)two) * a->scale,
                  hi = bf16_to_f32((uint16_t)(two >> 16)) * a->scale;
            out[k] = round ? bf16_to_f32(f32_to_bf16(lo)) : lo;
            if (k + 1 < w->k) out[k + 1] = round ? bf16_to_f32(f32_to_bf16(hi)) : hi;
        }
    }
}

void SET(embed)(struct backend *b, const struct be_embed_args *a)
{
    struct be_embed_args job = *a;
    cpu_pool_run(b->pool, a->t, vec__grain((size_t)a->w->k * 4), vec__embed_range, &job);
}

/* ---- vision */

struct vec_patchify {
    const struct be_patchify_args *a;
    enum be_dtype act;
    uint16_t lut16[3 * 256];
};

static void vec__patchify_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_patchify *j = ctx;
    const struct be_patchify_args *a = j->a;
    uint32_t ps = a->patch, cols = a->width / ps, depth = u32_max(a->depth, 1), k = 3 * depth * ps * ps;
    size_t ld = a->dense ? k : be_ld(k);
    bool f32 = a->dense || j->act == BE_F32;
    for (uint32_t p = begin; p < end; p++) {
        uint32_t q = a->order ? a->order[p] : p;
        const uint8_t *corner = a->rgb + ((size_t)(q / cols * ps) * a->width + q % cols * ps) * 3;
        float *out32 = (float *)a->out + p * ld;
        uint16_t *out16 = (uint16_t *)a->out + p * ld;
        for (uint32_t row = 0; row < depth * ps; row++) { /* of a frame */
            uint32_t s = row / ps, y = row % ps;
            const uint8_t *px = corner + s * a->frame_stride + (size_t)y * a->width * 3;
            for (uint32_t c = 0; c < 3; c++) {
                uint32_t at = ((c * depth + s) * ps + y) * ps;
                for (uint32_t x = 0; x < ps; x++) {
                    if (f32) {
                        out32[at + x] = a->lut[c * 256 + px[3 * x + c]];
                    } else {
                        out16[at + x] = j->lut16[c * 256 + px[3 * x + c]];
                    }
                }
            }
        }
        size_t size = f32 ? 4 : 2;
        memset((char *)a->out + (p * ld + k) * size, 0, (ld - k) * size);
    }
}

void SET(patchify)(struct backend *b, const struct be_patchify_args *a)
{
    struct vec_patchify job = {.a = a, .act = b->act};
    vec__to_bf16(job.lut16, a->lut, 3 * 256);
    cpu_pool_run(b->pool, (a->width / a->patch) * (a->height / a->patch),
                 vec__grain((size_t)12 * u32_max(a->depth, 1) * a->patch * a->patch), vec__patchify_range,
                 &job);
}

static void vec__pool_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_pool_args *a = ctx;
    uint32_t k = a->kernel, cols = a->grid_w / k;
    for (uint32_t p = begin; p < end; p++) {
        const float *corner = a->x + ((size_t)(p / cols * k) * a->grid_w + p % cols * k) * a->c;
        VEC_FOR(i, a->c)
        {
            struct vf sum = vf_set1(0);
            for (uint32_t y = 0; y < k; y++)
                for (uint32_t x = 0; x < k; x++)
                    sum = vf_add(sum, vf_load_n(corner + ((size_t)y * a->grid_w + x) * a->c + i, a->c - i));
            sum = vf_mul(vf_div(sum, vf_set1((float)(k * k))), vf_set1(a->factor != 0 ? a->factor : 1.0f));
            if (a->bias)
                sum =
                    vf_mul(vf_sub(sum, vf_load_n(a->bias + i, a->c - i)), vf_load_n(a->scale + i, a->c - i));
            vf_store_n(a->out + (size_t)p * a->c + i, sum, a->c - i);
        }
    }
}

void SET(pool)(struct backend *b, const struct be_pool_args *a)
{
    struct be_pool_args job = *a;
    cpu_pool_run(b->pool, (a->grid_h / a->kernel) * (a->grid_w / a->kernel),
                 vec__grain((size_t)a->kernel * a->kernel * a->c), vec__pool_range, &job);
}

/* ---- rows: weighted sums of a table's rows, f32 rows as act rows */

static void vec__interpolate_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_interpolate_args *a = ctx;
    for (uint32_t t = begin; t < end; t++) {
        const float *w = a->weights + (size_t)t * a->taps;
        const uint32_t *row = a->rows + (size_t)t * a->taps;
        VEC_FOR(i, a->c)
        {
            uint32_t n = a->c - i;
            struct vf sum = vf_mul(vf_set1(w[0]), vf_load_n(a->table + (size_t)row[0] * a->c + i, n));
            for (uint32_t k = 1; k < a->taps; k++)
                sum = vf_add(sum, vf_mul(vf_set1(w[k]), vf_load_n(a->table + (size_t)row[k] * a->c + i, n)));
            vf_store_n(a->out + (size_t)t * a->c + i, sum, n);
        }
    }
}

void SET(interpolate)(struct backend *b, const struct be_interpolate_args *a)
{
    struct be_interpolate_args job = *a;
    cpu_pool_run(b->pool, a->t, vec__grain((size_t)a->c * a->taps), vec__interpolate_range, &job);
}

struct vec_pack {
    const struct be_pack_args *a;
    enum be_dtype act;
};

static void vec__pack_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_pack *j = ctx;
    const struct be_pack_args *a = j->a;
    size_t ld = be_ld(a->c), size = be_dtype_bytes(j->act);
    for (uint32_t t = begin; t < end; t++) {
        const float *x = a->x + (size_t)t * a->c;
        char *out = (char *)a->out + t * ld * size;
        if (j->act == BE_F32) {
            memcpy(out, x, a->c * size);
        } else {
            vec__to_bf16((uint16_t *)(void *)out, x, a->c);
        }
        memset(out + a->c * size, 0, (ld - a->c) * size);
    }
}

void SET(pack)(struct backend *b, const struct be_pack_args *a)
{
    struct vec_pack job = {a, b->act};
    cpu_pool_run(b->pool, a->t, vec__grain(a->c), vec__pack_range, &job);
}

/* ---- elements */

struct vec_gate {
    const struct be_gate_args *a;
    enum be_dtype act;
};

static struct vf vec__sigmoid(struct vf z)
{
    struct vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set1(0), z))));
}

static struct vf vec__gate(enum be_gate f, struct vf z)
{
    if (f == BE_GATE_GELU_TANH) return vf_gelu_tanh(z);
    if (f == BE_GATE_NONE) return z;
    if (f == BE_GATE_CDF) return vf_normal_cdf(z);
    return f == BE_GATE_SILU ? vf_mul(z, vec__sigmoid(z)) : vec__sigmoid(z);
}

static void vec__gate_head(const struct vec_gate *j, const float *gate, const void *x, void *out)
{
    const struct be_gate_args *a = j->a;
    bool x16 = a->x_dtype != BE_F32;
    float wide[VEC_HEAD_MAX]; /* of a normed head; it may be f32 in any case */
    const float *x32 = x;
    struct vf scale = vf_set1(1.0f), same = vec__gate(a->f, vf_set1(gate[0]));
    if (a->norm) {
        ASSERT(a->d <= VEC_HEAD_MAX);
        VEC_FOR(i, a->d)
        if (x16) vf_store_n(wide + i, vf_load_bf16_n((const uint16_t *)x + i, a->d - i), a->d - i);
        if (x16) x32 = wide;
        scale = vf_set1(vec__rms(x32, a->d, a->eps));
    }
    VEC_FOR(i, a->d)
    {
        uint32_t n = a->d - i;
        struct vf v = x16 ? vf_load_bf16_n((const uint16_t *)x + i, n) : vf_load_n(x32 + i, n);
        if (a->norm) v = vf_mul(vf_mul(v, scale), vf_load_n(a->norm + i, n));
        v = vf_mul(a->gate_row ? same : vec__gate(a->f, vf_load_n(gate + i, n)), v);
        if (j->act == BE_F32) vf_store_n((float *)out + i, v, n);
        else vf_store_bf16_n((uint16_t *)out + i, v, n);
    }
}

static void vec__gate_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_gate *j = ctx;
    const struct be_gate_args *a = j->a;
    size_t c = (size_t)a->heads * a->d, ld = be_ld(c), size = be_dtype_bytes(j->act),
           x_size = be_dtype_bytes(a->x_dtype);
    for (uint32_t t = begin; t < end; t++) {
        char *out = (char *)a->out + t * ld * size;
        for (uint32_t h = 0; h < a->heads; h++)
            vec__gate_head(j, a->gate + t * a->gate_stride + (a->gate_row ? 0 : h * a->gate_head),
                           (const char *)a->x + (t * a->x_stride + (size_t)h * a->d) * x_size,
                           out + (size_t)h * a->d * size);
        memset(out + c * size, 0, (ld - c) * size);
    }
}

void SET(gate)(struct backend *b, const struct be_gate_args *a)
{
    struct vec_gate job = {a, b->act};
    cpu_pool_run(b->pool, a->t, vec__grain((size_t)a->heads * a->d * 8), vec__gate_range, &job);
}

/* Compare and select: auto-vectorised by the compiler. */
static void vec__clamp_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct be_clamp_args *a = ctx;
    float lo = a->bounds[0], hi = a->bounds[1];
    size_t size = be_dtype_bytes(a->dtype), zeros = a->pad ? be_ld(a->c) - a->c : 0;
    for (uint32_t t = begin; t < end; t++) {
        size_t from = t * a->x_stride, to = t * a->out_stride;
        if (a->dtype == BE_F32) {
            const float *x = (const float *)a->x + from;
            float *out = (float *)a->out + to;
            for (uint32_t i = 0; i < a->c; i++) {
                float v = x[i] < lo ? lo : x[i];
                out[i] = v > hi ? hi : v;
            }
        } else {
            for (uint32_t i = 0; i < a->c; i++) {
                float v = bf16_to_f32(((const uint16_t *)a->x)[from + i]);
                v = v < lo ? lo : v;
                ((uint16_t *)a->out)[to + i] = f32_to_bf16(v > hi ? hi : v);
            }
        }
        memset((char *)a->out + (to + a->c) * size, 0, zeros * size);
    }
}

void SET(clamp)(struct backend *b, const struct be_clamp_args *a)
{
    struct be_clamp_args job = *a;
    cpu_pool_run(b->pool, a->t, vec__grain(a->c), vec__clamp_range, &job);
}

/* ---- route */

/* Exponentials of a row into e; returns 1 / their sum. */
static float vec__route_exp(const float *logits, uint32_t n, float *e)
{
    struct vf top = vf_set1(-INFINITY), sum = vf_set1(0);
    VEC_FOR(i, n) top = vf_max(top, vf_first_n(vf_load_n(logits + i, n - i), top, n - i));
    top = vf_set1(vf_hmax(top));
    VEC_FOR(i, n)
    {
        struct vf v = vf_first_n(vf_exp(vf_sub(vf_load_n(logits + i, n - i), top)), vf_set1(0), n - i);
        vf_store_n(e + i, v, n - i);
        sum = vf_add(sum, v);
    }
    return 1.0f / vf_sum(sum);
}

static void vec__route_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct route_job *j = ctx;
    const struct be_route_args *a = j->a;
    float *e = cpu_thread_scratch(j->b, worker);
    for (uint32_t t = begin; t < end; t++) {
        const float *logits = a->logits + (size_t)t * a->experts;
        route_finish(a, t, e, vec__route_exp(logits, a->experts, e));
    }
}

void SET(route)(struct backend *b, const struct be_route_args *a)
{
    ASSERT((size_t)a->experts * sizeof(float) <= CPU_THREAD_SCRATCH);
    struct route_job job = {a, b};
    cpu_pool_run(b->pool, a->t, vec__grain((size_t)a->experts * 16), vec__route_range, &job);
}

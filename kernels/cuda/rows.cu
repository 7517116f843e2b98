/* Row operations: norms, rotary tables, queries/keys/values with the write to the cache, and the small copies
 * of the vision tower. A row (or an element) is one chunk of work, and the order of its sums depends on its
 * width alone. */
#include "kernels/cuda/internal.h"

#define ROW_THREADS 256u
#define ROW_WARPS   8

/* One element per thread; above the largest grid the threads loop. */
static uint32_t rows__blocks(size_t elems)
{
    size_t n = (elems + ROW_THREADS - 1) / ROW_THREADS;
    return n < 1u << 20 ? (uint32_t)n : 1u << 20;
}
#define ROWS_EACH(i, n)                                                                                      \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                                  \
         i += (size_t)gridDim.x * blockDim.x)

/* ---- norm. A block is a row; thread i has elements i, i + 256, ... in every pass. */

template <bool BF> __global__ __launch_bounds__(256) void norm_k(be_norm_args a, uint32_t ld)
{
    CU_SHARED(red, float[ROW_WARPS]);
    uint32_t c = a.c, tid = threadIdx.x;
    size_t t = blockIdx.x, stride = a.stride ? a.stride : c;
    const float *v = a.x ? a.x + t * stride : nullptr;
    float post = 1.0f;
    if (a.post_weight) {
        float sum = 0;
        for (uint32_t i = tid; i < c; i += ROW_THREADS) sum += v[i] * v[i];
        sum = cu_block_sum<ROW_WARPS>(sum, red);
        post = 1.0f / sqrtf(sum / (float)c + a.eps);
    }
    if (a.residual) {
        float *r = a.residual + t * c;
        if (v)
            for (uint32_t i = tid; i < c; i += ROW_THREADS)
                r[i] = (r[i] + (a.post_weight ? v[i] * post * a.post_weight[i] : v[i])) *
                       (a.residual_scale ? *a.residual_scale : 1.0f);
        v = r; /* read again by the thread that wrote it */
    }
    if (!a.out) return;
    /* Without a residual the row to normalise is x * post * post_weight; it is recomputed where it is
     * read. */
    const float *scaled = !a.residual ? a.post_weight : nullptr;
    float mean = 0, sum = 0;
    /* Twice: the second corrects the rounding of the first (see vec__mean in kernels/cpu/rows/vec.h). */
    for (uint32_t pass = 0; a.kind == BE_NORM_LAYER && pass < 2; pass++) {
        for (uint32_t i = tid; i < c; i += ROW_THREADS)
            sum += (scaled ? v[i] * post * scaled[i] : v[i]) - mean;
        mean += cu_block_sum<ROW_WARPS>(sum, red) / (float)c;
        sum = 0;
    }
    for (uint32_t i = tid; i < c; i += ROW_THREADS) {
        float d = (scaled ? v[i] * post * scaled[i] : v[i]) - mean;
        sum += d * d;
    }
    sum = cu_block_sum<ROW_WARPS>(sum, red);
    float scale = 1.0f / sqrtf(sum / (float)c + a.eps);
    for (uint32_t i = tid; i < ld; i += ROW_THREADS) {
        float y = 0;
        if (i < c) {
            y = ((scaled ? v[i] * post * scaled[i] : v[i]) - mean) * scale * a.weight[i];
            if (a.bias) y += a.bias[i];
        }
        cu_act_put<BF>(a.out, t * (a.out_dense ? stride : ld) + i, y);
    }
}

void cuda_norm(struct backend *b, const struct be_norm_args *a)
{
    uint32_t ld = a->out_dense ? a->c : (uint32_t)be_ld(a->c);
    if (a->out_dtype == BE_BF16) CU_LAUNCH((norm_k<true>), a->t, ROW_THREADS, 0, b->stream, *a, ld);
    else CU_LAUNCH((norm_k<false>), a->t, ROW_THREADS, 0, b->stream, *a, ld);
    cuda_launched(b, "norm");
}

/* ---- rope. The angle is an f32 product; sin and cos are computed in double: an f32 sine of an angle in the
 * thousands needs the long reduction anyway, and a step has few of them. */

__global__ __launch_bounds__(256) void rope_k(be_rope_args a)
{
    ROWS_EACH(i, (size_t)a.t * a.half)
    {
        size_t t = i / a.half;
        uint32_t f = (uint32_t)(i % a.half), axis = a.axis ? a.axis[f] : 0;
        float angle = (float)a.pos[(size_t)axis * a.t + t] * a.inv_freq[f];
        a.cos[i] = (float)cos((double)angle) * a.scaling;
        a.sin[i] = (float)sin((double)angle) * a.scaling;
    }
}

void cuda_rope(struct backend *b, const struct be_rope_args *a)
{
    CU_LAUNCH(rope_k, rows__blocks((size_t)a->t * a->half), ROW_THREADS, 0, b->stream, *a);
    cuda_launched(b, "rope");
}

/* ---- qkv. A warp is one head of one row; lane l has the pairs l, l + 32, ...: those that rotate, (i, i +
 * rotary/2), then the rest */

#define QKV_PAIRS 8 /* of a lane: heads of up to 512 */

struct qkv_job {
    be_rows rows;
    be_kv kv;
    uint32_t heads, dpad, step, all, key_from, value_from; /* heads in a row of qkv: from one query to the
                                                              next, of all; where its keys and values are */
    bool own;
    uint32_t turning; /* pairs */
    bool v_norm;
    const float *qkv, *q_norm, *k_norm, *cos, *sin, *k_shift;
    float eps, q_beta, q_period;
    void *q;
    size_t head_bytes;
};

/* Zeros slots [first, 31] of one head's K or V. */
template <bool BF> static __device__ void qkv_clear(void *part, uint32_t dpad, uint32_t first)
{
    for (uint32_t i = first * dpad + threadIdx.x % 32; i < CUDA_KV_SLOTS * dpad; i += 32)
        cu_act_put<BF>(part, i, 0.0f);
}

template <bool BF> __global__ __launch_bounds__(128) void qkv_k(qkv_job j)
{
    uint32_t d = j.kv.head_dim, pairs = d / 2, groups = j.kv.kv_heads, lane = threadIdx.x % 32,
             turning = j.turning;
    uint32_t t = blockIdx.x, head = blockIdx.y * 4 + threadIdx.x / 32;
    bool value = head >= j.heads + groups;
    if (head >= j.heads + (j.own ? 2 * groups : 0)) return;
    uint32_t from = head < j.heads ? head * j.step
                    : value        ? head - j.heads - groups + j.value_from
                                   : head - j.heads + j.key_from;
    const float *x = j.qkv + ((size_t)t * j.all + from) * d;
    const float *weight = head < j.heads ? j.q_norm : value ? nullptr : j.k_norm;
    float lo[QKV_PAIRS], hi[QKV_PAIRS], sum = 0;
    CU_UNROLL
    for (int n = 0; n < QKV_PAIRS; n++) {
        uint32_t i = lane + 32 * (uint32_t)n;
        lo[n] = i < pairs ? x[i < turning ? i : i + turning] : 0;
        hi[n] = i < pairs ? x[i < turning ? i + turning : i + pairs] : 0;
        sum += lo[n] * lo[n];
        sum += hi[n] * hi[n];
    }
    sum = cu_warp_sum(sum);
    float scale = 1.0f / sqrtf(sum / (float)d + j.eps);
    /* Where the head goes: its row of q, or its slot in the cache. */
    void *out = j.q;
    size_t at = ((size_t)t * j.heads + head) * d;
    if (head >= j.heads) {
        uint32_t seq = cu_row_seq(j.rows.seq_row, j.rows.seq_count, t), pos = j.rows.pos[t],
                 slot = pos % CUDA_KV_SLOTS;
        uint32_t block_offset = j.rows.tables[j.rows.seq_table[seq] + pos / CUDA_KV_SLOTS],
                 g = (head - j.heads) % groups;
        if (block_offset == BE_NO_BLOCK) return; /* a padding row */
        out = static_cast<char *>(j.kv.arena) + (size_t)block_offset * BE_KV_GRAIN + j.kv.layer_offset +
              g * j.head_bytes + (value ? j.head_bytes / 2 : 0);
        at = (size_t)slot * j.dpad;
        if (lane < j.dpad - d) cu_act_put<BF>(out, at + d + lane, 0.0f);
        uint32_t last = j.rows.seq_row[seq + 1] - 1 - t; /* rows of this call after this one */
        if (slot == 0 && last < CUDA_KV_SLOTS - 1) qkv_clear<BF>(out, j.dpad, last + 1);
    }
    const float *cs = value || !j.cos ? nullptr : j.cos + (size_t)t * turning,
                *sn = cs ? j.sin + (size_t)t * turning : nullptr,
                *shift = value || head < j.heads || !j.k_shift ? nullptr : j.k_shift + (head - j.heads) * d;
    float grown = QKV_Q_SCALE(&j, j.rows.pos[t]);
    CU_UNROLL
    for (int n = 0; n < QKV_PAIRS; n++) {
        uint32_t i = lane + 32 * (uint32_t)n;
        if (i >= pairs) continue;
        uint32_t i0 = i < turning ? i : i + turning, i1 = i < turning ? i + turning : i + pairs;
        float a = weight ? lo[n] * scale * weight[i0] : lo[n],
              b = weight ? hi[n] * scale * weight[i1] : hi[n];
        if (value && j.v_norm) {
            a *= scale;
            b *= scale;
        }
        bool turns = cs && i < turning;
        float first = turns ? a * cs[i] - b * sn[i] : a, second = turns ? b * cs[i] + a * sn[i] : b;
        if (head < j.heads && j.q_beta > 0) {
            first *= grown;
            second *= grown;
        }
        cu_act_put<BF>(out, at + i0, shift ? first - shift[i0] : first);
        cu_act_put<BF>(out, at + i1, shift ? second - shift[i1] : second);
    }
}

void cuda_qkv(struct backend *b, const struct be_qkv_args *a)
{
    uint32_t d = a->kv.head_dim;
    CU_ASSERT(d / 2 <= 32 * QKV_PAIRS);
    uint32_t own = a->parts == BE_QKV ? 2 : a->parts == BE_QK ? 1 : 0, step = a->gated ? 2 : 1;
    struct qkv_job j = {*a->rows,
                        a->kv,
                        a->heads,
                        cuda_kv_dpad(b->act, d),
                        step,
                        step * a->heads + own * a->kv.kv_heads,
                        step * a->heads,
                        step * a->heads + (own == 2 ? a->kv.kv_heads : 0),
                        own > 0,
                        (a->rotary ? a->rotary : d) / 2,
                        a->v_norm,
                        a->qkv,
                        a->q_norm,
                        a->k_norm,
                        a->cos,
                        a->sin,
                        a->k_shift,
                        a->eps,
                        a->q_beta,
                        a->q_period,
                        a->q,
                        cuda_kv_head_bytes(b->act, d)};
    dim3 grid(a->rows->t, cu_div_up(a->heads + (own ? 2 * a->kv.kv_heads : 0), 4));
    if (b->act == BE_BF16) CU_LAUNCH((qkv_k<true>), grid, 128, 0, b->stream, j);
    else CU_LAUNCH((qkv_k<false>), grid, 128, 0, b->stream, j);
    cuda_launched(b, "qkv");
}

/* One warp for each head's K or V. */
template <bool BF>
__global__ __launch_bounds__(32) void kv_clear_k(void *layer, size_t part, uint32_t dpad, uint32_t first)
{
    qkv_clear<BF>(static_cast<char *>(layer) + blockIdx.x * part, dpad, first);
}

void cuda_kv_clear(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first)
{
    void *layer = static_cast<char *>(kv->arena) + (size_t)block_offset * BE_KV_GRAIN + kv->layer_offset;
    uint32_t dpad = cuda_kv_dpad(b->act, kv->head_dim);
    size_t part = cuda_kv_head_bytes(b->act, kv->head_dim) / 2;
    if (first >= CUDA_KV_SLOTS) return;
    if (b->act == BE_BF16)
        CU_LAUNCH((kv_clear_k<true>), 2 * kv->kv_heads, 32, 0, b->stream, layer, part, dpad, first);
    else CU_LAUNCH((kv_clear_k<false>), 2 * kv->kv_heads, 32, 0, b->stream, layer, part, dpad, first);
    cuda_launched(b, "kv_clear");
}

/* ---- embed */

template <bool BF>
__global__ __launch_bounds__(256) void embed_k(be_embed_args a, const void *table, uint32_t c, uint32_t kpad,
                                               uint32_t n, uint32_t atoms)
{
    ROWS_EACH(i, (size_t)a.t * c)
    {
        uint32_t id = a.ids[i / c];
        if (id >= n) continue; /* UINT32_MAX; the caller has checked the others */
        uint32_t k = (uint32_t)(i % c);
        float v = cu_act_get<BF>(table, atoms ? cu_tiled_at(id, k, atoms) : (size_t)id * kpad + k) * a.scale;
        a.out[i] = a.round_act && BF ? cu_bf16_value(cu_bf16_bits(v)) : v;
    }
}

void cuda_embed(struct backend *b, const struct be_embed_args *a)
{
    const struct be_weight *w = a->w;
    uint32_t blocks = rows__blocks((size_t)a->t * w->k);
    if (w->type == BE_BF16)
        CU_LAUNCH((embed_k<true>), blocks, ROW_THREADS, 0, b->stream, *a, w->data, w->k, w->kpad, w->n,
                  w->atoms);
    else
        CU_LAUNCH((embed_k<false>), blocks, ROW_THREADS, 0, b->stream, *a, w->data, w->k, w->kpad, w->n,
                  w->atoms);
    cuda_launched(b, "embed");
}

/* ---- vision: patches, pooling, weighted sums of a table's rows, f32 rows as act rows */

template <bool BF>
__global__ __launch_bounds__(256) void patchify_k(be_patchify_args a, uint32_t cells, uint32_t depth,
                                                  uint32_t ld)
{
    uint32_t ps = a.patch, cols = a.width / ps, k = 3 * depth * ps * ps;
    ROWS_EACH(i, (size_t)cells * ld)
    {
        uint32_t p = (uint32_t)(i / ld), e = (uint32_t)(i % ld), q = a.order ? a.order[p] : p;
        float v = 0;
        if (e < k) {
            uint32_t plane = e / (ps * ps), y = q / cols * ps + e / ps % ps, x = q % cols * ps + e % ps,
                     c = plane / depth;
            v = a.lut[c * 256 + a.rgb[plane % depth * a.frame_stride + ((size_t)y * a.width + x) * 3 + c]];
        }
        cu_act_put<BF>(a.out, i, v);
    }
}

void cuda_patchify(struct backend *b, const struct be_patchify_args *a)
{
    uint32_t depth = a->depth ? a->depth : 1, cells = (a->width / a->patch) * (a->height / a->patch);
    uint32_t ld = (uint32_t)be_ld((size_t)3 * depth * a->patch * a->patch),
             blocks = rows__blocks((size_t)cells * ld);
    if (a->dense) ld = 3 * depth * a->patch * a->patch;
    if (b->act == BE_BF16 && !a->dense)
        CU_LAUNCH((patchify_k<true>), blocks, ROW_THREADS, 0, b->stream, *a, cells, depth, ld);
    else CU_LAUNCH((patchify_k<false>), blocks, ROW_THREADS, 0, b->stream, *a, cells, depth, ld);
    cuda_launched(b, "patchify");
}

__global__ __launch_bounds__(256) void pool_k(be_pool_args a)
{
    uint32_t k = a.kernel, cols = a.grid_w / k;
    ROWS_EACH(i, (size_t)(a.grid_h / k) * cols * a.c)
    {
        uint32_t p = (uint32_t)(i / a.c), c = (uint32_t)(i % a.c);
        float sum = 0;
        for (uint32_t cell = 0; cell < k * k; cell++)
            sum += a.x[((size_t)(p / cols * k + cell / k) * a.grid_w + p % cols * k + cell % k) * a.c + c];
        float mean = sum / (float)(k * k) * (a.factor != 0 ? a.factor : 1.0f);
        a.out[i] = a.bias ? (mean - a.bias[c]) * a.scale[c] : mean;
    }
}

void cuda_pool(struct backend *b, const struct be_pool_args *a)
{
    size_t elems = (size_t)(a->grid_h / a->kernel) * (a->grid_w / a->kernel) * a->c;
    CU_LAUNCH(pool_k, rows__blocks(elems), ROW_THREADS, 0, b->stream, *a);
    cuda_launched(b, "pool");
}

__global__ __launch_bounds__(256) void interpolate_k(be_interpolate_args a)
{
    ROWS_EACH(i, (size_t)a.t * a.c)
    {
        size_t t = i / a.c, c = i % a.c;
        float sum = 0;
        for (uint32_t k = 0; k < a.taps; k++) {
            float v = a.weights[t * a.taps + k] * a.table[(size_t)a.rows[t * a.taps + k] * a.c + c];
            sum = k ? sum + v : v;
        }
        a.out[i] = sum;
    }
}

void cuda_interpolate(struct backend *b, const struct be_interpolate_args *a)
{
    CU_LAUNCH(interpolate_k, rows__blocks((size_t)a->t * a->c), ROW_THREADS, 0, b->stream, *a);
    cuda_launched(b, "interpolate");
}

template <bool BF> __global__ __launch_bounds__(256) void pack_k(be_pack_args a, uint32_t ld)
{
    ROWS_EACH(i, (size_t)a.t * ld)
    {
        size_t t = i / ld, c = i % ld;
        cu_act_put<BF>(a.out, i, c < a.c ? a.x[t * a.c + c] : 0.0f);
    }
}

void cuda_pack(struct backend *b, const struct be_pack_args *a)
{
    uint32_t ld = (uint32_t)be_ld(a->c), blocks = rows__blocks((size_t)a->t * ld);
    if (b->act == BE_BF16) CU_LAUNCH((pack_k<true>), blocks, ROW_THREADS, 0, b->stream, *a, ld);
    else CU_LAUNCH((pack_k<false>), blocks, ROW_THREADS, 0, b->stream, *a, ld);
    cuda_launched(b, "pack");
}

/* ---- elements */

static __device__ __forceinline__ float gate_of(be_gate f, float z)
{
    if (f == BE_GATE_NONE) return z;
    if (f == BE_GATE_CDF) return (float)(0.5 * erfc((double)z * -0.70710678118654752440));
    float u = f == BE_GATE_GELU_TANH ? z * (1.5957691216057308f + 0.07135481627260025f * (z * z)) : z;
    return (f == BE_GATE_SIGMOID ? 1.0f : z) / (1.0f + expf(-u));
}

/* A warp is one head of one row; the one after the last head is the padding. */
template <bool BF, bool XBF> __global__ __launch_bounds__(256) void gate_k(be_gate_args a, uint32_t ld)
{
    uint32_t lane = threadIdx.x % 32, h = blockIdx.y * ROW_WARPS + threadIdx.x / 32, c = a.heads * a.d;
    size_t t = blockIdx.x;
    if (h > a.heads) return;
    for (uint32_t i = c + lane; h == a.heads && i < ld; i += 32) cu_act_put<BF>(a.out, t * ld + i, 0.0f);
    if (h == a.heads) return;
    const float *gate = a.gate + t * a.gate_stride + (a.gate_row ? 0 : h * a.gate_head);
    size_t at = t * a.x_stride + (size_t)h * a.d;
    float sum = 0;
    for (uint32_t i = lane; a.norm && i < a.d; i += 32) {
        float x = cu_act_get<XBF>(a.x, at + i);
        sum += x * x;
    }
    float scale = a.norm ? 1.0f / sqrtf(cu_warp_sum(sum) / (float)a.d + a.eps) : 1.0f;
    for (uint32_t i = lane; i < a.d; i += 32) {
        float x = cu_act_get<XBF>(a.x, at + i);
        if (a.norm) x = x * scale * a.norm[i];
        cu_act_put<BF>(a.out, t * ld + (size_t)h * a.d + i, gate_of(a.f, gate[a.gate_row ? 0 : i]) * x);
    }
}

void cuda_gate(struct backend *b, const struct be_gate_args *a)
{
    uint32_t ld = (uint32_t)be_ld((size_t)a->heads * a->d);
    dim3 grid(a->t, cu_div_up(a->heads + 1, ROW_WARPS));
    if (b->act != BE_BF16) CU_LAUNCH((gate_k<false, false>), grid, ROW_THREADS, 0, b->stream, *a, ld);
    else if (a->x_dtype == BE_BF16) CU_LAUNCH((gate_k<true, true>), grid, ROW_THREADS, 0, b->stream, *a, ld);
    else CU_LAUNCH((gate_k<true, false>), grid, ROW_THREADS, 0, b->stream, *a, ld);
    cuda_launched(b, "gate");
}

template <bool BF> __global__ __launch_bounds__(256) void clamp_k(be_clamp_args a, uint32_t columns)
{
    ROWS_EACH(i, (size_t)a.t * columns)
    {
        size_t t = i / columns, c = i % columns;
        float v = c < a.c ? cu_act_get<BF>(a.x, t * a.x_stride + c) : 0.0f;
        if (c < a.c) v = v < a.bounds[0] ? a.bounds[0] : v > a.bounds[1] ? a.bounds[1] : v;
        cu_act_put<BF>(a.out, t * a.out_stride + c, v);
    }
}

void cuda_clamp(struct backend *b, const struct be_clamp_args *a)
{
    uint32_t columns = a->pad ? (uint32_t)be_ld(a->c) : a->c, blocks = rows__blocks((size_t)a->t * columns);
    if (a->dtype == BE_BF16) CU_LAUNCH((clamp_k<true>), blocks, ROW_THREADS, 0, b->stream, *a, columns);
    else CU_LAUNCH((clamp_k<false>), blocks, ROW_THREADS, 0, b->stream, *a, columns);
    cuda_launched(b, "clamp");
}

/* ---- gather, in the widest unit that sizes and addresses allow */

template <class UNIT>
__global__ __launch_bounds__(256) void gather_k(const UNIT *src, const uint32_t *rows, uint32_t count,
                                                size_t units, UNIT *dst)
{
    ROWS_EACH(i, count * units)
    {
        dst[i] = src[rows[i / units] * units + i % units];
    }
}

void cuda_gather(struct backend *b, const struct be_gather_args *a)
{
    size_t bits = a->row_bytes | reinterpret_cast<uintptr_t>(a->src) | reinterpret_cast<uintptr_t>(a->dst),
           bytes = a->row_bytes;
    if (bits % 16 == 0)
        CU_LAUNCH((gather_k<uint4>), rows__blocks(a->count * bytes / 16), ROW_THREADS, 0, b->stream,
                  static_cast<const uint4 *>(a->src), a->rows, a->count, bytes / 16,
                  static_cast<uint4 *>(a->dst));
    else if (bits % 4 == 0)
        CU_LAUNCH((gather_k<uint32_t>), rows__blocks(a->count * bytes / 4), ROW_THREADS, 0, b->stream,
                  static_cast<const uint32_t *>(a->src), a->rows, a->count, bytes / 4,
                  static_cast<uint32_t *>(a->dst));
    else
        CU_LAUNCH((gather_k<uint8_t>), rows__blocks(a->count * bytes), ROW_THREADS, 0, b->stream,
                  static_cast<const uint8_t *>(a->src), a->rows, a->count, bytes,
                  static_cast<uint8_t *>(a->dst));
    cuda_launched(b, "gather");
}

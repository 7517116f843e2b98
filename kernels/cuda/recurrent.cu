/* Recurrent layers: causal convolution and gated delta rule. Every sequence is walked row by row; channels,
 * and columns of a head's state, are independent. */
#include "kernels/cuda/internal.h"

static __device__ __forceinline__ float *state_at(const be_states &s, uint32_t block_offset, size_t offset)
{
    return block_offset == BE_NO_BLOCK
               ? nullptr
               : reinterpret_cast<float *>(static_cast<char *>(s.arena) + (size_t)block_offset * BE_KV_GRAIN +
                                           offset);
}

/* ---- convolution: a thread is one channel of one sequence */

#define CONV_THREADS 128u

__global__ __launch_bounds__(128) void conv_k(be_states s, be_conv_args a)
{
    uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x, seq = blockIdx.y, before = a.k - 1;
    if (c >= a.c) return;
    const float *from = state_at(s, s.from[seq], a.layer_offset);
    float *to = state_at(s, s.to[seq], a.layer_offset), *x = a.x + (size_t)s.first[seq] * a.stride + c;
    const float *times = a.times ? a.times + (size_t)s.first[seq] * a.stride + c : nullptr;
    float old[BE_CONV_K_MAX - 1];
    CU_UNROLL
    for (uint32_t j = 0; j < BE_CONV_K_MAX - 1; j++)
        old[j] = from && j < before ? from[(size_t)j * a.c + c] : 0;
    for (uint32_t t = 0, count = s.count[seq], kept = s.kept[seq]; t < count; t++) {
        float now = x[t * a.stride], sum = 0;
        if (times) now *= times[t * a.stride];
        CU_UNROLL
        for (uint32_t j = 0; j < BE_CONV_K_MAX - 1; j++)
            if (j < before) sum = fmaf(a.weight[(size_t)j * a.c + c], old[j], sum);
        sum = fmaf(a.weight[(size_t)before * a.c + c], now, sum);
        if (a.bias) sum += a.bias[c];
        x[t * a.stride] = times ? sum : sum / (1.0f + expf(-sum));
        CU_UNROLL
        for (uint32_t j = 0; j < BE_CONV_K_MAX - 1; j++)
            if (j < before) old[j] = j + 1 < before ? old[j + 1 < BE_CONV_K_MAX - 1 ? j + 1 : j] : now;
        if (!to || t + 1 != kept) continue;
        CU_UNROLL
        for (uint32_t j = 0; j < BE_CONV_K_MAX - 1; j++)
            if (j < before) to[(size_t)j * a.c + c] = old[j];
    }
}

void cuda_conv(struct backend *b, const struct be_conv_args *a)
{
    CU_LAUNCH(conv_k, dim3(cu_div_up(a->c, CONV_THREADS), a->states->seq_count), CONV_THREADS, 0, b->stream,
              *a->states, *a);
    cuda_launched(b, "conv");
}

/* ---- gated delta rule: a block is 32 columns of one head's state, in shared memory; a column's sums are
 * those of rows i, i + 4, ... of four threads, added in order */

#define DELTA_TILE  32u
#define DELTA_WARPS 4u

struct delta_shared {
    float *s, *q, *k, *part, *red;
    __host__ __device__ delta_shared(cu_carve &c, uint32_t dk)
        : s(c.take<float>((size_t)dk * DELTA_TILE)), q(c.take<float>(dk)), k(c.take<float>(dk)),
          part(c.take<float>(DELTA_WARPS * DELTA_TILE)), red(c.take<float>(DELTA_WARPS))
    {
    }
};

static __device__ __forceinline__ float delta_sum(const float *part, uint32_t lane)
{
    return (part[lane] + part[DELTA_TILE + lane]) +
           (part[2 * DELTA_TILE + lane] + part[3 * DELTA_TILE + lane]);
}

__global__ __launch_bounds__(128) void delta_k(be_states st, be_delta_args a)
{
    CU_DYN_SHARED(smem);
    cu_carve carve(smem);
    uint32_t dk = a.key_dim, dv = a.value_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    delta_shared m(carve, dk);
    uint32_t col = blockIdx.x * DELTA_TILE + lane, h = blockIdx.y, seq = blockIdx.z,
             kh = a.tiled ? h % a.key_heads : h * a.key_heads / a.value_heads;
    bool live = col < dv;
    size_t head = (size_t)h * dk * dv + col;
    const float *from = state_at(st, st.from[seq], a.layer_offset);
    float *to = state_at(st, st.to[seq], a.layer_offset);
    for (uint32_t i = warp; i < dk; i += DELTA_WARPS)
        m.s[i * DELTA_TILE + lane] = from && live ? from[head + (size_t)i * dv] : 0;
    for (uint32_t t = 0, count = st.count[seq], kept = st.kept[seq]; t < count; t++) {
        size_t row = (size_t)st.first[seq] + t;
        float *x = a.qkv + row * a.stride, *v = x + 2 * (size_t)a.key_heads * dk + (size_t)h * dv + col;
        const float *gate = a.gates + row * 2 * a.value_heads + h;
        float qq = 0, kk = 0, seen = 0, out = 0;
        for (uint32_t i = threadIdx.x; i < dk; i += 32 * DELTA_WARPS) {
            float q = x[(size_t)kh * dk + i], k = x[(size_t)(a.key_heads + kh) * dk + i];
            m.q[i] = q;
            m.k[i] = k;
            qq = fmaf(q, q, qq);
            kk = fmaf(k, k, kk);
        }
        qq = cu_block_sum<DELTA_WARPS>(qq, m.red);
        kk = cu_block_sum<DELTA_WARPS>(kk, m.red);
        float qs = 1.0f / sqrtf(qq + 1e-6f) / sqrtf((float)dk), ks = 1.0f / sqrtf(kk + 1e-6f);
        float ax = gate[a.value_heads] + a.dt_bias[h], beta = 1.0f / (1.0f + expf(-gate[0])),
              g = expf(a.decay[h] * (fmaxf(ax, 0.0f) + log1pf(expf(-fabsf(ax)))));
        for (uint32_t i = warp; i < dk; i += DELTA_WARPS)
            seen = fmaf(m.s[i * DELTA_TILE + lane], m.k[i] * ks, seen);
        m.part[warp * DELTA_TILE + lane] = seen;
        __syncthreads();
        float d = beta * ((live ? *v : 0.0f) - g * delta_sum(m.part, lane));
        __syncthreads();
        for (uint32_t i = warp; i < dk; i += DELTA_WARPS) {
            float s = fmaf(m.k[i] * ks, d, g * m.s[i * DELTA_TILE + lane]);
            m.s[i * DELTA_TILE + lane] = s;
            out = fmaf(s, m.q[i] * qs, out);
            if (to && live && t + 1 == kept) to[head + (size_t)i * dv] = s;
        }
        m.part[warp * DELTA_TILE + lane] = out;
        __syncthreads();
        if (a.outputs && live && warp == 0) *v = delta_sum(m.part, lane);
        __syncthreads();
    }
}

uint32_t cuda_delta_key_max(const struct backend *b)
{
    return (uint32_t)((b->smem_max - 1024) / ((DELTA_TILE + 2) * sizeof(float))); /* 1024: for the rest */
}

void cuda_delta(struct backend *b, const struct be_delta_args *a)
{
    cu_carve carve(nullptr);
    delta_shared m(carve, a->key_dim);
    (void)m;
    CU_ASSERT(carve.bytes() <= b->smem_max);
    if (!cuda_allow_smem(b, delta_k, carve.bytes())) return;
    CU_LAUNCH(delta_k, dim3(cu_div_up(a->value_dim, DELTA_TILE), a->value_heads, a->states->seq_count),
              32 * DELTA_WARPS, carve.bytes(), b->stream, *a->states, *a);
    cuda_launched(b, "delta");
}

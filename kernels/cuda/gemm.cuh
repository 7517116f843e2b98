/* Products of rows with packed weights, the source of linear.cu and experts.cu. Kernels compute the
 * transposed product: weight rows are the rows of a tensor-core tile (16), tokens its columns (8), so that
 * one token wastes little.
 *
 * The order of a sum, the same in every kernel here, whatever the number of tokens: one chain over ascending
 * k from zero, of m16n8k16 products (bf16) or of fused multiply-adds (f32); then the bias, then the epilogue.
 * On an H100 these are the bits of gemm_sm90.cu and of cuBLASLt without split-K, too.
 *
 * GROUPED: tokens are the sorted (row, expert) pairs of experts.cu; a tile of tokens belongs to one expert.
 */
#ifndef KVASIR_CUDA_GEMM_CUH
#define KVASIR_CUDA_GEMM_CUH

#include "kernels/cuda/internal.h"

struct gemm_expert {
    const void *data;
    const float *bias;
};
struct gemm_job {
    const void *w;     /* [wrows][kpad] */
    const float *bias; /* [wrows] or NULL */
    const void *x;     /* act [., kpad] */
    void *out;
    uint32_t kpad, wrows, n, t; /* n: output columns without padding */
    uint32_t ld;                /* elements from one output row to the next */
    enum be_epilogue epilogue;
    const float *add; /* as in be_linear_args; not GROUPED */
    /* GROUPED: expert e has sorted pairs [first[e], first[e + 1]), in tiles [tile[e], tile[e + 1]); */
    const struct gemm_expert *experts;
    const uint32_t *first, *tile, *pairs; /* pairs[sorted place] = pair */
    uint32_t expert_count,
        per_row; /* per_row: pairs of a row of x (0: x has a row per sorted place, out one per pair) */
};

/* ---- epilogues */

/* gelu_tanh(z) = 0.5 z (1 + tanh(u)), u = sqrt(2/pi) (z + 0.044715 z^3), as z / (1 + exp(-2u)): no
 * cancellation. */
static __device__ __forceinline__ float gemm_gelu_tanh(float z)
{
    float u2 = z * (1.5957691216057308f + 0.07135481627260025f * (z * z));
    return z / (1.0f + expf(-u2));
}
/* In double: an f32 erfc is not accurate to half an ulp, and only the towers' mergers use it. */
static __device__ __attribute__((noinline)) float gemm_gelu_erf(float z)
{
    return (float)(0.5 * (double)z * erfc((double)z * -0.70710678118654752440));
}
static __device__ __forceinline__ float gemm_sigmoid_times(float z, float slope)
{
    return z / (1.0f + expf(-slope * z));
}

/* The sums of packed weight rows r and r + 8 (r % 16 < 8) of output row `row`. */
template <bool BF>
static __device__ __forceinline__ void gemm_put(const struct gemm_job &j, const float *bias, size_t row,
                                                uint32_t r, float v0, float v1)
{
    if (bias) {
        v0 += bias[r];
        v1 += bias[r + 8];
    }
    if (j.epilogue <= BE_EPI_ADD_F32) {
        float *out = static_cast<float *>(j.out) + row * j.ld;
        bool add = j.epilogue == BE_EPI_ADD_F32;
        if (r < j.n) out[r] = add ? out[r] + v0 : v0;
        if (r + 8 < j.n) out[r + 8] = add ? out[r + 8] + v1 : v1;
        return;
    }
    bool glu = j.epilogue >= BE_EPI_GLU_GELU_TANH;
    if (j.add) {
        uint32_t c = glu ? r / 16 * 8 + r % 16 : r, second = glu ? j.n + c : r + 8;
        const float *add = j.add + row * (glu ? 2 * (size_t)j.n : j.n);
        if (c < j.n) v0 += add[c];
        if (glu ? c < j.n : second < j.n) v1 += add[second];
    }
    if (glu) {
        uint32_t c = r / 16 * 8 + r % 16;
        float v = (j.epilogue == BE_EPI_GLU_SILU ? gemm_sigmoid_times(v0, 1.0f) : gemm_gelu_tanh(v0)) * v1;
        if (c < j.ld) cu_act_put<BF>(j.out, row * j.ld + c, c < j.n ? v : 0.0f);
        return;
    }
    if (j.epilogue == BE_EPI_GELU_TANH) {
        v0 = gemm_gelu_tanh(v0);
        v1 = gemm_gelu_tanh(v1);
    } else if (j.epilogue == BE_EPI_GELU_ERF) {
        v0 = gemm_gelu_erf(v0);
        v1 = gemm_gelu_erf(v1);
    } else if (j.epilogue == BE_EPI_QUICK_GELU) {
        v0 = gemm_sigmoid_times(v0, 1.702f);
        v1 = gemm_sigmoid_times(v1, 1.702f);
    }
    cu_act_put<BF>(j.out, row * j.ld + r, r < j.n ? v0 : 0.0f);
    cu_act_put<BF>(j.out, row * j.ld + r + 8, r + 8 < j.n ? v1 : 0.0f);
}

/* ---- a block's tokens */

struct gemm_tokens {
    const void *w;
    const float *bias;
    uint32_t first, count; /* tokens (GROUPED: sorted places) of the tile; 0: nothing to do */
};
template <bool GROUPED>
static __device__ __forceinline__ gemm_tokens gemm_find(const struct gemm_job &j, uint32_t tile,
                                                        uint32_t width)
{
    gemm_tokens f = {j.w, j.bias, tile * width, 0};
    if (!GROUPED) {
        f.count = j.t - f.first < width ? j.t - f.first : width;
        return f;
    }
    if (tile >= j.tile[j.expert_count]) return f;
    uint32_t lo = cu_row_seq(j.tile, j.expert_count, tile);
    f.w = j.experts[lo].data;
    f.bias = j.experts[lo].bias;
    f.first = j.first[lo] + (tile - j.tile[lo]) * width;
    uint32_t left = j.first[lo + 1] - f.first;
    f.count = left < width ? left : width;
    return f;
}
/* Rows of x and of the output of token `at`. */
template <bool GROUPED>
static __device__ __forceinline__ uint32_t gemm_in_row(const struct gemm_job &j, uint32_t at)
{
    return GROUPED && j.per_row ? j.pairs[at] / j.per_row : at;
}
template <bool GROUPED>
static __device__ __forceinline__ uint32_t gemm_out_row(const struct gemm_job &j, uint32_t at)
{
    return GROUPED && !j.per_row ? j.pairs[at] : at;
}

/* ---- few tokens (bf16): a block is one warp, 16 weight rows and up to 8 NT tokens. Many small copies are in
 * flight, because a chain of products alone hides no latency. */

#define SMALL_STAGES (NT == 1 ? 12u : 8u)
#define SMALL_K      64            /* of a stage */
#define SMALL_LD     (SMALL_K + 8) /* rows 144 bytes apart: eight of them touch all banks */

template <int NT> struct gemm_small_smem {
    uint16_t *w, *x; /* [stage][16 or 8 NT][SMALL_LD] */
    size_t bytes;
    __host__ __device__ explicit gemm_small_smem(void *base)
    {
        cu_carve cv(base);
        w = cv.take<uint16_t>(SMALL_STAGES * 16 * SMALL_LD);
        x = cv.take<uint16_t>(SMALL_STAGES * 8 * NT * SMALL_LD);
        bytes = cv.bytes();
    }
};

/* Copies one stage: 16 weight rows and the tokens, k of [k0, k0 + 64), zeros from kpad on. in: rows of x of
 * this lane's tokens. */
template <int NT>
static __device__ __forceinline__ void gemm_small_load(const uint16_t *w, const uint16_t *x, uint32_t kpad,
                                                       uint32_t k0, const uint32_t *in, uint32_t valid,
                                                       uint16_t *sw, uint16_t *sx)
{
    uint32_t lane = threadIdx.x, k = k0 + lane % 8 * 8;
    bool inside = k < kpad;
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t r = lane / 8 + 4 * (uint32_t)i;
        cu_cp_async16(sw + r * SMALL_LD + lane % 8 * 8, w + (inside ? (size_t)r * kpad + k : 0), inside);
    }
    CU_UNROLL
    for (int i = 0; i < 2 * NT; i++) {
        uint32_t r = lane / 8 + 4 * (uint32_t)i;
        bool ok = inside && valid >> i & 1;
        cu_cp_async16(sx + r * SMALL_LD + lane % 8 * 8, x + (ok ? (size_t)in[i] * kpad + k : 0), ok);
    }
}

/* One stage: acc += w tile * token tiles. */
template <int NT>
static __device__ __forceinline__ void gemm_small_step(const uint16_t *sw, const uint16_t *sx,
                                                       float (&acc)[NT][4])
{
    uint32_t lane = threadIdx.x;
    CU_UNROLL
    for (uint32_t k = 0; k < SMALL_K; k += 16) {
        uint32_t a[4];
        cu_ldmatrix_x4(a, sw + (lane % 16) * SMALL_LD + k + lane / 16 * 8);
        CU_UNROLL
        for (int n = 0; n < NT; n++) {
            uint32_t r[2];
            cu_ldmatrix_x2(r, sx + ((uint32_t)n * 8 + lane % 8) * SMALL_LD + k + lane / 8 % 2 * 8);
            cu_mma_bf16_16816(acc[n], a, r, acc[n]);
        }
    }
}

template <int NT, bool GROUPED> __global__ __launch_bounds__(32) void gemm_small_k(gemm_job j)
{
    CU_DYN_SHARED(base);
    gemm_small_smem<NT> sm(base);
    gemm_tokens tok = gemm_find<GROUPED>(j, blockIdx.y, 8 * NT);
    if (!tok.count) return;
    uint32_t lane = threadIdx.x, steps = (j.kpad + SMALL_K - 1) / SMALL_K;
    const uint16_t *w = static_cast<const uint16_t *>(tok.w) + (size_t)blockIdx.x * 16 * j.kpad,
                   *x = static_cast<const uint16_t *>(j.x);
    uint32_t in[2 * NT], valid = 0;
    CU_UNROLL
    for (int i = 0; i < 2 * NT; i++) {
        uint32_t at = lane / 8 + 4 * (uint32_t)i;
        bool ok = at < tok.count;
        in[i] = ok ? gemm_in_row<GROUPED>(j, tok.first + at) : 0;
        valid |= (uint32_t)ok << i;
    }
    float acc[NT][4];
    CU_UNROLL
    for (int n = 0; n < NT; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
    for (uint32_t s = 0; s < SMALL_STAGES - 1; s++) {
        if (s < steps)
            gemm_small_load<NT>(w, x, j.kpad, s * SMALL_K, in, valid, sm.w + s * 16 * SMALL_LD,
                                sm.x + s * 8 * NT * SMALL_LD);
        cu_cp_async_commit();
    }
    for (uint32_t s = 0; s < steps; s++) {
        cu_cp_async_wait<SMALL_STAGES - 2>();
        __syncwarp(); /* the other lanes' copies too; and all are done with the stage to be filled next */
        uint32_t next = s + SMALL_STAGES - 1, at = next % SMALL_STAGES, now = s % SMALL_STAGES;
        if (next < steps)
            gemm_small_load<NT>(w, x, j.kpad, next * SMALL_K, in, valid, sm.w + at * 16 * SMALL_LD,
                                sm.x + at * 8 * NT * SMALL_LD);
        cu_cp_async_commit();
        gemm_small_step<NT>(sm.w + now * 16 * SMALL_LD, sm.x + now * 8 * NT * SMALL_LD, acc);
    }
    CU_UNROLL
    for (uint32_t i = 0; i < 2 * NT; i++) {
        uint32_t token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (token < tok.count)
            gemm_put<true>(j, tok.bias, gemm_out_row<GROUPED>(j, tok.first + token),
                           blockIdx.x * 16 + lane / 4, acc[i / 2][i % 2], acc[i / 2][2 + i % 2]);
    }
}

/* ---- many tokens (bf16): a block is 128 weight rows and BT tokens; 4 x 2 warps of 32 weight rows and BT / 2
 * tokens each. */

#define TILE_ROWS   128
#define TILE_K      32
#define TILE_LD     (TILE_K + 8) /* rows 80 bytes apart: eight of them touch all banks */
#define TILE_STAGES 4

#define TILE_SUM_LD (TILE_ROWS + 4)

template <int BT> struct gemm_tile_smem {
    uint16_t *w, *x; /* [stage][TILE_ROWS or BT][TILE_LD] */
    float *sum;      /* at the end, in the same memory: [BT][TILE_SUM_LD] */
    size_t bytes;
    __host__ __device__ explicit gemm_tile_smem(void *base)
    {
        static_assert(BT * TILE_SUM_LD * 4 <= TILE_STAGES * (TILE_ROWS + BT) * TILE_LD * 2,
                      "the sums fit into the stages");
        cu_carve cv(base);
        w = cv.take<uint16_t>(TILE_STAGES * (TILE_ROWS + BT) * TILE_LD);
        x = w ? w + TILE_STAGES * TILE_ROWS * TILE_LD : nullptr;
        sum = reinterpret_cast<float *>(w);
        bytes = cv.bytes();
    }
};

template <int BT, bool GROUPED> struct gemm_tile_source {
    const uint16_t *w,
        *x[BT /
           64]; /* this thread's rows of a stage, at k = its chunk; the second row of w is 64 further on */
    uint32_t w_rows, x_ok; /* how many of the two exist; bits */
    __device__ __forceinline__ gemm_tile_source(const struct gemm_job &j, const gemm_tokens &tok)
    {
        uint32_t row = threadIdx.x / 4, k = threadIdx.x % 4 * 8, r = blockIdx.x * TILE_ROWS + row;
        w_rows = r + 64 < j.wrows ? 2 : r < j.wrows;
        w = static_cast<const uint16_t *>(tok.w) + (w_rows ? (size_t)r * j.kpad : 0) + k;
        x_ok = 0;
        CU_UNROLL
        for (int i = 0; i < BT / 64; i++) {
            uint32_t at = row + 64 * (uint32_t)i;
            bool ok = at < tok.count;
            x_ok |= (uint32_t)ok << i;
            x[i] = static_cast<const uint16_t *>(j.x) +
                   (ok ? (size_t)gemm_in_row<GROUPED>(j, tok.first + at) * j.kpad : 0) + k;
        }
    }
    __device__ __forceinline__ void load(const gemm_tile_smem<BT> &sm, uint32_t kpad, uint32_t step) const
    {
        uint32_t at = threadIdx.x / 4 * TILE_LD + threadIdx.x % 4 * 8, stage = step % TILE_STAGES,
                 k = step * TILE_K;
        cu_cp_async16(sm.w + stage * TILE_ROWS * TILE_LD + at, w + k, w_rows > 0);
        cu_cp_async16(sm.w + (stage * TILE_ROWS + 64) * TILE_LD + at,
                      w + k + (w_rows > 1 ? (size_t)64 * kpad : 0), w_rows > 1);
        CU_UNROLL
        for (int i = 0; i < BT / 64; i++)
            cu_cp_async16(sm.x + (stage * BT + 64 * (uint32_t)i) * TILE_LD + at, x[i] + k, x_ok >> i & 1);
    }
};

/* One stage's products of a warp. sw, sx: the warp's first rows. */
template <int TN>
static __device__ __forceinline__ void gemm_tile_step(const uint16_t *sw, const uint16_t *sx,
                                                      float (&acc)[2][TN][4])
{
    uint32_t lane = threadIdx.x % 32;
    CU_UNROLL
    for (uint32_t k = 0; k < TILE_K; k += 16) {
        uint32_t a[2][4];
        CU_UNROLL
        for (int m = 0; m < 2; m++)
            cu_ldmatrix_x4(a[m], sw + ((uint32_t)m * 16 + lane % 16) * TILE_LD + k + lane / 16 * 8);
        CU_UNROLL
        for (int n = 0; n < TN; n += 2) {
            uint32_t r[4];
            cu_ldmatrix_x4(r, sx + ((uint32_t)n * 8 + lane / 16 * 8 + lane % 8) * TILE_LD + k +
                                  lane / 8 % 2 * 8);
            uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            CU_UNROLL
            for (int m = 0; m < 2; m++) {
                cu_mma_bf16_16816(acc[m][n], a[m], b0, acc[m][n]);
                cu_mma_bf16_16816(acc[m][n + 1], a[m], b1, acc[m][n + 1]);
            }
        }
    }
}

template <int BT, bool GROUPED> __global__ __launch_bounds__(256) void gemm_tile_k(gemm_job j)
{
    constexpr int TN = BT / 16; /* token tiles of a warp */
    CU_DYN_SHARED(base);
    gemm_tile_smem<BT> sm(base);
    gemm_tokens tok = gemm_find<GROUPED>(j, blockIdx.y, BT);
    if (!tok.count) return;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 32,
             token = warp / 4 * (BT / 2);
    uint32_t steps = j.kpad / TILE_K;
    gemm_tile_source<BT, GROUPED> src(j, tok);
    float acc[2][TN][4];
    CU_UNROLL
    for (int m = 0; m < 2; m++) {
        CU_UNROLL
        for (int n = 0; n < TN; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0;
    }
    for (uint32_t s = 0; s < TILE_STAGES - 1; s++) {
        if (s < steps) src.load(sm, j.kpad, s);
        cu_cp_async_commit();
    }
    for (uint32_t s = 0; s < steps; s++) {
        cu_cp_async_wait<TILE_STAGES - 2>();
        __syncthreads(); /* the others' copies too; and all are done with the stage to be filled next */
        if (s + TILE_STAGES - 1 < steps) src.load(sm, j.kpad, s + TILE_STAGES - 1);
        cu_cp_async_commit();
        gemm_tile_step<TN>(sm.w + (s % TILE_STAGES * TILE_ROWS + row) * TILE_LD,
                           sm.x + (s % TILE_STAGES * BT + token) * TILE_LD, acc);
    }
    /* The sums are exchanged so that neighbouring threads write neighbouring outputs; they reuse the stages'
     * memory, whose copies have all landed (the last step waited for its own, and the groups committed after
     * them are empty). */
    __syncthreads();
    CU_UNROLL
    for (int m = 0; m < 2; m++) {
        CU_UNROLL
        for (int n = 0; n < TN; n++) {
            CU_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                sm.sum[(token + (uint32_t)n * 8 + lane % 4 * 2 + i % 2) * TILE_SUM_LD + row +
                       (uint32_t)m * 16 + lane / 4 + i / 2 * 8] = acc[m][n][i];
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BT * TILE_ROWS / 2; i += 256) {
        uint32_t at = i / (TILE_ROWS / 2), p = i % (TILE_ROWS / 2), r = p / 8 * 16 + p % 8;
        if (at >= tok.count || blockIdx.x * TILE_ROWS + r >= j.wrows) continue;
        const float *v = sm.sum + at * TILE_SUM_LD + r;
        gemm_put<true>(j, tok.bias, gemm_out_row<GROUPED>(j, tok.first + at), blockIdx.x * TILE_ROWS + r,
                       v[0], v[8]);
    }
}

/* ---- f32: a block is 64 weight rows and 16 TM tokens; a thread has weight rows tx, tx + 16, ... and tokens
 * ty, ty + 16, ... */

#define PLAIN_K 16

template <int TM, bool GROUPED> __global__ __launch_bounds__(256) void gemm_plain_k(gemm_job j)
{
    CU_SHARED(sw, float[PLAIN_K][64 + 1]);
    CU_SHARED(sx, float[PLAIN_K][16 * TM + 1]);
    gemm_tokens tok = gemm_find<GROUPED>(j, blockIdx.y, 16 * TM);
    if (!tok.count) return;
    uint32_t tid = threadIdx.x, tx = tid % 16, ty = tid / 16, row0 = blockIdx.x * 64;
    const float *w = static_cast<const float *>(tok.w), *x = static_cast<const float *>(j.x);
    float acc[4][TM];
    CU_UNROLL
    for (int m = 0; m < 4; m++) {
        CU_UNROLL
        for (int n = 0; n < TM; n++) acc[m][n] = 0;
    }
    size_t in[TM];
    CU_UNROLL
    for (int n = 0; n < TM; n++) {
        uint32_t at = tid / 16 + 16 * (uint32_t)n;
        in[n] = at < tok.count ? (size_t)gemm_in_row<GROUPED>(j, tok.first + at) * j.kpad : SIZE_MAX;
    }
    for (uint32_t k0 = 0; k0 < j.kpad; k0 += PLAIN_K) {
        CU_UNROLL
        for (int m = 0; m < 4; m++) {
            uint32_t r = ty + 16 * (uint32_t)m;
            sw[tx][r] = row0 + r < j.wrows ? w[(size_t)(row0 + r) * j.kpad + k0 + tx] : 0.0f;
        }
        CU_UNROLL
        for (int n = 0; n < TM; n++) sx[tx][ty + 16 * n] = in[n] != SIZE_MAX ? x[in[n] + k0 + tx] : 0.0f;
        __syncthreads();
        for (uint32_t k = 0; k < PLAIN_K; k++) {
            float wv[4], xv[TM];
            CU_UNROLL
            for (int m = 0; m < 4; m++) wv[m] = sw[k][tx + 16 * m];
            CU_UNROLL
            for (int n = 0; n < TM; n++) xv[n] = sx[k][ty + 16 * n];
            CU_UNROLL
            for (int m = 0; m < 4; m++) {
                CU_UNROLL
                for (int n = 0; n < TM; n++) acc[m][n] = fmaf(wv[m], xv[n], acc[m][n]);
            }
        }
        __syncthreads();
    }
    CU_UNROLL
    for (int m = 0; m < 4; m++) {
        CU_UNROLL
        for (int n = 0; n < TM; n++) {
            /* The sum of the row 8 further on is in the lane 8 further on. */
            float other = __shfl_xor_sync(CU_FULL, acc[m][n], 8);
            uint32_t r = row0 + tx + 16 * (uint32_t)m, at = ty + 16 * (uint32_t)n;
            if (tx < 8 && r < j.wrows && at < tok.count)
                gemm_put<false>(j, tok.bias, gemm_out_row<GROUPED>(j, tok.first + at), r, acc[m][n], other);
        }
    }
}

/* ---- launching. `tiles(width)`: most tiles of tokens; `crowd`: about how many tokens share a weight row. */

template <bool GROUPED> static bool gemm_init(struct backend *b)
{
    return cuda_allow_smem(b, gemm_small_k<1, GROUPED>, gemm_small_smem<1>(nullptr).bytes) &&
           cuda_allow_smem(b, gemm_small_k<4, GROUPED>, gemm_small_smem<4>(nullptr).bytes) &&
           cuda_allow_smem(b, gemm_tile_k<64, GROUPED>, gemm_tile_smem<64>(nullptr).bytes) &&
           cuda_allow_smem(b, gemm_tile_k<128, GROUPED>, gemm_tile_smem<128>(nullptr).bytes);
}
/* Tile width for that many tokens; any choice gives the same bits. */
static inline uint32_t gemm_width(enum be_dtype act, size_t tokens)
{
    if (act == BE_F32) return tokens <= 16 ? 16 : 64;
    return tokens <= 8 ? 8 : tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
}
/* Launches with a given width. tiles: blocks along tokens. */
template <bool GROUPED>
static void gemm_run(struct backend *b, const struct gemm_job &j, uint32_t width, uint32_t tiles)
{
    dim3 small((j.wrows + 15) / 16, tiles), tile(cu_div_up(j.wrows, TILE_ROWS), tiles),
        plain(cu_div_up(j.wrows, 64), tiles);
    if (b->act == BE_F32) {
        if (width == 16) CU_LAUNCH((gemm_plain_k<1, GROUPED>), plain, 256, 0, b->stream, j);
        else CU_LAUNCH((gemm_plain_k<4, GROUPED>), plain, 256, 0, b->stream, j);
    } else if (width == 8) {
        CU_LAUNCH((gemm_small_k<1, GROUPED>), small, 32, gemm_small_smem<1>(nullptr).bytes, b->stream, j);
    } else if (width == 32) {
        CU_LAUNCH((gemm_small_k<4, GROUPED>), small, 32, gemm_small_smem<4>(nullptr).bytes, b->stream, j);
    } else if (width == 64) {
        CU_LAUNCH((gemm_tile_k<64, GROUPED>), tile, 256, gemm_tile_smem<64>(nullptr).bytes, b->stream, j);
    } else {
        CU_LAUNCH((gemm_tile_k<128, GROUPED>), tile, 256, gemm_tile_smem<128>(nullptr).bytes, b->stream, j);
    }
    cuda_launched(b, GROUPED ? "experts" : "linear");
}

#endif

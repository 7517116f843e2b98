/* The products of gemm.cuh on Hopper: a producer warp brings weights by bulk copies, others bring tokens by
 * cp.async, one or two warpgroups multiply (hopper.cuh). As there, weight rows are the rows of a tile (64 per
 * warpgroup), tokens its columns.
 *
 * Weights are stored in the order of shared memory, so that a stage is a few copies: [8 rows][64 k] atoms,
 * swizzled, all atoms of eight rows consecutive (gemm_sm90_weight_at). Tokens are [row][k] as everywhere and
 * are swizzled on their way.
 *
 * The order of a sum, whatever the number of tokens: one chain of m64nNk16 products over ascending k,
 * starting from zero. Every count of tokens uses that instruction; N and the valid rows of the tile affect
 * only speed.
 *
 * Few tokens read a weight at the speed of memory: tiles of 16 or 32 weight rows, several blocks to a
 * multiprocessor, 128 k to a stage. Many tokens: 128 weight rows by 128 or 256 tokens. Blocks stay and take
 * item after item, so that copies run ahead while sums are written. */
#include "kernels/cuda/gemm_sm90.cuh"

/* Consecutive tiles that use the same rows of x: so many weight tiles share them in the cache. */
#define GROUP_ROWS 16u

template <int N> struct gemm_sm90_shape {
    static const uint32_t GROUPS = N >= 128 ? 2 : 1; /* warpgroups that multiply */
    static const uint32_t ATOMS = N <= 64 ? 2 : 1;   /* of 64 k in a stage; a weight row has an even number */
    static const uint32_t STAGES = N == 8 ? 8 : N == 128 ? 5 : 4; /* at least LAG + 2 */
    static const uint32_t LAG = N == 8 ? 4 : 2;                   /* stages of tokens in flight */
    static const uint32_t TOKEN_WARPS = N >= 128 ? 3 : 1;         /* warps that bring tokens */
    static const uint32_t THREADS = GROUPS * 128 + 32 + TOKEN_WARPS * 32;
    static const uint32_t BLOCKS = N == 8 ? 4 : N == 32 ? 2 : 1; /* to a multiprocessor, as registers go */
    static const uint32_t CHUNK = N < 32 ? N : 32; /* tokens whose sums are exchanged at a time */
};

#define SUM_LD 68u /* so that a warp's writes touch all banks */

template <int N> struct gemm_sm90_smem {
    typedef gemm_sm90_shape<N> shape;
    unsigned char *w, *x; /* [stage][8 rows][ATOMS][1024], [stage][ATOMS][N][128] */
    float *sum;           /* [warpgroup][CHUNK][SUM_LD] */
    uint64_t *full, *empty;
    uint32_t w_stage, x_stage;
    size_t bytes;
    __host__ __device__ gemm_sm90_smem(void *base, uint32_t rows)
    {
        cu_carve cv(base);
        w_stage = rows * shape::GROUPS * shape::ATOMS * 128;
        x_stage = N * shape::ATOMS * 128;
        /* A product reads 64 rows, even past the valid ones, whose results are discarded. */
        uint32_t all = shape::STAGES * (w_stage + x_stage),
                 end = (shape::STAGES - 1) * w_stage + (rows * (shape::GROUPS - 1) + 64) * shape::ATOMS * 128;
        w = cv.take<unsigned char>(all > end ? all : end, 1024);
        x = w ? w + shape::STAGES * w_stage : nullptr;
        sum = cv.take<float>(shape::GROUPS * shape::CHUNK * SUM_LD);
        full = cv.take<uint64_t>(shape::STAGES);
        empty = cv.take<uint64_t>(shape::STAGES);
        bytes = cv.bytes();
    }
};

#if defined(CU_HOPPER_BODY)
/* ---- the items of a block */

struct gemm_sm90_item {
    gemm_tokens tok;
    uint32_t row0;
};
template <int N, bool GROUPED>
static __device__ __forceinline__ bool gemm_sm90_find(const struct gemm_sm90_job &j, uint32_t i,
                                                      gemm_sm90_item *out)
{
    uint32_t per_group = GROUP_ROWS * j.token_tiles, first = i / per_group * GROUP_ROWS, at = i % per_group;
    uint32_t rows = j.row_tiles - first < GROUP_ROWS ? j.row_tiles - first : GROUP_ROWS;
    out->row0 = (first + at % rows) * j.rows * gemm_sm90_shape<N>::GROUPS;
    out->tok = gemm_find<GROUPED>(j.g, at / rows, N);
    return out->tok.count != 0;
}

/* ---- producers */

template <int N, bool GROUPED>
static __device__ __forceinline__ void gemm_sm90_weights(const struct gemm_sm90_job &j,
                                                         const gemm_sm90_smem<N> &sm)
{
    typedef gemm_sm90_shape<N> shape;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0;
    gemm_sm90_item it;
    for (uint32_t i = blockIdx.x; i < j.items; i += gridDim.x) {
        if (!gemm_sm90_find<N, GROUPED>(j, i, &it)) continue;
        uint32_t left = j.g.wrows - it.row0, most = j.rows * shape::GROUPS,
                 eights = (left < most ? left : most) / 8;
        const char *w = static_cast<const char *>(it.tok.w) + (size_t)it.row0 / 8 * j.atoms * 1024;
        for (uint32_t a = 0; a < j.atoms; a += shape::ATOMS, n++) {
            uint32_t stage = n % shape::STAGES;
            cu_mbar_wait(sm.empty + stage, (n / shape::STAGES & 1) ^ 1, j.trouble);
            if (lane == 0) cu_mbar_arrive_tx(sm.full + stage, eights * shape::ATOMS * 1024);
            __syncwarp();
            for (uint32_t e = lane; e < eights; e += 32)
                cu_bulk_copy(sm.w + stage * sm.w_stage + e * shape::ATOMS * 1024,
                             w + ((size_t)e * j.atoms + a) * 1024, shape::ATOMS * 1024, sm.full + stage);
        }
    }
}

/* The copies of step n - LAG have landed: releases them to the consumers. */
template <int N, int PENDING>
static __device__ __forceinline__ void gemm_sm90_hand_over(const gemm_sm90_smem<N> &sm, uint32_t n)
{
    cu_cp_async_wait<PENDING>();
    cu_proxy_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) cu_mbar_arrive(sm.full + n % gemm_sm90_shape<N>::STAGES);
}

template <int N, bool GROUPED>
static __device__ __forceinline__ void gemm_sm90_tokens(const struct gemm_sm90_job &j,
                                                        const gemm_sm90_smem<N> &sm)
{
    typedef gemm_sm90_shape<N> shape;
    const uint32_t tid = threadIdx.x - shape::GROUPS * 128 - 32, chunk = tid % 8,
                   rows = shape::TOKEN_WARPS * 4;
    const uint16_t *x = static_cast<const uint16_t *>(j.g.x);
    uint32_t n = 0;
    gemm_sm90_item it;
    for (uint32_t i = blockIdx.x; i < j.items; i += gridDim.x) {
        if (!gemm_sm90_find<N, GROUPED>(j, i, &it)) continue;
        for (uint32_t a = 0; a < j.atoms; a += shape::ATOMS, n++) {
            uint32_t stage = n % shape::STAGES;
            cu_mbar_wait(sm.empty + stage, (n / shape::STAGES & 1) ^ 1, j.trouble);
            for (uint32_t r0 = 0; r0 < N; r0 += rows) {
                uint32_t r = r0 + tid / 8;
                if (N % rows && r >= N) continue;
                bool there = r < it.tok.count;
                const uint16_t *from =
                    x + (there ? (size_t)gemm_in_row<GROUPED>(j.g, it.tok.first + r) * j.g.kpad : 0);
                CU_UNROLL
                for (uint32_t m = 0; m < shape::ATOMS; m++) {
                    uint32_t k = (a + m) * 64 + chunk * 8;
                    bool ok = there && k < j.g.kpad;
                    cu_cp_async16(sm.x + stage * sm.x_stage + m * N * 128 + r / 8 * 1024 +
                                      cu_swizzle(r % 8, chunk),
                                  ok ? from + k : x, ok);
                }
            }
            cu_cp_async_commit();
            if (n >= shape::LAG) gemm_sm90_hand_over<N, shape::LAG>(sm, n - shape::LAG);
        }
    }
    for (uint32_t s = n < shape::LAG ? 0 : n - shape::LAG; s < n; s++) gemm_sm90_hand_over<N, 0>(sm, s);
}

/* ---- the warpgroups that multiply */

static __device__ __forceinline__ void gemm_sm90_meet(uint32_t group)
{
    if (group == 0) cu_bar_sync(1, 128);
    else cu_bar_sync(2, 128);
}

/* Stores a warpgroup's sums of 64 weight rows and N tokens through shared memory, so that neighbouring
 * threads have neighbouring outputs. */
template <int N, bool GROUPED>
static __device__ __forceinline__ void gemm_sm90_put(const struct gemm_sm90_job &j,
                                                     const gemm_sm90_smem<N> &sm, const gemm_sm90_item &it,
                                                     const float (&acc)[N / 2])
{
    typedef gemm_sm90_shape<N> shape;
    const uint32_t group = threadIdx.x / 128, tid = threadIdx.x % 128, lane = tid % 32, warp = tid / 32;
    uint32_t row0 = it.row0 + group * 64, left = j.g.wrows > row0 ? j.g.wrows - row0 : 0,
             rows = left < j.rows ? left : j.rows;
    float *sum = sm.sum + group * shape::CHUNK * SUM_LD;
    CU_UNROLL
    for (uint32_t c = 0; c < N; c += shape::CHUNK) {
        if (c < it.tok.count) { /* the same for all */
            CU_UNROLL
            for (uint32_t n = 0; n < shape::CHUNK; n += 8) {
                CU_UNROLL
                for (uint32_t i = 0; i < 4; i++)
                    sum[(n + lane % 4 * 2 + i % 2) * SUM_LD + warp * 16 + lane / 4 + i / 2 * 8] =
                        acc[(c + n) / 2 + i];
            }
            gemm_sm90_meet(group);
            for (uint32_t i = tid; i < shape::CHUNK * 32; i += 128) {
                uint32_t at = c + i / 32, p = i % 32, r = p / 8 * 16 + p % 8;
                if (at >= it.tok.count || r >= rows) continue;
                const float *v = sum + i / 32 * SUM_LD + r;
                gemm_put<true>(j.g, it.tok.bias, gemm_out_row<GROUPED>(j.g, it.tok.first + at), row0 + r,
                               v[0], v[8]);
            }
            gemm_sm90_meet(group); /* all are done with the sums to be overwritten next */
        }
    }
}

template <int N, bool GROUPED>
static __device__ __forceinline__ void gemm_sm90_multiply(const struct gemm_sm90_job &j,
                                                          const gemm_sm90_smem<N> &sm)
{
    typedef gemm_sm90_shape<N> shape;
    const uint32_t group = threadIdx.x / 128, lane = threadIdx.x % 32;
    uint32_t n = 0;
    gemm_sm90_item it;
    for (uint32_t i = blockIdx.x; i < j.items; i += gridDim.x) {
        if (!gemm_sm90_find<N, GROUPED>(j, i, &it)) continue;
        uint32_t left = j.g.wrows - it.row0, there = left > group * 64 ? left - group * 64 : 0,
                 rows = there < j.rows ? there : j.rows;
        float acc[N / 2];
        CU_UNROLL
        for (int r = 0; r < N / 2; r++) acc[r] = 0;
        cu_wgmma_keep(acc);
        for (uint32_t a = 0; a < j.atoms; a += shape::ATOMS, n++) {
            uint32_t stage = n % shape::STAGES;
            const unsigned char *w = sm.w + stage * sm.w_stage + group * 8 * shape::ATOMS * 1024,
                                *x = sm.x + stage * sm.x_stage;
            cu_mbar_wait(sm.full + stage, n / shape::STAGES & 1, j.trouble);
            cu_wgmma_fence();
            CU_UNROLL
            for (uint32_t m = 0; m < shape::ATOMS; m++) {
                CU_UNROLL
                for (uint32_t k = 0; k < 128; k += 32)
                    cu_wgmma(acc, cu_wgmma_operand(w + m * 1024 + k, 0, shape::ATOMS * 1024),
                             cu_wgmma_operand(x + m * N * 128 + k, 0, 1024), a + m + k != 0, rows);
            }
            cu_wgmma_commit();
            if (a) { /* the previous step is done */
                cu_wgmma_wait<1>();
                if (lane == 0) cu_mbar_arrive(sm.empty + (n - 1) % shape::STAGES);
            }
        }
        cu_wgmma_wait<0>();
        cu_wgmma_keep(acc);
        if (lane == 0) cu_mbar_arrive(sm.empty + (n - 1) % shape::STAGES);
        gemm_sm90_put<N, GROUPED>(j, sm, it, acc);
    }
}
#endif

template <int N, bool GROUPED>
__global__ __launch_bounds__(gemm_sm90_shape<N>::THREADS,
                             gemm_sm90_shape<N>::BLOCKS) void gemm_sm90_k(gemm_sm90_job j)
{
#if defined(CU_HOPPER_BODY)
    typedef gemm_sm90_shape<N> shape;
    CU_DYN_SHARED(base);
    gemm_sm90_smem<N> sm(base, j.rows);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < shape::STAGES; s++) {
            cu_mbar_init(sm.full + s, 1 + shape::TOKEN_WARPS);
            cu_mbar_init(sm.empty + s, shape::GROUPS * 4);
        }
        cu_mbar_init_done();
    }
    __syncthreads();
    if (threadIdx.x >= shape::GROUPS * 128) {
        if (N == 256) cu_regs_less<CU_REGS_PRODUCER>();
        if (threadIdx.x < shape::GROUPS * 128 + 32) gemm_sm90_weights<N, GROUPED>(j, sm);
        else gemm_sm90_tokens<N, GROUPED>(j, sm);
    } else {
        if (N == 256) cu_regs_more<CU_REGS_CONSUMER>();
        gemm_sm90_multiply<N, GROUPED>(j, sm);
    }
#else
    (void)j;
#endif
}

/* ---- launching */

template <int N> static bool gemm_sm90_allow(struct backend *b)
{
    size_t bytes = gemm_sm90_smem<N>(nullptr, 64).bytes;
    if (bytes > b->smem_max + CU_GAP * 16)
        return cuda_check(b, cudaErrorNotSupported, "shared memory for the Hopper kernels");
    return cuda_allow_smem(b, gemm_sm90_k<N, false>, bytes) &&
           (N > 128 || cuda_allow_smem(b, gemm_sm90_k < N == 256 ? 128 : N, true >, bytes));
}
bool cuda_gemm_sm90_init(struct backend *b)
{
    return gemm_sm90_allow<8>(b) && gemm_sm90_allow<32>(b) && gemm_sm90_allow<64>(b) &&
           gemm_sm90_allow<128>(b) && gemm_sm90_allow<256>(b);
}

uint32_t cuda_gemm_sm90_width(const struct backend *b, size_t tokens, uint32_t wrows, bool grouped)
{
    if (tokens <= 64) return tokens <= 8 ? 8 : tokens <= 32 ? 32 : 64;
    if (grouped) return 128;
    /* A wider tile rereads less; but every multiprocessor should have one. */
    size_t rows = cu_div_up(wrows, 128);
    if (tokens > 128 && rows * cu_div_up(tokens, 256) >= b->sms) return 256;
    return tokens > 256 || rows * cu_div_up(tokens, 128) >= b->sms * 3 / 4 ? 128 : 64;
}

template <int N, bool GROUPED> static void gemm_sm90_launch(struct backend *b, struct gemm_sm90_job &j)
{
    typedef gemm_sm90_shape<N> shape;
    j.rows = 64;
    /* As many weight rows per tile as leave the multiprocessors enough blocks to saturate memory. With fewer
     * rows the tokens are read more often. */
    size_t enough = N == 8 ? b->sms * 2 : N == 32 ? b->sms : b->sms / 2;
    if (shape::GROUPS == 1)
        while (j.rows > 16 && (size_t)cu_div_up(j.g.wrows, j.rows) * j.token_tiles < enough) j.rows /= 2;
    j.row_tiles = cu_div_up(j.g.wrows, j.rows * shape::GROUPS);
    CU_ASSERT((size_t)j.row_tiles * j.token_tiles < UINT32_MAX / 2);
    j.items = j.row_tiles * j.token_tiles;
    size_t smem = gemm_sm90_smem<N>(nullptr, j.rows).bytes;
    uint32_t fit = (uint32_t)((b->smem_max + 1024) / (smem + 1024)),
             most = b->sms * (fit < shape::BLOCKS ? (fit ? fit : 1) : shape::BLOCKS);
    CU_LAUNCH((gemm_sm90_k<N, GROUPED>), j.items < most ? j.items : most, shape::THREADS, smem, b->stream, j);
    cuda_launched(b, GROUPED ? "experts" : "linear");
}

void cuda_gemm_sm90(struct backend *b, const struct gemm_job &g, uint32_t width, uint32_t tiles, bool grouped,
                    uint32_t *trouble)
{
    struct gemm_sm90_job j = {};
    j.g = g;
    j.atoms = 2 * cu_div_up(g.kpad, 128);
    j.token_tiles = tiles;
    j.trouble = trouble;
    if (width == 8) grouped ? gemm_sm90_launch<8, true>(b, j) : gemm_sm90_launch<8, false>(b, j);
    else if (width == 32) grouped ? gemm_sm90_launch<32, true>(b, j) : gemm_sm90_launch<32, false>(b, j);
    else if (width == 64) grouped ? gemm_sm90_launch<64, true>(b, j) : gemm_sm90_launch<64, false>(b, j);
    else if (width == 128) grouped ? gemm_sm90_launch<128, true>(b, j) : gemm_sm90_launch<128, false>(b, j);
    else gemm_sm90_launch<256, false>(b, j);
}

/* Right kernels of the emulator's self-test, and the same with one part left out: MUTANT 0 is right, every
 * other number drops or weakens one barrier, wait, predicate or size. They compile with nvcc too. */
#ifndef KVASIR_CUEMU_SELFTEST_KERNELS_CUH
#define KVASIR_CUEMU_SELFTEST_KERNELS_CUH

#include "kernels/cuda/device.cuh"

/* ---- out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w, bf16 rows; a block walks several rows, so its shared
 * words are written again and again */

enum rms_mutant { RMS_RIGHT, RMS_NO_BARRIER, RMS_NO_SECOND_BARRIER, RMS_SHORT_ARRAY, RMS_SKIP_INIT };
template <int BLOCK, int MUTANT>
__global__ void __launch_bounds__(BLOCK)
    rmsnorm_k(bf16 *out, const bf16 *x, const float *w, int rows, int c, float eps)
{
    CU_SHARED(part, float[MUTANT == RMS_SHORT_ARRAY ? BLOCK / 32 - 1 : BLOCK / 32]);
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    for (int r = (int)blockIdx.x; r < rows; r += (int)gridDim.x) {
        const bf16 *xr = x + (size_t)r * (size_t)c;
        float sum = 0.0f;
        for (int i = (int)threadIdx.x; i < c; i += BLOCK) {
            const float v = __bfloat162float(xr[i]);
            sum = fmaf(v, v, sum);
        }
        sum = cu_warp_sum(sum);
        if (lane == 0 && !(MUTANT == RMS_SKIP_INIT && warp == 1)) part[warp] = sum;
        if (MUTANT != RMS_NO_BARRIER) __syncthreads();
        float all = 0.0f;
        CU_UNROLL
        for (int i = 0; i < (int)blockDim.x / 32; i++) all += part[i];
        const float inv = 1.0f / sqrtf(all / (float)c + eps);
        for (int i = (int)threadIdx.x; i < c; i += BLOCK)
            out[(size_t)r * (size_t)c + (size_t)i] = __float2bfloat16(__bfloat162float(xr[i]) * inv * w[i]);
        if (MUTANT != RMS_NO_SECOND_BARRIER) __syncthreads();
    }
}

/* ---- y[m][n] = x[m][k] w[n][k]^T: tiles of 64 x 64, steps of 32 along k in two stages of cp.async,
 * ldmatrix, mma. k is a multiple of 32, rows of x and w are ld elements apart. */

enum gemm_mutant {
    GEMM_RIGHT,
    GEMM_NO_BARRIER,
    GEMM_NO_SECOND_BARRIER,
    GEMM_WEAK_WAIT,
    GEMM_NO_PREDICATE,
    GEMM_LONG_ROW,
    GEMM_NO_WAIT_AT_END
};
enum { GEMM_TILE = 64, GEMM_STEP = 32, GEMM_LD = GEMM_STEP + 8, GEMM_THREADS = 128 };

static inline size_t gemm_smem()
{
    cu_carve cv(nullptr);
    cv.take<bf16>(2 * GEMM_TILE * GEMM_LD);
    cv.take<bf16>(2 * GEMM_TILE * GEMM_LD);
    return cv.bytes();
}
template <int MUTANT>
static __device__ __forceinline__ void gemm_load(bf16 *s, const bf16 *g, int first, int rows, int k0, int ld)
{
    for (int i = (int)threadIdx.x; i < GEMM_TILE * GEMM_STEP / 8; i += GEMM_THREADS) {
        const int r = i / (GEMM_STEP / 8), c = i % (GEMM_STEP / 8) * 8;
        const bool valid = MUTANT == GEMM_NO_PREDICATE || first + r < rows;
        const bf16 *src = valid ? g + (size_t)(first + r) * (size_t)ld + (size_t)(k0 + c) : g;
        cu_cp_async16(s + r * GEMM_LD + c + (MUTANT == GEMM_LONG_ROW && r == GEMM_TILE - 1 ? GEMM_LD : 0),
                      src, valid);
    }
}
template <int MUTANT>
__global__ void __launch_bounds__(GEMM_THREADS)
    gemm_k(const bf16 *x, const bf16 *w, float *y, int m, int n, int k, int ld)
{
    CU_DYN_SHARED(raw);
    cu_carve cv(raw);
    bf16 *sa = cv.take<bf16>(2 * GEMM_TILE * GEMM_LD), *sb = cv.take<bf16>(2 * GEMM_TILE * GEMM_LD);
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, m0 = (int)blockIdx.y * GEMM_TILE,
              n0 = (int)blockIdx.x * GEMM_TILE;
    const int stage = GEMM_TILE * GEMM_LD, steps = k / GEMM_STEP, mat = lane >> 3, row = lane & 7;
    float acc[8][4] = {};
    gemm_load<MUTANT>(sa, x, m0, m, 0, ld);
    gemm_load<MUTANT == GEMM_NO_PREDICATE ? 0 : MUTANT>(sb, w, n0, n, 0, ld);
    cu_cp_async_commit();
    for (int it = 0; it < steps; it++) {
        if (it + 1 < steps) {
            gemm_load<MUTANT>(sa + (it + 1) % 2 * stage, x, m0, m, (it + 1) * GEMM_STEP, ld);
            gemm_load<MUTANT == GEMM_NO_PREDICATE ? 0 : MUTANT>(sb + (it + 1) % 2 * stage, w, n0, n,
                                                                (it + 1) * GEMM_STEP, ld);
        }
        cu_cp_async_commit();
        if (MUTANT == GEMM_WEAK_WAIT) {
            cu_cp_async_wait<2>();
        } else {
            cu_cp_async_wait<1>();
        }
        if (MUTANT != GEMM_NO_BARRIER) __syncthreads();
        const bf16 *a = sa + it % 2 * stage, *b = sb + it % 2 * stage;
        CU_UNROLL
        for (int kk = 0; kk < GEMM_STEP; kk += 16) {
            uint32_t fa[4];
            cu_ldmatrix_x4(fa, a + (warp * 16 + (mat & 1) * 8 + row) * GEMM_LD + kk + (mat >> 1) * 8);
            CU_UNROLL
            for (int j = 0; j < 8; j += 2) {
                uint32_t fb[4];
                cu_ldmatrix_x4(fb, b + (j * 8 + (mat >> 1) * 8 + row) * GEMM_LD + kk + (mat & 1) * 8);
                const uint32_t lo[2] = {fb[0], fb[1]}, hi[2] = {fb[2], fb[3]};
                cu_mma_bf16_16816(acc[j], fa, lo, acc[j]);
                cu_mma_bf16_16816(acc[j + 1], fa, hi, acc[j + 1]);
            }
        }
        if (MUTANT != GEMM_NO_SECOND_BARRIER) __syncthreads();
    }
    if (MUTANT != GEMM_NO_WAIT_AT_END) cu_cp_async_wait<0>();
    if (MUTANT == GEMM_NO_WAIT_AT_END) gemm_load<0>(sa, x, m0, m, 0, ld);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 4; i++) {
            const int r = m0 + warp * 16 + (lane >> 2) + (i >> 1) * 8,
                      c = n0 + j * 8 + (lane & 3) * 2 + (i & 1);
            if (r < m && c < n) y[(size_t)r * (size_t)n + (size_t)c] = acc[j][i];
        }
}

/* ---- blocks that meet in device memory: the last one to come adds up what all have written */

enum last_mutant { LAST_RIGHT, LAST_NO_FENCE };
template <int MUTANT> __global__ void last_block_k(const int *x, int *part, int *count, int *out)
{
    CU_SHARED(last, int);
    const int v = __reduce_add_sync(CU_FULL, x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = v;
        if (MUTANT != LAST_NO_FENCE) __threadfence();
        last = atomicAdd(count, 1) == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        int sum = 0;
        for (int i = 0; i < (int)gridDim.x; i++) sum += part[i];
        *out = sum;
    }
}

/* ---- neighbours exchange through shared memory inside a warp; a shuffle lies between, which orders nothing
 */

enum warp_mutant { WARP_RIGHT, WARP_NO_SYNC };
template <int MUTANT> __global__ void warp_exchange_k(int *out)
{
    CU_SHARED(s, int[64]);
    const int t = (int)threadIdx.x;
    s[t] = t * 3;
    const int first = __shfl_sync(CU_FULL, t, 0);
    if (MUTANT != WARP_NO_SYNC) __syncwarp();
    out[t] = s[t ^ 1] + first;
}
#endif

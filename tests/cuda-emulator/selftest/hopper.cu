/* Self-test of the emulator's model of Hopper's instructions (hopper.cuh). Without an argument: right
 * kernels, whose sums of small integers must come out exactly, whatever the schedule; compiled by nvcc it
 * tests the wrappers on a GPU of compute capability 9.0. With the name of a planted bug: the same pipeline
 * with one part left out, which must be reported or give a wrong result. run.sh knows the bugs. Exit status:
 * 97 and 98 are the emulator's reports, 1 a wrong result, 0 not found, 2 no such bug. */
#include "kernels/cuda/hopper.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum bug {
    RIGHT,
    NO_FULL_WAIT,
    NO_EMPTY_WAIT,
    SHORT_TX,
    LONG_TX,
    NO_WGMMA_FENCE,
    NO_WGMMA_WAIT,
    EARLY_RELEASE,
    NO_PROXY_FENCE,
    NEVER_WAITED,
    BAD_DESCRIPTOR,
    ONE_WARP_LESS,
    TWO_ARRIVALS,
    BAD_COPY,
    NO_INIT
};
static const char *const names[] = {"right",          "no_full_wait",   "no_empty_wait",  "short_tx",
                                    "long_tx",        "no_wgmma_fence", "no_wgmma_wait",  "early_release",
                                    "no_proxy_fence", "never_waited",   "bad_descriptor", "one_warp_less",
                                    "two_arrivals",   "bad_copy",       "no_init"};

enum { ROWS = 64, COLS = 32, STEPS = 6, STAGES = 2, A_STAGE = ROWS * 128, B_STAGE = COLS * 128 };

struct pipe_smem {
    unsigned char *a, *b;
    uint64_t *full, *empty;
    size_t bytes;
    __host__ __device__ explicit pipe_smem(void *base)
    {
        cu_carve cv(base);
        a = cv.take<unsigned char>(STAGES * A_STAGE, 1024);
        b = cv.take<unsigned char>(STAGES * B_STAGE, 1024);
        full = cv.take<uint64_t>(STAGES);
        empty = cv.take<uint64_t>(STAGES);
        bytes = cv.bytes();
    }
};

#if defined(CU_HOPPER_BODY)
/* A warp brings [64][64] of a (bulk copies, tiled already) and [32][64] of b (cp.async, swizzled here) to
 * each stage. */
template <int BUG> static __device__ void pipe_produce(const pipe_smem &sm, const bf16 *a, const bf16 *b)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t n = 0; n < STEPS; n++) {
        uint32_t s = n % STAGES, tx = A_STAGE;
        if (BUG == SHORT_TX && n == 1) tx -= 1024;
        if (BUG == LONG_TX && n == 1) tx += 16;
        if (BUG != NO_EMPTY_WAIT) cu_mbar_wait(sm.empty + s, (n / STAGES & 1) ^ 1, nullptr);
        if (lane == 0) cu_mbar_arrive_tx(sm.full + s, tx);
        __syncwarp();
        if (lane < 8)
            cu_bulk_copy(sm.a + s * A_STAGE + lane * 1024, a + n * A_STAGE / 2 + lane * 512,
                         BUG == BAD_COPY ? 1000 : 1024, sm.full + s);
        for (uint32_t i = lane; i < COLS * 8; i += 32)
            cu_cp_async16(sm.b + s * B_STAGE + i / 64 * 1024 + cu_swizzle(i / 8 % 8, i % 8),
                          b + (i / 8 * STEPS + n) * 64 + i % 8 * 8, true);
        cu_cp_async_commit();
        cu_cp_async_wait<0>();
        if (BUG != NO_PROXY_FENCE) cu_proxy_fence();
        __syncwarp();
        if (lane == 0) cu_mbar_arrive(sm.full + s);
        if (BUG == TWO_ARRIVALS && lane == 0 && n == 1) {
            cu_mbar_arrive(sm.full + s);
            cu_mbar_arrive(sm.full + s);
        }
    }
}
template <int BUG> static __device__ void pipe_multiply(const pipe_smem &sm, float *d)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float acc[COLS / 2];
    CU_UNROLL
    for (int i = 0; i < COLS / 2; i++) acc[i] = 0;
    cu_wgmma_keep(acc);
    for (uint32_t n = 0; n < STEPS; n++) {
        uint32_t s = n % STAGES;
        if (BUG != NO_FULL_WAIT) cu_mbar_wait(sm.full + s, n / STAGES & 1, nullptr);
        if (BUG != NO_WGMMA_FENCE) cu_wgmma_fence();
        CU_UNROLL
        for (uint32_t k = 0; k < 128; k += 32)
            if (BUG != ONE_WARP_LESS || warp != 2 || n != 3 || k)
                cu_wgmma(
                    acc,
                    cu_wgmma_operand(sm.a + s * A_STAGE + k + (BUG == BAD_DESCRIPTOR ? 128 : 0), 0, 1024),
                    cu_wgmma_operand(sm.b + s * B_STAGE + k, 0, 1024), n + k != 0, ROWS);
        if (BUG != NEVER_WAITED || n + 1 < STEPS) cu_wgmma_commit();
        if (BUG == EARLY_RELEASE) {
            if (lane == 0) cu_mbar_arrive(sm.empty + s);
        } else if (n) {
            cu_wgmma_wait<1>();
            if (lane == 0) cu_mbar_arrive(sm.empty + (n - 1) % STAGES);
        }
    }
    if (BUG != NO_WGMMA_WAIT) cu_wgmma_wait<0>();
    cu_wgmma_keep(acc);
    CU_UNROLL
    for (uint32_t i = 0; i < COLS / 2; i++)
        d[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * COLS + i / 4 * 8 + lane % 4 * 2 + i % 2] = acc[i];
    if (BUG == NO_WGMMA_WAIT) cu_wgmma_wait<0>();
}
#endif
template <int BUG> __global__ __launch_bounds__(160) void pipe_k(const bf16 *a, const bf16 *b, float *d)
{
#if defined(CU_HOPPER_BODY)
    CU_DYN_SHARED(base);
    pipe_smem sm(base);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            if (BUG != NO_INIT || s == 0) cu_mbar_init(sm.full + s, 2);
            cu_mbar_init(sm.empty + s, 4);
        }
        cu_mbar_init_done();
    }
    __syncthreads();
    if (threadIdx.x >= 128) pipe_produce<BUG>(sm, a, b);
    else pipe_multiply<BUG>(sm, d);
#else
    (void)a, (void)b, (void)d;
#endif
}

/* One product over k = 64 of [64][64] by [N][64] (d), then with a from registers and b stored as [64][N] (e).
 * The places are written out here once more, from the ISA. */
template <int N>
__global__ __launch_bounds__(128) void layout_k(const bf16 *a, const bf16 *b, float *d, float *e)
{
#if defined(CU_HOPPER_BODY)
    CU_DYN_SHARED(base);
    cu_carve cv(base);
    const uint32_t wide = (N + 63) / 64, lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    bf16 *sa = cv.take<bf16>(64 * 64, 1024), *sb = cv.take<bf16>(N * 64, 1024),
         *sc = cv.take<bf16>(64 * 64 * wide, 1024);
    for (uint32_t i = threadIdx.x; i < 64 * 64; i += 128) {
        uint32_t m = i / 64, k = i % 64;
        sa[m / 8 * 512 + m % 8 * 64 + (k / 8 ^ m % 8) * 8 + k % 8] = a[i];
    }
    for (uint32_t i = threadIdx.x; i < 64 * 64 * wide; i += 128) {
        uint32_t n = i / 64, k = i % 64;
        bf16 v = n < N ? b[i] : __float2bfloat16(0.0f);
        if (n < N) sb[n / 8 * 512 + n % 8 * 64 + (k / 8 ^ n % 8) * 8 + k % 8] = v;
        sc[n / 64 * 4096 + k / 8 * 512 + k % 8 * 64 + (n % 64 / 8 ^ k % 8) * 8 + n % 8] = v;
    }
    cu_proxy_fence();
    __syncthreads();
    float x[N / 2];
    CU_UNROLL
    for (int i = 0; i < N / 2; i++) x[i] = 0;
    cu_wgmma_keep(x);
    cu_wgmma_fence();
    CU_UNROLL
    for (uint32_t k = 0; k < 64; k += 16)
        cu_wgmma(x, cu_wgmma_operand(sa + k, 0, 1024), cu_wgmma_operand(sb + k, 0, 1024), k != 0, 64);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    cu_wgmma_keep(x);
    CU_UNROLL
    for (uint32_t i = 0; i < N / 2; i++)
        d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = x[i];
    uint32_t r[4][4];
    const uint32_t *a2 = reinterpret_cast<const uint32_t *>(a);
    CU_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        CU_UNROLL
        for (uint32_t i = 0; i < 4; i++) r[k][i] = a2[(row + i % 2 * 8) * 32 + k * 8 + i / 2 * 4 + lane % 4];
    }
    cu_wgmma_keep(x);
    cu_wgmma_fence();
    CU_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        cu_wgmma_trans(x, r[k], cu_wgmma_operand(sc + k * 1024, 64 * 128, 1024), k != 0, 64);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    cu_wgmma_keep(x);
    CU_UNROLL
    for (uint32_t i = 0; i < N / 2; i++)
        e[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = x[i];
#else
    (void)a, (void)b, (void)d, (void)e;
#endif
}

/* ---- host */

static cudaStream_t st;
static uint32_t seed = 1;
static std::vector<uint16_t> integers(size_t n) /* -8..8 as bf16 */
{
    std::vector<uint16_t> v(n);
    for (uint16_t &x : v) {
        seed = seed * 1664525u + 1013904223u;
        float f = (float)((int)(seed >> 16) % 17 - 8);
        uint32_t u;
        memcpy(&u, &f, 4);
        x = (uint16_t)(u >> 16);
    }
    return v;
}
static float value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static void *device(const void *from, size_t bytes)
{
    void *p;
    if (cudaMalloc(&p, bytes) || cudaMemsetAsync(p, 0, bytes, st) || cudaStreamSynchronize(st)) exit(2);
    if (from) cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice);
    return p;
}
/* got[m][n] = sum of a[m][.] b[n][.] over k, exactly? */
static bool same(const char *what, const float *dev, const std::vector<uint16_t> &a,
                 const std::vector<uint16_t> &b, size_t n, size_t k)
{
    std::vector<float> got(ROWS * n);
    cudaStreamSynchronize(st);
    cudaMemcpy(got.data(), dev, got.size() * 4, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < got.size(); i++) {
        float sum = 0;
        for (size_t q = 0; q < k; q++) sum += value(a[i / n * k + q]) * value(b[i % n * k + q]);
        if (got[i] == sum) continue;
        printf("wrong result: %s [%zu][%zu] is %g, should be %g\n", what, i / n, i % n, (double)got[i],
               (double)sum);
        return false;
    }
    return true;
}
template <int BUG> static bool pipe()
{
    const size_t k = STEPS * 64;
    std::vector<uint16_t> a = integers(ROWS * k), b = integers(COLS * k), tiled(a.size());
    for (size_t m = 0; m < ROWS; m++)
        for (size_t i = 0; i < k; i++)
            tiled[i / 64 * (ROWS * 64) + m / 8 * 512 + m % 8 * 64 + (i % 64 / 8 ^ m % 8) * 8 + i % 8] =
                a[m * k + i];
    bf16 *da = static_cast<bf16 *>(device(tiled.data(), tiled.size() * 2)),
         *db = static_cast<bf16 *>(device(b.data(), b.size() * 2));
    float *d = static_cast<float *>(device(nullptr, ROWS * COLS * 4));
    CU_LAUNCH((pipe_k<BUG>), 1, 160, pipe_smem(nullptr).bytes, st, da, db, d);
    bool ok = cudaGetLastError() == cudaSuccess && same("pipeline", d, a, b, COLS, k);
    cudaFree(da);
    cudaFree(db);
    cudaFree(d);
    return ok;
}
template <int N> static bool layout()
{
    std::vector<uint16_t> a = integers(ROWS * 64), b = integers(N * 64);
    bf16 *da = static_cast<bf16 *>(device(a.data(), a.size() * 2)),
         *db = static_cast<bf16 *>(device(b.data(), b.size() * 2));
    float *d = static_cast<float *>(device(nullptr, ROWS * N * 4)),
          *e = static_cast<float *>(device(nullptr, ROWS * N * 4));
    cu_carve cv(nullptr);
    cv.take<bf16>(64 * 64, 1024);
    cv.take<bf16>(N * 64, 1024);
    cv.take<bf16>(64 * 64 * ((N + 63) / 64), 1024);
    cudaFuncSetAttribute(layout_k<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)cv.bytes());
    CU_LAUNCH((layout_k<N>), 1, 128, cv.bytes(), st, da, db, d, e);
    bool ok = cudaGetLastError() == cudaSuccess && same("k along the rows", d, a, b, N, 64) &&
              same("n along the rows", e, a, b, N, 64);
    cudaFree(da);
    cudaFree(db);
    cudaFree(d);
    cudaFree(e);
    return ok;
}

int main(int argc, char **argv)
{
    static bool (*const pipes[])() = {
        pipe<RIGHT>,
#if defined(CUEMU) /* a device has undefined behaviour to show for them */
        pipe<NO_FULL_WAIT>,
        pipe<NO_EMPTY_WAIT>,
        pipe<SHORT_TX>,
        pipe<LONG_TX>,
        pipe<NO_WGMMA_FENCE>,
        pipe<NO_WGMMA_WAIT>,
        pipe<EARLY_RELEASE>,
        pipe<NO_PROXY_FENCE>,
        pipe<NEVER_WAITED>,
        pipe<BAD_DESCRIPTOR>,
        pipe<ONE_WARP_LESS>,
        pipe<TWO_ARRIVALS>,
        pipe<BAD_COPY>,
        pipe<NO_INIT>,
#endif
    };
    const char *name = argc > 1 ? argv[1] : names[RIGHT];
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
        printf("no device of compute capability 9.0\n");
        return 2;
    }
    cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
    for (size_t i = 0; i < sizeof pipes / sizeof *pipes; i++) {
        if (strcmp(names[i], name) != 0) continue;
        bool ok = pipes[i]();
        if (i == RIGHT) ok = ok && layout<64>() && layout<128>() && layout<256>();
        cudaStreamDestroy(st);
        return !ok;
    }
    fprintf(stderr, "no bug called '%s'\n", name);
    return 2;
}

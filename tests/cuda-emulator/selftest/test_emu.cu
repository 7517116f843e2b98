/* Self-test of the emulator, the part that must pass: the language (warp operations, barriers, atomics,
 * tensor cores, conversions), the runtime interface (streams, events, graphs, errors, fault injection),
 * cuBLAS and cuBLASLt, and right kernels. run.sh repeats it under many schedules; where a kernel has no float
 * atomics its output must be the same bits under all of them: the program prints a hash of it. Compiled by
 * nvcc it tests the wrappers of device.cuh on a GPU. */
#include "tests/cuda-emulator/selftest/kernels.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <thread>
#include <vector>

static int fails, checks;
static uint64_t hash = 1469598103934665603ull;
static cudaStream_t st;
#define EXPECT(c)                                                                                            \
    do {                                                                                                     \
        checks++;                                                                                            \
        if (!(c)) {                                                                                          \
            fails++;                                                                                         \
            printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #c);                                              \
        }                                                                                                    \
    } while (0)

template <class T> static T *device_new(size_t n)
{
    T *p;
    if (cudaMalloc(&p, n * sizeof(T)) || cudaMemsetAsync(p, 0, n * sizeof(T), st)) exit(1);
    return p;
}
template <class T> static T *device_copy(const std::vector<T> &v)
{
    T *p = device_new<T>(v.size());
    cudaStreamSynchronize(st);
    cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
    return p;
}
template <class T> static std::vector<T> host_copy(const T *p, size_t n)
{
    std::vector<T> v(n);
    cudaStreamSynchronize(st);
    cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    const unsigned char *b = reinterpret_cast<const unsigned char *>(v.data());
    for (size_t i = 0; i < n * sizeof(T); i++) hash = (hash ^ b[i]) * 1099511628211ull;
    return v;
}
static float bf(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t to_bf(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static uint32_t seed = 1;
static float noise()
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed / 2147483648.0f;
}

/* ---- warp operations */

__global__ void warp_k(int *o)
{
    const int l = (int)threadIdx.x & 31;
    int *r = o + threadIdx.x * 16;
    r[0] = __shfl_sync(CU_FULL, l * 10, 5);
    r[1] = __shfl_up_sync(CU_FULL, l, 3);
    r[2] = __shfl_down_sync(CU_FULL, l, 4, 8);
    r[3] = __shfl_xor_sync(CU_FULL, l, 9);
    r[4] = (int)__ballot_sync(CU_FULL, l % 3 == 0);
    r[5] = __any_sync(CU_FULL, l == 31);
    r[6] = __all_sync(CU_FULL, l < 31);
    r[7] = (int)__reduce_add_sync(CU_FULL, (unsigned)l);
    r[8] = (int)__match_any_sync(CU_FULL, (unsigned)l / 4);
    r[9] = __shfl_sync(CU_FULL, l, l + 1, 4);
    if (l < 8) {
        r[10] = __shfl_xor_sync(0xffu, l, 1);
    } else {
        r[10] = __shfl_xor_sync(0xffffff00u, l, 2);
    }
    r[11] = __syncthreads_count((int)threadIdx.x % 2);
    r[12] = __popc(__brev(3u)) + __clz(1) + __ffs(8);
    r[13] = (int)__byte_perm(0x33221100u, 0x77665544u, 0x6420u);
    r[14] = __reduce_max_sync(CU_FULL, l - 40) * 1000 + __reduce_min_sync(CU_FULL, l - 40);
    r[15] = __syncthreads_and(threadIdx.x < 64) * 2 + __syncthreads_or(threadIdx.x == 63);
}
static void test_warp()
{
    int *o = device_new<int>(64 * 16);
    CU_LAUNCH(warp_k, 1, 64, 0, st, o);
    std::vector<int> v = host_copy(o, 64 * 16);
    for (int t = 0; t < 64; t++) {
        int l = t & 31, *r = &v[(size_t)t * 16];
        EXPECT(r[0] == 50 && r[1] == (l < 3 ? l : l - 3) && r[2] == ((l & 7) + 4 < 8 ? l + 4 : l) &&
               r[3] == (l ^ 9));
        EXPECT((unsigned)r[4] == 0x49249249u && r[5] == 1 && r[6] == 0 && r[7] == 496 &&
               (unsigned)r[8] == 0xfu << (l & ~3));
        EXPECT(r[9] == (l & ~3) + ((l + 1) & 3) && r[10] == (l < 8 ? l ^ 1 : l ^ 2) && r[11] == 32 &&
               r[12] == 2 + 31 + 4);
        EXPECT((unsigned)r[13] == 0x66442200u && r[14] == -9 * 1000 - 40 && r[15] == 3);
    }
    cudaFree(o);
}

/* ---- fragments by formula, by ldmatrix and by the transposing ldmatrix, against a plain product of small
 * integers (exact) */

__global__ void mma_k(const bf16 *a, const bf16 *b, const bf16 *bt, float *d,
                      float *d2) /* a 16x16, b [k][n], bt [n][k] */
{
    CU_SHARED(sa, bf16[256]);
    CU_SHARED(sb, bf16[128]);
    const int l = (int)threadIdx.x, g = l >> 2, t = l & 3, mi = l >> 3, mr = l & 7;
    for (int i = l; i < 256; i += 32) sa[i] = a[i];
    for (int i = l; i < 128; i += 32) sb[i] = b[i];
    __syncwarp();
    const float z[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    const uint32_t *a2 = reinterpret_cast<const uint32_t *>(a), *t2 = reinterpret_cast<const uint32_t *>(bt);
    const uint32_t fa[4] = {a2[g * 8 + t], a2[(g + 8) * 8 + t], a2[g * 8 + t + 4], a2[(g + 8) * 8 + t + 4]};
    const uint32_t fb[2] = {t2[g * 8 + t], t2[g * 8 + t + 4]};
    float r[4];
    cu_mma_bf16_16816(r, fa, fb, z);
    for (int i = 0; i < 4; i++) d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = r[i];
    uint32_t la[4], lb[2];
    cu_ldmatrix_x4(la, sa + ((mi & 1) * 8 + mr) * 16 + (mi >> 1) * 8);
    cu_ldmatrix_x2_trans(lb, sb + ((mi & 1) * 8 + mr) * 8);
    cu_mma_bf16_16816(r, la, lb, z);
    for (int i = 0; i < 4; i++) d2[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = r[i];
}
static void test_mma()
{
    std::vector<uint16_t> a(256), b(128), bt(128);
    for (int i = 0; i < 256; i++) a[(size_t)i] = to_bf((float)(i * 37 % 19 - 9));
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++)
            b[(size_t)(k * 8 + n)] = bt[(size_t)(n * 16 + k)] = to_bf((float)((k * 8 + n) * 29 % 23 - 11));
    uint16_t *da = device_copy(a), *db = device_copy(b), *dt = device_copy(bt);
    float *d = device_new<float>(128), *d2 = device_new<float>(128);
    CU_LAUNCH(mma_k, 1, 32, 0, st, reinterpret_cast<bf16 *>(da), reinterpret_cast<bf16 *>(db),
              reinterpret_cast<bf16 *>(dt), d, d2);
    std::vector<float> v = host_copy(d, 128), v2 = host_copy(d2, 128);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float s = (float)(1 + (j & 1) + 2 * (i >= 8));
            for (int k = 0; k < 16; k++) s += bf(a[(size_t)(i * 16 + k)]) * bf(b[(size_t)(k * 8 + j)]);
            EXPECT(v[(size_t)(i * 8 + j)] == s && v2[(size_t)(i * 8 + j)] == s);
        }
    cudaFree(da);
    cudaFree(db);
    cudaFree(dt);
    cudaFree(d);
    cudaFree(d2);
}

/* ---- conversions: every bf16 value, ties, overflow, subnormals, NaN */

/* Stored by type: memcpy makes byte stores of them, and ptxas 13.0 stores the low byte of a 16-bit float as
 * its value as an integer. */
__global__ void convert_k(const float *x, bf16 *b, __half *h, float *hf, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    b[i] = __float2bfloat16(x[i]);
    h[i] = __float2half(x[i]);
    hf[i] = __half2float(__float2half(x[i]));
}
static void test_convert()
{
    /* value, bf16, f16 */
    static const struct {
        uint32_t f;
        uint16_t b, h;
    } cases[] = {
        {0x3f800000, 0x3f80, 0x3c00}, {0x3f808000, 0x3f80, 0x3c04}, {0x3f818000, 0x3f82, 0x3c0c},
        {0x3f808001, 0x3f81, 0x3c04}, {0x7f7fffff, 0x7f80, 0x7c00}, {0xff800000, 0xff80, 0xfc00},
        {0x7fc12345, 0x7fff, 0x7fff}, {0xffffffff, 0x7fff, 0x7fff}, {0x00000001, 0x0000, 0x0000},
        {0x80000000, 0x8000, 0x8000}, {0x477fe000, 0x4780, 0x7bff}, {0x477ff000, 0x4780, 0x7c00},
        {0x33800000, 0x3380, 0x0001}, {0x33000000, 0x3300, 0x0000}, {0x33000001, 0x3300, 0x0001},
        {0x38800000, 0x3880, 0x0400}, {0x387fffff, 0x3880, 0x0400}, {0x3f801000, 0x3f80, 0x3c00},
        {0x3f803000, 0x3f80, 0x3c02}, {0x00018000, 0x0002, 0x0000},
    };
    const size_t n = sizeof cases / sizeof *cases;
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) memcpy(&x[i], &cases[i].f, 4);
    float *dx = device_copy(x), *df = device_new<float>(n);
    uint16_t *db = device_new<uint16_t>(n), *dh = device_new<uint16_t>(n);
    CU_LAUNCH(convert_k, 1, 64, 0, st, dx, reinterpret_cast<bf16 *>(db), reinterpret_cast<__half *>(dh), df,
              (int)n);
    std::vector<uint16_t> b = host_copy(db, n), h = host_copy(dh, n);
    std::vector<float> f = host_copy(df, n);
    for (size_t i = 0; i < n; i++) EXPECT(b[i] == cases[i].b && h[i] == cases[i].h);
    EXPECT(f[0] == 1.0f && f[10] == 65504.0f && f[12] == 0x1p-24f && isnan(f[6]) && isinf(f[5]));
    cudaFree(dx);
    cudaFree(db);
    cudaFree(dh);
    cudaFree(df);
}

/* ---- named barriers: warp 0 produces, warps 1 to 3 consume */

__global__ void named_k(int *o)
{
    CU_SHARED(buf, int[32]);
    const int w = (int)threadIdx.x >> 5, l = (int)threadIdx.x & 31;
    int s = 0;
    for (int i = 0; i < 5; i++) {
        if (w == 0) {
            cu_bar_sync(1, 128);
            buf[l] = i * 100 + l;
            cu_bar_arrive(2, 128);
        } else {
            cu_bar_arrive(1, 128);
            cu_bar_sync(2, 128);
            s += buf[31 - l];
        }
    }
    o[threadIdx.x] = s;
}
static void test_named()
{
    int *o = device_new<int>(128);
    CU_LAUNCH(named_k, 1, 128, 0, st, o);
    std::vector<int> v = host_copy(o, 128);
    for (int t = 32; t < 128; t++) EXPECT(v[(size_t)t] == 1000 + 5 * (31 - (t & 31)));
    cudaFree(o);
}

/* ---- the right kernels */

static void test_rmsnorm()
{
    const int rows = 13, c = 200;
    std::vector<uint16_t> x((size_t)(rows * c));
    std::vector<float> w((size_t)c);
    for (uint16_t &v : x) v = to_bf(noise());
    for (float &v : w) v = noise();
    uint16_t *dx = device_copy(x), *dy = device_new<uint16_t>(x.size());
    float *dw = device_copy(w);
    CU_LAUNCH((rmsnorm_k<128, RMS_RIGHT>), 4, 128, 0, st, reinterpret_cast<bf16 *>(dy),
              reinterpret_cast<const bf16 *>(dx), dw, rows, c, 1e-6f);
    EXPECT(cudaGetLastError() == cudaSuccess);
    std::vector<uint16_t> y = host_copy(dy, x.size());
    for (int r = 0; r < rows; r++) {
        double s = 0;
        for (int i = 0; i < c; i++)
            s += (double)bf(x[(size_t)(r * c + i)]) * (double)bf(x[(size_t)(r * c + i)]);
        for (int i = 0; i < c; i++) {
            double want = (double)bf(x[(size_t)(r * c + i)]) / sqrt(s / c + 1e-6) * (double)w[(size_t)i];
            EXPECT(fabs((double)bf(y[(size_t)(r * c + i)]) - want) <= 4.1e-3 * fabs(want) + 1e-9);
        }
    }
    cudaFree(dx);
    cudaFree(dy);
    cudaFree(dw);
}
static void test_gemm()
{
    const int m = 70, n = 131, k = 96, ld = 104;
    std::vector<uint16_t> x((size_t)(m * ld)), w((size_t)(n * ld));
    for (uint16_t &v : x) v = to_bf(noise());
    for (uint16_t &v : w) v = to_bf(noise());
    uint16_t *dx = device_copy(x), *dw = device_copy(w);
    float *dy = device_new<float>((size_t)(m * n));
    CU_LAUNCH((gemm_k<GEMM_RIGHT>), dim3(3, 2), GEMM_THREADS, gemm_smem(), st, reinterpret_cast<bf16 *>(dx),
              reinterpret_cast<bf16 *>(dw), dy, m, n, k, ld);
    EXPECT(cudaGetLastError() == cudaSuccess);
    std::vector<float> y = host_copy(dy, (size_t)(m * n));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double s = 0;
            for (int p = 0; p < k; p++)
                s += (double)bf(x[(size_t)(i * ld + p)]) * (double)bf(w[(size_t)(j * ld + p)]);
            EXPECT(fabs((double)y[(size_t)(i * n + j)] - s) < 1e-4);
        }
    /* A row alone has the bits that it has among the others. */
    float *alone = device_new<float>((size_t)n);
    CU_LAUNCH((gemm_k<GEMM_RIGHT>), dim3(3, 1), GEMM_THREADS, gemm_smem(), st,
              reinterpret_cast<bf16 *>(dx) + 37 * ld, reinterpret_cast<bf16 *>(dw), alone, 1, n, k, ld);
    std::vector<float> one = host_copy(alone, (size_t)n);
    EXPECT(memcmp(one.data(), &y[(size_t)(37 * n)], (size_t)n * 4) == 0);
    cudaFree(dx);
    cudaFree(dw);
    cudaFree(dy);
    cudaFree(alone);
}
__global__ void grid_barrier_k(int *a, int *b, int *bar, int n)
{
    for (int phase = 0; phase < 3; phase++) {
        const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
        if (i < n) b[i] = a[(i + 37) % n] + 1;
        for (int h = 0; h < 2; h++) {
            __syncthreads();
            if (threadIdx.x == 0) {
                __threadfence();
                atomicAdd(bar, 1);
                while (atomicAdd(bar, 0) < (int)gridDim.x * (2 * phase + h + 1)) cu_spin();
                __threadfence();
            }
            __syncthreads();
            if (h == 0 && i < n) a[i] = b[i];
        }
    }
}
static void test_grid()
{
    std::vector<int> x(256);
    int total = 0;
    for (int i = 0; i < 256; i++) total += x[(size_t)i] = i % 13;
    int *dx = device_copy(x), *part = device_new<int>(8), *count = device_new<int>(1),
        *out = device_new<int>(1), *b = device_new<int>(256), *bar = device_new<int>(1),
        *e = device_new<int>(64);
    CU_LAUNCH((last_block_k<LAST_RIGHT>), 8, 32, 0, st, dx, part, count, out);
    EXPECT(host_copy(out, 1)[0] == total);
    CU_LAUNCH_COOP(grid_barrier_k, 4, 64, 0, st, dx, b, bar, 256);
    std::vector<int> v = host_copy(dx, 256);
    for (int i = 0; i < 256; i++) EXPECT(v[(size_t)i] == x[(size_t)((i + 3 * 37) % 256)] + 3);
    CU_LAUNCH((warp_exchange_k<WARP_RIGHT>), 1, 64, 0, st, e);
    std::vector<int> w = host_copy(e, 64);
    for (int i = 0; i < 64; i++) EXPECT(w[(size_t)i] == (i ^ 1) * 3 + (i & 32));
    for (int *p : {dx, part, count, out, b, bar, e}) cudaFree(p);
}

/* ---- streams, events, graphs */

__global__ void add_k(int *x, int n, int v)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] += v;
}
__global__ void copy_k(int *y, const int *x, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = x[i];
}
static void test_streams()
{
    cudaStream_t a, b;
    cudaEvent_t e;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    int *x = device_new<int>(100), *y = device_new<int>(100), *h, *r;
    cudaStreamSynchronize(st);
    cudaMallocHost(&h, 400);
    cudaMallocHost(&r, 400);
    for (int i = 0; i < 100; i++) h[i] = i;
    cudaMemcpyAsync(x, h, 400, cudaMemcpyHostToDevice, a);
    CU_LAUNCH(add_k, 1, 128, 0, a, x, 100, 5);
    cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e, 0);
    CU_LAUNCH(copy_k, 1, 128, 0, b, y, x, 100);
    cudaMemcpyAsync(r, y, 400, cudaMemcpyDeviceToHost, b);
    cudaStreamSynchronize(b);
    for (int i = 0; i < 100; i++) EXPECT(r[i] == i + 5);
    /* A graph with a fork and a join; its arguments are those of the capture. */
    cudaGraph_t g;
    cudaGraphExec_t x1;
    int v = 7;
    EXPECT(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CU_LAUNCH(add_k, 1, 128, 0, a, x, 100, v);
    cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e, 0);
    CU_LAUNCH(copy_k, 1, 128, 0, b, y, x, 100);
    cudaEvent_t joined;
    cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
    cudaEventRecord(joined, b);
    cudaStreamWaitEvent(a, joined, 0);
    EXPECT(cudaStreamEndCapture(a, &g) == cudaSuccess);
    EXPECT(cudaGraphInstantiate(&x1, g, 0) == cudaSuccess);
    v = 100;
    for (int i = 0; i < 3; i++) EXPECT(cudaGraphLaunch(x1, a) == cudaSuccess);
    cudaMemcpyAsync(r, y, 400, cudaMemcpyDeviceToHost, a);
    cudaStreamSynchronize(a);
    for (int i = 0; i < 100; i++) EXPECT(r[i] == i + 5 + 21);
    cudaGraphExecDestroy(x1);
    cudaGraphDestroy(g);
    /* A call that may not be captured spoils the capture; nothing of it has run, and the stream goes on. */
    cudaStreamCaptureStatus how;
    EXPECT(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CU_LAUNCH(add_k, 1, 128, 0, a, y, 100, 1);
    EXPECT(cudaStreamIsCapturing(a, &how) == cudaSuccess && how == cudaStreamCaptureStatusActive);
    EXPECT(cudaStreamSynchronize(a) == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamIsCapturing(a, &how) == cudaSuccess && how == cudaStreamCaptureStatusInvalidated);
    EXPECT(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated && !g);
    (void)cudaGetLastError();
    EXPECT(cudaStreamIsCapturing(a, &how) == cudaSuccess && how == cudaStreamCaptureStatusNone);
    /* Memory in the order of the stream. */
    int *z = nullptr;
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;
    EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess &&
           cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep) == cudaSuccess);
    EXPECT(cudaMallocAsync(&z, 400, a) == cudaSuccess);
    CU_LAUNCH(copy_k, 1, 128, 0, a, z, y, 100);
    cudaMemcpyAsync(r, z, 400, cudaMemcpyDeviceToHost, a);
    EXPECT(cudaFreeAsync(z, a) == cudaSuccess && cudaStreamSynchronize(a) == cudaSuccess);
    for (int i = 0; i < 100; i++) EXPECT(r[i] == i + 5 + 21);
    EXPECT(cudaMemPoolTrimTo(pool, 0) == cudaSuccess);
    cudaEventDestroy(e);
    cudaEventDestroy(joined);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    cudaFree(x);
    cudaFree(y);
    cudaFreeHost(h);
    cudaFreeHost(r);
}

/* ---- errors: launches that cannot be, and injected faults */

static void test_errors()
{
    int *x = device_new<int>(64);
    cudaStreamSynchronize(st);
    CU_LAUNCH(add_k, 1, 2048, 0, st, x, 64, 1);
    const cudaError_t many = cudaGetLastError(); /* which error it is, runtimes don't agree on */
#if defined(CUEMU)
    EXPECT(many == cudaErrorInvalidConfiguration);
#else
    printf("2048 threads to a block: %s\n", cudaGetErrorName(many));
    EXPECT(many != cudaSuccess);
#endif
    EXPECT(cudaGetLastError() == cudaSuccess);
    CU_LAUNCH((gemm_k<GEMM_RIGHT>), 1, GEMM_THREADS, 60000, st, nullptr, nullptr, nullptr, 0, 0, 0, 0);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
#if defined(CUEMU)
    cuemu_fail_at(CUEMU_FAIL_LAUNCH, 2, cudaErrorLaunchFailure, 0);
    CU_LAUNCH(add_k, 1, 64, 0, st, x, 64, 1);
    EXPECT(cudaGetLastError() == cudaSuccess);
    CU_LAUNCH(add_k, 1, 64, 0, st, x, 64, 1);
    EXPECT(cudaGetLastError() == cudaErrorLaunchFailure && cudaGetLastError() == cudaSuccess);
    EXPECT(host_copy(x, 1)[0] == 1);
    cuemu_fail_at(CUEMU_FAIL_SYNC, 1, cudaErrorIllegalAddress, 1);
    EXPECT(cudaStreamSynchronize(st) == cudaErrorIllegalAddress &&
           cudaStreamSynchronize(st) == cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError() == cudaErrorIllegalAddress &&
           cudaMemsetAsync(x, 0, 4, st) == cudaErrorIllegalAddress);
    cuemu_fail_at(CUEMU_FAIL_SYNC, 0, 0, 0);
    void *p;
    cuemu_fail_at(CUEMU_FAIL_MALLOC, 1, cudaErrorMemoryAllocation, 0);
    EXPECT(cudaMalloc(&p, 64) == cudaErrorMemoryAllocation &&
           cudaGetLastError() == cudaErrorMemoryAllocation);
    EXPECT(cudaMalloc(&p, (size_t)1 << 50) == cudaErrorMemoryAllocation &&
           cudaGetLastError() == cudaErrorMemoryAllocation);
    cudaStream_t s;
    cudaGraph_t g;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    EXPECT(cudaMalloc(&p, 64) == cudaErrorStreamCaptureUnsupported &&
           cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated &&
           cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
    cudaStreamDestroy(s);
#endif
    cudaFree(x);
}

/* ---- cuBLAS and cuBLASLt against sums in double; a column alone has the bits that it has among the others
 */

struct blas_data {
    int m, n, k;
    std::vector<uint16_t> w, x; /* [m][k], [n][k] */
    uint16_t *dw, *dx;
    float *dy;
};
static double blas_dot(const blas_data &d, int i, int j)
{
    double s = 0;
    for (int p = 0; p < d.k; p++)
        s += (double)bf(d.w[(size_t)(i * d.k + p)]) * (double)bf(d.x[(size_t)(j * d.k + p)]);
    return s;
}
static void check_blas(cublasHandle_t h, blas_data &d)
{
    const float one = 1, zero = 0, two = 2;
    EXPECT(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, d.m, d.n, d.k, &one, d.dw, CUDA_R_16BF, d.k, d.dx,
                        CUDA_R_16BF, d.k, &zero, d.dy, CUDA_R_32F, d.m, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    std::vector<float> y = host_copy(d.dy, (size_t)(d.m * d.n));
    for (int j = 0; j < d.n; j++)
        for (int i = 0; i < d.m; i++)
            EXPECT(fabs((double)y[(size_t)(j * d.m + i)] - blas_dot(d, i, j)) < 1e-4);
    EXPECT(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, d.m, d.n, d.k, &one, d.dw, CUDA_R_16BF, d.k, d.dx,
                        CUDA_R_16BF, d.k, &two, d.dy, CUDA_R_32F, d.m, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    std::vector<float> y3 = host_copy(d.dy, (size_t)(d.m * d.n));
    for (size_t i = 0; i < y.size(); i++) EXPECT(fabsf(y3[i] - 3 * y[i]) < 1e-4f);
#if defined(CUEMU)
    EXPECT(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, d.m, 1, d.k, &one, d.dw, CUDA_R_16BF, d.k,
                        d.dx + 4 * d.k, CUDA_R_16BF, d.k, &zero, d.dy, CUDA_R_32F, d.m, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    EXPECT(memcmp(host_copy(d.dy, (size_t)d.m).data(), &y[(size_t)(4 * d.m)], (size_t)d.m * 4) == 0);
#endif
    EXPECT(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, d.m, d.n, d.k, &one, d.dw, CUDA_R_16BF, d.k - 1, d.dx,
                        CUDA_R_16BF, d.k, &zero, d.dy, CUDA_R_32F, d.m, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_INVALID_VALUE);
}
static void check_blas_lt(blas_data &d)
{
    const float one = 1, zero = 0;
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t lw, lx, ly;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t got[4];
    int count = 0;
    const cublasOperation_t t = CUBLAS_OP_T;
    const size_t workspace = 0;
    EXPECT(cublasLtCreate(&h) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    cublasLtMatrixLayoutCreate(&lw, CUDA_R_16BF, (uint64_t)d.k, (uint64_t)d.m, d.k);
    cublasLtMatrixLayoutCreate(&lx, CUDA_R_16BF, (uint64_t)d.k, (uint64_t)d.n, d.k);
    cublasLtMatrixLayoutCreate(&ly, CUDA_R_32F, (uint64_t)d.m, (uint64_t)d.n, d.m);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    EXPECT(cublasLtMatmulAlgoGetHeuristic(h, desc, lw, lx, ly, ly, pref, 4, got, &count) ==
               CUBLAS_STATUS_SUCCESS &&
           count >= 1);
    for (int a = 0; a < count; a++) {
        EXPECT(cublasLtMatmul(h, desc, &one, d.dw, lw, d.dx, lx, &zero, d.dy, ly, d.dy, ly, &got[a].algo,
                              nullptr, 0, st) == CUBLAS_STATUS_SUCCESS);
        std::vector<float> y = host_copy(d.dy, (size_t)(d.m * d.n));
        for (int j = 0; j < d.n; j++)
            for (int i = 0; i < d.m; i++)
                EXPECT(fabs((double)y[(size_t)(j * d.m + i)] - blas_dot(d, i, j)) < 1e-4);
    }
#if defined(CUEMU)
    uint32_t split = 2;
    EXPECT(cublasLtMatmulAlgoConfigSetAttribute(&got[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                sizeof split) == CUBLAS_STATUS_SUCCESS);
    EXPECT(cublasLtMatmul(h, desc, &one, d.dw, lw, d.dx, lx, &zero, d.dy, ly, d.dy, ly, &got[0].algo, nullptr,
                          0, st) == CUBLAS_STATUS_NOT_SUPPORTED);
#endif
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatrixLayoutDestroy(lw);
    cublasLtMatrixLayoutDestroy(lx);
    cublasLtMatrixLayoutDestroy(ly);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(h);
}
static void test_blas()
{
    blas_data d = {40, 9, 88, {}, {}, nullptr, nullptr, nullptr};
    d.w.resize((size_t)(d.m * d.k));
    d.x.resize((size_t)(d.n * d.k));
    for (uint16_t &v : d.w) v = to_bf(noise());
    for (uint16_t &v : d.x) v = to_bf(noise());
    d.dw = device_copy(d.w);
    d.dx = device_copy(d.x);
    d.dy = device_new<float>((size_t)(d.m * d.n));
    cublasHandle_t h;
    EXPECT(cublasCreate(&h) == CUBLAS_STATUS_SUCCESS);
    cublasSetStream(h, st);
    check_blas(h, d);
    check_blas_lt(d);
    cublasDestroy(h);
    cudaFree(d.dw);
    cudaFree(d.dx);
    cudaFree(d.dy);
}

int main()
{
    cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
    test_warp();
    std::thread other([] { /* a launch from another OS thread */
                           test_mma();
                           test_named();
    });
    other.join();
    test_convert();
    test_rmsnorm();
    test_gemm();
    test_grid();
    test_streams();
    test_errors();
    test_blas();
    cudaStreamDestroy(st);
    printf("%d checks, %d failures, hash %016llx\n", checks, fails, (unsigned long long)hash);
    return fails ? 1 : 0;
}

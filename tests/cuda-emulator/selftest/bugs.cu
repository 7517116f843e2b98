/* Self-test of the emulator, the part that must fail: bugs NAME runs one planted bug, in a process of its
 * own. run.sh knows which build must find it and what it must say. Exit status: 97 and 98 are the emulator's
 * reports, 1 a wrong result, 0 not found, 2 no such bug. */
#include "tests/cuda-emulator/selftest/kernels.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static cudaStream_t st;
static bool wrong;

template <class T> static T *device_new(size_t n, int fill = 0)
{
    T *p;
    if (cudaMalloc(&p, n * sizeof(T)) || cudaMemsetAsync(p, fill, n * sizeof(T), st)) exit(2);
    return p;
}
template <class T> static std::vector<T> host_copy(const T *p, size_t n)
{
    std::vector<T> v(n);
    cudaStreamSynchronize(st);
    cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    return v;
}
static void expect(bool ok)
{
    if (ok || wrong) return;
    wrong = true;
    printf("wrong result\n");
}

/* ---- right kernels with one part left out */

template <int MUTANT> static void rmsnorm()
{
    const int rows = 9, c = 160;
    std::vector<uint16_t> x((size_t)(rows * c));
    for (size_t i = 0; i < x.size(); i++) x[i] = (uint16_t)(0x3f00 + i / (size_t)c * 16 + i * 7 % 97);
    uint16_t *dx = device_new<uint16_t>(x.size()), *dy = device_new<uint16_t>(x.size());
    float *dw = device_new<float>((size_t)c, 0x3f);
    cudaStreamSynchronize(st);
    cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice);
    std::vector<uint16_t> y[2];
    for (int i = 0; i < 2; i++) {
        if (i) {
            CU_LAUNCH((rmsnorm_k<128, RMS_RIGHT>), 2, 128, 0, st, reinterpret_cast<bf16 *>(dy),
                      reinterpret_cast<const bf16 *>(dx), dw, rows, c, 1e-6f);
        } else {
            CU_LAUNCH((rmsnorm_k<128, MUTANT>), 2, 128, 0, st, reinterpret_cast<bf16 *>(dy),
                      reinterpret_cast<const bf16 *>(dx), dw, rows, c, 1e-6f);
        }
        y[i] = host_copy(dy, x.size());
    }
    expect(y[0] == y[1]);
    cudaFree(dx);
    cudaFree(dy);
    cudaFree(dw);
}
template <int MUTANT> static void gemm()
{
    const int m = 70, n = 64, k = 128, ld = k;
    std::vector<uint16_t> x((size_t)(m * ld)), w((size_t)(n * ld));
    for (size_t i = 0; i < x.size(); i++) x[i] = (uint16_t)(0x3f00 + i * 11 % 113);
    for (size_t i = 0; i < w.size(); i++) w[i] = (uint16_t)(0xbf00 + i * 13 % 127);
    bf16 *dx = device_new<bf16>(x.size()), *dw = device_new<bf16>(w.size());
    float *dy = device_new<float>((size_t)(m * n));
    cudaStreamSynchronize(st);
    cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice);
    cudaMemcpy(dw, w.data(), w.size() * 2, cudaMemcpyHostToDevice);
    std::vector<float> y[2];
    for (int i = 0; i < 2; i++) {
        if (i) {
            CU_LAUNCH((gemm_k<GEMM_RIGHT>), dim3(1, 2), GEMM_THREADS, gemm_smem(), st, dx, dw, dy, m, n, k,
                      ld);
        } else {
            CU_LAUNCH((gemm_k<MUTANT>), dim3(1, 2), GEMM_THREADS, gemm_smem(), st, dx, dw, dy, m, n, k, ld);
        }
        y[i] = host_copy(dy, (size_t)(m * n));
    }
    expect(memcmp(y[0].data(), y[1].data(), y[0].size() * 4) == 0);
    cudaFree(dx);
    cudaFree(dw);
    cudaFree(dy);
}
static void last_no_fence()
{
    int *x = device_new<int>(256, 1), *part = device_new<int>(8), *count = device_new<int>(1),
        *out = device_new<int>(1);
    CU_LAUNCH((last_block_k<LAST_NO_FENCE>), 8, 32, 0, st, x, part, count, out);
    expect(host_copy(out, 1)[0] == 0x01010100);
    for (int *p : {x, part, count, out}) cudaFree(p);
}
static void warp_no_sync()
{
    int *o = device_new<int>(64);
    CU_LAUNCH((warp_exchange_k<WARP_NO_SYNC>), 1, 64, 0, st, o);
    std::vector<int> v = host_copy(o, 64);
    for (int i = 0; i < 64; i++) expect(v[(size_t)i] == (i ^ 1) * 3 + (i & 32));
    cudaFree(o);
}

/* ---- single faults */

enum fault {
    GLOBAL_PAST,
    GLOBAL_BEFORE,
    STATIC_PAST,
    DYNAMIC_PAST,
    CARVE_OVERRUN,
    DIVERGENT,
    BARRIER_SKIPPED,
    HALF_WARP,
    SOURCE_OUTSIDE,
    MIXED_WARP,
    NO_BARRIER,
    UNINITIALISED,
    NO_WARP_SYNC,
    ONE_WORD,
    SPIN,
    READ_BEFORE_WAIT,
    NEVER_WAITED,
    MISALIGNED,
    ODD_NAMED,
    OTHER_STACK
};
__global__ void fault_k(int *x, int n, int which)
{
    CU_SHARED(s, int[64]);
    CU_SHARED(s2, int[64]);
    CU_SHARED(ptr, int *);
    CU_DYN_SHARED(raw);
    cu_carve cv(raw);
    int *d = cv.take<int>(32), *d2 = cv.take<int>(32);
    const int t = (int)threadIdx.x, l = t & 31;
    s2[t] = 0;
    if (t < 32) d2[t] = 0;
    switch (which) {
    case GLOBAL_PAST: x[n + t] = t; break;
    case GLOBAL_BEFORE: x[t] = x[-1 - t]; break;
    case STATIC_PAST: s[t + 1] = t; break;
    case DYNAMIC_PAST: d2[32 + l] = t; break;
    case CARVE_OVERRUN: d[1 + l] = t; break;
    case DIVERGENT:
        if (t < 32) {
            __syncthreads();
        } else {
            __syncwarp();
            __syncthreads();
        }
        break;
    case BARRIER_SKIPPED:
        if (t < 40) __syncthreads();
        break;
    case HALF_WARP:
        if (l < 16) x[t] = __shfl_sync(CU_FULL, t, 0);
        break;
    case SOURCE_OUTSIDE:
        if (l < 16) x[t] = __shfl_xor_sync(0xffffu, t, 16);
        break;
    case MIXED_WARP:
        if (l & 1) {
            __syncwarp();
        } else {
            x[t] = __shfl_sync(CU_FULL, t, 0);
        }
        break;
    case NO_BARRIER:
        s[t] = t;
        x[t] = s[63 - t];
        break;
    case UNINITIALISED: x[t] = s[t]; break;
    case NO_WARP_SYNC:
        s[t] = t;
        x[t] = s[t ^ 1];
        break;
    case ONE_WORD: x[0] = t; break;
    case SPIN:
        while (atomicAdd(x, 0) == 0) cu_spin();
        break;
    case READ_BEFORE_WAIT:
        cu_cp_async16(d + (t & 7) * 4, x, t < 8);
        cu_cp_async_commit();
        x[t] = d[t & 7];
        cu_cp_async_wait<0>();
        break;
    case NEVER_WAITED:
        if (t < 8) cu_cp_async16(d + t * 4, x, true);
        break;
    case MISALIGNED: x[t] = (int)reinterpret_cast<const float4 *>(x + 1)->x; break;
    case ODD_NAMED: cu_bar_arrive(3, 96 - 32 * (t >> 5)); break;
    case OTHER_STACK: {
        int mine = t;
        if (t == 0) ptr = &mine;
        __syncthreads();
        x[t] = *ptr;
        __syncthreads();
        break;
    }
    }
}
static void fault(int which)
{
    int *x = device_new<int>(64);
    cu_carve cv(nullptr);
    cv.take<int>(32);
    cv.take<int>(32);
    CU_LAUNCH(fault_k, 1, 64, cv.bytes(), st, x, 64, which);
    std::vector<int> v = host_copy(x, 64);
    for (int i = 0; i < 64; i++) {
        if (which == NO_BARRIER) expect(v[(size_t)i] == 63 - i);
        if (which == NO_WARP_SYNC) expect(v[(size_t)i] == (i ^ 1));
        if (which == UNINITIALISED) expect(v[(size_t)i] != -1);
        if (which == READ_BEFORE_WAIT) expect(v[(size_t)i] == 0);
    }
    cudaFree(x);
}

__global__ void big_local_k(int *x)
{
    int big[100000];
    for (int i = 0; i < 100000; i++) big[i] = x[i & 63] + i;
    x[threadIdx.x] = big[x[0] & 1023] + big[99999];
}
__global__ void add_k(int *x, const int *y, int v)
{
    x[threadIdx.x] = (y ? y[threadIdx.x] : x[threadIdx.x]) + v;
}
__global__ void small_carve_k(int *x)
{
    CU_DYN_SHARED(raw);
    cu_carve cv(raw);
    int *a = cv.take<int>(64);
    a[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = a[threadIdx.x] + 1;
}
static int host_words[64];
static void host_side(const char *name)
{
    int *x = device_new<int>(64), *y = device_new<int>(64), *r;
    cudaMallocHost(&r, 256);
    memset(r, 0, 256);
    cudaStreamSynchronize(st);
    if (!strcmp(name, "stack")) CU_LAUNCH(big_local_k, 1, 64, 0, st, x);
    if (!strcmp(name, "two_blocks")) CU_LAUNCH(add_k, 3, 64, 0, st, x, nullptr, 1);
    if (!strcmp(name, "host_pointer")) CU_LAUNCH(add_k, 1, 64, 0, st, x, r, 1);
    if (!strcmp(name, "carve_differs")) CU_LAUNCH(small_carve_k, 1, 64, 64 * sizeof(int), st, x);
    if (!strcmp(name, "device_pointer_on_host")) host_words[0] = *const_cast<volatile int *>(x + 3);
    if (!strcmp(name, "copy_past")) cudaMemcpyAsync(x, r, 260, cudaMemcpyHostToDevice, st);
    if (!strcmp(name, "leak")) {
        cudaFree(y);
        exit(0);
    }
    if (!strcmp(name, "gemm_past")) {
        cublasHandle_t h;
        float *a = device_new<float>(64), one = 1, zero = 0;
        cublasCreate(&h);
        cublasSetStream(h, st);
        cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 9, &one, a, CUDA_R_32F, 8, a, CUDA_R_32F, 9, &zero, a,
                     CUDA_R_32F, 8, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    }
    if (!strcmp(name, "no_stream_sync")) {
        CU_LAUNCH(add_k, 1, 64, 0, st, x, nullptr, 1);
        cudaMemcpyAsync(r, x, 256, cudaMemcpyDeviceToHost, st);
        expect(r[5] == 1);
    }
    if (!strcmp(name, "pinned_reuse")) {
        for (int i = 0; i < 64; i++) r[i] = 1;
        cudaMemcpyAsync(x, r, 256, cudaMemcpyHostToDevice, st);
        r[5] = 2;
        expect(host_copy(x, 64)[5] == 1);
    }
    if (!strcmp(name, "event_missing")) {
        cudaStream_t b;
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        CU_LAUNCH(add_k, 1, 64, 0, st, x, nullptr, 1);
        CU_LAUNCH(add_k, 1, 64, 0, b, y, x, 0);
        cudaStreamSynchronize(b);
        expect(host_copy(y, 64)[0] == 1);
        cudaStreamDestroy(b);
    }
    cudaStreamSynchronize(st);
    cudaFree(x);
    cudaFree(y);
    cudaFreeHost(r);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)();
    } mutants[] = {
        {"rms_no_barrier", rmsnorm<RMS_NO_BARRIER>},
        {"rms_no_second_barrier", rmsnorm<RMS_NO_SECOND_BARRIER>},
        {"rms_short_array", rmsnorm<RMS_SHORT_ARRAY>},
        {"rms_skip_init", rmsnorm<RMS_SKIP_INIT>},
        {"gemm_no_barrier", gemm<GEMM_NO_BARRIER>},
        {"gemm_no_second_barrier", gemm<GEMM_NO_SECOND_BARRIER>},
        {"gemm_weak_wait", gemm<GEMM_WEAK_WAIT>},
        {"gemm_no_predicate", gemm<GEMM_NO_PREDICATE>},
        {"gemm_long_row", gemm<GEMM_LONG_ROW>},
        {"gemm_no_wait_at_end", gemm<GEMM_NO_WAIT_AT_END>},
        {"last_no_fence", last_no_fence},
        {"warp_no_sync", warp_no_sync},
    };
    static const char *const faults[] = {
        "global_past",      "global_before",   "static_past",  "dynamic_past",   "carve_overrun",
        "divergent",        "barrier_skipped", "half_warp",    "source_outside", "mixed_warp",
        "no_barrier",       "uninitialised",   "no_warp_sync", "one_word",       "spin",
        "read_before_wait", "never_waited",    "misaligned",   "odd_named",      "other_stack"};
    static const char *const host_sides[] = {
        "stack", "two_blocks", "host_pointer",   "carve_differs", "device_pointer_on_host", "copy_past",
        "leak",  "gemm_past",  "no_stream_sync", "pinned_reuse",  "event_missing"};
    const char *name = argc > 1 ? argv[1] : "";
    bool known = false;
    cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
    for (auto &m : mutants)
        if (!strcmp(m.name, name)) {
            known = true;
            m.run();
        }
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (!strcmp(faults[i], name)) {
            known = true;
            fault((int)i);
        }
    for (const char *h : host_sides)
        if (!strcmp(h, name)) {
            known = true;
            host_side(name);
        }
    cudaStreamDestroy(st);
    if (!known) fprintf(stderr, "no bug called '%s'\n", name);
    return !known ? 2 : wrong;
}

/* The CUDA language on the host: what a .cu file of kernels/cuda sees instead of the CUDA toolkit when it is
 * compiled with a host C++17 compiler and -DCUEMU (the emulated build). Kernels include
 * kernels/cuda/device.cuh, never this file.
 *
 * What a kernel author may write (the dialect):
 *
 * - Includes: #include "kernels/cuda/device.cuh", backend.h, libc headers. No <cuda_*.h>, cooperative groups,
 *   thrust/cub/CUTLASS, wmma, textures, dynamic parallelism, device-side new/malloc/printf, exceptions, std::
 *   in kernels.
 * - Launches: CU_LAUNCH((kern<64, true>), grid, block, smem_bytes, stream, args...): kernel name, and any
 *   other argument, in parentheses when it has template commas. Arguments by value, trivially copyable, 4096
 *   bytes in all. Always a stream of cudaStreamNonBlocking, never the null stream. Check with
 *   cudaGetLastError(), as on the device.
 * - Indices: threadIdx blockIdx blockDim gridDim warpSize, as in CUDA.
 * - Static shared: CU_SHARED(name, float[32]); inside the kernel or a device function. Plain __shared__ does
 *   not compile here.
 * - Dynamic shared: CU_DYN_SHARED(smem); struct cu_carve cv(smem); float *q = cv.take<float>(n); the host
 *   gets the size from the same sequence of takes on cu_carve cv(nullptr) and passes cv.bytes(). Never
 *   compute it in another way: the emulator puts a poisoned gap behind every piece. More than 48 KiB needs
 *   cudaFuncSetAttribute(kern, cudaFuncAttributeMaxDynamicSharedMemorySize, n), at most 99 KiB if the kernel
 *   is to run on sm_86/89, 163 KiB on sm_80, 227 KiB on sm_90.
 * - Barriers: __syncthreads, __syncthreads_count/_and/_or, __syncwarp(mask), cu_bar_sync/cu_bar_arrive(id
 *   1..15, threads). A barrier is known by its file and line: all threads of a block must meet at the same
 *   line, and two barriers must not share a line. if (block_uniform) return; before the first barrier is
 *   fine; a thread that leaves while others still use barriers is an error.
 * - Warp ops: only *_sync forms: __shfl[_up|_down|_xor]_sync (any trivially copyable type),
 *   __ballot/any/all_sync, __match_any_sync, __reduce_add/max/min/or_sync. The mask must be exactly the lanes
 *   that come. No __activemask. Shuffles order no memory: between a lane's shared write and another lane's
 *   read stands __syncwarp or __syncthreads, even when a shuffle lies between.
 * - Tensor cores: only through device.cuh: cu_mma_bf16_16816, cu_ldmatrix_x4/_x2(_trans), cu_cp_async16/8/4 +
 *   cu_cp_async_commit + cu_cp_async_wait<N>. All 32 lanes of the warp must come. No inline PTX anywhere
 *   else. Copies must be waited for before exit.
 * - Atomics: atomicAdd/Sub/Exch/Min/Max/And/Or/Xor/Inc/Dec/CAS. Flags in memory are read by atomics
 *   (atomicAdd(p, 0)), published with __threadfence(). No float atomics in reductions (THE RULE in
 *   backend.h). Spinning: cu_spin() in the loop, CU_LAUNCH_COOP.
 * - bf16, f16: function forms only: __float2bfloat16 (round to nearest even), __bfloat162float,
 *   __floats2bfloat162_rn, __bfloat1622float2, __float2half, __half2float; no operators on these types.
 * - Vector access: reinterpret_cast to uint4/uint2/float4 (checked for alignment), or cu_pack_bf16 /
 *   cu_lo_bf16 / cu_hi_bf16 on 32-bit words.
 * - Math: fmaf where fusion is meant; a * b + c stays two roundings here and must be compiled with
 *   -fmad=false on the device (the Makefile does), so that both agree. expf tanhf erff logf sqrtf sinf cosf
 *   sincosf powf exp2f log2f are the full-precision functions; __expf __logf __cosf ... and cu_ex2 are the
 *   fast ones (a few units in the last place differ between device and host). rsqrtf, __frcp_rn, __fdividef,
 *   __fadd_rn, __fmul_rn, __fmaf_rn, min, max, __popc, __clz, __ffs, __brev, __byte_perm, __umulhi.
 * - Integers: no shift by the width or more, no signed overflow: the emulated build runs under UBSan.
 * - Loops: CU_UNROLL before a loop instead of #pragma unroll. Large local arrays (over 16 KiB) overflow the
 *   emulated stack.
 * - Constants: static const / constexpr / __constant__ tables with constant initialisers. No
 *   cudaMemcpyToSymbol.
 * - Reads ahead: a vector load may not leave its allocation: pad allocations, or predicate.
 * - Hopper's instructions: through the wrappers of hopper.cuh, in kernels whose body stands under #if
 *   defined(CU_HOPPER_BODY), always with the portable sm_80 path beside it, chosen at run time (CUEMU_CC=90
 *   makes the device one of compute capability 9.0). Barriers and operands lie in dynamic shared memory.
 * - Host side: cuda_backend.cu and the launchers may use the calls declared in emu_api.h, nothing else:
 *   memory, streams, events, graphs (stream capture), attributes, cublasGemmEx, cublasGemmStridedBatchedEx,
 *   cublasLtMatmul. Device pointers are never dereferenced by host code (CUEMU_GUARD=1 makes that a fault).
 *   Anything that a C file calls is extern "C". The table: extern "C" const struct be_ops
 *   *CU_BACKEND_ENTRY(void), a macro of device.cuh: be_cuda_ops in kvasir-cuda.so, be_cuda_host_ops in the
 *   emulated build. be_params.kernels may be any string and is ignored there, be_params.threads too.
 *   caps.host_memory is false in both.
 *
 * What the builds check:
 *
 * - plain: fast; shared memory starts as NaN patterns (0xFF bytes); device memory too; guard page behind
 *   every device allocation and canaries in gaps of shared memory; divergent barriers and warp operations,
 *   deadlocks, livelocks; unwaited copies; launch limits.
 * - asan: the same under AddressSanitizer and UBSan: every out-of-bounds access, misaligned vector access,
 *   host code too.
 * - race: every access of a kernel is checked by an access checker: data races between threads of a block
 *   (happens-before over barriers) and between blocks, bounds, reads of uninitialised shared memory, host
 *   pointers; independent of the schedule that ran.
 * - Environment: CUEMU_SCHED=fwd|rev|fifo|rand, CUEMU_SEED=n (rand), CUEMU_LAZY=1 (streams run late, in a
 *   random legal order), CUEMU_GUARD=1, CUEMU_RESIDENT, CUEMU_PREEMPT, CUEMU_UNINIT=1 (race: uninitialised
 *   device memory too), CUEMU_MEM_MB, CUEMU_STACK_KB, CUEMU_CC=90, CUEMU_WGMMA_WRONG=1 (wrong products of
 *   warpgroups), CUEMU_EXIT_OK, CUEMU_MMA=1 (tensor-core sums in double),
 *   CUEMU_FAIL=WHAT:N[:ERROR[:sticky|hang|slow]] (fault injection, see emu_api.h), CUEMU_STATS, CUEMU_ABORT.
 * - Exit status: 97: stopped by a report. 98: the access checker reported something. */
#ifndef KVASIR_CUEMU_H
#define KVASIR_CUEMU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

/* ---- keywords. __noinline__ and __inline__ stay undefined: the C++ library spells attributes that way. */
#define __global__
#define __device__
#define __host__
#define __constant__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__   _Pragma("GCC error \"shared variables are declared with CU_SHARED or CU_DYN_SHARED\"")
/* Functions that must not be instrumented: they touch the runtime's own records. */
#define CUEMU_NOSAN                                                                                          \
    __attribute__((no_sanitize("thread"), no_sanitize("address"), no_sanitize("undefined"), noinline))
/* Where a call stands in a kernel: barriers and warp operations are known by it. */
#define CUEMU_SITE    const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define CUEMU_AT_SITE file_, line_

/* ---- vector types */
#define CUEMU_VEC2(T, N, A)                                                                                  \
    struct alignas(A) N {                                                                                    \
        T x, y;                                                                                              \
    };                                                                                                       \
    static inline N make_##N(T x, T y)                                                                       \
    {                                                                                                        \
        return N{x, y};                                                                                      \
    }
#define CUEMU_VEC4(T, N, A)                                                                                  \
    struct alignas(A) N {                                                                                    \
        T x, y, z, w;                                                                                        \
    };                                                                                                       \
    static inline N make_##N(T x, T y, T z, T w)                                                             \
    {                                                                                                        \
        return N{x, y, z, w};                                                                                \
    }
CUEMU_VEC2(float, float2, 8)
CUEMU_VEC2(double, double2, 16)
CUEMU_VEC2(int, int2, 8)
CUEMU_VEC2(unsigned, uint2, 8)
CUEMU_VEC2(short, short2, 4)
CUEMU_VEC2(unsigned short, ushort2, 4)
CUEMU_VEC2(unsigned char, uchar2, 2)
CUEMU_VEC2(long long, longlong2, 16)
CUEMU_VEC2(unsigned long long, ulonglong2, 16)
CUEMU_VEC4(float, float4, 16)
CUEMU_VEC4(int, int4, 16)
CUEMU_VEC4(unsigned, uint4, 16)
CUEMU_VEC4(unsigned short, ushort4, 8)
CUEMU_VEC4(unsigned char, uchar4, 4)
CUEMU_VEC4(signed char, char4, 4)
struct uint3 {
    unsigned x, y, z;
};
struct int3 {
    int x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

#include "tests/cuda-emulator/emu_api.h"

/* ---- the running thread, and what the runtime does for it */
namespace cuemu
{
struct Thread { /* the part of the runtime's record that kernels read */
    uint3 tid, bid;
    dim3 bdim, gdim;
    int lane, lin;
};
extern __thread Thread *cur; /* __thread, not thread_local: no wrapper call */

/* A warp operation: each lane posts a record on its own stack; the lane that completes the mask computes for
 * all. */
struct Coll {
    unsigned mask, posted;
    void *in[32];
};
typedef void (*CollFn)(Coll &);
void warp_collective(unsigned mask, CollFn fn, void *in, const char *what, const char *file, int line);
void syncwarp(unsigned mask, const char *file, int line);
void syncthreads(const char *file, int line);
int syncthreads_red(int pred, int kind, const char *file, int line);
void bar_sync(int id, int threads, bool wait, const char *file, int line);
void spin_yield(const char *file, int line);
void *shared_static(const void *tag, size_t bytes, size_t align, const char *name);
void *shared_dynamic();
void shared_gap(void *p, size_t bytes);
void thread_fence(bool wide);
void cp_async(void *smem, const void *gmem, int bytes, int valid, const char *file, int line);
void cp_async_commit();
void cp_async_wait(int pending);
void mma_bf16_fn(Coll &);
void ldmatrix_fn(Coll &);
void atomic_begin(const void *p, int bytes);
void atomic_end(bool changed);
[[noreturn]] void shfl_bad(int lane, int src, const Coll &c);
[[noreturn]] void fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

struct MmaIn {
    const uint32_t *a, *b;
    const float *c;
    float *d;
};
struct LdmatrixIn {
    const void *row;
    uint32_t *r;
    int count, trans;
};

struct Launch {
    const char *name;
    const void *fn;
    dim3 g, b;
    size_t smem;
    bool coop;
};
void enqueue_kernel(const Launch &l, size_t arg_bytes, cudaStream_t s, void (*invoke)(const void *),
                    const void *closure, size_t n);
/* Each thread works on a copy of the parameters on its own stack (they are constants on the device); copied
 * without instrumentation, because the closure lies on the host's heap. */
template <class C> CUEMU_NOSAN void invoke_copy(const void *p)
{
    alignas(C) unsigned char buf[sizeof(C)];
    memcpy(buf, p, sizeof(C));
    (*reinterpret_cast<C *>(buf))();
}
template <class... P, class... A>
static inline void launch(const char *name, bool coop, void (*k)(P...), dim3 g, dim3 b, size_t smem,
                          cudaStream_t s, A... a)
{
    static_assert((std::is_trivially_copyable<std::decay_t<P>>::value && ...),
                  "kernel parameters must be trivially copyable");
    static_assert((!std::is_reference<P>::value && ...), "kernel parameters are passed by value");
    std::tuple<std::decay_t<P>...> args(static_cast<P>(a)...);
    auto body = [k, args] { std::apply(k, args); };
    enqueue_kernel(Launch{name, reinterpret_cast<const void *>(k), g, b, smem, coop},
                   (sizeof(std::decay_t<P>) + ... + 0), s, invoke_copy<decltype(body)>, &body, sizeof body);
}
} // namespace cuemu

#define threadIdx (::cuemu::cur->tid)
#define blockIdx  (::cuemu::cur->bid)
#define blockDim  (::cuemu::cur->bdim)
#define gridDim   (::cuemu::cur->gdim)
static const int warpSize = 32; /* not a macro: cudaDeviceProp has a member of that name */

/* ---- barriers */
static inline void __syncthreads(CUEMU_SITE)
{
    cuemu::syncthreads(CUEMU_AT_SITE);
}
static inline int __syncthreads_count(int p, CUEMU_SITE)
{
    return cuemu::syncthreads_red(p, 0, CUEMU_AT_SITE);
}
static inline int __syncthreads_and(int p, CUEMU_SITE)
{
    return cuemu::syncthreads_red(p, 1, CUEMU_AT_SITE);
}
static inline int __syncthreads_or(int p, CUEMU_SITE)
{
    return cuemu::syncthreads_red(p, 2, CUEMU_AT_SITE);
}
static inline void __syncwarp(unsigned m = 0xffffffffu, CUEMU_SITE)
{
    cuemu::syncwarp(m, CUEMU_AT_SITE);
}
static inline void __threadfence()
{
    cuemu::thread_fence(true);
}
static inline void __threadfence_block()
{
    cuemu::thread_fence(false);
}
static inline void __threadfence_system()
{
    cuemu::thread_fence(true);
}
static inline void __nanosleep(unsigned, CUEMU_SITE)
{
    cuemu::spin_yield(CUEMU_AT_SITE);
}

/* ---- shuffles and votes */
namespace cuemu
{
enum { SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_XOR };
template <class T> struct ShflIn {
    T v, out;
    int arg, width;
};
template <class T, int KIND> CUEMU_NOSAN void shfl_fn(Coll &c)
{
    for (int l = 0; l < 32; l++) {
        if (!(c.posted >> l & 1)) continue;
        ShflIn<T> *p = static_cast<ShflIn<T> *>(c.in[l]);
        int w = p->width, base = l & ~(w - 1), src;
        if (KIND == SHFL_IDX) {
            src = base + (p->arg & (w - 1));
        } else if (KIND == SHFL_UP) {
            src = l - p->arg < base ? l : l - p->arg;
        } else if (KIND == SHFL_DOWN) {
            src = l + p->arg >= base + w ? l : l + p->arg;
        } else {
            src = (l ^ p->arg) >= base + w ? l : l ^ p->arg;
        }
        if (!(c.posted >> src & 1)) shfl_bad(l, src, c);
        p->out = static_cast<ShflIn<T> *>(c.in[src])->v;
    }
}
template <class T, int KIND>
static inline T shfl(unsigned m, T v, int arg, int width, const char *what, const char *file, int line)
{
    static_assert(std::is_trivially_copyable<T>::value, "shuffled values must be trivially copyable");
    ShflIn<T> in;
    in.v = v;
    in.arg = arg;
    in.width = width;
    warp_collective(m, shfl_fn<T, KIND>, &in, what, file, line);
    return in.out;
}
enum {
    VOTE_BALLOT,
    VOTE_ANY,
    VOTE_ALL,
    VOTE_MATCH,
    VOTE_ADD,
    VOTE_MAX,
    VOTE_MIN,
    VOTE_SMAX,
    VOTE_SMIN,
    VOTE_OR,
    VOTE_AND
};
struct VoteIn {
    unsigned pred, out;
};
/* One lane's contribution to a reduction. */
static inline unsigned vote_combine(int kind, unsigned r, unsigned p)
{
    switch (kind) {
    case VOTE_ADD: return r + p;
    case VOTE_MAX: return p > r ? p : r;
    case VOTE_MIN: return p < r ? p : r;
    case VOTE_SMAX: return static_cast<int>(p) > static_cast<int>(r) ? p : r;
    case VOTE_SMIN: return static_cast<int>(p) < static_cast<int>(r) ? p : r;
    case VOTE_AND: return r & p;
    default: return r | p;
    }
}
template <int KIND> CUEMU_NOSAN void vote_fn(Coll &c)
{
    unsigned ballot = 0, r = 0;
    bool first = true;
    for (int l = 0; l < 32; l++) {
        if (!(c.posted >> l & 1)) continue;
        unsigned p = static_cast<VoteIn *>(c.in[l])->pred;
        if (p) ballot |= 1u << l;
        r = first ? p : vote_combine(KIND, r, p);
        first = false;
    }
    for (int l = 0; l < 32; l++) {
        if (!(c.posted >> l & 1)) continue;
        VoteIn *p = static_cast<VoteIn *>(c.in[l]);
        if (KIND == VOTE_BALLOT) {
            p->out = ballot;
        } else if (KIND == VOTE_ANY) {
            p->out = ballot != 0;
        } else if (KIND == VOTE_ALL) {
            p->out = ballot == c.posted;
        } else if (KIND == VOTE_MATCH) {
            p->out = 0;
            for (int j = 0; j < 32; j++)
                if (c.posted >> j & 1 && static_cast<VoteIn *>(c.in[j])->pred == p->pred) p->out |= 1u << j;
        } else {
            p->out = r;
        }
    }
}
template <int KIND>
static inline unsigned vote(unsigned m, unsigned p, const char *what, const char *file, int line)
{
    VoteIn in{p, 0};
    warp_collective(m, vote_fn<KIND>, &in, what, file, line);
    return in.out;
}
} // namespace cuemu

template <class T> static inline T __shfl_sync(unsigned m, T v, int src, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl<T, cuemu::SHFL_IDX>(m, v, src, w, "shfl", CUEMU_AT_SITE);
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl<T, cuemu::SHFL_UP>(m, v, static_cast<int>(d), w, "shfl_up", CUEMU_AT_SITE);
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl<T, cuemu::SHFL_DOWN>(m, v, static_cast<int>(d), w, "shfl_down", CUEMU_AT_SITE);
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32, CUEMU_SITE)
{
    return cuemu::shfl<T, cuemu::SHFL_XOR>(m, v, x, w, "shfl_xor", CUEMU_AT_SITE);
}
static inline unsigned __ballot_sync(unsigned m, int p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_BALLOT>(m, p != 0, "ballot", CUEMU_AT_SITE);
}
static inline int __any_sync(unsigned m, int p, CUEMU_SITE)
{
    return static_cast<int>(cuemu::vote<cuemu::VOTE_ANY>(m, p != 0, "any", CUEMU_AT_SITE));
}
static inline int __all_sync(unsigned m, int p, CUEMU_SITE)
{
    return static_cast<int>(cuemu::vote<cuemu::VOTE_ALL>(m, p != 0, "all", CUEMU_AT_SITE));
}
static inline unsigned __match_any_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_MATCH>(m, p, "match_any", CUEMU_AT_SITE);
}
static inline unsigned __reduce_add_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_ADD>(m, p, "reduce_add", CUEMU_AT_SITE);
}
static inline int __reduce_add_sync(unsigned m, int p, CUEMU_SITE)
{
    return static_cast<int>(
        cuemu::vote<cuemu::VOTE_ADD>(m, static_cast<unsigned>(p), "reduce_add", CUEMU_AT_SITE));
}
static inline unsigned __reduce_max_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_MAX>(m, p, "reduce_max", CUEMU_AT_SITE);
}
static inline int __reduce_max_sync(unsigned m, int p, CUEMU_SITE)
{
    return static_cast<int>(
        cuemu::vote<cuemu::VOTE_SMAX>(m, static_cast<unsigned>(p), "reduce_max", CUEMU_AT_SITE));
}
static inline unsigned __reduce_min_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_MIN>(m, p, "reduce_min", CUEMU_AT_SITE);
}
static inline int __reduce_min_sync(unsigned m, int p, CUEMU_SITE)
{
    return static_cast<int>(
        cuemu::vote<cuemu::VOTE_SMIN>(m, static_cast<unsigned>(p), "reduce_min", CUEMU_AT_SITE));
}
static inline unsigned __reduce_or_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_OR>(m, p, "reduce_or", CUEMU_AT_SITE);
}
static inline unsigned __reduce_and_sync(unsigned m, unsigned p, CUEMU_SITE)
{
    return cuemu::vote<cuemu::VOTE_AND>(m, p, "reduce_and", CUEMU_AT_SITE);
}

/* ---- atomics: all threads run on one OS thread, so a plain read-modify-write is atomic */
namespace cuemu
{
template <class T, class F> CUEMU_NOSAN T rmw(T *p, F f)
{
    atomic_begin(p, sizeof(T));
    T old = *p, now = f(old);
    *p = now;
    atomic_end(memcmp(&old, &now, sizeof(T)) != 0);
    return old;
}
} // namespace cuemu
#define CUEMU_ATOMIC(NAME, EXPR)                                                                             \
    template <class T> static inline T NAME(T *p, std::common_type_t<T> v)                                   \
    {                                                                                                        \
        return cuemu::rmw(p, [v](T o) -> T { return static_cast<T>(EXPR); });                                \
    }
CUEMU_ATOMIC(atomicAdd, o + v)
CUEMU_ATOMIC(atomicSub, o - v)
CUEMU_ATOMIC(atomicExch, (static_cast<void>(o), v))
CUEMU_ATOMIC(atomicMax, o > v ? o : v)
CUEMU_ATOMIC(atomicMin, o < v ? o : v)
CUEMU_ATOMIC(atomicAnd, o &v)
CUEMU_ATOMIC(atomicOr, o | v)
CUEMU_ATOMIC(atomicXor, o ^ v)
CUEMU_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
CUEMU_ATOMIC(atomicDec, o == 0 || o > v ? v : o - 1)
template <class T> static inline T atomicCAS(T *p, std::common_type_t<T> expect, std::common_type_t<T> v)
{
    return cuemu::rmw(p, [expect, v](T o) -> T { return o == expect ? v : o; });
}

/* ---- bit casts and integer intrinsics */
namespace cuemu
{
template <class D, class S> static inline D bit_as(S s)
{
    static_assert(sizeof(D) == sizeof(S), "sizes differ");
    D d;
    memcpy(&d, &s, sizeof d);
    return d;
}
} // namespace cuemu
static inline int __float_as_int(float f)
{
    return cuemu::bit_as<int>(f);
}
static inline unsigned __float_as_uint(float f)
{
    return cuemu::bit_as<unsigned>(f);
}
static inline float __int_as_float(int i)
{
    return cuemu::bit_as<float>(i);
}
static inline float __uint_as_float(unsigned u)
{
    return cuemu::bit_as<float>(u);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned sel)
{
    uint64_t v = static_cast<uint64_t>(y) << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned n = sel >> (4 * i) & 0xf, b = static_cast<unsigned>(v >> (8 * (n & 7))) & 0xff;
        if (n & 8) b = b & 0x80 ? 0xff : 0;
        r |= b << (8 * i);
    }
    return r;
}

/* ---- math. glibc's <math.h> declares __expf and others as its own: rename by macro, after <cmath>. The fast
 * exponential is what the device does, ex2(x * log2 e): its relative error grows with |x|. */
static inline float cuemu_fast_expf(float x)
{
    return exp2f(x * 1.4426950408889634f);
}
static inline float cuemu_fast_logf(float x)
{
    return log2f(x) * 0.69314718055994531f;
}
static inline float cuemu_fast_powf(float a, float b)
{
    return exp2f(b * log2f(a));
}
static inline void cuemu_fast_sincosf(float x, float *s, float *c)
{
    *s = sinf(x);
    *c = cosf(x);
}
#define __expf    cuemu_fast_expf
#define __exp2f   exp2f
#define __logf    cuemu_fast_logf
#define __log2f   log2f
#define __sinf    sinf
#define __cosf    cosf
#define __powf    cuemu_fast_powf
#define __sincosf cuemu_fast_sincosf
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __saturatef(float x)
{
    return x > 0 ? (x > 1 ? 1.0f : x) : 0.0f; /* NaN gives 0 */
}
static inline int __float2int_rn(float x)
{
    return static_cast<int>(nearbyintf(x));
}
static inline int __float2int_rd(float x)
{
    return static_cast<int>(floorf(x));
}
static inline int __float2int_rz(float x)
{
    return static_cast<int>(x);
}
static inline float __int2float_rn(int x)
{
    return static_cast<float>(x);
}
static inline float __uint2float_rn(unsigned x)
{
    return static_cast<float>(x);
}
#define CUEMU_MINMAX(T)                                                                                      \
    static inline T min(T a, T b)                                                                            \
    {                                                                                                        \
        return b < a ? b : a;                                                                                \
    }                                                                                                        \
    static inline T max(T a, T b)                                                                            \
    {                                                                                                        \
        return a < b ? b : a;                                                                                \
    }
CUEMU_MINMAX(int)
CUEMU_MINMAX(unsigned)
CUEMU_MINMAX(long)
CUEMU_MINMAX(unsigned long)
CUEMU_MINMAX(long long)
CUEMU_MINMAX(unsigned long long)
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
static inline void __trap()
{
    cuemu::fatal("__trap()");
}

/* ---- bf16 and f16: storage types with the device's conversions (round to nearest even, canonical NaN), no
 * arithmetic */
struct __nv_bfloat16 {
    uint16_t x_;
};
struct __half {
    uint16_t x_;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
typedef __half half;
typedef __half2 half2;
static inline float __bfloat162float(__nv_bfloat16 h)
{
    return __uint_as_float(static_cast<unsigned>(h.x_) << 16);
}
static inline __nv_bfloat16 __float2bfloat16(float f)
{
    unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return __nv_bfloat16{0x7fff};
    return __nv_bfloat16{static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __float2bfloat16(f);
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16{u};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.x_;
}
static inline float __half2float(__half h)
{
    unsigned s = static_cast<unsigned>(h.x_ >> 15) << 31, e = h.x_ >> 10 & 31u, m = h.x_ & 1023u;
    if (e == 0) {
        float v = ldexpf(static_cast<float>(m), -24);
        return s ? -v : v;
    }
    return __uint_as_float(s | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}
static inline __half __float2half(float f)
{
    unsigned u = __float_as_uint(f), s = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return __half{0x7fff};
    if (a >= 0x477ff000u) return __half{static_cast<uint16_t>(s | 0x7c00)};
    if (a < 0x38800000u)
        return __half{
            static_cast<uint16_t>(s | static_cast<unsigned>(nearbyintf(__uint_as_float(a) * 16777216.0f)))};
    unsigned v = a - 0x38000000u;
    return __half{static_cast<uint16_t>(s | (v + 0xfffu + (v >> 13 & 1)) >> 13)};
}
static inline __half __float2half_rn(float f)
{
    return __float2half(f);
}
static inline __half __ushort_as_half(unsigned short u)
{
    return __half{u};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float lo, float hi)
{
    return __nv_bfloat162{__float2bfloat16(lo), __float2bfloat16(hi)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
static inline __half2 __floats2half2_rn(float lo, float hi)
{
    return __half2{__float2half(lo), __float2half(hi)};
}
static inline float2 __half22float2(__half2 v)
{
    return make_float2(__half2float(v.x), __half2float(v.y));
}
#endif

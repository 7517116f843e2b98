/* Wrappers for Hopper instructions (sm_90a), in addition to device.cuh: barriers in shared memory that count
 * bytes, bulk copies, and the tensor-core products of a warpgroup. Each wrapper has its PTX, compiled for
 * sm_90a alone, and a model in the emulator (tests/cuda-emulator/emu_hopper.cpp) written from the PTX ISA.
 * Kernels that use it have an empty body for all other targets; the portable path is selected at run time.
 *
 * Products: D[64][N] (+)= A[64][16] B[16][N], bf16 with f32 sums, by the four warps of a warpgroup (threads
 * 128 i .. 128 i + 127). D: warp w of the group has rows 16 w ..., its registers as those of mma.m16n8k16 for
 * each eight columns: lane = 4 g + t holds d[4 j], d[4 j + 1] = row g, columns 8 j + 2 t, + 1; d[4 j + 2],
 * d[4 j + 3] = row g + 8. A in registers: as mma.m16n8k16.
 *
 * Operands in shared memory are stored in atoms of 8 rows of 128 bytes, 1024-aligned, whose 16-byte chunks
 * are swizzled: chunk c of row r lies at chunk c ^ r (address bits 4-6 ^= bits 7-9). A descriptor names the
 * first atom:
 *   k along the rows (A, and B as [n][k]):  a row is one m or n, 64 values of k; the next eight m or n are
 *                                           `far` bytes on. Steps of 16 k inside an atom advance the address
 *                                           by 32 bytes.
 *   n along the rows (B as [k][n]):         a row is one k, 64 values of n; the next eight k are `far` bytes
 *                                           on, the next 64 n `wide` bytes.
 *
 * Asynchrony: a wgmma reads shared memory and writes its registers between its issue and the wait for its
 * group. Every group begins with cu_wgmma_fence. A stage is released only after the wait. Ordinary stores and
 * cp.async to shared memory need cu_proxy_fence in the writing thread before the barrier that passes them to
 * a wgmma. */
#ifndef KVASIR_CUDA_HOPPER_CUH
#define KVASIR_CUDA_HOPPER_CUH

#include "kernels/cuda/device.cuh"

/* Whether this compilation has bodies for Hopper's kernels. */
#if defined(CUEMU) || defined(CU_SM90)
#define CU_HOPPER_BODY 1
#endif

/* How long a wait for a barrier may take, in seconds: with `trouble` (the self-check) that is set and the
 * kernel continues unsynchronised; without it the kernel traps. The limit must hold on a busy device: other
 * processes' time slices count too, and compute-sanitizer's racecheck makes a stage of these kernels take
 * more than 0.1 s. */
#define CU_WAIT_CHECK_S 10
#define CU_WAIT_S       30

/* Registers of a thread in a block of one producing and two multiplying warpgroups: of the 168 that each
 * begins with, some are transferred (128 * 72 + 256 * 216 = 384 * 168; more than that would deadlock). */
#define CU_REGS_PRODUCER 72
#define CU_REGS_CONSUMER 216

#if defined(CU_HOPPER_BODY)

#if !defined(CUEMU)
/* ---- wrappers, PTX */

/* With CU_JITTER (`scripts/device-check.sh stress`) threads, or warps, pause at random before and after each
 * step of a pipeline, so that a missing wait gives wrong results. */
template <int LANES = 1> static __device__ __forceinline__ void cu_jitter()
{
#if defined(CU_JITTER)
    uint32_t h = ((uint32_t)clock() ^ (blockIdx.x * 1024 + threadIdx.x / LANES)) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    if (h >> 29 == 0) __nanosleep(h >> 13 & 0x1fff); /* one time in eight, up to 8 us */
#endif
}

/* A barrier in shared memory: a phase ends after `count` arrivals and the announced number of bytes. Phase 0
 * comes first; waiting for parity p returns once the phase of that parity has ended (so for parity 1 at once
 * in the beginning). */
static __device__ __forceinline__ void cu_mbar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cu_smem_addr(bar)), "r"(count) : "memory");
}
/* In the thread that initialised them, before the block's barrier: makes them visible to the copy engine. */
static __device__ __forceinline__ void cu_mbar_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ void cu_mbar_arrive(uint64_t *bar)
{
    cu_jitter();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cu_smem_addr(bar)) : "memory");
}
/* Arrives, and announces bytes of bulk copies before they are issued. */
static __device__ __forceinline__ void cu_mbar_arrive_tx(uint64_t *bar, uint32_t bytes)
{
    cu_jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cu_smem_addr(bar)), "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ bool cu_mbar_try(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.b32 "
                 "%0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(cu_smem_addr(bar)), "r"(parity)
                 : "memory");
    return done != 0;
}
static __device__ __forceinline__ uint64_t cu_nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
static __device__ __forceinline__ void cu_mbar_poll(uint64_t *bar, uint32_t parity, uint32_t *trouble)
{
    if (cu_mbar_try(bar, parity)) return;
    uint64_t begin = cu_nanoseconds();
    for (uint32_t i = 1; !cu_mbar_try(bar, parity); i++) {
        if (i % 64) continue;
        if (trouble && *static_cast<volatile uint32_t *>(trouble)) return;
        if (cu_nanoseconds() - begin < (trouble ? CU_WAIT_CHECK_S : CU_WAIT_S) * 1000000000ull) continue;
        if (!trouble) __trap();
        atomicExch(trouble, 1u);
        return;
    }
}
static __device__ __forceinline__ void cu_mbar_wait(uint64_t *bar, uint32_t parity, uint32_t *trouble)
{
    cu_jitter();
    cu_mbar_poll(bar, parity, trouble);
    cu_jitter();
}
/* Copies from global to shared memory in the background, by the copy engine; counts as `bytes` at the barrier
 * when done. Both addresses and the size are multiples of 16. Called by one thread. */
static __device__ __forceinline__ void cu_bulk_copy(void *smem, const void *gmem, uint32_t bytes,
                                                    uint64_t *bar)
{
    cu_jitter();
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            cu_smem_addr(smem)),
        "l"(__cvta_generic_to_global(gmem)), "r"(bytes), "r"(cu_smem_addr(bar))
        : "memory");
}
static __device__ __forceinline__ void cu_proxy_fence()
{
    cu_jitter();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Called by all threads of the four warps. */
static __device__ __forceinline__ void cu_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cu_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    cu_jitter<32>();
}
/* Waits until at most PENDING groups of this warp are in flight. */
template <int PENDING> static __device__ __forceinline__ void cu_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* The compiler may not move uses of these registers across this: before the first product of a sum and after
 * the last wait. */
template <int REGS> static __device__ __forceinline__ void cu_wgmma_keep(float (&d)[REGS])
{
    CU_UNROLL
    for (int i = 0; i < REGS; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* The same for registers of A: they are read until the wait. */
static __device__ __forceinline__ void cu_wgmma_keep(uint32_t (&a)[4])
{
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
/* Sets the registers of a thread from here on, for a whole warpgroup. */
template <int REGS> static __device__ __forceinline__ void cu_regs_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGS));
}
template <int REGS> static __device__ __forceinline__ void cu_regs_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGS));
}

/* D has N / 2 registers. cu_wgmma: A and B by descriptor, k along the rows; `rows`: how many of the 64 rows
 * of A are valid (the others and their sums may be anything; only the emulator uses it). cu_wgmma_trans: A in
 * registers, B n along the rows. !add: D = A B. */
#define HOP_F4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HOP_F16(i) HOP_F4(i), HOP_F4(i + 4), HOP_F4(i + 8), HOP_F4(i + 12)
#define HOP_F64(i) HOP_F16(i), HOP_F16(i + 16), HOP_F16(i + 32), HOP_F16(i + 48)
#define HOP_P0_4   "%0, %1, %2, %3"
#define HOP_P0_16  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HOP_P16_32 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HOP_P32_48 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HOP_P48_64 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HOP_P64_80 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HOP_P80_96 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HOP_P96_112                                                                                          \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define HOP_P112_128                                                                                         \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HOP_P32  HOP_P0_16 ", " HOP_P16_32
#define HOP_P48  HOP_P32 ", " HOP_P32_48
#define HOP_P64  HOP_P48 ", " HOP_P48_64
#define HOP_P128 HOP_P64 ", " HOP_P64_80 ", " HOP_P80_96 ", " HOP_P96_112 ", " HOP_P112_128
#define HOP_WGMMA(N, REGS, NAMES, A, B, ADD, ...)                                                            \
    static __device__ __forceinline__ void cu_wgmma(float(&d)[REGS], uint64_t a, uint64_t b, bool add,       \
                                                    uint32_t)                                                \
    {                                                                                                        \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" ADD                                            \
                     ", 0;\n\twgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" NAMES "}, %" A      \
                     ", %" B ", p, 1, 1, 0, 0;\n\t}"                                                         \
                     : __VA_ARGS__                                                                           \
                     : "l"(a), "l"(b), "r"((uint32_t)add));                                                  \
    }
#define HOP_WGMMA_TRANS(N, REGS, NAMES, A, B, ADD, ...)                                                      \
    static __device__ __forceinline__ void cu_wgmma_trans(float(&d)[REGS], const uint32_t(&a)[4],            \
                                                          uint64_t b, bool add, uint32_t)                    \
    {                                                                                                        \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" ADD                                            \
                     ", 0;\n\twgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" NAMES "}, {" A      \
                     "}, %" B ", p, 1, 1, 1;\n\t}"                                                           \
                     : __VA_ARGS__                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add));              \
    }
HOP_WGMMA("8", 4, HOP_P0_4, "4", "5", "6", HOP_F4(0))
HOP_WGMMA("32", 16, HOP_P0_16, "16", "17", "18", HOP_F16(0))
HOP_WGMMA("64", 32, HOP_P32, "32", "33", "34", HOP_F16(0), HOP_F16(16))
HOP_WGMMA("128", 64, HOP_P64, "64", "65", "66", HOP_F64(0))
HOP_WGMMA("256", 128, HOP_P128, "128", "129", "130", HOP_F64(0), HOP_F64(64))
HOP_WGMMA_TRANS("64", 32, HOP_P32, "%32, %33, %34, %35", "36", "37", HOP_F16(0), HOP_F16(16))
HOP_WGMMA_TRANS("96", 48, HOP_P48, "%48, %49, %50, %51", "52", "53", HOP_F16(0), HOP_F16(16), HOP_F16(32))
HOP_WGMMA_TRANS("128", 64, HOP_P64, "%64, %65, %66, %67", "68", "69", HOP_F64(0))
HOP_WGMMA_TRANS("256", 128, HOP_P128, "%128, %129, %130, %131", "132", "133", HOP_F64(0), HOP_F64(64))
#endif

/* ---- the same source in both builds */

/* Descriptor of an operand: 128-byte swizzle, the strides as explained above (16-byte units in the
 * descriptor). */
static __device__ __forceinline__ uint64_t cu_wgmma_operand(const void *smem, uint32_t wide, uint32_t far)
{
    return (uint64_t)((cu_smem_addr(smem) & 0x3ffff) >> 4) | (uint64_t)(wide >> 4) << 16 |
           (uint64_t)(far >> 4) << 32 | 1ull << 62;
}
/* Offset of 16-byte chunk c (0..7) of row r in an atom's rows, in bytes. */
static __device__ __forceinline__ uint32_t cu_swizzle(uint32_t r, uint32_t c)
{
    return r * 128 + ((c ^ r) & 7) * 16;
}

#endif /* CU_HOPPER_BODY */
#endif

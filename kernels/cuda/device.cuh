/* The only CUDA header that the .cu files of kernels/cuda include. nvcc gets the CUDA toolkit here. For the
 * emulated build (-DCUEMU) the Makefile includes the emulator's definitions first
 * (tests/cuda-emulator/emu_device.h; emu.h says what a kernel may use). All PTX of the project is in this
 * file and in hopper.cuh; each wrapper has the same semantics in both builds.
 *
 * mma.m16n8k16 fragments (PTX ISA), lane = 4g + t; each 32-bit register holds the two elements of lower,
 * higher index in its low, high half:
 *   A 16x16 row-major: a0 = A[g][2t..], a1 = A[g+8][2t..], a2 = A[g][2t+8..], a3 = A[g+8][2t+8..]
 *   B 16x8 (k by n):   b0 = B[2t..][g], b1 = B[2t+8..][g]
 *                      (pairs run along k: two rows of a matrix stored [n][k])
 *   C, D 16x8 f32:     c0, c1 = C[g][2t], C[g][2t+1];  c2, c3 = the same of row g+8
 *   ldmatrix:          lanes 8i..8i+7 give the addresses of the 8 rows (16 bytes each) of matrix i; lane 4g+t
 *                      receives elements [g][2t], [g][2t+1] of each, with _trans [2t][g], [2t+1][g] */
#ifndef KVASIR_CUDA_DEVICE_CUH
#define KVASIR_CUDA_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(CUEMU)
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define CU_BACKEND_ENTRY be_cuda_ops
#define CU_LAUNCH(kern, grid, block, smem, stream, ...)                                                      \
    (kern)<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)
template <class T> struct cu_ident {
    typedef T type;
};
template <class... P>
static inline void cu_launch_coop(void (*k)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                                  typename cu_ident<P>::type... a)
{
    void *args[] = {static_cast<void *>(&a)...};
    (void)cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(k), grid, block, args, smem, s);
}
#define CU_LAUNCH_COOP(kern, grid, block, smem, stream, ...)                                                 \
    cu_launch_coop(kern, grid, block, smem, stream, ##__VA_ARGS__)
#define CU_SHARED(name, ...) __shared__ __align__(16) typename cu_ident<__VA_ARGS__>::type name
#define CU_DYN_SHARED(name)                                                                                  \
    extern __shared__ __align__(1024) unsigned char cu_dynamic_[];                                           \
    unsigned char *name = cu_dynamic_
#define CU_UNROLL _Pragma("unroll")
#define CU_GAP    0
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CU_SM90 1 /* Hopper-only code (sm_90a); the portable path must exist too */
#endif
#endif

typedef __nv_bfloat16 bf16;
#define CU_FULL 0xffffffffu

/* Dynamic shared memory is carved by the same sequence of takes on the host (base NULL: counts the bytes for
 * the launch) and in the kernel. */
struct cu_carve {
    unsigned char *base_;
    size_t off_;
    __host__ __device__ explicit cu_carve(void *base) : base_(static_cast<unsigned char *>(base)), off_(0)
    {
    }
    template <class T> __host__ __device__ T *take(size_t n, size_t align = 16)
    {
        off_ = (off_ + align - 1) / align * align;
        T *p = base_ ? reinterpret_cast<T *>(base_ + off_) : nullptr;
        off_ += n * sizeof(T);
#if CU_GAP
        size_t end = (off_ + 15) / 16 * 16 + CU_GAP;
        if (base_) ::cuemu::shared_gap(base_ + off_, end - off_);
        off_ = end;
#endif
        return p;
    }
    __host__ __device__ size_t bytes() const
    {
        return off_;
    }
};

#if !defined(CUEMU)
/* ---- wrappers, PTX */

/* d = a * b + c, f32 sums over k = 16 products of bf16. d may be c. Called by all lanes of the warp. */
static __device__ __forceinline__ void cu_mma_bf16_16816(float (&d)[4], const uint32_t (&a)[4],
                                                         const uint32_t (&b)[2], const float (&c)[4])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
                   "f"(c[2]), "f"(c[3]));
}
static __device__ __forceinline__ uint32_t cu_smem_addr(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
static __device__ __forceinline__ void cu_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_smem_addr(row))
                 : "memory");
}
static __device__ __forceinline__ void cu_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_smem_addr(row))
                 : "memory");
}
/* x2: uses the addresses of lanes 0..15; the others must still be valid shared addresses. */
static __device__ __forceinline__ void cu_ldmatrix_x2(uint32_t (&r)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_smem_addr(row))
                 : "memory");
}
static __device__ __forceinline__ void cu_ldmatrix_x2_trans(uint32_t (&r)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_smem_addr(row))
                 : "memory");
}
/* Copies 16 (8, 4) bytes from global to shared memory in the background; !valid writes zeros and does not
 * read gmem (which must still be an aligned address). Both addresses aligned to the size. */
static __device__ __forceinline__ void cu_cp_async16(void *smem, const void *gmem, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cu_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void cu_cp_async8(void *smem, const void *gmem, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(cu_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(valid ? 8 : 0)
                 : "memory");
}
static __device__ __forceinline__ void cu_cp_async4(void *smem, const void *gmem, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cu_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(valid ? 4 : 0)
                 : "memory");
}
static __device__ __forceinline__ void cu_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of this thread's committed groups are pending. Other threads' copies need a barrier
 * after it. */
template <int N> static __device__ __forceinline__ void cu_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Named barriers 1..15; `threads` counts those that sync and those that arrive, a multiple of 32. */
static __device__ __forceinline__ void cu_bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void cu_bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void cu_spin()
{
    __nanosleep(40);
}
static __device__ __forceinline__ float cu_ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/* ---- helpers without PTX, the same source in both builds */

static __device__ __forceinline__ float cu_warp_sum(float v)
{
    CU_UNROLL
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(CU_FULL, v, o);
    return v;
}
static __device__ __forceinline__ float cu_warp_max(float v)
{
    CU_UNROLL
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(CU_FULL, v, o));
    return v;
}
static __device__ __forceinline__ uint32_t cu_pack_bf16(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static __device__ __forceinline__ float cu_lo_bf16(uint32_t u)
{
    return __uint_as_float(u << 16);
}
static __device__ __forceinline__ float cu_hi_bf16(uint32_t u)
{
    return __uint_as_float(u & 0xffff0000u);
}
#endif

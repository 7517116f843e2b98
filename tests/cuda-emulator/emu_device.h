/* What kernels/cuda/device.cuh and hopper.cuh define for nvcc, on the emulator. The Makefile includes this
 * file before each .cu source of the emulated build (-include); no source names it. */
#ifndef KVASIR_CUEMU_DEVICE_H
#define KVASIR_CUEMU_DEVICE_H

#include "tests/cuda-emulator/emu.h"
#include "tests/cuda-emulator/emu_hopper.h"

#ifndef CU_BACKEND_ENTRY
#define CU_BACKEND_ENTRY be_cuda_host_ops
#endif
#define CU_LAUNCH(kern, grid, block, smem, stream, ...)                                                      \
    ::cuemu::launch(#kern, false, kern, dim3(grid), dim3(block), static_cast<size_t>(smem), (stream),        \
                    ##__VA_ARGS__)
#define CU_LAUNCH_COOP(kern, grid, block, smem, stream, ...)                                                 \
    ::cuemu::launch(#kern, true, kern, dim3(grid), dim3(block), static_cast<size_t>(smem), (stream),         \
                    ##__VA_ARGS__)
template <class T> struct cu_ident {
    typedef T type;
};
/* One lookup per thread and call, by the address of a tag that each instance of the declaration has. */
#define CU_SHARED(name, ...)                                                                                 \
    auto &name = *([]() -> typename cu_ident<__VA_ARGS__>::type * {                                          \
        static char tag_;                                                                                    \
        return static_cast<typename cu_ident<__VA_ARGS__>::type *>(                                          \
            ::cuemu::shared_static(&tag_, sizeof(typename cu_ident<__VA_ARGS__>::type), 16, #name));         \
    }())
#define CU_DYN_SHARED(name) unsigned char *name = static_cast<unsigned char *>(::cuemu::shared_dynamic())
#define CU_UNROLL
#define CU_GAP 64 /* bytes of poison behind each piece of dynamic shared memory */

/* ---- wrappers of device.cuh */
static inline void cu_mma_bf16_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                     const float (&c)[4], CUEMU_SITE)
{
    cuemu::MmaIn in = {a, b, c, d};
    cuemu::warp_collective(0xffffffffu, cuemu::mma_bf16_fn, &in, "mma.bf16", CUEMU_AT_SITE);
}
static inline void cu_ldmatrix_x4(uint32_t (&r)[4], const void *row, CUEMU_SITE)
{
    cuemu::LdmatrixIn in = {row, r, 4, 0};
    cuemu::warp_collective(0xffffffffu, cuemu::ldmatrix_fn, &in, "ldmatrix.x4", CUEMU_AT_SITE);
}
static inline void cu_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, CUEMU_SITE)
{
    cuemu::LdmatrixIn in = {row, r, 4, 1};
    cuemu::warp_collective(0xffffffffu, cuemu::ldmatrix_fn, &in, "ldmatrix.x4.trans", CUEMU_AT_SITE);
}
static inline void cu_ldmatrix_x2(uint32_t (&r)[2], const void *row, CUEMU_SITE)
{
    cuemu::LdmatrixIn in = {row, r, 2, 0};
    cuemu::warp_collective(0xffffffffu, cuemu::ldmatrix_fn, &in, "ldmatrix.x2", CUEMU_AT_SITE);
}
static inline void cu_ldmatrix_x2_trans(uint32_t (&r)[2], const void *row, CUEMU_SITE)
{
    cuemu::LdmatrixIn in = {row, r, 2, 1};
    cuemu::warp_collective(0xffffffffu, cuemu::ldmatrix_fn, &in, "ldmatrix.x2.trans", CUEMU_AT_SITE);
}
static inline void cu_cp_async16(void *smem, const void *gmem, bool valid, CUEMU_SITE)
{
    cuemu::cp_async(smem, gmem, 16, valid ? 16 : 0, CUEMU_AT_SITE);
}
static inline void cu_cp_async8(void *smem, const void *gmem, bool valid, CUEMU_SITE)
{
    cuemu::cp_async(smem, gmem, 8, valid ? 8 : 0, CUEMU_AT_SITE);
}
static inline void cu_cp_async4(void *smem, const void *gmem, bool valid, CUEMU_SITE)
{
    cuemu::cp_async(smem, gmem, 4, valid ? 4 : 0, CUEMU_AT_SITE);
}
static inline void cu_cp_async_commit()
{
    cuemu::cp_async_commit();
}
template <int N> static inline void cu_cp_async_wait()
{
    cuemu::cp_async_wait(N);
}
static inline void cu_bar_sync(int id, int threads, CUEMU_SITE)
{
    cuemu::bar_sync(id, threads, true, CUEMU_AT_SITE);
}
static inline void cu_bar_arrive(int id, int threads, CUEMU_SITE)
{
    cuemu::bar_sync(id, threads, false, CUEMU_AT_SITE);
}
static inline void cu_spin(CUEMU_SITE)
{
    cuemu::spin_yield(CUEMU_AT_SITE);
}
static inline float cu_ex2(float x)
{
    return exp2f(x);
}

/* ---- wrappers of hopper.cuh */
static inline void cu_mbar_init(uint64_t *bar, uint32_t count, CUEMU_SITE)
{
    cuemu::mbar_init(bar, count, CUEMU_AT_SITE);
}
static inline void cu_mbar_init_done()
{
    cuemu::proxy_fence();
}
static inline void cu_mbar_arrive(uint64_t *bar, CUEMU_SITE)
{
    cuemu::mbar_arrive(bar, 0, CUEMU_AT_SITE);
}
static inline void cu_mbar_arrive_tx(uint64_t *bar, uint32_t bytes, CUEMU_SITE)
{
    cuemu::mbar_arrive(bar, bytes, CUEMU_AT_SITE);
}
static inline void cu_mbar_wait(uint64_t *bar, uint32_t parity, uint32_t *trouble, CUEMU_SITE)
{
    cuemu::mbar_wait(bar, parity, trouble, CUEMU_AT_SITE);
}
static inline void cu_bulk_copy(void *smem, const void *gmem, uint32_t bytes, uint64_t *bar, CUEMU_SITE)
{
    cuemu::bulk_copy(smem, gmem, bytes, bar, CUEMU_AT_SITE);
}
static inline void cu_proxy_fence()
{
    cuemu::proxy_fence();
}
static inline uint32_t cu_smem_addr(const void *p)
{
    return cuemu::smem_addr(p);
}
static inline void cu_wgmma_fence(CUEMU_SITE)
{
    cuemu::wgmma_fence(CUEMU_AT_SITE);
}
static inline void cu_wgmma_commit(CUEMU_SITE)
{
    cuemu::wgmma_commit(CUEMU_AT_SITE);
}
template <int PENDING> static inline void cu_wgmma_wait(CUEMU_SITE)
{
    cuemu::wgmma_wait(PENDING, CUEMU_AT_SITE);
}
template <int REGS> static inline void cu_wgmma_keep(float (&)[REGS])
{
}
static inline void cu_wgmma_keep(uint32_t (&)[4])
{
}
template <int REGS>
static inline void cu_wgmma(float (&d)[REGS], uint64_t a, uint64_t b, bool add, uint32_t rows, CUEMU_SITE)
{
    cuemu::WgmmaIn in = {a, b, nullptr, d, REGS * 2, rows, add, false};
    cuemu::wgmma(in, CUEMU_AT_SITE);
}
template <int REGS>
static inline void cu_wgmma_trans(float (&d)[REGS], const uint32_t (&a)[4], uint64_t b, bool add,
                                  uint32_t rows, CUEMU_SITE)
{
    cuemu::WgmmaIn in = {0, b, a, d, REGS * 2, rows, add, true};
    cuemu::wgmma(in, CUEMU_AT_SITE);
}
template <int REGS> static inline void cu_regs_less()
{
}
template <int REGS> static inline void cu_regs_more()
{
}
#endif

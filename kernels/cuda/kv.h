/* Where a key or value element lies inside one layer's part of a KV block on the device. A block holds 32
 * positions ("slots"), slot = position mod 32; rows run along the head, for the tensor cores' loads:
 *
 *   layer part = [kv head 0: K | V][kv head 1: K | V] ...
 *   K, V       = [slot][dpad]     dpad = D rounded up to 16 (bf16) or 4 (f32); elements D <= d < dpad are
 *              zero
 *
 * Slots not written yet hold zeros or another finite value: the writer of slot 0 clears what follows the last
 * row of its own call, and a copied block is cleared after its reused part (the same rules as in the CPU's
 * kv_layout.h). So a masked slot's value may be multiplied by a zero probability. Plain C: tests read the
 * cache through it. */
#ifndef KVASIR_CUDA_KV_H
#define KVASIR_CUDA_KV_H

#include "kernels/backend.h"

#if defined(__CUDACC__) || defined(CUEMU)
#define CUDA_KV_FN static inline __host__ __device__
#else
#define CUDA_KV_FN static inline
#endif

#define CUDA_KV_SLOTS 32u

CUDA_KV_FN uint32_t cuda_kv_dpad(enum be_dtype act, uint32_t d)
{
    return act == BE_F32 ? (d + 3) / 4 * 4 : (d + 15) / 16 * 16;
}
/* Elements of K (or of V) of one kv head. */
CUDA_KV_FN size_t cuda_kv_part_elems(enum be_dtype act, uint32_t d)
{
    return (size_t)CUDA_KV_SLOTS * cuda_kv_dpad(act, d);
}
CUDA_KV_FN size_t cuda_kv_head_bytes(enum be_dtype act, uint32_t d)
{
    return 2 * cuda_kv_part_elems(act, d) * (act == BE_F32 ? 4u : 2u);
}

#endif

/* Where a key or value element lies inside one layer's part of a KV block. A block holds 32 positions
 * ("slots"); slot = position mod 32.
 *
 *   layer part = [kv head 0: K | V][kv head 1: K | V] ...
 *     every K and V is 32 * dpad elements, a multiple of 64 bytes
 *
 * bf16 (dpad = D rounded up to 32): both as the second operand of a pair dot product (AMX tile, vdpbf16ps):
 * the contracted index in pairs, the free index in lanes.
 *   K: [slot / 16][d / 2][slot % 16][d % 2]      q.k contracts d; 16 keys in lanes: one AMX tile = 16 d-pairs
 *                                                x 16 keys = 1 KiB, contiguous
 *
 *        group 0 (slots 0..15)                           group 1 (slots 16..31)
 *        d 0,1:  s0d0 s0d1 s1d0 s1d1 ... s15d0 s15d1     d 0,1:  s16d0 s16d1 ...
 *        d 2,3:  s0d2 s0d3 s1d2 s1d3 ...                 ...
 *
 *   V: [slot / 2][d][slot % 2]                    p.v contracts slots; d in lanes: a tile = 16 slot pairs x
 *                                                 16 d, row stride 4 * dpad bytes
 *
 *        slots 0,1:  d0s0 d0s1 d1s0 d1s1 ... d(dpad-1)s1
 *        slots 2,3:  ...
 *
 * f32 (dpad = D rounded up to 16):
 *   K: [d][slot]     V: [slot][d]
 *
 * Guarantees when reading slot s of a block that a row may see (lo <= position <= hi): the element; and zero
 * for D <= d < dpad, except that element D of V is one if D is no multiple of 16, in bf16: it makes the tile
 * product of probabilities and values yield their sum too (kv_v_ones). Slots not written yet hold zeros or
 * another finite value, never NaN or infinity: the writer of slot 0 clears what follows the last row of its
 * own call (a block is reused without being cleared), and a copied block is cleared after its reused part
 * (kv_clear). So a kernel may multiply a masked slot's value by a zero probability; but it must replace
 * masked scores, not add to them. */
#ifndef KVASIR_CPU_KV_LAYOUT_H
#define KVASIR_CPU_KV_LAYOUT_H

#include "kernels/backend.h"

#include <string.h>

#define KV_SLOTS BE_BLOCK_TOKENS
_Static_assert(KV_SLOTS == 32, "two groups of 16 keys");

static inline uint32_t kv_dpad(enum be_dtype act, uint32_t d)
{
    return act == BE_F32 ? (d + 15) / 16 * 16 : (d + 31) / 32 * 32;
}
/* Elements of K (or of V) of one kv head. */
static inline size_t kv_part_elems(enum be_dtype act, uint32_t d)
{
    return (size_t)KV_SLOTS * kv_dpad(act, d);
}
static inline size_t kv_head_bytes(enum be_dtype act, uint32_t d)
{
    return 2 * kv_part_elems(act, d) * be_dtype_bytes(act);
}
/* The layer's part of block-table entry `block_offset`. */
static inline void *kv_layer(const struct be_kv *kv, uint32_t block_offset)
{
    return (char *)kv->arena + (size_t)block_offset * BE_KV_GRAIN + kv->layer_offset;
}
static inline void *kv_k(void *layer, enum be_dtype act, uint32_t d, uint32_t head)
{
    return (char *)layer + head * kv_head_bytes(act, d);
}
static inline void *kv_v(void *layer, enum be_dtype act, uint32_t d, uint32_t head)
{
    return (char *)layer + head * kv_head_bytes(act, d) + kv_part_elems(act, d) * be_dtype_bytes(act);
}
/* Whether element D of every value is one. */
static inline bool kv_v_ones(enum be_dtype act, uint32_t d)
{
    return act == BE_BF16 && d % 16 != 0;
}
/* Element indices inside K and V. */
static inline size_t kv_k_idx(enum be_dtype act, uint32_t dpad, uint32_t slot, uint32_t d)
{
    if (act == BE_F32) return (size_t)d * KV_SLOTS + slot;
    return (((size_t)(slot / 16) * (dpad / 2) + d / 2) * 16 + slot % 16) * 2 + d % 2;
}
static inline size_t kv_v_idx(enum be_dtype act, uint32_t dpad, uint32_t slot, uint32_t d)
{
    if (act == BE_F32) return (size_t)slot * dpad + d;
    return ((size_t)(slot / 2) * dpad + d) * 2 + slot % 2;
}
/* Zeroes the slots from `first` on of one head. */
static inline void kv_clear_head(void *k, void *v, enum be_dtype act, uint32_t dpad, uint32_t first)
{
    if (first >= KV_SLOTS) return;
    if (act == BE_F32) {
        float *keys = (float *)k, *values = (float *)v;
        for (uint32_t i = 0; i < dpad; i++)
            memset(keys + (size_t)i * KV_SLOTS + first, 0, (KV_SLOTS - first) * sizeof *keys);
        memset(values + (size_t)first * dpad, 0, (size_t)(KV_SLOTS - first) * dpad * sizeof *values);
        return;
    }
    uint32_t *words = (uint32_t *)k;
    for (uint32_t s = first / 16 * 16; s < KV_SLOTS; s += 16) {
        uint32_t keep = s < first ? first - s : 0;
        for (uint32_t i = 0; i < dpad / 2; i++)
            memset(words + ((size_t)(s / 16) * (dpad / 2) + i) * 16 + keep, 0, (16 - keep) * sizeof *words);
    }
    uint16_t *values = (uint16_t *)v;
    for (uint32_t i = 0; first % 2 && i < dpad; i++) values[kv_v_idx(act, dpad, first, i)] = 0;
    uint32_t even = (first + 1) / 2 * 2;
    memset(values + (size_t)even * dpad, 0, (size_t)(KV_SLOTS - even) * dpad * sizeof *values);
}

#endif

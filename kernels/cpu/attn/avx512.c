/* Attention for AVX-512: bf16 by vdpbf16ps, f32 by fused multiply-add. See attn/driver.h. The AMX set uses
 * the f32 half. */
#include "kernels/cpu/attn/v16.h"

#include "kernels/cpu/attn/vec.h"

/* The products of quants once more for ARM CPUs with the dot product of bytes (SDOT, ARMv8.2), chosen at run
 * time: integers, so the bits are those of quant_avx2.c without it. */
#if defined(__aarch64__)
#define avx2_linear_set_quants neon_dot_linear_set_quants
#define avx2_linear_quants     neon_dot_linear_quants
#include "kernels/cpu/linear/quant_avx2.c"
#endif

/* Row operations of the avx2 set: rows/vec.h, logits_vec.h and delta_vec.h with this set's vectors. */
#include "kernels/cpu/internal.h"

#include "kernels/cpu/simd/vops_avx2.h"

#include "kernels/cpu/rows/vec.h"

#include "kernels/cpu/rows/logits_vec.h"

#include "kernels/cpu/rows/delta_vec.h"

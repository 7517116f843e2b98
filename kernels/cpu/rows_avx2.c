/* Row operations of the avx2 set: rows_vec.h and logits_vec.h over this set's vectors. */
#include "kernels/cpu/cpu_internal.h"

#include "kernels/cpu/vops_avx2.h"

#include "kernels/cpu/rows_vec.h"

#include "kernels/cpu/logits_vec.h"

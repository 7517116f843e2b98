/* Which kernel sets the backend tests go through: those of the CPU, or (KVASIR_TEST_CUDA) the device, emulated or real. */
#ifndef KVASIR_TEST_BACKEND_SETS_H
#define KVASIR_TEST_BACKEND_SETS_H

#include "kernels/backend.h"

#ifdef KVASIR_TEST_CUDA
#include "tests/lib/staged_ops.h"
#define be_cpu_ops     be_test_ops
#define be_cpu_has     be_test_has
#define BACKEND_SETS   "cuda"
#define BACKEND_ON_CPU 0
#else
#define BACKEND_SETS   "reference", "avx2", "avx512", "amx"
#define BACKEND_ON_CPU 1
#endif
#endif

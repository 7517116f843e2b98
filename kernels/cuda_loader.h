/* The CUDA backend as a library that need not be there: kvasir-cuda.so beside the program, or the file that KVASIR_CUDA_LIBRARY
 * names. It stays loaded until the program ends. */
#ifndef KVASIR_CUDA_LOADER_H
#define KVASIR_CUDA_LOADER_H

#include "kernels/backend.h"

/* The device's table, when library, driver and device are all there; else NULL, and `why` tells what is missing. In this table
 * last_error(NULL) says why the last open() failed. */
const struct be_ops *be_cuda_load(char *why, size_t room);

#endif

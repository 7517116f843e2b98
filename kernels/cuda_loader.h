/* The CUDA backend as a library that need not be there: kvasir-cuda.so beside the program, or the file that
 * KVASIR_CUDA_LIBRARY names. It stays loaded until the program ends. */
#ifndef KVASIR_CUDA_LOADER_H
#define KVASIR_CUDA_LOADER_H

#include "kernels/backend.h"

/* The device's table, when library, driver and device are all there; else NULL, and `why` tells what is
 * missing. In this table last_error(NULL) says why the last open() failed. */
const struct be_ops *be_cuda_load(char *why, size_t room);

/* Fills out[0..max) with the GPUs that are visible; the first one is what be_cuda_load's table runs on.
 * Returns how many there are; 0: `why` tells what is missing. version: of the driver and the runtime, in
 * words; set as soon as the library is there. */
struct be_cuda_device {
    char name[256];
    uint32_t major, minor, multiprocessors; /* compute capability */
    size_t memory_free, memory_total;       /* bytes */
};
uint32_t be_cuda_devices(struct be_cuda_device *out, uint32_t max, char version[96], char *why, size_t room);

#endif

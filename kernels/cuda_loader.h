/* The CUDA backend as an optional library: kvasir-cuda.so next to the program, or the file that
 * KVASIR_CUDA_LIBRARY names. It stays loaded until the program ends. */
#ifndef KVASIR_CUDA_LOADER_H
#define KVASIR_CUDA_LOADER_H

#include "kernels/backend.h"

/* The device's table if library, driver and device are present; else NULL, and `why` says what is missing. In
 * this table last_error(NULL) says why the last open() failed. */
const struct be_ops *be_cuda_load(char *why, size_t room);

/* Fills out[0..max) with the GPUs that are visible; the first one is what be_cuda_load's table runs on.
 * Returns their number; 0: `why` says what is missing. version: of the driver and the runtime, as text; set
 * if the library is present. */
struct be_cuda_device {
    char name[256];
    uint32_t major, minor, multiprocessors; /* compute capability */
    size_t memory_free, memory_total;       /* bytes */
};
uint32_t be_cuda_devices(struct be_cuda_device *out, uint32_t max, char version[96], char *why, size_t room);

#endif

/* Backend tests hand host pointers to a backend whose memory the host can't address. The table that
 * staged_ops() returns copies every array of a call by its exact extent to its own allocation on the device,
 * runs the operation there, waits, and brings the results back; outputs start as NaN patterns. So one set of
 * tests serves the CPU, the emulated device and a real one, and an access past the end of an array leaves its
 * allocation.
 *
 * Kernel set "reference" opens the CPU's plain C backend instead, unstaged, as the reference of tests;
 * "cuda", "auto" and NULL open the device. */
#ifndef KVASIR_TEST_STAGED_OPS_H
#define KVASIR_TEST_STAGED_OPS_H

#include "kernels/backend.h"

/* Around the table of a device; call it once. */
const struct be_ops *staged_ops(const struct be_ops *device);

#endif

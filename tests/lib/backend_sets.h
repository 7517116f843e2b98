/* The kernel sets of the backend and engine tests: those of this CPU; or the device's one, "cuda", with
 * `--backend cuda` on the command line (kvasir-cuda.so, found as by the engine: next to the program or named
 * by KVASIR_CUDA_LIBRARY) and in programs with the emulated device linked in. main calls test_backend_args()
 * first; the macros replace the CPU's table by the choice. */
#ifndef KVASIR_TEST_BACKEND_SETS_H
#define KVASIR_TEST_BACKEND_SETS_H

#include "config/options.h"
#include "kernels/backend.h"

/* Removes `--backend cpu|cuda` from the arguments. Ends the program with a message if the device is
 * missing. */
void test_backend_args(int *argc, char **argv);

#define TEST_SETS 5
extern const char *backend_sets[TEST_SETS]; /* the sets' names, "reference" first; on the device "cuda", and
                                               names that nobody has */
bool test_on_cpu(void);
/* A case is tried with 1 to so many threads: on a device, where they mean nothing, once in short. */
uint32_t test_threads(void);

/* The CPU's table, or the device's through staged_ops(): "reference" is the CPU's in both. */
const struct be_ops *test_ops(void);
bool test_has(const char *kernels);
/* engine_options.backend and .kernels for one of backend_sets. */
enum opt_backend test_engine_backend(const char *set);
const char *test_engine_kernels(const char *set);

#define be_cpu_ops     test_ops
#define be_cpu_has     test_has
#define BACKEND_ON_CPU test_on_cpu()

/* KVASIR_TEST_SHORT=2: for sanitizers: runs the operations, results are judged elsewhere. 3: the same in the
 * smallest sizes, for slow tools (compute-sanitizer's racecheck). */
bool test_briefly(void);
/* Whether case i of a table runs on a set that this CPU has: on all; in short one in three on the slow
 * reference; briefly each on one of them, in turn. */
bool test_takes(size_t i, size_t set);
bool test_in_small(void);

#endif

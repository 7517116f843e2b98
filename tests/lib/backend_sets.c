/* See backend_sets.h. */
#include "tests/lib/backend_sets.h"

#include "kernels/cuda_loader.h"
#include "tests/lib/staged_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef be_cpu_ops
#undef be_cpu_has

/* Present if the emulated device is linked in. */
const struct be_ops *be_cuda_host_ops(void) __attribute__((weak));

const char *backend_sets[TEST_SETS] = {"reference", "avx2", "avx512", "amx", "neon"};
static const struct be_ops *table;
static bool on_device;

void test_backend_args(int *argc, char **argv)
{
    on_device = be_cuda_host_ops != NULL;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--backend") != 0) continue;
        const char *name = i + 1 < *argc ? argv[i + 1] : "";
        if (strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0) {
            fprintf(stderr, "--backend must be cpu or cuda\n");
            exit(2);
        }
        on_device = strcmp(name, "cuda") == 0;
        for (int k = i + 2; k <= *argc; k++) argv[k - 2] = argv[k];
        *argc -= 2;
        break;
    }
    table = be_cpu_ops();
    const char *only = getenv("KVASIR_TEST_SETS"); /* "best": the best of the CPU alone */
    if (only && strcmp(only, "best") != 0) {
        fprintf(stderr, "KVASIR_TEST_SETS must be best\n");
        exit(2);
    }
    for (int i = TEST_SETS - 1; only && i > 0; i--) {
        if (be_cpu_has(backend_sets[i]) && strcmp(backend_sets[0], "reference") == 0)
            backend_sets[0] = backend_sets[i];
        backend_sets[i] = "none";
    }
    if (!on_device) return;
    char why[512];
    const struct be_ops *device = be_cuda_load(why, sizeof why);
    if (!device) {
        fprintf(stderr, "backend cuda: %s\n", why);
        exit(2);
    }
    table = staged_ops(device);
    backend_sets[0] = "cuda";
    for (int i = 1; i < TEST_SETS; i++) backend_sets[i] = "none";
}

bool test_briefly(void)
{
    const char *s = getenv("KVASIR_TEST_SHORT");
    return s && (strcmp(s, "2") == 0 || strcmp(s, "3") == 0);
}

bool test_in_small(void)
{
    const char *s = getenv("KVASIR_TEST_SHORT");
    return s && strcmp(s, "3") == 0;
}

bool test_takes(size_t i, size_t set)
{
    size_t sets = 0, at = 0;
    if (!test_has(backend_sets[set])) return false;
    if (!getenv("KVASIR_TEST_SHORT") || getenv("GOLDEN_VARIANT")) return true;
    for (size_t k = 0; k < TEST_SETS; k++) {
        if (!test_has(backend_sets[k])) continue;
        if (k < set) at++;
        sets++;
    }
    return test_briefly() ? i % sets == at : set > 0 || sets == 1 || i % 3 == 0;
}

bool test_on_cpu(void)
{
    return !on_device;
}

uint32_t test_threads(void)
{
    return on_device && getenv("KVASIR_TEST_SHORT") ? 1 : 3;
}

const struct be_ops *test_ops(void)
{
    if (!table) {
        fprintf(stderr, "main must call test_backend_args first\n");
        abort();
    }
    return table;
}

bool test_has(const char *kernels)
{
    if (!on_device) return be_cpu_has(kernels);
    return strcmp(kernels, "cuda") == 0 || strcmp(kernels, "reference") == 0;
}

enum opt_backend test_engine_backend(const char *set)
{
    return strcmp(set, "cuda") == 0 ? BACKEND_CUDA : BACKEND_CPU;
}

const char *test_engine_kernels(const char *set)
{
    return strcmp(set, "cuda") == 0 ? NULL : set;
}

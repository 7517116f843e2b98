/* Replaces kernels/cpu/dispatch.c if tiles are emulated (tiles.h): the sets are plain C and, if the machine
 * has all but the tiles, amx. */
#include "kernels/cpu/internal.h"

const struct cpu_kernels *cpu_find_kernels(const char *name)
{
    bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vbmi");
    bool any = !name || !strcmp(name, "auto");
    if (has && (any || !strcmp(name, "amx"))) return &cpu_kernels_amx;
    return any || !strcmp(name, "reference") ? &cpu_kernels_reference : NULL;
}

bool be_cpu_has(const char *kernels)
{
    return cpu_find_kernels(kernels) != NULL;
}

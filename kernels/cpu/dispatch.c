/* Which kernel sets this machine can run: on x86-64 from CPUID, the state that the operating system saves on
 * a context switch (XCR0), and for AMX the permission that Linux grants per process. Compiled without wider
 * instruction flags, so the check is always safe. */
#include "kernels/cpu/internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define XCR0_AVX                0x6u     /* SSE and AVX state */
#define XCR0_AVX512             0xe6u    /* and opmask, upper ZMM */
#define XCR0_AMX                0x60000u /* tile configuration and tile data */
#define ARCH_REQ_XCOMP_PERM_NUM 0x1023
#define XFEATURE_XTILEDATA_NUM  18

static uint64_t dispatch__xcr0(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool dispatch__avx2(void)
{
    uint32_t a, b, c, d, a7, b7, c7, d7;
    if ((dispatch__xcr0() & XCR0_AVX) != XCR0_AVX) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C)) return false;
    return __get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) && (b7 & bit_AVX2);
}

static bool dispatch__avx512(void)
{
    uint32_t a, b, c, d;
    if (!dispatch__avx2() || (dispatch__xcr0() & XCR0_AVX512) != XCR0_AVX512) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((b & need) != need || !(c & 1u << 11)) return false;         /* AVX512_VNNI */
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5); /* AVX512_BF16 */
}

static bool dispatch__amx(void)
{
    uint32_t a, b, c, d;
    if (!dispatch__avx512() || (dispatch__xcr0() & XCR0_AMX) != XCR0_AMX) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    uint32_t need = 1u << 22 | 1u << 24 | 1u << 25;         /* AMX_BF16, AMX_TILE, AMX_INT8 */
    if ((d & need) != need || !(c & 1u << 1)) return false; /* AVX512_VBMI */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_NUM, XFEATURE_XTILEDATA_NUM) == 0;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

const struct cpu_kernels *cpu_find_kernels(const char *name)
{
    bool any = !name || !strcmp(name, "auto") || !*name;
#if defined(__x86_64__)
    if ((any || !strcmp(name, "amx")) && dispatch__amx()) return &cpu_kernels_amx;
    if ((any || !strcmp(name, "avx512")) && dispatch__avx512()) return &cpu_kernels_avx512;
    if ((any || !strcmp(name, "avx2")) && dispatch__avx2()) return &cpu_kernels_avx2;
#endif
#if defined(__aarch64__)
    if (any || !strcmp(name, "neon"))
        return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? &cpu_kernels_neon_dot : &cpu_kernels_neon;
#endif
    return any || !strcmp(name, "reference") ? &cpu_kernels_reference : NULL;
}

bool be_cpu_has(const char *kernels)
{
    return cpu_find_kernels(kernels) != NULL;
}

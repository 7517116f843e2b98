/* The emulator's model of Hopper's instructions, as hopper.cuh calls it. Kernels see it through hopper.cuh
 * only. */
#ifndef KVASIR_CUEMU_HOPPER_H
#define KVASIR_CUEMU_HOPPER_H

#include <cstdint>

namespace cuemu
{
void mbar_init(uint64_t *bar, uint32_t count, const char *file, int line);
/* bytes: announced with the arrival. */
void mbar_arrive(uint64_t *bar, uint32_t bytes, const char *file, int line);
/* trouble: hopper.cuh; set where CUEMU_WAIT_LATE is in the environment, for a wait that takes too long. */
void mbar_wait(uint64_t *bar, uint32_t parity, uint32_t *trouble, const char *file, int line);
void bulk_copy(void *smem, const void *gmem, uint32_t bytes, uint64_t *bar, const char *file, int line);
void proxy_fence();
uint32_t smem_addr(const void *p);

/* One lane's part of a product. */
struct WgmmaIn {
    uint64_t a, b;      /* descriptors */
    const uint32_t *ar; /* four registers of A, or NULL: by descriptor */
    float *d;           /* n / 2 registers */
    int n;
    uint32_t rows; /* of A that are there */
    bool add;
    bool trans; /* B has n along its rows */
};
void wgmma(const WgmmaIn &in, const char *file, int line);
void wgmma_fence(const char *file, int line);
void wgmma_commit(const char *file, int line);
void wgmma_wait(int pending, const char *file, int line);
} // namespace cuemu
#endif

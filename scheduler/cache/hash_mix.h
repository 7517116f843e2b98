/* The mixing step of the scheduler's seeded hash tables (splitmix64's finaliser). Pure; finds candidates
 * only: keys are compared in full. */
#ifndef KVASIR_HASH_MIX_H
#define KVASIR_HASH_MIX_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* n: a multiple of 8. */
static inline uint64_t hash_mix_bytes(uint64_t h, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w;
        memcpy(&w, b + i, 8);
        h = hash_mix(h ^ w);
    }
    return h;
}

#endif

/* The monotonic clock. */
#ifndef KVASIR_CLOCK_H
#define KVASIR_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static inline uint64_t now_us(void)
{
    return (uint64_t)now_ns() / 1000u;
}

static inline double now_s(void)
{
    return (double)now_ns() * 1e-9;
}

#endif

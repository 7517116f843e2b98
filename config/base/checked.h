/* Overflow-checked arithmetic on sizes that come from a file or the network. Each returns true when the
 * result did not fit. */
#ifndef KVASIR_CHECKED_H
#define KVASIR_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mul_overflows(size_t a, size_t b, size_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}

static inline bool add_overflows(size_t a, size_t b, size_t *out)
{
    return __builtin_add_overflow(a, b, out);
}

#endif

/* Assertions for programmer errors. ASSERT is always on; ASSERT_SLOW (O(n) checks) only with -DSLOW_ASSERTS.
 * Input from files and the network is never asserted: it gets a status. */
#ifndef KVASIR_ASSERT_H
#define KVASIR_ASSERT_H

#include "config/base/log.h"

#include <stdlib.h>

#define ASSERT(cond)                                                                                         \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) {                                                                  \
            (void)log_print(2, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #cond);                  \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* As ASSERT(a op b) for integers, and prints both values. */
#define ASSERT_CMP(a, op, b)                                                                                 \
    do {                                                                                                     \
        long long a_ = (long long)(a), b_ = (long long)(b);                                                  \
        if (__builtin_expect(!(a_ op b_), 0)) {                                                              \
            (void)log_print(2, "%s:%d: assertion failed: %s %s %s (%lld, %lld)\n", __FILE__, __LINE__, #a,   \
                            #op, #b, a_, b_);                                                                \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

#ifdef SLOW_ASSERTS
#define ASSERT_SLOW(cond) ASSERT(cond)
#else
#define ASSERT_SLOW(cond) ((void)0)
#endif

#define UNREACHABLE() ASSERT(!"unreachable")

#endif

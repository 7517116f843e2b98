/* Assertions for programmer errors. ASSERT is always on; ASSERT_SLOW (O(n) checks) only with -DSLOW_ASSERTS.
 * Input from files and the network is never asserted: errors there are returned as a status. */
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

/* As ASSERT, with a printf-style message. */
#define ASSERT_MSG(cond, format, ...)                                                                        \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) {                                                                  \
            (void)log_print(2, "%s:%d: assertion failed: " format "\n", __FILE__, __LINE__, __VA_ARGS__);    \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* A state of an object: its name and a bit mask of allowed next states. */
struct state_rule {
    const char *name;
    unsigned next;
};

/* Asserts that the object (named by format and values) may make this transition. */
#define ASSERT_NEXT(rules, from, to, format, ...)                                                            \
    ASSERT_MSG((rules)[from].next & 1u << (to), format " can't go from %s to %s", __VA_ARGS__,               \
               (rules)[from].name, (rules)[to].name)

#ifdef SLOW_ASSERTS
#define ASSERT_SLOW(cond) ASSERT(cond)
#else
#define ASSERT_SLOW(cond) ((void)0)
#endif

#define UNREACHABLE() ASSERT(!"unreachable")

#endif

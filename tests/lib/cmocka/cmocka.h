/* The part of cmocka that the tests of the core use, for machines with a GPU but without cmocka: the Makefile
 * uses this header if the library is missing (CMOCKA=none forces it). The same names and semantics; a failed
 * assertion leaves its test by longjmp and the next one runs; the exit status counts the failures. One
 * thread. No mocks, no allocation checks. */
#ifndef KVASIR_TEST_CMOCKA_H
#define KVASIR_TEST_CMOCKA_H

#include <fnmatch.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};
#define cmocka_unit_test(f)                                                                                  \
    {                                                                                                        \
#f, f, NULL, NULL, NULL                                                                              \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                  \
    {                                                                                                        \
#f, f, setup, teardown, NULL                                                                         \
    }

enum cmshim_end { CMSHIM_RUNS, CMSHIM_FAILED, CMSHIM_SKIPPED };
struct cmshim {
    jmp_buf leave;
    enum cmshim_end end;
};
static inline struct cmshim *cmshim_self(void)
{
    static struct cmshim self;
    return &self;
}

__attribute__((noreturn)) static inline void cmshim_leave(enum cmshim_end end)
{
    struct cmshim *s = cmshim_self();
    fflush(stdout);
    s->end = end;
    longjmp(s->leave, 1);
}
__attribute__((noreturn, format(printf, 3, 4))) static inline void cmshim_fail(const char *file, int line,
                                                                               const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "[  ERROR   ] --- ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n[   LINE   ] --- %s:%d: error: Failure!\n", file, line);
    va_end(ap);
    cmshim_leave(CMSHIM_FAILED);
}
__attribute__((format(printf, 1, 2))) static inline void print_message(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
}
#define fail_msg(...) cmshim_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()        fail_msg("fail()")
#define skip()        cmshim_leave(CMSHIM_SKIPPED)

/* Numbers are compared as cmocka does: as the widest unsigned integer. */
static inline void cmshim_ints(uintmax_t a, uintmax_t b, int equal, const char *file, int line)
{
    if ((a == b) != equal) cmshim_fail(file, line, "%#" PRIxMAX " %s %#" PRIxMAX, a, equal ? "!=" : "==", b);
}
static inline void cmshim_memory(const void *a, const void *b, size_t n, int equal, const char *file,
                                 int line)
{
    const unsigned char *x = a, *y = b;
    size_t at = 0;
    while (at < n && x[at] == y[at]) at++;
    if (equal && at < n)
        cmshim_fail(file, line, "byte %zu of %zu differs: %#04x, %#04x", at, n, x[at], y[at]);
    if (!equal && at == n) cmshim_fail(file, line, "%zu bytes are the same", n);
}
static inline void cmshim_strings(const char *a, const char *b, int equal, const char *file, int line)
{
    if ((strcmp(a, b) == 0) != equal) cmshim_fail(file, line, "\"%s\" %s \"%s\"", a, equal ? "!=" : "==", b);
}
static inline void cmshim_range(uintmax_t v, uintmax_t lo, uintmax_t hi, const char *file, int line)
{
    if (v < lo || v > hi) cmshim_fail(file, line, "%ju is not within %ju and %ju", v, lo, hi);
}
#define cmshim_int(v) ((uintmax_t)(intmax_t)(v))
#define assert_true(c)                                                                                       \
    do {                                                                                                     \
        if (!(c)) cmshim_fail(__FILE__, __LINE__, "%s", #c);                                                 \
    } while (0)
#define assert_false(c)                                                                                      \
    do {                                                                                                     \
        if (c) cmshim_fail(__FILE__, __LINE__, "not: %s", #c);                                               \
    } while (0)
#define assert_null(p)                   assert_true((p) == NULL)
#define assert_non_null(p)               assert_true((p) != NULL)
#define assert_ptr_equal(a, b)           assert_true((const void *)(a) == (const void *)(b))
#define assert_ptr_not_equal(a, b)       assert_true((const void *)(a) != (const void *)(b))
#define assert_int_equal(a, b)           cmshim_ints(cmshim_int(a), cmshim_int(b), 1, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)       cmshim_ints(cmshim_int(a), cmshim_int(b), 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)     cmshim_memory(a, b, n, 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, n) cmshim_memory(a, b, n, 0, __FILE__, __LINE__)
#define assert_string_equal(a, b)        cmshim_strings(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b)    cmshim_strings(a, b, 0, __FILE__, __LINE__)
#define assert_in_range(v, lo, hi)                                                                           \
    cmshim_range(cmshim_int(v), cmshim_int(lo), cmshim_int(hi), __FILE__, __LINE__)

static inline enum cmshim_end cmshim_run(const struct CMUnitTest *t)
{
    struct cmshim *s = cmshim_self();
    static void *state; /* changed by set-up and read after setjmp */
    state = t->initial_state;
    s->end = CMSHIM_RUNS;
    if (setjmp(s->leave) == 0) {
        if (t->setup_func && t->setup_func(&state) != 0) cmshim_fail(t->name, 0, "setup failed");
        t->test_func(&state);
    }
    volatile enum cmshim_end end = s->end;
    if (setjmp(s->leave) == 0) {
        if (t->teardown_func && t->teardown_func(&state) != 0) end = CMSHIM_FAILED;
    } else {
        end = CMSHIM_FAILED; /* an assertion of the teardown's */
    }
    return end;
}
static inline int cmshim_group(const char *group, const struct CMUnitTest *tests, size_t n,
                               CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *only = getenv("TEST_ONLY");
    int ran = 0, failed = 0;
    void *state = NULL;
    if (setup && setup(&state) != 0) return 1;
    printf("[==========] %s: %zu test(s).\n", group, n);
    for (size_t i = 0; i < n; i++) {
        if (only && fnmatch(only, tests[i].name, 0) != 0) continue;
        struct CMUnitTest t = tests[i];
        if (!t.initial_state) t.initial_state = state;
        printf("[ RUN      ] %s\n", t.name);
        fflush(stdout);
        enum cmshim_end end = cmshim_run(&t);
        ran++;
        failed += end == CMSHIM_FAILED;
        printf("%s %s\n",
               end == CMSHIM_FAILED    ? "[  FAILED  ]"
               : end == CMSHIM_SKIPPED ? "[  SKIPPED ]"
                                       : "[       OK ]",
               t.name);
        fflush(stdout);
    }
    if (teardown && teardown(&state) != 0) failed++;
    printf("[==========] %d test(s) run, %d failed.\n", ran, failed);
    return failed + (ran == 0);
}
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                            \
    cmshim_group(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests(tests, setup, teardown)                                                       \
    cmocka_run_group_tests_name(#tests, tests, setup, teardown)

#endif

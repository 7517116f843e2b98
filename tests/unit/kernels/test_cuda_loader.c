/* Without the CUDA backend: a reason, never a crash; and the engine's choice of a backend. */
#include "engine/engine.h"
#include "kernels/cuda_loader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *reason(const char *library)
{
    static char why[512];
    if (library) setenv("KVASIR_CUDA_LIBRARY", library, 1);
    else unsetenv("KVASIR_CUDA_LIBRARY");
    why[0] = 0;
    assert_null(be_cuda_load(why, sizeof why));
    assert_true(strlen(why) > 0);
    return why;
}

static void test_missing(void **state)
{
    (void)state;
    assert_string_equal(reason(NULL), "the CUDA backend is not built (make cuda)");
    assert_non_null(strstr(reason("/nonexistent/kvasir-cuda.so"), "/nonexistent/kvasir-cuda.so"));
    assert_non_null(strstr(reason("libm.so.6"), "another version"));
    char text[8];
    setenv("KVASIR_CUDA_LIBRARY", "/nonexistent/kvasir-cuda.so", 1);
    memset(text, 'x', sizeof text);
    assert_null(be_cuda_load(text, 4)); /* the reason is cut, not written beyond its room */
    assert_true(memchr(text, 0, 4) != NULL && text[4] == 'x');
}

/* A copy that was cut short: dlopen would map what its headers say, and the first touch behind the file's end
 * is SIGBUS. */
static void test_cut_short(void **state)
{
    (void)state;
    char path[] = "/tmp/kvasir-library-XXXXXX";
    static char all[4 << 20];
    FILE *own = fopen("/proc/self/exe", "rb"); /* any ELF file will do */
    assert_non_null(own);
    size_t n = fread(all, 1, sizeof all, own);
    fseek(own, 0, SEEK_END);
    size_t whole = (size_t)ftell(own);
    fclose(own);
    close(mkstemp(path));
    static const size_t at[] = {64, 100, 1000, 5000, 100000};
    for (size_t i = 0; i <= sizeof at / sizeof *at; i++) {
        size_t len = i < sizeof at / sizeof *at ? at[i] : whole - 1 < n ? whole - 1 : n;
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(all, 1, len, f), len);
        fclose(f);
        assert_non_null(strstr(reason(path), "cut short"));
    }
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_options opt = {.model_dir = "models/demo",
                                 .backend = BACKEND_CUDA,
                                 .kv_bytes = (uint64_t)8 << 20,
                                 .context_max = 256};
    assert_int_equal(engine_open(&opt, &e, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "cut short"));
    opt.backend = BACKEND_AUTO;
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    engine_close(e);
    unlink(path);
}

static void test_devices(void **state)
{
    (void)state;
    struct be_cuda_device d[2];
    char version[96], why[512], text[4096];
    struct err err = {0};
    setenv("KVASIR_CUDA_LIBRARY", "/nonexistent/kvasir-cuda.so", 1);
    assert_int_equal(be_cuda_devices(d, 2, version, why, sizeof why), 0);
    assert_string_equal(version, "");
    assert_non_null(strstr(why, "/nonexistent/"));
    assert_int_equal(engine_devices(text, sizeof text, &err), ST_OK);
    assert_memory_equal(text, "CPU  ", 5);
    assert_non_null(strstr(text, "kernel sets:"));
    assert_non_null(strstr(text, " reference\n"));
    assert_non_null(strstr(text, "\nGPU        none: "));
    assert_int_not_equal(engine_devices(text, 20, &err), ST_OK); /* and writes no more than that */
}

static void test_engine(void **state)
{
    (void)state;
    struct engine *e = NULL;
    struct err err = {0};
    setenv("KVASIR_CUDA_LIBRARY", "/nonexistent/kvasir-cuda.so", 1);
    struct engine_options opt = {.model_dir = "models/demo", .backend = BACKEND_CUDA};
    assert_int_equal(engine_open(&opt, &e, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "backend cuda: "));
    assert_non_null(strstr(err.msg, "/nonexistent/"));
    assert_null(e);
    opt.backend = BACKEND_AUTO;
    opt.kv_bytes = (uint64_t)8 << 20;
    opt.context_max = 256;
    assert_int_equal(engine_open(&opt, &e, &err), ST_OK);
    engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_missing), cmocka_unit_test(test_cut_short),
                                       cmocka_unit_test(test_devices), cmocka_unit_test(test_engine)};
    return cmocka_run_group_tests_name("CUDA loader", tests, NULL, NULL);
}

/* The content of checkpoints as a hash: the same wherever it lies, another after any change, also in place.
 */
#include "server/receipts/checkpoint_id.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static char root[] = "/tmp/kvasir-test-XXXXXX", memo[64];

static const char *in(const char *name)
{
    static char path[4][128];
    static int turn;
    char *at = path[turn++ % 4];
    snprintf(at, sizeof path[0], "%s/%s", root, name);
    return at;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void id_of(const char *dir, uint8_t out[32])
{
    const char *paths[] = {in(dir), NULL};
    struct err err;
    assert_int_equal(checkpoint_id(paths, 2, memo, out, &err), ST_OK);
}

static size_t memo_bytes(void)
{
    struct stat st;
    return stat(memo, &st) ? 0 : (size_t)st.st_size;
}

/* As if the file had been there for long: only then its hash is remembered. */
static void age(void)
{
    nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 100000000}, NULL);
}

static void test_content(void **state)
{
    uint8_t a[32], b[32];
    (void)state;
    put("a/model.safetensors", "weights");
    put("a/config.json", "{}");
    put("b/model.safetensors", "weights");
    put("b/config.json", "{}");
    id_of("a", a);
    id_of("b", b);
    assert_memory_equal(a, b, 32);
    put("b/README.md", "not part of it");
    id_of("b", b);
    assert_memory_equal(a, b, 32);
    put("b/config.json", "{ }");
    id_of("b", b);
    assert_memory_not_equal(a, b, 32);
    const char *paths[] = {NULL, in("a")}; /* as a draft model */
    struct err err;
    assert_int_equal(checkpoint_id(paths, 2, memo, b, &err), ST_OK);
    assert_memory_not_equal(a, b, 32);
    paths[1] = in("nothing");
    assert_int_equal(checkpoint_id(paths, 2, memo, b, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.msg, "nothing"));
}

/* One byte changed in place, with the old size and mtime. */
static void test_in_place(void **state)
{
    uint8_t a[32], b[32];
    struct stat st;
    (void)state;
    put("a/model.safetensors", "weights");
    id_of("a", a);
    age();
    id_of("a", b);
    assert_true(memo_bytes() > 0);
    assert_memory_equal(a, b, 32);
    assert_int_equal(stat(in("a/model.safetensors"), &st), 0);
    int fd = open(in("a/model.safetensors"), O_WRONLY);
    assert_int_equal(pwrite(fd, "W", 1, 0), 1);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
    id_of("a", b);
    assert_memory_not_equal(a, b, 32);
}

/* A known file is not read again, and a broken memo is not believed. */
static void test_memo(void **state)
{
    uint8_t a[32], b[32];
    (void)state;
    put("a/model.safetensors", "weights");
    age();
    id_of("a", a);
    char line[256] = "";
    FILE *f = fopen(memo, "r+");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && !strstr(line, " 7 ")) {
    }
    fseek(f, -2, SEEK_CUR); /* the last digit of the hash of 7 bytes */
    fputc(line[strlen(line) - 2] == '0' ? '1' : '0', f);
    fclose(f);
    id_of("a", b);
    assert_memory_not_equal(a, b, 32); /* it came from there */
    assert_int_equal(truncate(memo, 3), 0);
    id_of("a", b);
    assert_memory_equal(a, b, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_memo),
    };
    if (!mkdtemp(root) || mkdir(in("a"), 0700) || mkdir(in("b"), 0700)) return 1;
    snprintf(memo, sizeof memo, "%s/memo", root);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const names[] = {"a/model.safetensors",
                                        "a/config.json",
                                        "b/model.safetensors",
                                        "b/config.json",
                                        "b/README.md",
                                        "memo",
                                        "a",
                                        "b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) (void)remove(in(names[i]));
    (void)rmdir(root);
    return failed;
}

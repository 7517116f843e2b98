/* `kvasir cache`: what it prints and deletes, and its exit codes. */
#include "scheduler/cache/cache_store.h"
#include "server/cache_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char top[] = "/tmp/kvasir-cache-XXXXXX", printed[4096];

/* Returns the exit status; `printed` is what it wrote on stdout. */
static int cache(const char *what, const char *size)
{
    char *argv[] = {"cache", (char *)what, top, (char *)size};
    FILE *f = tmpfile();
    assert_non_null(f);
    int saved = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(fileno(f), STDOUT_FILENO);
    int rc = cache_command(size ? 4 : 3, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(f);
    printed[fread(printed, 1, sizeof printed - 1, f)] = '\0';
    fclose(f);
    return rc;
}

static void fill(const char *about, uint8_t binding, uint32_t records)
{
    struct cache_store *s;
    struct err err = {{0}};
    struct cache_store_options o = {.dir = top, .bytes_max = 1 << 24, .about = about};
    memset(o.binding, binding, sizeof o.binding);
    assert_int_equal(cache_store_open(&o, &s, &err), ST_OK);
    for (uint32_t i = 0; i < records; i++) {
        struct store_record r = {.kind = i ? RECORD_KV : RECORD_IMAGE, .meta = &binding, .meta_bytes = 1};
        r.payload_bytes = 5000;
        assert_true(cache_store_put(s, &r, calloc(1, 5000)) > 0);
    }
    assert_true(cache_store_flush(s, 20000));
    assert_int_equal(cache("ls", NULL), 0); /* reading goes on beside a server */
    assert_int_equal(cache("prune", NULL), 1);
    cache_store_close(s);
}

static void test_command(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(top));
    assert_int_equal(cache("ls", NULL), 1);
    assert_int_equal(cache("prune", NULL), 1);
    assert_int_equal(cache("what", NULL), 2);
    assert_int_equal(cache("ls", "1M"), 2);
    assert_int_equal(cache("prune", "1X"), 2);
    fill("model A, bf16\n", 1, 3);
    fill("model B, int8", 2, 5);
    assert_int_equal(cache("ls", NULL), 0);
    assert_non_null(strstr(printed, "model A, bf16? "));
    assert_non_null(strstr(printed, "2 KV blocks, 0 windows, 0 states, 1 images"));
    assert_non_null(strstr(printed, "8 records, 0 damaged, 0 other files; 0.1 MiB"));
    assert_int_equal(cache("verify", NULL), 0);

    char path[256];
    snprintf(path, sizeof path, "%s/kvasir-cache/0000000000000002-0101010101010101", top);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 3000, SEEK_SET);
    fputc(1, f);
    fclose(f);
    snprintf(path, sizeof path, "%s/kvasir-cache/notes", top);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(cache("ls", NULL), 0); /* reads no payloads */
    assert_int_equal(cache("verify", NULL), 1);
    assert_non_null(strstr(printed, "0000000000000002-0101010101010101: damaged"));
    assert_int_equal(cache("prune", "40K"), 0); /* of two pages each */
    assert_non_null(strstr(printed, "8 records, 1 damaged, 1 other files; 2 more deleted; 0.0 MiB"));
    assert_int_equal(cache("ls", NULL), 0);
    assert_null(strstr(printed, "model A"));
    assert_non_null(strstr(printed, "5 records, 0 damaged"));
    assert_int_equal(cache("prune", NULL), 0);
    assert_int_equal(cache("ls", NULL), 0);
    assert_non_null(strstr(printed, "0 records, 0 damaged, 1 other files"));
    unlink(path);
    snprintf(path, sizeof path, "%s/kvasir-cache/lock", top);
    unlink(path);
    snprintf(path, sizeof path, "%s/kvasir-cache", top);
    assert_int_equal(rmdir(path), 0); /* nothing else is left */
    rmdir(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_command)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A checkpoint that is cut short while it is mapped: one line that names the file and exit code 1; any other
 * SIGBUS stays what it is. */
#include "engine/checkpoint/safetensors.h"
#include "server/bus_error.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 20 };
static char path[] = "/tmp/kvasir-bus-XXXXXX";

static void write_checkpoint(void)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1048576],\"data_offsets\":[0,1048576]}}";
    uint64_t len = sizeof header - 1;
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &len, 8), 8);
    assert_int_equal(write(fd, header, len), (ssize_t)len);
    assert_int_equal(ftruncate(fd, (off_t)(8 + len) + BYTES), 0);
    close(fd);
}

/* Runs `child` in a process of its own with what it says on stderr in said. Returns the wait status. */
static int run(void (*child)(void), char said[512])
{
    int to[2], status;
    assert_int_equal(pipe(to), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(to[1], STDERR_FILENO);
        bus_error_catch();
        child();
        _exit(0);
    }
    close(to[1]);
    size_t n = 0;
    for (ssize_t got; n < 511 && (got = read(to[0], said + n, 511 - n)) > 0;) n += (size_t)got;
    said[n] = '\0';
    close(to[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void read_cut_checkpoint(void)
{
    struct stf_files *files;
    struct err err;
    if (stf_open_file(path, &files, &err) || truncate(path, 4096)) _exit(2);
    const volatile char *data = stf_at(files, 0)->data;
    _exit(data[BYTES / 2] ? 3 : 4);
}

static void read_other_mapping(void)
{
    const volatile char *p = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, open(path, O_RDONLY), 0);
    if (truncate(path, 0)) _exit(2);
    _exit(p[4096] ? 3 : 4);
}

static void be_sent_one(void)
{
    kill(getpid(), SIGBUS);
}

static void test_cut_short(void **state)
{
    (void)state;
    char said[512], want[512];
    write_checkpoint();
    int status = run(read_cut_checkpoint, said);
    snprintf(
        want, sizeof want,
        "kvasir: %s: can't be read: it was cut short while it was being loaded, or the disk has failed\n",
        path);
    assert_string_equal(said, want);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    write_checkpoint();
    status = run(read_other_mapping, said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    assert_string_equal(said, "");
    status = run(be_sent_one, said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static void test_which_file(void **state)
{
    (void)state;
    struct stf_files *files;
    struct err err;
    write_checkpoint();
    assert_int_equal(stf_open_file(path, &files, &err), ST_OK);
    const char *data = stf_at(files, 0)->data;
    assert_string_equal(stf_file_at(data), path);
    assert_string_equal(stf_file_at(data + BYTES - 1), path);
    assert_null(stf_file_at(data + BYTES));
    assert_null(stf_file_at(&files));
    stf_close(files);
    assert_null(stf_file_at(data));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut_short), cmocka_unit_test(test_which_file)};
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    int failed = cmocka_run_group_tests_name("bus errors", tests, NULL, NULL);
    unlink(path);
    return failed;
}

/* server/front/child.c: how a child starts, says that it is ready, ends. The child is this program itself. */
#include "config/base/clock.h"
#include "server/front/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* What `serve` does here is said by its first flag. */
static int fake(int argc, char **argv)
{
    const char *what = argv[2];
    const char *host = argv[argc - 3];
    struct stat st;
    char dir[64];
    if (strcmp(argv[argc - 4], "--host") != 0 || strncmp(host, "unix:/tmp/kvasir-", 17) != 0) return 2;
    snprintf(dir, sizeof dir, "%s", host + 5);
    *strrchr(dir, '/') = '\0';
    if (stat(dir, &st) || (st.st_mode & 0777) != 0700) return 3;
    if (strcmp(what, "fails") == 0) return 7;
    if (strcmp(what, "hangs") == 0) pause();
    if (strcmp(what, "deaf") == 0) signal(SIGTERM, SIG_IGN);
    if (strcmp(what, "environment") == 0)
        return strcmp(getenv("KVASIR_TLS_CERT"), "") != 0   ? 4
               : strcmp(getenv("KVASIR_API_KEY"), "k") != 0 ? 5
                                                            : 6;
    printf("kvasir: listening on %s\n", host);
    fflush(stdout);
    for (;;) pause();
}

static struct child *start(const char *what, const char *const *env)
{
    struct child *c;
    struct err err;
    assert_int_equal(child_start((const char *const[]){what, NULL}, env, &c, &err), ST_OK);
    return c;
}

static void test_ready(void **state)
{
    struct child *c = start("serves", NULL);
    struct err err;
    char dir[64];
    (void)state;
    assert_int_equal(child_wait(c, 20, &err), ST_OK);
    assert_int_equal(child_poll(c), CHILD_READY);
    snprintf(dir, sizeof dir, "%s", child_socket(c));
    *strrchr(dir, '/') = '\0';
    child_signal(c, SIGKILL);
    for (int i = 0; i < 2000 && child_poll(c) != CHILD_ENDED; i++) {
        struct pollfd p = {.fd = child_fd(c), .events = POLLIN};
        poll(&p, 1, 10);
    }
    assert_int_equal(child_poll(c), CHILD_ENDED);
    assert_string_equal(child_exit(c), "signal 9");
    assert_int_equal(child_fd(c), -1);
    child_free(c, 0);
    assert_int_equal(access(dir, F_OK), -1);
}

static void test_ends(void **state)
{
    static const struct {
        const char *what;
        unsigned seconds;
        enum status st;
        const char *exit;
    } rows[] = {{"fails", 20, ST_IO, "exit code 7"}, {"hangs", 1, ST_AGAIN, ""}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct child *c = start(rows[i].what, NULL);
        struct err err;
        assert_int_equal(child_wait(c, rows[i].seconds, &err), rows[i].st);
        assert_string_equal(child_exit(c), rows[i].exit);
        child_free(c, 20);
    }
}

static void test_environment(void **state)
{
    struct err err;
    (void)state;
    setenv("KVASIR_TLS_CERT", "of this process", 1);
    struct child *c = start("environment", (const char *const[]){"KVASIR_API_KEY=k", NULL});
    assert_int_equal(child_wait(c, 20, &err), ST_IO);
    assert_string_equal(child_exit(c), "exit code 6");
    child_free(c, 0);
}

/* SIGKILL for one that ignores SIGTERM. */
static void test_deaf(void **state)
{
    struct child *c = start("deaf", NULL);
    struct err err;
    (void)state;
    assert_int_equal(child_wait(c, 20, &err), ST_OK);
    pid_t pid = child_pid(c);
    uint64_t t0 = now_us();
    child_free(c, 1);
    assert_true(now_us() - t0 >= 1000000u);
    assert_int_equal(kill(pid, 0), -1);
}

/* A child ends with the process that started it. */
static void test_orphan(void **state)
{
    int p[2];
    pid_t child = 0;
    struct err err;
    (void)state;
    assert_int_equal(pipe(p), 0);
    pid_t parent = fork();
    if (!parent) {
        struct child *c = start("serves", NULL);
        (void)!child_wait(c, 20, &err);
        child = child_pid(c);
        char dir[64];
        snprintf(dir, sizeof dir, "%s", child_socket(c));
        *strrchr(dir, '/') = '\0';
        rmdir(dir); /* which otherwise stays */
        (void)!write(p[1], &child, sizeof child);
        _exit(0);
    }
    assert_int_equal(read(p[0], &child, sizeof child), sizeof child);
    waitpid(parent, NULL, 0);
    int tries = 0;
    while (tries++ < 2000 && !kill(child, 0)) {
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
        FILE *f = fopen(path, "r");
        if (!f || (fgets(text, sizeof text, f) && strstr(text, ") Z "))) break; /* no one may reap it here */
        fclose(f);
        usleep(10000);
    }
    assert_true(tries < 2000);
    close(p[0]);
    close(p[1]);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "serve") == 0) return fake(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready), cmocka_unit_test(test_ends),   cmocka_unit_test(test_environment),
        cmocka_unit_test(test_deaf),  cmocka_unit_test(test_orphan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The log: the status line behind it comes and goes on a terminal, elsewhere nothing of it is written; and no
 * line waits for a reader. */
#include "config/base/log.h"
#include "config/base/status.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* What `say` writes to a stderr that is `fd`, read from `from`. */
static void heard(int fd, int from, void (*say)(void), char *out, size_t cap)
{
    int kept = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    say();
    dup2(kept, STDERR_FILENO);
    close(kept);
    struct pollfd p = {.fd = from, .events = POLLIN};
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && poll(&p, 1, 200) == 1) { /* a terminal hands it on in pieces */
        n = read(from, out + len, cap - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    out[len] = '\0';
}

static bool shown;

static void say_all(void)
{
    shown = log_status("half");
    log_info("a line");
    (void)log_status("whole");
    (void)log_status(NULL);
    (void)log_status(NULL); /* nothing is shown: nothing to erase */
}

static void say_warnings(void)
{
    log_set_level(LOG_WARN);
    say_all();
    log_set_level(LOG_INFO);
    log_warn("end");
}

static void test_terminal(void **state)
{
    (void)state;
    char got[512], *line;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    heard(terminal, master, say_all, got, sizeof got);
    assert_true(shown);
    assert_true(strncmp(got, "\r\033[Khalf\r\033[K2", 13) == 0);
    line = strstr(got, "info a line\r\n");
    assert_non_null(line);
    assert_string_equal(line + strlen("info a line\r\n"), "\r\033[Kwhole\r\033[K");
    heard(terminal, master, say_warnings, got, sizeof got);
    assert_false(shown);
    assert_null(strchr(got, '\033'));
    close(terminal);
    close(master);
}

/* However the last escape ends, there is room for the end of the line. */
static void test_full(void **state)
{
    (void)state;
    char value[LOG_LINE_BYTES];
    log_set_json(true);
    for (size_t plain = 0; plain < 8; plain++) {
        struct log_line l;
        memset(value, '\xff', sizeof value - 1);
        memset(value, 'a', plain);
        value[sizeof value - 1] = '\0';
        log_begin(&l, LOG_INFO, "event");
        log_text(&l, "text", value);
        assert_true(l.len <= sizeof l.text - LOG_LINE_END);
        log_number(&l, "number", 1, 0);
        assert_true(l.len <= sizeof l.text - LOG_LINE_END);
    }
    log_set_json(false);
}

static void test_file(void **state)
{
    (void)state;
    char got[512];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    heard(ends[1], ends[0], say_all, got, sizeof got);
    assert_false(shown);
    assert_null(strchr(got, '\033'));
    assert_non_null(strstr(got, "info a line\n"));
    close(ends[0]);
    close(ends[1]);
}

static void say_many(void)
{
    for (int i = 0; i < 3000; i++) log_info("line %d", i);
}

static void say_one(void)
{
    log_info("and on");
}

/* A pipe that nobody reads: nothing waits, and the next line that is taken says how many were not. */
static void test_unread(void **state)
{
    (void)state;
    static char got[1 << 18], more[512];
    int ends[2];
    alarm(60); /* ends a test that waits */
    assert_int_equal(pipe(ends), 0);
    heard(ends[1], ends[0], say_many, got, sizeof got);
    heard(ends[1], ends[0], say_one, more, sizeof more);
    alarm(0);
    unsigned long taken = 0, dropped = 0;
    for (const char *p = got; (p = strstr(p, "info line ")); p++) taken++;
    const char *said = strstr(more, " warn ");
    assert_non_null(said);
    assert_int_equal(sscanf(said, " warn %lu lines of the log were dropped", &dropped), 1);
    assert_true(taken > 100 && dropped > 100);
    assert_int_equal(taken + dropped, 3000);
    assert_non_null(strstr(said, " info and on\n"));
    close(ends[0]);
    close(ends[1]);
}

static char client[LOG_LINE_BYTES * 2];

static void say_fields(void)
{
    struct log_line l;
    log_begin(&l, LOG_INFO, "request");
    log_text(&l, "path", client);
    log_number(&l, "ms", 1.25, 1);
    log_number(&l, "status", 200, 0);
    log_end(&l);
    log_info("a \"line\"\n");
}

/* Whatever a client sends, a line is one JSON object, also where it is too long. */
static void test_json(void **state)
{
    (void)state;
    static char got[4 * LOG_LINE_BYTES];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    strcpy(client, "/a\"\\\n\x01\xff\xe2\x82\xac");
    heard(ends[1], ends[0], say_fields, got, sizeof got);
    assert_non_null(strstr(got, " info path=/a\"\\  \xff\xe2\x82\xac ms=1.2 status=200\n"));
    assert_non_null(strstr(got, " info a \"line\" \n"));
    log_set_json(true);
    heard(ends[1], ends[0], say_fields, got, sizeof got);
    assert_int_equal(strncmp(got, "{\"time\":\"20", 11), 0);
    assert_non_null(strstr(got,
                           "Z\",\"level\":\"info\",\"msg\":\"request\",\"path\":\"/a\\\"\\\\\\u000a\\u0001"
                           "\\ufffd\xe2\x82\xac\",\"ms\":1.2,\"status\":200}\n"));
    assert_non_null(strstr(got, "\"msg\":\"a \\\"line\\\"\\u000a\"}\n"));
    memset(client, '"', sizeof client - 1);
    heard(ends[1], ends[0], say_fields, got, sizeof got);
    log_set_json(false);
    char *end = strchr(got, '\n');
    assert_true(end && end - got < LOG_LINE_BYTES && strncmp(end - 4, "\\\"\"}", 4) == 0);
    close(ends[0]);
    close(ends[1]);
}

static void say_controls(void)
{
    log_info("a\033b\x7f"
             "c\xc2\x9b"
             "d\xc3\xa9");
}

/* What a terminal would obey. */
static void test_controls(void **state)
{
    (void)state;
    char got[256];
    int ends[2];
    struct err err;
    assert_int_equal(pipe(ends), 0);
    heard(ends[1], ends[0], say_controls, got, sizeof got);
    assert_non_null(strstr(got, "info a b c d\xc3\xa9\n"));
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(err_set(&err, ST_IO,
                             "a\033b\x7f"
                             "c\xc2\x9b"
                             "d\xc3\xa9\ne\xc2"),
                     ST_IO);
    assert_string_equal(err.msg, "a?b?c??d\xc3\xa9\ne\xc2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_terminal), cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_unread),   cmocka_unit_test(test_json),
                                       cmocka_unit_test(test_full),     cmocka_unit_test(test_controls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

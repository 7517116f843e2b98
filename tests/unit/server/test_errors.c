/* The table from statuses of lower layers to HTTP. */
#include "server/json/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* What is about the server has its own text and no param; what is about the request has the caller's. */
static void test_statuses(void **state)
{
    (void)state;
    static const struct {
        enum status st;
        int http;
        const char *type, *code, *message;
    } rows[] = {
        {ST_INVALID, 400, "invalid_request_error", "invalid_value", NULL},
        {ST_FORMAT, 400, "invalid_request_error", "invalid_value", NULL},
        {ST_TOO_LARGE, 400, "invalid_request_error", "context_length_exceeded", NULL},
        {ST_UNSUPPORTED, 400, "invalid_request_error", "unsupported_value", NULL},
        {ST_NOT_FOUND, 404, "invalid_request_error", "not_found", NULL},
        {ST_IO, 500, "server_error", "internal_error", NULL},
        {ST_NOMEM, 503, "server_error", "out_of_memory", "The server is out of memory."},
        {ST_DEVICE, 503, "server_error", "engine_dead", "The engine has failed."},
        {ST_STOPPING, 503, "server_error", "server_draining", "The server is shutting down."},
        {ST_AGAIN, 429, "rate_limit_error", "rate_limit_exceeded",
         "Too many requests are waiting; try again later."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct api_error e = {0};
        struct err err = {"why"};
        assert_int_equal(api_fail_status(&e, rows[i].st, "field", &err), ST_INVALID);
        assert_int_equal(e.http, rows[i].http);
        assert_string_equal(e.type, rows[i].type);
        assert_string_equal(e.code, rows[i].code);
        assert_string_equal(e.message, rows[i].message ? rows[i].message : "why");
        assert_string_equal(e.param, rows[i].message ? "" : "field");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_statuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

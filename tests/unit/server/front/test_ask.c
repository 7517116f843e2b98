/* server/front/ask.c: what the front reads of a body. */
#include "server/front/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_ask(void **state)
{
    static const struct {
        const char *text, *model;
        bool all, has_keep, empty;
        double keep;
    } rows[] = {
        {"{\"model\":\"a\",\"prompt\":\"x\"}", "a", false, false, true, 0}, /* reads no further */
        {"{\"messages\":[{\"model\":\"no\"}],\"model\":\"a\"}", "a", false, false, false, 0},
        {"{\"mod\\u0065l\":\"\\u00e9\\ud83d\\ude00\\n\"}", "\xc3\xa9\xf0\x9f\x98\x80\n", false, false, true,
         0},
        {"[\"model\",{\"model\":\"a\"}]", "", false, false, true, 0},
        {"{\"model\":{\"model\":\"a\"},\"x\":1}", "", false, false, true, 0},
        {"{\"model\":5}", "", false, false, true, 0},
        {"{\"model\"", "", false, false, true, 0},
        {"", "", false, false, true, 0},
        {"{\"name\":\"a\"}", "", false, false, true, 0},
        {"{\"name\":\"a\",\"keep_alive\":0}", "a", true, true, true, 0},
        {"{\"name\":\"a\",\"model\":\"b\",\"name\":\"c\"}", "b", true, false, true, 0},
        {"{\"keep_alive\":\"1h30m\",\"prompt\":\"\",\"model\":\"a\"}", "a", true, true, true, 5400},
        {"{\"keep_alive\":\"-1s\",\"prompt\":\"x\"}", "", true, true, false, -1},
        {"{\"keep_alive\":\"250ms\",\"messages\":[]}", "", true, true, true, .25},
        {"{\"keep_alive\":-1,\"messages\":[{}]}", "", true, true, false, -1},
        {"{\"keep_alive\":\"soon\"}", "", true, false, true, 0},
        {"{\"keep_alive\":true}", "", true, false, true, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct front_ask a;
        char *text = strdup(rows[i].text);
        front_ask_read(text, strlen(text), rows[i].all, &a);
        if (strcmp(a.model, rows[i].model) != 0) fail_msg("row %zu: model %s", i, a.model);
        if (a.has_keep != rows[i].has_keep || a.empty != rows[i].empty) fail_msg("row %zu", i);
        if (a.has_keep && a.keep != rows[i].keep) fail_msg("row %zu: %g", i, a.keep);
        free(text);
    }
}

/* A name that is longer than any of ours is none. */
static void test_long(void **state)
{
    char text[700];
    struct front_ask a;
    (void)state;
    for (int n = 1; n < 600; n++) {
        snprintf(text, sizeof text, "{\"model\":\"%0*d\"}", n, 7);
        front_ask_read(text, strlen(text), false, &a);
        assert_true(strlen(a.model) == (size_t)n || !*a.model);
        assert_true(n > 200 || *a.model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ask), cmocka_unit_test(test_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

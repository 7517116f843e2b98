/* Grammar memory is shared between tenants: one tenant leaves room for the next, and a tenant that fills its
 * share evicts its own grammars first. A compile whose requests are all cancelled stops. */
#include "tests/lib/grammars.h"
#include "server/input/grammars.h"
#include "server/grammar/build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum {
    MOST = 8 << 20,
    PART = (MOST / 8 - (64 << 10)) / 32
}; /* PART: a description that reserves an eighth */

static void wake(void *arg)
{
    (void)arg;
}

static struct grammar *grammar_of(char letter)
{
    char text[4001];
    struct grammar_error error;
    struct grammar *g;
    memset(text, letter, 4000);
    text[4000] = '\0';
    assert_int_equal(grammar_from_regex(text, 4000, &g, &error), ST_OK);
    return g;
}

/* Grammars in use that the tenant may take in all; `used` gets them. */
static int take(struct grammars *all, uint64_t tenant, struct grammar **used)
{
    int n = 0;
    char key[PART + 1];
    memset(key, 'k', PART);
    key[PART] = '\0';
    while (n < 100 && grammars_reserve(all, PART, tenant)) {
        snprintf(key, 32, "%u/%d", (unsigned)tenant, n);
        key[strlen(key)] = 'k';
        used[n] = grammar_of((char)('a' + n % 26));
        assert_int_equal(grammars_keep(all, key, tenant, used[n++], NULL), ST_OK);
    }
    return n;
}

static void test_shares(void **state)
{
    (void)state;
    struct grammars *all;
    struct grammar *used[3][100];
    int n[3];
    assert_int_equal(grammars_create(MOST, wake, NULL, &all), ST_OK);
    for (int i = 0; i < 3; i++) n[i] = take(all, (uint64_t)i + 1, used[i]);
    assert_true(n[0] > 2 && n[0] < 50 && n[1] > 0 && n[1] < n[0] && n[2] > 0);
    for (int i = 0; i < 3; i++)
        while (n[i]) grammar_unref(used[i][--n[i]]);
    n[0] = take(all, 0, used[0]); /* the only one may have all of it */
    assert_false(grammars_reserve(all, PART, 0));
    assert_true(n[0] > 5);
    while (n[0]) grammar_unref(used[0][--n[0]]);
    grammars_free(all);
}

/* Those that are cached: many of one tenant don't evict the other's. */
static void test_cached(void **state)
{
    (void)state;
    struct grammars *all;
    struct grammar *g = grammar_of('a');
    char *warnings = NULL;
    assert_int_equal(grammars_create(MOST, wake, NULL, &all), ST_OK);
    assert_true(grammars_reserve(all, 3, 2));
    assert_int_equal(grammars_keep(all, "two", 2, g, "[1]"), ST_OK);
    grammar_unref(g);
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "one %d", i);
        g = grammar_of('b');
        assert_true(grammars_reserve(all, strlen(key), 1));
        assert_int_equal(grammars_keep(all, key, 1, g, NULL), ST_OK);
        grammar_unref(g);
    }
    assert_null(grammars_find(all, "one 0", &warnings));
    g = grammars_find(all, "two", &warnings);
    assert_non_null(g);
    assert_string_equal(warnings, "[1]");
    free(warnings);
    grammar_unref(g);
    grammars_free(all);
}

static void test_cancelled(void **state)
{
    (void)state;
    atomic_bool stop;
    struct grammar_builder *b;
    struct grammar *g;
    struct err err;
    for (int i = 0; i < 2; i++) {
        atomic_init(&stop, i == 1);
        assert_int_equal(gb_create(&b), ST_OK);
        rx_pool_stop(gb_pool(b), &stop);
        rx many = RX_EMPTY;
        for (int k = 0; k < 1000; k++) many = rx_concat(gb_pool(b), rx_literal(gb_pool(b), "abc", 3), many);
        size_t work = rx_pool_work(gb_pool(b));
        assert_int_equal(gb_finish(b, gb_regex(b, many), &g, &err), i ? ST_AGAIN : ST_OK);
        assert_true(i ? work < 100 : work > 10000);
        if (!i) grammar_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_cached),
                                       cmocka_unit_test(test_cancelled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

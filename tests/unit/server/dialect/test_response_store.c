/* Kept responses: whose they are, bounds, recency, chains whose beginnings are forgotten, threads. */
#include "server/dialect/store.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct response_owner nobody;

static uint64_t holder;

static bool keep(struct response_store *s, const char *id, const char *before, size_t bytes)
{
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    struct response_kept new = {.items = json_pack("[s]", text), .inputs = 1, .holder = holder};
    assert_non_null(new.items);
    snprintf(new.id, sizeof new.id, "%s", id);
    new.before = before ? response_take(s, before, &nobody) : NULL;
    bool ok = response_keep(s, &new, text, bytes);
    if (!ok) response_give_back(s, new.before);
    if (!ok) json_decref(new.items);
    free(text);
    return ok;
}

/* How many there are in its chain; 0: it isn't there. */
static uint32_t depth(struct response_store *s, const char *id)
{
    struct response_kept *r = response_take(s, id, &nobody);
    uint32_t n = 0;
    for (const struct response_kept *k = r; k; k = k->before) n++;
    response_give_back(s, r);
    return n;
}

static void test_owners(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(1 << 20);
    struct response_owner other = {.salt = {1}};
    assert_true(keep(s, "resp_a", NULL, 10));
    assert_null(response_take(s, "resp_a", &other));
    assert_false(response_forget(s, "resp_a", &other));
    assert_int_equal(depth(s, "resp_a"), 1);
    assert_null(response_take(s, "resp_b", &nobody));
    assert_true(response_forget(s, "resp_a", &nobody));
    assert_int_equal(depth(s, "resp_a"), 0);
    response_store_destroy(s);
}

static void test_bounds(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(10000);
    uint32_t count;
    uint64_t bytes;
    char id[24];
    assert_false(keep(s, "resp_large", NULL, 20000));
    assert_true(keep(s, "resp_first", NULL, 1000));
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_int_equal(depth(s, "resp_first"), 1); /* used, so it stays */
        assert_true(keep(s, id, NULL, 1000));
        response_store_size(s, &count, &bytes);
        assert_true(bytes <= 10000);
    }
    assert_int_equal(depth(s, "resp_0"), 0);
    assert_int_equal(depth(s, "resp_49"), 1);
    assert_true(count > 2 && count < 10);
    response_store_destroy(s);
    s = response_store_create(0);
    assert_false(response_store_on(s));
    assert_false(keep(s, "resp_a", NULL, 1));
    response_store_destroy(s);
}

/* Many small values take more memory than their text, and long to free. */
static void test_values(void **state)
{
    (void)state;
    const struct {
        size_t values;
        uint64_t memory;
        bool kept;
    } rows[] = {
        {10000, 500000, false}, {10000, 2000000, true}, {200000, 1 << 30, true}, {300000, 1 << 30, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct response_store *s = response_store_create(rows[i].memory);
        struct response_kept new = {.id = "resp_a", .items = json_array()};
        uint32_t count;
        uint64_t bytes;
        for (size_t k = 0; k < rows[i].values; k++)
            assert_int_equal(json_array_append_new(new.items, json_integer((json_int_t)k)), 0);
        assert_int_equal(response_keep(s, &new, "{}", 2), rows[i].kept);
        response_store_size(s, &count, &bytes);
        assert_true(rows[i].kept ? bytes > 32 * rows[i].values : !bytes);
        if (!rows[i].kept) json_decref(new.items);
        response_store_destroy(s);
    }
}

static void test_chains(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(1 << 20);
    uint32_t count;
    uint64_t bytes;
    assert_true(keep(s, "resp_0", NULL, 100) && keep(s, "resp_1", "resp_0", 100));
    assert_true(keep(s, "resp_2", "resp_1", 100) && keep(s, "resp_b", "resp_1", 100));
    assert_true(response_forget(s, "resp_1", &nobody));
    assert_int_equal(depth(s, "resp_1"), 0);
    assert_int_equal(depth(s, "resp_2"), 3);
    assert_int_equal(depth(s, "resp_b"), 3);
    struct response_kept *held = response_take(s, "resp_2", &nobody);
    assert_true(response_forget(s, "resp_2", &nobody) && response_forget(s, "resp_b", &nobody) &&
                response_forget(s, "resp_0", &nobody));
    assert_string_equal(held->before->before->id, "resp_0");
    response_store_size(s, &count, &bytes);
    assert_int_equal(count, 0);
    assert_true(bytes > 300);
    response_give_back(s, held);
    response_store_size(s, &count, &bytes);
    assert_int_equal(bytes, 0);
    response_store_destroy(s);
}

/* A conversation without an end: it loses its newest turns when it alone fills the store, never its memory's
 * bound. */
static void test_long_chain(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(100000);
    uint32_t count, last = 0;
    uint64_t bytes;
    char id[24], before[24] = "";
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "resp_%u", i);
        assert_true(keep(s, id, *before ? before : NULL, 500));
        response_store_size(s, &count, &bytes);
        assert_true(bytes <= 100000);
        if (depth(s, id) == i + 1) last = i;
        memcpy(before, id, sizeof id);
    }
    assert_true(last > 50 && last < 200);
    response_store_destroy(s);
}

static void *worker(void *arg)
{
    struct response_store *s = arg;
    char id[24], before[24];
    uint64_t seed = (uint64_t)(uintptr_t)&id;
    for (int i = 0; i < 3000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        snprintf(id, sizeof id, "resp_%u", (unsigned)(seed >> 58));
        snprintf(before, sizeof before, "resp_%u", (unsigned)(seed >> 52 & 63));
        switch (seed >> 48 & 3) {
        case 0: (void)response_forget(s, id, &nobody); break;
        case 1: (void)depth(s, id); break;
        default:
            if (!depth(s, id)) (void)keep(s, id, before, 50);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(20000);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, worker, s), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    response_store_destroy(s);
}

/* Who keeps many loses them, not who keeps a few; of them the least recently used. */
static void test_shares(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(20000);
    char id[24];
    holder = 1;
    for (int i = 0; i < 3; i++) {
        snprintf(id, sizeof id, "resp_few_%d", i);
        assert_true(keep(s, id, NULL, 1000));
    }
    holder = 2;
    for (int i = 0; i < 60; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_true(keep(s, id, i && i % 3 == 0 ? "resp_0" : NULL, 1000)); /* used: it stays */
    }
    for (int i = 0; i < 3; i++) {
        snprintf(id, sizeof id, "resp_few_%d", i);
        assert_int_equal(depth(s, id), 1);
    }
    assert_int_equal(depth(s, "resp_0"), 1);
    assert_int_equal(depth(s, "resp_1"), 0);
    assert_int_equal(depth(s, "resp_59"), 1);
    response_store_destroy(s);
    holder = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners), cmocka_unit_test(test_bounds),
                                       cmocka_unit_test(test_shares), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_chains), cmocka_unit_test(test_long_chain),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

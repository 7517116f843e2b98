/* The map from encoded images to content keys: lookups, ids, recency against a naive model, threads. */
#include "server/media/image_hash_cache.h"

#include <pthread.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t no_salt[32];
static const struct image_ask plain;

static void id_of(const struct image_hash_cache *a, uint32_t n, uint8_t id[32])
{
    image_hash_cache_id(a, no_salt, &plain, (const uint8_t *)&n, sizeof n, id);
}

static void put(struct image_hash_cache *a, uint32_t n, uint32_t count)
{
    uint8_t id[32];
    struct image_parts parts;
    assert_true(image_parts_new(count, &parts));
    parts.rows = n;
    parts.columns = count;
    for (uint32_t i = 0; i < count; i++) {
        memset(parts.keys[i], (int)(n + i) & 255, 32);
        parts.grids[i] = (struct prompt_grid){.t = n, .h = i + 1, .w = 3, .seconds = 0.5};
        parts.stamps[i] = n + 0.25 * i;
    }
    id_of(a, n, id);
    image_hash_cache_put(a, id, &parts);
    image_parts_free(&parts);
}

/* Number of keys, 0 = unknown; checks that they are those of n. */
static uint32_t get(struct image_hash_cache *a, uint32_t n)
{
    uint8_t id[32];
    struct image_parts parts;
    id_of(a, n, id);
    if (!image_hash_cache_get(a, id, &parts)) return 0;
    assert_true(parts.rows == n && parts.columns == parts.count);
    for (uint32_t i = 0; i < parts.count; i++) {
        for (int b = 0; b < 32; b++) assert_int_equal(parts.keys[i][b], (n + i) & 255);
        assert_true(parts.grids[i].t == n && parts.grids[i].h == i + 1 && parts.grids[i].w == 3);
        assert_true(parts.stamps[i] == n + 0.25 * i);
    }
    uint32_t count = parts.count;
    image_parts_free(&parts);
    return count;
}

static void test_ids(void **state)
{
    (void)state;
    struct image_hash_cache *a = image_hash_cache_create(4), *other = image_hash_cache_create(4);
    uint8_t salt[32] = {1}, x[32], y[32];
    static const uint8_t bytes[] = "an image";
    image_hash_cache_id(a, no_salt, &plain, bytes, sizeof bytes, x);
    image_hash_cache_id(a, no_salt, &plain, bytes, sizeof bytes, y);
    assert_memory_equal(x, y, 32);
    image_hash_cache_id(a, salt, &plain, bytes, sizeof bytes, y);
    assert_memory_not_equal(x, y, 32); /* another salt */
    image_hash_cache_id(a, no_salt, &plain, bytes, sizeof bytes - 1, y);
    assert_memory_not_equal(x, y, 32);
    image_hash_cache_id(other, no_salt, &plain, bytes, sizeof bytes, y);
    assert_memory_not_equal(x, y, 32); /* another process */
    static const struct image_ask asks[] = {{.video = true},
                                            {.list = true},
                                            {.fps = 2},
                                            {.bounds = {.area_min = 1}},
                                            {.bounds = {.area_max = 1}}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        image_hash_cache_id(a, no_salt, &asks[i], bytes, sizeof bytes, y);
        assert_memory_not_equal(x, y, 32); /* asked for otherwise */
    }
    assert_null(image_hash_cache_create(0));
    image_hash_cache_destroy(a);
    image_hash_cache_destroy(other);
    image_hash_cache_destroy(NULL);
}

static void test_entries(void **state)
{
    (void)state;
    struct image_hash_cache *a = image_hash_cache_create(3);
    struct image_hash_cache_stats st;
    assert_int_equal(get(a, 1), 0);
    put(a, 1, 1);
    put(a, 2, 4);
    put(a, 3, 2);
    assert_int_equal(get(a, 2), 4);
    assert_int_equal(get(a, 1), 1); /* now 3 is the least recent */
    put(a, 4, 1);
    assert_int_equal(get(a, 3), 0);
    assert_int_equal(get(a, 1), 1);
    put(a, 2, 1); /* noted again */
    assert_int_equal(get(a, 2), 1);
    uint8_t id[32];
    id_of(a, 1, id);
    image_hash_cache_remove(a, id);
    image_hash_cache_remove(a, id);
    assert_int_equal(get(a, 1), 0);
    image_hash_cache_stats(a, &st);
    assert_int_equal(st.entries, 2);
    assert_int_equal(st.queries, 7);
    assert_int_equal(st.hits, 4);
    image_hash_cache_clear(a);
    image_hash_cache_stats(a, &st);
    assert_int_equal(st.entries, 0);
    assert_int_equal(get(a, 2), 0);
    put(a, 5, 2);
    assert_int_equal(get(a, 5), 2);
    image_hash_cache_destroy(a);
}

/* Files of many parts (videos) push out more than one entry; one that alone is too large is not kept. */
static void test_parts(void **state)
{
    (void)state;
    struct image_hash_cache *a = image_hash_cache_create(4); /* room for 4 * 16 parts */
    struct image_hash_cache_stats st;
    for (uint32_t n = 1; n <= 3; n++) put(a, n, 20);
    put(a, 4, 30); /* 90 would be too many */
    assert_int_equal(get(a, 1), 0);
    assert_int_equal(get(a, 2), 0);
    assert_int_equal(get(a, 3), 20);
    assert_int_equal(get(a, 4), 30);
    put(a, 5, 65);
    assert_int_equal(get(a, 5), 0);
    put(a, 6, 64);
    image_hash_cache_stats(a, &st);
    assert_int_equal(st.entries, 1);
    assert_int_equal(get(a, 6), 64);
    image_hash_cache_destroy(a);
}

/* Random operations against an array ordered by recency. */
static void test_model(void **state)
{
    enum { CAP = 17, NAMES = 60, STEPS = 20000 };
    (void)state;
    struct image_hash_cache *a = image_hash_cache_create(CAP);
    uint32_t held[CAP], count = 0; /* most recent first */
    uint64_t seed = 7;
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = (uint32_t)(seed >> 40) % NAMES, what = (uint32_t)(seed >> 33) % 100, at = 0;
        while (at < count && held[at] != n) at++;
        bool known = at < count;
        if (what < 50) {
            assert_int_equal(get(a, n), known ? n % 4 + 1 : 0);
        } else if (what < 90) {
            put(a, n, n % 4 + 1);
        } else {
            uint8_t id[32];
            id_of(a, n, id);
            image_hash_cache_remove(a, id);
        }
        if (what < 90 && (known || what >= 50)) { /* to the front */
            if (!known) at = count < CAP ? count++ : CAP - 1;
            memmove(held + 1, held, at * sizeof *held);
            held[0] = n;
        } else if (what >= 90 && known) {
            memmove(held + at, held + at + 1, (--count - at) * sizeof *held);
        }
    }
    struct image_hash_cache_stats st;
    image_hash_cache_stats(a, &st);
    assert_int_equal(st.entries, count);
    assert_true(st.hits > 1000);
    image_hash_cache_destroy(a);
}

static void *hammer(void *arg)
{
    struct image_hash_cache *a = arg;
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t n = i * 7 % 50;
        if (!get(a, n)) put(a, n, n % 4 + 1);
        if (i % 1000 == 999) image_hash_cache_clear(a);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct image_hash_cache *a = image_hash_cache_create(20);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, hammer, a), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    struct image_hash_cache_stats st;
    image_hash_cache_stats(a, &st);
    assert_int_equal(st.queries, 12000);
    assert_true(st.entries <= 20);
    image_hash_cache_destroy(a);
}

int main(void)
{
    if (sodium_init() < 0) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids), cmocka_unit_test(test_entries),
                                       cmocka_unit_test(test_parts), cmocka_unit_test(test_model),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Shares: against a model, random; who comes first, and that nobody waits for ever. */
#include "server/shares/shares.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HOLDERS = 6, MOST = 8, RESERVE = 8 };

static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* What is taken and given back at random is what the model says; holders come and go, some in one bucket. */
static void test_model(void **state)
{
    (void)state;
    static struct shares s;
    struct share *share[HOLDERS] = {NULL};
    size_t held[HOLDERS] = {0}, refused = 0;
    uint32_t users[HOLDERS] = {0};
    for (seed = 1; seed < 40; seed++) {
        uint64_t kept = seed;
        for (int step = 0; step < 3000; step++) {
            uint32_t i = rnd(HOLDERS), more = 1 + rnd(3);
            size_t all = 0;
            for (int k = 0; k < HOLDERS; k++) all += held[k];
            if (!users[i] || !rnd(8)) {
                share[i] = share_take(&s, i < 3 ? i : (uint64_t)i * SHARE_BUCKETS);
                users[i]++;
            } else if (rnd(2)) {
                bool want = all + more <= MOST || held[i] + more + all <= MOST + RESERVE;
                assert_int_equal(share_admits(share[i], SHARE_URLS, more, MOST, RESERVE), want);
                assert_int_equal(share_try(share[i], SHARE_URLS, more, MOST, RESERVE), want);
                held[i] += want ? more : 0;
                refused += !want;
            } else if (held[i]) {
                share_sub(share[i], SHARE_URLS, 1);
                held[i]--;
            } else {
                share_release(share[i]);
                users[i]--;
            }
            all = 0;
            for (int k = 0; k < HOLDERS; k++) {
                all += held[k];
                if (users[k]) assert_int_equal(share_held(share[k], SHARE_URLS), held[k]);
            }
            assert_int_equal(shares_held(&s, SHARE_URLS), all);
            assert_true(all <= MOST + RESERVE);
        }
        seed = kept;
    }
    assert_int_equal(s.refused[SHARE_URLS], refused);
    for (int i = 0; i < HOLDERS; i++) {
        share_sub(share[i], SHARE_URLS, users[i] ? held[i] : 0);
        while (users[i]) users[i]--, share_release(share[i]);
    }
    for (int i = 0; i < SHARE_BUCKETS; i++) assert_null(s.buckets[i]);
}

/* One that takes all it can leaves room for others, however many they are; nobody holds more than half while
 * another waits. */
static void test_reserve(void **state)
{
    (void)state;
    static struct shares s;
    struct share *share[5];
    static const size_t want[] = {8, 4, 2, 1, 1};
    for (uint64_t i = 0; i < 5; i++) {
        size_t n = 0;
        share[i] = share_take(&s, i + 1);
        while (share_try(share[i], SHARE_WORKERS, 1, 8, 8)) n++;
        assert_int_equal(n, want[i]);
    }
    for (int i = 0; i < 5; i++) {
        share_sub(share[i], SHARE_WORKERS, want[i]);
        share_release(share[i]);
    }
}

/* A queue in which each of some holders always has a job: all are served alike, and whoever comes waits for
 * at most one of each other. */
static void test_turns(void **state)
{
    (void)state;
    static struct shares s;
    struct share *share[HOLDERS];
    uint32_t served[HOLDERS] = {0}, late = HOLDERS - 1;
    for (uint64_t i = 0; i < late; i++) share[i] = share_take(&s, i);
    for (uint32_t step = 0; step < 100; step++) {
        uint32_t n = step < 50 ? late : HOLDERS, first = 0;
        if (step == 50) share[late] = share_take(&s, late);
        for (uint32_t i = 1; i < n; i++)
            if (share_before(share[i], share[first], SHARE_WORKERS)) first = i;
        share_serve(share[first], SHARE_WORKERS);
        share_sub(share[first], SHARE_WORKERS, 1);
        served[first]++;
        if (step == 50 + HOLDERS - 1) assert_int_equal(served[late], 1);
    }
    for (uint32_t i = 0; i < HOLDERS; i++) {
        assert_in_range(served[i], i < late ? 18 : 8, i < late ? 19 : 9);
        share_release(share[i]);
    }
    struct share *busy = share_take(&s, 1), *other = share_take(&s, 2);
    share_serve(other, SHARE_WORKERS); /* served last, but it holds none now */
    share_sub(other, SHARE_WORKERS, 1);
    share_add(busy, SHARE_WORKERS, 1);
    assert_true(share_before(other, busy, SHARE_WORKERS) && !share_before(busy, other, SHARE_WORKERS));
    share_sub(busy, SHARE_WORKERS, 1);
    share_release(busy);
    share_release(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model), cmocka_unit_test(test_reserve),
                                       cmocka_unit_test(test_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

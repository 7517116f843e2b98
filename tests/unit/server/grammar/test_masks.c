/* Masks that take long: made on threads of their own as without them, given up at the same place, stopped at
 * once, and counted. */
#include "tests/lib/grammars.h"
#include "server/grammar/mask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { LEN = 30, MOST = 5000, END = 0 };

static uint64_t rng = 1;
static uint32_t dice(uint32_t below)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % below;
}

/* Tokens of letters a to c, nearly all with prefixes of their own. */
static struct grammar_vocab *vocab_of(uint32_t count)
{
    static char text[MOST][LEN];
    static struct grammar_token tokens[MOST];
    const uint32_t ends[] = {END};
    struct grammar_vocab *v;
    rng = 7;
    for (uint32_t i = 1; i < count; i++) {
        size_t len = i < 4 ? 1 : 2 + dice(LEN - 2);
        for (size_t k = 0; k < len; k++) text[i][k] = (char)(i < 4 ? 'a' + i - 1 : 'a' + dice(3));
        tokens[i] = (struct grammar_token){text[i], len};
    }
    assert_int_equal(grammar_vocab_create(tokens, count, ends, 1, NULL, 0, &v, NULL), ST_OK);
    return v;
}

/* Its states remember which letters came where: nearly every way leads to one of its own. */
static struct grammar *grammar_of(void)
{
    const char *text =
        "([abc]*a[abc]{13})|([abc]*b[abc]{11}a[abc]{5})|([abc]*c[abc]{13})|([abc]*a[abc]{3}b[abc]{11})";
    struct grammar_error error;
    struct grammar *g;
    assert_int_equal(grammar_from_regex(text, strlen(text), &g, &error), ST_OK);
    return g;
}

static atomic_uint woken;
static void wake(void *arg)
{
    (void)arg;
    atomic_fetch_add(&woken, 1);
}

static struct mask_threads *threads_of(uint32_t n)
{
    struct mask_threads *t;
    assert_int_equal(mask_threads_create(n, wake, NULL, NULL, NULL, &t), ST_OK);
    return t;
}

/* As the scheduler does: asks again when it is woken. */
static enum mask_state wait_for(struct matcher *m, const uint32_t *tokens, uint32_t n, uint32_t *laters)
{
    for (;;) {
        uint32_t before = atomic_load(&woken);
        enum mask_state st = matcher_prepare(m, tokens, n, false);
        if (st == MASK_READY || st == MASK_FAILED) return st;
        ++*laters;
        for (int i = 0; atomic_load(&woken) == before && st == MASK_LATER; i++) {
            assert_true(i < 100000);
            usleep(100);
        }
    }
}

/* Goes along tokens of one letter until a mask fails; how far, and why. */
static uint32_t until_it_fails(struct grammar *g, const struct grammar_vocab *v, struct mask_threads *t,
                               bool drop, enum matcher_failure *why, uint32_t *laters)
{
    struct matcher *m, *plain;
    uint32_t tokens[202], n = 0, *bits = malloc(2 * (v->words + 1u) * sizeof *bits),
                          *same = bits + v->words + 1;
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    assert_int_equal(matcher_create(g, v, &plain), ST_OK);
    if (t) matcher_threads(m, t, 0);
    while (n < 200 && wait_for(m, tokens, n, laters) == MASK_READY) {
        matcher_mask(m, tokens, n, bits, v->words);
        if (n < 2) {
            matcher_mask(plain, tokens, n, same, v->words);
            assert_memory_equal(bits, same, v->words * sizeof *bits);
        }
        /* Draft tokens change nothing, though they are charged where they are kept. */
        tokens[n] = 1 + (n + 1) % 3;
        tokens[n + 1] = 2;
        if (n < 150) (void)matcher_drafts(m, tokens, n, 2);
        if (drop) machine__drop(g);
        tokens[n] = 1 + n % 3;
        n++;
    }
    *why = matcher_failure(m);
    matcher_free(plain);
    matcher_free(m);
    free(bits);
    return n;
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        uint32_t tokens;
        enum matcher_failure why;
    } cases[] = {{700, MATCHER_ANSWER_COST}, {5000, MATCHER_MASK_COST}};
    for (int c = 0; c < 2; c++) {
        struct grammar_vocab *v = vocab_of(cases[c].tokens);
        struct mask_threads *t = threads_of(2);
        uint32_t far[4];
        for (int i = 0; i < 4;
             i++) { /* without threads, with; what was made is dropped, or kept by another */
            static struct grammar *g;
            enum matcher_failure why;
            uint32_t laters = 0;
            if (i < 3) g = grammar_of();
            far[i] = until_it_fails(g, v, i == 1 || i == 3 ? t : NULL, i == 2, &why, &laters);
            assert_int_equal(why, cases[c].why);
            assert_int_equal(far[i], far[0]);
            if (i == 1) assert_true(laters > 0);
            if (i != 2) grammar_unref(i == 3 ? g : NULL);
            if (i == 0 || i == 1) grammar_unref(g);
        }
        assert_true(c ? far[0] == 0 : far[0] > 0 && far[0] < 100);
        mask_threads_destroy(t);
        grammar_vocab_free(v);
    }
}

/* Masks along tokens of one letter, until one fails: of all their bits a hash; how many; and why. */
static uint64_t masks_of(struct grammar *g, const struct grammar_vocab *v, uint32_t letter, uint32_t most,
                         uint32_t *count, enum matcher_failure *why)
{
    uint32_t tokens[64], *bits = calloc(v->words + 1u, sizeof *bits);
    struct matcher *m;
    uint64_t h = 0;
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    for (*count = 0; *count < most && matcher_prepare(m, tokens, *count, false) == MASK_READY; ++*count) {
        matcher_mask(m, tokens, *count, bits, v->words);
        for (uint32_t i = 0; i < v->words; i++) h = (h ^ bits[i]) * 0x9E3779B97F4A7C15ull;
        tokens[*count] = letter;
    }
    *why = matcher_failure(m);
    matcher_free(m);
    free(bits);
    return h;
}

/* Little room for what is made: the same masks, or the same failure, whatever others made before. */
static void test_room(void **state)
{
    (void)state;
    struct grammar_vocab *v = vocab_of(300);
    uint32_t failed = 0, resync = 0;
    size_t share = getenv("KVASIR_TEST_SHORT") ? 1 : 2;
    for (size_t nodes = 500; nodes < 40000; nodes += nodes / share) {
        uint32_t count[3];
        uint64_t hash[3];
        enum matcher_failure why[3];
        for (int k = 0; k < 3; k++) { /* alone; after another answer, and after two */
            struct grammar *g = grammar_of();
            rx_pool_base(g->pool, nodes, 100 * nodes);
            for (uint32_t i = 0; i < (uint32_t)k; i++) (void)masks_of(g, v, 2 + i, 6 - i, &count[k], &why[k]);
            uint32_t generation = g->generation;
            hash[k] = masks_of(g, v, 1, 5, &count[k], &why[k]);
            resync += g->generation > generation && why[k] == MATCHER_FINE;
            grammar_unref(g);
        }
        for (int k = 1; k < 3; k++) {
            assert_int_equal(why[k], why[0]);
            assert_int_equal(count[k], count[0]);
            assert_true(hash[k] == hash[0]);
        }
        assert_true(why[0] == MATCHER_FINE || why[0] == MATCHER_MASK_COST);
        failed += why[0] == MATCHER_MASK_COST;
    }
    assert_true(failed > 1 && resync > 1);
    grammar_vocab_free(v);
}

/* The work of each mask is the same for an answer that comes first and for one that comes after others, in
 * another order of all that is made. */
static void test_work(void **state)
{
    (void)state;
    static const char *const texts[] = {"(?=.*a)(?=.*b.{3})(?!.*cc.*a.{2}b).{5,40}", "(.?b?[ac]{0,9}){0,30}c",
                                        "([abc]*a[abc]{5})|([abc]*b[abc]{4})", "(?=(a|b|.c)*.{7}).*"};
    struct grammar_vocab *v = vocab_of(400);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint64_t cost[3][5];
        for (uint32_t k = 0; k < 3; k++) {
            struct grammar_error error;
            struct grammar *g;
            uint32_t n;
            enum matcher_failure why;
            assert_int_equal(grammar_from_regex(texts[i], strlen(texts[i]), &g, &error), ST_OK);
            for (uint32_t other = 0; other < k; other++) (void)masks_of(g, v, 3 - other, 4 + other, &n, &why);
            for (n = 0; n < 5; n++) {
                uint32_t state_now = STATE_FIRST;
                enum matcher_failure failure;
                struct pace p = {.left = UINT64_MAX};
                struct walk w = {.path = malloc((v->depth + 1u) * sizeof *w.path)};
                struct mask *mask = NULL;
                for (uint32_t at = 0; at < n; at++)
                    state_now = machine__next(g, state_now, (uint8_t)("abcab"[at]));
                assert_true(mask__own(g, &w, false));
                masks__drop(g);
                enum mask_state st = mask__begin(g, v, state_now, &w, &mask, &failure);
                if (st == MASK_LATER) st = mask__go_on(g, v, &w, &p, &mask, &failure);
                assert_int_equal(st, MASK_READY);
                cost[k][n] = mask->cost;
                assert_true(cost[k][n] > v->words && cost[k][n] == cost[0][n]);
                mask__drop(g, mask);
                mask__disown(g, &w, false);
                free(w.path);
            }
            grammar_unref(g);
        }
    }
    grammar_vocab_free(v);
}

/* One that is no longer wanted ends soon, and another of the same grammar goes on. */
static void test_stop(void **state)
{
    (void)state;
    struct grammar_vocab *v = vocab_of(700);
    struct grammar *g = grammar_of();
    struct mask_threads *t = threads_of(1);
    struct matcher *m, *other;
    uint32_t laters = 0;
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    assert_int_equal(matcher_create(g, v, &other), ST_OK);
    matcher_threads(m, t, 0);
    matcher_threads(other, t, 0);
    assert_int_equal(matcher_prepare(m, NULL, 0, false), MASK_LATER);
    assert_in_range(matcher_prepare(other, NULL, 0, false), MASK_LATER, MASK_BUSY);
    matcher_stop(m);
    matcher_free(m);
    assert_int_equal(wait_for(other, NULL, 0, &laters), MASK_READY);
    matcher_free(other);
    mask_threads_destroy(t);
    grammar_vocab_free(v);
    grammar_unref(g);
}

/* Tenants take turns: one with many slow masks doesn't keep another's waiting. */
static void test_turns(void **state)
{
    (void)state;
    enum { MANY = 8 };
    struct grammar_vocab *v = vocab_of(700);
    struct mask_threads *t = threads_of(1);
    struct grammar *g[MANY + 1];
    struct matcher *m[MANY + 1];
    uint32_t laters = 0, done = 0;
    for (int i = 0; i <= MANY; i++) {
        g[i] = grammar_of();
        assert_int_equal(matcher_create(g[i], v, &m[i]), ST_OK);
        matcher_threads(m[i], t, i < MANY ? 1 : 2);
        assert_int_equal(matcher_prepare(m[i], NULL, 0, true), MASK_LATER);
    }
    assert_int_equal(wait_for(m[MANY], NULL, 0, &laters), MASK_READY);
    for (int i = 0; i < MANY; i++) done += matcher_prepare(m[i], NULL, 0, true) == MASK_READY;
    assert_in_range(done, 0, MANY / 2);
    for (int i = 0; i < MANY; i++) assert_int_equal(wait_for(m[i], NULL, 0, &laters), MASK_READY);
    for (int i = 0; i <= MANY; i++) matcher_free(m[i]);
    mask_threads_destroy(t);
    for (int i = 0; i <= MANY; i++) grammar_unref(g[i]);
    grammar_vocab_free(v);
}

/* Bytes are counted without the lock, in the grammar and in what all hold; where memory is short less is
 * kept. */
static void test_memory(void **state)
{
    (void)state;
    struct grammar_memory memory = {.most = 8u << 20};
    struct grammar_vocab *v = vocab_of(700);
    struct grammar *g = grammar_of();
    struct matcher *m;
    uint32_t bits[MOST / 32 + 1], tokens[20];
    grammar_count_in(g, &memory);
    size_t empty = grammar_bytes(g);
    assert_int_equal(atomic_load(&memory.used), empty);
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    matcher_mask(m, tokens, 0, bits, v->words);
    assert_true(grammar_bytes(g) > empty + (1u << 20));
    assert_int_equal(atomic_load(&memory.used), grammar_bytes(g));
    for (uint32_t n = 1; n < 20; n++) {
        uint32_t generation = g->generation;
        if (n == 10)
            memory.most = empty; /* from here on all is dropped, whatever the next mask needs again */
        tokens[n - 1] = 1 + n % 3;
        matcher_mask(m, tokens, n, bits, v->words);
        assert_int_equal(atomic_load(&memory.used), grammar_bytes(g));
        assert_true(n < 10 || g->generation > generation);
        assert_true(n < 10 || grammar_bytes(g) < empty + (1u << 20));
    }
    matcher_free(m);
    grammar_unref(g);
    assert_int_equal(atomic_load(&memory.used), 0);
    grammar_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits), cmocka_unit_test(test_stop), cmocka_unit_test(test_turns),
#ifndef __SANITIZE_THREAD__ /* these have one thread */
        cmocka_unit_test(test_room),   cmocka_unit_test(test_work), cmocka_unit_test(test_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

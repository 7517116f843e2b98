/* Draft tokens by prompt lookup: what is found, and how many pay (scheduler/ngram_draft.h). */
#include "scheduler/ngram_draft.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static uint32_t drafted(struct ngram *l, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out)
{
    return ngram_draft_propose(l, tokens, count, most, out);
}

static void test_what_followed_last(void **state)
{
    (void)state;
    /*                   0  1  2  3  4  5  6  7  8  9 10 11 12 */
    uint32_t tokens[] = {1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 1, 2, 3}, out[8];
    struct ngram l = {0};
    assert_int_equal(drafted(&l, tokens, 3, 4, out), 0); /* never seen before */
    assert_int_equal(drafted(&l, tokens, 6, 4, out), 0);
    assert_int_equal(drafted(&l, tokens, 9, 4, out), 4); /* 1 2 3 stood at 0 */
    assert_int_equal(out[0], 4);
    assert_int_equal(out[3], 1);
    assert_int_equal(drafted(&l, tokens, 13, 3, out), 3); /* the latest place counts: 6 */
    assert_int_equal(out[0], 7);
    assert_int_equal(out[2], 2);
    ngram_draft_fini(&l);
}

/* A repetition goes on beyond the end of the history. */
static void test_repetition(void **state)
{
    (void)state;
    uint32_t tokens[] = {8, 5, 6, 5, 6, 5, 6}, out[8];
    struct ngram l = {0};
    assert_int_equal(drafted(&l, tokens, 7, 6, out), 6);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(out[i], i % 2 ? 6 : 5);
    ngram_draft_fini(&l);
}

/* Draft tokens of a long history are those of a plain search, however the calls cut it. */
static void test_equals_search(void **state)
{
    (void)state;
    enum { N = 5000 };
    static uint32_t tokens[N];
    struct ngram l = {0};
    uint32_t found = 0;
    srand(7);
    for (uint32_t i = 0; i < N; i++) tokens[i] = (uint32_t)rand() % 12;
    for (uint32_t count = 4; count < N; count += 1 + (uint32_t)rand() % 40) {
        uint32_t at = count - 1, out[4], n = drafted(&l, tokens, count, 4, out);
        while (at >= 3 && (tokens[at - 1] != tokens[count - 1] || tokens[at - 2] != tokens[count - 2] ||
                           tokens[at - 3] != tokens[count - 3]))
            at--;
        if (n == 0) continue; /* another key may have taken the slot */
        found++;
        assert_true(at >= 3);
        for (uint32_t i = 0; i < n && at + i < count; i++) assert_int_equal(out[i], tokens[at + i]);
    }
    assert_true(found > 50);
    ngram_draft_fini(&l);
}

static void test_how_many_pay(void **state)
{
    (void)state;
    struct ngram l = {0};
    struct acceptance all = {0};
    assert_int_equal(ngram_draft_worth(&l, &all, 0.2, 8, true), 1); /* before the first: 0.3, 0.09 */
    for (int i = 0; i < 20; i++) ngram_draft_learn(&l, &all, 4, 4);
    assert_int_equal(ngram_draft_worth(&l, &all, 0.2, 8, true), 8);
    for (int i = 0; i < 60; i++) ngram_draft_learn(&l, &all, 4, 0);
    uint32_t tried = 0;
    for (int i = 0; i < 31; i++) tried += ngram_draft_worth(&l, &all, 0.2, 8, i > 20);
    assert_int_equal(ngram_draft_worth(&l, &all, 0.2, 8, false), 0); /* its turn, but not in this step */
    for (int i = 31; i < 32 + 64 + 128 + 256 + 256; i++) tried += ngram_draft_worth(&l, &all, 0.2, 8, true);
    assert_int_equal(tried, 5); /* ever more rarely, to see whether the text has changed */
    ngram_draft_learn(&l, &all, 1, 1);
    for (int i = 0; i < 60; i++) ngram_draft_learn(&l, &all, 4, 0);
    for (int i = 0; i < 32; i++) tried += ngram_draft_worth(&l, &all, 0.2, 8, true);
    assert_int_equal(tried, 6); /* it had: at once */
    assert_int_equal(ngram_draft_worth(&l, &all, 0.2, 0, true), 0);
    ngram_draft_fini(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_followed_last),
        cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_equals_search),
        cmocka_unit_test(test_how_many_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

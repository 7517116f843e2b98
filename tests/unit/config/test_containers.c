/* Growable arrays and the hash table of ids (config/base/list.h, id_table.h). */
#include "config/base/id_table.h"
#include "config/base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_list(void **state)
{
    (void)state;
    uint64_t *list = NULL;
    uint16_t *beside = NULL;
    uint32_t cap = 0, growths = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t had = cap, same = cap;
        assert_true(LIST_RESERVE(beside, same, i + 1) && LIST_RESERVE(list, cap, i + 1));
        assert_int_equal(same, cap); /* arrays of one capacity */
        assert_in_range(cap, i + 1, 2 * i + 4);
        growths += cap != had;
        list[i] = i;
        beside[i] = (uint16_t)i;
    }
    for (uint32_t i = 0; i < 1000; i++) assert_true(list[i] == i && beside[i] == i);
    assert_in_range(growths, 2, 12);
    uint64_t *was = list;
    uint32_t had = cap;
    assert_true(LIST_RESERVE(list, cap, 10) && list == was && cap == had);
    /* More than the capacity's type holds, or than memory has bytes: nothing changes. */
    uint8_t *bytes = NULL;
    uint32_t none = 0;
    size_t many = (size_t)UINT32_MAX + 1;
    assert_false(LIST_RESERVE(bytes, none, many) || LIST_RESERVE(list, cap, many));
    assert_true(!bytes && !none);
    size_t wide = cap;
    assert_false(LIST_RESERVE(list, wide, SIZE_MAX / 4));
    assert_true(list == was && cap == had && wide == had && list[999] == 999);
    LIST_FIT(list, wide, 1000);
    assert_true(wide == 1000 && list[999] == 999);
    free(list);
    free(beside);
}

static void test_ids(void **state)
{
    (void)state;
    struct id_table t = {0};
    uint32_t at = 5;
    assert_int_equal(id_table_next(&t, 5, &at), 0); /* empty */
    for (uint32_t id = 1; id <= 5000; id++) assert_true(id_table_add(&t, id % 700 * 1024, id));
    for (uint32_t h = 0; h < 701; h++) {
        uint32_t hash = h * 1024, count = 0;
        at = hash;
        for (uint32_t id; (id = id_table_next(&t, hash, &at)); count++) assert_int_equal(id % 700, h);
        assert_int_equal(count, h == 700 ? 0 : 5000 / 700 + (h > 0 && h <= 5000 % 700));
    }
    uint32_t cap = t.cap, room = cap / 2 - t.used;
    assert_true(id_table_reserve(&t, room) && t.cap == cap);
    assert_true(id_table_reserve(&t, room + 1) && t.cap == 2 * cap);
    id_table_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

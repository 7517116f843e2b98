/* UTF-8: every code point there and back, every sequence of up to two bytes, and the examples of Unicode for
 * maximal subparts (3.9, tables 3-8 to 3-11). */
#include "config/base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_every_code_point(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x120000; c++) {
        uint32_t got, want = c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ? 0xFFFD : c;
        char text[4];
        size_t n = utf8_encode(c, text);
        assert_int_equal(n, want < 0x80 ? 1 : want < 0x800 ? 2 : want < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_decode(text, n, &got), n);
        assert_int_equal(got, want);
        assert_true(utf8_valid(text, n));
        assert_int_equal(utf8_count(text, n), 1);
        for (size_t cut = 0; cut < n; cut++) {
            assert_int_equal(utf8_decode(text, cut, &got), cut);
            assert_int_equal(got, UTF8_SHORT);
            assert_int_equal(utf8_valid(text, cut), cut == 0);
        }
    }
}

static void test_every_pair_of_bytes(void **state)
{
    (void)state;
    for (unsigned a = 0x80; a < 0x100; a++)
        for (unsigned b = 0; b < 0x100; b++) {
            uint8_t s[2] = {(uint8_t)a, (uint8_t)b};
            uint32_t cp;
            size_t n = utf8_decode(s, 2, &cp);
            bool lead = a >= 0xC2 && a <= 0xF4, follows = b >= 0x80 && b <= 0xBF;
            if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F) || (a == 0xF0 && b < 0x90) ||
                (a == 0xF4 && b > 0x8F))
                follows = false;
            assert_int_equal(n, lead && follows ? 2 : 1);
            assert_int_equal(cp, !lead || !follows ? UTF8_BAD
                                 : a < 0xE0        ? (a & 31) << 6 | (b & 63)
                                                   : UTF8_SHORT);
        }
}

/* Each '.' of `want` is a character, each 'x' a maximal subpart. */
static void test_subparts(void **state)
{
    static const struct {
        const char *text, *want;
    } table[] = {
        {"", ""},
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "xxxxxxxx."},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "xxxxxxxx."},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "xxxxx.xx."},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "xxxx."},
        {"a\xF1\x80\x80\xE1\x80\xC2"
         "b\x80"
         "c\x80\xBF"
         "d",
         ".xxx.x.xx."},
        {"\xF8\x88\x80\x80\x80", "xxxxx"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *s = table[i].text;
        size_t len = strlen(s), at = 0, k = 0;
        for (; at < len; k++) {
            uint32_t cp;
            at += utf8_decode(s + at, len - at, &cp);
            assert_int_equal(table[i].want[k], cp >= UTF8_BAD ? 'x' : '.');
        }
        assert_int_equal(at, len);
        assert_int_equal(k, strlen(table[i].want));
        assert_int_equal(utf8_valid(s, len), !strchr(table[i].want, 'x'));
    }
}

/* One wrong byte at every place of a text, and at every distance from its end. */
static void test_valid(void **state)
{
    (void)state;
    char text[40];
    for (size_t len = 0; len < sizeof text; len++) {
        memset(text, 'a', sizeof text);
        assert_true(utf8_valid(text, len));
        for (size_t at = 0; at < len; at++) {
            text[at] = (char)0x80;
            assert_false(utf8_valid(text, len));
            text[at] = 'a';
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_every_pair_of_bytes),
        cmocka_unit_test(test_subparts),
        cmocka_unit_test(test_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

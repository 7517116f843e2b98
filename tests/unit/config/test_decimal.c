/* The shortest decimals of numbers, and Python's repr of them. */
#include "config/base/decimal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_decimals(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *shortest, *single, *repr; /* single: of floats */
    } table[] = {
        {0, "0", "0", "0.0"},
        {-0.0, "-0", "-0", "-0.0"},
        {1, "1", "1", "1.0"},
        {0.1, "0.1", NULL, "0.1"},
        {(double)0.1f, "0.10000000149011612", "0.1", "0.10000000149011612"},
        {1.0 / 3, "0.3333333333333333", NULL, "0.3333333333333333"},
        {100000, "1e+05", "1e+05", "100000.0"},
        {150000.5, "150000.5", "150000.5", "150000.5"},
        {9007199254740994.0, "9007199254740994", NULL, "9007199254740994.0"},
        {1e16, "1e+16", "1e+16", "1e+16"},
        {15238036412849772.0, "15238036412849772", NULL, "1.5238036412849772e+16"},
        {0.0001, "0.0001", NULL, "0.0001"},
        {0.00001234, "1.234e-05", NULL, "1.234e-05"},
        {5e-324, "5e-324", NULL, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308", NULL, "1.7976931348623157e+308"},
        {(double)0x1.fffffep127f, "3.4028234663852886e+38", "3.4028235e+38", "3.4028234663852886e+38"},
        {INFINITY, "inf", "inf", "inf"},
        {-INFINITY, "-inf", "-inf", "-inf"},
        {-NAN, NULL, NULL, "nan"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[DECIMAL_BYTES];
        for (int single = 0; single < 2; single++) {
            const char *want = single ? table[i].single : table[i].shortest;
            decimal_shortest(table[i].v, single, 1, text);
            if (want) assert_string_equal(text, want);
        }
        assert_int_equal(decimal_repr(table[i].v, text), strlen(table[i].repr));
        assert_string_equal(text, table[i].repr);
    }
    char text[DECIMAL_BYTES];
    decimal_shortest(100000, true, 6, text); /* of six digits */
    assert_string_equal(text, "100000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decimals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SHA-256 against the vectors of FIPS 180-4 and the lengths around a block, in one piece and in many. */
#include "config/base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void hex(const void *data, size_t len, size_t piece, char out[65])
{
    struct sha256 s;
    uint8_t h[32];
    sha256_init(&s);
    for (size_t at = 0; at < len; at += piece)
        sha256_add(&s, (const uint8_t *)data + at, len - at < piece ? len - at : piece);
    sha256_end(&s, h);
    for (size_t i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", h[i]);
}

static void test_vectors(void **state)
{
    static uint8_t million[1000000];
    memset(million, 'a', sizeof million);
    static const struct {
        const char *text, *want;
    } table[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char got[65];
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (size_t piece = 1; piece < 70; piece += 23) {
            hex(table[i].text, strlen(table[i].text), piece, got);
            assert_string_equal(got, table[i].want);
        }
    hex(million, sizeof million, sizeof million, got);
    assert_string_equal(got, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Of 55, 56, 63, 64, 65 times 'a': where the length does not fit behind the text, and the ends of blocks. */
static void test_ends_of_blocks(void **state)
{
    static const struct {
        size_t len;
        const char *want;
    } table[] = {{55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
                 {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                 {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
                 {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
                 {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
                 {119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
                 {120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
                 {128, "6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e"}};
    char text[129], got[65];
    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        hex(text, table[i].len, 64, got);
        assert_string_equal(got, table[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_ends_of_blocks)};
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}

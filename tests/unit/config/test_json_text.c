/* The lexer of JSON text, alone: tokens, and what is wrong where; and the escapes of its writers. Readers are
 * tested beside it: test_json.c, test_server_body.c (against jansson), test_jinja.c. */
#include "config/base/json_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DEPTH = 4 };

/* Tokens as letters, and what is wrong where: "[nn." for [1,2], "[!1 it ends too early" for [. */
static void lex(const char *text, size_t len, char *out)
{
    struct json_lexer x = {.text = text, .len = len, .depth_max = DEPTH};
    for (enum json_token t = JSON_LEX_NULL; t > JSON_LEX_END;) *out++ = "!^.{[cksntf0"[t = json_lex(&x)];
    *out = '\0';
    if (out[-1] != '.') sprintf(out, "%zu %s", x.at, x.error);
}

static const struct {
    const char *text, *want;
} texts[] = {
    {"null", "0."},
    {" true ", "t."},
    {"false", "f."},
    {"0", "n."},
    {"-0", "n."},
    {"-12.5e+3", "n."},
    {"1E9", "n."},
    {"0.0", "n."},
    {"\"\"", "s."},
    {"\"\\u00e9\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "s."},
    {"\"\x7F\xFF\"", "s."}, /* a reader's business */
    {"[]", "[c."},
    {"[ ]", "[c."},
    {"{}", "{c."},
    {"{ }", "{c."},
    {"[1,2,[3,{}],\"x\"] ", "[nn[n{ccsc."},
    {"{\"a\":1,\"b\":{\"c\":[null]}}", "{knk{k[0ccc."},
    {"\t\r\n[1\n,\t2]\r ", "[nnc."},
    {"[[[[]]]]", "[[[[cccc."},
    {"{\"\":{\"\":\"\"}}", "{k{kscc."},
    {"", "!0 it ends too early"},
    {" ", "!1 it ends too early"},
    {"nul", "!0 a value expected"},
    {"nulll", "0!4 text after the value"},
    {"True", "!0 a value expected"},
    {"+1", "!0 a value expected"},
    {"01", "!2 a number with a zero before it"},
    {"-01", "!3 a number with a zero before it"},
    {"-", "!1 it ends too early"},
    {"-a", "!1 a value expected"},
    {"1.", "!2 it ends too early"},
    {"[1.]", "[!3 a digit expected"},
    {"1.e5", "!2 a digit expected"},
    {".5", "!0 a value expected"},
    {"1e", "!2 it ends too early"},
    {"1e+ ", "!3 a digit expected"},
    {"0x10", "n!1 text after the value"},
    {"NaN", "!0 a value expected"},
    {"Infinity", "!0 a value expected"},
    {"1 2", "n!2 text after the value"},
    {"\"", "!1 it ends too early"},
    {"\"a", "!2 it ends too early"},
    {"\"\\", "!2 no escape that JSON has"},
    {"\"\\\"", "!3 it ends too early"},
    {"\"\\x\"", "!2 no escape that JSON has"},
    {"\"\\u12\"", "!2 no escape that JSON has"},
    {"\"a\\u12g4\"", "!3 no escape that JSON has"},
    {"\"\n\"", "!1 a control character in a string"},
    {"'a'", "!0 a value expected"},
    {"[", "[!1 it ends too early"},
    {"]", "!0 a value expected"},
    {"[1", "[n!2 it ends too early"},
    {"[1,", "[n!3 it ends too early"},
    {"[1,]", "[n!3 a value expected"},
    {"[,1]", "[!1 a value expected"},
    {"[1 2]", "[n!3 ',' or ']' expected"},
    {"{", "{!1 it ends too early"},
    {"{\"a\"", "{k!4 it ends too early"},
    {"{\"a\":", "{k!5 it ends too early"},
    {"{\"a\":1", "{kn!6 it ends too early"},
    {"{\"a\":1,", "{kn!7 it ends too early"},
    {"{\"a\":1,}", "{kn!7 a key expected"},
    {"{\"a\":,}", "{k!5 a value expected"},
    {"{a:1}", "{!1 a key expected"},
    {"{,}", "{!1 a key expected"},
    {"{\"a\" 1}", "{k!5 ':' expected"},
    {"{\"a\",1}", "{k!4 ':' expected"},
    {"{1:2}", "{!1 a key expected"},
    {"{\"a\":1 \"b\":2}", "{kn!7 ',' or '}' expected"},
    {"{\"a\":1:\"b\"}", "{kn!6 ',' or '}' expected"},
    {"[}", "[!1 a value expected"},
    {"{]", "{!1 a key expected"},
    {"[1}", "[n!2 ',' or ']' expected"},
    {"{\"a\":1]", "{kn!6 ',' or '}' expected"},
    {"{} {}", "{c!3 text after the value"},
    {"// c\n1", "!0 a value expected"},
    {"[[[[[", "[[[[^4 nested too deep"},
    {"[[[[1,{", "[[[[n^6 nested too deep"},
};

static void test_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char got[64];
        size_t len = strlen(texts[i].text);
        char *text = malloc(len + !len); /* a sanitizer sees every read past the end */
        memcpy(text, texts[i].text, len);
        lex(text, len, got);
        free(text);
        if (strcmp(got, texts[i].want) != 0) fail_msg("%s: %s", texts[i].text, got);
    }
    static const struct {
        const char *text, *want;
        size_t len;
    } nul[] = {{"\"a\0b\"", "!2 a control character in a string", 5},
               {"\"\\\0\"", "!2 no escape that JSON has", 4},
               {"1\0", "n!1 text after the value", 2},
               {"[\0]", "[!1 a value expected", 3}};
    for (size_t i = 0; i < sizeof nul / sizeof *nul; i++) {
        char got[64];
        lex(nul[i].text, nul[i].len, got);
        assert_string_equal(got, nul[i].want);
    }
}

/* Where a token is, and what is said of it. */
static void test_places(void **state)
{
    (void)state;
    static const char text[] = " {\"k\":-1.5 ,\"\\n\":[\"ab\",7,true,1e2]}";
    static const struct {
        const char *bytes;
        uint32_t depth;
        bool escaped, whole; /* of strings; of numbers */
    } want[] = {{"{", 1, 0, 0},  {"k", 1, 0, 0}, {"-1.5", 1, 0, 0}, {"\\n", 1, 1, 0}, {"[", 2, 0, 0},
                {"ab", 2, 0, 0}, {"7", 2, 0, 1}, {"true", 2, 0, 0}, {"1e2", 2, 0, 0}};
    struct json_lexer x = {.text = text, .len = sizeof text - 1, .depth_max = 2};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        enum json_token t = json_lex(&x);
        assert_int_equal(x.to - x.from, strlen(want[i].bytes));
        assert_memory_equal(text + x.from, want[i].bytes, x.to - x.from);
        assert_int_equal(x.depth, want[i].depth);
        if (t == JSON_LEX_KEY || t == JSON_LEX_STRING) assert_int_equal(x.escaped, want[i].escaped);
        if (t == JSON_LEX_NUMBER) assert_int_equal(x.whole, want[i].whole);
    }
    assert_int_equal(json_lex(&x), JSON_LEX_CLOSE);
    assert_int_equal(x.depth, 1);
}

static void test_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        const char *must, *ascii, *lines, *log; /* NULL: as `must` */
    } table[] = {
        {"", "", NULL, NULL, NULL},
        {"plain /", "plain /", NULL, NULL, NULL},
        {"\"\\", "\\\"\\\\", NULL, NULL, NULL},
        {"a\b\f\n\r\tb", "a\\b\\f\\n\\r\\tb", NULL, NULL, "a\\u0008\\u000c\\u000a\\u000d\\u0009b"},
        {"\x01\x1f", "\\u0001\\u001f", NULL, NULL, NULL},
        {"\x7f", "\x7f", "\\u007f", "\\u007f", NULL},
        {"\xC2\x85\xC2\x84", "\xC2\x85\xC2\x84", "\\u0085\\u0084", "\\u0085\xC2\x84", NULL},
        {"\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA", "\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA",
         "\\u2028\\u2029\\u202a", "\\u2028\\u2029\xE2\x80\xAA", NULL},
        {"\xEF\xBF\xBF\xF0\x90\x80\x80\xF0\x9F\x98\x80x\xF4\x8F\xBF\xBF",
         "\xEF\xBF\xBF\xF0\x90\x80\x80\xF0\x9F\x98\x80x\xF4\x8F\xBF\xBF",
         "\\uffff\\ud800\\udc00\\ud83d\\ude00x\\udbff\\udfff", NULL, NULL},
        {"\xFF\xED\xA0", "\xFF\xED\xA0", "\\ufffd\\ufffd\\ufffd", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
         "\\ufffd\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *wants[] = {table[i].must, table[i].ascii, table[i].lines, table[i].log};
        size_t len = strlen(table[i].in);
        for (int which = JSON_ESCAPE_MUST; which <= JSON_ESCAPE_LOG; which++) {
            const char *want = wants[which] ? wants[which] : table[i].must;
            char got[128];
            size_t n = 0;
            struct json_escape e;
            for (size_t at = 0; at < len; at += e.plain + e.used) {
                e = json_escape_next(table[i].in + at, len - at, (enum json_escapes)which);
                n += (size_t)sprintf(got + n, "%.*s%s", (int)e.plain, table[i].in + at, e.text);
            }
            got[n] = '\0';
            if (strcmp(got, want) != 0) fail_msg("%d of %s: %s", which, table[i].in, got);
        }
    }
    /* A NUL, and what comes after it. */
    struct json_escape e = json_escape_next("\0x", 2, JSON_ESCAPE_MUST);
    assert_true(e.plain == 0 && e.used == 1);
    assert_string_equal(e.text, "\\u0000");
}

/* Every code point: escaped, and read again. */
static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char text[16];
        uint32_t got = 0;
        int n = sprintf(text, c < 0x10000 ? "\\u%04X" : "\\u%04X\\u%04x",
                        c < 0x10000 ? c : 0xD800 + ((c - 0x10000) >> 10 & 0x3FF),
                        0xDC00 + ((c - 0x10000) & 0x3FF));
        if (json_unescape(text, (size_t)n, &got) != (size_t)n || got != c) fail_msg("%s: %x", text, got);
    }
    static const struct {
        const char *text;
        size_t len;
        uint32_t cp;
    } lone[] = {{"\\ud83d", 6, 0xD83D},        {"\\ud83dx", 6, 0xD83D},   {"\\ude00", 6, 0xDE00},
                {"\\ud83d\\u0041", 6, 0xD83D}, {"\\ud83d\\n", 6, 0xD83D}, {"\\ud83d\\ud83d", 6, 0xD83D},
                {"\\ud83d\\ude0", 6, 0xD83D}};
    for (size_t i = 0; i < sizeof lone / sizeof *lone; i++) {
        uint32_t got = 0;
        assert_int_equal(json_unescape(lone[i].text, strlen(lone[i].text), &got), lone[i].len);
        assert_int_equal(got, lone[i].cp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* config/base/json.c: numbers, strings, navigation, and that no bytes harm it
 * (mutations from a seed). */
#include "config/base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Parses a copy of exactly len bytes, so that a sanitizer sees every read past the end. */
static enum status parse(const char *s, size_t len, struct json_doc *d, char **copy)
{
    struct err err = {{0}};
    *copy = malloc(len ? len : 1);
    if (len) memcpy(*copy, s, len);
    enum status st = json_parse(*copy, len, "test", d, &err);
    if (st) assert_non_null(strstr(err.msg, "test"));
    return st;
}

/* What is JSON: test_json_text.c. */
static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error; /* NULL: taken */
    } table[] = {{"\xEF\xBB\xBF{}", NULL},
                 {" [1,{\"a\":[]}] ", NULL},
                 {"\xEF\xBB{}", "test: not valid JSON: a value expected at byte 0"},
                 {"{\"a\":1,}", "test: not valid JSON: a key expected at byte 7"},
                 {"[1] 2", "test: not valid JSON: text after the value at byte 4"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct json_doc d = {0};
        struct err err = {{0}};
        enum status st = json_parse(table[i].text, strlen(table[i].text), "test", &d, &err);
        assert_int_equal(st, table[i].error ? ST_FORMAT : ST_OK);
        if (table[i].error) assert_string_equal(err.msg, table[i].error);
        else assert_int_equal(d.nodes[0].next, d.node_count);
        json_free(&d);
    }
}

static void test_depth(void **state)
{
    (void)state;
    for (size_t depth = 60; depth < 70; depth++) {
        char s[256];
        memset(s, '[', depth);
        memset(s + depth, ']', depth);
        struct json_doc d;
        char *copy;
        enum status st = parse(s, 2 * depth, &d, &copy);
        assert_int_equal(st, depth <= 64 ? ST_OK : ST_TOO_LARGE);
        if (!st) json_free(&d);
        free(copy);
    }
    char *deep = malloc(1 << 20);
    memset(deep, '[', 1 << 20);
    struct json_doc d;
    char *copy;
    assert_int_equal(parse(deep, 1 << 20, &d, &copy), ST_TOO_LARGE);
    free(copy);
    free(deep);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_int, is_uint, is_double;
        int64_t i;
        double v;
    } cases[] = {
        {"0", true, true, true, 0, 0},
        {"-0", true, true, true, 0, 0},
        {"5.0", true, true, true, 5, 5},
        {"5.5", false, false, true, 0, 5.5},
        {"-7", true, false, true, -7, -7},
        {"1e3", true, true, true, 1000, 1000},
        {"25e-1", false, false, true, 0, 2.5},
        {"9223372036854775807", true, true, true, INT64_MAX, 9223372036854775807.0},
        {"9223372036854775808", false, false, true, 0, 9223372036854775808.0},
        {"-9223372036854775808", true, false, true, INT64_MIN, -9223372036854775808.0},
        {"1e400", false, false, false, 0, 0},
        {"1e-400", true, true, true, 0, 0},
        {"1000000.0", true, true, true, 1000000, 1e6},
        {"1e17", false, false, true, 0, 1e17},
        {"0.000001", false, false, true, 0, 1e-6},
        {"\"5\"", false, false, false, 0, 0},
        {"null", false, false, false, 0, 0},
        {"[5]", false, false, false, 0, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct json_doc d;
        char *copy;
        assert_int_equal(parse(cases[k].text, strlen(cases[k].text), &d, &copy), ST_OK);
        int64_t i = -99;
        uint64_t u = 99;
        double v = -99;
        if (json_int(&d, 0, &i) != cases[k].is_int || json_uint(&d, 0, &u) != cases[k].is_uint ||
            json_double(&d, 0, &v) != cases[k].is_double)
            fail_msg("%s", cases[k].text);
        assert_true(i == (cases[k].is_int ? cases[k].i : -99)); /* untouched on failure */
        assert_true(u == (cases[k].is_uint ? (uint64_t)cases[k].i : 99));
        assert_true(v == (cases[k].is_double ? cases[k].v : -99));
        json_free(&d);
        free(copy);
    }
    char digits[400]; /* longer than any number that we read */
    memset(digits, '9', sizeof digits);
    struct json_doc d;
    char *copy;
    int64_t i;
    assert_int_equal(parse(digits, sizeof digits, &d, &copy), ST_OK);
    assert_false(json_int(&d, 0, &i));
    json_free(&d);
    free(copy);
}

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
        size_t len;
    } cases[] = {
        {"\"plain\"", "plain", 5},
        {"\"\\u0041\\n\\/\"", "A\n/", 3},
        {"\"\\u0000\"", "\0", 1},
        {"\"\\u00e9\"", "\xC3\xA9", 2},
        {"\"\\u20ac\"", "\xE2\x82\xAC", 3},
        {"\"\\ud83d\\udE00\"", "\xF0\x9F\x98\x80", 4},
        {"\"\\ud83d\"", "\xEF\xBF\xBD", 3},
        {"\"\\ud83dx\"", "\xEF\xBF\xBDx", 4},
        {"\"\\ude00\"", "\xEF\xBF\xBD", 3},
        {"\"\\ud83d\\u0041\"",
         "\xEF\xBF\xBD"
         "A",
         4},
        {"\"\\ud83d\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7},
        {"\"\\ud83d\\n\"", "\xEF\xBF\xBD\n", 4},
        {"\"\\u007f\\u0080\\u07ff\\u0800\\uffff\"", "\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF", 11},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct json_doc d;
        char *copy, buf[64];
        size_t len = 0;
        assert_int_equal(parse(cases[k].text, strlen(cases[k].text), &d, &copy), ST_OK);
        char *s = json_str_dup(&d, 0, &len);
        assert_int_equal(len, cases[k].len);
        assert_memory_equal(s, cases[k].want, len + (cases[k].len == strlen(cases[k].want)));
        assert_true(json_str_copy(&d, 0, buf, cases[k].len, &len));
        assert_false(json_str_copy(&d, 0, buf, cases[k].len - 1, &len));
        assert_true(json_str_eq(&d, 0, cases[k].want) == (strlen(cases[k].want) == cases[k].len));
        assert_false(json_str_eq(&d, 0, "something else"));
        free(s);
        json_free(&d);
        free(copy);
    }
}

static void test_navigation(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":1,\"b\":{\"a\":[10,[20],{\"x\":30},40]},\"a\":2,\"n\":null,\"\\u0063\":\"c\"}";
    struct json_doc d;
    char *copy;
    int64_t i = 0;
    assert_int_equal(parse(text, sizeof text - 1, &d, &copy), ST_OK);
    assert_int_equal(json_kind(&d, 0), JSON_OBJECT);
    assert_int_equal(json_count(&d, 0), 5);
    assert_true(json_int(&d, json_get(&d, 0, "a"), &i) && i == 2); /* the last of equal keys */
    assert_true(json_str_eq(&d, json_get(&d, 0, "c"), "c"));
    uint32_t list = json_get(&d, json_get(&d, 0, "b"), "a");
    assert_int_equal(json_count(&d, list), 4);
    assert_true(json_int(&d, json_at(&d, list, 3), &i) && i == 40);
    assert_true(json_int(&d, json_get(&d, json_at(&d, list, 2), "x"), &i) && i == 30);
    assert_int_equal(json_at(&d, list, 4), JSON_NONE);
    int64_t seen = 0;
    uint32_t node = json_first(&d, list);
    for (uint32_t k = 0; k < json_count(&d, list); k++, node = json_next(&d, node))
        seen = seen * 10 + (int64_t)json_kind(&d, node);
    assert_int_equal(seen, JSON_NUMBER * 1000 + JSON_ARRAY * 100 + JSON_OBJECT * 10 + JSON_NUMBER);
    assert_int_equal(json_kind(&d, json_get(&d, 0, "n")), JSON_NULL);
    assert_int_not_equal(json_get(&d, 0, "n"), JSON_NONE);
    assert_int_equal(json_get_live(&d, 0, "n"), JSON_NONE);
    assert_int_equal(json_get(&d, 0, "zz"), JSON_NONE);
    /* Every function takes "nothing". */
    bool b = true;
    double v;
    size_t len;
    assert_int_equal(json_kind(&d, JSON_NONE), JSON_NULL);
    assert_int_equal(json_get(&d, JSON_NONE, "a"), JSON_NONE);
    assert_int_equal(json_get(&d, list, "a"), JSON_NONE);
    assert_int_equal(json_first(&d, JSON_NONE), JSON_NONE);
    assert_int_equal(json_at(&d, JSON_NONE, 0), JSON_NONE);
    assert_int_equal(json_at(&d, 0, 0), JSON_NONE);
    assert_int_equal(json_count(&d, JSON_NONE), 0);
    assert_false(json_int(&d, JSON_NONE, &i) || json_double(&d, JSON_NONE, &v) ||
                 json_bool(&d, JSON_NONE, &b) || json_str_eq(&d, JSON_NONE, ""));
    assert_null(json_str_dup(&d, JSON_NONE, &len));
    assert_null(json_raw(&d, JSON_NONE, &len));
    json_free(&d);
    free(copy);
}

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/kvasir-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"a\":[1]}", 9), 9);
    close(fd);
    struct json_doc d;
    struct err err = {{0}};
    assert_int_equal(json_doc_load(path, 9, &d, &err), ST_OK);
    assert_int_equal(json_count(&d, json_get(&d, 0, "a")), 1);
    json_free(&d);
    assert_int_equal(json_doc_load(path, 8, &d, &err), ST_TOO_LARGE);
    assert_int_equal(json_doc_load("/tmp", 100, &d, &err), ST_FORMAT);
    unlink(path);
    assert_int_equal(json_doc_load(path, 100, &d, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.msg, path));
}

/* ---- mutations ---- */

static uint64_t rng_state = 99;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 16) % below);
}

/* Visits every node through the public functions; the tree must hold exactly the nodes that there are. */
static uint32_t walk(const struct json_doc *d, uint32_t node)
{
    size_t len;
    int64_t i;
    double v;
    enum json_kind kind = json_kind(d, node);
    if (kind == JSON_STRING) {
        char *s = json_str_dup(d, node, &len);
        assert_non_null(s);
        assert_true(len <= d->nodes[node].len);
        if (strlen(s) == len) assert_true(json_str_eq(d, node, s));
        free(s);
    }
    if (json_int(d, node, &i)) assert_true(json_double(d, node, &v));
    assert_non_null(json_raw(d, node, &len));
    if (kind != JSON_ARRAY && kind != JSON_OBJECT) return 1;
    uint32_t nodes = 1, child = json_first(d, node), n = json_count(d, node) * (kind == JSON_OBJECT ? 2 : 1);
    for (uint32_t k = 0; k < n; k++, child = json_next(d, child)) {
        if (kind == JSON_OBJECT && k % 2 == 0) assert_int_equal(json_kind(d, child), JSON_STRING);
        nodes += walk(d, child);
    }
    assert_int_equal(d->nodes[node].next, node + nodes);
    return nodes;
}

static void test_mutations(void **state)
{
    (void)state;
    static const char seed[] =
        "{\"version\":\"1.0\",\"list\":[1,-2.5e3,true,false,null,\"a\\u00e9\\ud83d\\ude00\\n\",[],{}],"
        "\"deep\":[[[{\"k\":[0.1]}]]],\"\\u0120the\":{\"id\":12,\"x\":\"\xC3\xA9\"}} ";
    static const char alphabet[] = "{}[]\",:\\u0123456789abcdefntrl-+.eE \n\t\xC3\xA9\x00\xFF";
    size_t good = 0, bad = 0;
    for (int round = 0; round < 60000; round++) {
        char s[512];
        size_t len = sizeof seed - 1;
        memcpy(s, seed, len);
        if (round % 4 == 0) { /* no seed at all */
            len = rnd(24);
            for (size_t i = 0; i < len; i++) s[i] = alphabet[rnd(sizeof alphabet - 1)];
        }
        for (uint32_t edits = rnd(4); edits > 0 && len > 1; edits--) {
            uint32_t at = rnd((uint32_t)len), kind = rnd(4), n = 1 + rnd(8);
            if (kind == 0) s[at] = alphabet[rnd(sizeof alphabet - 1)];
            else if (kind == 1) len = at;
            else if (kind == 2 && n < len - at) {
                memmove(s + at, s + at + n, len - at - n);
                len -= n;
            } else if (n < len - at) {
                memmove(s + at + n, s + at, len - at);
                len += n;
            }
        }
        struct json_doc d;
        char *copy;
        if (parse(s, len, &d, &copy) == ST_OK) {
            assert_int_equal(walk(&d, 0), d.node_count);
            json_free(&d);
            good++;
        } else {
            bad++;
        }
        free(copy);
    }
    assert_true(good > 5000 && bad > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_depth),      cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_strings),   cmocka_unit_test(test_navigation), cmocka_unit_test(test_files),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

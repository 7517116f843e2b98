/* JSON output, event framing and stop strings: pure text functions of server/. */
#include "server/json/writer.h"
#include "server/http/stream.h"
#include "server/generate/stop_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *want;
    } table[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"a\"b\\c", 5, "\"a\\\"b\\\\c\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f", 3, "\"\\u0000\\u0001\\u001f\""},
        {"\x7f", 1, "\"\\u007f\""},
        {"\xC2\x85", 2, "\"\\u0085\""},                        /* NEL */
        {"\xE2\x80\xA8\xE2\x80\xA9", 6, "\"\\u2028\\u2029\""}, /* line and paragraph separator */
        {"\xF0\x9F\x98\x80", 4, "\"\xF0\x9F\x98\x80\""},
        {"a\xFFz", 3, "\"a\xEF\xBF\xBDz\""},
        {"\xC0\x80", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},                                 /* overlong */
        {"\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},                 /* surrogate */
        {"\xF0\x9F\x98", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},                 /* cut */
        {"\xF4\x90\x80\x80", 4, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* beyond U+10FFFF */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct buf b;
        buf_init(&b, 1000);
        struct json_writer o = {.buf = &b};
        jw_string(&o, table[i].in, table[i].len);
        assert_int_equal(o.st, ST_OK);
        assert_string_equal(b.data, table[i].want);
        buf_fini(&b);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        float in;
        const char *want;
    } table[] = {{0, "0.0"},
                 {-1, "-1.0"},
                 {0.1f, "0.1"},
                 {-3.6239882f, "-3.6239882"},
                 {1e-10f, "1e-10"},
                 {-9999, "-9999.0"},
                 {16777216.0f, "16777216.0"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct buf b;
        buf_init(&b, 100);
        struct json_writer o = {.buf = &b};
        jw_float32(&o, table[i].in);
        assert_true(strtof(b.data, NULL) == table[i].in);
        if (i != 6) assert_string_equal(b.data, table[i].want); /* 2^24 may also be written 1.6777216e+07 */
        buf_fini(&b);
    }
    struct buf b;
    buf_init(&b, 200);
    struct json_writer o = {.buf = &b};
    jw_float32(&o, -1.0f / 0.0f);
    assert_null(strstr(b.data, "inf"));
    b.len = 0;
    jw_ids(&o, (const uint32_t[]){1, 4294967295u}, 2);
    assert_string_equal(b.data, "[1,4294967295]");
    buf_fini(&b);
}

static void test_ceiling(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 8);
    struct json_writer o = {.buf = &b};
    jw_text(&o, "12345678");
    assert_int_equal(o.st, ST_OK);
    jw_text(&o, "9");
    assert_int_equal(o.st, ST_TOO_LARGE);
    buf_fini(&b);
}

static void test_events(void **state)
{
    (void)state;
    const char *two = "data: {\"a\":1}\n\ndata: {\"b\":22}\n\n";
    size_t len = strlen(two), first = strlen("data: {\"a\":1}\n\n");
    for (size_t max = first; max < len + 9; max++)
        assert_int_equal(stream_first_event(two, len, max, SSE_END), first);
    for (size_t max = 1; max < first; max++)
        assert_int_equal(stream_first_event(two, len, max, SSE_END), max); /* must be torn */
}

/* A line is taken at a time; what is dropped leaves room for another line, unless part of one is taken. */
static void test_lines(void **state)
{
    (void)state;
    struct stream s = {.lines = true};
    struct buf b;
    char to[64];
    buf_init(&b, 64);
    assert_int_equal(buf_add(&b, "{\"a\":1}\n{\"b\":2}\n", 16), ST_OK);
    assert_int_equal(stream_take(&s, &b, to, sizeof to), 8);
    assert_memory_equal(to, "{\"a\":1}\n", 8);
    assert_int_equal(stream_take(&s, &b, to, 3), 3);
    assert_false(stream_drop(&s, &b));
    assert_int_equal(stream_take(&s, &b, to, sizeof to), 5);
    assert_int_equal(buf_add(&b, "{\"c\":3}\n{\"d\":4}\n", 16), ST_OK);
    assert_int_equal(stream_take(&s, &b, to, sizeof to), 8);
    assert_true(stream_drop(&s, &b));
    assert_true(s.lines);
    assert_int_equal(b.len, 0);
    buf_fini(&b);
}

/* The same by brute force: after every byte, look for every string at the end. */
static struct stop_hit naive(const struct stop_string *s, size_t count, const char *text, size_t len)
{
    for (size_t end = 1; end <= len; end++) {
        struct stop_hit hit = {0};
        for (size_t i = 0; i < count; i++) {
            if (s[i].len <= end && memcmp(text + end - s[i].len, s[i].text, s[i].len) == 0 &&
                s[i].len > hit.len) {
                hit = (struct stop_hit){.found = true, .which = (uint32_t)i, .end = end, .len = s[i].len};
            }
        }
        if (hit.found) return hit;
    }
    return (struct stop_hit){0};
}

static size_t naive_held(const struct stop_string *s, size_t count, const char *text, size_t len)
{
    size_t held = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 1; n < s[i].len; n++) {
            if (n <= len && n > held && memcmp(text + len - n, s[i].text, n) == 0) held = n;
        }
    }
    return held;
}

static void test_stops_random(void **state)
{
    (void)state;
    uint32_t seed = 12345;
#define RND(n) ((seed = seed * 1664525u + 1013904223u) >> 8) % (n)
    unsigned hits = 0;
    for (int round = 0; round < 20000; round++) {
        char strings[4][6], text[40];
        struct stop_string list[4];
        size_t count = 1 + RND(4), len = RND(40);
        for (size_t i = 0; i < count; i++) {
            list[i] = (struct stop_string){strings[i], 1 + RND(5)};
            for (size_t k = 0; k < list[i].len; k++) strings[i][k] = (char)('a' + RND(2));
        }
        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + RND(round % 5 ? 3 : 2));
        struct stop_set *set;
        assert_int_equal(stop_set_create(list, count, &set), ST_OK);
        struct stop_state st = {0};
        struct stop_hit got = {0}, want = naive(list, count, text, len);
        size_t at = 0;
        while (at < len && !got.found) { /* pieces of any size */
            size_t piece = 1 + RND(4);
            if (piece > len - at) piece = len - at;
            got = stop_feed(set, &st, text + at, piece);
            if (got.found) got.end += at;
            at += piece;
            if (!got.found) assert_int_equal(stop_held(set, &st), naive_held(list, count, text, at));
        }
        assert_int_equal(got.found, want.found);
        if (got.found) {
            hits++;
            assert_int_equal(got.end, want.end);
            assert_int_equal(got.len, want.len);
            assert_memory_equal(list[got.which].text, list[want.which].text, got.len);
        }
        stop_set_free(set);
    }
    assert_true(hits > 1000);
}

static void test_stops_empty(void **state)
{
    (void)state;
    struct stop_set *set;
    struct stop_string none = {"", 0};
    assert_int_equal(stop_set_create(&none, 1, &set), ST_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),     cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_ceiling),     cmocka_unit_test(test_events),
        cmocka_unit_test(test_lines),       cmocka_unit_test(test_stops_random),
        cmocka_unit_test(test_stops_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Bodies of requests: repair of ill-formed text, limits, and typed fields. No server runs: a request is a
 * struct. */
#include "server/http/request.h"
#include "server/json/fields.h"
#include "server/generate/generate.h"
#include "server/json/parser.h"
#include "tests/lib/backend_sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Parses text; NULL when it was refused, with the error in r. */
static json_t *parse(struct request *r, const char *text, size_t len)
{
    *r = (struct request){0};
    buf_init(&r->http.body, 64u << 20);
    assert_int_equal(buf_add(&r->http.body, text, len), ST_OK);
    json_t *root = NULL;
    enum status st = request_body_parse(r, &root);
    buf_fini(&r->http.body);
    assert_int_equal(st == ST_OK, root != NULL);
    if (!root) {
        assert_int_equal(r->response.error.http, 400);
        assert_string_equal(r->response.error.code, "invalid_json");
    }
    return root;
}

static void test_repair(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t len; /* 0 = strlen */
        const char *want;
        size_t want_len;
    } table[] = {
        {"{\"a\":\"x\"}", 0, "x", 1},
        {"\xEF\xBB\xBF {\"a\":\"x\"} ", 0, "x", 1},
        {"{\"a\":\"\xFF\"}", 0, "\xEF\xBF\xBD", 3},
        {"{\"a\":\"z\xC3\"}", 0, "z\xEF\xBF\xBD", 4},
        {"{\"a\":\"\\ud83d\\ude00\"}", 0, "\xF0\x9F\x98\x80", 4},
        {"{\"a\":\"\\uD800\"}", 0, "\xEF\xBF\xBD", 3},
        {"{\"a\":\"\\uDC00x\"}", 0, "\xEF\xBF\xBDx", 4},
        {"{\"a\":\"\\ud800\\ud800\\udc00\"}", 0, "\xEF\xBF\xBD\xF0\x90\x80\x80", 7},
        {"{\"a\":\"\\ud800\\n\"}", 0, "\xEF\xBF\xBD\n", 4},
        {"{\"a\":\"x\\u0000y\"}", 0, "x\0y", 3},
        {"{\"a\":\"\\\\ud800\"}", 0, "\\ud800", 6}, /* an escaped backslash, no escape */
        {"{\"a\":\"1\",\"a\":\"2\"}", 0, "2", 1},
        {"{\"b\":\"\xFE\",\"a\":\"\\\"\xFE\"}", 0, "\"\xEF\xBF\xBD", 4},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct request r;
        json_t *root = parse(&r, table[i].in, table[i].len ? table[i].len : strlen(table[i].in));
        assert_non_null(root);
        json_t *a = json_object_get(root, "a");
        assert_int_equal(json_string_length(a), table[i].want_len);
        assert_memory_equal(json_string_value(a), table[i].want, table[i].want_len);
        json_decref(root);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const table[] = {"",
                                        " ",
                                        "{\"a\\u0000b\":1}",
                                        "{",
                                        "[]",
                                        "1",
                                        "null",
                                        "\"x\"",
                                        "{} x",
                                        "{\"a\":1}{}",
                                        "{\"a\":1e999}",
                                        "{\"a\":\"\\ud8\"}",
                                        "{\"a\":\"",
                                        "{\"a\":\"\\",
                                        "\xEF\xBB\xBF",
                                        "{\"a\":NaN}",
                                        "{'a':1}",
                                        "{\"a\":01}",
                                        "{\"a\":\"\n\"}"};
    struct request r;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_null(parse(&r, table[i], strlen(table[i])));
    char deep[1000];
    for (unsigned levels = 126; levels <= 130; levels++) { /* the object around it counts too */
        size_t n = (size_t)sprintf(deep, "{\"a\":");
        memset(deep + n, '[', levels);
        memset(deep + n + levels, ']', levels);
        deep[n + 2 * levels] = '}';
        json_t *root = parse(&r, deep, n + 2 * levels + 1);
        assert_int_equal(root != NULL, levels <= 127);
        json_decref(root);
    }
    size_t many = 9000000;
    char *text = malloc(many + 10);
    assert_non_null(text);
    memcpy(text, "{\"a\":[", 6);
    for (size_t i = 0; i < many; i++) text[6 + i] = i % 2 ? ',' : '1';
    memcpy(text + 6 + many, "1]}", 3);
    assert_null(parse(&r, text, many + 9));
    free(text);
}

/* Whole numbers beyond 64 bits are numbers, and what only looks like one stays as it is. */
static void test_large_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        bool integer;
        double want;
    } table[] = {
        {"{\"a\":9223372036854775807}", true, 0},
        {"{\"a\":-9223372036854775808}", true, 0},
        {"{\"a\":9223372036854775808}", false, 9223372036854775808.0},
        {"{\"a\":-9223372036854775809}", false, -9223372036854775808.0},
        {"{\"b\":[18446744073709551615,1],\"a\":18446744073709551615}", false, 18446744073709551615.0},
        {"{\"a\":0.12345678901234567890123456789}", false, 0.12345678901234567890123456789},
        {"{\"a\":12345678901234567890123.5e-3}", false, 12345678901234567890123.5e-3},
        {"{\"a\":1e0000000000000000000000000001}", false, 10},
        {"{\"s\":\"99999999999999999999\",\"a\":1}", true, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct request r;
        json_t *root = parse(&r, table[i].in, strlen(table[i].in));
        if (!root) fail_msg("%s: %s", table[i].in, r.response.error.message);
        json_t *a = json_object_get(root, "a");
        assert_int_equal(json_is_integer(a), table[i].integer);
        if (!table[i].integer)
            assert_true(memcmp(&(double){json_real_value(a)}, &table[i].want, sizeof(double)) == 0);
        if (json_object_get(root, "s"))
            assert_string_equal(json_string_value(json_object_get(root, "s")), "99999999999999999999");
        json_decref(root);
    }
    /* Inside of other values they keep their digits. */
    static const struct {
        const char *in, *want; /* NULL: refused */
    } inner[] = {
        {"{\"a\":[9223372036854775808]}", "9223372036854775808"},
        {"{\"a\":[-9223372036854775809 ,1]}", "-9223372036854775809"},
        {"{\"a\":[123456789012345678901234567890],\"b\":\"\xFF\"}", "123456789012345678901234567890"},
        {"{\"a\":[1234567890123456789012e0]}", ""},
        {"{\"a\":[9223372036854775807]}", ""},
        {"{\"a\":[\"123456789012345678901234567890\"]}", ""},
        {"{\"a\":[00000000000000000000000000001]}", NULL},
        {"{\"a\":[--123456789012345678901]}", NULL},
        {"{\"a\":[+123456789012345678901]}", NULL},
        {"{\"a\":[123456789012345678901x]}", NULL},
        {"{\"a\":{123456789012345678901:1}}", NULL},
    };
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        struct request one;
        json_t *root = parse(&one, inner[i].in, strlen(inner[i].in));
        if (!root != !inner[i].want) fail_msg("%s", inner[i].in);
        const char *got = json_big_int(json_array_get(json_object_get(root, "a"), 0));
        if (inner[i].want) assert_string_equal(got ? got : "", inner[i].want);
        json_decref(root);
    }
    /* They count as the objects that they become. */
    struct request many;
    size_t count = 1100000, at = 6;
    char *list = malloc(count * 20 + 16);
    memcpy(list, "{\"a\":[", 6);
    for (size_t i = 0; i < count; i++, at += 20) memcpy(list + at, "9223372036854775808,", 20);
    memcpy(list + at - 1, "]}", 2);
    assert_null(parse(&many, list, at + 1));
    assert_non_null(strstr(many.response.error.message, "too many values"));
    free(list);
    struct request r;
    char digits[420] = "{\"a\":";
    memset(digits + 5, '9', 400);
    strcpy(digits + 405, "}");
    assert_null(parse(&r, digits, strlen(digits))); /* no double either */
}

/* The arguments of a call are JSON in a text. */
static void test_inner_text(void **state)
{
    (void)state;
    static const char text[] = "{\"id\":18446744073709551616,\"s\":\"\\\"99999999999999999999\"}";
    json_t *j = NULL;
    assert_int_equal(json_from_text(text, sizeof text - 1, &j), ST_OK);
    assert_string_equal(json_big_int(json_object_get(j, "id")), "18446744073709551616");
    assert_string_equal(json_string_value(json_object_get(j, "s")), "\"99999999999999999999");
    json_decref(j);
    static const char *const none[] = {"", "{", "{\"a\":\"\\ud800\"}", "{\"a\":\"\xFF\"}", "{\"a", "{\"a\\"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(json_from_text(none[i], strlen(none[i]), &j), ST_FORMAT);
}

/* What jansson makes of a text, with memory. */
static void test_as_jansson(void **state)
{
    (void)state;
    static const char seed[] = "{\"a\":[1,-0.5e+3,true,false,null,{}],"
                               "\"b\\u00e9\":\"x\\n\\/\xC3\xA9\\ud83d\\ude00\", \"\":[[],{\"a\":0E-1}]}";
    static const char bytes[] = "{}[]\",:\\ue+-.019 \tnt\xC3\xA9\xFF\x1F";
    uint64_t rng = 1, taken = 0;
    for (int round = 0; round < (test_briefly() ? 75000 : 300000); round++) {
        char text[sizeof seed + 8];
        size_t len = sizeof seed - 1;
        memcpy(text, seed, sizeof seed);
        for (int k = round % 4; k >= 0; k--) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            size_t at = (rng >> 33) % len;
            char c = bytes[(rng >> 20) % (sizeof bytes - 1)];
            if (rng >> 60 < 6) {
                text[at] = c;
            } else if (rng >> 60 < 12) {
                memmove(text + at, text + at + 1, --len - at);
            } else {
                memmove(text + at + 1, text + at, len++ - at);
                text[at] = c;
            }
        }
        json_t *want = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), *got = NULL;
        if (json_from_text(text, len, &got) != (want ? ST_OK : ST_FORMAT)) fail_msg("%.*s", (int)len, text);
        if (want && !json_equal(want, got)) fail_msg("%.*s", (int)len, text);
        taken += want != NULL;
        json_decref(want);
        json_decref(got);
    }
    assert_in_range(taken, 3000, 200000);
}

static size_t left;
static void *scarce(size_t size)
{
    return left && left-- ? malloc(size) : NULL;
}

/* Whichever allocation of a value fails; the leak checker looks on. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,2.5,true,null,\"\\u0041\",18446744073709551616],\"b\":{\"c\":{}},\"b\":[[]]}";
    enum status st = ST_NOMEM;
    size_t n = 0;
    json_set_alloc_funcs(scarce, free);
    for (; st; n++) {
        json_t *j = NULL;
        left = n;
        st = json_from_text(text, sizeof text - 1, &j);
        assert_true(st == ST_OK || st == ST_NOMEM);
        assert_int_equal(st == ST_OK, j != NULL);
        json_decref(j);
    }
    json_set_alloc_funcs(malloc, free);
    assert_in_range(n, 20, 200);
}

static void test_names(void **state)
{
    (void)state;
    json_t *root = json_pack("{s:i,s:i,s:i,s:i}", "model", 1, "temperatur", 2, "a\n\xC3\xA9", 3, "top_p", 4),
           *s = json_stringn("text\0x", 6);
    static const char *const known[] = {"model", "top_p"};
    char names[40];
    assert_int_equal(fields_unknown(root, known, 2, names, sizeof names), 2);
    assert_string_equal(names, "temperatur, a???");
    assert_int_equal(fields_unknown(root, known, 2, names, 12), 2); /* what has no room is only counted */
    assert_string_equal(names, "temperatur");
    assert_false(json_is(s, "text"));
    assert_false(json_is(json_object_get(root, "model"), "1"));
    json_decref(s);
    s = json_string("text");
    assert_true(json_is(s, "text"));
    assert_false(json_is(s, "tex"));
    json_decref(s);
    json_decref(root);
}

static void test_near(void **state)
{
    (void)state;
    static const char *const known[] = {
        "temperature", "top_p",    "top_k", "max_tokens", "max_completion_tokens", "stop", "stream", "seed",
        "min_p",       "messages", "tools", "tool_choice"};
    static const struct {
        const char *name, *want;
    } cases[] = {{"tempreature", "temperature"},
                 {"temprature", "temperature"},
                 {"Temperature", "temperature"},
                 {"tmperatrue", "temperature"},
                 {"maxTokens", "max_tokens"},
                 {"max-tokens", "max_tokens"},
                 {"max_token", "max_tokens"},
                 {"max_completions_token", "max_completion_tokens"},
                 {"topP", "top_p"},
                 {"steam", "stream"},
                 {"toolchoice", "tool_choice"},
                 {"message", "messages"},
                 {"top_n", NULL},
                 {"step", NULL},
                 {"min_k", NULL},
                 {"max_new_tokens", NULL},
                 {"models", NULL},
                 {"n_probs", NULL},
                 {"", NULL},
                 {"a_name_that_is_longer_than_any_field_of_any_server_is", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *near = field_near(cases[i].name, known, sizeof known / sizeof *known);
        if (cases[i].want ? !near || strcmp(near, cases[i].want) != 0 : near != NULL)
            fail_msg("%s: %s", cases[i].name, near);
    }
}

static void test_fields(void **state)
{
    (void)state;
    json_error_t je;
    json_t *root = json_loads(
        "{\"i\":5,\"r\":5.0,\"h\":5.5,\"s\":\"5\",\"t\":true,\"n\":null,\"big\":1e300,\"neg\":-3,\"far\":9."
        "2100000000000000e18,\"low\":-9223372036854775808.0,\"edge\":9223372036854775808.0}",
        0, &je);
    assert_non_null(root);
    static const struct {
        const char *name;
        bool ok, has;
        const char *code;
    } ints[] = {{"i", true, true, NULL},
                {"r", true, true, NULL},
                {"h", false, false, "invalid_type"},
                {"s", false, false, "invalid_type"},
                {"t", false, false, "invalid_type"},
                {"n", true, false, NULL},
                {"absent", true, false, NULL},
                {"big", false, false, "invalid_value"},
                {"neg", false, false, "invalid_value"}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        struct api_error e = {0};
        int64_t v = 77;
        bool has = true;
        assert_int_equal(field_int(&e, root, ints[i].name, 0, 10, &v, &has) == ST_OK, ints[i].ok);
        assert_int_equal(has, ints[i].has);
        assert_int_equal(v, ints[i].has ? 5 : 77);
        if (ints[i].code) {
            assert_string_equal(e.code, ints[i].code);
            assert_string_equal(e.param, ints[i].name);
            assert_int_equal(e.http, 400);
        }
    }
    struct api_error e = {0};
    int64_t all = 0;
    assert_int_equal(field_int(&e, root, "far", INT64_MIN, INT64_MAX, &all, NULL), ST_OK);
    assert_true(all == 9210000000000000000);
    assert_int_equal(field_int(&e, root, "low", INT64_MIN, INT64_MAX, &all, NULL), ST_OK);
    assert_true(all == INT64_MIN);
    assert_int_equal(field_int(&e, root, "edge", INT64_MIN, INT64_MAX, &all, NULL), ST_INVALID);
    assert_string_equal(e.code, "invalid_value");
    e = (struct api_error){0};
    bool b = false;
    double d = 0;
    assert_int_equal(field_bool(&e, root, "t", &b), ST_OK);
    assert_true(b);
    assert_int_equal(field_bool(&e, root, "i", &b), ST_INVALID);
    assert_int_equal(field_num(&e, root, "h", 0, 10, &d, NULL), ST_OK);
    assert_true(d > 5.4 && d < 5.6);
    assert_int_equal(field_num(&e, root, "s", 0, 10, &d, NULL), ST_INVALID);
    assert_string_equal(e.param, "i"); /* the first error stays */
    json_decref(root);
}

int main(void)
{
    json_object_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repair),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_inner_text),
        cmocka_unit_test(test_as_jansson),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_near),
        cmocka_unit_test(test_fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

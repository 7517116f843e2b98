/* JSON schemas as grammars: strings that match, strings that do not, schemas that are rejected. */
#include "tests/lib/grammars.h"
#include "server/grammar/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LIST(...)                                                                                            \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__ __VA_OPT__(, ) NULL                                                                      \
    }

static bool any_order;

static bool match(struct grammar *g, const char *s)
{
    uint32_t state = STATE_FIRST;
    for (; *s && state; s++) state = machine__next(g, state, (uint8_t)*s);
    return state && g->states[state].accepts;
}

static struct grammar *make(const char *schema, struct grammar_error *error)
{
    json_error_t where;
    json_t *j = json_loads(schema, JSON_DECODE_ANY, &where);
    struct grammar *g = NULL;
    assert_non_null(j);
    if (grammar_from_schema(j, &(struct grammar_json_options){.any_whitespace = true, .any_order = any_order},
                            &g, error))
        g = NULL;
    json_decref(j);
    return g;
}

static void row(const char *schema, const char *const *good, const char *const *bad)
{
    struct grammar_error error;
    struct grammar *g = make(schema, &error);
    if (!g) fail_msg("%s: %s at %s", schema, error.message, error.path);
    for (; *good; good++)
        if (!match(g, *good)) fail_msg("%s refuses %s", schema, *good);
    for (; *bad; bad++)
        if (match(g, *bad)) fail_msg("%s accepts %s", schema, *bad);
    grammar_unref(g);
}

static void test_texts(void **state)
{
    (void)state;
    row("{}", LIST("1", "null", "{\"a\": [1, 2, {\"b\":null}]}", "\"x\\n\"", "[]", "-1.5e3"),
        LIST("{", "01", "[1,]"));
    row("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
        "\"required\":[\"a\"],\"additionalProperties\":false}",
        LIST("{\"a\": 1}", "{\"a\":1,\"b\":\"x\"}", "{\n  \"a\": 5\n}"),
        LIST("{}", "{\"b\":\"x\"}", "{\"a\":1.5}", "{\"a\":1,\"c\":2}"));
    row("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}",
        LIST("{}", "{\"a\":1,\"zz\":[1]}", "{\"q\":1}", "{\"q\":1,\"r\":2}"), LIST("{\"a\":\"x\"}"));
    row("{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":1.5},\"minItems\":1,\"maxItems\":3}",
        LIST("[1.5]", "[2, 3]", "[2,3,4.25]"), LIST("[]", "[1]", "[2,2,2,2]"));
    row("{\"enum\":[\"a\",1,null,{\"x\":1.5}]}", LIST("\"a\"", "1", "null", "{\"x\": 1.5}"),
        LIST("2", "\"b\""));
    row("{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":3}", LIST("\"a\"", "\"aaa\""),
        LIST("\"\"", "\"aaaa\"", "\"ab\""));
    row("{\"type\":\"string\",\"pattern\":\"b\"}", LIST("\"abc\"", "\"b\""), LIST("\"a\"", "\"\""));
    row("{\"type\":\"string\",\"format\":\"date\"}", LIST("\"2020-02-29\""), LIST("\"2020-13-01\"", "\"x\""));
    row("{\"type\":\"string\",\"format\":\"ipv6\"}", LIST("\"::1\"", "\"fe80::1:2\""),
        LIST("\"1\"", "\":::\""));
    row("{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{"
        "\"anyOf\":[{\"$ref\":\"#/$defs/"
        "n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":"
        "\"#/$defs/n\"}",
        LIST("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"), LIST("{\"v\":1}"));
    row("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]},"
        "{\"properties\":{\"a\":{\"maxLength\":2},\"b\":{\"type\":\"null\"}}}]}",
        LIST("{\"a\":\"xx\"}", "{\"a\":\"\",\"b\":null}"), LIST("{\"a\":\"xxx\"}", "{\"b\":null}"));
    row("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", LIST("1", "\"\""), LIST("null"));
    row("{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},"
        "\"additionalProperties\":false}",
        LIST("{}", "{\"x-a\":1}"), LIST("{\"y\":1}", "{\"x-a\":\"\"}"));
    row("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"},\"minProperties\":1,"
        "\"maxProperties\":2}",
        LIST("{\"a\":\"\"}", "{\"a\":\"\",\"b\":\"\"}"), LIST("{}", "{\"a\":\"\",\"b\":\"\",\"c\":\"\"}"));
    row("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false,"
        "\"minItems\":1}",
        LIST("[\"a\"]", "[\"a\", 1]"), LIST("[]", "[1]", "[\"a\",1,2]"));
    row("{\"type\":\"number\",\"exclusiveMinimum\":1.5,\"exclusiveMaximum\":20}", LIST("1.51", "2", "19.99"),
        LIST("1.5", "1.50", "20", "1", "20.5"));
    row("{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":4}", LIST("-2", "0", "3"),
        LIST("-3", "4"));
    row("{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", LIST("-5", "0", "12", "7"),
        LIST("-6", "13", "1.5", "-0.5"));
    row("{\"type\":[\"string\",\"null\"],\"minLength\":2}", LIST("null", "\"ab\"", "\"\\u00e9x\""),
        LIST("\"a\"", "1"));
    row("{\"not\":{\"type\":\"string\"}}", LIST("1", "{}"), LIST("\"\""));
    row("{\"type\":\"object\",\"required\":null,\"properties\":{\"a\":{\"type\":\"null\",\"enum\":null}},"
        "\"allOf\":[],"
        "\"definitions\":{\"unused\":{\"type\":\"any\"}}}",
        LIST("{}", "{\"a\":null}"), LIST("{\"a\":1}"));
}

/* Keywords that are enforced by what they leave. */
static void test_left(void **state)
{
    (void)state;
    row("{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]}}", LIST("\"c\"", "\"\"", "\"ab\""),
        LIST("\"a\"", "\"b\"", "\"\\u0061\"", "1"));
    row("{\"allOf\":[{\"not\":{\"const\":\"t\"}},{\"not\":{\"const\":\"u\"}}]}", LIST("\"x\"", "1"),
        LIST("\"t\"", "\"u\""));
    row("{\"not\":{\"enum\":[0,1.5]}}", LIST("1", "-1.5", "\"0\""), LIST("0", "-0", "0.0", "1.50"));
    row("{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", LIST("{}", "{\"b\":1}"), LIST("{\"a\":1}"));
    row("{\"not\":{\"type\":\"integer\"}}", LIST("1.5", "\"\""), LIST("1", "-20"));
    row("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"maxLength\":2}]}", LIST("\"abc\""),
        LIST("\"a\"", "\"\"", "1"));
    row("{\"oneOf\":[{\"const\":1,\"title\":\"x\"},{\"enum\":[1.0,\"a\",\"a\"]},{\"const\":2}]}",
        LIST("2", "\"a\""), LIST("1", "\"x\""));
    row("{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
        LIST("{\"a\":1}", "{\"b\":1,\"c\":2}"), LIST("{}", "{\"c\":1}"));
    row("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"additionalProperties\":false,"
        "\"dependencies\":{\"a\":[\"b\"],\"c\":{\"required\":[\"a\"]}}}",
        LIST("{}", "{\"b\":1}", "{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}"),
        LIST("{\"a\":1}", "{\"c\":1}", "{\"b\":1,\"c\":1}"));
    row("{\"type\":\"object\",\"if\":{\"properties\":{\"n\":{\"const\":1}}},\"then\":{\"required\":[\"m\"]},"
        "\"else\":{\"properties\":{\"m\":false}},\"properties\":{\"n\":{},\"m\":{}}}",
        LIST("{\"n\":1,\"m\":2}", "{\"n\":2}", "{\"m\":1}"), LIST("{}", "{\"n\":1}", "{\"n\":2,\"m\":1}"));
    row("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"additionalProperties\":false,"
        "\"minProperties\":2,\"maxProperties\":2}",
        LIST("{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"), LIST("{}", "{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}"));
    row("{\"anyOf\":[{\"type\":\"object\",\"minProperties\":3,\"maxProperties\":1},{\"type\":\"null\"}]}",
        LIST("null"), LIST("{}", "{\"a\":1}"));
    row("{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b$\":{\"minimum\":3}},"
        "\"additionalProperties\":false}",
        LIST("{\"ab\":3}", "{\"a\":1}", "{\"b\":\"x\"}"), LIST("{\"ab\":2}", "{\"ab\":\"x\"}", "{\"c\":1}"));
    row("{\"type\":\"array\",\"items\":{\"enum\":[1,\"a\"]},\"uniqueItems\":true}",
        LIST("[]", "[1]", "[\"a\", 1]"), LIST("[1,1]", "[1,\"a\",1]"));
    row("{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"maxItems\":2}", LIST("[null]", "[1, null]"),
        LIST("[]", "[1,2]", "[1,2,null]"));
    row("{\"type\":\"object\",\"propertyNames\":{\"maxLength\":1},\"properties\":{\"ab\":{}}}",
        LIST("{\"a\":1}"), LIST("{\"ab\":1}"));
    row("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}", LIST("{\"a\":null}"),
        LIST("{\"\\u0061\":1}"));
    row("{\"type\":\"number\",\"minimum\":0}", LIST("1e-6", "2.5E+3", "0.5"), LIST("-1e-6", "-1"));
    row("{\"$schema\":\"http://json-schema.org/draft-04/"
        "schema#\",\"definitions\":{\"a\":{\"type\":\"null\"}},"
        "\"type\":\"string\",\"$ref\":\"#/definitions/a\"}",
        LIST("null"), LIST("\"\""));
    row("{\"type\":\"string\",\"format\":\"date\"}", LIST("\"2024-02-29\""),
        LIST("\"2023-02-29\"", "\"1900-02-29\""));
    row("{\"type\":\"string\",\"format\":\"uri-reference\"}", LIST("\"a/b?c\"", "\"http://x\"", "\"\""),
        LIST("\"://\"", "\"a b\""));
    row("{\"type\":\"string\",\"format\":\"regex\"}", LIST("\"^[a-z]+(b|c)*$\""),
        LIST("\"*\"", "\"(\"", "\"[\""));
}

/* Every number of a few digits, and those of one more that are near the bounds. */
static void test_multiples(void **state)
{
    static const struct {
        const char *schema;
        double step, min, max;
        bool integer;
    } rows[] = {
        {"{\"type\":\"integer\",\"multipleOf\":7}", 7, -1e9, 1e9, true},
        {"{\"type\":\"integer\",\"multipleOf\":10}", 10, -1e9, 1e9, true},
        {"{\"type\":\"number\",\"multipleOf\":100,\"minimum\":-250}", 100, -250, 1e9, false},
        {"{\"type\":\"integer\",\"multipleOf\":3600}", 3600, -1e9, 1e9, true},
        {"{\"type\":\"integer\",\"multipleOf\":97,\"minimum\":-100,\"maximum\":400}", 97, -100, 400, true},
        {"{\"type\":\"number\",\"multipleOf\":0.25,\"exclusiveMaximum\":3.5}", 0.25, -1e9, 3.4999, false},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", 0.01, -1e9, 1e9, false},
        {"{\"type\":\"number\",\"allOf\":[{\"multipleOf\":2},{\"multipleOf\":2.5}]}", 10, -1e9, 1e9, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_error error;
        struct grammar *g = make(rows[i].schema, &error);
        if (!g) fail_msg("%s: %s", rows[i].schema, error.message);
        for (int thousandth = -3600000; thousandth <= 3600000; thousandth += i % 2 ? 1000 : 50) {
            char text[32];
            double v = thousandth / 1000.0, off = fabs(v / rows[i].step - round(v / rows[i].step));
            bool whole = thousandth % 1000 == 0, want = off < 1e-7 && v >= rows[i].min && v <= rows[i].max;
            snprintf(text, sizeof text, whole ? "%.0f" : "%.3f", v);
            if (rows[i].integer && !whole) want = false;
            if (match(g, text) != want) fail_msg("%s: %s is wrong", rows[i].schema, text);
        }
        grammar_unref(g);
    }
}

/* What leads nowhere is dead where it begins. */
static void test_no_way_on(void **state)
{
    static const char *const rows[][2] = {
        {"{\"anyOf\":[{\"type\":\"object\",\"minProperties\":3,\"maxProperties\":1},{\"type\":\"null\"}]}",
         "{"},
        {"{\"type\":\"object\",\"properties\":{\"b\":{},\"c\":{},\"a\":{}},\"additionalProperties\":false,"
         "\"dependentRequired\":{\"a\":[\"b\"]},\"minProperties\":2}",
         "{\"c"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"x\":{}},\"additionalProperties\":false,"
         "\"dependentRequired\":{\"a\":[\"zz\"]}}",
         "{\"a"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_error error;
        struct grammar *g = make(rows[i][0], &error);
        assert_non_null(g);
        uint32_t at = STATE_FIRST;
        for (const char *s = rows[i][1]; *s; s++) at = machine__next(g, at, (uint8_t)*s);
        if (at) fail_msg("%s goes on behind %s", rows[i][0], rows[i][1]);
        grammar_unref(g);
    }
}

static void test_order(void **state)
{
    static const char *const schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"a\",\"c\"]}";
    (void)state;
    row(schema, LIST("{\"a\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1,\"x\":1}"),
        LIST("{\"c\":1,\"a\":1}", "{\"x\":1,\"a\":1,\"c\":1}", "{\"a\":1}"));
    any_order = true;
    row(schema, LIST("{\"c\":1,\"a\":1}", "{\"x\":1,\"c\":1,\"b\":1,\"y\":2,\"a\":1}"),
        LIST("{\"c\":1,\"a\":1,\"c\":1}", "{\"a\":1}", "{\"x\":1,\"a\":1}"));
    row("{\"const\":{\"a\":1,\"b\":2}}", LIST("{\"b\":2,\"a\":1}"),
        LIST("{\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}"));
    any_order = false;
}

/* What can't be enforced is left out and noted: nothing that the schema allows is lost. */
static void test_relaxed(void **state)
{
    static const struct {
        const char *schema, *note, *good, *bad;
    } rows[] = {
        {"{\"items\":{\"type\":\"string\"},\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems",
         "[\"a\",\"a\"]", "[1]"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":2,\"prefixItems\":[{\"const\":1},{\"const\":"
         "1}]}",
         "uniqueItems", "[1,1]", "[1,2]"},
        {"{\"type\":\"integer\",\"multipleOf\":1009,\"maximum\":9}", "multipleOf", "7", "10"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\",\"maxLength\":2}", "refers back", "\"xx\"",
         "\"xxx\""},
        {"{\"type\":\"string\",\"not\":{\"pattern\":\"(?<=a)b\"}}", "kind that is not", "\"b\"", "1"},
        {"{\"not\":{\"multipleOf\":3,\"type\":\"number\"},\"type\":\"number\"}", "multipleOf", "4", "\"\""},
        {"{\"not\":{\"uniqueItems\":true},\"type\":\"array\"}", "uniqueItems", "[1,1]", "{}"},
        {"{\"enum\":[\"ab\",\"b\",1],\"pattern\":\"(?<=a)b\"}", "enum", "\"ab\"", "\"c\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_error error;
        struct grammar *g = NULL;
        json_t *schema = json_loads(rows[i].schema, 0, NULL), *notes = json_array();
        struct grammar_json_options opt = {.any_whitespace = true, .notes = notes, .where = "here"};
        if (grammar_from_schema(schema, &opt, &g, &error)) fail_msg("%s: %s", rows[i].schema, error.message);
        assert_int_equal(json_array_size(notes), 1);
        const char *note = json_string_value(json_array_get(notes, 0));
        if (!strstr(note, rows[i].note) || !strstr(note, "in here: ") || !strstr(note, ", at $"))
            fail_msg("%s: %s", rows[i].schema, note);
        assert_true(match(g, rows[i].good));
        assert_false(match(g, rows[i].bad));
        grammar_unref(g);
        assert_null(make(rows[i].schema, &error)); /* without a list */
        json_decref(notes);
        json_decref(schema);
    }
    row("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":1,"
        "\"exclusiveMaximum\":4}}",
        LIST("[]", "[3,1,2]"), LIST("[1,1]", "[4]", "[0]"));
}

static void test_refused(void **state)
{
    static const char *const rows[][3] = {
        {"{\"properties\":{\"a\":{\"not\":{\"multipleOf\":3}}}}", "multipleOf", "$.properties.a.not"},
        {"{\"items\":{\"uniqueItems\":true}}", "\"uniqueItems\" is supported", "$.items"},
        {"{\"$ref\":\"#/nowhere\"}", "$ref", "$"},
        {"false", "no text", ""},
        {"{\"pattern\":\"(\"}", "group", "$"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "no text", ""},
        {"{\"properties\":{\"a\":{\"type\":\"str\"}}}", "\"type\" must be", "$.properties.a"},
        {"{\"type\":[\"string\",5]}", "\"type\" must be", "$"},
        {"{\"properties\":[\"a\"]}", "\"properties\" must be", "$"},
        {"{\"items\":{\"required\":\"a\"}}", "\"required\" must be", "$.items"},
        {"{\"dependentRequired\":{\"a\":\"b\"}}", "a list of names", "$.dependentRequired.a"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"str\"}}}", "\"type\" must be", "$"},
        {"{\"anyOf\":[]}", "\"anyOf\" must be", "$"},
        {"{\"anyOf\":[{\"enum\":\"x\"}]}", "\"enum\" must be", "$.anyOf[0]"},
        {"{\"type\":\"object\",\"minProperties\":3,\"maxProperties\":1}", "no text", ""},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"x\":{}},\"additionalProperties\":false,"
         "\"dependentRequired\":{\"a\":[\"zz\"]},\"minProperties\":2}",
         "no text", ""},
        {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"minProperties\":1,\"maxProperties\":"
         "2}",
         "dependentRequired", "$"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_error error;
        assert_null(make(rows[i][0], &error));
        if (!strstr(error.message, rows[i][1])) fail_msg("%s: %s", rows[i][0], error.message);
        assert_string_equal(error.path, rows[i][2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),     cmocka_unit_test(test_left),
                                       cmocka_unit_test(test_multiples), cmocka_unit_test(test_no_way_on),
                                       cmocka_unit_test(test_order),     cmocka_unit_test(test_relaxed),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

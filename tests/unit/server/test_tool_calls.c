/* Tool calls written a little wrong, in every syntax (tests/golden/tool_calls.json, made by
 * scripts/reference/make_tool_calls.py): what a person reads in them, however the text is cut. */
#include "server/chat/output.h"
#include "server/chat/tool_calls/types.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LIST "tests/golden/tool_calls.json"
#define MAX  ((size_t)1 << 20)

static const struct {
    const char *form;
    enum tool_call_syntax syntax;
    bool bare;
} forms[] = {{"hermes", TOOL_SYNTAX_JSON, false}, {"bare", TOOL_SYNTAX_JSON, true},
             {"fenced", TOOL_SYNTAX_JSON, true},  {"call", TOOL_SYNTAX_CALL, false},
             {"xml", TOOL_SYNTAX_XML, false},     {"mistral", TOOL_SYNTAX_MISTRAL, false},
             {"glm", TOOL_SYNTAX_GLM, false},     {"lfm2", TOOL_SYNTAX_LFM2, false}};

static json_t *names;
static struct tool_types *types;

/* {"content", "calls": [[name, arguments as text]], "open"} of the text, given in steps of `step` bytes. */
static json_t *read_calls(enum tool_call_syntax syntax, bool bare, const char *text, size_t len, size_t step,
                          size_t first)
{
    const struct chat_output_rules rules = {.calls = syntax, .types = types, .bare = bare ? names : NULL};
    struct chat_output o;
    chat_output_init(&o, &rules, MAX);
    for (size_t at = first; at < len; at += step) {
        char *copy = malloc(at + 1); /* ends right behind the text */
        assert_non_null(copy);
        memcpy(copy, text, at);
        assert_int_equal(chat_output_run(&o, copy, at, false), ST_OK);
        free(copy);
    }
    o.ended = true;
    assert_int_equal(chat_output_run(&o, text, len, true), ST_OK);
    json_t *calls = json_array();
    for (uint32_t i = 0; i < o.call_count; i++)
        json_array_append_new(calls, json_pack("[s,s]", o.calls[i].name.data,
                                               o.calls[i].arguments.len ? o.calls[i].arguments.data : ""));
    json_t *all = json_pack("{s:s%,s:o,s:b}", "content", o.content.len ? o.content.data : "", o.content.len,
                            "calls", calls, "open", !chat_output_called(&o));
    assert_non_null(all);
    chat_output_fini(&o);
    return all;
}

static bool as_wanted(json_t *got, const json_t *wanted)
{
    json_t *calls = json_object_get(got, "calls"), *want = json_object_get(wanted, "calls");
    bool open = json_is_true(json_object_get(wanted, "open")) || !json_array_size(want);
    if (!json_equal(json_object_get(got, "content"), json_object_get(wanted, "content"))) return false;
    if (json_array_size(calls) != json_array_size(want)) return false;
    for (size_t i = 0; i < json_array_size(want); i++) {
        json_t *a = json_array_get(calls, i), *b = json_array_get(want, i), *arguments = json_array_get(b, 1);
        const char *text = json_string_value(json_array_get(a, 1));
        json_t *v = json_is_string(arguments) ? json_incref(json_array_get(a, 1)) : json_loads(text, 0, NULL);
        bool same = json_equal(json_array_get(a, 0), json_array_get(b, 0)) && json_equal(v, arguments);
        json_decref(v);
        if (!same) return false;
    }
    return json_is_true(json_object_get(got, "open")) == open;
}

static void test_corpus(void **state)
{
    json_t *list = json_object_get(*state, "cases"), *one;
    size_t i, wrong = 0;
    uint32_t per_form[sizeof forms / sizeof *forms] = {0};
    json_array_foreach(list, i, one)
    {
        const char *text = json_string_value(json_object_get(one, "text"));
        size_t len = strlen(text), f = 0;
        while (strcmp(forms[f].form, json_string_value(json_object_get(one, "form"))) != 0) f++;
        json_t *whole = read_calls(forms[f].syntax, forms[f].bare, text, len, 1, len);
        per_form[f]++;
        if (!as_wanted(whole, one)) {
            char *got = json_dumps(whole, JSON_SORT_KEYS), *want = json_dumps(one, 0);
            print_error("got %s\nof  %s\n", got, want);
            free(got);
            free(want);
            wrong++;
        }
        for (size_t step = 1; step < 8; step++) {
            json_t *cut = read_calls(forms[f].syntax, forms[f].bare, text, len, step, step / 2);
            if (!json_equal(cut, whole)) fail_msg("in steps of %zu: %s", step, text);
            json_decref(cut);
        }
        for (size_t at = 1; at < len; at++) { /* in two */
            json_t *cut = read_calls(forms[f].syntax, forms[f].bare, text, len, len, at);
            if (!json_equal(cut, whole)) fail_msg("cut at %zu: %s", at, text);
            json_decref(cut);
        }
        json_decref(whole);
    }
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) assert_true(per_form[f] >= 30);
    assert_true(json_array_size(list) >= 300);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    json_t *all = json_load_file(LIST, 0, NULL), *functions = json_object_get(all, "functions"), *one;
    size_t i;
    names = json_object();
    types = functions ? tool_types_create(functions) : NULL;
    if (!types) return 1;
    json_array_foreach(functions, i, one) json_object_set_new(
        names, json_string_value(json_object_get(json_object_get(one, "function"), "name")), json_true());
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_corpus, all)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tool_types_destroy(types);
    json_decref(names);
    json_decref(all);
    return failed;
}

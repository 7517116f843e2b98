/* Malformed tool calls in every syntax (tests/golden/tool_calls.json, written by
 * scripts/reference/make_tool_calls.py): the intended calls are read, however the text is split. */
#include "server/chat/output.h"
#include "server/chat/template.h"
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
    json_array_foreach(list, i, one) {
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

/* Of many calls that don't end each could be read to the end of the text: all of it is content then. */
static void test_many_broken(void **state)
{
    (void)state;
    struct buf text;
    buf_init(&text, MAX);
    for (int i = 0; i < 3000; i++) assert_int_equal(buf_adds(&text, "<tool_call>{"), ST_OK);
    assert_int_equal(buf_adds(&text, "<tool_call>{\"name\": \"clock\", \"arguments\": {}}"), ST_OK);
    for (size_t step = 7; step <= text.len; step = step == 7 ? text.len : text.len + 1) {
        json_t *all = read_calls(TOOL_SYNTAX_JSON, false, text.data, text.len, step, step);
        assert_string_equal(json_string_value(json_object_get(all, "content")), text.data);
        assert_int_equal(json_array_size(json_object_get(all, "calls")), 0);
        json_decref(all);
    }
    buf_fini(&text);
}

/* A call that has begun is read to its end, also where the constraint would not write it so. */
static void test_exact(void **state)
{
    (void)state;
    static const char text[] = "{\"name\": \"clock\", \"arguments\": {'a': 1}, \"id\": \"x\"}";
    const struct chat_output_rules rules = {
        .calls = TOOL_SYNTAX_JSON, .types = types, .bare = names, .exact = true};
    struct chat_output o;
    chat_output_init(&o, &rules, MAX);
    assert_int_equal(chat_output_run(&o, text, strlen(text), true), ST_OK);
    json_t *arguments = o.call_count ? json_loads(o.calls[0].arguments.data, 0, NULL) : NULL;
    assert_int_equal(o.call_count, 1);
    assert_non_null(arguments);
    assert_int_equal(o.content.len, 0);
    json_decref(arguments);
    chat_output_fini(&o);
}

/* ---- what the templates write ---- */

#define TOOLS "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
#define TURNS(call_)                                                                                         \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"                  \
    "{% set f = c.function %}" call_ "{% endfor %}</end>{% endfor %}"
#define EACH(pair_) "{% for k, v in f.arguments | items %}" pair_ "{% endfor %}"
#define TEXT        "{{ v if v is string else v | tojson }}"

/* As the templates of these syntaxes write calls; NULL: a template of the golden file. */
static const struct {
    const char *name, *source;
    enum tool_call_syntax syntax;
} templates[] = {
    {"qwen2.5", NULL, TOOL_SYNTAX_JSON},
    {"qwen3", NULL, TOOL_SYNTAX_JSON},
    {"qwen3-vl", NULL, TOOL_SYNTAX_JSON},
    {"gemma4", NULL, TOOL_SYNTAX_CALL},
    {"functiongemma",
     "{% macro w(v) %}{% if v is string %}<escape>{{ v }}<escape>{% elif v is mapping %}{{ '{' }}"
     "{% for k, i in v | items %}{{ k }}:{{ w(i) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}"
     "{% elif v is sequence %}[{% for i in v %}{{ w(i) }}{{ ',' if not loop.last }}{% endfor %}]"
     "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}" TOOLS TURNS(
         "{{ '<start_function_call>call:' + f.name }}{{ w(f.arguments) }}<end_function_call>"),
     TOOL_SYNTAX_FUNCTION},
    {"xml",
     TOOLS TURNS("<tool_call>\n<function={{ f.name }}>\n" EACH(
         "<parameter={{ k }}>\n" TEXT "\n</parameter>\n") "</function>\n</tool_call>"),
     TOOL_SYNTAX_XML},
    {"glm",
     TOOLS TURNS("\n<tool_call>{{ f.name }}\n" EACH("<arg_key>{{ k }}</arg_key>\n<arg_value>" TEXT
                                                    "</arg_value>\n") "</tool_call>"),
     TOOL_SYNTAX_GLM},
    {"mistral", TOOLS TURNS("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), TOOL_SYNTAX_MISTRAL},
    {"mistral list",
     TOOLS TURNS("[TOOL_CALLS][{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}]"),
     TOOL_SYNTAX_MISTRAL_LIST},
    {"lfm2",
     "List of tools: [" TOOLS "]" TURNS("<|tool_call_start|>[{{ f.name }}(" EACH(
         "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}") ")]<|tool_call_end|>"),
     TOOL_SYNTAX_LFM2},
    {"olmo",
     TOOLS TURNS("{{ '<function_calls>' if loop.first else '\n' }}{{ f.name }}(" EACH(
         "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}") "){{ '</function_calls>' if loop.last }}"),
     TOOL_SYNTAX_OLMO},
    {"granite",
     TOOLS TURNS("{{ '<|tool_call|>[' if loop.first else ', ' }}{\"name\": \"{{ f.name }}\", \"arguments\": "
                 "{{ f.arguments | tojson }}}{{ ']' if loop.last }}"),
     TOOL_SYNTAX_GRANITE},
    {"llama",
     "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its "
     "value}." TOOLS TURNS("{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}"),
     TOOL_SYNTAX_LLAMA},
};

static const char *const arguments[] = {
    "{}",
    "{\"query\": \"it's \\\"5\\\" o'clock\", \"tags\": [\"a b\", \"\", \"c]\"], \"limit\": 10}",
    "{\"path\": \"/tmp/x.c\", \"text\": \"int main(void)\\n{\\n    return 0; // {[( , \\\\n \\\"\\n}\"}",
    "{\"options\": {\"color\": \"red\", \"size\": [1, -2.5e3], \"deep\": {\"on\": false, \"no\": null}}, "
    "\"x\": 0.5, "
    "\"note\": null}",
    "{\"city\": \"Zürich 北京 😀\", \"days\": 3, \"metric\": true}",
};
static const char *const callees[] = {"clock", "search", "write_file", "plot", "get_weather"};

/* The prompt's last turn but one, with two calls. */
static char *rendered(struct template *t, const char *name, const char *args)
{
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    struct chat_messages messages = {0};
    struct api_error error = {0};
    struct template_result result;
    struct err err;
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", "c", "type", "function", "function", "name", name,
                             "arguments", args);
    json_t *list = json_pack("[{s:s,s:s},{s:s,s:s,s:[O,O]},{s:s,s:s}]", "role", "user", "content", "q",
                             "role", "assistant", "content", "", "tool_calls", call, call, "role", "user",
                             "content", "<<after>>");
    assert_non_null(list);
    if (chat_messages_parse(list, &limits, &messages, &error)) fail_msg("%s", error.message);
    const struct template_request rq = {.messages = &messages};
    if (template_render(t, &rq, &result, &err)) fail_msg("%s", err.msg);
    char *text = strndup(result.text, result.len), *end = strstr(text, "<<after>>");
    assert_non_null(end);
    *end = '\0';
    template_result_free(&result);
    chat_messages_free(&messages);
    json_decref(list);
    json_decref(call);
    return text;
}

static void test_round_trip(void **state)
{
    (void)state;
    json_t *golden = json_load_file("tests/golden/templates/cases.json", JSON_ALLOW_NUL, NULL);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        const char *source = templates[i].source;
        if (!source)
            source =
                json_string_value(json_object_get(json_object_get(golden, "templates"), templates[i].name));
        struct template *t;
        struct err err;
        if (template_create(source, strlen(source), NULL, 0, NULL, &t, &err)) fail_msg("%s", err.msg);
        if (template_caps(t, true)->calls != templates[i].syntax)
            fail_msg("the syntax of %s", templates[i].name);
        for (size_t k = 0; k < sizeof arguments / sizeof *arguments; k++) {
            char *text = rendered(t, callees[k], arguments[k]), *from = strstr(text, "<assistant>") + 11;
            bool bare = tool_syntax(templates[i].syntax)->plain;
            if (!bare) from = text;
            json_t *all = read_calls(templates[i].syntax, bare, from, strlen(from), 3, 1),
                   *got = json_object_get(all, "calls"), *want = json_loads(arguments[k], 0, NULL);
            if (json_array_size(got) != 2) fail_msg("%zu calls in %s", json_array_size(got), text);
            for (size_t c = 0; c < 2; c++) {
                json_t *one = json_array_get(got, c),
                       *args = json_loads(json_string_value(json_array_get(one, 1)), 0, NULL);
                assert_string_equal(json_string_value(json_array_get(one, 0)), callees[k]);
                if (!json_equal(args, want))
                    fail_msg("%s of %s", json_string_value(json_array_get(one, 1)), text);
                json_decref(args);
            }
            json_decref(want);
            json_decref(all);
            free(text);
        }
        template_free(t);
    }
    json_decref(golden);
}

int main(void)
{
    json_t *all = json_load_file(LIST, 0, NULL), *functions = json_object_get(all, "functions"), *one;
    size_t i;
    names = json_object();
    types = functions ? tool_types_create(functions) : NULL;
    if (!types) return 1;
    json_array_foreach(functions, i, one)
        json_object_set_new(
            names, json_string_value(json_object_get(json_object_get(one, "function"), "name")), json_true());
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_corpus, all),
                                       cmocka_unit_test(test_many_broken), cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_round_trip)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tool_types_destroy(types);
    json_decref(names);
    json_decref(all);
    return failed;
}

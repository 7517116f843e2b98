/* GBNF and Lark: strings that a grammar allows, strings that it does not, grammars that are rejected. */
#include "tests/lib/grammars.h"
#include "server/grammar/vocab.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct grammar *make(const char *text)
{
    struct grammar *g = NULL;
    struct grammar_error f = {0};
    if (grammar_from_text(text, strlen(text), &g, &f)) fail_msg("%s: %s\n%s", f.path, f.message, text);
    return g;
}

static bool matches(struct grammar *g, const char *s)
{
    uint32_t state = STATE_FIRST;
    for (; *s && state; s++) state = machine__next(g, state, (uint8_t)*s);
    return state && g->states[state].accepts;
}

struct example {
    const char *grammar;
    const char *yes[8], *no[8];
};

static void check(const struct example *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = make(list[i].grammar);
        for (int k = 0; k < 8 && list[i].yes[k]; k++)
            if (!matches(g, list[i].yes[k])) fail_msg("%s\nrefuses %s", list[i].grammar, list[i].yes[k]);
        for (int k = 0; k < 8 && list[i].no[k]; k++)
            if (matches(g, list[i].no[k])) fail_msg("%s\nallows %s", list[i].grammar, list[i].no[k]);
        grammar_unref(g);
    }
}

static void test_gbnf(void **state)
{
    (void)state;
    static const struct example list[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yesno", "YES"}},
        {"# a comment\nroot ::= item (\",\" item)* # another\nitem ::= [a-c]+ | \"#\"\n",
         {"a", "abc,b,#"},
         {"", "a,", "d"}},
        {"root ::= (\n  \"a\" # one\n  b-2 |\n  \"c\"\n)\nb-2 ::= \"b\"\n  | \"B\"",
         {"ab", "aB", "c"},
         {"a", "b"}},
        {"root ::= [^\\n\"\\]\\\\]{2,3} \"\\n\"",
         {"ab\n", "a\xC3\xA9x\n"},
         {"a\n", "abcd\n", "a\"\n", "a]\n"}},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\\\\\"", {"A\xC3\xA9\xF0\x9F\x98\x80\t\"\\"}, {"A"}},
        {"root ::= [\\x61\\u00e8-\\u00ea\\U0001F600-\\U0001F602]+",
         {"a\xC3\xA9", "\xF0\x9F\x98\x81"},
         {"b", "\xF0\x9F\x98\x83"}},
        {"root ::= \"a\"{2} . \"b\"{1,} \"c\"{0,2} \"d\"?",
         {"aa\nb", "aa\xE2\x82\xAC"
                   "bbccd"},
         {"aab", "aa.bccc"}},
        {"root ::= | \"(\" root \")\" root", {"", "()", "(())()"}, {"(", ")("}},
        {"root ::= root \"+\" t | t\nt ::= [0-9]+ | \"(\" root \")\"", {"1", "1+2+(3+4)"}, {"+", "1+", "(1"}},
        {"root ::= root | root root | \"a\" root?", {"a", "aaa"}, {"", "b"}},
        {"root::=[-+a]* \"]\"", {"-a+]"}, {"b]"}},
    };
    check(list, sizeof list / sizeof *list);
}

static void test_lark(void **state)
{
    (void)state;
    static const struct example list[] = {
        {"start: \"yes\"i | \"no\"", {"yes", "YeS", "no"}, {"No", ""}},
        {"// sums\n?start: sum\n?sum: product | sum \"+\" product -> add | sum \"-\" product -> sub\n"
         "?product: atom | product \"*\" atom -> mul\n?atom: NUMBER -> number | \"-\" atom -> neg\n"
         "     | \"(\" sum \")\"\n%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n",
         {"1", "1 + 2*(3 - -4.5e3) ", " 1"},
         {"1 +", "1 2", "(1"}},
        {"%import common (INT, CNAME -> NAME)\nstart: pair (\",\" pair)*\npair: NAME \"=\" INT\n",
         {"a=1", "a_1=10,b=2"},
         {"1=a", "a=1,"}},
        {"start: A~2 B~1..2 [C] D{2}\nA: \"a\"\nB.2: \"b\"\nC: \"0\"..\"3\"\nD: /d/\n",
         {"aabdd", "aabb2dd"},
         {"abdd", "aab4dd", "aabd"}},
        {"start: /a.c/ /x.y/s /[a-c]k\\/\\x41/i",
         {"abcx\nyBK/A", "a/cxxyak/A"},
         {"a\ncxxyak/A", "abcxxydk/A"}},
        {"start: value\nvalue: object | array | STRING | NUMBER | \"true\" | \"null\"\n"
         "object: \"{\" [pair (\",\" pair)*] \"}\"\npair: STRING \":\" value\narray: \"[\" [value (\",\" "
         "value)*] \"]\"\n"
         "%import common.ESCAPED_STRING -> STRING\n%import common.SIGNED_NUMBER -> NUMBER\n%import "
         "common.WS\n"
         "%ignore WS\n",
         {"{\"a\": [1, -2.5, {}],\n \"b\\\"\": null}", "[]", "\"x\""},
         {"{\"a\"}", "[1,]", "{a: 1}", "\"\\\""}},
        {"start: item+\nitem: \"a\" -> one\n    | b_2\n!b_2: \"b\" \"::=\"\n", {"ab::=", "a"}, {"", "b"}},
        {"start: _x \"\xC3\x89\"i\n_x: \"\\n\\t\\\"\" // end", {"\n\t\"\xC3\xA9"}, {"\n\t\""}},
    };
    check(list, sizeof list / sizeof *list);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *grammar, *path, *words;
        enum status st;
    } list[] = {
        {"", "line 1", "no rule \"start\"", ST_INVALID},
        {"root ::= a", "line 1", "a is not defined", ST_INVALID},
        {"root ::= \"a\n", "line 2", "", ST_INVALID},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2", "root is defined twice", ST_INVALID},
        {"root ::= (\"a\"", "line 1", ") is expected", ST_INVALID},
        {"root ::= [a", "line 1", "] is expected", ST_INVALID},
        {"root ::= [z-a]", "line 1", "out of order", ST_INVALID},
        {"root ::= \"a\"{3,2}", "line 1", "out of order", ST_INVALID},
        {"root ::= \"a\"{200000}", "line 1", "larger than", ST_TOO_LARGE},
        {"root ::= <think>", "line 1", "tokens", ST_UNSUPPORTED},
        {"root ::= \"\\ud800\"", "line 1", "surrogate", ST_INVALID},
        {"root ::= a \"x\" | \"z\"\na ::= root \"y\"", "", "refers to itself", ST_INVALID},
        {"root ::= \"a\" b\nb ::= b b | \"c\"?", "", "refers to itself", ST_INVALID},
        {"root ::= \"a\" root", "", "no text", ST_INVALID},
        {"start: \"a\" }", "line 1", "unexpected", ST_INVALID},
        {"start: b", "line 1", "b is not defined", ST_INVALID},
        {"start: /a", "line 1", "does not end", ST_INVALID},
        {"start: /(a/", "line 1", "does not end", ST_INVALID},
        {"start: /a/x", "line 1", "flag x", ST_UNSUPPORTED},
        {"%import common.NOTHING\nstart: \"a\"", "line 1", "not known", ST_UNSUPPORTED},
        {"start: \"a\"\n%declare X", "line 2", "directives", ST_UNSUPPORTED},
        {"start: \"b\"..\"a\"", "line 1", "out of order", ST_INVALID},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct grammar *g = NULL;
        struct grammar_error f = {0};
        enum status st = grammar_from_text(list[i].grammar, strlen(list[i].grammar), &g, &f);
        if (st != list[i].st || strcmp(f.path, list[i].path) || !strstr(f.message, list[i].words) ||
            !f.message[0])
            fail_msg("%s\n%d %s: %s", list[i].grammar, (int)st, f.path, f.message);
    }
}

/* Large ones stay small, or are refused. */
static void test_large(void **state)
{
    (void)state;
    char *text = malloc(1 << 19), *at = text;
    struct grammar_error f = {0};
    struct grammar *g = NULL;
    at += sprintf(at, "root ::= ");
    for (int i = 0; i < 5000; i++) at += sprintf(at, "%s\"name number %d\"", i ? " | " : "", i * 7919 % 5000);
    g = make(text);
    assert_true(matches(g, "name number 4321"));
    assert_false(matches(g, "name number 5000"));
    grammar_unref(g);
    /* Each rule twice the one before. */
    at = text + sprintf(text, "root ::= r0\n");
    for (int i = 0; i < 60; i++) at += sprintf(at, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    sprintf(at, "r60 ::= \"a\"");
    g = make(text);
    assert_int_not_equal(machine__next(g, STATE_FIRST, 'a'), STATE_DEAD);
    grammar_unref(g);
    sprintf(at, "r60 ::= \"a\"?"); /* as many ways to begin */
    assert_int_equal(grammar_from_text(text, strlen(text), &g, &f), ST_TOO_LARGE);
    g = make("root ::= \"[\" (v (\",\" v){0,1000}){0,1000} \"]\"\nv ::= [0-9]{1,1000} | root");
    assert_true(matches(g, "[12,3,[4,5]]"));
    grammar_unref(g);
    memset(text, '(', 1 << 19);
    memcpy(text, "root ::= ", 9);
    assert_int_equal(grammar_from_text(text, 1 << 18, &g, &f), ST_TOO_LARGE);
    assert_int_equal(grammar_from_text(text, 1 << 19, &g, &f), ST_TOO_LARGE);
    at = text + sprintf(text, "root ::= r0\n");
    for (int i = 0; i < 9000; i++) at += sprintf(at, "r%d ::= [ab] r%d | \"c\"\n", i, i + 1);
    sprintf(at, "r9000 ::= \"a\"?");
    assert_int_equal(grammar_from_text(text, strlen(text), &g, &f), ST_TOO_LARGE);
    at = text + sprintf(text, "root ::= ");
    for (int i = 0; i < 1000; i++) at += sprintf(at, " \"a\"? \"b\"*");
    g = make(text);
    assert_true(matches(g, "aabbabababbbbbbbbba"));
    grammar_unref(g);
    free(text);
}

/* Inside a JSON string: quotes, backslashes and control characters are escaped, in one form each. */
static void test_in_json(void **state)
{
    (void)state;
    static const struct example list[] = {
        {"start: \"a\\\"b\" LF\n%import common.LF",
         {"a\\\"b\\n"},
         {"a\"b\n", "a\\\"b\n", "a\"b\\n", "a\\\"b\\u000a"}},
        {"start: line+\nline: /[^x]{2}/",
         {"ab", "\\\\\\t", "\\u0001/", "\xC3\xA9\\\""},
         {"a", "a\\", "a\"", "ax", "a\x01"}},
        {"start: /(a|\\\\)*/ \"\\\\\" \"/\"", {"\\\\/", "a\\\\\\\\/"}, {"\\/", "\\\\\\/", "\\\\\\\\"}},
        {"root ::= ([a-c\"\\n] | \"--\" | \"(\" root \")\")*", {"", "a\\\"(\\n--)"}, {"-", "\"", "("}}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct grammar_builder *b;
        struct grammar *g = NULL;
        struct grammar_error f = {{0}, {0}};
        struct err err = {{0}};
        gx start = 0;
        assert_int_equal(gb_create(&b), ST_OK);
        if (gb_text(b, list[i].grammar, strlen(list[i].grammar), true, &start, &f)) fail_msg("%s", f.message);
        assert_int_equal(gb_finish(b, start, &g, &err), ST_OK);
        for (int k = 0; k < 8 && list[i].yes[k]; k++)
            if (!matches(g, list[i].yes[k])) fail_msg("%s\nrefuses %s", list[i].grammar, list[i].yes[k]);
        for (int k = 0; k < 8 && list[i].no[k]; k++)
            if (matches(g, list[i].no[k])) fail_msg("%s\nallows %s", list[i].grammar, list[i].no[k]);
        grammar_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf),    cmocka_unit_test(test_lark),  cmocka_unit_test(test_in_json),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Regular expressions: random ones with \b, \B, look-ahead and flags are compared with a plain backtracking
 * matcher; patterns of schema generators and the formats of JSON Schema with lists of texts. */
#include "tests/lib/grammars.h"
#include "server/grammar/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t seed_now;
static unsigned dice(unsigned n)
{
    seed_now = seed_now * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed_now >> 33) % n;
}

/* ---- random expressions, and what they match ---- */

enum kind { CHARS, MANY, SEQ, ALT, MAYBE, EDGE, INNER, AHEAD, NOT_AHEAD, TEXT_END };
struct expr {
    enum kind kind;
    int a, b;
    const char *chars; /* CHARS, MANY */
};
struct then { /* what follows */
    int what;
    const struct then *next;
};
static struct expr exprs[128];
static int count;

static int make(unsigned depth, bool ahead)
{
    static const char *const sets[] = {"a", "b", "-", "ab", "ab-"};
    static const enum kind kinds[] = {CHARS, MANY, SEQ, SEQ, SEQ, ALT, MAYBE, EDGE, INNER, AHEAD, NOT_AHEAD};
    int at = count++;
    struct expr e = {.kind = depth ? kinds[dice(sizeof kinds / sizeof *kinds)] : CHARS,
                     .chars = sets[dice(5)]};
    if (ahead && e.kind >= EDGE) e.kind = TEXT_END;
    if (e.kind == SEQ || e.kind == ALT || e.kind == MAYBE || e.kind == AHEAD || e.kind == NOT_AHEAD)
        e.a = make(depth - 1, ahead || e.kind >= AHEAD);
    if (e.kind == SEQ || e.kind == ALT) e.b = make(depth - 1, ahead);
    exprs[at] = e;
    return at;
}

/* $ of a look-ahead only at its end: elsewhere an expression over a whole text does not know it. */
static bool ends_early(int at, bool last)
{
    const struct expr *e = &exprs[at];
    if (e->kind == TEXT_END) return !last;
    if (e->kind == ALT || e->kind == MAYBE)
        return ends_early(e->a, false) || (e->b && ends_early(e->b, false));
    if (e->kind == SEQ) return ends_early(e->a, false) || ends_early(e->b, last);
    return (e->kind == AHEAD || e->kind == NOT_AHEAD) && ends_early(e->a, true);
}

static void print(int at, char *out)
{
    static const char *const forms[] = {
        [MAYBE] = "(?:\x01)?", [AHEAD] = "(?=\x01)", [NOT_AHEAD] = "(?!\x01)", [SEQ] = "\x01\x02",
        [ALT] = "(\x01|\x02)", [EDGE] = "\\b",       [INNER] = "\\B",          [TEXT_END] = "$"};
    const struct expr *e = &exprs[at];
    if (e->kind == CHARS || e->kind == MANY) {
        sprintf(out + strlen(out), "[%s]%s", e->chars, e->kind == MANY ? "*" : "");
        return;
    }
    for (const char *c = forms[e->kind]; *c; c++)
        if (*c <= 2) print(*c == 1 ? e->a : e->b, out);
        else strncat(out, c, 1);
}

static bool is_word(const char *text, int i)
{
    return i >= 0 && text[i] && text[i] != '-';
}

static bool goes_on(const char *text, int i, const struct then *then, bool whole);

static bool matches_at(int at, const char *text, int i, const struct then *then, bool whole)
{
    const struct expr *e = &exprs[at];
    struct then next = {e->b, then};
    bool edge = is_word(text, i - 1) != is_word(text, i);
    switch (e->kind) {
    case CHARS: return text[i] && strchr(e->chars, text[i]) && goes_on(text, i + 1, then, whole);
    case MANY:
        if (goes_on(text, i, then, whole)) return true;
        return text[i] && strchr(e->chars, text[i]) && matches_at(at, text, i + 1, then, whole);
    case SEQ: return matches_at(e->a, text, i, &next, whole);
    case ALT: return matches_at(e->a, text, i, then, whole) || matches_at(e->b, text, i, then, whole);
    case MAYBE: return goes_on(text, i, then, whole) || matches_at(e->a, text, i, then, whole);
    case EDGE:
    case INNER: return edge == (e->kind == EDGE) && goes_on(text, i, then, whole);
    case TEXT_END: return !text[i] && goes_on(text, i, then, whole);
    case AHEAD:
    case NOT_AHEAD:
        return matches_at(e->a, text, i, NULL, false) == (e->kind == AHEAD) && goes_on(text, i, then, whole);
    default: return goes_on(text, i, then, whole);
    }
}

static bool goes_on(const char *text, int i, const struct then *then, bool whole)
{
    if (then) return matches_at(then->what, text, i, then->next, whole);
    return !whole || !text[i];
}

static bool accepts(struct grammar *g, const char *s)
{
    uint32_t state = STATE_FIRST;
    for (; *s && state; s++) state = machine__next(g, state, (uint8_t)*s);
    return state && g->states[state].accepts;
}

/* NULL: nothing matches it. */
static struct grammar *grammar_of(const char *pattern, bool in_schema)
{
    static const struct grammar_json_options opt = {.any_whitespace = true};
    struct grammar_error error;
    struct grammar *g = NULL;
    json_t *schema = json_pack("{s:s,s:s}", "type", "string", "pattern", pattern);
    enum status st = in_schema ? grammar_from_schema(schema, &opt, &g, &error)
                               : grammar_from_regex(pattern, strlen(pattern), &g, &error);
    json_decref(schema);
    if (st && !strstr(error.message, "no text")) fail_msg("%s: %s", pattern, error.message);
    return st ? NULL : g;
}

static void test_random(void **state)
{
    (void)state;
    int compared = 0;
    for (int seed = 1; seed <= 400; seed++) {
        seed_now = (uint64_t)seed;
        count = 1; /* 0: no part */
        char pattern[4096] = "", text[8] = "", literal[16];
        int start = make(4, false);
        bool in_schema = dice(2);
        if (ends_early(start, true)) continue;
        print(start, pattern);
        struct grammar *g = grammar_of(pattern, in_schema);
        for (int n = 0; n < 363; n++, compared++) { /* all texts of up to five of - a b */
            int len = n < 1 ? 0 : n < 4 ? 1 : n < 13 ? 2 : n < 40 ? 3 : n < 121 ? 4 : 5;
            for (int i = 0, left = n; i < len; i++, left /= 3) text[i] = "-ab"[left % 3];
            text[len] = '\0';
            bool want = false;
            for (int i = 0; i <= (in_schema ? len : 0) && !want; i++)
                want = matches_at(start, text, i, NULL, !in_schema);
            snprintf(literal, sizeof literal, in_schema ? "\"%s\"" : "%s", text);
            if (want != (g && accepts(g, literal)))
                fail_msg("%s %s %s", pattern, want ? "refuses" : "accepts", literal);
        }
        grammar_unref(g);
    }
    assert_true(compared > 50000);
}

/* ---- lists ---- */

struct row {
    const char *what, *good[10], *bad[10];
};

static void check(struct grammar *g, const struct row *row, bool in_schema)
{
    for (int k = 0; k < 20; k++) {
        const char *text = k < 10 ? row->good[k] : row->bad[k - 10];
        if (!text) continue;
        char *literal = NULL;
        json_t *v = json_string(text);
        if (in_schema) literal = json_dumps(v, JSON_ENCODE_ANY);
        if (accepts(g, literal ? literal : text) != (k < 10)) fail_msg("%s: %s is wrong", row->what, text);
        free(literal);
        json_decref(v);
    }
    grammar_unref(g);
}

static void test_patterns(void **state)
{
    static const struct row rows[] = {
        /* as zod 4 writes them */
        {"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{"
         "2,}$",
         {"a@b.co", "a.b+c@d-e.f.org"},
         {".a@b.co", "a..b@c.de", "a.@b.co", "a@b", "@b.co"}},
        {"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)"
         "?)?)$",
         {"P3W", "P1Y2D", "P1DT2H", "PT1.5S", "PT0S"},
         {"P", "PT", "P1DT", "P1W1D", "-P1D"}},
        {"^(?=.{1,8}\\.?$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\\.[a-z](?:[-a-z]{0,61}[a-z])?)*\\.?$",
         {"a", "ab.cd.ef", "ab.cd.ef."},
         {"", "ab.cd.efg", "-a", "a..b"}},
        {"^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$",
         {"\xF0\x9F\x98\x80", "\xE2\x9D\xA4\xEF\xB8\x8F", "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA", "1#"},
         {"", "a", "\xC3\xA9", "\xF0\x9F\x98\x80 "}},
        {"^\\P{Emoji_Component}\\P{Extended_Pictographic}$", {"a1", "\xC2\xA9#"}, {"1a", "a\xC2\xA9"}},
        {"^[cC][^\\s-]{8,}$", {"cjld2cyuq"}, {"cjld2-yuq", "xjld2cyuq", "cjld"}},
        /* words, and the case of letters */
        {"\\bfoo\\b",
         {"foo", "a foo.", "\nfoo\t",
          "\xC3\xA9"
          "foo"},
         {"foot", "_foo", "fo o"}},
        {"\\bfoo\\B", {"foot", "a foo_"}, {"foo", "afoot", "foo bar"}},
        {"(?i)^ye[a-s]|NO$", {"YES", "yes it", "no", "Oh nO"}, {"not", "y e s"}},
        {"^(?i:\xC3\xA4[^k])b$", {"\xC3\x84xb", "\xC3\xA4Xb"}, {"\xC3\xA4xB", "\xC3\xA4Kb", "\xC3\xA4kb"}},
        {"^a(?s:.)b.$", {"a\nbc"}, {"a\nb\n"}},
        {"^a{,3}b$", {"a{,3}b"}, {"b", "aaab"}},
    };
    static const struct row whole[] = {
        {"a{,3}b", {"b", "ab", "aaab"}, {"aaaab", "a{,3}b"}},
        {"a{,}b", {"b", "aaaab"}, {"a{,}b"}},
        {"a{}b", {"a{}b"}, {"b", "ab"}},
        {"(?=a+$|b)[ab]*", {"aa", "ba"}, {"ab", ""}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(grammar_of(rows[i].what, true), &rows[i], true);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        check(grammar_of(whole[i].what, false), &whole[i], false);
}

/* Every format that is enforced, as docs/http.md lists them. */
static void test_formats(void **state)
{
    static const struct row rows[] = {
        {"date",
         {"2024-02-29", "2000-02-29", "1999-12-31"},
         {"2023-02-29", "1900-02-29", "2024-04-31", "24-1-1"}},
        {"time",
         {"12:30:59Z", "00:00:00.25+01:30", "23:59:60Z", "15:59:60.5-08:00", "01:29:60+01:30",
          "23:29:60+23:30", "00:29:60-23:30", "23:59:60+00:00"},
         {"12:30:59", "24:00:00Z", "12:60:00Z", "22:59:60Z", "23:58:60Z", "23:59:60+01:00", "01:30:60+01:30",
          "12:00:61Z", "1:00:00Z"}},
        {"date-time",
         {"1998-12-31T23:59:60Z", "1998-12-31T15:59:60.123-08:00", "2024-02-29t10:00:00.5z",
          "1990-01-01T00:00:00+14:00"},
         {"1998-12-31T22:59:60Z", "1998-12-31T23:58:60Z", "1998-12-31T22:59:60-08:00", "2023-02-29T10:00:00Z",
          "2024-06-31T10:00:00Z", "2024-01-01 10:00:00Z", "2024-01-01T10:00:00"}},
        {"duration",
         {"P4DT12H30M5S", "P1Y2M3D", "PT36H", "P2W", "PT0S", "P1M"},
         {"", "P", "PT", "P1", "P1D2H", "P2W1D", "PT1D", "4D", "P1YT"}},
        {"email",
         {"a.b@c.de", "x@[127.0.0.1]", "a+b@localhost"},
         {"a", "@b", "a@", ".a@b", "a..b@c", "a b@c"}},
        {"hostname", {"a", "www.example.com", "xn--4gbwdl.x", "1a"}, {"", "-a", "a-", "a..b", "a_b"}},
        {"ipv4", {"0.0.0.0", "255.1.20.199"}, {"256.0.0.0", "1.2.3", "01.2.3.4", "1.2.3.4.5"}},
        {"ipv6",
         {"::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::8"},
         {"1", ":::", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "::1.2.3"}},
        {"uri", {"http://a.b:1/c?d#e", "urn:x:y", "mailto:a@b"}, {"//a", "a/b", "", "http://a b", "://"}},
        {"uri-reference", {"a/b?c", "//x", "", "#f", "http://x"}, {"://", "a b", "%x"}},
        {"iri", {"http://\xC3\xA4.de/\xC3\xB6"}, {"\xC3\xA4", "http://a b"}},
        {"iri-reference", {"\xC3\xA4/b", ""}, {"a b", "\\"}},
        {"uri-template", {"a/{b}/c{?d,e*}", "{+x:3}", ""}, {"{", "{b", "{}", "a}"}},
        {"json-pointer", {"", "/", "/a~0b/~1c"}, {"a", "/~", "/~2"}},
        {"relative-json-pointer", {"0", "1/a", "0#", "12/~0"}, {"", "/a", "01", "-1", "0##"}},
        {"regex", {"^[a-z]+(b|c)*$", "", "\\d{2,3}", "(?=a)b"}, {"*", "(", "[", "a**", ")"}},
        {"uuid",
         {"123e4567-E89b-12d3-a456-426614174000"},
         {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400"}},
        {"unknown", {"", "anything"}, {NULL}},
    };
    static const struct grammar_json_options opt = {.any_whitespace = true};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_error error;
        struct grammar *g;
        json_t *schema = json_pack("{s:s,s:s}", "type", "string", "format", rows[i].what);
        assert_int_equal(grammar_from_schema(schema, &opt, &g, &error), ST_OK);
        json_decref(schema);
        check(g, &rows[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_patterns),
                                       cmocka_unit_test(test_formats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

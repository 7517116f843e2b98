/* The template interpreter against transformers' own environment (tests/golden/templates/cases.json, made by
 * scripts/reference/make_templates.py), plus origins, limits and errors. */
#include "server/json/fields.h"
#include "server/jinja/jinja.h"
#include "server/chat/template.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define CASES "tests/golden/templates/cases.json"

static json_t *cases;
/* Sat 26 Jul 2025 09:05:03 */
static const struct tm clock_of_reference = {.tm_year = 125,
                                             .tm_mon = 6,
                                             .tm_mday = 26,
                                             .tm_hour = 9,
                                             .tm_min = 5,
                                             .tm_sec = 3,
                                             .tm_wday = 6,
                                             .tm_yday = 206};

static int load_cases(void **state)
{
    json_error_t e;
    (void)state;
    const char *other = getenv("KVASIR_TEMPLATE_CASES"); /* a file made with another seed, or a bigger one */
    FILE *f = fopen(other ? other : CASES, "r");
    cases = f ? json_loadf(f, JSON_ALLOW_NUL, &e) : NULL;
    if (f) fclose(f);
    if (!cases) fprintf(stderr, "%s:%d: %s\n", CASES, e.line, e.text);
    return cases ? 0 : -1;
}

static int free_cases(void **state)
{
    (void)state;
    json_decref(cases);
    return 0;
}

static enum status render(const char *src, size_t len, json_t *vars, struct jinja_output *out,
                          struct jinja_error *err)
{
    struct jinja_template *t = NULL;
    enum status st = jinja_parse(src, len, NULL, &t, err);
    if (st) return st;
    struct jinja_ctx *c = jinja_ctx_create(NULL);
    const char *key;
    json_t *v;
    json_object_foreach(vars, key, v) jinja_set(c, key, template_value(c, v, JINJA_INPUT));
    jinja_set_now(c, &clock_of_reference);
    st = jinja_render(t, c, out, err);
    jinja_ctx_destroy(c);
    jinja_free(t);
    return st;
}

static void check_runs(const struct jinja_output *o)
{
    size_t sum = 0;
    for (size_t i = 0; i < o->run_count; i++) {
        assert_true(o->runs[i].len > 0);
        if (i) assert_int_not_equal(o->runs[i].origin, o->runs[i - 1].origin);
        sum += o->runs[i].len;
    }
    assert_int_equal(sum, o->len);
}

/* One case of the file; false (with a report) if we differ. */
static bool check_case(json_t *item, const char *group, size_t idx)
{
    const json_t *t = json_object_get(item, "t"), *want = json_object_get(item, "o"),
                 *raised = json_object_get(item, "e");
    json_t *vars = json_object_get(item, "v"),
           *named = json_object_get(json_object_get(cases, "templates"), json_string_value(t));
    struct jinja_output o = {0};
    struct jinja_error err;
    const json_t *source = named ? named : t;
    if (!json_is_object(vars)) vars = json_object_get(cases, "base");
    enum status st = render(json_string_value(source), json_string_length(source), vars, &o, &err);
    bool good;
    if (want)
        good = st == ST_OK && o.len == json_string_length(want) &&
               memcmp(o.text, json_string_value(want), o.len) == 0;
    else if (json_is_string(raised))
        good = st == ST_INVALID && err.code == JINJA_RAISED &&
               strcmp(err.message, json_string_value(raised)) == 0;
    else good = st != ST_OK && err.code != JINJA_RAISED;
    if (!good) {
        char *v = json_is_object(json_object_get(item, "v")) && !named ? json_dumps(vars, 0) : NULL;
        fprintf(stderr, "-- %s %zu: %s\n   vars %s\n   want: %s\n   got:  %s\n", group, idx,
                json_string_value(t), v ? v : "-", want ? json_string_value(want) : "(error)",
                st ? err.message : o.text);
        free(v);
    }
    if (!st) check_runs(&o);
    jinja_output_free(&o);
    return good;
}

static void check_group(const char *group, size_t at_least)
{
    json_t *list = json_object_get(cases, group), *item;
    size_t i, bad = 0;
    assert_true(json_array_size(list) >= at_least);
    json_array_foreach(list, i, item) bad += !check_case(item, group, i);
    if (bad) fprintf(stderr, "%s: %zu of %zu differ\n", group, bad, json_array_size(list));
    assert_int_equal(bad, 0);
}

static void tables(void **state)
{
    (void)state;
    check_group("tables", 800);
}

static void chats(void **state)
{
    (void)state;
    check_group("chats", 500);
}

static void random_templates(void **state)
{
    (void)state;
    check_group("random", 1000);
}

/* ---- origins ---- */

/* x and l are input, y is assistant text, t is the template's own. Expected output: a letter before every
 * run. */
static const struct {
    const char *src, *want;
} origins[] = {
    {"a{{ x }}b", "T:a I:<bos> T:b"},
    {"{{ '<bos>' }}{{ x }}", "T:<bos> I:<bos>"},
    {"{{ '<' + x + '>' }}", "T:< I:<bos> T:>"},
    {"{{ 'p' ~ x ~ y ~ 1 }}", "T:p I:<bos> A:<think> T:1"},
    {"{{ (' ' ~ x ~ ' ')|trim }}", "I:<bos>"},
    {"{{ ('t' ~ x ~ 't')[1:-1] }}{{ ('t' ~ x)[0] }}{{ ('t' ~ x)[1] }}", "I:<bos> T:t I:<"},
    {"{{ ('t' ~ x)[::-1] }}", "I:>sob< T:t"},
    {"{{ ('t' ~ x)|reverse }}", "I:>sob< T:t"},
    {"{{ x|upper }}{{ x.upper() }}{{ x|title }}{{ x|capitalize }}", "I:<BOS><BOS><Bos><bos>"},
    {"{{ [x, 'y']|join('<bos>') }}", "I:<bos> T:<bos>y"},
    {"{{ '<bos>'.join(['a', x]) }}", "T:a<bos> I:<bos>"},
    {"{{ 'a-b'|replace('-', x) }}", "T:a I:<bos> T:b"},
    {"{{ x|replace('bos', 'eos') }}", "I:< T:eos I:>"},
    {"{{ ('a,' ~ x).split(',')[1] }}{{ ('a,' ~ x).split(',')[0] }}", "I:<bos> T:a"},
    {"{{ ('a ' ~ x).split()[1] }}{{ ('a ' ~ x).partition(' ')[2] }}{{ (x ~ ' a').rsplit(' ', 1)[0] }}",
     "I:<bos><bos><bos>"},
    {"{{ x|tojson }}", "I:\"<bos>\""},
    {"{{ {'k': x}|tojson }}", "T:{\"k\":  I:\"<bos>\" T:}"},
    {"{{ l|tojson }}", "I:[\"<bos>\", 1,  T:true I:,  T:null I:, {\"<bos>\": 1.5}]"},
    {"{{ l|tojson(indent=1) }}", "I:[ T:\n  I:\"<bos>\", T:\n  I:1, T:\n true I:, T:\n null I:, T:\n  I:{ "
                                 "T:\n   I:\"<bos>\": 1.5 T:\n  I:} T:\n I:]"},
    {"{{ l }}", "I:['<bos>', 1,  T:True I:,  T:None I:, {'<bos>': 1.5}]"},
    {"{{ [x] }}", "T:[ I:'<bos>' T:]"},
    {"{{ l[0] }}{{ l[1] }}{{ l[4]|list|first }}{{ (l|first) }}{{ l|string|length }}",
     "I:<bos>1<bos><bos> T:40"},
    {"{% macro m(a) %}<bos>{{ a }}{% endmacro %}{{ m(x) }}", "T:<bos> I:<bos>"},
    {"{% macro m(a) %}{{ a }}!{% endmacro %}{{ m(x)|trim('!') }}", "I:<bos>"},
    {"{% set v %}<bos>{{ x }}{% endset %}{{ v }}{{ v|upper }}", "T:<bos> I:<bos> T:<BOS> I:<BOS>"},
    {"{% filter upper %}a{{ x }}{% endfilter %}", "T:A I:<BOS>"},
    {"{% set ns = namespace(v='a') %}{% set ns.v = ns.v ~ x %}{{ ns.v }}", "T:a I:<bos>"},
    {"{% for c in x %}{{ c }}.{% endfor %}", "I:< T:. I:b T:. I:o T:. I:s T:. I:> T:."},
    {"{% for k, v in l[4].items() %}{{ k }}={{ v }}{% endfor %}", "I:<bos> T:= I:1.5"},
    {"{{ '%s|%s' % (x, y) }}{{ '{}!{}'.format(x, x) }}", "I:<bos> T:| A:<think> I:<bos> T:! I:<bos>"},
    {"{{ x|indent(2, true) }}", "T:   I:<bos>"},
    {"{{ x|e }}{{ x|string }}{{ x|safe }}{{ x * 2 }}", "I:&lt;bos&gt;<bos><bos><bos><bos>"},
    {"{{ ('<bos>'|e) }}{{ x|default('q') }}{{ nope|default(x) }}", "T:&lt;bos&gt; I:<bos><bos>"},
    {"{{ (x ~ 'a')|map('upper')|join }}{{ [x, 't']|map('upper')|join('-') }}", "I:<BOS> T:A I:<BOS> T:-T"},
    {"{{ [x]|sort|first }}{{ [x]|unique|first }}{{ {x: 1}|dictsort|first|first }}{{ [[x, "
     "1]]|groupby(0)|first|first }}",
     "I:<bos><bos><bos><bos>"},
    {"{{ x.splitlines()[0] }}{{ x|list|join }}", "I:<bos><bos>"},
    {"{{ y.split('</think>')[-1].lstrip('\\n') }}{{ y|trim }}", "A:<think><think>"},
    {"{{ (x|tojson|from_json) }}{{ ('[' ~ (x|tojson) ~ ']')|from_json|first }}", "I:<bos><bos>"},
    {"{{ x if true }}{{ x or 'a' }}{{ '' or x }}{{ (x, 1)[0] }}{{ {'a': x}.a }}{{ dict(a=x).get('a') }}",
     "I:<bos><bos><bos><bos><bos><bos>"},
    {"{{ x.removeprefix('<') }}{{ x.strip('<>') }}{{ x[1:4] }}", "I:bos>bosbos"},
    {"{% call(q) w() %}{{ q }}{{ x }}{% endcall %}{% macro w() %}[{{ caller(y) }}]{% endmacro %}", NULL},
    {"{% macro w() %}[{{ caller(y) }}]{% endmacro %}{% call(q) w() %}{{ q }}{{ x }}{% endcall %}",
     "T:[ A:<think> I:<bos> T:]"},
};

static void annotate(const struct jinja_output *o, char *out, size_t cap)
{
    size_t at = 0, n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < o->run_count; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%c:%.*s", i ? " " : "", "TIA"[o->runs[i].origin],
                              (int)o -> runs[i].len, o->text + at);
        at += o->runs[i].len;
        if (n >= cap) n = cap - 1;
    }
}

/* Ints beyond 64 bits: they print and compare as in transformers; arithmetic on them is an error. */
static const struct {
    const char *src, *want;
} big_ints[] = {
    {"{{ b }} {{ [b, {'k': n}] }} {{ b ~ 'x' }} {{ b|string }} {{ m }}",
     "123456789012345678901234567890 [123456789012345678901234567890, {'k': "
     "-123456789012345678901234567890}] 123456789012345678901234567890x 123456789012345678901234567890 "
     "9223372036854775808"},
    {"{{ b|tojson }} {{ {b: [b]}|tojson }}",
     "123456789012345678901234567890 {\"123456789012345678901234567890\": [123456789012345678901234567890]}"},
    {"{{ b is integer }} {{ b is number }} {{ b is float }}", "True True False"},
    {"{{ b == f }} {{ b > 5 }} {{ 5 < b }} {{ n < 5 }} {{ b < 1e40 }} {{ b >= 1e10 }} {{ b == b }} {{ b == "
     "c }} {{ b < c }} {{ n < b }} {{ b != 1 }} {{ b == 'x' }}",
     "False True True True True True True False True True True False"},
    {"{{ u == 1.8446744073709552e19 }} {{ 1.8446744073709552e19 == u }} {{ v == 1.8446744073709552e19 }} {{ "
     "u < v }} {{ v > 1.8446744073709552e19 }}",
     "True True False True True"},
    {"{{ b|int }} {{ b|string|int }} {{ +b }}",
     "123456789012345678901234567890 123456789012345678901234567890 123456789012345678901234567890"},
    {"{{ '%d'|format(b) }}|{{ '{}'.format(b) }}",
     "123456789012345678901234567890|123456789012345678901234567890"},
    {"{{ b in [1, b] }} {{ {b: 7}[b] }} {{ {u: 7}[1.8446744073709552e19] }} {{ [b, 1, n]|sort }} {{ [3, "
     "b]|max }} {{ 1 if b else 2 }} {{ [b, b]|unique|list }}",
     "True 7 7 [-123456789012345678901234567890, 1, 123456789012345678901234567890] "
     "123456789012345678901234567890 1 [123456789012345678901234567890]"},
    {"{{ [1][b] }}", ""},
    {"{{ 2.5|int }} {{ -0.5|int }} {{ 'inf'|int(3) }} {{ '%d'|format(-9.9) }}", "2 0 3 -9"},
    {"{{ w < 1 }} {{ w > 1e308 }}", "False True"},
    {"{{ b / 2 }}", NULL},
    {"{{ b % 10 }}", NULL},
    {"{{ b is even }}", NULL},
    {"{{ b * 1.0 }}", NULL},
    {"{{ 1 - b }}", NULL},
    {"{{ b + 1 }}", NULL},
    {"{{ -b }}", NULL},
    {"{{ 1e19|int }}", NULL},
    {"{{ b|length }}", NULL},
    {"{{ 'a' * b }}", NULL},
    {"{{ range(b) }}", NULL},
    {"{{ 'abc'[:b] }}", NULL},
    {"{{ '%x'|format(b) }}", NULL},
    /* What of formatting is not supported says so. */
    {"{{ '%o' % 8 }}", NULL},
    {"{{ '%c' % 'z' }}", NULL},
    {"{{ '%*d' % (3, 8) }}", NULL},
    {"{{ '%x' % -1 }}", NULL},
    {"{{ '%5s' % 'a' }}", NULL},
    {"{{ '{:>5}'.format('a') }}", NULL},
    {"{{ '{0[0]}'.format([1]) }}", NULL},
    {"{{ '{!r}'.format('a') }}", NULL},
    {"{{ '{0}{1}{k}{{'.format(1, b, k='v') }}", "1123456789012345678901234567890v{"},
    {"{{ '{4294967297}'.format(1, 2) }}", NULL},
    {"{{ '<|image_{i:d}|>{:s}{:d}'.format('a', true, i=b) }}", "<|image_123456789012345678901234567890|>a1"},
    {"{{ '{:d}'.format('a') }}", NULL},
    {"{{ '{:s}'.format(1) }}", NULL},
};

static void ints_of_any_size(void **state)
{
    (void)state;
    static char huge[401];
    memset(huge, '9', 400);
    const char *const numbers[][2] = {{"b", "123456789012345678901234567890"},
                                      {"c", "123456789012345678901234567891"},
                                      {"u", "18446744073709551616"},
                                      {"v", "18446744073709551617"},
                                      {"m", "9223372036854775808"},
                                      {"n", "-123456789012345678901234567890"},
                                      {"w", huge}};
    size_t bad = 0;
    for (size_t i = 0; i < sizeof big_ints / sizeof *big_ints; i++) {
        struct jinja_template *t = NULL;
        struct jinja_error err;
        struct jinja_output o = {0};
        assert_int_equal(jinja_parse(big_ints[i].src, strlen(big_ints[i].src), NULL, &t, &err), ST_OK);
        struct jinja_ctx *c = jinja_ctx_create(NULL);
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
            json_t *v = json_pack("{s:s}", JSON_BIG_INT, numbers[k][1]);
            jinja_set(c, numbers[k][0], template_value(c, v, JINJA_INPUT));
            json_decref(v);
        }
        jinja_set(c, "f", jinja_float(123456789012345678901234567890.0));
        enum status st = jinja_render(t, c, &o, &err);
        if (!st) check_runs(&o);
        if (big_ints[i].want ? st || strcmp(o.text, big_ints[i].want) != 0 : !st) {
            fprintf(stderr, "%s\n  want %s\n  got  %s\n", big_ints[i].src,
                    big_ints[i].want ? big_ints[i].want : "(error)", st ? err.message : o.text);
            bad++;
        }
        jinja_output_free(&o);
        jinja_ctx_destroy(c);
        jinja_free(t);
    }
    assert_int_equal(bad, 0);
}

static void origin_marks(void **state)
{
    (void)state;
    json_t *l = json_loads("[\"<bos>\", 1, true, null, {\"<bos>\": 1.5}]", 0, NULL);
    size_t bad = 0;
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++) {
        struct jinja_template *t = NULL;
        struct jinja_error err;
        struct jinja_output o = {0};
        char got[1000] = "(error)";
        assert_int_equal(jinja_parse(origins[i].src, strlen(origins[i].src), NULL, &t, &err), ST_OK);
        struct jinja_ctx *c = jinja_ctx_create(NULL);
        jinja_set(c, "x", jinja_string(c, "<bos>", 5, JINJA_INPUT));
        jinja_set(c, "y", jinja_string(c, "<think>", 7, JINJA_ASSISTANT));
        jinja_set(c, "l", template_value(c, l, JINJA_INPUT));
        enum status st = jinja_render(t, c, &o, &err);
        if (!st) {
            annotate(&o, got, sizeof got);
            check_runs(&o);
        }
        if (origins[i].want ? st || strcmp(got, origins[i].want) != 0 : !st) {
            fprintf(stderr, "%s\n  want %s\n  got  %s %s\n", origins[i].src,
                    origins[i].want ? origins[i].want : "(error)", got, st ? err.message : "");
            bad++;
        }
        jinja_output_free(&o);
        jinja_ctx_destroy(c);
        jinja_free(t);
    }
    json_decref(l);
    assert_int_equal(bad, 0);
}

/* ---- limits and errors ---- */

static void expect_error(const char *src, size_t len, const struct jinja_limits *limits,
                         enum jinja_error_kind want, uint32_t line)
{
    struct jinja_template *t = NULL;
    struct jinja_error err;
    struct jinja_output o = {0};
    enum status st = jinja_parse(src, len, limits, &t, &err);
    if (!st) {
        struct jinja_ctx *c = jinja_ctx_create(limits);
        st = jinja_render(t, c, &o, &err);
        jinja_ctx_destroy(c);
        jinja_free(t);
        jinja_output_free(&o);
    }
    if (st == ST_OK || err.code != want || (line && err.line != line))
        fprintf(stderr, "%.80s: status %d error %d line %u: %s\n", src, st, err.code, err.line, err.message);
    assert_int_not_equal(st, ST_OK);
    assert_int_equal(err.code, want);
    if (line) assert_int_equal(err.line, line);
    assert_true(err.message[0] != '\0');
}

static char *repeat_text(const char *a, size_t n, const char *mid, const char *b)
{
    size_t la = strlen(a), lb = strlen(b), lm = strlen(mid);
    char *s = malloc(n * (la + lb) + lm + 1), *p = s;
    assert_non_null(s);
    for (size_t i = 0; i < n; i++, p += la) memcpy(p, a, la);
    memcpy(p, mid, lm);
    p += lm;
    for (size_t i = 0; i < n; i++, p += lb) memcpy(p, b, lb);
    *p = '\0';
    return s;
}

static void limits_hold(void **state)
{
    (void)state;
    static const char *const endless[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ range(100001) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 100000000 }}",
        "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x "
        "%}{% endfor %}{{ ns.x "
        "}}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
        "}}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ "
        "ns.x|tojson }}",
        "{% set ns = namespace(x=[1]) %}{% set ns.x = [ns] %}{{ ns.x }}{% for i in range(3) %}{% set ns.ns = "
        "ns %}{{ ns }}{% "
        "endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set x = range(100000)|list %}{% for i in x %}{% set y = x|sort %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++)
        expect_error(endless[i], strlen(endless[i]), NULL, JINJA_LIMIT, 0);
    /* Work on long strings is counted in bytes, also where it goes character by character. */
    static const char *const laborious[] = {
        "{% set s = ' ' * 1000000 %}{% for i in range(20) %}{{ s.strip() }}{% endfor %}",
        "{% set s = ' ' * 1000000 %}{% for i in range(20) %}{{ s.lstrip('x ') }}{% endfor %}",
        "{% set s = 'A' * 1000000 %}{% for i in range(20) %}{% set x = s.isalnum() %}{% endfor %}",
        "{% set s = 'A' * 1000000 %}{% for i in range(20) %}{% set x = s.isalpha() %}{% endfor %}",
        "{% set s = 'A' * 1000000 %}{% for i in range(20) %}{% set x = s.isascii() %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(20) %}{% set x = s|upper|length %}{% endfor %}",
    };
    struct jinja_limits small = JINJA_LIMITS_DEFAULT;
    small.steps_max = 150000;
    for (size_t i = 0; i < sizeof laborious / sizeof *laborious; i++)
        expect_error(laborious[i], strlen(laborious[i]), &small, JINJA_LIMIT, 0);
    small = JINJA_LIMITS_DEFAULT;
    small.output_bytes_max = 10;
    expect_error("0123456789a", 11, &small, JINJA_LIMIT, 0);
    small.source_bytes_max = 5;
    expect_error("123456", 6, &small, JINJA_LIMIT, 0);
    char *deep[] = {repeat_text("(", 5000, "1", ")"),   repeat_text("[", 5000, "", "]"),
                    repeat_text("-", 100000, "1", ""),  repeat_text("not ", 100000, "1", ""),
                    repeat_text("1+", 100000, "1", ""), repeat_text("x.", 100000, "y", "")};
    for (size_t i = 0; i < sizeof deep / sizeof *deep;
         i++) { /* brackets are bounded by the lexer, the rest by the parser or the evaluation */
        char *whole = malloc(strlen(deep[i]) + 20);
        sprintf(whole, "{{ %s }}", deep[i]);
        expect_error(whole, strlen(whole), NULL, i < 2 ? JINJA_SYNTAX : JINJA_LIMIT, 0);
        free(whole);
    }
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) free(deep[i]);
    char *blocks = repeat_text("{% if true %}", 5000, "x", "{% endif %}");
    expect_error(blocks, strlen(blocks), NULL, JINJA_LIMIT, 0);
    free(blocks);
}

static void faults_name_lines(void **state)
{
    (void)state;
    static const struct {
        const char *src;
        enum jinja_error_kind code;
        uint32_t line;
    } t[] = {
        {"a\nb\n{{ x.y.z }}", JINJA_RUNTIME, 3},
        {"\n{% if %}", JINJA_SYNTAX, 2},
        {"{#\n\n#}{{ 1 +\n }}", JINJA_SYNTAX, 4},
        {"{% if true %}\n\n{{ raise_exception('no') }}{% endif %}", JINJA_RAISED, 3},
        {"\n\n{{ 'abc }}", JINJA_SYNTAX, 3},
        {"{% macro m() %}\n{{ 1/0 }}{% endmacro %}\n{{ m() }}", JINJA_RUNTIME, 2},
        {"\n{% include 'x' %}", JINJA_SYNTAX, 2},
        {"\xff", JINJA_SYNTAX, 0},
        {"{{ 99999999999999999999 }}", JINJA_SYNTAX, 1},
        {"{{ 9223372036854775807 + 1 }}", JINJA_RUNTIME, 1},
        {"{{ -9223372036854775807 - 2 }}", JINJA_RUNTIME, 1},
        {"{{ '\\N{BULLET}' }}", JINJA_SYNTAX, 1},
    };
    /* What Jinja has and this interpreter hasn't is named, with its line. */
    static const char *const refused[][2] = {
        {"{{ x|batch(2) }}", "'batch'"},
        {"{{ 'x' is sameas 'x' }}", "'sameas'"},
        {"{{ 'x'.center(3) }}", "'center' of 'str'"},
        {"{{ [1].index(1) }}", "'index' of 'list'"},
        {"{% for i in [1] %}{{ loop.cycle(1) }}{% endfor %}", "'cycle' of 'LoopContext'"},
        {"{{ 2 ** 3 }}", "'**'"},
        {"{{ f(**{}) }}", "'**' in a call"},
        {"{{ 0x10 }}", "another base"},
        {"{{ 1_000 }}", "underscores"},
        {"{{ [1][1, 2] }}", "subscripts"},
        {"{% print 1 %}", "'print'"},
        {"{% for i in [1] recursive %}{% endfor %}", "'recursive'"},
        {"{% for i in [1] if i recursive %}{% endfor %}", "'recursive'"},
        {"{% macro m() %}{{ varargs }}{% endmacro %}", "'varargs'"},
        {"{% macro m() %}{{ kwargs.x }}{% endmacro %}", "'kwargs'"},
        {"{{ '%05d' % 1 }}", "%d"},
        {"{{ '{:>3}'.format(1) }}", "{name}"},
        {"{{ ' a b'.rsplit() }}", "rsplit()"},
        {"{{ [{}]|sort(attribute='a,b') }}", "sort"},
        {"{{ cycler(1) }}", "'cycler'"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char src[100];
        struct jinja_output o;
        struct jinja_error err = {0};
        int n = snprintf(src, sizeof src, "a\n\n%s", refused[i][0]);
        assert_int_not_equal(render(src, (size_t)n, NULL, &o, &err), ST_OK);
        if (err.line != 3 || !strstr(err.message, refused[i][1]))
            fail_msg("%s: line %u: %s", refused[i][0], err.line, err.message);
    }
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        expect_error(t[i].src, strlen(t[i].src), NULL, t[i].code, t[i].line);
}

/* A chat of 10,000 messages is ordinary work: far from the limits. */
static void long_chat(void **state)
{
    (void)state;
    const json_t *src = json_object_get(json_object_get(cases, "templates"), "qwen3-vl");
    json_t *messages = json_array(), *vars = json_object();
    for (int i = 0; i < 10000; i++)
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user",
                                                  "content", "What is in this picture, and why?"));
    json_object_set_new(vars, "messages", messages);
    struct jinja_output o = {0};
    struct jinja_error err = {0};
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    enum status st = render(json_string_value(src), json_string_length(src), vars, &o, &err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    print_message("10000 messages: %.1f ms %s\n",
                  (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6, err.message);
    assert_int_equal(st, ST_OK);
    assert_true(o.len > 10000 * 40);
    jinja_output_free(&o);
    json_decref(vars);
}

/* ---- broken templates ---- */

static uint64_t rng_state = 88172645463325252u;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 20) % below;
}

/* Mutated sources never crash, hang or leave the limits; whatever renders has consistent runs. */
static void mutated_templates(void **state)
{
    (void)state;
    static const char *const tokens[] = {"{{",
                                         "}}",
                                         "{%",
                                         "%}",
                                         "{#",
                                         "#}",
                                         "-",
                                         "'",
                                         "\"",
                                         "(",
                                         ")",
                                         "[",
                                         "]",
                                         "|",
                                         "~",
                                         "**",
                                         "%",
                                         "\n",
                                         " if ",
                                         " for ",
                                         "endfor",
                                         "{% endif %}",
                                         "else",
                                         " in ",
                                         "is ",
                                         "not ",
                                         "x",
                                         "messages",
                                         "0",
                                         "1e999",
                                         "9223372036854775807",
                                         ".",
                                         ":",
                                         ",",
                                         "loop",
                                         "\xc3\xa9",
                                         "\xff",
                                         "range(99999)",
                                         "*",
                                         "{% set x = [x] %}",
                                         "namespace(a=1)",
                                         "'%s' %",
                                         "\\u00",
                                         "raw",
                                         "macro",
                                         "caller()"};
    json_t *lists[2] = {json_object_get(cases, "tables"), json_object_get(cases, "random")};
    const json_t *families = json_object_get(cases, "templates");
    json_t *base = json_object_get(cases, "base");
    struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    limits.steps_max = 200000;
    limits.arena_bytes_max = 8u << 20;
    limits.output_bytes_max = 1u << 20;
    const char *rounds_text = getenv("KVASIR_FUZZ_ROUNDS");
    int rounds = rounds_text ? atoi(rounds_text) : 6000, rendered = 0;
    for (int k = 0; k < rounds; k++) {
        const json_t *list = lists[rnd(2)],
                     *pick = json_object_get(json_array_get(list, rnd((uint32_t)json_array_size(list))), "t");
        if (rnd(8) == 0) {
            static const char *const names[] = {"gemma3", "qwen3-vl", "qwen2-vl", "gemma4", "thinking"};
            pick = json_object_get(families, names[rnd(5)]);
        }
        size_t len = json_string_length(pick), cap = len + 600;
        char *s = malloc(cap);
        memcpy(s, json_string_value(pick), len);
        for (uint32_t m = 1 + rnd(6); m > 0; m--) {
            size_t at = len ? rnd((uint32_t)len + 1) : 0;
            const char *tok = tokens[rnd(sizeof tokens / sizeof *tokens)];
            size_t n = strlen(tok),
                   cut = rnd(4) == 0 && at < len ? 1 + rnd((uint32_t)(len - at < 20 ? len - at : 20)) : 0;
            if (rnd(3) == 0) n = 0;
            if (len - cut + n > cap) continue;
            memmove(s + at + n, s + at + cut, len - at - cut);
            memcpy(s + at, tok, n);
            len += n;
            len -= cut;
        }
        char *exact = malloc(len ? len : 1); /* so that a read past the end is seen */
        memcpy(exact, s, len);
        struct jinja_template *t = NULL;
        struct jinja_error err;
        struct jinja_output o = {0};
        if (jinja_parse(exact, len, &limits, &t, &err) == ST_OK) {
            struct jinja_ctx *c = jinja_ctx_create(&limits);
            const char *key;
            json_t *v;
            json_object_foreach(base, key, v) jinja_set(c, key, template_value(c, v, JINJA_INPUT));
            jinja_set(c, "messages", template_value(c, json_object_get(base, "msgs"), JINJA_INPUT));
            (void)jinja_iterates_content(t);
            if (jinja_render(t, c, &o, &err) == ST_OK) {
                check_runs(&o);
                rendered++;
            } else {
                assert_true(err.code != JINJA_OK);
            }
            jinja_output_free(&o);
            jinja_ctx_destroy(c);
            jinja_free(t);
        } else {
            assert_true(err.message[0] != '\0');
        }
        free(exact);
        free(s);
    }
    assert_true(rendered > rounds / 10); /* else the mutations prove nothing about rendering */
}

/* CPU seconds for a dict of these keys, written and read. */
static double dict_seconds(json_t *keys)
{
    static const char source[] = "{% for k in d %}{{ d[k] }}{% endfor %}";
    struct jinja_output o = {0};
    struct jinja_error err;
    json_t *vars = json_pack("{sO}", "d", keys);
    clock_t from = clock();
    assert_int_equal(render(source, strlen(source), vars, &o, &err), ST_OK);
    assert_int_equal(o.len, json_object_size(keys));
    jinja_output_free(&o);
    json_decref(vars);
    return (double)(clock() - from) / CLOCKS_PER_SEC;
}

/* Keys whose FNV-1a hashes, a common choice without a secret, end in 16 zero bits: the last three characters
 * are found by going back from there. */
static json_t *colliding_keys(size_t count)
{
    enum { PRIME = 16777619 };
    static char ends[1 << 16][4];
    json_t *keys = json_object();
    uint32_t inverse = 1;
    for (int i = 0; i < 5; i++) inverse *= 2 - PRIME * inverse;
    for (uint32_t i = 0; i < 1u << 18; i++) {
        char end[4] = {(char)('0' + (i >> 12)), (char)('0' + (i >> 6 & 63)), (char)('0' + (i & 63))};
        uint32_t h = 0;
        for (int k = 2; k >= 0; k--) h = (h * inverse) ^ (unsigned char)end[k];
        memcpy(ends[h & 0xffff], end, sizeof end);
    }
    for (uint32_t i = 0; json_object_size(keys) < count; i++) {
        char key[16];
        uint32_t h = 2166136261u;
        snprintf(key, sizeof key, "%06x", i);
        for (const char *p = key; *p; p++) h = (h ^ (unsigned char)*p) * PRIME;
        if (!*ends[h & 0xffff]) continue;
        memcpy(key + 6, ends[h & 0xffff], 4);
        json_object_set_new(keys, key, json_integer(1));
    }
    return keys;
}

static void keys_of_an_attack(void **state)
{
    (void)state;
    json_t *attack = colliding_keys(30000), *plain = json_object();
    for (int i = 0; i < 30000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%09d", i);
        json_object_set_new(plain, key, json_integer(1));
    }
    double usual = dict_seconds(plain), worst = dict_seconds(attack);
    if (worst > 10 * usual + 0.02) fail_msg("%.3f s for chosen keys, %.3f s for others", worst, usual);
    json_decref(attack);
    json_decref(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables),
        cmocka_unit_test(chats),
        cmocka_unit_test(random_templates),
        cmocka_unit_test(origin_marks),
        cmocka_unit_test(ints_of_any_size),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(faults_name_lines),
        cmocka_unit_test(long_chat),
        cmocka_unit_test(mutated_templates),
        cmocka_unit_test(keys_of_an_attack),
    };
    return cmocka_run_group_tests(tests, load_cases, free_cases);
}

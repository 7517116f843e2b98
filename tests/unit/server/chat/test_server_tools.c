/* Function calls and reasoning in a model's text: what becomes of every kind of text, the same for every way
 * of cutting it, and no crash and nothing lost on random ones. */
#include "server/chat/output.h"
#include "server/chat/tool_calls/types.h"
#include "tests/lib/backend_sets.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MAX ((size_t)1 << 24)

static const struct chat_output_rules
    tools = {.calls = TOOL_SYNTAX_JSON},
    one_tool = {.calls = TOOL_SYNTAX_JSON, .single_call = true}, plain = {.calls = TOOL_SYNTAX_NONE},
    think = {.reasoning = REASONING_FIELD, .calls = TOOL_SYNTAX_JSON},
    inside = {.reasoning = REASONING_FIELD, .inside = true, .calls = TOOL_SYNTAX_JSON},
    drop = {.reasoning = REASONING_DROP, .inside = true},
    drop_tools = {.reasoning = REASONING_DROP, .inside = true, .calls = TOOL_SYNTAX_JSON},
    keep = {.reasoning = REASONING_CONTENT, .calls = TOOL_SYNTAX_JSON},
    keep_inside = {.reasoning = REASONING_CONTENT, .inside = true, .calls = TOOL_SYNTAX_JSON};

/* Calls with a tag for every parameter; .types is set by main. */
static struct chat_output_rules xml = {.calls = TOOL_SYNTAX_XML},
                                one_xml = {.calls = TOOL_SYNTAX_XML, .single_call = true},
                                think_xml = {.reasoning = REASONING_FIELD, .calls = TOOL_SYNTAX_XML};
/* Calls of get_weather and f as plain JSON; .bare is set by main. */
static struct chat_output_rules bare = {.calls = TOOL_SYNTAX_JSON},
                                one_bare = {.calls = TOOL_SYNTAX_JSON, .single_call = true},
                                bare_xml = {.calls = TOOL_SYNTAX_XML},
                                think_bare = {.reasoning = REASONING_FIELD, .calls = TOOL_SYNTAX_JSON};
/* .types are set by main. */
static struct chat_output_rules mistral = {.calls = TOOL_SYNTAX_MISTRAL}, glm = {.calls = TOOL_SYNTAX_GLM},
                                lfm2 = {.calls = TOOL_SYNTAX_LFM2},
                                exact = {.calls = TOOL_SYNTAX_JSON, .exact = true};
static const struct chat_output_rules
    call = {.calls = TOOL_SYNTAX_CALL},
    one_call = {.calls = TOOL_SYNTAX_CALL, .single_call = true},
    channel = {.reasoning = REASONING_FIELD, .syntax = REASONING_CHANNEL, .calls = TOOL_SYNTAX_CALL},
    brackets = {.reasoning = REASONING_FIELD, .syntax = REASONING_MISTRAL, .calls = TOOL_SYNTAX_MISTRAL},
    channel_inside = {
        .reasoning = REASONING_FIELD, .syntax = REASONING_CHANNEL, .inside = true, .calls = TOOL_SYNTAX_CALL};
static const char *const schemas =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"color\":{\"enum\":["
    "\"red\",3]},\"loop\":{\"$ref\":"
    "\"#/$defs/loop\"},\"point\":{\"type\":\"object\"}},\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":"
    "\"boolean\"},"
    "\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},\"z\":{\"type\":\"null\"},\"si\":{\"type\":["
    "\"string\",\"integer\"]},"
    "\"sz\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"oz\":{\"oneOf\":[{\"$ref\":\"#/$defs/"
    "point\"},{\"type\":\"null\"}]},"
    "\"all\":{\"allOf\":[{\"title\":\"x\"},{\"$ref\":\"#/$defs/color\"}]},\"loop\":{\"$ref\":\"#/$defs/"
    "loop\"},\"no\":{\"$ref\":\"#/$defs/no\"},"
    "\"c\":{\"const\":true},\"any\":{},\"yes\":true,\"two words\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":"
    "\"string\"}},\"additionalProperties\":{\"type\":\"integer\"}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"bare\"}}]";

static uint64_t rng_state = 0x9e3779b97f4a7c15u;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 32) % below);
}

/* What came out, as one text: "(reasoning)content[name arguments][name arguments...", a call without its
 * closing bracket is not complete. */
static char *shown(const struct chat_output *o)
{
    struct buf b;
    buf_init(&b, 4 * MAX);
    if (o->reasoning.len) assert_int_equal(buf_addf(&b, "(%s)", o->reasoning.data), ST_OK);
    assert_int_equal(buf_adds(&b, o->content.len ? o->content.data : ""), ST_OK);
    for (uint32_t i = 0; i < o->call_count; i++) {
        bool open = i + 1 == o->call_count && !chat_output_called(o);
        assert_int_equal(buf_addf(&b, "[%s %s%s", o->calls[i].name.data,
                                  o->calls[i].arguments.len ? o->calls[i].arguments.data : "",
                                  open ? "" : "]"),
                         ST_OK);
    }
    return b.data;
}

/* Runs text that grows by the given cuts (ascending, below len). The text is copied for each step to memory
 * that ends right behind it. */
static char *run_cut(const struct chat_output_rules *rules, const char *text, size_t len, const size_t *cuts,
                     size_t count, bool late_end)
{
    struct chat_output o;
    chat_output_init(&o, rules, MAX);
    for (size_t i = 0; i <= count; i++) {
        size_t to = i < count ? cuts[i] : len;
        char *copy = malloc(to + !to);
        assert_non_null(copy);
        memcpy(copy, text, to);
        assert_int_equal(chat_output_run(&o, copy, to, i == count && !late_end), ST_OK);
        if (i == count && late_end) assert_int_equal(chat_output_run(&o, copy, to, true), ST_OK);
        free(copy);
    }
    char *out = shown(&o);
    chat_output_fini(&o);
    return out;
}

static char *run_whole(const struct chat_output_rules *rules, const char *text, size_t len)
{
    return run_cut(rules, text, len, NULL, 0, false);
}

static char *run_bytes(const struct chat_output_rules *rules, const char *text, size_t len)
{
    size_t *cuts = malloc((len + 1) * sizeof *cuts);
    assert_non_null(cuts);
    for (size_t i = 0; i < len; i++) cuts[i] = i;
    char *out = run_cut(rules, text, len, cuts, len, true);
    free(cuts);
    return out;
}

static void same(const char *what, const char *text, size_t len, char *got, const char *want)
{
    if (strcmp(got ? got : "", want) != 0)
        fail_msg("%s: of \"%.*s\"\n  got  %s\n  want %s", what, (int)len, text, got ? got : "", want);
    free(got);
}

/* ---- table ---- */

#define CALL(json_)             "<tool_call>\n" json_ "\n</tool_call>"
#define PARIS                   "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}"
#define GOT_PARIS               "[get_weather {\"city\": \"Paris\"}]"
#define P(name_, value_)        "<parameter=" name_ ">\n" value_ "\n</parameter>\n"
#define F(name_, parameters_)   "<function=" name_ ">\n" parameters_ "</function>"
#define XML(name_, parameters_) CALL(F(name_, parameters_))
#define XPARIS                  XML("get_weather", P("city", "Paris"))
#define Q(text_)                "<|\"|>" text_ "<|\"|>"
#define NOTED(text_)            "<|tool_call>" text_ "<tool_call|>"
#define NPARIS                  NOTED("call:get_weather{city:" Q("Paris") "}")

static const struct {
    const struct chat_output_rules *rules;
    const char *text, *want;
} table[] = {
    /* calls */
    {&tools, CALL(PARIS), GOT_PARIS},
    {&tools, "\n\n" CALL(PARIS) "\n", GOT_PARIS},
    {&tools, "Let me see.\n" CALL(PARIS), "Let me see." GOT_PARIS},
    {&tools, "Let me see.\n\n" CALL(PARIS), "Let me see.\n" GOT_PARIS}, /* one line break is the template's */
    {&tools, "Let me see. " CALL(PARIS), "Let me see. " GOT_PARIS},
    {&tools, CALL(PARIS) "\n" CALL("{\"name\": \"f\", \"arguments\": {}}"), GOT_PARIS "[f {}]"},
    {&tools, CALL(PARIS) CALL(PARIS) " \n\n ", GOT_PARIS GOT_PARIS},
    {&tools, CALL(PARIS) "\nand\n" CALL(PARIS) "\nthen", "\nand\nthen" GOT_PARIS GOT_PARIS},
    {&tools, "<tool_call>" PARIS "</tool_call>", GOT_PARIS},
    {&tools, "<tool_call>" PARIS, GOT_PARIS},
    {&tools, "<tool_call>\n" PARIS "\n", GOT_PARIS},
    {&tools, "<tool_call>\n" PARIS "\n</tool_ca", "</tool_ca" GOT_PARIS}, /* cut by the length */
    {&tools, "<tool_call>\n" PARIS "\nThat was it.", "That was it." GOT_PARIS},
    {&tools, "<tool_call>\n" PARIS "\n" CALL(PARIS), GOT_PARIS GOT_PARIS},
    {&tools, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>",
     "[f {\"a\": 1}]"}, /* too few braces */
    {&tools, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
     "[f {\"a\": 1}]"}, /* too many */
    {&tools, CALL("{\"arguments\": {\"a\": {\"b\": [{}]}}, \"name\": \"f\"}"), "[f {\"a\": {\"b\": [{}]}}]"},
    {&tools,
     CALL("{\"id\": 7, \"x\": [1, {\"name\": \"g\"}], \"name\": \"f\", \"y\": null, \"arguments\": {}, "
          "\"z\": -1.5e+3}"),
     "[f {}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": {}}, \"name\": \"g\", \"arguments\": {}}"),
     "[f {\"a\": {}}]"},
    {&tools, CALL("{\"name\":\"f\",\"arguments\":{\"a\" : 1 ,\"b\":[ ] }}"), "[f {\"a\" : 1 ,\"b\":[ ] }]"},
    {&tools, CALL("{\"name\": \"f\"}"), "[f {}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": null}"), "[f {}]"},
    {&tools, CALL("{\"arguments\": null, \"name\": \"f\"}"), "[f {}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": \"\"}"), "[f {}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00fc\\n\\\"}\"}"),
     "[f {\"a\": \"ü\\n\"}]"},
    {&tools, CALL("{\"arguments\": \"{}\", \"name\": \"f\"}"), "[f {}]"},
    {&tools,
     CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"}{\\\"]\\\\\", \"b\": \"\\ud83d\\ude00 \\u00fc é "
          "北京\"}}"),
     "[f {\"a\": \"}{\\\"]\\\\\", \"b\": \"\\ud83d\\ude00 \\u00fc é 北京\"}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\", \"b\": \"<tool_call>\\n{\"}}"),
     "[f {\"a\": \"</tool_call>\", \"b\": \"<tool_call>\\n{\"}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call> <tool_call>\", \"b\": 1}}"),
     "[f {\"a\": \"</tool_call> <tool_call>\", \"b\": 1}]"},
    {&tools,
     CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"b\"                                             "
          "                         :                                                                       "
          "1}}"),
     "[f {\"a\": \"x\", \"b\"                                                                      :         "
     "                                                              1}]"},
    {&tools,
     CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"x\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}"),
     "[f {\"a\": \"x\"}][g {}]"},
    {&tools, CALL("{\"name\": \"g\\u0065t\", \"arguments\": {}}"), "[get {}]"},
    /* arguments that are no JSON: the client gets what was written */
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": True, 'b': [x}]}}"),
     "[f {\"a\": true, \"b\": [\"x\"]}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {a: 1}}"), "[f {\"a\": 1}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"code\": \"x\ny {\"}}"), "[f {\"code\": \"x\\ny {\"}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"x}"), "[f {\"a\": \"x\"}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": 1"), "[f {\"a\": 1}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": 01}}"), "[f {\"a\": \"01\"}]"},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"\\q\\\"}\"}}"), "[f {\"a\": \"\\\\q\\\"}\"}]"},
    /* the end comes early */
    {&tools, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x", "[f {\"a\": \"x"},
    {&tools, "<tool_call>\n{\"name\": \"f\", \"arguments\": {", "[f {"},
    {&tools, "<tool_call>\n{\"name\": \"f\", \"argum", "<tool_call>\n{\"name\": \"f\", \"argum"},
    {&tools, "\nOh\n<tool_call>\n{\"na", "\nOh\n<tool_call>\n{\"na"},
    {&tools, "Oh\n<tool_", "Oh\n<tool_"},
    {&tools, CALL(PARIS) "\n<tool_call>\n{\"name", "\n<tool_call>\n{\"name" GOT_PARIS},
    /* no calls */
    {&tools, "", ""},
    {&tools, " \n ", " \n "},
    {&tools, "\nHello\n\n", "\nHello\n\n"},
    {&tools, "a < b <tool <tool_call but </tool_call> {\"name\": 1}",
     "a < b <tool <tool_call but </tool_call> {\"name\": 1}"},
    {&tools, "\n" CALL("nonsense") "\n", "\n" CALL("nonsense") "\n"},
    {&tools, CALL("[" PARIS "]"), "[get_weather {\"city\": \"Paris\"}]"},
    {&tools, CALL("{\"name\": 5, \"arguments\": {}}"), CALL("{\"name\": 5, \"arguments\": {}}")},
    {&tools, CALL("{\"name\": \"\", \"arguments\": {}}"), CALL("{\"name\": \"\", \"arguments\": {}}")},
    {&tools, CALL("{\"name\": \"\\ud800\", \"arguments\": {}}"),
     CALL("{\"name\": \"\\ud800\", \"arguments\": {}}")},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": [1]}"), CALL("{\"name\": \"f\", \"arguments\": [1]}")},
    {&tools, CALL("{\"name\": \"f\", \"arguments\": \"[1]\"}"),
     CALL("{\"name\": \"f\", \"arguments\": \"[1]\"}")},
    {&tools, CALL("{\"arguments\": {\"a\": 1}}"), CALL("{\"arguments\": {\"a\": 1}}")},
    {&tools, CALL("{'name': 'f'}"), "[f {}]"},
    {&tools, CALL("{\"name\": \"f\" \"arguments\": {}}"), "[f {}]"},
    {&tools, CALL("{}"), CALL("{}")},
    {&tools, CALL("\"name\""), CALL("\"name\"")},
    /* arguments in front of the name are looked at strictly: nothing was said yet */
    {&tools, CALL("{\"arguments\": {\"a\": \"\\u123x\"}, \"name\": \"f\"}"), "[f {\"a\": \"\\\\u123x\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": \"\\q\"}, \"name\": \"f\"}"), "[f {\"a\": \"\\\\q\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": \"\n\"}, \"name\": \"f\"}"), "[f {\"a\": \"\\n\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 01}, \"name\": \"f\"}"), "[f {\"a\": \"01\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 1.}, \"name\": \"f\"}"), "[f {\"a\": 1.0}]"},
    {&tools, CALL("{\"arguments\": {\"a\": -}, \"name\": \"f\"}"), "[f {\"a\": \"-\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 1e}, \"name\": \"f\"}"), "[f {\"a\": \"1e\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": +1}, \"name\": \"f\"}"), "[f {\"a\": 1}]"},
    {&tools, CALL("{\"arguments\": {\"a\": .5}, \"name\": \"f\"}"), "[f {\"a\": 0.5}]"},
    {&tools, CALL("{\"arguments\": {\"a\": tru}, \"name\": \"f\"}"), "[f {\"a\": \"tru\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": truex}, \"name\": \"f\"}"), "[f {\"a\": \"truex\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": [1,]}, \"name\": \"f\"}"), "[f {\"a\": [1]}]"},
    {&tools, CALL("{\"arguments\": {\"a\": {\"b\":}}, \"name\": \"f\"}"), "[f {\"a\": {\"b\":null}}]"},
    {&tools, CALL("{\"arguments\": {\"a\": {\"b\"}}, \"name\": \"f\"}"), "[f {\"a\": {\"b\": null}}]"},
    {&tools, CALL("{\"arguments\": {\"a\": {,}}, \"name\": \"f\"}"), "[f {\"a\": {}}]"},
    {&tools, CALL("{\"arguments\": {\"a\": ]}, \"name\": \"f\"}"), "[f {\"a\": null}]"},
    {&tools, CALL("{\"arguments\": {\"a\": \"a}, \"name\": \"f\"}"),
     CALL("{\"arguments\": {\"a\": \"a}, \"name\": \"f\"}")},
    {&tools, CALL("{\"arguments\": {\"a\": {b: 1}}, \"name\": \"f\"}"), "[f {\"a\": {\"b\": 1}}]"},
    {&tools, CALL("{\"arguments\": {\"a\": [1 2]}, \"name\": \"f\"}"), "[f {\"a\": [\"1 2\"]}]"},
    {&tools, CALL("{\"arguments\": {\"a\": nul}, \"name\": \"f\"}"), "[f {\"a\": \"nul\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": [}}, \"name\": \"f\"}"),
     CALL("{\"arguments\": {\"a\": [}}, \"name\": \"f\"}")},
    {&tools, CALL("{\"arguments\": {\"a\": \"\\u12Fc\\n\\/\"}, \"name\": \"f\"}"),
     "[f {\"a\": \"\\u12Fc\\n\\/\"}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 0}, \"name\": \"f\"}"), "[f {\"a\": 0}]"},
    {&tools, CALL("{\"arguments\": {\"a\": -0}, \"name\": \"f\"}"), "[f {\"a\": -0}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 10.25}, \"name\": \"f\"}"), "[f {\"a\": 10.25}]"},
    {&tools, CALL("{\"arguments\": {\"a\": 1E-5}, \"name\": \"f\"}"), "[f {\"a\": 1E-5}]"},
    {&tools, CALL("{\"arguments\": {\"a\": -3e+07}, \"name\": \"f\"}"), "[f {\"a\": -3e+07}]"},
    {&tools, CALL("{\"arguments\": {\"a\": [ 1 , [ ] ]}, \"name\": \"f\"}"), "[f {\"a\": [ 1 , [ ] ]}]"},
    {&tools, CALL("{\"arguments\": {\"a\": { \"b\" : { } }}, \"name\": \"f\"}"),
     "[f {\"a\": { \"b\" : { } }}]"},
    {&tools, CALL("{\"arguments\": {\"a\": false}, \"name\": \"f\"}"), "[f {\"a\": false}]"},
    {&tools, "x\n" CALL("{\"name\": nul}") "\n" CALL(PARIS), "x\n" CALL("{\"name\": nul}") GOT_PARIS},
    {&tools, "<tool_call>\n" CALL(PARIS), "<tool_call>" GOT_PARIS},
    {&tools, "<think>" CALL(PARIS), "<think>" GOT_PARIS}, /* a model without reasoning */
    {&plain, "\n" CALL(PARIS) "\n", "\n" CALL(PARIS) "\n"},
    /* at most one */
    {&one_tool, "Hm\n" CALL(PARIS) "\n" CALL(PARIS) "x", "Hm" GOT_PARIS},
    {&one_tool, CALL("no") CALL(PARIS) CALL("no"), CALL("no") GOT_PARIS},
    {&one_tool, "no call", "no call"},
    /* reasoning */
    {&think, "<think>\nhm\n</think>\n\nYes.", "(hm)Yes."},
    {&think, " \n<think>\n\nh\n\nm\n\n</think>Yes.\n", "(h\n\nm)Yes.\n"},
    {&think, "<think></think>Yes.", "Yes."},
    {&think, "<think>\n\n</think>\n\n", ""},
    {&think, "<think>\nhm\n", "(hm)"},
    {&think, "<think>\nhm\n</thi", "(hm\n</thi)"},
    {&think, "<think", "<think"},
    {&think, "\n", "\n"},
    {&think, "Yes <think>no</think>", "Yes <think>no</think>"},
    {&think, "<think>a</think>b</think><think>c", "(a)b</think><think>c"},
    {&think, "<think>\n" CALL(PARIS) "\n</think>\n\n" CALL(PARIS), "(" CALL(PARIS) ")" GOT_PARIS},
    {&think, "<think>x</think>\n\nSo:\n" CALL(PARIS), "(x)So:" GOT_PARIS},
    {&think, CALL(PARIS), GOT_PARIS},
    {&inside, "hm\n</think>\n\nYes.", "(hm)Yes."},
    /* a call in reasoning without end is one; before the end tag it is a draft */
    {&inside, "\nhm " CALL(PARIS), "(hm )" GOT_PARIS},
    {&inside, "hm\n\n" CALL(PARIS) "\n", "(hm)" GOT_PARIS},
    {&inside, CALL(PARIS), GOT_PARIS},
    {&inside, CALL(PARIS) "</thi", "(</thi)" GOT_PARIS},
    {&inside, "a\n" CALL(PARIS) "\nb\n" CALL(PARIS) "\nc\n", "(a\nb\nc)" GOT_PARIS GOT_PARIS},
    {&inside, "a\n" CALL(PARIS) "\nb\n\n</think>\nc", "(a\n" CALL(PARIS) "\nb)c"},
    {&inside, "write <tool_call> and\n" CALL("no") "\n" CALL(PARIS),
     "(write <tool_call> and\n" CALL("no") ")" GOT_PARIS},
    {&inside, "write <tool_call> and\n\n", "(write <tool_call> and)"},
    {&inside, "hm\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x", "(hm)[f {\"a\": \"x"},
    {&inside, "hm\n<tool_call>\n{\"name\": \"f\", \"argum", "(hm\n<tool_call>\n{\"name\": \"f\", \"argum)"},
    {&inside, CALL("{\"name\": \"f\", \"arguments\": {\"a\": \"</think>\"}}") "x",
     "(<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \")\"}}\n</tool_call>x"},
    {&think, "<think>hm\n" CALL(PARIS), "(hm)" GOT_PARIS},
    {&think, "<think>hm\n" CALL(PARIS) "</think>\n\n", "(hm\n" CALL(PARIS) ")"},
    {&drop_tools, "hm\n" CALL(PARIS) "x", GOT_PARIS},
    {&keep, "<think>\nhm\n" CALL(PARIS) "x", "<think>\nhmx" GOT_PARIS},
    {&think_xml, "<think>\nhm\n" XPARIS, "(hm)" GOT_PARIS},
    {&think_xml, "<think>\nhm\n" F("get_weather", P("city", "Paris")), "(hm)" GOT_PARIS},
    {&channel_inside, "hm\n" NPARIS, "(hm)[get_weather {\"city\":\"Paris\"}]"},
    {&brackets, "[THINK]hm[TOOL_CALLS]f[ARGS]{\"s\": 1}", "(hm)[f {\"s\": 1}]"},
    {&inside, "hm</think>" CALL(PARIS), "(hm)" GOT_PARIS},
    {&inside, "</think>\nx", "x"},
    {&inside, "<think>hm</think>x", "(<think>hm)x"},
    {&inside, "", ""},
    {&drop, "\nhm\n</think>\n\nYes.", "Yes."},
    {&drop, "hm", ""},
    {&keep, "\n<think>\nhm " CALL(PARIS) "\n</think>\n\nYes.",
     "\n<think>\nhm " CALL(PARIS) "\n</think>\n\nYes."},
    {&keep, "<think>\nhm\n</think>\n\nYes.\n" CALL(PARIS), "<think>\nhm\n</think>\n\nYes." GOT_PARIS},
    {&keep_inside, "\nhm " CALL(PARIS) "\n</think>\n\nYes.", "\nhm " CALL(PARIS) "\n</think>\n\nYes."},
    {&keep_inside, "hm\n\n", "hm\n\n"},
    /* a tag for every parameter */
    {&xml, XPARIS, GOT_PARIS},
    {&xml, "\n\n" XPARIS "\n", GOT_PARIS},
    {&xml, "Let me see.\n" XPARIS "\n" XPARIS, "Let me see." GOT_PARIS GOT_PARIS},
    {&xml, XPARIS "\nand\n" XPARIS "\nthen", "\nand\nthen" GOT_PARIS GOT_PARIS},
    {&xml, CALL(F("get_weather", P("city", "Paris")) "\n" F("bare", "")), GOT_PARIS "[bare {}]"},
    {&xml, "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
     GOT_PARIS},
    {&xml, XML("unknown", P("x", "5")), "[unknown {\"x\": \"5\"}]"},
    {&xml, XML("bare", ""), "[bare {}]"},
    {&xml, XML("bare", P("x", "[5]")), "[bare {\"x\": \"[5]\"}]"},
    {&xml,
     XML("f", P("s", "5") P("i", "5") P("n", "5.5") P("b", "true") P("o", "{\"a\": [1, 2]}")
                  P("a", "[\n 1\n]") P("z", "null")),
     "[f {\"s\": \"5\", \"i\": 5, \"n\": 5.5, \"b\": true, \"o\": {\"a\": [1, 2]}, \"a\": [\n 1\n], \"z\": "
     "null}]"},
    {&xml, XML("f", P("b", "True") P("b", " False ") P("z", "None") P("i", " -7\n") P("s", " x ") P("s", "")),
     "[f {\"b\": true, \"b\": false, \"z\": null, \"i\": -7, \"s\": \" x \", \"s\": \"\"}]"},
    {&xml, XML("f", P("s", "null") P("sz", "null") P("sz", "None") P("sz", "5") P("sz", "\"q\"")),
     "[f {\"s\": \"null\", \"sz\": null, \"sz\": null, \"sz\": \"5\", \"sz\": \"\\\"q\\\"\"}]"},
    {&xml, XML("f", P("si", "5") P("si", "5.5") P("si", "x") P("si", "true") P("si", "[5]")),
     "[f {\"si\": 5, \"si\": \"5.5\", \"si\": \"x\", \"si\": \"true\", \"si\": \"[5]\"}]"},
    {&xml,
     XML("f", P("i", "five") P("i", "5.5") P("i", "NaN") P("i", "05") P("o", "{'a': 1}") P("a", "\"t\"")
                  P("i", "")),
     "[f {\"i\": \"five\", \"i\": 5.5, \"i\": \"NaN\", \"i\": \"05\", \"o\": {\"a\": 1}, \"a\": \"t\", "
     "\"i\": \"\"}]"},
    {&xml,
     XML("f", P("all", "red") P("all", "3") P("oz", "{}") P("oz", "null") P("loop", "5") P("no", "5")
                  P("c", "true") P("any", "5") P("yes", "{}") P("new", "5")),
     "[f {\"all\": \"red\", \"all\": 3, \"oz\": {}, \"oz\": null, \"loop\": \"5\", \"no\": \"5\", \"c\": "
     "true, \"any\": \"5\", \"yes\": \"{}\", \"new\": \"5\"}]"},
    {&xml, XML("get_weather", P("city", "x") P("days", "3")),
     "[get_weather {\"city\": \"x\", \"days\": 3}]"}, /* additionalProperties */
    {&xml, XML("f", P("s", "\"\\\t\x01\r\né 北京 😀\n\n</tool_call> <function=f> a </b>")),
     "[f {\"s\": \"\\\"\\\\\\t\\u0001\\r\\né 北京 😀\\n\\n</tool_call> <function=f> a </b>\"}]"},
    {&xml, XML("f", P("s", "if a <parameter=x> b:\n  </function>\n<tool_call>")),
     "[f {\"s\": \"if a <parameter=x> b:\\n  </function>\\n<tool_call>\"}]"},
    {&xml, XML("f", P("two words", "5") P("s", "x") P("two words", "6")),
     "[f {\"two words\": 5, \"s\": \"x\", \"two words\": 6}]"},
    {&xml, XML("f", "<parameter=s>\nx\n" P("two words", "6")), "[f {\"s\": \"x\", \"two words\": 6}]"},
    {&xml, XML("f", P("a\"\\b", "x")), "[f {\"a\\\"\\\\b\": \"x\"}]"},
    /* tags are missing */
    {&xml, F("get_weather", P("city", "Paris")), GOT_PARIS},
    {&xml, "So:\n" F("get_weather", P("city", "Paris")) "\n</tool_call>\nDone.", "So:\nDone." GOT_PARIS},
    {&xml, "<tool_call>\n<function=get_weather>\n" P("city", "Paris") "</tool_call>", GOT_PARIS},
    {&xml, "<tool_call>\n" F("get_weather", P("city", "Paris")), GOT_PARIS},
    {&xml, XML("f", "<parameter=s>\nx\n<parameter=i>\n5\n"), "[f {\"s\": \"x\", \"i\": 5}]"},
    {&xml, XML("f", "<parameter=s>\n<parameter=i>\n5</parameter>"), "[f {\"s\": \"\", \"i\": 5}]"},
    {&xml, "<tool_call>\n<function=f>\n" P("s", "x") XPARIS, "[f {\"s\": \"x\"}]" GOT_PARIS},
    {&xml, "<tool_call>\n<function=f>\n" P("s", "x") F("bare", "") "\n</tool_call>",
     "[f {\"s\": \"x\"}][bare {}]"},
    {&one_xml, "<tool_call>\n<function=f>\n" P("s", "x") XPARIS, "[f {\"s\": \"x\"}]"},
    {&xml, "<tool_call>\n<function=f>\n<parameter=s>\nx\n</tool_call>y", "[f {\"s\": \"x\\n</tool_call>y"},
    {&xml, XML("f", "no\n" P("s", "x") "<b>junk</b>\n<parameter=a b>\n<parameter=>\n" P("i", "5")),
     "<tool_call>\n<function=f>\nno\n"
     "<parameter=s>\nx\n</parameter>\n<b>junk</b>\n<parameter=a b>\n<parameter=>\n" P(
         "i", "5") "</function>\n</tool_call>"},
    {&xml, XML("f", P("s", "x") "<b>junk</b>\n<parameter=a b>\n<parameter=>\n" P("i", "5")),
     "[f {\"s\": \"x\\n</parameter>\\n<b>junk</b>\\n<parameter=a b>\\n<parameter=>\", \"i\": 5}]"},
/* closing tags in a wrong spelling */
#define OPEN_F    "<tool_call>\n<function=f>\n"
#define END_F     "</function>\n</tool_call>"
#define S(close_) "<parameter=s>\nx\n" close_ "\n"
#define GOT_SI    "[f {\"s\": \"x\", \"i\": 5}]"
    {&xml, OPEN_F P("s", "x") P("i", "5") "</function_invocation>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</invoke>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</invoke>\n</function_calls>", GOT_SI},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</invoke>", GOT_SI},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</tool>\n" XPARIS, GOT_SI GOT_PARIS},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</function_call>\n</tool_calls>\nDone.", "Done." GOT_SI},
    {&xml, OPEN_F S("</invoke>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</s>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</param>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</parameter/>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</parameter=s>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</parameter") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F S("</arg_value>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</argument>\n" END_F "\n" XPARIS, GOT_SI GOT_PARIS},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</i>\n</function_call>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</parameters>", GOT_SI},
    {&xml, OPEN_F P("s", "x") "</parameter>\n" P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n" XPARIS, GOT_SI GOT_PARIS},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n" F("get_weather", P("city", "Paris")), GOT_SI GOT_PARIS},
    {&xml, "<tool_call>\n<function=bare>\n</invoke>\n</tool_call>", "[bare {}]"},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</func>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</f>\n" XPARIS, GOT_SI GOT_PARIS},
    {&xml, OPEN_F P("s", "x") P("i", "5") "</invoke>\n\nDone.", "Done." GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</param>\n</invoke>\nDone.", "Done." GOT_SI},
    {&xml, CALL(PARIS "\n</function_call>"), GOT_PARIS},
    {&xml, OPEN_F S("<|/parameter|>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n<|/parameter|>\n<|/function|>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F S("</i>") P("i", "5") END_F, GOT_SI},
    {&xml, OPEN_F P("i", "5") "<parameter=s>\nx\n</i>\n" END_F "\n" XPARIS,
     "[f {\"i\": 5, \"s\": \"x\"}]" GOT_PARIS},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</function>\n</parameter>\n</tool_call>", GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</function>\n</parameter>", GOT_SI},
    {&xml, OPEN_F P("s", "x") "<parameter=i>\n5\n</function></parameter></tool_call>Done.", "Done." GOT_SI},
    /* values with tags of their own */
    {&xml, XML("f", P("s", "</function>") P("i", "5")), "[f {\"s\": \"</function>\", \"i\": 5}]"},
    {&xml, XML("f", P("i", "5") P("s", "a\n</function>")), "[f {\"i\": 5, \"s\": \"a\\n</function>\"}]"},
    {&xml, XML("f", P("s", "<i>a</i>") P("i", "5")), "[f {\"s\": \"<i>a</i>\", \"i\": 5}]"},
    {&xml, XML("f", P("s", "a</i>\n<|/parameter|>")), "[f {\"s\": \"a</i>\\n<|/parameter|>\"}]"},
    {&xml, XML("f", P("s", "<|parameter|>a<|/parameter|>\n")),
     "[f {\"s\": \"<|parameter|>a<|/parameter|>\\n\"}]"},
    {&xml, XML("f", P("s", "<invoke>\n<tool>x</tool>\n</invoke>") P("i", "5")),
     "[f {\"s\": \"<invoke>\\n<tool>x</tool>\\n</invoke>\", \"i\": 5}]"},
    {&xml, XML("f", P("s", "a</invoke>") P("i", "5")), "[f {\"s\": \"a</invoke>\", \"i\": 5}]"},
    {&xml, XML("f", P("s", "<s>a</s>\n</function_call>b")), "[f {\"s\": \"<s>a</s>\\n</function_call>b\"}]"},
    {&xml, OPEN_F "<parameter=s>\n<call>a</call>\n" END_F, "[f {\"s\": \"<call>a</call>\"}]"},
    {&xml, OPEN_F "<parameter=s>\n<|param|>a<|/param|>\n" P("i", "5") END_F,
     "[f {\"s\": \"<|param|>a<|/param|>\", \"i\": 5}]"},
    {&xml, OPEN_F "<parameter=s>\n<p>a</p>\n" P("i", "5") END_F, "[f {\"s\": \"<p>a</p>\", \"i\": 5}]"},
    {&xml, XML("f", P("s", "<config>\n<parameter>x</parameter>\n</config>")),
     "[f {\"s\": \"<config>\\n<parameter>x</parameter>\\n</config>\"}]"},
    {&xml, XML("f", P("s", "<function=bare>") P("i", "5")), "[f {\"s\": \"<function=bare>\", \"i\": 5}]"},
    {&xml, XML("f", P("i", "5") P("s", "<function=bare>")), "[f {\"i\": 5, \"s\": \"<function=bare>\"}]"},
    {&glm,
     CALL("f\n<arg_key>s</arg_key>\n<arg_value>x</arg_key>\n<arg_key>i</arg_key>\n<arg_value>5</arg_value>"),
     GOT_SI},
    {&glm, CALL("f\n<arg_key>s<arg_value>x</value>\n<arg_key>i</arg_value>\n<arg_value>5</arg>"), GOT_SI},
    {&glm,
     "<tool_call>f\n<arg_key>i</arg_key>\n<arg_value>5" CALL("get_weather\n<arg_key>city</arg_key>\n"
                                                             "<arg_value>Paris</arg_value>"),
     "[f {\"i\": 5}]" GOT_PARIS},
    /* what may be around a call */
    {&xml, CALL("Here: " PARIS), GOT_PARIS},
    {&xml, CALL("Here is the call:\n```json\n" PARIS "\n```"), GOT_PARIS},
    {&xml, CALL("I call\n" F("get_weather", P("city", "Paris"))), GOT_PARIS},
    {&xml, CALL("json\n" PARIS), GOT_PARIS},
    {&xml, CALL("```json\n" PARIS "\n```"), GOT_PARIS},
    {&xml, CALL("~~~json\n" PARIS "\n~~~"), GOT_PARIS},
    {&xml, CALL("Here:\n~~~\n" PARIS "\n~~~\n") "Done.", "Done." GOT_PARIS},
    /* braces in the words before it */
    {&xml, CALL("use {x}: " PARIS), GOT_PARIS},
    {&xml, CALL("{\"a\": 1} and [2], so " PARIS) "Done.", "Done." GOT_PARIS},
    {&xml, CALL("use {x}"), CALL("use {x}")},
    {&xml, CALL("{\"a\": {\"name\": \"no\", \"arguments\": {}}}"),
     CALL("{\"a\": {\"name\": \"no\", \"arguments\": {}}}")},
    {&xml, CALL("{x} " PARIS) CALL("use {y}: " PARIS), GOT_PARIS GOT_PARIS},
    {&xml, CALL("Here: {\"name\": \"g\", \"arguments\": {}}"),
     CALL("Here: {\"name\": \"g\", \"arguments\": {}}")},
    {&tools, "<tool_call>\xEF\xBB\xBF" PARIS "\xC2\xA0</tool_call>", GOT_PARIS},
    {&tools, CALL("\xC2\xA0\xE2\x80\x89\xE3\x80\x80" PARIS "\xE2\x80\x8B"), GOT_PARIS},
    {&xml, "<tool_call>\xC2\xA0" F("get_weather", P("city", "Paris")) "\xC2\xA0</tool_call>", GOT_PARIS},
    {&mistral,
     "[TOOL_CALLS]\xC2\xA0"
     "f[ARGS]{\"s\": 1}\xEF\xBB\xBF",
     "[f {\"s\": 1}]"},
    {&mistral, "[TOOL_CALLS] So: f[ARGS]{\"s\": 1}", "[f {\"s\": 1}]"},
    {&lfm2, "<|tool_call_start|>Here: [f(s=\"x\", i=5)]<|tool_call_end|>", GOT_SI},
    {&bare, "\xEF\xBB\xBF" PARIS "\xC2\xA0", GOT_PARIS},
/* white space of any kind between the parts of a call */
#define SP "\n\xC2\xA0\xE2\x80\x83\xEF\xBB\xBF"
    {&tools,
     CALL("{" SP "\"name\":" SP "\"f\"," SP "\"arguments\": {" SP "\"s\":" SP "\"x\"," SP "\"i\": 5" SP "}" SP
          "}"),
     "[f {\"s\": \"x\", \"i\": 5}]"},
    {&tools, CALL(PARIS) SP CALL(PARIS), GOT_PARIS GOT_PARIS},
    {&mistral, "[TOOL_CALLS]f" SP "[ARGS]" SP "{\"s\":" SP "1}", "[f {\"s\": 1}]"},
    {&lfm2, "<|tool_call_start|>[f(" SP "s=\"x\"," SP "i=5" SP ")]<|tool_call_end|>", GOT_SI},
    {&xml, "<tool_call>\n<function=f>" SP P("s", "x") SP P("i", SP "5" SP) SP "</function>" SP "</tool_call>",
     GOT_SI},
    {&glm,
     CALL("f" SP "<arg_key>s</arg_key>" SP "<arg_value>x</arg_value>" SP
          "<arg_key>i</arg_key>\n<arg_value>" SP "5" SP "</arg_value>" SP),
     GOT_SI},
    /* the end comes early */
    {&xml, "<tool_call>\n<function=f>\n<parameter=s>\nx\n</param", "[f {\"s\": \"x\\n</param"},
    {&xml, "<tool_call>\n<function=f>\n<parameter=s>\nx\n", "[f {\"s\": \"x\\n"},
    {&xml, "<tool_call>\n<function=f>\n<parameter=i>\n5\n", "[f {\"i\": "},
    {&xml, "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n", "[f {\"s\": \"x\""},
    {&xml, "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<param", "[f {\"s\": \"x\""},
    {&xml, "<tool_call>\n<function=f>\n<param", "<tool_call>\n<function=f>\n<param"},
    {&xml, "Oh\n<tool_call>\n<func", "Oh\n<tool_call>\n<func"},
    {&xml, "Oh\n<func", "Oh\n<func"},
    /* no calls */
    {&xml, "", ""},
    {&xml, " \n ", " \n "},
    {&xml, CALL(PARIS), "[get_weather {\"city\": \"Paris\"}]"},
    {&xml, "Write <function=NAME> and <tool_call>, <function=f> too.",
     "Write <function=NAME> and <tool_call>, <function=f> too."},
    {&xml, F("unknown", P("s", "x")), F("unknown", P("s", "x"))},
    {&xml, CALL("<function=>\n</function>"), CALL("<function=>\n</function>")},
    {&xml, CALL("<function=a b>\n</function>"), CALL("<function=a b>\n</function>")},
    {&xml, "x\n" CALL("no") "\n" XPARIS, "x\n" CALL("no") GOT_PARIS},
    {&xml, "<tool_call>\n" XPARIS, "<tool_call>" GOT_PARIS},
    {&one_xml, "Hm\n" XPARIS "\n" XPARIS "x", "Hm" GOT_PARIS},
    {&one_xml, CALL(F("get_weather", P("city", "Paris")) "\n" F("bare", "")), GOT_PARIS},
    {&think_xml, "<think>\n" XPARIS "\n</think>\n\n" XPARIS, "(" XPARIS ")" GOT_PARIS},
    /* a notation with tokens for tags and quotes */
    {&call, NPARIS, "[get_weather {\"city\":\"Paris\"}]"},
    {&call, "Let me see.\n" NPARIS NPARIS,
     "Let me see.[get_weather {\"city\":\"Paris\"}][get_weather {\"city\":\"Paris\"}]"},
    {&call, NPARIS "\nand\n" NPARIS "\nthen",
     "\nand\nthen[get_weather {\"city\":\"Paris\"}][get_weather {\"city\":\"Paris\"}]"},
    {&one_call, "Hm\n" NPARIS NPARIS "x", "Hm[get_weather {\"city\":\"Paris\"}]"},
    {&call, NOTED("call:f{}"), "[f {}]"},
    {&call, NOTED("call:a.b-c_9{x:1,y:-2.5e3,z:true,n:null,m:None,w:yes it is}"),
     "[a.b-c_9 {\"x\":1,\"y\":-2.5e3,\"z\":true,\"n\":null,\"m\":null,\"w\":\"yes it is\"}]"},
    {&call, NOTED("call:f{a:[1," Q("two") ",[],{}],o:{k:{l:false}," Q("q \"") ":" Q("") "}}"),
     "[f {\"a\":[1,\"two\",[],{}],\"o\":{\"k\":{\"l\":false},\"q \\\"\":\"\"}}]"},
    {&call, NOTED("call:f{s:" Q("a{b}[c],d:e \\ \"q\" <b> <|\n\t") "}"),
     "[f {\"s\":\"a{b}[c],d:e \\\\ \\\"q\\\" <b> <|\\n\\t\"}]"},
    {&call, NOTED("call:f{ a : 1 , b : [ 1 , 2 ] } "), "[f { \"a\" : 1 , \"b\" : [ 1 , 2 ] }]"},
    {&call, NOTED("call:f{a:007,b:1.,c:-,d:0,e:1e,f:.5}"),
     "[f {\"a\":\"007\",\"b\":1.0,\"c\":\"-\",\"d\":0,\"e\":\"1e\",\"f\":0.5}]"},
    /* what is missing or too much */
    {&call, NOTED("call:f{a:,b:}"), "[f {\"a\":null,\"b\":null}]"},
    {&call, NOTED("call:f{a,b}"), "<|tool_call>call:f{a,b}<tool_call|>"},
    {&call, NOTED("call:f{a:" Q("x") "b:" Q("y") "}"), "[f {\"a\":\"x\", \"b\":\"y\"}]"},
    {&call, NOTED("call:f{" Q("a") Q("x") "}"), "[f {\"a\": \"x\"}]"},
    {&call, NOTED("call:f{a:1}}"), "[f {\"a\":1}]"},
    {&call, "<|tool_call>call:f{a:1}", "[f {\"a\":1}]"},
    {&call, "<|tool_call>call:f{a:1}x", "x[f {\"a\":1}]"},
    {&call, NOTED("call:f{a:[1,{b:2"), "[f {\"a\":[1,{\"b\":2}]}]"},
    {&call, NOTED("call:f{a:<|\"|>open"), "[f {\"a\":\"open\"}]"},
    {&call, NOTED("call:f{" Q("a")), "[f {\"a\": null}]"},
    {&call, NOTED("call:f{a:"), "[f {\"a\": null}]"},
    {&call, NOTED("call:f{a:[1}2]}"), "2]}<tool_call|>[f {\"a\":[1]}]"},
    {&call, NOTED("call:f{a:1]}"), "[f {\"a\":1}]"},
    {&call, NOTED("call:f{a:[,]}"), "[f {\"a\":[]}]"},
    /* the answer ends too early */
    {&call, "<|tool_call>call:f{a:" Q("x") ",b:4", "[f {\"a\":\"x\",\"b\":4"},
    {&call, "<|tool_call>call:f{a:<|\"|>x<|\"", "[f {\"a\":\"x<|\\\""},
    {&call, "<|tool_call>call:f", "<|tool_call>call:f"},
    {&call, "<|tool_call", "<|tool_call"},
    /* no calls */
    {&call, NOTED("f{}"), "[f {}]"},
    {&call, NOTED("call:{}"), NOTED("call:{}")},
    {&call, NOTED("call:a b{}"), NOTED("call:a b{}")},
    {&call, CALL(PARIS), CALL(PARIS)},
    {&call, "<|tool_call>" NPARIS, "<|tool_call>[get_weather {\"city\":\"Paris\"}]"},
    /* plain JSON */
    {&bare, PARIS, GOT_PARIS},
    {&bare, "\n " PARIS "\n", GOT_PARIS},
    {&bare, "{\"name\":\"f\",\"parameters\":{ }}", "[f { }]"},
    {&bare, "{\"type\": \"function\", \"name\": \"f\", \"id\": \"7\", \"arguments\": {}, \"x\": [1]}",
     "[f {}]"},
    {&bare, "```json\n" PARIS "\n```", GOT_PARIS},
    {&bare, "~~~json\n" PARIS "\n~~~", GOT_PARIS},
    {&bare, "~~~json\n{\"a\": 1}\n~~~\n", "~~~json\n{\"a\": 1}\n~~~\n"},
    {&bare, "```\n" PARIS "\n```\nDone.", "Done." GOT_PARIS},
    {&bare, "```tool_call\n" PARIS "\n```\n```json\n" PARIS "```", GOT_PARIS GOT_PARIS},
    {&bare, "```json\n[" PARIS ",\n " PARIS "]\n```", GOT_PARIS GOT_PARIS},
    {&bare, "[ " PARIS ", " PARIS " ]", GOT_PARIS GOT_PARIS},
    {&bare, PARIS PARIS "\n" PARIS "; " PARIS, GOT_PARIS GOT_PARIS GOT_PARIS GOT_PARIS},
    {&bare, PARIS "\n</tool_call>", GOT_PARIS},
    {&bare, PARIS "\n" CALL(PARIS), GOT_PARIS GOT_PARIS},
    {&bare, CALL(PARIS) "\n" PARIS, "\n" PARIS GOT_PARIS},
    {&bare, PARIS "\nThe weather is {\"name\": 1}.", "The weather is {\"name\": 1}." GOT_PARIS},
    {&bare, PARIS "\n{\"name\": \"g\", \"arguments\": {}}", "{\"name\": \"g\", \"arguments\": {}}" GOT_PARIS},
    {&bare, PARIS "\n```python\nprint()\n```", "```python\nprint()\n```" GOT_PARIS},
    {&bare, "{\"name\": \"f\", \"arguments\": {\"a\": True}}", "[f {\"a\": true}]"},
    {&bare, "{\"name\": \"f\", \"arguments\": {\"a\": {}", "[f {\"a\": {}"},
    {&bare, "{\"name\": \"f\", \"arguments\": {\"a\": {}}", "[f {\"a\": {}}]"},
    {&one_bare, "[" PARIS ", " PARIS "]x", GOT_PARIS},
    {&one_bare, PARIS CALL(PARIS), GOT_PARIS},
    {&bare_xml, PARIS, GOT_PARIS},
    {&bare_xml, XML("f", P("s", "x")) PARIS, PARIS "[f {\"s\": \"x\"}]"},
    {&think_bare, "<think>\nhm\n" PARIS, "(hm)" GOT_PARIS},
    {&think_bare, "<think>\nhm\n\n```json\n" PARIS "\n```\n", "(hm)" GOT_PARIS},
    {&think_bare, "<think>\n{\n{\n[x]\n" PARIS "\n" PARIS, "({\n{\n[x])" GOT_PARIS GOT_PARIS},
    {&think_bare, "<think>\nhm " PARIS, "(hm " PARIS ")"},
    {&think_bare, "<think>\nhm\n{\"name\": \"g\", \"arguments\": {}}\n",
     "(hm\n{\"name\": \"g\", \"arguments\": {}})"},
    {&think_bare, "<think>\nhm\n" CALL(PARIS), "(hm)" GOT_PARIS},
    {&think_bare, "<think>\n" PARIS "</think>\n\n" PARIS, "(" PARIS ")" GOT_PARIS},
    /* no calls, though they are JSON */
    {&tools, PARIS, PARIS},
    {&bare, "", ""},
    {&bare, " \n", " \n"},
    {&bare, "So: " PARIS, "So: " PARIS},
    {&bare, "`` `" PARIS, "`` `" PARIS},
    {&bare, "```json", "```json"},
    {&bare, "```c++\n" PARIS "\n```", "```c++\n" PARIS "\n```"},
    {&bare, "```json\n{\"a\": 1}\n```\n", "```json\n{\"a\": 1}\n```\n"},
    {&bare, " [[" PARIS "]]", " [[" PARIS "]]"},
    {&bare, "[]", "[]"},
    {&bare, "{}", "{}"},
    {&bare, "{\"name\": \"g\", \"arguments\": {}}", "{\"name\": \"g\", \"arguments\": {}}"},
    {&bare, "{\"name\": \"f\"}", "{\"name\": \"f\"}"},
    {&bare, "{\"name\": \"f\", \"arguments\": \"{}\"}", "[f {}]"},
    {&exact, "{\"name\": \"f\", \"arguments\": \"{}\"}", "{\"name\": \"f\", \"arguments\": \"{}\"}"},
    {&exact, "{\"arguments\": {}, \"name\": \"f\"}", "{\"arguments\": {}, \"name\": \"f\"}"},
    {&exact, "{'name': 'f', 'arguments': {}}", "{'name': 'f', 'arguments': {}}"},
    {&exact, "```json\n[" PARIS ",\n " PARIS "]\n```", GOT_PARIS GOT_PARIS},
    {&bare, "{\"name\": \"f\", \"arguments\": [{}]}", "{\"name\": \"f\", \"arguments\": [{}]}"},
    {&bare, "{\"name\": \"f\", \"age\": {}}", "{\"name\": \"f\", \"age\": {}}"},
    {&bare, "{\"arguments\": {}, \"name\": \"f\"}", "[f {}]"},
    {&bare, "{\"name\": \"f\", \"name\": \"f\", \"arguments\": {}}",
     "{\"name\": \"f\", \"name\": \"f\", \"arguments\": {}}"},
    {&bare, "{\"name\": \"\\u0066\", \"arguments\": {}}", "[f {}]"},
    {&bare, "{\"name\": \"f\", \"arguments\": ", "{\"name\": \"f\", \"arguments\": "},
    {&bare, "{\"name\": {\"a\": 1}, \"x\": 2}\n" CALL(PARIS), "{\"name\": {\"a\": 1}, \"x\": 2}" GOT_PARIS},
    /* reasoning in a channel */
    {&channel, "<|channel>thought\nhm\n<channel|>Yes.", "(hm)Yes."},
    {&channel, "<|channel>thought\n<channel|>Yes.", "Yes."},
    {&channel, "<|channel>thought\n" NPARIS "\n<channel|>" NPARIS,
     "(<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>)[get_weather {\"city\":\"Paris\"}]"},
    {&channel, "<|channel>thought\nhm\n<chan", "(hm\n<chan)"},
    {&channel, "<|channel>though", "<|channel>though"},
    {&channel, "<think>hm</think>Yes.", "<think>hm</think>Yes."},
    {&channel, "Yes.", "Yes."},
    {&brackets, "[THINK]hm[x][/THINK]Yes.", "(hm[x])Yes."},
    {&brackets, "[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{\"s\": 1}", "(hm)[f {\"s\": 1}]"},
    {&brackets, "<think>hm</think>Yes.", "<think>hm</think>Yes."},
    {&channel_inside, "hm\n<channel|>" NPARIS, "(hm)[get_weather {\"city\":\"Paris\"}]"},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        same("whole", table[i].text, strlen(table[i].text),
             run_whole(table[i].rules, table[i].text, strlen(table[i].text)), table[i].want);
}

/* Every cut into two, into three, into bytes, with and without a separate end. */
static void test_all_cuts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *text = table[i].text;
        size_t len = strlen(text);
        same("bytes", text, len, run_bytes(table[i].rules, text, len), table[i].want);
        for (size_t a = 0; a <= len; a += test_briefly() ? 50 : 1) {
            same("two", text, len, run_cut(table[i].rules, text, len, &a, 1, a & 1), table[i].want);
            for (size_t b = a; b <= len; b++) {
                size_t cuts[2] = {a, b};
                same("three", text, len, run_cut(table[i].rules, text, len, cuts, 2, b & 1), table[i].want);
            }
        }
    }
}

/* A call as plain JSON begins within 1024 bytes, however it is cut, and no text waits longer. */
static void test_bare_bound(void **state)
{
    (void)state;
    char text[2048];
    for (size_t blanks = 900; blanks < 1100; blanks++) {
        memset(text, ' ', blanks);
        int n = snprintf(text + blanks, sizeof text - blanks, "%s", PARIS);
        size_t len = blanks + (size_t)n;
        bool in = blanks + (size_t)(strstr(PARIS, "{\"city") - PARIS) < 1024;
        same("bound", text, len, run_whole(&bare, text, len), in ? GOT_PARIS : text);
        same("bound, bytes", text, len, run_bytes(&bare, text, len), in ? GOT_PARIS : text);
    }
    struct chat_output o;
    chat_output_init(&o, &bare, MAX);
    memset(text, ' ', 1024);
    text[0] = '{';
    assert_int_equal(chat_output_run(&o, text, 1023, false), ST_OK);
    assert_int_equal(o.content.len, 0);
    assert_int_equal(chat_output_run(&o, text, 1024, false), ST_OK);
    assert_int_equal(o.content.len, 1024);
    chat_output_fini(&o);
}

/* ---- what a stream sees ---- */

/* Nothing that was out is ever changed, and the tags of a call never show. */
static void test_streaming_order(void **state)
{
    (void)state;
    const char *text = "Let me see.\n" CALL(PARIS) "\n" CALL("{\"arguments\": {\"a\": 1}, \"name\": \"f\"}");
    struct chat_output o;
    chat_output_init(&o, &tools, MAX);
    size_t begun = 0, first = 0;
    for (size_t len = 0; len <= strlen(text); len++) {
        size_t content = o.content.len;
        uint32_t calls = o.call_count;
        assert_int_equal(chat_output_run(&o, text, len, false), ST_OK);
        assert_true(o.content.len >= content && !(o.content.len && strchr(o.content.data, '<')));
        assert_true(!o.content.len || strncmp("Let me see.", o.content.data, o.content.len) == 0);
        if (!calls && o.call_count) begun = len;
        if (!first && o.call_count && o.calls[0].arguments.len) first = len;
    }
    /* A call shows as soon as its arguments begin, and so do they. */
    size_t brace = (size_t)(strstr(text, "{\"city") - text) + 1;
    assert_int_equal(begun, brace);
    assert_true(first <= brace + 1);
    assert_int_equal(o.call_count, 2);
    assert_true(chat_output_called(&o));
    chat_output_fini(&o);
}

static void test_arguments_come_early(void **state)
{
    (void)state;
    const char *text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"code\": \"int main() { return 0; "
                       "}\"}}\n</tool_call>";
    const char *args = strstr(text, "{\"code"), *end = strstr(text, "}\n</");
    struct chat_output o;
    chat_output_init(&o, &tools, MAX);
    for (size_t len = 0; len <= strlen(text); len++) {
        assert_int_equal(chat_output_run(&o, text, len, false), ST_OK);
        const char *at = text + len;
        size_t want = at <= args ? 0 : at > end ? (size_t)(end - args) : (size_t)(at - args);
        size_t got = o.call_count ? o.calls[0].arguments.len : 0;
        /* Held back: white space before a value, a quote or a bracket that may not be what it seems. */
        assert_true(got <= want && got + (at > args && at <= end ? 3 : 0) >= want);
        assert_int_equal(chat_output_called(&o), at > end);
    }
    chat_output_fini(&o);
}

static void test_done(void **state)
{
    (void)state;
    const char *text = "x\n" CALL(PARIS) " and so on";
    size_t end = (size_t)(strstr(text, " and") - text);
    struct chat_output o;
    chat_output_init(&o, &one_tool, MAX);
    for (size_t len = 0; len <= strlen(text); len++) {
        assert_int_equal(chat_output_run(&o, text, len, false), ST_OK);
        assert_int_equal(chat_output_done(&o), len >= end);
    }
    chat_output_fini(&o);
}

static void test_reasoning_tokens(void **state)
{
    (void)state;
    static const struct {
        const struct chat_output_rules *rules;
        const char *tokens[10]; /* "" is a token without text */
        uint32_t want;
    } cases[] = {
        {&think, {"<think>", "\n", "hm", "\n", "</think>", "\n\n", "Yes", "."}, 5},
        {&think, {"<th", "ink>\nhm", "\n</", "think>\n\nYes", "."}, 4},
        {&think, {"\n", "<think>hm</think>Yes", "."}, 2},
        {&think, {"\n", "<thi", "s>", "x"}, 0},
        {&think, {"Yes", "."}, 0},
        {&think, {"<think>", "hm", ""}, 3},
        {&inside, {"hm", "</think>", "\n\n", "Yes"}, 2},
        {&inside, {"hm", "hm", "hm"}, 3},
        {&drop, {"hm", "</think>", "x"}, 2},
        {&keep, {"<think>", "</think>", "x"}, 2},
        {&inside, {"hm", CALL(PARIS), "x", "</think>", "x"}, 4},
        {&inside, {"hm", CALL(PARIS), "x"}, 1},
        {&tools, {"<think>", "</think>", "x"}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_output o;
        char text[200] = "";
        chat_output_init(&o, cases[i].rules, MAX);
        for (size_t k = 0; k < 10 && cases[i].tokens[k]; k++) {
            enum reasoning_state before = o.reasoning_parse.state;
            strcat(text, cases[i].tokens[k]);
            assert_int_equal(chat_output_run(&o, text, strlen(text), false), ST_OK);
            chat_output_token(&o, before);
        }
        assert_int_equal(o.reasoning_tokens, cases[i].want);
        chat_output_fini(&o);
    }
}

static void test_ceilings(void **state)
{
    (void)state;
    struct chat_output o;
    chat_output_init(&o, &tools, 8);
    assert_int_equal(chat_output_run(&o, "123456789", 9, true), ST_TOO_LARGE);
    chat_output_fini(&o);
    struct buf b;
    buf_init(&b, MAX);
    for (uint32_t i = 0; i <= CHAT_CALLS_MAX; i++)
        assert_int_equal(buf_adds(&b, CALL("{\"name\": \"f\"}")), ST_OK);
    chat_output_init(&o, &tools, MAX);
    assert_int_equal(chat_output_run(&o, b.data, b.len, true), ST_TOO_LARGE);
    assert_int_equal(o.call_count, CHAT_CALLS_MAX);
    chat_output_fini(&o);
    buf_fini(&b);
    /* Deep nesting: above the limit the rest is content, and the call is not one that can be executed. */
    for (int levels = 100; levels < 800; levels += 60) {
        bool deep = levels >= (int)VALUE_DEPTH_MAX;
        buf_init(&b, MAX);
        assert_int_equal(buf_adds(&b, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "), ST_OK);
        for (int i = 0; i < levels; i++) assert_int_equal(buf_adds(&b, "["), ST_OK);
        for (int i = 0; i < levels; i++) assert_int_equal(buf_adds(&b, "]"), ST_OK);
        assert_int_equal(buf_adds(&b, "}}</tool_call>x"), ST_OK);
        chat_output_init(&o, &tools, MAX);
        assert_int_equal(chat_output_run(&o, b.data, b.len, true), ST_OK);
        assert_int_equal(o.call_count, 1);
        assert_true(o.calls[0].arguments.len == (size_t)(2 * levels + 7) || deep);
        assert_int_equal(chat_output_called(&o), !deep);
        assert_int_equal(o.content.data[0], deep ? '[' : 'x');
        chat_output_fini(&o);
        buf_fini(&b);
    }
}

/* ---- random ---- */

static json_t *random_value(int depth)
{
    static const char *const strings[] = {"",
                                          "a",
                                          "Zürich 北京 😀",
                                          "</tool_call>",
                                          "<tool_call>",
                                          "}\"{",
                                          "\\",
                                          "\n\t\x01",
                                          "<think>",
                                          "x, y: z",
                                          "\", \"x\": 1, \"y\": \"",
                                          "</tool_call>\n<tool_call>\n{\"name\": \"g\"}",
                                          "'''\"\"\"`",
                                          "{{}} // a",
                                          "said \"x\": y",
                                          "“x”, /* y */",
                                          "```json\n[",
                                          "\\\"\\u00e9\\q"};
    enum { STRINGS = sizeof strings / sizeof *strings };
    switch (rnd(depth < 3 ? 8 : 5)) {
    case 0: return json_integer((json_int_t)rnd(2000) - 1000);
    case 1: return json_real((double)rnd(100000) / 64 - 500);
    case 2: return rnd(2) ? json_true() : json_false();
    case 3: return json_null();
    case 4: return json_string(strings[rnd(STRINGS)]);
    default: break;
    }
    bool object = rnd(2);
    json_t *v = object ? json_object() : json_array();
    for (uint32_t n = rnd(4), i = 0; i < n; i++) {
        if (object) {
            json_object_set_new(v, strings[rnd(STRINGS)], random_value(depth + 1));
        } else {
            json_array_append_new(v, random_value(depth + 1));
        }
    }
    return v;
}

/* Calls made by another writer of JSON come back byte for byte, in every layout, cut at random. */
static void test_random_calls(void **state)
{
    (void)state;
    static const size_t flags[] = {0, JSON_COMPACT, JSON_INDENT(2), JSON_ENSURE_ASCII,
                                   JSON_INDENT(1) | JSON_ENSURE_ASCII};
    for (int round = 0; round < (test_briefly() ? 2500 : 20000); round++) {
        struct buf text, want;
        buf_init(&text, MAX);
        buf_init(&want, MAX);
        uint32_t calls = rnd(4);
        const char *lead = rnd(2) ? "Well, <b>.\n" : "";
        assert_int_equal(buf_adds(&text, lead), ST_OK);
        assert_int_equal(
            buf_addf(&want, "%.*s", (int)(*lead && calls ? strlen(lead) - 1 : strlen(lead)), lead), ST_OK);
        for (uint32_t i = 0; i < calls; i++) {
            json_t *args = json_object(), *inner;
            for (uint32_t n = rnd(4), k = 0; k < n; k++) {
                char key[2] = {(char)('a' + k), '\0'};
                json_object_set_new(args, key, random_value(0));
            }
            char *dump = json_dumps(args, flags[rnd(5)]);
            assert_non_null(dump);
            inner = json_string(dump);
            char *packed = json_dumps(inner, JSON_ENCODE_ANY | flags[rnd(5)]);
            int layout = (int)rnd(3);
            if (layout == 0)
                assert_int_equal(
                    buf_addf(&text, "<tool_call>\n{\"name\": \"f%u\", \"arguments\": %s}\n</tool_call>\n", i,
                             dump),
                    ST_OK);
            if (layout == 1)
                assert_int_equal(
                    buf_addf(&text, "<tool_call>{\"arguments\":%s , \"name\":\"f%u\"}</tool_call>", dump, i),
                    ST_OK);
            if (layout == 2)
                assert_int_equal(
                    buf_addf(&text, "<tool_call>\n{\"name\": \"f%u\", \"arguments\": %s}\n</tool_call>\n", i,
                             packed),
                    ST_OK);
            assert_int_equal(buf_addf(&want, "[f%u %s]", i, dump), ST_OK);
            free(dump);
            free(packed);
            json_decref(inner);
            json_decref(args);
        }
        size_t cuts[16], count = rnd(17), at = 0;
        for (size_t i = 0; i < count; i++) {
            at += rnd((uint32_t)(text.len - at) / 2 + 1);
            cuts[i] = at;
        }
        same("random", text.data ? text.data : "", text.len,
             run_cut(&tools, text.data ? text.data : "", text.len, cuts, count, rnd(2)),
             want.data ? want.data : "");
        buf_fini(&text);
        buf_fini(&want);
    }
}

/* Arguments written as the template writes them, cut at random, come back as what they were. */
static void test_random_parameters(void **state)
{
    (void)state;
    static const char *const names[] = {"s", "i", "b", "o", "a", "sz", "n"};
    for (int round = 0; round < (test_briefly() ? 2500 : 20000); round++) {
        struct buf text;
        buf_init(&text, MAX);
        json_t *args = json_object();
        assert_int_equal(buf_adds(&text, "<tool_call>\n<function=f>\n"), ST_OK);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            if (!rnd(3)) continue;
            json_t *v = random_value(*names[k] == 'o' || *names[k] == 'a' ? 0 : 3);
            bool fits = *names[k] == 's'   ? json_is_string(v) && !strstr(json_string_value(v), "None")
                        : *names[k] == 'i' ? json_is_integer(v)
                        : *names[k] == 'b' ? json_is_boolean(v)
                        : *names[k] == 'o' ? json_is_object(v)
                        : *names[k] == 'a' ? json_is_array(v)
                                           : json_is_number(v);
            if (names[k][1] && rnd(2)) {
                json_decref(v);
                v = json_null();
                fits = true;
            }
            char *dump = fits ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
            const char *shown_as = json_is_string(v)  ? json_string_value(v)
                                   : json_is_true(v)  ? "True"
                                   : json_is_false(v) ? "False"
                                   : json_is_null(v)  ? "None"
                                                      : dump;
            if (fits)
                assert_int_equal(buf_addf(&text, "<parameter=%s>\n%s\n</parameter>\n", names[k], shown_as),
                                 ST_OK);
            if (fits) json_object_set(args, names[k], v);
            free(dump);
            json_decref(v);
        }
        assert_int_equal(buf_adds(&text, "</function>\n</tool_call>"), ST_OK);
        size_t cuts[16], count = rnd(17), at = 0;
        for (size_t i = 0; i < count; i++) cuts[i] = at += rnd((uint32_t)(text.len - at) / 2 + 1);
        char *got = run_cut(&xml, text.data, text.len, cuts, count, rnd(2));
        json_t *back =
            got && strncmp(got, "[f ", 3) == 0 ? json_loadb(got + 3, strlen(got) - 4, 0, NULL) : NULL;
        if (!back || !json_equal(back, args)) fail_msg("of \"%s\" got %s", text.data, got ? got : "");
        json_decref(back);
        json_decref(args);
        free(got);
        buf_fini(&text);
    }
}

/* Schemas that refer to themselves or multiply are read in bounded time, and are no reason to fail. */
static void test_schemas_bounded(void **state)
{
    (void)state;
    struct buf b;
    /* One large definition, which thousands refer to. */
    char *place = malloc(1000003);
    assert_non_null(place);
    memset(place, 'x', 1000002);
    memcpy(place, "#/", 2);
    place[1000002] = '\0';
    json_t *list = json_array(), *refs = json_array();
    for (int i = 0; i < 200000; i++) json_array_append_new(list, json_integer(i));
    for (int i = 0; i < 20000; i++) json_array_append_new(refs, json_pack("{s:s}", "$ref", "#/large"));
    json_t *large[] = {json_pack("{s:O}", "enum", list), json_pack("{s:O}", "allOf", list),
                       json_pack("{s:s}", "$ref", place)};
    for (size_t i = 0; i < 3; i++) {
        json_t *f = json_pack("{s:o, s:{s:{s:O}, s:{s:s}}}", "large", large[i], "properties", "x", "anyOf",
                              refs, "y", "$ref", "#/large");
        json_t *one = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", f);
        clock_t start = clock();
        struct tool_types *t = tool_types_create(one);
        assert_non_null(t);
        assert_true(clock() - start < CLOCKS_PER_SEC);
        assert_true(tool_types_of(t, "f", 1, "x", 1) & TYPE_STRING);
        tool_types_destroy(t);
        json_decref(one);
    }
    json_decref(list);
    json_decref(refs);
    free(place);
    buf_init(&b, MAX);
    assert_int_equal(buf_adds(&b, "[{\"function\": {\"name\": \"f\", \"parameters\": {\"d\": {\"anyOf\": ["),
                     ST_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_addf(&b, "%s{\"$ref\": \"#/d\"}", i ? "," : ""), ST_OK);
    assert_int_equal(buf_adds(&b, "]}, \"properties\": {\"x\": {\"$ref\": \"#/d\"}, \"y\": {\"$ref\": "
                                  "\"#/d/anyOf/0\"}, \"z\": 5}}}}, {\"function\": {}}]"),
                     ST_OK);
    json_t *json = json_loads(b.data, 0, NULL);
    assert_non_null(json);
    assert_null(tool_types_create(json)); /* a function without a name: the request is checked before */
    json_array_remove(json, 1);
    struct tool_types *t = tool_types_create(json);
    assert_non_null(t);
    assert_true(tool_types_knows(t, "f", 1) && !tool_types_knows(t, "g", 1) &&
                !tool_types_knows(NULL, "f", 1));
    assert_int_equal(tool_types_of(t, "f", 1, "x", 1), TYPE_STRING);
    assert_int_equal(tool_types_of(t, "f", 1, "w", 1), 0);
    assert_int_equal(tool_types_of(t, "g", 1, "z", 1), 0);
    tool_types_destroy(t);
    json_decref(json);
    buf_fini(&b);
}

/* Pieces that mean something, thrown together: every cut gives the same; without calls the content is the
 * text. */
static void test_random_pieces(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "<tool_call>\n{\"name\": \"f\", \"arguments\": {",
                                         "{",
                                         "}",
                                         "}}",
                                         "\"name\"",
                                         ": ",
                                         ", ",
                                         "\"arguments\"",
                                         "\"f\"",
                                         "null",
                                         "[",
                                         "]",
                                         "\"",
                                         "\\",
                                         "\\u00e4",
                                         "12",
                                         "-0.5e",
                                         "\n",
                                         " ",
                                         "text",
                                         "é",
                                         "<",
                                         "<think>",
                                         "</think>",
                                         "</",
                                         "<tool",
                                         "{\"name\": \"g\", \"arguments\": ",
                                         "\"a\": 1",
                                         "true",
                                         "\x01",
                                         "'",
                                         "<function=f>\n",
                                         "<function=",
                                         "</function>",
                                         "<parameter=s>\n",
                                         "<parameter=i>",
                                         "<parameter=",
                                         "\n</parameter>\n",
                                         "<tool_call>\n<function=f>\n<parameter=si>\n",
                                         "<parameter=two words>",
                                         ">",
                                         "True",
                                         "<|tool_call>call:f{",
                                         "<tool_call|>",
                                         "<|\"|>",
                                         "a:",
                                         "'b': ",
                                         "(",
                                         ")",
                                         "f(",
                                         "s=",
                                         "[TOOL_CALLS]",
                                         "[TOOL_CALLS]f[ARGS]{",
                                         "[CALL_ID]9",
                                         "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>",
                                         "<arg_key>i</arg_key>",
                                         "</arg_value>",
                                         "<|tool_call_start|>[f(",
                                         "<|tool_call_end|>",
                                         "```json\n",
                                         "[",
                                         "{\"name\": \"f\", \"arguments\": {",
                                         "}}",
                                         PARIS};
    static const struct chat_output_rules *const all[] = {
        &tools, &one_tool,  &plain, &think,    &inside,   &drop,       &keep, &keep_inside, &xml,  &one_xml,
        &glm,   &think_xml, &bare,  &one_bare, &bare_xml, &think_bare, &call, &mistral,     &lfm2, &exact};
    for (int round = 0; round < (test_briefly() ? 7500 : 60000); round++) {
        struct buf text;
        buf_init(&text, MAX);
        for (uint32_t n = rnd(24) + 1; n; n--)
            assert_int_equal(buf_adds(&text, pieces[rnd(sizeof pieces / sizeof *pieces)]), ST_OK);
        const struct chat_output_rules *rules = all[rnd(sizeof all / sizeof *all)];
        char *want = run_whole(rules, text.data, text.len);
        struct chat_output o;
        chat_output_init(&o, rules, MAX);
        assert_int_equal(chat_output_run(&o, text.data, text.len, true), ST_OK);
        if (rules->reasoning == REASONING_NONE && !o.call_count)
            assert_string_equal(o.content.data, text.data);
        for (uint32_t i = 0; i < o.call_count && chat_output_called(&o); i++) {
            json_t *v = json_loadb(o.calls[i].arguments.data, o.calls[i].arguments.len, 0, NULL);
            if (!json_is_object(v)) fail_msg("of \"%s\" got %s", text.data, want);
            json_decref(v);
        }
        chat_output_fini(&o);
        same("bytes", text.data, text.len, run_bytes(rules, text.data, text.len), want ? want : "");
        for (int k = 0; k < 4; k++) {
            size_t cuts[8], at = 0;
            for (size_t i = 0; i < 8; i++)
                cuts[i] = at += rnd((uint32_t)(text.len - at) / 3 + 2) % (text.len - at + 1);
            same("cuts", text.data, text.len, run_cut(rules, text.data, text.len, cuts, 8, k & 1),
                 want ? want : "");
        }
        free(want);
        buf_fini(&text);
    }
}

/* A long answer that grows by a byte is not read again and again. */
static void test_linear(void **state)
{
    (void)state;
    enum { LEN = 400000 };
    static const char *const fills[] = {"\n", " ", "<", "a", "<tool_call>\n", "}", ",", "\", "};
    static const char *const heads[] = {"",
                                        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                        "<tool_call>{\"arguments\": {\"a\": \"",
                                        "<think>",
                                        "<tool_call>{",
                                        "<tool_call>\n<function=f>\n",
                                        "<tool_call>\n<function=f>\n<parameter=s>",
                                        "<tool_call>\n<function=f>\n<parameter=i>",
                                        "{",
                                        PARIS,
                                        "{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                        "<|tool_call>call:f{a:",
                                        "<|tool_call>call:f{a:<|\"|>"};
    char *text = malloc(LEN + 64);
    assert_non_null(text);
    for (size_t h = 0; h < 13; h++) {
        for (size_t f = test_briefly() ? h % 4 : 0; f < 8; f += test_briefly() ? 4 : 1) {
            size_t len = strlen(heads[h]), n = strlen(fills[f]);
            memcpy(text, heads[h], len);
            for (; len < LEN; len += n) memcpy(text + len, fills[f], n);
            struct chat_output o;
            chat_output_init(&o, h < 5 ? &think : h < 8 ? &think_xml : h < 11 ? &think_bare : &call, MAX);
            for (size_t at = 0; at < len; at++) assert_int_equal(chat_output_run(&o, text, at, false), ST_OK);
            assert_int_equal(chat_output_run(&o, text, len, true), ST_OK);
            chat_output_fini(&o);
        }
    }
    free(text);
}

int main(void)
{
    json_t *json = json_loads(schemas, 0, NULL);
    struct tool_types *types = tool_types_create(json);
    json_decref(json);
    json_t *names = json_pack("{s:b,s:b}", "get_weather", 1, "f", 1);
    if (!types || !names) return 1;
    xml.types = one_xml.types = think_xml.types = mistral.types = glm.types = lfm2.types = types;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_all_cuts),
        cmocka_unit_test(test_bare_bound),
        cmocka_unit_test(test_streaming_order),
        cmocka_unit_test(test_arguments_come_early),
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_reasoning_tokens),
        cmocka_unit_test(test_ceilings),
        cmocka_unit_test(test_random_calls),
        cmocka_unit_test(test_random_parameters),
        cmocka_unit_test(test_schemas_bounded),
        cmocka_unit_test(test_random_pieces),
        cmocka_unit_test(test_linear),
    };
    bare.bare = exact.bare = one_bare.bare = bare_xml.bare = think_bare.bare = names;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tool_types_destroy(types);
    json_decref(names);
    return failed;
}

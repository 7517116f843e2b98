/* Chat templates around the interpreter, and the normalisation of messages: capabilities, forms of content,
 * origins as token control, continued messages (against transformers), loading, and every refusal of
 * chat_messages_parse. */
#include "server/chat/messages.h"
#include "tests/lib/server/chat.h"
#include "server/chat/template_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define CASES "tests/golden/templates/cases.json"

static json_t *cases;
static const struct template_special specials[] = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}};

static int load_cases(void **state)
{
    (void)state;
    FILE *f = fopen(CASES, "r");
    cases = f ? json_loadf(f, JSON_ALLOW_NUL, NULL) : NULL;
    if (f) fclose(f);
    return cases ? 0 : -1;
}

static int free_cases(void **state)
{
    (void)state;
    json_decref(cases);
    return 0;
}

static struct template *family(const char *name)
{
    const json_t *src = json_object_get(json_object_get(cases, "templates"), name);
    struct template *t = NULL;
    struct err err = {{0}};
    assert_non_null(src);
    if (template_create(json_string_value(src), json_string_length(src), NULL, 0, NULL, &t, &err))
        fail_msg("%s: %s", name, err.msg);
    return t;
}

static struct template *from_text(const char *src)
{
    struct template *t = NULL;
    struct err err = {{0}};
    if (template_create(src, strlen(src), NULL, 0, NULL, &t, &err)) fail_msg("%s: %s", src, err.msg);
    return t;
}

static void check_runs(const struct template_result *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->run_count; i++) {
        assert_ptr_equal(r->runs[i].text, r->text + at);
        assert_true(r->runs[i].len > 0);
        if (i) assert_int_not_equal(r->runs[i].control, r->runs[i - 1].control);
        at += r->runs[i].len;
    }
    assert_int_equal(at, r->len);
}

/* "ALL text" as "*text", input as "-text", assistant text as "+text": one line per run. */
static void show_runs(const struct template_result *r, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < r->run_count && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%c%.*s", i ? "|" : "", "*+-"[r->runs[i].control],
                              (int)r -> runs[i].len, r->runs[i].text);
}

static json_t *parse_json(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (!v) fail_msg("%s: %s", e.text, text);
    return v;
}

/* ---- against the reference ---- */

/* What the reference fed to the template raw, ours may reshape: only chats that need no reshaping are
 * compared. */
static bool comparable(const json_t *messages, const struct template_caps *caps)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role || strcmp(role, "developer") == 0 || strcmp(role, "weird") == 0) return false;
        if (strcmp(role, "system") == 0 && !caps->system_role) return false;
        if (!json_is_string(content) && (!caps->content_list || !json_is_array(content))) return false;
        for (size_t k = 0; k < json_array_size(content); k++)
            if (json_object_get(json_array_get(content, k), "type") &&
                strcmp(json_string_value(json_object_get(json_array_get(content, k), "type")), "video") == 0)
                return false;
    }
    return true;
}

/* Compares a group's renders; as_text: as the reference has them, so only those that
 * need no reshaping; else as clients send them. */
static size_t compare_group(const char *group, bool cont, bool as_text)
{
    json_t *list = json_object_get(cases, group), *item;
    size_t i, compared = 0, bad = 0;
    json_array_foreach(list, i, item) {
        const json_t *v = json_object_get(item, "v"), *want = json_object_get(item, "o"),
                     *messages = json_object_get(v, "messages");
        struct template *t = family(json_string_value(json_object_get(item, "t")));
        const json_t *tools = json_object_get(v, "tools");
        bool compare = !as_text || comparable(messages, template_caps(t, json_is_array(tools)));
        struct chat_messages parsed = {0};
        if (compare) parsed = chat_of(messages, as_text);
        json_t *kwargs = json_object();
        static const char *const names[] = {"enable_thinking", "add_vision_id"};
        for (size_t k = 0; k < 2; k++)
            if (json_object_get(v, names[k])) json_object_set(kwargs, names[k], json_object_get(v, names[k]));
        struct template_request rq = {.messages = &parsed,
                                      .tools = json_is_array(tools) ? tools : NULL,
                                      .kwargs = kwargs,
                                      .specials = specials,
                                      .special_count = 2,
                                      .add_generation_prompt =
                                          json_is_true(json_object_get(v, "add_generation_prompt")),
                                      .continue_final_message = cont};
        struct template_result r = {0};
        struct err err = {{0}};
        if (compare) {
            enum status st = template_render(t, &rq, &r, &err);
            bool good = want ? !st && r.len == json_string_length(want) &&
                                   memcmp(r.text, json_string_value(want), r.len) == 0
                             : st == ST_INVALID;
            if (!st) check_runs(&r);
            if (!good) {
                char *text = json_dumps(messages, 0);
                fprintf(stderr, "-- %s %zu %s %s\n want %s\n got  %s\n", group, i,
                        json_string_value(json_object_get(item, "t")), text,
                        want ? json_string_value(want) : "(error)", st ? err.msg : r.text);
                free(text);
                bad++;
            }
            compared++;
        }
        template_result_free(&r);
        chat_messages_free(&parsed);
        json_decref(kwargs);
        template_free(t);
    }
    assert_int_equal(bad, 0);
    return compared;
}

static void chats_as_reference(void **state)
{
    (void)state;
    assert_true(compare_group("chats", false, true) > 400);
}

static void continued_as_reference(void **state)
{
    (void)state;
    assert_true(compare_group("continue", true, true) > 60);
}

static void tools_as_reference(void **state)
{
    (void)state;
    assert_int_equal(compare_group("tools", false, false), json_array_size(json_object_get(cases, "tools")));
}

/* ---- capabilities ---- */

static void capabilities(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct template_caps want;
    } t[] = {
        {"gemma3", {.content_list = true, .system_role = true, .system_list = true}},
        {"qwen2-vl",
         {.content_list = true,
          .system_role = true,
          .system_list = true,
          .system_images = true,
          .tool_role = true}},
        {"qwen3-vl",
         {.content_list = true,
          .system_role = true,
          .system_list = true,
          .system_images = true,
          .tools = true,
          .tool_calls = true,
          .tool_role = true,
          .calls = TOOL_SYNTAX_JSON}},
        {"qwen2.5",
         {.system_role = true,
          .tools = true,
          .tool_calls = true,
          .tool_role = true,
          .calls = TOOL_SYNTAX_JSON}},
        {"gemma4",
         {.content_list = true,
          .system_list = true,
          .system_role = true,
          .developer_role = true,
          .tools = true,
          .tool_calls = true,
          .tool_role = true,
          .calls = TOOL_SYNTAX_CALL,
          .think = true,
          .reasoning = REASONING_CHANNEL}},
        {"plain", {.system_role = false}},
        {"thinking", {.system_role = true, .tool_role = true, .think = true}},
        {"qwen3",
         {.content_list = true,
          .system_role = true,
          .system_list = true,
          .system_images = true,
          .tools = true,
          .tool_calls = true,
          .tool_role = true,
          .calls = TOOL_SYNTAX_JSON,
          .think = true}},
        {"qwen3-thinking",
         {.content_list = true,
          .system_role = true,
          .system_list = true,
          .system_images = true,
          .tools = true,
          .tool_calls = true,
          .tool_role = true,
          .calls = TOOL_SYNTAX_JSON,
          .think = true}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct template *tpl = family(t[i].name);
        const struct template_caps *c = template_caps(tpl, false), *w = &t[i].want;
        if (c->content_list != w->content_list || c->system_role != w->system_role ||
            c->developer_role != w->developer_role || c->tools != w->tools ||
            c->tool_calls != w->tool_calls || c->arguments_as_text != w->arguments_as_text ||
            c->tool_role != w->tool_role || c->calls != w->calls || c->think != w->think ||
            c->reasoning != w->reasoning || c->tool_responses != w->tool_responses ||
            c->uses_time != w->uses_time || c->system_list != w->system_list ||
            c->system_images != w->system_images)
            fail_msg("%s: list %d system %d (list %d images %d) developer %d tools %d calls %d text %d "
                     "tool %d responses %d form %d think %d time %d",
                     t[i].name, c->content_list, c->system_role, c->system_list, c->system_images,
                     c->developer_role, c->tools, c->tool_calls, c->arguments_as_text, c->tool_role,
                     c->tool_responses, c->calls, c->think, c->uses_time);
        template_free(tpl);
    }
    struct template *tpl = from_text(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.arguments "
        "+ '</call>' }}{% endfor %}{{ m.content }}{% endfor %}{{ strftime_now('%Y') if false }}");
    assert_true(template_caps(tpl, false)->arguments_as_text);
    assert_true(template_caps(tpl, false)->uses_time);
    assert_false(template_caps(tpl, false)->content_list);
    template_free(tpl);
    tpl = from_text("[THINK]{% for m in messages %}{{ m.content }}{% endfor %}[/THINK]");
    assert_true(template_caps(tpl, false)->think);
    assert_int_equal(template_caps(tpl, false)->reasoning, REASONING_MISTRAL);
    template_free(tpl);
}

static void rendered_as(const char *source, const char *messages, const char *want)
{
    struct template *t = from_text(source);
    json_t *list = parse_json(messages);
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    struct chat_messages parsed = {0};
    struct api_error refused = {0};
    struct template_result r = {0};
    struct err err = {{0}};
    const struct template_request rq = {.messages = &parsed};
    limits.thinking_parts = template_caps(t, false)->thinking_parts;
    limits.arguments_as_text = template_caps(t, false)->arguments_as_text;
    if (chat_messages_parse(list, &limits, &parsed, &refused)) fail_msg("%s", refused.message);
    if (template_render(t, &rq, &r, &err)) fail_msg("%s", err.msg);
    assert_string_equal(r.text, want);
    template_result_free(&r);
    chat_messages_free(&parsed);
    json_decref(list);
    template_free(t);
}

/* SmolVLM's and PaddleOCR-VL's templates iterate over the content's parts, whatever it is: of a string they
 * would print nothing. */
static void test_only_lists(void **state)
{
    (void)state;
    static const char source[] = "{% for m in messages %}{{ m.role | capitalize }}"
                                 "{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
                                 "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
                                 "{% elif p.type == 'image' %}<image>{% endif %}{% endfor %}. {% endfor %}";
    rendered_as(source,
                "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi\"},"
                "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":[{\"type\":"
                "\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
                "System: Be brief.. User: Hi. Assistant: . User: ab. ");
}

/* Ministral 3's system prompt has a part that is reasoning, as its answers have. */
static void test_thinking_parts(void **state)
{
    (void)state;
    static const char source[] =
        "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}"
        "[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    rendered_as(
        source,
        "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"thinking\","
        "\"thinking\":\"b\",\"closed\":true}]},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"thinking\",\"thinking\":\"d\"},{\"type\":\"text\",\"text\":\"e\"}]}]",
        "s:a[THINK]b[/THINK]u:ca:[THINK]d[/THINK]e");
}

/* Mistral's templates of 2024 refuse ids of calls that don't have 9 characters. */
static void test_short_ids(void **state)
{
    (void)state;
    static const char source[] =
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
        "{{ raise_exception('9!') }}{% endif %}[{{ c.id }}]{% endfor %}{% if m.role == 'tool' %}"
        "{% if m.tool_call_id|length != 9 %}{{ raise_exception('9!') }}{% endif %}({{ m.tool_call_id }})"
        "{% endif %}{{ m.content }}{% endfor %}";
    rendered_as(
        source,
        "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
        "[{\"id\":\"call_0123456789\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_0123456789\",\"content\":\"x\"}]",
        "Hi[123456789](123456789)x");
    rendered_as(
        source,
        "[{\"role\":\"tool\",\"tool_call_id\":\"x\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\","
        "\"content\":\"x\"}]",
        "(\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9)x");
}

/* A message of calls alone: null or empty as the template wants it, else as the client sent it. */
static void test_null_calls(void **state)
{
    (void)state;
#define CALLED(content_)                                                                                     \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" content_                   \
    ",\"tool_calls\":[{"                                                                                     \
    "\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]"
#define LIST "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments|tojson }}{% endfor %}"
#define TEXT "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
#define OF(assistant_)                                                                                       \
    "{% for m in messages %}{% if m.role == 'assistant' %}" assistant_                                       \
    "{% else %}{{ m.content }}{% endif %}"                                                                   \
    "{% endfor %}"
    static const struct {
        const char *source, *null, *empty;
    } calls[] = {
        {OF("{% if m.content is none %}" LIST "{% else %}[{{ m.content }}]{% endif %}"), "qf{}", "qf{}"},
        {OF("{% if m.content is none %}" TEXT "{% else %}[{{ m.content }}]{% endif %}"), "qf{}", "qf{}"},
        {OF(LIST "{% if m.content is not none %}[{{ m.content }}]{% endif %}"), "qf{}", "qf{}[]"},
        {OF(LIST "[{{ m.content }}]"), "qf{}[]", "qf{}[]"},
        {OF(LIST "[{{ m.content|tojson }}]"), "qf{}[\"\"]", "qf{}[\"\"]"},
        {OF(LIST "[{{ m.content + '' }}]"), "qf{}[]", "qf{}[]"},
        {OF("[{% if m.content is not none %}{{ m.content }};{% endif %}]"), "q[;]", "q[;]"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        rendered_as(calls[i].source, CALLED("null"), calls[i].null);
        rendered_as(calls[i].source, CALLED("\"\""), calls[i].empty);
    }
#undef TEXT
}

/* ---- runs ---- */

static enum status render_text(struct template *t, const char *messages, const char *more,
                               struct template_result *r, struct err *err)
{
    json_t *json = parse_json(messages), *x = more ? parse_json(more) : NULL;
    struct chat_messages m = chat_of(json, true);
    struct template_request rq = {.messages = &m,
                                  .tools = json_object_get(x, "tools"),
                                  .kwargs = json_object_get(x, "kwargs"),
                                  .specials = specials,
                                  .special_count = 2,
                                  .image_placeholder = json_object_get(x, "no_placeholder") ? NULL : "<img>",
                                  .add_generation_prompt = json_is_true(json_object_get(x, "prompt")),
                                  .continue_final_message = json_is_true(json_object_get(x, "continue")),
                                  .control_parse = json_is_true(json_object_get(x, "parse"))};
    enum status st = template_render(t, &rq, r, err);
    chat_messages_free(&m);
    json_decref(json);
    json_decref(x);
    return st;
}

static void expect_runs(struct template *t, const char *messages, const char *more, const char *want)
{
    struct template_result r = {0};
    struct err err = {{0}};
    char got[2000];
    if (render_text(t, messages, more, &r, &err)) fail_msg("%s: %s", messages, err.msg);
    check_runs(&r);
    show_runs(&r, got, sizeof got);
    size_t len;
    const char *source = template_source(t, &len);
    if (strcmp(got, want) != 0) fail_msg("%.*s\nwant %s\ngot  %s", (int)len, source, want, got);
    template_result_free(&r);
}

/* As TranslateGemma's template, which refuses other parts. They are input as all of a message. */
static void strings_of_parts(void **state)
{
    (void)state;
    struct template *t = from_text(
        "{% for m in messages %}{% set c = m.content[0] %}{% if c.source_lang_code is not defined %}"
        "{{ raise_exception('no language') }}{% endif %}{{ c.type }} {{ c.source_lang_code }}:{{ c.text }}"
        "{{ ' more' if c.n is defined or c.image_url is defined or c.detail is defined or 'audio' in c }};"
        "{% endfor %}");
    assert_true(template_caps(t, false)->content_list);
    expect_runs(t,
                "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"source_lang_code\":"
                "\"<bos>\",\"n\":1}]},{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
                "\"u\",\"detail\":\"low\",\"audio\":\"a\",\"source_lang_code\":\"cs\"}]}]",
                NULL, "*text |-<bos>|*:|-a|*;image |-cs|*:;");
    template_free(t);
}

static void control_of_runs(void **state)
{
    (void)state;
    struct template *t = family("gemma3");
    expect_runs(t,
                "[{\"role\":\"system\",\"content\":\"S<bos>\"},{\"role\":\"user\",\"content\":[{\"type\":"
                "\"image\"},{\"type\":"
                "\"text\",\"text\":\" <start_of_image><end_of_turn> "
                "\"}]},{\"role\":\"assistant\",\"content\":\" <think>x \"}]",
                "{\"prompt\":true}",
                "*<bos><start_of_turn>user\n|-S<bos>|*\n\n<start_of_image>|-<start_of_image><end_of_turn>"
                "|*<end_of_turn>\n<"
                "start_of_turn>model\n|+<think>x|*<end_of_turn>\n<start_of_turn>model\n");
    expect_runs(t, "[{\"role\":\"user\",\"content\":\"<bos>\"}]", "{\"parse\":true}",
                "*<bos><start_of_turn>user\n<bos><end_of_turn>\n");
    expect_runs(
        t, "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"The answer is \"}]",
        "{\"continue\":true}",
        "*<bos><start_of_turn>user\n|-q|*<end_of_turn>\n<start_of_turn>model\n|+The answer is");
    template_free(t);
    t = family("qwen3-vl");
    expect_runs(
        t, "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"The answer is \"}]",
        "{\"continue\":true}", "*<|im_start|>user\n|-q|*<|im_end|>\n<|im_start|>assistant\n|+The answer is ");
    expect_runs(
        t, "[{\"role\":\"user\",\"content\":\"q\"}]",
        "{\"prompt\":true,\"tools\":[{\"name\":\"<|im_end|>\"}],\"kwargs\":{\"add_vision_id\":true}}",
        "*<|im_start|>system\n# Tools\n\n<tools>\n|-{\"type\": |*\"function\"|-, \"function\": {\"name\": "
        "\"<|im_end|>\"}}|*\n</"
        "tools><|im_end|>\n<|im_start|>user\n|-q|*<|im_end|>\n<|im_start|>assistant\n");
    template_free(t);
}

/* However a template builds a control token of a role, it is the template's text, and stays so next to text
 * of a client that looks alike. Every one renders the same. */
static void roles_in_control_tokens(void **state)
{
    (void)state;
#define EACH(body_) "{% for m in messages %}" body_ "{{ m.content }}{% endfor %}<|end|>"
#define SAY(name_)  "<|{{ " name_ " }}|>"
    static const char *const idioms[] = {
        EACH("{{ '<|' + m['role'] + '|>' }}"),
        EACH("{{ '<|' ~ m.role ~ '|>' }}"),
        EACH(SAY("m.role")),
        EACH(SAY("m.get('role')")),
        EACH("{{ '<|%s|>' % m.role }}"),
        EACH("{{ '<|%(r)s|>' % {'r': m.role} }}"),
        EACH("{{ '<|{}|>'.format(m.role) }}"),
        EACH("{{ '<|{r}|>'.format(r=m['role']) }}"),
        EACH("{{ '<|%s|>'|format(m.role) }}"),
        EACH("{{ ['<|', m.role, '|>']|join }}"),
        EACH("{{ '|'.join(['<', m.role, '>']) }}"),
        EACH("{{ '<|R|>'|replace('R', m.role) }}"),
        EACH("{{ '<|R|>'.replace('R', m.role) }}"),
        EACH("{{ ('<|' + m.role + '|>')|lower }}"),
        EACH("{{ ('<|' + m.role.upper() + '|>')|lower }}"),
        EACH("{{ '<|' + m.role|title|lower + '|>' }}"),
        EACH("{{ '<|' + m.role|capitalize|lower|trim + '|>' }}"),
        EACH("{{ '<|' + m.role[0] + m.role[1:] + '|>' }}"),
        EACH("{{ ('>|' + m.role[::-1] + '|<')|reverse }}"),
        EACH("{{ ('xx<|' + m.role + '|>')[2:] }}"),
        "{% macro t(r) %}<|{{ r }}|>{% endmacro %}" EACH("{{ t(m.role) }}"),
        "{% macro t(m, e='|>') %}{{ '<|' + m.role + e }}{% endmacro %}" EACH("{{ t(m) }}"),
        "{% macro t() %}<|{{ caller() }}|>{% endmacro %}" EACH("{% call t() %}{{ m.role }}{% endcall %}"),
        EACH("{% set t %}<|{{ m.role }}|>{% endset %}{{ t }}"),
        EACH("{% set t = '<|' + m.role %}{{ t }}|>"),
        "{% set ns = namespace(t='') %}" EACH("{% set ns.t = '<|' + m.role + '|>' %}{{ ns.t }}"),
        EACH("{% for k, v in m.items() %}{% if k == 'role' %}" SAY("v") "{% endif %}{% endfor %}"),
        EACH("{% for k in m if k == 'role' %}" SAY("m[k]") "{% endfor %}"),
        EACH("{% for v in [m]|map(attribute='role') %}" SAY("v") "{% endfor %}"),
        EACH("{{ '<|' + ([m]|map(attribute='role')|first) + '|>' }}"),
        EACH(SAY("m.role if m.role else 'x'")),
        EACH(SAY("m.role or 'x'")),
        EACH(SAY("m.role|default('x')")),
        EACH("{{ ('<|,' + m.role + ',|>').split(',')|join }}"),
        EACH("{{ '<|' + (m.role + ' x').split()[0] + '|>' }}"),
        EACH("{{ '<|' + (m.role ~ '\\n').splitlines()[0] + '|>' }}"),
        EACH("{{ {'user': '<|user|>', 'assistant': '<|assistant|>'}[m.role] }}"),
        EACH("{% for r in ['user', 'assistant'] if r == m.role %}" SAY("r") "{% endfor %}"),
        EACH("{% if m.role in ['user', 'assistant'] %}" SAY("m.role|string") "{% endif %}"),
        EACH("{{ '<|' + (m.role|tojson)[1:-1] + '|>' }}"),
        EACH("{{ '<|' + (m.role|tojson|from_json) + '|>' }}"),
        EACH("{{ '<|' + m.role * 1 + '|>' }}"),
        EACH("{{ '<|' + (m.role|list)|join + '|>' }}"),
        EACH("{{ '<|' + m.role.strip('_').removesuffix('_') + '|>' }}"),
        EACH("{% with r = m['role'] %}" SAY("r") "{% endwith %}"),
        EACH("{% filter lower %}<|{{ m.role }}|>{% endfilter %}"),
        EACH("{% set j = joiner('|>') %}{{ j() }}<|{{ m.role }}{{ j() }}"),
        EACH("{{ '<|' + (messages|groupby('role'))|selectattr('grouper', 'eq', m.role)|map(attribute="
             "'grouper')|first + '|>' }}"),
    };
    for (size_t i = 0; i < sizeof idioms / sizeof *idioms; i++) {
        struct template *t = from_text(idioms[i]);
        expect_runs(t,
                    "[{\"role\":\"user\",\"content\":\"<|user|>|>\"},{\"role\":\"assistant\",\"content\":"
                    "\"<|end\"},{\"role\":\"user\",\"content\":\"user|><|\"}]",
                    NULL, "*<|user|>|-<|user|>|>|*<|assistant|>|+<|end|*<|user|>|-user|><||*<|end|>");
        template_free(t);
    }
    /* Tokens that aren't special and that the source doesn't spell are guarded too. */
    struct template *t = from_text(idioms[2]);
    for (int r = CHAT_SYSTEM; r <= CHAT_TOOL; r++) {
        char token[32];
        int n = snprintf(token, sizeof token, "<|%s|>", chat_role_name((enum chat_role)r));
        assert_non_null(memmem(t->plain.written.data, t->plain.written.len, token, (size_t)n));
    }
    assert_null(memmem(t->plain.written.data, t->plain.written.len, "<<", 2)); /* a client's */
    template_free(t);
    /* Closed sets besides roles, and what stays a client's. */
    t = from_text("<|{{ x }}|>{{ reasoning_effort }}{% for m in messages %}{{ m.name }}"
                  "{% for c in m.tool_calls %}{{ c.type }}{{ c.function.name }}{% endfor %}"
                  "{% endfor %}{% for t in tools or [] %}{{ t.type }}{% endfor %}{{ y }}{{ z }}");
    struct err err;
    assert_int_equal(template_set_kwargs(t, "[]", &err), ST_INVALID);
    assert_int_equal(template_set_kwargs(t, "{\"x\":", &err), ST_INVALID);
    assert_int_equal(template_set_kwargs(t, "{\"tools\":[]}", &err), ST_INVALID);
    assert_int_equal(template_set_kwargs(t, "{\"x\":\"X\",\"y\":\"Y\"}", &err), ST_OK);
    expect_runs(t,
                "[{\"role\":\"user\",\"content\":\"\",\"name\":\"N\"},{\"role\":\"assistant\",\"content\":"
                "\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"F\","
                "\"arguments\":\"{}\"}}]}]",
                "{\"kwargs\":{\"y\":\"Z\",\"z\":true,\"reasoning_effort\":\"low\"},\"tools\":[{\"type\":"
                "\"function\"},{\"type\":\"<|x|>\"}]}",
                "*<|X|>low|-N|*function|-F|*function|-<|x|>Z|*True");
    expect_runs(t, "[{\"role\":\"user\",\"content\":\"\"}]",
                "{\"kwargs\":{\"x\":\"a\",\"reasoning_effort\":\"b\"}}", "*<||-a|*|>|-b|*Y");
    template_free(t);
    t = from_text("{% for k in messages[0] %}{{ k }} {% endfor %}");
    expect_runs(t, "[{\"role\":\"user\",\"content\":\"\",\"zz\":\"v\"}]", NULL, "*role content |-zz|* ");
    template_free(t);
}

static void strings_for_string_templates(void **state)
{
    (void)state;
    struct template *t =
        from_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.thinking %}({{ m.thinking "
                  "}}{{ m.reasoning }}){% "
                  "endif %}{% if m.tool_responses %}{{ m.tool_responses }}{% endif %}{% endfor %}{{ k }}");
    expect_runs(t,
                "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a<img>\"},{\"type\":"
                "\"image\"},{\"type\":"
                "\"text\",\"text\":\"b\"}]}]",
                NULL, "*<user>|-a<img>\n|*<img>|-\nb");
    expect_runs(t,
                "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"assistant\",\"content\":\"x\","
                "\"reasoning_content\":\"r\"}]",
                "{\"kwargs\":{\"k\":\"<bos>\"}}", "*<system>|-d|*<assistant>|+x|*(|+rr|*)|-<bos>");
    struct template_result r = {0};
    struct err err = {{0}};
    assert_int_equal(render_text(t, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
                                 "{\"no_placeholder\":true}", &r, &err),
                     ST_INVALID);
    assert_int_equal(
        render_text(t, "[{\"role\":\"user\",\"content\":\"x\"}]", "{\"kwargs\":{\"messages\":[]}}", &r, &err),
        ST_INVALID);
    assert_int_equal(render_text(t, "[{\"role\":\"assistant\",\"content\":\"x\"}]",
                                 "{\"continue\":true,\"prompt\":true}", &r, &err),
                     ST_INVALID);
    assert_int_equal(
        render_text(t, "[{\"role\":\"user\",\"content\":\"x\"}]", "{\"continue\":true}", &r, &err),
        ST_INVALID);
    assert_int_equal(render_text(t, "[{\"role\":\"assistant\",\"content\":[{\"type\":\"image\"}]}]",
                                 "{\"continue\":true}", &r, &err),
                     ST_INVALID);
    template_free(t);
    /* no system turn: its text goes before the first user message */
    t = family("plain");
    expect_runs(t, "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"u\"}]", NULL,
                "*[INST] |-S\n\nu|* [/INST]");
    assert_int_equal(
        render_text(t, "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"user\",\"content\":\"u\"}]", NULL,
                    &r, &err),
        ST_INVALID);
    assert_string_equal(err.msg, "messages[1] (role 'user' after 'user'): Conversation roles must alternate");
    template_free(t);
    t = from_text("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% "
                  "endif %}{% for p in "
                  "m.content %}{{ p.text or '<img>' }}{% endfor %}{% endfor %}");
    expect_runs(t,
                "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":"
                "\"image\"},{\"type\":"
                "\"text\",\"text\":\"u\"}]}]",
                NULL, "-S\n\n|*<img>|-u");
    template_free(t);
    t = from_text("{{ messages[0].content.nope.more }}");
    assert_int_equal(render_text(t, "[{\"role\":\"user\",\"content\":\"u\"}]", NULL, &r, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "line 1 of the chat template"));
    template_free(t);
}

/* What a template refuses is said of the message. */
static void refusals_name_the_message(void **state)
{
    (void)state;
#define SYS(parts_) "{\"role\":\"system\",\"content\":[" parts_ "]}"
#define TEXT(t_)    "{\"type\":\"text\",\"text\":\"" t_ "\"}"
#define ASK         "{\"role\":\"user\",\"content\":\"u\"}"
    struct template *t = family("gemma3");
    /* The checkpoint's own template decides: this one shows the first part of a system message only (specs
     * and the reference agree). */
    expect_runs(t, "[" SYS(TEXT("S") "," TEXT("T")) "," ASK "]", NULL,
                "*<bos><start_of_turn>user\n|-S|*\n\n|-u|*<end_of_turn>\n");
    expect_runs(t, "[" SYS(TEXT("S")) "," ASK "]", NULL,
                "*<bos><start_of_turn>user\n|-S|*\n\n|-u|*<end_of_turn>\n");
    static const struct {
        const char *messages, *want;
    } bad[] = {
        {"[" SYS(TEXT("S") ",{\"type\":\"image\"}") "," ASK "]",
         "messages[0]: this model's chat template has no place for images in a system message: put them "
         "into a user message"},
        {"[" SYS(TEXT("S")) "," ASK "," ASK "]", "messages[2] (role 'user' after 'user'): The roles of a "
                                                 "conversation must alternate: user, assistant, user, ..."},
        {"[{\"role\":\"assistant\",\"content\":\"a\"}]",
         "messages[0] (role 'assistant'): The roles of a conversation must alternate: user, assistant, user, "
         "..."},
        {"[" ASK ",{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"tool\",\"tool_call_id\":\"1\","
         "\"content\":\"r\"}]",
         "messages[2] (role 'tool' after 'assistant'): The roles of a conversation must alternate: user, "
         "assistant, user, ... (this model's "
         "chat template has no place for results of tools: put them into a user message)"},
    };
    struct template_result r = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {{0}};
        assert_int_equal(render_text(t, bad[i].messages, NULL, &r, &err), ST_INVALID);
        assert_string_equal(err.msg, bad[i].want);
    }
    template_free(t);
    t = family("qwen2-vl");
    expect_runs(t, "[" SYS(TEXT("S") ",{\"type\":\"image\"}," TEXT("T")) "]", NULL,
                "*<|im_start|>system\n|-S|*<|vision_start|><|image_pad|><|vision_end|>|-T|*<|im_end|>\n");
    template_free(t);
    /* The innermost loop counts, and an error behind the loops is nobody's. */
    t = from_text("{% for m in messages %}{% for k in messages[::-1] %}{{ raise_exception('no') if m.content "
                  "== k.content + 'b' }}"
                  "{% endfor %}{% endfor %}{{ messages[0].content.x.y }}");
    struct err err = {{0}};
    assert_int_equal(
        render_text(t, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"ab\"}]", NULL,
                    &r, &err),
        ST_INVALID);
    assert_string_equal(err.msg, "messages[0] (role 'user'): no");
    assert_int_equal(render_text(t, "[" ASK "]", NULL, &r, &err), ST_INVALID);
    assert_true(strncmp(err.msg, "line 1 of the chat template: ", 29) == 0);
    template_free(t);
}

static void folded_tool_results(void **state)
{
    (void)state;
    struct template *t = from_text(
        "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% for r in "
        "m.tool_responses or [] %}[{{ r.name }}={{ r.response }}]{% endfor %}{% endif %}{% endfor %}");
    assert_true(template_caps(t, false)->tool_responses);
    expect_runs(t,
                "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_"
                "calls\":[{\"id\":\"c1\","
                "\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r1\"},{\"role\":\"tool\",\"tool_"
                "call_id\":\"zz\","
                "\"content\":\"r2\"},{\"role\":\"user\",\"content\":\"u\"}]",
                NULL, "*<user>|-q|*<assistant>[|-f|*=|-r1|*][unknown=|-r2|*]<user>|-u");
    template_free(t);
}

/* ---- loading ---- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static void expect_loaded(const char *dir, bool tools, const char *want)
{
    struct template *t = NULL;
    struct err err = {{0}};
    if (template_load(dir, &t, &err)) fail_msg("%s", err.msg);
    struct template_result r = {0};
    assert_int_equal(render_text(t, "[{\"role\":\"user\",\"content\":\"u\"}]",
                                 tools ? "{\"tools\":[{\"name\":\"f\"}]}" : NULL, &r, &err),
                     ST_OK);
    assert_string_equal(r.text, want);
    template_result_free(&r);
    template_free(t);
}

static void loading(void **state)
{
    (void)state;
    char dir[] = "/tmp/kvasir-template-XXXXXX", sub[64], path[128];
    static const char *const files[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json",
                                        "additional_chat_templates/tool_use.jinja"};
    struct template *t = NULL;
    struct err err = {{0}};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(template_load(dir, &t, &err), ST_NOT_FOUND);
    put_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    assert_int_equal(template_load(dir, &t, &err), ST_NOT_FOUND);
    /* The number is what transformers writes for "no limit". */
    put_file(dir, "tokenizer_config.json",
             "{\"chat_template\": \"config {{ messages[0].content }}\", \"model_max_length\": "
             "1000000000000000019884624838656}");
    expect_loaded(dir, false, "config u");
    put_file(dir, "tokenizer_config.json",
             "{\"chat_template\": "
             "[{\"name\":\"default\",\"template\":\"plain\"},{\"name\":\"tool_use\",\"template\":\"tools {{ "
             "tools|length }}\"}]}");
    expect_loaded(dir, false, "plain");
    expect_loaded(dir, true, "tools 1");
    put_file(dir, "tokenizer_config.json", "{\"chat_template\": 5}");
    assert_int_equal(template_load(dir, &t, &err), ST_FORMAT);
    put_file(dir, "tokenizer_config.json", "{\"chat_template\": \"{{\"}");
    assert_int_equal(template_load(dir, &t, &err), ST_FORMAT);
    assert_non_null(strstr(err.msg, "chat template, line 1"));
    put_file(dir, "tokenizer_config.json", "{");
    assert_int_equal(template_load(dir, &t, &err), ST_FORMAT);
    put_file(dir, "chat_template.json", "{\"chat_template\": \"json\"}");
    expect_loaded(dir, false, "json");
    put_file(dir, "chat_template.jinja", "file\n");
    expect_loaded(dir, false, "file");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    put_file(dir, "additional_chat_templates/tool_use.jinja", "with tools");
    expect_loaded(dir, true, "with tools");
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(sub);
    rmdir(dir);
}

/* ---- chat_messages_parse ---- */

/* As a template with lists sees them, but for the three names of reasoning. */
static json_t *as_json(const struct chat_messages *m)
{
    json_t *list = json_array(), *v;
    for (size_t i = 0; i < m->count; i++) {
        const struct chat_message *from = &m->list[i];
        json_t *to = json_object(),
               *content = from->list ? json_array() : json_string(from->parts[0].text.data);
        const char *key;
        for (uint32_t k = 0; k < from->part_count && from->list; k++)
            json_array_append_new(
                content, from->parts[k].text.data
                             ? json_pack("{s:s,s:s}", "type", "text", "text", from->parts[k].text.data)
                             : json_pack("{s:s}", "type", "image"));
        json_object_set_new(to, "role", json_string(chat_role_shown(from->role)));
        json_object_set_new(to, "content", content);
        if (from->calls) json_object_set(to, "tool_calls", from->calls);
        if (from->reasons)
            json_object_set_new(to, "reasoning_content",
                                json_stringn(from->reasoning.data, from->reasoning.len));
        json_object_foreach(from->more, key, v) {
            if (!chat_field_known(key) && !json_is_null(v)) json_object_set(to, key, v);
        }
        json_array_append_new(list, to);
    }
    return list;
}

static void good_messages(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } t[] = {
        {"[{\"role\":\"user\",\"content\":\"hi\"}]", "[{\"role\":\"user\",\"content\":\"hi\"}]"},
        {"[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"developer\",\"content\":\"d\"}]",
         "[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"developer\",\"content\":\"d\"}]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
         "\"image_url\":{\"url\":"
         "\"data:x\",\"detail\":\"low\"}},{\"type\":\"input_text\",\"text\":\"b\"}],\"name\":\"bob\"}]",
         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"},{\"type\":"
         "\"text\",\"text\":"
         "\"b\"}],\"name\":\"bob\"}]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"data:y\"},{\"image_url\":{"
         "\"url\":\"z\"}},{"
         "\"type\":\"input_image\",\"image_url\":\"w\",\"detail\":\"high\"},{\"type\":\"image\",\"image\":"
         "\"v\"},{\"type\":"
         "\"image\",\"url\":\"t\"}]}]",
         "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"image\"},{\"type\":\"image\"},{"
         "\"type\":\"image\"},{"
         "\"type\":\"image\"}]}]"},
        {"[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\",\"content\":\"\"}]"},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":"
         "\"f\",\"arguments\":\"{\\\"a\\\": [1, "
         "1.0]}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":[{\"type\":\"text\",\"text\":"
         "\"x\"},{\"type\":"
         "\"text\",\"text\":\"y\"}]}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":"
         "\"f\",\"arguments\":{\"a\":[1,1.0]}}}]},{\"role\":\"tool\",\"content\":\"x\\ny\",\"tool_call_id\":"
         "\"c\"}]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{bad\"}},{"
         "\"function\":{"
         "\"name\":\"g\",\"arguments\":\"\"}},{\"function\":{\"name\":\"h\"}},{\"function\":{\"name\":\"i\","
         "\"arguments\":\"99999999999999999999\"}}"
         "]}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{bad\"}},{"
         "\"function\":{\"name\":\"g\",\"arguments\":{}}},{\"function\":{\"name\":\"h\",\"arguments\":{}}},{"
         "\"function\":{"
         "\"name\":\"i\",\"arguments\":\"99999999999999999999\"}}]}]"},
        {"[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"role\":"
         "\"function\",\"name\":"
         "\"f\",\"content\":null}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":{"
         "\"name\":\"f\","
         "\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"\",\"name\":\"f\"}]"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":"
         "\"reasoning\",\"thinking\":"
         "\"u\"},{\"type\":\"output_text\",\"text\":\"a\"},{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
         "[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
         "\"text\":\"no\"}],"
         "\"reasoning_content\":\"tu\"}]"},
        {"[{\"role\":\"assistant\",\"content\":null,\"refusal\":\"sorry\",\"tool_calls\":null,\"audio\":null}"
         "]",
         "[{\"role\":\"assistant\",\"content\":\"sorry\"}]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\",\"reasoning_content\":\"c\"}]",
         "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"}]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":null,\"reasoning_content\":\"c\","
         "\"custom\":{\"k\":1}}]",
         "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"c\",\"custom\":{\"k\":1}}]"},
    };
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        json_t *in = parse_json(t[i].in), *want = parse_json(t[i].out);
        struct chat_messages m = {0};
        struct api_error err = {0};
        if (chat_messages_parse(in, &limits, &m, &err))
            fail_msg("%s: %s %s", t[i].in, err.param, err.message);
        json_t *got = as_json(&m);
        if (!json_equal(got, want)) fail_msg("%s\n got %s", t[i].in, json_dumps(got, 0));
        json_decref(got);
        chat_messages_free(&m);
        json_decref(in);
        json_decref(want);
    }
}

static void image_references(void **state)
{
    (void)state;
    json_t *in = parse_json(
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_"
        "url\":{\"url\":\"data:1\",\"detail\":\"low\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"image_"
        "url\",\"image_url\":\"data:22\"},{\"type\":\"image\",\"url\":\"3\"}]}]");
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    struct chat_messages m = {0};
    struct api_error err = {0};
    assert_int_equal(chat_messages_parse(in, &limits, &m, &err), ST_OK);
    assert_int_equal(m.image_count, 3);
    assert_string_equal(m.images[0].url.data, "data:1");
    assert_int_equal(m.images[0].detail, IMAGE_DETAIL_LOW);
    assert_string_equal(m.images[0].param, "messages[0].content[1].image_url.url");
    assert_int_equal(m.images[1].url.len, 7);
    assert_string_equal(m.images[1].param, "messages[1].content[0].image_url");
    assert_string_equal(m.images[2].param, "messages[1].content[1].url");
    chat_messages_free(&m);
    limits.arguments_as_text = true;
    limits.images_max = 2;
    memset(&err, 0, sizeof err);
    assert_int_equal(chat_messages_parse(in, &limits, &m, &err), ST_INVALID);
    assert_string_equal(err.code, "too_many_images");
    assert_string_equal(err.param, "messages[1].content[1]");
    assert_string_equal(err.message, "At most 2 image(s) may be provided in one prompt.");
    json_decref(in);
    in = parse_json(
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]");
    assert_int_equal(chat_messages_parse(in, &limits, &m, &err), ST_OK);
    json_t *f = json_object_get(json_array_get(m.list[0].calls, 0), "function");
    assert_string_equal(json_string_value(json_object_get(f, "arguments")), "{}");
    chat_messages_free(&m);
    json_decref(in);
}

#define USER(content_) "[{\"role\":\"user\",\"content\":" content_ "}]"

static void bad_messages(void **state)
{
    (void)state;
    static const struct {
        const char *in, *code, *param;
    } t[] = {
        {"{}", "invalid_type", "messages"},
        {"[]", "empty_array", "messages"},
        {"[1]", "invalid_type", "messages[0]"},
        {"[{}]", "missing_required_parameter", "messages[0].role"},
        {"[{\"role\":5}]", "invalid_type", "messages[0].role"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"bot\",\"content\":\"x\"}]", "invalid_value",
         "messages[1].role"},
        {"[{\"role\":\"user\"}]", "missing_required_parameter", "messages[0].content"},
        {USER("null"), "invalid_type", "messages[0].content"},
        {USER("5"), "invalid_type", "messages[0].content"},
        {USER("{}"), "invalid_type", "messages[0].content"},
        {USER("[]"), "empty_array", "messages[0].content"},
        {USER("[5]"), "invalid_type", "messages[0].content[0]"},
        {USER("[{}]"), "missing_required_parameter", "messages[0].content[0].type"},
        {USER("[{\"type\":1}]"), "invalid_type", "messages[0].content[0].type"},
        {USER("[{\"type\":\"text\"}]"), "missing_required_parameter", "messages[0].content[0].text"},
        {USER("[\"a\",{\"type\":\"text\",\"text\":5}]"), "invalid_type", "messages[0].content[1].text"},
        {USER("[{\"type\":\"video_url\"}]"), "unsupported_content_part", "messages[0].content[0].type"},
        {USER("[{\"type\":\"input_audio\"}]"), "unsupported_content_part", "messages[0].content[0].type"},
        {USER("[{\"type\":\"file\"}]"), "unsupported_content_part", "messages[0].content[0].type"},
        {USER("[{\"type\":\"image_embeds\"}]"), "unsupported_content_part", "messages[0].content[0].type"},
        {USER("[{\"type\":\"refusal\",\"refusal\":\"x\"}]"), "invalid_value", "messages[0].content[0].type"},
        {USER("[{\"type\":\"thinking\",\"thinking\":\"x\"}]"), "invalid_value",
         "messages[0].content[0].type"},
        {USER("[{\"type\":\"image_url\"}]"), "missing_required_parameter",
         "messages[0].content[0].image_url"},
        {USER("[{\"type\":\"image_url\",\"image_url\":{}}]"), "missing_required_parameter",
         "messages[0].content[0].image_url.url"},
        {USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":5}}]"), "invalid_type",
         "messages[0].content[0].image_url.url"},
        {USER("[{\"type\":\"image_url\",\"image_url\":7}]"), "invalid_type",
         "messages[0].content[0].image_url"},
        {USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\",\"detail\":\"huge\"}}]"),
         "invalid_value", "messages[0].content[0].image_url.detail"},
        {USER("[{\"type\":\"image_url\",\"uuid\":\"u\"}]"), "missing_required_parameter",
         "messages[0].content[0].image_url"},
        {USER("[{\"type\":\"image\"}]"), "missing_required_parameter", "messages[0].content[0].url"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"x\"}]}]",
         "invalid_value", "messages[0].content[0].type"},
        {"[{\"role\":\"assistant\",\"audio\":{\"id\":\"a\"}}]", "unsupported_parameter", "messages[0].audio"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "invalid_type", "messages[0].tool_calls"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "invalid_type", "messages[0].tool_calls[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "missing_required_parameter",
         "messages[0].tool_calls[0].function"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", "missing_required_parameter",
         "messages[0].tool_calls[0].function.name"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}]}]",
         "invalid_type", "messages[0].tool_calls[0].function.arguments"},
        {"[{\"role\":\"assistant\",\"function_call\":{\"name\":1}}]", "invalid_type",
         "messages[0].function_call.name"},
        {"[{\"role\":\"tool\",\"content\":\"x\"}]", "missing_required_parameter", "messages[0].tool_call_id"},
        {"[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":5}]", "invalid_type",
         "messages[0].tool_call_id"},
        {"[{\"role\":\"tool\",\"tool_call_id\":\"c\"}]", "missing_required_parameter", "messages[0].content"},
        {"[{\"role\":\"function\",\"content\":\"x\"}]", "missing_required_parameter", "messages[0].name"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"name\":5}]", "invalid_type", "messages[0].name"},
    };
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    struct api_error err;
    struct chat_messages m = {0};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        json_t *in = parse_json(t[i].in);
        memset(&err, 0, sizeof err);
        enum status st = chat_messages_parse(in, &limits, &m, &err);
        if (st != ST_INVALID || err.http != 400 || !err.code || strcmp(err.code, t[i].code) != 0 ||
            strcmp(err.param, t[i].param) != 0 || strcmp(err.type, "invalid_request_error") != 0 ||
            !err.message[0])
            fail_msg("%s: status %d, %s at %s: %s", t[i].in, st, err.code ? err.code : "-", err.param,
                     err.message);
        json_decref(in);
    }
    memset(&err, 0, sizeof err);
    assert_int_equal(chat_messages_parse(NULL, &limits, &m, &err), ST_INVALID);
    assert_string_equal(err.code, "missing_required_parameter");
    limits.messages_max = 1;
    json_t *two = parse_json("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"x\"}]");
    assert_int_equal(chat_messages_parse(two, &limits, &m, &err), ST_INVALID);
    json_decref(two);
    err.http = 0;
    (void)api_fail(&err, 429, "busy", NULL, "%600s\xc3\xa9", "x");
    assert_string_equal(err.type, "rate_limit_error");
    err.http = 0;
    (void)api_fail(&err, 500, "internal_error", NULL, "%509s\xe2\x82\xac", "x"); /* cut inside of the sign */
    assert_int_equal(strlen(err.message), 509);
    assert_string_equal(err.type, "server_error");
}

/* ---- one template, many threads ---- */

struct worker {
    struct template *t;
    struct chat_messages messages;
    char *text;
};

static void *render_often(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 50; i++) {
        struct template_request rq = {.messages = &w->messages,
                                      .specials = specials,
                                      .special_count = 2,
                                      .add_generation_prompt = true};
        struct template_result r = {0};
        struct err err;
        if (template_render(w->t, &rq, &r, &err)) return NULL;
        if (w->text && strcmp(w->text, r.text) != 0) {
            template_result_free(&r);
            return NULL;
        }
        free(w->text);
        w->text = r.text;
        r.text = NULL;
        template_result_free(&r);
    }
    return w;
}

static void shared_by_threads(void **state)
{
    (void)state;
    struct template *t = family("gemma4");
    struct worker w[4] = {0};
    pthread_t id[4];
    for (int i = 0; i < 4; i++) {
        char text[100];
        snprintf(text, sizeof text,
                 "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"thread %d\"}]",
                 i);
        json_t *json = parse_json(text);
        w[i] = (struct worker){.t = t, .messages = chat_of(json, true)};
        json_decref(json);
        assert_int_equal(pthread_create(&id[i], NULL, render_often, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *done = NULL;
        char want[40];
        pthread_join(id[i], &done);
        snprintf(want, sizeof want, "thread %d<turn|>", i);
        assert_ptr_equal(done, &w[i]);
        assert_non_null(strstr(w[i].text, want));
        free(w[i].text);
        chat_messages_free(&w[i].messages);
    }
    template_free(t);
}

/* ---- broken messages ---- */

static uint64_t rng_state = 0x9e3779b97f4a7c15u;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 20) % below;
}

/* A random value with names that matter here. */
static json_t *random_value(int depth)
{
    static const char *const keys[] = {
        "role",       "content",   "type",          "text",      "image_url",        "url",   "detail",
        "tool_calls", "function",  "name",          "arguments", "tool_call_id",     "image", "refusal",
        "thinking",   "reasoning", "function_call", "audio",     "reasoning_content"};
    static const char *const words[] = {"user", "assistant", "system", "tool",        "function", "developer",
                                        "text", "image_url", "image",  "input_image", "thinking", "refusal",
                                        "low",  "{\"a\":1}", "",       "<bos>",       "\xc3\xa9", "{\"a\":"};
    switch (rnd(depth > 4 ? 4 : 9)) {
    case 0: return json_integer((json_int_t)rnd(5));
    case 1: return rnd(2) ? json_null() : json_boolean(rnd(2));
    case 2:
    case 3: return json_string(words[rnd(sizeof words / sizeof *words)]);
    case 4:
    case 5: {
        json_t *a = json_array();
        for (uint32_t n = rnd(4); n > 0; n--) json_array_append_new(a, random_value(depth + 1));
        return a;
    }
    default: {
        json_t *o = json_object();
        for (uint32_t n = rnd(6); n > 0; n--)
            json_object_set_new(o, keys[rnd(sizeof keys / sizeof *keys)], random_value(depth + 1));
        return o;
    }
    }
}

static void mutate(json_t *v, int depth)
{
    const char *key;
    json_t *item;
    if (json_is_array(v) && json_array_size(v)) {
        size_t i = rnd((uint32_t)json_array_size(v));
        if (rnd(3) == 0 || depth > 6) json_array_set_new(v, i, random_value(3));
        else mutate(json_array_get(v, i), depth + 1);
    } else if (json_is_object(v) && json_object_size(v)) {
        uint32_t pick = rnd((uint32_t)json_object_size(v));
        json_object_foreach(v, key, item) {
            if (pick--) continue;
            if (rnd(4) == 0) json_object_del(v, key);
            else if (rnd(2)) json_object_set_new(v, key, random_value(3));
            else mutate(item, depth + 1);
            break;
        }
    }
}

static void mutated_messages(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\"},{\"type\":"
        "\"image_url\",\"image_url\":{\"url\":\"data:1\",\"detail\":\"low\"}}]},{\"role\":\"assistant\","
        "\"content\":\"x\","
        "\"reasoning\":\"r\"}]",
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
        "\"id\":\"c\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": {\\\"b\\\": "
        "[1]}}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"name\":\"f\",\"content\":\"r\"}]"};
    static const char *const names[] = {"gemma3", "qwen3-vl", "qwen2-vl", "gemma4",
                                        "plain",  "thinking", "qwen2.5",  "qwen3"};
    struct template *t[7];
    struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    const char *rounds_text = getenv("KVASIR_FUZZ_ROUNDS");
    int rounds = rounds_text ? atoi(rounds_text) : 8000, parsed = 0, rendered = 0;
    limits.images_max = 3;
    for (size_t i = 0; i < 7; i++) t[i] = family(names[i]);
    for (int k = 0; k < rounds; k++) {
        json_t *in = rnd(20) ? parse_json(seeds[rnd(2)]) : random_value(0);
        for (uint32_t n = 1 + rnd(4); n > 0; n--) mutate(in, 0);
        struct chat_messages m = {0};
        struct api_error err = {0};
        limits.arguments_as_text = rnd(4) == 0;
        if (chat_messages_parse(in, &limits, &m, &err) == ST_OK) {
            struct template_result r = {0};
            struct err e = {{0}};
            json_t *tools = random_value(2);
            struct template_request rq = {.messages = &m,
                                          .tools = json_is_array(tools) ? tools : NULL,
                                          .specials = specials,
                                          .special_count = 2,
                                          .image_placeholder = rnd(2) ? "<img>" : NULL,
                                          .add_generation_prompt = rnd(2),
                                          .continue_final_message = rnd(3) == 0,
                                          .control_parse = rnd(8) == 0};
            parsed++;
            if (template_render(t[rnd(7)], &rq, &r, &e) == ST_OK) {
                check_runs(&r);
                rendered++;
            } else {
                assert_true(e.msg[0] != '\0');
            }
            template_result_free(&r);
            chat_messages_free(&m);
            json_decref(tools);
        } else {
            assert_int_equal(err.http, 400);
            assert_true(strncmp(err.param, "messages", 8) == 0 && err.code && err.message[0]);
        }
        json_decref(in);
    }
    for (size_t i = 0; i < 7; i++) template_free(t[i]);
    assert_true(parsed > rounds / 20 && rendered > rounds / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chats_as_reference),
        cmocka_unit_test(continued_as_reference),
        cmocka_unit_test(tools_as_reference),
        cmocka_unit_test(test_only_lists),
        cmocka_unit_test(test_short_ids),
        cmocka_unit_test(test_null_calls),
        cmocka_unit_test(test_thinking_parts),
        cmocka_unit_test(capabilities),
        cmocka_unit_test(control_of_runs),
        cmocka_unit_test(roles_in_control_tokens),
        cmocka_unit_test(strings_of_parts),
        cmocka_unit_test(strings_for_string_templates),
        cmocka_unit_test(refusals_name_the_message),
        cmocka_unit_test(folded_tool_results),
        cmocka_unit_test(loading),
        cmocka_unit_test(good_messages),
        cmocka_unit_test(image_references),
        cmocka_unit_test(bad_messages),
        cmocka_unit_test(shared_by_threads),
        cmocka_unit_test(mutated_messages),
    };
    return cmocka_run_group_tests(tests, load_cases, free_cases);
}

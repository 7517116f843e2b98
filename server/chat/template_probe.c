/* Detects a template's capabilities: at load, small conversations with marker strings are rendered and the
 * markers are searched for in the output. This is more reliable than parsing the template's source, and the
 * same for every family. */
#include "server/chat/template_internal.h"

#include <stdio.h>
#include <string.h>

#define USER "{\"role\":\"user\",\"content\":\"<<user>>\"}"
/* Templates for translation refuse parts without languages. */
#define LIST_USER_AND(more_)                                                                                 \
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<<user>>\",\"source_lang_code\":\"en\","  \
    "\"target_lang_code\":\"de\"}" more_ "]}"
#define LIST_USER      LIST_USER_AND("")
#define USER_OF(part_) "{\"role\":\"user\",\"content\":[" part_ "]}"
#define LIST_SYSTEM(more_)                                                                                   \
    "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"<<system>>\"},{\"type\":\"text\","      \
    "\"text\":\"<<more>>\"}" more_ "]}"
#define OBJECT "{\"key\":\"<<value>>\"}"
#define STRING "\"{\\\"key\\\":\\\"<<value>>\\\"}\""
#define TOOL_DECLARATION                                                                                     \
    "[{\"type\":\"function\",\"function\":{\"name\":\"<<tool>>\",\"description\":\"d\",\"parameters\":{"     \
    "\"type\":\"object\","                                                                                   \
    "\"properties\":"                                                                                        \
    "{\"x\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"x\"]}}}]"

struct probe {
    const struct jinja_template *t;
    const struct jinja_limits *limits;
    struct jinja_output out;
    bool ok;
    struct buf *written; /* see template_internal.h */
    enum status st;
};

/* With roles of the template's origin, as in a request. */
static struct jinja_value probe_messages(struct jinja_ctx *c, const json_t *messages)
{
    struct jinja_value list = jinja_list(c, JINJA_INPUT);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        struct jinja_value d = template_value(c, m, JINJA_INPUT);
        jinja_dict_set(c, d, "role", 4, template_value(c, json_object_get(m, "role"), JINJA_TEMPLATE));
        jinja_list_add(c, list, d);
    }
    return list;
}

static void keep_written(struct probe *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->out.run_count && !p->st; at += p->out.runs[i++].len) {
        bool own = p->out.runs[i].origin == JINJA_TEMPLATE;
        p->st = own ? buf_add(p->written, p->out.text + at, p->out.runs[i].len) : buf_add(p->written, "", 1);
    }
    if (!p->st) p->st = buf_add(p->written, "", 1);
}

/* Renders; p->out is the result if p->ok. */
static void render(struct probe *p, const char *messages, const char *tools)
{
    static const char *const specials[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    json_t *m = json_loads(messages, 0, NULL), *t = tools ? json_loads(tools, 0, NULL) : NULL;
    struct jinja_ctx *c = jinja_ctx_create(p->limits);
    struct jinja_error err;
    jinja_output_free(&p->out);
    p->ok = false;
    if (m && c && (t || !tools)) {
        for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
            jinja_set(c, specials[i], jinja_string(c, "", 0, JINJA_TEMPLATE));
        jinja_set(c, "messages", probe_messages(c, m));
        jinja_set(c, "tools", template_value(c, t, JINJA_INPUT));
        jinja_set(c, "documents", jinja_none());
        jinja_set(c, "add_generation_prompt", jinja_bool(true));
        p->ok = jinja_render(p->t, c, &p->out, &err) == ST_OK;
        if (p->ok) keep_written(p);
    }
    jinja_ctx_destroy(c);
    json_decref(m);
    json_decref(t);
}

static bool shows(const struct probe *p, const char *text)
{
    return p->ok && strstr(p->out.text, text) != NULL;
}

static bool mentions(const struct jinja_template *t, const char *word)
{
    size_t len;
    const char *src = jinja_source(t, &len);
    return memmem(src, len, word, strlen(word)) != NULL;
}

/* A call, its arguments as JSON, and what follows it. */
static void render_call(struct probe *p, bool null, const char *args, const char *more)
{
    char text[1000];
    snprintf(text, sizeof text,
             "[" USER ",{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[{\"id\":\"call_1\",\"type\":"
             "\"function\",\"function\":{\"name\":\"<<name>>\",\"arguments\":%s}}]}%s]",
             null ? "null" : "\"\"", args, more);
    render(p, text, NULL);
}

static void probe_null(struct probe *p, struct template_caps *caps)
{
    static const char *const args[] = {OBJECT, STRING};
    for (size_t i = 0; i < 2 && !caps->null_calls; i++) {
        render_call(p, false, args[i], "");
        size_t len = p->ok ? p->out.len : SIZE_MAX;
        bool shown = shows(p, "<<value>>");
        render_call(p, true, args[i], "");
        caps->null_calls =
            shows(p, "<<value>>") && p->out.len != len && !shows(p, "None") && !shows(p, "null");
        caps->only_null_calls = caps->null_calls && !shown;
    }
}

/* Whether such a part of a user's message shows beside a text, or alone if that is refused. */
static bool shows_part(struct probe *p, const char *beside, const char *alone)
{
    render(p, "[" LIST_USER "]", NULL);
    size_t len = p->out.len;
    render(p, beside, NULL);
    if (p->ok) return p->out.len > len;
    render(p, alone, NULL);
    return p->ok && p->out.len;
}

#define PART(type_) "{\"type\":\"" type_ "\"}"
static void probe_content(struct probe *p, struct template_caps *caps)
{
    caps->images = shows_part(p, "[" LIST_USER_AND("," PART("image")) "]", "[" USER_OF(PART("image")) "]");
    caps->videos = shows_part(p, "[" LIST_USER_AND("," PART("video")) "]", "[" USER_OF(PART("video")) "]");
    render(p, "[" LIST_USER "]", NULL);
    const char *first = p->ok ? strstr(p->out.text, "<<user>>") : NULL;
    caps->content_list = first && !strstr(first + 1, "<<user>>") && !strstr(p->out.text, "[{");
    render(p, "[" USER "]", NULL);
    caps->only_lists = caps->content_list && !shows(p, "<<user>>");
    /* Neither shows: a template that fails, or one for pairs, without users. Check the tree. */
    if (!first && !shows(p, "<<user>>"))
        caps->images = caps->videos = caps->content_list = jinja_iterates_content(p->t);
}

enum status template_probe(const struct jinja_template *t, const struct jinja_limits *limits,
                           struct template_caps *caps, struct buf *written)
{
    struct probe p = {.t = t, .limits = limits, .written = written};
    buf_init(written, SIZE_MAX / 4);
    *caps = (struct template_caps){.developer_role = mentions(t, "developer"),
                                   .short_ids = mentions(t, "id|length != 9"),
                                   .uses_time = jinja_reads(t, "strftime_now")};
    probe_content(&p, caps);
    render(&p, "[{\"role\":\"system\",\"content\":\"<<system>>\"}," USER "]", NULL);
    caps->system_role = shows(&p, "<<system>>");
    if (!p.ok) { /* a template that always fails tells nothing about system messages */
        render(&p, "[" USER "]", NULL);
        caps->system_role = !p.ok;
    }
    render(&p, "[" LIST_SYSTEM("") "," LIST_USER "]", NULL);
    caps->system_list = shows(&p, "<<system>>") && !strstr(p.out.text, "[{");
    caps->system_role = caps->system_role || (caps->only_lists && caps->system_list);
    size_t len = p.out.len;
    render(&p,
           "[" LIST_USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
           "\"<<think>>\"},{\"type\":\"text\",\"text\":\"x\"}]}]",
           NULL);
    caps->thinking_parts = caps->content_list && shows(&p, "<<think>>");
    render(&p, "[" LIST_SYSTEM(",{\"type\":\"image\"}") "," LIST_USER "]", NULL);
    caps->system_images = caps->system_list && p.ok && p.out.len > len;
    render(&p, "[" USER "]", TOOL_DECLARATION);
    caps->tools = shows(&p, "<<tool>>");
    probe_null(&p, caps);
    bool null = caps->null_calls;
    render_call(&p, null, OBJECT,
                ",{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"name\":\"<<name>>\",\"content\":"
                "\"<<result>>\"}");
    bool object = shows(&p, "<<value>>") && !strstr(p.out.text, "{'key'");
    caps->tool_role = shows(&p, "<<result>>");
    if (!p.ok || !object) {
        bool result = caps->tool_role;
        render_call(&p, null, OBJECT, "");
        object = shows(&p, "<<value>>") && !strstr(p.out.text, "{'key'");
        caps->tool_role = result;
    }
    render_call(&p, null, STRING, "");
    bool as_text = shows(&p, "{\"key\":\"<<value>>\"}");
    caps->tool_calls = object || as_text;
    caps->arguments_as_text = as_text && !object;
    caps->tool_responses = !caps->tool_role && mentions(t, "tool_responses");
    const char *source = jinja_source(t, &len);
    if (caps->tools) caps->calls = tool_syntax_taught(source, len);
    for (caps->reasoning = REASONING_MISTRAL; caps->reasoning != REASONING_THINK; caps->reasoning--)
        if (mentions(t, reasoning_open(caps->reasoning))) break;
    caps->think = mentions(t, reasoning_close(caps->reasoning));
    render(&p, "[" USER ",{\"role\":\"assistant\",\"content\":\"x\"}]", NULL);
    render(&p, "[{\"role\":\"developer\",\"content\":\"x\"}," USER "]", NULL);
    jinja_output_free(&p.out);
    return p.st;
}

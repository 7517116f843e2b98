/* See template.h: loading, and the render itself. */
#include "server/chat/template_internal.h"

#include "config/base/file.h"
#include "config/base/list.h"
#include "config/gguf/gguf.h"
#include "server/json/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEMPLATE_BYTES_MAX (4u << 20)
#define CONFIG_BYTES_MAX                                                                                     \
    (64u << 20) /* tokenizer_config.json lists the added tokens: a few MB in released checkpoints */
/* The reference's own marker; the trailing space detects whether the template trims. */
#define CONTINUE_TAG "CONTINUE_FINAL_MESSAGE_TAG "

/* ---- loading ---- */

static enum status make_variant(struct template_variant *v, const char *src, size_t len,
                                const struct jinja_limits *limits, struct err *err)
{
    struct jinja_error e;
    enum status st = jinja_parse(src, len, limits, &v->jinja, &e);
    if (st) return err_set(err, st, "chat template, line %u: %s", e.line, e.message);
    v->source = malloc(len ? len : 1);
    if (!v->source) return err_nomem(err, NULL);
    memcpy(v->source, src, len);
    v->source_len = len;
    return template_probe(v->jinja, limits, &v->caps, &v->written) ? err_nomem(err, NULL) : ST_OK;
}

enum status template_create(const char *source, size_t len, const char *tool_source, size_t tool_len,
                            const struct jinja_limits *limits, struct template **out, struct err *err)
{
    struct template *t = calloc(1, sizeof *t);
    if (!t) return err_nomem(err, NULL);
    t->limits = limits ? *limits : JINJA_LIMITS_DEFAULT;
    enum status st = make_variant(&t->plain, source, len, &t->limits, err);
    if (!st && tool_source) st = make_variant(&t->tools, tool_source, tool_len, &t->limits, err);
    if (st) {
        template_free(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void template_free(struct template *t)
{
    if (!t) return;
    for (struct template_variant *v = &t->plain; v; v = v == &t->plain ? &t->tools : NULL) {
        jinja_free(v->jinja);
        free(v->source);
        buf_fini(&v->written);
    }
    json_decref(t->kwargs);
    free(t);
}

enum status template_set_kwargs(struct template *t, const char *text, struct err *err)
{
    json_error_t je;
    json_t *all = json_loads(text, 0, &je);
    const char *key = NULL, *name;
    json_t *v;
    json_object_foreach(all, name, v)
        if (template_reserves(name)) key = name;
    if (json_is_object(all) && !key) {
        t->kwargs = all;
        return ST_OK;
    }
    enum status st = key ? err_set(err, ST_INVALID, "--chat-template-kwargs can't set '%s': requests do", key)
                         : err_set(err, ST_INVALID,
                                   "--chat-template-kwargs must be a JSON object, as in "
                                   "'{\"enable_thinking\": false}': %s",
                                   all ? "it is another value" : je.text);
    json_decref(all);
    return st;
}

const char *template_source(const struct template *t, size_t *len)
{
    *len = t->plain.source_len;
    return t->plain.source;
}

void template_guard(const struct template *t, struct tokenizer *tok)
{
    for (const struct template_variant *v = &t->plain; v; v = v == &t->plain ? &t->tools : NULL) {
        if (v->source) tok_guard(tok, v->source, v->source_len);
        if (v->written.data) tok_guard(tok, v->written.data, v->written.len);
    }
}

/* chat_template of a JSON file: a string, or a list of {name, template}. Borrowed from root. ST_NOT_FOUND if
 * there is none. */
static enum status pick_templates(const json_t *root, const json_t **plain, const json_t **tools,
                                  struct err *err)
{
    const json_t *v = json_object_get(root, "chat_template");
    *plain = *tools = NULL;
    if (json_is_string(v)) *plain = v;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i), *source = json_object_get(item, "template");
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || !json_is_string(source))
            return err_set(err, ST_FORMAT, "chat_template[%zu] is not {name, template}", i);
        if (strcmp(name, "default") == 0) *plain = source;
        if (strcmp(name, "tool_use") == 0) *tools = source;
    }
    if (v && !json_is_string(v) && !json_is_array(v) && !json_is_null(v))
        return err_set(err, ST_FORMAT, "chat_template has a wrong type");
    if (!*plain) return err_set(err, ST_NOT_FOUND, "no chat template");
    return ST_OK;
}

static enum status load_json(const char *dir, const char *name, struct template **out, struct err *err)
{
    char *text = NULL;
    size_t len = 0;
    json_error_t je;
    const json_t *plain, *tools;
    enum status st = file_text_in(dir, name, CONFIG_BYTES_MAX, NULL, &text, &len, err);
    if (st) return st;
    /* Integers as reals: "model_max_length" of a release is 10^30, which jansson refuses as an integer. */
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &je);
    free(text);
    if (!root) return err_set(err, ST_FORMAT, "%s/%s:%d: %s", dir, name, je.line, je.text);
    st = pick_templates(root, &plain, &tools, err);
    if (!st) {
        st = template_create(json_string_value(plain), json_string_length(plain), json_string_value(tools),
                             json_string_length(tools), NULL, out, err);
    }
    json_decref(root);
    return st ? err_prefix(err, st, "%s/%s", dir, name) : ST_OK;
}

static enum status load_source(const char *dir, struct template **out, struct err *err)
{
    static const char name[] = "chat_template.jinja",
                      tool_name[] = "additional_chat_templates/tool_use.jinja";
    char *text = NULL, *tool = NULL;
    size_t len = 0, tool_len = 0;
    enum status st = file_text_in(dir, name, TEMPLATE_BYTES_MAX, NULL, &text, &len, err);
    if (st) return st;
    st = file_text_in(dir, tool_name, TEMPLATE_BYTES_MAX, NULL, &tool, &tool_len, err);
    if (st == ST_NOT_FOUND) st = ST_OK;
    if (!st) {
        st = template_create(text, len, tool, tool_len, NULL, out, err);
        if (st) err_prefix(err, st, "%s/%s", dir, name);
    }
    free(text);
    free(tool);
    return st;
}

static enum status load_gguf(const char *model, struct template **out, struct err *err)
{
    struct gguf *g;
    struct gguf_text plain, tools = {NULL, 0};
    enum status st = gguf_open(model, &g, err);
    if (st) return st;
    (void)gguf_string(gguf_get(g, "tokenizer.chat_template.tool_use"), &tools);
    if (!gguf_string(gguf_get(g, "tokenizer.chat_template"), &plain)) st = ST_NOT_FOUND;
    else if ((st = template_create(plain.p, plain.len, tools.p, tools.len, NULL, out, err)))
        err_prefix(err, st, "%s: tokenizer.chat_template", model);
    gguf_close(g);
    return st;
}

enum status template_load(const char *dir, struct template **out, struct err *err)
{
    static const char *const files[] = {"chat_template.json", "tokenizer_config.json"};
    bool gguf = gguf_is(dir);
    enum status st = gguf ? load_gguf(dir, out, err) : load_source(dir, out, err);
    for (size_t i = 0; st == ST_NOT_FOUND && !gguf && i < 2; i++) st = load_json(dir, files[i], out, err);
    return st == ST_NOT_FOUND ? err_set(err, st, "%s: the checkpoint has no chat template", dir) : st;
}

enum status template_load_file(const char *path, struct template **out, struct err *err)
{
    char *text = NULL;
    size_t len = 0;
    enum status st = file_text_piped(path, TEMPLATE_BYTES_MAX, FILE_PIPE_MS, &text, &len, err);
    if (!st && (st = template_create(text, len, NULL, 0, NULL, out, err))) err_prefix(err, st, "%s", path);
    free(text);
    return st ? err_prefix(err, st == ST_NOT_FOUND ? ST_IO : st, "--chat-template") : ST_OK;
}

/* ---- rendering ---- */

uint32_t template_from(struct template_trace *t, enum jinja_origin origin,
                       const struct template_source *source)
{
    enum { SOURCES_MAX = 1 << 24 };
    if (!t->on || t->no_memory || t->count >= SOURCES_MAX) return origin;
    if (!LIST_RESERVE(t->list, t->cap, t->count + 1)) {
        t->no_memory = true; /* the render then fails as a whole */
        return origin;
    }
    t->list[t->count++] = *source;
    return JINJA_FROM(origin, t->count);
}

static const struct template_variant *variant_for(const struct template *t, bool with_tools)
{
    return with_tools && t->tools.jinja ? &t->tools : &t->plain;
}

const struct template_caps *template_caps(const struct template *t, bool with_tools)
{
    return &variant_for(t, with_tools)->caps;
}

/* Clients may send bare function objects; templates expect {"type": "function", "function": ...}. */
static struct jinja_value tools_value(struct jinja_ctx *c, const json_t *tools, struct template_trace *trace)
{
    if (!json_array_size(tools)) return jinja_none();
    uint32_t from = template_from(trace, JINJA_INPUT, &(struct template_source){.kind = TEMPLATE_TOOLS});
    struct jinja_value list = jinja_list(c, from);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        struct jinja_value v = template_value(c, tool, from);
        if (json_is_object(tool) && !json_object_get(tool, "function") && !json_object_get(tool, "type") &&
            json_object_get(tool, "name")) {
            struct jinja_value wrap = jinja_dict(c, from);
            jinja_dict_set(c, wrap, "type", 4, jinja_string(c, "function", 8, JINJA_OURS(from)));
            jinja_dict_set(c, wrap, "function", 8, v);
            v = wrap;
        } else if (json_is(json_object_get(tool, "type"), "function")) {
            jinja_dict_set(c, v, "type", 4, jinja_string(c, "function", 8, JINJA_OURS(from)));
        }
        jinja_list_add(c, list, v);
    }
    return list;
}

bool template_reserves(const char *name)
{
    static const char *const reserved[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(name, reserved[i]) == 0) return true;
    return false;
}

bool template_effort(const json_t *v)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (json_is(v, efforts[i])) return true;
    return false;
}

static enum status set_variables(struct jinja_ctx *c, const struct template *t,
                                 const struct template_variant *v, const struct template_request *rq,
                                 struct template_chat *chat, struct template_final *final_text,
                                 struct template_trace *trace, struct err *err)
{
    uint32_t from = template_from(trace, JINJA_INPUT, &(struct template_source){.kind = TEMPLATE_VARIABLES});
    const char *key;
    json_t *item, *kwargs = (json_t *)(uintptr_t)rq->kwargs; /* iteration does not modify it */
    for (size_t i = 0; i < rq->special_count; i++)
        jinja_set(c, rq->specials[i].name,
                  jinja_string(c, rq->specials[i].text, strlen(rq->specials[i].text), JINJA_TEMPLATE));
    json_object_foreach(t->kwargs, key, item) jinja_set(c, key, template_value(c, item, JINJA_TEMPLATE));
    json_object_foreach(kwargs, key, item) {
        if (template_reserves(key))
            return err_set(err, ST_INVALID, "chat_template_kwargs can't set '%s'", key);
        bool closed =
            (strcmp(key, "reasoning_effort") == 0 || strcmp(key, "verbosity") == 0) && template_effort(item);
        jinja_set(c, key, template_value(c, item, closed ? JINJA_OURS(from) : from));
    }
    enum status st = template_messages(c, &v->caps, rq, rq->continue_final_message ? CONTINUE_TAG : NULL,
                                       chat, final_text, trace, err);
    if (st) return st;
    jinja_set(c, "messages", chat->list);
    jinja_set(c, "tools", tools_value(c, rq->tools, trace));
    from = template_from(trace, JINJA_INPUT, &(struct template_source){.kind = TEMPLATE_DOCUMENTS});
    jinja_set(c, "documents", template_value(c, rq->documents, from));
    jinja_set(c, "add_generation_prompt", jinja_bool(rq->add_generation_prompt));
    if (rq->now) jinja_set_now(c, rq->now);
    return ST_OK;
}

/* Truncates the render at the end of the final message: at the last tag. If the template trimmed the message,
 * the rest is trimmed too. */
static enum status cut_at_tag(struct jinja_output *o, const struct template_final *f, struct err *err)
{
    const size_t tag_len = strlen(CONTINUE_TAG) - 1;
    size_t len = f->len, at = 0;
    const char *text = jinja_trim(f->text, &len, 3), *hit = NULL;
    for (const char *p = o->text, *end = o->text + o->len;
         (p = memmem(p, (size_t)(end - p), CONTINUE_TAG, tag_len)) != NULL; p++)
        hit = p;
    if (!hit || (len && !memmem(o->text, o->len, text, len)))
        return err_set(err, ST_INVALID,
                       "continue_final_message: the final message does not appear in the rendered chat");
    at = (size_t)(hit - o->text);
    if (at + tag_len >= o->len || o->text[at + tag_len] != ' ') jinja_trim(o->text, &at, 2);
    o->text[at] = '\0';
    o->len = at;
    return ST_OK;
}

static enum status to_runs(struct jinja_output *o, bool parse, struct template_trace *trace,
                           struct template_result *out, struct err *err)
{
    static const enum tok_control of[] = {[JINJA_TEMPLATE] = TOK_CONTROL_ALL,
                                          [JINJA_INPUT] = TOK_CONTROL_UNGUARDED,
                                          [JINJA_ASSISTANT] = TOK_CONTROL_NONSPECIAL};
    struct tok_run *runs = malloc((o->run_count + 1) * sizeof *runs);
    uint32_t *sources = trace->on ? malloc((o->run_count + 1) * sizeof *sources) : NULL;
    if (!runs || (trace->on && !sources) || trace->no_memory) {
        free(runs);
        free(sources);
        return err_nomem(err, NULL);
    }
    size_t n = 0, at = 0;
    for (size_t i = 0; i < o->run_count && at < o->len; i++) {
        size_t len =
            o->runs[i].len < o->len - at ? o->runs[i].len : o->len - at; /* the text may be truncated */
        enum tok_control control = parse ? TOK_CONTROL_ALL : of[o->runs[i].origin];
        if (n && runs[n - 1].control == control && (!sources || sources[n - 1] == o->runs[i].source)) {
            runs[n - 1].len += len;
        } else {
            if (sources) sources[n] = o->runs[i].source;
            runs[n++] = (struct tok_run){.text = o->text + at, .len = len, .control = control};
        }
        at += len;
    }
    *out = (struct template_result){.text = o->text,
                                    .len = o->len,
                                    .runs = runs,
                                    .run_count = n,
                                    .run_sources = sources,
                                    .sources = trace->list,
                                    .source_count = trace->count};
    o->text = NULL;
    trace->list = NULL;
    return ST_OK;
}

/* The message of the template's loop at the error; the number of messages if none. */
static size_t message_in_error(const struct jinja_ctx *c, const struct template_request *rq,
                               const struct template_chat *chat)
{
    size_t n = rq->messages->count, at = n;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        uint32_t level = jinja_error_loop(c, chat->each[i]);
        if (!level || level >= best) continue;
        best = level;
        at = i;
    }
    return at;
}

static enum status render_error(enum status st, const struct jinja_error *e, const struct template_caps *caps,
                                const struct template_request *rq, size_t at, struct err *err)
{
    /* Such templates usually report that roles must alternate, or an unknown role: no help to clients that
     * send tool results. */
    const struct chat_messages *m = rq->messages;
    bool lost = e->code == JINJA_RAISED && at < m->count && !caps->tool_role && !caps->tool_responses &&
                (m->list[at].role == CHAT_TOOL || m->list[at].role == CHAT_FUNCTION);
    if (e->code == JINJA_RAISED)
        err_set(err, st, "%.300s%s", e->message,
                lost ? " (this model's chat template has no place for results of tools: put them into a user "
                       "message)"
                     : "");
    else if (e->line) err_set(err, st, "line %u of the chat template: %.400s", e->line, e->message);
    else err_set(err, st, "chat template: %.400s", e->message);
    if (at >= m->count) return st;
    char place[64];
    chat_place_name(&m->list[at].at, "", place, sizeof place);
    if (!at) return err_prefix(err, st, "%s (role '%s')", place, chat_role_shown(m->list[at].role));
    return err_prefix(err, st, "%s (role '%s' after '%s')", place, chat_role_shown(m->list[at].role),
                      chat_role_shown(m->list[at - 1].role));
}

enum status template_render(const struct template *t, const struct template_request *rq,
                            struct template_result *out, struct err *err)
{
    const struct template_variant *v = variant_for(t, json_array_size(rq->tools) > 0);
    struct template_final final_text = {.text = "", .len = 0};
    struct template_trace trace = {.on = rq->trace};
    struct jinja_output o = {0};
    struct jinja_error e;
    if (rq->continue_final_message && rq->add_generation_prompt)
        return err_set(err, ST_INVALID,
                       "continue_final_message and add_generation_prompt exclude each other");
    struct template_chat chat = {.each = malloc((rq->messages->count + 1) * sizeof *chat.each)};
    struct jinja_ctx *c = chat.each ? jinja_ctx_create(&t->limits) : NULL;
    if (!c) {
        free(chat.each);
        return err_nomem(err, NULL);
    }
    enum status st = set_variables(c, t, v, rq, &chat, &final_text, &trace, err);
    if (!st) {
        st = jinja_render(v->jinja, c, &o, &e);
        if (st) render_error(st, &e, &v->caps, rq, message_in_error(c, rq, &chat), err);
    }
    if (!st && rq->continue_final_message) st = cut_at_tag(&o, &final_text, err);
    if (!st) st = to_runs(&o, rq->control_parse, &trace, out, err);
    free(trace.list);
    free(chat.each);
    jinja_output_free(&o);
    jinja_ctx_destroy(c);
    return st;
}

void template_result_free(struct template_result *r)
{
    free(r->text);
    free(r->runs);
    free(r->run_sources);
    free(r->sources);
    *r = (struct template_result){0};
}

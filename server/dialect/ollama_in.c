/* Ollama's bodies -> a chat request, or a completion. Worker thread. */
#include "server/dialect/ollama.h"
#include "server/dialect/reader.h"

#include "server/chat/template.h"

#include "engine/model/model_info.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

struct intake {
    struct chat_reader r;
    json_t *calls;   /* of the last assistant message; borrowed */
    size_t answered; /* index of the call after the last one with a result */
    unsigned ids;    /* made so far */
};

/* Base64 image text is moved, not copied: its place in the body is emptied. */
static enum status image(struct intake *t, json_t *list, size_t i, const char *suffix)
{
    char path[40];
    struct image_ref *ref;
    const char *text = json_string_value(json_array_get(list, i));
    snprintf(path, sizeof path, "%s[%zu]", suffix, i);
    if (!text) return chat_fault(&t->r, "invalid_type", path, "An image must be a string: a file in base64.");
    if (chat_image_add(&t->r, (uint32_t)i, false, path, "", &ref)) return ST_INVALID;
    /* Base64 has no colon: a URL. */
    json_t *url =
        strchr(text, ':') ? json_incref(json_array_get(list, i)) : json_sprintf("data:;base64,%s", text);
    bool ok =
        url && !arena_text(&t->r.out->arena, url, &ref->url) && !json_array_set_new(list, i, json_null());
    json_decref(url);
    return ok ? ST_OK : chat_no_memory(&t->r);
}

/* Images come before the text, as in Ollama's templates. images: the path of the list. */
static enum status content(struct intake *t, struct chat_message *m, json_t *text, json_t *list,
                           const char *images)
{
    size_t count = json_array_size(list);
    if (list && !json_is_array(list))
        return chat_fault(&t->r, "invalid_type", images, "Must be an array of strings.");
    if (text && !json_is_string(text))
        return chat_fault(&t->r, "invalid_type", ".content",
                          "Must be a string; images are in the field images.");
    for (size_t i = 0; i < count; i++)
        if (image(t, list, i, images)) return ST_INVALID;
    if ((!count || json_string_length(text)) && (text ? chat_text_add(&t->r, text, (uint32_t)count)
                                                      : chat_copy_add(&t->r, TEXT_OF(""), (uint32_t)count)))
        return ST_INVALID;
    return chat_one_text(&t->r, m, "\n");
}

static enum status calls(struct intake *t, json_t *list)
{
    if (list && !json_is_array(list))
        return chat_fault(&t->r, "invalid_type", ".tool_calls", "Must be an array.");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *call = json_array_get(list, i), *function = field(call, "function"), *id = field(call, "id");
        json_t *name = field(function, "name"), *arguments = field(function, "arguments");
        char path[64];
        snprintf(path, sizeof path, ".tool_calls[%zu].function", i);
        if (!json_is_string(name) || (arguments && (!json_is_object(arguments) || json_big_int(arguments))))
            return chat_fault(&t->r, "invalid_type", path,
                              "Must be an object with a name and arguments, which are an object.");
        id = json_is_string(id) ? json_incref(id) : json_sprintf("call%05u", ++t->ids);
        json_t *made = id ? chat_call_new(&t->r, id, name, arguments) : NULL;
        json_decref(id);
        if (chat_call_add(&t->r, made)) return ST_INVALID;
    }
    return ST_OK;
}

/* A result is that of the next call, or of the next one of the tool that it names. */
static json_t *result_of(struct intake *t, json_t *from)
{
    json_t *name = field(from, "tool_name"), *id = field(from, "tool_call_id"), *call = NULL;
    size_t n = json_array_size(t->calls);
    for (size_t i = 0; i < n && !call; i++) {
        size_t at = (t->answered + i) % n;
        json_t *one = json_array_get(t->calls, at);
        if (name && !json_equal(field(field(one, "function"), "name"), name)) continue;
        call = one;
        t->answered = at + 1;
    }
    return json_pack("{s:O*,s:O*}", "name", name ? name : field(field(call, "function"), "name"),
                     "tool_call_id", id ? id : field(call, "id"));
}

static enum status message(struct intake *t, json_t *from)
{
    enum chat_role role;
    struct chat_message *m;
    json_t *name = field(from, "role"), *thinking = field(from, "thinking");
    if (!json_is_object(from)) return chat_fault(&t->r, "invalid_type", "", "A message must be an object.");
    if (!chat_role_find(name, &role) || role == CHAT_FUNCTION)
        return chat_fault(&t->r, "invalid_value", ".role",
                          "Must be one of 'system', 'user', 'assistant', 'tool'.");
    if (chat_message_add(&t->r, role, &m) ||
        content(t, m, field(from, "content"), field(from, "images"), ".images"))
        return ST_INVALID;
    if (role == CHAT_TOOL && !(m->more = result_of(t, from))) return chat_no_memory(&t->r);
    if (role != CHAT_ASSISTANT) return ST_OK;
    struct text thoughts = json_text(thinking);
    if (thoughts.len && chat_reasoning_add(&t->r, thoughts)) return ST_INVALID;
    if (calls(t, field(from, "tool_calls"))) return ST_INVALID;
    t->calls = m->calls;
    t->answered = 0;
    return ST_OK;
}

static enum status messages(struct reader *r)
{
    struct intake t = {0};
    json_t *list = field(r->from, "messages");
    if (gen_read_begin(r->g, &t.r)) return ST_INVALID;
    if (!json_is_array(list)) return chat_fault(&t.r, "invalid_type", "", "Must be an array.");
    for (size_t i = 0; i < json_array_size(list); i++) {
        t.r.at.index = (int32_t)i;
        if (message(&t, json_array_get(list, i))) return ST_INVALID;
    }
    return ST_OK;
}

/* `system`, then `prompt` with `images`. */
static enum status prompt(struct reader *r)
{
    struct intake t = {0};
    struct chat_message *m;
    json_t *system = field(r->from, "system"), *text = field(r->from, "prompt");
    if (gen_read_begin(r->g, &t.r)) return ST_INVALID;
    if (json_string_length(system)) {
        t.r.at.field = "system";
        if (chat_message_add(&t.r, CHAT_SYSTEM, &m) || content(&t, m, system, NULL, "")) return ST_INVALID;
        t.r.at.field = "prompt";
    }
    if (chat_message_add(&t.r, CHAT_USER, &m)) return ST_INVALID;
    t.r.at.field = "images";
    return content(&t, m, text, field(r->from, "images"), "");
}

/* ---- fields ---- */

/* Those of the body, then of `options`. Ollama streams by default. */
static enum status fields(struct reader *r)
{
    json_t *from;
    r->g->q.stream = true;
    return reader_fields(r, API_OLLAMA) || reader_object(r, "options", &from) ||
                   gen_fields(r->g, from, API_OPTIONS, API_OPTIONS)
               ? ST_INVALID
               : ST_OK;
}

static enum status format(struct reader *r)
{
    json_t *v = field(r->from, "format");
    if (!v || json_is(v, "")) return ST_OK;
    if (json_is_object(v) && !json_big_int(v)) return gen_schema(r->g, v, "format", &r->g->q.format);
    if (!json_is(v, "json"))
        return api_fail(r->e, 400, "invalid_value", "format", "Must be \"json\" or a JSON schema.");
    r->g->q.format = (struct response_format){.kind = FORMAT_OBJECT, .param = "format"};
    return ST_OK;
}

static bool thinks(const struct generation *g)
{
    const struct template *tmpl = g->ctx->model->tmpl;
    return tmpl && template_caps(tmpl, json_array_size(g->q.tools) > 0)->think;
}

static enum status think(struct reader *r)
{
    struct generation *g = r->g;
    json_t *v = field(r->from, "think");
    struct reasoning_ask ask = {.variables = field(r->from, "chat_template_kwargs")};
    if (json_is_boolean(v)) ask.enabled = v;
    else ask.effort = v;
    if (ask.effort && !json_is_string(v))
        return api_fail(r->e, 400, "invalid_type", "think",
                        "Must be a boolean, or one of \"low\", \"medium\", \"high\".");
    if (gen_effort_check(g, ask.effort, "think") || gen_reasoning(g, &ask)) return ST_INVALID;
    if (!v || json_is_false(v) || json_is(v, "none") || thinks(g)) return ST_OK;
    return api_fail(r->e, 400, "unsupported_value", "think",
                    "This model (%s) does not support thinking: leave the field out.",
                    g->ctx->model->info->family);
}

/* ---- the whole ---- */

static enum status read_chat(struct generation *g, json_t *root)
{
    struct reader r = {.g = g, .e = g->e, .from = root};
    json_t *list = field(root, "messages");
    if (!(g->dialect_state = calloc(1, sizeof(struct ollama_state)))) return gen_nomem(r.g);
    if (!list || (json_is_array(list) && !json_array_size(list))) return ollama_loaded(g);
    if (fields(&r) || format(&r) || gen_parse_tools(g, root) || think(&r) || messages(&r) ||
        reader_resolve(&r, API_OLLAMA))
        return ST_INVALID;
    const struct chat_message *last = &g->q.messages.list[g->q.messages.count - 1];
    g->q.continue_final_message = last->role == CHAT_ASSISTANT && !last->calls && last->parts[0].text.len;
    g->q.add_generation_prompt = !g->q.continue_final_message;
    return gen_read_added(g);
}

/* With `raw` or `suffix` it is a completion, without the chat template. */
static enum status read_generate(struct generation *g, json_t *root)
{
    static const char *const refused[][2] = {{"template", "raw, with the whole text as prompt"},
                                             {"context", "/api/chat, with the messages so far"}};
    static const char *const texts[] = {"prompt", "system", "suffix"};
    struct reader r = {.g = g, .e = g->e, .from = root};
    bool raw = false, images = json_array_size(field(root, "images")) > 0;
    json_t *v;
    if (!(g->dialect_state = calloc(1, sizeof(struct ollama_state)))) return gen_nomem(r.g);
    if (reader_refuse(&r, refused, 2) || field_bool(r.e, root, "raw", &raw)) return ST_INVALID;
    for (size_t i = 0; i < 3; i++)
        if ((v = field(root, texts[i])) && !json_is_string(v))
            return api_fail(r.e, 400, "invalid_type", texts[i], "Must be a string.");
    raw = raw || json_string_length(field(root, "suffix"));
    if (!json_string_length(field(root, "prompt")) && !images) return ollama_loaded(g);
    if (raw && images)
        return api_fail(r.e, 400, "invalid_value", "images", "Can't be combined with raw or suffix.");
    if (fields(&r) || format(&r) || think(&r) || (!raw && prompt(&r)) || reader_resolve(&r, API_OLLAMA))
        return ST_INVALID;
    if (!raw) return gen_read_added(g);
    g->q.kind = GEN_COMPLETION;
    g->q.add_special_tokens = true;
    return gen_read_completion(g, field(root, "prompt"), field(root, "suffix"));
}

const struct dialect dialect_ollama_chat = {.read = read_chat,
                                            .source = "messages",
                                            .response = ollama_write_response,
                                            .delta = ollama_delta,
                                            .tail = ollama_tail,
                                            .error = ollama_error,
                                            .logprob = logprobs_entry};
const struct dialect dialect_ollama_generate = {.read = read_generate,
                                                .source = "prompt",
                                                .response = ollama_write_response,
                                                .delta = ollama_delta,
                                                .tail = ollama_tail,
                                                .error = ollama_error,
                                                .logprob = logprobs_entry};

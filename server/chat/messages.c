/* See chat/messages.h. */
#include "server/chat/messages.h"

#include "server/http/fields.h"
#include "server/http/json_in.h"
#include "server/http/limits.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Frames per second that a client may claim: beyond, times and positions mean nothing. */
#define VIDEO_FPS_MIN 0.01
#define VIDEO_FPS_MAX 240.0

enum role { ROLE_SYSTEM, ROLE_DEVELOPER, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_FUNCTION, ROLE_OTHER };
static const char *const role_names[] = {"system", "developer", "user", "assistant", "tool", "function"};

struct parser {
    const struct chat_limits *limits;
    struct api_error *err;
    struct image_ref *images;
    size_t image_count, image_cap, video_count, pieces;
    json_t *list;
    size_t at; /* message being parsed */
    enum role role;
    json_t *reasoning_text; /* of thinking parts of this message; owned */
};

static enum status oom(struct parser *p)
{
    api_error_set(p->err, 503, "out_of_memory", NULL, "The server is out of memory.");
    return ST_NOMEM;
}

/* A client's fault at messages[at]<suffix>. */
static enum status fault(struct parser *p, const char *code, const char *suffix, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static enum status fault(struct parser *p, const char *code, const char *suffix, const char *fmt, ...)
{
    char path[128], text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "messages[%zu]%s", p->at, suffix);
    api_error_set(p->err, 400, code, path, "%s", text);
    return ST_INVALID;
}

/* One more content part or tool call: each becomes several values. */
static enum status count_piece(struct parser *p, const char *suffix)
{
    if (++p->pieces <= LIMIT_PARTS) return ST_OK;
    return fault(p, "invalid_value", suffix, "There are more than %u content parts and tool calls.",
                 LIMIT_PARTS);
}

/* Sets a fresh reference; consumes value also on failure. */
static enum status set_new(struct parser *p, json_t *object, const char *key, json_t *value)
{
    return !value || json_object_set_new(object, key, value) ? oom(p) : ST_OK;
}

/* One more reference to a value of the body (jansson's signature lacks the const; the value itself does not
 * change). */
static json_t *share(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

/* json_copy, but NULL where it would leave members out for lack of memory. */
static json_t *copy_of(const json_t *object)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)object);
    if (copy && json_object_size(copy) == json_object_size(object)) return copy;
    json_decref(copy);
    return NULL;
}

static json_t *text_part(const json_t *text)
{
    return json_pack("{s:s,s:O}", "type", "text", "text", text);
}

/* ---- images ---- */

static enum status new_ref(struct parser *p, size_t part, const char *where, struct image_ref **out)
{
    char path[96];
    snprintf(path, sizeof path, ".content[%zu]", part);
    if (p->limits->text_only) return fault(p, "too_many_images", path, "This model takes no pictures.");
    if (p->image_count >= p->limits->images_max) {
        return fault(p, "too_many_images", path, "At most %zu image(s) may be provided in one prompt.",
                     p->limits->images_max);
    }
    if (p->image_count == p->image_cap) {
        size_t cap = p->image_cap ? p->image_cap * 2 : 4;
        struct image_ref *more = realloc(p->images, cap * sizeof *more);
        if (!more) return oom(p);
        p->images = more;
        p->image_cap = cap;
    }
    struct image_ref *ref = &p->images[p->image_count++];
    *ref = (struct image_ref){.message = (uint32_t)p->at, .part = (uint32_t)part};
    snprintf(ref->param, sizeof ref->param, "messages[%zu].content[%zu].%s", p->at, part, where);
    *out = ref;
    return ST_OK;
}

static enum status add_image(struct parser *p, const json_t *url, const json_t *detail, size_t part,
                             const char *where)
{
    static const char *const details[] = {"auto", "low", "high", "original"};
    char path[96];
    enum image_detail d = IMAGE_DETAIL_AUTO;
    snprintf(path, sizeof path, ".content[%zu].%s", part, where);
    if (!url || json_is_null(url))
        return fault(p, "missing_required_parameter", path, "An image part needs a URL.");
    if (!json_is_string(url)) return fault(p, "invalid_type", path, "The URL of an image must be a string.");
    if (detail && !json_is_null(detail)) {
        size_t i = 0;
        while (i < 4 && !json_is(detail, details[i])) i++;
        snprintf(path, sizeof path, ".content[%zu].%s", part,
                 strchr(where, '.') ? "image_url.detail" : "detail");
        if (i == 4)
            return fault(p, json_is_string(detail) ? "invalid_value" : "invalid_type", path,
                         "The detail of an image must be one of 'auto', 'low', 'high', 'original'.");
        d = (enum image_detail)i;
    }
    struct image_ref *ref;
    enum status st = new_ref(p, part, where, &ref);
    if (st) return st;
    ref->url = json_string_value(url);
    ref->url_len = json_string_length(url);
    ref->detail = d;
    return ST_OK;
}

/* image_url: {"image_url": {"url", "detail"}} or {"image_url": "url"}; input_image: the latter; image:
 * {"image": "url"} or
 * {"url": ...}. */
static enum status image_part(struct parser *p, const json_t *part, size_t idx)
{
    const json_t *u = json_object_get(part, "image_url"), *detail = json_object_get(part, "detail"), *other;
    if (json_is_object(u)) {
        if (json_object_get(u, "detail")) detail = json_object_get(u, "detail");
        return add_image(p, json_object_get(u, "url"), detail, idx, "image_url.url");
    }
    if (u || !json_is(json_object_get(part, "type"), "image"))
        return add_image(p, u, detail, idx, "image_url");
    other = json_object_get(part, "image");
    if (json_is_object(other)) return add_image(p, json_object_get(other, "url"), detail, idx, "image.url");
    return other ? add_image(p, other, detail, idx, "image")
                 : add_image(p, json_object_get(part, "url"), detail, idx, "url");
}

/* video_url: {"video_url": {"url", "fps"}} or {"video_url": "url"}; video: {"video": "url"} or {"video":
 * {"url", "fps"}}. Instead of a URL an array of them: the frames as pictures. fps may stand in the part as
 * well. */
static enum status video_part(struct parser *p, const json_t *part, size_t idx, const char *type)
{
    const char *field = strcmp(type, "video") == 0 ? "video" : "video_url";
    const json_t *v = json_object_get(part, field), *fps = json_object_get(part, "fps"), *url = v;
    char where[32], path[96];
    snprintf(where, sizeof where, "%s%s", field, json_is_object(v) ? ".url" : "");
    snprintf(path, sizeof path, ".content[%zu].%s", idx, where);
    if (json_is_object(v)) {
        url = json_object_get(v, "url");
        if (json_object_get(v, "fps")) fps = json_object_get(v, "fps");
    }
    size_t frames = json_is_array(url) ? json_array_size(url) : 0;
    if (!url || json_is_null(url))
        return fault(p, "missing_required_parameter", path, "A video part needs a URL.");
    if (!json_is_string(url) && !json_is_array(url))
        return fault(p, "invalid_type", path, "A video must be a URL or an array of image URLs, its frames.");
    if (json_is_array(url) && !frames) return fault(p, "empty_array", path, "The video has no frames.");
    for (size_t i = 0; i < frames; i++)
        if (!json_is_string(json_array_get(url, i)))
            return fault(p, "invalid_type", path, "The frames of a video must be URL strings.");
    snprintf(path, sizeof path, ".content[%zu].fps", idx);
    if (fps && !json_is_null(fps) && !json_is_number(fps))
        return fault(p, "invalid_type", path, "fps must be a number.");
    double n = fps && !json_is_null(fps) ? json_number_value(fps) : 0.0;
    if (fps && !json_is_null(fps) && !(n >= VIDEO_FPS_MIN && n <= VIDEO_FPS_MAX))
        return fault(p, "invalid_value", path, "fps must be a number from %g to %g.", VIDEO_FPS_MIN,
                     VIDEO_FPS_MAX);
    if (p->video_count >= p->limits->videos_max) {
        snprintf(path, sizeof path, ".content[%zu]", idx);
        return fault(p, "too_many_videos", path, "At most %zu video(s) may be provided in one prompt.",
                     p->limits->videos_max);
    }
    struct image_ref *ref;
    enum status st = new_ref(p, idx, where, &ref);
    if (st) return st;
    p->video_count++;
    ref->video = true;
    ref->fps = n;
    if (frames) {
        ref->frames = url;
    } else {
        ref->url = json_string_value(url);
        ref->url_len = json_string_length(url);
    }
    return ST_OK;
}

/* ---- content parts ---- */

enum part_kind { PART_TEXT, PART_REFUSAL, PART_REASONING, PART_IMAGE, PART_VIDEO, PART_UNSUPPORTED };
static enum part_kind kind_of_part(const char *type, const char **field)
{
    static const struct {
        const char *type, *field;
        enum part_kind kind;
    } kinds[] = {{"text", "text", PART_TEXT},
                 {"input_text", "text", PART_TEXT},
                 {"output_text", "text", PART_TEXT},
                 {"refusal", "refusal", PART_REFUSAL},
                 {"thinking", "thinking", PART_REASONING},
                 {"reasoning", "reasoning", PART_REASONING},
                 {"image_url", "", PART_IMAGE},
                 {"input_image", "", PART_IMAGE},
                 {"image", "", PART_IMAGE},
                 {"video_url", "", PART_VIDEO},
                 {"video", "", PART_VIDEO}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].type) != 0) continue;
        *field = kinds[i].field;
        return kinds[i].kind;
    }
    return PART_UNSUPPORTED;
}

static enum status text_of(struct parser *p, const json_t *part, size_t idx, const char *field,
                           const json_t **out)
{
    char path[96];
    *out = json_object_get(part, field);
    if (!*out && strcmp(field, "reasoning") == 0) *out = json_object_get(part, "thinking");
    snprintf(path, sizeof path, ".content[%zu].%s", idx, field);
    if (!*out || json_is_null(*out))
        return fault(p, "missing_required_parameter", path, "The content part has no '%s'.", field);
    if (!json_is_string(*out))
        return fault(p, "invalid_type", path, "'%s' of a content part must be a string.", field);
    return ST_OK;
}

static enum status add_reasoning(struct parser *p, const json_t *text)
{
    const char *old = p->reasoning_text ? json_string_value(p->reasoning_text) : "";
    size_t a = p->reasoning_text ? json_string_length(p->reasoning_text) : 0, b = json_string_length(text);
    char *both = malloc(a + b + 1);
    if (!both) return oom(p);
    memcpy(both, old, a);
    memcpy(both + a, json_string_value(text), b);
    json_t *joined = json_stringn_nocheck(both, a + b);
    free(both);
    if (!joined) return oom(p);
    json_decref(p->reasoning_text);
    p->reasoning_text = joined;
    return ST_OK;
}

static enum status append_part(struct parser *p, json_t *parts, json_t *part)
{
    return !part || json_array_append_new(parts, part) ? oom(p) : ST_OK;
}

static enum status parse_part(struct parser *p, const json_t *part, size_t idx, json_t *parts)
{
    char path[64];
    const char *type, *field;
    const json_t *text;
    snprintf(path, sizeof path, ".content[%zu]", idx);
    if (count_piece(p, path)) return ST_INVALID;
    if (json_is_string(part))
        return append_part(p, parts, text_part(part)); /* some clients send bare strings */
    if (!json_is_object(part)) return fault(p, "invalid_type", path, "A content part must be an object.");
    type = json_string_value(json_object_get(part, "type"));
    if (!type && !json_object_get(part, "type"))
        type = json_object_get(part, "image_url") ? "image_url"
               : json_object_get(part, "text")    ? "text"
                                                  : NULL;
    snprintf(path, sizeof path, ".content[%zu].type", idx);
    if (!type && json_object_get(part, "type"))
        return fault(p, "invalid_type", path, "The type of a content part must be a string.");
    if (!type) return fault(p, "missing_required_parameter", path, "The content part has no type.");
    bool said = json_object_get(part, "type") != NULL;
    enum part_kind kind =
        said && !json_is(json_object_get(part, "type"), type) ? PART_UNSUPPORTED : kind_of_part(type, &field);
    bool assistant = p->role == ROLE_ASSISTANT;
    if (kind == PART_UNSUPPORTED || (kind == PART_VIDEO && !p->limits->videos_max))
        return fault(p, "unsupported_content_part", path, "Content parts of type '%.60s' are not supported.",
                     type);
    if (assistant ? kind == PART_IMAGE || kind == PART_VIDEO : kind == PART_REFUSAL || kind == PART_REASONING)
        return fault(p, "invalid_value", path,
                     "Content parts of type '%.60s' are not allowed in a message of this role.", type);
    if (kind == PART_IMAGE || kind == PART_VIDEO) {
        enum status st = kind == PART_IMAGE ? image_part(p, part, idx) : video_part(p, part, idx, type);
        json_t *image = st ? NULL : json_pack("{s:s}", "type", kind == PART_IMAGE ? "image" : "video");
        return st ? st : append_part(p, parts, image);
    }
    enum status st = text_of(p, part, idx, field, &text);
    if (st) return st;
    return kind == PART_REASONING ? add_reasoning(p, text) : append_part(p, parts, text_part(text));
}

/* All parts are texts: one string with newlines between them. NULL: out of memory. */
static json_t *join_parts(const json_t *parts)
{
    size_t len = 0, n = json_array_size(parts), at = 0;
    for (size_t i = 0; i < n; i++)
        len += json_string_length(json_object_get(json_array_get(parts, i), "text")) + 1;
    char *buf = malloc(len + 1);
    if (!buf) return NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_object_get(json_array_get(parts, i), "text");
        if (i) buf[at++] = '\n';
        memcpy(buf + at, json_string_value(t), json_string_length(t));
        at += json_string_length(t);
    }
    json_t *out = json_stringn_nocheck(buf, at);
    free(buf);
    return out;
}

static bool has_image(const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!json_object_get(json_array_get(parts, i), "text")) return true;
    return false;
}

static enum status parse_content(struct parser *p, const json_t *content, json_t *out)
{
    if (json_is_string(content)) return set_new(p, out, "content", share(content));
    if (!content || json_is_null(content)) {
        if (p->role == ROLE_ASSISTANT || p->role == ROLE_FUNCTION || p->role == ROLE_OTHER)
            return set_new(p, out, "content", json_string(""));
        if (!content)
            return fault(p, "missing_required_parameter", ".content", "The message has no content.");
        return fault(p, "invalid_type", ".content",
                     "The content of this message must be a string or an array of parts, not null.");
    }
    if (!json_is_array(content))
        return fault(p, "invalid_type", ".content",
                     "The content of a message must be a string or an array of parts.");
    if (!json_array_size(content) && p->role != ROLE_ASSISTANT)
        return fault(p, "empty_array", ".content", "The content array is empty.");
    json_t *parts = json_array();
    if (!parts) return oom(p);
    enum status st = ST_OK;
    for (size_t i = 0; i < json_array_size(content) && !st; i++)
        st = parse_part(p, json_array_get(content, i), i, parts);
    if (st) {
        json_decref(parts);
        return st;
    }
    bool join = (p->role == ROLE_TOOL || p->role == ROLE_FUNCTION) && !has_image(parts);
    if (!join && json_array_size(parts)) return set_new(p, out, "content", parts);
    json_t *text = join_parts(parts);
    json_decref(parts);
    return set_new(p, out, "content", text);
}

/* ---- tool calls ---- */

/* Arguments come as JSON text; templates iterate over an object. What does not parse stays text. */
static enum status set_arguments(struct parser *p, json_t *function, const json_t *args)
{
    if (p->limits->arguments_as_text)
        return set_new(p, function, "arguments", args ? share(args) : json_string(""));
    if (!args || json_is_null(args) || (json_is_string(args) && !json_string_length(args)))
        return set_new(p, function, "arguments", json_object());
    json_t *parsed = NULL;
    const char *text = json_string_value(args);
    if (text && json_from_text(text, json_string_length(args), &parsed) == ST_NOMEM) return oom(p);
    if (parsed && (!json_is_object(parsed) || json_big_int(parsed))) {
        json_decref(parsed);
        parsed = NULL;
    }
    return set_new(p, function, "arguments", parsed ? parsed : share(args));
}

static enum status parse_function(struct parser *p, const json_t *f, const char *path, json_t **out)
{
    char where[96];
    snprintf(where, sizeof where, "%s.name", path);
    if (!json_is_object(f))
        return fault(p, f ? "invalid_type" : "missing_required_parameter", path,
                     "A function call must be an object.");
    const json_t *name = json_object_get(f, "name"), *args = json_object_get(f, "arguments");
    if (!name) return fault(p, "missing_required_parameter", where, "The function call has no name.");
    if (!json_is_string(name))
        return fault(p, "invalid_type", where, "The name of a function must be a string.");
    snprintf(where, sizeof where, "%s.arguments", path);
    if (args &&
        ((!json_is_string(args) && !json_is_object(args) && !json_is_null(args)) || json_big_int(args)))
        return fault(p, "invalid_type", where, "The arguments of a function must be a string.");
    json_t *copy = copy_of(f);
    if (!copy) return oom(p);
    enum status st = set_arguments(p, copy, args);
    if (st) {
        json_decref(copy);
        return st;
    }
    *out = copy;
    return ST_OK;
}

static enum status parse_tool_calls(struct parser *p, const json_t *calls, json_t *out)
{
    if (!calls || json_is_null(calls)) return ST_OK;
    if (!json_is_array(calls))
        return fault(p, "invalid_type", ".tool_calls", "'tool_calls' must be an array.");
    if (!json_array_size(calls)) return ST_OK;
    json_t *list = json_array();
    if (set_new(p, out, "tool_calls", list)) return ST_NOMEM;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char path[64];
        json_t *call = json_array_get(calls, i), *function = NULL;
        snprintf(path, sizeof path, ".tool_calls[%zu]", i);
        if (count_piece(p, path)) return ST_INVALID;
        if (!json_is_object(call)) return fault(p, "invalid_type", path, "A tool call must be an object.");
        snprintf(path, sizeof path, ".tool_calls[%zu].function", i);
        enum status st = parse_function(p, json_object_get(call, "function"), path, &function);
        if (st) return st;
        json_t *copy = copy_of(call);
        if (!copy || json_object_set_new(copy, "function", function)) {
            if (!copy) json_decref(function);
            json_decref(copy);
            return oom(p);
        }
        if (json_array_append_new(list, copy)) return oom(p);
    }
    return ST_OK;
}

/* function_call of old clients: one call. */
static enum status parse_function_call(struct parser *p, const json_t *f, json_t *out)
{
    json_t *function = NULL;
    if (!f || json_is_null(f) || json_object_get(out, "tool_calls")) return ST_OK;
    enum status st = parse_function(p, f, ".function_call", &function);
    if (st) return st;
    json_t *calls = json_pack("[{s:s,s:O}]", "type", "function", "function", function);
    json_decref(function);
    return set_new(p, out, "tool_calls", calls);
}

/* ---- messages ---- */

static enum status parse_role(struct parser *p, const json_t *role)
{
    if (!role) return fault(p, "missing_required_parameter", ".role", "The message has no role.");
    if (!json_is_string(role))
        return fault(p, "invalid_type", ".role", "The role of a message must be a string.");
    size_t i = 0;
    while (i < ROLE_OTHER && !json_is(role, role_names[i])) i++;
    if (i == ROLE_OTHER && !p->limits->allow_any_role)
        return fault(p, "invalid_value", ".role",
                     "'%.60s' is not one of 'system', 'developer', 'user', 'assistant', 'tool', 'function'.",
                     json_string_value(role));
    p->role = (enum role)i;
    return ST_OK;
}

static enum status assistant_extras(struct parser *p, const json_t *m, json_t *out)
{
    const json_t *audio = json_object_get(m, "audio"), *refusal = json_object_get(m, "refusal"),
                 *reasoning = json_object_get(m, "reasoning");
    if (audio && !json_is_null(audio))
        return fault(p, "unsupported_parameter", ".audio", "Audio of earlier answers is not supported.");
    enum status st = parse_tool_calls(p, json_object_get(m, "tool_calls"), out);
    if (!st) st = parse_function_call(p, json_object_get(m, "function_call"), out);
    if (st) return st;
    if (json_is_string(refusal) && json_is_string(json_object_get(out, "content")) &&
        !json_string_length(json_object_get(out, "content")))
        st = set_new(p, out, "content", share(refusal));
    if (!st && !json_is_string(reasoning)) reasoning = json_object_get(m, "reasoning_content");
    if (!st && !json_is_string(reasoning)) reasoning = p->reasoning_text;
    if (!st && json_is_string(reasoning)) st = set_new(p, out, "reasoning_content", share(reasoning));
    return st;
}

/* Keys that were handled; all others are copied. */
static bool is_known(const char *key)
{
    static const char *const known[] = {"role",    "content",   "tool_calls",        "function_call", "audio",
                                        "refusal", "reasoning", "reasoning_content", "thinking"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i]) == 0) return true;
    return false;
}

static enum status parse_message(struct parser *p, const json_t *m, json_t *out)
{
    const char *key;
    json_t *v, *object = (json_t *)(uintptr_t)m;
    if (!json_is_object(m)) return fault(p, "invalid_type", "", "A message must be an object.");
    enum status st = parse_role(p, json_object_get(m, "role"));
    if (st) return st;
    const json_t *name = json_object_get(m, "name"), *id = json_object_get(m, "tool_call_id");
    if (name && !json_is_string(name) && !json_is_null(name))
        return fault(p, "invalid_type", ".name", "The name of a participant must be a string.");
    if (p->role == ROLE_TOOL && !id)
        return fault(p, "missing_required_parameter", ".tool_call_id",
                     "A tool message needs a 'tool_call_id'.");
    if (p->role == ROLE_TOOL && !json_is_string(id))
        return fault(p, "invalid_type", ".tool_call_id", "'tool_call_id' must be a string.");
    if (p->role == ROLE_FUNCTION && !json_is_string(name))
        return fault(p, name ? "invalid_type" : "missing_required_parameter", ".name",
                     "A function message needs a 'name'.");
    st = set_new(p, out, "role",
                 p->role == ROLE_FUNCTION ? json_string("tool") : json_incref(json_object_get(m, "role")));
    if (!st) st = parse_content(p, json_object_get(m, "content"), out);
    if (!st && p->role == ROLE_ASSISTANT) st = assistant_extras(p, m, out);
    if (st) return st;
    json_object_foreach(object, key, v)
    {
        if (!is_known(key) && !json_is_null(v) && json_object_set(out, key, v)) return oom(p);
    }
    return ST_OK;
}

static enum status parse_list(struct parser *p, const json_t *messages)
{
    size_t n = json_array_size(messages), max = p->limits->messages_max ? p->limits->messages_max : 100000;
    if (!json_is_array(messages)) {
        api_error_set(p->err, 400, messages ? "invalid_type" : "missing_required_parameter", "messages",
                      messages ? "'messages' must be an array." : "'messages' is missing.");
        return ST_INVALID;
    }
    if (!n || n > max) {
        api_error_set(p->err, 400, n ? "invalid_value" : "empty_array", "messages",
                      n ? "There are more than %zu messages." : "'messages' is empty.", max);
        return ST_INVALID;
    }
    p->list = json_array();
    if (!p->list) return oom(p);
    for (p->at = 0; p->at < n; p->at++) {
        json_t *out = json_object();
        if (!out || json_array_append_new(p->list, out)) return oom(p);
        json_decref(p->reasoning_text);
        p->reasoning_text = NULL;
        enum status st = parse_message(p, json_array_get(messages, p->at), out);
        if (st) return st;
    }
    return ST_OK;
}

enum status chat_messages_parse(const json_t *messages, const struct chat_limits *limits,
                                struct chat_messages *out, struct api_error *err)
{
    struct parser p = {.limits = limits, .err = err};
    enum status st = parse_list(&p, messages);
    json_decref(p.reasoning_text);
    struct chat_messages m = {.list = p.list, .images = p.images, .image_count = p.image_count};
    if (st) chat_messages_free(&m);
    else *out = m;
    return st;
}

void chat_messages_free(struct chat_messages *m)
{
    json_decref(m->list);
    free(m->images);
    *m = (struct chat_messages){0};
}

/* See chat/messages.h. */
#include "server/chat/messages.h"

#include "config/base/buf.h"
#include "config/base/list.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/context/limits.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Maximum frames per second: above that, times and positions are meaningless. */
#define VIDEO_FPS_MIN 0.01
#define VIDEO_FPS_MAX 240.0

static const char *const role_names[] = {"system", "developer", "user",  "assistant",
                                         "tool",   "function",  "query", "document"};

const char *chat_role_name(enum chat_role role)
{
    return role_names[role];
}

bool chat_role_find(const json_t *name, enum chat_role *out)
{
    size_t i = 0, n = CHAT_QUERY;
    while (i < n && !json_is(name, role_names[i])) i++;
    *out = (enum chat_role)i;
    return i < n;
}

const char *chat_role_shown(enum chat_role role)
{
    return role_names[role == CHAT_FUNCTION ? CHAT_TOOL : role];
}

static void drop_parts(struct chat_message *m)
{
    for (; m->part_count; m->part_count--) json_decref(m->parts[m->part_count - 1].more);
}

void chat_message_drop(struct chat_messages *m)
{
    struct chat_message *last = &m->list[--m->count];
    drop_parts(last);
    free(last->parts);
    buf_fini(&last->reasoning);
    json_decref(last->calls);
    json_decref(last->more);
}

void chat_messages_free(struct chat_messages *m)
{
    while (m->count) chat_message_drop(m);
    free(m->list);
    free(m->images);
    arena_free(&m->arena);
    *m = (struct chat_messages){0};
}

bool image_ref_same(const struct image_ref *a, const struct image_ref *b)
{
    return a->url.data == b->url.data && a->frame_count == b->frame_count &&
           (!a->frames || a->frames == b->frames || a->frames[0].data == b->frames[0].data);
}

/* ---- shared by all readers ---- */

enum status chat_no_memory(struct chat_reader *r)
{
    (void)api_nomem(r->err);
    return ST_NOMEM;
}

void chat_place_name(const struct chat_place *at, const char *suffix, char *out, size_t cap)
{
    char index[16] = "";
    if (at->index >= 0) snprintf(index, sizeof index, "[%d]", at->index);
    snprintf(out, cap, "%s%s%s", at->field, index, at->whole ? "" : suffix);
}

enum status chat_fault_at(struct chat_reader *r, const char *code, const char *path, const char *key,
                          const char *fmt, ...)
{
    char suffix[128], where[160], text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(suffix, sizeof suffix, "%s%s", path, key);
    chat_place_name(&r->at, suffix, where, sizeof where);
    return api_fail(r->err, 400, code, where, "%s", text);
}

enum status chat_string(struct chat_reader *r, const json_t *object, const char *path, const char *key,
                        json_t **out)
{
    char name[40];
    *out = field((json_t *)(uintptr_t)object, key);
    snprintf(name, sizeof name, ".%s", key);
    if (!*out) return chat_fault_at(r, "missing_required_parameter", path, name, "'%s' is missing.", key);
    return json_is_string(*out) ? ST_OK
                                : chat_fault_at(r, "invalid_type", path, name, "'%s' must be a string.", key);
}

enum status chat_count(struct chat_reader *r, const char *path, size_t n)
{
    r->part_count += n;
    if (r->part_count <= LIMIT_PARTS) return ST_OK;
    return chat_fault(r, "invalid_value", path, "There are more than %u items, content parts and tool calls.",
                      LIMIT_PARTS);
}

enum status chat_message_add(struct chat_reader *r, enum chat_role role, struct chat_message **out)
{
    struct chat_messages *m = r->out;
    size_t max = r->limits.messages_max ? r->limits.messages_max : 100000;
    if (m->count >= max)
        return api_fail(r->err, 400, "invalid_value", r->at.field, "There are more than %zu messages.", max);
    if (!LIST_RESERVE(m->list, m->cap, m->count + 1)) return chat_no_memory(r);
    *out = &m->list[m->count++];
    **out = (struct chat_message){.role = role, .at = r->at};
    buf_init(&(*out)->reasoning, SIZE_MAX / 4);
    return ST_OK;
}

static struct chat_message *last_message(const struct chat_reader *r)
{
    return &r->out->list[r->out->count - 1];
}

static enum status part_add(struct chat_reader *r, struct chat_message *m, struct chat_part part)
{
    if (!LIST_RESERVE(m->parts, m->part_cap, m->part_count + 1)) return chat_no_memory(r);
    m->parts[m->part_count++] = part;
    return ST_OK;
}

enum status chat_text_add(struct chat_reader *r, const json_t *text, uint32_t number)
{
    struct chat_part part = {.number = number};
    if (arena_text(&r->out->arena, text, &part.text)) return chat_no_memory(r);
    return part_add(r, last_message(r), part);
}

enum status chat_copy_add(struct chat_reader *r, struct text text, uint32_t number)
{
    struct chat_part part = {.number = number};
    if (arena_copy(&r->out->arena, text.data, text.len, &part.text)) return chat_no_memory(r);
    return part_add(r, last_message(r), part);
}

enum status chat_reasoning_add(struct chat_reader *r, struct text text)
{
    struct chat_message *m = last_message(r);
    m->reasons = true;
    return buf_add(&m->reasoning, text.data, text.len) ? chat_no_memory(r) : ST_OK;
}

enum status chat_call_add(struct chat_reader *r, json_t *call)
{
    struct chat_message *m = last_message(r);
    if (!m->calls) m->calls = json_array();
    return !call || json_array_append_new(m->calls, call) ? chat_no_memory(r) : ST_OK;
}

enum status chat_one_text(struct chat_reader *r, struct chat_message *m, const char *between)
{
    size_t count = m->part_count, gap = strlen(between), len = 0;
    m->list = true;
    for (size_t i = 0; i < count; i++) {
        if (!m->parts[i].text.data) return ST_OK;
        len += m->parts[i].text.len + (i ? gap : 0);
    }
    m->list = false;
    if (count == 1) return ST_OK;
    char *all = arena_alloc(&r->out->arena, len + 1, 1), *at = all;
    if (!all) return chat_no_memory(r);
    for (size_t i = 0; i < count; i++) {
        const struct text *text = &m->parts[i].text;
        if (i) at = mempcpy(at, between, gap);
        at = mempcpy(at, text->data, text->len);
    }
    drop_parts(m);
    return part_add(r, m, (struct chat_part){.text = {all, len}});
}

/* One more reference to a value of the body (jansson's signature lacks the const; the value itself does not
 * change). */
static json_t *share(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

/* A copy of the object with a member added or replaced; consumes value. NULL: out of memory. */
static json_t *copy_with(const json_t *object, const char *key, json_t *value)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)object);
    bool ok = copy && value && json_object_size(copy) == json_object_size(object);
    if (ok && !json_object_set(copy, key, value)) {
        json_decref(value);
        return copy;
    }
    json_decref(value);
    json_decref(copy);
    return NULL;
}

/* ---- images ---- */

enum status chat_image_add(struct chat_reader *r, uint32_t number, bool video, const char *suffix,
                           const char *url, struct image_ref **out)
{
    struct chat_messages *m = r->out;
    char path[64];
    if (r->limits.text_only)
        return chat_fault(
            r, "images_unsupported", suffix,
            "This model takes no images. (A GGUF model takes them if the server is started with "
            "its --mmproj file.)");
    if (r->images >= r->limits.images_max)
        return chat_fault(r, "too_many_images", suffix, "At most %zu image(s) may be provided in one prompt.",
                          r->limits.images_max);
    if (!LIST_RESERVE(m->images, m->image_cap, m->image_count + 1)) return chat_no_memory(r);
    if (part_add(r, last_message(r), (struct chat_part){.video = video, .number = number})) return ST_NOMEM;
    r->images++;
    *out = &m->images[m->image_count++];
    **out = (struct image_ref){.video = video, .message = (uint32_t)m->count - 1, .part = number};
    snprintf(path, sizeof path, "%s%s", suffix, url);
    chat_place_name(&r->at, path, (*out)->param, sizeof(*out)->param);
    return ST_OK;
}

/* The current content part: its index, and its path ".content[2]". */
struct part_at {
    uint32_t number;
    char path[40];
};

static enum status add_image(struct chat_reader *r, const json_t *url, const json_t *detail,
                             const struct part_at *at, const char *where)
{
    static const char *const details[] = {"auto", "low", "high", "original"};
    size_t d = 0;
    if (!url || json_is_null(url))
        return chat_fault_at(r, "missing_required_parameter", at->path, where, "An image part needs a URL.");
    if (!json_is_string(url))
        return chat_fault_at(r, "invalid_type", at->path, where, "The URL of an image must be a string.");
    if (detail && !json_is_null(detail)) {
        while (d < 4 && !json_is(detail, details[d])) d++;
        if (d == 4)
            return chat_fault_at(r, json_is_string(detail) ? "invalid_value" : "invalid_type", at->path,
                                 strchr(where + 1, '.') ? ".image_url.detail" : ".detail",
                                 "The detail of an image must be one of 'auto', 'low', 'high', 'original'.");
    }
    struct image_ref *ref;
    enum status st = chat_image_add(r, at->number, false, at->path, where, &ref);
    if (st) return st;
    ref->detail = (enum image_detail)d;
    return arena_text(&r->out->arena, url, &ref->url) ? chat_no_memory(r) : ST_OK;
}

/* Sizes in the part itself, as some client libraries write them. */
static enum status image_sizes(struct chat_reader *r, const json_t *part, const struct part_at *at,
                               struct image_ref *ref)
{
    uint32_t *const to[] = {&ref->min_pixels, &ref->max_pixels, &ref->resized_height, &ref->resized_width};
    static const char *const paths[] = {".min_pixels", ".max_pixels", ".resized_height", ".resized_width"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = json_object_get(part, paths[i] + 1);
        if (!v || json_is_null(v)) continue;
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX)
            return chat_fault_at(r, json_is_integer(v) ? "invalid_value" : "invalid_type", at->path, paths[i],
                                 "%s must be a positive integer.", paths[i] + 1);
        *to[i] = (uint32_t)json_integer_value(v);
    }
    return !ref->resized_height == !ref->resized_width
               ? ST_OK
               : chat_fault(r, "invalid_value", at->path, "resized_height and resized_width come together.");
}

/* image_url: {"image_url": {"url", "detail"}} or {"image_url": "url"}; input_image: the latter; image:
 * {"image": "url"} or
 * {"url": ...}. */
static enum status image_part(struct chat_reader *r, const json_t *part, const struct part_at *at)
{
    const json_t *u = json_object_get(part, "image_url"), *detail = json_object_get(part, "detail"), *other;
    if (json_is_object(u)) {
        if (json_object_get(u, "detail")) detail = json_object_get(u, "detail");
        return add_image(r, json_object_get(u, "url"), detail, at, ".image_url.url");
    }
    if (u || !json_is(json_object_get(part, "type"), "image"))
        return add_image(r, u, detail, at, ".image_url");
    other = json_object_get(part, "image");
    if (json_is_object(other)) return add_image(r, json_object_get(other, "url"), detail, at, ".image.url");
    return other ? add_image(r, other, detail, at, ".image")
                 : add_image(r, json_object_get(part, "url"), detail, at, ".url");
}

/* video_url: {"video_url": {"url", "fps"}} or {"video_url": "url"}; video: {"video": "url"} or {"video":
 * {"url", "fps"}}. An array of URLs instead of one: the frames as images. fps may also be in the part. */
static enum status video_part(struct chat_reader *r, const json_t *part, const struct part_at *at,
                              const char *type)
{
    const char *field = strcmp(type, "video") == 0 ? "video" : "video_url";
    const json_t *v = json_object_get(part, field), *fps = json_object_get(part, "fps"), *url = v;
    char where[32];
    snprintf(where, sizeof where, ".%s%s", field, json_is_object(v) ? ".url" : "");
    if (json_is_object(v)) {
        url = json_object_get(v, "url");
        if (json_object_get(v, "fps")) fps = json_object_get(v, "fps");
    }
    size_t frames = json_is_array(url) ? json_array_size(url) : 0;
    if (!url || json_is_null(url))
        return chat_fault_at(r, "missing_required_parameter", at->path, where, "A video part needs a URL.");
    if (!json_is_string(url) && !json_is_array(url))
        return chat_fault_at(r, "invalid_type", at->path, where,
                             "A video must be a URL or an array of image URLs, its frames.");
    if (json_is_array(url) && !frames)
        return chat_fault_at(r, "empty_array", at->path, where, "The video has no frames.");
    for (size_t i = 0; i < frames; i++)
        if (!json_is_string(json_array_get(url, i)))
            return chat_fault_at(r, "invalid_type", at->path, where,
                                 "The frames of a video must be URL strings.");
    if (fps && !json_is_null(fps) && !json_is_number(fps))
        return chat_fault_at(r, "invalid_type", at->path, ".fps", "fps must be a number.");
    double n = fps && !json_is_null(fps) ? json_number_value(fps) : 0.0;
    if (fps && !json_is_null(fps) && !(n >= VIDEO_FPS_MIN && n <= VIDEO_FPS_MAX))
        return chat_fault_at(r, "invalid_value", at->path, ".fps", "fps must be a number from %g to %g.",
                             VIDEO_FPS_MIN, VIDEO_FPS_MAX);
    if (r->videos >= r->limits.videos_max) {
        return chat_fault(r, "too_many_videos", at->path,
                          "At most %zu video(s) may be provided in one prompt.", r->limits.videos_max);
    }
    struct image_ref *ref;
    enum status st = chat_image_add(r, at->number, true, at->path, where, &ref);
    if (st) return st;
    r->videos++;
    ref->fps = n;
    ref->frame_count = frames;
    if (frames && !(ref->frames = arena_alloc(&r->out->arena, frames, sizeof *ref->frames)))
        return chat_no_memory(r);
    for (size_t i = 0; i < (frames ? frames : 1) && !st; i++)
        st = arena_text(&r->out->arena, frames ? json_array_get(url, i) : url,
                        frames ? &ref->frames[i] : &ref->url);
    return st ? chat_no_memory(r) : ST_OK;
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

static enum status parse_part(struct chat_reader *r, const json_t *part, const struct part_at *at)
{
    const char *name, *field = "";
    json_t *text, *type = json_object_get(part, "type");
    if (chat_count(r, at->path, 1)) return ST_INVALID;
    if (json_is_string(part)) return chat_text_add(r, part, at->number); /* some clients send bare strings */
    if (!json_is_object(part))
        return chat_fault(r, "invalid_type", at->path, "A content part must be an object.");
    name = type                                 ? json_string_value(type)
           : json_object_get(part, "image_url") ? "image_url"
           : json_object_get(part, "text")      ? "text"
                                                : NULL;
    if (!name && type)
        return chat_fault_at(r, "invalid_type", at->path, ".type",
                             "The type of a content part must be a string.");
    if (!name)
        return chat_fault_at(r, "missing_required_parameter", at->path, ".type",
                             "The content part has no type.");
    enum part_kind kind = type && !json_is(type, name) ? PART_UNSUPPORTED : kind_of_part(name, &field);
    enum chat_role role = last_message(r)->role;
    bool assistant = role == CHAT_ASSISTANT, thinking = kind == PART_REASONING && r->limits.thinking_parts;
    bool reasons = assistant || (thinking && (role == CHAT_SYSTEM || role == CHAT_DEVELOPER));
    if (kind == PART_UNSUPPORTED || (kind == PART_VIDEO && !r->limits.videos_max))
        return chat_fault_at(r, "unsupported_content_part", at->path, ".type",
                             "Content parts of type '%.60s' are not supported.", name);
    if (assistant ? kind == PART_IMAGE || kind == PART_VIDEO
                  : kind == PART_REFUSAL || (kind == PART_REASONING && !reasons))
        return chat_fault_at(r, "invalid_value", at->path, ".type",
                             "Content parts of type '%.60s' are not allowed in a message of this role.",
                             name);
    if (kind == PART_IMAGE) {
        enum status st = image_part(r, part, at);
        return st ? st : image_sizes(r, part, at, &r->out->images[r->out->image_count - 1]);
    }
    if (kind == PART_VIDEO) return video_part(r, part, at, name);
    if (strcmp(field, "reasoning") == 0 && !json_object_get(part, field)) field = "thinking";
    enum status st = chat_string(r, part, at->path, field, &text);
    if (st) return st;
    if (kind == PART_REASONING && !thinking) return chat_reasoning_add(r, json_text(text));
    st = chat_text_add(r, text, at->number);
    if (!st) last_message(r)->parts[last_message(r)->part_count - 1].thinking = thinking;
    return st;
}

/* Keys that only a template knows, such as source_lang_code. */
static enum status add_more(struct chat_reader *r, json_t *from, struct chat_part *part)
{
    static const char *const known[] = {"type",   "text",  "refusal",   "image_url",
                                        "image",  "video", "video_url", "url",
                                        "detail", "audio", "audio_url", "input_audio"};
    const char *key;
    json_t *v;
    json_object_foreach(from, key, v) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(key, known[i]) != 0) i++;
        if (i < sizeof known / sizeof *known || !json_is_string(v)) continue;
        if (!part->more) part->more = json_object();
        if (!part->more || json_object_set(part->more, key, v)) return chat_no_memory(r);
    }
    return ST_OK;
}

enum status chat_content_read(struct chat_reader *r, const json_t *content, const char *name)
{
    enum chat_role role = last_message(r)->role;
    if (json_is_string(content)) return chat_text_add(r, content, 0);
    if (!content || json_is_null(content)) {
        if (role == CHAT_ASSISTANT || role == CHAT_FUNCTION || (content && role == CHAT_TOOL))
            return chat_copy_add(r, TEXT_OF(""), 0);
        if (!content) return chat_fault(r, "missing_required_parameter", name, "The message has no content.");
        return chat_fault(r, "invalid_type", name,
                          "The content of this message must be a string or an array of parts, not null.");
    }
    if (!json_is_array(content))
        return chat_fault(r, "invalid_type", name,
                          "The content of a message must be a string or an array of parts.");
    if (!json_array_size(content) && role != CHAT_ASSISTANT && role != CHAT_TOOL)
        return chat_fault(r, "empty_array", name, "The content array is empty.");
    struct chat_message *m = last_message(r);
    enum status st = ST_OK;
    for (size_t i = 0; i < json_array_size(content) && !st; i++) {
        struct part_at at = {.number = (uint32_t)i};
        size_t parts = m->part_count;
        snprintf(at.path, sizeof at.path, "%s[%zu]", name, i);
        st = parse_part(r, json_array_get(content, i), &at);
        if (!st && m->part_count > parts) st = add_more(r, json_array_get(content, i), &m->parts[parts]);
    }
    if (st) return st;
    m->list = true;
    return role == CHAT_TOOL || role == CHAT_FUNCTION || !m->part_count ? chat_one_text(r, m, "\n") : ST_OK;
}

/* ---- tool calls ---- */

/* Arguments come as JSON text; templates iterate over an object. Invalid JSON stays text. */
static json_t *arguments_of(const struct chat_reader *r, const json_t *args)
{
    json_t *parsed = NULL;
    const char *text = json_string_value(args);
    if (r->limits.arguments_as_text) return args ? share(args) : json_string("");
    if (!args || json_is_null(args) || (text && !json_string_length(args))) return json_object();
    if (text && json_from_text(text, json_string_length(args), &parsed) == ST_NOMEM) return NULL;
    if (json_is_object(parsed) && !json_big_int(parsed)) return parsed;
    json_decref(parsed);
    return share(args);
}

json_t *chat_call_new(const struct chat_reader *r, json_t *id, json_t *name, json_t *arguments)
{
    json_t *args = arguments_of(r, arguments);
    if (args && r->limits.arguments_as_text && json_is_object(args)) {
        char *text = json_dumps(args, 0);
        json_decref(args);
        args = text ? json_string_nocheck(text) : NULL;
        free(text);
    }
    return args ? json_pack("{s:O,s:s,s:{s:O,s:o}}", "id", id, "type", "function", "function", "name", name,
                            "arguments", args)
                : NULL;
}

static enum status parse_function(struct chat_reader *r, const json_t *f, const char *path, json_t **out)
{
    if (!json_is_object(f))
        return chat_fault(r, f ? "invalid_type" : "missing_required_parameter", path,
                          "A function call must be an object.");
    json_t *name, *args = json_object_get(f, "arguments");
    if (chat_string(r, f, path, "name", &name)) return ST_INVALID;
    if (args &&
        ((!json_is_string(args) && !json_is_object(args) && !json_is_null(args)) || json_big_int(args)))
        return chat_fault_at(r, "invalid_type", path, ".arguments",
                             "The arguments of a function must be a string.");
    *out = copy_with(f, "arguments", arguments_of(r, args));
    return *out ? ST_OK : chat_no_memory(r);
}

static enum status parse_tool_calls(struct chat_reader *r, const json_t *calls)
{
    if (!calls || json_is_null(calls)) return ST_OK;
    if (!json_is_array(calls))
        return chat_fault(r, "invalid_type", ".tool_calls", "'tool_calls' must be an array.");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char path[64];
        json_t *call = json_array_get(calls, i), *function = NULL;
        snprintf(path, sizeof path, ".tool_calls[%zu]", i);
        if (chat_count(r, path, 1)) return ST_INVALID;
        if (!json_is_object(call))
            return chat_fault(r, "invalid_type", path, "A tool call must be an object.");
        snprintf(path, sizeof path, ".tool_calls[%zu].function", i);
        enum status st = parse_function(r, json_object_get(call, "function"), path, &function);
        if (!st) st = chat_call_add(r, copy_with(call, "function", function));
        if (st) return st;
    }
    return ST_OK;
}

/* function_call (deprecated): one call. */
static enum status parse_function_call(struct chat_reader *r, const json_t *f)
{
    json_t *function = NULL;
    if (!f || json_is_null(f) || last_message(r)->calls) return ST_OK;
    enum status st = parse_function(r, f, ".function_call", &function);
    if (st) return st;
    return chat_call_add(r, json_pack("{s:s,s:o}", "type", "function", "function", function));
}

/* ---- messages ---- */

static enum status parse_role(struct chat_reader *r, const json_t *from, enum chat_role *out)
{
    json_t *role;
    if (chat_string(r, from, "", "role", &role)) return ST_INVALID;
    if (chat_role_find(role, out)) return ST_OK;
    return chat_fault(r, "invalid_value", ".role",
                      "'%.60s' is not one of 'system', 'developer', 'user', 'assistant', 'tool', 'function'.",
                      json_string_value(role));
}

static enum status assistant_extras(struct chat_reader *r, const json_t *from)
{
    const json_t *audio = json_object_get(from, "audio"), *refusal = json_object_get(from, "refusal"),
                 *reasoning = json_object_get(from, "reasoning");
    if (audio && !json_is_null(audio))
        return chat_fault(r, "unsupported_parameter", ".audio",
                          "Audio of earlier responses is not supported.");
    enum status st = parse_tool_calls(r, json_object_get(from, "tool_calls"));
    if (!st) st = parse_function_call(r, json_object_get(from, "function_call"));
    if (st) return st;
    struct chat_message *m = last_message(r);
    if (json_is_string(refusal) && !m->list && !m->parts[0].text.len &&
        arena_text(&r->out->arena, refusal, &m->parts[0].text))
        return chat_no_memory(r);
    if (!json_is_string(reasoning)) reasoning = json_object_get(from, "reasoning_content");
    if (!json_is_string(reasoning)) return ST_OK;
    m->reasoning.len = 0;
    return chat_reasoning_add(r, json_text(reasoning));
}

bool chat_field_known(const char *name)
{
    static const char *const known[] = {"role",    "content",   "tool_calls",        "function_call", "audio",
                                        "refusal", "reasoning", "reasoning_content", "thinking"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i]) == 0) return true;
    return false;
}

static enum status parse_message(struct chat_reader *r, const json_t *from)
{
    enum chat_role role;
    struct chat_message *m;
    if (!json_is_object(from)) return chat_fault(r, "invalid_type", "", "A message must be an object.");
    enum status st = parse_role(r, from, &role);
    if (st) return st;
    const json_t *name = json_object_get(from, "name");
    json_t *text;
    if (name && !json_is_string(name) && !json_is_null(name))
        return chat_fault(r, "invalid_type", ".name", "The name of a participant must be a string.");
    if ((role == CHAT_TOOL && chat_string(r, from, "", "tool_call_id", &text)) ||
        (role == CHAT_FUNCTION && chat_string(r, from, "", "name", &text)))
        return ST_INVALID;
    st = chat_message_add(r, role, &m);
    if (st) return st;
    m->more = share(from);
    m->plain = json_is_string(json_object_get(from, "content"));
    st = chat_content_read(r, json_object_get(from, "content"), ".content");
    return !st && role == CHAT_ASSISTANT ? assistant_extras(r, from) : st;
}

enum status chat_messages_parse(const json_t *messages, const struct chat_limits *limits,
                                struct chat_messages *out, struct api_error *err)
{
    struct chat_reader r = {.limits = *limits, .err = err, .out = out, .at = {.field = "messages"}};
    size_t n = json_array_size(messages);
    if (!json_is_array(messages))
        return api_fail(err, 400, messages ? "invalid_type" : "missing_required_parameter", "messages",
                        messages ? "'messages' must be an array." : "'messages' is missing.");
    if (!n) return api_fail(err, 400, "empty_array", "messages", "'messages' is empty.");
    enum status st = ST_OK;
    for (size_t i = 0; i < n && !st; i++) {
        r.at.index = (int32_t)i;
        st = parse_message(&r, json_array_get(messages, i));
    }
    if (st) chat_messages_free(out);
    return st;
}

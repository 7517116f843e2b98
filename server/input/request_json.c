/* See request_json.h. Scalars and lists of them are members of one table, in which those with a row in
 * fields.def are by that row; messages, images, prompts and the output's form follow by hand. */
#include "server/input/request_json.h"

#include "config/base/list.h"
#include "server/json/fields.h"
#include "server/json/value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- members ---- */

struct member {
    const char *name;
    enum { AS_BOOL, AS_U32, AS_I64, AS_FLOAT, AS_TEXT, AS_NAME, AS_VALUE } as;
    size_t at;
};

#define MEMBER(type, m)    {#m, AS_##type, offsetof(struct inference_request, m)},
#define BOOL(m)            MEMBER(BOOL, m)
#define PRESENT(m)         MEMBER(BOOL, m)
#define INT(m, lo, hi)     MEMBER(I64, m)
#define INT_SET(m, lo, hi) MEMBER(I64, m) MEMBER(BOOL, has_##m)
#define UINT(m, lo, hi)    MEMBER(U32, m)
#define FLOAT(m, lo, hi)   MEMBER(FLOAT, m)
#define TEXT(m)            MEMBER(TEXT, m)
#define LOOSE(m)           MEMBER(TEXT, m)
#define SET(m)
#define READ(f, schema)
#define PART(schema)
#define IGNORED
#define REFUSED
#define EMPTY
#define NEUTRAL(v)
#define ELSEWHERE(field)
#define FIELD(n, apis, what, help) what
static const struct member members[] = {
#include "server/input/fields.def"
    /* those that parse.c, resolve.c and dialects make */
    MEMBER(U32, kind) MEMBER(U32, receipt) MEMBER(NAME, source) MEMBER(BOOL, pairs)
        MEMBER(BOOL, inputs_listed) MEMBER(TEXT, suffix) MEMBER(U32, messages_each) MEMBER(VALUE, tools)
            MEMBER(VALUE, documents) MEMBER(VALUE, variables) MEMBER(BOOL, include_usage) MEMBER(
                BOOL, continuous_usage) MEMBER(U32, n) MEMBER(I64, max_tokens) MEMBER(BOOL, has_max_tokens)
                MEMBER(BOOL, max_tokens_fit) MEMBER(BOOL, logprobs) MEMBER(U32, logprobs_top) MEMBER(
                    BOOL, prompt_logprobs) MEMBER(U32, prompt_logprobs_top) MEMBER(U32, sampling.logprobs)
                    MEMBER(U32, sampling.prompt_logprobs) MEMBER(U32, sampling.ngrams.window)
                        MEMBER(BOOL, sampling.ngrams.generated) MEMBER(BOOL, add_generation_prompt)
                            MEMBER(BOOL, has_truncate) MEMBER(I64, truncate) MEMBER(TEXT, cache_salt) MEMBER(
                                U32, format.kind) MEMBER(VALUE, format.schema) MEMBER(TEXT, format.text)
                                MEMBER(NAME, format.param) MEMBER(BOOL, format.compact)
                                    MEMBER(BOOL, format.any_order) MEMBER(BOOL, format.strict) MEMBER(
                                        BOOL, tool_choice.required) MEMBER(BOOL, tool_choice.none)
                                        MEMBER(TEXT, tool_choice.named) MEMBER(BOOL, tool_choice.limited)
                                            MEMBER(BOOL, reasoning.drop) MEMBER(BOOL, reasoning.inline_)
                                                MEMBER(BOOL, reasoning.limited) MEMBER(U32, reasoning.budget)
                                                    MEMBER(NAME, reasoning.budget_path) MEMBER(U32, pooling)
                                                        MEMBER(I64, tokens_max)
                                                            MEMBER(I64, image_bounds.area_min)
                                                                MEMBER(I64, image_bounds.area_max)
                                                                    MEMBER(U32, image_bounds.width)
                                                                        MEMBER(U32, image_bounds.height)
                                                                            MEMBER(U32, image_bounds.tiles)};
_Static_assert(sizeof(enum gen_kind) == 4 && sizeof(enum sched_pooling) == 4, "AS_U32");

/* ,"NAME": */
static void key(struct json_writer *o, const char *name)
{
    jw_text(o, ",\"");
    jw_text(o, name);
    jw_text(o, "\":");
}

static void text_write(struct json_writer *o, const char *name, struct text text)
{
    if (!text.data) return;
    key(o, name);
    jw_string(o, text.data, text.len);
}

static void flag_write(struct json_writer *o, const char *name, bool is)
{
    if (!is) return;
    key(o, name);
    jw_text(o, "true");
}

static void number_write(struct json_writer *o, const char *name, int64_t n)
{
    if (!n) return;
    key(o, name);
    jw_int(o, n);
}

static void value_write(struct json_writer *o, const char *name, const json_t *v)
{
    if (!v) return;
    key(o, name);
    jw_value(o, v);
}

static void member_write(struct json_writer *o, const struct member *m, const void *from)
{
    uint32_t u32;
    int64_t i64;
    float f;
    const char *name;
    struct text text;
    switch (m->as) {
    case AS_BOOL: flag_write(o, m->name, *(const bool *)from); return;
    case AS_U32:
        memcpy(&u32, from, sizeof u32);
        number_write(o, m->name, u32);
        return;
    case AS_I64:
        memcpy(&i64, from, sizeof i64);
        number_write(o, m->name, i64);
        return;
    case AS_FLOAT:
        memcpy(&f, from, sizeof f);
        if (fpclassify(f) == FP_ZERO) return;
        key(o, m->name);
        jw_float32(o, f);
        return;
    case AS_TEXT:
        memcpy(&text, from, sizeof text);
        text_write(o, m->name, text);
        return;
    case AS_NAME:
        memcpy(&name, from, sizeof name);
        if (name) text_write(o, m->name, (struct text){name, strlen(name)});
        return;
    case AS_VALUE: value_write(o, m->name, *(json_t *const *)from); return;
    }
}

static void members_write(struct json_writer *o, const struct inference_request *q)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        size_t first = 0;
        while (members[first].at != members[i].at) first++;
        if (first == i) member_write(o, &members[i], (const char *)q + members[i].at);
    }
}

/* ---- reading: absent values are zero; the first wrong one stays in `st` ---- */

struct request_reader {
    struct inference_request *q;
    enum status st;
};

static void check(struct request_reader *r, bool ok, enum status st)
{
    if (!ok && !r->st) r->st = st;
}

static struct text text_read(struct request_reader *r, const json_t *v)
{
    struct text text = {0};
    check(r, !v || json_is_string(v), ST_FORMAT);
    if (json_is_string(v)) check(r, !arena_text(&r->q->arena, v, &text), ST_NOMEM);
    return text;
}

static int64_t number_read(struct request_reader *r, const json_t *v, int64_t most)
{
    int64_t n = json_integer_value(v);
    check(r, !v || (json_is_integer(v) && n <= most && (most == INT64_MAX || n >= 0)), ST_FORMAT);
    return r->st ? 0 : n;
}

static bool flag_read(struct request_reader *r, const json_t *v)
{
    check(r, !v || json_is_true(v), ST_FORMAT);
    return v != NULL;
}

/* A list of `count` elements, or NULL. */
static void *list_of(struct request_reader *r, const json_t *v, size_t size, size_t *count)
{
    *count = json_array_size(v);
    check(r, !v || json_is_array(v), ST_FORMAT);
    void *list = *count ? arena_alloc(&r->q->arena, *count, size) : NULL;
    check(r, list || !*count, ST_NOMEM);
    if (r->st) *count = 0;
    return list;
}

static uint32_t *ids_read(struct request_reader *r, const json_t *v, size_t *count)
{
    uint32_t *ids = list_of(r, v, sizeof *ids, count);
    for (size_t i = 0; i < *count; i++) ids[i] = (uint32_t)number_read(r, json_array_get(v, i), UINT32_MAX);
    return ids;
}

static struct text *texts_read(struct request_reader *r, const json_t *v, size_t *count)
{
    struct text *list = list_of(r, v, sizeof *list, count);
    for (size_t i = 0; i < *count; i++) list[i] = text_read(r, json_array_get(v, i));
    return list;
}

static void member_read(struct request_reader *r, const struct member *m, json_t *v)
{
    void *to = (char *)r->q + m->at;
    float f = (float)json_number_value(v);
    switch (m->as) {
    case AS_BOOL: *(bool *)to = flag_read(r, v); return;
    case AS_U32: *(uint32_t *)to = (uint32_t)number_read(r, v, UINT32_MAX); return;
    case AS_I64: *(int64_t *)to = number_read(r, v, INT64_MAX); return;
    case AS_FLOAT:
        check(r, json_is_number(v), ST_FORMAT);
        memcpy(to, &f, sizeof f);
        return;
    case AS_TEXT: *(struct text *)to = text_read(r, v); return;
    case AS_NAME: *(const char **)to = text_read(r, v).data; return;
    case AS_VALUE: *(json_t **)to = json_incref(v); return;
    }
}

/* ---- lists ---- */

static void ids_write(struct json_writer *o, const char *name, const uint32_t *ids, size_t count)
{
    if (!count) return;
    key(o, name);
    jw_ids(o, ids, count);
}

static void texts_write(struct json_writer *o, const char *name, const struct text *list, size_t count)
{
    if (!count) return;
    key(o, name);
    for (size_t i = 0; i < count; i++) {
        jw_text(o, i ? "," : "[");
        jw_string(o, list[i].data, list[i].len);
    }
    jw_text(o, "]");
}

/* [[id, bias], ..] */
static void biases_write(struct json_writer *o, const char *name, const struct sampling_bias *list,
                         size_t count)
{
    if (!list || !count) return;
    key(o, name);
    for (size_t i = 0; i < count; i++) {
        jw_put(o, i ? ",[%u," : "[[%u,", list[i].id);
        jw_float32(o, list[i].bias);
        jw_text(o, "]");
    }
    jw_text(o, "]");
}

static struct sampling_bias *biases_read(struct request_reader *r, const json_t *v, size_t *count)
{
    struct sampling_bias *list = list_of(r, v, sizeof *list, count);
    for (size_t i = 0; i < *count; i++) {
        const json_t *one = json_array_get(v, i), *bias = json_array_get(one, 1);
        check(r, json_array_size(one) == 2 && json_is_number(bias), ST_FORMAT);
        list[i].id = (uint32_t)number_read(r, json_array_get(one, 0), UINT32_MAX);
        list[i].bias = (float)json_number_value(bias);
    }
    return list;
}

static void inputs_write(struct json_writer *o, const char *name, const struct prompt_input *list,
                         size_t count)
{
    if (!count) return;
    key(o, name);
    for (size_t i = 0; i < count; i++) {
        jw_text(o, i ? "," : "[");
        if (list[i].text.data) jw_string(o, list[i].text.data, list[i].text.len);
        else jw_ids(o, list[i].ids, list[i].id_count);
    }
    jw_text(o, "]");
}

static struct prompt_input *inputs_read(struct request_reader *r, const json_t *v, size_t *count)
{
    struct prompt_input *list = list_of(r, v, sizeof *list, count);
    for (size_t i = 0; i < *count; i++) {
        const json_t *one = json_array_get(v, i);
        if (json_is_string(one)) list[i].text = text_read(r, one);
        else list[i].ids = ids_read(r, one, &list[i].id_count);
        check(r, list[i].text.data || list[i].id_count, ST_FORMAT);
    }
    return list;
}

static void lists_write(struct json_writer *o, const struct inference_request *q)
{
    const struct sampling_params *s = &q->sampling;
    ids_write(o, "stop_ids", q->stop_ids, q->stop_id_count);
    ids_write(o, "free", s->ngrams.free, s->ngrams.free_count);
    biases_write(o, "bias", s->bias, s->bias_count);
    texts_write(o, "choices", q->format.choices, q->format.choice_count);
    texts_write(o, "allowed", q->tool_choice.allowed, q->tool_choice.allowed_count);
    if (q->stop_count) key(o, "stops");
    for (uint32_t i = 0; i < q->stop_count; i++) {
        jw_text(o, i ? "," : "[");
        jw_string(o, q->stops[i].text, q->stops[i].len);
    }
    if (q->stop_count) jw_text(o, "]");
    inputs_write(o, "inputs", q->inputs, q->input_count);
    inputs_write(o, "given", q->given, q->given_count);
}

static void lists_read(struct request_reader *r, json_t *from)
{
    struct inference_request *q = r->q;
    size_t count;
    q->stop_ids = ids_read(r, field(from, "stop_ids"), &count);
    q->stop_id_count = (uint32_t)count;
    q->sampling.ngrams.free = ids_read(r, field(from, "free"), &count);
    q->sampling.ngrams.free_count = (uint32_t)count;
    q->sampling.bias = biases_read(r, field(from, "bias"), &count);
    q->sampling.bias_count = (uint32_t)count;
    q->given = inputs_read(r, field(from, "given"), &count);
    q->given_count = (uint32_t)count;
    check(r, count < 2 || count == q->n, ST_FORMAT);
    for (size_t i = 0; i < count && !r->st; i++) check(r, q->given[i].ids, ST_FORMAT);
    q->format.choices = texts_read(r, field(from, "choices"), &q->format.choice_count);
    q->tool_choice.allowed = texts_read(r, field(from, "allowed"), &q->tool_choice.allowed_count);
    const struct text *stops = texts_read(r, field(from, "stops"), &count);
    q->stops = count ? arena_alloc(&q->arena, count, sizeof *q->stops) : NULL;
    check(r, q->stops || !count, ST_NOMEM);
    for (size_t i = 0; i < count && !r->st; i++) {
        check(r, stops[i].len > 0, ST_FORMAT);
        q->stops[q->stop_count++] = (struct stop_string){stops[i].data, stops[i].len};
    }
    q->inputs = inputs_read(r, field(from, "inputs"), &q->input_count);
}

/* ---- messages ---- */

static void part_write(struct json_writer *o, const struct chat_part *p)
{
    jw_put(o, "{\"number\":%u", p->number);
    text_write(o, "text", p->text);
    flag_write(o, "video", p->video);
    flag_write(o, "thinking", p->thinking);
    value_write(o, "more", p->more);
    jw_text(o, "}");
}

/* Of what only the template knows: not what the message has as typed values. */
static void more_write(struct json_writer *o, json_t *more)
{
    const char *name, *front = "";
    json_t *v;
    if (!more) return;
    jw_text(o, ",\"more\":{");
    json_object_foreach(more, name, v) {
        if (chat_field_known(name) || json_is_null(v)) continue;
        jw_text(o, front);
        jw_put(o, "%s:", name);
        jw_value(o, v);
        front = ",";
    }
    jw_text(o, "}");
}

static void message_write(struct json_writer *o, const struct chat_message *m)
{
    jw_put(o, "{\"role\":%u,\"field\":%s,\"index\":%ld", (unsigned)m->role, m->at.field, (long)m->at.index);
    flag_write(o, "whole", m->at.whole);
    flag_write(o, "list", m->list);
    flag_write(o, "plain", m->plain);
    if (m->reasons)
        text_write(o, "reasoning",
                   (struct text){m->reasoning.data ? m->reasoning.data : "", m->reasoning.len});
    value_write(o, "calls", m->calls);
    more_write(o, m->more);
    jw_text(o, ",\"parts\":[");
    for (size_t i = 0; i < m->part_count; i++) {
        if (i) jw_text(o, ",");
        part_write(o, &m->parts[i]);
    }
    jw_text(o, "]}");
}

static void message_read(struct request_reader *r, json_t *from, struct chat_message *m)
{
    json_t *parts = field(from, "parts");
    buf_init(&m->reasoning, SIZE_MAX / 4);
    m->role = (enum chat_role)number_read(r, field(from, "role"), CHAT_DOCUMENT);
    m->at = (struct chat_place){.field = text_read(r, field(from, "field")).data,
                                .index = (int32_t)json_integer_value(field(from, "index")),
                                .whole = flag_read(r, field(from, "whole"))};
    m->list = flag_read(r, field(from, "list"));
    m->plain = flag_read(r, field(from, "plain"));
    struct text reasoning = text_read(r, field(from, "reasoning"));
    m->reasons = reasoning.data != NULL;
    if (m->reasons) check(r, !buf_add(&m->reasoning, reasoning.data, reasoning.len), ST_NOMEM);
    m->calls = json_incref(field(from, "calls"));
    m->more = json_incref(field(from, "more"));
    size_t count = json_array_size(parts);
    check(r, m->at.field && (m->list || count == 1), ST_FORMAT);
    check(r, LIST_RESERVE(m->parts, m->part_cap, count), ST_NOMEM);
    for (size_t i = 0; i < count && !r->st; i++) {
        json_t *part = json_array_get(parts, i);
        m->parts[m->part_count++] =
            (struct chat_part){.text = text_read(r, field(part, "text")),
                               .video = flag_read(r, field(part, "video")),
                               .thinking = flag_read(r, field(part, "thinking")),
                               .number = (uint32_t)number_read(r, field(part, "number"), UINT32_MAX),
                               .more = json_incref(field(part, "more"))};
    }
}

/* "same": the earlier image of which it has the URL. */
static void image_write(struct json_writer *o, const struct chat_messages *all, size_t i)
{
    const struct image_ref *ref = &all->images[i];
    size_t same = 0;
    while (!image_ref_same(&all->images[same], ref)) same++;
    jw_put(o, "{\"message\":%u,\"part\":%u,\"param\":%s", ref->message, ref->part, ref->param);
    flag_write(o, "video", ref->video);
    if (same < i) number_write(o, "same", (int64_t)same + 1);
    else if (ref->frames) texts_write(o, "frames", ref->frames, ref->frame_count);
    else text_write(o, "url", ref->url);
    if (ref->fps > 0) {
        json_t *fps = json_real(ref->fps);
        value_write(o, "fps", fps);
        json_decref(fps);
    }
    number_write(o, "detail", ref->detail);
    number_write(o, "min_pixels", ref->min_pixels);
    number_write(o, "max_pixels", ref->max_pixels);
    number_write(o, "resized_height", ref->resized_height);
    number_write(o, "resized_width", ref->resized_width);
    jw_text(o, "}");
}

static void image_read(struct request_reader *r, json_t *from, struct chat_messages *all)
{
    struct image_ref *ref = &all->images[all->image_count];
    int64_t same = number_read(r, field(from, "same"), (int64_t)all->image_count);
    *ref = (struct image_ref){
        .video = flag_read(r, field(from, "video")),
        .fps = json_number_value(field(from, "fps")),
        .detail = (enum image_detail)number_read(r, field(from, "detail"), IMAGE_DETAIL_ORIGINAL),
        .min_pixels = (uint32_t)number_read(r, field(from, "min_pixels"), UINT32_MAX),
        .max_pixels = (uint32_t)number_read(r, field(from, "max_pixels"), UINT32_MAX),
        .resized_height = (uint32_t)number_read(r, field(from, "resized_height"), UINT32_MAX),
        .resized_width = (uint32_t)number_read(r, field(from, "resized_width"), UINT32_MAX),
        .message = (uint32_t)number_read(r, field(from, "message"), (int64_t)all->count - 1),
        .part = (uint32_t)number_read(r, field(from, "part"), UINT32_MAX)};
    struct text param = text_read(r, field(from, "param"));
    snprintf(ref->param, sizeof ref->param, "%s", param.data ? param.data : "");
    if (same) {
        const struct image_ref *first = &all->images[same - 1];
        ref->url = first->url;
        ref->frames = first->frames;
        ref->frame_count = first->frame_count;
    } else {
        ref->url = text_read(r, field(from, "url"));
        ref->frames = texts_read(r, field(from, "frames"), &ref->frame_count);
    }
    check(r, !ref->url.data == (ref->frames != NULL), ST_FORMAT);
    all->image_count++;
}

static void messages_write(struct json_writer *o, const struct chat_messages *all)
{
    if (!all->count) return;
    key(o, "messages");
    for (size_t i = 0; i < all->count; i++) {
        jw_text(o, i ? "," : "[");
        message_write(o, &all->list[i]);
    }
    jw_text(o, "],\"images\":[");
    for (size_t i = 0; i < all->image_count; i++) {
        if (i) jw_text(o, ",");
        image_write(o, all, i);
    }
    jw_text(o, "]");
}

static void messages_read(struct request_reader *r, json_t *from)
{
    struct chat_messages *all = &r->q->messages;
    json_t *list = field(from, "messages"), *images = field(from, "images");
    size_t count = json_array_size(list), image_count = json_array_size(images);
    check(r,
          LIST_RESERVE(all->list, all->cap, count) && LIST_RESERVE(all->images, all->image_cap, image_count),
          ST_NOMEM);
    for (size_t i = 0; i < count && !r->st; i++) {
        struct chat_message *m = &all->list[all->count++];
        *m = (struct chat_message){0};
        message_read(r, json_array_get(list, i), m);
    }
    for (size_t i = 0; i < image_count && !r->st; i++) image_read(r, json_array_get(images, i), all);
}

/* ---- the whole ---- */

void request_write(struct json_writer *o, const struct inference_request *q)
{
    jw_text(o, "{\"version\":1");
    members_write(o, q);
    lists_write(o, q);
    messages_write(o, &q->messages);
    jw_text(o, "}");
}

/* What holds between members of a request that was read. */
static bool whole(const struct inference_request *q)
{
    const struct response_format *f = &q->format;
    const json_t *lists[] = {q->tools, q->documents};
    bool ok =
        q->kind <= GEN_VECTORS && q->pooling <= POOL_ALL && f->kind <= FORMAT_CHOICE && q->source && q->n;
    ok = ok && (f->kind != FORMAT_SCHEMA || json_is_object(f->schema) || json_is_boolean(f->schema));
    ok = ok && ((f->kind != FORMAT_REGEX && f->kind != FORMAT_TEXT) || f->text.data);
    ok = ok && (f->kind != FORMAT_CHOICE || f->choice_count) && (!f->kind || f->param);
    for (size_t i = 0; i < 2; i++) ok = ok && (!lists[i] || json_is_array(lists[i]));
    return ok && (!q->variables || json_is_object(q->variables)) && !q->input_count != !q->messages.count;
}

enum status request_read(const json_t *from, struct inference_request *q)
{
    struct request_reader r = {.q = q};
    json_t *all = (json_t *)(uintptr_t)from; /* jansson's signatures lack the const */
    check(&r, number_read(&r, field(all, "version"), INT64_MAX) == 1, ST_FORMAT);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *v = field(all, members[i].name);
        if (v) member_read(&r, &members[i], v);
    }
    lists_read(&r, all);
    messages_read(&r, all);
    check(&r, whole(q), ST_FORMAT);
    return r.st;
}

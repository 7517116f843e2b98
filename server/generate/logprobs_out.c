/* See logprobs_out.h. */
#include "server/generate/logprobs_out.h"

#include <stdio.h>
#include <string.h>

#define PART_MAX (256u << 20)

void logprobs_init(struct logprobs_acc *a, const struct tokenizer *tok, bool legacy, bool as_ids,
                   uint32_t top)
{
    *a = (struct logprobs_acc){.tok = tok, .legacy = legacy, .as_ids = as_ids, .top = top};
    for (int i = 0; i < 4; i++) buf_init(&a->part[i], PART_MAX);
}

void logprobs_fini(struct logprobs_acc *a)
{
    for (int i = 0; i < 4; i++) buf_fini(&a->part[i]);
}

static void token_text(const struct logprobs_acc *a, struct json_writer *o, uint32_t id)
{
    if (a->as_ids) {
        char text[32];
        snprintf(text, sizeof text, "\"token_id:%u\"", id);
        jw_text(o, text);
        return;
    }
    size_t len;
    const char *bytes = tok_bytes(a->tok, id, &len);
    jw_string(o, bytes, len);
}

static void token_bytes(const struct logprobs_acc *a, struct json_writer *o, uint32_t id)
{
    if ((tok_is_special(a->tok, id) && !a->special_bytes) || !tok_exists(a->tok, id)) {
        jw_text(o, "null");
        return;
    }
    size_t len;
    const char *bytes = tok_bytes(a->tok, id, &len);
    jw_text(o, "[");
    for (size_t i = 0; i < len; i++) {
        if (i) jw_text(o, ",");
        jw_uint(o, (unsigned char)bytes[i]);
    }
    jw_text(o, "]");
}

static void value(struct json_writer *o, float logprob)
{
    jw_float32(o, logprob >= -9999.0f ? logprob : -9999.0f); /* also catches NaN */
}

static void chat_triple(const struct logprobs_acc *a, struct json_writer *o, uint32_t id, float logprob)
{
    jw_text(o, "{\"token\":");
    token_text(a, o, id);
    jw_text(o, ",\"logprob\":");
    value(o, logprob);
    jw_text(o, ",\"bytes\":");
    token_bytes(a, o, id);
}

static enum status chat_add(struct logprobs_acc *a, const struct token_out *t)
{
    struct json_writer o = {.buf = &a->part[0]};
    if (a->count) jw_text(&o, ",");
    chat_triple(a, &o, t->id, t->logprob);
    jw_text(&o, ",\"top_logprobs\":[");
    uint32_t n = t->top_count < a->top ? t->top_count : a->top;
    for (uint32_t i = 0; i < n; i++) {
        if (i) jw_text(&o, ",");
        chat_triple(a, &o, t->top[i].id, t->top[i].logprob);
        jw_text(&o, "}");
    }
    jw_text(&o, "]}");
    return o.st;
}

/* Ids with equal text would be duplicate keys: the most likely one keeps it. `seen` is in descending order of
 * probability. */
static bool key_taken(const struct logprobs_acc *a, const uint32_t *seen, uint32_t count, uint32_t id)
{
    size_t len, other_len;
    const char *text = tok_bytes(a->tok, id, &len);
    for (uint32_t i = 0; i < count; i++) {
        if (seen[i] == id) return true;
        if (a->as_ids) continue;
        const char *other = tok_bytes(a->tok, seen[i], &other_len);
        if (len == other_len && memcmp(text, other, len) == 0) return true;
    }
    return false;
}

static enum status legacy_add(struct logprobs_acc *a, const struct token_out *t, bool known, uint32_t id,
                              size_t offset)
{
    struct json_writer o[4];
    for (int i = 0; i < 4; i++) {
        o[i] = (struct json_writer){.buf = &a->part[i]};
        if (a->count) jw_text(&o[i], ",");
    }
    token_text(a, &o[0], id);
    if (known) {
        uint32_t seen[SAMPLING_TOP_MAX + 1], count = 0, n = t->top_count < a->top ? t->top_count : a->top;
        value(&o[1], t->logprob);
        jw_text(&o[2], "{");
        for (uint32_t i = 0; i <= n; i++) {
            uint32_t at = i < n ? t->top[i].id : t->id;
            if (key_taken(a, seen, count, at)) continue;
            if (count) jw_text(&o[2], ",");
            seen[count++] = at;
            token_text(a, &o[2], at);
            jw_text(&o[2], ":");
            value(&o[2], i < n ? t->top[i].logprob : t->logprob);
        }
        jw_text(&o[2], "}");
    } else {
        jw_text(&o[1], "null");
        jw_text(&o[2], "null");
    }
    jw_uint(&o[3], offset);
    for (int i = 0; i < 4; i++) {
        if (o[i].st) return o[i].st;
    }
    return ST_OK;
}

enum status logprobs_add(struct logprobs_acc *a, const struct token_out *t, size_t offset)
{
    enum status st = a->legacy ? legacy_add(a, t, true, t->id, offset) : chat_add(a, t);
    if (!st) a->count++;
    return st;
}

enum status logprobs_add_null(struct logprobs_acc *a, uint32_t id, size_t offset)
{
    enum status st = legacy_add(a, NULL, false, id, offset);
    if (!st) a->count++;
    return st;
}

void logprobs_take(struct logprobs_acc *a, struct json_writer *o)
{
    static const char *const legacy_names[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                               "],\"top_logprobs\":[", "],\"text_offset\":["};
    for (int i = 0; i < (a->legacy ? 4 : 1); i++) {
        jw_text(o, a->legacy ? legacy_names[i] : "{\"content\":[");
        jw_bytes(o, a->part[i].data, a->part[i].len);
        a->part[i].len = 0;
    }
    jw_text(o, a->legacy ? "]}" : "],\"refusal\":null}");
    a->count = 0;
}

void logprobs_take_entries(struct logprobs_acc *a, struct json_writer *o)
{
    if (o) jw_bytes(o, a->part[0].data, a->part[0].len);
    a->part[0].len = 0;
    a->count = 0;
}

static void prompt_one(struct json_writer *o, const struct tokenizer *tok, uint32_t id, float logprob,
                       uint32_t rank, bool first)
{
    size_t len;
    const char *bytes = tok_bytes(tok, id, &len);
    jw_text(o, first ? "\"" : ",\"");
    jw_put(o, "%u\":{\"logprob\":", id);
    value(o, logprob);
    jw_put(o, ",\"rank\":%u,\"decoded_token\":", rank);
    jw_string(o, bytes, len);
    jw_text(o, "}");
}

void logprobs_prompt_entry(struct json_writer *o, const struct tokenizer *tok, const struct token_out *t,
                           uint32_t top)
{
    uint32_t n = t->top_count < top ? t->top_count : top;
    jw_text(o, "{");
    prompt_one(o, tok, t->id, t->logprob, t->rank, true);
    for (uint32_t i = 0; i < n; i++) {
        if (t->top[i].id != t->id) prompt_one(o, tok, t->top[i].id, t->top[i].logprob, i + 1, false);
    }
    jw_text(o, "}");
}

/* See delta.h. */
#include "server/generate/delta.h"

#include "config/base/utf8.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/json/value.h"

#include <sodium.h>
#include <string.h>

bool output_next(const struct chat_output *out, bool text, struct output_item *item)
{
    bool first = item->kind == DELTA_NONE;
    item->index += !first;
    if (first && out->reasoning.len) {
        item->kind = DELTA_REASONING;
        return true;
    }
    item->call += item->kind == DELTA_CALL;
    item->from = item->to;
    item->to = item->call < out->call_count ? out->calls[item->call].content_at : out->content.len;
    bool more = item->to > item->from || (item->kind <= DELTA_REASONING && text);
    item->kind = more ? DELTA_CONTENT : DELTA_CALL;
    return more || item->call < out->call_count;
}

void call_id_make(struct chat_call *call, const char *prefix)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[24];
    size_t n = strnlen(prefix, sizeof call->id - sizeof random - 1);
    randombytes_buf(random, sizeof random);
    memcpy(call->id, prefix, n);
    for (size_t i = 0; i < sizeof random; i++) call->id[n + i] = alphabet[random[i] % 62];
    call->id[n + sizeof random] = '\0';
}

void call_object_write(struct json_writer *o, const struct buf *arguments)
{
    json_t *v = NULL;
    const char *text = arguments->data ? arguments->data : "";
    bool wellformed = arguments->len && utf8_valid(text, arguments->len);
    enum status st = wellformed ? json_from_text(text, arguments->len, &v) : ST_FORMAT;
    if (!arguments->len) {
        jw_text(o, "{}");
    } else if (!st && json_is_object(v) && !json_big_int(v)) {
        jw_value(o, v);
    } else {
        jw_text(o, "{\"INVALID_JSON\":");
        jw_string(o, text, arguments->len);
        jw_text(o, "}");
    }
    json_decref(v);
}

static struct delta arguments(const struct chat_call *call, uint32_t i)
{
    enum { ARGUMENTS_MAX = 16384 }; /* some clients read lines of limited length */
    size_t len = call->arguments.len - call->shown;
    const char *text = call->arguments.data ? call->arguments.data + call->shown : "";
    if (len > ARGUMENTS_MAX) {
        len = ARGUMENTS_MAX;
        while (((unsigned char)text[len] & 0xC0) == 0x80) len--;
    }
    return (struct delta){DELTA_ARGUMENTS, i, text, len};
}

struct delta delta_next(const struct choice *c)
{
    const struct chat_output *out = c->out;
    const struct gen_prompt *p = c->prompt;
    if (!out) {
        size_t to = c->text.len > c->held ? c->text.len - c->held : 0, from = c->shown.text;
        return to > from ? (struct delta){DELTA_CONTENT, 0, c->text.data + from, to - from}
                         : (struct delta){0};
    }
    if (!c->shown.any && c->gen->q.echo && p->text) return (struct delta){DELTA_ECHO, 0, "", 0};
    if (out->reasoning.len > out->reasoning_shown) {
        return (struct delta){DELTA_REASONING, 0, out->reasoning.data + out->reasoning_shown,
                              out->reasoning.len - out->reasoning_shown};
    }
    for (uint32_t i = out->calls_shown; i <= out->call_count; i++) {
        const struct chat_call *call = i < out->call_count ? &out->calls[i] : NULL;
        size_t to = call ? call->content_at : out->content.len;
        if (to > out->content_shown) {
            return (struct delta){DELTA_CONTENT, 0, out->content.data + out->content_shown,
                                  to - out->content_shown};
        }
        if (!call) break;
        if (!call->begun_shown) return (struct delta){DELTA_CALL, i, "", 0};
        if (call->arguments.len > call->shown) return arguments(call, i);
    }
    return (struct delta){0};
}

void delta_shown(struct choice *c, const struct delta *delta)
{
    struct chat_output *out = c->out;
    c->shown.any = true;
    if (!out) c->shown.text += delta->len;
    if (!out) return;
    switch (delta->kind) {
    case DELTA_REASONING: out->reasoning_shown += delta->len; break;
    case DELTA_CONTENT: out->content_shown += delta->len; break;
    case DELTA_CALL:
        out->calls[delta->call].begun_shown = true;
        out->calls_shown = delta->call; /* earlier ones are complete */
        break;
    case DELTA_ARGUMENTS: out->calls[delta->call].shown += delta->len; break;
    default: break;
    }
}

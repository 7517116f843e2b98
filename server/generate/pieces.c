/* See pieces.h. */
#include "server/generate/pieces.h"

#include <sodium.h>
#include <string.h>

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

static struct piece arguments(const struct chat_call *call, uint32_t i)
{
    enum { ARGUMENTS_MAX = 16384 }; /* some clients read lines of limited length */
    size_t len = call->arguments.len - call->shown;
    const char *text = call->arguments.data ? call->arguments.data + call->shown : "";
    if (len > ARGUMENTS_MAX) {
        len = ARGUMENTS_MAX;
        while (((unsigned char)text[len] & 0xC0) == 0x80) len--;
    }
    return (struct piece){PIECE_ARGUMENTS, i, text, len};
}

struct piece piece_next(const struct choice *c)
{
    const struct chat_output *out = c->out;
    const struct gen_prompt *p = c->prompt;
    if (!c->shown.any && c->gen->p.echo && p->text)
        return (struct piece){PIECE_ECHO, 0, p->text, p->text_len};
    if (out->reasoning.len > out->reasoning_shown) {
        return (struct piece){PIECE_REASONING, 0, out->reasoning.data + out->reasoning_shown,
                              out->reasoning.len - out->reasoning_shown};
    }
    for (uint32_t i = out->calls_shown; i <= out->call_count; i++) {
        const struct chat_call *call = i < out->call_count ? &out->calls[i] : NULL;
        size_t to = call ? call->content_at : out->content.len;
        if (to > out->content_shown) {
            return (struct piece){PIECE_CONTENT, 0, out->content.data + out->content_shown,
                                  to - out->content_shown};
        }
        if (!call) break;
        if (!call->begun_shown) return (struct piece){PIECE_CALL, i, "", 0};
        if (call->arguments.len > call->shown) return arguments(call, i);
    }
    return (struct piece){0};
}

void piece_shown(struct choice *c, const struct piece *piece)
{
    struct chat_output *out = c->out;
    c->shown.any = true;
    switch (piece->kind) {
    case PIECE_REASONING: out->reasoning_shown += piece->len; break;
    case PIECE_CONTENT: out->content_shown += piece->len; break;
    case PIECE_CALL:
        out->calls[piece->call].begun_shown = true;
        out->calls_shown = piece->call; /* those before it are complete */
        break;
    case PIECE_ARGUMENTS: out->calls[piece->call].shown += piece->len; break;
    default: break;
    }
}

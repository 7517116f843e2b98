/* See logprobs_out.h. */
#include "server/dialect/logprobs_out.h"

#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>

uint32_t logprobs_top(const struct choice *c, const struct token_out *t)
{
    uint32_t top = c->gen->q.logprobs_top;
    return t->top_count < top ? t->top_count : top;
}

static void text_write(struct json_writer *o, const struct tokenizer *tok, uint32_t id)
{
    size_t len;
    const char *bytes = tok_bytes(tok, id, &len);
    jw_string(o, bytes, len);
}

void logprobs_token(struct json_writer *o, const struct choice *c, uint32_t id)
{
    char text[32];
    snprintf(text, sizeof text, "\"token_id:%u\"", id);
    if (c->gen->q.tokens_as_ids) jw_text(o, text);
    else text_write(o, c->gen->ctx->model->tok, id);
}

static void token_bytes(struct json_writer *o, const struct choice *c, uint32_t id)
{
    const struct tokenizer *tok = c->gen->ctx->model->tok;
    if ((tok_is_special(tok, id) && !c->logprobs.special_bytes) || !tok_exists(tok, id)) {
        jw_text(o, "null");
        return;
    }
    size_t len;
    const char *bytes = tok_bytes(tok, id, &len);
    jw_text(o, "[");
    for (size_t i = 0; i < len; i++) {
        if (i) jw_text(o, ",");
        jw_uint(o, (unsigned char)bytes[i]);
    }
    jw_text(o, "]");
}

void logprobs_value(struct json_writer *o, float logprob)
{
    jw_float32(o, logprob >= -9999.0f ? logprob : -9999.0f); /* also catches NaN */
}

static void triple(struct json_writer *o, const struct choice *c, uint32_t id, float logprob)
{
    jw_text(o, "{\"token\":");
    logprobs_token(o, c, id);
    jw_text(o, ",\"logprob\":");
    logprobs_value(o, logprob);
    jw_text(o, ",\"bytes\":");
    token_bytes(o, c, id);
}

enum status logprobs_entry(struct choice *c, const struct token_out *t, uint32_t id, size_t offset)
{
    struct json_writer o = {.buf = &c->logprobs.part[0]};
    (void)offset;
    if (c->logprobs.count++) jw_text(&o, ",");
    triple(&o, c, id, t->logprob);
    jw_text(&o, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < logprobs_top(c, t); i++) {
        if (i) jw_text(&o, ",");
        triple(&o, c, t->top[i].id, t->top[i].logprob);
        jw_text(&o, "}");
    }
    jw_text(&o, "]}");
    return o.st;
}

void logprobs_take(struct json_writer *o, struct logprobs *l, int part)
{
    if (o) jw_bytes(o, l->part[part].data, l->part[part].len);
    l->part[part].len = 0;
    l->count = 0;
}

static void ranked(struct json_writer *o, const struct tokenizer *tok, uint32_t id, float logprob,
                   uint32_t rank)
{
    jw_text(o, "\"");
    jw_put(o, "%u\":{\"logprob\":", id);
    logprobs_value(o, logprob);
    jw_put(o, ",\"rank\":%u,\"decoded_token\":", rank);
    text_write(o, tok, id);
    jw_text(o, "}");
}

void logprobs_prompt(struct json_writer *o, const struct generation *g, const struct gen_prompt *p)
{
    const struct tokenizer *tok = g->ctx->model->tok;
    jw_text(o, ",\"prompt_logprobs\":[null");
    for (uint32_t i = 1; i < p->prompt.token_count; i++) {
        const struct token_out *t = p->scores ? &p->scores[i] : NULL;
        jw_text(o, t ? ",{" : ",null");
        if (!t) continue;
        ranked(o, tok, t->id, t->logprob, t->rank);
        for (uint32_t k = 0; k < t->top_count && k < g->q.prompt_logprobs_top; k++) {
            if (t->top[k].id == t->id) continue;
            jw_text(o, ",");
            ranked(o, tok, t->top[k].id, t->top[k].logprob, k + 1);
        }
        jw_text(o, "}");
    }
    jw_text(o, "]");
}

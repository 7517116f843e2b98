/* What responses of /v1/completions have of their own. */
#include "server/dialect/openai.h"

static void text(struct json_writer *o, const struct choice *c)
{
    jw_text(o, ",\"text\":");
    openai_text(o, c, c->text.data, c->text.len);
}

static void delta_text(struct json_writer *o, struct choice *c, const struct delta *delta)
{
    jw_text(o, ",\"text\":");
    openai_text(o, c, delta->text, delta->len);
}

/* Ids with equal text would be duplicate keys: the most likely one keeps it. `seen` is in descending order of
 * probability. */
static bool key_taken(const struct choice *c, const uint32_t *seen, uint32_t count, uint32_t id)
{
    size_t len, other_len;
    const struct tokenizer *tok = c->gen->ctx->model->tok;
    const char *text = tok_bytes(tok, id, &len);
    for (uint32_t i = 0; i < count; i++) {
        if (seen[i] == id) return true;
        if (c->gen->q.tokens_as_ids) continue;
        const char *other = tok_bytes(tok, seen[i], &other_len);
        if (len == other_len && memcmp(text, other, len) == 0) return true;
    }
    return false;
}

static void top_write(struct json_writer *o, const struct choice *c, const struct token_out *t)
{
    uint32_t seen[SAMPLING_TOP_MAX + 1], count = 0, n = logprobs_top(c, t);
    jw_text(o, "{");
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t at = i < n ? t->top[i].id : t->id;
        if (key_taken(c, seen, count, at)) continue;
        if (count) jw_text(o, ",");
        seen[count++] = at;
        logprobs_token(o, c, at);
        jw_text(o, ":");
        logprobs_value(o, i < n ? t->top[i].logprob : t->logprob);
    }
    jw_text(o, "}");
}

enum status completion_logprob(struct choice *c, const struct token_out *t, uint32_t id, size_t offset)
{
    struct logprobs *l = &c->logprobs;
    struct json_writer o[4];
    for (int i = 0; i < 4; i++) {
        o[i] = (struct json_writer){.buf = &l->part[i]};
        if (l->count) jw_text(&o[i], ",");
    }
    l->count++;
    logprobs_token(&o[0], c, id);
    if (t) {
        logprobs_value(&o[1], t->logprob);
        top_write(&o[2], c, t);
    } else {
        jw_text(&o[1], "null");
        jw_text(&o[2], "null");
    }
    jw_uint(&o[3], offset);
    for (int i = 0; i < 4; i++)
        if (o[i].st) return o[i].st;
    return ST_OK;
}

static void lists(struct json_writer *o, struct logprobs *l)
{
    static const char *const names[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
                                        "],\"text_offset\":["};
    for (int i = 0; i < 4; i++) {
        jw_text(o, names[i]);
        logprobs_take(o, l, i);
    }
    jw_text(o, "]}");
}

const struct openai_form openai_completions = {.id = "cmpl-",
                                               .object = "text_completion",
                                               .chunk = "text_completion",
                                               .empty = ",\"text\":\"\"",
                                               .prompt_each = true,
                                               .text = text,
                                               .delta = delta_text,
                                               .logprobs = lists};

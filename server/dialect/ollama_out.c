/* Responses of /api/chat and /api/generate, whole or as lines. Event loop's thread. */
#include "server/dialect/ollama.h"

#include "config/base/clock.h"

#include <time.h>

/* What one object has of the output. */
struct part {
    const char *content, *thinking;
    size_t content_len, thinking_len;
    uint32_t calls_from, calls_to;
};

static void begin(struct json_writer *o, const struct generation *g)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    jw_put(o, "{\"model\":%s,\"created_at\":", gen_model(g));
    jw_time(o, now.tv_sec, now.tv_nsec);
}

static void call_write(struct json_writer *o, struct chat_call *call, uint32_t i)
{
    call_id_make(call, "call_");
    jw_put(o, "{\"id\":%s,\"function\":{\"index\":%u,\"name\":", call->id, i);
    jw_string(o, call->name.data, call->name.len);
    jw_text(o, ",\"arguments\":");
    call_object_write(o, &call->arguments);
    jw_text(o, "}}");
}

static void part_write(struct json_writer *o, struct choice *c, const struct part *p)
{
    bool generate = c->gen->dialect == &dialect_ollama_generate;
    jw_text(o, generate ? ",\"response\":" : ",\"message\":{\"role\":\"assistant\",\"content\":");
    jw_string(o, p->content_len ? p->content : "", p->content_len);
    if (p->thinking_len) {
        jw_text(o, ",\"thinking\":");
        jw_string(o, p->thinking, p->thinking_len);
    }
    for (uint32_t i = p->calls_from; i < p->calls_to; i++) {
        jw_text(o, i == p->calls_from ? ",\"tool_calls\":[" : ",");
        call_write(o, &c->out->calls[i], i);
    }
    if (p->calls_to > p->calls_from) jw_text(o, "]");
    if (!generate) jw_text(o, "}");
    if (!c->logprobs.count) return;
    jw_text(o, ",\"logprobs\":[");
    logprobs_take(o, &c->logprobs, 0);
    jw_text(o, "]");
}

/* Durations are in nanoseconds. The prompt's includes the wait for its turn. */
static void end(struct json_writer *o, const struct choice *c)
{
    const struct generation *g = c->gen;
    struct gen_usage u = gen_usage(g);
    uint64_t arrived = g->caller.arrived_us, first = c->first_us ? c->first_us : arrived;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{",\"total_duration\":", (now_us() - arrived) * 1000},
                   {",\"load_duration\":", 0},
                   {",\"prompt_eval_count\":", u.prompt},
                   {",\"prompt_eval_duration\":", (first - arrived) * 1000},
                   {",\"eval_count\":", u.completion},
                   {",\"eval_duration\":", (c->last_us > first ? c->last_us - first : 0) * 1000}};
    jw_text(o, c->finish == FIN_LENGTH ? ",\"done\":true,\"done_reason\":\"length\""
                                       : ",\"done\":true,\"done_reason\":\"stop\"");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        jw_text(o, numbers[i].name);
        jw_uint(o, numbers[i].value);
    }
    gen_cache_info(o, g);
}

enum status ollama_loaded(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    struct choice none = {.gen = g};
    begin(&o, g);
    part_write(&o, &none, &(struct part){0});
    jw_text(&o, ",\"done\":true,\"done_reason\":\"load\"}");
    return o.st ? gen_nomem(g) : ST_OK;
}

void ollama_write_response(struct json_writer *o, struct choice *c)
{
    const struct chat_output *out = c->out;
    begin(o, c->gen);
    part_write(o, c,
               &(struct part){.content = out->content.data,
                              .content_len = out->content.len,
                              .thinking = out->reasoning.data,
                              .thinking_len = out->reasoning.len,
                              .calls_to = out->call_count});
    end(o, c);
    jw_text(o, "}");
}

static void line(struct choice *c, const struct part *p)
{
    struct json_writer o = {.buf = c->gen->out};
    begin(&o, c->gen);
    part_write(&o, c, p);
    jw_text(&o, ",\"done\":false");
    gen_event_end(&o, c->gen);
}

/* Those before `to` are complete. */
static void calls_send(struct choice *c, uint32_t to)
{
    struct ollama_state *s = c->gen->dialect_state;
    if (to > s->sent) line(c, &(struct part){.calls_from = s->sent, .calls_to = to});
    s->sent = to;
}

void ollama_delta(struct choice *c, const struct delta *delta)
{
    struct ollama_state *s = c->gen->dialect_state;
    switch (delta->kind) {
    case DELTA_REASONING: line(c, &(struct part){.thinking = delta->text, .thinking_len = delta->len}); break;
    case DELTA_CONTENT:
        calls_send(c, s->begun);
        line(c, &(struct part){.content = delta->text, .content_len = delta->len});
        break;
    case DELTA_CALL:
        calls_send(c, s->begun);
        s->begun = delta->call + 1;
        break;
    default: break;
    }
}

void ollama_tail(struct choice *c)
{
    struct json_writer o = {.buf = c->gen->out};
    calls_send(c, c->out->call_count);
    begin(&o, c->gen);
    part_write(&o, c, &(struct part){0});
    end(&o, c);
    gen_event_end(&o, c->gen);
}

void ollama_error(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    error_json(g->e, ERROR_OLLAMA, g->out);
    jw_text(&o, "\n");
}

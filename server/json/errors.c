/* See errors.h. */
#include "server/json/errors.h"

#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "server/json/writer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops a character truncated by snprintf. */
static void trim_utf8(char *text)
{
    size_t len = strlen(text), at = len;
    uint32_t cp;
    while (at && len - at < 4 && ((unsigned char)text[--at] & 0xc0) == 0x80) continue;
    (void)utf8_decode(text + at, len - at, &cp);
    if (cp == UTF8_SHORT) text[at] = '\0';
}

enum status api_fail(struct api_error *e, int http, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    ASSERT_MSG(http >= 400 && http < 600 && code, "%d is no error, or has no code", http);
    if (e->http) return ST_INVALID;
    *e = (struct api_error){.http = http,
                            .type = http == 429   ? "rate_limit_error"
                                    : http >= 500 ? "server_error"
                                                  : "invalid_request_error",
                            .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    trim_utf8(e->param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    trim_utf8(e->message);
    return ST_INVALID;
}

/* text: of what is about the server, not the request. */
static const struct {
    int http;
    const char *code, *text;
} statuses[] = {
    [ST_NOMEM] = {503, "out_of_memory", "The server is out of memory."},
    [ST_INVALID] = {400, "invalid_value", NULL},
    [ST_TOO_LARGE] = {400, "context_length_exceeded", NULL},
    [ST_FORMAT] = {400, "invalid_value", NULL},
    [ST_IO] = {500, "internal_error", NULL},
    [ST_UNSUPPORTED] = {400, "unsupported_value", NULL},
    [ST_DEVICE] = {503, "engine_dead", "The engine has failed."},
    [ST_AGAIN] = {429, "rate_limit_exceeded", "Too many requests are waiting; try again later."},
    [ST_STOPPING] = {503, "server_draining", "The server is shutting down."},
    [ST_NOT_FOUND] = {404, "not_found", NULL},
};

enum status api_fail_status(struct api_error *e, enum status st, const char *param, const struct err *err)
{
    ASSERT_CMP(st, <, sizeof statuses / sizeof *statuses);
    const char *text = statuses[st].text;
    return api_fail(e, statuses[st].http, statuses[st].code, text ? NULL : param, "%s",
                    text          ? text
                    : err->msg[0] ? err->msg
                                  : status_name(st));
}

enum status api_nomem(struct api_error *e)
{
    return api_fail_status(e, ST_NOMEM, NULL, NULL);
}

static const char *anthropic_type(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return http >= 500 ? "api_error" : "invalid_request_error";
    }
}

void error_json(const struct api_error *e, enum error_shape shape, struct buf *out)
{
    struct json_writer o = {.buf = out};
    ASSERT(e->http && e->type);  /* api_fail has filled it */
    if (shape != ERROR_OPENAI) { /* no fields for parameter and code: the message names the parameter */
        char message[sizeof e->param + sizeof e->message + 2];
        bool named =
            !e->param[0] || (shape == ERROR_OLLAMA && strncmp(e->message, e->param, strlen(e->param)) == 0);
        snprintf(message, sizeof message, "%s%s%s", named ? "" : e->param, named ? "" : ": ", e->message);
        if (shape == ERROR_ANTHROPIC)
            jw_put(&o, "{\"type\":\"error\",\"error\":{\"type\":%s,\"message\":%s}}", anthropic_type(e->http),
                   message);
        else jw_put(&o, "{\"error\":%s}", message);
        return;
    }
    jw_put(&o, "{\"error\":{\"message\":%s,\"type\":%s,\"param\":%s,\"code\":%s", e->message, e->type,
           e->param[0] ? e->param : NULL, e->code);
    if (e->context) /* as llama.cpp says it */
        jw_put(&o, ",\"n_prompt_tokens\":%u,\"n_ctx\":%u", e->prompt_tokens, e->context);
    jw_text(&o, "}}");
}

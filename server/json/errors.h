/* Errors as the OpenAI API shows them: HTTP status and the four fields of the error object. Filled where the
 * error is detected, serialized where the response is written; and the one table from status codes of the
 * lower layers. Depends on no other module; any thread. */
#ifndef KVASIR_ERRORS_H
#define KVASIR_ERRORS_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct api_error {
    int http;          /* 400 ... */
    const char *type;  /* "invalid_request_error", "server_error" ...: static */
    const char *code;  /* "invalid_type" ...: static; NULL = null */
    char param[128];   /* path of the invalid field, "messages[2].content[0].image_url.url"; empty = null */
    char message[512]; /* one sentence, UTF-8 */
    uint32_t prompt_tokens, context; /* context_length_exceeded; else 0 */
};

/* Fills *e unless it holds an error already (http != 0), and returns ST_INVALID, so that an error is one
 * line: return api_fail(e, 400, "invalid_value", "temperature", "...", ...); code must be a static string,
 * param may be NULL. The type follows from http: 429 rate_limit_error, 5xx server_error, others
 * invalid_request_error. A truncated string stays valid UTF-8. */
enum status api_fail(struct api_error *e, int http, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* api_fail for the status of a lower layer, by one table: what is about the request (ST_INVALID: 400
 * invalid_value ...) with its param and message, what is about the server (ST_NOMEM, ST_DEVICE, ST_AGAIN,
 * ST_STOPPING: 503 or 429) with a message of its own; err may be NULL then. */
enum status api_fail_status(struct api_error *e, enum status st, const char *param, const struct err *err);
enum status api_nomem(struct api_error *e); /* of ST_NOMEM */
/* OpenAI's {"error":{...}}; Anthropic's {"type":"error","error":{...}}, whose types follow from http;
 * Ollama's
 * {"error":text}. */
enum error_shape { ERROR_OPENAI = 0, ERROR_ANTHROPIC, ERROR_OLLAMA };
void error_json(const struct api_error *e, enum error_shape shape, struct buf *out);

#endif

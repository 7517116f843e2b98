/* An error as the OpenAI API shows it: HTTP status and the four fields of the error object. Filled where the
 * fault is known, turned into JSON by the routes. Leaf: no allocation, any thread. */
#ifndef KVASIR_API_ERROR_H
#define KVASIR_API_ERROR_H

#include <stddef.h>

struct api_error {
    int http;          /* 400 ... */
    const char *type;  /* "invalid_request_error", "server_error" ...: static */
    const char *code;  /* "invalid_type" ...: static; NULL = null */
    char param[128];   /* path of the faulty field, "messages[2].content[0].image_url.url"; empty = null */
    char message[512]; /* one sentence, UTF-8 */
};

/* Fills all of it (err may be NULL). The type follows from http: 401, 403 and other 4xx are
 * invalid_request_error, 429 rate_limit_error, 5xx server_error. param may be NULL. A text that was cut stays
 * valid UTF-8. Returns http, so that a fault is one line. */
int api_error_set(struct api_error *err, int http, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif

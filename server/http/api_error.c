/* See api_error.h. */
#include "server/http/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops what snprintf left of a character that did not fit. */
static void trim_utf8(char *text)
{
    size_t len = strlen(text), back = 0;
    while (back < len && back < 4 && ((unsigned char)text[len - 1 - back] & 0xc0) == 0x80) back++;
    if (back == len) return;
    unsigned char lead = (unsigned char)text[len - 1 - back];
    size_t need = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (back < need) text[len - 1 - back] = '\0';
}

int api_error_set(struct api_error *err, int http, const char *code, const char *param, const char *fmt, ...)
{
    if (!err) return http;
    err->http = http;
    err->type = http == 429 ? "rate_limit_error" : http >= 500 ? "server_error" : "invalid_request_error";
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    trim_utf8(err->param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    trim_utf8(err->message);
    return http;
}

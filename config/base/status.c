/* See status.h. */
#include "config/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status err_set(struct err *err, enum status st, const char *fmt, ...)
{
    if (!err) return st;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    for (unsigned char *p = (unsigned char *)err->msg; *p; p++) {
        if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) *p++ = '?', *p = '?'; /* C1 */
        else if ((*p < 0x20 && *p != '\n') || *p == 0x7f) *p = '?';
    }
    return st;
}

enum status err_nomem(struct err *err, const char *what)
{
    return err_set(err, ST_NOMEM, "out of memory%s%.300s", what ? " for " : "", what ? what : "");
}

enum status err_prefix(struct err *err, enum status st, const char *fmt, ...)
{
    if (!err) return st;
    struct err old = *err;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    size_t at = (size_t)n < sizeof err->msg ? (size_t)n : sizeof err->msg - 1;
    size_t room = sizeof err->msg - at;
    if (room > 3) {
        memcpy(err->msg + at, ": ", 2);
        size_t len = strnlen(old.msg, sizeof old.msg);
        if (len > room - 3) len = room - 3;
        memcpy(err->msg + at + 2, old.msg, len);
        err->msg[at + 2 + len] = '\0';
    }
    return st;
}

const char *status_name(enum status st)
{
    switch (st) {
    case ST_OK: return "ok";
    case ST_NOMEM: return "out of memory";
    case ST_INVALID: return "invalid";
    case ST_TOO_LARGE: return "too large";
    case ST_FORMAT: return "malformed";
    case ST_IO: return "i/o error";
    case ST_UNSUPPORTED: return "unsupported";
    case ST_DEVICE: return "device error";
    case ST_AGAIN: return "busy";
    case ST_STOPPING: return "shutting down";
    case ST_NOT_FOUND: return "not found";
    }
    return "unknown";
}

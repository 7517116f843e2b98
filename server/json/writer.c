/* See writer.h. */
#include "server/json/writer.h"
#include "config/base/assert.h"
#include "config/base/decimal.h"

#include "config/base/json_text.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void jw_bytes(struct json_writer *o, const void *data, size_t len)
{
    ASSERT(o->buf && (data || !len));
    if (!o->st) o->st = buf_add(o->buf, data, len);
}

void jw_text(struct json_writer *o, const char *text)
{
    jw_bytes(o, text, strlen(text));
}

void jw_string(struct json_writer *o, const char *s, size_t len)
{
    struct json_escape e;
    jw_text(o, "\"");
    for (size_t i = 0; i < len && !o->st; i += e.plain + e.used) {
        e = json_escape_next(s + i, len - i, JSON_ESCAPE_LINES);
        jw_bytes(o, s + i, e.plain);
        jw_text(o, e.text);
    }
    jw_text(o, "\"");
}

void jw_cstring(struct json_writer *o, const char *s)
{
    if (s) {
        jw_string(o, s, strlen(s));
    } else {
        jw_text(o, "null");
    }
}

void jw_put(struct json_writer *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    for (const char *at; (at = strchr(fmt, '%')); fmt = at + 2 + (at[1] == 'l')) {
        jw_bytes(o, fmt, (size_t)(at - fmt));
        if (at[1] == 's') jw_cstring(o, va_arg(ap, const char *));
        else if (at[1] == 'u') jw_uint(o, va_arg(ap, unsigned));
        else if (at[1] == 'l' && at[2] == 'u') jw_uint(o, va_arg(ap, unsigned long));
        else if (at[1] == 'l' && at[2] == 'd') jw_int(o, va_arg(ap, long));
        else UNREACHABLE();
    }
    va_end(ap);
    jw_text(o, fmt);
}

void jw_uint(struct json_writer *o, uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    jw_text(o, text);
}

void jw_int(struct json_writer *o, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    jw_text(o, text);
}

void jw_float32(struct json_writer *o, float v)
{
    char text[DECIMAL_BYTES];
    if (!isfinite(v)) v = v > 0 ? 3.4028235e38f : -3.4028235e38f;
    /* Of up to six digits, %g leaves out zeros at the end. */
    decimal_shortest((double)v, true, fabsf(v) >= FLT_MIN && fabsf(v) < 1 ? 6 : 1, text);
    jw_text(o, text);
    if (!strpbrk(text, ".e")) jw_text(o, ".0"); /* stays a float for clients that distinguish 1 from 1.0 */
}

void jw_ids(struct json_writer *o, const uint32_t *ids, size_t count)
{
    jw_text(o, "[");
    for (size_t i = 0; i < count; i++) {
        if (i) jw_text(o, ",");
        jw_uint(o, ids[i]);
    }
    jw_text(o, "]");
}

void jw_time(struct json_writer *o, int64_t seconds, long ns)
{
    char text[48] = "";
    struct tm tm;
    time_t t = (time_t)seconds;
    size_t n = gmtime_r(&t, &tm) ? strftime(text, 32, "\"%Y-%m-%dT%H:%M:%S", &tm) : 0;
    if (ns < 0) snprintf(text + n, sizeof text - n, "Z\"");
    else snprintf(text + n, sizeof text - n, ".%09ldZ\"", ns);
    jw_text(o, text);
}

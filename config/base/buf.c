/* See buf.h. */
#include "config/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

enum status buf_reserve(struct buf *b, size_t extra)
{
    if (extra > b->max || b->len > b->max - extra) return ST_TOO_LARGE;
    size_t need = b->len + extra + 1;
    if (need <= b->cap) return ST_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap += cap / 2 + 64;
    char *p = realloc(b->data, cap);
    if (!p) return ST_NOMEM;
    b->data = p;
    b->cap = cap;
    return ST_OK;
}

enum status buf_add(struct buf *b, const void *data, size_t len)
{
    enum status st = buf_reserve(b, len);
    if (st) return st;
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return ST_OK;
}

enum status buf_adds(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

enum status buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    enum status st = n < 0 ? ST_INVALID : buf_reserve(b, (size_t)n);
    if (!st) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return st;
}

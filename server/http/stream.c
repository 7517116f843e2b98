/* See stream.h. */
#include "server/http/stream.h"

#include <string.h>

size_t stream_first_event(const char *text, size_t len, size_t max, const char *end)
{
    size_t most = len < max ? len : max, n = strlen(end);
    /* JSON escapes line feeds, so these only occur at the end of an event. */
    const char *at = memmem(text, most, end, n);
    return at ? (size_t)(at - text) + n : most;
}

static const char *event_end(const struct stream *s)
{
    return s->lines ? "\n" : SSE_END;
}

size_t stream_take(struct stream *s, struct buf *out, char *to, size_t max)
{
    if (s->at == out->len) return 0;
    size_t left = out->len - s->at, all = left < max ? left : max,
           n = s->raw ? all : stream_first_event(out->data + s->at, left, max, event_end(s));
    memcpy(to, out->data + s->at, n);
    s->at += n;
    if (s->at == out->len) s->at = out->len = 0;
    return n;
}

bool stream_drop(struct stream *s, struct buf *out)
{
    size_t n = strlen(event_end(s));
    bool part = s->at >= n && memcmp(out->data + s->at - n, event_end(s), n) != 0;
    if (part || (s->end && !out->len)) return false;
    buf_fini(out);
    *s = (struct stream){.lines = s->lines};
    return true;
}

/* See stream.h. */
#include "server/http/stream.h"

#include <string.h>

void sse_begin(struct json_writer *o)
{
    jw_text(o, "data: ");
}

void sse_begin_named(struct json_writer *o, const char *name)
{
    jw_text(o, "event: ");
    jw_text(o, name);
    jw_text(o, "\n");
    sse_begin(o);
}

void sse_end(struct json_writer *o)
{
    jw_text(o, "\n\n");
}

void sse_done(struct json_writer *o)
{
    jw_text(o, "data: [DONE]\n\n");
}

size_t sse_first_event(const char *text, size_t len, size_t max)
{
    size_t most = len < max ? len : max;
    /* JSON escapes line feeds, so "\n\n" only occurs at the end of an event. */
    const char *end = memmem(text, most, "\n\n", 2);
    return end ? (size_t)(end - text) + 2 : most;
}

size_t stream_take(struct stream *s, struct buf *out, char *to, size_t max)
{
    if (s->at == out->len) return 0;
    size_t n = sse_first_event(out->data + s->at, out->len - s->at, max);
    memcpy(to, out->data + s->at, n);
    s->at += n;
    if (s->at == out->len) s->at = out->len = 0;
    return n;
}

bool stream_drop(struct stream *s, struct buf *out)
{
    bool part = s->at > 1 && memcmp(out->data + s->at - 2, "\n\n", 2) != 0;
    if (part || (s->end && !out->len)) return false;
    buf_fini(out);
    *s = (struct stream){0};
    return true;
}

/* See stream.h. */
#include "server/http/stream.h"

#include "server/http/sse.h"

#include <string.h>

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

/* See sse.h. */
#include "server/http/sse.h"

#include <string.h>

void sse_begin(struct json_out *o)
{
    jo_text(o, "data: ");
}

void sse_end(struct json_out *o)
{
    jo_text(o, "\n\n");
}

void sse_done(struct json_out *o)
{
    jo_text(o, "data: [DONE]\n\n");
}

size_t sse_whole_events(const char *text, size_t len, size_t max)
{
    if (len <= max) return len;
    /* JSON escapes line feeds, so "\n\n" is the end of an event and nothing else. */
    for (size_t n = max; n >= 2; n--) {
        const char *at = memrchr(text, '\n', n);
        if (!at || at == text) break;
        n = (size_t)(at - text) + 1;
        if (at[-1] == '\n') return n;
    }
    return max;
}

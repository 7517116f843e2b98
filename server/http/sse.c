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

size_t sse_first_event(const char *text, size_t len, size_t max)
{
    size_t most = len < max ? len : max;
    /* JSON escapes line feeds, so "\n\n" is the end of an event and nothing else. */
    const char *end = memmem(text, most, "\n\n", 2);
    return end ? (size_t)(end - text) + 2 : most;
}

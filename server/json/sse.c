/* See sse.h. */
#include "server/json/sse.h"

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
    jw_text(o, SSE_END);
}

void sse_done(struct json_writer *o)
{
    jw_text(o, "data: [DONE]\n\n");
}

/* Server-sent events: "data: " + one line of JSON + "\n\n", with a preceding "event: " line in dialects with
 * named events; or lines of JSON; and how much libmicrohttpd has taken. `out`: the events, of struct
 * response. No state of its own. */
#ifndef KVASIR_STREAM_H
#define KVASIR_STREAM_H

#include "server/json/writer.h"

#include <stdbool.h>

struct stream {
    size_t at;  /* bytes of out handed over */
    bool end;   /* no more events follow */
    bool lines; /* of JSON, not server-sent events */
};

size_t stream_take(struct stream *s, struct buf *out, char *to,
                   size_t max); /* one event, or part of one; 0: none */
/* Drops what is not handed over yet, including the end mark, so that another event can follow. False: part of
 * an event, or everything, is already handed over. */
bool stream_drop(struct stream *s, struct buf *out);

void sse_begin(struct json_writer *o);                         /* "data: " */
void sse_begin_named(struct json_writer *o, const char *name); /* "event: NAME", "data: " */
void sse_end(struct json_writer *o);                           /* "\n\n" */
void sse_done(struct json_writer *o);                          /* the last event */
/* Bytes of `text` to hand over when at most max fit: its first event, because each event is an HTTP chunk of
 * its own; max if it doesn't fit. end: what ends an event, SSE_END or a line feed. */
#define SSE_END "\n\n"
size_t stream_first_event(const char *text, size_t len, size_t max, const char *end);

#endif

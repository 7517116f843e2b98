/* Server-sent events: "data: " + one line of JSON + "\n\n", with a preceding "event: " line in dialects with
 * named events; or lines of JSON; and how much libmicrohttpd has taken. `out`: the events, of struct
 * response. No state of its own. */
#ifndef KVASIR_STREAM_H
#define KVASIR_STREAM_H

#include "server/json/sse.h"

#include <stdbool.h>

struct stream {
    size_t at;  /* bytes of out handed over */
    bool end;   /* no more events follow */
    bool lines; /* of JSON, not server-sent events */
    bool cut;   /* with end: the rest is lost, and the connection ends without it */
    bool sized; /* it isn't of events: */
    uint64_t size;
    bool raw; /* a file */
};

size_t stream_take(struct stream *s, struct buf *out, char *to,
                   size_t max); /* one event, or part of one; 0: none */
/* Drops what is not handed over yet, including the end mark, so that another event can follow. False: part of
 * an event, or everything, is already handed over. */
bool stream_drop(struct stream *s, struct buf *out);

/* Bytes of `text` to hand over when at most max fit: its first event, because each event is an HTTP chunk of
 * its own; max if it doesn't fit. end: what ends an event, SSE_END or a line feed. */
size_t stream_first_event(const char *text, size_t len, size_t max, const char *end);

#endif

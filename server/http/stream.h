/* Server-sent events: "data: " + one line of JSON + "\n\n", with an "event: " line in front where a dialect
 * has named events; and how much of them libmicrohttpd has taken. `out`: the events, of struct answer. No
 * state of its own. */
#ifndef KVASIR_STREAM_H
#define KVASIR_STREAM_H

#include "server/http/json_writer.h"

#include <stdbool.h>

struct stream {
    size_t at; /* bytes of out that are handed over */
    bool end;  /* nothing follows them */
};

size_t stream_take(struct stream *s, struct buf *out, char *to,
                   size_t max); /* one event, or a part; 0: none */
/* Drops what was not handed over, including the end mark, so that another event can follow. False: part of an
 * event, or everything, was handed over already. */
bool stream_drop(struct stream *s, struct buf *out);

void sse_begin(struct json_writer *o);                         /* "data: " */
void sse_begin_named(struct json_writer *o, const char *name); /* "event: NAME", "data: " */
void sse_end(struct json_writer *o);                           /* "\n\n" */
void sse_done(struct json_writer *o);                          /* the last event */
/* Bytes of `text` to hand over when at most max fit: its first event, for each makes an HTTP chunk of its
 * own; max where it doesn't fit. */
size_t sse_first_event(const char *text, size_t len, size_t max);

#endif

/* How far a stream of events has been handed to libmicrohttpd. `out`: the events, of struct answer. Event
 * loop's thread. */
#ifndef KVASIR_STREAM_H
#define KVASIR_STREAM_H

#include "config/base/buf.h"

#include <stdbool.h>

struct stream {
    size_t at; /* bytes of out that are handed over */
    bool end;  /* nothing follows them */
};

size_t stream_take(struct stream *s, struct buf *out, char *to,
                   size_t max); /* one event, or a part; 0: none */
/* Drops what was not handed over, the end too, so that another can follow. False: a part of an event was, or
 * all. */
bool stream_drop(struct stream *s, struct buf *out);

#endif

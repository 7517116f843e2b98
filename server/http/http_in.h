/* A strict parser for the framing of HTTP/1.x requests: where a head ends, how long its body is, where the
 * next request begins. Bytes that two parsers could read differently are refused, because they allow request
 * smuggling. All other requests are rewritten for libmicrohttpd, whose own parser is more lenient: heads with
 * one line per field, bodies with the framing that the head announces, chunks without extensions and
 * trailers. Sources: RFC 9112 §2.2, §3, §5, §6, §7.1, RFC 9110 §5.1, §5.5, §7.2. Pure: no I/O, one connection
 * each. */
#ifndef KVASIR_HTTP_IN_H
#define KVASIR_HTTP_IN_H

#include "config/base/buf.h"
#include "server/http/errors.h"

#include <stdbool.h>
#include <stdint.h>

enum http_event {
    HTTP_MORE, /* all input was taken; more is needed */
    HTTP_HEAD, /* the head is complete and in `out` */
    HTTP_END,  /* the request is complete; what follows is the next one */
    HTTP_BAD,  /* `error` says what is wrong; nothing more can be read from the connection */
};
enum http_state {
    HTTP_IN_HEAD = 0,
    HTTP_IN_LENGTH,
    HTTP_IN_SIZE,
    HTTP_IN_CHUNK,
    HTTP_IN_CHUNK_END,
    HTTP_IN_TRAILER,
    HTTP_IN_END
};

struct http_in {
    enum http_state state;
    struct buf line; /* what has come of a line: of the head, a chunk's size, a trailer */
    struct buf head; /* of the head, rewritten */
    uint64_t left;   /* bytes of the body, or of the chunk, to come */
    size_t bytes;    /* of the head, or of the trailers, so far */
    uint32_t lines, blank, hosts, lengths, codings; /* lines: of the head; blank: empty ones before it */
    bool http10, chunked, wrong_coding;
    bool expects; /* the client waits for 100 Continue */
    char id[132]; /* X-Request-Id, as it was sent, where that fits; or empty */
    struct api_error error;
};

void http_in_init(struct http_in *h);
void http_in_fini(struct http_in *h);
/* Ready for the next request of the connection; after HTTP_END. */
void http_in_next(struct http_in *h);
/* Has a part of a head come? */
bool http_in_begun(const struct http_in *h);
/* Takes *used of len bytes, up to the end of a head, a request or the first fault, and appends to out what
 * libmicrohttpd is to read. A lack of memory is HTTP_BAD with status 503. */
enum http_event http_in_feed(struct http_in *h, const char *data, size_t len, size_t *used, struct buf *out);

#endif

/* A strict parser for the framing of HTTP/1.x requests: where a head ends, how long its body is, where the
 * next request begins. Bytes that two parsers could read differently are refused, because they allow request
 * smuggling. Accepted requests are rewritten for libmicrohttpd, whose own parser is more lenient: heads with
 * one line per field, bodies with the framing that the head announces, chunks without extensions and
 * trailers. Sources: RFC 9112 §2.2, §3, §5, §6, §7.1, RFC 9110 §5.1, §5.5, §7.2. Pure: no I/O, one connection
 * each. */
#ifndef KVASIR_HTTP_PARSER_H
#define KVASIR_HTTP_PARSER_H

#include "config/base/buf.h"
#include "server/json/errors.h"

#include <stdbool.h>
#include <stdint.h>

enum http_event {
    HTTP_MORE, /* all input is consumed; more is needed */
    HTTP_HEAD, /* the head is complete and in `out` */
    HTTP_END,  /* the request is complete; what follows is the next one */
    HTTP_BAD,  /* `error` says what is wrong; nothing more can be read from the connection */
};
enum http_state {
    HTTP_PARSER_HEAD = 0,
    HTTP_PARSER_LENGTH,
    HTTP_PARSER_SIZE,
    HTTP_PARSER_CHUNK,
    HTTP_PARSER_CHUNK_END,
    HTTP_PARSER_TRAILER,
    HTTP_PARSER_END
};

struct http_parser {
    enum http_state state;
    struct buf line; /* the current partial line: of the head, a chunk size, a trailer */
    struct buf head; /* of the head, rewritten */
    uint64_t left;   /* bytes remaining in the body or chunk */
    size_t bytes;    /* of the head or trailers so far */
    uint32_t lines, blank, hosts, lengths, codings; /* lines: of the head; blank: empty ones before it */
    bool http10, chunked, wrong_coding;
    bool expects; /* the client waits for 100 Continue */
    char id[132]; /* X-Request-Id as sent, if it fits; else empty */
    struct api_error error;
};

void http_parser_init(struct http_parser *h);
void http_parser_fini(struct http_parser *h);
/* Resets for the connection's next request, after HTTP_END. */
void http_parser_next(struct http_parser *h);
/* Has part of a head been received? */
bool http_parser_begun(const struct http_parser *h);
/* Consumes *used of len bytes, up to the end of a head, a request or the first error, and appends the
 * rewritten bytes for libmicrohttpd to out. Out of memory is HTTP_BAD with status 503. */
enum http_event http_parser_feed(struct http_parser *h, const char *data, size_t len, size_t *used,
                                 struct buf *out);

#endif

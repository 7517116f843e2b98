/* WebSocket mode of a connection (RFC 6455, with wslay): a text message of the client becomes a POST to
 * libmicrohttpd, and each event of the response a message to the client. libmicrohttpd handles one request
 * after the other, so requests, limits and errors are those of HTTP. No I/O: both directions append to
 * buffers. Event loop's thread. */
#ifndef KVASIR_WEBSOCKET_H
#define KVASIR_WEBSOCKET_H

#include "config/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct request;
struct websocket;

/* For an upgrade request. up: to libmicrohttpd; down: to the client; both live longer. NULL: out of memory,
 * or r->response.error says what is wrong with the request. */
struct websocket *websocket_open(struct request *r, struct buf *up, struct buf *down);
void websocket_free(struct websocket *w); /* NULL is fine */
/* Bytes from the client. False: out of memory, or messages that wait are too large. */
bool websocket_receive(struct websocket *w, const char *data, size_t len);
/* Bytes of libmicrohttpd's responses, beginning with that of the upgrade request (204, without a body). */
bool websocket_respond(struct websocket *w, const char *data, size_t len);
/* Sends a close frame, unless one is sent. */
void websocket_close(struct websocket *w, uint16_t code);
bool websocket_closed(const struct websocket *w);    /* a close frame was sent or received */
size_t websocket_partial(const struct websocket *w); /* bytes held of an incomplete message */

#endif

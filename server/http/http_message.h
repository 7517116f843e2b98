/* The client's side of a request: what libmicrohttpd read, and its connection, which is suspended while there
 * is nothing to send. Event loop's thread; a worker may read the body. */
#ifndef KVASIR_HTTP_MESSAGE_H
#define KVASIR_HTTP_MESSAGE_H

#include "config/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct MHD_Connection;
struct sockaddr;

enum method { M_GET = 1, M_HEAD = 2, M_POST = 4, M_OPTIONS = 8, M_DELETE = 16, M_OTHER = 32 };

#define REQUEST_ID_BYTES 132u
#define CLIENT_BYTES     64u

struct http_message {
    struct MHD_Connection *mhd; /* NULL once libmicrohttpd is done with the request */
    enum method method;
    bool suspended;            /* the connection is suspended */
    bool queued;               /* libmicrohttpd has the response */
    bool close_after;          /* the response has Connection: close */
    char id[REQUEST_ID_BYTES]; /* X-Request-Id, also the base of the object's id */
    bool id_from_client;
    char *path;               /* normalised, still percent-encoded */
    char *cors;               /* Access-Control-Allow-Headers to echo in a preflight, or NULL */
    const char *allow_origin; /* Access-Control-Allow-Origin, or NULL: libmicrohttpd's, or static */
    struct buf body;
    uint64_t body_seen; /* bytes, including dropped ones */
    size_t body_marks;  /* bytes that separate JSON values: bounds the number of values */
    size_t body_kept; /* bytes of encoded images that outlive the body; counted in the server's body_bytes */
    bool has_key, one_key;     /* has a valid API key; it is the server's only one */
    bool admin;                /* may give orders that slow down others: its key says so, or, without keys,
                                  it comes from this machine */
    bool may_precede;          /* its `priority` also applies against other tenants' requests */
    uint8_t key[32];           /* its SHA-256 */
    char client[CLIENT_BYTES]; /* client_name */
    bool inside;               /* of the process itself: a line of a batch (server/jobs/) */
    uint64_t websocket;        /* its number; 0: the request did not come over one */
    uint64_t arrived_us;       /* monotonic */
    int64_t created;           /* Unix seconds */
};

/* "%41" -> "A", in place; returns the length. Anything else is unchanged. */
size_t percent_decode(char *text);
const char *method_name(enum method method); /* "OTHER": unknown */
bool request_id_ok(const char *s);           /* valid as a request id */
void request_id_make(char id[REQUEST_ID_BYTES],
                     const char *given); /* the client's (may be NULL) if it is valid, else a new one */
/* Whose share an address has: an IPv6 network of 64 bits is one. */
uint64_t client_holder(const struct sockaddr *from);
void client_name(const struct sockaddr *from, char name[CLIENT_BYTES]); /* in numbers; "" on a Unix socket */
/* From the request line and the headers. False: out of memory; must still be closed. */
bool http_message_open(struct http_message *x, struct MHD_Connection *c, const char *method,
                       const char *target, size_t body_max);
void http_message_close(struct http_message *x);
const char *http_message_header(const struct http_message *x, const char *name); /* NULL: absent */
const char *http_message_argument(const struct http_message *x,
                                  const char *name); /* of the query string; NULL: absent */
enum status http_message_body_add(struct http_message *x, const char *data, size_t len) KV_MUST_CHECK;
void http_message_sleep(struct http_message *x);
bool http_message_wake(struct http_message *x); /* false: it was not suspended, or has closed */

#endif

/* TLS of a client's socket (GnuTLS), under conn.c: calls like recv and send, on a non-blocking socket. Event
 * loop's thread. Internal to server/. */
#ifndef KVASIR_TLS_H
#define KVASIR_TLS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls_cert; /* certificate and key, as their files were when it was read */
struct tls;      /* one connection */

enum status tls_cert_load(const char *cert, const char *key, unsigned pipe_ms, struct tls_cert **out,
                          struct err *err) KV_MUST_CHECK;
void tls_cert_release(struct tls_cert *c); /* connections keep their own reference; NULL is fine */

struct tls *tls_open(struct tls_cert *c, int fd); /* NULL: out of memory */
void tls_close(struct tls *t);                    /* NULL is fine */
bool tls_is_plain(const struct tls *t); /* what waits to be read in its handshake is a plain HTTP request */
/* 1: done; 0: more to read, or to write (tls_writes); -1: failed. */
int tls_handshake(struct tls *t);
bool tls_writes(const struct tls *t);
/* As recv and send: -1 with errno, EAGAIN among them. After EAGAIN, send is called with the same bytes. */
ssize_t tls_recv(struct tls *t, void *to, size_t len);
ssize_t tls_send(struct tls *t, const void *data, size_t len);
void tls_bye(struct tls *t); /* the last bytes are sent */

#endif

/* See tls.h. */
#include "server/http/tls.h"

#include "config/base/file.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Of the machine's own policy nothing is taken over: it may allow more. */
#define PRIORITY                                                                                             \
    "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:"             \
    "+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:-MAC-ALL:+AEAD"

struct tls_cert {
    gnutls_certificate_credentials_t own;
    gnutls_priority_t priority;
    unsigned refs;
};

struct tls {
    struct tls_cert *cert;
    gnutls_session_t own;
    bool begun; /* a part of the handshake may be read: the next byte is any */
};

static enum status pem_read(const char *flag, const char *path, unsigned pipe_ms, gnutls_datum_t *out,
                            struct err *err)
{
    char *text;
    size_t len;
    enum status st = file_text_piped(path, FILE_FLAG_MAX, pipe_ms, &text, &len, err);
    if (st) return err_prefix(err, ST_INVALID, "%s", flag);
    *out = (gnutls_datum_t){(unsigned char *)text, (unsigned)len};
    return ST_OK;
}

enum status tls_cert_load(const char *cert, const char *key, unsigned pipe_ms, struct tls_cert **out,
                          struct err *err)
{
    gnutls_datum_t chain = {0}, secret = {0};
    struct tls_cert *c = calloc(1, sizeof *c);
    if (!c || gnutls_certificate_allocate_credentials(&c->own)) {
        free(c);
        return err_nomem(err, "a certificate");
    }
    c->refs = 1;
    enum status st = pem_read("--tls-cert", cert, pipe_ms, &chain, err);
    if (!st) st = pem_read("--tls-key", key, pipe_ms, &secret, err);
    int rc = st ? 0 : gnutls_priority_init(&c->priority, PRIORITY, NULL);
    if (!st && !rc) rc = gnutls_certificate_set_x509_key_mem(c->own, &chain, &secret, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        st = err_set(err, ST_INVALID, "--tls-cert %.150s, --tls-key %.150s: %s", cert, key,
                     gnutls_strerror(rc));
    if (secret.data) gnutls_memset(secret.data, 0, secret.size);
    free(secret.data);
    free(chain.data);
    if (st) tls_cert_release(c);
    else *out = c;
    return st;
}

void tls_cert_release(struct tls_cert *c)
{
    if (!c || --c->refs) return;
    gnutls_certificate_free_credentials(c->own);
    if (c->priority) gnutls_priority_deinit(c->priority);
    free(c);
}

struct tls *tls_open(struct tls_cert *c, int fd)
{
    static const gnutls_datum_t http = {(unsigned char *)"http/1.1", 8};
    struct tls *t = calloc(1, sizeof *t);
    if (!t || gnutls_init(&t->own, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL)) {
        free(t);
        return NULL;
    }
    t->cert = c;
    c->refs++;
    if (gnutls_priority_set(t->own, c->priority) || gnutls_alpn_set_protocols(t->own, &http, 1, 0) ||
        gnutls_credentials_set(t->own, GNUTLS_CRD_CERTIFICATE, c->own)) {
        tls_close(t);
        return NULL;
    }
    gnutls_transport_set_int(t->own, fd);
    return t;
}

void tls_close(struct tls *t)
{
    if (!t) return;
    gnutls_deinit(t->own);
    tls_cert_release(t->cert);
    free(t);
}

int tls_handshake(struct tls *t)
{
    t->begun = true;
    int rc = gnutls_handshake(t->own);
    if (!rc || !gnutls_error_is_fatal(rc)) return rc == 0;
    (void)gnutls_alert_send_appropriate(t->own, rc); /* the client says which version or suite it lacks */
    return -1;
}

bool tls_is_plain(const struct tls *t)
{
    char first;
    return !t->begun && recv(gnutls_transport_get_int(t->own), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
           first >= 'A' && first <= 'Z'; /* a TLS record begins with 20 to 24 */
}

bool tls_writes(const struct tls *t)
{
    return gnutls_record_get_direction(t->own) == 1;
}

static ssize_t result(ssize_t n)
{
    if (n >= 0) return n;
    bool ends = gnutls_error_is_fatal((int)n) || n == GNUTLS_E_REHANDSHAKE; /* nobody needs it */
    errno = n == GNUTLS_E_INTERRUPTED ? EINTR : ends ? EPROTO : EAGAIN;
    return -1;
}

ssize_t tls_recv(struct tls *t, void *to, size_t len)
{
    ssize_t n = gnutls_record_recv(t->own, to, len);
    return n == GNUTLS_E_PREMATURE_TERMINATION ? 0 : result(n);
}

ssize_t tls_send(struct tls *t, const void *data, size_t len)
{
    return result(gnutls_record_send(t->own, data, len));
}

void tls_bye(struct tls *t)
{
    (void)gnutls_bye(t->own, GNUTLS_SHUT_WR);
}

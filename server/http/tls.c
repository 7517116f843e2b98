/* See tls.h. */
#include "server/http/tls.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>

struct tls_cert {
    gnutls_certificate_credentials_t own;
    unsigned refs;
};

struct tls {
    struct tls_cert *cert;
    gnutls_session_t own;
};

enum status tls_cert_load(const char *cert, const char *key, struct tls_cert **out, struct err *err)
{
    struct tls_cert *c = calloc(1, sizeof *c);
    if (!c || gnutls_certificate_allocate_credentials(&c->own)) {
        free(c);
        return err_nomem(err, "a certificate");
    }
    c->refs = 1;
    int rc = gnutls_certificate_set_x509_key_file(c->own, cert, key, GNUTLS_X509_FMT_PEM);
    if (rc >= 0) {
        *out = c;
        return ST_OK;
    }
    tls_cert_release(c);
    return err_set(err, ST_INVALID, "--tls-cert %.150s, --tls-key %.150s: %s", cert, key,
                   rc == GNUTLS_E_FILE_ERROR ? "one of the files can't be read" : gnutls_strerror(rc));
}

void tls_cert_release(struct tls_cert *c)
{
    if (!c || --c->refs) return;
    gnutls_certificate_free_credentials(c->own);
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
    if (gnutls_set_default_priority(t->own) || gnutls_alpn_set_protocols(t->own, &http, 1, 0) ||
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
    int rc = gnutls_handshake(t->own);
    return rc == 0 ? 1 : gnutls_error_is_fatal(rc) ? -1 : 0;
}

bool tls_writes(const struct tls *t)
{
    return gnutls_record_get_direction(t->own) == 1;
}

static ssize_t result(ssize_t n)
{
    if (n >= 0) return n;
    errno = n == GNUTLS_E_INTERRUPTED ? EINTR : gnutls_error_is_fatal((int)n) ? EPROTO : EAGAIN;
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

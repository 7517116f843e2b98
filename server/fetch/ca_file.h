/* Where this system keeps the certificates of authorities. libcurl has one path compiled in, Debian's; a
 * program that brings its libraries along runs elsewhere too. */
#ifndef KVASIR_CA_FILE_H
#define KVASIR_CA_FILE_H

#include "config/base/env.h"

#include <stddef.h>
#include <unistd.h>

/* SSL_CERT_FILE, or the first of the known files that is there; NULL: libcurl's own. */
static inline const char *ca_file(void)
{
    static const char *const known[] = {"/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch, Alpine */
                                        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
                                        "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *own = env_get("SSL_CERT_FILE");
    if (own && *own) return own;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (access(known[i], R_OK) == 0) return known[i];
    return NULL;
}

#endif

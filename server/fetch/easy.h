/* What all libcurl handles of ours have. */
#ifndef KVASIR_EASY_H
#define KVASIR_EASY_H

#include "config/base/env.h"
#include "config/options.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* body gets `user`, which is the handle's CURLINFO_PRIVATE too. False: out of memory. */
static inline bool easy_begin(CURL *e, long connect_ms, curl_write_callback body, void *user)
{
    /* Where systems keep the certificates of authorities. libcurl has one path compiled in, Debian's; a
     * program that brings its libraries along runs elsewhere too. */
    static const char *const known[] = {"/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch, Alpine */
                                        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
                                        "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *ca = env_get("SSL_CERT_FILE");
    unsigned bad = 0;
    for (size_t i = 0; !(ca && *ca) && i < sizeof known / sizeof *known; i++)
        if (access(known[i], R_OK) == 0) ca = known[i];
    if (ca && *ca) bad |= curl_easy_setopt(e, CURLOPT_CAINFO, ca);
    bad |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= curl_easy_setopt(e, CURLOPT_USERAGENT, "kvasir/" KVASIR_VERSION);
    bad |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, body);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEDATA, user);
    bad |= curl_easy_setopt(e, CURLOPT_PRIVATE, user);
    return !bad;
}

#endif

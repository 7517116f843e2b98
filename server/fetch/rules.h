/* Which URLs are fetched: http and https to the hosts of --allow-remote-media. Pure. */
#ifndef KVASIR_FETCH_RULES_H
#define KVASIR_FETCH_RULES_H

#include "config/base/status.h"
#include "server/media/image_decode.h"

#include <curl/curl.h>

#define FETCH_URL_BYTES 8192u
/* The same message for a host that is not listed and for a forbidden address: clients learn nothing about how
 * names resolve here. */
#define FETCH_NOT_FROM_HERE "this server does not fetch from the host and port of the URL"

struct host_rule {
    char *host;    /* lower case; "" = any. Owned */
    bool below;    /* its subdomains: "*.example.org" */
    unsigned port; /* 0 = the scheme's default; ANY_PORT */
};
#define ANY_PORT 65536u
struct host_rules {
    struct host_rule *list; /* owned */
    size_t count;
};

/* "images.example.org,*.example.com:8443,[2001:db8::1]:*" -> *out. ST_INVALID names the invalid part. */
enum status host_rules_parse(const char *text, struct host_rules *out, struct err *err) KV_MUST_CHECK;
void host_rules_free(struct host_rules *r);

/* Parses the URL once: *out is what is checked and then connected to (CURLOPT_CURLU). base: for a redirect,
 * the URL that it may be relative to, else NULL. *out is owned by the caller (curl_url_cleanup), set with
 * IMAGE_OK. */
enum image_error url_check(const struct host_rules *rules, CURLU *base, const char *url, size_t len,
                           CURLU **out, struct err *err);

#endif

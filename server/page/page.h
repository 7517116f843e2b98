/* The page at `/`: small files of HTML, CSS and JavaScript, compressed and built into the program. */
#ifndef KVASIR_PAGE_H
#define KVASIR_PAGE_H

#include "config/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

struct page_asset {
    const char *name, *etag, *etag_gzip; /* the ETags differ: each names its bytes */
    const unsigned char *data, *end;     /* gzip */
};

/* Value of Content-Security-Policy: scripts, styles and requests of this server alone. */
#define PAGE_POLICY                                                                                          \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; " \
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const struct page_asset *page_asset(const char *name); /* NULL: there is none */
const char *page_type(const char *name);               /* Content-Type */
bool page_wanted(const char *accept);                  /* the client is a browser; accept may be NULL */
bool page_gzip(const char *accept_encoding);           /* may be NULL */
bool page_unchanged(const struct page_asset *a, const char *if_none_match);
enum status page_inflate(const struct page_asset *a, struct buf *out);

#endif

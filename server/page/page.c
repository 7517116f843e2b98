/* See page.h. The Makefile writes page_assets.inc: a line ASSET(number, name, compressed file, hash) each. */
#include "server/page/page.h"

#define ZLIB_CONST /* input is not written */
#include <string.h>
#include <strings.h>
#include <zlib.h>

#define ASSET(n, name, file, hash)                                                                           \
    __asm__(".pushsection .rodata\n"                                                                         \
            "kvasir_page_" #n ": .incbin \"" file "\"\n"                                                     \
            "kvasir_page_end_" #n ":\n"                                                                      \
            ".popsection\n");                                                                                \
    extern const unsigned char kvasir_page_##n[], kvasir_page_end_##n[];
#include "page_assets.inc"
#undef ASSET

#define ASSET(n, name, file, hash)                                                                           \
    {name, "\"" hash "\"", "\"" hash "-gzip\"", kvasir_page_##n, kvasir_page_end_##n},
static const struct page_asset assets[] = {
#include "page_assets.inc"
};

const struct page_asset *page_asset(const char *name)
{
    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strcmp(name, assets[i].name) == 0) return &assets[i];
    return NULL;
}

const char *page_type(const char *name)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".png", "image/png"},
                                           {".woff2", "font/woff2"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (dot && strcmp(dot, types[i][0]) == 0) return types[i][1];
    return "application/octet-stream";
}

bool page_wanted(const char *accept)
{
    return accept && strcasestr(accept, "text/html");
}

bool page_gzip(const char *accept_encoding)
{
    const char *at = accept_encoding ? strcasestr(accept_encoding, "gzip") : NULL;
    if (!at) return false;
    at += 4 + strspn(at + 4, " \t");
    return *at != ';' || strpbrk(at, "123456789,") != NULL;
}

bool page_unchanged(const struct page_asset *a, const char *if_none_match)
{
    return if_none_match && (strstr(if_none_match, a->etag) || strstr(if_none_match, a->etag_gzip));
}

enum status page_inflate(const struct page_asset *a, struct buf *out)
{
    unsigned char block[16384];
    z_stream z = {.next_in = a->data, .avail_in = (uInt)(a->end - a->data)};
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) return ST_NOMEM;
    enum status st = ST_OK;
    int rc = Z_OK;
    while (!st && rc == Z_OK) {
        z.next_out = block;
        z.avail_out = sizeof block;
        rc = inflate(&z, Z_NO_FLUSH);
        st = rc == Z_OK || rc == Z_STREAM_END ? buf_add(out, block, sizeof block - z.avail_out) : ST_INVALID;
    }
    inflateEnd(&z);
    return st;
}

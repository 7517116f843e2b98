/* See page.h. */
#include "server/page/page.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The assembler puts the file in: relative to where make runs. A NUL after it makes it a string. */
__asm__(".pushsection .rodata\n"
        ".global kvasir_page\n"
        "kvasir_page: .incbin \"server/page/page.html\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char kvasir_page[];

const char *page_html(size_t *len)
{
    *len = strlen(kvasir_page);
    return kvasir_page;
}

/* Hash of the text between the tags, as a browser computes it. */
static bool hash_of(const char *open, const char *close, char *out, size_t size)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    const char *at = strstr(kvasir_page, open), *end = at ? strstr(at, close) : NULL;
    if (!end || strstr(end, open)) return false;
    at += strlen(open);
    crypto_hash_sha256(digest, (const unsigned char *)at, (unsigned long long)(end - at));
    sodium_bin2base64(out, size, digest, sizeof digest, sodium_base64_VARIANT_ORIGINAL);
    return true;
}

const char *page_policy(void)
{
    static char policy[512];
    char script[64], style[64];
    if (*policy) return policy;
    if (!hash_of("<script>", "</script>", script, sizeof script) ||
        !hash_of("<style>", "</style>", style, sizeof style))
        return NULL;
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; img-src data: blob:; "
             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             script, style);
    return policy;
}

bool page_wanted(const char *accept)
{
    return accept && strcasestr(accept, "text/html");
}

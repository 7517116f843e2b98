/* See utf8.h. */
#include "config/base/utf8.h"

#include <string.h>

size_t utf8_decode(const void *text, size_t len, uint32_t *cp)
{
    const uint8_t *s = text;
    *cp = UTF8_SHORT;
    if (len == 0) return 0;
    uint8_t b = s[0];
    *cp = b < 0x80 ? b : UTF8_BAD;
    if (b < 0xC2 || b > 0xF4) return 1;
    size_t want = b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    uint8_t low = b == 0xE0   ? 0xA0
                  : b == 0xF0 ? 0x90
                              : 0x80,
            high = b == 0xED   ? 0x9F
                   : b == 0xF4 ? 0x8F
                               : 0xBF;
    uint32_t v = b & 0x7Fu >> want;
    for (size_t n = 1; n < want; n++) {
        if (n == len) *cp = UTF8_SHORT;
        if (n == len || s[n] < low || s[n] > high) return n;
        v = v << 6 | (s[n] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = v;
    return want;
}

size_t utf8_encode(uint32_t cp, void *out)
{
    uint8_t *to = out;
    if (cp < 0x80) {
        to[0] = (uint8_t)cp;
        return 1;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) cp = UTF8_REPLACEMENT;
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6) to[i] = (uint8_t)(0x80 | (cp & 0x3F));
    to[0] = (uint8_t)(0xF00 >> n | cp);
    return n;
}

bool utf8_valid(const void *text, size_t len)
{
    const uint8_t *s = text;
    for (size_t i = 0; i < len;) {
        uint64_t word;
        if (len - i >= 8) {
            memcpy(&word, s + i, 8);
            if (!(word & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        uint32_t cp;
        i += utf8_decode(s + i, len - i, &cp);
        if (cp >= UTF8_BAD) return false;
    }
    return true;
}

size_t utf8_count(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((uint8_t)text[i] & 0xC0) != 0x80;
    return n;
}

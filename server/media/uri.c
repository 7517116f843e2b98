/* data: URIs. Two passes: the first validates and computes the size; after the limit check and one
 * allocation, the second decodes. Any thread. The rules are at image_decode_data_uri in image_decode.h. */
#include "server/media/codec.h"

#include "config/base/hex.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SKIP = 64, PAD = 65, BAD = 66, PERCENT = 67 };

static bool starts_with(const char *s, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);
    return len >= n && strncasecmp(s, prefix, n) == 0;
}

static void make_table(uint8_t table[256])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    memset(table, BAD, 256);
    for (uint8_t i = 0; i < 64; i++) table[(uint8_t)digits[i]] = i;
    table['-'] = 62;
    table['_'] = 63;
    table['='] = PAD;
    table['%'] = PERCENT;
    for (const char *s = " \t\n\v\f\r"; *s; s++) table[(uint8_t)*s] = SKIP;
}

/* The next character, percent-decoded; -1 for an invalid escape. */
static int next_char(const char *s, size_t len, size_t *at)
{
    char c = s[(*at)++];
    if (c != '%') return (uint8_t)c;
    if (len - *at < 2) return -1;
    int high = hex_digit(s[*at]), low = hex_digit(s[*at + 1]);
    *at += 2;
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* Results of the first pass. */
struct payload {
    size_t digits, pads;
    bool standard, urlsafe; /* + or / seen; - or _ seen */
    uint8_t last;           /* value of the last digit */
};

static enum image_error look(const char *s, size_t len, const uint8_t table[256], struct payload *p,
                             struct err *err)
{
    *p = (struct payload){0};
    for (size_t at = 0; at < len;) {
        size_t start = at;
        int c = next_char(s, len, &at);
        uint8_t v = c < 0 ? BAD : table[c];
        if (v < 64) {
            if (p->pads)
                return image__fail(err, IMAGE_BAD_BASE64, "base64 data after its padding, at character %zu",
                                   start);
            p->standard |= c == '+' || c == '/';
            p->urlsafe |= c == '-' || c == '_';
            p->last = v;
            p->digits++;
        } else if (v == PAD) {
            p->pads++;
        } else if (v != SKIP) {
            return image__fail(err, IMAGE_BAD_BASE64, "not base64 at character %zu of the image data", start);
        }
    }
    size_t rest = p->digits % 4;
    if (p->standard && p->urlsafe)
        return image__fail(err, IMAGE_BAD_BASE64,
                           "the base64 data mixes the standard and the URL-safe alphabet");
    if (rest == 1 || (p->pads && p->pads != (4 - rest) % 4))
        return image__fail(err, IMAGE_BAD_BASE64, "the base64 data is cut or wrongly padded");
    if ((rest == 2 && (p->last & 15)) || (rest == 3 && (p->last & 3)))
        return image__fail(err, IMAGE_BAD_BASE64, "the base64 data ends in stray bits");
    return IMAGE_OK;
}

/* The text is already checked: every character counts or is skipped. */
static void decode(const char *s, size_t len, const uint8_t table[256], uint8_t *out)
{
    uint32_t acc = 0;
    int have = 0;
    for (size_t at = 0; at < len;) {
        uint8_t v;
        while (have == 0 && len - at >= 4) { /* four plain digits at once */
            uint8_t a = table[(uint8_t)s[at]], b = table[(uint8_t)s[at + 1]], c = table[(uint8_t)s[at + 2]],
                    d = table[(uint8_t)s[at + 3]];
            if ((a | b | c | d) >= 64) break;
            uint32_t w = (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | d;
            *out++ = (uint8_t)(w >> 16);
            *out++ = (uint8_t)(w >> 8);
            *out++ = (uint8_t)w;
            at += 4;
        }
        if (at >= len) break;
        v = table[next_char(s, len, &at)];
        if (v >= 64) continue;
        acc = acc << 6 | v;
        if (++have == 4) {
            *out++ = (uint8_t)(acc >> 16);
            *out++ = (uint8_t)(acc >> 8);
            *out++ = (uint8_t)acc;
            have = 0;
            acc = 0;
        }
    }
    if (have == 3) {
        *out++ = (uint8_t)(acc >> 10);
        *out++ = (uint8_t)(acc >> 2);
    } else if (have == 2) {
        *out++ = (uint8_t)(acc >> 4);
    }
}

static enum image_error decode_all(const char *s, size_t n, const struct image_limits *limits,
                                   uint8_t **bytes, size_t *len, struct err *err)
{
    uint8_t table[256];
    make_table(table);
    struct payload p;
    enum image_error f = look(s, n, table, &p, err);
    if (f) return f;
    size_t size = p.digits / 4 * 3 + (p.digits % 4 * 3) / 4;
    if (!size) return image__fail(err, IMAGE_EMPTY, "the image is empty");
    if (size > limits->encoded_bytes_max)
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the image file has %zu bytes, the limit is %zu", size,
                           limits->encoded_bytes_max);
    uint8_t *out = malloc(size);
    if (!out) return image__nomem(err);
    decode(s, n, table, out);
    *bytes = out;
    *len = size;
    return IMAGE_OK;
}

enum image_error image_decode_data_uri(const char *url, size_t url_len, const struct image_limits *limits,
                                       uint8_t **bytes, size_t *len, struct err *err)
{
    if (starts_with(url, url_len, "http:") || starts_with(url, url_len, "https:"))
        return image__fail(
            err, IMAGE_REMOTE,
            "this server does not fetch http(s) URLs: send a data: URL, or start the server with "
            "--allow-remote-media HOST");
    if (starts_with(url, url_len, "file:"))
        return image__fail(err, IMAGE_REMOTE,
                           "this server does not read file: URLs: send a data: URL, or start the server with "
                           "--allowed-media-dir DIR");
    if (!starts_with(url, url_len, "data:"))
        return image__fail(err, IMAGE_BAD_URL, "the URL must be a data:, http(s): or file: URL");
    const char *comma = memchr(url, ',', url_len);
    if (!comma) return image__fail(err, IMAGE_BAD_URL, "the data: URL has no comma");
    size_t head = (size_t)(comma - url);
    const char *last = memrchr(url, ';', head);
    size_t n = last ? (size_t)(comma - ++last) : 0;
    while (n && *last == ' ') last++, n--;
    while (n && last[n - 1] == ' ') n--;
    if (n != 6 || strncasecmp(last, "base64", n) != 0)
        return image__fail(err, IMAGE_BAD_URL,
                           "the data: URL is not base64: \";base64\" must stand before the comma");
    return decode_all(comma + 1, url_len - head - 1, limits, bytes, len, err);
}

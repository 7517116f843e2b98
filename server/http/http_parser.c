/* See http_parser.h. */
#include "server/http/http_parser.h"

#include "config/base/hex.h"
#include "config/base/assert.h"
#include "server/json/errors.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

void http_parser_init(struct http_parser *h)
{
    *h = (struct http_parser){0};
    buf_init(&h->line, LIMIT_HEADER_BYTES + 2);
    buf_init(&h->head, 2 * LIMIT_HEADER_BYTES); /* a space is added after each colon */
}

void http_parser_fini(struct http_parser *h)
{
    buf_fini(&h->line);
    buf_fini(&h->head);
}

void http_parser_next(struct http_parser *h)
{
    http_parser_fini(h);
    http_parser_init(h);
}

bool http_parser_begun(const struct http_parser *h)
{
    return h->state != HTTP_PARSER_HEAD || h->lines || h->line.len;
}

static bool bad(struct http_parser *h, int http, const char *code, const char *message)
{
    (void)api_fail(&h->error, http, code, NULL, "%s", message);
    return false;
}

static bool invalid(struct http_parser *h, const char *message)
{
    return bad(h, 400, "invalid_request", message);
}

static bool put(struct http_parser *h, struct buf *to, const char *data, size_t len)
{
    return !buf_add(to, data, len) || !api_nomem(&h->error);
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A character of names and methods. */
static bool tchar(char c)
{
    return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token(const char *s, size_t len)
{
    size_t n = 0;
    while (n < len && tchar(s[n])) n++;
    return n;
}

static bool is(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

/* ---- lines of a head ---- */

static bool request_line(struct http_parser *h, const char *s, size_t len)
{
    size_t method = token(s, len), target = method + 1, end = target;
    if (!method || method == len || s[method] != ' ')
        return invalid(h, "The request line does not begin with a method and a space.");
    while (end < len && s[end] > ' ' && s[end] < 0x7f)
        end++; /* whether or not char is signed, non-ASCII bytes are neither */
    if (end == target || end == len || s[end] != ' ')
        return invalid(h, "The request line is not a method, a target and a version.");
    if (end - target > LIMIT_URL_BYTES) return bad(h, 414, "uri_too_long", "The request URI is too long.");
    bool whole = is(s + target, end - target, "*");
    if (s[target] != '/' && !whole && strncasecmp(s + target, "http://", 7) &&
        strncasecmp(s + target, "https://", 8))
        return invalid(h, "The request target is neither a path nor an absolute URI.");
    const char *v = s + end + 1;
    if (len - end - 1 != 8 || memcmp(v, "HTTP/", 5) != 0 || !digit(v[5]) || v[6] != '.' || !digit(v[7]))
        return invalid(h, "The request line does not end with a version of HTTP.");
    if (v[5] != '1' || v[7] > '1')
        return bad(h, 505, "unsupported_version", "Only HTTP/1.1 and HTTP/1.0 are supported.");
    h->http10 = v[7] == '0';
    size_t arguments = 0; /* libmicrohttpd has little memory for them */
    for (size_t i = target; i < end; i++) arguments += s[i] == '&';
    if (arguments > LIMIT_ARGUMENTS)
        return bad(h, 414, "uri_too_long", "The request URI has too many arguments.");
    return put(h, &h->head, s, len) && put(h, &h->head, "\r\n", 2);
}

static bool length_field(struct http_parser *h, const char *v, size_t n)
{
    h->lengths++;
    h->left = 0;
    if (n == 0 || n > 18) return invalid(h, "Content-Length is not a number of bytes.");
    for (size_t i = 0; i < n; i++) {
        if (!digit(v[i])) return invalid(h, "Content-Length is not a number of bytes.");
        h->left = 10 * h->left + (uint64_t)(v[i] - '0');
    }
    return true;
}

/* A field of a head, or of the trailers (which are only validated). */
static bool field_line(struct http_parser *h, const char *s, size_t len, bool trailer)
{
    size_t name = token(s, len), from = name + 1, to = len;
    if (s[0] == ' ' || s[0] == '\t') return invalid(h, "A header is folded over several lines.");
    if (!name || name == len || s[name] != ':')
        return invalid(h, "The name of a header holds a character that it may not.");
    while (from < to && (s[from] == ' ' || s[from] == '\t')) from++;
    while (to > from && (s[to - 1] == ' ' || s[to - 1] == '\t')) to--;
    for (size_t i = from; i < to; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7f)
            return invalid(h, "The value of a header holds a control character.");
    if (trailer) return true;
    const char *v = s + from;
    size_t n = to - from;
    if (is(s, name, "Host")) h->hosts++;
    if (is(s, name, "Content-Length") && !length_field(h, v, n)) return false;
    if (is(s, name, "Transfer-Encoding")) {
        h->codings++;
        h->wrong_coding = h->wrong_coding || !is(v, n, "chunked");
    }
    if (is(s, name, "X-Request-Id") && n < sizeof h->id) {
        memcpy(h->id, v, n);
        h->id[n] = '\0';
    }
    if (is(s, name, "Cookie")) return true; /* unused, and libmicrohttpd would parse them */
    if (is(s, name, "Expect")) {            /* passed on once it is known whether there is a body */
        if (!is(v, n, "100-continue"))
            return bad(h, 417, "expectation_failed", "Only Expect: 100-continue is supported.");
        h->expects = true;
        return true;
    }
    return put(h, &h->head, s, name) && put(h, &h->head, ": ", 2) && put(h, &h->head, v, n) &&
           put(h, &h->head, "\r\n", 2);
}

static void state_to(struct http_parser *h, enum http_state state)
{
    static const struct state_rule rules[] = {
        [HTTP_PARSER_HEAD] = {"HTTP_IN_HEAD",
                              1u << HTTP_PARSER_LENGTH | 1u << HTTP_PARSER_SIZE | 1u << HTTP_PARSER_END},
        [HTTP_PARSER_LENGTH] = {"HTTP_IN_LENGTH", 1u << HTTP_PARSER_END},
        [HTTP_PARSER_SIZE] = {"HTTP_IN_SIZE", 1u << HTTP_PARSER_CHUNK | 1u << HTTP_PARSER_TRAILER},
        [HTTP_PARSER_CHUNK] = {"HTTP_IN_CHUNK", 1u << HTTP_PARSER_CHUNK_END},
        [HTTP_PARSER_CHUNK_END] = {"HTTP_IN_CHUNK_END", 1u << HTTP_PARSER_SIZE},
        [HTTP_PARSER_TRAILER] = {"HTTP_IN_TRAILER", 1u << HTTP_PARSER_END},
        [HTTP_PARSER_END] = {"HTTP_IN_END", 0},
    };
    ASSERT_NEXT(rules, h->state, state, "the reading of request %s", h->id);
    h->state = state;
}

static bool head_complete(struct http_parser *h, struct buf *out)
{
    if (h->codings && h->lengths)
        return invalid(h, "Transfer-Encoding and Content-Length exclude each other.");
    if (h->codings > 1) return invalid(h, "More than one Transfer-Encoding header.");
    if (h->lengths > 1) return invalid(h, "More than one Content-Length header.");
    if (h->codings && h->http10) return invalid(h, "HTTP/1.0 has no Transfer-Encoding.");
    if (h->wrong_coding)
        return bad(h, 501, "unsupported_transfer_encoding", "Transfer-Encoding must be chunked.");
    if (h->hosts > 1) return invalid(h, "More than one Host header.");
    if (!h->hosts && !h->http10) return invalid(h, "The request has no Host header.");
    h->chunked = h->codings > 0;
    h->expects = h->expects && !h->http10 && (h->chunked || h->left);
    static const char expect[] = "Expect: 100-continue\r\n";
    if (h->expects && !put(h, &h->head, expect, sizeof expect - 1)) return false;
    if (!put(h, out, h->head.data, h->head.len) || !put(h, out, "\r\n", 2)) return false;
    buf_fini(&h->head);
    h->bytes = 0;
    state_to(h, h->chunked ? HTTP_PARSER_SIZE : h->left ? HTTP_PARSER_LENGTH : HTTP_PARSER_END);
    return true;
}

/* A line without its line end; *complete: the head is complete. */
static bool head_line(struct http_parser *h, const char *s, size_t len, struct buf *out, bool *complete)
{
    if (!h->lines && !len) return ++h->blank <= 2 || invalid(h, "There are empty lines before the request.");
    if (len && h->lines > LIMIT_HEADERS)
        return bad(h, 431, "headers_too_large", "The request has too many headers.");
    if (!h->lines++) return request_line(h, s, len);
    if (len) return field_line(h, s, len, false);
    *complete = true;
    return head_complete(h, out);
}

/* ---- chunks ---- */

static bool size_line(struct http_parser *h, const char *s, size_t len)
{
    size_t n = 0;
    h->left = 0;
    for (; n < len && hex_digit(s[n]) >= 0; n++) {
        if (h->left >> 56) return invalid(h, "The size of a chunk is too large.");
        h->left = h->left << 4 | (uint64_t)hex_digit(s[n]);
    }
    if (!n || (n < len && s[n] != ';')) return invalid(h, "The size of a chunk is not a hexadecimal number.");
    for (size_t i = n; i < len; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7f)
            return invalid(h, "A chunk extension holds a control character.");
    state_to(h, h->left ? HTTP_PARSER_CHUNK : HTTP_PARSER_TRAILER);
    return true;
}

static bool trailer_line(struct http_parser *h, const char *s, size_t len, struct buf *out)
{
    if (len) return field_line(h, s, len, true);
    state_to(h, HTTP_PARSER_END);
    return put(h, out, "0\r\n\r\n", 5);
}

/* ---- bytes ---- */

/* Length limit of a line: request line, head, chunk size, trailers. */
static bool line_fits(struct http_parser *h, size_t more)
{
    size_t len = h->line.len + more;
    if (h->state == HTTP_PARSER_SIZE)
        return len <= LIMIT_CHUNK_LINE || invalid(h, "The size line of a chunk is too long.");
    if (h->bytes + more > LIMIT_HEADER_BYTES)
        return bad(h, 431, "headers_too_large", "The request has too large headers.");
    if (h->state == HTTP_PARSER_HEAD && !h->lines && len > LIMIT_URL_BYTES + 64)
        return bad(h, 414, "uri_too_long", "The request URI is too long.");
    h->bytes += more;
    return true;
}

static bool line_done(struct http_parser *h, struct buf *out, bool *head)
{
    if (h->line.len < 2 || h->line.data[h->line.len - 2] != '\r')
        return invalid(h, "A line ends with a line feed alone.");
    const char *s = h->line.data;
    size_t len = h->line.len - 2;
    h->line.len = 0;
    if (h->state == HTTP_PARSER_HEAD) return head_line(h, s, len, out, head);
    return h->state == HTTP_PARSER_SIZE ? size_line(h, s, len) : trailer_line(h, s, len, out);
}

static size_t lesser(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

enum http_event http_parser_feed(struct http_parser *h, const char *data, size_t len, size_t *used,
                                 struct buf *out)
{
    size_t at = 0;
    bool head = false;
    while (!h->error.http && !head && h->state != HTTP_PARSER_END && at < len) {
        size_t n = lesser(h->left, len - at);
        if (h->state == HTTP_PARSER_LENGTH || h->state == HTTP_PARSER_CHUNK) {
            char size[24];
            bool chunk = h->state == HTTP_PARSER_CHUNK;
            int digits = snprintf(size, sizeof size, "%zx\r\n", n);
            if (chunk && !put(h, out, size, (size_t)digits)) break;
            if (!put(h, out, data + at, n) || (chunk && !put(h, out, "\r\n", 2))) break;
            at += n;
            h->left -= n;
            if (h->left) continue;
            state_to(h, chunk ? HTTP_PARSER_CHUNK_END : HTTP_PARSER_END);
            h->left = chunk ? 2 : 0;
        } else if (h->state == HTTP_PARSER_CHUNK_END) {
            if (data[at++] != (h->left == 2 ? '\r' : '\n'))
                invalid(h, "A chunk is not as long as its size says.");
            else if (!--h->left) state_to(h, HTTP_PARSER_SIZE);
        } else {
            if (!http_parser_begun(h) && data[at] != '\r' && data[at] != '\n' && !tchar(data[at])) {
                invalid(h, "The connection does not begin with an HTTP request."); /* TLS, say */
                break;
            }
            const char *lf = memchr(data + at, '\n', len - at);
            n = lf ? (size_t)(lf - data) + 1 - at : len - at;
            if (!line_fits(h, n) || !put(h, &h->line, data + at, n)) break;
            at += n;
            if (lf) (void)line_done(h, out, &head);
        }
    }
    *used = at;
    if (h->error.http) return HTTP_BAD;
    return head ? HTTP_HEAD : h->state == HTTP_PARSER_END ? HTTP_END : HTTP_MORE;
}

/* See json_text.h. */
#include "config/base/json_text.h"

#include "config/base/hex.h"
#include "config/base/utf8.h"

#include <stdio.h>
#include <string.h>

/* What comes next: a value (the text's only one, or an object's after its colon); the first element or member
 * of a container; what separates it from the next; the colon after a key. */
enum { AT_VALUE = 0, AT_FIRST, AT_NEXT, AT_COLON };

static const char short_escapes[] = "\"\\/bfnrt", short_values[] = "\"\\/\b\f\n\r\t";

static char peek(const struct json_lexer *x)
{
    return x->at < x->len ? x->text[x->at] : '\0';
}

static void skip_space(struct json_lexer *x)
{
    while (peek(x) == ' ' || peek(x) == '\n' || peek(x) == '\r' || peek(x) == '\t') x->at++;
}

static enum json_token error(struct json_lexer *x, const char *what)
{
    x->error = what;
    return JSON_LEX_ERROR;
}

static enum json_token expected(struct json_lexer *x, const char *what)
{
    return error(x, x->at < x->len ? what : "it ends too early");
}

static enum json_token string(struct json_lexer *x, enum json_token token)
{
    uint32_t cp;
    x->from = ++x->at;
    x->escaped = false;
    for (size_t n; peek(x) != '"'; x->at += n) {
        n = 1;
        if (x->at == x->len) return expected(x, "'\"' expected");
        if ((unsigned char)peek(x) < 0x20) return error(x, "a control character in a string");
        if (peek(x) != '\\') continue;
        x->escaped = true;
        n = json_unescape(x->text + x->at, x->len - x->at, &cp);
        x->at += !n;
        if (!n) return error(x, "no escape that JSON has");
    }
    x->to = x->at++;
    return token;
}

static bool digits(struct json_lexer *x)
{
    size_t from = x->at;
    while (peek(x) >= '0' && peek(x) <= '9') x->at++;
    return x->at > from;
}

static enum json_token number(struct json_lexer *x)
{
    x->from = x->at;
    x->at += peek(x) == '-';
    size_t first = x->at;
    if (!digits(x)) return expected(x, "a value expected");
    if (x->text[first] == '0' && x->at - first > 1) return error(x, "a number with a zero before it");
    x->whole = true;
    if (peek(x) == '.') {
        x->whole = false;
        x->at++;
        if (!digits(x)) return expected(x, "a digit expected");
    }
    if (peek(x) == 'e' || peek(x) == 'E') {
        x->whole = false;
        x->at++;
        x->at += peek(x) == '+' || peek(x) == '-';
        if (!digits(x)) return expected(x, "a digit expected");
    }
    x->to = x->at;
    return JSON_LEX_NUMBER;
}

static enum json_token value(struct json_lexer *x)
{
    static const struct {
        const char *word;
        enum json_token token;
    } words[] = {{"true", JSON_LEX_TRUE}, {"false", JSON_LEX_FALSE}, {"null", JSON_LEX_NULL}};
    char c = peek(x);
    x->state = AT_NEXT;
    if (c == '"') return string(x, JSON_LEX_STRING);
    if (c == '{' || c == '[') {
        if (x->depth == x->depth_max) return error(x, "nested too deep"), JSON_LEX_DEEP;
        x->objects[++x->depth] = c == '{';
        x->state = AT_FIRST;
        x->from = x->at++;
        x->to = x->at;
        return c == '{' ? JSON_LEX_OBJECT : JSON_LEX_ARRAY;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i].word);
        if (x->len - x->at < len || memcmp(x->text + x->at, words[i].word, len) != 0) continue;
        x->from = x->at;
        x->to = x->at += len;
        return words[i].token;
    }
    return number(x);
}

enum json_token json_lex(struct json_lexer *x)
{
    bool object = x->objects[x->depth], key = object && x->state != AT_COLON;
    skip_space(x);
    char c = peek(x), close = object ? '}' : ']', between = x->state == AT_COLON ? ':' : ',';
    if (x->state == AT_NEXT && !x->depth)
        return x->at == x->len ? JSON_LEX_END : error(x, "text after the value");
    if ((x->state == AT_FIRST || x->state == AT_NEXT) && c == close) {
        x->at++;
        x->depth--;
        x->state = AT_NEXT;
        return JSON_LEX_CLOSE;
    }
    if (x->state == AT_NEXT || x->state == AT_COLON) {
        if (c != between)
            return expected(x, between == ':' ? "':' expected"
                               : object       ? "',' or '}' expected"
                                              : "',' or ']' expected");
        x->at++;
        skip_space(x);
    }
    if (!key) return value(x);
    if (peek(x) != '"') return expected(x, "a key expected");
    x->state = AT_COLON;
    return string(x, JSON_LEX_KEY);
}

/* ---- escapes ---- */

/* "\u12AB" at s. */
static bool hex4(const char *s, size_t left, uint32_t *out)
{
    if (left < 6 || s[0] != '\\' || s[1] != 'u') return false;
    *out = 0;
    for (int i = 2; i < 6; i++) {
        int d = hex_digit(s[i]);
        if (d < 0) return false;
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

size_t json_unescape(const char *s, size_t left, uint32_t *cp)
{
    const char *hit = left > 1 && s[1] ? strchr(short_escapes, s[1]) : NULL;
    uint32_t low;
    if (hit) {
        *cp = (unsigned char)short_values[hit - short_escapes];
        return 2;
    }
    if (!hex4(s, left, cp)) return 0;
    bool high = *cp >= 0xD800 && *cp < 0xDC00;
    if (!high || !hex4(s + 6, left - 6, &low) || low < 0xDC00 || low >= 0xE000) return 6;
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    return 12;
}

struct json_escape json_escape_next(const char *s, size_t len, enum json_escapes which)
{
    struct json_escape e = {0};
    for (; e.plain < len; e.plain += e.used) {
        uint32_t cp = (unsigned char)s[e.plain];
        e.used = 1;
        if (cp >= 0x20 && cp < 0x7F && cp != '"' && cp != '\\') continue;
        const char *hit = cp ? strchr(short_values, (int)cp) : NULL;
        e.used = utf8_decode(s + e.plain, len - e.plain, &cp);
        bool bad = cp >= UTF8_BAD, lines = cp == 0x7F || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
        if (bad) e.used = 1;
        if (bad && which == JSON_ESCAPE_MUST) continue;
        if (bad) cp = UTF8_REPLACEMENT;
        if (hit && (which != JSON_ESCAPE_LOG || cp >= 0x20)) {
            snprintf(e.text, sizeof e.text, "\\%c", short_escapes[hit - short_values]);
        } else if (cp < 0x20 || (which == JSON_ESCAPE_LINES && lines) || (which == JSON_ESCAPE_LOG && bad) ||
                   (which == JSON_ESCAPE_ASCII && cp < 0x10000)) {
            snprintf(e.text, sizeof e.text, "\\u%04x", cp);
        } else if (bad) {
            e.text[utf8_encode(cp, e.text)] = '\0';
        } else if (which == JSON_ESCAPE_ASCII) {
            snprintf(e.text, sizeof e.text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10 & 0x3FF),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
        } else {
            continue;
        }
        return e;
    }
    e.used = 0;
    return e;
}

/* See json.h. Iterative: nesting uses an entry of a fixed stack, not the C stack. */
#include "config/base/json.h"

#include "config/base/file.h"
#include "config/base/hex.h"
#include "config/base/json_escape.h"
#include "config/base/list.h"
#include "config/base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, NUMBER_BYTES_MAX = 64 };

struct parser {
    const char *t;
    size_t len, at;
    const char *name;
    struct json_doc *doc;
    size_t cap;
    struct err *err;
};

static enum status bad(struct parser *p, const char *what)
{
    return err_set(p->err, ST_FORMAT, "%s: not valid JSON: %s at byte %zu", p->name, what, p->at);
}

static void skip_space(struct parser *p)
{
    while (p->at < p->len &&
           (p->t[p->at] == ' ' || p->t[p->at] == '\n' || p->t[p->at] == '\r' || p->t[p->at] == '\t'))
        p->at++;
}

static enum status add_node(struct parser *p, enum json_kind kind, size_t at, size_t len, uint32_t *idx)
{
    struct json_doc *d = p->doc;
    if (d->node_count == 1u << 31) return err_set(p->err, ST_TOO_LARGE, "%s: too many JSON values", p->name);
    if (!LIST_ROOM(d->nodes, d->node_count, p->cap, 256)) return err_nomem(p->err, p->name);
    if (idx) *idx = d->node_count;
    d->nodes[d->node_count] = (struct json_node){
        .next = d->node_count + 1, .len = (uint32_t)len, .kind = (uint8_t)kind, .at = (uint64_t)at};
    d->node_count++;
    return ST_OK;
}

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
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *hit = left > 1 && s[1] ? strchr(names, s[1]) : NULL;
    uint32_t low;
    if (hit) {
        *cp = (unsigned char)values[hit - names];
        return 2;
    }
    if (!hex4(s, left, cp)) return 0;
    bool high = *cp >= 0xD800 && *cp < 0xDC00;
    if (!high || !hex4(s + 6, left - 6, &low) || low < 0xDC00 || low >= 0xE000) return 6;
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    return 12;
}

static enum status parse_string(struct parser *p)
{
    size_t start = ++p->at;
    bool escaped = false;
    while (p->at < p->len) {
        unsigned char c = (unsigned char)p->t[p->at];
        if (c == '"') {
            uint32_t idx;
            enum status st = add_node(p, JSON_STRING, start, p->at - start, &idx);
            if (st) return st;
            p->doc->nodes[idx].escaped = escaped;
            p->at++;
            return ST_OK;
        }
        if (c < 0x20) return bad(p, "control character in a string");
        size_t n = 1;
        if (c == '\\') {
            uint32_t cp;
            escaped = true;
            n = json_unescape(p->t + p->at, p->len - p->at, &cp);
            if (n == 0) return bad(p, "bad escape");
        }
        p->at += n;
    }
    return bad(p, "unterminated string");
}

static bool digits(struct parser *p)
{
    size_t start = p->at;
    while (p->at < p->len && p->t[p->at] >= '0' && p->t[p->at] <= '9') p->at++;
    return p->at > start;
}

static enum status parse_number(struct parser *p)
{
    size_t start = p->at;
    if (p->t[p->at] == '-') p->at++;
    size_t first = p->at;
    if (!digits(p)) return bad(p, "unexpected character");
    if (p->t[first] == '0' && p->at - first > 1) return bad(p, "leading zero");
    if (p->at < p->len && p->t[p->at] == '.') {
        p->at++;
        if (!digits(p)) return bad(p, "bad number");
    }
    if (p->at < p->len && (p->t[p->at] == 'e' || p->t[p->at] == 'E')) {
        p->at++;
        if (p->at < p->len && (p->t[p->at] == '+' || p->t[p->at] == '-')) p->at++;
        if (!digits(p)) return bad(p, "bad number");
    }
    return add_node(p, JSON_NUMBER, start, p->at - start, NULL);
}

static enum status parse_word(struct parser *p, const char *word, enum json_kind kind)
{
    size_t n = strlen(word);
    if (p->len - p->at < n || memcmp(p->t + p->at, word, n) != 0) return bad(p, "unexpected character");
    enum status st = add_node(p, kind, p->at, n, NULL);
    p->at += n;
    return st;
}

static enum status parse_scalar(struct parser *p)
{
    switch (p->t[p->at]) {
    case '"': return parse_string(p);
    case 't': return parse_word(p, "true", JSON_TRUE);
    case 'f': return parse_word(p, "false", JSON_FALSE);
    case 'n': return parse_word(p, "null", JSON_NULL);
    default: return parse_number(p);
    }
}

/* Parses `"key" :` of an object. */
static enum status parse_key(struct parser *p)
{
    skip_space(p);
    if (p->at >= p->len || p->t[p->at] != '"') return bad(p, "expected a key");
    enum status st = parse_string(p);
    if (st) return st;
    skip_space(p);
    if (p->at >= p->len || p->t[p->at] != ':') return bad(p, "expected ':'");
    p->at++;
    return ST_OK;
}

static enum status parse_value(struct parser *p)
{
    uint32_t stack[DEPTH_MAX];
    int depth = 0;
    enum status st;
    for (;;) {
        skip_space(p);
        if (p->at >= p->len) return bad(p, "unexpected end");
        char c = p->t[p->at];
        if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX)
                return err_set(p->err, ST_TOO_LARGE, "%s: JSON nested too deeply", p->name);
            uint32_t idx;
            if ((st = add_node(p, c == '{' ? JSON_OBJECT : JSON_ARRAY, p->at, 0, &idx))) return st;
            p->at++;
            stack[depth++] = idx;
            skip_space(p);
            char close = c == '{' ? '}' : ']';
            if (!(p->at < p->len && p->t[p->at] == close)) {
                p->doc->nodes[idx].count = 1;
                if (c == '{' && (st = parse_key(p))) return st;
                continue;
            }
        } else if ((st = parse_scalar(p))) {
            return st;
        }
        /* A value has ended: close containers, or step to the next element. */
        bool more = false;
        while (depth > 0 && !more) {
            uint32_t idx = stack[depth - 1];
            bool object = p->doc->nodes[idx].kind == JSON_OBJECT;
            skip_space(p);
            if (p->at >= p->len) return bad(p, "unexpected end");
            if (p->t[p->at] == (object ? '}' : ']')) {
                p->at++;
                p->doc->nodes[idx].next = p->doc->node_count;
                depth--;
            } else if (p->t[p->at] == ',') {
                p->at++;
                p->doc->nodes[idx].count++;
                if (object && (st = parse_key(p))) return st;
                more = true;
            } else {
                return bad(p, "expected ',' or a closing bracket");
            }
        }
        if (!more) return ST_OK;
    }
}

enum status json_parse(const char *text, size_t len, const char *name, struct json_doc *out, struct err *err)
{
    if (len > UINT32_MAX) return err_set(err, ST_TOO_LARGE, "%s: more than 4 GiB of JSON", name);
    struct json_doc doc = {.text = text, .len = len};
    struct parser p = {.t = text, .len = len, .name = name, .doc = &doc, .err = err};
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) p.at = 3;
    enum status st = parse_value(&p);
    if (!st) {
        skip_space(&p);
        if (p.at < p.len) st = bad(&p, "text after the value");
    }
    if (st) {
        free(doc.nodes);
        return st;
    }
    *out = doc;
    return ST_OK;
}

enum status json_doc_load(const char *path, size_t max_bytes, struct json_doc *out, struct err *err)
{
    char *text;
    size_t len;
    enum status st = file_text(path, max_bytes, &text, &len, err);
    if (st) return st;
    st = json_parse(text, len, path, out, err);
    if (st) free(text);
    else out->owned = text;
    return st;
}

enum status json_load(const char *dir, const char *name, size_t max_bytes, struct json_doc *out, char **path,
                      struct err *err)
{
    *path = file_join(dir, name);
    return *path ? json_doc_load(*path, max_bytes, out, err) : err_nomem(err, dir);
}

void json_free(struct json_doc *doc)
{
    free(doc->nodes);
    free(doc->owned);
    *doc = (struct json_doc){0};
}

enum json_kind json_kind(const struct json_doc *d, uint32_t node)
{
    return node == JSON_NONE ? JSON_NULL : (enum json_kind)d->nodes[node].kind;
}

uint32_t json_get(const struct json_doc *d, uint32_t object, const char *key)
{
    if (object == JSON_NONE || d->nodes[object].kind != JSON_OBJECT) return JSON_NONE;
    uint32_t found = JSON_NONE, k = object + 1;
    for (uint32_t i = 0; i < d->nodes[object].count; i++) {
        uint32_t v = k + 1;
        if (json_str_eq(d, k, key)) found = v;
        k = d->nodes[v].next;
    }
    return found;
}

uint32_t json_get_live(const struct json_doc *d, uint32_t object, const char *key)
{
    uint32_t n = json_get(d, object, key);
    return n != JSON_NONE && d->nodes[n].kind == JSON_NULL ? JSON_NONE : n;
}

uint32_t json_first(const struct json_doc *d, uint32_t container)
{
    if (container == JSON_NONE || d->nodes[container].kind < JSON_ARRAY || d->nodes[container].count == 0)
        return JSON_NONE;
    return container + 1;
}

uint32_t json_at(const struct json_doc *d, uint32_t array, uint32_t idx)
{
    if (array == JSON_NONE || d->nodes[array].kind != JSON_ARRAY || idx >= d->nodes[array].count)
        return JSON_NONE;
    uint32_t n = array + 1;
    while (idx--) n = d->nodes[n].next;
    return n;
}

uint32_t json_count(const struct json_doc *d, uint32_t container)
{
    return container == JSON_NONE || d->nodes[container].kind < JSON_ARRAY ? 0 : d->nodes[container].count;
}

static bool number_text(const struct json_doc *d, uint32_t node, char text[NUMBER_BYTES_MAX])
{
    if (node == JSON_NONE || d->nodes[node].kind != JSON_NUMBER) return false;
    size_t len = d->nodes[node].len;
    if (len >= NUMBER_BYTES_MAX) return false;
    memcpy(text, d->text + d->nodes[node].at, len);
    text[len] = '\0';
    return true;
}

bool json_double(const struct json_doc *d, uint32_t node, double *out)
{
    char tmp[NUMBER_BYTES_MAX];
    if (!number_text(d, node, tmp)) return false;
    double v = strtod(tmp, NULL);
    if (!isfinite(v)) return false;
    *out = v;
    return true;
}

bool json_int(const struct json_doc *d, uint32_t node, int64_t *out)
{
    char tmp[NUMBER_BYTES_MAX];
    if (!number_text(d, node, tmp)) return false;
    if (!strpbrk(tmp, ".eE")) {
        errno = 0;
        long long v = strtoll(tmp, NULL, 10);
        if (errno) return false;
        *out = v;
        return true;
    }
    double v = strtod(tmp, NULL);
    if (!(fabs(v) < 9.0e15) || v != floor(v)) return false;
    *out = (int64_t)v;
    return true;
}

bool json_uint(const struct json_doc *d, uint32_t node, uint64_t *out)
{
    int64_t v;
    if (!json_int(d, node, &v) || v < 0) return false;
    *out = (uint64_t)v;
    return true;
}

bool json_bool(const struct json_doc *d, uint32_t node, bool *out)
{
    enum json_kind k = json_kind(d, node);
    if (k != JSON_TRUE && k != JSON_FALSE) return false;
    *out = k == JSON_TRUE;
    return true;
}

bool json_str_copy(const struct json_doc *d, uint32_t node, char *dst, size_t cap, size_t *len)
{
    if (node == JSON_NONE || d->nodes[node].kind != JSON_STRING) return false;
    const char *s = d->text + d->nodes[node].at;
    size_t n = d->nodes[node].len, o = 0;
    for (size_t i = 0; i < n;) {
        char tmp[4];
        uint32_t cp;
        size_t wrote = 1, used = 1;
        tmp[0] = s[i];
        if (s[i] == '\\') {
            used = json_unescape(s + i, n - i, &cp);
            wrote = utf8_encode(cp, tmp);
        }
        if (o + wrote > cap) return false;
        memcpy(dst + o, tmp, wrote);
        o += wrote;
        i += used;
    }
    *len = o;
    return true;
}

char *json_str_dup(const struct json_doc *d, uint32_t node, size_t *len)
{
    if (node == JSON_NONE || d->nodes[node].kind != JSON_STRING) return NULL;
    size_t cap = d->nodes[node].len, n = 0;
    char *p = malloc(cap + 1);
    if (!p) return NULL;
    if (!json_str_copy(d, node, p, cap, &n)) {
        free(p);
        return NULL;
    }
    p[n] = '\0';
    if (len) *len = n;
    return p;
}

bool json_str_eq(const struct json_doc *d, uint32_t node, const char *s)
{
    if (node == JSON_NONE || d->nodes[node].kind != JSON_STRING) return false;
    size_t n = strlen(s), len;
    if (!d->nodes[node].escaped)
        return d->nodes[node].len == n && memcmp(d->text + d->nodes[node].at, s, n) == 0;
    char *copy = json_str_dup(d, node, &len);
    bool eq = copy && len == n && memcmp(copy, s, n) == 0;
    free(copy);
    return eq;
}

const char *json_raw(const struct json_doc *d, uint32_t node, size_t *len)
{
    if (node == JSON_NONE) return NULL;
    *len = d->nodes[node].len;
    return d->text + d->nodes[node].at;
}

/* See json.h. */
#include "config/base/json.h"

#include "config/base/file.h"
#include "config/base/json_text.h"
#include "config/base/list.h"
#include "config/base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, NUMBER_BYTES_MAX = 64 };

/* The kind of a token's node. */
static enum json_kind kind_of(enum json_token t)
{
    static const uint8_t kinds[] = {
        [JSON_LEX_OBJECT] = JSON_OBJECT, [JSON_LEX_ARRAY] = JSON_ARRAY,   [JSON_LEX_KEY] = JSON_STRING,
        [JSON_LEX_STRING] = JSON_STRING, [JSON_LEX_NUMBER] = JSON_NUMBER, [JSON_LEX_TRUE] = JSON_TRUE,
        [JSON_LEX_FALSE] = JSON_FALSE,   [JSON_LEX_NULL] = JSON_NULL};
    return (enum json_kind)kinds[t];
}

static enum status parse(struct json_lexer *x, struct json_doc *d, const char *name, struct err *err)
{
    uint32_t open[DEPTH_MAX + 1] = {0}; /* by depth */
    size_t cap = 0;
    for (enum json_token t; (t = json_lex(x)) != JSON_LEX_END;) {
        if (t == JSON_LEX_DEEP) return err_set(err, ST_TOO_LARGE, "%s: JSON nested too deeply", name);
        if (t == JSON_LEX_ERROR)
            return err_set(err, ST_FORMAT, "%s: not valid JSON: %s at byte %zu", name, x->error, x->at);
        if (t == JSON_LEX_CLOSE) {
            d->nodes[open[x->depth + 1]].next = d->node_count;
            continue;
        }
        bool opens = t == JSON_LEX_OBJECT || t == JSON_LEX_ARRAY;
        uint32_t level = x->depth - opens, idx = d->node_count;
        if (idx == 1u << 31) return err_set(err, ST_TOO_LARGE, "%s: too many JSON values", name);
        if (!LIST_RESERVE(d->nodes, cap, idx + 1)) return err_nomem(err, name);
        if (level && (t == JSON_LEX_KEY || d->nodes[open[level]].kind == JSON_ARRAY))
            d->nodes[open[level]].count++;
        if (opens) open[x->depth] = idx;
        d->nodes[d->node_count++] = (struct json_node){.next = idx + 1,
                                                       .len = opens ? 0 : (uint32_t)(x->to - x->from),
                                                       .kind = (uint8_t)kind_of(t),
                                                       .escaped = kind_of(t) == JSON_STRING && x->escaped,
                                                       .at = x->from};
    }
    return ST_OK;
}

enum status json_parse(const char *text, size_t len, const char *name, struct json_doc *out, struct err *err)
{
    if (len > UINT32_MAX) return err_set(err, ST_TOO_LARGE, "%s: more than 4 GiB of JSON", name);
    struct json_doc doc = {.text = text, .len = len};
    struct json_lexer x = {.text = text, .len = len, .depth_max = DEPTH_MAX};
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) x.at = 3;
    enum status st = parse(&x, &doc, name, err);
    if (st) free(doc.nodes);
    else *out = doc;
    return st;
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

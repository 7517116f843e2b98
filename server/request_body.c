/* A request's body as JSON: limits on depth and tokens, repair of ill-formed text (openai-api §2), parsing, and the check of the model's name.
 * Worker thread; pure but for the request that it is given. */
#include "server/fields.h"
#include "server/gen.h"
#include "server/limits.h"

#include <ctype.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define TRIM_VALUES 250000u /* of a body: some 10 to 50 MiB */
#define REPLACEMENT "\xEF\xBF\xBD"

struct repair {
    const char *text;
    size_t len, at, plain; /* plain = start of the stretch not yet copied */
    struct buf out;
    uint32_t depth, tokens;
    bool numbers_only; /* ill-formed strings are left for jansson to refuse */
    bool touched;
    enum status st;
};

static void repair_put(struct repair *p, size_t drop, const char *with)
{
    p->touched = true;
    if (!p->st) p->st = buf_add(&p->out, p->text + p->plain, p->at - p->plain);
    if (!p->st) p->st = buf_adds(&p->out, with);
    p->at += drop;
    p->plain = p->at;
}

static bool hex4(const struct repair *p, size_t at, unsigned *out)
{
    if (at + 6 > p->len || p->text[at] != '\\' || p->text[at + 1] != 'u') return false;
    unsigned v = 0;
    for (size_t i = at + 2; i < at + 6; i++) {
        unsigned char c = (unsigned char)p->text[i];
        if (!isxdigit(c)) return false;
        v = v << 4 | (unsigned)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    }
    *out = v;
    return true;
}

/* p->at is behind an opening quote; leaves it behind the closing one, or at the end. */
static void repair_string(struct repair *p)
{
    while (p->numbers_only && p->at < p->len) {
        char c = p->text[p->at++];
        if (c == '"') return;
        if (c == '\\' && p->at < p->len) p->at++;
    }
    while (p->at < p->len && !p->st) {
        unsigned char c = (unsigned char)p->text[p->at];
        if (c == '"') {
            p->at++;
            return;
        }
        if (c == '\\') {
            unsigned hi, lo;
            if (!hex4(p, p->at, &hi)) {
                p->at += p->at + 1 < p->len ? 2 : 1;
            } else if (hi >= 0xD800 && hi < 0xDC00) {
                if (hex4(p, p->at + 6, &lo) && lo >= 0xDC00 && lo < 0xE000) {
                    p->at += 12;
                } else {
                    repair_put(p, 6, REPLACEMENT);
                }
            } else if (hi >= 0xDC00 && hi < 0xE000) {
                repair_put(p, 6, REPLACEMENT);
            } else {
                p->at += 6;
            }
            continue;
        }
        if (c < 0x80) {
            p->at++;
            continue;
        }
        uint32_t cp;
        size_t n = utf8_next(p->text + p->at, p->len - p->at, &cp);
        if (n) {
            p->at += n;
        } else {
            repair_put(p, 1, REPLACEMENT);
        }
    }
}

/* p->at is at a digit. jansson refuses integers beyond 64 bits, in JSON they are numbers like any other (the maximum of an unsigned type in a
 * tool's schema, an id among a call's arguments). The body's own fields have none: written with a fraction jansson takes them, as doubles, to be
 * refused by their range. Further inside a template may print them, as they were written (fields.h). */
static void repair_number(struct repair *p)
{
    size_t from = p->at;
    while (p->at < p->len && isdigit((unsigned char)p->text[p->at])) p->at++;
    size_t digits = p->at - from;
    while (p->at < p->len && (isdigit((unsigned char)p->text[p->at]) || memchr(".eE+-", p->text[p->at], 5))) p->at++;
    if (digits < 19 || p->at > from + digits) return;
    bool minus = from && p->text[from - 1] == '-';
    const char *limit = minus ? "9223372036854775808" : "9223372036854775807";
    if (p->text[from] == '0' || (digits == 19 && memcmp(p->text + from, limit, 19) <= 0)) return;
    if (p->depth < 2) {
        repair_put(p, 0, ".0");
        return;
    }
    p->tokens += 3; /* as the object that it becomes: they bound the memory */
    size_t end = p->at;
    p->at = from - minus;
    repair_put(p, 0, "{\"" JSON_BIG_INT "\":\"");
    p->at = end;
    repair_put(p, 0, "\"}");
}

/* One pass over the text: depth, number of tokens, strings and numbers repaired. Syntax is jansson's business. */
static enum status repair_run(struct repair *p, struct api_error *e)
{
    while (p->at < p->len && !p->st) {
        char c = p->text[p->at];
        if (c == '"') {
            p->at++;
            repair_string(p);
            p->tokens++;
        } else if (isdigit((unsigned char)c)) {
            repair_number(p);
        } else {
            if (c == '{' || c == '[') {
                p->tokens++;
                if (++p->depth > LIMIT_JSON_DEPTH) return api_fail(e, 400, "invalid_json", NULL, "The JSON body is nested deeper than %u levels.", LIMIT_JSON_DEPTH);
            } else if (c == '}' || c == ']') {
                if (p->depth) p->depth--;
            } else if (c == ',') {
                p->tokens++;
            }
            p->at++;
        }
        if (p->tokens > LIMIT_JSON_TOKENS) return api_fail(e, 400, "invalid_json", NULL, "The JSON body has too many values.");
    }
    if (p->touched && !p->st) p->st = buf_add(&p->out, p->text + p->plain, p->len - p->plain);
    if (p->st) return api_fail(e, 503, "out_of_memory", NULL, "The server is out of memory.");
    return ST_OK;
}

enum status request_body_parse(struct request *r, json_t **root)
{
    const char *text = r->body.data ? r->body.data : "";
    size_t len = r->body.len;
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        len -= 3;
    }
    struct repair p = {.text = text, .len = len};
    buf_init(&p.out, 3 * len + 16);
    enum status st = len ? repair_run(&p, &r->error) : api_fail(&r->error, 400, "invalid_json", NULL, "The request has no body: a JSON object is expected.");
    if (!st) {
        json_error_t je;
        json_t *j = p.touched ? json_loadb(p.out.data, p.out.len, JSON_ALLOW_NUL, &je) : json_loadb(text, len, JSON_ALLOW_NUL, &je);
        if (!j && json_error_code(&je) == json_error_numeric_overflow) {
            st = api_fail(&r->error, 400, "invalid_json", NULL, "The body holds a number that is too large (line %d, column %d).", je.line, je.column);
        } else if (!j) {
            st = api_fail(&r->error, 400, "invalid_json", NULL, "The body is not valid JSON: %.200s (line %d, column %d).", je.text, je.line, je.column);
        } else if (!json_is_object(j)) {
            st = api_fail(&r->error, 400, "invalid_json", NULL, "The body must be a JSON object.");
            json_decref(j);
        } else {
            *root = j;
        }
    }
    r->body_values = p.tokens;
    buf_fini(&p.out);
    return st;
}

json_t *json_from_text(const char *text, size_t len)
{
    struct api_error ignored;
    struct repair p = {.text = text, .len = len, .depth = 1, .numbers_only = true};
    buf_init(&p.out, 3 * len + 16);
    bool fine = repair_run(&p, &ignored) == ST_OK;
    json_t *j = !fine ? NULL : json_loadb(p.touched ? p.out.data : text, p.touched ? p.out.len : len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    buf_fini(&p.out);
    return j;
}

/* Stop strings are borrowed from the body, and the loop takes the request's id. The rest, which may be large, goes before the request waits its
 * turn, and here, not on the loop: millions of values take a while, of a refused request too. */
void request_body_trim(struct request *r, json_t *root, bool stops)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(root, next, key, value) {
        bool id = strcmp(key, "request_id") == 0 || strcmp(key, "rid") == 0;
        if ((stops && strcmp(key, "stop") == 0) || (id && json_is_string(value) && json_string_length(value) <= 128)) continue;
        json_object_del(root, key);
    }
    if (r->body_values > TRIM_VALUES) malloc_trim(0); /* the allocator would keep them, for each worker */
}

enum status request_model_check(struct request *r, json_t *root)
{
    json_t *m = json_object_get(root, "model");
    if (!m || json_is_null(m)) return ST_OK;
    if (!json_is_string(m)) return api_fail(&r->error, 400, "invalid_type", "model", "model must be a string.");
    const char *name = json_string_value(m);
    if (!*name || r->srv->opt->accept_any_model) return ST_OK;
    if (json_is(m, r->srv->model_name)) return ST_OK;
    return api_fail(&r->error, 404, "model_not_found", "model", "The model `%.200s` does not exist.", name);
}

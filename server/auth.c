/* See auth.h. */
#include "config/base/file.h"
#include "config/base/list.h"
#include "server/auth.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct auth_key {
    unsigned char digest[crypto_hash_sha256_BYTES];
    bool may_precede;
};

struct auth {
    size_t count, cap;
    struct auth_key *keys;
};

/* A line "KEY" or "KEY priority", without line end. */
static bool key_line(const char *line, size_t n, struct auth_key *key)
{
    static const char mark[] = "priority";
    size_t end = strcspn(line, " \t"), at = end + strspn(line + end, " \t");
    if (end > n) end = n;
    key->may_precede = end < n;
    crypto_hash_sha256(key->digest, (const unsigned char *)line, (unsigned long long)end);
    return end && (end == n || (n - at == sizeof mark - 1 && memcmp(line + at, mark, sizeof mark - 1) == 0));
}

static enum status key_add(struct auth *a, const char *line, size_t n, const char *from, size_t number,
                           struct err *err)
{
    if (!LIST_RESERVE(a->keys, a->cap, a->count + 1)) return err_nomem(err, from);
    if (key_line(line, n, &a->keys[a->count++])) return ST_OK;
    return err_set(err, ST_INVALID,
                   "%s, line %zu: after a key there may be a space and the word \"priority\", nothing else",
                   from, number);
}

static enum status keys_read(struct auth *a, const char *file, unsigned pipe_ms, struct err *err)
{
    char *text = NULL, from[300];
    size_t len = 0, number = 0, had = a->count;
    snprintf(from, sizeof from, "--api-key-file %.250s", file);
    enum status st = file_text_piped(file, FILE_FLAG_MAX, pipe_ms, &text, &len, err);
    if (st) return err_prefix(err, ST_INVALID, "--api-key-file");
    for (char *at = text, *line; !st && (line = file_line(&at, text + len));) {
        size_t n = (size_t)(at - line);
        number++;
        while (n && (!line[n - 1] || strchr("\n\r \t", line[n - 1]))) n--;
        if (n && line[0] != '#') st = key_add(a, line, n, from, number, err);
    }
    if (!st && a->count == had) st = err_set(err, ST_INVALID, "%s: holds no key", from);
    sodium_memzero(text, len);
    free(text);
    return st;
}

enum status auth_load(const struct options *o, unsigned pipe_ms, struct auth **out, struct err *err)
{
    *out = NULL;
    if (!o->api_key && !o->api_key_file) return ST_OK;
    struct auth *a = calloc(1, sizeof *a);
    if (!a) return err_nomem(err, "API keys");
    enum status st = o->api_key ? key_add(a, o->api_key, strlen(o->api_key), "--api-key", 1, err) : ST_OK;
    if (!st && o->api_key_file) st = keys_read(a, o->api_key_file, pipe_ms, err);
    if (st) auth_free(a);
    else *out = a;
    return st;
}

void auth_free(struct auth *a)
{
    if (!a) return;
    free(a->keys);
    free(a);
}

static bool key_ok(struct request *r, const struct auth *a, const char *key)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, (const unsigned char *)key, strlen(key));
    size_t found = a->count; /* compares every key, for constant time */
    for (size_t i = 0; i < a->count; i++)
        if (sodium_memcmp(digest, a->keys[i].digest, sizeof digest) == 0) found = i;
    if (found == a->count) return false;
    memcpy(r->http.key, digest, sizeof r->http.key);
    r->http.has_key = true;
    r->http.one_key = a->count == 1;
    r->http.may_precede = a->keys[found].may_precede;
    uint64_t holder;
    memcpy(&holder, digest, sizeof holder);
    if (a->count > 1) request_holder(r, holder);
    return true;
}

bool auth_admit(struct request *r)
{
    const struct auth *a = r->srv->auth;
    r->http.may_precede = !a;
    if (!a) return true;
    const char *v = http_message_header(&r->http, "Authorization");
    if (v && strncasecmp(v, "Bearer ", 7) == 0) {
        v += 7;
        while (*v == ' ') v++;
        if (key_ok(r, a, v)) return true;
    }
    static const char *const others[] = {"x-api-key", "api-key"};
    for (size_t i = 0; i < 2; i++) {
        v = http_message_header(&r->http, others[i]);
        if (v && key_ok(r, a, v)) return true;
    }
    return false;
}

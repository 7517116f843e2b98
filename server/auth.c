/* See auth.h. */
#include "config/base/file.h"
#include "config/base/list.h"
#include "server/auth.h"
#include "server/jobs/jobs.h"

#include <sodium.h>
#include <stdio.h>
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
    if (o->behind_front || (!o->api_key && !o->api_key_file)) return ST_OK;
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

static bool digest_ok(struct request *r, const struct auth *a, const unsigned char *digest)
{
    size_t found = a->count; /* compares every key, for constant time */
    for (size_t i = 0; i < a->count; i++)
        if (sodium_memcmp(digest, a->keys[i].digest, sizeof a->keys[i].digest) == 0) found = i;
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

/* What the process in front has checked (front/forward.c); the socket is in a directory of this user's. */
static void identity_take(struct request *r)
{
    const char *line = http_message_header(&r->http, FRONT_HEADER);
    char client[CLIENT_BYTES], key[2 * sizeof r->http.key + 2];
    unsigned long long holder, websocket;
    unsigned flags;
    if (!line || sscanf(line, "%63s %llx %65s %u %llu", client, &holder, key, &flags, &websocket) != 5)
        return;
    if (strcmp(client, "-") != 0) snprintf(r->http.client, sizeof r->http.client, "%s", client);
    r->http.has_key = !sodium_hex2bin(r->http.key, sizeof r->http.key, key, strlen(key), NULL, NULL, NULL);
    r->http.one_key = flags & 1;
    r->http.may_precede = flags & 2;
    r->http.id_from_client = flags & 4;
    r->http.admin = flags & 8;
    r->http.inside = flags & 16;
    r->http.websocket = websocket;
    request_holder(r, holder);
}

static bool key_ok(struct request *r, const struct auth *a, const char *key)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, (const unsigned char *)key, strlen(key));
    return digest_ok(r, a, digest);
}

/* A line of a batch: its owner's key may have been withdrawn. What it holds is not in that key's share. */
#define INSIDE_HOLDER 0x6a6f62u
static bool inside_ok(struct request *r, const struct auth *a)
{
    unsigned char digest[crypto_hash_sha256_BYTES] = {0};
    const char *hex = http_message_header(&r->http, JOBS_OWNER_HEADER);
    if (hex) (void)sodium_hex2bin(digest, sizeof digest, hex, strlen(hex), NULL, NULL, NULL);
    bool ok = !a || digest_ok(r, a, digest);
    request_holder(r, r->response.share->holder ^ INSIDE_HOLDER);
    return ok;
}

static bool key_find(struct request *r)
{
    const struct auth *a = r->srv->auth;
    r->http.may_precede = !a;
    if (r->http.inside) return inside_ok(r, a);
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

bool auth_admit(struct request *r)
{
    const struct server *s = r->srv;
    /* A browser on this machine can also reach the server, on behalf of any page. */
    bool ok = key_find(r),
         page = http_message_header(&r->http, "Origin") || http_message_header(&r->http, "Sec-Fetch-Site");
    r->http.admin = s->auth ? r->http.may_precede || r->http.one_key : s->loopback && !page;
    if (s->ctx.opt->behind_front) identity_take(r);
    return ok;
}

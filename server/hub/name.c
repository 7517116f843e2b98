/* Names of models, and the settings of huggingface_hub. See internal.h. */
#include "config/base/env.h"
#include "config/base/file.h"
#include "config/base/hex.h"
#include "server/hub/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

bool hub_is_hash(const char *text, size_t len)
{
    size_t n = 0;
    while (hex_digit(text[n]) >= 0 && (text[n] < 'A' || text[n] > 'F')) n++;
    return n == len && !text[n];
}

bool hub_path_ok(const char *path)
{
    if (!*path || strlen(path) >= HUB_PATH_MAX) return false;
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == '\\' || *p == 0x7f ||
            (p[0] == '\xc2' && (unsigned char)p[1] < 0xa0)) /* C1 */
            return false;
    for (const char *at = path;; at++) {
        size_t n = strcspn(at, "/");
        if (!n || n > 255 || (n == 1 && *at == '.') || (n == 2 && at[0] == '.' && at[1] == '.')) return false;
        at += n;
        if (!*at) return true;
    }
}

static bool copy(char *to, size_t cap, const char *from, size_t len)
{
    if (len >= cap) return false;
    memcpy(to, from, len);
    to[len] = '\0';
    return true;
}

enum status hub_name_parse(const char *text, struct hub_name *out, struct err *err)
{
    const char *at = strncmp(text, HUB_PREFIX, strlen(HUB_PREFIX)) == 0 ? text + strlen(HUB_PREFIX) : text;
    size_t repo = strcspn(at, "@:"), org = strcspn(at, "/");
    const char *rev = at[repo] == '@' ? at + repo + 1 : "main", *file = strchr(at + repo, ':');
    size_t rev_len = at[repo] == '@' ? strcspn(rev, ":") : strlen(rev);
    *out = (struct hub_name){0};
    bool ok = copy(out->repo, sizeof out->repo, at, repo) && copy(out->rev, sizeof out->rev, rev, rev_len) &&
              copy(out->file, sizeof out->file, file ? file + 1 : "", file ? strlen(file + 1) : 0);
    size_t name = org < repo ? org + 1 : 0;
    ok = ok && hub_path_ok(out->repo) && hub_path_ok(out->rev) && strspn(at, WORD) == (name ? org : repo) &&
         name + strspn(at + name, WORD) == repo && !strstr(out->repo, "--") &&
         (!file || hub_path_ok(file + 1));
    if (!ok)
        return err_set(err, ST_INVALID,
                       "'%.200s' is not a model of the Hugging Face hub: write ORG/NAME, ORG/NAME@REVISION "
                       "or ORG/NAME:FILE.gguf",
                       text);
    return ST_OK;
}

static bool is_true(const char *v)
{
    static const char *const yes[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; v && i < 4; i++)
        if (strcasecmp(v, yes[i]) == 0) return true;
    return false;
}

static const char *set(const char *name)
{
    const char *v = env_get(name);
    return v && *v ? v : NULL;
}

/* "~/x": what huggingface_hub expands. */
static char *home_path(const char *path)
{
    const char *home = set("HOME");
    return path[0] == '~' && path[1] == '/' && home ? file_join(home, path + 2) : strdup(path);
}

static char *token_read(const char *home)
{
    char *path = set("HF_TOKEN_PATH") ? home_path(set("HF_TOKEN_PATH")) : file_join(home, "token"),
         *text = NULL;
    size_t len;
    if (!path || file_text(path, 4096, &text, &len, NULL)) text = NULL; /* none is fine */
    free(path);
    return text;
}

enum status hub_open(struct hub *h, struct err *err)
{
    const char *cache = set("HF_HUB_CACHE") ? set("HF_HUB_CACHE") : set("HUGGINGFACE_HUB_CACHE");
    const char *xdg = set("XDG_CACHE_HOME"), *timeout = set("HF_HUB_DOWNLOAD_TIMEOUT");
    char *home = set("HF_HOME") ? home_path(set("HF_HOME"))
                 : xdg          ? file_join(xdg, "huggingface")
                                : home_path("~/.cache/huggingface");
    *h = (struct hub){
        .offline = is_true(set("HF_HUB_OFFLINE") ? set("HF_HUB_OFFLINE") : set("TRANSFORMERS_OFFLINE")),
        .timeout_s = timeout ? (unsigned)strtoul(timeout, NULL, 10) : 0,
        .endpoint = strdup(set("HF_ENDPOINT") ? set("HF_ENDPOINT") : "https://huggingface.co")};
    if (!h->timeout_s) h->timeout_s = 10;
    if (home) h->cache = cache ? home_path(cache) : file_join(home, "hub");
    const char *token = set("HF_TOKEN") ? set("HF_TOKEN") : set("HUGGING_FACE_HUB_TOKEN");
    if (home && token) h->token = strdup(token);
    else if (home && !is_true(set("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) h->token = token_read(home);
    free(home);
    if (!h->cache || !h->endpoint) {
        hub_close(h);
        return err_nomem(err, "the hub's settings");
    }
    for (size_t n = strlen(h->endpoint); n && h->endpoint[n - 1] == '/'; n--) h->endpoint[n - 1] = '\0';
    if (strncmp(h->endpoint, "https://", 8) != 0 && strncmp(h->endpoint, "http://", 7) != 0) {
        (void)err_set(err, ST_INVALID, "HF_ENDPOINT=%.200s: not an http or https URL", h->endpoint);
        hub_close(h);
        return ST_INVALID;
    }
    if (h->cache[0] == '~') {
        (void)err_set(err, ST_INVALID, "HF_HOME or HOME must be set: it is where models are kept");
        hub_close(h);
        return ST_INVALID;
    }
    if (h->token) {
        size_t begin = strspn(h->token, " \t\r\n"), len = strcspn(h->token + begin, " \t\r\n");
        memmove(h->token, h->token + begin, len);
        h->token[len] = '\0';
        if (!len) free(h->token), h->token = NULL;
    }
    return ST_OK;
}

void hub_close(struct hub *h)
{
    free(h->cache);
    free(h->endpoint);
    free(h->token);
    *h = (struct hub){0};
}

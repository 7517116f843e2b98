/* See rules.h. Hosts are compared in libcurl's normal form, which handles the many spellings of an IP
 * address. */
#include "server/fetch/rules.h"

#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HOST_CHARS "abcdefghijklmnopqrstuvwxyz0123456789.-_[:]"

/* The host of a parsed URL: lower case, without a trailing dot; owned by the caller. NULL: none, or not plain
 * ASCII (an international name is written xn--...), or out of memory. */
static char *host_of(CURLU *u)
{
    char *found, *host = NULL;
    if (curl_url_get(u, CURLUPART_HOST, &found, 0)) return NULL;
    size_t n = strlen(found);
    for (char *p = found; *p; p++) *p = *p >= 'A' && *p <= 'Z' ? (char)(*p | 32) : *p;
    if (n && found[n - 1] == '.') found[--n] = '\0';
    if (n && strspn(found, HOST_CHARS) == n && found[0] != '.') host = strdup(found);
    curl_free(found);
    return host;
}

static bool port_parse(const char *text, size_t len, unsigned *out)
{
    unsigned v = 0;
    if (len == 1 && *text == '*') {
        *out = ANY_PORT;
        return true;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || v > 65535) return false;
        v = 10 * v + (unsigned)(text[i] - '0');
    }
    *out = v;
    return v > 0 && v < 65536;
}

static bool host_rule_parse(const char *text, size_t len, struct host_rule *out)
{
    char url[300] = "http://";
    const char *colon = memrchr(text, ':', len), *bracket = memrchr(text, ']', len);
    *out = (struct host_rule){0};
    if (colon && (!bracket || colon > bracket)) {
        if (!port_parse(colon + 1, len - (size_t)(colon - text) - 1, &out->port)) return false;
        len = (size_t)(colon - text);
    }
    if (len == 1 && *text == '*') return (out->host = strdup("")) != NULL;
    out->below = len > 2 && text[0] == '*' && text[1] == '.';
    if (out->below) {
        text += 2;
        len -= 2;
    }
    if (!len || len > 255 || (*text != '[' && memchr(text, ':', len))) return false;
    for (size_t i = 0; i < len; i++)
        if (!strchr(HOST_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZ", text[i])) return false;
    memcpy(url + 7, text, len);
    CURLU *u = curl_url();
    if (u && !curl_url_set(u, CURLUPART_URL, url, 0)) out->host = host_of(u);
    curl_url_cleanup(u);
    return out->host != NULL;
}

enum status host_rules_parse(const char *text, struct host_rules *out, struct err *err)
{
    size_t most = 1;
    for (const char *p = text; *p; p++) most += *p == ',';
    *out = (struct host_rules){.list = calloc(most, sizeof *out->list)};
    if (!out->list) return err_nomem(err, NULL);
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        if (!host_rule_parse(p, len, &out->list[out->count++])) {
            host_rules_free(out);
            return err_set(err, ST_INVALID, "'%.*s' is none of HOST, *.HOST and *, with or without :PORT",
                           (int)len, p);
        }
        if (!p[len]) return ST_OK;
        p += len + 1;
    }
}

void host_rules_free(struct host_rules *r)
{
    for (size_t i = 0; i < r->count; i++) free(r->list[i].host);
    free(r->list);
    *r = (struct host_rules){0};
}

static bool host_rule_has(const struct host_rule *r, const char *host, unsigned port, bool own_port)
{
    size_t n = strlen(host), m = strlen(r->host);
    if (r->port != ANY_PORT && (r->port ? r->port != port : !own_port)) return false;
    if (!m) return true;
    if (!r->below) return strcmp(host, r->host) == 0;
    return n > m + 1 && host[n - m - 1] == '.' && strcmp(host + n - m, r->host) == 0;
}

static enum image_error parts_check(const struct host_rules *rules, CURLU *u, struct err *err)
{
    char *scheme = NULL, *port = NULL, *zone = NULL, *host = NULL;
    enum image_error f = IMAGE_BAD_URL;
    if (!curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
        !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
        curl_url_get(u, CURLUPART_ZONEID, &zone, 0) == CURLUE_NO_ZONEID) {
        bool https = strcasecmp(scheme, "https") == 0;
        unsigned number;
        host = host_of(u);
        bool valid =
            host && (https || strcasecmp(scheme, "http") == 0) && port_parse(port, strlen(port), &number);
        for (size_t i = 0; valid && i < rules->count && f; i++)
            if (host_rule_has(&rules->list[i], host, number, number == (https ? 443 : 80))) f = IMAGE_OK;
        if (f) image__fail(err, f, valid ? FETCH_NOT_FROM_HERE : "the URL is not valid");
    } else {
        image__fail(err, f, "the URL is not valid");
    }
    curl_free(scheme);
    curl_free(port);
    curl_free(zone);
    free(host);
    return f;
}

enum image_error url_check(const struct host_rules *rules, CURLU *base, const char *url, size_t len,
                           CURLU **out, struct err *err)
{
    *out = NULL;
    if (len > FETCH_URL_BYTES)
        return image__fail(err, IMAGE_BAD_URL, "the URL is longer than %u bytes", FETCH_URL_BYTES);
    if (!len || memchr(url, '\0', len) || memchr(url, '\\', len))
        return image__fail(err, IMAGE_BAD_URL, "the URL is not valid");
    char *text = strndup(url, len);
    CURLU *u = base ? curl_url_dup(base) : curl_url();
    enum image_error f = IMAGE_OK;
    if (!text || !u) {
        f = image__nomem(err);
    } else {
        CURLUcode rc = curl_url_set(u, CURLUPART_URL, text, CURLU_DISALLOW_USER | CURLU_URLENCODE);
        if (rc == CURLUE_USER_NOT_ALLOWED)
            f = image__fail(err, IMAGE_BAD_URL, "URLs with a user's name are not fetched");
        else if (rc == CURLUE_OUT_OF_MEMORY) f = image__nomem(err);
        else if (rc) f = image__fail(err, IMAGE_BAD_URL, "the URL is not valid");
        else f = parts_check(rules, u, err);
    }
    free(text);
    if (f) curl_url_cleanup(u);
    else *out = u;
    return f;
}

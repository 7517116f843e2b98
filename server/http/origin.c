/* See origin.h. */
#include "server/http/origin.h"

#include "server/http/request.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#define ORIGIN_BYTES 300u /* longest allowed origin: a DNS name has at most 253 */

struct span {
    const char *at;
    size_t len;
};

static struct span span_of(const char *text)
{
    return (struct span){text, strlen(text)};
}

static bool same(struct span a, struct span b)
{
    return a.len == b.len && strncasecmp(a.at, b.at, a.len) == 0;
}

static bool ends_with(struct span a, const char *tail)
{
    size_t n = strlen(tail);
    return a.len > n && strncasecmp(a.at + a.len - n, tail, n) == 0;
}

/* The next item of "a, b"; false: no more. Empty items count. */
static bool item_next(const char **list, struct span *item)
{
    if (!*list) return false;
    const char *at = *list, *end = at + strcspn(at, ",");
    *list = *end ? end + 1 : NULL;
    while (at < end && *at == ' ') at++;
    while (end > at && end[-1] == ' ') end--;
    *item = (struct span){at, (size_t)(end - at)};
    return true;
}

static bool list_has(const char *list, const char *what)
{
    struct span item;
    while (item_next(&list, &item))
        if (same(item, span_of(what))) return true;
    return false;
}

/* ---- host names ---- */

/* "name:8000" -> "name", "[::1]:8000" -> "[::1]". False: neither, or no valid port after the colon. */
static bool authority_split(struct span authority, struct span *name, bool *has_port)
{
    const char *end = authority.at + authority.len, *colon = memrchr(authority.at, ':', authority.len),
               *bracket = memrchr(authority.at, ']', authority.len);
    if (colon && bracket && colon < bracket) colon = NULL;
    *has_port = colon != NULL;
    *name = (struct span){authority.at, (size_t)((colon ? colon : end) - authority.at)};
    for (const char *p = colon ? colon + 1 : end; p < end; p++)
        if (*p < '0' || *p > '9') return false;
    if (name->len && name->at[name->len - 1] == '.') name->len--; /* "localhost." is the same name */
    bool six = name->len && *name->at == '[';
    return name->len && name->len <= ORIGIN_BYTES &&
           (six ? bracket != NULL : !memchr(name->at, ':', name->len));
}

/* IPv4 as IPv4-mapped IPv6, ::ffff:a.b.c.d. */
static bool address_parse(struct span name, struct in6_addr *out)
{
    char text[INET6_ADDRSTRLEN] = "::ffff:";
    size_t n = strlen(text);
    if (name.len > 2 && *name.at == '[') {
        name = (struct span){name.at + 1, name.len - 2};
        n = 0;
    } else if (memchr(name.at, ':', name.len) || !memchr(name.at, '.', name.len)) {
        return false; /* "cafe" is a name, though ::ffff:cafe is an address */
    }
    if (n + name.len >= sizeof text) return false;
    memcpy(text + n, name.at, name.len);
    text[n + name.len] = '\0';
    return inet_pton(AF_INET6, text, out) == 1;
}

static bool loopback(struct span name)
{
    struct in6_addr a;
    if (same(name, span_of("localhost")) || ends_with(name, ".localhost")) return true;
    return address_parse(name, &a) &&
           (IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127));
}

static bool host_allowed(const struct options *o, struct span name)
{
    struct in6_addr a;
    struct span item;
    if (loopback(name) || address_parse(name, &a)) return true;
    for (const char *list = o->host; item_next(&list, &item);)
        if (same(item, name)) return true;
    if (strcmp(o->allowed_hosts, "auto") == 0) return false;
    for (const char *list = o->allowed_hosts; item_next(&list, &item);) {
        if (same(item, span_of("*")) || same(item, name)) return true;
        if (item.len > 2 && item.at[0] == '*' && name.len >= item.len && /* "*.example.org" */
            same((struct span){item.at + 1, item.len - 1},
                 (struct span){name.at + name.len - (item.len - 1), item.len - 1}))
            return true;
    }
    return false;
}

/* With API keys, a foreign page has none. */
static bool host_ok(const struct server *s, const char *host)
{
    struct span name;
    bool has_port, automatic = strcmp(s->ctx.opt->allowed_hosts, "auto") == 0;
    if (!host || (automatic && s->auth)) return true;
    return authority_split(span_of(host), &name, &has_port) && host_allowed(s->ctx.opt, name);
}

/* ---- origins ---- */

/* "http://localhost:3000" -> "localhost:3000". */
static bool origin_authority(struct span origin, struct span *authority)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (origin.len <= n || strncasecmp(origin.at, schemes[i], n) != 0) continue;
        *authority = (struct span){origin.at + n, origin.len - n};
        return true;
    }
    return false;
}

static bool origin_allowed(const struct options *o, const char *text)
{
    struct span origin = span_of(text), item, authority, name;
    bool has_port, local = origin_authority(origin, &authority) &&
                           authority_split(authority, &name, &has_port) && loopback(name);
    if (origin.len > ORIGIN_BYTES) return false;
    for (const char *list = o->cors_origins; item_next(&list, &item);) {
        if (same(item, span_of("*")) || same(item, origin)) return true;
        if (local && same(item, span_of("loopback"))) return true;
    }
    return false;
}

/* Is the request from a page that is neither the server's own nor allowed? Without Origin, Sec-Fetch-Site
 * gives the source of a request; links to the server (navigate) are allowed anywhere. Pages can't set these
 * headers. */
static bool foreign(const struct request *r, const char *origin, const char *host)
{
    const char *site = http_message_header(&r->http, "Sec-Fetch-Site"),
               *mode = http_message_header(&r->http, "Sec-Fetch-Mode");
    struct span authority;
    if (list_has(r->srv->ctx.opt->cors_origins, "*") || (site && strcmp(site, "same-origin") == 0))
        return false;
    if (!origin) return site && strcmp(site, "cross-site") == 0 && !(mode && strcmp(mode, "navigate") == 0);
    return !(host && origin_authority(span_of(origin), &authority) && same(authority, span_of(host)));
}

bool origin_admit(struct request *r)
{
    const struct options *o = r->srv->ctx.opt;
    const char *origin = http_message_header(&r->http, "Origin"),
               *host = http_message_header(&r->http, "Host");
    if (origin && origin_allowed(o, origin))
        r->http.allow_origin = list_has(o->cors_origins, "*") ? "*" : origin;
    if (strcmp(r->http.path, "/health") == 0) return true;
    if (!host_ok(r->srv, host)) {
        (void)api_fail(&r->response.error, 421, "host_not_allowed", NULL,
                       "The Host name '%.100s' is not allowed. The server's operator can allow it with "
                       "--allowed-hosts.",
                       host);
    } else if (!r->srv->auth && !r->http.allow_origin && foreign(r, origin, host)) {
        (void)api_fail(&r->response.error, 403, "origin_not_allowed", NULL,
                       "Pages of %.100s may not use this server. The server's operator can allow them with "
                       "--cors-origins, or use API keys.",
                       origin ? origin : "other sites");
    }
    return !r->response.error.http;
}

/* ---- the flags ---- */

static bool host_item_ok(struct span item)
{
    struct span name;
    bool has_port;
    if (same(item, span_of("*"))) return true;
    if (item.len > 2 && item.at[0] == '*' && item.at[1] == '.')
        item = (struct span){item.at + 2, item.len - 2};
    return authority_split(item, &name, &has_port) && !has_port && !memchr(item.at, '/', item.len) &&
           !memchr(item.at, '*', item.len);
}

static bool origin_item_ok(struct span item)
{
    struct span authority, name;
    bool has_port;
    static const char *const words[] = {"*", "loopback", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (same(item, span_of(words[i]))) return true;
    const char *colon = memmem(item.at, item.len, "://", 3); /* any scheme: applications have their own */
    if (!colon || colon == item.at) return false;
    authority = (struct span){colon + 3, item.len - (size_t)(colon + 3 - item.at)};
    return authority_split(authority, &name, &has_port) && item.len <= ORIGIN_BYTES &&
           !memchr(authority.at, '/', authority.len) && !memchr(authority.at, '*', authority.len);
}

enum status origin_options_check(const struct options *o, struct err *err)
{
    struct span item;
    for (const char *list = o->cors_origins; item_next(&list, &item);)
        if (!origin_item_ok(item))
            return err_set(err, ST_INVALID,
                           "--cors-origins: '%.*s' is none of SCHEME://HOST[:PORT], loopback, null and *",
                           (int)item.len, item.at);
    for (const char *list = o->allowed_hosts; item_next(&list, &item);)
        if (!host_item_ok(item))
            return err_set(err, ST_INVALID,
                           "--allowed-hosts: '%.*s' is none of HOST (without a port), *.HOST, * and auto",
                           (int)item.len, item.at);
    return ST_OK;
}

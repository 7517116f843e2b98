/* See http_message.h. */
#include "server/http/http_message.h"

#include "config/base/hex.h"
#include "server/http/http.h"

#include <ctype.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

size_t percent_decode(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p == '%' && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
            *to++ = (char)(hex_digit(p[1]) * 16 + hex_digit(p[2]));
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    return (size_t)(to - text);
}

bool request_id_ok(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 128 &&
           strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-") == n;
}

void request_id_make(char id[REQUEST_ID_BYTES], const char *given)
{
    unsigned char raw[16];
    if (given && request_id_ok(given)) {
        snprintf(id, REQUEST_ID_BYTES, "%s", given);
        return;
    }
    randombytes_buf(raw, sizeof raw);
    sodium_bin2hex(id, REQUEST_ID_BYTES, raw, sizeof raw);
}

/* "//a//b/" -> "/a/b"; an absolute-form target loses scheme and host. In place. */
static void path_normalise(char *path)
{
    char *from = path, *to = path;
    if (strncasecmp(from, "http://", 7) == 0 || strncasecmp(from, "https://", 8) == 0) {
        from = strstr(from, "://") + 3;
        from += strcspn(from, "/");
        if (!*from) from = path + strlen(path);
    }
    while (*from) {
        if (*from == '/' && to > path && to[-1] == '/') {
            from++;
        } else {
            *to++ = *from++;
        }
    }
    if (to > path + 1 && to[-1] == '/') to--;
    if (to == path) *to++ = '/';
    *to = '\0';
}

static const struct {
    const char *name;
    enum method method;
} methods[] = {
    {"GET", M_GET}, {"HEAD", M_HEAD}, {"POST", M_POST}, {"OPTIONS", M_OPTIONS}, {"DELETE", M_DELETE}};

const char *method_name(enum method method)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].method == method) return methods[i].name;
    return "OTHER";
}

void client_name(const struct sockaddr *from, char name[CLIENT_BYTES])
{
    socklen_t len = from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    bool ip = from->sa_family == AF_INET6 || from->sa_family == AF_INET;
    if (!ip || getnameinfo(from, len, name, CLIENT_BYTES, NULL, 0, NI_NUMERICHOST)) *name = '\0';
}

uint64_t client_holder(const struct sockaddr *from)
{
    uint64_t holder = 0;
    if (from->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr);
    if (from->sa_family != AF_INET6) return 0;
    const uint8_t *at = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr.s6_addr;
    bool four = IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr);
    for (int i = four ? 12 : 0; i < (four ? 16 : 8); i++) holder = holder << 8 | at[i];
    return holder;
}

bool http_message_open(struct http_message *x, struct MHD_Connection *c, const char *method,
                       const char *target, size_t body_max)
{
    *x = (struct http_message){.mhd = c,
                               .method = M_OTHER,
                               .arrived_us = now_us(),
                               .created = (int64_t)time(NULL),
                               .path = strdup(target)};
    buf_init(&x->body, body_max);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i].name) == 0) x->method = methods[i].method;
    const char *given = http_message_header(x, "X-Request-Id");
    x->id_from_client = given && request_id_ok(given);
    request_id_make(x->id, given);
    const union MHD_ConnectionInfo *at = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (at && at->client_addr) client_name(at->client_addr, x->client);
    if (x->path) path_normalise(x->path);
    return x->path != NULL;
}

void http_message_close(struct http_message *x)
{
    buf_fini(&x->body);
    free(x->path);
    free(x->cors);
}

const char *http_message_header(const struct http_message *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

const char *http_message_argument(const struct http_message *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

enum status http_message_body_add(struct http_message *x, const char *data, size_t len)
{
    uint32_t marks = 0; /* the loop is a vector's */
    for (size_t i = 0; i < len; i++)
        marks += (data[i] == '{') | (data[i] == '[') | (data[i] == ',') | (data[i] == ':');
    x->body_marks += marks;
    return buf_add(&x->body, data, len);
}

void http_message_sleep(struct http_message *x)
{
    MHD_suspend_connection(x->mhd);
    x->suspended = true;
}

bool http_message_wake(struct http_message *x)
{
    if (!x->suspended || !x->mhd) return false;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
    return true;
}

/* See address.h. */
#include "server/fetch/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAPPED "\0\0\0\0\0\0\0\0\0\0\xff\xff"

/* Addresses that IANA's special-purpose registries do not list as globally reachable, and multicast. IPv6
 * outside 2000::/3 is refused anyway: ::, ::1, fc00::/7, fe80::/10, ff00::/8, and 64:ff9b::/96 (NAT64), which
 * can map to any IPv4 address. */
static const char *const special[] = {
    "0.0.0.0/8",         /* this network */
    "10.0.0.0/8",        /* private */
    "100.64.0.0/10",     /* shared by customers of a provider */
    "127.0.0.0/8",       /* this machine */
    "169.254.0.0/16",    /* link-local; cloud metadata */
    "172.16.0.0/12",     /* private */
    "192.0.0.0/24",      /* protocol assignments */
    "192.0.2.0/24",      /* documentation */
    "192.31.196.0/24",   /* AS112 */
    "192.52.193.0/24",   /* AMT */
    "192.88.99.0/24",    /* 6to4 relays */
    "192.168.0.0/16",    /* private */
    "192.175.48.0/24",   /* AS112 */
    "198.18.0.0/15",     /* benchmarks */
    "198.51.100.0/24",   /* documentation */
    "203.0.113.0/24",    /* documentation */
    "224.0.0.0/4",       /* multicast */
    "240.0.0.0/4",       /* reserved, broadcast */
    "2001::/23",         /* protocol assignments: Teredo, ORCHID, benchmarks */
    "2001:db8::/32",     /* documentation */
    "2002::/16",         /* 6to4: holds any IPv4 address */
    "2620:4f:8000::/48", /* AS112 */
    "3fff::/20",         /* documentation */
};

/* text[0..len): an address with an optional /BITS. */
static bool network_parse(const char *text, size_t len, struct network *out)
{
    char host[INET6_ADDRSTRLEN + 1], *end;
    const char *slash = memchr(text, '/', len);
    size_t n = slash ? (size_t)(slash - text) : len;
    if (!n || n >= sizeof host) return false;
    memcpy(host, text, n);
    host[n] = '\0';
    *out = (struct network){.bits = 128};
    bool four = inet_pton(AF_INET, host, out->base + 12) == 1;
    if (four) memcpy(out->base, MAPPED, 12);
    else if (inet_pton(AF_INET6, host, out->base) != 1) return false;
    if (!slash) return true;
    char bits[4] = "";
    n = len - n - 1;
    if (!n || n >= sizeof bits || slash[1] < '0' || slash[1] > '9') return false;
    memcpy(bits, slash + 1, n);
    unsigned long v = strtoul(bits, &end, 10);
    if (*end || v > (four ? 32 : 128)) return false;
    out->bits = (unsigned)v + (four ? 96 : 0);
    return true;
}

static bool network_has(const struct network *n, const uint8_t address[16])
{
    unsigned whole = n->bits / 8, rest = n->bits % 8;
    if (memcmp(n->base, address, whole) != 0) return false;
    return !rest || !((n->base[whole] ^ address[whole]) >> (8 - rest));
}

enum status networks_parse(const char *text, struct networks *out, struct err *err)
{
    size_t most = 1;
    for (const char *p = text; *p; p++) most += *p == ',';
    *out = (struct networks){.list = calloc(most, sizeof *out->list)};
    if (!out->list) return err_nomem(err, NULL);
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        if (!network_parse(p, len, &out->list[out->count++])) {
            networks_free(out);
            return err_set(err, ST_INVALID, "'%.*s' is no network, such as 10.1.0.0/16", (int)len, p);
        }
        if (!p[len]) return ST_OK;
        p += len + 1;
    }
}

void networks_free(struct networks *n)
{
    free(n->list);
    *n = (struct networks){0};
}

static bool is_public(const uint8_t address[16])
{
    struct network n;
    bool mapped = memcmp(address, MAPPED, 12) == 0;
    if (!mapped && (address[0] & 0xe0) != 0x20) return false;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (!network_parse(special[i], strlen(special[i]), &n) || network_has(&n, address)) return false;
    return true;
}

bool address_allowed(const struct sockaddr *sa, const struct networks *also)
{
    uint8_t address[16];
    if (sa->sa_family == AF_INET) {
        memcpy(address, MAPPED, 12);
        memcpy(address + 12, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        memcpy(address, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
    } else {
        return false;
    }
    for (size_t i = 0; i < also->count; i++)
        if (network_has(&also->list[i], address)) return true;
    return is_public(address);
}

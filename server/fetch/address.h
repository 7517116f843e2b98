/* Which addresses images may be fetched from: public ones, and networks that the operator names. Pure. */
#ifndef KVASIR_FETCH_ADDRESS_H
#define KVASIR_FETCH_ADDRESS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

/* IPv4 addresses are stored as IPv4-mapped IPv6, ::ffff:a.b.c.d, so that each address has one representation.
 */
struct network {
    uint8_t base[16];
    unsigned bits;
};
struct networks {
    struct network *list; /* owned */
    size_t count;
};

/* "10.0.0.0/8,fd00::/8,127.0.0.1" -> *out. ST_INVALID names the part that is not a network. */
enum status networks_parse(const char *text, struct networks *out, struct err *err) KV_MUST_CHECK;
void networks_free(struct networks *n);

/* A public unicast address of IPv4 or IPv6, or one in `also`. */
bool address_allowed(const struct sockaddr *sa, const struct networks *also);

#endif

/* Which web pages may use the server (--cors-origins), and by which names it may be reached
 * (--allowed-hosts). A browser sends requests to servers on its machine and in its network on behalf of any
 * page that it shows. Without API keys they are refused here; the Host header shows when a page's own name
 * was made to resolve to the server (DNS rebinding), which makes that page the same origin. Event loop's
 * thread. */
#ifndef KVASIR_ORIGIN_H
#define KVASIR_ORIGIN_H

#include "config/options.h"
#include "config/base/status.h"

#include <stdbool.h>

struct request;

/* Both lists; ST_INVALID names the wrong part. */
enum status origin_options_check(const struct options *o, struct err *err) KV_MUST_CHECK;

/* Sets http.allow_origin. False: the request is refused, with an error that names the flag. */
bool origin_admit(struct request *r);

#endif

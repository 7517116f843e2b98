/* Which web pages may use the server (--cors-origins), and which Host names it accepts (--allowed-hosts). A
 * browser sends requests to servers on its machine and in its network on behalf of any page. Without API keys
 * such requests are refused here. The Host check stops DNS rebinding: a page whose own name resolves to the
 * server counts as same-origin. Event loop's thread. */
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

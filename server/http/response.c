/* See response.h. */
#include "server/http/response.h"

#include "server/http/limits.h"

void response_open(struct response *a, size_t *all)
{
    *a = (struct response){.all = all};
    buf_init(&a->out, LIMIT_RESPONSE_BYTES);
}

void response_close(struct response *a)
{
    *a->all -= a->bytes;
    buf_fini(&a->out);
}

void response_account(struct response *a, size_t *was, size_t now)
{
    a->bytes += now - *was; /* wraps if the size shrinks */
    *a->all += now - *was;
    *was = now;
}

void response_account_body(struct response *a)
{
    response_account(a, &a->accounted, a->out.cap);
}

/* See answer.h. */
#include "server/http/answer.h"

#include "server/http/limits.h"

void answer_open(struct answer *a, size_t *all)
{
    *a = (struct answer){.all = all};
    buf_init(&a->out, LIMIT_ANSWER_BYTES);
}

void answer_close(struct answer *a)
{
    *a->all -= a->bytes;
    buf_fini(&a->out);
}

void answer_book(struct answer *a, size_t *was, size_t now)
{
    a->bytes += now - *was; /* wraps where less is held than before */
    *a->all += now - *was;
    *was = now;
}

void answer_book_out(struct answer *a)
{
    answer_book(a, &a->booked, a->out.cap);
}

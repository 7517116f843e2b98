/* The memory of answers, all together: what a choice has gathered, and texts that wait for their readers.
 * Each has its limits, but there may be thousands. Event loop's thread. */
#include "server/http/http.h"

void answer_book(struct request *r, size_t *was, size_t now)
{
    r->answer_bytes += now - *was; /* wraps where less is held than before */
    r->srv->answer_bytes += now - *was;
    *was = now;
}

struct request *answers_victim(const struct server *s)
{
    struct request *most = NULL;
    size_t held = 0;
    if (s->answer_bytes <= s->opt->answer_memory) return NULL;
    for (struct request *r = s->requests; r; r = r->next) {
        if (!r->mhd || r->cancelled || r->error.http) continue; /* they end already */
        held += r->answer_bytes;
        if (r->answer_bytes && (!most || r->answer_bytes > most->answer_bytes)) most = r;
    }
    return held > s->opt->answer_memory ? most : NULL;
}

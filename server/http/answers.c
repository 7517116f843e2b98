/* The memory of answers, all together: what a choice has gathered, and texts that wait for their readers.
 * Each has its limits, but there may be thousands. Event loop's thread. */
#include "config/base/log.h"
#include "server/http/conn.h"
#include "server/generate/generate.h"

#include <stdlib.h>
#include <string.h>

void answer_book(struct request *r, size_t *was, size_t now)
{
    if (r->gave_way) return;
    r->answer_bytes += now - *was; /* wraps where less is held than before */
    r->srv->answer_bytes += now - *was;
    *was = now;
}

/* Leaves out the events that were not read yet; one that is half read stays. */
static void events_drop(struct request *r)
{
    struct buf *b = &r->out;
    if (r->out_at) {
        const char *end = memmem(b->data + r->out_at - 1, b->len - r->out_at + 1, "\n\n", 2);
        bool whole = r->out_at > 1 && memcmp(b->data + r->out_at - 2, "\n\n", 2) == 0;
        size_t keep = whole ? r->out_at : end ? (size_t)(end - b->data) + 2 : b->len;
        b->len = keep - r->out_at;
        memmove(b->data, b->data + r->out_at, b->len);
    } else {
        b->len = 0;
    }
    r->out_at = r->out_told = 0;
    char *less = b->data ? realloc(b->data, b->len + 1) : NULL;
    if (!less) return;
    b->data = less;
    b->cap = b->len + 1;
}

/* The one that takes most: who asks for a great deal shall not end those who ask for little. */
static void give_way(struct request *r)
{
    static const char message[] = "The answers being made take too much memory, and this one most of it: try "
                                  "again later, or ask for less at once.";
    log_warn("req=%s answers hold %zu KiB: this one gives way, with %zu KiB", r->id,
             r->srv->answer_bytes >> 10, r->answer_bytes >> 10);
    r->retry_after = 5;
    if (r->state == RQ_STREAM && !r->gen->failed && !r->cancelled) {
        bool sent = r->out_end && !r->out.len;
        events_drop(r);
        if (!sent) {
            r->out_end = false; /* the end that nobody has read yet is another one now */
            gen_abort(r, 429, "rate_limit_exceeded", message);
        }
        r->gen->failed = true;
        gen_shed(r->gen);
        answer_book(r, &r->out_booked, r->out.cap);
        return;
    }
    r->srv->answer_bytes -= r->answer_bytes;
    r->answer_bytes = 0;
    r->gave_way = true;
    if (r->state == RQ_RUNNING) {
        gen_abort(r, 429, "rate_limit_exceeded", message);
    } else if (r->state == RQ_ANSWER && !r->queued) { /* just written */
        (void)api_fail(&r->error, 429, "rate_limit_exceeded", NULL, "%s", message);
        request_fail(r);
    } else { /* being read, too slowly */
        conn_cut(r);
    }
    if (!r->gen) return;
    r->gen->failed = true;
    gen_shed(r->gen);
}

void answers_check(struct server *s)
{
    while (s->answer_bytes > s->opt->answer_memory) {
        struct request *most = NULL;
        for (struct request *r = s->requests; r; r = r->next)
            if (r->answer_bytes && r->mhd && (!most || r->answer_bytes > most->answer_bytes)) most = r;
        if (!most) return; /* what is left are clients that have gone */
        give_way(most);
    }
}

/* See reasoning_parse.h. */
#include "server/chat/reasoning_parse.h"

#include "config/base/assert.h"
#include "server/chat/tool_calls/tag_text.h"

#include <stdint.h>
#include <string.h>

typedef enum status sink_fn(void *user, const char *text, size_t len);

void reasoning_parse_init(struct reasoning_parse *p, enum reasoning_syntax syntax, bool inside, bool verbatim)
{
    *p = (struct reasoning_parse){.state = inside ? REASON_INSIDE : REASON_START,
                                  .syntax = syntax,
                                  .verbatim = verbatim,
                                  .hold = SIZE_MAX,
                                  .found = inside};
}

static void state_to(struct reasoning_parse *p, enum reasoning_state state)
{
    static const unsigned next[] = {
        [REASON_START] = 1u << REASON_INSIDE | 1u << REASON_AFTER,
        [REASON_INSIDE] = 1u << REASON_CLOSED | 1u << REASON_AFTER,
        [REASON_CLOSED] = 1u << REASON_AFTER,
        [REASON_AFTER] = 0,
    };
    ASSERT(next[p->state] >> state & 1);
    p->state = state;
}

/* Does the text start with reasoning? */
static void start_run(struct reasoning_parse *p, const char *text, size_t len, bool final)
{
    size_t i = p->search;
    while (i < len && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r')) i++;
    p->search = i;
    const char *open = reasoning_open(p->syntax);
    size_t open_len = strlen(open), n = len - i < open_len ? len - i : open_len;
    bool fits = memcmp(text + i, open, n) == 0;
    if (fits && n == open_len) {
        state_to(p, REASON_INSIDE);
        p->found = true;
        p->search = p->seen = i + open_len;
        if (!p->verbatim) p->at = p->solid = p->search;
    } else if (!fits || final) {
        state_to(p, REASON_AFTER);
    }
}

static enum status emit(struct reasoning_parse *p, const char *text, size_t to, sink_fn *sink, void *user)
{
    size_t from = p->at;
    if (to <= from) return ST_OK;
    p->at = to;
    p->any = true;
    return sink(user, text + from, to - from);
}

static enum status inside_run(struct reasoning_parse *p, const char *text, size_t len, bool final,
                              sink_fn *sink, void *user)
{
    const char *close = reasoning_close(p->syntax);
    size_t close_len = strlen(close);
    const char *hit = len > p->search ? memmem(text + p->search, len - p->search, close, close_len) : NULL;
    size_t end = hit     ? (size_t)(hit - text)
                 : final ? len
                         : len - tag_prefix(text + p->search, len - p->search, close);
    size_t stop = !hit && p->hold < end ? p->hold : end;
    for (; p->seen < stop; p->seen++) {
        if (text[p->seen] != '\n') p->solid = p->seen + 1;
    }
    if (!p->verbatim && !p->any) {
        while (p->at < stop && text[p->at] == '\n') p->at++;
    }
    p->search = end;
    size_t to = !p->verbatim ? p->solid : hit ? end + close_len : stop;
    enum status st = emit(p, text, to, sink, user);
    if (hit) {
        state_to(p, p->verbatim ? REASON_AFTER : REASON_CLOSED);
        p->at = end + close_len;
    } else if (final) {
        p->cut = p->hold < len;
        if (p->cut) state_to(p, REASON_AFTER);
        if (p->at < stop) p->at = stop; /* line breaks at the end */
    }
    return st;
}

enum status reasoning_parse_run(struct reasoning_parse *p, const char *text, size_t len, bool final,
                                sink_fn *sink, void *user)
{
    enum status st = ST_OK;
    if (p->state == REASON_START) start_run(p, text, len, final);
    if (p->state == REASON_INSIDE) st = inside_run(p, text, len, final, sink, user);
    if (p->state == REASON_CLOSED) {
        while (p->at < len && text[p->at] == '\n') p->at++;
        if (p->at < len || final) state_to(p, REASON_AFTER);
    }
    return st;
}

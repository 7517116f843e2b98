/* What gives way when connections or the memory of request bodies run out: something idle of who holds most.
 * A connection whose request runs, or that sends or reads at a fair rate, is never closed. */
#include "server/http/conn_state.h"

#include "server/context/limits.h"
#include "server/http/request.h"
#include "server/http/websocket.h"

#include <sys/ioctl.h>

#define STALLED_US 2000000u /* neither sent nor read */
#define FRESH_US   200000u  /* accepted so recently, its first bytes are expected */
#define SLOW_BYTES 16u      /* of a body in a millisecond: below it, the connection is as good as idle */

static bool stalled(uint64_t since, uint64_t now)
{
    return now > since && now - since > STALLED_US;
}

static bool idle(const struct conn *n, uint64_t now)
{
    bool unread = n->down.len > n->down_at && stalled(n->sent_us, now);
    switch (n->phase) {
    case CONN_HEAD: return n->down.len == n->down_at || unread;
    case CONN_BODY:
        return stalled(n->data_us, now) ||
               (stalled(n->phase_us, now) &&
                (!n->request || n->request->http.body_seen < (now - n->phase_us) / 1000 * SLOW_BYTES));
    case CONN_BUSY: return unread;
    case CONN_WEBSOCKET:
        return unread || (!n->request && n->up.len == n->up_at &&
                          (!websocket_partial(n->ws) || stalled(n->data_us, now)));
    case CONN_LINGER: return true;
    }
    return false;
}

struct share *conn__owner(const struct conn *n)
{
    return n->request ? n->request->response.share : n->share;
}

static bool closes_first(const struct conn *a, const struct conn *b)
{
    size_t x = share_held(a->share, SHARE_CONNECTIONS), y = share_held(b->share, SHARE_CONNECTIONS);
    return x != y ? x > y : a->data_us < b->data_us;
}

uint32_t conn__idlest(const struct loop *l, bool full, struct conn *out[CONN_IDLEST])
{
    uint64_t now = now_us();
    uint32_t places = l->conn_max / 128 + 1, most = places < CONN_IDLEST ? places : CONN_IDLEST, count = 0,
             kept = 0, at;
    size_t largest = 0;
    for (struct conn *n = l->conns; n; n = n->next) {
        size_t held = share_held(n->share, SHARE_CONNECTIONS);
        if (held > largest) largest = held;
        if (n->tcp < 0 || (count == most && !closes_first(n, out[count - 1])) || !idle(n, now)) continue;
        for (at = count < most ? count++ : count - 1; at && closes_first(n, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = n;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct conn *n = out[i];
        int unread = 0;
        bool fresh = !n->served && now < n->data_us + FRESH_US;
        if (!full && (fresh || share_held(n->share, SHARE_CONNECTIONS) < largest / 2)) continue;
        if (!ioctl(n->tcp, FIONREAD, &unread) && unread) n->data_us = now; /* not seen yet */
        else out[kept++] = n;
    }
    return kept;
}

/* ---- bodies ---- */

/* What n would give back; 0: nothing, or a worker reads it. */
static size_t body_of(const struct conn *n)
{
    const struct request *r = n->request;
    if (n->tcp < 0 || n->ws_bytes) return n->tcp < 0 ? 0 : n->ws_bytes;
    return r && !r->cancelled && (r->state == RQ_BODY || r->work.queued) ? r->http.body.len : 0;
}

/* Incomplete ones before those that wait for a worker; the one that has been silent for longest, and the last
 * that waits. */
static bool gives_way_first(const struct conn *a, const struct conn *b)
{
    bool waits_a = a->request && a->request->work.queued, waits_b = b->request && b->request->work.queued;
    return waits_a != waits_b ? waits_b : waits_a ? a->data_us > b->data_us : a->data_us < b->data_us;
}

struct conn *conn__largest_body(const struct loop *l, const struct conn *but, const struct share *h,
                                size_t more)
{
    struct conn *first = NULL;
    size_t most = share_held(h, SHARE_BODIES) + more;
    for (struct conn *n = l->conns; n; n = n->next) {
        const struct share *own = conn__owner(n);
        size_t held = share_held(own, SHARE_BODIES) + (own == h ? more : 0);
        if (n == but || !body_of(n) || held < most) continue;
        if (first && held == most && !gives_way_first(n, first)) continue;
        first = n;
        most = held;
    }
    return first;
}

/* Queries of the server's state. See http.h. */
#include "server/http/http.h"

#include "server/http/event_loop.h"

#include <sodium.h>
#include <string.h>

bool server_engine_dead(const struct server *s)
{
    if (!s->ctx.model) return false;
    struct sched_stats st;
    sched_stats(s->ctx.model->sched, &st);
    return st.failed || s->health.hung;
}

bool server_serving(const struct server *s)
{
    return (s->ctx.model || s->front) && (s->health.phase == SRV_READY || s->health.phase == SRV_LEAVING) &&
           !server_engine_dead(s);
}

bool server_queue_admits(const struct server *s, const struct share *h, bool inside)
{
    uint64_t most = s->ctx.opt->max_queue;
    struct sched_stats st;
    sched_stats(s->ctx.model->sched, &st);
    if (inside) return st.waiting <= most / 4;
    st.waiting -= st.waiting < s->background ? st.waiting : s->background;
    return st.waiting < most || share_held(h, SHARE_QUEUE) + st.waiting < 2 * most;
}

#define HANDOVER_US 5000000u
bool server_handing_over(const struct server *s)
{
    uint64_t now = now_us(), since = s->ctx.model ? sched_poll_since(s->ctx.model->sched) : 0;
    struct sched_stats st = {0};
    if (s->ctx.model) sched_stats(s->ctx.model->sched, &st);
    bool round = !s->health.round_us || now < s->health.round_us + HANDOVER_US,
         taken = !since || now < since + HANDOVER_US;
    return round && taken && st.inbox_us < s->ctx.opt->watchdog * 1000000u;
}

#define PEAK_WINDOW_US 10000000u
void peak_note(struct peak *p, uint64_t us, uint64_t now)
{
    if (us < p->us && now < p->seen_us + PEAK_WINDOW_US) return;
    *p = (struct peak){us, now};
}

void server_kick(struct server *s)
{
    uv_idle_start(&s->loop->mhd_idle, s->loop->mhd_run);
}

/* Queries of the server's state. See http.h. */
#include "server/http/http.h"

#include "server/http/event_loop.h"

#include <sodium.h>
#include <string.h>

bool server_engine_dead(const struct server *s)
{
    if (!s->model) return false;
    struct sched_stats st;
    sched_stats(s->model->sched, &st);
    return st.failed || s->health.hung;
}

bool server_serving(const struct server *s)
{
    return s->model && (s->health.phase == SRV_READY || s->health.phase == SRV_LEAVING) &&
           !server_engine_dead(s);
}

bool server_queue_admits(const struct server *s, const struct share *h)
{
    uint64_t most = s->opt->max_queue;
    struct sched_stats st;
    sched_stats(s->model->sched, &st);
    return st.waiting < most || share_held(h, SHARE_QUEUE) + st.waiting < 2 * most;
}

#define HANDOVER_US 5000000u
bool server_handing_over(const struct server *s)
{
    uint64_t now = now_us(), since = s->model ? sched_poll_since(s->model->sched) : 0;
    struct sched_stats st = {0};
    if (s->model) sched_stats(s->model->sched, &st);
    bool round = !s->health.round_us || now < s->health.round_us + HANDOVER_US,
         taken = !since || now < since + HANDOVER_US;
    return round && taken && st.inbox_us < s->opt->watchdog * 1000000u;
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

const char *model_names_split(char *names, bool list)
{
    char *to = names;
    for (const char *at = names, *next; list && *at; at = next) {
        size_t n = strcspn(at, ",");
        next = at + n + (at[n] == ',');
        for (; n && *at == ' '; n--) at++;
        while (n && at[n - 1] == ' ') n--;
        if (!n) continue;
        memmove(to, at, n);
        to += n;
        *to++ = '\0'; /* at the comma, or before it */
    }
    return to > names ? to : strchr(names, '\0') + 1;
}

const char *model_name_find(const struct server *s, const char *name, size_t len)
{
    for (const char *n = s->model_name; n < s->model_names_end; n += strlen(n) + 1)
        if (strlen(n) == len && memcmp(n, name, len) == 0) return n;
    return NULL;
}

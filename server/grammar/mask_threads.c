/* Threads for slow masks. They run at lower priority than the engine's (nice). Masks with little work so far
 * come first; the others are finished one by one, so that few hold memory. */
#include "server/grammar/mask.h"

#include "config/base/assert.h"
#include "config/base/clock.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NICE        5
#define WORK_LITTLE (1u << 18)
#define IDLE_NS     1000000000ll

struct queue { /* by turn: a tenant's jobs have different ones */
    struct matcher *head;
    uint64_t turn; /* of the last one taken */
};
struct mask_threads {
    pthread_mutex_t lock; /* of all below; never held during work */
    pthread_cond_t work;
    struct queue little, large;
    bool stopping;
    int64_t idle_ns; /* time of the last `idle` call */
    void (*wake)(void *arg), *wake_arg;
    void (*idle)(void *arg), *idle_arg;
    uint32_t count;
    pthread_t threads[];
};

static void append(struct queue *q, struct matcher *m)
{
    struct matcher **at;
    m->turn = q->turn;
    for (const struct matcher *x = q->head; x; x = x->next)
        if (x->tenant == m->tenant && x->turn >= m->turn) m->turn = x->turn + 1;
    for (at = &q->head; *at && (*at)->turn <= m->turn; at = &(*at)->next) continue;
    m->next = *at;
    *at = m;
}

static void prepend(struct queue *q, struct matcher *m)
{
    m->next = q->head;
    q->head = m;
}

static struct matcher *take(struct queue *q)
{
    struct matcher *m = q->head;
    if (!m) return NULL;
    q->head = m->next;
    q->turn = m->turn;
    return m;
}

void mask_threads__add(struct mask_threads *t, struct matcher *m)
{
    pthread_mutex_lock(&t->lock);
    append(&t->little, m);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

/* Under the lock, which it releases meanwhile: the idle work, about once a second. */
static void idle(struct mask_threads *t, int64_t now)
{
    if (!t->idle || now - t->idle_ns < IDLE_NS) return;
    t->idle_ns = now;
    pthread_mutex_unlock(&t->lock);
    t->idle(t->idle_arg);
    pthread_mutex_lock(&t->lock);
}

/* Likewise: one slice of m's work. */
static void slice(struct mask_threads *t, struct matcher *m, bool large)
{
    ASSERT(atomic_load(&m->job));
    pthread_mutex_unlock(&t->lock);
    bool done = matcher__slice(m);
    if (done) {
        matcher__done(m);
        t->wake(t->wake_arg);
    }
    pthread_mutex_lock(&t->lock);
    if (done) return;
    if (large) prepend(&t->large, m);
    else append(m->worked < WORK_LITTLE ? &t->little : &t->large, m);
}

static void *thread_main(void *arg)
{
    struct mask_threads *t = arg;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    pthread_mutex_lock(&t->lock);
    while (!t->stopping) {
        struct matcher *little = take(&t->little), *m = little ? little : take(&t->large);
        if (m) slice(t, m, !little);
        int64_t now = now_ns(), until = now + IDLE_NS;
        struct timespec ts = {until / 1000000000ll, until % 1000000000ll};
        if (!m) pthread_cond_timedwait(&t->work, &t->lock, &ts);
        idle(t, now);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

enum status mask_threads_create(uint32_t threads, void (*wake)(void *arg), void *wake_arg,
                                void (*idle_call)(void *arg), void *idle_arg, struct mask_threads **out)
{
    struct mask_threads *t = calloc(1, sizeof *t + threads * sizeof *t->threads);
    if (!t) return ST_NOMEM;
    t->wake = wake;
    t->idle = idle_call;
    t->wake_arg = wake_arg;
    t->idle_arg = idle_arg;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, &attr);
    pthread_condattr_destroy(&attr);
    while (t->count < threads && !pthread_create(&t->threads[t->count], NULL, thread_main, t)) t->count++;
    if (t->count < threads) {
        mask_threads_destroy(t);
        return ST_NOMEM;
    }
    *out = t;
    return ST_OK;
}

void mask_threads_destroy(struct mask_threads *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->count; i++) pthread_join(t->threads[i], NULL);
    for (struct matcher *m; (m = take(&t->little)) || (m = take(&t->large));) matcher__done(m);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    free(t);
}

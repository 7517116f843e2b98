/* The thread pool of the CPU backend.
 *
 * One word says it all:  gate = [ epoch : 32 | unused : 15 | OPEN : 1 | active : 16 ]
 *   run()   : fills the job, then publishes gate = {epoch + 1, OPEN, 0}; takes ranges itself; when none are
 *           left, clears OPEN and waits for active == 0.
 *   worker  : sees OPEN with a new epoch, adds 1 to active with a compare-and-swap, takes
 *             ranges until none are left, subtracts 1.
 * So a worker that is descheduled delays nobody unless it is in the middle of a range: once OPEN is cleared
 * it can no longer enter, and the caller does not wait for it. Waiting is a short spin (the gap between two
 * operations of a step is a few microseconds) and then a futex: threads that only spin take the core from the
 * thread they wait for.
 *
 * Every thread begins with its own share of the work items, the same share of each job: the rows that it
 * wrote in one operation are then mostly those that it reads in the next, and are in its core's cache. Other
 * threads take what a thread leaves.
 *
 * Placement: on a machine whose cores have other work too, the system's scheduler wakes a worker on the core
 * of the thread that woke it, and leaves it there: two threads then take as long as one (measured: all work
 * items of the worker ran on the caller's core). So where there is a core for each thread, every worker is
 * bound to one, and no worker to the core that the caller runs on; the caller itself is left free. */
#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GATE_OPEN   (UINT64_C(1) << 16)
#define GATE_ACTIVE UINT64_C(0xffff)
/* A pause is 40 to 140 cycles: these are some 30 to 60 microseconds. */
#define SPIN_WORKER 1200
#define SPIN_CALLER 1200

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t gate;
    _Atomic uint32_t wake_word; /* futex of the workers: changes with each job */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t done_word; /* futex of the caller */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) uint32_t count;
    uint32_t grain, items,
        shares; /* share i of the work items: [i * work items / shares, (i + 1) * work items / shares) */
    struct pool_share {
        _Alignas(64) _Atomic uint32_t next; /* next work item; claimed with fetch_add */
    } * share;                              /* [threads] */
    cpu_range_fn *fn;
    void *ctx;
    _Atomic bool stop;
    uint32_t threads, started;
    bool place;      /* workers are bound to cores; the fields below are the caller's alone */
    int caller_core; /* where it ran last time */
    pthread_t *tids;
    struct pool_worker {
        struct cpu_pool *pool;
        uint32_t idx;
        int core; /* that it is bound to, if pool->place */
    } * workers;
};

static void pool__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static void pool__futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void pool__futex_wake(_Atomic uint32_t *word, int threads)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

static uint32_t pool__share(const struct cpu_pool *p, uint32_t i)
{
    return (uint32_t)((uint64_t)i * p->items / p->shares);
}

static void pool__work(struct cpu_pool *p, uint32_t worker)
{
    /* Its own share first, so that the same rows tend to stay in the same core's cache from one operation to
     * the next; then what is left of the others'. */
    for (uint32_t n = 0, s = worker % p->shares; n < p->shares; n++, s = s + 1 == p->shares ? 0 : s + 1) {
        uint32_t end = pool__share(p, s + 1);
        for (;;) {
            uint32_t item = atomic_fetch_add_explicit(&p->share[s].next, 1, memory_order_relaxed);
            if (item >= end) break;
            uint32_t begin = item * p->grain;
            uint32_t left = p->count - begin;
            p->fn(p->ctx, begin, begin + (left < p->grain ? left : p->grain), worker);
        }
    }
}

/* Waits for a job newer than `epoch` and enters it. false = the pool ends. */
static bool pool__enter(struct cpu_pool *p, uint32_t *epoch)
{
    int spins = 0;
    for (;;) {
        if (atomic_load(&p->stop)) return false;
        uint32_t seen = atomic_load(&p->wake_word);
        uint64_t g = atomic_load(&p->gate);
        if ((g & GATE_OPEN) && (uint32_t)(g >> 32) != *epoch) {
            if (!atomic_compare_exchange_weak(&p->gate, &g, g + 1)) continue;
            *epoch = (uint32_t)(g >> 32);
            return true;
        }
        if (++spins < SPIN_WORKER) {
            pool__pause();
            continue;
        }
        /* Counted as a sleeper before the last look: run() publishes first and reads the count after, so one
         * of us sees the other. */
        atomic_fetch_add(&p->sleepers, 1);
        g = atomic_load(&p->gate);
        bool job = (g & GATE_OPEN) && (uint32_t)(g >> 32) != *epoch;
        if (!job && !atomic_load(&p->stop) && atomic_load(&p->wake_word) == seen)
            pool__futex_wait(&p->wake_word, seen);
        atomic_fetch_sub(&p->sleepers, 1);
        spins = 0;
    }
}

static void *pool__main(void *arg)
{
    struct pool_worker *w = arg;
    struct cpu_pool *p = w->pool;
    uint32_t epoch = 0;
    while (pool__enter(p, &epoch)) {
        pool__work(p, w->idx);
        uint64_t before = atomic_fetch_sub(&p->gate, 1);
        if (!(before & GATE_OPEN) && (before & GATE_ACTIVE) == 1) {
            atomic_fetch_add(&p->done_word, 1);
            if (atomic_load(&p->caller_sleeps)) pool__futex_wake(&p->done_word, 1);
        }
    }
    return NULL;
}

static void pool__bind(struct cpu_pool *p, uint32_t worker, int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    p->workers[worker].core = core;
    (void)pthread_setaffinity_np(p->tids[worker], sizeof set,
                                 &set); /* a wish: a core may have been taken from us meanwhile */
}

/* One core for each worker, none of them the caller's. */
static void pool__place(struct cpu_pool *p)
{
    cpu_set_t set;
    p->caller_core = sched_getcpu();
    if (p->threads == 1 || p->caller_core < 0 || sched_getaffinity(0, sizeof set, &set) != 0 ||
        CPU_COUNT(&set) < (int)p->threads)
        return;
    int core = 0;
    for (uint32_t i = 1; i < p->threads; i++, core++) {
        while (core < CPU_SETSIZE && (!CPU_ISSET((size_t)core, &set) || core == p->caller_core)) core++;
        if (core >= CPU_SETSIZE) return;
        pool__bind(p, i, core);
    }
    p->place = true;
}

/* When the caller was moved to a worker's core, that worker gets the core that the caller left. */
static void pool__follow_caller(struct cpu_pool *p)
{
    int core = sched_getcpu();
    if (core == p->caller_core || core < 0) return;
    for (uint32_t i = 1; i < p->threads; i++) {
        if (p->workers[i].core != core) continue;
        pool__bind(p, i, p->caller_core);
        break;
    }
    p->caller_core = core;
}

struct cpu_pool *cpu_pool_create(uint32_t threads)
{
    if (threads < 1 || threads > GATE_ACTIVE) return NULL;
    struct cpu_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return NULL;
    *p = (struct cpu_pool){.threads = threads};
    p->tids = calloc(threads, sizeof *p->tids);
    p->workers = calloc(threads, sizeof *p->workers);
    p->share = aligned_alloc(64, threads * sizeof *p->share);
    if (!p->tids || !p->workers || !p->share) {
        cpu_pool_destroy(p);
        return NULL;
    }
    for (uint32_t i = 1; i < threads; i++) {
        p->workers[i] = (struct pool_worker){.pool = p, .idx = i};
        if (pthread_create(&p->tids[i], NULL, pool__main, &p->workers[i]) != 0) {
            cpu_pool_destroy(p);
            return NULL;
        }
        p->started++;
    }
    pool__place(p);
    return p;
}

void cpu_pool_destroy(struct cpu_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake_word, 1);
    pool__futex_wake(&p->wake_word, INT32_MAX);
    for (uint32_t i = 1; i <= p->started; i++) pthread_join(p->tids[i], NULL);
    free(p->share);
    free(p->workers);
    free(p->tids);
    free(p);
}

void cpu_pool_run(struct cpu_pool *p, uint32_t count, uint32_t grain, cpu_range_fn *fn, void *ctx)
{
    if (count == 0) return;
    if (grain == 0) grain = 1;
    uint32_t items = (count - 1) / grain + 1;
    if (items == 1) {
        fn(ctx, 0, count, 0);
        return;
    }
    p->count = count;
    p->grain = grain;
    p->items = items;
    p->fn = fn;
    p->ctx = ctx;
    p->shares = items < p->threads ? items : p->threads;
    for (uint32_t i = 0; i < p->shares; i++)
        atomic_store_explicit(&p->share[i].next, pool__share(p, i), memory_order_relaxed);
    if (p->threads == 1) {
        pool__work(p, 0);
        return;
    }
    if (p->place) pool__follow_caller(p);
    uint64_t epoch = (atomic_load(&p->gate) >> 32) + 1;
    epoch = (uint32_t)epoch ? (uint32_t)epoch : 1; /* 0 is what a new worker believes to have done */
    atomic_store(&p->gate, epoch << 32 | GATE_OPEN);
    atomic_fetch_add(&p->wake_word, 1);
    if (atomic_load(&p->sleepers)) pool__futex_wake(&p->wake_word, INT32_MAX);

    pool__work(p, 0);

    if ((atomic_fetch_and(&p->gate, ~GATE_OPEN) & GATE_ACTIVE) == 0) return;
    for (int spins = 0; atomic_load(&p->gate) & GATE_ACTIVE;) {
        uint32_t seen = atomic_load(&p->done_word);
        if (++spins < SPIN_CALLER) {
            pool__pause();
            continue;
        }
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->gate) & GATE_ACTIVE) pool__futex_wait(&p->done_word, seen);
        atomic_store(&p->caller_sleeps, 0);
    }
}

/* The pool of workers: images are decoded, prompts tokenized and JSON parsed there. libuv's threads, behind a
 * queue in which API keys and addresses take turns (server/shares/shares.h). Event loop's thread. */
#ifndef KVASIR_WORKERS_H
#define KVASIR_WORKERS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct share;

/* A job; lives until it is done or withdrawn. */
struct work {
    struct share *share;     /* whose turn it takes; borrowed */
    void (*run)(void *arg);  /* on a worker, then: */
    void (*done)(void *arg); /* on the loop */
    void *arg;
    size_t memory; /* that it needs; 0: too little to count */
    bool kept;     /* it has that memory since an earlier job */
    bool large;    /* it may take long: such jobs never have all workers */
    bool bound;    /* can't be withdrawn: counts as running while it is queued */
    /* internal */
    uv_work_t uv;
    struct workers *of;
    struct work *prev, *next;
    bool queued, runs;
};

struct workers {
    uv_loop_t *uv;
    struct work *head, *tail; /* queued, in order of arrival */
    uint32_t count, large;    /* threads; large jobs that run */
    size_t memory;            /* of jobs that run, or keep theirs */
};

/* Starts the threads: UV_THREADPOOL_SIZE of the environment, else two per core, because a key has at most
 * half of them. Before any other thread. */
enum status workers_start(struct workers *p, uv_loop_t *uv, struct err *err) KV_MUST_CHECK;
void workers_run(struct workers *p, struct work *w);
void workers_withdraw(struct work *w); /* if it is queued: neither function is called */

#endif

/* A pool of compute threads with one operation: a parallel loop over independent ranges. The calling thread
 * works too, so a pool of one has no threads of its own. Which thread takes which range is decided at run
 * time and must not affect results. One thread calls run at a time. Knows nothing of what it runs. */
#ifndef KVASIR_CPU_POOL_H
#define KVASIR_CPU_POOL_H

#include <stdint.h>

struct cpu_pool;

/* Works on [begin, end); `worker` < threads is unique among concurrent calls. */
typedef void cpu_range_fn(void *ctx, uint32_t begin, uint32_t end, uint32_t worker);

/* NULL: out of memory, or the system refused a thread. threads >= 1. */
struct cpu_pool *cpu_pool_create(uint32_t threads);
void cpu_pool_destroy(struct cpu_pool *p); /* NULL is fine; no loop may be running */

/* Cuts [0, count) into work items of `grain` (the last may be shorter), calls fn for each, returns when all
 * are done. */
void cpu_pool_run(struct cpu_pool *p, uint32_t count, uint32_t grain, cpu_range_fn *fn, void *ctx);

#endif

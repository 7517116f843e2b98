/* Aborts with a message when an invariant is broken: blocks and who holds them, the prefix cache, images,
 * tenants. Between steps. */
#ifndef KVASIR_TEST_SCHED_CHECK_H
#define KVASIR_TEST_SCHED_CHECK_H

#include "scheduler/scheduler.h"

void sched_check(const struct scheduler *s);

#endif

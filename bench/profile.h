/* The output of `kvasir bench --profile` for one measurement. */
#ifndef KVASIR_BENCH_PROFILE_H
#define KVASIR_BENCH_PROFILE_H

#include "engine/engine.h"

/* `wall` seconds of `passes` runs; a table, or ,"profile":[...] of a JSON object. The last part is the
 * remaining time: planning, sampling and launch overhead. */
void bench_profile_print(const struct engine_profile_part parts[ENGINE_PROFILE_PARTS], double wall,
                         uint32_t passes, const struct engine_costs *c, bool json);

#endif

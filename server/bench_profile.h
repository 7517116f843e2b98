/* What `kvasir bench --profile` says of one measurement. */
#ifndef KVASIR_BENCH_PROFILE_H
#define KVASIR_BENCH_PROFILE_H

#include "engine/engine.h"

/* `wall` seconds of `passes` runs; a table, or ,"profile":[...] of a JSON object. What is left of the time is
 * the last part: planning, drawing, and what operations cost beside their work. */
void bench_profile_print(const struct engine_profile_part parts[ENGINE_PROFILE_PARTS], double wall,
                         uint32_t passes, const struct engine_costs *c, bool json);

#endif

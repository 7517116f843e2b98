/* See profile.h. */
#include "bench/profile.h"

#include <stdio.h>

static void print_part(const struct engine_profile_part *p, double wall, uint32_t passes,
                       const struct engine_costs *c, bool json, bool first)
{
    double flops = p->seconds > 0 ? p->flops / p->seconds : 0,
           bytes = p->seconds > 0 ? p->bytes / p->seconds : 0, share = wall > 0 ? p->seconds / wall : 0;
    if (!json) {
        printf("    %-22s %10.3f ms %6.1f %%", p->name, p->seconds * 1e3 / passes, share * 100);
        if (p->flops > 0) printf(" %9.1f GFLOP/s %5.1f %%", flops * 1e-9, 100 * flops / c->matrix_flops);
        if (p->bytes > 0) printf(" %8.2f GB/s %5.1f %%", bytes * 1e-9, 100 * bytes / c->read_bytes_per_s);
        printf("\n");
        return;
    }
    printf("%s{\"part\":\"%s\",\"calls\":%.6g,\"seconds\":%.6g,\"share\":%.4f", first ? "" : ",", p->name,
           (double)p->calls / passes, p->seconds / passes, share);
    if (p->flops > 0)
        printf(",\"gflop_s\":%.4g,\"matrix_share\":%.4f", flops * 1e-9, flops / c->matrix_flops);
    if (p->bytes > 0) printf(",\"gb_s\":%.4g,\"read_share\":%.4f", bytes * 1e-9, bytes / c->read_bytes_per_s);
    printf("}");
}

void bench_profile_print(const struct engine_profile_part parts[ENGINE_PROFILE_PARTS], double wall,
                         uint32_t passes, const struct engine_costs *c, bool json)
{
    struct engine_profile_part rest = {.name = "rest", .seconds = wall};
    bool first = true;
    if (json) printf(",\"profile\":[");
    for (uint32_t i = 0; i < ENGINE_PROFILE_PARTS; i++) {
        rest.seconds -= parts[i].seconds;
        if (!parts[i].calls) continue;
        print_part(&parts[i], wall, passes, c, json, first);
        first = false;
    }
    if (rest.seconds < 0) rest.seconds = 0;
    print_part(&rest, wall, passes, c, json, first);
    if (json) printf("]");
}

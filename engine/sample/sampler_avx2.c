/* The sampler's walk over a whole row with AVX2, selected when a sampler is created; sampler.c runs
 * elsewhere, with the same bits. Pure; any thread. */
#include "engine/sample/sampler_weights.h"

#include <stddef.h>

#if defined(__x86_64__)

__attribute__((target("avx2"))) static double weights(const float *l, uint32_t vocab, float max,
                                                      float inv_temperature, float *out, double *sums)
{
    return weights_body(l, vocab, max, inv_temperature, out, sums);
}

sampler__weights_fn *sampler__weights_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? weights : NULL;
}

#else

sampler__weights_fn *sampler__weights_avx2(void)
{
    return NULL;
}

#endif

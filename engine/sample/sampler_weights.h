/* The sampler's walk over a whole row, for sampler.c (any machine) and sampler_avx2.c: one source compiled
 * twice, with the same bits: each float is computed independently, sums have a fixed order of lanes, and
 * nothing is contracted (-ffp-contract=off). */
#ifndef KVASIR_SAMPLER_WEIGHTS_H
#define KVASIR_SAMPLER_WEIGHTS_H

#include <stdint.h>
#include <string.h>

#define SAMPLER_INLINE __attribute__((always_inline)) static inline
#define SAMPLER__BLOCK 1024u /* ids whose weights are summed per block */

/* weights[i] = exp((l[i] - max) * inv_temperature) for i < vocab; sums[j] is the sum of the j-th block of
 * them; returns the sum of the sums. */
typedef double sampler__weights_fn(const float *l, uint32_t vocab, float max, float inv_temperature,
                                   float *weights, double *sums);
sampler__weights_fn sampler__weights_c;
sampler__weights_fn *sampler__weights_avx2(void); /* NULL where the machine has no AVX2 */

/* exp((x - max) / temperature) for x <= max, relative error about 1e-7; 0 below exp(-87) and for NaN. Float
 * arithmetic and integer masks only, no branch: loops over it become vector code, and its bits are the same
 * on every machine. */
SAMPLER_INLINE float weight_of(float x, float max, float inv_temperature)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float z = (x - max) * inv_temperature, scale, out;
    uint32_t bits, alive;
    memcpy(&bits, &z, 4);
    alive = (int32_t)(bits & 0x7fffffffu) < 0x42ae0000 ? UINT32_MAX : 0; /* |z| < 87 */
    bits &= alive;
    memcpy(&z, &bits, 4);
    float shifted = z * 1.44269504f + magic, n = shifted - magic;
    float r = (z - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f +
              r * (1.0f + r * (0.5f + r * (0.166666667f +
                                           r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4b400000u + 127u) << 23;
    memcpy(&scale, &bits, 4);
    out = p * scale;
    memcpy(&bits, &out, 4);
    bits &= alive;
    memcpy(&out, &bits, 4);
    return out;
}

/* Sum of one block in a fixed order of eight lanes, to avoid one long chain of additions. */
SAMPLER_INLINE double block_sum(const float *w, uint32_t n)
{
    double lane[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t k = 0; k < 8; k++) lane[k] += (double)w[i + k];
    for (; i < n; i++) lane[0] += (double)w[i];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

SAMPLER_INLINE double weights_body(const float *restrict l, uint32_t vocab, float max, float inv,
                                   float *restrict weights, double *restrict sums)
{
    double total = 0;
    for (uint32_t n; vocab; vocab -= n, l += n, weights += n) {
        n = vocab < SAMPLER__BLOCK ? vocab : SAMPLER__BLOCK;
        for (uint32_t i = 0; i < n; i++) weights[i] = weight_of(l[i], max, inv);
        total += *sums++ = block_sum(weights, n);
    }
    return total;
}

#endif

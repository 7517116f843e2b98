/* The AVX2 resampling kernel. Compiled for the base instruction set of the build, with the target given per
 * function; chosen at run time. All sums are exact integers, so the result equals image_resize.c bit for bit
 * whatever the order. Pure; any thread. */
#include "engine/prompt/image_resize_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define AVX2        __attribute__((target("avx2")))
#define AVX2_INLINE __attribute__((target("avx2"), always_inline)) static inline

/* Bytes that one step of `horizontal_row` loads from the first of its 4 pixels (12 are used). */
enum { STEP_LOAD = 16 };

/* Sum of the taps of one output pixel: lanes 0..2 of the result are R, G, B. `taps` coefficients at k, a
 * multiple of 4. */
AVX2_INLINE __m128i window_sum(const uint8_t *p, const int16_t *k, uint32_t taps)
{
    /* Each 128-bit lane takes two of the four pixels as 16-bit pairs (R0 R1)(G0 G1)(B0 B1)(0 0). */
    const __m256i pick = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /**/
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    /* k0 k1 four times, then k2 k3 four times. */
    const __m256i spread = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, /**/
                                            4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t j = 0; j < taps; j += 4, p += 12) {
        long long four;
        memcpy(&four, k + j, sizeof four);
        __m256i px = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)), pick);
        __m256i kk = _mm256_shuffle_epi8(_mm256_set1_epi64x(four), spread);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(px, kk));
    }
    return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

AVX2_INLINE void horizontal_row(const struct image_axis *a, const uint8_t *row, uint8_t *out, int part_count)
{
    const __m128i half = _mm_set1_epi32(1 << (a->shift - 1)), shift = _mm_cvtsi32_si128(a->shift);
    for (uint32_t x = 0; x < a->out; x++) {
        const uint8_t *p = row + (size_t)a->lo[x] * 3;
        size_t at = (size_t)x * a->taps;
        uint32_t taps = (a->n[x] + 3) & ~3u;
        __m128i sum = _mm_add_epi32(half, window_sum(p, a->part[0] + at, taps));
        if (part_count == 2)
            sum = _mm_add_epi32(sum, _mm_slli_epi32(window_sum(p, a->part[1] + at, taps), 15));
        sum = _mm_sra_epi32(sum, shift);
        sum = _mm_packs_epi32(sum, sum);
        sum = _mm_packus_epi16(sum, sum);
        int rgb = _mm_cvtsi128_si32(sum);
        memcpy(out + (size_t)3 * x, &rgb, 3);
    }
}

AVX2 static void horizontal(const struct image_axis *a, const uint8_t *src, uint32_t rows, uint8_t *dst)
{
    size_t row_bytes = (size_t)a->in * 3, all = row_bytes * rows;
    /* A window that is padded to 4 taps may be loaded up to this many bytes past its row. */
    size_t over = 3 * 3 + (STEP_LOAD - 12);
    uint8_t tail[IMAGE__SIDE_MAX * 3 + 16];
    for (uint32_t y = 0; y < rows; y++) {
        const uint8_t *row = src + (size_t)y * row_bytes;
        if ((size_t)(y + 1) * row_bytes + over > all) {
            memcpy(tail, row, row_bytes);
            memset(tail + row_bytes, 0, 16);
            row = tail;
        }
        uint8_t *out = dst + (size_t)y * a->out * 3;
        if (a->part_count == 1) horizontal_row(a, row, out, 1);
        else horizontal_row(a, row, out, 2);
    }
}

/* Pairs (a, b) of bytes times the pair of coefficients in kk, added to the four sums of 32 columns. */
AVX2_INLINE void pair_step(__m256i a, __m256i b, __m256i kk, __m256i sum[4])
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i lo = _mm256_unpacklo_epi8(a, b), hi = _mm256_unpackhi_epi8(a, b);
    sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(lo, zero), kk));
    sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(lo, zero), kk));
    sum[2] = _mm256_add_epi32(sum[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(hi, zero), kk));
    sum[3] = _mm256_add_epi32(sum[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(hi, zero), kk));
}

/* 32 columns of one output row. */
AVX2_INLINE void vertical_32(const struct image_axis *a, uint32_t y, const uint8_t *top, size_t bytes,
                             uint8_t *out, int part_count)
{
    const __m256i half = _mm256_set1_epi32(1 << (a->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(a->shift);
    __m256i sum[4] = {half, half, half, half}, high[4];
    for (int i = 0; i < 4; i++) high[i] = _mm256_setzero_si256();
    size_t at = (size_t)y * a->taps;
    for (uint32_t j = 0; j < a->n[y]; j += 2) {
        const uint8_t *p = top + j * bytes;
        __m256i r0 = _mm256_loadu_si256((const __m256i *)(const void *)p),
                r1 = r0; /* the odd tap's partner has coefficient 0 */
        if (j + 1 < a->n[y]) r1 = _mm256_loadu_si256((const __m256i *)(const void *)(p + bytes));
        int kk;
        memcpy(&kk, a->part[0] + at + j, sizeof kk);
        pair_step(r0, r1, _mm256_set1_epi32(kk), sum);
        if (part_count == 2) {
            memcpy(&kk, a->part[1] + at + j, sizeof kk);
            pair_step(r0, r1, _mm256_set1_epi32(kk), high);
        }
    }
    for (int i = 0; i < 4; i++) {
        if (part_count == 2) sum[i] = _mm256_add_epi32(sum[i], _mm256_slli_epi32(high[i], 15));
        sum[i] = _mm256_sra_epi32(sum[i], shift);
    }
    /* unpack and pack both work inside 128-bit lanes, so the bytes come out in the order in which they were
     * loaded. */
    __m256i v = _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
    _mm256_storeu_si256((__m256i *)(void *)out, v);
}

AVX2 static void vertical(const struct image_axis *a, const uint8_t *src, uint32_t row0, uint32_t width,
                          uint8_t *dst)
{
    size_t bytes = (size_t)width * 3;
    for (uint32_t y = 0; y < a->out; y++) {
        const uint8_t *top = src + (size_t)(a->lo[y] - row0) * bytes;
        uint8_t *out = dst + (size_t)y * bytes;
        size_t x = 0;
        if (a->part_count == 1)
            for (; x + 32 <= bytes; x += 32) vertical_32(a, y, top + x, bytes, out + x, 1);
        else
            for (; x + 32 <= bytes; x += 32) vertical_32(a, y, top + x, bytes, out + x, 2);
        const int32_t *k = a->k + (size_t)y * a->taps;
        for (; x < bytes; x++) {
            int32_t sum = 1 << (a->shift - 1);
            for (uint32_t j = 0; j < a->n[y]; j++) sum += k[j] * top[x + j * bytes];
            out[x] = image__clip8(sum >> a->shift);
        }
    }
}

static const struct image_resize_kernel avx2_kernel = {
    .name = "avx2", .horizontal = horizontal, .vertical = vertical};

const struct image_resize_kernel *image__resize_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? &avx2_kernel : NULL;
}

#else

const struct image_resize_kernel *image__resize_avx2(void)
{
    return NULL;
}

#endif

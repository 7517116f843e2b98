/* The plain C resampling kernel: the reference of the vector kernel, and the fallback without AVX2. Pure; any
 * thread. */
#include "engine/prompt/image_resize_internal.h"

static void horizontal(const struct image_axis *a, const uint8_t *src, uint32_t rows, uint8_t *dst)
{
    for (uint32_t y = 0; y < rows; y++) {
        const uint8_t *row = src + (size_t)y * a->in * 3;
        uint8_t *out = dst + (size_t)y * a->out * 3;
        for (uint32_t x = 0; x < a->out; x++) {
            const int32_t *k = a->k + (size_t)x * a->taps;
            const uint8_t *p = row + (size_t)a->lo[x] * 3;
            int32_t r = 1 << (a->shift - 1), g = r, b = r;
            for (uint32_t j = 0; j < a->n[x]; j++, p += 3) {
                r += k[j] * p[0];
                g += k[j] * p[1];
                b += k[j] * p[2];
            }
            out[3 * x] = image__clip8(r >> a->shift);
            out[3 * x + 1] = image__clip8(g >> a->shift);
            out[3 * x + 2] = image__clip8(b >> a->shift);
        }
    }
}

static void vertical(const struct image_axis *a, const uint8_t *src, uint32_t row0, uint32_t width,
                     uint8_t *dst)
{
    size_t bytes = (size_t)width * 3;
    for (uint32_t y = 0; y < a->out; y++) {
        const int32_t *k = a->k + (size_t)y * a->taps;
        const uint8_t *top = src + (size_t)(a->lo[y] - row0) * bytes;
        uint8_t *out = dst + (size_t)y * bytes;
        for (size_t x = 0; x < bytes; x++) {
            int32_t sum = 1 << (a->shift - 1);
            for (uint32_t j = 0; j < a->n[y]; j++) sum += k[j] * top[x + j * bytes];
            out[x] = image__clip8(sum >> a->shift);
        }
    }
}

const struct image_resize_kernel image__resize_c = {
    .name = "c", .horizontal = horizontal, .vertical = vertical};

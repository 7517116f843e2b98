/* Shared by image.c (tables, choice of the kernel) and the two kernels image_resize.c (plain C) and
 * image_resize_avx2.c. Not for other modules, except tests that compare the kernels bit for bit. */
#ifndef KVASIR_IMAGE_RESIZE_INTERNAL_H
#define KVASIR_IMAGE_RESIZE_INTERNAL_H

#include "engine/prompt/image.h"

enum { IMAGE__SIDE_MAX = 65535 };

/* Filter windows of one axis. Output i is clip8((2^(shift-1) + sum over j < n[i] of k[i*taps + j] *
 * pixel[lo[i] + j]) >> shift), all in 32-bit integers. `taps` is a multiple of 4 and coefficients beyond n[i]
 * are 0. k = (part1 << 15) + part0, so that the vector kernel can multiply 16-bit halves; where k fits 16
 * bits (IMAGE_TORCH_U8) there is only part0. Sums of the halves may wrap, the total cannot. */
struct image_axis {
    uint32_t in, out; /* pixels */
    uint32_t taps;    /* stride of k and part in coefficients */
    int shift;
    int part_count;   /* 1 or 2 */
    uint32_t *lo, *n; /* [out] */
    int32_t *k;       /* [out, taps] */
    int16_t *part[2]; /* [out, taps] */
};

/* One image resampled along one axis. Rows of `channels` = 3 interleaved bytes per pixel.
 *   horizontal: src [rows, a->in, 3] -> dst [rows, a->out, 3]
 *   vertical:   src [a->in, width, 3] -> dst [a->out, width, 3], where src points at row `row0` of the image
 *               (only rows that a window touches exist) */
struct image_resize_kernel {
    const char *name;
    void (*horizontal)(const struct image_axis *a, const uint8_t *src, uint32_t rows, uint8_t *dst);
    void (*vertical)(const struct image_axis *a, const uint8_t *src, uint32_t row0, uint32_t width,
                     uint8_t *dst);
};

extern const struct image_resize_kernel image__resize_c;
/* NULL if the CPU (or the build target) lacks AVX2. */
const struct image_resize_kernel *image__resize_avx2(void);

/* As image_resize, with the kernel given. */
enum status image__resize_with(const struct image_resize_kernel *kernel, const struct image_u8 *src,
                               uint32_t width, uint32_t height, enum image_filter filter,
                               enum image_resize_mode mode, struct image_u8 *dst,
                               struct err *err) KV_MUST_CHECK;

/* Builds the windows of one axis; image__axis_fini frees (also after a failure). */
enum status image__axis_init(struct image_axis *a, uint32_t in, uint32_t out, enum image_filter filter,
                             enum image_resize_mode mode, struct err *err) KV_MUST_CHECK;
void image__axis_fini(struct image_axis *a);

static inline uint8_t image__clip8(int32_t v)
{
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

#endif

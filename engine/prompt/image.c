/* Resampling tables, the choice of kernel, and the table of normalised values. Pure; any thread. Floats here
 * are IEEE doubles in the reference's order of operations, because the windows are rounded from them. */
#include "engine/prompt/image.h"

#include "config/base/assert.h"
#include "config/base/checked.h"
#include "engine/prompt/image_resize_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_MAX = IMAGE__SIDE_MAX, PIL_BITS = 32 - 8 - 2 };

void image_u8_free(struct image_u8 *img)
{
    if (!img) return;
    free(img->rgb);
    *img = (struct image_u8){0};
}

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys' cubic with a = -0.5. */
static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

static double sinc(double x)
{
    return x == 0.0 ? 1.0 : sin(x * M_PI) / (x * M_PI);
}

static double lanczos(double x)
{
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

/* Indexed by enum image_filter: half the width, and the function. */
static const struct {
    double support;
    double (*at)(double x);
} filters[] = {
    [IMAGE_LANCZOS] = {3.0, lanczos}, [IMAGE_BILINEAR] = {1.0, bilinear}, [IMAGE_BICUBIC] = {2.0, bicubic}};

/* Fills lo and n, and w [out, taps] with normalised weights. Returns the largest weight. */
static double fill_windows(struct image_axis *a, double *w, enum image_filter filter, uint32_t ksize)
{
    double scale = (double)a->in / (double)a->out;
    double fs = scale > 1.0 ? scale : 1.0; /* antialias: the filter is widened only when shrinking */
    double support = filters[filter].support * fs, inv = 1.0 / fs, largest = 0.0;
    for (uint32_t i = 0; i < a->out; i++) {
        double c = ((double)i + 0.5) * scale, first = c - support + 0.5, last = c + support + 0.5;
        uint32_t lo = first > 0.0 ? (uint32_t)first : 0; /* truncation, then the edge */
        uint32_t hi = last < (double)a->in ? (uint32_t)last : a->in;
        uint32_t n = hi - lo;
        if (n > ksize) n = ksize;
        double *wi = w + (size_t)i * a->taps, sum = 0.0;
        for (uint32_t j = 0; j < n; j++) {
            double x = ((double)j + (double)lo - c + 0.5) * inv;
            wi[j] = filters[filter].at(x);
            sum += wi[j];
        }
        for (uint32_t j = 0; j < n; j++) {
            if (sum != 0.0) wi[j] /= sum;
            if (wi[j] > largest) largest = wi[j];
        }
        a->lo[i] = lo;
        a->n[i] = n;
    }
    return largest;
}

/* Precision of the 16-bit coefficients: the most that keeps the largest one below 2^15. */
static int torch_bits(double largest)
{
    int bits = 0;
    while (bits < PIL_BITS && (int)(0.5 + largest * (double)(1 << (bits + 1))) < (1 << 15)) bits++;
    return bits;
}

enum status image__axis_init(struct image_axis *a, uint32_t in, uint32_t out, enum image_filter filter,
                             enum image_resize_mode mode, struct err *err)
{
    ASSERT(in >= 1 && in <= SIDE_MAX && out >= 1 && out <= SIDE_MAX);
    double scale = (double)in / (double)out;
    double support = filters[filter].support * (scale > 1.0 ? scale : 1.0);
    uint32_t ksize = (uint32_t)ceil(support) * 2 + 1;
    /* No window is longer than the axis. At most about 2^20 coefficients: out * taps <= 4*in + 9*out. */
    uint32_t taps = ((ksize < in ? ksize : in) + 3) & ~3u;
    *a = (struct image_axis){.in = in, .out = out, .taps = taps, .part_count = mode == IMAGE_PIL ? 2 : 1};
    size_t count = (size_t)out * taps;
    double *w = calloc(count, sizeof *w);
    a->lo = calloc(out, sizeof *a->lo);
    a->n = calloc(out, sizeof *a->n);
    a->k = calloc(count, sizeof *a->k);
    a->part[0] = calloc(count, sizeof *a->part[0]);
    a->part[1] = a->part_count == 2 ? calloc(count, sizeof *a->part[1]) : NULL;
    if (!w || !a->lo || !a->n || !a->k || !a->part[0] || (a->part_count == 2 && !a->part[1])) {
        free(w);
        image__axis_fini(a);
        return err_set(err, ST_NOMEM, "image resize: out of memory for the tables of %u to %u pixels", in,
                       out);
    }
    double largest = fill_windows(a, w, filter, ksize);
    a->shift = mode == IMAGE_PIL ? PIL_BITS : torch_bits(largest);
    double one = (double)(1 << a->shift);
    for (size_t i = 0; i < count; i++) {
        a->k[i] = (int32_t)(w[i] * one + (w[i] < 0.0 ? -0.5 : 0.5));
        if (a->part_count == 2) {
            a->part[0][i] = (int16_t)(a->k[i] & 0x7FFF);
            a->part[1][i] = (int16_t)(a->k[i] >> 15);
        } else {
            a->part[0][i] = (int16_t)a->k[i];
        }
    }
    free(w);
    return ST_OK;
}

void image__axis_fini(struct image_axis *a)
{
    free(a->lo);
    free(a->n);
    free(a->k);
    free(a->part[0]);
    free(a->part[1]);
    *a = (struct image_axis){0};
}

static uint8_t *pixels_alloc(uint32_t width, uint32_t height)
{
    size_t bytes;
    if (mul_overflows(width, height, &bytes) || mul_overflows(bytes, 3, &bytes)) return NULL;
    return malloc(bytes);
}

/* The horizontal pass, then the vertical one, or the one whose size changes. Only the rows that the vertical
 * windows touch are resampled horizontally. */
static enum status two_passes(const struct image_resize_kernel *kernel, const struct image_u8 *src,
                              const struct image_axis *h, const struct image_axis *v, bool vertical_first,
                              uint8_t *out, struct err *err)
{
    if (!v->out) {
        kernel->horizontal(h, src->rgb, src->height, out);
        return ST_OK;
    }
    if (!h->out) {
        kernel->vertical(v, src->rgb, 0, src->width, out);
        return ST_OK;
    }
    uint32_t row0 = v->lo[0], rows = v->lo[v->out - 1] + v->n[v->out - 1] - row0;
    uint8_t *mid = vertical_first ? pixels_alloc(src->width, v->out) : pixels_alloc(h->out, rows);
    if (!mid) return err_set(err, ST_NOMEM, "image resize: out of memory for %u x %u pixels", h->out, rows);
    if (vertical_first) {
        kernel->vertical(v, src->rgb, 0, src->width, mid);
        kernel->horizontal(h, mid, v->out, out);
    } else {
        kernel->horizontal(h, src->rgb + (size_t)row0 * src->width * 3, rows, mid);
        kernel->vertical(v, mid, row0, h->out, out);
    }
    free(mid);
    return ST_OK;
}

enum status image__resize_with(const struct image_resize_kernel *kernel, const struct image_u8 *src,
                               uint32_t width, uint32_t height, enum image_filter filter,
                               enum image_resize_mode mode, struct image_u8 *dst, struct err *err)
{
    if (!src->width || !src->height || !width || !height || src->width > SIDE_MAX || src->height > SIDE_MAX ||
        width > SIDE_MAX || height > SIDE_MAX)
        return err_set(err, ST_INVALID, "image resize: %u x %u to %u x %u pixels: each side must be 1 to %d",
                       src->width, src->height, width, height, SIDE_MAX);
    uint8_t *out = pixels_alloc(width, height);
    if (!out) return err_set(err, ST_NOMEM, "image resize: out of memory for %u x %u pixels", width, height);
    enum status st = ST_OK;
    if (width == src->width && height == src->height) {
        memcpy(out, src->rgb, (size_t)width * height * 3);
    } else {
        struct image_axis h = {0}, v = {0};
        if (width != src->width) st = image__axis_init(&h, src->width, width, filter, mode, err);
        if (!st && height != src->height) st = image__axis_init(&v, src->height, height, filter, mode, err);
        /* Since version 13 Pillow does the vertical pass first when the height shrinks by more than twice
         * what the width does. The image is rounded to bytes between the passes, so the order matters. */
        int64_t fewer_rows = (int64_t)src->height - height, fewer_columns = (int64_t)src->width - width;
        bool vertical_first = mode == IMAGE_PIL && fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
        if (!st) st = two_passes(kernel, src, &h, &v, vertical_first, out, err);
        image__axis_fini(&h);
        image__axis_fini(&v);
    }
    if (st) {
        free(out);
        return st;
    }
    *dst = (struct image_u8){.width = width, .height = height, .rgb = out};
    return ST_OK;
}

enum status image_resize(const struct image_u8 *src, uint32_t width, uint32_t height,
                         enum image_filter filter, enum image_resize_mode mode, struct image_u8 *dst,
                         struct err *err)
{
    const struct image_resize_kernel *fast = image__resize_avx2();
    return image__resize_with(fast ? fast : &image__resize_c, src, width, height, filter, mode, dst, err);
}

void image_lut(const struct image_config *cfg, float lut[3 * 256])
{
    float inverse = (float)(1.0 / cfg->rescale_factor), factor = (float)cfg->rescale_factor;
    for (int c = 0; c < 3; c++) {
        float mean = cfg->mean[c], std = cfg->std[c];
        if (cfg->do_rescale) {
            mean *= inverse;
            std *= inverse;
        }
        for (int v = 0; v < 256; v++) {
            float y = (float)v;
            if (cfg->do_normalize) y = (y - mean) / std;
            else if (cfg->do_rescale) y *= factor;
            lut[c * 256 + v] = y;
        }
    }
}

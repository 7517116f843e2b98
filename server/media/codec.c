/* Shared by all decoders: see codec.h. */
#include "server/media/codec.h"

#include "config/base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum image_error image__fail(struct err *err, enum image_error f, const char *fmt, ...)
{
    if (!err) return f;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return f;
}

enum image_error image__nomem(struct err *err)
{
    (void)err_nomem(err, NULL);
    return IMAGE_NOMEM;
}

enum image_error image__check_size(uint64_t width, uint64_t height, const struct image_limits *limits,
                                   struct err *err)
{
    uint64_t pixels;
    if (!width || !height) return image__fail(err, IMAGE_BAD_DATA, "the image has no pixels");
    if (width > limits->side_max || height > limits->side_max)
        return image__fail(err, IMAGE_TOO_MANY_PIXELS,
                           "the image is %llu x %llu pixels, the limit for a side is %u",
                           (unsigned long long)width, (unsigned long long)height, limits->side_max);
    if (__builtin_mul_overflow(width, height, &pixels) || pixels > limits->pixels_max)
        return image__fail(
            err, IMAGE_TOO_MANY_PIXELS, "the image is %llu x %llu pixels, the limit is %llu in all",
            (unsigned long long)width, (unsigned long long)height, (unsigned long long)limits->pixels_max);
    return IMAGE_OK;
}

enum image_error image__new(uint32_t width, uint32_t height, bool zeroed, struct image_u8 *out,
                            struct err *err)
{
    size_t bytes;
    uint8_t *rgb = NULL;
    if (!mul_overflows(width, height, &bytes) && !mul_overflows(bytes, 3, &bytes))
        rgb = zeroed ? calloc(1, bytes) : malloc(bytes);
    if (!rgb)
        return image__fail(err, IMAGE_NOMEM, "out of memory for an image of %u x %u pixels", width, height);
    *out = (struct image_u8){.width = width, .height = height, .rgb = rgb};
    return IMAGE_OK;
}

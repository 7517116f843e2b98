/* Image formats: shared by the decoders (png.c, jpeg.c, gif.c, bmp.c, webp.c), image_decode.c and video.c;
 * not for other modules. A decoder gets a file whose first bytes matched. It checks the size in the header
 * against the limits before it allocates memory in proportion to it, and returns the RGB pixels as stored,
 * plus the orientation from the file's metadata. Reference for every pixel: Pillow 13 (Image.open +
 * convert("RGB")).
 *
 * To add a format:
 *   - its decoder: server/media/<format>.c, an image__decoder (declared below); the Makefile finds the file
 *   - sniff() in image_decode.c recognises its first bytes; the error message below it names all formats
 *   - transparency: see image_limits.on_white and image__over_white
 *   - only if it has animations: source_open in video.c
 *   - only if it needs a library: PKGS in the Makefile, scripts/deps.sh
 *   - tests: test_image_decode.c in tests/unit/server/media, pixels by scripts/reference/make_images.py
 *   - docs/http.md, section Images; the list in image_decode.h */
#ifndef KVASIR_IMAGE_CODEC_H
#define KVASIR_IMAGE_CODEC_H

#include "server/media/image_decode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_bytes {
    const uint8_t *p;
    size_t len;
};

/* A decoder: out is set only on IMAGE_OK; *orientation is 1..8 (EXIF numbering) and is 1 before the call. */
typedef enum image_error image__decoder(struct image_bytes in, const struct image_limits *limits,
                                        struct image_u8 *out, int *orientation, struct err *err);
image__decoder image__jpeg, image__png, image__gif, image__bmp, image__webp;

/* Writes the message and returns f. */
enum image_error image__fail(struct err *err, enum image_error f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum image_error image__nomem(struct err *err);
/* IMAGE_BAD_DATA or IMAGE_TOO_MANY_PIXELS if an image of this size may not be decoded. */
enum image_error image__check_size(uint64_t width, uint64_t height, const struct image_limits *limits,
                                   struct err *err);
/* Allocates the pixels of a checked size; zeroed (black) when asked. */
enum image_error image__new(uint32_t width, uint32_t height, bool zeroed, struct image_u8 *out,
                            struct err *err);

/* Color c (0..255) with alpha a (0..255) over white, as Pillow's alpha_composite rounds it. */
static inline uint8_t image__over_white(uint32_t c, uint32_t a)
{
    uint32_t t = 128 * (c * a + 255 * (255 - a)) + (128 << 7);
    return (uint8_t)(((t >> 8) + t) >> 15);
}

/* The frames of an animated GIF, drawn in order on its canvas as the format specifies: a frame's transparent
 * pixels keep the canvas; those of the first frame are as in image__gif. */
struct image__gif_info {
    uint32_t width, height, frames;
    uint64_t milliseconds; /* of all frames; a duration of 0 counts as 100 */
};
struct image__gif_anim;
/* Reads through the headers of all frames; draws nothing. Reads at most frames_max frames. */
enum image_error image__gif_look(struct image_bytes in, uint32_t frames_max,
                                 const struct image_limits *limits, struct image__gif_info *info,
                                 struct err *err);
enum image_error image__gif_open(struct image_bytes in, const struct image__gif_info *info,
                                 struct image__gif_anim **out, struct err *err);
/* Draws the next frame; *canvas is borrowed until the next call. */
enum image_error image__gif_next(struct image__gif_anim *a, struct image_u8 *canvas, struct err *err);
void image__gif_close(struct image__gif_anim *a); /* NULL is fine */

/* The orientation in a TIFF block (with or without a preceding "Exif\0\0") or an XMP packet, the block first:
 * 1..8. Never reads outside them. */
int image__orientation(struct image_bytes exif, struct image_bytes xmp);

/* More bytes of a file: up to n of them to `to`. Returns how many; less than n only at the end. */
typedef size_t image__read_fn(void *user, uint8_t *to, size_t n);
/* Decodes with stb_image the PNG or BMP file that `read` gives. The caller has checked its size
 * (image__check_size); the pixel data of a PNG must be stored blocks, because stb_image's own inflate trusts
 * damaged streams. channels: how many per pixel, 0 = as stored; wide: 16 bits each (in the machine's order),
 * else 8. The caller frees *pixels; *stored: channels in the file. Writes no message. */
enum image_error image__stb(image__read_fn *read, void *user, int channels, bool wide, void **pixels,
                            int *stored);
/* user: a struct image_bytes, which becomes what is left. */
image__read_fn image__read_bytes;

static inline uint32_t image__be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static inline uint32_t image__be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint32_t image__le16(const uint8_t *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}

static inline uint32_t image__le32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

#endif

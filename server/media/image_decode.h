/* Images from clients: data: URIs, encoded files, limits, and the content key. Runs on worker threads; pure,
 * no globals. Formats: JPEG (libjpeg-turbo), PNG and BMP (stb_image), GIF (giflib), WebP (libwebp); first
 * frame of an animation. The result equals exif_transpose + convert("RGB") of Pillow 13, or convert("RGBA")
 * and alpha_composite over white if image_limits sets it, bit for bit; the few deliberate exceptions, and
 * files refused although Pillow reads them, are listed in scripts/reference/make_images.py (OURS, REFUSED).
 */
#ifndef KVASIR_IMAGE_DECODE_H
#define KVASIR_IMAGE_DECODE_H

#include "config/base/status.h"
#include "engine/prompt/image.h"
#include "engine/prompt/prompt.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_limits {
    size_t encoded_bytes_max; /* per image; default 20 MiB */
    uint64_t pixels_max;      /* width*height from the header, before anything is allocated; default 64 M */
    uint32_t side_max;        /* default 32768 */
    bool on_white; /* not a limit: transparent pixels are blended over white, else transparency is dropped */
};
#define IMAGE_LIMITS_DEFAULT                                                                                 \
    ((struct image_limits){.encoded_bytes_max = 20u << 20, .pixels_max = 64000000u, .side_max = 32768})

/* Why an image is refused; image_error_code gives OpenAI's error code for it (docs/http.md, Errors). Message
 * in struct err. */
enum image_error {
    IMAGE_OK = 0,
    IMAGE_BAD_URL, /* not a base64 data: URI */
    IMAGE_BAD_BASE64,
    IMAGE_EMPTY,    /* no bytes */
    IMAGE_BAD_TYPE, /* unknown magic */
    IMAGE_BAD_DATA, /* corrupt or truncated */
    IMAGE_TOO_MANY_BYTES,
    IMAGE_TOO_MANY_PIXELS,
    IMAGE_REMOTE,    /* http(s)/file URL: not fetched */
    IMAGE_DOWNLOAD,  /* http(s) URL: fetching it failed */
    IMAGE_NO_FILE,   /* file URL: no such file */
    IMAGE_BUSY,      /* the server is fetching too much already: the image is not at fault */
    IMAGE_BAD_SHAPE, /* a size or number of frames that the model does not take */
    IMAGE_NOMEM,
};
const char *image_error_code(enum image_error f); /* OpenAI `code` string */

/* Decodes the payload of a base64 data: URI into *bytes (malloc'd, caller frees; set only on IMAGE_OK). White
 * space and percent-encoding in the payload, the URL-safe alphabet and missing padding are accepted; a data:
 * URI without ";base64" is IMAGE_BAD_URL. The declared type is ignored. The limit is checked before
 * allocating. http/https/file URLs give IMAGE_REMOTE. url need not end in NUL. */
enum image_error image_decode_data_uri(const char *url, size_t url_len, const struct image_limits *limits,
                                       uint8_t **bytes, size_t *len, struct err *err);
/* Decodes an encoded file. out is filled only on IMAGE_OK (image_u8_free). */
enum image_error image_decode(const uint8_t *bytes, size_t len, const struct image_limits *limits,
                              struct image_u8 *out, struct err *err);

/* 256-bit content key of the vision tower's input and its token layout: SHA-256 over a canonical record
 * (version, family, resize mode, filter, target size or patches, crop settings, mean/std/rescale bits, grid,
 * width, height, frames, RGB bytes). Size options of the request count only through their effect. `family` is
 * the checkpoint's model_type; grid: image_grid with the seconds of a video. */
void image_content_key(const struct image_u8 *img, const struct image_config *cfg, const char *family,
                       const struct prompt_grid *grid, uint8_t key[32]);

#endif

/* See image_decode.h: picks the decoder by the file's first bytes, applies the orientation, and computes the
 * content key. Any thread. */
#include "server/media/image_decode.h"

#include "server/media/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

const char *image_error_code(enum image_error f)
{
    switch (f) {
    case IMAGE_OK: return "";
    case IMAGE_BAD_URL: return "invalid_image_url";
    case IMAGE_BAD_BASE64: return "invalid_base64_image";
    case IMAGE_EMPTY: return "empty_image_file";
    case IMAGE_BAD_TYPE: return "unsupported_image_media_type";
    case IMAGE_BAD_DATA: return "image_parse_error";
    case IMAGE_TOO_MANY_BYTES: return "image_file_too_large";
    case IMAGE_TOO_MANY_PIXELS: return "image_too_large";
    case IMAGE_REMOTE: return "invalid_image_url";
    case IMAGE_DOWNLOAD: return "failed_to_download_image";
    case IMAGE_NO_FILE: return "image_file_not_found";
    case IMAGE_BUSY: return "rate_limit_exceeded";
    case IMAGE_BAD_SHAPE: return "invalid_value";
    case IMAGE_NOMEM: return "server_error";
    }
    return "image_parse_error";
}

/* Applies EXIF orientation o (2..8). In tiles, because half of the cases read columns. */
static enum image_error turn(struct image_u8 *img, int o, struct err *err)
{
    enum { TILE = 32 };
    uint32_t w = img->width, h = img->height;
    bool swap = o >= 5;
    struct image_u8 out;
    enum image_error f = image__new(swap ? h : w, swap ? w : h, false, &out, err);
    if (f) return f;
    /* Source index of output (x, y) = origin + x*dx + y*dy. */
    bool from_right = o == 2 || o == 3 || o == 7 || o == 8,
         from_bottom = o == 3 || o == 4 || o == 6 || o == 7;
    ptrdiff_t column = from_right ? -1 : 1, row = from_bottom ? -(ptrdiff_t)w : (ptrdiff_t)w;
    ptrdiff_t dx = swap ? row : column, dy = swap ? column : row;
    ptrdiff_t origin =
        (from_right ? (ptrdiff_t)w - 1 : 0) + (from_bottom ? (ptrdiff_t)w * ((ptrdiff_t)h - 1) : 0);
    for (uint32_t ty = 0; ty < out.height; ty += TILE) {
        uint32_t y_end = out.height - ty < TILE ? out.height : ty + TILE;
        for (uint32_t tx = 0; tx < out.width; tx += TILE) {
            uint32_t x_end = out.width - tx < TILE ? out.width : tx + TILE;
            for (uint32_t y = ty; y < y_end; y++)
                for (uint32_t x = tx; x < x_end; x++)
                    memcpy(out.rgb + ((size_t)y * out.width + x) * 3,
                           img->rgb + (origin + (ptrdiff_t)x * dx + (ptrdiff_t)y * dy) * 3, 3);
        }
    }
    image_u8_free(img);
    *img = out;
    return IMAGE_OK;
}

static image__decoder *sniff(const uint8_t *b, size_t len)
{
    if (len >= 3 && memcmp(b, "\xFF\xD8\xFF", 3) == 0) return image__jpeg;
    if (len >= 8 && memcmp(b, "\x89PNG\r\n\x1A\n", 8) == 0) return image__png;
    if (len >= 6 && (memcmp(b, "GIF87a", 6) == 0 || memcmp(b, "GIF89a", 6) == 0)) return image__gif;
    if (len >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WEBP", 4) == 0) return image__webp;
    if (len >= 2 && memcmp(b, "BM", 2) == 0) return image__bmp;
    return NULL;
}

enum image_error image_decode(const uint8_t *bytes, size_t len, const struct image_limits *limits,
                              struct image_u8 *out, struct err *err)
{
    if (!len) return image__fail(err, IMAGE_EMPTY, "the image is empty");
    if (len > limits->encoded_bytes_max)
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the image file has %zu bytes, the limit is %zu", len,
                           limits->encoded_bytes_max);
    image__decoder *decode = sniff(bytes, len);
    if (!decode)
        return image__fail(err, IMAGE_BAD_TYPE,
                           "the image is of an unsupported type: send PNG, JPEG, WebP, GIF or BMP");
    struct image_u8 img = {0};
    int orientation = 1;
    enum image_error f =
        decode((struct image_bytes){.p = bytes, .len = len}, limits, &img, &orientation, err);
    if (!f && orientation > 1) f = turn(&img, orientation, err);
    if (f) image_u8_free(&img);
    else *out = img;
    return f;
}

/* The record that is hashed: numbers as little-endian bytes on any machine. */
static void add_u64(crypto_hash_sha256_state *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> 8 * i);
    crypto_hash_sha256_update(h, b, sizeof b);
}

static void add_f64(crypto_hash_sha256_state *h, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_u64(h, bits);
}

void image_content_key(const struct image_u8 *img, const struct image_config *cfg, const char *family,
                       const struct prompt_grid *grid, uint8_t key[32])
{
    static const char version[] = "kvasir image 2";
    crypto_hash_sha256_state h;
    crypto_hash_sha256_init(&h);
    crypto_hash_sha256_update(&h, (const uint8_t *)version, sizeof version);
    add_u64(&h,
            strlen(family)); /* variable-length fields are length-prefixed, so that records are unambiguous */
    crypto_hash_sha256_update(&h, (const uint8_t *)family, strlen(family));
    add_u64(&h, cfg->mode);
    add_u64(&h, cfg->filter);
    add_u64(&h, cfg->width);
    add_u64(&h, cfg->height);
    add_u64(&h, (uint64_t)cfg->do_resize | (uint64_t)cfg->do_rescale << 1 | (uint64_t)cfg->do_normalize << 2 |
                    (uint64_t)cfg->pan_and_scan << 3 | (uint64_t)cfg->dynamic << 4);
    add_u64(&h, cfg->patch);
    add_u64(&h, cfg->merge);
    add_u64(&h, cfg->depth);
    add_f64(&h, cfg->rescale_factor);
    for (int c = 0; c < 3; c++) add_f64(&h, (double)cfg->mean[c]);
    for (int c = 0; c < 3; c++) add_f64(&h, (double)cfg->std[c]);
    add_u64(&h, cfg->pan_min_crop);
    add_u64(&h, cfg->pan_max_crops);
    add_f64(&h, cfg->pan_min_ratio);
    add_u64(&h, grid->t);
    add_u64(&h, grid->h);
    add_u64(&h, grid->w);
    add_f64(&h, grid->seconds);
    if (grid->breaks) add_u64(&h, 1);
    add_u64(&h, img->width);
    add_u64(&h, img->height);
    add_u64(&h, img->frames);
    crypto_hash_sha256_update(&h, img->rgb, image_u8_bytes(img));
    crypto_hash_sha256_final(&h, key);
}

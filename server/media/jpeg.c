/* JPEG through libjpeg-turbo with the settings that Pillow uses (slow integer DCT, fancy upsampling, full
 * size), so that the pixels are the same bit for bit. Any thread. libjpeg's errors come back by longjmp;
 * everything that must survive one is in struct decoder. */
#include "server/media/codec.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum {
    MARKER_EOI = 0xD9,
    MARKER_SOS = 0xDA,
    MARKER_APP1 = 0xE1,
    SCANS_MAX = 500,
};
/* A scan of a few bytes may cost a pass over all blocks of its components, some 50 ns each. Limits: so many
 * in total, 50 ms (a video may have hundreds of such files), or per block: usual files have 5. */
#define BLOCK_VISITS_MAX  (1u << 20)
#define BLOCK_VISITS_EACH 16u

struct decoder {
    struct jpeg_decompress_struct j;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    int scans_max; /* as the markers have it */
    bool too_many_scans;
    uint8_t *row; /* one row of gray or CMYK samples, owned */
    struct image_u8 img;
};

static void on_error(j_common_ptr j)
{
    struct decoder *d = j->client_data;
    longjmp(d->escape, 1);
}

static void on_message(j_common_ptr j)
{
    (void)j;
}

static void source_nothing(j_decompress_ptr j)
{
    (void)j;
}

/* All bytes are given at the start: a request for more means that the file is truncated. Suspends instead of
 * inserting an end-of-image marker, so that truncation is detected. */
static boolean source_fill(j_decompress_ptr j)
{
    (void)j;
    return FALSE;
}

static void source_skip(j_decompress_ptr j, long bytes)
{
    if (bytes <= 0) return;
    size_t n = (size_t)bytes < j->src->bytes_in_buffer ? (size_t)bytes : j->src->bytes_in_buffer;
    j->src->next_input_byte += n;
    j->src->bytes_in_buffer -= n;
}

static void on_progress(j_common_ptr common)
{
    struct decoder *d = common->client_data;
    if (d->j.input_scan_number > d->scans_max) {
        d->too_many_scans = true;
        longjmp(d->escape, 1);
    }
}

/* Metadata from the segments before the first scan. The first EXIF block and the last XMP packet count. */
static int read_orientation(struct image_bytes in)
{
    static const uint8_t xmp_name[29] = "http://ns.adobe.com/xap/1.0/";
    struct image_bytes exif = {0}, xmp = {0};
    size_t at = 2;
    while (at < in.len) {
        if (in.p[at] != 0xFF) {
            at++;
            continue;
        }
        while (at < in.len && in.p[at] == 0xFF) at++;
        if (at >= in.len || in.p[at] == MARKER_SOS) break;
        uint8_t marker = in.p[at++];
        if (marker == 0 || marker == 1 || (marker >= 0xD0 && marker <= 0xD9)) continue; /* no length field */
        if (in.len - at < 2) break;
        size_t n = image__be16(in.p + at);
        if (n < 2 || n > in.len - at) break;
        struct image_bytes seg = {.p = in.p + at + 2, .len = n - 2};
        at += n;
        if (marker != MARKER_APP1) continue;
        if (!exif.len && seg.len > 6 && memcmp(seg.p, "Exif\0", 6) == 0) exif = seg;
        else if (seg.len > sizeof xmp_name && memcmp(seg.p, xmp_name, sizeof xmp_name) == 0)
            xmp = (struct image_bytes){.p = seg.p + sizeof xmp_name, .len = seg.len - sizeof xmp_name};
    }
    return image__orientation(exif, xmp);
}

/* a*b/255 with Pillow's rounding. */
static uint32_t muldiv255(uint32_t a, uint32_t b)
{
    uint32_t t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}

static void cmyk_row(const uint8_t *in, uint8_t *out, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++, in += 4, out += 3) {
        uint32_t white = in[3]; /* files hold inverted ink (Adobe's way): 255 - K */
        for (int c = 0; c < 3; c++) {
            uint32_t ink = muldiv255(255u - in[c], white);
            out[c] = (uint8_t)(white > ink ? white - ink : 0);
        }
    }
}

static void gray_row(const uint8_t *in, uint8_t *out, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++, out += 3) out[0] = out[1] = out[2] = in[x];
}

static enum image_error truncated(struct err *err)
{
    return image__fail(err, IMAGE_BAD_DATA, "the JPEG file is truncated");
}

/* Number of blocks in the scan whose segment begins at s. */
static uint64_t scan_visits(const struct decoder *d, const uint8_t *s, size_t len)
{
    uint64_t visits = 0;
    for (size_t i = 0; len > 2 && i < s[2] && 4 + 2 * i < len; i++) {
        for (int c = 0; c < d->j.num_components; c++) {
            const jpeg_component_info *info = &d->j.comp_info[c];
            if (info->component_id != s[3 + 2 * i]) continue;
            visits += (uint64_t)info->width_in_blocks * info->height_in_blocks;
        }
    }
    return visits;
}

/* Counts the scans before any is read. */
static enum image_error check_scans(struct decoder *d, struct image_bytes in, struct err *err)
{
    uint64_t blocks = 0, visits = 0;
    const uint8_t *at = in.p + 2, *end = in.p + in.len;
    for (int c = 0; c < d->j.num_components; c++) {
        blocks += (uint64_t)d->j.comp_info[c].width_in_blocks * d->j.comp_info[c].height_in_blocks;
    }
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at)))) {
        while (at < end && *at == 0xFF) at++;
        if (at == end || *at == MARKER_EOI) break;
        uint8_t marker = *at++;
        if (marker <= 1 || (marker >= 0xD0 && marker <= 0xD8)) continue; /* no length follows */
        size_t n = end - at < 2 ? 0 : image__be16(at);
        if (n < 2 || n > (size_t)(end - at)) break;
        if (marker == MARKER_SOS) {
            d->scans_max++;
            visits += scan_visits(d, at, n);
        }
        at += n;
    }
    if (d->scans_max > SCANS_MAX || (visits > BLOCK_VISITS_MAX && visits > BLOCK_VISITS_EACH * blocks))
        return image__fail(err, IMAGE_BAD_DATA, "the JPEG file has too many scans: %d", d->scans_max);
    return IMAGE_OK;
}

static enum image_error read_header(struct decoder *d, struct image_bytes in,
                                    const struct image_limits *limits, struct err *err)
{
    int rc;
    do rc = jpeg_read_header(&d->j, FALSE);
    while (rc == JPEG_HEADER_TABLES_ONLY);
    if (rc != JPEG_HEADER_OK) return truncated(err);
    if (d->j.num_components != 1 && d->j.num_components != 3 && d->j.num_components != 4)
        return image__fail(err, IMAGE_BAD_DATA, "JPEG files with %d components are not supported",
                           d->j.num_components);
    enum image_error f = image__check_size(d->j.image_width, d->j.image_height, limits, err);
    if (!f) f = check_scans(d, in, err);
    if (f) return f;
    d->j.out_color_space = d->j.num_components == 1   ? JCS_GRAYSCALE
                           : d->j.num_components == 3 ? JCS_RGB
                                                      : JCS_CMYK;
    d->j.dct_method = JDCT_ISLOW;
    d->j.do_fancy_upsampling = TRUE;
    return IMAGE_OK;
}

static enum image_error read_rows(struct decoder *d, struct err *err)
{
    uint32_t width = d->j.image_width, height = d->j.image_height;
    enum image_error f = image__new(width, height, false, &d->img, err);
    if (f) return f;
    int channels = d->j.num_components;
    if (channels != 3 && !(d->row = malloc((size_t)width * (size_t)channels))) return image__nomem(err);
    if (!jpeg_start_decompress(&d->j)) return truncated(err);
    for (uint32_t y = 0; y < height; y++) {
        uint8_t *out = d->img.rgb + (size_t)y * width * 3;
        JSAMPROW row = channels == 3 ? out : d->row;
        if (jpeg_read_scanlines(&d->j, &row, 1) != 1) return truncated(err);
        if (channels == 1) gray_row(d->row, out, width);
        if (channels == 4) cmyk_row(d->row, out, width);
    }
    (void)jpeg_finish_decompress(
        &d->j); /* errors before the end of the image count, a missing end marker does not */
    return IMAGE_OK;
}

static enum image_error decode(struct decoder *d, struct image_bytes in, const struct image_limits *limits,
                               struct err *err)
{
    d->j.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.output_message = on_message;
    d->j.client_data = d;
    if (setjmp(d->escape)) {
        if (d->too_many_scans)
            return image__fail(err, IMAGE_BAD_DATA, "the JPEG file has more than %d scans", d->scans_max);
        if (d->j.err->msg_code == JERR_OUT_OF_MEMORY) return image__nomem(err);
        char text[JMSG_LENGTH_MAX] = "";
        d->errors.format_message((j_common_ptr)&d->j, text);
        return image__fail(err, IMAGE_BAD_DATA, "not a valid JPEG file: %s", text);
    }
    jpeg_create_decompress(&d->j);
    d->source = (struct jpeg_source_mgr){.next_input_byte = in.p,
                                         .bytes_in_buffer = in.len,
                                         .init_source = source_nothing,
                                         .fill_input_buffer = source_fill,
                                         .skip_input_data = source_skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = source_nothing};
    d->j.src = &d->source;
    d->progress.progress_monitor = on_progress;
    d->j.progress = &d->progress;
    enum image_error f = read_header(d, in, limits, err);
    return f ? f : read_rows(d, err);
}

enum image_error image__jpeg(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out,
                             int *orientation, struct err *err)
{
    struct decoder *d = calloc(1, sizeof *d);
    if (!d) return image__nomem(err);
    enum image_error f = decode(d, in, limits, err);
    jpeg_destroy_decompress(&d->j);
    free(d->row);
    if (f) {
        image_u8_free(&d->img);
    } else {
        *out = d->img;
        *orientation = read_orientation(in);
    }
    free(d);
    return f;
}

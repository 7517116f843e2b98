/* WebP through libwebp: a still image, or the first frame of an animation on its canvas (outside the frame:
 * black, as in Pillow without alpha, or white if transparency is blended over white and the file has some).
 * Any thread. */
#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

static struct image_bytes chunk(const WebPDemuxer *demux, const char *name, WebPChunkIterator *it)
{
    if (!WebPDemuxGetChunk(demux, name, 1, it)) return (struct image_bytes){0};
    return (struct image_bytes){.p = it->chunk.bytes, .len = it->chunk.size};
}

static int read_orientation(const WebPDemuxer *demux)
{
    WebPChunkIterator e = {0}, x = {0};
    struct image_bytes exif = chunk(demux, "EXIF", &e), xmp = chunk(demux, "XMP ", &x);
    int o = image__orientation(exif, xmp);
    WebPDemuxReleaseChunkIterator(&e);
    WebPDemuxReleaseChunkIterator(&x);
    return o;
}

static enum image_error decode_into(const WebPIterator *frame, WebPDecoderConfig *config, struct err *err)
{
    /* Version 1.2.4 does not check some small allocations for lossless files: try allocating the total first.
     */
    void *volatile all = malloc((size_t)frame->width * (size_t)frame->height * 4 + (1u << 20));
    free(all);
    if (!all) return image__nomem(err);
    VP8StatusCode rc = WebPDecode(frame->fragment.bytes, frame->fragment.size, config);
    WebPFreeDecBuffer(&config->output);
    if (rc == VP8_STATUS_OUT_OF_MEMORY) return image__nomem(err);
    if (rc != VP8_STATUS_OK)
        return image__fail(err, IMAGE_BAD_DATA,
                           "not a valid WebP file: the pixel data is truncated or corrupt");
    return IMAGE_OK;
}

static enum image_error decode_frame(const WebPIterator *frame, struct image_u8 *img, struct err *err)
{
    /* Alpha is not decoded: the colors under it are those of the file. */
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return image__fail(err, IMAGE_NOMEM, "the WebP library has another version than its header");
    size_t stride = (size_t)img->width * 3;
    size_t at = (size_t)frame->y_offset * stride + (size_t)frame->x_offset * 3;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = img->rgb + at;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = stride * img->height - at;
    return decode_into(frame, &config, err);
}

static enum image_error decode_over_white(const WebPIterator *frame, struct image_u8 *img, struct err *err)
{
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return image__fail(err, IMAGE_NOMEM, "the WebP library has another version than its header");
    size_t w = (size_t)frame->width, h = (size_t)frame->height;
    uint8_t *rgba = malloc(w * h * 4); /* within the checked size of the canvas */
    if (!rgba) return image__nomem(err);
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = rgba;
    config.output.u.RGBA.stride = (int)(w * 4);
    config.output.u.RGBA.size = w * h * 4;
    enum image_error f = decode_into(frame, &config, err);
    const uint8_t *from = rgba;
    for (size_t y = 0; !f && y < h; y++) {
        uint8_t *to = img->rgb + (((size_t)frame->y_offset + y) * img->width + (size_t)frame->x_offset) * 3;
        for (size_t x = 0; x < w; x++, from += 4, to += 3)
            for (int c = 0; c < 3; c++) to[c] = image__over_white(from[c], from[3]);
    }
    free(rgba);
    return f;
}

static enum image_error decode(const WebPDemuxer *demux, const struct image_limits *limits,
                               struct image_u8 *out, struct err *err)
{
    uint32_t width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH),
             height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT);
    enum image_error f = image__check_size(width, height, limits, err);
    if (f) return f;
    WebPIterator frame;
    if (!WebPDemuxGetFrame(demux, 1, &frame))
        return image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file: there is no frame");
    struct image_u8 img = {0};
    WebPBitstreamFeatures features;
    bool whole = frame.x_offset == 0 && frame.y_offset == 0 && frame.width == (int)width &&
                 frame.height == (int)height;
    /* The frame's header and its bitstream each give a size; the bitstream's is decoded. */
    if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width < 1 || frame.height < 1 ||
        (uint64_t)frame.x_offset + (uint64_t)frame.width > width ||
        (uint64_t)frame.y_offset + (uint64_t)frame.height > height ||
        WebPGetFeatures(frame.fragment.bytes, frame.fragment.size, &features) != VP8_STATUS_OK ||
        features.width != frame.width || features.height != frame.height)
        f = image__fail(err, IMAGE_BAD_DATA,
                        "not a valid WebP file: the first frame does not fit its canvas");
    if (!f) f = image__new(width, height, !whole, &img, err);
    bool white = limits->on_white && (WebPDemuxGetI(demux, WEBP_FF_FORMAT_FLAGS) & ALPHA_FLAG) != 0;
    if (!f && white && !whole) memset(img.rgb, 255, image_u8_bytes(&img));
    if (!f) f = white ? decode_over_white(&frame, &img, err) : decode_frame(&frame, &img, err);
    WebPDemuxReleaseIterator(&frame);
    if (f) image_u8_free(&img);
    else *out = img;
    return f;
}

enum image_error image__webp(struct image_bytes in, const struct image_limits *limits, struct image_u8 *out,
                             int *orientation, struct err *err)
{
    WebPData data = {.bytes = in.p, .size = in.len};
    WebPDemuxer *demux = WebPDemux(&data);
    if (!demux) return image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file: truncated or corrupt");
    enum image_error f = decode(demux, limits, out, err);
    if (!f) *orientation = read_orientation(demux);
    WebPDemuxDelete(demux);
    return f;
}

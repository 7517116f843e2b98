/* See media/video.h. A source yields the frames of a file in order; only one is held at full size. */
#include "server/media/video.h"

#include "config/base/checked.h"
#include "server/media/codec.h"

#include <stdlib.h>
#include <string.h>

#include <webp/demux.h>

enum { FILE_FRAMES_MAX = 4096, LIST_FRAMES_MAX = 768, FILE_PIXELS_FACTOR = 8 };

struct source {
    struct image_bytes in;
    const struct image_limits *limits;
    uint32_t width, height, total; /* of all frames */
    double fps;
    /* one of these three */
    bool list;
    size_t at; /* list: next file */
    struct image__gif_anim *gif;
    WebPAnimDecoder *webp;
    struct image_u8 frame; /* list and WebP: the current one; owned */
};

void video_frames_free(struct video_frames *v)
{
    image_u8_free(&v->pixels);
    free(v->indices);
    *v = (struct video_frames){0};
}

static void source_close(struct source *s)
{
    image__gif_close(s->gif);
    if (s->webp) WebPAnimDecoderDelete(s->webp);
    image_u8_free(&s->frame);
}

/* Every frame is drawn, also unselected ones. */
static enum image_error check_work(const struct source *s, struct err *err)
{
    uint64_t pixels = (uint64_t)s->width * s->height * s->total; /* at most 2^16 * 2^16 * 2^12 */
    if (pixels > s->limits->pixels_max * FILE_PIXELS_FACTOR)
        return image__fail(err, IMAGE_TOO_MANY_PIXELS,
                           "the video is %u frames of %u x %u pixels, the limit is %llu pixels in all",
                           s->total, s->width, s->height,
                           (unsigned long long)s->limits->pixels_max * FILE_PIXELS_FACTOR);
    return IMAGE_OK;
}

/* ---- lists of images ---- */

static enum image_error list_next(struct source *s, struct err *err)
{
    size_t left = s->in.len - s->at;
    uint32_t n = left >= 4 ? image__le32(s->in.p + s->at) : 0;
    if (left < 4 || n > left - 4)
        return image__fail(err, IMAGE_BAD_DATA, "the video's list of frames is cut");
    image_u8_free(&s->frame);
    enum image_error f = image_decode(s->in.p + s->at + 4, n, s->limits, &s->frame, err);
    s->at += 4 + (size_t)n;
    if (!f && s->width && (s->frame.width != s->width || s->frame.height != s->height))
        f = image__fail(err, IMAGE_BAD_SHAPE,
                        "the frames of a video must have one size: one has %u x %u pixels, the first %u x %u",
                        s->frame.width, s->frame.height, s->width, s->height);
    return f;
}

static enum image_error list_open(struct source *s, double fps, struct err *err)
{
    for (size_t at = 0; at < s->in.len; s->total++) {
        size_t left = s->in.len - at;
        uint32_t n = left >= 4 ? image__le32(s->in.p + at) : 0;
        if (left < 4 || n > left - 4)
            return image__fail(err, IMAGE_BAD_DATA, "the video's list of frames is cut");
        at += 4 + (size_t)n;
    }
    if (!s->total) return image__fail(err, IMAGE_EMPTY, "the video has no frames");
    if (s->total > LIST_FRAMES_MAX)
        return image__fail(err, IMAGE_BAD_SHAPE, "the video has more than %d frames", LIST_FRAMES_MAX);
    enum image_error f = list_next(s, err);
    if (f) return f;
    s->at = 0;
    s->width = s->frame.width;
    s->height = s->frame.height;
    s->fps = fps;
    return check_work(s, err);
}

/* ---- files ---- */

static enum image_error gif_open(struct source *s, struct err *err)
{
    struct image__gif_info info;
    enum image_error f = image__gif_look(s->in, FILE_FRAMES_MAX, s->limits, &info, err);
    if (f) return f;
    s->width = info.width;
    s->height = info.height;
    s->total = info.frames;
    s->fps = (double)info.frames * 1000.0 / (double)info.milliseconds;
    f = check_work(s, err);
    return f ? f : image__gif_open(s->in, &info, &s->gif, err);
}

/* Size, frames and time, without decoding. */
static enum image_error webp_look(struct source *s, struct err *err)
{
    WebPData data = {.bytes = s->in.p, .size = s->in.len};
    WebPDemuxer *demux = WebPDemux(&data);
    if (!demux) return image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file: truncated or corrupt");
    uint32_t frames = WebPDemuxGetI(demux, WEBP_FF_FRAME_COUNT);
    uint64_t milliseconds = 0;
    WebPIterator it;
    s->width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH);
    s->height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT);
    if (frames && frames <= FILE_FRAMES_MAX && WebPDemuxGetFrame(demux, 1, &it)) {
        do {
            milliseconds += it.duration > 0 ? (uint64_t)it.duration : 100;
            s->total++;
        } while (s->total < frames && WebPDemuxNextFrame(&it));
        WebPDemuxReleaseIterator(&it);
    }
    WebPDemuxDelete(demux);
    if (frames > FILE_FRAMES_MAX)
        return image__fail(err, IMAGE_BAD_SHAPE, "the video has more than %d frames", FILE_FRAMES_MAX);
    if (!s->total || s->total != frames)
        return image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file: frames are missing");
    s->fps = (double)s->total * 1000.0 / (double)milliseconds;
    return IMAGE_OK;
}

static enum image_error webp_open(struct source *s, struct err *err)
{
    WebPAnimDecoderOptions options;
    WebPData data = {.bytes = s->in.p, .size = s->in.len};
    enum image_error f = webp_look(s, err);
    if (!f) f = image__check_size(s->width, s->height, s->limits, err);
    if (!f) f = check_work(s, err);
    if (!f) f = image__new(s->width, s->height, false, &s->frame, err);
    if (f) return f;
    if (!WebPAnimDecoderOptionsInit(&options))
        return image__fail(err, IMAGE_NOMEM, "the WebP library has another version than its header");
    s->webp = WebPAnimDecoderNew(&data, &options);
    return s->webp ? IMAGE_OK : image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file, or out of memory");
}

static enum image_error webp_next(struct source *s, struct err *err)
{
    uint8_t *rgba;
    int end_ms;
    if (!WebPAnimDecoderGetNext(s->webp, &rgba, &end_ms))
        return image__fail(err, IMAGE_BAD_DATA, "not a valid WebP file: a frame is truncated or corrupt");
    for (size_t i = 0; i < (size_t)s->width * s->height; i++)
        memcpy(s->frame.rgb + 3 * i, rgba + 4 * i, 3); /* alpha is dropped */
    return IMAGE_OK;
}

static enum image_error source_open(struct source *s, double fps, struct err *err)
{
    const uint8_t *b = s->in.p;
    size_t len = s->in.len;
    if (len > s->limits->encoded_bytes_max)
        return image__fail(err, IMAGE_TOO_MANY_BYTES, "the video has %zu bytes, the limit is %zu", len,
                           s->limits->encoded_bytes_max);
    if (s->list) return list_open(s, fps, err);
    if (!len) return image__fail(err, IMAGE_EMPTY, "the video is empty");
    if (len >= 6 && (memcmp(b, "GIF87a", 6) == 0 || memcmp(b, "GIF89a", 6) == 0)) return gif_open(s, err);
    if (len >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WEBP", 4) == 0) return webp_open(s, err);
    return image__fail(
        err, IMAGE_BAD_TYPE,
        "the video is of an unsupported type: send an animated GIF or WebP, or an array of images");
}

static enum image_error source_next(struct source *s, struct image_u8 *frame, struct err *err)
{
    enum image_error f = s->gif    ? image__gif_next(s->gif, frame, err)
                         : s->webp ? webp_next(s, err)
                                   : list_next(s, err);
    if (!f && !s->gif) *frame = s->frame;
    return f;
}

/* ---- frames ---- */

/* Chooses frames: all of a list, `fps` per second of a file. */
static enum image_error choose(const struct image_config *cfg, const struct source *s, double fps,
                               struct video_frames *v, struct err *err)
{
    v->fps = s->fps;
    if (!s->list) {
        struct image_sample sample;
        struct image_config wanted = *cfg;
        wanted.video_fps = fps;
        enum status st = image_video_sample(&wanted, s->total, s->fps, &sample, err);
        if (st) return st == ST_NOMEM ? IMAGE_NOMEM : IMAGE_BAD_SHAPE;
        v->indices = sample.frames;
        v->count = sample.count;
        v->sampled_fps = sample.fps;
        return IMAGE_OK;
    }
    if (s->total > cfg->video_frames_max)
        return image__fail(err, IMAGE_BAD_SHAPE, "the video has %u frames, this model takes at most %u",
                           s->total, cfg->video_frames_max);
    v->indices = malloc(s->total * sizeof *v->indices);
    if (!v->indices) return image__nomem(err);
    for (uint32_t i = 0; i < s->total; i++) v->indices[i] = i;
    v->count = s->total;
    v->sampled_fps = s->fps;
    return IMAGE_OK;
}

/* The chosen frames, resized, in order. */
static enum image_error draw(const struct image_config *cfg, struct source *s, struct video_frames *v,
                             struct err *err)
{
    size_t each = (size_t)v->pixels.width * v->pixels.height * 3;
    uint32_t next = 0; /* frames [0, next) of the file are read */
    struct image_u8 frame = {0}, small = {0};
    enum image_error f = IMAGE_OK;
    for (uint32_t i = 0; i < v->pixels.frames && !f; i++) {
        uint8_t *to = v->pixels.rgb + i * each;
        if (i >= v->count || (i && v->indices[i] == v->indices[i - 1])) {
            memcpy(to, to - each, each);
            continue;
        }
        for (; next <= v->indices[i] && !f; next++) f = source_next(s, &frame, err);
        if (f) break;
        enum status st =
            image_resize(&frame, v->pixels.width, v->pixels.height, cfg->filter, cfg->mode, &small, err);
        if (st) return st == ST_NOMEM ? IMAGE_NOMEM : IMAGE_BAD_SHAPE;
        memcpy(to, small.rgb, each);
        image_u8_free(&small);
    }
    return f;
}

static enum image_error make(const struct image_config *cfg, struct source *s, double fps,
                             struct video_frames *v, struct err *err)
{
    uint32_t w, h, frames;
    enum image_error f = choose(cfg, s, fps, v, err);
    if (f) return f;
    if (image_target(cfg, s->width, s->height, v->count, &w, &h, err)) return IMAGE_BAD_SHAPE;
    frames = (v->count + cfg->depth - 1) / cfg->depth * cfg->depth;
    if ((uint64_t)w * h * frames > s->limits->pixels_max)
        return image__fail(err, IMAGE_TOO_MANY_PIXELS,
                           "the video comes to %u frames of %u x %u pixels, the limit is %llu pixels in all",
                           frames, w, h, (unsigned long long)s->limits->pixels_max);
    v->pixels = (struct image_u8){
        .width = w, .height = h, .frames = frames, .rgb = malloc((size_t)w * h * 3 * frames)};
    if (!v->pixels.rgb) return image__nomem(err);
    return draw(cfg, s, v, err);
}

enum image_error video_in_frames(const struct image_config *cfg, const uint8_t *bytes, size_t len, bool list,
                                 double fps, const struct image_limits *limits, struct video_frames *out,
                                 struct err *err)
{
    struct source s = {.in = {.p = bytes, .len = len}, .limits = limits, .list = list};
    struct video_frames v = {0};
    if (!(fps > 0.0)) fps = cfg->video_fps;
    enum image_error f = source_open(&s, fps, err);
    if (!f) f = make(cfg, &s, fps, &v, err);
    source_close(&s);
    if (f) video_frames_free(&v);
    else *out = v;
    return f;
}

/* Videos from clients: animated GIF and WebP files, and lists of images. Chooses frames as the checkpoint's
 * processor does and resizes them. Compressed video containers are not supported. Worker threads; pure. */
#ifndef KVASIR_IMAGE_VIDEO_H
#define KVASIR_IMAGE_VIDEO_H

#include "engine/prompt/image_prep.h"
#include "server/media/image_decode.h"

/* The frames of one video passed to the model. */
struct video_frames {
    /* resized; pixels.frames is a multiple of cfg->depth: padded by repeating the last frame */
    struct image_u8 pixels;
    uint32_t *indices;  /* [count] which frames of the file they are */
    uint32_t count;     /* without repetitions at the end */
    double fps;         /* of the source */
    double sampled_fps; /* of the chosen frames */
};
void video_frames_free(struct video_frames *v);

/* bytes: an animated GIF or WebP file, whose length is the sum of its frames' durations (a duration of 0
 * counts as 100 ms), or, with `list`, the files of the frames as image_pack lays them out, all of one size,
 * shown `fps` per second (0: the model's own rate), and all of them used. Limits: bytes in all; pixels of a
 * frame; pixels of all frames together after resizing, and of all frames of the file up to eight times that.
 * All are checked before anything is allocated in proportion. */
enum image_error video_in_frames(const struct image_config *cfg, const uint8_t *bytes, size_t len, bool list,
                                 double fps, const struct image_limits *limits, struct video_frames *out,
                                 struct err *err);

#endif

/* Images and videos of clients: a data: URI, or a file itself. */
#include "engine/families/families.h"
#include "server/media/image_decode.h"
#include "server/media/video.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Small, so that bombs are refused and time goes into what is read. */
static const struct image_limits limits = {
    .encoded_bytes_max = 1 << 18, .pixels_max = 1 << 16, .side_max = 4096};

static void file(const struct image_config *cfg, const uint8_t *bytes, size_t len)
{
    struct err err = {""};
    for (int white = 0; white < 2; white++) {
        struct image_limits own = limits;
        struct image_u8 out = {0};
        own.on_white = white;
        if (image_decode(bytes, len, &own, &out, &err) == IMAGE_OK) {
            if (!out.rgb || !out.width || !out.height) abort();
            if ((uint64_t)out.width * out.height > limits.pixels_max) abort();
            image_u8_free(&out);
        } else if (!err.msg[0] || out.rgb) {
            abort();
        }
    }
    struct video_frames video = {0};
    if (video_in_frames(cfg, bytes, len, false, 0, &limits, &video, &err) == IMAGE_OK)
        video_frames_free(&video);
    if (video_in_frames(cfg, bytes, len, true, 2, &limits, &video, &err) == IMAGE_OK)
        video_frames_free(&video);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct image_config cfg;
    struct err err = {""};
    if (!cfg.depth && family_load_images("tests/golden/qwen/qwen3_vl_f32", NULL, "qwen3_vl", &cfg, &err))
        abort();
    uint8_t *bytes = NULL;
    size_t len = 0;
    if (size > 5 && memcmp(data, "data:", 5) == 0) {
        if (image_decode_data_uri((const char *)data, size, &limits, &bytes, &len, &err) == IMAGE_OK)
            file(&cfg, bytes, len);
        free(bytes);
    } else {
        file(&cfg, data, size);
    }
    return 0;
}

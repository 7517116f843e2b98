/* Videos and the sizes that requests ask for: frames of animations against Pillow
 * (tests/golden/images/qwen_videos.json, made by scripts/reference/make_qwen_images.py), lists of images,
 * limits, broken files, video parts of messages, mm_processor_kwargs and detail, and that all of it is part
 * of the content key. */
#include "server/http/request.h"
#include "server/chat/messages.h"
#include "server/input/chat_images.h"
#include "server/input/fields.h"
#include "server/media/video.h"
#include "server/chat/template.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#define GOLDEN "tests/golden/images/"

static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
/* All frames as they are. */
static const struct image_config raw = {.dynamic = true,
                                        .patch = 1,
                                        .merge = 1,
                                        .depth = 1,
                                        .video = true,
                                        .video_volume = true,
                                        .video_fps = 2,
                                        .video_frames_min = 1000,
                                        .video_frames_max = 1000};
/* Small images of 8 x 8 pixels a token. */
static const struct model_image_rule rule = {.present = true,
                                             .grid = true,
                                             .video_marker = "v",
                                             .tokens_per_second = 2,
                                             .config = {.dynamic = true,
                                                        .do_resize = true,
                                                        .do_rescale = true,
                                                        .do_normalize = true,
                                                        .filter = IMAGE_BICUBIC,
                                                        .rescale_factor = 1.0 / 255,
                                                        .std = {1, 1, 1},
                                                        .patch = 4,
                                                        .merge = 2,
                                                        .depth = 2,
                                                        .area_min = 256,
                                                        .area_max = 1 << 20,
                                                        .video = true,
                                                        .video_area_min = 256,
                                                        .video_area_max = 4096,
                                                        .video_fps = 2,
                                                        .video_frames_min = 4,
                                                        .video_frames_max = 16}};

static uint8_t *read_file(const char *name, size_t *len)
{
    char path[200];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    FILE *f = fopen(path, "rb");
    uint8_t *b = malloc(1 << 20);
    if (!f || !b) fail_msg("%s: can't be read", path);
    *len = fread(b, 1, 1 << 20, f);
    fclose(f);
    return b;
}

static uint64_t number(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    assert_true(json_is_integer(v));
    return (uint64_t)json_integer_value(v);
}

static void test_animations(void **state)
{
    (void)state;
    json_error_t je;
    json_t *rows = json_load_file(GOLDEN "qwen_videos.json", 0, &je), *row;
    size_t i;
    assert_true(json_array_size(rows) == 8);
    json_array_foreach(rows, i, row) {
        char name[100];
        size_t len;
        struct video_frames v;
        struct err err = {""};
        snprintf(name, sizeof name, "videos/%s", json_string_value(json_object_get(row, "file")));
        uint8_t *bytes = read_file(name, &len);
        uint64_t frames = number(row, "frames"), ms = number(row, "milliseconds");
        enum image_error error = video_in_frames(&raw, bytes, len, false, 0, &limits, &v, &err);
        if (error) fail_msg("%s: %s", name, err.msg);
        assert_int_equal(v.pixels.frames, frames);
        assert_int_equal(v.pixels.width, number(row, "width"));
        assert_int_equal(v.pixels.height, number(row, "height"));
        assert_true(v.fps == (double)frames * 1000.0 / (double)ms);
        size_t each = (size_t)v.pixels.width * v.pixels.height * 3;
        for (uint32_t k = 0; k < frames; k++) {
            uint32_t want = (uint32_t)json_integer_value(json_array_get(json_object_get(row, "crc32"), k));
            if ((uint32_t)crc32_z(0, v.pixels.rgb + k * each, each) != want)
                fail_msg("%s: frame %u differs", name, k);
        }
        video_frames_free(&v);
        free(bytes);
    }
    json_decref(rows);
}

/* A 24-bit BMP of one color. */
static size_t bmp(uint32_t width, uint32_t height, uint8_t color, uint8_t **out)
{
    size_t row = (3 * (size_t)width + 3) / 4 * 4, len = 54 + row * height;
    uint8_t *b = calloc(1, len);
    assert_non_null(b);
    memcpy(b, "BM", 2);
    uint32_t head[] = {
        (uint32_t)len, 0, 54, 40, width, height, 1 | 24u << 16, 0, (uint32_t)(row * height), 0, 0, 0, 0};
    memcpy(b + 2, head, sizeof head);
    memset(b + 54, color, len - 54);
    *out = b;
    return len;
}

static void add_bmp(uint8_t **list, size_t *len, uint32_t width, uint32_t height, uint8_t color)
{
    uint8_t *b;
    size_t n = bmp(width, height, color, &b);
    assert_int_equal(image_pack(list, len, b, n, &limits, NULL), IMAGE_OK);
    free(b);
}

static int stamp(char out[MODEL_TEXT_BYTES], double seconds)
{
    return snprintf(out, MODEL_TEXT_BYTES, "%g s", seconds);
}

static void test_lists(void **state)
{
    (void)state;
    const struct image_ask ask = {.video = true, .list = true, .fps = 4};
    struct model_image_rule stamps = rule;
    struct image_prepared p;
    struct image_parts parts;
    struct err err = {""};
    uint8_t *list = NULL;
    size_t len = 0;
    for (uint8_t i = 0; i < 5; i++) add_bmp(&list, &len, 20, 12, (uint8_t)(10 * i));
    /* One image of three groups of frames, the last frame twice. */
    assert_int_equal(image_from_file(&rule, "qwen2_5_vl", &ask, list, len, &p, &parts, &err), IMAGE_OK);
    assert_int_equal(p.count, 1);
    assert_true(p.images[0].frames == 6 && p.images[0].width == 16 && p.images[0].height == 16);
    size_t each = (size_t)p.images[0].width * p.images[0].height * 3;
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(p.images[0].rgb[i * each], i < 5 ? 10 * i : 40);
    assert_true(parts.grids[0].t == 3 && parts.grids[0].h == 2 && parts.grids[0].w == 2 &&
                parts.grids[0].seconds == 2.0 * (2.0 / 4.0));
    uint8_t key[32];
    memcpy(key, parts.keys[0], 32);
    image_prepared_free(&p);
    image_parts_free(&parts);
    /* Its speed is part of the key, because positions follow from it. */
    const struct image_ask slower = {.video = true, .list = true};
    assert_int_equal(image_from_file(&rule, "qwen2_5_vl", &slower, list, len, &p, &parts, &err), IMAGE_OK);
    assert_true(parts.grids[0].seconds == 2.0);
    assert_memory_not_equal(parts.keys[0], key, 32);
    image_prepared_free(&p);
    image_parts_free(&parts);
    /* Group 6 of 2.4 frames per second and 25 positions per second is at 125 - 2^-17: 125 where only the
     * product is rounded. */
    struct model_image_rule fine = rule;
    fine.tokens_per_second = 25;
    const struct image_ask uneven = {.video = true, .list = true, .fps = 2.4};
    assert_int_equal(image_from_file(&fine, "qwen2_5_vl", &uneven, list, len, &p, &parts, &err), IMAGE_OK);
    assert_int_equal(prompt_grid_time(&parts.grids[0], 6), 124);
    image_prepared_free(&p);
    image_parts_free(&parts);
    /* With timestamps: three images of two frames each. */
    stamps.video_stamp = stamp;
    stamps.config.video_volume = true;
    assert_int_equal(image_from_file(&stamps, "qwen3_vl", &ask, list, len, &p, &parts, &err), IMAGE_OK);
    assert_true(p.count == 3 && parts.count == 3);
    static const double when[] = {0.125, 0.625, 1.0};
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(p.images[i].frames == 2 && parts.grids[i].t == 1 && parts.grids[i].seconds == 0 &&
                    parts.stamps[i] == when[i]);
        assert_int_equal(p.images[i].rgb[0], 20 * i);
    }
    assert_memory_not_equal(parts.keys[0], parts.keys[1], 32);
    image_prepared_free(&p);
    image_parts_free(&parts);
    /* Frames of two sizes; too many; a cut list; none. */
    const struct {
        uint32_t more, width;
        enum image_error want;
        const char *what;
    } bad[] = {{1, 21, IMAGE_BAD_SHAPE, "one size"},
               {12, 20, IMAGE_BAD_SHAPE, "at most 16"},
               {764, 1, IMAGE_BAD_SHAPE, "768"}};
    for (size_t i = 0; i < 3; i++) {
        uint8_t *copy = malloc(len);
        size_t n = len;
        memcpy(copy, list, len);
        for (uint32_t k = 0; k < bad[i].more; k++) add_bmp(&copy, &n, bad[i].width, 12, 1);
        assert_int_equal(image_from_file(&rule, "qwen2_5_vl", &ask, copy, n, &p, &parts, &err), bad[i].want);
        assert_non_null(strstr(err.msg, bad[i].what));
        free(copy);
    }
    for (size_t n = 0; n < len; n += 13)
        assert_int_not_equal(image_from_file(&rule, "q", &ask, list, n, &p, &parts, &err),
                             n % (len / 5) ? IMAGE_OK : (enum image_error) - 1);
    struct image_limits tight = limits;
    tight.encoded_bytes_max = len + 3;
    size_t had = len;
    assert_int_equal(image_pack(&list, &len, list, 0, &tight, &err), IMAGE_TOO_MANY_BYTES);
    assert_int_equal(len, had);
    free(list);
}

static void test_limits(void **state)
{
    (void)state;
    struct video_frames v = {0};
    struct err err = {""};
    size_t len;
    uint8_t *gif = read_file("videos/delta.gif", &len); /* 9 frames of 48 x 36 */
    struct image_limits l = limits;
    l.pixels_max = 48 * 36 * 9 / 8;
    assert_int_equal(video_in_frames(&rule.config, gif, len, false, 0, &l, &v, &err),
                     IMAGE_TOO_MANY_PIXELS); /* all frames of the file: 8 times that */
    l.pixels_max = 48 * 36 * 9 / 8 + 1;
    assert_int_equal(video_in_frames(&rule.config, gif, len, false, 0, &l, &v, &err),
                     IMAGE_TOO_MANY_PIXELS); /* those that are looked at, resized */
    assert_non_null(strstr(err.msg, "4 frames of 48 x 32"));
    l.pixels_max = 4 * 48 * 32;
    assert_int_equal(video_in_frames(&rule.config, gif, len, false, 0, &l, &v, &err), IMAGE_OK);
    assert_true(v.count == 4 && v.pixels.frames == 4);
    video_frames_free(&v);
    /* fps: as many frames of each second as the request wants */
    static const struct {
        double fps;
        uint32_t count;
    } wanted[] = {{0.01, 4}, {2, 4}, {3, 6}, {240, 8}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_int_equal(video_in_frames(&rule.config, gif, len, false, wanted[i].fps, &limits, &v, &err),
                         IMAGE_OK);
        assert_int_equal(v.count, wanted[i].count);
        assert_true(v.fps == 4.0 && v.sampled_fps == wanted[i].count / 9.0 * 4.0);
        video_frames_free(&v);
    }
    l.encoded_bytes_max = len - 1;
    assert_int_equal(video_in_frames(&rule.config, gif, len, false, 0, &l, &v, &err), IMAGE_TOO_MANY_BYTES);
    free(gif);
    gif = read_file("videos/single.gif", &len);
    assert_int_equal(video_in_frames(&rule.config, gif, len, false, 0, &limits, &v, &err), IMAGE_OK);
    size_t half = (size_t)v.pixels.width * v.pixels.height * 3; /* the frame is repeated */
    assert_true(v.count == 1 && v.pixels.frames == 2);
    assert_memory_equal(v.pixels.rgb, v.pixels.rgb + half, half);
    video_frames_free(&v);
    free(gif);
    static const uint8_t mp4[] = "\0\0\0\x18"
                                 "ftypisom";
    assert_int_equal(video_in_frames(&rule.config, mp4, sizeof mp4, false, 0, &limits, &v, &err),
                     IMAGE_BAD_TYPE);
    assert_non_null(strstr(err.msg, "animated GIF"));
    assert_int_equal(video_in_frames(&rule.config, mp4, 0, false, 0, &limits, &v, &err), IMAGE_EMPTY);
    assert_int_equal(video_in_frames(&rule.config, mp4, 0, true, 0, &limits, &v, &err), IMAGE_EMPTY);
}

/* Cut and damaged files: any answer, no crash. The sanitizers' builds look closer. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const names[] = {"videos/delta.gif", "videos/previous.gif", "videos/lossy.webp",
                                        "videos/lossless.webp"};
    uint64_t seed = 9;
    for (size_t f = 0; f < 4; f++) {
        size_t len, fine = 0, bad = 0;
        uint8_t *good = read_file(names[f], &len), *b = malloc(len);
        for (uint32_t i = 0; i < 400; i++) {
            struct video_frames v;
            struct err err;
            memcpy(b, good, len);
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t n = i < 100 ? len * i / 100 : len, hits = i < 100 ? 0 : 1 + (seed >> 60);
            for (size_t k = 0; k < hits; k++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t near = (seed >> 20) % 3 ? 200 : len; /* headers more often */
                b[(seed >> 33) % (near < len ? near : len)] = (uint8_t)(seed >> 8);
            }
            enum image_error error = video_in_frames(&rule.config, b, n, false, 0, &limits, &v, &err);
            if (!error) video_frames_free(&v);
            fine += !error;
            bad += error != IMAGE_OK;
        }
        assert_true(bad > 90 && fine + bad == 400);
        free(b);
        free(good);
    }
}

/* ---- what requests ask ---- */

struct desk {
    struct server srv;
    struct model model;
    struct model_info info;
    struct request r;
    struct generation g;
};

static struct desk *desk_open(const struct image_config *cfg)
{
    struct desk *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->info.image = rule;
    d->info.image.config = *cfg;
    d->model.info = &d->info;
    d->srv.ctx.model = &d->model;
    d->r.srv = &d->srv;
    d->g.r = &d->r;
    d->g.ctx = &d->srv.ctx;
    d->g.e = &d->r.response.error;
    return d;
}

static void test_kwargs(void **state)
{
    (void)state;
    static const struct image_config
        fixed = {.width = 8, .height = 8},
        sides = {.dynamic = true, .patch = 4, .merge = 2, .longest = 48, .area_max = 48 * 48},
        frames = {.dynamic = true, .patch = 4, .merge = 2, .area_frames = 2, .area_max = 1 << 20},
        tiles = {.dynamic = true,
                 .patch = 4,
                 .merge = 2,
                 .area_max = 1 << 20,
                 .tiles = {.rule = TILES_CLOSEST}},
        slices = {.dynamic = true,
                  .patch = 4,
                  .merge = 2,
                  .area_max = 1 << 20,
                  .tiles = {.rule = TILES_SLICED, .max = 9}};
    static const struct {
        const char *json;
        const struct image_config *cfg; /* NULL: areas */
        uint64_t min, max;              /* what is asked for */
        const char *code, *param;
    } cases[] = {
        {"{}", NULL, 0, 0, NULL, NULL},
        {"{\"mm_processor_kwargs\": null}", &fixed, 0, 0, NULL, NULL},
        {"{\"mm_processor_kwargs\": {}}", &fixed, 0, 0, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 4096}}", NULL, 0, 4096, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": 1, \"max_pixels\": 1048576}}", NULL, 1, 1 << 20, NULL,
         NULL},
        {"{\"mm_processor_kwargs\": {\"size\": {\"shortest_edge\": 500, \"longest_edge\": 600}}}", NULL, 500,
         600, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"size\": {\"longest_edge\": 600}, \"max_pixels\": 700}}", NULL, 0, 700,
         NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 1048577}}", NULL, 0, 0, "invalid_value",
         "mm_processor_kwargs.max_pixels"},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 63}}", NULL, 0, 0, "invalid_value",
         "mm_processor_kwargs.max_pixels"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": 0}}", NULL, 0, 0, "invalid_value",
         "mm_processor_kwargs.min_pixels"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": -5}}", NULL, 0, 0, "invalid_value",
         "mm_processor_kwargs.min_pixels"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": 1e300}}", NULL, 0, 0, "invalid_type",
         "mm_processor_kwargs.min_pixels"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": \"5\"}}", NULL, 0, 0, "invalid_type",
         "mm_processor_kwargs.min_pixels"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": 500, \"max_pixels\": 400}}", NULL, 0, 0, "invalid_value",
         "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": {\"size\": {\"height\": 4}}}", NULL, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": {\"size\": 4}}", NULL, 0, 0, "invalid_type", "mm_processor_kwargs.size"},
        {"{\"mm_processor_kwargs\": {\"do_resize\": false}}", NULL, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": []}", NULL, 0, 0, "invalid_type", "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 4096}}", &fixed, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
        /* Pixtral's longest side; GLM's areas over two frames; LFM2-VL's tokens; MiniCPM-V's fixed slices. */
        {"{\"mm_processor_kwargs\": {\"size\": {\"longest_edge\": 20}}}", &sides, 0, 400, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"size\": {\"longest_edge\": 49}}}", &sides, 0, 0, "invalid_value",
         "mm_processor_kwargs.size.longest_edge"},
        {"{\"mm_processor_kwargs\": {\"min_pixels\": 64}}", &sides, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": {\"size\": {\"shortest_edge\": 999, \"longest_edge\": 4001}}}", &frames,
         500, 2000, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 4000}}", &frames, 0, 4000, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"min_image_tokens\": 2, \"max_image_tokens\": 8}}", &tiles, 128, 512,
         NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 4096}}", &tiles, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
        {"{\"mm_processor_kwargs\": {\"max_slice_nums\": 4}}", &slices, 0, 0, NULL, NULL},
        {"{\"mm_processor_kwargs\": {\"max_slice_nums\": 10}}", &slices, 0, 0, "invalid_value",
         "mm_processor_kwargs.max_slice_nums"},
        {"{\"mm_processor_kwargs\": {\"max_pixels\": 4096}}", &slices, 0, 0, "unsupported_parameter",
         "mm_processor_kwargs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct desk *d = desk_open(cases[i].cfg ? cases[i].cfg : &rule.config);
        json_t *root = json_loads(cases[i].json, 0, NULL);
        assert_non_null(root);
        enum status st = fields_read(&d->g, root, API_CHAT, API_CHAT);
        if (cases[i].code) {
            if (!st || d->r.response.error.http != 400 ||
                strcmp(d->r.response.error.code, cases[i].code) != 0 ||
                strcmp(d->r.response.error.param, cases[i].param) != 0)
                fail_msg("%s: %d %s, %s", cases[i].json, (int)st, st ? d->r.response.error.code : "",
                         st ? d->r.response.error.param : "");
        } else {
            if (st) fail_msg("%s: %s", cases[i].json, d->r.response.error.message);
            assert_true(d->g.q.image_bounds.area_min == cases[i].min &&
                        d->g.q.image_bounds.area_max == cases[i].max);
        }
        json_decref(root);
        free(d);
    }
}

/* `detail: low` and asked-for bounds -> grid and key. */
static void test_detail(void **state)
{
    (void)state;
    const struct image_bounds none = {0}, little = {.area_max = 6400}, much = {.area_max = 1 << 19};
    uint8_t *file, keys[5][32];
    size_t len = bmp(640, 480, 77, &file);
    const struct image_bounds bounds[] = {
        none, image_bounds_of(&rule.config, &none, true), image_bounds_of(&rule.config, &little, true),
        image_bounds_of(&rule.config, &much, true), image_bounds_of(&rule.config, &little, false)};
    assert_true(bounds[1].area_max == 256 * 64 && bounds[2].area_max == 6400 &&
                bounds[3].area_max == 256 * 64);
    for (int i = 0; i < 5; i++) {
        const struct image_ask ask = {.bounds = bounds[i]};
        struct image_prepared p;
        struct image_parts parts;
        struct err err;
        assert_int_equal(image_from_file(&rule, "qwen2_vl", &ask, file, len, &p, &parts, &err), IMAGE_OK);
        uint32_t tokens = parts.grids[0].h * parts.grids[0].w;
        assert_int_equal(tokens * 64, p.images[0].width * p.images[0].height);
        assert_true(i == 0 ? tokens == 80 * 60 : tokens <= 256 && tokens > 60);
        memcpy(keys[i], parts.keys[0], 32);
        image_prepared_free(&p);
        image_parts_free(&parts);
    }
    assert_memory_not_equal(keys[0], keys[1], 32);
    assert_memory_not_equal(keys[1], keys[2], 32);
    assert_memory_equal(keys[1], keys[3], 32); /* the same size, however it was asked for */
    assert_memory_equal(keys[2], keys[4], 32);
    const struct image_config fixed = {.width = 8, .height = 8};
    assert_int_equal(image_bounds_of(&fixed, &little, true).area_max, 0);
    free(file);
}

#define USER(part) "[{\"role\": \"user\", \"content\": [" part "]}]"

static void test_parts(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint32_t count, videos; /* of references */
        size_t frames;
        double fps;
        const char *code, *param;
    } cases[] = {
        {USER("{\"type\": \"video_url\", \"video_url\": {\"url\": \"data:a\"}}"), 1, 1, 0, 0, NULL, NULL},
        {USER("{\"type\": \"video_url\", \"video_url\": \"data:a\", \"fps\": 1.5}"), 1, 1, 0, 1.5, NULL,
         NULL},
        {USER("{\"type\": \"video\", \"video\": [\"data:a\", \"data:b\"]}"), 1, 1, 2, 0, NULL, NULL},
        {USER("{\"type\": \"video_url\", \"video_url\": {\"url\": [\"data:a\"], \"fps\": 4}}"), 1, 1, 1, 4,
         NULL, NULL},
        {USER("{\"type\": \"image_url\", \"image_url\": \"data:a\"}, {\"type\": \"video\", \"video\": "
              "\"data:b\"}"),
         2, 1, 0, 0, NULL, NULL},
        {USER("{\"type\": \"video_url\"}"), 0, 0, 0, 0, "missing_required_parameter",
         "messages[0].content[0].video_url"},
        {USER("{\"type\": \"video_url\", \"video_url\": {}}"), 0, 0, 0, 0, "missing_required_parameter",
         "messages[0].content[0].video_url.url"},
        {USER("{\"type\": \"video\", \"video\": 5}"), 0, 0, 0, 0, "invalid_type",
         "messages[0].content[0].video"},
        {USER("{\"type\": \"video\", \"video\": []}"), 0, 0, 0, 0, "empty_array",
         "messages[0].content[0].video"},
        {USER("{\"type\": \"video\", \"video\": [5]}"), 0, 0, 0, 0, "invalid_type",
         "messages[0].content[0].video"},
        {USER("{\"type\": \"video\", \"video\": \"x\", \"fps\": 0}"), 0, 0, 0, 0, "invalid_value",
         "messages[0].content[0].fps"},
        {USER("{\"type\": \"video\", \"video\": \"x\", \"fps\": 1e9}"), 0, 0, 0, 0, "invalid_value",
         "messages[0].content[0].fps"},
        {USER("{\"type\": \"video\", \"video\": \"x\", \"fps\": \"2\"}"), 0, 0, 0, 0, "invalid_type",
         "messages[0].content[0].fps"},
        {USER("{\"type\": \"video\", \"video\": \"x\"}, {\"type\": \"video\", \"video\": \"x\"}, {\"type\": "
              "\"video\", "
              "\"video\": \"x\"}"),
         0, 0, 0, 0, "too_many_videos", "messages[0].content[2]"},
        {"[{\"role\": \"assistant\", \"content\": [{\"type\": \"video\", \"video\": \"x\"}]}]", 0, 0, 0, 0,
         "invalid_value", "messages[0].content[0].type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct chat_limits chat = {.images_max = 4, .videos_max = 2};
        json_t *root = json_loads(cases[i].json, 0, NULL);
        struct chat_messages m = {0};
        struct api_error e = {0};
        assert_non_null(root);
        enum status st = chat_messages_parse(root, &chat, &m, &e);
        if (cases[i].code) {
            if (!st || strcmp(e.code, cases[i].code) != 0 || strcmp(e.param, cases[i].param) != 0)
                fail_msg("%s: %s at %s", cases[i].json, e.code, e.param);
        } else {
            if (st) fail_msg("%s: %s", cases[i].json, e.message);
            assert_int_equal(m.image_count, cases[i].count);
            const struct image_ref *ref = &m.images[m.image_count - 1];
            assert_true(ref->video && ref->fps == cases[i].fps &&
                        (ref->url.data != NULL) == !cases[i].frames);
            assert_int_equal(ref->frame_count, cases[i].frames);
            assert_true(m.list[0].parts[m.image_count - 1].video);
            chat_messages_free(&m);
        }
        const struct chat_limits without = {.images_max = 4};
        e = (struct api_error){0};
        assert_int_equal(chat_messages_parse(root, &without, &m, &e), ST_INVALID);
        assert_true(strcmp(e.code, "unsupported_content_part") == 0 || cases[i].code);
        json_decref(root);
    }
}

/* The part as a template sees it. */
static void test_template_part(void **state)
{
    (void)state;
    static const char list[] =
        "{% for m in messages %}{% for p in m.content %}[{{ p.type }}]{{ p.text }}{% endfor %}{% endfor %}",
                      string[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    const struct chat_limits chat = {.images_max = 4, .videos_max = 2};
    struct chat_messages m = {0};
    struct api_error e = {0};
    json_t *root = json_loads(
        USER("{\"type\": \"image\", \"image\": \"data:a\"}, {\"type\": \"video\", \"video\": \"data:b\"}, "
             "{\"type\": \"text\", \"text\": \"t\"}"),
        0, NULL);
    assert_int_equal(chat_messages_parse(root, &chat, &m, &e), ST_OK);
    for (int i = 0; i < 3; i++) {
        struct template *t;
        struct template_result got;
        struct err err = {""};
        const char *source = i ? string : list;
        struct template_request rq = {
            .messages = &m, .image_placeholder = "<i>", .video_placeholder = i == 2 ? NULL : "<v>"};
        if (template_create(source, strlen(source), NULL, 0, NULL, &t, &err)) fail_msg("%s", err.msg);
        enum status st = template_render(t, &rq, &got, &err);
        if (i == 2) {
            assert_int_equal(st, ST_INVALID);
            assert_non_null(strstr(err.msg, "no place for videos"));
        } else {
            if (st) fail_msg("%s", err.msg);
            assert_string_equal(got.text, i ? "<i>\n<v>\nt" : "[image][video][text]t");
            template_result_free(&got);
        }
        template_free(t);
    }
    chat_messages_free(&m);
    json_decref(root);
}

int main(void)
{
    if (sodium_init() < 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_animations), cmocka_unit_test(test_lists),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_damaged),    cmocka_unit_test(test_kwargs),       cmocka_unit_test(test_detail),
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_template_part)};
    return cmocka_run_group_tests_name("videos", tests, NULL, NULL);
}

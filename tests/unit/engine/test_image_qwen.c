/* Sizes, frames, settings and pixels of the Qwen-VL families against transformers
 * (tests/golden/images/qwen_*.json, made by scripts/reference/make_qwen_images.py). The sources are noise. */
#include "config/base/json.h"
#include "engine/families/families.h"
#include "engine/prompt/image_prep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/images/"

static const char *const families[] = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"};

static uint32_t crc32_of(const void *data, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void load(const char *path, struct json_doc *doc)
{
    struct err err = {.msg = ""};
    if (json_doc_load(path, 1 << 20, doc, &err)) fail_msg("%s", err.msg);
}

static uint64_t number(const struct json_doc *d, uint32_t node)
{
    uint64_t v = 0;
    assert_true(json_uint(d, node, &v));
    return v;
}

static char dir_path[64];

static void write_settings(const char *file, const char *text, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir_path, file);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir_path, sizeof dir_path, "/tmp/kvasir-test-qwen-XXXXXX");
    return mkdtemp(dir_path) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    write_settings("processor_config.json", NULL, 0);
    write_settings("preprocessor_config.json", NULL, 0);
    write_settings("video_preprocessor_config.json", NULL, 0);
    return rmdir(dir_path);
}

static enum status settings(const char *family, const char *processor, const char *image, const char *video,
                            struct image_config *cfg, struct err *err)
{
    write_settings("processor_config.json", processor, processor ? strlen(processor) : 0);
    write_settings("preprocessor_config.json", image, image ? strlen(image) : 0);
    write_settings("video_preprocessor_config.json", video, video ? strlen(video) : 0);
    return family_load_images(dir_path, NULL, family, cfg, err);
}

static void test_sizes(void **state)
{
    (void)state;
    struct json_doc d;
    load(GOLDEN "qwen_sizes.json", &d);
    uint32_t rows = json_count(&d, 0), node = json_first(&d, 0), refused = 0;
    assert_true(rows > 3000);
    for (uint32_t i = 0; i < rows; i++, node = json_next(&d, node)) {
        uint32_t rule = json_at(&d, node, 0);
        bool volume = json_str_eq(&d, rule, "volume"), pair = json_str_eq(&d, rule, "pair"),
             sides = json_str_eq(&d, rule, "sides"), longest = json_str_eq(&d, rule, "longest");
        uint64_t v[10];
        for (uint32_t k = 1; k < 10; k++) v[k] = number(&d, json_at(&d, node, k));
        struct image_config cfg = {.dynamic = true,
                                   .do_resize = true,
                                   .patch = (uint32_t)v[1],
                                   .merge = 1,
                                   .depth = (uint32_t)v[2],
                                   .area_min = v[4],
                                   .area_max = v[5],
                                   .area_frames = pair ? 2 : 0,
                                   .small = pair    ? SMALL_SCALED
                                            : sides ? SMALL_BY_SIDE
                                                    : SMALL_KEPT,
                                   .longest = longest ? (uint32_t)v[5] : 0,
                                   .video_volume = true,
                                   .video_area_min = v[4],
                                   .video_area_max = v[5]};
        uint32_t w = 0, h = 0, again_w = 0, again_h = 0;
        struct err err;
        enum status st =
            image_target(&cfg, (uint32_t)v[7], (uint32_t)v[6], volume ? (uint32_t)v[3] : 0, &w, &h, &err);
        if (volume && v[3] == 1) { /* the reference's loader repeats it; transformers' has no such step */
            enum status two = image_target(&cfg, (uint32_t)v[7], (uint32_t)v[6], 2, &again_w, &again_h, &err);
            assert_true(st == two && w == again_w && h == again_h);
            continue;
        }
        if (st ? st != ST_INVALID || v[8] || v[9] : h != v[8] || w != v[9])
            fail_msg("row %u: %u x %u, want %u x %u", i, w, h, (unsigned)v[9], (unsigned)v[8]);
        refused += st != ST_OK;
        if (volume || pair || sides || longest) continue;
        /* A frame of Qwen2's videos is sized like an image. */
        cfg.video_volume = false;
        cfg.area_min = cfg.area_max = 1;
        uint32_t w2 = 0, h2 = 0;
        assert_int_equal(image_target(&cfg, (uint32_t)v[7], (uint32_t)v[6], 17, &w2, &h2, &err), st);
        assert_true(w2 == w && h2 == h);
    }
    assert_true(refused > 10);
    json_free(&d);
}

static void test_frames(void **state)
{
    (void)state;
    struct json_doc d;
    load(GOLDEN "qwen_frames.json", &d);
    uint32_t rows = json_count(&d, 0), node = json_first(&d, 0);
    assert_true(rows > 600);
    for (uint32_t i = 0; i < rows; i++, node = json_next(&d, node)) {
        struct image_config cfg = {.depth = 2,
                                   .video_fps = 2,
                                   .video_frames_min = 4,
                                   .video_frames_max = 768,
                                   .video_volume = json_str_eq(&d, json_at(&d, node, 0), "volume")};
        struct image_sample s = {0};
        struct err err;
        double fps;
        uint32_t total = (uint32_t)number(&d, json_at(&d, node, 1)),
                 count = (uint32_t)number(&d, json_at(&d, node, 3));
        assert_true(json_double(&d, json_at(&d, node, 2), &fps));
        enum status st = image_video_sample(&cfg, total, fps, &s, &err);
        if (total == 1) { /* one rule of the reference chooses none */
            assert_true(!st && s.count == 1 && s.frames[0] == 0);
            free(s.frames);
            continue;
        }
        if (st ? count != 0 : s.count != count)
            fail_msg("row %u (%u frames at %g): %u, want %u", i, total, fps, s.count, count);
        if (crc32_of(s.frames, s.count * sizeof *s.frames) != number(&d, json_at(&d, node, 4)))
            fail_msg("row %u (%u frames at %g, %u chosen): other frames", i, total, fps, count);
        free(s.frames);
    }
    json_free(&d);
}

/* specs qwen-vl 4.4. */
static void test_stamps(void **state)
{
    (void)state;
    const struct image_config cfg = {.depth = 2};
    const uint32_t frames[] = {0, 12, 24, 36, 48};
    static const char *const want[] = {"0.2", "1.2", "2.0"};
    double stamps[3];
    image_video_stamps(&cfg, frames, 5, 24.0, stamps);
    for (int i = 0; i < 3; i++) {
        char text[16];
        snprintf(text, sizeof text, "%.1f", stamps[i]);
        assert_string_equal(text, want[i]);
    }
}

/* Rows of the generator's `noise`, from row `skip` on. */
static struct image_u8 noise(uint32_t width, uint32_t height, uint32_t skip)
{
    size_t n = (size_t)width * (height + skip) * 3, from = (size_t)width * skip * 3;
    struct image_u8 img = {.width = width, .height = height, .rgb = malloc(n - from)};
    assert_non_null(img.rgb);
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = 1664525u * x + 1013904223u;
        if (i >= from) img.rgb[i - from] = (uint8_t)(x >> 24);
    }
    return img;
}

/* pixel_values of the reference from the frames, in the order of specs qwen-vl 3.1. */
static uint32_t crc_of_patches(const struct image_config *cfg, const struct image_u8 *frames, uint32_t count)
{
    uint32_t p = cfg->patch, m = cfg->merge, depth = cfg->depth, gh = frames->height / p,
             gw = frames->width / p;
    uint32_t groups = (count + depth - 1) / depth, e = 3 * depth * p * p;
    float lut[3 * 256], *out = malloc((size_t)groups * gh * gw * e * sizeof *out), *at = out;
    assert_non_null(out);
    image_lut(cfg, lut);
    for (uint32_t n = 0; n < groups * gh * gw; n++) {
        uint32_t t = n / (gh * gw), in = n % (m * m), block = n % (gh * gw) / (m * m);
        uint32_t row = block / (gw / m) * m + in / m, col = block % (gw / m) * m + in % m;
        for (uint32_t c = 0; c < 3; c++)
            for (uint32_t s = 0; s < depth; s++) {
                uint32_t f = t * depth + s < count ? t * depth + s : count - 1;
                for (uint32_t y = 0; y < p; y++)
                    for (uint32_t x = 0; x < p; x++)
                        *at++ =
                            lut[c * 256 +
                                frames[f].rgb[(((size_t)row * p + y) * frames->width + col * p + x) * 3 + c]];
            }
    }
    uint32_t crc = crc32_of(out, (size_t)groups * gh * gw * e * sizeof *out);
    free(out);
    return crc;
}

static void test_prep(void **state)
{
    (void)state;
    struct json_doc d;
    load(GOLDEN "qwen_prep.json", &d);
    uint32_t rows = json_count(&d, 0), node = json_first(&d, 0), videos = 0;
    assert_true(rows > 20);
    for (uint32_t i = 0; i < rows; i++, node = json_next(&d, node)) {
        uint32_t s = json_get(&d, node, "settings"), depth = 0;
        uint32_t frames = (uint32_t)number(&d, json_get(&d, node, "frames")),
                 w = (uint32_t)number(&d, json_get(&d, node, "width")),
                 h = (uint32_t)number(&d, json_get(&d, node, "height")),
                 to_w = (uint32_t)number(&d, json_get(&d, node, "to_width")),
                 to_h = (uint32_t)number(&d, json_get(&d, node, "to_height"));
        size_t family_len;
        char *family = json_str_dup(&d, json_get(&d, node, "family"), &family_len), text[512];
        /* The settings are an object of the golden file: its text is the checkpoint's file. */
        const char *from = d.text + d.nodes[s].at, *end = from;
        do {
            depth += *end == '{';
            depth -= *end == '}';
        } while (*end++ && depth);
        snprintf(text, sizeof text, "%.*s", (int)(end - from), from);
        struct image_config cfg;
        struct err err = {.msg = ""};
        if (settings(family, NULL,
                     frames && strcmp(family, "qwen3_vl") == 0
                         ? "{\"patch_size\": 4, \"image_mean\": 0.5, \"image_std\": 0.5}"
                         : text,
                     text, &cfg, &err))
            fail_msg("%s", err.msg);
        struct image_u8 list[32];
        assert_true(frames <= 32);
        for (uint32_t k = 0; k < (frames ? frames : 1); k++) {
            struct image_u8 src = noise(w, h, k);
            if (!frames) {
                struct image_prepared p = {0};
                assert_int_equal(image_prep(&cfg, &src, &p, &err), ST_OK);
                assert_int_equal(p.count, 1);
                list[0] = p.images[0];
                p.images[0].rgb = NULL;
                image_prepared_free(&p);
            } else {
                uint32_t tw, th;
                if (!cfg.video) fail_msg("row %u: no videos", i);
                assert_int_equal(image_target(&cfg, w, h, frames, &tw, &th, &err), ST_OK);
                assert_int_equal(image_resize(&src, tw, th, cfg.filter, cfg.mode, &list[k], &err), ST_OK);
                videos++;
            }
            image_u8_free(&src);
        }
        if (list[0].width != to_w || list[0].height != to_h)
            fail_msg("row %u: %u x %u, want %u x %u", i, list[0].width, list[0].height, to_w, to_h);
        struct prompt_grid g = image_grid(&cfg, to_w, to_h, frames);
        assert_int_equal(g.t, number(&d, json_get(&d, node, "groups")));
        assert_true(g.h * cfg.patch * cfg.merge == to_h && g.w * cfg.patch * cfg.merge == to_w);
        uint32_t got = crc_of_patches(&cfg, list, frames ? frames : 1),
                 want = (uint32_t)number(&d, json_get(&d, node, "crc32"));
        if (got != want)
            fail_msg("row %u (%u x %u, %u frames): crc %08x, want %08x", i, w, h, frames, got, want);
        for (uint32_t k = 0; k < (frames ? frames : 1); k++) image_u8_free(&list[k]);
        free(family);
    }
    assert_true(videos > 20);
    json_free(&d);
}

static void test_config(void **state)
{
    (void)state;
    struct image_config cfg;
    struct err err = {.msg = ""};
    /* Class defaults; of the videos too. */
    for (size_t i = 0; i < 4; i++) {
        bool three = i >= 2;
        assert_int_equal(
            settings(families[i], NULL, "{\"image_processor_type\": \"whatever\"}", NULL, &cfg, &err), ST_OK);
        assert_true(cfg.dynamic && cfg.do_resize && cfg.filter == IMAGE_BICUBIC &&
                    cfg.mode == IMAGE_TORCH_U8);
        assert_true(cfg.patch == 14 && cfg.merge == 2 && cfg.depth == 2 && cfg.width == 0);
        assert_true(cfg.area_min == 3136 && cfg.area_max == 1003520 && cfg.mean[0] == 0.48145466f &&
                    cfg.std[2] == 0.27577711f);
        assert_true(cfg.video == !three &&
                    cfg.video_volume ==
                        three); /* Qwen3's classes differ in patch and mean until files agree */
    }
    /* As released: Qwen2 has one file, which the videos use too. */
    assert_int_equal(settings("qwen2_vl", NULL,
                              "{\"min_pixels\": 3136, \"max_pixels\": 12845056, \"patch_size\": 14}", NULL,
                              &cfg, &err),
                     ST_OK);
    assert_true(cfg.area_min == 3136 && cfg.area_max == 12845056 && cfg.video &&
                cfg.video_area_max == 12845056);
    static const char image3[] =
        "{\"size\": {\"longest_edge\": 16777216, \"shortest_edge\": 65536}, \"patch_size\": 16, "
        "\"temporal_patch_size\": 2, "
        "\"merge_size\": 2, \"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5]}";
    static const char video3[] =
        "{\"size\": {\"longest_edge\": 25165824, \"shortest_edge\": 4096}, \"patch_size\": 16, \"fps\": 1, "
        "\"max_frames\": 96}";
    assert_int_equal(settings("qwen3_vl", NULL, image3, video3, &cfg, &err), ST_OK);
    assert_true(cfg.area_min == 65536 && cfg.area_max == 16777216 && cfg.patch == 16 && cfg.mean[1] == 0.5f);
    assert_true(cfg.video && cfg.video_area_min == 4096 && cfg.video_area_max == 25165824 &&
                cfg.video_fps == 1.0);
    assert_true(cfg.video_frames_min == 4 && cfg.video_frames_max == 96 && !cfg.video_cap_tokens);
    /* Qwen3's videos have their bounds in size alone, also where the file is that of the images. */
    static const char both3[] =
        "{\"size\": {\"longest_edge\": 25165824, \"shortest_edge\": 4096}, \"patch_size\": 16, "
        "\"min_pixels\": 5000, \"max_pixels\": 6000, \"image_mean\": 0.5, \"image_std\": 0.5}";
    assert_int_equal(settings("qwen3_vl", NULL, image3, both3, &cfg, &err), ST_OK);
    assert_true(cfg.video && cfg.video_area_min == 4096 && cfg.video_area_max == 25165824);
    assert_int_equal(settings("qwen3_vl", NULL, both3, NULL, &cfg, &err), ST_OK);
    assert_true(cfg.area_min == 5000 && cfg.area_max == 6000);
    assert_true(cfg.video && cfg.video_area_min == 4096 && cfg.video_area_max == 25165824);
    assert_int_equal(settings("qwen2_5_vl", NULL, "{}",
                              "{\"size\": {\"longest_edge\": 9000}, \"max_pixels\": 8000, "
                              "\"min_pixels\": 7}",
                              &cfg, &err),
                     ST_OK);
    assert_true(cfg.video && cfg.video_area_min == 7 && cfg.video_area_max == 8000);
    /* min_pixels and max_pixels win over size, the nested part over the flat file. */
    assert_int_equal(settings("qwen2_5_vl",
                              "{\"image_processor\": {\"size\": {\"shortest_edge\": 7, \"longest_edge\": "
                              "9000}, \"max_pixels\": 8000}}",
                              "{}", NULL, &cfg, &err),
                     ST_OK);
    assert_true(cfg.area_min == 7 && cfg.area_max == 8000);
    assert_int_equal(
        settings("qwen2_vl", NULL, "{\"size\": {\"min_pixels\": 5, \"max_pixels\": 6000}}", NULL, &cfg, &err),
        ST_OK);
    assert_true(cfg.area_min == 5 && cfg.area_max == 6000);
    /* Settings for videos that differ from those for images, or that we don't have: no videos. */
    static const char *const other[] = {"{\"image_mean\": [0, 0, 0]}", "{\"patch_size\": 16}",
                                        "{\"resample\": 0}", "{\"do_resize\": false}"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        assert_int_equal(settings("qwen2_vl", NULL, "{}", other[i], &cfg, &err), ST_OK);
        assert_false(cfg.video);
    }
    static const struct {
        const char *text;
        enum status want;
    } bad[] = {{"{\"size\": 448}", ST_UNSUPPORTED},
               {"{\"size\": {\"height\": 448, \"width\": 448}}", ST_UNSUPPORTED},
               {"{\"size\": {\"shortest_edge\": 0}}", ST_FORMAT},
               {"{\"size\": {\"shortest_edge\": 1e30}}", ST_FORMAT},
               {"{\"min_pixels\": -1}", ST_FORMAT},
               {"{\"min_pixels\": 5000, \"max_pixels\": 4000}", ST_FORMAT},
               {"{\"patch_size\": 0}", ST_FORMAT},
               {"{\"merge_size\": 100000}", ST_FORMAT},
               {"{\"temporal_patch_size\": \"2\"}", ST_FORMAT},
               {"{\"do_center_crop\": true}", ST_UNSUPPORTED},
               {"{\"resample\": 0}", ST_UNSUPPORTED},
               {"[1]", ST_FORMAT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum status st = settings("qwen2_vl", NULL, bad[i].text, "{}", &cfg, &err);
        if (st != bad[i].want)
            fail_msg("%s: %s, want %s", bad[i].text, status_name(st), status_name(bad[i].want));
    }
    assert_int_equal(settings("qwen2_vl", NULL, NULL, "{}", &cfg, &err), ST_NOT_FOUND);
}

static void test_bounds(void **state)
{
    (void)state;
    const struct image_config fixed = {.width = 8, .height = 8};
    struct image_config cfg = {.dynamic = true,
                               .do_resize = true,
                               .patch = 14,
                               .merge = 2,
                               .depth = 2,
                               .area_min = 3136,
                               .area_max = 1003520},
                        c = cfg;
    struct err err;
    uint32_t w, h;
    image_config_bound(&c, &(struct image_bounds){0});
    assert_memory_equal(&c, &cfg, sizeof c);
    image_config_bound(&c, &(struct image_bounds){.area_max = 100 * 784});
    assert_true(c.area_min == 3136 && c.area_max == 78400);
    assert_int_equal(image_target(&c, 1000, 1000, 0, &w, &h, &err), ST_OK);
    assert_true(w == 280 && h == 280);
    image_config_bound(
        &c, &(struct image_bounds){.area_min = 784,
                                   .area_max = 784}); /* below the checkpoint's smallest: that gives way */
    assert_int_equal(image_target(&c, 1000, 1000, 0, &w, &h, &err), ST_OK);
    assert_true(w == 28 && h == 28);
    c = fixed;
    image_config_bound(&c, &(struct image_bounds){.area_min = 1, .area_max = 2});
    assert_memory_equal(&c, &fixed, sizeof c);
    assert_int_equal(image_grid(&fixed, 8, 8, 0).t, 0);
    /* A switched-off resize: only sizes that fit. */
    cfg.do_resize = false;
    assert_int_equal(image_target(&cfg, 56, 84, 0, &w, &h, &err), ST_OK);
    assert_true(w == 56 && h == 84);
    assert_int_equal(image_target(&cfg, 56, 85, 0, &w, &h, &err), ST_INVALID);
    /* Bounds that no size keeps: refused, nothing overflows. */
    cfg.do_resize = true;
    cfg.area_min = cfg.area_max = 1ull << 40;
    assert_int_equal(image_target(&cfg, 65535, 65535, 0, &w, &h, &err), ST_INVALID);
    assert_int_equal(image_target(&cfg, 0, 5, 0, &w, &h, &err), ST_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_stamps),
        cmocka_unit_test_setup_teardown(test_prep, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_config, make_dir, remove_dir),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests_name("image_qwen", tests, NULL, NULL);
}

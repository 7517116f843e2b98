/* Resizing, the table of normalised values, checkpoint settings and Gemma 3's preparation, against
 * torchvision, Pillow and transformers (tests/golden/images, made by scripts/reference/make_images.py;
 * tests/golden/gemma3). No image files here: the sources are noise. */
#include "config/base/json.h"
#include "engine/prompt/image.h"
#include "engine/families/families.h"
#include "engine/prompt/image_prep.h"
#include "engine/prompt/image_resize_internal.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/lib/test_images.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/images/"

/* CRC-32 as in zlib. */
static uint32_t crc32_of(const void *data, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* The generator's `noise`. */
static struct image_u8 noise(uint32_t width, uint32_t height, uint32_t seed)
{
    size_t n = (size_t)width * height * 3;
    struct image_u8 img = {.width = width, .height = height, .rgb = malloc(n)};
    assert_non_null(img.rgb);
    uint32_t x = seed;
    for (size_t i = 0; i < n; i++) {
        x = 1664525u * x + 1013904223u;
        img.rgb[i] = (uint8_t)(x >> 24);
    }
    return img;
}

static uint32_t crc_of_image(const struct image_u8 *img)
{
    return crc32_of(img->rgb, (size_t)img->width * img->height * 3);
}

static void load(const char *path, struct json_doc *doc)
{
    struct err err = {.msg = ""};
    if (json_doc_load(path, 1 << 20, doc, &err)) fail_msg("%s", err.msg);
}

static uint32_t number(const struct json_doc *d, uint32_t node)
{
    uint64_t v = 0;
    assert_true(json_uint(d, node, &v));
    return (uint32_t)v;
}

static void test_rows(void **state)
{
    (void)state;
    static const uint8_t row[8] = {0, 10, 20, 30, 200, 210, 220, 255};
    static const struct {
        enum image_filter filter;
        uint32_t out;
        uint8_t want[13];
    } cases[] = {
        {IMAGE_BILINEAR, 5, {4, 19, 115, 211, 241}},
        {IMAGE_BILINEAR, 3, {11, 115, 226}},
        {IMAGE_BILINEAR, 13, {0, 4, 10, 17, 23, 29, 115, 201, 207, 213, 220, 240, 255}},
        {IMAGE_BICUBIC, 5, {3, 11, 115, 218, 242}},
        {IMAGE_BICUBIC, 3, {1, 114, 237}},
        {IMAGE_BICUBIC, 13, {0, 3, 10, 17, 18, 22, 115, 208, 212, 212, 219, 242, 255}},
    };
    uint8_t rgb[24];
    for (int i = 0; i < 24; i++) rgb[i] = row[i / 3];
    struct image_u8 wide = {.width = 8, .height = 1, .rgb = rgb},
                    tall = {.width = 1, .height = 8, .rgb = rgb};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int mode = IMAGE_TORCH_U8; mode <= IMAGE_PIL; mode++) {
            for (int down = 0; down < 2; down++) {
                struct image_u8 out = {0};
                assert_int_equal(image_resize(down ? &tall : &wide, down ? 1 : cases[i].out,
                                              down ? cases[i].out : 1, cases[i].filter,
                                              (enum image_resize_mode)mode, &out, NULL),
                                 ST_OK);
                for (uint32_t x = 0; x < cases[i].out * 3; x++)
                    assert_int_equal(out.rgb[x], cases[i].want[x / 3]);
                image_u8_free(&out);
            }
        }
    }
}

static void test_coefficients(void **state)
{
    (void)state;
    static const int32_t pil[] = {2564317, 1799741, -76390, -93365}, torch[] = {20034, 14060, -597, -729},
                         torch_1[] = {-1241, 9540, 19856, 6129, -1480, -37};
    struct image_axis a;
    assert_int_equal(image__axis_init(&a, 8, 5, IMAGE_BICUBIC, IMAGE_PIL, NULL), ST_OK);
    assert_int_equal(a.lo[0], 0);
    assert_int_equal(a.n[0], 4);
    assert_memory_equal(a.k, pil, sizeof pil);
    for (uint32_t i = 0; i < a.out * a.taps; i++)
        assert_int_equal(a.part[1][i] * 32768 + a.part[0][i], a.k[i]);
    image__axis_fini(&a);
    assert_int_equal(image__axis_init(&a, 8, 5, IMAGE_BICUBIC, IMAGE_TORCH_U8, NULL), ST_OK);
    assert_int_equal(a.shift, 15);
    assert_memory_equal(a.k, torch, sizeof torch);
    assert_memory_equal(a.k + a.taps, torch_1, sizeof torch_1);
    image__axis_fini(&a);
}

/* Every kernel that this machine has, against torchvision and Pillow. */
static void test_resize_golden(void **state)
{
    (void)state;
    struct json_doc d;
    load(GOLDEN "resize.json", &d);
    const struct image_resize_kernel *kernels[] = {&image__resize_c, image__resize_avx2()};
    uint32_t rows = json_count(&d, 0), node = json_first(&d, 0);
    assert_true(rows > 100);
    for (uint32_t i = 0; i < rows; i++, node = json_next(&d, node)) {
        uint32_t v[7];
        for (uint32_t c = 0; c < 7; c++) v[c] = number(&d, json_at(&d, node, c));
        struct image_u8 src = noise(v[0], v[1], 1);
        for (int k = 0; k < 2; k++) {
            if (!kernels[k]) continue;
            for (int mode = IMAGE_TORCH_U8; mode <= IMAGE_PIL; mode++) {
                struct image_u8 out = {0};
                assert_int_equal(image__resize_with(kernels[k], &src, v[2], v[3], (enum image_filter)v[4],
                                                    (enum image_resize_mode)mode, &out, NULL),
                                 ST_OK);
                uint32_t crc = crc_of_image(&out);
                if (crc != v[5 + mode])
                    fail_msg("%u x %u to %u x %u, filter %u, mode %d, kernel %s: crc %08x, want %08x", v[0],
                             v[1], v[2], v[3], v[4], mode, kernels[k]->name, crc, v[5 + mode]);
                image_u8_free(&out);
            }
        }
        image_u8_free(&src);
    }
    json_free(&d);
}

/* The kernels must agree everywhere, also where neither reference was asked. */
static void test_kernels_agree(void **state)
{
    (void)state;
    const struct image_resize_kernel *fast = image__resize_avx2();
    if (!fast) skip();
    uint32_t x = 12345;
    for (int i = 0; i < 400; i++) {
        uint32_t v[4];
        for (int k = 0; k < 4; k++) {
            x = 1664525u * x + 1013904223u;
            uint32_t max = i % 4 == 0 ? 4 : i % 4 == 1 ? 40 : i % 4 == 2 ? 150 : 700;
            v[k] = 1 + (x >> 8) % (k % 2 ? max : 900 / max + 20);
        }
        struct image_u8 src = noise(v[0], v[1], x);
        if (i % 5 == 0) /* black and white: overshoots are clipped */
            for (size_t b = 0; b < (size_t)v[0] * v[1] * 3; b++) src.rgb[b] = src.rgb[b] & 1 ? 255 : 0;
        for (int filter = IMAGE_LANCZOS; filter <= IMAGE_BICUBIC; filter++) {
            for (int mode = IMAGE_TORCH_U8; mode <= IMAGE_PIL; mode++) {
                struct image_u8 a = {0}, b = {0};
                assert_int_equal(image__resize_with(&image__resize_c, &src, v[2], v[3],
                                                    (enum image_filter)filter, (enum image_resize_mode)mode,
                                                    &a, NULL),
                                 ST_OK);
                assert_int_equal(image__resize_with(fast, &src, v[2], v[3], (enum image_filter)filter,
                                                    (enum image_resize_mode)mode, &b, NULL),
                                 ST_OK);
                if (memcmp(a.rgb, b.rgb, (size_t)v[2] * v[3] * 3) != 0)
                    fail_msg("%u x %u to %u x %u, filter %d, mode %d", v[0], v[1], v[2], v[3], filter, mode);
                image_u8_free(&a);
                image_u8_free(&b);
            }
        }
        image_u8_free(&src);
    }
}

static void test_resize_edges(void **state)
{
    (void)state;
    static const uint32_t sizes[][4] = {{1, 1, 896, 896},     {896, 1, 1, 896},    {1, 65535, 1, 1},
                                        {65535, 1, 2, 2},     {1, 1, 65535, 1},    {3, 3, 65535, 2},
                                        {65535, 2, 65534, 2}, {2, 65535, 3, 65534}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct image_u8 src = noise(sizes[i][0], sizes[i][1], 3), out = {0};
        memset(src.rgb, 77, (size_t)src.width * src.height * 3); /* one color stays one color */
        for (int mode = IMAGE_TORCH_U8; mode <= IMAGE_PIL; mode++) {
            assert_int_equal(image_resize(&src, sizes[i][2], sizes[i][3], IMAGE_BICUBIC,
                                          (enum image_resize_mode)mode, &out, NULL),
                             ST_OK);
            assert_int_equal(out.width, sizes[i][2]);
            assert_int_equal(out.height, sizes[i][3]);
            for (size_t b = 0; b < (size_t)out.width * out.height * 3; b++)
                assert_in_range(out.rgb[b], 76, 78);
            image_u8_free(&out);
        }
        image_u8_free(&src);
    }
    struct image_u8 src = noise(4, 4, 1), out = {0};
    struct err err = {.msg = ""};
    assert_int_equal(image_resize(&src, 0, 4, IMAGE_BILINEAR, IMAGE_PIL, &out, &err), ST_INVALID);
    assert_int_equal(image_resize(&src, 4, 65536, IMAGE_BILINEAR, IMAGE_PIL, &out, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "65536"));
    assert_null(out.rgb);
    image_u8_free(&src);
}

static void test_lut(void **state)
{
    (void)state;
    struct image_config cfg = {.do_rescale = true,
                               .do_normalize = true,
                               .rescale_factor = 0.00392156862745098,
                               .mean = {0.5f, 0.48145466f, 0.40821073f},
                               .std = {0.5f, 0.26862954f, 0.27577711f}};
    float lut[768];
    image_lut(&cfg, lut);
    for (int c = 0; c < 3; c++) {
        for (int v = 0; v < 256; v++) {
            float want = ((float)v - cfg.mean[c] * 255.0f) / (cfg.std[c] * 255.0f);
            assert_memory_equal(&want, &lut[c * 256 + v], sizeof want);
            double exact = ((double)v / 255.0 - (double)cfg.mean[c]) / (double)cfg.std[c];
            assert_true(fabs(exact - (double)lut[c * 256 + v]) < 1e-6);
        }
    }
    assert_true(lut[0] == -1.0f && lut[255] == 1.0f);
    cfg.do_normalize = false;
    image_lut(&cfg, lut);
    for (int v = 0; v < 256; v++) assert_true(lut[v] == (float)v * 0.00392156862745098f);
    cfg.do_rescale = false;
    image_lut(&cfg, lut);
    for (int v = 0; v < 256; v++) assert_true(lut[v] == (float)v);
}

/* A directory with one settings file, for family_load_images. */
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
    snprintf(dir_path, sizeof dir_path, "/tmp/kvasir-test-image-XXXXXX");
    return mkdtemp(dir_path) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    write_settings("processor_config.json", NULL, 0);
    write_settings("preprocessor_config.json", NULL, 0);
    return rmdir(dir_path);
}

static enum status load_settings(const char *processor, const char *preprocessor, struct image_config *cfg,
                                 struct err *err)
{
    write_settings("processor_config.json", processor, processor ? strlen(processor) : 0);
    write_settings("preprocessor_config.json", preprocessor, preprocessor ? strlen(preprocessor) : 0);
    return family_load_images(dir_path, NULL, "gemma3", cfg, err);
}

static void test_config(void **state)
{
    (void)state;
    struct image_config cfg;
    struct err err = {.msg = ""};
    /* Class defaults; null counts as absent. */
    assert_int_equal(load_settings(NULL, "{\"do_pan_and_scan\": null, \"size\": null}", &cfg, &err), ST_OK);
    assert_true(cfg.width == 224 && cfg.height == 224 && cfg.filter == IMAGE_BILINEAR &&
                cfg.mode == IMAGE_TORCH_U8);
    assert_true(cfg.do_resize && cfg.do_rescale && cfg.do_normalize && !cfg.pan_and_scan);
    assert_true(cfg.mean[1] == 0.5f && cfg.std[2] == 0.5f && cfg.rescale_factor == 1.0 / 255.0);
    assert_true(cfg.pan_min_crop == 256 && cfg.pan_max_crops == 4 && cfg.pan_min_ratio == 1.2);
    /* The nested part wins over the flat file; a processor_config.json without it does not count. */
    assert_int_equal(load_settings("{\"image_processor\": {\"size\": {\"height\": 64, \"width\": 48}}}",
                                   "{\"size\": 32}", &cfg, &err),
                     ST_OK);
    assert_true(cfg.width == 48 && cfg.height == 64);
    assert_int_equal(
        load_settings("{\"image_seq_length\": 256}", "{\"size\": 32, \"resample\": 3}", &cfg, &err), ST_OK);
    assert_true(cfg.width == 32 && cfg.height == 32 && cfg.filter == IMAGE_BICUBIC);
    assert_int_equal(load_settings("{\"image_seq_length\": 256}", NULL, &cfg, &err), ST_NOT_FOUND);
    static const struct {
        const char *text;
        enum status want;
    } bad[] = {{"{\"resample\": 4}", ST_UNSUPPORTED},
               {"{\"resample\": \"bicubic\"}", ST_FORMAT},
               {"{\"size\": {\"shortest_edge\": 224}}", ST_UNSUPPORTED},
               {"{\"size\": {\"height\": 224}}", ST_UNSUPPORTED},
               {"{\"size\": {\"height\": 0, \"width\": 3}}", ST_FORMAT},
               {"{\"size\": 99999999}", ST_FORMAT},
               {"{\"image_mean\": [0.5, 0.5]}", ST_FORMAT},
               {"{\"image_std\": [0.5, 0.5, 0]}", ST_FORMAT},
               {"{\"image_std\": \"x\"}", ST_FORMAT},
               {"{\"rescale_factor\": 0}", ST_FORMAT},
               {"{\"do_resize\": 1}", ST_FORMAT},
               {"{\"do_center_crop\": true}", ST_UNSUPPORTED},
               {"{\"pan_and_scan_max_num_crops\": 1000}", ST_FORMAT},
               {"[1]", ST_FORMAT},
               {"{", ST_FORMAT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.msg[0] = '\0';
        enum status st = load_settings(NULL, bad[i].text, &cfg, &err);
        if (st != bad[i].want)
            fail_msg("%s: %s, want %s", bad[i].text, status_name(st), status_name(bad[i].want));
        assert_true(err.msg[0] != '\0');
    }
    assert_int_equal(family_load_images(dir_path, NULL, "no such family", &cfg, &err), ST_UNSUPPORTED);
}

/* Crops, resize and floats of whole images, against Gemma3ImageProcessor. */
static void test_prep_golden(void **state)
{
    (void)state;
    struct json_doc d;
    load(GOLDEN "prep.json", &d);
    uint32_t rows = json_count(&d, 0), node = json_first(&d, 0);
    assert_true(rows > 15);
    bool crops_seen = false;
    for (uint32_t i = 0; i < rows; i++, node = json_next(&d, node)) {
        /* The settings are an object of the golden file: write its text as the checkpoint's file. */
        uint32_t settings = json_get(&d, node, "settings"), width = json_get(&d, node, "width"),
                 crcs = json_get(&d, node, "crc32");
        const char *text = d.text + d.nodes[settings].at, *end = strchr(text, '}');
        if (strstr(text, "\"size\": {") && strstr(text, "\"size\": {") < end) end = strchr(end + 1, '}');
        write_settings("preprocessor_config.json", text, (size_t)(end + 1 - text));
        struct image_config cfg;
        struct err err = {.msg = ""};
        if (family_load_images(dir_path, NULL, "gemma3", &cfg, &err)) fail_msg("%s", err.msg);
        struct image_u8 src = noise(number(&d, width), number(&d, json_get(&d, node, "height")), 1);
        struct image_prepared p = {0};
        assert_int_equal(image_prep(&cfg, &src, &p, &err), ST_OK);
        assert_int_equal(p.count, json_count(&d, crcs));
        crops_seen |= p.count > 1;
        float lut[768];
        image_lut(&cfg, lut);
        size_t floats = (size_t)cfg.width * cfg.height * 3;
        float *chw = malloc(floats * sizeof *chw);
        for (uint32_t k = 0; k < p.count; k++) {
            image_to_chw(&p.images[k], lut, chw);
            uint32_t got = crc32_of(chw, floats * sizeof *chw), want = number(&d, json_at(&d, crcs, k));
            if (got != want)
                fail_msg("case %u (%u x %u), image %u: crc %08x, want %08x", i, src.width, src.height, k, got,
                         want);
        }
        free(chw);
        image_prepared_free(&p);
        image_u8_free(&src);
    }
    assert_true(crops_seen);
    json_free(&d);
}

/* pixel_values as transformers made them for the golden checkpoints, float by float. */
static void test_prep_checkpoints(void **state)
{
    (void)state;
    static const char *const variants[] = {"vision_f32", "onekv_d24_f32", "released_keys_f32",
                                           "window_small_f32"};
    uint32_t compared = 0;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        char dir[128], path[160], name[64];
        snprintf(dir, sizeof dir, "tests/golden/gemma3/%s", variants[v]);
        snprintf(path, sizeof path, "%s/golden.safetensors", dir);
        struct stf_files *files = NULL;
        struct err err = {.msg = ""};
        if (stf_open_file(path, &files, &err)) fail_msg("%s", err.msg);
        struct image_config cfg;
        if (family_load_images(dir, NULL, "gemma3", &cfg, &err)) fail_msg("%s", err.msg);
        float lut[768];
        image_lut(&cfg, lut);
        for (int c = 0; c < 16; c++) {
            for (int k = 0; k < 8; k++) {
                snprintf(name, sizeof name, "case%d.image%d.rgb", c, k);
                const struct stf_tensor *rgb = stf_find(files, name);
                if (!rgb) continue;
                snprintf(name, sizeof name, "case%d.image%d.pixel_values", c, k);
                const struct stf_tensor *want = stf_find(files, name);
                assert_non_null(want);
                size_t bytes = (size_t)cfg.width * cfg.height * 3 * sizeof(float);
                assert_int_equal(want->bytes, bytes);
                struct image_u8 src = {.width = (uint32_t)rgb->shape[1],
                                       .height = (uint32_t)rgb->shape[0],
                                       .rgb = malloc(rgb->bytes)};
                memcpy(src.rgb, rgb->data, rgb->bytes);
                struct image_prepared p = {0};
                assert_int_equal(image_prep(&cfg, &src, &p, &err), ST_OK);
                assert_int_equal(p.count, 1);
                float *chw = malloc(bytes);
                image_to_chw(&p.images[0], lut, chw);
                assert_memory_equal(chw, want->data, bytes);
                compared++;
                free(chw);
                image_prepared_free(&p);
                image_u8_free(&src);
            }
        }
        stf_close(files);
    }
    assert_true(compared >= 8);
}

static void test_prep_errors(void **state)
{
    (void)state;
    struct image_config cfg;
    struct err err = {.msg = ""};
    assert_int_equal(load_settings(NULL, "{\"do_resize\": false, \"size\": 16}", &cfg, &err), ST_OK);
    struct image_u8 src = noise(16, 16, 1), other = noise(16, 17, 1);
    struct image_prepared p = {0};
    assert_int_equal(image_prep(&cfg, &src, &p, &err), ST_OK);
    assert_memory_equal(p.images[0].rgb, src.rgb, 16 * 16 * 3);
    image_prepared_free(&p);
    assert_int_equal(image_prep(&cfg, &other, &p, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "16 x 17"));
    assert_null(p.images);
    /* Crops that rounding leaves empty are not made. */
    assert_int_equal(
        load_settings(NULL, "{\"do_pan_and_scan\": true, \"pan_and_scan_min_crop_size\": 1, \"size\": 4}",
                      &cfg, &err),
        ST_OK);
    struct image_u8 thin = noise(5, 1, 1);
    assert_int_equal(image_prep(&cfg, &thin, &p, &err), ST_OK);
    assert_int_equal(p.count, 1 + 3);
    image_prepared_free(&p);
    image_u8_free(&thin);
    image_u8_free(&other);
    image_u8_free(&src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_coefficients),
        cmocka_unit_test(test_resize_golden),
        cmocka_unit_test(test_kernels_agree),
        cmocka_unit_test(test_resize_edges),
        cmocka_unit_test(test_lut),
        cmocka_unit_test_setup_teardown(test_config, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_prep_golden, make_dir, remove_dir),
        cmocka_unit_test(test_prep_checkpoints),
        cmocka_unit_test_setup_teardown(test_prep_errors, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Images cut into tiles as transformers' processors cut them (tests/golden/images/tiles.json, made by
 * scripts/reference/make_tiles_images.py). The sources are noise. */
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

#include <jansson.h>

#include <cmocka.h>

static uint32_t crc32_of(const void *data, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static struct image_u8 noise(uint32_t width, uint32_t height)
{
    struct image_u8 out = {.width = width, .height = height, .rgb = malloc((size_t)width * height * 3)};
    uint32_t x = 1;
    for (size_t i = 0; i < (size_t)width * height * 3; i++) {
        x = 1664525u * x + 1013904223u;
        out.rgb[i] = (uint8_t)(x >> 24);
    }
    return out;
}

static enum status settings(const char *family, const char *text, struct image_config *cfg, struct err *err)
{
    char dir[] = "/tmp/kvasir-test-tiles-XXXXXX", path[128];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/preprocessor_config.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    enum status st = family_load_images(dir, NULL, family, cfg, err);
    unlink(path);
    rmdir(dir);
    return st;
}

/* [width, height, rows, columns, count, the last one's width and height, crc32 of each] */
static void check_image(const struct image_config *cfg, const json_t *row, const char *where)
{
    uint32_t v[7];
    for (size_t i = 0; i < 7; i++) v[i] = (uint32_t)json_integer_value(json_array_get(row, i));
    struct image_u8 src = noise(v[0], v[1]);
    struct image_prepared p;
    struct err err = {.msg = ""};
    if (image_prep(cfg, &src, &p, &err)) fail_msg("%s: %u x %u: %s", where, v[0], v[1], err.msg);
    if (p.rows != v[2] || p.columns != v[3] || p.count != v[4])
        fail_msg("%s: %u x %u: %u x %u tiles, %u in all, not %u x %u, %u", where, v[0], v[1], p.rows,
                 p.columns, p.count, v[2], v[3], v[4]);
    assert_int_equal(p.images[p.count - 1].width, v[5]);
    assert_int_equal(p.images[p.count - 1].height, v[6]);
    for (uint32_t i = 0; i < p.count && json_array_size(row) > 7; i++) {
        uint32_t want = (uint32_t)json_integer_value(json_array_get(row, 7 + i)),
                 got = crc32_of(p.images[i].rgb, image_u8_bytes(&p.images[i]));
        if (got != want) fail_msg("%s: %u x %u: tile %u differs", where, v[0], v[1], i);
    }
    image_prepared_free(&p);
    image_u8_free(&src);
}

static void test_tiles(void **state)
{
    json_t *all = json_load_file("tests/golden/images/tiles.json", 0, NULL);
    size_t images = 0;
    (void)state;
    assert_true(json_array_size(all) >= 17);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *c = json_array_get(all, i), *list = json_object_get(c, "images");
        const char *family = json_string_value(json_object_get(c, "family"));
        char *text = json_dumps(json_object_get(c, "settings"), 0), where[64];
        struct image_config cfg;
        struct err err = {.msg = ""};
        if (settings(family, text, &cfg, &err)) fail_msg("%s: %s", text, err.msg);
        snprintf(where, sizeof where, "%s, case %zu", family, i);
        for (size_t k = 0; k < json_array_size(list); k++) check_image(&cfg, json_array_get(list, k), where);
        images += json_array_size(list);
        free(text);
    }
    assert_true(images > 300);
    json_decref(all);
}

static void test_refused(void **state)
{
    static const struct {
        const char *family, *text;
        enum status want;
    } bad[] = {
        {"idefics3", "{\"size\": {\"height\": 8, \"width\": 8}}", ST_UNSUPPORTED},
        {"idefics3", "{\"max_image_size\": {\"longest_edge\": 0}}", ST_FORMAT},
        {"internvl", "{\"size\": {\"height\": 8, \"width\": 9}}", ST_UNSUPPORTED},
        {"internvl", "{\"max_patches\": 1000}", ST_FORMAT},
        {"lfm2_vl", "{\"min_image_tokens\": 9, \"max_image_tokens\": 8}", ST_FORMAT},
        {"lfm2_vl", "{\"min_tiles\": 11}", ST_FORMAT},
        {"lfm2_vl", "{\"tile_size\": 40}", ST_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct image_config cfg;
        struct err err = {.msg = ""};
        if (settings(bad[i].family, bad[i].text, &cfg, &err) != bad[i].want)
            fail_msg("%s: %s: %s", bad[i].family, bad[i].text, err.msg);
    }
    /* More tiles than are taken: a clear refusal, before they are made. */
    struct image_config cfg;
    struct err err = {.msg = ""};
    assert_int_equal(settings("idefics3",
                              "{\"max_image_size\": {\"longest_edge\": 2}, \"size\": {\"longest_edge\": 64}}",
                              &cfg, &err),
                     ST_OK);
    struct image_u8 src = noise(50, 50);
    struct image_prepared p;
    assert_int_equal(image_prep(&cfg, &src, &p, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "1024 tiles"));
    image_u8_free(&src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiles), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("image_tiles", tests, NULL, NULL);
}

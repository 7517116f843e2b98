/* Images larger than the plan has set memory aside for, encoded in pieces of layers between slices of other
 * encodes: neither must notice the other; and where memory is short the large image is refused and the others
 * go on. Random weights. */
#include "engine/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Patches of 8, 2 x 2 to a token, windows of 3 x 3 tokens in all layers: the work grows with the patches, not
 * with their square.
 */
static const char config[] =
    "{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":1,"
    "\"vocab_size\":64,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"image_token_id\":5,\"max_position_embeddings\":"
    "8192,"
    "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[4,2,2]},\"vision_config\":{\"depth\":3,\"hidden_"
    "size\":16,"
    "\"intermediate_size\":20,\"num_heads\":2,\"out_hidden_size\":32,\"patch_size\":8,\"window_size\":48,"
    "\"fullatt_block_indexes\":[]}}";
#define PLANNED 16384u /* patches */

static struct engine *open_engine(void)
{
    char dir[] = "/tmp/kvasir-test-XXXXXX", path[64];
    struct err err = {""};
    struct engine *e = NULL;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    struct engine_options opt = {.model_dir = dir,
                                 .threads = 2,
                                 .kv_bytes = 1u << 20,
                                 .sequences_max = 2,
                                 .batch_tokens_max = 64,
                                 .random_weights = true};
    enum status st = engine_open(&opt, &e, &err);
    unlink(path);
    rmdir(dir);
    if (st) fail_msg("%s", err.msg);
    assert_int_equal(e->v.rows, VISION_ROWS_MAX);
    return e;
}

static struct image_u8 make_image(uint32_t width, uint32_t height, uint32_t seed)
{
    struct image_u8 img = {.width = width, .height = height, .rgb = malloc((size_t)width * height * 3)};
    assert_non_null(img.rgb);
    for (size_t i = 0; i < image_u8_bytes(&img); i++) {
        seed = seed * 1664525u + 1013904223u;
        img.rgb[i] = (uint8_t)(seed >> 24);
    }
    return img;
}

static struct engine_features *begin(struct engine *e, const struct image_u8 *img)
{
    struct engine_features *f = NULL;
    struct err err = {""};
    if (engine_features_create(e, img, NULL, &f, &err)) fail_msg("%s", err.msg);
    return f;
}

static bool slice(struct engine *e, struct engine_features *f, uint32_t layers)
{
    struct err err = {""};
    bool done = false;
    if (engine_features_step(e, f, layers, &done, &err)) fail_msg("%s", err.msg);
    return done;
}

static void same_rows(const struct engine *e, const struct engine_features *a,
                      const struct engine_features *b)
{
    assert_int_equal(a->tokens, b->tokens);
    assert_memory_equal(a->rows, b->rows, (size_t)a->tokens * e->net.desc.hidden * sizeof(float));
}

static void test_growth(void **state)
{
    struct engine *e = open_engine();
    struct image_u8 small = make_image(48, 80, 1), large = make_image(1056, 1024, 2);
    struct engine_features *alone = begin(e, &small), *beside = begin(e, &small), *big, *again;
    (void)state;
    while (!slice(e, alone, 0)) {
    }
    assert_false(slice(e, beside, 1));
    big = begin(e, &large); /* 132 x 128 patches */
    assert_true(big->patches > PLANNED && big->row_chunk < big->patches);
    assert_false(slice(e, big, 1));
    assert_true(big->layers_done == 0 && (big->row > 0 || big->attending)); /* amidst a layer */
    assert_false(slice(e, beside, 1));
    while (!slice(e, big, 2)) (void)(beside->done || slice(e, beside, 1));
    assert_true(beside->done);
    same_rows(e, alone, beside);
    again = begin(e, &large);
    while (!slice(e, again, 0)) {
    }
    same_rows(e, big, again);
    size_t bytes = engine_features_bytes(big);
    void *host = malloc(bytes);
    struct engine_features *back = NULL;
    struct err err = {""};
    engine_features_read(e, big, host);
    assert_int_equal(engine_features_write(e, host, bytes - 1, &back, &err), ST_FORMAT);
    assert_int_equal(engine_features_write(e, host, bytes, &back, &err), ST_OK);
    assert_true(back->done && engine_features_bytes(back) == bytes);
    same_rows(e, big, back);
    engine_features_free(e, back);
    free(host);
    engine_features_free(e, alone);
    engine_features_free(e, beside);
    engine_features_free(e, big);
    engine_features_free(e, again);
    image_u8_free(&small);
    image_u8_free(&large);
    engine_close(e);
}

static void test_no_room(void **state)
{
    struct engine *e = open_engine();
    struct image_u8 small = make_image(48, 80, 1), large = make_image(1056, 1024, 2);
    struct engine_features *f = begin(e, &small), *big = NULL;
    struct err err = {""};
    (void)state;
    struct engine_caps caps;
    assert_true(e->plan.spare > 0);
    engine_caps(e, &caps);
    assert_int_equal(caps.image_tokens_max, 0);
    e->plan.spare = 0;
    engine_caps(e, &caps);
    assert_int_equal(caps.image_tokens_max, PLANNED / 4);
    e->plan.spare = 1 << 20;
    engine_caps(e, &caps);
    assert_in_range(caps.image_tokens_max, PLANNED / 4 + 1, 8191);
    e->plan.spare = 1 << 14;
    assert_int_equal(engine_features_create(e, &large, NULL, &big, &err), ST_TOO_LARGE);
    assert_null(big);
    assert_non_null(strstr(err.msg, "16896 patches"));
    while (!slice(e, f, 1)) {
    }
    engine_features_free(e, f);
    image_u8_free(&small);
    image_u8_free(&large);
    engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth), cmocka_unit_test(test_no_room)};
    return cmocka_run_group_tests_name("engine_images", tests, NULL, NULL);
}

/* Prompt building: golden prompts of the chat cases with images (ids and spans as transformers' processor
 * makes them), placeholders that a user typed, crops, counts that don't match, token-id prompts. */
#include "config/base/json.h"
#include "engine/prompt/prompt_build.h"
#include "tests/lib/prompt_ids.h"
#include "tests/lib/golden.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ROOM 100000u

struct fixture {
    struct engine *e;
    struct tokenizer *t;
    const struct model_info *m;
    struct golden g;
    struct json_doc d;
};

static void open_fixture(struct fixture *f, const char *variant)
{
    char dir[600], path[700];
    struct err err;
    golden_dir(dir, sizeof dir, "gemma3", variant);
    struct engine_options opt = {
        .model_dir = dir, .threads = 1, .kv_bytes = 4u << 20, .sequences_max = 2, .batch_tokens_max = 64};
    if (engine_open(&opt, &f->e, &err) || tok_load(dir, &f->t, &err)) fail_msg("%s", err.msg);
    f->m = engine_model(f->e);
    golden_open(&f->g, "gemma3", variant, f->m->image.present ? &f->m->image.config : NULL);
    snprintf(path, sizeof path, "%s/golden.json", dir);
    if (json_doc_load(path, 1u << 24, &f->d, &err)) fail_msg("%s", err.msg);
}

static void close_fixture(struct fixture *f)
{
    json_free(&f->d);
    golden_close(&f->g);
    tok_free(f->t);
    engine_close(f->e);
}

static struct image_u8 small_image(void)
{
    struct image_u8 p = {.width = 2, .height = 2, .rgb = calloc(12, 1)};
    return p;
}

static void test_golden_prompts(void **state)
{
    static const char *const variants[] = {"vision_f32",        "window_small_f32", "onekv_d24_f32",
                                           "released_keys_f32", "vision_bf16",      "text_f32",
                                           "untied_f32"};
    uint32_t with_images = 0;
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        struct fixture f;
        open_fixture(&f, variants[v]);
        uint32_t list = json_get(&f.d, 0, "cases");
        for (uint32_t n = 0; n < f.g.case_count; n++) {
            const struct golden_case *c = &f.g.cases[n];
            uint32_t node = json_at(&f.d, list, n);
            bool raw = json_str_eq(&f.d, json_get(&f.d, node, "kind"), "raw");
            size_t len;
            char *text = json_str_dup(&f.d, json_get(&f.d, node, "rendered"), &len);
            uint8_t keys[GOLDEN_IMAGES_MAX][32];
            struct image_u8 images[GOLDEN_IMAGES_MAX];
            struct prompt_image prompt_images[GOLDEN_IMAGES_MAX];
            for (uint32_t i = 0; i < c->image_count; i++) {
                images[i] = small_image();
                memset(keys[i], (int)i + 1, 32);
                prompt_images[i] = (struct prompt_image){
                    .images = &images[i], .keys = (const uint8_t(*)[32]) & keys[i], .count = 1};
            }
            struct tok_run run = {text, len, TOK_CONTROL_ALL};
            struct prompt p;
            struct err err = {""};
            if (prompt_build(f.m, f.t, &run, 1, raw, prompt_images, c->image_count, ROOM, &p, &err))
                fail_msg("%s: %s", c->name, err.msg);
            assert_int_equal(p.token_count, c->prompt_count);
            assert_memory_equal(p.tokens, c->prompt, c->prompt_count * sizeof *p.tokens);
            assert_int_equal(p.span_count, c->image_count);
            for (uint32_t i = 0; i < p.span_count; i++) {
                assert_int_equal(p.spans[i].begin, c->images[i].begin);
                assert_int_equal(p.spans[i].end, c->images[i].end);
                assert_true(p.spans[i].rule == SPAN_BIDIRECTIONAL);
                assert_int_equal(p.spans[i].key[7], i + 1);
                assert_non_null(p.spans[i].pixels.rgb);
                assert_null(images[i].rgb);
                with_images++;
            }
            prompt_free(&p);
            free(text);
        }
        close_fixture(&f);
    }
    assert_true(with_images >= 10);
}

#define RUN(text, control)                                                                                   \
    {                                                                                                        \
        text, sizeof(text) - 1, control                                                                      \
    }

static void expect_refused(const struct fixture *f, const struct tok_run *runs, size_t n,
                           uint32_t prompt_images, const char *what)
{
    struct image_u8 images[4];
    uint8_t keys[4][32] = {{0}};
    struct prompt_image pics[4];
    struct prompt p;
    struct err err = {""};
    for (uint32_t i = 0; i < prompt_images; i++) {
        images[i] = small_image();
        pics[i] =
            (struct prompt_image){.images = &images[i], .keys = (const uint8_t(*)[32]) & keys[i], .count = 1};
    }
    assert_int_equal(prompt_build(f->m, f->t, runs, n, false, pics, prompt_images, ROOM, &p, &err),
                     ST_INVALID);
    if (!strstr(err.msg, what)) fail_msg("\"%s\" doesn't say \"%s\"", err.msg, what);
    for (uint32_t i = 0; i < prompt_images; i++) {
        assert_non_null(images[i].rgb); /* still the caller's */
        free(images[i].rgb);
    }
}

static void test_typed_markers(void **state)
{
    struct fixture f;
    (void)state;
    open_fixture(&f, "vision_f32");
    const struct tok_run typed[] = {RUN("<bos><start_of_turn>user\n", TOK_CONTROL_ALL),
                                    RUN("what is <start_of_image> or <image_soft_token>?", TOK_CONTROL_NONE),
                                    RUN("<end_of_turn>\n", TOK_CONTROL_ALL)};
    struct prompt p;
    struct err err;
    assert_int_equal(prompt_build(f.m, f.t, typed, 3, false, NULL, 0, ROOM, &p, &err), ST_OK);
    for (uint32_t i = 0; i < p.token_count; i++)
        assert_true(p.tokens[i] != f.m->image.placeholder_id && p.tokens[i] != 509);
    assert_int_equal(p.span_count, 0);
    prompt_free(&p);
    expect_refused(&f, typed, 3, 1, "0 image placeholders");
    /* The border between template text and typed text cuts a marker: it is none. */
    const struct tok_run half[] = {RUN("<bos><start_of", TOK_CONTROL_ALL), RUN("_image>", TOK_CONTROL_NONE)};
    expect_refused(&f, half, 2, 1, "0 image placeholders");
    const struct tok_run two[] = {RUN("<bos><start_of", TOK_CONTROL_ALL), RUN("", TOK_CONTROL_NONE),
                                  RUN("_image>x<start_of_image>", TOK_CONTROL_ALL)};
    expect_refused(&f, two, 3, 1, "2 image placeholders");
    const struct tok_run placeholder[] = {RUN("<bos><image_soft_token>", TOK_CONTROL_ALL)};
    expect_refused(&f, placeholder, 1, 0, "<image_soft_token>");
    const struct tok_run nothing[] = {RUN("", TOK_CONTROL_ALL)};
    expect_refused(&f, nothing, 1, 0, "empty");
    close_fixture(&f);
    open_fixture(&f, "text_f32");
    const struct tok_run plain[] = {RUN("<bos>x", TOK_CONTROL_ALL)};
    expect_refused(&f, plain, 1, 1, "takes no images");
    close_fixture(&f);
}

/* An image with two crops equals the processor's sentence written out. */
static void test_crops(void **state)
{
    struct fixture f;
    (void)state;
    open_fixture(&f, "vision_f32");
    char one[1024] = "\n\n<start_of_image>", whole[8192];
    for (uint32_t i = 0; i < f.m->image.tokens; i++) strcat(one, "<image_soft_token>");
    strcat(one, "<end_of_image>\n\n");
    snprintf(whole, sizeof whole,
             "<bos>See: Here is the original image %s and here are some crops to help you see better %s %s.",
             one, one, one);
    struct tok_run all = {whole, strlen(whole), TOK_CONTROL_ALL};
    struct tok_ids want;
    struct err err;
    assert_int_equal(tok_encode(f.t, &all, 1, false, ROOM, &want, &err), ST_OK);
    const struct tok_run runs[] = {RUN("<bos>See: ", TOK_CONTROL_ALL),
                                   RUN("<start_of_image>.", TOK_CONTROL_ALL)};
    struct image_u8 images[3] = {small_image(), small_image(), small_image()};
    uint8_t keys[3][32] = {{1}, {2}, {3}};
    struct prompt_image pic = {.images = images, .keys = (const uint8_t(*)[32])keys, .count = 3};
    struct prompt p;
    assert_int_equal(prompt_build(f.m, f.t, runs, 2, false, &pic, 1, ROOM, &p, &err), ST_OK);
    assert_int_equal(p.token_count, want.count);
    assert_memory_equal(p.tokens, want.ids, want.count * sizeof *p.tokens);
    assert_int_equal(p.span_count, 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(p.spans[i].key[0], i + 1);
    prompt_free(&p);
    images[0] = small_image();
    images[1] = small_image();
    images[2] = small_image();
    assert_int_equal(prompt_build(f.m, f.t, runs, 2, false, &pic, 1, 3 * f.m->image.tokens - 1, &p, &err),
                     ST_TOO_LARGE);
    assert_int_equal(prompt_build(f.m, f.t, runs, 2, false, &pic, 1, 3 * f.m->image.tokens + 5, &p, &err),
                     ST_TOO_LARGE);
    for (int i = 0; i < 3; i++) free(images[i].rgb);
    tok_ids_free(&want);
    close_fixture(&f);
}

static void test_ids(void **state)
{
    struct fixture f;
    struct prompt p;
    struct err err;
    (void)state;
    open_fixture(&f, "vision_f32");
    const uint32_t good[] = {2, 5, 500}, placeholder[] = {2, 511}, beyond[] = {2, 512};
    assert_int_equal(prompt_from_ids(f.m, good, 3, &p, &err), ST_OK);
    assert_int_equal(p.token_count, 3);
    prompt_free(&p);
    assert_int_equal(prompt_from_ids(f.m, placeholder, 2, &p, &err), ST_INVALID);
    assert_int_equal(prompt_from_ids(f.m, beyond, 2, &p, &err), ST_INVALID);
    assert_int_equal(prompt_from_ids(f.m, good, 0, &p, &err), ST_INVALID);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_prompts),
                                       cmocka_unit_test(test_typed_markers), cmocka_unit_test(test_crops),
                                       cmocka_unit_test(test_ids)};
    return cmocka_run_group_tests_name("prompt", tests, NULL, NULL);
}

/* Prompts of the Qwen-VL families: ids, spans, grids and rope offsets against transformers' processors
 * (tests/golden/images/qwen_prompts.json, made by scripts/reference/make_qwen_images.py), the positions of
 * specs qwen-vl 5.5, placeholders, and what is refused. */
#include "config/base/json.h"
#include "engine/families/families.h"
#include "engine/prompt/image_prep.h"
#include "engine/model/model_desc.h"
#include "engine/prompt/prompt_build.h"
#include "tests/lib/prompt_ids.h"
#include "server/media/image_parts.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 100000, IMAGES = 6 };

/* What a checkpoint folder says about images, without its weights. */
struct fixture {
    struct hf_config *config;
    struct model_desc desc;
    struct model_info m;
    struct tokenizer *t;
};

static void open_fixture(struct fixture *f, const char *folder)
{
    char dir[200];
    struct err err = {""};
    snprintf(dir, sizeof dir, "tests/golden/qwen/%s", folder);
    *f = (struct fixture){.config = calloc(1, sizeof *f->config)};
    if (family_load(dir, NULL, f->config, &f->desc, &err) || tok_load(dir, &f->t, &err))
        fail_msg("%s", err.msg);
    f->m = (struct model_info){.family = f->config->model_type, .vocab_size = 100000, .image = f->desc.image};
    if (family_load_images(dir, NULL, f->m.family, &f->m.image.config, &err)) fail_msg("%s", err.msg);
    assert_true(f->m.image.present && f->m.image.grid && !f->m.image.tokens && !f->m.image.rule);
}

static void close_fixture(struct fixture *f)
{
    tok_free(f->t);
    model_desc_free(&f->desc);
    free(f->config);
}

/* The generator's `noise` as a BMP file, whose rows stand bottom up in blue, green, red. */
static uint8_t *noise_bmp(uint32_t width, uint32_t height, size_t *len)
{
    size_t row = (3 * (size_t)width + 3) / 4 * 4;
    *len = 54 + row * height;
    uint8_t *b = calloc(1, *len);
    assert_non_null(b);
    memcpy(b, "BM", 2);
    uint32_t head[] = {(uint32_t)*len,           0, 54, 40, width, height, 1 | 24u << 16, 0,
                       (uint32_t)(row * height), 0, 0,  0,  0},
             x = 1;
    memcpy(b + 2, head, sizeof head);
    for (size_t y = 0; y < height; y++)
        for (size_t k = 0; k < 3 * (size_t)width; k++) {
            x = 1664525u * x + 1013904223u;
            b[54 + (height - 1 - y) * row + k / 3 * 3 + 2 - k % 3] = (uint8_t)(x >> 24);
        }
    return b;
}

static uint8_t *read_file(const char *name, size_t *len)
{
    char path[200];
    snprintf(path, sizeof path, "tests/golden/images/videos/%s", name);
    FILE *f = fopen(path, "rb");
    uint8_t *b = malloc(1 << 20);
    assert_true(f && b);
    *len = fread(b, 1, 1 << 20, f);
    fclose(f);
    return b;
}

/* Images of one prompt. */
struct album {
    struct image_prepared prepared[IMAGES];
    struct image_parts parts[IMAGES];
    struct prompt_image list[IMAGES];
    uint32_t count;
};

static void album_add(struct album *a, const struct fixture *f, bool video, uint8_t *bytes, size_t len)
{
    const struct image_ask ask = {.video = video};
    struct err err = {""};
    uint32_t i = a->count++;
    assert_true(i < IMAGES);
    if (image_from_file(&f->m.image, f->m.family, &ask, bytes, len, &a->prepared[i], &a->parts[i], &err))
        fail_msg("%s", err.msg);
    a->list[i] = (struct prompt_image){.images = a->prepared[i].images,
                                       .keys = (const uint8_t(*)[32])a->parts[i].keys,
                                       .count = a->parts[i].count,
                                       .video = video,
                                       .grids = a->parts[i].grids,
                                       .stamps = a->parts[i].stamps};
    free(bytes);
}

static void album_free(struct album *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        image_prepared_free(&a->prepared[i]);
        image_parts_free(&a->parts[i]);
    }
    *a = (struct album){0};
}

static uint32_t number(const struct json_doc *d, uint32_t node)
{
    uint64_t v = 0;
    assert_true(json_uint(d, node, &v));
    return (uint32_t)v;
}

/* Images and videos in the order of their placeholders in the text. */
static void album_of(struct album *a, const struct fixture *f, const struct json_doc *d, uint32_t row,
                     const char *text)
{
    uint32_t images = json_get(d, row, "images"), videos = json_get(d, row, "videos"), i = 0, v = 0;
    for (const char *at = text; (at = strchr(at, '<')) != NULL; at++) {
        size_t len;
        if (strncmp(at, "<|image_pad|>", 13) == 0) {
            uint32_t size = json_at(d, images, i++);
            uint8_t *b = noise_bmp(number(d, json_at(d, size, 0)), number(d, json_at(d, size, 1)), &len);
            album_add(a, f, false, b, len);
        } else if (strncmp(at, "<|video_pad|>", 13) == 0) {
            char *name = json_str_dup(d, json_at(d, videos, v++), &len);
            uint8_t *b = read_file(name, &len);
            album_add(a, f, true, b, len);
            free(name);
        }
    }
    assert_true(i == json_count(d, images) && v == json_count(d, videos));
}

/* Grids as the reference has them (in patches), where it keeps the frames of a video together. */
static void check_grids(const struct fixture *f, const struct album *a, const struct json_doc *d,
                        uint32_t row)
{
    uint32_t images = json_get(d, row, "grids"), videos = json_get(d, row, "video_grids"),
             seconds = json_get(d, row, "seconds"), seen[2] = {0, 0};
    uint32_t m = f->m.image.config.merge;
    for (uint32_t k = 0; k < a->count; k++) {
        const struct prompt_image *p = &a->list[k];
        uint32_t n = seen[p->video]++, grid = json_at(d, p->video ? videos : images, n);
        const struct prompt_grid *g = &p->grids[0];
        assert_int_equal(g->t * p->count, number(d, json_at(d, grid, 0)));
        assert_int_equal(g->h * m, number(d, json_at(d, grid, 1)));
        assert_int_equal(g->w * m, number(d, json_at(d, grid, 2)));
        double s = 0;
        if (p->video && g->t > 1 && json_count(d, seconds))
            assert_true(json_double(d, json_at(d, seconds, n), &s));
        else if (p->video && g->t > 1) s = 1;
        if (p->video && f->m.image.tokens_per_second > 0) s *= f->m.image.tokens_per_second;
        if ((float)g->seconds != (float)s) /* the reference keeps it as a float32 */
            fail_msg("%s: %.17g, want %.17g (tps %g)", f->m.family, g->seconds, s,
                     f->m.image.tokens_per_second);
    }
}

static void check_spans(const struct album *a, const struct prompt *p)
{
    uint32_t n = 0, end = 0;
    for (uint32_t k = 0; k < a->count; k++)
        for (uint32_t i = 0; i < a->list[k].count; i++, n++) {
            const struct prompt_span *m = &p->spans[n];
            const struct prompt_grid *g = &a->list[k].grids[i];
            assert_true(m->begin >= end && m->end - m->begin == g->t * g->h * g->w && !m->rule);
            assert_memory_equal(m->key, a->list[k].keys[i], 32);
            assert_memory_equal(&m->grid, g, sizeof *g);
            assert_non_null(m->pixels.rgb);
            end = m->end;
        }
    assert_int_equal(n, p->span_count);
}

static void test_golden(void **state)
{
    (void)state;
    struct json_doc d;
    struct err err = {""};
    uint32_t deltas = 0, split = 0;
    if (json_doc_load("tests/golden/images/qwen_prompts.json", 1 << 20, &d, &err)) fail_msg("%s", err.msg);
    for (uint32_t i = 0, row = json_first(&d, 0); i < json_count(&d, 0); i++, row = json_next(&d, row)) {
        size_t len;
        char *folder = json_str_dup(&d, json_get(&d, row, "folder"), &len),
             *text = json_str_dup(&d, json_get(&d, row, "text"), &len);
        struct fixture f;
        struct album a = {.count = 0};
        struct prompt p;
        open_fixture(&f, folder);
        album_of(&a, &f, &d, row, text);
        struct tok_run run = {text, len, TOK_CONTROL_ALL};
        if (prompt_build(&f.m, f.t, &run, 1, false, a.list, a.count, ROOM, &p, &err))
            fail_msg("%s, \"%s\": %s", folder, text, err.msg);
        uint32_t ids = json_get(&d, row, "ids");
        for (uint32_t k = 0; k < p.token_count && k < json_count(&d, ids); k++)
            if (p.tokens[k] != number(&d, json_at(&d, ids, k)))
                fail_msg("%s, \"%s\": token %u is %u", folder, text, k, p.tokens[k]);
        assert_int_equal(p.token_count, json_count(&d, ids));
        check_grids(&f, &a, &d, row);
        check_spans(&a, &p);
        split += p.span_count > a.count;
        int64_t delta;
        uint32_t node = json_get_live(&d, row, "delta");
        if (node != JSON_NONE) {
            assert_true(json_int(&d, node, &delta));
            assert_int_equal(p.spans[p.span_count - 1].mrope_delta, delta);
            deltas++;
        }
        prompt_free(&p);
        album_free(&a);
        close_fixture(&f);
        free(folder);
        free(text);
    }
    assert_true(deltas == 9 && split == 2);
    json_free(&d);
}

#define RUN(text, control)                                                                                   \
    {                                                                                                        \
        text, sizeof(text) - 1, control                                                                      \
    }
static const uint8_t key[1][32] = {{1}};

/* An image that was not decoded, of a given grid. */
static struct prompt_image known(const struct prompt_grid *grid, bool video)
{
    return (struct prompt_image){.keys = key, .count = 1, .grids = grid, .video = video};
}

/* The table of specs qwen-vl 5.5, images at the edges of a prompt, and videos whose time runs faster or
 * slower than their tokens. */
static void test_positions(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "qwen2_5_vl_f32");
    static const struct {
        const char *text;
        struct prompt_grid grids[3];
        uint32_t count, begin[3];
        bool video;
        int32_t offset[3];
    } cases[] = {
        {"\n\n\n\n<|image_pad|>\n\n\n\n\n\n\n<|image_pad|>\n\n",
         {{1, 4, 6, 0, false}, {1, 8, 2, 0, false}},
         2,
         {4, 35},
         false,
         {-18, -26}},
        {"<|image_pad|>", {{1, 4, 6, 0, false}}, 1, {0}, false, {-18}},
        {"<|image_pad|><|image_pad|><|image_pad|>",
         {{1, 1, 1, 0, false}, {1, 2, 8, 0, false}, {1, 4, 4, 0, false}},
         3,
         {0, 1, 17},
         false,
         {0, -8, -20}},
        {"\n<|video_pad|>\n", {{3, 2, 2, 1, false}}, 1, {1}, true, {3 - 12}},
        {"\n<|video_pad|>\n", {{3, 2, 2, 50, false}}, 1, {1}, true, {101 - 12}},
        {"\n<|video_pad|>\n", {{4, 2, 2, 0.7, false}}, 1, {1}, true, {3 - 16}}, /* floor(3 * 0.7) = 2 */
        {"\n<|video_pad|>\n", {{4, 5, 2, 0.7, false}}, 1, {1}, true, {5 - 40}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct prompt_image list[3];
        struct prompt p;
        struct err err = {""};
        for (uint32_t k = 0; k < cases[i].count; k++) list[k] = known(&cases[i].grids[k], cases[i].video);
        char text[400] = "";
        for (const char *s = cases[i].text; *s; s++) /* tokens that never merge */
            *s == '\n' ? strcat(text, "<|im_end|>") : strncat(text, s, 1);
        struct tok_run run = {text, strlen(text), TOK_CONTROL_ALL};
        if (prompt_build(&f.m, f.t, &run, 1, false, list, cases[i].count, ROOM, &p, &err))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(p.span_count, cases[i].count);
        for (uint32_t k = 0; k < p.span_count; k++) {
            assert_int_equal(p.spans[k].begin, cases[i].begin[k]);
            if (p.spans[k].mrope_delta != cases[i].offset[k])
                fail_msg("case %zu, image %u: offset %d, want %d", i, k, p.spans[k].mrope_delta,
                         cases[i].offset[k]);
            assert_null(p.spans[k].pixels.rgb);
        }
        prompt_free(&p);
    }
    close_fixture(&f);
}

static void expect(const struct fixture *f, const struct tok_run *runs, size_t n, struct prompt_image *list,
                   uint32_t count, uint32_t room, enum status want, const char *what)
{
    struct prompt p;
    struct err err = {""};
    enum status st = prompt_build(&f->m, f->t, runs, n, false, list, count, room, &p, &err);
    if (st != want || !strstr(err.msg, what))
        fail_msg("%s, \"%s\": want %s, \"%s\"", status_name(st), err.msg, status_name(want), what);
}

static void test_refused(void **state)
{
    (void)state;
    struct fixture f;
    static const struct prompt_grid small = {1, 2, 2, 0, false}, none = {1, 0, 2, 0, false},
                                    huge = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, false},
                                    wide = {1, 300, 300, 0, false}, forever = {1000, 1, 1, 1e12, false},
                                    odd = {2, 1, 1, -1.0, false}, inexact = {1000, 1, 1, 16800, false},
                                    most = {1000, 1, 1, 16700, false}; /* 2^24 lies between */
    const double stamp = 0.5, late = 1e300;
    struct prompt_image one = known(&small, false), clip = known(&small, true), bad;
    const struct tok_run place[] = {RUN("x<|image_pad|>y", TOK_CONTROL_ALL)},
                         film[] = {RUN("x<|vision_start|><|video_pad|><|vision_end|>y", TOK_CONTROL_ALL)},
                         typed[] = {RUN("x", TOK_CONTROL_ALL),
                                    RUN("<|image_pad|> <|video_pad|>", TOK_CONTROL_NONE)},
                         both[] = {RUN("<|vision_start|><|video_pad|><|vision_end|><|image_pad|>",
                                       TOK_CONTROL_ALL)};
    open_fixture(&f, "qwen2_vl_f32");
    expect(&f, place, 1, NULL, 0, ROOM, ST_INVALID, "1 image placeholder");
    expect(&f, typed, 2, &one, 1, ROOM, ST_INVALID, "0 image placeholders");
    expect(&f, film, 1, &one, 1, ROOM, ST_INVALID, "0 image placeholders");
    expect(&f, film, 1, NULL, 0, ROOM, ST_INVALID, "1 video placeholder");
    struct prompt_image pair[2] = {one, clip};
    expect(&f, both, 1, pair, 2, ROOM, ST_INVALID, "order");
    expect(&f, place, 1, &one, 1, 3, ST_TOO_LARGE, "limit of 3 tokens");
    expect(&f, place, 1, &one, 1, 5, ST_TOO_LARGE, "");
    bad = known(&none, false);
    expect(&f, place, 1, &bad, 1, ROOM, ST_INVALID, "no tokens");
    bad.grids = NULL;
    expect(&f, place, 1, &bad, 1, ROOM, ST_INVALID, "no tokens");
    bad = known(&huge, false);
    expect(&f, place, 1, &bad, 1, UINT32_MAX, ST_TOO_LARGE, "limit");
    bad = known(&wide, false);
    expect(&f, place, 1, &bad, 1, 89999, ST_TOO_LARGE, "limit");
    bad = known(&forever, true);
    expect(&f, film, 1, &bad, 1, ROOM, ST_INVALID, "too long");
    bad = known(&inexact, true);
    expect(&f, film, 1, &bad, 1, ROOM, ST_INVALID, "too long");
    bad = known(&most, true);
    const struct tok_run two[] = {
        RUN("<|vision_start|><|video_pad|><|vision_end|><|video_pad|>", TOK_CONTROL_ALL)};
    struct prompt_image twice[2] = {bad, bad};
    expect(&f, two, 1, twice, 2, ROOM, ST_INVALID, "too long");
    bad = known(&odd, true);
    expect(&f, film, 1, &bad, 1, ROOM, ST_INVALID, "too long");
    /* What a user typed is text. */
    struct prompt p;
    struct err err = {""};
    assert_int_equal(prompt_build(&f.m, f.t, typed, 2, false, NULL, 0, ROOM, &p, &err), ST_OK);
    for (uint32_t i = 0; i < p.token_count; i++)
        assert_true(p.tokens[i] != f.m.image.placeholder_id && p.tokens[i] != f.m.image.video_placeholder_id);
    prompt_free(&p);
    bad = known(&most, true);
    assert_int_equal(prompt_build(&f.m, f.t, film, 1, false, &bad, 1, ROOM, &p, &err), ST_OK);
    assert_int_equal(p.spans[0].mrope_delta, 999 * 16700 + 1 - 1000);
    prompt_free(&p);
    const uint32_t placeholder[] = {f.m.image.placeholder_id},
                   placeholder_video[] = {f.m.image.video_placeholder_id};
    assert_int_equal(prompt_from_ids(&f.m, placeholder, 1, &p, &err), ST_INVALID);
    assert_int_equal(prompt_from_ids(&f.m, placeholder_video, 1, &p, &err), ST_INVALID);
    struct model_info plain = f.m;
    plain.image.video_marker = NULL;
    struct fixture without = f;
    without.m = plain;
    expect(&without, film, 1, &clip, 1, ROOM, ST_INVALID, "takes no videos");
    close_fixture(&f);
    open_fixture(&f, "qwen3_vl_f32");
    expect(&f, film, 1, &clip, 1, ROOM, ST_INVALID, "no times");
    clip.stamps = &late;
    expect(&f, film, 1, &clip, 1, ROOM, ST_INVALID, "out of range");
    clip.stamps = &stamp;
    close_fixture(&f);
}

/* Where tokens came from, with images of several lengths. */
static void test_origins(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, "qwen3_vl_f32");
    static const struct prompt_grid a = {1, 2, 3, 0, false}, b = {1, 1, 2, 0, false};
    struct prompt_image list[] = {known(&a, false), known(&b, false)};
    const struct tok_run runs[] = {
        RUN("<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>", TOK_CONTROL_ALL),
        RUN("hello", TOK_CONTROL_NONE),
        RUN("<|vision_start|><|image_pad|><|vision_end|><|im_end|>", TOK_CONTROL_ALL)};
    const uint32_t tags[] = {0, 7, 0};
    struct prompt p;
    struct err err = {""};
    struct prompt_origin *o = NULL;
    size_t count = 0;
    assert_int_equal(prompt_build(&f.m, f.t, runs, 3, false, list, 2, ROOM, &p, &err), ST_OK);
    assert_int_equal(prompt_origins(&f.m, f.t, runs, tags, 3, list, 2, &p, &o, &count, &err), ST_OK);
    const uint32_t want[] = {0, PROMPT_TAG_IMAGE, 0, 7, 0, PROMPT_TAG_IMAGE | 1, 0};
    assert_int_equal(count, 7);
    for (size_t i = 0; i < count; i++) assert_int_equal(o[i].tag, want[i]);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(o[1 + 4 * k].token, p.spans[k].begin);
        assert_int_equal(o[2 + 4 * k].token, p.spans[k].end);
    }
    free(o);
    prompt_free(&p);
    close_fixture(&f);
}

int main(void)
{
    if (sodium_init() < 0) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_positions),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_origins)};
    return cmocka_run_group_tests_name("qwen_prompt", tests, NULL, NULL);
}

/* The prompts of tests/golden/qwen, llama, tiles and native from their messages on: template, tokenizer and
 * prompt_build give transformers' text, ids, spans, grids and positions, for every case of every variant; and
 * the tokenizer gives the text of the greedy ids. */
#include "engine/families/families.h"
#include "engine/prompt/image_prep.h"
#include "engine/model/model_desc.h"
#include "engine/prompt/prompt_build.h"
#include "server/chat/template.h"
#include "tests/lib/server/chat.h"
#include "tests/lib/golden.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 4096, FRAMES_MAX = 16 };

/* A checkpoint folder without its weights, and what transformers makes of it. */
struct fixture {
    struct hf_config *config;
    struct model_desc desc;
    struct model_info m;
    struct tokenizer *t;
    struct template *chat;
    struct golden g;
    json_t *about; /* golden.json */
};

static void open_fixture(struct fixture *f, const char *folder, const char *variant)
{
    char dir[600], path[640];
    struct err err = {""};
    golden_dir(dir, sizeof dir, folder, variant);
    *f = (struct fixture){.config = calloc(1, sizeof *f->config)};
    if (family_load(dir, NULL, f->config, &f->desc, &err) || tok_load(dir, &f->t, &err) ||
        template_load(dir, &f->chat, &err))
        fail_msg("%s: %s", variant, err.msg);
    family_resolve(dir, f->config, &f->desc);
    f->m = (struct model_info){
        .family = f->config->model_type, .vocab_size = f->desc.vocab, .image = f->desc.image};
    if (f->m.image.present && family_load_images(dir, NULL, f->m.family, &f->m.image.config, &err))
        fail_msg("%s: %s", variant, err.msg);
    template_guard(f->chat, f->t);
    golden_open(&f->g, folder, variant, f->m.image.present ? &f->m.image.config : NULL);
    snprintf(path, sizeof path, "%s/golden.json", dir);
    f->about = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(f->about);
}

static void close_fixture(struct fixture *f)
{
    json_decref(f->about);
    golden_close(&f->g);
    template_free(f->chat);
    tok_free(f->t);
    model_desc_free(&f->desc);
    free(f->config);
}

/* The images of a case in the order of the prompt, with grids and stamps but no pixels: what a request
 * brings whose images are known from before. */
struct album {
    struct prompt_image list[GOLDEN_IMAGES_MAX];
    uint32_t count;
    struct prompt_grid grids[GOLDEN_IMAGES_MAX];
    uint8_t keys[GOLDEN_IMAGES_MAX][32];
    double stamps[GOLDEN_IMAGES_MAX];
};

/* The images of a case whose golden.json has `tiles`, prepared again: rows and columns come from there. */
static void album_of_tiles(struct album *a, const struct fixture *f, uint32_t n, const json_t *about)
{
    struct err err;
    uint32_t images = (uint32_t)json_integer_value(json_object_get(about, "images")), spans = 0;
    for (uint32_t k = 0; k < images; k++) {
        char name[64];
        snprintf(name, sizeof name, "case%u.image%u.rgb", n, k);
        const struct stf_tensor *t = stf_find(f->g.files, name);
        assert_non_null(t);
        struct image_u8 src = {
            .width = (uint32_t)t->shape[1], .height = (uint32_t)t->shape[0], .rgb = malloc((size_t)t->bytes)};
        struct image_prepared p;
        memcpy(src.rgb, t->data, (size_t)t->bytes);
        if (image_prep(&f->m.image.config, &src, &p, &err)) fail_msg("%s", err.msg);
        assert_true(spans + p.count <= GOLDEN_IMAGES_MAX);
        a->list[a->count++] = (struct prompt_image){.keys = (const uint8_t(*)[32]) & a->keys[spans],
                                                    .count = p.count,
                                                    .rows = p.rows,
                                                    .columns = p.columns,
                                                    .grids = &a->grids[spans]};
        for (uint32_t i = 0; i < p.count; i++, spans++) {
            memset(a->keys[spans], (int)spans + 1, 32);
            a->grids[spans] = image_grid(&f->m.image.config, p.images[i].width, p.images[i].height, 0);
        }
        image_prepared_free(&p);
        image_u8_free(&src);
    }
}

static void album_of(struct album *a, const struct fixture *f, const struct golden_case *c,
                     const json_t *about)
{
    *a = (struct album){0};
    if (json_object_get(about, "tiles")) {
        album_of_tiles(a, f, (uint32_t)json_integer_value(json_object_get(about, "id")), about);
        return;
    }
    for (uint32_t i = 0; i < c->image_count; i++) {
        const json_t *span = json_array_get(json_object_get(about, "spans"), i);
        bool video = strcmp(json_string_value(json_object_get(span, "kind")), "video") == 0;
        uint32_t group = (uint32_t)json_integer_value(json_object_get(span, "first"));
        a->grids[i] = c->images[i].grid;
        memset(a->keys[i], (int)i + 1, 32);
        if (group > 0) { /* one more group of the video in front */
            a->list[a->count - 1].count++;
            continue;
        }
        struct prompt_image *p = &a->list[a->count++];
        *p = (struct prompt_image){.keys = (const uint8_t(*)[32]) & a->keys[i],
                                   .count = 1,
                                   .video = video,
                                   .grids = &a->grids[i],
                                   .stamps = &a->stamps[i]};
        if (!video || !f->m.image.video_stamp) continue;
        uint32_t frames[FRAMES_MAX], k = (uint32_t)json_integer_value(json_object_get(span, "index")), n = 0;
        char name[64];
        snprintf(name, sizeof name, "case%d.video%u.frames",
                 (int)json_integer_value(json_object_get(about, "id")), k);
        const struct stf_tensor *all = stf_find(f->g.files, name);
        assert_true(all && all->shape[0] <= FRAMES_MAX);
        for (; n < all->shape[0]; n++) frames[n] = n;
        image_video_stamps(&f->m.image.config, frames, n,
                           json_number_value(json_array_get(json_object_get(about, "fps"), k)),
                           &a->stamps[i]);
    }
}

static void check_prompt(const struct model_image_rule *rule, const struct golden_case *c,
                         const struct prompt *p)
{
    for (uint32_t i = 0; i < p->token_count && i < c->prompt_count; i++)
        if (p->tokens[i] != c->prompt[i])
            fail_msg("%s: token %u is %u, not %u", c->name, i, p->tokens[i], c->prompt[i]);
    assert_int_equal(p->token_count, c->prompt_count);
    assert_int_equal(p->span_count, c->image_count);
    uint32_t total = c->prompt_count + c->greedy_count;
    for (uint32_t i = 0; i < p->span_count; i++) {
        const struct prompt_span *got = &p->spans[i];
        const struct mini_image *want = &c->images[i];
        assert_true(got->begin == want->begin && got->end == want->end && !got->rule);
        struct prompt_grid grid = rule->grid || rule->row_break ? want->grid : (struct prompt_grid){0};
        grid.breaks = rule->row_break != NULL; /* also between the rows of one */
        assert_true(prompt_grid_equal(&got->grid, &grid));
        int32_t behind = c->positions[got->end], left = c->positions[2 * total + got->end];
        assert_int_equal(got->mrope_delta, behind - (int32_t)got->end);
        assert_int_equal(behind, left);
    }
}

static void run_case(const struct fixture *f, const struct golden_case *c, const json_t *about)
{
    const char *rendered = json_string_value(json_object_get(about, "rendered"));
    struct tok_run whole = {rendered, strlen(rendered), TOK_CONTROL_ALL};
    struct template_result r = {.runs = &whole, .run_count = 1};
    struct prompt p;
    struct err err = {""};
    struct album a;
    bool chat = json_object_get(about, "messages") != NULL;
    if (chat) {
        struct chat_messages m = chat_of(json_object_get(about, "messages"), false);
        struct template_special specials[16];
        size_t special_count = 0;
        while (special_count < 16 && tok_special_role(f->t, special_count, &specials[special_count].name,
                                                      &specials[special_count].text))
            special_count++;
        struct template_request rq = {.specials = specials,
                                      .special_count = special_count,
                                      .messages = &m,
                                      .kwargs = json_object_get(about, "template"),
                                      .add_generation_prompt = true};
        if (template_render(f->chat, &rq, &r, &err)) fail_msg("%s: %s", c->name, err.msg);
        chat_messages_free(&m);
        if (strcmp(r.text, rendered) != 0)
            fail_msg("%s: rendered as \"%s\", not \"%s\"", c->name, r.text, rendered);
    }
    album_of(&a, f, c, about);
    if (prompt_build(&f->m, f->t, r.runs, r.run_count, false, a.list, a.count, ROOM, &p, &err))
        fail_msg("%s: %s", c->name, err.msg);
    check_prompt(&f->m.image, c, &p);
    prompt_free(&p);
    if (chat) template_result_free(&r);
}

/* Where bytes are broken, transformers writes one U+FFFD for each with some decoders. */
static void check_text(const struct fixture *f, const struct golden_case *c, const json_t *about)
{
    const char *text = json_string_value(json_object_get(about, "greedy_text"));
    struct buf out;
    struct detok d;
    buf_init(&out, 1 << 16);
    detok_init(&d, f->t, false);
    for (uint32_t i = 0; i < c->greedy_count; i++)
        assert_int_equal(detok_push(&d, c->greedy[i], &out), ST_OK);
    assert_int_equal(detok_flush(&d, &out), ST_OK);
    if (!strstr(text, "\xEF\xBF\xBD") && strcmp(out.data, text) != 0)
        fail_msg("%s: \"%s\", not \"%s\"", c->name, out.data, text);
    buf_fini(&out);
}

static void check_folder(const char *folder, uint32_t *images, uint32_t *chats)
{
    char names[64][64];
    uint32_t n = golden_variants(folder, names, 64);
    for (uint32_t i = 0; i < n; i++) {
        struct fixture f;
        open_fixture(&f, folder, names[i]);
        for (uint32_t k = 0; k < f.g.case_count; k++) {
            const json_t *about = json_array_get(json_object_get(f.about, "cases"), k);
            run_case(&f, &f.g.cases[k], about);
            check_text(&f, &f.g.cases[k], about);
            *images += f.g.cases[k].image_count;
            *chats += json_object_get(about, "messages") != NULL;
        }
        close_fixture(&f);
    }
}

static void test_prompts(void **state)
{
    uint32_t images = 0, chats = 0, more = 0;
    (void)state;
    check_folder("qwen", &images, &chats);
    check_folder("llama", &images, &more);
    check_folder("native", &images, &more);
    check_folder("tiles", &images, &more);
    assert_true(images >= 40 && chats >= 25 && more >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts)};
    return cmocka_run_group_tests_name("qwen_golden", tests, NULL, NULL);
}

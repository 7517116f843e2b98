/* The prompts of tests/golden/paligemma from their messages on: the family's rule as a template, the tokens
 * that files leave out, and prompt_build give transformers' text and ids; spans that fill the prompt, and an
 * identity that everything in it is part of. */
#include "engine/families/families.h"
#include "engine/model/model_desc.h"
#include "engine/prompt/image_prep.h"
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

enum { ROOM = 4096 };
static const uint8_t NO_KEY[32];

struct fixture {
    struct hf_config *config;
    struct model_desc desc;
    struct model_info m;
    const struct family_prompt *rule;
    struct tokenizer *t;
    struct template *chat;
    struct golden g;
    json_t *about; /* golden.json */
};

static void open_fixture(struct fixture *f, const char *variant)
{
    char dir[600], path[640];
    struct err err = {""};
    golden_dir(dir, sizeof dir, "paligemma", variant);
    *f = (struct fixture){.config = calloc(1, sizeof *f->config)};
    if (family_load(dir, NULL, f->config, &f->desc, &err) || family_load_prompt(dir, &f->rule, &err) ||
        tok_load_extra(dir, f->rule->tokens, f->rule->token_count, &f->t, &err) ||
        template_create(f->rule->chat_template, strlen(f->rule->chat_template), NULL, 0, NULL, &f->chat,
                        &err))
        fail_msg("%s: %s", variant, err.msg);
    f->m = (struct model_info){
        .family = f->config->model_type, .vocab_size = f->desc.vocab, .image = f->desc.image};
    if (family_load_images(dir, NULL, f->m.family, &f->m.image.config, &err))
        fail_msg("%s: %s", variant, err.msg);
    template_guard(f->chat, f->t);
    golden_open(&f->g, "paligemma", variant, &f->m.image.config);
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

static enum status render(const struct fixture *f, const json_t *messages, struct template_result *r,
                          struct err *err)
{
    const struct template_special bos = {"bos_token", tok_special(f->t, "bos_token")};
    struct chat_messages m = chat_of(messages, false);
    struct template_request rq = {.messages = &m,
                                  .specials = &bos,
                                  .special_count = 1,
                                  .image_placeholder = f->m.image.marker,
                                  .add_generation_prompt = true};
    enum status st = template_render(f->chat, &rq, r, err);
    chat_messages_free(&m);
    return st;
}

/* The prompt of a case; image k has the key keys[k]. */
static void build(const struct fixture *f, const struct golden_case *c, const struct tok_run *runs, size_t n,
                  bool chat, uint8_t keys[][32], struct prompt *p)
{
    struct prompt_image images[GOLDEN_IMAGES_MAX];
    struct err err = {""};
    for (uint32_t k = 0; k < c->image_count; k++)
        images[k] = (struct prompt_image){.keys = (const uint8_t(*)[32])keys[k], .count = 1};
    if (prompt_build(&f->m, f->t, runs, n, !chat, images, c->image_count, ROOM, p, &err))
        fail_msg("%s: %s", c->name, err.msg);
}

static void check_prompt(const struct fixture *f, const struct golden_case *c, const struct prompt *p)
{
    uint32_t images = 0, end = 0;
    assert_int_equal(p->token_count, c->prompt_count);
    for (uint32_t i = 0; i < p->token_count; i++)
        if (p->tokens[i] != c->prompt[i])
            fail_msg("%s: token %u is %u, not %u", c->name, i, p->tokens[i], c->prompt[i]);
    for (uint32_t i = 0; i < p->span_count; i++) {
        const struct prompt_span *s = &p->spans[i];
        assert_int_equal(s->begin, end);
        end = s->end;
        assert_true(s->rule == SPAN_PREFIX_LM && s->atomic_begin == 0 && s->atomic_end == p->token_count);
        assert_memory_equal(s->atomic_key, p->spans[0].atomic_key, 32);
        if (!s->image) continue;
        assert_true(s->begin == c->images[images].begin && s->end == c->images[images].end);
        assert_int_equal(s->end - s->begin, f->m.image.tokens);
        assert_int_equal(prompt_image(p, images), i);
        images++;
    }
    assert_int_equal(end, p->token_count);
    assert_int_equal(images, c->image_count);
    assert_int_equal(prompt_image(p, images), p->span_count);
}

static void whole_again(struct prompt *p, uint8_t key[32])
{
    struct err err = {""};
    assert_int_equal(prompt_prefix_lm(p, &err), ST_OK);
    memcpy(key, p->spans[0].atomic_key, 32);
}

/* Every token of text and every image's key change the identity; an image in doubt leaves none. */
static void check_key(struct prompt *p)
{
    uint8_t first[32], other[32];
    whole_again(p, first);
    for (uint32_t i = 0; i < p->span_count; i++) {
        struct prompt_span *s = &p->spans[i];
        for (uint32_t k = s->begin; k < s->end && !s->image; k++) {
            p->tokens[k] ^= 1;
            whole_again(p, other);
            s = &p->spans[i]; /* the list is a new one */
            assert_memory_not_equal(first, other, 32);
            p->tokens[k] ^= 1;
        }
        if (!s->image) continue;
        uint8_t kept[32];
        memcpy(kept, s->key, 32);
        s->key[31] ^= 1;
        whole_again(p, other);
        assert_memory_not_equal(first, other, 32);
        memset(p->spans[i].key, 0, 32);
        whole_again(p, other);
        assert_memory_equal(other, NO_KEY, 32);
        memcpy(p->spans[i].key, kept, 32);
    }
    whole_again(p, other);
    assert_memory_equal(first, other, 32);
    p->token_count--;
    whole_again(p, other);
    assert_memory_not_equal(first, other, 32);
    p->token_count++;
}

/* What the processor builds, but for the bos behind the images and the newline at the end. */
static void check_rendered(const struct golden_case *c, const char *got, const char *rendered)
{
    const char *bos = strstr(rendered, "<bos>");
    assert_non_null(bos);
    const char *text = bos + strlen("<bos>");
    size_t front = (size_t)(bos - rendered), rest = strlen(text) - 1;
    assert_true(text[rest] == '\n');
    if (strlen(got) != front + rest || memcmp(got, rendered, front) || memcmp(got + front, text, rest))
        fail_msg("%s: rendered as \"%s\", not \"%s\"", c->name, got, rendered);
}

static void run_case(const struct fixture *f, const struct golden_case *c, const json_t *about)
{
    const char *rendered = json_string_value(json_object_get(about, "rendered"));
    struct tok_run whole = {rendered, strlen(rendered), TOK_CONTROL_ALL};
    struct template_result r = {.runs = &whole, .run_count = 1};
    const json_t *messages = json_object_get(about, "messages");
    uint8_t keys[GOLDEN_IMAGES_MAX][32];
    struct prompt p;
    struct err err = {""};
    for (uint32_t k = 0; k < GOLDEN_IMAGES_MAX; k++) memset(keys[k], (int)k + 1, 32);
    if (messages && render(f, messages, &r, &err)) fail_msg("%s: %s", c->name, err.msg);
    if (messages) check_rendered(c, r.text, rendered);
    build(f, c, r.runs, r.run_count, messages, keys, &p);
    check_prompt(f, c, &p);
    check_key(&p);
    prompt_free(&p);
    if (messages) template_result_free(&r);
}

static void test_prompts(void **state)
{
    char variants[64][64];
    uint32_t n = golden_variants("paligemma", variants, 64), chats = 0;
    (void)state;
    for (uint32_t v = 0; v < n; v++) {
        struct fixture f;
        open_fixture(&f, variants[v]);
        for (uint32_t i = 0; i < f.g.case_count; i++) {
            const json_t *about = json_array_get(json_object_get(f.about, "cases"), i);
            chats += json_object_get(about, "messages") != NULL;
            run_case(&f, &f.g.cases[i], about);
        }
        close_fixture(&f);
    }
    assert_true(n >= 8 && chats >= 16);
}

/* What is refused, and what a user types that looks like the rule's own tokens. */
static void test_messages(void **state)
{
    static const char *const wrong[] = {
        "[{'role':'user','content':'no image'}]",
        "[{'role':'user','content':[{'type':'text','text':'no image'}]}]",
        "[{'role':'system','content':'x'},{'role':'user','content':[{'type':'image'}]}]",
        "[{'role':'user','content':[{'type':'image'}]},{'role':'assistant','content':'x'},"
        "{'role':'user','content':[{'type':'image'}]}]",
        "[{'role':'assistant','content':[{'type':'image'}]}]",
        "[]",
    };
    static const struct {
        const char *messages, *text;
    } right[] = {
        {"[{'role':'user','content':[{'type':'image'}]}]", "<image>"},
        {"[{'role':'user','content':[{'type':'text','text':'a\\n'},{'type':'image'},{'type':'text','text':'b'"
         "},"
         "{'type':'image'}]}]",
         "<image><image>a\n b"},
        {"[{'role':'user','content':[{'type':'image'},{'type':'text','text':'<image> <bos>'}]}]",
         "<image><image> <bos>"},
    };
    struct fixture f;
    struct template_result r;
    struct err err;
    (void)state;
    open_fixture(&f, "pg1_f32");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[400];
        snprintf(text, sizeof text, "%s", wrong[i]);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        json_t *m = json_loads(text, 0, NULL);
        assert_non_null(m);
        assert_int_equal(render(&f, m, &r, &err), ST_INVALID);
        assert_non_null(strstr(err.msg, "This model "));
        json_decref(m);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        char text[400];
        snprintf(text, sizeof text, "%s", right[i].messages);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        json_t *m = json_loads(text, 0, NULL);
        assert_non_null(m);
        assert_int_equal(render(&f, m, &r, &err), ST_OK);
        assert_string_equal(r.text, right[i].text);
        if (i == 2) { /* typed: words, no tokens */
            struct prompt p;
            uint8_t key[1][32] = {{7}};
            struct golden_case one = {.image_count = 1, .name = "typed"};
            build(&f, &one, r.runs, r.run_count, true, key, &p);
            uint32_t placeholder = 0, bos = 0;
            for (uint32_t k = 0; k < p.token_count; k++) {
                placeholder += p.tokens[k] == f.m.image.placeholder_id;
                bos += p.tokens[k] == 2;
            }
            assert_true(placeholder == f.m.image.tokens && bos == 1);
            prompt_free(&p);
        }
        template_result_free(&r);
        json_decref(m);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts), cmocka_unit_test(test_messages)};
    return cmocka_run_group_tests_name("paligemma_golden", tests, NULL, NULL);
}

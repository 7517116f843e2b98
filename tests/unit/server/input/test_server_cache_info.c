/* Which message and part a token came from: conversations that differ in one place, rendered with the demo
 * model's template and tokenizer; the place of the first differing token must be the one that was edited.
 * Also tokenizers that change the text, and the JSON. */
#include "server/input/cache_info.h"
#include "server/http/metrics.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEMO "models/demo"
#define SOFT 16u

static struct tokenizer *tok;
static struct template *tmpl;
static struct model_info mi;

static int setup(void **state)
{
    (void)state;
    struct err err = {{0}};
    if (tok_load(DEMO, &tok, &err) || template_load(DEMO, &tmpl, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    template_guard(tmpl, tok);
    mi = (struct model_info){.family = "gemma3",
                             .vocab_size = tok_vocab_size(tok),
                             .image = {.present = true,
                                       .marker = "<start_of_image>",
                                       .prefix = "\n\n<start_of_image>",
                                       .suffix = "<end_of_image>\n\n",
                                       .placeholder = "<image_soft_token>",
                                       .tokens = SOFT,
                                       .rule = SPAN_BIDIRECTIONAL}};
    return tok_id_of(tok, mi.image.placeholder, strlen(mi.image.placeholder), &mi.image.placeholder_id) ? 0
                                                                                                        : -1;
}

static int teardown(void **state)
{
    (void)state;
    tok_free(tok);
    template_free(tmpl);
    return 0;
}

/* A conversation as far as a prompt and the places of its tokens. An image's key is made of its URL; "crops"
 * in the URL gives it two crops. */
struct talk {
    json_t *original;
    struct chat_messages messages;
    struct template_result rendered;
    struct prompt prompt;
    struct cache_places places;
    char shown[96];
};

static void talk_open(struct talk *t, const char *json, bool open_turn)
{
    struct api_error e = {0};
    struct err err = {{0}};
    json_error_t je;
    const struct chat_limits limits = CHAT_LIMITS_DEFAULT;
    *t = (struct talk){.original = json_loads(json, 0, &je)};
    if (!t->original) fail_msg("%s: %s", json, je.text);
    if (chat_messages_parse(t->original, &limits, &t->messages, &e)) fail_msg("%s: %s", json, e.message);
    static const struct template_special specials[] = {{"bos_token", "<bos>"}};
    struct template_request rq = {.messages = &t->messages,
                                  .specials = specials,
                                  .special_count = 1,
                                  .image_placeholder = mi.image.marker,
                                  .add_generation_prompt = open_turn,
                                  .trace = true};
    if (template_render(tmpl, &rq, &t->rendered, &err)) fail_msg("%s: %s", json, err.msg);
    uint8_t keys[8][3][32] = {{{0}}};
    struct prompt_image images[8];
    for (size_t i = 0; i < t->messages.image_count; i++) {
        const char *url = t->messages.images[i].url.data;
        for (uint32_t k = 0; k < 3; k++) {
            strncpy((char *)keys[i][k], url, 30);
            keys[i][k][31] = (uint8_t)(k + 1);
        }
        images[i] = (struct prompt_image){.keys = (const uint8_t(*)[32])keys[i],
                                          .count = strstr(url, "crops") ? 3 : 1};
    }
    uint32_t count = (uint32_t)t->messages.image_count;
    if (prompt_build(&mi, tok, t->rendered.runs, t->rendered.run_count, false, images, count, 1u << 20,
                     &t->prompt, &err))
        fail_msg("%s: %s", json, err.msg);
    for (uint32_t i = 0; i < t->prompt.span_count; i++) assert_null(t->prompt.spans[i].pixels.rgb);
    if (cache_places_build(&mi, tok, &t->rendered, &t->messages, images, count, &t->prompt, &t->places, &err))
        fail_msg("%s: %s", json, err.msg);
}

static void talk_close(struct talk *t)
{
    cache_places_free(&t->places);
    prompt_free(&t->prompt);
    template_result_free(&t->rendered);
    chat_messages_free(&t->messages);
    json_decref(t->original);
}

/* "text 2.0 user", "text 1.- user" (string content), "image 0.1 #0", "field 0 role", "template after 1",
 * "template first" */
static const char *show_place(struct talk *t, const struct cache_place *p)
{
    char part[16];
    assert_non_null(p);
    snprintf(part, sizeof part, p->part < 0 ? "-" : "%d", p->part);
    if (p->kind == PLACE_TEXT)
        snprintf(t->shown, sizeof t->shown, "text %u.%s %s", p->message, part, p->role);
    else if (p->kind == PLACE_IMAGE)
        snprintf(t->shown, sizeof t->shown, "image %u.%s #%u %s", p->message, part, p->image, p->role);
    else if (p->kind == PLACE_FIELD) snprintf(t->shown, sizeof t->shown, "field %u %s", p->message, p->field);
    else if (p->kind == PLACE_TEMPLATE && p->message)
        snprintf(t->shown, sizeof t->shown, "template after %u", p->message - 1);
    else
        snprintf(t->shown, sizeof t->shown, p->kind == PLACE_TEMPLATE ? "template first" : "kind %d",
                 (int)p->kind);
    return t->shown;
}

static const char *show(struct talk *t, uint32_t token)
{
    return show_place(t, cache_place_at(&t->places, token));
}

/* First token in which b differs from a; an image's tokens by its key. */
static uint32_t parting(const struct talk *a, const struct talk *b)
{
    uint32_t n = 0, k = 0;
    while (n < a->prompt.token_count && n < b->prompt.token_count &&
           a->prompt.tokens[n] == b->prompt.tokens[n]) {
        while (k < b->prompt.span_count && b->prompt.spans[k].end <= n) k++;
        if (k < b->prompt.span_count && b->prompt.spans[k].begin == n &&
            (k >= a->prompt.span_count || memcmp(a->prompt.spans[k].key, b->prompt.spans[k].key, 32) != 0)) {
            break;
        }
        n++;
    }
    return n;
}

#define IMG(name)          "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:" name "\"}}"
#define TXT(s)             "{\"type\":\"text\",\"text\":\"" s "\"}"
#define MSG(role, content) "{\"role\":\"" role "\",\"content\":" content "}"

static void test_parting(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after, *place;
    } table[] = {
        /* text edited in message 2 */
        {"[" MSG("user", "\"red circle\"") "," MSG("assistant", "\"yes\"") "," MSG("user",
                                                                                   "\"what is left\"") "]",
         "[" MSG("user", "\"red circle\"") "," MSG("assistant", "\"yes\"") "," MSG("user",
                                                                                   "\"how many\"") "]",
         "text 2.- user"},
        {"[" MSG("user", "\"red circle\"") "," MSG("assistant", "\"yes\"") "]",
         "[" MSG("user", "\"red circle\"") "," MSG("assistant", "\"no\"") "]", "text 1.- assistant"},
        {"[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("how") "]") "]", "text 0.2 user"},
        {"[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("blue") "," IMG("a") "," TXT("what") "]") "]", "text 0.0 user"},
        /* an image swapped in message 0 and in message 2, and one with crops */
        {"[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("red") "," IMG("b") "," TXT("what") "]") "]", "image 0.1 #0 user"},
        {"[" MSG("user", "[" IMG("a") "," TXT("what") "]") "," MSG("assistant", "\"yes\"") "," MSG(
             "user", "[" TXT("and") "," IMG("b") "]") "]",
         "[" MSG("user", "[" IMG("a") "," TXT("what") "]") "," MSG("assistant", "\"yes\"") "," MSG(
             "user", "[" TXT("and") "," IMG("c") "]") "]",
         "image 2.1 #1 user"},
        {"[" MSG("user", "[" IMG("a") "," TXT("what") "]") "]",
         "[" MSG("user", "[" IMG("crops") "," TXT("what") "]") "]", "image 0.0 #0 user"},
        {"[" MSG("user", "[" IMG("crops") "," TXT("what") "]") "]",
         "[" MSG("user", "[" IMG("crops") "," TXT("how") "]") "]", "text 0.1 user"},
        /* an image where text stood, text where an image stood */
        {"[" MSG("user", "[" TXT("red") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("what") "]") "]", "image 0.1 #0 user"},
        {"[" MSG("user", "[" TXT("red") "," IMG("a") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("red") "," TXT("what") "]") "]", "text 0.1 user"},
        /* another system prompt: the template puts it into the first turn */
        {"[" MSG("system", "\"be brief\"") "," MSG("user", "\"what\"") "]",
         "[" MSG("system", "\"say more\"") "," MSG("user", "\"what\"") "]", "text 0.- system"},
        {"[" MSG("system", "\"be brief\"") "," MSG("user", "\"what\"") "]",
         "[" MSG("system", "\"be brief\"") "," MSG("user", "\"how\"") "]", "text 1.- user"},
        {"[" MSG("user", "\"what\"") "]", "[" MSG("system", "\"be brief\"") "," MSG("user", "\"what\"") "]",
         "text 0.- system"},
        /* a longer text, a shorter one: then the end of the turn, which the template wrote, differs */
        {"[" MSG("user", "\"red\"") "]", "[" MSG("user", "\"red circle\"") "]", "text 0.- user"},
        {"[" MSG("user", "\"red circle\"") "]", "[" MSG("user", "\"red\"") "]", "template after 0"},
        /* reasoning is taken out of what the template sees: parts count as they were sent */
        {"[" MSG("user", "\"what\"") "," MSG(
             "assistant", "[{\"type\":\"thinking\",\"thinking\":\"hm\"}," TXT("red") "," TXT("blue") "]") "]",
         "[" MSG("user", "\"what\"") "," MSG("assistant", "[{\"type\":\"thinking\",\"thinking\":\"hm\"}," TXT(
                                                              "red") "," TXT("green") "]") "]",
         "text 1.2 assistant"},
        /* bytes beyond ASCII, blanks, line breaks */
        {"[" MSG("user", "[" TXT("  \\u00e9\\ud83d\\ude00 red\\n\\nblue ") "," TXT("what") "]") "]",
         "[" MSG("user", "[" TXT("  \\u00e9\\ud83d\\ude00 red\\n\\nblue ") "," TXT("\\ud83d\\ude01") "]") "]",
         "text 0.1 user"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct talk a, b;
        talk_open(&a, table[i].before, true);
        talk_open(&b, table[i].after, true);
        uint32_t at = parting(&a, &b);
        assert_true(at > 0 && at < b.prompt.token_count);
        if (strcmp(show_place(&b, cache_place_of_difference(&b.places, at)), table[i].place) != 0)
            fail_msg("row %zu, token %u: %s, not %s", i, at, b.shown, table[i].place);
        talk_close(&a);
        talk_close(&b);
    }
}

static void test_ends(void **state)
{
    (void)state;
    struct talk a, b;
    static const char one[] = "[" MSG("user", "[" IMG("a") "," TXT("what") "]") "]";
    talk_open(&a, one, false);
    talk_open(&b, one, true);
    assert_string_equal(show(&b, 0), "template first"); /* <bos> */
    assert_string_equal(show(&b, 1), "template first"); /* <start_of_turn> */
    assert_string_equal(show(&b, 2), "field 0 role");
    assert_int_equal(parting(&a, &b), a.prompt.token_count);
    assert_string_equal(show(&b, a.prompt.token_count), "template after 0"); /* the answer's turn */
    for (uint32_t i = b.prompt.spans[0].begin; i < b.prompt.spans[0].end; i++)
        assert_string_equal(show(&b, i), "image 0.0 #0 user");
    talk_close(&a);
    talk_close(&b);
}

/* The tokens that are said to be a message's text spell that text, all of it and nothing else. */
static void test_spelling(void **state)
{
    (void)state;
    static const char *const texts[] = {"red",
                                        "what is in this picture?",
                                        "\xC3\xA9t\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xE4\xB8\xAD",
                                        "a\n\n\nb \t c",
                                        "<start_of_turn>user <bos> <image_soft_token>",
                                        "1234567890 !!! ((()))"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct talk t;
        struct buf b;
        json_t *list = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "red", "role",
                                 "assistant", "content", texts[i], "role", "user", "content", "blue");
        char *json = json_dumps(list, 0);
        talk_open(&t, json, true);
        buf_init(&b, 1u << 20);
        for (uint32_t n = 0; n < t.prompt.token_count; n++) {
            const struct cache_place *p = cache_place_at(&t.places, n);
            size_t len;
            const char *s = tok_bytes(tok, t.prompt.tokens[n], &len);
            if (p->kind == PLACE_TEXT && p->message == 1) assert_int_equal(buf_add(&b, s, len), ST_OK);
        }
        assert_int_equal(b.len, strlen(texts[i]));
        assert_memory_equal(b.data, texts[i], b.len);
        buf_fini(&b);
        talk_close(&t);
        free(json);
        json_decref(list);
    }
}

/* Tokenizers that change the text: composition, a space put in front. What comes after is placed right again.
 */
static void test_changed_text(void **state)
{
    (void)state;
    static const char *const dirs[] = {"tests/golden/tokenizer/qwen2", "tests/golden/tokenizer/gemma",
                                       "tests/golden/tokenizer/llama3", "tests/golden/tokenizer/sp_cross"};
    const struct tok_run runs[] = {{"Cafe\xCC\x81 au lait, cafe\xCC\x81.", 23, TOK_CONTROL_NONE},
                                   {" second part here", 17, TOK_CONTROL_NONE},
                                   {"\xFF\xFE"
                                    " bad bytes",
                                    12, TOK_CONTROL_NONE},
                                   {" the end of it", 14, TOK_CONTROL_NONE}};
    const uint32_t tags[] = {1, 2, 3, 4};
    const struct model_info plain = {.family = "plain", .vocab_size = 1u << 30};
    for (size_t d = 0; d < sizeof dirs / sizeof *dirs; d++) {
        struct tokenizer *t = NULL;
        struct err err = {{0}};
        struct tok_ids ids = {0};
        struct prompt_origin *origins = NULL;
        size_t count = 0;
        if (tok_load(dirs[d], &t, &err)) fail_msg("%s", err.msg);
        assert_int_equal(tok_encode(t, runs, 4, true, 1000, &ids, &err), ST_OK);
        struct prompt p = {.tokens = ids.ids, .token_count = (uint32_t)ids.count};
        assert_int_equal(prompt_origins(&plain, t, runs, tags, 4, NULL, 0, &p, &origins, &count, &err),
                         ST_OK);
        assert_int_equal(origins[0].token, 0);
        /* The end of the prompt belongs to the last run, and its tokens spell it. */
        assert_int_equal(origins[count - 1].tag, 4);
        size_t bytes = 0;
        for (uint32_t i = origins[count - 1].token; i < p.token_count; i++) {
            size_t len;
            tok_bytes(t, p.tokens[i], &len);
            bytes += len;
        }
        if (bytes < 10 || bytes > 14)
            fail_msg("%s: %zu bytes are said to be the last run's 14", dirs[d], bytes);
        for (size_t i = 1; i < count; i++) {
            assert_true(origins[i].token > origins[i - 1].token);
            assert_true(origins[i].tag > origins[i - 1].tag);
        }
        free(origins);
        tok_ids_free(&ids);
        tok_free(t);
    }
}

static void check_json(const struct sched_cache_info *info, uint32_t tokens, uint32_t dropped,
                       const struct cache_places *places, const char *want)
{
    struct buf b;
    buf_init(&b, 10000);
    struct json_writer o = {.buf = &b};
    cache_info_write(&o, info, tokens, dropped, NULL, places);
    assert_int_equal(o.st, ST_OK);
    assert_string_equal(b.data, want);
    buf_fini(&b);
}

static void test_json(void **state)
{
    (void)state;
    struct cache_place list[] = {
        {.token = 0, .kind = PLACE_TEMPLATE},
        {.token = 2, .kind = PLACE_FIELD, .message = 0, .role = "user", .field = "role"},
        {.token = 5, .kind = PLACE_TEXT, .message = 0, .part = -1, .role = "user"},
        {.token = 9, .kind = PLACE_IMAGE, .message = 2, .part = 1, .image = 3, .role = NULL},
        {.token = 20, .kind = PLACE_TEMPLATE, .message = 3}};
    const struct cache_places places = {.list = list, .count = 5}, none = {0};
    check_json(&(struct sched_cache_info){.reused = 9, .equal = 12, .stop = CACHE_STOP_SPAN}, 30, 0, &places,
               "{\"reused_tokens\":9,\"equal_tokens\":12,\"prompt_tokens\":30,\"tier\":\"memory\",\"loaded_"
               "tokens\":0,\"stop\":\"inside_image\","
               "\"reuse_ends_at\":{\"token\":9,\"kind\":\"image\",\"message\":2,\"role\":null,\"part\":1,"
               "\"image\":3},"
               "\"differs_at\":{\"token\":12,\"kind\":\"image\",\"message\":2,\"role\":null,\"part\":1,"
               "\"image\":3}}");
    check_json(
        &(struct sched_cache_info){.reused = 4, .equal = 6, .stop = CACHE_STOP_WINDOW}, 30, 0, &places,
        "{\"reused_tokens\":4,\"equal_tokens\":6,\"prompt_tokens\":30,\"tier\":\"memory\",\"loaded_tokens\":"
        "0,\"stop\":\"sliding_window_gone\","
        "\"reuse_ends_at\":{\"token\":4,\"kind\":\"field\",\"message\":0,\"role\":\"user\",\"field\":"
        "\"role\"},"
        "\"differs_at\":{\"token\":6,\"kind\":\"text\",\"message\":0,\"role\":\"user\",\"part\":null}}");
    check_json(
        &(struct sched_cache_info){.reused = 29, .equal = 30, .stop = CACHE_STOP_NONE}, 30, 0, &places,
        "{\"reused_tokens\":29,\"equal_tokens\":30,\"prompt_tokens\":30,\"tier\":\"memory\",\"loaded_"
        "tokens\":0,\"stop\":\"none\","
        "\"reuse_ends_at\":{\"token\":29,\"kind\":\"template\",\"after_message\":2},\"differs_at\":null}");
    check_json(&(struct sched_cache_info){.reused = 0, .equal = 1, .stop = CACHE_STOP_TOKEN}, 30, 0, &places,
               "{\"reused_tokens\":0,\"equal_tokens\":1,\"prompt_tokens\":30,\"tier\":null,\"loaded_"
               "tokens\":0,\"stop\":\"token_differs\","
               "\"reuse_ends_at\":{\"token\":0,\"kind\":\"template\",\"after_message\":null},"
               "\"differs_at\":{\"token\":1,\"kind\":\"field\",\"message\":0,\"role\":\"user\",\"field\":"
               "\"role\"}}");
    check_json(&(struct sched_cache_info){.stop = CACHE_STOP_SALT}, 30, 0, &places,
               "{\"reused_tokens\":0,\"equal_tokens\":0,\"prompt_tokens\":30,\"tier\":null,\"loaded_"
               "tokens\":0,\"stop\":\"salt\",\"reuse_ends_"
               "at\":null,\"differs_at\":null}");
    check_json(&(struct sched_cache_info){.reused = 3, .equal = 3, .stop = CACHE_STOP_END}, 5, 0, &none,
               "{\"reused_tokens\":3,\"equal_tokens\":3,\"prompt_tokens\":5,\"tier\":\"memory\",\"loaded_"
               "tokens\":0,\"stop\":\"end_of_cached\","
               "\"reuse_ends_at\":{\"token\":3,\"kind\":\"prompt\"},\"differs_at\":{\"token\":3,\"kind\":"
               "\"prompt\"}}");
    /* truncate_prompt_tokens cut 5 tokens off: token 0 is what was token 5. */
    check_json(
        &(struct sched_cache_info){.reused = 0, .equal = 0, .stop = CACHE_STOP_TOKEN}, 5, 5, &places,
        "{\"reused_tokens\":0,\"equal_tokens\":0,\"prompt_tokens\":5,\"tier\":null,\"loaded_tokens\":0,"
        "\"stop\":\"token_differs\","
        "\"reuse_ends_at\":{\"token\":0,\"kind\":\"text\",\"message\":0,\"role\":\"user\",\"part\":null},"
        "\"differs_at\":{\"token\":0,\"kind\":\"text\",\"message\":0,\"role\":\"user\",\"part\":null}}");
    static const char *const names[] = {"none",           "end_of_cached", "token_differs",
                                        "image_differs",  "inside_image",  "sliding_window_gone",
                                        "no_state_saved", "evicted",       "salt",
                                        "prompt_differs", "disabled"};
    for (int i = 0; i <= CACHE_STOP_DISABLED; i++)
        assert_string_equal(cache_stop_name((enum cache_stop)i), names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parting), cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_spelling), cmocka_unit_test(test_changed_text),
                                       cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Tokenizer and chat template from a GGUF file's metadata: what is made, what is refused in which words, and
 * that no file, however broken, harms. That the ids are right is shown by test_tokenizer. Run from the root
 * of the repository. */
#include "engine/families/families.h"
#include "engine/tokenizer/internal.h"
#include "server/chat/template.h"
#include "tests/lib/server/chat.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/tokenizer/"
static char path[] = "/tmp/kvasir-gguf-XXXXXX";

static uint64_t rng_state = 4711;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 16) % below);
}

struct file {
    char bytes[1 << 16];
    size_t len;
};

static void read_golden(const char *name, struct file *f)
{
    char from[128];
    snprintf(from, sizeof from, GOLDEN "%s/model.gguf", name);
    FILE *in = fopen(from, "rb");
    assert_non_null(in);
    f->len = fread(f->bytes, 1, sizeof f->bytes, in);
    fclose(in);
    assert_in_range(f->len, 1000, sizeof f->bytes - 1);
}

static void write_file(const struct file *f)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f->bytes, 1, f->len, out), f->len);
    assert_int_equal(fclose(out), 0);
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

/* The value behind a key: its kind, then what it holds. */
static char *value_of(struct file *f, const char *key)
{
    char *at = memmem(f->bytes, f->len, key, strlen(key));
    if (!at) fail_msg("no %s", key);
    return at + strlen(key);
}

static void load(struct tokenizer **t)
{
    struct err err = {""};
    if (family_load_tokenizer(path, NULL, NULL, t, &err)) fail_msg("%s", err.msg);
}

static void assert_renders(const struct template *chat, const char *messages, const char *tools,
                           const char *want)
{
    struct template_result r;
    struct err err = {""};
    json_t *list = json_loads(messages, 0, NULL);
    struct chat_messages parsed = chat_of(list, false);
    struct template_request rq = {.messages = &parsed, .tools = tools ? json_loads(tools, 0, NULL) : NULL};
    if (template_render(chat, &rq, &r, &err)) fail_msg("%s", err.msg);
    assert_int_equal(r.len, strlen(want));
    assert_memory_equal(r.text, want, r.len);
    template_result_free(&r);
    chat_messages_free(&parsed);
    json_decref(list);
    json_decref((json_t *)rq.tools);
}

static void test_templates(void **state)
{
    (void)state;
    static struct file f;
    struct template *chat = NULL;
    struct err err = {""};
    read_golden("gguf_bytes", &f);
    write_file(&f);
    assert_int_equal(template_load(path, &chat, &err), ST_OK);
    assert_renders(chat, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, "hi");
    assert_renders(chat, "[{\"role\":\"user\",\"content\":\"hi\"}]",
                   "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "1");
    template_free(chat);
    read_golden("gguf_pieces", &f);
    write_file(&f);
    assert_int_equal(template_load(path, &chat, &err), ST_NOT_FOUND);
}

/* By the rank of the union, and the longest left part first: ids seldom show it. */
static void test_order_of_merges(void **state)
{
    (void)state;
    static const char *const want[][2] = {{"\n", "\n"}, {"\n\n", "\n"}, {"\n", "\n\n"}, {"\n\n\n", "\n"}};
    static struct file f;
    struct tokenizer *t = NULL;
    read_golden("gguf_pieces", &f);
    write_file(&f);
    load(&t);
    for (uint32_t i = 0; i < sizeof want / sizeof *want; i++) {
        uint32_t id[2];
        for (int k = 0; k < 2; k++) assert_true(tok_id_of(t, want[i][k], strlen(want[i][k]), &id[k]));
        assert_int_equal(tok__merge_rank(&t->merges, id[0], id[1]), i);
    }
    tok_free(t);
}

static void test_roles(void **state)
{
    (void)state;
    static struct file f;
    struct tokenizer *t = NULL;
    uint32_t bos;
    read_golden("gguf_pieces", &f);
    write_file(&f);
    load(&t);
    assert_string_equal(tok_special(t, "bos_token"), "<bos>");
    assert_true(tok_adds_bos(t, &bos));
    assert_true(tok_is_special(t, bos));
    tok_free(t);
}

static void assert_refused(const struct file *f, enum status want, const char *words)
{
    struct tokenizer *t = NULL;
    struct err err = {""};
    write_file(f);
    enum status st = family_load_tokenizer(path, NULL, NULL, &t, &err);
    if (st != want || !strstr(err.msg, words)) fail_msg("%s, not: %s", err.msg, words);
    assert_non_null(strstr(err.msg, path));
    assert_null(t);
}

/* Another text of the same length in the place of the first `from`. */
static void test_refused_words(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *from, *to;
        enum status st;
        const char *words;
    } cases[] = {
        {"gguf_bytes", "qwen2", "qwen9", ST_UNSUPPORTED, "tokenizer.ggml.pre \"qwen9\" is not supported"},
        {"gguf_bytes", "gpt2", "bert", ST_UNSUPPORTED, "tokenizer.ggml.model \"bert\""},
        {"gguf_bytes", "ggml.model", "ggml.molde", ST_NOT_FOUND, "no tokenizer.ggml.model"},
        {"gguf_bytes", "ggml.tokens", "ggml.tokenz", ST_FORMAT, "tokenizer.ggml.tokens"},
        {"gguf_bytes", "ggml.token_type", "ggml.token_tipe", ST_FORMAT, "tokenizer.ggml.token_type"},
        {"gguf_bytes", "ggml.merges", "ggml.mergers", ST_FORMAT, "tokenizer.ggml.merges"},
        {"gguf_pieces", "ggml.scores", "ggml.scorez", ST_FORMAT, "tokenizer.ggml.scores"},
        {"gguf_pieces", "ggml.bos_token", "ggml.bis_token", ST_FORMAT, "tokenizer.ggml.bos_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct file f;
        read_golden(cases[i].golden, &f);
        size_t n = strlen(cases[i].from);
        memcpy(value_of(&f, cases[i].from) - n, cases[i].to, n);
        assert_refused(&f, cases[i].st, cases[i].words);
    }
}

/* Numbers in front of which the key stands; arrays have the kind of their items and their count before the
 * first. */
static void test_refused_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *key;
        size_t at;
        uint32_t number;
        const char *words;
    } cases[] = {
        {"gguf_pieces", "tokenizer.ggml.bos_token_id", 4, 100000,
         "bos_token_id is 100000, which is no token"},
        {"gguf_pieces", "tokenizer.ggml.unknown_token_id", 4, 70000, "unknown_token_id is 70000"},
        {"gguf_bytes", "tokenizer.ggml.token_type", 16, 7, "token_type[0] is not a type"},
        {"gguf_bytes", "tokenizer.ggml.token_type", 20, 0xFFFFFFFFu, "token_type[1] is not a type"},
        {"gguf_scores", "tokenizer.ggml.scores", 16 + 4 * 300, 0x7FC00000u, "scores[300] is not a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct file f;
        read_golden(cases[i].golden, &f);
        memcpy(value_of(&f, cases[i].key) + cases[i].at, &cases[i].number, sizeof cases[i].number);
        assert_refused(&f, ST_FORMAT, cases[i].words);
    }
}

static void test_refused_merge(void **state)
{
    (void)state;
    static struct file f;
    read_golden("gguf_bytes", &f);
    char *first = value_of(&f, "tokenizer.ggml.merges") + 16;
    uint64_t len;
    memcpy(&len, first, sizeof len);
    memset(first + sizeof len, 'x', len);
    assert_refused(&f, ST_FORMAT, "tokenizer.ggml.merges[0] is not a pair");
}

static void test_refused_bytes(void **state)
{
    (void)state;
    static struct file f;
    read_golden("gguf_pieces", &f);
    value_of(&f, "<end_of_turn>")[-2] = '\xFF';
    assert_refused(&f, ST_FORMAT, "is not UTF-8");
}

/* A row of padding is no token; a token that is only called so is one. */
static void test_padding(void **state)
{
    (void)state;
    static struct file f;
    struct tokenizer *t = NULL;
    uint32_t id;
    read_golden("gguf_bytes", &f);
    write_file(&f);
    load(&t);
    uint32_t size = tok_vocab_size(t);
    assert_false(tok_exists(t, size));
    tok_free(t);
    char row[16];
    snprintf(row, sizeof row, "[PAD%u]", size);
    value_of(&f, row)[-2] ^= 1;
    row[strlen(row) - 2] ^= 1;
    write_file(&f);
    load(&t);
    assert_true(tok_id_of(t, row, strlen(row), &id));
    assert_int_equal(id, size);
    assert_false(tok_is_added(t, id));
    tok_free(t);
}

static void test_space_prefix(void **state)
{
    (void)state;
    static struct file f;
    read_golden("gguf_pieces", &f);
    value_of(&f, "add_space_prefix")[4] = 1;
    assert_refused(&f, ST_UNSUPPORTED, "add_space_prefix");
}

/* Another text for a token, of any length: the files have no tensors whose place could change. */
static void respell(struct file *f, const char *from, const char *to)
{
    uint64_t was = strlen(from), now = strlen(to);
    char *at = value_of(f, from) - was;
    memmove(at + now, at + was, f->len - (size_t)(at + was - f->bytes));
    memcpy(at - 8, &now, 8);
    memcpy(at, to, now);
    f->len = f->len + now - was;
}

/* What llama.cpp's names stand for in the models' own tokenizer.json. */
static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *pre;
        enum tok_pattern pattern;
        size_t splits;
        bool ignore_merges, nfc;
    } cases[] = {
        {"qwen2", TOK_PATTERN_DIGIT, 1, false, true},
        {"qwen35", TOK_PATTERN_DIGIT_MARKS, 1, false, true},
        {"dbrx", TOK_PATTERN_DIGITS3, 1, false, false},
        {"midm-2.0", TOK_PATTERN_DIGITS3, 1, true, false},
        {"lfm2", TOK_PATTERN_DIGITS3, 1, true, false},
        {"glm4", TOK_PATTERN_DIGITS3, 1, true, false},
        {"exaone4", TOK_PATTERN_PLAIN, 1, false, false},
        {"mellum", TOK_PATTERN_PLAIN, 1, false, false},
        {"refact", TOK_PATTERN_PLAIN, 2, false, false},
        {"minerva-7b", TOK_PATTERN_PLAIN, 2, false, false},
        {"minicpm5", TOK_PATTERN_DIGITS, 2, true, false},
        {"seed-coder", TOK_PATTERN_DIGIT_BARE, 1, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct file f;
        struct tokenizer *t = NULL;
        read_golden("gguf_tekken", &f);
        respell(&f, "tekken", cases[i].pre);
        write_file(&f);
        load(&t);
        if (t->split_count != cases[i].splits || t->splits[t->split_count - 1].pattern != cases[i].pattern ||
            t->ignore_merges != cases[i].ignore_merges || t->norm_count != cases[i].nfc)
            fail_msg("%s", cases[i].pre);
        tok_free(t);
    }
}

/* Gemma's markers are special whatever the file calls them; and with a tower a vocabulary without a token for
 * an image's rows gets one. */
static void test_markers(void **state)
{
    (void)state;
    static struct file f;
    struct tokenizer *t = NULL;
    struct err err = {""};
    uint32_t turn;
    int32_t normal = 1;
    read_golden("gguf_pieces", &f);
    write_file(&f);
    load(&t);
    assert_true(tok_id_of(t, "<start_of_turn>", 15, &turn));
    tok_free(t);
    memcpy(value_of(&f, "tokenizer.ggml.token_type") + 16 + 4 * turn, &normal, 4);
    respell(&f, "<end_of_turn>", "<unused99>");
    write_file(&f);
    load(&t);
    assert_true(tok_is_added(t, turn));
    tok_free(t);
    for (int tower = 0; tower < 2; tower++) {
        uint32_t id;
        assert_int_equal(family_load_tokenizer(path, tower ? "any" : NULL, NULL, &t, &err), ST_OK);
        assert_int_equal(tok_id_of(t, "<unused99>", 10, &id), !tower);
        assert_int_equal(tok_id_of(t, "<image_soft_token>", 18, &id), tower);
        tok_free(t);
    }
}

/* What the server asks of a checkpoint. */
static void load_all(void)
{
    struct tokenizer *t = NULL;
    struct template *chat = NULL;
    struct err err = {""};
    if (family_load_tokenizer(path, NULL, NULL, &t, &err) == ST_OK) tok_free(t);
    else assert_true(err.msg[0]);
    err.msg[0] = 0;
    if (template_load(path, &chat, &err) == ST_OK) template_free(chat);
    else assert_true(err.msg[0]);
}

static void test_mutations(void **state)
{
    (void)state;
    static const char *const goldens[] = {"gguf_bytes", "gguf_pieces", "gguf_scores", "gguf_merges"};
    for (int i = 0; i < 1200; i++) {
        static struct file f;
        read_golden(goldens[i % 4], &f);
        size_t whole = f.len;
        for (uint32_t n = 1 + rnd(4); n; n--) f.bytes[rnd((uint32_t)whole)] = (char)rnd(256);
        if (rnd(8) == 0) f.len = rnd((uint32_t)whole);
        write_file(&f);
        load_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),       cmocka_unit_test(test_roles),
        cmocka_unit_test(test_order_of_merges), cmocka_unit_test(test_refused_words),
        cmocka_unit_test(test_refused_numbers), cmocka_unit_test(test_refused_merge),
        cmocka_unit_test(test_refused_bytes),   cmocka_unit_test(test_padding),
        cmocka_unit_test(test_space_prefix),    cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_markers),         cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}

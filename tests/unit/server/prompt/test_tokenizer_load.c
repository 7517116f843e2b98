/* What tok_load refuses and how it says so, and that no file, however broken, harms it: truncations and
 * mutations of good files from a seed. Run from the root of the repository. */
#include "config/base/buf.h"
#include "config/base/json.h"
#include "tests/lib/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/kvasir-tok-XXXXXX";

static uint64_t rng_state = 4711;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 16) % below);
}

static void write_file(const char *name, const char *data, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    remove_file("tokenizer.json");
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
    return rmdir(dir);
}

/* The parts of a tokenizer.json; NULL: the default below. */
struct parts {
    const char *version, *normalizer, *pre, *post, *decoder, *added, *model;
};

static enum status load_parts(const struct parts *p, struct tokenizer **t, struct err *err)
{
    static const char *const model = "{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":"
                                     "1,\"b\":2,\"ab\":3},\"merges\":[\"a b\"]}";
    char text[4096];
    int n = snprintf(
        text, sizeof text,
        "{\"version\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,\"added_"
        "tokens\":%s,\"model\":%s}",
        p->version ? p->version : "\"1.0\"", p->normalizer ? p->normalizer : "null", p->pre ? p->pre : "null",
        p->post ? p->post : "null", p->decoder ? p->decoder : "{\"type\":\"Fuse\"}",
        p->added ? p->added : "[]", p->model ? p->model : model);
    assert_true(n > 0 && (size_t)n < sizeof text);
    write_file("tokenizer.json", text, (size_t)n);
    return tok_load(dir, t, err);
}

#define FOUR_MERGES "\"a b\",\"a b\",\"a b\",\"a b\","
#define VOCAB       "\"vocab\":{\"a\":1,\"b\":2,\"ab\":3,\"<unk>\":0}"
#define MODEL(more) "{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," more "}"
#define BYTE_LEVEL  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct parts parts;
        enum status st;
        const char *says;
    } cases[] = {
        {{.version = "\"2.0\""}, ST_UNSUPPORTED, "version"},
        {{.normalizer = "{\"type\":\"NFKC\"}"}, ST_UNSUPPORTED, "NFKC"},
        {{.normalizer = "{\"type\":\"Prepend\"}"}, ST_FORMAT, "prepend"},
        {{.normalizer = "{\"type\":\"Lowercase\"}"}, ST_UNSUPPORTED, "Lowercase"},
        {{.normalizer =
              "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}"},
         ST_UNSUPPORTED,
         "Lowercase"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, ST_FORMAT, "normalizers"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"\"}"},
         ST_UNSUPPORTED,
         "Replace"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"},
         ST_UNSUPPORTED,
         "empty"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}"}, ST_FORMAT, "content"},
        {{.normalizer = "[]"}, ST_FORMAT, "normalizer"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"\"}"}, ST_FORMAT, "replacement"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
                 "{\"type\":\"Metaspace\",\"replacement\":\"x\"}]}"},
         ST_UNSUPPORTED,
         "Metaspace"},
        {{.pre = "{\"type\":\"Digits\",\"individual_digits\":false}"}, ST_UNSUPPORTED, "Digits"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]+|unheard\"},\"behavior\":\"Isolated\","
                 "\"invert\":false}"},
         ST_UNSUPPORTED,
         "[a-z]+|unheard"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Sideways\"}"},
         ST_FORMAT,
         "behavior"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" "
                 "\"},\"behavior\":\"Isolated\",\"invert\":true}"},
         ST_UNSUPPORTED,
         "invert"},
        {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"}, ST_UNSUPPORTED, "add_prefix_space"},
        {{.pre = BYTE_LEVEL}, ST_UNSUPPORTED, "ByteLevel"},
        {{.decoder = "null"}, ST_UNSUPPORTED, "decoder"},
        {{.decoder = "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}"},
         ST_UNSUPPORTED,
         "Strip"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, ST_UNSUPPORTED, "BertProcessing"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
                  "\"Sequence\":{\"id\":\"A\"}}],"
                  "\"special_tokens\":{}}"},
         ST_FORMAT,
         "\"x\""},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
                  "\"Sequence\":{\"id\":\"A\"}}],"
                  "\"special_tokens\":{\"x\":{\"ids\":[9]}}}"},
         ST_FORMAT,
         "no token"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}],\"special_"
                  "tokens\":{}}"},
         ST_UNSUPPORTED,
         "single"},
        {{.added = "[{\"id\":9,\"content\":\"a\"}]"}, ST_FORMAT, "ids 1 and 9"},
        {{.added = "[{\"id\":1,\"content\":\"zz\"}]"}, ST_FORMAT, "two tokens"},
        {{.added = "[{\"content\":\"zz\"}]"}, ST_FORMAT, "no id"},
        {{.added = "[{\"id\":4294967297,\"content\":\"zz\"}]"}, ST_FORMAT, "no id"},
        {{.added = "[{\"id\":4,\"content\":\"zz\",\"lstrip\":3}]"}, ST_FORMAT, "lstrip"},
        {{.added = "{\"a\":1}"}, ST_FORMAT, "added_tokens"},
        {{.model = "{\"type\":\"Unigram\"}"}, ST_UNSUPPORTED, "Unigram"},
        {{.model = "[]"}, ST_FORMAT, "model"},
        {{.model = MODEL("\"dropout\":0.1," VOCAB ",\"merges\":[]")}, ST_UNSUPPORTED, "dropout"},
        {{.model = MODEL("\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]")},
         ST_UNSUPPORTED,
         "end_of_word_suffix"},
        {{.model = MODEL("\"continuing_subword_prefix\":\"##\"," VOCAB ",\"merges\":[]")},
         ST_UNSUPPORTED,
         "continuing_subword_prefix"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"a c\"]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"a b\",\"b a\"]")}, ST_FORMAT, "entry 1"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"a b\",\"b a\",\"a b c\"]")}, ST_FORMAT, "entry 1"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"#version: 0.2\",\"a b\",\"b a\"]")}, ST_FORMAT, "entry 2"},
        {{.model = MODEL(VOCAB ",\"merges\":[" FOUR_MERGES FOUR_MERGES FOUR_MERGES FOUR_MERGES
                               "\"a b\",\"b a\",\"a b\"]")},
         ST_FORMAT,
         "entry 17"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"a b c\"]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[\"ab\"]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[\" ab\"]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[[\"a\",\"b\",\"c\"]]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[[\"a\",1]]")}, ST_FORMAT, "entry 0"},
        {{.model = MODEL(VOCAB ",\"merges\":[[\"a\",\"b\"],\"a b\"]")}, ST_FORMAT, "entry 1"},
        {{.model = MODEL(VOCAB)}, ST_FORMAT, "merges"},
        {{.model = MODEL("\"merges\":[]")}, ST_FORMAT, "vocab"},
        {{.model = MODEL("\"vocab\":{\"<unk>\":0,\"a\":-1},\"merges\":[]")}, ST_FORMAT, "entry 1"},
        {{.model = MODEL("\"vocab\":{\"<unk>\":0,\"a\":0},\"merges\":[]")}, ST_FORMAT, "two tokens"},
        {{.model = MODEL("\"vocab\":{\"<unk>\":0,\"a\":4000000},\"merges\":[]")}, ST_FORMAT, "entry 1"},
        {{.model = "{\"type\":\"BPE\",\"unk_token\":\"zz\"," VOCAB ",\"merges\":[]}"}, ST_FORMAT, "zz"},
        {{.model = MODEL(VOCAB ",\"merges\":[],\"fuse_unk\":1")}, ST_FORMAT, "fuse_unk"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = NULL;
        struct err err = {{0}};
        enum status st = load_parts(&cases[i].parts, &t, &err);
        if (st != cases[i].st || !strstr(err.msg, cases[i].says))
            fail_msg("case %zu (%s): %s: %s", i, cases[i].says, status_name(st), err.msg);
        assert_non_null(strstr(err.msg, "tokenizer.json"));
        assert_null(t);
    }
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    assert_int_equal(tok_load("/nonexistent", &t, &err), ST_NOT_FOUND);
    write_file("tokenizer.json", "{\"version\":\"\xFF\"}", 15);
    assert_int_equal(tok_load(dir, &t, &err), ST_FORMAT);
    assert_non_null(strstr(err.msg, "UTF-8"));
}

static void assert_encodes(const struct tokenizer *t, const char *text, size_t count, const uint32_t *want)
{
    struct tok_run run = {text, strlen(text), TOK_CONTROL_ALL};
    struct tok_ids ids;
    assert_int_equal(tok_encode(t, &run, 1, false, SIZE_MAX, &ids, NULL), ST_OK);
    assert_int_equal(ids.count, count);
    assert_memory_equal(ids.ids, want, count * sizeof *want);
    tok_ids_free(&ids);
}

/* The small cases of merges, unknown symbols and splits, by hand. */
static void test_small_models(void **state)
{
    (void)state;
#define ABC                                                                                                  \
    "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"c\":3,\"ab\":4,\"bc\":5,\"abc\":6,\"aa\":7,\" \":8,\"a "       \
    "\":9,\" a\":10},"
    static const struct {
        struct parts parts;
        const char *text;
        size_t count;
        uint32_t ids[8];
    } cases[] = {
        {{.model = MODEL(ABC "\"merges\":[\"b c\",\"a b\",\"a bc\",\"ab c\"]")}, "abc", 1, {6}},
        {{.model = MODEL(ABC "\"merges\":[\"b c\",\"a b\",\"a bc\",\"ab c\"]")}, "ababc", 2, {4, 6}},
        {{.model = MODEL(ABC "\"merges\":[[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"bc\"],[\"ab\",\"c\"]]")},
         "ababc",
         2,
         {4, 6}},
        {{.model = MODEL(ABC "\"merges\":[\"#version: 0.2\",\"a a\"]")}, "aaa", 2, {7, 1}},
        {{.model = MODEL(ABC "\"merges\":[\"a a\"]")}, "aaaa", 2, {7, 7}},
        {{.model = MODEL(ABC "\"merges\":[\"a b\",\"b c\"]")}, "abc", 2, {4, 3}},
        {{.model = MODEL(ABC "\"merges\":[\"a b\",\"b c\",\"a b\"]")},
         "abc",
         2,
         {1, 5}}, /* the last of two equal merges counts */
        {{.model = MODEL(ABC "\"merges\":[],\"fuse_unk\":true")}, "a??b", 3, {1, 0, 2}},
        {{.model = MODEL(ABC "\"merges\":[],\"fuse_unk\":false")}, "a??b", 4, {1, 0, 0, 2}},
        /* without an unknown token what has no token is dropped */
        {{.model = "{\"type\":\"BPE\"," ABC "\"merges\":[\"a b\"]}"}, "a??b?", 1, {4}},
        {{.model = MODEL(ABC "\"merges\":[\"a b\"],\"ignore_merges\":true")}, "abc", 1, {6}},
        {{.model = MODEL(ABC "\"merges\":[[\"a\",\" \"],[\" \",\"a\"]]")}, "a a", 2, {9, 1}},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithNext\"}",
          .model = MODEL(ABC "\"merges\":[[\"a\",\" \"],[\" \",\"a\"]]")},
         "a a",
         2,
         {1, 10}},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\"}",
          .model = MODEL(ABC "\"merges\":[[\" \",\"a\"],[\"a\",\" \"]]")},
         "a a",
         2,
         {9, 1}},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\"}",
          .model = MODEL(ABC "\"merges\":[[\"a\",\" \"],[\" \",\"a\"]]")},
         "a a",
         3,
         {1, 8, 1}},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Removed\"}",
          .model = MODEL(ABC "\"merges\":[]")},
         " a  a",
         2,
         {1, 1}},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Contiguous\"}",
          .model = MODEL(ABC "\"merges\":[\"a a\",\"a b\"]")},
         "baaab",
         4,
         {2, 7, 1, 2}},
        {{.normalizer =
              "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"xy\"},"
              "\"content\":\"a\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"bc\"}]}",
          .model = MODEL(ABC "\"merges\":[\"b c\"]")},
         "xya",
         2,
         {5, 5}},
        {{.added = "[{\"id\":11,\"content\":\"ab\\u0000\"},{\"id\":12,\"content\":\"\"},{\"id\":13,"
                   "\"content\":\"ca\"},{\"id\":"
                   "14,\"content\":\"cab\"}]",
          .model = MODEL(ABC "\"merges\":[]")},
         "cabca",
         2,
         {14, 13}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = NULL;
        struct err err = {{0}};
        if (load_parts(&cases[i].parts, &t, &err)) fail_msg("case %zu: %s", i, err.msg);
        assert_encodes(t, cases[i].text, cases[i].count, cases[i].ids);
        tok_free(t);
    }
}

static void test_config_overrides(void **state)
{
    (void)state;
    static const char config[] =
        "{\"added_tokens_decoder\":{\"3\":{\"content\":\"ab\",\"special\":true},\"77\":{\"content\":"
        "\"nowhere\"}},\"bos_token\":\"b\",\"eos_token\":\"elsewhere\"}";
    static const char map[] = "{\"bos_token\":\"a\"}";
    write_file("tokenizer_config.json", config, sizeof config - 1);
    write_file("special_tokens_map.json", map, sizeof map - 1);
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    struct parts parts = {.model = MODEL(VOCAB ",\"merges\":[]")};
    if (load_parts(&parts, &t, &err)) fail_msg("%s", err.msg);
    assert_true(tok_is_special(t, 3));
    assert_true(tok_is_special(t, 2)); /* named: special from now on */
    assert_false(tok_is_added(t, 1));
    assert_string_equal(tok_special(t, "bos_token"),
                        "b"); /* beside added_tokens_decoder the older file doesn't count */
    assert_string_equal(tok_special(t, "eos_token"), "elsewhere");
    /* A token that the vocabulary lacks gets the next id, not the one of the file. */
    assert_encodes(t, "aabnowhereelsewhere", 4, (uint32_t[]){1, 3, 4, 5});
    tok_free(t);
    static const char bad[] = "{\"added_tokens_decoder\":{\"3\":5}}";
    write_file("tokenizer_config.json", bad, sizeof bad - 1);
    assert_int_equal(load_parts(&parts, &t, &err), ST_FORMAT);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
}

static char *read_golden(const char *name, size_t *len)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/tokenizer/%s/tokenizer.json", name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    char *s = malloc(1 << 20);
    *len = fread(s, 1, 1 << 20, f);
    fclose(f);
    return s;
}

static char *text_at(const struct json_doc *d, uint32_t list, uint32_t at)
{
    char *text = json_str_dup(d, json_at(d, list, at), NULL);
    assert_non_null(text);
    return text;
}

static uint32_t number_at(const struct json_doc *d, uint32_t list, uint32_t at)
{
    uint64_t number;
    assert_true(json_uint(d, json_at(d, list, at), &number));
    return (uint32_t)number;
}

/* One of side_files.json: {"base", "files": [name, text, ...], "added": [[id, content, special]], "texts":
 * [[text, [ids]]]}. */
static void check_side_files(const struct json_doc *d, uint32_t c, size_t number)
{
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    size_t len;
    char *base = json_str_dup(d, json_get(d, c, "base"), NULL), *golden = read_golden(base, &len);
    uint32_t files = json_get(d, c, "files"), added = json_get(d, c, "added"),
             texts = json_get(d, c, "texts");
    write_file("tokenizer.json", golden, len);
    for (uint32_t i = 0; i < json_count(d, files); i += 2) {
        char *name = text_at(d, files, i), *text = text_at(d, files, i + 1);
        write_file(name, text, strlen(text));
        free(name);
        free(text);
    }
    if (tok_load(dir, &t, &err)) fail_msg("case %zu: %s", number, err.msg);
    uint32_t count = 0;
    for (uint32_t id = 0; id < tok_vocab_size(t); id++) count += tok_is_added(t, id);
    if (count != json_count(d, added)) fail_msg("case %zu: %u added tokens", number, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = json_at(d, added, i), id = number_at(d, row, 0), found = 0;
        char *content = text_at(d, row, 1);
        bool special;
        assert_true(json_bool(d, json_at(d, row, 2), &special));
        if (!tok_id_of(t, content, strlen(content), &found) || found != id || !tok_is_added(t, id) ||
            tok_is_special(t, id) != special)
            fail_msg("case %zu: \"%s\": %u, not %u, or special, or not", number, content, found, id);
        free(content);
    }
    for (uint32_t i = 0; i < json_count(d, texts); i++) {
        uint32_t row = json_at(d, texts, i), ids = json_at(d, row, 1), want[256];
        char *text = text_at(d, row, 0);
        assert_true(json_count(d, ids) <= 256);
        for (uint32_t k = 0; k < json_count(d, ids); k++) want[k] = number_at(d, ids, k);
        assert_encodes(t, text, json_count(d, ids), want);
        free(text);
    }
    tok_free(t);
    for (uint32_t i = 0; i < json_count(d, files); i += 2) {
        char *name = text_at(d, files, i);
        remove_file(name);
        free(name);
    }
    free(base);
    free(golden);
}

/* Random side files beside a tokenizer.json: added tokens, special ones and ids as AutoTokenizer has them. */
static void test_side_files(void **state)
{
    (void)state;
    struct json_doc d;
    struct err err;
    assert_int_equal(json_doc_load("tests/golden/tokenizer/side_files.json", 1 << 20, &d, &err), ST_OK);
    assert_true(json_count(&d, 0) >= 40);
    for (uint32_t i = 0; i < json_count(&d, 0); i++) check_side_files(&d, json_at(&d, 0, i), i);
    json_free(&d);
}

/* A vocab.json in which a byte's symbol has the byte as its id; more: further entries. */
static void write_vocab(const char *more)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    uint32_t moved = 256;
    for (uint32_t i = 0; i < 256; i++) {
        bool shown = (i > 0x20 && i < 0x7F) || (i > 0xA0 && i != 0xAD);
        assert_int_equal(buf_addf(&b, "%s\"\\u%04x\":%u", i ? "," : "{", shown ? i : moved++, i), ST_OK);
    }
    assert_int_equal(buf_addf(&b, "%s}", more), ST_OK);
    write_file("vocab.json", b.data, b.len);
    buf_fini(&b);
}

/* Without tokenizer.json. */
static void test_vocab_and_merges(void **state)
{
    (void)state;
    static const char merges[] = "#version: 0.2\na \"\n1 1\n\xC3\x83 \xC2\xA9\r\n\n";
    static const char config[] =
        "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<|\\\"|>\","
        "\"added_tokens_decoder\":{\"300\":{\"content\":\"<|\\\"|>\",\"special\":true},"
        "\"301\":{\"content\":\"<x>\",\"special\":false}}}";
    static const char other[] = "{\"tokenizer_class\":\"GPT2Tokenizer\"}",
                      list[] = "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"added_tokens_decoder\":[1,[2],3]}";
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    remove_file("tokenizer.json");
    write_vocab(",\"a\\\"\":256,\"11\":257,\"\\u00c3\\u00a9\":258");
    write_file("merges.txt", merges, sizeof merges - 1);
    write_file("tokenizer_config.json", config, sizeof config - 1);
    if (tok_load(dir, &t, &err)) fail_msg("%s", err.msg);
    /* Words are split, digits stand alone, and text is composed (NFC). */
    assert_encodes(t, "a\"11e\xCC\x81<x>", 6, (uint32_t[]){'a', '"', '1', '1', 258, 260});
    assert_true(tok_is_special(t, 259));
    assert_false(tok_is_special(t, 260));
    assert_string_equal(tok_special(t, "eos_token"), "<|\"|>");
    tok_free(t);
    t = NULL;
    write_file("tokenizer_config.json", other, sizeof other - 1);
    assert_int_equal(tok_load(dir, &t, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.msg, "tokenizer.json"));
    write_file("tokenizer_config.json", list, sizeof list - 1);
    assert_int_equal(tok_load(dir, &t, &err), ST_FORMAT);
    assert_non_null(strstr(err.msg, "added_tokens_decoder"));
    write_file("tokenizer_config.json", config, sizeof config - 1);
    write_file("merges.txt", "a ?", 3);
    assert_int_equal(tok_load(dir, &t, &err), ST_FORMAT);
    remove_file("merges.txt");
    assert_int_equal(tok_load(dir, &t, &err), ST_NOT_FOUND);
    remove_file("vocab.json");
    remove_file("tokenizer_config.json");
}

/* ---- mutations ---- */

/* Loads whatever stands in the directory; when that succeeds, uses all of it. Returns whether it did. */
static bool survives(void)
{
    static const char text[] = "Hello  world's\n\n\xE4\xBD\xA0 12345 <bos><|im_start|>[LR] "
                               "cafe\xCC\x81\t\t<0x41> \xF0\x9F\x91\x8D don't sol \0 the end";
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    enum status st = tok_load(dir, &t, &err);
    if (st) {
        assert_null(t);
        assert_true(err.msg[0] != '\0');
        return false;
    }
    struct tok_run runs[] = {{text, 20, TOK_CONTROL_ALL},
                             {text + 20, 25, TOK_CONTROL_NONE},
                             {text + 45, sizeof text - 46, TOK_CONTROL_NONSPECIAL}};
    struct tok_ids ids;
    assert_int_equal(tok_encode(t, runs, 3, true, SIZE_MAX, &ids, &err), ST_OK);
    struct detok d;
    struct buf out;
    buf_init(&out, 1 << 24);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids.count; i++) assert_int_equal(detok_push(&d, ids.ids[i], &out), ST_OK);
    assert_int_equal(detok_flush(&d, &out), ST_OK);
    buf_fini(&out);
    tok_ids_free(&ids);
    tok_free(t);
    return true;
}

static void test_truncations(void **state)
{
    (void)state;
    size_t len;
    char *s = read_golden("gpt2", &len);
    while (len > 0 && s[len - 1] == '\n') len--;
    for (size_t n = 0; n < len; n += n < 600 ? 1 : 1 + rnd(60)) {
        write_file("tokenizer.json", s, n);
        assert_false(survives());
    }
    free(s);
}

static void test_mutations(void **state)
{
    (void)state;
    static const char *const names[] = {"gemma", "qwen2", "llama3", "sp_partial", "sp_unk", "qwen3_5"};
    static const char *const words[] = {"null",
                                        "true",
                                        "{}",
                                        "[]",
                                        "\"\"",
                                        "0",
                                        "-1",
                                        "1e99",
                                        "4294967295",
                                        "\"a\"",
                                        "{\"type\":\"NFC\"}",
                                        "2097151",
                                        "\"\\ud800\"",
                                        "[\"a\",\"b\"]"};
    size_t loaded = 0, refused = 0;
    for (int round = 0; round < 400; round++) {
        size_t len;
        char *s = read_golden(names[rnd(6)], &len);
        for (uint32_t edits = 1 + rnd(3); edits > 0; edits--) {
            uint32_t at = rnd(3) ? rnd((uint32_t)len) : rnd(1500),
                     kind = rnd(4); /* the components stand at the front */
            if (kind == 0) {
                s[at] = (char)rnd(256);
            } else if (kind == 1) { /* cut a piece out */
                uint32_t n = 1 + rnd(40);
                if (n > len - at) n = (uint32_t)len - at;
                memmove(s + at, s + at + n, len - at - n);
                len -= n;
            } else if (kind == 2) { /* another value in the place of one */
                const char *w = words[rnd(sizeof words / sizeof *words)];
                char *colon = memchr(s + at, ':', len - at),
                     *end = colon ? memchr(colon, ',', (size_t)(s + len - colon)) : NULL;
                if (!end) continue;
                size_t n = strlen(w);
                memmove(colon + 1 + n, end, (size_t)(s + len - end));
                memcpy(colon + 1, w, n);
                len = (size_t)(colon - s) + 1 + n + (len - (size_t)(end - s));
            } else { /* copy a piece elsewhere */
                uint32_t n = 1 + rnd(60), from = rnd((uint32_t)len);
                if (n > len - at) n = (uint32_t)len - at;
                if (n > len - from) n = (uint32_t)len - from;
                memmove(s + at, s + from, n);
            }
        }
        write_file("tokenizer.json", s, len);
        if (survives()) loaded++;
        else refused++;
        free(s);
    }
    assert_true(refused > 50 && loaded > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_small_models),
        cmocka_unit_test(test_config_overrides), cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_mutations),        cmocka_unit_test(test_vocab_and_merges),
        cmocka_unit_test(test_side_files),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

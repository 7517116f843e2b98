/* The tokenizer against the answers of the `tokenizers` library (tests/golden/tokenizer, made by
 * scripts/reference/make_tokenizer.py) and against its own properties: cutting, caching, heap and runs never
 * change ids. Run from the root of the repository.
 *
 * With arguments it works on files instead, for scripts/reference/compare_tokenizer.py and for timing:
 *   test_tokenizer --dir DIR --corpus FILE            a line of ids for every text of FILE
 * ("<bytes>\n<text>\n" each) test_tokenizer --dir DIR --special --corpus FILE  the same with add_special
 *   test_tokenizer --dir DIR --decode FILE            for every line of ids "<bytes>\n<text>\n";
 * --skip-special: without special tokens test_tokenizer --bench DIR FILE                   load time, and
 * speed on FILE cut into texts of several sizes */
#include "config/base/json.h"
#include "config/base/utf8.h"
#include "engine/families/families.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"
#include "tests/lib/tokens.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/tokenizer/"
enum { SEED = 12345 };

static const char *const all_dirs[] = {
    "qwen2",       "llama3",     "qwen3_5",     "gpt2",        "gemma",       "sp_unk",      "sp_partial",
    "sp_cross",    "gguf_bytes", "gguf_pieces", "gguf_scores", "gguf_merges", "gguf_prefix", "gguf_numbers",
    "gguf_tekken", "bytes_lost", "bytes_unk",   "threes",      "bare",        "respelt",     "gguf_threes"};
enum { DIR_COUNT = sizeof all_dirs / sizeof *all_dirs };

static uint64_t rng_state = SEED;
static uint32_t rnd(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 16) % below);
}

static struct tokenizer *load(const char *name)
{
    char path[256];
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    bool gguf = strncmp(name, "gguf_", 5) == 0; /* by scripts/reference/make_gguf_tokenizer.py */
    snprintf(path, sizeof path, GOLDEN "%s%s", name, gguf ? "/model.gguf" : "");
    if (family_load_tokenizer(path, NULL, NULL, &t, &err)) fail_msg("%s: %s", path, err.msg);
    return t;
}

static struct json_doc load_json(const char *name)
{
    char path[256];
    struct json_doc d;
    struct err err = {{0}};
    snprintf(path, sizeof path, GOLDEN "%s", name);
    if (json_doc_load(path, 1 << 24, &d, &err)) fail_msg("%s", err.msg);
    return d;
}

static struct tok_ids encode(const struct tokenizer *t, const char *s, size_t len, enum tok_control control,
                             bool special)
{
    struct tok_run run = {s, len, control};
    struct tok_ids ids;
    struct err err = {{0}};
    if (tok_encode(t, &run, 1, special, SIZE_MAX, &ids, &err)) fail_msg("%s", err.msg);
    return ids;
}

static void assert_ids(const struct json_doc *d, uint32_t want, struct tok_ids got, const char *text,
                       const char *dir)
{
    uint32_t n = json_count(d, want), item = json_first(d, want);
    bool same = n == got.count;
    for (uint32_t i = 0; i < n && same; i++, item = json_next(d, item)) {
        uint64_t id = 0;
        same = json_uint(d, item, &id) && id == got.ids[i];
    }
    if (!same) fail_msg("%s: other ids for \"%s\" (%zu, reference %u)", dir, text, got.count, n);
}

static void assert_same(struct tok_ids a, struct tok_ids b)
{
    assert_int_equal(a.count, b.count);
    if (a.count) assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
}

static struct buf decode(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip)
{
    struct detok d;
    struct buf out;
    buf_init(&out, 1 << 28);
    detok_init(&d, t, skip);
    assert_int_equal(buf_adds(&out, ""), ST_OK);
    for (size_t i = 0; i < count; i++) {
        size_t before = out.len;
        assert_int_equal(detok_push(&d, ids[i], &out), ST_OK);
        assert_true(utf8_valid(out.data + before, out.len - before)); /* every delta ends on a character */
    }
    assert_int_equal(detok_flush(&d, &out), ST_OK);
    return out;
}

static void test_golden_encode(void **state)
{
    (void)state;
    size_t cases = 0, with_special = 0;
    for (int k = 0; k < DIR_COUNT; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s/golden.json", all_dirs[k]);
        struct json_doc d = load_json(name);
        struct tokenizer *t = load(all_dirs[k]);
        uint32_t list = json_get(&d, 0, "encode"), item = json_first(&d, list);
        for (uint32_t i = 0; i < json_count(&d, list); i++, item = json_next(&d, item), cases++) {
            size_t len;
            char *text = json_str_dup(&d, json_get(&d, item, "text"), &len);
            struct tok_ids ids = encode(t, text, len, TOK_CONTROL_ALL, false);
            assert_ids(&d, json_get(&d, item, "ids"), ids, text, all_dirs[k]);
            tok_ids_free(&ids);
            if (json_get(&d, item, "special") != JSON_NONE) {
                ids = encode(t, text, len, TOK_CONTROL_ALL, true);
                assert_ids(&d, json_get(&d, item, "special"), ids, text, all_dirs[k]);
                tok_ids_free(&ids);
                with_special++;
            }
            free(text);
        }
        tok_free(t);
        json_free(&d);
    }
    assert_true(cases > 1000 && with_special > 300);
}

static void test_golden_decode(void **state)
{
    (void)state;
    size_t cases = 0;
    for (int k = 0; k < DIR_COUNT; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s/golden.json", all_dirs[k]);
        struct json_doc d = load_json(name);
        struct tokenizer *t = load(all_dirs[k]);
        uint32_t list = json_get(&d, 0, "decode"), item = json_first(&d, list);
        for (uint32_t i = 0; i < json_count(&d, list); i++, item = json_next(&d, item), cases++) {
            uint32_t ids[64], want = json_get(&d, item, "ids"), node = json_first(&d, want),
                              n = json_count(&d, want);
            assert_true(n <= 64);
            for (uint32_t j = 0; j < n; j++, node = json_next(&d, node)) {
                uint64_t id = 0;
                assert_true(json_uint(&d, node, &id));
                ids[j] = (uint32_t)id;
            }
            for (int skip = 0; skip < 2; skip++) {
                size_t len;
                char *text = json_str_dup(&d, json_get(&d, item, skip ? "skipped" : "text"), &len);
                struct buf out = decode(t, ids, n, skip);
                if (out.len != len || memcmp(out.data, text, len) != 0)
                    fail_msg("%s: decode %u: \"%s\", reference \"%s\"", all_dirs[k], i, out.data, text);
                buf_fini(&out);
                free(text);
            }
        }
        tok_free(t);
        json_free(&d);
    }
    assert_true(cases > 200);
}

static void test_golden_splits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum tok_pattern pattern;
    } p[] = {{"qwen2", TOK_PATTERN_DIGIT},         {"llama3", TOK_PATTERN_DIGITS3},
             {"qwen3_5", TOK_PATTERN_DIGIT_MARKS}, {"gpt2", TOK_PATTERN_PLAIN},
             {"tekken", TOK_PATTERN_CASED},        {"numbers", TOK_PATTERN_NUMBERS},
             {"digits", TOK_PATTERN_DIGITS},       {"bare", TOK_PATTERN_DIGIT_BARE},
             {"numbers3", TOK_PATTERN_NUMBERS3}};
    struct json_doc d = load_json("splits.json");
    uint32_t texts = json_get(&d, 0, "texts"), answers = json_get(&d, 0, "bytes");
    assert_true(json_count(&d, texts) > 150);
    for (size_t k = 0; k < sizeof p / sizeof *p; k++) {
        uint32_t want = json_get(&d, answers, p[k].name), words = json_first(&d, want),
                 text = json_first(&d, texts);
        for (uint32_t i = 0; i < json_count(&d, texts);
             i++, text = json_next(&d, text), words = json_next(&d, words)) {
            size_t len, at = 0;
            char *s = json_str_dup(&d, text, &len);
            uint32_t word = json_first(&d, words);
            for (uint32_t w = 0; w < json_count(&d, words); w++, word = json_next(&d, word)) {
                uint64_t bytes = 0;
                assert_true(json_uint(&d, word, &bytes));
                if (bytes == 0) continue;
                size_t end = tok__next_word(p[k].pattern, (uint8_t *)s, len, at);
                if (end - at != bytes)
                    fail_msg("%s: \"%s\": word at %zu has %zu bytes, reference %u", p[k].name, s, at,
                             end - at, (unsigned)bytes);
                at = end;
            }
            assert_int_equal(at, len);
            free(s);
        }
    }
    json_free(&d);
}

static void test_golden_nfc(void **state)
{
    (void)state;
    static struct tokenizer t = {.norm_count = 1, .norms = {{.kind = TOK_NORM_NFC}}};
    struct json_doc d = load_json("nfc.json");
    uint32_t pair = json_first(&d, 0);
    size_t changed = 0;
    for (uint32_t i = 0; i < json_count(&d, 0); i++, pair = json_next(&d, pair)) {
        size_t len, want_len;
        uint32_t first = json_first(&d, pair);
        char *s = json_str_dup(&d, first, &len), *want = json_str_dup(&d, json_next(&d, first), &want_len);
        struct tok_textbuf out = {.mixed = false};
        struct tok_text x = {.s = (uint8_t *)s, .len = len};
        assert_int_equal(tok__normalize(t.norms, t.norm_count, &x, true, &out), ST_OK);
        if (out.len != want_len || memcmp(out.s, want, want_len) != 0)
            fail_msg("NFC of \"%s\" is \"%.*s\", reference \"%s\"", s, (int)out.len, out.s, want);
        bool same = len == want_len && memcmp(s, want, len) == 0;
        changed += !same;
        if (!same) assert_false(tok__is_normal(&t, (uint8_t *)s, len));
        tok__textbuf_fini(&out);
        free(s);
        free(want);
    }
    assert_true(changed > 50);
    json_free(&d);
}

/* ---- properties ---- */

/* Random text from pieces that matter to these vocabularies. */
static size_t random_text(char *dst, size_t cap)
{
    static const char *const parts[] = {"the",
                                        " of",
                                        " and",
                                        "\n",
                                        "  ",
                                        " ",
                                        "\t",
                                        "12",
                                        "'s",
                                        "'LL",
                                        "don't",
                                        "\xE4\xBD\xA0",
                                        "\xE5\xA5\xBD",
                                        "e\xCC\x81",
                                        "\xCC\xA7\xCC\x81",
                                        "\xC3\xA9",
                                        "\xF0\x9F\x91\x8D",
                                        "\xE2\x96\x81",
                                        "a",
                                        "b",
                                        "aaaa",
                                        "return x;",
                                        "\xE1\x84\x80\xE1\x85\xA1",
                                        "!!!",
                                        "<0x41>",
                                        "\xC2\xA0",
                                        "Hello world",
                                        "\r\n",
                                        "\xD0\xBF\xD1\x80\xD0\xB8"};
    size_t n = 0, pieces = rnd(30);
    for (size_t i = 0; i < pieces; i++) {
        const char *p = parts[rnd(sizeof parts / sizeof *parts)];
        size_t len = strlen(p);
        if (n + len + 1 > cap) break;
        memcpy(dst + n, p, len);
        n += len;
        if (rnd(40) == 0) dst[n++] = '\0';
    }
    return n;
}

static void test_cut_equals_uncut(void **state)
{
    (void)state;
    static const char *const proved[] = {"gemma",       "sp_cross",    "gguf_pieces",
                                         "gguf_scores", "gguf_merges", "gguf_prefix"};
    for (int k = 0; k < DIR_COUNT; k++) {
        struct tokenizer *t = load(all_dirs[k]);
        bool provable = false;
        for (size_t i = 0; i < sizeof proved / sizeof *proved; i++)
            provable = provable || strcmp(all_dirs[k], proved[i]) == 0;
        assert_true((t->joints != NULL) == provable);
        for (int i = 0; i < 3000 && provable; i++) {
            char s[512];
            size_t n = random_text(s, sizeof s);
            struct tok_ids cut = encode(t, s, n, TOK_CONTROL_ALL, false);
            uint64_t *joints = t->joints;
            t->joints = NULL;
            struct tok_ids uncut = encode(t, s, n, TOK_CONTROL_ALL, false);
            t->joints = joints;
            assert_same(cut, uncut);
            tok_ids_free(&cut);
            tok_ids_free(&uncut);
        }
        tok_free(t);
    }
}

/* The definition: lowest rank first, leftmost of equals, one at a time. */
static size_t naive_merges(const struct tok_merges *m, uint32_t *ids, size_t n)
{
    for (;;) {
        size_t at = 0;
        uint32_t best = TOK_NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = tok__merge_rank(m, ids[i], ids[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == TOK_NO_RANK) return n;
        ids[at] = m->merged[best];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_merges_equal_naive(void **state)
{
    (void)state;
    struct tokenizer *t = load("qwen2");
    static const char alphabet[] = "theroundw ";
    size_t longest = 0, merged = 0;
    for (int i = 0; i < 4000; i++) {
        uint8_t s[400];
        uint32_t want[400];
        size_t n = 1 + rnd(i % 10 ? 60 : 399);
        for (size_t j = 0; j < n; j++)
            want[j] = t->byte_id[s[j] = (uint8_t)alphabet[rnd(sizeof alphabet - 1)]];
        struct tok_encoder e = {.t = t, .ids_max = SIZE_MAX, .base = s};
        assert_int_equal(tok__encode_word(&e, s, n), ST_OK);
        size_t count = naive_merges(&t->merges, want, n);
        assert_int_equal(e.count, count);
        assert_memory_equal(e.ids, want, count * sizeof *want);
        if (n > longest) longest = n;
        merged += n - count;
        tok__encoder_fini(&e);
    }
    assert_true(longest > 300 && merged > 1000);
    tok_free(t);
}

/* A text longer than the threshold of the word cache is tokenized as its lines are. */
static void test_cache_changes_nothing(void **state)
{
    (void)state;
    struct tokenizer *t = load("qwen2");
    static char s[40000];
    size_t n = 0;
    while (n < sizeof s - 600) {
        n += random_text(s + n, 500);
        s[n++] = 'x';
    }
    struct tok_run run = {s, n, TOK_CONTROL_NONE};
    struct tok_ids cached, plain = {NULL, 0};
    assert_int_equal(tok_encode(t, &run, 1, false, SIZE_MAX, &cached, NULL), ST_OK);
    static struct tokenizer nfc = {.norm_count = 1, .norms = {{.kind = TOK_NORM_NFC}}};
    struct tok_textbuf norm = {.mixed = false};
    struct tok_text x = {.s = (uint8_t *)s, .len = n};
    assert_int_equal(tok__normalize(nfc.norms, nfc.norm_count, &x, true, &norm), ST_OK);
    struct tok_encoder e = {.t = t, .ids_max = SIZE_MAX, .base = norm.s};
    for (size_t at = 0; at < norm.len;) {
        size_t end = tok__next_word(TOK_PATTERN_DIGIT, norm.s, norm.len, at);
        assert_int_equal(tok__encode_word(&e, norm.s + at, end - at), ST_OK);
        at = end;
    }
    plain.ids = e.ids;
    plain.count = e.count;
    assert_same(cached, plain);
    tok__encoder_fini(&e);
    tok__textbuf_fini(&norm);
    tok_ids_free(&cached);
    tok_free(t);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct tokenizer *qwen = load("qwen3_5"), *gemma = load("gemma"), *gpt2 = load("gpt2");
    static struct tokenizer nfc = {.norm_count = 1, .norms = {{.kind = TOK_NORM_NFC}}};
    for (int i = 0; i < 2000; i++) {
        char s[512];
        size_t n = random_text(s, sizeof s);
        struct tok_ids ids = encode(gpt2, s, n, TOK_CONTROL_NONE, false);
        struct buf out = decode(gpt2, ids.ids, ids.count, true);
        assert_true(out.len == n && memcmp(out.data, s, n) == 0);
        buf_fini(&out);
        tok_ids_free(&ids);

        struct tok_textbuf norm = {.mixed = false};
        struct tok_text x = {.s = (uint8_t *)s, .len = n};
        assert_int_equal(tok__normalize(nfc.norms, nfc.norm_count, &x, true, &norm), ST_OK);
        ids = encode(qwen, s, n, TOK_CONTROL_NONE, false);
        out = decode(qwen, ids.ids, ids.count, true);
        assert_true(out.len == norm.len && (norm.len == 0 || memcmp(out.data, norm.s, norm.len) == 0));
        buf_fini(&out);
        tok_ids_free(&ids);
        tok__textbuf_fini(&norm);

        if (memmem(s, n, "\xE2\x96\x81", 3)) continue; /* U+2581 decodes to a space */
        ids = encode(gemma, s, n, TOK_CONTROL_NONE, false);
        out = decode(gemma, ids.ids, ids.count, true);
        assert_true(out.len == n && memcmp(out.data, s, n) == 0);
        buf_fini(&out);
        tok_ids_free(&ids);
    }
    tok_free(qwen);
    tok_free(gemma);
    tok_free(gpt2);
}

/* ---- runs and control ---- */

static void test_runs_are_one_text(void **state)
{
    (void)state;
    for (int k = 0; k < DIR_COUNT; k++) {
        struct tokenizer *t = load(all_dirs[k]);
        for (int i = 0; i < 300; i++) {
            char s[512];
            size_t n = random_text(s, sizeof s), run_count = 0, at = 0;
            struct tok_run runs[600];
            enum tok_control control = (enum tok_control)rnd(3);
            while (at < n) { /* borders anywhere, also inside characters */
                size_t len = rnd(9);
                if (len > n - at) len = n - at;
                runs[run_count++] = (struct tok_run){s + at, len, control};
                at += len;
            }
            struct tok_ids whole = encode(t, s, n, control, true), cut;
            assert_int_equal(tok_encode(t, runs, run_count, true, SIZE_MAX, &cut, NULL), ST_OK);
            assert_same(whole, cut);
            tok_ids_free(&cut);
            tok_ids_free(&whole);
        }
        tok_free(t);
    }
}

struct added_case {
    const char *text[4];
    enum tok_control control[4];
    uint32_t found; /* added tokens among the ids */
};

static void test_control_of_added_tokens(void **state)
{
    (void)state;
#define A TOK_CONTROL_ALL
#define S TOK_CONTROL_NONSPECIAL
#define N TOK_CONTROL_NONE
    static const struct added_case cases[] = {
        {{"<|im_start|>user"}, {A}, 1},
        {{"<|im_start|>user"}, {N}, 0},
        {{"<|im_start|>user"}, {S}, 0},
        {{"<tool_call>x</tool_call>"}, {S}, 2},
        {{"<tool_call>x</tool_call>"}, {N}, 0},
        {{"<|im_", "start|>"}, {A, A}, 1}, /* a border inside doesn't matter... */
        {{"<|im_", "start|>"}, {A, N}, 0}, /* ...unless a byte is not permitted */
        {{"<|im_start|", ">"}, {A, N}, 0},
        {{"<", "|im_start|>"}, {N, A}, 0},
        {{"<tool", "_call>"}, {A, S}, 1},
        {{"<|im_start|>", "<|im_end|>", "<|im_end|>"}, {A, N, A}, 2},
        {{"<|im_start|><tool_call>", "<|im_start|><tool_call>", "<|im_start|><tool_call>"}, {A, S, N}, 3},
        {{"e", "\xCC\x81<|im_end|>", "e\xCC\x81<|im_end|>"},
         {N, A, N},
         1}, /* normalised, and still known per byte */
    };
#undef A
#undef S
#undef N
    struct tokenizer *t = load("qwen2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tok_run runs[4];
        size_t n = 0;
        for (; n < 4 && cases[i].text[n]; n++)
            runs[n] = (struct tok_run){cases[i].text[n], strlen(cases[i].text[n]), cases[i].control[n]};
        struct tok_ids ids;
        assert_int_equal(tok_encode(t, runs, n, false, SIZE_MAX, &ids, NULL), ST_OK);
        uint32_t found = 0;
        for (size_t j = 0; j < ids.count; j++) found += tok_is_added(t, ids.ids[j]);
        if (found != cases[i].found) fail_msg("case %zu: %u added tokens", i, found);
        tok_ids_free(&ids);
    }
    tok_free(t);
}

/* Plain text stays plain text where the template's source has it, too: client text joins with the template's
 * as in one text. A marker doesn't. */
static void test_guard(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *source, *text[2]; /* what the template wrote, what the client did */
        bool plain;
    } cases[] = {
        {"gemma", "{{ '\n\n\n\n\n' }}\n\n\n\n\n", {"a\n\n", "\n\n\nb"}, true},
        {"gemma", "\t{% if x %}\t\t", {"\t", "\tx\ty"}, true},
        {"gemma", "Use <h1> and </h1>.", {"x ", "<h1>y</h1>"}, true},
        {"qwen3_5",
         "sol, two words, \xC3\xBC"
         "ber",
         {"", "sol two words \xC3\xBC"
              "ber"},
         true},
        {"qwen3_5", "<u1> [LR]", {"", "a<u1>"}, false},
        {"qwen3_5", "<u1> [LR]", {"", "a[LR]b"}, false},
        {"qwen2", "<tool_call>x</tool_call>", {"", "<tool_call>x"}, false},
        {"qwen2", "<tool_call>x</tool_call>", {"", "x</tool_call>"}, false},
        {"qwen2", "<think>\n", {"", "<think>"}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = load(cases[i].golden);
        const char *const *text = cases[i].text;
        struct tok_run runs[2] = {{text[0], strlen(text[0]), TOK_CONTROL_ALL},
                                  {text[1], strlen(text[1]), TOK_CONTROL_ALL}};
        struct tok_ids whole, ids;
        tok_guard(t, cases[i].source, strlen(cases[i].source));
        assert_int_equal(tok_encode(t, runs, 2, false, SIZE_MAX, &whole, NULL), ST_OK);
        runs[1].control = TOK_CONTROL_UNGUARDED;
        assert_int_equal(tok_encode(t, runs, 2, false, SIZE_MAX, &ids, NULL), ST_OK);
        bool same = ids.count == whole.count && !memcmp(ids.ids, whole.ids, ids.count * sizeof *ids.ids);
        if (same != cases[i].plain) fail_msg("case %zu", i);
        tok_ids_free(&whole);
        tok_ids_free(&ids);
        tok_free(t);
    }
}

static void append_ids(struct tok_ids *to, struct tok_ids more)
{
    to->ids = realloc(to->ids, (to->count + more.count + 1) * sizeof *to->ids);
    if (more.count) memcpy(to->ids + to->count, more.ids, more.count * sizeof *more.ids);
    to->count += more.count;
}

/* Masked matching against its definition, byte by byte: the longest permitted token at the leftmost place
 * where there is one. */
static void test_control_equals_naive(void **state)
{
    (void)state;
    struct tokenizer *t = load("qwen2");
    size_t found = 0, plain = 0, guarded = 0;
    /* Every second token that isn't special stands in the "template". */
    for (size_t k = 0; k < t->added_count; k++) {
        if (!t->added[k].special && k % 2) tok_guard(t, t->added[k].content, t->added[k].len);
        if (!t->added[k].special) *(t->added[k].guarded ? &guarded : &plain) += 1;
    }
    assert_true(plain > 0 && guarded > 0);
    for (int i = 0; i < 3000; i++) {
        char s[1024];
        uint8_t control[1024];
        struct tok_run runs[64];
        size_t n = 0, run_count = 0, want_from = 0;
        for (size_t parts = rnd(12); parts > 0; parts--) {
            size_t start = n;
            const struct tok_added *a = &t->added[rnd((uint32_t)t->added_count)];
            if (rnd(2)) n += random_text(s + n, 40);
            else {
                size_t len = rnd(4) ? a->len : rnd((uint32_t)a->len);
                memcpy(s + n, a->content, len);
                n += len;
            }
            for (size_t at = start; at < n;) { /* one or two runs */
                size_t len = rnd(3) ? n - at : 1 + rnd((uint32_t)(n - at));
                enum tok_control c = (enum tok_control)rnd(4);
                memset(control + at, (int)c, len);
                runs[run_count++] = (struct tok_run){s + at, len, c};
                at += len;
                if (run_count == 60) {
                    memset(control + at, (int)c, n - at);
                    runs[run_count++] = (struct tok_run){s + at, n - at, c};
                    break;
                }
            }
            if (run_count > 60) break;
        }

        struct tok_ids want = {NULL, 0}, got;
        for (size_t at = 0; at < n;) {
            const struct tok_added *best = NULL;
            for (size_t k = 0; k < t->added_count; k++) {
                const struct tok_added *a = &t->added[k];
                bool ok = a->len <= n - at && memcmp(s + at, a->content, a->len) == 0 &&
                          (!best || a->len > best->len);
                for (size_t j = 0; j < a->len && ok; j++)
                    ok = control[at + j] == TOK_CONTROL_ALL ||
                         (control[at + j] == TOK_CONTROL_NONSPECIAL && !a->special) ||
                         (control[at + j] == TOK_CONTROL_UNGUARDED && !a->special && !a->guarded);
                if (ok) best = a;
            }
            if (!best) {
                at++;
                continue;
            }
            struct tok_ids part = encode(t, s + want_from, at - want_from, TOK_CONTROL_NONE, false),
                           one = {(uint32_t[]){best->id}, 1};
            append_ids(&want, part);
            append_ids(&want, one);
            tok_ids_free(&part);
            at += best->len;
            want_from = at;
            found++;
        }
        struct tok_ids part = encode(t, s + want_from, n - want_from, TOK_CONTROL_NONE, false);
        append_ids(&want, part);
        tok_ids_free(&part);
        assert_int_equal(tok_encode(t, runs, run_count, false, SIZE_MAX, &got, NULL), ST_OK);
        assert_same(want, got);
        tok_ids_free(&got);
        tok_ids_free(&want);
    }
    assert_true(found > 2000);
    tok_free(t);
}

/* single_word: no hit next to a letter, digit or underscore, on either side. */
static void test_single_word(void **state)
{
    (void)state;
    struct tokenizer *t = load("qwen3_5");
    struct tok_ids one = encode(t, "sol", 3, TOK_CONTROL_ALL, false);
    assert_int_equal(one.count, 1);
    static const struct {
        const char *text;
        uint32_t hits;
    } table[] = {{"sol", 1}, {"a sol.", 1}, {"solar", 0}, {"asol", 0}, {"sol_", 0}, {"sol1 sol", 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct tok_ids ids = encode(t, table[i].text, strlen(table[i].text), TOK_CONTROL_ALL, false);
        uint32_t hits = 0;
        for (uint32_t k = 0; k < ids.count; k++) hits += ids.ids[k] == one.ids[0];
        assert_int_equal(hits, table[i].hits);
        tok_ids_free(&ids);
    }
    tok_ids_free(&one);
    tok_free(t);
}

/* ---- borders of the interface ---- */

static void test_bos(void **state)
{
    (void)state;
    struct tokenizer *gemma = load("gemma"), *qwen = load("qwen2");
    uint32_t bos = 99;
    assert_true(tok_adds_bos(gemma, &bos));
    assert_int_equal(bos, 2);
    assert_false(tok_adds_bos(qwen, &bos));
    struct tok_ids ids = encode(gemma, "", 0, TOK_CONTROL_ALL, true);
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.ids[0], 2);
    tok_ids_free(&ids);
    ids = encode(gemma, "", 0, TOK_CONTROL_ALL, false);
    assert_int_equal(ids.count, 0);
    tok_ids_free(&ids);
    ids = encode(gemma, "<bos>the", 8, TOK_CONTROL_ALL, true); /* not doubled */
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.ids[0], 2);
    tok_ids_free(&ids);
    ids = encode(gemma, "<bos>the", 8, TOK_CONTROL_NONE, true); /* typed by a user: text */
    assert_int_equal(ids.ids[0], 2);
    assert_true(ids.count > 3);
    tok_ids_free(&ids);
    ids = encode(qwen, "", 0, TOK_CONTROL_ALL, true);
    assert_int_equal(ids.count, 0);
    tok_ids_free(&ids);
    struct tok_ids none;
    assert_int_equal(tok_encode(gemma, NULL, 0, true, 10, &none, NULL), ST_OK);
    assert_int_equal(none.count, 1);
    tok_ids_free(&none);
    tok_free(gemma);
    tok_free(qwen);
}

static void test_ids_max(void **state)
{
    (void)state;
    struct tokenizer *t = load("gemma");
    struct tok_run run = {"1 2 3 4 5", 9, TOK_CONTROL_ALL};
    struct tok_ids ids = encode(t, run.text, run.len, run.control, true), out;
    size_t n = ids.count;
    tok_ids_free(&ids);
    for (size_t max = 0; max < n; max++) {
        struct err err = {{0}};
        assert_int_equal(tok_encode(t, &run, 1, true, max, &out, &err), ST_TOO_LARGE);
        assert_non_null(strstr(err.msg, "tokens"));
    }
    assert_int_equal(tok_encode(t, &run, 1, true, n, &out, NULL), ST_OK);
    tok_ids_free(&out);
    tok_free(t);
}

/* A word too long for ids_max is refused before it is merged, and one that fits never: of the longest tokens,
 * of bytes and of characters without a token. */
static void test_long_words(void **state)
{
    (void)state;
    static const char *const names[] = {"gemma", "qwen3_5"};
    for (size_t k = 0; k < 2; k++) {
        struct tokenizer *t = load(names[k]);
        uint32_t checked = 0;
        for (uint32_t id = 0; id < tok_vocab_size(t); id++) {
            size_t len, n;
            const char *piece = tok_bytes(t, id, &len);
            if (len * 2 < t->longest && id % 97) continue;
            char *text = malloc(40 * len + 1);
            assert_non_null(text);
            for (n = 0; n < 40; n++) memcpy(text + n * len, piece, len);
            struct tok_run run = {text, 40 * len, TOK_CONTROL_NONE};
            struct tok_ids ids = encode(t, text, run.len, run.control, false), out;
            assert_int_equal(tok_encode(t, &run, 1, false, ids.count, &out, NULL), ST_OK);
            tok_ids_free(&out);
            struct err err;
            if (ids.count)
                assert_int_equal(tok_encode(t, &run, 1, false, ids.count - 1, &out, &err), ST_TOO_LARGE);
            tok_ids_free(&ids);
            free(text);
            checked++;
        }
        assert_true(checked > 2);
        tok_free(t);
    }
}

static void test_invalid_utf8_is_repaired(void **state)
{
    (void)state;
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"\xC3(", "\xEF\xBF\xBD("},
        {"\x80", "\xEF\xBF\xBD"},
        {"a\xE2\x82", "a\xEF\xBF\xBD"},
        {"\xF0\x9F\x98x", "\xEF\xBF\xBDx"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE0\x9F\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xFF\xFE", "\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    struct tokenizer *t = load("gpt2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tok_ids bad = encode(t, cases[i].bad, strlen(cases[i].bad), TOK_CONTROL_ALL, false);
        struct tok_ids good = encode(t, cases[i].good, strlen(cases[i].good), TOK_CONTROL_ALL, false);
        assert_same(bad, good);
        tok_ids_free(&bad);
        tok_ids_free(&good);
        /* The same bytes as tokens come out the same way. */
        uint32_t ids[8];
        size_t n = strlen(cases[i].bad);
        bool have = true;
        for (size_t k = 0; k < n; k++)
            have = have && (ids[k] = t->byte_id[(uint8_t)cases[i].bad[k]]) != TOK_NO_ID;
        if (!have) continue;
        struct buf out = decode(t, ids, n, false);
        assert_string_equal(out.data, cases[i].good);
        buf_fini(&out);
    }
    tok_free(t);
}

static void test_detok_borders(void **state)
{
    (void)state;
    struct tokenizer *t = load("gemma");
    struct detok d;
    struct buf out;
    buf_init(&out, 1000);
    detok_init(&d, t, true);
    static const uint8_t emoji[] = {0xF0, 0x9F, 0x91, 0x8D};
    for (int i = 0; i < 4; i++) { /* nothing before the last byte, and a skipped token doesn't disturb */
        assert_int_equal(out.len, 0);
        assert_int_equal(detok_push(&d, t->byte_id[emoji[i]], &out), ST_OK);
        assert_int_equal(detok_push(&d, 2, &out), ST_OK);
        assert_int_equal(detok_push(&d, UINT32_MAX, &out), ST_OK);
    }
    assert_string_equal(out.data, "\xF0\x9F\x91\x8D");
    assert_int_equal(detok_push(&d, t->byte_id[0xE2], &out), ST_OK);
    assert_int_equal(detok_push(&d, t->byte_id[0x82], &out), ST_OK);
    assert_int_equal(out.len, 4);
    assert_int_equal(detok_flush(&d, &out), ST_OK);
    assert_string_equal(out.data, "\xF0\x9F\x91\x8D\xEF\xBF\xBD");
    assert_int_equal(detok_flush(&d, &out), ST_OK);
    assert_int_equal(out.len, 7);
    buf_fini(&out);

    buf_init(&out, 3); /* a full buffer: nothing is lost */
    uint32_t the = 0;
    assert_true(tok_id_of(t, "\xE2\x96\x81the", 6, &the));
    assert_int_equal(detok_push(&d, t->byte_id[0xE2], &out), ST_OK);
    assert_int_equal(detok_push(&d, the, &out), ST_TOO_LARGE);
    assert_int_equal(out.len, 0);
    assert_int_equal(d.pending_len, 1);
    out.max = 100;
    assert_int_equal(detok_push(&d, the, &out), ST_OK);
    assert_string_equal(out.data, "\xEF\xBF\xBD the");
    buf_fini(&out);
    tok_free(t);
}

static void test_look_ups(void **state)
{
    (void)state;
    struct tokenizer *t = load("gemma");
    uint32_t id, n = tok_vocab_size(t);
    size_t len;
    assert_true(tok_id_of(t, "<image_soft_token>", 18, &id));
    assert_int_equal(id, n - 6);
    assert_true(tok_is_special(t, id) && tok_is_added(t, id) && tok_exists(t, id));
    assert_true(tok_id_of(t, "<h1>", 4, &id));
    assert_true(tok_is_added(t, id) && !tok_is_special(t, id));
    assert_false(tok_id_of(t, "no such token", 13, &id));
    assert_int_equal(tok_bytes(t, t->byte_id[0], &len)[0], 0);
    assert_int_equal(len, 1);
    assert_memory_equal(tok_bytes(t, t->byte_id[0xAB], &len), "\xAB", 1);
    assert_true(tok_id_of(t, "\xE2\x96\x81\xE2\x96\x81", 6, &id));
    assert_memory_equal(tok_bytes(t, id, &len), "  ", 2);
    assert_int_equal(len, 2);
    for (uint32_t past = n; past < n + 3; past++) {
        tok_bytes(t, past, &len);
        assert_int_equal(len, 0);
        assert_false(tok_exists(t, past) || tok_is_special(t, past) || tok_is_added(t, past));
    }
    /* Roles: strings, objects, the older file's last word, extras; null is unset. */
    assert_string_equal(tok_special(t, "bos_token"), "<bos>");
    assert_string_equal(tok_special(t, "eos_token"), "<end_of_turn>");
    assert_string_equal(tok_special(t, "mask_token"), "<mask>");
    assert_string_equal(tok_special(t, "image_token"), "<image_soft_token>");
    assert_null(tok_special(t, "boi_token"));
    assert_null(tok_special(t, "add_bos_token"));
    size_t roles = 0;
    const char *role, *content;
    while (tok_special_role(t, roles, &role, &content)) {
        assert_string_equal(tok_special(t, role), content);
        roles++;
    }
    assert_int_equal(roles, 7);
    /* A role's token that was only in the vocabulary is special by now. */
    assert_true(tok_id_of(t, "\n\n\n\n", 4, &id));
    assert_true(tok_is_special(t, id));
    tok_free(t);
}

static void test_large_texts(void **state)
{
    (void)state;
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        "1",
                                        "\xE2\x96\x81",
                                        "\xE4\xBD\xA0",
                                        "\xCC\x81\xCC\x96",
                                        "\xF0\x9F\x91\xA8\xE2\x80\x8D",
                                        "ab c",
                                        "the",
                                        "<|im_start|",
                                        "[R]\n"};
    const char *brief = getenv("KVASIR_TEST_SHORT");
    size_t bytes = brief && *brief == '2' ? 60000 : 300000;
    char *s = malloc(bytes + 16);
    for (int k = 0; k < DIR_COUNT; k++) {
        struct tokenizer *t = load(all_dirs[k]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t len = strlen(units[u]), n = 0;
            for (; n < bytes; n += len) memcpy(s + n, units[u], len);
            struct tok_ids ids = encode(t, s, n, TOK_CONTROL_NONE, false);
            struct buf out = decode(t, ids.ids, ids.count, false);
            bool lossy = strcmp(all_dirs[k], "sp_unk") == 0 || strcmp(all_dirs[k], "sp_partial") == 0;
            bool folded = units[u][0] == '\xCC' && t->norm_count == 1 && t->norms[0].kind == TOK_NORM_NFC;
            if (units[u][0] == '\xE2' && !t->byte_level) assert_int_equal(out.len, n / 3);
            else if (!lossy && !folded) assert_true(out.len == n && memcmp(out.data, s, n) == 0);
            else if (folded) assert_int_equal(out.len, n);
            buf_fini(&out);
            tok_ids_free(&ids);
        }
        tok_free(t);
    }
    free(s);
}

/* ---- for comparison with the reference and for timing ---- */

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    struct buf b;
    buf_init(&b, (size_t)1 << 31);
    char chunk[65536];
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) {
        if (buf_add(&b, chunk, n)) exit(2);
    }
    fclose(f);
    *len = b.len;
    return b.data ? b.data : calloc(1, 1);
}

static struct tokenizer *load_dir(const char *dir)
{
    struct tokenizer *t = NULL;
    struct err err = {{0}};
    if (family_load_tokenizer(dir, NULL, NULL, &t, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(2);
    }
    return t;
}

static void encode_corpus(const struct tokenizer *t, const char *path, bool special)
{
    size_t len;
    char *s = read_file(path, &len), *p = s;
    while (p < s + len) {
        size_t n = strtoull(p, &p, 10);
        p++;
        if (n > (size_t)(s + len - p)) exit(2);
        struct tok_run run = {p, n, TOK_CONTROL_ALL};
        struct tok_ids ids;
        struct err err;
        if (tok_encode(t, &run, 1, special, SIZE_MAX, &ids, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            exit(2);
        }
        for (size_t i = 0; i < ids.count; i++) printf(i ? " %u" : "%u", ids.ids[i]);
        printf("\n");
        tok_ids_free(&ids);
        p += n + 1;
    }
    free(s);
}

static void decode_corpus(const struct tokenizer *t, const char *path, bool skip)
{
    size_t len;
    char *s = read_file(path, &len), *p = s;
    struct buf out;
    buf_init(&out, (size_t)1 << 31);
    while (p < s + len) {
        struct detok d;
        detok_init(&d, t, skip);
        out.len = 0;
        for (; *p != '\n'; p += *p == ' ') {
            if (detok_push(&d, (uint32_t)strtoull(p, &p, 10), &out)) exit(2);
        }
        p++;
        if (detok_flush(&d, &out)) exit(2);
        printf("%zu\n", out.len);
        if (out.len) fwrite(out.data, 1, out.len, stdout);
        printf("\n");
    }
    buf_fini(&out);
    free(s);
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void bench(const char *dir, const char *path)
{
    double t0 = now();
    struct tokenizer *t = load_dir(dir);
    printf("load: %.3f s\n", now() - t0);
    size_t len;
    char *s = read_file(path, &len);
    const size_t pieces[] = {len, 4096, 200};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        double best = 1e9;
        size_t tokens = 0;
        for (int rep = 0; rep < 5; rep++) {
            tokens = 0;
            t0 = now();
            for (size_t at = 0; at < len; at += pieces[k]) {
                struct tok_run run = {s + at, len - at < pieces[k] ? len - at : pieces[k], TOK_CONTROL_ALL};
                struct tok_ids ids;
                if (tok_encode(t, &run, 1, false, SIZE_MAX, &ids, NULL)) exit(2);
                tokens += ids.count;
                tok_ids_free(&ids);
            }
            double spent = now() - t0;
            if (spent < best) best = spent;
        }
        printf("texts of %zu bytes: %.2f MB/s, %zu tokens, %.4f s\n", pieces[k], (double)len / best / 1e6,
               tokens, best);
    }
    free(s);
    tok_free(t);
}

/* The hidden options of the comment at the top. */
static int command_line(int argc, char **argv)
{
    const char *dir = NULL, *corpus = NULL, *decode = NULL;
    bool special = false, skip = false;
    if (argc == 4 && strcmp(argv[1], "--bench") == 0) {
        bench(argv[2], argv[3]);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--special") == 0) special = true;
        else if (strcmp(argv[i], "--skip-special") == 0) skip = true;
        else if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) dir = argv[++i];
        else if (strcmp(argv[i], "--corpus") == 0 && i + 1 < argc) corpus = argv[++i];
        else if (strcmp(argv[i], "--decode") == 0 && i + 1 < argc) decode = argv[++i];
        else return 2;
    }
    if (!dir) return 2;
    struct tokenizer *t = load_dir(dir);
    if (corpus) encode_corpus(t, corpus, special);
    if (decode) decode_corpus(t, decode, skip);
    tok_free(t);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return command_line(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_encode),
        cmocka_unit_test(test_golden_decode),
        cmocka_unit_test(test_golden_splits),
        cmocka_unit_test(test_golden_nfc),
        cmocka_unit_test(test_cut_equals_uncut),
        cmocka_unit_test(test_merges_equal_naive),
        cmocka_unit_test(test_cache_changes_nothing),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_runs_are_one_text),
        cmocka_unit_test(test_control_of_added_tokens),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_control_equals_naive),
        cmocka_unit_test(test_single_word),
        cmocka_unit_test(test_bos),
        cmocka_unit_test(test_ids_max),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_invalid_utf8_is_repaired),
        cmocka_unit_test(test_detok_borders),
        cmocka_unit_test(test_look_ups),
        cmocka_unit_test(test_large_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

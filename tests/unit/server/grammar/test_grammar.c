/* Random grammars: the strings they allow are compared with a plain recognizer; masks with trying every
 * token; a matcher that goes back and forth, with caches dropped under it, with a new one. */
#include "tests/lib/grammars.h"
#include "server/grammar/vocab.h"
#include "tests/lib/backend_sets.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOLS 4
#define LONGEST 5 /* of the texts, in symbols */
#define NODES   64
#define RULES   4
static const char *const symbol[SYMBOLS] = {"a", "b", "\"", "\xC3\xA9"};

static uint64_t seed_now;
static unsigned dice(unsigned n)
{
    seed_now = seed_now * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed_now >> 33) % n;
}

/* ---- expressions twice: as a grammar, and as what spans of a text they match ---- */

enum kind { TEXT, CLASS, SEQ, ALT, REPEAT, AND, NOT, AHEAD, RULE };
struct expr {
    enum kind kind;
    bool regular;
    int a, b;
    unsigned min, max; /* REPEAT; TEXT: length */
    int text[3];
    unsigned set; /* CLASS: bits of symbols */
};
struct random_grammar {
    struct expr e[NODES];
    int count, body[RULES];
    bool counted;   /* large counts, or much that is combined: a dead end may be hard to tell then */
    unsigned logic; /* parts that are */
};

/* Optional parts within optional ones, alternatives of different lengths, counts within counts, large counts,
 * intersections, look-aheads: what an automaton multiplies that is made carelessly. */
static int make_costly(struct random_grammar *r, unsigned depth)
{
    static const unsigned most[] = {1, 1, 2, 3, 5, 50, 5000, 100000, RX_NO_LIMIT};
    static const enum kind kinds[] = {SEQ, SEQ, ALT, ALT, REPEAT, REPEAT, REPEAT, REPEAT, AND, AHEAD, NOT};
    int at = r->count++;
    struct expr *e = &r->e[at];
    *e = (struct expr){.regular = true, .kind = CLASS, .set = 1u + dice((1u << SYMBOLS) - 1)};
    if (depth == 0 || r->count > NODES - 4 || dice(8) == 0) {
        if (dice(2)) return at;
        e->kind = TEXT;
        e->min = dice(4);
        for (unsigned i = 0; i < e->min; i++) e->text[i] = (int)dice(2);
        return at;
    }
    e->kind = kinds[dice(sizeof kinds / sizeof *kinds)];
    if (e->kind == REPEAT) {
        e->min = dice(2) ? 0 : dice(4);
        e->max = most[dice(9)];
        if (e->max < e->min) e->max = e->min + dice(2);
        r->counted = r->counted || (e->max >= 50 && e->max != RX_NO_LIMIT);
    }
    r->logic += e->kind == AND || e->kind == NOT || e->kind == AHEAD;
    r->counted = r->counted || r->logic > 3;
    int a = make_costly(r, depth - 1);
    r->e[at].a = a;
    if (r->e[at].kind == REPEAT || r->e[at].kind == NOT) return at;
    int b = make_costly(r, depth - 1);
    r->e[at].b = b;
    return at;
}

static int make_expr(struct random_grammar *r, unsigned depth, bool regular)
{
    int at = r->count++;
    struct expr *e = &r->e[at];
    *e = (struct expr){.regular = regular};
    unsigned k = depth == 0 || r->count > NODES - 12 ? dice(2) : dice(regular ? 10 : 9);
    if (!regular && dice(3) == 0) e->regular = regular = true;
    if (k == 0 || (k > 6 && !regular && dice(2))) {
        e->kind = TEXT;
        e->min = dice(4);
        for (unsigned i = 0; i < e->min; i++) e->text[i] = (int)dice(SYMBOLS);
    } else if (k == 1) {
        e->kind = CLASS;
        e->set = dice(3) ? 1u + dice((1u << SYMBOLS) - 1) : 0xB; /* often all that is ordinary */
    } else if (k < 6) {
        e->kind = k == 2 || k == 3 ? SEQ : k == 4 ? ALT : REPEAT;
    } else {
        e->kind = !regular ? RULE : k == 9 ? NOT : k == 8 ? AND : REPEAT;
    }
    if (e->kind == RULE) r->e[at].a = (int)dice(RULES);
    if (e->kind == REPEAT) {
        static const unsigned most[] = {1, 2, 3, 8, 40, RX_NO_LIMIT, RX_NO_LIMIT};
        e->min = dice(3);
        e->max = most[dice(7)];
        if (e->max < e->min) e->max = e->min;
    }
    if (e->kind >= SEQ && e->kind != RULE) {
        int a = make_expr(r, depth - 1, regular);
        r->e[at].a = a;
    }
    if (e->kind == SEQ || e->kind == ALT || e->kind == AND) {
        int b = make_expr(r, depth - 1, regular);
        r->e[at].b = b;
    }
    return at;
}

static rx to_rx(struct rx_pool *p, const struct random_grammar *r, int at)
{
    const struct expr *e = &r->e[at];
    rx out = RX_NONE;
    switch (e->kind) {
    case TEXT:
        out = RX_EMPTY;
        for (unsigned i = 0; i < e->min; i++)
            out = rx_concat(p, out, rx_literal(p, symbol[e->text[i]], strlen(symbol[e->text[i]])));
        return out;
    case CLASS:
        if (e->set == 0xB) return grammar__character(p, TOKEN_CLASS_ORDINARY);
        for (int i = 0; i < SYMBOLS; i++)
            if (e->set >> i & 1) out = rx_alt(p, out, rx_literal(p, symbol[i], strlen(symbol[i])));
        return out;
    case SEQ: return rx_concat(p, to_rx(p, r, e->a), to_rx(p, r, e->b));
    case ALT: return rx_alt(p, to_rx(p, r, e->a), to_rx(p, r, e->b));
    case AND: return rx_and(p, to_rx(p, r, e->a), to_rx(p, r, e->b));
    case AHEAD: return rx_and(p, to_rx(p, r, e->a), rx_concat(p, to_rx(p, r, e->b), RX_ALL));
    case NOT:
        return rx_and(p, rx_repeat(p, rx_chars(p, 0, 0x10FFFF), 0, RX_NO_LIMIT),
                      rx_not(p, to_rx(p, r, e->a)));
    default: return rx_repeat(p, to_rx(p, r, e->a), e->min, e->max);
    }
}

static gx to_gx(struct grammar_builder *b, const struct random_grammar *r, const gx *rules, int at)
{
    const struct expr *e = &r->e[at];
    if (e->regular || e->kind <= CLASS) return gb_regex(b, to_rx(gb_pool(b), r, at));
    if (e->kind == RULE) return rules[e->a];
    gx list[2] = {to_gx(b, r, rules, e->a), 0};
    if (e->kind == REPEAT) return gb_repeat(b, list[0], e->min, e->max);
    list[1] = to_gx(b, r, rules, e->b);
    return e->kind == SEQ ? gb_seq(b, list, 2) : gb_alt(b, list, 2);
}

/* Spans [i, j] of a text of at most LONGEST symbols, as bits. */
static uint64_t span(int i, int j)
{
    return 1ull << (i * (LONGEST + 1) + j);
}

static uint64_t join(uint64_t x, uint64_t y)
{
    uint64_t out = 0;
    for (int i = 0; i <= LONGEST; i++)
        for (int k = i; k <= LONGEST; k++)
            for (int j = k; (x & span(i, k)) && j <= LONGEST; j++)
                if (y & span(k, j)) out |= span(i, j);
    return out;
}

static uint64_t spans(const struct random_grammar *r, const uint64_t *rules, int at, const int *text, int n)
{
    const struct expr *e = &r->e[at];
    uint64_t out = 0, all = 0, none = 0, a;
    for (int i = 0; i <= n; i++) {
        none |= span(i, i);
        for (int j = i; j <= n; j++) all |= span(i, j);
    }
    switch (e->kind) {
    case TEXT:
        for (int i = 0; i + (int)e->min <= n; i++) {
            unsigned k = 0;
            while (k < e->min && text[i + (int)k] == e->text[k]) k++;
            if (k == e->min) out |= span(i, i + (int)k);
        }
        return out;
    case CLASS:
        for (int i = 0; i < n; i++)
            if (e->set >> text[i] & 1) out |= span(i, i + 1);
        return out;
    case RULE: return rules[e->a];
    case SEQ: return join(spans(r, rules, e->a, text, n), spans(r, rules, e->b, text, n));
    case ALT: return spans(r, rules, e->a, text, n) | spans(r, rules, e->b, text, n);
    case AND: return spans(r, rules, e->a, text, n) & spans(r, rules, e->b, text, n);
    case AHEAD: return spans(r, rules, e->a, text, n) & join(spans(r, rules, e->b, text, n), all);
    case NOT: return all & ~spans(r, rules, e->a, text, n);
    default: break;
    }
    a = spans(r, rules, e->a, text, n);
    uint64_t power = none;
    unsigned most = e->min + LONGEST + 1; /* more times than that add nothing */
    if (most > e->max) most = e->max;
    for (unsigned k = 0; k <= most; k++, power = join(power, a))
        if (k >= e->min) out |= power;
    return out;
}

static bool expected(const struct random_grammar *r, const int *text, int n)
{
    uint64_t rules[RULES] = {0};
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < RULES; i++) {
            uint64_t now = spans(r, rules, r->body[i], text, n);
            changed = changed || now != rules[i];
            rules[i] = now;
        }
    }
    return rules[0] & span(0, n);
}

/* A rule that begins with itself: A: A x | y. */
static int make_left_recursive(struct random_grammar *r, int rule)
{
    int alt = r->count, seq = alt + 1, self = alt + 2;
    r->count += 3;
    r->e[alt] = (struct expr){.kind = ALT, .a = seq};
    r->e[seq] = (struct expr){.kind = SEQ, .a = self};
    r->e[self] = (struct expr){.kind = RULE, .a = rule};
    int x = make_expr(r, 1, false), y = make_expr(r, 1, false);
    r->e[seq].b = x;
    r->e[alt].b = y;
    return alt;
}

/* NULL: it allows nothing. */
static struct grammar *make_costly_grammar(struct random_grammar *r)
{
    struct grammar_builder *b;
    struct grammar *g = NULL;
    struct err err = {""};
    r->count = 0;
    r->counted = false;
    r->logic = 0;
    r->body[0] = make_costly(r, 5);
    for (int i = 1; i < RULES; i++) r->body[i] = r->body[0];
    assert_int_equal(gb_create(&b), ST_OK);
    enum status st = gb_finish(b, gb_regex(b, to_rx(gb_pool(b), r, r->body[0])), &g, &err);
    if (st) assert_int_equal(st, ST_INVALID);
    return st ? NULL : g;
}

/* NULL: it refers to itself on the left, or allows nothing. */
static struct grammar *make_grammar(struct random_grammar *r)
{
    struct grammar_builder *b;
    struct grammar *g = NULL;
    gx rules[RULES];
    r->count = 0;
    r->counted = false;
    assert_int_equal(gb_create(&b), ST_OK);
    for (int i = 0; i < RULES; i++) {
        if (r->count < NODES / 2 && dice(4) == 0) r->body[i] = make_left_recursive(r, i);
        else r->body[i] = make_expr(r, r->count > NODES / 2 ? 0 : 3, false);
        rules[i] = gb_rule(b);
    }
    for (int i = 0; i < RULES; i++) gb_define(b, rules[i], to_gx(b, r, rules, r->body[i]));
    struct err err = {""};
    enum status st = gb_finish(b, rules[0], &g, &err);
    if (st) assert_int_equal(st, ST_INVALID);
    return st ? NULL : g;
}

static uint32_t after(struct grammar *g, uint32_t state, const char *s, size_t n)
{
    for (size_t i = 0; i < n && state; i++) state = machine__next(g, state, (uint8_t)s[i]);
    return state;
}

/* Is a text that is allowed within reach? */
static bool reaches_end(struct grammar *g, uint32_t from)
{
    uint32_t queue[4096], count = 0, at = 0;
    uint8_t *seen = calloc(1 << 16, 1);
    queue[count++] = from;
    bool found = false;
    while (at < count && !found) {
        uint32_t s = queue[at++];
        found = g->states[s].accepts;
        for (int i = 0; i < SYMBOLS + 2 && count < 4096; i++) { /* the rest of a symbol; none of them */
            const char *step = i < SYMBOLS ? symbol[i] : i == SYMBOLS ? "\xA9" : "\n";
            uint32_t to = after(g, s, step, strlen(step));
            if (to && to < 1 << 16 && !seen[to]) {
                seen[to] = 1;
                queue[count++] = to;
            }
        }
    }
    free(seen);
    return found || count == 4096;
}

static void compare(struct grammar *(*make)(struct random_grammar *), unsigned seeds, int at_least)
{
    int made = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct random_grammar r;
        seed_now = seed;
        struct grammar *g = make(&r);
        if (!g) continue;
        made++;
        int n = 0, text[LONGEST] = {0};
        for (;;) { /* all texts, by length */
            uint32_t s = STATE_FIRST;
            for (int i = 0; i < n && s; i++) s = after(g, s, symbol[text[i]], strlen(symbol[text[i]]));
            bool yes = s && g->states[s].accepts, want = expected(&r, text, n);
            if (yes != want) fail_msg("grammar %d: a text of %d symbols is %d", (int)seed, n, yes);
            if (s && !r.counted && !reaches_end(g, s)) fail_msg("grammar %d: a dead end", (int)seed);
            int i = n - 1;
            while (i >= 0 && ++text[i] == SYMBOLS) text[i--] = 0;
            if (i < 0 && ++n > (seed % 16 ? 3 : LONGEST)) break;
        }
        grammar_unref(g);
    }
    assert_true(made > at_least);
}

static void test_texts(void **state)
{
    (void)state;
    compare(make_grammar, test_briefly() ? 400 : 1500, test_briefly() ? 125 : 500);
}

static void test_costly_texts(void **state)
{
    (void)state;
    compare(make_costly_grammar, test_briefly() ? 750 : 5000, test_briefly() ? 500 : 3500);
}

/* ---- masks ---- */

#define TOKENS 160u
#define END    7u
#define TAG    9u

static struct grammar_vocab *make_vocab(char text[TOKENS][64], size_t len[TOKENS])
{
    struct grammar_token tokens[TOKENS];
    uint32_t ends[] = {END, TOKENS + 5}, tags[] = {TAG};
    struct grammar_vocab *v = NULL;
    static const char *const json[] = {"{", "{\"", "\": ", "null", ", \"", "}"};
    for (uint32_t i = 0; i < TOKENS; i++) {
        len[i] = 0;
        unsigned most = i < 4 ? 1 : 1 + dice(i > 150 ? 40 : 5);
        for (unsigned k = 0; k < most && len[i] < 60; k++) {
            const char *s = symbol[i < 4 ? i : dice(SYMBOLS)];
            if (i > 150 && *s == '"') s = "a";
            memcpy(text[i] + len[i], s, strlen(s));
            len[i] += strlen(s);
        }
        if (i >= 10 && i < 14) len[i]--; /* half a character, perhaps */
        if (i == 14) memcpy(text[i], "\xA9", len[i] = 1);
        if (i == 15) memcpy(text[i], "\xC3", len[i] = 1);
        if (i >= 16 && i < 16 + sizeof json / sizeof *json)
            memcpy(text[i], json[i - 16], len[i] = strlen(json[i - 16]));
        tokens[i] = (struct grammar_token){i == 8 ? NULL : text[i], len[i]};
    }
    static const char *const marked[] = {"\xFF", "\xFF<", "\xFF<x>"}; /* byte tokens are never a tag's mark */
    for (uint32_t i = 0; i < 3; i++) {
        tokens[150 + i] = (struct grammar_token){marked[i], strlen(marked[i])};
        len[150 + i] = 0;
    }
    len[8] = 0;
    memcpy(text[TAG], "<x>", 3);
    tokens[TAG].len = len[TAG] = 3;
    assert_int_equal(grammar_vocab_create(tokens, TOKENS, ends, 2, tags, 1, &v, NULL), ST_OK);
    return v;
}

static void check_mask(struct grammar *g, struct matcher *m, const uint32_t *path, uint32_t n,
                       char text[TOKENS][64], const size_t *len)
{
    uint32_t bits[TOKENS / 32 + 2], s = STATE_FIRST;
    memset(bits, 0xFF, sizeof bits);
    matcher_mask(m, path, n, bits, TOKENS / 32 + 1);
    for (uint32_t i = 0; i < n; i++)
        s = path[i] == TAG ? after(g, after(g, s, "\xFF", 1), "<x>", 3)
                           : after(g, s, text[path[i]], len[path[i]]);
    assert_int_not_equal(s, STATE_DEAD);
    bool any = false;
    for (uint32_t id = 0; id < TOKENS; id++) {
        bool want = len[id] && id != END && id != TAG && after(g, s, text[id], len[id]);
        if (id == TAG) want = after(g, after(g, s, "\xFF", 1), "<x>", 3);
        any = any || want;
        if (id == END) continue;
        if ((bits[id >> 5] >> (id & 31) & 1) != want) fail_msg("token %u of the mask is %d", id, !want);
    }
    assert_int_equal(bits[END >> 5] >> END & 1, g->states[s].accepts || !any);
    assert_int_equal(bits[TOKENS / 32], 0);
    assert_int_equal(bits[TOKENS / 32 + 1], UINT32_MAX);
    uint32_t drafted[16], all[64 + 16], count = matcher_forced(m, path, n, 16, drafted);
    memcpy(all, path, n * sizeof *path);
    for (uint32_t i = 0; i < count; i++) {
        matcher_mask(m, all, n + i, bits, TOKENS / 32 + 1);
        assert_true(bits[drafted[i] >> 5] >> (drafted[i] & 31) & 1);
        all[n + i] = drafted[i];
    }
}

/* Random ways through the grammar, with random tokens: takes the grammar. */
static void wander(struct grammar *g)
{
    char text[TOKENS][64];
    size_t len[TOKENS];
    struct grammar_vocab *v = make_vocab(text, len);
    struct matcher *old, *new;
    assert_int_equal(matcher_create(g, v, &old), ST_OK);
    uint32_t path[64], n = 0;
    for (int step = 0; step < 60; step++) {
        uint32_t bits[TOKENS / 32 + 1], ids[TOKENS], count = 0;
        assert_int_equal(matcher_create(g, v, &new), ST_OK);
        if (dice(8) == 0) machine__drop(g);
        check_mask(g, dice(2) ? old : new, path, n, text, len);
        matcher_mask(old, path, n, bits, TOKENS / 32 + 1);
        if (dice(6) == 0) machine__drop(g);
        uint32_t again[TOKENS / 32 + 1];
        matcher_mask(new, path, n, again, TOKENS / 32 + 1);
        assert_memory_equal(bits, again, sizeof bits);
        matcher_free(new);
        for (uint32_t id = 0; id < TOKENS; id++)
            if (id != END && bits[id >> 5] >> (id & 31) & 1) ids[count++] = id;
        if (!count || n == 60 || dice(6) == 0) n = dice(n + 1); /* back, and another way */
        else path[n++] = ids[dice(count)];
    }
    matcher_free(old);
    grammar_vocab_free(v);
    grammar_unref(g);
}

/* Of so many grammars: a quarter in short, a twelfth under a sanitizer. */
static uint64_t masks_wanted(uint64_t all)
{
    const char *brief = getenv("KVASIR_TEST_SHORT");
    return !brief ? all : strcmp(brief, "2") == 0 ? all / 12 : all / 4;
}

static void test_masks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= masks_wanted(400); seed++) {
        struct random_grammar r;
        seed_now = seed;
        struct grammar *g = make_grammar(&r);
        if (g) wander(g);
        if (seed % 4 == 0 && (g = make_costly_grammar(&r))) wander(g);
    }
}

/* An answer that needs more than may be made at once is not gone through again for each token. */
static void test_long_answer(void **state)
{
    (void)state;
    char text[TOKENS][64];
    size_t len[TOKENS];
    struct grammar_error error;
    struct grammar *g;
    struct matcher *m;
    uint32_t bits[TOKENS / 32 + 1], *path = calloc(30001, sizeof *path), ordinary = 0;
    struct grammar_vocab *v = make_vocab(text, len);
    json_t *s = json_loads("{\"type\":\"string\",\"maxLength\":100000}", 0, NULL);
    assert_int_equal(grammar_from_schema(s, &(struct grammar_json_options){0}, &g, &error), ST_OK);
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    while (len[ordinary] != 1 || text[ordinary][0] != 'a') ordinary++;
    for (uint32_t id = 0; id < TOKENS; id++)
        if (len[id] == 1 && text[id][0] == '"') path[0] = id;
    for (uint32_t n = 1; n <= 30000; n++) {
        path[n] = ordinary;
        matcher_mask(m, path, n, bits, TOKENS / 32 + 1);
        assert_true(bits[ordinary >> 5] >> (ordinary & 31) & 1);
    }
    assert_in_range(g->generation, 0, 8);
    matcher_free(m);
    grammar_vocab_free(v);
    grammar_unref(g);
    json_decref(s);
    free(path);
}

/* What is left out of the first part may leave out texts of every length of the whole. */
static void test_free_run(void **state)
{
    (void)state;
    struct rx_pool *p;
    assert_int_equal(rx_pool_create(10000, &p), ST_OK);
    rx one = grammar__character(p, TOKEN_CLASS_ORDINARY), many = rx_repeat(p, one, 0, RX_NO_LIMIT),
       end = rx_literal(p, "\"", 1);
    rx a = rx_literal(p, "a", 1), body = rx_concat(p, many, end);
    assert_int_equal(rx_free_run(p, body, one), RX_NO_LIMIT);
    assert_int_equal(rx_free_run(p, rx_concat(p, rx_and(p, many, rx_not(p, a)), end), one), RX_NO_LIMIT);
    assert_int_equal(rx_free_run(p, rx_concat(p, rx_and(p, one, rx_not(p, a)), body), one), 0);
    assert_int_equal(rx_free_run(p, rx_and(p, body, rx_not(p, rx_concat(p, a, body))), one), 0);
    rx odd = rx_concat(p, end, rx_repeat(p, end, 0, RX_NO_LIMIT)), head = rx_and(p, one, rx_not(p, odd));
    assert_int_equal(rx_free_run(p, rx_concat(p, rx_and(p, head, rx_not(p, a)), body), one), 0);
    rx_pool_free(p);
}

/* Strings in which all ordinary tokens are allowed at once, or nearly all. */
static void test_strings(void **state)
{
    (void)state;
    char names[2048] = "{\"type\":\"object\",\"properties\":{";
    for (unsigned i = 2; i < 64; i++) { /* names of a and b, up to five letters */
        size_t at = strlen(names);
        if (i > 2) names[at++] = ',';
        names[at++] = '"';
        for (unsigned bit = 5; bit-- > 0;)
            if (i >> (bit + 1)) names[at++] = i >> bit & 1 ? 'b' : 'a';
        memcpy(names + at, "\":{}", 5);
    }
    strcat(names, "}}");
    const char *const schemas[] = {
        names, "{\"type\":\"string\",\"maxLength\":9}", "{\"type\":\"string\",\"minLength\":3}",
        "{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"ab\",\"aba\",\"c\"]}}",
        "{\"type\":\"string\",\"maxLength\":3,\"not\":{\"enum\":[\"\",\"ab\",\"aba\"]}}",
        "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}",
        /* ordinary tokens are allowed by several places together */
        "{\"properties\":{\"a\":{},\"ab\":{\"type\":\"null\"}},\"patternProperties\":{\".*\":"
        "{\"type\":\"null\"}},\"type\":\"object\"}",
        "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"^[^a]\":"
        "{\"type\":\"string\"}}}",
        "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{\"^a\":"
        "{\"type\":\"null\"},\"^[^ab]\":{\"type\":\"string\"}}}"};
    for (uint64_t seed = 1; seed <= masks_wanted(120); seed++) {
        struct grammar_json_options opt = {.any_whitespace = seed % 2, .any_order = seed / 9 % 3 == 0};
        struct grammar_error error;
        struct grammar *g;
        json_t *schema = json_loads(schemas[seed % 9], JSON_DECODE_ANY, NULL);
        seed_now = seed;
        assert_int_equal(grammar_from_schema(schema, &opt, &g, &error), ST_OK);
        json_decref(schema);
        wander(g);
    }
}

static void test_tag(void **state)
{
    (void)state;
    char text[TOKENS][64];
    size_t len[TOKENS];
    struct grammar_builder *b;
    struct grammar *g;
    struct matcher *m;
    seed_now = 5;
    struct grammar_vocab *v = make_vocab(text, len);
    assert_int_equal(gb_create(&b), ST_OK);
    gx list[] = {gb_literal(b, "ab", 2), gb_tag(b, v, "<x>"), gb_tag(b, v, "<y>")};
    assert_int_equal(gb_finish(b, gb_seq(b, list, 3), &g, NULL), ST_OK);
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    uint32_t path[] = {0, 1, TAG}, bits[TOKENS / 32];
    check_mask(g, m, path, 2, text, len);
    matcher_mask(m, path, 2, bits, TOKENS / 32);
    for (uint32_t i = 0; i < TOKENS; i++) assert_int_equal(bits[i >> 5] >> (i & 31) & 1, i == TAG);
    check_mask(g, m, path, 3, text, len);
    assert_int_not_equal(after(g, after(g, after(g, STATE_FIRST, "ab\xFF<x>", 6), "<y", 2), ">", 1),
                         STATE_DEAD);
    uint32_t wrong[] = {1, 1};
    matcher_mask(m, wrong, 2, bits, TOKENS / 32);
    for (uint32_t i = 0; i < TOKENS; i++) assert_int_equal(bits[i >> 5] >> (i & 31) & 1, i == END);
    matcher_free(m);
    grammar_vocab_free(v);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),    cmocka_unit_test(test_costly_texts), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_free_run), cmocka_unit_test(test_long_answer),  cmocka_unit_test(test_strings),
        cmocka_unit_test(test_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Grammars that grow without measure in an automaton made carelessly: tests/golden/costly_grammars.json. Each
 * compiles, or is refused with a reason, and makes masks with bounded work. What is counted is work and
 * memory, not time.
 *
 * In the file a text is a string, a list of texts one after the other, or {"of": text, "times": n}, where @i@
 * is the number of the time. */
#include "tests/lib/grammars.h"
#include "server/grammar/mask.h"
#include "tests/lib/backend_sets.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIST     "tests/golden/costly_grammars.json"
#define TEXT_MAX ((size_t)1 << 18)
#define TOKENS   1000u
#define STEPS    20u
/* Of one grammar: bytes that it has when it is compiled, and with what its masks make; nanoseconds of a unit
 * of work: ten times what is measured. */
#define COMPILE_BYTES ((size_t)8 << 20)
#define MASKS_BYTES   ((size_t)160 << 20)
#define UNIT_NS       100.0
/* One step of the machine, and what the planner does of a mask: five times what is measured, for machines
 * that are busy; with sanitizers or without optimization four times that. */
#if defined __OPTIMIZE__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#define SLOW 1
#else
#define SLOW 4
#endif
#define STEP_MS    (25.0 * SLOW)
#define PLANNER_MS (3.0 * SLOW)

static uint64_t seed_now;
static unsigned dice(unsigned n)
{
    seed_now = seed_now * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed_now >> 33) % n;
}

struct text {
    char *s;
    size_t len;
};

static void add(struct text *t, const char *s, size_t len)
{
    assert_true(t->len + len < TEXT_MAX);
    memcpy(t->s + t->len, s, len);
    t->len += len;
    t->s[t->len] = '\0';
}

static void expand(struct text *t, const json_t *v, int time)
{
    const json_t *one;
    size_t i;
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *at;
        char number[16];
        for (; (at = strstr(s, "@i@")); s = at + 3) {
            add(t, s, (size_t)(at - s));
            add(t, number, (size_t)snprintf(number, sizeof number, "%d", time));
        }
        add(t, s, strlen(s));
    }
    if (json_is_array(v))
        json_array_foreach(v, i, one) expand(t, one, time);
    if (!json_is_object(v)) return;
    json_int_t times = json_integer_value(json_object_get(v, "times"));
    assert_true(times > 0);
    for (json_int_t k = 0; k < times; k++) expand(t, json_object_get(v, "of"), (int)k);
}

static enum status compile(const char *kind, const json_t *value, struct grammar **g, struct grammar_error *f)
{
    struct text t = {.s = malloc(TEXT_MAX)};
    struct grammar_json_options opt = {.any_whitespace = true, .any_order = true};
    json_t *schema = NULL;
    enum status st;
    t.s[0] = '\0';
    if (strcmp(kind, "schema")) expand(&t, value, 0);
    if (strcmp(kind, "pattern") == 0) schema = json_pack("{s:s,s:s}", "type", "string", "pattern", t.s);
    else if (strcmp(kind, "not_pattern") == 0)
        schema = json_pack("{s:s,s:{s:s}}", "type", "string", "not", "pattern", t.s);
    else if (strcmp(kind, "patternProperties") == 0)
        schema = json_pack("{s:s,s:{s:{s:s}},s:b}", "type", "object", kind, t.s, "type", "integer",
                           "additionalProperties", 0);
    else if (strcmp(kind, "propertyNames") == 0)
        schema = json_pack("{s:s,s:{s:s},s:{s:s}}", "type", "object", kind, "pattern", t.s,
                           "additionalProperties", "type", "integer");
    else if (strcmp(kind, "schema") == 0) schema = json_incref((json_t *)(uintptr_t)value);
    if (schema) st = grammar_from_schema(schema, &opt, g, f);
    else if (strcmp(kind, "guided_regex") == 0) st = grammar_from_regex(t.s, t.len, g, f);
    else st = grammar_from_text(t.s, t.len, g, f);
    json_decref(schema);
    free(t.s);
    return st;
}

static struct grammar_vocab *vocab_of(void)
{
    static const char letters[] = "etaoinshrdlucmfgypwbvkxjqz", other[] = " 0123456789.,\"(){}[]:-!\\_aeiob";
    static char text[TOKENS][64];
    static struct grammar_token tokens[TOKENS];
    static const uint32_t ends[] = {0};
    struct grammar_vocab *v;
    for (uint32_t i = 1; i < TOKENS; i++) {
        size_t len = i < 26 + 32 ? 1 : 2 + dice(i % 50 ? 8 : 60);
        for (size_t k = 0; k < len; k++) {
            unsigned letter = i < 26 ? i : dice(2) ? dice(26) : dice(6);
            bool plain = i < 26 || (i >= 26 + 32 && dice(5));
            text[i][k] = plain ? letters[letter] : other[i < 26 + 32 ? (i - 26) % 30 : dice(30)];
        }
        if (i % 40 == 39 && len > 1) memcpy(text[i], "\xC3\xA9", 2);
        if (i % 30 == 29) memset(text[i], 'a', len); /* runs of one letter */
        tokens[i] = (struct grammar_token){text[i], len};
    }
    assert_int_equal(grammar_vocab_create(tokens, TOKENS, ends, 1, NULL, 0, &v, NULL), ST_OK);
    return v;
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

struct count {
    double compile_ms, mask_ms, all_ms, step_ms;
    size_t work, bytes;
    enum matcher_failure why;
};

/* The masks along a random answer, which prefers what does not end it. */
static void walk(struct grammar *g, const struct grammar_vocab *v, struct count *c)
{
    uint32_t response[STEPS], bits[TOKENS / 32 + 1], n = 0, some[TOKENS];
    struct matcher *m;
    assert_int_equal(matcher_create(g, v, &m), ST_OK);
    size_t work = rx_pool_work(g->pool);
    for (; n < STEPS; n++) {
        double begin = cpu_ms();
        enum mask_state st = matcher_prepare(m, response, n, false);
        double took = cpu_ms() - begin;
        c->all_ms += took;
        if (took > c->mask_ms) c->mask_ms = took;
        if (grammar_bytes(g) > c->bytes) c->bytes = grammar_bytes(g);
        c->why = matcher_failure(m);
        if (st != MASK_READY) break;
        matcher_mask(m, response, n, bits, TOKENS / 32 + 1);
        uint32_t found = 0;
        for (uint32_t i = 1; i < TOKENS; i++)
            if (bits[i >> 5] >> (i & 31) & 1) some[found++] = i;
        if (!found) break; /* the end */
        response[n] = some[dice(found)];
        for (int k = 0; k < 8 && response[n] < 26 + 32; k++) response[n] = some[dice(found)];
    }
    c->work = rx_pool_work(g->pool) - work;
    matcher_free(m);
}

/* Single steps, along a random way through the bytes. */
static void steps(struct grammar *g, struct count *c)
{
    uint32_t state = STATE_FIRST, next[256];
    for (int k = 0; k < 12 && state; k++) {
        uint32_t n = 0;
        for (unsigned b = 0; b < 256 && !g->full; b++) {
            double begin = cpu_ms();
            uint32_t to = machine__next(g, state, (uint8_t)b);
            double took = cpu_ms() - begin;
            if (took > c->step_ms) c->step_ms = took;
            if (to) next[n++] = to;
        }
        state = n ? next[dice(n)] : STATE_DEAD;
    }
}

/* What the planner's calls do, where threads make what takes longer: a small part of a mask, in one call. */
static void planner(struct grammar *g, const struct grammar_vocab *v, const char *text)
{
    struct mask_threads *t; /* none: what is left to them stays undone */
    for (int brief = 0; brief < 2; brief++) {
        struct matcher *m;
        assert_int_equal(mask_threads_create(0, NULL, NULL, NULL, NULL, &t), ST_OK);
        assert_int_equal(matcher_create(g, v, &m), ST_OK);
        matcher_threads(m, t, 0);
        double begin = cpu_ms();
        (void)matcher_prepare(m, NULL, 0, brief);
        double took = cpu_ms() - begin;
        if (took > PLANNER_MS) fail_msg("%.200s: the planner takes %.1f ms", text, took);
        matcher_stop(m);
        machine__drop(g);
        mask__disown(g, m, true);
        mask_threads_destroy(t);
        matcher_free(m);
    }
}

static void test_costs(void **state)
{
    (void)state;
    json_error_t where;
    json_t *list = json_load_file(LIST, 0, &where), *one;
    size_t i, refused = 0, every = getenv("KVASIR_TEST_SHORT") ? 5 : 1;
    assert_non_null(list);
    assert_true(json_array_size(list) >= 44);
    seed_now = 1;
    struct grammar_vocab *v = vocab_of();
    json_array_foreach(list, i, one) {
        const char *kind = json_string_value(json_object_get(one, "kind"));
        struct grammar *g = NULL;
        struct grammar_error error = {{0}, {0}};
        struct count c = {0};
        if (i % every) continue;
        char *text = json_dumps(one, JSON_COMPACT);
        double begin = cpu_ms();
        enum status st = compile(kind, json_object_get(one, "value"), &g, &error);
        c.compile_ms = cpu_ms() - begin;
        if (st) {
            if (!strstr(error.message, "too")) fail_msg("%.200s: %s", text, error.message);
            if (getenv("KVASIR_TEST_COSTS"))
                printf("%3zu: compiled %.0f ms: %s | %.90s\n", i, c.compile_ms, error.message, text);
            refused++;
            free(text);
            continue;
        }
        size_t bytes = grammar_bytes(g);
        planner(g, v, text);
        seed_now = 1 + i;
        walk(g, v, &c);
        steps(g, &c);
        if (getenv("KVASIR_TEST_COSTS"))
            printf(
                "%3zu: %zu KiB in %.0f ms; a mask %.1f ms, all %.1f ms, %zu units (%.0f ns), %zu KiB, a step "
                "%.2f ms; end %d | %.90s\n",
                i, bytes >> 10, c.compile_ms, c.mask_ms, c.all_ms, c.work, 1e6 * c.all_ms / (double)c.work,
                c.bytes >> 10, c.step_ms, (int)c.why, text);
        if (bytes > COMPILE_BYTES || c.bytes > MASKS_BYTES || c.step_ms > STEP_MS ||
            c.all_ms > 50 + 1e-6 * UNIT_NS * (double)c.work || c.why == MATCHER_MEMORY)
            fail_msg("%.200s: %zu bytes; all masks %.1f ms, %zu units, %zu bytes; a step %.1f ms; %d", text,
                     bytes, c.all_ms, c.work, c.bytes, c.step_ms, (int)c.why);
        free(text);
        grammar_unref(g);
    }
    assert_true(refused < json_array_size(list) / 4);
    grammar_vocab_free(v);
    json_decref(list);
}

/* Each rule refers to itself and to the next: what is known of the last one must not take a pass over all of
 * them to be known of the one before. */
static void test_chain(void **state)
{
    (void)state;
    enum { RULES = 6000 };
    struct text t = {.s = malloc(TEXT_MAX)};
    char line[64];
    struct grammar *g = NULL;
    struct grammar_error error = {{0}, {0}};
    add(&t, "root::=", 7);
    for (int i = RULES; i > 0; i--)
        add(&t, line, (size_t)snprintf(line, sizeof line, "%s\"r\"a%d", i < RULES ? "|" : "", i));
    for (int i = 1; i < RULES; i++)
        add(&t, line, (size_t)snprintf(line, sizeof line, "\na%d::=\"(\"a%d|\"y\"a%d", i, i, i + 1));
    add(&t, line, (size_t)snprintf(line, sizeof line, "\na%d::=\"z\"", RULES));
    double begin = cpu_ms();
    enum status st = grammar_from_text(t.s, t.len, &g, &error);
    double took = cpu_ms() - begin;
    if (st) fail_msg("%s", error.message);
    if (took > 500.0 * SLOW) fail_msg("%.0f ms", took);
    grammar_unref(g);
    free(t.s);
}

/* Many schemas together: what each name of a property must be, and the required names, are looked for in
 * all of them. */
static void test_together(void **state)
{
    (void)state;
    for (int required = 0; required < 2; required++) {
        json_t *all = json_array(), *names = json_object();
        for (int i = 0; i < 800; i++) {
            char name[16];
            json_t *list = json_array();
            snprintf(name, sizeof name, "p%d", i);
            json_object_set_new(names, name, json_true());
            for (int k = 0; k < 100; k++) {
                snprintf(name, sizeof name, "q%d", 100 * i + k);
                json_array_append_new(list, json_string(name));
            }
            json_array_append_new(all, required
                                           ? json_pack("{s:O}", "required", list)
                                           : json_pack("{s:{s:i}}", "additionalProperties", "maxLength", i));
            json_decref(list);
        }
        json_t *schema = json_pack("{s:s,s:o,s:o}", "type", "object", "properties", names, "allOf", all);
        struct grammar_json_options opt = {.any_whitespace = true};
        struct grammar_error error = {{0}, {0}};
        struct grammar *g = NULL;
        double begin = cpu_ms();
        assert_int_equal(grammar_from_schema(schema, &opt, &g, &error), ST_TOO_LARGE);
        double took = cpu_ms() - begin;
        assert_non_null(strstr(error.message, "too large"));
        if (took > 3000.0 * SLOW) fail_msg("%.0f ms", took);
        json_decref(schema);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs), cmocka_unit_test(test_chain),
                                       cmocka_unit_test(test_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Grammars that grow without measure in an automaton made carelessly: tests/golden/costly_grammars.json. Each
 * compiles, or is refused with a reason, and makes masks with bounded work. What is counted is work and
 * memory, not time.
 *
 * In the file a text is a string, a list of texts one after the other, or {"of": text, "times": n}, where @i@
 * is the number of the time. */
#include "server/grammar/machine.h"
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
#define TOKENS   3000u
#define MASKS    20u
/* Of one grammar: what compiling it may make and do, what one byte may cost, and what all masks may. */
#define COMPILE_BYTES ((size_t)96 << 20)
#define COMPILE_WORK  ((size_t)1 << 23)
#define STEP_COST     (1u << 16)
#define MASK_COST     ((size_t)1 << 22)
#define MASKS_BYTES   ((size_t)160 << 20)

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
    if (json_is_array(v)) json_array_foreach(v, i, one) expand(t, one, time);
    if (!json_is_object(v)) return;
    json_int_t times = json_integer_value(json_object_get(v, "times"));
    assert_true(times > 0);
    for (json_int_t k = 0; k < times; k++) expand(t, json_object_get(v, "of"), (int)k);
}

static enum status compile(const char *kind, const json_t *value, struct grammar **g, struct grammar_fault *f)
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

static struct text tokens[TOKENS];

static void tokens_make(void)
{
    static const char letters[] = "etaoinshrdlucmfgypwbvkxjqz", other[] = " 0123456789.,\"(){}[]:-!\\_aeiob";
    for (uint32_t i = 0; i < TOKENS; i++) {
        size_t len = i < 26 + 32 ? 1 : 2 + dice(i % 50 ? 8 : 60);
        tokens[i] = (struct text){calloc(1, 128), len};
        for (size_t k = 0; k < len; k++) {
            bool letter = i < 26 || dice(5);
            tokens[i].s[k] = letter ? letters[i < 26    ? i
                                              : dice(2) ? dice(26)
                                                        : dice(6)]
                                    : other[i < 26 + 32 && i >= 26 ? (i - 26) % 30 : dice(30)];
        }
        if (i % 40 == 39) memcpy(tokens[i].s, "\xC3\xA9", 2), tokens[i].len = len < 2 ? 2 : len;
        if (i % 30 == 29) memset(tokens[i].s, 'a', len); /* runs of one letter */
    }
}

static uint32_t after(struct grammar *g, uint32_t state, const struct text *t)
{
    for (size_t i = 0; i < t->len && state; i++) state = machine__next(g, state, (uint8_t)t->s[i]);
    return state;
}

struct count {
    size_t cost, mask_cost, bytes;
    uint32_t step_cost, masks;
};

/* What masks along a random answer visit, and cost. */
static void walk(struct grammar *g, struct count *c)
{
    struct text path = {.s = calloc(1, TEXT_MAX)};
    for (uint32_t mask = 0; mask < MASKS; mask++) {
        machine__tidy(g);
        uint32_t state = after(g, STATE_FIRST, &path), from = g->state_count, found = 0, to[TOKENS];
        size_t cost = 0;
        assert_int_not_equal(state, STATE_DEAD);
        for (uint32_t i = 0; i < TOKENS; i++)
            if (after(g, state, &tokens[i])) to[found++] = i;
        for (uint32_t s = from; s < g->state_count; s++) {
            uint32_t n = machine__cost(g, s);
            assert_true(n > 0);
            cost += n;
            if (n > c->step_cost) c->step_cost = n;
        }
        c->masks++;
        c->cost += cost;
        if (cost > c->mask_cost) c->mask_cost = cost;
        if (machine__made(g) > c->bytes) c->bytes = machine__made(g);
        if (!found) break;
        uint32_t next = to[dice(found)];
        for (int k = 0; k < 8 && (tokens[next].s[0] == '"' || tokens[next].len < 2); k++)
            next = to[dice(found)];
        add(&path, tokens[next].s, tokens[next].len);
    }
    assert_false(g->failed);
    free(path.s);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void test_costs(void **state)
{
    (void)state;
    json_error_t where;
    json_t *list = json_load_file(LIST, 0, &where), *one;
    size_t i, refused = 0;
    assert_non_null(list);
    assert_true(json_array_size(list) >= 44);
    seed_now = 1;
    tokens_make();
    json_array_foreach(list, i, one)
    {
        const char *kind = json_string_value(json_object_get(one, "kind"));
        struct grammar *g = NULL;
        struct grammar_fault fault = {{0}, {0}};
        struct count c = {0};
        char *text = json_dumps(one, JSON_COMPACT);
        double start = now_ms(), made;
        enum status st = compile(kind, json_object_get(one, "value"), &g, &fault);
        made = now_ms();
        if (st) {
            assert_int_equal(st, ST_TOO_LARGE);
            assert_true(fault.message[0]);
            refused++;
            if (getenv("KVASIR_TEST_COSTS"))
                printf("%3zu %6.0f ms %s: %s | %.90s\n", i, made - start, fault.path, fault.message, text);
            free(text);
            continue;
        }
        size_t bytes = grammar_bytes(g);
        if (bytes > COMPILE_BYTES) fail_msg("%.200s: %zu bytes when compiled", text, bytes);
        seed_now = 1 + i;
        walk(g, &c);
        if (getenv("KVASIR_TEST_COSTS"))
            printf("%3zu %6.0f ms %7zu KiB  %2u masks %7.0f ms, cost %8zu, largest %7zu, a state %6u, %6zu "
                   "KiB | %.90s\n",
                   i, made - start, bytes >> 10, c.masks, now_ms() - made, c.cost, c.mask_cost, c.step_cost,
                   c.bytes >> 10, text);
        else {
            if (c.step_cost > STEP_COST) fail_msg("%.200s: a state costs %u", text, c.step_cost);
            if (c.mask_cost > MASK_COST) fail_msg("%.200s: a mask costs %zu", text, c.mask_cost);
            if (c.bytes > MASKS_BYTES) fail_msg("%.200s: masks make %zu bytes", text, c.bytes);
        }
        free(text);
        grammar_unref(g);
    }
    assert_true(refused < json_array_size(list) / 4);
    for (i = 0; i < TOKENS; i++) free(tokens[i].s);
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

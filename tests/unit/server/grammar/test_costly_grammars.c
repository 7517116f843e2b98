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

#define LIST     "tests/golden/costly_grammars.json"
#define TEXT_MAX ((size_t)1 << 18)
#define TOKENS   1000u
#define MASKS    20u
/* Of one grammar: bytes that it has when it is compiled; what one state costs, and all that one mask visits;
 * what all its masks make at most at once, and do. */
#define COMPILE_BYTES ((size_t)8 << 20)
#define STATE_COST    (1u << 16)
#define MASK_COST     ((size_t)1 << 22)
#define MASKS_BYTES   ((size_t)80 << 20)
#define MASKS_WORK    ((size_t)100 << 20)

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
    size_t mask_cost, bytes;
    uint32_t state_cost;
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
            if (n > c->state_cost) c->state_cost = n;
        }
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
        if (compile(kind, json_object_get(one, "value"), &g, &fault)) {
            if (!strstr(fault.message, "too")) fail_msg("%.200s: %s", text, fault.message);
            refused++;
            free(text);
            continue;
        }
        size_t bytes = grammar_bytes(g), work = rx_pool_work(g->pool);
        seed_now = 1 + i;
        walk(g, &c);
        work = rx_pool_work(g->pool) - work;
        if (getenv("KVASIR_TEST_COSTS"))
            printf("%3zu: %zu KiB; a state %u, a mask %zu, %zu KiB, work %zu | %.90s\n", i, bytes >> 10,
                   c.state_cost, c.mask_cost, c.bytes >> 10, work, text);
        else if (bytes > COMPILE_BYTES || c.state_cost > STATE_COST || c.mask_cost > MASK_COST ||
                 c.bytes > MASKS_BYTES || work > MASKS_WORK)
            fail_msg(
                "%.200s: %zu bytes; a state costs %u, a mask %zu; masks make %zu bytes, with work of %zu",
                text, bytes, c.state_cost, c.mask_cost, c.bytes, work);
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

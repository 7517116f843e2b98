/* MaskBench's files (schema, instances that are valid and that are not) against server/grammar/:
 *   bench_grammar [--model DIR] [--list] FILE.json...
 * Prints how many schemas compile, how many instances are judged wrongly, and, with a model's tokenizer, the
 * time to the first mask and of each mask along the valid instances. --list: a line for each schema that is
 * refused or wrong. scripts/maskbench.py compares other engines. */
#include "tests/lib/tokens.h"
#include "tests/lib/grammars.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/grammar/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
    const struct grammar_vocab *vocab;
    struct tokenizer *tok;
    bool list, ordered;
    size_t schemas, refused, instances, wrong_refused, wrong_accepted, bad_schemas;
    float *first, *masks;
    size_t first_count, mask_count, cap;
} b;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *x, const void *y)
{
    float a = *(const float *)x, c = *(const float *)y;
    return a < c ? -1 : a > c;
}

/* How much of the text is allowed: SIZE_MAX where it is complete then. */
static size_t accepted(struct grammar *g, const char *text)
{
    uint32_t state = STATE_FIRST;
    machine__tidy(g);
    for (size_t i = 0; text[i]; i++) {
        state = machine__next(g, state, (uint8_t)text[i]);
        if (!state) return i;
    }
    return g->states[state].accepts ? SIZE_MAX : strlen(text);
}

/* Masks along a text that is allowed; adds the compile time to the first one's. */
static void masks(struct grammar *g, const char *text, double compile_us, bool first)
{
    struct tok_run run = {text, strlen(text), TOK_CONTROL_NONE};
    struct tok_ids ids;
    struct matcher *m;
    struct err err;
    uint32_t *bits = malloc((b.vocab->words + 1u) * sizeof *bits);
    if (!bits || tok_encode(b.tok, &run, 1, false, 1u << 20, &ids, &err) || matcher_create(g, b.vocab, &m))
        exit(1);
    if (b.mask_count + ids.count + 1 > b.cap) {
        b.cap = 2 * (b.mask_count + ids.count + 1);
        b.masks = realloc(b.masks, b.cap * sizeof *b.masks);
        if (!b.masks) exit(1);
    }
    for (size_t i = 0; i <= ids.count; i++) {
        double start = now_us();
        matcher_mask(m, ids.ids, (uint32_t)i, bits, b.vocab->words);
        double us = now_us() - start;
        b.masks[b.mask_count++] = (float)us;
        if (i == 0 && first) b.first[b.first_count++] = (float)(us + compile_us);
        if (i < ids.count && !(bits[ids.ids[i] >> 5] >> (ids.ids[i] & 31) & 1)) {
            printf("mask differs from the machine at token %zu of %s\n", i, text);
            break;
        }
    }
    matcher_free(m);
    tok_ids_free(&ids);
    free(bits);
}

static void file(const char *path)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_DECODE_ANY, &where), *test;
    struct grammar_json_options opt = {.any_whitespace = true, .any_order = !b.ordered};
    struct grammar *g;
    struct grammar_error error;
    size_t i;
    bool bad = false, first = true;
    if (!root) return;
    b.schemas++;
    double start = now_us();
    enum status st = grammar_from_schema(json_object_get(root, "schema"), &opt, &g, &error);
    double compile_us = now_us() - start;
    if (st) {
        b.refused++;
        if (b.list) printf("refused %s: %s at %s\n", path, error.message, error.path);
        json_decref(root);
        return;
    }
    json_array_foreach(json_object_get(root, "tests"), i, test) {
        bool valid = json_is_true(json_object_get(test, "valid"));
        char *text = json_dumps(json_object_get(test, "data"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        size_t far = text ? accepted(g, text) : 0;
        bool yes = far == SIZE_MAX;
        b.instances++;
        if (valid != yes) {
            bad = true;
            b.wrong_refused += valid;
            b.wrong_accepted += !valid;
            if (b.list && valid)
                printf("valid-refused %s: at %zu: %.*s|%.60s\n", path, far, far < 60 ? (int)far : 60,
                       far < 60 ? text : text + far - 60, text + far);
            if (b.list && !valid) printf("invalid-accepted %s: %.300s\n", path, text);
        } else if (valid && b.tok) {
            masks(g, text, compile_us, first);
            first = false;
        }
        free(text);
    }
    b.bad_schemas += bad;
    grammar_unref(g);
    json_decref(root);
}

static void model(const char *dir)
{
    struct err err;
    static struct grammar_vocab *vocab;
    if (tok_load(dir, &b.tok, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    uint32_t n = tok_vocab_size(b.tok), end = 0;
    struct grammar_token *tokens = calloc(n, sizeof *tokens);
    for (uint32_t i = 0; tokens && i < n; i++)
        if (tok_exists(b.tok, i) && !tok_is_special(b.tok, i))
            tokens[i].bytes = tok_bytes(b.tok, i, &tokens[i].len);
    double start = now_us();
    if (!tokens || grammar_vocab_create(tokens, n, &end, 1, NULL, 0, &vocab, &err)) exit(1);
    printf("vocabulary of %u tokens: %.0f ms\n", n, (now_us() - start) / 1e3);
    free(tokens);
    b.vocab = vocab;
}

int main(int argc, char **argv)
{
    b.first = malloc(((size_t)argc + 1) * sizeof *b.first);
    for (int i = 1; i < argc && b.first; i++) {
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) model(argv[++i]);
        else if (strcmp(argv[i], "--list") == 0) b.list = true;
        else if (strcmp(argv[i], "--ordered") == 0) b.ordered = true;
        else file(argv[i]);
    }
    printf("%zu schemas, %zu compiled (%.1f %%), of which %zu judge an instance wrongly; %zu instances: "
           "%zu valid ones refused, %zu invalid ones accepted\n",
           b.schemas, b.schemas - b.refused, 100.0 * (double)(b.schemas - b.refused) / (double)b.schemas,
           b.bad_schemas, b.instances, b.wrong_refused, b.wrong_accepted);
    if (!b.mask_count) return 0;
    qsort(b.first, b.first_count, sizeof *b.first, by_size);
    qsort(b.masks, b.mask_count, sizeof *b.masks, by_size);
    printf(
        "first mask: median %.0f us, p99 %.0f us; %zu masks: median %.1f us, p99 %.0f us, largest %.0f us\n",
        (double)b.first[b.first_count / 2], (double)b.first[b.first_count * 99 / 100], b.mask_count,
        (double)b.masks[b.mask_count / 2], (double)b.masks[b.mask_count * 99 / 100],
        (double)b.masks[b.mask_count - 1]);
    return 0;
}

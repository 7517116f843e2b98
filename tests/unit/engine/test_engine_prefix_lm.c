/* Prefix-LM models: how long a prompt a step takes, bounded by the context's length and by memory, and
 * compared with models where only images are atomic. */
#include "engine/internal.h"
#include "tests/lib/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct engine_caps caps_of(const char *family, const char *variant, uint32_t context, uint32_t batch)
{
    struct engine *e;
    struct engine_caps c;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .kernels = "reference",
                                 .threads = 1,
                                 .kv_bytes = 4u << 20,
                                 .context_max = context,
                                 .batch_tokens_max = batch,
                                 .sequences_max = 3};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    engine_caps(e, &c);
    engine_close(e);
    return c;
}

static void test_caps(void **state)
{
    (void)state;
    struct engine_caps c = caps_of("paligemma", "pg2_f32", 0, 0);
    assert_true(c.context_max == 2048 && c.span_tokens_max == 2048 && c.batch_tokens_max == 2051);
    c = caps_of("paligemma", "pg2_f32", 300, 64);
    assert_true(c.context_max == 300 && c.span_tokens_max == 300 && c.batch_tokens_max == 303);
    c = caps_of("paligemma", "pg1_f32", 300, 500);
    assert_true(c.span_tokens_max == 300 && c.batch_tokens_max == 500);
    c = caps_of("gemma", "gemma2_f32", 300, 500); /* the same decoder without images: causal */
    assert_true(c.span_tokens_max == 0 && c.batch_tokens_max == 500);
    c = caps_of("gemma3", "vision_f32", 0, 2);
    assert_true(c.span_tokens_max > 0 && c.span_tokens_max < 300);
    assert_int_equal(c.batch_tokens_max, c.span_tokens_max + 3);
}

/* A row of this model's MLP takes 4 MiB of scratch, its weights less than 1 GiB: a prompt as long as the
 * context would take 127 GiB. Nothing is allocated. */
static void test_memory_is_the_bound(void **state)
{
    static const char config[] =
        "{\"model_type\":\"paligemma\",\"text_config\":{\"hidden_size\":64,\"intermediate_size\":1048576,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":16,"
        "\"vocab_size\":64,\"max_position_embeddings\":32000},\"vision_config\":{\"hidden_size\":16,"
        "\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"image_size\":32,"
        "\"patch_size\":16}}";
    char dir[] = "/tmp/kvasir-whole-XXXXXX", path[64], text[4096];
    struct engine_inspected seen;
    struct err err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(config, f) >= 0 && fclose(f) == 0);
    struct engine_options opt = {.model_dir = dir,
                                 .kernels = "reference",
                                 .dtype = DTYPE_F32,
                                 .threads = 1,
                                 .sequences_max = 2,
                                 .kv_bytes = 1u << 20,
                                 .random_weights = true};
    enum status st = engine_inspect(&opt, text, sizeof text, &seen, &err);
    unlink(path);
    rmdir(dir);
    if (st == ST_NOMEM) skip(); /* a machine that has not even room for the shortest */
    if (st) fail_msg("%s", err.msg);
    const char *step = strstr(text, "step       at most ");
    double free_mib = 0, scratch = 0;
    unsigned rows = 0;
    assert_non_null(step);
    assert_int_equal(sscanf(step, "step       at most %u", &rows), 1);
    assert_non_null(strstr(step, "prompts as a whole"));
    const char *memory = strstr(text, "memory     ");
    assert_non_null(memory);
    assert_int_equal(sscanf(memory, "memory     %lf MiB free", &free_mib), 1);
    memory = strstr(memory, "working memory ");
    assert_int_equal(sscanf(memory, "working memory %lf", &scratch), 1);
    if (free_mib < 200 * 1024) assert_true(rows < 32002 && scratch <= free_mib / 2);
    else assert_true(rows <= 32002);
    assert_true(rows >= 1024 - 1024 / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_caps),
                                       cmocka_unit_test(test_memory_is_the_bound)};
    return cmocka_run_group_tests_name("engine_whole", tests, NULL, NULL);
}

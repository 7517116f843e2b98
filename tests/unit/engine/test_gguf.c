/* GGUF files instead of checkpoint directories: the small ones of scripts/reference/make_gguf.py describe the
 * same models as the directories that they were made from, tensor by tensor; and 1,500 damaged ones get a
 * clear line or are read, and nothing crashes (run this under the address and undefined sanitizers). */
#include "config/gguf/gguf.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/weights.h"
#include "engine/families/families.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN "tests/golden/gguf/"

static const struct {
    const char *dir, *model, *mmproj;
} cases[] = {
    {"tests/golden/gemma3/window_small_f32", GOLDEN "gemma3.gguf", GOLDEN "gemma3-mmproj.gguf"},
    {"tests/golden/qwen/qwen2_vl_f32", GOLDEN "qwen2_vl.gguf", GOLDEN "qwen2_vl-mmproj.gguf"},
    {"tests/golden/qwen/qwen2_5_vl_f32", GOLDEN "qwen2_5_vl.gguf", GOLDEN "qwen2_5_vl-mmproj.gguf"},
    {"tests/golden/qwen/qwen3_vl_f32", GOLDEN "qwen3_vl.gguf", GOLDEN "qwen3_vl-mmproj.gguf"},
    {"tests/golden/qwen/qwen3_moe_f32", GOLDEN "qwen3_moe.gguf", NULL},
    {"tests/golden/gemma4/e4b_released_f32", GOLDEN "gemma4.gguf", NULL},
    {"tests/golden/gemma4/moe_released_f32", GOLDEN "gemma4_moe.gguf", NULL},
    {"tests/golden/gemma4/e2b_vision_f32", GOLDEN "gemma4_tower.gguf", GOLDEN "gemma4_tower-mmproj.gguf"},
    {"tests/golden/llama/llama_gguf_f32", GOLDEN "llama.gguf", NULL},
    {"tests/golden/llama/llama_odd_f32", GOLDEN "llama_odd.gguf", NULL},
    {"tests/golden/llama/smollm3_f32", GOLDEN "smollm3.gguf", NULL},
    {"tests/golden/llama/granite_f32", GOLDEN "granite.gguf", NULL},
    {"tests/golden/llama/lfm2_odd_f32", GOLDEN "lfm2.gguf", NULL},
    {"tests/golden/llama/exaone4_odd_f32", GOLDEN "exaone4.gguf", NULL},
    {"tests/golden/embeddings/plain_f32", GOLDEN "gemma_embedding.gguf", NULL},
    {"tests/golden/embeddings/last_f32", GOLDEN "qwen3_embedding.gguf", NULL},
};
enum { CASES = sizeof cases / sizeof *cases };

struct side {
    struct hf_config *config;
    struct model_desc desc;
    struct stf_files *files;
};

static void load(struct side *s, const char *model, const char *mmproj)
{
    struct err err = {""};
    s->config = calloc(1, sizeof *s->config);
    if (family_load(model, mmproj, s->config, &s->desc, &err) || family_open(model, mmproj, &s->files, &err))
        fail_msg("%s", err.msg);
    model_desc_resolve(&s->desc, s->files);
}

static void unload(struct side *s)
{
    model_desc_free(&s->desc);
    stf_close(s->files);
    free(s->config);
}

static void same_layers(const struct model_desc *a, const struct model_desc *b)
{
    for (uint32_t n = 0; n < a->layer_count; n++) {
        const struct desc_layer *x = &a->layers[n], *y = &b->layers[n];
        assert_int_equal(x->heads, y->heads);
        assert_int_equal(x->kv_heads, y->kv_heads);
        assert_int_equal(x->head_dim, y->head_dim);
        assert_int_equal(x->window, y->window);
        assert_int_equal(x->rope, y->rope);
        assert_int_equal(x->ff, y->ff);
        assert_int_equal(x->experts, y->experts);
        assert_int_equal(x->experts_used, y->experts_used);
        assert_int_equal(x->kv_owner, y->kv_owner);
        assert_int_equal(x->v_from_k, y->v_from_k);
        assert_int_equal(x->qkv_bias, y->qkv_bias);
        assert_true(x->scale == y->scale && x->softcap == y->softcap);
    }
    for (uint32_t i = 0; i < a->rope_count; i++) {
        assert_true(fabs(a->ropes[i].theta - b->ropes[i].theta) < 1e-3);
        assert_true(a->ropes[i].factor == b->ropes[i].factor && a->ropes[i].ramp == b->ropes[i].ramp);
        assert_true(a->ropes[i].original == b->ropes[i].original &&
                    a->ropes[i].beta_fast == b->ropes[i].beta_fast);
        assert_int_equal(a->ropes[i].unrotated_pairs, b->ropes[i].unrotated_pairs);
        assert_memory_equal(a->ropes[i].sections, b->ropes[i].sections, sizeof a->ropes[i].sections);
        assert_int_equal(a->ropes[i].interleaved, b->ropes[i].interleaved);
    }
}

static void same_tower(const struct desc_vision *a, const struct desc_vision *b)
{
    assert_int_equal(a->image_size, b->image_size);
    assert_int_equal(a->patch, b->patch);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->ff, b->ff);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->merge, b->merge);
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->pool, b->pool);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->position_side, b->position_side);
    assert_int_equal(a->deepstack_count, b->deepstack_count);
    assert_memory_equal(a->deepstack, b->deepstack, sizeof a->deepstack);
    assert_memory_equal(a->full_layers, b->full_layers, sizeof a->full_layers);
    assert_ptr_equal(a->names.fc1, b->names.fc1);
    assert_ptr_equal(a->names.std_scale, b->names.std_scale);
    assert_int_equal(a->clip, b->clip);
    assert_int_equal(a->position_axis, b->position_axis);
}

static const struct stf_tensor *find(const struct side *s, const char *canonical)
{
    char name[DESC_NAME_MAX];
    for (size_t i = 0; i < stf_count(s->files); i++) {
        const struct stf_tensor *t = stf_at(s->files, i);
        if (s->desc.canonical(t->name, name) && strcmp(name, canonical) == 0) return t;
    }
    return NULL;
}

/* Blocks of 8 bits are within 1/254 of their largest number. */
static void same_values(const struct stf_tensor *a, const struct stf_tensor *b, bool plus_one)
{
    size_t n = 1;
    for (uint32_t i = 0; i < b->rank; i++) n *= (size_t)b->shape[i];
    float *x = calloc(n ? n : 1, sizeof *x), *y = calloc(n ? n : 1, sizeof *y), most = 0;
    assert_true(stf_to_f32(a, x) && stf_to_f32(b, y));
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i] && !(fabsf(x[i] + (plus_one ? 1.0f : 0.0f) - y[i]) <= most / 200 + 1e-6f))
            fail_msg("%s[%zu] is %g, %g in the directory", b->name, i, (double)y[i], (double)x[i]);
    free(x);
    free(y);
}

/* Rows j and j + d/2 of each head in the directory are 2j and 2j + 1 in the GGUF file. */
static void same_pairs(const struct stf_tensor *t, const struct stf_tensor *u, uint32_t d)
{
    size_t n = (size_t)t->shape[0], k = t->rank == 2 ? (size_t)t->shape[1] : 1;
    float *x = calloc(n * k, sizeof *x), *y = calloc(n * k, sizeof *y);
    assert_true(stf_to_f32(t, x) && stf_to_f32(u, y));
    for (size_t i = 0; i < n * k; i++) {
        size_t row = i / k, at = row % d, other = row - at + at % (d / 2) * 2 + at / (d / 2);
        assert_true(fabsf(x[i] - y[other * k + i % k]) < 0.02f);
    }
    free(x);
    free(y);
}

static bool is_norm(const char *name)
{
    size_t len = strlen(name), tail = strlen("norm.weight");
    return (strncmp(name, "text.", 5) == 0 && len > tail && strcmp(name + len - tail, "norm.weight") == 0) ||
           strcmp(name, "projector.mm_soft_emb_norm.weight") == 0;
}

/* The first third of what the directory has in one. */
static void same_query(const struct stf_tensor *t, const char *canonical, const struct side *b)
{
    char name[DESC_NAME_MAX];
    const char *at = strstr(canonical, ".qkv.");
    snprintf(name, sizeof name, "%.*s.q.%s", (int)(at - canonical), canonical, at + strlen(".qkv."));
    const struct stf_tensor *q = find(b, name);
    assert_non_null(q);
    assert_int_equal(t->shape[0], 3 * q->shape[0]);
    struct stf_tensor third = *t;
    third.shape[0] /= 3;
    third.bytes /= 3;
    same_values(&third, q, false);
}

/* [out, rows, columns, channels] in one row of the directory's, planes in the GGUF file. */
static void same_patches(const struct stf_tensor *t, const struct stf_tensor *u)
{
    size_t channels = (size_t)u->shape[1], cells = (size_t)(u->shape[2] * u->shape[3]), n = channels * cells,
           all = (size_t)u->shape[0] * n;
    float *x = calloc(all, sizeof *x), *y = calloc(all, sizeof *y);
    assert_int_equal(t->shape[0], u->shape[0]);
    assert_int_equal(t->shape[1], n);
    assert_true(stf_to_f32(t, x) && stf_to_f32(u, y));
    for (size_t i = 0; i < all; i++) {
        float other = y[i / n * n + i % channels * cells + i % n / channels];
        assert_true(fabsf(x[i] - other) <= fabsf(x[i]) / 500 + 1e-6f);
    }
    free(x);
    free(y);
}

static void same_tensors(const struct side *a, const struct side *b)
{
    char name[DESC_NAME_MAX];
    for (size_t i = 0; i < stf_count(a->files); i++) {
        const struct stf_tensor *t = stf_at(a->files, i), *u;
        if (!a->desc.canonical(t->name, name)) continue;
        u = find(b, name);
        if (!u && strstr(name, ".qkv.")) {
            same_query(t, name, b);
            continue;
        }
        if (!u) fail_msg("the GGUF file has no %s", name);
        if (a->desc.vision.channels_last && u->rank == 4) {
            same_patches(t, u);
            continue;
        }
        if (b->desc.qk_pairs && (strstr(name, ".q_proj.") || strstr(name, ".k_proj."))) {
            same_pairs(t, u, b->desc.layers[0].head_dim);
            continue;
        }
        bool single = t->rank == 0 && u->rank == 1 && u->shape[0] == 1;
        bool conv = t->rank == 3 && u->rank == 2 && t->shape[1] == 1 && t->shape[2] == u->shape[1];
        if (!single && !conv &&
            (t->rank != u->rank || memcmp(t->shape, u->shape, t->rank * sizeof *t->shape) != 0))
            fail_msg("%s has another shape", name);
        same_values(t, u, stf_norms_plus_one(b->files) && is_norm(name));
    }
}

static void test_same_models(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct side a = {0}, b = {0};
        load(&a, cases[i].dir, NULL);
        load(&b, cases[i].model, cases[i].mmproj);
        assert_string_equal(a.config->model_type, b.config->model_type);
        assert_int_equal(a.desc.vocab, b.desc.vocab);
        assert_int_equal(a.desc.hidden, b.desc.hidden);
        assert_int_equal(a.desc.layer_count, b.desc.layer_count);
        assert_int_equal(a.desc.context_max, b.desc.context_max);
        assert_int_equal(a.desc.rope_count, b.desc.rope_count);
        assert_int_equal(a.desc.tied, b.desc.tied);
        assert_int_equal(a.desc.ple, b.desc.ple);
        assert_true(a.desc.norm_eps == b.desc.norm_eps && a.desc.final_softcap == b.desc.final_softcap);
        assert_true(a.desc.embed_scale == b.desc.embed_scale && a.desc.logit_scale == b.desc.logit_scale);
        assert_int_equal(a.desc.has_vision, b.desc.has_vision);
        assert_int_equal(a.desc.image.placeholder_id, b.desc.image.placeholder_id);
        same_layers(&a.desc, &b.desc);
        if (a.desc.has_vision) same_tower(&a.desc.vision, &b.desc.vision);
        same_tensors(&a, &b);
        unload(&a);
        unload(&b);
    }
}

/* ---- what is wrong ---- */

static void expect(const char *model, const char *mmproj, enum status want, const char *says)
{
    static struct hf_config config;
    struct model_desc desc;
    struct err err = {""};
    enum status st = family_load(model, mmproj, &config, &desc, &err);
    model_desc_free(&desc);
    if (st != want || (want && !strstr(err.msg, says))) fail_msg("%s: \"%s\"", status_name(st), err.msg);
}

static void test_wrong_files(void **state)
{
    (void)state;
    expect(GOLDEN "gemma3-mmproj.gguf", NULL, ST_INVALID, "--mmproj");
    expect(GOLDEN "qwen3_moe.gguf", GOLDEN "gemma3-mmproj.gguf", ST_UNSUPPORTED, "tower");
    expect(GOLDEN "qwen3_vl.gguf", GOLDEN "qwen3_moe.gguf", ST_FORMAT, "use the mmproj-*.gguf");
    expect(GOLDEN "qwen3_vl.gguf", GOLDEN "none.gguf", ST_NOT_FOUND, "none.gguf");
    expect(GOLDEN "qwen3_vl.gguf", NULL, ST_OK, "");
    expect("tests/golden/qwen/qwen3_vl_f32", GOLDEN "qwen3_vl-mmproj.gguf", ST_INVALID, "GGUF");
}

static uint8_t *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*len);
    assert_int_equal(fread(p, 1, *len, f), *len);
    fclose(f);
    return p;
}

/* One number of a file's metadata is another. */
static void change(const char *from, const char *to, const char *key, uint32_t number)
{
    size_t len;
    uint8_t *p = read_file(from, &len), *at = memmem(p, len, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key) + 4, &number, sizeof number);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, len, f), len);
    fclose(f);
    free(p);
}

/* A fault names the file that has it, its own key and what may stand there. */
static void test_wrong_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *model, *mmproj, *key;
        uint32_t number;
        const char *says;
    } wrong[] = {
        {GOLDEN "qwen3_moe.gguf", NULL, "qwen3moe.block_count", 0,
         "block_count: must be an integer from 1 to 512"},
        {GOLDEN "qwen3_moe.gguf", NULL, "expert_used_count", 65, "expert_used_count: must be an integer"},
        {GOLDEN "qwen3_moe.gguf", NULL, "rope.freq_base", 0, "rope.freq_base: must be a number from 1"},
        {GOLDEN "qwen2_vl.gguf", GOLDEN "qwen2_vl-mmproj.gguf", "vision.attention.head_count", 3,
         "num_heads"},
        {GOLDEN "qwen2_vl.gguf", GOLDEN "qwen2_vl-mmproj.gguf", "vision.block_count", 4000,
         "clip.vision.block_count: must be an integer from 1 to 512"},
        {GOLDEN "gemma3.gguf", GOLDEN "gemma3-mmproj.gguf", "projector.scale_factor", 9,
         "clip.vision.projector.scale_factor: must be"},
    };
    char path[] = "/tmp/kvasir-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool tower = wrong[i].mmproj != NULL;
        change(tower ? wrong[i].mmproj : wrong[i].model, path, wrong[i].key, wrong[i].number);
        expect(tower ? wrong[i].model : path, tower ? path : NULL, ST_FORMAT, wrong[i].says);
    }
    unlink(path);
}

/* What the processor makes is what the tower takes; areas are those of the tower's file. */
static void test_images(void **state)
{
    (void)state;
    uint32_t towers = 0;
    for (int i = 0; i < CASES; i++) {
        struct side s = {0};
        struct image_config c;
        struct err err = {""};
        if (!cases[i].mmproj) continue;
        load(&s, cases[i].model, cases[i].mmproj);
        if (family_load_images(cases[i].model, cases[i].mmproj, s.config->model_type, &c, &err))
            fail_msg("%s", err.msg);
        if (c.dynamic) {
            assert_true(c.patch == s.desc.vision.patch && c.merge == s.desc.vision.merge && c.video);
            assert_true(c.budgets ? c.area_max == 280ull * c.patch * c.patch * c.merge * c.merge
                                  : c.area_min == 256 && c.area_max == 2560);
        } else {
            assert_true(c.width == s.desc.vision.image_size && c.height == c.width);
        }
        unload(&s);
        assert_int_equal(family_load_images(cases[i].model, NULL, "gemma3", &c, &err), ST_NOT_FOUND);
        towers++;
    }
    assert_int_equal(towers, 5);
}

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*seed >> 33) % n);
}

/* Everything that is done with a file before its numbers are used. */
static void use(const char *model, const char *mmproj)
{
    static struct hf_config config;
    struct err err = {""};
    struct model_desc desc;
    struct stf_files *files;
    struct hf_generation generation;
    struct image_config images;
    const struct family_prompt *prompt;
    if (family_load_generation(model, &generation, &err) && !err.msg[0]) fail_msg("sampling: no word");
    err.msg[0] = '\0';
    if (family_load_prompt(model, &prompt, &err) && !err.msg[0]) fail_msg("prompts: no word");
    err.msg[0] = '\0';
    if (!family_load(model, mmproj, &config, &desc, &err)) {
        if (desc.has_vision && family_load_images(model, mmproj, config.model_type, &images, &err) &&
            !err.msg[0])
            fail_msg("images: no word");
        model_desc_free(&desc);
    } else if (!err.msg[0]) {
        fail_msg("a fault without a word");
    }
    err.msg[0] = '\0';
    if (family_open(model, mmproj, &files, &err)) {
        if (!err.msg[0]) fail_msg("a fault without a word");
        return;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        for (uint64_t k = 0; k < t->bytes; k += 61) sum += ((const volatile uint8_t *)t->data)[k];
        if (t->bytes) sum += ((const volatile uint8_t *)t->data)[t->bytes - 1];
    }
    assert_true(sum > 0 || stf_count(files) == 0);
    stf_close(files);
}

/* A few bytes are others, or a number that is worth trying stands somewhere, or the end is missing. Most of
 * it hits the metadata, where all decisions are made. */
static size_t damage(uint8_t *p, size_t len, uint64_t *seed)
{
    static const uint64_t numbers[] = {
        0,         1, 2, 31, 255, 65536, UINT32_MAX, UINT64_C(1) << 33, UINT64_C(1) << 61, UINT64_C(1) << 63,
        UINT64_MAX};
    uint32_t near = len < 9000 ? (uint32_t)len : 9000, kind = random_below(seed, 4);
    if (kind == 0) return random_below(seed, (uint32_t)len + 1);
    for (uint32_t n = 1 + random_below(seed, 3); n > 0; n--) {
        uint32_t at = random_below(seed, random_below(seed, 4) ? near : (uint32_t)len);
        if (kind == 1) p[at] = (uint8_t)random_below(seed, 256);
        else if (kind == 2) p[at] ^= (uint8_t)(1u << random_below(seed, 8));
        else if (at + 8 <= len)
            memcpy(p + at, &numbers[random_below(seed, sizeof numbers / sizeof *numbers)],
                   random_below(seed, 2) ? 8 : 4);
    }
    return len;
}

static void test_damaged(void **state)
{
    (void)state;
    char path[] = "/tmp/kvasir-test-XXXXXX";
    int fd = mkstemp(path);
    uint64_t seed = 1;
    assert_true(fd >= 0);
    close(fd);
    for (int n = 0; n < 1500; n++) {
        int i = n % CASES;
        bool tower = cases[i].mmproj && n / CASES % 2;
        size_t len;
        uint8_t *p = read_file(tower ? cases[i].mmproj : cases[i].model, &len);
        len = damage(p, len, &seed);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(p, 1, len, f), len);
        fclose(f);
        free(p);
        if (tower) use(cases[i].model, path);
        else if (gguf_is(path)) use(path, cases[i].mmproj);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_models),   cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_wrong_numbers), cmocka_unit_test(test_images),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

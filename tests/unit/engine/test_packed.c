/* Matrices of quantised checkpoints: floats and quants of every layout against the methods' own formulas
 * (tests/golden/packed), and what is refused. */
#include "engine/checkpoint/packed.h"
#include "tests/lib/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct desc_packing said; /* nothing */

struct place {
    const struct stf_files *files;
    const char *stem;
    struct stf_tensor changed; /* instead of what is there; name NULL: nothing */
};

static const struct stf_tensor *find(void *arg, const char *suffix)
{
    const struct place *p = arg;
    char name[100];
    snprintf(name, sizeof name, "%s%s", p->stem, suffix);
    if (p->changed.name && strcmp(p->changed.name, name) == 0) return &p->changed;
    return stf_find(p->files, name);
}

static struct stf_files *open_golden(void)
{
    char path[700];
    struct stf_files *files;
    struct err err;
    snprintf(path, sizeof path, "%s/tests/golden/packed/matrices.safetensors", golden_root());
    if (stf_open_file(path, &files, &err)) fail_msg("%s", err.msg);
    return files;
}

static const struct stf_tensor *floats_of(const struct stf_files *files, const char *stem)
{
    char name[100];
    snprintf(name, sizeof name, "%s.floats", stem);
    const struct stf_tensor *t = stf_find(files, name);
    assert_non_null(t);
    return t;
}

static void check_rows(const struct packed *p, const float *want, const char *stem)
{
    float *got = calloc(p->k, sizeof *got), *scale = calloc(p->k / 32 + 1, 4),
          *min = calloc(p->k / 32 + 1, 4);
    uint8_t *code = calloc(p->k, 1);
    assert_true(got && scale && min && code);
    for (uint32_t r = 0; r < p->n; r++, want += p->k) {
        packed_floats(p, r, 0, p->k, got);
        packed_floats(p, r, 3, p->k - 5, got + 3);
        for (uint32_t i = 0; i < p->k; i++)
            if (memcmp(&got[i], &want[i], 4) != 0 && !(got[i] == 0 && want[i] == 0))
                fail_msg("%s [%u][%u] is %.9g, should be %.9g", stem, r, i, (double)got[i], (double)want[i]);
        if (p->quants) packed_quants(p, r, code, scale, min);
        for (uint32_t i = 0; i < p->k && p->quants; i++) {
            float v = p->off ? scale[i / 32] * (float)((int32_t)code[i] - (int32_t)p->off)
                             : scale[i / 32] * (float)code[i] + min[i / 32];
            assert_true(code[i] < 1u << p->bits);
            assert_true(fabsf(v - want[i]) <= 16 * fabsf(scale[i / 32]) * 0x1p-22f);
        }
    }
    free(got);
    free(scale);
    free(min);
    free(code);
}

static void test_layouts(void **state)
{
    (void)state;
    static const struct {
        const char *stem;
        enum packed_kind kind;
        bool quants;
    } all[] = {{"awq", PACKED_AWQ, true},           {"awq_wide", PACKED_AWQ, true},
               {"gptq", PACKED_GPTQ, true},         {"gptq_ordered", PACKED_GPTQ, false},
               {"gptq8", PACKED_GPTQ, true},        {"words_ordered", PACKED_WORDS, false},
               {"words8", PACKED_WORDS, true},      {"words8_zeros", PACKED_WORDS, true},
               {"words", PACKED_WORDS, true},       {"words_channel", PACKED_WORDS, true},
               {"words_zeros", PACKED_WORDS, true}, {"int8", PACKED_INT8, true},
               {"fp8_channel", PACKED_FP8, false},  {"fp8_tensor", PACKED_FP8, false},
               {"fp8_blocks", PACKED_FP8, false}};
    struct stf_files *files = open_golden();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct place at = {.files = files, .stem = all[i].stem};
        const struct stf_tensor *want = floats_of(files, all[i].stem);
        struct packed p;
        struct err err;
        if (packed_open(find, &at, &said, (uint32_t)want->shape[0], (uint32_t)want->shape[1], &p, &err))
            fail_msg("%s: %s", all[i].stem, err.msg);
        assert_int_equal(p.kind, all[i].kind);
        assert_int_equal(p.quants, all[i].quants);
        check_rows(&p, want->data, all[i].stem);
    }
    stf_close(files);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *stem, *name; /* of the tensor that is another than it should be */
        uint32_t rank, rows, cols;
        const char *says;
    } all[] = {{"awq", "awq.qweight", 2, 128, 6, "only 4 bits"},
               {"awq", "awq.qzeros", 2, 2, 4, "qzeros"},
               {"awq", "awq.scales", 2, 3, 40, "scales"},
               {"gptq", "gptq.g_idx", 1, 127, 0, "group for each input"},
               {"words", "words.weight_packed", 2, 40, 31, "only 4 or 8 bits"},
               {"words", "words.weight_scale", 2, 40, 3, "row of scales"},
               {"words_zeros", "words_zeros.weight_zero_point", 2, 40, 2, "zero points"},
               {"int8", "int8.weight", 2, 128, 40, "another shape"},
               {"int8", "int8.weight_scale", 2, 7, 1, "blocks of 128"},
               {"fp8_blocks", "fp8_blocks.weight_scale_inv", 1, 0, 0, "shape"}};
    struct stf_files *files = open_golden();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct place at = {.files = files, .stem = all[i].stem};
        const struct stf_tensor *want = floats_of(files, all[i].stem), *is = stf_find(files, all[i].name);
        struct packed p;
        struct err err = {{0}};
        assert_non_null(is);
        at.changed = *is;
        at.changed.rank = all[i].rank;
        at.changed.shape[0] = all[i].rows;
        at.changed.shape[1] = all[i].cols;
        enum status st =
            packed_open(find, &at, &said, (uint32_t)want->shape[0], (uint32_t)want->shape[1], &p, &err);
        if (st != ST_FORMAT && st != ST_UNSUPPORTED) fail_msg("%s: status %d", all[i].name, (int)st);
        if (!strstr(err.msg, all[i].says)) fail_msg("%s: %s", all[i].name, err.msg);
    }
    /* 8 bits with zero points; rows of zero points that are not whole words */
    struct stf_tensor zeros = *stf_find(files, "words_zeros.weight_zero_point");
    struct place more[] = {{.files = files, .stem = "int8", .changed = zeros},
                           {.files = files, .stem = "gptq", .changed = *stf_find(files, "gptq.qweight")}};
    const uint32_t rows[2] = {40, 41};
    more[0].changed.name = "int8.weight_zero_point";
    more[1].changed.shape[1] = 41;
    for (size_t i = 0; i < 2; i++) {
        struct packed q;
        struct err err = {{0}};
        assert_int_equal(packed_open(find, &more[i], &said, rows[i], 128, &q, &err), ST_UNSUPPORTED);
    }
    struct place none = {.files = files, .stem = "nothing"};
    struct packed p;
    struct err err;
    assert_int_equal(packed_open(find, &none, &said, 4, 4, &p, &err), ST_NOT_FOUND);
    stf_close(files);
}

/* compressed-tensors' name for scales of blocks. */
static const struct stf_tensor *find_renamed(void *arg, const char *suffix)
{
    if (strcmp(suffix, ".weight_scale_inv") == 0) return NULL;
    return find(arg, strcmp(suffix, ".weight_scale") == 0 ? ".weight_scale_inv" : suffix);
}

/* What the tensors alone do not tell: blocks of 128 that the rows are no multiple of, groups, zero points. */
static void test_said(void **state)
{
    (void)state;
    struct stf_files *files = open_golden();
    struct place blocks = {.files = files, .stem = "fp8_blocks"}, words = {.files = files, .stem = "words"};
    const struct desc_packing zeros = {.zeros = true}, group = {.group = 32}, wrong = {.group = 64};
    struct packed p;
    struct err err;
    assert_int_equal(packed_open(find_renamed, &blocks, &said, 160, 200, &p, &err), ST_OK);
    check_rows(&p, floats_of(files, "fp8_blocks")->data, "fp8_blocks");
    assert_int_equal(packed_open(find, &words, &group, 40, 128, &p, &err), ST_OK);
    assert_int_equal(packed_open(find, &words, &wrong, 40, 128, &p, &err), ST_FORMAT);
    assert_int_equal(packed_open(find, &words, &zeros, 40, 128, &p, &err), ST_FORMAT);
    const struct desc_packing plain = {.zeros_plain = true};
    struct place v2 = {.files = files, .stem = "gptq_v2"};
    assert_int_equal(packed_open(find, &v2, &plain, 40, 128, &p, &err), ST_OK);
    check_rows(&p, floats_of(files, "gptq_v2")->data, "gptq_v2");
    stf_close(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_said)};
    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}

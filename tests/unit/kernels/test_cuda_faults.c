/* Faults of the device, put in by the emulator: each call of the runtime fails in turn, once or for good.
 * Whatever fails is reported - by the call that can, else by sync() with a text - nothing crashes or hangs,
 * and the backend closes. And what a step may not do: allocate, or wait for the device. Built without the
 * emulator there is nothing to run. */
#include "kernels/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* emu_api.h, which is C++ */
enum cuemu_fail_kind { FAIL_MALLOC, FAIL_HOST, FAIL_LAUNCH, FAIL_COPY, FAIL_SYNC, FAIL_GRAPH, FAIL_BLAS };
void cuemu_fail_at(enum cuemu_fail_kind kind, unsigned long nth, int error, int sticky) __attribute__((weak));
void cuemu_counts(unsigned long *allocations, unsigned long *launches, unsigned long *syncs)
    __attribute__((weak));
const struct be_ops *be_cuda_host_ops(void) __attribute__((weak));

enum { C = 64, T = 40, HEADS = 4, GROUPS = 2, DIM = 16, WIDE = (HEADS + 2 * GROUPS) * DIM, BLOCKS = 2 };

static bool own_gemm = true;

/* A layer's worth of device memory and two weights. */
struct layer {
    const struct be_ops *ops;
    struct backend *b;
    struct be_weight *qkv_w, *glu_w;
    float *x, *norm, *qkv;
    void *h, *q, *out, *mlp, *arena;
    uint32_t *index; /* the arrays of struct be_rows, one behind the other */
};

static bool layer_open(struct layer *l, enum be_dtype act)
{
    *l = (struct layer){.ops = be_cuda_host_ops()};
    const char *hopper = getenv("KVASIR_CUDA_HOPPER");
    const struct be_params p = {
        .act = act, .own_gemm = own_gemm, .hopper = hopper && strcmp(hopper, "1") == 0};
    if (l->ops->open(&p, &l->b) != BE_OK) {
        assert_null(l->b);
        assert_true(strlen(l->ops->last_error(NULL)) > 0);
        return false;
    }
    static float ones[WIDE * C];
    for (size_t i = 0; i < WIDE * C; i++) ones[i] = 0.25f;
    struct be_weight_desc qkv = {.k = C, .src_count = 1, .src = {{ones, BE_F32, false, WIDE}}};
    struct be_weight_desc glu = {.k = C,
                                 .src_count = 2,
                                 .glu = true,
                                 .src = {{ones, BE_F32, false, C}, {ones, BE_F32, true, C}},
                                 .bias = ones};
    size_t layer = l->ops->kv_layer_bytes(l->b, BE_KV_ACT, GROUPS, DIM);
    return l->ops->weight_pack(l->b, &qkv, &l->qkv_w) == BE_OK &&
           l->ops->weight_pack(l->b, &glu, &l->glu_w) == BE_OK &&
           l->ops->alloc(l->b, T * C * 4, (void **)&l->x) == BE_OK &&
           l->ops->alloc(l->b, C * 4, (void **)&l->norm) == BE_OK &&
           l->ops->alloc(l->b, T * WIDE * 4, (void **)&l->qkv) == BE_OK &&
           l->ops->alloc(l->b, T * C * 4, &l->h) == BE_OK && l->ops->alloc(l->b, T * C * 4, &l->q) == BE_OK &&
           l->ops->alloc(l->b, T * C * 4, &l->out) == BE_OK &&
           l->ops->alloc(l->b, T * C * 4, &l->mlp) == BE_OK &&
           l->ops->alloc(l->b, BLOCKS * (layer + BE_KV_GRAIN), &l->arena) == BE_OK &&
           l->ops->alloc(l->b, 1024 * 4, (void **)&l->index) == BE_OK;
}

static void layer_close(struct layer *l)
{
    void *all[] = {l->x, l->norm, l->qkv, l->h, l->q, l->out, l->mlp, l->arena, l->index};
    if (!l->b) return;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) l->ops->free(l->b, all[i]);
    l->ops->weight_free(l->b, l->qkv_w);
    l->ops->weight_free(l->b, l->glu_w);
    l->ops->close(l->b);
}

/* One layer over T rows of one sequence. */
static void layer_run(const struct layer *l, enum be_dtype act)
{
    static uint32_t words[1024];
    static float x[T * C], norm[C];
    uint32_t units = (uint32_t)((l->ops->kv_layer_bytes(l->b, BE_KV_ACT, GROUPS, DIM) + BE_KV_GRAIN - 1) /
                                BE_KV_GRAIN),
             *dev = l->index;
    words[1] = T; /* seq_row 0..1; seq_table 32; tables 64..; pos and hi 128..; lo 256.. */
    words[65] = units;
    for (uint32_t i = 0; i < T; i++) words[128 + i] = i;
    for (size_t i = 0; i < T * C; i++) x[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < C; i++) norm[i] = 1;
    l->ops->upload(l->b, dev, words, sizeof words);
    l->ops->upload(l->b, l->x, x, sizeof x);
    l->ops->upload(l->b, l->norm, norm, sizeof norm);
    const struct be_rows rows = {T, 1, dev, dev + 32, dev + 64, dev + 128, dev + 256, dev + 128};
    const struct be_kv kv = {.arena = l->arena, .kv_heads = GROUPS, .head_dim = DIM};
    l->ops->norm(
        l->b, &(struct be_norm_args){
                  .t = T, .c = C, .eps = 1e-6f, .x = l->x, .weight = l->norm, .out = l->h, .out_dtype = act});
    l->ops->linear(l->b, &(struct be_linear_args){.w = l->qkv_w, .x = l->h, .t = T, .out = l->qkv});
    l->ops->qkv(l->b,
                &(struct be_qkv_args){.rows = &rows, .heads = HEADS, .kv = kv, .qkv = l->qkv, .q = l->q});
    l->ops->attn(l->b,
                 &(struct be_attn_args){
                     .rows = &rows, .heads = HEADS, .kv = kv, .q = l->q, .scale = 0.25f, .out = l->out});
    l->ops->linear(l->b, &(struct be_linear_args){
                             .w = l->glu_w, .x = l->out, .t = T, .epilogue = BE_EPI_GLU_SILU, .out = l->mlp});
}

/* The nth call of a kind fails. False: there are fewer, all went well. */
static bool fault(enum cuemu_fail_kind kind, unsigned long nth, int error, int sticky)
{
    static unsigned char got[T * C * 2], want[T * C * 2];
    struct layer l;
    bool reported = false;
    cuemu_fail_at(kind, nth, error, sticky);
    if (!layer_open(&l, BE_BF16)) {
        reported = true;
    } else {
        layer_run(&l, BE_BF16);
        memset(got, 0x77, sizeof got);
        bool lost = l.ops->sync(l.b) != BE_OK;
        l.ops->download(l.b, got, l.mlp, sizeof got);
        reported = l.ops->sync(l.b) != BE_OK;
        assert_true(reported || !lost); /* once failed, failed for good */
        if (reported) assert_true(strlen(l.ops->last_error(l.b)) > 0);
        for (size_t i = 0; lost && i < sizeof got; i++)
            assert_int_equal(got[i], 0);      /* no number of a failed step gets out */
        if (reported) layer_run(&l, BE_BF16); /* does nothing, without harm */
        bool still = l.ops->sync(l.b) == BE_DEVICE;
        assert_true(still || !reported);
        reported = still;
    }
    layer_close(&l);
    cuemu_fail_at(kind, 0, 0, 0);
    if (reported) return true;
    if (kind == FAIL_MALLOC && nth == 1000000) memcpy(want, got, sizeof got);
    assert_memory_equal(got, want, sizeof got);
    return false;
}

/* cuBLASLt's check at load makes hundreds of calls: of those only some fail. */
static void faults(bool own, int sticky)
{
    own_gemm = own;
    if (!be_cuda_host_ops) skip();
    assert_false(fault(FAIL_MALLOC, 1000000, 2, 0)); /* what comes out when nothing fails */
    static const struct {
        enum cuemu_fail_kind kind;
        int error;
        unsigned long least; /* calls that there are at least */
    } kinds[] = {{FAIL_MALLOC, 2, 12}, {FAIL_HOST, 2, 2},   {FAIL_LAUNCH, 719, 8},
                 {FAIL_COPY, 700, 10}, {FAIL_SYNC, 700, 1}, {FAIL_BLAS, 1, 4}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        unsigned long nth = 1;
        if (kinds[k].kind == FAIL_BLAS && own_gemm) continue;
        /* Without memory for its check a shape is our kernels'. */
        bool check = kinds[k].kind == FAIL_MALLOC && !own_gemm && !sticky;
        while (fault(kinds[k].kind, nth, kinds[k].error, sticky) || (check && nth <= kinds[k].least))
            nth += own_gemm ? 1 : 1 + nth / 3;
        if (nth <= kinds[k].least)
            fail_msg("kind %d: only %lu calls were seen to fail", (int)kinds[k].kind, nth - 1);
    }
}

static void test_one_fault(void **state)
{
    (void)state;
    faults(true, 0);
    faults(false, 0);
}

static void test_broken_device(void **state)
{
    (void)state;
    faults(true, 1);
    faults(false, 1);
}

static void test_step_waits_for_nothing(void **state)
{
    (void)state;
    if (!be_cuda_host_ops) skip();
    for (int i = 0; i < 4; i++) {
        int act = i % 2 ? BE_BF16 : BE_F32;
        struct layer l;
        unsigned long before[3], after[3];
        own_gemm = i / 2 == 0;
        assert_true(layer_open(&l, (enum be_dtype)act));
        assert_int_equal(l.ops->sync(l.b), BE_OK);
        layer_run(&l, (enum be_dtype)act);
        assert_int_equal(l.ops->sync(l.b), BE_OK);
        cuemu_counts(&before[0], &before[1], &before[2]);
        layer_run(&l, (enum be_dtype)act);
        cuemu_counts(&after[0], &after[1], &after[2]);
        assert_int_equal(after[0], before[0]);
        assert_true(after[1] >= before[1] + (own_gemm ? 5 : 4)); /* cuBLASLt's are not counted */
        /* Three uploads may each find that pinned memory is still being read; nothing else may wait. */
        assert_true(after[2] <= before[2] + 3);
        assert_int_equal(l.ops->sync(l.b), BE_OK);
        layer_close(&l);
    }
}

/* A device that is broken for good takes no memory back, and the emulator reports that at exit: a process of
 * its own, which ends without. */
static int broken_device(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_broken_device)};
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int failed = cmocka_run_group_tests_name("CUDA device broken", tests, NULL, NULL);
        fflush(stdout);
        _exit(failed != 0);
    }
    int status = 1;
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_fault),
                                       cmocka_unit_test(test_step_waits_for_nothing)};
    int failed = broken_device();
    return cmocka_run_group_tests_name("CUDA faults", tests, NULL, NULL) != 0 || failed;
}

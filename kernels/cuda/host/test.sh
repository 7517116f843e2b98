#!/bin/sh
# Everything that runs on the emulated device: its self-test, the backend tests, one golden checkpoint per family through the whole engine.
# usage: test.sh DIR MODE...      DIR/MODE/tests/ holds the programs of that build (plain, race or asan); without kernels there are none.
# Environment: TEST_TIMEOUT seconds for each program (default 600); HOST_FULL=1 lifts KVASIR_TEST_SHORT and adds random schedules.
# Closing line: "N passed, N failed".
dir=$1
shift
here=$(dirname "$0")
pass=0
fail=0
log=$dir/test.log
export UBSAN_OPTIONS=print_stacktrace=1

run() { # run NAME PROGRAM ENVIRONMENT...
    name=$1
    program=$2
    shift 2
    [ -x "$program" ] || return
    began=$(date +%s)
    if env "$@" timeout "${TEST_TIMEOUT:-600}" "$program" >"$log" 2>&1; then
        pass=$((pass + 1))
        echo "ok   $name ($(($(date +%s) - began)) s)"
    else
        rc=$?
        fail=$((fail + 1))
        echo "FAIL $name (exit $rc) with $*"
        tail -n 40 "$log"
    fi
}

# The Hopper path on an emulated device of compute capability 9.0.
hopper() { # hopper NAME PROGRAM ENVIRONMENT...: passes, and the path was not given up
    failed=$fail
    run "$@" CUEMU_CC=90 KVASIR_CUDA_HOPPER=1
    [ -x "$2" ] && [ "$fail" -eq "$failed" ] && grep -q 'Hopper kernels are not used' "$log" || return 0
    fail=$((fail + 1))
    echo "FAIL $1: $(grep 'Hopper kernels' "$log")"
}
hopper_wrong() { # hopper_wrong NAME PROGRAM ENVIRONMENT...: the device calculates wrongly; the path is given up, and all is well
    failed=$fail
    run "$@" CUEMU_CC=90 KVASIR_CUDA_HOPPER=1 CUEMU_WGMMA_WRONG=1
    [ ! -x "$2" ] || [ "$fail" -ne "$failed" ] || grep -q 'Hopper kernels are not used: products are wrong' "$log" && return
    fail=$((fail + 1))
    echo "FAIL $1: the self-check saw nothing"
}

out=$(sh "$here/selftest/run.sh" "$dir" "$@")
echo "$out" | grep -v ' passed, '
last=$(echo "$out" | tail -n 1)
pass=$(echo "$last" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
fail=$(echo "$last" | sed -n 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p')
pass=${pass:-0}
fail=${fail:-1}
echo "self-test of the emulator: $last"

# CI has minutes for this, not hours: the checkers' builds run the quick half of the tables there, HOST_FULL=1 everything.
short=KVASIR_TEST_SHORT=1
[ -n "${HOST_FULL:-}" ] && short=HOST_FULL=1
for mode in "$@"; do
    t=$dir/$mode/tests
    tables="ops"
    [ "$mode" = race ] && tables="ops attn"
    variants="text_bf16"
    if [ "$mode" = plain ] || [ -n "${HOST_FULL:-}" ]; then
        tables="linear ops attn experts"
        variants="vision_f32 text_bf16 qwen2_f32 qwen2_vl_f32 qwen2_5_vl_f32 qwen3_f32 qwen3_moe_f32 qwen3_vl_f32 qwen3_vl_bf16 qwen3_vl_moe_f32"
    fi
    for test in $tables; do run "$mode backend $test" "$t/test_backend_$test" $short; done
    if [ -n "${HOST_FULL:-}" ]; then
        for seed in 1 2 3; do
            for test in $tables; do
                run "$mode backend $test, seed $seed" "$t/test_backend_$test" KVASIR_TEST_SHORT=1 CUEMU_SCHED=rand CUEMU_SEED=$seed CUEMU_LAZY=1
            done
        done
    fi
    if [ "$mode" = plain ]; then
        run "plain faults" "$t/test_cuda_faults" $short
        run "plain graphs" "$t/test_cuda_graphs" $short
        run "plain beside the CPU" "$t/test_cuda_cpu" $short
        # A schedule that runs blocks and threads in reverse, streams late; host code that touches device memory faults.
        for test in ${HOST_FULL:+$tables} ops; do
            run "plain backend $test, reversed" "$t/test_backend_$test" KVASIR_TEST_SHORT=1 CUEMU_SCHED=rev CUEMU_LAZY=1 CUEMU_GUARD=1
        done
        for test in ${HOST_FULL:+ops} linear attn experts; do
            hopper "plain Hopper $test" "$t/test_backend_$test" KVASIR_TEST_SHORT=1
        done
        for variant in ${HOST_FULL:+vision_bf16 qwen2_bf16 qwen3_vl_bf16} text_bf16 qwen3_moe_bf16; do
            hopper "plain Hopper golden $variant" "$t/test_engine_golden" GOLDEN_VARIANT=$variant
        done
        hopper_wrong "plain Hopper fallback" "$t/test_engine_golden" GOLDEN_VARIANT=text_bf16
        [ -n "${HOST_FULL:-}" ] &&
            run "invariance vision_f32" "$t/test_engine_invariance" KVASIR_TEST_SHORT=1 GOLDEN_VARIANT=vision_f32
    fi
    [ "$mode" = race ] && hopper "race Hopper golden text_bf16" "$t/test_engine_golden" GOLDEN_VARIANT=text_bf16
    for variant in $variants; do
        ls -d tests/golden/*/$variant >/dev/null 2>&1 || continue
        # Recording graphs of all sizes takes the checkers' builds longer than the rest of it.
        graphs=KVASIR_CUDA_GRAPHS=0
        [ "$mode" = plain ] && graphs=KVASIR_CUDA_GRAPHS=1
        run "$mode golden $variant" "$t/test_engine_golden" GOLDEN_VARIANT=$variant $graphs
    done
done
rm -f "$log"
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]

#!/bin/bash
# Everything that runs on the emulated device: its self-test, the backend tests, golden checkpoints through
# the whole engine. As many programs at a time as there are cores.
# usage: test.sh DIR MODE...     DIR/MODE/tests/ holds the programs of that build (plain, race or asan)
# Environment: TEST_TIMEOUT seconds for each program (default 600); TEST_JOBS: how many at a time; HOST_FULL=1
# lifts KVASIR_TEST_SHORT, adds random schedules and takes more checkpoints.
# Closing line: "N passed, N failed".
dir=$1
shift
here=$(dirname "$0")
jobs=${TEST_JOBS:-$(nproc)}
full=${HOST_FULL:-}
results=$dir/test.log
: >"$results"
. scripts/unchanged.sh
export UBSAN_OPTIONS=print_stacktrace=1
# Memory of tables comes and goes: not from the kernel and back each time.
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_TOP_PAD_=67108864

start() { # start COMMAND...: when there is room for it; what it prints is a result
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    "$@" | tee -a "$results" &
}
# one NAME PATTERN PROGRAM ENVIRONMENT...: passes, and says PATTERN ("!PATTERN": does not; "": whatever)
one() {
    local name=$1 pattern=$2 program=$3 log rc=0 began=$SECONDS why="" cpu
    shift 3
    if unchanged "$dir/${name//[ \/]/_}.passed" "$program" "$pattern $*"; then
        echo "ok   $name (unchanged)"
        return
    fi
    log=$(mktemp "$dir/run.XXXXXX")
    env "$@" timeout "${TEST_TIMEOUT:-600}" "$program" >"$log" 2>&1 || rc=$?
    [ $rc -eq 0 ] || why="exit $rc"
    case $pattern in
    "") ;;
    !*) [ -z "$why" ] && grep -q "${pattern#!}" "$log" && why="it says: $(grep "${pattern#!}" "$log")" ;;
    *) [ -z "$why" ] && ! grep -q "$pattern" "$log" && why="it does not say: $pattern" ;;
    esac
    if [ -z "$why" ]; then
        passed
        times >"$log"
        cpu=$(tail -n 1 "$log" | sed 's/[ms]/ /g' | awk '{printf "%d", 60 * $1 + $2 + 60 * $3 + $4}')
        echo "ok   $name ($((SECONDS - began)) s, $cpu of CPU)"
    else
        printf 'FAIL %s (%s) with %s\n%s\n' "$name" "$why" "$*" "$(tail -n 40 "$log")"
    fi
    rm -f "$log"
}
run() { # run NAME PROGRAM ENVIRONMENT...
    start one "$1" "" "${@:2}"
}
# The Hopper path on an emulated device of compute capability 9.0: passes, and the path was not given up.
hopper() {
    local no='!Hopper kernels are not used'
    start one "$1" "$no" "${@:2}" CUEMU_CC=90 KVASIR_CUDA_HOPPER=1 KVASIR_GEMM=own
}
# The device calculates wrongly, or a barrier's phase takes too long: the path is given up, and all is well.
hopper_given_up() { # hopper_given_up NAME REASON PROGRAM ENVIRONMENT...
    local yes="Hopper kernels are not used: $2"
    start one "$1" "$yes" "${@:3}" CUEMU_CC=90 KVASIR_CUDA_HOPPER=1 KVASIR_GEMM=own
}
self_test() { # self_test MODE: its counts stand for that many results
    sh "$here/selftest/run.sh" "$dir" "$1" | sed "s/^\([0-9]* passed\)/self-test of the emulator, $1: \1/"
}

# CI has minutes for this, not hours: the checkers' builds run the quick half of the tables there.
short=KVASIR_TEST_SHORT=1
[ -n "$full" ] && short=HOST_FULL=1
for mode in "$@"; do
    t=$dir/$mode/tests
    start self_test "$mode"
    tables="ops"
    variants="text_bf16"
    if [ "$mode" = plain ] || [ -n "$full" ]; then
        tables="experts attn linear ops"
        variants="vision_bf16 text_bf16 qwen2_vl_f32 qwen2_5_vl_f32 qwen3_vl_bf16 qwen3_vl_moe_f32"
        variants="$variants pg2_f32 e2b_f32 moe_f32 31b_vision_bf16"
    fi
    # What those have, without images or in another type.
    [ -n "$full" ] && variants="$variants 12b_released_f32 pg1_f32 qwen2_f32 qwen3_f32 qwen3_moe_f32"
    [ -n "$full" ] && variants="$variants qwen3_vl_f32 vision_f32"
    # The tables check our kernels; cuBLASLt's products have the one that is made of them.
    for test in $tables; do run "$mode backend $test" "$t/test_backend_$test" $short KVASIR_GEMM=own; done
    [ "$mode" != plain ] || run "plain backend linear, cuBLASLt" "$t/test_backend_linear" ${short/=1/=2}
    for seed in ${full:+1 2 3}; do
        for test in $tables; do
            run "$mode backend $test, seed $seed" "$t/test_backend_$test" KVASIR_TEST_SHORT=1 \
                KVASIR_GEMM=own CUEMU_SCHED=rand CUEMU_SEED="$seed" CUEMU_LAZY=1
        done
    done
    run "$mode cuBLASLt" "$t/test_cuda_gemm" CUEMU_CC=90
    if [ "$mode" = plain ]; then
        for variant in text_bf16 ${full:+vision_f32} qwen2_vl_f32 e2b_f32; do
            run "plain golden $variant, own products" "$t/test_engine_golden" GOLDEN_VARIANT="$variant" \
                KVASIR_GEMM=own
        done
        for gemm in cublas ${full:+own}; do
            run "plain invariance text_bf16, $gemm" "$t/test_engine_invariance" KVASIR_TEST_SHORT=1 \
                GOLDEN_VARIANT=text_bf16 KVASIR_GEMM=$gemm
        done
        run "plain faults" "$t/test_cuda_faults" $short
        run "plain graphs" "$t/test_cuda_graphs" $short
        [ -z "$full" ] || run "plain overlap" "$t/test_engine_overlap" CUEMU_LAZY=1 $short
        [ -z "$full" ] || run "plain tiers" "$t/test_engine_tiers" CUEMU_LAZY=1 $short
        run "plain drafter" "$t/test_engine_draft"
        run "plain adapters" "$t/test_engine_lora" GOLDEN_VARIANT=gemma3
        run "plain beside the CPU" "$t/test_cuda_cpu" $short
        # Blocks and threads in reverse, streams late; host code that touches device memory faults.
        for test in ${full:+experts linear ops attn}; do
            run "plain backend $test, reversed" "$t/test_backend_$test" KVASIR_TEST_SHORT=1 \
                KVASIR_GEMM=own CUEMU_SCHED=rev CUEMU_LAZY=1 CUEMU_GUARD=1
        done
        for test in ${full:+ops attn experts linear}; do
            hopper "plain Hopper $test" "$t/test_backend_$test" KVASIR_TEST_SHORT=1
        done
        for variant in ${full:+vision_bf16 qwen2_bf16 qwen3_vl_bf16} text_bf16 qwen3_moe_bf16; do
            hopper "plain Hopper golden $variant" "$t/test_engine_golden" GOLDEN_VARIANT="$variant"
        done
        hopper_given_up "plain Hopper, wrong" "products are wrong" "$t/test_engine_golden" \
            GOLDEN_VARIANT=text_bf16 CUEMU_WGMMA_WRONG=1
        hopper_given_up "plain Hopper, late" "a wait of its products took longer" "$t/test_engine_golden" \
            GOLDEN_VARIANT=text_bf16 CUEMU_WAIT_LATE=1
        [ -z "$full" ] || run "invariance vision_f32" "$t/test_engine_invariance" KVASIR_TEST_SHORT=1 \
            GOLDEN_VARIANT=vision_f32
    fi
    [ "$mode" = race ] && [ -n "$full" ] &&
        hopper "race Hopper golden text_bf16" "$t/test_engine_golden" GOLDEN_VARIANT=text_bf16
    for variant in $variants; do
        # Recording graphs of all sizes takes the checkers' builds longer than the rest of it.
        graphs=KVASIR_CUDA_GRAPHS=0
        [ "$mode" = plain ] && graphs=KVASIR_CUDA_GRAPHS=1
        run "$mode golden $variant" "$t/test_engine_golden" GOLDEN_VARIANT="$variant" $graphs
    done
done
wait
own() { # own WORD: what the self-tests count
    sed -n "s/^self-test.* \([0-9]*\) $1.*/\1/p" "$results" | paste -sd+
}
passed=$(own passed) failed=$(own failed)
pass=$(($(grep -cE '^ok   ' "$results") + ${passed:-0}))
fail=$(($(grep -cE '^FAIL .* with ' "$results") + ${failed:-0}))
for mode in "$@"; do # one that did not come to its end
    grep -q "^self-test of the emulator, $mode: [0-9]" "$results" || fail=$((fail + 1))
done
[ "$(grep -o 'same bits: .*' "$results" | sort -u | wc -l)" -le 1 ] ||
    { echo "FAIL the modes' results differ" && fail=$((fail + 1)); }
rm -f "$results"
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]

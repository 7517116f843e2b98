#!/bin/sh
# The emulator tested: right kernels pass under every schedule with the same output bits, planted bugs are
# found and named.
# usage: run.sh DIR MODE...    DIR/MODE/test_emu, bugs and hopper are the programs of each build; MODE is
# plain, asan or race.
# Environment: SEEDS (default 8) random schedules for right kernels. Closing line: "N passed, N failed".
dir=$1
shift
pass=0
fail=0
log=$dir/selftest-$1.log
program=bugs # that bad and lucky run
export ASAN_OPTIONS=detect_stack_use_after_return=0

good() { # good MODE ENVIRONMENT...: test_emu passes and prints the same hash as the first time
    mode=$1
    shift
    if env "$@" timeout 300 "$dir/$mode/test_emu" >"$log" 2>&1; then
        hash=$(grep -o 'hash .*' "$log")
        : "${first:=$hash}"
        if [ "$hash" = "$first" ]; then
            pass=$((pass + 1))
            return
        fi
        echo "FAIL $mode $*: output differs: $hash, was $first"
    else
        echo "FAIL $mode $*: exit $?"
        tail -n 20 "$log"
    fi
    fail=$((fail + 1))
}
bad() { # bad MODE BUG PATTERN ENVIRONMENT...: the bug makes the program fail, with a report that matches
    mode=$1
    bug=$2
    pattern=$3
    shift 3
    env "$@" timeout 300 "$dir/$mode/$program" "$bug" >"$log" 2>&1
    rc=$?
    if [ $rc -ne 0 ] && [ $rc -ne 2 ] && grep -Eq "$pattern" "$log"; then
        pass=$((pass + 1))
    else
        fail=$((fail + 1))
        echo "FAIL $mode $bug $*: exit $rc, wanted '$pattern'"
        tail -n 12 "$log"
    fi
}
# The bugs that a schedule must hit by luck: one of eight seeds or fixed schedules has to find it.
lucky() { # lucky MODE BUG PATTERN ENVIRONMENT...
    mode=$1
    bug=$2
    pattern=$3
    shift 3
    for s in CUEMU_SCHED=fwd CUEMU_SCHED=rev CUEMU_SCHED=fifo $(seq 20); do
        case $s in
        CUEMU*) env "$@" $s timeout 300 "$dir/$mode/$program" "$bug" >"$log" 2>&1 ;;
        *) env "$@" CUEMU_SCHED=rand CUEMU_SEED=$s timeout 300 "$dir/$mode/$program" "$bug" >"$log" 2>&1 ;;
        esac
        rc=$?
        if [ $rc -ne 0 ] && [ $rc -ne 2 ] && grep -Eq "$pattern" "$log"; then
            pass=$((pass + 1))
            return
        fi
    done
    fail=$((fail + 1))
    echo "FAIL $mode $bug $*: no schedule finds it"
}

for mode in "$@"; do
    for s in fwd rev fifo; do good "$mode" CUEMU_SCHED=$s; done
    i=1
    while [ $i -le "${SEEDS:-8}" ]; do
        good "$mode" CUEMU_SCHED=rand CUEMU_SEED=$i CUEMU_LAZY=$((i % 2))
        i=$((i + 1))
    done
    [ "$mode" = asan ] || good "$mode" CUEMU_GUARD=1

    # The model of Hopper's instructions: right under every schedule; bugs are reported, or give a wrong
    # result under some.
    for s in fwd rev fifo 1 2 3; do
        case $s in
        [1-9]) s="rand CUEMU_SEED=$s" ;;
        esac
        if env CUEMU_CC=90 CUEMU_SCHED=$s timeout 300 "$dir/$mode/hopper" >"$log" 2>&1; then
            pass=$((pass + 1))
        else
            fail=$((fail + 1))
            echo "FAIL $mode hopper $s: exit $?"
            tail -n 12 "$log"
        fi
    done
    program=hopper
    bad "$mode" short_tx 'had only .* announced' CUEMU_CC=90
    bad "$mode" long_tx 'deadlock' CUEMU_CC=90
    bad "$mode" no_wgmma_fence 'without wgmma.fence' CUEMU_CC=90
    bad "$mode" never_waited 'never waited for' CUEMU_CC=90
    bad "$mode" bad_descriptor 'not aligned with its atoms' CUEMU_CC=90
    bad "$mode" one_warp_less 'issued different products' CUEMU_CC=90
    bad "$mode" two_arrivals 'more than 2 arrivals|deadlock' CUEMU_CC=90
    bad "$mode" bad_copy 'misaligned' CUEMU_CC=90
    bad "$mode" no_init 'no barrier was initialised' CUEMU_CC=90
    bad "$mode" no_wgmma_wait 'wrong result' CUEMU_CC=90
    if [ "$mode" = race ]; then
        bad race no_full_wait 'data race|uninitialised' CUEMU_CC=90
        bad race no_empty_wait 'data race' CUEMU_CC=90
        bad race early_release 'data race' CUEMU_CC=90
        bad race no_proxy_fence 'no proxy fence' CUEMU_CC=90
    else
        lucky "$mode" no_full_wait 'wrong result' CUEMU_CC=90
        lucky "$mode" no_empty_wait 'wrong result|had only .* announced|more than 2 arrivals' CUEMU_CC=90
        lucky "$mode" early_release 'wrong result' CUEMU_CC=90
    fi
    program=bugs

    # Reported by every build.
    bad "$mode" divergent 'divergent __syncthreads'
    bad "$mode" barrier_skipped '__syncthreads'
    bad "$mode" half_warp 'thread ended although|names lanes'
    bad "$mode" source_outside 'does not take part'
    bad "$mode" mixed_warp 'divergent warp operation'
    bad "$mode" spin 'livelock'
    bad "$mode" never_waited 'never waited for'
    bad "$mode" odd_named 'named barrier'
    bad "$mode" carve_differs 'same takes'
    bad "$mode" stack 'stack overflow|stack-overflow|guard page'
    bad "$mode" copy_past 'does not lie in one device allocation'
    bad "$mode" gemm_past 'does not lie in one device allocation'
    bad "$mode" leak 'never freed'
    case $mode in
    plain)
        bad plain global_past 'guard page|bytes past|out-of-bounds'
        bad plain static_past 'out-of-bounds write behind'
        bad plain dynamic_past 'out-of-bounds write'
        bad plain carve_overrun 'out-of-bounds write'
        bad plain rms_short_array 'out-of-bounds write behind'
        lucky plain no_barrier 'wrong result'
        lucky plain no_warp_sync 'wrong result'
        lucky plain uninitialised 'wrong result'
        lucky plain read_before_wait 'wrong result'
        lucky plain rms_no_barrier 'wrong result'
        lucky plain rms_no_second_barrier 'wrong result'
        lucky plain rms_skip_init 'wrong result'
        lucky plain gemm_no_barrier 'wrong result'
        lucky plain gemm_no_second_barrier 'wrong result'
        lucky plain gemm_weak_wait 'wrong result'
        lucky plain gemm_no_wait_at_end 'never waited for'
        lucky plain gemm_no_predicate 'guard page|bytes past|signal'
        lucky plain no_stream_sync 'wrong result' CUEMU_LAZY=1
        lucky plain pinned_reuse 'wrong result' CUEMU_LAZY=1
        lucky plain event_missing 'wrong result' CUEMU_LAZY=1
        bad plain device_pointer_on_host 'signal 11' CUEMU_GUARD=1
        ;;
    asan)
        bad asan global_past 'AddressSanitizer'
        bad asan global_before 'AddressSanitizer'
        bad asan static_past 'AddressSanitizer|out of bounds'
        bad asan dynamic_past 'AddressSanitizer'
        bad asan carve_overrun 'AddressSanitizer'
        bad asan rms_short_array 'AddressSanitizer|out of bounds'
        bad asan gemm_no_predicate 'AddressSanitizer'
        bad asan gemm_long_row 'AddressSanitizer|not shared memory'
        bad asan misaligned 'misaligned address'
        ;;
    race)
        bad race global_past 'out-of-bounds device memory'
        bad race global_before 'out-of-bounds device memory'
        bad race static_past 'out-of-bounds shared memory access: write'
        bad race dynamic_past 'out-of-bounds shared memory access: write'
        bad race carve_overrun 'out-of-bounds shared memory access: write'
        bad race no_barrier 'data race'
        bad race no_warp_sync 'data race'
        bad race warp_no_sync 'data race'
        bad race uninitialised 'read of uninitialised memory'
        bad race read_before_wait 'read of uninitialised memory|data race'
        bad race one_word 'data race'
        bad race two_blocks 'data race'
        bad race last_no_fence 'data race'
        bad race host_pointer 'kernel access to host memory'
        bad race other_stack "another thread's local memory"
        bad race rms_no_barrier 'data race'
        bad race rms_no_second_barrier 'data race'
        bad race rms_skip_init 'read of uninitialised memory'
        bad race rms_short_array 'out-of-bounds shared memory access'
        bad race gemm_no_barrier 'data race'
        bad race gemm_no_second_barrier 'data race'
        bad race gemm_weak_wait 'data race|uninitialised'
        bad race gemm_no_predicate 'out-of-bounds device memory|bytes past the device allocation'
        bad race gemm_long_row 'out-of-bounds shared|data race'
        ;;
    esac
done
rm -f "$log"
echo "same bits: ${first:-none}"
echo "$pass passed, $fail failed"
[ $fail -eq 0 ]

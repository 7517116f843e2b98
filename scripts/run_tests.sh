#!/bin/sh
# Runs test binaries, each in its own process under a time limit, as many at a time as there are cores; prints
# failures whole and a closing count. They may use several threads and wait for each other's cores, but none
# is timed. Those that take long begin first.
# usage: run_tests.sh OUT_DIR TEST...
# A program that passed before and hasn't changed is only counted (scripts/unchanged.sh).
# Environment: TEST_TIMEOUT seconds, default 600; TEST_SKIP: names that are left out; TEST_JOBS: how many at a
# time, default nproc; TEST_FULL: those that begin with it run without KVASIR_TEST_SHORT; TEST_PARTS:
# PROGRAM:PATTERN, of that program only the tests of these names.
long="test_engine_invariance test_backend_attn test_fuzz_cache test_known_failures test_backend_linear"
one() { # one OUT_DIR TEST: its report is printed in one piece
    name=$(basename "$2")
    log="$1/tests/$name.log"
    began=$(date +%s)
    case $name in "${TEST_FULL:-none}"*) unset KVASIR_TEST_SHORT ;; esac
    for part in ${TEST_PARTS:-}; do
        [ "${part%%:*}" != "$name" ] || export TEST_ONLY="${part#*:}"
    done
    if unchanged "$1/tests/$name.passed" "$2" "${KVASIR_TEST_SHORT:-}" "${KVASIR_TEST_SETS:-}" \
        "${GOLDEN_VARIANT:-}" "${TEST_ONLY:-}"; then
        echo "ok   $name (unchanged)"
    elif timeout "${TEST_TIMEOUT:-600}" "$2" >"$log" 2>&1; then
        # of the program, user and system seconds on all cores
        times >"$log.times"
        cpu=$(tail -n 1 "$log.times" | sed 's/[ms]/ /g' | awk '{printf "%d", 60 * $1 + $2 + 60 * $3 + $4}')
        rm -f "$log.times"
        passed
        echo "ok   $name ($(($(date +%s) - began)) s, $cpu of CPU)"
    else
        report="FAIL $name (exit $?)
$(tail -n 60 "$log")"
        printf '%s\n' "$report"
    fi
}
if [ "$1" = --one ]; then
    . scripts/unchanged.sh
    one "$2" "$3"
    exit 0
fi
out=$1
shift
all="$out/tests/all.log"
list="$out/tests/list.log"
for t in "$@"; do
    case " ${TEST_SKIP:-} " in *" $(basename "$t") "*) continue ;; esac
    case " $long " in *" $(basename "$t") "*) echo "1 $t" ;; *) echo "2 $t" ;; esac
done | sort -s -k 1,1 | cut -c 3- >"$list"
for name in ${TEST_SKIP:-} ${TEST_FULL:-}; do # a misspelt name would select nothing
    case " $* " in
    *"/$name"*) ;;
    *)
        echo "FAIL TEST_SKIP or TEST_FULL names $name, which is none of these tests"
        echo "0 passed, 1 failed"
        exit 1
        ;;
    esac
done
want=$(grep -c . "$list")
: >"$all"
<"$list" xargs -P "${TEST_JOBS:-$(nproc)}" -I{} sh "$0" --one "$out" {} | tee "$all"
pass=$(grep -c '^ok   ' "$all")
fail=$(grep -c '^FAIL ' "$all")
if [ $((pass + fail)) -lt "$want" ]; then # whatever happened to them: they were not seen to pass
    echo "FAIL $((want - pass - fail)) of $want tests have not reported"
    fail=$((want - pass))
fi
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]

#!/bin/bash
# The long tests, an hour or two on 2 cores: all suites with their full bounds, all of
# them under all sanitizers, everything on the emulated device, and the fuzzers for ten minutes each.
# usage: scripts/soak.sh [FUZZ_MINUTES]
# Closing line: "N passed, N failed"; logs in build/logs/soak-*.log.
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0
failed=0
mkdir -p build/logs
export UBSAN_OPTIONS=print_stacktrace=1 TEST_TIMEOUT=7200

run() { # run NAME COMMAND...: builds fail as one test; what closes with counts has those added
    local name=$1 log=build/logs/soak-${1// /-}.log rc=0 line begin=$SECONDS
    shift
    "$@" >"$log" 2>&1 || rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    line=${line:-$([ $rc -eq 0 ] && echo "1 passed, 0 failed" || echo "0 passed, 1 failed")}
    set -- $line
    passed=$((passed + $1))
    failed=$((failed + $3))
    [ $rc -eq 0 ] || [ "$3" -gt 0 ] || failed=$((failed + 1))
    echo "$([ $rc -eq 0 ] && echo "ok  " || echo FAIL) $name ($((SECONDS - begin)) s): $line"
    [ $rc -eq 0 ] || grep -vE '^ok ' "$log" | tail -n 60
}

sh scripts/deps.sh --test || exit 1
jobs=$(nproc)
for config in release asan tsan; do
    run "build $config" make -j"$jobs" CONFIG=$config all tests
    run "suites $config" make --no-print-directory CONFIG=$config test
done
for config in release asan; do
    run "build emulated $config" make -j"$jobs" CONFIG=$config ALL_HOST=1 cuda-host
    run "emulated $config" env HOST_FULL=1 make --no-print-directory CONFIG=$config ALL_HOST=1 test-cuda-host
done
run "device-check emulated" env OUT=build/device-check-emulated scripts/device-check.sh --emulated all
run "arm64 emulated" scripts/arm.sh
run "cache on disk" build/venv/bin/python tests/api/test_cache_soak.py --conversations 1000 --restarts 50
for t in tests/api/test_*.py; do
    case $t in
    *test_page* | *test_load* | *test_memory* | *test_attack* | *test_floods*) continue ;; # times, memory
    esac
    t=$(basename "$t" .py)
    run "asan api $t" build/venv/bin/python "tests/api/$t.py" --binary build/asan/kvasir
done
for t in test_load test_cache; do
    run "tsan api $t" build/venv/bin/python "tests/api/$t.py" --binary build/tsan/kvasir
done
run "demo" build/venv/bin/python tests/api/test_demo.py --binary build/release/kvasir
run "second image" build/venv/bin/python tests/api/test_second_image.py --binary build/release/kvasir
run "costly grammars" build/venv/bin/python tests/api/test_costly_grammars.py --binary build/release/kvasir
run "memory" build/venv/bin/python tests/api/test_memory.py --binary build/release/kvasir
run floods scripts/flood.py
run "10,000 receipts" build/venv/bin/python tests/api/test_receipts.py --binary build/release/kvasir \
    --count 10000
run "10,000 lines of a batch" build/venv/bin/python scripts/bench_jobs.py
run "several models" build/venv/bin/python scripts/front_soak.py --binary build/release/kvasir
run "fleet, 1,000 conversations" build/venv/bin/python tests/api/test_fleet.py --binary build/release/kvasir
[ "$(id -u)" -ne 0 ] || run packages scripts/package/check.sh
run fuzzers scripts/fuzz.sh "${1:-10}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

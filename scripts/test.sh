#!/bin/bash
# Installs what the tests need, builds everything and runs all tests:
#   release build: unit, golden and invariance suites (every kernel set that the CPU has), API tests and the OpenAI SDK over HTTP
#   the CUDA kernels on the emulated device (plain, access checker; sanitizers below), and compiled by nvcc where that is installed
#   address + undefined sanitizers and thread sanitizer: the suites again
# Closing line: "N passed, N failed". Safe to run again; under 25 minutes on 2 cores.
# usage: scripts/test.sh [--quick]      --quick: the release part only
set -u
cd "$(dirname "$0")/.."
quick=0
[ "${1:-}" = "--quick" ] && quick=1
passed=0
failed=0
failures=""

# step NAME COMMAND...: one check that counts as one test; its output goes to a log that is shown when it fails.
mkdir -p build/logs
step() {
    local name=$1 log start
    shift
    log="build/logs/$(echo "$name" | tr ' /' '__').log"
    start=$SECONDS
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        failures="$failures\n  $name ($log)"
        echo "FAIL $name ($((SECONDS - start)) s)"
        tail -n 60 "$log"
    fi
}
# suite NAME COMMAND...: a command that itself closes with "N passed, N failed"; its counts are added.
suite() {
    local name=$1 log start line p f rc=0
    shift
    log="build/logs/$(echo "$name" | tr ' /' '__').log"
    start=$SECONDS
    "$@" >"$log" 2>&1 || rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    f=$(echo "$line" | sed -n 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p')
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-0}))
    if [ "$rc" -ne 0 ] || [ -z "$line" ]; then
        [ "${f:-0}" -eq 0 ] && failed=$((failed + 1))
        failures="$failures\n  $name ($log)"
        echo "FAIL $name ($((SECONDS - start)) s): ${line:-no closing line, exit $rc}"
        grep -vE '^ok ' "$log" | tail -n 80
    else
        echo "ok   $name ($((SECONDS - start)) s): $line"
    fi
}

sh scripts/deps.sh --test || exit 1
jobs=$(nproc)
step "build release" make -j"$jobs" WERROR=1 all tests
suite "suites release" make --no-print-directory WERROR=1 test
step "build cuda emulated" make -j"$jobs" WERROR=1 cuda-host
suite "cuda emulated" make --no-print-directory WERROR=1 test-cuda-host
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    step "build cuda" make -j"$jobs" WERROR=1 cuda
fi
step "python venv with the OpenAI SDK" sh -c 'test -x build/venv/bin/python && build/venv/bin/python -c "import openai, PIL" 2>/dev/null || { python3 -m venv build/venv && build/venv/bin/pip install -q openai pillow; }'
for t in tests/api/test_*.py; do
    [ -e "$t" ] || continue
    suite "api $(basename "$t" .py)" timeout 600 build/venv/bin/python "$t" --binary build/release/kvasir
done
if [ "$quick" -eq 0 ]; then
    step "build asan" make -j"$jobs" CONFIG=asan all tests
    step "build asan cuda emulated" make -j"$jobs" CONFIG=asan cuda-host
    suite "asan cuda emulated" make --no-print-directory CONFIG=asan test-cuda-host
    suite "suites asan" env TEST_TIMEOUT=900 KVASIR_TEST_SHORT=1 UBSAN_OPTIONS=print_stacktrace=1 make --no-print-directory CONFIG=asan test
    for t in test_api test_hostile test_cache test_pictures test_tools; do
        [ -e "tests/api/$t.py" ] && suite "asan api $t" timeout 900 build/venv/bin/python "tests/api/$t.py" --binary build/asan/kvasir
    done
    step "build tsan" make -j"$jobs" CONFIG=tsan all tests
    # Left out: hundreds of runs in one thread, which the sanitizer makes slow and has nothing to say about.
    suite "suites tsan" env TEST_TIMEOUT=900 TEST_SKIP="test_fuzz_cache test_known_failures" KVASIR_TEST_SHORT=1 make --no-print-directory CONFIG=tsan test
    for t in test_load test_cache; do
        [ -e "tests/api/$t.py" ] && suite "tsan api $t" timeout 900 build/venv/bin/python "tests/api/$t.py" --binary build/tsan/kvasir
    done
fi
[ -n "$failures" ] && printf 'failed:%b\n' "$failures"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/bin/bash
# Installs what the tests need, builds everything and runs all tests:
#   release build: unit, golden and invariance suites (every kernel set that the CPU has), API tests and the OpenAI SDK over HTTP
#   the CUDA kernels on the emulated device (plain, access checker; sanitizers below), and compiled by nvcc where that is installed
#   address + undefined sanitizers and thread sanitizer: the suites again
# Closing line: "N passed, N failed". Safe to run again; under 20 minutes on 2 cores.
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
    suites_end
    suite_start "$@"
    suites_end
}
# suite_start NAME COMMAND... runs a suite beside those that were started before, as many at a time as there are cores (a test of the
# API spends most of its time waiting); suites_end waits for all of them and reports them in the order of their starting.
started=()
suite_start() {
    local name=$1 log
    shift
    log="build/logs/$(echo "$name" | tr ' /' '__').log"
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    started+=("$name")
    rm -f "$log.end"
    {
        begin=$SECONDS rc=0
        "$@" >"$log" 2>&1 || rc=$?
        echo "$rc $((SECONDS - begin))" >"$log.end"
    } &
}
suites_end() {
    local name log line p f rc time
    wait
    for name in "${started[@]}"; do
        log="build/logs/$(echo "$name" | tr ' /' '__').log"
        rc=1 time="?"
        [ -e "$log.end" ] && read -r rc time <"$log.end"
        rm -f "$log.end"
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
        p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
        f=$(echo "$line" | sed -n 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p')
        passed=$((passed + ${p:-0}))
        failed=$((failed + ${f:-0}))
        if [ "$rc" -ne 0 ] || [ -z "$line" ]; then
            [ "${f:-0}" -eq 0 ] && failed=$((failed + 1))
            failures="$failures\n  $name ($log)"
            echo "FAIL $name ($time s): ${line:-no closing line, exit $rc}"
            grep -vE '^ok ' "$log" | tail -n 80
        else
            echo "ok   $name ($time s): $line"
        fi
    done
    started=()
}

sh scripts/deps.sh --test || exit 1
jobs=$(nproc)
step "build release" make -j"$jobs" WERROR=1 all tests
step "tidy" scripts/tidy
step "tidy finds what is planted" scripts/tidy --self-test
suite "suites release" make --no-print-directory WERROR=1 test
step "build cuda emulated" make -j"$jobs" WERROR=1 cuda-host cuda-host-so
suite "cuda emulated" make --no-print-directory WERROR=1 test-cuda-host
suite "device-check emulated" env WERROR=1 OUT=build/device-check-emulated scripts/device-check.sh --emulated build golden kernels steps
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    step "build cuda" make -j"$jobs" WERROR=1 cuda
fi
step "python venv with the OpenAI SDK" sh -c 'test -x build/venv/bin/python && build/venv/bin/python -c "import openai, PIL" 2>/dev/null || { python3 -m venv build/venv && build/venv/bin/pip install -q openai pillow; }'
for t in tests/api/test_*.py; do
    [ -e "$t" ] || continue
    # Those that look at times or at memory run alone.
    case $t in
    *test_load*.py | *test_memory.py | *test_bodies.py | *test_cuda_fault.py | *test_attack.py) run=suite ;;
    *) run=suite_start ;;
    esac
    $run "api $(basename "$t" .py)" timeout 600 build/venv/bin/python "$t" --binary build/release/kvasir
done
suites_end
if [ "$quick" -eq 0 ]; then
    step "build asan" make -j"$jobs" CONFIG=asan all tests
    step "build asan cuda emulated" make -j"$jobs" CONFIG=asan cuda-host
    suite "asan cuda emulated" make --no-print-directory CONFIG=asan test-cuda-host
    suite "suites asan" env TEST_TIMEOUT=900 KVASIR_TEST_SHORT=1 UBSAN_OPTIONS=print_stacktrace=1 make --no-print-directory CONFIG=asan test
    for t in test_api test_hostile test_connections test_cache test_pictures test_tools; do
        [ -e "tests/api/$t.py" ] && suite_start "asan api $t" timeout 900 build/venv/bin/python "tests/api/$t.py" --binary build/asan/kvasir
    done
    suites_end
    step "build tsan" make -j"$jobs" CONFIG=tsan all tests
    # Left out: the longest of those that start no thread (their own code; the engine beneath runs threaded in the others). The
    # sanitizer makes them slow and has nothing to say about them; ASan runs them all.
    single="test_fuzz_cache test_known_failures sim_hitrate sim_sched test_inspect_qwen test_tokenizer test_radix test_sampler test_server_tools"
    suite "suites tsan" env TEST_TIMEOUT=900 TEST_SKIP="$single" KVASIR_TEST_SHORT=1 make --no-print-directory CONFIG=tsan test
    for t in test_load test_cache; do
        [ -e "tests/api/$t.py" ] && suite "tsan api $t" timeout 900 build/venv/bin/python "tests/api/$t.py" --binary build/tsan/kvasir
    done
    suites_end
fi
[ -n "$failures" ] && printf 'failed:%b\n' "$failures"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

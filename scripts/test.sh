#!/bin/bash
# Installs what the tests need, builds everything and runs all tests:
#   release build: kernels, engine, goldens and invariance (every kernel set that the CPU has), simulations,
#     API tests and the OpenAI SDK over HTTP
#   the CUDA kernels on the emulated device (plain, access checker), and compiled by nvcc where that is
#     installed
#   the ARM64 build under qemu: its bits are those of avx2
#   address + undefined sanitizers: all suites; thread sanitizer: those that start threads
#   the inputs of tests/fuzz with the address sanitizer
# With smaller bounds where a suite shows the same again: scripts/soak.sh has the full ones.
# What passed before is only counted as long as neither the program nor what it reads has changed
# (scripts/unchanged.sh); CI=1 or TEST_AGAIN=1 runs everything.
# Closing line: "N passed, N failed". Safe to run again; some 11 minutes of CPU on all cores together, more
# for builds where ccache knows nothing.
# usage: scripts/test.sh [--quick | --clients [DIR]]
#   --quick: the release build, its unit suites with the smallest bounds, and the API tests that neither look
#     at times nor take long, without the emulated GPU and the browser; under 3 minutes
#   --clients: nothing but tests/clients/run.py: SDKs and agents of PyPI on the release build, with the demo
#     and, if given, with the checkpoint in DIR
set -u
cd "$(dirname "$0")/.."
quick=0 most=
[ "${1:-}" = "--quick" ] && quick=1
if [ "${1:-}" = "--clients" ]; then
    make -j"$(nproc)" WERROR=1 all >/dev/null || exit 1
    exec python3 tests/clients/run.py ${2:+--model "$2"}
fi
passed=0
failed=0
skipped=0 # what can't run on this machine; in CI nothing may be
failures=""

# step NAME COMMAND...: one check that counts as one test; its output goes to a log that is shown when it
# fails.
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
# suite_start NAME COMMAND... runs a suite beside those that were started before, twice as many at a time as
# there are cores (a test of the API spends most of its time waiting); suites_end waits for all of them and
# reports them in the order of their starting.
started=()
suite_start() {
    local name=$1 log
    shift
    log="build/logs/$(echo "$name" | tr ' /' '__').log"
    while [ "$(jobs -rp | wc -l)" -ge "${most:-$((2 * jobs))}" ]; do wait -n; done
    started+=("$name")
    rm -f "$log.end"
    {
        begin=$SECONDS rc=0
        "$@" >"$log" 2>&1 || rc=$?
        # of the processes that it waited for: user and system seconds, all cores
        times >"$log.times"
        cpu=$(tail -n 1 "$log.times" | sed 's/[ms]/ /g' | awk '{printf "%d", 60 * $1 + $2 + 60 * $3 + $4}')
        rm -f "$log.times"
        echo "$rc $((SECONDS - begin)) $cpu" >"$log.end"
    } &
}
suites_end() {
    local name log line p f s rc time cpu
    wait
    for name in "${started[@]}"; do
        log="build/logs/$(echo "$name" | tr ' /' '__').log"
        rc=1 time="?" cpu="?"
        [ -e "$log.end" ] && read -r rc time cpu <"$log.end"
        rm -f "$log.end"
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
        p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
        f=$(echo "$line" | sed -n 's/^[0-9]* passed, \([0-9]*\) failed.*/\1/p')
        s=$(echo "$line" | sed -n 's/.* failed, \([0-9]*\) skipped.*/\1/p')
        passed=$((passed + ${p:-0}))
        failed=$((failed + ${f:-0}))
        skipped=$((skipped + ${s:-0}))
        if [ "$rc" -ne 0 ] || [ -z "$line" ]; then
            [ "${f:-0}" -eq 0 ] && failed=$((failed + 1))
            failures="$failures\n  $name ($log)"
            echo "FAIL $name ($time s, $cpu of CPU): ${line:-no closing line, exit $rc}"
            grep -vE '^ok ' "$log" | tail -n 80
        else
            echo "ok   $name ($time s, $cpu of CPU): $line"
        fi
    done
    started=()
}
# built ARGUMENT...: make, as a suite of one; what waits for it begins late, so it is hardly held back.
built() {
    nice -n 5 make --no-print-directory -j"$jobs" "$@" && echo "1 passed, 0 failed"
}
# after NAME COMMAND...: when that suite, started before, has ended.
after() {
    until [ -e "build/logs/${1// /_}.log.end" ]; do sleep 0.2; done
    "${@:2}"
}
# once FILES COMMAND...: unless it passed before with the same; then its last closing line counts again.
once() {
    local mark
    mark=build/logs/$(echo "${*:2}" | tr -c 'a-zA-Z0-9_\n' '_').passed
    if ! unchanged "$mark" "$1" "$sources"; then
        "${@:2}" | tee "$mark.line"
        [ "${PIPESTATUS[0]}" -eq 0 ] && passed
        return
    fi
    echo "unchanged"
    tail -n 1 "$mark.line"
}
# api NAME BINARY: one suite of tests/api.
api() {
    once "$(dirname "$2")/libserver.a $(dirname "$2")/libcore.a" \
        timeout 900 build/venv/bin/python "tests/api/$1.py" --binary "$2" "${@:3}"
}
venv() {
    build/venv/bin/python -c "import openai, anthropic, PIL, zmq, msgpack, huggingface_hub, axe_core_python" \
        2>/dev/null ||
        { python3 -m venv build/venv && build/venv/bin/pip install -q openai anthropic pillow pyzmq msgpack \
            huggingface_hub axe-core-python; }
}
venv_done() {
    wait "$venv_pid" || { cat build/logs/venv.log && return 1; }
}
# tidy: what it finds, and that it finds what is planted; and that docs/http.md has the table of fields. Other
# versions of clang-format break some lines elsewhere.
style() {
    scripts/tidy && scripts/tidy --self-test && scripts/fields.py --check || return 1
    if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
        git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | grep -v '^tests/lib/cmocka/' |
            xargs clang-format --dry-run -Werror || return 1
        echo "4 passed, 0 failed"
    else
        echo "skipped: there is no clang-format 14"
        echo "3 passed, 0 failed, 1 skipped"
        [ -z "${CI:-}" ]
    fi
}

sh scripts/deps.sh --test || exit 1
. scripts/unchanged.sh
sources=$(find tests/api tests/lib tests/mutants tests/sim tests/unit scripts docs server/page -type f \
    -printf '%p %s %T@\n' | sort | sha256sum)
jobs=$(nproc)
if [ -x /usr/lib/ccache/gcc ]; then # also in a clone in another folder
    export PATH=/usr/lib/ccache:$PATH CCACHE_NOHASHDIR=1 NVCC_CACHE=ccache
fi
export UBSAN_OPTIONS=print_stacktrace=1 TEST_TIMEOUT=900 WERROR=1
venv >build/logs/venv.log 2>&1 & # waits for the network
venv_pid=$!
# What judges kernels, and what calculates most; all others run once, with the address sanitizer. With --quick
# all of them run in this build.
calculates="sim_fleet sim_hitrate sim_sched sim_step_time test_engine_golden test_engine_invariance
    test_engine_towers test_fuzz_cache"
calculates=$(echo "$calculates" | xargs)
only=
[ "$quick" -eq 1 ] || only="$calculates $(find tests/unit/kernels tests/bench -name '*_*.c' \
    -exec basename {} .c \; | xargs)"
step "build release" make -j"$jobs" ONLY="$only" all tests
step "python venv with the OpenAI SDK" venv_done
if [ "$quick" -eq 0 ]; then
    step "build cuda emulated" make -j"$jobs" cuda-host cuda-host-so
    if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
        step "build cuda" make -j"$jobs" OUT_ROOT=build/check CUDA_CHECK=1 cuda
    fi
fi
# What calculates, one program at a time each, and the API tests beside it, which mostly wait: those that wait
# long begin first. What looks at times or at memory comes last, a few at a time.
export TEST_JOBS=1
most=$((2 * jobs + 1))
first="test_page test_page_content test_page_cache"
[ "$quick" -eq 1 ] && first="test_process test_remote_media test_hub" && TEST_JOBS=2
start_api() { # start_api NAME
    case $1 in
    test_second_image) suite_start "api $1" api "$1" build/release/kvasir --pairs 30 --qwen_pairs 20 ;;
    test_demo) suite_start "api $1" api "$1" build/release/kvasir --single 100 --pairs 40 --turns 100 ;;
    test_memory) suite_start "api $1" api "$1" build/release/kvasir --requests 300 ;;
    test_bodies) suite_start "api $1" api "$1" build/release/kvasir --every 5 ;;
    test_costly_grammars) suite_start "api $1" api "$1" build/release/kvasir --every 8 --forms 10 ;;
    *) suite_start "api $1" api "$1" build/release/kvasir ;;
    esac
}
sanitized="test_api test_hostile test_connections test_images test_remote_media test_watch test_websocket"
short=$((1 + quick))
for t in $first; do start_api "$t"; done
suite_start "suites release" env KVASIR_TEST_SHORT=$short TEST_FULL=test_backend_linear \
    make --no-print-directory ONLY="$only" test
if [ "$quick" -eq 0 ]; then
    suite_start "build asan" built CONFIG=asan all tests fuzz-programs
    suite_start "cuda emulated" env TEST_JOBS=2 make --no-print-directory test-cuda-host
    # What is left out runs code that the other tests have run, far more often: scripts/soak.sh.
    suite_start "suites asan" after "build asan" env KVASIR_TEST_SHORT=2 \
        TEST_SKIP="$calculates test_image_tiles" make --no-print-directory CONFIG=asan test
    suite_start "arm64 emulated" once "build/release/libcore.a" scripts/arm.sh --brief
    suite_start "mutants" once "build/release/libserver.a build/release/libcore.a" tests/mutants/run.py
fi
suite_start "style" style
timed="" # those that look at times or at memory
for t in tests/api/test_*.py; do
    t=$(basename "$t" .py)
    case $t in
    test_balancers | test_cuda_fault | test_demo | test_deploy | test_drafts | test_fleet | \
        test_long_images | test_page* | test_second_image)
        [ "$quick" -eq 1 ] && continue ;; # half of all API tests' time
    esac
    case " $first " in *" $t "*) continue ;; esac
    [ "$quick" -eq 0 ] && case " $sanitized " in *" $t "*) continue ;; esac
    case $t in
    test_load* | test_memory | test_bodies | test_attack | test_costly_grammars | test_floods)
        timed="$timed $t" ;;
    *) start_api "$t" ;;
    esac
done
if [ "$quick" -eq 0 ]; then
    # For the thread sanitizer: those that start threads, with the best kernels. All kernels share the pool of
    # threads; those of attention and experts run threaded in the engine's tests.
    threads="test_backend_ops test_cuda_loader test_engine_golden test_engine_open test_engine_images
        test_sched_images test_sched_stats test_image_hash_cache test_server_images test_template
        test_constraint"
    threads=$(echo "$threads" | xargs)
    suite_start "build tsan" built CONFIG=tsan ONLY="$threads" tests
    for t in $sanitized; do
        suite_start "asan api $t" after "build asan" api $t build/asan/kvasir
    done
    suite_start "suites tsan" after "build tsan" env KVASIR_TEST_SHORT=2 KVASIR_TEST_SETS=best \
        GOLDEN_VARIANT=vision_bf16 TEST_PARTS="test_template:shared_by_threads test_engine_open:test_unseen" \
        make --no-print-directory CONFIG=tsan ONLY="$threads" test
    suite_start "fuzzers" after "build asan" scripts/fuzz.sh --replay
fi
suites_end
[ "$quick" -eq 1 ] || for t in $timed; do start_api "$t"; done
suites_end
[ -n "$failures" ] && printf 'failed:%b\n' "$failures"
[ "$skipped" -eq 0 ] || more=", $skipped skipped"
echo "$passed passed, $failed failed${more:-}"
[ "$failed" -eq 0 ]

#!/bin/sh
# Runs test binaries one by one, each in its own process under a time limit; prints failures whole and a closing count.
# usage: run_tests.sh OUT_DIR TEST...      (environment: TEST_TIMEOUT seconds, default 600; TEST_SKIP: names that are left out)
out=$1
shift
pass=0
fail=0
for t in "$@"; do
    case " ${TEST_SKIP:-} " in *" $(basename "$t") "*) continue ;; esac
    log="$out/tests/$(basename "$t").log"
    if timeout "${TEST_TIMEOUT:-600}" "$t" >"$log" 2>&1; then
        pass=$((pass + 1))
        echo "ok   $(basename "$t")"
    else
        rc=$?
        fail=$((fail + 1))
        echo "FAIL $(basename "$t") (exit $rc)"
        tail -n 60 "$log"
    fi
done
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ]

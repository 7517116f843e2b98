#!/bin/bash
# ARM64 on an x86-64 machine, by qemu's emulation of a process: the kernels' tables, and every golden
# checkpoint (families, towers, GGUF, integers, KV in int8, drafts) on the set `neon`, whose log-probs must
# have the bits of `avx2` on this machine. On the oldest CPU and on one with every extension.
# Needs gcc-aarch64-linux-gnu and qemu-user-static (scripts/deps.sh --test). usage: scripts/arm.sh [--brief]
#   --brief: a part of the checkpoints, on the newest CPU alone; under 45 s of CPU on what is built
set -u
cd "$(dirname "$0")/.."
brief=${1:-}
out=build/aarch64/release/tests
passed=0 failed=0
check() { # check NAME COMMAND...
    if "${@:2}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1"
    fi
}
arm() { # arm CPU PROGRAM
    qemu-aarch64-static -cpu "$1" -L /usr/aarch64-linux-gnu "$out/$2"
}
tables=test_backend_quant cpus=max least=100 only=test_families variant=qwen3_5_f32 short=3
if [ -z "$brief" ]; then
    tables="$tables test_backend_ops test_backend_experts test_backend_attn test_backend_linear"
    cpus="max cortex-a53" least=550 only="*" variant="" short=
fi
export GOLDEN_KERNELS=neon
[ -z "$short" ] || export KVASIR_TEST_SHORT=$short
# shellcheck disable=SC2046
make --no-print-directory -j"$(nproc)" ARCH=aarch64 CMOCKA=none \
    $(printf "$out/%s " $tables test_engine_golden test_engine_invariance) >build/arm.log 2>&1 &&
    make --no-print-directory -j"$(nproc)" build/release/tests/test_engine_golden >>build/arm.log 2>&1 ||
    { tail -n 20 build/arm.log && exit 1; }
# The lines of the golden test without the set's name: checkpoint, case, digest of all log-probs.
bits() {
    sed -nE 's/^ +([a-z0-9_\/.]+) +(neon|avx2) .*(bits [0-9a-f]{16})$/\1 \3/p'
}
# Those of ARM are a part of the others', in the same order, and more than nothing.
contained() { # contained PART WHOLE LEAST
    awk -v least="$3" 'NR == FNR { whole[n++] = $0; next }
        { while (at < n && whole[at] != $0) at++
          if (at++ >= n) { print "other bits: " $0; exit bad = 1 }
          found++ }
        END { if (!bad && found < least) { print "only " found + 0 " cases"; bad = 1 }
          if (!bad) print found " cases have the bits of avx2"; exit bad }' "$2" "$1"
}
env -u KVASIR_TEST_SHORT GOLDEN_KERNELS=avx2 TEST_ONLY="$only" build/release/tests/test_engine_golden \
    2>/dev/null | bits >build/arm-avx2.bits
for cpu in $cpus; do
    for t in $tables; do # with all bounds they take hours there
        KVASIR_TEST_SHORT=${short:-2} check "$t on $cpu" arm "$cpu" "$t" >"build/arm-$t.log" 2>&1
    done
    TEST_ONLY="$only" arm "$cpu" test_engine_golden 2>/dev/null | bits >build/arm-neon.bits
    check "golden checkpoints on $cpu" contained build/arm-neon.bits build/arm-avx2.bits $least
done
[ -z "$variant" ] || export GOLDEN_VARIANT=$variant
check "invariance" arm max test_engine_invariance >build/arm-invariance.log 2>&1
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

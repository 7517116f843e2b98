#!/bin/bash
# Checks and measures the CUDA backend on a machine with an NVIDIA GPU and nvcc. Needs no library of the
# server's, nor cmocka: gcc, make and the CUDA toolkit are enough.
#
# usage: scripts/device-check.sh [--emulated] [--hopper 0|1|both] [--gemm cublas|own|both] [PART...]
#   build        engine, kernels (nvcc) and tests; the other parts build what is missing
#   tests        the kernels' self-test, the backend's table of operations against the CPU's plain C, the
#                graphs of decode steps, cuBLASLt's products
#   golden       whole checkpoints against transformers' log-probs, and against the CPU in the same process;
#                states of recurrent layers after rejected draft tokens
#   invariance   a request alone, in chunks, with others: bit-equal
#   overlap      steps submitted while another runs: bit-equal, and what that saves
#   stress       Hopper's kernels built with pauses at random in every thread's part of their pipelines
#                (CU_JITTER): wrappers, self-check, tables, golden checkpoints
#   sanitizer    compute-sanitizer over the quick half of the table tests, several at a time; one tool:
#                memcheck initcheck synccheck racecheck (that one in the smallest sizes)
#   cublaslt     which algorithms of cuBLASLt give a row the same bits in any batch, and their speed
#   kernels      bandwidth and TFLOP/s of each kernel against measured copy bandwidth and matrix peak
#   steps        the same for whole steps of Gemma 3 4B and Qwen3-VL-8B with random weights
#   no PART: all but stress, the sanitizer's and cublaslt; `all`: everything
#   --hopper     runs what it can with KVASIR_CUDA_HOPPER=0 (portable kernels), 1, or once with each; default:
#                as the backend chooses (README)
#   --gemm       whose matrix products (KVASIR_GEMM), with each path of --hopper; default: both (--emulated:
#                cublas)
#   --emulated   the same script on the emulated device, in tiny sizes: checks the script, measures nothing
#
# Every check has a time limit of its own (LIMIT_SCALE=2 doubles them) and the script goes on after a failure.
# Results: result.json, table.txt (the figures) and log.txt (everything) in $OUT, else build/device-check.
# Closing line: "N passed, N failed".
set -u
cd "$(dirname "$0")/.."
emulated=0
paths="default"
gemms="default"
parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --emulated) emulated=1 ;;
    --hopper)
        shift
        case ${1:-} in
        0 | 1) paths=$1 ;;
        both) paths="0 1" ;;
        *) echo "--hopper must be 0, 1 or both" && exit 2 ;;
        esac
        ;;
    --gemm)
        shift
        case ${1:-} in
        cublas | own) gemms=$1 ;;
        both) gemms="cublas own" ;;
        *) echo "--gemm must be cublas, own or both" && exit 2 ;;
        esac
        ;;
    build | tests | golden | invariance | overlap | stress | cublaslt | kernels | steps) parts+=("$1") ;;
    sanitizer | memcheck | racecheck | initcheck | synccheck) parts+=("$1") ;;
    all) parts+=(build tests golden invariance overlap stress kernels steps cublaslt sanitizer) ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(build tests golden invariance overlap kernels steps)

root=${OUT_ROOT:-build} # of make
out=${OUT:-build/device-check}
unset OUT OUT_ROOT # make's variables of these names mean something else
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
log=$out/log.txt
table=$out/table.txt
: >"$log"
: >"$table"
passed=0
failed=0
checks=""
tests=$root/release/tests

# attempt LOG SECONDS COMMAND...: runs it under its time limit; what it printed, and "exit status, seconds" in
# LOG.rc.
attempt() {
    local to=$1 limit=$2 rc=0 begin=$SECONDS
    shift 2
    timeout -k 10 "$limit" "$@" >"$to" 2>&1 || rc=$?
    # A check of the Hopper path that fell back to the portable one has checked nothing.
    case " $* " in
    *" KVASIR_CUDA_HOPPER=1 "*) grep -q "Hopper kernels are not used" "$to" && [ "$rc" -ne 124 ] && rc=1 ;;
    esac
    echo "$rc $((SECONDS - begin))" >"$to.rc"
}
# count NAME SECONDS LOG COMMAND...: counts and prints what an attempt came to; its log joins the others.
count() {
    local name=$1 limit=$2 from=$3 rc seconds word=ok
    shift 3
    read -r rc seconds <"$from.rc"
    { printf '\n==== %s: %s\n' "$name" "$*" && cat "$from"; } >>"$log"
    if [ "$rc" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        word=FAIL
    fi
    echo "$word $name ($seconds s)$([ "$rc" -eq 124 ] && echo ": more than $limit s")"
    [ "$rc" -eq 0 ] || tail -n 25 "$from"
    rm -f "$from" "$from.rc"
    checks="$checks${checks:+,}
{\"name\":\"$name\",\"ok\":$([ "$rc" -eq 0 ] && echo true || echo false),\"exit\":$rc,\"seconds\":$seconds}"
    return "$rc"
}
# check NAME SECONDS COMMAND...: one check under its time limit. Between `together N` and `gather` it is only
# started, as soon as fewer than N others run.
at_once=0
waiting=()
check() {
    local name=$1 limit=$(($2 * ${LIMIT_SCALE:-1})) to=$out/check-$((checked += 1)).log
    shift 2
    if [ "$at_once" -eq 0 ]; then
        attempt "$to" "$limit" "$@"
        count "$name" "$limit" "$to" "$@"
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    attempt "$to" "$limit" "$@" &
    waiting+=("$(printf '%q ' count "$name" "$limit" "$to" "$@")")
}
checked=0
together() {
    at_once=$1
}
gather() {
    wait
    at_once=0
    for w in "${waiting[@]}"; do eval "$w"; done
    waiting=()
}
# on_paths NAME SECONDS COMMAND...: the check on each path that was asked for, with each library's products.
on_paths() {
    local name=$1 limit=$2 path gemm
    shift 2
    for path in $paths; do
        for gemm in $gemms; do
            name_of "$path" "$gemm"
            check "$name$label" "$limit" env "${settings[@]}" "$@"
        done
    done
}
# name_of PATH GEMM: sets label (", hopper 1, own") and settings (environment)
name_of() {
    label=""
    settings=(A=)
    if [ "$1" != default ]; then
        label=", hopper $1"
        settings+=(KVASIR_CUDA_HOPPER="$1")
        [ "$emulated$1" = 11 ] && settings+=(CUEMU_CC=90)
    fi
    if [ "$2" != default ]; then
        label="$label, $2"
        settings+=(KVASIR_GEMM="$2")
    fi
}

# ---- what there is
[ "$gemms$emulated" = default0 ] && gemms="cublas own"
programs="test_backend_linear test_backend_ops test_backend_attn test_backend_experts test_backend_states"
programs="$programs test_cuda_graphs test_engine_recurrent test_engine_overlap bench_overlap"
programs="$programs test_cuda_gemm test_cuda_cpu test_engine_golden test_engine_invariance bench_device"
targets=()
for p in $programs; do targets+=("$tests/$p"); done
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ "$emulated" -eq 1 ]; then
    device="emulated"
    library=$root/release/cuda-host/kvasir-cuda.so
    targets+=(cuda-host-so)
else
    device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
        head -n 1)
    if [ -z "$device" ] || [ ! -x "$nvcc" ]; then
        [ -n "$device" ] ||
            echo "there is no GPU that nvidia-smi lists (--emulated tries the script without one)"
        [ -x "$nvcc" ] || echo "there is no nvcc at $nvcc (NVCC=PATH says where)"
        exit 2
    fi
    case " $paths " in # elsewhere the variable has no effect, and nobody would notice
    *" 1 "*)
        [ "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)" = 9.0 ] ||
            { echo "--hopper 1 needs compute capability 9.0" && exit 2; }
        ;;
    esac
    library=$root/release/kvasir-cuda.so
    targets+=(cuda NVCC="$nvcc")
fi
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
when=$(date -u +%Y-%m-%dT%H:%M:%SZ)
echo "$device, commit $commit, $when, parts: ${parts[*]}" | tee -a "$table"

built=0
build() {
    [ "$built" -eq 1 ] && return
    built=1
    check build 540 make -j"$(nproc)" OUT_ROOT="$root" "${targets[@]}" || return
    [ -e "$library" ] || { echo "there is no $library" && failed=$((failed + 1)); }
}
export KVASIR_CUDA_LIBRARY=$library

part_tests() {
    local quick=() t
    if [ "$emulated" -eq 1 ]; then
        quick=(env KVASIR_TEST_SHORT=1)
        set -- ops
    else
        on_paths "kernel self-test" 120 "$root/release/cuda/test_emu"
        case " $paths " in
        *" 1 "*) check "wrappers of the Hopper instructions" 120 "$root/release/cuda/hopper" ;;
        esac
        set -- linear ops attn experts states
    fi
    for t in "$@"; do on_paths "table $t" 240 "${quick[@]}" "$tests/test_backend_$t" --backend cuda; done
    [ "$emulated" -eq 1 ] || on_paths "graphs" 120 "$tests/test_cuda_graphs" --backend cuda
    [ "$emulated" -eq 1 ] || on_paths "cuBLASLt" 60 "$tests/test_cuda_gemm"
}
part_golden() {
    if [ "$emulated" -eq 1 ]; then
        on_paths golden 120 env GOLDEN_VARIANT=text_f32 "$tests/test_engine_golden" --backend cuda
        on_paths "beside the CPU" 120 env GOLDEN_VARIANT=qwen3_vl_bf16 "$tests/test_cuda_cpu" --backend cuda
    else
        on_paths golden 200 "$tests/test_engine_golden" --backend cuda
        on_paths "beside the CPU" 200 "$tests/test_cuda_cpu" --backend cuda
        on_paths "states of rejected draft tokens" 100 "$tests/test_engine_recurrent" --backend cuda
    fi
}
part_invariance() {
    if [ "$emulated" -eq 1 ]; then
        echo "     (left out: it takes minutes on the emulated device)"
    else
        on_paths invariance 500 "$tests/test_engine_invariance" --backend cuda
    fi
}
part_overlap() {
    local tiny=()
    [ "$emulated" -eq 1 ] && tiny=(--tiny)
    on_paths "overlap" 120 "$tests/test_engine_overlap" --backend cuda
    printf '\noverlap\n' >>"$table"
    check "what overlap saves" 200 \
        sh -c 'file=$1; shift; "$@" >>"$file" 2>&1' sh "$table" \
        "$tests/bench_overlap" --backend cuda "${tiny[@]}"
}
# The library again, with pauses; the programs are those of the other parts.
part_stress() {
    local dir=$root/stress/release
    if [ "$emulated" -eq 1 ]; then
        echo "     (the emulated device has schedules at random of its own: CUEMU_SCHED=rand)"
        return
    fi
    check "build for stress" 300 make -j"$(nproc)" OUT_ROOT="$root/stress" NVCC="$nvcc" \
        NVCC_EXTRA=-DCU_JITTER "$dir/kvasir-cuda.so" "$dir/cuda/hopper" || return
    together 4
    for t in 1 2 3; do check "stress, wrappers $t" 60 "$dir/cuda/hopper"; done
    for t in linear attn experts; do
        check "stress, table $t" 120 env KVASIR_CUDA_HOPPER=1 KVASIR_CUDA_LIBRARY="$dir/kvasir-cuda.so" \
            "$tests/test_backend_$t" --backend cuda
    done
    check "stress, golden" 120 env KVASIR_CUDA_HOPPER=1 KVASIR_CUDA_LIBRARY="$dir/kvasir-cuda.so" \
        "$tests/test_engine_golden" --backend cuda
    gather
}
part_cublaslt() {
    local probe=$root/release/probe_cublaslt
    if [ "$emulated" -eq 1 ]; then
        echo "     (needs the real library)"
        return
    fi
    check "build of the probe" 100 "$nvcc" -std=c++17 -O2 -arch=native tests/bench/probe_cublaslt.cu \
        -o "$probe" -lcublasLt -Xlinker -rpath,"$(dirname "$nvcc")/../lib64" || return
    printf '\ncublaslt\n' >>"$table"
    check cublaslt 240 sh -c 'exec "$1" "$2" >>"$3" 2>&1' sh "$probe" "${PROBE_SECONDS:-2}" "$table"
}
part_sanitizer() {
    local tool=$1 t sanitizer short=2
    [ "$tool" = racecheck ] && short=3 # minutes where the others take seconds
    sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
    if [ "$emulated" -eq 1 ]; then
        sanitizer=()
        set -- ops
    elif [ -x "$sanitizer" ]; then
        sanitizer=("$sanitizer" --tool "$tool" --error-exitcode 9)
        set -- ops linear attn experts
    else
        check "$tool" 1 sh -c "echo there is no compute-sanitizer; exit 1"
        return
    fi
    for t in "$@"; do
        on_paths "$tool $t" 200 env KVASIR_TEST_SHORT=$short "${sanitizer[@]}" "$tests/test_backend_$t" \
            --backend cuda
    done
}
# The figures go into the table too, each path under its name.
part_bench() {
    local part=$1 path gemm file tiny=()
    [ "$emulated" -eq 1 ] && tiny=(--tiny)
    for path in $paths; do
        for gemm in $gemms; do
            name_of "$path" "$gemm"
            file=$out/$part$(echo "$label" | sed 's/, hopper //; s/, /-/').json
            printf '\n%s%s\n' "$part" "$label" >>"$table"
            check "$part$label" 500 env "${settings[@]}" \
                sh -c 'file=$1; shift; "$@" >>"$file" 2>&1' sh "$table" \
                "$tests/bench_device" --backend cuda --part "$part" --json "$file" "${tiny[@]}"
        done
    done
}

for part in "${parts[@]}"; do
    build
    case $part in
    build) ;;
    kernels | steps) part_bench "$part" ;;
    sanitizer | *check) # each is a process of its own, and most of the time is the CPU's
        tools=$part
        [ "$part" = sanitizer ] && tools="memcheck synccheck initcheck racecheck" # the slowest last
        together $((emulated ? 1 : 6))
        for tool in $tools; do part_sanitizer "$tool"; done
        gather
        ;;
    *) "part_$part" ;;
    esac
done

{
    printf '{"date":"%s","commit":"%s","device":"%s","nvcc":"%s","checks":[%s\n]' \
        "$when" "$commit" "$device" \
        "$([ "$emulated" -eq 1 ] || "$nvcc" --version | sed -n 's/.*release \([^,]*\),.*/\1/p')" "$checks"
    for file in "$out"/kernels*.json "$out"/steps*.json; do
        [ -s "$file" ] || continue
        tail -n 1 "$file" | grep -q '^]}' || continue # cut off by its time limit: the table has what there is
        printf ',\n"%s":' "$(basename "$file" .json)"
        cat "$file"
        rm -f "$file"
    done
    echo '}'
} >"$out/result.json"
cat "$table"
echo "results: $out/result.json, table.txt, log.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

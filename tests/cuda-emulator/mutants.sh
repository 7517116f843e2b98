#!/bin/bash
# Are the barriers of the CUDA kernels needed, and would their loss be noticed? One build of the access
# checker in which each __syncthreads, __syncwarp, __threadfence, cp.async wait and commit, named barrier,
# mbarrier, proxy fence and wgmma wait of kernels/cuda can be left out by its number; then the backend tests
# run once for each, up to the first report. A mutant that no test notices is printed as a survivor: a
# redundant barrier, or a test that lacks data.
#
# usage: mutants.sh [--out DIR] [FILE...]
#   default: all of kernels/cuda/*.cu and *.cuh but the wrappers; DIR: keep the build there
# Some minutes. Closing line: "N found, N survived".
set -u
cd "$(dirname "$0")/../.." || exit 1
copy=""
if [ "${1:-}" = --out ]; then
    copy=$2
    mkdir -p "$copy" || exit 1
    shift 2
else
    copy=$(mktemp -d) || exit 1
    trap 'rm -rf "$copy"' EXIT
fi
[ $# -gt 0 ] || set -- $(ls kernels/cuda/*.cu kernels/cuda/*.cuh | grep -vE '/(device|hopper)\.cuh')
cp -r Makefile config engine scheduler kernels tests "$copy"/ || exit 1
what='__syncthreads\(\)|__syncwarp\(\)|__threadfence\(\)|cu_cp_async_wait<[^>]*>\(\)|cu_cp_async_commit\(\)'
what="$what"'|cu_bar_(sync|arrive)\([^)]*\)|cu_mbar_(init_done|wait|arrive|arrive_tx)\([^;]*\)'
what="$what"'|cu_proxy_fence\(\)|cu_wgmma_(fence|wait<[^>]*>)\(\)'
list=$copy/mutants.txt
: >"$list"
n=0
for file in "$@"; do
    for line in $(grep -nE "^[^/]*($what);" "$file" | cut -d: -f1); do
        n=$((n + 1))
        sed -i -E "${line}s#($what);#(cuemu_left_out($n) ? (void)0 : \\1);#" "$copy/$file"
        echo "$n $file:$line $(sed -n "${line}p" "$file" | sed 's/^ *//')" >>"$list"
    done
done
# The number from the environment; and the checker stops at its first report.
cat >>"$copy/tests/cuda-emulator/emu_api.h" <<'END'
#ifndef CUEMU_LEFT_OUT
#define CUEMU_LEFT_OUT
#include <stdlib.h>
static inline bool cuemu_left_out(int n)
{
    static int which = -1;
    if (which < 0) which = getenv("CUEMU_LEFT_OUT") ? atoi(getenv("CUEMU_LEFT_OUT")) : 0;
    return which == n;
}
#endif
END
sed -i 's/if (!reports++) on_exit(finish, nullptr);/_exit(98);/' "$copy/tests/cuda-emulator/emu_race.cpp"
grep -q '_exit(98);$' "$copy/tests/cuda-emulator/emu_race.cpp" ||
    { echo "the checker has changed: its reports can't be made the end" && exit 1; }

# Which tests run a file's kernels.
programs_of() {
    case $1 in
    */attn*) echo attn ;;
    */logits* | */rows*) echo ops ;;
    */experts*) echo experts ;;
    *) echo linear experts ops attn ;;
    esac
}
targets=""
programs=build/release/cuda-host/race/tests
for p in linear ops attn experts; do targets="$targets $programs/test_backend_$p"; done
(cd "$copy" && make -j"${JOBS:-2}" $targets >build.log 2>&1) ||
    { echo "the copy doesn't build:" && tail -n 20 "$copy/build.log" && exit 1; }
run() { # run NUMBER PROGRAM FILE; the Hopper path runs on an emulated device of compute capability 9.0
    local hopper=()
    [[ $3 == *sm90* ]] && hopper=(CUEMU_CC=90 KVASIR_CUDA_HOPPER=1)
    (cd "$copy" && env CUEMU_LEFT_OUT="$1" "${hopper[@]}" KVASIR_TEST_SHORT=2 timeout "${TEST_TIMEOUT:-900}" \
        "$programs/test_backend_$2" >test.log 2>&1)
}
tried=" "
for file in "$@"; do
    for p in $(programs_of "$file"); do
        key=$p$([[ $file == *sm90* ]] && echo .sm90)
        [[ $tried == *" $key "* ]] && continue
        tried="$tried$key "
        run 0 "$p" "$file" || {
            echo "test_backend_$p fails without any change:"
            tail -n 20 "$copy/test.log"
            exit 1
        }
    done
done
found=0
survived=0
while read -r n place text; do
    alive=1
    for p in $(programs_of "${place%:*}"); do
        run "$n" "$p" "${place%:*}" && continue
        alive=0
        break
    done
    if [ "$alive" -eq 1 ]; then
        survived=$((survived + 1))
        echo "survivor: $place: $text"
    else
        found=$((found + 1))
    fi
done <"$list"
echo "$found found, $survived survived"

#!/bin/sh
# Are the barriers of the CUDA kernels needed, and would their loss be noticed? Takes each __syncthreads, __syncwarp, cp.async wait, commit and
# __threadfence of kernels/cuda out in turn (in a copy of the tree), builds the access-checker build and runs the backend tests on it.
# A mutant that no test notices is printed as a survivor: a redundant barrier, or a test that lacks data. Slow (some seconds for each): by hand or at night.
# usage: mutants.sh [FILE...]      default: all of kernels/cuda/*.cu and *.cuh but device.cuh. Closing line: "N found, N survived".
set -u
cd "$(dirname "$0")/../../.." || exit 1
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT INT TERM
cp -r Makefile config engine scheduler kernels tests "$copy"/ || exit 1
[ $# -gt 0 ] || set -- $(ls kernels/cuda/*.cu kernels/cuda/*.cuh | grep -v device.cuh)
found=0
survived=0
programs="test_backend_linear test_backend_ops test_backend_attn test_backend_experts"

# try: 0 when a test fails, 1 when all pass
try() {
    (cd "$copy" && make -j2 $(for p in $programs; do echo build/release/cuda-host/race/tests/$p; done) >build.log 2>&1) || return 2
    for p in $programs; do
        (cd "$copy" && KVASIR_TEST_SHORT=1 timeout 900 build/release/cuda-host/race/tests/$p >test.log 2>&1) || return 0
    done
    return 1
}
try
case $? in
0) echo "the tests fail without any change:"; tail -n 20 "$copy/test.log"; exit 1 ;;
2) echo "the copy doesn't build:"; tail -n 20 "$copy/build.log"; exit 1 ;;
esac
for file in "$@"; do
    for line in $(grep -nE '^[^/]*(__syncthreads|__syncwarp|cu_cp_async_wait|cu_cp_async_commit|__threadfence|cu_bar_sync|cu_bar_arrive)' "$file" | cut -d: -f1); do
        sed -E "${line}s/(__syncthreads|__syncwarp|__threadfence)\(\)|(cu_cp_async_wait<[^>]*>|cu_cp_async_commit)\(\)|cu_bar_(sync|arrive)\([^)]*\)/(void)0/" "$file" >"$copy/$file"
        if cmp -s "$file" "$copy/$file"; then continue; fi
        try
        case $? in
        0) found=$((found + 1)) ;;
        1)
            survived=$((survived + 1))
            echo "survivor: $file:$line: $(sed -n "${line}p" "$file" | sed 's/^ *//')"
            ;;
        2) echo "doesn't build without $file:$line" ;;
        esac
        cp "$file" "$copy/$file"
    done
done
echo "$found found, $survived survived"

#!/bin/bash
# Fuzzes the parsers of untrusted input: builds tests/fuzz/ with clang's libFuzzer, address and undefined
# sanitizers into build/fuzz/, and runs each program for a while, as many at a time as there are cores. What
# was reached stays in build/fuzz/corpus/NAME for the next run; inputs that break something lie in
# build/fuzz/crashes/.
# usage: scripts/fuzz.sh MINUTES|SECONDSs [NAME...]     "10" = ten minutes each, "10s" = ten seconds each
#        scripts/fuzz.sh --replay [NAME...]    the seeds and changed copies of them in the build CONFIG=asan,
#            without libFuzzer and the same each time
# Closing line: "N passed, N failed". Without clang or its libFuzzer nothing is run, and one line says so.
set -u
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
--replay) seconds=0 ;;
*[!0-9s]* | "" | *s?*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
*s) seconds=${1%s} ;;
*) seconds=$(($1 * 60)) ;;
esac
shift
names=("$@")
[ ${#names[@]} -gt 0 ] || for f in tests/fuzz/fuzz_*.c; do
    f=${f##*/fuzz_}
    names+=("${f%.c}")
done

clang=${CLANG:-clang}
out=build/fuzz
if [ "$seconds" = 0 ]; then
    make -j"$(nproc)" CONFIG=asan fuzz-programs >/dev/null || exit 1
elif ! echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' |
    "$clang" -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null; then
    echo "skipped: there is no $clang with libFuzzer"
    echo "0 passed, 0 failed"
    exit 0
else
    make -j"$(nproc)" CLANG="$clang" fuzz >/dev/null || exit 1
fi

# The first inputs, and the words that the code compares with.
golden=tests/golden
seed() { # seed NAME FILE...: those of at most 16 KiB
    local name=$1 file
    shift
    mkdir -p "$out/seeds/$name" "$out/corpus/$name"
    for file in "$@"; do
        [ -s "$file" ] && [ "$(wc -c <"$file")" -le 16384 ] || continue
        cp "$file" "$out/seeds/$name/${file//\//_}"
    done
}
words() { # words NAME SOURCE...: the literals in them as a dictionary
    local name=$1
    shift
    cat "$@" | grep -ohE '"[][A-Za-z0-9_<>|:;/,.+-]{2,24}"' | sort -u >"$out/$name.dict"
}
mkdir -p $out/crashes
seed chat tests/fuzz/seeds/chat/*
seed json tests/fuzz/seeds/*/*.json
seed messages tests/fuzz/seeds/messages/*
seed image $golden/images/files/* $golden/images/videos/*
for file in $golden/images/files/{bmp_1.bmp,gif_gray.gif,bad_png_filter.png}; do
    printf 'data:image/x;base64,%s' "$(base64 -w 0 "$file")" >"$out/seeds/image/uri_${file##*/}"
done
seed jinja $golden/*/*/chat_template.jinja
seed tokenizer $golden/{tokenizer,qwen}/*/tokenizer.json
seed grammar tests/fuzz/seeds/grammar/*
seed checkpoint tests/fuzz/seeds/checkpoint/* $golden/{qwen,gemma3}/*/config.json
words chat server/generate/*.c server/chat/*.c
words json server/json/parser.c
words messages server/chat/*.c
words image server/media/*.c
words jinja server/jinja/*.c
words grammar server/grammar/*.c server/grammar/json/*.c
words tokenizer engine/tokenizer/*.c
words checkpoint config/*.c engine/checkpoint/*.c engine/model/*.c

one() { # one NAME
    local log=$out/$1.log
    if [ "$seconds" = 0 ]; then
        timeout 300 "build/asan/fuzz_$1" 60 "$out/seeds/$1" >"$log" 2>&1
        report "$1" $? "$log"
        return
    fi
    # A short run is to do the same each time.
    "$out/fuzz_$1" -max_total_time="$seconds" $([ "$seconds" -lt 60 ] && echo -seed=1) -timeout=20 \
        -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 -dict="$out/$1.dict" \
        -artifact_prefix="$out/crashes/$1-" "$out/corpus/$1" "$out/seeds/$1" >"$log" 2>&1
    report "$1" $? "$log"
}
report() { # report NAME EXIT LOG
    if [ "$2" -eq 0 ]; then
        echo "ok   $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$3") inputs"
    else
        printf 'FAIL %s (exit %s)\n%s\n' "$1" "$2" "$(grep -vE '^#[0-9]+|^INFO' "$3" | tail -n 60)"
    fi
}
results=$out/results.log
: >$results
for name in "${names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    one "$name" | tee -a $results &
done
wait
passed=$(grep -c '^ok   ' $results)
failed=$((${#names[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/bin/sh
# From a fresh clone to a running server: installs missing Debian packages, builds, starts Kvasir with the
# bundled demo model, waits until it is ready and prints a curl line with an image to paste into another
# terminal. Safe to run again; Ctrl-C stops the server.
# usage: scripts/run.sh [any flag of `kvasir serve`, e.g. --model DIR --port 9000]
set -eu
cd "$(dirname "$0")/.."
sh scripts/deps.sh
echo "build: make -j$(nproc)"
# One line that counts what is compiled, on a terminal.
files=$(find config kernels engine scheduler bench server -name '*.c' | wc -l)
progress() {
    while read -r line; do
        printf '%s\n' "$line"
        case $line in *" -c "*) ;; *) continue ;; esac
        compiled=$((${compiled:-0} + 1))
        [ ! -t 2 ] || printf '\rcompiled %s of about %s files ' "$compiled" "$files" >&2
    done
    [ ! -t 2 ] || printf '\n' >&2
}
rm -f build/made
if ! { make -j"$(nproc)" --no-print-directory 2>&1 && touch build/made; } | progress >build.log ||
    [ ! -e build/made ]; then
    tail -n 40 build.log
    echo "build failed (build.log has everything)"
    exit 1
fi
rm build/made
mv build.log build/build.log

pipe=$(mktemp -u)
mkfifo "$pipe"
build/release/kvasir serve "$@" >"$pipe" &
server=$!
trap 'kill "$server" 2>/dev/null || :; rm -f "$pipe"' EXIT
# The server drains: running requests are finished. It knows that a Ctrl-C comes twice, from the terminal and
# from here.
trap 'kill -INT "$server" 2>/dev/null || :' INT
trap 'kill -TERM "$server" 2>/dev/null || :' TERM
server_wait() { # until it has ended, whatever signals come meanwhile; its exit code in $code
    code=0
    while kill -0 "$server" 2>/dev/null; do
        code=0
        wait "$server" || code=$?
    done
}
url=""
while read -r line; do
    echo "$line"
    case $line in
    "kvasir: listening on "*) url=${line#kvasir: listening on }; break ;;
    esac
done <"$pipe"
[ -n "$url" ] || { server_wait; exit 1; }
cat <<TEXT

Kvasir is ready. Ask it about an image, from another terminal in this directory:

curl -s $url/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages":[
{"role":"user","content":[{"type":"image_url","image_url":{"url":
"data:image/png;base64,'"\$(base64 -w0 models/demo/sample.png)"'"}},
{"type":"text","text":"What is in this picture?"}]}]}'

The same as a stream: put "stream":true into the body. Ctrl-C stops the server.
TEXT
server_wait
exit "$code"

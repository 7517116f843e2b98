#!/bin/bash
# Builds the container image, unpacks it and asks the server in it about an image; prints the sizes.
# usage: scripts/container.sh [--cuda] [--keep DIR] [ARGUMENT OF THE BUILDER...]
#   --cuda       Dockerfile.cuda instead of Dockerfile; requests run on its CPU part
#   --keep DIR   leaves the image's root file system there
# The builder is docker (with a daemon), podman or buildah, the first that is there and works. BUILDER names
# another: a command with two verbs, `BUILDER build ARGUMENTS...`, as `buildah build` has them, and
# `BUILDER rootfs TAG DIR`, which unpacks an image.
# The image's root is run by unshare and chroot, without isolation of the network: on a free port of this
# machine, as the image's user (if this is root), and ended by its stop signal.
# Closing line: "N passed, N failed".
set -eu
cd "$(dirname "$0")/.."
file=Dockerfile tag=kvasir:latest keep=
while :; do
    case ${1:-} in
    --cuda) file=Dockerfile.cuda tag=kvasir:cuda && shift ;;
    --keep) keep=$2 && shift 2 ;;
    *) break ;;
    esac
done
passed=0 failed=0
check() { # check TEXT COMMAND...
    local text=$1
    shift
    if "$@"; then
        passed=$((passed + 1)) && echo "ok   $text"
    else
        failed=$((failed + 1)) && echo "FAIL $text"
    fi
}

work=$(mktemp -d)
root=${keep:-$work/root}
server=
finish() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || :
    rm -rf "$work"
}
trap finish EXIT

# ---- builders: build ARGUMENTS..., and rootfs TAG DIR

docker_rootfs() {
    local c
    c=$("$1" create "$2")
    mkdir -p "$3"
    "$1" export "$c" | tar -x -C "$3"
    "$1" rm "$c" >/dev/null
}
buildah_rootfs() {
    local c
    c=$(buildah from --pull-never "$1")
    mkdir -p "$2"
    cp -a "$(buildah mount "$c")/." "$2"
    buildah rm "$c" >/dev/null
}
if [ -n "${BUILDER:-}" ]; then
    # HEALTHCHECK exists in Docker's format of images only.
    # shellcheck disable=SC2086
    build() { $BUILDER build --format docker "$@"; }
    # shellcheck disable=SC2086
    rootfs() { $BUILDER rootfs "$@"; }
elif docker info >/dev/null 2>&1; then
    build() { docker build "$@"; }
    rootfs() { docker_rootfs docker "$@"; }
elif command -v podman >/dev/null; then
    build() { podman build --format docker "$@"; }
    rootfs() { docker_rootfs podman "$@"; }
elif command -v buildah >/dev/null; then
    build() { buildah build --format docker "$@"; }
    rootfs() { buildah_rootfs "$@"; }
else
    echo "there is no builder: start docker's daemon, install podman or buildah, or set BUILDER" >&2
    exit 1
fi

echo "build: $file"
build -f "$file" -t "$tag" "$@" . >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log"
    exit 1
}
rootfs "$tag" "$root"

# ---- sizes: everything, and what lies on the base: the packages that the image installs, and /usr/local

bytes() { du -sx --apparent-size -B1 "$@" | cut -f1; }
mib() { awk "BEGIN { printf \"%.1f MB\", $1 / 1e6 }"; }
total=$(bytes "$root")
echo "image: $(mib "$total") in all, $(mib "$(bytes "$root/usr/local")") of them in /usr/local"
# A base that was made from packages may hold what Debian's slim images leave out.
texts=()
for d in doc info locale man; do [ ! -d "$root/usr/share/$d" ] || texts+=("$root/usr/share/$d"); done
fat=$(bytes "${texts[@]}" | awk '{ n += $1 } END { print n + 0 }')
echo "of these in /usr/share/doc, info, locale and man: $(mib "$fat")"
base=$(sed -n 's/^ARG BASE=//p' "$file")
if rootfs "$base" "$work/base" 2>/dev/null || rootfs "localhost/$base" "$work/base" 2>/dev/null; then
    over=$((total - $(bytes "$work/base")))
    echo "over its base ($base): $(mib "$over")"
    [ "$file" != Dockerfile ] || check "at most 40 MB over the base" [ "$over" -le 40000000 ]
fi
[ "$file" != Dockerfile ] || check "at most 150 MB without these texts" [ $((total - fat)) -le 150000000 ]

# ---- the server in it

user=$(sed -n 's/^USER //p' "$file" | tail -n 1)
check "runs as a user that isn't root" [ "${user%%:*}" -ge 1000 ]
# /proc, /sys and /dev are there as in a container; the mounts are this process's own.
own=(unshare --mount)
enter=(chroot --userspec="$user" "$root")
if [ "$(id -u)" -ne 0 ]; then
    own=(unshare --user --map-root-user --mount) enter=(chroot "$root")
fi
if ! "${own[@]}" true 2>/dev/null; then
    echo "the image was built; to run it takes root or user namespaces (unshare), and there is neither"
    exit 1
fi
# shellcheck disable=SC2016
mounts='for d in proc sys dev; do mount --rbind "/$d" "$0/$d"; done; exec "$@"'
inside=(env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin KVASIR_HOST=127.0.0.1 "${own[@]}")
inside+=(sh -c "$mounts" "$root" "${enter[@]}")
check "the program starts" "${inside[@]}" kvasir version

# The server in the background, its port from the line that it prints.
mkfifo "$work/out"
"${inside[@]}" kvasir serve --port 0 --shutdown-delay 1 --log-level warn >"$work/out" &
server=$!
read -r line <"$work/out" || line=
port=${line##*:}
check "it listens (${line:-no line})" [ -n "$port" ]
check "the health check says so" "${inside[@]}" kvasir ready "$port"
image=$(base64 -w0 models/demo/sample.png)
answer=$(curl -s -m 60 "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,'"$image"'"}},
    {"type": "text", "text": "What is in this picture?"}]}]}' | sed -n 's/.*"content":"\([^"]*\)".*/\1/p')
check "the image: $answer" [ "$answer" = "A red circle and a blue square." ]
signal=$(sed -n 's/^STOPSIGNAL //p' "$file")
kill -s "${signal#SIG}" "$server"
not_ready() {
    for _ in $(seq 50); do
        "${inside[@]}" kvasir ready "$port" || return 0
        sleep 0.02
    done
    return 1
}
check "after $signal the health check says that it leaves" not_ready
code=0
wait "$server" || code=$?
server=
check "and then ends with exit code 0" [ "$code" -eq 0 ]
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

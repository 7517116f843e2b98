#!/bin/bash
# Builds the packages, installs each in a clean root, asks the server there about an image, and removes it.
#   deb     in Debian 12 and 13: apt install, serve, purge, nothing is left
#   wheel   in 12 and 13, by pip in a virtual environment and by uvx, without our packages
#   tar     in 12 and 13, likewise
# 13 is skipped if its packages can't be reached.
# usage: scripts/package/check.sh        as root; needs mmdebstrap, lintian, and from PyPI auditwheel and uv
#                                        in a virtual environment of their own
# Closing line: "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
out=$PWD/build/packages
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
server=
finish() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null
    umount "$work"/*/proc 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT

root() { # root NAME RELEASE [PACKAGE,...]: a Debian with nothing else
    mmdebstrap --quiet --variant=minbase ${3:+--include="$3"} "$2" "$work/$1" >"$work/$1.log" 2>&1 || return 1
    mount -t proc proc "$work/$1/proc"
    for f in apt.conf.d auth.conf.d; do cp -r "/etc/apt/$f/." "$work/$1/etc/apt/$f/" 2>/dev/null; done
    cp /etc/resolv.conf /etc/hosts "$work/$1/etc/" 2>/dev/null
    return 0
}
clean=(env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
inside() { # inside NAME COMMAND...
    local name=$1
    shift
    chroot "$work/$name" "${clean[@]}" "$@"
}
files() { # files NAME: all files that are not the package manager's records
    (cd "$work/$1" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o \
        -path ./var/cache -o -path ./var/log -o -path ./tmp -o -path ./run -o -name __pycache__ \) -prune -o \
        -print | sort)
}
same() { # same NAME: they are those of before
    files "$1" | diff "$work/$1.before" - >"$work/diff" || { head -n 20 "$work/diff" && return 1; }
}
# answers NAME COMMAND...: starts the server there and asks it about the demo model's image.
answers() {
    local name=$1 port=$((20000 + RANDOM % 20000)) status=1
    : >"$work/$name.answer"
    shift
    # a simple command, so that the signal goes to the server
    chroot "$work/$name" "${clean[@]}" "$@" serve --port $port --shutdown-delay 0 >"$work/$name.server" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        curl -sf "http://127.0.0.1:$port/health" >/dev/null && status=0 && break
        kill -0 $server 2>/dev/null || break
        sleep 0.2
    done
    [ $status -eq 0 ] && printf '{"max_tokens": 16, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}},
        {"type": "text", "text": "What is in the image?"}]}]}' "$(base64 -w 0 models/demo/sample.png)" |
        curl -sf -H 'Content-Type: application/json' -d @- "http://127.0.0.1:$port/v1/chat/completions" \
            >"$work/$name.answer" || status=1
    kill $server 2>/dev/null
    wait $server 2>/dev/null
    curl -sf "http://127.0.0.1:$port/health" >/dev/null && status=1 # it has not ended
    server=
    [ $status -eq 0 ] && grep -q '"content":"[^"]' "$work/$name.answer" && return
    tail -n 5 "$work/$name.server" "$work/$name.answer" 2>/dev/null
    return 1
}

deb() { # deb NAME RELEASE
    cp "$out"/kvasir_*.deb "$work/$1/tmp/kvasir.deb"
    inside "$1" apt-get update -q >"$work/$1.log" 2>&1
    # the libraries first: they stay, and what the package itself leaves is seen
    # shellcheck disable=SC2046
    inside "$1" apt-get install -y -q --no-install-recommends $(dpkg-deb -f "$out"/kvasir_*.deb Depends |
        sed 's/([^)]*)//g; s/,//g; s/|[^ ]*//g') >>"$work/$1.log" 2>&1
    files "$1" >"$work/$1.before"
    inside "$1" apt-get install -y -q --no-install-recommends /tmp/kvasir.deb >>"$work/$1.log" 2>&1
    check "deb: installs in $2" inside "$1" kvasir version
    check "deb: answers the image question in $2" answers "$1" kvasir
    inside "$1" apt-get purge -y -q kvasir >>"$work/$1.log" 2>&1
    check "deb: leaves nothing in $2" same "$1"
}

wheel() { # wheel NAME RELEASE
    local file
    file=$(basename "$out"/*.whl)
    cp "$out/$file" "$work/$1/tmp/"
    cp "$tools"/uv "$tools"/uvx "$work/$1/usr/local/bin/"
    inside "$1" python3 -m venv /opt/venv
    files "$1" >"$work/$1.before"
    check "wheel: installs in a virtual environment of $2" \
        inside "$1" /opt/venv/bin/pip install -q --no-index "/tmp/$file"
    check "wheel: kvasir answers the image question in $2" answers "$1" /opt/venv/bin/kvasir
    check "wheel: python -m kvasir answers it" answers "$1" /opt/venv/bin/python -m kvasir
    inside "$1" /opt/venv/bin/pip uninstall -q -y kvasir
    check "wheel: uvx kvasir answers it" answers "$1" env UV_CACHE_DIR=/tmp/uv-cache \
        UV_TOOL_DIR=/tmp/uv-tools uvx --offline --from "/tmp/$file" kvasir
    check "wheel: leaves nothing in $2" same "$1"
}

archive() { # archive NAME RELEASE
    local file
    file=$(ls "$out"/*.tar.gz)
    tar -C "$work/$1/opt" -xzf "$file"
    check "tar: answers the image question in $2" answers "$1" "/opt/$(basename "$file" .tar.gz)/kvasir"
}

tools=build/package-tools/bin
[ -x $tools/uvx ] || { python3 -m venv build/package-tools && $tools/pip install -q auditwheel uv; }
scripts/package.sh all || exit 1
check "deb: lintian" sh -c "! lintian --allow-root --fail-on error,warning '$out'/kvasir_*.deb | grep ."
file=$(ls "$out"/*.whl)
$tools/auditwheel show "$file" >"$work/auditwheel" 2>&1
tag=$(tr '\n' ' ' <"$work/auditwheel" | sed -n 's/.*following platform tag: "\([^"]*\)".*/\1/p')
check "wheel: its name has the tag that auditwheel finds, $tag" [ "${file%-"$tag".whl}" != "$file" ]
check "wheel: at most 20 MB" [ "$(stat -c %s "$file")" -le 20000000 ]
sed 's|/lib64/|/nowhere/|' scripts/package/kvasir.sh | sh >"$work/musl" 2>&1
check "tar: without glibc one clear line" [ "$(grep -c 'container image' "$work/musl")" = 1 ]
for release in bookworm trixie; do
    if ! root $release $release python3,python3-venv; then
        [ $release = bookworm ] && check "a root of $release" false
        echo "skipped: no packages of $release can be reached"
        continue
    fi
    archive $release $release
    wheel $release $release
    deb $release $release
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]

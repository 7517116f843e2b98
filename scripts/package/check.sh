#!/bin/bash
# Builds the packages, installs each in a clean root, asks the server there about an image, and removes it.
#   deb     in Debian 12: apt install, serve, purge, nothing is left
#   wheel   in a virtual environment of Debian 12 without any package that the server needs
#   tar     in Debian 12, and 13 if its packages can be reached, without any package that the server needs
# usage: scripts/package/check.sh        as root; needs mmdebstrap, and for the style of packages lintian and,
#                                        from PyPI, auditwheel in a virtual environment of its own
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
inside() { # inside NAME COMMAND...
    local name=$1
    shift
    chroot "$work/$name" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 "$@"
}
files() { # files NAME: all files that are not the package manager's records
    (cd "$work/$1" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o \
        -path ./var/cache -o -path ./var/log -o -path ./tmp -o -path ./run -o -name __pycache__ \) -prune -o \
        -print | sort)
}
# answers NAME COMMAND...: starts the server there and asks it about the demo model's image.
answers() {
    local name=$1 port=$((20000 + RANDOM % 20000)) status=1
    shift
    inside "$name" "$@" serve --port $port >"$work/$name.server" 2>&1 &
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
    server=
    [ $status -eq 0 ] && grep -q '"content":"[^"]' "$work/$name.answer" && return
    tail -n 5 "$work/$name.server" "$work/$name.answer" 2>/dev/null
    return 1
}

deb() { # deb NAME RELEASE
    local before=$work/$1.before
    root "$1" "$2" || return 1
    cp "$out"/kvasir_*.deb "$work/$1/tmp/kvasir.deb"
    inside "$1" apt-get update -q >"$work/$1.log" 2>&1
    # the libraries first: they stay, and what the package itself leaves is seen
    # shellcheck disable=SC2046
    inside "$1" apt-get install -y -q --no-install-recommends $(dpkg-deb -f "$out"/kvasir_*.deb Depends |
        sed 's/([^)]*)//g; s/,//g; s/|[^ ]*//g') >>"$work/$1.log" 2>&1
    files "$1" >"$before"
    inside "$1" apt-get install -y -q --no-install-recommends /tmp/kvasir.deb >>"$work/$1.log" 2>&1
    check "deb: installs in Debian $2" inside "$1" kvasir version
    check "deb: answers the image question in Debian $2" answers "$1" kvasir
    inside "$1" apt-get purge -y -q kvasir >>"$work/$1.log" 2>&1
    check "deb: leaves nothing in Debian $2" diff "$before" <(files "$1")
}

wheel() {
    local file
    file=$(ls "$out"/*.whl)
    root wheel bookworm python3,python3-venv || return 1
    cp "$file" "$work/wheel/tmp/"
    inside wheel python3 -m venv /opt/venv
    files wheel >"$work/wheel.before"
    check "wheel: installs in a virtual environment" inside wheel /opt/venv/bin/pip install -q --no-index \
        "/tmp/$(basename "$file")"
    check "wheel: answers the image question" answers wheel /opt/venv/bin/kvasir
    check "wheel: python -m kvasir" inside wheel /opt/venv/bin/python -m kvasir version
    inside wheel /opt/venv/bin/pip uninstall -q -y kvasir
    check "wheel: leaves nothing" diff "$work/wheel.before" <(files wheel)
    [ -x build/auditwheel/bin/auditwheel ] ||
        { python3 -m venv build/auditwheel && build/auditwheel/bin/pip install -q auditwheel; }
    build/auditwheel/bin/auditwheel show "$file" >"$work/auditwheel" 2>&1
    tag=$(tr '\n' ' ' <"$work/auditwheel" | sed -n 's/.*following platform tag: "\([^"]*\)".*/\1/p')
    check "wheel: its name has the tag that auditwheel finds, $tag" [ "${file%-"$tag".whl}" != "$file" ]
    check "wheel: at most 20 MB" [ "$(stat -c %s "$file")" -le 20000000 ]
}

archive() { # archive NAME RELEASE
    local file
    file=$(ls "$out"/*.tar.gz)
    if ! root "$1" "$2"; then
        echo "skipped: no packages of $2 can be reached"
        return
    fi
    tar -C "$work/$1/opt" -xzf "$file"
    check "tar: answers the image question in $2" answers "$1" "/opt/$(basename "$file" .tar.gz)/kvasir"
    sed 's|/lib64/|/nowhere/|' scripts/package/kvasir.sh | sh >"$work/musl" 2>&1
    check "tar: without glibc one clear line" [ "$(grep -c 'container image' "$work/musl")" = 1 ]
}

scripts/package.sh all || exit 1
check "deb: lintian" sh -c "! lintian --allow-root --fail-on error,warning '$out'/kvasir_*.deb | grep ."
deb debian12 bookworm
wheel
archive tar12 bookworm
archive tar13 trixie
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]

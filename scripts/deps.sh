#!/bin/sh
# Installs the Debian packages that the build (and with --test, the tests) need and that are missing; does
# nothing when all are there. Uses sudo when it isn't root. usage: scripts/deps.sh [--test]
# Fedora, Arch and Alpine: what the build needs, by their names of it; only Debian's are tested.
set -eu
elsewhere() { # elsewhere COMMAND...: installs what the build needs with another package manager
    echo "packages: $*"
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
    exit
}
if command -v apt-get >/dev/null 2>&1; then
    :
elif command -v dnf >/dev/null 2>&1; then
    elsewhere dnf install -y gcc make pkgconf-pkg-config libmicrohttpd-devel libuv-devel jansson-devel \
        libjpeg-turbo-devel libwebp-devel libsodium-devel utf8proc-devel zlib-devel giflib-devel \
        stb_image-devel libcmocka-devel zeromq-devel msgpack-devel libcurl-devel wslay-devel libmd-devel \
        gnutls-devel ca-certificates curl
elif command -v pacman >/dev/null 2>&1; then
    elsewhere pacman -S --needed --noconfirm gcc make pkgconf libmicrohttpd libuv jansson libjpeg-turbo \
        libwebp libsodium libutf8proc zlib giflib stb cmocka zeromq msgpack-c curl wslay libmd gnutls \
        ca-certificates
elif command -v apk >/dev/null 2>&1; then
    elsewhere apk add gcc musl-dev make pkgconf libmicrohttpd-dev libuv-dev jansson-dev libjpeg-turbo-dev \
        libwebp-dev libsodium-dev utf8proc-dev zlib-dev giflib-dev stb cmocka-dev zeromq-dev msgpack-c-dev \
        curl-dev wslay-dev libmd-dev gnutls-dev ca-certificates curl
else
    echo "no package manager is known here (apt, dnf, pacman, apk); the build needs what this file lists" >&2
    exit 1
fi
need="gcc make pkg-config libmicrohttpd-dev libuv1-dev libjansson-dev libjpeg-dev libwebp-dev libsodium-dev"
need="$need libutf8proc-dev zlib1g-dev libgif-dev libstb-dev libcmocka-dev libzmq3-dev"
need="$need libmsgpack-dev libcurl4-openssl-dev libwslay-dev libmd-dev libgnutls28-dev ca-certificates curl"
[ "${1:-}" = "--test" ] &&
    need="$need python3 python3-venv python3-yaml g++ haproxy nginx clang-format chromium openssl systemd \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
# Libraries of the page, built in where they are: see the Makefile's PAGE_LIB.
page="libjs-marked node-dompurify libjs-highlight.js libjs-katex fonts-katex libjs-pdf"
missing=""
installed() {
    dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'
}
for p in $need; do
    installed "$p" && continue
    # A virtual package (libjpeg-dev) or a tool that came another way counts too.
    case $p in
    gcc | g++ | make | pkg-config | curl | openssl | python3 | haproxy | nginx | clang-format | chromium)
        command -v "$p" >/dev/null 2>&1 && continue
        ;;
    libcurl4-openssl-dev) installed libcurl4-gnutls-dev && continue ;;
    libjpeg-dev) installed libjpeg62-turbo-dev && continue ;;
    python3-venv) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 && continue ;;
    esac
    missing="$missing $p"
done
optional=""
for p in $page; do installed "$p" || optional="$optional $p"; done
if [ -z "$missing$optional" ]; then
    echo "packages: all there"
    exit 0
fi
echo "packages: installing$missing$optional"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        [ -n "$missing" ] || exit 0
        echo "not root and no sudo: install these packages yourself:$missing" >&2
        exit 1
    fi
    as_root="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
for p in $optional; do
    if apt-cache show "$p" >/dev/null 2>&1; then missing="$missing $p"; else echo "there is no $p here"; fi
done
[ -n "$missing" ] || exit 0
# The tests start their own proxies: those that come with the packages stay off.
policy=/usr/sbin/policy-rc.d
case "$missing " in
*" haproxy "* | *" nginx "*)
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null
        $as_root chmod 755 $policy
        trap '$as_root rm -f $policy' EXIT
    fi
    ;;
esac
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
for p in haproxy nginx; do
    case "$missing " in *" $p "*) $as_root systemctl disable -q "$p" 2>/dev/null || true ;; esac
done

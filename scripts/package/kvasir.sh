#!/bin/sh
# Starts bin/kvasir, or says why it can't start here.
self=$(readlink -f "$0")
dir=${self%/*}
if [ ! -e /lib64/ld-linux-x86-64.so.2 ] && [ ! -e /lib/ld-linux-aarch64.so.1 ]; then
    echo "kvasir: needs glibc @GLIBC@ or newer; this system (musl?) has none: use the container image" >&2
    exit 1
fi
exec "$dir/bin/kvasir" "$@"

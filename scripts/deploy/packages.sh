#!/bin/sh
# The Debian packages of the libraries that a program is linked with, one a line: what an image must install
# with it. Base names are looked up, as a library lies in /lib here and in /usr/lib there.
# usage: packages.sh PROGRAM
set -eu
ldd "$1" | sed -n 's|.* => /.*/\([^/ ]*\) .*|\1|p' | while read -r name; do
    found=$(dpkg -S "*/$name" | sed -n 's/:.*//p' | sort -u | grep -v -e '-dev$' -e '-dbg$' | head -n 1)
    [ -n "$found" ] || { echo "no package has $name" >&2; exit 1; }
    echo "$found"
done | sort -u

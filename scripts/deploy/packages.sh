#!/bin/sh
# The Debian packages of the libraries that a program is linked with, one a line: what an image must install
# with it. Base names are looked up, as a library lies in /lib here and in /usr/lib there; in dpkg's lists
# themselves, since `dpkg -S` takes a fifth of a second for each.
# usage: packages.sh PROGRAM
set -eu
names=$(ldd "$1" | sed -n 's|.* => /.*/\([^/ ]*\) .*|\1|p')
any=$(echo $names | sed 's/[.+]/\\&/g; s/ /|/g')
owners=$(cd /var/lib/dpkg/info && grep -oE "/($any)$" -- *.list) || true # "no package has" is said below
for name in $names; do
    found=$(echo "$owners" | sed -n "s|\.list:.*/$name\$||p" | sed 's/:.*//' | sort -u |
        grep -v -e '-dev$' -e '-dbg$' | head -n 1)
    [ -n "$found" ] || { echo "no package has $name" >&2; exit 1; }
    echo "$found"
done | sort -u

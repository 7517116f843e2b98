#!/bin/bash
# Builds packages of a release build into build/packages:
#   deb     kvasir_VERSION_amd64.deb (or arm64), for the Debian release that builds it and the next
#   wheel   kvasir-VERSION-py3-none-manylinux_2_N_x86_64.whl (or aarch64), with all libraries but glibc's
#   tar     kvasir-VERSION-linux-x86_64.tar.gz (or aarch64), the same contents; any Linux, new enough glibc
# N is the newest version of glibc that the program or a bundled library asks for.
# usage: scripts/package.sh deb|wheel|tar|all
# Each for the machine that builds it; ARCH=aarch64 with `deb` cross-builds on x86-64, with Debian's arm64
# packages of the libraries.
# Needs python3 and the packages dpkg-dev (deb) and patchelf (wheel, tar). scripts/package/check.sh
# installs and runs each in a clean root.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
deb | wheel | tar) kinds=$1 ;;
all) kinds="deb wheel tar" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
for tool in dpkg-shlibdeps:dpkg-dev patchelf:patchelf; do # before the build
    case $tool:$kinds in dpkg*:wheel | dpkg*:tar | patchelf*:deb) continue ;; esac
    command -v "${tool%:*}" >/dev/null && continue
    echo "${tool%:*} is missing: sudo apt install ${tool#*:}" >&2
    exit 1
done
version=$(sed -n 's/^#define KVASIR_VERSION "\(.*\)"$/\1/p' config/options.h)
out=build/packages
arch=${ARCH:-$(uname -m)} build=build/release cross=
case $arch in
x86_64) debian=amd64 ;;
aarch64) debian=arm64 ;;
*) echo "there are no kernels for $arch" >&2 && exit 1 ;;
esac
if [ "$arch" != "$(uname -m)" ]; then
    [ "$kinds" = deb ] || { echo "wheel and tar are built on $arch itself" >&2 && exit 1; }
    build=build/$arch/release cross=$arch-linux-gnu-
fi
mkdir -p $out
echo "building kvasir $version"
rm -f $build/kvasir # linked otherwise
make -j"$(nproc)" ARCH="$arch" UTF8PROC=-l:libutf8proc.a all >$out/build.log 2>&1 ||
    { tail -n 30 $out/build.log && exit 1; }

# ---- what all have: DIR/bin, DIR/share

tree() { # tree DIR: the program, the demo model, man page and completions
    rm -rf "$1"
    make -s install ARCH="$arch" DESTDIR="$1" PREFIX= >/dev/null
    ${cross}strip --strip-unneeded "$1/bin/kvasir"
    install -D -m 644 /usr/share/doc/libutf8proc-dev/copyright "$1/share/doc/kvasir/licenses/libutf8proc"
    [ -z "$cross" ] || make -s -j"$(nproc)" all >>$out/build.log 2>&1 # that says its flags on this machine
    python3 scripts/man_pages.py build/release/kvasir $out/pages
    install -D -m 644 -t "$1/share/man/man1" $out/pages/kvasir.1
    gzip -9n "$1"/share/man/man1/*.1
    install -D -m 644 $out/pages/kvasir.bash "$1/share/bash-completion/completions/kvasir"
    install -D -m 644 $out/pages/_kvasir "$1/share/zsh/vendor-completions/_kvasir"
    install -D -m 644 $out/pages/kvasir.fish "$1/share/fish/vendor_completions.d/kvasir.fish"
}

size() {
    echo "$1: $(($(stat -c %s "$1") / 1024)) KiB; newest symbol of glibc: $2"
}

# glibc_newest FILE...: the newest version of its symbols that the files ask for
glibc_newest() {
    ${cross}objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_2[.0-9]*' | sort -u -V | tail -n 1
}

# ---- deb

deb() {
    local root=$out/deb v=${version/-/\~} doc file
    tree "$root/usr"
    doc=$root/usr/share/doc/kvasir
    cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: kvasir

Files: *
Copyright: 2026 the authors of Kvasir
License: Apache-2.0
 On Debian systems the text of this license is in
 /usr/share/common-licenses/Apache-2.0.
 .
 The program contains utf8proc: see licenses/libutf8proc.
EOF
    date=$(LC_ALL=C date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
    printf 'kvasir (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' "$v" \
        "Kvasir maintainers <maintainers@kvasir.example>" "$date" |
        gzip -9n >"$doc/changelog.gz"
    install -m 644 CHANGELOG.md README.md "$doc/"
    gzip -9n "$doc/CHANGELOG.md"
    install -D -m 644 scripts/deploy/kvasir.service "$root/lib/systemd/system/kvasir.service"
    sed -i -e 's|/usr/local/|/usr/|g' -e '1,4{/install -m\|systemctl enable/d}' \
        "$root/lib/systemd/system/kvasir.service"
    install -D -m 644 scripts/package/kvasir.conf "$root/etc/kvasir/kvasir.conf"
    mkdir -p "$root/DEBIAN" "$out/debian"
    echo /etc/kvasir/kvasir.conf >"$root/DEBIAN/conffiles"
    printf 'Source: kvasir\nMaintainer: none\n\nPackage: kvasir\nArchitecture: %s\n' "$debian" \
        >"$out/debian/control"
    file=$PWD/$root/usr/bin/kvasir
    depends=$(cd $out && DEB_HOST_ARCH=$debian dpkg-shlibdeps -O "$file" 2>/dev/null |
        sed -n 's/^shlibs:Depends=//p')
    cat >"$root/DEBIAN/control" <<EOF
Package: kvasir
Version: $v
Architecture: $debian
Maintainer: Kvasir maintainers <maintainers@kvasir.example>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: $depends
Recommends: ca-certificates
Section: net
Priority: optional
Description: OpenAI-compatible inference server for vision-language models
 Kvasir serves Gemma, PaliGemma, Qwen-VL and other checkpoints from the
 Hugging Face hub or in GGUF over the HTTP APIs of OpenAI and Anthropic, with
 continuous batching and a prefix cache that knows images. A response depends
 on its request alone, bit for bit: inference is deterministic and
 batch-invariant.
EOF
    (cd "$root" && find usr lib etc -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -type d -exec chmod 755 {} +
    dpkg-deb --root-owner-group --build "$root" "$out/kvasir_${v}_$debian.deb" >/dev/null
    size "$out/kvasir_${v}_$debian.deb" "$(glibc_newest "$file")"
}

# ---- the program with its libraries

# bundle DIR LIBS: copies the libraries of DIR/bin/kvasir, but glibc's and gcc's (manylinux has them), to
# DIR/LIBS, with the licences of their packages; each is found from where it lies.
bundle() {
    local dir=$1 libs=$2 path name package
    mkdir -p "$dir/$libs"
    ldd "$dir/bin/kvasir" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p' | while read -r path; do
        name=$(basename "$path")
        case $name in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.*) continue ;;
        ld-linux* | libgcc_s.so.* | libstdc++.so.*) continue ;;
        esac
        cp -L "$path" "$dir/$libs/$name"
        chmod 755 "$dir/$libs/$name"
        # shellcheck disable=SC2016
        patchelf --set-rpath '$ORIGIN' "$dir/$libs/$name"
        package=$(dpkg -S "*/$name" | sed -n 's/:.*//p' | sort -u | grep -v -e '-dev$' -e '-dbg$' | head -n 1)
        cp -L "/usr/share/doc/$package/copyright" "$dir/share/doc/kvasir/licenses/$package"
    done
    patchelf --set-rpath "\$ORIGIN/../$libs" "$dir/bin/kvasir"
    strip --strip-unneeded "$dir/$libs"/*
    install -m 644 LICENSE "$dir/share/doc/kvasir/licenses/kvasir"
}

tar_() {
    local name=kvasir-$version-linux-$arch
    local root=$out/$name newest
    tree "$root"
    bundle "$root" lib
    newest=$(glibc_newest "$root/bin/kvasir" "$root"/lib/*)
    sed "s/@GLIBC@/${newest#GLIBC_}/" scripts/package/kvasir.sh >"$root/kvasir"
    chmod 755 "$root/kvasir"
    install -m 644 README.md CHANGELOG.md "$root/"
    tar -C $out --sort=name --owner=0 --group=0 --numeric-owner -czf "$out/$name.tar.gz" "$name"
    size "$out/$name.tar.gz" "$newest"
}

wheel() {
    local root=$out/wheel newest
    rm -rf "$root"
    tree "$root/kvasir"
    bundle "$root/kvasir" lib
    install -m 644 scripts/package/wheel/*.py "$root/kvasir/"
    newest=$(glibc_newest "$root/kvasir/bin/kvasir" "$root"/kvasir/lib/*)
    # manylinux has a libstdc++ of gcc 12 from 2.35 on
    if objdump -T "$root"/kvasir/lib/* | grep -q GLIBCXX_3.4.30; then
        newest=$(printf '%s\nGLIBC_2.35\n' "$newest" | sort -V | tail -n 1)
    fi
    file=$(python3 scripts/package/wheel.py "$root" "${version/-dev/.dev0}" "${newest#GLIBC_}" "$arch" $out)
    size "$file" "$newest"
}

for kind in $kinds; do
    case $kind in
    deb) deb ;;
    wheel) wheel ;;
    tar) tar_ ;;
    esac
done

#!/usr/bin/env bash
# Packs a built program for installation: `build.sh PROGRAM FOLDER [MACHINE]`. `make dist` has written FOLDER/man and FOLDER/third-party-licenses.txt before.
# Both artefacts have the same files, below /usr/local or /usr:
#   postdate-<version>-<machine>-linux-gnu.tar.gz
#   postdate_<version>_<architecture>.deb     also /etc/postdate/postdate.toml, and the unit starts again after an upgrade
# The same inputs give the same bytes: sorted names, one date, one owner.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

program=${1:?usage: build.sh PROGRAM FOLDER [MACHINE]}
folder=${2:?usage: build.sh PROGRAM FOLDER [MACHINE]}
machine=${3:-$(uname -m)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
run=("$program")
# Libraries of another machine, in addition to those of this one.
libraries=()
if [[ $machine != "$(uname -m)" ]]; then
    run=("qemu-$machine-static" -L "/usr/$machine-linux-gnu" "$program")
    libraries=("-l/usr/$machine-linux-gnu/lib")
fi
case $machine in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) echo "no Debian architecture is known for $machine" >&2 && exit 1 ;;
esac
version=$("${run[@]}" --version | cut -d' ' -f2)
name=postdate-$version-$machine-linux-gnu
umask 022

# Puts a file with this mode at a path, below $tree.
put() {
    install -D -m "$1" "$2" "$tree/$3"
}

# The files that both artefacts have. $1: folder of zsh's completions below share/zsh, which Debian names differently.
fill() {
    local page
    put 755 "$program" bin/postdate
    "$machine-linux-gnu-strip" --strip-debug "$tree/bin/postdate"
    put 644 deploy/systemd/postdate.service lib/systemd/system/postdate.service
    for page in "$folder"/man/*.1; do
        put 644 "$page" "share/man/man1/${page##*/}"
    done
    gzip -9 -n "$tree"/share/man/man1/*
    "${run[@]}" completion bash | put 644 /dev/stdin share/bash-completion/completions/postdate
    "${run[@]}" completion zsh | put 644 /dev/stdin "share/zsh/$1/_postdate"
    "${run[@]}" completion fish | put 644 /dev/stdin share/fish/vendor_completions.d/postdate.fish
    put 644 "$folder/third-party-licenses.txt" share/doc/postdate/third-party-licenses.txt
    put 644 postdate.cdx.json share/doc/postdate/sbom.cdx.json
    gzip -9 -n "$tree"/share/doc/postdate/{third-party-licenses.txt,sbom.cdx.json}
    # As in the repository, so that the links of the pages lead somewhere.
    tar -c --exclude=node_modules README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs config | tar -x -C "$tree/share/doc/postdate"
    chmod -R u=rwX,go=rX "$tree"
}

archive() {
    tree=$folder/$name
    rm -rf "$tree"
    fill site-functions
    tar --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$folder" -c "$name" | gzip -9 -n >"$folder/$name.tar.gz"
}

package() {
    local root=$folder/deb depends
    tree=$root/usr
    rm -rf "$root"
    fill vendor-completions
    put 644 LICENSE share/doc/postdate/copyright
    sed -i 's|/usr/local/|/usr/|g' "$tree/lib/systemd/system/postdate.service"
    install -D -m 644 config/kafka.toml "$root/etc/postdate/postdate.toml"
    # The versions of Debian's libraries that the program needs. The tool expects `debian/control` below the current folder.
    depends=$(cd deploy/dist && dpkg-shlibdeps "${libraries[@]}" -O "$tree/bin/postdate" 2> >(grep -v 'should already be installed' >&2) | sed -n "s/^shlibs:Depends=//p" | sed "s/:$architecture//g; s/-$architecture-cross//g")
    mkdir "$root/DEBIAN"
    echo /etc/postdate/postdate.toml >"$root/DEBIAN/conffiles"
    install -m 755 deploy/dist/debian/{postinst,prerm,postrm} "$root/DEBIAN"
    {
        sed '1,/^$/d; /^Architecture:/d' deploy/dist/debian/control
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Depends: ${depends:?dpkg-shlibdeps names no library}"
        echo "Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)"
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$folder/md5sums"
    mv "$folder/md5sums" "$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group --build "$root" "$folder/postdate_${version}_$architecture.deb" >/dev/null
}

folder=$(cd "$folder" && pwd)
rm -f "$folder"/*.{tar.gz,deb}
archive
package
(cd "$folder" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
rm -rf "$folder/deb" "${folder:?}/$name"
(cd "$folder" && ls -l -- *.tar.gz *.deb)

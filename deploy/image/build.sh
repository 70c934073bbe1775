#!/usr/bin/env bash
# The root file system of the image, from a program that is built already: `build.sh PROGRAM FOLDER [ARCHIVE]`. It holds the program, the libraries
# that it is linked with, the certificates of public authorities, two users and nothing else: no shell, no package manager. The same program
# gives the same bytes: names in order, one date, one owner. With ARCHIVE also as a tar, for `docker import` and the like.
set -euo pipefail

complain() {
    echo "$@" >&2
    exit 1
}

program=${1:?usage: build.sh PROGRAM FOLDER [ARCHIVE]}
root=${2:?usage: build.sh PROGRAM FOLDER [ARCHIVE]}
archive=${3:-}
[[ -x $program ]] || complain "$program is no program: cargo build --release"
[[ ! -e $root ]] || complain "$root is there already: name a folder that is not"
certificates=/etc/ssl/certs/ca-certificates.crt
[[ -e $certificates ]] || complain "$certificates is missing: apt-get install ca-certificates"

mkdir -p "$root"/{usr/bin,etc/ssl/certs,etc/postdate,run/secrets,var/lib/postdate,dev,proc,tmp}
install -m 755 "$program" "$root/usr/bin/postdate"

# The libraries, at the paths where the loader looks, and the loader itself at the path that the program names.
ldd "$program" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    install -D -m 755 "$(realpath "$library")" "$root$library"
done
# Names are looked up by a library that glibc loads when it first needs it, not one that the program is linked with.
for library in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
    found=$(ldconfig -p | sed -n "s/.*[[:space:]]$library .*=> //p" | head -n 1)
    [[ -z $found || -e $root$found ]] || install -D -m 755 "$(realpath "$found")" "$root$found"
done

# What it is made of, where `make sbom` was called before.
bill=$(dirname "${BASH_SOURCE[0]}")/../../postdate.cdx.json
[[ ! -e $bill ]] || install -D -m 644 "$bill" "$root/usr/share/postdate/sbom.cdx.json"

install -m 644 "$certificates" "$root$certificates"
printf 'root:x:0:0::/:/none\npostdate:x:65532:65532::/var/lib/postdate:/none\n' >"$root/etc/passwd"
printf 'root:x:0:\npostdate:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
find "$root" -type d -exec chmod 755 {} +
chmod 1777 "$root/tmp"
# Only the folder of the embedded store is the service's own.
if ((EUID == 0)); then
    chown -R 0:0 "$root"
    chown 65532:65532 "$root/var/lib/postdate"
fi
find "$root" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
if [[ $archive ]]; then
    tar --sort=name --format=ustar --mtime="@${SOURCE_DATE_EPOCH:-0}" --numeric-owner -C "$root" -cf "$archive" .
fi
echo "$(du -sb --apparent-size "$root" | cut -f1) bytes in $root"

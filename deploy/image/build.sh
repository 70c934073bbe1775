#!/usr/bin/env bash
# Builds the root file system of the image from a built program: `build.sh PROGRAM FOLDER [ARCHIVE]`. It has the program, its libraries, the
# certificates of public authorities and two users. It has no shell and no package manager. The same program gives the same bytes: sorted names, one
# date, one owner. ARCHIVE is also written as a tar, for `docker import`.
set -euo pipefail

complain() {
    echo "$@" >&2
    exit 1
}

program=${1:?usage: build.sh PROGRAM FOLDER [ARCHIVE]}
root=${2:?usage: build.sh PROGRAM FOLDER [ARCHIVE]}
archive=${3:-}
[[ -x $program ]] || complain "$program is not a program: run cargo build --release"
[[ ! -e $root ]] || complain "$root exists already: name a new folder"
certificates=/etc/ssl/certs/ca-certificates.crt
[[ -e $certificates ]] || complain "$certificates is missing: apt-get install ca-certificates"

mkdir -p "$root"/{usr/bin,etc/ssl/certs,etc/postdate,run/secrets,var/lib/postdate,dev,proc,tmp}
install -m 755 "$program" "$root/usr/bin/postdate"

# Libraries at the paths of the loader, and the loader at the path that the program names.
ldd "$program" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    install -D -m 755 "$(realpath "$library")" "$root$library"
done
# glibc loads the library for name lookups at run time, so ldd does not list it.
for library in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
    found=$(ldconfig -p | sed -n "s/.*[[:space:]]$library .*=> //p" | head -n 1)
    [[ -z $found || -e $root$found ]] || install -D -m 755 "$(realpath "$found")" "$root$found"
done

# The bill of materials, if `make sbom` ran before.
bill=$(dirname "${BASH_SOURCE[0]}")/../../postdate.cdx.json
[[ ! -e $bill ]] || install -D -m 644 "$bill" "$root/usr/share/postdate/sbom.cdx.json"

install -m 644 "$certificates" "$root$certificates"
printf 'root:x:0:0::/:/none\npostdate:x:65532:65532::/var/lib/postdate:/none\n' >"$root/etc/passwd"
printf 'root:x:0:\npostdate:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
find "$root" -type d -exec chmod 755 {} +
chmod 1777 "$root/tmp"
# The service owns only the folder of the embedded store.
if ((EUID == 0)); then
    chown -R 0:0 "$root"
    chown 65532:65532 "$root/var/lib/postdate"
fi
find "$root" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
if [[ $archive ]]; then
    tar --sort=name --format=ustar --mtime="@${SOURCE_DATE_EPOCH:-0}" --numeric-owner -C "$root" -cf "$archive" .
fi
echo "$(du -sb --apparent-size "$root" | cut -f1) bytes in $root"

#!/usr/bin/env bash
# Checks the artefacts of `make dist`: installs each in an empty folder, checks the files, and delivers a message with the installed program and
# sample configuration, on a real Kafka and Redis. `check.sh [FOLDER [MACHINE]]`, default target/dist. A program of another machine runs under QEMU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-target/dist}
machine=${2:-$(uname -m)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

complain() {
    echo "$@" >&2
    exit 1
}

# Runs a command as root, or as root of a user namespace.
as_root() {
    if ((EUID == 0)); then "$@"; else unshare --map-root-user "$@"; fi
}

# Prints a command that runs the program below a prefix.
runs() {
    local program=$1/bin/postdate emulated=$scratch/emulated
    if [[ $machine == "$(uname -m)" ]]; then
        echo "$program"
    else
        printf '#!/bin/sh\nexec qemu-%s-static -L /usr/%s-linux-gnu %s "$@"\n' "$machine" "$machine" "$program" >"$emulated"
        chmod +x "$emulated"
        echo "$emulated"
    fi
}

# Debian's package manager in an empty root. Its scripts see that no systemd runs there.
package() {
    local said
    said=$(as_root dpkg --root="$scratch/root" --force-script-chrootless --force-depends --force-architecture --log="$scratch/dpkg.log" "$@" 2>&1) || complain "$said"
}

# `look PREFIX UNIT_PREFIX ZSH`: checks the files below PREFIX. The unit names the program below UNIT_PREFIX.
look() {
    local prefix=$1 unit=$1/lib/systemd/system/postdate.service page said
    said=$("$(runs "$prefix")" --version)
    [[ $said == "postdate $version" ]] || complain "$prefix/bin/postdate is another version: $said"
    [[ $(ls "$prefix/bin") == postdate ]] || complain "$prefix/bin has more than the program"
    grep -q "^ExecStart=$2/bin/postdate run --config /etc/postdate/postdate.toml$" "$unit" || complain "$unit starts another program"
    page=$(sed -n "s|^Documentation=file:$2/||p" "$unit")
    [[ $page && -e $prefix/$page ]] || complain "$unit names documentation that is not there: $page"

    for page in postdate postdate-{run,init,demo,reset,pending,ledger,workers,audit,quarantine,send,check,completion}; do
        said=$(man --warnings -l "$prefix/share/man/man1/$page.1.gz" 2>&1 >"$scratch/page") || complain "$page.1: $said"
        [[ -z $said ]] || complain "$page.1: $said"
        grep -q "^NAME" "$scratch/page" || complain "$page.1 is no man page"
    done
    bash -n "$prefix/share/bash-completion/completions/postdate"
    zsh -n "$prefix/share/zsh/$3/_postdate"
    fish --no-execute "$prefix/share/fish/vendor_completions.d/postdate.fish"

    local doc=$prefix/share/doc/postdate
    gzip -dc "$doc/sbom.cdx.json.gz" | grep -q '"rdkafka-sys"' || complain "the bill of materials does not list rdkafka-sys"
    gzip -dc "$doc/third-party-licenses.txt.gz" >"$scratch/licenses"
    for said in "tokio [0-9]" "The C library in openssl-src-" "The C library in rdkafka-sys-" "Apache License" "MIT License"; do
        grep -q "^ *$said" "$scratch/licenses" || complain "the licences lack: $said"
    done
    for page in docs/runbook.md config/{kafka,nats,default}.toml LICENSE; do
        [[ -s $doc/$page ]] || complain "$doc/$page is missing"
    done
}

# `deliver PREFIX CONFIGURATION`: delivers a message with the installed program and this configuration.
deliver() {
    local said
    said=$(TEST_PROGRAM=$(runs "$1") TEST_CONFIG=$2 make --no-print-directory integration TEST="--exact deploy::package::the_sample_configuration_delivers_a_message" 2>&1) || complain "$said"
    grep -q "^test result: ok. 1 passed" <<<"$said" || complain "$said"
}

(cd "$folder" && sha256sum --check --quiet SHA256SUMS)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
archive=$(echo "$folder/postdate-$version"-*.tar.gz)
deb=$(echo "$folder/postdate_$version"_*.deb)

mkdir "$scratch/local" "$scratch/root"
tar -xzf "$archive" --strip-components=1 --no-same-owner -C "$scratch/local"
look "$scratch/local" /usr/local site-functions
deliver "$scratch/local" "$scratch/local/share/doc/postdate/config/kafka.toml"
echo "${archive##*/}: unpacks, runs, and delivers a message."

mkdir -p "$scratch/root/var/lib/dpkg/updates" "$scratch/root/var/lib/dpkg/info"
touch "$scratch/root/var/lib/dpkg/status"
package --install "$deb"
look "$scratch/root/usr" /usr vendor-completions
(cd "$scratch/root" && md5sum --check --quiet var/lib/dpkg/info/postdate.md5sums)
dpkg-deb --field "$deb" Depends | grep -q 'libc6 (>= ' || complain "${deb##*/} does not depend on libc6"
deliver "$scratch/root/usr" "$scratch/root/etc/postdate/postdate.toml"
# The operator's configuration stays until the package is purged.
package --remove postdate
[[ ! -e $scratch/root/usr/bin/postdate && -e $scratch/root/etc/postdate/postdate.toml ]] || complain "${deb##*/} removes the configuration or leaves the program"
package --purge postdate
[[ ! -e $scratch/root/etc/postdate ]] || complain "${deb##*/} leaves its configuration after a purge"
echo "${deb##*/}: installs, runs, delivers a message, and is removed."

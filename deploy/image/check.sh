#!/usr/bin/env bash
# Builds the image twice from two copies of the sources, as the Dockerfile does. Compares both byte by byte, measures them, and delivers messages with
# a confined process. `check.sh [FOLDER]`, default target/image. It takes ten minutes or more.
#   DEPENDENCIES=once   the second build reuses the third-party crates of the first, which halves the time
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-target/image}
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# Copy both first, so that an edit during the first build is in neither.
for each in one two; do
    mkdir -p "$folder/$each"
    tar -c --exclude=./target --exclude=./.git --exclude=./.servers --exclude="./${folder#"$PWD/"}" . | tar -x -C "$folder/$each"
done

# OpenSSL contains its installation path. Both builds therefore use one path, in a mount namespace, as containers do.
build() {
    local place=$folder/$1
    if [[ $1 == two && ${DEPENDENCIES:-} == once ]]; then
        cp -a "$folder/one/target" "$place/target"
        rm -rf "$place"/target/release/{postdate,.fingerprint/postdate-*,deps/*postdate-*,incremental}
    fi
    unshare --mount --map-root-user sh -euc '
        mount --bind "$1" /mnt
        cd /mnt
        export CARGO_TARGET_DIR=/mnt/target SOURCE_DATE_EPOCH=0
        export RUSTFLAGS="--remap-path-prefix=/mnt=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
        cargo build --release --locked --bin postdate
    ' build "$place"
    mkdir -p "$place/image"
    deploy/image/build.sh "$place/target/release/postdate" "$place/image/rootfs" "$place/image/postdate.tar"
}

build one
build two
cmp "$folder"/{one,two}/target/release/postdate
cmp "$folder"/{one,two}/image/postdate.tar
echo "Two builds gave the same bytes: $(sha256sum <"$folder/one/target/release/postdate" | cut -d' ' -f1)"
echo "The program: $(stat -c %s "$folder/one/target/release/postdate") bytes. The image: $(stat -c %s "$folder/one/image/postdate.tar") bytes as a tar, $(gzip -9 -n <"$folder/one/image/postdate.tar" | wc -c) compressed by gzip."
TEST_PROGRAM=$folder/one/target/release/postdate make --no-print-directory integration TEST=deploy::image

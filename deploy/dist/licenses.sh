#!/usr/bin/env bash
# Writes the licence texts of all linked code into a file: `licenses.sh FILE`. It needs cargo-about, and no network once the crates are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
file=${1:?usage: licenses.sh FILE}

cargo about generate --locked --fail -c deploy/dist/about.toml -o "$file" deploy/dist/about.hbs

# C libraries inside of crates have licences of their own, which cargo-about does not list.
folders=$(cargo metadata --locked --format-version 1 | grep -o '"manifest_path":"[^"]*"' | cut -d'"' -f4 | xargs -n 1 dirname)
while read -r crate text; do
    # The version starts with a digit: `zstd-sys-2.1.2` and not `zstd-sys-extra-1.0`.
    folder=$(grep -E "/$crate-[0-9][^/]*$" <<<"$folders" | head -n 1)
    [[ $folder && -e $folder/$text ]] || {
        echo "$crate has no $text any more: name its licence in ${BASH_SOURCE[0]}" >&2
        exit 1
    }
    printf '\n%s\n' "--------------------------------------------------------------------------------"
    printf 'The C library in %s:\n' "$(basename "$folder")"
    printf '%s\n\n' "--------------------------------------------------------------------------------"
    cat "$folder/$text"
done >>"$file" <<END
openssl-src openssl/LICENSE.txt
rdkafka-sys librdkafka/LICENSES.txt
zstd-sys zstd/LICENSE
libz-sys src/zlib/LICENSE
tikv-jemalloc-sys jemalloc/COPYING
END

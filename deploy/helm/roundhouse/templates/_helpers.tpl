{{/* Name of the release's objects: at most 40 characters, so that there is room for what follows it. */}}
{{- define "roundhouse.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Labels by which pods of one component are found. Takes (list root component). */}}
{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "roundhouse.labels" -}}
{{ include "roundhouse.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{/* Takes (list root variant). */}}
{{- define "roundhouse.image" -}}
{{- $image := (index . 0).Values.image -}}
image: {{ printf "%s:%s-%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) (index . 1) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* What every pod of ours may do: nothing beyond computing. Names of services must not become environment variables,
     of which ROUNDHOUSE_SERVER_PORT would be read as a setting. */}}
{{- define "roundhouse.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "roundhouse.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "roundhouse.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "roundhouse.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* Address of Redis as an environment variable. Takes (list root variable). */}}
{{- define "roundhouse.redis" -}}
{{- $redis := (index . 0).Values.redis -}}
- name: {{ index . 1 }}
{{- if $redis.existingSecret }}
  valueFrom: {secretKeyRef: {name: {{ $redis.existingSecret | quote }}, key: url}}
{{- else if $redis.url }}
  value: {{ $redis.url | quote }}
{{- else if $redis.trial.enabled }}
  value: redis://{{ include "roundhouse.name" (index . 0) }}-redis:6379/0
{{- else }}
{{- fail "redis: name yours as redis.url or redis.existingSecret, or set redis.trial.enabled" }}
{{- end }}
{{- end }}

{{- define "roundhouse.serverName" -}}
{{- .Values.engineTls.serverName | default (printf "%s-engines.%s" (include "roundhouse.name" .) .Release.Namespace) -}}
{{- end }}

{{- define "roundhouse.engineTlsSecret" -}}
{{- .Values.engineTls.engineSecret | default (printf "%s-engine-tls" (include "roundhouse.name" .)) -}}
{{- end }}

{{- define "roundhouse.gatewayTlsSecret" -}}
{{- .Values.engineTls.gatewaySecret | default (printf "%s-gateway-tls" (include "roundhouse.name" .)) -}}
{{- end }}

{{/* Environment variables of every process of ours: those of the values, and a home that it may write to. */}}
{{- define "roundhouse.env" -}}
- name: HOME
  value: /tmp
{{- range .Values.env }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{/* What gateways and the controller are told by environment variables, which override roundhouse.toml. */}}
{{- define "roundhouse.environment" -}}
{{ include "roundhouse.env" . }}
- name: ROUNDHOUSE_CONFIG
  value: /etc/roundhouse/roundhouse.toml
- name: ROUNDHOUSE_SECRET
  valueFrom: {secretKeyRef: {name: {{ .Values.secrets.installation | quote }}, key: secret}}
- name: ROUNDHOUSE_REDIS_DATA
  value: /var/lib/roundhouse
- name: ROUNDHOUSE_LOG_FORMAT
  value: json
{{ include "roundhouse.redis" (list . "ROUNDHOUSE_REDIS_URL") }}
{{- end }}

{{/* Takes (dict "port" name "startup" seconds). */}}
{{- define "roundhouse.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 5
  failureThreshold: {{ div (add (int64 .startup) 4) 5 }}
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* The pools with what they leave to poolDefaults, as JSON: {"pools": [...]}. */}}
{{- define "roundhouse.pools" -}}
{{- $pools := list -}}
{{- range .Values.pools -}}
{{- $pools = append $pools (mergeOverwrite (deepCopy $.Values.poolDefaults) .) -}}
{{- end -}}
{{- dict "pools" $pools | toJson -}}
{{- end }}

{{/* A container that ends when fetched models are there, which appear whole. Takes (list root variant paths). */}}
{{- define "roundhouse.fetched" -}}
- name: models
  {{- include "roundhouse.image" (list (index . 0) (index . 1)) | nindent 2 }}
  command:
    - sh
    - -c
    - for path in "$@"; do [ -e "$path" ] || echo "waits for $path"; until [ -e "$path" ]; do sleep 2; done; done
    - wait
  args: {{ toJson (index . 2) }}
  {{- include "roundhouse.container" (index . 0) | nindent 2 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {cpu: 100m, memory: 64Mi}
  volumeMounts:
    - {name: models, mountPath: /models, readOnly: true}
{{- end }}

{{/* Seconds that a pod may wait for models that are fetched. */}}
{{- define "roundhouse.fetchSeconds" -}}
{{- if .Values.models.fetch.sources }}{{ int64 .Values.models.fetch.seconds }}{{ else }}0{{ end -}}
{{- end }}

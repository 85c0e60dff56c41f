{{- define "tokentrail.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tokentrail.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "tokentrail.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tokentrail.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select a part's pods: (list . "collector") */}}
{{- define "tokentrail.selector" -}}
app.kubernetes.io/name: {{ include "tokentrail.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "tokentrail.labels" -}}
{{ include "tokentrail.selector" . }}
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version }}
{{- end -}}

{{/* The image of a part: (list . "collector") */}}
{{- define "tokentrail.image" -}}
{{- $image := (first .).Values.image -}}
image: {{ printf "%s/%s:%s" $image.repository (last .) (default (first .).Chart.AppVersion $image.tag) }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end -}}

{{/* What every pod of ours says, whose user is that of the images. */}}
{{- define "tokentrail.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tokentrail.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tokentrail.placing" -}}
{{- range $name := list "nodeSelector" "affinity" "tolerations" }}
{{- with index $ $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Names by which a Service is called, and more hosts: (list . NAME HOST…). Others are refused with 421. */}}
{{- define "tokentrail.hosts" -}}
{{- $namespace := (first .).Release.Namespace -}}
{{- $name := index . 1 -}}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) -}}
{{- concat $names (slice . 2) | compact | uniq | join "," -}}
{{- end -}}

{{- define "tokentrail.scheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secret "") -}}
{{- end -}}

{{- define "tokentrail.embedded" -}}
{{- if hasPrefix "chdb:" .Values.collector.store.url }}true{{ end -}}
{{- end -}}

{{/* Refuses values that contradict each other, with what to do. */}}
{{- define "tokentrail.check" -}}
{{- $hosts := list .Values.ingress.hosts.otlp .Values.ingress.hosts.api .Values.gateway.hosts.otlp .Values.gateway.hosts.api | compact -}}
{{- if and (include "tokentrail.embedded" .) (gt (int .Values.collector.replicas) 1) -}}
{{- fail "the embedded store belongs to one collector: give collector.store.url a ClickHouse server, or set collector.replicas to 1" -}}
{{- end -}}
{{- if and $hosts (not .Values.keys.secret) -}}
{{- fail "collector without keys: anybody who reaches an Ingress could read and write. Make keys and set keys.secret (docs/kubernetes.md), or leave hosts.otlp and hosts.api empty" -}}
{{- end -}}
{{- if and (or .Values.ingress.hosts.dashboard .Values.gateway.hosts.dashboard) (not .Values.dashboard.enabled) -}}
{{- fail "hosts.dashboard leads to a dashboard that dashboard.enabled leaves out" -}}
{{- end -}}
{{- if .Values.keys.secret -}}
{{- if and .Values.dashboard.enabled (not .Values.keys.dashboardSecret) (not .Values.dashboard.loginSecret) -}}
{{- fail "the collector asks for a key: the dashboard needs keys.dashboardSecret or dashboard.loginSecret" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.keys.metricsSecret) (ne (toString (get .Values.collector.env "TOKENTRAIL_METRICS_WITHOUT_KEY")) "true") -}}
{{- fail "the collector asks for a key: Prometheus needs keys.metricsSecret, or collector.env.TOKENTRAIL_METRICS_WITHOUT_KEY=true" -}}
{{- end -}}
{{- if and .Values.proxies (not .Values.proxyDefaults.ingestSecret) -}}
{{- fail "the collector asks for a key: the proxies need proxyDefaults.ingestSecret" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientCa (or .Values.dashboard.enabled .Values.proxies .Values.serviceMonitor.enabled) -}}
{{- fail "tls.clientCa asks each client for a certificate, which dashboard, proxies and serviceMonitor of this chart do not have: switch them off, or use keys" -}}
{{- end -}}
{{- if and .Values.slos .Values.prometheusRule.enabled (not .Values.prometheusRule.files) -}}
{{- fail "SLOs of your own have rules of their own: tokentrail rules generate --slos slos.yaml --out rules, and then --set-file prometheusRule.files.slos=rules/slos.yml,prometheusRule.files.conditions=rules/conditions.yml" -}}
{{- end -}}
{{- end -}}

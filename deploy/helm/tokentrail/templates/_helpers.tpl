{{- define "tokentrail.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimAll "-." -}}
{{- end -}}

{{/* A Service's name has no dot, which the name of a release may have. */}}
{{- define "tokentrail.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name (include "tokentrail.name" .)) (contains (include "tokentrail.name" .) .Release.Name) -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 50 | trimAll "-" -}}
{{- end -}}

{{/* Labels that select a part's pods: (list . "collector") */}}
{{- define "tokentrail.selector" -}}
app.kubernetes.io/name: {{ include "tokentrail.name" (first .) | quote }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
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
image: {{ printf "%s/%s:%s" (trimSuffix "/" $image.repository) (last .) (default (first .).Chart.AppVersion $image.tag) }}
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

{{/* Variables of a part that stand in no `env`, and what they are taken from. */}}
{{- define "tokentrail.taken" -}}
{{- if eq . "collector" -}}
TOKENTRAIL_STORE: collector.store.url
TOKENTRAIL_STORE_USER: collector.store.user
TOKENTRAIL_STORE_PASSWORD_FILE: collector.store.passwordSecret
TOKENTRAIL_SLOS: slos
TOKENTRAIL_KEYS: keys.secret
TOKENTRAIL_ALLOW_ANONYMOUS: keys.secret
TOKENTRAIL_TLS_CERT: tls.secret
TOKENTRAIL_TLS_KEY: tls.secret
TOKENTRAIL_TLS_CLIENT_CA: tls.clientCa
TOKENTRAIL_RETENTION: collector.retention
TOKENTRAIL_SCRAPE: collector.scrape
TOKENTRAIL_DRAIN_TIMEOUT_S: collector.drainSeconds
TOKENTRAIL_DATA_DIR: the image
TOKENTRAIL_OTLP_HTTP: the image
TOKENTRAIL_OTLP_GRPC: the image
TOKENTRAIL_API: the image
{{- else -}}
TOKENTRAIL_API_URL: the collector's Service
TOKENTRAIL_API_TLS_CA: tls.secret
TOKENTRAIL_API_KEY: keys.dashboardSecret
TOKENTRAIL_LOGIN: dashboard.loginSecret
{{- end -}}
{{- end -}}

{{/* Refuses values that contradict each other, with what to do. */}}
{{- define "tokentrail.check" -}}
{{- $store := .Values.collector.store -}}
{{- $hosts := list .Values.ingress.hosts.otlp .Values.ingress.hosts.api .Values.gateway.hosts.otlp .Values.gateway.hosts.api | compact -}}
{{- if not (regexMatch "^[a-z]" (include "tokentrail.fullname" .)) -}}
{{- fail (printf "%s-tokentrail cannot be the name of a Service, which begins with a letter: choose another name for the release, or set fullnameOverride" .Release.Name) -}}
{{- end -}}
{{- range $part, $env := dict "collector" .Values.collector.env "dashboard" .Values.dashboard.env -}}
{{- range $name, $_ := $env -}}
{{- with get (include "tokentrail.taken" $part | fromYaml) $name -}}
{{- fail (printf "%s.env.%s: the chart takes this variable from %s" $part $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (include "tokentrail.embedded" .) (or $store.user $store.passwordSecret $store.caSecret) -}}
{{- fail "collector.store: user, passwordSecret and caSecret are those of a ClickHouse server, and the store is embedded: set url too" -}}
{{- end -}}
{{- if and $store.passwordSecret (not $store.user) -}}
{{- fail "collector.store.passwordSecret needs its user: set collector.store.user" -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secret) -}}
{{- fail "tls.clientCa needs tls.secret, whose ca.crt has signed the certificates of the clients" -}}
{{- end -}}
{{- if and (include "tokentrail.embedded" .) (gt (int .Values.collector.replicas) 1) -}}
{{- fail "the embedded store belongs to one collector: give collector.store.url a ClickHouse server, or set collector.replicas to 1" -}}
{{- end -}}
{{- if and $hosts (not .Values.keys.secret) -}}
{{- fail "collector without keys: anybody who reaches an Ingress could read and write. Make keys and set keys.secret (docs/kubernetes.md), or leave hosts.otlp and hosts.api empty" -}}
{{- end -}}
{{- range $way := list "ingress" "gateway" -}}
{{- $given := get $.Values $way -}}
{{- if and $given.enabled (not (values $given.hosts | compact)) -}}
{{- fail (printf "%s.enabled leads nowhere: set one of %s.hosts" $way $way) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.enabled needs the Gateway: set gateway.parentRefs" -}}
{{- end -}}
{{- $proxies := list -}}
{{- range .Values.proxies -}}{{- $proxies = append $proxies .name -}}{{- end -}}
{{- if ne (len $proxies) (len (uniq $proxies)) -}}
{{- fail "two of the proxies have one name" -}}
{{- end -}}
{{- with get (fromYaml .Values.slos) "Error" -}}
{{- fail (printf "slos is not YAML: %s" .) -}}
{{- end -}}
{{- range $file, $text := .Values.prometheusRule.files -}}
{{- if not (hasKey (fromYaml $text) "groups") -}}
{{- fail (printf "prometheusRule.files.%s is no file of rules: it has no groups" $file) -}}
{{- end -}}
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

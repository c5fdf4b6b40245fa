{{- /* Refuses values with which a part of Cleave would run nowhere, or a secret would be legible in the manifest. */ -}}
{{- define "cleave.check" -}}
{{- if not (or .Values.worker.collect .Values.collector.enabled) -}}
{{- fail "worker.collect is false and collector.enabled is false, so nothing collects load; enable collector" -}}
{{- end -}}
{{- if not (or .Values.worker.fleetMetrics .Values.metrics.enabled) -}}
{{- fail "worker.fleetMetrics is false and metrics.enabled is false, so nothing serves the metrics of the fleet; enable metrics" -}}
{{- end -}}
{{- with .Values.landing -}}
{{- $isPath := or (not (contains "://" .url)) (hasPrefix "file://" .url) -}}
{{- $isMounted := and .existingClaim (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (trimPrefix "file://" .url)) -}}
{{- if and $isPath (not $isMounted) -}}
{{- fail (printf "landing.url %s is in no volume; set landing.existingClaim and a path below landing.mountPath, or the URL of an object store" .url) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.settings -}}
{{- if regexMatch "(PASSWORD|SECRET(_ACCESS_KEY)?|TOKEN|(API|AIRFLOW)_PROXY|(DATABASE|OWNER|LOADER|EMBEDDED)_URL)$" $name -}}
{{- fail (printf "settings.%s is a secret, and settings are legible in the manifest; refer to a Secret in extraEnv" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cleave.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "cleave.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cleave.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "cleave.selectorLabels" . }}
{{- end -}}

{{- define "cleave.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cleave.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "cleave.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "cleave.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 50000
runAsGroup: 50000
fsGroup: 50000
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "cleave.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* A variable from a secret. Arguments: name of the variable, and the reference. */ -}}
{{- define "cleave.secretVariable" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
{{- end -}}

{{- /* Environment of every process but the migration. Argument: the root, and the reference of the database's URL. */ -}}
{{- define "cleave.env" -}}
{{- $values := .root.Values -}}
{{ include "cleave.secretVariable" (dict "name" "CLEAVE_DATABASE_URL" "secret" .database) }}
- name: CLEAVE_LOG_LEVEL
  value: {{ $values.logLevel | quote }}
- name: CLEAVE_LANDING_URL
  value: {{ $values.landing.url | quote }}
{{- with $values.pulsar.adminUrl }}
- name: CLEAVE_PULSAR_ADMIN_URL
  value: {{ . | quote }}
{{- end }}
{{- with $values.pulsar.serviceUrl }}
- name: CLEAVE_PULSAR_SERVICE_URL
  value: {{ . | quote }}
{{- end }}
{{- if $values.pulsar.tokenSecret.name }}
- name: CLEAVE_PULSAR_TOKEN_FILE
  value: /run/secrets/pulsar-token/{{ $values.pulsar.tokenSecret.key }}
{{- end }}
{{- if $values.pulsar.caSecret.name }}
- name: CLEAVE_PULSAR_CA_FILE
  value: /run/secrets/pulsar-ca/{{ $values.pulsar.caSecret.key }}
{{- end }}
{{- with $values.airflow.url }}
- name: CLEAVE_AIRFLOW_URL
  value: {{ . | quote }}
{{- end }}
{{- with $values.airflow.userSecret }}
{{- if .name }}
{{ include "cleave.secretVariable" (dict "name" "CLEAVE_AIRFLOW_USERNAME" "secret" (dict "name" .name "key" .usernameKey)) }}
{{ include "cleave.secretVariable" (dict "name" "CLEAVE_AIRFLOW_PASSWORD" "secret" (dict "name" .name "key" .passwordKey)) }}
{{- end }}
{{- end }}
{{- range $name, $value := $values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cleave.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.landing.existingClaim }}
- name: landing
  mountPath: {{ .Values.landing.mountPath }}
{{- end }}
{{- if .Values.pulsar.tokenSecret.name }}
- name: pulsar-token
  mountPath: /run/secrets/pulsar-token
  readOnly: true
{{- end }}
{{- if .Values.pulsar.caSecret.name }}
- name: pulsar-ca
  mountPath: /run/secrets/pulsar-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "cleave.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.landing.existingClaim }}
- name: landing
  persistentVolumeClaim:
    claimName: {{ .Values.landing.existingClaim }}
{{- end }}
{{- if .Values.pulsar.tokenSecret.name }}
- name: pulsar-token
  secret:
    secretName: {{ .Values.pulsar.tokenSecret.name }}
{{- end }}
{{- if .Values.pulsar.caSecret.name }}
- name: pulsar-ca
  secret:
    secretName: {{ .Values.pulsar.caSecret.name }}
{{- end }}
{{- end -}}

{{- define "cleave.probes" -}}
livenessProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 20
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
startupProbe:
  httpGet: {path: /live, port: metrics}
  periodSeconds: 2
  failureThreshold: 60
{{- end -}}

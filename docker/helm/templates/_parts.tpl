{{- define "sage.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "sage.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "sage.labels" -}}
{{ include "sage.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "sage.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ index $image .image }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "sage.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 2000
  runAsGroup: 0
  fsGroup: 0
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sage.confined" -}}
image: {{ include "sage.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "sage.container" -}}
{{ include "sage.confined" . }}
envFrom:
  - configMapRef: {name: {{ include "sage.name" .root }}{{ .map | default "" }}}
  - secretRef: {name: {{ required "secret: name a Secret with DATABASE_URL, BROKER_URL and SAGE_SECRET_KEY" .root.Values.secret }}}
{{- end }}

{{- define "sage.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /data}
- {name: adapters, mountPath: /data/adapters}
{{- with .root.Values.models.claim }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "sage.volumes" -}}
- name: tmp
  emptyDir: {}
- name: data
  emptyDir: {}
{{ include "sage.adapters" . }}
{{- with .root.Values.models.claim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "sage.adapters" -}}
- name: adapters
  persistentVolumeClaim:
    claimName: {{ .root.Values.adapters.claim | default (printf "%s-adapters" (include "sage.name" .root)) }}
{{- end }}

{{- define "sage.hosted" -}}
{{- if and (index .Values.settings "SAGE_MODEL_URL") (not (index .Values.settings "ENGINE_URLS")) }}true{{ end -}}
{{- end }}

{{- define "sage.annotations" -}}
settings-hash: {{ .root.Values.settings | toJson | sha256sum }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sage.settings" -}}
{{- $hosted := include "sage.hosted" . }}
{{- if not (or $hosted (index .Values.settings "ENGINE_URLS")) }}{{ fail "settings.ENGINE_URLS: name the model servers, or the service of their pods; or SAGE_MODEL_URL, a hosted model's" }}{{ end -}}
{{- if and (index .Values.settings "SAGE_MODEL_URL") (not (index .Values.settings "SAGE_MODEL")) }}{{ fail "settings.SAGE_MODEL: name the model at SAGE_MODEL_URL" }}{{ end -}}
{{- range list "DATABASE_URL" "BROKER_URL" "SAGE_SECRET_KEY" "SAGE_MODEL_KEY" }}
{{- if hasKey $.Values.settings . }}{{ fail (printf "settings.%s: put it in the Secret, not here" .) }}{{ end -}}
{{- end }}
{{- $fixed := dict "SAGE_DATA_DIR" "/data" "SAGE_HOST" "0.0.0.0" "SAGE_PORT" "8000" "SAGE_METRICS_PORT" "9100" }}
{{- range $name, $_ := $fixed }}
{{- if hasKey $.Values.settings $name }}{{ fail (printf "settings.%s: the chart sets it" $name) }}{{ end -}}
{{- end }}
{{- if $hosted }}{{ $_ := set $fixed "ENGINE_URLS" (printf "http://%s-model-server:8000" (include "sage.name" .)) }}{{ end -}}
{{- range $name, $value := merge $fixed .Values.settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

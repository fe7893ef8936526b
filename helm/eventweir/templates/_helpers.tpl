{{- define "eventweir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "eventweir.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "eventweir.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "eventweir.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "eventweir.clusterName" -}}
{{- /* Cluster-wide names carry the namespace when it says more than the name does: two releases may share one name. */}}
{{- if eq .Release.Namespace (include "eventweir.fullname" .) }}
{{- include "eventweir.fullname" . }}
{{- else }}
{{- printf "%s-%s" (include "eventweir.fullname" .) .Release.Namespace }}
{{- end }}
{{- end }}

{{- define "eventweir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "eventweir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eventweir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "eventweir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "eventweir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "eventweir.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

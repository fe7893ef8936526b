{{- /* The webhook of admission. Takes the root, and the authority in base64 where it is known. */}}
{{- define "eventweir.webhook" -}}
{{- $root := .root }}
{{- with $root.Values.admission -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: {{ include "eventweir.clusterName" $root }}
  labels:
    {{- include "eventweir.labels" $root | nindent 4 }}
  {{- if eq $root.Values.tls.mode "certManager" }}
  annotations:
    cert-manager.io/inject-ca-from: {{ $root.Release.Namespace }}/{{ include "eventweir.fullname" $root }}
  {{- end }}
webhooks:
  - name: events.eventweir.dev
    admissionReviewVersions: [v1]
    clientConfig:
      service:
        name: {{ include "eventweir.fullname" $root }}
        namespace: {{ $root.Release.Namespace }}
        path: /eventweir/v1/admit
        port: {{ $root.Values.service.port }}
      {{- with $.ca }}
      caBundle: {{ . }}
      {{- end }}
    rules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [events]
        scope: Namespaced
    # The other group's events arrive converted.
    matchPolicy: Equivalent
    # Without eventweir events are stored as before.
    failurePolicy: Ignore
    timeoutSeconds: {{ .timeoutSeconds }}
    sideEffects: NoneOnDryRun
    {{- with .namespaceSelector }}
    namespaceSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    matchConditions:
      - name: not-eventweir
        expression: request.userInfo.username != "system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "eventweir.serviceAccountName" $root }}"
      {{- with .matchConditions }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}
{{- end }}

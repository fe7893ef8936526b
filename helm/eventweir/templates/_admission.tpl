{{- /* The admission webhook. Takes the root, and the authority in base64 if it is known. */}}
{{- define "eventweir.webhook" -}}
{{- $root := .root }}
{{- with $root.Values.admission -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
{{- $injected := dict "cert-manager.io/inject-ca-from" (printf "%s/%s" $root.Release.Namespace (include "eventweir.fullname" $root)) }}
{{ include "eventweir.metadata" (dict "root" $root "name" (include "eventweir.clusterName" $root) "namespace" "" "annotations" (ternary $injected nil (eq $root.Values.tls.mode "certManager"))) }}
webhooks:
  - name: events.eventweir.dev
    admissionReviewVersions: [v1]
    clientConfig:
      service:
        name: {{ include "eventweir.fullname" $root | toYaml }}
        namespace: {{ $root.Release.Namespace | toYaml }}
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
    # Events of events.k8s.io arrive converted to core/v1.
    matchPolicy: Equivalent
    # If eventweir is down, events are stored as before.
    failurePolicy: Ignore
    timeoutSeconds: {{ .timeoutSeconds }}
    sideEffects: NoneOnDryRun
    {{- /* eventweir counts the repeats that it refuses, so it must not be asked about events that it may not write. */}}
    {{- $granted := dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" $root.Values.rbac.namespaces)) }}
    {{- with default (ternary dict $granted (empty $root.Values.rbac.namespaces)) .namespaceSelector }}
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

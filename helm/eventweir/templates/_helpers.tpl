{{- define "eventweir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "eventweir.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name (include "eventweir.name" .) }}
{{- if .Values.fullnameOverride }}
{{- $name = .Values.fullnameOverride }}
{{- else if contains (include "eventweir.name" .) .Release.Name }}
{{- $name = .Release.Name }}
{{- end }}
{{- /* The name of a release may have dots, the name of a Service may not. */}}
{{- $name | replace "." "-" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "eventweir.clusterName" -}}
{{- /* Names of cluster-wide objects include the namespace if it differs from the name, because two releases may share a name. Neither has a dot. */}}
{{- if eq .Release.Namespace (include "eventweir.fullname" .) }}
{{- include "eventweir.fullname" . }}
{{- else }}
{{- printf "%s.%s" (include "eventweir.fullname" .) .Release.Namespace }}
{{- end }}
{{- end }}

{{- define "eventweir.adminName" -}}
{{- printf "%s-admin" (include "eventweir.fullname" . | trunc 57 | trimSuffix "-") }}
{{- end }}

{{- define "eventweir.headlessName" -}}
{{- printf "%s-headless" (include "eventweir.fullname" . | trunc 54 | trimSuffix "-") }}
{{- end }}

{{- define "eventweir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "eventweir.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{- /* The labels that no value may replace. */}}
{{- define "eventweir.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "eventweir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* All labels of an object. Takes a dict: the root, and the labels of this object alone. */}}
{{- define "eventweir.labels" -}}
{{- merge (include "eventweir.ownLabels" .root | fromYaml) (default dict .labels) (default dict .root.Values.commonLabels) | toYaml }}
{{- end }}

{{- /* Metadata of an object. Takes a dict: the root, and what differs from the usual name, namespace, labels and annotations. */}}
{{- define "eventweir.metadata" -}}
metadata:
  name: {{ default (include "eventweir.fullname" .root) .name | toYaml }}
  {{- with dig "namespace" .root.Release.Namespace . }}
  namespace: {{ toYaml . }}
  {{- end }}
  labels:
    {{- include "eventweir.labels" . | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "eventweir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "eventweir.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "eventweir.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{- define "eventweir.tlsSecret" -}}
{{- default (printf "%s-tls" (include "eventweir.fullname" . | trunc 59 | trimSuffix "-")) .Values.tls.secretName }}
{{- end }}

{{- /* Whether the listener has a certificate: of the chart, or of `config`. */}}
{{- define "eventweir.hasTLS" -}}
{{- $tls := dig "tls" dict (include "eventweir.config" . | fromYaml) }}
{{- if or (dig "certFile" "" $tls) (dig "selfSigned" "dir" "" $tls) }}true{{ end }}
{{- end }}

{{- define "eventweir.url" -}}
{{ include "eventweir.portName" . }}://{{ include "eventweir.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{- /* Names and addresses of the certificate, as JSON. */}}
{{- define "eventweir.hosts" -}}
{{- $name := include "eventweir.fullname" . }}
{{- $own := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) "localhost" "127.0.0.1" "::1" }}
{{- if eq .Values.kind "StatefulSet" }}
{{- /* Each replica has a name of its own. */}}
{{- $replicas := printf "*.%s.%s.svc" (include "eventweir.headlessName" .) .Release.Namespace }}
{{- $own = concat $own (list $replicas (printf "%s.cluster.local" $replicas)) }}
{{- end }}
{{- concat $own (default list .Values.tls.hosts) | uniq | toJson }}
{{- end }}

{{- /* The hosts that are IP addresses, or those that are names. */}}
{{- define "eventweir.hostIPs" -}}
{{- $ips := list }}
{{- range include "eventweir.hosts" . | fromJsonArray }}
{{- if or (contains ":" .) (regexMatch "^[0-9]+(\\.[0-9]+){3}$" .) }}{{ $ips = append $ips . }}{{ end }}
{{- end }}
{{- toJson $ips }}
{{- end }}

{{- define "eventweir.hostNames" -}}
{{- $names := list }}
{{- range include "eventweir.hosts" . | fromJsonArray }}
{{- if not (or (contains ":" .) (regexMatch "^[0-9]+(\\.[0-9]+){3}$" .)) }}{{ $names = append $names . }}{{ end }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{- define "eventweir.hasCallers" -}}
{{- $config := include "eventweir.config" . | fromYaml }}
{{- if or (dig "auth" "clientCAFile" "" $config) (dig "auth" "tokenReview" "enabled" false $config) }}true{{ end }}
{{- end }}

{{- /* Whether a rule or the API server decides what callers may do. */}}
{{- define "eventweir.authorizes" -}}
{{- $auth := dig "auth" dict (include "eventweir.config" . | fromYaml) }}
{{- if or (dig "subjectAccessReview" "enabled" false $auth) (dig "policy" list $auth) }}true{{ end }}
{{- end }}

{{- /* Whether callers have to authenticate, or may do only what a rule or the API server allows. */}}
{{- define "eventweir.keepsOut" -}}
{{- $auth := dig "auth" dict (include "eventweir.config" . | fromYaml) }}
{{- if and (include "eventweir.hasCallers" .) (or (include "eventweir.authorizes" .) (not (dig "anonymous" false $auth))) }}true{{ end }}
{{- end }}

{{- /* Whether eventweir asks the API server about callers. */}}
{{- define "eventweir.asksAboutCallers" -}}
{{- $config := include "eventweir.config" . | fromYaml }}
{{- if or (dig "auth" "tokenReview" "enabled" false $config) (dig "auth" "subjectAccessReview" "enabled" false $config) }}true{{ end }}
{{- end }}

{{- define "eventweir.several" -}}
{{- if or (and (ne .Values.kind "DaemonSet") (gt (int .Values.replicaCount) 1)) .Values.autoscaling.enabled (eq .Values.kind "DaemonSet") }}true{{ end }}
{{- end }}

{{- /* The type of the spool's volume, if it outlives the pod, so that another pod may use it. */}}
{{- define "eventweir.lastingSpool" -}}
{{- omit (default dict .Values.spool.volume) "emptyDir" "ephemeral" | keys | join "" }}
{{- end }}

{{- /* A quantity of memory in Mi, rounded down; empty if it cannot be parsed. */}}
{{- define "eventweir.mebibytes" -}}
{{- /* A number in a file of values is a float, whose text would have an exponent. */}}
{{- $text := ternary (printf "%.0f" .) (toString .) (kindIs "float64" .) }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text }}
{{- $unit := trimPrefix $number $text }}
{{- $per := dict "" 1 "k" 1000 "Ki" 1024 "M" 1000000 "Mi" 1048576 "G" 1000000000 "Gi" 1073741824 "T" 1000000000000 "Ti" 1099511627776 }}
{{- if and $number (hasKey $per $unit) }}{{ divf (mulf (float64 $number) (float64 (get $per $unit))) 1048576 | floor | int64 }}{{ end }}
{{- end }}

{{- /* A quantity of CPU in thousandths of a core; empty if it cannot be parsed. */}}
{{- define "eventweir.millicores" -}}
{{- $text := toString . }}
{{- if regexMatch "^[0-9]+([.][0-9]+)?m?$" $text }}
{{- mulf (float64 (trimSuffix "m" $text)) (ternary 1 1000 (hasSuffix "m" $text)) | floor | int64 }}
{{- end }}
{{- end }}

{{- /* A duration such as 1m30s in seconds, rounded up. */}}
{{- define "eventweir.seconds" -}}
{{- $millis := 0.0 }}
{{- $per := dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1 "us" 0.001 "ns" 0.000001 }}
{{- range regexFindAll "[0-9.]+(h|ms|m|us|s|ns)" (toString .) -1 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $millis = addf $millis (mulf (float64 $number) (float64 (get $per (trimPrefix $number .)))) }}
{{- end }}
{{- divf $millis 1000 | ceil | int }}
{{- end }}

{{- define "eventweir.drainSeconds" -}}
{{- include "eventweir.seconds" (dig "shutdown" "drainTimeout" "20s" (include "eventweir.given" . | fromYaml)) }}
{{- end }}

{{- /* The end of a stop: connections close in 5 s. Then a spool has its last commit (4 s) and closes its file (4 s). */}}
{{- define "eventweir.closeSeconds" -}}
{{- ternary 13 5 (not (empty (or .Values.spool.volume .Values.spool.claim))) }}
{{- end }}

{{- /* The configuration file: values derived from others, overridden by `config`. */}}
{{- define "eventweir.config" -}}
{{- /* Nodes take some seconds to send no new connections to a pod that ends. */}}
{{- $derived := dict "upstream" (dict "kind" "apiserver") "shutdown" (dict "grace" "5s") }}
{{- if include "eventweir.several" . }}
{{- $derived = mergeOverwrite $derived (dict "correlation" (dict "naming" "deterministic")) }}
{{- end }}
{{- if .Values.rbac.namespaces }}
{{- /* A LIST over all namespaces would be refused. */}}
{{- $derived = mergeOverwrite $derived (dict "upstream" (dict "history" "off")) }}
{{- else if eq .Values.kind "DaemonSet" }}
{{- /* A watch on every node would load the API server. Without the LIST, a client's total would count again after a restart. */}}
{{- $derived = mergeOverwrite $derived (dict "upstream" (dict "history" "list")) }}
{{- end }}
{{- if ne .Values.tls.mode "none" }}
{{- $derived = mergeOverwrite $derived (dict "tls" (dict "certFile" "/etc/eventweir-tls/tls.crt" "keyFile" "/etc/eventweir-tls/tls.key")) }}
{{- end }}
{{- if or .Values.spool.volume .Values.spool.claim }}
{{- /* Also a flag, for a ConfigMap of the user's. Here for who checks the configuration alone. */}}
{{- $derived = mergeOverwrite $derived (dict "spool" (dict "dir" "/var/lib/eventweir/spool")) }}
{{- end }}
{{- if .Values.auth.enabled }}
{{- $review := dict "enabled" true }}
{{- with .Values.auth.audiences }}{{ $_ := set $review "audiences" . }}{{ end }}
{{- $derived = mergeOverwrite $derived (dict "auth" (dict "tokenReview" $review "subjectAccessReview" (dict "enabled" true))) }}
{{- end }}
{{- if .Values.admission.enabled }}
{{- $self := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "eventweir.serviceAccountName" .) }}
{{- $derived = mergeOverwrite $derived (dict "admission" (dict "enabled" true "exemptUsers" (list $self) "callers" .Values.admission.callers)) }}
{{- end }}
{{- toYaml (mergeOverwrite $derived (include "eventweir.given" . | fromYaml)) }}
{{- end }}

{{- /* `upstream.history` of the configuration. YAML reads `off` without quotes as false. */}}
{{- define "eventweir.history" -}}
{{- $history := dig "upstream" "history" "watch" (include "eventweir.config" . | fromYaml) | toString }}
{{- ternary "off" $history (eq $history "false") }}
{{- end }}

{{- /* The value `config`, without sections that have no value, and with `enabled` for one that is `on` or `off` alone. */}}
{{- define "eventweir.given" -}}
{{- $config := deepCopy (default dict .Values.config) }}
{{- range $key, $section := $config }}
{{- if kindIs "map" $section }}
{{- range $inner, $value := $section }}{{ if kindIs "invalid" $value }}{{ $_ := unset $section $inner }}{{ end }}{{ end }}
{{- else if kindIs "invalid" $section }}
{{- $_ := unset $config $key }}
{{- end }}
{{- end }}
{{- range $key := list "passthrough" "admission" }}
{{- if and (hasKey $config $key) (not (kindIs "map" (get $config $key))) }}
{{- $_ := set $config $key (dict "enabled" (get $config $key)) }}
{{- end }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* The container's resources. A pod whose request is above its limit would be refused. */}}
{{- define "eventweir.resources" -}}
{{- $resources := deepCopy (default dict .Values.resources) }}
{{- range $resource, $measure := dict "cpu" "eventweir.millicores" "memory" "eventweir.mebibytes" }}
{{- $limit := dig "limits" $resource "" $resources }}
{{- $most := include $measure $limit }}
{{- $requested := include $measure (dig "requests" $resource "" $resources) }}
{{- if and $most $requested (gt (int64 $requested) (int64 $most)) }}
{{- $_ := set $resources.requests $resource $limit }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "eventweir.networkPeers" -}}
{{- if kindIs "slice" .Values.networkPolicy.from }}
{{- toJson .Values.networkPolicy.from }}
{{- else if include "eventweir.hasCallers" . }}
{{- list (dict "namespaceSelector" dict) | toJson }}
{{- else }}
{{- list (dict "podSelector" dict) | toJson }}
{{- end }}
{{- end }}

{{- /* Refuses configurations that cannot work, with a message. */}}
{{- define "eventweir.check" -}}
{{- $config := include "eventweir.given" . | fromYaml }}
{{- if and (hasKey .Values "enabled") (not .Values.enabled) }}
{{- fail "enabled is false, and no chart has it as a condition: use helm uninstall" }}
{{- end }}
{{- if .Values.existingConfigMap }}
{{- range concat (omit $config "auth" "shutdown" "upstream" | keys) (omit (default dict $config.shutdown) "drainTimeout" | keys) (omit (default dict $config.upstream) "history" | keys) | sortAlpha }}
{{- fail (printf "config has %s, and existingConfigMap replaces config: write it into that ConfigMap" .) }}
{{- end }}
{{- else }}
{{- range $key, $value := dict "resources.limits.memory" (dig "limits" "memory" "" (default dict .Values.resources)) "config.memory" (dig "memory" "" $config) }}
{{- with include "eventweir.mebibytes" $value }}
{{- if lt (int64 .) 96 }}
{{- fail (printf "%s is below 96Mi: too little for eventweir and its outbox" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- $given := include "eventweir.mebibytes" (dig "memory" "" $config) }}
{{- $limit := include "eventweir.mebibytes" (dig "limits" "memory" "" (default dict .Values.resources)) }}
{{- if and $given $limit (gt (int64 $given) (int64 $limit)) }}
{{- fail "config.memory is above resources.limits.memory: the kernel would end it before it refuses events with 429" }}
{{- end }}
{{- end }}
{{- if and (not .Values.existingConfigMap) (include "eventweir.hasCallers" .) (not (include "eventweir.keepsOut" .)) (not .Values.insecureListen) }}
{{- fail "config.auth.anonymous without config.auth.subjectAccessReview and config.auth.policy: every client that reaches the port could write events. Enable one of them, or insecureListen" }}
{{- end }}
{{- if and (not .Values.existingConfigMap) (not (include "eventweir.hasCallers" .)) (not .Values.insecureListen) }}
{{- fail "no caller is authenticated (by auth.enabled or config.auth) and insecureListen is false: eventweir would not listen on an address that other pods reach. Enable one of them, or run it as a sidecar (deploy/)" }}
{{- end }}
{{- if and (not .Values.existingConfigMap) (include "eventweir.hasCallers" .) (not (include "eventweir.hasTLS" .)) }}
{{- fail "auth.enabled needs TLS, and so does config.auth: without it the network can read the callers' tokens. Choose a tls.mode, or auth.enabled: false with insecureListen: true" }}
{{- end }}
{{- if and (ne .Values.tls.mode "none") (dig "tls" "selfSigned" "dir" "" $config) }}
{{- fail (printf "config.tls.selfSigned.dir beside tls.mode: %s, whose certificate the chart configures: set tls.mode to none" .Values.tls.mode) }}
{{- end }}
{{- if and (dig "tls" "selfSigned" "dir" "" $config) (not .Values.extraVolumeMounts) }}
{{- fail "config.tls.selfSigned.dir without a volume: the root file system is read-only. Mount one with extraVolumes and extraVolumeMounts" }}
{{- end }}
{{- if regexMatch "^(127[.]|\\[[0:]*:0*1\\])" .Values.listenAddress }}
{{- fail (printf "listenAddress is %s, where neither callers nor the kubelet's probes reach the pod" .Values.listenAddress) }}
{{- end }}
{{- if and (eq .Values.tls.mode "secret") (not .Values.tls.secretName) }}
{{- fail "tls.mode is secret, and tls.secretName is empty" }}
{{- end }}
{{- if and (eq .Values.tls.mode "certManager") (not .Values.tls.certManager.issuerRef.name) }}
{{- fail "tls.mode is certManager, and tls.certManager.issuerRef.name is empty" }}
{{- end }}
{{- if and .Values.admission.enabled (eq .Values.tls.mode "none") }}
{{- fail "admission.enabled needs TLS: the API server calls webhooks over TLS only" }}
{{- end }}
{{- if and .Values.admission.enabled (eq .Values.tls.mode "secret") (not .Values.admission.caBundle) }}
{{- fail "admission.enabled with tls.mode: secret, and admission.caBundle is empty: the API server would not trust the certificate" }}
{{- end }}
{{- $admits := has (dig "admission" "enabled" .Values.admission.enabled $config) (list "on" true) }}
{{- if ne $admits .Values.admission.enabled }}
{{- fail "config.admission.enabled differs from admission.enabled: set the latter only, which also registers the webhook" }}
{{- end }}
{{- if and .Values.admission.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "admission.enabled needs Kubernetes 1.30, and this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.flowSchema.create (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "flowSchema.create needs Kubernetes 1.29, and this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if has "system:masters" (dig "groups" list (default dict .Values.rbac.impersonate)) }}
{{- fail "rbac.impersonate.groups has system:masters, whose members may do everything" }}
{{- end }}
{{- if not (include "eventweir.hasCallers" .) }}
{{- range $key, $given := dict "callerAnnotation" (dig "auth" "callerAnnotation" "" $config) "policy" (dig "auth" "policy" list $config) "sourceBinding" (dig "auth" "sourceBinding" "enabled" false $config) "subjectAccessReview" (dig "auth" "subjectAccessReview" "enabled" false (include "eventweir.config" . | fromYaml)) }}
{{- if $given }}
{{- fail (printf "config.auth.%s needs authenticated callers: auth.enabled or config.auth" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- $reviews := dig "auth" "subjectAccessReview" dict $config }}
{{- range $key, $time := dict "outageTTL" (dig "auth" "outageTTL" "" $config) "tokenReview.cacheTTL" (dig "auth" "tokenReview" "cacheTTL" "" $config) "subjectAccessReview.allowTTL" (get $reviews "allowTTL") "subjectAccessReview.denyTTL" (get $reviews "denyTTL") }}
{{- if gt (int (include "eventweir.seconds" $time)) 3600 }}
{{- fail (printf "config.auth.%s is above 1h" $key) }}
{{- end }}
{{- end }}
{{- range list "listen" "adminListen" "insecureListen" }}
{{- if hasKey $config . }}
{{- fail (printf "config.%s: the chart sets it by a flag; see listenAddress, service.port and insecureListen" .) }}
{{- end }}
{{- end }}
{{- if ne (dig "upstream" "kind" "apiserver" $config) "apiserver" }}
{{- fail "config.upstream.kind: the chart sets it to apiserver by a flag" }}
{{- end }}
{{- $spool := include "eventweir.lastingSpool" . }}
{{- /* A driver of csi may give each pod its own volume, and each node has its own hostPath. */}}
{{- $isOwn := or (eq $spool "csi") (and (eq $spool "hostPath") (eq .Values.kind "DaemonSet")) }}
{{- if and $spool (not $isOwn) (include "eventweir.several" .) }}
{{- fail (printf "spool.volume.%s with several pods: they would share one spool, and all but one would run without it. Use kind: StatefulSet with spool.claim" $spool) }}
{{- end }}
{{- if and (eq .Values.kind "StatefulSet") (gt (len (include "eventweir.fullname" .)) 52) }}
{{- fail (printf "%s is too long for the pods of a StatefulSet: set a fullnameOverride of at most 52 characters" (include "eventweir.fullname" .)) }}
{{- end }}
{{- if and .Values.spool.claim (ne .Values.kind "StatefulSet") }}
{{- fail "spool.claim needs kind: StatefulSet" }}
{{- end }}
{{- if and .Values.spool.claim .Values.spool.volume }}
{{- fail "spool.claim and spool.volume: choose one" }}
{{- end }}
{{- if and (has (dig "passthrough" "enabled" "off" $config) (list "on" true)) (not (include "eventweir.keepsOut" .)) (not (dig "passthrough" "insecure" false $config)) }}
{{- fail "config.passthrough needs authenticated callers: auth.enabled or config.auth. config.passthrough.insecure lets every client that reaches the port write events" }}
{{- end }}
{{- if and (dig "passthrough" "impersonate" false $config) (not (dig "auth" "clientCAFile" "" $config)) }}
{{- fail "config.passthrough.impersonate needs config.auth.clientCAFile: it impersonates the owners of client certificates" }}
{{- end }}
{{- if and (dig "passthrough" "impersonate" false $config) .Values.rbac.create (not (dig "users" list (default dict .Values.rbac.impersonate))) }}
{{- fail "config.passthrough.impersonate, and rbac.impersonate.users is empty: the API server would refuse to impersonate anyone" }}
{{- end }}
{{- if and (eq (dig "ingest" "ack" "" $config) "durable") (not (or .Values.spool.volume .Values.spool.claim)) }}
{{- fail "config.ingest.ack: durable needs spool.volume or spool.claim" }}
{{- end }}
{{- if and (eq (dig "medium" "" (default dict (get (default dict .Values.spool.volume) "emptyDir"))) "Memory") (dig "limits" "memory" "" (default dict .Values.resources)) (eq (dig "memory" "container" $config | toString) "container") (not .Values.existingConfigMap) }}
{{- fail "spool.volume.emptyDir.medium is Memory: the spool's file counts against resources.limits.memory, all of which eventweir uses. Omit the medium, or set config.memory to a part of the limit" }}
{{- end }}
{{- if dig "spool" "dir" "" $config }}
{{- fail "config.spool.dir: the chart sets it by a flag; use spool.volume, which takes any volume, or spool.claim" }}
{{- end }}
{{- $close := include "eventweir.closeSeconds" . }}
{{- if and .Values.terminationGracePeriodSeconds (lt (int .Values.terminationGracePeriodSeconds) (add (include "eventweir.drainSeconds" .) $close | int)) }}
{{- fail (printf "terminationGracePeriodSeconds is %d, and shutdown.drainTimeout with %s s to close is longer: the kubelet would kill it before it has stopped" (int .Values.terminationGracePeriodSeconds) $close) }}
{{- end }}
{{- if and .Values.autoscaling.enabled (eq .Values.kind "DaemonSet") }}
{{- fail "autoscaling.enabled with kind: DaemonSet, which has one pod per node" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not (dig "requests" "cpu" (dig "limits" "cpu" "" (default dict .Values.resources)) (default dict .Values.resources))) }}
{{- fail "autoscaling.enabled without resources.requests.cpu, of which the usage is a percentage" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- if and .Values.serviceMonitor.create .Values.podMonitor.create }}
{{- fail "serviceMonitor.create and podMonitor.create: every series would be scraped twice; choose one" }}
{{- end }}
{{- if and .Values.rbac.namespaces (has (dig "upstream" "history" "off" $config) (list "watch" "list")) }}
{{- fail "config.upstream.history lists the events of all namespaces, and rbac.namespaces grants only some; omit it, or set it to off" }}
{{- end }}
{{- $labels := include "eventweir.ownLabels" . | fromYaml }}
{{- range $key, $_ := merge dict (default dict .Values.podLabels) (default dict .Values.commonLabels) }}
{{- if hasKey $labels $key }}
{{- fail (printf "podLabels or commonLabels: %s is a label of the chart" $key) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The scraped endpoint. Takes a dict: the root, and the values of the ServiceMonitor or PodMonitor. */}}
{{- define "eventweir.endpoint" -}}
{{- $scheme := ternary (dict "scheme" "https") dict (eq .root.Values.probes.scheme "HTTPS") }}
{{- mergeOverwrite (dict "port" "admin" "path" "/metrics" "interval" .monitor.interval "honorLabels" true) $scheme (default dict .monitor.endpoint) | toYaml }}
{{- end }}

{{- define "eventweir.portName" -}}
{{- if include "eventweir.hasTLS" . }}https{{ else }}http{{ end }}
{{- end }}

{{- /* A value that is set becomes the flag of the same name; one that is not leaves the program's own default. */ -}}
{{- define "agent-sandbox.controller.args" -}}
- --leader-elect={{ .Values.controller.leaderElect }}
{{- if .Values.controller.extensions }}
- --extensions
{{- end }}
{{- with include "agent-sandbox.watchNamespace" . }}
- --watch-namespace={{ . }}
{{- end }}
- --enable-webhook={{ .Values.webhook.enabled }}
- --webhook-service-name={{ .Values.webhookServiceName }}
- --webhook-namespace={{ include "agent-sandbox.namespace" . }}
- --webhook-port={{ .Values.webhook.port }}
{{- if not .Values.webhook.manageCertificates }}
- --manage-webhook-certs=false
- --webhook-cert-dir=/etc/webhook-certificate
{{- end }}
- --zap-log-level={{ .Values.controller.logLevel }}
{{- range $key := list "clusterDomain" "leaderElectionNamespace" "enableTracing" "enablePprof" "enablePprofDebug" "pprofBlockProfileRate" "pprofMutexProfileFraction" "kubeApiQps" "kubeApiBurst" "apiConnections" "separateWatchConnection" "cacheLabelSelectors" "sandboxConcurrentWorkers" "sandboxWriteBehindWindow" "sandboxClaimConcurrentWorkers" "sandboxWarmPoolConcurrentWorkers" "sandboxTemplateConcurrentWorkers" "sandboxWarmPoolMaxBatchSize" "sandboxWarmPoolReplenishDelay" "sandboxWarmPoolMaxRefillRate" "sandboxWarmPoolReadinessGracePeriod" "sandboxWarmPoolUnschedulableRecheckInterval" "enableWarmPoolEviction" "disableClaimEvents" "disableClaimObservabilityAnnotations" }}
{{- if hasKey $.Values.controller $key }}
{{- $value := get $.Values.controller $key }}
{{- if not (kindIs "invalid" $value) }}
{{- if kindIs "float64" $value }}{{- if eq (floor $value) $value }}{{- $value = int64 $value }}{{- end }}{{- end }}
- --{{ kebabcase $key }}={{ $value }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.controller.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

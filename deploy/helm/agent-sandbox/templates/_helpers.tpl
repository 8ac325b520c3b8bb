{{- define "agent-sandbox.namespace" -}}
{{- .Values.namespace.name -}}
{{- end }}

{{- define "agent-sandbox.watchNamespace" -}}
{{- if eq .Values.rbac.scope "namespace" -}}
{{- default (include "agent-sandbox.namespace" .) .Values.controller.watchNamespace -}}
{{- else -}}
{{- .Values.controller.watchNamespace -}}
{{- end -}}
{{- end }}

{{- define "agent-sandbox.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: agent-sandbox
{{- end }}

{{- /* Upstream's selector, which cannot change: `helm upgrade` takes over a release of upstream's chart in place. */ -}}
{{- define "agent-sandbox.controller.selector" -}}
app.kubernetes.io/name: agent-sandbox
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "agent-sandbox.router.selector" -}}
app.kubernetes.io/name: sandbox-router
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "agent-sandbox.controller.labels" -}}
{{ include "agent-sandbox.controller.selector" . }}
{{ include "agent-sandbox.labels" . }}
{{- end }}

{{- define "agent-sandbox.router.labels" -}}
{{ include "agent-sandbox.router.selector" . }}
{{ include "agent-sandbox.labels" . }}
{{- end }}

{{- /* Cluster-wide names carry the namespace when several releases may live side by side. */ -}}
{{- define "agent-sandbox.clusterName" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- if eq $root.Values.rbac.scope "namespace" -}}{{ printf "%s-%s" $name (include "agent-sandbox.namespace" $root) }}{{- else -}}{{ $name }}{{- end -}}
{{- end }}

{{- define "agent-sandbox.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end }}

{{- define "agent-sandbox.router.image" -}}
{{- $repository := default .Values.image.repository .Values.router.image.repository -}}
{{- $tag := default (default .Chart.AppVersion .Values.image.tag) .Values.router.image.tag -}}
{{- printf "%s:%s" $repository $tag -}}
{{- end }}

{{- /* Own Pod labels never override the selector. */ -}}
{{- define "agent-sandbox.podLabels" -}}
{{- $own := index . 0 -}}{{- $extra := index . 1 -}}
{{- toYaml (merge (fromYaml $own) $extra) -}}
{{- end }}

{{- define "agent-sandbox.check" -}}
{{- if and .Values.router.enabled (not .Values.router.auth.mode) -}}
{{- fail "router.auth.mode must be said: tokenreview, scoped-token, static-token, a comma list of them, or allow-all (which lets everybody who reaches the Service into every sandbox)" -}}
{{- end -}}
{{- if and .Values.router.enabled (contains "scoped-token" .Values.router.auth.mode) (not .Values.router.auth.scopedTokenSecret) -}}
{{- fail "router.auth.mode has scoped-token: router.auth.scopedTokenSecret must name a Secret" -}}
{{- end -}}
{{- if and .Values.router.enabled (contains "static-token" .Values.router.auth.mode) (not .Values.router.auth.staticTokenSecret) -}}
{{- fail "router.auth.mode has static-token: router.auth.staticTokenSecret must name a Secret" -}}
{{- end -}}
{{- if and .Values.router.tls.only (not .Values.router.tls.secret) -}}
{{- fail "router.tls.only needs router.tls.secret" -}}
{{- end -}}
{{- if and (ne .Values.router.tls.clientCertificates "off") (not (and .Values.router.tls.secret .Values.router.tls.clientCASecret)) -}}
{{- fail "router.tls.clientCertificates needs router.tls.secret and router.tls.clientCASecret" -}}
{{- end -}}
{{- if and .Values.webhook.enabled (not .Values.webhook.manageCertificates) (not .Values.webhook.certificateSecret) -}}
{{- fail "webhook.manageCertificates=false needs webhook.certificateSecret" -}}
{{- end -}}
{{- if and .Values.controller.watchNamespace (ne .Values.rbac.scope "namespace") .Values.rbac.create -}}
{{- fail "controller.watchNamespace needs rbac.scope=namespace" -}}
{{- end -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.controller.leaderElect) -}}
{{- fail "replicaCount above 1 needs controller.leaderElect=true: two controllers would work against each other" -}}
{{- end -}}
{{- end }}

{{- /* Not empty if the router serves links to ports. It is an error if the API is missing that restricts what it may write. */ -}}
{{- define "agent-sandbox.router.links" -}}
{{- $links := .Values.router.links }}
{{- if and .Values.router.enabled $links.secret }}
{{- if not $links.domain }}{{ fail "router.links.secret needs router.links.domain: the domain below which browsers reach sandboxes" }}{{ end }}
{{- if not (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}{{ fail "router.links needs Kubernetes 1.30 or newer" }}{{ end }}
{{- ""}}true
{{- end }}
{{- end }}

{{- /* Not empty if the router wakes sandboxes: it is wanted, and the API that restricts what it may write exists. */ -}}
{{- define "agent-sandbox.router.wakes" -}}
{{- if and .Values.router.enabled .Values.router.wakeSandboxes (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

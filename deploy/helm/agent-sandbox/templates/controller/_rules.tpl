{{- /* Exactly what the controller does. A finalizers right is what lets it set blockOwnerDeletion on children. */ -}}
{{- define "agent-sandbox.controller.rules" -}}
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes/status]
  verbs: [patch]
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "agent-sandbox.controller.extensionRules" -}}
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxtemplates]
  verbs: [get, list, watch, patch]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxwarmpools]
  verbs: [get, list, watch]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims/status, sandboxwarmpools/status]
  verbs: [patch]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims/finalizers, sandboxtemplates/finalizers, sandboxwarmpools/finalizers]
  verbs: [update]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{- define "agent-sandbox.controller.crdRules" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
  - sandboxes.agents.x-k8s.io
  - sandboxclaims.extensions.agents.x-k8s.io
  - sandboxtemplates.extensions.agents.x-k8s.io
  - sandboxwarmpools.extensions.agents.x-k8s.io
  verbs: [get, patch]
{{- end }}

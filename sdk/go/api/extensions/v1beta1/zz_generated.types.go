// Generated from the CRDs by internal/apigen; do not edit.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of these types.
var GroupVersion = schema.GroupVersion{Group: "extensions.agents.x-k8s.io", Version: "v1beta1"}

// SchemeGroupVersion is GroupVersion under the name that generated clients use.
var SchemeGroupVersion = GroupVersion

// Resource is a resource of this group, for errors of generated listers.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme registers these types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&SandboxClaim{}, &SandboxClaimList{},
		&SandboxTemplate{}, &SandboxTemplateList{},
		&SandboxWarmPool{}, &SandboxWarmPoolList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// SandboxClaimSpecAdditionalPodMetadata: Labels and annotations added to the Pod.
type SandboxClaimSpecAdditionalPodMetadata struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecAdditionalPodMetadata) DeepCopyInto(out *SandboxClaimSpecAdditionalPodMetadata) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value := range in.Annotations {
			out.Annotations[key] = value
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value := range in.Labels {
			out.Labels[key] = value
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecAdditionalPodMetadata) DeepCopy() *SandboxClaimSpecAdditionalPodMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecAdditionalPodMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpecEnv of the API.
type SandboxClaimSpecEnv struct {
	// The container it is for; absent, the first one.
	ContainerName string `json:"containerName,omitempty"`
	// The variable.
	Name string `json:"name"`
	// Its value.
	Value string `json:"value"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecEnv) DeepCopyInto(out *SandboxClaimSpecEnv) {
	*out = *in
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecEnv) DeepCopy() *SandboxClaimSpecEnv {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecEnv)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpecLifecycleShutdownPolicy: Delete removes the claim and with it the Sandbox, DeleteForeground keeps it visible until both are gone, Retain removes the Sandbox only.
type SandboxClaimSpecLifecycleShutdownPolicy string

const (
	SandboxClaimSpecLifecycleShutdownPolicyDelete           SandboxClaimSpecLifecycleShutdownPolicy = "Delete"
	SandboxClaimSpecLifecycleShutdownPolicyDeleteForeground SandboxClaimSpecLifecycleShutdownPolicy = "DeleteForeground"
	SandboxClaimSpecLifecycleShutdownPolicyRetain           SandboxClaimSpecLifecycleShutdownPolicy = "Retain"
)

// SandboxClaimSpecLifecycle: When the claim ends, and how.
type SandboxClaimSpecLifecycle struct {
	// Delete removes the claim and with it the Sandbox, DeleteForeground keeps it visible until both are gone, Retain removes the Sandbox only.
	ShutdownPolicy SandboxClaimSpecLifecycleShutdownPolicy `json:"shutdownPolicy,omitempty"`
	// When the claim ends.
	ShutdownTime *metav1.Time `json:"shutdownTime,omitempty"`
	// Seconds from the end of the Sandbox's Pod to the end of the claim.
	TtlSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecLifecycle) DeepCopyInto(out *SandboxClaimSpecLifecycle) {
	*out = *in
	out.ShutdownTime = in.ShutdownTime.DeepCopy()
	if in.TtlSecondsAfterFinished != nil {
		value := *in.TtlSecondsAfterFinished
		out.TtlSecondsAfterFinished = &value
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecLifecycle) DeepCopy() *SandboxClaimSpecLifecycle {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecLifecycle)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpecVolumeClaimTemplateMetadata: What the claim is called and marked with.
type SandboxClaimSpecVolumeClaimTemplateMetadata struct {
	// Annotations of the claim.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels of the claim.
	Labels map[string]string `json:"labels,omitempty"`
	// The volume's name; the claim is called NAME-SANDBOX.
	Name string `json:"name,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecVolumeClaimTemplateMetadata) DeepCopyInto(out *SandboxClaimSpecVolumeClaimTemplateMetadata) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value := range in.Annotations {
			out.Annotations[key] = value
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value := range in.Labels {
			out.Labels[key] = value
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecVolumeClaimTemplateMetadata) DeepCopy() *SandboxClaimSpecVolumeClaimTemplateMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecVolumeClaimTemplateMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpecVolumeClaimTemplate of the API.
type SandboxClaimSpecVolumeClaimTemplate struct {
	// What the claim is called and marked with.
	Metadata *SandboxClaimSpecVolumeClaimTemplateMetadata `json:"metadata,omitempty"`
	Spec     corev1.PersistentVolumeClaimSpec             `json:"spec"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecVolumeClaimTemplate) DeepCopyInto(out *SandboxClaimSpecVolumeClaimTemplate) {
	*out = *in
	out.Metadata = in.Metadata.DeepCopy()
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecVolumeClaimTemplate) DeepCopy() *SandboxClaimSpecVolumeClaimTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecVolumeClaimTemplate)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpecWarmPoolRef: The SandboxWarmPool, of the same namespace, to be served from.
type SandboxClaimSpecWarmPoolRef struct {
	// Its name.
	Name string `json:"name"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpecWarmPoolRef) DeepCopyInto(out *SandboxClaimSpecWarmPoolRef) {
	*out = *in
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpecWarmPoolRef) DeepCopy() *SandboxClaimSpecWarmPoolRef {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpecWarmPoolRef)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimSpec of the API.
type SandboxClaimSpec struct {
	// Labels and annotations added to the Pod.
	AdditionalPodMetadata *SandboxClaimSpecAdditionalPodMetadata `json:"additionalPodMetadata,omitempty"`
	// Environment variables to add, where the template allows it; any entry means a new Sandbox.
	Env []SandboxClaimSpecEnv `json:"env,omitempty"`
	// When the claim ends, and how.
	Lifecycle *SandboxClaimSpecLifecycle `json:"lifecycle,omitempty"`
	// Persistent volumes; each becomes a PersistentVolumeClaim and a volume of the Pod under its name.
	VolumeClaimTemplates []SandboxClaimSpecVolumeClaimTemplate `json:"volumeClaimTemplates,omitempty"`
	// The SandboxWarmPool, of the same namespace, to be served from.
	WarmPoolRef SandboxClaimSpecWarmPoolRef `json:"warmPoolRef"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimSpec) DeepCopyInto(out *SandboxClaimSpec) {
	*out = *in
	out.AdditionalPodMetadata = in.AdditionalPodMetadata.DeepCopy()
	if in.Env != nil {
		out.Env = make([]SandboxClaimSpecEnv, len(in.Env))
		for key, value := range in.Env {
			out.Env[key] = *value.DeepCopy()
		}
	}
	out.Lifecycle = in.Lifecycle.DeepCopy()
	if in.VolumeClaimTemplates != nil {
		out.VolumeClaimTemplates = make([]SandboxClaimSpecVolumeClaimTemplate, len(in.VolumeClaimTemplates))
		for key, value := range in.VolumeClaimTemplates {
			out.VolumeClaimTemplates[key] = *value.DeepCopy()
		}
	}
	in.WarmPoolRef.DeepCopyInto(&out.WarmPoolRef)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimSpec) DeepCopy() *SandboxClaimSpec {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimSpec)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimStatusSandbox: The Sandbox that serves the claim.
type SandboxClaimStatusSandbox struct {
	// Its name.
	Name string `json:"name,omitempty"`
	// Addresses of its Pod.
	PodIPs []string `json:"podIPs,omitempty"`
	// The DNS name of its Service; absent when it has none.
	ServiceFQDN string `json:"serviceFQDN,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimStatusSandbox) DeepCopyInto(out *SandboxClaimStatusSandbox) {
	*out = *in
	if in.PodIPs != nil {
		out.PodIPs = make([]string, len(in.PodIPs))
		for key, value := range in.PodIPs {
			out.PodIPs[key] = value
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimStatusSandbox) DeepCopy() *SandboxClaimStatusSandbox {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimStatusSandbox)
	in.DeepCopyInto(out)
	return out
}

// SandboxClaimStatus of the API.
type SandboxClaimStatus struct {
	// What holds now, and why.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The Sandbox that serves the claim.
	Sandbox *SandboxClaimStatusSandbox `json:"sandbox,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimStatus) DeepCopyInto(out *SandboxClaimStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		for key, value := range in.Conditions {
			out.Conditions[key] = *value.DeepCopy()
		}
	}
	out.Sandbox = in.Sandbox.DeepCopy()
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimStatus) DeepCopy() *SandboxClaimStatus {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimStatus)
	in.DeepCopyInto(out)
	return out
}

// +genclient

// SandboxClaim: SandboxClaim asks for one Sandbox: a warm one of a pool when there is one, a new one otherwise.
type SandboxClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SandboxClaimSpec   `json:"spec,omitempty"`
	Status            SandboxClaimStatus `json:"status,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaim) DeepCopyInto(out *SandboxClaim) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaim) DeepCopy() *SandboxClaim {
	if in == nil {
		return nil
	}
	out := new(SandboxClaim)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxClaim) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxClaimList is a list of them.
type SandboxClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxClaim `json:"items"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxClaimList) DeepCopyInto(out *SandboxClaimList) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]SandboxClaim, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxClaimList) DeepCopy() *SandboxClaimList {
	if in == nil {
		return nil
	}
	out := new(SandboxClaimList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxClaimList) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxTemplateSpecEnvVarsInjectionPolicy: Whether claims may bring environment variables, new ones only or also in place of the template's.
type SandboxTemplateSpecEnvVarsInjectionPolicy string

const (
	SandboxTemplateSpecEnvVarsInjectionPolicyAllowed    SandboxTemplateSpecEnvVarsInjectionPolicy = "Allowed"
	SandboxTemplateSpecEnvVarsInjectionPolicyOverrides  SandboxTemplateSpecEnvVarsInjectionPolicy = "Overrides"
	SandboxTemplateSpecEnvVarsInjectionPolicyDisallowed SandboxTemplateSpecEnvVarsInjectionPolicy = "Disallowed"
)

// SandboxTemplateSpecNetworkPolicy: Rules for the Pods' traffic; absent means the secure default.
type SandboxTemplateSpecNetworkPolicy struct {
	Egress  []networkingv1.NetworkPolicyEgressRule  `json:"egress,omitempty"`
	Ingress []networkingv1.NetworkPolicyIngressRule `json:"ingress,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpecNetworkPolicy) DeepCopyInto(out *SandboxTemplateSpecNetworkPolicy) {
	*out = *in
	if in.Egress != nil {
		out.Egress = make([]networkingv1.NetworkPolicyEgressRule, len(in.Egress))
		for key, value := range in.Egress {
			out.Egress[key] = *value.DeepCopy()
		}
	}
	if in.Ingress != nil {
		out.Ingress = make([]networkingv1.NetworkPolicyIngressRule, len(in.Ingress))
		for key, value := range in.Ingress {
			out.Ingress[key] = *value.DeepCopy()
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpecNetworkPolicy) DeepCopy() *SandboxTemplateSpecNetworkPolicy {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpecNetworkPolicy)
	in.DeepCopyInto(out)
	return out
}

// SandboxTemplateSpecNetworkPolicyManagement: Managed writes a NetworkPolicy for the template's Pods, Unmanaged leaves that to you.
type SandboxTemplateSpecNetworkPolicyManagement string

const (
	SandboxTemplateSpecNetworkPolicyManagementManaged   SandboxTemplateSpecNetworkPolicyManagement = "Managed"
	SandboxTemplateSpecNetworkPolicyManagementUnmanaged SandboxTemplateSpecNetworkPolicyManagement = "Unmanaged"
)

// SandboxTemplateSpecPodTemplateMetadata: Labels and annotations of the Pod; those of agents.x-k8s.io are reserved.
type SandboxTemplateSpecPodTemplateMetadata struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpecPodTemplateMetadata) DeepCopyInto(out *SandboxTemplateSpecPodTemplateMetadata) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value := range in.Annotations {
			out.Annotations[key] = value
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value := range in.Labels {
			out.Labels[key] = value
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpecPodTemplateMetadata) DeepCopy() *SandboxTemplateSpecPodTemplateMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpecPodTemplateMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxTemplateSpecPodTemplate: The Pod to run.
type SandboxTemplateSpecPodTemplate struct {
	// Labels and annotations of the Pod; those of agents.x-k8s.io are reserved.
	Metadata *SandboxTemplateSpecPodTemplateMetadata `json:"metadata,omitempty"`
	// The Pod's spec, as in a Pod.
	Spec corev1.PodSpec `json:"spec"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpecPodTemplate) DeepCopyInto(out *SandboxTemplateSpecPodTemplate) {
	*out = *in
	out.Metadata = in.Metadata.DeepCopy()
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpecPodTemplate) DeepCopy() *SandboxTemplateSpecPodTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpecPodTemplate)
	in.DeepCopyInto(out)
	return out
}

// SandboxTemplateSpecVolumeClaimTemplateMetadata: What the claim is called and marked with.
type SandboxTemplateSpecVolumeClaimTemplateMetadata struct {
	// Annotations of the claim.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels of the claim.
	Labels map[string]string `json:"labels,omitempty"`
	// The volume's name; the claim is called NAME-SANDBOX.
	Name string `json:"name,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpecVolumeClaimTemplateMetadata) DeepCopyInto(out *SandboxTemplateSpecVolumeClaimTemplateMetadata) {
	*out = *in
	if in.Annotations != nil {
		out.Annotations = make(map[string]string, len(in.Annotations))
		for key, value := range in.Annotations {
			out.Annotations[key] = value
		}
	}
	if in.Labels != nil {
		out.Labels = make(map[string]string, len(in.Labels))
		for key, value := range in.Labels {
			out.Labels[key] = value
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpecVolumeClaimTemplateMetadata) DeepCopy() *SandboxTemplateSpecVolumeClaimTemplateMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpecVolumeClaimTemplateMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxTemplateSpecVolumeClaimTemplate of the API.
type SandboxTemplateSpecVolumeClaimTemplate struct {
	// What the claim is called and marked with.
	Metadata *SandboxTemplateSpecVolumeClaimTemplateMetadata `json:"metadata,omitempty"`
	Spec     corev1.PersistentVolumeClaimSpec                `json:"spec"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpecVolumeClaimTemplate) DeepCopyInto(out *SandboxTemplateSpecVolumeClaimTemplate) {
	*out = *in
	out.Metadata = in.Metadata.DeepCopy()
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpecVolumeClaimTemplate) DeepCopy() *SandboxTemplateSpecVolumeClaimTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpecVolumeClaimTemplate)
	in.DeepCopyInto(out)
	return out
}

// SandboxTemplateSpecVolumeClaimTemplatesPolicy: Whether claims may bring volumes, new ones only or also in place of the template's.
type SandboxTemplateSpecVolumeClaimTemplatesPolicy string

const (
	SandboxTemplateSpecVolumeClaimTemplatesPolicyAllowed    SandboxTemplateSpecVolumeClaimTemplatesPolicy = "Allowed"
	SandboxTemplateSpecVolumeClaimTemplatesPolicyOverrides  SandboxTemplateSpecVolumeClaimTemplatesPolicy = "Overrides"
	SandboxTemplateSpecVolumeClaimTemplatesPolicyDisallowed SandboxTemplateSpecVolumeClaimTemplatesPolicy = "Disallowed"
)

// SandboxTemplateSpec of the API.
type SandboxTemplateSpec struct {
	// Whether claims may bring environment variables, new ones only or also in place of the template's.
	EnvVarsInjectionPolicy SandboxTemplateSpecEnvVarsInjectionPolicy `json:"envVarsInjectionPolicy,omitempty"`
	// Rules for the Pods' traffic; absent means the secure default.
	NetworkPolicy *SandboxTemplateSpecNetworkPolicy `json:"networkPolicy,omitempty"`
	// Managed writes a NetworkPolicy for the template's Pods, Unmanaged leaves that to you.
	NetworkPolicyManagement SandboxTemplateSpecNetworkPolicyManagement `json:"networkPolicyManagement,omitempty"`
	// The Pod to run.
	PodTemplate SandboxTemplateSpecPodTemplate `json:"podTemplate"`
	// True keeps a headless Service named like the Sandbox, false removes it, absent leaves it as it is.
	Service *bool `json:"service,omitempty"`
	// Persistent volumes; each becomes a PersistentVolumeClaim and a volume of the Pod under its name.
	VolumeClaimTemplates []SandboxTemplateSpecVolumeClaimTemplate `json:"volumeClaimTemplates,omitempty"`
	// Whether claims may bring volumes, new ones only or also in place of the template's.
	VolumeClaimTemplatesPolicy SandboxTemplateSpecVolumeClaimTemplatesPolicy `json:"volumeClaimTemplatesPolicy,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateSpec) DeepCopyInto(out *SandboxTemplateSpec) {
	*out = *in
	out.NetworkPolicy = in.NetworkPolicy.DeepCopy()
	in.PodTemplate.DeepCopyInto(&out.PodTemplate)
	if in.Service != nil {
		value := *in.Service
		out.Service = &value
	}
	if in.VolumeClaimTemplates != nil {
		out.VolumeClaimTemplates = make([]SandboxTemplateSpecVolumeClaimTemplate, len(in.VolumeClaimTemplates))
		for key, value := range in.VolumeClaimTemplates {
			out.VolumeClaimTemplates[key] = *value.DeepCopy()
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateSpec) DeepCopy() *SandboxTemplateSpec {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateSpec)
	in.DeepCopyInto(out)
	return out
}

// +genclient

// SandboxTemplate: SandboxTemplate is what Sandboxes of pools and claims are made from.
type SandboxTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SandboxTemplateSpec `json:"spec,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplate) DeepCopyInto(out *SandboxTemplate) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplate) DeepCopy() *SandboxTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplate)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxTemplate) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxTemplateList is a list of them.
type SandboxTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxTemplate `json:"items"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxTemplateList) DeepCopyInto(out *SandboxTemplateList) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]SandboxTemplate, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxTemplateList) DeepCopy() *SandboxTemplateList {
	if in == nil {
		return nil
	}
	out := new(SandboxTemplateList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxTemplateList) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxWarmPoolSpecSandboxTemplateRef: The SandboxTemplate, of the same namespace, to make them from.
type SandboxWarmPoolSpecSandboxTemplateRef struct {
	// Its name.
	Name string `json:"name"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPoolSpecSandboxTemplateRef) DeepCopyInto(out *SandboxWarmPoolSpecSandboxTemplateRef) {
	*out = *in
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPoolSpecSandboxTemplateRef) DeepCopy() *SandboxWarmPoolSpecSandboxTemplateRef {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPoolSpecSandboxTemplateRef)
	in.DeepCopyInto(out)
	return out
}

// SandboxWarmPoolSpecUpdateStrategyType: When the template changes, Recreate replaces waiting Sandboxes, OnReplenish makes only later ones new.
type SandboxWarmPoolSpecUpdateStrategyType string

const (
	SandboxWarmPoolSpecUpdateStrategyTypeRecreate    SandboxWarmPoolSpecUpdateStrategyType = "Recreate"
	SandboxWarmPoolSpecUpdateStrategyTypeOnReplenish SandboxWarmPoolSpecUpdateStrategyType = "OnReplenish"
)

// SandboxWarmPoolSpecUpdateStrategy: What becomes of waiting Sandboxes when the template changes.
type SandboxWarmPoolSpecUpdateStrategy struct {
	// When the template changes, Recreate replaces waiting Sandboxes, OnReplenish makes only later ones new.
	Type SandboxWarmPoolSpecUpdateStrategyType `json:"type,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPoolSpecUpdateStrategy) DeepCopyInto(out *SandboxWarmPoolSpecUpdateStrategy) {
	*out = *in
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPoolSpecUpdateStrategy) DeepCopy() *SandboxWarmPoolSpecUpdateStrategy {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPoolSpecUpdateStrategy)
	in.DeepCopyInto(out)
	return out
}

// SandboxWarmPoolSpec of the API.
type SandboxWarmPoolSpec struct {
	// How many unclaimed Sandboxes to keep.
	Replicas *int32 `json:"replicas,omitempty"`
	// The SandboxTemplate, of the same namespace, to make them from.
	SandboxTemplateRef SandboxWarmPoolSpecSandboxTemplateRef `json:"sandboxTemplateRef"`
	// What becomes of waiting Sandboxes when the template changes.
	UpdateStrategy *SandboxWarmPoolSpecUpdateStrategy `json:"updateStrategy,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPoolSpec) DeepCopyInto(out *SandboxWarmPoolSpec) {
	*out = *in
	if in.Replicas != nil {
		value := *in.Replicas
		out.Replicas = &value
	}
	in.SandboxTemplateRef.DeepCopyInto(&out.SandboxTemplateRef)
	out.UpdateStrategy = in.UpdateStrategy.DeepCopy()
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPoolSpec) DeepCopy() *SandboxWarmPoolSpec {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPoolSpec)
	in.DeepCopyInto(out)
	return out
}

// SandboxWarmPoolStatus of the API.
type SandboxWarmPoolStatus struct {
	// The generation of the spec that this is about.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// Those that are Ready.
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// Unclaimed Sandboxes that exist.
	Replicas *int32 `json:"replicas,omitempty"`
	// Label selector of the Sandboxes, for autoscalers.
	Selector string `json:"selector,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPoolStatus) DeepCopyInto(out *SandboxWarmPoolStatus) {
	*out = *in
	if in.ObservedGeneration != nil {
		value := *in.ObservedGeneration
		out.ObservedGeneration = &value
	}
	if in.ReadyReplicas != nil {
		value := *in.ReadyReplicas
		out.ReadyReplicas = &value
	}
	if in.Replicas != nil {
		value := *in.Replicas
		out.Replicas = &value
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPoolStatus) DeepCopy() *SandboxWarmPoolStatus {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPoolStatus)
	in.DeepCopyInto(out)
	return out
}

// +genclient

// SandboxWarmPool: SandboxWarmPool keeps a number of Sandboxes ready for claims.
type SandboxWarmPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SandboxWarmPoolSpec   `json:"spec,omitempty"`
	Status            SandboxWarmPoolStatus `json:"status,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPool) DeepCopyInto(out *SandboxWarmPool) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPool) DeepCopy() *SandboxWarmPool {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPool)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxWarmPool) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxWarmPoolList is a list of them.
type SandboxWarmPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxWarmPool `json:"items"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxWarmPoolList) DeepCopyInto(out *SandboxWarmPoolList) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]SandboxWarmPool, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxWarmPoolList) DeepCopy() *SandboxWarmPoolList {
	if in == nil {
		return nil
	}
	out := new(SandboxWarmPoolList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxWarmPoolList) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

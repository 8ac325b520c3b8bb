// Generated from the CRDs by internal/apigen; do not edit.

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of these types.
var GroupVersion = schema.GroupVersion{Group: "agents.x-k8s.io", Version: "v1alpha1"}

// SchemeGroupVersion is GroupVersion under the name that generated clients use.
var SchemeGroupVersion = GroupVersion

// Resource is a resource of this group, for errors of generated listers.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme registers these types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&Sandbox{}, &SandboxList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// SandboxSpecPodTemplateMetadata: Labels and annotations of the Pod; those of agents.x-k8s.io are reserved.
type SandboxSpecPodTemplateMetadata struct {
	// Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels.
	Labels map[string]string `json:"labels,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxSpecPodTemplateMetadata) DeepCopyInto(out *SandboxSpecPodTemplateMetadata) {
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
func (in *SandboxSpecPodTemplateMetadata) DeepCopy() *SandboxSpecPodTemplateMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxSpecPodTemplateMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxSpecPodTemplate: The Pod to run.
type SandboxSpecPodTemplate struct {
	// Labels and annotations of the Pod; those of agents.x-k8s.io are reserved.
	Metadata *SandboxSpecPodTemplateMetadata `json:"metadata,omitempty"`
	// The Pod's spec, as in a Pod.
	Spec corev1.PodSpec `json:"spec"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxSpecPodTemplate) DeepCopyInto(out *SandboxSpecPodTemplate) {
	*out = *in
	out.Metadata = in.Metadata.DeepCopy()
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxSpecPodTemplate) DeepCopy() *SandboxSpecPodTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxSpecPodTemplate)
	in.DeepCopyInto(out)
	return out
}

// SandboxSpecShutdownPolicy: At shutdownTime, Delete removes the Sandbox with everything it owns; Retain removes its Pod and Service only.
type SandboxSpecShutdownPolicy string

const (
	SandboxSpecShutdownPolicyDelete SandboxSpecShutdownPolicy = "Delete"
	SandboxSpecShutdownPolicyRetain SandboxSpecShutdownPolicy = "Retain"
)

// SandboxSpecVolumeClaimTemplateMetadata: What the claim is called and marked with.
type SandboxSpecVolumeClaimTemplateMetadata struct {
	// Annotations of the claim.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels of the claim.
	Labels map[string]string `json:"labels,omitempty"`
	// The volume's name; the claim is called NAME-SANDBOX.
	Name string `json:"name,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxSpecVolumeClaimTemplateMetadata) DeepCopyInto(out *SandboxSpecVolumeClaimTemplateMetadata) {
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
func (in *SandboxSpecVolumeClaimTemplateMetadata) DeepCopy() *SandboxSpecVolumeClaimTemplateMetadata {
	if in == nil {
		return nil
	}
	out := new(SandboxSpecVolumeClaimTemplateMetadata)
	in.DeepCopyInto(out)
	return out
}

// SandboxSpecVolumeClaimTemplate of the API.
type SandboxSpecVolumeClaimTemplate struct {
	// What the claim is called and marked with.
	Metadata *SandboxSpecVolumeClaimTemplateMetadata `json:"metadata,omitempty"`
	Spec     corev1.PersistentVolumeClaimSpec        `json:"spec"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxSpecVolumeClaimTemplate) DeepCopyInto(out *SandboxSpecVolumeClaimTemplate) {
	*out = *in
	out.Metadata = in.Metadata.DeepCopy()
	in.Spec.DeepCopyInto(&out.Spec)
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxSpecVolumeClaimTemplate) DeepCopy() *SandboxSpecVolumeClaimTemplate {
	if in == nil {
		return nil
	}
	out := new(SandboxSpecVolumeClaimTemplate)
	in.DeepCopyInto(out)
	return out
}

// SandboxSpec of the API.
type SandboxSpec struct {
	// The Pod to run.
	PodTemplate SandboxSpecPodTemplate `json:"podTemplate"`
	// 1 runs the Sandbox, 0 suspends it.
	Replicas *int32 `json:"replicas,omitempty"`
	// True keeps a headless Service named like the Sandbox, false removes it, absent leaves it as it is.
	Service *bool `json:"service,omitempty"`
	// At shutdownTime, Delete removes the Sandbox with everything it owns; Retain removes its Pod and Service only.
	ShutdownPolicy SandboxSpecShutdownPolicy `json:"shutdownPolicy,omitempty"`
	// When the Sandbox ends.
	ShutdownTime *metav1.Time `json:"shutdownTime,omitempty"`
	// Persistent volumes; each becomes a PersistentVolumeClaim and a volume of the Pod under its name.
	VolumeClaimTemplates []SandboxSpecVolumeClaimTemplate `json:"volumeClaimTemplates,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxSpec) DeepCopyInto(out *SandboxSpec) {
	*out = *in
	in.PodTemplate.DeepCopyInto(&out.PodTemplate)
	if in.Replicas != nil {
		value := *in.Replicas
		out.Replicas = &value
	}
	if in.Service != nil {
		value := *in.Service
		out.Service = &value
	}
	out.ShutdownTime = in.ShutdownTime.DeepCopy()
	if in.VolumeClaimTemplates != nil {
		out.VolumeClaimTemplates = make([]SandboxSpecVolumeClaimTemplate, len(in.VolumeClaimTemplates))
		for key, value := range in.VolumeClaimTemplates {
			out.VolumeClaimTemplates[key] = *value.DeepCopy()
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxSpec) DeepCopy() *SandboxSpec {
	if in == nil {
		return nil
	}
	out := new(SandboxSpec)
	in.DeepCopyInto(out)
	return out
}

// SandboxStatus of the API.
type SandboxStatus struct {
	// What holds now, and why.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Addresses of the Pod.
	PodIPs []string `json:"podIPs,omitempty"`
	// 1 while it should run, else 0.
	Replicas *int32 `json:"replicas,omitempty"`
	// Label selector of the Pod.
	Selector string `json:"selector,omitempty"`
	// The headless Service's name.
	Service string `json:"service,omitempty"`
	// The Service's DNS name.
	ServiceFQDN string `json:"serviceFQDN,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxStatus) DeepCopyInto(out *SandboxStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		for key, value := range in.Conditions {
			out.Conditions[key] = *value.DeepCopy()
		}
	}
	if in.PodIPs != nil {
		out.PodIPs = make([]string, len(in.PodIPs))
		for key, value := range in.PodIPs {
			out.PodIPs[key] = value
		}
	}
	if in.Replicas != nil {
		value := *in.Replicas
		out.Replicas = &value
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxStatus) DeepCopy() *SandboxStatus {
	if in == nil {
		return nil
	}
	out := new(SandboxStatus)
	in.DeepCopyInto(out)
	return out
}

// +genclient

// Sandbox: Sandbox is one isolated, stateful, singleton computer with a stable name.
type Sandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SandboxSpec   `json:"spec,omitempty"`
	Status            SandboxStatus `json:"status,omitempty"`
}

// DeepCopyInto copies everything into out.
func (in *Sandbox) DeepCopyInto(out *Sandbox) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

// DeepCopy is a copy that shares nothing.
func (in *Sandbox) DeepCopy() *Sandbox {
	if in == nil {
		return nil
	}
	out := new(Sandbox)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *Sandbox) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// SandboxList is a list of them.
type SandboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Sandbox `json:"items"`
}

// DeepCopyInto copies everything into out.
func (in *SandboxList) DeepCopyInto(out *SandboxList) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]Sandbox, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *SandboxList) DeepCopy() *SandboxList {
	if in == nil {
		return nil
	}
	out := new(SandboxList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes it a runtime.Object.
func (in *SandboxList) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

// Package v1alpha1 holds the types of extensions.agents.x-k8s.io/v1alpha1. Generated from the CRDs by internal/apigen; do not edit.
//
// +groupName=extensions.agents.x-k8s.io
// +groupGoName=Extensions
package v1alpha1

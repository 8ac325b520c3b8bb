// Package v1beta1 holds the types of agents.x-k8s.io/v1beta1. Generated from the CRDs by internal/apigen; do not edit.
//
// +groupName=agents.x-k8s.io
// +groupGoName=Agents
package v1beta1

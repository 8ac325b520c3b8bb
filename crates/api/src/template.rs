//! Parts of specs that both versions and several kinds share: Pod templates, claim templates for volumes, policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Opaque;
use crate::string_enum::string_enum;

/// Template of a Pod: its spec, unchanged, and the metadata that is copied to the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// core/v1 PodSpec, opaque.
    #[serde(default)]
    pub spec: Opaque,
    /// Shared like the spec: all members of a pool have the same metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Arc<PodMetadata>>,
}

impl PodTemplate {
    /// A mutable copy of the metadata; empty when there is none.
    pub fn metadata(&self) -> PodMetadata {
        self.metadata.as_deref().cloned().unwrap_or_default()
    }
}

/// Labels and annotations; the other fields of a Pod's metadata cannot be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Template of a PersistentVolumeClaim that is created for each Sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimTemplate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<VolumeClaimMetadata>,
    /// core/v1 PersistentVolumeClaimSpec, opaque.
    #[serde(default)]
    pub spec: Opaque,
}

impl VolumeClaimTemplate {
    /// The volume's name; empty when the user gave none (the schema allows that).
    pub fn name(&self) -> &str {
        self.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default()
    }
}

/// Metadata of a claim template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// A reference by name within the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRef {
    #[serde(default)]
    pub name: String,
}

impl NameRef {
    /// A reference to `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

string_enum! {
    /// What happens to a Sandbox at its shutdown time.
    ShutdownPolicy {
        /// Deletes the Pod and Service, keeps the Sandbox.
        Retain,
        /// Deletes the Sandbox too.
        Delete,
    }
}

string_enum! {
    /// What happens to a claim when it expires.
    ClaimShutdownPolicy {
        /// Deletes the Sandbox, keeps the claim.
        Retain,
        /// Deletes the claim; garbage collection deletes its Sandbox.
        Delete,
        /// Like `Delete`, but the claim stays visible until Sandbox and Pod are deleted.
        DeleteForeground,
    }
}

string_enum! {
    /// Who writes NetworkPolicies for a template's Pods.
    NetworkPolicyManagement {
        /// The controller does.
        Managed,
        /// The user does.
        Unmanaged,
    }
}

string_enum! {
    /// Whether a claim may bring environment variables or volumes of its own.
    InjectionPolicy {
        /// The claim may not add any.
        Disallowed,
        /// The claim may add new names only.
        Allowed,
        /// The claim may add new names and replace those of the template.
        Overrides,
    }
}

string_enum! {
    /// How a pool follows a changed template.
    UpdateStrategyType {
        /// Only members created later use the changed template.
        OnReplenish,
        /// Stale members are replaced.
        Recreate,
    }
}

/// How a pool follows a changed template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<UpdateStrategyType>,
}

/// Ingress and egress rules of a template, opaque `networking.k8s.io/v1` rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyRules {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<Opaque>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<Opaque>>,
}

/// One environment variable that a claim adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEnvVar {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub value: String,
    /// The container to add it to; none or empty means the first regular one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
}

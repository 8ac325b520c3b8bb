//! `extensions.agents.x-k8s.io/v1beta1` SandboxClaim.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::resource::custom_resource;
use crate::template::{ClaimEnvVar, ClaimShutdownPolicy, NameRef, PodMetadata, VolumeClaimTemplate};
use crate::{conditions, groups};

/// A user's request for one Sandbox, from the warm pool if one is available.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SandboxClaim {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxClaimSpec,
    #[serde(default)]
    pub status: Option<SandboxClaimStatus>,
}

custom_resource!(
    SandboxClaim,
    "SandboxClaimList",
    "sandboxclaims",
    groups::EXTENSIONS,
    groups::V1BETA1,
    groups::EXTENSIONS_V1BETA1,
    [status]
);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    #[serde(default)]
    pub warm_pool_ref: NameRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ClaimLifecycle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_pod_metadata: Option<PodMetadata>,
    /// Any entry forces a cold start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<ClaimEnvVar>>,
    /// Any entry forces a cold start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
}

/// When the claim expires, and what is deleted then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimLifecycle {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ClaimShutdownPolicy>,
}

/// What was last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<BoundSandbox>,
}

/// The Sandbox that serves the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BoundSandbox {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Vec<String>>,
    /// The DNS name of the Sandbox's Service; absent when it has none.
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
}

impl SandboxClaim {
    /// The name of the bound Sandbox, when one is published.
    pub fn bound_sandbox(&self) -> Option<&str> {
        self.status.as_ref()?.sandbox.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
    }

    /// The conditions last written.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    /// The condition of a type.
    pub fn condition(&self, type_: conditions::ConditionType) -> Option<&Condition> {
        conditions::find(self.conditions(), type_)
    }

    /// The claim's own environment variables.
    pub fn env(&self) -> &[ClaimEnvVar] {
        self.spec.env.as_deref().unwrap_or_default()
    }

    /// The claim's own volumes.
    pub fn volume_claim_templates(&self) -> &[VolumeClaimTemplate] {
        self.spec.volume_claim_templates.as_deref().unwrap_or_default()
    }

    /// What happens when the claim expires; absent means that the Sandbox is deleted and the claim is kept.
    pub fn shutdown_policy(&self) -> ClaimShutdownPolicy {
        self.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.shutdown_policy).unwrap_or_default()
    }
}

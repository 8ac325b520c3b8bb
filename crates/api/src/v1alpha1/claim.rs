//! `extensions.agents.x-k8s.io/v1alpha1` SandboxClaim: a template and a pool policy where v1beta1 has a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{ClaimEnvVar, NameRef, PodMetadata};
use crate::v1beta1::{ClaimLifecycle, SandboxClaimStatus};

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
    groups::V1ALPHA1,
    groups::EXTENSIONS_V1ALPHA1,
    [status]
);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    #[serde(default)]
    pub sandbox_template_ref: NameRef,
    /// `default`, `none`, or a pool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmpool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ClaimLifecycle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_pod_metadata: Option<PodMetadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<ClaimEnvVar>>,
}

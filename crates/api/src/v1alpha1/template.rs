//! `extensions.agents.x-k8s.io/v1alpha1` SandboxTemplate: v1beta1 without the policy for claims' volumes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{InjectionPolicy, NetworkPolicyManagement, NetworkPolicyRules, PodTemplate, VolumeClaimTemplate};

/// What Sandboxes of pools and claims are made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SandboxTemplate {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxTemplateSpec,
}

custom_resource!(
    SandboxTemplate,
    "SandboxTemplateList",
    "sandboxtemplates",
    groups::EXTENSIONS,
    groups::V1ALPHA1,
    groups::EXTENSIONS_V1ALPHA1,
    []
);

/// The blueprint of Sandboxes, and the policies around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    #[serde(default)]
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy_management: Option<NetworkPolicyManagement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars_injection_policy: Option<InjectionPolicy>,
}

//! `extensions.agents.x-k8s.io/v1beta1` SandboxTemplate.

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
    groups::V1BETA1,
    groups::EXTENSIONS_V1BETA1,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates_policy: Option<InjectionPolicy>,
}

impl SandboxTemplate {
    /// The volume claim templates; absent and empty are equivalent.
    pub fn volume_claim_templates(&self) -> &[VolumeClaimTemplate] {
        self.spec.volume_claim_templates.as_deref().unwrap_or_default()
    }

    /// Who writes NetworkPolicies; absent means the controller.
    pub fn network_policy_management(&self) -> NetworkPolicyManagement {
        self.spec.network_policy_management.unwrap_or_default()
    }

    /// Whether claims may bring environment variables; absent means no.
    pub fn env_vars_injection_policy(&self) -> InjectionPolicy {
        self.spec.env_vars_injection_policy.unwrap_or_default()
    }

    /// Whether claims may bring volumes; absent means no.
    pub fn volume_claim_templates_policy(&self) -> InjectionPolicy {
        self.spec.volume_claim_templates_policy.unwrap_or_default()
    }
}

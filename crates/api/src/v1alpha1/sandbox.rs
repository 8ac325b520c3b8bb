//! `agents.x-k8s.io/v1alpha1` Sandbox: `replicas` where v1beta1 has `operatingMode`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{PodTemplate, ShutdownPolicy, VolumeClaimTemplate};

/// One isolated, stateful, singleton computer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Sandbox {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxSpec,
    #[serde(default)]
    pub status: Option<SandboxStatus>,
}

custom_resource!(Sandbox, "SandboxList", "sandboxes", groups::CORE, groups::V1ALPHA1, groups::CORE_V1ALPHA1, [status]);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    #[serde(default)]
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ShutdownPolicy>,
    /// 0 is suspended, anything else is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// What was last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

//! `agents.x-k8s.io/v1beta1` Sandbox.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::resource::custom_resource;
use crate::string_enum::string_enum;
use crate::template::{PodTemplate, ShutdownPolicy, VolumeClaimTemplate};
use crate::{conditions, groups};

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

custom_resource!(Sandbox, "SandboxList", "sandboxes", groups::CORE, groups::V1BETA1, groups::CORE_V1BETA1, [status]);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    #[serde(default)]
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// True: keep a headless Service. False: remove it. None: keep one that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ShutdownPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,
}

string_enum! {
    /// Whether the Sandbox's Pod should exist.
    OperatingMode {
        /// The Pod should exist.
        Running,
        /// The Pod should not exist; storage and name are kept.
        Suspended,
    }
}

/// What was last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Name of the headless Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
    /// `agents.x-k8s.io/sandbox-name-hash=<hash>`, a single equality: clients split it at `=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

impl Sandbox {
    /// The wanted mode; absent means running.
    pub fn operating_mode(&self) -> OperatingMode {
        self.spec.operating_mode.unwrap_or_default()
    }

    /// The volume claim templates; absent and empty are equivalent.
    pub fn volume_claim_templates(&self) -> &[VolumeClaimTemplate] {
        self.spec.volume_claim_templates.as_deref().unwrap_or_default()
    }

    /// The conditions last written.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    /// The condition of a type.
    pub fn condition(&self, type_: conditions::ConditionType) -> Option<&Condition> {
        conditions::find(self.conditions(), type_)
    }

    /// The Pod's addresses, in the Pod's order.
    pub fn pod_ips(&self) -> &[String] {
        self.status.as_ref().and_then(|status| status.pod_ips.as_deref()).unwrap_or_default()
    }
}

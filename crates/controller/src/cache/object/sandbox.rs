//! The cached form of a Sandbox: all fields of the API, with metadata in compact form.

use agent_sandbox_api::{
    conditions::{self, ConditionType},
    groups, owners,
    template::VolumeClaimTemplate,
    v1beta1::{OperatingMode, SandboxSpec, SandboxStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use serde::Deserialize;

use super::{LAST_APPLIED, Meta};
use crate::cache::intern;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Sandbox {
    #[serde(default)]
    pub metadata: Meta,
    #[serde(default)]
    pub spec: SandboxSpec,
    #[serde(default)]
    pub status: Option<SandboxStatus>,
}

impl Sandbox {
    pub fn name(&self) -> &str {
        &self.metadata.key.name
    }

    pub fn namespace(&self) -> &str {
        &self.metadata.key.namespace
    }

    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key)
    }

    /// True once a deletion has been requested.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn generation(&self) -> i64 {
        self.metadata.generation
    }

    /// The wanted mode; absent means running.
    pub fn operating_mode(&self) -> OperatingMode {
        self.spec.operating_mode.unwrap_or_default()
    }

    /// The volume claim templates; an absent list equals an empty one.
    pub fn volume_claim_templates(&self) -> &[VolumeClaimTemplate] {
        self.spec.volume_claim_templates.as_deref().unwrap_or_default()
    }

    /// The stored conditions.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        conditions::find(self.conditions(), type_)
    }

    /// The Pod's addresses, in the Pod's order.
    pub fn pod_ips(&self) -> &[String] {
        self.status.as_ref().and_then(|status| status.pod_ips.as_deref()).unwrap_or_default()
    }

    /// The DNS name of the headless Service, while there is one.
    pub fn service_fqdn(&self) -> Option<&str> {
        self.status.as_ref()?.service_fqdn.as_deref().filter(|name| !name.is_empty())
    }

    /// A controller owner reference to this object, always in the stored version.
    pub fn controller_reference(&self) -> OwnerReference {
        owners::controller_reference(groups::CORE, groups::SANDBOX, self.name(), &self.metadata.uid)
    }

    /// Shares what the members of a pool have in common, which is all but their names. Vectors decoded from JSON have
    /// capacity for four elements; most hold one.
    pub(in crate::cache) fn compact_fields(&mut self) {
        self.metadata.labels.intern();
        self.metadata.annotations.remove(LAST_APPLIED);
        if let Some(status) = &mut self.status {
            status.conditions.iter_mut().for_each(Vec::shrink_to_fit);
            status.pod_ips.iter_mut().for_each(Vec::shrink_to_fit);
        }
        intern::spec(&mut self.spec.pod_template.spec);
        self.spec.pod_template.metadata.iter_mut().for_each(intern::metadata);
        for template in self.spec.volume_claim_templates.iter_mut().flatten() {
            intern::spec(&mut template.spec);
        }
    }
}

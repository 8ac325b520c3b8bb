//! The cached form of Pods, PersistentVolumeClaims and Services: only the fields that a decision may depend on are
//! decoded.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use super::Meta;
use crate::cache::intern;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Pod {
    #[serde(default)]
    pub metadata: Meta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default)]
    pub node_name: Option<Arc<str>>,
    /// Names of the PersistentVolumeClaims among the volumes.
    #[serde(default, rename = "volumes", deserialize_with = "claim_names")]
    pub claims: Box<[Box<str>]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeWire {
    #[serde(default)]
    persistent_volume_claim: Option<VolumeClaimWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeClaimWire {
    #[serde(default)]
    claim_name: Box<str>,
}

fn claim_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[Box<str>]>, D::Error> {
    let volumes = Option::<Vec<VolumeWire>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(volumes.into_iter().filter_map(|volume| volume.persistent_volume_claim).map(|claim| claim.claim_name).collect())
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "PodStatusWire")]
pub struct PodStatus {
    pub phase: Arc<str>,
    /// Only the conditions that a decision reads.
    pub conditions: Arc<[PodCondition]>,
    pub pod_ips: Box<[PodIp]>,
}

#[derive(Deserialize)]
struct PodStatusWire {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Vec<PodCondition>,
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PodIp {
    #[serde(default)]
    pub ip: Box<str>,
}

/// The conditions of a Pod that a decision reads.
const DECISIVE: [&str; 2] = ["PodScheduled", "Ready"];

impl From<PodStatusWire> for PodStatus {
    fn from(mut wire: PodStatusWire) -> Self {
        wire.conditions.retain(|condition| DECISIVE.contains(&condition.type_.as_str()));
        Self {
            phase: intern::text(&wire.phase),
            conditions: intern::conditions(wire.conditions),
            pod_ips: wire.pod_ips.into(),
        }
    }
}

impl Pod {
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Shares the annotations, which are equal for the Pods of a pool, and the node name, which many Pods have in
    /// common.
    pub(in crate::cache) fn compact_fields(&mut self) {
        self.metadata.annotations.intern();
        self.spec.node_name = self.spec.node_name.take().map(|node| intern::text(&node));
    }
}

/// Of a volume claim only the metadata matters: its owner.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Pvc {
    #[serde(default)]
    pub metadata: Meta,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Service {
    #[serde(default)]
    pub metadata: Meta,
    #[serde(default)]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(default, rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    #[serde(default)]
    pub selector: BTreeMap<String, String>,
    #[serde(default)]
    pub ports: Vec<ServicePort>,
}

/// The fields of a Service port that are compared; others, such as `appProtocol`, are left alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub protocol: String,
    pub port: i32,
    #[serde(default)]
    pub target_port: serde_json::Value,
}

//! `agent-sandbox.github.io/v1alpha1` SandboxSnapshot, a kind of our own: the files of a Sandbox as they were at one
//! moment. It is no kind of upstream's groups, whose CRDs and clients would not know it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{PodTemplate, VolumeClaimTemplate};

/// The plural name in URLs.
pub const PLURAL: &str = "sandboxsnapshots";

/// Finalizer of a snapshot whose layers a node keeps.
pub const FINALIZER: &str = "agent-sandbox.github.io/layers";

/// The files of a Sandbox as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SandboxSnapshot {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxSnapshotSpec,
    #[serde(default)]
    pub status: Option<SandboxSnapshotStatus>,
}

custom_resource!(
    SandboxSnapshot,
    "SandboxSnapshotList",
    "sandboxsnapshots",
    groups::OWN,
    groups::V1ALPHA1,
    groups::OWN_V1ALPHA1,
    [status]
);

/// What to take a snapshot of, and how long to keep it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotSpec {
    /// The Sandbox, of the same namespace.
    #[serde(default)]
    pub sandbox_name: String,
    /// When the snapshot is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// What was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSnapshotStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<Time>,
    /// The node with the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Bytes on disk of all layers, those that it shares with other snapshots included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// How long the Sandbox was frozen; absent if it was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_milliseconds: Option<i64>,
    /// The snapshot that the Sandbox was made from or set back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// What a Sandbox from this snapshot is made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SnapshotSource>,
}

/// The Sandbox as it was. Values of Secrets are in no snapshot of a Sandbox: its template refers to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    pub uid: String,
    #[serde(default)]
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// The Sandbox's egress rules, which hold for what is made from it too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub egress: BTreeMap<String, String>,
}

impl SandboxSnapshot {
    /// The condition `Ready`, if it was reported.
    pub fn ready(&self) -> Option<&Condition> {
        let conditions = self.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == "Ready")
    }

    /// Whether Sandboxes can be made from it.
    pub fn is_ready(&self) -> bool {
        self.ready().is_some_and(|ready| ready.status == "True")
    }

    /// Whether it will never be ready.
    pub fn has_failed(&self) -> bool {
        self.ready().is_some_and(|ready| ready.status == "False" && ready.reason != SnapshotReason::Taking.as_str())
    }
}

/// Reasons of the condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotReason {
    /// The files are kept, and Sandboxes can be made from them.
    Taken,
    /// The snapshot is not complete yet; the message says what it waits for.
    Taking,
    /// No such Sandbox when the snapshot was to be taken.
    SandboxNotFound,
    /// The snapshot cannot be taken; the message says why.
    Refused,
}

impl SnapshotReason {
    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "Taken",
            Self::Taking => "Taking",
            Self::SandboxNotFound => "SandboxNotFound",
            Self::Refused => "Refused",
        }
    }
}

//! What Pods and containers are, as the kernel half sees them.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A Pod that has been made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSandbox {
    pub uid: String,
    /// The Pod's addresses; empty when it has loopback only.
    pub ips: Vec<IpAddr>,
    /// First host uid and gid of the Pod's block, and how many ids it has (1 when rootless without a block).
    pub first_host_id: u32,
    pub id_count: u32,
    /// Host pid of the Pod's supervisor.
    pub supervisor_pid: u32,
    pub weaknesses: Vec<Weakness>,
}

/// Everything known about one Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodState {
    pub sandbox: PodSandbox,
    pub namespace: String,
    pub name: String,
    /// False when the supervisor died: nothing of the Pod runs any more and only `remove_pod` makes sense.
    pub alive: bool,
    pub containers: Vec<ContainerState>,
}

/// The latest attempt of one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    pub name: String,
    pub attempt: u32,
    /// Unique per attempt, for `containerID`.
    pub id: String,
    pub pid: u32,
    pub started_at: Timestamp,
    pub exit: Option<Exit>,
    /// Whether the port that was to be open from the start is.
    #[serde(default)]
    pub port_open: bool,
    /// How the attempt before this one ended (`lastState`).
    pub previous: Option<PreviousAttempt>,
}

/// The attempt before the latest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousAttempt {
    pub id: String,
    pub attempt: u32,
    pub started_at: Timestamp,
    pub exit: Exit,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code, or 128 plus the signal.
    pub code: i32,
    pub signal: Option<i32>,
    pub oom_killed: bool,
    pub finished_at: Timestamp,
}

/// Something that happened by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeEvent {
    ContainerExited {
        pod: String,
        container: String,
        attempt: u32,
        exit: Exit,
    },
    /// The supervisor is gone; everything of the Pod has been killed.
    SupervisorLost {
        pod: String,
    },
}

/// A wall that is lower than it could be on this host, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weakness {
    pub kind: WeaknessKind,
    /// One sentence for people.
    pub message: String,
}

/// What is weaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeaknessKind {
    /// All Pods run as the caller's one uid.
    SharedUid,
    /// Memory or CPU limits are not held.
    LimitNotEnforced,
    /// Disk limits are measured, not held.
    StorageMeasuredOnly,
    /// No traffic leaves the Pod.
    NoEgress,
    /// The kernel lacks Landlock.
    NoLandlock,
}

impl WeaknessKind {
    /// The reason word of the Pod event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SharedUid => "SharedUid",
            Self::LimitNotEnforced => "LimitNotEnforced",
            Self::StorageMeasuredOnly => "StorageMeasuredOnly",
            Self::NoEgress => "NoEgress",
            Self::NoLandlock => "NoLandlock",
        }
    }
}
